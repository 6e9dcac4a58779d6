//! What a transport does that looks at the next message of one peer, and has it by value.

use gapless_btl::{Event, PeerId, SHORT_BYTES, Short, Sink};
use std::collections::VecDeque;

/// Offers the next event, if it is a short message of this peer; how many were taken.
pub(crate) fn offer_next(queue: &mut VecDeque<Event>, peer: PeerId, sink: &mut dyn Sink) -> usize {
    let Some(Event::Arrived { from, tag, fragment }) = queue.front() else { return 0 };
    let mut bytes = fragment.to_vec().unwrap();
    let len = bytes.len();
    if *from != peer || len > SHORT_BYTES {
        return 0;
    }
    bytes.resize(len.next_multiple_of(8), 0xEE);
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    if !sink.short(peer, *tag, Short::new(&words, len)) {
        return 0;
    }
    queue.pop_front();
    1
}
