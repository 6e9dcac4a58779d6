//! Hosts that no longer answer.
//!
//! The system watches over connections on which everything that was written is acknowledged (keep-alives,
//! [`crate::socket`]). It does not watch over others, and its own limit for those, `TCP_USER_TIMEOUT`, ends connections
//! to processes that are alive but too busy to read. So if something that we wrote stays unacknowledged, and nothing
//! comes from the other host ([`crate::sign`]), a second connection is made to the peer's listener, a **pulse**: that
//! is answered by the peer's host, however busy the process is. If it is not, the peer is lost. If the host refuses it,
//! the process has ended: what is left of its last words is read to the end, whoever holds the buffers. So pulses also
//! go to peers whose end may be behind messages that there is no room for.
//!
//! What comes from a peer says nothing about what we wrote: the two may have crossed, and the way may have failed
//! between them. So only the system's word that all is acknowledged ends the watch.
//!
//! Calls may pass one way alone (a firewall). If we have called the peer, the way there is known. If the peer has
//! called us, a pulse goes there as soon as the link stands. Until one has stood, what becomes of pulses says nothing
//! about the peer. A pulse also remains unanswered if others fill the queue of callers that the peer's process has not
//! looked at: so whatever comes over the link meanwhile is an answer, too.
//!
//! Whatever becomes of pulses, a link is over if the system has sent the same several times and has heard nothing at all
//! for two patiences: so it is if the way failed before a pulse could stand, or if a firewall has forgotten the link.
//!
//! The bound: silence for one patience, then a pulse that is not answered for another one; or a pulse that stood and
//! whose keep-alives are not answered for two. If keep-alives had begun to fail when something was written, their time
//! counts, too: the silence is that of the host. The patience is a third of [`TcpConfig::notice`], which leaves a third
//! for the coarseness of clocks.
//!
//! [`TcpConfig::notice`]: crate::TcpConfig::notice

use crate::address::TcpAddress;
use crate::attempt;
use crate::proof::{Keys, Purpose};
use crate::sign::Sign;
use crate::socket::{Socket, is_silence};
use crate::watch::{Interest, Watch, Watched};
use gapless_btl::LinkError;
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A link is over after so many retransmissions or probes without an answer, in [`SILENT`].
const UNANSWERED: u8 = 2;
/// And after so many patiences in which nothing came.
const SILENT: u32 = 2;

/// A connection that shows whether the other host answers.
struct Pulse {
    socket: Socket,
    since: Instant,
    /// The host has answered; from now on the system watches.
    stands: bool,
}

/// What is known about a peer's silence.
pub(crate) struct Silence {
    /// Where the peer listens, on the way that the link goes; without it there are no pulses.
    place: Option<SocketAddr>,
    /// A connection to it has stood.
    reached: bool,
    /// Something was written that the other host may not have acknowledged.
    wrote: bool,
    /// The peer's end may be behind what there is no room for.
    starved: bool,
    /// Since when it was seen that one of the two is so, and nothing was heard.
    since: Option<Instant>,
    /// When the last pulse was answered.
    answered: Option<Instant>,
    pulse: Option<Pulse>,
}

/// What a pulse has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing new.
    None,
    /// The host is alive, and nobody listens there any more.
    ProcessGone,
}

/// What looking at a peer's silence needs of its transport.
pub(crate) struct Watcher<'t> {
    pub(crate) watch: &'t Watch,
    pub(crate) keys: &'t Keys,
    pub(crate) own: &'t TcpAddress,
    pub(crate) patience: Duration,
    pub(crate) now: Instant,
}

impl Silence {
    /// Of a peer that listens there, and was reached there or not.
    pub(crate) fn new(place: Option<SocketAddr>, reached: bool) -> Silence {
        let (wrote, starved, since, answered, pulse) = (false, false, None, None, None);
        Silence { place, reached, wrote, starved, since, answered, pulse }
    }

    /// Tries whether the peer can be reached, unless that is known.
    pub(crate) fn try_place(&mut self, id: u32, watcher: &Watcher<'_>) {
        if !self.reached {
            let told = self.begin(id, watcher);
            debug_assert_eq!(told, Ok(Answer::None), "it says nothing about the peer");
        }
    }

    /// Whether the peer was reached where it listens, if that is known.
    #[cfg(test)]
    pub(crate) fn is_reached(&self) -> Option<bool> {
        (self.reached || self.pulse.is_none()).then_some(self.reached)
    }

    /// Something was written.
    pub(crate) fn wrote(&mut self) {
        self.wrote = true;
    }

    /// Nothing is read for now, for want of room.
    pub(crate) fn starved(&mut self) {
        self.starved = true;
    }

    /// Something was read.
    pub(crate) fn heard(&mut self) {
        self.starved = false;
    }

    /// Whether time may tell something.
    pub(crate) fn is_timed(&self) -> bool {
        self.wrote || self.starved || self.since.is_some() || self.pulse.is_some()
    }

    /// Looks at the clock, and at what the system says of the connection; why the peer is lost, if it is.
    pub(crate) fn look(
        &mut self,
        id: u32,
        peer: &TcpAddress,
        sign: Option<Sign>,
        watcher: &Watcher<'_>,
    ) -> Result<Answer, LinkError> {
        let Watcher { now, patience, .. } = *watcher;
        self.wrote &= !sign.is_some_and(|sign| sign.acknowledged);
        let watched = self.wrote || self.starved;
        let dead = |it: &Sign| it.unanswered >= UNANSWERED && it.silent_for >= SILENT * patience;
        if let Some(sign) = sign.filter(|it| watched && dead(it)) {
            return Err(unanswered(peer, &sign));
        }
        if !watched {
            (self.since, self.answered) = (None, None);
            if self.reached {
                self.pulse = None;
            }
        }
        if self.pulse.is_some() {
            let answer = self.feel(id, peer, sign, watcher)?;
            return match &self.pulse {
                Some(pulse) if !pulse.stands && now.duration_since(pulse.since) >= patience => {
                    self.over(Err(Errno::TIMEDOUT), sign, now)
                }
                _ => Ok(answer),
            };
        }
        if !watched {
            return Ok(Answer::None);
        }
        let Some(since) = self.since else {
            // What has just been written is acknowledged before the next look, unless the host is silent.
            self.since = Some(now);
            return Ok(Answer::None);
        };
        // If the system does not say: from when on we have looked.
        let heard = sign.and_then(|sign| now.checked_sub(sign.silent_for)).unwrap_or(since);
        let heard = self.answered.map_or(heard, |answered| heard.max(answered));
        match now.saturating_duration_since(heard) >= patience {
            true => self.begin(id, watcher),
            false => Ok(Answer::None),
        }
    }

    fn begin(&mut self, id: u32, watcher: &Watcher<'_>) -> Result<Answer, LinkError> {
        let Some(place) = self.place else { return Ok(Answer::None) };
        let socket = match Socket::call(place, watcher.patience) {
            Ok(socket) => socket,
            Err(error) if is_silence(error) || error == Errno::CONNREFUSED => {
                return self.told(place, Err(error), watcher.now);
            }
            // Out of descriptors: at the next look.
            Err(_) => return Ok(Answer::None),
        };
        if watcher.watch.add(&socket, Watched::Pulse(id), Interest::WRITING).is_ok() {
            self.pulse = Some(Pulse { socket, since: watcher.now, stands: false });
        }
        Ok(Answer::None)
    }

    /// Something has happened to the pulse, or it is time to look; why the peer is lost, if it is.
    pub(crate) fn feel(
        &mut self,
        id: u32,
        peer: &TcpAddress,
        sign: Option<Sign>,
        watcher: &Watcher<'_>,
    ) -> Result<Answer, LinkError> {
        let Some(pulse) = &mut self.pulse else { return Ok(Answer::None) };
        let answered = if pulse.stands {
            // The listener says nothing: it closes the connection as soon as its process looks.
            match pulse.socket.read_exact(&mut [0; 1]) {
                Ok(None) => return Ok(Answer::None),
                Ok(Some(_)) => Ok(()),
                Err(error) => Err(error),
            }
        } else {
            match pulse.socket.connected() {
                Ok(false) => return Ok(Answer::None),
                Ok(true) => {
                    (pulse.stands, self.reached) = (true, true);
                    watcher.watch.change(&pulse.socket, Watched::Pulse(id), Interest::READING);
                    let hello = attempt::hello(Purpose::Pulse, watcher.own, peer);
                    let hello = hello.map(|hello| watcher.keys.say(&hello));
                    // Without it the listener takes us for unauthenticated, which is no harm.
                    let _ = hello.map(|hello| pulse.socket.write(&[IoSlice::new(&hello)]));
                    return Ok(Answer::None);
                }
                Err(error) => Err(error),
            }
        };
        self.over(answered, sign, watcher.now)
    }

    /// The pulse is over; why the peer is lost, if it is.
    fn over(
        &mut self,
        how: Result<(), Errno>,
        sign: Option<Sign>,
        now: Instant,
    ) -> Result<Answer, LinkError> {
        let Some(pulse) = self.pulse.take() else { return Ok(Answer::None) };
        let heard = sign.and_then(|sign| now.checked_sub(sign.silent_for));
        let heard = heard.filter(|&heard| heard > pulse.since && !pulse.stands);
        if how == Err(Errno::TIMEDOUT) && heard.is_some() {
            self.answered = heard;
            return Ok(Answer::None);
        }
        self.told(pulse.socket.at, how, now)
    }

    /// What became of a call to the peer's listener; why the peer is lost, if it is.
    fn told(
        &mut self,
        at: SocketAddr,
        how: Result<(), Errno>,
        now: Instant,
    ) -> Result<Answer, LinkError> {
        // The host answers, in whatever way, or it may be that nobody can call it.
        self.answered = Some(now);
        match how {
            Err(error) if is_silence(error) && self.reached => Err(silent(at, error)),
            Err(Errno::CONNREFUSED) if self.reached => Ok(Answer::ProcessGone),
            _ => Ok(Answer::None),
        }
    }
}

fn silent(at: SocketAddr, error: Errno) -> LinkError {
    LinkError::Unreachable { reason: format!("{at} does not answer any more: {error}") }
}

fn unanswered(peer: &TcpAddress, sign: &Sign) -> LinkError {
    let (rank, times, seconds) = (peer.rank, sign.unanswered, sign.silent_for.as_secs());
    let reason =
        format!("rank {rank} has not answered {times} retransmissions in {seconds} s of silence");
    LinkError::Unreachable { reason }
}

#[cfg(test)]
mod tests;
