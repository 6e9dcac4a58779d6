//! Single copy: `process_vm_readv` and `process_vm_writev` between a local region and a peer's
//! (process_vm_readv(2), also known as CMA).
//!
//! The kernel copies; the peer does nothing. Whether it may is probed when a link comes up, by
//! reading a word whose value the peer's greeting told (ptrace access rules decide:
//! `PR_SET_DUMPABLE`, Yama, containers). A key is an address and a length in its maker's memory:
//! whoever passes that test could read everything anyway, so registering adds no rights.
//!
//! Transfers run in steps of a bounded number of bytes, the first at once, the rest in polls.

use crate::sm::Sm;
use crate::wire::CopyKey;
use gapless_btl::{
    AbilityId, Access, Ended, Event, Extent, LinkError, PeerId, Rdma, RdmaError, RdmaLimits,
    RemoteKey, Token, total_of,
};
use gapless_mem::{DeviceError, Region};
use std::collections::VecDeque;

/// Most pieces of one operation, and of one call (`IOV_MAX`).
const PIECES: usize = 1024;
/// Bytes copied by one step.
const STEP_BYTES: usize = 4 << 20;
/// Operations that may wait.
const QUEUE: usize = 256;

/// The word that peers read to find out whether they can.
#[derive(Debug)]
pub(crate) struct Probe(Box<u64>);

impl Probe {
    pub(crate) fn new(value: u64) -> Probe {
        Probe(Box::new(value))
    }

    /// Address and value for a greeting; zeros if single copy is not offered.
    pub(crate) fn hello(&self, offered: bool) -> (u64, u64) {
        if offered { ((&raw const *self.0).expose_provenance() as u64, *self.0) } else { (0, 0) }
    }
}

/// Whether the process `pid` has the word `expected.1` at `expected.0`, and we may read it.
pub(crate) fn probe(pid: i32, expected: (u64, u64)) -> bool {
    let (address, value) = expected;
    if pid <= 0 || address == 0 {
        return false;
    }
    let mut found = 0u64;
    let local = [libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 8 }];
    let Some(remote) = remote_piece(address, 8) else { return false };
    // SAFETY: `local` describes `found`, eight bytes that are ours to write.
    let copied = unsafe { vm_copy(Direction::Get, pid, &local, &[remote]) };
    copied == Ok(8) && found == value
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Get,
    Put,
}

impl Direction {
    fn call(self) -> &'static str {
        match self {
            Direction::Get => "process_vm_readv",
            Direction::Put => "process_vm_writev",
        }
    }
}

fn remote_piece(address: u64, len: u64) -> Option<libc::iovec> {
    Some(libc::iovec {
        // An address in the other process: never dereferenced here.
        iov_base: std::ptr::without_provenance_mut(usize::try_from(address).ok()?),
        iov_len: usize::try_from(len).ok()?,
    })
}

/// One system call. Gives how many bytes were copied, or the error number.
///
/// # Safety
/// `local` describes memory valid for writes (get) or reads (put) that nothing else touches
/// (writes).
unsafe fn vm_copy(
    direction: Direction,
    pid: i32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, i32> {
    let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    let copied = match direction {
        // SAFETY: the caller vouches for `local`; the kernel checks `remote`, and both lists are
        // as long as said.
        Direction::Get => unsafe {
            libc::process_vm_readv(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
        },
        // SAFETY: as above.
        Direction::Put => unsafe {
            libc::process_vm_writev(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
        },
    };
    usize::try_from(copied)
        .map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// A list of pieces, and how far it has been worked off.
#[derive(Debug, Default)]
struct Pieces {
    list: Vec<(u64, u64)>,
    next: usize,
    within: u64,
}

impl Pieces {
    fn clear(&mut self) {
        self.list.clear();
        (self.next, self.within) = (0, 0);
    }

    fn push(&mut self, address: u64, len: u64) {
        if len > 0 {
            self.list.push((address, len));
        }
    }

    /// Describes up to `budget` bytes in `into`; gives how many.
    fn describe(&self, budget: usize, into: &mut Vec<libc::iovec>) -> usize {
        into.clear();
        let mut described = 0;
        let mut within = self.within;
        for &(address, len) in self.list[self.next..].iter().take(PIECES) {
            let room = (budget - described) as u64;
            let bytes = (len - within).min(room);
            if bytes == 0 {
                break;
            }
            into.extend(remote_piece(address + within, bytes));
            described += usize::try_from(bytes).expect("at most the budget");
            within = 0;
        }
        described
    }

    fn advance(&mut self, bytes: usize) {
        let mut left = bytes as u64;
        while left > 0 {
            let rest = self.list[self.next].1 - self.within;
            if left < rest {
                self.within += left;
                return;
            }
            left -= rest;
            (self.next, self.within) = (self.next + 1, 0);
        }
    }

    fn is_done(&self) -> bool {
        self.next == self.list.len()
    }
}

/// A transfer.
#[derive(Debug)]
struct SingleCopyOperation {
    peer: PeerId,
    pid: i32,
    direction: Direction,
    token: Token,
    local: Pieces,
    remote: Pieces,
}

/// All transfers of one transport.
#[derive(Debug)]
pub(crate) struct SingleCopy {
    /// The name of the transport's abilities.
    pub(crate) ability: AbilityId,
    limits: RdmaLimits,
    queue: VecDeque<SingleCopyOperation>,
    /// Finished operations, for their memory.
    spare: Vec<SingleCopyOperation>,
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

// SAFETY: the raw pointers in `local` and `remote` are scratch space of one step, not kept.
unsafe impl Send for SingleCopy {}

impl SingleCopy {
    pub(crate) fn new() -> SingleCopy {
        SingleCopy {
            ability: AbilityId::new(),
            limits: RdmaLimits {
                max_pieces: PIECES,
                operation_ns: 600,
                piece_ns: 350,
                bandwidth_mb_s: 15_000,
                register_ns: 0,
                register_mib_ns: 0,
            },
            queue: VecDeque::new(),
            spare: Vec::new(),
            local: Vec::with_capacity(PIECES),
            remote: Vec::with_capacity(PIECES),
        }
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Works on the oldest operation, once.
    pub(crate) fn step(&mut self, events: &mut VecDeque<Event>) {
        let Some(mut operation) = self.queue.pop_front() else { return };
        match self.advance(&mut operation) {
            Ok(false) => self.queue.push_front(operation),
            Ok(true) => self.finish(operation, Ok(()), events),
            Err(error) => self.finish(operation, Err(error), events),
        }
    }

    /// One system call's worth. Gives whether the operation is complete.
    fn advance(&mut self, operation: &mut SingleCopyOperation) -> Result<bool, LinkError> {
        let SingleCopyOperation { pid, direction, local, remote, .. } = operation;
        let bytes = local.describe(STEP_BYTES, &mut self.local);
        let bytes = remote.describe(bytes, &mut self.remote);
        if bytes > 0 {
            // Both lists must be equally long in bytes for the kernel to use all of them; it stops
            // at the shorter.
            // SAFETY: `get` and `put` oblige their callers to keep the local regions valid and
            // untouched until the completion, which comes after this.
            let copied = unsafe { vm_copy(*direction, *pid, &self.local, &self.remote) };
            match copied {
                Ok(0) => return Err(refused(*direction, libc::EFAULT)),
                Ok(copied) => {
                    local.advance(copied);
                    remote.advance(copied);
                }
                Err(libc::EINTR | libc::EAGAIN) => {}
                Err(error) => return Err(refused(*direction, error)),
            }
        }
        Ok(local.is_done() && remote.is_done())
    }

    fn finish(
        &mut self,
        operation: SingleCopyOperation,
        result: Result<(), LinkError>,
        events: &mut VecDeque<Event>,
    ) {
        if operation.token != Token::NONE {
            // SAFETY: `get` and `put` were given the token; their caller keeps it from others. The operation is out of
            // the queue, and the kernel has returned from the last call for it: nothing touches its memory any more.
            let ended = unsafe { Ended::new(self.ability, operation.token, result) };
            events.push_back(Event::Completed(ended));
        }
        if self.spare.len() < QUEUE {
            self.spare.push(operation);
        }
    }

    /// Ends all operations towards a peer.
    pub(crate) fn abandon(
        &mut self,
        peer: PeerId,
        error: &LinkError,
        events: &mut VecDeque<Event>,
    ) {
        for operation in std::mem::take(&mut self.queue) {
            if operation.peer == peer {
                self.finish(operation, Err(error.clone()), events);
            } else {
                self.queue.push_back(operation);
            }
        }
    }

    fn operation(
        &mut self,
        peer: PeerId,
        pid: i32,
        direction: Direction,
        token: Token,
    ) -> SingleCopyOperation {
        let (mut local, mut remote) =
            self.spare.pop().map_or_else(Default::default, |old| (old.local, old.remote));
        local.clear();
        remote.clear();
        SingleCopyOperation { peer, pid, direction, token, local, remote }
    }
}

fn refused(direction: Direction, error: i32) -> LinkError {
    match error {
        libc::ESRCH => LinkError::PeerGone { reason: "its process does not exist".to_owned() },
        error => LinkError::System {
            operation: direction.call(),
            reason: std::io::Error::from_raw_os_error(error).to_string(),
        },
    }
}

/// Address and length of the memory that a key names.
fn read_key(
    owner: [u8; 16],
    key: &RemoteKey,
    direction: Direction,
) -> Result<(u64, u64), RdmaError> {
    let key = CopyKey::read(owner, key)?;
    match direction {
        Direction::Put if !key.writable => Err(RdmaError::ReadOnly),
        Direction::Get | Direction::Put => Ok((key.address, key.len)),
    }
}

impl Sm {
    /// The process of a peer, if its memory can be reached.
    fn reached(&mut self, peer: PeerId) -> Result<(i32, [u8; 16]), RdmaError> {
        let link = self.link(peer)?;
        if !link.is_up()? {
            return Err(RdmaError::Full);
        }
        if link.reaches != Some(true) {
            let reason = "its memory could not be read when the link came up".to_owned();
            return Err(RdmaError::Unavailable { reason });
        }
        Ok((link.pid, link.address.nonce))
    }

    fn transfer(
        &mut self,
        direction: Direction,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let (pid, nonce) = self.reached(peer)?;
        let pieces = local.len().max(remote.len());
        if pieces > PIECES {
            return Err(RdmaError::TooManyPieces { pieces, max: PIECES });
        }
        let (address, key_len) = read_key(nonce, key, direction)?;
        let remote_bytes = total_of(remote, key_len)?;
        let mut local_bytes = 0u64;
        for piece in local {
            if !piece.space().cpu_accessible() {
                let device = direction.call().to_owned();
                return Err(DeviceError::WrongSpace { device, space: piece.space() }.into());
            }
            local_bytes = local_bytes.saturating_add(piece.len());
        }
        if local_bytes != remote_bytes {
            return Err(RdmaError::LengthMismatch { local: local_bytes, remote: remote_bytes });
        }
        if self.single_copy.queue.len() >= QUEUE {
            return Err(RdmaError::Full);
        }
        let mut operation = self.single_copy.operation(peer, pid, direction, done);
        local.iter().for_each(|piece| operation.local.push(piece.start(), piece.len()));
        remote.iter().for_each(|piece| operation.remote.push(address + piece.offset, piece.len));
        let alone = self.single_copy.is_idle();
        self.single_copy.queue.push_back(operation);
        if alone {
            self.single_copy.step(&mut self.pending_events);
        }
        Ok(())
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is made with the transport, and the same for mapping.
// 2. The kernel writes or reads the pieces and nothing else, in calls that this process makes, from the first step of an
//    operation to the one after which it leaves the queue, with its `Ended`. What is refused never enters it.
// 3. A key is an address, a length and a kind, which the peer's transport keeps to; the kernel lets the peer, of the same
//    user, read and write all of this process's memory anyway.
// 4. An operation enters the queue as the last step of a call, unless the call works on it at once: then `step` has
//    taken it out of the queue, and the kernel has returned from each of its calls, so what unwinds ends it.
// 5. The kernel writes what is left of `into` and nothing else, in calls that have returned when `single_copy_read`
//    does.
unsafe impl Rdma for Sm {
    fn id(&self) -> AbilityId {
        self.single_copy.ability
    }

    fn rdma_limits(&self) -> &RdmaLimits {
        &self.single_copy.limits
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.links.get(peer.0 as usize).map_or(Some(false), |link| link.reaches)
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        if !local.space().cpu_accessible() {
            let device = "process_vm_readv".to_owned();
            return Err(DeviceError::WrongSpace { device, space: local.space() }.into());
        }
        let writable = access == Access::Write;
        let key = CopyKey { address: local.start(), len: local.len(), writable };
        Ok(key.write(self.address.nonce))
    }

    fn deregister(&mut self, _key: &RemoteKey) {}

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        self.transfer(Direction::Get, peer, local, key, remote, done)
    }

    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        self.transfer(Direction::Put, peer, local, key, remote, done)
    }

    fn has_single_copy_reads(&mut self, peer: PeerId) -> bool {
        self.reached(peer).is_ok()
    }

    fn single_copy_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        self.reached(peer).ok()?;
        let (address, len) = (memory.start(), memory.len());
        let key = CopyKey { address, len, writable: false };
        memory.space().cpu_accessible().then(|| key.write(self.address.nonce))
    }

    unsafe fn single_copy_read(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        let (pid, nonce) = self.reached(peer)?;
        let (address, key_len) = read_key(nonce, key, Direction::Get)?;
        let len = total_of(&[Extent { offset, len: into.len() }], key_len)?;
        if !into.space().cpu_accessible() {
            let device = Direction::Get.call().to_owned();
            return Err(DeviceError::WrongSpace { device, space: into.space() }.into());
        }
        let mut done = 0;
        while done < len {
            let piece = |start: u64| remote_piece(start + done, len - done);
            let (Some(local), Some(remote)) = (piece(into.start()), piece(address + offset)) else {
                return Err(refused(Direction::Get, libc::EFAULT).into());
            };
            // SAFETY: the caller's promise.
            match unsafe { vm_copy(Direction::Get, pid, &[local], &[remote]) } {
                Ok(0) => return Err(refused(Direction::Get, libc::EFAULT).into()),
                Ok(copied) => done += copied as u64,
                Err(libc::EINTR | libc::EAGAIN) => {}
                Err(error) => return Err(refused(Direction::Get, error).into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_described_and_worked_off_in_steps() {
        let mut pieces = Pieces::default();
        for (address, len) in [(1000, 10), (2000, 0), (3000, 5)] {
            pieces.push(address, len);
        }
        let mut into = Vec::new();
        assert_eq!(pieces.describe(12, &mut into), 12);
        let seen: Vec<_> = into.iter().map(|v| (v.iov_base.addr(), v.iov_len)).collect();
        assert_eq!(seen, [(1000, 10), (3000, 2)]);
        pieces.advance(4);
        assert_eq!(pieces.describe(100, &mut into), 11);
        assert_eq!(into[0].iov_base.addr(), 1004);
        pieces.advance(6);
        assert_eq!((pieces.next, pieces.within), (1, 0));
        pieces.advance(5);
        assert!(pieces.is_done());
        assert_eq!(pieces.describe(100, &mut into), 0);
    }

    #[test]
    fn keys_survive_and_foreign_ones_are_refused() {
        let make_key = |address, len, writable| CopyKey { address, len, writable }.write([7; 16]);
        let key = make_key(4096, 100, false);
        assert_eq!(read_key([7; 16], &key, Direction::Get).unwrap(), (4096, 100));
        assert!(matches!(read_key([8; 16], &key, Direction::Get), Err(RdmaError::BadKey { .. })));
        let wrapping = make_key(u64::MAX, 2, true);
        assert!(matches!(
            read_key([7; 16], &wrapping, Direction::Get),
            Err(RdmaError::BadKey { .. })
        ));
        let short = RemoteKey::new(&[7; 31]).unwrap();
        assert!(matches!(read_key([7; 16], &short, Direction::Get), Err(RdmaError::BadKey { .. })));
        assert_eq!(read_key([7; 16], &key, Direction::Put), Err(RdmaError::ReadOnly));
    }

    #[test]
    fn the_probe_reads_our_own_word() {
        let word = Probe::new(0x1234_5678_9ABC_DEF0);
        let pid = i32::try_from(std::process::id()).unwrap();
        let (address, value) = word.hello(true);
        assert!(probe(pid, (address, value)));
        assert!(!probe(pid, (address, value + 1)));
        assert!(!probe(pid, word.hello(false)));
        assert!(!probe(pid, (8, value)));
    }
}
