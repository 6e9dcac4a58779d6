#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the numbers here are small"
)]

use super::*;
use gapless_dtype::{Convertor, Datatype, Primitive, Run};
use gapless_kernels::lookup::side_at;
use gapless_kernels::peers::layouts::LayoutTable;

/// Where things lie in a rank's memory.
const SEND: u64 = 0;
const RECV: u64 = 16 << 10;
const STAGE: u64 = 32 << 10;
const PLANS: u64 = 64 << 10;
const ALL: usize = 96 << 10;

/// Where a rank's memory begins.
fn base(rank: u32) -> u64 {
    u64::from(rank + 1) << 32
}

/// Layouts of as many elements: a contiguous span, grids in two orders, runs, lists, blocks of any length.
fn layouts(element: Primitive) -> Vec<Datatype> {
    let of = Datatype::from(element);
    let size = element.size_bytes().cast_signed();
    let column = Datatype::vector(9, 1, 5, &of).unwrap();
    let columns = Datatype::resized(0, size, &column).unwrap();
    let runs: (Vec<u64>, Vec<i64>) = (1..=8u64).map(|run| (run, run.cast_signed() * 9)).unzip();
    let lens = [1, 3, 2, 7, 5, 4, 6, 8];
    let at = [90, 3, 20, 40, 10, 60, 70, 25];
    let list: Vec<i64> = (0..18).map(|n| n * 7 % 19 * 3).collect();
    vec![
        Datatype::contiguous(36, &of).unwrap(),
        Datatype::vector(6, 6, 8, &of).unwrap(),
        Datatype::vector(36, 1, 2, &of).unwrap(),
        Datatype::contiguous(4, &columns).unwrap(),
        Datatype::indexed(&runs.0, &runs.1, &of).unwrap(),
        Datatype::indexed(&lens, &at, &of).unwrap(),
        Datatype::indexed_block(2, &list, &of).unwrap(),
    ]
}

/// Displacements of the stream's bytes, by the convertor.
fn bytes_of(datatype: &Datatype, count: u64) -> Vec<i64> {
    let mut convertor = Convertor::new(&datatype.commit().unwrap(), count).unwrap();
    let (mut runs, mut places) = ([Run::default(); 7], Vec::new());
    loop {
        let (used, _) = convertor.iov(&mut runs, u64::MAX);
        if used == 0 {
            return places;
        }
        for run in &runs[..used] {
            places.extend(run.displacement..run.displacement + run.len.cast_signed());
        }
    }
}

fn end(lane: u32, at: u64, count: u64, datatype: &Datatype) -> BlockEnd {
    BlockEnd::of(lane, at, count, &datatype.commit().unwrap().flatten()).unwrap()
}

/// Source, destination, lane; and at both ends displacement, datatype and count.
type Block<'t> = (u32, u32, u32, [(u64, &'t Datatype, u64); 2]);

struct Machine(Vec<Vec<u8>>);

impl Machine {
    fn slice(&mut self, address: u64, len: usize) -> &mut [u8] {
        let rank = usize::try_from((address >> 32) - 1).unwrap();
        let at = usize::try_from(address & 0xffff_ffff).unwrap();
        &mut self.0[rank][at..at + len]
    }

    fn byte(&mut self, from: i64, to: i64) {
        let value = self.slice(from.cast_unsigned(), 1)[0];
        self.slice(to.cast_unsigned(), 1)[0] = value;
    }

    /// A step of a rank's kernel.
    fn carry_out(&mut self, table: &LayoutTable, step: LayoutStep) {
        for block in 0..table.blocks() {
            for (job, piece) in table.jobs(step, block) {
                let (t, w) = (&piece.transfer, 1u32 << piece.width);
                let mut places = Vec::new();
                {
                    let machine = std::cell::RefCell::new(&mut *self);
                    let plan =
                        |at: u64, len: u32| match *machine.borrow_mut().slice(at, len as usize) {
                            [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
                            ref all => i64::from_ne_bytes(all.try_into().unwrap()),
                        };
                    let mut word = |word: u32, bytes: u32| {
                        let from = t.span.typed + side_at(&t.from, &plan, t.from.first + word, w);
                        let to = t.span.packed + side_at(&t.to, &plan, t.to.first + word, w);
                        places.extend((0..i64::from(bytes)).map(|byte| (from + byte, to + byte)));
                    };
                    (job.first..job.first + job.words).for_each(|number| word(number, w));
                    if job.edges != 0 && t.span.edges >> 8 & 255 != 0 {
                        word(t.span.words, t.span.edges >> 8 & 255);
                    }
                }
                places.into_iter().for_each(|(from, to)| self.byte(from, to));
            }
        }
    }
}

/// Has ranks exchange blocks, given as source, destination, lane, and at both ends displacement and datatype.
fn exchange(
    ranks: u32,
    blocks: &[Block<'_>],
    forced: Option<StreamWay>,
    kernel_blocks: u32,
) -> Vec<StreamRoute> {
    let memory = |rank: u32| {
        (0..ALL as u64).map(|at| (at * 31 + u64::from(rank) * 77 + at / 255) as u8).collect()
    };
    let mut machine = Machine((0..ranks).map(memory).collect());
    let mut right = machine.0.clone();
    let mut edges = Vec::new();
    for from in 0..ranks {
        for to in 0..ranks {
            let of = |side: usize| -> Vec<BlockEnd> {
                let ours = blocks.iter().filter(|block| (block.0, block.1) == (from, to));
                ours.map(|(_, _, lane, ends)| {
                    let (at, datatype, count) = ends[side];
                    end(*lane, at, count, datatype)
                })
                .collect()
            };
            edges.extend(pair((from, to), &of(0), &of(1), forced).unwrap());
        }
    }
    for (from, to, _, [(at, source, count), (there, target, many)]) in blocks {
        let sent = bytes_of(source, *count);
        let received = bytes_of(target, *many);
        assert_eq!(sent.len(), received.len());
        for (sent, received) in sent.iter().zip(&received) {
            let byte =
                right[*from as usize][(SEND.cast_signed() + at.cast_signed() + sent) as usize];
            right[*to as usize][(RECV.cast_signed() + there.cast_signed() + received) as usize] =
                byte;
        }
    }
    let before = |from: u32, to: u32| (0..from).map(|it| staged_bytes(&edges, it, to)).sum::<u64>();
    let everywhere = |place: &dyn Fn(u32) -> u64| {
        let mut all = [0; RANKS_MAX];
        (0..ranks).for_each(|rank| all[rank as usize] = place(rank));
        all
    };
    let mut tables = Vec::new();
    for rank in 0..ranks {
        let ours: Vec<Edge> =
            edges.iter().filter(|edge| edge.from == rank || edge.to == rank).cloned().collect();
        let mut plans = BTreeMap::new();
        let mut at = base(rank) + PLANS;
        for (flat, described) in planned(&ours, rank) {
            let plan = described.plan().unwrap();
            machine.slice(at, plan.len()).copy_from_slice(&plan);
            plans.insert(flat, at);
            at += (plan.len() as u64).next_multiple_of(16);
        }
        let addresses = Addresses {
            send: everywhere(&|peer| base(peer) + SEND),
            recv: everywhere(&|peer| base(peer) + RECV),
            out: everywhere(&|peer| base(peer) + STAGE + before(rank, peer)),
            back: everywhere(&|peer| base(rank) + STAGE + before(peer, rank)),
            plans,
        };
        let groups = groups(&ours, rank, ranks, &addresses);
        tables.push(LayoutTable::new(&groups, (kernel_blocks, 2), ranks, false).unwrap());
    }
    for step in [LayoutStep::First, LayoutStep::Second] {
        tables.iter().for_each(|table| machine.carry_out(table, step));
    }
    let until = usize::try_from(STAGE).unwrap();
    for (rank, (found, right)) in machine.0.iter().zip(&right).enumerate() {
        assert!(found[..until] == right[..until], "rank {rank}, {forced:?}: {blocks:?}");
    }
    edges.into_iter().map(|edge| edge.route).collect()
}

#[test]
fn every_layout_gets_into_every_other_by_every_way() {
    let ways = [None, Some(StreamWay::Push), Some(StreamWay::Pull), Some(StreamWay::Staged)];
    let mut taken = std::collections::HashSet::new();
    for element in [Primitive::Byte, Primitive::Short, Primitive::Double] {
        let all = layouts(element);
        let size = element.size_bytes();
        for source in &all {
            for target in &all {
                for (count, shift, forced) in
                    ways.iter().flat_map(|way| [(1, 0, *way), (3, 1, *way)])
                {
                    // There, back and within, two blocks between the same two.
                    let ends = |n: u64| {
                        let at = (n * 300 + shift) * size;
                        [(at, source, count), (at, target, count)]
                    };
                    let blocks = [
                        (0, 1, 0, ends(0)),
                        (1, 0, 0, ends(1)),
                        (0, 1, 3, ends(2)),
                        (1, 1, 0, ends(3)),
                    ];
                    let routes = exchange(2, &blocks, forced, 3);
                    taken.extend(routes.iter().map(|route| (route.way as u32, route.order as u32)));
                }
            }
        }
    }
    assert!(taken.len() >= 5, "{taken:?}");
    let has = |order| taken.iter().any(|(_, taken)| *taken == order as u32);
    assert!(has(MoveOrder::Addresses) && has(MoveOrder::Tiles), "{taken:?}");
}

#[test]
fn blocks_of_many_ranks_do_not_meet() {
    let all = layouts(Primitive::Int);
    for ranks in [1, 3, 5] {
        for forced in [None, Some(StreamWay::Staged)] {
            let mut blocks = Vec::new();
            for from in 0..ranks {
                for to in 0..ranks {
                    let pick = |n: u32| &all[(from * 3 + to * 5 + n) as usize % all.len()];
                    let ends =
                        [(u64::from(to) * 1024, pick(0), 2), (u64::from(from) * 1024, pick(1), 2)];
                    blocks.push((from, to, 0, ends));
                }
            }
            exchange(ranks, &blocks, forced, 64);
        }
    }
}

#[test]
fn what_is_longer_at_one_end_lies_there_across_the_link() {
    let double = Datatype::from(Primitive::Double);
    let (long, short) = (
        Datatype::contiguous(1 << 16, &double).unwrap(),
        Datatype::vector(1 << 16, 1, 512, &double).unwrap(),
    );
    let route = |source: &Datatype, target: &Datatype| {
        super::route(&end(0, 0, 1, source), &end(0, 0, 1, target), false, None)
    };
    assert_eq!(route(&short, &long).way, StreamWay::Push);
    assert_eq!(route(&long, &short).way, StreamWay::Pull);
    assert_eq!(route(&short, &short).way, StreamWay::Staged);
    assert_ne!(route(&long, &long).way, StreamWay::Staged);
    // A cube that is turned: in tiles both ends have runs.
    let (n, m, pair) = (256, 64, Datatype::contiguous(2, &Primitive::Float.into()).unwrap());
    let stride = |count: i64| count * 8;
    let row = Datatype::contiguous(m, &pair).unwrap();
    let plane = Datatype::hvector(n, 1, stride(256), &row).unwrap();
    let boxed = Datatype::hvector(m, 1, stride(256 * 256), &plane).unwrap();
    let column = Datatype::hvector(m, 1, stride(256 * 256), &pair).unwrap();
    let plane = Datatype::hvector(n, 1, stride(256), &column).unwrap();
    let turned = Datatype::hvector(m, 1, stride(1), &plane).unwrap();
    let tiles = StreamRoute { way: StreamWay::Push, order: MoveOrder::Tiles };
    assert_eq!(route(&boxed, &turned), tiles);
    // A little is not worth a meeting.
    let few = Datatype::vector(8, 1, 512, &double).unwrap();
    assert_ne!(route(&few, &few).way, StreamWay::Staged);
}

#[test]
fn blocks_that_do_not_fit_together_are_refused() {
    let int = Datatype::from(Primitive::Int);
    let of = |lane, count| end(lane, 0, count, &int);
    let pair = |sends: &[BlockEnd], recvs: &[BlockEnd]| {
        pair((0, 1), sends, recvs, None).map(|all| all.len())
    };
    assert_eq!(pair(&[of(0, 3)], &[of(0, 3)]), Ok(1));
    assert_eq!(pair(&[of(0, 0)], &[]), Ok(0));
    assert_eq!(pair(&[of(0, 3)], &[of(0, 4)]), Err(Unequal { sent: 12, received: 16 }));
    assert_eq!(pair(&[of(0, 3)], &[of(1, 3)]), Err(Unequal { sent: 12, received: 0 }));
    assert_eq!(pair(&[], &[of(1, 3)]), Err(Unequal { sent: 0, received: 12 }));
}
