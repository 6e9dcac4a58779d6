//! Long collectives: by slots. Every rank has two in the shared memory, and fills one while others may still read the
//! other.
//!
//! ```text
//!            rank 0                 rank 1
//! expose     pack ─▶ slot           pack ─▶ slot          bytes of the user's buffer go into the own slot
//! combine    slice 0 of all slots   slice 1 of all slots  in the order of the ranks, into the own slot
//! collect    unpack slices 0, 1     unpack slices 0, 1    what this rank gets, from whose slot it lies in
//! ```
//!
//! That is a fragment of an all-reduce; others leave out a part, and scans combine in all slots ([`super::long_plan`]).
//! A rank reports each step that others wait for ([`Moment`]). In the place of the first report it publishes an entry
//! of what it calls: others need one cache line to know both. What only a rank itself reads stays in its buffer, if
//! that is plain memory.
//!
//! Who has a buffer in memory that peers can map, or read by the kernel, fills no slot: others read it there
//! ([`super::read_in_place`]). What need not be combined is read all at once then.
//!
//! A slot is filled again when all that read it have reported a later step, or are known to be done with the
//! collective.

mod at_hand;
mod input;

use std::ops::Range;

use gapless_engine::EngineError;
use gapless_mem::Region;
use gapless_sync::mailboxes::{Moment, Readers};

use super::act::Source;
use super::header::{agree, header};
use super::long_plan::{LongPlan, combined_step, done_step, exposed_step};
use super::read_in_place::{self, Both, Direct};
use super::short_plan::{LONG, RANKS_MAX};
use super::slots::{Filled, Slots, among};
use super::state_machine::{InProgress, LongProgress, Next, SmStage, StateMachine, StepResult};
use super::{AT_ONCE_MAX, SegmentMemory, SmContext};
use crate::execute::act::Tools;
use crate::execute::error::CollError;
use input::LongInput;
pub(super) use input::{BorrowedInput, OwnedInput};

/// How many bytes of the user's memory a rank that waits has the cache fetch at a time.
const PREFETCH_BYTES: u64 = 16 << 10;

/// A long collective that is under way, or that an attempt began. `T`: its [input](LongInput).
#[derive(Debug)]
pub(super) struct Long<T> {
    /// Declared first, so that it is dropped first: dropping it waits for engines.
    progress: LongProgress,
    input: T,
    /// The first fragment whose place in the user's memory was not fetched into the cache.
    prefetched: u64,
    /// Of this fragment, the slice of all slots that this rank combines.
    slice: Option<Range<u64>>,
    ranks: usize,
    /// The others whose first entries were read: a bit for each.
    met: [u64; RANKS_MAX / 64],
    /// How many ranks' first entries were read.
    met_count: usize,
    /// The ranks whose first entries were read and whose first slot is the second: a bit for each.
    second: [u64; RANKS_MAX / 64],
    /// Their buffers, if one of them lets others read some.
    theirs: Vec<Option<Direct>>,
    /// This rank's buffers that others read where they lie.
    own: Both<Region>,
    /// What its header says of them.
    flags: u8,
    /// What this rank contributes, if that is plain memory that stays as it is.
    plain: Option<Region>,
}

impl<T: LongInput> StateMachine for Long<T> {
    fn progress(&self) -> &LongProgress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut LongProgress {
        &mut self.progress
    }

    fn begin(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> Next {
        if !cx.has_room(tools.pml) {
            return None;
        }
        let input = self.plain.filter(|_| self.plan().exposes());
        let offered = read_in_place::offer(
            self.plan(),
            (input, self.input.buffers().recv),
            cx,
            tools.pml.bml_mut(),
        );
        (self.flags, self.own) = (offered.flags(), offered.own);
        Some(SmStage::Waiting)
    }

    fn expose(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        self.progress.at = 0;
        self.slice = self.plan().combines(self.progress.fragment);
        if !self.plan().exposes() && !self.keeps() {
            let says = self.progress.fragment == 0;
            return Ok(Some(if says { self.report_exposed(cx, tools) } else { self.next() }));
        }
        let fills = self.own.input.is_none();
        if fills || (self.slice.is_some() && self.own.output.is_none()) {
            let filled = Filled {
                readers: self.plan().readers(),
                round: self.progress.round,
                until: Moment::new(self.progress.round, done_step(self.progress.fragment)),
                others_write: self.plan().is_scan(),
            };
            if !cx.claim(self.progress.slot(self.progress.first), filled, tools.pml)? {
                return Ok(None);
            }
        }
        if fills {
            self.fill(cx, tools);
        }
        if self.may_lengthen() {
            let own = (cx.local_rank(), self.progress.slot(self.progress.first));
            self.progress.work.started(cx.shared.say_slept(own, self.progress.slept));
        }
        let is_filled = self.progress.work.is_done();
        Ok(Some(if is_filled { self.report_exposed(cx, tools) } else { SmStage::Exposing }))
    }

    fn report_exposed(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage {
        if self.progress.publish_first() {
            self.progress.report(cx, tools, exposed_step(self.progress.fragment));
        } else {
            let header = header(self.plan(), cx.local_rank(), self.progress.first, self.flags);
            cx.mailbox.publish(&cx.mailboxes, LONG, &header, Readers::All);
            cx.wake(tools.pml, Readers::All);
        }
        self.next()
    }

    /// Waits for all slots, and starts to combine this rank's slice.
    fn gather(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        let ranks = self.ranks;
        if self.progress.at == 0 && self.progress.fragment == 0 {
            // Fetches all entries at once; each is looked at below.
            let _ = cx.mailbox.all_there(&cx.mailboxes, 0..ranks);
        }
        while self.progress.at < ranks {
            let local_rank = self.progress.turn(cx);
            if !self.wait(local_rank, exposed_step(self.progress.fragment), cx, tools)? {
                self.prefetch();
                return Ok(None);
            }
            self.progress.at += 1;
        }
        if let Some(slice) = self.slice.clone() {
            let combined = self.combine(slice, cx, tools);
            self.progress.work.started(combined);
        }
        if !self.progress.work.is_done() {
            return Ok(Some(SmStage::Combining));
        }
        self.check_reads(cx)?;
        Ok(Some(self.report_combined(cx, tools)))
    }

    fn report_combined(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage {
        self.progress.report(cx, tools, combined_step(self.progress.fragment));
        SmStage::Collecting
    }

    fn collect(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> StepResult {
        let mut read_at_once = 0;
        while let Some((local_rank, step, piece)) =
            self.plan().output(self.progress.fragment, self.progress.at)
        {
            let is_input = step == exposed_step(self.progress.fragment);
            let was_read =
                self.progress.fragment > 0 && is_input && self.is_at_hand(local_rank, cx);
            if piece.is_empty() || was_read || self.is_in_place(local_rank, is_input, cx) {
                self.progress.at += 1;
                continue;
            }
            if read_at_once > AT_ONCE_MAX {
                return Ok(None);
            }
            if !self.wait(local_rank, step, cx, tools)? {
                self.prefetch();
                return Ok(None);
            }
            if is_input && self.is_at_hand(local_rank, cx) {
                let Some(read) = self.read_all(local_rank, piece, cx, tools)? else {
                    return Ok(None);
                };
                read_at_once += read;
                self.progress.at += 1;
                continue;
            }
            let bytes = piece.in_slot();
            let source = match is_input {
                true => self.contributed(local_rank, bytes, cx),
                false => self.result_source(self.plan().holder(local_rank), bytes, cx),
            };
            self.progress.take(self.input.buffers(), &piece, source, tools);
            self.progress.at += 1;
        }
        if !self.progress.work.is_done() {
            return Ok(Some(SmStage::Unpacking));
        }
        self.check_reads(cx)?;
        Ok(Some(self.next_fragment(cx, tools)))
    }

    fn next_fragment(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) -> SmStage {
        self.lengthen(cx);
        self.progress.fragment += 1;
        if self.progress.fragment < self.plan().fragments && !self.is_over_early(cx) {
            if !self.plan().exposes() {
                // Whoever does says so with the next fragment.
                self.progress.report(cx, tools, done_step(self.progress.fragment - 1));
            }
            return SmStage::Waiting;
        }
        self.progress.end(cx, tools);
        if self.plan().together() && self.met_count + 1 == self.ranks {
            cx.mailbox.all_began(self.progress.round);
        }
        if self.own.is_empty() { SmStage::Over } else { SmStage::AwaitingReaders }
    }

    fn is_reader(&self, local_rank: usize) -> bool {
        !self.own.is_empty() && among(self.plan().readers(), self.ranks).contains(&local_rank)
    }

    fn met(&self, local_rank: usize) -> Option<bool> {
        self.has_met(local_rank).then(|| self.direct(local_rank).is_some())
    }

    fn imports(&self, _: usize) -> bool {
        !self.theirs.is_empty()
    }

    fn source(&self, cx: &SmContext<'_>) -> Option<(usize, u32)> {
        let LongProgress { fragment, at, .. } = self.progress;
        if self.progress.is_gathering() {
            let next = (self.progress.turn(cx), exposed_step(fragment));
            return (at < self.ranks).then_some(next);
        }
        let (local_rank, step, _) = self.plan().output(fragment, at)?;
        Some((local_rank, step))
    }
}

impl<T> Long<T> {
    /// Nothing is to be dropped.
    #[inline]
    pub(super) fn is_bare(&self) -> bool {
        self.progress.is_bare() && self.theirs.capacity() == 0
    }

    /// How far the attempt has come, without what was granted to it.
    pub(super) fn halt(self) -> Long<()> {
        self.with((), None)
    }

    fn with<U>(self, input: U, plain: Option<Region>) -> Long<U> {
        let Long {
            progress,
            prefetched,
            slice,
            ranks,
            met,
            met_count,
            second,
            theirs,
            own,
            flags,
            ..
        } = self;
        Long {
            progress,
            input,
            prefetched,
            slice,
            ranks,
            met,
            met_count,
            second,
            theirs,
            own,
            flags,
            plain,
        }
    }
}

impl Long<()> {
    /// Goes on with what an attempt began, with memory that is granted until the end.
    pub(super) fn go_on(self, input: OwnedInput) -> Long<OwnedInput> {
        let plain = input.buffers.contributed(&input.plan);
        let mut next = self.with(input, plain);
        // The attempt's memory was granted for the attempt alone.
        next.own.input = next.own.input.and(plain);
        next.own.output = next.own.output.and(next.input.buffers.recv);
        next
    }
}

impl<T: LongInput> Long<T> {
    /// A collective that begins in this round.
    #[inline]
    pub(super) fn new(input: T, (ranks, round): (usize, u64), slots: &Slots) -> Long<T> {
        let plain = input.buffers().contributed(input.plan());
        Long {
            progress: LongProgress::new(round, slots.next),
            input,
            prefetched: 0,
            slice: None,
            ranks,
            met: [0; _],
            met_count: 0,
            second: [0; _],
            theirs: Vec::new(),
            own: Both::default(),
            flags: 0,
            plain,
        }
    }

    /// Goes as far as it can while the caller may poll; whether the collective has ended well. If not, [`Long::go_on`]
    /// comes next. `may_spin`: whether the caller may poll once more.
    #[inline]
    pub(super) fn attempt(
        &mut self,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
        may_spin: &mut impl FnMut() -> bool,
    ) -> bool {
        let Some(stage) = self.begin(cx, tools) else { return false };
        self.progress.stage = stage;
        // Others read exported buffers for longer than they are granted so far.
        if !self.own.is_empty() {
            return false;
        }
        while !self.advance(cx, tools) {
            loop {
                if !may_spin() {
                    return false;
                }
                if self.look(cx) {
                    break;
                }
            }
        }
        self.progress.failure.is_none()
    }

    /// What another lets this rank read where it lies.
    fn direct(&self, local_rank: usize) -> Option<&Direct> {
        self.theirs.get(local_rank)?.as_ref()
    }

    fn plan(&self) -> &LongPlan {
        self.input.plan()
    }

    /// Has it fail from the beginning: it touches no memory but that of the mailboxes.
    pub(super) fn doom(&mut self, error: CollError) {
        self.progress.doom(error);
    }

    /// What comes once this fragment's bytes are there.
    fn next(&self) -> SmStage {
        let gathers = self.slice.is_some() || self.plan().is_scan();
        if gathers { SmStage::Gathering } else { SmStage::Collecting }
    }

    /// Whether this rank combines in its slot what it alone needs: buffers that are not plain memory.
    fn keeps(&self) -> bool {
        let is_plain = self.plain.is_some() && self.input.buffers().recv.is_some();
        !is_plain && self.slice.is_some()
    }

    /// Starts to fill this rank's slot.
    fn fill(&mut self, cx: &mut SmContext<'_>, tools: &mut Tools<'_>) {
        let own = (cx.local_rank(), self.progress.slot(self.progress.first));
        for piece in self.input.plan().input(self.progress.fragment, self.plain.is_none()) {
            let work = &mut self.progress.work;
            let packed = cx.shared.fill(self.input.buffers(), &piece, own, tools, work);
            work.started(packed);
        }
    }

    /// While it waits: has the cache fetch where this rank will write.
    fn prefetch(&mut self) {
        if self.input.buffers().long().is_some() {
            return;
        }
        let (mut left, mut fragment) =
            (PREFETCH_BYTES, self.prefetched.max(self.progress.fragment));
        while left > 0 && fragment < self.plan().fragments {
            for (_, _, piece) in (0..).map_while(|index| self.plan().output(fragment, index)) {
                left = left.saturating_sub(SegmentMemory::prefetch(
                    self.input.buffers(),
                    &piece,
                    left,
                ));
            }
            fragment += 1;
        }
        self.prefetched = fragment;
    }

    /// Starts to combine a slice of what all ranks contribute.
    fn combine(
        &mut self,
        slice: Range<u64>,
        cx: &SmContext<'_>,
        tools: &Tools<'_>,
    ) -> Result<(), EngineError> {
        let Some(combine) = self.input.combine() else { return Ok(()) };
        if self.plan().is_scan() {
            for local_rank in 1..self.ranks {
                let before = self.in_slot(local_rank - 1, slice.clone(), cx)?;
                let own = self.in_slot(local_rank, slice.clone(), cx)?;
                let (sources, work) = ([before, own], &mut self.progress.work);
                SegmentMemory::reduce(combine, &sources, own.region(), tools, work)?;
            }
            return Ok(());
        }
        let into = self.result_source(cx.local_rank(), slice.clone(), cx)?.region();
        let sources = (0..self.ranks).map(|it| self.contributed(it, slice.clone(), cx));
        if SegmentMemory::fold(combine, sources.clone(), into) {
            return Ok(());
        }
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        SegmentMemory::reduce(combine, &sources, into, tools, &mut self.progress.work)
    }

    fn has_met(&self, local_rank: usize) -> bool {
        self.met[local_rank / 64] >> (local_rank % 64) & 1 == 1
    }

    /// The first slot of a rank that was met, or of this one.
    fn first(&self, local_rank: usize) -> usize {
        let is_second = self.second[local_rank / 64] >> (local_rank % 64) & 1 == 1;
        if self.has_met(local_rank) { usize::from(is_second) } else { self.progress.first }
    }

    /// A rank's slot.
    fn in_slot(
        &self,
        local_rank: usize,
        range: Range<u64>,
        cx: &SmContext<'_>,
    ) -> Result<Source, EngineError> {
        Source::slot(cx.shared, (local_rank, self.progress.slot(self.first(local_rank))), range)
    }

    /// What a rank contributes, as it lies in its slot or would lie there.
    fn contributed(
        &self,
        local_rank: usize,
        range: Range<u64>,
        cx: &SmContext<'_>,
    ) -> Result<Source, EngineError> {
        let start = self.plan().position(self.progress.fragment, range.start);
        let direct = start..start + (range.end - range.start);
        let mapped = self.direct(local_rank).and_then(|it| it.mapped.input.as_ref());
        match (mapped, self.plain) {
            (Some(mapping), _) => Source::mapped(mapping, direct),
            (None, Some(own)) if local_rank == cx.local_rank() => Source::own(own, direct),
            _ => self.in_slot(local_rank, range, cx),
        }
    }

    /// A rank's slice of the result.
    fn result_source(
        &self,
        local_rank: usize,
        slice: Range<u64>,
        cx: &SmContext<'_>,
    ) -> Result<Source, EngineError> {
        if local_rank == cx.local_rank()
            && let Some((target, own)) =
                self.input.buffers().recv.zip(self.plan().own_result(self.progress.fragment))
        {
            return Source::own(target, own);
        }
        let direct = self.plan().result(self.progress.fragment, &slice);
        let mapped = self.direct(local_rank).and_then(|it| it.mapped.output.as_ref());
        match (mapped, self.own.output) {
            (Some(mapping), _) => Source::mapped(mapping, direct),
            (None, Some(own)) if local_rank == cx.local_rank() => Source::own(own, direct),
            _ => self.in_slot(local_rank, self.plan().in_slot(&slice), cx),
        }
    }

    /// Whether what is read is what this rank has combined where it goes.
    fn is_in_place(&self, local_rank: usize, is_input: bool, cx: &SmContext<'_>) -> bool {
        let has_combined = !is_input && local_rank == cx.local_rank();
        has_combined && self.input.buffers().recv.is_some() && self.plan().has_own_result()
    }

    /// Whether fragments may get longer. All ranks agree once they have met: it depends on what all know by then.
    fn may_lengthen(&self) -> bool {
        T::MAY_LENGTHEN
            && self.plan().may_lengthen()
            && self.own.is_empty()
            && self.theirs.is_empty()
    }

    /// Has the rest go in longer fragments, if a rank has said with this one that it has slept for one that had begun.
    fn lengthen(&mut self, cx: &SmContext<'_>) {
        if !self.may_lengthen() {
            return;
        }
        let says = |it: usize| cx.shared.has_slept((it, self.progress.slot(self.first(it)))).ok();
        if (0..self.ranks).any(|it| says(it) == Some(true)) {
            self.input.lengthen(self.progress.fragment + 1);
        }
    }

    /// Whether a rank has come so far.
    fn wait(
        &mut self,
        local_rank: usize,
        step: u32,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<bool, CollError> {
        if local_rank == cx.local_rank() {
            return Ok(true);
        }
        if !self.has_met(local_rank) && !self.meet(local_rank, cx, tools)? {
            return Ok(false);
        }
        self.progress.wait((local_rank, step), cx, tools)
    }

    /// Reads a rank's first entry, if it is there.
    fn meet(
        &mut self,
        local_rank: usize,
        cx: &mut SmContext<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<bool, CollError> {
        let Some(flag) = cx.entry(tools.pml, local_rank)? else { return Ok(false) };
        let header = agree(self.plan(), local_rank, flag, cx)?;
        if header.flags != 0 {
            let named = (local_rank, header.flags);
            let direct = read_in_place::accept(self.plan(), named, cx, tools.pml.bml_mut())?;
            self.theirs.resize_with(self.ranks, || None);
            self.theirs[local_rank] = Some(direct);
        }
        self.met[local_rank / 64] |= 1 << (local_rank % 64);
        self.met_count += 1;
        self.second[local_rank / 64] |= (header.first as u64 & 1) << (local_rank % 64);
        Ok(true)
    }
}
