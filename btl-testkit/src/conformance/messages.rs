//! Messages: order, exactly once, sizes, room, truncation, tokens.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen, assert_message, message, poll, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{AmTag, Btl, Event, Fragment, Queue, ReserveError, Slot, Token};
use gapless_testkit::Random;
use std::collections::{BTreeMap, VecDeque};

/// Messages of random sizes, both ways at once: each arrives once, intact, in the order of `send`
/// if that is promised.
pub fn order_and_exactly_once(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 3000;
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let limits = duo.ends[A].limits().clone();
    let mut lengths: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
    for number in 0..MESSAGES {
        for side in [A, B] {
            // Mostly small, and some of any size.
            let max = limits.max_fragment_bytes.min(64 << 10);
            let bound = if random.chance(30) { max } else { max.min(300) };
            let len = 8 + random.below(bound - 8 + 1);
            lengths[side].push(len);
            let mut bytes = message(number, len);
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            duo.say(side, tag_of(number), &bytes, Token::NONE);
        }
    }
    for side in [A, B] {
        let mut missing: BTreeMap<u64, usize> = (0..).zip(lengths[1 - side].clone()).collect();
        for turn in 0..MESSAGES {
            let (tag, bytes) = duo.hear_message(side);
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let len = missing.remove(&number);
            let len = len.unwrap_or_else(|| panic!("message {number} came twice, or never was"));
            if limits.ordered {
                assert_eq!(number, turn, "order");
            }
            assert_eq!(tag, tag_of(number));
            let mut right = message(number, len);
            right[..8].copy_from_slice(&number.to_le_bytes());
            assert!(bytes == right, "message {number} of {len} bytes is damaged");
        }
    }
    duo.expect_silence();
}

/// Slots that are sent in another order than they were reserved in arrive in the order of `send`.
pub fn send_fixes_the_order(suite: &Suite, mut fixture: impl Fixture) {
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let ordered = duo.ends[A].limits().ordered;
    for _ in 0..200 {
        let mut slots: Vec<Slot> = Vec::new();
        while slots.len() < 6 {
            match duo.ends[A].reserve(duo.peer[A], 20 + slots.len()) {
                Ok(slot) => slots.push(slot),
                // With two one can tell.
                Err(ReserveError::Full) if slots.len() >= 2 => break,
                Err(ReserveError::Full) => {
                    slots.clear();
                    duo.step();
                }
                Err(error) => panic!("{error}"),
            }
        }
        let mut sent = Vec::new();
        for number in 0..slots.len() {
            let mut slot = slots.swap_remove(random.below(slots.len()));
            let len = slot.len();
            slot.write(0, &message(number as u64, len)).expect("host memory");
            duo.ends[A].send(slot, tag_of(number as u64), Token::NONE);
            sent.push(len);
        }
        let mut got: Vec<(AmTag, Vec<u8>)> = sent.iter().map(|_| duo.hear_message(B)).collect();
        if !ordered {
            got.sort();
        }
        for ((number, len), (tag, bytes)) in (0..).zip(sent).zip(got) {
            assert_eq!(tag, tag_of(number));
            assert_message(&bytes, number, len);
        }
    }
    duo.expect_silence();
}

/// Every size from 0 to 300, sizes around the limits and around powers of two; one more than the
/// limit is refused.
pub fn every_size(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let limits = duo.ends[A].limits().clone();
    let max = limits.max_fragment_bytes;
    let mut sizes: Vec<usize> = (0..=300).collect();
    let marks = (8..30).map(|bit| 1 << bit).chain([limits.eager_bytes, max]);
    for mark in marks {
        sizes.extend(mark.saturating_sub(2)..=mark + 2);
        sizes.extend([8, 16, 64].map(|less| mark.saturating_sub(less)));
    }
    for len in sizes.into_iter().filter(|&len| len <= max) {
        for (side, other) in [(A, B), (B, A)] {
            duo.say_number(side, len as u64, len);
            duo.hear_number(other, len as u64, len);
        }
    }
    for len in [max + 1, max * 2, usize::MAX] {
        let refused = duo.ends[A].reserve(duo.peer[A], len).expect_err("too long");
        assert_eq!(refused, ReserveError::TooLong { len, max });
    }
    duo.expect_silence();
    duo.expect_health();
}

/// Fewer bytes are sent than were reserved; more are refused.
pub fn truncation(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let max = duo.ends[A].limits().max_fragment_bytes;
    for (number, (reserved, len)) in
        (0..).zip([(1, 0), (200, 7), (max, max - 1), (max, max / 2), (max, 0), (64, 64)])
    {
        let mut slot = duo.reserve(A, reserved);
        slot.truncate(reserved + 1).expect_err("more than was reserved");
        slot.write(1, &vec![0; reserved]).expect_err("more than was reserved");
        assert_eq!(slot.len(), reserved);
        slot.write(0, &message(number, reserved)).expect("it fits");
        slot.truncate(len).expect("less than was reserved");
        assert_eq!(slot.region().len(), len as u64);
        duo.ends[A].send(slot, tag_of(number), Token::NONE);
        let (_, bytes) = duo.hear_message(B);
        assert_eq!(bytes, message(number, reserved)[..len], "{len} of {reserved} bytes");
    }
    duo.expect_silence();
}

/// A receiver that does not poll makes its sender see `Full`, not lose or hoard; and all is well
/// when it polls again.
pub fn back_pressure(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let max = duo.ends[A].limits().max_fragment_bytes;
    for len in [1, max] {
        // What is under way is bounded by 1 GiB and a million messages.
        let most = ((1usize << 30) / len).min(1 << 20);
        let mut sent: u64 = 0;
        let mut refused = 0;
        // `Full` must last, while the sender polls and the receiver does not.
        while refused < 100 {
            match duo.ends[A].reserve(duo.peer[A], len) {
                Ok(mut slot) => {
                    slot.write(0, &message(sent, len)).expect("it fits");
                    duo.ends[A].send(slot, tag_of(sent), Token::NONE);
                    sent += 1;
                    refused = 0;
                    assert!(sent < most as u64, "a receiver that does not poll is drowned");
                }
                Err(ReserveError::Full) => {
                    refused += 1;
                    duo.poll(A);
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(sent > 0, "there is room for one message at least");
        for number in 0..sent {
            duo.hear_number(B, number, len);
        }
        duo.expect_silence();
        duo.expect_health();
    }
}

/// A sender that does not poll stays within bounds, and what it sent arrives once it does.
pub fn sender_that_never_polls(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let mut sent: u64 = 0;
    let mut tokens: u64 = 0;
    let mut refused = 0;
    // It may or may not get room again without polling.
    while sent < 20_000 && refused < 10_000 {
        match duo.ends[A].reserve(duo.peer[A], 40) {
            Ok(mut slot) => {
                slot.write(0, &message(sent, 40)).expect("it fits");
                duo.ends[A].send(slot, tag_of(sent), Token(sent));
                sent += 1;
                tokens += 1;
                refused = 0;
            }
            Err(ReserveError::Full) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        duo.poll(B);
    }
    assert!(sent > 0);
    for number in 0..sent {
        duo.hear_number(B, number, 40);
    }
    let watch = Watch::new("the ends of all messages");
    while tokens > 0 {
        duo.poll(A);
        tokens -= duo.heard[A].drain(..).count() as u64;
        watch.tick();
    }
    duo.expect_health();
}

/// Fragments that are parked keep their bytes while more arrives, and give their credits back in
/// any order and from any thread.
pub fn parked_fragments(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 5000;
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let max = duo.ends[A].limits().max_fragment_bytes.min(5000);
    let mut events = Queue::with_capacity(7);
    let mut parked: Vec<(u64, usize, Fragment)> = Vec::new();
    let mut lengths = VecDeque::new();
    let (to_thread, others) = std::sync::mpsc::channel::<Fragment>();
    let dropper = std::thread::spawn(move || others.iter().for_each(drop));
    let (mut sent, mut got) = (0, 0);
    let mut watch = Watch::new("parked messages");
    while got < MESSAGES {
        let mut idle = true;
        let len = random.below(max + 1);
        if sent < MESSAGES
            && let Ok(mut slot) = duo.ends[A].reserve(duo.peer[A], len)
        {
            slot.write(0, &message(sent, len)).expect("it fits");
            duo.ends[A].send(slot, tag_of(sent), Token::NONE);
            lengths.push_back(len);
            sent += 1;
            idle = false;
        }
        duo.poll(A);
        for event in poll(&mut duo.ends[B], &mut events) {
            let Event::Arrived { tag, fragment, .. } = event else { panic!("{event:?}") };
            assert_eq!(tag, tag_of(got));
            parked.push((got, lengths.pop_front().expect("it was sent"), fragment));
            got += 1;
            idle = false;
        }
        // Sometimes all, sometimes a few, sometimes none.
        let keep = random.below(40);
        if idle || random.chance(100) {
            while parked.len() > keep {
                let (number, len, fragment) = parked.swap_remove(random.below(parked.len()));
                assert_message(&fragment.to_vec().expect("host memory"), number, len);
                if random.chance(300) {
                    to_thread.send(fragment).expect("the thread lives");
                }
            }
        }
        if idle { watch.tick() } else { watch = Watch::new("parked messages") }
    }
    drop((to_thread, duo));
    // Those that are left outlive the transport.
    for (number, len, fragment) in parked {
        assert_message(&fragment.to_vec().expect("host memory"), number, len);
    }
    dropper.join().expect("dropping does not panic");
}

/// Dropping unsent slots frees them, a million times, in any order.
pub fn unsent_slots(suite: &Suite, mut fixture: impl Fixture) {
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let max = duo.ends[A].limits().max_fragment_bytes;
    let mut watch = Watch::new("a slot");
    let mut slots: Vec<Slot> = Vec::new();
    let mut reserved = 0;
    while reserved < 1_000_000 {
        let len = if reserved % 4 == 0 { max } else { random.below(max.min(300)) };
        match duo.ends[A].reserve(duo.peer[A], len) {
            Ok(slot) => {
                slots.push(slot);
                reserved += 1;
                watch = Watch::new("a slot");
            }
            Err(ReserveError::Full) => {
                // Those that are dropped make room at once; only with none out is there a wait.
                if slots.is_empty() {
                    duo.step();
                    watch.tick();
                }
                let keep = random.below(3);
                while slots.len() > keep {
                    slots.swap_remove(random.below(slots.len()));
                }
            }
            Err(error) => panic!("{error}"),
        }
        if random.chance(500) && !slots.is_empty() {
            slots.swap_remove(random.below(slots.len()));
        }
    }
    drop(slots);
    duo.expect_silence();
    duo.expect_health();
}

/// Every token other than [`Token::NONE`] comes back exactly once, even if it is used twice.
pub fn tokens_once(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let mut open: BTreeMap<u64, u32> = BTreeMap::new();
    let mut check = |heard: &mut VecDeque<Seen>, sent: Option<u64>| {
        if let Some(token) = sent {
            *open.entry(token).or_default() += 1;
        }
        for seen in heard.drain(..) {
            let Seen::Sent { token, result } = seen else { panic!("{seen:?}") };
            result.expect("the link stands");
            let count = open.get_mut(&token.0).expect("a token that was given");
            *count = count.checked_sub(1).expect("a token comes once");
        }
        open.values().sum::<u32>()
    };
    let mut received = 0;
    let mut hear = |duo: &mut Duo<_>| {
        for seen in duo.heard[B].drain(..) {
            assert!(matches!(seen, Seen::Message { .. }), "{seen:?}");
            received += 1;
        }
        received
    };
    for number in 0..2000 {
        let token = [number, 7, u64::MAX - 1, 1 << 63, 0][usize::try_from(number % 5).unwrap_or(0)];
        let none = number % 3 == 0;
        let done = if none { Token::NONE } else { Token(token) };
        duo.say(A, AmTag(1), &[1, 2, 3], done);
        check(&mut duo.heard[A], (!none).then_some(token));
        duo.step();
        hear(&mut duo);
    }
    let watch = Watch::new("all tokens");
    while check(&mut duo.heard[A], None) > 0 || hear(&mut duo) < 2000 {
        duo.step();
        watch.tick();
    }
    duo.expect_silence();
}
