//! `gapless bench coll`: how long a collective takes, by name. [`collectives`](crate::collectives) has the loop: each
//! call is timed from a moment that all ranks wait for, and buffers rotate through more than the cache. Other elements,
//! layouts and memory are the work of `blocks.rs`.

use super::blocks::{self, Blocks};
use super::messages::{self, Series};
use super::pair::hidden;
use super::pairs::place_of;
use super::reductions::{self, Elements};
use super::show::{BenchOutput, Column, Figure, median};
use super::sizes::Sizes;
use super::{BenchMemory, Coll, Common, mixture, rank};
use crate::Worlds;
use crate::collectives::{Bench, CallTimes, CollectiveWork, Form, different};
use crate::failure::Failure;
use crate::job;
use crate::memory::{Budget, Devices, Ends};
use crate::run::start_again;
use crate::spaces;
use gapless::{ReduceOp, World};
use gapless_coll::{Algorithm, NameError, Operation};
use gapless_dtype::Primitive;
use gapless_layouts::Case;
use std::process::ExitCode;
use std::time::Instant;

/// Calls in one round, at most: all their times are exchanged at its end.
const ROUND: usize = 256;
/// Calls at least, and at most, where the time decides.
const CALLS_LEAST: usize = 10;
const CALLS_MAX: usize = 100_000;
/// Calls that do not count.
const WARM: usize = 10;

/// What the options mean.
struct Task {
    operation: Operation,
    algorithm: Option<Algorithm>,
    works: Vec<CollectiveWork>,
    /// If blocks are of other elements than doubles, of layouts, or in memory that was named.
    series: Option<Vec<Series>>,
    op: ReduceOp,
}

/// Starts the ranks, or is one.
pub(super) fn run(coll: &Coll, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
    let task = match mixture::is_meant(coll) {
        true => None,
        false => Some(Task::new(coll)?),
    };
    let asked = coll.ranks.unwrap_or_else(|| super::processors().max(2));
    if !coll.common.is_rank() {
        // Complains before any process is started.
        match &task {
            Some(task) => task.possible(asked)?,
            None => mixture::check(coll)?,
        }
        return start_again(asked);
    }
    let ends = coll.space.unwrap_or(Ends::HOST);
    let (world, mut devices) =
        job::join(worlds, |rank, size| vec![place_of(ends, rank, size)], Budget::default())?;
    if coll.ranks.is_some_and(|ranks| ranks != world.size()) {
        let why = Failure::BadOption {
            option: "--ranks",
            value: asked.to_string(),
            why: format!("the launcher has started {}", world.size()),
        };
        return job::refuse(world, why);
    }
    rank::run(world, ends, |world| match &task {
        None => mixture::measure(coll, world),
        Some(task) => match &task.series {
            Some(series) => task.move_blocks(coll, series, world, &mut devices),
            None => task.measure(coll, world, &mut devices),
        },
    })
}

/// Leaves out what cannot be, and says so in its place; an error if nothing is left.
fn leave_out(
    series: &mut [Series],
    check: impl Fn(&Case) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut last = Ok(());
    for one in series.iter_mut() {
        if let Some(why) = one.cases.iter().find_map(|case| check(case).err()) {
            let name = one.layout.take().unwrap_or_default();
            one.layout = Some(format!("{name}: left out, {why}"));
            one.cases.clear();
            last = Err(why);
        }
    }
    if series.iter().all(|one| one.cases.is_empty()) { last } else { Ok(()) }
}

/// An operation by its name: ours, or as MPI and its users write it.
fn operation(name: &str) -> Result<Operation, NameError> {
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let plain = plain.strip_prefix("mpi_").unwrap_or(&plain);
    plain.parse().or_else(|_| name.parse())
}

impl Coll {
    /// The first option that is about blocks, of those that were given.
    pub(super) fn asks_for_blocks(&self) -> Option<&'static str> {
        let asked = [
            self.element.map(|_| "--type"),
            self.op.map(|_| "--op"),
            (!self.selection.is_empty()).then_some("--layout"),
            self.space.map(|_| "--space"),
            self.memory.map(|_| "--memory"),
        ];
        asked.into_iter().flatten().next()
    }

    /// The blocks. Elements that are combined are doubles if nothing is said, others bytes.
    fn series(&self, sizes: &[u64], combines: bool) -> Result<Vec<Series>, Failure> {
        if let (Some(element), false) = (self.element, self.selection.is_empty()) {
            let (value, why) = (element.name().to_owned(), "a layout has elements of its own");
            return Err(Failure::BadOption { option: "--type", value, why: why.to_owned() });
        }
        let double = (combines && self.selection.is_empty()).then_some(Primitive::Double);
        match self.element.or(double) {
            Some(element) => messages::typed(element, sizes),
            None => messages::series(&self.selection, sizes),
        }
    }
}

impl Task {
    fn new(coll: &Coll) -> Result<Task, Failure> {
        let operation = operation(&coll.operation)?;
        let algorithm = coll.algorithm.as_deref().map(str::parse).transpose();
        let algorithm = algorithm.map_err(|error: NameError| Failure::from(error))?;
        let bad = |option, value: String, why: String| Failure::BadOption { option, value, why };
        let sizes = match operation {
            Operation::Barrier => vec![0],
            _ => Sizes::list(coll.common.message_size, (8, 1 << 20)),
        };
        let op = coll.op.unwrap_or(ReduceOp::Sum);
        if let Some(option) = coll.asks_for_blocks() {
            if coll.form != Form::Blocking {
                let why = "other forms are measured of doubles in ordinary memory".to_owned();
                return Err(bad(option, String::new(), why));
            }
            let combines = reductions::OPERATIONS.contains(&operation);
            if !blocks::operations().any(|known| known == operation) {
                let known: Vec<_> = blocks::operations().map(|it| it.to_string()).collect();
                let why = format!(
                    "it is for {}; {operation} {}",
                    known.join(", "),
                    match operation {
                        Operation::Barrier => "has no buffers",
                        _ => "is measured of doubles in ordinary memory",
                    }
                );
                return Err(bad(option, String::new(), why));
            }
            if let Some(op) = coll.op.filter(|_| !combines) {
                let known: Vec<_> =
                    reductions::OPERATIONS.iter().map(ToString::to_string).collect();
                let why = format!("it is for {}", known.join(", "));
                return Err(bad("--op", op.name().to_owned(), why));
            }
            if let Some(ends) = coll.space {
                if combines && ends.involve_device() {
                    let why = "reductions work on memory of the host".to_owned();
                    return Err(bad("--space", ends.to_string(), why));
                }
                ends.0.into_iter().try_for_each(spaces::present)?;
            }
            let mut series = coll.series(&sizes, combines)?;
            if combines {
                leave_out(&mut series, |case| Elements::of(op, case).map(drop))?;
            }
            let series = Some(series);
            return Ok(Task { operation, algorithm, works: Vec::new(), series, op });
        }
        let works = sizes.iter().map(|&size| {
            let most = size <= 1 << 40;
            CollectiveWork::new(operation, size).filter(|_| most).ok_or_else(|| {
                let mut why =
                    "it is of whole doubles, multiples of 8 bytes, 1 TiB at most".to_owned();
                if blocks::operations().any(|known| known == operation) {
                    why += "; --type byte (or another) makes it one of other elements";
                }
                bad("--message-size", size.to_string(), why)
            })
        });
        let works = works.collect::<Result<_, _>>()?;
        Ok(Task { operation, algorithm, works, series: None, op })
    }

    /// Whether the algorithm does it among so many ranks.
    fn possible(&self, ranks: u32) -> Result<(), Failure> {
        let Some(algorithm) = self.algorithm.filter(|it| !it.does(self.operation, true)) else {
            return Ok(());
        };
        let bytes = self.works.first().map_or(8, CollectiveWork::bytes);
        let all = different(self.operation, ranks as usize, bytes)?;
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        let why = format!("it does not do {}; these do: {}", self.operation, all.join(", "));
        Err(Failure::BadOption { option: "--algorithm", value: algorithm.to_string(), why })
    }

    /// What it does with so many bytes, in messages.
    fn named(&self, work: &CollectiveWork) -> String {
        format!("{} of {} B", self.operation, work.bytes())
    }

    fn measure(&self, coll: &Coll, world: &World, devices: &mut Devices) -> Result<(), Failure> {
        let common = &coll.common;
        self.possible(world.size())?;
        for work in &self.works {
            let needed = work.arena_bytes(world.size() as usize);
            rank::has_room(world, devices, Ends::HOST, (&self.named(work), needed))?;
        }
        rank::force(world, coll.protocol)?;
        let mut bench = Bench::new(world)?.form(coll.form);
        let name = format!("coll {}", self.operation);
        let second = if coll.form == Form::Overlap { Column::OVERLAP } else { Column::LAST };
        let columns = (Column::MICROSECONDS, Some(second));
        let mut output = BenchOutput::new(common, world.rank() == 0, &name, columns);
        output
            .begin(&format!("{} ranks, memory host, µs on average over the ranks", world.size()))?;
        output.series(None)?;
        for work in &self.works {
            if !bench.check(work, self.algorithm)? {
                return rank::wrong(world, self.named(work));
            }
            let calls = self.calls(common, world, &mut bench, work)?;
            let about = (self.operation.to_string(), work.bytes(), "host".to_owned());
            let mut figure = figure(self, about, &calls, world.size());
            if coll.form == Form::Overlap {
                let longest = |calls: &[CallTimes]| median(calls.iter().map(|call| call.longest));
                let alone = longest(&calls);
                bench.compute(alone);
                let both = longest(&self.calls(common, world, &mut bench, work)?);
                bench.compute(0.0);
                figure.overlap = Some(hidden(alone, both));
            }
            output.figure(&figure)?;
        }
        output.finish()
    }

    /// Measures blocks of layouts.
    fn move_blocks(
        &self,
        coll: &Coll,
        series: &[Series],
        world: &World,
        devices: &mut Devices,
    ) -> Result<(), Failure> {
        self.possible(world.size())?;
        let (common, ranks) = (&coll.common, world.size());
        let ends = coll.space.unwrap_or(Ends::HOST);
        let source = coll.memory.unwrap_or(BenchMemory::Alloc).source();
        let len = |case: &Case| blocks::arena_bytes(case, self.operation, ranks);
        let arena = rank::arena(world, devices, ends, series, len)?;
        rank::force(world, coll.protocol)?;
        let comm = Bench::new(world)?.communicator(self.algorithm)?;
        let name = format!("coll {}", self.operation);
        let columns = (Column::MICROSECONDS, Some(Column::LAST));
        let mut output = BenchOutput::new(common, world.rank() == 0, &name, columns);
        let memory = rank::memory(ends, source);
        output.begin(&format!("{ranks} ranks, memory {memory}, µs on average over the ranks"))?;
        let place = (place_of(ends, world.rank(), ranks), source);
        let task = blocks::Task { operation: self.operation, comm, op: self.op };
        let mut all = Blocks::new(world, devices, task, place, (arena, coll.seed))?;
        for one in series {
            output.series(one.layout.as_deref())?;
            for case in &one.cases {
                if let Some((at, wrong)) = all.verify(case)? {
                    return rank::wrong(world, format!("{}, at rank {at}: {wrong}", case.name));
                }
                let calls = all.time(case, common.plan())?;
                let about = (case.name.clone(), case.payload_bytes, ends.to_string());
                let figure = figure(self, about, &calls, ranks);
                let layout = case.send.datatype.commit()?;
                let blocks = layout.blocks_of(case.send.count).unwrap_or(u64::MAX);
                output.figure(&Figure { blocks, ..figure })?;
            }
        }
        output.finish()
    }

    /// As many calls as the plan says; all ranks get the same times. Rank 0's clock decides when the time is over.
    fn calls(
        &self,
        common: &Common,
        world: &World,
        bench: &mut Bench<'_>,
        work: &CollectiveWork,
    ) -> Result<Vec<CallTimes>, Failure> {
        let plan = common.plan();
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let mut left = plan.warmup.map_or(WARM, count);
        while left > 0 {
            bench.calls(work, self.algorithm, left.min(ROUND))?;
            left -= left.min(ROUND);
        }
        let begin = Instant::now();
        let (mut all, mut done) = (Vec::new(), 0);
        loop {
            let most = plan.iterations.map_or(CALLS_MAX, count);
            let mut over = [u8::from(begin.elapsed().as_secs_f64() > plan.seconds)];
            world.comm().bcast(&mut over, 0)?;
            let enough = plan.iterations.is_none() && over[0] != 0 && done >= CALLS_LEAST;
            if enough || done >= most {
                return Ok(all);
            }
            // Short at first: nobody knows how long a call takes.
            let round = (done / 2).clamp(CALLS_LEAST, ROUND).min(most - done);
            all.extend(bench.calls(work, self.algorithm, round)?);
            done += round;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "at most 10^9 calls")]
fn figure(
    task: &Task,
    (case, payload_bytes, space): (String, u64, String),
    calls: &[CallTimes],
    ranks: u32,
) -> Figure {
    let mean =
        |of: fn(&CallTimes) -> f64| calls.iter().map(of).sum::<f64>() / calls.len().max(1) as f64;
    Figure {
        case,
        payload_bytes,
        average: mean(|call| call.average),
        shows_average: false,
        last: Some(median(calls.iter().map(|call| call.longest))),
        samples: calls.iter().map(|call| call.average).collect(),
        space,
        protocol: task.algorithm.map_or("table".to_owned(), |algorithm| algorithm.to_string()),
        blocks: 1,
        extra: vec![("ranks", u64::from(ranks)), ("iterations", calls.len() as u64)],
        ..Figure::default()
    }
}
