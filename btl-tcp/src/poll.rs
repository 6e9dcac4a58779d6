//! Polling: what is read when, what is written, and what the clock tells.

use crate::burst::Next;
use crate::inbound::Stop;
use crate::link::{LinkState, TcpLink, Up};
use crate::sign;
use crate::silence::{Answer, Watcher};
use crate::tcp::Tcp;
use crate::watch::{EVENTS, Happened, Interest, Watched};
use gapless_btl::{LinkError, PeerId, Sink};
use std::time::{Duration, Instant};

/// Messages taken from one peer in one poll: bounds the poll and is fair to the others.
const BATCH: usize = 64;
/// So often all sockets and the clock are looked at while peers keep us busy; else with every poll of all peers.
const BUSY_STRIDE: u32 = 8;
/// While calls pause.
const TICK_CALLING: Duration = Duration::from_millis(10);
/// So soon at the latest a peer is told how many of its messages have come, and whatever else the clock tells.
const TICK_MAX: Duration = Duration::from_millis(250);
/// So many messages wait for others.
const MUCH: u32 = 16;
/// The longest of them. Longer ones fill packets, and the system sends a packet as soon as it is full.
const WAITS_BYTES: usize = 256;
/// How soon whoever sleeps looks whether a receiver has given a buffer back, on another thread.
const STARVED: Duration = Duration::from_millis(1);

impl Tcp {
    pub(crate) fn poll_all(&mut self, sink: &mut dyn Sink) -> usize {
        self.rounds = self.rounds.wrapping_add(1);
        let mut found = self.report(sink);
        if !self.again.is_empty() {
            found += self.receive_again(sink);
        }
        // Whoever spoke last is likely to speak next.
        if let Some(hot) = self.hot {
            found += self.receive(hot, sink, BATCH);
        }
        if found == 0 || self.armed || self.rounds.is_multiple_of(BUSY_STRIDE) {
            found += self.look(sink);
            self.tick();
        }
        found += self.report(sink);
        self.armed &= found == 0;
        found
    }

    /// Gives what waits for a poll, as far as there is room; how many events that is.
    fn report(&mut self, sink: &mut dyn Sink) -> usize {
        if self.outbox.is_empty() {
            return 0;
        }
        let count = sink.room().min(self.outbox.len());
        self.outbox.drain(..count).for_each(|event| sink.event(event));
        count
    }

    /// Links with messages that no socket will tell of.
    fn receive_again(&mut self, sink: &mut dyn Sink) -> usize {
        let mut list = std::mem::take(&mut self.again_before);
        std::mem::swap(&mut list, &mut self.again);
        let mut found = 0;
        for &id in &list {
            if let Some(up) = self.links[id as usize].up() {
                up.again = false;
            }
            found += self.receive(id, sink, BATCH);
        }
        list.clear();
        self.again_before = list;
        found
    }

    /// There may be messages of this peer that its socket will not tell of.
    pub(crate) fn look_again(&mut self, id: u32) {
        if let Some(up) = self.links[id as usize].up()
            && !std::mem::replace(&mut up.again, true)
        {
            self.again.push(id);
        }
    }

    /// Takes messages of one peer.
    pub(crate) fn receive(&mut self, id: u32, sink: &mut dyn Sink, batch: usize) -> usize {
        let Some(up) = self.links.get_mut(id as usize).and_then(|link| link.up()) else { return 0 };
        let (from, closing) = (PeerId(id), up.closing || up.broken.is_some());
        let Up { inbound, connection, given, .. } = up;
        let mut offers = *given != self.polls;
        let (count, heard, stop) =
            inbound.receive(connection, from, sink, batch, &mut offers, closing);
        if !offers {
            *given = self.polls;
        }
        let confirmed = match inbound.take_confirmed() {
            Some(count) => up.outbound.confirm(count),
            None => Ok(()),
        };
        let is_dry = matches!(stop, Stop::Dry);
        let owes = up.inbound.owes(true) || (is_dry && up.inbound.owes_much());
        if heard {
            up.silence.heard();
            self.hot = Some(id);
        }
        let starved = matches!(stop, Stop::NoBuffer);
        if starved {
            up.silence.starved();
        }
        if std::mem::replace(&mut up.starved, starved) != starved {
            self.rewatch(id);
        }
        if let Err(error) = confirmed {
            self.lose(id, error);
            return count;
        }
        if owes {
            self.tell_count(id);
        }
        let broken = self.links[id as usize].up().and_then(|up| up.broken.clone());
        match (stop, broken) {
            (Stop::More | Stop::NoBuffer, _) => self.look_again(id),
            (Stop::End(error @ LinkError::Corrupt { .. }), _) => self.lose(id, error),
            // Nothing more can come, or nothing more is waited for. What was wrong with writing is the cause; the
            // system has told it once.
            (Stop::Dry | Stop::End(_), Some(error)) | (Stop::End(error), None) => {
                self.lose(id, error);
            }
            (Stop::Dry, None) => {}
        }
        count
    }

    /// Whether a message that is sent now leaves at once, or may wait for others.
    pub(crate) fn next_of_burst(&mut self, id: u32, len: usize) -> Next {
        let (polls, may_block) = (self.polls, self.armed);
        let Some(up) = self.links.get_mut(id as usize).and_then(TcpLink::up) else {
            return Next::Leaves;
        };
        let is_first = up.spoke.replace(polls) != Some(polls);
        let mut next = Next::Leaves;
        if !is_first && len <= WAITS_BYTES {
            if !up.burst.goes_on() {
                self.bursts.push(id);
            }
            next = up.burst.next(Instant::now());
        }
        if may_block || up.waiting >= MUCH { Next::Leaves } else { next }
    }

    /// A message was given to the system.
    pub(crate) fn sent_in_burst(&mut self, id: u32, next: Next) {
        if let Some(up) = self.links[id as usize].up()
            && up.burst.goes_on()
        {
            up.burst.sent(Instant::now());
            // All that wait leave with one that does not.
            up.waiting = if next == Next::Waits { up.waiting + 1 } else { 0 };
        }
    }

    /// What waits for a poll leaves.
    pub(crate) fn end_bursts(&mut self) {
        let now = Instant::now();
        while let Some(id) = self.bursts.pop() {
            let Some(up) = self.links[id as usize].up() else { continue };
            up.burst.end(now);
            if std::mem::take(&mut up.waiting) > 0 {
                up.connection.socket().push();
            }
        }
    }

    /// Writes what the socket of a peer takes.
    pub(crate) fn flush(&mut self, id: u32, next: Next) {
        let Some(up) = self.links[id as usize].up() else { return };
        if up.broken.is_none() {
            match up.outbound.flush(&mut up.connection, next, &mut self.outbox) {
                Ok(true) => up.silence.wrote(),
                Ok(false) => {}
                Err(error) => {
                    up.broken = Some(error);
                    self.look_again(id);
                }
            }
        }
        self.rewatch(id);
    }

    /// Tells a peer how many of its messages, which it retains, have come.
    fn tell_count(&mut self, id: u32) {
        let Some(up) = self.links[id as usize].up() else { return };
        if up.broken.is_none() {
            let first = up.outbound.is_empty();
            let had = up.inbound.tell();
            up.outbound.count(had);
            if first {
                self.flush(id, Next::Leaves);
            }
        }
    }

    /// Has epoll wait for what is wanted now.
    pub(crate) fn rewatch(&mut self, id: u32) {
        let Some(up) = self.links[id as usize].up() else { return };
        let wanted = up.wanted();
        if std::mem::replace(&mut up.interest, wanted) != wanted {
            self.watch.change(&up.connection, Watched::Link(id), wanted);
        }
    }

    /// Looks at all sockets.
    fn look(&mut self, sink: &mut dyn Sink) -> usize {
        let mut list = [Happened::default(); EVENTS];
        let count = self.watch.look(&mut list);
        let mut found = 0;
        for happened in list.into_iter().take(count) {
            found += self.see(happened, sink);
        }
        found
    }

    fn see(&mut self, happened: Happened, sink: &mut dyn Sink) -> usize {
        let Some(what) = Watched::of(happened.name) else { return 0 };
        match what {
            Watched::Listener(at) => self.accept_callers(at as usize),
            Watched::Unauthenticated(at) => self.hear_unauthenticated(at),
            Watched::OutgoingCall(id) => self.go_on_calling(id),
            Watched::Spare(id) => self.hear_spare(id),
            Watched::Pulse(id) => self.feel_pulse(id),
            Watched::Alarm => self.tick(),
            Watched::Link(id) => {
                let mut failed = happened.error;
                if let Some(up) = self.links[id as usize].up() {
                    // What is in the error queue is no error. If the socket has one besides, that is told again, and
                    // reading tells which. (`SO_ERROR` may be one that the system has got over.)
                    failed = failed && !up.outbound.hear_notices(&up.connection);
                    up.closing |= happened.closing;
                }
                if happened.writable || failed {
                    self.flush(id, Next::Leaves);
                }
                if happened.readable || failed {
                    return self.receive(id, sink, BATCH);
                }
            }
        }
        0
    }

    /// Whether the clock has anything to tell.
    fn is_timed(&mut self) -> bool {
        self.calling > 0
            || !self.unauthenticated.is_empty()
            || !self.fading.is_empty()
            || self.listeners.iter().any(|listener| listener.shut)
            || self
                .links
                .iter_mut()
                .filter_map(TcpLink::up)
                .any(|up| up.silence.is_timed() || up.inbound.owes(false))
    }

    /// How long after a look at the clock the next one is due.
    fn tick_after(&self) -> Duration {
        if self.calling > 0 { TICK_CALLING } else { TICK_MAX.min(self.patience / 16) }
    }

    /// What is due by the clock.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.ticked) < self.tick_after() {
            return;
        }
        self.ticked = now;
        if !self.is_timed() {
            return;
        }
        self.hear_fading();
        for at in 0..self.listeners.len() {
            let listener = &mut self.listeners[at];
            if std::mem::replace(&mut listener.shut, false) {
                self.watch.change(&listener.fd, listener.what(at), Interest::READING);
            }
        }
        // If this process did not poll for long, they may have said what is due.
        for at in self.unauthenticated.dawdlers(now, self.patience) {
            self.hear_unauthenticated(at);
        }
        for at in self.unauthenticated.dawdlers(now, self.patience) {
            if let Some(dawdler) = self.unauthenticated.take(at) {
                self.unauthenticated
                    .warning
                    .again(dawdler.socket.at, &"it did not prove itself in time");
            }
        }
        for id in 0..u32::try_from(self.links.len()).unwrap_or(u32::MAX) {
            if matches!(&self.links[id as usize].state, LinkState::Up(up) if up.inbound.owes(false))
            {
                self.tell_count(id);
            }
            match &self.links[id as usize].state {
                LinkState::Calling(_) => self.go_on_calling(id),
                LinkState::Up(up) if up.silence.is_timed() => self.look_at_silence(id, now),
                _ => {}
            }
        }
    }

    fn look_at_silence(&mut self, id: u32, now: Instant) {
        let Tcp { links, watch, keys, address: own, patience, .. } = self;
        let link = &mut links[id as usize];
        let LinkState::Up(up) = &mut link.state else { return };
        let watcher = Watcher { watch, keys, own, patience: *patience, now };
        let sign = sign::sign(up.connection.socket());
        match up.silence.look(id, &link.address, sign, &watcher) {
            Ok(answer) => self.take_note(id, answer),
            Err(error) => self.lose(id, error),
        }
    }

    /// A link stands: tries whether its peer can be called where it listens.
    pub(crate) fn try_place(&mut self, id: u32) {
        let Tcp { links, watch, keys, address: own, patience, .. } = self;
        let LinkState::Up(up) = &mut links[id as usize].state else { return };
        let watcher = Watcher { watch, keys, own, patience: *patience, now: Instant::now() };
        up.silence.try_place(id, &watcher);
    }

    fn feel_pulse(&mut self, id: u32) {
        let Tcp { links, watch, keys, address: own, patience, .. } = self;
        let link = &mut links[id as usize];
        let LinkState::Up(up) = &mut link.state else { return };
        let watcher = Watcher { watch, keys, own, patience: *patience, now: Instant::now() };
        let sign = sign::sign(up.connection.socket());
        match up.silence.feel(id, &link.address, sign, &watcher) {
            Ok(answer) => self.take_note(id, answer),
            Err(error) => self.lose(id, error),
        }
    }

    /// A pulse has told something, or not.
    fn take_note(&mut self, id: u32, answer: Answer) {
        if let (Answer::ProcessGone, Some(up)) = (answer, self.links[id as usize].up()) {
            up.closing = true;
            self.look_again(id);
        }
    }

    /// Has the descriptor become readable in time for what no socket tells.
    pub(crate) fn set_alarm(&mut self) {
        let mut starved = !self.again.is_empty();
        let waits = !self.outbox.is_empty()
            || self.again.iter().any(|&id| {
                let link = &mut self.links[id as usize];
                link.up().is_some_and(|up| !up.starved)
            });
        starved &= !waits;
        let after = if waits {
            Some(Duration::ZERO)
        } else if starved {
            Some(STARVED)
        } else {
            self.is_timed().then(|| self.tick_after())
        };
        self.watch.set_alarm(after);
    }
}
