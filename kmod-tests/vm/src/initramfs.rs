//! An initramfs of a few files, in the kernel's `newc` form, without compression.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::VmError;

/// Files at the top of an initramfs, and the console that init's output needs.
#[derive(Debug)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Default for Initramfs {
    fn default() -> Self {
        Self::new()
    }
}

const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;
const DIRECTORY: u32 = 0o040_000;

impl Initramfs {
    /// One with `/dev/console` alone.
    pub fn new() -> Self {
        let mut new = Self {
            bytes: Vec::new(),
            entries: 0,
        };
        new.entry("dev", DIRECTORY | 0o755, (0, 0), &[]);
        new.entry("dev/console", CHARACTER | 0o600, (5, 1), &[]);
        new
    }

    /// With a copy of the file `from`, named `name`.
    pub fn add(mut self, name: &str, mode: u32, from: &Path) -> Result<Self, VmError> {
        let content = fs::read(from).map_err(|source| VmError::Initramfs {
            path: from.to_path_buf(),
            source,
        })?;
        self.entry(name, REGULAR | mode, (0, 0), &content);
        Ok(self)
    }

    /// Writes it to a file that goes with the returned handle.
    pub fn write(mut self) -> Result<NamedTempFile, VmError> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        let failed = |source| VmError::Initramfs {
            path: PathBuf::from("a temporary file"),
            source,
        };
        let mut file = NamedTempFile::new().map_err(failed)?;
        file.write_all(&self.bytes).map_err(failed)?;
        Ok(file)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0, // uid
            0, // gid
            1, // links
            0, // time
            content.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0, // checksum, which this form has not
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpio_reads_it() -> Result<(), Box<dyn std::error::Error>> {
        let mut source = NamedTempFile::new()?;
        source.write_all(b"hello")?;
        let image = Initramfs::new().add("a", 0o755, source.path())?.write()?;
        let bytes = fs::read(image.path())?;
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        // Every header begins on a multiple of four, with its magic number.
        let headers: Vec<_> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(headers.len(), 4);
        assert!(headers.iter().all(|at| at % 4 == 0));
        assert!(text.ends_with("TRAILER!!!\0\0\0\0") || text.contains("TRAILER!!!\0"));
        // Mode, and the size of the content, of the file "a".
        let file = text.get(headers[2]..headers[3]).ok_or("no third entry")?;
        assert_eq!(file.get(14..22), Some("000081ed"));
        assert_eq!(file.get(54..62), Some("00000005"));
        assert!(file.contains("a\0") && file.contains("hello\0\0\0"));
        Ok(())
    }
}
