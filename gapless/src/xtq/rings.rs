//! Rings for accelerators: of kernels that put tasks at the worker of another process, and of workers that put on.

use super::{Rank, Tasks};
use crate::error::Error;
use gapless_mem::{Lease, Space};
use gapless_xtq::FarRing;

impl Tasks {
    /// Asks for a ring at a target, into which an accelerator of this process is to put: a kernel of yours
    /// (`GpuLane`, feature `cuda`), or the worker ([`put_on_into`](Tasks::put_on_into)). Send the answer to the target,
    /// which [grants](Tasks::grant_ring) one. `status` is memory of the kernel's GPU, zeroed, into which the target's worker
    /// writes what became of puts ([`RingParts::STATUS_BYTES`](super::device::RingParts::STATUS_BYTES)); without it, that
    /// lies in memory of the host.
    ///
    /// # Errors
    /// The target cannot map the memory; the world was left.
    pub fn ask_for_ring(&self, target: Rank, status: Option<&Lease>) -> Result<Vec<u8>, Error> {
        self.shared.with(|state| {
            let bml = state.open()?.bml_mut();
            Ok(self.xtq.ask_for_ring(bml, target, status)?)
        })
    }

    /// Grants a rank that has asked so a ring of this process's worker; send it the answer, for
    /// [`open_ring`](Tasks::open_ring). `slots` is memory for packets and bodies, zeroed and as long as a ring
    /// ([`RingShape::bytes`](super::device::RingShape::bytes)): of the worker's GPU, so that the worker polls its own memory;
    /// without it, that lies in memory of the host. A worker that puts on needs it there. Statuses in the
    /// initiator's GPU need slots in the worker's. The worker leaves for a moment.
    ///
    /// The tasks of such a ring keep no order with those that the rank's processor puts. If the worker is away, a put into
    /// it starts the worker when this process makes progress; for that it does not sleep in waits from now on.
    ///
    /// # Errors
    /// There is no worker, or it has 32 rings; one of the two processes cannot map the other's memory; the world was left.
    ///
    /// # Safety
    /// Until [`World::finalize`](crate::World::finalize) has returned here and there, nobody but this ring touches the memory
    /// of slots and, at the other rank, of statuses, and both stay allocated.
    pub unsafe fn grant_ring(
        &self,
        to: Rank,
        ask: &[u8],
        slots: Option<Lease>,
    ) -> Result<Vec<u8>, Error> {
        let granted = self.shared.with(|state| -> Result<_, Error> {
            let bml = state.open()?.bml_mut();
            Ok(self.xtq.prepare_ring(bml, to, ask, slots)?)
        })?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.xtq.grant_ring(granted) }?)
    }

    /// Maps a ring that a target has granted. `user` is the space of the GPU whose kernels put into it; of a worker's ring,
    /// [`Space::Host`].
    ///
    /// # Errors
    /// It cannot be mapped; what was sent is none; the world was left.
    pub fn open_ring(&self, target: Rank, grant: &[u8], user: Space) -> Result<FarRing, Error> {
        self.shared.with(|state| {
            let bml = state.open()?.bml_mut();
            Ok(self.xtq.open_ring(bml, target, grant, user)?)
        })
    }

    /// Lets tasks of this process's worker put on into a ring of another one's: `DeviceFunction::Forward`, and functions of
    /// users by `gapless_out`, by the number that this gives. The worker leaves for a moment.
    ///
    /// # Errors
    /// There is no worker, or it has 8 of them; a ring whose slots are not in memory of the host.
    ///
    /// # Safety
    /// The target has granted the ring to this process, and nobody else puts into it.
    pub unsafe fn put_on_into(&self, ring: FarRing) -> Result<u8, Error> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.xtq.put_on_into(ring) }?)
    }

    /// Lets tasks of this process's worker pack and unpack by a layout ([`DeviceFunction::Unpack`], [`DeviceFunction::Pack`]),
    /// by its number, below 32; `None`: such tasks fail. The worker leaves for a moment.
    ///
    /// # Errors
    /// There is no worker, or no such number; it does not leave; the layout is of a device that it does not reach.
    ///
    /// [`DeviceFunction::Unpack`]: super::DeviceFunction::Unpack
    /// [`DeviceFunction::Pack`]: super::DeviceFunction::Pack
    #[cfg(feature = "cuda")]
    pub fn register_layout(
        &self,
        number: u8,
        layout: Option<&super::WorkerLayout>,
    ) -> Result<(), Error> {
        let form = layout.map(|layout| layout.form().clone());
        // SAFETY: it is a form, which nobody writes.
        Ok(unsafe { self.xtq.register_layout(number, form) }?)
    }
}
