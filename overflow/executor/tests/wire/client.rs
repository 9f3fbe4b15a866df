//! A client that speaks the wire by hand, and an executor of its own.

use ghost_wire::frame::{Command, Data, DataKind, Reply, ReplyKind};
use ghost_wire::hello::{
    self, Function, Hello, Inject, Loaded, MAGIC, Role, Tenant, Verdict, Welcome,
};
use ghost_wire::id::Maker;
use ghost_wire::message::{self, *};
use ghost_wire::{CHUNK, Decoder, Encoder, Id, Object, Op, VERSION, api};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// For everything that must happen; machines may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Kernels of the tests.
pub(crate) const KERNELS: &str = include_str!("kernels.ptx");

/// A listening executor; it ends when dropped.
pub(crate) struct Executor {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Executor {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = Process::new(env!("CARGO_BIN_EXE_ghost-executor"))
            .args(["--listen", "127.0.0.1:0", "--device", "cpu"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap();
        let address = address.parse().unwrap();
        Self { child, address }
    }

    /// The live processes of its sessions.
    pub(crate) fn sessions(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(*pid) == Some(self.child.id()))
            .collect()
    }

    /// Waits until no session is left.
    pub(crate) fn wait_empty(&self) {
        until(|| self.sessions().is_empty());
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "it did not come to that");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn id(object: Object, serial: u64) -> u64 {
    Id::new(Maker::Client, object, serial).raw()
}

pub(crate) fn hello() -> Hello {
    Hello {
        magic: MAGIC,
        version: VERSION,
        table: api::fingerprint(),
        role: Role::Commands,
        session: rand(),
        token: String::new(),
        tenant: Tenant::default(),
        inject: Inject::default(),
        environment: vec![],
    }
}

fn rand() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut file = std::fs::File::open("/dev/urandom").unwrap();
    file.read_exact(&mut bytes).unwrap();
    bytes
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.down.shutdown(Shutdown::Both);
    }
}

/// Says hello on a connection of its own.
pub(crate) fn greet(address: SocketAddr, hello: &Hello) -> (TcpStream, Verdict) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = hello::to_bytes(hello);
    let len = (bytes.len() as u32).to_le_bytes();
    stream.write_all(&[&len[..], &bytes].concat()).unwrap();
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut verdict = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut verdict).unwrap();
    (stream, hello::from_bytes(&verdict).unwrap())
}

/// A session.
pub(crate) struct Client {
    pub(crate) commands: TcpStream,
    pub(crate) replies: TcpStream,
    pub(crate) up: TcpStream,
    pub(crate) down: TcpStream,
    pub(crate) welcome: Welcome,
    pub(crate) seq: u64,
    /// What a thread takes from `down`, as it must be: nobody reads there before he writes.
    coming: Receiver<(Data, Vec<u8>)>,
    taken: u64,
    /// Data that came down, by command.
    pub(crate) data: HashMap<u64, Vec<u8>>,
    /// Replies that came while another was waited for.
    pub(crate) others: Vec<(Reply, Vec<u8>)>,
}

impl Client {
    pub(crate) fn open(executor: &Executor) -> Self {
        Self::open_with(executor, hello())
    }

    pub(crate) fn open_with(executor: &Executor, mut hello: Hello) -> Self {
        let mut one = |role| {
            hello.role = role;
            let (stream, verdict) = greet(executor.address, &hello);
            assert_eq!(verdict, Verdict::Welcome);
            stream
        };
        let [commands, mut replies, up, down] = Role::ALL.map(&mut one);
        let (reply, body) = receive(&mut replies).unwrap();
        assert_eq!(reply.kind, ReplyKind::Welcome);
        let (sender, coming) = channel();
        let mut from = down.try_clone().unwrap();
        std::thread::spawn(move || {
            while let Ok(frame) = take(&mut from) {
                let _ = sender.send(frame);
            }
        });
        Self {
            commands,
            replies,
            up,
            down,
            coming,
            welcome: hello::from_bytes(&body).unwrap(),
            seq: 0,
            taken: 0,
            data: HashMap::new(),
            others: vec![],
        }
    }

    /// A session with the first device's primary context current.
    pub(crate) fn ready(executor: &Executor) -> Self {
        let mut client = Self::open(executor);
        let context = id(Object::Context, 1);
        let retain = Primary {
            what: primary::RETAIN,
            device: 0,
            context,
            flags: 0,
        };
        let seq = client.say(true, &retain);
        assert_eq!(client.answer(seq).0, 0);
        client.say(false, &Use { context });
        client
    }

    pub(crate) fn send(&mut self, op: Op, waited: bool, body: &[u8]) -> u64 {
        let len = body.len() as u32;
        let header = Command { op, waited, len }.to_bytes();
        self.commands
            .write_all(&[&header[..], body].concat())
            .unwrap();
        self.seq += 1;
        self.seq
    }

    pub(crate) fn say<'a, M: Message<'a>>(&mut self, waited: bool, message: &M) -> u64 {
        let mut body = vec![];
        message.put(&mut Encoder::new(&mut body));
        self.send(M::OP, waited, &body)
    }

    /// A row whose arguments are words.
    pub(crate) fn row(&mut self, op: Op, waited: bool, words: &[u64]) -> u64 {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send(op, waited, &body)
    }

    pub(crate) fn bulk(&mut self, seq: u64, data: &[u8]) {
        for (n, chunk) in data.chunks(CHUNK).enumerate() {
            let header = Data {
                kind: DataKind::Part,
                len: chunk.len() as u32,
                seq,
                at: (n * CHUNK) as u64,
            };
            self.up.write_all(&header.to_bytes()).unwrap();
            self.up.write_all(chunk).unwrap();
        }
    }

    /// The next reply, with as much data taken as it says.
    pub(crate) fn reply(&mut self) -> (Reply, Vec<u8>) {
        let (reply, body) = receive(&mut self.replies).expect("the session goes on");
        while self.taken < reply.delivered {
            let (data, bytes) = self.coming.recv_timeout(PATIENCE).unwrap();
            let all = self.data.entry(data.seq).or_default();
            if data.kind == DataKind::Part {
                assert_eq!(all.len() as u64, data.at);
            }
            all.extend(bytes);
            self.taken += 1;
        }
        (reply, body)
    }

    /// The answer to this command; what comes before it is kept.
    pub(crate) fn answer(&mut self, seq: u64) -> (u32, Vec<u8>) {
        let answers = |reply: &Reply| reply.kind == ReplyKind::Answer && reply.seq == seq;
        if let Some(at) = self.others.iter().position(|(reply, _)| answers(reply)) {
            let (reply, body) = self.others.remove(at);
            return (reply.code, body);
        }
        loop {
            let (reply, body) = self.reply();
            if answers(&reply) {
                return (reply.code, body);
            }
            assert_ne!(
                reply.kind,
                ReplyKind::Bye,
                "{}",
                String::from_utf8_lossy(&body)
            );
            self.others.push((reply, body));
        }
    }

    /// Waits until the function of this token is due; what comes before is kept.
    pub(crate) fn due(&mut self, token: u64) {
        let is_due = |reply: &Reply| reply.kind == ReplyKind::Callback && reply.seq == token;
        while !self.others.iter().any(|(reply, _)| is_due(reply)) {
            let next = self.reply();
            self.others.push(next);
        }
    }

    /// The text with which the session ends.
    pub(crate) fn bye(&mut self) -> String {
        loop {
            let (reply, body) = self.reply();
            if reply.kind == ReplyKind::Bye {
                return String::from_utf8(body).unwrap();
            }
        }
    }

    pub(crate) fn alloc(&mut self, bytes: u64) -> u64 {
        let seq = self.row(api::op::cuMemAlloc_v2, true, &[bytes]);
        let (code, body) = self.answer(seq);
        assert_eq!(code, 0);
        let bytes = Decoder::new(&body).bytes().unwrap();
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    pub(crate) fn stream(&mut self, serial: u64) -> u64 {
        let stream = id(Object::Stream, serial);
        self.row(api::op::cuStreamCreate, false, &[stream, 1]);
        stream
    }

    pub(crate) fn copy_in(&mut self, to: u64, data: &[u8], stream: u64) {
        self.say(
            false,
            &CopyIn {
                to,
                len: data.len() as u64,
                stream,
                bulk: false,
                data,
            },
        );
    }

    pub(crate) fn copy_out(&mut self, waited: bool, from: u64, len: u64, stream: u64) -> u64 {
        self.say(waited, &CopyOut { from, len, stream })
    }

    pub(crate) fn wait(&mut self, what: u32, handle: u64) -> u64 {
        let query = false;
        self.say(
            true,
            &Wait {
                what,
                handle,
                query,
            },
        )
    }

    pub(crate) fn load<'a>(image: &[u8], hash: &'a [u8], id: u64, bulk: bool) -> Load<'a> {
        Load {
            hash,
            len: image.len() as u64,
            id,
            bulk,
            options: &[],
            log: 4096,
        }
    }

    /// The tests' kernels as a module; gives its id and its functions.
    pub(crate) fn kernels(&mut self) -> (u64, Vec<Function>) {
        let image = KERNELS.as_bytes();
        let hash = *blake3::hash(image).as_bytes();
        let module = id(Object::Module, 1);
        let seq = self.say(true, &Self::load(image, &hash, module, true));
        self.bulk(seq, image);
        let (code, body) = self.answer(seq);
        match hello::from_bytes(&body).unwrap() {
            Loaded::Done { functions, .. } => {
                assert_eq!(code, 0);
                (module, functions)
            }
            other => panic!("{code}: {other:?}"),
        }
    }

    /// Names a function of the module; gives its id.
    pub(crate) fn function(&mut self, (of, functions): &(u64, Vec<Function>), name: &str) -> u64 {
        let index = functions.iter().position(|f| f.name == name).unwrap();
        let id = id(Object::Function, index as u64 + 1);
        self.say(
            false,
            &Name {
                id,
                of: *of,
                index: index as u32,
            },
        );
        id
    }

    pub(crate) fn launch(
        &mut self,
        function: u64,
        threads: u32,
        stream: u64,
        params: &[u8],
    ) -> u64 {
        let config = message::Config {
            grid: [threads.div_ceil(128), 1, 1],
            block: [128, 1, 1],
            shared: 0,
            stream,
            attributes: &[],
        };
        self.say(
            false,
            &Launch {
                function,
                config,
                params,
            },
        )
    }
}

fn receive(from: &mut TcpStream) -> std::io::Result<(Reply, Vec<u8>)> {
    let mut header = [0; Reply::SIZE];
    from.read_exact(&mut header)?;
    let reply = Reply::from_bytes(header).unwrap();
    let mut body = vec![0; reply.len as usize];
    from.read_exact(&mut body)?;
    Ok((reply, body))
}

fn take(from: &mut TcpStream) -> std::io::Result<(Data, Vec<u8>)> {
    let mut header = [0; Data::SIZE];
    from.read_exact(&mut header)?;
    let data = Data::from_bytes(header).unwrap();
    let mut bytes = vec![0; data.len as usize];
    from.read_exact(&mut bytes)?;
    Ok((data, bytes))
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

pub(crate) fn bytes(floats: &[f32]) -> Vec<u8> {
    floats
        .iter()
        .flat_map(|float| float.to_le_bytes())
        .collect()
}
