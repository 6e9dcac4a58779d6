//! `rails`: messages between two hosts over two rails of TCP, beside the same over one.
//!
//! The hosts are network namespaces joined by two pairs of virtual interfaces, whose rates are set by `tc` (the queueing
//! discipline `tbf`); making them needs root, `ip` and `tc` (iproute2). Jobs over one rail and over two take turns.

use std::process::Command;

use gapless::World;
use gapless_report::{Row, Samples};

use super::hosts::{HostWork, Ours, absent, failed, messages, turn};
use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::namespaces::{Namespaces, tool};
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Rails;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rate of the first rail, and of the second, in Mbit/s
    #[arg(long, value_name = "MBIT", value_delimiter = ',', num_args = 1, default_value = "1000,1000")]
    mbit: Vec<u32>,
    /// Only windows of two messages of 64 MiB, and what each rail carried of them; the first turn counts, too
    #[arg(long)]
    stream: bool,
}

/// Jobs of each kind.
const JOBS: usize = 3;
/// Turns of a job.
const ROUNDS: usize = 9;
const WORKS: [HostWork; 4] = [
    HostWork::Trip(8),
    HostWork::Window(64, 16 << 10),
    HostWork::Window(16, 1 << 20),
    HostWork::Window(4, 8 << 20),
];
/// With `--stream`.
const STREAM: [HostWork; 1] = [HostWork::Window(2, 64 << 20)];
const NAMES: [&str; 2] = ["rail0", "rail1"];

/// What is measured.
fn works(is_stream: bool) -> &'static [HostWork] {
    if is_stream { &STREAM } else { &WORKS }
}

/// A second cable, and the rates of both.
fn cables(hosts: &Namespaces, mbit: &[u32]) -> Result<(), String> {
    let [a, b] = &hosts.0;
    tool("ip", &format!("link add {a}2 type veth peer name {b}2"))?;
    for (name, last) in [(a, 1), (b, 2)] {
        tool("ip", &format!("link set {name}2 netns {name}"))?;
        tool("ip", &format!("-n {name} addr add 10.79.0.{last}/24 dev {name}2"))?;
        for (from, to) in [(name.clone(), NAMES[0]), (format!("{name}2"), NAMES[1])] {
            tool("ip", &format!("-n {name} link set {from} down"))?;
            tool("ip", &format!("-n {name} link set {from} name {to}"))?;
            tool("ip", &format!("-n {name} link set {to} up"))?;
        }
        for (at, interface) in NAMES.iter().enumerate() {
            let rate = mbit.get(at).or(mbit.first()).copied().unwrap_or(1000);
            let words = format!(
                "-n {name} qdisc add dev {interface} root tbf rate {rate}mbit burst 256kb latency 20ms"
            );
            tool("tc", &words)?;
        }
    }
    Ok(())
}

/// Bytes that the first host has sent over each rail.
fn carried(hosts: &Namespaces) -> Result<[u64; 2], Failure> {
    let of = |interface: &str| -> Result<u64, String> {
        // `ip netns exec` mounts the namespace's own `/sys`.
        let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let output = Command::new("ip").args(["netns", "exec", &hosts.0[0], "cat", &file]).output();
        let text = output.map_err(|error| format!("ip: {error}"))?.stdout;
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        text.parse().map_err(|_| format!("{file}: {text:?}"))
    };
    Ok([of(NAMES[0]).map_err(failed)?, of(NAMES[1]).map_err(failed)?])
}

impl Experiment for Rails {
    type Options = Options;

    const NAME: &'static str = "rails";
    const ABOUT: &'static str = "messages between two hosts over two rails of TCP, beside one rail";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let works = works(options.stream);
        let rates: Vec<String> = options.mbit.iter().map(|rate| format!("{rate} Mbit/s")).collect();
        let mut notes = format!(
            "time: half a round trip, or a window of messages until its answer of one byte, over two rails ({}, set by tc \
             tbf) between two\nnetwork namespaces; ÷: speed relative to the first rail alone\n",
            rates.join(" and ")
        );
        let hosts = Namespaces::new().and_then(|hosts| cables(&hosts, &options.mbit).map(|()| hosts));
        let hosts = match hosts {
            Ok(hosts) => hosts,
            Err(why) => {
                let mut findings = Findings::new(Vec::new(), notes);
                findings.absent.push(absent(why));
                return Ok(findings);
            }
        };
        let mut samples: Vec<[Samples; 2]> = works.iter().map(|_| Default::default()).collect();
        let mut shares = Vec::new();
        for _ in 0..if common.quick { 1 } else { JOBS } {
            for (kind, list) in [NAMES[0].to_owned(), NAMES.join(",")].into_iter().enumerate() {
                let processes = Processes { hosts: Some(&hosts), ..Processes::new(Self::NAME, 2) };
                let processes = processes.with([("GAPLESS_TCP_INTERFACES", &*list)]);
                let before = carried(&hosts)?;
                let seconds: Vec<Vec<f64>> = processes.found(Self::NAME, ())?;
                let [first, second] = carried(&hosts)?;
                let bytes = [first - before[0], second - before[1]];
                if kind == 1 {
                    shares.push(100.0 * bytes[1] as f64 / (bytes[0] + bytes[1]) as f64);
                }
                for (samples, seconds) in samples.iter_mut().zip(seconds) {
                    seconds.into_iter().for_each(|it| samples[kind].push(it));
                }
            }
        }
        let mut rows = Vec::new();
        for (work, [one, two]) in works.iter().zip(&samples) {
            let (count, len) = work.messages();
            let case = format!("{}{}", work.name(), messages(count, len));
            let (one, two) = (one.summary(), two.summary());
            let one = one.map_err(Failure::samples(case.clone()))?;
            let two = two.map_err(Failure::samples(case.clone()))?;
            let row = Row::new(&case, "two rails", "host", "tcp", (count * len) as u64, two);
            rows.push(row.verified(true).against("one rail", one));
        }
        let shares: Vec<String> = shares.iter().map(|it| format!("{it:.2} %")).collect();
        notes += &format!("the second rail carried {} of the bytes of a job over both\n", shares.join(", "));
        Ok(Findings::new(rows, notes))
    }

    /// Leaves the seconds of each piece of work.
    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let is_stream = options.stream;
        let world = World::init().map_err(failed)?;
        let (comm, is_first) = (world.comm(), world.rank() == 0);
        let mut way = Ours { comm, peer: 1 - world.rank() };
        let mut all = Vec::new();
        for &work in works(is_stream) {
            let (count, len) = work.messages();
            let value = |at: usize| (at / 7 % 251).to_le_bytes()[0];
            let mut bytes: Vec<u8> =
                (0..count * len).map(|at| if is_first { value(at) } else { 0 }).collect();
            // Rates are measured, and the buffers of the rails fill; and this says how often to repeat.
            let warm = if is_stream { 1 } else { 4 };
            let first = turn(&mut way, is_first, work, warm, &mut bytes)?;
            let right = bytes.iter().enumerate().all(|(at, byte)| *byte == value(at));
            let each = common.seconds() / ROUNDS as f64;
            let mut times = [(1..16)
                .map(|power| 1u32 << power)
                .find(|&times| f64::from(times) * first > each)
                .unwrap_or(1 << 16)];
            if is_stream {
                times[0] = 1;
            }
            comm.bcast(&mut times, 0).map_err(failed)?;
            let mut all_right = [0u8];
            comm.allreduce(&[u8::from(right)], &mut all_right, gapless::ReduceOp::Min)
                .map_err(failed)?;
            if all_right != [1] {
                return Err(failed("bytes that are not those that were sent"));
            }
            let mut seconds: Vec<f64> = is_stream.then_some(first).into_iter().collect();
            for _ in 0..if common.quick { 1 } else { ROUNDS } {
                comm.barrier().map_err(failed)?;
                seconds.push(turn(&mut way, is_first, work, times[0], &mut bytes)?);
            }
            all.push(seconds);
        }
        rank.finalize(world, &all)
    }
}
