//! Layouts for kernels that others launch: how the bytes of some instances are found, and the plan that this takes.
//!
//! The same forms and plans as the engine's. The engine keeps plans as long as it has room; who asks here keeps them as
//! long as wanted, because launches that are repeated from a graph find them where they were.

use crate::between::by_address;
use crate::form::Form;
use crate::nest::Nest;
use crate::plan::{MapWriter, Patches, Pieces, PlanKind, PlanSpec};
use crate::shared::closed;
use gapless_dtype::Layout;
use gapless_kernels::launch::{Grid, TransferSide};
use smallvec::SmallVec;

/// Bytes in which a plan is written at once.
const PIECE_BYTES: usize = 1 << 20;

/// How kernels find the bytes of some instances of a layout.
#[derive(Clone, Debug)]
pub struct Described {
    layout: Layout,
    count: u64,
    /// What takes no plan.
    closed: Option<TransferSide>,
    spec: PlanSpec,
}

impl Described {
    /// That of `count` instances.
    #[must_use]
    pub fn of(layout: &Layout, count: u64) -> Described {
        let closed = closed(Form::of(layout, count));
        Described { layout: layout.clone(), count, closed, spec: PlanSpec::of(layout) }
    }

    /// Bytes of the packed stream.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.size().saturating_mul(self.count)
    }

    /// Whether they are found without a plan.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The same, to be found by a plan.
    #[must_use]
    pub fn planned(self) -> Described {
        Described { closed: None, ..self }
    }

    /// What finds them without a plan, or by the plan that lies at address `plan`.
    #[must_use]
    pub fn side(&self, plan: u64) -> TransferSide {
        match &self.closed {
            Some(side) => side.clone(),
            None => self.spec.side(&self.layout, self.count, plan),
        }
    }

    /// Bytes of the plan.
    #[must_use]
    pub fn plan_bytes(&self) -> u64 {
        if self.is_closed() { 0 } else { self.spec.bytes }
    }

    /// The plan; empty if it takes none. `None` if it is too long for this machine's memory or for kernels.
    #[must_use]
    pub fn plan(&self) -> Option<Vec<u8>> {
        if self.is_closed() {
            return Some(Vec::new());
        }
        write(&self.layout, &self.spec)
    }

    /// Bytes that follow each other in memory and in the stream, on average.
    #[must_use]
    pub fn run(&self) -> u64 {
        match &self.closed {
            Some(TransferSide::Contiguous(_)) => self.bytes(),
            Some(TransferSide::Strided(grid)) => run(grid),
            _ => {
                let blocks = self.layout.blocks_of(self.count).unwrap_or(u64::MAX);
                self.bytes() / blocks.max(1)
            }
        }
    }
}

/// Bytes of a grid that lie behind each other in memory, from its begin on, in the grid's order.
fn run(grid: &Grid) -> u64 {
    let mut len = grid.len;
    for dim in grid.dims.iter().rev().filter(|dim| dim.count > 1) {
        if u64::try_from(dim.stride) != Ok(len) {
            break;
        }
        len = len.saturating_mul(dim.count);
    }
    len
}

/// Both sides in another order than the stream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedSides {
    /// Where the bytes lie at the source.
    pub from: Grid,
    /// And at the destination.
    pub to: Grid,
    /// Bytes that follow each other, at the source and at the destination: in the order, or within a tile.
    pub runs: [u64; 2],
}

/// Both sides in the order of the destination's addresses, if both are contiguous spans or grids of which all is moved.
#[must_use]
pub fn in_one_order(from: &Described, to: &Described) -> Option<OrderedSides> {
    let (from, to) = by_addresses(from, to)?.grids();
    let runs = [run(&from), run(&to)];
    Some(OrderedSides { from, to, runs })
}

/// Both sides in tiles, if one is the other transposed: at the source and at the destination, a tile has rows of 32 to 128
/// bytes.
#[must_use]
pub fn in_tiles(from: &Described, to: &Described) -> Option<OrderedSides> {
    let (tiles, runs) = by_addresses(from, to)?.in_tiles()?;
    let (from, to) = tiles.grids();
    Some(OrderedSides { from, to, runs })
}

fn by_addresses(from: &Described, to: &Described) -> Option<Nest> {
    let grid = |side: &Described| match side.closed.as_ref()? {
        TransferSide::Strided(grid) => Some(grid.clone()),
        &TransferSide::Contiguous(displacement) => {
            Some(Grid { displacement, len: side.bytes(), dims: SmallVec::new() })
        }
        _ => None,
    };
    let (_, ordered) = by_address(&grid(from)?, &grid(to)?, from.bytes())?;
    Some(ordered)
}

fn write(layout: &Layout, spec: &PlanSpec) -> Option<Vec<u8>> {
    let len = usize::try_from(spec.bytes).ok().filter(|len| *len < isize::MAX as usize)?;
    let mut plan = Vec::new();
    plan.try_reserve_exact(len).ok()?;
    plan.resize(len, 0);
    let mut staging = vec![0; PIECE_BYTES];
    let mut put = |staging: &[u8], patches: &mut Patches| -> Option<()> {
        for patch in patches.drain(..) {
            let at = usize::try_from(patch.at).ok()?;
            let from = staging.get(patch.staged)?;
            plan.get_mut(at..at.checked_add(from.len())?)?.copy_from_slice(from);
        }
        Some(())
    };
    let mut patches = Patches::new();
    if let Some(pieces) = Pieces::of(layout, spec, PIECE_BYTES) {
        let mut before = 0;
        for number in 0..pieces.count() {
            let wrote = pieces.write(number, &mut staging, &mut patches);
            pieces.settle(before, wrote.blocks, &mut staging, &mut patches);
            before += wrote.blocks;
            put(&staging, &mut patches)?;
        }
        return Some(plan);
    }
    let PlanKind::Mapped(map) = spec.kind else { return None };
    let mut writer = MapWriter::new(layout, spec, map);
    while writer.next(&mut staging, &mut patches).is_some() {
        put(&staging, &mut patches)?;
    }
    Some(plan)
}

#[cfg(test)]
mod tests;
