//! The memory of a window at one rank, and what operations do there: the same functions serve ranks that map it and the
//! owner's progress engine, so both ways give the same bytes.

use crate::arithmetic::{Arithmetic, read, write};
use crate::{Fault, Header};
use gapless_dtype::{Layout, Run};
use gapless_engine::Typed;
use gapless_mem::{Atomics, Region, Space};
use std::ops::Range;

/// Runs of a layout that are looked at together.
const RUNS: usize = 64;

/// The place of an operation in a window of `bytes` bytes: displacement 0 of the layout is at byte `origin`.
///
/// The description has no address: it is checked, and cut into runs, like any buffer.
pub(crate) fn place(
    bytes: u64,
    origin: u64,
    layout: Option<&Layout>,
    count: u64,
) -> Result<Typed, gapless_engine::EngineError> {
    let window = Region::new(Space::Host, 0, 0, bytes);
    match layout {
        Some(layout) => Typed::new(window, origin, layout, count),
        None => Ok(Typed::contiguous(window.sub(origin, count)?)),
    }
}

/// Calls `visit` with each run of `range` of the packed stream: where it begins in the window, where in the range, and
/// how long it is.
pub(crate) fn for_each_run(
    target: &Typed,
    range: Range<u64>,
    mut visit: impl FnMut(u64, usize, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let length = |len: u64| usize::try_from(len).map_err(|_| Fault::Outside);
    target.check_range(&range).map_err(|_| Fault::Outside)?;
    let start = target.region().offset();
    if let Some(stretch) = target.stretch() {
        let len = length(range.end - range.start)?;
        return if len == 0 { Ok(()) } else { visit(start + stretch + range.start, 0, len) };
    }
    let mut convertor = target.convertor().map_err(|_| Fault::Layout)?;
    convertor.seek(range.start).map_err(|_| Fault::Outside)?;
    let mut runs = [Run { displacement: 0, len: 0 }; RUNS];
    let mut done = 0;
    while done < range.end - range.start {
        let (used, bytes) = convertor.iov(&mut runs, range.end - range.start - done);
        if used == 0 {
            return Err(Fault::Layout);
        }
        let mut at = done;
        for run in &runs[..used] {
            let offset = (start + target.origin()).checked_add_signed(run.displacement);
            visit(offset.ok_or(Fault::Outside)?, length(at)?, length(run.len)?)?;
            at += run.len;
        }
        done += bytes;
    }
    Ok(())
}

/// Memory of a window, and its lock.
#[derive(Clone, Debug)]
pub struct Exposure {
    pub(crate) memory: Atomics,
    pub(crate) header: Header,
}

impl Exposure {
    /// Memory of which this process knows that it is a window's: its own, or a peer's that it has mapped.
    #[must_use]
    pub fn new(memory: Atomics, header: Header) -> Exposure {
        Exposure { memory, header }
    }
}

/// Writes `bytes` to `range` of the target.
#[inline]
pub(crate) fn store(
    memory: &Atomics,
    target: &Typed,
    range: Range<u64>,
    bytes: &[u8],
) -> Result<(), Fault> {
    for_each_run(target, range, |offset, at, len| {
        memory.store(offset, &bytes[at..at + len]).map_err(|_| Fault::Outside)
    })
}

/// Reads `range` of the target.
#[inline]
pub(crate) fn load(
    memory: &Atomics,
    target: &Typed,
    range: Range<u64>,
    into: &mut [u8],
) -> Result<(), Fault> {
    for_each_run(target, range, |offset, at, len| {
        memory.load(offset, &mut into[at..at + len]).map_err(|_| Fault::Outside)
    })
}

/// Whether all elements of `range` lie at multiples of their length.
fn are_aligned(
    memory: &Atomics,
    target: &Typed,
    range: &Range<u64>,
    width: usize,
) -> Result<(), Fault> {
    for_each_run(target, range.clone(), |offset, _, len| {
        let fits = memory.misalignment(offset, width as u64) == 0 && len.is_multiple_of(width);
        if fits { Ok(()) } else { Err(Fault::Misaligned) }
    })
}

/// Elements that are changed atomically, each by itself. `operand` has the packed elements, or nothing for an operation
/// that has none; `result`, if there is one, gets what was there.
pub(crate) fn accumulate_atomic(
    memory: &Atomics,
    target: &Typed,
    range: Range<u64>,
    (arithmetic, operand): (&Arithmetic, &[u8]),
    mut result: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let width = arithmetic.width();
    are_aligned(memory, target, &range, width)?;
    for_each_run(target, range, |offset, at, len| {
        let mut offset = offset;
        for at in (at..at + len).step_by(width) {
            let given = operand.get(at..at + width).map_or(0, read);
            let old = memory.update(offset, width, |old| arithmetic.change(old, given));
            let old = old.map_err(|_| Fault::Outside)?;
            if let Some(result) = &mut result {
                write(old, &mut result[at..at + width]);
            }
            offset += width as u64;
        }
        Ok(())
    })
}

/// The same for elements that the processor cannot change atomically; the caller has the mutex.
pub(crate) fn accumulate_alone(
    memory: &Atomics,
    target: &Typed,
    range: Range<u64>,
    (arithmetic, operand): (&Arithmetic, &[u8]),
    result: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let len = usize::try_from(range.end - range.start).map_err(|_| Fault::Outside)?;
    let mut old = vec![0; len];
    load(memory, target, range.clone(), &mut old)?;
    if let Some(result) = result {
        result.copy_from_slice(&old);
    }
    if arithmetic.op() == gapless_engine::ReduceOp::NoOp {
        return Ok(());
    }
    let new = arithmetic.combine(old, operand);
    store(memory, target, range, &new)
}

/// Replaces one element by `swap` if it is `compare`, bit by bit; gives what was there.
pub(crate) fn compare_swap(
    memory: &Atomics,
    offset: u64,
    width: usize,
    (compare, swap): (u64, u64),
) -> Result<u64, Fault> {
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(Fault::Elements);
    }
    if memory.misalignment(offset, width as u64) != 0 {
        return Err(Fault::Misaligned);
    }
    let change = |old: u64| (old == compare).then_some(swap);
    memory.update(offset, width, change).map_err(|_| Fault::Outside)
}
