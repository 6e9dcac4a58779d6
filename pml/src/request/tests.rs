//! Names and places of requests.

use super::*;

fn status(bytes: u64) -> Status {
    Status { source: 0, tag: 0, bytes, protocol: Protocol::Eager }
}

#[test]
fn a_name_is_void_once_its_result_was_collected() {
    let mut requests = Requests::default();
    let first = requests.insert(Work::Done(Ok(status(1))));
    assert_eq!(requests.collect(first), Ok(Some(status(1))));
    assert_eq!(requests.collect(first), Err(PmlError::NoSuchRequest.into()));
    let second = requests.insert(Work::Done(Ok(status(2))));
    assert_eq!(second.index(), first.index());
    assert_eq!(requests.is_done(first), Err(PmlError::NoSuchRequest));
    assert_eq!(requests.collect(second), Ok(Some(status(2))));
}

#[test]
fn a_released_request_leaves_no_entry_behind() {
    let mut requests = Requests::default();
    let id = requests.insert(Work::Done(Err(Box::new(PmlError::Cancelled.into()))));
    requests.release(id).unwrap();
    assert_eq!(requests.release(id), Err(PmlError::NoSuchRequest));
    assert_eq!(requests.free.len(), 1);
}

fn brief(tag: i32) -> Brief {
    Brief { engine: 3, rank: 1, peer: 2, tag, context: 4, digest: (5, 6) }
}

#[test]
fn a_light_receive_ends_only_with_what_it_expects() {
    let mut requests = Requests::default();
    let id = requests.insert_brief(&brief(7), |_| {}, |index| index + 40);
    assert_eq!(requests.collect(id), Ok(None));
    assert_eq!(requests.collect_quietly(id), Settled::NotYet);
    assert!(!requests.finish_brief(id.index(), (5, 7), |_| panic!("another digest")));
    assert!(!requests.finish_brief(id.index(), (5, 6), |_| false));
    assert!(requests.any_under_way() && requests.left(id).is_none());
    assert!(requests.finish_brief(id.index(), (5, 6), |_| true));
    assert!(!requests.finish_brief(id.index(), (5, 6), |_| panic!("it has ended")));
    let expected = Status { source: 1, tag: 7, bytes: 0, protocol: Protocol::Eager };
    assert!(!requests.any_under_way());
    assert_eq!(requests.collect(id), Ok(Some(expected)));
    assert_eq!(requests.collect_quietly(id), Settled::Asks);
    assert_eq!(requests.collect(id), Err(PmlError::NoSuchRequest.into()));
}

#[test]
fn a_light_receive_is_written_out_for_whoever_wants_more_of_it() {
    let mut requests = Requests::default();
    let id = requests.insert_brief(&brief(7), |_| {}, |index| index + 40);
    let recv = requests.recv_mut(id).unwrap();
    assert_eq!((recv.context, recv.source, recv.buffer.engine()), (4, Some(2), 3));
    assert!(matches!(recv.stage, RecvStage::Posted(place) if place == Place::straight(40)));
    assert!(!requests.finish_brief(id.index(), (5, 6), |_| panic!("it is light no more")));
    let other = requests.insert_brief(&brief(8), |_| {}, |_| 0);
    assert_eq!(requests.under_way().count(), 2);
    requests.finish(other, Err(PmlError::Cancelled));
    assert_eq!(requests.collect_quietly(other), Settled::Asks);
    assert_eq!(requests.collect(other), Err(PmlError::Cancelled.into()));
}

#[test]
fn whoever_watches_a_light_request_is_told_and_a_released_one_goes() {
    let mut requests = Requests::default();
    let id = requests.insert_brief(&brief(7), |_| {}, |_| 0);
    let mut waker = Some(Waker::noop().clone());
    assert_eq!((requests.notify(id, &mut waker), waker.is_none()), (Ok(true), true));
    assert!(requests.finish_brief(id.index(), (5, 6), |_| true) && requests.has_woken());
    assert_eq!(requests.take_woken(false).len(), 1);
    assert_eq!(requests.collect_quietly(id), Settled::Asks, "it was watched");
    assert_eq!(requests.collect(id).unwrap().unwrap().tag, 7);
    let gone = requests.insert_brief(&brief(9), |_| {}, |_| 0);
    requests.release(gone).unwrap();
    assert_eq!(requests.is_done(gone), Err(PmlError::NoSuchRequest));
    assert!(requests.finish_brief(gone.index(), (5, 6), |_| true));
    assert_eq!(requests.free.len(), 1);
    let next = requests.insert_left(&Left { status: status(1), peer: 5, sequence: 6 });
    assert_eq!((next.index(), requests.left(next).unwrap().sequence), (gone.index(), 6));
    assert_eq!(requests.collect_quietly(next), Settled::Well);
}
