//! One-way latency and streaming rate of the transport alone, between two processes pinned to two
//! processors:
//!
//! ```text
//! cargo run --release -p gapless-btl-sm --example pingpong [-- CPU CPU]
//! cargo run --release -p gapless-btl-sm --example pingpong -- --alone
//! ```
//!
//! A message goes there and back; half the time is one way. Streams fill slots from a source and
//! empty them into a target, both larger than the last-level cache would like, so that each byte is
//! copied twice, as in a real pipelined transfer; the fragments themselves stay in cache.

use gapless_btl::{Address, AmTag, Btl, Event, PeerId, Queue, ReserveError, Token};
use gapless_btl_sm::{Sm, SmConfig};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Round trips in a batch: short, so that some batches pass undisturbed even on a busy machine.
const ROUNDS: u32 = 200;
const BATCHES: usize = 2000;
const WARM_UP: usize = 100;
const REPEATS: usize = 15;
const STREAM_BYTES: usize = 64 << 20;
const STREAMS: u32 = 4;
const LENGTHS: [usize; 8] = [1, 8, 48, 112, 200, 1024, 4096, 8192];
const FRAGMENTS: [usize; 4] = [4096, 8192, 16_384, 65_536];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("--echo") => {
            pin(&arguments.next().ok_or("which processor?")?);
            let mut peer = Peer::meet(&arguments.next().ok_or("whom?")?)?;
            peer.echo()
        }
        Some("--alone") => alone(),
        first => {
            let (near, far) = (first.unwrap_or("0"), arguments.next().unwrap_or("1".to_owned()));
            measure(near, &far)
        }
    }
}

/// Moves this process to one processor; goes on where it is if there is no such one.
fn pin(processor: &str) {
    let mut set = rustix::thread::CpuSet::new();
    if let Ok(number) = processor.parse() {
        set.set(number);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned to processor {processor}: {error}");
    }
}

struct Peer {
    sm: Sm,
    peer: PeerId,
    events: Queue,
}

impl Peer {
    /// Opens the transport, tells its address on standard output and connects.
    fn meet(other: &str) -> Result<Peer, Box<dyn Error>> {
        let mut sm = Sm::new(SmConfig::new("pingpong", "echo"))?;
        println!("{}", hex(&sm.address()));
        let peer = sm.connect(&unhex(other)?)?;
        Ok(Peer { sm, peer, events: Queue::with_capacity(64) })
    }

    fn send(&mut self, tag: u8, len: usize, source: &[u8]) -> Result<(), Box<dyn Error>> {
        loop {
            match self.sm.reserve(self.peer, len) {
                Ok(mut slot) => {
                    slot.write(0, source)?;
                    self.sm.send(slot, AmTag(tag), Token::NONE);
                    return Ok(());
                }
                // Only fragments that come back are awaited: nobody sends to a sender.
                Err(ReserveError::Full) => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
            if self.sm.poll(None, &mut self.events) > 0 {
                return Err("something came in between".into());
            }
        }
    }

    /// The next message's tag and length; its bytes go to `target`.
    fn receive(&mut self, target: &mut [u8]) -> Result<(u8, usize), Box<dyn Error>> {
        loop {
            if self.sm.poll(None, &mut self.events) > 0 {
                let first = self.events.drain().next();
                let Some(Event::Arrived { tag, fragment, .. }) = first else {
                    return Err(format!("{first:?}").into());
                };
                let len = fragment.len();
                fragment.read(0, &mut target[..len])?;
                return Ok((tag.0, len));
            }
            std::hint::spin_loop();
        }
    }

    /// Answers until the other end goes away: tag 0 with the same, tag 2 (the end of a stream)
    /// with an empty message, tag 1 (a stream's fragment) not at all.
    fn echo(&mut self) -> Result<(), Box<dyn Error>> {
        // Not zeros: pages that were never touched would be faulted in while we measure.
        let mut target = vec![1u8; STREAM_BYTES];
        let mut at = 0;
        let mut batch = Queue::with_capacity(8);
        loop {
            self.sm.poll(None, &mut batch);
            for event in batch.drain() {
                match event {
                    Event::Arrived { tag, fragment, .. } => {
                        let len = fragment.len();
                        if tag.0 == 1 {
                            if at + len > target.len() {
                                at = 0;
                            }
                            fragment.read(0, &mut target[at..at + len])?;
                            at += len;
                            continue;
                        }
                        fragment.read(0, &mut target[..len])?;
                        drop(fragment);
                        let reply = if tag.0 == 0 { len } else { 0 };
                        self.send(0, reply, &target[..reply])?;
                    }
                    Event::Lost { .. } => return Ok(()),
                    other => return Err(format!("{other:?}").into()),
                }
            }
            std::hint::spin_loop();
        }
    }
}

/// Both ends in one thread: what the instructions cost, without the way between processors.
fn alone() -> Result<(), Box<dyn Error>> {
    let mut near = Sm::new(SmConfig::new("alone", "near"))?;
    let mut far = Sm::new(SmConfig::new("alone", "far"))?;
    let to = near.connect(&far.address())?;
    far.connect(&near.address())?;
    let mut events = Queue::with_capacity(8);
    while let Err(ReserveError::Full) = near.reserve(to, 0) {
        near.poll(None, &mut events);
        far.poll(None, &mut events);
    }
    let mut target = vec![0u8; 65_536];
    let source = vec![7u8; 65_536];
    println!("both ends in one thread: median of {BATCHES} batches of {ROUNDS} (fastest)");
    for len in LENGTHS {
        let mut times = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                let mut slot = near.reserve(to, len)?;
                slot.write(0, &source[..len])?;
                near.send(slot, AmTag(0), Token::NONE);
                far.poll(None, &mut events);
                for event in events.drain() {
                    if let Event::Arrived { fragment, .. } = event {
                        fragment.read(0, &mut target[..len])?;
                    }
                }
            }
            times.push(start.elapsed().as_secs_f64() / f64::from(ROUNDS));
        }
        times.sort_by(f64::total_cmp);
        println!("{len:>7} B {:>8.1} ns ({:.1})", times[BATCHES / 2] * 1e9, times[0] * 1e9);
    }
    let mut best = f64::INFINITY;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            far.poll(None, &mut events);
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(ROUNDS));
    }
    println!("a poll in vain: {:.1} ns at best", best * 1e9);
    Ok(())
}

fn measure(near: &str, far: &str) -> Result<(), Box<dyn Error>> {
    pin(near);
    let sm = Sm::new(SmConfig::new("pingpong", "measure"))?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--echo", far, &hex(&sm.address())])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let mut peer = Peer { sm, peer: PeerId(0), events: Queue::with_capacity(8) };
    peer.peer = peer.sm.connect(&unhex(line.trim())?)?;

    let source = vec![7u8; STREAM_BYTES];
    let mut target = vec![1u8; STREAM_BYTES];
    println!("a bare cache line, one way: {:.1} ns at best", bare_line(far));
    println!(
        "one way, processors {near} and {far}: median of {BATCHES} batches of {ROUNDS} (fastest)"
    );
    for len in LENGTHS {
        let mut times = Vec::with_capacity(BATCHES);
        for batch in 0..WARM_UP + BATCHES {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                peer.send(0, len, &source[..len])?;
                peer.receive(&mut target)?;
            }
            if batch >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() / f64::from(ROUNDS) / 2.0);
            }
        }
        times.sort_by(f64::total_cmp);
        println!("{len:>7} B {:>8.1} ns ({:.1})", times[BATCHES / 2] * 1e9, times[0] * 1e9);
    }
    println!("stream, copied in and copied out: median of {REPEATS} runs (fastest)");
    for total in [1 << 20, 8 << 20, STREAM_BYTES] {
        for fragment in FRAGMENTS {
            let mut rates = [0.0; REPEATS];
            for rate in &mut rates {
                let start = Instant::now();
                for _ in 0..STREAMS {
                    for piece in source[..total].chunks(fragment) {
                        peer.send(1, piece.len(), piece)?;
                    }
                    peer.send(2, 0, &[])?;
                    peer.receive(&mut target)?;
                }
                *rate = total as f64 * f64::from(STREAMS) / start.elapsed().as_secs_f64() / 1e9;
            }
            rates.sort_by(f64::total_cmp);
            println!(
                "{:>4} MiB in {fragment:>6} B fragments {:>6.1} GB/s ({:.1})",
                total >> 20,
                rates[REPEATS / 2],
                rates[REPEATS - 1]
            );
        }
    }
    std::io::stdout().flush()?;
    drop(peer);
    child.wait()?;
    Ok(())
}

/// The least that any message costs here: a word that two pinned threads pass to and fro, in
/// nanoseconds one way.
fn bare_line(far: &str) -> f64 {
    #[repr(align(128))]
    struct RingLine(AtomicU32);
    let there = RingLine(AtomicU32::new(0));
    let back = RingLine(AtomicU32::new(0));
    let rounds = ROUNDS * 500;
    let mut best = f64::INFINITY;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(far);
            for round in 1..=rounds {
                while there.0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                back.0.store(round, Ordering::Release);
            }
        });
        let mut start = Instant::now();
        for round in 1..=rounds {
            there.0.store(round, Ordering::Release);
            while back.0.load(Ordering::Acquire) != round {
                std::hint::spin_loop();
            }
            if round.is_multiple_of(ROUNDS) {
                best = best.min(start.elapsed().as_secs_f64() / f64::from(ROUNDS) / 2.0);
                start = Instant::now();
            }
        }
    });
    best * 1e9
}

fn hex(address: &Address) -> String {
    address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Address, Box<dyn Error>> {
    let bytes: Result<Vec<u8>, _> =
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16)).collect();
    Address::new(&bytes?).ok_or_else(|| "too long for an address".into())
}
