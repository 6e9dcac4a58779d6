//! Memory for intermediate data that is not the host's.

use gapless_mem::Region;
use std::fmt::Debug;

/// Lends memory to executors: a device's, say, so that data of that device is combined there.
///
/// # Safety
/// A region that [`lend`](Lender::lend) gives is valid memory of so many bytes, which nothing else uses until it is
/// taken back. If it is never taken back, it stays valid until the process ends.
pub unsafe trait Lender: Send + Sync + Debug {
    /// So many bytes, aligned for all elements; what they hold is unknown. `None` if there are not so many: the
    /// executor takes memory of the host.
    fn lend(&self, bytes: u64) -> Option<Region>;

    /// Takes back what was lent.
    ///
    /// # Safety
    /// `lend` gave the region, it was not taken back before, and nothing uses it any more.
    unsafe fn take_back(&self, region: Region);
}
