//! One-way time and speed between two threads over the loopback interface: this transport, beside bare sockets that
//! carry the same bytes. Both poll, and let others run between polls.
//!
//! ```sh
//! cargo run --release -p gapless-btl-tcp --example tcp_pingpong
//! cargo run --release -p gapless-btl-tcp --features encryption --example tcp_pingpong -- --encrypted figures.json
//! ```
//!
//! The second shows encrypted links beside plain ones. Sealing (AES-128-GCM, 16 KiB at a time, one thread) and the link
//! take turns; what both allow is the speed 1 / (1/plain + 1/sealing).
#![forbid(unsafe_code)]

use gapless_btl::{AmTag, Btl, Event, Fragment, PeerId, ReserveError, Short, Sink, Token};
use gapless_btl_tcp::{ListenAddress, Secret, Tcp, TcpConfig};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Round trips of a measurement, and how many of those there are: the quickest counts.
const ROUNDS: [usize; 2] = [2_000, 9];
/// Messages of a stream.
const STREAM: usize = 400;
/// Messages that are under way in a stream: the receiver answers each window.
const WINDOW: usize = 40;

/// One end of either kind.
trait End: Send {
    fn send(&mut self, len: usize);
    fn receive(&mut self, len: usize);
}

/// Counts messages, and takes them all.
#[derive(Default)]
struct Count(usize, Lost);

/// Whether the other end has left: it may, as soon as it has its last message.
type Lost = bool;

impl Sink for Count {
    fn short(&mut self, _: PeerId, _: AmTag, _: Short<'_>) -> bool {
        self.0 += 1;
        true
    }

    fn fragment(&mut self, _: PeerId, _: AmTag, _: &Fragment) -> bool {
        self.0 += 1;
        true
    }

    fn event(&mut self, event: Event) {
        assert!(matches!(event, Event::Lost { .. }), "all messages are taken: {event:?}");
        self.1 = true;
    }

    fn room(&self) -> usize {
        1
    }
}

struct Ours {
    tcp: Tcp,
    peer: PeerId,
    came: Count,
}

impl End for Ours {
    fn send(&mut self, len: usize) {
        let words = [0u64; 8];
        if len <= 64 && self.tcp.send_short(self.peer, AmTag(1), Short::new(&words, len)) {
            return;
        }
        loop {
            match self.tcp.reserve(self.peer, len) {
                Ok(slot) => return self.tcp.send(slot, AmTag(1), Token::NONE),
                Err(ReserveError::Full) => _ = self.tcp.poll(None, &mut self.came),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive(&mut self, _: usize) {
        while self.tcp.poll(None, &mut self.came) == 0 && self.came.0 == 0 {
            assert!(!self.came.1, "the other end is gone");
            std::thread::yield_now();
        }
        self.came.0 -= 1;
    }
}

struct Bare {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Bare {
    /// Until all is done: without waiting in the system, like a transport that polls.
    fn all(len: usize, mut some: impl FnMut(usize) -> std::io::Result<usize>) {
        let mut done = 0;
        while done < len {
            match some(done) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl End for Bare {
    fn send(&mut self, len: usize) {
        Bare::all(len, |at| self.stream.write(&self.bytes[at..len]));
    }

    fn receive(&mut self, len: usize) {
        Bare::all(len, |at| self.stream.read(&mut self.bytes[at..len]));
    }
}

fn ours(encrypt: bool) -> [Ours; 2] {
    let (secret, here) = (Secret::new([7; 32]), ListenAddress::alone(Ipv4Addr::LOCALHOST.into()));
    let end = |rank| {
        let usual = TcpConfig::new("pingpong", rank, secret.clone(), [here]);
        Tcp::new(TcpConfig { encrypt, ..usual }).expect("a port")
    };
    let (mut a, mut b) = (end(0), end(1));
    let to_b = a.connect(&b.address()).expect("it listens");
    let to_a = b.connect(&a.address()).expect("it listens");
    let mut none = Count::default();
    while a.reserve(to_b, 0).is_err() || b.reserve(to_a, 0).is_err() {
        a.poll(None, &mut none);
        b.poll(None, &mut none);
    }
    [(a, to_b), (b, to_a)].map(|(tcp, peer)| Ours { tcp, peer, came: Count::default() })
}

fn bare() -> [Bare; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (other, _) = listener.accept().expect("it called");
    [one, other].map(|stream| {
        stream.set_nodelay(true).expect("a socket");
        stream.set_nonblocking(true).expect("a socket");
        Bare { stream, bytes: vec![0; 1 << 20] }
    })
}

/// Half a round trip of `len` bytes.
fn latency<E: End>([mut one, mut other]: [E; 2], len: usize) -> Duration {
    let [rounds, times] = ROUNDS;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..rounds * times {
                other.receive(len);
                other.send(len);
            }
        });
        let mut best = Duration::MAX;
        for _ in 0..times {
            let start = Instant::now();
            for _ in 0..rounds {
                one.send(len);
                one.receive(len);
            }
            best = best.min(start.elapsed());
        }
        best / u32::try_from(2 * rounds).expect("few rounds")
    })
}

/// Gigabytes a second of messages of `len` bytes.
fn speed<E: End>([mut one, mut other]: [E; 2], len: usize) -> f64 {
    let [_, times] = ROUNDS;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..times * STREAM / WINDOW {
                (0..WINDOW).for_each(|_| other.receive(len));
                other.send(1);
            }
        });
        let mut best = Duration::MAX;
        for _ in 0..times {
            let start = Instant::now();
            for _ in 0..STREAM / WINDOW {
                (0..WINDOW).for_each(|_| one.send(len));
                one.receive(1);
            }
            best = best.min(start.elapsed());
        }
        (STREAM * len) as f64 / best.as_secs_f64() / 1e9
    })
}

/// Seconds to seal so many bytes, in records as they go over an encrypted link.
#[cfg(feature = "encryption")]
fn seal(len: usize) -> f64 {
    use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("sixteen bytes"));
    let mut bytes = vec![0; len];
    let times = (32 << 20) / (len + 512);
    let start = Instant::now();
    for number in 0..times {
        for record in bytes.chunks_mut(16 << 10) {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&number.to_ne_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let aad = Aad::from([0; 5]);
            let tag = key.seal_in_place_separate_tag(nonce, aad, record).expect("room");
            let _ = std::hint::black_box(tag);
        }
    }
    start.elapsed().as_secs_f64() / times as f64
}

#[cfg(feature = "encryption")]
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Encrypted links beside plain ones, in turns, and what sealing alone takes. As JSON, if there is a file for that.
#[cfg(feature = "encryption")]
fn encrypted(rounds: usize, json: Option<&str>) {
    let mut rows = Vec::new();
    for (name, len) in [
        ("one way", 8),
        ("one way", 1024),
        ("one way", 16 << 10),
        ("one way", 128 << 10),
        ("window", 1024),
        ("window", 16 << 10),
        ("window", 128 << 10),
    ] {
        let seconds = |encrypt| match name {
            "window" => len as f64 / speed(ours(encrypt), len) / 1e9,
            _ => latency(ours(encrypt), len).as_secs_f64(),
        };
        let mut all: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for (all, it) in all.iter_mut().zip([seconds(false), seconds(true), seal(len)]) {
                all.push(it);
            }
        }
        let [plain, encrypted, cipher] = all.map(median);
        let mark = (plain + cipher) / encrypted;
        println!(
            "{name:>8} {len:>7} B: plain {:.2} µs, sealing {:.2} µs, encrypted {:.2} µs: {mark:.2} of what both allow",
            plain * 1e6,
            cipher * 1e6,
            encrypted * 1e6
        );
        rows.push(format!(
            r#"  {{"case": "{name}", "bytes": {len}, "rounds": {rounds}, "plain_s": {plain:.4e}, "cipher_s": {cipher:.4e}, "encrypted_s": {encrypted:.4e}, "of_both": {mark:.3}}}"#
        ));
    }
    if let Some(file) = json {
        let text = format!("[\n{}\n]\n", rows.join(",\n"));
        std::fs::write(file, text).expect("a file that can be written");
    }
}

fn main() {
    #[cfg(feature = "encryption")]
    {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        if let Some("--encrypted") = arguments.first().map(String::as_str) {
            return encrypted(9, arguments.get(1).map(String::as_str));
        }
    }
    for len in [8, 1024, 16 << 10] {
        let (bare, ours) = (latency(bare(), len), latency(ours(false), len));
        let ratio = ours.as_secs_f64() / bare.as_secs_f64();
        println!(
            "{len:>7} B one way: sockets {bare:>8.2?}, btl-tcp {ours:>8.2?}, {ratio:.2} of it"
        );
    }
    for len in [8, 1024, 16 << 10, 128 << 10] {
        let (bare, ours) = (speed(bare(), len), speed(ours(false), len));
        println!(
            "{len:>7} B in windows of {WINDOW}: sockets {bare:.3} GB/s, btl-tcp {ours:.3} GB/s, {:.2}",
            ours / bare
        );
    }
}
