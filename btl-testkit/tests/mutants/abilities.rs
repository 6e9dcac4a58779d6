//! What a broken transport moves and maps without messages.

use crate::mutants::broken::Broken;
use crate::mutants::flaws::Flaw;
use gapless_btl::{
    AbilityId, Access, Allocation, Btl, Change, Ended, Event, Extent, MapError, Mapped, Mapping,
    PeerId, Rdma, RdmaError, RemoteKey, Token, delegate,
};
use gapless_mem::{Lease, Region, Space};

/// Keys that are given out at most where they run out.
const KEYS_MAX: u32 = 20;

impl Broken {
    fn inner_mapped(&mut self) -> &mut dyn Mapped {
        self.inner.mapped().expect("the loopback has it")
    }

    /// An operation that is said to have ended well, whatever is wrong with it.
    fn wave_through(
        &mut self,
        outcome: Result<(), RdmaError>,
        done: Token,
    ) -> Result<(), RdmaError> {
        match (self.flaw, outcome) {
            (Flaw::ReachesOutside, Err(RdmaError::OutOfRange { .. })) => {
                let by = self.inner.rdma().expect("the loopback has it").id();
                #[allow(unsafe_code, reason = "ends an operation that never began")]
                // SAFETY: it was refused, so nothing of it touches memory.
                let ended = unsafe { Ended::new(by, done, Ok(())) };
                self.ready.push_back(Event::Completed(ended));
                Ok(())
            }
            (_, outcome) => outcome,
        }
    }
}

/// One piece with other bounds; none where there are several.
fn stretched(local: &[Region], remote: &[Extent], more: i64) -> Option<(Region, Extent)> {
    let ([near], [far]) = (local, remote) else { return None };
    let len = far.len.checked_add_signed(more)?;
    Some((Region::new(near.space(), near.address(), near.offset(), len), Extent { len, ..*far }))
}

#[allow(unsafe_code, reason = "breaks what the suite is to catch")]
// SAFETY: operations are the loopback's, over no more memory than was given; what is broken on purpose is of the suite's own
// memory, in the test that is to catch it.
unsafe impl Rdma for Broken {
    delegate!(self => self.inner; rdma_limits reaches has_atomics own changes);

    fn id(&self) -> AbilityId {
        Rdma::id(&self.inner)
    }

    #[allow(unsafe_code, reason = "passed on")]
    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        let access = match (self.flaw, access) {
            (Flaw::WritesReadOnly, Access::Read) => Access::Write,
            (Flaw::ChangesAnything, Access::Write) => Access::Atomic,
            (_, access) => access,
        };
        // SAFETY: the caller's guarantee, passed on; with the flaw, of memory that the suite lets be written.
        unsafe { self.inner.register(local, access) }
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.inner.deregister(key);
    }

    #[allow(unsafe_code, reason = "passed on")]
    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let (mut near, mut far) = (local.to_vec(), remote.to_vec());
        if self.flaw == Flaw::GetsTooLittle
            && let Some((one, other)) = stretched(local, remote, -1)
        {
            (near, far) = (vec![one], vec![other]);
        }
        if self.flaw == Flaw::SwapsPieces {
            far.reverse();
        }
        // SAFETY: the caller's guarantee, passed on for no more memory than was given.
        let outcome = unsafe { self.inner.get(peer, &near, key, &far, done) };
        self.wave_through(outcome, done)
    }

    #[allow(unsafe_code, reason = "passed on")]
    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let (mut near, mut far) = (local.to_vec(), remote.to_vec());
        if self.flaw == Flaw::PutsTooMuch
            && let Some((one, other)) = stretched(local, remote, 1)
        {
            (near, far) = (vec![one], vec![other]);
        }
        // SAFETY: the caller's guarantee, passed on; with the flaw, a byte more is read, which is the suite's
        // own memory where the test runs that is to catch it.
        let outcome = unsafe { self.inner.put(peer, &near, key, &far, done) };
        self.wave_through(outcome, done)
    }

    #[allow(unsafe_code, reason = "passed on")]
    unsafe fn atomic(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        change: Change,
        found: Region,
        done: Token,
    ) -> Result<(), RdmaError> {
        let change = match (self.flaw, change) {
            (Flaw::AddsOneMore, Change::Add(more)) => Change::Add(more + 1),
            (Flaw::LosesOwnSums, Change::Add(_)) if self.inner.own() == Some(peer) => {
                Change::Add(0)
            }
            (_, change) => change,
        };
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner.atomic(peer, key, offset, change, found, done) }
    }
}

#[allow(unsafe_code, reason = "breaks what the suite is to catch")]
// SAFETY: allocations, keys and mappings are the loopback's; what is broken on purpose is of the suite's own memory, in the test
// that is to catch it.
unsafe impl Mapped for Broken {
    fn id(&self) -> AbilityId {
        Mapped::id(&self.inner)
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        let memory = self.inner_mapped().allocate(len)?;
        if self.flaw == Flaw::AllocatesDirt {
            let region = memory.region();
            #[allow(unsafe_code, reason = "writes memory that was just allocated")]
            // SAFETY: nobody else knows the memory yet.
            let written = unsafe { gapless_mem::write(&region, len - 1, &[1]) };
            written.expect("host memory");
        }
        Ok(memory)
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let key = self.inner_mapped().key(peer, memory);
        self.keys += u32::from(key.is_some());
        match self.flaw {
            Flaw::RunsOutOfKeys if self.keys > KEYS_MAX => None,
            Flaw::KeysForAnything => key.or_else(|| RemoteKey::new(&[0; 29])),
            _ => key,
        }
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let user = if self.flaw == Flaw::MapsForAnybody { Space::Host } else { user };
        let mapping = self.inner_mapped().map_for(peer, key, user)?;
        if self.flaw == Flaw::KeepsMappings {
            self.mappings.push(mapping.clone());
        }
        Ok(mapping)
    }

    fn invalidate(&mut self, region: Region) -> bool {
        self.inner_mapped().invalidate(region) && self.flaw != Flaw::InvalidatesTooSoon
    }

    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        self.flaw != Flaw::ForgetsRevocations && self.inner_mapped().revoke_access(peer, region)
    }

    fn make_private(&mut self, region: Region) -> bool {
        self.flaw == Flaw::StaysShared || self.inner_mapped().make_private(region)
    }
}
