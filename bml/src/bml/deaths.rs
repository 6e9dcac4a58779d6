//! Links that are made when they are needed, deaths that spread, and leaving: the part of a `Bml` that acts on what
//! a [`FailureGossip`](crate::failure_gossip::FailureGossip) knows.
//!
//! ```text
//!  control messages (tag 255), numbers in little-endian order
//!  FAREWELL  0 kind                                     the sender has given the receiver up
//!  GONE      0 kind | 1 rank:4 | 5 culprit:4 | 9 text … the rank is gone; if it is the sender, it leaves
//!  LEFT      0 kind                                     the sender leaves in good order
//!  DEPARTED  0 kind | 1 rank:4 | 5 culprit:4            the rank has left without finalizing, and so has the culprit
//!  LEAVING   0 kind | 1 step | (2 rank:4 | 6 count:4) … these ranks are at this step of leaving together
//! ```

use super::Bml;
use super::bundles::out_of_turn;
use crate::failure_gossip::{Fact, Heard};
use crate::{Handler, PeerState, Rank};
use gapless_btl::{Fragment, LinkError, PeerId, ReserveError, Token};
use std::time::{Duration, Instant};

/// "You are lost to me."
const FAREWELL: u8 = 1;
const GONE: u8 = 2;
pub(super) const LEFT: u8 = 3;
const DEPARTED: u8 = 4;
pub(super) const LEAVING: u8 = 5;

/// Bytes before the text.
const GONE_BYTES: usize = 9;
/// Longest text that goes along, in bytes: a message fits every transport.
const TEXT_MAX: usize = 160;

/// How long peers are given at first to tell why a link has ended.
pub(super) const EXPLANATION_TIME: Duration = Duration::from_millis(100);

/// The end of a link over which no message has gone. The peer may have left because another died, and was called too
/// late to say so itself. Other peers may know.
#[derive(Debug)]
pub(super) struct Unexplained {
    rail: usize,
    peer: PeerId,
    error: LinkError,
    since: Instant,
}

/// The message that passes a fact on.
fn gone(fact: &Fact) -> Vec<u8> {
    let mut end = fact.why.len().min(TEXT_MAX);
    while !fact.why.is_char_boundary(end) {
        end -= 1;
    }
    let mut message = vec![if fact.departed { DEPARTED } else { GONE }];
    message.extend(fact.rank.0.to_le_bytes());
    message.extend(fact.culprit.0.to_le_bytes());
    message.extend(&fact.why.as_bytes()[..end]);
    message
}

/// What such a message says.
fn read_gone(message: &[u8]) -> Option<Fact> {
    let number = |at: usize| message.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let departed = match *message.first()? {
        GONE => false,
        DEPARTED => true,
        _ => return None,
    };
    let longest = if departed { 0 } else { TEXT_MAX };
    let text = message.get(GONE_BYTES..).filter(|text| text.len() <= longest)?;
    let (rank, culprit) = (Rank(number(1)?), Rank(number(5)?));
    Some(Fact { rank, culprit, departed, why: String::from_utf8_lossy(text).into() })
}

/// What became of a peer, without the words that every such error begins with.
fn reason(error: &LinkError) -> String {
    match error {
        LinkError::PeerGone { reason } => reason.clone(),
        other => other.to_string(),
    }
}

impl Bml {
    /// Keeps links to ranks r ± 2^k from now on, learns of deaths from them, and tells them of those that are
    /// seen here. To be called once all peers are [introduced](Bml::introduce), or in a [directory](Bml::set_directory).
    /// Losses of peers without a link are noticed, too: what others say is checked by a link of one's own.
    pub fn watch(&mut self) {
        self.watches = true;
        self.keep_links();
    }

    /// How long other peers are given to tell which death made a peer leave, if its link ends before any message has
    /// gone over it: 100 ms, unless set. Until then the peer is not lost. Only a process that [watches](Bml::watch)
    /// waits. With [`Duration::ZERO`] nothing waits, and no clock is read.
    pub fn set_explanation_time(&mut self, time: Duration) {
        self.explanation_time = time;
    }

    /// Has the links made that are needed after a link has ended: to check what others said, and to neighbours.
    fn keep_links(&mut self) {
        for rank in self.gossip.take_due() {
            self.reach(rank);
        }
        if !self.watches {
            return;
        }
        for at in 0.. {
            let Some(&peer) = self.gossip.neighbours().get(at) else { return };
            self.reach(peer);
        }
    }

    /// Has the link to `peer` made, if nobody has needed it so far. Call this before waiting for a peer to which
    /// nothing is sent.
    pub fn reach(&mut self, peer: Rank) {
        self.look_up(peer);
        let endpoint = self.endpoints.get(peer.0 as usize);
        let Some(path) = endpoint.and_then(|endpoint| endpoint.all_paths().next()) else { return };
        self.rails[path.rail].meet(path.peer);
    }

    /// Whether a link to `peer` was asked for, here or there, and stands or is about to. If not, it cannot have sent
    /// anything.
    #[must_use]
    pub fn has_met(&self, peer: Rank) -> bool {
        let Some(endpoint) = self.endpoints.get(peer.0 as usize) else { return false };
        endpoint.all_paths().any(|path| self.rails[path.rail].btl.has_met(path.peer))
    }

    /// Because of whom `peer` is lost, and what became of that one: the peer itself, or the one whose death made
    /// it leave. `None` if it is not lost.
    #[must_use]
    pub fn blame(&self, peer: Rank) -> Option<(Rank, LinkError)> {
        let PeerState::Lost(error) = self.state(peer) else { return None };
        Some(match self.gossip.fact(peer) {
            Some(fact) if fact.departed => (fact.culprit, LinkError::Departed),
            Some(fact) if fact.culprit != peer => {
                let reason = fact.why.clone().into();
                (fact.culprit, LinkError::PeerGone { reason })
            }
            _ => (peer, error.clone()),
        })
    }

    /// Whether `peer` is lost because its process has ended. One that was given up, gave this process up, or departed,
    /// may live.
    #[must_use]
    pub fn is_gone(&self, peer: Rank) -> bool {
        let is_lost = matches!(self.state(peer), PeerState::Lost(_));
        let has_ended = |fact: &Fact| fact.culprit == peer && !fact.departed;
        is_lost && self.gossip.fact(peer).is_some_and(has_ended)
    }

    /// [Whom to blame](Bml::blame) for the first loss, those of peers apart that left in good order or departed.
    #[must_use]
    pub fn casualty(&self) -> Option<(Rank, LinkError)> {
        self.blame(self.casualty?)
    }

    /// Tells all peers that are linked that this process leaves in good order: its end is nobody's fault.
    pub fn leave_well(&mut self) {
        for peer in self.met() {
            let endpoint = &self.endpoints[peer.0 as usize];
            match endpoint.carrier() {
                Some(path) => self.farewells.push((*path, LEFT)),
                None => self.leave_in_bundle(peer),
            }
        }
        self.owing = true;
        self.settle();
    }

    /// Tells all peers that are linked, now or later, that this process leaves: because of the first death that it
    /// knows of, or if there was none, because of itself, as `error` says. Those peers lose this process as soon as
    /// they read that.
    pub fn leave_because(&mut self, error: &LinkError) {
        self.gossip.leave(&reason(error));
        self.owing = true;
        self.settle();
    }

    /// Whether peers have been told all that they are to be told: if not, there was no room.
    #[must_use]
    pub fn has_told_all(&self) -> bool {
        !self.untold
    }

    pub(super) fn met(&self) -> Vec<Rank> {
        let all = (0..self.size()).map(Rank).filter(|&peer| peer != self.me);
        all.filter(|&peer| self.has_met(peer)).collect()
    }

    /// Sends what peers are to be told, as far as there is room.
    #[cold]
    pub(super) fn settle(&mut self) {
        self.seek_again();
        let rails = &mut self.rails;
        let mut told = Vec::new();
        self.farewells.retain(|&(path, kind)| {
            let rank = rails[path.rail].rank(path.peer);
            let btl = &mut *rails[path.rail].btl;
            let said = match path.numbered {
                true => try_say(btl, path.peer, &out_of_turn(kind)),
                false => try_say(btl, path.peer, &[kind]),
            };
            if said == Ok(()) {
                told.push(rank);
            }
            matches!(said, Err(ReserveError::Full))
        });
        // One rail is enough: others may never have stood.
        self.farewells.retain(|(path, _)| !told.contains(&self.rails[path.rail].rank(path.peer)));
        let again = self.send_all_again();
        let spread = self.spread() & self.call_roll();
        self.untold = !spread || !self.farewells.is_empty() || !again;
        // Who meets a process that leaves is told when it does.
        self.owing = self.untold
            || self.gossip.is_leaving()
            || !self.orphans.is_empty()
            || !self.sought.is_empty()
            || !self.unexplained.is_empty();
    }

    /// Passes facts on. Gives whether all that are to know them were told.
    fn spread(&mut self) -> bool {
        let audience = match (self.watches, self.gossip.is_leaving()) {
            (_, true) => self.met(),
            (true, false) => self.gossip.neighbours().to_vec(),
            (false, false) => Vec::new(),
        };
        let mut all = true;
        for peer in audience {
            if !self.is_linked(peer) {
                continue;
            }
            while let Some(fact) = self.gossip.owed(peer) {
                let (own, message) = (fact.rank == peer, gone(fact));
                if !own && !self.say_to(peer, &message) {
                    all = false;
                    break;
                }
                self.gossip.tell(peer);
            }
        }
        all
    }

    /// Whether there is a way to `peer`.
    pub(super) fn is_linked(&self, peer: Rank) -> bool {
        let endpoint = &self.endpoints[peer.0 as usize];
        endpoint.carrier().is_some() || endpoint.bundle.is_some()
    }

    /// Sends a control message to a peer that is linked; `false` if there is no room.
    pub(super) fn say_to(&mut self, peer: Rank, message: &[u8]) -> bool {
        match self.endpoints[peer.0 as usize].carrier().copied() {
            None => self.say_in_bundle(peer, message),
            Some(path) => {
                let rail = &mut self.rails[path.rail];
                rail.mark_active();
                say(&mut *rail.btl, path.peer, message)
            }
        }
    }

    /// The link to a peer has ended: which is a fact, unless it is alive and broke the rules, or we did.
    pub(super) fn note_loss(&mut self, peer: Rank, error: &LinkError) {
        if matches!(error, LinkError::PeerGone { .. } | LinkError::Departed) {
            self.owing |= self.gossip.lose(peer, &reason(error));
        } else {
            self.owing |= self.gossip.cut_off(peer, &reason(error));
        }
        self.keep_links();
    }

    /// Whether other peers may know better why the link to `peer` ends, if it ends now with this error. They may if no
    /// message has gone over it: then the peer may have left before it could say why. Peers that several rails lead to
    /// are lost at once.
    pub(super) fn may_be_explained(&self, peer: Rank, error: &LinkError) -> bool {
        let [path] = self.endpoints[peer.0 as usize].paths() else { return false };
        let may_wait = self.watches && !self.explanation_time.is_zero();
        let is_gone = matches!(error, LinkError::PeerGone { .. });
        let is_known = self.gossip.has_left(peer) || self.gossip.is_explained(peer);
        may_wait && is_gone && !path.used && !is_known
    }

    /// Ends a link later: once another peer has told the reason, or has had the time to. Until then it is treated as one
    /// that is about to be made.
    #[cold]
    pub(super) fn await_explanation(&mut self, (rail, peer): (usize, PeerId), error: LinkError) {
        self.unexplained.push(Unexplained { rail, peer, error, since: Instant::now() });
        self.owing = true;
    }

    /// What a failed reservation gives: a link that is ended later has no room until then.
    #[cold]
    pub(super) fn no_room(&self, peer: Rank, error: ReserveError) -> ReserveError {
        match error {
            ReserveError::Link(error) if self.may_be_explained(peer, &error) => ReserveError::Full,
            error => error,
        }
    }

    /// Ends those of these links whose reason is known by now, or whose time is over. To be called after a poll has read
    /// what peers have said. Gives how many.
    pub(super) fn end_unexplained(&mut self, rest: &mut dyn Handler) -> usize {
        if self.unexplained.is_empty() {
            return 0;
        }
        let mut all = std::mem::take(&mut self.unexplained);
        let is_due = |it: &mut Unexplained| {
            let rank = self.rails[it.rail].rank(it.peer);
            let waits = rank.is_some_and(|rank| self.may_be_explained(rank, &it.error));
            !waits || it.since.elapsed() >= self.explanation_time
        };
        let due: Vec<Unexplained> = all.extract_if(.., is_due).collect();
        self.unexplained = all;
        // Handlers must not poll.
        let events = self.events.take();
        due.iter().for_each(|it| self.lost(it.rail, it.peer, &it.error, rest));
        self.events = events;
        due.len()
    }

    /// Notes that somebody is lost, for [`casualty`](Bml::casualty).
    pub(super) fn count_loss(&mut self, peer: Rank) {
        let left = self.gossip.has_left(peer) || self.gossip.has_departed(peer);
        if self.casualty.is_none() && !left {
            self.casualty = Some(peer);
        }
    }

    /// A control message of a peer.
    pub(super) fn control(&mut self, from: Rank, fragment: &Fragment, rest: &mut dyn Handler) {
        let mut bytes = [0; GONE_BYTES + TEXT_MAX];
        let len = fragment.len().min(bytes.len());
        let message = &mut bytes[..len];
        let known = fragment.len() <= GONE_BYTES + TEXT_MAX && fragment.read(0, message).is_ok();
        match (&*message, read_gone(message)) {
            ([FAREWELL], _) if known => {
                let reason =
                    "it gave this process up: a link between them died, or a protocol was broken";
                self.owing |= self.gossip.cut_off(from, reason);
                self.keep_links();
                self.lose_by_word(from, &LinkError::PeerGone { reason: reason.to_owned() }, rest);
            }
            ([LEFT], _) if known => self.gossip.leaves_well(from),
            ([LEAVING, word @ ..], _) if known => match self.roll_call.hear(word) {
                Some(new) => self.owing |= new,
                None => {
                    let what = "ranks that cannot leave".to_owned();
                    self.give_up(from, LinkError::Corrupt { what });
                }
            },
            (_, Some(fact)) if known => {
                let Fact { rank, culprit, departed, why } = fact.clone();
                match self.gossip.hear(from, fact) {
                    Heard::Nonsense => {
                        let what = format!("{rank} is said to be gone because of {culprit}");
                        self.give_up(from, LinkError::Corrupt { what });
                    }
                    Heard::Stale => {}
                    Heard::Rumour => {
                        tracing::debug!(peer = %from, %rank, %culprit, departed, why, "a rank is said to be gone");
                        self.reach(rank);
                    }
                    Heard::Testimony => {
                        let reason = format!("it left the job because of {culprit}: {why}");
                        let error = match departed {
                            true => LinkError::Departed,
                            false => LinkError::PeerGone { reason },
                        };
                        self.note_loss(from, &error);
                        self.lose_by_word(from, &error, rest);
                    }
                }
            }
            (message, _) => {
                let (kind, len) = (message.first(), fragment.len());
                let what = format!("a control message of {len} bytes, whose kind is {kind:?}");
                self.give_up(from, LinkError::Corrupt { what });
            }
        }
    }

    /// A peer has said that there is no link any more.
    fn lose_by_word(&mut self, from: Rank, error: &LinkError, rest: &mut dyn Handler) {
        if !matches!(self.endpoints[from.0 as usize].state(), PeerState::Up) {
            return;
        }
        self.lose_endpoint(from, error);
        self.tell_loss(from, error, rest);
    }

    /// Gives up a peer that has broken a protocol above: nothing more goes to it or is delivered from
    /// it. It is told as soon as there is room, so that it does not wait for us; every handler, the
    /// caller too, hears of its loss with the next poll. Does nothing unless the peer is up; this
    /// process cannot give itself up.
    pub fn give_up(&mut self, peer: Rank, error: LinkError) {
        let Some(endpoint) = self.endpoints.get(peer.0 as usize) else { return };
        if peer == self.me || !matches!(endpoint.state(), PeerState::Up) {
            return;
        }
        tracing::info!(%peer, %error, "the peer is given up");
        let left = self.lose_endpoint(peer, &error);
        self.say_farewells(&left);
        self.owing |= self.gossip.cut_off(peer, &reason(&error));
        self.given_up.push((peer, error));
        self.keep_links();
    }

    /// Has peers told that they were given up, over paths that still stand.
    pub(super) fn say_farewells(&mut self, left: &[crate::endpoint::Path]) {
        self.farewells.extend(left.iter().map(|path| (*path, FAREWELL)));
        self.owing |= !left.is_empty();
    }
}

/// Sends a control message; `false` if there is no room. Whoever is gone needs none.
fn say(btl: &mut dyn gapless_btl::Btl, peer: PeerId, message: &[u8]) -> bool {
    !matches!(try_say(btl, peer, message), Err(ReserveError::Full))
}

/// Sends a control message, if there is a link and room.
fn try_say(
    btl: &mut dyn gapless_btl::Btl,
    peer: PeerId,
    message: &[u8],
) -> Result<(), ReserveError> {
    let mut slot = btl.reserve(peer, message.len())?;
    if slot.write(0, message).is_ok() {
        btl.send(slot, Bml::CONTROL_TAG, Token::NONE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_way_and_nonsense_is_refused() {
        let (rank, culprit) = (Rank(7), Rank(1 << 20));
        let fact = |why: &str| Fact { rank, culprit, departed: false, why: why.into() };
        let read = |why: &str| read_gone(&gone(&fact(why))).unwrap();
        assert_eq!(read("its end"), fact("its end"));
        assert_eq!(*read(&"é".repeat(200)).why, "é".repeat(80));
        assert_eq!(*read("").why, *"");
        let departed = Fact { departed: true, ..fact("") };
        assert_eq!(read_gone(&gone(&departed)), Some(departed.clone()));
        assert_eq!(read_gone(&[&gone(&departed)[..], b"x"].concat()), None);
        let whole = gone(&fact(""));
        assert!((0..GONE_BYTES).all(|len| read_gone(&whole[..len]).is_none()));
        assert_eq!(read_gone(&[&whole[..], &[b'x'; TEXT_MAX + 1]].concat()), None);
        assert_eq!(*read_gone(&[&whole[..], &[0xFF]].concat()).unwrap().why, *"\u{FFFD}");
    }
}
