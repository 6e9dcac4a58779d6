//! All-reduces on one GPU, by each way there is.

use std::path::Path;

use gapless::tuning::coll::{self, Mode, Settings};
use gapless::{Communicator, ReduceOp, World};
use gapless_report::{Bytes, Row, Summary};

use super::bench::{Bench, Operation, settings};
use super::mapped::{self, Mapped};
use super::memory::Pinned;
use super::timing::{from_the_first, together};
use super::{Gpu, Options, Save};
use crate::error::Failure;
use crate::experiment::Common;

/// The paper's sizes, and what lies between.
const SIZES: [u64; 12] = [
    4,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];

/// The static algorithm with the numbers of copies that were best in this run: what no table can know before.
pub const BEST: &str = "static, best of this run";
/// The static algorithm as the paper has it: by a table that `gapless tune` wrote on this GPU before. Older reports call
/// [`BEST`] "static" alone.
pub const TUNED: &str = "static, tuned";
/// The paper's dynamic algorithm.
pub const DYNAMIC: &str = "dynamic";
/// Ours, which remembers.
pub const REMEMBERING: &str = "remembering";
/// The same, from the second call on: [`CALLS`] of them. Their mean counts, with all that was tried.
pub const LEARNED: &str = "remembering, 1,000 calls";
/// All copies host-staged.
pub const STAGED: &str = "host-staged only";
/// All copies by IPC.
pub const IPC: &str = "IPC only";
/// As without any of this: through slots in memory of the host.
pub const HOST: &str = "through the host's page";
/// The scheme of the paper's §2.
pub const PAPER: &str = "staged, summed on the host";
/// Each process's kernel reads what all have: a communicator on a stream, under the Multi-Process Service.
pub const MAPPED: &str = "all-mapped";
/// The static algorithm with a table that has nothing.
pub const DEFAULT: &str = "untuned static";
/// The static algorithm with a table of another GPU.
pub const FOREIGN: &str = "static, another GPU's table";

/// The ways that `--ways` knows.
const WAYS: [&str; 10] =
    [BEST, DYNAMIC, REMEMBERING, LEARNED, STAGED, IPC, HOST, PAPER, MAPPED, DEFAULT];
/// What `--ways` says to measure none of them, but what other options ask for.
const NONE: &str = "none";

/// Calls before remembering is timed: it has found what is best by then, as a rule.
const LEARNING: usize = 60;

/// Calls of [`LEARNED`], as many as the paper's tables average.
const CALLS: usize = 1000;
/// Shorter ones are not asked about.
const LEARNED_BYTES: u64 = 64 << 10;

/// Whether the options make sense: the ways are known, and the table can be read.
///
/// # Errors
/// What does not.
pub fn check(options: &Options) -> Result<(), Failure> {
    let unknown = |way: &&String| *way != NONE && !WAYS.contains(&way.as_str());
    if let Some(way) = options.ways.iter().find(unknown) {
        let why = format!("there is no way {way:?}; there are {}, {NONE}", WAYS.join("; "));
        return Err(Failure::Option { option: "--ways", why });
    }
    options.table.as_deref().map_or(Ok(()), |path| read_table(path).map(drop))
}

fn read_table(path: &Path) -> Result<Settings, Failure> {
    let why = |error: gapless::tuning::TuningError| Failure::Option {
        option: "--table",
        why: error.to_string(),
    };
    Ok(coll::read_table(path).map_err(why)?.1)
}

/// Measures all ways, size by size.
///
/// # Errors
/// A wrong number; a device's or a peer's failure.
pub fn measure(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    let sizes = options.sizes(common, &[4, 4096, 300_000], &SIZES);
    let most = sizes.iter().copied().max().unwrap_or(4);
    let mut bench = Bench::new(world, gpu, most, common.seconds())?;
    let mut spare = Pinned::new(bench.send.device(), usize::try_from(most / 4).unwrap_or(0));
    let (model, mps) = bench.device();
    let processes = world.size() as usize;
    let wants = |way: &str| options.ways.is_empty() || options.ways.iter().any(|it| it == way);
    let counts: Vec<usize> = match (wants(BEST), common.quick) {
        (false, _) => Vec::new(),
        (true, true) => vec![0, processes - 1],
        (true, false) => (0..processes).collect(),
    };
    let tries: Vec<(usize, Communicator)> = counts
        .iter()
        .map(|&staged| Ok((staged, bench.comm(bench.fixed([staged; 2], 1))?)))
        .collect::<Result<_, Failure>>()?;
    let by = |mode| settings(mode, Vec::new());
    let modes = [
        (DYNAMIC, by(Mode::Dynamic)),
        (REMEMBERING, by(Mode::Remembering)),
        (STAGED, bench.fixed([processes - 1; 2], 1)),
        (IPC, bench.fixed([0; 2], 1)),
        (HOST, by(Mode::Off)),
        (DEFAULT, by(Mode::Static)),
    ];
    let mut comms: Vec<(&str, Communicator)> = modes
        .into_iter()
        .filter(|(name, _)| wants(name))
        .map(|(name, settings)| Ok((name, bench.comm(settings)?)))
        .collect::<Result<_, Failure>>()?;
    if let Some(path) = &options.table {
        let table = read_table(path)?.table;
        let way = if table.knows(&model, mps) { TUNED } else { FOREIGN };
        let by_table = Settings { table, ..by(Mode::Static) };
        comms.push((way, bench.comm(by_table)?));
    }
    let stream = mapped::stream(gpu, mps)?;
    let buffers = [&bench.send, &bench.recv];
    let sharing = world.size() / options.gpus.first().copied().unwrap_or(1).clamp(1, world.size());
    let all_mapped = stream
        .as_ref()
        // A stream's communicator has no more.
        .filter(|_| wants(MAPPED) && processes <= gapless_kernels::peers::RANKS_MAX)
        .map(|stream| Mapped::new(world, stream, buffers, sharing));
    let mut all_mapped = all_mapped.transpose()?;
    for bytes in sizes {
        let call = (Operation::Allreduce, bytes);
        // By the number of host-staged copies: the times of both steps.
        let mut steps: Vec<(usize, [f64; 2], Summary)> = Vec::new();
        for (staged, comm) in &tries {
            let mut went = Vec::new();
            let summary = bench.time(comm, call, 3, |comm| went.extend(comm.last_on_gpu()))?;
            steps.push((*staged, medians(&went), summary));
        }
        let best = [0, 1].map(|step| {
            let least = steps.iter().min_by(|one, other| one.1[step].total_cmp(&other.1[step]));
            least.map_or(0, |it| it.0)
        });
        // Rank 0 leads, and alone knows.
        let mut chosen = best.map(|staged| u32::try_from(staged).unwrap_or(0));
        bench.control.bcast(&mut chosen[..], 0)?;
        let chosen = chosen.map(|staged| staged as usize);
        let calls = if common.quick { 20 } else { CALLS };
        let (mut told, mut means, mut rows) = (String::new(), [0.0; 2], Vec::new());
        if wants(BEST) {
            let comm = bench.comm(bench.fixed(chosen, bytes))?;
            rows.push((BEST, bench.time(&comm, call, 3, |_| ())?));
            if bytes >= LEARNED_BYTES {
                means[0] = many(&mut bench, &comm, bytes, calls)?.1;
            }
            comm.free()?;
        }
        for (name, comm) in &comms {
            let warm = if *name == REMEMBERING { LEARNING } else { 3 };
            rows.push((name, bench.time(comm, call, warm, |_| ())?));
            if *name == DYNAMIC {
                told = comm.told_on_gpu().unwrap_or_default();
            }
        }
        if bytes >= LEARNED_BYTES && wants(LEARNED) {
            let comm = bench.comm(by(Mode::Remembering))?;
            let (summary, mean) = many(&mut bench, &comm, bytes, calls)?;
            rows.push((LEARNED, summary));
            means[1] = mean;
            comm.free()?;
        }
        if wants(PAPER) {
            rows.push((PAPER, on_the_host(&mut bench, &mut spare, bytes)?));
        }
        if let Some(mapped) = &mut all_mapped {
            rows.push((MAPPED, bench.all_mapped(mapped, bytes)?));
        }
        let swept: Vec<(usize, f64)> = steps.iter().map(|it| (it.0, it.2.median)).collect();
        let found = LengthFigures { chosen, swept: &swept, told: &told, means };
        save.rows(made(bytes, processes, &options.space, &rows, &found))?;
    }
    drop(all_mapped);
    for (_, comm) in comms {
        comm.free()?;
    }
    for (_, comm) in tries {
        comm.free()?;
    }
    Ok(())
}

fn medians(went: &[[u64; 2]]) -> [f64; 2] {
    [0, 1].map(|step| {
        let mut all: Vec<u64> = went.iter().map(|times| times[step]).collect();
        all.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call")]
        all.get(all.len() / 2).map_or(f64::INFINITY, |ns| *ns as f64)
    })
}

/// What else is known of a length: the best numbers of host-staged copies, the times by such numbers, how the last dynamic
/// call went, and the means of [`CALLS`] static calls and of those that learned.
struct LengthFigures<'f> {
    chosen: [usize; 2],
    swept: &'f [(usize, f64)],
    told: &'f str,
    means: [f64; 2],
}

fn made(
    bytes: u64,
    processes: usize,
    space: &str,
    rows: &[(&str, Summary)],
    found: &LengthFigures<'_>,
) -> Vec<Row> {
    let case = format!("{} n={processes}", Bytes(bytes));
    let best = rows.iter().find(|row| row.0 == BEST).map(|row| row.1);
    let row = |(name, summary): &(&str, Summary)| {
        // A wrong number is an error.
        let row = Row::new(&case, "allreduce", space, *name, bytes, *summary).verified(true);
        match (*name == BEST, best) {
            (true, _) => {
                let all: Vec<String> = found
                    .swept
                    .iter()
                    .map(|(staged, seconds)| format!("{staged}: {:.1}", seconds * 1e6))
                    .collect();
                row.with("staged_gather", found.chosen[0])
                    .with("staged_scatter", found.chosen[1])
                    .with("us_by_staged", all.join(", "))
            }
            (false, Some(best)) if *name == DYNAMIC => {
                row.against(BEST, best).with("one_call_us", found.told)
            }
            (false, Some(best)) if *name == LEARNED => {
                let row = row.against(BEST, best).with("static_mean_seconds", found.means[0]);
                row.with("mean_seconds", found.means[1])
            }
            (false, Some(best)) => row.against(BEST, best),
            (false, None) => row,
        }
    };
    rows.iter().map(row).collect()
}

/// As the paper's §2 has it: all stage, the host combines, all copy back.
fn on_the_host(bench: &mut Bench<'_>, other: &mut Pinned, bytes: u64) -> Result<Summary, Failure> {
    let count = usize::try_from(bytes / 4).unwrap_or(0);
    bench.fill(Operation::Allreduce, bytes)?;
    let Bench { control, host: one, send, recv, world, seconds, .. } = bench;
    let comm = world.comm();
    let summary = together(control, (*seconds, 3), || {
        one.fetch(send, bytes)?;
        comm.allreduce(&*one.first(count), other.first(count), ReduceOp::Sum)?;
        other.store(recv, bytes)
    })?;
    bench.check(Operation::Allreduce, bytes)?;
    Ok(summary)
}

/// Many calls.
fn many(
    bench: &mut Bench<'_>,
    comm: &Communicator,
    bytes: u64,
    calls: usize,
) -> Result<(Summary, f64), Failure> {
    bench.fill(Operation::Allreduce, bytes)?;
    let control = bench.control.clone();
    let call = || bench.call(comm, Operation::Allreduce, bytes);
    let learned = from_the_first(&control, calls, call)?;
    bench.check(Operation::Allreduce, bytes)?;
    Ok(learned)
}
