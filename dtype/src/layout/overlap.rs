//! Whether instances of a layout name a byte twice. Then it would depend on the order of writing what a receive leaves
//! there, so MPI forbids such layouts to receives (MPI 4.1 §5.1.11).
//!
//! The program decides that for most layouts. They name no byte twice if entries of lists lie apart, and the strides of
//! loops, in the order of their lengths, are each at least as long as all that the shorter ones span. That takes time
//! linear in the lists (n log n if they are not sorted, and their entries lie far apart). What they leave open (parts
//! with gaps that lie between each other) is compared run by run, if there are few. The answer is remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;

use super::Layout;
use crate::convertor::Convertor;
use crate::limits::OVERLAP_RUNS_MAX;
use crate::program::{Facts, Op, OpId, Program, ProgramPart};
use crate::run::{Run, in_memory};

/// How many instances are known to name no byte twice, and how many are known to do. More instances only name more.
#[derive(Debug)]
pub(super) struct KnownOverlap {
    apart: AtomicU64,
    twice: AtomicU64,
    /// Whether some of `apart` are not certain to.
    doubtful: AtomicBool,
}

impl Default for KnownOverlap {
    fn default() -> KnownOverlap {
        let (apart, twice) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        KnownOverlap { apart, twice, doubtful: AtomicBool::new(false) }
    }
}

/// What is known of a layout does not make it another.
impl PartialEq for KnownOverlap {
    fn eq(&self, _: &KnownOverlap) -> bool {
        true
    }
}

impl Eq for KnownOverlap {}

impl Layout {
    /// Whether `count` instances name some byte twice, so that nothing may be received into them (MPI 4.1 §5.1.11).
    ///
    /// Found when it is first asked for, in time about linear in the layout's lists, and then remembered. `false` is
    /// not certain of irregular layouts whose parts have gaps and lie in each other's, if there are more than
    /// [`OVERLAP_RUNS_MAX`] runs.
    #[must_use]
    #[inline]
    pub fn overlaps(&self, count: u64) -> bool {
        if count <= self.0.overlap.apart.load(Ordering::Acquire) {
            return false;
        }
        self.find_overlap(count)
    }

    /// Whether `count` instances certainly name no byte twice, so that several threads may write them at a time. Where
    /// [`overlaps`](Layout::overlaps) is not certain this says no.
    #[must_use]
    pub fn is_apart(&self, count: u64) -> bool {
        !self.overlaps(count) && !self.0.overlap.doubtful.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn find_overlap(&self, count: u64) -> bool {
        let KnownOverlap { apart, twice, doubtful } = &self.0.overlap;
        let Some(root) = self.committed().root() else { return false };
        let least = twice.load(Ordering::Relaxed);
        if least != u64::MAX && count >= least {
            return true;
        }
        let facts = self.committed().facts(root.op);
        let (span, step) = (between(facts.lo, facts.hi), u128::from(self.extent().unsigned_abs()));
        // Instances that do not reach each other are alike: one tells of all.
        let (alone, reached) = match step {
            _ if step >= span => (true, 1),
            0 => (false, count.min(2)),
            _ => (false, count.min(u64::try_from(span.div_ceil(step)).unwrap_or(u64::MAX))),
        };
        let room = span.saturating_add(step.saturating_mul(u128::from(reached.max(1) - 1)));
        let found = if u128::from(facts.size) * u128::from(reached) > room {
            true
        } else {
            let known = decide(self.committed(), root.op, (reached, self.extent()));
            known.or_else(|| self.compare_runs(reached)).unwrap_or_else(|| {
                // Known to whoever sees `apart`.
                doubtful.store(true, Ordering::Relaxed);
                false
            })
        };
        match found {
            true => twice.fetch_min(count, Ordering::Relaxed),
            false => apart.fetch_max(if alone { u64::MAX } else { count }, Ordering::Release),
        };
        found
    }

    /// Whether two runs of `count` instances share a byte; `None` of too many.
    fn compare_runs(&self, count: u64) -> Option<bool> {
        self.blocks_of(count).filter(|runs| *runs <= OVERLAP_RUNS_MAX)?;
        let mut convertor = Convertor::new(self, count).ok()?;
        let (mut all, mut some) = (Vec::new(), [Run::default(); 64]);
        loop {
            let (written, _) = convertor.iov(&mut some, u64::MAX);
            if written == 0 {
                break;
            }
            all.extend(some[..written].iter().map(|run| (run.displacement, run.len)));
        }
        Some(touch(&mut all))
    }
}

/// Bytes from one place to a higher one.
fn between(low: i64, high: i64) -> u128 {
    u128::from(high.wrapping_sub(low).cast_unsigned())
}

/// Whether two of these contiguous spans share a byte. Sorts them.
fn touch(spans: &mut [(i64, u64)]) -> bool {
    if !spans.is_sorted() {
        spans.sort_unstable();
    }
    spans.windows(2).any(|pair| between(pair[0].0, pair[1].0) < u128::from(pair[0].1))
}

/// Whether two entries of a list share a byte, of the list's `facts`. Those that ascend are read once; others mark what
/// they touch, a bit for each grain of memory, unless that takes more memory than sorting them.
fn listed(facts: &Facts, disps: &[i64], len: impl Fn(usize) -> u64) -> bool {
    /// Words of marks for each entry: twice as much as what is sorted.
    const WORDS: u64 = 4;
    let follows = |(at, pair): (usize, &[i64])| {
        pair[0] <= pair[1] && between(pair[0], pair[1]) >= u128::from(len(at))
    };
    if disps.windows(2).enumerate().all(follows) {
        return false;
    }
    let span = facts.hi.wrapping_sub(facts.lo).cast_unsigned();
    let words = span / facts.grain / 64 + 1;
    if words > WORDS * disps.len() as u64 {
        let mut spans: Vec<_> =
            disps.iter().enumerate().map(|(at, disp)| (*disp, len(at))).collect();
        return touch(&mut spans);
    }
    let least = disps.iter().fold(i64::MAX, |least, disp| least.min(*disp));
    let shift = facts.grain.trailing_zeros();
    let mut marks = vec![0; in_memory(words)];
    disps.iter().enumerate().any(|(at, disp)| {
        let from = disp.wrapping_sub(least).cast_unsigned() >> shift;
        mark(&mut marks, from, len(at) >> shift)
    })
}

/// Sets so many bits, and tells whether one was set.
fn mark(marks: &mut [u64], from: u64, bits: u64) -> bool {
    let (mut at, end) = (from, from + bits);
    let mut twice = false;
    while at < end && !twice {
        let some = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - some)) << (at % 64);
        let word = &mut marks[in_memory(at / 64)];
        twice = *word & mask != 0;
        *word |= mask;
        at += some;
    }
    twice
}

/// Bytes from an op's lowest to past its highest, and whether all of them are data.
fn span_of(program: &Program, known: &[Option<bool>], op: OpId) -> (u64, bool) {
    let facts = program.facts(op);
    let span = facts.hi.wrapping_sub(facts.lo).cast_unsigned();
    (span, span == facts.size && known[op.index()] == Some(false))
}

/// What is known of several parts, and of how they lie to each other: they are apart if that is known of all.
fn all_apart(mut parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    parts
        .try_fold(Some(false), |so_far, part| match part {
            Some(true) => Err(Some(true)),
            Some(false) => Ok(so_far),
            None => Ok(None),
        })
        .unwrap_or_else(|twice| twice)
}

/// Whether this many instances of a program, at this stride, name a byte twice, if the ops say so.
fn decide(program: &Program, root: OpId, instances: (u64, i64)) -> Option<bool> {
    let mut known: Vec<Option<bool>> = Vec::with_capacity(program.ops().len());
    for (op, facts) in program.ops().iter().zip(program.all_facts()) {
        let own = match op {
            Op::Run { .. } => Some(false),
            Op::Loop { count, stride, body } => loops(program, &known, *body, (*count, *stride)),
            Op::Blocks { len, disps } => Some(listed(facts, disps, |_| *len)),
            Op::List { disps, starts } => {
                Some(listed(facts, disps, |at| starts[at + 1] - starts[at]))
            }
            Op::Affine { count, step, len, len_step } => {
                // Lengths grow or shrink evenly: of those that reach towards another, the outer ones are the extremes.
                let at = |block: u64| i128::from(*len) + i128::from(block) * i128::from(*len_step);
                let [first, last] = if *step > 0 { [0, count - 2] } else { [1, count - 1] };
                Some(at(first).max(at(last)) > i128::from(step.unsigned_abs()))
            }
            Op::Each { disps, body } => {
                let (span, full) = span_of(program, &known, *body);
                let apart = match listed(facts, disps, |_| span) {
                    true => full.then_some(true),
                    false => Some(false),
                };
                all_apart([known[body.index()], apart].into_iter())
            }
            Op::Seq { parts, .. } => {
                let mut full = true;
                let place = |part: &ProgramPart| {
                    let (span, is_full) = span_of(program, &known, part.op);
                    full &= is_full;
                    (part.disp.wrapping_add(program.facts(part.op).lo), span)
                };
                let apart = match touch(&mut parts.iter().map(place).collect::<Vec<_>>()) {
                    true => full.then_some(true),
                    false => Some(false),
                };
                let parts = parts.iter().map(|part| known[part.op.index()]);
                all_apart(parts.chain([apart]))
            }
        };
        known.push(own);
    }
    loops(program, &known, root, instances)
}

/// Whether a loop over `body`, and over the loops that this consists of, names a byte twice.
fn loops(
    program: &Program,
    known: &[Option<bool>],
    mut body: OpId,
    outermost: (u64, i64),
) -> Option<bool> {
    let mut dims: SmallVec<[(u64, u64); 8]> = SmallVec::new();
    let mut add = |count: u64, stride: i64| {
        if count > 1 {
            dims.push((stride.unsigned_abs(), count));
        }
    };
    add(outermost.0, outermost.1);
    while let Op::Loop { count, stride, body: inner } = program.op(body) {
        add(*count, *stride);
        body = *inner;
    }
    dims.sort_unstable();
    let (span, mut full) = span_of(program, known, body);
    let mut span = u128::from(span);
    let mut apart = Some(false);
    for (stride, count) in dims {
        let stride = u128::from(stride);
        if stride < span {
            // Where all bytes in between are data, the next one begins on some of them.
            apart = full.then_some(true);
            break;
        }
        full &= stride == span;
        span = span.saturating_add(stride * u128::from(count - 1));
    }
    all_apart([known[body.index()], apart].into_iter())
}

#[cfg(test)]
mod tests {
    use crate::{Datatype, Layout, Primitive};

    fn int() -> Datatype {
        Primitive::Int.into()
    }

    fn byte() -> Datatype {
        Primitive::UnsignedChar.into()
    }

    fn committed(datatype: &Datatype) -> Layout {
        datatype.commit().unwrap()
    }

    #[test]
    fn columns_of_a_matrix_lie_between_each_other_and_not_on_each_other() {
        // A million columns of a million rows: nobody looks at each.
        let n = 1u64 << 20;
        let stride = n.cast_signed();
        let column = Datatype::vector(n, 1, stride, &int()).unwrap();
        let columns = committed(&Datatype::resized(0, 4, &column).unwrap());
        assert!(!columns.overlaps(1) && !columns.overlaps(n));
        assert!(columns.overlaps(n + 1), "one column more is the second rows of the first");
        assert!(!columns.overlaps(n), "that of more changes nothing");
        let halves = committed(&Datatype::resized(0, 2, &column).unwrap());
        assert!(!halves.overlaps(1) && halves.overlaps(2));
    }

    /// Entries in an order of no kind; one that overlaps another is found wherever it is and however far they lie
    /// apart.
    #[test]
    fn unsorted_lists_overlap_where_one_byte_is_named_twice() {
        // Words of 1, 8 and 16 bytes; blocks of one word and of more than 64; near, and too far for marks.
        for (len, word) in [(1u64, 1i64), (24, 8), (4096, 16), (4096, 4096), (8, 8)] {
            for apart in [1, 3, 100_000] {
                let n = 200i64;
                let step = (len.cast_signed() + word) * apart;
                let places: Vec<i64> = (0..n).map(|i| i * 77 % n * step).collect();
                let list = |places: &[i64]| {
                    committed(&Datatype::hindexed_block(len, places, &byte()).unwrap())
                };
                let lengths: Vec<u64> =
                    (0..n.unsigned_abs()).map(|i| len - i % 2 * (len / 2)).collect();
                let varied = |places: &[i64]| {
                    committed(&Datatype::hindexed(&lengths, places, &byte()).unwrap())
                };
                assert!(
                    !list(&places).overlaps(1) && !varied(&places).overlaps(1),
                    "{len} {apart}"
                );
                for (moved, onto) in [(0, 199), (100, 101), (198, 2)] {
                    // The last byte of one that has all its length is named by another's first.
                    let mut others = places.clone();
                    others[moved] = places[onto & !1] + len.cast_signed() - 1;
                    if moved != onto & !1 {
                        assert!(list(&others).overlaps(1), "{len} {apart}: {moved} on {onto}");
                        assert!(varied(&others).overlaps(1), "{len} {apart}: {moved} on {onto}");
                    }
                }
            }
        }
        // Entries that are types with gaps: their spans count.
        let pair = Datatype::vector(2, 1, 3, &int()).unwrap();
        let each = |places: &[i64]| committed(&Datatype::hindexed_block(1, places, &pair).unwrap());
        assert!(!each(&[64, 0, 16, 100]).overlaps(1));
        assert!(each(&[64, 0, 12, 100]).overlaps(1));
        assert!(!each(&[64, 0, 4, 100]).overlaps(1), "in each other's gaps");
    }

    #[test]
    fn instances_at_one_place_overlap_unless_there_is_one() {
        let still = committed(&Datatype::resized(0, 0, &int()).unwrap());
        assert!(!still.overlaps(0) && !still.overlaps(1));
        assert!(still.overlaps(2) && still.overlaps(u64::MAX));
        let nothing = committed(&Datatype::contiguous(0, &int()).unwrap());
        assert!(!nothing.overlaps(u64::MAX));
    }

    #[test]
    fn lists_and_triangles_are_decided_however_long() {
        let n = 100_000u64;
        let places: Vec<i64> = (0..n).map(|at| (at * 7919 % n * 3).cast_signed()).collect();
        let list = Datatype::indexed_block(2, &places, &int()).unwrap();
        assert!(!committed(&list).overlaps(1));
        assert!(!committed(&list).overlaps(1 << 20), "they follow each other");
        let mut again = places.clone();
        again[77_777] = places[5] + 1;
        assert!(committed(&Datatype::indexed_block(2, &again, &int()).unwrap()).overlaps(1));
        let rows: Vec<u64> = (1..=n).collect();
        let at = |step: i64| -> Vec<i64> { (0..n.cast_signed()).map(|row| row * step).collect() };
        let width = n.cast_signed();
        for (step, overlaps) in [
            (width, false),
            (width - 1, false),
            (-width, false),
            (width - 2, true),
            (1 - width, true),
        ] {
            let triangle = Datatype::indexed(&rows, &at(step), &int()).unwrap();
            let found = committed(&triangle).overlaps(1);
            assert_eq!(found, overlaps, "{step}");
        }
    }

    /// Two combs whose teeth are in each other's gaps, or on each other.
    #[test]
    fn of_what_is_left_open_nothing_is_certain() {
        let (few, many) = (100, 1 << 15);
        for (teeth, place, overlaps, apart) in [
            (few, 4, false, true),
            (few, 0, true, false),
            (many, 4, false, false),
            (many, 0, false, false),
        ] {
            let [narrow, wide] =
                [4, 6].map(|stride| Datatype::vector(teeth, 1, stride, &int()).unwrap());
            let both = Datatype::structure(&[1, 1], &[0, place], &[narrow, wide]).unwrap();
            let layout = committed(&both);
            for _ in 0..2 {
                let found = (layout.overlaps(1), layout.is_apart(1));
                assert_eq!(found, (overlaps, apart), "{teeth} teeth at {place}");
            }
        }
        assert!(committed(&Datatype::vector(many, 1, 2, &int()).unwrap()).is_apart(1));
    }
}
