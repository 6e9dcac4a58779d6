//! Puts and gets of which the target has a notice; MPI 4.1 has no such thing.

use super::Window;
use super::operate::Target;
use crate::error::Error;
use crate::page_locked::devices_for;
use crate::raw::request::Request;
use gapless_engine::Typed;
use gapless_mem::{DeviceError, Region};
use gapless_osc::{Header, ReadEnds, WindowCall};

impl Window {
    /// [`put`](Window::put), with a notice: when the data is in the target's memory, its counter goes up by one.
    /// [`gapless::Window::put_notify`](crate::Window::put_notify) says what holds.
    ///
    /// # Errors
    /// As [`put`](Window::put); there is no such counter.
    ///
    /// # Safety
    /// As [`put`](Window::put).
    pub unsafe fn put_notify(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        counter: u32,
    ) -> Result<(), Error> {
        let at = self.at(origin, (rank, displacement), target).notified(Some(counter));
        // SAFETY: the caller's promise.
        let put = || unsafe { self.put_at("put_notify", origin, at) };
        self.timed(WindowCall::Put, origin.packed_bytes(), put)
    }

    /// [`get`](Window::get), with a notice: when the target's memory has been read, its counter goes up by one.
    ///
    /// # Errors
    /// As [`get`](Window::get); there is no such counter.
    ///
    /// # Safety
    /// As [`get`](Window::get).
    pub unsafe fn get_notify(
        &self,
        into: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        counter: u32,
    ) -> Result<(), Error> {
        let at = self.at(into, (rank, displacement), target).notified(Some(counter));
        // SAFETY: the caller's promise.
        let get = || unsafe { self.get_at("get_notify", into, at, ReadEnds::Later) };
        self.timed(WindowCall::Get, into.packed_bytes(), get).map(drop)
    }

    /// [`rput`](Window::rput), with a notice, which comes when the request ends well.
    ///
    /// # Errors
    /// As [`put_notify`](Window::put_notify).
    ///
    /// # Safety
    /// As [`rput`](Window::rput).
    pub unsafe fn rput_notify(
        &self,
        origin: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        counter: u32,
    ) -> Result<Request, Error> {
        let at = self.at(origin, (rank, displacement), target).notified(Some(counter));
        // SAFETY: the caller's promise.
        unsafe { self.rput_at("rput_notify", origin, at) }
    }

    /// [`rget`](Window::rget), with a notice.
    ///
    /// # Errors
    /// As [`get_notify`](Window::get_notify).
    ///
    /// # Safety
    /// As [`rget`](Window::rget).
    pub unsafe fn rget_notify(
        &self,
        into: &Typed,
        rank: u32,
        displacement: i64,
        target: Target<'_>,
        counter: u32,
    ) -> Result<Request, Error> {
        let at = self.at(into, (rank, displacement), target).notified(Some(counter));
        // SAFETY: the caller's promise.
        unsafe { self.rget_at("rget_notify", into, at) }
    }

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
