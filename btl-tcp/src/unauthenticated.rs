//! Whoever has called and not proved itself: how much it may cost.
//!
//! Every host that reaches a port of ours can call. An unauthenticated process holds one descriptor and the bytes of a
//! greeting, until it has proved itself, says something wrong, hangs up, is silent for too long or makes room for
//! another. A **pending connection** has greeted as a process of the job that was not introduced to us yet: it waits
//! until that is done, however long. Only the secret makes such a greeting, and one that was recorded is heard from one
//! caller at a time.

use crate::proof::{ANSWER_BYTES, HELLO_BYTES, Hello, PROOF_BYTES, Talk};
use crate::socket::Socket;
use crate::tls::Handshake;
use gapless_btl::Callers;
use rustix::process::{Resource, getrlimit};
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The most unauthenticated processes at a time, whatever the limit on open files.
const UNAUTHENTICATED_MAX: u64 = 1024;
/// As many there may be, however low that is.
const UNAUTHENTICATED_MIN: u64 = 16;

/// A recorded greeting is answered once more, and never proved. Who has sent it would hold a descriptor for ever.
const PROOF_TIMES: u32 = 4;

/// How far an unauthenticated process has come.
pub(crate) enum UnauthenticatedStage {
    /// Its hello is not here in full: nothing of it was looked at.
    Silent { bytes: [u8; HELLO_BYTES], got: usize },
    /// Its hello was proved, and the peer is not known yet.
    Pending { hello: Hello, talk: [u8; HELLO_BYTES] },
    /// The hello of this peer was answered: its own proof is due.
    Answered {
        peer: u32,
        talk: Box<Talk>,
        answer: [u8; ANSWER_BYTES],
        proof: [u8; PROOF_BYTES],
        got: usize,
    },
    /// This peer has proved itself, and the keys of the connection are being made.
    Securing { peer: u32, talk: Box<Talk>, handshake: Box<Handshake> },
}

impl UnauthenticatedStage {
    /// The peer whose call it is, once its hello was answered.
    pub(crate) fn peer(&self) -> Option<u32> {
        match *self {
            UnauthenticatedStage::Answered { peer, .. }
            | UnauthenticatedStage::Securing { peer, .. } => Some(peer),
            UnauthenticatedStage::Silent { .. } | UnauthenticatedStage::Pending { .. } => None,
        }
    }
}

pub(crate) struct Unauthenticated {
    pub(crate) socket: Socket,
    /// When it came, or was answered.
    pub(crate) since: Instant,
    pub(crate) stage: UnauthenticatedStage,
}

/// All of them, by number.
pub(crate) struct UnauthenticatedList {
    places: Vec<Option<Unauthenticated>>,
    count: usize,
    /// The ranks of pending connections that are new.
    called: Callers,
    /// What unauthenticated processes do again and again is told now and then.
    pub(crate) warning: RepeatedWarning,
}

impl UnauthenticatedList {
    pub(crate) fn new() -> UnauthenticatedList {
        // An eighth of what this process may open.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = (limit / 8).clamp(UNAUTHENTICATED_MIN, UNAUTHENTICATED_MAX);
        UnauthenticatedList::at_most(usize::try_from(max).expect("at most 1024"))
    }

    fn at_most(max: usize) -> UnauthenticatedList {
        let places = (0..max).map(|_| None).collect();
        UnauthenticatedList {
            places,
            count: 0,
            called: Callers::default(),
            warning: RepeatedWarning::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes one more; gives its number. If there is no room, that of the process that has been here longest is taken,
    /// of those that have said nothing right if there are any.
    pub(crate) fn add(&mut self, socket: Socket, now: Instant) -> u32 {
        let at = self.places.iter().position(Option::is_none).unwrap_or_else(|| self.oldest());
        let stage = UnauthenticatedStage::Silent { bytes: [0; HELLO_BYTES], got: 0 };
        self.count += usize::from(self.places[at].is_none());
        self.places[at] = Some(Unauthenticated { socket, since: now, stage });
        u32::try_from(at).expect("at most 1024")
    }

    fn oldest(&self) -> usize {
        let rank = |unauthenticated: &Unauthenticated| {
            (
                !matches!(unauthenticated.stage, UnauthenticatedStage::Silent { .. }),
                unauthenticated.since,
            )
        };
        let all = self.places.iter().enumerate();
        let all = all.filter_map(|(at, place)| place.as_ref().map(|it| (rank(it), at)));
        all.min().map_or(0, |(_, at)| at)
    }

    /// A process of the job has called that was not introduced to us yet.
    pub(crate) fn note_caller(&mut self, rank: u32) {
        self.called.note(rank, self.places.len());
    }

    /// Takes the ranks of new pending connections.
    pub(crate) fn take_called(&mut self) -> Vec<u32> {
        self.called.take()
    }

    /// Whether new callers have to wait: somebody keeps asking for pending connections in order to introduce them, and
    /// new callers would take their places.
    pub(crate) fn is_full(&self) -> bool {
        self.called.are_awaited() && self.count >= self.places.len() / 2
    }

    /// Takes one out, to look at it.
    pub(crate) fn take(&mut self, at: u32) -> Option<Unauthenticated> {
        let taken = self.places.get_mut(at as usize)?.take();
        self.count -= usize::from(taken.is_some());
        taken
    }

    /// Puts one back where it was.
    pub(crate) fn put(&mut self, at: u32, unauthenticated: Unauthenticated) {
        self.places[at as usize] = Some(unauthenticated);
        self.count += 1;
    }

    pub(crate) fn get(&self, at: u32) -> Option<&Unauthenticated> {
        self.places.get(at as usize)?.as_ref()
    }

    /// Whether one of them has greeted in these words. Greetings are never equal, unless somebody has recorded one.
    pub(crate) fn have_said(&self, hello: &[u8; HELLO_BYTES]) -> bool {
        self.places.iter().flatten().any(|it| match &it.stage {
            UnauthenticatedStage::Silent { .. } => false,
            UnauthenticatedStage::Pending { talk, .. } => talk == hello,
            UnauthenticatedStage::Answered { talk, .. }
            | UnauthenticatedStage::Securing { talk, .. } => talk.hello == *hello,
        })
    }

    /// As if they had been here for longer.
    #[cfg(test)]
    pub(crate) fn age(&mut self, time: Duration) {
        for unauthenticated in self.places.iter_mut().flatten() {
            unauthenticated.since =
                unauthenticated.since.checked_sub(time).expect("the system is up for longer");
        }
    }

    /// The numbers of those that pass.
    pub(crate) fn which(&self, pass: impl Fn(&Unauthenticated) -> bool) -> Vec<u32> {
        let all = (0..).zip(&self.places);
        all.filter(|(_, place)| place.as_ref().is_some_and(&pass)).map(|(at, _)| at).collect()
    }

    /// Those that have not greeted for so long, or not proved themselves for [`PROOF_TIMES`] as long. A peer that was
    /// only stopped calls again.
    pub(crate) fn dawdlers(&self, now: Instant, patience: Duration) -> Vec<u32> {
        let dawdles = |it: &Unauthenticated| {
            let patience = match it.stage {
                UnauthenticatedStage::Silent { .. } => patience,
                UnauthenticatedStage::Answered { .. } | UnauthenticatedStage::Securing { .. } => {
                    patience.saturating_mul(PROOF_TIMES)
                }
                UnauthenticatedStage::Pending { .. } => return false,
            };
            now.duration_since(it.since) >= patience
        };
        if self.is_empty() { Vec::new() } else { self.which(dawdles) }
    }
}

/// Something that unauthenticated processes can make happen as often as they like: it is said at the first time, the
/// second, the fourth and so on.
#[derive(Debug, Default)]
pub(crate) struct RepeatedWarning {
    count: u64,
}

impl RepeatedWarning {
    /// It has happened again; whether it was said.
    pub(crate) fn again(&mut self, at: SocketAddr, why: &dyn Display) -> bool {
        self.count += 1;
        let say = self.count.is_power_of_two();
        if say {
            tracing::warn!(%at, count = self.count, "a caller was turned away: {why}");
        }
        say
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn unauthenticated_sockets_without_room_take_the_place_of_the_oldest_that_has_not_greeted() {
        let at = "10.0.0.1:7".parse().unwrap();
        let mut unauthenticated = UnauthenticatedList::at_most(3);
        let start = Instant::now();
        let come = |unauthenticated: &mut UnauthenticatedList, second: u64| {
            let flags = SocketFlags::CLOEXEC;
            let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let now = start + Duration::from_secs(second);
            let number = unauthenticated.add(Socket::of(pair.0, at), now);
            (number, now)
        };
        let numbers = [0, 1, 2].map(|second| come(&mut unauthenticated, second).0);
        assert_eq!(numbers, [0, 1, 2]);
        // The first has greeted meanwhile.
        let mut pending = unauthenticated.take(0).unwrap();
        let (caller, callee) = ([1; 16], [2; 16]);
        let (purpose, nonce) = (crate::proof::Purpose::Call, [0; 32]);
        let hello = Hello { purpose, caller_rank: 1, callee_rank: 2, caller, callee, nonce };
        pending.stage = UnauthenticatedStage::Pending { hello, talk: [7; HELLO_BYTES] };
        unauthenticated.put(0, pending);
        for (second, number) in [(3, 1), (4, 2), (5, 1)] {
            let (taken, now) = come(&mut unauthenticated, second);
            assert_eq!((taken, unauthenticated.count), (number, 3));
            assert!(unauthenticated.get(taken).is_some_and(|it| it.since == now));
        }
        assert!(
            unauthenticated.have_said(&[7; HELLO_BYTES])
                && !unauthenticated.have_said(&[8; HELLO_BYTES])
        );
    }

    #[test]
    fn a_million_warnings_are_twenty_lines() {
        let mut warning = RepeatedWarning::default();
        let at = "10.0.0.1:7".parse().unwrap();
        assert_eq!((0..1_000_000).filter(|_| warning.again(at, &"nobody")).count(), 20);
    }
}
