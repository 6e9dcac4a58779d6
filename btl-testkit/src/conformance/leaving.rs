//! Ends that are dropped in this process: what they sent, what is held of them, and why they are lost.

use super::bench::Watch;
use super::duo::{A, B, Duo, tag_of};
use super::meeting::readable;
use super::wake::{LEN, Wake, last_word, pile_up, reserve_once};
use super::{Fixture, Suite};
use gapless_btl::{Btl, PeerId, Queue, ReserveError, Token};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a transport that is dropped waits at least for peers that poll and have not taken all.
const LINGER: Duration = Duration::from_millis(100);

/// An end that is dropped: what it sent arrives, what was pending ends, the loss is told once.
pub fn peer_dropped(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    for number in 0..5 {
        duo.say_number(B, number, LEN);
    }
    for number in 0..5 {
        duo.hear_number(A, number, LEN);
    }
    // All of these are in A's hands before B goes.
    let Duo { ends: [mut a, b], peer: [to_b, _], .. } = duo;
    let mut wake = Wake::new(to_b);
    let held = reserve_once(&mut a, &mut wake);
    let unsent = reserve_once(&mut a, &mut wake);
    pile_up(&mut a, &mut wake, 10_000);
    drop(b);
    wake.expect_gone(&mut a);
    drop(unsent);
    wake.send_to_the_dead(&mut a, held);
}

/// Sends until there is no room, at most `most` messages; gives how many. Takes one event at most of
/// what comes meanwhile.
pub(super) fn talk(end: &mut impl Btl, peer: PeerId, most: u64) -> u64 {
    let mut events = Queue::with_capacity(1);
    let (mut sent, mut refused) = (0, 0);
    while sent < most && refused < 20 {
        let bytes = last_word(sent, end);
        match end.reserve(peer, bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, &bytes).expect("it fits");
                end.send(slot, tag_of(sent), Token::NONE);
                (sent, refused) = (sent + 1, 0);
            }
            Err(ReserveError::Full) => {
                refused += 1;
                end.poll(None, &mut events);
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    sent
}

/// Drops an end, in a thread of its own since that may wait for the peer; the peer's next polls
/// come behind it if it does not. Gives how long that took.
fn leave<T: Btl + 'static>(end: T, mut poll: impl FnMut()) -> Duration {
    let leaving = std::thread::spawn(move || {
        let start = Instant::now();
        drop(end);
        start.elapsed()
    });
    (0..1000).take_while(|_| !leaving.is_finished()).for_each(|_| std::thread::yield_now());
    let watch = Watch::by_the_clock("an end to be dropped");
    while !leaving.is_finished() {
        poll();
        watch.tick();
    }
    leaving.join().expect("dropping does not panic")
}

impl Wake {
    /// All of the `sent` messages came, or a beginning of them if their sender had to `wait` for us.
    pub(super) fn expect_last_words(&self, end: &impl Btl, sent: u64, waited: Duration) {
        let came = self.messages.len() as u64;
        assert!(came <= sent, "{came} messages of {sent}");
        let right = (0..sent).map(|number| (tag_of(number), last_word(number, end)));
        let mut right: VecDeque<_> = right.collect();
        for (number, message) in self.messages.iter().enumerate() {
            let ordered = end.limits().ordered;
            let at = if ordered { Some(0) } else { right.iter().position(|it| it == message) };
            let expected = at.and_then(|at| right.remove(at));
            assert!(expected.as_ref() == Some(message), "the {number}th message to come is wrong");
        }
        assert!(
            came == sent || waited >= LINGER,
            "{came} of {sent} messages came of a peer that waited {waited:?} when it was dropped"
        );
    }
}

/// What an end has sent when it is dropped arrives before its loss, into lists of any length.
pub fn last_words(_: &Suite, mut fixture: impl Fixture) {
    for most in [1, 3, 10_000] {
        for room in [1, 2, 64] {
            let mut duo = Duo::new(&mut fixture);
            let sent = talk(&mut duo.ends[B], duo.peer[B], most);
            assert!(sent > 0, "there is room for one message at least");
            let Duo { ends: [mut a, b], peer: [to_b, _], .. } = duo;
            let mut wake = Wake::with_room(to_b, room);
            let waited = leave(b, || wake.poll(&mut a));
            wake.expect_gone(&mut a);
            wake.expect_last_words(&a, sent, waited);
        }
    }
}

/// An end that is dropped while there is no room in either direction: its last words arrive, what was
/// pending ends, and its loss is told.
pub fn death_in_a_crowd(_: &Suite, mut fixture: impl Fixture) {
    for room in [1, 8] {
        let duo = Duo::new(&mut fixture);
        let Duo { ends: [mut a, mut b], peer: [to_b, to_a], .. } = duo;
        let mut wake = Wake::with_room(to_b, room);
        let held = reserve_once(&mut a, &mut wake);
        pile_up(&mut a, &mut wake, 10_000);
        let sent = talk(&mut b, to_a, 10_000);
        let waited = leave(b, || wake.poll(&mut a));
        wake.expect_gone(&mut a);
        wake.expect_last_words(&a, sent, waited);
        wake.send_to_the_dead(&mut a, held);
    }
}

/// An end that is dropped while all that it sent, and all that was sent to it, is held: its loss is
/// told nevertheless, and what is held stays as it is, whatever ends first.
pub fn parked_across_a_death(_: &Suite, mut fixture: impl Fixture) {
    let Duo { ends: [mut a, mut b], peer: [to_b, to_a], .. } = Duo::new(&mut fixture);
    let (mut at_a, mut at_b) = (Wake::parking(to_b), Wake::parking(to_a));
    let longest = a.limits().max_fragment_bytes as u64;
    let mut sent = [0, 0];
    let mut refused = 0;
    while refused < 100 {
        refused += 1;
        for (side, end, peer) in [(A, &mut a, to_b), (B, &mut b, to_a)] {
            let bytes = last_word(sent[side], end);
            match end.reserve(peer, bytes.len()) {
                Ok(mut slot) => {
                    slot.write(0, &bytes).expect("it fits");
                    end.send(slot, tag_of(sent[side]), Token::NONE);
                    sent[side] += 1;
                    refused = 0;
                }
                Err(ReserveError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        let under_way = sent[A].max(sent[B]).saturating_mul(longest);
        assert!(under_way < 1 << 30, "a receiver that holds everything is drowned");
        let before = at_a.messages.len() + at_b.messages.len();
        at_a.poll(&mut a);
        at_b.poll(&mut b);
        if at_a.messages.len() + at_b.messages.len() > before {
            refused = 0;
        }
    }
    leave(b, || at_a.poll(&mut a));
    at_a.expect_gone(&mut a);
    let check = |wake: &mut Wake, some: usize| {
        let parked = wake.take_parked();
        assert!(!parked.is_empty(), "nothing came");
        for (fragment, (tag, bytes)) in parked.iter().zip(&wake.messages) {
            let now = fragment.to_vec().expect("host memory");
            assert!(now == *bytes, "a fragment of tag {tag:?} changed while it was held");
        }
        parked.into_iter().take(some).collect::<Vec<_>>()
    };
    at_a.expect_last_words(&a, sent[B], Duration::MAX);
    at_b.expect_last_words(&a, sent[A], Duration::MAX);
    let (kept, theirs) = (check(&mut at_a, 2), check(&mut at_b, 1));
    drop(a);
    for (fragment, (_, bytes)) in kept.iter().zip(&at_a.messages) {
        assert!(fragment.to_vec().expect("host memory") == *bytes, "both ends are gone");
    }
    drop((kept, theirs));
}

/// Sleeping on the descriptor of `arm` does not sleep through the death of the peer.
pub fn death_wakes(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    duo.expect_health();
    if duo.ends[A].arm().is_none() {
        return suite.skip("the transport is polled by the clock: `arm` gives no descriptor");
    }
    duo.expect_silence();
    let Duo { ends: [mut a, b], peer: [to_b, _], .. } = duo;
    let mut wake = Wake::new(to_b);
    let fd = a.arm().expect("it gave one before");
    wake.poll(&mut a);
    drop(b);
    let watch = Watch::promised("the descriptor to become readable", a.limits().death_notice_ms);
    let mut fd = fd;
    while wake.lost.is_none() {
        // Nothing but the descriptor says when to look.
        while !readable(fd, 1) {
            watch.tick();
        }
        wake.poll(&mut a);
        if wake.lost.is_none() {
            fd = a.arm().expect("it gave one before");
            wake.poll(&mut a);
        }
        watch.tick();
    }
    wake.expect_gone(&mut a);
}
