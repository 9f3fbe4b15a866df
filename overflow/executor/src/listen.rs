//! Serving without ghostd, for tests and measurements: the handshake, and a process for each
//! session.

use crate::args::Args;
use ghost_wire::hello::{self, Hello, MAX, Role, Verdict};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For a hello, and for all four connections of a session.
const JOIN: Duration = Duration::from_secs(10);
/// Connections that have not said hello yet.
const MOST: usize = 64;

/// Why there is nothing to connect to.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Without TLS nothing leaves this host.
    #[error("{0} is not on the loopback: serve other hosts with ghostd")]
    Loopback(SocketAddr),
    /// The system refuses.
    #[error("listening on {0} failed: {1}")]
    Listen(SocketAddr, io::Error),
}

struct Forming {
    since: Instant,
    connections: [Option<TcpStream>; 4],
}

struct Listener {
    args: Args,
    /// Guards the sessions that have not all their connections; held while one is started, so that
    /// no other process gets its descriptors.
    forming: Mutex<HashMap<[u8; 16], Forming>>,
    greeting: AtomicUsize,
}

/// Serves for ever.
///
/// # Errors
/// [`ListenError`].
pub fn serve(address: SocketAddr, args: Args) -> Result<(), ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::Loopback(address));
    }
    let failed = |error| ListenError::Listen(address, error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    println!("listening on {bound}");
    io::stdout().flush().map_err(failed)?;
    let all = Arc::new(Listener {
        args,
        forming: Mutex::default(),
        greeting: AtomicUsize::new(0),
    });
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            // Out of descriptors, likely: some will come back.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if all.greeting.fetch_add(1, Ordering::AcqRel) >= MOST {
            all.greeting.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let all = Arc::clone(&all);
        std::thread::spawn(move || {
            if let Err(error) = all.greet(connection) {
                eprintln!("ghost-executor: a connection failed: {error}");
            }
            all.greeting.fetch_sub(1, Ordering::AcqRel);
        });
    }
    Ok(())
}

fn frame<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let bytes = hello::to_bytes(message);
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(bytes);
    frame
}

/// Reads a hello; what is none is a sentence for the client.
fn read(from: &mut TcpStream) -> io::Result<Result<Hello, String>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    let broken = "this is a port for overflow; the client is no Ghost".to_owned();
    if len > MAX {
        return Ok(Err(broken));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(hello::from_bytes(&bytes).map_err(|_| broken))
}

impl Listener {
    fn refusal(&self, hello: &Hello) -> Option<String> {
        hello::unlike(hello).or_else(|| {
            let wrong = hello.token != self.args.token;
            wrong.then(|| "the token is not this executor's".to_owned())
        })
    }

    fn greet(&self, mut connection: TcpStream) -> io::Result<()> {
        connection.set_read_timeout(Some(JOIN))?;
        connection.set_write_timeout(Some(JOIN))?;
        let hello = read(&mut connection)?;
        let refusal = match &hello {
            Ok(hello) => self.refusal(hello),
            Err(why) => Some(why.clone()),
        };
        if let (Ok(hello), None) = (hello, &refusal) {
            return self.join(&hello, connection);
        }
        let verdict = Verdict::Refused(refusal.unwrap_or_default());
        connection.write_all(&frame(&verdict))
    }

    fn join(&self, hello: &Hello, mut connection: TcpStream) -> io::Result<()> {
        let at = Role::ALL.iter().position(|role| *role == hello.role);
        let mut forming = self.forming.lock().unwrap_or_else(PoisonError::into_inner);
        forming.retain(|_, forming| forming.since.elapsed() < JOIN);
        let session = forming.entry(hello.session).or_insert_with(|| Forming {
            since: Instant::now(),
            connections: Default::default(),
        });
        let place = at.and_then(|at| session.connections.get_mut(at));
        let Some(place) = place.filter(|place| place.is_none()) else {
            let why = "this connection of the session is there already, or is none of a session's";
            let why = why.to_owned();
            return connection.write_all(&frame(&Verdict::Refused(why)));
        };
        connection.write_all(&frame(&Verdict::Welcome))?;
        connection.set_read_timeout(None)?;
        connection.set_write_timeout(None)?;
        *place = Some(connection);
        if session.connections.iter().any(Option::is_none) {
            return Ok(());
        }
        match forming.remove(&hello.session) {
            Some(whole) => self.start(hello, &whole),
            None => Ok(()),
        }
    }

    /// Starts the session's process, which gets the connections.
    fn start(&self, hello: &Hello, forming: &Forming) -> io::Result<()> {
        let mut fds = Vec::new();
        for connection in forming.connections.iter().flatten() {
            fcntl(connection, FcntlArg::F_SETFD(FdFlag::empty()))?;
            fds.push(connection.as_raw_fd().to_string());
        }
        let mut command = Command::new("/proc/self/exe");
        command.args(["--session", &fds.join(",")]);
        if let Some(device) = self.args.device {
            let name = clap::ValueEnum::to_possible_value(&device);
            command
                .arg("--device")
                .args(name.map(|v| v.get_name().to_owned()));
        }
        for (flag, path) in [("--cache", &self.args.cache), ("--stats", &self.args.stats)] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        let (rtt_us, rate) = (hello.inject.rtt_us, hello.inject.rate);
        for (flag, own, asked) in [
            ("--rtt-us", self.args.rtt_us, rtt_us),
            ("--rate", self.args.rate, rate),
        ] {
            let value = if asked > 0 { asked } else { own };
            command.args([flag, &value.to_string()]);
        }
        command.envs(hello.variables()).stdin(Stdio::null());
        let mut child = command.spawn()?;
        std::thread::spawn(move || child.wait());
        Ok(())
    }
}
