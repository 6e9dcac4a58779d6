//! What the operations of MPI do, as the contents of all ranks' buffers before and after.
use std::ops::Range;

use super::algebra::{Algebra, UNDEFINED, Value};
use super::{Memory, execute};
use crate::between::{Between, BetweenCall};
use crate::call::Call;
use crate::schedule::{Buffer, Place, Row, Schedule};
use crate::topologies::Edge;

/// What a collective of some ranks should do: what the buffers hold before, and after.
///
/// Lengths and cuts must be multiples of a grain: so long blocks are as quick to prove as short ones.
#[derive(Clone, Debug)]
pub struct Definition {
    pub(super) algebra: Algebra,
    pub(super) ranks: Vec<Memory>,
    grain: u64,
}

impl Definition {
    /// The definition of a collective, as all ranks call it, in order.
    ///
    /// # Panics
    /// If the calls do not fit together, or lengths are not multiples of the grain.
    #[must_use]
    pub fn new(calls: &[Call<'_>], grain: u64) -> Self {
        let commutative = calls[0].reduction().is_none_or(|of| of.commutative);
        let mut it = Self { algebra: Algebra::new(commutative), ranks: Vec::new(), grain };
        it.ranks = (0..calls.len()).map(|rank| it.memory(rank, calls)).collect();
        it
    }

    /// The definition of a collective of an intercommunicator.
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    #[must_use]
    pub fn between(first: usize, second: usize, calls: &[BetweenCall<'_>], grain: u64) -> Self {
        let commutative = match calls[0] {
            BetweenCall::Reduce { of, .. }
            | BetweenCall::Allreduce { of, .. }
            | BetweenCall::ReduceScatter { of, .. }
            | BetweenCall::ReduceScatterBlock { of, .. } => of.commutative,
            _ => true,
        };
        let mut it = Self { algebra: Algebra::new(commutative), ranks: Vec::new(), grain };
        let members = |rank| Between { rank, first, second };
        it.ranks =
            (0..first + second).map(|rank| it.memory_between(members(rank), calls)).collect();
        it
    }

    /// The cells of a place; none if it lies outside its buffer or not at the grain.
    pub(super) fn cells(&self, schedule: &Schedule, place: &Place) -> Option<Range<usize>> {
        if *place == Place::NOTHING {
            return Some(0..0);
        }
        let row = schedule.row(place.buffer);
        let in_block = place.block < row.blocks()
            && place.start < row.range(place.block).end - row.range(place.block).start;
        if !in_block || place.len == 0 || schedule.range(place).end > row.len() {
            return None;
        }
        let len = match place.buffer {
            Buffer::Send => self.ranks[schedule.rank()].send.len(),
            Buffer::Recv => self.ranks[schedule.rank()].recv.len(),
            Buffer::Scratch => self.scratch_cells(schedule),
        };
        execute::cells(&schedule.range(place), self.grain).filter(|cells| cells.end <= len)
    }

    pub(super) fn scratch_cells(&self, schedule: &Schedule) -> usize {
        index(schedule.scratch().div_ceil(self.grain))
    }

    pub(super) fn unit_cells(&self, schedule: &Schedule) -> usize {
        index(schedule.unit().div_ceil(self.grain))
    }

    pub(super) fn bytes(&self, cell: usize) -> u64 {
        cell as u64 * self.grain
    }

    fn count(&self, len: u64) -> usize {
        assert!(len.is_multiple_of(self.grain), "{len} bytes at a grain of {}", self.grain);
        index(len / self.grain)
    }

    /// Inputs of a rank.
    fn inputs(&mut self, rank: usize, at: Range<usize>) -> Vec<Value> {
        at.map(|at| self.algebra.input(rank, at)).collect()
    }

    /// Combinations of some ranks' inputs, in order.
    fn sums(&mut self, ranks: Range<usize>, at: Range<usize>) -> Vec<Value> {
        let ranks: Vec<_> = ranks.map(|rank| u16::try_from(rank).expect("few ranks")).collect();
        at.map(|at| self.algebra.value(at, ranks.clone())).collect()
    }

    fn block(&self, lens: &[u64], index: usize) -> Range<usize> {
        let range = Row::each(lens).range(index);
        self.count(range.start)..self.count(range.end)
    }

    /// The buffers of a rank before and after.
    fn memory(&mut self, rank: usize, calls: &[Call<'_>]) -> Memory {
        let n = calls.len();
        let none = |count: usize| vec![UNDEFINED; count];
        match calls[rank] {
            Call::Barrier => buffers(none(0), none(0), none(0)),
            Call::Bcast { root, len } => {
                let data = self.inputs(root, 0..self.count(len));
                if rank == root {
                    return broadcasts(data);
                }
                buffers(none(0), none(data.len()), data)
            }
            Call::Gather { root, len, in_place } => {
                let lens = vec![len; n];
                self.gather(rank, root, &lens, in_place && rank == root)
            }
            Call::Gatherv { root, in_place, .. } => {
                let Call::Gatherv { lens, .. } = calls[root] else { panic!("one operation") };
                self.gather(rank, root, lens, in_place && rank == root)
            }
            Call::Scatter { root, len, in_place } => {
                let lens = vec![len; n];
                self.scatter(rank, root, &lens, in_place && rank == root)
            }
            Call::Scatterv { root, in_place, .. } => {
                let Call::Scatterv { lens, .. } = calls[root] else { panic!("one operation") };
                self.scatter(rank, root, lens, in_place && rank == root)
            }
            Call::Allgather { len, in_place } => {
                let lens = vec![len; n];
                self.gather(rank, rank, &lens, in_place)
            }
            Call::Allgatherv { lens, in_place } => self.gather(rank, rank, lens, in_place),
            Call::Alltoall { len, in_place } => {
                let all = vec![vec![len; n]; n];
                self.alltoall(rank, &all, in_place)
            }
            Call::Alltoallv { in_place, .. } => {
                let out = |call: &Call<'_>| match call {
                    Call::Alltoallv { recv, in_place: true, .. } => recv.to_vec(),
                    Call::Alltoallv { send, .. } => send.to_vec(),
                    _ => panic!("one operation"),
                };
                let all: Vec<_> = calls.iter().map(out).collect();
                self.alltoall(rank, &all, in_place)
            }
            Call::Reduce { root, len, in_place, .. } => {
                let cells = self.count(len);
                let data = self.inputs(rank, 0..cells);
                if rank != root {
                    return buffers(data, none(0), none(0));
                }
                let sum = self.sums(0..n, 0..cells);
                in_place_or(in_place, data, sum)
            }
            Call::Allreduce { len, in_place, .. } => {
                let cells = self.count(len);
                let (data, sum) = (self.inputs(rank, 0..cells), self.sums(0..n, 0..cells));
                in_place_or(in_place, data, sum)
            }
            Call::Scan { len, in_place, .. } => {
                let cells = self.count(len);
                let (data, sum) = (self.inputs(rank, 0..cells), self.sums(0..rank + 1, 0..cells));
                in_place_or(in_place, data, sum)
            }
            Call::Exscan { len, in_place, .. } => {
                let cells = self.count(len);
                let data = self.inputs(rank, 0..cells);
                let sum = if rank == 0 { none(cells) } else { self.sums(0..rank, 0..cells) };
                in_place_or(in_place, data, sum)
            }
            Call::ReduceScatter { lens, in_place, .. } => self.reduce_scatter(rank, lens, in_place),
            Call::ReduceScatterBlock { len, in_place, .. } => {
                self.reduce_scatter(rank, &vec![len; n], in_place)
            }
            Call::NeighborAllgather { sources, len, .. } => {
                let data = self.inputs(rank, 0..self.count(len));
                let from = |call: &Call<'_>, _: Edge| match *call {
                    Call::NeighborAllgather { len, .. } => 0..len,
                    _ => panic!("one operation"),
                };
                let Call::NeighborAllgather { recv, .. } = calls[rank] else {
                    panic!("one operation")
                };
                let expected = self.neighbors(sources, recv, calls, &from);
                buffers(data, none(expected.len()), expected)
            }
            Call::NeighborAlltoall { sources, send, recv, .. } => {
                let data = self.inputs(rank, 0..self.count(send.iter().sum()));
                let from = |call: &Call<'_>, edge: Edge| match *call {
                    Call::NeighborAlltoall { destinations, send, .. } => {
                        let wanted =
                            Some(Edge { rank: u32::try_from(rank).expect("few ranks"), ..edge });
                        let index = destinations.iter().position(|it| *it == wanted);
                        Row::each(send).range(index.expect("an edge has two ends"))
                    }
                    _ => panic!("one operation"),
                };
                let expected = self.neighbors(sources, recv, calls, &from);
                buffers(data, none(expected.len()), expected)
            }
        }
    }

    /// What comes along the edges; `from`: which bytes of a rank's inputs go along an edge.
    fn neighbors(
        &mut self,
        sources: &[Option<Edge>],
        recv: &[u64],
        calls: &[Call<'_>],
        from: &dyn Fn(&Call<'_>, Edge) -> Range<u64>,
    ) -> Vec<Value> {
        let mut expected = Vec::new();
        for (source, len) in sources.iter().zip(recv) {
            match source {
                None => expected.extend(vec![UNDEFINED; self.count(*len)]),
                Some(edge) => {
                    let range = from(&calls[edge.rank as usize], *edge);
                    let cells = self.count(range.start)..self.count(range.end);
                    expected.extend(self.inputs(edge.rank as usize, cells));
                }
            }
        }
        expected
    }

    fn gather(&mut self, rank: usize, root: usize, lens: &[u64], in_place: bool) -> Memory {
        let own = self.inputs(rank, 0..self.count(lens[rank]));
        if rank != root {
            return buffers(own, Vec::new(), Vec::new());
        }
        let mut all = Vec::new();
        for (from, len) in lens.iter().enumerate() {
            let cells = 0..self.count(*len);
            all.extend(self.inputs(from, cells));
        }
        let mut before = vec![UNDEFINED; all.len()];
        if !in_place {
            return buffers(own, before, all);
        }
        before[self.block(lens, rank)].copy_from_slice(&own);
        buffers(Vec::new(), before, all)
    }

    fn scatter(&mut self, rank: usize, root: usize, lens: &[u64], in_place: bool) -> Memory {
        let whole = self.inputs(root, 0..self.count(lens.iter().sum()));
        let part = whole[self.block(lens, rank)].to_vec();
        let send = if rank == root { whole } else { Vec::new() };
        if in_place {
            return buffers(send, Vec::new(), Vec::new());
        }
        buffers(send, vec![UNDEFINED; part.len()], part)
    }

    fn alltoall(&mut self, rank: usize, all: &[Vec<u64>], in_place: bool) -> Memory {
        let own = self.inputs(rank, 0..self.count(all[rank].iter().sum()));
        let mut came = Vec::new();
        for (from, lens) in all.iter().enumerate() {
            came.extend(self.inputs(from, self.block(lens, rank)));
        }
        in_place_or(in_place, own, came)
    }

    fn reduce_scatter(&mut self, rank: usize, lens: &[u64], in_place: bool) -> Memory {
        let cells = self.count(lens.iter().sum());
        let data = self.inputs(rank, 0..cells);
        let mut sum = self.sums(0..lens.len(), self.block(lens, rank));
        if in_place {
            // The rest of the vector stays as it is.
            sum.resize(cells, UNDEFINED);
        }
        in_place_or(in_place, data, sum)
    }

    fn memory_between(&mut self, at: Between, calls: &[BetweenCall<'_>]) -> Memory {
        let (rank, local, remote) = (at.rank, at.local(), at.remote());
        let none = |count: usize| vec![UNDEFINED; count];
        let nothing = || buffers(Vec::new(), Vec::new(), Vec::new());
        let gets = |received: Vec<Value>| buffers(Vec::new(), none(received.len()), received);
        let gives = |sent: Vec<Value>| buffers(sent, Vec::new(), Vec::new());
        // Which inputs of a rank of the other group are meant for this one.
        let index = rank - local.start;
        match calls[rank] {
            BetweenCall::Barrier => nothing(),
            BetweenCall::Bcast { root: None, .. }
            | BetweenCall::Gather { root: None, .. }
            | BetweenCall::Gatherv { root: None, .. }
            | BetweenCall::Scatter { root: None, .. }
            | BetweenCall::Scatterv { root: None, .. }
            | BetweenCall::Reduce { root: None, .. } => nothing(),
            BetweenCall::Bcast { root: Some(root), len } => {
                let data = self.inputs(root, 0..self.count(len));
                if rank == root { broadcasts(data) } else { gets(data) }
            }
            BetweenCall::Gather { root: Some(root), len }
            | BetweenCall::Gatherv { root: Some(root), len, .. }
                if rank != root =>
            {
                gives(self.inputs(rank, 0..self.count(len)))
            }
            BetweenCall::Gather { len, .. } => {
                gets(self.all_of(remote.clone(), &vec![len; remote.len()]))
            }
            BetweenCall::Gatherv { lens, .. } => gets(self.all_of(remote, lens)),
            BetweenCall::Scatter { root: Some(root), len } => {
                let lens = vec![len; if rank == root { remote.len() } else { local.len() }];
                let whole = self.inputs(root, 0..self.count(lens.iter().sum()));
                if rank == root {
                    gives(whole)
                } else {
                    gets(whole[self.block(&lens, index)].to_vec())
                }
            }
            BetweenCall::Scatterv { root: Some(root), .. } => {
                let BetweenCall::Scatterv { lens, .. } = calls[root] else {
                    panic!("one operation")
                };
                let whole = self.inputs(root, 0..self.count(lens.iter().sum()));
                if rank == root {
                    gives(whole)
                } else {
                    gets(whole[self.block(lens, index)].to_vec())
                }
            }
            BetweenCall::Allgather { send, recv } => {
                let came = self.all_of(remote.clone(), &vec![recv; remote.len()]);
                buffers(self.inputs(rank, 0..self.count(send)), none(came.len()), came)
            }
            BetweenCall::Allgatherv { send, recv } => {
                let came = self.all_of(remote, recv);
                buffers(self.inputs(rank, 0..self.count(send)), none(came.len()), came)
            }
            BetweenCall::Alltoall { .. } | BetweenCall::Alltoallv { .. } => {
                let out = |call: &BetweenCall<'_>, count: usize| match call {
                    BetweenCall::Alltoall { send, .. } => vec![*send; count],
                    BetweenCall::Alltoallv { send, .. } => send.to_vec(),
                    _ => panic!("one operation"),
                };
                let own: u64 = out(&calls[rank], remote.len()).iter().sum();
                let own = self.inputs(rank, 0..self.count(own));
                let mut came = Vec::new();
                for from in remote {
                    let block = self.block(&out(&calls[from], local.len()), index);
                    came.extend(self.inputs(from, block));
                }
                buffers(own, none(came.len()), came)
            }
            BetweenCall::Reduce { root: Some(root), len, .. } => {
                let cells = 0..self.count(len);
                if rank == root {
                    gets(self.sums(remote, cells))
                } else {
                    gives(self.inputs(rank, cells))
                }
            }
            BetweenCall::Allreduce { len, .. } => {
                let cells = 0..self.count(len);
                let sum = self.sums(remote, cells.clone());
                buffers(self.inputs(rank, cells), none(sum.len()), sum)
            }
            BetweenCall::ReduceScatter { lens, .. } => {
                let sum = self.sums(remote, self.block(lens, index));
                let own = 0..self.count(lens.iter().sum());
                buffers(self.inputs(rank, own), none(sum.len()), sum)
            }
            BetweenCall::ReduceScatterBlock { len, .. } => {
                let lens = vec![len; local.len()];
                let sum = self.sums(remote, self.block(&lens, index));
                let own = 0..self.count(lens.iter().sum());
                buffers(self.inputs(rank, own), none(sum.len()), sum)
            }
        }
    }

    fn all_of(&mut self, ranks: Range<usize>, lens: &[u64]) -> Vec<Value> {
        let mut all = Vec::new();
        for (from, len) in ranks.zip(lens) {
            let cells = 0..self.count(*len);
            all.extend(self.inputs(from, cells));
        }
        all
    }
}

fn index(count: u64) -> usize {
    usize::try_from(count).expect("buffers are short here")
}

fn buffers(send: Vec<Value>, recv: Vec<Value>, expected: Vec<Value>) -> Memory {
    Memory { send, recv, scratch: Vec::new(), expected, recv_is_input: false }
}

/// The root of a broadcast has its data in the receive buffer, and only reads them.
fn broadcasts(data: Vec<Value>) -> Memory {
    Memory { recv_is_input: true, ..buffers(Vec::new(), data.clone(), data) }
}

/// In place, the input lies in the receive buffer.
fn in_place_or(in_place: bool, data: Vec<Value>, expected: Vec<Value>) -> Memory {
    if in_place {
        return buffers(Vec::new(), data, expected);
    }
    let before = vec![UNDEFINED; expected.len()];
    buffers(data, before, expected)
}
