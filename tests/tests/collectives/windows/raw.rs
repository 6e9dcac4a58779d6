//! Windows of `gapless::raw`: what the safe ones do, and what bindings of other languages need beyond that.

use super::program::{Kind, Operation, STRETCH, Sync, bytes, operation, play};
use super::{PATHS, Path, Random, ranks, why, worlds};
use gapless::raw::{Request, Typed, Window};
use gapless::{
    Assertions, Communicator, Datatype, Layout, Lock, Primitive, ReduceOp, Region, Space,
    WindowError, WindowFault, WindowFlavor,
};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const NONE: Assertions = Assertions::empty();

/// What a binding makes of a pointer.
fn at<T>(values: &mut [T], layout: &Layout, count: u64) -> Typed {
    let address = values.as_mut_ptr().expose_provenance() as u64;
    Typed::at(Space::Host, address, layout, count).unwrap()
}

/// Memory that others access at the same time.
fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn region(words: &[AtomicU64]) -> Region {
    let start = words.as_ptr().expose_provenance() as u64;
    Region::new(Space::Host, start, 0, 8 * words.len() as u64)
}

/// A window of `bytes` bytes whose operations go this way.
fn window(comm: &Communicator, path: Path, bytes: usize) -> Window {
    Window::allocate(path.builder(comm), bytes as u64, 1).unwrap()
}

/// An operation that was begun: what it reads is there when its epoch has ended.
struct Begun {
    what: String,
    operation: Operation,
    expected: Vec<u8>,
    found: Vec<u8>,
    request: Option<Request>,
}

/// Does an operation; what it needs is in `begun`, which does not move.
fn perform(window: &Window, begun: &mut Begun) {
    let Begun { operation, expected, found, request, .. } = begun;
    let Operation { kind, target, at: place, here, there, data } = operation;
    let (rank, to) = (u32::try_from(*target).unwrap(), i64::try_from(*place).unwrap());
    let given = at(data, &here.layout, here.count);
    let into = at(found, &here.layout, here.count);
    let there = (&there.layout, there.count);
    match kind {
        // SAFETY: here and below: the buffers live until the epoch has ended, and nobody touches them before.
        Kind::Put => unsafe { window.put(&given, rank, to, there) }.unwrap(),
        Kind::RPut => {
            // SAFETY: as above.
            let mut request = unsafe { window.rput(&given, rank, to, there) }.unwrap();
            request.wait().unwrap();
        }
        // SAFETY: as above.
        Kind::Get => unsafe { window.get(&into, rank, to, there) }.unwrap(),
        // SAFETY: as above.
        Kind::RGet => *request = Some(unsafe { window.rget(&into, rank, to, there) }.unwrap()),
        // SAFETY: as above.
        Kind::Accumulate(op) => unsafe { window.accumulate(&given, rank, to, there, *op) }.unwrap(),
        Kind::RAccumulate(op) => {
            // SAFETY: as above.
            let request = unsafe { window.raccumulate(&given, rank, to, there, *op) };
            assert!(request.unwrap().test().unwrap().is_ok());
        }
        Kind::GetAccumulate(op) => {
            let given = Some(&given).filter(|_| *op != ReduceOp::NoOp);
            // SAFETY: as above.
            unsafe { window.get_accumulate(given, &into, rank, to, there, *op) }.unwrap();
        }
        Kind::RGetAccumulate(op) => {
            let given = Some(&given).filter(|_| *op != ReduceOp::NoOp);
            // SAFETY: as above.
            let begun = unsafe { window.rget_accumulate(given, &into, rank, to, there, *op) };
            *request = Some(begun.unwrap());
        }
        Kind::Fetch => {
            let (given, into) = (data.as_ptr(), found.as_mut_ptr());
            let (element, op) = (Primitive::Uint64, ReduceOp::Sum);
            // SAFETY: as above.
            unsafe { window.fetch_and_op(Some(given), into, element, rank, to, op) }.unwrap();
        }
        Kind::Compare => {
            let (new, into) = (data[4..].as_ptr(), found.as_mut_ptr());
            let compare = if data[9].is_multiple_of(2) { expected.as_ptr() } else { data.as_ptr() };
            let element = Primitive::Int32;
            // SAFETY: as above.
            unsafe { window.compare_and_swap(new, compare, into, element, rank, to) }.unwrap();
        }
    }
}

impl Begun {
    /// The epoch has ended.
    fn check(self) {
        let Begun { what, operation, expected, found, request } = self;
        let here = &operation.here;
        if let Some(mut request) = request {
            assert_eq!(request.wait().unwrap().bytes, expected.len() as u64, "{what}");
        }
        let found = match operation.kind {
            Kind::Put | Kind::RPut | Kind::Accumulate(_) | Kind::RAccumulate(_) => return,
            Kind::Fetch | Kind::Compare => found[..expected.len()].to_vec(),
            _ => {
                // Gaps are not touched.
                let mut rest = found.clone();
                here.unpack(&vec![0xEE; expected.len()], &mut rest);
                assert!(rest.iter().all(|byte| *byte == 0xEE), "{what}");
                here.pack(&found)
            }
        };
        assert!(found == expected, "{what}: {operation:?}");
    }
}

fn open(window: &Window, sync: Sync, targets: &[u32], all: &[u32]) {
    match sync {
        Sync::Fence => window.fence(NONE).unwrap(),
        Sync::All => window.lock_all(NONE).unwrap(),
        Sync::Started => {
            window.post(all, NONE).unwrap();
            window.start(all, NONE).unwrap();
        }
        Sync::Shared | Sync::Exclusive => {
            let kind = if matches!(sync, Sync::Shared) { Lock::Shared } else { Lock::Exclusive };
            targets.iter().for_each(|rank| window.lock(*rank, kind, NONE).unwrap());
        }
    }
}

fn close(window: &Window, sync: Sync, targets: &[u32]) {
    match sync {
        Sync::Fence => window.fence(Assertions::NOSUCCEED).unwrap(),
        Sync::All => window.unlock_all().unwrap(),
        Sync::Started => {
            window.complete().unwrap();
            window.wait().unwrap();
        }
        Sync::Shared | Sync::Exclusive => {
            targets.iter().for_each(|rank| window.unlock(*rank).unwrap());
        }
    }
}

/// As the safe windows, but that reads end with the epoch, or at one of the flushes.
#[test]
fn random_programs_do_what_the_model_does() {
    let run = |path: Path, comm: &Communicator| {
        let (size, me, seed) = (comm.size() as usize, comm.rank() as usize, comm.size().into());
        let window = window(comm, path, bytes(comm));
        let mut random = Random::new(seed);
        let mut windows = vec![vec![0u8; STRETCH * size]; size];
        let all: Vec<u32> = (0..comm.size()).collect();
        for round in 0..10 {
            let syncs = [Sync::Fence, Sync::Shared, Sync::Exclusive, Sync::All, Sync::Started];
            let sync = syncs[(round + size) % syncs.len()];
            let mut begun = Vec::new();
            for rank in 0..size {
                let base = (rank + round) % size * STRETCH;
                for _ in 0..6 {
                    let operation = operation(&mut random, size, base);
                    let expected = play(&operation, &mut windows);
                    if rank == me {
                        let what = format!("seed {seed} {path:?} {sync:?} round {round}");
                        let found = vec![0xEE; operation.data.len()];
                        begun.push(Begun { what, operation, expected, found, request: None });
                    }
                }
            }
            let target = |one: &Begun| u32::try_from(one.operation.target).unwrap();
            let mut targets: Vec<u32> = begun.iter().map(target).collect();
            targets.sort_unstable();
            targets.dedup();
            open(&window, sync, &targets, &all);
            begun.iter_mut().for_each(|one| perform(&window, one));
            match (sync, round % 3) {
                (Sync::All, 0) => window.flush_local_all().unwrap(),
                (Sync::All, 1) => window.flush_all().unwrap(),
                (Sync::Shared, 0) => targets.iter().for_each(|to| window.flush(*to).unwrap()),
                (Sync::Shared, 1) => targets.iter().for_each(|to| window.flush_local(*to).unwrap()),
                _ => close(&window, sync, &targets),
            }
            begun.into_iter().for_each(Begun::check);
            if matches!(sync, Sync::All | Sync::Shared) && round % 3 < 2 {
                close(&window, sync, &targets);
            }
            comm.barrier().unwrap();
            let mut memory = vec![0u8; STRETCH * size];
            window.lock(comm.rank(), Lock::Shared, NONE).unwrap();
            let (byte, len) = (Primitive::Uint8.layout(), memory.len() as u64);
            let into = at(&mut memory, byte, len);
            // SAFETY: nobody touches the list until the lock is given back.
            unsafe { window.get(&into, comm.rank(), 0, (byte, len)) }.unwrap();
            window.unlock(comm.rank()).unwrap();
            assert!(memory == windows[me], "seed {seed} {path:?} {sync:?} round {round}");
            comm.barrier().unwrap();
        }
        window.free().unwrap();
    };
    for path in PATHS {
        for size in 1..=4 {
            ranks(path, size, |comm| run(path, comm));
        }
    }
}

/// Ranks count displacements in units of their own.
#[test]
fn each_rank_has_its_unit() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let (me, double) = (comm.rank(), Primitive::Double.layout());
            let unit = |rank: u32| [1, 8, 24][rank as usize];
            let window = Window::allocate(path.builder(comm), 72, unit(me)).unwrap();
            window.fence(NONE).unwrap();
            for rank in 0..3 {
                assert_eq!(window.unit(rank).unwrap(), unit(rank));
                assert_eq!(window.bytes(rank).unwrap(), 72);
                let mut value = [f64::from(10 * me + rank)];
                let displacement = i64::try_from(24 * u64::from(me) / unit(rank)).unwrap();
                let given = at(&mut value, double, 1);
                // SAFETY: the value lives until the call returns.
                unsafe { window.put(&given, rank, displacement, (double, 1)) }.unwrap();
                // SAFETY: as above.
                let outside = unsafe { window.put(&given, rank, 72, (double, 1)) };
                assert!(matches!(why(outside), WindowError::Outside { .. }));
                // SAFETY: as above.
                let before = unsafe { window.put(&given, rank, -1, (double, 1)) };
                assert!(matches!(why(before), WindowError::Outside { .. }));
            }
            window.fence(NONE).unwrap();
            let mut found = [0.0; 9];
            let into = at(&mut found, double, 9);
            // SAFETY: nobody touches the list before the fence.
            unsafe { window.get(&into, me, 0, (double, 9)) }.unwrap();
            window.fence(Assertions::NOSUCCEED).unwrap();
            let expected = [0, 1, 2].map(|rank| f64::from(10 * rank + me));
            assert_eq!([found[0], found[3], found[6]], expected);
            assert_eq!(window.flavor(), WindowFlavor::Allocated);
            window.free().unwrap();
        });
    }
}

/// Parts that follow each other, also at odd addresses, which all ranks load and store.
#[test]
fn parts_of_shared_memory_follow_each_other() {
    for contiguous in [true, false] {
        ranks(Path::Mapped, 4, |comm| {
            let (me, lens) = (comm.rank() as usize, [0, 5, 0, 11]);
            let window = Window::allocate_shared(comm, lens[me], 1, contiguous).unwrap();
            assert_eq!(window.shared_query(None).unwrap(), window.shared_query(Some(1)).unwrap());
            let parts = [0, 1, 2, 3].map(|rank| window.shared_query(Some(rank)).unwrap());
            for (rank, (_, bytes, unit)) in parts.iter().enumerate() {
                assert_eq!((*bytes, *unit), (lens[rank], 1));
            }
            assert_eq!(parts[1].0 + 5 == parts[3].0, contiguous);
            let byte = |rank: usize, at: u64| {
                let start = usize::try_from(parts[rank].0 + at).unwrap();
                // SAFETY: the byte lies in the window, which only atomic accesses touch while it exists.
                unsafe { AtomicU8::from_ptr(std::ptr::with_exposed_provenance_mut(start)) }
            };
            // Each rank writes its own byte of both parts that have some.
            byte(1, me as u64).store(10 + u8::try_from(me).unwrap(), Ordering::Release);
            byte(3, 10 - me as u64).fetch_add(20 + u8::try_from(me).unwrap(), Ordering::AcqRel);
            window.sync();
            comm.barrier().unwrap();
            window.sync();
            let row = |rank, from: u64| {
                [0, 1, 2, 3].map(|at| byte(rank, from + at).load(Ordering::Acquire))
            };
            assert_eq!((row(1, 0), row(3, 7)), ([10, 11, 12, 13], [23, 22, 21, 20]));
            comm.barrier().unwrap();
            // The last byte of one part and the first of the next are not each other's.
            window.lock_all(NONE).unwrap();
            let (mut one, layout) = ([1u8], Primitive::Uint8.layout());
            let given = at(&mut one, layout, 1);
            for (rank, place) in [(1, 4), (3, 0)] {
                let to = (layout, 1);
                // SAFETY: the byte lives until the call returns.
                unsafe { window.accumulate(&given, rank, place, to, ReduceOp::Sum) }.unwrap();
            }
            window.unlock_all().unwrap();
            comm.barrier().unwrap();
            assert_eq!([byte(1, 4), byte(3, 0)].map(|it| it.load(Ordering::Acquire)), [4, 4]);
            window.free().unwrap();
            // Nobody has any.
            let empty = Window::allocate_shared(comm, 0, 1, contiguous).unwrap();
            assert_eq!(empty.shared_query(None).unwrap(), (0, 0, 1));
            empty.free().unwrap();
        });
    }
    ranks(Path::Narrow, 2, |comm| {
        for contiguous in [true, false] {
            let refused = why(Window::allocate_shared(comm, 8, 1, contiguous));
            assert!(matches!(refused, WindowError::Unshared { .. }), "{refused:?}");
        }
    });
}

/// Memory that stays the caller's, and is looked at again when nobody else accesses it.
#[test]
fn memory_that_the_caller_vouches_for() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let (me, layout) = (comm.rank(), Primitive::Uint64.layout());
            let memory = words(4);
            // SAFETY: the list outlives the window, and is accessed by atomics.
            let window = unsafe { Window::create(path.builder(comm), region(&memory), 8) }.unwrap();
            assert_eq!(window.flavor(), WindowFlavor::Created);
            assert_eq!(window.base().start(), memory.as_ptr().addr() as u64);
            let own = window.shared_query(Some(me)).unwrap();
            let is_mapped = window.is_mapped(me).unwrap();
            assert_eq!((own.0 != 0, own.1), (is_mapped, if is_mapped { 32 } else { 0 }));
            memory[3].store(100, Ordering::Release);
            window.fence(NONE).unwrap();
            let mut given = [u64::from(me) + 1];
            for (place, op) in [(0, ReduceOp::Sum), (3, ReduceOp::Sum), (1, ReduceOp::Max)] {
                let given = at(&mut given, layout, 1);
                // SAFETY: the number lives until the call returns.
                unsafe { window.accumulate(&given, 2, place, (layout, 1), op) }.unwrap();
            }
            window.fence(Assertions::NOSUCCEED).unwrap();
            window.free().unwrap();
            let found: Vec<u64> = memory.into_iter().map(AtomicU64::into_inner).collect();
            assert_eq!(found, if me == 2 { [6, 3, 0, 106] } else { [0, 0, 0, 100] });
        });
    }
}

/// Memory is attached by its address, and is the caller's again once it is detached; what is refused is told by the flush,
/// or by the request.
#[test]
fn memory_is_attached_by_its_address() {
    for path in [Path::Mapped, Path::Messages, Path::Narrow] {
        ranks(path, 2, |comm| {
            let (me, layout) = (comm.rank(), Primitive::Uint64.layout());
            let memory = words(4);
            let window = Window::dynamic(path.builder(comm)).unwrap();
            assert_eq!((window.bytes(1).unwrap(), window.flavor()), (0, WindowFlavor::Dynamic));
            // SAFETY: it is detached before it goes.
            unsafe { window.attach(region(&memory)) }.unwrap();
            memory[1].store(7 + u64::from(me), Ordering::Release);
            let mut addresses = [0u64; 2];
            comm.allgather(&[region(&memory).start()], &mut addresses).unwrap();
            let other = 1 - me;
            let place = |at: u64| (addresses[other as usize] + 8 * at).cast_signed();
            let (mut given, mut found, mut lost) = ([5u64], [0u64; 2], [0u64]);
            window.lock(other, Lock::Shared, NONE).unwrap();
            let into = at(&mut found, layout, 2);
            // SAFETY: here and below: the numbers live until the lock is given back.
            unsafe { window.get(&into, other, place(0), (layout, 2)) }.unwrap();
            // SAFETY: as above.
            unsafe { window.put(&at(&mut given, layout, 1), other, place(2), (layout, 1)) }
                .unwrap();
            window.flush(other).unwrap();
            assert_eq!(found, [0, 7 + u64::from(other)]);
            // One element is behind it.
            // SAFETY: as above.
            unsafe { window.get(&into, other, place(3), (layout, 2)) }.unwrap();
            let refused = why(window.flush_local(other));
            assert!(matches!(refused, WindowError::Refused { why: WindowFault::Outside, .. }));
            window.flush(other).unwrap();
            let one = at(&mut lost, layout, 1);
            // SAFETY: as above.
            let mut request = unsafe { window.rget(&one, other, place(4), (layout, 1)) }.unwrap();
            window.flush(other).unwrap();
            let refused = why(request.wait());
            assert!(matches!(refused, WindowError::Refused { why: WindowFault::Outside, .. }));
            window.unlock(other).unwrap();
            comm.barrier().unwrap();
            let start = region(&memory).start();
            window.detach(start).unwrap();
            assert_eq!(why(window.detach(start)), WindowError::NotAttached { address: start });
            let found: Vec<u64> = memory.into_iter().map(AtomicU64::into_inner).collect();
            assert_eq!(found, [0, 7 + u64::from(me), 5, 0]);
            window.free().unwrap();
        });
    }
    ranks(Path::Mapped, 1, |comm| {
        let (window, memory) = (window(comm, Path::Mapped, 8), words(1));
        // SAFETY: it is refused.
        let refused = unsafe { window.attach(region(&memory)) };
        assert!(matches!(why(refused), WindowError::Flavor { .. }));
    });
}

/// One thread waits for the lock of a target; another one uses other targets meanwhile.
#[test]
fn a_thread_that_waits_hinders_no_other() {
    for path in [Path::Mapped, Path::Messages, Path::Narrow] {
        worlds(path, 3, |world| {
            let (comm, layout) = (world.comm(), Primitive::Uint64.layout());
            let window = window(comm, path, 8);
            if comm.rank() != 1 {
                if comm.rank() == 0 {
                    window.lock(0, Lock::Exclusive, NONE).unwrap();
                }
                comm.barrier().unwrap();
                // Rank 1 has done all that it can without the lock.
                comm.barrier().unwrap();
                if comm.rank() == 0 {
                    window.unlock(0).unwrap();
                }
                return window.free().unwrap();
            }
            comm.barrier().unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    // The other thread may have the epoch for a moment.
                    while window.lock(0, Lock::Exclusive, NONE).is_err() {
                        std::thread::yield_now();
                    }
                    window.unlock(0).unwrap();
                });
                while window.lock(0, Lock::Exclusive, Assertions::NOCHECK).is_ok() {
                    window.unlock(0).unwrap();
                    std::thread::yield_now();
                }
                // It waits.
                for round in 0..20u64 {
                    window.lock(2, Lock::Exclusive, NONE).unwrap();
                    let (mut one, mut old) = ([1u64], [u64::MAX]);
                    let given = at(&mut one, layout, 1);
                    let (from, into) = (one.as_ptr().cast(), old.as_mut_ptr().cast());
                    let (element, sum) = (Primitive::Uint64, ReduceOp::Sum);
                    // SAFETY: here and below: the numbers live until the lock is given back.
                    unsafe { window.fetch_and_op(Some(from), into, element, 2, 0, sum) }.unwrap();
                    // SAFETY: as above.
                    unsafe { window.accumulate(&given, 2, 0, (layout, 1), sum) }.unwrap();
                    window.flush(2).unwrap();
                    assert_eq!(old, [2 * round]);
                    window.unlock(2).unwrap();
                }
                assert!(!waits.is_finished());
                let taken = why(window.lock_all(NONE));
                assert!(matches!(taken, WindowError::Mixed { .. }), "{taken:?}");
                comm.barrier().unwrap();
                waits.join().unwrap();
            });
            window.free().unwrap();
        });
    }
}

/// Requests of reads are waited for with others; an atomic get has no origin, and nothing else does without.
#[test]
fn reads_have_requests() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let (layout, op) = (Primitive::Int32.layout(), ReduceOp::NoOp);
            let gaps = Datatype::vector(4, 1, 2, &Primitive::Int32.into()).unwrap();
            let gaps = gaps.commit().unwrap();
            let window = window(comm, path, 64);
            let mut given: Vec<i32> =
                (0..16).map(|at| 100 * i32::try_from(me).unwrap() + at).collect();
            window.lock_all(NONE).unwrap();
            let all = at(&mut given, layout, 16);
            // SAFETY: here and below: the numbers live until the epoch has ended.
            unsafe { window.put(&all, me, 0, (layout, 16)) }.unwrap();
            window.flush(me).unwrap();
            comm.barrier().unwrap();
            let mut found = vec![[-1i32; 8]; 40];
            let mut requests: Vec<Request> = (0..)
                .zip(&mut found)
                .map(|(at_rank, row)| {
                    let into = at(row, &gaps, 1);
                    let (to, what) = (at_rank % 3 * 4, (layout, 4));
                    match at_rank % 2 {
                        // SAFETY: as above.
                        0 => unsafe { window.rget(&into, other, to, what) },
                        // SAFETY: as above.
                        _ => unsafe { window.rget_accumulate(None, &into, other, to, what, op) },
                    }
                    .unwrap()
                })
                .collect();
            while !requests.is_empty() {
                let several: Vec<&Request> = requests.iter().collect();
                let done = Request::wait_any(&several).unwrap().unwrap();
                assert_eq!(requests.swap_remove(done).wait().unwrap().bytes, 16);
            }
            let base = 100 * i32::try_from(other).unwrap();
            for (number, row) in found.iter().enumerate() {
                let first = base + i32::try_from(number % 3).unwrap();
                assert_eq!(*row, [first, -1, first + 1, -1, first + 2, -1, first + 3, -1]);
            }
            let into = at(&mut given, layout, 1);
            let sum = ReduceOp::Sum;
            // SAFETY: as above.
            let nothing = unsafe { window.get_accumulate(None, &into, me, 0, (layout, 1), sum) };
            assert!(matches!(why(nothing), WindowError::Mismatch { .. }));
            window.unlock_all().unwrap();
            window.free().unwrap();
        });
    }
}

/// What nobody waits for any more is written nowhere.
#[test]
fn a_window_that_is_dropped_gives_up_its_reads() {
    ranks(Path::Narrow, 2, |comm| {
        let (window, layout) = (window(comm, Path::Narrow, 8), Primitive::Uint64.layout());
        let mut found = [3u64];
        let into = at(&mut found, layout, 1);
        if comm.rank() == 0 {
            window.lock(1, Lock::Shared, Assertions::NOCHECK).unwrap();
            // SAFETY: the number lives until the window is dropped.
            let mut request = unsafe { window.rget(&into, 1, 0, (layout, 1)) }.unwrap();
            drop(window);
            // The answer may have come before.
            match request.wait() {
                Ok(_) => assert_eq!(found, [0]),
                error => assert_eq!(why(error), WindowError::Freed { rank: 1 }),
            }
            comm.barrier().unwrap();
        } else {
            comm.barrier().unwrap();
        }
    });
}
