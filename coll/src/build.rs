//! From a call and an algorithm to this rank's schedule.
use crate::algorithm::{Algorithm, Exchange, Method};
use crate::algorithms::alltoall::{self, Blocks};
use crate::algorithms::levels::{self, Levels};
use crate::algorithms::scan::{self, Prefix};
use crate::algorithms::{compose, neighbors};
use crate::area::{Area, Cuts};
use crate::builder::Builder;
use crate::call::{Call, Reduction};
use crate::error::BuildError;
use crate::locality::Locality;
use crate::operation::Operation;
use crate::schedule::{Buffer, Row, Schedule};
use crate::suits::misfit;
use crate::team::Team;
use crate::terms::Terms;
use crate::tree::Tree;

/// The schedule of rank `rank` for a call, by an algorithm that all ranks agree on.
///
/// It is a pure function: ranks that agree on the arguments which MPI makes them agree on, on the algorithm and on
/// which ranks are near each other, get schedules that fit together. One rank's work is proportional to its number of
/// steps, and to the number of ranks where it depends on all.
///
/// # Errors
/// What this rank can see: ranks and lengths that do not fit, an algorithm that does not do the operation
/// ([`Algorithm::does`]), or does not do it with these groups.
pub fn build(
    rank: usize,
    locality: &Locality,
    call: &Call<'_>,
    algorithm: &Algorithm,
) -> Result<Schedule, BuildError> {
    build_as(rank, locality, call, algorithm, *algorithm)
}

/// As [`build()`], for a rank that shares no memory with the others of its host: it goes along a tree where they would
/// [share](crate::Action::Share). The others of its host do likewise; ranks of other hosts need not know.
///
/// # Errors
/// As for [`build`].
pub fn build_apart(
    rank: usize,
    locality: &Locality,
    call: &Call<'_>,
    algorithm: &Algorithm,
) -> Result<Schedule, BuildError> {
    build_as(rank, locality, call, algorithm, algorithm.by_messages())
}

fn build_as(
    rank: usize,
    locality: &Locality,
    call: &Call<'_>,
    algorithm: &Algorithm,
    done: Algorithm,
) -> Result<Schedule, BuildError> {
    let ranks = locality.ranks();
    call.check(rank, ranks)?;
    if let Some(why) = misfit(call, locality, algorithm) {
        let (operation, algorithm) = (call.operation(), Box::new(*algorithm));
        return Err(BuildError::Unsuited { operation, algorithm, why });
    }
    let (send, recv) = rows(call, rank, ranks);
    let mut b = Builder::new((rank, ranks), Terms::of(call, algorithm), send, recv);
    let plan = BuildPlan { rank, locality, algorithm: done, team: Team::all(rank, ranks) };
    if let Some(of) = call.reduction() {
        plan.reduction(&mut b, call, of);
    } else {
        plan.movement(&mut b, call);
    }
    Ok(b.finish())
}

/// The blocks of the user's buffers at this rank.
pub(crate) fn rows(call: &Call<'_>, rank: usize, n: usize) -> (Row, Row) {
    let equal = |len| Row::Equal { blocks: n, len };
    let at = |root: usize, row: Row| if rank == root { row } else { Row::NONE };
    // Lists are summed only where they count: elsewhere nobody has looked at them.
    let listed = |counts: bool, lens: &[u64]| if counts { Row::each(lens) } else { Row::NONE };
    let unless = |in_place: bool, row: Row| if in_place { Row::NONE } else { row };
    match *call {
        Call::Barrier => (Row::NONE, Row::NONE),
        Call::Bcast { len, .. } => (Row::NONE, Row::one(len)),
        Call::Gather { root, len, in_place } => {
            (unless(in_place && rank == root, Row::one(len)), at(root, equal(len)))
        }
        Call::Gatherv { root, len, lens, in_place } => {
            (unless(in_place && rank == root, Row::one(len)), listed(rank == root, lens))
        }
        Call::Scatter { root, len, in_place } => {
            (at(root, equal(len)), unless(in_place && rank == root, Row::one(len)))
        }
        Call::Scatterv { root, len, lens, in_place } => {
            (listed(rank == root, lens), unless(in_place && rank == root, Row::one(len)))
        }
        Call::Allgather { len, in_place } => (unless(in_place, Row::one(len)), equal(len)),
        Call::Allgatherv { lens, in_place } => {
            (unless(in_place, Row::one(lens[rank])), Row::each(lens))
        }
        Call::Alltoall { len, in_place } => (unless(in_place, equal(len)), equal(len)),
        Call::Alltoallv { send, recv, in_place } => (listed(!in_place, send), Row::each(recv)),
        Call::Reduce { root, len, in_place, .. } => {
            (unless(in_place && rank == root, Row::one(len)), at(root, Row::one(len)))
        }
        Call::Allreduce { len, in_place, .. }
        | Call::Scan { len, in_place, .. }
        | Call::Exscan { len, in_place, .. } => (unless(in_place, Row::one(len)), Row::one(len)),
        Call::ReduceScatter { lens, in_place: false, .. } => {
            (Row::each(lens), Row::one(lens[rank]))
        }
        Call::ReduceScatter { lens, in_place: true, .. } => (Row::NONE, Row::each(lens)),
        Call::ReduceScatterBlock { len, in_place: false, .. } => (equal(len), Row::one(len)),
        Call::ReduceScatterBlock { len, in_place: true, .. } => (Row::NONE, equal(len)),
        Call::NeighborAllgather { len, recv, .. } => (Row::one(len), Row::each(recv)),
        Call::NeighborAlltoall { send, recv, .. } => (Row::each(send), Row::each(recv)),
    }
}

struct BuildPlan<'a> {
    rank: usize,
    locality: &'a Locality,
    algorithm: Algorithm,
    team: Team,
}

impl BuildPlan<'_> {
    /// This rank's place on the levels; the root leads its groups, if there is one and it `leads`.
    fn levels(&self, root: Option<usize>, leads: bool) -> Levels {
        let root = (root.unwrap_or(0), leads);
        Levels::new(self.locality, &self.algorithm.within, self.rank, root)
    }

    /// The tree of an algorithm that is one.
    fn tree(&self) -> Tree {
        if let Method::Tree(tree) = self.algorithm.method { tree } else { Tree::Binomial }
    }

    /// Operations that only move bytes.
    fn movement(&self, b: &mut Builder, call: &Call<'_>) {
        let Algorithm { method, segment, .. } = self.algorithm;
        let how = (method, segment);
        let (send, recv) = (b.send_buffer(), b.recv_buffer());
        match *call {
            Call::Barrier => levels::barrier(b, &self.levels(None, false), method),
            Call::Bcast { root, .. } => {
                levels::bcast(b, &self.levels(Some(root), true), how, recv);
            }
            Call::Gather { root, len, in_place } => {
                let cuts = Cuts::equal(self.team.len(), len);
                let areas = self.at_root(root, &cuts, in_place, send, recv);
                levels::gather(b, &self.levels(Some(root), true), self.tree(), areas, len);
            }
            Call::Scatter { root, len, in_place } => {
                let cuts = Cuts::equal(self.team.len(), len);
                let areas = self.at_root(root, &cuts, in_place, recv, send);
                levels::scatter(b, &self.levels(Some(root), true), self.tree(), areas, len);
            }
            Call::Gatherv { root, lens, in_place, .. } => {
                if self.rank != root {
                    return b.send(root, send);
                }
                let cuts = Cuts::each(lens);
                let (own, _) = self.at_root(root, &cuts, in_place, send, recv);
                b.copy(own, recv.cut(cuts.range(root..root + 1)));
                for peer in self.others() {
                    b.receive(peer, recv.cut(cuts.range(peer..peer + 1)));
                }
            }
            Call::Scatterv { root, lens, in_place, .. } => {
                if self.rank != root {
                    return b.receive(root, recv);
                }
                let cuts = Cuts::each(lens);
                let (own, _) = self.at_root(root, &cuts, in_place, recv, send);
                for peer in self.others() {
                    b.send(peer, send.cut(cuts.range(peer..peer + 1)));
                }
                b.copy(send.cut(cuts.range(root..root + 1)), own);
            }
            Call::Allgather { len, in_place } => {
                let cuts = Cuts::equal(self.team.len(), len);
                if !in_place {
                    b.copy(send, recv.cut(cuts.range(self.rank..self.rank + 1)));
                }
                levels::allgather(b, &self.levels(None, false), how, (recv, len));
            }
            Call::Allgatherv { lens, in_place } => {
                let cuts = Cuts::each(lens);
                if !in_place {
                    b.copy(send, recv.cut(cuts.range(self.rank..self.rank + 1)));
                }
                compose::allgather(b, &self.team, how, recv, &cuts);
            }
            Call::Alltoall { len, in_place } if !self.algorithm.within.is_empty() => {
                let at_once = if let Method::Pairwise(most) = method { Some(most) } else { None };
                let areas = (if in_place { recv } else { send }, recv);
                levels::alltoall(b, &self.levels(None, false), at_once, areas, len);
            }
            Call::Alltoall { len, in_place } => {
                let cuts = Cuts::equal(self.team.len(), len);
                self.alltoall(b, in_place, (&cuts, &cuts), Some(len));
            }
            Call::Alltoallv { send, recv, in_place } => {
                let send = Cuts::each(if in_place { recv } else { send });
                self.alltoall(b, in_place, (&send, &Cuts::each(recv)), None);
            }
            Call::NeighborAllgather { sources, destinations, recv: lens, .. } => {
                let out = vec![send; destinations.len()];
                let to = (destinations, out.as_slice());
                neighbors::exchange(b, self.rank, (sources, recv), to, &Cuts::each(lens));
            }
            Call::NeighborAlltoall { sources, destinations, send: lens, recv: recv_lens } => {
                let cuts = Cuts::each(lens);
                let out: Vec<_> =
                    (0..lens.len()).map(|index| send.cut(cuts.range(index..index + 1))).collect();
                let to = (destinations, out.as_slice());
                neighbors::exchange(b, self.rank, (sources, recv), to, &Cuts::each(recv_lens));
            }
            _ => unreachable!("{} is a reduction", call.operation()),
        }
    }

    /// A rank's own block, in place at the root perhaps, and all blocks at the root.
    fn at_root(
        &self,
        root: usize,
        cuts: &Cuts,
        in_place: bool,
        own: Area,
        whole: Area,
    ) -> (Area, Option<Area>) {
        if self.rank != root {
            return (own, None);
        }
        let place = whole.cut(cuts.range(root..root + 1));
        (if in_place { place } else { own }, Some(whole))
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, n) = (self.rank, self.team.len());
        (1..n).map(move |distance| (rank + distance) % n)
    }

    fn alltoall(&self, b: &mut Builder, in_place: bool, cuts: (&Cuts, &Cuts), len: Option<u64>) {
        let recv = b.recv_buffer();
        let send = if in_place {
            let saved = b.scratch(recv.len);
            b.copy(recv, saved);
            saved
        } else {
            b.send_buffer()
        };
        let blocks = Blocks { send, send_cuts: cuts.0, recv, recv_cuts: cuts.1 };
        match (self.algorithm.method, len) {
            (Method::Exchange(Exchange::Bruck), Some(len)) => {
                alltoall::bruck(b, &self.team, &blocks, len);
            }
            (Method::Pairwise(most), _) => alltoall::exchange(b, &self.team, &blocks, Some(most)),
            _ => alltoall::exchange(b, &self.team, &blocks, None),
        }
    }

    /// Operations that combine.
    fn reduction(&self, b: &mut Builder, call: &Call<'_>, of: Reduction) {
        let Algorithm { method, segment, .. } = self.algorithm;
        let how = (method, segment);
        let recv = b.recv_buffer();
        let input = if b.send_buffer().is_empty() { recv } else { b.send_buffer() };
        match *call {
            Call::Reduce { root, .. } => {
                let result = (self.rank == root).then_some(recv);
                let levels = self.levels(Some(root), of.commutative);
                levels::reduce(b, &levels, how, (input, result), of);
            }
            Call::Allreduce { .. } => {
                levels::allreduce(b, &self.levels(None, false), how, (input, recv), of);
            }
            Call::ReduceScatter { lens, in_place, .. } => {
                let cuts = Cuts::each(lens);
                apart(b, cuts.len(self.rank), in_place, |b, out| {
                    compose::reduce_scatter(b, &self.team, how, (input, &cuts, out), of);
                });
            }
            Call::ReduceScatterBlock { len, in_place, .. } => {
                let levels = self.levels(None, false);
                apart(b, len, in_place, |b, out| {
                    levels::reduce_scatter(b, &levels, how, (input, out, len), of);
                });
            }
            Call::Scan { .. } | Call::Exscan { .. } => {
                let prefix = match call.operation() {
                    Operation::Scan => Prefix::Inclusive,
                    _ => Prefix::Exclusive,
                };
                match method {
                    Method::Tree(_) => scan::chain(b, &self.team, prefix, (input, recv), segment),
                    _ => scan::doubling(b, &self.team, prefix, input, recv),
                }
            }
            _ => unreachable!("{} is no reduction", call.operation()),
        }
    }
}

/// Has the result of a reduce-scatter made: it must not be part of what is read, as it would be in place.
fn apart(b: &mut Builder, len: u64, in_place: bool, make: impl FnOnce(&mut Builder, Area)) {
    let result = Area::new(Buffer::Recv, 0, len);
    let out = if in_place { b.scratch(len) } else { result };
    make(b, out);
    b.copy(out, result);
}
