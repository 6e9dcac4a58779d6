//! What is moved: shapes, where every byte of their streams lies, and the plans they need.

use gapless_kernels::launch::{
    Blocks, Grid, KernelAddress, Launches, Move, Planned, Runs, TransferSide, affine, contiguous,
    listed, mapped, strided,
};
use std::ops::Range;

/// Bytes before and after what a side may use.
pub(crate) const MARGIN: u64 = 64;

/// A repeatable sequence.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 24) % bound
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap();
            items.swap(at, other);
        }
    }
}

/// A shape, what lies where, and the plan it needs.
pub(crate) struct Case {
    pub(crate) side: TransferSide,
    /// Displacement of every byte of the stream.
    pub(crate) truth: Vec<i64>,
    pub(crate) plan: Vec<u8>,
}

impl Case {
    pub(crate) fn size(&self) -> u64 {
        self.truth.len() as u64
    }

    /// All of it, or a part.
    pub(crate) fn range(&self, random: &mut Random, whole: bool) -> Range<u64> {
        if whole {
            return 0..self.size();
        }
        let (a, b) = (random.below(self.size()), random.below(self.size()));
        a.min(b)..a.max(b) + 1
    }

    fn low(&self) -> i64 {
        self.truth.iter().copied().min().unwrap_or(0)
    }

    fn span(&self) -> u64 {
        let high = self.truth.iter().copied().max().unwrap_or(0);
        (high - self.low() + 1).cast_unsigned()
    }

    /// Bytes into a buffer at which displacement 0 is, so that all lies inside and is aligned to 16.
    pub(crate) fn origin(&self) -> i64 {
        (MARGIN.cast_signed() - self.low()).div_euclid(16) * 16 + 16
    }

    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.span() + 3 * MARGIN
    }

    pub(crate) fn launches(&self, what: &Move) -> Launches {
        match &self.side {
            TransferSide::Contiguous(displacement) => contiguous(what, *displacement),
            TransferSide::Strided(grid) => strided(what, grid),
            TransferSide::Affine(runs) => affine(what, runs),
            TransferSide::Listed(blocks) => listed(what, blocks),
            TransferSide::Mapped(plan) => mapped(what, plan),
        }
        .unwrap()
    }
}

/// Displacements of what shapes describe, written out.
pub(crate) fn grid_truth(grid: &Grid) -> Vec<i64> {
    let mut starts = vec![grid.displacement];
    for dim in &grid.dims {
        starts = starts
            .iter()
            .flat_map(|&start| (0..dim.count.cast_signed()).map(move |i| start + i * dim.stride))
            .collect();
    }
    spread(starts.into_iter().map(|start| (start, grid.len)))
}

pub(crate) fn runs_truth(runs: &Runs) -> Vec<i64> {
    let one = (0..runs.count.cast_signed()).map(|j| {
        let len = runs.len.cast_signed() + j * runs.grow;
        (runs.displacement + j * runs.step, len.cast_unsigned())
    });
    instances(&spread(one), runs.instances, runs.extent)
}

pub(crate) fn spread(blocks: impl Iterator<Item = (i64, u64)>) -> Vec<i64> {
    blocks.flat_map(|(start, len)| start..start + len.cast_signed()).collect()
}

pub(crate) fn instances(one: &[i64], count: u64, extent: i64) -> Vec<i64> {
    (0..count.cast_signed()).flat_map(|i| one.iter().map(move |at| at + i * extent)).collect()
}

pub(crate) fn place(offset: i64) -> KernelAddress {
    KernelAddress { address: 0, offset }
}

/// Shapes as cases.
pub(crate) fn strided_case(grid: Grid) -> Case {
    let truth = grid_truth(&grid);
    Case { side: TransferSide::Strided(grid), truth, plan: vec![0; 8] }
}

pub(crate) fn runs_case(runs: Runs) -> Case {
    Case { side: TransferSide::Affine(runs), truth: runs_truth(&runs), plan: vec![0; 8] }
}

pub(crate) fn blocks_case(blocks: Blocks, list: &[i64], plan: Vec<u8>) -> Case {
    let one =
        spread(list.iter().map(|entry| (blocks.displacement + entry * blocks.scale, blocks.len)));
    let truth = instances(&one, blocks.instances, blocks.extent);
    Case { side: TransferSide::Listed(blocks), truth, plan }
}

pub(crate) fn planned_case(planned: Planned, one: &[i64], plan: Vec<u8>) -> Case {
    let truth = instances(one, planned.instances, planned.extent);
    Case { side: TransferSide::Mapped(planned), truth, plan }
}
