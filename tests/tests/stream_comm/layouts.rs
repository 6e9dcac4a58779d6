//! Collectives with layouts: what arrives is compared with what packing and unpacking on the host gives.

#![allow(clippy::cast_possible_truncation, reason = "ranks are few, and buffers fit the memory")]

use super::{POISON, Rank, WATCHDOG, bytes, launcher};
use gapless::coll::reshard::{Placement, Reshard, Sharding};
use gapless::{
    Datatype, DeviceBuf, Equivalence, Layout, Registered, Space, StreamBlock, StreamComm,
    StreamError, StreamOptions, StreamPlan, StreamWay, Subarray,
};
use gapless_dtype::{pack, unpack};
use gapless_tests::launcher::{Member, say};
use std::time::Instant;

const WAYS: [Option<StreamWay>; 4] =
    [None, Some(StreamWay::Push), Some(StreamWay::Pull), Some(StreamWay::Staged)];

/// Layouts of `n` elements of `size` bytes each: a stretch, grids in two orders, blocks of any length, a list.
fn layouts(size: u64, n: u64) -> Vec<Layout> {
    assert!(n.is_multiple_of(144));
    let of = Datatype::contiguous(size, &u8::datatype()).unwrap();
    let column = Datatype::vector(n / 16, 1, 17, &of).unwrap();
    let columns = Datatype::resized(0, size.cast_signed(), &column).unwrap();
    let lens: Vec<u64> = [1, 3, 2, 7, 5, 4, 6, 8].repeat(n as usize / 36);
    let at: Vec<i64> = (0..lens.len().cast_signed()).map(|j| (j * 10 + j * 7 % 3) as i64).collect();
    let list: Vec<i64> = (0..n.cast_signed() / 2).map(|j| (j ^ 5) * 3).collect();
    let all = [
        Datatype::contiguous(n, &of),
        Datatype::vector(n / 4, 4, 6, &of),
        Datatype::vector(n, 1, 3, &of),
        Datatype::contiguous(16, &columns),
        Datatype::indexed(&lens, &at, &of),
        Datatype::indexed_block(2, &list, &of),
    ];
    all.into_iter().map(|datatype| datatype.unwrap().commit().unwrap()).collect()
}

/// Blocks of a rank's buffer, `apart` bytes apart, the first `shift` bytes in.
fn blocks(layout: &Layout, ranks: usize, shift: u64, apart: u64) -> Vec<StreamBlock<'_>> {
    let block = |rank: u64| StreamBlock { displacement: shift + rank * apart, layout, count: 1 };
    (0..ranks as u64).map(block).collect()
}

/// Two registered buffers of a rank.
struct Buffers {
    send: DeviceBuf,
    recv: DeviceBuf,
    len: usize,
}

impl Buffers {
    fn new(rank: &Rank, len: usize) -> Buffers {
        Buffers { send: rank.memory(len), recv: rank.memory(len), len }
    }

    fn register(&self, on: &mut StreamComm<'_>) -> [Registered; 2] {
        [&self.send, &self.recv].map(|memory| {
            // SAFETY: they outlive `on`.
            unsafe { on.register(memory.region()) }.unwrap()
        })
    }

    fn content(&self, rank: u32) -> Vec<u8> {
        bytes(self.len, 77 + u64::from(rank))
    }

    fn fill(&self, rank: &Rank) {
        self.fill_with(rank, &self.content(rank.comm().rank()));
    }

    fn fill_with(&self, rank: &Rank, content: &[u8]) {
        rank.write(self.send.region(), content);
        rank.write(self.recv.region(), &vec![POISON; self.len]);
        rank.comm().barrier().unwrap();
    }
}

/// Starts a plan, and waits until all ranks have done it.
fn run(rank: &Rank, on: &mut StreamComm<'_>, plan: &StreamPlan) {
    // SAFETY: the buffers outlive `on`, and nothing else uses them until the barrier.
    unsafe { on.start(plan) }.unwrap();
    on.wait().unwrap();
    rank.comm().barrier().unwrap();
}

fn with_way(rank: &Rank, way: Option<StreamWay>) -> StreamComm<'_> {
    let options = StreamOptions { way, ..rank.options };
    rank.comm().on_with(&rank.stream, options).unwrap()
}

#[test]
fn arrays_get_from_sharding_to_sharding() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::arrays_get_from_sharding_to_sharding", None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size(), rank.comm().rank());
    let (shape, double) = ([60, 97], f64::datatype());
    let line = |count, placement| Sharding::new(&[count], 0..count, &[placement]).unwrap();
    let all = [
        line(n, Placement::Replicate),
        line(n, Placement::Block { axis: 0 }),
        line(n, Placement::Block { axis: 1 }).in_order(&[1, 0]),
        line(n, Placement::Cyclic { axis: 1, block: 3 }),
        line(1, Placement::Replicate),
    ];
    for (source, target) in all.iter().flat_map(|it| all.iter().map(move |other| (it, other))) {
        let reshard = Reshard::new(&shape, &double, source, target).unwrap();
        let buffers = Buffers::new(&rank, 60 * 97 * 8);
        let mut on = with_way(&rank, None);
        let [send, recv] = buffers.register(&mut on);
        buffers.fill(&rank);
        // SAFETY: the buffers outlive `on`, and nothing else uses them; all ranks have this reshard.
        let plan = unsafe { on.plan_reshard(send, recv, &reshard) }.unwrap();
        run(&rank, &mut on, &plan);
        let mut due = vec![POISON; buffers.len];
        for it in reshard.for_rank(me).iter().filter(|it| it.to() == me) {
            let sent = pack(&buffers.content(it.from()), 0, &it.send_layout().unwrap(), 1).unwrap();
            unpack(&sent, &mut due, 0, &it.recv_layout().unwrap(), 1).unwrap();
        }
        assert!(rank.read(buffers.recv.region(), buffers.len) == due, "{reshard:?} at rank {me}");
    }
    // A rank that is not there is an error at all ranks.
    let far = line(n + 1, Placement::Block { axis: 0 });
    let reshard = Reshard::new(&shape, &double, &far, &all[0]).unwrap();
    let buffers = Buffers::new(&rank, 60 * 97 * 8);
    let mut on = with_way(&rank, None);
    let [send, recv] = buffers.register(&mut on);
    // SAFETY: as above.
    let error = unsafe { on.plan_reshard(send, recv, &reshard) }.unwrap_err();
    let named = gapless::Error::from(StreamError::ReshardRank { rank: n, ranks: n });
    assert_eq!(error, named);
}

#[test]
fn every_layout_gets_into_every_other() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::every_layout_gets_into_every_other", None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size() as usize, rank.comm().rank());
    for (round, way) in WAYS.into_iter().enumerate() {
        for (size, elements) in [(1, 144), (8, 14_400), (16, 7200), (3, 1440)] {
            // Three elements from one to the next at most.
            let apart = size * elements * 3 + 64;
            let buffers = Buffers::new(&rank, (apart as usize) * n + 64);
            let mut on = with_way(&rank, way);
            let [send, recv] = buffers.register(&mut on);
            let all = layouts(size, elements);
            // Made once: unoptimised, that takes longer than all the rest.
            let contents: Vec<Vec<u8>> = (0..n as u32).map(|it| buffers.content(it)).collect();
            for (from, source) in all.iter().enumerate() {
                for (to, target) in all.iter().enumerate() {
                    if (from + to + round) % 2 == 1 && size != 8 {
                        continue;
                    }
                    let shift = [0, size, 5][(from + to) % 3];
                    let what = format!("{way:?}, {elements} of {size}, {from} to {to}, {shift}");
                    let sends = blocks(source, n, 0, apart);
                    let recvs = blocks(target, n, shift, apart);
                    // SAFETY: blocks do not overlap.
                    let plan = unsafe { on.plan_alltoallw(send, &sends, recv, &recvs) }.unwrap();
                    buffers.fill_with(&rank, &contents[me as usize]);
                    run(&rank, &mut on, &plan);
                    let mut right = vec![POISON; buffers.len];
                    for (peer, content) in (0..).zip(&contents) {
                        let at = u64::from(me) * apart;
                        let sent = pack(content, at as usize, source, 1).unwrap();
                        let at = (shift + peer * apart) as usize;
                        unpack(&sent, &mut right, at, target, 1).unwrap();
                    }
                    let found = rank.read(buffers.recv.region(), buffers.len);
                    assert!(found == right, "{what}: wrong");
                }
            }
        }
    }
    rank.world.finalize().unwrap();
}

/// What goes one way only, through staging memory, leaves ranks without anything to unpack.
#[test]
fn one_sends_and_another_receives() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::one_sends_and_another_receives", None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size(), rank.comm().rank());
    let (size, elements) = (8, 57_600);
    let apart = size * elements * 3 + 64;
    let buffers = Buffers::new(&rank, apart as usize * n as usize + 64);
    for way in [Some(StreamWay::Staged), None, Some(StreamWay::Staged)] {
        let mut on = with_way(&rank, way);
        let [send, recv] = buffers.register(&mut on);
        let all = layouts(size, elements);
        for round in 0..4u32 {
            let (source, target) = (&all[2 + round as usize % 2], &all[1 + round as usize]);
            let (from, to) = (round % n, (round + 1) % n);
            let [mut sends, mut recvs] =
                [source, target].map(|of| blocks(of, n as usize, 0, apart));
            for peer in 0..n {
                sends[peer as usize].count = u64::from((me, peer) == (from, to));
                recvs[peer as usize].count = u64::from((me, peer) == (to, from));
            }
            // SAFETY: blocks do not overlap.
            let plan = unsafe { on.plan_alltoallw(send, &sends, recv, &recvs) }.unwrap();
            buffers.fill(&rank);
            run(&rank, &mut on, &plan);
            let mut right = vec![POISON; buffers.len];
            if me == to {
                let at = u64::from(to) * apart;
                let sent = pack(&buffers.content(from), at as usize, source, 1).unwrap();
                unpack(&sent, &mut right, (u64::from(from) * apart) as usize, target, 1).unwrap();
            }
            assert!(rank.read(buffers.recv.region(), buffers.len) == right, "{way:?}, {round}");
        }
    }
    rank.world.finalize().unwrap();
}

#[test]
fn what_one_has_gets_to_all_in_layouts_of_their_own() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::what_one_has_gets_to_all_in_layouts_of_their_own", None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size() as usize, rank.comm().rank());
    let apart = 8 * 14_400 * 3 + 64;
    let buffers = Buffers::new(&rank, apart * n);
    let all = layouts(8, 14_400);
    let mut on = rank.on();
    let [send, recv] = buffers.register(&mut on);
    let layout = |from: u32, to: u32| &all[(from + 2 * to) as usize % all.len()];
    let own = StreamBlock { displacement: 0, layout: layout(me, 7), count: 1 };
    let recvs: Vec<StreamBlock<'_>> = (0..n as u32)
        .map(|from| StreamBlock {
            displacement: u64::from(from) * apart as u64,
            layout: layout(from, me),
            count: 1,
        })
        .collect();
    // SAFETY: blocks do not overlap.
    let plan = unsafe { on.plan_allgather(send, own, recv, &recvs) }.unwrap();
    buffers.fill(&rank);
    run(&rank, &mut on, &plan);
    let mut right = vec![POISON; buffers.len];
    for from in 0..n as u32 {
        let sent = pack(&buffers.content(from), 0, layout(from, 7), 1).unwrap();
        unpack(&sent, &mut right, from as usize * apart, layout(from, me), 1).unwrap();
    }
    assert!(rank.read(buffers.recv.region(), buffers.len) == right);
    drop(on);
    rank.world.finalize().unwrap();
}

/// A box of an array of doubles.
fn part(sizes: [u64; 3], starts: [u64; 3], subsizes: [u64; 3]) -> Layout {
    let double = f64::datatype();
    let all = Subarray::of(&double).sizes(sizes);
    all.starts(starts).subsizes(subsizes).build().unwrap().commit().unwrap()
}

#[test]
fn neighbours_on_a_ring_get_each_others_rims_again_and_again_from_a_graph() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "layouts::neighbours_on_a_ring_get_each_others_rims_again_and_again_from_a_graph",
            None,
        );
    };
    let rank = Rank::new(&mut member);
    let ranks = rank.comm().size();
    // Along the second side the neighbours on both sides are this rank itself; the third has ends.
    let grid =
        rank.comm().cart_create(&[ranks, 1, 1], &[true, true, false], false).unwrap().unwrap();
    const SIDES: [u64; 3] = [34, 66, 130];
    const BYTES: usize = (SIDES[0] * SIDES[1] * SIDES[2] * 8) as usize;
    let memory = rank.memory(BYTES);
    for way in WAYS {
        let mut on = grid.on_with(&rank.stream, StreamOptions { way, ..rank.options }).unwrap();
        // SAFETY: it outlives `on`.
        let cells = unsafe { on.register(memory.region()) }.unwrap();
        let mut faces: [Vec<Layout>; 2] = [Vec::new(), Vec::new()];
        for side in 0..3 {
            let inner = SIDES.map(|len| len - 2);
            for (own, ghost) in [(1, 0), (inner[side], inner[side] + 1)] {
                for (faces, at) in faces.iter_mut().zip([own, ghost]) {
                    let (mut starts, mut lens) = ([1; 3], inner);
                    (starts[side], lens[side]) = (at, 1);
                    faces.push(part(SIDES, starts, lens));
                }
            }
        }
        // SAFETY: no ghost cell is another's, or sent.
        let plan = unsafe {
            on.plan_neighbor_alltoallw(cells, &in_place(&faces[0]), cells, &in_place(&faces[1]))
        }
        .unwrap();
        let graph = rank.stream.capture(|_| {
            // SAFETY: the memory outlives the graph, and nothing else uses it while it runs.
            unsafe { on.start(&plan) }
        });
        let graph = graph.unwrap();
        for round in 0..4u64 {
            let content = |rank: u32| bytes(BYTES, 3 + round * 100 + u64::from(rank));
            let me = grid.rank();
            let contents: Vec<Vec<u8>> = (0..ranks).map(content).collect();
            rank.write(memory.region(), &contents[me as usize]);
            grid.barrier().unwrap();
            // SAFETY: as above.
            unsafe { graph.launch(&rank.stream) }.unwrap();
            if round == 2 {
                // Once more: what is sent has not changed.
                // SAFETY: as above.
                unsafe { on.start(&plan) }.unwrap();
            }
            on.wait().unwrap();
            grid.barrier().unwrap();
            let mut right = doubles(&contents[me as usize]);
            let mut get = |from: u32, send: usize, recv: usize| {
                let content = doubles(&contents[from as usize]);
                let sent = pack(&content, 0, &faces[0][send], 1).unwrap();
                unpack(&sent, &mut right, 0, &faces[1][recv], 1).unwrap();
            };
            let (before, after) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
            get(before, 1, 0);
            get(after, 0, 1);
            get(me, 3, 2);
            get(me, 2, 3);
            let found = doubles(&rank.read(memory.region(), BYTES));
            let bits = |cells: &[f64]| cells.iter().map(|it| it.to_bits()).collect::<Vec<u64>>();
            assert!(bits(&found) == bits(&right), "{way:?}, round {round}");
        }
        drop(graph);
    }
    rank.world.finalize().unwrap();
}

fn in_place(layouts: &[Layout]) -> Vec<StreamBlock<'_>> {
    layouts.iter().map(|layout| StreamBlock { displacement: 0, layout, count: 1 }).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|cell| f64::from_ne_bytes(cell.try_into().unwrap())).collect()
}

#[test]
fn plans_that_do_not_fit_together_are_refused_by_all() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::plans_that_do_not_fit_together_are_refused_by_all", None);
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size() as usize, rank.comm().rank());
    let buffers = Buffers::new(&rank, 1 << 16);
    let mut on = rank.on();
    let [send, recv] = buffers.register(&mut on);
    let int = i32::layout();
    let of = |count: u64, at: u64| -> Vec<StreamBlock<'static>> {
        (0..n as u64)
            .map(|rank| StreamBlock { displacement: at + rank * 64, layout: int, count })
            .collect()
    };
    let mut plan = |sends: &[StreamBlock<'_>], recvs: &[StreamBlock<'_>]| {
        // SAFETY: blocks do not overlap.
        let made = unsafe { on.plan_alltoallw(send, sends, recv, recvs) };
        made.map_err(|error| match error {
            gapless::Error::Stream(error) => error,
            other => panic!("{other}"),
        })
    };
    // Rank 1 wants more than it gets.
    let wanted = if me == 1 { 5 } else { 4 };
    let error = plan(&of(4, 0), &of(wanted, 0)).unwrap_err();
    let named = matches!(error, StreamError::LengthsDiffer { to: 1, sent: 16, received: 20, .. });
    assert!(named || matches!(error, StreamError::Refused { .. }), "{error}");
    assert!(me > 1 || named, "{error}");
    // A rank's block is outside; another has too few.
    let at = if me == 0 { 1 << 16 } else { 0 };
    let error = plan(&of(4, at), &of(4, 0)).unwrap_err();
    match me {
        0 => assert_eq!(error, StreamError::Outside { argument: "send", rank: 0 }),
        _ => assert_eq!(error, StreamError::Refused { rank: 0 }),
    }
    let error = plan(&of(4, 0)[..n - usize::from(me == 1)], &of(4, 0)).unwrap_err();
    match me {
        1 => {
            let (given, wanted) = (n - 1, n);
            assert_eq!(error, StreamError::Blocks { argument: "sends", given, wanted });
        }
        _ => assert_eq!(error, StreamError::Refused { rank: 1 }),
    }
    // One captures meanwhile: nothing is captured of it.
    let mut refused = None;
    let mut meanwhile = || refused = Some(plan(&of(4, 0), &of(4, 0)).unwrap_err());
    if me == 1 {
        let graph = rank.stream.capture(|_| {
            meanwhile();
            Ok::<(), StreamError>(())
        });
        drop(graph.unwrap());
    } else {
        meanwhile();
    }
    let others = StreamError::Refused { rank: 1 };
    assert_eq!(refused, Some(if me == 1 { StreamError::Captured } else { others }));
    // No topology; memory that is not registered.
    // SAFETY: as above.
    let refused = unsafe { on.plan_neighbor_alltoallw(send, &[], recv, &[]) }.unwrap_err();
    assert_eq!(refused, StreamError::NoTopology.into());
    // SAFETY: as above.
    let refused = unsafe { on.plan_alltoallw(buffers.send.region(), &of(1, 0), recv, &of(1, 0)) }
        .unwrap_err();
    assert!(matches!(refused, gapless::Error::Stream(StreamError::NotRegistered { .. })));
    // One that fits works afterwards, and one of another communicator is refused.
    // SAFETY: as above.
    let plan = unsafe { on.plan_alltoallw(send, &of(4, 0), recv, &of(4, 0)) }.unwrap();
    buffers.fill(&rank);
    run(&rank, &mut on, &plan);
    let mut other =
        rank.comm().on_with(&rank.stream, StreamOptions { blocks: 4, ..rank.options }).unwrap();
    // SAFETY: it is refused.
    assert_eq!(unsafe { other.start(&plan) }, Err(StreamError::Foreign));
    drop(other);
    drop(on);
    assert!(matches!(rank.space, Space::Cuda { .. }));
    rank.world.finalize().unwrap();
}

#[test]
fn another_plan_is_found_out_and_a_death_ends_the_wait() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("layouts::another_plan_is_found_out_and_a_death_ends_the_wait", Some(1));
    };
    let rank = Rank::new(&mut member);
    let (n, me) = (rank.comm().size() as usize, rank.comm().rank());
    let apart = 3 << 20;
    let buffers = Buffers::new(&rank, apart * n);
    let layout = &layouts(8, 14_400)[2];
    let of = || blocks(layout, n, 0, apart as u64);
    {
        let mut on = rank.on();
        let [send, recv] = buffers.register(&mut on);
        // SAFETY: blocks do not overlap.
        let plans =
            [(); 2].map(|()| unsafe { on.plan_alltoallw(send, &of(), recv, &of()) }.unwrap());
        // SAFETY: nothing else uses the buffers.
        unsafe { on.start(&plans[usize::from(me == 0)]) }.unwrap();
        let error = on.wait().unwrap_err();
        assert!(
            matches!(error, StreamError::Differs { .. } | StreamError::Failed { .. }),
            "{error}"
        );
        rank.comm().barrier().unwrap();
    }
    let mut on = with_way(&rank, Some(StreamWay::Staged));
    let [send, recv] = buffers.register(&mut on);
    // SAFETY: as above.
    let plan = unsafe { on.plan_alltoallw(send, &of(), recv, &of()) }.unwrap();
    run(&rank, &mut on, &plan);
    if me == 1 {
        say("kill");
        std::thread::sleep(WATCHDOG);
    }
    let begun = Instant::now();
    // SAFETY: as above.
    let error = unsafe { on.start(&plan) }.and_then(|()| on.wait()).unwrap_err();
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    assert!(begun.elapsed() < WATCHDOG / 2, "patience is longer than that");
    drop(on);
}
