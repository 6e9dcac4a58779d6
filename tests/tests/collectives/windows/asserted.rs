//! What windows say of themselves, hints, and assertions: what they save, and that operations go as without them.

use super::{PATHS, Path, ranks, window};
use gapless::{Assertions, Error, Lock, ReduceOp, WindowError, WindowFlavor, WindowModel};

#[test]
fn windows_tell_how_they_were_made() {
    ranks(Path::Mapped, 2, |comm| {
        let me = comm.rank();
        let mut window = comm.window_allocate::<f64>(3 + me as usize).unwrap();
        assert_eq!(
            (window.flavor(), window.model()),
            (WindowFlavor::Allocated, WindowModel::Unified)
        );
        assert_eq!((window.bytes(1).unwrap(), window.unit(), window.len(1).unwrap()), (32, 8, 4));
        assert_eq!(window.base().len(), 24 + 8 * u64::from(me));
        assert!(window.bytes(2).is_err());
        assert_eq!(window.name(), "");
        window.set_name("forces");
        assert_eq!(window.name(), "forces");
        let memory = window.free().unwrap();
        assert_eq!(comm.window().create(memory).unwrap().flavor(), WindowFlavor::Created);
        assert_eq!(comm.window().dynamic().unwrap().flavor(), WindowFlavor::Dynamic);
        let shared = comm.window().allocate_shared::<u8>(1).unwrap();
        assert_eq!(shared.flavor(), WindowFlavor::Shared);
    });
}

#[test]
fn sizes_that_are_said_to_be_the_same_are() {
    ranks(Path::Mapped, 3, |comm| {
        let me = comm.rank();
        // One rank says so.
        let builder = || match me {
            1 => comm.window().info("same_size", "true").info("no_such_key", "7"),
            _ => comm.window(),
        };
        let made = builder().allocate::<u32>(if me == 2 { 5 } else { 4 }).map(drop);
        let Err(Error::Window(error)) = made else { panic!("{made:?}") };
        assert_eq!(error, WindowError::Differs { rank: 2, what: "size" });
        let window = builder().allocate::<u32>(4).unwrap();
        let same = if me == 1 { "true" } else { "false" };
        assert!(window.info().contains(&("same_size", same)));
        assert!(window.info().contains(&("accumulate_ordering", "rar,raw,war,waw")));
        window.free().unwrap();
    });
}

/// Locks that are not taken exclude nobody, and give nothing back; what they end has ended.
#[test]
fn epochs_that_are_not_checked_end_operations_all_the_same() {
    for path in PATHS {
        ranks(path, 3, |comm| {
            let (me, right) = (comm.rank(), (comm.rank() + 1) % 3);
            let left = (me + 2) % 3;
            let mut window = window::<u64>(comm, path, 4);
            // All have rank 0's lock alone, as it seems.
            window.lock_with(0, Lock::Exclusive, Assertions::NOCHECK).unwrap();
            comm.barrier().unwrap();
            window.accumulate(&[1u64], 0, 0, ReduceOp::Sum).unwrap();
            window.flush(0).unwrap();
            window.accumulate(&[1u64], 0, 0, ReduceOp::Sum).unwrap();
            window.unlock(0).unwrap();
            comm.barrier().unwrap();
            window.lock_all_with(Assertions::NOCHECK | Assertions::NOSTORE).unwrap();
            comm.barrier().unwrap();
            window.put(&[u64::from(me) + 7], right, 1).unwrap();
            window.unlock_all().unwrap();
            comm.barrier().unwrap();
            assert_eq!(window.load(1).unwrap(), u64::from(left) + 7, "{path:?}");
            assert_eq!(window.load(0).unwrap(), if me == 0 { 6 } else { 0 }, "{path:?}");
            // A lock that is taken after one that was not.
            window.lock(0, Lock::Exclusive).unwrap();
            window.unlock(0).unwrap();

            window.post_with(&[left], Assertions::NOCHECK | Assertions::NOPUT).unwrap();
            comm.barrier().unwrap();
            window.start_with(&[right], Assertions::NOCHECK).unwrap();
            window.put(&[u64::from(me) + 70], right, 2).unwrap();
            window.complete().unwrap();
            window.wait().unwrap();
            assert_eq!(window.load(2).unwrap(), u64::from(left) + 70, "{path:?}");
            // The next pair is told as ever.
            window.post_with(&[left], Assertions::empty()).unwrap();
            window.start_with(&[right], Assertions::empty()).unwrap();
            window.complete().unwrap();
            window.wait().unwrap();

            window.fence_with(Assertions::NOPRECEDE).unwrap();
            window.put(&[5u64], right, 3).unwrap();
            window.fence_with(Assertions::NOSUCCEED).unwrap();
            assert!(window.put(&[6u64], right, 3).is_err(), "no epoch");
            assert_eq!(window.load(3).unwrap(), 5);
            window.free().unwrap();
        });
    }
}
