//! `hosts`: messages between two hosts by TCP, beside bare sockets that carry as many bytes.
//!
//! The hosts are network namespaces joined by a pair of virtual interfaces; making them needs root and `ip`
//! (iproute2). A process runs in each. Gapless and the sockets have their turns one after the other, in the same two
//! processes. There are two kinds of bare sockets: those that wait in the system, as a plain program does, and those
//! that poll, with a yield between polls, as a message-passing library does.
//!
//! MPI libraries do the same work (`bench/peers/hosts.c`) between the same hosts, before Gapless and after it:
//!
//! ```sh
//! gcc -O2 -I FOLDER/include bench/peers/hosts.c -L FOLDER/lib -lmpi -Wl,-rpath,FOLDER/lib -o hosts-mpich
//! figures hosts --mpi "mpich=sh bench/peers/hosts.sh mpich FOLDER hosts-mpich"
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use gapless::{Communicator, World};
use gapless_report::{Absent, Row, Samples};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::namespaces::Namespaces;
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Hosts;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A library, and the command that measures it: two hosts and seconds are added to it; repeatable
    #[arg(long, value_name = "NAME=COMMAND")]
    mpi: Vec<String>,
}

/// Where rank 1 is called.
const THERE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// Turns of each way.
const ROUNDS: usize = 25;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostWork {
    /// Half a round trip of so many bytes.
    Trip(usize),
    /// So many messages of so many bytes, and an answer of one byte.
    Window(usize, usize),
}

const WORKS: [HostWork; 9] = [
    HostWork::Trip(8),
    HostWork::Trip(1 << 10),
    HostWork::Trip(16 << 10),
    HostWork::Trip(256 << 10),
    HostWork::Window(64, 8),
    HostWork::Window(64, 1 << 10),
    HostWork::Window(64, 16 << 10),
    HostWork::Window(16, 1 << 20),
    HostWork::Window(4, 8 << 20),
];

impl HostWork {
    pub(super) fn name(self) -> &'static str {
        match self {
            HostWork::Trip(_) => "one way",
            HostWork::Window(..) => "window",
        }
    }

    /// Messages, and the length of each.
    pub(super) fn messages(self) -> (usize, usize) {
        match self {
            HostWork::Trip(len) => (1, len),
            HostWork::Window(count, len) => (count, len),
        }
    }
}

/// A way between the two processes.
pub(super) trait HostLink {
    fn send(&mut self, count: usize, bytes: &[u8]) -> Result<(), Failure>;
    /// So many messages, each into its part of the buffer.
    fn receive(&mut self, count: usize, bytes: &mut [u8]) -> Result<(), Failure>;
}

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Job(error.to_string())
}

pub(super) struct Ours<'w> {
    pub(super) comm: &'w Communicator,
    pub(super) peer: u32,
}

impl HostLink for Ours<'_> {
    fn send(&mut self, count: usize, bytes: &[u8]) -> Result<(), Failure> {
        if count == 1 {
            return self.comm.send(bytes, self.peer, 1).map(drop).map_err(failed);
        }
        let sent = self.comm.scope(|s| {
            for message in bytes.chunks_exact(bytes.len() / count) {
                let _ = s.isend(message, self.peer, 1)?;
            }
            Ok(())
        });
        sent.map_err(failed)
    }

    fn receive(&mut self, count: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        if count == 1 {
            return self.comm.recv(bytes, self.peer, 1).map(drop).map_err(failed);
        }
        let len = bytes.len() / count;
        let received = self.comm.scope(|s| {
            for message in bytes.chunks_exact_mut(len) {
                let _ = s.irecv(message, self.peer, 1)?;
            }
            Ok(())
        });
        received.map_err(failed)
    }
}

/// A connection, which polls if it does not wait in the system.
struct Bare(TcpStream);

impl Bare {
    fn all(
        len: usize,
        mut some: impl FnMut(usize) -> std::io::Result<usize>,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < len {
            match some(done) {
                Ok(0) => return Err(failed("the other end is gone")),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

impl HostLink for Bare {
    fn send(&mut self, count: usize, bytes: &[u8]) -> Result<(), Failure> {
        for message in bytes.chunks_exact(bytes.len() / count) {
            Bare::all(message.len(), |at| self.0.write(&message[at..]))?;
        }
        Ok(())
    }

    fn receive(&mut self, count: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        let len = bytes.len() / count;
        for message in bytes.chunks_exact_mut(len) {
            Bare::all(len, |at| self.0.read(&mut message[at..]))?;
        }
        Ok(())
    }
}

/// A turn: so many times the work. At rank 0 the seconds of one of them.
pub(super) fn turn(
    way: &mut dyn HostLink,
    is_first: bool,
    work: HostWork,
    times: u32,
    bytes: &mut [u8],
) -> Result<f64, Failure> {
    let (count, _) = work.messages();
    let begin = Instant::now();
    for _ in 0..times {
        match (work, is_first) {
            (HostWork::Trip(_), true) => {
                way.send(1, bytes)?;
                way.receive(1, bytes)?;
            }
            (HostWork::Trip(_), false) => {
                way.receive(1, bytes)?;
                way.send(1, bytes)?;
            }
            (HostWork::Window(..), true) => {
                way.send(count, bytes)?;
                way.receive(1, &mut [0])?;
            }
            (HostWork::Window(..), false) => {
                way.receive(count, bytes)?;
                way.send(1, &[0])?;
            }
        }
    }
    let halves = if matches!(work, HostWork::Trip(_)) { 2.0 } else { 1.0 };
    Ok(begin.elapsed().as_secs_f64() / f64::from(times) / halves)
}

/// Keeps this process on a processor that it does not share with the other one, if there are two: the system, which takes them
/// for processes that wait now and then, may leave both on one for seconds.
fn settle() -> Result<(), Failure> {
    let may = sched_getaffinity(None).map_err(failed)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&number| may.is_set(number)).collect();
    let rank = std::env::var("PMI_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let (Some(&own), true) = (all.get(rank), all.len() > 1) else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(own);
    sched_setaffinity(None, &one).map_err(failed)
}

/// The three ways, one after the other, in turns.
fn compare(
    work: HostWork,
    world: &World,
    ways: &mut [Box<dyn HostLink + '_>; 3],
    common: &Common,
) -> Result<Row, Failure> {
    let (comm, is_first) = (world.comm(), world.rank() == 0);
    let (count, len) = work.messages();
    let value = |at: usize| (at / 7 % 251).to_le_bytes()[0];
    let mut bytes: Vec<u8> = (0..count * len).map(|at| if is_first { value(at) } else { 0 }).collect();
    let seconds_each = common.seconds() / ROUNDS as f64;
    let mut right = true;
    let mut times = [0u32; 3];
    for (way, times) in ways.iter_mut().zip(&mut times) {
        // Pages, buffers and windows grow first; and this says how often to repeat.
        let first = turn(&mut **way, is_first, work, 2, &mut bytes)?;
        right &= bytes.iter().enumerate().all(|(at, byte)| *byte == value(at));
        if !is_first {
            bytes.fill(0);
        }
        *times = (1..20).map(|power| 1 << power).find(|&n| f64::from(n) * first > seconds_each).unwrap_or(1 << 20);
        comm.bcast(std::slice::from_mut(times), 0).map_err(failed)?;
    }
    let mut samples: [Samples; 3] = Default::default();
    for _ in 0..if common.quick { 2 } else { ROUNDS } {
        for ((way, times), samples) in ways.iter_mut().zip(times).zip(&mut samples) {
            comm.barrier().map_err(failed)?;
            samples.push(turn(&mut **way, is_first, work, times, &mut bytes)?);
        }
    }
    let case = format!("{}{}", work.name(), messages(count, len));
    let summary = |samples: &Samples| samples.summary().map_err(Failure::samples(case.clone()));
    let [ours, waiting, polling] = &samples;
    let (ours, waiting, polling) = (summary(ours)?, summary(waiting)?, summary(polling)?);
    let row = Row::new(&case, OPERATION, "host", "tcp", (count * len) as u64, ours);
    // Rank 1 looks at what comes, and rank 0 at what comes back.
    let mut all_right = [0u8];
    comm.allreduce(&[u8::from(right)], &mut all_right, gapless::ReduceOp::Min).map_err(failed)?;
    Ok(row.verified(all_right == [1]).against(WAITING, waiting).against(POLLING, polling))
}

const OPERATION: &str = "between hosts";
const WAITING: &str = "sockets that wait";
const POLLING: &str = "sockets that poll";

/// A connection from rank 0 to rank 1.
fn connection(world: &World) -> Result<TcpStream, Failure> {
    let comm = world.comm();
    let mut port = [0u16];
    let stream = if world.rank() == 0 {
        comm.recv(&mut port, 1, 2).map_err(failed)?;
        TcpStream::connect((THERE, port[0])).map_err(failed)?
    } else {
        let listener = TcpListener::bind((THERE, 0)).map_err(failed)?;
        port[0] = listener.local_addr().map_err(failed)?.port();
        // Whoever accepts makes no progress, so the message must be there before.
        comm.ssend(&port, 0, 2).map_err(failed)?;
        listener.accept().map_err(failed)?.0
    };
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// What is missing without root or `ip`.
pub(super) fn absent(why: String) -> Absent {
    Absent { case: "two hosts".to_owned(), op: OPERATION.to_owned(), why, failed: false }
}

/// What an MPI library takes: messages, their length, and a median a run.
struct Mpi {
    name: String,
    works: Vec<(usize, usize, Samples)>,
}

impl Mpi {
    fn measure(option: &str, hosts: &Namespaces, common: &Common) -> Result<Mpi, Failure> {
        let why = || format!("{option:?} is not NAME=COMMAND");
        let refused = |why| Failure::Option { option: "--mpi", why };
        let (name, command) = option.split_once('=').ok_or_else(|| refused(why()))?;
        let mut words = command.split_whitespace();
        let mut command = Command::new(words.next().ok_or_else(|| refused(why()))?);
        command.args(words).args(&hosts.0).arg(common.seconds().to_string());
        let output = command.output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut works = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("hosts ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let [count, len, seconds] = words[..] else { return Err(failed(format!("{name}: {line}"))) };
            let seconds = seconds.parse().map_err(failed)?;
            let (count, len) = (count.parse().map_err(failed)?, len.parse().map_err(failed)?);
            works.push((count, len, Samples::from_seconds([seconds])));
        }
        if works.len() != WORKS.len() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(failed(format!("{name}: {} of {} figures: {said}", works.len(), WORKS.len())));
        }
        Ok(Mpi { name: name.to_owned(), works })
    }

    /// Another run.
    fn again(&mut self, more: Mpi) {
        for ((.., known), (.., new)) in self.works.iter_mut().zip(more.works) {
            new.seconds().iter().for_each(|&seconds| known.push(seconds));
        }
    }

    /// The row of a piece of work, with this library's speed beside it.
    fn beside(&self, row: Row) -> Result<Row, Failure> {
        let is_it = |(count, len): (usize, usize)| row.case.ends_with(&messages(count, len));
        let Some((.., samples)) = self.works.iter().find(|(count, len, _)| is_it((*count, *len)))
        else {
            return Ok(row);
        };
        let summary = samples.summary().map_err(Failure::samples(self.name.clone()))?;
        Ok(row.against(&self.name, summary))
    }
}

/// How a piece of work is called.
pub(super) fn messages(count: usize, len: usize) -> String {
    format!(" {count} × {len} B")
}

impl Experiment for Hosts {
    type Options = Options;

    const NAME: &'static str = "hosts";
    const ABOUT: &'static str = "messages between two hosts by TCP, beside bare sockets";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let notes = "time: half a round trip, or a window of messages until its answer of one byte, between processes \
                     in two network\nnamespaces joined by a veth pair; ÷: speed relative to bare sockets that carry \
                     as many bytes between the same processes\n";
        let hosts = match Namespaces::new() {
            Ok(hosts) => hosts,
            Err(why) => {
                let mut findings = Findings::new(Vec::new(), notes.to_owned());
                findings.absent.push(absent(why));
                return Ok(findings);
            }
        };
        let mut others = Vec::new();
        for mpi in &options.mpi {
            others.push(Mpi::measure(mpi, &hosts, common)?);
        }
        let processes = Processes { hosts: Some(&hosts), ..Processes::new(Self::NAME, 2) };
        let rows: Vec<Row> = processes.found(Self::NAME, ())?;
        for (mpi, known) in options.mpi.iter().zip(&mut others) {
            known.again(Mpi::measure(mpi, &hosts, common)?);
        }
        let beside = |row| others.iter().try_fold(row, |row, mpi| mpi.beside(row));
        let rows = rows.into_iter().map(beside).collect::<Result<_, _>>()?;
        Ok(Findings::new(rows, notes.to_owned()))
    }

    fn rank(_: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        settle()?;
        let world = World::init().map_err(failed)?;
        let (comm, peer) = (world.comm(), 1 - world.rank());
        let [waits, polls] = [connection(&world)?, connection(&world)?].map(Bare);
        polls.0.set_nonblocking(true).map_err(failed)?;
        let mut ways: [Box<dyn HostLink + '_>; 3] =
            [Box::new(Ours { comm, peer }), Box::new(waits), Box::new(polls)];
        let mut rows = Vec::new();
        for work in WORKS {
            rows.push(compare(work, &world, &mut ways, common)?);
        }
        drop(ways);
        rank.finalize(world, &rows)
    }
}
