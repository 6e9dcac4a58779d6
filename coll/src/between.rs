//! Collectives of intercommunicators: each group has something for the other.
//!
//! Both groups are numbered through, as in their union: one group comes first, and all ranks agree which. That is how
//! schedules name peers. What has to be collected in a group goes over its first rank.
use std::ops::Range;

use crate::algorithms::over_tree::{self, Spread};
use crate::area::{Area, Cuts};
use crate::builder::{Builder, PACK_MAX};
use crate::call::Reduction;
use crate::check::{LEN_MAX, check_lens, is_whole};
use crate::error::BuildError;
use crate::operation::Operation;
use crate::schedule::{Row, Schedule};
use crate::team::Team;
use crate::terms::Terms;
use crate::tree::Tree;

/// A rank of an intercommunicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Its number among both groups.
    pub rank: usize,
    /// How many ranks the first group has: those numbered from 0 on.
    pub first: usize,
    /// How many the second group has: those numbered after.
    pub second: usize,
}

/// A collective as one rank of an intercommunicator calls it. Lengths are in packed bytes.
///
/// `root` is numbered among both groups. It is `None` at the ranks that give `MPI_PROC_NULL`: those of the root's group
/// which are not the root. They have nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of all variants are described here")]
pub enum BetweenCall<'a> {
    Barrier,
    /// `len`: what the other group gets.
    Bcast {
        root: Option<usize>,
        len: u64,
    },
    /// `len`: the block of one rank of the other group.
    Gather {
        root: Option<usize>,
        len: u64,
    },
    /// `len`: this rank's block, if it sends; `lens`: the blocks of the other group, at the root.
    Gatherv {
        root: Option<usize>,
        len: u64,
        lens: &'a [u64],
    },
    /// `len`: the block of one rank of the other group.
    Scatter {
        root: Option<usize>,
        len: u64,
    },
    /// `len`: this rank's block, if it receives; `lens`: the blocks of the other group, at the root.
    Scatterv {
        root: Option<usize>,
        len: u64,
        lens: &'a [u64],
    },
    /// `send`: a block of this group; `recv`: one of the other.
    Allgather {
        send: u64,
        recv: u64,
    },
    /// `send`: this rank's block; `recv`: those of the other group.
    Allgatherv {
        send: u64,
        recv: &'a [u64],
    },
    /// `send`: what goes to each of the other group; `recv`: what comes from each.
    Alltoall {
        send: u64,
        recv: u64,
    },
    /// As above, for each rank of the other group.
    Alltoallv {
        send: &'a [u64],
        recv: &'a [u64],
    },
    /// `len`: the vector.
    Reduce {
        root: Option<usize>,
        len: u64,
        of: Reduction,
    },
    /// `len`: the vector; the same in both groups.
    Allreduce {
        len: u64,
        of: Reduction,
    },
    /// `lens`: the blocks of this group's result; their sum is the same in both groups.
    ReduceScatter {
        lens: &'a [u64],
        of: Reduction,
    },
    /// `len`: the block of one rank of this group; times the ranks it is the same in both groups.
    ReduceScatterBlock {
        len: u64,
        of: Reduction,
    },
}

impl BetweenCall<'_> {
    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Barrier => Operation::Barrier,
            Self::Bcast { .. } => Operation::Bcast,
            Self::Gather { .. } => Operation::Gather,
            Self::Gatherv { .. } => Operation::Gatherv,
            Self::Scatter { .. } => Operation::Scatter,
            Self::Scatterv { .. } => Operation::Scatterv,
            Self::Allgather { .. } => Operation::Allgather,
            Self::Allgatherv { .. } => Operation::Allgatherv,
            Self::Alltoall { .. } => Operation::Alltoall,
            Self::Alltoallv { .. } => Operation::Alltoallv,
            Self::Reduce { .. } => Operation::Reduce,
            Self::Allreduce { .. } => Operation::Allreduce,
            Self::ReduceScatter { .. } => Operation::ReduceScatter,
            Self::ReduceScatterBlock { .. } => Operation::ReduceScatterBlock,
        }
    }

    /// What all ranks agree on: lengths may differ from group to group.
    fn terms(&self) -> Terms {
        let of = self.reduction().map(|(of, _)| of);
        Terms {
            operation: self.operation(),
            root: self.root(),
            bytes: None,
            unit: of.map_or(1, |of| of.unit),
            commutative: of.is_some_and(|of| of.commutative),
            in_place: false,
            lens: 0,
            algorithm: None,
            by_pairs: true,
        }
    }

    pub(crate) fn root(&self) -> Option<usize> {
        match *self {
            Self::Bcast { root, .. }
            | Self::Gather { root, .. }
            | Self::Gatherv { root, .. }
            | Self::Scatter { root, .. }
            | Self::Scatterv { root, .. }
            | Self::Reduce { root, .. } => root,
            _ => None,
        }
    }

    pub(crate) fn reduction(&self) -> Option<(Reduction, u64)> {
        match *self {
            Self::Reduce { of, len, .. }
            | Self::Allreduce { of, len }
            | Self::ReduceScatterBlock { of, len } => Some((of, len)),
            Self::ReduceScatter { of, lens } => {
                let odd = lens.iter().find(|len| !is_whole(**len, of.unit));
                Some((of, odd.copied().unwrap_or(0)))
            }
            _ => None,
        }
    }
}

impl Between {
    /// The ranks of this rank's group.
    #[must_use]
    pub fn local(&self) -> Range<usize> {
        if self.rank < self.first { 0..self.first } else { self.first..self.first + self.second }
    }

    /// The ranks of the other group.
    #[must_use]
    pub fn remote(&self) -> Range<usize> {
        if self.rank < self.first { self.first..self.first + self.second } else { 0..self.first }
    }

    /// This rank's schedule of a call. Broadcasts go down a binomial tree of the root and the other group. Reductions
    /// go up a binomial tree to a group's first rank, and from there to the root or the other group's first rank, whose
    /// group hands out the result along a tree. Other messages go straight, or short blocks of one length by way of the
    /// groups' first ranks and binomial trees.
    ///
    /// # Errors
    /// As for [`build()`](crate::build()); [`BuildError::OwnGroup`].
    pub fn build(&self, call: &BetweenCall<'_>) -> Result<Schedule, BuildError> {
        let ranks = self.first.saturating_add(self.second);
        if self.rank >= ranks {
            return Err(BuildError::NoSuchRank { rank: self.rank, ranks });
        }
        self.check(call, ranks)?;
        let (send, recv) = self.rows(call);
        let mut b = Builder::new((self.rank, ranks), call.terms(), send, recv);
        if call.root().is_some() || !call.operation().is_rooted() {
            self.fill(&mut b, call);
        }
        Ok(b.finish())
    }

    fn check(&self, call: &BetweenCall<'_>, ranks: usize) -> Result<(), BuildError> {
        if let Some(root) = call.root().filter(|root| *root >= ranks) {
            return Err(BuildError::NoSuchRank { rank: root, ranks });
        }
        // The root's own group gives no root: with one, these ranks would wait for what nobody sends.
        if let Some(root) = call.root().filter(|it| *it != self.rank && self.local().contains(it)) {
            return Err(BuildError::OwnGroup { root });
        }
        let others = self.remote().len();
        match call {
            BetweenCall::Gatherv { root, lens, .. } | BetweenCall::Scatterv { root, lens, .. }
                if *root == Some(self.rank) =>
            {
                check_lens("blocks", lens, others)?;
            }
            BetweenCall::Allgatherv { recv, .. } => check_lens("blocks to receive", recv, others)?,
            BetweenCall::Alltoallv { send, recv } => {
                check_lens("blocks to send", send, others)?;
                check_lens("blocks to receive", recv, others)?;
            }
            BetweenCall::ReduceScatter { lens, .. } => {
                check_lens("blocks", lens, self.local().len())?
            }
            _ => {}
        }
        let total = |row: &Row| row.checked_len().filter(|len| *len <= LEN_MAX);
        let (send, recv) = self.rows(call);
        if total(&send).is_none() || total(&recv).is_none() {
            return Err(BuildError::TooLong);
        }
        match call.reduction() {
            Some((of, len)) if !is_whole(len, of.unit) => {
                Err(BuildError::SplitElement { len, unit: of.unit })
            }
            _ => Ok(()),
        }
    }

    fn is_root(&self, root: Option<usize>) -> bool {
        root == Some(self.rank)
    }

    fn rows(&self, call: &BetweenCall<'_>) -> (Row, Row) {
        let blocks = self.remote().len();
        let equal = |len| Row::Equal { blocks, len };
        // At the root one row, at the other group's ranks another, at the rest none.
        let rooted = |root: Option<usize>, at_root: Row, at_others: Row| match root {
            None => Row::NONE,
            Some(root) if root == self.rank => at_root,
            Some(_) => at_others,
        };
        // Lists are summed only where they count: elsewhere nobody has looked at them.
        let listed = |root: Option<usize>, lens: &[u64]| {
            if root == Some(self.rank) { Row::each(lens) } else { Row::NONE }
        };
        let own = self.rank - self.local().start;
        match *call {
            BetweenCall::Barrier => (Row::NONE, Row::NONE),
            BetweenCall::Bcast { root, len } => {
                (Row::NONE, rooted(root, Row::one(len), Row::one(len)))
            }
            BetweenCall::Gather { root, len } => {
                (rooted(root, Row::NONE, Row::one(len)), rooted(root, equal(len), Row::NONE))
            }
            BetweenCall::Gatherv { root, len, lens } => {
                (rooted(root, Row::NONE, Row::one(len)), listed(root, lens))
            }
            BetweenCall::Scatter { root, len } => {
                (rooted(root, equal(len), Row::NONE), rooted(root, Row::NONE, Row::one(len)))
            }
            BetweenCall::Scatterv { root, len, lens } => {
                (listed(root, lens), rooted(root, Row::NONE, Row::one(len)))
            }
            BetweenCall::Allgather { send, recv } => (Row::one(send), equal(recv)),
            BetweenCall::Allgatherv { send, recv } => (Row::one(send), Row::each(recv)),
            BetweenCall::Alltoall { send, recv } => (equal(send), equal(recv)),
            BetweenCall::Alltoallv { send, recv } => (Row::each(send), Row::each(recv)),
            BetweenCall::Reduce { root, len, .. } => {
                (rooted(root, Row::NONE, Row::one(len)), rooted(root, Row::one(len), Row::NONE))
            }
            BetweenCall::Allreduce { len, .. } => (Row::one(len), Row::one(len)),
            BetweenCall::ReduceScatter { lens, .. } => {
                (Row::each(lens), Row::one(lens.get(own).copied().unwrap_or(0)))
            }
            BetweenCall::ReduceScatterBlock { len, .. } => {
                (Row::Equal { blocks: self.local().len(), len }, Row::one(len))
            }
        }
    }

    /// The ranks of this rank's group as a team.
    fn team(&self) -> Team {
        let members: Vec<_> = self.local().collect();
        let Some(team) = Team::of(members, self.rank) else {
            unreachable!("a rank is in its group");
        };
        team
    }

    fn leads(&self) -> bool {
        self.rank == self.local().start
    }

    fn fill(&self, b: &mut Builder, call: &BetweenCall<'_>) {
        let (send, recv) = (b.send_buffer(), b.recv_buffer());
        // Without the other group there is nobody to talk to, and nothing is received.
        if self.remote().is_empty() {
            return;
        }
        let leader = self.remote().start;
        match *call {
            BetweenCall::Barrier => {
                let team = self.team();
                let node = over_tree::arrive(b, &team, Tree::Binomial);
                if self.leads() {
                    b.tell(leader);
                    b.hear(leader);
                }
                over_tree::leave(b, &team, &node);
            }
            BetweenCall::Bcast { root, .. } => {
                let Some(root) = root else { return };
                let others = if self.is_root(Some(root)) { self.remote() } else { self.local() };
                let members: Vec<_> = std::iter::once(root).chain(others).collect();
                if let Some(team) = Team::of(members, self.rank) {
                    over_tree::bcast(b, &team, Tree::Binomial, recv, 0);
                }
            }
            BetweenCall::Gather { root, len } if len <= PACK_MAX => match root {
                Some(root) if root == self.rank => b.receive(leader, recv),
                Some(root) => self.collect(b, (send, len), root),
                None => {}
            },
            BetweenCall::Gather { root, len } => {
                self.receive_all(b, root, &self.of_remote(len), recv, send)
            }
            BetweenCall::Gatherv { root, lens, .. } => {
                self.receive_all(b, root, &self.listed(root, lens), recv, send);
            }
            BetweenCall::Scatter { root, len } if len <= PACK_MAX => match root {
                Some(root) if root == self.rank => b.send(leader, send),
                Some(root) => {
                    let cuts = Cuts::equal(self.local().len(), len);
                    let whole = self.leads().then(|| b.scratch(cuts.total()));
                    if let Some(whole) = whole {
                        b.receive(root, whole);
                    }
                    let spread = Spread { cuts: &cuts, shift: 0 };
                    over_tree::scatter(b, &self.team(), Tree::Binomial, whole, recv, &spread);
                }
                None => {}
            },
            BetweenCall::Scatter { root, len } => {
                self.send_all(b, root, &self.of_remote(len), send, recv)
            }
            BetweenCall::Scatterv { root, lens, .. } => {
                self.send_all(b, root, &self.listed(root, lens), send, recv);
            }
            BetweenCall::Allgather { send: out, recv: into } => {
                // Each direction by itself: its length is known to both groups.
                if out <= PACK_MAX {
                    self.collect(b, (send, out), leader);
                } else {
                    self.remote().for_each(|peer| b.send(peer, send));
                }
                if into <= PACK_MAX {
                    if self.leads() {
                        b.receive(leader, recv);
                    }
                    over_tree::bcast(b, &self.team(), Tree::Binomial, recv, 0);
                } else {
                    self.receive_each(b, &self.of_remote(into), recv);
                }
            }
            BetweenCall::Allgatherv { recv: lens, .. } => {
                self.receive_each(b, &Cuts::each(lens), recv);
                self.remote().for_each(|peer| b.send(peer, send));
            }
            BetweenCall::Alltoall { send: out, recv: into } => {
                self.receive_each(b, &self.of_remote(into), recv);
                self.send_each(b, &self.of_remote(out), send);
            }
            BetweenCall::Alltoallv { send: out, recv: into } => {
                self.receive_each(b, &Cuts::each(into), recv);
                self.send_each(b, &Cuts::each(out), send);
            }
            BetweenCall::Reduce { root, .. } => match root {
                Some(root) if root == self.rank => b.receive(leader, recv),
                Some(root) => {
                    if let Some(sum) = self.sum(b, send) {
                        b.send(root, sum);
                    }
                }
                None => {}
            },
            BetweenCall::Allreduce { .. } => {
                if let Some(sum) = self.sum(b, send) {
                    b.send(leader, sum);
                    b.receive(leader, recv);
                }
                over_tree::bcast(b, &self.team(), Tree::Binomial, recv, 0);
            }
            BetweenCall::ReduceScatter { lens, .. } => {
                self.reduce_scatter(b, (send, recv), &Cuts::each(lens));
            }
            BetweenCall::ReduceScatterBlock { len, .. } => {
                self.reduce_scatter(b, (send, recv), &Cuts::equal(self.local().len(), len));
            }
        }
    }

    /// Blocks that are listed at the root, and count only there.
    fn listed(&self, root: Option<usize>, lens: &[u64]) -> Cuts {
        Cuts::each(if self.is_root(root) { lens } else { &[] })
    }

    fn of_remote(&self, len: u64) -> Cuts {
        Cuts::equal(self.remote().len(), len)
    }

    /// This group's blocks go to a rank of the other as one message, from the first rank.
    fn collect(&self, b: &mut Builder, (own, len): (Area, u64), to: usize) {
        let cuts = Cuts::equal(self.local().len(), len);
        let whole = self.leads().then(|| b.scratch(cuts.total()));
        let spread = Spread { cuts: &cuts, shift: 0 };
        over_tree::gather(b, &self.team(), Tree::Binomial, own, whole, &spread);
        if let Some(whole) = whole {
            b.send(to, whole);
        }
    }

    fn send_each(&self, b: &mut Builder, cuts: &Cuts, from: Area) {
        for (index, peer) in self.remote().enumerate() {
            b.send(peer, from.cut(cuts.range(index..index + 1)));
        }
    }

    fn receive_each(&self, b: &mut Builder, cuts: &Cuts, into: Area) {
        for (index, peer) in self.remote().enumerate() {
            b.receive(peer, into.cut(cuts.range(index..index + 1)));
        }
    }

    fn receive_all(
        &self,
        b: &mut Builder,
        root: Option<usize>,
        cuts: &Cuts,
        into: Area,
        own: Area,
    ) {
        match root {
            Some(root) if root == self.rank => self.receive_each(b, cuts, into),
            Some(root) => b.send(root, own),
            None => {}
        }
    }

    fn send_all(&self, b: &mut Builder, root: Option<usize>, cuts: &Cuts, from: Area, own: Area) {
        match root {
            Some(root) if root == self.rank => self.send_each(b, cuts, from),
            Some(root) => b.receive(root, own),
            None => {}
        }
    }

    /// The sum of this group's vectors, at its first rank, in the order of the ranks.
    fn sum(&self, b: &mut Builder, own: Area) -> Option<Area> {
        let sum = self.leads().then(|| b.scratch(own.len));
        over_tree::reduce(b, &self.team(), Tree::Binomial, own, sum, 0);
        sum
    }

    fn reduce_scatter(&self, b: &mut Builder, (send, recv): (Area, Area), cuts: &Cuts) {
        let leader = self.remote().start;
        let whole = self.sum(b, send).map(|sum| {
            let whole = b.scratch(sum.len);
            b.send(leader, sum);
            b.receive(leader, whole);
            whole
        });
        let spread = Spread { cuts, shift: 0 };
        over_tree::scatter(b, &self.team(), Tree::Binomial, whole, recv, &spread);
    }
}
