//! Hosts that no longer answer.
//!
//! The system watches over idle connections (keep-alives, [`crate::socket`]). It does not while something written is
//! not acknowledged, and its own limit for that, `TCP_USER_TIMEOUT`, ends connections to processes that are alive but
//! too busy to read. So if a peer says nothing after we wrote to it, a second connection is made to its listener, a
//! **pulse**: that is answered by the peer's host, however busy the process is. If it is not, the peer is lost. If the
//! host refuses it, the process has ended: what is left of its last words is read to the end, whoever holds the
//! buffers. So pulses also go to peers whose end may be behind messages that there is no room for.
//!
//! The bound: silence for one patience, then a pulse that is not answered for another one; or a pulse that stood and
//! whose keep-alives are not answered for two. The patience is a third of [`TcpConfig::notice`], which leaves a third
//! for the coarseness of clocks.
//!
//! [`TcpConfig::notice`]: crate::TcpConfig::notice

use crate::call;
use crate::card::Card;
use crate::proof::{Keys, Purpose};
use crate::socket::{Socket, is_silence};
use crate::watch::{Interest, Watch, What};
use gapless_btl::LinkError;
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection that shows whether the other host answers.
struct Pulse {
    socket: Socket,
    since: Instant,
    /// The host has answered; from now on the system watches.
    stands: bool,
}

/// What is known about a peer's silence.
pub(crate) struct Silence {
    /// Where the peer listens, over the way that the link goes; without it there are no pulses.
    place: Option<SocketAddr>,
    /// Something was written since something came.
    asked: bool,
    /// Something came since the last look.
    heard: bool,
    /// Since when the peer has said nothing, although it was written to.
    since: Option<Instant>,
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
    pub(crate) own: &'t Card,
    pub(crate) patience: Duration,
    pub(crate) now: Instant,
}

impl Silence {
    /// Of a peer that listens there.
    pub(crate) fn new(place: Option<SocketAddr>) -> Silence {
        Silence { place, asked: false, heard: false, since: None, pulse: None }
    }

    pub(crate) fn asked(&mut self) {
        self.asked = true;
    }

    pub(crate) fn heard(&mut self) {
        (self.heard, self.asked) = (true, false);
    }

    /// Whether time may tell something.
    pub(crate) fn is_timed(&self) -> bool {
        self.asked || self.since.is_some()
    }

    /// Looks at the clock; why the peer is lost, if it is.
    pub(crate) fn look(
        &mut self,
        id: u32,
        peer: &Card,
        watcher: &Watcher<'_>,
    ) -> Result<Answer, LinkError> {
        let Watcher { now, patience, .. } = *watcher;
        if std::mem::take(&mut self.heard) {
            (self.since, self.pulse) = (None, None);
        }
        if self.since.is_none() && self.asked {
            self.since = Some(now);
        }
        let Some(since) = self.since else { return Ok(Answer::None) };
        match &self.pulse {
            Some(pulse) if !pulse.stands && now.duration_since(pulse.since) >= patience => {
                Err(silent(pulse.socket.at, Errno::TIMEDOUT))
            }
            Some(_) => self.feel(id, peer, watcher),
            None if now.duration_since(since) >= patience => self.begin(id, watcher),
            None => Ok(Answer::None),
        }
    }

    fn begin(&mut self, id: u32, watcher: &Watcher<'_>) -> Result<Answer, LinkError> {
        let Some(place) = self.place else { return Ok(Answer::None) };
        let socket = match Socket::call(place, watcher.patience) {
            Ok(socket) => socket,
            Err(error) if is_silence(error) => return Err(silent(place, error)),
            Err(Errno::CONNREFUSED) => return Ok(Answer::ProcessGone),
            // Out of descriptors: at the next look.
            Err(_) => return Ok(Answer::None),
        };
        if watcher.watch.add(&socket, What::Pulse(id), Interest::WRITING).is_ok() {
            self.pulse = Some(Pulse { socket, since: watcher.now, stands: false });
        }
        Ok(Answer::None)
    }

    /// Something has happened to the pulse, or it is time to look; why the peer is lost, if it is.
    pub(crate) fn feel(
        &mut self,
        id: u32,
        peer: &Card,
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
                    pulse.stands = true;
                    watcher.watch.change(&pulse.socket, What::Pulse(id), Interest::READING);
                    let hello = call::hello(Purpose::Pulse, watcher.own, peer);
                    let hello = hello.map(|hello| watcher.keys.say(&hello));
                    // Without it the listener takes us for a stranger, which is no harm.
                    let _ = hello.map(|hello| pulse.socket.write(&[IoSlice::new(&hello)]));
                    return Ok(Answer::None);
                }
                Err(error) => Err(error),
            }
        };
        match answered {
            Err(error) if is_silence(error) => Err(silent(pulse.socket.at, error)),
            // The host answers, in whatever way.
            other => {
                (self.pulse, self.since) = (None, Some(watcher.now));
                let gone = other == Err(Errno::CONNREFUSED);
                Ok(if gone { Answer::ProcessGone } else { Answer::None })
            }
        }
    }
}

fn silent(at: SocketAddr, error: Errno) -> LinkError {
    LinkError::Unreachable { reason: format!("{at} does not answer any more: {error}") }
}
