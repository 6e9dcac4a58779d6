//! The optional ability to move bytes without the peer's help.

use crate::{AbilityId, LinkError, PeerId, RdmaError, Token};
use gapless_mem::{Lasting, Region, Space};
use std::sync::Arc;

/// A piece of the memory that a key stands for, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// Lets a peer reach a region: bytes that travel in messages and that only the transport that made them reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    bytes: [u8; RemoteKey::MAX_BYTES],
    len: u8,
}

impl RemoteKey {
    /// The longest key in bytes.
    pub const MAX_BYTES: usize = 80;

    /// Wraps a transport's bytes; `None` above [`RemoteKey::MAX_BYTES`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<RemoteKey> {
        let mut key = RemoteKey { bytes: [0; RemoteKey::MAX_BYTES], len: 0 };
        key.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        key.len = u8::try_from(bytes.len()).ok()?;
        Some(key)
    }

    /// The transport's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteKey({:02x?})", self.as_bytes())
    }
}

/// What one-sided operations cost and can take.
#[derive(Clone, Debug, PartialEq)]
pub struct RdmaLimits {
    /// Pieces (local or remote) that one operation can take; at least 1.
    pub max_pieces: usize,
    /// Estimated fixed cost of an operation, in nanoseconds.
    pub operation_ns: u32,
    /// Estimated cost of each piece, in nanoseconds.
    pub piece_ns: u32,
    /// Estimated bandwidth, in bytes per microsecond (= MB/s).
    pub bandwidth_mb_s: u32,
    /// Estimated cost of registering memory and of undoing that, in nanoseconds, whatever its length. 0, like
    /// `register_mib_ns`, if registering does nothing to the memory.
    pub register_ns: u32,
    /// What each MiB adds to `register_ns`.
    pub register_mib_ns: u32,
}

/// What peers may do with a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// [`get`](Rdma::get) from it.
    Read,
    /// [`get`](Rdma::get) from it and [`put`](Rdma::put) to it.
    Write,
    /// Both, and [`atomic`](Rdma::atomic) on it.
    Atomic,
}

/// What [`atomic`](Rdma::atomic) does to a number of 64 bits, in the byte order of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds to it; what does not fit is dropped.
    Add(u64),
    /// Replaces it, if it is what it is compared with.
    CompareSwap {
        /// What it must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
}

impl Change {
    /// What the number becomes.
    #[must_use]
    pub fn of(self, old: u64) -> u64 {
        match self {
            Change::Add(more) => old.wrapping_add(more),
            Change::CompareSwap { compare, swap } if old == compare => swap,
            Change::CompareSwap { .. } => old,
        }
    }
}

/// The end of a one-sided operation: its ability does not touch its local memory any more. Transports pass it on in
/// [`Event::Completed`](crate::Event::Completed); safe code cannot make one.
///
/// ```compile_fail,E0133
/// # use gapless_btl::{AbilityId, Ended, Token};
/// Ended::new(AbilityId::new(), Token(1), Ok(()));
/// ```
#[derive(Debug)]
#[must_use = "the memory of the operation waits for it"]
pub struct Ended {
    by: AbilityId,
    token: Token,
    result: Result<(), LinkError>,
}

impl Ended {
    /// For the implementation of an [`Rdma`].
    ///
    /// # Safety
    /// The operation that the ability `by` was given with `token` is over: nothing of it touches local
    /// memory from now on. This is the only end of it that is made.
    pub unsafe fn new(by: AbilityId, token: Token, result: Result<(), LinkError>) -> Ended {
        Ended { by, token, result }
    }

    /// Whose operation it was.
    #[must_use]
    pub fn by(&self) -> AbilityId {
        self.by
    }

    /// The token of [`Rdma::get`], [`Rdma::put`] or [`Rdma::atomic`].
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// How it ended: the bytes are in place, or the link is down.
    ///
    /// # Errors
    /// The link's, as a value.
    pub fn result(&self) -> &Result<(), LinkError> {
        &self.result
    }

    /// Token and result.
    pub fn into_parts(self) -> (Token, Result<(), LinkError>) {
        (self.token, self.result)
    }
}

/// Moves bytes between local regions and a peer's, without the peer's help.
///
/// # Safety
/// Memory is granted to operations, and taken back, because an implementation says that they have ended. So it keeps
/// these rules:
///
/// 1. [`id`](Rdma::id) is the same at every call, and no other ability's. (A wrapper that passes everything on,
///    events too, may answer with what it wraps.)
/// 2. [`get`](Rdma::get) writes the pieces of `local`, [`put`](Rdma::put) reads them, and neither touches other
///    memory of this process. They do not touch the pieces once the operation's [`Ended`] is made, and touch nothing
///    if they give an error.
/// 3. A key gives access to the registered bytes, of the registered kind, and to no others.
///    [`deregister`](Rdma::deregister) ends that for operations that begin later, as far as the peer cannot
///    read all memory of this process anyway. But all of memory that was [remembered](Rdma::remember) may stay readable
///    as long as it lives, for reads by an adapter: no transport that copies in this process does that, since it would
///    race with the owner's writes.
/// 4. A call that panics leaves no operation in flight.
/// 5. [`single_copy_read`](Rdma::single_copy_read) writes `into` alone, and touches it no more once it has returned or
///    unwound.
/// 6. [`atomic`](Rdma::atomic) writes `found` as [`get`](Rdma::get) writes its pieces: rule 2 holds for it.
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_btl::{
/// #     AbilityId, Access, Extent, PeerId, Rdma, RdmaError, RdmaLimits, RemoteKey, Token,
/// # };
/// # use gapless_mem::Region;
/// struct Idle(AbilityId, RdmaLimits);
/// impl Rdma for Idle {
/// #   fn id(&self) -> AbilityId { self.0 }
/// #   fn rdma_limits(&self) -> &RdmaLimits { &self.1 }
/// #   fn reaches(&self, _: PeerId) -> Option<bool> { None }
/// #   unsafe fn register(&mut self, _: Region, _: Access) -> Result<RemoteKey, RdmaError> {
/// #       Ok(RemoteKey::new(&[]).unwrap())
/// #   }
///     fn deregister(&mut self, key: &RemoteKey) {} // although peers go on
/// #   unsafe fn get(
/// #       &mut self, _: PeerId, _: &[Region], _: &RemoteKey, _: &[Extent], _: Token,
/// #   ) -> Result<(), RdmaError> { Ok(()) }
/// #   unsafe fn put(
/// #       &mut self, _: PeerId, _: &[Region], _: &RemoteKey, _: &[Extent], _: Token,
/// #   ) -> Result<(), RdmaError> { Ok(()) }
/// }
/// ```
pub unsafe trait Rdma {
    /// Its name in this process.
    fn id(&self) -> AbilityId;

    /// What operations cost and can take.
    fn rdma_limits(&self) -> &RdmaLimits;

    /// Whether this peer's memory can be reached: probed when the link came up. `None` while that
    /// is not known yet.
    fn reaches(&self, peer: PeerId) -> Option<bool>;

    /// Whether memory in `space` can be [registered](Rdma::register) for reading, and be the local side of
    /// [`get`](Rdma::get) and [`put`](Rdma::put), as far as is known: a device's memory, where the adapter reaches it by
    /// itself (GPUDirect). A piece of it may be refused all the same; then nothing has moved. What a `get` has written into
    /// a device's memory is [settled](gapless_mem::Device::settle_writes) before its end is told.
    fn takes(&mut self, space: Space) -> bool {
        space.cpu_accessible()
    }

    /// Tells of memory that lives long. An adapter may register all of it once, and attach the registration to the
    /// memory, so that both end together. A peer that had a key to read a part of it can then read all of it as long as
    /// it lives (rule 3).
    fn remember(&mut self, memory: &Arc<Lasting>) {
        let _ = memory;
    }

    /// Lets peers reach `local`, until [`deregister`](Rdma::deregister).
    ///
    /// # Safety
    /// Until then, and until operations that peers started with the key are over, `local` describes memory that stays
    /// valid for reads and that nothing writes while a peer reads it; with [`Access::Write`] and [`Access::Atomic`] also
    /// valid for writes, and no reference of this process covers it while a peer works on it.
    ///
    /// # Errors
    /// The space cannot be reached, or the transport has no more registrations.
    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError>;

    /// Undoes [`register`](Rdma::register). Transports whose peers can reach any memory do nothing.
    fn deregister(&mut self, key: &RemoteKey);

    /// Reads the pieces `remote` of what `key` stands for at `peer`, in order, into `local`, in
    /// order. One [`Event::Completed`](crate::Event::Completed) with `done` follows, from `poll`.
    ///
    /// # Safety
    /// `local` describes memory valid for writes until the event, that nothing else touches; for good, if
    /// `done` is [`Token::NONE`]. No other operation in flight has the token `done`.
    ///
    /// # Errors
    /// Refused before any byte moved; `Full` is an outcome.
    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError>;

    /// Writes `local`, in order, to the pieces `remote` of what `key` stands for at `peer`, in
    /// order. One [`Event::Completed`](crate::Event::Completed) with `done` follows, from `poll`.
    ///
    /// # Safety
    /// `local` describes memory valid for reads until the event, that nothing else writes; for good, if
    /// `done` is [`Token::NONE`]. No other operation in flight has the token `done`. If the peer is of this
    /// process, `key` is registered there.
    ///
    /// # Errors
    /// Refused before any byte moved; `Full` is an outcome.
    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError>;

    /// Whether memory can be registered for [`atomic`](Rdma::atomic) operations: always the same answer.
    fn has_atomics(&mut self) -> bool {
        false
    }

    /// This process's name for itself, under which it does [`atomic`](Rdma::atomic) operations on memory of its own;
    /// [`changes`](Rdma::changes) says from when on. `None` without such operations, or if the transport refuses.
    fn own(&mut self) -> Option<PeerId> {
        None
    }

    /// Whether [`atomic`](Rdma::atomic) works on the memory that `key` stands for, over this link. `None` while the link
    /// is not up. Whoever has several rails to a peer finds the one that its key is of.
    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        let _ = (peer, key);
        Some(false)
    }

    /// Changes the eight bytes at `offset` of what `key` stands for at `peer`, as one number; `found` gets what they were.
    /// One [`Event::Completed`](crate::Event::Completed) with `done` follows, from `poll`: then the number is changed.
    ///
    /// Such operations are atomic against each other if they are on memory of one registration, whoever begins them, the
    /// memory's own process ([`own`](Rdma::own)) included. **Nothing is promised of anything else that changes the number
    /// at the same time**, neither instructions of processors nor operations of another registration: adapters do them
    /// with a lock of their own. So all that must be atomic goes this way, or none. Whoever reads the number with one
    /// instruction sees it whole.
    ///
    /// # Safety
    /// `found` is eight bytes, valid for writes until the event, that nothing else touches; for good, if `done` is
    /// [`Token::NONE`]. No other operation in flight has the token `done`. If the peer is of this process, `key` is
    /// registered there.
    ///
    /// # Errors
    /// Refused before anything was changed; `Full` is an outcome. [`RdmaError::Misaligned`], [`RdmaError::NotAtomic`];
    /// otherwise as [`put`](Rdma::put).
    unsafe fn atomic(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        change: Change,
        found: Region,
        done: Token,
    ) -> Result<(), RdmaError> {
        let _ = (peer, key, offset, change, found, done);
        Err(RdmaError::NotAtomic)
    }

    /// Whether this end can [`single_copy_read`](Rdma::single_copy_read) at memory of `peer`'s, as far as it knows.
    fn has_single_copy_reads(&mut self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }

    /// A key by which `peer` may [`single_copy_read`](Rdma::single_copy_read) at memory of this process. Nothing is
    /// registered, and nothing is to be undone: peers that can read all memory of this process need no more than to
    /// know where. `None`: not this memory, not this peer, or this transport cannot.
    fn single_copy_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        let _ = (peer, memory);
        None
    }

    /// Reads the bytes from `offset` on of what a [`single_copy_key`](Rdma::single_copy_key) of `peer`'s stands for, as
    /// many as `into` has, before it returns. If `peer` writes them meanwhile or has freed them, `into` holds anything,
    /// or this fails.
    ///
    /// # Safety
    /// `into` describes memory valid for writes that nothing else touches during the call. If `peer` is of this process, what
    /// the key was made of is valid for reads, and nothing writes it meanwhile.
    ///
    /// # Errors
    /// Some bytes of `into` may have been written.
    unsafe fn single_copy_read(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        let _ = (peer, key, offset, into);
        let reason = "this transport has no such reads".to_owned();
        Err(RdmaError::Unavailable { reason })
    }
}

/// Adds up pieces, checking each against the key's length: for implementations.
///
/// # Errors
/// [`RdmaError::OutOfRange`] naming the first piece that leaves `key_len`;
/// [`LinkError::Corrupt`] if the sum overflows.
pub fn total_of(remote: &[Extent], key_len: u64) -> Result<u64, RdmaError> {
    let mut total = 0u64;
    for piece in remote {
        match piece.offset.checked_add(piece.len) {
            Some(end) if end <= key_len => {}
            _ => {
                return Err(RdmaError::OutOfRange {
                    offset: piece.offset,
                    len: piece.len,
                    key_len,
                });
            }
        }
        total = total.checked_add(piece.len).ok_or_else(|| LinkError::Corrupt {
            what: "the pieces of an RDMA operation overflow 64 bits".to_owned(),
        })?;
    }
    Ok(total)
}

/// Checks the place of an [`atomic`](Rdma::atomic) operation: eight bytes of `found`, and at `offset` of `key_len` bytes that
/// begin at `start`. For implementations.
///
/// # Errors
/// [`RdmaError::LengthMismatch`], [`RdmaError::OutOfRange`], [`RdmaError::Misaligned`].
pub fn check_atomic(
    found: &Region,
    offset: u64,
    (start, key_len): (u64, u64),
) -> Result<(), RdmaError> {
    let len = total_of(&[Extent { offset, len: 8 }], key_len)?;
    if found.len() != len {
        return Err(RdmaError::LengthMismatch { local: found.len(), remote: len });
    }
    let address = start.wrapping_add(offset);
    if address.is_multiple_of(8) { Ok(()) } else { Err(RdmaError::Misaligned { address }) }
}
