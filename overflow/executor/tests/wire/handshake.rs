//! What an executor refuses before there is a session, and what it tells of itself.

use crate::client::{Client, Executor, greet, hello};
use ghost_wire::hello::{Hello, Verdict};
use std::io::{Read, Write};
use std::net::TcpStream;

fn refusal(executor: &Executor, hello: &Hello) -> String {
    match greet(executor.address, hello).1 {
        Verdict::Refused(why) => why,
        Verdict::Welcome => String::new(),
    }
}

#[test]
fn unlike_clients_are_told_why() {
    let executor = Executor::start(&["--token", "secret"]);
    let right = Hello {
        token: "secret".to_owned(),
        ..hello()
    };
    let version = Hello {
        version: 99,
        ..right.clone()
    };
    assert!(refusal(&executor, &version).contains("version 99"));
    let table = Hello {
        table: 7,
        ..right.clone()
    };
    assert!(refusal(&executor, &table).contains("same release"));
    let token = Hello {
        token: "guess".to_owned(),
        ..right.clone()
    };
    assert!(refusal(&executor, &token).contains("token"));
    assert_eq!(refusal(&executor, &right), "");
    // The same connection of the same session again.
    assert!(refusal(&executor, &right).contains("already"));
}

#[test]
fn garbage_harms_nobody() {
    let executor = Executor::start(&[]);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[4, 0, 0, 0, 1, 2, 3, 4],
        b"",
    ] {
        let mut stream = TcpStream::connect(executor.address).unwrap();
        // It may have hung up already.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.windows(5).any(|w| w == b"Ghost"));
    }
    let client = Client::open(&executor);
    assert!(client.welcome.emulated);
}

#[test]
fn the_welcome_tells_of_driver_and_devices() {
    let executor = Executor::start(&[]);
    let client = Client::open(&executor);
    assert!(client.welcome.driver >= 12040);
    let device = &client.welcome.devices[0];
    assert!(device.name.contains("CPU"), "{}", device.name);
    assert!(device.memory > 0 && device.bus.contains(':'));
    // Threads of a warp.
    assert_eq!(device.attributes[10], Some(32));
    assert_ne!(device.attributes.last(), Some(&None));
}
