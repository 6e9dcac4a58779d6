//! What all windows of a process share: the messages, in and out, and who waits for which answer. `target.rs` says what
//! messages do to a window.
//!
//! Messages are handled while transports are polled, so by whoever makes progress. What cannot be done at once (a lock
//! that others have, elements under a mutex, memory of a device that is at work) is kept, and with it all that the same
//! process sends later: [`Osc::advance`] tries again. What finds no room to be sent is kept as well.

use crate::changes::Changes;
use crate::departed::Departed;
use crate::device_job::DeviceJob;
use crate::doubt::{Doubt, Suspect};
use crate::error::{Fault, WindowError};
use crate::exposure::WindowPart;
use crate::header::Header;
use crate::hosted::Hosted;
use crate::landing::Landing;
use crate::peer::{PIECE, Peer};
use crate::questions::{Asked, LostProcess, Questions};
use crate::transfers::Transfers;
use crate::wire::{HEADER, Head, MORE, WindowMessage};
use gapless_bml::{
    AmTag, Bml, BmlError, Handler, LinkError, PeerState, Rank, RankEvent, ReserveError, Token,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The active-message tag of windows.
pub const AM_TAG: AmTag = AmTag(16);

/// The windows of a process, of which it has one. Cheap to clone.
#[derive(Clone)]
pub struct Osc(Arc<Inner>);

struct Inner {
    core: Mutex<Core>,
    /// Something waits for another try.
    busy: AtomicBool,
    departed: Departed,
    /// What devices of this process do.
    transfers: Transfers,
}

impl std::fmt::Debug for Osc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Osc").field("busy", &self.is_busy()).finish_non_exhaustive()
    }
}

/// Behind the lock. Nothing is called from here that could ask for it again.
#[derive(Default)]
pub(crate) struct Core {
    pub(crate) windows: HashMap<u32, Hosted>,
    next_window: u32,
    peers: HashMap<u32, Peer>,
    pub(crate) questions: Questions,
    pub(crate) changes: Changes,
    /// What devices still do for processes that are lost.
    orphans: Vec<DeviceJob>,
    /// Why processes are lost, and who is to blame.
    losses: HashMap<u32, (u32, LinkError)>,
}

/// What became of a message that was to be sent.
pub(crate) enum Offered {
    Sent,
    /// Try again after some progress.
    Full,
    Failed(WindowError),
}

/// What became of a message that arrived.
pub(crate) enum Done {
    Yes,
    /// It is to be tried again.
    Blocked,
    /// No such message exists.
    Nonsense(&'static str),
}

/// The handler of arrivals.
struct Ear(Osc);

impl Handler for Ear {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        let mut core = self.0.core();
        match event {
            RankEvent::Arrived { from, fragment, .. } => match fragment.to_vec() {
                Ok(message) => {
                    drop(fragment);
                    self.0.arrived(&mut core, bml, from, message);
                }
                Err(error) => tracing::error!(%from, %error, "a message that cannot be read"),
            },
            RankEvent::Lost { peer, error } => {
                let (culprit, error) = bml.blame(peer).unwrap_or((peer, error));
                core.lose(peer.0, (culprit.0, error));
                self.0.departed().note(peer.0, bml.is_gone(peer));
            }
            RankEvent::Completed { token, result } => core.changes.ended(token.0, result),
            RankEvent::Sent { .. } => {}
        }
        self.0.note(&core);
    }
}

impl Osc {
    /// Has the messages of windows handled. Before any other process can send one.
    ///
    /// # Errors
    /// Somebody has the tag.
    pub fn register(bml: &mut Bml) -> Result<Osc, BmlError> {
        let departed = Departed::new(bml.size());
        let (core, transfers) = Default::default();
        let inner = Inner { core, busy: AtomicBool::new(false), departed, transfers };
        let osc = Osc(Arc::new(inner));
        bml.register(AM_TAG.0..=AM_TAG.0, Box::new(Ear(osc.clone())))?;
        Ok(osc)
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // What a panic leaves is in order: no step that can panic is in the middle of a change.
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something waits for room, a lock or a mutex: then nobody wakes a sleeper for it.
    #[must_use]
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) || self.0.transfers.are_under_way()
    }

    /// What devices of this process do.
    pub(crate) fn transfers(&self) -> &Transfers {
        &self.0.transfers
    }

    /// Which processes are lost.
    #[inline]
    pub(crate) fn departed(&self) -> &Departed {
        &self.0.departed
    }

    /// The error of a lost process.
    pub(crate) fn loss(&self, process: u32) -> WindowError {
        self.core().loss(process)
    }

    /// The error of a target's answer.
    pub(crate) fn refused(&self, rank: u32, why: Fault) -> WindowError {
        match why {
            Fault::NoWindow => WindowError::Freed { rank },
            Fault::Holder(process) => self.loss(process),
            why => WindowError::Refused { rank, why },
        }
    }

    pub(crate) fn note(&self, core: &Core) {
        self.0.busy.store(core.is_busy(), Ordering::Relaxed);
    }

    /// Tries again what had to wait. Gives how much was done. To be called by whoever makes progress.
    #[inline]
    pub fn advance(&self, bml: &mut Bml) -> usize {
        if self.is_busy() { self.advance_all(bml) } else { 0 }
    }

    fn advance_all(&self, bml: &mut Bml) -> usize {
        let ended = self.0.transfers.advance();
        if !self.0.busy.load(Ordering::Relaxed) {
            return ended;
        }
        let mut core = self.core();
        core.orphans.retain_mut(|job| job.step().is_none());
        let mut done = ended + core.grant_locks(self, bml);
        let processes: Vec<u32> = core.peers.keys().copied().collect();
        for process in processes {
            done += core.flush_outbox(bml, process);
            done += core.flush_waiting(bml, process);
            done += self.retry(&mut core, bml, process);
        }
        self.note(&core);
        done
    }

    /// Handles what a process has sent and had to wait, as far as that can be done now.
    fn retry(&self, core: &mut Core, bml: &mut Bml, process: u32) -> usize {
        let mut done = 0;
        while let Some(message) = core.peer(process).held.pop() {
            match core.execute(self, bml, Rank(process), &message) {
                Done::Yes => {
                    core.handled(bml, process, &message);
                    done += 1;
                }
                Done::Blocked => {
                    core.peer(process).held.push_front(message);
                    break;
                }
                Done::Nonsense(what) => give_up(bml, Rank(process), what),
            }
        }
        done
    }

    fn arrived(&self, core: &mut Core, bml: &mut Bml, from: Rank, message: Vec<u8>) {
        let Some(head) = Head::read(&message) else {
            return give_up(bml, from, "a message of a window that cannot be read");
        };
        let peer = core.peer(from.0);
        if head.sequence != peer.in_sequence {
            if !peer.keep_early(head.sequence, message) {
                give_up(bml, from, "messages of windows that are numbered wrongly");
            }
            return;
        }
        let mut next = Some(message);
        while let Some(message) = next {
            let peer = core.peer(from.0);
            peer.in_sequence = peer.in_sequence.wrapping_add(1);
            self.take(core, bml, from, message);
            let peer = core.peer(from.0);
            next = peer.early.remove(&peer.in_sequence);
        }
    }

    /// A message whose turn it is. Answers and credit wait for nothing: so two processes that hold each other's
    /// requests get on.
    fn take(&self, core: &mut Core, bml: &mut Bml, from: Rank, message: Vec<u8>) {
        let is_request = Head::read(&message).is_some_and(|head| head.kind.is_request());
        let blocked = is_request && !core.peer(from.0).held.is_empty();
        let done = if blocked { Done::Blocked } else { core.execute(self, bml, from, &message) };
        match done {
            Done::Yes if is_request => core.handled(bml, from.0, &message),
            Done::Yes => {}
            Done::Blocked => {
                if !core.peer(from.0).hold(message) {
                    give_up(bml, from, "more requests to windows than it has credit for");
                }
            }
            Done::Nonsense(what) => give_up(bml, from, what),
        }
    }

    /// Offers a message; counts and keeps nothing that does not leave, unless it `may_wait` and there is not too much
    /// of that.
    pub(crate) fn offer(
        &self,
        bml: &mut Bml,
        process: u32,
        (head, bytes): (Head, &[u8]),
        may_wait: bool,
    ) -> Offered {
        let mut core = self.core();
        let offered = core.submit(bml, process, (head, bytes), may_wait);
        self.note(&core);
        offered
    }

    /// Sends a message without bytes, now or when there is room.
    pub(crate) fn post(&self, bml: &mut Bml, process: u32, head: Head) -> Result<(), WindowError> {
        let mut core = self.core();
        let posted = core.post(bml, process, head, &[]);
        self.note(&core);
        posted
    }

    /// Gives a window to others, whose messages may come from now on.
    pub fn host(&self, own: impl Into<WindowPart>, processes: &[u32], rank: u32) -> WindowHandle {
        let mut core = self.core();
        let id = core.next_window;
        core.next_window = core.next_window.wrapping_add(1);
        core.windows.insert(id, Hosted::new(own.into(), processes.into(), rank));
        WindowHandle { osc: self.clone(), id }
    }
}

fn give_up(bml: &mut Bml, peer: Rank, what: &str) {
    bml.give_up(peer, LinkError::Corrupt { what: what.to_owned() });
}

/// This process's place in a window, by which messages of other ranks find its memory, until it is dropped.
#[derive(Debug)]
pub struct WindowHandle {
    pub(crate) osc: Osc,
    pub(crate) id: u32,
}

impl WindowHandle {
    /// The window's number here, which others put into their messages.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for WindowHandle {
    fn drop(&mut self) {
        let mut core = self.osc.core();
        let mut hosted = core.windows.remove(&self.id);
        let (flag, value) = Fault::NoWindow.code();
        let away = hosted
            .as_mut()
            .map(|hosted| hosted.turned_away(self.osc.departed(), &mut core.questions));
        for (process, token) in away.unwrap_or_default() {
            core.queue(
                process,
                Head { token, flag, value, ..Head::new(WindowMessage::Answer, 0, 0) },
                &[],
            );
        }
        let jobs = core.jobs_of(self.id);
        self.osc.note(&core);
        drop(core);
        drop(jobs);
        // Nothing touches the memory any more when this is over.
        if let Some(hosted) = &hosted {
            hosted.users.leave();
        }
        drop(hosted);
    }
}

impl Core {
    pub(crate) fn peer(&mut self, process: u32) -> &mut Peer {
        self.peers.entry(process).or_default()
    }

    /// A request of a process is done: it is told now and then how much is.
    fn handled(&mut self, bml: &mut Bml, process: u32, message: &[u8]) {
        let peer = self.peer(process);
        if peer.handled(message.len()) {
            // Which number that is, is written into every message that takes it along.
            if let Err(error) = self.post(bml, process, Head::new(WindowMessage::Credit, 0, 0), &[])
            {
                tracing::debug!(process, %error, "credit that nobody can be given");
            }
        }
    }

    /// What devices do in a window, to be dropped.
    fn jobs_of(&mut self, window: u32) -> Vec<DeviceJob> {
        let of = |job: &mut Box<DeviceJob>| job.window == window;
        let under_way = self.peers.values_mut().filter_map(|peer| peer.job.take_if(of));
        let under_way = under_way.map(|job| *job);
        under_way.chain(self.orphans.extract_if(.., |job| job.window == window)).collect()
    }

    fn is_busy(&self) -> bool {
        let waits = |peer: &Peer| {
            !peer.outbox.is_empty() || !peer.waiting.is_empty() || !peer.held.is_empty()
        };
        !self.orphans.is_empty()
            || self.peers.values().any(waits)
            || self.windows.values().any(Hosted::is_busy)
    }

    pub(crate) fn loss(&self, process: u32) -> WindowError {
        let (process, error) = match self.losses.get(&process) {
            Some((culprit, error)) => (*culprit, error.clone()),
            None => (process, LinkError::PeerGone { reason: "its link has ended".to_owned() }),
        };
        WindowError::Lost { process, error }
    }

    fn lose(&mut self, process: u32, why: (u32, LinkError)) {
        self.losses.insert(process, why);
        let job = self.peers.remove(&process).and_then(|peer| peer.job);
        self.orphans.extend(job.map(|job| *job));
        self.questions.lose(process);
        for hosted in self.windows.values_mut() {
            hosted.forget(process, &mut self.questions);
        }
    }

    /// The longest payload of a message to a process; `None` before the link is up.
    pub(crate) fn room(bml: &Bml, process: u32) -> Option<usize> {
        bml.limits(Rank(process)).map(|limits| limits.max_fragment_bytes - HEADER)
    }

    /// The same of a message that takes credit.
    pub(crate) fn piece(bml: &Bml, process: u32) -> Option<usize> {
        let most = usize::try_from(PIECE).unwrap_or(usize::MAX) - HEADER;
        Core::room(bml, process).map(|room| room.min(most))
    }

    /// Sends a message, if nothing waits before it and there is room.
    pub(crate) fn offer(
        &mut self,
        bml: &mut Bml,
        process: u32,
        head: Head,
        bytes: &[u8],
    ) -> Offered {
        if head.kind.is_request() {
            self.flush_waiting(bml, process);
            if !self.peer(process).waiting.is_empty() {
                return Offered::Full;
            }
        }
        self.offer_next(bml, process, head, bytes)
    }

    /// The same; if there is no room, a request that `may_wait` does so, unless too much waits already.
    pub(crate) fn submit(
        &mut self,
        bml: &mut Bml,
        process: u32,
        (head, bytes): (Head, &[u8]),
        may_wait: bool,
    ) -> Offered {
        let offered = self.offer(bml, process, head, bytes);
        let peer = self.peer(process);
        if matches!(offered, Offered::Full) && may_wait && peer.may_wait(HEADER + bytes.len()) {
            peer.waiting.push([&head.write()[..], bytes].concat());
            return Offered::Sent;
        }
        offered
    }

    /// Sends a request before which none waits, or any other message.
    fn offer_next(&mut self, bml: &mut Bml, process: u32, head: Head, bytes: &[u8]) -> Offered {
        if let PeerState::Lost(error) = bml.state(Rank(process)) {
            let error = error.clone();
            let (culprit, error) = bml.blame(Rank(process)).unwrap_or((Rank(process), error));
            return Offered::Failed(WindowError::Lost { process: culprit.0, error });
        }
        if !self.peer(process).outbox.is_empty() {
            self.flush_outbox(bml, process);
            if !self.peer(process).outbox.is_empty() {
                return Offered::Full;
            }
        }
        let peer = self.peer(process);
        let len = HEADER + bytes.len();
        if !peer.has_credit(head.kind, len) {
            return Offered::Full;
        }
        let head = peer.stamp(head);
        let mut slot = match bml.reserve(Rank(process), len) {
            Ok(slot) => slot,
            Err(ReserveError::Full) => return Offered::Full,
            Err(ReserveError::Link(error)) => {
                let (culprit, error) = bml.blame(Rank(process)).unwrap_or((Rank(process), error));
                return Offered::Failed(WindowError::Lost { process: culprit.0, error });
            }
            Err(other) => {
                return Offered::Failed(WindowError::Transport { why: other.to_string() });
            }
        };
        let written = slot.write(0, &head.write()).and_then(|()| slot.write(HEADER, bytes));
        if let Err(error) = written {
            return Offered::Failed(WindowError::Transport { why: error.to_string() });
        }
        self.peer(process).sent(&head, len);
        bml.send(slot, AM_TAG, Token::NONE);
        Offered::Sent
    }

    /// Sends a message, now or when there is room: one without bytes that its receiver answers once, or an answer.
    /// Nothing else goes beyond a process's credit.
    pub(crate) fn post(
        &mut self,
        bml: &mut Bml,
        process: u32,
        head: Head,
        bytes: &[u8],
    ) -> Result<(), WindowError> {
        match self.offer(bml, process, head, bytes) {
            Offered::Sent => Ok(()),
            Offered::Failed(error) => Err(error),
            Offered::Full => {
                self.queue(process, head, bytes);
                Ok(())
            }
        }
    }

    /// Sends a message when there is room, behind those that wait.
    pub(crate) fn queue(&mut self, process: u32, head: Head, bytes: &[u8]) {
        let peer = self.peer(process);
        if head.kind.is_request() && !peer.waiting.is_empty() {
            return peer.waiting.push([&head.write()[..], bytes].concat());
        }
        let head = peer.stamp(head);
        let message = [&head.write()[..], bytes].concat();
        peer.sent(&head, message.len());
        peer.outbox.push(message);
    }

    fn flush_waiting(&mut self, bml: &mut Bml, process: u32) -> usize {
        let mut sent = 0;
        while let Some(message) = self.peer(process).waiting.pop() {
            let Some(head) = Head::read(&message) else { continue };
            match self.offer_next(bml, process, head, &message[HEADER..]) {
                Offered::Sent => sent += 1,
                Offered::Full => {
                    self.peer(process).waiting.push_front(message);
                    break;
                }
                // Its handler hears of that.
                Offered::Failed(WindowError::Lost { .. }) => {}
                // The one who asked for it takes it for sent.
                Offered::Failed(error) => give_up(bml, Rank(process), &error.to_string()),
            }
        }
        sent
    }

    fn flush_outbox(&mut self, bml: &mut Bml, process: u32) -> usize {
        let mut sent = 0;
        while let Some(message) = self.peer(process).outbox.front() {
            match bml.reserve(Rank(process), message.len()) {
                Ok(mut slot) => {
                    if let Err(error) = slot.write(0, message) {
                        tracing::error!(process, %error, "a slot that cannot be written");
                    }
                    bml.send(slot, AM_TAG, Token::NONE);
                }
                Err(ReserveError::Full) => break,
                // It is lost: its handler hears of that.
                Err(ReserveError::Link(_)) => {}
                // Those behind it have later numbers and would wait for it.
                Err(error) => give_up(bml, Rank(process), &error.to_string()),
            }
            self.peer(process).outbox.pop();
            sent += 1;
        }
        sent
    }

    /// Answers a question, in as many messages as it takes.
    pub(crate) fn reply(
        &mut self,
        bml: &mut Bml,
        to: Rank,
        question: &Head,
        result: Result<(u64, &[u8]), Fault>,
    ) {
        let mut head = Head { token: question.token, ..Head::new(WindowMessage::Answer, 0, 0) };
        let (start, bytes) = match result {
            Ok(found) => found,
            Err(fault) => {
                (head.flag, head.value) = fault.code();
                (0, &[][..])
            }
        };
        // The two ends may have transports with other bounds.
        let room = Core::room(bml, to.0).unwrap_or(0).max(1);
        let mut at = 0;
        loop {
            let end = bytes.len().min(at + room);
            let more = end < bytes.len();
            let op = if more { MORE } else { 0 };
            let head = Head { op, start: start + at as u64, ..head };
            if let Err(error) = self.post(bml, to.0, head, &bytes[at..end]) {
                tracing::debug!(peer = %to, %error, "an answer that nobody can be given");
                return;
            }
            if !more {
                return;
            }
            at = end;
        }
    }

    /// What was answered, once all has been; or that the one who was asked is lost.
    pub(crate) fn answered(&mut self, token: u64) -> Option<Result<Asked, WindowError>> {
        let answer = self.questions.answered(token)?;
        Some(answer.map_err(|LostProcess(process)| self.loss(process)))
    }

    /// Looks at who is said to have a lock, for somebody who waits for it, and asks that rank if it is time. `asks`: the rank
    /// of this process. The rest as for [`Doubt::look`].
    pub(crate) fn look_at(
        &mut self,
        bml: &mut Bml,
        doubt: &mut Doubt,
        (header, waits, asks): (&Header, u32, u32),
        members: impl Fn(u32) -> Option<(u32, u32)>,
        lost: impl Fn() -> Option<u32>,
    ) -> Option<u32> {
        match doubt.look(&mut self.questions, (header, waits), lost)? {
            Suspect::Lost(process) => Some(process),
            Suspect::Rank(rank) => {
                let (process, window) = members(rank)?;
                let token = self.questions.ask(process, 0, Landing::kept(1));
                self.questions.expect(token, 1, false);
                let question = doubt.question(token, window, asks);
                match self.post(bml, process, question, &[]) {
                    Ok(()) => doubt.was_asked(token),
                    // It is lost: then others say so.
                    Err(_) => self.questions.forget(token),
                }
                None
            }
        }
    }
}
