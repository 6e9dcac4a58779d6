//! Lists of events that are short, or full.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen, message, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{Btl, Queue, Token};
use gapless_testkit::Random;

/// A poll gives no more events than there is room for, none where there is none, and loses none: of messages, which
/// may have been offered and are refused here, and of ends.
pub fn no_more_than_there_is_room_for(suite: &Suite, mut fixture: impl Fixture) {
    const MESSAGES: u64 = 400;
    for room in 1..4 {
        let mut random = Random::new(suite.seed());
        let mut duo = Duo::new(&mut fixture);
        let ordered = duo.ends[A].limits().ordered;
        let mut lists = [A, B].map(|_| Queue::with_capacity(room));
        let (mut sent, mut ended, mut came) = (0, 0, Vec::new());
        let watch = Watch::new("all messages and their ends");
        while ended < MESSAGES || came.len() as u64 != MESSAGES {
            // Several at a time, so that there is more than can be told.
            while sent < MESSAGES
                && random.chance(800)
                && let Ok(mut slot) = duo.ends[A].reserve(duo.peer[A], 24)
            {
                slot.write(0, &message(sent, 24)).expect("it fits");
                duo.ends[A].send(slot, tag_of(sent), Token(sent));
                sent += 1;
            }
            for side in [A, B] {
                let list = &mut lists[side];
                let before = list.len();
                let only = random.chance(300).then_some(duo.peer[side]);
                let added = duo.ends[side].poll(only, list);
                assert_eq!(list.len(), before + added, "a poll says how many there were");
                assert!(list.len() <= room, "{} events, and room for {room}", list.len());
                // Now and then the list is left as it is.
                if random.chance(600) {
                    for event in list.drain() {
                        match Seen::of(event) {
                            Seen::Sent { result: Ok(()), .. } if side == A => ended += 1,
                            Seen::Message { tag, bytes, .. } if side == B => {
                                came.push((tag, bytes))
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
            watch.tick();
        }
        let mut right: Vec<_> = (0..MESSAGES).map(|n| (tag_of(n), message(n, 24))).collect();
        if !ordered {
            came.sort();
            right.sort();
        }
        assert!(came == right, "not the messages that were sent");
        duo.expect_silence();
    }
}
