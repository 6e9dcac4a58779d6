//! Reliable connected queue pairs: a type for every state, so that nothing is posted before it can be sent.
//!
//! ```text
//! Qp<Reset> ─initialise─► Qp<Init> ─hear─► Qp<ReadyToReceive> ─speak─► Qp<ReadyToSend>
//! ```
//!
//! A transition consumes the queue pair; one that fails destroys it. `abandon` takes any of them to the error state, in
//! which what was posted ends with an error.

use super::flags::MemoryAccess;
use super::memory::{Domain, Registered};
use super::queues::{Cq, Srq};
use super::{over, refused, refused_as};
use crate::qp_address::QpAddress;
use gapless_btl::Change;
use gapless_btl::LinkError;
use rdma_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap, ibv_qp_create_send_ops_flags as ops,
    ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask as wishes, ibv_qp_state as state,
    ibv_qp_type, ibv_send_flags, ibv_sge,
};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// Pieces of local memory that one piece of work takes.
pub(crate) const PIECES_MAX: usize = 4;

/// Just made.
pub(crate) enum Reset {}
/// Belongs to a port.
pub(crate) enum Init {}
/// Knows its peer, and receives from it.
pub(crate) enum ReadyToReceive {}
/// Sends as well.
pub(crate) enum ReadyToSend {}

/// What a queue pair is made of, kept until it is destroyed.
pub(super) struct Raw {
    pub(super) qp: NonNull<ibv_qp>,
    pub(super) extended: NonNull<ibv_qp_ex>,
    pub(super) domain: Arc<Domain>,
    _cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
    /// Memory that is posted.
    kept: Vec<Arc<Registered>>,
    /// Work is being listed, of which the adapter is to be told at once.
    listing: bool,
}

/// For tests: what this thread has posted.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// How often adapters were told of work, and of lists of buffers for arrivals.
    pub(crate) told: u32,
    pub(crate) receives_told: u32,
    /// Pieces of work, and those of them whose end was to be told.
    pub(crate) work: u32,
    pub(crate) signalled: u32,
}

#[cfg(test)]
thread_local! {
    pub(crate) static COUNTS: std::cell::RefCell<Counts> = std::cell::RefCell::default();
    /// For tests: the device has no more queue pairs.
    pub(crate) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// For tests: the device takes no list of work.
    pub(crate) static REFUSES_LISTS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// For tests: work is posted piece by piece.
    pub(crate) static SINGLY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

// SAFETY: verbs may be called from any thread; posting takes `&mut`.
unsafe impl Send for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.listing {
            // SAFETY: work was begun, and whoever listed it has panicked.
            unsafe { rdma_sys::ibv_wr_abort(self.extended.as_ptr()) };
        }
        // SAFETY: destroyed once, before what it is made of. From then on the adapter does nothing for it.
        let errno = unsafe { (self.domain.context.library.destroy_qp)(self.qp.as_ptr()) };
        if let Err(errno) = over(errno) {
            // The adapter may still work on memory that others are told is theirs again.
            gapless_mem::abort(&format!(
                "ibv_destroy_qp failed ({errno}): an adapter does not let go of memory"
            ));
        }
    }
}

/// How long its queues are, and what else it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub(crate) sends: u32,
    /// Only without a shared receive queue.
    pub(crate) receives: u32,
    /// Bytes sent from where they are, without a buffer.
    pub(crate) inline_bytes: u32,
    /// Whether numbers of a peer's can be changed; only of a reliable connection.
    pub(crate) atomics: bool,
}

impl Raw {
    /// # Errors
    /// The device has no more, or not so long ones.
    pub(super) fn new(
        domain: &Arc<Domain>,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        kind: ibv_qp_type::Type,
        lengths: &Lengths,
    ) -> Result<(Raw, u32), LinkError> {
        let context = &domain.context;
        let extended = context.extended()?;
        // SAFETY: the extended verbs of an open device.
        let create = unsafe { (*extended.as_ptr()).create_qp_ex };
        let Some(create) = create else {
            let reason = "the device has no extended queue pairs".to_owned();
            return Err(LinkError::Unreachable { reason });
        };
        let mut wish = MaybeUninit::<ibv_qp_init_attr_ex>::zeroed();
        // SAFETY: numbers and pointers, for which zero is a value.
        let wish = unsafe { wish.assume_init_mut() };
        wish.send_cq = cq.plain();
        wish.recv_cq = cq.plain();
        wish.srq = srq.map_or(std::ptr::null_mut(), |srq| srq.raw());
        wish.cap = ibv_qp_cap {
            max_send_wr: lengths.sends,
            max_recv_wr: lengths.receives,
            max_send_sge: u32::try_from(PIECES_MAX).unwrap_or(1),
            max_recv_sge: 1,
            max_inline_data: lengths.inline_bytes,
        };
        wish.qp_type = kind;
        wish.comp_mask = wishes::IBV_QP_INIT_ATTR_PD.0 | wishes::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        wish.pd = domain.raw();
        let mut sends = ops::IBV_QP_EX_WITH_SEND.0;
        if kind == ibv_qp_type::IBV_QPT_RC {
            sends |= ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | ops::IBV_QP_EX_WITH_RDMA_READ.0;
        }
        if lengths.atomics {
            sends |= ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0;
            sends |= ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
        }
        wish.send_ops_flags = u64::from(sends);
        // SAFETY: all that the structure names lives; it is that of the call, and lives through it.
        let qp = unsafe { create(context.raw(), &raw mut *wish) };
        let qp = NonNull::new(qp).ok_or_else(|| refused("ibv_create_qp_ex"))?;
        // SAFETY: the queue pair was just made with the extended verb.
        let extended = unsafe { (context.library.qp_to_qp_ex)(qp.as_ptr()) };
        // SAFETY: the queue pair lives.
        let number = unsafe { qp.as_ref() }.qp_num;
        let Some(extended) = NonNull::new(extended) else {
            // SAFETY: just made, known to nobody.
            let _ = unsafe { (context.library.destroy_qp)(qp.as_ptr()) };
            let reason = "the device has no extended posting".to_owned();
            return Err(LinkError::Unreachable { reason });
        };
        let (domain, cq) = (Arc::clone(domain), Arc::clone(cq));
        let (kept, listing) = (Vec::new(), false);
        let raw = Raw { qp, extended, domain, _cq: cq, _srq: srq.cloned(), kept, listing };
        Ok((raw, number))
    }

    /// Changes what `set` says.
    ///
    /// # Errors
    /// The device refused.
    pub(super) fn modify(
        &mut self,
        set: mask,
        change: impl FnOnce(&mut ibv_qp_attr),
    ) -> Result<(), LinkError> {
        let mut to = MaybeUninit::<ibv_qp_attr>::zeroed();
        // SAFETY: numbers only, for which zero is a value.
        let to = unsafe { to.assume_init_mut() };
        change(to);
        let bits = i32::try_from(set.0).unwrap_or(0);
        // SAFETY: the queue pair lives; the structure is that of the call, and lives through it.
        let errno = unsafe {
            (self.domain.context.library.modify_qp)(self.qp.as_ptr(), &raw mut *to, bits)
        };
        if errno == 0 { Ok(()) } else { Err(refused_as("ibv_modify_qp", errno)) }
    }

    /// Keeps memory until it is destroyed.
    pub(super) fn keep(&mut self, memory: &Arc<Registered>) {
        self.kept.push(Arc::clone(memory));
    }
}

/// A reliable connected queue pair in the state `S`.
pub(crate) struct Qp<S> {
    raw: Raw,
    /// By which peers know it.
    number: u32,
    state: PhantomData<fn() -> S>,
}

/// Where the own end is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) pkey_index: u16,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
}

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The largest packet, as verbs number them.
    pub(crate) mtu: u8,
    /// Reads that may be under way in either direction.
    pub(crate) reads: u8,
    pub(crate) reads_served: u8,
    /// The time until a packet is sent again is 4.096 µs times two to the power of this.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) not_ready_retries: u8,
}

/// How long a sender waits whose receiver was not ready: 10.24 ms, as verbs number it.
const NOT_READY_WAIT: u8 = 20;

impl<S> Qp<S> {
    fn become_<T>(self) -> Qp<T> {
        Qp { raw: self.raw, number: self.number, state: PhantomData }
    }

    /// By which peers know it: 24 bits.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Takes it to the error state: what was posted ends, with an error.
    pub(crate) fn abandon(&mut self) {
        let change = |to: &mut ibv_qp_attr| to.qp_state = state::IBV_QPS_ERR;
        if let Err(error) = self.raw.modify(mask::IBV_QP_STATE, change) {
            tracing::debug!(%error, "a queue pair stays as it is until it is destroyed");
        }
    }
}

impl Qp<Reset> {
    /// # Errors
    /// The device has no more, or not so long ones.
    pub(crate) fn new(
        cq: &Arc<Cq>,
        srq: &Arc<Srq>,
        lengths: &Lengths,
    ) -> Result<Qp<Reset>, LinkError> {
        #[cfg(test)]
        if REFUSES.get() {
            return Err(refused_as("ibv_create_qp_ex", libc::ENOMEM));
        }
        let kind = ibv_qp_type::IBV_QPT_RC;
        let (raw, number) = Raw::new(&srq.domain, cq, Some(srq), kind, lengths)?;
        Ok(Qp { raw, number, state: PhantomData })
    }

    /// Gives it to a port, with rights for its peer.
    ///
    /// # Errors
    /// The device refused.
    pub(crate) fn initialise(
        mut self,
        here: Here,
        access: MemoryAccess,
    ) -> Result<Qp<Init>, LinkError> {
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.raw.modify(set, |to| {
            to.qp_state = state::IBV_QPS_INIT;
            to.port_num = here.port;
            to.pkey_index = here.pkey_index;
            to.qp_access_flags = access.bits();
        })?;
        Ok(self.become_())
    }
}

impl Qp<Init> {
    /// From now on it receives from `peer`, whose first packet has this sequence number.
    ///
    /// # Errors
    /// The device refused, or knows no way there.
    pub(crate) fn hear(
        mut self,
        here: Here,
        peer: &QpAddress,
        sequence: u32,
        manner: &Manner,
    ) -> Result<Qp<ReadyToReceive>, LinkError> {
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.raw.modify(set, |to| {
            to.qp_state = state::IBV_QPS_RTR;
            to.path_mtu = u32::from(manner.mtu);
            to.dest_qp_num = peer.number;
            to.rq_psn = sequence;
            to.max_dest_rd_atomic = manner.reads_served;
            to.min_rnr_timer = NOT_READY_WAIT;
            super::datagram::direct(&mut to.ah_attr, here, peer);
        })?;
        Ok(self.become_())
    }
}

impl Qp<ReadyToReceive> {
    /// From now on it sends as well; its first packet has this sequence number.
    ///
    /// # Errors
    /// The device refused.
    pub(crate) fn speak(
        mut self,
        sequence: u32,
        manner: &Manner,
    ) -> Result<Qp<ReadyToSend>, LinkError> {
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.raw.modify(set, |to| {
            to.qp_state = state::IBV_QPS_RTS;
            to.timeout = manner.timeout;
            to.retry_cnt = manner.retries;
            to.rnr_retry = manner.not_ready_retries;
            to.sq_psn = sequence;
            to.max_rd_atomic = manner.reads;
        })?;
        Ok(self.become_())
    }
}

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sge {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

/// What to do with a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaKind {
    Read,
    Write,
    /// Change a number of eight bytes, and read what it was.
    Change(Change),
}

impl Qp<ReadyToSend> {
    /// Keeps memory until the queue pair is destroyed: what [`send`](Qp::send) takes lies there.
    pub(crate) fn keep(&mut self, memory: &Arc<Registered>) {
        self.raw.keep(memory);
    }

    /// Has the work that is posted from now on listed, until [`end_list`](Qp::end_list).
    pub(crate) fn begin_list(&mut self) {
        #[cfg(test)]
        if SINGLY.get() {
            return;
        }
        if !std::mem::replace(&mut self.raw.listing, true) {
            // SAFETY: the queue pair lives, `&mut self` is the only one that posts to it, and nothing was begun.
            unsafe { rdma_sys::ibv_wr_start(self.raw.extended.as_ptr()) };
        }
    }

    /// Tells the adapter of what was listed.
    ///
    /// # Errors
    /// The queue is full, or the device is gone; nothing of it was posted.
    pub(crate) fn end_list(&mut self) -> Result<(), LinkError> {
        if !std::mem::take(&mut self.raw.listing) {
            return Ok(());
        }
        #[cfg(test)]
        if REFUSES_LISTS.get() {
            // SAFETY: work was begun, and is not told of.
            unsafe { rdma_sys::ibv_wr_abort(self.raw.extended.as_ptr()) };
            return Err(refused_as("ibv_wr_complete", libc::ENODEV));
        }
        self.complete()
    }

    /// Begins a piece of work of this name; its end is told if it is to be `told`, or goes wrong.
    fn begin(&mut self, name: u64, told: bool, more: u32) -> *mut ibv_qp_ex {
        #[cfg(test)]
        COUNTS.with_borrow_mut(|counts| {
            counts.work += 1;
            counts.signalled += u32::from(told);
        });
        let extended = self.raw.extended.as_ptr();
        if !self.raw.listing {
            // SAFETY: the queue pair lives, `&mut self` is the only one that posts to it, and nothing was begun.
            unsafe { rdma_sys::ibv_wr_start(extended) };
        }
        let flags = if told { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: as above; a plain field.
        unsafe { (*extended).wr_id = name };
        // SAFETY: as above.
        unsafe { (*extended).wr_flags = flags | more };
        extended
    }

    /// Tells the adapter, unless more is to be listed.
    fn complete(&mut self) -> Result<(), LinkError> {
        if self.raw.listing {
            return Ok(());
        }
        #[cfg(test)]
        COUNTS.with_borrow_mut(|counts| counts.told += 1);
        // SAFETY: work was begun, and every part of it set.
        let errno = unsafe { rdma_sys::ibv_wr_complete(self.raw.extended.as_ptr()) };
        if errno == 0 { Ok(()) } else { Err(refused_as("ibv_wr_complete", errno)) }
    }

    /// Sends bytes that are copied at once: no more than the queue pair takes inline.
    ///
    /// (As one piece: `ibv_wr_set_inline_data_list` of Soft-RoCE's provider forgets the length of a list.)
    ///
    /// # Errors
    /// The queue is full; nothing was posted.
    pub(crate) fn send_inline(
        &mut self,
        name: u64,
        told: bool,
        bytes: &[u8],
    ) -> Result<(), LinkError> {
        let extended = self.begin(name, told, ibv_send_flags::IBV_SEND_INLINE.0);
        // SAFETY: work was begun.
        unsafe { rdma_sys::ibv_wr_send(extended) };
        // They are only read.
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the bytes live through the call, in which they are copied.
        unsafe { rdma_sys::ibv_wr_set_inline_data(extended, start, bytes.len()) };
        self.complete()
    }

    /// Writes bytes into a peer's memory; they are copied at once, and no more than the queue pair takes inline.
    ///
    /// # Errors
    /// The queue is full; nothing was posted.
    pub(crate) fn write_inline(
        &mut self,
        name: u64,
        told: bool,
        bytes: &[u8],
        (rkey, address): (u32, u64),
    ) -> Result<(), LinkError> {
        let extended = self.begin(name, told, ibv_send_flags::IBV_SEND_INLINE.0);
        // SAFETY: work was begun.
        unsafe { rdma_sys::ibv_wr_rdma_write(extended, rkey, address) };
        // They are only read.
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the bytes live through the call, in which they are copied.
        unsafe { rdma_sys::ibv_wr_set_inline_data(extended, start, bytes.len()) };
        self.complete()
    }

    /// Sends `bytes` of `memory`, from `offset` on.
    ///
    /// # Safety
    /// The memory was given to [`keep`](Qp::keep). Nobody writes these bytes until the work has ended.
    ///
    /// # Errors
    /// The queue is full; nothing was posted.
    pub(crate) unsafe fn send(
        &mut self,
        name: u64,
        told: bool,
        memory: &Registered,
        (offset, bytes): (u64, u32),
    ) -> Result<(), LinkError> {
        let extended = self.begin(name, told, 0);
        // SAFETY: work was begun.
        unsafe { rdma_sys::ibv_wr_send(extended) };
        let address = memory.region().start() + offset;
        // SAFETY: work was begun; the caller vouches for the memory.
        unsafe { rdma_sys::ibv_wr_set_sge(extended, memory.lkey(), address, bytes) };
        self.complete()
    }

    /// Reads a peer's memory into `pieces`, writes them there, or changes a number, whose old value comes into eight bytes of
    /// a piece. Nothing at all may be written: the peer's adapter answers all the same.
    ///
    /// # Safety
    /// Until the work has ended the pieces describe registered memory, valid for reads, or writes if it is read into, and
    /// nothing else touches it, or writes it.
    ///
    /// # Errors
    /// The queue is full; nothing was posted.
    ///
    /// # Panics
    /// More than [`PIECES_MAX`] pieces.
    pub(crate) unsafe fn move_bytes(
        &mut self,
        name: u64,
        told: bool,
        way: RdmaKind,
        pieces: &[Sge],
        (rkey, address): (u32, u64),
    ) -> Result<(), LinkError> {
        assert!(pieces.len() <= PIECES_MAX, "{} pieces", pieces.len());
        let mut list = [const { ibv_sge { addr: 0, length: 0, lkey: 0 } }; PIECES_MAX];
        for (to, piece) in list.iter_mut().zip(pieces) {
            *to = ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.lkey };
        }
        let extended = self.begin(name, told, 0);
        match way {
            // SAFETY: work was begun.
            RdmaKind::Read => unsafe { rdma_sys::ibv_wr_rdma_read(extended, rkey, address) },
            // SAFETY: as above.
            RdmaKind::Write => unsafe { rdma_sys::ibv_wr_rdma_write(extended, rkey, address) },
            // SAFETY: as above; the queue pair was made for that, else nobody has a key that allows it.
            RdmaKind::Change(Change::Add(more)) => unsafe {
                rdma_sys::ibv_wr_atomic_fetch_add(extended, rkey, address, more);
            },
            // SAFETY: as above.
            RdmaKind::Change(Change::CompareSwap { compare, swap }) => unsafe {
                rdma_sys::ibv_wr_atomic_cmp_swp(extended, rkey, address, compare, swap);
            },
        }
        // SAFETY: work was begun; the list has as many elements and lives through the call; the caller vouches for the
        // memory.
        unsafe { rdma_sys::ibv_wr_set_sge_list(extended, pieces.len(), list.as_ptr()) };
        self.complete()
    }
}
