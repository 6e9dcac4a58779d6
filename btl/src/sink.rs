//! The one way in for what arrives: [`Sink`]; [`Queue`], a sink that keeps events; and [`hand_out`], for transports
//! that keep theirs in a queue.

use crate::{AmTag, Event, Fragment, PeerId, Short, TargetAnswer};
use std::collections::VecDeque;

/// Receives the messages and events of a [poll](crate::Btl::poll).
///
/// A message is offered first, by [`short`](Sink::short) if the transport has it by value, else by
/// [`fragment`](Sink::fragment). This is the first phase: it runs inside the poll, so nothing can be sent from there.
/// A sink that refuses a message (`false`) gets it as [`Event::Arrived`] by [`event`](Sink::event), as everything
/// else. That is the second phase: the sink keeps the event, and whoever polls acts on it once the transport is free.
pub trait Sink {
    /// Takes a short message. `false`: nothing has changed, and the message comes as an event. By default refused.
    fn short(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let _ = (from, tag, message);
        false
    }

    /// Takes a message out of the transport's memory, which is the transport's again when this returns. Else as
    /// [`short`](Sink::short).
    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let _ = (from, tag, fragment);
        false
    }

    /// Where the end of a message of `len` bytes goes that begins with `head`, if the sink knows that already: the
    /// transport may put it there itself, instead of into a fragment. Only messages that may be offered now are asked for;
    /// asking changes nothing, and may be for nothing.
    ///
    /// When the message is there in full, the transport says so ([`target_filled`](Sink::target_filled)) in a poll in which it
    /// may be offered. Until then it asks again in each poll that puts something there. If a sink has given a target
    /// that [keeps](crate::ReceiveTarget::keeps) and gives none later, the message comes as a fragment, and what was
    /// put there is unknown: zeros. By default nowhere.
    fn receive_target(
        &mut self,
        from: PeerId,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        let _ = (from, tag, head, len);
        TargetAnswer::Nowhere
    }

    /// All of the message is in its [target](Sink::receive_target), and thereby taken. Nothing else was offered
    /// since the sink last said where.
    fn target_filled(&mut self, from: PeerId, tag: AmTag, head: &[u8], len: usize) {
        let _ = (from, tag, head, len);
    }

    /// Takes an event. A transport calls it only while there is [`room`](Sink::room).
    fn event(&mut self, event: Event);

    /// How many more events there is room for: each takes one, and a message that is taken in the first phase none.
    fn room(&self) -> usize;
}

/// A sink that refuses every message and keeps the events, to be looked at after the poll.
///
/// Memory for `capacity` events is allocated once. A transport that gives more than there is [`room`](Sink::room) for
/// loses none: the list grows.
#[derive(Debug)]
pub struct Queue {
    list: Vec<Event>,
    capacity: usize,
}

impl Queue {
    /// Room for `capacity` events (at least 1).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Queue {
        let capacity = capacity.max(1);
        Queue { list: Vec::with_capacity(capacity), capacity }
    }

    /// How many events there is room for in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many events wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether none wait.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all events, oldest first.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.list.drain(..)
    }
}

impl Sink for Queue {
    #[inline]
    fn event(&mut self, event: Event) {
        self.list.push(event);
    }

    #[inline]
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.list.len())
    }
}

/// What [`Btl::poll`](crate::Btl::poll) does in a transport that keeps what it has to say in a queue, oldest first:
/// gives from `ready` to `sink` what `only` allows and there is room for. Gives how many messages and events that was.
pub fn hand_out(ready: &mut VecDeque<Event>, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
    let Some(peer) = only else { return hand_out_all(ready, sink) };
    let next = ready.iter().enumerate().find_map(|(at, event)| match event {
        Event::Arrived { from, tag, fragment } if *from == peer => Some((at, *tag, fragment)),
        _ => None,
    });
    let Some((at, tag, fragment)) = next else { return 0 };
    if sink.fragment(peer, tag, fragment) {
        ready.remove(at);
    } else if sink.room() > 0
        && let Some(event) = ready.remove(at)
    {
        sink.event(event);
    } else {
        return 0;
    }
    1
}

fn hand_out_all(ready: &mut VecDeque<Event>, sink: &mut dyn Sink) -> usize {
    let (mut room, mut count) = (sink.room(), 0);
    // Behind an event nothing is offered: it would overtake.
    let mut offers = true;
    while let Some(next) = ready.front() {
        if let Event::Arrived { from, tag, fragment } = next
            && offers
            && sink.fragment(*from, *tag, fragment)
        {
            ready.pop_front();
        } else if room > 0
            && let Some(event) = ready.pop_front()
        {
            sink.event(event);
            (room, offers) = (room - 1, false);
        } else {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::HeapPool;
    use crate::{LinkError, Token};

    /// Takes messages of tags from 10 on.
    struct FromTag10 {
        taken: Vec<u8>,
        events: Queue,
        room: usize,
    }

    impl Sink for FromTag10 {
        fn fragment(&mut self, _: PeerId, tag: AmTag, _: &Fragment) -> bool {
            assert!(self.events.is_empty(), "nothing is offered behind an event");
            self.taken.extend((tag.0 >= 10).then_some(tag.0));
            tag.0 >= 10
        }

        fn event(&mut self, event: Event) {
            self.events.event(event);
        }

        fn room(&self) -> usize {
            self.room - self.events.len()
        }
    }

    fn sink(room: usize) -> FromTag10 {
        FromTag10 { taken: Vec::new(), events: Queue::with_capacity(9), room }
    }

    /// Messages by sender and tag; an event that is none in front.
    fn ready(messages: &[(u32, u8)]) -> VecDeque<Event> {
        let pool = HeapPool::new(9, 8);
        let arrived = messages.iter().map(|&(from, tag)| Event::Arrived {
            from: PeerId(from),
            tag: AmTag(tag),
            fragment: pool.buffer(1).unwrap().into_fragment(),
        });
        arrived.collect()
    }

    /// Tags of messages; 0 for all other events.
    fn tags(events: impl Iterator<Item = Event>) -> Vec<u8> {
        let tag = |event| if let Event::Arrived { tag, .. } = event { tag.0 } else { 0 };
        events.map(tag).collect()
    }

    #[test]
    fn behind_what_is_refused_everything_is_an_event() {
        let mut queue = ready(&[(1, 10), (2, 11), (1, 3), (2, 12), (1, 13)]);
        let mut sink = sink(2);
        assert_eq!(hand_out(&mut queue, None, &mut sink), 4);
        assert_eq!((&sink.taken[..], tags(sink.events.drain())), (&[10, 11][..], vec![3, 12]));
        assert_eq!(hand_out(&mut queue, None, &mut sink), 1);
        assert_eq!((sink.taken.len(), queue.len()), (3, 0));
    }

    #[test]
    fn without_room_what_is_refused_stays() {
        let mut queue = ready(&[(1, 10), (1, 3), (1, 10)]);
        queue.push_front(Event::Sent { token: Token(7), result: Ok(()) });
        let mut sink = sink(0);
        assert_eq!(hand_out(&mut queue, None, &mut sink), 0, "an event is in front");
        queue.pop_front();
        assert_eq!(hand_out(&mut queue, None, &mut sink), 1);
        for only in [None, Some(PeerId(1))] {
            assert_eq!(hand_out(&mut queue, only, &mut sink), 0);
        }
        assert_eq!(tags(queue.into_iter()), [3, 10]);
    }

    #[test]
    fn one_peer_alone_gets_its_next_message_through() {
        let mut queue = ready(&[(2, 10), (1, 3), (1, 10)]);
        queue.push_front(Event::Sent { token: Token(7), result: Ok(()) });
        queue.push_back(Event::Lost {
            peer: PeerId(1),
            error: LinkError::PeerGone { reason: String::new() },
        });
        let mut sink = sink(9);
        let mut look = |peer| {
            let count = hand_out(&mut queue, Some(PeerId(peer)), &mut sink);
            (count, tags(sink.events.drain()), std::mem::take(&mut sink.taken))
        };
        assert_eq!(look(1), (1, vec![3], vec![]));
        assert_eq!(look(1), (1, vec![], vec![10]));
        assert_eq!(look(1), (0, vec![], vec![]), "its loss is no message");
        assert_eq!(look(2), (1, vec![], vec![10]));
        assert_eq!(look(7), (0, vec![], vec![]));
        assert_eq!(tags(queue.into_iter()), [0, 0]);
    }
}
