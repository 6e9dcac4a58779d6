//! Short collectives: by entries of mailboxes.
//!
//! | operation | entries |
//! |---|---|
//! | bcast, scatter | the root writes one, all others read it, or their part of it |
//! | gather | all others write one, the root reads them |
//! | allgather(v), alltoall, reduce_scatter(_block), scan, exscan | all write one; each reads those, and the parts, that it needs |
//! | barrier, reduce, allreduce | all write one, and whoever gets the result reads all; longer vectors of many ranks: each combines a slice of all, and all write these |

use std::ops::Range;

use gapless_engine::EngineError;
use gapless_sync::mailboxes::{Awaited, Flag, Readers};

use super::SmContext;
use super::buffers::UserBuffers;
use super::fast_path::Halfway;
use super::header::read_header;
use super::short_plan::{FAILED, LONG, Round, ShortPlan, Then};
use super::state_machine::InProgress;
use crate::Operation;
use crate::execute::act::{EngineWork, Tools};
use crate::execute::call_buffers::Combine;
use crate::execute::error::{CollError, NOTICE_BYTES};

/// A short collective that is under way.
#[derive(Debug)]
pub(super) struct Short {
    plan: ShortPlan,
    buffers: UserBuffers,
    combine: Option<Combine>,
    stage: ShortStage,
    /// Rounds that are over.
    rounds: usize,
    /// Sources of this round whose entries were read, or need not be.
    read: usize,
    /// The number of the collective's first round.
    began: u64,
    work: EngineWork,
    failure: Option<CollError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShortStage {
    Fresh,
    Packing,
    Publishing,
    Reading,
    Combining,
    Delivering,
    /// In a call, or a call has unwound.
    Torn,
}

impl Drop for Short {
    fn drop(&mut self) {
        self.work.drain();
    }
}

impl InProgress for Short {
    fn is_torn(&self) -> bool {
        self.stage == ShortStage::Torn
    }

    fn is_busy(&self) -> bool {
        self.work.is_pending()
    }

    fn advance(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool {
        loop {
            let stage = std::mem::replace(&mut self.stage, ShortStage::Torn);
            let next = self.step(stage, cx, tools);
            self.stage = next.unwrap_or(stage);
            match next {
                Some(ShortStage::Fresh) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    fn result(&mut self) -> Result<(), CollError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn give_up(&mut self, _: &mut SmContext<'_>) {
        self.work.drain();
        self.stage = ShortStage::Torn;
    }

    fn look(&self, cx: &mut SmContext<'_>) -> bool {
        match self.stage {
            ShortStage::Reading => {
                self.unread().is_none_or(|ranks| cx.mailbox.all_there(&cx.mailboxes, ranks))
            }
            _ => self.awaited(cx).is_none(),
        }
    }

    fn awaited(&self, cx: &mut SmContext<'_>) -> Option<Awaited> {
        let ranks = cx.subgroup.size();
        match self.stage {
            ShortStage::Publishing => cx.mailbox.blocked_by(&cx.mailboxes).map(Awaited::Reader),
            ShortStage::Reading => self.source().filter(|rank| *rank < ranks).map(Awaited::Entry),
            _ => None,
        }
    }

    fn sleeps(&mut self, _cx: &SmContext<'_>) {}
}

impl Short {
    /// A collective that begins in this round.
    pub(super) fn new(
        plan: ShortPlan,
        buffers: UserBuffers,
        combine: Option<Combine>,
        round: u64,
    ) -> Short {
        Short {
            plan,
            buffers,
            combine,
            stage: ShortStage::Fresh,
            rounds: 0,
            read: 0,
            began: round,
            work: EngineWork::default(),
            failure: None,
        }
    }

    /// Goes on where [`attempt`](super::SharedSegment::attempt) has stopped.
    pub(super) fn go_on(&mut self, halfway: Halfway) {
        let Halfway { began, rounds, stage } = halfway;
        (self.began, self.rounds, self.stage) = (began, rounds, stage);
    }

    /// The sources whose entries are not read so far.
    fn unread(&self) -> Option<Range<usize>> {
        let Range { start, end } = self.round()?.sources;
        Some(start + self.read..end)
    }

    fn round(&self) -> Option<&Round> {
        self.plan.rounds.get(self.rounds)?.as_ref()
    }

    /// Has it fail from the beginning: it touches no memory but that of the mailboxes.
    pub(super) fn doom(&mut self, error: CollError) {
        self.fail(error);
    }

    fn fail(&mut self, error: CollError) {
        self.failure.get_or_insert(error);
    }

    fn fail_engine(&mut self, cx: &SmContext<'_>, error: EngineError) {
        self.fail(CollError::Engine { rank: cx.subgroup.own(), error });
    }

    /// The source whose entry is read next.
    fn source(&self) -> Option<usize> {
        let round = self.round()?;
        let source = round.sources.start + self.read;
        (source < round.sources.end).then_some(source)
    }

    /// What comes after a stage: `Fresh` if all is over, `None` if it goes on.
    fn step(
        &mut self,
        stage: ShortStage,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Option<ShortStage> {
        match stage {
            ShortStage::Fresh => {
                if self.failure.is_none()
                    && let Some(span) = &self.plan.input
                    && let Err(error) = cx.private.pack(&self.buffers, span, tools, &mut self.work)
                {
                    self.work.fail(error);
                }
                Some(ShortStage::Packing)
            }
            ShortStage::Packing => {
                self.settle(cx)?;
                Some(ShortStage::Publishing)
            }
            ShortStage::Publishing => self.publish(cx, tools).then_some(ShortStage::Reading),
            ShortStage::Reading => {
                while self.read_next(cx, tools)? {}
                if let Some(round) = self.round()
                    && let Some(error) = cx.excused_by(round.sources.clone())
                {
                    self.fail(error);
                }
                self.combine(cx, tools);
                Some(ShortStage::Combining)
            }
            ShortStage::Combining => {
                self.settle(cx)?;
                cx.mailbox.next_round();
                (self.rounds, self.read) = (self.rounds + 1, 0);
                if self.round().is_some() {
                    return Some(ShortStage::Publishing);
                }
                self.deliver(cx, tools);
                Some(ShortStage::Delivering)
            }
            ShortStage::Delivering => {
                self.settle(cx)?;
                Some(ShortStage::Fresh)
            }
            ShortStage::Torn => None,
        }
    }

    /// Whether the work of engines is over.
    fn settle(&mut self, cx: &SmContext<'_>) -> Option<()> {
        if let Err(error) = self.work.result()? {
            self.fail_engine(cx, error);
        }
        Some(())
    }

    /// Publishes this round's entry, if there is one; `false`: a reader of an earlier one is behind.
    fn publish(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool {
        let Some(round) = self.round() else { return true };
        let Some((content, readers)) = round.publish else { return true };
        let entry = round.entry_bytes(cx.local_rank());
        if !cx.has_room(tools.pml) {
            return false;
        }
        match &self.failure {
            None => {
                let data = cx.private.entry(content, entry);
                cx.mailbox.publish(&cx.mailboxes, self.plan.operation.code(), data, readers);
            }
            Some(failure) => {
                let notice = failure.notice(cx.subgroup.own());
                cx.mailbox.publish(&cx.mailboxes, FAILED, &notice, readers);
            }
        }
        cx.wake(tools.pml, readers);
        true
    }

    /// Reads the next entry; `false`: there is none left, `None`: it is not there yet.
    fn read_next(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> Option<bool> {
        if self.failure.is_some() {
            return Some(false);
        }
        let Some(source) = self.source() else { return Some(false) };
        let Some(round) = self.round() else { return Some(false) };
        if source == cx.local_rank() {
            cx.private.take_own(source, round);
            self.read += 1;
            return Some(true);
        }
        match cx.entry(tools.pml, source) {
            Ok(None) => return None,
            Ok(Some(flag)) => match self.refuses(flag, source, cx) {
                None => {
                    let (block, part) = cx.private.block(source, round);
                    cx.mailbox.read(&cx.mailboxes, source, part, block);
                }
                Some(error) => self.fail(error),
            },
            Err(error) => {
                self.fail(error);
                return Some(false);
            }
        }
        self.read += 1;
        Some(true)
    }

    /// What is wrong with another rank's entry.
    fn refuses(&self, flag: Flag, source: usize, cx: &SmContext<'_>) -> Option<CollError> {
        let rank = cx.subgroup.rank(source);
        let Flag { kind, len } = flag;
        if kind == FAILED {
            let mut notice = [0; NOTICE_BYTES];
            cx.mailbox.read(&cx.mailboxes, source, 0, &mut notice);
            return Some(CollError::told(notice, rank, cx.subgroup.comm().size()));
        }
        let ours = self.plan.operation;
        let (kind, sent) = match kind {
            LONG => {
                let header = read_header(source, cx);
                (header.kind, header.len)
            }
            _ => (kind, u64::from(len)),
        };
        let theirs = Operation::from_code(kind);
        if theirs != Some(ours) {
            return Some(CollError::Mismatch { rank, theirs, ours });
        }
        let expected = self.round()?.entry_bytes(source) as u64;
        (sent != expected).then_some(CollError::Length { rank, sent, expected })
    }

    /// Starts to combine the blocks that were read.
    fn combine(&mut self, cx: &mut SmContext<'_>, tools: &Tools<'_>) {
        let Some(Some(round)) = self.plan.rounds.get(self.rounds) else { return };
        let is_empty =
            |round: &Round| round.sources.is_empty() || round.part(round.sources.start).is_empty();
        if round.then == Then::Join || is_empty(round) || self.failure.is_some() {
            cx.private.no_result();
            return;
        }
        let Some(combine) = &self.combine else { return };
        if let Err(error) = cx.private.combine(combine, round, tools, &mut self.work) {
            self.work.fail(error);
        }
    }

    /// No entry is needed any more: tells the others, and starts to unpack the result.
    fn deliver(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) {
        if self.plan.together && self.failure.is_none() {
            cx.mailbox.all_began(self.began);
        }
        // Others must not wait for this rank's next entry: it may be long until there is one.
        cx.mailbox.finish(&cx.mailboxes);
        cx.wake(tools.pml, Readers::All);
        if self.failure.is_some() {
            return;
        }
        let (Some(span), Some(last)) =
            (&self.plan.output, self.plan.rounds.iter().flatten().last())
        else {
            return;
        };
        let combined = last.then == Then::Combine;
        let begun = cx.private.unpack(&self.buffers, span, combined, tools, &mut self.work);
        if let Err(error) = begun {
            self.work.fail(error);
        }
    }
}
