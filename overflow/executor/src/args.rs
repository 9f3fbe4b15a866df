//! The command line.

use crate::driver::Device;
use crate::session::Options;
use clap::Parser;
use ghost_wire::hello::Inject;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The descriptors of a session's connections, in the order of [`ghost_wire::hello::Role::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors(pub [i32; 4]);

impl Descriptors {
    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<i32>> = text.split(',').map(|n| n.parse().ok()).collect();
        let four: Option<[i32; 4]> = numbers.and_then(|numbers| numbers.try_into().ok());
        let four = four.filter(|fds| {
            let mut sorted = *fds;
            sorted.sort_unstable();
            sorted[0] > 2 && sorted.windows(2).all(|pair| pair[0] != pair[1])
        });
        let four = four.ok_or("give four different descriptors beyond the standard ones")?;
        Ok(Self(four))
    }
}

/// Computes for a program of another host.
///
/// ghostd starts one for each session. With --listen it serves on its own, for tests and
/// measurements: on the loopback only, without TLS.
#[derive(Debug, Parser)]
#[command(name = "ghost-executor", version)]
pub struct Args {
    /// Serve the session on these open descriptors: commands, replies, bulk data up and down
    #[arg(long, value_name = "FD,FD,FD,FD", value_parser = Descriptors::parse)]
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    pub session: Option<Descriptors>,
    /// Listen here, and serve each session in a process of its own
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Ask clients for this secret
    #[arg(
        long,
        default_value = "",
        requires = "listen",
        hide_default_value = true
    )]
    pub token: String,
    /// What computes; by default the GPUs, if there are any
    #[arg(long)]
    pub device: Option<Device>,
    /// Keep images of kernels here
    #[arg(long, value_name = "DIRECTORY")]
    pub cache: Option<PathBuf>,
    /// Write the session's counters here
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write the session's counters to this open descriptor
    #[arg(long, value_name = "FD", conflicts_with_all = ["stats", "listen"])]
    #[arg(value_parser = clap::value_parser!(i32).range(3..))]
    pub stats_fd: Option<i32>,
    /// Add so much to the way of each reply
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub rtt_us: u64,
    /// Send and take no more bulk data than this; 0: as fast as it goes
    #[arg(long, value_name = "BYTES_PER_SECOND", default_value_t = 0)]
    pub rate: u64,
}

impl Args {
    /// How a session is served that writes its counters to `stats`.
    #[must_use]
    pub fn options(&self, stats: Option<File>) -> Options {
        Options {
            device: self.device,
            cache: self.cache.clone(),
            stats,
            inject: Inject {
                rtt_us: self.rtt_us,
                rate: self.rate,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_read() {
        Args::command().debug_assert();
        let read = |args: &[&str]| Args::try_parse_from([&["ghost-executor"], args].concat());
        let args = read(&["--session", "3,4,5,6", "--rtt-us", "30"]).ok();
        let fds = args.as_ref().and_then(|args| args.session);
        assert_eq!(fds, Some(Descriptors([3, 4, 5, 6])));
        assert_eq!(args.map(|args| args.options(None).inject.rtt_us), Some(30));
        let listens = read(&["--listen", "127.0.0.1:0", "--token", "a", "--device", "cpu"]);
        assert!(listens.is_ok_and(|args| args.device == Some(Device::Cpu)));
        assert!(read(&[]).is_err());
        for fds in ["3,4,5", "3,4,5,x", "2,3,4,5", "3,4,5,3", "3,4,5,6,7"] {
            assert!(read(&["--session", fds]).is_err(), "{fds}");
        }
        assert!(read(&["--session", "3,4,5,6", "--listen", "127.0.0.1:0"]).is_err());
        let args = read(&["--session", "3,4,5,6", "--stats-fd", "7"]);
        assert_eq!(args.map(|args| args.stats_fd).ok(), Some(Some(7)));
        assert!(read(&["--listen", "127.0.0.1:0", "--stats-fd", "7"]).is_err());
    }
}
