//! How long collectives end: in good order, with a failure that others are told, or given up.

use std::sync::atomic::{Ordering, fence};

use gapless_sync::board::{Moment, Readers};

use super::{Long, Next, Peer, Place, Stage, Tools, among};
use crate::execute::error::CollError;
use crate::execute::page::plan::FAILED;

impl Long {
    /// Waits for engines; nothing goes on afterwards. Who reads this rank's buffers is told first.
    pub(in crate::execute::page) fn give_up(&mut self, place: &mut Place<'_>) {
        self.work.drain();
        if !self.own.is_empty() && self.stage != Stage::Over {
            place.seat.report(&place.board, Moment::failed(self.round));
            // The memory may become something else only after the report.
            fence(Ordering::SeqCst);
        }
        self.stage = Stage::Torn;
    }

    /// A rank that has given up while this one read its buffers: what was read may be anything.
    pub(super) fn torn(&self, place: &mut Place<'_>) -> Option<CollError> {
        let reads = |peer: &Option<Peer>| peer.as_ref().is_some_and(|it| it.direct.is_some());
        if !self.met.iter().any(reads) {
            return None;
        }
        // What was read was read before the reports are.
        fence(Ordering::Acquire);
        let mut met = self.met.iter().enumerate();
        let (rank, _) = met.find(|(rank, peer)| {
            // Who fails in good order says why, and lets others read until they are done.
            reads(peer)
                && place.seat.has_failed(&place.board, *rank, self.round)
                && !place.seat.foretells(&place.board, *rank, self.round, FAILED)
        })?;
        Some(CollError::GaveUp { rank: u32::try_from(rank).unwrap_or(u32::MAX) })
    }

    /// What comes after the last step, or a failure.
    pub(super) fn ending(&self) -> Stage {
        if self.own.is_empty() { Stage::Over } else { Stage::Recalling }
    }

    /// A rank that may still read this rank's buffers.
    pub(super) fn user(&self, place: &mut Place<'_>) -> Option<usize> {
        let last = Moment::last(self.round);
        let (me, seat, board) = (place.rank(), &mut *place.seat, &place.board);
        among(self.plan.readers(), self.met.len()).find(|rank| {
            let over =
                seat.reached(board, *rank, last) || !seat.is_behind(board, *rank, self.round);
            *rank != me && !over
        })
    }

    /// Waits until nobody reads this rank's buffers any more.
    pub(super) fn recall(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        while let Some(rank) = self.user(place) {
            place.loss(tools.pml, rank)?;
            place.seat.excuse(rank);
        }
        Some(Stage::Over)
    }

    /// Tells the others that this rank fails, and why.
    pub(super) fn tell(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        // What was started is over first, however it went.
        let _ = self.work.result()?;
        // Those that wait for the first note find the notice in its place.
        let early = !self.introduced;
        if !early {
            self.next_round(place);
        }
        if !place.has_room(tools.pml) {
            return None;
        }
        if let Some(failure) = &self.failure {
            let notice = failure.notice(place.comm.rank());
            place.seat.publish(&place.board, FAILED, &notice, Readers::All);
        }
        place.seat.report(&place.board, Moment::failed(self.round));
        place.seat.turn();
        if early {
            place.seat.turn();
        }
        place.seat.finish(&place.board);
        place.ring(tools.pml, Readers::All);
        Some(self.ending())
    }

    pub(super) fn next_round(&mut self, place: &mut Place<'_>) {
        if !std::mem::replace(&mut self.turned, true) {
            place.seat.turn();
        }
    }
}
