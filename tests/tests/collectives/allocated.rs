//! Long collectives on memory that peers can map, and on other memory, mixed at each rank: they are read where they lie.

use gapless::btl::Btl;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::{
    Blocks, BlocksMut, Collective, Communicator, Config, Datatype, InPlace, Layout, Primitive,
    ReduceOp, SharedBuf, View, ViewMut, World,
};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_tests::job;

/// Numbers of a vector, and of a rank's block.
const ALL: usize = 60_000;

/// Bytes, in memory that peers can map or not.
enum Memory {
    Shared(SharedBuf),
    Heap(Vec<u8>),
}

impl Memory {
    fn new(world: &World, shared: bool, numbers: &[i32]) -> Memory {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        if !shared {
            return Memory::Heap(bytes);
        }
        let mut memory = world.alloc(bytes.len()).unwrap();
        memory.copy_from_slice(&bytes);
        Memory::Shared(memory)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Shared(memory) => memory,
            Memory::Heap(memory) => memory,
        }
    }

    fn view(&self) -> View<'_> {
        View::typed(self.bytes(), 0, &layout(), self.bytes().len() as u64 / 4).unwrap()
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        let bytes: &mut [u8] = match self {
            Memory::Shared(memory) => memory,
            Memory::Heap(memory) => memory,
        };
        let count = bytes.len() as u64 / 4;
        ViewMut::typed(bytes, 0, &layout(), count).unwrap()
    }

    fn numbers(&self) -> Vec<i32> {
        self.bytes().as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    }
}

fn layout() -> Layout {
    Datatype::from(Primitive::Int32).commit().unwrap()
}

/// What a rank contributes.
fn given(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| i32::try_from(rank * 1_000_003 + at * 7).unwrap()).collect()
}

fn sum(ranks: usize, range: std::ops::Range<usize>) -> Vec<i32> {
    let at = |index| (0..ranks).map(|rank| given(rank, index + 1)[index]).sum::<i32>();
    // It is linear.
    let (first, step) = (at(range.start), i32::try_from(7 * ranks).unwrap());
    (0..range.len()).map(|index| first + step * i32::try_from(index).unwrap()).collect()
}

fn part(numbers: &[i32], ranks: usize, which: usize) -> &[i32] {
    let each = numbers.len() / ranks;
    &numbers[which * each..(which + 1) * each]
}

/// How `all` numbers are cut among ranks: the second has none.
fn counts(ranks: usize, all: usize) -> Vec<u64> {
    let mut counts = vec![(all / ranks) as u64; ranks];
    counts[0] += std::mem::take(&mut counts[1]);
    counts
}

/// One round: which of a rank's buffers can be mapped depends on the rank and the round.
fn round(world: &World, round: usize) {
    let comm = world.comm();
    let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
    let all = ALL / ranks * ranks;
    let (send_lies, recv_lies) = ((round + me) & 1 == 0, (round / 2 + me / 2) & 1 == 0);
    let send = || Memory::new(world, send_lies, &given(me, all));
    let room = |count| Memory::new(world, recv_lies, &vec![-1; count]);
    let root = round % ranks;
    let each = all / ranks;
    let do_it = |collective: Collective<'_>| comm.perform(collective).unwrap();

    let (out, mut into) = (send(), room(all));
    do_it(Collective::allreduce(out.view(), into.view_mut(), ReduceOp::Sum));
    assert_eq!(into.numbers(), sum(ranks, 0..all));
    let mut both = Memory::new(world, recv_lies, &given(me, all));
    do_it(Collective::allreduce(InPlace, both.view_mut(), ReduceOp::Sum));
    assert_eq!(both.numbers(), sum(ranks, 0..all));
    drop(both);

    let root32 = u32::try_from(root).unwrap();
    let mut into = room(all);
    do_it(Collective::reduce(out.view(), into.view_mut(), ReduceOp::Sum, root32));
    let expected = if me == root { sum(ranks, 0..all) } else { vec![-1; all] };
    assert_eq!(into.numbers(), expected);

    let mut into = room(each);
    do_it(Collective::reduce_scatter_block(out.view(), into.view_mut(), ReduceOp::Sum));
    assert_eq!(into.numbers(), sum(ranks, me * each..(me + 1) * each));
    let mut both = Memory::new(world, recv_lies, &given(me, all));
    do_it(Collective::reduce_scatter_block(InPlace, both.view_mut(), ReduceOp::Sum));
    assert_eq!(both.numbers()[..each], sum(ranks, me * each..(me + 1) * each));

    let counts = counts(ranks, all);
    let own = usize::try_from(counts[me]).unwrap();
    let end = usize::try_from(counts[..=me].iter().sum::<u64>()).unwrap();
    let mut into = room(own);
    let call = Collective::reduce_scatter(out.view(), into.view_mut(), &counts, ReduceOp::Sum);
    do_it(call);
    assert_eq!(into.numbers(), sum(ranks, end - own..end));
    let mut all_blocks = room(all);
    let blocks = BlocksMut::packed(all_blocks.view_mut(), &counts).unwrap();
    do_it(Collective::allgatherv(into.view(), blocks));
    assert_eq!(all_blocks.numbers(), sum(ranks, 0..all));

    listed(comm, &out, (room(own * ranks), room(all), room(own)), (&counts, root32));

    let mut word = Memory::new(world, send_lies, &given(me, all));
    do_it(Collective::bcast(word.view_mut(), root32));
    assert_eq!(word.numbers(), given(root, all));

    moved(comm, (&out, room(all), room(each)), (all, root), world);
    // What was received into can be written to at once.
    drop(out);
}

/// Blocks of any lengths: `came` is for one of each rank, `blocks` for all, `one` for one.
fn listed(
    comm: &Communicator,
    out: &Memory,
    (mut came, mut blocks, mut one): (Memory, Memory, Memory),
    (counts, root): (&[u64], u32),
) {
    let (me, ranks, own) = (comm.rank() as usize, counts.len(), one.numbers().len());
    let all = usize::try_from(counts.iter().sum::<u64>()).unwrap();
    let end = usize::try_from(counts[..=me].iter().sum::<u64>()).unwrap();
    let mine = end - own..end;
    let do_it = |collective: Collective<'_>| comm.perform(collective).unwrap();
    let view = || Blocks::packed(out.view(), counts).unwrap();
    let from = vec![counts[me]; ranks];
    let into = BlocksMut::packed(came.view_mut(), &from).unwrap();
    do_it(Collective::alltoallv(view(), into));
    let expected = |rank: usize| given(rank, all)[mine.clone()].to_vec();
    assert_eq!(came.numbers(), (0..ranks).flat_map(expected).collect::<Vec<_>>());
    do_it(Collective::scatterv(view(), one.view_mut(), root));
    assert_eq!(one.numbers(), given(root as usize, all)[mine.clone()]);
    let into = BlocksMut::packed(blocks.view_mut(), counts).unwrap();
    do_it(Collective::gatherv(one.view(), into, root));
    let expected = if comm.rank() == root { given(root as usize, all) } else { vec![-1; all] };
    assert_eq!(blocks.numbers(), expected);
}

fn moved(
    comm: &Communicator,
    (out, mut into, mut one): (&Memory, Memory, Memory),
    (all, root): (usize, usize),
    world: &World,
) {
    let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
    let root32 = u32::try_from(root).unwrap();
    let do_it = |collective: Collective<'_>| comm.perform(collective).unwrap();
    let mut transposed = Vec::new();
    for rank in 0..ranks {
        transposed.extend_from_slice(part(&given(rank, all), ranks, me));
    }
    do_it(Collective::alltoall(out.view(), into.view_mut()));
    assert_eq!(into.numbers(), transposed);
    let mut both = Memory::new(world, true, &given(me, all));
    do_it(Collective::alltoall(InPlace, both.view_mut()));
    assert_eq!(both.numbers(), transposed);

    do_it(Collective::scatter(out.view(), one.view_mut(), root32));
    assert_eq!(one.numbers(), part(&given(root, all), ranks, me));
    let blocks: Vec<i32> =
        (0..ranks).flat_map(|rank| part(&given(root, all), ranks, rank).to_vec()).collect();
    do_it(Collective::allgather(one.view(), into.view_mut()));
    assert_eq!(into.numbers(), blocks);
    let mut own = given(9, all);
    let each = all / ranks;
    own[me * each..(me + 1) * each].copy_from_slice(&one.numbers());
    let mut both = Memory::new(world, true, &own);
    do_it(Collective::allgather(InPlace, both.view_mut()));
    assert_eq!(both.numbers(), blocks);
    do_it(Collective::gather(one.view(), into.view_mut(), root32));
    assert_eq!(into.numbers(), blocks);
}

#[test]
fn memory_that_peers_can_map_is_read_where_it_lies() {
    for size in 2..=4 {
        let hub = Hub::new();
        let name = format!("allocated {} {size}", std::process::id());
        let transports = |rank| -> Vec<Box<dyn Btl>> {
            let shared = || Sm::new(SmConfig::new(name.clone(), format!("rank {rank}"))).unwrap();
            match size % 2 {
                0 => vec![Box::new(shared())],
                _ => vec![Box::new(Loopback::new(&hub))],
            }
        };
        job(size, &Config::default(), transports, |world| {
            (0..6).for_each(|number| round(world, number));
        });
    }
}
