//! Copies between buffers of the caller's and plain memory that ranks share, and within the latter.
//!
//! The first are granted by the caller of [`HyperQ::begin`](super::HyperQ::begin) until nothing is in flight. The other is
//! a leader's, kept by leases and mappings until nothing of this rank's is in flight, and no reference covers it: other
//! processes may touch it at the same time. Then bytes are arbitrary, as [`Device::copy`] and [`Engine::pack`] allow.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use gapless_engine::{Engine, EngineError, Reducer, Typed};
use gapless_mem::{Completion, Device, DeviceError, Region};

use crate::execute::rows::{Blocks, Combine, Rows};
use crate::schedule::Buffer;

/// What moves bytes.
pub(super) struct Mover<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) device: &'a Arc<dyn Device>,
    pub(super) rows: &'a Rows,
}

/// Ranges of packed streams, and where they go in a stream that they make together.
fn pieces(rows: &Rows, buffer: Buffer, range: Range<u64>) -> Vec<(&Typed, Range<u64>)> {
    let blocks = match buffer {
        Buffer::Send => &rows.send,
        Buffer::Recv => &rows.recv,
        Buffer::Scratch => &Blocks::None,
    };
    let all = match blocks {
        Blocks::None => &[],
        Blocks::Whole(typed) => std::slice::from_ref(typed),
        Blocks::Each(each) => &each[..],
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

impl Mover<'_> {
    /// Starts to copy a range of a buffer's stream to shared memory of the same length.
    pub(super) fn put(
        &self,
        (buffer, range): (Buffer, Range<u64>),
        into: Region,
        work: &mut Works,
    ) -> Result<(), EngineError> {
        let mut at = 0;
        for (typed, range) in pieces(self.rows, buffer, range) {
            let len = range.end - range.start;
            let part = into.sub(at, len)?;
            at += len;
            work.push(match flat(typed, &range) {
                // SAFETY: the buffer is granted, and nothing writes it meanwhile; the rest as the file says. They do not
                // overlap: shared memory is none of the caller's.
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
        for (typed, range) in pieces(self.rows, Buffer::Recv, to..to + from.len()) {
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

    /// Starts to copy within shared memory.
    pub(super) fn hop(&self, into: Region, from: Region) -> Result<Completion, EngineError> {
        // SAFETY: both are shared memory, and different allocations; the rest as the file says.
        Ok(unsafe { self.device.copy(into, from, &[]) }?)
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
