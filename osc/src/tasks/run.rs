//! The target's side of accumulations as tasks: what a payload says, checked and done where the target makes progress, or
//! on a thread of it.
//!
//! ```text
//! argument 2: window:4, as the target numbers it | rank of the origin in it:4
//! argument 3: operation:1 | basic type:1 | 0:2 | runs:4
//! payload:    (where in the window:8 | bytes:8) a run | operands …
//! ```
//!
//! Nothing that it says is believed: places, lengths and elements are checked.

use crate::arithmetic::Arithmetic;
use crate::core::Osc;
use crate::error::Fault;
use crate::header::Stripes;
use crate::users::InUse;
use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;
use gapless_mem::DeviceError;
use gapless_xtq::{Task, TaskError};
use std::ops::Range;
use std::time::Duration;

/// What a fault begins with, as the text of a task's end.
const FAULT: &str = "window fault ";
/// Bytes of elements that are changed at once.
const PART: usize = 4 << 10;
/// How often the mutex of elements is tried before the thread sleeps in between, and for how long.
const TRIES: u32 = 1024;
const NAP: Duration = Duration::from_micros(50);
/// How often it is tried where progress is made, before a thread does it.
const QUICK_TRIES: u32 = 32;

/// Who waits for mutexes: whether it has left, and how often it tries before it looks at that and sleeps.
type Waits<'w> = (&'w Osc, &'w dyn Fn() -> bool, u32);

/// What is to be done, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accumulation {
    pub(crate) window: u32,
    pub(crate) rank: u32,
    pub(crate) op: ReduceOp,
    pub(crate) primitive: Primitive,
    pub(crate) runs: u32,
}

impl Accumulation {
    pub(crate) fn words(self) -> [u64; 2] {
        let op = ReduceOp::ALL.iter().position(|op| *op == self.op).unwrap_or(0) as u64;
        let first = u64::from(self.window) | u64::from(self.rank) << 32;
        [first, op | u64::from(self.primitive as u8) << 8 | u64::from(self.runs) << 32]
    }

    fn read([first, second]: [u64; 2]) -> Result<Accumulation, Fault> {
        let [w0, w1, w2, w3, r0, r1, r2, r3] = first.to_le_bytes();
        let [op, primitive, zero, nought, n0, n1, n2, n3] = second.to_le_bytes();
        let op = ReduceOp::ALL.get(usize::from(op)).ok_or(Fault::Elements)?;
        let primitive = Primitive::from_code(primitive).ok_or(Fault::Elements)?;
        if zero != 0 || nought != 0 {
            return Err(Fault::Elements);
        }
        Ok(Accumulation {
            window: u32::from_le_bytes([w0, w1, w2, w3]),
            rank: u32::from_le_bytes([r0, r1, r2, r3]),
            op: *op,
            primitive,
            runs: u32::from_le_bytes([n0, n1, n2, n3]),
        })
    }
}

/// Runs a task.
pub(crate) fn run(osc: &Osc, task: &mut Task<'_>) -> Result<(), TaskError> {
    let [_, _, first, second] = task.arguments();
    let (initiator, xtq) = (task.initiator().0, task.xtq().clone());
    let has_left = move || xtq.has_left();
    perform(osc, (initiator, &has_left), [first, second], task.payload()).map_err(said)
}

/// The same where progress is made, unless it would have to wait: then a thread does it.
pub(crate) fn try_run(osc: &Osc, task: &mut Task<'_>) -> Option<Result<(), TaskError>> {
    let [_, _, first, second] = task.arguments();
    let initiator = task.initiator().0;
    // All elements at once, so that nothing has changed if their mutexes cannot be had.
    let all = (task.payload(), usize::MAX);
    let done = perform_by((osc, &|| true, QUICK_TRIES), initiator, [first, second], all);
    match done {
        // Before anything has changed.
        Err(Fault::NoWindow | Fault::Holder(_)) => None,
        done => Some(done.map_err(said)),
    }
}

pub(crate) fn perform(
    osc: &Osc,
    (initiator, has_left): (u32, &dyn Fn() -> bool),
    words: [u64; 2],
    payload: &[u8],
) -> Result<(), Fault> {
    perform_by((osc, has_left, TRIES), initiator, words, (payload, PART))
}

/// `part`: bytes of elements that are changed at once. All mutexes of a part are taken before its first element is read: if
/// there is one part, a failure to have them has changed nothing.
fn perform_by(
    waits: Waits<'_>,
    initiator: u32,
    words: [u64; 2],
    (payload, part): (&[u8], usize),
) -> Result<(), Fault> {
    let what = Accumulation::read(words)?;
    let place = waits.0.core().windows.get(&what.window).ok_or(Fault::NoWindow)?.in_use();
    let place = place.ok_or(Fault::Outside)?;
    if place.processes.get(what.rank as usize) != Some(&initiator) {
        return Err(Fault::Outside);
    }
    let arithmetic = Arithmetic::new(what.op, what.primitive).map_err(|_| Fault::Elements)?;
    let count = usize::try_from(what.runs).map_err(|_| Fault::Outside)?;
    let bytes = count.checked_mul(super::RUN).ok_or(Fault::Outside)?;
    let (runs, operands) = payload.split_at_checked(bytes).ok_or(Fault::Outside)?;
    let runs = runs.as_chunks::<8>().0.as_chunks::<2>().0;
    let mut runs = Runs { left: runs.iter(), run: (0, 0) };
    let width = arithmetic.width();
    if !operands.len().is_multiple_of(width) {
        return Err(Fault::Elements);
    }
    for operands in operands.chunks(part / width * width) {
        let runs = runs.next(operands.len())?;
        change(waits, &place, runs, (&arithmetic, operands))?;
    }
    if runs.left.len() == 0 && runs.run.1 == 0 { Ok(()) } else { Err(Fault::Outside) }
}

/// The runs of a payload that are left, the first of them in part.
struct Runs<'p> {
    left: std::slice::Iter<'p, [[u8; 8]; 2]>,
    run: (u64, u64),
}

impl Runs<'_> {
    /// Those of the next so many bytes.
    fn next(&mut self, bytes: usize) -> Result<Vec<(u64, usize)>, Fault> {
        let (mut found, mut wanted) = (Vec::new(), bytes as u64);
        while wanted > 0 {
            if self.run.1 == 0 {
                let run = self.left.next().ok_or(Fault::Outside)?;
                let [offset, bytes] = run.map(u64::from_le_bytes);
                self.run = (offset, bytes);
                continue;
            }
            let (offset, bytes) = self.run;
            let now = bytes.min(wanted);
            found.push((offset, usize::try_from(now).map_err(|_| Fault::Outside)?));
            self.run = (offset.checked_add(now).ok_or(Fault::Outside)?, bytes - now);
            wanted -= now;
        }
        Ok(found)
    }
}

/// Changes elements, which lie in these runs: all of them under their mutexes.
fn change(
    waits: Waits<'_>,
    here: &InUse,
    runs: Vec<(u64, usize)>,
    (arithmetic, operands): (&Arithmetic, &[u8]),
) -> Result<(), Fault> {
    let (memory, header) = (&here.exposure.memory, &here.exposure.header);
    let mut stripes = Stripes::default();
    for &(offset, len) in &runs {
        let end = offset.checked_add(len as u64).ok_or(Fault::Outside)?;
        let width = arithmetic.width();
        let fits = memory.misalignment(offset, width as u64) == 0 && len.is_multiple_of(width);
        if end > memory.len() {
            return Err(Fault::Outside);
        }
        if !fits && arithmetic.is_atomic() {
            return Err(Fault::Misaligned);
        }
        stripes = stripes.with(offset, len);
    }
    let each = |act: &mut dyn FnMut(u64, Range<usize>) -> Result<(), DeviceError>| {
        let mut at = 0;
        runs.iter().try_for_each(|&(offset, len)| {
            at += len;
            act(offset, at - len..at)
        })
    };
    let mut now = operands.to_vec();
    take(waits, here, stripes)?;
    let changed = (|| {
        if arithmetic.op() != ReduceOp::Replace {
            each(&mut |offset, place| memory.load(offset, &mut now[place]))?;
            arithmetic.combine(&mut now, operands);
        }
        each(&mut |offset, place| memory.store(offset, &now[place]))
    })();
    header.release_stripes(here.rank, stripes);
    changed.map_err(|_| Fault::Outside)
}

/// Takes mutexes, and waits for those who have them, as long as the window is there and this process in its job.
fn take(
    (osc, has_left, tries_max): Waits<'_>,
    here: &InUse,
    stripes: Stripes,
) -> Result<(), Fault> {
    let header = &here.exposure.header;
    let process = |rank: u32| here.processes.get(rank as usize).copied();
    let is_dead = |rank: u32| process(rank).is_some_and(|process| osc.departed().is_dead(process));
    let may_live = |rank: u32| {
        process(rank).is_some_and(|process| {
            osc.departed().is_lost(process) && !osc.departed().is_dead(process)
        })
    };
    let mut tries = 0u32;
    while !header.try_stripes(here.rank, stripes, is_dead) {
        tries = tries.saturating_add(1);
        if tries < tries_max {
            std::hint::spin_loop();
            continue;
        }
        if let Some(holder) = header.lost_in_stripes(stripes, may_live).and_then(process) {
            return Err(Fault::Holder(holder));
        }
        if here.users.are_gone() || has_left() {
            return Err(Fault::NoWindow);
        }
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// Whether an integer has a sign.
pub(crate) fn is_signed(integer: Primitive) -> bool {
    use Primitive as P;
    !matches!(
        integer,
        P::UnsignedChar
            | P::UnsignedShort
            | P::Unsigned
            | P::UnsignedLong
            | P::UnsignedLongLong
            | P::Uint8
            | P::Uint16
            | P::Uint32
            | P::Uint64
            | P::Byte
    )
}

/// A fault as the text of a task's end.
pub(crate) fn said(fault: Fault) -> TaskError {
    let (code, value) = fault.code();
    TaskError(format!("{FAULT}{code} {value}"))
}

/// The other way round.
pub(crate) fn fault(text: &str) -> Option<Fault> {
    let (code, value) = text.strip_prefix(FAULT)?.split_once(' ')?;
    Fault::of_code(code.parse().ok()?, value.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_done_survives_the_way_and_faults_do() {
        for (op, primitive) in
            [(ReduceOp::Sum, Primitive::Double), (ReduceOp::Bxor, Primitive::Uint8)]
        {
            let what = Accumulation { window: u32::MAX - 1, rank: 7, op, primitive, runs: 1 << 31 };
            assert_eq!(Accumulation::read(what.words()), Ok(what));
        }
        assert_eq!(Accumulation::read([0, 1 << 16]), Err(Fault::Elements));
        assert_eq!(Accumulation::read([0, 255]), Err(Fault::Elements));
        let holder = Fault::Holder(9);
        for one in [Fault::Outside, Fault::NoWindow, Fault::Misaligned, Fault::Elements, holder] {
            assert_eq!(fault(&said(one).0), Some(one));
        }
        assert_eq!((fault("window fault 1"), fault("it panicked"), fault("")), (None, None, None));
    }
}
