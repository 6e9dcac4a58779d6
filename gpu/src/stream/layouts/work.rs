//! What a rank's kernel does of a collective with layouts: which end moves a block, and how. Pure, and the same at both
//! ends, which know both layouts.
//!
//! | way | what goes over the link | good where |
//! |---|---|---|
//! | push | the source writes into the destination's memory | the destination has long runs |
//! | pull | the destination reads the source's memory | the source has long runs |
//! | staged | the source packs into the destination's staging memory, and it unpacks | both have short ones |
//!
//! What is pushed or pulled may be moved in the order of the packed stream, in that of the destination's addresses, or in
//! tiles ([`MoveOrder`]): the cheapest route decides.
//!
//! Links move memory in packets, and what is read in lines of 128 bytes: scattered words cost as much as those. Memory of
//! the GPU itself is several times as fast, and is accessed in sectors of 32 bytes.

use super::StreamWay;
use gapless_dtype::Layout;
use gapless_dtype_cuda::{Described, OrderedSides, in_one_order, in_tiles};
use gapless_kernels::args::DIMS_MAX;
use gapless_kernels::launch::{KernelAddress, TransferSide};
use gapless_kernels::peers::RANKS_MAX;
use gapless_kernels::peers::layouts::{Group, LayoutStep, Moved, staged};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One end of a block.
#[derive(Clone, Debug)]
pub(super) struct BlockEnd {
    /// Tells blocks between the same two ranks apart.
    pub(super) lane: u32,
    /// Bytes from the registration's begin to displacement 0.
    pub(super) at: u64,
    pub(super) count: u64,
    pub(super) layout: Layout,
    pub(super) described: Described,
    /// The layout as bytes: what plans are told apart by.
    pub(super) flat: Arc<[u8]>,
}

/// How a block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamRoute {
    pub(super) way: StreamWay,
    pub(super) order: MoveOrder,
}

/// In which order the bytes of a block are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveOrder {
    /// That of the packed stream.
    Stream,
    /// That of the destination's addresses.
    Addresses,
    /// Tile after tile of a transposed matrix, in which both sides have runs.
    Tiles,
}

impl MoveOrder {
    /// Both sides of a block in this order, if it has it and it is not the stream's.
    fn of(self, source: &BlockEnd, target: &BlockEnd) -> Option<OrderedSides> {
        let (source, target) = (&source.described, &target.described);
        let ordered = match self {
            MoveOrder::Stream => None,
            MoveOrder::Addresses => in_one_order(source, target),
            MoveOrder::Tiles => in_tiles(source, target),
        };
        ordered.filter(|it| it.from.dims.len().max(it.to.dims.len()) <= DIMS_MAX)
    }
}

/// A block, from one rank to another.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) source: BlockEnd,
    pub(super) target: BlockEnd,
    pub(super) route: StreamRoute,
}

/// Blocks that two ranks do not see alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unequal {
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// Bytes that memory of the GPU moves while the link moves one.
const MEMORY: f64 = 8.0;

/// Bytes that the link moves in the time that staging takes more, whatever its length is: a meeting.
const MEETING: f64 = 1e6;

/// What a byte costs that goes over the link and through memory at the same time: the slower of both, and a part of the
/// other, so that of two ways with the same cost over the link the one is taken that is kinder to memory.
fn both(link: f64, memory: f64) -> f64 {
    link.max(memory) + memory / 8.0
}

/// What goes over the link, or through memory, for each byte in runs of `run` bytes that come in units of `unit`, each
/// with `more`.
fn units(run: u64, unit: u64, more: u64) -> f64 {
    let run = run.max(1);
    (run.div_ceil(unit) * (unit + more)) as f64 / run as f64
}

/// Of writes over the link: whole sectors, in packets of up to 128 bytes with a head of 16.
fn written(run: u64) -> f64 {
    units(run, 32, 0) + units(run, 128, 16) - units(run, 128, 0)
}

/// Of reads over the link: whole lines.
fn fetched(run: u64) -> f64 {
    units(run, 128, 16)
}

/// Of reads in the GPU's own memory; what is written in part costs as much again.
fn near(run: u64, writes: bool) -> f64 {
    let twice = if writes && run < 32 { 2.0 } else { 1.0 };
    units(run, 32, 0) * twice / MEMORY
}

/// The cheapest route of those that are allowed; within a rank, the order alone counts.
pub(super) fn route(
    source: &BlockEnd,
    target: &BlockEnd,
    within: bool,
    forced: Option<StreamWay>,
) -> StreamRoute {
    let bytes = source.described.bytes();
    let mut all: Vec<(f64, StreamRoute)> = Vec::new();
    for order in [MoveOrder::Stream, MoveOrder::Addresses, MoveOrder::Tiles] {
        let runs = match order {
            MoveOrder::Stream => Some([source.described.run(), target.described.run()]),
            _ => order.of(source, target).map(|ordered| ordered.runs),
        };
        let Some([from, to]) = runs else { continue };
        let mut add = |way, cost: f64| all.push((cost, StreamRoute { way, order }));
        if within {
            add(StreamWay::Push, near(from, false) + near(to, true));
            continue;
        }
        add(StreamWay::Push, both(written(to), near(from, false)));
        add(StreamWay::Pull, both(fetched(from), near(to, true)));
        if order == MoveOrder::Stream {
            let out = both(fetched(u64::MAX / 256), near(from, false));
            let back = near(u64::MAX / 256, false) + near(to, true);
            add(StreamWay::Staged, out + back + MEETING / bytes.max(1) as f64);
        }
    }
    let allowed = |way| within || forced.is_none_or(|forced| forced == way);
    let of = all.into_iter().filter(|(_, route)| allowed(route.way));
    let best = of.min_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map_or(StreamRoute { way: StreamWay::Push, order: MoveOrder::Stream }, |(_, route)| route)
}

/// The blocks that `from` sends to `to`, matched by their lanes; those without bytes left out.
pub(super) fn pair(
    (from, to): (u32, u32),
    sends: &[BlockEnd],
    recvs: &[BlockEnd],
    forced: Option<StreamWay>,
) -> Result<Vec<Edge>, Unequal> {
    let by_lane = |ends: &[BlockEnd]| -> BTreeMap<u32, BlockEnd> {
        ends.iter().map(|end| (end.lane, end.clone())).collect()
    };
    let (sends, mut recvs) = (by_lane(sends), by_lane(recvs));
    let mut edges = Vec::with_capacity(sends.len());
    for (lane, source) in sends {
        let sent = source.described.bytes();
        let target = recvs.remove(&lane);
        let received = target.as_ref().map_or(0, |target| target.described.bytes());
        if sent != received {
            return Err(Unequal { sent, received });
        }
        if let Some(target) = target.filter(|_| sent > 0) {
            let route = route(&source, &target, from == to, forced);
            edges.push(Edge { from, to, source, target, route });
        }
    }
    match recvs.into_values().map(|end| end.described.bytes()).find(|bytes| *bytes > 0) {
        Some(received) => Err(Unequal { sent: 0, received }),
        None => Ok(edges),
    }
}

impl Edge {
    fn is_staged(&self) -> bool {
        self.from != self.to && self.route.way == StreamWay::Staged
    }

    /// Whether this rank's kernel reads the source's layout, and whether it writes the destination's.
    fn sides(&self, rank: u32) -> [bool; 2] {
        let (is_source, is_target) = (self.from == rank, self.to == rank);
        match self.route.way {
            _ if is_source && is_target => [true, true],
            StreamWay::Push => [is_source, is_source],
            StreamWay::Pull => [is_target, is_target],
            StreamWay::Staged => [is_source, is_target],
        }
    }
}

/// Bytes of staging memory that `from` fills at `to`.
pub(super) fn staged_bytes(edges: &[Edge], from: u32, to: u32) -> u64 {
    let of = edges.iter().filter(|edge| edge.is_staged() && (edge.from, edge.to) == (from, to));
    of.map(|edge| staged(edge.source.described.bytes())).sum()
}

/// The ends whose layouts this rank's kernel finds by a plan, one of each layout.
pub(super) fn planned(edges: &[Edge], rank: u32) -> BTreeMap<Arc<[u8]>, &Described> {
    let mut plans = BTreeMap::new();
    for edge in edges {
        let ends = [&edge.source, &edge.target].into_iter().zip(edge.sides(rank));
        for (end, _) in ends.filter(|(end, used)| *used && !end.described.is_closed()) {
            plans.insert(Arc::clone(&end.flat), &end.described);
        }
    }
    plans
}

/// Addresses, as a rank's device sees them.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    /// Where each rank's registration begins that is sent from.
    pub(super) send: [u64; RANKS_MAX],
    /// And the one that is received into.
    pub(super) recv: [u64; RANKS_MAX],
    /// Where this rank's part of each rank's staging memory begins.
    pub(super) out: [u64; RANKS_MAX],
    /// Where each rank's part of this rank's staging memory begins.
    pub(super) back: [u64; RANKS_MAX],
    /// Where each plan lies.
    pub(super) plans: BTreeMap<Arc<[u8]>, u64>,
}

impl Addresses {
    fn side(
        &self,
        end: &BlockEnd,
        starts: &[u64; RANKS_MAX],
        rank: u32,
    ) -> (TransferSide, KernelAddress) {
        let plan = self.plans.get(&end.flat).copied().unwrap_or(0);
        (end.described.side(plan), at(starts[rank as usize].wrapping_add(end.at)))
    }
}

fn at(address: u64) -> KernelAddress {
    KernelAddress { address: 0, offset: address.cast_signed() }
}

/// What a rank's kernel moves.
pub(super) fn groups(edges: &[Edge], rank: u32, ranks: u32, addresses: &Addresses) -> Vec<Group> {
    // By what both ends know: the two ranks, and whether it is staged.
    let mut groups: BTreeMap<(u32, u32, bool), Group> = BTreeMap::new();
    let mut staged_so_far = [0u64; 2 * RANKS_MAX];
    for edge in edges.iter().filter(|edge| edge.sides(rank) != [false, false]) {
        let bytes = edge.source.described.bytes();
        let mut from = addresses.side(&edge.source, &addresses.send, edge.from);
        let mut to = addresses.side(&edge.target, &addresses.recv, edge.to);
        let mut step = LayoutStep::First;
        if let Some(ordered) = edge.route.order.of(&edge.source, &edge.target) {
            (from.0, to.0) =
                (TransferSide::Strided(ordered.from), TransferSide::Strided(ordered.to));
        }
        if edge.is_staged() {
            let (starts, peer, first) = if edge.from == rank {
                (&addresses.out, edge.to, 0)
            } else {
                (&addresses.back, edge.from, RANKS_MAX)
            };
            let so_far = &mut staged_so_far[first + peer as usize];
            let place = at(starts[peer as usize].wrapping_add(*so_far));
            *so_far += staged(bytes);
            let contiguous = (TransferSide::Contiguous(0), place);
            if edge.from == rank {
                to = contiguous;
            } else {
                from = contiguous;
                step = LayoutStep::Second;
            }
        }
        let distance = (edge.to + ranks - edge.from) % ranks;
        let key = (edge.from, edge.to, edge.is_staged());
        let group = groups.entry(key).or_insert(Group { step, distance, moved: Vec::new() });
        group.moved.push(Moved { bytes, from, to });
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests;
