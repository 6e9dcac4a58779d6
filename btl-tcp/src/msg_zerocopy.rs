//! Sends without a copy (`MSG_ZEROCOPY`): the system reads a long message where it lies, instead of copying it first.
//!
//! It may read it again until the peer's host has acknowledged it, so the buffer belongs to nobody else until the
//! system says that it has done with it: a *notice*, in the socket's error queue, which epoll tells of. [`MsgZerocopy`]
//! owns such buffers, counts sends and notices (`ledger`), and makes the calls (`calls`). Only buffers of this
//! transport are sent so: a zero-copy send borrows memory for one call only.
//!
//! A link does without, and copies, as soon as the system says that it has copied after all, as it always does between
//! processes of one machine; and it never begins on systems that cannot, on encrypted links, or if nobody wants it. A
//! message is also copied if it is short, if [half](MsgZerocopy::new) of the buffers are under way, or if the system
//! has no memory for a notice ([`Bound`]).
//!
//! The end of a link says nothing about packets that are still on their way out: the system may go on reading after the
//! socket was closed. So a lost link is kept until the last notice, or until 16 more are lost so. Buffers that are
//! without one then, or when a transport is dropped, are never used again. They are unmapped with their pool
//! ([`Buffer::retire`]): the system keeps the pages until it has done with them, and nobody else gets them before.

mod bound;
#[allow(unsafe_code, reason = "setsockopt and recvmsg for what rustix does not have")]
mod calls;
mod ledger;

use crate::connection::Connection;
use bound::Bound;
use calls::CallEntry;
use gapless_btl::LinkError;
use gapless_btl::pool::Buffer;
use ledger::Ledger;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Shorter ones are copied: that is quicker than to have the system find the pages, and to ask for its notice.
const WORTH_BYTES: usize = 32 << 10;

/// Entries of an error queue that are read at a time: the system merges notices, and more are told of again.
const ENTRIES: usize = 1024;

/// Who wants sends without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZerocopyManner {
    Never,
    /// As long as the system does not copy.
    UnlessCopied,
    /// Also if the system says that it copies, and messages of any length.
    #[cfg(test)]
    Always,
}

/// Sends of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MsgZerocopyCounts {
    /// Calls that the system has told of: it has not copied.
    pub(crate) without_copy: u64,
    /// It has copied.
    pub(crate) copied: u64,
    /// It refused, for want of memory.
    pub(crate) refused: u64,
}

/// What one link sends without a copy.
pub(crate) struct MsgZerocopy {
    manner: ZerocopyManner,
    ledger: Ledger,
    /// Buffers that wait for nothing but the notice of this send, and of all before it.
    held: VecDeque<(u64, Buffer)>,
    /// How many sends may be without a notice.
    bound: Bound,
    pub(crate) counts: MsgZerocopyCounts,
    /// The system refuses the next send.
    #[cfg(test)]
    pub(crate) refuse: bool,
}

impl MsgZerocopy {
    /// Of a link with so many long buffers. Half of them at most wait for notices, so that the rest are soon free.
    pub(crate) fn new(
        connection: &Connection,
        manner: ZerocopyManner,
        buffers: usize,
    ) -> MsgZerocopy {
        let wanted = manner != ZerocopyManner::Never && connection.is_plain();
        let can = wanted && calls::allow(connection.socket());
        MsgZerocopy {
            manner: if can { manner } else { ZerocopyManner::Never },
            ledger: Ledger::default(),
            held: VecDeque::new(),
            bound: Bound::new((buffers / 2).max(1)),
            counts: MsgZerocopyCounts::default(),
            #[cfg(test)]
            refuse: false,
        }
    }

    /// Whether so many bytes leave without a copy now.
    pub(crate) fn takes(&self, len: usize) -> bool {
        self.is_worth(len) && self.ledger.outstanding() < self.bound.most()
    }

    fn is_worth(&self, len: usize) -> bool {
        match self.manner {
            ZerocopyManner::Never => false,
            ZerocopyManner::UnlessCopied => len >= WORTH_BYTES,
            #[cfg(test)]
            ZerocopyManner::Always => len > 0,
        }
    }

    /// Sends bytes of a buffer, which belongs to the system until the notice of this send. Gives its number, and how
    /// many bytes there was room for. `None`: they have to be copied, and [`takes`](MsgZerocopy::takes) says so now.
    ///
    /// # Errors
    /// Why nothing more can be written.
    pub(crate) fn send(
        &mut self,
        connection: &Connection,
        bytes: &[u8],
    ) -> Result<Option<(Option<u64>, usize)>, LinkError> {
        let socket = connection.socket();
        #[cfg(test)]
        let sent = if std::mem::take(&mut self.refuse) {
            Err(Errno::NOBUFS)
        } else {
            calls::send(socket, bytes)
        };
        #[cfg(not(test))]
        let sent = calls::send(socket, bytes);
        match sent {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => Ok(Some((None, 0))),
            Ok(count) => Ok(Some((Some(self.ledger.sent()), count))),
            // Memory for notices, or pages that may stay (`ulimit -l`), are used up: no more than there are now.
            Err(Errno::NOBUFS | Errno::NOMEM) => {
                self.counts.refused += 1;
                self.bound.refused(self.ledger.outstanding());
                Ok(None)
            }
            Err(error) => Err(socket.ended(error)),
        }
    }

    /// Keeps a buffer, which has left, until the system has done with it, if part of it was sent as this number.
    pub(crate) fn hold(&mut self, number: Option<u64>, buffer: Buffer) {
        match number {
            Some(number) if !self.ledger.is_over(number) => self.held.push_back((number, buffer)),
            Some(_) => {}
            None if self.is_worth(buffer.len()) => self.bound.copied(),
            None => {}
        }
    }

    /// Whether there will be notices.
    pub(crate) fn awaits_notices(&self) -> bool {
        self.ledger.outstanding() > 0
    }

    /// Reads the error queue, notices and what else is in it, and gives buffers back; whether there was anything.
    pub(crate) fn hear(&mut self, connection: &Connection) -> bool {
        let mut heard = false;
        for _ in 0..ENTRIES {
            let Some(entry) = calls::entry(connection.socket()) else { break };
            heard = true;
            let CallEntry::Notice(notice) = entry else { continue };
            let count = self.ledger.told(notice.first, notice.last);
            self.bound.acknowledged(count);
            if notice.copied {
                self.counts.copied += count;
                self.give_up_on_copies();
            } else {
                self.counts.without_copy += count;
            }
        }
        let MsgZerocopy { held, ledger, .. } = self;
        held.retain(|(number, _)| !ledger.is_over(*number));
        heard
    }

    /// The system copies: then a plain send is quicker.
    fn give_up_on_copies(&mut self) {
        if self.manner == ZerocopyManner::UnlessCopied {
            tracing::debug!(
                "the system copies what is sent without a copy: plain sends from now on"
            );
            self.manner = ZerocopyManner::Never;
        }
    }

    /// All that is sent from now on is copied.
    pub(crate) fn stop(&mut self) {
        self.manner = ZerocopyManner::Never;
    }

    /// Nothing of the link is of use any more: has the system throw away what it has not sent, and hears what it says.
    pub(crate) fn end(&mut self, connection: &Connection) {
        if self.awaits_notices() {
            connection.socket().throw_away();
        }
        self.hear(connection);
    }

    /// How many sends there were.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> u64 {
        self.ledger.next()
    }

    /// As if the system had not told yet of a send.
    #[cfg(test)]
    pub(crate) fn pretend_sent(&mut self) -> u64 {
        self.ledger.sent()
    }

    /// As if it told of that.
    #[cfg(test)]
    pub(crate) fn pretend_told(&mut self, number: u64) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.ledger.told(number, number);
    }

    /// Whether it would still send without a copy.
    #[cfg(test)]
    pub(crate) fn is_on(&self) -> bool {
        self.manner != ZerocopyManner::Never
    }
}

impl Drop for MsgZerocopy {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            let buffers = self.held.len();
            tracing::debug!(buffers, "the system may still read buffers: they are not used again");
        }
        self.held.drain(..).for_each(|(_, buffer)| buffer.retire());
    }
}

#[cfg(test)]
mod tests;
