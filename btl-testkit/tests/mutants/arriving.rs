//! What a broken transport does to what arrives: messages, ends of operations, deaths.

use crate::mutants::broken::{BEYOND, Broken, FAREWELL};
use crate::mutants::flaws::Flaw;
use gapless_btl::{AmTag, Event, Fragment, LinkError, PeerId, Reclaim, Token};
use gapless_mem::{Device, HostDevice, Region};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers that are used in turn, whoever holds them.
const REUSED: usize = 8;

/// Where fragments of memory that is never freed go back to.
struct Nowhere;

#[allow(unsafe_code, reason = "keeps the contract by doing nothing")]
// SAFETY: the memory is never freed, and given to nobody else but where a flaw says so, in the test that is to catch it.
unsafe impl Reclaim for Nowhere {
    unsafe fn reclaim(&self, _: u64) {}
}

/// Fragments that stand behind those that were handed out, by number.
#[derive(Default)]
pub(crate) struct Held(Mutex<BTreeMap<u64, Fragment>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Fragment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(unsafe_code, reason = "keeps the contract by dropping what it holds")]
// SAFETY: an index names one fragment of the loopback, whose memory is that fragment's until it is dropped here.
unsafe impl Reclaim for Held {
    unsafe fn reclaim(&self, index: u64) {
        let fragment = self.lock().remove(&index);
        drop(fragment);
    }
}

fn gone() -> LinkError {
    LinkError::PeerGone { reason: "it was dropped".to_owned() }
}

fn corrupt() -> LinkError {
    LinkError::Corrupt { what: "a message longer than the longest".to_owned() }
}

#[allow(unsafe_code, reason = "writes memory that fragments lie in")]
fn write(memory: Region, bytes: &[u8]) {
    // SAFETY: the memory is never freed or its fragment is held, no reference covers it, and one thread alone
    // works on it.
    unsafe { gapless_mem::write(&memory, 0, bytes) }.expect("host memory");
}

impl Broken {
    pub(crate) fn take(&mut self, event: Event) {
        self.note(&event);
        match event {
            Event::Arrived { from, tag, fragment } => self.arrived(from, tag, fragment),
            Event::Sent { token, result } => self.sent(token, result),
            Event::Lost { peer, error } => self.lost(peer, error),
            Event::Completed(_) if self.flaw == Flaw::NeverCompletes => {}
            Event::Completed(_) => self.ready.push_back(event),
        }
    }

    /// A copy of the first `len` bytes; the original's room is free at once.
    pub(crate) fn copy(&self, fragment: &Fragment, len: usize, damage: bool) -> Fragment {
        let mut copy = self.copies.buffer(len).expect("as many as tests hold");
        fragment.read(0, &mut copy).expect("host memory");
        if damage {
            copy[len / 2] ^= 1;
        }
        copy.into_fragment()
    }

    /// A fragment in the place of one that is known to be held until this is dropped.
    #[allow(unsafe_code, reason = "makes a fragment of another's memory")]
    fn hold(&self, fragment: Fragment) -> Fragment {
        let (region, index) = (fragment.region(), self.arrivals);
        self.held.lock().insert(index, fragment);
        // SAFETY: `held` keeps the fragment whose memory it is until it reclaims the index, and this keeps
        // `held`. With the flaw `OverwritesParked` it is written nevertheless: all that breaks is what the suite
        // looks at, since it reads by copies, in this thread.
        unsafe { Fragment::new(region, index, Arc::clone(&self.held) as Arc<dyn Reclaim>) }
    }

    /// The message in memory that is used in turn.
    #[allow(unsafe_code, reason = "makes a fragment of memory that is written again: the flaw")]
    fn in_own_memory(&mut self, fragment: &Fragment) -> Fragment {
        let at = usize::try_from(self.arrivals).unwrap_or(0) % REUSED;
        while self.memory.len() <= at {
            let bytes = (self.limits.max_fragment_bytes + BEYOND) as u64;
            self.memory.push(HostDevice::new().allocate(bytes).expect("memory for a test"));
        }
        let memory = self.memory[at].sub(0, fragment.len() as u64).expect("a whole message");
        write(memory, &fragment.to_vec().expect("host memory"));
        // SAFETY: not kept. The memory stays valid, but is written while the fragment lives. All that
        // breaks is what the suite looks at: it reads by copies, in this thread.
        unsafe { Fragment::new(memory, 0, Arc::new(Nowhere)) }
    }

    fn arrived(&mut self, from: PeerId, tag: AmTag, fragment: Fragment) {
        if self.ended.contains(&from) {
            return;
        }
        let len = fragment.len();
        let beyond = len.saturating_sub(self.limits.max_fragment_bytes);
        if beyond > 0 && self.flaw != Flaw::ReservesTooMuch {
            match self.flaw {
                Flaw::FarewellNeedsRoom if beyond == FAREWELL => return self.farewell = true,
                Flaw::DeliversGarbage => {}
                Flaw::PanicsAtGarbage => panic!("a message of {len} bytes"),
                Flaw::CorruptIsGone => return self.end(from, gone()),
                _ => return self.end(from, corrupt()),
            }
        }
        self.arrivals += 1;
        let arrivals = self.arrivals;
        let nth = |n: u64| arrivals.is_multiple_of(n);
        let (mut from, mut tag) = (from, tag);
        let fragment = match self.flaw {
            Flaw::LosesMessages if nth(97) => return,
            Flaw::RepeatsMessages if nth(97) => {
                let again = self.copy(&fragment, len, false);
                self.ready.push_back(Event::Arrived { from, tag, fragment: again });
                fragment
            }
            Flaw::Damages if len > 1000 && nth(20) => self.copy(&fragment, len, true),
            Flaw::Shortens if nth(50) => self.copy(&fragment, len.saturating_sub(1), false),
            Flaw::Rounds if len > 128 && len % 128 < 4 => {
                self.copy(&fragment, len - len % 128, false)
            }
            Flaw::KeepsCredits if nth(10) => {
                let copy = self.copy(&fragment, len, false);
                std::mem::forget(fragment);
                copy
            }
            Flaw::DeathWaitsForFragments | Flaw::OverwritesParked => self.hold(fragment),
            Flaw::ReusesFragments => self.in_own_memory(&fragment),
            Flaw::InventsDeath if nth(500) => return self.end(from, gone()),
            _ => fragment,
        };
        match self.flaw {
            Flaw::CutsTags => tag = AmTag(tag.0 & 0x7f),
            Flaw::BlamesOthers => from = PeerId(from.0 + 1),
            _ => {}
        }
        let swaps = self.flaw == Flaw::Reorders && nth(16);
        self.ready.push_back(Event::Arrived { from, tag, fragment });
        let last = self.ready.len() - 1;
        if swaps && last > 0 && matches!(self.ready[last - 1], Event::Arrived { .. }) {
            self.ready.swap(last - 1, last);
        }
    }

    fn sent(&mut self, token: Token, result: Result<(), LinkError>) {
        self.tokens += 1;
        let tokens = self.tokens;
        let nth = |n: u64| tokens.is_multiple_of(n);
        match self.flaw {
            Flaw::LosesTokens if nth(50) => return,
            Flaw::RepeatsTokens if nth(50) => {
                self.ready.push_back(Event::Sent { token, result: result.clone() });
            }
            Flaw::ForgetsPending | Flaw::EndsPendingLate if self.ended.is_empty() => {
                let due = self.polls + 50;
                return self.late.push_back((due, Event::Sent { token, result }));
            }
            _ => {}
        }
        self.ready.push_back(Event::Sent { token, result });
    }

    /// Gives a peer up.
    fn end(&mut self, peer: PeerId, error: LinkError) {
        // What is under way with it ends first.
        let mut events = gapless_btl::Queue::with_capacity(4096);
        gapless_btl::Btl::poll(&mut self.inner, None, &mut events);
        for event in events.drain() {
            match event {
                Event::Arrived { from, .. } if from == peer => {}
                Event::Lost { peer: lost, .. } if lost == peer => {}
                event => self.take(event),
            }
        }
        self.ended.insert(peer);
        self.ready.push_back(Event::Lost { peer, error });
    }

    fn lost(&mut self, peer: PeerId, error: LinkError) {
        if !self.ended.insert(peer) {
            return;
        }
        let lost = Event::Lost { peer, error: error.clone() };
        match self.flaw {
            Flaw::HidesDeath => {}
            Flaw::FarewellNeedsRoom if !self.farewell => {}
            Flaw::RepeatsDeath => {
                self.ready.push_back(lost);
                self.ready.push_back(Event::Lost { peer, error });
            }
            Flaw::DeathFirst => self.ready.push_front(lost),
            Flaw::DeathDropsTheRest => {
                self.ready.truncate(1);
                self.ready.push_back(lost);
            }
            Flaw::GoneIsCorrupt => self.ready.push_back(Event::Lost { peer, error: corrupt() }),
            Flaw::DeathIsSilent => self.late.push_back((self.polls + 3, lost)),
            Flaw::DeathWaitsForFragments => self.late.push_back((u64::MAX, lost)),
            Flaw::ForgetsPending => {
                self.late.clear();
                self.ready.push_back(lost);
            }
            Flaw::OverwritesParked => {
                for fragment in self.held.lock().values() {
                    write(fragment.region(), &vec![0xDD; fragment.len()]);
                }
                self.ready.push_back(lost);
            }
            _ => self.ready.push_back(lost),
        }
    }

    /// Where a death waits for the fragments: tells it once none is held.
    pub(crate) fn watch_fragments(&mut self) {
        if self.flaw == Flaw::DeathWaitsForFragments && self.held.lock().is_empty() {
            self.ready.extend(self.late.drain(..).map(|(_, event)| event));
        }
    }
}
