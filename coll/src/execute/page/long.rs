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
//! That is a fragment of an all-reduce; others leave out a part, and scans combine in all slots ([`super::pieces`]). A rank
//! reports each step that others wait for ([`Moment`]). In the place of the first report it publishes a note of what it calls: others need one cache
//! line to know both. What only a rank itself reads stays in its buffer, if that is plain memory.
//!
//! Who has a buffer in memory that peers can map, or read by the kernel, fills no slot: others read it there
//! ([`super::direct`]). What need not be combined is read all at once then.
//!
//! A slot is filled again when all that read it have reported a later step, or are known to be done with the collective.

mod at_hand;
mod ending;

use std::ops::Range;

use gapless_bml::Mapping;
use gapless_engine::EngineError;
use gapless_mem::Region;
use gapless_sync::board::{Awaited, Moment, Readers};

use super::act::Stretch;
use super::course::Course;
use super::direct::{self, Both, Direct};
use super::introduction::{agree, introduction};
use super::pieces::{Plan, combined, done, exposed};
use super::plan::LONG;
use super::slots::{Filled, Slots, slot};
use super::{AT_ONCE_MAX, Place, Shared};
use crate::execute::act::{Tools, Work};
use crate::execute::error::CollError;
use crate::execute::memory::Memory;
use crate::execute::rows::{Combine, Rows};
use crate::schedule::Buffer;

/// How many bytes of the user's memory a rank that waits has the cache fetch at a time.
const WARM_BYTES: u64 = 16 << 10;

/// A long collective that is under way.
#[derive(Debug)]
pub(super) struct Long {
    plan: Plan,
    rows: Rows,
    combine: Option<Combine>,
    stage: Stage,
    fragment: u64,
    /// The first fragment whose place in the user's memory was not fetched into the cache.
    cold: u64,
    /// Of the ranks or pieces that a stage goes through, the next one.
    at: usize,
    /// The others, as their first notes say; this rank is none of them.
    met: Box<[Option<Peer>]>,
    /// This rank's first slot.
    first: usize,
    /// This rank's buffers that others read where they lie.
    own: Both<Region>,
    /// What its note says of them.
    flags: u8,
    /// What this rank contributes, if that is plain memory that stays as it is.
    plain: Option<Region>,
    /// What it receives into, if that is plain memory: what no other rank needs is combined there.
    target: Option<Region>,
    /// For bytes that were read by the kernel and go to several places.
    bounce: Option<Memory>,
    course: Course,
    work: Work,
    failure: Option<CollError>,
}

/// What a rank's first note says.
#[derive(Clone, Debug)]
struct Peer {
    first: usize,
    /// Its buffers, if it lets others read some.
    direct: Option<Box<Direct>>,
}

impl Peer {
    fn input(&self) -> Option<&Mapping> {
        self.direct.as_ref()?.mapped.input.as_ref()
    }

    fn output(&self) -> Option<&Mapping> {
        self.direct.as_ref()?.mapped.output.as_ref()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    /// The own slot is to be free.
    Waiting,
    Exposing,
    /// All slots are to be filled.
    Gathering,
    Combining,
    Collecting,
    Unpacking,
    Failing,
    /// Others may still read this rank's buffers.
    Recalling,
    Over,
    /// In a call, or a call has unwound.
    Torn,
}

/// What comes of a step: another one, or nothing yet.
type Next = Option<Stage>;

impl Drop for Long {
    fn drop(&mut self) {
        self.work.drain();
    }
}

impl Long {
    /// A collective that begins in this round.
    pub(super) fn new(
        plan: Plan,
        (rows, combine): (Rows, Option<Combine>),
        (ranks, round): (usize, u64),
        slots: &Slots,
    ) -> Long {
        Long {
            plan,
            rows,
            combine,
            stage: Stage::Fresh,
            fragment: 0,
            cold: 0,
            at: 0,
            met: (0..ranks).map(|_| None).collect(),
            first: slots.next,
            own: Both::default(),
            flags: 0,
            plain: None,
            target: None,
            bounce: None,
            course: Course::new(round),
            work: Work::default(),
            failure: None,
        }
    }

    /// Has it fail from the beginning: it touches no memory but that of the board.
    pub(super) fn doom(&mut self, error: CollError) {
        self.failure.get_or_insert(error);
        self.stage = Stage::Failing;
    }

    pub(super) fn is_torn(&self) -> bool {
        self.stage == Stage::Torn
    }

    pub(super) fn is_busy(&self) -> bool {
        self.work.is_pending()
    }

    /// Why it failed, once it is over.
    pub(super) fn result(&mut self) -> Result<(), CollError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Which rank is waited for; `None`: none is.
    pub(super) fn awaited(&self, place: &mut Place<'_>) -> Option<Awaited> {
        match self.stage {
            Stage::Fresh | Stage::Failing => {
                place.seat.blocked_by(&place.board).map(Awaited::Reader)
            }
            Stage::Waiting => self.reader(place).map(Awaited::Reader),
            Stage::Recalling => self.user(place).map(Awaited::Reader),
            Stage::Gathering | Stage::Collecting => {
                self.source(place).map(|(rank, _)| Awaited::Note(rank))
            }
            _ => None,
        }
    }

    /// Whether [`advance`](Long::advance) would get on, as far as a few loads tell.
    pub(super) fn look(&self, place: &mut Place<'_>) -> bool {
        match self.stage {
            Stage::Fresh | Stage::Failing => false,
            Stage::Waiting => self.reader(place).is_none(),
            Stage::Recalling => self.user(place).is_none(),
            Stage::Gathering | Stage::Collecting => match self.source(place) {
                Some((rank, step)) if self.met.get(rank).is_some_and(Option::is_some) => {
                    self.reached(rank, step, place)
                }
                Some((rank, _)) => place.seat.look(&place.board, rank) != Ok(None),
                None => true,
            },
            _ => true,
        }
    }

    /// Goes on as far as it can; whether all is over.
    pub(super) fn advance(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> bool {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Torn);
            let next = match self.step(stage, place, tools) {
                Ok(next) => next,
                Err(error) => {
                    self.failure.get_or_insert(error);
                    Some(Stage::Failing)
                }
            };
            self.stage = next.unwrap_or(stage);
            match next {
                Some(Stage::Over) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    fn step(
        &mut self,
        stage: Stage,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<Next, CollError> {
        match stage {
            Stage::Fresh => Ok(self.begin(place, tools)),
            Stage::Waiting => self.expose(place, tools),
            Stage::Exposing => self.after_work(place, |long, place| {
                long.exposed(place, tools);
                Stage::Gathering
            }),
            Stage::Gathering => self.gather(place, tools),
            Stage::Combining => self.after_work(place, |long, place| {
                long.course.report(place, tools, combined(long.fragment));
                Stage::Collecting
            }),
            Stage::Collecting => self.collect(place, tools),
            Stage::Unpacking => self.after_work(place, |long, place| long.turn(place, tools)),
            Stage::Failing => Ok(self.tell(place, tools)),
            Stage::Recalling => Ok(self.recall(place, tools)),
            Stage::Over | Stage::Torn => Ok(None),
        }
    }

    /// Once the work of engines is over.
    fn after_work(
        &mut self,
        place: &mut Place<'_>,
        then: impl FnOnce(&mut Long, &mut Place<'_>) -> Stage,
    ) -> Result<Next, CollError> {
        match self.work.result() {
            None => Ok(None),
            Some(Err(error)) => Err(CollError::Engine { rank: place.circle.own(), error }),
            Some(Ok(())) => {
                if let Some(error) = self.torn(place) {
                    return Err(error);
                }
                self.at = 0;
                Ok(Some(then(self, place)))
            }
        }
    }

    /// Finds out where this rank's buffers lie.
    fn begin(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        if !place.has_room(tools.pml) {
            return None;
        }
        self.plain = direct::contributed(&self.plan, &self.rows);
        self.target = direct::whole(&self.rows, Buffer::Recv);
        let bml = tools.pml.bml_mut();
        let offered = direct::offer(&self.plan, &self.rows, self.plain, place, bml);
        (self.flags, self.own) = (offered.flags(), offered.own);
        Some(Stage::Waiting)
    }

    /// Tells the others that this fragment's bytes are there, and before the first what this rank calls.
    fn exposed(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) {
        if self.course.introduce() {
            return self.course.report(place, tools, exposed(self.fragment));
        }
        let note = introduction(&self.plan, place.rank(), self.first, self.flags);
        place.seat.publish(&place.board, LONG, &note, Readers::All);
        place.ring(tools.pml, Readers::All);
    }

    /// Whether a rank that was met has come so far.
    fn reached(&self, rank: usize, step: u32, place: &mut Place<'_>) -> bool {
        // Its note was the first step's report.
        step <= exposed(0) || self.course.reached(rank, step, place)
    }

    /// The slot of this fragment, of those of a rank.
    fn slot(&self, first: usize) -> usize {
        slot(first, self.fragment)
    }

    /// The rank that still reads what is in the slot that this rank fills next.
    fn reader(&self, place: &mut Place<'_>) -> Option<usize> {
        place.slot_reader(self.slot(self.first))
    }

    /// Fills the slot, once it is free, if others need it.
    fn expose(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        self.at = 0;
        if !self.plan.exposes() {
            if self.fragment == 0 {
                self.exposed(place, tools);
            }
            return Ok(Some(Stage::Gathering));
        }
        let combines = self.plan.combines(self.fragment).is_some();
        let fills = self.own.input.is_none();
        if fills || (combines && self.own.output.is_none()) {
            let filled = Filled {
                readers: self.plan.readers(),
                round: self.course.round,
                until: Moment::new(self.course.round, done(self.fragment)),
                others_write: self.plan.is_scan(),
            };
            if !place.claim(self.slot(self.first), filled, tools.pml)? {
                return Ok(None);
            }
        }
        if fills {
            let own = (place.rank(), self.slot(self.first));
            for piece in self.plan.input(self.fragment, self.plain.is_none()) {
                let packed = place.shared.fill(&self.rows, &piece, own, tools, &mut self.work);
                if let Err(error) = packed {
                    self.work.fail(error);
                }
            }
        }
        Ok(Some(Stage::Exposing))
    }

    /// Which rank is waited for, and for which step of it.
    fn source(&self, place: &Place<'_>) -> Option<(usize, u32)> {
        if self.stage == Stage::Gathering {
            let ranks = self.met.len();
            let rank = (place.rank() + 1 + self.at) % ranks;
            return (self.at < ranks).then(|| (rank, exposed(self.fragment)));
        }
        let (rank, step, _) = self.plan.output(self.fragment, self.at)?;
        Some((rank, step))
    }

    /// Waits for all slots, and starts to combine this rank's slice.
    fn gather(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        let slice = self.plan.combines(self.fragment);
        if slice.is_none() && !self.plan.is_scan() {
            self.at = 0;
            return Ok(Some(Stage::Collecting));
        }
        let ranks = self.met.len();
        if self.at == 0 && self.fragment == 0 {
            // Fetches all notes at once; each is looked at below.
            let _ = place.seat.all_there(&place.board, 0..ranks);
        }
        while self.at < ranks {
            let rank = (place.rank() + 1 + self.at) % ranks;
            if !self.wait(rank, exposed(self.fragment), place, tools)? {
                self.warm();
                return Ok(None);
            }
            self.at += 1;
        }
        if let Some(slice) = slice {
            let combined = self.combine(slice, place, tools);
            self.work.started(combined);
        }
        Ok(Some(Stage::Combining))
    }

    /// While it waits: has the cache fetch where this rank will write.
    fn warm(&mut self) {
        let (mut left, mut fragment) = (WARM_BYTES, self.cold.max(self.fragment));
        while left > 0 && fragment < self.plan.fragments {
            for (_, _, piece) in (0..).map_while(|index| self.plan.output(fragment, index)) {
                left = left.saturating_sub(Shared::warm(&self.rows, &piece, left));
            }
            fragment += 1;
        }
        self.cold = fragment;
    }

    /// Starts to combine a slice of what all ranks contribute.
    fn combine(
        &mut self,
        slice: Range<u64>,
        place: &Place<'_>,
        tools: &Tools<'_>,
    ) -> Result<(), EngineError> {
        let Some(combine) = &self.combine else { return Ok(()) };
        if self.plan.is_scan() {
            for rank in 1..self.met.len() {
                let before = self.in_slot(rank - 1, slice.clone(), place)?;
                let own = self.in_slot(rank, slice.clone(), place)?;
                Shared::reduce(combine, &[before, own], own.region(), tools, &mut self.work)?;
            }
            return Ok(());
        }
        let source = |rank| self.contributed(rank, slice.clone(), place);
        let sources = (0..self.met.len()).map(source).collect::<Result<Vec<_>, _>>()?;
        let into = self.combined(place.rank(), slice.clone(), place)?.region();
        Shared::reduce(combine, &sources, into, tools, &mut self.work)
    }

    /// A rank's slot.
    fn in_slot(
        &self,
        rank: usize,
        range: Range<u64>,
        place: &Place<'_>,
    ) -> Result<Stretch, EngineError> {
        let first = self.met.get(rank).and_then(Option::as_ref).map_or(self.first, |it| it.first);
        Stretch::slot(place.shared, (rank, self.slot(first)), range)
    }

    /// What a rank contributes, as it lies in its slot or would lie there.
    fn contributed(
        &self,
        rank: usize,
        range: Range<u64>,
        place: &Place<'_>,
    ) -> Result<Stretch, EngineError> {
        let start = self.plan.position(self.fragment, range.start);
        let direct = start..start + (range.end - range.start);
        let peer = self.met.get(rank).and_then(Option::as_ref);
        match (peer.and_then(Peer::input), self.plain) {
            (Some(mapping), _) => Stretch::mapped(mapping, direct),
            (None, Some(own)) if rank == place.rank() => Stretch::own(own, direct),
            _ => self.in_slot(rank, range, place),
        }
    }

    /// A rank's slice of the result.
    fn combined(
        &self,
        rank: usize,
        slice: Range<u64>,
        place: &Place<'_>,
    ) -> Result<Stretch, EngineError> {
        if rank == place.rank()
            && let Some((target, own)) = self.target.zip(self.plan.own_result(self.fragment))
        {
            return Stretch::own(target, own);
        }
        let direct = self.plan.result(self.fragment, &slice);
        let peer = self.met.get(rank).and_then(Option::as_ref);
        match (peer.and_then(Peer::output), self.own.output) {
            (Some(mapping), _) => Stretch::mapped(mapping, direct),
            (None, Some(own)) if rank == place.rank() => Stretch::own(own, direct),
            _ => self.in_slot(rank, slice, place),
        }
    }

    /// Reads what this rank gets.
    fn collect(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        let mut read_at_once = 0;
        while let Some((rank, step, piece)) = self.plan.output(self.fragment, self.at) {
            let is_input = step == exposed(self.fragment);
            let was_read = self.fragment > 0 && is_input && self.is_at_hand(rank, place);
            if piece.is_empty() || was_read {
                self.at += 1;
                continue;
            }
            if read_at_once > AT_ONCE_MAX {
                return Ok(None);
            }
            if !self.wait(rank, step, place, tools)? {
                self.warm();
                return Ok(None);
            }
            if is_input && self.is_at_hand(rank, place) {
                read_at_once += self.read_all(rank, piece, place, tools)?;
                self.at += 1;
                continue;
            }
            let bytes = piece.at..piece.at + (piece.range.end - piece.range.start);
            let source = match is_input {
                true => self.contributed(rank, bytes, place),
                false => self.combined(self.plan.holder(rank), bytes, place),
            };
            let read = source.and_then(|source| {
                Shared::take(&self.rows, &piece, &source, tools, &mut self.work)
            });
            if let Err(error) = read {
                self.work.fail(error);
            }
            self.at += 1;
        }
        Ok(Some(Stage::Unpacking))
    }

    /// A fragment is over.
    fn turn(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Stage {
        self.fragment += 1;
        if self.fragment < self.plan.fragments && !self.is_over_early(place) {
            if !self.plan.exposes() {
                // Whoever does says so with the next fragment.
                self.course.report(place, tools, done(self.fragment - 1));
            }
            return Stage::Waiting;
        }
        self.course.end(place, tools);
        let others = self.met.iter().filter(|it| it.is_some()).count();
        if self.plan.together() && others + 1 == self.met.len() {
            place.seat.all_began(self.course.round);
        }
        self.ending()
    }

    /// Whether a rank has come so far.
    fn wait(
        &mut self,
        rank: usize,
        step: u32,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<bool, CollError> {
        if rank == place.rank() {
            return Ok(true);
        }
        if self.met.get(rank).is_some_and(Option::is_none) && !self.meet(rank, place, tools)? {
            return Ok(false);
        }
        let reached = |course: &Course, place: &mut Place<'_>| {
            step <= exposed(0) || course.reached(rank, step, place)
        };
        self.course.wait(rank, place, tools, reached)
    }

    /// Reads a rank's first note, if it is there.
    fn meet(
        &mut self,
        rank: usize,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<bool, CollError> {
        let Some(mark) = place.note(tools.pml, rank)? else { return Ok(false) };
        let note = agree(&self.plan, rank, mark, place)?;
        let direct = match note.flags {
            0 => None,
            flags => {
                let bml = tools.pml.bml_mut();
                Some(Box::new(direct::accept(&self.plan, (rank, flags), place, bml)?))
            }
        };
        if let Some(met) = self.met.get_mut(rank) {
            *met = Some(Peer { first: note.first, direct });
        }
        Ok(true)
    }
}
