//! The oracle: MPI's rules of matching (MPI 4.1 §3.5), written from the text and from nothing else,
//! held against what every rank was told.
//!
//! - *Order of sending*: of two messages of one sender in one communicator that both match a receive,
//!   it takes the one sent first, unless a receive that was posted earlier takes that. So, going
//!   through receives in the order of posting, each takes its source's first matching message that is
//!   left: which one it is follows from the source alone.
//! - *Order of posting*: of two receives that match a message, the one posted first takes it, unless
//!   that had been matched by then. A match cannot be seen, but it lies between the arrival of the
//!   message and the end of the receive: [`in_order`] looks whether some order of matches fits.
//!
//! Both also say what probes may see. Pairs of ranks that lost a link are judged less strictly: what
//! was in flight may be missing, from some point on.

use crate::journal::{End, Failure, Journal, Sent, Taken, digest};
use crate::plan::{Ending, Mode, Plan};
use crate::rank::RECV_GAP;
use crate::shapes::payload;
use crate::wire::Wire;
use gapless_pml::PmlError;
use std::collections::BTreeMap;

/// What is looked at.
pub(crate) struct Case<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) journal: &'a Journal,
    pub(crate) wire: &'a Wire,
    /// The buffers of each rank.
    pub(crate) memory: Vec<&'a [Vec<u8>]>,
    /// When nothing moved any more and no script had anything left to do.
    pub(crate) rest_tick: u64,
}

/// Who took what: the receive of each send, and the send of each receive.
#[derive(Debug, Default)]
struct Matches {
    by_send: Vec<Option<usize>>,
    by_take: Vec<Option<usize>>,
}

/// How a receive ended, as far as matching goes.
enum Told {
    /// It took a message of this source; tag and bytes, if they were told.
    Took {
        source: Option<u32>,
        tag: Option<i32>,
        bytes: Option<u64>,
    },
    Nothing,
    Failed,
}

fn fits(taken: &Taken, sent: &Sent) -> bool {
    taken.source.is_none_or(|source| source == sent.from)
        && taken.tag.is_none_or(|tag| tag == sent.tag)
        && (taken.comm, taken.rank) == (sent.comm, sent.to)
}

fn was_cancelled(sent: &Sent) -> bool {
    sent.ended.as_ref().and_then(End::error) == Some(&PmlError::Cancelled)
}

fn not_ready(ended: &Option<End>) -> bool {
    matches!(ended.as_ref().and_then(End::error), Some(PmlError::NotReady { .. }))
}

impl Case<'_> {
    fn harmed(&self, a: u32, b: u32) -> bool {
        self.wire.harmed.contains(&(a, b))
    }

    fn told(&self, taken: &Taken) -> Result<Told, Failure> {
        // Of the dead it is not known what they took last.
        if self.wire.dead.contains(&taken.rank) {
            return Ok(Told::Failed);
        }
        if let (true, Some((source, tag, bytes))) = (taken.dropped, taken.claimed) {
            return Ok(Told::Took { source: Some(source), tag: Some(tag), bytes: Some(bytes) });
        }
        let Some(end) = &taken.ended else { return Ok(Told::Failed) };
        let status = match &end.outcome {
            Ok(status) => Some(*status),
            Err(failure) => failure.status(),
        };
        let members = self.plan.members(taken.comm, taken.rank);
        let source = status.and_then(|status| members.get(status.source as usize).copied());
        let tag = status.map(|status| status.tag);
        let others = taken.tag.is_some_and(|asked| tag != Some(asked))
            || taken.source.is_some_and(|asked| source != Some(asked));
        if status.is_some() && others {
            let what = format!("receive {} says that it took {status:?}", taken.number);
            return Err(Failure::new(what, &[taken.rank]));
        }
        match end.outcome.as_ref().map_err(|failure| &failure.error) {
            Ok(status) => Ok(Told::Took { source, tag, bytes: Some(status.bytes) }),
            Err(PmlError::Truncated { sent, .. }) => {
                Ok(Told::Took { source, tag, bytes: Some(*sent) })
            }
            Err(PmlError::NotReady { .. }) => {
                let bytes = taken.claimed.map(|(_, _, bytes)| bytes);
                Ok(Told::Took { source, tag, bytes })
            }
            Err(PmlError::Cancelled) => Ok(Told::Nothing),
            Err(PmlError::PeerLost { rank, .. } | PmlError::NobodyLeft { rank, .. })
                if self.harmed(taken.rank, *rank) =>
            {
                Ok(Told::Failed)
            }
            Err(error) => {
                let what = format!("receive {} failed without need: {error}", taken.number);
                Err(Failure::new(what, &[taken.rank]))
            }
        }
    }

    /// Whether the buffer of a receive holds just this message, or as much of it as there is room for.
    fn holds(&self, taken: &Taken, sent: &Sent) -> bool {
        if taken.dropped {
            return true;
        }
        let mut right = vec![RECV_GAP; taken.shape.len];
        let memory = &self.memory[taken.rank as usize][taken.memory];
        if not_ready(&taken.ended) && sent.mode != Mode::Ready {
            return false;
        }
        // It was not carried; of a dead sender that is not known.
        if not_ready(&taken.ended)
            && (not_ready(&sent.ended) || sent.ended.is_none() && *memory == right)
        {
            return *memory == right;
        }
        let stream = payload(sent.number, usize::try_from(sent.bytes).unwrap_or(0));
        for (byte, place) in stream.into_iter().zip(&taken.shape.places) {
            right[*place] = byte;
        }
        *memory == right
    }

    /// Holds everything against the rules.
    pub(crate) fn check(&self) -> Result<u64, Failure> {
        let matches = self.matches()?;
        self.buffers(&matches)?;
        self.sends(&matches)?;
        self.in_order(&matches)?;
        self.nothing_stuck(&matches)?;
        self.probes(&matches)?;
        Ok(matches.by_take.iter().flatten().count() as u64)
    }

    /// Finds out who took what, in the order of posting.
    fn matches(&self) -> Result<Matches, Failure> {
        let Journal { sent, taken, .. } = self.journal;
        let mut by_ends: BTreeMap<(u32, usize), Vec<usize>> = BTreeMap::new();
        for (at, send) in sent.iter().enumerate().filter(|(_, send)| !was_cancelled(send)) {
            by_ends.entry((send.to, send.comm)).or_default().push(at);
        }
        let mut found =
            Matches { by_send: vec![None; sent.len()], by_take: vec![None; taken.len()] };
        for (at, take) in taken.iter().enumerate() {
            let Told::Took { source, tag, bytes } = self.told(take)? else { continue };
            let none = Vec::new();
            let sends = by_ends.get(&(take.rank, take.comm)).unwrap_or(&none);
            let mut left = Vec::new();
            let mut seen = Vec::new();
            for &send in sends.iter().filter(|send| found.by_send[**send].is_none()) {
                let from = sent[send].from;
                let possible =
                    fits(take, &sent[send]) && source.is_none_or(|source| source == from);
                // The first of each sender; of one that lost a link, any.
                if possible && (self.harmed(from, take.rank) || !seen.contains(&from)) {
                    seen.push(from);
                    left.push(send);
                }
            }
            let right = left.iter().find(|&&send| {
                let send = &sent[send];
                bytes.is_none_or(|bytes| bytes == send.bytes)
                    && tag.is_none_or(|tag| tag == send.tag)
                    && self.holds(take, send)
            });
            let Some(&send) = right else {
                return Err(self.wrong_message(take, source, &left));
            };
            found.by_send[send] = Some(at);
            found.by_take[at] = Some(send);
        }
        Ok(found)
    }

    fn wrong_message(&self, take: &Taken, source: Option<u32>, due: &[usize]) -> Failure {
        let due: Vec<String> = due
            .iter()
            .map(|&send| &self.journal.sent[send])
            .map(|send| {
                format!(
                    "{} of rank {} ({} bytes, tag {})",
                    send.number, send.from, send.bytes, send.tag
                )
            })
            .collect();
        let due = if due.is_empty() { "none".to_owned() } else { due.join(" or ") };
        let got = &self.memory[take.rank as usize][take.memory];
        let other = self
            .journal
            .sent
            .iter()
            .find(|send| fits(take, send) && send.bytes > 7 && self.holds(take, send));
        let got = match other {
            Some(other) => format!("message {} is in its buffer", other.number),
            None => format!("no message is in its buffer ({} bytes)", got.len()),
        };
        let told = take.ended.as_ref().map(|end| format!("{:?}", end.outcome));
        let what = format!(
            "receive {} ended with {told:?}; message {due} was due, but {got}",
            take.number
        );
        let mut ranks = vec![take.rank];
        ranks.extend(source);
        Failure::new(what, &ranks)
    }

    /// No buffer is touched where it should not be, or after its receive has ended.
    fn buffers(&self, matches: &Matches) -> Result<(), Failure> {
        for (at, take) in self.journal.taken.iter().enumerate() {
            let bytes = &self.memory[take.rank as usize][take.memory];
            if take.ended.is_some() && digest(bytes) != take.digest {
                let what = format!("the buffer of receive {} changed after its end", take.number);
                return Err(Failure::new(what, &[take.rank]));
            }
            let Some(end) = &take.ended else { continue };
            if matches.by_take[at].is_some() {
                continue;
            }
            let mut gaps = bytes.clone();
            if end.error() != Some(&PmlError::Cancelled) {
                take.shape.places.iter().for_each(|&place| gaps[place] = RECV_GAP);
            }
            if gaps.iter().any(|&byte| byte != RECV_GAP) {
                let what =
                    format!("receive {} took nothing and wrote beside its elements", take.number);
                return Err(Failure::new(what, &[take.rank]));
            }
        }
        Ok(())
    }

    /// Every send ended as it should, and nothing was lost.
    fn sends(&self, matches: &Matches) -> Result<(), Failure> {
        for (at, send) in self.journal.sent.iter().enumerate() {
            let Sent { number, from, to, .. } = *send;
            if self.wire.dead.contains(&from) {
                continue;
            }
            let fail = |what: &str| Failure::new(format!("message {number}: {what}"), &[from, to]);
            let end = send.ended.as_ref().ok_or_else(|| fail("its send has never ended"))?;
            let taken = matches.by_send[at].map(|take| &self.journal.taken[take]);
            let excused = self.harmed(from, to) || self.journal.unmade.contains(&(to, send.comm));
            match end.outcome.as_ref().map_err(|failure| &failure.error) {
                Ok(status) => {
                    let members = self.plan.members(send.comm, from);
                    let dest = members.get(status.source as usize);
                    if (status.bytes, status.tag, dest) != (send.bytes, send.tag, Some(&to)) {
                        return Err(fail(&format!("its send ended with {status:?}")));
                    }
                    if taken.is_none() && !excused && self.plan.ending == Ending::Drain {
                        return Err(fail("nobody got it"));
                    }
                }
                Err(PmlError::Cancelled) => {}
                Err(PmlError::NotReady { .. }) if send.mode == Mode::Ready => {}
                Err(PmlError::PeerLost { .. }) if self.harmed(from, to) => {}
                Err(PmlError::Unreceived { .. })
                    if taken.is_none() && (excused || self.plan.ending == Ending::Leave) => {}
                Err(error) => return Err(fail(&format!("its send failed without need: {error}"))),
            }
            if send.mode == Mode::Synchronous && end.outcome.is_ok() {
                match taken {
                    Some(taken) if taken.tick <= end.tick => {}
                    None if excused => {}
                    _ => {
                        return Err(fail("a synchronous send ended before its receive was posted"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Before this tick a message cannot have been matched.
    fn earliest(&self, send: &Sent) -> u64 {
        if send.from == send.to {
            return send.tick;
        }
        let parcels = self.wire.handed.get(&(send.from, send.to));
        let parcels = parcels.into_iter().flatten().filter(|(left, _)| *left >= send.tick);
        parcels.map(|(_, handed)| *handed).min().unwrap_or(u64::MAX)
    }

    /// Some order of matches fits what was posted in which order, and what was seen when.
    fn in_order(&self, matches: &Matches) -> Result<(), Failure> {
        let Journal { sent, taken, .. } = self.journal;
        // By receiver and communicator: earlier receives, and before when each was not matched.
        let mut earlier: BTreeMap<(u32, usize), Vec<(&Taken, u64)>> = BTreeMap::new();
        for (at, take) in taken.iter().enumerate() {
            let earlier = earlier.entry((take.rank, take.comm)).or_default();
            let Some(send) = matches.by_take[at].map(|send| &sent[send]) else {
                if let Some(tick) = take.cancelled {
                    earlier.push((take, tick));
                }
                continue;
            };
            let mut first = self.earliest(send).max(take.tick);
            if take.claimed.is_some() {
                first = take.tick;
            }
            let mut after = None;
            for (other, tick) in earlier.iter().filter(|(other, _)| fits(other, send)) {
                if *tick > first {
                    (first, after) = (*tick, Some(other.number));
                }
            }
            let last = match (take.claimed, &take.ended) {
                (Some(_), _) => take.tick,
                (None, Some(end)) => end.tick,
                (None, None) => u64::MAX,
            };
            if not_ready(&take.ended)
                && (send.mode != Mode::Ready || self.earliest(send) > take.tick)
            {
                let what = format!(
                    "receive {} was posted in time for message {}",
                    take.number, send.number
                );
                return Err(Failure::new(what, &[take.rank, send.from]));
            }
            if first > last {
                let what = format!(
                    "receive {} took message {} at {last} or before, but not before {first} could that be: {}",
                    take.number,
                    send.number,
                    after.map_or("it had not arrived".to_owned(), |after| format!(
                        "receive {after} was posted earlier and took it"
                    )),
                );
                return Err(Failure::new(what, &[take.rank, send.from]));
            }
            earlier.push((take, first));
        }
        Ok(())
    }

    /// When nothing moved any more, no receive waited beside a message that it matched.
    fn nothing_stuck(&self, matches: &Matches) -> Result<(), Failure> {
        let waits = |take: &&Taken| take.cancelled.is_some_and(|tick| tick > self.rest_tick);
        let waiting: Vec<&Taken> = self.journal.taken.iter().filter(waits).collect();
        for (at, send) in self.journal.sent.iter().enumerate() {
            let left = matches.by_send[at]
                .is_none_or(|take| self.journal.taken[take].tick > self.rest_tick);
            let gone = self.wire.dead.contains(&send.to) || self.harmed(send.from, send.to);
            if !left || was_cancelled(send) || gone {
                continue;
            }
            if let Some(take) = waiting.iter().find(|take| fits(take, send)) {
                let what = format!(
                    "receive {} and message {} wait for each other",
                    take.number, send.number
                );
                return Err(Failure::new(what, &[send.from, send.to]));
            }
        }
        Ok(())
    }

    /// A probe sees the message that a receive would take.
    fn probes(&self, matches: &Matches) -> Result<(), Failure> {
        for seen in &self.journal.seen {
            let (source, tag, bytes) = seen.status;
            if self.wire.dead.contains(&seen.rank) || self.harmed(source, seen.rank) {
                continue;
            }
            let mut sends = self.journal.sent.iter().enumerate().filter(|(at, send)| {
                let left = matches.by_send[*at]
                    .is_none_or(|take| self.journal.taken[take].tick > seen.tick);
                let pair = (send.from, send.to, send.comm) == (source, seen.rank, seen.comm);
                left && pair && seen.tag.is_none_or(|tag| tag == send.tag) && send.tick < seen.tick
            });
            // What was cancelled later may have been there, or may have been gone.
            let right = sends
                .find(|(_, send)| !was_cancelled(send) || (send.tag, send.bytes) == (tag, bytes));
            if right.is_none_or(|(_, send)| (send.tag, send.bytes) != (tag, bytes)) {
                let what = format!(
                    "a probe saw {bytes} bytes with tag {tag}, but {:?} was due",
                    right.map(|(_, send)| send)
                );
                return Err(Failure::new(what, &[seen.rank, source]));
            }
        }
        Ok(())
    }
}
