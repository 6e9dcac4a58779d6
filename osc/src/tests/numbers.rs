//! Windows of numbers: those that adapters change, here the loopback, whose changes are a load and a store under a lock, so
//! that everything that goes another way at the same time is lost.

use super::net::Net;
use super::numbers;
use crate::{Access, AccessKind, Flavor, Lock, Place, Window, WindowError};
use gapless_bml::{Rank, RemoteKey};
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{ReduceOp, Typed};
use std::cell::Cell;

fn access(window: &Window, rank: u32, at: u64, origin: &Typed) -> (Access, Place) {
    let at = Place::at(at);
    (window.access("a test", (rank, &at), origin, AccessKind::Change).unwrap(), at)
}

fn set(net: &Net, rank: usize, at: u64, number: u64) {
    net.exposures[rank].memory.store(at, &number.to_ne_bytes()).unwrap();
}

/// Three ranks, of which the second maps the first's memory; all lock all.
fn windows(net: &Net, flavor: Flavor, with_keys: bool) -> Vec<Window> {
    let keys = if with_keys { net.keys() } else { Vec::new() };
    let maps: [&[u32]; 3] = [&[0], &[0, 1], &[2]];
    let mut all: Vec<Window> =
        (0..).zip(maps).map(|(me, maps)| net.window_with(me, maps, flavor, &keys)).collect();
    for (me, window) in all.iter_mut().enumerate() {
        for rank in 0..3 {
            window.lock(&net.driver(me, 1000, &|| ()), rank, Lock::Shared).unwrap();
        }
        assert_eq!(window.is_by_adapter(), with_keys);
    }
    all
}

/// Every operation makes of a number what the engine makes of it, from ranks that map it, from others and from its own.
#[test]
fn every_operation_is_carried_out() {
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let doubles = [1.5f64, -2.0, 1e300].map(f64::to_bits);
    for (primitive, given) in
        [(Primitive::Int64, [3, u64::MAX, 1 << 62]), (Primitive::Double, doubles)]
    {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(primitive)) {
            let arithmetic = crate::arithmetic::Arithmetic::new(op, primitive).unwrap();
            if !arithmetic.is_atomic() {
                continue;
            }
            for (me, window) in all.iter().enumerate() {
                let driver = net.driver(me, 1000, &|| ());
                let origin = numbers(primitive, 3);
                let (access, at) = access(window, 0, 16, &origin);
                let before = [5u64, 1 << 40, doubles[0]];
                for (i, number) in (0..).zip(before) {
                    set(&net, 0, 16 + 8 * i, number);
                }
                let bytes: Vec<u8> = given.iter().flat_map(|it| it.to_ne_bytes()).collect();
                let what = (&access, op);
                let reading =
                    window.start_get_accumulate(&driver, what, (&origin, &at), &bytes).unwrap();
                let found = reading.wait(&driver).unwrap();
                let was: Vec<u8> = before.iter().flat_map(|it| it.to_ne_bytes()).collect();
                assert_eq!(found, was, "{op:?} of {primitive} by rank {me}");
                for (i, (old, operand)) in (0..).zip(before.into_iter().zip(given)) {
                    let new = arithmetic.change(old, operand).unwrap_or(old);
                    let there = net.load(0, 16 + 8 * i);
                    assert_eq!(there, new, "{op:?} of {primitive} by rank {me}");
                }
            }
        }
    }
}

/// Somebody changes the number between a look and the exchange: it is tried again, and no change is lost.
#[test]
fn a_disturbed_exchange_is_tried_again() {
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let disturbed = Cell::new(0);
    let disturb = || {
        if disturbed.get() < 5 {
            disturbed.set(disturbed.get() + 1);
            set(&net, 0, 8, net.load(0, 8) + 100);
        }
    };
    let origin = numbers(Primitive::Int64, 1);
    let (access, at) = access(&all[2], 0, 8, &origin);
    let driver = net.driver(2, 1000, &disturb);
    let what = ((&access, ReduceOp::Bxor), (&origin, &at));
    let reading =
        all[2].start_get_accumulate(&driver, what.0, what.1, &1u64.to_ne_bytes()).unwrap();
    let found = reading.wait(&driver).unwrap();
    assert_eq!(disturbed.get(), 5, "it took as many tries");
    let old = u64::from_ne_bytes(found.try_into().unwrap());
    assert_eq!((old % 100, net.load(0, 8) % 100), (0, 1));
}

/// Sums of all ranks on two numbers, many of them in one call, and exchanges of one: as many as there were.
#[test]
fn nothing_is_lost() {
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let origin = numbers(Primitive::Uint64, 100);
    let ones: Vec<u8> = (0..100).flat_map(|_| 1u64.to_ne_bytes()).collect();
    for round in 0..4 {
        for (me, window) in all.iter().enumerate() {
            let driver = net.driver(me, 1000, &|| ());
            let (whole, at) = access(window, 1, 800, &origin);
            let what = ((&whole, ReduceOp::Sum), (&origin, &at));
            window.accumulate(&driver, what.0, what.1, &ones).unwrap();
            let one = numbers(Primitive::Uint64, 1);
            let (single, _) = access(window, 1, 0, &one);
            let seen = 3 * round + me as u64;
            for (compare, swap) in [(seen + 50, 7), (seen, seen + 1)] {
                let mut found = [0; 8];
                let bytes = [compare, swap].map(u64::to_ne_bytes);
                let both = (&bytes[0][..], &bytes[1][..], &mut found[..]);
                window.compare_and_swap(&driver, &single, Primitive::Uint64, both).unwrap();
                assert_eq!(u64::from_ne_bytes(found), seen);
            }
        }
    }
    assert_eq!(net.load(1, 0), 12);
    assert!((0..100).all(|i| net.load(1, 800 + 8 * i) == 12));
    assert_eq!([net.load(1, 792), net.load(1, 1600)], [0, 0]);
}

/// Elements that adapters cannot change are refused, whether adapters change this window or not.
#[test]
fn nothing_but_numbers_is_accumulated() {
    for with_keys in [false, true] {
        let net = Net::new(3, &Config::default());
        let all = windows(&net, Flavor::Numbers, with_keys);
        let driver = net.driver(1, 1000, &|| ());
        for (primitive, fits) in [
            (Primitive::Int32, false),
            (Primitive::FloatInt, false),
            (Primitive::Uint64, true),
            (Primitive::Double, true),
        ] {
            let origin = numbers(primitive, 1);
            let (access, at) = access(&all[1], 0, 0, &origin);
            let op = if primitive.is_pair() { ReduceOp::MinLoc } else { ReduceOp::Sum };
            let bytes = vec![0; usize::try_from(primitive.size_bytes()).unwrap()];
            let done = all[1].accumulate(&driver, (&access, op), (&origin, &at), &bytes);
            let refused = matches!(done, Err(WindowError::Flavor { .. }));
            assert_eq!((refused, done.is_ok()), (!fits, fits), "{primitive}: {done:?}");
        }
        let origin = numbers(Primitive::Int32, 1);
        let (access, _) = access(&all[1], 0, 0, &origin);
        let both = (&[0; 4][..], &[1; 4][..], &mut [0; 4][..]);
        let done = all[1].compare_and_swap(&driver, &access, Primitive::Int32, both);
        assert!(matches!(done, Err(WindowError::Flavor { .. })), "{done:?}");
        let span = all[1].span("a test", (0, 0), 4).unwrap();
        let what = (Primitive::Int32, ReduceOp::Sum);
        assert_eq!(all[1].change_span(&driver, span, what, &[1; 4]), None);
    }
}

/// A process that is lost ends the calls that need it, and leaves nothing under way.
#[test]
fn a_lost_target_ends_calls() {
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let lose = || {
        let error = gapless_bml::LinkError::PeerGone { reason: "a test".to_owned() };
        net.bml(2).give_up(Rank(0), error);
    };
    let origin = numbers(Primitive::Int64, 64);
    let (access, at) = access(&all[2], 0, 0, &origin);
    let bytes = [1; 512];
    let driver = net.driver(2, 1000, &lose);
    let what = ((&access, ReduceOp::Max), (&origin, &at));
    let done = all[2].accumulate(&driver, what.0, what.1, &bytes);
    assert!(done.as_ref().is_err_and(|error| error.lost_process() == Some(0)), "{done:?}");
    (0..20).for_each(|_| net.progress());
    let done = all[2].accumulate(&driver, what.0, what.1, &bytes);
    assert!(done.as_ref().is_err_and(|error| error.lost_process() == Some(0)), "{done:?}");
    assert_eq!(net.oscs[2].core().changes.under_way(), 0);
}

/// More numbers than are listed at a time, with gaps between them: each is changed once, and what was there comes in order.
#[test]
fn long_arrays_go_in_parts() {
    const COUNT: u64 = 40_000;
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let number = Datatype::from(Primitive::Uint64);
    let every = Datatype::vector(COUNT, 1, 2, &number).unwrap().commit().unwrap();
    let origin = numbers(Primitive::Uint64, COUNT);
    let at = Place::typed(8, &every, 1);
    let access = all[2].access("a test", (1, &at), &origin, AccessKind::Change).unwrap();
    (0..COUNT).for_each(|i| set(&net, 1, 8 + 16 * i, i));
    let bytes: Vec<u8> = (0..COUNT).flat_map(|i| (2 * i).to_ne_bytes()).collect();
    let driver = net.driver(2, 100_000, &|| ());
    let what = (&access, ReduceOp::Sum);
    let reading = all[2].start_get_accumulate(&driver, what, (&origin, &at), &bytes).unwrap();
    let found = reading.wait(&driver).unwrap();
    let due: Vec<u8> = (0..COUNT).flat_map(u64::to_ne_bytes).collect();
    assert!(found == due);
    let wrong = (0..COUNT).find(|&i| net.load(1, 8 + 16 * i) != 3 * i);
    assert_eq!((wrong, net.load(1, 0), net.load(1, 16)), (None, 0, 0));
}

/// Whoever leaves a call in the middle, by an error or a panic, leaves nothing under way for good.
#[test]
fn calls_that_are_left_keep_nothing() {
    let net = Net::new(3, &Config::default());
    let all = windows(&net, Flavor::Numbers, true);
    let origin = numbers(Primitive::Int64, 64);
    let (access, at) = access(&all[2], 0, 0, &origin);
    let what = ((&access, ReduceOp::Min), (&origin, &at));
    let impatient = net.driver(2, 1, &|| ());
    let done = all[2].accumulate(&impatient, what.0, what.1, &[1; 512]);
    assert!(matches!(done, Err(WindowError::Transport { .. })), "{done:?}");
    let clumsy = net.driver(2, 1000, &|| panic!("a test"));
    let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        all[2].accumulate(&clumsy, what.0, what.1, &[1; 512])
    }));
    assert!(left.is_err());
    (0..20).for_each(|_| net.progress());
    assert_eq!(net.oscs[2].core().changes.under_way(), 0);
}

/// A key that a rank has made up, or changed: a call by it ends, and changes nothing but memory that was registered.
#[test]
fn keys_of_any_bytes() {
    let seed = gapless_testkit::seed(3);
    let mut random = super::Random(std::cmp::max(seed, 1));
    let net = Net::new(3, &Config::default());
    let good = net.keys();
    let (mut failed, mut done) = (0, 0);
    for _ in 0..200 {
        let mut keys = good.clone();
        let mut bytes = keys[0].1.as_bytes().to_vec();
        for _ in 0..random.below(3) {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(random.below(256)).unwrap();
        }
        if random.below(4) == 0 {
            bytes.truncate(usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap());
        }
        keys[0].1 = RemoteKey::new(&bytes).unwrap();
        let [_first, _second, window] =
            [0, 1, 2].map(|me| net.window_with(me, &[me], Flavor::Numbers, &keys));
        let driver = net.driver(2, 1000, &|| ());
        window.lock(&driver, 0, Lock::Shared).unwrap();
        let origin = numbers(Primitive::Int64, 1);
        let (access, at) = access(&window, 0, 8, &origin);
        let before = net.load(0, 8);
        let (what, operand) = ((&access, ReduceOp::Sum), 1u64.to_ne_bytes());
        match window.start_get_accumulate(&driver, what, (&origin, &at), &operand) {
            Ok(_) => done += 1,
            Err(error) => {
                assert!(matches!(error, WindowError::Transport { .. }), "{error}");
                assert_eq!(net.load(0, 8), before);
                failed += 1;
            }
        }
        assert_eq!(net.oscs[2].core().changes.under_way(), 0);
        window.unlock(&driver, 0).unwrap();
    }
    assert!(failed > 20 && done > 20, "{failed} {done}");
}
