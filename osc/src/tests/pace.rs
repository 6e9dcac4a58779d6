//! Who calls one thing again and again serves its peers all the same.

use super::net::Net;
use crate::core::Done;
use crate::wire::{Head, Kind, MORE};
use crate::{Lock, Place, Way, Window};
use gapless_bml::Rank;
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Region, Space};

fn number() -> Typed {
    let layout = Datatype::from(Primitive::Int64).commit().unwrap();
    Typed::new(Region::new(Space::Host, 0, 0, 8), 0, &layout, 1).unwrap()
}

/// How often progress is made in a thousand turns of a loop.
fn pace(mut turn: impl FnMut(&Window, &super::net::At<'_>)) -> u32 {
    let net = Net::new(2, &Config::default());
    let mut window = net.window(1, &[0]);
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
    let access =
        |window: &Window, way| window.access("get", (0, &Place::at(0)), &number(), way).unwrap();
    let zero = [0; 8];
    let paces = [
        (
            "put",
            pace(|window, driver| {
                let span = window.span("put", (0, 0), 8).unwrap();
                window.put_span(driver, span, &zero).unwrap();
            }),
        ),
        (
            "get",
            pace(|window, driver| {
                let span = window.span("get", (0, 0), 8).unwrap();
                window.get_span(driver, span, &mut [0; 8]).unwrap();
            }),
        ),
        (
            "put and flush",
            pace(|window, driver| {
                let span = window.span("put", (0, 0), 8).unwrap();
                window.put_span(driver, span, &zero).unwrap();
                window.flush(driver, 0).unwrap();
            }),
        ),
        (
            "change",
            pace(|window, driver| {
                let span = window.span("fetch_and_op", (0, 0), 8).unwrap();
                let changed =
                    window.change_span(driver, (0, span), (&number(), ReduceOp::Sum), &zero);
                changed.unwrap().unwrap();
            }),
        ),
        (
            "compare_and_swap",
            pace(|window, driver| {
                let access = access(window, Way::Write);
                let all = (&zero[..], &zero[..], &mut [0; 8][..]);
                window.compare_and_swap(driver, &access, Primitive::Int64, all).unwrap();
            }),
        ),
        (
            "long way",
            pace(|window, driver| {
                window.get(driver, &access(window, Way::Read), 0..8, &mut [0; 8]).unwrap();
            }),
        ),
        (
            "request",
            pace(|window, driver| {
                window.start_get(driver, &access(window, Way::Read), 0..8).unwrap();
            }),
        ),
    ];
    for (call, pace) in paces {
        assert!((3..10).contains(&pace), "{call}: {pace} times");
    }
}

/// An answer that is not due is refused, also while more is asked.
#[test]
fn answers_that_are_not_due() {
    let net = Net::new(2, &Config::default());
    let mut core = net.oscs[0].core();
    let is_nonsense = |done| matches!(done, Done::Nonsense(_));
    let token = core.ask(1, 0, 8);
    let head = Head { token, ..Head::new(Kind::Answer, 0, 0) };
    assert!(is_nonsense(core.answer(Rank(1), &head, &[])));
    core.expect(token, 1, true);
    assert!(!is_nonsense(core.answer(Rank(1), &Head { op: MORE, ..head }, &[1; 4])));
    assert!(!is_nonsense(core.answer(Rank(1), &Head { start: 4, ..head }, &[2; 4])));
    assert!(is_nonsense(core.answer(Rank(1), &head, &[])));
    core.expect(token, 1, false);
    assert!(core.answered(token).is_none(), "one is missing");
    assert!(!is_nonsense(core.answer(Rank(1), &head, &[3; 2])));
    assert_eq!(core.answered(token).unwrap().unwrap().data, [3, 3, 1, 1, 2, 2, 2, 2]);
}
