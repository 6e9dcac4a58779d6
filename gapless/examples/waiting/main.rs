//! What waiting costs between two processes:
//!
//! ```text
//! cargo build --release -p gapless-cli && cargo build --release -p gapless --example waiting
//! target/release/gapless run -n 2 target/release/examples/waiting threads
//! target/release/gapless run -n 2 target/release/examples/waiting loaded
//! ```
//!
//! - `threads [COUNT]`: rank 0 has COUNT threads (4) that send 1000 messages of one byte each in synchronous mode, to
//!   as many threads of rank 1. A round is all of them.
//! - `loaded [COUNT]`: the ranks exchange 2 KiB, each sending and receiving, while COUNT processes (one for each core)
//!   are busy. A round is 2000 exchanges; the time is that of one.
//! - `alone`: the same exchange while nothing else runs.
//! - `sockets [COUNT]`: as `loaded`, over a TCP connection with calls that block.
//!
//! Times are wall-clock times that rank 0 takes: the median, the least and the most of 15 rounds.

use gapless::{Communicator, Error, World};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

const ROUNDS: usize = 15;
/// Messages of a thread in a round.
const SYNCHRONOUS: usize = 1000;
/// Exchanges in a round.
const EXCHANGES: u32 = 2000;
/// Bytes that each rank sends in an exchange.
const EXCHANGED: usize = 2048;
/// The tag of what starts a round.
const START: i32 = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.get(1).and_then(|count| count.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let measured = match arguments.first().map(String::as_str) {
        Some("threads") => measure(&Threads(count.unwrap_or(4))),
        Some("loaded") => measure(&Exchange { busy: count.unwrap_or(cores) }),
        Some("sockets") => {
            measure(&Sockets { busy: count.unwrap_or(cores), stream: OnceLock::new() })
        }
        Some("alone") => measure(&Exchange { busy: 0 }),
        Some("busy") => return busy(),
        _ => {
            eprintln!("waiting: threads [COUNT], loaded [COUNT], sockets [COUNT] or alone");
            return ExitCode::FAILURE;
        }
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("waiting: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Something that takes rounds.
trait Experiment {
    /// What it needs as long as it lasts; made by rank 0.
    fn set_up(&self) -> std::io::Result<Vec<Busy>> {
        Ok(Vec::new())
    }

    fn round(&self, comm: &Communicator) -> Result<(), Error>;

    /// How many of what is timed a round has.
    fn parts(&self) -> u32;
}

fn measure(experiment: &impl Experiment) -> Result<(), Error> {
    let world = World::init()?;
    let comm = world.comm();
    if comm.size() != 2 {
        let reason = format!("{} ranks, and not two", comm.size());
        return Err(Error::System { operation: "measuring", reason });
    }
    let _set_up = if comm.rank() == 0 {
        experiment.set_up().map_err(|error| Error::System {
            operation: "starting a busy process",
            reason: error.to_string(),
        })?
    } else {
        Vec::new()
    };
    let mut times = Vec::with_capacity(ROUNDS);
    // The first round is not counted.
    for _ in 0..=ROUNDS {
        meet(comm)?;
        let start = Instant::now();
        experiment.round(comm)?;
        times.push(start.elapsed() / experiment.parts());
    }
    times.remove(0);
    times.sort();
    if comm.rank() == 0 {
        let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
        println!("median {median:?}, least {least:?}, most {most:?}");
    }
    world.finalize()
}

/// Waits until both ranks are here.
fn meet(comm: &Communicator) -> Result<(), Error> {
    let peer = 1 - comm.rank();
    let mut theirs = [0u8];
    comm.sendrecv(&[0u8], (peer, START), &mut theirs, (peer, START)).map(|_| ())
}

/// Threads that send one byte in synchronous mode.
struct Threads(usize);

impl Experiment for Threads {
    fn round(&self, comm: &Communicator) -> Result<(), Error> {
        std::thread::scope(|threads| {
            let each: Vec<_> =
                (0..self.0).map(|number| threads.spawn(move || one_thread(comm, number))).collect();
            each.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
        })
    }

    fn parts(&self) -> u32 {
        1
    }
}

fn one_thread(comm: &Communicator, number: usize) -> Result<(), Error> {
    let tag = i32::try_from(number).expect("a handful of threads");
    for _ in 0..SYNCHRONOUS {
        if comm.rank() == 0 {
            comm.ssend(&[7u8], 1, tag)?;
        } else {
            comm.recv(&mut [0u8], 0, tag)?;
        }
    }
    Ok(())
}

/// Both ranks send and receive, while so many processes are busy.
struct Exchange {
    busy: usize,
}

impl Experiment for Exchange {
    fn set_up(&self) -> std::io::Result<Vec<Busy>> {
        (0..self.busy).map(|_| Busy::start()).collect()
    }

    fn round(&self, comm: &Communicator) -> Result<(), Error> {
        let peer = 1 - comm.rank();
        let (ours, mut theirs) = (vec![1u8; EXCHANGED], vec![0u8; EXCHANGED]);
        for _ in 0..EXCHANGES {
            comm.sendrecv(&ours, (peer, 0), &mut theirs, (peer, 0))?;
        }
        Ok(())
    }

    fn parts(&self) -> u32 {
        EXCHANGES
    }
}

/// The same over a socket.
struct Sockets {
    busy: usize,
    stream: OnceLock<TcpStream>,
}

impl Sockets {
    fn connect(comm: &Communicator) -> Result<TcpStream, Error> {
        let refused = |error: std::io::Error| Error::System {
            operation: "connecting a socket",
            reason: error.to_string(),
        };
        let mut port = [0u16];
        let stream = if comm.rank() == 0 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
            port[0] = listener.local_addr().map_err(refused)?.port();
            comm.send(&port, 1, START)?;
            listener.accept().map_err(refused)?.0
        } else {
            comm.recv(&mut port, 0, START)?;
            TcpStream::connect((Ipv4Addr::LOCALHOST, port[0])).map_err(refused)?
        };
        stream.set_nodelay(true).map_err(refused)?;
        Ok(stream)
    }

    fn exchange(mut stream: &TcpStream) -> std::io::Result<()> {
        let (ours, mut theirs) = (vec![1u8; EXCHANGED], vec![0u8; EXCHANGED]);
        for _ in 0..EXCHANGES {
            stream.write_all(&ours)?;
            stream.read_exact(&mut theirs)?;
        }
        Ok(())
    }
}

impl Experiment for Sockets {
    fn set_up(&self) -> std::io::Result<Vec<Busy>> {
        (0..self.busy).map(|_| Busy::start()).collect()
    }

    fn round(&self, comm: &Communicator) -> Result<(), Error> {
        let stream = match self.stream.get() {
            Some(stream) => stream,
            None => {
                let stream = Sockets::connect(comm)?;
                self.stream.get_or_init(|| stream)
            }
        };
        Sockets::exchange(stream).map_err(|error| Error::System {
            operation: "exchanging over a socket",
            reason: error.to_string(),
        })
    }

    fn parts(&self) -> u32 {
        EXCHANGES
    }
}

/// A process that only computes, until this is dropped or its parent has ended.
struct Busy(Child);

impl Busy {
    fn start() -> std::io::Result<Busy> {
        let program = std::env::current_exe()?;
        Command::new(program).arg("busy").stdin(Stdio::piped()).spawn().map(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Its standard input ends, and it with that.
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("waiting: {error}");
        }
    }
}

/// Computes until standard input ends.
fn busy() -> ExitCode {
    let until = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut number = 1u64;
    while !until.is_finished() {
        for _ in 0..10_000 {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005));
        }
    }
    ExitCode::SUCCESS
}
