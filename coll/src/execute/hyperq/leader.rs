//! The leader's part: tells the others when to copy by which kind, moves what they stage, and combines.
//!
//! However it ends, what it has started is over before it says so to the others, and before its own call ends. An IPC
//! copy of the gather that was sent again overlaps what follows; the leader's call ends when its rank has reported its
//! end.

use std::sync::Arc;

use gapless_engine::EngineError;
use gapless_mem::{DeviceError, Region};

use super::control::{
    BROKEN, CANNOT, Control, ELSEWHERE, FAILED, GATHER_DROP, GATHER_IPC, GATHER_STAGED, GATHERED,
    GO, Presence, SCATTER_IPC, SCATTER_STAGED, SCATTER_TWICE, SCATTERED, SEEN,
};
use super::copies::{Hop, Hops, Works, reduce};
use super::moments::{Moments, Seen};
use super::peer::{Peer, said};
use super::space::LeaderMemory;
use super::{CallPart, Ended, Members, Tools};
use crate::execute::CollError;
use crate::hyperq::{Act, Dynamic, Event, HyperQStep, Kind, Policy, QUICK_BYTES, RING};

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderStage {
    Opening,
    Gathering,
    Combining,
    Scattering,
    /// What was started is waited for, and then the others are told these orders.
    Leaving(u32),
    Over,
}

/// The leader's part of a call.
#[derive(Debug)]
pub(super) struct Leading {
    stage: LeaderStage,
    peers: Vec<Peer>,
    gather: Policy,
    scatter: Policy,
    acts: Vec<Act>,
    /// Its own copies, and the reduction.
    own: Works,
    up: Hops,
    down: Hops,
    mirroring: bool,
    /// Pieces that are mirrored.
    mirrored: u32,
    failure: Option<CollError>,
    /// When all ranks were there, when all was gathered, and when all was scattered; in nanoseconds.
    times: [Option<u64>; 4],
    /// What it was told and what it has ordered, and when.
    moments: Moments,
}

impl Leading {
    pub(super) fn new(ranks: usize, gather: Policy, scatter: Policy) -> Leading {
        Leading {
            stage: LeaderStage::Opening,
            peers: vec![Peer::default(); ranks],
            gather,
            scatter,
            acts: Vec::new(),
            own: Works::default(),
            up: Hops::default(),
            down: Hops::default(),
            mirroring: false,
            mirrored: 0,
            failure: None,
            times: [None; 4],
            moments: Moments::default(),
        }
    }

    /// How the gather and the scatter went, and how long they took: from when all ranks were there. The reduction
    /// counts as the gather's: where processes take turns, it waits for those that have copied by IPC.
    pub(super) fn learned(&self) -> [(&Policy, Option<u64>); 2] {
        let between =
            |from: usize, to: usize| Some(self.times[to]?.saturating_sub(self.times[from]?));
        [(&self.gather, between(0, 2)), (&self.scatter, between(2, 3))]
    }

    /// What has happened, in its order.
    pub(super) fn moments(&mut self) -> &mut Moments {
        &mut self.moments
    }

    /// Tells the policy of a step.
    fn tell(&mut self, step: HyperQStep, event: Event, now_ns: u64) {
        self.moments.note(now_ns, Seen::Event(step, event));
        let policy = match step {
            HyperQStep::Gather => &mut self.gather,
            HyperQStep::Scatter => &mut self.scatter,
        };
        policy.step(event, &mut self.acts);
    }

    /// Waits for what it has started.
    pub(super) fn drain(&mut self) {
        self.own.drain();
        self.up = Hops::default();
        self.down = Hops::default();
    }

    /// Goes on as far as it can; how it has ended, if it has.
    pub(super) fn advance(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Option<Ended> {
        loop {
            let before = self.stage;
            if let Err(error) = self.advance_stage(part, tools) {
                self.failure.get_or_insert(error);
                if !matches!(self.stage, LeaderStage::Leaving(_)) {
                    self.stage = LeaderStage::Leaving(FAILED);
                }
            }
            match self.stage {
                LeaderStage::Over => {
                    return Some(match self.failure.take() {
                        Some(error) => Ended::Failed(error),
                        None => Ended::Done,
                    });
                }
                LeaderStage::Leaving(orders) if before == self.stage => {
                    let over = [self.own.settle(), self.up.settle(), self.down.settle()];
                    if over != [true; 3] {
                        return None;
                    }
                    self.tell_all(part, tools, orders);
                    self.stage = LeaderStage::Over;
                    if orders == ELSEWHERE {
                        return Some(Ended::Elsewhere);
                    }
                }
                now if now == before => return None,
                _ => {}
            }
        }
    }

    /// The last word, to all: those who have not come find it when they do.
    fn tell_all(&mut self, part: &CallPart, tools: &mut Tools<'_>, orders: u32) {
        let me = tools.members.me;
        for rank in tools.members.others() {
            if let Some(error) = &self.failure {
                let (culprit, is_lost) = error.blames(u32::try_from(me).unwrap_or(u32::MAX));
                tools.control.blame(me, rank, culprit, is_lost);
                tools.control.fail(me, rank, part.number);
            }
        }
        self.order_all(part, tools, orders);
    }

    fn order_all(&mut self, part: &CallPart, tools: &Tools<'_>, orders: u32) {
        let me = tools.members.me;
        for rank in tools.members.others() {
            self.peers[rank].orders |= orders;
            tools.control.order(me, rank, part.number, self.peers[rank].orders);
        }
    }

    fn advance_stage(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        let rank = u32::try_from(tools.members.me).unwrap_or(u32::MAX);
        let engine = |error: EngineError| CollError::Engine { rank, error };
        let device = |error: DeviceError| CollError::Engine { rank, error: error.into() };
        match self.stage {
            LeaderStage::Opening => self.open(part, tools).map_err(engine),
            LeaderStage::Gathering => {
                self.meet(part, tools)?;
                self.reported(part, tools)?;
                self.collect(part, tools).map_err(device)?;
                self.hop_up(part, tools).map_err(engine)?;
                self.obey(part, tools, HyperQStep::Gather)?;
                // Chunks of a copy that was dropped may still be on their way: they write what is there already.
                let idle = self.own.poll().map_err(device)?;
                let all_here = tools.members.others().all(|rank| self.peers[rank].here);
                let over = all_here && idle && self.gather.is_over();
                if !over || !matches!(self.stage, LeaderStage::Gathering) {
                    return Ok(());
                }
                self.times[1] = Some(tools.now_ns);
                self.moments.note(tools.now_ns, Seen::Gathered);
                self.combine(part, tools).map_err(engine)?;
                self.stage = LeaderStage::Combining;
                Ok(())
            }
            LeaderStage::Combining => {
                self.reported(part, tools)?;
                if !self.own.poll().map_err(device)? {
                    return Ok(());
                }
                self.times[2] = Some(tools.now_ns);
                self.moments.note(tools.now_ns, Seen::Combined);
                self.scatter(part, tools).map_err(engine)?;
                self.stage = LeaderStage::Scattering;
                Ok(())
            }
            LeaderStage::Scattering => {
                self.reported(part, tools)?;
                self.collect(part, tools).map_err(device)?;
                self.obey(part, tools, HyperQStep::Scatter)?;
                let idle =
                    self.own.poll().map_err(device)? && self.down.is_empty() && self.up.is_empty();
                let over = idle && self.scatter.is_over();
                if !over || !matches!(self.stage, LeaderStage::Scattering) {
                    return Ok(());
                }
                if self.times[3].is_none() {
                    self.times[3] = Some(tools.now_ns);
                    self.moments.note(tools.now_ns, Seen::Scattered);
                }
                // IPC copies that were sent again have overlapped this. Orders of the next call are written where those
                // of this one stand.
                let owed = |rank: usize| self.peers[rank].owed() & (GATHERED | SEEN);
                if tools.members.others().all(|rank| owed(rank) == 0) {
                    self.stage = LeaderStage::Over;
                }
                Ok(())
            }
            LeaderStage::Leaving(_) | LeaderStage::Over => Ok(()),
        }
    }

    /// Begins: with memory, and its own share in it.
    fn open(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let (me, bytes) = (tools.members.me, part.bytes());
        if tools.lead.impossible {
            self.stage = LeaderStage::Leaving(ELSEWHERE);
            return Ok(());
        }
        let device = Arc::clone(tools.mover.device);
        let held = tools.lead.ensure(&device, bytes, tools.members.ranks, tools.pml.bml_mut());
        let Some(held) = held else {
            tools.lead.impossible = true;
            self.stage = LeaderStage::Leaving(ELSEWHERE);
            return Ok(());
        };
        self.stage = LeaderStage::Gathering;
        self.moments.note(tools.now_ns, Seen::Begun);
        if let Some(give) = part.frame.give(me) {
            let into = held.buffer().sub(give.at, give.range.end - give.range.start)?;
            tools.mover.put((give.buffer, give.range), into, &mut self.own)?;
        }
        Ok(())
    }

    /// Who has come.
    fn meet(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        let mut all = true;
        for rank in tools.members.others() {
            if self.peers[rank].here {
                continue;
            }
            match tools.control.presence(rank, part.number) {
                Presence::Here(gpu) if gpu == part.gpu => {
                    self.peers[rank].here = true;
                    if part.frame.give(rank).is_some() {
                        self.tell(HyperQStep::Gather, Event::Arrived(rank), tools.now_ns);
                    }
                }
                Presence::Here(_) | Presence::Elsewhere => {
                    self.stage = LeaderStage::Leaving(ELSEWHERE);
                    return Ok(());
                }
                Presence::Away => {
                    all = false;
                    if let Some(loss) = tools.members.loss(tools.pml, rank) {
                        return Err(loss);
                    }
                }
            }
        }
        if all {
            self.times[0].get_or_insert(tools.now_ns);
        }
        Ok(())
    }

    /// What the others say.
    fn reported(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        for rank in tools.members.others() {
            let owed = self.peers[rank].owed();
            if owed == 0 {
                continue;
            }
            let reports = said(rank, owed, part, tools.control);
            let culprit = u32::try_from(rank).unwrap_or(u32::MAX);
            if reports & CANNOT != 0 && matches!(self.stage, LeaderStage::Gathering) {
                tools.lead.impossible = true;
                self.stage = LeaderStage::Leaving(ELSEWHERE);
                return Ok(());
            }
            if reports & (BROKEN | CANNOT) != 0 {
                return Err(CollError::GaveUp { rank: culprit });
            }
            if reports & owed & SEEN != 0 {
                self.peers[rank].told[3] = true;
            }
            if reports & owed & GATHERED != 0 {
                self.peers[rank].told[0] = true;
                self.tell(HyperQStep::Gather, Event::Completed(rank, Kind::Ipc), tools.now_ns);
            }
            if reports & owed & SCATTERED != 0 {
                self.peers[rank].told[2] = true;
                let kind = match self.peers[rank].orders & SCATTER_IPC != 0 {
                    true => Kind::Ipc,
                    false => Kind::Staged,
                };
                self.tell(HyperQStep::Scatter, Event::Completed(rank, kind), tools.now_ns);
            }
            if self.peers[rank].owed() != 0
                && let Some(loss) = tools.members.loss(tools.pml, rank)
            {
                // Its last report may have come meanwhile.
                if said(rank, owed, part, tools.control) == reports {
                    return Err(loss);
                }
            }
        }
        Ok(())
    }

    /// What hops have ended.
    fn collect(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), DeviceError> {
        let me = tools.members.me;
        while let Some(hop) = self.up.pop()? {
            for rank in hop.ranks {
                let peer = &mut self.peers[rank];
                peer.taken = hop.number + 1;
                tools.control.report_taken(me, rank, part.number, peer.taken);
                let dropped = peer.orders & GATHER_DROP != 0;
                if peer.taken == part.staging.chunks() && !dropped {
                    peer.told[1] = true;
                    self.tell(
                        HyperQStep::Gather,
                        Event::Completed(rank, Kind::Staged),
                        tools.now_ns,
                    );
                }
            }
        }
        while let Some(hop) = self.down.pop()? {
            self.mirrored = hop.number;
            self.tell_mirrored(part, tools);
        }
        Ok(())
    }

    fn tell_mirrored(&self, part: &CallPart, tools: &Tools<'_>) {
        let staged = |rank: &usize| self.peers[*rank].orders & SCATTER_STAGED != 0;
        for rank in tools.members.others().filter(staged) {
            tools.control.report_mirrored(tools.members.me, rank, part.number, self.mirrored);
        }
    }

    /// Moves what the others have staged.
    fn hop_up(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let chunks = part.staging.chunks();
        let ready: Vec<usize> = tools
            .members
            .others()
            .filter(|rank| self.peers[*rank].takes(part))
            .filter(|rank| tools.control.staged(*rank, part.number) > self.peers[*rank].hopped)
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        let Some(held) = tools.lead.held() else { return Ok(()) };
        if part.staging.is_whole() {
            // Short ones that are known beforehand go together.
            if let Policy::Fixed(fixed) = &self.gather
                && ready.len() < fixed.count(Kind::Staged)
            {
                return Ok(());
            }
            for run in ready.chunk_by(|one, next| one + 1 == *next) {
                let (first, last) = (run[0], run[run.len() - 1]);
                let mut from = part.staging.place(first, 0).start..part.staging.place(last, 0).end;
                let at = part.frame.slot(first);
                if last + 1 == part.frame.slots() && tools.mover.device.takes_turns() {
                    // Nothing lies behind it, in either memory.
                    from.end = from.end.max(from.start + QUICK_BYTES);
                }
                let (from, into) = windows(held, from, at)?;
                let work = tools.mover.hop(into, from)?;
                run.iter().for_each(|rank| self.peers[*rank].hopped = 1);
                self.up.push(Hop { ranks: first..last + 1, number: 0 }, work);
            }
            return Ok(());
        }
        for rank in ready {
            let staged = tools.control.staged(rank, part.number).min(chunks);
            let staged = staged.min(self.peers[rank].taken.saturating_add(RING));
            while self.peers[rank].hopped < staged {
                let chunk = self.peers[rank].hopped;
                let at = part.frame.slot(rank) + part.staging.chunk(chunk).start;
                let (from, into) = windows(held, part.staging.place(rank, chunk), at)?;
                let work = tools.mover.hop(into, from)?;
                self.peers[rank].hopped += 1;
                self.up.push(Hop { ranks: rank..rank + 1, number: chunk }, work);
            }
        }
        Ok(())
    }

    /// Does what the policy wants.
    fn obey(
        &mut self,
        part: &CallPart,
        tools: &mut Tools<'_>,
        step: HyperQStep,
    ) -> Result<(), CollError> {
        let me = tools.members.me;
        for act in std::mem::take(&mut self.acts) {
            if matches!(self.stage, LeaderStage::Leaving(_)) {
                return Ok(());
            }
            let (rank, orders) = match (act, step) {
                (Act::Drop(rank), _) => (rank, GATHER_DROP),
                (Act::Issue(rank, Kind::Ipc), HyperQStep::Gather) => (rank, GATHER_IPC),
                (Act::Issue(rank, Kind::Staged), HyperQStep::Gather) => (rank, GATHER_STAGED),
                (Act::Issue(rank, Kind::Ipc), HyperQStep::Scatter) => (rank, SCATTER_IPC),
                (Act::Issue(rank, Kind::Staged), HyperQStep::Scatter) => match twice(part, tools) {
                    Some(_) => (rank, SCATTER_STAGED | SCATTER_TWICE),
                    None => (rank, SCATTER_STAGED),
                },
            };
            let Some(held) = tools.lead.held() else { return Ok(()) };
            let given =
                held.give((me, rank), &tools.members.comm, tools.control, tools.pml.bml_mut());
            if given.is_none() {
                if let Some(loss) = tools.members.loss(tools.pml, rank) {
                    return Err(loss);
                }
                tools.lead.impossible = true;
                if step == HyperQStep::Gather {
                    self.stage = LeaderStage::Leaving(ELSEWHERE);
                    return Ok(());
                }
                let rank = u32::try_from(rank).unwrap_or(u32::MAX);
                let reason = "there is no key for this rank's memory".to_owned();
                return Err(CollError::NotMapped { rank, reason });
            }
            self.moments.note(tools.now_ns, Seen::Act(step, act));
            self.peers[rank].orders |= orders;
            tools.control.order(me, rank, part.number, self.peers[rank].orders);
            if orders & SCATTER_STAGED != 0 {
                self.mirror(part, tools).map_err(|error| CollError::Engine {
                    rank: u32::try_from(me).unwrap_or(u32::MAX),
                    error,
                })?;
            }
        }
        Ok(())
    }

    /// Starts to mirror what is scattered, once; or tells how far that is.
    fn mirror(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        if self.mirroring {
            self.tell_mirrored(part, tools);
            return Ok(());
        }
        self.mirroring = true;
        let apart = twice(part, tools);
        let Some(held) = tools.lead.held() else { return Ok(()) };
        for (number, (from, at)) in (1..).zip(part.staging.mirror()) {
            let len = from.end - from.start;
            let from = held.buffer().sub(from.start, len)?;
            let twin = apart.map(|apart| at + apart);
            for (at, number) in [(Some(at), number - u32::from(twin.is_some())), (twin, number)] {
                let Some(at) = at else { continue };
                let work = tools.mover.hop(held.staging().sub(at, len)?, from)?;
                self.down.push(Hop { ranks: 0..0, number }, work);
            }
        }
        Ok(())
    }

    /// All was gathered: says so, and combines.
    fn combine(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let (me, frame) = (tools.members.me, &part.frame);
        // What gets nothing may end.
        self.order_all(part, tools, GO);
        let (Some(held), Some(combine)) = (tools.lead.held(), &part.combine) else { return Ok(()) };
        if frame.reduces() {
            let slot = |rank: usize| held.buffer().sub(frame.slot(rank), frame.gather_bytes());
            let all: Vec<Region> = (0..tools.members.ranks).map(slot).collect::<Result<_, _>>()?;
            self.own.push(reduce(tools.reducer, combine, &all, all[me])?);
        }
        Ok(())
    }

    /// The result is there: begins to give it to all.
    fn scatter(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), EngineError> {
        let copies = part.frame.copies(HyperQStep::Scatter);
        if let (Policy::Dynamic(gather), Policy::Dynamic(scatter)) =
            (&self.gather, &mut self.scatter)
        {
            *scatter = Dynamic::after(gather, copies);
        }
        for rank in tools.members.others().filter(|rank| part.frame.take(*rank).is_some()) {
            self.tell(HyperQStep::Scatter, Event::Arrived(rank), tools.now_ns);
        }
        let Some(take) = part.frame.take(tools.members.me) else { return Ok(()) };
        let Some(held) = tools.lead.held() else { return Ok(()) };
        for block in 0..take.blocks {
            let from = held.buffer().sub(take.at + block * take.pitch, take.len)?;
            tools.mover.take(from, block * take.len, &mut self.own)?;
        }
        Ok(())
    }

    /// Whether [`advance`](Leading::advance) would get on, as far as a few loads tell.
    pub(super) fn look(&self, part: &CallPart, control: &Control, members: &Members) -> bool {
        let busy = !(self.own.is_empty() && self.up.is_empty() && self.down.is_empty());
        let away = |rank: usize| {
            !self.peers[rank].here && control.presence(rank, part.number) != Presence::Away
        };
        let reported = |rank: usize| {
            let peer = &self.peers[rank];
            let reports = said(rank, peer.owed(), part, control);
            reports & (peer.owed() | BROKEN | CANNOT) != 0
                || (peer.takes(part) && control.staged(rank, part.number) > peer.hopped)
        };
        busy || matches!(self.stage, LeaderStage::Opening | LeaderStage::Leaving(_))
            || members.others().any(|rank| away(rank) || reported(rank))
    }
}

/// How far behind the mirror it is mirrored once more: where short copies from the host would wait for a turn.
fn twice(part: &CallPart, tools: &Tools<'_>) -> Option<u64> {
    part.staging.apart().filter(|_| tools.mover.device.takes_turns())
}

/// A part of staging memory, and the part of the buffer that it goes to.
fn windows(
    held: &LeaderMemory,
    from: std::ops::Range<u64>,
    at: u64,
) -> Result<(Region, Region), EngineError> {
    let len = from.end - from.start;
    Ok((held.staging().sub(from.start, len)?, held.buffer().sub(at, len)?))
}
