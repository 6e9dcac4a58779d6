//! Short cuts: messages by value, messages that are taken within the poll, polls for one peer, and looking without
//! polling.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen, message, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{AmTag, Btl, Event, Fragment, PeerId, Queue, SHORT_BYTES, Short, Sink, Token};
use gapless_testkit::Random;

/// A message's name, and what it has behind that.
const NAME_BYTES: usize = 8;

/// Takes what it likes of the messages of one peer, and refuses the rest.
struct Taker {
    random: Random,
    from: PeerId,
    taken: Vec<(AmTag, Vec<u8>)>,
    /// What comes as events.
    events: Queue,
    /// How many of them may come.
    room: usize,
}

impl Taker {
    fn new(seed: u64, from: PeerId) -> Taker {
        let events = Queue::with_capacity(16);
        Taker { random: Random::new(seed), from, taken: Vec::new(), events, room: 0 }
    }

    fn decide(&mut self, from: PeerId, tag: AmTag, bytes: impl FnOnce() -> Vec<u8>) -> bool {
        assert_eq!(from, self.from, "who sent it");
        assert!(self.events.is_empty(), "a message is offered behind an event of its peer");
        let takes = self.random.chance(500);
        if takes {
            self.taken.push((tag, bytes()));
        }
        takes
    }

    /// Polls with room for so many events, and gives what came: how many were taken, and all in their order.
    fn poll<T: Btl>(
        &mut self,
        end: &mut T,
        only: Option<PeerId>,
        room: usize,
    ) -> (usize, Vec<(AmTag, Vec<u8>)>) {
        self.room = room;
        let found = end.poll(only, self);
        let (taken, queued) = (self.taken.len(), self.events.len());
        assert_eq!(found, taken + queued, "a poll says how many there were: {taken} were taken");
        assert!(queued <= room, "{queued} events, and room for {room}");
        let mut came = std::mem::take(&mut self.taken);
        for event in self.events.drain() {
            let seen = Seen::of(event);
            let Seen::Message { from, tag, bytes } = seen else {
                panic!("only messages are due: {seen:?}")
            };
            assert_eq!(from, self.from, "who sent it");
            came.push((tag, bytes));
        }
        if only.is_some() {
            assert!(came.len() <= 1, "the next message of a peer is one");
        }
        (taken, came)
    }
}

impl Sink for Taker {
    fn short(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let bytes = message.words().iter().flat_map(|word| word.to_ne_bytes());
        self.decide(from, tag, || bytes.take(message.len()).collect())
    }

    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        self.decide(from, tag, || fragment.to_vec().expect("arrivals are in host memory"))
    }

    fn event(&mut self, event: Event) {
        self.events.event(event);
    }

    fn room(&self) -> usize {
        self.room.saturating_sub(self.events.len())
    }
}

/// Message `number` of `len` bytes, its number in front if there is room.
fn numbered(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = message(number, len);
    if len >= NAME_BYTES {
        bytes[..NAME_BYTES].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Sends message `number` by value; whether it left.
fn send_short<T: Btl>(duo: &mut Duo<T>, number: u64, len: usize) -> bool {
    // What is behind the message is nobody's.
    let mut words = [u64::MAX; SHORT_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(numbered(number, len).chunks(8)) {
        let mut whole = [0xEE; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    let peer = duo.peer[A];
    duo.ends[A].send_short(peer, tag_of(number), Short::new(&words, len))
}

/// Messages by value among others, looked for in all ways, some taken and some not: each comes once, intact, in the
/// order in which they were sent if that is promised; none is offered behind an event of its peer; a poll says how many
/// there were.
pub fn short_messages(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 4000;
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let (ordered, longest) = {
        let limits = duo.ends[A].limits();
        (limits.ordered, limits.eager_bytes.min(SHORT_BYTES))
    };
    let from = duo.peer[B];
    let mut taker = Taker::new(suite.seed() ^ 1, from);
    let mut came: Vec<(AmTag, Vec<u8>)> = Vec::new();
    let (mut sent, mut short, mut taken) = (Vec::new(), 0, 0);
    let watch = Watch::new("all messages");
    while (came.len() as u64) < MESSAGES {
        // Now and then more than there is room for.
        let burst = if random.chance(20) { 200 } else { 6 };
        for _ in 0..random.below(burst) {
            let number = sent.len() as u64;
            if number == MESSAGES {
                break;
            }
            // Every length now and then, and those around a line of cache most often.
            let len = match random.below(3) {
                0 => random.below(longest + 1),
                1 => random.below(longest.min(70) + 1),
                _ => longest - random.below(longest.min(9)),
            };
            let left = match random.below(4) {
                0 => {
                    let long = len + random.below(3) * 200;
                    let long = long.min(duo.ends[A].limits().max_fragment_bytes);
                    duo.say(A, tag_of(number), &numbered(number, long), Token::NONE);
                    Some(long)
                }
                _ => send_short(&mut duo, number, len).then_some(len),
            };
            // Without room nothing was sent, and the number is free.
            short += u32::from(left == Some(len));
            sent.extend(left);
        }
        duo.poll(A);
        if random.chance(300) {
            // What `duo.say` has polled for meanwhile came before.
            duo.poll(B);
        }
        while let Some(seen) = duo.heard[B].pop_front() {
            let Seen::Message { tag, bytes, .. } = seen else { panic!("{seen:?}") };
            came.push((tag, bytes));
        }
        // For whoever waits for the next message of this peer, and for all, with more or less room, or none.
        for only in [random.chance(300).then_some(from), None] {
            let room = random.below(17);
            let (now, mut messages) = taker.poll(&mut duo.ends[B], only, room);
            taken += now;
            came.append(&mut messages);
        }
        watch.tick();
    }
    assert!(short > 100, "{short} by value");
    let right = (0..).zip(&sent).map(|(number, &len)| (tag_of(number), numbered(number, len)));
    let mut right: Vec<_> = right.collect();
    if !ordered {
        right.sort();
        came.sort();
    }
    let wrong = came.iter().zip(&right).position(|(came, right)| came != right);
    assert_eq!((came.len(), wrong), (right.len(), None), "of {taken} taken and all others");
    duo.expect_silence();
    // A peer that is nobody's gets nothing.
    let nobody = duo.ends[A].send_short(PeerId(77), AmTag(1), Short::new(&[0], 8));
    assert!(!nobody, "there is no such peer");
    duo.expect_health();
}

/// A poll for one peer gives its next message or nothing: no end of a message, no loss, nothing of another peer. What
/// it does not give, a poll of all does.
pub fn one_peer_alone(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 300;
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let ordered = duo.ends[A].limits().ordered;
    let from = duo.peer[B];
    let mut taker = Taker::new(suite.seed() ^ 1, from);
    let nobody = PeerId(77);
    let (mut sent, mut came, mut ended) = (0, Vec::new(), 0);
    let watch = Watch::new("all messages and their ends");
    while came.len() as u64 != MESSAGES || ended != MESSAGES {
        if sent < MESSAGES && random.chance(500) {
            duo.say(A, tag_of(sent), &numbered(sent, 24), Token::NONE);
            // The end of this is something that the other end has to say, too.
            duo.say(B, tag_of(sent), &numbered(sent, 24), Token(sent));
            sent += 1;
        }
        duo.poll(A);
        duo.heard[A].clear();
        // What `duo.say` has polled for meanwhile came before.
        let hear = |duo: &mut Duo<_>, came: &mut Vec<_>| {
            let mut ended = 0;
            for seen in duo.heard[B].drain(..) {
                match seen {
                    Seen::Message { tag, bytes, .. } => came.push((tag, bytes)),
                    Seen::Sent { result: Ok(()), .. } => ended += 1,
                    other => panic!("{other:?}"),
                }
            }
            ended
        };
        ended += hear(&mut duo, &mut came);
        let room = random.below(3);
        let strange = taker.poll(&mut duo.ends[B], Some(nobody), room);
        assert_eq!(strange, (0, Vec::new()), "there is no such peer");
        came.extend(taker.poll(&mut duo.ends[B], Some(from), room).1);
        if random.chance(200) {
            duo.poll(B);
            ended += hear(&mut duo, &mut came);
        }
        watch.tick();
    }
    let mut right: Vec<_> = (0..MESSAGES).map(|n| (tag_of(n), numbered(n, 24))).collect();
    if !ordered {
        right.sort();
        came.sort();
    }
    assert!(came == right, "not the messages that were sent");
    let [a, mut b] = duo.ends;
    let watch = Watch::by_the_clock("the loss of the peer");
    let mut lost = false;
    // It may wait for the other to poll.
    let leaving = std::thread::spawn(move || drop(a));
    while !lost {
        assert_eq!(taker.poll(&mut b, Some(from), 3), (0, Vec::new()), "nothing more was sent");
        if random.chance(100) {
            let mut events = Queue::with_capacity(3);
            b.poll(None, &mut events);
            lost = events.drain().any(|event| matches!(event, Event::Lost { .. }));
        }
        watch.tick();
    }
    leaving.join().expect("dropping does not panic");
}

/// Whether one end is quiet, once it has been polled for what may be due.
fn quiet<T: Btl>(side: usize, duo: &mut Duo<T>) -> bool {
    (0..1000).any(|_| {
        let quiet = duo.ends[side].is_quiet();
        if !quiet {
            duo.poll(side);
        }
        quiet
    })
}

/// Whoever looks instead of polling misses nothing: what a poll would find ends the quiet.
pub fn quiet_until_something_comes(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    duo.expect_silence();
    if !quiet(A, &mut duo) || !quiet(B, &mut duo) {
        return suite.skip("the transport cannot tell without a poll");
    }
    let longest = duo.ends[A].limits().max_fragment_bytes;
    for (number, len) in (0..).zip([0, 8, 60, 224, 300, longest, 8, longest]) {
        assert!(quiet(B, &mut duo) && duo.heard[B].is_empty(), "nothing is under way");
        // To be told of a message's having been sent is worth a poll as well.
        duo.say(A, tag_of(number), &message(number, len), Token(number + 1));
        let watch = Watch::new("an end of the quiet");
        while duo.ends[B].is_quiet() {
            duo.poll(A);
            watch.tick();
        }
        duo.hear_number(B, number, len);
        let told = |seen: &Seen| matches!(seen, Seen::Sent { token, result: Ok(()) } if token.0 == number + 1);
        while !duo.heard[A].pop_front().is_some_and(|seen| told(&seen)) {
            if duo.heard[A].is_empty() && !duo.ends[A].is_quiet() {
                duo.poll(A);
            }
            duo.poll(B);
            watch.tick();
        }
    }
}
