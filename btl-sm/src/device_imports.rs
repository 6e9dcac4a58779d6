//! Peers' device memory: what they exported, and what devices of ours have mapped of it.
//!
//! The owner sends what its device exported once, before the first key that names it. It is imported
//! whole, by the device that is to use it, when it is first asked for. Imports nobody uses are kept up
//! to a bound in bytes and in number and then released, least recently used first; those in use are
//! counted and outlive everything. When the owner wants the memory back, the last of them is reported.

use crate::export_tracking::ImportGuard;
use crate::wire::DeviceShare;
use gapless_btl::{LinkError, MapError, Mapping, PeerId};
use gapless_mem::{Device, Export, Lease, Region, Space};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A buffer of a peer.
type Name = (PeerId, u64);

/// Imports that have been released: reported from any thread.
#[derive(Debug, Default)]
struct Released {
    list: Mutex<Vec<Name>>,
    any: AtomicBool,
}

/// A buffer that a device of ours has imported, released when dropped.
struct Reach {
    name: Name,
    device: Arc<dyn Device>,
    /// All of it.
    region: Region,
    released: Arc<Released>,
    /// Its owner hears of the end.
    _guard: Option<Arc<ImportGuard>>,
}

impl Drop for Reach {
    fn drop(&mut self) {
        #[allow(unsafe_code, reason = "gives back what `DeviceImports::import` was given")]
        // SAFETY: `import` got the region from this device and gave it to this value alone; whatever
        // uses it holds this value.
        let released = unsafe { self.device.release(self.region) };
        if let Err(error) = released {
            tracing::warn!(%error, "a device did not let go of a peer's memory");
        }
        self.released.list.lock().unwrap_or_else(PoisonError::into_inner).push(self.name);
        self.released.any.store(true, Ordering::Release);
    }
}

/// A buffer as one device of ours knows it.
struct Import {
    device: Arc<dyn Device>,
    /// Found again while anybody uses it.
    reach: Weak<Reach>,
    /// Kept although perhaps nobody does.
    kept: Option<Arc<Reach>>,
    /// When it was last asked for, by the cache's own count.
    used: u64,
}

/// What a peer has shared.
struct Offer {
    kind: u8,
    len: u64,
    bytes: Box<[u8]>,
    /// Whether a descriptor belongs to it; it may have been lost.
    has_file: bool,
    file: Option<OwnedFd>,
    imports: Vec<Import>,
}

/// The device memory of all peers.
pub(crate) struct DeviceImports {
    known: BTreeMap<Name, Offer>,
    /// Imports that are not known to have been released.
    live: BTreeMap<Name, u32>,
    /// Whose owners want them back.
    leaving: HashSet<Name>,
    /// Of those, what nothing uses any more: the owners are to be told.
    awaited: Vec<Name>,
    released: Arc<Released>,
    clock: u64,
    kept: usize,
    kept_bytes: u64,
    max_bytes: u64,
    max_entries: usize,
    /// Peers, and spaces of ours, of which it was said that memory cannot be mapped.
    said: HashSet<(u32, Space)>,
}

fn corrupt(what: String) -> LinkError {
    LinkError::Corrupt { what }
}

impl DeviceImports {
    pub(crate) fn new(max_bytes: u64, max_entries: usize) -> DeviceImports {
        DeviceImports {
            known: BTreeMap::new(),
            live: BTreeMap::new(),
            leaving: HashSet::new(),
            awaited: Vec::new(),
            released: Arc::default(),
            clock: 0,
            kept: 0,
            kept_bytes: 0,
            max_bytes,
            max_entries,
            said: HashSet::new(),
        }
    }

    pub(crate) fn knows(&self, peer: PeerId, number: u64) -> bool {
        self.known.contains_key(&(peer, number))
    }

    /// A peer shares a buffer; `file` is `None` if there is none or if this process had no room
    /// for it. Then the buffer is known, but cannot be mapped.
    ///
    /// # Errors
    /// It broke the rules.
    pub(crate) fn offered(
        &mut self,
        peer: PeerId,
        shared: DeviceShare<'_>,
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let DeviceShare { kind, has_file, buffer: number, len, bytes } = shared;
        if file.is_some() && !has_file {
            return Err(corrupt("a device's memory with one descriptor too many".to_owned()));
        }
        if self.leaving.contains(&(peer, number)) || self.knows(peer, number) {
            return Err(corrupt(format!("buffer {number} was shared twice")));
        }
        let bytes = bytes.into();
        let offer = Offer { kind, len, bytes, has_file, file, imports: Vec::new() };
        self.known.insert((peer, number), offer);
        Ok(())
    }

    /// A peer wants a buffer back. Gives whether it can be told so at once.
    pub(crate) fn freed(&mut self, peer: PeerId, number: u64) -> bool {
        self.drop_offer((peer, number));
        // What was just dropped has reported itself.
        self.collect();
        if self.live.contains_key(&(peer, number)) {
            self.leaving.insert((peer, number));
            return false;
        }
        true
    }

    fn drop_offer(&mut self, name: Name) {
        let Some(offer) = self.known.remove(&name) else { return };
        let kept = offer.imports.iter().filter(|import| import.kept.is_some()).count();
        self.kept -= kept;
        self.kept_bytes -= offer.len.saturating_mul(kept as u64);
    }

    /// Forgets a peer. What is in use stays until it is not.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.leaving.retain(|(owner, _)| *owner != peer);
        self.awaited.retain(|(owner, _)| *owner != peer);
        let names: Vec<_> = self.known.keys().filter(|name| name.0 == peer).copied().collect();
        names.into_iter().for_each(|name| self.drop_offer(name));
    }

    /// Whether imports were released that nobody has been told of.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.released.any.load(Ordering::Relaxed) || !self.awaited.is_empty()
    }

    /// Looks at what was released.
    fn collect(&mut self) {
        self.released.any.store(false, Ordering::Relaxed);
        let mut list = self.released.list.lock().unwrap_or_else(PoisonError::into_inner);
        let names = std::mem::take(&mut *list);
        drop(list);
        for name in names {
            let Some(count) = self.live.get_mut(&name) else { continue };
            *count -= 1;
            if *count == 0 {
                self.live.remove(&name);
                if self.leaving.remove(&name) {
                    self.awaited.push(name);
                }
            }
        }
    }

    /// What owners wait to hear of.
    pub(crate) fn take_awaited(&mut self) -> Vec<(PeerId, u64)> {
        self.collect();
        std::mem::take(&mut self.awaited)
    }

    /// Maps `len` bytes at `offset` of a buffer, for work in the space `user`.
    ///
    /// # Errors
    /// They leave it; no device of ours can; the device refused.
    pub(crate) fn map(
        &mut self,
        name: Name,
        offset: u64,
        len: u64,
        user: Space,
        (devices, guard): (&[Arc<dyn Device>], Option<&Arc<ImportGuard>>),
    ) -> Result<Mapping, MapError> {
        let kind = self.offer(name, offset, len)?.kind;
        let serves = |device: &&Arc<dyn Device>| {
            let space = device.space();
            let shares = device.abilities().shares;
            shares.map(NonZeroU8::get) == Some(kind) && (user.cpu_accessible() || user == space)
        };
        let mut refused = None;
        for device in devices.iter().filter(serves) {
            match self.import(name, device, guard) {
                Ok(reach) => {
                    let region = reach.region.sub(offset, len);
                    let region = region.map_err(|e| MapError::BadKey { what: e.to_string() })?;
                    #[allow(unsafe_code, reason = "vouches for what a device has imported")]
                    // SAFETY: `region` lies in what the device imported, and has until `reach` is dropped.
                    let lease = unsafe { Lease::new(region, reach) };
                    #[allow(unsafe_code, reason = "vouches for what a device has imported")]
                    // SAFETY: the owner frees the memory no earlier than it hears that nobody uses it, or
                    // answers for it; references to memory of a device are made nowhere.
                    return Ok(unsafe { Mapping::new(lease) });
                }
                Err(error) => {
                    self.refused(name.0, device.space(), &error);
                    refused = Some(error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| {
            let reason = format!("no device is attached here that maps it for {user}");
            MapError::Unavailable { reason }
        }))
    }

    /// The buffer of this name, if these bytes lie in it.
    fn offer(&self, name: Name, offset: u64, len: u64) -> Result<&Offer, MapError> {
        let number = name.1;
        let Some(offer) = self.known.get(&name) else {
            let reason = format!("buffer {number} was freed, or never shared");
            return Err(MapError::Unavailable { reason });
        };
        if offset.checked_add(len).is_none_or(|end| end > offer.len) {
            let whole = offer.len;
            let what = format!("{len} bytes at {offset} leave buffer {number} of {whole} bytes");
            return Err(MapError::BadKey { what });
        }
        Ok(offer)
    }

    /// A device does not map a peer's memory. The warning comes once for each space, not with every message.
    fn refused(&mut self, peer: PeerId, space: Space, error: &MapError) {
        let peer = peer.0;
        if self.said.insert((peer, space)) {
            tracing::warn!(peer, %space, %error, "a peer's device memory cannot be mapped here: its messages use slower protocols");
        } else {
            tracing::debug!(peer, %space, %error, "device memory is not mapped");
        }
    }

    /// Imports a buffer through a device.
    fn import(
        &mut self,
        name: Name,
        device: &Arc<dyn Device>,
        guard: Option<&Arc<ImportGuard>>,
    ) -> Result<Arc<Reach>, MapError> {
        let Some(offer) = self.known.get_mut(&name) else {
            return Err(MapError::Unavailable { reason: "it has gone".to_owned() });
        };
        self.clock += 1;
        let at = offer.imports.iter().position(|import| Arc::ptr_eq(&import.device, device));
        let found = at.and_then(|at| offer.imports[at].reach.upgrade());
        let reach = match found {
            Some(reach) => reach,
            None => {
                let region = offer.through(device)?;
                let released = Arc::clone(&self.released);
                let device = Arc::clone(device);
                *self.live.entry(name).or_default() += 1;
                Arc::new(Reach { name, device, region, released, _guard: guard.cloned() })
            }
        };
        let at = at.unwrap_or_else(|| {
            let device = Arc::clone(device);
            offer.imports.push(Import { device, reach: Weak::new(), kept: None, used: 0 });
            offer.imports.len() - 1
        });
        let import = &mut offer.imports[at];
        import.used = self.clock;
        import.reach = Arc::downgrade(&reach);
        if import.kept.is_none() {
            import.kept = Some(Arc::clone(&reach));
            self.kept += 1;
            self.kept_bytes = self.kept_bytes.saturating_add(offer.len);
            self.evict();
        }
        Ok(reach)
    }

    /// Lets go of imports until the bounds hold.
    fn evict(&mut self) {
        while self.kept > self.max_entries || self.kept_bytes > self.max_bytes {
            let all = self.known.values_mut();
            let all =
                all.flat_map(|offer| offer.imports.iter_mut().map(|import| (offer.len, import)));
            let kept = all.filter(|(_, import)| import.kept.is_some());
            let Some((len, oldest)) = kept.min_by_key(|(_, import)| import.used) else { return };
            oldest.kept = None;
            self.kept -= 1;
            self.kept_bytes -= len;
        }
    }
}

impl Offer {
    /// Has a device import it.
    ///
    /// # Errors
    /// Its descriptor is missing, the device refuses, or the buffer is not what was promised.
    fn through(&self, device: &Arc<dyn Device>) -> Result<Region, MapError> {
        let region = device.import(self.export()?)?;
        if region.len() == self.len {
            return Ok(region);
        }
        #[allow(unsafe_code, reason = "gives back what the line above was given")]
        // SAFETY: imported just now, and nobody has learnt of it.
        let _ = unsafe { device.release(region) };
        let what = format!("a buffer of {} bytes instead of {}", region.len(), self.len);
        Err(MapError::Link(corrupt(what)))
    }

    /// What its owner has exported.
    ///
    /// # Errors
    /// Its descriptor is missing.
    fn export(&self) -> Result<Export, MapError> {
        let mut descriptors = Vec::new();
        if self.has_file {
            let file = self.file.as_ref().map(OwnedFd::try_clone);
            match file {
                Some(Ok(file)) => descriptors.push(file),
                _ => {
                    let reason = "its descriptor was lost: too many files are open here".to_owned();
                    return Err(MapError::Unavailable { reason });
                }
            }
        }
        Ok(Export { bytes: self.bytes.to_vec(), descriptors })
    }
}
