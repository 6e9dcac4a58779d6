//! Short collectives on one host, by notes on a shared board: no messages, no requests.
//!
//! The ranks of a communicator that can map each other's memory have one [board](gapless_sync::board) in common: a
//! [`Page`] is one rank's place at it, an [`Opening`] makes them. A collective of up to [`SHORT_BYTES`] then costs each
//! rank stores to a few cache lines of its own, and loads of others'.
//!
//! | operation | notes |
//! |---|---|
//! | bcast, scatter | the root writes one, all others read it, or their part of it |
//! | reduce, gather | all others write one, the root reads them |
//! | allgather, alltoall, reduce_scatter_block, scan, exscan | all write one; each reads those, and the parts, that it needs |
//! | barrier, allreduce | up to 8 ranks: all write one, and each reads all; more: rank 0 reads all, and writes the result |
//!
//! Elements are combined in the order of the ranks, by one call of the reducer with all sources: the result is the same
//! at all ranks and in every run.
//!
//! Whether a call goes this way ([`Page::takes`]) depends only on what all ranks know. Where the buffers lie, and how, does
//! not matter: what is not plain memory of the host is packed and unpacked by the engine.
//!
//! # Waiting
//! [`Page::advance`] does what can be done and says whether the collective has ended; [`Page::look`] is a few loads, and
//! says whether `advance` would get on. So a caller that waits looks some dozen times, makes progress and advances, and so
//! on. Before it sleeps it calls [`Page::doze`], and then sleeps as for the request that it gives: the rank that is waited
//! for then sends a message.
//!
//! # Failures
//! A rank that waits for one that is lost fails, and names it. A rank that cannot go on writes why in the place of its
//! notes, so that those that need them fail, too. All ranks count the same rounds whatever happens, so later collectives
//! are not disturbed. A rank that writes what no rank writes can spoil results, and no more.

#[allow(
    unsafe_code,
    reason = "has pml and engines work on memory that the caller of `Page::begin` grants"
)]
mod act;
#[allow(unsafe_code, reason = "vouches for memory that it allocates and maps")]
mod open;
mod plan;

use std::task::Poll;

use gapless_bml::Rank;
use gapless_engine::{Engine, EngineError, Reducer};
use gapless_mem::Words;
use gapless_pml::{Comm, Pml, PmlError, RequestId};
use gapless_sync::board::{Awaited, Board, Broken, Mark, NOTE_BYTES, Readers, Seat};

use super::act::{Tools, Work};
use super::error::{CollError, NOTICE_BYTES};
use super::memory::Memory;
use super::rows::{Combine, Rows};
use crate::Call;
use crate::build::rows as rows_of;
use crate::schedule::Buffer;
pub use open::Opening;
use plan::{Content, FAILED, Plan, Round, Then};

/// The most bytes that a rank writes in a short collective.
pub const SHORT_BYTES: u64 = NOTE_BYTES as u64;

/// Shared memory with a board in it.
#[derive(Debug)]
struct Shared {
    words: Words,
    ranks: usize,
}

impl Shared {
    /// `None`: it has too few words.
    fn new(words: Words, ranks: usize) -> Option<Shared> {
        Board::new(words.all(), ranks)?;
        Some(Shared { words, ranks })
    }

    #[inline]
    fn board(&self) -> Board<'_> {
        match Board::new(self.words.all(), self.ranks) {
            Some(board) => board,
            None => unreachable!("`new` has found enough words, and they stay"),
        }
    }
}

/// One rank's place at the board that a communicator's ranks share.
#[derive(Debug)]
pub struct Page {
    shared: Shared,
    seat: Seat,
    comm: Comm,
    area: Area,
    going: Option<Going>,
    /// What this rank sleeps for, if it said that it does.
    asleep: Option<Awaited>,
    /// The message that would wake it, once it has slept.
    bell: Option<RequestId>,
}

/// Private memory: what this rank contributes, a result, and the blocks that were read.
#[derive(Debug)]
struct Area {
    memory: Memory,
}

/// A collective that is under way.
#[derive(Debug)]
struct Going {
    plan: Plan,
    rows: Rows,
    combine: Option<Combine>,
    stage: Stage,
    /// Rounds that are over.
    rounds: usize,
    /// Sources of this round whose notes were read, or need not be.
    read: usize,
    /// Its first round's number.
    began: u64,
    work: Work,
    failure: Option<CollError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    Packing,
    Publishing,
    Reading,
    Combining,
    Delivering,
    /// In a call, or a call has unwound.
    Torn,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.work.drain();
    }
}

impl Page {
    fn new(shared: Shared, area: Area, seat: Seat, comm: Comm) -> Page {
        Page { shared, seat, comm, area, going: None, asleep: None, bell: None }
    }

    /// Whether a call on a communicator of so many ranks goes by its page, if it has one. All ranks agree.
    #[must_use]
    pub fn takes(call: &Call<'_>, ranks: usize) -> bool {
        plan::fits(call, ranks)
    }

    /// Begins a collective that the page [takes](Page::takes); [`advance`](Page::advance) carries it out. `number`: its
    /// number among the communicator's collectives, which all ranks count alike ([`pass`](super::Sequencer::pass)). `combine` is needed if it combines elements.
    ///
    /// # Safety
    /// Until `advance` gives [`Poll::Ready`], or the page is dropped, the rows describe memory that is valid, those of the
    /// send buffer for reads while nothing writes it, those of the receive buffer for reads and writes while nothing else
    /// touches it; the two do not overlap.
    ///
    /// # Errors
    /// Nothing has begun: arguments that do not fit ([`CollError::Call`], [`CollError::Row`], [`CollError::Combine`]);
    /// [`CollError::NotShort`]; [`CollError::Abandoned`]: an earlier collective has not ended.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn begin(
        &mut self,
        number: u64,
        call: &Call<'_>,
        rows: Rows,
        combine: Option<Combine>,
    ) -> Result<(), CollError> {
        if self.going.is_some() {
            return Err(CollError::Abandoned);
        }
        let (me, ranks) = (self.comm.rank() as usize, self.shared.ranks);
        call.check(me, ranks).map_err(|error| CollError::Call { error })?;
        if !Page::takes(call, ranks) {
            return Err(CollError::NotShort { operation: call.operation() });
        }
        let (send, recv) = rows_of(call, me, ranks);
        rows.send.check(Buffer::Send, &send)?;
        rows.recv.check(Buffer::Recv, &recv)?;
        if let Some(unit) = call.reduction().map(|of| of.unit) {
            let given = combine.as_ref().map(Combine::bytes);
            if given.is_none_or(|bytes| bytes == 0 || !unit.is_multiple_of(bytes)) {
                return Err(CollError::Combine { unit, given });
            }
        }
        let plan = Plan::new(call, me, ranks);
        self.seat.begin(number);
        self.going = Some(Going {
            plan,
            rows,
            combine,
            stage: Stage::Fresh,
            rounds: 0,
            read: 0,
            began: self.seat.round(),
            work: Work::default(),
            failure: None,
        });
        Ok(())
    }

    /// Goes on as far as it can without waiting. Gives a result once, and `Ok` if nothing is under way.
    ///
    /// # Errors
    /// See [`CollError`]; with the error all buffers are free again.
    pub fn advance(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<(), CollError>> {
        let Some(going) = &mut self.going else { return Poll::Ready(Ok(())) };
        if going.stage == Stage::Torn {
            return Poll::Ready(Err(CollError::Abandoned));
        }
        let board = self.shared.board();
        let mut place =
            Place { board, seat: &mut self.seat, comm: &self.comm, area: &mut self.area };
        let ended = going.advance(&mut place, &mut Tools { pml, engine, reducer });
        if !ended {
            return Poll::Pending;
        }
        if self.asleep.take().is_some() {
            self.seat.get_up(&board);
        }
        let failure = self.going.take().and_then(|mut going| going.failure.take());
        Poll::Ready(failure.map_or(Ok(()), Err))
    }

    /// Whether work of an engine is under way, so that a waiting caller should poll and not sleep.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.going.as_ref().is_some_and(|going| going.work.is_pending())
    }

    /// Gives up what is under way; waits for engines. Ranks that wait for this one go on waiting, and the page is not to
    /// be used any more.
    pub fn give_up(&mut self) {
        if let Some(going) = &mut self.going {
            going.work.drain();
            going.stage = Stage::Torn;
        }
    }

    /// Whether [`advance`](Page::advance) would get on, as far as a few loads tell.
    #[inline]
    pub fn look(&mut self) -> bool {
        let Some(going) = &self.going else { return true };
        let board = self.shared.board();
        match going.awaited(&mut self.seat, &board, self.shared.ranks) {
            Some(Awaited::Note(rank)) => self.seat.look(&board, rank) != Ok(None),
            Some(Awaited::Reader(_)) => false,
            None => true,
        }
    }

    /// Announces that this rank is about to sleep: afterwards call [`advance`](Page::advance) once more, and if that is
    /// pending, sleep until the request has ended. `None`: it must not sleep, because only polling gets on. Announcing
    /// again what was announced is cheap.
    pub fn doze(&mut self, pml: &mut Pml) -> Option<RequestId> {
        let board = self.shared.board();
        let going = self.going.as_ref()?;
        let awaited = going.awaited(&mut self.seat, &board, self.shared.ranks)?;
        let bell = act::bell(pml, &self.comm, self.bell)?;
        let rung = self.bell.replace(bell) != Some(bell);
        if rung || self.asleep != Some(awaited) {
            self.asleep = self.seat.lie_down(&board, awaited).then_some(awaited);
            self.asleep?;
        }
        Some(bell)
    }

    /// Gives up what it has with the endpoint; for a communicator that is freed.
    pub fn close(&mut self, pml: &mut Pml) {
        if let Some(bell) = self.bell.take() {
            // It may have ended.
            let _ = pml.cancel_recv(bell);
            let _ = pml.release(bell);
        }
    }
}

/// What a collective works with, but for the endpoint.
struct Place<'p> {
    board: Board<'p>,
    seat: &'p mut Seat,
    comm: &'p Comm,
    area: &'p mut Area,
}

impl Place<'_> {
    fn rank(&self) -> usize {
        self.comm.rank() as usize
    }

    /// How a rank was lost, if it is.
    fn loss(&self, pml: &mut Pml, rank: usize) -> Option<CollError> {
        let rank = u32::try_from(rank).ok()?;
        let process = Rank(self.comm.process(rank).ok()?);
        let bml = pml.bml_mut();
        bml.reach(process);
        let (culprit, error) = bml.blame(process)?;
        let rank = self.comm.rank_of(culprit.0).unwrap_or(rank);
        Some(CollError::Lost { rank, error: PmlError::PeerLost { rank: culprit.0, error } })
    }

    /// Wakes ranks that sleep for something of this one's.
    fn ring(&mut self, pml: &mut Pml, readers: Readers) {
        let comm = self.comm;
        self.seat.ring(&self.board, readers, |rank| act::ring(pml, comm, rank));
    }
}

impl Going {
    fn round(&self) -> Option<&Round> {
        self.plan.rounds.get(self.rounds)?.as_ref()
    }

    fn fail(&mut self, error: CollError) {
        self.failure.get_or_insert(error);
    }

    fn fail_engine(&mut self, place: &Place<'_>, error: EngineError) {
        self.fail(CollError::Engine { rank: place.comm.rank(), error });
    }

    /// The source whose note is read next.
    fn source(&self) -> Option<usize> {
        let round = self.round()?;
        let source = round.sources.start + self.read;
        (source < round.sources.end).then_some(source)
    }

    /// Which rank is waited for; `None`: none is.
    fn awaited(&self, seat: &mut Seat, board: &Board<'_>, ranks: usize) -> Option<Awaited> {
        match self.stage {
            Stage::Publishing => seat.blocked_by(board).map(Awaited::Reader),
            Stage::Reading => self.source().filter(|rank| *rank < ranks).map(Awaited::Note),
            _ => None,
        }
    }

    /// Goes on as far as it can; whether all is over.
    fn advance(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> bool {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Torn);
            let next = self.step(stage, place, tools);
            self.stage = next.unwrap_or(stage);
            match next {
                Some(Stage::Fresh) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// What comes after a stage: `Fresh` if all is over, `None` if it goes on.
    fn step(
        &mut self,
        stage: Stage,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> Option<Stage> {
        match stage {
            Stage::Fresh => {
                if let Some(span) = &self.plan.input
                    && let Err(error) = place.area.pack(&self.rows, span, tools, &mut self.work)
                {
                    self.work.fail(error);
                }
                Some(Stage::Packing)
            }
            Stage::Packing => {
                self.settle(place)?;
                Some(Stage::Publishing)
            }
            Stage::Publishing => self.publish(place, tools).then_some(Stage::Reading),
            Stage::Reading => {
                while self.read_next(place, tools)? {}
                self.combine(place, tools);
                Some(Stage::Combining)
            }
            Stage::Combining => {
                self.settle(place)?;
                place.seat.turn();
                (self.rounds, self.read) = (self.rounds + 1, 0);
                if self.round().is_some() {
                    return Some(Stage::Publishing);
                }
                self.deliver(place, tools);
                Some(Stage::Delivering)
            }
            Stage::Delivering => {
                self.settle(place)?;
                Some(Stage::Fresh)
            }
            Stage::Torn => None,
        }
    }

    /// Whether the work of engines is over.
    fn settle(&mut self, place: &Place<'_>) -> Option<()> {
        if let Err(error) = self.work.result()? {
            self.fail_engine(place, error);
        }
        Some(())
    }

    /// Publishes this round's note, if there is one; `false`: a reader of an earlier one is behind.
    fn publish(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> bool {
        let Some(Round { publish: Some((content, readers)), note, .. }) = self.round() else {
            return true;
        };
        let (content, readers, note) = (*content, *readers, *note);
        while let Some(rank) = place.seat.blocked_by(&place.board) {
            if place.loss(tools.pml, rank).is_none() {
                return false;
            }
            place.seat.excuse(rank);
        }
        match &self.failure {
            None => {
                let data = place.area.note(content, note);
                place.seat.publish(&place.board, plan::kind(self.plan.operation), data, readers);
            }
            Some(failure) => {
                let notice = failure.notice(place.comm.rank());
                place.seat.publish(&place.board, FAILED, &notice, readers);
            }
        }
        place.ring(tools.pml, readers);
        true
    }

    /// Reads the next note; `false`: there is none left, `None`: it is not there yet.
    fn read_next(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Option<bool> {
        if self.failure.is_some() {
            return Some(false);
        }
        let Some(source) = self.source() else { return Some(false) };
        let Some(round) = self.round() else { return Some(false) };
        if source == place.rank() {
            place.area.take_own(self.read, round);
            self.read += 1;
            return Some(true);
        }
        let mut found = place.seat.look(&place.board, source);
        if found == Ok(None) {
            if let Some(loss) = place.loss(tools.pml, source) {
                // It may have written it before.
                found = place.seat.look(&place.board, source);
                if found == Ok(None) {
                    self.fail(loss);
                    return Some(false);
                }
            } else {
                return None;
            }
        }
        match found {
            Ok(None) => return None,
            Ok(Some(mark)) => match self.refuses(mark, source, place) {
                None => {
                    let (block, part) = place.area.block(self.read, round);
                    place.seat.read(&place.board, source, part, block);
                }
                Some(error) => self.fail(error),
            },
            Err(broken) => self.fail(scribbled(broken)),
        }
        self.read += 1;
        Some(true)
    }

    /// What is wrong with another rank's note.
    fn refuses(&self, mark: Mark, source: usize, place: &Place<'_>) -> Option<CollError> {
        let rank = u32::try_from(source).unwrap_or(u32::MAX);
        let Mark { kind, len } = mark;
        if kind == FAILED {
            let mut notice = [0; NOTICE_BYTES];
            place.seat.read(&place.board, source, 0, &mut notice);
            return Some(CollError::told(notice, rank, place.comm.size()));
        }
        if kind != plan::kind(self.plan.operation) {
            let (theirs, ours) = (plan::operation(kind), self.plan.operation);
            return Some(CollError::Mismatch { rank, theirs, ours });
        }
        let expected = self.round()?.note as u64;
        let sent = u64::from(len);
        (sent != expected).then_some(CollError::Length { rank, sent, expected })
    }

    /// Starts to combine the blocks that were read.
    fn combine(&mut self, place: &mut Place<'_>, tools: &Tools<'_>) {
        let Some(Some(round)) = self.plan.rounds.get(self.rounds) else { return };
        let empty = round.sources.is_empty() || round.part.is_empty();
        if round.then == Then::Join || empty || self.failure.is_some() {
            return;
        }
        let Some(combine) = &self.combine else { return };
        if let Err(error) = place.area.combine(combine, round, tools, &mut self.work) {
            self.work.fail(error);
        }
    }

    /// Nothing on the board is needed any more: tells the others, and starts to unpack the result.
    fn deliver(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) {
        if self.plan.together && self.failure.is_none() {
            place.seat.all_began(self.began);
        } else {
            place.seat.finish(&place.board);
            place.ring(tools.pml, Readers::All);
        }
        if self.failure.is_some() {
            return;
        }
        let (Some(span), Some(last)) =
            (&self.plan.output, self.plan.rounds.iter().flatten().last())
        else {
            return;
        };
        // Who publishes a result has it.
        let published = matches!(last.publish, Some((Content::Result, _)));
        let combined = published || last.then == Then::Combine;
        let begun = place.area.unpack(&self.rows, span, combined, tools, &mut self.work);
        if let Err(error) = begun {
            self.work.fail(error);
        }
    }
}

fn scribbled(broken: Broken) -> CollError {
    let rank = u32::try_from(broken.rank).unwrap_or(u32::MAX);
    CollError::Scribbled { rank, what: broken.to_string() }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "begins collectives")]
mod tests;
