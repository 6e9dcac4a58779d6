//! What is told of work, and how much of it there can be: ends of sends, lists of work, links that the device has no room for.

use super::{End, Patience, config, expect_health, joined, open};
use crate::IbConfig;
use crate::ib::FEW_RECEIVES;
use crate::link::receives;
use crate::verbs::pair::{COUNTS, Counts, REFUSES, REFUSES_LISTS, SINGLY};
use gapless_btl::{Access, AmTag, Btl, Extent, LinkError, Rdma, ReserveError, Token};
use gapless_mem::{Device, HostDevice};
use std::time::Instant;

/// Messages of the tests.
const MESSAGES: usize = 64;

fn since(before: Counts) -> Counts {
    let now = COUNTS.with_borrow(|counts| *counts);
    Counts {
        told: now.told - before.told,
        receives_told: now.receives_told - before.receives_told,
        work: now.work - before.work,
        signalled: now.signalled - before.signalled,
    }
}

fn now() -> Counts {
    COUNTS.with_borrow(|counts| *counts)
}

/// Sends messages whose ends nobody asks for, until the other end has them all.
fn stream([a, b]: &mut [End; 2], messages: usize) {
    let patience = Patience::new();
    let (mut sent, due) = (0, b.heard.len() + messages);
    while b.heard.len() < due {
        while sent < messages
            && let Ok(mut slot) = a.ib.reserve(a.peer, 200)
        {
            slot.write(0, &[sent.to_le_bytes()[0]; 200]).unwrap();
            a.ib.send(slot, AmTag(3), Token::NONE);
            sent += 1;
        }
        a.poll();
        b.poll();
        patience.tick("messages");
    }
}

/// The end of every fourth message is told, as there are 16 buffers, and buffers for arrivals are given back as lists.
/// Nothing waits for ends that are not told: as many messages follow.
#[test]
fn the_ends_of_few_messages_are_told() {
    let mut ends = joined(config(0), config(1));
    for round in 0..3u8 {
        let before = now();
        stream(&mut ends, MESSAGES);
        let counts = since(before);
        println!("round {round}: {MESSAGES} messages: {counts:?}");
        // Grants are told of, all of them.
        let others = counts.work - u32::try_from(MESSAGES).unwrap();
        let messages_told = counts.signalled - others;
        assert!((16..=24).contains(&messages_told), "{counts:?}");
        assert_eq!(counts.told, counts.work, "messages leave when they are sent");
        assert!(counts.receives_told <= counts.work / 2, "{counts:?}");
    }
    let patience = Patience::new();
    let posted = |end: &mut End| end.ib.links[end.peer.0 as usize].up().unwrap().posted.len();
    while ends.iter_mut().map(posted).sum::<usize>() > 2 * 4 {
        ends.iter_mut().for_each(End::poll);
        patience.tick("ends of messages");
    }
    expect_health(&mut ends);
}

/// A receiver that takes nothing is sent a window of messages and no more; when it has taken them, the rest follows.
#[test]
fn senders_stop_where_the_receiver_has_no_room() {
    let mut ends = joined(config(0), config(1));
    let [a, b] = &mut ends;
    let (mut sent, patience) = (0, Patience::new());
    while let Ok(slot) = a.ib.reserve(a.peer, 8) {
        a.ib.send(slot, AmTag(3), Token::NONE);
        sent += 1;
    }
    assert_eq!(sent, 16, "as many as the receiver has buffers for a peer");
    for _ in 0..200 {
        a.poll();
        assert!(matches!(a.ib.reserve(a.peer, 8), Err(ReserveError::Full)));
    }
    while a.ib.reserve(a.peer, 8).is_err() {
        a.poll();
        b.poll();
        patience.tick("a grant");
    }
    assert_eq!(b.heard.len(), sent);
    assert_eq!((&a.lost, &b.lost), (&None, &None));
    expect_health(&mut ends);
}

/// Parts of an operation are posted as lists: the adapter is told once of as many as there is room for.
#[test]
fn parts_of_operations_are_told_as_lists() {
    const LEN: u64 = 1 << 20;
    let staged = IbConfig { register_from_bytes: u64::MAX, ..config(0) };
    let mut ends = joined(staged, config(1));
    let [far, own] = [0, 1].map(|_| HostDevice::new().allocate(LEN).unwrap());
    // SAFETY: the memory is never freed, and no reference covers it.
    let key = unsafe { ends[1].ib.register(far, Access::Write) }.unwrap();
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..6 {
        let singly = round % 2 == 0;
        SINGLY.set(singly);
        let (before, begun) = (now(), Instant::now());
        let [a, b] = &mut ends;
        let remote = [Extent { offset: 0, len: LEN }];
        // SAFETY: the memory is never freed, and nothing else touches it until the end.
        unsafe { a.ib.put(a.peer, &[own], &key, &remote, Token(5)) }.unwrap();
        let (done, patience) = (a.completed.len() + 1, Patience::new());
        while a.completed.len() < done {
            a.poll();
            b.poll();
            patience.tick("the end of an operation");
        }
        took[usize::from(singly)].push(begun.elapsed());
        let counts = since(before);
        println!("singly {singly}: {:?}, {counts:?}", took[usize::from(singly)].last().unwrap());
        // In parts of a staging buffer each; now and then there is a grant or a pulse.
        assert!(counts.work >= 64, "{counts:?}");
        if singly {
            assert_eq!(counts.told, counts.work);
        } else {
            assert!(counts.told <= counts.work - 15, "the first sixteen at once: {counts:?}");
        }
        assert_eq!(a.completed.last(), Some(&Ok(())));
    }
    SINGLY.set(false);
    println!("as lists {:?}, singly {:?}", took[0], took[1]);
    expect_health(&mut ends);
}

/// The device refuses a list of parts: its operation fails with that error, once, the link ends, buffers come back, and the
/// process has operations with others.
#[test]
fn a_list_of_parts_that_is_refused_ends_the_link() {
    const LEN: u64 = 1 << 20;
    let staged = IbConfig { register_from_bytes: u64::MAX, ..config(0) };
    let mut ends = joined(staged, config(1));
    let [far, own] = [0, 1].map(|_| HostDevice::new().allocate(LEN).unwrap());
    // SAFETY: the memory is never freed, and no reference covers it.
    let key = unsafe { ends[1].ib.register(far, Access::Write) }.unwrap();
    let remote = [Extent { offset: 0, len: LEN }];
    let [a, b] = &mut ends;
    let free = a.ib.one_sided.free.len();
    REFUSES_LISTS.set(true);
    // SAFETY: the memory is never freed, and nothing else touches it.
    let begun = unsafe { a.ib.put(a.peer, &[own], &key, &remote, Token(5)) };
    REFUSES_LISTS.set(false);
    assert_eq!(begun, Ok(()), "its end tells");
    assert!(a.ib.one_sided.free.len() < free, "parts were listed");
    let patience = Patience::new();
    while a.lost.is_none() || b.lost.is_none() {
        // After its loss an end has nothing more to tell of this peer.
        a.poll();
        b.poll();
        patience.tick("the loss at both ends");
    }
    let refused =
        |error: &LinkError| matches!(error, LinkError::System { operation: "ibv_wr_complete", .. });
    assert!(a.lost.as_ref().is_some_and(refused), "{:?}", a.lost);
    assert!(matches!(&a.completed[..], [Err(error)] if refused(error)), "{:?}", a.completed);
    assert_eq!(a.ib.one_sided.free.len(), free, "buffers come back");
    // Another process is reached as before.
    let third = IbConfig { rank: 3, ..config(1) };
    let mut third = open(third);
    let (to_third, to_a) =
        (a.ib.connect(&third.address()).unwrap(), third.introduce(&a.ib.address()).unwrap());
    let [a, _] = ends;
    let mut ends = [End::new(a.ib, to_third), End::new(third, to_a)];
    let patience = Patience::new();
    while !ends.iter_mut().all(|end| end.ib.reserve(end.peer, 0).is_ok()) {
        ends.iter_mut().for_each(End::poll);
        patience.tick("the link");
    }
    let [a, c] = &mut ends;
    // SAFETY: the memory is never freed, and no reference covers it.
    let key = unsafe { c.ib.register(far, Access::Write) }.unwrap();
    // SAFETY: the memory is never freed, and nothing else touches it until the end.
    unsafe { a.ib.put(a.peer, &[own], &key, &remote, Token(6)) }.unwrap();
    let patience = Patience::new();
    while a.completed.is_empty() {
        a.poll();
        c.poll();
        patience.tick("the end of an operation");
    }
    assert_eq!(a.completed, [Ok(())]);
    expect_health(&mut ends);
}

/// The device has no queue pair left: calls end with its error, at either end, and links that stand go on.
#[test]
fn a_device_without_queue_pairs_says_so() {
    let mut ends = joined(config(0), config(1));
    let [mut caller, mut callee] = [config(2), config(3)].map(|mut config| {
        config.device = Some(super::device(config.rank % 2));
        open(config)
    });
    REFUSES.set(true);
    let error = caller.connect(&callee.address()).unwrap_err();
    let named = matches!(&error, LinkError::System { operation: "ibv_create_qp_ex", .. });
    assert!(named, "{error:?}");
    REFUSES.set(false);
    // Now it is the callee that has none.
    let to_callee = ends[0].ib.connect(&callee.address()).unwrap();
    let to_caller = callee.introduce(&ends[0].ib.address()).unwrap();
    let mut callee = End::new(callee, to_caller);
    let patience = Patience::new();
    let mut refused = None;
    while refused.is_none() {
        ends[1].poll();
        ends[0].poll();
        REFUSES.set(true);
        callee.poll();
        REFUSES.set(false);
        // (`End::poll` keeps losses of any peer.)
        refused = ends[0].lost.take();
        patience.tick("the refusal");
    }
    println!("{refused:?}; the callee: {:?}", callee.lost);
    assert!(ends[0].ib.reserve(to_callee, 8).is_err());
    expect_health(&mut ends);
}

/// More links than the queue of buffers serves: the next one is refused at either end, the others go on, and one that ends
/// makes room for another.
#[test]
fn links_are_as_many_as_there_are_buffers_for() {
    let usual = FEW_RECEIVES.replace(2 * receives(config(0).buffers));
    let few = open(config(0));
    FEW_RECEIVES.set(usual);
    let others = [1, 3, 5, 7].map(|rank| {
        let mut config = config(1);
        config.rank = rank;
        open(config)
    });
    let mut few = End::new(few, gapless_btl::PeerId(0));
    let mut others: Vec<End> = others
        .into_iter()
        .map(|mut other| {
            let to_few = other.introduce(&few.ib.address()).unwrap();
            End::new(other, to_few)
        })
        .collect();
    let patience = Patience::new();
    let join = |few: &mut End, other: &mut End| -> Result<(), LinkError> {
        few.peer = few.ib.connect(&other.ib.address())?;
        loop {
            few.poll();
            other.poll();
            if let Some(error) = few.lost.take() {
                return Err(error);
            }
            if few.ib.reserve(few.peer, 0).is_ok() && other.ib.reserve(other.peer, 0).is_ok() {
                return Ok(());
            }
            patience.tick("a link");
        }
    };
    join(&mut few, &mut others[0]).unwrap();
    let first = few.peer;
    join(&mut few, &mut others[1]).unwrap();
    let error = join(&mut few, &mut others[2]).unwrap_err();
    let LinkError::System { operation, reason } = &error else { panic!("{error:?}") };
    assert!(operation.contains("receive buffers") && reason.contains("2 links"), "{error}");
    let patience = Patience::new();
    while others[2].lost.is_none() {
        few.poll();
        others[2].poll();
        patience.tick("the refusal");
    }
    println!("the refused one: {:?}", others[2].lost);
    few.lost = None;
    // One ends, and another has its place.
    drop(others.remove(1));
    let patience = Patience::new();
    while few.lost.is_none() || few.ib.pairs > 1 {
        few.poll();
        others[0].poll();
        patience.tick("the end of a link");
    }
    few.lost = None;
    join(&mut few, &mut others[2]).unwrap();
    few.peer = first;
    let mut both = [few, others.remove(0)];
    expect_health(&mut both);
}
