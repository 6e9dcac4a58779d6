//! Sends what is to be sent, as far as there is room: packet, arguments and payload are gathered straight into the
//! transport's memory.

use super::initiator::{Outbox, PutStage, QueuedMessage};
use super::{Blamed, PeerLink, XtqState};
use crate::gather::{GatherInto, PayloadBytes};
use crate::wire::{BODY_AT, HEAD_BYTES, Head};
use gapless_bml::{AmTag, Bml, LinkError, PeerState, Rank, ReserveError, Token};
use zerocopy::IntoBytes;

/// The tag of messages, unless the end has one of its own.
pub(super) const TAG: AmTag = AmTag(32);

/// What became of an item.
enum Sent {
    /// It has left, or is not needed any more.
    Done,
    /// There is more of it; others may go in between.
    More,
    /// There is more of it, which goes next.
    Piece,
    /// There is no room now.
    Full,
    /// There is no link any more.
    Gone,
}

/// Sends one message, of several parts and then of what may have to be gathered.
fn send(
    bml: &mut Bml,
    (tag, link): (u8, &mut PeerLink),
    to: Rank,
    head: Head,
    parts: &[&[u8]],
    last: PayloadBytes<'_>,
) -> Sent {
    let before = HEAD_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let len = before + last.len();
    let mut slot = match bml.reserve(to, len) {
        Ok(slot) => slot,
        Err(ReserveError::Full) => return Sent::Full,
        Err(error) => {
            tracing::debug!(%to, %error, "a message is not sent");
            return Sent::Gone;
        }
    };
    let mut at = 0;
    let head = head.write(link.out);
    for part in std::iter::once(&head[..]).chain(parts.iter().copied()) {
        if let Err(error) = slot.write(at, part) {
            tracing::error!(%to, %error, "a slot that cannot be written");
            return Sent::Gone;
        }
        at += part.len();
    }
    if let Err(error) = last.write(GatherInto::message(&mut slot, before, last.len())) {
        tracing::error!(%to, %error, "a slot that cannot be written");
        return Sent::Gone;
    }
    bml.send(slot, AmTag(tag), Token::NONE);
    link.out = link.out.wrapping_add(1);
    Sent::Done
}

/// What of two parts, one behind the other, lies in `from..to` of both.
fn window<'p>(
    first: &'p [u8],
    second: PayloadBytes<'p>,
    from: usize,
    to: usize,
) -> (&'p [u8], PayloadBytes<'p>) {
    let (a, b) = (from.min(first.len()), to.min(first.len()));
    let behind = |at: usize| at.saturating_sub(first.len()).min(second.len());
    (&first[a..b], second.sub(behind(from)..behind(to)))
}

/// Messages to one peer at a time: one that takes as fast as we send must not hold up all others.
const MESSAGES_MAX: usize = 64;

impl XtqState {
    /// Sends as much as there is room for, and a limited number of messages. Gives how many have left.
    pub(super) fn flush(&mut self, bml: &mut Bml) -> usize {
        let ranks: Vec<u32> = self.initiator.outbox.keys().copied().collect();
        ranks.into_iter().map(|rank| self.flush_peer(bml, Rank(rank))).sum()
    }

    /// As [`flush`](XtqState::flush), to one peer.
    pub(super) fn flush_peer(&mut self, bml: &mut Bml, to: Rank) -> usize {
        let Some(mut outbox) = self.initiator.outbox.remove(&to.0) else { return 0 };
        let sent = self.flush_to(bml, to, &mut outbox);
        // Sending queues nothing.
        if !outbox.items.is_empty() {
            self.initiator.outbox.insert(to.0, outbox);
        }
        sent
    }

    fn flush_to(&mut self, bml: &mut Bml, to: Rank, outbox: &mut Outbox) -> usize {
        let mut sent = 0;
        while let Some(item) = outbox.items.front_mut().filter(|_| sent < MESSAGES_MAX) {
            let result = match item {
                QueuedMessage::Put(id, number) => self.send_put(bml, to, *id, *number),
                QueuedMessage::Data(id) => self.send_data(bml, to, *id),
                QueuedMessage::Answer(put, answer, at) => {
                    self.send_answer(bml, to, *put, (answer, at))
                }
                QueuedMessage::Say(head, text) => {
                    let link = self.links.entry(to.0).or_default();
                    send(bml, (self.tag, link), to, *head, &[], PayloadBytes::One(text))
                }
            };
            match result {
                Sent::Full => break,
                Sent::Done => outbox.pop(),
                Sent::Piece => {}
                Sent::More => outbox.items.rotate_left(1),
                Sent::Gone => {
                    self.initiator.lose(to, &why_gone(bml, to));
                    *outbox = Outbox::default();
                    return sent;
                }
            }
            sent += 1;
        }
        sent
    }

    fn send_put(&mut self, bml: &mut Bml, to: Rank, id: u64, number: Option<u64>) -> Sent {
        let Some(put) = self.initiator.puts.get_mut(&id) else { return Sent::Done };
        bml.look_up(to);
        let Some(longest) = bml.limits(to).map(|limits| limits.max_fragment_bytes) else {
            return if matches!(bml.state(to), PeerState::Up) { Sent::Full } else { Sent::Gone };
        };
        let whole = BODY_AT + put.body_bytes() <= longest;
        let (arguments, payload) = match whole {
            true => (put.arguments.bytes(), put.payload.part()),
            false => (&[][..], PayloadBytes::One(&[])),
        };
        let parts = [put.packet.as_bytes(), arguments];
        let link = self.links.entry(to.0).or_default();
        let sent = send(bml, (self.tag, link), to, Head::Put { put: id, number }, &parts, payload);
        if matches!(sent, Sent::Done) {
            put.whole = whole;
            put.stage = PutStage::Asked;
        }
        sent
    }

    /// Sends the next piece of an answer; the last one says that the task has ended. No other message goes in between,
    /// so that its memory is soon free.
    fn send_answer(
        &mut self,
        bml: &mut Bml,
        to: Rank,
        put: u64,
        (answer, at): (&[u8], &mut usize),
    ) -> Sent {
        let end = answer.len().min(at.saturating_add(room(bml, to)));
        let is_last = end == answer.len();
        let head = if is_last { Head::Ended { put, failed: false } } else { Head::Answer { put } };
        let link = self.links.entry(to.0).or_default();
        let piece = PayloadBytes::One(&answer[*at..end]);
        let sent = send(bml, (self.tag, link), to, head, &[], piece);
        if is_last || !matches!(sent, Sent::Done) {
            return sent;
        }
        *at = end;
        Sent::Piece
    }

    fn send_data(&mut self, bml: &mut Bml, to: Rank, id: u64) -> Sent {
        let Some(put) = self.initiator.puts.get_mut(&id) else { return Sent::Done };
        let PutStage::Streaming { transfer, offset } = put.stage else { return Sent::Done };
        let (len, at) = (put.body_bytes(), usize::try_from(offset).unwrap_or(usize::MAX));
        let end = len.min(at.saturating_add(room(bml, to)));
        let (first, rest) = window(put.arguments.bytes(), put.payload.part(), at, end);
        let link = self.links.entry(to.0).or_default();
        let sent = send(bml, (self.tag, link), to, Head::Data { transfer, offset }, &[first], rest);
        if !matches!(sent, Sent::Done) {
            return sent;
        }
        if end == len {
            put.stage = PutStage::Asked;
            put.whole = true;
            return Sent::Done;
        }
        put.stage = PutStage::Streaming { transfer, offset: end as u64 };
        Sent::More
    }
}

/// Bytes of a piece.
fn room(bml: &Bml, to: Rank) -> usize {
    let longest = bml.limits(to).map_or(0, |limits| limits.max_fragment_bytes);
    longest.saturating_sub(HEAD_BYTES).max(1)
}

/// Why a peer has no link, and who is to blame for that.
fn why_gone(bml: &Bml, rank: Rank) -> Blamed {
    bml.blame(rank).unwrap_or_else(|| {
        let reason = format!("its link is {:?}", bml.state(rank));
        (rank, LinkError::Unreachable { reason })
    })
}

#[cfg(test)]
mod tests {
    use super::{PayloadBytes, window};
    use crate::Payload;

    #[test]
    fn a_window_of_two_parts_has_the_bytes_of_both() {
        let pieces = Payload::pieces([&b"d"[..], b"ef", b"gh"]);
        for second in [PayloadBytes::One(b"defgh"), pieces.part()] {
            for from in 0..=8 {
                for to in from..=8 {
                    let (a, b) = window(b"abc", second, from, to);
                    assert_eq!([a, &b.to_vec()].concat(), b"abcdefgh"[from..to]);
                }
            }
        }
    }
}
