//! `acc6`: Figure 6 of Aji et al. 2012: messages out of and into device memory by Gapless, beside the same by hand.
//!
//! Three ways take turns in the same two processes: one message of ours; a blocking copy into page-locked memory, a
//! message of the host, and a blocking copy (the paper's Figure 1); a pipeline of packets, each a message of the host,
//! with packets as long as ours. Beside them the message of the host alone, and the copies over the bus alone. On one
//! node devices map none of each other's memory (`Config::device_ipc`); TCP goes over the loopback interface, and
//! between two network namespaces.

use gapless_cli::pingpong::{Ends, Where};
use gapless_report::{Absent, Bytes, Mark, PlotError, Report, Row, lines};

use crate::ends::{self, Beside, Between, CopyingEnd, Link, Opened, Pairing, extra_number, link_of, suffix_of};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, rate_at, summary};
use crate::one_gpu::{number, told_marks};
use crate::processes::{Processes, RankOf};
use crate::table::{CASE, PROTOCOL, RATE, SPREAD, TIME, called, ratio, table};

/// The experiment.
pub struct Acc6;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Devices: cuda[:N], opencl[:N]; by default the first of each kind
    #[arg(long = "device", value_name = "PLACE", value_delimiter = ',')]
    devices: Vec<Where>,
    /// How messages go: node, loopback, namespaces; all by default
    #[arg(long = "link", value_name = "LINK", value_delimiter = ',', value_enum)]
    links: Vec<Link>,
    /// Between two devices alone, not between a device and the host
    #[arg(long)]
    between_devices: bool,
    /// Payloads, in bytes
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(64..=1 << 30))]
    payloads: Vec<u64>,
    /// How often each way has its turn
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

const PAYLOADS: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const PAYLOADS_QUICK: [u64; 2] = [64 << 10, 1 << 20];
/// Bytes of a sample, at least: short messages are repeated.
const SAMPLE_BYTES: u64 = 4 << 20;

const MANUAL: &str = "manual";
const PIPELINED: &str = "pipelined";
const HOSTS: &str = "host message";
const BUS: &str = "bus copy";

/// At most so many times a copy over the bus on one node, from [`MARKED`] on.
const BUS_ASKED: f64 = 1.25;
const MARKED: u64 = 16 << 20;
/// Over TCP, of what overlap allows, from [`MARKED_TCP`] on.
const SAVED_ASKED: f64 = 0.7;
const MARKED_TCP: u64 = 1 << 20;
/// At most so many times either way by hand.
const MANUAL_ASKED: f64 = 1.03;

impl Experiment for Acc6 {
    type Options = Options;

    const NAME: &'static str = "acc6";
    const ABOUT: &'static str = "messages of device memory, beside the same by hand, blocking and pipelined (MPI-ACC)";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let devices = ends::devices(&options.devices);
        let links = if options.links.is_empty() { Link::ALL.to_vec() } else { options.links.clone() };
        let pairings = |device: Where| {
            let all = [[device, device], [device, Where::Host], [Where::Host, device]];
            all.into_iter().take(if options.between_devices { 1 } else { 3 }).map(Ends)
        };
        let mut findings = Findings::default();
        let progress = common.progress(links.len() * devices.len());
        for link in links {
            let hosts = match link.hosts() {
                Ok(hosts) => hosts,
                Err(why) => {
                    let (case, op) = (link.name().to_owned(), "one way".to_owned());
                    findings.absent.push(Absent { case, op, why, failed: false });
                    continue;
                }
            };
            for ends in devices.iter().copied().flat_map(pairings) {
                let case = format!("{}, {ends}", link.name());
                progress.set_message(case.clone());
                let processes = Processes { hosts: hosts.as_ref(), ..Processes::new(Self::NAME, 2) };
                let part = Between { link, pairing: Pairing::of(ends) };
                let (rows, ended) = processes.found_so_far::<Vec<Row>>(&case, part)?;
                findings.rows.extend(rows);
                if let Err(why) = ended {
                    eprintln!("FAILED: {case}: {why}");
                    let (op, why) = ("one way".to_owned(), why.to_string());
                    findings.absent.push(Absent { case, op, why, failed: true });
                }
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        findings.notes = format!(
            "time: until rank 1 has the bytes and rank 0 a word of it. manual: copy, message of the host, copy; \
             pipelined: packets as long as ours by hand.\nAll ways take turns. × manual, × pipelined: medians of our \
             time by theirs, turn by turn. bus copy: the slower end's. saved: of manual's time;\nallowed: if the \
             longest step hides all others, 2N/(2N+P) between two devices. The paper saves 29 and 14.6 %: \
             29 % takes a network of 0.2 times the bus's\nrate or more, N/P; what is allowed here is in the last \
             column.\n{}{}",
            short(&findings.rows),
            told_marks(&findings.rows, "")
        );
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let Between { link, pairing } = rank.part()?;
        let world = link.world()?;
        let ends = pairing.ends()?;
        let opened = Opened::of(ends.of(world.rank()))?;
        let usual: &[u64] = if common.quick { &PAYLOADS_QUICK } else { &PAYLOADS };
        let payloads = if options.payloads.is_empty() { usual } else { &options.payloads };
        let longest = payloads.iter().copied().max().unwrap_or(0);
        let mut end = CopyingEnd::new(&world, &opened, longest)?;
        let mut rows = Vec::new();
        for &bytes in payloads {
            let rounds = if common.quick { 2 } else { options.rounds };
            let case = format!("{}, {ends}, {}", link.name(), Bytes(bytes));
            let row = measure(&mut end, bytes, (&case, common.seed, rounds))?;
            rows.extend(row.map(|row| judged(Row { space: ends.to_string(), ..row }, link, common.quick)));
            rank.leave(&rows)?;
        }
        drop(end);
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let link = |row: &Row| link_of(row).to_owned();
        let mut links: Vec<String> = report.rows.iter().map(link).collect();
        links.dedup();
        let pictures = links.into_iter().map(|one| {
            let own = report.rows.iter().filter(|row| link(row) == one);
            let all = own.flat_map(|row| {
                let by_hand = row.others.iter().filter(|other| other.reference == PIPELINED);
                let by_hand = by_hand.filter_map(|other| Some((PIPELINED, other.seconds?)));
                let by_hand = by_hand.chain(row.reference_seconds.map(|seconds| (MANUAL, seconds)));
                let point = |name: &str, row: &Row| (name.to_owned(), rate_at(row, row.payload_bytes));
                let theirs = by_hand.map(|(name, seconds)| point(name, &Row { seconds, ..row.clone() }));
                std::iter::once(point("ours", row)).chain(theirs).collect::<Vec<_>>()
            });
            let suffix = suffix_of(&one);
            (format!("-{suffix}"), format!("{one}: one way, and by hand"), gathered(all))
        });
        Drawing::some(pictures, lines)
    }

    fn summary(report: &Report) -> String {
        short(&report.rows)
    }
}

/// A line for each row: what the paper's figure shows.
fn short(rows: &[Row]) -> String {
    let columns = [
        called("link, memory, payload", CASE),
        PROTOCOL,
        ("packet", |row| Bytes(number(row, "packet_bytes")).to_string()),
        TIME,
        SPREAD,
        RATE,
        ("× manual", |row| extra(row, "times_manual")),
        ("× pipelined", |row| extra(row, "times_pipelined")),
        ("× bus copy", |row| row.ratio_to(BUS).map_or("-".to_owned(), |ratio| format!("{:.2}", 1.0 / ratio))),
        ("÷ host message", |row| ratio(row, HOSTS)),
        ("saved", |row| extra(row, "saved")),
        ("allowed", |row| extra(row, "allowed")),
    ];
    table(&columns, rows)
}

fn extra(row: &Row, key: &str) -> String {
    format!("{:.3}", extra_number(row, key))
}

/// What is asked of a row.
fn judged(mut row: Row, link: Link, quick: bool) -> Row {
    if quick {
        return row;
    }
    let bus = row.ratio_to(BUS).map_or(f64::NAN, f64::recip);
    match link {
        Link::Node if row.payload_bytes >= MARKED => {
            row.marks.push(Mark::at_most(format!("× {BUS}"), BUS_ASKED, bus));
        }
        Link::Loopback | Link::Namespaces if row.payload_bytes >= MARKED_TCP => {
            let share = extra_number(&row, "saved") / extra_number(&row, "allowed");
            row.marks.push(Mark::at_least("saved, of what overlap allows", SAVED_ASKED, share));
        }
        _ => {}
    }
    for (name, key) in [(MANUAL, "times_manual"), (PIPELINED, "times_pipelined")] {
        row.marks.push(Mark::at_most(format!("× {name}"), MANUAL_ASKED, extra_number(&row, key)));
    }
    row
}

/// What takes turns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ours,
    Manual,
    Pipelined,
    Hosts,
    Bus,
}

const WAYS: [Way; 5] = [Way::Ours, Way::Manual, Way::Pipelined, Way::Hosts, Way::Bus];

/// Seconds of one turn.
fn turn(end: &CopyingEnd<'_>, way: Way, (len, packet): (u64, u64)) -> Result<f64, Failure> {
    match way {
        Way::Ours => end.timed(|| end.direct(len).map(drop)),
        Way::Manual => end.timed(|| end.blocking(len)),
        Way::Pipelined => end.timed(|| end.packets(len, packet, Beside::Copies)),
        Way::Hosts => end.timed(|| end.between_hosts(len).map(drop)),
        Way::Bus => end.in_turn(|| end.bus(len, len)),
    }
}

/// All ways, of so many bytes; rank 0 alone has a row.
fn measure(
    end: &mut CopyingEnd<'_>,
    len: u64,
    (case, seed, rounds): (&str, u64, u32),
) -> Result<Option<Row>, Failure> {
    let (protocol, packet) = end.settle(len)?;
    let sizes = (len, packet);
    for (number, way) in (seed..).zip([Way::Ours, Way::Manual, Way::Pipelined]) {
        end.checked(case, (len, number), |end| turn(end, way, sizes).map(drop))?;
    }
    let repeated = (SAMPLE_BYTES / len).clamp(1, 32);
    let mut seconds: [Vec<f64>; WAYS.len()] = Default::default();
    for round in 0..=rounds as usize {
        for step in 0..WAYS.len() {
            // Nobody comes after the same one always.
            let at = (round + step) % WAYS.len();
            let turns = (0..repeated).map(|_| turn(end, WAYS[at], sizes));
            let sum = turns.sum::<Result<f64, Failure>>()?;
            // The first round warms up.
            if round > 0 {
                seconds[at].push(sum / repeated as f64);
            }
        }
    }
    let [ours, manual, pipelined, hosts, bus] = seconds;
    let their_bus = end.theirs(bus.clone())?;
    if !end.sends() {
        return Ok(None);
    }
    let of = |name: &str, seconds: &[f64]| summary(format!("{case}, {name}"), seconds);
    let [here, there] = [of(BUS, &bus)?, of(BUS, &their_bus)?];
    let slower = if here.median > there.median { here } else { there };
    let host = of(HOSTS, &hosts)?;
    let steps = [here.median, host.median, there.median];
    let longest = steps.into_iter().fold(0.0, f64::max);
    let times = |theirs: &[f64]| -> Result<f64, Failure> {
        let each: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Ok(of("by turns", &each)?.median)
    };
    let row = Row::new(case, "one way", "", protocol.to_string(), len, of("ours", &ours)?)
        .verified(true)
        .against(MANUAL, of(MANUAL, &manual)?)
        .against(PIPELINED, of(PIPELINED, &pipelined)?)
        .against(BUS, slower)
        .against(HOSTS, host)
        .with("packet_bytes", packet)
        .with("bus_copy_seconds", vec![here.median, there.median])
        .with("rounds", rounds)
        .with("times_manual", times(&manual)?)
        .with("times_pipelined", times(&pipelined)?)
        .with("saved", 1.0 - times(&manual)?)
        .with("allowed", 1.0 - longest / steps.iter().sum::<f64>());
    Ok(Some(row))
}
