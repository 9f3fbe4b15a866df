//! Images of kernels, known by their hash: what was sent once is not sent again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Most bytes kept in memory.
const IN_MEMORY: usize = 512 << 20;
/// Most bytes kept in the directory.
const ON_DISK: u64 = 8 << 30;
/// Largest image that is taken.
pub(crate) const LARGEST: u64 = 4 << 30;

/// BLAKE3 of an image.
pub(crate) type Hash = [u8; 32];

/// The images of one tenant.
#[derive(Debug, Default)]
pub(crate) struct Images {
    directory: Option<PathBuf>,
    kept: HashMap<Hash, Arc<[u8]>>,
    bytes: usize,
}

fn name(hash: &Hash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

fn is(bytes: &[u8], hash: &Hash) -> bool {
    blake3::hash(bytes).as_bytes() == hash
}

impl Images {
    /// Those in `directory`, which is made if need be; without one they last as long as this.
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        let directory = directory.filter(|directory| {
            let made = fs::create_dir_all(directory);
            if let Err(error) = &made {
                let shown = directory.display();
                eprintln!("ghost-executor: images are not kept in {shown}: {error}");
            }
            made.is_ok()
        });
        Self {
            directory,
            ..Self::default()
        }
    }

    /// The image, with a NUL behind it that is not part of it.
    pub(crate) fn get(&mut self, hash: &Hash) -> Option<Arc<[u8]>> {
        if let Some(image) = self.kept.get(hash) {
            return Some(Arc::clone(image));
        }
        let path = self.directory.as_ref()?.join(name(hash));
        let mut bytes = fs::read(&path).ok()?;
        if !is(&bytes, hash) {
            let _ = fs::remove_file(&path);
            return None;
        }
        // Its age is that of its last use.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        bytes.push(0);
        Some(self.keep(*hash, bytes.into()))
    }

    /// Adds an image that was sent; none where its bytes are not what the hash says.
    pub(crate) fn put(&mut self, hash: &Hash, mut bytes: Vec<u8>) -> Option<Arc<[u8]>> {
        if !is(&bytes, hash) {
            return None;
        }
        if let Some(directory) = &self.directory
            && let Err(error) = store(directory, &name(hash), &bytes)
        {
            let shown = directory.display();
            eprintln!("ghost-executor: an image is not kept in {shown}: {error}");
        }
        bytes.push(0);
        Some(self.keep(*hash, bytes.into()))
    }

    fn keep(&mut self, hash: Hash, image: Arc<[u8]>) -> Arc<[u8]> {
        if self.bytes + image.len() <= IN_MEMORY {
            self.bytes += image.len();
            self.kept.insert(hash, Arc::clone(&image));
        }
        image
    }
}

fn store(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 > ON_DISK {
        return Ok(());
    }
    make_room(directory, ON_DISK - bytes.len() as u64)?;
    let temporary = directory.join(format!("{name}.{}", std::process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, directory.join(name))
}

/// Removes what was not used for longest until no more than `most` bytes are left.
fn make_room(directory: &Path, most: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Another session of the tenant's may be removing it.
        if let Ok(about) = entry.metadata().and_then(|m| Ok((m.modified()?, m.len()))) {
            files.push((about, entry.path()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|((_, len), _)| len).sum();
    for ((_, len), path) in files {
        if total <= most {
            break;
        }
        if fs::remove_file(path).is_ok() {
            total -= len;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_image_is_what_its_hash_says() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().to_owned();
        let hash = *blake3::hash(b"image").as_bytes();
        let mut images = Images::new(Some(path.clone()));
        assert_eq!(images.get(&hash), None);
        assert_eq!(images.put(&hash, b"imagine".to_vec()), None);
        assert_eq!(
            images.put(&hash, b"image".to_vec()).as_deref(),
            Some(&b"image\0"[..])
        );
        let mut others = Images::new(Some(path.clone()));
        assert_eq!(others.get(&hash).as_deref(), Some(&b"image\0"[..]));
        fs::write(path.join(name(&hash)), b"imagine")?;
        assert_eq!(Images::new(Some(path.clone())).get(&hash), None);
        assert!(!path.join(name(&hash)).exists());
        let mut lasting = Images::new(None);
        assert!(lasting.put(&hash, b"image".to_vec()).is_some());
        assert!(lasting.get(&hash).is_some());
        Ok(())
    }

    #[test]
    fn the_oldest_goes_first() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path();
        for (age, name) in [(10, "b"), (20, "a"), (0, "c")] {
            fs::write(path.join(name), [0; 100])?;
            let file = fs::File::options().append(true).open(path.join(name))?;
            file.set_modified(SystemTime::now() - Duration::from_secs(age))?;
        }
        make_room(path, 250)?;
        let left = |name: &str| path.join(name).exists();
        assert!(!left("a") && left("b") && left("c"));
        make_room(path, 100)?;
        assert!(!left("b") && left("c"));
        Ok(())
    }
}
