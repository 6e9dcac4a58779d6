//! What operations do with the bytes of a window: the same functions serve ranks that map its memory and the owner's
//! progress engine, so both ways give the same bytes.

use crate::arithmetic::{Arithmetic, read, write};
use crate::error::Fault;
use crate::header::Stripes;
use gapless_dtype::{Dim, Layout, Run, Shape};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Atomics, Region, Space};
use std::cell::RefCell;
use std::ops::Range;

/// Runs of a layout that are looked at together.
const RUNS: usize = 64;
/// Bytes of elements with gaps between them that are changed at once.
pub(crate) const PART: u64 = 4 << 10;

/// Bytes that lie at offsets.
pub(crate) trait WindowBytes {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault>;

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault>;

    /// As [`Atomics::misalignment`].
    fn misalignment(&self, offset: u64, alignment: u64) -> u64;

    /// It, if it is one piece.
    fn one(&self) -> Option<&Atomics>;
}

impl WindowBytes for Atomics {
    #[inline]
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        Atomics::load(self, offset, into).map_err(|_| Fault::Outside)
    }

    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        Atomics::store(self, offset, bytes).map_err(|_| Fault::Outside)
    }

    #[inline]
    fn misalignment(&self, offset: u64, alignment: u64) -> u64 {
        Atomics::misalignment(self, offset, alignment)
    }

    #[inline]
    fn one(&self) -> Option<&Atomics> {
        Some(self)
    }
}

/// A window of so many bytes, as a description without an address.
pub(crate) fn window(bytes: u64) -> Region {
    Region::new(Space::Host, 0, 0, bytes)
}

/// The place of an operation in a window of `bytes` bytes: displacement 0 of the layout is at byte `origin`.
///
/// The description has no address: it is checked, and cut into runs, like any buffer.
pub(crate) fn place(
    bytes: u64,
    origin: u64,
    layout: Option<&Layout>,
    count: u64,
) -> Result<Typed, gapless_engine::EngineError> {
    let window = window(bytes);
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
    if let Some(first) = target.contiguous_start() {
        let len = length(range.end - range.start)?;
        return if len == 0 { Ok(()) } else { visit(start + first + range.start, 0, len) };
    }
    if let Shape::Strided { displacement, len, dims } = target.layout().shape()
        && let [Dim { stride, .. }] = dims[..]
        && target.count() == 1
        && target.as_pages().is_none()
        && *len > 0
    {
        // Like this are rows and columns; a convertor takes longer.
        let first = i128::from(start + target.origin()) + i128::from(*displacement);
        let (mut at, mut number) = (range.start, range.start / len);
        let mut inside = range.start % len;
        while at < range.end {
            let run = first + i128::from(number) * i128::from(stride) + i128::from(inside);
            let now = (len - inside).min(range.end - at);
            let offset = u64::try_from(run).map_err(|_| Fault::Outside)?;
            visit(offset, length(at - range.start)?, length(now)?)?;
            (at, number, inside) = (at + now, number + 1, 0);
        }
        return Ok(());
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

/// Writes `bytes` to `range` of the target.
#[inline]
pub(crate) fn store(
    memory: &impl WindowBytes,
    target: &Typed,
    range: Range<u64>,
    bytes: &[u8],
) -> Result<(), Fault> {
    for_each_run(target, range, |offset, at, len| memory.store(offset, &bytes[at..at + len]))
}

/// Reads `range` of the target.
#[inline]
pub(crate) fn load(
    memory: &impl WindowBytes,
    target: &Typed,
    range: Range<u64>,
    into: &mut [u8],
) -> Result<(), Fault> {
    for_each_run(target, range, |offset, at, len| memory.load(offset, &mut into[at..at + len]))
}

/// The stripes that the elements of `range` lie in; those that are atomic must be aligned. `misalignment`: of the
/// window's first byte, modulo 8 or more.
#[inline]
pub(crate) fn stripes(
    misalignment: u64,
    target: &Typed,
    range: Range<u64>,
    arithmetic: &Arithmetic,
) -> Result<Stripes, Fault> {
    let mut all = Stripes::default();
    let width = arithmetic.width();
    for_each_run(target, range, |offset, _, len| {
        let aligned = misalignment.wrapping_add(offset).is_multiple_of(width as u64);
        if !(aligned && len.is_multiple_of(width)) && arithmetic.is_atomic() {
            return Err(Fault::Misaligned);
        }
        all = all.with(offset, len);
        Ok(())
    })?;
    Ok(all)
}

thread_local! {
    /// What elements were.
    static OLD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Changes the elements of `range`; the caller has their stripes. `operand` has the packed elements, or nothing for an
/// operation that has none; `result`, if there is one, gets what was there.
#[inline]
pub(crate) fn change(
    memory: &impl WindowBytes,
    target: &Typed,
    range: Range<u64>,
    (arithmetic, operand): (&Arithmetic, &[u8]),
    result: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let len = usize::try_from(range.end - range.start).map_err(|_| Fault::Outside)?;
    if len == arithmetic.width() && arithmetic.is_atomic() {
        let mut old = [0; 8];
        let old = &mut old[..len];
        load(memory, target, range.clone(), old)?;
        let given = operand.get(..len).map_or(0, read);
        let new = arithmetic.change(read(old), given);
        if let Some(result) = result {
            result.copy_from_slice(old);
        }
        let Some(new) = new else { return Ok(()) };
        write(new, old);
        return store(memory, target, range, old);
    }
    change_many(memory, target, range, (arithmetic, operand), result)
}

/// Changes one number that lies inside, at a multiple of its length; the caller has its stripe. Gives what was there.
#[inline]
pub(crate) fn change_number(
    memory: &Atomics,
    offset: u64,
    width: usize,
    change: impl FnOnce(u64) -> Option<u64>,
) -> Option<u64> {
    let mut bytes = [0; 8];
    let bytes = bytes.get_mut(..width)?;
    memory.load(offset, bytes).ok()?;
    let old = read(bytes);
    if let Some(new) = change(old) {
        write(new, bytes);
        memory.store(offset, bytes).ok()?;
    }
    Some(old)
}

fn change_many(
    memory: &impl WindowBytes,
    target: &Typed,
    range: Range<u64>,
    (arithmetic, operand): (&Arithmetic, &[u8]),
    result: Option<&mut [u8]>,
) -> Result<(), Fault> {
    let len = usize::try_from(range.end - range.start).map_err(|_| Fault::Outside)?;
    if arithmetic.op() == ReduceOp::Replace && result.is_none() {
        return store(memory, target, range, operand);
    }
    if let (Some(number), None, Some(memory)) = (arithmetic.sum(), &result, memory.one()) {
        return for_each_run(target, range, |offset, at, len| {
            let operand = operand.get(at..at + len).ok_or(Fault::Outside)?;
            memory.add(offset, number, operand).map_err(|_| Fault::Outside)
        });
    }
    OLD.with_borrow_mut(|old| {
        if old.len() < len {
            old.resize(len, 0);
        }
        let old = &mut old[..len];
        load(memory, target, range.clone(), old)?;
        if let Some(result) = result {
            result.copy_from_slice(old);
        }
        match arithmetic.op() {
            ReduceOp::NoOp => Ok(()),
            ReduceOp::Replace => store(memory, target, range, operand),
            _ => {
                arithmetic.combine(old, operand);
                store(memory, target, range, old)
            }
        }
    })
}

/// How much of a range is changed at once, from its start: what lies in one stripe, if the target is one contiguous
/// span.
#[inline]
pub(crate) fn part(target: &Typed, range: &Range<u64>, width: u64) -> Range<u64> {
    let most = match target.contiguous_start() {
        Some(first) => {
            let offset = target.region().offset() + first + range.start;
            Stripes::rest(offset).next_multiple_of(width)
        }
        None => PART / width * width,
    };
    range.start..range.end.min(range.start + most)
}

/// Replaces one element by `swap` if it is `compare`, bit by bit; gives what was there. The caller has its stripe.
pub(crate) fn compare_swap(
    memory: &impl WindowBytes,
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
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..width];
    memory.load(offset, bytes)?;
    let old = read(bytes);
    if old == compare {
        write(swap, bytes);
        memory.store(offset, bytes)?;
    }
    Ok(old)
}
