//! Who calls one thing again and again serves its peers all the same.

use super::net::Net;
use super::numbers;
use crate::header::Stripes;
use crate::landing::Landing;
use crate::wire::{Head, MORE, WindowMessage};
use crate::{AccessKind, Lock, Place, Window};
use gapless_btl::loopback::Config;
use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;

/// How often progress is made in a thousand turns of a loop.
fn pace(mut turn: impl FnMut(&Window, &super::net::At<'_>)) -> u32 {
    let net = Net::new(2, &Config::default());
    let window = net.window(1, &[0]);
    let driver = net.driver(1, 10, &|| ());
    window.lock(&driver, 0, Lock::Shared).unwrap();
    let before = driver.made.get();
    for _ in 0..1000 {
        turn(&window, &driver);
    }
    u32::try_from(driver.made.get() - before).unwrap()
}

#[test]
fn spinning_on_one_call_makes_progress() {
    let number = numbers(Primitive::Int64, 1);
    let access =
        |window: &Window, way| window.access("get", (0, &Place::at(0)), &number, way).unwrap();
    let zero = [0; 8];
    let paces = [
        (
            "put",
            pace(|window, driver| {
                assert!(window.put_now(driver, "put", (0, 0), &zero));
            }),
        ),
        (
            "get",
            pace(|window, driver| {
                assert!(window.get_now(driver, "get", (0, 0), &mut [0; 8]));
            }),
        ),
        (
            "put and flush",
            pace(|window, driver| {
                assert!(window.put_now(driver, "put", (0, 0), &zero));
                window.flush(driver, 0).unwrap();
            }),
        ),
        (
            "change",
            pace(|window, driver| {
                let span = window.span("fetch_and_op", (0, 0), 8).unwrap();
                let what = (Primitive::Int64, ReduceOp::Sum);
                window.change_span(driver, span, what, &zero).unwrap();
            }),
        ),
        (
            "compare_and_swap",
            pace(|window, driver| {
                let access = access(window, AccessKind::Write);
                let all = (&zero[..], &zero[..], &mut [0; 8][..]);
                window.compare_and_swap(driver, &access, Primitive::Int64, all).unwrap();
            }),
        ),
        (
            "long way",
            pace(|window, driver| {
                window.get(driver, &access(window, AccessKind::Read), 0..8, &mut [0; 8]).unwrap();
            }),
        ),
        (
            "request",
            pace(|window, driver| {
                window.start_get(driver, &access(window, AccessKind::Read), 0..8).unwrap();
            }),
        ),
    ];
    for (call, pace) in paces {
        assert!((3..10).contains(&pace), "{call}: {pace} times");
    }
}

/// The short way changes one number that lies where numbers lie, while nobody else changes its stripe; all else is left to
/// the long one.
#[test]
fn the_short_way_leaves_what_is_not_simple() {
    use Primitive as P;
    let net = Net::new(2, &Config::default());
    let window = net.window(1, &[0]);
    let driver = net.driver(1, 10, &|| ());
    assert!(window.span("put", (0, 0), 8).is_none(), "no epoch");
    window.lock(&driver, 0, Lock::Shared).unwrap();
    assert!(window.span("put", (1, 0), 8).is_none() && window.span("put", (2, 0), 8).is_none());
    let all = window.own().bytes();
    for (at, bytes) in [(all, 1), (all - 7, 8), (u64::MAX, 8), (0, usize::MAX)] {
        assert!(window.span("put", (0, at), bytes).is_none(), "{at} {bytes}");
    }
    let change = |at, what, bytes: &[u8]| {
        let span = window.span("accumulate", (0, at), bytes.len()).unwrap();
        window.change_span(&driver, span, what, bytes)
    };
    let (sum, seven) = (ReduceOp::Sum, 7u64.to_ne_bytes());
    assert_eq!(change(8, (P::Uint64, sum), &seven), Some(0));
    assert_eq!(change(8, (P::Uint64, sum), &seven), Some(7));
    assert_eq!(change(8, (P::Uint64, ReduceOp::NoOp), &[0; 8]), Some(14));
    assert_eq!(change(8, (P::Double, ReduceOp::Replace), &[0; 8]), Some(14));
    assert_eq!(change(8, (P::LongLong, ReduceOp::Replace), &[0; 8]), Some(0));
    // Several numbers, places that are no multiples, other types and operations.
    for (at, what) in [
        (8, (P::Uint32, sum)),
        (4, (P::Uint64, sum)),
        (8, (P::FloatComplex, sum)),
        (8, (P::Int64, ReduceOp::Max)),
        (8, (P::Bool, ReduceOp::Replace)),
    ] {
        assert_eq!(change(at, what, &seven), None, "{at} {what:?}");
    }
    let (header, stripe) = (&net.exposures[0].header, Stripes::default().with(8, 8));
    assert!(header.try_stripes(0, stripe, |_| false));
    assert_eq!(change(8, (P::Uint64, sum), &seven), None);
    // Only who has a mutex gives it back.
    header.release_stripes(1, stripe);
    assert_eq!(change(8, (P::Uint64, sum), &seven), None);
    header.release_stripes(0, stripe);
    assert_eq!(change(8, (P::Uint64, sum), &seven), Some(0));
}

/// An answer that is not due is refused, also while more is asked.
#[test]
fn answers_that_are_not_due() {
    let net = Net::new(2, &Config::default());
    let mut core = net.oscs[0].core();
    let is_nonsense = |done: Result<(), &str>| done.is_err();
    let token = core.questions.ask(1, 0, Landing::kept(8));
    let head = Head { token, ..Head::new(WindowMessage::Answer, 0, 0) };
    assert!(is_nonsense(core.questions.answer(1, &head, &[])));
    core.questions.expect(token, 1, true);
    assert!(!is_nonsense(core.questions.answer(1, &Head { op: MORE, ..head }, &[1; 4])));
    assert!(!is_nonsense(core.questions.answer(1, &Head { start: 4, ..head }, &[2; 4])));
    assert!(is_nonsense(core.questions.answer(1, &head, &[])));
    core.questions.expect(token, 1, false);
    assert!(core.answered(token).is_none(), "one is missing");
    assert!(!is_nonsense(core.questions.answer(1, &head, &[3; 2])));
    assert_eq!(core.answered(token).unwrap().unwrap().into_kept(), [3, 3, 1, 1, 2, 2, 2, 2]);
}

/// A lock that is not taken costs no message, nor does giving it back: nothing has gone to the target.
#[test]
fn locks_that_are_not_taken_send_nothing() {
    let net = Net::new(2, &Config::default());
    let _target = net.window(0, &[]);
    let window = net.window(1, &[]);
    // Nobody makes progress, so whatever is waited for does not come.
    let driver = net.driver(1, 1, &|| ());
    for _ in 0..3 {
        window.lock_unchecked(0, Lock::Exclusive).unwrap();
        window.unlock(&driver, 0).unwrap();
        window.lock_all_unchecked().unwrap();
        window.unlock_all(&driver).unwrap();
    }
    assert!(window.lock(&driver, 0, Lock::Shared).is_err(), "the answer would have to come");
}
