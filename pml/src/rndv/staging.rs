//! Staging memory: the memory of fragments between two engines.
//!
//! A slab of a device or of the host is allocated once and kept. Transports export it whole and peers map it once, so
//! that later messages find keys and mappings cached. Slabs are bounded in bytes, per device and for the host. Nobody
//! waits for a slab: a message that finds none uses another protocol.
//!
//! A slab whose message is over may still be written by a lost peer. It is *leaving* until the transport says that
//! nobody has it mapped. Lengths are in bytes.

use gapless_bml::{Allocation, Bml};
use gapless_mem::{Device, Region, Space};
use std::sync::Arc;

/// Slabs are multiples of this, the drivers' unit of allocation, so that nothing else is exported with them.
const GRAIN: u64 = 2 << 20;

/// Part of a slab that one message uses. [`StagingPool::give`] takes it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Block {
    slab: usize,
    region: Region,
}

impl Block {
    pub(crate) fn region(&self) -> Region {
        self.region
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Busy,
    /// A peer may still write to it.
    Leaving,
}

/// Whose memory a slab is.
enum Owner {
    Device(Arc<dyn Device>),
    Host { _memory: Allocation },
}

struct Slab {
    /// All of it; a slab that was freed is empty.
    region: Region,
    owner: Option<Owner>,
    state: State,
}

/// The staging memory of an endpoint.
#[derive(Default)]
pub(crate) struct StagingPool {
    slabs: Vec<Slab>,
}

/// The attached device that a buffer in `space` belongs to.
pub(crate) fn device_of(bml: &Bml, space: Space) -> Option<Arc<dyn Device>> {
    if space.cpu_accessible() {
        return None;
    }
    let same = |own: Space| match (own, space) {
        // Queues are the user's wish for one buffer.
        (
            Space::OpenCl { context: a, device: b, .. },
            Space::OpenCl { context: c, device: d, .. },
        ) => (a, b) == (c, d),
        (own, space) => own == space,
    };
    bml.devices().iter().find(|device| same(device.space())).cloned()
}

impl StagingPool {
    /// `len` bytes of the memory of `device`, or of host memory that peers and devices reach; `None` if that would
    /// exceed `bound`, or if the memory is not available.
    pub(crate) fn take(
        &mut self,
        bml: &mut Bml,
        device: Option<&Arc<dyn Device>>,
        len: u64,
        bound: u64,
    ) -> Option<Block> {
        self.look_back(bml);
        let idle = (0..self.slabs.len()).filter(|&at| {
            let slab = &self.slabs[at];
            slab.state == State::Idle && slab.region.len() >= len && slab.is_of(device)
        });
        let best = idle.min_by_key(|&at| self.slabs[at].region.len());
        let slab = best.or_else(|| self.add(bml, device, len, bound))?;
        self.slabs[slab].state = State::Busy;
        let region = self.slabs[slab].region.sub(0, len).ok()?;
        Some(Block { slab, region })
    }

    fn add(
        &mut self,
        bml: &mut Bml,
        device: Option<&Arc<dyn Device>>,
        len: u64,
        bound: u64,
    ) -> Option<usize> {
        let whole = len.checked_next_multiple_of(GRAIN).filter(|whole| *whole <= bound)?;
        // Idle slabs that nobody has mapped are freed at once; if that is not enough, all of them stay.
        let kept = self.slabs.iter().filter(|slab| slab.state != State::Idle && slab.is_of(device));
        let kept: u64 = kept.map(|slab| slab.region.len()).sum();
        if kept.saturating_add(whole) > bound {
            return None;
        }
        while self.bytes_of(device).saturating_add(whole) > bound {
            self.drop_idle(bml, device)?;
        }
        let (region, owner) = match device {
            Some(device) => match device.allocate(whole) {
                Ok(region) => (region, Owner::Device(Arc::clone(device))),
                Err(error) => {
                    tracing::debug!(%error, "no staging memory");
                    return None;
                }
            },
            None => match bml.allocate(whole)? {
                Ok(memory) => (memory.region(), Owner::Host { _memory: memory }),
                Err(error) => {
                    tracing::debug!(%error, "no staging memory of the host");
                    return None;
                }
            },
        };
        let slab = Slab { region, owner: Some(owner), state: State::Idle };
        let vacant = self.slabs.iter().position(|slab| slab.owner.is_none());
        let at = vacant.unwrap_or(self.slabs.len());
        match vacant {
            Some(at) => self.slabs[at] = slab,
            None => self.slabs.push(slab),
        }
        Some(at)
    }

    /// Bytes that there are of a device, or of the host.
    fn bytes_of(&self, device: Option<&Arc<dyn Device>>) -> u64 {
        self.slabs.iter().filter(|slab| slab.is_of(device)).map(|slab| slab.region.len()).sum()
    }

    /// Frees the longest slab that nobody uses; `None` if there is none.
    fn drop_idle(&mut self, bml: &mut Bml, device: Option<&Arc<dyn Device>>) -> Option<()> {
        let idle = self.slabs.iter_mut().filter(|slab| slab.state == State::Idle);
        let mut idle: Vec<_> = idle.filter(|slab| slab.is_of(device)).collect();
        idle.sort_by_key(|slab| slab.region.len());
        let slab = idle.pop()?;
        if slab.is_mapped(bml) {
            // Its peers are asked to release it; until then it counts, and no message gets it.
            slab.state = State::Leaving;
        } else {
            slab.free();
        }
        Some(())
    }

    /// Checks which slabs peers have released.
    pub(crate) fn look_back(&mut self, bml: &mut Bml) {
        for slab in self.slabs.iter_mut().filter(|slab| slab.state == State::Leaving) {
            if !slab.is_mapped(bml) {
                slab.state = State::Idle;
            }
        }
    }

    /// Takes back memory that no engine and no peer uses any more.
    pub(crate) fn give(&mut self, block: Block) {
        self.slabs[block.slab].state = State::Idle;
    }

    /// Takes back memory that a peer may still write.
    pub(crate) fn give_late(&mut self, block: Block) {
        let slab = &mut self.slabs[block.slab];
        debug_assert!(
            matches!(slab.owner, Some(Owner::Device(_))),
            "transports say of memory of devices only that peers have let go of it"
        );
        slab.state = State::Leaving;
    }

    /// This process leaves: peers are asked to release memory that no message uses.
    pub(crate) fn leave(&mut self, bml: &mut Bml) {
        let idle = self.slabs.iter_mut().filter(|slab| slab.state == State::Idle);
        for slab in idle.filter(|slab| slab.owner.is_some()) {
            if slab.is_mapped(bml) {
                slab.state = State::Leaving;
            }
        }
    }

    /// Frees everything, once no engine works any more. What a peer still has mapped is left to the
    /// end of the process: some drivers mind.
    pub(crate) fn close(&mut self, bml: &mut Bml) {
        for slab in &mut self.slabs {
            if slab.owner.is_some() && slab.is_mapped(bml) {
                tracing::debug!(bytes = slab.region.len(), "staging memory that a peer has mapped");
                continue;
            }
            slab.free();
        }
        self.slabs.clear();
    }

    /// Bytes kept, and how many of them messages have.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let sum = |pass: fn(&Slab) -> bool| {
            self.slabs.iter().filter(|slab| pass(slab)).map(|slab| slab.region.len()).sum()
        };
        (sum(|_| true), sum(|slab| slab.state != State::Idle))
    }
}

impl Slab {
    fn is_of(&self, device: Option<&Arc<dyn Device>>) -> bool {
        match (&self.owner, device) {
            (Some(Owner::Device(own)), Some(device)) => Arc::ptr_eq(own, device),
            (Some(Owner::Host { .. }), None) => true,
            _ => false,
        }
    }

    /// Whether a peer may have it mapped; ends its keys.
    fn is_mapped(&self, bml: &mut Bml) -> bool {
        matches!(self.owner, Some(Owner::Device(_))) && bml.withdraw(self.region)
    }

    fn free(&mut self) {
        if let Some(Owner::Device(device)) = self.owner.take() {
            // SAFETY: `add` got it from this device, the owner is taken only once, and both callers
            // know that no message has it, so no engine, and that no peer has it mapped.
            let freed = unsafe { device.free(self.region) };
            if let Err(error) = freed {
                tracing::warn!(%error, "staging memory that cannot be freed");
            }
        }
        self.region = Region::new(self.region.space(), 0, 0, 0);
    }
}

impl std::fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, used) = self.bytes();
        write!(f, "Staging of {kept} bytes, {used} in use")
    }
}
