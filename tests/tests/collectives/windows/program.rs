//! Random programs: every rank knows what all do, changes a model likewise, and compares.
//!
//! In each round each rank has a stretch of every window for itself, another one each time. There it does what it likes,
//! with any layouts at both ends; after the round all windows are compared byte for byte.

use super::model::{Shape, combined};
use super::{PATHS, Random, ranks, window};
use gapless::{
    Communicator, Lock, Owned, Place, Primitive, ReduceOp, View, ViewMut, Window, WindowMemory,
};

/// Bytes of a window that a rank has for itself in a round.
pub(super) const STRETCH: usize = 1536;
/// Elements of an operation, at most.
const ELEMENTS: usize = 40;
const ROUNDS: usize = 10;
const OPERATIONS: usize = 6;

const TYPES: [Primitive; 5] = [
    Primitive::Int,
    Primitive::Double,
    Primitive::Uint8,
    Primitive::Short,
    Primitive::FloatComplex,
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Sync {
    Fence,
    Shared,
    Exclusive,
    All,
    Started,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Put,
    RPut,
    Get,
    RGet,
    Accumulate(ReduceOp),
    RAccumulate(ReduceOp),
    GetAccumulate(ReduceOp),
    RGetAccumulate(ReduceOp),
    Fetch,
    Compare,
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) target: usize,
    /// Where displacement 0 of the target's layout lies.
    pub(super) at: usize,
    pub(super) here: Shape,
    pub(super) there: Shape,
    pub(super) data: Vec<u8>,
}

impl Operation {
    pub(super) fn place(&self) -> Place {
        Place::typed(self.at as u64, &self.there.layout, self.there.count)
    }
}

pub(super) fn operation(random: &mut Random, size: usize, base: usize) -> Operation {
    let element = TYPES[random.below(TYPES.len())];
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Replace, ReduceOp::NoOp];
    let op = ops[random.below(ops.len())];
    let kind = match random.below(10) {
        0 => Kind::Put,
        1 => Kind::RPut,
        2 => Kind::Get,
        3 => Kind::RGet,
        4 => Kind::Accumulate(op),
        5 => Kind::RAccumulate(op),
        6 => Kind::GetAccumulate(op),
        7 => Kind::RGetAccumulate(op),
        8 => Kind::Fetch,
        _ => Kind::Compare,
    };
    let elements = 1 + random.below(ELEMENTS);
    let (here, there) =
        (Shape::random(random, element, elements), Shape::random(random, element, elements));
    let at = base + 16 * random.below(8);
    // Numbers of bytes are all numbers here; `tame` sees to it that floats stay numbers.
    let mut data = random.bytes(4 * ELEMENTS * 16);
    if matches!(element, Primitive::Double | Primitive::FloatComplex) {
        data.iter_mut().for_each(|byte| *byte &= 0x3F);
    }
    Operation { kind, target: random.below(size), at, here, there, data }
}

/// The operation, or a get if it would combine what is no number, or come to that: which bits a NaN has depends on the
/// processor. Other operations may have left one, of integers.
fn tame(operation: &Operation, windows: &[Vec<u8>]) -> Operation {
    use Kind::{Accumulate, GetAccumulate, RAccumulate, RGetAccumulate};
    let Operation { kind, target, at, here, there, data } = operation;
    let is_nan = |bytes: &[u8]| match there.element {
        Primitive::Double => {
            bytes.as_chunks().0.iter().any(|bytes| f64::from_ne_bytes(*bytes).is_nan())
        }
        Primitive::FloatComplex => {
            bytes.as_chunks().0.iter().any(|bytes| f32::from_ne_bytes(*bytes).is_nan())
        }
        _ => false,
    };
    let (Accumulate(op) | RAccumulate(op) | GetAccumulate(op) | RGetAccumulate(op)) = *kind else {
        return operation.clone();
    };
    let (given, old) = (here.pack(data), there.pack(&windows[*target][*at..]));
    let all = [combined(op, there.element, &old, &given), old, given];
    let is_move = matches!(op, ReduceOp::Replace | ReduceOp::NoOp);
    match !is_move && all.iter().any(|bytes| is_nan(bytes)) {
        true => Operation { kind: Kind::Get, ..operation.clone() },
        false => operation.clone(),
    }
}

/// What an operation does in the model; gives what it reads, packed.
pub(super) fn play(operation: &Operation, windows: &mut [Vec<u8>]) -> Vec<u8> {
    let Operation { kind, target, at, here, there, data } = operation;
    let memory = &mut windows[*target][*at..];
    let given = here.pack(data);
    let old = there.pack(memory);
    let element = there.element;
    match kind {
        Kind::Put | Kind::RPut => there.unpack(&given, memory),
        Kind::Get | Kind::RGet => {}
        Kind::Accumulate(op)
        | Kind::RAccumulate(op)
        | Kind::GetAccumulate(op)
        | Kind::RGetAccumulate(op) => {
            there.unpack(&combined(*op, element, &old, &given), memory);
        }
        Kind::Fetch => {
            let (old, new) = (memory[..8].to_vec(), &data[..8]);
            let sum = combined(ReduceOp::Sum, Primitive::Uint64, &old, new);
            memory[..8].copy_from_slice(&sum);
            return old;
        }
        Kind::Compare => {
            // Half of them find what they look for.
            let old = memory[..4].to_vec();
            let compare = if data[9] % 2 == 0 { old.clone() } else { data[..4].to_vec() };
            if compare == old {
                memory[..4].copy_from_slice(&data[4..8]);
            }
            return old;
        }
    }
    old
}

/// What an operation does; gives what it reads, packed. `expected` is what it should read.
fn perform<M>(operation: &Operation, window: &Window<u8, M>, expected: &[u8]) -> Vec<u8> {
    let Operation { kind, target, at, here, data, .. } = operation;
    let rank = u32::try_from(*target).unwrap();
    let place = || operation.place();
    let view = || View::typed(&data[..], 0, &here.layout, here.count).unwrap();
    let own = || Owned::typed(data.clone(), 0, &here.layout, here.count);
    let mut found = vec![0xEE; data.len()];
    let into = |found: Vec<u8>| Owned::typed(found, 0, &here.layout, here.count);
    match kind {
        Kind::Put => window.put(view(), rank, place()).unwrap(),
        Kind::RPut => window.rput(own(), rank, place()).unwrap().wait().1.unwrap(),
        Kind::Accumulate(op) => window.accumulate(view(), rank, place(), *op).unwrap(),
        Kind::RAccumulate(op) => {
            window.raccumulate(own(), rank, place(), *op).unwrap().wait().1.unwrap();
        }
        Kind::Get => {
            let to = ViewMut::typed(&mut found[..], 0, &here.layout, here.count).unwrap();
            window.get(to, rank, place()).unwrap();
        }
        Kind::RGet => {
            let request = window.rget(into(found), rank, place()).unwrap();
            let (buffer, result) = request.wait();
            result.unwrap();
            found = buffer;
        }
        Kind::GetAccumulate(op) => {
            let to = ViewMut::typed(&mut found[..], 0, &here.layout, here.count).unwrap();
            window.get_accumulate(view(), to, rank, place(), *op).unwrap();
        }
        Kind::RGetAccumulate(op) => {
            let mut request =
                window.rget_accumulate(view(), into(found), rank, place(), *op).unwrap();
            found = loop {
                request = match request.test() {
                    Ok((buffer, result)) => {
                        result.unwrap();
                        break buffer;
                    }
                    Err(request) => request,
                };
                std::thread::yield_now();
            };
        }
        Kind::Fetch => {
            let value = u64::from_ne_bytes(data[..8].try_into().unwrap());
            let old = window.fetch_and_op(value, rank, *at, ReduceOp::Sum).unwrap();
            return old.to_ne_bytes().to_vec();
        }
        Kind::Compare => {
            let number = |bytes: &[u8]| i32::from_ne_bytes(bytes[..4].try_into().unwrap());
            let compare = if data[9] % 2 == 0 { expected } else { &data[..] };
            let (compare, swap) = (number(compare), number(&data[4..8]));
            let old = window.compare_and_swap(compare, swap, rank, *at).unwrap();
            return old.to_ne_bytes().to_vec();
        }
    }
    if matches!(kind, Kind::Put | Kind::RPut | Kind::Accumulate(_) | Kind::RAccumulate(_)) {
        return expected.to_vec();
    }
    // Gaps are not touched.
    let mut rest = found.clone();
    here.unpack(&vec![0xEE; expected.len()], &mut rest);
    assert!(rest.iter().all(|byte| *byte == 0xEE));
    here.pack(&found)
}

fn open<M>(window: &mut Window<u8, M>, sync: Sync, targets: &[u32], all: &[u32]) {
    match sync {
        Sync::Fence => window.fence().unwrap(),
        Sync::All => window.lock_all().unwrap(),
        Sync::Started => {
            window.post(all).unwrap();
            window.start(all).unwrap();
        }
        Sync::Shared | Sync::Exclusive => {
            let kind = if matches!(sync, Sync::Shared) { Lock::Shared } else { Lock::Exclusive };
            // In one order, so that nobody waits in a circle.
            targets.iter().for_each(|rank| window.lock(*rank, kind).unwrap());
        }
    }
}

fn close<M>(comm: &Communicator, window: &mut Window<u8, M>, sync: Sync, targets: &[u32]) {
    match sync {
        Sync::Fence => window.fence_last().unwrap(),
        Sync::All => {
            window.flush_local_all().unwrap();
            window.flush_all().unwrap();
            window.unlock_all().unwrap();
        }
        Sync::Started => {
            window.complete().unwrap();
            if comm.rank().is_multiple_of(2) {
                window.wait().unwrap();
            } else {
                while !window.test().unwrap() {
                    std::thread::yield_now();
                }
            }
        }
        Sync::Shared | Sync::Exclusive => {
            targets.iter().for_each(|rank| {
                window.flush_local(*rank).unwrap();
                window.flush(*rank).unwrap();
                window.unlock(*rank).unwrap();
            });
        }
    }
    comm.barrier().unwrap();
}

/// Bytes of a window at each rank.
pub(super) fn bytes(comm: &Communicator) -> usize {
    STRETCH * comm.size() as usize
}

/// Does an operation in another way, if it likes: gives what it reads, packed, or what is expected.
pub(super) type Otherwise<'o, M> =
    dyn Fn(&Operation, &Window<u8, M>, &[u8]) -> Option<Vec<u8>> + 'o;

/// A program of this rank, and of all others; `what` names it. The windows are of zeros.
pub(super) fn run<M: WindowMemory>(
    what: &str,
    (comm, seed): (&Communicator, u64),
    mut window: Window<u8, M>,
    otherwise: &Otherwise<'_, M>,
) {
    let (size, me) = (comm.size() as usize, comm.rank() as usize);
    let mut random = Random::new(seed);
    let mut windows = vec![vec![0u8; STRETCH * size]; size];
    let all: Vec<u32> = (0..comm.size()).collect();
    for round in 0..ROUNDS {
        let syncs = [Sync::Fence, Sync::Shared, Sync::Exclusive, Sync::All, Sync::Started];
        let sync = syncs[(round + size) % syncs.len()];
        let operations: Vec<Vec<Operation>> = (0..size)
            .map(|rank| {
                let base = (rank + round) % size * STRETCH;
                (0..OPERATIONS).map(|_| operation(&mut random, size, base)).collect()
            })
            .collect();
        let mut targets: Vec<u32> =
            operations[me].iter().map(|one| u32::try_from(one.target).unwrap()).collect();
        targets.sort_unstable();
        targets.dedup();
        open(&mut window, sync, &targets, &all);
        for (rank, list) in operations.iter().enumerate() {
            for operation in list {
                let operation = tame(operation, &windows);
                let expected = play(&operation, &mut windows);
                if rank == me {
                    let found = otherwise(&operation, &window, &expected);
                    let found = found.unwrap_or_else(|| perform(&operation, &window, &expected));
                    let what = format!("seed {seed} {what} {sync:?} round {round}");
                    assert!(found == expected, "{what}: rank {rank} {operation:?}");
                }
            }
        }
        close(comm, &mut window, sync, &targets);
        let mut memory = vec![0u8; STRETCH * size];
        window.read(&mut memory, 0).unwrap();
        let wrong = memory.iter().zip(&windows[me]).position(|(found, model)| found != model);
        assert_eq!(wrong, None, "seed {seed} {what} {sync:?} round {round}: {operations:?}");
        comm.barrier().unwrap();
    }
    window.free().unwrap();
}

#[test]
fn random_programs_do_what_the_model_does() {
    for path in PATHS {
        for size in 1..=4 {
            ranks(path, size, |comm| {
                let window = window::<u8>(comm, path, bytes(comm));
                run(&format!("{path:?}"), (comm, size.into()), window, &|_, _, _| None);
            });
        }
    }
}
