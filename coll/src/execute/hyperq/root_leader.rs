//! The root leader's part of a call that GPU leaders carry out ([`Mode::Led`](crate::hyperq::Mode::Led)): finds out
//! where all buffers lie, tells ranks to lend them, is the GPU leader of its own GPU, and tells GPU leaders when they
//! may go on.
//!
//! What fails before [`JOIN`], or before all is mapped on one GPU, has written nothing, so ranks go on by other means.
//! When the others hear how it has ended, all GPU leaders have settled.

use super::control::{
    BROKEN, CANNOT, COMBINED, Control, ELSEWHERE, FAILED, GO, HALT, JOIN, LEND, Presence, SEEN,
    SETTLED, SPREAD,
};
use super::gpu_leader::{self, GpuLeader};
use super::{CallPart, Ended, Members, Tools};
use crate::execute::CollError;
use crate::hyperq::{groups, in_order};

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootLeaderStage {
    Meeting,
    Working,
    /// All is done, and the others were told so.
    Parting,
    /// GPU leaders are to start nothing more; then all are told these orders.
    Leaving(u32),
    Over,
}

/// What came of it.
pub(super) enum Led {
    /// So many GPUs were used.
    Ended(Ended, usize),
    /// All ranks are there, on one GPU or several, and GPU leaders are not to do this.
    Declined { several: bool },
}

/// How it is decided whether GPU leaders do it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Where all buffers are on one GPU.
    pub(super) alone: bool,
}

#[derive(Debug)]
pub(super) struct RootLeader {
    stage: RootLeaderStage,
    wanted: Wanted,
    gpu_leader: Option<GpuLeader>,
    joined: bool,
    failure: Option<CollError>,
    orders: u32,
    /// When all were there, when this GPU leader's GPU was combined, and when all was spread; in nanoseconds.
    pub(super) times: [Option<u64>; 3],
    /// Whether some rank could not lend, or a GPU leader could not map.
    pub(super) cannot: bool,
}

impl RootLeader {
    pub(super) fn new(wanted: Wanted) -> RootLeader {
        RootLeader {
            stage: RootLeaderStage::Meeting,
            wanted,
            gpu_leader: None,
            joined: false,
            failure: None,
            orders: 0,
            times: [None; 3],
            cannot: false,
        }
    }

    /// Waits for what it has started.
    pub(super) fn drain(&mut self) {
        if let Some(gpu_leader) = &mut self.gpu_leader {
            gpu_leader.drain();
        }
    }

    /// Goes on as far as it can.
    pub(super) fn advance(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Option<Led> {
        if self.stage == RootLeaderStage::Meeting {
            match self.meet(part, tools) {
                Ok(None) => {}
                Ok(Some(several)) => return Some(Led::Declined { several }),
                Err(error) => self.fail(error),
            }
        }
        if self.stage == RootLeaderStage::Working
            && let Err(error) = self.work(part, tools)
        {
            self.fail(error);
        }
        if let RootLeaderStage::Leaving(orders) = self.stage {
            if !self.halted(part, tools) {
                return None;
            }
            self.tell_all(part, tools, orders);
            self.stage = RootLeaderStage::Over;
        }
        if self.stage == RootLeaderStage::Parting {
            // Orders of the next call are written where those of this one stand.
            let parted = |rank: usize, tools: &mut Tools<'_>| {
                tools.control.reports(rank, part.number) & SEEN != 0
                    || tools.control.presence(rank, part.number) == Presence::Elsewhere
                    || tools.members.loss(tools.pml, rank).is_some()
            };
            if !tools.members.others().all(|rank| parted(rank, tools)) {
                return None;
            }
            self.stage = RootLeaderStage::Over;
        }
        if self.stage != RootLeaderStage::Over {
            return None;
        }
        let gpus = self.gpu_leader.as_ref().map_or(0, |gpu_leader| gpu_leader.groups().len());
        let ended = match self.failure.take() {
            Some(error) => Ended::Failed(error),
            None if self.orders & ELSEWHERE != 0 => Ended::Elsewhere,
            None => Ended::Done,
        };
        Some(Led::Ended(ended, gpus))
    }

    fn fail(&mut self, error: CollError) {
        // Whoever cannot map or lend does so before anything is written.
        let is_early = !self.joined && matches!(error, CollError::NotMapped { .. });
        self.stage = match is_early {
            true => {
                self.cannot = true;
                RootLeaderStage::Leaving(ELSEWHERE)
            }
            false => {
                self.failure = Some(error);
                RootLeaderStage::Leaving(FAILED)
            }
        };
    }

    /// Waits until all are there, and has them lend their buffers. `Some`: GPU leaders are not to do it, and whether
    /// buffers lie on several GPUs.
    fn meet(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<Option<bool>, CollError> {
        let mut all = true;
        let mut gpus = vec![part.gpu; tools.members.ranks];
        let mut plain = tools.control.is_plain(part.me);
        for rank in tools.members.others() {
            match tools.control.presence(rank, part.number) {
                Presence::Here(gpu) => {
                    gpus[rank] = gpu;
                    plain &= tools.control.is_plain(rank);
                }
                Presence::Elsewhere => {
                    self.stage = RootLeaderStage::Leaving(ELSEWHERE);
                    return Ok(None);
                }
                Presence::Away => {
                    all = false;
                    if let Some(loss) = tools.members.loss(tools.pml, rank) {
                        return Err(loss);
                    }
                }
            }
        }
        if !all {
            return Ok(None);
        }
        let groups = groups(&gpus, part.me);
        let several = groups.len() > 1;
        let fits =
            plain && if several { part.commutes || in_order(&groups) } else { self.wanted.alone };
        self.gpu_leader = if fits { GpuLeader::new(part, groups) } else { None };
        if self.gpu_leader.is_none() {
            return Ok(Some(several));
        }
        self.stage = RootLeaderStage::Working;
        self.order(part, tools, LEND);
        Ok(None)
    }

    /// Tells all others.
    fn order(&mut self, part: &CallPart, tools: &Tools<'_>, orders: u32) {
        self.orders |= orders;
        for rank in tools.members.others() {
            tools.control.order(part.me, rank, part.number, self.orders);
        }
    }

    fn work(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> Result<(), CollError> {
        self.times[0].get_or_insert(tools.now_ns);
        let Some(gpu_leader) = &mut self.gpu_leader else { return Ok(()) };
        for rank in tools.members.others() {
            let reports = tools.control.reports(rank, part.number);
            let culprit = u32::try_from(rank).unwrap_or(u32::MAX);
            if reports & BROKEN != 0 {
                return Err(CollError::GaveUp { rank: culprit });
            }
            if reports & CANNOT != 0 {
                let reason = "it cannot lend its buffers, or map those of others".to_owned();
                return Err(CollError::NotMapped { rank: culprit, reason });
            }
            if let Some(loss) = tools.members.loss(tools.pml, rank) {
                return Err(loss);
            }
        }
        let all_say = |gpu_leader: &GpuLeader, control: &Control, report: u32| {
            gpu_leader.others().all(|rank| control.reports(rank, part.number) & report != 0)
        };
        gpu_leader.advance(part, self.joined, tools)?;
        // On one GPU buffers are written now.
        let begun = gpu_leader.groups().len() == 1
            && gpu_leader.stage() >= gpu_leader::GpuLeaderStage::Spreading;
        self.joined |= begun;
        if gpu_leader.stage() == gpu_leader::GpuLeaderStage::Combined
            && !self.joined
            && all_say(gpu_leader, tools.control, COMBINED)
        {
            self.joined = true;
            self.times[1] = Some(tools.now_ns);
            // Before its own work, so that GPU leaders work at the same time.
            self.orders |= JOIN;
            for rank in tools.members.others() {
                tools.control.order(part.me, rank, part.number, self.orders);
            }
            gpu_leader.advance(part, true, tools)?;
        }
        if gpu_leader.stage() == gpu_leader::GpuLeaderStage::Over
            && all_say(gpu_leader, tools.control, SPREAD)
        {
            self.times[2] = Some(tools.now_ns);
            self.order(part, tools, GO);
            self.stage = RootLeaderStage::Parting;
        }
        Ok(())
    }

    /// Whether no GPU leader has anything in flight.
    fn halted(&mut self, part: &CallPart, tools: &mut Tools<'_>) -> bool {
        let Some(gpu_leader) = &mut self.gpu_leader else { return true };
        let others: Vec<usize> = gpu_leader.others().collect();
        let mut over = gpu_leader.settle();
        if self.orders & HALT == 0 {
            self.order(part, tools, HALT);
        }
        for rank in others {
            over &= is_settled(rank, part.number, tools.control)
                || tools.members.loss(tools.pml, rank).is_some();
        }
        over
    }

    /// The last word, to all: those who have not come find it when they do.
    fn tell_all(&mut self, part: &CallPart, tools: &mut Tools<'_>, orders: u32) {
        for rank in tools.members.others() {
            if let Some(error) = &self.failure {
                let (culprit, is_lost) = error.blames(u32::try_from(part.me).unwrap_or(u32::MAX));
                tools.control.blame(part.me, rank, culprit, is_lost);
                tools.control.fail(part.me, rank, part.number);
            }
        }
        self.order(part, tools, orders);
    }

    /// Whether [`advance`](RootLeader::advance) may get on.
    pub(super) fn look(&self, part: &CallPart, control: &Control, members: &Members) -> bool {
        match self.stage {
            RootLeaderStage::Meeting => {
                let said = |rank: usize| control.presence(rank, part.number);
                members.others().all(|rank| said(rank) != Presence::Away)
                    || members.others().any(|rank| said(rank) == Presence::Elsewhere)
            }
            _ => true,
        }
    }
}

/// Whether a GPU leader has nothing of a call in flight, and starts nothing more.
pub(super) fn is_settled(gpu_leader: usize, number: u64, control: &Control) -> bool {
    let reports = control.reports(gpu_leader, number);
    reports & (BROKEN | CANNOT | SPREAD | SETTLED) != 0
        || control.presence(gpu_leader, number) == Presence::Elsewhere
}
