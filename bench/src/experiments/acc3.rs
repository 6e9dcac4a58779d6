//! `acc3`: Figure 3 of Aji et al. 2012: how fast the bus and the network are with packets of each length, where they
//! cross, and which packet that asks for. And whether many equal messages at a time are served alike.
//!
//! The bus copies packets between a device and page-locked memory, two under way. The network carries each as a message
//! of the host, four under way; *effective*, with a question for each after a copy that was over long ago, as a pipeline
//! asks. Both are measured in the same two processes, in turn.

mod packet;
mod placed;

use std::time::Instant;

use gapless::World;
use gapless_cli::pingpong::{Ends, Where};
use gapless_report::{Absent, Bytes, Mark, PlotError, Report, Row, lines};

use self::packet::Packet;
use crate::ends::{self, Beside, Between, CopyingEnd, Link, Opened, Pairing, extra_number, link_of, suffix_of};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, gathered, rate_at, summary};
use crate::one_gpu::{number, told_marks};
use crate::processes::{Processes, RankOf};

/// The experiment.
pub struct Acc3;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Devices: cuda[:N], opencl[:N]; by default the first of each kind
    #[arg(long = "device", value_name = "PLACE", value_delimiter = ',')]
    devices: Vec<Where>,
    /// How messages go: node, loopback, namespaces; node and loopback by default
    #[arg(long = "link", value_name = "LINK", value_delimiter = ',', value_enum)]
    links: Vec<Link>,
    /// How often each is timed
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Rounds of many messages at a time
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    crowds: u32,
    /// Bytes of staging memory, and of rings of page-locked memory: with too few, messages go without
    #[arg(long, value_name = "BYTES")]
    pool: Option<u64>,
}

/// Packets, as powers of two.
const SHIFTS: std::ops::RangeInclusive<u32> = 12..=24;
const SHIFTS_QUICK: std::ops::RangeInclusive<u32> = 16..=18;
/// Bytes of a sample, but at least four packets and at most 256.
const SAMPLE_BYTES: u64 = 16 << 20;
/// The message whose packets are looked at.
const MESSAGE_BYTES: u64 = 16 << 20;

/// Messages at a time, and the bytes of each: more than goes without a ring.
const CROWD: u64 = 64;
const CROWD_BYTES: u64 = 1 << 20;
/// The last of them may take so many times the median.
const CROWD_ASKED: f64 = 1.3;

const EFFECTIVE: &str = "effective network";
const NETWORK: &str = "network";
const BUS: &str = "bus";
const TOGETHER: &str = "at a time";

impl Experiment for Acc3 {
    type Options = Options;

    const NAME: &'static str = "acc3";
    const ABOUT: &'static str = "the bus and the network by packet, and the packet to choose (MPI-ACC)";

    fn run(options: &Options, _: &Common) -> Result<Findings, Failure> {
        let devices = ends::devices(&options.devices);
        let usual = || vec![Link::Node, Link::Loopback];
        let links = if options.links.is_empty() { usual() } else { options.links.clone() };
        let mut findings = Findings::default();
        for (link, device) in links.iter().flat_map(|link| devices.iter().map(move |device| (*link, *device))) {
            let (case, op) = (format!("{}, {device}", link.name()), EFFECTIVE.to_owned());
            let hosts = match link.hosts() {
                Ok(hosts) => hosts,
                Err(why) => {
                    findings.absent.push(Absent { case, op, why, failed: false });
                    continue;
                }
            };
            let processes = Processes { hosts: hosts.as_ref(), ..Processes::new(Self::NAME, 2) };
            let part = Between { link, pairing: Pairing::of(Ends([device; 2])) };
            let (rows, ended) = processes.found_so_far::<Vec<Row>>(&case, part)?;
            findings.notes += &(chosen(&case, &rows) + &served(&rows));
            findings.rows.extend(rows);
            if let Err(why) = ended {
                findings.absent.push(Absent { case, op, why: why.to_string(), failed: true });
            }
        }
        findings.notes += &format!(
            "time: of a packet; of {CROWD} messages {TOGETHER}, each until it has arrived. The slower of the two ends' \
             buses counts.\nsimulated: a pretended /sys, and these rates throttled as the paper saw it: the bus 2.5 times \
             where processors and device are in different\nnodes, the network by 27 % where processors and adapter are. \
             A world has shorter packets where it is told: far.\n{}",
            told_marks(&findings.rows, "")
        );
        Ok(findings)
    }

    fn rank(options: &Options, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let Between { link, pairing } = rank.part()?;
        let world = link.world()?;
        if let Some(bytes) = options.pool {
            let mut config = world.config()?;
            config.bounds.staging_bytes = bytes;
            world.set_config(config)?;
        }
        let ends = pairing.ends()?;
        let name = format!("{}, {ends}", link.name());
        let opened = Opened::of(ends.of(world.rank()))?;
        let shifts = if common.quick { SHIFTS_QUICK } else { SHIFTS };
        let mut end = CopyingEnd::new(&world, &opened, (CROWD * CROWD_BYTES).max(4 << shifts.end()))?;
        let (protocol, used) = end.settle(MESSAGE_BYTES)?;
        let mut rows = Vec::new();
        for packet in shifts.map(|shift| 1 << shift) {
            let rounds = if common.quick { 2 } else { options.rounds };
            let row = by_packet(&world, &mut end, packet, (&name, rounds, common.seed))?;
            rows.extend(row.map(|row| Row {
                space: ends.to_string(),
                ..row.with("protocol_used", protocol.to_string()).with("packet_used", used)
            }));
        }
        let crowds = if common.quick { options.crowds.min(1) } else { options.crowds };
        if crowds > 0 {
            let row = crowd(&world, &mut end, (&name, crowds), common.seed)?;
            let (space, protocol) = (ends.to_string(), protocol.to_string());
            let mut row = row.map(|row| Row { space, protocol, ..row });
            if let (Some(row), false, None) = (&mut row, common.quick, options.pool) {
                let mark = Mark::at_most("the last one, × the median", CROWD_ASKED, worst(row));
                row.marks.push(mark);
            }
            rows.extend(row);
        }
        drop(end);
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let rows = report.rows.iter().filter(|row| row.op == EFFECTIVE);
        let line = |row: &Row| link_of(row).to_owned();
        let mut all: Vec<String> = rows.clone().map(line).collect();
        all.dedup();
        let pictures = all.into_iter().map(|one| {
            let own = rows.clone().filter(|row| line(row) == one);
            let points = own.flat_map(|row| {
                let others = row.others.iter().filter_map(|other| Some((other.reference.as_str(), other.seconds?)));
                let others = others.chain(row.reference_seconds.map(|seconds| (BUS, seconds)));
                let point = |name: &str, row: &Row| (name.to_owned(), rate_at(row, row.payload_bytes));
                let others = others.map(|(name, seconds)| point(name, &Row { seconds, ..row.clone() }));
                others.chain([point(EFFECTIVE, row)]).collect::<Vec<_>>()
            });
            let suffix = suffix_of(&one);
            (format!("-{suffix}"), format!("{one}: by packet"), gathered(points))
        });
        Drawing::some(pictures, lines)
    }
}

/// When the last of several messages was there, by the median.
fn worst(row: &Row) -> f64 {
    extra_number(row, "worst_by_median")
}

/// Of messages at a time: when the last one was there, and how often one found no staging memory, at both ranks.
fn served(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let without = row.extra.get("without_staging").map_or(String::new(), ToString::to_string);
        let worst = worst(row);
        format!("{}: the last one after {worst:.2} × the median; without staging memory: {without}\n", row.case)
    };
    rows.iter().filter(|row| row.op == TOGETHER).map(line).collect()
}

/// What rows of one link and device ask for, and what is used.
fn chosen(case: &str, rows: &[Row]) -> String {
    let mut rows = rows.iter().filter(|row| row.op == EFFECTIVE);
    let rate = |seconds: f64, row: &Row| (row.payload_bytes, row.payload_bytes as f64 / seconds);
    let network: Vec<_> = rows.clone().map(|row| rate(row.seconds.median, row)).collect();
    let bus = rows.clone().filter_map(|row| Some(rate(row.reference_seconds?.median, row)));
    let bus: Vec<_> = bus.collect();
    let Some(Packet { bytes, crossing, network_is_slower }) = packet::choose(&bus, &network)
    else {
        return String::new();
    };
    let crossing = crossing.map_or("bus and network do not cross".to_owned(), |bytes| {
        format!("bus and network cross at {}", Bytes(bytes))
    });
    let slower = if network_is_slower { "network" } else { "bus" };
    let used = rows.next_back().map_or(String::new(), |row| {
        let used = number(row, "packet_used");
        let protocol = row.extra.get("protocol_used").and_then(|it| it.as_str()).unwrap_or_default();
        format!("{} ({protocol}, {} in all)", Bytes(used), Bytes(MESSAGE_BYTES))
    });
    let packet = Bytes(bytes);
    let chosen = format!("{case}: {crossing}; the {slower} is the slower one; packet: {packet}; used: {used}");
    // On one node there is no adapter.
    if case.starts_with(Link::Node.name()) {
        return format!("{chosen}\n");
    }
    let placed = placed::simulated(&bus, &network).unwrap_or_else(|why| format!("not simulated: {why}\n"));
    format!("{chosen}\n{placed}")
}

/// Both channels with packets of one length; rank 0 alone has a row.
fn by_packet(
    world: &World,
    end: &mut CopyingEnd<'_>,
    packet: u64,
    (link, rounds, seed): (&str, u32, u64),
) -> Result<Option<Row>, Failure> {
    let count = (SAMPLE_BYTES / packet).clamp(4, 256);
    let len = count * packet;
    let case = format!("{}, {}", link, Bytes(packet));
    end.checked(&case, (len, seed), |end| Ok(end.packets(len, packet, Beside::Copies)?))?;
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for round in 0..=rounds {
        let bus = end.in_turn(|| end.bus(len, packet))?;
        world.comm().barrier()?;
        let network = end.timed(|| end.packets(len, packet, Beside::Nothing))?;
        let over = end.over(count)?;
        world.comm().barrier()?;
        let effective = end.timed(|| end.packets(len, packet, Beside::Queries(over)))?;
        // The first round warms up.
        if round > 0 {
            let each = [bus, network, effective].map(|seconds| seconds / count as f64);
            seconds.iter_mut().zip(each).for_each(|(all, one)| all.push(one));
        }
    }
    let [bus, network, effective] = seconds;
    let their_bus = end.theirs(bus.clone())?;
    if !end.sends() {
        return Ok(None);
    }
    let [here, there] = [summary(BUS, &bus)?, summary(BUS, &their_bus)?];
    let slower = if here.median > there.median { here } else { there };
    let row = Row::new(case, EFFECTIVE, "", "packets", packet, summary(EFFECTIVE, &effective)?)
        .verified(true)
        .against(BUS, slower)
        .against(NETWORK, summary(NETWORK, &network)?)
        .with("bus_seconds", vec![here.median, there.median]);
    Ok(Some(row))
}

/// Equal messages at a time; rank 0 alone has a row: of when each had arrived, and the last one's time by the median.
fn crowd(
    world: &World,
    end: &mut CopyingEnd<'_>,
    (link, rounds): (&str, u32),
    seed: u64,
) -> Result<Option<Row>, Failure> {
    let (mut times, mut worst) = (Vec::new(), Vec::new());
    let before = world.counters()?.without_staging();
    let case = format!("{}, {CROWD} × {}", link, Bytes(CROWD_BYTES));
    end.checked(&case, (CROWD * CROWD_BYTES, seed), |end| end.crowd(CROWD, CROWD_BYTES, || {}))?;
    for _ in 0..rounds {
        world.comm().barrier()?;
        let begin = Instant::now();
        let mut ended = Vec::new();
        end.crowd(CROWD, CROWD_BYTES, || ended.push(begin.elapsed().as_secs_f64()))?;
        let median = summary(TOGETHER, &ended)?.median;
        worst.push(ended.iter().copied().fold(0.0, f64::max) / median);
        times.extend(ended);
    }
    let without = (world.counters()?.without_staging() - before) as f64;
    let [times, worst] = [end.theirs(times)?, end.theirs(worst)?];
    let theirs = end.theirs(vec![without])?;
    if !end.sends() {
        return Ok(None);
    }
    let time = summary(TOGETHER, &times)?;
    let worst = summary(TOGETHER, &worst)?.median;
    let row = Row::new(case, TOGETHER, "", "", CROWD_BYTES, time)
        .against("median", time)
        .verified(true)
        .with("worst_by_median", worst)
        .with("without_staging", vec![without, theirs[0]]);
    Ok(Some(row))
}
