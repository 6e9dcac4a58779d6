//! How a rank tells others how far it is in a collective of many steps, hears of them, and how it fails.

use std::sync::atomic::{Ordering, fence};

use gapless_sync::board::{Moment, Readers};

use super::Place;
use super::introduction::notice;
use super::plan::FAILED;
use crate::execute::act::Tools;
use crate::execute::error::CollError;

/// A collective of many steps, as this rank and others see each other in it.
#[derive(Debug)]
pub(super) struct Course {
    /// The round that it began in.
    pub(super) round: u64,
    /// Whether others can know what this rank calls.
    introduced: bool,
    /// Whether the round of failures has begun.
    turned: bool,
}

impl Course {
    /// One that begins in this round.
    pub(super) fn new(round: u64) -> Course {
        Course { round, introduced: false, turned: false }
    }

    /// The first note is published now; whether it was before.
    pub(super) fn introduce(&mut self) -> bool {
        std::mem::replace(&mut self.introduced, true)
    }

    /// Reports a step.
    pub(super) fn report(&self, place: &mut Place<'_>, tools: &mut Tools<'_>, step: u32) {
        place.seat.report(&place.board, Moment::new(self.round, step));
        place.ring(tools.pml, Readers::All);
    }

    /// All is over here, and well.
    pub(super) fn end(&self, place: &mut Place<'_>, tools: &mut Tools<'_>) {
        place.seat.report(&place.board, Moment::last(self.round));
        place.ring(tools.pml, Readers::All);
    }

    /// Whether a rank has come so far.
    pub(super) fn reached(&self, rank: usize, step: u32, place: &mut Place<'_>) -> bool {
        place.seat.reached(&place.board, rank, Moment::new(self.round, step))
    }

    /// Whether a rank whose note was read has come so far, as `reached` says.
    ///
    /// # Errors
    /// It never will, or it has failed.
    pub(super) fn wait(
        &mut self,
        rank: usize,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
        reached: impl Fn(&Course, &mut Place<'_>) -> bool,
    ) -> Result<bool, CollError> {
        if !reached(self, place) {
            let Some(loss) = place.loss(tools.pml, rank) else { return Ok(false) };
            // It may have come so far before.
            if !reached(self, place) {
                return Err(loss);
            }
        }
        if place.seat.has_left(rank) && place.seat.foretells(&place.board, rank, self.round, FAILED)
        {
            self.next_round(place);
            return Err(notice(rank, place));
        }
        Ok(true)
    }

    fn next_round(&mut self, place: &mut Place<'_>) {
        if !std::mem::replace(&mut self.turned, true) {
            place.seat.turn();
        }
    }

    /// Nothing goes on here any more, and others may still read this rank's buffers where they lie: what they read is not to
    /// be used.
    pub(super) fn give_up(&self, place: &mut Place<'_>) {
        place.seat.report(&place.board, Moment::given_up(self.round));
        // The memory may become something else only after the report.
        fence(Ordering::SeqCst);
    }

    /// One of these ranks has given up while this one read its buffers: what was read may be anything.
    pub(super) fn torn(
        &self,
        mut read: impl Iterator<Item = usize>,
        place: &Place<'_>,
    ) -> Option<CollError> {
        // What was read was read before the reports are.
        fence(Ordering::Acquire);
        // Who fails in good order lets others read until they are done.
        let rank = read.find(|rank| place.seat.has_given_up(&place.board, *rank, self.round))?;
        Some(CollError::GaveUp { rank: place.circle.rank(rank) })
    }

    /// The first of these ranks that may still read this rank's buffers.
    pub(super) fn user(
        &self,
        mut readers: impl Iterator<Item = usize>,
        place: &mut Place<'_>,
    ) -> Option<usize> {
        let last = Moment::last(self.round);
        let (me, seat, board) = (place.rank(), &mut *place.seat, &place.board);
        readers.find(|rank| {
            let over =
                seat.reached(board, *rank, last) || !seat.is_behind(board, *rank, self.round);
            *rank != me && !over
        })
    }

    /// Whether none of these ranks reads this rank's buffers any more.
    pub(super) fn recall<R: Iterator<Item = usize>>(
        &self,
        readers: impl Fn() -> R,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> bool {
        while let Some(rank) = self.user(readers(), place) {
            if place.loss(tools.pml, rank).is_none() {
                return false;
            }
            place.seat.excuse(rank);
        }
        true
    }

    /// Tells the others that this rank fails, and why; `false`: a reader of an earlier note is behind.
    pub(super) fn tell(
        &mut self,
        failure: Option<&CollError>,
        place: &mut Place<'_>,
        tools: &mut Tools<'_>,
    ) -> bool {
        // Those that wait for the first note find the notice in its place.
        let early = !self.introduced;
        if !early {
            self.next_round(place);
        }
        if !place.has_room(tools.pml) {
            return false;
        }
        if let Some(failure) = failure {
            let notice = failure.notice(place.circle.own());
            place.seat.publish(&place.board, FAILED, &notice, Readers::All);
        }
        place.seat.report(&place.board, Moment::failed(self.round));
        place.seat.turn();
        if early {
            place.seat.turn();
        }
        place.seat.finish(&place.board);
        place.ring(tools.pml, Readers::All);
        true
    }
}
