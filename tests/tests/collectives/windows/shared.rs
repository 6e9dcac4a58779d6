//! Shared windows, memory that users give, and memory that is attached.

use super::{PATHS, Path, ranks, worlds};
use gapless::{Datatype, Lock, ReduceOp, WindowError};

#[test]
fn shared_memory_is_read_and_written_in_place() {
    ranks(Path::Mapped, 3, |comm| {
        let window = comm.window().allocate_shared::<u32>(8).unwrap();
        let (me, right) = (comm.rank(), (comm.rank() + 1) % 3);
        window.part(right).unwrap().store(me + 10, 3).unwrap();
        window.part(right).unwrap().write(&[me, me + 1], 6).unwrap();
        window.sync();
        comm.barrier().unwrap();
        let left = (me + 2) % 3;
        assert_eq!(window.load(3).unwrap(), left + 10);
        let mut found = [0u32; 2];
        window.part(me).unwrap().read(&mut found, 6).unwrap();
        assert_eq!(found, [left, left + 1]);
        assert_eq!(window.part(right).unwrap().load(3).unwrap(), me + 10);
        assert!(window.part(right).unwrap().store(1, 8).is_err() && window.part(3).is_err());
        window.free().unwrap();
    });
}

/// The usual idiom: one rank allocates for all.
#[test]
fn ranks_of_a_shared_window_may_give_no_memory() {
    ranks(Path::Mapped, 3, |comm| {
        let me = comm.rank();
        let count = if me == 1 { 3 } else { 0 };
        let mut window = comm.window().allocate_shared::<f64>(count).unwrap();
        window.part(1).unwrap().store(f64::from(me), me).unwrap();
        let empty = window.part(2).unwrap();
        assert!(empty.load(0).is_err() && empty.write(&[0.0f64; 0], 0).is_ok());
        window.fence().unwrap();
        window.accumulate(&[0.5], 1, 0, ReduceOp::Sum).unwrap();
        window.put(&[0.0f64; 0], 0, 0).unwrap();
        window.fence_last().unwrap();
        let all = [0, 1, 2].map(|at| window.part(1).unwrap().load(at).unwrap());
        assert_eq!(all, [1.5, 1.0, 2.0]);
        window.free().unwrap();
        comm.window().allocate_shared::<f64>(0).unwrap().free().unwrap();
    });
}

#[test]
fn memory_that_cannot_be_mapped_is_no_shared_window() {
    ranks(Path::Narrow, 2, |comm| {
        let refused = comm.window().allocate_shared::<u32>(8).unwrap_err();
        assert!(matches!(refused, gapless::Error::Window(WindowError::Unshared { .. })));
        comm.barrier().unwrap();
    });
}

#[test]
fn a_list_that_was_given_comes_back() {
    for path in PATHS {
        worlds(path, 3, |world| {
            let (comm, me) = (world.comm(), world.rank());
            let lens = [40, 0, 7];
            let list = vec![[f64::from(me), 0.5]; lens[me as usize]];
            let (start, capacity) = (list.as_ptr().addr(), list.capacity());
            let mut window = comm.window().create(list).unwrap();
            assert_eq!([0, 1, 2].map(|rank| window.len(rank).unwrap()), lens.map(|len| len as u64));
            window.fence().unwrap();
            let value = f64::from(me + 1);
            window.put(&[value, value], 0, u64::from(me)).unwrap();
            window.accumulate(&[[1.0, 2.0]], 2, 6, ReduceOp::Sum).unwrap();
            assert!(window.put(&[1.0, 2.0], 1, 0).is_err());
            window.fence_last().unwrap();
            let list = window.free().unwrap();
            assert_eq!(list.len(), lens[me as usize]);
            // Where no other rank of this process has mapped it, it was not even copied.
            assert!(
                path == Path::Mapped
                    || (list.as_ptr().addr(), list.capacity()) == (start, capacity)
            );
            if me == 0 {
                assert_eq!(list[..4], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, 0.5]]);
            }
            if me == 2 {
                assert_eq!(list[5..], [[2.0, 0.5], [5.0, 6.5]]);
            }
        });
    }
}

#[test]
fn a_list_with_padding_is_refused_and_one_of_a_dropped_window_is_freed() {
    #[derive(Clone, Copy, Datatype)]
    #[repr(C)]
    struct Padded(f64, u8);
    worlds(Path::Messages, 2, |world| {
        let comm = world.comm();
        let list = vec![Padded(1.0, 2); 3];
        let error = comm.window().create(list).unwrap_err();
        assert!(error.to_string().contains("padding"), "{error}");
        drop(comm.window().create(vec![7u16; 1000]).unwrap());
    });
}

#[test]
fn memory_that_was_given_comes_back() {
    for path in PATHS {
        worlds(path, 2, |world| {
            let comm = world.comm();
            // Rank 1 gives none.
            let len = if comm.rank() == 0 { 64 } else { 0 };
            let mut memory = world.alloc(len).unwrap();
            memory.fill(7);
            let builder = comm.window();
            let builder = if path == Path::Mapped { builder } else { builder.by_messages() };
            let mut window = builder.create(memory).unwrap();
            assert_eq!((window.len(0).unwrap(), window.len(1).unwrap()), (64, 0));
            window.fence().unwrap();
            if comm.rank() == 1 {
                window.put(&0x0102_0304u32, 0, 8).unwrap();
                assert!(window.put(&[1u8], 1, 0).is_err());
            }
            window.fence_last().unwrap();
            let memory = window.free().unwrap();
            assert_eq!(memory.len(), len);
            if comm.rank() == 0 {
                assert_eq!(memory[8..12], 0x0102_0304u32.to_ne_bytes());
                assert!(memory[..8].iter().chain(&memory[12..]).all(|byte| *byte == 7));
            }
        });
    }
}

#[test]
fn memory_is_attached_and_detached() {
    for path in PATHS {
        worlds(path, 2, |world| {
            let comm = world.comm();
            let mut window = comm.window().dynamic().unwrap();
            let mut place = [0u64; 2];
            if comm.rank() == 0 {
                place[0] = window.attach(world.alloc(256).unwrap()).unwrap();
                place[1] = window.attach(world.alloc(64).unwrap()).unwrap();
            }
            comm.bcast(&mut place, 0).unwrap();
            if comm.rank() == 1 {
                window.lock(0, Lock::Shared).unwrap();
                let numbers: Vec<u64> = (0..32).collect();
                window.put(&numbers, 0, place[0]).unwrap();
                window.accumulate(&[5u64], 0, place[0] + 8, ReduceOp::Sum).unwrap();
                let old = window.fetch_and_op(1u64, 0, place[0] + 16, ReduceOp::Sum).unwrap();
                assert_eq!(old, 2);
                window.put(&[9u8; 64], 0, place[1]).unwrap();
                window.flush(0).unwrap();
                // Out of one piece, into nothing.
                window.put(&[9u8; 65], 0, place[1]).unwrap();
                assert!(window.flush(0).is_err());
                assert!(window.get(&mut [0u8], 0, 8u64).is_err());
                window.unlock(0).unwrap();
                comm.barrier().unwrap();
                comm.barrier().unwrap();
                window.lock(0, Lock::Shared).unwrap();
                assert!(window.get(&mut [0u8], 0, place[0]).is_err());
                window.unlock(0).unwrap();
            } else {
                comm.barrier().unwrap();
                let mut number = [0; 8];
                window.read_attached(place[1], 56, &mut number).unwrap();
                assert_eq!(number, [9; 8]);
                let memory = window.detach(place[0]).unwrap();
                assert!(window.detach(place[0]).is_none());
                let number =
                    |at: usize| u64::from_ne_bytes(memory[8 * at..][..8].try_into().unwrap());
                assert_eq!([number(0), number(1), number(2), number(31)], [0, 6, 3, 31]);
                comm.barrier().unwrap();
            }
            window.free().unwrap();
        });
    }
}
