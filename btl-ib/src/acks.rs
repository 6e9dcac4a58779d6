//! Links that retain what they send ([`crate::retain`]): how many of its messages a peer is told to have come, and what it
//! says of ours.
//!
//! The count rides on every header. If there is none for a while, or too few, the peer's adapter writes it into an **ack
//! word** (a cumulative acknowledgement), a word of memory of the other end that both hellos name: so it needs no
//! receive buffer, for which nobody vouches. Polls look at the ack words of links that wait for counts. Nobody sleeps
//! for them: what gives room is a grant, which has the count, too.

use crate::ib::Ib;
use crate::link::{IbLink, Up};
use crate::verbs::memory::{Domain, Registered};
use gapless_btl::{AmTag, Event, Fragment, LinkError, PeerId, Short, Sink, Token, hand_out};
use gapless_mem::WORD_BYTES;
use std::sync::Arc;

/// A word into which the peer's adapter writes.
pub(crate) struct AckWord {
    memory: Arc<Registered>,
}

impl AckWord {
    /// # Errors
    /// There is no memory, or the system refused to register it.
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<AckWord, LinkError> {
        let bytes = usize::try_from(WORD_BYTES).unwrap_or(8);
        Ok(AckWord { memory: Registered::written_by_peers(domain, bytes)? })
    }

    /// The adapter's key, and the address, for the peer.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.memory.rkey(), self.memory.region().start())
    }

    /// What was written there last. Adapters write eight aligned bytes as a whole.
    pub(crate) fn read(&self) -> u32 {
        // SAFETY: the memory lives. This process touches it by this call alone; it was zero before peers knew of it.
        let word = unsafe { gapless_mem::load_word(&self.memory.region(), 0) };
        let [a, b, c, d, ..] = word.expect("a page has words").to_ne_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// Passes on what is handed out, and notes the senders and the lengths. A method that [`Sink`] gains must note them, too,
/// but for receive targets: adapters write to buffers of their own, so they never ask for one.
struct Noting<'s> {
    sink: &'s mut dyn Sink,
    from: &'s mut Vec<(u32, u64)>,
}

impl Sink for Noting<'_> {
    fn short(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let taken = self.sink.short(from, tag, message);
        self.from.extend(taken.then_some((from.0, message.len() as u64)));
        taken
    }

    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let taken = self.sink.fragment(from, tag, fragment);
        self.from.extend(taken.then_some((from.0, fragment.len() as u64)));
        taken
    }

    fn event(&mut self, event: Event) {
        if let Event::Arrived { from, fragment, .. } = &event {
            self.from.push((from.0, fragment.len() as u64));
        }
        self.sink.event(event);
    }

    fn room(&self) -> usize {
        self.sink.room()
    }
}

impl Ib {
    /// Has messages to a peer retained, and those from it counted, from now on.
    pub(crate) fn retain_for(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        link.retains = true;
        if let Some(up) = link.up()
            && !up.retains()
        {
            up.retain();
            self.retaining.push(id);
        }
    }

    /// Hands out what waits, and counts messages of links that retain.
    pub(crate) fn hand_out(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        if self.retaining.is_empty() {
            return hand_out(&mut self.outbox, only, sink);
        }
        let mut from = std::mem::take(&mut self.handed_out);
        let count = hand_out(&mut self.outbox, only, &mut Noting { sink, from: &mut from });
        for (id, bytes) in from.drain(..) {
            let up = self.links.get_mut(id as usize).and_then(IbLink::up);
            let first = up.is_some_and(|up| up.retains() && up.had.one_more(bytes, self.ticked));
            // Polls for one peer alone do not take it off the list.
            if first && !self.untold.contains(&id) {
                self.untold.push(id);
            }
        }
        self.handed_out = from;
        count
    }

    /// Tells peers of messages that have come, if nothing else has in time; and looks at what they say.
    pub(crate) fn keep_acks(&mut self, look: bool) {
        if look {
            for at in 0..self.retaining.len() {
                let id = self.retaining[at];
                if let Some(up) = self.links[id as usize].up() {
                    up.look_at_ack_word();
                }
            }
        }
        let mut untold = std::mem::take(&mut self.untold);
        untold.retain(|&id| {
            let Some(up) = self.links[id as usize].up() else { return false };
            let (owes, urgent) = up.owes(self.ticked);
            if !urgent || !up.is_open() || up.ack_out {
                return owes;
            }
            if let Err(error) = up.write_ack(id) {
                self.end(id, error);
            }
            false
        });
        self.untold.append(&mut untold);
    }

    /// A link is lost.
    pub(crate) fn forget_ack_word(&mut self, id: u32) {
        self.retaining.retain(|&it| it != id);
        self.untold.retain(|&it| it != id);
    }
}

impl Up {
    /// What the peer's adapter has written. Nonsense is not believed.
    pub(crate) fn look_at_ack_word(&mut self) {
        let Some(all) = self.retained.as_mut().filter(|all| all.is_waiting()) else { return };
        match all.confirm(self.call.ack_word.read()) {
            Ok(()) => self.free_retained(),
            Err(what) => tracing::debug!(what, "a peer counts what was not sent"),
        }
    }

    /// Whether messages are retained.
    pub(crate) fn retains(&self) -> bool {
        self.retained.is_some()
    }

    /// From now on they are.
    pub(crate) fn retain(&mut self) {
        self.retained.get_or_insert_default();
    }

    /// What a header says of messages of ours that the peer has.
    ///
    /// # Errors
    /// So many were not sent.
    pub(crate) fn confirmed(&mut self, had: u16) -> Result<(), String> {
        if let Some(all) = &mut self.retained {
            all.confirm_short(had)?;
            self.free_retained();
        }
        Ok(())
    }

    /// The adapter has finished with the next retained message: whom to tell of it.
    pub(crate) fn finished(&mut self) -> Token {
        let Some(all) = &mut self.retained else { return Token::NONE };
        let token = all.finish();
        self.free_retained();
        token
    }

    fn free_retained(&mut self) {
        let Up { retained: Some(all), slots, .. } = self else { return };
        while let Some(index) = all.take_free() {
            slots.give(index);
        }
    }

    /// Whether the peer was not told of all that has come; and whether that is urgent.
    fn owes(&self, now: std::time::Instant) -> (bool, bool) {
        self.had.owes(self.call.hello.buffers, now)
    }
}
