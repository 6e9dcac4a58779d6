//! A triangle as rectangles, which a copy engine moves between two GPUs, and small triangles, which a kernel
//! moves meanwhile.
//!
//! Pure. Of runs whose lengths advance by a constant, every block of as many runs holds a rectangle and a
//! triangle; blocks of one height leave equal triangles, which are runs of the same kind again, an instance
//! for each block. The rectangles of neighbouring blocks are put together: the largest is half of a triangle,
//! the next two are a quarter.
//!
//! ```text
//!   1│            4 blocks: rectangles A (a half), B and C (an eighth each), 4 triangles (a quarter)
//!   B│2│
//!   A  │3│        Rectangles begin where runs begin, or end where they end, whichever is better aligned.
//!   A  │C│4│
//! ```
//!
//! Measured between two H200s, where a kernel alone reaches 0.945 of what a copy engine does: with half of the
//! bytes moved by a kernel meanwhile 0.97, with a quarter 0.98. Units: bytes.

use crate::rows::{Copies, Rows, Terms};
use gapless_kernels::launch::{Runs, TransferSide};
use smallvec::SmallVec;

/// Bytes of a rectangle's row at least.
const WIDTH_MIN: u64 = 256;

/// What copies move of some runs, and what is left to kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Rectangles; both sides have the same displacements and pitches.
    pub(crate) copies: Copies,
    /// The rest, and bytes of each: both sides have this shape.
    pub(crate) rest: SmallVec<[(TransferSide, u64); 2]>,
}

/// How runs with one beginning or one end lie: in which direction a rectangle's rows follow each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Begin,
    End,
}

/// All bytes of one instance of runs in `1 << levels` blocks, as `terms` allow; `None` where that is not worth
/// it, or the runs overlap.
pub(crate) fn shares(runs: &Runs, terms: Terms) -> Option<Shares> {
    let bytes = size(runs)?;
    split(runs, terms.levels(bytes)?)
}

/// Bytes of an instance.
fn size(runs: &Runs) -> Option<u64> {
    let count = i128::from(runs.count);
    let pairs = count.checked_mul(count - 1)? / 2;
    let grown = i128::from(runs.grow).checked_mul(pairs)?;
    let sum = count.checked_mul(i128::from(runs.len))?.checked_add(grown)?;
    u64::try_from(sum).ok().filter(|&sum| sum <= i64::MAX.cast_unsigned())
}

/// Runs in `1 << levels` blocks.
fn split(runs: &Runs, levels: u32) -> Option<Shares> {
    let blocks = 1u64.checked_shl(levels)?;
    let height = runs.count / blocks;
    if runs.instances != 1 || runs.grow == 0 || levels == 0 || height < 2 {
        return None;
    }
    // Everything below fits if the last run does, and the whole of them.
    let last = i128::from(runs.len) + i128::from(runs.count - 1) * i128::from(runs.grow);
    let longest = last.max(i128::from(runs.len));
    let apart = last >= 0 && i128::from(runs.step) >= longest;
    let reach = i128::from(runs.step).checked_mul(i128::from(runs.count))?;
    let (step, grow) = (runs.step, runs.grow);
    if !apart || reach > i128::from(i64::MAX) || grow == i64::MIN {
        return None;
    }
    let other = step.checked_add(grow)?;
    let anchor = if other.trailing_zeros() > step.trailing_zeros() && other > 0 {
        Anchor::End
    } else {
        Anchor::Begin
    };
    let wide = height.checked_mul(grow.unsigned_abs())?;
    let shape = TriangleShape { runs, anchor, height, wide, blocks };
    let mut copies = Copies::new();
    shape.rectangles(0, blocks, &mut copies);
    let pitched = |copy: &Rows| (copy.width..=Rows::PITCH_MAX).contains(&copy.src_pitch);
    if wide < WIDTH_MIN || !copies.iter().all(pitched) {
        return None;
    }
    let mut rest = SmallVec::new();
    let triangles = shape.triangles();
    rest.push((TransferSide::Affine(triangles), size(&triangles)?.checked_mul(blocks)?));
    let done = height * blocks;
    if done < runs.count {
        let tail = Runs {
            count: runs.count - done,
            displacement: shape.run(done),
            len: shape.len(done),
            ..*runs
        };
        let bytes = size(&tail)?;
        let side = match tail.count {
            1 => TransferSide::Contiguous(tail.displacement),
            _ => TransferSide::Affine(tail),
        };
        if bytes > 0 {
            rest.push((side, bytes));
        }
    }
    Some(Shares { copies, rest })
}

struct TriangleShape<'a> {
    runs: &'a Runs,
    anchor: Anchor,
    /// Runs of a block.
    height: u64,
    /// Bytes by which the first runs of neighbouring blocks differ.
    wide: u64,
    blocks: u64,
}

impl TriangleShape<'_> {
    /// Where a run begins.
    fn run(&self, number: u64) -> i64 {
        self.runs.displacement.wrapping_add(self.runs.step.wrapping_mul(number.cast_signed()))
    }

    fn len(&self, number: u64) -> u64 {
        let grown = self.runs.grow.wrapping_mul(number.cast_signed());
        self.runs.len.wrapping_add_signed(grown)
    }

    /// The rectangles of blocks `from..to`, a power of two of them: one in the half whose runs are longer,
    /// beside what was taken before, and those of both halves.
    fn rectangles(&self, from: u64, to: u64, copies: &mut Copies) {
        let half = (to - from) / 2;
        if half == 0 {
            return;
        }
        let middle = from + half;
        let (first, taken) = match self.runs.grow {
            1.. => (middle, from * self.wide),
            _ => (from, (self.blocks - to) * self.wide),
        };
        let (first, width) = (first * self.height, half * self.wide);
        let (begin, pitch) = match self.anchor {
            Anchor::Begin => (taken, self.runs.step),
            Anchor::End => {
                let begin = self.len(first).wrapping_sub(taken).wrapping_sub(width);
                (begin, self.runs.step.wrapping_add(self.runs.grow))
            }
        };
        let at = self.run(first).wrapping_add_unsigned(begin);
        let pitch = pitch.cast_unsigned();
        copies.push(Rows {
            src: at,
            dst: at,
            width,
            rows: half * self.height,
            src_pitch: pitch,
            dst_pitch: pitch,
        });
        self.rectangles(from, middle, copies);
        self.rectangles(middle, to, copies);
    }

    /// What the rectangles leave of each block.
    fn triangles(&self) -> Runs {
        let runs = self.runs;
        let all = (self.blocks - 1) * self.wide;
        let narrows = runs.grow < 0;
        let (skipped, pitch) = match self.anchor {
            Anchor::Begin => (if narrows { all } else { 0 }, runs.step.wrapping_add(runs.grow)),
            Anchor::End => (0, runs.step),
        };
        Runs {
            count: self.height,
            displacement: runs.displacement.wrapping_add_unsigned(skipped),
            len: if narrows { runs.len.wrapping_sub(all) } else { runs.len },
            instances: self.blocks,
            extent: pitch.wrapping_mul(self.height.cast_signed()),
            ..*runs
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::testkit::Rng;

    fn bytes(runs: &Runs) -> Vec<i64> {
        let mut all = Vec::new();
        for instance in 0..runs.instances.cast_signed() {
            for run in 0..runs.count.cast_signed() {
                let at = runs.displacement + instance * runs.extent + run * runs.step;
                let len = runs.len.cast_signed() + run * runs.grow;
                assert!(len >= 0, "{runs:?}");
                all.extend(at..at + len);
            }
        }
        all
    }

    /// Every byte that shares move, in the order of addresses.
    fn moved(shares: &Shares) -> Vec<i64> {
        let mut all = Vec::new();
        for copy in &shares.copies {
            assert_eq!((copy.src, copy.src_pitch), (copy.dst, copy.dst_pitch));
            assert!(copy.width >= WIDTH_MIN && copy.src_pitch >= copy.width, "{copy:?}");
            for row in 0..copy.rows {
                let at = copy.src + (row * copy.src_pitch).cast_signed();
                all.extend(at..at + copy.width.cast_signed());
            }
        }
        for (side, len) in &shares.rest {
            let before = all.len();
            match side {
                TransferSide::Affine(runs) => {
                    assert!(runs.count >= 2);
                    all.extend(bytes(runs));
                }
                &TransferSide::Contiguous(at) => all.extend(at..at + len.cast_signed()),
                _ => panic!("{side:?}"),
            }
            assert_eq!(*len, (all.len() - before) as u64);
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn rectangles_and_triangles_are_all_of_it_and_nothing_twice() {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut split_up = 0;
        let rounds = gapless_testkit::rounds(500);
        for _ in 0..rounds {
            let grow = *rng.pick(&[8i64, 16, 100, 1, -8, -16, -100, -1]);
            let count = 2 + rng.below(120);
            let least = rng.below(3) * 4;
            let most = least + (count - 1) * grow.unsigned_abs();
            let len = if grow > 0 { least } else { most };
            let step = most.cast_signed() + *rng.pick(&[0, 0, 8, 5, 100]) + grow.abs();
            let step = if rng.chance(10) { most.cast_signed() } else { step };
            let displacement = rng.between(-500, 500);
            let runs = Runs { count, displacement, step, len, grow, instances: 1, extent: 77 };
            let levels = 1 + u32::try_from(rng.below(3)).unwrap();
            let Some(shares) = split(&runs, levels) else { continue };
            split_up += 1;
            assert_eq!(shares.copies.len(), (1 << levels) - 1);
            let mut expected = bytes(&runs);
            expected.sort_unstable();
            assert_eq!(moved(&shares), expected, "{runs:?} {levels}: {shares:?}");
        }
        assert!(split_up > rounds * 60 / 500, "{split_up}");
    }

    fn triangle(n: u64, narrows: bool) -> Runs {
        let (count, displacement, instances, extent) = (n, 0, 1, 0);
        let (line, word) = (8 * n.cast_signed(), 8);
        let (step, len, grow) =
            if narrows { (line + word, 8 * n, -word) } else { (line, word.cast_unsigned(), word) };
        Runs { count, displacement, step, len, grow, instances, extent }
    }

    #[test]
    fn a_triangle_is_three_copies_and_a_quarter_left_to_kernels() {
        for narrows in [false, true] {
            let shares = split(&triangle(1024, narrows), 2).unwrap();
            let shapes: Vec<_> =
                shares.copies.iter().map(|copy| (copy.rows, copy.width, copy.src_pitch)).collect();
            // Whole lines of the matrix apart, whichever end of the runs is in one column.
            assert_eq!(shapes, [(512, 4096, 8192), (256, 2048, 8192), (256, 2048, 8192)]);
            assert_eq!(shares.rest.len(), 1);
            assert_eq!(shares.rest[0].1, 4 * 256 * 257 / 2 * 8);
        }
        // Blocks of 256 runs, and one run more.
        let shares = split(&triangle(1025, false), 2).unwrap();
        assert_eq!(shares.rest[1], (TransferSide::Contiguous(1024 * 1025 * 8), 1025 * 8));
        assert!(matches!(
            split(&triangle(1027, true), 2).unwrap().rest[1],
            (TransferSide::Affine(_), 48)
        ));
    }

    #[test]
    fn what_overlaps_is_short_or_has_several_instances_is_left_alone() {
        let good = triangle(1024, false);
        assert!(split(&good, 1).is_some());
        for bad in [
            Runs { step: 8, ..good },
            Runs { step: -good.step, ..good },
            Runs { instances: 2, ..good },
            Runs { count: 7, ..good },
            Runs { grow: 0, ..good },
            Runs { step: i64::MAX, ..good },
            Runs { count: 1 << 62, ..good },
            Runs { grow: i64::MIN, ..good },
            Runs { grow: -8, ..good },
            Runs { len: u64::MAX, ..good },
        ] {
            assert_eq!(split(&bad, 2), None, "{bad:?}");
            assert_eq!(shares(&bad, Terms::new(0, false)), None, "{bad:?}");
        }
        assert_eq!(split(&triangle(100, false), 2), None, "rows of 200 bytes");
        assert_eq!(split(&good, 0), None);
        assert_eq!(split(&good, 64), None);
    }

    #[test]
    fn the_longer_the_more_copies() {
        let terms = Terms::new(4 << 20, false);
        let copies = |n, terms| shares(&triangle(n, true), terms).map(|shares| shares.copies.len());
        assert_eq!(copies(2000, terms), None);
        assert_eq!(copies(2048, terms), Some(1));
        assert_eq!(copies(4096, terms), Some(3));
        assert_eq!(copies(1100, Terms::new(4 << 20, true)), Some(3));
        assert_eq!(copies(4096, Terms::new(u64::MAX, false)), None);
    }
}
