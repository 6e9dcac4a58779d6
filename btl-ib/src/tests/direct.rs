//! Memory of devices that the adapter reaches by itself: refused, as by Soft-RoCE of Linux 6.1; and given, by an entry point
//! of these tests that maps the pretend device's file and registers that.

use super::{End, Patience, config, expect_health, joined};
use crate::verbs::library::{RegDmaBuf, library};
use crate::verbs::memory::FORCED;
use gapless_btl::{Access, Btl, Extent, Rdma, RdmaError, RemoteKey, Token};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, HostDevice, Region};
use rdma_sys::{ibv_mr, ibv_pd};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

thread_local! {
    static REGISTERED: Cell<u32> = const { Cell::new(0) };
}

/// In the place of `ibv_reg_dmabuf_mr`: maps the file, for good, and registers the mapping.
unsafe extern "C" fn accept(
    domain: *mut ibv_pd,
    offset: u64,
    len: usize,
    address: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    REGISTERED.set(REGISTERED.get() + 1);
    let (inner, bits) = (offset % 4096, u32::try_from(access).unwrap());
    let mapped = len + usize::try_from(inner).unwrap();
    let at = libc::off_t::try_from(offset - inner).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping of a file that is as long, wherever the kernel likes.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), mapped, protection, libc::MAP_SHARED, descriptor, at)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = start.wrapping_byte_add(usize::try_from(inner).unwrap());
    // SAFETY: the caller's domain; memory that is never unmapped, and that nothing refers to.
    unsafe { (library().unwrap().reg_mr_iova2)(domain, start, len, address, bits) }
}

/// Puts an entry point in the library's place until it is dropped.
struct Forced;

impl Forced {
    fn with(entry: Option<RegDmaBuf>) -> Forced {
        FORCED.set(Some(entry));
        REGISTERED.set(0);
        Forced
    }
}

impl Drop for Forced {
    fn drop(&mut self) {
        FORCED.set(None);
    }
}

/// Two ends with a device each.
fn equipped() -> ([End; 2], [Arc<FakeDevice>; 2]) {
    let mut ends = joined(config(0), config(1));
    let devices = [0, 1].map(|number| Arc::new(FakeDevice::new(number)));
    for (end, device) in ends.iter_mut().zip(&devices) {
        end.ib.attach(&(Arc::clone(device) as Arc<dyn Device>)).unwrap();
    }
    (ends, devices)
}

/// Memory of the host's that is never freed.
fn ground(len: u64) -> Region {
    HostDevice::new().allocate(len).unwrap()
}

fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + seed) >> 2).to_le_bytes()[0]).collect()
}

fn copy(device: &FakeDevice, to: Region, from: Region) {
    // SAFETY: both live through this call, which waits, and nothing else touches them.
    unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
}

fn fill(device: &FakeDevice, memory: Region, seed: u64) {
    copy(device, memory, Region::of(&pattern(memory.len(), seed)));
}

fn bytes(device: &FakeDevice, memory: Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(memory.len()).unwrap()];
    copy(device, Region::of_mut(&mut bytes), memory);
    bytes
}

/// One operation of the first end, to its end.
fn operate(
    [a, b]: &mut [End; 2],
    put: bool,
    local: &[Region],
    key: &RemoteKey,
) -> Result<(), RdmaError> {
    let (before, patience) = (a.completed.len(), Patience::new());
    let len = local.iter().map(Region::len).sum();
    let remote = [Extent { offset: 0, len }];
    let begun = if put {
        // SAFETY: tests free no memory before the end, and nothing else touches it.
        unsafe { a.ib.put(a.peer, local, key, &remote, Token(5)) }
    } else {
        // SAFETY: as above.
        unsafe { a.ib.get(a.peer, local, key, &remote, Token(5)) }
    };
    begun?;
    while a.completed.len() == before {
        a.poll();
        b.poll();
        patience.tick("the end of an operation");
    }
    assert_eq!(a.completed.last(), Some(&Ok(())));
    Ok(())
}

/// The device or the library cannot: a typed refusal, nothing has moved, and the link stands.
#[test]
fn memory_of_devices_that_is_refused_moves_nothing() {
    for is_forced in [false, true] {
        let _forced = is_forced.then(|| Forced::with(None));
        let (mut ends, [own, far]) = equipped();
        let host = ground(5000);
        // SAFETY: `ground` is never freed.
        let key = unsafe { ends[1].ib.register(host, Access::Write) }.unwrap();
        let (mine, theirs) = (own.allocate(5000).unwrap(), far.allocate(5000).unwrap());
        fill(&own, mine, 3);
        for put in [false, true] {
            let refused = operate(&mut ends, put, &[mine], &key);
            let Err(RdmaError::Unavailable { reason }) = refused else { panic!("{refused:?}") };
            assert!(reason.contains("ibv_reg_dmabuf_mr"), "{reason}");
            assert_eq!(reason.contains("older"), is_forced, "{reason}");
        }
        // SAFETY: the device outlives the transport, and nothing touches the memory.
        let refused = unsafe { ends[1].ib.register(theirs, Access::Read) };
        assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
        assert_eq!((bytes(&own, mine), ends[0].ib.one_sided.in_use()), (pattern(5000, 3), 0));
        expect_health(&mut ends);
    }
}

#[test]
fn the_adapter_reads_and_writes_memory_of_devices() {
    let _forced = Forced::with(Some(accept));
    let (mut ends, [own, far]) = equipped();
    let (mine, theirs) = (own.allocate(300_000).unwrap(), far.allocate(300_000).unwrap());
    // Not from the beginning of either, nor of a page.
    let [mine_part, their_part] =
        [(mine, 77), (theirs, 5001)].map(|(it, at)| it.sub(at, 200_000).unwrap());
    fill(&far, their_part, 1);
    fill(&own, mine, 2);
    // SAFETY: the device outlives the transport, and nothing else touches the memory.
    let key = unsafe { ends[1].ib.register(their_part, Access::Read) }.unwrap();
    operate(&mut ends, false, &[mine_part], &key).unwrap();
    assert!(bytes(&own, mine_part) == pattern(200_000, 1));
    assert!(bytes(&own, mine)[..77] == pattern(77, 2), "and no more");
    assert_eq!((own.settled(), far.settled(), REGISTERED.get()), (1, 0, 2));
    // From there to the host's memory, by the same registration.
    let host = ground(300_000);
    // SAFETY: `ground` is never freed.
    let host_key = unsafe { ends[1].ib.register(host, Access::Write) }.unwrap();
    operate(&mut ends, true, &[mine.sub(0, 100).unwrap(), mine_part], &host_key).unwrap();
    let mut there = vec![0; 200_100];
    // SAFETY: `ground` is never freed, and the operation has ended.
    unsafe { gapless_mem::read(&host, 0, &mut there) }.unwrap();
    assert!(there[100..] == pattern(200_000, 1) && there[..77] == pattern(77, 2));
    assert_eq!((own.settled(), REGISTERED.get()), (1, 2), "nothing was written there");
    // Nobody would tell the device of it.
    // SAFETY: refused.
    let refused = unsafe { ends[1].ib.register(theirs, Access::Write) };
    assert!(matches!(refused, Err(RdmaError::Unavailable { .. })), "{refused:?}");
    // Other memory, perhaps at the same addresses: it has another number.
    // SAFETY: the device's own, and the operations have ended.
    unsafe { own.free(mine) }.unwrap();
    let mine = own.allocate(300_000).unwrap();
    operate(&mut ends, false, &[mine.sub(8, 200_000).unwrap()], &key).unwrap();
    assert!(bytes(&own, mine.sub(8, 200_000).unwrap()) == pattern(200_000, 1));
    assert_eq!((own.settled(), REGISTERED.get()), (2, 3));
    ends[1].ib.deregister(&key);
    expect_health(&mut ends);
}

/// Buffers of messages are known to devices, so that these pack and unpack there without staging.
#[test]
fn what_cannot_be_reached_goes_through_page_locked_buffers() {
    let (mut ends, [own, _]) = equipped();
    assert!(!own.registered().is_empty());
    let memory = own.allocate(4000).unwrap();
    fill(&own, memory, 9);
    let [a, b] = &mut ends;
    let slot = a.ib.reserve(a.peer, 4000).unwrap();
    assert_eq!(slot.region().space(), gapless_mem::Space::Pinned);
    copy(&own, slot.region(), memory);
    a.ib.send(slot, gapless_btl::AmTag(3), Token::NONE);
    let patience = Patience::new();
    while b.heard.is_empty() {
        a.poll();
        b.poll();
        patience.tick("the message");
    }
    assert!(b.heard[0] == pattern(4000, 9));
    drop(ends);
    assert!(own.registered().is_empty());
}
