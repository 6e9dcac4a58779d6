//! How a link comes up, over datagrams that may be lost.
//!
//! Each end makes a queue pair of its own and tells the other of it by a hello, again and again until it is answered. An
//! end that hears a hello connects its queue pair, and says in its own hellos that it `knows` the other. An end that
//! hears that may send: the other receives. It says so by `up`, which needs no answer. Both ends do the same, so it does
//! not matter who calls, or whether both do.
//!
//! ```text
//! caller                                   called
//!   queue pair made
//!   hello                        ──►       queue pair made, connected: receives
//!   connected: receives; may send   ◄──    hello, knows
//!   hello, knows, up             ──►       may send
//! ```
//!
//! A lost hello is repeated, and any hello without `up` is answered; so is one by the first message. A process that
//! does not know the caller yet says nothing ([`crate::pending`]): the caller repeats itself. As long as its connection
//! manager answers, the peer lives. One that has lost the caller, or has no queue pair for it, says so: the caller
//! loses the link, too.

use crate::acks::AckWord;
use crate::address::IbAddress;
use crate::ib::{Ib, random};
use crate::link::{Calling, HelloCall, IbLink, LinkState, Up};
use crate::proof::{Datagram, Hello, Refusal, Signs, Word};
use crate::qp_address::QpAddress;
use crate::verbs::flags::MemoryAccess;
use crate::verbs::pair::{Lengths, Manner, Qp};
use gapless_btl::{Address, LinkError};
use std::time::{Duration, Instant};

/// After the first hello.
const FIRST_INTERVAL: Duration = Duration::from_millis(5);
/// Reads that may be under way in either direction, if adapters can.
const READS: u8 = 16;
/// Datagrams looked at in a poll.
const HEARD_MAX: usize = 64;

impl Ib {
    /// Knows whose address it is.
    pub(crate) fn know(&mut self, address: &Address) -> Result<u32, LinkError> {
        let address = IbAddress::read(address)?;
        let unreachable = |reason: &str| Err(LinkError::Unreachable { reason: reason.to_owned() });
        if address.id == self.address.id {
            return unreachable("a process does not send to itself through an adapter");
        }
        if let Some(&id) = self.by_id.get(&address.id) {
            return Ok(id);
        }
        if address.job != self.address.job {
            return unreachable("it is of another job");
        }
        if address.kind != self.address.kind {
            return unreachable("one end is on InfiniBand, the other on Ethernet");
        }
        self.enter(address)
    }

    /// A row for somebody new.
    fn enter(&mut self, address: IbAddress) -> Result<u32, LinkError> {
        let id = u32::try_from(self.links.len()).ok().filter(|&id| id < 1 << 31);
        let Some(id) = id else {
            return Err(LinkError::Unreachable { reason: "there are too many peers".to_owned() });
        };
        self.pending.introduced(address.id, id);
        self.by_id.insert(address.id, id);
        self.links.push(IbLink::new(address));
        Ok(id)
    }

    /// This process as a peer of its own, over a queue pair that is connected with itself: its hellos come to its own
    /// connection manager, like others'. Nothing but one-sided operations go that way.
    ///
    /// # Errors
    /// The device has no more queue pairs. (A link that has ended is named all the same.)
    pub(crate) fn know_itself(&mut self) -> Result<u32, LinkError> {
        let id = match self.by_id.get(&self.address.id) {
            Some(&id) => id,
            None => self.enter(self.address.clone())?,
        };
        self.call(id)?;
        Ok(id)
    }

    /// Makes the queue pair, and calls the peer, if that was not done.
    pub(crate) fn call(&mut self, id: u32) -> Result<(), LinkError> {
        if !matches!(self.links[id as usize].state, LinkState::Known) {
            return Ok(());
        }
        self.make_pair(id)?;
        self.calling += 1;
        self.say_hello(id, false);
        Ok(())
    }

    fn make_pair(&mut self, id: u32) -> Result<(), LinkError> {
        let each = self.lengths.sends + crate::link::receives(self.config.buffers);
        self.poller.fit((self.pairs + 1) * each)?;
        let qp = self.new_pair()?;
        let mut access = MemoryAccess::REMOTE_READ | MemoryAccess::REMOTE_WRITE;
        access.set(MemoryAccess::REMOTE_ATOMIC, self.lengths.atomics);
        let qp = qp.initialise(self.here, access)?;
        let sequence = u32::from_le_bytes(random()?) >> 8;
        let ack_word = AckWord::new(&self.domain)?;
        let hello = Hello {
            number: qp.number(),
            sequence,
            buffers: self.config.buffers,
            fragment_bytes: u32::try_from(self.config.fragment_bytes).unwrap_or(u32::MAX),
            mtu: self.port.mtu,
            reads: self.numbers.reads_served_max.min(READS),
            ack_word: ack_word.place(),
            knows: false,
            up: false,
            turn: 0,
        };
        self.pairs += 1;
        let signs = Signs::default();
        let call = HelloCall { hello, ack_word, due: Instant::now(), unanswered: 0, signs };
        let link = &mut self.links[id as usize];
        link.met = true;
        link.state = LinkState::Calling(Box::new(Calling { qp, call }));
        Ok(())
    }

    /// A new queue pair, with as much inline as the device gives.
    fn new_pair(&mut self) -> Result<Qp<crate::verbs::pair::Reset>, LinkError> {
        let mut last = None;
        for inline_bytes in [self.lengths.inline_bytes, 64, 16] {
            let lengths = Lengths { inline_bytes, ..self.lengths };
            match Qp::new(&self.poller.cq, &self.srq, &lengths) {
                Ok(qp) => {
                    // What one was given, the next is given.
                    self.lengths = lengths;
                    return Ok(qp);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("it was tried"))
    }

    /// Tells the peer of our end; `again` because it did not answer.
    fn say_hello(&mut self, id: u32, again: bool) {
        let longest = (self.config.notice / 20).min(Duration::from_millis(200));
        let link = &mut self.links[id as usize];
        let (knows, up, call) = match &mut link.state {
            LinkState::Calling(calling) => (false, false, &mut calling.call),
            LinkState::Up(up) => (true, up.stands, &mut up.call),
            LinkState::Known | LinkState::Lost(_) => return,
        };
        if again {
            call.unanswered += 1;
        }
        let wait = FIRST_INTERVAL * 2u32.saturating_pow(call.unanswered.min(10));
        call.due = Instant::now() + wait.min(longest);
        let turn = call.signs.next_turn();
        let word = Word::Hello(Hello { knows, up, turn, ..call.hello });
        let IbAddress { id: from, rank, .. } = self.address;
        let to = link.address.id;
        let datagram = Datagram { from, rank, to, cm: self.address.cm, word };
        self.cm.send(link.address.cm, datagram.seal(&self.keys));
    }

    /// What came to the connection manager.
    pub(crate) fn hear(&mut self) {
        while let Some((id, hello)) = self.pending.next() {
            self.hear_word(id, Word::Hello(hello));
        }
        for _ in 0..HEARD_MAX {
            let Some(Datagram { from, rank, word, .. }) = self.cm.next() else { return };
            match (self.by_id.get(&from), word) {
                (Some(&id), word) => self.hear_word(id, word),
                (None, Word::Hello(hello)) => self.pending.note(from, rank, hello),
                (None, Word::Alive(_) | Word::Refused(_)) => {}
            }
        }
    }

    /// What a peer says.
    fn hear_word(&mut self, id: u32, word: Word) {
        let call = match &mut self.links[id as usize].state {
            LinkState::Calling(calling) => Some(&mut calling.call),
            LinkState::Up(up) => Some(&mut up.call),
            LinkState::Known => None,
            LinkState::Lost(_) => {
                // An end that is up is told by its adapter.
                if let Word::Hello(Hello { up: false, .. }) = word {
                    self.refuse(id, Refusal::Lost);
                }
                return;
            }
        };
        if let Some(call) = call
            && call.signs.take(&word)
        {
            call.unanswered = 0;
        }
        match word {
            Word::Hello(hello) => self.hear_hello(id, hello),
            Word::Alive(_) => {}
            Word::Refused(why) => self.hear_refusal(id, why),
        }
    }

    /// Tells a peer that calls that there will be no link.
    fn refuse(&mut self, id: u32, why: Refusal) {
        let address = &self.links[id as usize].address;
        let IbAddress { id: from, rank, .. } = self.address;
        let word = Word::Refused(why);
        let datagram = Datagram { from, rank, to: address.id, cm: self.address.cm, word };
        self.cm.send(address.cm, datagram.seal(&self.keys));
    }

    fn hear_refusal(&mut self, id: u32, why: Refusal) {
        match &self.links[id as usize].state {
            LinkState::Calling(_) => {}
            LinkState::Up(up) if !up.stands && up.ending.is_none() => {}
            LinkState::Known | LinkState::Up(_) | LinkState::Lost(_) => return,
        }
        let why = match why {
            Refusal::Lost => "it has lost this process, or does not fit to it",
            Refusal::NoRoom => "it has no queue pair left, or no memory for one",
        };
        let reason = format!("{} refuses the link: {why}", self.whom(id));
        self.lose(id, LinkError::Unreachable { reason });
    }

    fn hear_hello(&mut self, id: u32, hello: Hello) {
        if let LinkState::Known = self.links[id as usize].state {
            if let Err(error) = self.make_pair(id) {
                tracing::warn!(%error, "a peer calls, and there is no queue pair for it");
                if !hello.up {
                    self.refuse(id, Refusal::NoRoom);
                }
                return;
            }
            self.calling += 1;
        }
        if let LinkState::Calling(_) = self.links[id as usize].state
            && let Err(error) = self.join(id, hello)
        {
            self.lose(id, error);
            self.refuse(id, Refusal::Lost);
            return;
        }
        let LinkState::Up(up) = &mut self.links[id as usize].state else { return };
        if up.peer.number != hello.number {
            tracing::debug!("a hello of a queue pair that was another's");
            return;
        }
        up.stands |= hello.knows;
        if !hello.up {
            self.say_hello(id, false);
        }
    }

    /// Connects the queue pair with the peer's.
    fn join(&mut self, id: u32, peer: Hello) -> Result<(), LinkError> {
        let own = u32::try_from(self.config.fragment_bytes).unwrap_or(u32::MAX);
        if peer.fragment_bytes != own || !(1..=1024).contains(&peer.buffers) {
            let (bytes, buffers) = (peer.fragment_bytes, peer.buffers);
            let what =
                format!("its fragments are of {bytes} bytes, ours of {own}; {buffers} buffers");
            return Err(LinkError::Incompatible { what });
        }
        let manner = self.manner(&peer);
        let link = &mut self.links[id as usize];
        let place = Up::qp_address(&link.address.cm, &peer);
        let error = LinkError::Unreachable { reason: "the link could not be made".to_owned() };
        let LinkState::Calling(calling) =
            std::mem::replace(&mut link.state, LinkState::Lost(error))
        else {
            return Ok(());
        };
        self.arrivals.grow()?;
        let made = self.connect_pair(id, *calling, peer, &place, &manner);
        if made.is_err() {
            self.arrivals.shrink();
        }
        made
    }

    /// The last part of [`join`](Ib::join), behind which the link is up.
    fn connect_pair(
        &mut self,
        id: u32,
        Calling { qp, call }: Calling,
        peer: Hello,
        place: &QpAddress,
        manner: &Manner,
    ) -> Result<(), LinkError> {
        // A window of ours, and what the peer may not have told of yet.
        let slots = crate::buffers::Slots::new(
            &self.domain,
            self.config.buffers.max(peer.buffers),
            self.config.fragment_bytes,
        )?;
        let qp = qp.hear(self.here, place, peer.sequence, manner)?;
        let mut qp = qp.speak(call.hello.sequence, manner)?;
        qp.keep(slots.memory());
        self.by_number.insert(qp.number(), id);
        let mut up = Up::new(qp, call, peer, slots, Instant::now());
        if self.links[id as usize].retains {
            up.retain();
            self.retaining.push(id);
        }
        self.links[id as usize].state = LinkState::Up(Box::new(up));
        self.make_known(id);
        Ok(())
    }

    fn manner(&self, peer: &Hello) -> Manner {
        // Seven tries take an eighth of the notice, if the adapter keeps to the time; it may take four times as long.
        let tries = self.config.notice.as_nanos() / 8 / 7;
        let timeout = (1..=21u8).rev().find(|&power| (4096u128 << power) <= tries).unwrap_or(1);
        Manner {
            mtu: self.port.mtu.min(peer.mtu),
            reads: self.numbers.reads_max.min(READS).min(peer.reads),
            reads_served: self.numbers.reads_served_max.min(READS),
            timeout,
            // Soft-RoCE takes 7, the most there is, for "for ever".
            retries: 6,
            not_ready_retries: self.config.not_ready_retries,
        }
    }

    /// Calls whose time has come.
    pub(crate) fn call_again(&mut self, now: Instant) {
        // So many hellos take most of the notice.
        let interval = (self.config.notice / 20).min(Duration::from_millis(200));
        let most =
            u32::try_from(self.config.notice.as_millis() * 6 / 10 / interval.as_millis().max(1));
        let most = most.unwrap_or(u32::MAX) + 5;
        let mut calling = 0;
        for id in 0..u32::try_from(self.links.len()).unwrap_or(u32::MAX) {
            let call = match &self.links[id as usize].state {
                LinkState::Calling(calling) => &calling.call,
                LinkState::Up(up) if !up.stands && up.ending.is_none() => &up.call,
                _ => continue,
            };
            if call.unanswered >= most {
                let IbAddress { rank, cm, .. } = &self.links[id as usize].address;
                let reason = format!(
                    "{}: rank {rank} at {cm} answers no call ({most} in {:?})",
                    self.port_name(),
                    self.config.notice
                );
                self.lose(id, LinkError::Unreachable { reason });
                continue;
            }
            calling += 1;
            if call.due <= now {
                self.say_hello(id, true);
            }
        }
        self.calling = calling;
    }
}
