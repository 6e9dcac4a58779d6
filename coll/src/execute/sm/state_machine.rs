//! The state machine of collectives of many steps: their stages, how a rank tells others how far it is and hears of
//! them, and how it fails.
//!
//! [`StateMachine`] is what differs between collectives whose lengths all know ([`super::long`]) and exchanges
//! ([`super::exchange`]).

use std::sync::atomic::{Ordering, fence};

use gapless_engine::EngineError;
use gapless_sync::mailboxes::{Awaited, Moment, Readers};

use super::act::Source;
use super::buffers::{Described, UserBuffers};
use super::header::notice;
use super::long_plan::{SlotPiece, exposed_step};
use super::short_plan::FAILED;
use super::slots::slot;
use super::{Memory, SegmentMemory, SmContext};
use crate::execute::act::{EngineWork, Tools};
use crate::execute::error::CollError;

/// Where a collective is. Each fragment begins with `Waiting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmStage {
    Fresh,
    /// The own slot is to be free.
    Waiting,
    Exposing,
    /// Others are to have filled their slots, or to say where their bytes lie.
    Gathering,
    Combining,
    Collecting,
    Unpacking,
    Failing,
    /// Others may still read this rank's buffers.
    AwaitingReaders,
    Over,
    /// In a call, or a call has unwound.
    Torn,
}

impl SmStage {
    /// Whether the stage waits until the work of engines that was started is over. In other stages there may be work of
    /// engines as well.
    fn is_work(self) -> bool {
        matches!(
            self,
            SmStage::Exposing | SmStage::Combining | SmStage::Unpacking | SmStage::Failing
        )
    }
}

/// What comes of a step: another one, or nothing yet.
pub(super) type Next = Option<SmStage>;

/// The same, or why the collective fails.
pub(super) type StepResult = Result<Next, CollError>;

/// What is under way on a segment.
pub(super) trait InProgress {
    /// Whether a call has unwound in it.
    fn is_torn(&self) -> bool;

    /// Whether the collective waits for work of an engine, and for no rank.
    fn is_busy(&self) -> bool;

    /// Goes on as far as it can; whether all is over.
    fn advance(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool;

    /// Why it failed, once it is over.
    fn result(&mut self) -> Result<(), CollError>;

    /// Waits for engines; nothing goes on afterwards. Who reads this rank's buffers is told first.
    fn give_up(&mut self, cx: &mut SmContext<'_>);

    /// Whether `advance` would get on, as far as a few loads tell.
    fn look(&self, cx: &mut SmContext<'_>) -> bool;

    /// Which rank is waited for; `None`: none is.
    fn awaited(&self, cx: &mut SmContext<'_>) -> Option<Awaited>;

    /// This rank is about to sleep.
    fn sleeps(&mut self, cx: &SmContext<'_>);
}

/// A collective of many steps.
pub(super) trait StateMachine {
    fn progress(&self) -> &LongProgress;

    fn progress_mut(&mut self) -> &mut LongProgress;

    /// Finds out which of this rank's buffers others read where they lie; `None`: a reader of an earlier entry is
    /// behind.
    fn begin(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> Next;

    /// Fills the own slot, once it is free, if it is needed.
    fn expose(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult;

    /// Tells the others that this fragment's bytes are there, and before the first what this rank calls.
    fn report_exposed(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage;

    /// Waits until others have filled their slots, or said where their bytes lie.
    fn gather(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult;

    /// Tells the others that this rank's slice is combined. An exchange combines nothing.
    fn report_combined(&mut self, _: &mut SmContext<'_>, _: &mut Tools<'_>) -> SmStage {
        SmStage::Collecting
    }

    /// Reads what this rank gets.
    fn collect(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult;

    /// A fragment is over.
    fn next_fragment(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage;

    /// Whether a rank may read this one's buffers where they lie.
    fn is_reader(&self, local_rank: usize) -> bool;

    /// Whether a rank's first entry was read, and then whether it lets others read its buffers where they lie.
    fn met(&self, local_rank: usize) -> Option<bool>;

    /// Whether any of the ranks lets this one read its buffers in place.
    fn imports(&self, ranks: usize) -> bool {
        (0..ranks).any(|it| self.met(it) == Some(true))
    }

    /// Which rank is waited for while slots are gathered or collected, and for which step of it.
    fn source(&self, cx: &SmContext<'_>) -> Option<(usize, u32)>;

    /// Whether others may read this rank's buffers where they lie.
    fn exports(&self, ranks: usize) -> bool {
        (0..ranks).any(|it| self.is_reader(it))
    }

    /// Why what was read of other ranks is not to be used, if it is not: one of them has given up while this one read
    /// its buffers, or takes this one for lost.
    fn invalid_reads(&self, cx: &SmContext<'_>) -> Option<CollError> {
        let ranks = || 0..cx.shared.ranks;
        let gave_up = match self.imports(cx.shared.ranks) {
            true => {
                let read = ranks().filter(|it| self.met(*it) == Some(true));
                self.progress().invalid_reads(read, cx)
            }
            false => None,
        };
        gave_up.or_else(|| cx.excused_by(ranks().filter(|it| self.met(*it).is_some())))
    }

    /// Checks that what was read of other ranks is valid, and restarts the stage's counter.
    #[inline]
    fn check_reads(&mut self, cx: &SmContext<'_>) -> Result<(), CollError> {
        self.progress_mut().at = 0;
        let ranks = cx.shared.ranks;
        if !self.imports(ranks) && cx.mailbox.was_excused(&cx.mailboxes, 0..ranks).is_none() {
            return Ok(());
        }
        self.invalid_reads(cx).map_or(Ok(()), Err)
    }

    /// The first rank that may still read this rank's buffers.
    fn pending_reader(&self, cx: &mut SmContext<'_>) -> Option<usize> {
        let readers = (0..cx.shared.ranks).filter(|it| self.is_reader(*it));
        self.progress().pending_reader(readers, cx)
    }

    /// Whether no rank reads this rank's buffers any more. Lost ranks are excused.
    fn readers_done(&self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool {
        while let Some(local_rank) = self.pending_reader(cx) {
            if cx.loss(tools.pml, local_rank).is_none() {
                return false;
            }
            cx.mailbox.excuse(&cx.mailboxes, local_rank);
        }
        true
    }

    /// Carries out a stage. The stages of work begin when that work is over.
    #[inline]
    fn step(
        &mut self,
        stage: SmStage,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> StepResult {
        match stage {
            SmStage::Fresh => Ok(self.begin(cx, tools)),
            SmStage::Waiting => self.expose(cx, tools),
            SmStage::Gathering => self.gather(cx, tools),
            SmStage::Collecting => self.collect(cx, tools),
            SmStage::Exposing | SmStage::Combining | SmStage::Unpacking => {
                let work = &mut self.progress_mut().work;
                if !work.is_done() {
                    let Some(result) = work.result() else { return Ok(None) };
                    let failed = |error| CollError::Engine { rank: cx.subgroup.own(), error };
                    result.map_err(failed)?;
                }
                self.check_reads(cx)?;
                Ok(Some(match stage {
                    SmStage::Exposing => self.report_exposed(cx, tools),
                    SmStage::Combining => self.report_combined(cx, tools),
                    _ => self.next_fragment(cx, tools),
                }))
            }
            SmStage::Failing => {
                let told = self.progress_mut().tell(cx, tools);
                Ok(told.then_some(SmStage::AwaitingReaders))
            }
            SmStage::AwaitingReaders => Ok(self.readers_done(cx, tools).then_some(SmStage::Over)),
            SmStage::Over => Ok(Some(SmStage::Over)),
            SmStage::Torn => Ok(None),
        }
    }
}

impl<S: StateMachine> InProgress for S {
    fn is_torn(&self) -> bool {
        self.progress().stage == SmStage::Torn
    }

    fn is_busy(&self) -> bool {
        let LongProgress { stage, work, .. } = self.progress();
        stage.is_work() && work.is_pending()
    }

    fn advance(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool {
        loop {
            let stage = std::mem::replace(&mut self.progress_mut().stage, SmStage::Torn);
            let next = match self.step(stage, cx, tools) {
                Ok(next) => next,
                Err(error) => {
                    self.progress_mut().failure.get_or_insert_with(|| Box::new(error));
                    Some(SmStage::Failing)
                }
            };
            self.progress_mut().stage = next.unwrap_or(stage);
            match next {
                Some(SmStage::Over) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    fn result(&mut self) -> Result<(), CollError> {
        self.progress_mut().failure.take().map_or(Ok(()), |error| Err(*error))
    }

    fn give_up(&mut self, cx: &mut SmContext<'_>) {
        let exports = self.exports(cx.shared.ranks);
        let progress = self.progress_mut();
        progress.work.drain();
        if exports && progress.stage != SmStage::Over {
            progress.give_up(cx);
        }
        progress.stage = SmStage::Torn;
    }

    fn look(&self, cx: &mut SmContext<'_>) -> bool {
        let progress = self.progress();
        match progress.stage {
            SmStage::Fresh | SmStage::Failing => false,
            SmStage::Waiting => cx.slot_reader(progress.slot(progress.first)).is_none(),
            SmStage::AwaitingReaders => self.pending_reader(cx).is_none(),
            SmStage::Gathering | SmStage::Collecting => match self.source(cx) {
                Some((local_rank, step)) if self.met(local_rank).is_some() => {
                    progress.has_come(local_rank, step, cx)
                }
                Some((local_rank, _)) => cx.mailbox.look(&cx.mailboxes, local_rank) != Ok(None),
                None => true,
            },
            _ => true,
        }
    }

    fn awaited(&self, cx: &mut SmContext<'_>) -> Option<Awaited> {
        let progress = self.progress();
        match progress.stage {
            SmStage::Fresh | SmStage::Failing => {
                cx.mailbox.blocked_by(&cx.mailboxes).map(Awaited::Reader)
            }
            SmStage::Waiting => cx.slot_reader(progress.slot(progress.first)).map(Awaited::Reader),
            SmStage::AwaitingReaders => self.pending_reader(cx).map(Awaited::Reader),
            // If it has come there is work left, of which no wake-up tells.
            SmStage::Gathering | SmStage::Collecting if self.look(cx) => None,
            SmStage::Gathering | SmStage::Collecting => {
                self.source(cx).map(|(local_rank, _)| Awaited::Entry(local_rank))
            }
            _ => None,
        }
    }

    fn sleeps(&mut self, cx: &SmContext<'_>) {
        let has_begun = match self.progress().stage {
            SmStage::Waiting => self.progress().fragment > 0,
            SmStage::Gathering | SmStage::Collecting => {
                self.source(cx).is_some_and(|(it, _)| self.met(it).is_some())
            }
            _ => false,
        };
        self.progress_mut().slept |= has_begun;
    }
}

/// How far a collective of many steps is, as this rank and others see each other in it.
#[derive(Debug)]
pub(super) struct LongProgress {
    pub(super) stage: SmStage,
    /// The round that it began in.
    pub(super) round: u64,
    pub(super) fragment: u64,
    /// Of the ranks or pieces that a stage goes through, the next one.
    pub(super) at: usize,
    /// This rank's first slot.
    pub(super) first: usize,
    pub(super) work: EngineWork,
    /// How many bytes of the next rank's were read by the kernel, if not all were.
    pub(super) read: u64,
    /// For bytes that were read by the kernel and go to several places.
    pub(super) bounce: Option<Memory>,
    /// Whether this rank has slept for one that had begun.
    pub(super) slept: bool,
    pub(super) failure: Option<Box<CollError>>,
    /// Whether others can know what this rank calls.
    first_published: bool,
    /// Whether the round of failures has begun.
    in_failure_round: bool,
}

impl Drop for LongProgress {
    fn drop(&mut self) {
        self.work.drain();
    }
}

impl LongProgress {
    /// One that begins in this round, with this slot.
    #[inline]
    pub(super) fn new(round: u64, first: usize) -> LongProgress {
        LongProgress {
            stage: SmStage::Fresh,
            round,
            fragment: 0,
            at: 0,
            first,
            work: EngineWork::default(),
            read: 0,
            bounce: None,
            slept: false,
            failure: None,
            first_published: false,
            in_failure_round: false,
        }
    }

    /// Has it fail from the beginning: it touches no memory but that of the mailboxes.
    pub(super) fn doom(&mut self, error: CollError) {
        self.failure.get_or_insert_with(|| Box::new(error));
        if self.stage != SmStage::Over {
            self.stage = SmStage::Failing;
        }
    }

    /// Nothing is to be dropped.
    #[inline]
    pub(super) fn is_bare(&self) -> bool {
        self.work.is_bare() && self.bounce.is_none() && self.failure.is_none()
    }

    /// The slot of this fragment, of a rank whose first slot is `first`.
    pub(super) fn slot(&self, first: usize) -> usize {
        slot(first, self.fragment)
    }

    /// The rank whose turn it is. Each rank begins with the one behind it, so that not all read the same slot at once.
    pub(super) fn turn(&self, cx: &SmContext<'_>) -> usize {
        (cx.local_rank() + 1 + self.at) % cx.shared.ranks
    }

    /// Starts to move a piece from where it lies into the user's buffers.
    #[inline]
    pub(super) fn take(
        &mut self,
        buffers: &UserBuffers<impl Described>,
        piece: &SlotPiece,
        source: Result<Source, EngineError>,
        tools: &Tools<'_>,
    ) {
        let take = |source| SegmentMemory::take(buffers, piece, source, tools, &mut self.work);
        let taken = source.and_then(take);
        self.work.started(taken);
    }

    /// The first entry is published now; whether it was before.
    pub(super) fn publish_first(&mut self) -> bool {
        std::mem::replace(&mut self.first_published, true)
    }

    /// Reports a step.
    pub(super) fn report(&self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>, step: u32) {
        cx.mailbox.report(&cx.mailboxes, Moment::new(self.round, step));
        cx.wake(tools.pml, Readers::All);
    }

    /// All is over here, and well.
    pub(super) fn end(&self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) {
        cx.mailbox.report(&cx.mailboxes, Moment::last(self.round));
        cx.wake(tools.pml, Readers::All);
    }

    pub(super) fn is_gathering(&self) -> bool {
        self.stage == SmStage::Gathering
    }

    /// Whether a rank whose entry was read has come so far: that entry was the first step's report.
    fn has_come(&self, local_rank: usize, step: u32, cx: &mut SmContext<'_>) -> bool {
        let moment = Moment::new(self.round, step);
        step <= exposed_step(0) || cx.mailbox.reached(&cx.mailboxes, local_rank, moment)
    }

    /// Whether a rank whose entry was read has come so far.
    ///
    /// # Errors
    /// The rank will never come so far, or has failed.
    pub(super) fn wait(
        &mut self,
        (local_rank, step): (usize, u32),
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<bool, CollError> {
        if !self.has_come(local_rank, step, cx) {
            let Some(loss) = cx.loss(tools.pml, local_rank) else { return Ok(false) };
            // It may have done so before.
            if !self.has_come(local_rank, step, cx) {
                return Err(loss);
            }
        }
        if cx.mailbox.has_left(local_rank)
            && cx.mailbox.foretells(&cx.mailboxes, local_rank, self.round, FAILED)
        {
            self.next_round(cx);
            return Err(notice(local_rank, cx));
        }
        Ok(true)
    }

    fn next_round(&mut self, cx: &mut SmContext<'_>) {
        if !std::mem::replace(&mut self.in_failure_round, true) {
            cx.mailbox.next_round();
        }
    }

    /// Nothing goes on here any more, and others may still read this rank's buffers where they lie: what they read is
    /// not to be used.
    fn give_up(&self, cx: &mut SmContext<'_>) {
        cx.mailbox.report(&cx.mailboxes, Moment::given_up(self.round));
        // The memory may become something else only after the report.
        fence(Ordering::SeqCst);
    }

    /// One of these ranks has given up while this one read its buffers: what was read may be anything.
    fn invalid_reads(
        &self,
        mut read: impl Iterator<Item = usize>,
        cx: &SmContext<'_>,
    ) -> Option<CollError> {
        // What was read was read before the reports are.
        fence(Ordering::Acquire);
        // Who fails in good order lets others read until they are done.
        let local_rank = read.find(|it| cx.mailbox.has_given_up(&cx.mailboxes, *it, self.round))?;
        Some(CollError::GaveUp { rank: cx.subgroup.rank(local_rank) })
    }

    /// The first of these ranks that may still read this rank's buffers.
    fn pending_reader(
        &self,
        mut readers: impl Iterator<Item = usize>,
        cx: &mut SmContext<'_>,
    ) -> Option<usize> {
        let last = Moment::last(self.round);
        let (me, mailbox, mailboxes) = (cx.local_rank(), &mut *cx.mailbox, &cx.mailboxes);
        readers.find(|local_rank| {
            let over = mailbox.reached(mailboxes, *local_rank, last)
                || !mailbox.is_behind(mailboxes, *local_rank, self.round);
            *local_rank != me && !over
        })
    }

    /// Tells the others that this rank fails, and why; `false`: a reader of an earlier entry is behind, or an engine
    /// works.
    fn tell(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> bool {
        // What was started is over first, however it went.
        if self.work.result().is_none() {
            return false;
        }
        // Those that wait for the first entry find the notice in its place.
        let early = !self.first_published;
        if !early {
            self.next_round(cx);
        }
        if !cx.has_room(tools.pml) {
            return false;
        }
        if let Some(failure) = &self.failure {
            let notice = failure.notice(cx.subgroup.own());
            cx.mailbox.publish(&cx.mailboxes, FAILED, &notice, Readers::All);
        }
        cx.mailbox.report(&cx.mailboxes, Moment::failed(self.round));
        cx.mailbox.next_round();
        if early {
            cx.mailbox.next_round();
        }
        cx.mailbox.finish(&cx.mailboxes);
        cx.wake(tools.pml, Readers::All);
        true
    }
}
