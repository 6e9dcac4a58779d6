//! Where the bytes of a message lie at one end, in any shape, and what must be in a buffer in the end.

use gapless::{Datatype, Layout, Primitive};
use gapless_dtype::testkit::{Params, Rng, random_sample};

/// What a receiver's buffer is full of before.
pub(crate) const UNTOUCHED: u8 = 0xA5;

/// One end's layout, and the buffer that it lies in.
pub(crate) struct Side {
    datatype: Datatype,
    pub(crate) count: u64,
    pub(crate) origin: u64,
    /// Length of the buffer in bytes.
    len: usize,
    /// Where each stretch of the packed bytes lies in the buffer, and how long it is, in packed order.
    runs: Vec<(usize, usize)>,
}

fn signed(number: usize) -> i64 {
    i64::try_from(number).expect("test sizes")
}

impl Side {
    /// `bytes` bytes in some shape: a row, rows, a list of equal blocks or of unequal ones in any order,
    /// blocks that grow by as much each time.
    pub(crate) fn any(rng: &mut Rng, bytes: usize) -> Side {
        let byte = Datatype::from(Primitive::Byte);
        let (datatype, runs) = match rng.below(6) {
            0 => {
                let row = Datatype::contiguous(bytes as u64, &byte).expect("a row");
                (row, vec![(0, bytes)])
            }
            1 | 2 => rows(rng, bytes, &byte),
            3 => {
                let block = block_length(rng, bytes);
                listed(rng, equal(block, bytes), &byte)
            }
            4 => {
                // A triangle, and what it does not hold.
                let step = block_length(rng, bytes);
                let (mut lengths, mut left) = (Vec::new(), bytes);
                while left > 0 {
                    let len = (step * (lengths.len() + 1)).min(left);
                    lengths.push(len);
                    left -= len;
                }
                ordered(rng, &lengths, &byte)
            }
            _ => {
                let mut lengths = Vec::new();
                let mut left = bytes;
                let longest = 2 * block_length(rng, bytes);
                while left > 0 {
                    let len = (1 + rng.index(longest)).min(left);
                    lengths.push(len);
                    left -= len;
                }
                listed(rng, lengths, &byte)
            }
        };
        Side::around(rng, datatype, 1, runs)
    }

    /// `bytes` bytes that are a whole buffer.
    pub(crate) fn row(bytes: usize) -> Side {
        let byte = Datatype::from(Primitive::Byte);
        let datatype = Datatype::contiguous(bytes as u64, &byte).expect("a row");
        Side { datatype, count: 1, origin: 0, len: bytes, runs: vec![(0, bytes)] }
    }

    /// About `bytes` bytes in blocks of 64 with gaps of `gap`.
    pub(crate) fn comb(bytes: usize, gap: usize) -> Side {
        Side::blocks(64, bytes, gap)
    }

    /// About `bytes` bytes in blocks of `len` with gaps of `gap`.
    pub(crate) fn blocks(len: usize, bytes: usize, gap: usize) -> Side {
        let block = Datatype::contiguous(len as u64, &Primitive::Byte.into()).expect("a row");
        let (count, pitch) = (bytes.div_ceil(len), len + gap);
        let datatype = Datatype::hvector(count as u64, 1, signed(pitch), &block).expect("rows");
        let runs = (0..count).map(|at| (at * pitch, len)).collect();
        Side { datatype, count: 1, origin: 0, len: count * pitch, runs }
    }

    /// A random type of up to five constructors, `repeats` times at some distance.
    pub(crate) fn random(rng: &mut Rng, kind: &mut Rng, repeats: usize) -> Side {
        let (old, typemap) = random_sample(kind, &Params::disjoint());
        let runs = typemap.runs(1).expect("a small type");
        let (low, high) = runs.iter().fold((0, 0), |(low, high): (i64, i64), run| {
            let end = run.displacement + i64::try_from(run.len).expect("a small type");
            (low.min(run.displacement), high.max(end))
        });
        let pitch = high - low + signed(rng.index(40));
        let all = Datatype::hvector(repeats as u64, 1, pitch, &old).expect("a small type");
        let place = |(at, run): (usize, &gapless_dtype::Run)| {
            let start = signed(at) * pitch + run.displacement - low;
            (usize::try_from(start).expect("from the lowest on"), run.len)
        };
        let each = (0..repeats).flat_map(|at| runs.iter().map(move |run| (at, run)));
        let runs: Vec<(usize, usize)> = each
            .map(place)
            .map(|(at, len)| (at, usize::try_from(len).expect("a small type")))
            .collect();
        let mut side = Side::around(rng, all, 1, runs);
        side.origin += low.unsigned_abs();
        side
    }

    /// In a buffer with something before and behind.
    fn around(
        rng: &mut Rng,
        datatype: Datatype,
        count: u64,
        mut runs: Vec<(usize, usize)>,
    ) -> Side {
        // On a vector of the kernels, or beside.
        let before = if rng.chance(50) { 16 * rng.index(5) } else { rng.index(64) };
        let end = runs.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        runs.iter_mut().for_each(|(at, _)| *at += before);
        let len = before + end + 1 + rng.index(64);
        Side { datatype, count, origin: before as u64, len, runs }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.datatype.commit().expect("a layout")
    }

    /// Bytes of the message.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    /// A buffer full of [`UNTOUCHED`] bytes, save the first `bytes` of the message `seed`.
    pub(crate) fn image(&self, seed: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![UNTOUCHED; self.len];
        let mut done = 0;
        for &(at, len) in &self.runs {
            let len = len.min(bytes - done);
            fill(&mut buffer[at..at + len], seed, done as u64);
            done += len;
        }
        buffer
    }
}

/// Writes the bytes of the message `seed` from byte `from` on: words that depend on all of seed and place.
fn fill(mut to: &mut [u8], seed: u64, mut from: u64) {
    while !to.is_empty() {
        let mixed = (seed ^ (from / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xff51_afd7_ed55_8ccd);
        let word = (mixed ^ (mixed >> 32)).to_le_bytes();
        let skip = usize::try_from(from % 8).unwrap_or(0);
        let part = &word[skip..(skip + to.len()).min(8)];
        to[..part.len()].copy_from_slice(part);
        from += part.len() as u64;
        to = &mut std::mem::take(&mut to)[part.len()..];
    }
}

/// A block's length for so many bytes: short ones only in short messages, so that lists stay short.
fn block_length(rng: &mut Rng, bytes: usize) -> usize {
    let least = bytes.div_ceil(20_000).max(1);
    let usual = *rng.pick(&[1, 4, 8, 12, 16, 24, 64, 100, 256, 4096]);
    least.next_multiple_of(usual.min(16)).max(usual)
}

fn equal(block: usize, bytes: usize) -> Vec<usize> {
    let mut lengths = vec![block; bytes / block];
    lengths.extend((!bytes.is_multiple_of(block)).then_some(bytes % block));
    lengths
}

/// Rows at equal distances; what does not fill a row comes after.
fn rows(rng: &mut Rng, bytes: usize, byte: &Datatype) -> (Datatype, Vec<(usize, usize)>) {
    let row = block_length(rng, bytes).min(bytes.max(1));
    let count = bytes / row;
    let pitch = row + *rng.pick(&[0, 1, 8, 16, row, 3 * row]);
    if bytes.is_multiple_of(row) {
        let all = Datatype::hvector(
            count as u64,
            1,
            signed(pitch),
            &Datatype::contiguous(row as u64, byte).expect("a row"),
        );
        return (all.expect("rows"), (0..count).map(|at| (at * pitch, row)).collect());
    }
    let rest = bytes % row;
    let runs: Vec<_> =
        (0..count).map(|at| (at * pitch, row)).chain([(count * pitch, rest)]).collect();
    (hindexed(&runs, byte), runs)
}

fn hindexed(runs: &[(usize, usize)], byte: &Datatype) -> Datatype {
    let lengths: Vec<u64> = runs.iter().map(|&(_, len)| len as u64).collect();
    let starts: Vec<i64> = runs.iter().map(|&(at, _)| signed(at)).collect();
    Datatype::hindexed(&lengths, &starts, byte).expect("a list")
}

/// Blocks one behind the other, with gaps between.
fn place(rng: &mut Rng, lengths: &[usize]) -> Vec<(usize, usize)> {
    let (mut at, wide) = (0, 1 + rng.index(40));
    let mut runs = Vec::with_capacity(lengths.len());
    for &len in lengths {
        runs.push((at, len));
        at += len + rng.index(wide);
    }
    runs
}

fn ordered(rng: &mut Rng, lengths: &[usize], byte: &Datatype) -> (Datatype, Vec<(usize, usize)>) {
    let runs = place(rng, lengths);
    (hindexed(&runs, byte), runs)
}

/// The same, or packed in another order than they lie in memory.
fn listed(rng: &mut Rng, lengths: Vec<usize>, byte: &Datatype) -> (Datatype, Vec<(usize, usize)>) {
    let mut runs = place(rng, &lengths);
    if rng.chance(50) {
        rng.shuffle(&mut runs);
    }
    (hindexed(&runs, byte), runs)
}
