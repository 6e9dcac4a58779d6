//! Random calls of all ranks, of each kind that goes through shared memory.
use gapless_coll::sm::{SHORT_BYTES, SharedSegment};
use gapless_coll::testkit::Random;
use gapless_coll::topologies::Edge;
use gapless_coll::{Call, Reduction};

/// For the rest of the test.
pub(super) fn listed<const N: usize>(lens: [u64; N]) -> &'static [u64] {
    lens.to_vec().leak()
}

/// Random lengths of up to so many elements; some are 0.
fn lens(ranks: usize, unit: u64, most: u64, random: &mut Random) -> &'static [u64] {
    let len = |_| if random.below(4) == 0 { 0 } else { unit * random.below(most + 1) };
    (0..ranks).map(len).collect::<Vec<u64>>().leak()
}

/// A call that goes by the segment.
pub(crate) fn short(ranks: usize, of: Reduction, random: &mut Random) -> Vec<Call<'static>> {
    let in_place = random.below(2) == 0;
    let root = usize::try_from(random.below(ranks as u64)).unwrap();
    let most = [2, 16, 100, SHORT_BYTES / of.unit][usize::try_from(random.below(4)).unwrap()];
    let long = of.unit * random.below(most + 1);
    let part = of.unit * random.below(SHORT_BYTES / of.unit / ranks as u64 + 1);
    let most = [SHORT_BYTES / of.unit, SHORT_BYTES / of.unit / ranks as u64];
    let [each, all] = most.map(|most| lens(ranks, of.unit, most, random));
    let calls = [
        Call::Allgatherv { lens: each, in_place },
        Call::ReduceScatter { lens: all, of, in_place },
        Call::Barrier,
        Call::Bcast { root, len: long },
        Call::Gather { root, len: long, in_place },
        Call::Scatter { root, len: part, in_place },
        Call::Allgather { len: long, in_place },
        Call::Alltoall { len: part, in_place },
        Call::Reduce { root, len: long, of, in_place },
        Call::Allreduce { len: long, of, in_place },
        Call::ReduceScatterBlock { len: part, of, in_place },
        Call::Scan { len: long, of, in_place },
        Call::Exscan { len: long, of, in_place },
    ];
    let call = calls[usize::try_from(random.below(calls.len() as u64)).unwrap()];
    assert!(SharedSegment::takes(&call, ranks));
    vec![call; ranks]
}

/// A call that goes through slots, in one fragment or in several.
pub(super) fn long(ranks: usize, of: Reduction, random: &mut Random) -> Vec<Call<'static>> {
    let in_place = random.below(2) == 0;
    let root = usize::try_from(random.below(ranks as u64)).unwrap();
    let most = [300, 9000, 80_000][usize::try_from(random.below(3)).unwrap()];
    // Longer than what goes by mailboxes, whatever the operation.
    let len = of.unit * (SHORT_BYTES / of.unit + 1 + random.below(most / of.unit));
    let lens = lens(ranks, of.unit, 2 * len / of.unit, random);
    let calls = [
        Call::Allgatherv { lens, in_place },
        Call::ReduceScatter { lens, of, in_place },
        Call::Bcast { root, len },
        Call::Gather { root, len, in_place },
        Call::Scatter { root, len, in_place },
        Call::Allgather { len, in_place },
        Call::Alltoall { len, in_place },
        Call::Reduce { root, len, of, in_place },
        Call::Allreduce { len, of, in_place },
        Call::ReduceScatterBlock { len, of, in_place },
        Call::Scan { len, of, in_place },
        Call::Exscan { len, of, in_place },
    ];
    let call = calls[usize::try_from(random.below(calls.len() as u64)).unwrap()];
    assert!(SharedSegment::takes(&call, ranks));
    vec![call; ranks]
}

/// A call of which only two ranks know how much goes between them.
pub(super) fn exchange(ranks: usize, _: Reduction, random: &mut Random) -> Vec<Call<'static>> {
    let (in_place, root) = (random.below(2) == 0, random.index(ranks));
    let most = [5, 60, 2000, 60_000][random.index(4)];
    // What each rank sends to each.
    let mut sent: Vec<&[u64]> = (0..ranks).map(|_| lens(ranks, 4, most, random)).collect();
    let what = random.below(5);
    if in_place && what == 0 {
        let even = |from: usize, to: usize| sent[from.min(to)][from.max(to)];
        let row = |from: usize| (0..ranks).map(|to| even(from, to)).collect::<Vec<_>>();
        sent = (0..ranks).map(|from| &*row(from).leak()).collect();
    }
    let come = |to: usize| &*(0..ranks).map(|from| sent[from][to]).collect::<Vec<_>>().leak();
    let edges = random_edges(ranks, random);
    let call = |me: usize| {
        let (lens, is_root) = (sent[root], me == root);
        let (sources, destinations) = neighbors(me, &edges);
        let bytes = |edge: &Option<Edge>, from: Option<u32>| {
            let lane = |edge: &Edge| sent[from.unwrap_or(edge.rank) as usize][edge.lane as usize];
            edge.as_ref().map_or(8, lane)
        };
        match what {
            0 => Call::Alltoallv { send: sent[me], recv: come(me), in_place },
            1 => {
                let lens = if is_root { lens } else { &[] };
                Call::Gatherv { root, len: sent[root][me], lens, in_place }
            }
            2 => {
                let lens = if is_root { lens } else { &[] };
                Call::Scatterv { root, len: sent[root][me], lens, in_place }
            }
            3 => {
                let len = |edge: &Option<Edge>| edge.map_or(8, |edge| sent[edge.rank as usize][0]);
                let recv = sources.iter().map(len).collect::<Vec<_>>().leak();
                Call::NeighborAllgather { sources, destinations, len: sent[me][0], recv }
            }
            _ => {
                let own = u32::try_from(me).unwrap();
                let send = destinations.iter().map(|edge| bytes(edge, Some(own)));
                let recv = sources.iter().map(|edge| bytes(edge, None));
                let (send, recv) =
                    (send.collect::<Vec<_>>().leak(), recv.collect::<Vec<_>>().leak());
                Call::NeighborAlltoall { sources, destinations, send, recv }
            }
        }
    };
    (0..ranks).map(call).inspect(|call| assert!(SharedSegment::takes(call, ranks))).collect()
}

/// Edges from rank to rank with lanes below the number of ranks, some of them from a rank to itself.
fn random_edges(ranks: usize, random: &mut Random) -> Vec<(usize, usize, usize)> {
    let mut edges = Vec::new();
    for _ in 0..3 * ranks {
        let edge = (random.index(ranks), random.index(ranks), random.index(ranks));
        if !edges.contains(&edge) {
            edges.push(edge);
        }
    }
    edges
}

type Edges = &'static [Option<Edge>];

/// The edges to a rank, and those from it; and one that is none.
fn neighbors(me: usize, edges: &[(usize, usize, usize)]) -> (Edges, Edges) {
    let edge = |rank: usize, lane: usize| {
        let (rank, lane) = (u32::try_from(rank).unwrap(), u32::try_from(lane).unwrap());
        Some(Edge { rank, lane })
    };
    let to = edges.iter().filter(|it| it.1 == me).map(|it| edge(it.0, it.2));
    let from = edges.iter().rev().filter(|it| it.0 == me).map(|it| edge(it.1, it.2));
    let sources = to.chain([None]).collect::<Vec<_>>().leak();
    (sources, [None].into_iter().chain(from).collect::<Vec<_>>().leak())
}

/// One or the other.
pub(crate) fn any(ranks: usize, of: Reduction, random: &mut Random) -> Vec<Call<'static>> {
    let choose: Choose = [short, long, long, exchange, exchange][random.index(5)];
    choose(ranks, of, random)
}

pub(super) type Choose = fn(usize, Reduction, &mut Random) -> Vec<Call<'static>>;
