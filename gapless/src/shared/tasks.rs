//! The ends of XTQ that a world has: of its users' puts and calls, of collectives, of windows.

use super::{Shared, WorldStage, WorldState};
use gapless_xtq::Xtq;

impl Shared {
    /// Before a worker is attached to this end: memory for its rings.
    pub(crate) fn prepare_rings(&self, xtq: &Xtq) {
        // If the world cannot be used, attaching the worker says why.
        let _ = self.with(|state| {
            xtq.prepare_rings(state.open()?.bml_mut());
            Ok(())
        });
    }
}

impl WorldState {
    /// Those that may have a worker. They are asked without the world's lock: an answer may take the worker's time.
    pub(crate) fn tasks(&self) -> [Xtq; 2] {
        [&self.xtq, &self.window_tasks].map(Xtq::clone)
    }

    /// All ends.
    fn ends(&self) -> [&Xtq; 4] {
        [&self.xtq, &self.carried, &self.window_tasks, self.calls.xtq()]
    }

    /// Users put no new tasks.
    pub(super) fn close_tasks(&self) {
        [&self.xtq, &self.window_tasks, self.calls.xtq()].into_iter().for_each(Xtq::close);
    }

    /// Whether none of them has anything to send, or to tell.
    #[inline]
    pub(super) fn are_tasks_quiet(&self) -> bool {
        self.ends().into_iter().all(Xtq::is_quiet)
    }

    /// Once all collectives have ended in a world that is being left, nobody needs refused tasks of collectives.
    pub(crate) fn end_tasks(&self) {
        if self.stage != WorldStage::Open && self.collectives.is_idle() {
            self.carried.close();
        }
    }

    /// Whether tasks of this process want the processor of a caller that spins on one of `cores` processors.
    #[inline]
    pub(super) fn want_processor(&self, cores: usize) -> bool {
        self.ends().into_iter().map(Xtq::live).sum::<usize>() >= cores
    }

    /// Whether no task runs here, nor is one on its way from here.
    pub(crate) fn have_tasks_settled(&self) -> bool {
        self.ends().into_iter().all(Xtq::has_settled)
    }
}
