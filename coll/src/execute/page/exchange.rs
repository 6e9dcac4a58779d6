//! Exchanges: gatherv, scatterv, alltoallv, alltoallw, and collectives among neighbours. Only sender and receiver know how
//! many bytes go between them, so the sender writes that down, and the receiver checks it.
//!
//! ```text
//! expose     pack ─▶ cells of the own slot, one for each receiver; or, if that is little, the own note
//! meet       read the notes of those that send something to this rank, and what they say of it
//! collect    unpack the own cell of each sender's slot, or what lay in its note
//! ```
//!
//! Whether a sender's bytes go with its note or through its slots is its own affair ([`super::routes`]): its note says so.
//! Each rank goes through as many fragments as it sends or gets. It waits for nobody of whom it expects nothing; its own
//! slots are free again when their readers are further, or done. Of ranks under way, one in the earliest fragment waits
//! for none that is later, so all get on.
//!
//! What a rank sends to itself goes at once, if it is plain memory. If peers can map that, or read it by the kernel, and it is
//! long, they read it where it lies ([`super::direct`]), and there is but one fragment. The exchange ends when they have read it.

mod note;

use gapless_bml::{Bml, Mapping, RemoteKey};
use gapless_sync::board::{Awaited, Moment, Readers};

use super::act::Stretch;
use super::course::Course;
use super::direct::{self, Side};
use super::pieces::{done, exposed};
use super::plan::LONG;
use super::routes::{self, Cell, Plan, window};
use super::slots::{Filled, Slots, slot};
use super::{AT_ONCE_MAX, Place, Shared, peek};
use crate::execute::act::{Tools, Work};
use crate::execute::error::CollError;
use crate::execute::memory::Memory;
use crate::execute::rows::Rows;

/// An exchange that is under way.
#[derive(Debug)]
pub(super) struct Exchange {
    plan: Plan,
    rows: Rows,
    stage: Stage,
    fragment: u64,
    /// How many there are for this rank; known when it has met those that send to it.
    fragments: u64,
    /// Of the ranks that a stage goes through, the next one.
    at: usize,
    /// Where what each rank sends to this one lies, as far as it was met.
    met: Box<[Option<Lies>]>,
    /// This rank's first slot.
    first: usize,
    /// Whether what this rank sends is plain memory that stays as it is.
    is_plain: bool,
    /// Whether others read that where it lies.
    is_direct: bool,
    /// Whether they do so by the kernel.
    is_peeked: bool,
    /// For bytes that were read by the kernel and go to several places.
    bounce: Option<Memory>,
    course: Course,
    work: Work,
    failure: Option<CollError>,
}

/// Where what a rank sends to this one lies.
#[derive(Clone, Debug)]
enum Lies {
    /// It has come with its note, and was copied from there.
    Noted,
    /// In a cell of its slots, of which this is the first.
    Slots { first: usize, cell: Cell },
    /// In its buffer.
    Direct { mapping: Mapping },
    /// There, and the kernel reads it.
    Peeked { key: RemoteKey },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    /// The own slot is to be free.
    Waiting,
    Exposing,
    Meeting,
    Collecting,
    Unpacking,
    Failing,
    /// Others may still read this rank's buffer.
    Recalling,
    Over,
    /// In a call, or a call has unwound.
    Torn,
}

/// What comes of a step: another one, or nothing yet.
type Next = Option<Stage>;

impl Drop for Exchange {
    fn drop(&mut self) {
        self.work.drain();
    }
}

impl Exchange {
    /// An exchange that begins in this round. `is_plain`: what is sent is plain memory, and what goes to this rank itself has
    /// no cell.
    pub(super) fn new(
        plan: Plan,
        (rows, is_plain): (Rows, bool),
        (ranks, round): (usize, u64),
        slots: &Slots,
    ) -> Exchange {
        Exchange {
            plan,
            rows,
            stage: Stage::Fresh,
            fragment: 0,
            fragments: 0,
            at: 0,
            met: (0..ranks).map(|_| None).collect(),
            first: slots.next,
            is_plain,
            is_direct: false,
            is_peeked: false,
            bounce: None,
            course: Course::new(round),
            work: Work::default(),
            failure: None,
        }
    }

    pub(super) fn is_torn(&self) -> bool {
        self.stage == Stage::Torn
    }

    pub(super) fn is_busy(&self) -> bool {
        self.work.is_pending()
    }

    /// Waits for engines; nothing goes on afterwards. Who reads this rank's buffer is told first.
    pub(super) fn give_up(&mut self, place: &mut Place<'_>) {
        self.work.drain();
        if self.is_direct && self.stage != Stage::Over {
            self.course.give_up(place);
        }
        self.stage = Stage::Torn;
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
            Stage::Waiting => {
                place.slot_reader(slot(self.first, self.fragment)).map(Awaited::Reader)
            }
            Stage::Recalling => self.course.user(self.plan.receivers(), place).map(Awaited::Reader),
            Stage::Meeting | Stage::Collecting => Some(Awaited::Note(self.source(place)?)),
            _ => None,
        }
    }

    /// Whether [`advance`](Exchange::advance) would get on, as far as a few loads tell.
    pub(super) fn look(&self, place: &mut Place<'_>) -> bool {
        match self.stage {
            Stage::Fresh | Stage::Failing => false,
            Stage::Waiting => place.slot_reader(slot(self.first, self.fragment)).is_none(),
            Stage::Recalling => self.course.user(self.plan.receivers(), place).is_none(),
            Stage::Meeting => self
                .source(place)
                .is_none_or(|rank| place.seat.look(&place.board, rank) != Ok(None)),
            Stage::Collecting => self.source(place).is_none_or(|rank| {
                matches!(self.met[rank], Some(Lies::Peeked { .. }))
                    || self.course.reached(rank, exposed(self.fragment), place)
            }),
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
            Stage::Exposing => self.after_work(place, |it, place| it.exposed(place, tools)),
            Stage::Meeting => self.meet(place, tools),
            Stage::Collecting => self.collect(place, tools),
            Stage::Unpacking => self.after_work(place, |it, place| it.turn(place, tools)),
            Stage::Failing => {
                // What was started is over first, however it went.
                let over = self.work.result().is_some();
                let told = over && self.course.tell(self.failure.as_ref(), place, tools);
                Ok(told.then_some(Stage::Recalling))
            }
            Stage::Recalling => {
                let receivers = || self.plan.receivers();
                let over = !self.is_direct || self.course.recall(receivers, place, tools);
                Ok(over.then_some(Stage::Over))
            }
            Stage::Over | Stage::Torn => Ok(None),
        }
    }

    /// Once the work of engines is over.
    fn after_work(
        &mut self,
        place: &mut Place<'_>,
        then: impl FnOnce(&mut Exchange, &mut Place<'_>) -> Stage,
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

    /// A rank that has given up while this one read its buffer.
    fn torn(&self, place: &Place<'_>) -> Option<CollError> {
        let reads =
            |lies: &Option<Lies>| matches!(lies, Some(Lies::Direct { .. } | Lies::Peeked { .. }));
        let mut read = (0..).zip(&self.met).filter(|(_, lies)| reads(lies)).peekable();
        read.peek()?;
        self.course.torn(read.map(|(rank, _)| rank), place)
    }

    /// Moves what this rank sends to itself, and packs what goes with the note.
    fn begin(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        if self.plan.readers().is_some() && !place.has_room(tools.pml) {
            return None;
        }
        let ranks = self.met.len();
        if (0..ranks).any(|rank| self.plan.into.bytes(rank) >= peek::BYTES_MIN) {
            peek::tell_what_is_seen(place, tools.pml.bml_mut());
        }
        if self.is_plain {
            for (block, range, piece) in self.plan.own() {
                let bytes = 0..range.end - range.start;
                let Some(region) = direct::block(&self.rows, block, range) else { continue };
                let moved = Stretch::own(region, bytes).and_then(|from| {
                    Shared::take(&self.rows, &piece, &from, tools, &mut self.work)
                });
                self.work.started(moved);
            }
        }
        if !self.plan.is_noted() {
            (self.is_direct, self.is_peeked) = self.offer(place, tools.pml.bml_mut());
            return Some(Stage::Waiting);
        }
        for piece in self.plan.noted() {
            let packed = place.area.fill_note(&self.rows, &piece, tools, &mut self.work);
            self.work.started(packed);
        }
        Some(Stage::Exposing)
    }

    /// Whether others read what this rank sends where it lies, and whether by the kernel: it writes a key for each that does.
    fn offer(&self, place: &Place<'_>, bml: &mut Bml) -> (bool, bool) {
        let ranks = self.met.len();
        let receivers = || self.plan.receivers();
        let bytes: u64 = receivers().map(|rank| self.plan.out.bytes(rank)).sum();
        let is_worth = |each: u64| {
            let least = each.saturating_mul(receivers().count() as u64).max(1);
            self.is_plain && ranks <= direct::RANKS_MAX && bytes >= least
        };
        let region = |rank: usize| {
            let (block, range) = self.plan.only_block(rank)?;
            direct::block(&self.rows, block, range)
        };
        let mut is_mapped =
            |rank: usize| direct::write_key(region(rank)?, (Side::Input, rank), place, bml);
        if is_worth(direct::BYTES_MIN) && receivers().all(|rank| is_mapped(rank).is_some()) {
            return (true, false);
        }
        let mut is_peeked = |rank: usize| {
            let seen = region(rank).filter(|_| peek::is_seen(rank, place))?;
            peek::write_key(seen, rank, place, bml)
        };
        let is_peeked = is_worth(peek::least(receivers().count()))
            && receivers().all(|rank| is_peeked(rank).is_some());
        (is_peeked, is_peeked)
    }

    /// Fragments of what this rank sends.
    fn sends(&self) -> u64 {
        if self.is_direct { 1 } else { self.plan.sends }
    }

    /// The directory.
    fn directory(&self) -> Vec<[u8; routes::ENTRY_BYTES]> {
        let entry = |rank: usize| match self.is_direct {
            true => self.plan.direct_entry(rank),
            false => self.plan.entry(rank).write(),
        };
        (0..self.met.len()).map(entry).collect()
    }

    /// Fills the slot, once it is free, if there is something left to send.
    fn expose(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        if self.fragment >= self.sends() {
            return Ok(Some(Stage::Exposing));
        }
        let own = (place.rank(), slot(self.first, self.fragment));
        let filled = Filled {
            readers: self.plan.readers().unwrap_or(Readers::One(place.rank())),
            round: self.course.round,
            until: Moment::new(self.course.round, done(self.fragment)),
            others_write: false,
        };
        if !place.claim(own.1, filled, tools.pml)? {
            return Ok(None);
        }
        if self.fragment == 0 {
            let entries = self.directory();
            self.work.started(place.shared.write_directory(own, entries.as_flattened()));
        }
        for piece in self.plan.input(self.fragment).filter(|_| !self.is_direct) {
            let packed = place.shared.fill(&self.rows, &piece, own, tools, &mut self.work);
            self.work.started(packed);
        }
        Ok(Some(Stage::Exposing))
    }

    /// Tells the others that this fragment's bytes are there, and before the first what this rank calls.
    fn exposed(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Stage {
        if self.fragment > 0 {
            if self.fragment < self.sends() {
                self.course.report(place, tools, exposed(self.fragment));
            }
            return Stage::Collecting;
        }
        self.course.introduce();
        if let Some(readers) = self.plan.readers() {
            let note = self.write_note(place.area);
            place.seat.publish(&place.board, LONG, note, readers);
            place.ring(tools.pml, readers);
        }
        Stage::Meeting
    }

    /// The next rank from which something is expected in this stage, and comes in a cell or note of another's.
    fn source(&self, place: &Place<'_>) -> Option<usize> {
        let rank = self.turn_of(place);
        (self.at < self.met.len()).then_some(rank)
    }

    /// Beginning with the next rank, so that not all read the same slot at once.
    fn turn_of(&self, place: &Place<'_>) -> usize {
        (place.rank() + 1 + self.at) % self.met.len()
    }

    /// Reads the notes of all that send something to this rank.
    fn meet(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        while self.at < self.met.len() {
            let rank = self.turn_of(place);
            let expected = self.plan.into.bytes(rank);
            if rank != place.rank() && expected > 0 {
                let Some(mark) = place.note(tools.pml, rank)? else { return Ok(None) };
                self.met[rank] = Some(self.read_note(rank, mark.kind, place, tools)?);
            }
            self.at += 1;
        }
        let fragments = self.met.iter().enumerate().map(|(rank, lies)| match lies {
            Some(Lies::Slots { cell, .. }) => self.plan.into.bytes(rank).div_ceil(cell.step),
            Some(Lies::Noted | Lies::Direct { .. } | Lies::Peeked { .. }) => 1,
            None => 0,
        });
        self.fragments = fragments.max().unwrap_or(0).max(self.sends()).max(1);
        self.at = 0;
        Ok(Some(Stage::Collecting))
    }

    /// Reads what this rank gets.
    fn collect(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Result<Next, CollError> {
        let mut read_at_once = 0;
        while self.at < self.met.len() {
            let rank = self.turn_of(place);
            let expected = self.plan.into.bytes(rank);
            let lies = match &self.met[rank] {
                None if rank == place.rank() => self.own_cell(),
                lies => lies.clone(),
            };
            match lies {
                Some(Lies::Noted) if self.fragment == 0 => {
                    for piece in self.plan.output(rank, 0..expected, 0) {
                        let bytes = piece.at..piece.at + piece.range.end - piece.range.start;
                        let source = match rank == place.rank() {
                            true => Stretch::noted(place.area, self.plan.own_in_note(), bytes),
                            false => Stretch::kept(place.area, rank, bytes),
                        };
                        let taken = source.and_then(|source| {
                            Shared::take(&self.rows, &piece, &source, tools, &mut self.work)
                        });
                        self.work.started(taken);
                    }
                }
                Some(Lies::Slots { first, cell }) => {
                    let window = window(self.fragment, cell.step, expected);
                    if !window.is_empty() && rank != place.rank() {
                        let step = exposed(self.fragment);
                        // Its note was the first step's report.
                        let reached = |course: &Course, place: &mut Place<'_>| {
                            step <= exposed(0) || course.reached(rank, step, place)
                        };
                        if !self.course.wait(rank, place, tools, reached)? {
                            return Ok(None);
                        }
                    }
                    let slot = (rank, slot(first, self.fragment));
                    for piece in self.plan.output(rank, window, cell.at) {
                        let bytes = piece.at..piece.at + piece.range.end - piece.range.start;
                        let taken = Stretch::slot(place.shared, slot, bytes).and_then(|source| {
                            Shared::take(&self.rows, &piece, &source, tools, &mut self.work)
                        });
                        self.work.started(taken);
                    }
                }
                Some(Lies::Direct { mapping }) if self.fragment == 0 => {
                    for piece in self.plan.output(rank, 0..expected, 0) {
                        let bytes = piece.at..piece.at + piece.range.end - piece.range.start;
                        let taken = Stretch::mapped(&mapping, bytes).and_then(|source| {
                            Shared::take(&self.rows, &piece, &source, tools, &mut self.work)
                        });
                        self.work.started(taken);
                    }
                }
                Some(Lies::Peeked { key }) if self.fragment == 0 => {
                    if read_at_once > AT_ONCE_MAX {
                        return Ok(None);
                    }
                    self.peek(rank, &key, place, tools)?;
                    read_at_once += expected;
                }
                _ => {}
            }
            self.at += 1;
        }
        Ok(Some(Stage::Unpacking))
    }

    /// Reads by the kernel what a rank sends to this one.
    fn peek(
        &mut self,
        rank: usize,
        key: &RemoteKey,
        place: &Place<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<(), CollError> {
        let process = place.circle.process(rank).unwrap_or(u32::MAX);
        let expected = self.plan.into.bytes(rank);
        for piece in self.plan.output(rank, 0..expected, 0) {
            let work = (&mut self.bounce, &mut self.work);
            let read = peek::read_to(&self.rows, &piece, (process, key, piece.at), work, tools);
            read.map_err(|unread| place.unread(rank, unread, self.torn(place), tools.pml))?;
        }
        Ok(())
    }

    /// Where what this rank sends to itself lies, if that does not go at once.
    fn own_cell(&self) -> Option<Lies> {
        match self.is_plain {
            true => None,
            false if self.plan.is_noted() => Some(Lies::Noted),
            false => Some(Lies::Slots { first: self.first, cell: self.plan.own_cell()? }),
        }
    }

    /// A fragment is over.
    fn turn(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Stage {
        self.fragment += 1;
        if self.fragment < self.fragments {
            if self.fragment >= self.sends() {
                // Who still sends says so with the next fragment.
                self.course.report(place, tools, done(self.fragment - 1));
            }
            return Stage::Waiting;
        }
        self.course.end(place, tools);
        Stage::Recalling
    }
}
