//! Something to pack and unpack, and how it is described.

use crate::floor::Traffic;
use gapless_kernels::Width;
use gapless_kernels::launch::{
    Blocks, Grid, GridDim, KernelAddress, Launches, Move, MovePart, Planned, Runs, TransferSide,
    affine, contiguous, fused, listed, mapped, strided,
};
use gapless_kernels::plan::Encoder;

pub(crate) type Shaped = Box<dyn Fn(&Move) -> Launches>;

/// Where the packed side lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Device,
    /// In pinned memory of the host.
    Pinned,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) shape: Shaped,
    pub(crate) span: u64,
    pub(crate) payload: u64,
    pub(crate) plan: Vec<u8>,
    pub(crate) packed: Packed,
    /// Budgets of blocks; 0 is none.
    pub(crate) budgets: &'static [u32],
    pub(crate) traffic: Box<dyn Fn() -> Traffic>,
    /// What moves into the same layout elsewhere, where that is timed as well.
    pub(crate) side: Option<TransferSide>,
    /// The same by the general kernel: its plan and shape.
    pub(crate) check: Option<(Vec<u8>, Shaped)>,
}

impl Row {
    fn of(name: String, span: u64, payload: u64, shape: Shaped) -> Row {
        Row {
            name,
            shape,
            span,
            payload,
            plan: Vec::new(),
            packed: Packed::Device,
            budgets: &[0],
            traffic: Box::new(move || Traffic::of(std::iter::once((0, payload)))),
            side: None,
            check: None,
        }
    }

    pub(crate) fn budgets(self, budgets: &'static [u32]) -> Row {
        Row { budgets, ..self }
    }

    pub(crate) fn pinned(self) -> Row {
        Row { packed: Packed::Pinned, name: format!("{} pinned", self.name), ..self }
    }

    pub(crate) fn contiguous(name: String, payload: u64) -> Row {
        Row::of(name, payload, payload, Box::new(|what| contiguous(what, 0).expect("it fits")))
    }

    pub(crate) fn grid(name: String, grid: Grid) -> Row {
        let counts = grid.dims.iter().map(|dim| dim.count).product::<u64>();
        let along = |dim: &GridDim| (dim.count - 1) * dim.stride.unsigned_abs();
        let span =
            grid.displacement.unsigned_abs() + grid.len + grid.dims.iter().map(along).sum::<u64>();
        let of = grid.clone();
        let payload = grid.len * counts;
        let side = Some(TransferSide::Strided(grid.clone()));
        let shape: Shaped = Box::new(move |what| strided(what, &grid).expect("it fits"));
        Row {
            traffic: Box::new(move || Traffic::of_grid(&of)),
            side,
            ..Row::of(name, span, payload, shape)
        }
    }

    pub(crate) fn runs(name: String, runs: Runs, span: u64, payload: u64) -> Row {
        let blocks = move || {
            (0..runs.count.cast_signed()).map(move |j| {
                (j * runs.step, (runs.len.cast_signed() + j * runs.grow).cast_unsigned())
            })
        };
        let shape: Shaped = Box::new(move |what| affine(what, &runs).expect("it fits"));
        Row {
            traffic: Box::new(move || Traffic::of(blocks())),
            side: Some(TransferSide::Affine(runs)),
            ..Row::of(name, span, payload, shape)
        }
    }

    pub(crate) fn list(name: String, list: &[i32], scale: i64, len: u64) -> Row {
        let blocks: Vec<_> = list.iter().map(|&at| (i64::from(at) * scale, len)).collect();
        let last = blocks.iter().map(|block| block.0.cast_unsigned()).max();
        let span = last.map_or(0, |last| last + len);
        let described = Blocks {
            displacement: 0,
            len,
            count: list.len() as u64,
            list: 0,
            entry_bytes: 4,
            scale,
            bits: scale.cast_unsigned(),
            instances: 1,
            extent: 0,
        };
        let shape: Shaped = Box::new(move |what| listed(what, &described).expect("it fits"));
        Row {
            plan: list.iter().flat_map(|entry| entry.to_ne_bytes()).collect(),
            traffic: Box::new(move || Traffic::of(blocks.iter().copied())),
            side: Some(TransferSide::Listed(described)),
            ..Row::of(name, span, len * list.len() as u64, shape)
        }
    }

    /// Any blocks, by a plan in words of `width`.
    pub(crate) fn general(name: String, blocks: Vec<(i64, u64)>, width: Width) -> Row {
        let payload = blocks.iter().map(|block| block.1).sum();
        let span = blocks.iter().map(|block| block.0.cast_unsigned() + block.1).max().unwrap_or(0);
        let (plan, planned) = general(&blocks, width);
        Row {
            plan,
            side: Some(TransferSide::Mapped(planned)),
            traffic: Box::new(move || Traffic::of(blocks.iter().copied())),
            ..Row::of(name, span, payload, by_plan(planned))
        }
    }

    /// Many grids at once, one after the other on the packed side.
    pub(crate) fn fused(name: String, span: u64, grids: Vec<Grid>) -> Row {
        let mut offset = 0u64;
        let mut parts = Vec::new();
        for grid in &grids {
            let len = grid.len * grid.dims.iter().map(|dim| dim.count).product::<u64>();
            parts.push(MovePart {
                range: 0..len,
                side: TransferSide::Strided(grid.clone()),
                typed: KernelAddress { address: 0, offset: 0 },
                packed: KernelAddress { address: 0, offset: offset.cast_signed() },
            });
            offset += len;
        }
        let shape: Shaped =
            Box::new(move |what| fused(what.direction, &parts, what.budget).expect("they fit"));
        Row {
            traffic: Box::new(move || {
                grids.iter().map(Traffic::of_grid).fold(Traffic::default(), Traffic::and)
            }),
            ..Row::of(name, span, offset, shape)
        }
    }

    /// To be compared with the general kernel.
    pub(crate) fn checked(self, blocks: &[(i64, u64)]) -> Row {
        let (plan, planned) = general(blocks, Width::W8);
        Row { check: Some((plan, by_plan(planned))), ..self }
    }
}

fn by_plan(planned: Planned) -> Shaped {
    Box::new(move |what| mapped(what, &planned).expect("it fits"))
}

/// The plan of any blocks.
fn general(blocks: &[(i64, u64)], width: Width) -> (Vec<u8>, Planned) {
    let mut encoder = Encoder::new(width);
    for &(at, len) in blocks {
        encoder.push(at, len).expect("multiples of the width");
    }
    let (plan, shifts) = encoder.to_bytes().expect("they fit");
    let planned = Planned {
        displacement: 0,
        size: encoder.size(),
        width,
        units: 0,
        shifts,
        shift_bytes: encoder.shift_bytes(),
        instances: 1,
        extent: 0,
    };
    (plan, planned)
}
