//! The engine of host memory with threads that help to pack and unpack long pieces: one processor copies more slowly than
//! a bus to a GPU, and several keep up.

use crate::host::{check_length, wait_all};
use crate::thread_pool::{ThreadPool, Work};
use crate::{Engine, EngineError, HostEngine, Typed};
use gapless_mem::{Completion, Region, Space};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::OnceLock;

/// The most threads of an engine: with the caller they take what a bus takes.
const THREADS_MAX: usize = 4;

/// Pieces of fewer bytes are the caller's alone: telling a thread takes microseconds.
const SHARED_BYTES_MIN: u64 = 256 << 10;

/// Bytes of a part at least: long beside what taking one costs, and short enough that all end at about the same time.
const PART_BYTES_MIN: u64 = 64 << 10;

/// [`HostEngine`] with threads for long pieces. They start with the first such piece, and end with the engine. Like
/// `HostEngine`, it is done when a call returns.
#[derive(Debug)]
pub struct ThreadedHostEngine {
    threads: NonZeroUsize,
    pool: OnceLock<ThreadPool>,
}

impl ThreadedHostEngine {
    /// With so many threads, 4 at most.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> ThreadedHostEngine {
        let most = NonZeroUsize::new(THREADS_MAX).unwrap_or(NonZeroUsize::MIN);
        ThreadedHostEngine { threads: threads.min(most), pool: OnceLock::new() }
    }

    /// How many threads it has, which are fewer than were asked for if the system gave no more; before the first long
    /// piece, how many it will ask for.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.get().map_or(self.threads.get(), ThreadPool::threads)
    }

    /// How many threads each of so many processes of a host has that has so many processors: at most 4, of the
    /// processors that are left if each process uses one itself. None if there are as many processes as processors.
    #[must_use]
    pub fn threads_for(processes: usize, processors: usize) -> usize {
        let each = processors / processes.max(1);
        each.saturating_sub(1).min(THREADS_MAX)
    }

    /// Bytes of the parts of so many bytes of a layout. With gaps there is one for each thread and the caller: columns
    /// of a matrix, say, share cache lines, so that short parts would read each of these more than once.
    fn part_bytes(&self, typed: &Typed, bytes: u64) -> u64 {
        if typed.as_contiguous().is_some() {
            return PART_BYTES_MIN;
        }
        bytes.div_ceil(self.threads.get() as u64 + 1).next_multiple_of(64).max(PART_BYTES_MIN)
    }

    /// Does `work` with the parts of a range of so many bytes of `typed`: by their places in the range. `None`, with
    /// nothing done, while the threads work for another caller.
    ///
    /// `work` is called before this returns or panics, and not after it.
    fn share(
        &self,
        (typed, bytes): (&Typed, u64),
        work: impl Fn(Range<u64>) -> Result<(), EngineError> + Send + Sync + 'static,
    ) -> Option<Result<(), EngineError>> {
        let pool = self.pool.get_or_init(|| ThreadPool::start(self.threads.get()));
        let step = self.part_bytes(typed, bytes);
        let work: Work = Box::new(move |part| {
            let start = part * step;
            work(start..bytes.min(start + step))
        });
        pool.run(bytes.div_ceil(step), work)
    }
}

/// A part of a range, by its place in that.
fn within(range: &Range<u64>, part: &Range<u64>) -> Range<u64> {
    range.start + part.start..range.start + part.end
}

// SAFETY: the numbers are those of the contract.
// 1. Each part is a call of `HostEngine`, with a part of the range and as much of the packed region.
// 2. All of them come after `wait_all`, and have ended when `share` returns.
// 3. `check_length` and `check_range` come first, and `HostEngine` checks each part.
unsafe impl Engine for ThreadedHostEngine {
    fn name(&self) -> &'static str {
        HostEngine.name()
    }

    fn serves(&self, space: Space) -> bool {
        HostEngine.serves(space)
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        if dst.len() < SHARED_BYTES_MIN {
            // SAFETY: the caller's promise.
            return unsafe { HostEngine.pack(src, range, dst, after) };
        }
        check_length(dst, &range)?;
        src.check_range(&range)?;
        wait_all(after)?;
        let (typed, all) = (src.clone(), range.clone());
        let work = move |part: Range<u64>| {
            let into = dst.sub(part.start, part.end - part.start)?;
            // SAFETY: the caller's promise, until this call returns; `share` calls this before. Parts do not overlap.
            unsafe { HostEngine.pack(&typed, within(&all, &part), into, &[]) }.map(drop)
        };
        match self.share((src, dst.len()), work) {
            Some(result) => result.map(|()| Completion::Ready),
            // SAFETY: the caller's promise.
            None => unsafe { HostEngine.pack(src, range, dst, &[]) },
        }
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // Of bytes that are named twice it would depend on the threads which win. Not all that may be so are refused.
        let apart = || dst.as_pages().is_none() && dst.layout().is_apart(dst.count());
        if src.len() < SHARED_BYTES_MIN || !apart() {
            // SAFETY: the caller's promise.
            return unsafe { HostEngine.unpack(src, dst, range, after) };
        }
        check_length(src, &range)?;
        dst.check_range(&range)?;
        wait_all(after)?;
        let (typed, all) = (dst.clone(), range.clone());
        let work = move |part: Range<u64>| {
            let from = src.sub(part.start, part.end - part.start)?;
            // SAFETY: the caller's promise, until this call returns; `share` calls this before. Parts write different
            // bytes, since the layout names none twice.
            unsafe { HostEngine.unpack(from, &typed, within(&all, &part), &[]) }.map(drop)
        };
        match self.share((dst, src.len()), work) {
            Some(result) => result.map(|()| Completion::Ready),
            // SAFETY: the caller's promise.
            None => unsafe { HostEngine.unpack(src, dst, range, &[]) },
        }
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { HostEngine.transfer(src, dst, range, after) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Layout, Primitive};

    fn engine() -> ThreadedHostEngine {
        ThreadedHostEngine::new(NonZeroUsize::MIN.saturating_add(1))
    }

    fn doubles(count: u64, block: u64, stride: i64) -> Layout {
        Datatype::vector(count, block, stride, &Primitive::Double.into()).unwrap().commit().unwrap()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u64).map(|at| at.wrapping_mul(0x9E37_79B9).to_le_bytes()[2]).collect()
    }

    /// Ranges that begin and end within elements, of all lengths around those of parts, of dense and sparse layouts.
    #[test]
    fn it_packs_and_unpacks_as_the_host_engine_does() {
        let engine = engine();
        let columns = Datatype::resized(0, 8, &doubles_of(300, 400)).unwrap().commit().unwrap();
        for (layout, count, bytes) in [
            (doubles(1 << 17, 1, 1), 1, 1 << 20),
            (doubles(40_000, 3, 7), 1, 40_000 * 7 * 8),
            (columns, 400, 300 * 400 * 8),
        ] {
            let source = noise(bytes);
            let from = Typed::new(Region::of(&source), 0, &layout, count).unwrap();
            let all = from.packed_bytes();
            for range in [0..all, 1..all, 0..SHARED_BYTES_MIN, 3..SHARED_BYTES_MIN + 2, 5..all - 7]
            {
                let len = usize::try_from(range.end - range.start).unwrap();
                let mut packed = [vec![0; len], vec![0xEE; len]];
                let mut targets = [vec![1; bytes], vec![1; bytes]];
                let engines: [&dyn Engine; 2] = [&HostEngine, &engine];
                for ((engine, packed), target) in engines.iter().zip(&mut packed).zip(&mut targets)
                {
                    let to = Typed::new(Region::of_mut(target), 0, &layout, count).unwrap();
                    // SAFETY: the buffers live through the call and do not overlap.
                    let done =
                        unsafe { engine.pack(&from, range.clone(), Region::of_mut(packed), &[]) };
                    assert!(matches!(done, Ok(Completion::Ready)));
                    // SAFETY: as above.
                    let done =
                        unsafe { engine.unpack(Region::of(packed), &to, range.clone(), &[]) };
                    assert!(matches!(done, Ok(Completion::Ready)));
                }
                assert!(packed[0] == packed[1] && targets[0] == targets[1], "{range:?}");
            }
        }
        assert!(engine.pool.get().is_some());
    }

    fn doubles_of(count: u64, stride: i64) -> Datatype {
        Datatype::vector(count, 1, stride, &Primitive::Double.into()).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_refused_before_anything_is_touched() {
        let (engine, len) = (engine(), 1usize << 20);
        let (source, mut packed) = (noise(len), vec![7; len]);
        let from = Typed::contiguous(Region::of(&source));
        for range in [0..1 << 19, 1..(1 << 20) + 1] {
            // SAFETY: the buffers live through the call and do not overlap.
            let refused = unsafe { engine.pack(&from, range, Region::of_mut(&mut packed), &[]) };
            assert!(refused.is_err());
        }
        assert!(packed.iter().all(|byte| *byte == 7) && engine.pool.get().is_none());
    }

    #[test]
    fn short_pieces_and_bytes_that_are_named_twice_start_no_thread() {
        let engine = engine();
        let source = noise(1 << 20);
        let mut target = vec![0; 8];
        let again = doubles(1 << 17, 1, 0);
        let to = Typed::new(Region::of_mut(&mut target), 0, &again, 1).unwrap();
        // SAFETY: the buffers live through the call and do not overlap.
        unsafe { engine.unpack(Region::of(&source), &to, 0..1 << 20, &[]) }.unwrap();
        assert_eq!(target, source[source.len() - 8..], "the last element wins");
        // So many runs that nobody compares them: a comb on another's teeth.
        let [narrow, wide] = [2, 4]
            .map(|stride| Datatype::vector(1 << 16, 1, stride, &Primitive::Double.into()).unwrap());
        let both = Datatype::structure(&[1, 1], &[0, 0], &[narrow, wide]).unwrap();
        let both = both.commit().unwrap();
        let mut target = vec![0; 4 << 19];
        let to = Typed::new(Region::of_mut(&mut target), 0, &both, 1).unwrap();
        // SAFETY: as above.
        unsafe { engine.unpack(Region::of(&source), &to, 0..1 << 20, &[]) }.unwrap();
        let won = target.chunks(32).map(|row| &row[..8]);
        assert!(won.eq(source[1 << 19..].chunks(8)), "the last ones win");
        let mut packed = vec![0; 4096];
        let from = Typed::contiguous(Region::of(&source));
        // SAFETY: as above.
        unsafe { engine.pack(&from, 0..4096, Region::of_mut(&mut packed), &[]) }.unwrap();
        assert!(packed == source[..4096] && engine.pool.get().is_none());
    }

    #[test]
    fn threads_are_those_that_processes_leave_over() {
        for ((processes, processors), threads) in [
            ((1, 1), 0),
            ((1, 2), 1),
            ((2, 2), 0),
            ((2, 3), 0),
            ((2, 4), 1),
            ((2, 16), 4),
            ((4, 16), 3),
            ((16, 16), 0),
            ((17, 16), 0),
            ((0, 64), 4),
        ] {
            let found = ThreadedHostEngine::threads_for(processes, processors);
            assert_eq!(found, threads, "{processes} on {processors}");
        }
    }
}
