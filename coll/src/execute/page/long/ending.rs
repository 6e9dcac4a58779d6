//! How long collectives end: in good order, with a failure that others are told, or given up.

use super::{Long, Next, Peer, Place, Stage, Tools};
use crate::execute::error::CollError;
use crate::execute::page::slots::among;

impl Long {
    /// Waits for engines; nothing goes on afterwards. Who reads this rank's buffers is told first.
    pub(in crate::execute::page) fn give_up(&mut self, place: &mut Place<'_>) {
        self.work.drain();
        if !self.own.is_empty() && self.stage != Stage::Over {
            self.course.give_up(place);
        }
        self.stage = Stage::Torn;
    }

    /// A rank that has given up while this one read its buffers: what was read may be anything.
    pub(super) fn torn(&self, place: &Place<'_>) -> Option<CollError> {
        let reads = |peer: &Option<Peer>| peer.as_ref().is_some_and(|it| it.direct.is_some());
        let mut read = (0..).zip(&self.met).filter(|(_, peer)| reads(peer)).peekable();
        read.peek()?;
        self.course.torn(read.map(|(rank, _)| rank), place)
    }

    /// What comes after the last step, or a failure.
    pub(super) fn ending(&self) -> Stage {
        if self.own.is_empty() { Stage::Over } else { Stage::Recalling }
    }

    /// A rank that may still read this rank's buffers.
    pub(super) fn user(&self, place: &mut Place<'_>) -> Option<usize> {
        self.course.user(among(self.plan.readers(), self.met.len()), place)
    }

    /// Waits until nobody reads this rank's buffers any more.
    pub(super) fn recall(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        let readers = || among(self.plan.readers(), self.met.len());
        self.course.recall(readers, place, tools).then_some(Stage::Over)
    }

    /// Tells the others that this rank fails, and why.
    pub(super) fn tell(&mut self, place: &mut Place<'_>, tools: &mut Tools<'_>) -> Next {
        // What was started is over first, however it went.
        let _ = self.work.result()?;
        self.course.tell(self.failure.as_ref(), place, tools).then(|| self.ending())
    }
}
