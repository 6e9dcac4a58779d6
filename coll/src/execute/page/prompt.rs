//! Long collectives of plain memory at once, if nothing delays them: step for step as [`Long`](super::long::Long) does
//! them, so that peers notice no difference.
//!
//! `Long` can stop at each step, and keeps what it needs to go on. That takes a half of the time of a collective of some
//! KiB. Here a rank copies, waits for a few loads' time, and combines. Whatever is unusual is left to `Long`: a rank that is
//! late or lost, a note that says something else, a buffer that peers read where it lies. It goes on where this has stopped
//! ([`Midway`]).

use std::ops::Range;

use gapless_engine::{EngineError, PackedFold};
use gapless_mem::Region;
use gapless_pml::Pml;
use gapless_sync::board::{Moment, Readers};

use super::act::{self, Stretch};
use super::course::Stage;
use super::direct::{self, Offered};
use super::introduction::{agree, introduction};
use super::pieces::{Piece, Plan, combined, done, exposed};
use super::plan::{FAILED, LONG};
use super::slots::{Filled, slot};
use super::{Page, Place};
use crate::schedule::Buffer;

/// The most ranks.
const MET_MAX: usize = 64;

/// The most bytes of all ranks' vectors, or of the blocks of all ranks: what takes longer lets others have a turn in
/// between.
const BYTES_MAX: u64 = 256 << 10;

/// How many bytes of the user's memory a rank that waits has the cache fetch.
const WARM_BYTES: u64 = 8 << 10;

/// Whether a plan can be gone through so, if both buffers are plain memory.
pub(super) fn takes(plan: &Plan, fold: Option<&PackedFold>) -> bool {
    let folds = !plan.reduces() || fold.is_some();
    folds && !plan.is_scan() && plan.ranks() <= MET_MAX && plan.volume() <= BYTES_MAX
}

/// A collective that was begun here, and is gone on with as [`Long`](super::long::Long).
#[derive(Clone, Copy, Debug)]
pub(super) struct Midway {
    /// The round that it began in.
    pub(super) began: u64,
    /// This rank's first slot.
    pub(super) first: usize,
    pub(super) fragment: u64,
    pub(super) stage: Stage,
    /// Of the ranks or pieces that the stage goes through, the next one.
    pub(super) at: usize,
    /// The first slots of ranks whose notes were read.
    pub(super) met: [Option<u8>; MET_MAX],
}

/// Why it goes no further here.
enum Stop {
    /// Nothing has begun.
    Before,
    /// Nothing has begun: others read these buffers where they lie.
    Lends(Offered),
    /// In this stage, which goes through some ranks or pieces and is at this one.
    In(Stage, usize),
}

impl Page {
    /// As [`attempt`](Page::attempt), of a plan that this [takes].
    ///
    /// # Safety
    /// As there.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    #[inline(never)] // its frame is large
    pub(super) unsafe fn attempt_long(
        &mut self,
        number: u64,
        (plan, fold): (&Plan, Option<&PackedFold>),
        (send, recv): (Option<Region>, Option<Region>),
        pml: &mut Pml,
        mut look: impl FnMut() -> bool,
    ) -> bool {
        let own = match plan.own_input() {
            None => None,
            Some((buffer, Range { start, end })) => {
                let whole = if buffer == Buffer::Send { send } else { recv };
                let Some(Ok(own)) = whole.map(|whole| whole.sub(start, end - start)) else {
                    return false;
                };
                Some(own)
            }
        };
        if self.may_begin().is_err() {
            return false;
        }
        self.seat.begin(number);
        let (round, first) = (self.seat.round(), self.slots.next);
        let (_, place) = self.parts();
        let met = [None; MET_MAX];
        let mut prompt =
            Prompt { place, pml, plan, fold, send, recv, own, round, first, fragment: 0, met };
        // SAFETY: the caller's promise.
        match unsafe { prompt.go(&mut look) } {
            Ok(()) => true,
            Err(Stop::Before) => false,
            Err(Stop::Lends(offered)) => {
                self.offered = Some((round, offered));
                false
            }
            Err(Stop::In(stage, at)) => {
                let (fragment, met) = (prompt.fragment, prompt.met);
                let midway = Midway { began: round, first, fragment, stage, at, met };
                self.midway = Some(Box::new(midway));
                false
            }
        }
    }
}

/// A collective that is tried.
struct Prompt<'p> {
    place: Place<'p>,
    pml: &'p mut Pml,
    plan: &'p Plan,
    fold: Option<&'p PackedFold>,
    send: Option<Region>,
    recv: Option<Region>,
    /// What this rank contributes, if that stays as it is while others read it.
    own: Option<Region>,
    round: u64,
    /// This rank's first slot.
    first: usize,
    fragment: u64,
    /// The first slots of ranks whose notes were read.
    met: [Option<u8>; MET_MAX],
}

impl Prompt<'_> {
    /// Goes through all fragments.
    ///
    /// # Safety
    /// As for [`Page::attempt`].
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn go(&mut self, look: &mut impl FnMut() -> bool) -> Result<(), Stop> {
        let (plan, ranks, me) = (self.plan, self.place.shared.ranks, self.place.rank());
        if self.place.seat.blocked_by(&self.place.board).is_some() {
            return Err(Stop::Before);
        }
        let offered = self.offer();
        if !offered.own.is_empty() {
            return Err(Stop::Lends(offered));
        }
        for fragment in 0..plan.fragments {
            self.fragment = fragment;
            // SAFETY: the caller's promise.
            unsafe { self.expose(look) }?;
            if let Some(slice) = plan.combines(fragment) {
                for at in 0..ranks {
                    if !self.wait((me + 1 + at) % ranks, exposed(fragment), look) {
                        return Err(Stop::In(Stage::Gathering, at));
                    }
                }
                // SAFETY: the caller's promise.
                if !unsafe { self.combine(slice) } {
                    return Err(Stop::In(Stage::Gathering, ranks));
                }
                self.is_intact(Stage::Combining)?;
                self.report(combined(fragment));
            }
            // SAFETY: the caller's promise.
            unsafe { self.collect(look) }?;
            self.is_intact(Stage::Unpacking)?;
            if fragment + 1 < plan.fragments && !plan.exposes() {
                // Whoever exposes says so with the next fragment.
                self.report(done(fragment));
            }
        }
        self.place.seat.report(&self.place.board, Moment::last(self.round));
        self.ring();
        if plan.together() && self.met.iter().flatten().count() + 1 == ranks {
            self.place.seat.all_began(self.round);
        }
        Ok(())
    }

    /// This rank's buffers that others read where they lie.
    fn offer(&mut self) -> Offered {
        let input = self.own.filter(|_| self.plan.exposes());
        direct::offer(self.plan, (input, self.recv), &mut self.place, self.pml.bml_mut())
    }

    fn ring(&mut self) {
        self.place.ring(self.pml, Readers::All);
    }

    fn report(&mut self, step: u32) {
        self.place.seat.report(&self.place.board, Moment::new(self.round, step));
        self.ring();
    }

    /// A rank's slot of this fragment.
    fn slot(&self, first: usize) -> usize {
        slot(first, self.fragment)
    }

    /// Fills this rank's slot, and tells the others that it is there, and before that what this rank calls.
    ///
    /// # Safety
    /// As for `go`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn expose(&mut self, look: &mut impl FnMut() -> bool) -> Result<(), Stop> {
        let (fragment, plan) = (self.fragment, self.plan);
        if plan.exposes() {
            let stop = if fragment == 0 { Stop::Before } else { Stop::In(Stage::Waiting, 0) };
            let own = (self.place.rank(), self.slot(self.first));
            while self.place.slot_reader(own.1).is_some() {
                if fragment == 0 || !look() {
                    return Err(stop);
                }
            }
            let filled = Filled {
                readers: plan.readers(),
                round: self.round,
                until: Moment::new(self.round, done(fragment)),
                others_write: false,
            };
            for piece in plan.input(fragment, self.own.is_none()) {
                // SAFETY: the caller's promise; this rank's slot, which nobody reads.
                if unsafe { self.put(&piece, own) }.is_none() {
                    return Err(stop);
                }
            }
            if !matches!(self.place.claim(own.1, filled, self.pml), Ok(true)) {
                return Err(stop);
            }
            if fragment > 0 {
                self.report(exposed(fragment));
            }
        }
        if fragment == 0 {
            let note = introduction(plan, self.place.rank(), self.first, 0);
            self.place.seat.publish(&self.place.board, LONG, &note, Readers::All);
            self.ring();
        }
        Ok(())
    }

    /// Bytes of the user's memory.
    fn users(&self, piece: &Piece) -> Option<Region> {
        let whole = if piece.buffer == Buffer::Send { self.send } else { self.recv };
        whole?.sub(piece.range.start, piece.range.end - piece.range.start).ok()
    }

    /// Copies a piece into a slot.
    ///
    /// # Safety
    /// As for `go`; the slot is this rank's, and nobody reads it.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn put(&self, piece: &Piece, own: (usize, usize)) -> Option<()> {
        let from = self.users(piece)?;
        let range = piece.at..piece.at + from.len();
        let into = Stretch::slot(self.place.shared, own, range).ok()?.region();
        // SAFETY: the caller's promise; a slot is no user's memory.
        unsafe { gapless_mem::copy(&into, &from) }.ok()
    }

    /// Whether a rank has come so far.
    fn wait(&mut self, rank: usize, step: u32, look: &mut impl FnMut() -> bool) -> bool {
        if rank == self.place.rank() {
            return true;
        }
        let moment = Moment::new(self.round, step);
        let mut cold = self.fragment == 0;
        loop {
            if self.met[rank].is_none() && !self.meet(rank) {
                return false;
            }
            let (seat, board) = (&mut *self.place.seat, &self.place.board);
            // The note was the first step's report.
            if self.met[rank].is_some() && (step <= exposed(0) || seat.reached(board, rank, moment))
            {
                return !seat.has_left(rank) || !seat.foretells(board, rank, self.round, FAILED);
            }
            if std::mem::take(&mut cold) {
                self.warm();
            }
            if !look() {
                return false;
            }
        }
    }

    /// Reads a rank's first note, if it is there; `false`: there is something else.
    fn meet(&mut self, rank: usize) -> bool {
        let Ok(found) = self.place.seat.look(&self.place.board, rank) else { return false };
        let Some(mark) = found else { return true };
        let Ok(note) = agree(self.plan, rank, mark, &self.place) else { return false };
        self.met[rank] = u8::try_from(note.first).ok().filter(|_| note.flags == 0);
        self.met[rank].is_some()
    }

    /// Has the cache fetch where this rank will write.
    fn warm(&self) {
        let mut left = WARM_BYTES;
        for (_, _, piece) in (0..).map_while(|index| self.plan.output(self.fragment, index)) {
            let Some(whole) = self.users(&piece) else { return };
            let Ok(first) = whole.sub(0, left.min(whole.len())) else { return };
            gapless_mem::prefetch_to_write(&first);
            left -= first.len();
        }
    }

    /// What a rank contributes.
    fn contributed(&self, rank: usize, range: Range<u64>) -> Result<Stretch, EngineError> {
        if let Some(own) = self.own.filter(|_| rank == self.place.rank()) {
            let start = self.plan.position(self.fragment, range.start);
            return Stretch::own(own, start..start + (range.end - range.start));
        }
        self.in_slot(rank, range)
    }

    fn in_slot(&self, rank: usize, range: Range<u64>) -> Result<Stretch, EngineError> {
        let first = self.met.get(rank).copied().flatten().map_or(self.first, usize::from);
        Stretch::slot(self.place.shared, (rank, self.slot(first)), range)
    }

    /// A rank's slice of the result.
    fn result(&self, rank: usize, slice: Range<u64>) -> Result<Stretch, EngineError> {
        let alone = self.plan.own_result(self.fragment).filter(|_| rank == self.place.rank());
        match alone.zip(self.recv) {
            Some((own, recv)) => Stretch::own(recv, own),
            None => self.in_slot(rank, self.plan.in_slot(&slice)),
        }
    }

    /// Combines a slice of what all ranks contribute; `false`: another way has to be found.
    ///
    /// # Safety
    /// As for `go`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn combine(&self, slice: Range<u64>) -> bool {
        let Some(fold) = self.fold else { return false };
        let Ok(into) = self.result(self.place.rank(), slice.clone()) else { return false };
        let source = |rank: usize| {
            let source = self.contributed(rank, slice.clone()).ok()?.region();
            source.as_ptr().filter(|_| source.len() == into.region().len())
        };
        // SAFETY: the caller's promise for this rank's buffers; slots are valid while the page is there, and who fills one
        // waits for those that read it. The target is this rank's, and nobody reads it now.
        unsafe { act::fold(fold, (0..self.place.shared.ranks).map(source), into.region()) }
    }

    /// Reads what this rank gets.
    ///
    /// # Safety
    /// As for `go`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn collect(&mut self, look: &mut impl FnMut() -> bool) -> Result<(), Stop> {
        for at in 0.. {
            let Some((rank, step, piece)) = self.plan.output(self.fragment, at) else { break };
            if piece.is_empty() {
                continue;
            }
            // SAFETY: the caller's promise.
            if !self.wait(rank, step, look) || unsafe { self.take(rank, step, &piece) }.is_none() {
                return Err(Stop::In(Stage::Collecting, at));
            }
        }
        Ok(())
    }

    /// Copies a piece of what a rank contributes, or has combined, to where it goes.
    ///
    /// # Safety
    /// As for `go`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    unsafe fn take(&self, rank: usize, step: u32, piece: &Piece) -> Option<()> {
        let into = self.users(piece)?;
        let bytes = piece.at..piece.at + into.len();
        let from = match step == exposed(self.fragment) {
            true => self.contributed(rank, bytes),
            false => self.result(self.plan.holder(rank), bytes),
        };
        let from = from.ok()?.region();
        if from == into {
            return Some(());
        }
        // SAFETY: the caller's promise for this rank's buffers; the source is valid, as in `combine`.
        unsafe { gapless_mem::copy(&into, &from) }.ok()
    }

    /// Whether what was read of others can be used. If not, whoever goes on finds that out again, and fails.
    fn is_intact(&self, stage: Stage) -> Result<(), Stop> {
        let met = self.met.iter().enumerate().filter(|(_, first)| first.is_some());
        match self.place.overwritten(met.map(|(rank, _)| rank)) {
            None => Ok(()),
            Some(_) => Err(Stop::In(stage, 0)),
        }
    }
}
