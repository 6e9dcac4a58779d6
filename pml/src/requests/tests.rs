//! Names and places of requests.

use super::*;
use std::task::Waker;

/// What requests do here.
#[derive(Debug, PartialEq, Eq)]
enum Op {
    Posted { context: u32, peer: u32, engine: u8, place: u32 },
    Other,
}

impl From<PostedRecv> for Op {
    fn from(posted: PostedRecv) -> Op {
        let PostedRecv { context, peer, engine, place, .. } = posted;
        Op::Posted { context, peer, engine, place }
    }
}

fn status(bytes: u64) -> Status {
    Status { source: 0, tag: 0, bytes, protocol: Protocol::Eager }
}

#[test]
fn a_name_is_void_once_its_result_was_collected() {
    let mut requests = Requests::<Op>::default();
    let first = requests.insert_done(status(1));
    assert_eq!(requests.collect(first), Ok(Some(status(1))));
    assert_eq!(requests.collect(first), Err(PmlError::NoSuchRequest.into()));
    let second = requests.insert_done(status(2));
    assert_eq!(second.index(), first.index());
    assert_eq!(requests.is_done(first), Err(PmlError::NoSuchRequest));
    assert_eq!(requests.collect(second), Ok(Some(status(2))));
}

#[test]
fn a_released_request_leaves_no_entry_behind() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert(Op::Other);
    requests.finish(id, Err(PmlError::Cancelled));
    requests.release(id).unwrap();
    assert_eq!(requests.release(id), Err(PmlError::NoSuchRequest));
    assert_eq!(requests.free.len(), 1);
}

fn recv(tag: i32) -> InlineRecv {
    InlineRecv { engine: 3, rank: 1, peer: 2, tag, context: 4, digest: (5, 6) }
}

#[test]
fn a_inline_receive_ends_only_with_what_it_expects() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert_inline_recv(&recv(7), |_| {}, |index| index + 40);
    assert_eq!(requests.collect(id), Ok(None));
    assert_eq!(requests.collect_quietly(id), Settled::NotYet);
    assert!(!requests.finish_inline_recv(id.index(), (5, 7), |_| panic!("another digest")));
    assert!(!requests.finish_inline_recv(id.index(), (5, 6), |_| false));
    assert!(requests.any_under_way() && requests.submitted(id).is_none());
    assert!(requests.finish_inline_recv(id.index(), (5, 6), |_| true));
    assert!(!requests.finish_inline_recv(id.index(), (5, 6), |_| panic!("it has ended")));
    let expected = Status { source: 1, tag: 7, bytes: 0, protocol: Protocol::Eager };
    assert!(!requests.any_under_way());
    assert_eq!(requests.collect(id), Ok(Some(expected)));
    assert_eq!(requests.collect_quietly(id), Settled::Asks);
    assert_eq!(requests.collect(id), Err(PmlError::NoSuchRequest.into()));
}

#[test]
fn a_inline_receive_is_written_out_for_whoever_wants_more_of_it() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert_inline_recv(&recv(7), |_| {}, |index| index + 40);
    assert!(requests.operation(id).is_none(), "it is inline");
    requests.write_out(id);
    let posted = Op::Posted { context: 4, peer: 2, engine: 3, place: 40 };
    assert_eq!(requests.operation(id), Some(&posted));
    assert!(!requests.finish_inline_recv(id.index(), (5, 6), |_| panic!("it is inline no more")));
    let other = requests.insert_inline_recv(&recv(8), |_| {}, |_| 0);
    assert_eq!(requests.under_way().count(), 2);
    requests.finish(other, Err(PmlError::Cancelled));
    assert_eq!(requests.collect_quietly(other), Settled::Asks);
    assert_eq!(requests.collect(other), Err(PmlError::Cancelled.into()));
}

#[test]
fn whoever_watches_a_inline_request_is_told_and_a_released_one_goes() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert_inline_recv(&recv(7), |_| {}, |_| 0);
    let mut waker = Some(Waker::noop().clone());
    assert_eq!((requests.notify(id, &mut waker), waker.is_none()), (Ok(true), true));
    assert!(requests.finish_inline_recv(id.index(), (5, 6), |_| true) && requests.has_woken());
    assert_eq!(requests.take_woken(false).len(), 1);
    assert_eq!(requests.collect_quietly(id), Settled::Asks, "it was watched");
    assert_eq!(requests.collect(id).unwrap().unwrap().tag, 7);
    let gone = requests.insert_inline_recv(&recv(9), |_| {}, |_| 0);
    requests.release(gone).unwrap();
    assert_eq!(requests.is_done(gone), Err(PmlError::NoSuchRequest));
    assert!(requests.finish_inline_recv(gone.index(), (5, 6), |_| true));
    assert_eq!(requests.free.len(), 1);
    let next = requests.insert_submitted(&Submitted { status: status(1), peer: 5, sequence: 6 });
    assert_eq!((next.index(), requests.submitted(next).unwrap().sequence), (gone.index(), 6));
    assert_eq!(requests.collect_quietly(next), Settled::Well);
}

#[test]
fn the_name_that_a_peer_answers_by_is_never_given_again() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert(Op::Other);
    let first = requests.name(id);
    assert_eq!(requests.named(first), Some(id));
    requests.unname(first);
    assert_eq!(requests.named(first), None);
    assert_ne!(requests.name(id), first);
}

#[test]
fn a_request_that_was_completed_at_submit_can_go_on() {
    let mut requests = Requests::<Op>::default();
    let id = requests.insert_submitted(&Submitted { status: status(1), peer: 5, sequence: 6 });
    assert_eq!(requests.is_done(id), Ok(true));
    requests.resume(id, Op::Other);
    assert_eq!((requests.is_done(id), requests.operation(id)), (Ok(false), Some(&Op::Other)));
    requests.finish_uncounted(id, Err(PmlError::Cancelled));
    assert_eq!(requests.failure(id).map(|it| &it.error), Some(&PmlError::Cancelled));
    let work = requests.insert_general();
    assert!(requests.is_general(work) && !requests.is_general(id));
    assert!(!requests.any_under_way() && requests.under_way().next().is_none());
}
