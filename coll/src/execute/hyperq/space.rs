//! Memory of a leader's: the buffer on the device into which the others copy, and staging memory of the host; and the
//! same as others map it. And buffers of others that a GPU leader has mapped during a call.

use std::sync::Arc;

use gapless_bml::{Bml, Mapping, Rank};
use gapless_mem::{Device, Lease, Region};
use gapless_pml::Comm;

use super::CallPart;
use super::control::{Control, WhichKey};

/// Bytes behind the last rank's, so that a short copy may be longer than it need be.
const SLACK: u64 = 128 << 10;

/// Device memory that is freed with its last lease.
struct Owned {
    device: Arc<dyn Device>,
    region: Region,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this device, and is freed once. Whoever drops the last lease has no work on it in
        // flight, and peers do not have it mapped: `LeaderMemory` sees to both.
        if let Err(error) = unsafe { self.device.free(self.region) } {
            debug_assert!(false, "memory of a device cannot be freed: {error}");
        }
    }
}

/// What a leader has.
pub(super) struct LeaderMemory {
    device: Arc<dyn Device>,
    buffer: Lease,
    staging: Lease,
    /// Which ranks have keys of it.
    given: Vec<bool>,
    generation: u64,
}

impl std::fmt::Debug for LeaderMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held {{ buffer: {:?}, staging: {:?} }}", self.buffer, self.staging)
    }
}

impl LeaderMemory {
    fn new(
        device: &Arc<dyn Device>,
        (buffer, staging): (u64, u64),
        (ranks, generation): (usize, u64),
        bml: &mut Bml,
    ) -> Option<LeaderMemory> {
        let allocation = bml.allocate(staging.checked_add(SLACK)?)?.ok()?;
        let staging = allocation.lease().clone();
        let region = device.allocate(buffer.checked_add(SLACK)?).ok()?;
        let owned = Arc::new(Owned { device: Arc::clone(device), region });
        // SAFETY: the memory was just allocated, and is freed with its owner.
        let buffer = unsafe { Lease::new(region, owned) };
        let given = vec![false; ranks];
        Some(LeaderMemory { device: Arc::clone(device), buffer, staging, given, generation })
    }

    fn fits(&self, device: &Arc<dyn Device>, (buffer, staging): (u64, u64)) -> bool {
        let holds = |lease: &Lease, bytes: u64| lease.region().len() >= bytes.saturating_add(SLACK);
        Arc::ptr_eq(&self.device, device)
            && holds(&self.buffer, buffer)
            && holds(&self.staging, staging)
    }

    pub(super) fn buffer(&self) -> Region {
        self.buffer.region()
    }

    pub(super) fn staging(&self) -> Region {
        self.staging.region()
    }

    /// Gives a rank its keys, unless it has them; `None`: it cannot have any.
    pub(super) fn give(
        &mut self,
        (me, rank): (usize, usize),
        comm: &Comm,
        control: &Control,
        bml: &mut Bml,
    ) -> Option<()> {
        if *self.given.get(rank)? {
            return Some(());
        }
        let process = comm.process(u32::try_from(rank).ok()?).ok()?;
        let (peer, mapped) = bml.mapped(Rank(process))?;
        let buffer = mapped.key(peer, &self.buffer)?;
        let staging = mapped.key(peer, &self.staging)?;
        let keys = [(WhichKey::Buffer, &buffer), (WhichKey::Staging, &staging)];
        control.give_keys(me, rank, self.generation, keys);
        self.given[rank] = true;
        Some(())
    }
}

/// All that a rank has as a leader: what it uses, and what peers may still have mapped.
#[derive(Debug, Default)]
pub(super) struct LeaderState {
    held: Option<LeaderMemory>,
    retired: Vec<LeaderMemory>,
    generations: u64,
    /// There was no memory, or no key for some rank: it is not tried again.
    pub(super) impossible: bool,
}

impl LeaderState {
    /// Memory of at least so many bytes; `None`: there is none.
    pub(super) fn ensure(
        &mut self,
        device: &Arc<dyn Device>,
        bytes: (u64, u64),
        ranks: usize,
        bml: &mut Bml,
    ) -> Option<&mut LeaderMemory> {
        self.tidy(bml);
        if self.held.as_ref().is_some_and(|held| !held.fits(device, bytes)) {
            self.retired.extend(self.held.take());
            self.tidy(bml);
        }
        if self.held.is_none() {
            self.generations += 1;
            self.held = LeaderMemory::new(device, bytes, (ranks, self.generations), bml);
        }
        self.held.as_mut()
    }

    pub(super) fn held(&mut self) -> Option<&mut LeaderMemory> {
        self.held.as_mut()
    }

    /// Frees what no peer has mapped any more.
    fn tidy(&mut self, bml: &mut Bml) {
        self.retired.retain(|held| bml.invalidate(held.buffer()));
    }

    /// Frees everything, as far as peers have let go; whether nothing is left.
    pub(super) fn close(&mut self, bml: &mut Bml) -> bool {
        self.retired.extend(self.held.take());
        self.tidy(bml);
        self.retired.is_empty()
    }
}

impl Drop for LeaderState {
    fn drop(&mut self) {
        // Peers may have it mapped: freeing it might not be defined.
        self.retired.drain(..).chain(self.held.take()).for_each(|held| {
            if held.given.contains(&true) {
                std::mem::forget(held);
            }
        });
    }
}

/// What a rank has mapped of a leader's.
#[derive(Debug)]
pub(super) struct MappedLeader {
    generation: u64,
    buffer: Mapping,
    staging: Mapping,
}

impl MappedLeader {
    /// Maps what a leader has given the keys of.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn of(
        known: &mut Option<MappedLeader>,
        (leader, me): (usize, usize),
        (device, bytes): (&Arc<dyn Device>, (u64, u64)),
        (comm, control): (&Comm, &Control),
        bml: &mut Bml,
    ) -> Result<(), String> {
        let generation = control.generation(leader, me);
        if known.as_ref().is_some_and(|mapped| mapped.generation == generation) {
            return Ok(());
        }
        *known = None;
        let nothing = || "there is no key".to_owned();
        let process = u32::try_from(leader).ok().and_then(|rank| comm.process(rank).ok());
        let process = Rank(process.ok_or_else(nothing)?);
        let mut map = |which, space| {
            let key = control.key(leader, me, which).ok_or_else(nothing)?;
            let (peer, mapped) = bml.mapped(process).ok_or_else(nothing)?;
            mapped.map_for(peer, &key, space).map_err(|error| error.to_string())
        };
        let buffer = map(WhichKey::Buffer, device.space())?;
        let staging = map(WhichKey::Staging, device.space())?;
        let (there, wanted) = ((buffer.region().len(), staging.region().len()), bytes);
        if there.0 < wanted.0 || there.1 < wanted.1 {
            return Err(format!("{there:?} bytes instead of {wanted:?}"));
        }
        if !device.reaches(buffer.region().space()) || !device.reaches(staging.region().space()) {
            return Err("it is not the device's".to_owned());
        }
        *known = Some(MappedLeader { generation, buffer, staging });
        Ok(())
    }

    pub(super) fn buffer(&self) -> Region {
        self.buffer.region()
    }

    pub(super) fn staging(&self) -> Region {
        self.staging.region()
    }
}

/// Lends a rank's buffers to its GPU leader; `None`: there is no key. They must be plain.
pub(super) fn lend(
    part: &CallPart,
    gpu_leader: usize,
    (comm, control): (&Comm, &Control),
    bml: &mut Bml,
) -> Option<()> {
    let process = comm.process(u32::try_from(gpu_leader).ok()?).ok()?;
    let mut keys = Vec::new();
    for (which, region) in [(WhichKey::Given, part.given()), (WhichKey::Received, part.received())]
    {
        let Some(region) = region? else { continue };
        let (peer, mapped) = bml.mapped(Rank(process))?;
        // SAFETY: the caller of `HyperQ::begin` keeps it until the call has ended, which it does when the GPU leader
        // uses it no more.
        let lease = unsafe { Lease::kept_by_caller(region) };
        keys.push((which, mapped.key(peer, &lease)?));
    }
    control.lend((part.me, gpu_leader), part.number, keys);
    Some(())
}

/// What a GPU leader has of a rank's: buffers that it has mapped, or its own.
#[derive(Debug)]
pub(super) struct RankBuffers {
    pub(super) gives: Option<Region>,
    pub(super) takes: Option<Region>,
    _mappings: Vec<Mapping>,
}

impl RankBuffers {
    /// A GPU leader's own.
    pub(super) fn own(part: &CallPart) -> Option<RankBuffers> {
        Some(RankBuffers { gives: part.given()?, takes: part.received()?, _mappings: Vec::new() })
    }

    /// Maps what a rank has lent.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn of(
        part: &CallPart,
        rank: usize,
        (comm, control): (&Comm, &Control),
        bml: &mut Bml,
    ) -> Result<RankBuffers, String> {
        let nothing = || "there is no key".to_owned();
        let process = u32::try_from(rank).ok().and_then(|rank| comm.process(rank).ok());
        let process = Rank(process.ok_or_else(nothing)?);
        let mut mappings = Vec::new();
        let mut map = |which, bytes: Option<u64>| {
            let Some(bytes) = bytes else { return Ok(None) };
            let key = control.key(rank, part.me, which).ok_or_else(nothing)?;
            let (peer, mapped) = bml.mapped(process).ok_or_else(nothing)?;
            let mapping = mapped.map_for(peer, &key, part.device.space());
            let mapping = mapping.map_err(|error| error.to_string())?;
            let region = mapping.region();
            mappings.push(mapping);
            match region.len() == bytes && part.device.reaches(region.space()) {
                true => Ok(Some(region)),
                false => Err(format!("{} bytes in {}", region.len(), region.space())),
            }
        };
        let given = part.frame.give(rank).map(|give| give.range.end - give.range.start);
        let gives = map(WhichKey::Given, given)?;
        let takes = map(WhichKey::Received, part.frame.take(rank).map(|take| take.bytes()))?;
        Ok(RankBuffers { gives, takes, _mappings: mappings })
    }
}
