//! One of the two processes: joins, agrees on the arenas' size, then measures or echoes.

use super::bench::{Bench, Subject};
use super::show::{Outcome, Shown};
use super::{Pingpong, Source, show};
use crate::cli::failure::Failure;
use crate::communicator::Communicator;
use crate::world::World;
use gapless_layouts::Case;
use gapless_pml::Config;
use gapless_report::{Bytes, Summary, last_level_cache_bytes};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

const SIZES: i32 = 4;

/// What the last-level cache is taken to be where the kernel does not tell.
const CACHE_BYTES_ASSUMED: u64 = 32 << 20;
/// Arenas of both processes: two each.
const ARENAS: u64 = 4;
/// Arenas are multiples of a huge page.
const ARENA_STEP: u64 = 2 << 20;

/// Sizes that both processes use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of the last-level cache.
    pub(super) cache_bytes: u64,
    /// Whether that is a guess.
    pub(super) assumed: bool,
    pub(super) arena_bytes: u64,
}

impl Sizes {
    /// Bytes that the places of each side of a process touch together, at least: with both sides,
    /// more than four times the cache.
    pub(super) fn wanted_bytes(&self) -> u64 {
        2 * self.cache_bytes
    }

    /// Chooses arenas that hold the largest message and, as far as memory allows, let all rotate.
    fn choose(cases: &[Case], arena_bytes_max: u64) -> Result<Sizes, Failure> {
        let told = last_level_cache_bytes();
        let cache_bytes = told.unwrap_or(CACHE_BYTES_ASSUMED);
        let span = |case: &Case| {
            let sides = [&case.send, &case.recv].map(|side| {
                let (low, high) = side.touched().unwrap_or((0, 0));
                (high - low).cast_unsigned()
            });
            sides[0].max(sides[1]).max(case.payload_bytes) + 2 * super::place::LINE
        };
        let wanted = |case: &Case| {
            let places = 2 * cache_bytes / case.payload_bytes.max(1) + 2;
            span(case).saturating_mul(places).min(arena_bytes_max)
        };
        let available = available_bytes();
        let rotating = cases.iter().map(wanted).max().unwrap_or(0).min(available / (2 * ARENAS));
        let needed = cases.iter().max_by_key(|case| span(case));
        let least = needed.map_or(0, span);
        let arena_bytes = rotating.max(least).next_multiple_of(ARENA_STEP);
        if let Some(case) = needed
            && arena_bytes.saturating_mul(ARENAS) > available
        {
            return Err(Failure::TooBig {
                case: case.name.clone(),
                needed: Bytes(arena_bytes.saturating_mul(ARENAS)).to_string(),
                available: Bytes(available).to_string(),
            });
        }
        Ok(Sizes { cache_bytes, assumed: told.is_none(), arena_bytes })
    }
}

/// Memory that could be had now, by the kernel's own estimate.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib.saturating_mul(1024))
}

/// How long a process that cannot begin waits for the launcher to end it for another's failure.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Runs this process's part.
pub(super) fn run(options: &Pingpong, cases: &[Case]) -> Result<ExitCode, Failure> {
    let config = Config { force: options.protocol, ..Config::default() };
    let world = match World::builder().config(config).init() {
        Ok(world) => world,
        Err(error) => {
            // If the other process has failed, it says why, and the launcher ends this one now.
            std::thread::sleep(LAST_WORDS);
            return Err(error.into());
        }
    };
    if world.size() != 2 {
        return Err(Failure::NotTwo { ranks: world.size() });
    }
    // A processor each, so that no figure contains a migration; only now, because the world asks
    // how many there are to know how to wait.
    let _pinned = super::Pinned::to(usize::try_from(world.rank()).unwrap_or(0));
    let result = if world.rank() == 0 {
        measure(options, cases, &world).map(Some)
    } else {
        echo(options, cases, &world).map(|()| None)
    };
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(Failure::World(error)) if world.rank() != 0 && error.lost_rank() == Some(0) => {
            // Rank 0 says why it left, or the launcher does.
            tracing::info!(%error, "rank 0 is gone");
            std::mem::forget(world);
            return Ok(ExitCode::FAILURE);
        }
        Err(failure) => {
            // The other process cannot go on without us: leave at once, and say why.
            std::mem::forget(world);
            return Err(failure);
        }
    };
    world.finalize()?;
    outcome.map_or(Ok(ExitCode::SUCCESS), |outcome| outcome.finish(options))
}

pub(super) fn echo(options: &Pingpong, cases: &[Case], world: &World) -> Result<(), Failure> {
    for &source in options.memory.sources() {
        let mut words = [0u64; 2];
        world.comm().recv(&mut words, 0, SIZES)?;
        let sizes = (usize::try_from(words[0]).unwrap_or(usize::MAX), words[1]);
        Bench::new(world, cases, source, sizes, options.seed)?.obey()?;
    }
    Ok(())
}

pub(super) fn measure(
    options: &Pingpong,
    cases: &[Case],
    world: &World,
) -> Result<Outcome, Failure> {
    let sizes = Sizes::choose(cases, options.buffers)?;
    let sources = options.memory.sources();
    let progress = ProgressBar::new((cases.len() * sources.len()) as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}");
    if let Ok(style) = style {
        progress.set_style(style);
    }
    let mut shown = Vec::new();
    for &source in sources {
        announce(world.comm(), &sizes)?;
        let arena_bytes = usize::try_from(sizes.arena_bytes).unwrap_or(usize::MAX);
        let arenas = (arena_bytes, sizes.wanted_bytes());
        let bench = Bench::new(world, cases, source, arenas, options.seed)?;
        let mut pass = Pass { options, bench, source, references: HashMap::new() };
        for (index, case) in cases.iter().enumerate() {
            progress.set_message(case.name.clone());
            shown.push(pass.measure(index, case)?);
            progress.inc(1);
        }
        pass.bench.dismiss()?;
    }
    progress.finish_and_clear();
    Ok(Outcome { sizes, shown })
}

fn announce(comm: &Communicator, sizes: &Sizes) -> Result<(), Failure> {
    comm.send(&[sizes.arena_bytes, sizes.wanted_bytes()], 1, SIZES)?;
    Ok(())
}

/// Figures of the same payload without gaps.
#[derive(Clone, Copy, Debug)]
struct Reference {
    memcpy: Summary,
    contiguous: Summary,
}

/// All cases with arenas from one source.
struct Pass<'a> {
    options: &'a Pingpong,
    bench: Bench<'a>,
    source: Source,
    references: HashMap<u64, Reference>,
}

impl Pass<'_> {
    fn measure(&mut self, index: usize, case: &Case) -> Result<Shown, Failure> {
        let (seconds, iterations) = (self.options.time, self.options.iterations);
        let prepared = self.bench.prepare(Subject::Case(index))?;
        let (protocol, verdict) = self.bench.verify(&prepared)?;
        let rotating = self.bench.time(&prepared, false, seconds * 0.5, iterations)?;
        let resident = self.bench.time(&prepared, true, seconds * 0.1, iterations)?;
        let reference = self.reference(case.payload_bytes)?;
        Ok(Shown {
            name: case.name.clone(),
            source: show::source_name(self.source),
            protocol,
            payload_bytes: case.payload_bytes,
            blocks: prepared.send.layout.blocks_of(case.send.count).unwrap_or(u64::MAX),
            rotating,
            resident,
            memcpy: reference.memcpy,
            contiguous: reference.contiguous,
            verdict,
            rotation_bytes: prepared.send.places.reached_bytes()
                + prepared.recv.places.reached_bytes(),
        })
    }

    /// `memcpy` and a contiguous message of this many bytes, measured once each.
    fn reference(&mut self, payload_bytes: u64) -> Result<Reference, Failure> {
        if let Some(known) = self.references.get(&payload_bytes) {
            return Ok(*known);
        }
        let (seconds, iterations) = (self.options.time, self.options.iterations);
        let prepared = self.bench.prepare(Subject::Contiguous(payload_bytes))?;
        let contiguous = self.bench.time(&prepared, false, seconds * 0.3, iterations)?;
        let memcpy = self.bench.memcpy(&prepared, seconds * 0.1)?;
        let reference = Reference { memcpy, contiguous };
        self.references.insert(payload_bytes, reference);
        Ok(reference)
    }
}
