//! One-sided operations: RDMA reads and writes.
//!
//! Remote memory is what the peer has registered ([`Rdma::register`]: exactly these bytes, with exactly these rights). Local
//! memory is reached in one of these ways, which the adapter cannot tell apart:
//! - it lies in what this end has registered, or lives long, as the memory of `World::alloc` does, which is registered once
//!   (`lasting`);
//! - it is a device's: its allocation is registered by dma-buf (`direct`), or the operation refused;
//! - it is long: it is registered for the operation ([`IbConfig::register_from_bytes`]);
//! - else, or if the system refuses, its bytes go through a ring of staging buffers that are registered for good.
//!
//! Of other memory nothing is remembered that callers have back, so no stale registration can be used.
//! Numbers of 64 bits are changed by fetch-and-add and compare-and-swap, at registered memory of peers or, over a queue pair
//! that is connected with itself, of this process: adapters are atomic against themselves alone. Registered regions of 64 KiB
//! and more, but no buffers of messages, may be written in any order (relaxed ordering): who is told that an operation has
//! ended, or receives a message that was sent after it over the same link, sees all of it.

#[allow(unsafe_code, reason = "registers memory that callers lend")]
mod direct;
#[allow(unsafe_code, reason = "registers memory that ends the registration before it goes")]
mod lasting;
#[allow(unsafe_code, reason = "registers memory that callers lend")]
mod local;
mod numbers;

use self::direct::Devices;
use self::lasting::Remembered;
use self::local::Reach;
use crate::config::IbConfig;
use crate::ib::Ib;
use crate::key::Key;
use crate::link::{IbLink, LinkState, OperationPart, PARTS_MAX};
use crate::verbs::flags::MemoryAccess;
use crate::verbs::memory::{Domain, Mr, Registered};
use crate::verbs::pair::{PIECES_MAX, RdmaKind, Sge};
use gapless_btl::{
    AbilityId, Access, Change, Ended, Event, Extent, LinkError, PeerId, Rdma, RdmaError,
    RdmaLimits, RemoteKey, Token, total_of,
};
use gapless_mem::{Device, DeviceError, Lasting, Region, Space};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pieces of an operation, on either side.
const OPERATION_PIECES_MAX: usize = 4096;
/// Operations of a link that are not posted in full.
const OPERATIONS_MAX: usize = 64;
/// Bytes that one piece of work moves at most.
const PART_BYTES_MAX: u64 = 1 << 20;
/// The length of a staging buffer.
const STAGING_BYTES: u64 = 16 << 10;
/// Registrations that may begin before an address and reach it: those that overlap.
const OVERLAPS_MAX: usize = 8;

/// A region that peers may reach.
struct Registration {
    len: u64,
    writable: bool,
    space: Space,
    mr: Arc<Mr>,
}

/// An operation under way.
struct RdmaOperation {
    way: RdmaKind,
    token: Token,
    local: Box<[Region]>,
    /// How the adapter reaches local pieces, as many; none if they are staged.
    lkeys: Box<[u32]>,
    /// What `lkeys` are of.
    held: Vec<Arc<Mr>>,
    /// How many of these were registered for it, and their bytes.
    in_use: (usize, u64),
    remote: Box<[Extent]>,
    rkey: u32,
    /// Where the key's bytes begin.
    address: u64,
    total: u64,
    /// Bytes posted, and where these end: in a piece, at an offset, on either side.
    posted: u64,
    local_at: (usize, u64),
    remote_at: (usize, u64),
    /// The devices whose memory is written.
    settles: Vec<Arc<dyn Device>>,
    /// Parts that the adapter has.
    parts: u32,
    error: Option<LinkError>,
}

/// What one-sided operations need.
pub(crate) struct OneSided {
    id: AbilityId,
    limits: RdmaLimits,
    pub(crate) devices: Devices,
    remembered: Remembered,
    registrations: BTreeMap<(u64, u32), Registration>,
    registered_bytes: u64,
    /// Regions registered for operations under way, and allocations of devices that are remembered; and their bytes.
    in_use: usize,
    in_use_bytes: u64,
    operations: Vec<Option<RdmaOperation>>,
    /// Places in `operations`.
    vacant: Vec<u32>,
    /// The link that was the first to go on.
    turn: u32,
    staging: Arc<Registered>,
    /// Staging buffers.
    pub(crate) free: Vec<u32>,
    /// How much of the local memory went each way, for tests: in registered regions, registered for the operation,
    /// staged.
    pub(crate) ways: [u64; 3],
}

impl OneSided {
    /// # Errors
    /// There is no memory for staging.
    pub(crate) fn new(
        config: &IbConfig,
        domain: &Arc<Domain>,
        bandwidth_mb_s: u32,
    ) -> Result<OneSided, LinkError> {
        let count = (config.staging_bytes as u64 / STAGING_BYTES).max(1);
        let bytes = usize::try_from(count * STAGING_BYTES).unwrap_or(usize::MAX);
        Ok(OneSided {
            id: AbilityId::new(),
            limits: RdmaLimits {
                max_pieces: OPERATION_PIECES_MAX,
                operation_ns: 2_000,
                piece_ns: 200,
                bandwidth_mb_s,
                // A call of the system each way, and 0.16 us for each page of 4 KiB. Not measured.
                register_ns: 10_000,
                register_mib_ns: 40_000,
            },
            devices: Devices::default(),
            remembered: Remembered::default(),
            registrations: BTreeMap::new(),
            registered_bytes: 0,
            in_use: 0,
            in_use_bytes: 0,
            operations: Vec::new(),
            vacant: Vec::new(),
            turn: 0,
            staging: Registered::new(domain, bytes)?,
            free: (0..u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            ways: [0; 3],
        })
    }

    /// A registration that all of `region` lies in, with rights for this way.
    fn within(&self, region: &Region, way: RdmaKind) -> Option<&Registration> {
        let (start, len) = (region.start(), region.len());
        let before = self.registrations.range(..=(start, u32::MAX)).rev().take(OVERLAPS_MAX);
        let mut fit = before.filter(|((at, _), one)| {
            let fits = one.space.cpu_accessible() && start + len <= at + one.len;
            fits && (one.writable || way == RdmaKind::Write)
        });
        fit.next().map(|(_, one)| one)
    }

    /// Counts regions that are registered for an operation.
    fn count_in_use(&mut self, count: usize, bytes: u64) {
        self.in_use += count;
        self.in_use_bytes += bytes;
    }

    /// Such regions are registered no more.
    fn give_back(&mut self, (count, bytes): (usize, u64)) {
        self.in_use -= count;
        self.in_use_bytes -= bytes;
    }

    /// For tests: how many regions are registered for operations.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Room for one more operation in the table.
    fn enter(&mut self, operation: RdmaOperation) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.operations[at as usize] = Some(operation);
            return at;
        }
        self.operations.push(Some(operation));
        u32::try_from(self.operations.len() - 1).expect("as many as links have room for")
    }
}

/// Moves a place in pieces on by so many bytes, past empty pieces; the lengths are given.
fn advance(
    (mut piece, mut offset): (usize, u64),
    mut by: u64,
    len: impl Fn(usize) -> Option<u64>,
) -> (usize, u64) {
    while let Some(len) = len(piece) {
        let left = len - offset;
        if by < left {
            return (piece, offset + by);
        }
        by -= left;
        (piece, offset) = (piece + 1, 0);
    }
    (piece, offset)
}

impl Ib {
    /// Begins an operation.
    ///
    /// # Safety
    /// As [`Rdma::get`] and [`Rdma::put`] of this way.
    unsafe fn begin(
        &mut self,
        way: RdmaKind,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        token: Token,
    ) -> Result<(), RdmaError> {
        let pieces = local.len().max(remote.len());
        if pieces > OPERATION_PIECES_MAX {
            return Err(RdmaError::TooManyPieces { pieces, max: OPERATION_PIECES_MAX });
        }
        let Some(link) = self.links.get_mut(peer.0 as usize) else {
            let reason = format!("{peer} was never connected to");
            return Err(LinkError::Unreachable { reason }.into());
        };
        let owner = link.address.id;
        let queued = match &link.state {
            LinkState::Lost(error) => return Err(error.clone().into()),
            LinkState::Known | LinkState::Calling(_) => return Err(RdmaError::Full),
            LinkState::Up(up) if !up.is_open() => return Err(RdmaError::Full),
            LinkState::Up(up) => up.operations.len(),
        };
        let key = Key::open(key, &self.keys)?;
        if key.owner != owner {
            return Err(RdmaError::BadKey { what: "it is another process's".to_owned() });
        }
        match way {
            RdmaKind::Write if !key.is_writable() => return Err(RdmaError::ReadOnly),
            RdmaKind::Change(_) => self.may_change(&key, local, remote)?,
            RdmaKind::Read | RdmaKind::Write => {}
        }
        let total = total_of(remote, key.len)?;
        let mut local_total = 0u64;
        for region in local {
            let moves = !matches!(way, RdmaKind::Change(_));
            let is_known = moves && self.one_sided.devices.of(region.space()).is_some();
            if !region.space().cpu_accessible() && !is_known {
                return Err(not_the_cpus(region).into());
            }
            local_total = local_total.saturating_add(region.len());
        }
        if local_total != total {
            return Err(RdmaError::LengthMismatch { local: local_total, remote: total });
        }
        if total == 0 {
            self.tell(token, Ok(()));
            return Ok(());
        }
        if queued >= OPERATIONS_MAX {
            return Err(RdmaError::Full);
        }
        let Reach { lkeys, held, in_use } = match way {
            // Eight bytes are copied.
            RdmaKind::Change(_) => Reach::default(),
            // SAFETY: the caller lends the local memory until the end is told, which comes after the registrations are
            // gone.
            RdmaKind::Read | RdmaKind::Write => unsafe { self.reach(way, local, total) }?,
        };
        let written = if way == RdmaKind::Read { local } else { &[] };
        let settles = self.one_sided.devices.of_all(written);
        let operation = self.one_sided.enter(RdmaOperation {
            way,
            token,
            local: local.into(),
            lkeys,
            held,
            in_use,
            remote: remote.into(),
            rkey: key.rkey,
            address: key.address,
            total,
            posted: 0,
            local_at: advance((0, 0), 0, |at| local.get(at).map(Region::len)),
            remote_at: advance((0, 0), 0, |at| remote.get(at).map(|extent| extent.len)),
            settles,
            parts: 0,
            error: None,
        });
        if let Some(up) = self.links[peer.0 as usize].up() {
            up.operations.push_back(operation);
        }
        self.post_parts(peer.0);
        Ok(())
    }

    /// Goes on with operations of all links that wait for room.
    pub(crate) fn go_on(&mut self) {
        if self.one_sided.operations.len() == self.one_sided.vacant.len() {
            return;
        }
        // Another link is the first each time: there may be staging buffers for one only.
        let count = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        self.one_sided.turn = (self.one_sided.turn + 1) % count.max(1);
        let first = self.one_sided.turn;
        (first..count).chain(0..first).for_each(|id| self.post_parts(id));
    }

    /// Posts parts of a link's operations, as far as there is room: as one list.
    fn post_parts(&mut self, id: u32) {
        self.list_parts(id);
        let Some(up) = self.links.get_mut(id as usize).and_then(IbLink::up) else { return };
        // If they are refused, the link ends, and they with it.
        if let Err(error) = up.qp.end_list() {
            self.end(id, error);
        }
    }

    /// Lists them.
    fn list_parts(&mut self, id: u32) {
        loop {
            let Some(up) = self.links.get_mut(id as usize).and_then(IbLink::up) else { return };
            let Some(&at) = up.operations.front() else { return };
            if up.parts_out >= PARTS_MAX || !up.is_open() {
                return;
            }
            let Some(operation) = self.one_sided.operations[at as usize].as_mut() else { return };
            let RdmaOperation { way, posted, total, .. } = *operation;
            let (remote_piece, remote_offset) = operation.remote_at;
            let extent = operation.remote[remote_piece];
            let left = (total - posted).min(extent.len - remote_offset).min(PART_BYTES_MAX);
            let address = operation.address + extent.offset + remote_offset;
            let mut pieces = [Sge::default(); PIECES_MAX];
            let (mut count, mut bytes, mut staging) = (0, 0, None);
            if operation.lkeys.is_empty() {
                let Some(&buffer) = self.one_sided.free.last() else { return };
                self.one_sided.free.pop();
                bytes = left.min(STAGING_BYTES);
                staging = Some(buffer);
                let address =
                    self.one_sided.staging.region().start() + u64::from(buffer) * STAGING_BYTES;
                let lkey = self.one_sided.staging.lkey();
                pieces[0] = Sge { address, bytes: u32::try_from(bytes).unwrap_or(0), lkey };
                count = 1;
            } else {
                let (mut piece, mut offset) = operation.local_at;
                while bytes < left && count < PIECES_MAX {
                    let region = operation.local[piece];
                    let part = (region.len() - offset).min(left - bytes);
                    let is_odd = count > 0 && part > 0 && part != u64::from(pieces[0].bytes);
                    if is_odd && self.numbers.even_pieces {
                        break;
                    }
                    if part > 0 {
                        let (address, lkey) = (region.start() + offset, operation.lkeys[piece]);
                        let bytes = u32::try_from(part).unwrap_or(0);
                        pieces[count] = Sge { address, bytes, lkey };
                        count += 1;
                    }
                    bytes += part;
                    (piece, offset) = (piece + 1, 0);
                }
            }
            let part = OperationPart {
                operation: at,
                at: posted,
                bytes: u32::try_from(bytes).unwrap_or(0),
                staging,
            };
            operation.posted += bytes;
            operation.local_at =
                advance(operation.local_at, bytes, |at| operation.local.get(at).map(Region::len));
            operation.remote_at = advance(operation.remote_at, bytes, |at| {
                operation.remote.get(at).map(|extent| extent.len)
            });
            operation.parts += 1;
            let (rkey, is_last) = (operation.rkey, operation.posted == total);
            if let (Some(buffer), RdmaKind::Write) = (staging, way)
                && let Some(operation) = &self.one_sided.operations[at as usize]
            {
                // SAFETY: the operation is under way, and the buffer was free.
                unsafe { self.one_sided.copy(operation, buffer, (part.at, bytes), way) };
            }
            let Some(up) = self.links[id as usize].up() else { return };
            if is_last {
                up.operations.pop_front();
            }
            up.qp.begin_list();
            // SAFETY: staging buffers are registered, and this one is in no other hand; else the operation's caller lends
            // the pieces until its end is told, and `held` keeps them registered. Both wait for the part's end.
            let result = unsafe { up.part(id, part, way, &pieces[..count], (rkey, address)) };
            if let Err(error) = result {
                self.end(id, error.clone());
                self.part_ended(part, Err(error));
                return;
            }
        }
    }

    /// The adapter has finished with a part.
    pub(crate) fn part_ended(&mut self, part: OperationPart, result: Result<(), LinkError>) {
        let Some(operation) = self.one_sided.operations[part.operation as usize].as_ref() else {
            return;
        };
        if let Some(buffer) = part.staging {
            if result.is_ok() && operation.way != RdmaKind::Write {
                let place = (part.at, u64::from(part.bytes));
                // SAFETY: the operation is under way: this part has not been counted off yet; the adapter has finished
                // with the buffer.
                unsafe { self.one_sided.copy(operation, buffer, place, RdmaKind::Read) };
            }
            self.one_sided.free.push(buffer);
        }
        let Some(operation) = self.one_sided.operations[part.operation as usize].as_mut() else {
            return;
        };
        operation.parts -= 1;
        if operation.error.is_none() {
            operation.error = result.err();
        }
        self.finish_operation(part.operation);
    }

    /// An operation of a link that is lost, of which not all was posted.
    pub(crate) fn drop_operation(&mut self, at: u32, error: &LinkError) {
        let Some(operation) = self.one_sided.operations[at as usize].as_mut() else { return };
        operation.error.get_or_insert_with(|| error.clone());
        // The rest will never be posted.
        operation.total = operation.posted;
        self.finish_operation(at);
    }

    /// Tells the end of an operation if it has come.
    fn finish_operation(&mut self, at: u32) {
        let over = |it: &RdmaOperation| it.parts == 0 && it.posted == it.total;
        let place = &mut self.one_sided.operations[at as usize];
        if !place.as_ref().is_some_and(over) {
            return;
        }
        let Some(RdmaOperation { token, mut error, held, in_use, settles, .. }) = place.take()
        else {
            return;
        };
        self.one_sided.give_back(in_use);
        self.one_sided.vacant.push(at);
        // Memory that the caller has back is not registered any more.
        drop(held);
        self.one_sided.let_go();
        for device in settles {
            if error.is_none()
                && let Err(refused) = device.settle_writes()
            {
                let operation = "settling what an adapter has written";
                error = Some(LinkError::System { operation, reason: refused.to_string() });
            }
        }
        self.tell(token, error.map_or(Ok(()), Err));
    }

    /// Tells the end of an operation of which the adapter has nothing.
    fn tell(&mut self, token: Token, result: Result<(), LinkError>) {
        if token != Token::NONE {
            // SAFETY: no part of the operation is posted, nor will be: it was of no bytes, or has left the table, all its
            // parts having come back. It is told once.
            let ended = unsafe { Ended::new(self.one_sided.id, token, result) };
            self.outbox.push_back(Event::Completed(ended));
        }
    }
}

fn not_the_cpus(region: &Region) -> DeviceError {
    DeviceError::WrongSpace { device: "the verbs transport".to_owned(), space: region.space() }
}

// SAFETY: 1. `id` is made once. 2. An operation posts work on its local pieces, or copies between them and staging
// buffers, which is all that touches them; it is told only when every part has come back from the adapter (or its queue
// pair was destroyed) and its registrations have ended, but for those of devices' allocations and of memory that lives
// long, through which nothing is posted then; errors are given before anything is posted. 3. A region is registered
// with exactly its bytes and rights, under a key that adapters compare; `deregister` ends that before it returns. Of
// memory that was remembered peers may read the rest, and later. 4. Nothing here calls foreign code while an operation
// is half made; an operation in the table is driven to its end by later polls. 5. There are no single-copy reads. 6. As
// 2: what a number was is copied from a staging buffer.
unsafe impl Rdma for Ib {
    fn id(&self) -> AbilityId {
        self.one_sided.id
    }

    fn rdma_limits(&self) -> &RdmaLimits {
        &self.one_sided.limits
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        match &self.links.get(peer.0 as usize)?.state {
            LinkState::Up(up) if up.stands => Some(true),
            LinkState::Lost(_) => Some(false),
            LinkState::Known | LinkState::Calling(_) | LinkState::Up(_) => None,
        }
    }

    fn takes(&mut self, space: Space) -> bool {
        space.cpu_accessible() || self.one_sided.devices.of(space).is_some()
    }

    fn remember(&mut self, memory: &Arc<Lasting>) {
        self.one_sided.remembered.remember(memory);
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        if !local.space().cpu_accessible() {
            // SAFETY: the caller's promise.
            return unsafe { self.register_for_peers(local, access) };
        }
        if access == Access::Atomic && !self.lengths.atomics {
            return Err(RdmaError::NotAtomic);
        }
        let writable = access != Access::Read;
        let key = Key {
            owner: self.address.id,
            address: local.start(),
            len: local.len(),
            rkey: 0,
            access,
        };
        if local.is_empty() {
            return Ok(key.seal(&self.keys));
        }
        if access == Access::Read
            && let Some(rkey) = self.lasting_key(&local)
        {
            return Ok(Key { rkey, ..key }.seal(&self.keys));
        }
        // Few, and what they are for has no other way.
        self.make_room(if access == Access::Atomic { 0 } else { local.len() })?;
        let rights = MemoryAccess::of_caller(local.len(), access);
        // SAFETY: the caller's promise holds until `deregister`, which ends the registration.
        let mr = unsafe { Mr::new(&self.domain, local, rights) };
        let mr = mr.map_err(|error| RdmaError::Unavailable { reason: error.to_string() })?;
        let rkey = mr.rkey();
        let (len, space) = (local.len(), local.space());
        let registration = Registration { len, writable, space, mr: Arc::new(mr) };
        self.one_sided.registrations.insert((local.start(), rkey), registration);
        self.one_sided.registered_bytes += local.len();
        Ok(Key { rkey, ..key }.seal(&self.keys))
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.take_back(key);
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(RdmaKind::Read, peer, local, key, remote, done) }
    }

    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(RdmaKind::Write, peer, local, key, remote, done) }
    }

    fn has_atomics(&mut self) -> bool {
        self.lengths.atomics
    }

    fn own(&mut self) -> Option<PeerId> {
        self.own_name()
    }

    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        if self.is_for_changes(peer, key) { self.reaches(peer) } else { Some(false) }
    }

    unsafe fn atomic(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        change: Change,
        found: Region,
        done: Token,
    ) -> Result<(), RdmaError> {
        let remote = [Extent { offset, len: 8 }];
        // SAFETY: the caller's promise.
        unsafe { self.begin(RdmaKind::Change(change), peer, &[found], key, &remote, done) }
    }
}
