//! A transport around the loopback that breaks one promise, or none: what it sends, how it meets and how
//! it is polled. What arrives is in `arriving.rs`, how it is told in `telling.rs`, what moves without messages in
//! `abilities.rs`.

use crate::mutants::arriving::Held;
use crate::mutants::flaws::Flaw;
use crate::mutants::retaining::Kept;
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_btl::pool::HeapPool;
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, Mapped, Mapping, PeerId, Queue, Rdma,
    ReserveError, SHORT_BYTES, Short, Sink, Slot, Token, Unacknowledged, ZeroCopyMessage,
    ZeroCopyResult,
};
use gapless_mem::{Device, Region};
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::ThreadId;

/// Longer messages than [`Limits::max_fragment_bytes`] break the rules; this much longer ones are possible.
pub(crate) const BEYOND: usize = 16;
/// A message this much too long says farewell, where that is how an end leaves.
pub(crate) const FAREWELL: usize = BEYOND;

pub(crate) struct Broken {
    pub(crate) inner: Loopback,
    pub(crate) flaw: Flaw,
    pub(crate) limits: Limits,
    /// What polls report.
    pub(crate) ready: VecDeque<Event>,
    /// Reports that are held back, and until which poll.
    pub(crate) late: VecDeque<(u64, Event)>,
    /// What waits for a poll.
    outbox: VecDeque<(Slot, AmTag, Token)>,
    /// Lengths that were reserved and not sent.
    reserved: VecDeque<usize>,
    pub(crate) copies: HeapPool,
    /// Peers that broke the rules or are lost.
    pub(crate) ended: HashSet<PeerId>,
    /// Memory of fragments that is used in turn, and never freed.
    pub(crate) memory: Vec<Region>,
    /// Fragments that stand behind those that were handed out.
    pub(crate) held: Arc<Held>,
    pub(crate) farewell: bool,
    pub(crate) arrivals: u64,
    pub(crate) tokens: u64,
    pub(crate) polls: u64,
    reserves: u64,
    connects: u32,
    /// There will be no room any more.
    full: bool,
    /// Refusals without a poll in between.
    refused: u32,
    pub(crate) keys: u32,
    pub(crate) mappings: Vec<Mapping>,
    wake: Option<(UnixStream, UnixStream)>,
    made_in: ThreadId,
    pub(crate) kept: Kept,
}

/// Two ends that break a promise.
pub(crate) fn pair(flaw: Flaw) -> (Broken, Broken) {
    let hub = Hub::new();
    let [mut a, mut b] = Kept::pair().map(|kept| Broken::new(&hub, flaw, kept));
    if flaw == Flaw::DeliversEarly {
        a.inner.connect(&b.inner.address()).expect("an end of the same hub");
        b.inner.connect(&a.inner.address()).expect("an end of the same hub");
    }
    (a, b)
}

impl Broken {
    fn new(hub: &Hub, flaw: Flaw, kept: Kept) -> Broken {
        let default = Config::default();
        let bytes = default.max_fragment_bytes;
        let config = Config { max_fragment_bytes: bytes + BEYOND, ..default };
        let inner = Loopback::with(hub, config);
        let mut limits = Limits { max_fragment_bytes: bytes, ..inner.limits().clone() };
        if flaw == Flaw::ContradictsItself {
            limits.max_fragment_bytes = limits.eager_bytes - 1;
        }
        Broken {
            inner,
            flaw,
            limits,
            ready: VecDeque::new(),
            late: VecDeque::new(),
            outbox: VecDeque::new(),
            reserved: VecDeque::new(),
            copies: HeapPool::new(4096, bytes + BEYOND),
            ended: HashSet::new(),
            memory: Vec::new(),
            held: Arc::default(),
            farewell: false,
            arrivals: 0,
            tokens: 0,
            polls: 0,
            reserves: 0,
            connects: 0,
            full: false,
            refused: 0,
            keys: 0,
            mappings: Vec::new(),
            wake: None,
            made_in: std::thread::current().id(),
            kept,
        }
    }

    fn batches(&self) -> bool {
        use Flaw::{Batches, LeavesWithoutFlushing, SendsBackwards, ShortsOvertake};
        matches!(self.flaw, Batches | LeavesWithoutFlushing | SendsBackwards | ShortsOvertake)
    }

    /// Sends what waits.
    fn flush(&mut self) {
        loop {
            let next = match self.flaw {
                Flaw::SendsBackwards => self.outbox.pop_back(),
                _ => self.outbox.pop_front(),
            };
            let Some((slot, tag, done)) = next else { return };
            self.inner.send(slot, tag, done);
        }
    }

    /// What has come, and what is done about it, for at most `room` events.
    fn gather(&mut self, room: usize) {
        if self.is_cut() {
            return;
        }
        self.polls += 1;
        self.kept.polled();
        self.refused = 0;
        self.flush();
        let polls = self.polls;
        while self.late.front().is_some_and(|(due, _)| *due <= polls) {
            self.ready.extend(self.late.pop_front().map(|(_, event)| event));
        }
        let greedy = matches!(
            self.flaw,
            Flaw::DeathDropsTheRest | Flaw::IgnoresRoom | Flaw::DropsWhatDoesNotFit
        );
        let room = if greedy { 64 } else { room.saturating_sub(self.ready.len()) };
        if room > 0 {
            let mut events = Queue::with_capacity(room);
            self.inner.poll(None, &mut events);
            events.drain().for_each(|event| self.take(event));
        }
        self.watch_fragments();
    }
}

impl Btl for Broken {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        match self.flaw {
            Flaw::SharesAnAddress => Address::new(b"here").expect("short"),
            _ => self.inner.address(),
        }
    }

    fn has_met(&self, peer: PeerId) -> bool {
        self.flaw != Flaw::NeverMeets && self.inner.has_met(peer)
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        self.connects += 1;
        let id = match (self.flaw, self.inner.connect(peer)) {
            (Flaw::AcceptsAddresses, Err(_)) => Ok(PeerId(0)),
            (Flaw::RenamesPeers, Ok(_)) => Ok(PeerId(self.connects - 1)),
            (_, id) => id,
        };
        if self.flaw == Flaw::LosesEarly {
            self.inner.poll(None, &mut Queue::with_capacity(1000));
        }
        id
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        self.reserves += 1;
        let max = self.limits.max_fragment_bytes;
        let reach = if self.flaw == Flaw::ReservesTooMuch { max + BEYOND } else { max };
        if len > reach {
            return Err(ReserveError::TooLong { len, max });
        }
        if self.ended.contains(&to) && self.flaw != Flaw::DeadIsFull {
            let reason = "it has ended".to_owned();
            return Err(LinkError::PeerGone { reason }.into());
        }
        if self.full {
            return Err(ReserveError::Full);
        }
        if self.flaw == Flaw::LeaksSlots && self.reserves.is_multiple_of(1000) {
            std::mem::forget(self.inner.reserve(to, 0));
        }
        let longer = usize::from(self.flaw == Flaw::ReservesLonger);
        let made = self.inner.reserve(to, len + longer);
        match &made {
            Ok(_) => self.reserved.push_back(len),
            Err(ReserveError::Full) if self.flaw == Flaw::NeverFull => {
                return self.copies.slot(to, len);
            }
            Err(ReserveError::Full) => {
                self.refused += 1;
                self.full = self.flaw == Flaw::StaysFull
                    || self.flaw == Flaw::ForgivesNothing && self.refused > 50;
            }
            Err(_) => {}
        }
        made.map_err(|error| match (self.flaw, error) {
            (Flaw::FullIsAnError, ReserveError::Full) => {
                LinkError::System { operation: "send", reason: "no room".to_owned() }.into()
            }
            (Flaw::NobodyIsFull, _) => ReserveError::Full,
            (Flaw::DeadIsFull, ReserveError::Link(_)) => ReserveError::Full,
            (_, error) => error,
        })
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let to = slot.peer();
        let reserved = self.reserved.pop_front().unwrap_or_default();
        let elsewhere = std::thread::current().id() != self.made_in;
        match self.flaw {
            Flaw::LivesInOneThread if elsewhere => return,
            Flaw::ForgetsItself if self.inner.connect(&self.inner.address()) == Ok(to) => return,
            Flaw::DeadSwallows if self.ended.contains(&to) => return,
            Flaw::IgnoresTruncation if slot.len() < reserved => {
                if let Ok(whole) = self.inner.reserve(to, reserved) {
                    return self.inner.send(whole, tag, done);
                }
            }
            _ => {}
        }
        let slot = match self.copies.open(slot) {
            // There was no room for it.
            Ok(_) => return,
            Err(slot) => slot,
        };
        if self.keep(&slot, tag, done) {
            return;
        }
        if self.flaw == Flaw::TellsUnasked && done == Token::NONE {
            self.ready.push_back(Event::Sent { token: done, result: Ok(()) });
        }
        if self.batches() && !self.ended.contains(&to) {
            self.outbox.push_back((slot, tag, done));
        } else {
            self.inner.send(slot, tag, done);
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let room = sink.room();
        self.gather(room);
        while self.flaw == Flaw::PollWaits && self.ready.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            self.gather(room);
        }
        let count = self.tell(only, sink);
        if self.flaw == Flaw::DropsWhatDoesNotFit {
            self.ready.clear();
        }
        if self.flaw == Flaw::Miscounts && count > 0 { count + 1 } else { count }
    }

    fn send_short(&mut self, to: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let len = match self.flaw {
            Flaw::ShortsAreWords => message.len().next_multiple_of(8).min(SHORT_BYTES),
            _ => message.len(),
        };
        let mut slot = match self.reserve(to, len) {
            Ok(slot) => slot,
            Err(error) => return self.flaw == Flaw::ShortsLie && error == ReserveError::Full,
        };
        let bytes = message.words().iter().flat_map(|word| word.to_ne_bytes());
        let bytes: Vec<u8> = bytes.take(len).collect();
        slot.write(0, &bytes).expect("it fits");
        if self.flaw == Flaw::ShortsOvertake {
            self.inner.send(slot, tag, Token::NONE);
        } else {
            self.send(slot, tag, Token::NONE);
        }
        true
    }

    fn send_zero_copy(
        &mut self,
        to: PeerId,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        let cut = usize::from(self.flaw == Flaw::ZeroCopyIsCut && message.len() > 1);
        let mut bytes = vec![0; message.len() - cut];
        message.copy_out(0, &mut bytes);
        match self.reserve(to, bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, &bytes).expect("it fits");
                self.send(slot, tag, Token::NONE);
                ZeroCopyResult::Sent
            }
            Err(ReserveError::Full) if self.flaw == Flaw::ZeroCopyLies => ZeroCopyResult::Sent,
            Err(ReserveError::Full) => ZeroCopyResult::Full,
            Err(_) => ZeroCopyResult::Never,
        }
    }

    fn is_quiet(&self) -> bool {
        self.flaw == Flaw::AlwaysQuiet
    }

    fn arm(&mut self) -> Option<RawFd> {
        match self.flaw {
            Flaw::ClosedArm => return Some(RawFd::MAX),
            Flaw::DeafArm => {
                let (wake, _) =
                    self.wake.get_or_insert_with(|| UnixStream::pair().expect("a pair"));
                return Some(wake.as_raw_fd());
            }
            _ => {}
        }
        self.inner.arm().filter(|_| self.ready.is_empty())
    }

    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        match self.flaw {
            Flaw::KeepsDevices => std::mem::forget(Arc::clone(device)),
            Flaw::RefusesDevices => {
                return Err(LinkError::System { operation: "attach", reason: "no".to_owned() });
            }
            _ => {}
        }
        self.inner.attach(device)
    }

    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        self.inner.detach(device)
    }

    fn retains(&self) -> bool {
        true
    }

    fn retain(&mut self, _: PeerId) {
        self.kept.wanted = true;
    }

    fn unacknowledged(&mut self, _: PeerId) -> Vec<Unacknowledged> {
        self.give_back()
    }

    fn outstanding(&self, _: PeerId) -> u64 {
        self.kept.outstanding(self.flaw)
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        Some(self)
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        Some(self)
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        match self.flaw {
            Flaw::LeavesWithoutFlushing => self.outbox.clear(),
            Flaw::FarewellNeedsRoom => {
                let farewell = self.limits.max_fragment_bytes + FAREWELL;
                if let Ok(slot) = self.inner.reserve(PeerId(0), farewell) {
                    self.inner.send(slot, AmTag(0), Token::NONE);
                }
            }
            _ => self.flush(),
        }
    }
}
