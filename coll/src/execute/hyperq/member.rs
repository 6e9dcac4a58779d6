//! The part of a rank that is not the leader: copies as it is told, lends its buffers to its GPU leader, or is a GPU
//! leader.
//!
//! However it ends, what it has started is over before, and so is what its GPU leader has started.

use gapless_bml::Rank;
use gapless_engine::EngineError;
use gapless_mem::DeviceError;

use super::control::{
    BROKEN, CANNOT, COMBINED, Control, ELSEWHERE, FAILED, GATHER_DROP, GATHER_IPC, GATHER_STAGED,
    GATHERED, GO, HALT, JOIN, LEND, Presence, SCATTER_IPC, SCATTER_STAGED, SCATTER_TWICE,
    SCATTERED, SEEN, SETTLED, SPREAD,
};
use super::copies::Works;
use super::gpu_leader::{self, GpuLeader};
use super::root_leader::is_settled;
use super::space::{MappedLeader, lend};
use super::{CallPart, Ended, Tools};
use crate::execute::CollError;
use crate::hyperq::{RING, groups};
use crate::schedule::Buffer;

/// Chunks that are being staged at once: no more of a copy that is dropped is waited for.
const AHEAD: usize = 2;

/// A copy of this rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    NotBegun,
    Going,
    Over,
}

/// A rank's part of a call that GPU leaders carry out.
#[derive(Debug)]
enum Led {
    /// Its buffers are this rank's.
    Lends(usize),
    Leads(Box<GpuLeader>),
}

/// Another rank's part of a call.
#[derive(Debug)]
pub(super) struct Following {
    /// The orders that it has seen.
    seen: u32,
    reports: u32,
    ipc: (Copy, Works),
    /// Chunks that it has begun to stage, and one piece of work each that is not known to be over.
    staging: (u32, std::collections::VecDeque<Works>),
    scatter: (Copy, Works),
    /// Bytes of the scatter that it has begun to copy, and those of the mirror that it knows of.
    scattered: u64,
    mirrored: u32,
    /// If GPU leaders carry it out.
    led: Option<Led>,
    failure: Option<CollError>,
}

impl Following {
    pub(super) fn new() -> Following {
        Following {
            seen: 0,
            reports: 0,
            ipc: (Copy::NotBegun, Works::default()),
            staging: (0, Default::default()),
            scatter: (Copy::NotBegun, Works::default()),
            scattered: 0,
            mirrored: 0,
            led: None,
            failure: None,
        }
    }

    /// Waits for what it has started.
    pub(super) fn drain(&mut self) {
        if let Some(Led::Leads(gpu_leader)) = &mut self.led {
            gpu_leader.drain();
        }
        self.ipc.1.drain();
        self.scatter.1.drain();
        self.staging.1.clear();
    }

    fn is_idle(&self) -> bool {
        self.ipc.1.is_empty() && self.scatter.1.is_empty() && self.staging.1.is_empty()
    }

    /// Whether all that it has started is over, well or not.
    fn settle(&mut self) -> bool {
        while self.staging.1.front_mut().is_some_and(Works::settle) {
            self.staging.1.pop_front();
        }
        let led = match &mut self.led {
            Some(Led::Leads(gpu_leader)) => gpu_leader.settle(),
            _ => true,
        };
        let over = [self.ipc.1.settle(), self.scatter.1.settle(), led];
        over == [true; 3] && self.staging.1.is_empty()
    }

    /// Whether a GPU leader may work on this rank's buffers, as far as words tell.
    pub(super) fn is_lent(&mut self, part: &CallPart, control: &Control) -> bool {
        let Some(Led::Lends(gpu_leader)) = self.led else { return false };
        self.seen |= control.orders(part.frame.leader, part.me, part.number);
        let told = self.seen & (FAILED | ELSEWHERE | GO) != 0 && gpu_leader == part.frame.leader;
        !told && !is_settled(gpu_leader, part.number, control)
    }

    /// This rank starts nothing more, and what it has started is over: if it is a GPU leader, others have their buffers
    /// back.
    pub(super) fn tell_settled(&mut self, part: &CallPart, control: &Control) {
        if let Some(Led::Leads(_)) = self.led {
            self.reports |= SETTLED;
            control.report(part.me, part.number, self.reports);
        }
    }

    /// Whether nobody touches this rank's buffers, as far as it has lent them; says as a GPU leader that it touches
    /// none. What this rank has started is over.
    pub(super) fn let_go(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> bool {
        let gpu_leader = match self.led {
            None => return true,
            Some(Led::Leads(_)) => {
                self.say(part, tools, SETTLED);
                return true;
            }
            Some(Led::Lends(gpu_leader)) => gpu_leader,
        };
        if !self.is_lent(part, tools.control) {
            return true;
        }
        if tools.members.loss(tools.pml, gpu_leader).is_none() {
            return false;
        }
        // What it has started may go on for a while.
        let process =
            u32::try_from(gpu_leader).ok().and_then(|it| tools.members.comm.process(it).ok());
        let buffers = [part.given(), part.received()].into_iter().flatten().flatten();
        let bml = tools.pml.bml_mut();
        process.is_none_or(|process| {
            let used = |region| bml.revoke_access(Rank(process), region);
            !buffers.map(used).fold(false, |one, other| one | other)
        })
    }

    /// Its part of a call that GPU leaders carry out.
    fn take_part(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        let rank = u32::try_from(part.me).unwrap_or(u32::MAX);
        if self.led.is_none() {
            let mut gpus = vec![part.gpu; tools.members.ranks];
            for other in tools.members.others() {
                match tools.control.presence(other, part.number) {
                    Presence::Here(gpu) => gpus[other] = gpu,
                    // It has failed already, of which this rank will hear.
                    _ => {
                        if self.seen & HALT != 0 && self.reports & SETTLED == 0 {
                            self.say(part, tools, SETTLED);
                        }
                        return Ok(());
                    }
                }
            }
            let groups = groups(&gpus, part.frame.leader);
            let own = groups.iter().find(|group| group.ranks.contains(&part.me));
            let gpu_leader = own.map_or(part.frame.leader, |group| group.gpu_leader);
            let not = |reason: &str| CollError::NotMapped { rank, reason: reason.to_owned() };
            if gpu_leader != part.me {
                self.led = Some(Led::Lends(gpu_leader));
                let by = (&tools.members.comm, tools.control);
                let lent = lend(part, gpu_leader, by, tools.pml.bml_mut());
                return lent.ok_or_else(|| not("there is no key for its buffers"));
            }
            let gpu_leader =
                GpuLeader::new(part, groups).ok_or_else(|| not("its buffers have gaps"))?;
            self.led = Some(Led::Leads(Box::new(gpu_leader)));
        }
        let Some(Led::Leads(gpu_leader)) = &mut self.led else { return Ok(()) };
        if self.seen & HALT == 0 {
            gpu_leader.advance(part, self.seen & JOIN != 0, tools)?;
        }
        let mut says = match gpu_leader.stage() {
            gpu_leader::GpuLeaderStage::Combined => COMBINED,
            gpu_leader::GpuLeaderStage::Over => COMBINED | SPREAD,
            _ => 0,
        };
        if self.seen & HALT != 0 && gpu_leader.settle() {
            says |= SETTLED;
        }
        if says & !self.reports != 0 {
            self.say(part, tools, says);
        }
        Ok(())
    }

    /// Goes on as far as it can; how it has ended, if it has.
    pub(super) fn advance(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Option<Ended> {
        let (leader, me) = (part.frame.leader, tools.members.me);
        // Once all was gathered and this rank has said that it knows, orders of later calls may stand there.
        self.seen |= tools.control.orders(leader, me, part.number);
        if self.seen & GO != 0 && self.reports & SEEN == 0 {
            self.say(part, tools, SEEN);
        }
        // A leader that has failed, or goes another way, waits for nobody: its orders may have been overwritten unread.
        if self.seen & (GO | FAILED | ELSEWHERE) == 0
            && tools.control.presence(leader, part.number) == Presence::Elsewhere
            && tools.control.failed(leader, me, part.number)
        {
            self.seen |= FAILED;
        }
        if self.seen & (FAILED | ELSEWHERE) != 0 {
            if !self.settle() || !self.let_go(part, tools) {
                return None;
            }
            if self.seen & ELSEWHERE != 0 {
                return Some(Ended::Elsewhere);
            }
            let told =
                CollError::blamed(tools.control.blamed(leader, me), tools.members.size(), leader);
            return Some(Ended::Failed(self.failure.take().unwrap_or(told)));
        }
        if self.failure.is_none()
            && let Err(error) = self.advance_stage(part, tools)
        {
            self.failure = Some(error);
        }
        // What GPU leaders have started is over when they say so.
        if let Some(error) = &self.failure
            && self.reports & (CANNOT | BROKEN) == 0
        {
            let cannot = matches!(error, CollError::NotMapped { .. });
            if self.led.is_some() && !self.settle() {
                return None;
            }
            self.say(part, tools, if cannot { CANNOT } else { BROKEN });
        }
        if self.failure.is_none() && self.is_done(part) {
            return Some(Ended::Done);
        }
        // The leader may have done its part before it was lost, or went on.
        let gone = match tools.members.loss(tools.pml, leader) {
            Some(loss) => Ended::Failed(loss),
            None if tools.control.presence(leader, part.number) != Presence::Elsewhere => {
                return None;
            }
            None if self.seen == 0 => Ended::Elsewhere,
            // It has all go another way, perhaps because this rank cannot lend; that order was overwritten by the next
            // call's. To go on it would have waited for this rank.
            None if self.seen & LEND != 0 && self.seen & GO == 0 => {
                self.failure.take_if(|error| matches!(error, CollError::NotMapped { .. }));
                Ended::Elsewhere
            }
            // It needed nothing more of this rank.
            None if self.failure.is_some() => Ended::Done,
            None => return None,
        };
        if tools.control.orders(leader, me, part.number) & !self.seen != 0
            || !self.settle()
            || !self.let_go(part, tools)
        {
            return None;
        }
        Some(self.failure.take().map_or(gone, Ended::Failed))
    }

    fn say(&mut self, part: &CallPart, tools: &Tools<'_>, bits: u32) {
        self.reports |= bits;
        tools.control.report(tools.members.me, part.number, self.reports);
    }

    /// Whether nothing is left to do, and nothing can be asked of it any more.
    fn is_done(&self, part: &CallPart) -> bool {
        // GPU leaders have scattered before that.
        let scattered = self.seen & LEND != 0
            || part.frame.take(part.me).is_none()
            || self.scatter.0 == Copy::Over;
        self.seen & GO != 0 && scattered && self.is_idle()
    }

    fn advance_stage(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        let rank = u32::try_from(part.me).unwrap_or(u32::MAX);
        let engine = |error: EngineError| CollError::Engine { rank, error };
        let device = |error: DeviceError| CollError::Engine { rank, error: error.into() };
        if self.seen & LEND != 0 {
            return self.take_part(part, tools);
        }
        let copies = GATHER_IPC | GATHER_STAGED | SCATTER_IPC | SCATTER_STAGED;
        if self.seen & copies == 0 {
            return Ok(());
        }
        self.map(part, tools)?;
        let Some(mapped) = &tools.mapped[part.frame.leader] else { return Ok(()) };
        let (buffer, staging) = (mapped.buffer(), mapped.staging());
        if self.seen & GATHER_IPC != 0 && self.ipc.0 == Copy::NotBegun {
            self.ipc.0 = Copy::Going;
            if let Some(give) = part.frame.give(part.me) {
                let into = buffer.sub(give.at, give.range.end - give.range.start);
                let into = into.map_err(|error| engine(error.into()))?;
                tools
                    .mover
                    .put((give.buffer, give.range), into, &mut self.ipc.1)
                    .map_err(engine)?;
            }
        }
        if self.ipc.0 == Copy::Going && self.ipc.1.poll().map_err(device)? {
            self.ipc.0 = Copy::Over;
            self.say(part, tools, GATHERED);
        }
        self.stage(part, tools, staging)?;
        if self.seen & (SCATTER_IPC | SCATTER_STAGED) == 0 {
            return Ok(());
        }
        // What is received into may be what a copy of the gather still reads.
        let replaces = part.frame.give(part.me).is_some_and(|give| give.buffer == Buffer::Recv);
        if replaces && self.ipc.0 == Copy::Going {
            return Ok(());
        }
        let Some(take) = part.frame.take(part.me) else { return Ok(()) };
        if self.scatter.0 == Copy::NotBegun {
            self.scatter.0 = Copy::Going;
            if self.seen & SCATTER_IPC != 0 {
                for block in 0..take.blocks {
                    let from = buffer.sub(take.at + block * take.pitch, take.len);
                    let from = from.map_err(|error| engine(error.into()))?;
                    tools
                        .mover
                        .take(from, block * take.len, &mut self.scatter.1)
                        .map_err(engine)?;
                }
                self.scattered = take.bytes();
            }
        }
        if self.seen & SCATTER_STAGED != 0 && self.scattered < take.bytes() {
            self.unstage(part, tools, staging).map_err(engine)?;
        }
        let all = self.scattered == take.bytes();
        if self.scatter.0 == Copy::Going && self.scatter.1.poll().map_err(device)? && all {
            self.scatter.0 = Copy::Over;
            self.say(part, tools, SCATTERED);
        }
        Ok(())
    }

    /// Maps the leader's memory, if it has given new keys.
    fn map(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        if self.ipc.0 != Copy::NotBegun || self.staging.0 > 0 || self.scatter.0 != Copy::NotBegun {
            return Ok(());
        }
        let (pair, bytes) = ((part.frame.leader, part.me), part.bytes());
        let memory = (tools.mover.device, bytes);
        let by = (&tools.members.comm, tools.control);
        let known = &mut tools.mapped[part.frame.leader];
        let mapped = MappedLeader::of(known, pair, memory, by, tools.pml.bml_mut());
        mapped.map_err(|reason| {
            let rank = u32::try_from(part.frame.leader).unwrap_or(u32::MAX);
            CollError::NotMapped { rank, reason }
        })
    }

    /// Stages what it gives, as far as there is room.
    fn stage(
        &mut self,
        part: &CallPart,
        tools: &mut Tools<'_>,
        staging: gapless_mem::Region,
    ) -> Result<(), CollError> {
        let engine = |error: EngineError| CollError::Engine {
            rank: u32::try_from(part.me).unwrap_or(u32::MAX),
            error,
        };
        let Some(give) = part.frame.give(part.me) else { return Ok(()) };
        let (begun, works) = &mut self.staging;
        let mut ended = false;
        while let Some(first) = works.front_mut() {
            if !first.poll().map_err(|error| engine(error.into()))? {
                break;
            }
            works.pop_front();
            ended = true;
        }
        if self.seen & (GATHER_STAGED | GATHER_DROP) == GATHER_STAGED {
            let taken = tools.control.taken(part.frame.leader, part.me, part.number);
            let most = part.staging.chunks().min(taken.saturating_add(RING));
            while *begun < most && works.len() < AHEAD {
                let chunk = part.staging.chunk(*begun);
                let place = part.staging.place(part.me, *begun);
                let into = staging.sub(place.start, place.end - place.start);
                let into = into.map_err(|error| engine(error.into()))?;
                let range = give.range.start + chunk.start..give.range.start + chunk.end;
                let mut work = Works::default();
                tools.mover.put((give.buffer, range), into, &mut work).map_err(engine)?;
                works.push_back(work);
                *begun += 1;
            }
        }
        if ended {
            let over = *begun - u32::try_from(works.len()).unwrap_or(0);
            tools.control.report_staged(part.me, part.number, over);
        }
        Ok(())
    }

    /// Takes what is mirrored so far.
    fn unstage(
        &mut self,
        part: &CallPart,
        tools: &mut Tools<'_>,
        staging: gapless_mem::Region,
    ) -> Result<(), EngineError> {
        let Some(take) = part.frame.take(part.me) else { return Ok(()) };
        self.mirrored = tools.control.mirrored(part.frame.leader, part.me, part.number);
        let until = part.staging.mirrored(self.mirrored);
        while self.scattered < take.bytes() {
            let (block, at) = (self.scattered / take.len, self.scattered % take.len);
            let start = take.at + block * take.pitch + at;
            let end = (start + (take.len - at)).min(until);
            if self.mirrored == 0 || end <= start {
                break;
            }
            let (place, to) = (part.staging.mirror_place(start), self.scattered);
            match part.staging.apart().filter(|_| self.seen & SCATTER_TWICE != 0) {
                // A block at once.
                Some(_) if end < start + take.len => break,
                Some(apart) => {
                    let (from, to) = ((staging, place, apart), (to, take.len));
                    tools.mover.take_in_rows(from, to, &mut self.scatter.1)?;
                }
                None => {
                    let from = staging.sub(place, end - start)?;
                    tools.mover.take(from, to, &mut self.scatter.1)?;
                }
            }
            self.scattered += end - start;
        }
        Ok(())
    }

    /// Whether [`advance`](Following::advance) would get on, as far as a few loads tell.
    pub(super) fn look(&self, part: &CallPart, control: &Control) -> bool {
        let leader = part.frame.leader;
        let staged = || {
            self.seen & GATHER_STAGED != 0 && {
                let most = part
                    .staging
                    .chunks()
                    .min(control.taken(leader, part.me, part.number).saturating_add(RING));
                self.staging.0 < most && self.staging.1.len() < AHEAD
            }
        };
        let mirrored = || {
            self.seen & SCATTER_STAGED != 0
                && control.mirrored(leader, part.me, part.number) != self.mirrored
        };
        !self.is_idle()
            || matches!(self.led, Some(Led::Leads(_)))
            || control.orders(leader, part.me, part.number) & !self.seen != 0
            || staged()
            || mirrored()
    }
}
