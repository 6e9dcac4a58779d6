//! Taking memory back: the end of an endpoint whose callers want their buffers although requests are under way. It
//! is given up, or a panic has left it, and nobody can tell what is whole.

use crate::drive::drain::Ending;
use crate::pml::Pml;
use gapless_bml::Rank;
use gapless_mem::{abort, abort_on_unwind};

impl Pml {
    /// Takes all memory back: from engines and one-sided operations, which are waited for, and from peers that
    /// were granted memory of the host to write, whatever they are doing (`Bml::take_back`). For an
    /// endpoint that is given up, also after a panic has left a call of it. Requests in flight never end. Afterwards
    /// nothing may be called but what asks for results ([`collect`](Pml::collect),
    /// [`collect_quietly`](Pml::collect_quietly), [`is_done`](Pml::is_done), [`release`](Pml::release)), what concerns
    /// wakers ([`notify`](Pml::notify), [`has_woken`](Pml::has_woken), [`take_woken`](Pml::take_woken),
    /// [`take_all_wakers`](Pml::take_all_wakers)), and `Bml::revoke_access` and `Bml::invalidate`.
    ///
    /// Memory of devices cannot be taken back from peers: they may write it until they let go of it
    /// (`Bml::revoke_access`, `Bml::invalidate`).
    ///
    /// Never unwinds. Where memory cannot be taken back the process aborts, with one line that says why.
    pub fn take_back(&mut self) {
        abort_on_unwind("a panic while memory was taken back", || {
            self.core.drain_engines();
            while self.core.one_sided_reads() > 0 {
                if self.bml.is_torn() {
                    abort("a panic has lost the end of an operation on memory that is taken back");
                }
                self.bml.poll_for(&mut Ending(&mut self.core));
                std::thread::yield_now();
            }
            for (peer, region) in self.core.granted() {
                let alone = self.bml.take_back(Rank(peer), region);
                if !alone && region.space().cpu_accessible() {
                    abort("memory that a peer may still write cannot be taken back");
                }
            }
        });
    }
}

impl Drop for Pml {
    fn drop(&mut self) {
        self.core.drain_engines();
        self.core.rndv.staging.close(&mut self.bml);
    }
}
