//! Notices: each comes once, behind its data, whatever way that takes, and none comes of what was refused.

use super::net::Net;
use super::{NOTICES, Random};
use crate::core::Done;
use crate::error::Fault;
use crate::reads::ReadEnds;
use crate::window::{Flavor, Window};
use crate::wire::{Head, NOTICE, WindowMessage};
use crate::{AccessKind, Lock, Place, WindowError};
use gapless_bml::{Bml, LinkError, Rank};
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::Typed;
use gapless_mem::Region;
use std::cell::{Cell, RefCell};

const STEP: u64 = 4096;
/// Puts of all ranks together.
const PUTS: u64 = 512;

/// Bytes that a put has written: where, and what.
type Written = Vec<(u64, u8)>;

/// Short messages, which overtake each other.
fn short() -> Config {
    let ordered = false;
    Config { eager_bytes: 256, max_fragment_bytes: 256, slots: 16, ordered, ..Config::default() }
}

fn access(window: &Window, typed: &Typed, at: &Place, counter: u32) -> crate::Access {
    let access = window.access("put", (0, at), typed, AccessKind::Write).unwrap();
    window.with_notice(access, counter).unwrap()
}

/// Blocks of 1 to 8 bytes with gaps of as many, `len` bytes in all.
fn blocks(random: &mut Random, len: u64) -> Layout {
    let (mut lengths, mut starts, mut left, mut at) = (Vec::new(), Vec::new(), len, 0i64);
    while left > 0 {
        let block = (1 + random.below(8)).min(left);
        lengths.push(block);
        starts.push(at);
        at += i64::try_from(block + random.below(8)).unwrap();
        left -= block;
    }
    let bytes = Datatype::from(Primitive::Byte);
    Datatype::indexed(&lengths, &starts, &bytes).unwrap().commit().unwrap()
}

/// Whoever sees a notice sees all of its data: of puts of random layouts, out of order on the way, seen after each
/// step.
#[test]
fn a_notice_comes_behind_its_data_and_once() {
    let seed = gapless_testkit::seed(11);
    for maps in [&[][..], &[0]] {
        let mut random = Random(seed);
        let net = Net::new(3, &short());
        let windows = [0, 1, 2].map(|me| net.window(me, maps));
        // By origin: what each put has written, as it lies in the window, in the order of its calls.
        let written: [RefCell<Vec<Written>>; 2] = Default::default();
        let seen = [Cell::new(0), Cell::new(0)];
        let nobody = net.driver(0, 1, &|| ());
        let look = || {
            for (at, written) in written.iter().enumerate() {
                let counter = u32::try_from(at).unwrap();
                let count = windows[0].notices(&nobody, counter).unwrap();
                let written = written.borrow();
                for bytes in &written[seen[at].get()..usize::try_from(count).unwrap()] {
                    for (offset, expected) in bytes {
                        let mut byte = [0];
                        net.exposures[0].memory.load(*offset, &mut byte).unwrap();
                        assert_eq!(byte, [*expected], "{maps:?}");
                    }
                }
                seen[at].set(written.len().min(usize::try_from(count).unwrap()));
            }
        };
        let drivers = [1, 2].map(|process| net.driver(process, 4000, &look));
        windows[1].lock_all_unchecked().unwrap();
        windows[2].lock_all_unchecked().unwrap();
        for put in 0..PUTS {
            let origin = usize::try_from(random.below(2)).unwrap();
            let (window, driver) = (&windows[1 + origin], &drivers[origin]);
            let len = [0, 1 + random.below(40), 1 + random.below(1500)]
                [usize::try_from(random.below(3)).unwrap()];
            let value = u8::try_from(1 + put % 255).unwrap();
            let data = vec![value; usize::try_from(len).unwrap()];
            let typed = Typed::contiguous(Region::of(&data));
            let layout = blocks(&mut random, len);
            let at = if random.below(3) == 0 {
                Place::at(put * STEP)
            } else {
                Place::typed(put * STEP, &layout, 1)
            };
            let access = access(window, &typed, &at, u32::try_from(origin).unwrap());
            let mut bytes = Vec::new();
            crate::memory::for_each_run(&access.target, 0..len, |offset, _, len| {
                bytes.extend((offset..offset + len as u64).map(|offset| (offset, value)));
                Ok(())
            })
            .unwrap();
            written[origin].borrow_mut().push(bytes);
            // SAFETY: nobody writes the data.
            unsafe { window.put_all(driver, &access, &typed) }.unwrap();
            look();
            for _ in 0..random.below(3) {
                net.progress();
                look();
            }
        }
        for (window, driver) in windows[1..].iter().zip(&drivers) {
            window.flush_all(driver).unwrap();
        }
        look();
        for (at, written) in (0..).zip(&written) {
            let all = written.borrow().len() as u64;
            assert!(all > 100);
            assert_eq!(windows[0].take_notices(&nobody, at).unwrap(), all, "{maps:?}");
            assert_eq!(windows[0].notices(&nobody, at).unwrap(), 0);
        }
        assert_eq!([2, 3].map(|at| windows[0].notices(&nobody, at).unwrap()), [0, 0]);
    }
}

/// Reads tell the target when its memory has been read, long ones and those of nothing, too.
#[test]
fn what_was_read_is_told() {
    for maps in [&[][..], &[0]] {
        let net = Net::new(2, &short());
        let [target, window] = [0, 1].map(|me| net.window(me, maps));
        let driver = net.driver(1, 100_000, &|| ());
        window.lock_all_unchecked().unwrap();
        let mut bytes = vec![7u8; 3 << 20];
        for (read, len) in (1..).zip([0, 100, 3 << 20]) {
            let into = Typed::contiguous(Region::of_mut(&mut bytes[..len]));
            let access = access(&window, &into, &Place::at(8), 1);
            // SAFETY: the bytes are there until the flush, and nobody else touches them.
            unsafe { window.get_all(&driver, &access, (&into, ReadEnds::Later)) }.unwrap();
            window.flush(&driver, 0).unwrap();
            assert_eq!(target.notices(&driver, 1), Ok(read));
            let range = 0..access.packed_bytes();
            let kept = window.start_get(&driver, &access, range).unwrap().wait(&driver).unwrap();
            assert_eq!((kept.len(), target.notices(&driver, 1)), (len, Ok(read + 1)));
            assert_eq!(target.take_notices(&driver, 1), Ok(read + 1));
            // What the target has told is taken in for the next round.
            for _ in 0..read {
                crate::notices::raise(net.exposures[0].header.notice(1));
            }
        }
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn counters_that_there_are_not() {
    let net = Net::new(2, &Config::default());
    let [target, window] = [0, 1].map(|me| net.window(me, &[]));
    let driver = net.driver(1, 1, &|| ());
    let counters = NOTICES;
    for counter in [NOTICES, u32::MAX] {
        let refused = || WindowError::NoCounter { counter, counters };
        assert_eq!(window.notices(&driver, counter), Err(refused()));
        assert_eq!(window.take_notices(&driver, counter), Err(refused()));
        assert_eq!(window.wait_notices(&driver, (counter, 0), &[]), Err(refused()));
        window.lock_unchecked(0, Lock::Shared).unwrap();
        let typed = Typed::contiguous(Region::of(&[0u8; 0]));
        let access = window.access("put", (0, &Place::at(0)), &typed, AccessKind::Write).unwrap();
        assert_eq!(window.with_notice(access, counter).unwrap_err(), refused());
        window.unlock(&net.driver(1, 100, &|| ()), 0).unwrap();
        // Whoever says so all the same is no process of ours.
        let head = Head { flag: NOTICE, value: counter, ..target.head(WindowMessage::Put, 0) };
        let head = Head { rank: 1, ..head };
        let mut alone = Bml::new(Rank(0), 2);
        let done = net.oscs[0].core().execute(&net.oscs[0], &mut alone, Rank(1), &head.write());
        assert!(matches!(done, Done::Nonsense(_)));
    }
    let refused = WindowError::NoSuchRank { rank: 2, size: 2 };
    assert_eq!(window.wait_notices(&driver, (0, 1), &[0, 2]), Err(refused));
    assert_eq!(window.wait_notices(&driver, (0, 0), &[]), Ok(0));
    let none = Window::with_notices(net.window(1, &[]), 0, 0);
    assert_eq!(none.notices(&driver, 0), Err(WindowError::NoCounter { counter: 0, counters: 0 }));
    // Nor do other messages give any.
    let head = Head { flag: NOTICE, rank: 1, ..target.head(WindowMessage::Flush, 0) };
    net.oscs[0].core().execute(&net.oscs[0], &mut net.bml(0), Rank(1), &head.write());
    assert_eq!(target.notices(&driver, 0), Ok(0));
}

/// After an operation that was refused, notices begin again when the origin has been told.
#[test]
fn what_was_refused_gives_no_notice() {
    let net = Net::new(2, &short());
    let [target, window] = [0, 1].map(|me| net.window_with(me, &[], Flavor::Dynamic, &[]));
    let memory = super::atomics(&super::memory(64, 0), 0..64);
    let address = target.attach(memory).unwrap();
    let driver = net.driver(1, 1000, &|| ());
    window.lock_all_unchecked().unwrap();
    let data = [1u8; 512];
    let put = |len: usize, at: u64| {
        let typed = Typed::contiguous(Region::of(&data[..len]));
        let access = access(&window, &typed, &Place::at(at), 0);
        // SAFETY: nobody writes the data.
        unsafe { window.put_all(&driver, &access, &typed) }.unwrap();
    };
    // Its first messages lie in the memory and its last one does not; then the other way round.
    for at in [address + 100, address - 100] {
        put(512, at);
        put(1, address);
        let refused = WindowError::Refused { rank: 0, why: Fault::Outside };
        assert_eq!(window.flush(&driver, 0), Err(refused));
        assert_eq!(target.notices(&driver, 0), Ok(0));
    }
    put(512, address);
    window.flush(&driver, 0).unwrap();
    assert_eq!(target.notices(&driver, 0), Ok(1));
}

/// The death of a rank ends waits for its notices, and no others; what it gave before counts.
#[test]
fn who_is_lost_ends_the_waits_for_its_own_notices() {
    let net = Net::new(3, &Config::default());
    let windows = [0, 1, 2].map(|me| net.window(me, &[]));
    let give = |from: usize| {
        windows[from].lock_all_unchecked().unwrap();
        let typed = Typed::contiguous(Region::of(&[0u8; 0]));
        let access = access(&windows[from], &typed, &Place::at(0), 0);
        // SAFETY: there are no bytes.
        unsafe { windows[from].put_all(&net.driver(from, 100, &|| ()), &access, &typed) }.unwrap();
    };
    give(2);
    (0..5).for_each(|_| net.progress());
    net.bml(0).give_up(Rank(2), LinkError::Corrupt { what: "a test".to_owned() });
    let driver = net.driver(0, 100, &|| ());
    let wait = |at_least, group: &[u32]| windows[0].wait_notices(&driver, (0, at_least), group);
    assert_eq!(wait(1, &[2]), Ok(1));
    assert_eq!(wait(2, &[2]).unwrap_err().lost_process(), Some(2));
    assert_eq!(wait(2, &[1, 2]).unwrap_err().lost_process(), Some(2));
    // It waits on: there is who may give one.
    for group in [&[][..], &[1]] {
        assert!(matches!(wait(2, group), Err(WindowError::Transport { .. })));
    }
    give(1);
    assert_eq!(wait(2, &[]), Ok(2));
    net.bml(0).give_up(Rank(1), LinkError::Corrupt { what: "a test".to_owned() });
    assert_eq!(wait(3, &[]).unwrap_err().lost_process(), Some(1));
}

/// Thousands of operations are under way to a target that does nothing: no call waits, those to another target end, and
/// its death ends its own.
#[test]
fn operations_on_one_target_are_in_the_way_of_no_other() {
    const EACH: u64 = 3000;
    for dies in [false, true] {
        let net = Net::new(3, &short());
        let windows = [0, 1, 2].map(|me| net.window(me, &[]));
        for word in 0..EACH {
            net.exposures[0].memory.store(8 * word, &word.to_ne_bytes()).unwrap();
            net.exposures[2].memory.store(8 * word, &(word + EACH).to_ne_bytes()).unwrap();
        }
        let window = &windows[1];
        // Whoever waits fails.
        let stuck = net.driver(1, 1, &|| ());
        window.lock_all_unchecked().unwrap();
        let comb = Datatype::vector(2, 1, 4, &Primitive::Uint32.into()).unwrap().commit().unwrap();
        let begin = |rank: u32, word: u64| {
            let bytes = word.to_ne_bytes();
            let typed = Typed::contiguous(Region::of(&bytes));
            let (from, to) = (Place::at(8 * word), Place::typed((1 << 20) + 32 * word, &comb, 1));
            let access = |at| window.access("put", (rank, at), &typed, AccessKind::Write).unwrap();
            let put = window.with_notice(access(&to), 3).unwrap();
            // SAFETY: nobody writes the bytes.
            unsafe { window.put_all(&stuck, &put, &typed) }.unwrap();
            window.start_get(&stuck, &access(&from), 0..8).unwrap()
        };
        let reads = (0..EACH).map(|word| [begin(0, word), begin(2, word)]);
        let reads: Vec<_> = reads.collect();
        let mut turns = 0;
        while !reads.iter().all(|[_, read]| read.is_there()) {
            net.progress_from(1);
            turns += 1;
            assert!(turns < 10 * EACH);
        }
        assert_eq!(windows[2].notices(&stuck, 3), Ok(EACH));
        assert_eq!(windows[0].notices(&stuck, 3), Ok(0));
        assert!(!reads.iter().any(|[read, _]| read.is_there()));
        window.flush(&net.driver(1, 100, &|| ()), 2).unwrap();
        if dies {
            net.bml(1).give_up(Rank(0), LinkError::Corrupt { what: "a test".to_owned() });
            net.progress_from(1);
        }
        let driver = net.driver(1, 100_000, &|| ());
        for (word, [of_first, of_last]) in reads.into_iter().enumerate().rev() {
            let word = word as u64;
            let read = of_last.wait(&stuck).unwrap();
            assert_eq!(read, u64::to_ne_bytes(word + EACH));
            match of_first.wait(&driver) {
                Ok(read) => assert!(!dies && read == u64::to_ne_bytes(word)),
                Err(error) => assert!(dies && error.lost_process() == Some(0), "{error}"),
            }
        }
        assert_eq!(window.flush(&driver, 0).is_err(), dies);
        let given = windows[0].notices(&stuck, 3).unwrap();
        assert!(if dies { given < EACH } else { given == EACH }, "{given}");
        assert!(!net.oscs[1].is_busy());
        for (word, at) in (0..EACH).map(|word| (word, (1 << 20) + 32 * word)) {
            let halves = [net.load(2, at) & 0xFFFF_FFFF, net.load(2, at + 16) & 0xFFFF_FFFF];
            assert_eq!(halves[0] | halves[1] << 32, word);
        }
    }
}
