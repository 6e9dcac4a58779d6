//! Copies between buffers of the caller's and plain memory that ranks share, and within the latter.
//!
//! The first are granted by the caller of [`HyperQ::begin`](super::HyperQ::begin) until nothing is in flight. The other
//! is a leader's, kept by leases and mappings until nothing of this rank's is in flight, and no reference covers it:
//! other processes may touch it at the same time. Then bytes are arbitrary, as [`Device::copy`] and [`Engine::pack`]
//! allow.
//!
//! A GPU leader works on buffers of others, too. Their callers have granted them, and those ranks' calls end when the
//! GPU leader has said that nothing of it is in flight, or when the transport says that a GPU leader that is lost uses
//! them no more.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use gapless_engine::{Engine, EngineError, Reducer, Typed};
use gapless_mem::{Completion, Device, DeviceError, Region};

use crate::execute::call_buffers::{BufferBlocks, CallBuffers, Combine};
use crate::schedule::Buffer;

/// What moves bytes.
#[derive(Clone, Copy)]
pub(super) struct Mover<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) device: &'a Arc<dyn Device>,
    pub(super) buffers: &'a CallBuffers,
}

/// Ranges of packed streams, and where they go in a stream that they make together.
fn pieces(buffers: &CallBuffers, buffer: Buffer, range: Range<u64>) -> Vec<(&Typed, Range<u64>)> {
    let blocks = match buffer {
        Buffer::Send => &buffers.send,
        Buffer::Recv => &buffers.recv,
        Buffer::Scratch => &BufferBlocks::None,
    };
    let all = match blocks {
        BufferBlocks::None => &[],
        BufferBlocks::Whole(typed) => std::slice::from_ref(typed),
        BufferBlocks::Each(each) => &each[..],
    };
    let mut at = 0;
    let mut found = Vec::new();
    for typed in all {
        let (start, end) = (at, at + typed.packed_bytes());
        at = end;
        let part = range.start.max(start)..range.end.min(end);
        if part.start < part.end {
            found.push((typed, part.start - start..part.end - start));
        }
    }
    found
}

/// Plain memory that a range of a packed stream is, if it is.
fn flat(typed: &Typed, range: &Range<u64>) -> Option<Region> {
    typed.as_contiguous()?.sub(range.start, range.end - range.start).ok()
}

/// Plain memory that a range of a buffer's stream is, if it is.
pub(super) fn plain(buffers: &CallBuffers, buffer: Buffer, range: Range<u64>) -> Option<Region> {
    match &pieces(buffers, buffer, range)[..] {
        [(typed, range)] => flat(typed, range),
        _ => None,
    }
}

impl Mover<'_> {
    /// Starts to copy a range of a buffer's stream to shared memory of the same length.
    pub(super) fn put(
        &self,
        (buffer, range): (Buffer, Range<u64>),
        into: Region,
        work: &mut Works,
    ) -> Result<(), EngineError> {
        let mut at = 0;
        for (typed, range) in pieces(self.buffers, buffer, range) {
            let len = range.end - range.start;
            let part = into.sub(at, len)?;
            at += len;
            work.push(match flat(typed, &range) {
                // SAFETY: the buffer is granted, and nothing writes it meanwhile; the rest as the file says. They do
                // not overlap: shared memory is none of the caller's.
                Some(from) => unsafe { self.device.copy(part, from, &[]) }?,
                // SAFETY: as above.
                None => unsafe { self.engine.pack(typed, range, part, &[]) }?,
            });
        }
        Ok(())
    }

    /// Starts to copy shared memory to bytes of the receive buffer, from `to` of its stream on.
    pub(super) fn take(&self, from: Region, to: u64, work: &mut Works) -> Result<(), EngineError> {
        let mut at = 0;
        for (typed, range) in pieces(self.buffers, Buffer::Recv, to..to + from.len()) {
            let len = range.end - range.start;
            let part = from.sub(at, len)?;
            at += len;
            work.push(match flat(typed, &range) {
                // SAFETY: the buffer is granted for writes, and nothing else touches these bytes; the rest as in `put`.
                Some(into) => unsafe { self.device.copy(into, part, &[]) }?,
                // SAFETY: as above.
                None => unsafe { self.engine.unpack(part, typed, range, &[]) }?,
            });
        }
        Ok(())
    }

    /// As [`take`](Mover::take), of `len` bytes from `at` on that are there a second time, `apart` bytes behind: in two
    /// rows, each from one of the two, so that there is a gap between them.
    pub(super) fn take_in_rows(
        &self,
        (shared, at, apart): (Region, u64, u64),
        (to, len): (u64, u64),
        work: &mut Works,
    ) -> Result<(), EngineError> {
        let (first, mut at) = (at, at);
        for (typed, range) in pieces(self.buffers, Buffer::Recv, to..to + len) {
            let len = range.end - range.start;
            let into = flat(typed, &range);
            match into.filter(|_| len > 1) {
                Some(into) => {
                    let rows = |skipped: u64, width: u64, after: &[Completion]| {
                        let into = into.sub(skipped, 2 * width)?;
                        let from = shared.sub(at + skipped, apart + 2 * width)?;
                        let pitch = apart + width;
                        // SAFETY: as in `put`; the rows of what is received into are its two halves.
                        let copied = unsafe {
                            self.device.copy_2d(into, width, from, pitch, width, 2, after)
                        };
                        Ok::<_, EngineError>(copied?)
                    };
                    let even = rows(0, len / 2, &[])?;
                    work.push(even.clone());
                    if !len.is_multiple_of(2) {
                        // The last byte, with the one before, once that was written.
                        work.push(rows(len - 2, 1, std::slice::from_ref(&even))?);
                    }
                }
                None => self.take(shared.sub(at, len)?, to + (at - first), work)?,
            }
            at += len;
        }
        Ok(())
    }

    /// Starts to copy within shared memory.
    pub(super) fn hop(&self, into: Region, from: Region) -> Result<Completion, EngineError> {
        // SAFETY: both are shared memory, and different allocations; the rest as the file says.
        Ok(unsafe { self.device.copy(into, from, &[]) }?)
    }

    /// Starts to copy between plain buffers of ranks and shared memory, once all of `after` has ended.
    pub(super) fn across(
        &self,
        into: Region,
        from: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        // SAFETY: buffers are granted, and this rank alone writes what `into` is of them; the rest as the file says.
        // They do not overlap: buffers of a call do not, and the callers do not copy a block onto itself.
        Ok(unsafe { self.device.copy(into, from, after) }?)
    }

    /// As [`across`](Mover::across), of many pairs of where to and where from: in one go, if the engine can.
    pub(super) fn across_all(
        &self,
        pairs: &[(Region, Region)],
        after: &[Completion],
    ) -> Result<Vec<Completion>, EngineError> {
        let pairs: Vec<(Region, Region)> =
            pairs.iter().copied().filter(|(into, from)| into != from && !into.is_empty()).collect();
        // SAFETY: as in `across`; this rank starts all copies of a call, each into a place of its own.
        if let Some(done) = unsafe { self.engine.copy_all(&pairs, after) }? {
            return Ok(vec![done]);
        }
        let mut done = Works::default();
        for &(into, from) in &pairs {
            done.push(self.across(into, from, after)?);
        }
        Ok(done.into_all())
    }
}

/// Starts to combine what ranks gave, into the first of `all` that is `into`.
pub(super) fn reduce(
    reducer: &dyn Reducer,
    combine: &Combine,
    all: &[Region],
    into: Region,
) -> Result<Completion, EngineError> {
    let sources: Vec<Typed> =
        all.iter().map(|region| combine.elements(*region)).collect::<Result<_, _>>()?;
    let target = combine.elements(into)?;
    let range = 0..target.packed_bytes();
    // SAFETY: shared memory, as the file says; the target is one of the sources, described in the same way, and apart
    // from the others.
    unsafe { reducer.reduce_into(combine.op(), &sources, &target, range, &[]) }
}

/// Buffers that a kernel combines at once, where they are plain.
const AT_ONCE: usize = 8;

/// As [`reduce`], of plain buffers of ranks and shared memory, into one of them or another one. Kernels take a few at a
/// time; the result is the same.
pub(super) fn reduce_all(
    reducer: &dyn Reducer,
    combine: &Combine,
    all: &[Region],
    into: Region,
) -> Result<Completion, EngineError> {
    let element = |region: &Region| combine.elements(*region);
    let target = element(&into)?;
    let range = 0..target.packed_bytes();
    let mut left: Vec<Typed> = all.iter().map(element).collect::<Result<_, _>>()?;
    // What is combined stands in the target, unless that is still to be read.
    let at_once = match all.iter().position(|region| *region == into) {
        Some(1..) => left.len(),
        _ => AT_ONCE,
    };
    let mut after = Vec::new();
    loop {
        let rest = left.split_off(left.len().min(at_once));
        // SAFETY: as in `reduce`, and as the file says.
        let begun =
            unsafe { reducer.reduce_into(combine.op(), &left, &target, range.clone(), &after) };
        let done = begun.inspect_err(|_| {
            // Nobody else knows of what has begun, and it still writes the target.
            after.iter().for_each(Completion::drain);
        })?;
        if rest.is_empty() {
            return Ok(done);
        }
        after = vec![done];
        left = std::iter::once(target.clone()).chain(rest).collect();
    }
}

/// Work in the order in which it was started.
#[derive(Debug, Default)]
pub(super) struct Works(VecDeque<Completion>);

impl Works {
    pub(super) fn push(&mut self, work: Completion) {
        self.0.push_back(work);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it, for whoever waits for it instead.
    fn into_all(mut self) -> Vec<Completion> {
        self.0.drain(..).collect()
    }

    /// Whether all of it is over.
    ///
    /// # Errors
    /// The first that failed; it is over, and the others are still there.
    pub(super) fn poll(&mut self) -> Result<bool, DeviceError> {
        while let Some(first) = self.0.front() {
            match first.poll() {
                Ok(true) => drop(self.0.pop_front()),
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.0.pop_front();
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// As [`poll`](Works::poll), of work whose result does not matter.
    pub(super) fn settle(&mut self) -> bool {
        loop {
            if let Ok(over) = self.poll() {
                return over;
            }
        }
    }

    /// Waits for all of it.
    pub(super) fn drain(&mut self) {
        self.0.drain(..).for_each(|work| work.drain());
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.drain();
    }
}

/// A copy between staging memory and the buffer: of these ranks' chunk, or of so many pieces of the mirror.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) ranks: Range<usize>,
    pub(super) number: u32,
}

/// Copies of one direction, in their order.
#[derive(Debug, Default)]
pub(super) struct Hops {
    hops: VecDeque<Hop>,
    works: VecDeque<Completion>,
}

impl Hops {
    pub(super) fn push(&mut self, hop: Hop, work: Completion) {
        self.hops.push_back(hop);
        self.works.push_back(work);
    }

    /// The first, if it is over.
    pub(super) fn pop(&mut self) -> Result<Option<Hop>, DeviceError> {
        let Some(first) = self.works.front() else { return Ok(None) };
        let over = first.poll();
        if over == Ok(false) {
            return Ok(None);
        }
        self.works.pop_front();
        let hop = self.hops.pop_front();
        over.map(|_| hop)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Whether all are over, well or not.
    pub(super) fn settle(&mut self) -> bool {
        while let Ok(Some(_)) | Err(_) = self.pop() {}
        self.is_empty()
    }
}

impl Drop for Hops {
    fn drop(&mut self) {
        self.works.drain(..).for_each(|work| work.drain());
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a reducer that fails")]
mod tests {
    use std::any::Any;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use gapless_dtype::{Datatype, Layout, Primitive};
    use gapless_engine::{Op, ReduceOp};
    use gapless_mem::{Pending, Space};

    use super::*;
    use crate::execute::memory::Memory;

    /// Over when it has been asked some times.
    #[derive(Default)]
    struct Slow(AtomicU32);

    const ASKED: u32 = 5;

    // SAFETY: nothing is done, before or after.
    unsafe impl Pending for Slow {
        fn poll(&self) -> Result<bool, DeviceError> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed) >= ASKED)
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// Begins once, and fails from then on.
    #[derive(Default)]
    struct Once(Mutex<Option<Arc<Slow>>>);

    // SAFETY: it touches no memory.
    unsafe impl Reducer for Once {
        fn supports(&self, _: &Op, _: &Layout) -> bool {
            true
        }

        fn serves(&self, _: Space) -> bool {
            true
        }

        unsafe fn reduce_into(
            &self,
            _: &Op,
            _: &[Typed],
            _: &Typed,
            _: Range<u64>,
            _: &[Completion],
        ) -> Result<Completion, EngineError> {
            let mut begun = self.0.lock().unwrap();
            if begun.is_some() {
                return Err(EngineError::NoSource);
            }
            Ok(Completion::Pending(begun.insert(Arc::default()).clone()))
        }
    }

    #[test]
    fn what_has_begun_is_over_when_the_rest_cannot_begin() {
        let layout = Datatype::from(Primitive::Double).commit().unwrap();
        let combine = Combine::new(&Op::Predefined(ReduceOp::Sum), &layout).unwrap();
        let memory = Memory::new(8 * (AT_ONCE as u64 + 1)).unwrap();
        let all: Vec<Region> =
            (0..=AT_ONCE as u64).map(|at| memory.region().sub(8 * at, 8).unwrap()).collect();
        let reducer = Once::default();
        let failed = reduce_all(&reducer, &combine, &all, all[0]);
        assert!(matches!(failed, Err(EngineError::NoSource)), "{failed:?}");
        let begun = reducer.0.lock().unwrap().clone().unwrap();
        assert!(begun.0.load(Ordering::Relaxed) > ASKED, "it is not over");
    }
}
