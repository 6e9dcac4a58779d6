//! What buffers hold, so that every byte of a message can be checked: a byte is a function of a
//! seed and its place in the arena. Nothing is kept in order to compare.

use gapless_dtype::{Convertor, Layout, Run};
use std::fmt;

/// Buffers shorter than two of these are one thread's work.
const PIECE: usize = 1 << 20;
/// Threads that share a large buffer at most.
const THREADS_MAX: usize = 8;

/// A word that depends on every bit of `x` (the finaliser of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `bytes`, whose first one is at `offset` of its arena.
pub(crate) fn fill(bytes: &mut [u8], offset: u64, seed: u64) {
    let mut at = offset;
    let head = usize::try_from(at.wrapping_neg() % 8).unwrap_or(0).min(bytes.len());
    let (head, rest) = bytes.split_at_mut(head);
    for byte in head {
        *byte = byte_at(at, seed);
        at += 1;
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for word in words {
        *word = mix(seed ^ (at / 8)).to_le_bytes();
        at += 8;
    }
    for byte in tail {
        *byte = byte_at(at, seed);
        at += 1;
    }
}

/// [`fill`] by several threads, for buffers as large as a GPU's.
pub(crate) fn fill_large(bytes: &mut [u8], offset: u64, seed: u64) {
    if bytes.len() < 2 * PIECE {
        return fill(bytes, offset, seed);
    }
    let piece = bytes.len().div_ceil(threads()).next_multiple_of(8);
    std::thread::scope(|scope| {
        for (at, part) in bytes.chunks_mut(piece).enumerate() {
            scope.spawn(move || fill(part, offset + (at * piece) as u64, seed));
        }
    });
}

/// Whether two buffers of one length are the same, by several threads.
fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() < 2 * PIECE {
        return one == other;
    }
    let piece = one.len().div_ceil(threads());
    let parts = || one.chunks(piece).zip(other.chunks(piece));
    std::thread::scope(|scope| {
        let compared: Vec<_> =
            parts().map(|(one, other)| scope.spawn(move || one == other)).collect();
        compared.into_iter().all(|part| part.join().unwrap_or(false))
    })
}

/// Threads that share a large buffer: not all that could run, since the other process has as much to do.
fn threads() -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    (all / 2).clamp(1, THREADS_MAX)
}

fn byte_at(offset: u64, seed: u64) -> u8 {
    let place = usize::try_from(offset % 8).unwrap_or(0);
    mix(seed ^ (offset / 8)).to_le_bytes()[place]
}

/// A side of a message in an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lying<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) count: u64,
    /// Where displacement 0 is, in bytes from the arena's start.
    pub(crate) origin: u64,
    /// What the arena was filled with.
    pub(crate) seed: u64,
}

/// A byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Its place in the receiver's buffer.
    pub(crate) offset: u64,
    pub(crate) found: u8,
    pub(crate) expected: u8,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { offset, found, expected } = self;
        write!(f, "byte {offset} of the buffer is {found:#04x}, not {expected:#04x}")
    }
}

/// Runs of a side, one after another.
struct Runs<'a> {
    convertor: Convertor,
    lying: Lying<'a>,
    list: [Run; 128],
    next: usize,
    end: usize,
}

impl<'a> Runs<'a> {
    fn new(lying: Lying<'a>) -> Runs<'a> {
        let convertor =
            Convertor::new(lying.layout, lying.count).expect("a message of it has been received");
        Runs { convertor, lying, list: [Run::default(); 128], next: 0, end: 0 }
    }

    /// The next run: its offset in the arena and its length.
    fn next(&mut self) -> Option<(u64, u64)> {
        if self.next == self.end {
            (self.end, _) = self.convertor.iov(&mut self.list, u64::MAX);
            self.next = 0;
            if self.end == 0 {
                return None;
            }
        }
        let run = self.list[self.next];
        self.next += 1;
        Some((self.lying.origin.checked_add_signed(run.displacement)?, run.len))
    }
}

/// Compares a buffer that was filled and then received into with what it must hold: the message's
/// bytes where the layout has them, what it was filled with everywhere else. Of several senders, each one's bytes follow
/// those of the one before. `expected` is scratch.
///
/// Runs of both sides are walked in step and each byte is looked up at its sender's place, so this
/// shares nothing with how messages are packed but the list of runs.
pub(crate) fn check(
    received: &[u8],
    start: u64,
    into: Lying<'_>,
    from: &[Lying<'_>],
    expected: &mut Vec<u8>,
) -> Result<(), Wrong> {
    // What it held before is overwritten.
    expected.resize(received.len(), 0);
    fill_large(expected, start, into.seed);
    let mut target = Runs::new(into);
    let mut into_run = target.next();
    for from in from {
        let mut source = Runs::new(*from);
        let mut from_run = source.next();
        while let (Some((from_at, from_len)), Some((into_at, into_len))) = (from_run, into_run) {
            let len = from_len.min(into_len);
            let at = usize::try_from(into_at - start).unwrap_or(usize::MAX);
            let piece = usize::try_from(len).unwrap_or(usize::MAX);
            fill(&mut expected[at..at.saturating_add(piece)], from_at, from.seed);
            let rest = |at: u64, all: u64| (all > len).then_some((at + len, all - len));
            from_run = rest(from_at, from_len).or_else(|| source.next());
            into_run = rest(into_at, into_len).or_else(|| target.next());
        }
    }
    compared(received, expected)
}

/// The first byte that is not what it should be, of two buffers of one length.
pub(crate) fn compared(received: &[u8], expected: &[u8]) -> Result<(), Wrong> {
    if same(received, expected) {
        return Ok(());
    }
    let at = received.iter().zip(expected.iter()).position(|(found, expected)| found != expected);
    let at = at.unwrap_or(0);
    Err(Wrong { offset: at as u64, found: received[at], expected: expected[at] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn filling_does_not_depend_on_where_one_begins() {
        let mut whole = vec![0; 200];
        fill(&mut whole, 1000, 42);
        for (from, to) in [(0, 200), (1, 199), (7, 9), (64, 64), (13, 150)] {
            let mut piece = vec![0; to - from];
            fill(&mut piece, 1000 + from as u64, 42);
            assert_eq!(piece, whole[from..to]);
        }
        let mut other = vec![0; 200];
        fill(&mut other, 1000, 43);
        assert_ne!(whole, other);
    }

    #[test]
    fn threads_fill_and_compare_as_one_does() {
        let (mut one, mut many) = (vec![0; 5 * PIECE + 13], vec![0; 5 * PIECE + 13]);
        fill(&mut one, 12_345, 6);
        fill_large(&mut many, 12_345, 6);
        assert!(one == many && same(&one, &many));
        for at in [0, PIECE, 5 * PIECE + 12] {
            many[at] ^= 1;
            assert!(!same(&one, &many));
            many[at] ^= 1;
        }
    }

    #[test]
    fn the_bytes_of_several_senders_follow_each_other() {
        let int = Datatype::from(Primitive::Int).commit().unwrap();
        let from = |seed, count, origin| Lying { layout: &int, count, origin, seed };
        let senders = [from(1, 3, 8), from(2, 2, 64), from(1, 1, 0)];
        let (mut received, mut scratch) = (vec![0; 40], Vec::new());
        fill(&mut received, 0, 9);
        let mut at = 8;
        for Lying { count, origin, seed, .. } in senders {
            let len = usize::try_from(4 * count).unwrap();
            fill(&mut received[at..at + len], origin, seed);
            at += len;
        }
        let into = Lying { layout: &int, count: 6, origin: 8, seed: 9 };
        assert_eq!(check(&received, 0, into, &senders, &mut scratch), Ok(()));
        let [first, second, third] = senders;
        let swapped = [first, third, second];
        assert_eq!(check(&received, 0, into, &swapped, &mut scratch).unwrap_err().offset, 20);
        assert!(check(&received, 0, into, &senders[..2], &mut scratch).is_err());
    }

    #[test]
    fn a_wrong_byte_is_found_in_data_and_in_gaps() {
        let double = Datatype::from(Primitive::Double);
        let from = Datatype::vector(4, 1, 3, &double).unwrap().commit().unwrap();
        let into = Datatype::vector(2, 2, 4, &double).unwrap().commit().unwrap();
        let (mut source, mut target) = (vec![0; 256], vec![0; 256]);
        fill(&mut source, 0, 1);
        fill(&mut target, 0, 2);
        let mut packed = [0; 32];
        Convertor::new(&from, 1).unwrap().pack(&source, 8, &mut packed).unwrap();
        Convertor::new(&into, 1).unwrap().unpack(&packed, &mut target, 64).unwrap();
        let from = Lying { layout: &from, count: 1, origin: 8, seed: 1 };
        let into = Lying { layout: &into, count: 1, origin: 64, seed: 2 };
        let mut scratch = Vec::new();
        assert_eq!(check(&target[32..], 32, into, &[from], &mut scratch), Ok(()));
        for at in [40, 64, 79, 81, 111, 255] {
            target[at] ^= 0x10;
            let wrong = check(&target[32..], 32, into, &[from], &mut scratch).unwrap_err();
            assert_eq!(wrong.offset, at as u64 - 32);
            assert_eq!(wrong.found ^ wrong.expected, 0x10);
            target[at] ^= 0x10;
        }
    }
}
