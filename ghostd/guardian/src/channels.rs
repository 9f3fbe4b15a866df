//! Disabling and enabling channels: what the guardian needs of a driver, and
//! the real one.

use std::path::PathBuf;

use ghost_rm::{BranchError, Channel, DriverVersion, Gpu, Session, SessionError, Status};

/// Why channels were not switched.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub struct SwitchError {
    /// Channels from the front of the list that were switched for certain. Of
    /// those after it, each may or may not be.
    pub done: usize,
    /// What it means.
    pub kind: SwitchErrorKind,
    /// The driver's words.
    pub detail: String,
}

/// What a [`SwitchError`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchErrorKind {
    /// A channel in the list is not there.
    Gone,
    /// The driver refused.
    Refused,
    /// The driver cannot be spoken to: nothing after `done` was tried.
    Unreached,
}

/// What a channel is at the moment, whoever made it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// It runs: no disable is outstanding.
    Enabled,
    /// At least one disable is outstanding.
    Disabled,
    /// The driver cannot tell, or says that there is no such channel.
    Unknown,
}

/// The calls. Disables nest: a channel runs again after as many enables.
pub trait Channels {
    /// Disables each of `channels` once more.
    ///
    /// # Errors
    ///
    /// [`SwitchError`].
    fn disable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError>;
    /// Takes back one disable of each of `channels`.
    ///
    /// # Errors
    ///
    /// [`SwitchError`].
    fn enable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError>;
    /// Looks at one channel.
    fn state(&mut self, gpu: Gpu, channel: Channel) -> ChannelState;
    /// A call on `gpu` may come: opens what it needs. What cannot be opened is told by the call.
    fn ready(&mut self, _gpu: Gpu) {}
    /// Nobody needs the driver for now: hold nothing open.
    fn release(&mut self) {}
}

/// An NVIDIA driver, through a client of the guardian's own.
#[derive(Debug)]
pub struct RmChannels {
    dev_root: PathBuf,
    version: PathBuf,
    session: Option<Session>,
}

/// Why there is no session with the driver.
#[derive(Debug, thiserror::Error)]
enum Unreached {
    #[error("{path}: cannot be read; is the nvidia driver loaded?")]
    Version {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Branch(#[from] BranchError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl RmChannels {
    /// Speaks to the driver whose nodes are in `dev_root` (`/dev`) and whose
    /// version is in the file `version` (`/proc/driver/nvidia/version`). Opens
    /// nothing yet: the driver may be loaded later.
    #[must_use]
    pub fn new(dev_root: PathBuf, version: PathBuf) -> Self {
        Self {
            dev_root,
            version,
            session: None,
        }
    }

    fn session(&mut self) -> Result<&mut Session, Unreached> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.open()?,
        };
        Ok(self.session.insert(session))
    }

    fn open(&self) -> Result<Session, Unreached> {
        let text = std::fs::read_to_string(&self.version).map_err(|source| {
            let path = self.version.clone();
            Unreached::Version { path, source }
        })?;
        let version: DriverVersion = text.parse()?;
        Ok(Session::open(&self.dev_root, version.branch()?.alloc)?)
    }

    fn switch(&mut self, gpu: Gpu, channels: &[Channel], off: bool) -> Result<(), SwitchError> {
        let unreached = |error: Unreached| SwitchError {
            done: 0,
            kind: SwitchErrorKind::Unreached,
            detail: chain(&error),
        };
        let session = self.session().map_err(unreached)?;
        let subdevice = session.subdevice(gpu);
        let subdevice = subdevice.map_err(|error| unreached(error.into()))?;
        let Err(error) = session.disable_channels(subdevice, channels, off) else {
            return Ok(());
        };
        let gone = error.source.status().filter(|status| status.is_gone());
        // A channel that is not there is this one status; another of the kind
        // is about the guardian's own client, which a reset of the GPU may have
        // ended: the next call makes a new one.
        if gone.is_some_and(|status| status != Status::INVALID_CHANNEL) {
            self.session = None;
        }
        Err(SwitchError {
            done: error.done,
            kind: match gone {
                Some(_) => SwitchErrorKind::Gone,
                None => SwitchErrorKind::Refused,
            },
            detail: chain(&error),
        })
    }
}

/// An error and its sources on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

impl Channels for RmChannels {
    fn disable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError> {
        self.switch(gpu, channels, true)
    }

    fn enable(&mut self, gpu: Gpu, channels: &[Channel]) -> Result<(), SwitchError> {
        self.switch(gpu, channels, false)
    }

    fn state(&mut self, gpu: Gpu, channel: Channel) -> ChannelState {
        let asked = self
            .session()
            .and_then(|session| Ok(session.channel_enabled(gpu, channel)?));
        match asked {
            Ok(true) => ChannelState::Enabled,
            Ok(false) => ChannelState::Disabled,
            Err(_) => {
                // Perhaps the session's own client is gone: what is asked next
                // must not be answered for that reason.
                self.session = None;
                ChannelState::Unknown
            }
        }
    }

    fn ready(&mut self, gpu: Gpu) {
        // The session stays open; whether it has the GPU's objects is seen when they are used.
        let _ = self
            .session()
            .and_then(|session| Ok(session.subdevice(gpu)?));
    }

    fn release(&mut self) {
        self.session = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ghost_rm::{Client, Object};

    fn version_file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn refusal(version: PathBuf) -> SwitchError {
        let gpu = Gpu {
            instance: 0,
            minor: 0,
        };
        let channel = Channel {
            client: Client(1),
            object: Object(2),
        };
        let mut channels = RmChannels::new("/nonexistent".into(), version);
        assert_eq!(channels.state(gpu, channel), ChannelState::Unknown);
        channels.disable(gpu, &[channel]).unwrap_err()
    }

    #[test]
    fn without_a_driver_nothing_is_tried_and_the_reason_is_named() {
        let good = version_file("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04");
        let strange = version_file("NVRM version: NVIDIA UNIX x86_64 Kernel Module  999.01");
        let cases = [
            (good.path(), "/nonexistent/nvidiactl"),
            (strange.path(), "branch 999"),
            (
                std::path::Path::new("/nonexistent/version"),
                "/nonexistent/version",
            ),
        ];
        for (version, word) in cases {
            let error = refusal(version.into());
            assert_eq!((error.done, error.kind), (0, SwitchErrorKind::Unreached));
            assert!(error.detail.contains(word), "{error}");
        }
    }
}
