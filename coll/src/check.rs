//! Whether what a rank calls fits together, as far as it can see.
use std::collections::{HashMap, HashSet};

use crate::call::{Call, Reduction};
use crate::error::BuildError;
use crate::topologies::Edge;

impl Call<'_> {
    /// Whether ranks, lengths and elements fit together, as far as this rank can see.
    pub(crate) fn check(&self, rank: usize, ranks: usize) -> Result<(), BuildError> {
        if rank >= ranks {
            return Err(BuildError::NoSuchRank { rank, ranks });
        }
        let root = match self {
            Self::Bcast { root, .. }
            | Self::Gather { root, .. }
            | Self::Gatherv { root, .. }
            | Self::Scatter { root, .. }
            | Self::Scatterv { root, .. }
            | Self::Reduce { root, .. } => Some(*root),
            _ => None,
        };
        if let Some(root) = root.filter(|root| *root >= ranks) {
            return Err(BuildError::NoSuchRank { rank: root, ranks });
        }
        match self {
            Self::Gatherv { lens, len, in_place, .. }
            | Self::Scatterv { lens, len, in_place, .. }
                if root == Some(rank) =>
            {
                check_lens("blocks", lens, ranks)?;
                if !in_place && lens[rank] != *len {
                    return Err(BuildError::OwnBlock { given: *len, listed: lens[rank] });
                }
            }
            Self::Allgatherv { lens, .. } | Self::ReduceScatter { lens, .. } => {
                check_lens("blocks", lens, ranks)?;
            }
            Self::Alltoallv { send, recv, in_place } => {
                check_lens("blocks to receive", recv, ranks)?;
                if !in_place {
                    check_lens("blocks to send", send, ranks)?;
                    if send[rank] != recv[rank] {
                        return Err(BuildError::OwnBlock { given: send[rank], listed: recv[rank] });
                    }
                }
            }
            Self::NeighborAllgather { sources, destinations, recv, len } => {
                check_lens("blocks to receive", recv, sources.len())?;
                check_edges(rank, ranks, (sources, recv), (destinations, &|_| *len))?;
            }
            Self::NeighborAlltoall { sources, destinations, send, recv } => {
                check_lens("blocks to receive", recv, sources.len())?;
                check_lens("blocks to send", send, destinations.len())?;
                check_edges(rank, ranks, (sources, recv), (destinations, &|index| send[index]))?;
            }
            _ => {}
        }
        let total = match self {
            Self::Gather { len, .. }
            | Self::Scatter { len, .. }
            | Self::Allgather { len, .. }
            | Self::Alltoall { len, .. }
            | Self::ReduceScatterBlock { len, .. } => len.checked_mul(ranks as u64),
            _ => Some(0),
        };
        // Scratch memory may be several times as long as the buffers; offsets must not overflow.
        if total.is_none_or(|total| total > LEN_MAX)
            || self.bytes().is_some_and(|len| len > LEN_MAX)
        {
            return Err(BuildError::TooLong);
        }
        let Some(Reduction { unit, .. }) = self.reduction() else {
            return Ok(());
        };
        let odd = match self {
            Self::ReduceScatter { lens, .. } => {
                lens.iter().find(|len| !is_whole(**len, unit)).copied()
            }
            _ => self.bytes().filter(|len| !is_whole(*len, unit)),
        };
        odd.map_or(Ok(()), |len| Err(BuildError::SplitElement { len, unit }))
    }
}

/// The longest buffer of a call, in bytes.
pub(crate) const LEN_MAX: u64 = 1 << 48;

pub(crate) fn is_whole(len: u64, unit: u64) -> bool {
    unit > 0 && len.is_multiple_of(unit)
}

pub(crate) fn check_lens(
    what: &'static str,
    lens: &[u64],
    expected: usize,
) -> Result<(), BuildError> {
    if lens.len() != expected {
        return Err(BuildError::Blocks { what, given: lens.len(), expected });
    }
    let total = lens.iter().try_fold(0u64, |sum, len| sum.checked_add(*len));
    if total.is_none_or(|total| total > LEN_MAX) { Err(BuildError::TooLong) } else { Ok(()) }
}

/// Peers exist, no edge is named twice, and an edge to oneself has two ends of one length.
fn check_edges(
    rank: usize,
    ranks: usize,
    (sources, recv): (&[Option<Edge>], &[u64]),
    (destinations, send): (&[Option<Edge>], &dyn Fn(usize) -> u64),
) -> Result<(), BuildError> {
    let mut to_self = HashMap::new();
    for list in [sources, destinations] {
        let mut named = HashSet::new();
        for edge in list.iter().flatten() {
            let peer = edge.rank as usize;
            if peer >= ranks {
                return Err(BuildError::NoSuchRank { rank: peer, ranks });
            }
            if !named.insert((peer, edge.lane)) {
                return Err(BuildError::Edge { peer, lane: edge.lane });
            }
        }
    }
    let own =
        |edge: &Option<Edge>| edge.filter(|edge| edge.rank as usize == rank).map(|edge| edge.lane);
    for (index, lane) in destinations.iter().enumerate().filter_map(|(at, it)| Some((at, own(it)?)))
    {
        to_self.insert(lane, send(index));
    }
    for (len, lane) in recv.iter().zip(sources).filter_map(|(len, it)| Some((len, own(it)?))) {
        if to_self.remove(&lane) != Some(*len) {
            return Err(BuildError::Edge { peer: rank, lane });
        }
    }
    let left = to_self.into_keys().min();
    left.map_or(Ok(()), |lane| Err(BuildError::Edge { peer: rank, lane }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Exchange;
    use crate::algorithm::{Algorithm, Method};
    use crate::build::build;
    use crate::locality::Locality;
    use crate::tree::Tree;

    fn wrong(call: &Call<'_>, method: Method) -> String {
        let algorithm = Algorithm::new(method);
        build(1, &Locality::flat(3), call, &algorithm).expect_err("it does not fit").to_string()
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_says_what() {
        let (chain, linear) = (Method::Tree(Tree::Chain), Method::Linear);
        let of = Reduction { unit: 8, commutative: true };
        let in_place = false;
        for (call, method, text) in [
            (Call::Bcast { root: 3, len: 1 }, chain, "rank 3 is not one of 3"),
            (Call::Bcast { root: 0, len: u64::MAX }, chain, "2^48"),
            (Call::Allgather { len: 1 << 47, in_place }, chain, "2^48"),
            (Call::Scan { len: 12, of, in_place }, chain, "12 bytes do not consist"),
            (Call::Scan { len: 8, of, in_place }, linear, "algorithm linear does not do this scan"),
            (
                Call::Bcast { root: 0, len: 1 },
                Method::Tree(Tree::KNomial(1)),
                "does not do this bcast",
            ),
            (Call::Allgatherv { lens: &[1, 2], in_place }, chain, "of 2 blocks"),
            (Call::Allgatherv { lens: &[1, 2, u64::MAX], in_place }, chain, "2^48"),
            (Call::Gatherv { root: 1, len: 2, lens: &[1; 3], in_place }, linear, "own block has 2"),
            (Call::Alltoallv { send: &[1; 3], recv: &[1], in_place }, linear, "blocks to receive"),
            (Call::Alltoallv { send: &[1; 3], recv: &[2; 3], in_place }, linear, "own block has 1"),
        ] {
            let error = wrong(&call, method);
            assert!(error.contains(text), "{call:?}: {error}");
        }
        let none = Reduction { unit: 0, ..of };
        let call = Call::Allreduce { len: 8, of: none, in_place };
        assert!(wrong(&call, chain).contains("whole elements of 0"));
        let ordered = Reduction { commutative: false, ..of };
        let call = Call::Allreduce { len: 8, of: ordered, in_place };
        assert!(
            wrong(&call, Method::Exchange(Exchange::Ring)).contains("does not do this allreduce")
        );
    }

    #[test]
    fn edges_that_do_not_fit_are_named() {
        let edge = |rank, lane| Some(Edge { rank, lane });
        let check = |sources: &[Option<Edge>], destinations: &[Option<Edge>]| {
            let (send, recv) = (vec![4; destinations.len()], vec![4; sources.len()]);
            let call = Call::NeighborAlltoall { sources, destinations, send: &send, recv: &recv };
            build(1, &Locality::flat(3), &call, &Algorithm::new(Method::Linear)).map(|_| ())
        };
        assert_eq!(check(&[edge(1, 5), edge(2, 0)], &[None, edge(1, 5)]), Ok(()));
        assert_eq!(check(&[edge(3, 0)], &[]), Err(BuildError::NoSuchRank { rank: 3, ranks: 3 }));
        assert_eq!(check(&[edge(1, 5)], &[]), Err(BuildError::Edge { peer: 1, lane: 5 }));
        assert_eq!(check(&[], &[edge(1, 5)]), Err(BuildError::Edge { peer: 1, lane: 5 }));
        let twice = [edge(2, 1), edge(2, 1)];
        assert_eq!(check(&[], &twice), Err(BuildError::Edge { peer: 2, lane: 1 }));
    }

    #[test]
    fn topologies_name_every_rank_once() {
        assert!(Locality::new(vec![vec![1, 0], vec![], vec![2]]).is_ok());
        for wrong in [vec![vec![0, 0]], vec![vec![0], vec![2]], vec![vec![0, 1], vec![1]]] {
            assert_eq!(Locality::new(wrong), Err(BuildError::Locality));
        }
    }
}
