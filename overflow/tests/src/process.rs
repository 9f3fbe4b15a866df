//! A process whose output goes to files, so that nobody has to read while it runs.

use crate::until;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running process; killed when dropped.
pub struct Process {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// What a process said, once it has ended.
#[derive(Debug, Clone)]
pub struct Said {
    /// How it ended.
    pub status: ExitStatus,
    /// Its number.
    pub pid: u32,
    /// On standard output.
    pub out: String,
    /// On standard error.
    pub err: String,
}

impl Said {
    /// Itself, if the status is 0.
    ///
    /// # Errors
    /// If it is another; the message has what was said.
    pub fn right(self) -> Result<Self> {
        match self.status.success() {
            true => Ok(self),
            false => bail!("{}\n{}\n{}", self.status, self.out.trim(), self.err.trim()),
        }
    }
}

impl Process {
    /// Starts `command` with its output in `folder`; it can be read from standard input what
    /// [`Process::close`] ends.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(command: &mut Command, folder: &Path) -> Result<Self> {
        let file = |what| -> Result<(File, PathBuf)> {
            let file = tempfile::Builder::new().prefix(what).tempfile_in(folder)?;
            Ok(file.keep()?)
        };
        let (out, out_path) = file("out-")?;
        let (err, err_path) = file("err-")?;
        command.stdin(Stdio::piped()).stdout(out).stderr(err);
        let child = command
            .spawn()
            .with_context(|| format!("can't start {command:?}"))?;
        Ok(Self {
            child,
            out: out_path,
            err: err_path,
        })
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard output so far.
    #[must_use]
    pub fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has said `text` on standard output.
    ///
    /// # Errors
    /// If it ends before, or has not after a minute.
    pub fn says(&mut self, text: &str) -> Result<()> {
        let mut ended = false;
        let said = until(Duration::from_secs(60), || {
            let found = self.out().contains(text);
            ended = !found && !matches!(self.child.try_wait(), Ok(None));
            found || ended
        });
        if !said || ended {
            let err = std::fs::read_to_string(&self.err).unwrap_or_default();
            bail!("it never said {text:?}: {}{err}", self.out());
        }
        Ok(())
    }

    /// Writes to its standard input and closes that.
    ///
    /// # Errors
    /// If it does not read.
    pub fn close(&mut self, text: &str) -> Result<()> {
        use std::io::Write;
        let mut input = self.child.stdin.take().context("closed already")?;
        Ok(input.write_all(text.as_bytes())?)
    }

    /// Ends it without a word.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it has not ended by then; it is killed.
    pub fn end(mut self, within: Duration) -> Result<Said> {
        let mut status = None;
        let ended = until(within, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let text = |path: &Path| -> Result<String> {
            Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
        };
        let (out, err) = (text(&self.out)?, text(&self.err)?);
        match status {
            Some(status) if ended => Ok(Said {
                status,
                pid: self.child.id(),
                out,
                err,
            }),
            _ => bail!("it has not ended after {within:?}: {out}{err}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
