//! The queue pair of datagrams, and the addresses that they go to.

use super::memory::{Domain, Registered};
use super::pair::{Here, Lengths, Raw};
use super::queues::Cq;
use super::{refused, refused_as};
use crate::qp_address::QpAddress;
use gapless_btl::LinkError;
use rdma_sys::{
    ibv_ah, ibv_ah_attr, ibv_qp_attr_mask as mask, ibv_qp_state as state, ibv_qp_type, ibv_recv_wr,
    ibv_send_flags, ibv_sge,
};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// What adapters put before a datagram that has arrived: whence it came.
pub(crate) const ROUTE_BYTES: u32 = 40;

/// Points `at` to `peer`.
pub(super) fn direct(at: &mut ibv_ah_attr, here: Here, peer: &QpAddress) {
    at.dlid = peer.lid;
    at.port_num = here.port;
    at.sl = here.service_level;
    at.is_global = 1;
    at.grh.dgid.raw = peer.gid;
    at.grh.sgid_index = here.gid_index;
    at.grh.traffic_class = here.traffic_class;
    // As many as any route of ours has.
    at.grh.hop_limit = 64;
}

/// A place to which datagrams can go.
pub(crate) struct DatagramRoute {
    domain: Arc<Domain>,
    raw: NonNull<ibv_ah>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for DatagramRoute {}

impl DatagramRoute {
    /// May wait for the system to find the way.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        here: Here,
        to: &QpAddress,
    ) -> Result<DatagramRoute, LinkError> {
        let mut wish = MaybeUninit::<ibv_ah_attr>::zeroed();
        // SAFETY: numbers only, for which zero is a value.
        let wish = unsafe { wish.assume_init_mut() };
        direct(wish, here, to);
        // SAFETY: the domain lives; the structure is that of the call, and lives through it.
        let raw = unsafe { (domain.context.library.create_ah)(domain.raw(), &raw mut *wish) };
        let raw = NonNull::new(raw).ok_or_else(|| refused("ibv_create_ah"))?;
        Ok(DatagramRoute { domain: Arc::clone(domain), raw })
    }
}

impl Drop for DatagramRoute {
    fn drop(&mut self) {
        // SAFETY: destroyed once. What was posted to it has copied it, or fails.
        let _ = unsafe { (self.domain.context.library.destroy_ah)(self.raw.as_ptr()) };
    }
}

/// A queue pair that sends and receives datagrams.
pub(crate) struct Datagrams {
    raw: Raw,
    number: u32,
    here: Here,
    key: u32,
    memory: Arc<Registered>,
}

impl Datagrams {
    /// One that works on `memory`, which is its alone.
    ///
    /// # Errors
    /// The device refused.
    pub(crate) fn new(
        cq: &Arc<Cq>,
        here: Here,
        key: u32,
        memory: &Arc<Registered>,
        domain: &Arc<Domain>,
        (sends, receives): (u32, u32),
    ) -> Result<Datagrams, LinkError> {
        let lengths = Lengths { sends, receives, inline_bytes: 0, atomics: false };
        let (mut raw, number) = Raw::new(domain, cq, None, ibv_qp_type::IBV_QPT_UD, &lengths)?;
        raw.keep(memory);
        let mut pair = Datagrams { raw, number, here, key, memory: Arc::clone(memory) };
        pair.start()?;
        Ok(pair)
    }

    /// Takes it from reset to where it sends and receives.
    fn start(&mut self) -> Result<(), LinkError> {
        let (here, key) = (self.here, self.key);
        let set =
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        self.raw.modify(set, |to| {
            to.qp_state = state::IBV_QPS_INIT;
            to.port_num = here.port;
            to.pkey_index = here.pkey_index;
            to.qkey = key;
        })?;
        self.raw.modify(mask::IBV_QP_STATE, |to| to.qp_state = state::IBV_QPS_RTR)?;
        self.raw.modify(mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN, |to| {
            to.qp_state = state::IBV_QPS_RTS;
        })
    }

    /// Begins anew after an error, with nothing posted: what was will not be told any more.
    ///
    /// # Errors
    /// The device refused, as when it is gone.
    pub(crate) fn restart(&mut self) -> Result<(), LinkError> {
        self.raw.modify(mask::IBV_QP_STATE, |to| to.qp_state = state::IBV_QPS_ERR)?;
        self.raw.modify(mask::IBV_QP_STATE, |to| to.qp_state = state::IBV_QPS_RESET)?;
        self.start()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Posts a buffer.
    ///
    /// # Safety
    /// Nobody touches it until its completion.
    ///
    /// # Errors
    /// The queue is full, or the device is gone.
    pub(crate) unsafe fn receive(
        &mut self,
        name: u64,
        (offset, bytes): (u64, u32),
    ) -> Result<(), LinkError> {
        let addr = self.memory.region().start() + offset;
        let mut piece = ibv_sge { addr, length: bytes, lkey: self.memory.lkey() };
        let mut work =
            ibv_recv_wr { wr_id: name, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = MaybeUninit::uninit();
        let qp = self.raw.qp.as_ptr();
        // SAFETY: the queue pair lives; the lists have one element and live through the call; the caller vouches for the
        // buffer, and the queue pair keeps its memory.
        let errno = unsafe { rdma_sys::ibv_post_recv(qp, &raw mut work, bad.as_mut_ptr()) };
        if errno == 0 { Ok(()) } else { Err(refused_as("ibv_post_recv", errno)) }
    }

    /// Sends a buffer to the queue pair `number` that `way` leads to.
    ///
    /// # Safety
    /// Nobody writes it until its completion.
    ///
    /// # Errors
    /// The queue is full, or the device is gone.
    pub(crate) unsafe fn send(
        &mut self,
        name: u64,
        (offset, bytes): (u64, u32),
        way: &DatagramRoute,
        (number, key): (u32, u32),
    ) -> Result<(), LinkError> {
        let extended = self.raw.extended.as_ptr();
        // SAFETY: the queue pair lives, and `&mut self` is the only one that posts to it.
        unsafe { rdma_sys::ibv_wr_start(extended) };
        // SAFETY: as above; a plain field.
        unsafe { (*extended).wr_id = name };
        // SAFETY: as above.
        unsafe { (*extended).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 };
        // SAFETY: work was begun.
        unsafe { rdma_sys::ibv_wr_send(extended) };
        // SAFETY: work was begun, and the way is of the same domain.
        unsafe { rdma_sys::ibv_wr_set_ud_addr(extended, way.raw.as_ptr(), number, key) };
        let address = self.memory.region().start() + offset;
        // SAFETY: work was begun; the caller vouches for the buffer, and the queue pair keeps its memory.
        unsafe { rdma_sys::ibv_wr_set_sge(extended, self.memory.lkey(), address, bytes) };
        // SAFETY: every part of the work is set.
        let errno = unsafe { rdma_sys::ibv_wr_complete(extended) };
        if errno == 0 { Ok(()) } else { Err(refused_as("ibv_wr_complete", errno)) }
    }
}
