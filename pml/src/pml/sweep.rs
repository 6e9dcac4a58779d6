//! Messages that nobody will receive: what a layer above drops, so that no later receive takes it.

use crate::comm::Comm;
use crate::error::PmlError;
use crate::pml::Pml;
use crate::wire::Verdict;

impl Pml {
    /// Drops the messages from rank `source` that have come, wait for a receive, and whose tags `stale` selects; gives
    /// how many. Sends of long messages end with [`PmlError::Unreceived`]. It takes time in proportion to all messages
    /// that wait.
    ///
    /// # Errors
    /// A rank that is not there; a communicator of another endpoint, or one that was freed.
    pub fn sweep(
        &mut self,
        comm: &Comm,
        source: u32,
        stale: impl Fn(i32) -> bool,
    ) -> Result<usize, PmlError> {
        self.core.comms.check(comm)?;
        let source = comm.process_of(source, "the source of messages to be dropped")?;
        let context = comm.context();
        let dropped = std::cell::Cell::new(0);
        self.core.refuse_held(&mut self.bml, Verdict::Unreceived, |label, _| {
            let gone = (label.context, label.source) == (context, source) && stale(label.tag);
            dropped.set(dropped.get() + usize::from(gone));
            gone
        });
        Ok(dropped.get())
    }
}
