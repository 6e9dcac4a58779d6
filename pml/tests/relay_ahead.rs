//! Short messages that are begun before their receivers are asked, over rings that stand: when they are, when
//! their sends end, and what becomes of them when the receiver cannot, or will not, take them from the ring.

mod common;

use common::lab::layout;
use common::relay::{FRAGMENT, RelayLab as Lab};
use common::{Buffer, Home, link};
use gapless_btl::loopback;
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Region};
use gapless_pml::{
    Bounds, Config, PmlError, Protocol, RequestId, SendMode, Source, TagSel, Tuning,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Up to all that a ring holds.
fn ahead() -> Config {
    let tuning = Tuning { relay_ahead_bytes_max: 128 << 10, ..Tuning::default() };
    Config { relay_ahead: true, tuning, ..Config::default() }
}

/// With a ring from rank 0 to rank 1.
fn standing() -> Lab {
    with_ring(Lab::new(ahead()))
}

fn with_ring(mut lab: Lab) -> Lab {
    let (from, to) = (lab.source(64, true, 1), lab.target(64, false));
    // The first message asks for the ring, the next receive shows whose memory it is to be in.
    for _ in 0..2 {
        let way = lab.carry(0, &from, &to, "before the ring").protocol;
        assert_eq!(way, Protocol::Eager);
    }
    assert_eq!(lab.rings(), [(0, 1), (1, 0)]);
    lab
}

/// The memory is the user's again.
fn overwrite(device: &FakeDevice, buffer: &Buffer) {
    let region = buffer.region();
    let zeros = vec![0; usize::try_from(region.len()).unwrap()];
    // SAFETY: both live until the wait below, and nobody else touches them.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }.unwrap().wait().unwrap();
}

fn isend_sync(lab: &mut Lab, from: &Buffer) -> RequestId {
    let world = lab.job.pml(0).world();
    let mode = SendMode::Synchronous;
    // SAFETY: tests keep the buffer until the request has ended or the rank is dropped.
    unsafe { lab.job.pml(0).isend_mode(&world, &from.typed(), 1, 0, mode) }.unwrap()
}

#[test]
fn short_messages_of_any_layout_are_begun_ahead() {
    let mut lab = standing();
    let (mut messages, before) = (0, lab.begun());
    for size in [1, 8, 333, 4096, FRAGMENT, FRAGMENT + 1, 3 * FRAGMENT] {
        for gaps in 0..4 {
            let what = format!("{size} bytes, gaps {gaps}");
            let from = lab.source(size, gaps & 1 == 1, size);
            let to = lab.target(size, gaps & 2 == 2);
            let status = lab.carry(0, &from, &to, &what);
            assert_eq!((status.protocol, status.bytes), (Protocol::Relay, size), "{what}");
            messages += 1;
        }
    }
    let begun = lab.begun();
    assert_eq!([begun[0] - before[0], begun[1] - before[1]], [messages; 2]);
    // What does not fit goes as ever, and so does what has nothing to do with devices.
    let (from, to) = (lab.source(3 * FRAGMENT + 1, true, 3), lab.target(3 * FRAGMENT + 1, false));
    assert_ne!(lab.carry(0, &from, &to, "long").protocol, Protocol::Relay);
    let (from, to) = (Buffer::source(&layout(64, true), 1, 1), lab.target(64, false));
    assert_eq!(lab.carry(0, &from, &to, "from the host").protocol, Protocol::Eager);
    assert_eq!(lab.rings(), [(0, 1), (1, 0)]);
}

#[test]
fn nothing_is_begun_ahead_where_that_is_not_wished() {
    for (what, config) in [
        ("not", Config { relay_ahead: false, ..Config::default() }),
        ("forced", Config { force: Some(Protocol::Eager), ..Config::default() }),
    ] {
        let mut lab = Lab::new(config);
        for _ in 0..4 {
            let (from, to) = (lab.source(64, true, 1), lab.target(64, false));
            assert_eq!(lab.carry(0, &from, &to, what).protocol, Protocol::Eager, "{what}");
        }
        assert_eq!(lab.rings(), [(0, 0), (0, 0)], "{what}");
    }
}

#[test]
fn without_what_it_takes_messages_go_as_ever() {
    for (what, sabotage) in
        [("no lanes", 0), ("no lanes there", 1), ("no memory", 2), ("no keys", 3)]
    {
        let bounds = Bounds { staging_bytes: 1 << 20, ..Bounds::default() };
        let mut lab = match sabotage {
            2 => Lab::new(Config { bounds, ..ahead() }),
            3 => Lab::over(ahead(), loopback::Config { mapped: false, ..link() }),
            _ => Lab::new(ahead()),
        };
        if sabotage < 2 {
            lab.whims[sabotage].lanes.store(0, Ordering::Relaxed);
        }
        for round in 0..5 {
            let (from, to) = (lab.source(64, true, round), lab.target(64, false));
            assert_eq!(lab.carry(0, &from, &to, what).protocol, Protocol::Eager, "{what}");
        }
        assert_eq!(lab.begun(), [0, 0], "{what}");
    }
}

#[test]
fn short_sends_end_before_their_receives_are_posted() {
    // Received by the device, or by whoever cannot take it from the ring.
    for to_host in [false, true] {
        let mut lab = standing();
        let sources: Vec<Buffer> = (0..6).map(|k| lab.source(100 + 700 * k, true, k)).collect();
        let wanted: Vec<Vec<u8>> = sources.iter().map(Buffer::packed).collect();
        for (tag, from) in (0..).zip(&sources) {
            let send = lab.job.isend(0, from, 1, tag);
            let status = lab.job.finish(0, send).unwrap();
            // The ring has one at a time.
            let way = if tag == 0 { Protocol::Relay } else { Protocol::Eager };
            assert_eq!(status.protocol, way, "message {tag}");
            overwrite(&lab.device, from);
        }
        for (tag, packed) in (0..).zip(&wanted) {
            let home = if to_host { Home::Heap } else { lab.home() };
            let to = Buffer::target_in(&layout(packed.len() as u64, false), 1, home);
            let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(tag));
            let status = lab.job.finish(1, recv).unwrap();
            to.assert_received(packed, &format!("message {tag}, to the host: {to_host}"));
            let another = if to_host { Protocol::Pipeline } else { Protocol::Relay };
            let way = if tag == 0 { another } else { Protocol::Eager };
            assert_eq!(status.protocol, way, "message {tag}");
        }
        lab.assert_idle("sent before");
        // A ring that did not serve is given up; another one can be had.
        assert_eq!(lab.rings(), if to_host { [(0, 0); 2] } else { [(0, 1), (1, 0)] });
        for round in 0..4 {
            let (from, to) = (lab.source(64, true, round), lab.target(64, false));
            let way = lab.carry(0, &from, &to, "after").protocol;
            assert_eq!(way == Protocol::Relay, !to_host || round > 1, "round {round}: {way}");
        }
    }
}

#[test]
fn rings_are_not_made_for_ever() {
    let mut lab = Lab::new(ahead());
    let mut relayed = 0;
    // Whoever sends to both memories in turn has its ring given up again and again.
    for round in 0..60 {
        let home = if round % 4 == 3 { Home::Heap } else { lab.home() };
        let (from, to) =
            (lab.source(64, true, round), Buffer::target_in(&layout(64, true), 1, home));
        relayed += u32::from(lab.carry(0, &from, &to, "in turns").protocol == Protocol::Relay);
    }
    assert!((4..=8).contains(&relayed), "{relayed}");
    assert_eq!(lab.rings(), [(0, 0); 2]);
}

#[test]
fn messages_to_other_memory_are_no_failures() {
    let mut lab = Lab::new(ahead());
    let mut fetched = 0;
    for round in 0..40 {
        let home = if round % 2 == 1 { Home::Heap } else { lab.home() };
        let from = lab.source(64, true, round);
        let to = Buffer::target_in(&layout(64, true), 1, home);
        let way = lab.carry(0, &from, &to, "in turns").protocol;
        assert!(matches!(way, Protocol::Eager | Protocol::Pipeline), "round {round}: {way}");
        fetched += u32::from(way == Protocol::Pipeline);
    }
    // Rings that serve for nothing are not lent for long.
    assert_eq!((fetched, lab.rings()), (2, [(0, 0); 2]));
    // Longer messages are relayed as ever.
    for rank in 0..2 {
        lab.job.pml(rank).config_mut().force = Some(Protocol::Relay);
    }
    let (from, to) = (lab.source(400_000, true, 1), lab.target(400_000, false));
    assert_eq!(lab.carry(0, &from, &to, "long").protocol, Protocol::Relay);
}

#[test]
fn other_sends_end_when_they_are_received() {
    // Synchronous, or longer than a fragment.
    for size in [64, 2 * FRAGMENT] {
        let mut lab = standing();
        let from = lab.source(size, true, 5);
        let send = match size {
            64 => isend_sync(&mut lab, &from),
            _ => lab.job.isend(0, &from, 1, 0),
        };
        lab.job.settle();
        assert_eq!(lab.job.pml(0).test(send), Ok(None), "{size} bytes");
        let to = lab.target(size, false);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        assert_eq!(lab.job.finish(1, recv).unwrap().protocol, Protocol::Relay);
        assert_eq!(lab.job.finish(0, send).unwrap().protocol, Protocol::Relay);
        to.assert_received(&from.packed(), "late");
        lab.assert_idle("late");
    }
}

#[test]
fn both_send_first_and_receive_then() {
    let mut lab = standing();
    let (from, to) = (lab.source(64, true, 1), lab.target(64, false));
    for _ in 0..2 {
        lab.carry(1, &from, &to, "the other ring");
    }
    assert_eq!(lab.rings(), [(1, 1), (1, 1)]);
    for round in 0..20 {
        let out = [0, 1].map(|rank| lab.source(8 + 300 * round, true, 10 * round + rank));
        let into = [0, 1].map(|_| lab.target(8 + 300 * round, false));
        // As blocking sends do it.
        for rank in 0..2u32 {
            let send = lab.job.isend(rank, &out[rank as usize], 1 - rank, 0);
            assert_eq!(lab.job.finish(rank, send).unwrap().protocol, Protocol::Relay);
        }
        for rank in 0..2u32 {
            let to = &into[rank as usize];
            let recv = lab.job.irecv(rank, to, Source::Rank(1 - rank), TagSel::Is(0));
            lab.job.finish(rank, recv).unwrap();
            to.assert_received(&out[1 - rank as usize].packed(), "both");
        }
        lab.assert_idle("both");
    }
}

#[test]
fn a_half_that_cannot_be_is_done_without() {
    for (what, rank) in [("the receiver's", 1), ("the sender's", 0)] {
        for fails in [false, true] {
            let mut lab = standing();
            let whims = Arc::clone(&lab.whims[rank]);
            for round in 0..12 {
                // Two messages to have a ring made, one that is begun over it, as long as that is tried.
                match (round % 3, fails) {
                    (2, true) => whims.fails_after.store(0, Ordering::Relaxed),
                    (2, false) => whims.refuses.store(true, Ordering::Relaxed),
                    _ => {}
                }
                let what = format!("{what} half, fails: {fails}, message {round}");
                let (from, to) = (lab.source(500, true, round), lab.target(500, round % 2 == 0));
                let way = lab.carry(0, &from, &to, &what).protocol;
                let begun = round % 3 == 2 && round < 9;
                assert_eq!(way == Protocol::Pipeline, begun, "{what}: {way}");
                whims.fails_after.store(-1, Ordering::Relaxed);
                whims.refuses.store(false, Ordering::Relaxed);
            }
            assert_eq!(lab.rings(), [(0, 0); 2], "{what}: it is not tried for ever");
        }
    }
}

#[test]
fn what_has_failed_before_it_is_received_is_asked_for_and_not_lent_for() {
    for force in [None, Some(Protocol::MappedPut)] {
        for (size, on_device) in
            [64, 2 * FRAGMENT].into_iter().flat_map(|size| [(size, true), (size, false)])
        {
            let what = format!("{size} bytes, {force:?}, on the device: {on_device}");
            let mut lab = with_ring(Lab::new(Config { share_device_buffers: true, ..ahead() }));
            lab.whims[0].refuses.store(true, Ordering::Relaxed);
            let from = lab.source(size, true, size);
            let send = lab.job.isend(0, &from, 1, 0);
            // RTS, and NOTE(6).
            lab.job.settle();
            assert_eq!(lab.rings()[1], (0, 0), "{what}");
            lab.job.pml(1).config_mut().force = force;
            let shape = layout(size, false);
            let home = if on_device { lab.home() } else { lab.job.mappable(1, &shape, 1) };
            let to = Buffer::target_in(&shape, 1, home);
            let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
            let status = lab.job.finish(1, recv).unwrap();
            assert_eq!(status.protocol, Protocol::Pipeline, "{what}");
            lab.job.finish(0, send).unwrap();
            to.assert_received(&from.packed(), &what);
            lab.assert_idle(&what);
        }
    }
}

#[test]
fn what_is_not_received_leaves_nothing_behind() {
    let mut lab = standing();
    let from = [lab.source(64, true, 1), lab.source(64, true, 2)];
    // One is asked for back, one is refused when its receiver leaves.
    let send = isend_sync(&mut lab, &from[0]);
    lab.job.settle();
    lab.job.pml(0).cancel_send(send).unwrap();
    assert_eq!(lab.job.finish(0, send), Err(PmlError::Cancelled));
    lab.assert_idle("taken back");
    assert_eq!(lab.rings()[0], (0, 0));
    for round in 0..2 {
        let to = lab.target(64, false);
        assert_eq!(lab.carry(0, &from[1], &to, "again").protocol, Protocol::Eager, "{round}");
    }
    let send = lab.job.isend(0, &from[1], 1, 0);
    assert_eq!(lab.job.finish(0, send).unwrap().protocol, Protocol::Relay);
    let other = isend_sync(&mut lab, &from[0]);
    lab.job.settle();
    assert!(lab.job.pml(0).has_requests());
    lab.job.pml(1).refuse_unreceived();
    let refused = lab.job.finish(0, other);
    assert!(matches!(refused, Err(PmlError::Unreceived { .. })), "{refused:?}");
    lab.assert_idle("left");
}

#[test]
fn a_communicator_can_be_freed_when_its_sends_have_ended() {
    for released in [false, true] {
        let mut lab = standing();
        let requests = [0, 1].map(|rank| {
            let world = lab.job.pml(rank).world();
            lab.job.pml(rank).start_dup(&world).unwrap()
        });
        let mut ranks = 0..;
        let comms = requests.map(|request| {
            let rank = ranks.next().unwrap();
            let made = lab.job.until("a dup", |job| job.pml(rank).test_comm(request).transpose());
            made.unwrap().unwrap()
        });
        let from = lab.source(64, true, 1);
        // SAFETY: the buffer lives until the end.
        let send = unsafe { lab.job.pml(0).isend(&comms[0], &from.typed(), 1, 0) }.unwrap();
        if released {
            // Nobody will ask when it has ended, so it has when it is received.
            lab.job.pml(0).release(send).unwrap();
            lab.job.settle();
            let used = lab.job.pml(0).free(&comms[0]);
            assert_eq!(used, Err(PmlError::CommInUse { requests: 1 }));
        } else {
            assert_eq!(lab.job.finish(0, send).unwrap().protocol, Protocol::Relay);
            // As far as its user knows nothing is under way in it.
            lab.job.pml(0).free(&comms[0]).unwrap();
        }
        let to = lab.target(64, false);
        // SAFETY: as above.
        let recv =
            unsafe { lab.job.pml(1).irecv(&comms[1], &to.typed(), Source::Rank(0), TagSel::Is(0)) };
        lab.job.finish(1, recv.unwrap()).unwrap();
        to.assert_received(&from.packed(), "late");
        lab.job.pml(1).free(&comms[1]).unwrap();
        if released {
            lab.job.settle();
            lab.job.pml(0).free(&comms[0]).unwrap();
        }
        lab.assert_idle("late");
    }
}

#[test]
fn too_long_a_message_is_cut() {
    let mut lab = standing();
    for (size, room) in [(500, 300), (2 * FRAGMENT + 5, 100), (3 * FRAGMENT, 2 * FRAGMENT - 1)] {
        let (from, to) = (lab.source(size, true, 1), lab.target(room, false));
        let send = lab.job.isend(0, &from, 1, 0);
        let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
        let cut = lab.job.finish(1, recv);
        assert_eq!(cut, Err(PmlError::Truncated { sent: size, room }), "{size}");
        assert_eq!(lab.job.finish(0, send).unwrap().protocol, Protocol::Relay, "{size}");
        to.assert_received(&from.packed()[..usize::try_from(room).unwrap()], "cut");
        lab.assert_idle("cut");
    }
    // The ring's turns are the same at both ends.
    let (from, to) = (lab.source(64, true, 1), lab.target(64, false));
    assert_eq!(lab.carry(0, &from, &to, "after").protocol, Protocol::Relay);
}

#[test]
fn a_peer_killed_at_any_stage_leaves_no_half_behind() {
    let mut stages = 0;
    for killed in 0..2u32 {
        for posted in [true, false] {
            for steps in 0..40 {
                let what = format!("rank {killed} dies after {steps} steps, posted: {posted}");
                let mut lab = match steps % 2 {
                    0 => standing(),
                    // While the ring is being made.
                    _ => Lab::new(ahead()),
                };
                let (from, to) = (lab.source(800, true, 5), lab.target(800, false));
                let send = lab.job.isend(0, &from, 1, 0);
                let receive = |lab: &mut Lab| lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
                let mut recv = posted.then(|| receive(&mut lab));
                for _ in 0..steps {
                    lab.job.progress();
                }
                let halves = &lab.whims[1 - killed as usize].under_way;
                stages |= 1 << halves.load(Ordering::Relaxed);
                lab.whims[killed as usize].vanishes.store(true, Ordering::Relaxed);
                lab.job.kill(killed);
                lab.job.settle();
                if killed == 0 && recv.is_none() {
                    let world = lab.job.pml(1).world();
                    let typed = to.typed();
                    // SAFETY: the buffer is kept until the end.
                    let late = unsafe {
                        lab.job.pml(1).irecv(&world, &typed, Source::Rank(0), TagSel::Is(0))
                    };
                    recv = late.ok();
                }
                let (rank, id) = if killed == 0 { (1, recv) } else { (0, Some(send)) };
                match id.map(|id| lab.job.finish(rank, id)) {
                    Some(Ok(_)) if killed == 0 => to.assert_received(&from.packed(), &what),
                    Some(Ok(_)) | None => {}
                    Some(Err(PmlError::PeerLost { rank, .. })) => {
                        assert_eq!(rank, killed, "{what}")
                    }
                    Some(Err(other)) => panic!("{what}: {other}"),
                }
                lab.assert_idle(&what);
                assert_eq!(lab.job.pml(1 - killed).relay_rings(), (0, 0), "{what}");
            }
        }
    }
    assert_eq!(stages, 0b11, "some died while a half was at work, and some did not");
}

#[test]
fn a_ring_whose_half_does_not_end_is_lost() {
    let mut lab = standing();
    let before = lab.job.pml(1).staging_bytes();
    assert!(before.0 > 0);
    lab.whims[1].stuck.store(true, Ordering::Relaxed);
    lab.whims[1].fails_after.store(0, Ordering::Relaxed);
    let (from, to) = (lab.source(64, true, 1), lab.target(64, false));
    let send = lab.job.isend(0, &from, 1, 0);
    let recv = lab.job.irecv(1, &to, Source::Rank(0), TagSel::Is(0));
    assert_eq!(lab.job.finish(1, recv).unwrap().protocol, Protocol::Pipeline);
    lab.job.finish(0, send).unwrap();
    to.assert_received(&from.packed(), "stuck");
    lab.job.settle();
    // Its memory is nobody's any more, so nobody can be given it.
    assert_eq!((lab.rings(), lab.job.pml(1).staging_bytes()), ([(0, 0); 2], (0, 0)));
}
