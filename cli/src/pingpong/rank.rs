//! One of the two processes: joins, agrees on the arenas' size, then measures or echoes.

use super::Pingpong;
use super::bench::{Bench, RunSpec};
use super::pass::{Effort, Pass};
use super::setting::Setting;
use super::show::PingpongResults;
use super::sizes::Sizes;
use crate::failure::Failure;
use crate::job;
use crate::memory::{Budget, Devices, Ends, Source};
use crate::selection::Chosen;
use crate::{Worlds, complain};
use gapless::World;
use gapless_layouts::Case;
use indicatif::{ProgressBar, ProgressStyle};
use std::process::ExitCode;

const SIZES: i32 = 4;

/// Joins the job, with the devices that this process's messages lie in. `budget` bounds rank 0's kernels.
pub(super) fn join(
    worlds: Worlds<'_>,
    all: &[Ends],
    budget: Budget,
) -> Result<(World, Devices), Failure> {
    job::join(worlds, |rank, _| all.iter().map(|ends| ends.of(rank)).collect(), budget)
}

/// Runs this process's part.
pub(super) fn run(
    worlds: Worlds<'_>,
    options: &Pingpong,
    chosen: Chosen,
) -> Result<ExitCode, Failure> {
    let Chosen { cases, refused } = chosen;
    let cases = cases.as_slice();
    let (world, mut devices) = join(worlds, &[options.space], options.budget())?;
    if world.size() != 2 {
        let ranks = world.size();
        return job::refuse(world, Failure::NotTwo { ranks });
    }
    // A processor each, so that no figure contains a migration; only now, because the world asks
    // how many there are to know how to wait. A device's driver and the threads that compare what
    // lies there have more to do than one processor can.
    let alone = !options.space.involve_device();
    let _pinned = alone.then(|| super::Pinned::to(usize::try_from(world.rank()).unwrap_or(0)));
    let result = if world.rank() == 0 {
        lead_all(options, cases, refused, &world, &mut devices).map(Some)
    } else {
        echo(options, cases, &world, &mut devices).map(|()| None)
    };
    match job::leave(world, result)? {
        Some(Some(outcome)) => outcome.finish(),
        Some(None) => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::FAILURE),
    }
}

/// Where each pass's host memory comes from; one pass will do if there is none.
fn sources(options: &Pingpong) -> &'static [Source] {
    let all = options.memory.sources();
    let only_devices = options.space.0.iter().all(|place| place.is_device());
    if only_devices { &all[..1] } else { all }
}

fn echo(
    options: &Pingpong,
    cases: &[Case],
    world: &World,
    devices: &mut Devices,
) -> Result<(), Failure> {
    let settings = vec![options.setting(); cases.len()];
    for &source in sources(options) {
        for _ in 0..if source.is_to_size() { cases.len() } else { 1 } {
            let spec = options.spec(cases, &settings, source);
            follow(world, devices, spec, &mut |_| {})?;
        }
    }
    Ok(())
}

/// Rank 1's part of a pass; `before` hears which case comes.
pub(super) fn follow(
    world: &World,
    devices: &mut Devices,
    mut spec: RunSpec<'_>,
    before: &mut dyn FnMut(usize),
) -> Result<(), Failure> {
    let mut words = [0u64; 2];
    world.comm().recv(&mut words, 0, SIZES)?;
    [spec.arena_bytes, spec.wanted_bytes] = words;
    Bench::new(world, devices, spec)?.obey(before)
}

/// Rank 0's end of a pass, while the other end runs.
pub(super) fn lead<'a>(
    world: &'a World,
    devices: &'a mut Devices,
    mut spec: RunSpec<'a>,
    sizes: &Sizes,
) -> Result<Bench<'a>, Failure> {
    (spec.arena_bytes, spec.wanted_bytes) = (sizes.arena_bytes, sizes.wanted_bytes());
    world.comm().send(&[spec.arena_bytes, spec.wanted_bytes], 1, SIZES)?;
    Bench::new(world, devices, spec)
}

/// Rank 0's part: says what is left out, then measures the others and shows each, and how far that has come.
fn lead_all<'a>(
    options: &'a Pingpong,
    cases: &[Case],
    refused: Vec<(String, Failure)>,
    world: &World,
    devices: &mut Devices,
) -> Result<PingpongResults<'a>, Failure> {
    // At once: whoever waits for the others may want to call again.
    let say = |(name, why): &(String, Failure)| complain(&format!("{name} is left out: {why}"));
    refused.iter().for_each(say);
    let (sizes, too_big) = Sizes::choose(cases, options.space, devices, options.buffers)?;
    let named = |(index, why): (usize, Failure)| (cases[index].name.clone(), why);
    let too_big: Vec<(String, Failure)> = too_big.into_iter().map(named).collect();
    too_big.iter().for_each(say);
    let left_out: Vec<(String, Failure)> = refused.into_iter().chain(too_big).collect();
    let is_left_out = |case: &Case| left_out.iter().any(|(name, _)| *name == case.name);
    let possible: Vec<bool> = cases.iter().map(|case| !is_left_out(case)).collect();
    let names = cases.iter().zip(&possible).filter(|(_, possible)| **possible);
    let count = names.clone().count();
    let names = names.map(|(case, _)| case.name.as_str());
    let mut outcome = PingpongResults::new(options, sizes, names, sources(options), left_out);
    let progress = ProgressBar::new((count * sources(options).len()) as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}");
    if let Ok(style) = style {
        progress.set_style(style);
    }
    let settings = vec![options.setting(); cases.len()];
    for &source in sources(options) {
        let passes = if source.is_to_size() {
            // A pass for each, the impossible ones too: the other process counts them.
            let each = cases.iter().enumerate();
            each.map(|(at, case)| (Sizes::to_size(case), at..at + 1)).collect()
        } else {
            vec![(sizes, 0..cases.len())]
        };
        for (sizes, those) in passes {
            let spec = options.spec(cases, &settings, source);
            let mut mine = those.filter(|&index| possible[index]).peekable();
            let sizes = if mine.peek().is_some() { sizes } else { Sizes::NOTHING };
            let mut pass = Pass::lead(world, devices, spec, &sizes)?;
            for index in mine {
                progress.set_message(cases[index].name.clone());
                let shown = pass.measure(index, Effort::full(options.time, options.iterations))?;
                progress.inc(1);
                progress.suspend(|| outcome.add(shown))?;
            }
            pass.dismiss()?;
        }
    }
    progress.finish_and_clear();
    Ok(outcome)
}

impl Pingpong {
    /// How messages are carried, as the options have it.
    fn setting(&self) -> Setting {
        Setting { force: self.protocol, fragment_bytes: self.fragment, depth: self.in_work }
    }

    /// A pass whose sizes are not known yet.
    fn spec<'a>(&self, cases: &'a [Case], settings: &'a [Setting], source: Source) -> RunSpec<'a> {
        let (ends, seed) = (self.space, self.seed);
        RunSpec { cases, settings, ends, source, arena_bytes: 0, wanted_bytes: 0, seed }
    }
}
