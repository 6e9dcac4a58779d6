//! The counters of notices; MPI 4.1 has no such thing.

use super::Window;
use crate::error::Error;
use crate::page_locked::devices_for;
use gapless_mem::{DeviceError, Region};
use gapless_osc::Header;

impl Window {
    /// How many notices this rank has got by a counter and not taken.
    /// [`gapless::Window::notices`](crate::Window::notices) says more.
    ///
    /// # Errors
    /// There is no such counter.
    #[inline]
    pub fn notices(&self, counter: u32) -> Result<u64, Error> {
        Ok(self.inner.notices(self.shared(), counter)?)
    }

    /// The same, and takes them: the counter is 0 again.
    ///
    /// # Errors
    /// There is no such counter.
    pub fn take_notices(&self, counter: u32) -> Result<u64, Error> {
        Ok(self.inner.take_notices(self.shared(), counter)?)
    }

    /// Page-locks this rank's counters for the open devices whose kernels reach memory of the host, and tells where
    /// they are. [`gapless::Window::register_notices`](crate::Window::register_notices) says what holds.
    ///
    /// # Errors
    /// A driver refuses.
    pub fn register_notices(&mut self) -> Result<Option<Region>, Error> {
        if !self.header.is_registered() {
            let bytes = self.header.region().len();
            let devices = self.shared().with(|state| devices_for(state, bytes))?;
            self.header.register(devices)?;
        }
        let (first, all) = (Header::bytes(self.size() as usize, 0), self.inner.notice_counters());
        let counters = self.header.region().sub(first, 8 * u64::from(all));
        let counters = counters.map_err(DeviceError::from)?;
        Ok(Some(counters).filter(|_| self.header.is_registered() && all > 0))
    }

    /// Waits until this rank has got so many notices by a counter, and gives how many it has got. `group`: the ranks
    /// that give them; with none, any.
    ///
    /// # Errors
    /// There are fewer, and one of the group is lost; without a group, all others are. There is no such counter, or
    /// rank.
    pub fn wait_notices(&self, counter: u32, at_least: u64, group: &[u32]) -> Result<u64, Error> {
        self.inner.wait_notices(self.shared(), (counter, at_least), group)
    }
}
