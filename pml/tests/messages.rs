//! Whole messages between endpoints: order, wildcards, truncation, mismatch, probe, cancel, self.

use crate::common::{Buffer, Job, bytes, link, strided};
use gapless_btl::loopback;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_pml::{Config, PmlError, Protocol, Source, TagSel};

const PROTOCOLS: [Protocol; 4] =
    [Protocol::Eager, Protocol::Pipeline, Protocol::Mapped, Protocol::SingleCopy];
const ANY: (Source, TagSel) = (Source::Any, TagSel::Any);

fn forced(force: Protocol) -> Config {
    Config { force: Some(force), ..Config::default() }
}

fn of(primitive: Primitive, count: u64) -> Layout {
    Datatype::contiguous(count, &primitive.into()).unwrap().commit().unwrap()
}

#[test]
fn a_message_arrives_whichever_side_is_first() {
    for size in [0u64, 1, 8, 1000, 8000, 9000, 100_000, 1_000_000] {
        for protocol in PROTOCOLS {
            let mut job = Job::with(2, forced(protocol), link());
            let layout = bytes(size);
            for early in [true, false] {
                let home = job.mappable(0, &layout, 1);
                let from = Buffer::source_in(&layout, 1, size, home);
                let to = Buffer::target(&layout, 1);
                let (send, recv);
                if early {
                    recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(5));
                    send = job.isend(0, &from, 1, 5);
                } else {
                    send = job.isend(0, &from, 1, 5);
                    job.settle();
                    recv = job.irecv(1, &to, Source::Rank(0), TagSel::Is(5));
                }
                let status = job.finish(1, recv).unwrap();
                assert_eq!((status.source, status.tag, status.bytes), (0, 5, size));
                let sent = job.finish(0, send).unwrap();
                assert_eq!((sent.source, sent.bytes), (1, size));
                assert_eq!(sent.protocol, status.protocol);
                if size > 8192 && protocol != Protocol::Eager
                    || size > 0 && protocol == Protocol::Pipeline
                {
                    assert_eq!(status.protocol, protocol);
                }
                to.assert_received(&from.packed(), &format!("{size} bytes, {protocol}, {early}"));
            }
        }
    }
}

#[test]
fn both_send_64_mib_before_either_waits() {
    for (rdma, mapped) in [(false, false), (true, true)] {
        let link = loopback::Config { rdma, mapped, ..link() };
        let mut job = Job::with(2, Config::default(), link);
        let layout = bytes(64 << 20);
        let from = [Buffer::source(&layout, 1, 1), Buffer::source(&layout, 1, 2)];
        let to = [Buffer::target(&layout, 1), Buffer::target(&layout, 1)];
        let sends = [job.isend(0, &from[0], 1, 0), job.isend(1, &from[1], 0, 0)];
        let recvs = [job.irecv(0, &to[0], ANY.0, ANY.1), job.irecv(1, &to[1], ANY.0, ANY.1)];
        for rank in [0, 1] {
            job.finish(rank, sends[rank as usize]).unwrap();
            job.finish(rank, recvs[rank as usize]).unwrap();
        }
        to[0].assert_received(&from[1].packed(), "at 0");
        to[1].assert_received(&from[0].packed(), "at 1");
    }
}

#[test]
fn messages_do_not_overtake_each_other_whatever_their_protocol() {
    // Sizes alternate between eager and rendezvous; slots are few.
    let link = loopback::Config { slots: 2, ..link() };
    let mut job = Job::with(2, Config::default(), link);
    let sizes = [10u64, 50_000, 3, 0, 20_000, 8000, 8, 100_000];
    let sources: Vec<Buffer> = (0u64..)
        .zip(sizes.into_iter().cycle().take(40))
        .map(|(seed, size)| Buffer::source(&bytes(size), 1, seed))
        .collect();
    let sends: Vec<_> = sources.iter().map(|from| job.isend(0, from, 1, 9)).collect();
    for (i, from) in sources.iter().enumerate() {
        let to = Buffer::target(&bytes(100_000), 1);
        let (source, tag) = if i % 3 == 0 { ANY } else { (Source::Rank(0), TagSel::Is(9)) };
        let recv = job.irecv(1, &to, source, tag);
        let status = job.finish(1, recv).unwrap();
        assert_eq!(status.bytes, sizes[i % 8], "message {i}");
        to.assert_received(&from.packed(), &format!("message {i}"));
    }
    for send in sends {
        job.finish(0, send).unwrap();
    }
}

#[test]
fn wildcards_take_what_came_first_and_say_what_it_was() {
    let mut job = Job::new(3);
    let one = bytes(1);
    let from: Vec<Buffer> = (0..4).map(|seed| Buffer::source(&one, 1, seed)).collect();
    for (rank, tag, buffer) in [(1, 7, 0), (2, 8, 1), (1, 8, 2), (2, 7, 3)] {
        let send = job.isend(rank, &from[buffer], 0, tag);
        job.settle();
        job.finish(rank, send).unwrap();
    }
    let to = Buffer::target(&one, 1);
    let wanted = [
        (Source::Any, TagSel::Is(8), (2, 8)),
        (Source::Rank(1), TagSel::Any, (1, 7)),
        (Source::Any, TagSel::Any, (1, 8)),
        (Source::Any, TagSel::Any, (2, 7)),
    ];
    for (source, tag, expected) in wanted {
        let recv = job.irecv(0, &to, source, tag);
        let status = job.finish(0, recv).unwrap();
        assert_eq!((status.source, status.tag), expected);
    }
}

#[test]
fn a_receive_that_is_too_small_is_filled_and_says_so() {
    for (sent, room) in [(1000u64, 10u64), (1000, 0), (500_000, 77_777), (500_000, 0), (9, 8)] {
        for protocol in PROTOCOLS {
            let mut job = Job::with(2, forced(protocol), link());
            let home = job.mappable(0, &strided(sent, 1, 2), 1);
            let from = Buffer::source_in(&strided(sent, 1, 2), 1, sent, home);
            let to = Buffer::target(&strided(room, 1, 3), 1);
            let send = job.isend(0, &from, 1, 5);
            let recv = job.irecv(1, &to, ANY.0, ANY.1);
            let failure = job.outcome(1, recv).unwrap_err();
            assert_eq!(failure.error, PmlError::Truncated { sent, room }, "{protocol}");
            let told = failure.status().map(|status| (status.source, status.tag, status.bytes));
            assert_eq!(told, Some((0, 5, room)), "{protocol}");
            job.finish(0, send).unwrap();
            let fits = usize::try_from(room).unwrap();
            to.assert_received(&from.packed()[..fits], &format!("{room} of {sent}, {protocol}"));
        }
    }
}

#[test]
fn types_that_do_not_fit_are_refused_and_nothing_is_touched() {
    for (count, protocol) in
        [(3, Protocol::Eager), (100_000, Protocol::Pipeline), (100_000, Protocol::Mapped)]
    {
        let mut job = Job::with(2, forced(protocol), link());
        let home = job.mappable(0, &of(Primitive::Double, count), 1);
        let from = Buffer::source_in(&of(Primitive::Double, count), 1, 4, home);
        let to = Buffer::target(&of(Primitive::Int, 2 * count), 1);
        let (send, recv) = (job.isend(0, &from, 1, 6), job.irecv(1, &to, ANY.0, ANY.1));
        let failure = job.outcome(1, recv).unwrap_err();
        assert!(matches!(failure.error, PmlError::SignatureMismatch { .. }), "{failure}");
        let told = failure.status().map(|status| (status.source, status.tag, status.bytes));
        assert_eq!(told, Some((0, 6, 0)), "{protocol}");
        job.finish(0, send).unwrap();
        to.assert_received(&[], "a refused message");
        // A shorter message of the right types, and bytes, are welcome.
        for layout in [of(Primitive::Int, count), of(Primitive::Byte, 8 * count)] {
            let home = job.mappable(0, &layout, 1);
            let from = Buffer::source_in(&layout, 1, 5, home);
            let to = Buffer::target(&of(Primitive::Int, 2 * count), 1);
            let (send, recv) = (job.isend(0, &from, 1, 6), job.irecv(1, &to, ANY.0, ANY.1));
            job.finish(1, recv).unwrap();
            job.finish(0, send).unwrap();
            to.assert_received(&from.packed(), "the right types");
        }
    }
}

#[test]
fn a_process_sends_to_itself() {
    for size in [0u64, 5, 8000, 3_000_000] {
        for force in [None, Some(Protocol::Pipeline), Some(Protocol::Local)] {
            let mut job = Job::with(1, Config { force, ..Config::default() }, link());
            let from = Buffer::source(&strided(size, 1, 2), 1, size);
            let to = Buffer::target(&strided(size, 1, 3), 1);
            let (send, recv) = (job.isend(0, &from, 0, 1), job.irecv(0, &to, ANY.0, ANY.1));
            let status = job.finish(0, recv).unwrap();
            let sent = job.finish(0, send).unwrap();
            to.assert_received(&from.packed(), &format!("{size} bytes, {force:?}"));
            let copies = if size > 8000 && force.is_none() { Some(Protocol::Local) } else { force };
            if let Some(protocol) = copies.filter(|_| size > 0) {
                assert_eq!((status.protocol, sent.protocol), (protocol, protocol));
            }
        }
    }
}

#[test]
fn a_probe_sees_the_message_that_a_receive_then_takes() {
    let mut job = Job::new(2);
    let world = job.pml(0).world();
    let seen = job.pml(0).iprobe(&world, ANY.0, ANY.1).unwrap();
    assert_eq!(seen, None);
    let (small, large) = (Buffer::source(&bytes(3), 1, 0), Buffer::source(&bytes(99_999), 1, 1));
    let sends = [job.isend(1, &small, 0, 4), job.isend(1, &large, 0, 5)];
    job.settle();
    for (tag, bytes_seen) in [(5, 99_999), (4, 3)] {
        let status = job.pml(0).probe(&world, Source::Rank(1), TagSel::Is(tag)).unwrap();
        assert_eq!((status.source, status.tag, status.bytes), (1, tag, bytes_seen));
    }
    let status = job.pml(0).iprobe(&world, ANY.0, ANY.1).unwrap().unwrap();
    assert_eq!(status.tag, 4);
    for (send, tag) in sends.into_iter().zip([4, 5]) {
        let to = Buffer::target(&bytes(99_999), 1);
        let recv = job.irecv(0, &to, ANY.0, ANY.1);
        assert_eq!(job.finish(0, recv).unwrap().tag, tag);
        job.finish(1, send).unwrap();
    }
}

#[test]
fn only_an_unmatched_receive_can_be_cancelled() {
    let mut job = Job::new(2);
    let to = [Buffer::target(&bytes(8), 1), Buffer::target(&bytes(8), 1)];
    let recvs = [0, 1].map(|i| job.irecv(1, &to[i], Source::Rank(0), TagSel::Is(2)));
    assert_eq!(job.pml(1).cancel_recv(recvs[0]), Ok(true));
    assert_eq!(job.finish(1, recvs[0]), Err(PmlError::Cancelled));
    let from = Buffer::source(&bytes(8), 1, 3);
    let send = job.isend(0, &from, 1, 2);
    job.settle();
    assert_eq!(job.pml(1).cancel_recv(recvs[1]), Ok(false));
    job.finish(1, recvs[1]).unwrap();
    job.finish(0, send).unwrap();
    to[0].assert_received(&[], "a cancelled receive");
    to[1].assert_received(&from.packed(), "the other");
    assert_eq!(job.pml(1).cancel_recv(recvs[1]), Err(PmlError::NoSuchRequest));
}

#[test]
fn several_requests_are_waited_for() {
    let mut job = Job::new(1);
    let from = Buffer::source(&bytes(4), 1, 0);
    let to: Vec<Buffer> = (0..4).map(|_| Buffer::target(&bytes(4), 1)).collect();
    let recvs: Vec<_> =
        (0i32..).zip(&to).map(|(tag, to)| job.irecv(0, to, ANY.0, TagSel::Is(tag))).collect();
    assert!(job.pml(0).test_any(&recvs).is_none());
    assert!(job.pml(0).test_some(&recvs).is_empty());
    let send = |job: &mut Job, tag| {
        let id = job.isend(0, &from, 0, tag);
        job.pml(0).wait(id).unwrap();
    };
    send(&mut job, 2);
    let (place, outcome) = job.pml(0).wait_any(&recvs).unwrap();
    assert_eq!((place, outcome.unwrap().tag), (2, 2));
    send(&mut job, 0);
    send(&mut job, 3);
    let left = [recvs[0], recvs[1], recvs[3]];
    let some = job.pml(0).wait_some(&left[..2]).unwrap();
    assert_eq!(some.len(), 1);
    assert!(job.pml(0).test_all(&left[1..]).is_none());
    send(&mut job, 1);
    let all = job.pml(0).wait_all(&left[1..]);
    assert_eq!(all.into_iter().map(|outcome| outcome.unwrap().tag).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(job.pml(0).wait_any(&[]), Err(PmlError::NothingToWaitFor));
    assert_eq!(job.pml(0).wait(recvs[0]), Err(PmlError::NoSuchRequest.into()));
}

#[test]
fn wrong_arguments_start_nothing() {
    let mut job = Job::new(2);
    let other = Job::new(2).pml(0).world();
    let world = job.pml(0).world();
    let buffer = Buffer::target(&bytes(1), 1);
    let typed = buffer.typed();
    let mut send = |comm, dest, tag| {
        // SAFETY: refused before anything is touched.
        unsafe { job.pml(0).isend(comm, &typed, dest, tag) }.unwrap_err()
    };
    let what = "the destination of a send";
    assert_eq!(send(&world, 2, 0), PmlError::InvalidRank { what, rank: 2, size: 2 });
    assert_eq!(send(&world, 1, -1), PmlError::InvalidTag { tag: -1 });
    assert_eq!(send(&other, 1, 0), PmlError::NoSuchComm);
    let mut recv = |source, tag| {
        // SAFETY: as above.
        unsafe { job.pml(0).irecv(&world, &typed, source, tag) }.unwrap_err()
    };
    let rank = recv(Source::Rank(9), TagSel::Any);
    let what = "the source of a receive or probe";
    assert_eq!(rank, PmlError::InvalidRank { what, rank: 9, size: 2 });
    assert_eq!(recv(Source::Any, TagSel::Is(-7)), PmlError::InvalidTag { tag: -7 });
}

#[test]
fn a_released_send_still_arrives() {
    let mut job = Job::new(2);
    for size in [8u64, 300_000] {
        let (from, to) = (Buffer::source(&bytes(size), 1, 1), Buffer::target(&bytes(size), 1));
        let send = job.isend(0, &from, 1, 0);
        job.pml(0).release(send).unwrap();
        assert_eq!(job.pml(0).test(send), Err(PmlError::NoSuchRequest.into()));
        let recv = job.irecv(1, &to, ANY.0, ANY.1);
        job.finish(1, recv).unwrap();
        to.assert_received(&from.packed(), "a released send");
        job.settle();
    }
}

#[test]
fn ten_thousand_messages_wait_on_either_side() {
    let mut job = Job::new(2);
    let one = bytes(8);
    let from = Buffer::source(&one, 1, 1);
    let to: Vec<Buffer> = (0..10_000).map(|_| Buffer::target(&one, 1)).collect();
    // Receives first, matched in reverse; then messages first.
    let recvs: Vec<_> = (0i32..)
        .zip(&to)
        .map(|(tag, to)| job.irecv(1, to, Source::Rank(0), TagSel::Is(tag)))
        .collect();
    for tag in (0..10_000).rev() {
        let send = job.isend(0, &from, 1, tag);
        job.finish(0, send).unwrap();
    }
    for recv in recvs {
        job.finish(1, recv).unwrap();
    }
    for tag in 0..10_000 {
        let send = job.isend(0, &from, 1, tag);
        job.finish(0, send).unwrap();
    }
    job.settle();
    for (tag, to) in (0..10_000).zip(&to).rev() {
        let recv = job.irecv(1, to, ANY.0, TagSel::Is(tag));
        assert_eq!(job.finish(1, recv).unwrap().tag, tag);
    }
}
