//! A peer: what is known of it, how far the link to it is, and what is posted on it.

use crate::acks::AckWord;
use crate::address::IbAddress;
use crate::buffers::Slots;
use crate::credits::{Incoming, Outgoing};
use crate::header::{HEADER_BYTES, Header, MessageKind};
use crate::proof::{Hello, Signs};
use crate::qp_address::QpAddress;
use crate::retain::{Filled, Had, Retained, Sent};
use crate::verbs::pair::{Init, Qp, RdmaKind, ReadyToSend, Sge};
use gapless_btl::{AmTag, LinkError, Token, Unacknowledged};
use std::collections::VecDeque;
use std::time::Instant;

/// One-sided work that may be posted on a link at a time.
pub(crate) const PARTS_MAX: u32 = 16;
/// Grants without a message that may be under way. No more than two are ever due before the peer has taken one: each
/// follows half a window of its messages, and it sends no more than a window without having taken a grant.
pub(crate) const GRANTS_MAX: u32 = 4;

/// Messages up to so many bytes, header included, leave without a buffer, if the device can do that.
pub(crate) const INLINE_BYTES: usize = 192;

/// Receive buffers of a link: its messages, grants, a farewell.
pub(crate) fn receives(buffers: u32) -> u32 {
    buffers + GRANTS_MAX + 1
}

/// What may be posted on a link: messages, of which a window's worth may have arrived without that being known yet,
/// grants, a farewell, a pulse, a count, and one-sided work.
pub(crate) fn sends(buffers: u32) -> u32 {
    2 * buffers + GRANTS_MAX + 3 + PARTS_MAX
}

/// One peer.
pub(crate) struct IbLink {
    pub(crate) address: IbAddress,
    pub(crate) state: LinkState,
    /// A link was asked for, by either end.
    pub(crate) met: bool,
    /// What is sent is retained until the peer's process has it.
    pub(crate) retains: bool,
    /// Of a lost link: messages that the peer may not have.
    pub(crate) unacknowledged: Vec<Unacknowledged>,
}

pub(crate) enum LinkState {
    /// Introduced, and nobody has called yet.
    Known,
    /// We have called, and heard nothing of its queue pair.
    Calling(Box<Calling>),
    /// Both queue pairs know each other.
    Up(Box<Up>),
    Lost(LinkError),
}

/// A queue pair that knows no peer yet.
pub(crate) struct Calling {
    pub(crate) qp: Qp<Init>,
    pub(crate) call: HelloCall,
}

/// The hellos of this process to a peer.
pub(crate) struct HelloCall {
    /// As the peer is to know this end; the flags are set when it is sent.
    pub(crate) hello: Hello,
    /// Where the peer counts our messages.
    pub(crate) ack_word: AckWord,
    /// When the next hello is due.
    pub(crate) due: Instant,
    /// Hellos that the peer has not answered at all.
    pub(crate) unanswered: u32,
    pub(crate) signs: Signs,
}

/// A link over which messages can go.
pub(crate) struct Up {
    pub(crate) qp: Qp<ReadyToSend>,
    pub(crate) call: HelloCall,
    /// The peer's end, as it was told first.
    pub(crate) peer: Hello,
    /// The peer can receive, too.
    pub(crate) stands: bool,
    pub(crate) slots: Slots,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// Messages sent, if the link retains.
    pub(crate) retained: Option<Retained>,
    /// Messages that have come, if the link retains.
    pub(crate) had: Had,
    /// What is posted, in order.
    pub(crate) posted: VecDeque<Posted>,
    /// The next name.
    position: u32,
    sequence_out: u16,
    pub(crate) sequence_in: u16,
    /// Unsignaled sends since the last signaled one.
    unsignaled: u32,
    pub(crate) messages_out: u32,
    pub(crate) grants_out: u32,
    pub(crate) parts_out: u32,
    pub(crate) pulse_out: bool,
    pub(crate) ack_out: bool,
    /// When the peer's adapter has last answered.
    pub(crate) heard: Instant,
    pub(crate) ending: Option<Ending>,
    /// The queue pair takes no more buffers.
    pub(crate) drained: bool,
    /// One-sided operations that are not posted in full.
    pub(crate) operations: VecDeque<u32>,
}

/// A link whose queue pair is in the error state.
pub(crate) struct Ending {
    pub(crate) error: LinkError,
    pub(crate) since: Instant,
    /// Nothing is posted, and a complete look at completions is still due: some may have come before the end.
    pub(crate) empty: bool,
}

/// The queue pair of a link that has ended. It may still hold buffers of the shared receive queue. The device returns
/// them, and then reports the last one. A queue pair that is destroyed earlier takes its buffers along.
pub(crate) struct DrainingQp {
    pub(crate) qp: Qp<ReadyToSend>,
    pub(crate) since: Instant,
    /// The queue pair takes no more buffers.
    pub(crate) drained: bool,
    /// A complete poll of completions has begun since then.
    pub(crate) looked: bool,
}

/// A piece of work that the adapter has.
pub(crate) struct Posted {
    pub(crate) position: u32,
    pub(crate) work: PostedWork,
}

pub(crate) enum PostedWork {
    /// A message, in this slot if it has one.
    Message {
        slot: Option<u32>,
        token: Token,
    },
    /// A message that is retained.
    Retained,
    Grant,
    Farewell,
    Pulse,
    /// How many messages have come.
    Ack,
    /// A part of a one-sided operation.
    OperationPart(OperationPart),
}

/// A part of a one-sided operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationPart {
    pub(crate) operation: u32,
    /// Bytes from the operation's beginning.
    pub(crate) at: u64,
    pub(crate) bytes: u32,
    /// The staging buffer that it goes through.
    pub(crate) staging: Option<u32>,
}

impl IbLink {
    pub(crate) fn new(address: IbAddress) -> IbLink {
        let (state, unacknowledged) = (LinkState::Known, Vec::new());
        IbLink { address, state, met: false, retains: false, unacknowledged }
    }

    pub(crate) fn up(&mut self) -> Option<&mut Up> {
        match &mut self.state {
            LinkState::Up(up) => Some(up),
            _ => None,
        }
    }
}

impl Up {
    pub(crate) fn new(
        qp: Qp<ReadyToSend>,
        call: HelloCall,
        peer: Hello,
        slots: Slots,
        now: Instant,
    ) -> Up {
        let own = call.hello.buffers;
        Up {
            qp,
            call,
            peer,
            stands: peer.knows,
            slots,
            outgoing: Outgoing::new(peer.buffers),
            incoming: Incoming::new(own),
            retained: None,
            had: Had::new(now),
            posted: VecDeque::with_capacity(sends(own) as usize),
            position: 0,
            sequence_out: 0,
            sequence_in: 0,
            unsignaled: 0,
            messages_out: 0,
            grants_out: 0,
            parts_out: 0,
            pulse_out: false,
            ack_out: false,
            heard: now,
            ending: None,
            drained: false,
            operations: VecDeque::new(),
        }
    }

    /// Where the peer's queue pair is.
    pub(crate) fn qp_address(cm: &QpAddress, peer: &Hello) -> QpAddress {
        QpAddress { number: peer.number, ..*cm }
    }

    /// Whether messages can be sent at all.
    pub(crate) fn is_open(&self) -> bool {
        self.stands && self.ending.is_none()
    }

    /// Whether one more message can be posted, besides those in slots that callers have.
    pub(crate) fn has_room(&mut self) -> bool {
        let out = self.slots.out();
        let most = 2 * self.call.hello.buffers;
        self.is_open() && self.outgoing.room() > out && self.messages_out + out < most
    }

    /// The name of the next piece of work on the link of this number.
    fn name(&self, link: u32) -> u64 {
        u64::from(link) << 32 | u64::from(self.position)
    }

    fn header(&mut self, kind: MessageKind, tag: u8, bytes: u32) -> Header {
        let grant = self.incoming.tell();
        let [low, high, ..] = self.had.tell().to_le_bytes();
        let had = u16::from_le_bytes([low, high]);
        Header { kind, tag, grant, sequence: self.sequence_out, had, bytes }
    }

    /// Notes what was posted.
    fn note(&mut self, work: PostedWork) {
        let position = self.position;
        self.position = position.wrapping_add(1);
        match work {
            PostedWork::Message { .. } | PostedWork::Retained => {
                self.messages_out += 1;
                self.outgoing.sent();
                self.sequence_out = self.sequence_out.wrapping_add(1);
            }
            PostedWork::Grant => {
                self.grants_out += 1;
                self.sequence_out = self.sequence_out.wrapping_add(1);
            }
            PostedWork::Farewell => self.sequence_out = self.sequence_out.wrapping_add(1),
            PostedWork::Pulse => self.pulse_out = true,
            PostedWork::Ack => self.ack_out = true,
            PostedWork::OperationPart(_) => self.parts_out += 1,
        }
        self.posted.push_back(Posted { position, work });
    }

    /// Whether the end of the next message is to be told: now and then, so that its buffers come back.
    fn tells(&mut self, wanted: bool) -> bool {
        self.unsignaled += 1;
        let quarter = (self.call.hello.buffers / 4).max(1);
        let told = wanted || self.unsignaled >= quarter || self.slots.free() < 2;
        if told {
            self.unsignaled = 0;
        }
        told
    }

    /// Sends what lies in a slot.
    ///
    /// # Errors
    /// The device is gone: the link ends.
    pub(crate) fn send(
        &mut self,
        link: u32,
        tag: u8,
        filled: Filled,
        token: Token,
    ) -> Result<(), LinkError> {
        let header = self.header(MessageKind::Message, tag, filled.bytes);
        let how = (self.name(link), self.tells(token != Token::NONE));
        // Noted even if it is refused: the link ends, and with it the message.
        let result = self.slots.send(&mut self.qp, how, filled, &header);
        let work = match &mut self.retained {
            None => PostedWork::Message { slot: Some(filled.index), token },
            Some(all) => {
                all.push(Sent { tag, filled, token });
                PostedWork::Retained
            }
        };
        self.note(work);
        result
    }

    /// A message that comes too late to be sent: it is kept if messages are retained, else its buffer is free. Gives
    /// whether it is kept.
    pub(crate) fn keep(&mut self, tag: AmTag, filled: Filled, token: Token) -> bool {
        match &mut self.retained {
            Some(all) => all.push(Sent { tag: tag.0, filled, token }),
            None => self.slots.give(filled.index),
        }
        self.retained.is_some()
    }

    /// Writes into the peer's word how many of its messages have come.
    ///
    /// # Errors
    /// The device is gone: the link ends.
    pub(crate) fn write_ack(&mut self, link: u32) -> Result<(), LinkError> {
        let (name, count) = (self.name(link), u64::from(self.had.tell()));
        self.qp.write_inline(name, true, &count.to_le_bytes(), self.peer.ack_word)?;
        self.unsignaled = 0;
        self.note(PostedWork::Ack);
        Ok(())
    }

    /// Sends a message that fits inline.
    ///
    /// # Panics
    /// It is longer than [`INLINE_BYTES`] with its header.
    ///
    /// # Errors
    /// The device is gone: the link ends.
    pub(crate) fn send_inline(
        &mut self,
        link: u32,
        tag: u8,
        message: &[u8],
    ) -> Result<(), LinkError> {
        let bytes = u32::try_from(message.len()).expect("it is short");
        let header = self.header(MessageKind::Message, tag, bytes).write();
        let mut whole = [0; INLINE_BYTES];
        whole[..HEADER_BYTES].copy_from_slice(&header);
        whole[HEADER_BYTES..][..message.len()].copy_from_slice(message);
        let (name, told) = (self.name(link), self.tells(false));
        self.qp.send_inline(name, told, &whole[..HEADER_BYTES + message.len()])?;
        self.note(PostedWork::Message { slot: None, token: Token::NONE });
        Ok(())
    }

    /// Sends a message of ours.
    ///
    /// # Errors
    /// The device is gone: the link ends.
    pub(crate) fn say(&mut self, link: u32, kind: MessageKind) -> Result<(), LinkError> {
        let header = self.header(kind, 0, 0).write();
        self.qp.send_inline(self.name(link), true, &header)?;
        self.unsignaled = 0;
        self.note(if kind == MessageKind::Farewell {
            PostedWork::Farewell
        } else {
            PostedWork::Grant
        });
        Ok(())
    }

    /// Asks the peer's adapter whether it is there, by writing nothing.
    ///
    /// # Errors
    /// The device is gone: the link ends.
    pub(crate) fn pulse(&mut self, link: u32) -> Result<(), LinkError> {
        let name = self.name(link);
        // SAFETY: there are no pieces.
        unsafe { self.qp.move_bytes(name, true, RdmaKind::Write, &[], (0, 0)) }?;
        self.unsignaled = 0;
        self.note(PostedWork::Pulse);
        Ok(())
    }

    /// Posts a part of a one-sided operation.
    ///
    /// # Safety
    /// As [`Qp::move_bytes`].
    ///
    /// # Errors
    /// The device is gone: the link ends, and the part was not posted.
    pub(crate) unsafe fn part(
        &mut self,
        link: u32,
        part: OperationPart,
        way: RdmaKind,
        pieces: &[Sge],
        remote: (u32, u64),
    ) -> Result<(), LinkError> {
        let name = self.name(link);
        // SAFETY: the caller's promise.
        unsafe { self.qp.move_bytes(name, true, way, pieces, remote) }?;
        self.unsignaled = 0;
        self.note(PostedWork::OperationPart(part));
        Ok(())
    }

    /// The next piece of work that has ended, if all up to `position` have; whether it is the last of these.
    pub(crate) fn ended(&mut self, position: u32) -> Option<(PostedWork, bool)> {
        let first = self.posted.front()?;
        // Names of what has ended already lie behind.
        if position.wrapping_sub(first.position) > u32::MAX / 2 {
            return None;
        }
        let Posted { position: at, work } = self.posted.pop_front()?;
        match &work {
            PostedWork::Message { slot, .. } => {
                self.messages_out -= 1;
                if let Some(slot) = *slot {
                    self.slots.give(slot);
                }
            }
            PostedWork::Retained => self.messages_out -= 1,
            PostedWork::Grant => self.grants_out -= 1,
            PostedWork::Pulse => self.pulse_out = false,
            PostedWork::Ack => self.ack_out = false,
            PostedWork::OperationPart(_) => self.parts_out -= 1,
            PostedWork::Farewell => {}
        }
        Some((work, at == position))
    }

    /// For tests: the number of the next message.
    #[cfg(test)]
    pub(crate) fn next_sequence(&self) -> u16 {
        self.sequence_out
    }

    /// For tests: sends bytes that are no message, although there may be no room.
    #[cfg(test)]
    pub(crate) fn send_raw(&mut self, link: u32, header: &[u8], body: &[u8]) {
        let name = self.name(link);
        self.qp.send_inline(name, true, &[header, body].concat()).expect("the queue has room");
        self.note(PostedWork::Message { slot: None, token: Token::NONE });
    }
}
