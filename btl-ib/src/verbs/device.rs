//! Devices, their ports and addresses.

use super::flags::Capabilities;
use super::library::{Library, library};
use super::{refused, refused_as};
use crate::address::LinkKind;
use gapless_btl::LinkError;
use rdma_sys::{
    ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_qp, verbs_context,
};
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// GIDs of a port that are looked at.
const GIDS_MAX: u32 = 256;

/// A device's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) capabilities: Capabilities,
    pub(crate) shared_receives_max: u32,
    pub(crate) sends_max: u32,
    /// Reads that a queue pair may have under way, and may serve.
    pub(crate) reads_max: u8,
    pub(crate) reads_served_max: u8,
    pub(crate) ports: u8,
    /// Whether all pieces of a list must have one length: Soft-RoCE's provider takes them to be as long as the first.
    pub(crate) even_pieces: bool,
}

/// What Soft-RoCE's driver gives as its vendor.
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// A port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) active: bool,
    pub(crate) kind: LinkKind,
    pub(crate) lid: u16,
    /// The largest packet, as verbs number them: 1 is 256 bytes, 5 is 4,096.
    pub(crate) mtu: u8,
    /// Lanes times the speed of each, in Mbit/s; 0 if the device does not say.
    pub(crate) mbit_s: u32,
    pub(crate) longest_message: u32,
    /// The length of its table of partitions.
    pub(crate) partitions: u16,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) index: u8,
    pub(crate) bytes: [u8; 16],
    pub(crate) kind: GidKind,
}

/// How packets with the address travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// An open device.
pub(crate) struct Context {
    pub(crate) library: &'static Library,
    raw: NonNull<ibv_context>,
    pub(crate) name: String,
}

// SAFETY: verbs of an open device may be called from any thread, also at the same time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the device was opened and is closed once; everything made of it keeps it, so nothing is left.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// The list of devices; freed on drop.
struct List {
    library: &'static Library,
    first: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn new() -> Result<List, LinkError> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| refused("ibv_get_device_list"))?;
        Ok(List { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the list has as many elements as it said, initialised and unchanged until it is freed.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is freed once, and devices that are open do not need it.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) }
    }
}

/// A device of the list: open, or its name and why it cannot be opened.
pub(crate) type Listed = Result<Arc<Context>, (String, LinkError)>;

/// Opens every device that can be opened.
///
/// # Errors
/// There is no library, or no support in the kernel.
pub(crate) fn all() -> Result<Vec<Listed>, LinkError> {
    let list = List::new()?;
    let library = list.library;
    let mut all = Vec::new();
    for &device in list.devices() {
        // SAFETY: an element of the list, which is freed later.
        let name = unsafe { (library.get_device_name)(device) };
        // SAFETY: the name of a device is a string that ends with a zero, and lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let raw = unsafe { (library.open_device)(device) };
        all.push(match NonNull::new(raw) {
            Some(raw) => Ok(Arc::new(Context { library, raw, name })),
            None => Err((name, refused("ibv_open_device"))),
        });
    }
    Ok(all)
}

impl Context {
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The extended verbs.
    ///
    /// # Errors
    /// The library was built without.
    pub(crate) fn extended(&self) -> Result<NonNull<verbs_context>, LinkError> {
        // SAFETY: the device is open.
        let compat = unsafe { (*self.raw()).abi_compat };
        if compat.addr() != usize::MAX {
            let reason = "the device has no extended verbs".to_owned();
            return Err(LinkError::Unreachable { reason });
        }
        let before = std::mem::offset_of!(verbs_context, context);
        // SAFETY: that mark says that the context is the field `context` of a `verbs_context`.
        let raw = unsafe { self.raw.byte_sub(before) };
        Ok(raw.cast())
    }

    /// # Errors
    /// The device does not answer.
    pub(crate) fn numbers(&self) -> Result<Numbers, LinkError> {
        let mut out = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the device is open, and the structure is that of the call.
        let errno = unsafe { (self.library.query_device)(self.raw(), out.as_mut_ptr()) };
        if errno != 0 {
            return Err(refused_as("ibv_query_device", errno));
        }
        // SAFETY: zeroed, of numbers only, and then filled.
        let out = unsafe { out.assume_init() };
        let number = |number: i32| u32::try_from(number).unwrap_or(0);
        let byte = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        let mut capabilities = Capabilities::from_bits_retain(out.device_cap_flags);
        capabilities.set(Capabilities::ATOMICS, out.atomic_cap != 0);
        Ok(Numbers {
            capabilities,
            shared_receives_max: number(out.max_srq_wr),
            sends_max: number(out.max_qp_wr),
            reads_max: byte(out.max_qp_init_rd_atom),
            reads_served_max: byte(out.max_qp_rd_atom),
            ports: out.phys_port_cnt,
            even_pieces: out.vendor_id == SOFT_ROCE,
        })
    }

    /// # Errors
    /// There is no such port.
    pub(crate) fn port(&self, number: u8) -> Result<Port, LinkError> {
        let extended = self.extended()?;
        // SAFETY: the extended verbs of an open device.
        let query = unsafe { (*extended.as_ptr()).query_port };
        let Some(query) = query else {
            let reason = "the library has no query of ports".to_owned();
            return Err(LinkError::Unreachable { reason });
        };
        let mut out = MaybeUninit::<ibv_port_attr>::zeroed();
        let len = size_of::<ibv_port_attr>();
        // SAFETY: the device is open; no more than the length said is written.
        let errno = unsafe { query(self.raw(), number, out.as_mut_ptr(), len) };
        if errno != 0 {
            return Err(refused_as("ibv_query_port", errno));
        }
        // SAFETY: zeroed, of numbers only, and then filled.
        let out = unsafe { out.assume_init() };
        Ok(Port {
            number,
            active: out.state == rdma_sys::ibv_port_state::IBV_PORT_ACTIVE,
            kind: if out.link_layer == 2 { LinkKind::Ethernet } else { LinkKind::InfiniBand },
            lid: out.lid,
            mtu: u8::try_from(out.active_mtu.clamp(1, 5)).unwrap_or(1),
            mbit_s: lanes(out.active_width) * lane_mbit_s(out.active_speed),
            longest_message: out.max_msg_sz,
            partitions: out.pkey_tbl_len,
        })
    }

    /// The addresses of a port that are set, at most 256.
    pub(crate) fn gids(&self, port: &Port) -> Vec<Gid> {
        (0..GIDS_MAX).filter_map(|index| self.gid(port, index)).collect()
    }

    fn gid(&self, port: &Port, index: u32) -> Option<Gid> {
        let mut out = MaybeUninit::<ibv_gid_entry>::zeroed();
        let len = size_of::<ibv_gid_entry>();
        let at = u32::from(port.number);
        // SAFETY: the device is open; no more than the length said is written.
        let errno =
            unsafe { (self.library.query_gid_ex)(self.raw(), at, index, out.as_mut_ptr(), 0, len) };
        let index = u8::try_from(index).ok()?;
        if errno != 0 {
            return self.gid_of_old_kernel(port, index);
        }
        // SAFETY: zeroed, of numbers only, and then filled.
        let out = unsafe { out.assume_init() };
        // SAFETY: both fields of the union are sixteen bytes.
        let bytes = unsafe { out.gid.raw };
        let kind = match out.gid_type {
            0 => GidKind::InfiniBand,
            1 => GidKind::RoceV1,
            _ => GidKind::RoceV2,
        };
        (bytes != [0; 16]).then_some(Gid { index, bytes, kind })
    }

    /// Kernels before 5.11 tell GIDs on InfiniBand this way; those of RoCE are not told apart.
    fn gid_of_old_kernel(&self, port: &Port, index: u8) -> Option<Gid> {
        if port.kind == LinkKind::Ethernet {
            return None;
        }
        let mut out = MaybeUninit::<ibv_gid>::zeroed();
        // SAFETY: the device is open, and the structure is that of the call.
        let errno = unsafe {
            (self.library.query_gid)(self.raw(), port.number, i32::from(index), out.as_mut_ptr())
        };
        // SAFETY: zeroed, and then filled or not.
        let out = unsafe { out.assume_init() };
        // SAFETY: both fields of the union are sixteen bytes.
        let bytes = unsafe { out.raw };
        let set = errno == 0 && bytes[8..] != [0; 8];
        set.then_some(Gid { index, bytes, kind: GidKind::InfiniBand })
    }

    /// What the status of a completion means.
    pub(crate) fn status_text(&self, status: u32) -> String {
        // SAFETY: any number is allowed.
        let text = unsafe { (self.library.wc_status_str)(status) };
        // SAFETY: the library gives constant strings that end with a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// What the device says of itself, to be waited for.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open.
        let fd = unsafe { (*self.raw()).async_fd };
        // SAFETY: the device's own descriptor, open as long as it is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next thing that the device says of itself. The descriptor must not block.
    pub(crate) fn event(&self) -> Option<DeviceEvent> {
        // Two words: the first says what it concerns, the second is the kind. Not the structure itself, since the kind may
        // be one that the bindings do not know.
        const { assert!(size_of::<ibv_async_event>() == 16) };
        let mut words = [0u64; 2];
        let event = (&raw mut words).cast::<ibv_async_event>();
        // SAFETY: the device is open, and what is written has the size of the words, and no greater alignment.
        if unsafe { (self.library.get_async_event)(self.raw(), event) } != 0 {
            return None;
        }
        let first =
            |word: u64| u32::from_ne_bytes(*word.to_ne_bytes().first_chunk().expect("eight"));
        let (port, kind) = (first(words[0]), first(words[1]));
        let mut pair = 0;
        if matches!(kind, 1..=3 | 16)
            && let Ok(address) = usize::try_from(words[0])
        {
            let qp = std::ptr::with_exposed_provenance::<ibv_qp>(address);
            // SAFETY: with these kinds the first word is the queue pair, which cannot be destroyed before the event is
            // acknowledged.
            pair = unsafe { (*qp).qp_num };
        }
        // SAFETY: the event was got, and is acknowledged once.
        unsafe { (self.library.ack_async_event)(event) };
        // The numbers of `enum ibv_event_type`.
        Some(match kind {
            0 | 14 => DeviceEvent::QueueFailed,
            1 => DeviceEvent::PairFailed(pair),
            2 | 3 => DeviceEvent::PairAbused(pair),
            16 => DeviceEvent::LastBuffer(pair),
            8 => DeviceEvent::DeviceGone,
            9 => DeviceEvent::PortUp(port),
            10 => DeviceEvent::PortDown(port),
            other => DeviceEvent::Other(other),
        })
    }
}

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceEvent {
    /// The completion queue, or the shared receive queue.
    QueueFailed,
    /// The adapter could not go on with the queue pair of this number.
    PairFailed(u32),
    /// Its peer asked for what it may not.
    PairAbused(u32),
    /// It takes no more buffers out of the shared receive queue.
    LastBuffer(u32),
    DeviceGone,
    PortUp(u32),
    PortDown(u32),
    Other(u32),
}

fn lanes(width: u8) -> u32 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Of one lane, payload of its coding.
fn lane_mbit_s(speed: u8) -> u32 {
    match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    }
}

impl Gid {
    /// The one that peers are most likely to reach.
    pub(crate) fn best(gids: &[Gid]) -> Option<Gid> {
        let rank = |gid: &&Gid| {
            let v4 = gid.bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let link_local = gid.bytes[..2] == [0xfe, 0x80];
            match gid.kind {
                GidKind::RoceV2 if v4 => 0,
                GidKind::RoceV2 if !link_local => 1,
                GidKind::InfiniBand => 2,
                GidKind::RoceV2 => 3,
                GidKind::RoceV1 => 4,
            }
        };
        gids.iter().min_by_key(rank).copied()
    }
}
