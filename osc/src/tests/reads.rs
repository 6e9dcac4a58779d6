//! Reads by messages that end at a flush: how many are under way, and what becomes of them.

use super::net::Net;
use crate::reads::ReadEnds::{Later, Requested};
use crate::reads::{KEPT, READS};
use crate::window::Window;
use crate::{AccessKind, Lock, Place, WindowError};
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::Region;

/// Two processes, between which there is room for all that may be under way.
fn net() -> Net {
    let net = Net::new(2, &Config { slots: 2 * READS, ..Config::default() });
    for word in 0..READS as u64 {
        net.exposures[0].memory.store(8 * word, &word.to_ne_bytes()).unwrap();
    }
    net
}

/// A number, as an origin has it.
fn typed(number: &mut u64) -> Typed {
    let address = std::ptr::from_mut(number).expose_provenance() as u64;
    Typed::contiguous(Region::new(gapless_mem::Space::Host, address, 0, 8))
}

fn access(window: &Window, typed: &Typed, word: usize) -> crate::Access {
    let place = Place::at(8 * word as u64);
    window.access("get", (0, &place), typed, AccessKind::Read).unwrap()
}

#[test]
fn calls_return_at_once_until_many_are_under_way() {
    let net = net();
    let _target = net.window(0, &[]);
    let window = net.window(1, &[]);
    // Whoever waits fails: nobody makes progress.
    let stuck = net.driver(1, 1, &|| ());
    window.lock_unchecked(0, Lock::Shared).unwrap();
    let mut found = vec![u64::MAX; READS + 1];
    let reads: Vec<Typed> = found.iter_mut().map(typed).collect();
    for (word, typed) in reads[..READS].iter().enumerate() {
        // SAFETY: here and below: the numbers outlive the window, and nobody touches them before they are there.
        unsafe { window.get_all(&stuck, &access(&window, typed, word), (typed, Later)) }.unwrap();
    }
    assert_eq!(window.reads.under_way(0), READS);
    // The answers are all there when one more finds no room.
    let patient = net.driver(1, 1000, &|| ());
    let last = access(&window, &reads[READS], 5);
    // SAFETY: as above.
    unsafe { window.get_all(&patient, &last, (&reads[READS], Later)) }.unwrap();
    assert!(window.reads.under_way(0) < READS);
    window.flush(&patient, 0).unwrap();
    assert_eq!(window.reads.under_way(0), 0);
    // Nothing was sent since.
    window.flush(&stuck, 0).unwrap();
    drop(window);
    assert!(found[..READS].iter().copied().eq(0..READS as u64));
    assert_eq!(found[READS], 5);
}

/// What does not go straight to where it is wanted is kept, but not all of it at once.
#[test]
fn what_is_kept_is_bounded() {
    let net = net();
    let _target = net.window(0, &[]);
    let window = net.window(1, &[]);
    let driver = net.driver(1, 100_000, &|| ());
    let count = 3 * KEPT / 4 / 8;
    let gaps = Datatype::vector(count, 1, 2, &Primitive::Uint64.into()).unwrap().commit().unwrap();
    let mut found = vec![vec![u64::MAX; 2 * usize::try_from(count).unwrap()]; 2];
    window.lock(&driver, 0, Lock::Shared).unwrap();
    for list in &mut found {
        let region = Region::new(
            gapless_mem::Space::Host,
            list.as_mut_ptr().expose_provenance() as u64,
            0,
            16 * count,
        );
        let typed = Typed::new(region, 0, &gaps, 1).unwrap();
        let place = Place::typed(0, Primitive::Uint64.layout(), count);
        let access = window.access("get", (0, &place), &typed, AccessKind::Read).unwrap();
        // SAFETY: nobody touches the list before it is there.
        unsafe { window.get_all(&driver, &access, (&typed, Later)) }.unwrap();
        assert!((1..=KEPT).contains(&window.reads.kept(0)));
    }
    window.unlock(&driver, 0).unwrap();
    assert_eq!(window.reads.kept(0), 0);
    for list in found {
        let expected = |at: usize| if at < READS { at as u64 } else { 0 };
        let is_right = |(at, pair): (usize, &[u64])| *pair == [expected(at), u64::MAX];
        assert!(list[..list.len() - 2].chunks(2).enumerate().all(is_right));
    }
}

/// What came of a read is told once: by its request, or by whoever flushes.
#[test]
fn failures_are_told_once() {
    let net = net();
    let target = net.window(0, &[]);
    let window = net.window(1, &[]);
    let (stuck, patient) = (net.driver(1, 1, &|| ()), net.driver(1, 1000, &|| ()));
    window.lock_unchecked(0, Lock::Shared).unwrap();
    let mut found = [u64::MAX; 4];
    let reads: Vec<Typed> = found.iter_mut().map(typed).collect();
    let number = super::numbers(Primitive::Uint64, 1);
    let first = access(&window, &reads[0], 3);
    // SAFETY: here and below: the numbers outlive the window, and nobody touches them before they are there.
    let request = unsafe { window.get_all(&stuck, &first, (&reads[0], Requested)) }.unwrap();
    assert_eq!(request.test(), None);
    window.flush_local(&patient, 0).unwrap();
    assert_eq!(request.test(), Some(Ok(())));
    drop(target);
    let place = Place::at(8);
    let change = window.access("get", (0, &place), &number, AccessKind::Change).unwrap();
    let (what, given) = ((&change, ReduceOp::NoOp), (&number, &place));
    // SAFETY: as above.
    let request =
        unsafe { window.get_accumulate_all(&stuck, what, given, (&reads[1], Requested)) }.unwrap();
    // SAFETY: as above.
    unsafe { window.get_all(&stuck, &first, (&reads[2], Later)) }.unwrap();
    let freed = WindowError::Freed { rank: 0 };
    assert_eq!(window.flush_local(&patient, 0), Err(freed.clone()));
    window.flush_local(&patient, 0).unwrap();
    assert_eq!(request.test(), Some(Err(freed)));
    // Nobody answers, and nobody waits any more.
    // SAFETY: as above.
    let request = unsafe { window.get_all(&stuck, &first, (&reads[3], Requested)) }.unwrap();
    drop(window);
    assert_eq!(request.test(), Some(Err(WindowError::Freed { rank: 0 })));
    for _ in 0..10 {
        net.progress();
    }
    assert_eq!(found, [3, u64::MAX, u64::MAX, u64::MAX]);
}

/// A read that is there at once, such as one of nothing, ends at once; a flush waits for those that were asked before.
#[test]
fn what_is_there_at_once_is_not_waited_for() {
    let net = net();
    let _target = net.window(0, &[]);
    let window = net.window(1, &[]);
    let (stuck, patient) = (net.driver(1, 1, &|| ()), net.driver(1, 1000, &|| ()));
    window.lock_unchecked(0, Lock::Shared).unwrap();
    let mut found = u64::MAX;
    let read = typed(&mut found);
    let nothing = super::numbers(Primitive::Uint64, 0);
    let place = Place::at(8);
    let empty = window.access("get", (0, &place), &nothing, AccessKind::Change).unwrap();
    let (what, given) = ((&empty, ReduceOp::Sum), (&nothing, &place));
    // SAFETY: the number outlives the window, and nobody touches it before it is there.
    unsafe { window.get_all(&stuck, &access(&window, &read, 3), (&read, Later)) }.unwrap();
    // SAFETY: nothing is read.
    unsafe { window.get_accumulate_all(&stuck, what, given, (&nothing, Later)) }.unwrap();
    // SAFETY: as above.
    let request =
        unsafe { window.get_accumulate_all(&stuck, what, given, (&nothing, Requested)) }.unwrap();
    assert_eq!((request.test(), window.reads.under_way(0)), (Some(Ok(())), 1));
    window.flush_local(&patient, 0).unwrap();
    assert_eq!((found, window.reads.under_way(0)), (3, 0));
}
