//! Where in its arena a message lies, time after time, so that no time finds its bytes in a cache.
//!
//! A layout's buffer may be a hundred times as large as what is sent of it. So the places of one
//! layout in an arena may interleave: each begins at a multiple of a cache line where none of the
//! lines that it touches belongs to an earlier place. They are used in shuffled order, so that what
//! the hardware prefetches is of no use to the next message.

use gapless_dtype::{Convertor, Layout, Run};
use gapless_layouts::Side;

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// Places that lie side by side begin at multiples of this, as a device's allocations do.
const DEVICE_LINES: u64 = 256;
/// Line tests after which looking for further places ends.
const TESTS_MAX: u64 = 100_000_000;
/// Places that are used at most.
const PLACES_MAX: usize = 1 << 17;

/// The places of one side of a message in its arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Where each place's buffer begins, in bytes from the arena's start.
    pub starts: Vec<u64>,
    /// Bytes of a place's buffer, cut to what the layout touches.
    pub buffer_bytes: u64,
    /// Where displacement 0 is in a place's buffer.
    pub origin: u64,
    /// Bytes in the cache lines that one message touches.
    pub touched_bytes: u64,
}

/// Lines that a message touches, as intervals `(first, count)` in ascending order.
fn lines(layout: &Layout, side: &Side, low: i64) -> Vec<(u64, u64)> {
    let mut convertor = Convertor::new(layout, side.count).expect("the catalogue's sizes are sane");
    let mut runs = [Run::default(); 256];
    let mut list: Vec<(u64, u64)> = Vec::new();
    loop {
        let (written, _) = convertor.iov(&mut runs, u64::MAX);
        if written == 0 {
            break;
        }
        for run in &runs[..written] {
            let from = (run.displacement - low).cast_unsigned() / LINE;
            let to = ((run.displacement - low).cast_unsigned() + run.len - 1) / LINE;
            match list.last_mut() {
                // Neighbours, as most are.
                Some((first, count)) if from >= *first && from <= *first + *count => {
                    *count = (*count).max(to + 1 - *first);
                }
                _ => list.push((from, to + 1 - from)),
            }
        }
    }
    list.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(list.len());
    for (from, count) in list {
        match merged.last_mut() {
            Some((first, length)) if from <= *first + *length => {
                *length = (*length).max(from + count - *first);
            }
            _ => merged.push((from, count)),
        }
    }
    merged
}

/// One bit a line.
struct TakenLines(Vec<u64>);

impl TakenLines {
    fn is_free(&self, from: u64, count: u64, tests: &mut u64) -> bool {
        let mut line = from;
        let end = from + count;
        while line < end {
            *tests += 1;
            let (word, bit) = (index(line / 64), line % 64);
            let here = (64 - bit).min(end - line);
            let mask = if here == 64 { u64::MAX } else { ((1 << here) - 1) << bit };
            if self.0[word] & mask != 0 {
                return false;
            }
            line += here;
        }
        true
    }

    fn take(&mut self, from: u64, count: u64) {
        for line in from..from + count {
            self.0[index(line / 64)] |= 1 << (line % 64);
        }
    }
}

/// A number below an arena's length as an index.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("an arena fits the address space")
}

impl Places {
    /// Finds places in `arena_bytes` until what they touch exceeds `wanted_bytes` together, or
    /// there are no more. At least one, if one fits.
    #[must_use]
    pub fn find(
        side: &Side,
        layout: &Layout,
        arena_bytes: u64,
        wanted_bytes: u64,
    ) -> Option<Places> {
        let (low, high) = side.touched().unwrap_or((0, 0));
        let origin = i64::try_from(side.origin).ok()?;
        // The buffer begins at the line of the first byte touched, or of displacement 0.
        let start = low.min(origin).div_euclid(LINE.cast_signed()) * LINE.cast_signed();
        let buffer_bytes = (high - start).cast_unsigned();
        if buffer_bytes > arena_bytes {
            return None;
        }
        // `runs` count from displacement 0, which is at `origin` in the application's buffer.
        let lines = lines(layout, side, start - origin);
        let touched_bytes = lines.iter().map(|(_, count)| count * LINE).sum();
        let mut places = Places {
            starts: Vec::new(),
            buffer_bytes,
            origin: (origin - start).cast_unsigned(),
            touched_bytes,
        };
        let last = (arena_bytes - buffer_bytes) / LINE;
        let mut taken = TakenLines(vec![0; index(arena_bytes / LINE / 64 + 2)]);
        let (mut tests, mut reached) = (0, 0);
        // The line that blocked one place often blocks the next.
        let mut blocking = 0;
        for shift in 0..=last {
            let mut free = |at: usize| {
                let (from, count) = lines[at];
                taken.is_free(from + shift, count, &mut tests)
            };
            let blocked = match lines.is_empty() || free(blocking) {
                true => (0..lines.len()).find(|&at| !free(at)),
                false => Some(blocking),
            };
            match blocked {
                Some(at) => blocking = at,
                None => {
                    lines.iter().for_each(|&(from, count)| taken.take(from + shift, count));
                    places.starts.push(shift * LINE);
                    reached += touched_bytes;
                }
            }
            let enough = reached > wanted_bytes || places.starts.len() >= PLACES_MAX;
            if enough || tests > TESTS_MAX || touched_bytes == 0 {
                break;
            }
        }
        Some(places)
    }

    /// Places whose buffers do not interleave, as many as fit and touch more than `wanted_bytes`
    /// together; `None` if not so many fit, or one. For large messages: nobody walks their blocks.
    /// What one touches is taken for its payload, which it is at least.
    #[must_use]
    pub fn side_by_side(side: &Side, arena_bytes: u64, wanted_bytes: u64) -> Option<Places> {
        let (low, high) = side.touched()?;
        let origin = i64::try_from(side.origin).ok()?;
        let start = low.min(origin).div_euclid(LINE.cast_signed()) * LINE.cast_signed();
        let buffer_bytes = (high - start).cast_unsigned();
        let step = buffer_bytes.next_multiple_of(DEVICE_LINES);
        let touched_bytes = side.payload_bytes();
        let wanted = (wanted_bytes / touched_bytes + 1).min(PLACES_MAX as u64);
        let last = arena_bytes.checked_sub(buffer_bytes)?;
        if last / step + 1 < wanted {
            return None;
        }
        let starts = (0..wanted).map(|at| at * step).collect();
        let origin = (origin - start).cast_unsigned();
        Some(Places { starts, buffer_bytes, origin, touched_bytes })
    }

    /// So many places whose buffers do not overlap, one behind the other, in the order of their numbers; and the length of
    /// an arena for them. `None` if that does not fit 64 bits.
    #[must_use]
    pub(crate) fn in_a_row(side: &Side, count: u64) -> Option<(Places, u64)> {
        let (low, high) = match side.touched() {
            Some(touched) => touched,
            None if side.payload_bytes() == 0 => (0, 0),
            None => return None,
        };
        let origin = i64::try_from(side.origin).ok()?;
        let start = low.min(origin).div_euclid(LINE.cast_signed()) * LINE.cast_signed();
        let buffer_bytes = high.max(start).checked_sub(start)?.cast_unsigned();
        let step = buffer_bytes.checked_next_multiple_of(DEVICE_LINES)?;
        let arena_bytes = step.checked_mul(count)?;
        let starts = (0..count).map(|at| at * step).collect();
        let origin = origin.checked_sub(start)?.cast_unsigned();
        let touched_bytes = side.payload_bytes();
        Some((Places { starts, buffer_bytes, origin, touched_bytes }, arena_bytes))
    }

    /// Puts the places into an order that depends on `seed` alone.
    pub fn shuffle(&mut self, seed: u64) {
        for last in (1..self.starts.len()).rev() {
            let at = super::content::mix(seed ^ last as u64) % (last as u64 + 1);
            self.starts.swap(last, index(at));
        }
    }

    /// Bytes that all places touch together.
    #[must_use]
    pub fn reached_bytes(&self) -> u64 {
        self.touched_bytes * self.starts.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_layouts::cases;

    fn all_lines(places: &Places, layout: &Layout, side: &Side) -> Vec<u64> {
        let mut all = Vec::new();
        for start in &places.starts {
            let mut convertor = Convertor::new(layout, side.count).unwrap();
            let mut runs = [Run::default(); 64];
            let mut own = Vec::new();
            loop {
                let (written, _) = convertor.iov(&mut runs, u64::MAX);
                if written == 0 {
                    break;
                }
                for run in &runs[..written] {
                    let first =
                        (start + places.origin).checked_add_signed(run.displacement).unwrap();
                    assert!(first >= *start && first + run.len <= start + places.buffer_bytes);
                    own.extend(first / LINE..=(first + run.len - 1) / LINE);
                }
            }
            own.sort_unstable();
            own.dedup();
            all.extend(own);
        }
        all
    }

    #[test]
    fn no_line_belongs_to_two_places() {
        for (name, n) in
            [("v", 64), ("t", 64), ("x", 32), ("face-x", 32), ("halo26", 8), ("nas-lu-y", 12)]
        {
            for case in cases(name, Some(n)).unwrap() {
                let layout = case.send.datatype.commit().unwrap();
                let mut places =
                    Places::find(&case.send, &layout, 1 << 20, 200_000).expect("fits a mebibyte");
                assert!(places.starts.len() > 1, "{}", case.name);
                let before = places.starts.clone();
                places.shuffle(7);
                let mut sorted = places.starts.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, before);
                let mut lines = all_lines(&places, &layout, &case.send);
                let count = lines.len();
                lines.sort_unstable();
                lines.dedup();
                assert_eq!(lines.len(), count, "{}", case.name);
                assert_eq!(count as u64 * LINE, places.reached_bytes(), "{}", case.name);
            }
        }
    }

    #[test]
    fn buffers_side_by_side_do_not_overlap() {
        for (name, n) in [("v", 64), ("t", 64), ("x", 32)] {
            for case in cases(name, Some(n)).unwrap() {
                let places = Places::side_by_side(&case.send, 1 << 22, 100_000).unwrap();
                assert!(places.starts.len() > 2 && places.reached_bytes() > 100_000);
                let touched = case.send.touched().unwrap();
                assert_eq!(places.buffer_bytes, (touched.1 - touched.0.min(0)).cast_unsigned());
                for pair in places.starts.windows(2) {
                    assert!(pair[0] + places.buffer_bytes <= pair[1]);
                }
                assert!(places.starts.last().unwrap() + places.buffer_bytes <= 1 << 22);
                assert_eq!(Places::side_by_side(&case.send, 100_000, 100_000), None);
                assert_eq!(Places::side_by_side(&case.send, 64, 1), None);
            }
        }
    }

    #[test]
    fn buffers_in_a_row_do_not_overlap() {
        for (name, n) in [("v", 64), ("t", 7), ("adv_neg_extent", 3)] {
            for case in cases(name, Some(n)).unwrap() {
                let (places, len) = Places::in_a_row(&case.send, 9).unwrap();
                let (low, high) = case.send.touched().unwrap();
                assert!(places.buffer_bytes >= (high - low).cast_unsigned());
                assert_eq!(places.starts.len(), 9);
                assert!(places.starts.windows(2).all(|two| two[0] + places.buffer_bytes <= two[1]));
                assert!(places.starts[8] + places.buffer_bytes <= len);
                assert!(Places::in_a_row(&case.send, u64::MAX).is_none());
            }
        }
    }

    #[test]
    fn what_does_not_fit_has_no_place() {
        let case = &cases("v", Some(64)).unwrap()[0];
        let layout = case.send.datatype.commit().unwrap();
        assert!(Places::find(&case.send, &layout, 1000, 1).is_none());
    }
}
