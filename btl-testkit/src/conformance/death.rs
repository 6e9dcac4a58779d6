//! Death of other processes, which are killed, and of good manners.

use super::bench::Watch;
use super::child::{self, Kin};
use super::duo::{A, Duo, assert_message, message, poll, tag_of};
use super::leaving::talk;
use super::wake::{LEN, Wake, pile_up, reserve_once};
use super::{Fixture, Suite};
use gapless_btl::{Access, AmTag, Btl, Event, Fragment, LinkError, PeerId, Queue};
use gapless_btl::{Rdma, RemoteKey, ReserveError, Token};
use gapless_mem::{Device, HostDevice, Region};
use std::time::Duration;

/// Makes an end for the tests with two processes, or skips.
pub(super) fn process_end<F: Fixture>(suite: &Suite, fixture: &mut F) -> Option<F::Btl> {
    let end = fixture.process_end();
    if end.is_none() {
        suite.skip("the transport does not leave its process");
    }
    end
}

/// In the child: meets the parent.
pub(super) fn meet_parent<F: Fixture>(fixture: &mut F) -> (F::Btl, PeerId) {
    let mut end = fixture.process_end().expect("the parent has one");
    child::tell(&child::encode(&end.address()));
    let parent = child::decode(&child::listen());
    let peer = end.connect(&parent).expect("the parent can be reached");
    (end, peer)
}

/// Sends one message, polling while there is no room; false when the peer is lost.
pub(super) fn send_one(end: &mut impl Btl, peer: PeerId, tag: AmTag, bytes: &[u8]) -> bool {
    let mut events = Queue::with_capacity(8);
    let watch = Watch::new("room for a message");
    loop {
        match end.reserve(peer, bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, bytes).expect("it fits");
                end.send(slot, tag, Token::NONE);
                return true;
            }
            Err(ReserveError::Full) => _ = poll(end, &mut events),
            Err(_) => return false,
        }
        watch.tick();
    }
}

/// In the child: polls until the parent says something or is gone.
fn poll_until_told(end: &mut impl Btl) {
    let (heard, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || heard.send(child::listen()));
    let mut events = Queue::with_capacity(8);
    let watch = Watch::new("the parent");
    while told.try_recv().is_err() {
        drop(poll(end, &mut events));
        watch.tick();
    }
}

/// Meets a child.
pub(super) fn meet_child(end: &mut impl Btl, kin: &mut Kin) -> PeerId {
    let address = child::decode(&kin.listen());
    let peer = end.connect(&address).expect("the child can be reached");
    kin.tell(&child::encode(&end.address()));
    peer
}

/// A process that is killed before it has connected to us.
pub fn peer_killed_before_meeting(suite: &Suite, mut fixture: impl Fixture) {
    if child::role().is_some() {
        let end = fixture.process_end().expect("the parent has one");
        child::tell(&child::encode(&end.address()));
        child::listen();
        return;
    }
    let Some(mut end) = process_end(suite, &mut fixture) else { return };
    for connect_first in [true, false] {
        let mut kin = Kin::start(suite, "absent");
        let address = child::decode(&kin.listen());
        let mut peer = None;
        if connect_first {
            peer = Some(end.connect(&address).expect("the child can be reached"));
        }
        kin.kill();
        // Now the address is nobody's: an error, or a loss in time.
        if !connect_first {
            peer = end.connect(&address).ok();
        }
        if let Some(peer) = peer {
            Wake::new(peer).expect_loss(&mut end);
        }
    }
}

/// A process that is killed while it sends, or when it has filled all the room there is: what came
/// is an intact beginning, then the loss, also where events are taken one by one.
pub fn peer_killed_while_sending(suite: &Suite, mut fixture: impl Fixture) {
    if let Some(role) = child::role() {
        let (mut end, peer) = meet_parent(&mut fixture);
        if role == "crowd" {
            // Until the link stands, which may take both ends' polls: the parent tells.
            poll_until_told(&mut end);
            child::tell(&talk(&mut end, peer, 10_000).to_string());
            child::listen();
            return;
        }
        let mut number = 0;
        while send_one(&mut end, peer, tag_of(number), &message(number, LEN)) {
            number += 1;
        }
        return;
    }
    let Some(mut end) = process_end(suite, &mut fixture) else { return };
    let ordered = end.limits().ordered;
    for least in [1, 3000] {
        let mut kin = Kin::start(suite, "sender");
        let mut wake = Wake::new(meet_child(&mut end, &mut kin));
        let watch = Watch::new("messages");
        while wake.messages.len() < least {
            wake.poll(&mut end);
            watch.tick();
        }
        kin.kill();
        wake.expect_death(&mut end, &fixture);
        for (number, (tag, bytes)) in (0..).zip(&wake.messages) {
            if ordered {
                assert_eq!(*tag, tag_of(number));
                assert_message(bytes, number, LEN);
            }
        }
    }
    for room in [1, 64] {
        let mut kin = Kin::start(suite, "crowd");
        let peer = meet_child(&mut end, &mut kin);
        let mut wake = Wake::with_room(peer, room);
        drop(reserve_once(&mut end, &mut wake));
        kin.tell("fill it");
        let sent: u64 = kin.listen().parse().expect("a number of messages");
        kin.kill();
        wake.expect_death(&mut end, &fixture);
        // It did not leave but was killed: what was still in its own hands is lost.
        wake.expect_last_words(&end, sent, Duration::MAX);
    }
}

/// The pieces of memory that parent and child work on; never freed.
fn ground() -> Region {
    HostDevice::new().allocate(1 << 16).expect("memory for a test")
}

#[allow(unsafe_code, reason = "registers memory that is never freed")]
fn register(rdma: &mut dyn Rdma, region: Region) -> Option<RemoteKey> {
    // SAFETY: `ground` is never freed, and no reference covers it.
    unsafe { rdma.register(region, Access::Write) }.ok()
}

/// Starts a few one-sided operations, if there are any.
#[allow(unsafe_code, reason = "operates on memory that is never freed")]
fn start_rdma(end: &mut impl Btl, wake: &mut Wake, key: &RemoteKey) {
    let local = [ground()];
    let remote = [gapless_btl::Extent { offset: 0, len: local[0].len() }];
    let peer = wake.peer;
    for number in 0..8 {
        let Some(rdma) = end.rdma() else { return };
        let token = 1_000_000 + number;
        // SAFETY: `ground` is never freed, and nothing else touches it.
        if unsafe { rdma.get(peer, &local, key, &remote, Token(token)) }.is_ok() {
            wake.give(token);
        }
        let Some(rdma) = end.rdma() else { return };
        let token = 2_000_000 + number;
        // SAFETY: as above.
        if unsafe { rdma.put(peer, &local, key, &remote, Token(token)) }.is_ok() {
            wake.give(token);
        }
    }
}

/// A process that is killed with messages, reservations and one-sided operations pending towards
/// it, and fragments of its still parked here: all of them end, then the loss is told, once; and
/// the next peer is met as if nothing had happened.
pub fn peer_killed_with_operations_pending(suite: &Suite, mut fixture: impl Fixture) {
    if child::role().is_some() {
        let (mut end, peer) = meet_parent(&mut fixture);
        let key = end.rdma().and_then(|rdma| register(rdma, ground()));
        let key = key.as_ref().map_or(&[][..], RemoteKey::as_bytes);
        assert!(send_one(&mut end, peer, AmTag(200), key));
        for number in 0..10 {
            assert!(send_one(&mut end, peer, tag_of(number), &message(number, LEN)));
        }
        poll_until_told(&mut end);
        // From here on it hears nothing, and everything piles up.
        child::tell("deaf");
        child::listen();
        return;
    }
    let Some(mut end) = process_end(suite, &mut fixture) else { return };
    for _ in 0..2 {
        let mut kin = Kin::start(suite, "deaf");
        let peer = meet_child(&mut end, &mut kin);
        let mut wake = Wake::new(peer);
        let mut events = Queue::with_capacity(8);
        let mut parked: Vec<Fragment> = Vec::new();
        let watch = Watch::new("messages");
        while parked.len() < 11 {
            for event in poll(&mut end, &mut events) {
                let Event::Arrived { fragment, .. } = event else { panic!("{event:?}") };
                parked.push(fragment);
            }
            watch.tick();
        }
        let key = parked.remove(0).to_vec().expect("host memory");
        let held = reserve_once(&mut end, &mut wake);
        let unsent = reserve_once(&mut end, &mut wake);
        kin.tell("be deaf");
        assert_eq!(kin.listen(), "deaf");
        pile_up(&mut end, &mut wake, 10_000);
        if !key.is_empty() {
            let key = RemoteKey::new(&key).expect("as long as a key");
            start_rdma(&mut end, &mut wake, &key);
        }
        kin.kill();
        wake.expect_death(&mut end, &fixture);
        assert!(wake.messages.is_empty());
        for (number, fragment) in (0..).zip(&parked) {
            assert_message(&fragment.to_vec().expect("host memory"), number, LEN);
        }
        drop((parked, unsent));
        wake.send_to_the_dead(&mut end, held);
    }
}

/// Malformed bytes from a peer: ignored or reported as what they are, and no harm done.
pub fn garbage_is_survived(suite: &Suite, mut fixture: impl Fixture) {
    for variant in 0..1000 {
        let mut duo = Duo::new(&mut fixture);
        duo.expect_health();
        let peer = duo.peer[A];
        if !fixture.garbage(&mut duo.ends[A], peer, variant) {
            if variant == 0 {
                suite.skip("the fixture does not make garbage");
            }
            return;
        }
        let Duo { ends: [a, mut b], peer: [_, to_a], .. } = duo;
        let mut wake = Wake::new(to_a);
        for look in 0..120 {
            wake.poll(&mut b);
            match &wake.lost {
                Some(error) => {
                    let corrupt = matches!(error, LinkError::Corrupt { .. });
                    assert!(corrupt, "variant {variant} broke the rules, reported as {error:?}");
                    break;
                }
                // What comes over a wire may need a moment.
                None if look >= 100 => std::thread::sleep(Duration::from_millis(1)),
                None => std::thread::yield_now(),
            }
        }
        drop(a);
        let lost = wake.expect_loss(&mut b);
        assert!(matches!(lost, LinkError::Corrupt { .. } | LinkError::PeerGone { .. }), "{lost:?}");
        assert_eq!(wake.messages, [], "variant {variant}: delivered what was never sent");
    }
}
