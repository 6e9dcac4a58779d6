//! Puts and gets of which the target has a notice.

use super::{Window, WindowRequest};
use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, OwnedBufferMut, Refused};
use crate::view::{RecvBuffer, SendBuffer};
use gapless_dtype::AnyBits;
use gapless_mem::Region;
#[cfg(doc)]
use gapless_osc::WindowError;
use gapless_osc::{Place, WindowCall};

impl<T: AnyBits, M> Window<T, M> {
    /// [`put`](Window::put), with a notice: when the data is in the target's memory, the target's counter of this
    /// number goes up by one. The target reads it ([`notices`](Window::notices)) or waits for it
    /// ([`wait_notices`](Window::wait_notices)), and needs no other call to use the data, nor an epoch of its own. The
    /// window is made with [counters](crate::WindowBuilder::notices). MPI 4.1 has no such call; it is foMPI-NA's
    /// `MPI_Put_notify`, GASPI's `gaspi_write_notify`, NVSHMEM's `nvshmem_putmem_signal` that adds 1.
    ///
    /// ```
    /// use gapless::{Datatype, Place, Primitive, World};
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = World::init()?;
    /// let comm = world.comm();
    /// let (right, left) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    /// let mut window = comm.window().notices(2).allocate::<f64>(16)?; // a 4 × 4 matrix, and counters 0 and 1
    /// let column = Datatype::vector(4, 1, 4, &Primitive::Double.into())?.commit()?;
    /// window.lock_all()?;
    /// window.put_notify(&[1.0, 2.0, 3.0, 4.0], right, Place::typed(1, &column, 1), 0)?; // becomes column 1
    /// window.put_notify(&[0.0; 0], right, 0, 1)?; // the notice alone
    /// // The left neighbour's column is here when its notice is.
    /// window.wait_notices(0, 1, &[left])?;
    /// assert_eq!([window.load(1)?, window.load(13)?], [1.0, 4.0]);
    /// window.take_notices(0)?; // for the next round
    /// window.wait_notices(1, 1, &[])?;
    /// window.unlock_all()?;
    /// window.free()?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// A notice comes once, behind its data, and is seen with all of it. Notices of one rank come in the order of its
    /// calls, but for those of a [scope](Window::scope); those of several ranks in any order. As other operations, this
    /// ends at the target at a flush or the end of the epoch at the latest. Operations that the target refuses give no
    /// notice, nor do later ones of this rank there until a flush, an unlock or a fence has said so.
    ///
    /// # Errors
    /// As [`put`](Window::put); [`WindowError::NoCounter`].
    #[doc(alias = "MPI_Put_notify")]
    #[doc(alias = "gaspi_write_notify")]
    #[doc(alias = "nvshmem_putmem_signal")]
    pub fn put_notify<'v>(
        &self,
        data: impl SendBuffer<'v>,
        rank: u32,
        at: impl Into<Place>,
        counter: u32,
    ) -> Result<(), Error> {
        let (view, at, began) = (data.into_view(), at.into(), self.began());
        // SAFETY: `view` borrows its memory for reading until this returns.
        let put = unsafe { self.put_typed("put_notify", &view.typed, (rank, &at), Some(counter)) };
        self.note(WindowCall::Put, view.packed_bytes(), began);
        put
    }

    /// [`get`](Window::get), with a notice: when the target's memory has been read, its counter goes up by one. Then
    /// the target may write it again.
    ///
    /// # Errors
    /// As [`get`](Window::get); [`WindowError::NoCounter`].
    #[doc(alias = "MPI_Get_notify")]
    #[doc(alias = "gaspi_read_notify")]
    pub fn get_notify<'v>(
        &self,
        into: impl RecvBuffer<'v>,
        rank: u32,
        at: impl Into<Place>,
        counter: u32,
    ) -> Result<(), Error> {
        let (mut view, at, began) = (into.into_view(), at.into(), self.began());
        let got = self.get_view("get_notify", &mut view, (rank, &at), Some(counter));
        self.note(WindowCall::Get, view.packed_bytes(), began);
        got
    }

    /// [`put_notify`](Window::put_notify) of a buffer that the request takes over, as [`rput`](Window::rput).
    ///
    /// # Errors
    /// As [`put_notify`](Window::put_notify). The buffer comes back with the error.
    pub fn rput_notify<B: OwnedBuffer>(
        &self,
        data: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
        counter: u32,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin_put("rput_notify", data.into(), (rank, at.into()), Some(counter))
    }

    /// [`get_notify`](Window::get_notify) that only begins to read, as [`rget`](Window::rget).
    ///
    /// # Errors
    /// As [`get_notify`](Window::get_notify). The buffer comes back with the error.
    pub fn rget_notify<B: OwnedBufferMut>(
        &self,
        into: impl Into<Owned<B>>,
        rank: u32,
        at: impl Into<Place>,
        counter: u32,
    ) -> Result<WindowRequest<B>, Refused<B>> {
        self.begin_get("rget_notify", into.into(), (rank, at.into()), Some(counter))
    }

    /// How many notices this rank has got by a counter and not taken. Whoever sees a notice sees its data, in any epoch
    /// or none. If all ranks map this one's memory, it is a load, and now and then progress; else it makes progress.
    ///
    /// # Errors
    /// [`WindowError::NoCounter`].
    #[inline]
    pub fn notices(&self, counter: u32) -> Result<u64, Error> {
        self.raw.notices(counter)
    }

    /// The same, and takes them: the counter is 0 again (`gaspi_notify_reset`).
    ///
    /// # Errors
    /// [`WindowError::NoCounter`].
    #[doc(alias = "gaspi_notify_reset")]
    pub fn take_notices(&self, counter: u32) -> Result<u64, Error> {
        self.raw.take_notices(counter)
    }

    /// Page-locks this rank's counters for the devices of this process that are open and whose kernels reach memory of
    /// the host (CUDA), and tells where they are: numbers of 64 bits, counter 0 first. A kernel that polls one finds it
    /// at `CudaDevice::device_address` (feature `cuda`) of the region (`cudaHostGetDevicePointer`),
    /// and reads it by loads that acquire at the scope of the system (`ld.acquire.sys`, `cuda::atomic_ref` with
    /// `cuda::thread_scope_system`). Then it sees the data in the window's memory, by loads that no cache of the
    /// kernel's answers from before. It writes no counter. `None`: there is no such device, or the window has no
    /// counters.
    ///
    /// While a rank reaches this one by messages, some thread of this process makes progress, or the kernel waits for
    /// ever. The counters stay page-locked until the window is freed or dropped, which must find no kernel that reads
    /// them; the driver may wait for all kernels then, and here.
    ///
    /// # Errors
    /// A driver refuses.
    pub fn register_notices(&mut self) -> Result<Option<Region>, Error> {
        self.raw.register_notices()
    }

    /// Waits until this rank has got so many notices by a counter, and gives how many it has got
    /// (`gaspi_notify_waitsome`, `nvshmem_signal_wait_until`). `group`: the ranks whose notices it waits for, so that
    /// the death of one ends this call, and that of others does not; with none, any.
    ///
    /// # Errors
    /// There are fewer, and one of the group is lost; without a group, all others are. [`WindowError::NoCounter`]; no
    /// such rank.
    #[doc(alias = "gaspi_notify_waitsome")]
    #[doc(alias = "nvshmem_signal_wait_until")]
    pub fn wait_notices(&self, counter: u32, at_least: u64, group: &[u32]) -> Result<u64, Error> {
        self.raw.wait_notices(counter, at_least, group)
    }
}
