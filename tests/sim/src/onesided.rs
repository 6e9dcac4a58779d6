//! One-sided reading over a simulated rail. The bytes move as late as they may, when the end is
//! reported: whoever lets go of memory that is still being read is found out.

use crate::rail::{Rail, lock};
use crate::wire::{Item, Wire, Work, gone};
use gapless_btl::{
    AbilityId, Access, Btl, Ended, Event, Extent, LinkError, PeerId, Rdma, RdmaError, RdmaLimits,
    RemoteKey, Token, total_of,
};
use gapless_mem::Region;

fn bad(what: &str) -> RdmaError {
    RdmaError::BadKey { what: what.to_owned() }
}

fn number(key: &RemoteKey) -> Result<u64, RdmaError> {
    Ok(u64::from_le_bytes(key.as_bytes().try_into().map_err(|_| bad("its length"))?))
}

/// Moves the bytes of an operation whose end is due; whether it was possible.
pub(crate) fn move_bytes(wire: &mut Wire, (rank, from): (u32, u32), work: &Work) -> bool {
    let Some(&(_, region)) = wire.keys.get(&work.key) else {
        if !wire.harmed.contains(&(rank, from)) {
            let what = format!("rank {from} took memory back while rank {rank} was reading it");
            wire.broken.push(what);
        }
        return false;
    };
    let mut bytes = Vec::new();
    for piece in &work.remote {
        let at = bytes.len();
        bytes.resize(at + usize::try_from(piece.len).unwrap_or(0), 0);
        // SAFETY: `register`'s caller guarantees the region for reads until it deregisters the
        // key, which is still there; `get` has seen that the piece lies inside.
        let read = unsafe { gapless_mem::read(&region, piece.offset, &mut bytes[at..]) };
        read.expect("host memory");
    }
    let mut rest = &bytes[..];
    for piece in &work.local {
        let (now, later) = rest.split_at(usize::try_from(piece.len()).unwrap_or(rest.len()));
        // SAFETY: `get`'s caller guarantees the local memory for writes until the event, which is not
        // reported yet.
        let written = unsafe { gapless_mem::write(piece, 0, now) };
        written.expect("host memory");
        rest = later;
    }
    wire.heard(|tap| tap.moved(rank, from, &bytes));
    true
}

impl Rail {
    /// The end of an operation whose item has been taken off the wire.
    pub(crate) fn completed(&self, token: Token, result: Result<(), LinkError>) -> Event {
        // SAFETY: the item is gone, and its bytes have been moved or never will be.
        Event::Completed(unsafe { Ended::new(self.ability, token, result) })
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is made with the end.
// 2. `move_bytes` writes the pieces when the operation's one item is taken off the wire, with its end; a lost peer's items
//    lose their work. `put` refuses.
// 3. A key is looked up among those that are registered when the bytes are moved.
// 4. The item is put on the wire as the last step of `get`: a call that panics before has put none there.
unsafe impl Rdma for Rail {
    fn id(&self) -> AbilityId {
        self.ability
    }

    fn rdma_limits(&self) -> &RdmaLimits {
        &self.rdma_limits
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.has_met(peer).then_some(true)
    }

    unsafe fn register(&mut self, local: Region, _access: Access) -> Result<RemoteKey, RdmaError> {
        let mut wire = lock(&self.wire);
        wire.next_key += 1;
        let key = wire.next_key;
        wire.keys.insert(key, (self.rank, local));
        let numbers = [self.number as u64, key, local.len()];
        wire.heard(|tap| tap.operation("register", self.rank, &numbers));
        RemoteKey::new(&key.to_le_bytes()).ok_or_else(|| bad("too long"))
    }

    fn deregister(&mut self, key: &RemoteKey) {
        if let Ok(number) = number(key) {
            let mut wire = lock(&self.wire);
            wire.keys.remove(&number);
            let numbers = [self.number as u64, number];
            wire.heard(|tap| tap.operation("deregister", self.rank, &numbers));
        }
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let from = *self.peers.get(peer.0 as usize).ok_or_else(|| bad("its peer"))?;
        let (rail, rank) = (self.number, self.rank);
        let mut wire = lock(&self.wire);
        if wire.has_noticed(rail, rank, from) {
            return Err(gone().into());
        }
        let most = self.rdma_limits.max_pieces;
        let pieces = local.len().max(remote.len());
        if pieces > most {
            return Err(RdmaError::TooManyPieces { pieces, max: most });
        }
        if wire.refuses_get(rail, rank, from) {
            return Err(RdmaError::Full);
        }
        if wire.is_unreadable(rail, rank, from) {
            return Err(RdmaError::Unavailable { reason: "so it was drawn".to_owned() });
        }
        let number = number(key)?;
        wire.tally.gets += 1;
        wire.heard(|tap| {
            let mut numbers = vec![rail as u64, from.into(), number, remote.len() as u64];
            numbers.extend(remote.iter().flat_map(|piece| [piece.offset, piece.len]));
            numbers.extend(local.iter().map(Region::len));
            tap.operation("get", rank, &numbers);
        });
        let found = wire.keys.get(&number).copied();
        if wire.is_cut(rail, from, rank) || wire.dead.contains(&from) {
            let now = wire.now;
            wire.post(rank, rail, now, Item::Got { token: done, from, work: None });
            return Ok(());
        }
        if found.is_none() && !wire.harmed.contains(&(rank, from)) {
            let what = format!("rank {from} took memory back before rank {rank} could read it");
            wire.broken.push(what);
        }
        let (owner, region) = found.ok_or_else(|| bad("it was taken back"))?;
        if owner != from {
            return Err(bad("it is another rank's"));
        }
        let total = total_of(remote, region.len())?;
        let room: u64 = local.iter().map(Region::len).sum();
        if total != room {
            return Err(RdmaError::LengthMismatch { local: room, remote: total });
        }
        let due = wire.now + 2 * wire.travel_ns(rail, from, rank, total);
        let work = Work { key: number, remote: remote.to_vec(), local: local.to_vec() };
        wire.post(rank, rail, due, Item::Got { token: done, from, work: Some(work) });
        Ok(())
    }

    unsafe fn put(
        &mut self,
        _peer: PeerId,
        _local: &[Region],
        _key: &RemoteKey,
        _remote: &[Extent],
        _done: Token,
    ) -> Result<(), RdmaError> {
        Err(RdmaError::ReadOnly)
    }
}
