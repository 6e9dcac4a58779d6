//! Completion queue and its channel; shared receive queue.

use super::device::Context;
use super::memory::{Domain, Registered};
use super::{over, refused, refused_as};
use gapless_btl::LinkError;
use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags as wanted,
    ibv_poll_cq_attr, ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

/// Completions taken at a time.
pub(crate) const BATCH: usize = 64;

/// Tells of completions.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: verbs may be called from any thread, also at the same time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// One whose descriptor does not block.
    ///
    /// # Errors
    /// No descriptors.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Channel>, LinkError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library.create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_create_comp_channel"))?;
        let channel = Channel { context: Arc::clone(context), raw };
        crate::dont_block(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the channel's own descriptor, open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes what the channel has told, so that its descriptor is not readable; whether there was anything.
    pub(crate) fn hush(&self) -> bool {
        let mut any = false;
        loop {
            let (mut cq, mut context) = (null_mut::<ibv_cq>(), null_mut());
            let library = self.context.library;
            // SAFETY: the channel lives, and both pointers are to variables that live through the call.
            let none =
                unsafe { (library.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut context) };
            if none != 0 {
                return any;
            }
            any = true;
            // SAFETY: the queue told something just now, so it lives: whoever destroys it keeps the channel and is in
            // this thread. Each event is acknowledged once.
            unsafe { (library.ack_cq_events)(cq, 1) };
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: destroyed once; its completion queues keep it, so there is none any more.
        let _ = unsafe { (self.context.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Cq {
    context: Arc<Context>,
    pub(crate) channel: Arc<Channel>,
    raw: NonNull<ibv_cq_ex>,
}

// SAFETY: verbs may be called from any thread, also at the same time; only a `Poller`, of which there is one, polls.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// The end of something posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// The poster's name for it.
    pub(crate) name: u64,
    /// 0 if it went well.
    pub(crate) status: u32,
    /// Of what arrived; meaningless if it did not go well.
    pub(crate) bytes: u32,
    /// Of which queue pair.
    pub(crate) number: u32,
}

/// The one that polls a completion queue.
pub(crate) struct Poller {
    pub(crate) cq: Arc<Cq>,
    entries: u32,
}

impl Poller {
    /// # Errors
    /// The device has no more, or not so long ones.
    pub(crate) fn new(channel: &Arc<Channel>, entries: u32) -> Result<Poller, LinkError> {
        let context = Arc::clone(&channel.context);
        let extended = context.extended()?;
        // SAFETY: the extended verbs of an open device.
        let create = unsafe { (*extended.as_ptr()).create_cq_ex };
        let Some(create) = create else {
            let reason = "the device has no extended completion queues".to_owned();
            return Err(LinkError::Unreachable { reason });
        };
        let flags = wanted::IBV_WC_EX_WITH_BYTE_LEN.0 | wanted::IBV_WC_EX_WITH_QP_NUM.0;
        let mut wishes = ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: null_mut(),
            channel: channel.raw.as_ptr(),
            comp_vector: 0,
            wc_flags: u64::from(flags),
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        // SAFETY: device and channel live; the structure is that of the call, and lives through it.
        let raw = unsafe { create(context.raw(), &raw mut wishes) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_create_cq_ex"))?;
        let cq = Arc::new(Cq { context, channel: Arc::clone(channel), raw });
        Ok(Poller { cq, entries })
    }

    /// Makes room for so many completions.
    ///
    /// # Errors
    /// The device has not so long ones.
    pub(crate) fn fit(&mut self, entries: u32) -> Result<(), LinkError> {
        if entries <= self.entries {
            return Ok(());
        }
        let entries = entries.next_power_of_two();
        let length = i32::try_from(entries).unwrap_or(i32::MAX);
        let cq = &self.cq;
        // SAFETY: the queue lives, and nobody polls it now.
        let errno = unsafe { (cq.context.library.resize_cq)(cq.plain(), length) };
        if errno != 0 {
            return Err(refused_as("ibv_resize_cq", errno));
        }
        self.entries = entries;
        Ok(())
    }

    /// Takes up to [`BATCH`] completions; how many there were.
    pub(crate) fn poll(&mut self, into: &mut Vec<Done>) -> usize {
        let taken = std::iter::from_fn(|| self.next()).take(BATCH);
        let before = into.len();
        into.extend(taken);
        into.len() - before
    }

    /// The next completion. One poll of the library each: `ibv_next_poll` of Soft-RoCE's provider ends the poll by itself
    /// where there is no more, so that `ibv_end_poll`, which is due then, gives completions that never were.
    fn next(&mut self) -> Option<Done> {
        let raw = self.cq.raw.as_ptr();
        let mut how = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue lives, `&mut self` is the only one that polls it, and the structure is that of the call.
        if unsafe { rdma_sys::ibv_start_poll(raw, &raw mut how) } != 0 {
            return None;
        }
        // SAFETY: the poll stands at a completion, whose name and status are fields.
        let name = unsafe { (*raw).wr_id };
        // SAFETY: as above.
        let status = unsafe { (*raw).status };
        // SAFETY: as above; the number was asked for when the queue was made.
        let number = unsafe { rdma_sys::ibv_wc_read_qp_num(raw) };
        let mut bytes = 0;
        if status == 0 {
            // SAFETY: as above, so was the length.
            bytes = unsafe { rdma_sys::ibv_wc_read_byte_len(raw) };
        }
        // SAFETY: the poll was begun, and ends once.
        unsafe { rdma_sys::ibv_end_poll(raw) };
        Some(Done { name, status, bytes, number })
    }

    /// The next completion makes the channel's descriptor readable.
    pub(crate) fn arm(&self) {
        // SAFETY: the queue lives.
        let _ = unsafe { rdma_sys::ibv_req_notify_cq(self.cq.plain(), 0) };
    }
}

impl Cq {
    /// As the other verbs want it.
    pub(crate) fn plain(&self) -> *mut ibv_cq {
        self.raw.as_ptr().cast()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: destroyed once; queue pairs keep it, so none uses it any more; what its channel told is acknowledged.
        let _ = unsafe { (self.context.library.destroy_cq)(self.plain()) };
    }
}

/// Buffers that are posted as one list, at most.
pub(crate) const LISTED: usize = 16;

/// A buffer to be posted: where it lies, and its name.
pub(crate) struct Vacant<'m> {
    pub(crate) name: u64,
    pub(crate) memory: &'m Registered,
    pub(crate) offset: u64,
}

/// A receive queue that serves many queue pairs.
pub(crate) struct Srq {
    pub(crate) domain: Arc<Domain>,
    raw: NonNull<ibv_srq>,
    /// What buffers lie in: it outlives the queue, so a buffer may be posted as long as nobody else has it.
    kept: Mutex<Vec<Arc<Registered>>>,
}

// SAFETY: verbs may be called from any thread, also at the same time.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// # Errors
    /// The device has no more, or not so long ones.
    pub(crate) fn new(domain: &Arc<Domain>, entries: u32) -> Result<Arc<Srq>, LinkError> {
        let attr = ibv_srq_attr { max_wr: entries, max_sge: 1, srq_limit: 0 };
        let mut wishes = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let library = domain.context.library;
        // SAFETY: the domain lives; the structure is that of the call, and lives through it.
        let raw = unsafe { (library.create_srq)(domain.raw(), &raw mut wishes) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_create_srq"))?;
        Ok(Arc::new(Srq { domain: Arc::clone(domain), raw, kept: Mutex::default() }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Keeps memory as long as the queue.
    pub(crate) fn keep(&self, memory: &Arc<Registered>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(memory));
    }

    /// Posts buffers of `bytes` each, as one list: the adapter is told once.
    ///
    /// # Safety
    /// The memory of each was given to [`keep`](Srq::keep). Nobody touches the buffers until their completions.
    ///
    /// # Panics
    /// More than [`LISTED`].
    ///
    /// # Errors
    /// The queue is full, or the device is gone; the first ones may have been posted.
    pub(crate) unsafe fn post(&self, buffers: &[Vacant<'_>], bytes: u32) -> Result<(), LinkError> {
        assert!(buffers.len() <= LISTED, "{} buffers", buffers.len());
        if buffers.is_empty() {
            return Ok(());
        }
        let mut pieces = [const { ibv_sge { addr: 0, length: 0, lkey: 0 } }; LISTED];
        for (piece, buffer) in pieces.iter_mut().zip(buffers) {
            let addr = buffer.memory.region().start() + buffer.offset;
            *piece = ibv_sge { addr, length: bytes, lkey: buffer.memory.lkey() };
        }
        let none = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let mut works = [none; LISTED];
        // From the last to the first, each of which knows the next.
        let mut next = null_mut();
        let slots = works.iter_mut().zip(&mut pieces).zip(buffers);
        for ((work, piece), buffer) in slots.rev() {
            *work = ibv_recv_wr { wr_id: buffer.name, next, sg_list: piece, num_sge: 1 };
            next = work;
        }
        #[cfg(test)]
        super::pair::COUNTS.with_borrow_mut(|counts| counts.receives_told += 1);
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue lives; `next` is the first of a list whose elements were made just now, and live through the call;
        // the caller vouches for the buffers, which are registered, and `kept` outlives the queue.
        let errno = unsafe { rdma_sys::ibv_post_srq_recv(self.raw(), next, bad.as_mut_ptr()) };
        if errno == 0 { Ok(()) } else { Err(refused_as("ibv_post_srq_recv", errno)) }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: destroyed once; queue pairs keep it, so none uses it any more.
        let errno = unsafe { (self.domain.context.library.destroy_srq)(self.raw()) };
        if over(errno).is_err() {
            // The adapter may still write into the buffers: they stay for good.
            let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(kept));
        }
    }
}
