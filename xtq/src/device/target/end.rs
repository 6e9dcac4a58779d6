//! The end of a target: its worker leaves, and what that had goes back.

use super::super::layout::GONE;
use super::WorkerTarget;
use std::sync::Arc;

impl Drop for WorkerTarget {
    fn drop(&mut self) {
        let over =
            self.leave().is_ok() || self.abort().is_ok() || self.worker.is_over() != Ok(false);
        if !over {
            // What it may still touch stays.
            std::mem::forget(std::mem::take(&mut self.rings));
            std::mem::forget(std::mem::take(&mut self.outs));
            std::mem::forget(std::mem::take(&mut self.kept));
            std::mem::forget(std::mem::take(&mut self.layouts));
            std::mem::forget(std::mem::take(&mut self.parts));
            std::mem::forget(std::mem::take(&mut self.stocked));
            std::mem::forget(std::mem::take(&mut self.posted));
            std::mem::forget(std::mem::take(&mut self.spare));
            std::mem::forget(self.words.clone());
            std::mem::forget(Arc::clone(&self.worker));
            return;
        }
        self.say(GONE);
        let rings = self.rings.iter().filter(|ring| ring.reached).map(|ring| &ring.memory);
        let named = self.kept.iter().chain(&self.layouts).flatten();
        let named = named.chain(&self.posted).chain(&self.spare).chain(&self.parts);
        let named = named.chain(&self.stocked);
        rings.chain(&self.outs).chain(named).for_each(|memory| self.forget(memory));
    }
}

impl std::fmt::Debug for WorkerTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "WorkerTarget with {} rings, worker started {} times",
            self.rings.len(),
            self.starts
        )
    }
}
