//! Collectives of plain memory at once, if nothing delays them.
//!
//! What depends on the call alone is found out without a segment ([`CallPlan`]). A long call goes through the steps of
//! [`Long`] until one would wait for longer than a few loads; [`SharedSegment::begin_call`] goes on from there. A short
//! one has a body of its own: it stores, waits for a few loads' time, and loads. Its bytes go from the user's memory
//! into the entry, and out of entries into the user's memory. [`Short`](super::short::Short) keeps them in private
//! memory in between, so that it can stop at each step: these copies are spared here. All that is unusual is left to
//! it: a rank that is late or lost, an entry that says something else, a reader that is behind. It goes on where this
//! has stopped ([`Halfway`]). Without this body two ranks take 2.3 times as long for 8 B, and 1.9 times for 1 KiB
//! (`bench/results/cpu/coll`, "Short calls without a body of their own").

use std::ops::Range;

use gapless_engine::{HostEngine, PackedFold};
use gapless_mem::Region;
use gapless_pml::Pml;
use gapless_sync::mailboxes::{Flag, Mailbox, Mailboxes, Readers};

use super::buffers::UserBuffers;
use super::call::SmPlan;
use super::long::{BorrowedInput, Long};
use super::short::ShortStage;
use super::short_plan::{self, Round, ShortPlan, Span, Then};
use super::subgroup::Subgroup;
use super::{PrivateMemory, SharedSegment, act, exchange_plan, long_plan};
use crate::build::rows;
use crate::execute::act::Tools;
use crate::execute::call_buffers::Combine;
use crate::schedule::Buffer;
use crate::{Call, Reduction};

/// What is read of each entry is fetched as soon as that entry is there, if these are no more bytes.
const AHEAD_MAX: usize = 256;

/// The most bytes of all ranks' vectors, or of the blocks of all ranks, that a long call tries: what takes longer lets
/// others have a turn in between.
const VOLUME_MAX: u64 = 256 << 10;

/// What one rank does in a call, but for where its buffers lie.
#[derive(Clone, Debug)]
pub struct CallPlan {
    pub(super) way: SmPlan,
    pub(super) combine: Option<Combine>,
    /// The rank, and of how many.
    pub(super) of: (usize, usize),
    /// Bytes of what is sent, and of what is received.
    bytes: (u64, u64),
    /// Whether [`attempt`](SharedSegment::attempt) may run it.
    may_attempt: bool,
}

impl CallPlan {
    /// What rank `rank` of `ranks` does. `plain`: both buffers are plain memory, or there are none. `None`: the call
    /// does not fit together, the segment does not [take](SharedSegment::takes) it, or not all ranks know all lengths.
    #[must_use]
    pub fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        combine: Option<Combine>,
        plain: bool,
    ) -> Option<CallPlan> {
        call.check(rank, ranks).ok()?;
        let whole = |of: Reduction, by: &Combine| {
            of.unit.checked_rem(by.bytes()).is_some_and(|rest| rest == 0)
        };
        if let Some(of) = call.reduction()
            && !combine.as_ref().is_some_and(|by| whole(of, by))
        {
            return None;
        }
        let fold = combine.as_ref().and_then(Combine::fold);
        let (way, may_attempt) = if short_plan::fits(call, ranks) {
            let plan = ShortPlan::new(call, rank, ranks);
            let alike = plan.rounds.iter().flatten().all(|round| round.entries.are_alike());
            (SmPlan::Short(plan), alike && (call.reduction().is_none() || fold.is_some()))
        } else if exchange_plan::fits(call, ranks) {
            return None;
        } else {
            let plan = long_plan::LongPlan::new(call, rank, ranks)?;
            let folds = call.reduction().is_none() || fold.is_some();
            let may_attempt =
                folds && !plan.is_scan() && !plan.may_lengthen() && plan.volume() <= VOLUME_MAX;
            (SmPlan::Long(plan), may_attempt)
        };
        let (send, recv) = rows(call, rank, ranks);
        let bytes = (send.len(), recv.len());
        Some(CallPlan { way, combine, of: (rank, ranks), bytes, may_attempt: may_attempt && plain })
    }

    /// Whether the call goes by entries alone.
    #[must_use]
    #[inline]
    pub fn is_short(&self) -> bool {
        matches!(self.way, SmPlan::Short(_))
    }
}

/// A short collective that was begun here, and is gone on with as [`Short`](super::short::Short).
#[derive(Clone, Copy, Debug)]
pub(super) struct Halfway {
    /// The number of the collective's first round.
    pub(super) began: u64,
    /// Rounds that are over.
    pub(super) rounds: usize,
    pub(super) stage: ShortStage,
}

/// Where a part of a buffer lies. `None`: there is no such part, and none is needed.
fn part(
    span: Option<&Span>,
    (send, recv): (Option<Region>, Option<Region>),
) -> Result<Option<Region>, ()> {
    let Some(Span { buffer, range, .. }) = span else { return Ok(None) };
    let Range { start, end } = *range;
    // Below, the CPU touches it.
    let whole =
        if *buffer == Buffer::Send { send } else { recv }.filter(|it| it.as_ptr().is_some());
    whole.and_then(|whole| whole.sub(start as u64, (end - start) as u64).ok()).map(Some).ok_or(())
}

impl SharedSegment {
    /// Does a collective if that takes no longer than a few looks; whether it has ended. If not, the caller goes on
    /// with [its `SmCall`](CallPlan::sm_call) by [`begin_call`](SharedSegment::begin_call), with the same number and
    /// memory. `may_spin`: whether the caller may poll once more.
    ///
    /// `call_plan` is of the same call as the other ranks'; `send` and `recv` are the memory that the packed streams of
    /// its buffers are. Nothing begins if it is of another rank, or of longer buffers than these, or if the CPU cannot
    /// touch these.
    ///
    /// # Safety
    /// Until this returns, `send` is valid for reads while nothing writes it, `recv` for reads and writes while nothing
    /// else touches it; the two do not overlap.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn attempt(
        &mut self,
        number: u64,
        call_plan: &CallPlan,
        buffers: (Option<Region>, Option<Region>),
        pml: &mut Pml,
        mut may_spin: impl FnMut() -> bool,
    ) -> bool {
        if !call_plan.may_attempt || call_plan.of != (self.subgroup.local_rank(), self.shared.ranks)
        {
            return false;
        }
        let fold = call_plan.combine.as_ref().and_then(Combine::fold);
        let plan = match &call_plan.way {
            SmPlan::Short(plan) => plan,
            SmPlan::Long(plan) => {
                return self.attempt_long(number, (plan, call_plan), buffers, pml, may_spin);
            }
            SmPlan::Exchange(..) => return false,
        };
        let (Ok(input), Ok(output)) =
            (part(plan.input.as_ref(), buffers), part(plan.output.as_ref(), buffers))
        else {
            return false;
        };
        if self.may_begin().is_err() {
            return false;
        }
        let SharedSegment { shared, mailbox, subgroup, private, halfway, .. } = self;
        let (mailboxes, wake_tag) = (shared.mailboxes(), self.wake_tag);
        mailbox.begin(number);
        if mailbox.blocked_by(&mailboxes).is_some() {
            return false;
        }
        let (kind, fold) = (plan.operation.code(), fold.as_ref());
        let mut cx =
            ShortContext { mailboxes, mailbox, private, pml, subgroup, wake_tag, kind, fold };
        let began = cx.mailbox.round();
        let stopped = match &plan.rounds {
            // SAFETY: the caller's promise.
            [Some(only), None] => unsafe { cx.only_round(only, input, output, &mut may_spin) },
            // SAFETY: the caller's promise.
            rounds => unsafe { cx.rounds(rounds, input, output, &mut may_spin) },
        };
        if let Err((rounds, stage)) = stopped {
            *halfway = Some(Halfway { began, rounds, stage });
            return false;
        }
        if plan.together {
            cx.mailbox.all_began(began);
        }
        cx.mailbox.finish(&cx.mailboxes);
        cx.wake(Readers::All);
        true
    }

    /// As [`attempt`](SharedSegment::attempt), of a long call.
    #[inline(never)] // its frame is large
    fn attempt_long(
        &mut self,
        number: u64,
        (plan, call_plan): (&long_plan::LongPlan, &CallPlan),
        (send, recv): (Option<Region>, Option<Region>),
        pml: &mut Pml,
        mut may_spin: impl FnMut() -> bool,
    ) -> bool {
        let has = |region: Option<Region>, bytes: u64| {
            bytes == 0 || region.is_some_and(|it| it.len() >= bytes && it.as_ptr().is_some())
        };
        if !has(send, call_plan.bytes.0)
            || !has(recv, call_plan.bytes.1)
            || self.may_begin().is_err()
        {
            return false;
        }
        self.mailbox.begin(number);
        let buffers = UserBuffers::plain(send, recv);
        let input = BorrowedInput { plan, combine: call_plan.combine.as_ref(), buffers };
        let of = (self.shared.ranks, self.mailbox.round());
        let mut long = Long::new(input, of, &self.slots);
        let mut tools = Tools { pml, engine: &HostEngine, reducer: &HostEngine, segment: None };
        let (_, mut cx) = self.parts();
        cx.only_looks = true;
        let is_over = long.attempt(&mut cx, &mut tools, &mut may_spin);
        if !is_over {
            self.paused = Some((number, Box::new(long.halt())));
        } else if long.is_bare() {
            // To find that out is less than to drop each part of it.
            std::mem::forget(long);
        }
        is_over
    }
}

/// What a short collective on the fast path works with.
struct ShortContext<'p> {
    mailboxes: Mailboxes<'p>,
    mailbox: &'p mut Mailbox,
    private: &'p mut PrivateMemory,
    pml: &'p mut Pml,
    subgroup: &'p Subgroup,
    wake_tag: i32,
    kind: u8,
    fold: Option<&'p PackedFold>,
}

/// Where a collective stopped: how many rounds were over, and the stage of the next.
type Stopped = (usize, ShortStage);

impl ShortContext<'_> {
    #[inline]
    fn wake(&mut self, readers: Readers) {
        let by = (self.subgroup, self.wake_tag);
        self.mailbox.wake(&self.mailboxes, readers, |rank| act::wake(self.pml, by, rank));
    }

    /// Waits for the entries of a round.
    #[inline]
    fn all_there(&mut self, round: &Round, may_spin: &mut impl FnMut() -> bool) -> bool {
        let len = round.entry_bytes(self.subgroup.local_rank());
        let flag = Flag { kind: self.kind, len: u16::try_from(len).unwrap_or(u16::MAX) };
        let part = round.part(self.subgroup.local_rank());
        let ahead = if part.len() <= AHEAD_MAX { Mailbox::ahead(len, &part) } else { 0..0 };
        loop {
            match self.mailbox.all_like(&self.mailboxes, round.sources.clone(), flag, ahead.clone())
            {
                Some(like) => return like,
                None if may_spin() => {}
                None => return false,
            }
        }
    }

    /// A collective of one round: its bytes go straight from the user's memory into the entry, and out of entries into
    /// the user's memory.
    ///
    /// # Safety
    /// As for [`SharedSegment::attempt`]: the input is part of what is valid for reads, the output of what is valid for
    /// writes.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    #[inline]
    unsafe fn only_round(
        &mut self,
        round: &Round,
        input: Option<Region>,
        output: Option<Region>,
        may_spin: &mut impl FnMut() -> bool,
    ) -> Result<(), Stopped> {
        if let Some((_, readers)) = round.publish {
            // SAFETY: the caller's promise; the bytes are not used below.
            let bytes = unsafe { act::bytes(input) }.unwrap_or_default();
            self.mailbox.publish(&self.mailboxes, self.kind, bytes, readers);
            self.wake(readers);
        }
        if !self.all_there(round, may_spin) {
            // Whoever goes on finds it there.
            // SAFETY: the caller's promise.
            let kept = input.is_none_or(|input| unsafe { self.private.fill(&input) }.is_ok());
            // `part` has found memory that the CPU may touch, as long as the plan says: no longer than an entry.
            debug_assert!(kept, "plain memory of this rank");
            return Err((0, ShortStage::Reading));
        }
        if !round.part(self.subgroup.local_rank()).is_empty() && !round.sources.is_empty() {
            // SAFETY: the caller's promise.
            let taken = unsafe { self.take(round, input, output) };
            // The plan is one of this rank among as many ranks, so it has the buffers that its rounds use, and `part`
            // has found memory that the CPU may touch, as long as the plan says.
            debug_assert!(taken.is_some(), "plain memory of this rank, as long as the plan says");
            self.is_intact(round, 0)?;
        }
        self.mailbox.next_round();
        Ok(())
    }

    /// Whether what was read in a round can be used. If not, whoever goes on finds that out again, and fails.
    #[inline]
    fn is_intact(&self, round: &Round, number: usize) -> Result<(), Stopped> {
        match self.mailbox.was_excused(&self.mailboxes, round.sources.clone()) {
            None => Ok(()),
            Some(_) => Err((number, ShortStage::Reading)),
        }
    }

    /// Brings what was read, and this rank's own, into the user's memory.
    ///
    /// # Safety
    /// As for `only_round`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    #[inline]
    unsafe fn take(
        &mut self,
        round: &Round,
        input: Option<Region>,
        output: Option<Region>,
    ) -> Option<()> {
        let Round { sources, then, .. } = round;
        let me = self.subgroup.local_rank();
        let (part, len) = (round.part(me), round.part(me).len());
        let combines = *then == Then::Combine;
        // SAFETY: the caller's promise.
        if combines && unsafe { self.combine_there(round, input?, output?) } {
            return Some(());
        }
        for (index, source) in sources.clone().enumerate() {
            if source == me && combines {
                // SAFETY: the caller's promise.
                unsafe { self.private.keep_own(source, round, &input?) }.ok()?;
            } else if combines {
                let (block, start) = self.private.block(source, round);
                self.mailbox.read(&self.mailboxes, source, start, block);
            } else {
                let into = output?.sub((index * len) as u64, len as u64).ok()?;
                if source == me {
                    let own = input?.sub(part.start as u64, len as u64).ok()?;
                    // SAFETY: the caller's promise. In place they are the same bytes.
                    unsafe { gapless_mem::copy(&into, &own) }.ok()?;
                } else {
                    // SAFETY: the caller's promise; nothing else of this rank uses its memory now.
                    let into = unsafe { act::bytes_mut(Some(into)) }?;
                    self.mailbox.read(&self.mailboxes, source, part.start, into);
                }
            }
        }
        if combines {
            // SAFETY: as above. What this rank contributes was copied, so it may be written.
            let into = unsafe { act::bytes_mut(output) }?;
            self.private.fold_into(self.fold?, round, into.get_mut(..len)?);
        }
        Some(())
    }

    /// Combines entries where they are, and this rank's own contribution, into the user's memory; `false`: nothing was
    /// done.
    ///
    /// # Safety
    /// As for `only_round`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    #[inline]
    unsafe fn combine_there(&self, round: &Round, input: Region, output: Region) -> bool {
        let me = self.subgroup.local_rank();
        let part = round.part(me);
        let source = |source: usize| {
            if source == me {
                return input.sub(part.start as u64, part.len() as u64).ok()?.as_ptr();
            }
            let words = self.mailbox.payload(&self.mailboxes, source, part.start, part.len())?;
            Some(words.as_ptr().cast_mut().cast())
        };
        let Some(fold) = self.fold.filter(|_| output.len() == part.len() as u64) else {
            return false;
        };
        // SAFETY: the caller's promise for this rank's memory. Words of an entry are valid for reads while the
        // mailboxes are there. They were written before the flag that was read, and their rank writes them again when
        // this one has read, or is lost to it (as with slots: the two are processes whose link has failed, and
        // `is_intact` finds it out).
        unsafe { act::fold(fold, round.sources.clone().map(source), output) }
    }

    /// A collective of two rounds: all that is read and combined lies in private memory in between.
    ///
    /// # Safety
    /// As for `only_round`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn rounds(
        &mut self,
        rounds: &[Option<Round>],
        input: Option<Region>,
        output: Option<Region>,
        may_spin: &mut impl FnMut() -> bool,
    ) -> Result<(), Stopped> {
        // SAFETY: the caller's promise.
        if input.is_some_and(|input| unsafe { self.private.fill(&input) }.is_err()) {
            return Err((0, ShortStage::Fresh));
        }
        let me = self.subgroup.local_rank();
        for (number, round) in rounds.iter().flatten().enumerate() {
            let Round { publish, sources, .. } = round;
            if let Some((content, readers)) = *publish {
                if number > 0 && self.mailbox.blocked_by(&self.mailboxes).is_some() {
                    return Err((number, ShortStage::Publishing));
                }
                self.mailbox.publish(
                    &self.mailboxes,
                    self.kind,
                    self.private.entry(content, round.entry_bytes(me)),
                    readers,
                );
                self.wake(readers);
            }
            if !self.all_there(round, may_spin) {
                return Err((number, ShortStage::Reading));
            }
            for source in sources.clone() {
                if source == me {
                    self.private.take_own(source, round);
                } else {
                    let (block, start) = self.private.block(source, round);
                    self.mailbox.read(&self.mailboxes, source, start, block);
                }
            }
            self.is_intact(round, number)?;
            if let Some(fold) = self.fold
                && round.then == Then::Combine
                && !sources.is_empty()
            {
                self.private.fold(fold, round);
            }
            self.mailbox.next_round();
        }
        if let (Some(output), Some(last)) = (output, rounds.iter().flatten().last()) {
            // SAFETY: the caller's promise. It fits: the result has as many bytes as the part of the buffer.
            let taken = unsafe { self.private.take(&output, last.then == Then::Combine) };
            // As in `only_round`.
            debug_assert!(taken.is_ok(), "plain memory of this rank");
        }
        Ok(())
    }
}
