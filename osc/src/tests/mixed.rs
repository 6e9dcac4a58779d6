//! Locks of ranks that map a window, and of ranks that do not.

use super::net::Net;
use super::numbers;
use crate::header::Stripes;
use crate::layouts::LAYOUTS;
use crate::wire::{Head, WindowMessage};
use crate::{AccessKind, Lock, Osc, Place, WindowError};
use gapless_bml::{Bml, PeerState, Rank};
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Region, Space};

fn never(_: u32) -> bool {
    false
}

/// Each rank has all windows of lower ranks when it asks for one, and none of higher ranks: so no circle of ranks can wait
/// for each other.
#[test]
fn all_are_locked_one_after_the_other() {
    for maps in [&[][..], &[0], &[1], &[0, 1, 2, 3]] {
        let net = Net::new(4, &Config::default());
        let [first, second, third] = [0, 1, 2].map(|rank| net.exposures[rank].header.clone());
        let windows: Vec<_> = (0..4).map(|me| net.window(me, maps)).collect();
        let is_shared = |header: &crate::Header| {
            let is_free = header.try_lock(2, Lock::Exclusive, false, never);
            header.cancel(2);
            !is_free
        };
        assert!(second.try_lock(2, Lock::Exclusive, false, never));
        let looked = || assert!(!is_shared(&third), "rank 1 comes first; mapped: {maps:?}");
        let locked = windows[3].lock_all(&net.driver(3, 200, &looked));
        assert!(matches!(locked, Err(WindowError::Transport { .. })), "{locked:?}");
        second.unlock(2, Lock::Exclusive);
        for _ in 0..20 {
            net.progress();
        }
        assert!(!is_shared(&first), "mapped: {maps:?}");
        if maps.contains(&1) {
            windows[3].lock_all(&net.driver(3, 200, &|| ())).unwrap();
            assert!([&first, &second, &third].into_iter().all(is_shared));
            windows[3].unlock_all(&net.driver(3, 200, &|| ())).unwrap();
            assert!(![&first, &second, &third].into_iter().any(is_shared));
        }
    }
}

/// Rank 0's window, which rank 1 locks by messages and rank 2 maps.
fn ask(osc: &Osc, kind: Lock) {
    let head =
        Head { flag: u8::from(kind == Lock::Exclusive), ..Head::new(WindowMessage::Lock, 0, 1) };
    osc.core().execute(osc, &mut Bml::new(Rank(0), 3), Rank(1), &head.write());
}

/// A window that is dropped leaves no lock behind, neither given nor claimed, that a rank has by messages.
#[test]
fn a_dropped_window_gives_back_what_others_have_by_messages() {
    for kind in [Lock::Shared, Lock::Exclusive] {
        let net = Net::new(3, &Config::default());
        let window = net.window(0, &[]);
        let header = &net.exposures[0].header;
        ask(&net.oscs[0], kind);
        assert!(!header.try_lock(2, Lock::Exclusive, true, never), "rank 1 has it");
        drop(window);
        assert!(header.try_lock(2, Lock::Exclusive, true, never), "{kind:?}");
    }
    let net = Net::new(3, &Config::default());
    let window = net.window(0, &[]);
    let header = &net.exposures[0].header;
    assert!(header.try_lock(2, Lock::Shared, false, never));
    ask(&net.oscs[0], Lock::Exclusive);
    assert!(!header.try_lock(0, Lock::Shared, false, never), "rank 1 claims it");
    drop(window);
    assert!(header.try_lock(0, Lock::Shared, false, never));
}

/// One that dies waiting for a lock by messages leaves no claim behind.
#[test]
fn who_dies_waiting_by_messages_leaves_no_claim() {
    let net = Net::new(3, &Config::default());
    let _window = net.window(0, &[]);
    let header = &net.exposures[0].header;
    assert!(header.try_lock(2, Lock::Shared, false, never));
    ask(&net.oscs[0], Lock::Exclusive);
    assert!(!header.try_lock(0, Lock::Shared, false, never), "rank 1 claims it");
    net.oscs[0].core().windows.get_mut(&0).unwrap().forget(1, &mut Default::default());
    assert!(header.try_lock(0, Lock::Shared, false, never));
}

/// The mutex of a rank that was given up, but may live, is not taken: changes fail instead, on both paths.
#[test]
fn the_mutex_of_who_may_live_is_not_taken_over() {
    let net = Net::new(3, &Config::default());
    let _target = net.window(0, &[]);
    let mut windows = [net.window(1, &[0]), net.window(2, &[])];
    let stripes = Stripes::default().with(0, 8);
    let number = numbers(Primitive::Int64, 1);
    for (process, window) in [1, 2].into_iter().zip(&mut windows) {
        let driver = net.driver(process, 200, &|| ());
        window.lock(&driver, 0, Lock::Shared).unwrap();
        // For rank 1, rank 2 has the mutex, and for rank 2 rank 1.
        let holder = 3 - u32::try_from(process).unwrap();
        assert!(net.exposures[0].header.try_stripes(holder, stripes, never));
        for osc in &net.oscs {
            osc.departed().set_lost(holder, true);
        }
        let access = window.access("get", (0, &Place::at(0)), &number, AccessKind::Change).unwrap();
        let mut found = [0; 8];
        let all = (&[0; 8][..], &[1; 8][..], &mut found[..]);
        let changed = window.compare_and_swap(&driver, &access, Primitive::Int64, all);
        assert!(
            matches!(changed, Err(WindowError::Lost { process, .. }) if process == holder),
            "{changed:?}"
        );
        // Nor by the short way of those who map the memory.
        let sum = (Primitive::Int64, ReduceOp::Sum);
        let (bytes, span) = ([0; 8], window.span("accumulate", (0, 0), 8));
        assert_eq!(span.is_some(), process == 1);
        let added = span.map(|span| window.add_span(&driver, span, sum, &bytes));
        assert!(!matches!(added, Some(Ok(_))), "{added:?}: somebody else has the mutex");
        net.exposures[0].header.release_stripes(holder, stripes);
        for osc in &net.oscs {
            osc.departed().set_lost(holder, false);
        }
    }
}

/// Fragments may be longer than all credit: pieces are not, so there is always credit for the next.
#[test]
fn long_fragments_get_credit() {
    let config = Config { max_fragment_bytes: 2 << 20, ..Config::default() };
    let net = Net::new(2, &config);
    let _target = net.window(0, &[]);
    let window = net.window(1, &[]);
    let driver = net.driver(1, 500, &|| ());
    window.lock(&driver, 0, Lock::Shared).unwrap();
    let put = |len: usize| {
        let place = Typed::contiguous(Region::new(Space::Host, 0, 0, len as u64));
        let access = window.access("put", (0, &Place::at(0)), &place, AccessKind::Write).unwrap();
        window.put(&driver, &access, 0..len as u64, &vec![9; len])
    };
    // So little that the target does not tell when it is done.
    put(1000).unwrap();
    put(3 << 20).unwrap();
    put(1000).unwrap();
    window.unlock(&driver, 0).unwrap();
}

/// A layout that is still being told is not forgotten for another one, and what is forgotten costs credit.
#[test]
fn layouts_that_are_being_told_stay() {
    let net = Net::new(2, &Config::default());
    let _target = net.window(0, &[]);
    let lists: Vec<_> = (0..=LAYOUTS as i64)
        .map(|at| {
            let gaps: Vec<i64> = (0..160_000).map(|block| 3 * block + block % (2 + at)).collect();
            Datatype::indexed_block(1, &gaps, &Primitive::Byte.into()).unwrap().commit().unwrap()
        })
        .collect();
    let tell = |layout| net.oscs[1].core().tell(&mut net.bml(1), 0, layout);
    // All begin before anybody receives anything: none is told as a whole.
    for layout in &lists {
        assert!(tell(layout).is_none());
    }
    let mut told = vec![false; lists.len()];
    for _ in 0..10_000 {
        for (layout, told) in lists.iter().zip(&mut told).filter(|(_, told)| !**told) {
            *told = tell(layout).is_some_and(|told| told.is_ok());
        }
        net.progress();
    }
    assert!(told.iter().all(|told| *told), "{told:?}");
    assert_eq!(net.bml(0).state(Rank(1)), &PeerState::Up);
    assert!(WindowMessage::Forget.takes_credit());
}

/// All who wait by messages have their turn, not only the one that asked first.
#[test]
fn who_waits_by_messages_has_a_turn() {
    let net = Net::new(4, &Config::default());
    let _window = net.window(0, &[]);
    let (osc, header) = (&net.oscs[0], &net.exposures[0].header);
    assert!(header.try_lock(0, Lock::Exclusive, false, never));
    for rank in [3, 1] {
        let head = Head { flag: 1, ..Head::new(WindowMessage::Lock, 0, rank) };
        osc.core().execute(osc, &mut Bml::new(Rank(0), 4), Rank(rank), &head.write());
    }
    assert!(!header.try_lock(2, Lock::Exclusive, true, never));
    // Round from rank 0, it is rank 1's turn, whoever asked first.
    header.unlock(0, Lock::Exclusive);
    assert!(!header.try_lock(2, Lock::Exclusive, true, never));
    osc.core().grant_locks(osc, &mut Bml::new(Rank(0), 4));
    header.unlock(1, Lock::Exclusive);
    assert!(header.try_lock(2, Lock::Exclusive, true, never));
}
