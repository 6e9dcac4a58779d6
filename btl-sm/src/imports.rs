//! Peers' allocations: their descriptors, and mappings kept for the next message.
//!
//! The owner sends the descriptor of an allocation once, before the first message that names it, and
//! a notice when it frees it. Mappings nobody uses are kept up to a bound in bytes and in number and
//! then dropped, least recently used first; mappings in use are counted and outlive everything.

use crate::export_tracking::ImportGuard;
use crate::segment::Segment;
use crate::wire::SHARED;
use gapless_btl::{LinkError, MapError, Mapping, PeerId};
use gapless_mem::{Device, Lease};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The system's refusal says nothing about the link.
pub(crate) fn refused(error: LinkError) -> MapError {
    match error {
        LinkError::System { operation, reason } => MapError::System { operation, reason },
        error => MapError::Link(error),
    }
}

/// A mapped allocation, while anybody uses it.
struct MappedImport {
    segment: Segment,
    /// Its owner hears of the end.
    _guard: Option<Arc<ImportGuard>>,
}

/// One allocation of a peer.
struct Import {
    /// `None` if this process had no descriptor to spare when it came.
    file: Option<OwnedFd>,
    len: usize,
    /// Found again while anybody uses it.
    mapped: Weak<MappedImport>,
    /// Kept although perhaps nobody does.
    kept: Option<Arc<MappedImport>>,
    /// When it was last asked for, by the cache's own count.
    used: u64,
}

/// All allocations of all peers.
pub(crate) struct Imports {
    known: HashMap<(PeerId, u64), Import>,
    /// How many of each peer.
    counts: HashMap<PeerId, usize>,
    /// Those that their owners have revoked and that are still used.
    revoked: Vec<(PeerId, u64, Weak<MappedImport>)>,
    clock: u64,
    kept_bytes: u64,
    kept: usize,
    max_bytes: u64,
    max_entries: usize,
}

impl Imports {
    pub(crate) fn new(max_bytes: u64, max_entries: usize) -> Imports {
        Imports {
            known: HashMap::new(),
            counts: HashMap::new(),
            revoked: Vec::new(),
            clock: 0,
            kept_bytes: 0,
            kept: 0,
            max_bytes,
            max_entries,
        }
    }

    /// A peer has sent a descriptor; `None` if this process had none to spare for it. Then the
    /// allocation is known, so that its end is understood, but cannot be mapped.
    ///
    /// # Errors
    /// It broke the rules.
    pub(crate) fn offered(
        &mut self,
        peer: PeerId,
        allocation: u64,
        len: u64,
        file: Option<OwnedFd>,
    ) -> Result<(), LinkError> {
        let corrupt = |what: String| LinkError::Corrupt { what };
        let len =
            usize::try_from(len).map_err(|_| corrupt(format!("an allocation of {len} bytes")))?;
        let same = |(owner, number, _): &(PeerId, u64, _)| (*owner, *number) == (peer, allocation);
        if self.knows(peer, allocation) || self.revoked.iter().any(same) {
            return Err(corrupt(format!("allocation {allocation} was shared twice")));
        }
        self.count_in(peer)?;
        let import = Import { file, len, mapped: Weak::new(), kept: None, used: 0 };
        self.known.insert((peer, allocation), import);
        Ok(())
    }

    pub(crate) fn knows(&self, peer: PeerId, allocation: u64) -> bool {
        self.known.contains_key(&(peer, allocation))
    }

    /// A peer shares one thing more, an allocation or a device's memory.
    ///
    /// # Errors
    /// That is too much.
    pub(crate) fn count_in(&mut self, peer: PeerId) -> Result<(), LinkError> {
        let count = self.counts.entry(peer).or_default();
        if *count >= SHARED {
            let what = format!("more than {SHARED} allocations shared at a time");
            return Err(LinkError::Corrupt { what });
        }
        *count += 1;
        Ok(())
    }

    /// One thing less.
    pub(crate) fn count_out(&mut self, peer: PeerId) {
        if let Some(count) = self.counts.get_mut(&peer) {
            *count -= 1;
        }
    }

    /// A peer has freed an allocation.
    ///
    /// # Errors
    /// It broke the rules.
    pub(crate) fn freed(&mut self, peer: PeerId, number: u64) -> Result<(), LinkError> {
        self.remove(peer, number)?;
        self.count_out(peer);
        Ok(())
    }

    /// A peer wants nothing of an allocation to be used here any more, which is answered once it is so.
    ///
    /// # Errors
    /// It broke the rules.
    pub(crate) fn revoke_access(&mut self, peer: PeerId, number: u64) -> Result<(), LinkError> {
        let import = self.remove(peer, number)?;
        self.revoked.push((peer, number, import.mapped));
        Ok(())
    }

    /// Forgets an allocation.
    fn remove(&mut self, peer: PeerId, number: u64) -> Result<Import, LinkError> {
        let Some(mut import) = self.known.remove(&(peer, number)) else {
            let what = format!("it named allocation {number}, which it has not shared");
            return Err(LinkError::Corrupt { what });
        };
        self.dropped(&import);
        import.kept = None;
        Ok(import)
    }

    /// Whether there is something that [`take_released`](Imports::take_released) would give.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        self.revoked.iter().any(|(_, _, held)| held.strong_count() == 0)
    }

    /// Revoked allocations that nothing uses any more.
    pub(crate) fn take_released(&mut self) -> Vec<(PeerId, u64)> {
        let mut released = Vec::new();
        self.revoked.retain(|(peer, number, held)| {
            let used = held.strong_count() > 0;
            if !used {
                released.push((*peer, *number));
            }
            used
        });
        // What users on other threads wrote comes before the owner hears of it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        released
    }

    fn dropped(&mut self, import: &Import) {
        if import.kept.is_some() {
            self.kept -= 1;
            self.kept_bytes -= import.len as u64;
        }
    }

    /// Forgets a peer.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.counts.remove(&peer);
        self.revoked.retain(|(owner, _, _)| *owner != peer);
        let gone: Vec<_> = self.known.keys().filter(|(owner, _)| *owner == peer).copied().collect();
        for key in gone {
            if let Some(import) = self.known.remove(&key) {
                self.dropped(&import);
            }
        }
    }

    /// Maps `len` bytes at `offset` of an allocation, by its owner and number. New mappings are made known to the
    /// `devices`.
    ///
    /// # Errors
    /// They leave it; it was freed; the system refused.
    pub(crate) fn map(
        &mut self,
        name: (PeerId, u64),
        offset: u64,
        len: u64,
        (devices, guard): (&[Arc<dyn Device>], Option<&Arc<ImportGuard>>),
    ) -> Result<Mapping, MapError> {
        let bad = |what: String| MapError::BadKey { what };
        let allocation = name.1;
        let Some(import) = self.known.get_mut(&name) else {
            let reason = format!("allocation {allocation} was freed, or never shared");
            return Err(MapError::Unavailable { reason });
        };
        let place = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let inside =
            |&(at, len): &(usize, usize)| at.checked_add(len).is_some_and(|end| end <= import.len);
        let Some((at, len)) = place.filter(inside) else {
            return Err(bad(format!(
                "{len} bytes at {offset} leave allocation {allocation} of {} bytes",
                import.len
            )));
        };
        self.clock += 1;
        import.used = self.clock;
        let held = match import.mapped.upgrade() {
            Some(held) => held,
            None => {
                let Some(file) = &import.file else {
                    let reason = "its descriptor was lost: too many files are open here".to_owned();
                    return Err(MapError::Unavailable { reason });
                };
                let segment = Segment::adopt(file, import.len).map_err(refused)?;
                for device in devices {
                    if let Err(error) = segment.register(device) {
                        tracing::debug!(%error, "a mapping is not known to a device");
                    }
                }
                let held = Arc::new(MappedImport { segment, _guard: guard.cloned() });
                import.mapped = Arc::downgrade(&held);
                held
            }
        };
        if import.kept.is_none() {
            import.kept = Some(Arc::clone(&held));
            self.kept += 1;
            self.kept_bytes += import.len as u64;
            self.evict();
        }
        let region = held.segment.region(at, len);
        #[allow(unsafe_code, reason = "vouches for a segment that it has mapped")]
        // SAFETY: `region` lies in the segment, whose length and seals were checked when its file was
        // taken; it stays mapped while it is held.
        let lease = unsafe { Lease::new(region, held) };
        #[allow(unsafe_code, reason = "vouches for a segment that it has mapped")]
        // SAFETY: the segment is mapped for reading and writing, and its seals keep it valid whatever the peer
        // does. "No reference of this process covers" this mapping: references to bytes of it are made nowhere.
        Ok(unsafe { Mapping::new(lease) })
    }

    /// Drops mappings until the bounds hold.
    fn evict(&mut self) {
        while self.kept > self.max_entries || self.kept_bytes > self.max_bytes {
            let kept = self.known.values_mut().filter(|import| import.kept.is_some());
            let Some(oldest) = kept.min_by_key(|import| import.used) else { return };
            oldest.kept = None;
            self.kept -= 1;
            self.kept_bytes -= oldest.len as u64;
        }
    }

    /// The mappings that exist.
    pub(crate) fn for_each_segment(&self, mut visit: impl FnMut(&Segment)) {
        for held in self.known.values().filter_map(|import| import.mapped.upgrade()) {
            visit(&held.segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;
    use crate::wire::{make_key, read_key};
    use gapless_btl::RemoteKey;

    const OWNER: [u8; 16] = [5; 16];
    const PEER: PeerId = PeerId(0);

    fn offer(imports: &mut Imports, allocation: u64, len: usize) -> Segment {
        let (segment, file) = Segment::create(len, false).unwrap();
        imports.offered(PEER, allocation, len as u64, Some(file)).unwrap();
        segment
    }

    fn map(imports: &mut Imports, key: &RemoteKey) -> Result<Mapping, MapError> {
        let [number, offset, len] = read_key(OWNER, key)?;
        imports.map((PEER, number), offset, len, (&[], None))
    }

    #[test]
    fn mappings_are_cached_within_bounds_and_survive_in_use() {
        let mut imports = Imports::new(8192, 8);
        let segments: Vec<_> = (0..4).map(|id| offer(&mut imports, id, 4096)).collect();
        segments[0].words(64, 1)[0].store(77, Ordering::Relaxed);
        let first = map(&mut imports, &make_key(OWNER, 0, 64, 8)).unwrap();
        for id in 1..4 {
            map(&mut imports, &make_key(OWNER, id, 0, 4096)).unwrap();
        }
        assert_eq!((imports.kept, imports.kept_bytes), (2, 8192));
        let again = map(&mut imports, &make_key(OWNER, 0, 64, 8)).unwrap();
        assert_eq!(first.region(), again.region(), "a mapping in use is found again");
        imports.freed(PEER, 0).unwrap();
        imports.forget(PEER);
        assert_eq!((imports.kept, imports.kept_bytes), (0, 0));
        let segment = first.lease().owner().unwrap().clone().downcast::<MappedImport>().unwrap();
        assert_eq!(segment.segment.words(64, 1)[0].load(Ordering::Relaxed), 77);
    }

    #[test]
    fn bad_keys_and_packets_are_named() {
        let mut imports = Imports::new(1 << 20, 8);
        offer(&mut imports, 3, 4096);
        for (key, what) in [
            (make_key([6; 16], 3, 0, 1), "none of this peer"),
            (make_key(OWNER, 3, 4096, 1), "leave"),
            (make_key(OWNER, 3, u64::MAX, 2), "leave"),
            (make_key(OWNER, 4, 0, 1), "freed"),
            (RemoteKey::new(&[5; 39]).unwrap(), "none of this peer"),
        ] {
            let error = map(&mut imports, &key).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        let (_segment, file) = Segment::create(4096, false).unwrap();
        assert!(imports.offered(PEER, 3, 4096, Some(file)).is_err());
        assert!(imports.freed(PEER, 9).is_err());
    }

    /// Its number is free again once nothing uses it here, and the owner was told so.
    #[test]
    fn a_revoked_allocation_is_not_shared_again_while_it_is_used() {
        let mut imports = Imports::new(1 << 20, 8);
        let _segment = offer(&mut imports, 1, 4096);
        let mapping = map(&mut imports, &make_key(OWNER, 1, 0, 8)).unwrap();
        imports.revoke_access(PEER, 1).unwrap();
        assert!(!imports.has_released() && imports.take_released().is_empty(), "it is used");
        let (_again, file) = Segment::create(4096, false).unwrap();
        let error = imports.offered(PEER, 1, 4096, Some(file)).unwrap_err();
        assert!(error.to_string().contains("shared twice"), "{error}");
        drop(mapping);
        assert!(imports.has_released());
        assert_eq!(imports.take_released(), [(PEER, 1)]);
        assert!(!imports.has_released(), "the owner is told once");
        let _segment = offer(&mut imports, 1, 4096);
    }

    #[test]
    fn the_mapping_that_was_used_longest_ago_makes_room() {
        let mut imports = Imports::new(1 << 20, 2);
        let _segments: Vec<_> = (0..3).map(|id| offer(&mut imports, id, 4096)).collect();
        let mut use_it = |id: u64| {
            map(&mut imports, &make_key(OWNER, id, 0, 8)).unwrap();
            let mut mapped = 0;
            imports.for_each_segment(|_| mapped += 1);
            assert_eq!(mapped, imports.kept, "nothing else is mapped");
            (0..3).filter(|id| imports.known[&(PEER, *id)].kept.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(use_it(0), [0]);
        assert_eq!(use_it(1), [0, 1]);
        assert_eq!(use_it(0), [0, 1]);
        assert_eq!(use_it(2), [0, 2]);
        assert_eq!(use_it(1), [1, 2]);
    }

    #[test]
    fn a_peer_that_is_forgotten_takes_its_own_bytes_along_and_no_others() {
        let mut imports = Imports::new(1 << 20, 8);
        let other = PeerId(1);
        let _segment = offer(&mut imports, 1, 8192);
        let (_theirs, file) = Segment::create(4096, false).unwrap();
        imports.offered(other, 1, 4096, Some(file)).unwrap();
        map(&mut imports, &make_key(OWNER, 1, 0, 8)).unwrap();
        imports.map((other, 1), 0, 8, (&[], None)).unwrap();
        assert_eq!((imports.kept, imports.kept_bytes), (2, 12_288));
        imports.forget(PEER);
        assert_eq!((imports.kept, imports.kept_bytes), (1, 4096));
        assert!(imports.knows(other, 1) && !imports.knows(PEER, 1));
    }

    #[test]
    fn a_revocation_is_forgotten_with_its_peer_alone() {
        let mut imports = Imports::new(1 << 20, 8);
        let other = PeerId(1);
        let _segment = offer(&mut imports, 1, 4096);
        let (_theirs, file) = Segment::create(4096, false).unwrap();
        imports.offered(other, 1, 4096, Some(file)).unwrap();
        let mine = map(&mut imports, &make_key(OWNER, 1, 0, 8)).unwrap();
        let theirs = imports.map((other, 1), 0, 8, (&[], None)).unwrap();
        imports.revoke_access(PEER, 1).unwrap();
        imports.revoke_access(other, 1).unwrap();
        imports.forget(other);
        drop((mine, theirs));
        assert_eq!(imports.take_released(), [(PEER, 1)]);
    }

    #[test]
    fn a_peer_shares_so_much_and_no_more() {
        let mut imports = Imports::new(1 << 20, 8);
        assert!((0..SHARED).all(|_| imports.count_in(PEER).is_ok()));
        assert!(imports.count_in(PEER).is_err());
        assert!(imports.count_in(PeerId(1)).is_ok(), "each has its own bound");
    }

    #[test]
    fn an_allocation_shorter_than_announced_is_refused() {
        let mut imports = Imports::new(1 << 20, 8);
        let (_segment, file) = Segment::create(4096, false).unwrap();
        imports.offered(PEER, 1, 8192, Some(file)).unwrap();
        let error = map(&mut imports, &make_key(OWNER, 1, 0, 8192)).unwrap_err();
        assert!(matches!(error, MapError::Link(LinkError::Corrupt { .. })), "{error}");
    }
}
