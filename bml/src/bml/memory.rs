//! Memory: what peers can map, what transports are told of, and how it is taken back.

use super::Bml;
use crate::Rank;
use crate::rail::Rail;
use gapless_btl::{Allocation, LinkError, MapError};
use gapless_mem::{Device, Lasting, Region};
use std::sync::Arc;

impl Bml {
    /// `len` bytes, zeroed and page-aligned, that peers can map; `None` if no transport can map.
    pub fn allocate(&mut self, len: u64) -> Option<Result<Allocation, MapError>> {
        let at = self.allocator?;
        Some(self.rails[at].mapped()?.allocate(len))
    }

    /// Tells all transports of memory that lives long, so that they register it once: [`gapless_btl::Rdma::remember`].
    pub fn remember(&mut self, memory: &Arc<Lasting>) {
        for rdma in self.rails.iter_mut().filter_map(Rail::rdma) {
            rdma.remember(memory);
        }
    }

    /// Makes a device known to all transports, later ones too. Call this after opening a device, at the latest before
    /// the first message that needs it. Asking again is cheap.
    ///
    /// # Errors
    /// The first refusal; the other transports were asked nevertheless. Messages of those that
    /// refused are staged.
    pub fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        if !self.devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            self.devices.push(Arc::clone(device));
            for (at, rail) in self.rails.iter().enumerate() {
                self.near.ask((at, rail.name()), &**device);
            }
        }
        let results = self.rails.iter_mut().map(|rail| rail.btl.attach(device));
        results.fold(Ok(()), Result::and)
    }

    /// Undoes [`attach`](Bml::attach). Gives `false` while work of the device may be in flight: the device stays attached,
    /// to some transports at least, until a later call.
    #[must_use]
    pub fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        if !device.finish() {
            return false;
        }
        let rails = self.rails.iter_mut();
        if !rails.map(|rail| rail.btl.detach(device)).fold(true, |all, one| all & one) {
            return false;
        }
        self.devices.retain(|known| !Arc::ptr_eq(known, device));
        let space = device.space();
        if !self.devices.iter().any(|known| known.space() == space) {
            self.near.forget(space);
        }
        true
    }

    /// The devices that are attached.
    #[must_use]
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// Ends all keys of the device memory that `region` touches, over all transports; see
    /// [`gapless_btl::Mapped::invalidate`]. Returns whether a peer may still have it mapped: then poll and ask again
    /// before freeing it.
    pub fn invalidate(&mut self, region: Region) -> bool {
        let rails = self.rails.iter_mut();
        let mapped = rails.map(|rail| {
            rail.mark_active();
            rail.invalidate(region)
        });
        mapped.fold(false, |one, other| one | other)
    }

    /// Makes `peer`, which is lost, release the memory that `region` touches, over all transports; see
    /// [`gapless_btl::Mapped::revoke_access`]. Returns whether it may still use it: then poll and ask again.
    pub fn revoke_access(&mut self, peer: Rank, region: Region) -> bool {
        let rails = self.rails.iter_mut();
        let used = rails.map(|rail| {
            rail.mark_active();
            rail.revoke_access(peer, region)
        });
        used.fold(false, |one, other| one | other)
    }

    /// Takes the memory that `region` touches, which was granted to `peer`, back at once: over each transport the
    /// peer has let go of it ([`gapless_btl::Mapped::revoke_access`]), or gets no more than the old pages
    /// ([`gapless_btl::Mapped::make_private`]). For whoever gives its messages up. Gives whether nothing of the peer
    /// touches the memory from now on; memory of devices cannot be taken back from a peer that uses it.
    #[must_use]
    pub fn take_back(&mut self, peer: Rank, region: Region) -> bool {
        let rails = self.rails.iter_mut();
        let alone = rails.map(|rail| rail.take_back(peer, region));
        alone.fold(true, |one, other| one & other)
    }
}
