//! Several GPUs at once: half of the processes put into pages of as many others, and then of half as many, as where a
//! model is cut among fewer GPUs there: the pages of two sources are halves of those of their target.

use std::cell::Cell;

use gapless::{Datatype, DeviceBuf, Lock, Primitive, Space, Window, World};
use gapless_report::{Mark, Row};

use super::{LISTS, Way, Work, content, fill};
use crate::check::same;
use crate::error::Failure;
use crate::experiment::{Common, summary};
use crate::gpu::{GpusOfRanks, copied, paged};
use crate::one_gpu::timing::in_turn;
use crate::random::Random;

/// What a source puts, and where.
struct Source {
    /// Its pages, which are parts of the target's.
    work: Work,
    target: u32,
    /// Where its part of a page begins.
    at: u64,
    pool: DeviceBuf,
    /// Its lists, and the target's.
    lists: [Vec<Vec<u32>>; 2],
    table: DeviceBuf,
}

impl Source {
    fn new(world: &World, space: Space, whole: &Work, targets: u32) -> Result<Source, Failure> {
        let (me, sources) = (world.rank(), world.size() / 2);
        let parts = sources / targets;
        let (target, part) = (sources + me / parts, u64::from(me % parts));
        let page = whole.page / u64::from(parts);
        let work = Work { page, seed: whole.seed + u64::from(me), ..*whole };
        let theirs = Work { seed: whole.seed + u64::from(target), ..work };
        let lists = [(work, 0), (theirs, 1)];
        let lists = lists.map(|(work, end)| (0..LISTS).map(|number| work.list(number, end)).collect::<Vec<_>>());
        let words: Vec<u8> = lists.iter().flatten().flatten().flat_map(|index| index.to_ne_bytes()).collect();
        let mut table = world.alloc_device(space, words.len() as u64)?;
        copied::down(&mut table, &words)?;
        let mut pool = world.alloc_device(space, work.pool() * page)?;
        fill(&mut pool, &work)?;
        Ok(Source { work, target, at: part * page, pool, lists, table })
    }

    fn put(&self, window: &Window<u8, DeviceBuf>, stride: u64, number: u64) -> Result<(), Failure> {
        let page = Datatype::contiguous(self.work.page, &Primitive::Byte.into())?.commit()?;
        let len = self.work.count;
        let words = |end: u64| {
            let start = (end * LISTS + number % LISTS) * len;
            start..start + len
        };
        let view = self.pool.pages_at(0, &page, self.work.page, self.table.indices_u32(words(0))?)?;
        paged::put(window, &view, (self.target, self.at), (&page, stride), (&self.table, words(1)))?;
        Ok(())
    }

    /// Compares some pages of the last put.
    fn check(&self, window: &Window<u8, DeviceBuf>, stride: u64, number: u64) -> Result<(), Failure> {
        let list = usize::try_from(number % LISTS).unwrap_or(0);
        let mut random = Random::new(self.work.seed);
        for _ in 0..200 {
            let sampled = usize::try_from(random.below(self.work.count)).unwrap_or(0);
            let (from, to) = (self.lists[0][list][sampled], self.lists[1][list][sampled]);
            let right = content(&self.work, from.into());
            let mut found = vec![0u8; right.len()];
            window.get(&mut found, self.target, u64::from(to) * stride + self.at)?;
            same(&found, &right).map_err(|wrong| Failure::Wrong { case: self.work.case(), op: "pages", wrong })?;
        }
        Ok(())
    }
}

/// Rows of one length of pages, the same at all ranks.
pub(super) fn measure(
    world: &World,
    common: &Common,
    whole: &Work,
    (gpus, devices): (&GpusOfRanks, u32),
) -> Result<Vec<Row>, Failure> {
    let (comm, me, sources) = (world.comm(), world.rank(), world.size() / 2);
    let gpu = |rank| Space::Cuda { device: gpus.of(rank, devices) };
    let mut rows = Vec::new();
    let fits = |targets: &u32| *targets > 0 && sources.is_multiple_of(*targets);
    for targets in [sources, sources / 2].into_iter().filter(fits) {
        let parts = u64::from(sources / targets);
        if !whole.page.is_multiple_of(parts) {
            continue;
        }
        let is_target = (sources..sources + targets).contains(&me);
        let len = if is_target { whole.pool() * whole.page } else { 1 };
        let len = usize::try_from(len).unwrap_or(0);
        let mut window: Window<u8, DeviceBuf> = comm.window().allocate_on(gpu(me), len)?;
        let source = (me < sources).then(|| Source::new(world, gpu(me), whole, targets)).transpose()?;
        let mut far = match &source {
            Some(source) => Some(world.alloc_device(gpu(source.target), source.work.bytes())?),
            None => None,
        };
        if let Some(source) = &source {
            window.lock(source.target, Lock::Shared)?;
        }
        let number = Cell::new(0);
        let mut once = || {
            number.set(number.get() + 1);
            source.as_ref().map_or(Ok(()), |source| source.put(&window, whole.page, number.get()))
        };
        let mut copy = || match (&source, &mut far) {
            (Some(source), Some(far)) => Ok(copied::between(far, &source.pool, source.work.bytes())?),
            _ => Ok(()),
        };
        let [time, copy] = in_turn(comm, common.seconds(), [&mut once, &mut copy])?;
        if let Some(source) = &source {
            source.check(&window, whole.page, number.get())?;
            window.unlock(source.target)?;
        }
        comm.barrier()?;
        window.free()?;
        let bytes = u64::from(sources) * whole.bytes() / parts;
        let case = format!("{sources} to {targets}, {} each", whole.case());
        let (time, copy) = (summary(&*case, &time)?, summary("cudaMemcpyPeer", &copy)?);
        let row = Row::new(case, "put", gpus.space(world.size(), devices), Way::OnDevice.name(), bytes, time);
        let row = row.verified(true).against("cudaMemcpyPeer", copy).with("processes", world.size());
        rows.push(row.mark(Mark::at_least("cudaMemcpyPeer", 0.90, copy.median / time.median)));
    }
    Ok(rows)
}
