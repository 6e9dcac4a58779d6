//! Retention: what is not known to be there is given back when a link ends, while both processes live.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen, message, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{Btl, LAG_BYTES, LinkError, Slot, Token, Unacknowledged};
use gapless_testkit::Random;
use std::collections::BTreeSet;

/// Two ends that retain what they send, or none, said aloud.
fn retaining<F: Fixture>(suite: &Suite, fixture: &mut F) -> Option<Duo<F::Btl>> {
    let (mut a, mut b) = fixture.pair();
    let (a_address, b_address) = (a.address(), b.address());
    let to_b = a.connect(&b_address).expect("the ends of a pair reach each other");
    let to_a = b.connect(&a_address).expect("the ends of a pair reach each other");
    assert_eq!(a.retains(), b.retains(), "the same at all ends");
    if !a.retains() {
        suite.skip("the transport does not retain what it sends");
        return None;
    }
    for (end, peer) in [(&mut a, to_b), (&mut b, to_a)] {
        end.retain(peer);
        end.retain(peer);
    }
    let mut duo = Duo::joined([a, b], [to_b, to_a]);
    for side in [A, B] {
        drop(duo.reserve(side, 0));
        assert_eq!(outstanding(&duo, side), 0, "nothing was sent");
    }
    Some(duo)
}

fn outstanding<T: Btl>(duo: &Duo<T>, side: usize) -> u64 {
    duo.ends[side].outstanding(duo.peer[side])
}

/// Mostly short, some as long as they may be.
fn length_of<T: Btl>(duo: &Duo<T>, number: u64) -> usize {
    match number % 7 {
        5 => duo.ends[A].limits().max_fragment_bytes.min(150_000),
        6 => 5_000.min(duo.ends[A].limits().max_fragment_bytes),
        part => 8 + usize::try_from(part * number % 200).unwrap_or(0),
    }
}

/// Messages are outstanding until the other end has had them, and then are not, also where it says nothing itself and
/// however many buffers there are. A link that stands gives nothing back.
pub fn retained_until_received(suite: &Suite, mut fixture: impl Fixture) {
    let Some(mut duo) = retaining(suite, &mut fixture) else { return };
    for both in [false, true] {
        let sides = if both { &[A, B][..] } else { &[A] };
        for number in 0..150 {
            let len = length_of(&duo, number);
            for &side in sides {
                let before = outstanding(&duo, side);
                duo.say_number(side, number, len);
                assert!(outstanding(&duo, side) <= before + len as u64, "more than was sent");
            }
            for &side in sides {
                duo.hear_number(1 - side, number, len);
            }
        }
        let watch = Watch::new("the receipt of all that was sent");
        while [A, B].iter().any(|&side| outstanding(&duo, side) > 0) {
            duo.step();
            watch.tick();
        }
        for side in [A, B] {
            let peer = duo.peer[side];
            assert_eq!(duo.ends[side].unacknowledged(peer), [], "the link stands");
        }
    }
    duo.expect_health();
}

/// Polls of the receiver, once it has all, in which it must have said so.
const POLLS_TO_TELL: usize = 64;

/// Once the receiver has all and has polled, less than [`LAG_BYTES`] is outstanding, however long the messages are: without
/// another poll of it, or another message. Its clock is not waited for.
pub fn receipt_lags_little(suite: &Suite, mut fixture: impl Fixture) {
    for len in [LAG_BYTES + LAG_BYTES / 2, 20_000, 3_000, 500] {
        let Some(mut duo) = retaining(suite, &mut fixture) else { return };
        let len = len.min(duo.ends[A].limits().max_fragment_bytes);
        let count = (LAG_BYTES + LAG_BYTES / 2).div_ceil(len) as u64;
        for number in 0..count {
            duo.say_number(A, number, len);
            duo.hear_number(B, number, len);
        }
        for _ in 0..POLLS_TO_TELL {
            assert_eq!(duo.poll(B), 0, "all has come");
        }
        let watch = Watch::new("the receipt of all but what may lag behind");
        while outstanding(&duo, A) >= LAG_BYTES as u64 {
            duo.poll(A);
            watch.tick();
        }
        duo.expect_health();
    }
}

/// What an end of a link that is cut knows of its messages.
struct Sender {
    /// Lengths of those that were sent.
    sent: Vec<usize>,
    /// Tokens that came back.
    told: BTreeSet<u64>,
}

impl Sender {
    /// Every third message has a token, which is its number.
    fn token(number: u64) -> Token {
        if number.is_multiple_of(3) { Token(number) } else { Token::NONE }
    }

    fn send<T: Btl>(&mut self, duo: &mut Duo<T>, mut slot: Slot) {
        let number = self.sent.len() as u64;
        self.sent.push(slot.len());
        slot.write(0, &message(number, slot.len())).expect("slots are in host memory");
        duo.ends[A].send(slot, tag_of(number), Sender::token(number));
    }

    /// Sends one more, if there is room.
    fn try_send<T: Btl>(&mut self, duo: &mut Duo<T>) -> bool {
        let len = length_of(duo, self.sent.len() as u64);
        let slot = duo.ends[A].reserve(duo.peer[A], len);
        slot.is_ok_and(|slot| {
            self.send(duo, slot);
            true
        })
    }

    /// Takes what has come: at A ends of messages, at B messages; gives whether A or B has lost the other.
    fn take<T: Btl>(&mut self, duo: &mut Duo<T>, heard: &mut u64) -> [bool; 2] {
        let mut lost = [false; 2];
        for side in [A, B] {
            while let Some(seen) = duo.heard[side].pop_front() {
                assert!(!lost[side], "after the loss there is nothing more: {seen:?}");
                match seen {
                    Seen::Sent { token, result } if side == A => {
                        assert_eq!(result, Ok(()), "what is retained does not fail");
                        assert!(self.told.insert(token.0), "a token comes back once");
                    }
                    Seen::Message { tag, bytes, .. } if side == B => {
                        assert_eq!(tag, tag_of(*heard));
                        assert!(bytes == message(*heard, bytes.len()), "message {heard}");
                        assert_eq!(bytes.len(), self.sent[usize::try_from(*heard).unwrap_or(0)]);
                        *heard += 1;
                    }
                    Seen::Lost { .. } => lost[side] = true,
                    seen => panic!("{seen:?}"),
                }
            }
        }
        lost
    }

    /// Compares what a link gives back with what was sent, from `first` on.
    fn check(&self, left: &[Unacknowledged], first: u64) {
        for (number, it) in (first..).zip(left) {
            let Unacknowledged { tag, message: bytes, done } = it;
            assert_eq!(*tag, tag_of(number), "tag of message {number}");
            let len = self.sent[usize::try_from(number).unwrap_or(0)];
            assert!(*bytes == message(number, len), "bytes of message {number}");
            let token = Sender::token(number);
            let told = token == Token::NONE || self.told.contains(&token.0);
            assert_eq!(*done, if told { Token::NONE } else { token }, "message {number}");
        }
    }
}

/// A link is cut between two processes that live, at some moment: what one has had and what the other is given back are
/// all that was sent, nothing has failed, and each token comes back or is given back. So it is with what is sent after
/// the cut, and after the loss.
pub fn retained_across_a_cut(suite: &Suite, mut fixture: impl Fixture) {
    let mut random = Random::new(suite.seed());
    for round in 0.. {
        // The sender's end is cut, or the receiver's, which may have had more than it knows.
        let (variant, count) = (round / 8, [0, 3, 20, 90][round as usize % 4]);
        let side = if round / 4 % 2 == 0 { A } else { B };
        let Some(mut duo) = retaining(suite, &mut fixture) else { return };
        let mut sender = Sender { sent: Vec::new(), told: BTreeSet::new() };
        let (mut heard, mut lost) = (0, [false; 2]);
        let watch = Watch::new("room for messages");
        while sender.sent.len() < count {
            sender.try_send(&mut duo);
            if random.chance(300) {
                duo.poll(A);
            }
            // The receiver is behind now and then, so that something is under way.
            if random.chance(if sender.sent.len() * 3 < count * 2 { 500 } else { 20 }) {
                duo.poll(B);
            }
            sender.take(&mut duo, &mut heard);
            watch.tick();
        }
        let held = [20, 30].map(|len| duo.reserve(A, len));
        sender.take(&mut duo, &mut heard);
        let (peer, its_peer) = (duo.peer[A], duo.peer[side]);
        if !fixture.cut(&mut duo.ends[side], its_peer, variant) {
            if variant == 0 {
                suite.skip("the fixture cuts no links");
            }
            return;
        }
        let [first_held, last_held] = held;
        sender.send(&mut duo, first_held);
        let watch = Watch::promised("the loss", duo.ends[A].limits().death_notice_ms);
        while lost != [true; 2] {
            duo.step();
            let now = sender.take(&mut duo, &mut heard);
            (0..2).for_each(|side| lost[side] |= now[side]);
            watch.tick();
        }
        let bytes = outstanding(&duo, A);
        let left = duo.ends[A].unacknowledged(peer);
        assert_eq!(bytes, left.iter().map(|it| it.message.len() as u64).sum::<u64>());
        let first = sender.sent.len() as u64 - left.len() as u64;
        assert!(first <= heard, "messages {heard} to {first} are nowhere");
        sender.check(&left, first);
        let tokens = (0..first).map(Sender::token).filter(|it| *it != Token::NONE);
        assert!(tokens.into_iter().all(|it| sender.told.contains(&it.0)), "a token was lost");
        assert_eq!(duo.ends[A].unacknowledged(peer), [], "once");
        let number = sender.sent.len() as u64;
        sender.send(&mut duo, last_held);
        let late = duo.ends[A].unacknowledged(peer);
        assert_eq!(late.len(), 1, "what is sent after the loss");
        sender.check(&late, number);
        duo.step();
        sender.take(&mut duo, &mut heard);
        let error = duo.ends[A].reserve(peer, 1).expect_err("the link is lost");
        assert!(
            !matches!(error, gapless_btl::ReserveError::Link(LinkError::Corrupt { .. })),
            "{error}"
        );
    }
}
