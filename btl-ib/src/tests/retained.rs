//! What is retained: ack words, counts that cannot be, and links that are cut at some moment of traffic both ways.

use super::{End, Patience, config, expect_health, joined};
use crate::header::{Header, MessageKind};
use gapless_btl::{AmTag, Btl, Event, LinkError, Queue, ReserveError, Token};
use std::collections::VecDeque;

fn retain([a, b]: &mut [End; 2]) {
    for end in [a, b] {
        end.ib.retain(end.peer);
    }
}

fn outstanding(end: &End) -> u64 {
    end.ib.outstanding(end.peer)
}

/// A receiver that holds everything gives no room back, and no message of its own has the count: its adapter writes it.
#[test]
fn a_receiver_that_says_nothing_writes_the_count() {
    let mut ends = joined(config(0), config(1));
    retain(&mut ends);
    let [a, b] = &mut ends;
    let mut events = Queue::with_capacity(64);
    let mut held = VecDeque::new();
    let patience = Patience::new();
    for count in 1..=12 {
        while !a.send(&[7; 100]) {
            a.poll();
            patience.tick("room");
        }
        while held.len() < count {
            a.poll();
            b.ib.poll(None, &mut events);
            held.extend(events.drain().map(|event| match event {
                Event::Arrived { fragment, .. } => fragment,
                other => panic!("{other:?}"),
            }));
            patience.tick("a message");
        }
    }
    while outstanding(a) > 0 {
        a.poll();
        b.ib.poll(None, &mut events);
        patience.tick("the count");
    }
    let up = b.ib.links[b.peer.0 as usize].up().unwrap();
    assert_eq!(up.incoming.held(), 12, "no room was given back");
    drop(held);
    expect_health(&mut ends);
}

/// Without a poll at the receiver, messages are at its adapter, and the sender retains them.
#[test]
fn what_only_the_adapter_has_is_retained() {
    let mut ends = joined(config(0), config(1));
    retain(&mut ends);
    let [a, _b] = &mut ends;
    assert!(a.send(b"one") && a.send(b"two"));
    let patience = Patience::new();
    while a.sent.len() < 2 {
        a.poll();
        patience.tick("completions");
    }
    assert_eq!(outstanding(a), 6);
    // The adapter has acknowledged both, and the process never looks.
    a.ib.lose(a.peer.0, LinkError::Unreachable { reason: "for a test".to_owned() });
    a.poll();
    let left = a.ib.unacknowledged(a.peer);
    let words: Vec<&[u8]> = left.iter().map(|it| &it.message[..]).collect();
    assert_eq!(words, [b"one", b"two"]);
    assert!(left.iter().all(|it| it.done == Token::NONE && it.tag == AmTag(3)), "they were told");
}

#[test]
fn a_count_of_what_was_not_sent_is_corrupt() {
    let mut ends = joined(config(0), config(1));
    retain(&mut ends);
    let [a, b] = &mut ends;
    let up = b.ib.links[b.peer.0 as usize].up().unwrap();
    let (grant, sequence) = (up.incoming.tell(), up.next_sequence());
    let header = Header { kind: MessageKind::Message, tag: 3, grant, sequence, had: 1, bytes: 4 };
    up.send_raw(b.peer.0, &header.write(), &[0; 4]);
    let patience = Patience::new();
    while a.lost.is_none() {
        a.poll();
        b.poll();
        patience.tick("the loss");
    }
    assert!(matches!(a.lost, Some(LinkError::Corrupt { .. })), "{:?}", a.lost);
}

/// An end of a pair with two links to the other, as a layer above uses them: what one leaves is sent over the other.
struct Both {
    links: [End; 2],
    next: u64,
    again: VecDeque<Vec<u8>>,
    got: Vec<u64>,
}

impl Both {
    /// Sends the next number over one of the links; whether there was room.
    fn say(&mut self, link: usize, len: usize) -> bool {
        let end = &mut self.links[link];
        let Ok(mut slot) = end.ib.reserve(end.peer, len) else { return false };
        slot.write(0, &self.next.to_le_bytes()).unwrap();
        let token = if self.next.is_multiple_of(3) { Token(self.next) } else { Token::NONE };
        end.ib.send(slot, AmTag(3), token);
        self.next += 1;
        true
    }

    fn poll(&mut self) {
        for end in &mut self.links {
            end.poll();
            let numbers = end.heard.drain(..);
            self.got.extend(numbers.map(|it| u64::from_le_bytes(*it.first_chunk().unwrap())));
            if end.lost.is_some() {
                self.again.extend(end.ib.unacknowledged(end.peer).into_iter().map(|it| it.message));
            }
        }
        while let Some(message) = self.again.front() {
            let end = &mut self.links[1];
            match end.ib.reserve(end.peer, message.len()) {
                Ok(mut slot) => {
                    slot.write(0, message).map(|()| end.ib.send(slot, AmTag(3), Token::NONE))
                }
                Err(ReserveError::Full) => return,
                Err(error) => panic!("{error}"),
            }
            .unwrap();
            self.again.pop_front();
        }
    }
}

/// Two links between two processes; one of them is cut at some moment of traffic both ways. What one end had and what the
/// other sends again are all that was sent; no number is missing, and only what is sent again comes twice.
#[test]
fn a_cut_link_leaves_nothing_out() {
    for round in 0..4u64 {
        let [mut first, mut second] = [(); 2].map(|()| joined(config(0), config(1)));
        retain(&mut first);
        retain(&mut second);
        let ([a, b], [c, d]) = (first, second);
        let both = |links| Both { links, next: 0, again: VecDeque::new(), got: Vec::new() };
        let mut ends = [both([a, c]), both([b, d])];
        let patience = Patience::new();
        let cut_at = 20 + round * 17;
        while ends.iter().any(|end| end.next < 150) {
            for (at, end) in ends.iter_mut().enumerate() {
                let link = usize::from(end.next % 2 == 1 || end.links[0].lost.is_some());
                let len = [8, 300, 9_000][(end.next % 3) as usize];
                if end.next < 150 && !end.say(link, len) {
                    end.say(1, len);
                }
                // One end looks seldom, so that messages wait in its adapter.
                if at == 0 || end.next.is_multiple_of(5) || end.next >= 150 {
                    end.poll();
                }
            }
            if ends[0].next == cut_at {
                let end = &mut ends[(round % 2) as usize].links[0];
                if let Some(up) = end.ib.links[end.peer.0 as usize].up() {
                    up.qp.abandon();
                }
            }
            ends.iter_mut().for_each(Both::poll);
            patience.tick("room");
        }
        let complete = |end: &Both| (0..150).all(|number| end.got.contains(&number));
        while !ends.iter().all(complete) || ends.iter().any(|end| end.links[0].lost.is_none()) {
            ends.iter_mut().for_each(Both::poll);
            patience.tick("all messages");
        }
        for end in &ends {
            // Twice come only messages that a link retained: a window's worth each way.
            assert!(end.got.len() <= 150 + 2 * 16, "round {round}: {} messages", end.got.len());
            assert_eq!(end.links[1].lost, None);
        }
    }
}
