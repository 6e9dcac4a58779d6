//! One rank: the real endpoint, its buffers, and the script it follows, an action at a time.

mod ending;
mod kept;
mod making;

use crate::journal::{Failure, Journal, Seen, Sent, Taken};
use crate::plan::{Action, How, Mode, Plan, Step};
use crate::rail::{Shared, lock};
use crate::shapes::{Shape, Shapes, payload};
use gapless_engine::Typed;
use gapless_mem::Region;
use gapless_pml::{
    Comm, CommRequest, Persistent, Pml, PmlError, RequestId, SendMode, Source, Status, TagSel,
};
use kept::{Kept, Op};
use std::collections::VecDeque;
use std::rc::Rc;

/// What lies between the elements of a send's buffer, and of a receive's.
const SEND_GAP: u8 = 0xA5;
pub(crate) const RECV_GAP: u8 = 0x5A;
/// What a sender writes over its buffer as soon as it may.
const SCRIBBLE: u8 = 0xEE;

/// What a request is of.
#[derive(Clone, Copy, Debug)]
enum What {
    Send(usize),
    Recv(usize),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: RequestId,
    what: What,
    memory: usize,
    /// When it was first seen to have ended.
    done: Option<u64>,
}

/// A communicator as one rank sees it.
enum Made {
    Not,
    Soon(CommRequest),
    Here(Comm),
    Failed,
}

/// What a rank can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// The next action.
    Eager,
    /// Nothing before this virtual time.
    Thinking(u64),
    /// Nothing until something happens.
    Waiting,
    Finished,
}

/// A process of the simulated job.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    /// Gone once it is dead. Dropped before the buffers.
    pub(crate) pml: Option<Pml>,
    pub(crate) memory: Vec<Vec<u8>>,
    script: VecDeque<Step>,
    wait: Option<(How, Vec<RequestId>)>,
    thinks_until: u64,
    pending: Vec<Pending>,
    comms: Vec<Made>,
    /// What can be started again.
    kept: Vec<Kept>,
    wire: Shared,
}

impl Rank {
    pub(crate) fn new(rank: u32, pml: Pml, plan: &Plan, wire: Shared) -> Rank {
        let mut comms: Vec<Made> = plan.comms.iter().map(|_| Made::Not).collect();
        comms[0] = Made::Here(pml.world());
        Rank {
            rank,
            pml: Some(pml),
            memory: Vec::new(),
            script: plan.scripts[rank as usize].iter().copied().collect(),
            wait: None,
            thinks_until: 0,
            pending: Vec::new(),
            comms,
            kept: Vec::new(),
            wire,
        }
    }

    fn pml(&mut self) -> &mut Pml {
        self.pml.as_mut().expect("only the living are given their turn")
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.pml.is_some()
    }

    pub(crate) fn has_script(&self) -> bool {
        !self.script.is_empty()
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The process dies: its endpoint goes, its memory stays until the world ends.
    pub(crate) fn die(&mut self) {
        self.pml = None;
        self.script.clear();
        self.pending.clear();
    }

    fn tick(&self) -> u64 {
        let mut wire = lock(&self.wire);
        wire.tick += 1;
        wire.tick
    }

    fn tell(&self, other: Option<u32>, text: impl FnOnce() -> String) {
        let mut wire = lock(&self.wire);
        let now = wire.now;
        wire.story.tell(now, self.rank, other, text);
    }

    /// A probe has found a message.
    fn saw(&self, how: &'static str, status: &Status) {
        let rank = self.rank;
        lock(&self.wire).heard(|tap| tap.outcome(how, (rank, status.source.into()), Ok(status)));
    }

    /// Gives up whatever the script waits for: nothing will happen any more.
    pub(crate) fn give_up_waiting(&mut self) {
        if self.wait.take().is_some() {
            self.tell(None, || "waits no longer".to_owned());
        }
    }

    /// What it can do now.
    pub(crate) fn mood(&self, plan: &Plan) -> Mood {
        if self.thinks_until > lock(&self.wire).now {
            return Mood::Thinking(self.thinks_until);
        }
        match (&self.wait, self.script.front()) {
            (Some(_), _) => Mood::Waiting,
            (None, None) => Mood::Finished,
            (None, Some(step)) if self.is_blocked(plan, step) => Mood::Waiting,
            _ => Mood::Eager,
        }
    }

    /// Whether an action needs a communicator that is being made.
    fn is_blocked(&self, plan: &Plan, step: &Step) -> bool {
        match step.action {
            Action::MakeComm { comm } => {
                let parent = plan.comms[comm].parent();
                parent.is_some_and(|parent| matches!(self.comms[parent], Made::Soon(_)))
            }
            Action::Send { comm, .. }
            | Action::Recv { comm, .. }
            | Action::Probe { comm, .. }
            | Action::Claim { comm, .. } => matches!(self.comms[comm], Made::Soon(_)),
            _ => false,
        }
    }

    /// Does the next action.
    pub(crate) fn act(
        &mut self,
        plan: &Plan,
        shapes: &mut Shapes,
        journal: &mut Journal,
    ) -> Result<(), Failure> {
        let Some(Step { number, action }) = self.script.pop_front() else { return Ok(()) };
        match action {
            Action::MakeComm { comm } => self.make_comm(plan, comm),
            Action::Send { to, comm, tag, elements, shape, mode, kept } => {
                let shape = shapes.shape(shape, elements);
                self.send(plan, journal, number, (to, comm, tag), &shape, (mode, kept))
            }
            Action::Recv { from, comm, tag, elements, shape, kept } => {
                let shape = shapes.shape(shape, elements);
                self.receive(plan, journal, number, (from, comm, tag), shape, kept)
            }
            Action::Start { nth } => self.restart(journal, number, nth),
            Action::Probe { from, comm, tag } => self.probe(plan, journal, (from, comm, tag)),
            Action::Claim { from, comm, tag, less, shape, dropped } => {
                let how = (shape, less, dropped);
                self.claim(plan, shapes, journal, number, (from, comm, tag), how)
            }
            Action::Cancel { nth } => self.cancel(journal, nth),
            Action::CancelUnfinishedSend { nth } => self.cancel_unfinished_send(journal, nth),
            Action::CancelSend { nth } => self.cancel_send(journal, nth),
            Action::Wait { how, last } => {
                let from = self.pending.len().saturating_sub(last as usize);
                let ids: Vec<RequestId> = self.pending[from..].iter().map(|p| p.id).collect();
                if !ids.is_empty() {
                    self.tell(None, || {
                        format!("waits for {how:?} of its last {} requests", ids.len())
                    });
                    self.wait = Some((how, ids));
                }
                Ok(())
            }
            Action::Think { ns } => {
                self.thinks_until = lock(&self.wire).now + ns;
                Ok(())
            }
        }
    }

    /// The communicator and the rank in it of a process, if both are there.
    fn target(
        &self,
        plan: &Plan,
        comm: usize,
        process: Option<u32>,
    ) -> Option<(Comm, Option<u32>)> {
        let Made::Here(made) = &self.comms[comm] else { return None };
        let Some(process) = process else { return Some((made.clone(), None)) };
        if !plan.together(comm, self.rank, process) {
            return None;
        }
        let members = plan.members(comm, self.rank);
        let rank = members.iter().position(|&member| member == process)?;
        Some((made.clone(), Some(u32::try_from(rank).ok()?)))
    }

    fn pattern(
        &self,
        plan: &Plan,
        from: (Option<u32>, usize, Option<i32>),
    ) -> Option<(Comm, Source, TagSel)> {
        let (comm, rank) = self.target(plan, from.1, from.0)?;
        Some((comm, rank.map_or(Source::Any, Source::Rank), from.2.map_or(TagSel::Any, TagSel::Is)))
    }

    fn buffer(&mut self, shape: &Shape, fill: u8) -> (usize, Typed) {
        self.memory.push(vec![fill; shape.len]);
        let memory = self.memory.len() - 1;
        let region = Region::of_mut(&mut self.memory[memory]);
        lock(&self.wire).buffers.insert(region.address(), region.len());
        let typed = Typed::new(region, shape.origin, &shape.layout, shape.count);
        (memory, typed.expect("the buffer is as long as its layout"))
    }

    fn send(
        &mut self,
        plan: &Plan,
        journal: &mut Journal,
        number: u32,
        (to, comm, tag): (u32, usize, i32),
        shape: &Rc<Shape>,
        (mode, kept): (Mode, bool),
    ) -> Result<(), Failure> {
        let Some((made, Some(dest))) = self.target(plan, comm, Some(to)) else { return Ok(()) };
        let (memory, _) = self.buffer(shape, SEND_GAP);
        for (byte, place) in payload(number, shape.places.len()).into_iter().zip(&shape.places) {
            self.memory[memory][*place] = byte;
        }
        let region = Region::of_mut(&mut self.memory[memory]);
        let typed = Typed::new(region, shape.origin, &shape.layout, shape.count)
            .expect("the buffer is as long as its layout");
        let tick = self.tick();
        let bytes = typed.packed_bytes();
        self.tell(Some(to), || {
            format!(
                "sends message {number} ({mode:?}, {bytes} bytes, tag {tag}, communicator {comm})"
            )
        });
        let how = match mode {
            Mode::Synchronous => SendMode::Synchronous,
            Mode::Buffered => SendMode::Buffered,
            Mode::Ready => SendMode::Ready,
            Mode::Standard | Mode::Copy => SendMode::Standard,
        };
        let pml = self.pml.as_mut().expect("only the living are given their turn");
        let started = if mode == Mode::Copy {
            // SAFETY: the memory is this rank's until the world has ended.
            unsafe { pml.isend_copy(&made, &typed, dest, tag) }
        } else if kept {
            let mut persistent = Persistent::send(&made, &typed, dest, tag, how);
            // SAFETY: as below.
            let started = unsafe { pml.start(&mut persistent) };
            let (shape, op) = (Rc::clone(shape), Op::Send { to, comm, tag, mode });
            self.kept.push(Kept { persistent, memory, shape, op });
            started
        } else {
            // SAFETY: as above; nothing writes it before the request has ended or, buffered, this
            // has returned.
            unsafe { pml.isend_mode(&made, &typed, dest, tag, how) }
        };
        let id = match started {
            Ok(id) => id,
            Err(error) => return self.refused(to, mode, &error),
        };
        let from = self.rank;
        journal.sent.push(Sent {
            number,
            from,
            to,
            comm,
            tag,
            bytes,
            mode,
            tick,
            ..Sent::default()
        });
        let what = What::Send(journal.sent.len() - 1);
        self.pending.push(Pending { id, what, memory, done: None });
        if matches!(mode, Mode::Copy | Mode::Buffered) {
            self.memory[memory].fill(SCRIBBLE);
        }
        if mode == Mode::Buffered && self.pml().is_done(id) != Ok(true) {
            return Err(Failure::new(
                format!("buffered send {number} has not ended at once"),
                &[from, to],
            ));
        }
        Ok(())
    }

    /// Whether an operation with `peer` may have been refused like that.
    fn refused(&self, peer: u32, mode: Mode, error: &PmlError) -> Result<(), Failure> {
        lock(&self.wire).heard(|tap| tap.outcome("call", (self.rank, peer.into()), Err(error)));
        self.tell(Some(peer), || format!("is refused: {error}"));
        match error {
            PmlError::BufferExhausted { .. } if mode == Mode::Buffered => Ok(()),
            error if self.is_excused(error) => Ok(()),
            _ => Err(Failure::new(format!("refused without need: {error}"), &[self.rank, peer])),
        }
    }

    /// Whether a failure follows from a death.
    pub(crate) fn is_excused(&self, error: &PmlError) -> bool {
        let wire = lock(&self.wire);
        match error {
            PmlError::PeerLost { rank, .. } | PmlError::NobodyLeft { rank, .. } => {
                wire.harmed.contains(&(self.rank, *rank))
            }
            PmlError::CommFailed { rank } => wire.harmed.iter().any(|(one, _)| one == rank),
            _ => false,
        }
    }

    pub(crate) fn receive(
        &mut self,
        plan: &Plan,
        journal: &mut Journal,
        number: u32,
        from: (Option<u32>, usize, Option<i32>),
        shape: Rc<Shape>,
        kept: bool,
    ) -> Result<(), Failure> {
        let Some((comm, source, tag)) = self.pattern(plan, from) else { return Ok(()) };
        let (memory, typed) = self.buffer(&shape, RECV_GAP);
        let tick = self.tick();
        self.tell(from.0, || {
            let (room, whose) = (typed.packed_bytes(), from.0.map_or("anybody's", |_| "a"));
            format!("posts receive {number} of {whose} message ({room} bytes, tag {:?}, communicator {})", from.2, from.1)
        });
        let pml = self.pml.as_mut().expect("only the living are given their turn");
        let started = if kept {
            let mut persistent = Persistent::recv(&comm, &typed, source, tag);
            // SAFETY: as below.
            let started = unsafe { pml.start(&mut persistent) };
            let (shape, op) = (Rc::clone(&shape), Op::Recv { from });
            self.kept.push(Kept { persistent, memory, shape, op });
            started
        } else {
            // SAFETY: the memory is this rank's until the world has ended, and nothing looks at it
            // before the request has ended.
            unsafe { pml.irecv(&comm, &typed, source, tag) }
        };
        let id = match started {
            Ok(id) => id,
            Err(error) => return self.refused(from.0.unwrap_or(self.rank), Mode::Standard, &error),
        };
        self.took(journal, (number, from, tick), shape, (id, memory), None);
        Ok(())
    }

    fn took(
        &mut self,
        journal: &mut Journal,
        (number, (source, comm, tag), tick): (u32, (Option<u32>, usize, Option<i32>), u64),
        shape: Rc<Shape>,
        (id, memory): (RequestId, usize),
        claimed: Option<(u32, i32, u64)>,
    ) {
        journal.taken.push(Taken {
            number,
            rank: self.rank,
            comm,
            source,
            tag,
            shape,
            tick,
            claimed,
            dropped: false,
            again: false,
            cancelled: None,
            memory,
            ended: None,
            digest: 0,
        });
        let what = What::Recv(journal.taken.len() - 1);
        self.pending.push(Pending { id, what, memory, done: None });
    }

    fn probe(
        &mut self,
        plan: &Plan,
        journal: &mut Journal,
        from: (Option<u32>, usize, Option<i32>),
    ) -> Result<(), Failure> {
        let Some((comm, source, tag)) = self.pattern(plan, from) else { return Ok(()) };
        match self.pml().iprobe(&comm, source, tag) {
            Ok(Some(status)) => {
                let tick = self.tick();
                let process = comm.process(status.source).unwrap_or(u32::MAX);
                self.tell(Some(process), || format!("sees a message of {} bytes", status.bytes));
                self.saw("probe", &status);
                let status = (process, status.tag, status.bytes);
                journal.seen.push(Seen {
                    rank: self.rank,
                    comm: from.1,
                    tag: from.2,
                    tick,
                    status,
                });
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.refused(from.0.unwrap_or(self.rank), Mode::Standard, &error),
        }
    }

    fn claim(
        &mut self,
        plan: &Plan,
        shapes: &mut Shapes,
        journal: &mut Journal,
        number: u32,
        from: (Option<u32>, usize, Option<i32>),
        (shape, less, dropped): (u8, u64, bool),
    ) -> Result<(), Failure> {
        let Some((comm, source, tag)) = self.pattern(plan, from) else { return Ok(()) };
        let (message, status) = match self.pml().improbe(&comm, source, tag) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) => return self.refused(from.0.unwrap_or(self.rank), Mode::Standard, &error),
        };
        let tick = self.tick();
        self.saw("matched probe", &status);
        let process = comm.process(status.source).unwrap_or(u32::MAX);
        let claimed = Some((process, status.tag, status.bytes));
        let elements = (status.bytes / shapes.bytes).saturating_sub(less);
        let shape = shapes.shape(shape, elements);
        self.tell(Some(process), || {
            format!("claims a message of {} bytes as {number}", status.bytes)
        });
        let (memory, typed) = self.buffer(&shape, RECV_GAP);
        if dropped {
            self.pml().drop_message(&message);
            let (source, comm, tag) = from;
            let rank = self.rank;
            journal.taken.push(Taken {
                number,
                rank,
                comm,
                source,
                tag,
                shape,
                tick,
                claimed,
                dropped,
                again: false,
                cancelled: None,
                memory,
                ended: None,
                digest: 0,
            });
            return Ok(());
        }
        // SAFETY: as in `receive`.
        let started = unsafe { self.pml().imrecv(&message, &typed) };
        match started {
            Ok(id) => self.took(journal, (number, from, tick), shape, (id, memory), claimed),
            Err(failure) => return self.refused(process, Mode::Standard, &failure.error),
        }
        Ok(())
    }
}
