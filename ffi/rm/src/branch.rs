//! Which forms each driver branch takes, and what `/proc/driver/nvidia/version`
//! says is loaded.
//!
//! NVIDIA promises nothing about this interface between branches, so Ghost
//! speaks to a branch only if it is in [`BRANCHES`]. A row is added after
//! comparing the branch's published headers with [`crate::abi`].

use std::fmt;
use std::str::FromStr;

use crate::abi::CHANNELS_PER_CALL;

/// Which argument [`crate::Control::alloc`] sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocForm {
    /// 48 bytes, with a pointer to access rights and flags.
    WithRights,
    /// 32 bytes.
    Short,
}

/// How well a row of the table is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Numbers and layouts equal those of the branch's published headers.
    Headers,
    /// Also tried on a GPU.
    Measured,
}

/// What one driver branch takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// First number of the driver's version.
    pub major: u32,
    /// Alloc argument to send; these branches take either.
    pub alloc: AllocForm,
    /// Size in bytes of the disable and enable parameters.
    pub disable_params: usize,
    /// Channels that one disable or enable call takes.
    pub channels_per_call: usize,
    /// Size in bytes of the parameters of a memory allocation.
    pub memory_params: usize,
    /// Size in bytes of the parameters of the query for memory sizes.
    pub memory_info: usize,
    /// Where the row comes from.
    pub evidence: Evidence,
}

const fn row(major: u32, memory_params: usize, memory_infos: usize, evidence: Evidence) -> Branch {
    Branch {
        major,
        alloc: AllocForm::WithRights,
        disable_params: 536,
        channels_per_call: CHANNELS_PER_CALL,
        memory_params,
        memory_info: 4 + 8 * memory_infos,
        evidence,
    }
}

/// The branches that Ghost speaks to. In all of them the argument structs, the
/// channel group controls 0x103–0x107, the device and subdevice parameters,
/// the disable and channel state parameters, the heap control and the lists of processes are the
/// same; older ones (525 and before) have a 40-byte alloc without a parameter size.
pub const BRANCHES: &[Branch] = &[
    row(535, 120, 54, Evidence::Headers),
    row(545, 128, 55, Evidence::Headers),
    row(550, 128, 55, Evidence::Headers),
    row(555, 128, 55, Evidence::Headers),
    row(560, 128, 57, Evidence::Headers),
    row(565, 128, 57, Evidence::Headers),
    row(570, 128, 57, Evidence::Headers),
    row(575, 128, 57, Evidence::Headers),
    row(580, 128, 128, Evidence::Measured),
    row(590, 128, 128, Evidence::Headers),
    row(595, 128, 128, Evidence::Headers),
];

const _: () = {
    let mut i = 0;
    while i < BRANCHES.len() {
        assert!(BRANCHES[i].disable_params == size_of::<crate::abi::DisableChannels>());
        assert!(BRANCHES[i].memory_params <= size_of::<crate::abi::memory::MemoryParams>());
        assert!(BRANCHES[i].memory_info <= size_of::<crate::abi::memory::MemoryInfo>());
        assert!(i == 0 || BRANCHES[i - 1].major < BRANCHES[i].major);
        i += 1;
    }
};

/// Why a driver is not one that Ghost speaks to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BranchError {
    /// The text has no version in it.
    #[error(
        "no driver version in {text:?}: expected a line \"NVRM version: … 580.159.04 …\"; \
         is the nvidia driver loaded?"
    )]
    NoVersion {
        /// The beginning of what was read.
        text: String,
    },
    /// The branch is not in the table.
    #[error(
        "driver {version}: branch {} is not known to ghost (known: 535 to 595); \
         use a known branch or the patched backend", version.major
    )]
    Unknown {
        /// The driver's version.
        version: DriverVersion,
    },
}

/// A driver's version, as in `580.159.04`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverVersion {
    /// The branch.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number, printed with two digits; some versions have none.
    pub patch: Option<u32>,
    /// Whether the loaded kernel module is the open one.
    pub open: bool,
}

impl DriverVersion {
    /// The row for this version.
    ///
    /// # Errors
    ///
    /// [`BranchError::Unknown`].
    pub fn branch(&self) -> Result<&'static Branch, BranchError> {
        BRANCHES
            .iter()
            .find(|branch| branch.major == self.major)
            .ok_or(BranchError::Unknown { version: *self })
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.major, self.minor)?;
        match self.patch {
            Some(patch) => write!(f, ".{patch:02}"),
            None => Ok(()),
        }
    }
}

impl FromStr for DriverVersion {
    type Err = BranchError;

    /// Reads the text of `/proc/driver/nvidia/version`.
    ///
    /// ```
    /// let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n";
    /// let version: ghost_rm::DriverVersion = text.parse()?;
    /// assert_eq!(version.to_string(), "580.159.04");
    /// assert!(version.open);
    /// assert_eq!(version.branch()?.major, 580);
    /// # Ok::<(), ghost_rm::BranchError>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, BranchError> {
        let line = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix("NVRM version:"));
        line.and_then(parse_line)
            .ok_or_else(|| BranchError::NoVersion {
                text: text.chars().take(120).collect(),
            })
    }
}

fn parse_line(line: &str) -> Option<DriverVersion> {
    let open = line.contains("Open Kernel Module");
    line.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.').map(|part| {
            let digits = part.len() <= 6 && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        });
        let major = numbers.next()??;
        let minor = numbers.next()??;
        let patch = match numbers.next() {
            None => None,
            Some(number) => Some(number?),
        };
        numbers.next().is_none().then_some(DriverVersion {
            major,
            minor,
            patch,
            open,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_both_modules() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 \
                      01:15:15 UTC 2023\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        let version: DriverVersion = closed.parse().unwrap();
        assert_eq!(
            (version.to_string().as_str(), version.open),
            ("535.104.05", false)
        );
        let short = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release";
        let version: DriverVersion = short.parse().unwrap();
        assert_eq!(
            (version.to_string().as_str(), version.open),
            ("580.142", true)
        );
    }

    #[test]
    fn an_unknown_branch_is_named() {
        let version: DriverVersion = "NVRM version: X 600.10.01".parse().unwrap();
        let error = version.branch().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("driver 600.10.01: branch 600")
        );
    }

    #[test]
    fn text_without_a_version_is_refused() {
        for text in [
            "",
            "GCC version: 12.2.0",
            "NVRM version:",
            "NVRM version: 1..2 1.2.3.4 x.y",
        ] {
            assert!(matches!(
                text.parse::<DriverVersion>(),
                Err(BranchError::NoVersion { .. })
            ));
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,200}") {
            let _ = text.parse::<DriverVersion>();
            let _ = format!("NVRM version: {text}").parse::<DriverVersion>();
        }

        #[test]
        fn what_is_printed_reads_back(major in 1u32..1000, minor in 0u32..1000, patch in proptest::option::of(0u32..100)) {
            let version = DriverVersion { major, minor, patch, open: false };
            let read: DriverVersion = format!("NVRM version: NVIDIA  {version}  Release").parse().unwrap();
            prop_assert_eq!(read, version);
        }
    }
}
