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

use std::ops::Range;

use gapless_bml::Mapping;
use gapless_engine::EngineError;
use gapless_mem::Region;
use gapless_sync::board::{Moment, Readers};

use super::act::{self, Stretch};
use super::course::{Course, Next, Stage, Steps};
use super::direct::{self, Both, Direct, Offered};
use super::introduction::{agree, introduction};
use super::pieces::{Plan, combined, done, exposed};
use super::plan::LONG;
use super::prompt::Midway;
use super::slots::{Filled, Slots, among};
use super::{AT_ONCE_MAX, Place, Shared};
use crate::execute::act::Tools;
use crate::execute::error::CollError;
use crate::execute::rows::{Combine, Rows};
use crate::schedule::Buffer;

/// How many bytes of the user's memory a rank that waits has the cache fetch at a time.
const WARM_BYTES: u64 = 16 << 10;

/// A long collective that is under way.
#[derive(Debug)]
pub(super) struct Long {
    /// The first: with it ends what engines do.
    course: Course,
    plan: Plan,
    rows: Rows,
    combine: Option<Combine>,
    /// The first fragment whose place in the user's memory was not fetched into the cache.
    cold: u64,
    /// The others, as their first notes say; this rank is none of them.
    met: Box<[Option<Peer>]>,
    /// This rank's buffers that others read where they lie.
    own: Both<Region>,
    /// What its note says of them.
    flags: u8,
    /// What others are offered, if they were told before this began.
    offered: Option<Offered>,
    /// What this rank contributes, if that is plain memory that stays as it is.
    plain: Option<Region>,
    /// What it receives into, if that is plain memory: what no other rank needs is combined there.
    target: Option<Region>,
    /// Whether it was begun elsewhere, where what goes to this rank itself goes by fragments as well.
    resumed: bool,
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

impl Steps for Long {
    fn course(&self) -> &Course {
        &self.course
    }

    fn course_mut(&mut self) -> &mut Course {
        &mut self.course
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
            Stage::Exposing => {
                self.exposed(place, tools);
                Ok(Some(Stage::Gathering))
            }
            Stage::Gathering => self.gather(place, tools),
            Stage::Combining => {
                self.course.report(place, tools, combined(self.course.fragment));
                Ok(Some(Stage::Collecting))
            }
            Stage::Collecting => self.collect(place, tools),
            _ => Ok(Some(self.turn(place, tools))),
        }
    }

    fn is_user(&self, rank: usize) -> bool {
        !self.own.is_empty() && among(self.plan.readers(), self.met.len()).contains(&rank)
    }

    fn met(&self, rank: usize) -> Option<bool> {
        Some(self.met.get(rank)?.as_ref()?.direct.is_some())
    }

    fn source(&self, place: &Place<'_>) -> Option<(usize, u32)> {
        let Course { fragment, at, .. } = self.course;
        if self.course.is_gathering() {
            let ranks = self.met.len();
            return (at < ranks).then(|| ((place.rank() + 1 + at) % ranks, exposed(fragment)));
        }
        let (rank, step, _) = self.plan.output(fragment, at)?;
        Some((rank, step))
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
            course: Course::new(round, slots.next),
            plan,
            rows,
            combine,
            cold: 0,
            met: (0..ranks).map(|_| None).collect(),
            own: Both::default(),
            flags: 0,
            offered: None,
            plain: None,
            target: None,
            resumed: false,
        }
    }

    /// It was begun already. It lends no buffer.
    pub(super) fn go_on(&mut self, midway: &Midway) {
        self.see();
        self.resumed = true;
        self.course.resume(midway);
        for (met, first) in self.met.iter_mut().zip(midway.met) {
            *met = first.map(|first| Peer { first: usize::from(first), direct: None });
        }
    }

    /// Others have keys to these buffers of this rank's.
    pub(super) fn lend(&mut self, offered: Offered) {
        self.offered = Some(offered);
    }

    /// Finds out where this rank's buffers lie.
    fn see(&mut self) {
        self.plain = direct::contributed(&self.plan, &self.rows);
        self.target = direct::whole(&self.rows, Buffer::Recv);
    }

    /// Has it fail from the beginning: it touches no memory but that of the board.
    pub(super) fn doom(&mut self, error: CollError) {
        self.course.doom(error);
    }

    /// Finds out which of this rank's buffers others read where they lie.
    fn begin(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        if !place.has_room(tools.pml) {
            return None;
        }
        self.see();
        let input = self.plain.filter(|_| self.plan.exposes());
        let offered = self.offered.take().unwrap_or_else(|| {
            direct::offer(&self.plan, (input, self.target), place, tools.pml.bml_mut())
        });
        (self.flags, self.own) = (offered.flags(), offered.own);
        Some(Stage::Waiting)
    }

    /// Tells the others that this fragment's bytes are there, and before the first what this rank calls.
    fn exposed(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) {
        if self.course.introduce() {
            return self.course.report(place, tools, exposed(self.course.fragment));
        }
        let note = introduction(&self.plan, place.rank(), self.course.first, self.flags);
        place.seat.publish(&place.board, LONG, &note, Readers::All);
        place.ring(tools.pml, Readers::All);
    }

    /// Fills the slot, once it is free, if it is needed.
    fn expose(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        self.course.at = 0;
        if !self.plan.exposes() && !self.keeps() {
            if self.course.fragment == 0 {
                self.exposed(place, tools);
            }
            return Ok(Some(Stage::Gathering));
        }
        let combines = self.plan.combines(self.course.fragment).is_some();
        let fills = self.own.input.is_none();
        if fills || (combines && self.own.output.is_none()) {
            let filled = Filled {
                readers: self.plan.readers(),
                round: self.course.round,
                until: Moment::new(self.course.round, done(self.course.fragment)),
                others_write: self.plan.is_scan(),
            };
            if !place.claim(self.course.slot(self.course.first), filled, tools.pml)? {
                return Ok(None);
            }
        }
        if fills {
            self.fill(place, tools);
        }
        if self.may_lengthen() {
            let own = (place.rank(), self.course.slot(self.course.first));
            self.course.work.started(place.shared.say_slept(own, self.course.slept));
        }
        Ok(Some(Stage::Exposing))
    }

    /// Whether this rank combines in its slot what it alone needs: buffers that are not plain memory.
    fn keeps(&self) -> bool {
        let is_plain = self.plain.is_some() && self.target.is_some();
        !is_plain && self.plan.combines(self.course.fragment).is_some()
    }

    /// Starts to fill this rank's slot.
    fn fill(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) {
        let own = (place.rank(), self.course.slot(self.course.first));
        for piece in self.plan.input(self.course.fragment, self.plain.is_none()) {
            let work = &mut self.course.work;
            let packed = place.shared.fill(&self.rows, &piece, own, tools, work);
            work.started(packed);
        }
    }

    /// Waits for all slots, and starts to combine this rank's slice.
    fn gather(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        let slice = self.plan.combines(self.course.fragment);
        if slice.is_none() && !self.plan.is_scan() {
            self.course.at = 0;
            return Ok(Some(Stage::Collecting));
        }
        let ranks = self.met.len();
        if self.course.at == 0 && self.course.fragment == 0 {
            // Fetches all notes at once; each is looked at below.
            let _ = place.seat.all_there(&place.board, 0..ranks);
        }
        while self.course.at < ranks {
            let rank = (place.rank() + 1 + self.course.at) % ranks;
            if !self.wait(rank, exposed(self.course.fragment), place, tools)? {
                self.warm();
                return Ok(None);
            }
            self.course.at += 1;
        }
        if let Some(slice) = slice {
            let combined = self.combine(slice, place, tools);
            self.course.work.started(combined);
        }
        Ok(Some(Stage::Combining))
    }

    /// While it waits: has the cache fetch where this rank will write.
    fn warm(&mut self) {
        if act::long(&self.rows).is_some() {
            return;
        }
        let (mut left, mut fragment) = (WARM_BYTES, self.cold.max(self.course.fragment));
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
                Shared::reduce(
                    combine,
                    &[before, own],
                    own.region(),
                    tools,
                    &mut self.course.work,
                )?;
            }
            return Ok(());
        }
        let source = |rank| self.contributed(rank, slice.clone(), place);
        let sources = (0..self.met.len()).map(source).collect::<Result<Vec<_>, _>>()?;
        let into = self.combined(place.rank(), slice.clone(), place)?.region();
        Shared::reduce(combine, &sources, into, tools, &mut self.course.work)
    }

    /// A rank's slot.
    fn in_slot(
        &self,
        rank: usize,
        range: Range<u64>,
        place: &Place<'_>,
    ) -> Result<Stretch, EngineError> {
        let first =
            self.met.get(rank).and_then(Option::as_ref).map_or(self.course.first, |it| it.first);
        Stretch::slot(place.shared, (rank, self.course.slot(first)), range)
    }

    /// What a rank contributes, as it lies in its slot or would lie there.
    fn contributed(
        &self,
        rank: usize,
        range: Range<u64>,
        place: &Place<'_>,
    ) -> Result<Stretch, EngineError> {
        let start = self.plan.position(self.course.fragment, range.start);
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
            && let Some((target, own)) = self.target.zip(self.plan.own_result(self.course.fragment))
        {
            return Stretch::own(target, own);
        }
        let direct = self.plan.result(self.course.fragment, &slice);
        let peer = self.met.get(rank).and_then(Option::as_ref);
        match (peer.and_then(Peer::output), self.own.output) {
            (Some(mapping), _) => Stretch::mapped(mapping, direct),
            (None, Some(own)) if rank == place.rank() => Stretch::own(own, direct),
            _ => self.in_slot(rank, self.plan.in_slot(&slice), place),
        }
    }

    /// Reads what this rank gets.
    fn collect(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        let mut read_at_once = 0;
        while let Some((rank, step, piece)) = self.plan.output(self.course.fragment, self.course.at)
        {
            let is_input = step == exposed(self.course.fragment);
            let was_read = self.course.fragment > 0 && is_input && self.is_at_hand(rank, place);
            if piece.is_empty() || was_read {
                self.course.at += 1;
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
                let Some(read) = self.read_all(rank, piece, place, tools)? else {
                    return Ok(None);
                };
                read_at_once += read;
                self.course.at += 1;
                continue;
            }
            let bytes = piece.at..piece.at + (piece.range.end - piece.range.start);
            let source = match is_input {
                true => self.contributed(rank, bytes, place),
                false => self.combined(self.plan.holder(rank), bytes, place),
            };
            let read = source.and_then(|source| {
                Shared::take(&self.rows, &piece, &source, tools, &mut self.course.work)
            });
            if let Err(error) = read {
                self.course.work.fail(error);
            }
            self.course.at += 1;
        }
        Ok(Some(Stage::Unpacking))
    }

    /// Whether fragments may get longer. All ranks agree once they have met: it depends on what all know by then.
    fn may_lengthen(&self) -> bool {
        let lends = |peer: &Option<Peer>| peer.as_ref().is_some_and(|it| it.direct.is_some());
        self.plan.may_lengthen() && self.own.is_empty() && !self.met.iter().any(lends)
    }

    /// Has the rest go in longer fragments, if a rank has said with this one that it has slept for one that had begun.
    fn lengthen(&mut self, place: &Place<'_>) {
        if !self.may_lengthen() {
            return;
        }
        let says = |rank: usize| {
            let first = self.met.get(rank)?.as_ref().map_or(self.course.first, |it| it.first);
            place.shared.has_slept((rank, self.course.slot(first))).ok()
        };
        if (0..self.met.len()).any(|rank| says(rank) == Some(true)) {
            self.plan.lengthen(self.course.fragment + 1);
        }
    }

    /// A fragment is over.
    fn turn(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Stage {
        self.lengthen(place);
        self.course.fragment += 1;
        if self.course.fragment < self.plan.fragments && !self.is_over_early(place) {
            if !self.plan.exposes() {
                // Whoever does says so with the next fragment.
                self.course.report(place, tools, done(self.course.fragment - 1));
            }
            return Stage::Waiting;
        }
        self.course.end(place, tools);
        let others = self.met.iter().filter(|it| it.is_some()).count();
        if self.plan.together() && others + 1 == self.met.len() {
            place.seat.all_began(self.course.round);
        }
        Stage::Recalling
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
        self.course.wait((rank, step), place, tools)
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
