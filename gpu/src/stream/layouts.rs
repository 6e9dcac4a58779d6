//! Collectives with any layouts: plans, made once by all ranks together, and launched any number of times.
//!
//! Ranks tell each other where their blocks lie (`note`), decide which end moves what (`work`, pure), make staging memory
//! where something has to go through it, and write a table for their kernel (`gapless_kernels::peers::layouts`).

pub(super) mod agree;
mod note;
mod work;

use super::call::{BufferPlace, StreamBuffer};
use super::error::StreamError;
use super::{StreamComm, StreamRanks};
use agree::Given;
use gapless_coll::reshard::Reshard;
use gapless_coll::topologies::Edge;
use gapless_dtype::Layout;
use gapless_kernels::peers::layouts::LayoutsArgs;

/// A block of a collective with layouts: where it lies, as in `MPI_Alltoallw`.
#[derive(Clone, Copy, Debug)]
pub struct StreamBlock<'l> {
    /// Bytes from the buffer's begin to displacement 0 of the first instance (`sdispls`, `rdispls`).
    pub displacement: u64,
    /// The layout (`sendtypes`, `recvtypes`).
    pub layout: &'l Layout,
    /// How many instances (`sendcounts`, `recvcounts`); 0 for a rank that nothing goes to, or comes from.
    pub count: u64,
}

/// How a block of a plan gets from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamWay {
    /// The source writes into the destination's memory.
    Push,
    /// The destination reads the source's memory.
    Pull,
    /// The source packs it into memory of the destination, which unpacks it there.
    Staged,
}

/// A collective with layouts, ready to be launched ([`StreamComm::start`]). It belongs to the communicator that made it,
/// which keeps what kernels use of it until it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    owner: u64,
    index: usize,
}

/// What a plan's launches are given, and the memory that they use.
pub(super) struct Planned<M> {
    args: LayoutsArgs,
    blocks: u32,
    /// Freed with the communicator.
    _memory: Vec<M>,
}

/// Which collective a plan is for.
#[derive(Clone, Copy)]
enum Called {
    Alltoallw = 1,
    NeighborAlltoallw = 2,
    Allgather = 3,
}

impl<R: StreamRanks> StreamComm<'_, R> {
    /// Plans an all-to-all of blocks that each have a layout (`MPI_Alltoallw_init`, MPI 4.1 §6.13): `sends[r]` goes to
    /// rank `r`, and `recvs[r]` comes from there. Both buffers are registered. Collective; may block.
    ///
    /// Every rank's kernel goes from layout to layout: out of its own memory into that of peers, or the other way around,
    /// whichever has longer blocks there. No host has a part in it, and data that lies scattered at both ends passes
    /// through memory that the plan has for it.
    ///
    /// # Safety
    /// Blocks that are received into overlap neither themselves nor another block, at any rank: kernels write them at
    /// the same time. (The collectives of `Communicator` check that.)
    ///
    /// # Errors
    /// A block outside its buffer, blocks whose lengths differ at both ends, other buffers or another
    /// operation at another rank, no memory, a layout whose pieces are too long to be numbered (grids of several blocks
    /// beyond 2³¹ words). All ranks get an error if one does. A peer is lost.
    pub unsafe fn plan_alltoallw(
        &mut self,
        send: impl Into<StreamBuffer>,
        sends: &[StreamBlock<'_>],
        recv: impl Into<StreamBuffer>,
        recvs: &[StreamBlock<'_>],
    ) -> Result<StreamPlan, R::Error> {
        let all: Vec<Option<Edge>> =
            (0..self.ground.ranks).map(|rank| Some(Edge { rank, lane: 0 })).collect();
        let (sends, recvs) = (given("sends", sends, &all), given("recvs", recvs, &all));
        self.plan(Called::Alltoallw, (send.into(), sends), (recv.into(), recvs))
    }

    /// Plans an exchange with neighbours (`MPI_Neighbor_alltoallw_init`, MPI 4.1 §8.8) of the topology that the
    /// communicator had: `sends[k]` goes to its destination `k`, and `recvs[k]` comes from its source `k`, in the order of
    /// `Topology::neighbors`. A block on the edge of a grid, where there is no neighbour, is
    /// left out, whatever it is. Both buffers are registered, and may be the same. Collective; may block.
    ///
    /// # Safety
    /// As [`plan_alltoallw`](StreamComm::plan_alltoallw).
    ///
    /// # Errors
    /// As there; the communicator has no topology.
    pub unsafe fn plan_neighbor_alltoallw(
        &mut self,
        send: impl Into<StreamBuffer>,
        sends: &[StreamBlock<'_>],
        recv: impl Into<StreamBuffer>,
        recvs: &[StreamBlock<'_>],
    ) -> Result<StreamPlan, R::Error> {
        let (sends, recvs) = match self.ranks.neighbors() {
            Ok(near) => {
                (given("sends", sends, &near.destinations), given("recvs", recvs, &near.sources))
            }
            // Whoever refuses tells the others.
            Err(error) => (Err(error), Ok(Vec::new())),
        };
        self.plan(Called::NeighborAlltoallw, (send.into(), sends), (recv.into(), recvs))
    }

    /// Plans an all-gather (`MPI_Allgatherv_init`, MPI 4.1 §6.13) in which each block may have another layout where it
    /// goes, as there is no `MPI_Allgatherw`: `send` goes to every rank, and `recvs[r]` comes from rank `r`. Both buffers
    /// are registered. Collective; may block.
    ///
    /// # Safety
    /// As [`plan_alltoallw`](StreamComm::plan_alltoallw).
    ///
    /// # Errors
    /// As there.
    pub unsafe fn plan_allgather(
        &mut self,
        send: impl Into<StreamBuffer>,
        block: StreamBlock<'_>,
        recv: impl Into<StreamBuffer>,
        recvs: &[StreamBlock<'_>],
    ) -> Result<StreamPlan, R::Error> {
        let all: Vec<Option<Edge>> =
            (0..self.ground.ranks).map(|rank| Some(Edge { rank, lane: 0 })).collect();
        let sends = given("sends", &vec![block; all.len()], &all);
        let recvs = given("recvs", recvs, &all);
        self.plan(Called::Allgather, (send.into(), sends), (recv.into(), recvs))
    }

    /// Plans a reshard: an all-to-all of the blocks that go from this rank's local array of the source, which `send`
    /// begins with, and come to its local array of the target, which `recv` begins with. The reshard's ranks are the
    /// communicator's. Both buffers are registered, and lie apart. Collective; may block.
    ///
    /// # Safety
    /// As [`plan_alltoallw`](StreamComm::plan_alltoallw). All ranks plan the same reshard.
    ///
    /// # Errors
    /// As there; a rank of the reshard that the communicator does not have, a layout that cannot be made.
    pub unsafe fn plan_reshard(
        &mut self,
        send: impl Into<StreamBuffer>,
        recv: impl Into<StreamBuffer>,
        reshard: &Reshard,
    ) -> Result<StreamPlan, R::Error> {
        let layouts = layouts_of(reshard, self.ground.rank, self.ground.ranks);
        let (sends, recvs) = match &layouts {
            Ok((sends, recvs)) => (Ok(blocks_of(sends)), Ok(blocks_of(recvs))),
            // Whoever refuses tells the others.
            Err(error) => (Err(error.clone().into()), Ok(Vec::new())),
        };
        self.plan(Called::Alltoallw, (send.into(), sends), (recv.into(), recvs))
    }

    /// Queues a plan's collective (`MPI_Start`). All ranks start the same plans in the same order, with their other calls.
    /// Can be captured.
    ///
    /// # Safety
    /// As [`allreduce`](StreamComm::allreduce), for all memory that the plan's blocks lie in, at all ranks.
    ///
    /// # Errors
    /// The plan is another communicator's; a failure of an earlier call.
    pub unsafe fn start(&mut self, plan: &StreamPlan) -> Result<(), StreamError> {
        self.words.check()?;
        let held = self.held.as_ref().filter(|_| plan.owner == self.ground.owner);
        let planned =
            held.and_then(|held| held.plans.get(plan.index)).ok_or(StreamError::Foreign)?;
        // SAFETY: the caller's promise; what the table leads to besides are the plan's tables and staging memory.
        unsafe { self.launch_layouts(planned.blocks, &planned.args) }
    }

    /// Registers what a plan is made of.
    fn keep(&mut self, planned: Planned<R::Memory>) -> Result<StreamPlan, R::Error> {
        let held = self.held.as_mut().ok_or(StreamError::Foreign)?;
        held.plans.push(planned);
        Ok(StreamPlan { owner: self.ground.owner, index: held.plans.len() - 1 })
    }

    /// Which registration a buffer lies in, and where: what ranks can compare.
    pub(super) fn placed(
        &self,
        argument: &'static str,
        buffer: StreamBuffer,
    ) -> Result<(usize, u64), StreamError> {
        let operation = "plan";
        match buffer.0 {
            BufferPlace::Own(_) => Err(StreamError::NotRegistered { operation, argument }),
            BufferPlace::Shared { owner, index, offset } => {
                let known = owner == self.ground.owner && index < self.ground.registered.len();
                if known { Ok((index, offset)) } else { Err(StreamError::Foreign) }
            }
        }
    }
}

/// Layouts, and the ranks that they are for.
type RankLayouts = Vec<(u32, Layout)>;

/// What a rank sends, and what it receives.
fn layouts_of(
    reshard: &Reshard,
    me: u32,
    ranks: u32,
) -> Result<(RankLayouts, RankLayouts), StreamError> {
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    for it in reshard.for_rank(me) {
        let rank = it.from().max(it.to());
        if rank >= ranks {
            return Err(StreamError::ReshardRank { rank, ranks });
        }
        if it.from() == me {
            sends.push((it.to(), it.send_layout()?));
        }
        if it.to() == me {
            recvs.push((it.from(), it.recv_layout()?));
        }
    }
    Ok((sends, recvs))
}

fn blocks_of(layouts: &RankLayouts) -> Vec<Given<'_>> {
    let block = |layout| StreamBlock { displacement: 0, layout, count: 1 };
    layouts.iter().map(|(rank, it)| Given { rank: *rank, lane: 0, block: block(it) }).collect()
}

/// Blocks with the ranks that they belong to.
fn given<'l, E: From<StreamError>>(
    argument: &'static str,
    blocks: &[StreamBlock<'l>],
    edges: &[Option<Edge>],
) -> Result<Vec<Given<'l>>, E> {
    if blocks.len() != edges.len() {
        let (given, wanted) = (blocks.len(), edges.len());
        return Err(StreamError::Blocks { argument, given, wanted }.into());
    }
    let of = |(block, edge): (&StreamBlock<'l>, &Option<Edge>)| {
        edge.map(|Edge { rank, lane }| Given { rank, lane, block: *block })
    };
    Ok(blocks.iter().zip(edges).filter_map(of).collect())
}
