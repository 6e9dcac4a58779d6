//! Collectives on intercommunicators (MPI 4.1 §6.2.3): what each rank gives concerns the other group.

use super::buffers::Buffer;
use super::prepare::{
    COUNTS, Prepared, RECV, SEND, Uses, alike, combine, each, exact, lens_of, listed, once_each,
    one, settle,
};
use super::{Collective, CollectiveError};
use gapless_coll::runtime::Schedules;
use gapless_coll::{Between, BetweenCall, BuildError, Operation, Reduction};
use std::sync::Arc;

/// Which rank has or gets what only one of them has or gets. Where an argument is `impl Into<Root>`, a number is
/// enough: the root's rank.
///
/// The other variants are for intercommunicators, where the root is in one group and the ranks that it exchanges data
/// with are the other group: these give the root's rank in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// The rank with this number; of an intercommunicator, in the other group.
    Rank(u32),
    /// This rank, of an intercommunicator (`MPI_ROOT`).
    Here,
    /// Another rank of this rank's group of an intercommunicator; this rank has nothing to do, and whatever it gives is
    /// not looked at (`MPI_PROC_NULL`).
    Other,
}

impl From<u32> for Root {
    fn from(rank: u32) -> Root {
        Root::Rank(rank)
    }
}

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupRole {
    /// It is the root.
    Root,
    /// It is in the other group than the root, or there is no root.
    Member,
    /// It has nothing to do.
    None,
}

/// Packed bytes of the blocks: any one, where all are alike, and otherwise each.
#[derive(Default)]
struct Lens {
    send: u64,
    recv: u64,
    sends: Vec<u64>,
    recvs: Vec<u64>,
}

impl Collective<'_> {
    pub(super) fn prepare_between(self, place: &Between) -> Result<Prepared, CollectiveError> {
        let Collective { operation, root, send, recv, counts, op, .. } = self;
        let (root, part) =
            if is_rooted(operation) { at(root, place)? } else { (None, GroupRole::Member) };
        let (sends, receives) = significance(operation, part)?;
        // Nothing is in place: a rank's group gets nothing of what the rank gives.
        let (from, into) = (
            settle(&send, SEND, sends.then_some(false))?,
            settle(&recv, RECV, receives.then_some(false))?,
        );
        if !(operation == Operation::Bcast && part == GroupRole::Root) {
            once_each(into)?;
        }
        let op = op.filter(|_| part != GroupRole::None);
        let combined = op.as_ref().map(|op| combine(op, from, into)).transpose()?;
        let (combine, as_numbers) = combined.map_or((None, false), |(by, are)| (Some(by), are));
        let of = combine.as_ref().zip(op.as_ref()).map(|(combine, op)| Reduction {
            unit: combine.bytes(),
            commutative: op.is_commutative(),
        });
        // Only ranks that have nothing to do give no operation.
        let of = of.unwrap_or(Reduction { unit: 1, commutative: false });
        let lens = lens((operation, part), (from, into), &counts, place)?;
        let schedule = Arc::new(place.build(&call(operation, root, &lens, of)?)?);
        let buffers = Uses { send: sends, recv: receives, as_numbers }.buffers(send, recv)?;
        let schedules = Some(Schedules::new(schedule, None));
        Ok(Prepared { call: None, shared: false, asks: false, schedules, buffers, combine })
    }
}

fn is_rooted(operation: Operation) -> bool {
    use Operation as O;
    matches!(operation, O::Bcast | O::Gather | O::Gatherv | O::Scatter | O::Scatterv | O::Reduce)
}

/// The root among both groups, and what this rank does.
fn at(root: Root, place: &Between) -> Result<(Option<usize>, GroupRole), CollectiveError> {
    match root {
        Root::Rank(rank) => {
            let (rank, remote) = (rank as usize, place.remote());
            if rank >= remote.len() {
                return Err(BuildError::NoSuchRank { rank, ranks: remote.len() }.into());
            }
            Ok((Some(remote.start + rank), GroupRole::Member))
        }
        Root::Here => Ok((Some(place.rank), GroupRole::Root)),
        Root::Other => Ok((None, GroupRole::None)),
    }
}

/// Whether the send buffer and the receive buffer matter at this rank.
fn significance(operation: Operation, part: GroupRole) -> Result<(bool, bool), CollectiveError> {
    use Operation as O;
    Ok(match operation {
        O::Scan | O::Exscan | O::NeighborAllgather | O::NeighborAlltoall => {
            return Err(CollectiveError::InterComm);
        }
        O::Barrier => (false, false),
        O::Bcast => (false, part != GroupRole::None),
        O::Gather | O::Gatherv | O::Reduce => (part == GroupRole::Member, part == GroupRole::Root),
        O::Scatter | O::Scatterv => (part == GroupRole::Root, part == GroupRole::Member),
        O::Allgather
        | O::Allgatherv
        | O::Alltoall
        | O::Alltoallv
        | O::Allreduce
        | O::ReduceScatter
        | O::ReduceScatterBlock => (true, true),
    })
}

/// How long blocks are, if the buffers fit together.
fn lens(
    (operation, part): (Operation, GroupRole),
    (send, recv): (&Buffer, &Buffer),
    counts: &[u64],
    place: &Between,
) -> Result<Lens, CollectiveError> {
    use Operation as O;
    let (own, others) = (place.local().len(), place.remote().len());
    let mut lens = Lens::default();
    match (operation, part) {
        (_, GroupRole::None) | (O::Barrier, _) => {}
        (O::Gather, GroupRole::Root) => lens.recv = alike(recv, others, RECV)?,
        (O::Gatherv, GroupRole::Root) => lens.recvs = each(recv, others, RECV)?,
        (O::Scatter, GroupRole::Root) => lens.send = alike(send, others, SEND)?,
        (O::Scatterv, GroupRole::Root) => lens.sends = each(send, others, SEND)?,
        (O::Bcast | O::Scatter | O::Scatterv, _) | (O::Reduce, GroupRole::Root) => {
            lens.recv = one(recv, RECV)?;
        }
        (O::Gather | O::Gatherv | O::Reduce, _) => lens.send = one(send, SEND)?,
        (O::Allgather, _) => {
            (lens.send, lens.recv) = (one(send, SEND)?, alike(recv, others, RECV)?);
        }
        (O::Allgatherv, _) => {
            (lens.send, lens.recvs) = (one(send, SEND)?, each(recv, others, RECV)?);
        }
        (O::Alltoall, _) => {
            (lens.send, lens.recv) = (alike(send, others, SEND)?, alike(recv, others, RECV)?);
        }
        (O::Alltoallv, _) => {
            (lens.sends, lens.recvs) = (each(send, others, SEND)?, each(recv, others, RECV)?);
        }
        (O::ReduceScatter, _) => {
            if counts.len() != own {
                let (argument, given) = (COUNTS, counts.len());
                return Err(CollectiveError::Blocks { argument, given, expected: own });
            }
            lens.recvs = lens_of(counts, send)?;
            let mine = lens.recvs.get(place.rank - place.local().start).copied().unwrap_or(0);
            exact(recv, mine, RECV)?;
            listed(send, &lens.recvs, SEND)?;
        }
        (O::ReduceScatterBlock, _) => {
            lens.recv = one(recv, RECV)?;
            listed(send, &vec![lens.recv; own], SEND)?;
        }
        _ => {
            lens.recv = one(recv, RECV)?;
            exact(send, lens.recv, SEND)?;
        }
    }
    Ok(lens)
}

fn call(
    operation: Operation,
    root: Option<usize>,
    lens: &Lens,
    of: Reduction,
) -> Result<BetweenCall<'_>, CollectiveError> {
    use Operation as O;
    let (send, recv) = (lens.send, lens.recv);
    // Of rooted operations, a rank either sends or receives.
    let len = send.max(recv);
    Ok(match operation {
        O::Barrier => BetweenCall::Barrier,
        O::Bcast => BetweenCall::Bcast { root, len },
        O::Gather => BetweenCall::Gather { root, len },
        O::Gatherv => BetweenCall::Gatherv { root, len, lens: &lens.recvs },
        O::Scatter => BetweenCall::Scatter { root, len },
        O::Scatterv => BetweenCall::Scatterv { root, len, lens: &lens.sends },
        O::Allgather => BetweenCall::Allgather { send, recv },
        O::Allgatherv => BetweenCall::Allgatherv { send, recv: &lens.recvs },
        O::Alltoall => BetweenCall::Alltoall { send, recv },
        O::Alltoallv => BetweenCall::Alltoallv { send: &lens.sends, recv: &lens.recvs },
        O::Reduce => BetweenCall::Reduce { root, len, of },
        O::Allreduce => BetweenCall::Allreduce { len, of },
        O::ReduceScatter => BetweenCall::ReduceScatter { lens: &lens.recvs, of },
        O::ReduceScatterBlock => BetweenCall::ReduceScatterBlock { len, of },
        O::Scan | O::Exscan | O::NeighborAllgather | O::NeighborAlltoall => {
            return Err(CollectiveError::InterComm);
        }
    })
}
