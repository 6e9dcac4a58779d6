//! From a description to what carries it out: checks everything that this rank can see, chooses an algorithm and
//! builds the schedule. Pure: nothing is sent, no memory is touched.

use super::buffers::Buffer;
use super::{Collective, CollectiveError, Root};
use gapless_coll::choose::{Table, choose, shared_rule_for};
use gapless_coll::runtime::{OwnedCall, ScheduleCache, Schedules};
use gapless_coll::topologies::Neighborhood;
use gapless_coll::{
    BuildError, Call, CallBuffers, Combine, HyperQ, Locality, Operation, Reduction, Schedule,
    build, build_apart,
};
use gapless_dtype::{Equivalence, Layout, Primitive};
use gapless_engine::{EngineError, Op, Operand, Typed};
use std::borrow::Cow;
use std::sync::Arc;

pub(super) const SEND: &str = "send buffer";
pub(super) const RECV: &str = "receive buffer";
pub(super) const COUNTS: &str = "list of counts";

/// Where a rank is among the others.
pub(super) struct RankPlace<'c> {
    pub(super) rank: usize,
    pub(super) table: &'c Table,
    pub(super) locality: &'c Locality,
    /// Schedules of earlier calls.
    pub(super) recent: &'c ScheduleCache,
    /// Whether the ranks of this host have a segment, if those of the communicator have none.
    pub(super) shares: Shares,
    /// Asked for by collectives among neighbours only.
    pub(super) neighbors: &'c dyn Fn() -> Result<&'c Arc<Neighborhood>, CollectiveError>,
}

/// Whether the ranks of this host have a segment of their own, and do their part of a collective by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    No,
    Yes,
    /// It is being made, or one of all ranks is.
    Unknown,
}

/// What carries a collective out needs.
#[derive(Debug)]
pub(super) struct Prepared {
    /// `None`: it is one of an intercommunicator's.
    pub(super) call: Option<OwnedCall>,
    /// Whether it goes through memory that all ranks share, if they do.
    pub(super) shared: bool,
    /// Whether the ranks tell each other first where their buffers lie.
    pub(super) asks: bool,
    /// By what it goes otherwise, unless it is known that they do.
    pub(super) schedules: Option<Schedules>,
    pub(super) buffers: CallBuffers,
    pub(super) combine: Option<Combine>,
}

/// A description that was checked. It keeps its buffers.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) call: OwnedCall,
    pub(super) combine: Option<Combine>,
    pub(super) uses: Uses,
}

/// What becomes of the buffers of a description.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// Whether they matter at this rank.
    pub(super) send: bool,
    pub(super) recv: bool,
    /// Whether they are bytes that are combined as numbers.
    pub(super) as_numbers: bool,
}

impl Uses {
    /// Whether some of what matters lies where the CPU reaches it.
    pub(super) fn on_host(self, send: &Buffer, recv: &Buffer) -> bool {
        let near = |buffer: &Buffer| {
            let parts = buffer.parts().iter().filter(|typed| typed.packed_bytes() > 0);
            parts.into_iter().any(|typed| typed.space().cpu_accessible())
        };
        self.send && near(send) || self.recv && near(recv)
    }

    /// What is carried out: no pages are left in it.
    pub(super) fn buffers(
        self,
        send: Buffer,
        recv: Buffer,
    ) -> Result<CallBuffers, CollectiveError> {
        let blocks = |uses: bool, mut buffer: Buffer, argument| {
            if !uses {
                return Ok::<_, CollectiveError>(gapless_coll::BufferBlocks::None);
            }
            for typed in buffer.parts_mut() {
                if self.as_numbers {
                    *typed = numbers(typed);
                } else if let Cow::Owned(plain) = without_pages(typed, argument)? {
                    *typed = plain;
                }
            }
            Ok(buffer.into_blocks())
        };
        let (send, recv) = (blocks(self.send, send, SEND)?, blocks(self.recv, recv, RECV)?);
        Ok(CallBuffers { send, recv })
    }
}

impl Collective<'_> {
    /// Whether buffers, root, lists and operation fit together, as far as this rank can see.
    pub(super) fn check(&self, place: &RankPlace<'_>) -> Result<Checked, CollectiveError> {
        let Collective { operation, root, send, recv, counts, op, .. } = self;
        let (operation, root) = (*operation, *root);
        let Root::Rank(root) = root else { return Err(CollectiveError::Root { root }) };
        let root = root as usize;
        let is_root = place.rank == root;
        let (sends, receives) = significance(operation, is_root);
        let send = settle(send, SEND, sends)?;
        let recv = settle(recv, RECV, receives)?;
        if !(operation == Operation::Bcast && is_root) {
            once_each(recv)?;
        }
        let combined = op.as_ref().map(|op| combine(op, send, recv)).transpose()?;
        let args = BufferArgs { operation, root, send, recv, counts };
        let lens = args.lens(place)?;
        let of = combined.as_ref().zip(op.as_ref()).map(|((combine, _), op)| Reduction {
            unit: combine.bytes(),
            commutative: op.is_commutative(),
        });
        let call = args.call(lens, of, place)?;
        let (combine, as_numbers) = combined.map_or((None, false), |(by, are)| (Some(by), are));
        let uses = Uses { send: sends.is_some(), recv: receives.is_some(), as_numbers };
        Ok(Checked { call, combine, uses })
    }

    /// `may_share`: it may go through shared memory.
    pub(super) fn prepare(
        self,
        place: &RankPlace<'_>,
        may_share: bool,
    ) -> Result<Prepared, CollectiveError> {
        let Checked { call: owned, combine, uses } = self.check(place)?;
        let call = owned.call();
        let shared = may_share && shared_rule_for(place.table, &call, place.locality).is_some();
        let asks = shared && HyperQ::asks(&place.table.hyperq, &call, place.locality.ranks());
        // Whether it goes by messages is found out with the others if this rank has nothing in memory of the host.
        let may_be_apart = asks && !uses.on_host(&self.send, &self.recv);
        let needs_messages = !shared || may_be_apart || place.shares == Shares::Unknown;
        let schedules = needs_messages.then(|| place.schedules(&call)).transpose()?;
        let buffers = uses.buffers(self.send, self.recv)?;
        Ok(Prepared { call: Some(owned), shared, asks, schedules, buffers, combine })
    }
}

impl RankPlace<'_> {
    /// The schedules of a call by the algorithm that the table chooses.
    pub(super) fn schedules(&self, call: &Call<'_>) -> Result<Schedules, BuildError> {
        let schedule = self.schedule(call, self.shares != Shares::No)?;
        let unknown = self.shares == Shares::Unknown && schedule.subgroup().is_some();
        let apart = unknown.then(|| self.schedule(call, false)).transpose()?;
        Ok(Schedules::new(schedule, apart))
    }

    fn schedule(&self, call: &Call<'_>, shares: bool) -> Result<Arc<Schedule>, BuildError> {
        let RankPlace { rank, table, locality, .. } = *self;
        let build = if shares { build } else { build_apart };
        let algorithm = || choose(table, call, locality);
        self.recent.schedule((call, shares), || build(rank, locality, call, &algorithm()))
    }
}

/// Whether the send buffer and the receive buffer matter at this rank, and if so, whether they may be in place.
fn significance(operation: Operation, is_root: bool) -> (Option<bool>, Option<bool>) {
    use Operation as O;
    let at_root = |in_place| is_root.then_some(in_place);
    match operation {
        O::Barrier => (None, None),
        O::Bcast => (None, Some(false)),
        O::Gather | O::Gatherv | O::Reduce => (Some(is_root), at_root(false)),
        O::Scatter | O::Scatterv => (at_root(false), Some(is_root)),
        O::NeighborAllgather | O::NeighborAlltoall => (Some(false), Some(false)),
        _ => (Some(true), Some(false)),
    }
}

/// A buffer, if it matters.
pub(super) fn settle<'s>(
    buffer: &'s Buffer,
    argument: &'static str,
    significance: Option<bool>,
) -> Result<&'s Buffer, CollectiveError> {
    const NOTHING: &Buffer = &Buffer::Nothing;
    match (buffer, significance) {
        (_, None) => Ok(NOTHING),
        (Buffer::Nothing, _) => Err(CollectiveError::Missing { argument }),
        (Buffer::InPlace, Some(false)) => Err(CollectiveError::InPlace { argument }),
        (buffer, _) => Ok(buffer),
    }
}

/// Whether no byte of a receive buffer is named twice. Blocks are apart from each other.
pub(super) fn once_each(recv: &Buffer) -> Result<(), CollectiveError> {
    for typed in recv.parts().iter().filter(|typed| typed.as_contiguous().is_none()) {
        if without_pages(typed, RECV)?.overlaps() {
            return Err(CollectiveError::Overlap { argument: RECV });
        }
    }
    Ok(())
}

/// The same bytes without pages, which schedules and GPUs' collectives do not know.
fn without_pages<'t>(
    typed: &'t Typed,
    argument: &'static str,
) -> Result<Cow<'t, Typed>, CollectiveError> {
    typed.without_pages().map_err(|error| CollectiveError::Pages { argument, error })
}

/// Packed bytes of the blocks.
#[derive(Debug, Default)]
struct Lens {
    /// This rank's block, the vector, or any block where all are alike.
    own: u64,
    send: Vec<u64>,
    recv: Vec<u64>,
}

/// The buffers that matter, and what goes with them.
struct BufferArgs<'s> {
    operation: Operation,
    root: usize,
    send: &'s Buffer,
    recv: &'s Buffer,
    counts: &'s [u64],
}

impl BufferArgs<'_> {
    fn in_place(&self) -> bool {
        matches!(self.send, Buffer::InPlace) || matches!(self.recv, Buffer::InPlace)
    }

    /// How long blocks are, if the buffers fit together.
    fn lens(&self, place: &RankPlace<'_>) -> Result<Lens, CollectiveError> {
        use Operation as O;
        let (rank, ranks) = (place.rank, place.locality.ranks());
        let (is_root, both) = (rank == self.root, !self.in_place());
        let (send, recv) = (self.send, self.recv);
        let mut lens = Lens::default();
        match self.operation {
            O::Barrier => {}
            O::Bcast => lens.own = one(recv, RECV)?,
            O::Gather if is_root => lens.own = alike(recv, ranks, RECV)?,
            O::Scatter if is_root => lens.own = alike(send, ranks, SEND)?,
            O::Gather | O::Gatherv if !is_root => lens.own = one(send, SEND)?,
            O::Scatter | O::Scatterv if !is_root => lens.own = one(recv, RECV)?,
            O::Gatherv | O::Allgatherv => {
                lens.recv = each(recv, ranks, RECV)?;
                lens.own = lens.recv.get(rank).copied().unwrap_or(0);
            }
            O::Scatterv => {
                lens.send = each(send, ranks, SEND)?;
                lens.own = lens.send.get(rank).copied().unwrap_or(0);
            }
            O::Allgather | O::Alltoall => lens.own = alike(recv, ranks, RECV)?,
            O::Alltoallv => lens.recv = each(recv, ranks, RECV)?,
            O::Reduce if !is_root => lens.own = one(send, SEND)?,
            O::ReduceScatterBlock if !both => lens.own = alike(recv, ranks, RECV)?,
            O::ReduceScatter => {
                lens.recv = self.counted(ranks)?;
                let own = lens.recv.get(rank).copied().unwrap_or(0);
                lens.own = if both { own } else { sum(&lens.recv) };
            }
            O::NeighborAllgather | O::NeighborAlltoall => {
                let neighbors = (place.neighbors)()?;
                lens.recv = each(recv, neighbors.sources.len(), RECV)?;
                match self.operation {
                    O::NeighborAllgather => lens.own = one(send, SEND)?,
                    _ => lens.send = each(send, neighbors.destinations.len(), SEND)?,
                }
            }
            _ => lens.own = one(recv, RECV)?,
        }
        // What is left to compare: the other buffer.
        match self.operation {
            O::Gather if is_root && both => block((recv, RECV), ranks, (send, SEND))?,
            O::Scatter if is_root && both => block((send, SEND), ranks, (recv, RECV))?,
            O::Allgather if both => block((recv, RECV), ranks, (send, SEND))?,
            O::Gatherv | O::Reduce if is_root && both => exact(send, lens.own, SEND)?,
            O::Scatterv if is_root && both => exact(recv, lens.own, RECV)?,
            O::Allgatherv | O::Allreduce | O::Scan | O::Exscan if both => {
                exact(send, lens.own, SEND)?;
            }
            O::Alltoall if both => blocks_of(send, ranks, lens.own, SEND)?,
            O::Alltoallv if both => lens.send = each(send, ranks, SEND)?,
            O::ReduceScatterBlock if both => blocks_of(send, ranks, lens.own, SEND)?,
            O::ReduceScatter => {
                exact(recv, lens.own, RECV)?;
                if both {
                    listed(send, &lens.recv, SEND)?;
                }
            }
            _ => {}
        }
        Ok(lens)
    }

    /// The blocks of a result that is scattered.
    fn counted(&self, ranks: usize) -> Result<Vec<u64>, CollectiveError> {
        let (argument, given) = (COUNTS, self.counts.len());
        if given != ranks {
            return Err(CollectiveError::Blocks { argument, given, expected: ranks });
        }
        let whole = if self.in_place() { self.recv } else { self.send };
        lens_of(self.counts, whole)
    }

    fn call(
        &self,
        lens: Lens,
        of: Option<Reduction>,
        place: &RankPlace<'_>,
    ) -> Result<OwnedCall, CollectiveError> {
        use Operation as O;
        // Every constructor of a reduction gives an operation.
        let of = of.unwrap_or(Reduction { unit: 1, commutative: false });
        let (operation, root, in_place) = (self.operation, self.root, self.in_place());
        let Lens { own: len, send, recv } = lens;
        let neighbors = match operation {
            O::NeighborAllgather | O::NeighborAlltoall => Some(Arc::clone((place.neighbors)()?)),
            _ => None,
        };
        Ok(OwnedCall { operation, root, in_place, of, len, send, recv, neighbors })
    }
}

/// Packed bytes of so many elements of a buffer.
pub(super) fn lens_of(counts: &[u64], whole: &Buffer) -> Result<Vec<u64>, CollectiveError> {
    let element = whole.parts().first().map_or(0, |typed| typed.layout().size());
    let len = |count: &u64| count.checked_mul(element).ok_or(BuildError::TooLong);
    Ok(counts.iter().map(len).collect::<Result<_, _>>()?)
}

fn sum(lens: &[u64]) -> u64 {
    lens.iter().copied().fold(0, u64::saturating_add)
}

/// The length of a buffer that is one block.
pub(super) fn one(buffer: &Buffer, argument: &'static str) -> Result<u64, CollectiveError> {
    match buffer {
        Buffer::Each(each) if each.len() != 1 => {
            Err(CollectiveError::Blocks { argument, given: each.len(), expected: 1 })
        }
        _ => Ok(buffer.bytes()),
    }
}

/// The length of each of so many blocks, which have one length.
pub(super) fn alike(
    buffer: &Buffer,
    blocks: usize,
    argument: &'static str,
) -> Result<u64, CollectiveError> {
    if !matches!(buffer, Buffer::Each(_)) {
        return cut(buffer, blocks, argument);
    }
    let lens = each(buffer, blocks, argument)?;
    let len = lens.first().copied().unwrap_or(0);
    match lens.iter().all(|other| *other == len) {
        true => Ok(len),
        false => Err(CollectiveError::Uneven { argument, bytes: buffer.bytes(), blocks }),
    }
}

/// The length of each of so many blocks. A buffer that is not divided has blocks of one length.
pub(super) fn each(
    buffer: &Buffer,
    blocks: usize,
    argument: &'static str,
) -> Result<Vec<u64>, CollectiveError> {
    if let Buffer::Each(each) = buffer {
        let given = each.len();
        return match given == blocks {
            true => Ok(each.iter().map(Typed::packed_bytes).collect()),
            false => Err(CollectiveError::Blocks { argument, given, expected: blocks }),
        };
    }
    Ok(vec![cut(buffer, blocks, argument)?; blocks])
}

/// The length of each of so many blocks of a buffer that is not divided.
fn cut(buffer: &Buffer, blocks: usize, argument: &'static str) -> Result<u64, CollectiveError> {
    let bytes = buffer.bytes();
    let len = if bytes == 0 { 0 } else { bytes / (blocks as u64).max(1) };
    // Blocks are whole elements, or elements are whole blocks: of a matrix that is one element, say.
    let element = buffer.parts().first().map_or(1, |typed| typed.layout().size());
    let is_cut = len > 0 && !len.is_multiple_of(element) && !element.is_multiple_of(len);
    match len.checked_mul(blocks as u64) == Some(bytes) && !is_cut {
        true => Ok(len),
        false => Err(CollectiveError::Uneven { argument, bytes, blocks }),
    }
}

/// Whether a buffer is one block of this length.
pub(super) fn exact(
    buffer: &Buffer,
    expected: u64,
    argument: &'static str,
) -> Result<(), CollectiveError> {
    match one(buffer, argument)? {
        bytes if bytes == expected => Ok(()),
        bytes => Err(CollectiveError::Length { argument, bytes, expected }),
    }
}

/// Whether a buffer is as long as each of so many blocks of another: which of the two is wrong is not known.
fn block(
    (many, its): (&Buffer, &'static str),
    blocks: usize,
    (buffer, argument): (&Buffer, &'static str),
) -> Result<(), CollectiveError> {
    let (bytes, len) = (many.bytes(), one(buffer, argument)?);
    match alike(many, blocks, its)? == len {
        true => Ok(()),
        false => Err(CollectiveError::Block { many: its, bytes, blocks, one: argument, len }),
    }
}

/// Whether a buffer consists of so many blocks of this length.
fn blocks_of(
    buffer: &Buffer,
    blocks: usize,
    len: u64,
    argument: &'static str,
) -> Result<(), CollectiveError> {
    match alike(buffer, blocks, argument)? {
        found if found == len => Ok(()),
        found => {
            let all = |len: u64| len.saturating_mul(blocks as u64);
            Err(CollectiveError::Length { argument, bytes: all(found), expected: all(len) })
        }
    }
}

/// Whether a buffer consists of blocks of these lengths.
pub(super) fn listed(
    buffer: &Buffer,
    lens: &[u64],
    argument: &'static str,
) -> Result<(), CollectiveError> {
    let length = |bytes, expected| Err(CollectiveError::Length { argument, bytes, expected });
    let Buffer::Each(_) = buffer else {
        let (bytes, expected) = (buffer.bytes(), sum(lens));
        return if bytes == expected { Ok(()) } else { length(bytes, expected) };
    };
    let given = each(buffer, lens.len(), argument)?;
    match given.iter().zip(lens).find(|(given, expected)| given != expected) {
        None => Ok(()),
        Some((given, expected)) => length(*given, *expected),
    }
}

/// How the elements of both buffers are combined; and whether these are bytes, which are combined as the numbers that a
/// slice of `u8` has.
pub(super) fn combine(
    op: &Op,
    send: &Buffer,
    recv: &Buffer,
) -> Result<(Combine, bool), CollectiveError> {
    let wrong = |argument| move |error: EngineError| CollectiveError::Operation { argument, error };
    let (argument, layout) = match (own_layout(recv), own_layout(send)) {
        (Some(layout), _) => (RECV, layout),
        (None, Some(layout)) => (SEND, layout),
        (None, None) => {
            let combine = Combine::new(op, u8::layout()).map_err(wrong(RECV))?;
            return Ok((combine, matches!(op, Op::Predefined(_))));
        }
    };
    let combine = Combine::new(op, layout).map_err(wrong(argument))?;
    for (argument, buffer) in [(SEND, send), (RECV, recv)] {
        let others = buffer.parts().iter().filter_map(Typed::own_layout);
        for other in others.filter(|other| other.id() != layout.id()) {
            let bytes = op.element_bytes(other).map_err(wrong(argument))?;
            if bytes != combine.bytes() || !same_elements(op, layout, other) {
                let (found, expected) = (elements(op, other), elements(op, layout));
                return Err(CollectiveError::OtherElements { argument, found, expected });
            }
        }
    }
    Ok((combine, false))
}

/// The layout of the first block that has one.
fn own_layout(buffer: &Buffer) -> Option<&Layout> {
    buffer.parts().iter().find_map(Typed::own_layout)
}

/// Bytes as the numbers that a slice of `u8` has.
fn numbers(bytes: &Typed) -> Typed {
    let region = bytes.region();
    // They fit.
    Typed::new(region, 0, u8::layout(), region.len()).unwrap_or_else(|_| bytes.clone())
}

/// What an operation combines of a layout, for people.
fn elements(op: &Op, layout: &Layout) -> String {
    match (element(op, layout), op.element_bytes(layout)) {
        (Some(primitive), _) => primitive.to_string(),
        (None, Ok(bytes)) => format!("elements of {bytes} bytes"),
        (None, Err(error)) => error.to_string(),
    }
}

/// The one type of all elements that a predefined operation combines, if there is one. Bytes stand for anything.
fn element(op: &Op, layout: &Layout) -> Option<Primitive> {
    match op {
        Op::Predefined(op) => op.element(layout, Operand::Target).ok().flatten(),
        Op::User(_) => layout.signature().uniform(),
    }
}

/// Whether two layouts that an operation is defined for have elements of one type.
fn same_elements(op: &Op, one: &Layout, other: &Layout) -> bool {
    match (op, element(op, one), element(op, other)) {
        (Op::Predefined(_), Some(one), Some(other)) => one == other,
        _ => true,
    }
}

/// The operands of a reduction within this process.
pub(super) fn local(
    input: &Typed,
    inout: &Typed,
    op: &Op,
) -> Result<(Typed, Typed), CollectiveError> {
    let (send, recv) = (Buffer::Whole(input.clone()), Buffer::Whole(inout.clone()));
    once_each(&recv)?;
    let (_, as_numbers) = combine(op, &send, &recv)?;
    exact(&send, recv.bytes(), SEND)?;
    Ok(match as_numbers {
        true => (numbers(input), numbers(inout)),
        false => {
            (without_pages(input, SEND)?.into_owned(), without_pages(inout, RECV)?.into_owned())
        }
    })
}

#[cfg(test)]
mod tests;
