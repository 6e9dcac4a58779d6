//! Memory and completions between processes.

use crate::gpu::{Flag, Memory, device, function, kernels, pattern, read, skip, wait, write};
use crate::kin::{Kin, hear, hex, part, say, unhex};
use gapless_mem::{Completion, Device, DeviceError, Export};
use gapless_mem_cuda::{Argument, Grid};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

fn bytes_only(text: &str) -> Export {
    Export { bytes: unhex(text), descriptors: Vec::new() }
}

/// Seeds and places (offset, length) of what one process exports to the other.
const PIECES: [(u64, u64, u64); 4] =
    [(11, 0, 4096), (12, 100, 1000), (13, 4096, 8 << 20), (14, 1 << 20, 3)];

#[test]
fn device_memory_is_read_and_written_by_another_process() {
    const TEST: &str = "share::device_memory_is_read_and_written_by_another_process";
    let Some(device) = device("memory between processes") else { return };
    if part().is_some() {
        for (seed, _, len) in PIECES {
            let key = hear();
            let region = device.import(bytes_only(&key)).unwrap();
            assert_eq!((region.len(), region.space()), (len, device.space()));
            let again = device.import(bytes_only(&key)).unwrap();
            assert_eq!(again.start(), region.start(), "mapped once");
            let expected = pattern(usize::try_from(len).unwrap(), seed);
            assert!(read(&device, region) == expected, "piece {seed}");
            let answer = pattern(usize::try_from(len).unwrap(), seed + 100);
            write(&device, region, &answer);
            // SAFETY: nothing uses either any more.
            unsafe { device.release(again) }.unwrap();
            assert!(read(&device, region) == answer, "one release of two leaves it mapped");
            // SAFETY: as above.
            unsafe { device.release(region) }.unwrap();
            assert_eq!(device.imported(), 0);
            // SAFETY: refused.
            assert!(unsafe { device.release(region) }.is_err());
            say("done");
        }
        let mut wrong = unhex(&hear());
        *wrong.last_mut().unwrap() ^= 0xFF;
        wrong[80..100].fill(0x5A);
        let refused = device.import(Export { bytes: wrong, descriptors: Vec::new() });
        assert!(matches!(refused, Err(DeviceError::Failed { .. })), "{refused:?}");
        assert!(device.lost().is_none());
        say("refused");
        return;
    }
    // Small allocations share the driver's blocks; each must be found at its own place.
    let mut memories: Vec<Memory> =
        PIECES.iter().map(|(_, offset, len)| Memory::on(&device, offset + len)).collect();
    let mut other = Kin::start(TEST, "importer", &[]);
    for (memory, (seed, offset, len)) in memories.iter_mut().zip(PIECES) {
        let region = memory.region().sub(offset, len).unwrap();
        write(&device, region, &pattern(usize::try_from(len).unwrap(), seed));
        let export = device.export(region).unwrap();
        assert!(export.descriptors.is_empty());
        other.tell(&hex(&export.bytes));
        assert_eq!(other.hear(), "done");
        let answer = pattern(usize::try_from(len).unwrap(), seed + 100);
        assert!(read(&device, region) == answer, "piece {seed}");
    }
    let export = device.export(memories[0].region()).unwrap();
    other.tell(&hex(&export.bytes));
    assert_eq!(other.hear(), "refused");
}

#[test]
fn what_this_process_exported_comes_back_as_what_it_is() {
    let Some(device) = device("importing one's own memory") else { return };
    let mut plain = Memory::on(&device, 10_000);
    let mut shareable =
        Memory::Own(Arc::clone(&device), device.allocate_shareable(10_000).unwrap());
    for memory in [&mut plain, &mut shareable] {
        let region = memory.region().sub(256, 5_000).unwrap();
        let back = device.import(device.export(region).unwrap()).unwrap();
        assert_eq!(
            (back.start(), back.len(), back.space()),
            (region.start(), region.len(), region.space())
        );
        // SAFETY: nothing uses it.
        unsafe { device.release(back) }.unwrap();
    }
    let stale = device.export(plain.region()).unwrap();
    drop(plain);
    let error = device.import(stale).unwrap_err();
    assert!(error.to_string().contains("freed"), "{error}");
}

#[test]
fn only_whole_regions_of_device_memory_are_exported() {
    let Some(device) = device("exports that are refused") else { return };
    let mut memory = Memory::on(&device, 4096);
    let region = memory.region();
    let beyond = gapless_mem::Region::new(region.space(), region.address(), 4000, 97);
    assert!(matches!(device.export(beyond), Err(DeviceError::OutOfRange(_))));
    let pinned = device.pinned(64).unwrap();
    assert!(matches!(device.export(pinned.region()), Err(DeviceError::WrongSpace { .. })));
}

#[test]
fn an_allocation_at_the_same_address_has_another_key() {
    let Some(device) = device("keys of reused addresses") else { return };
    for _ in 0..50 {
        let first = device.allocate(24 << 20).unwrap();
        let old = device.export(first).unwrap();
        // SAFETY: nothing uses it.
        unsafe { device.free(first) }.unwrap();
        let second = device.allocate(24 << 20).unwrap();
        let new = device.export(second).unwrap();
        // SAFETY: nothing uses it.
        unsafe { device.free(second) }.unwrap();
        assert_ne!(old.bytes, new.bytes);
        if second.start() == first.start() {
            return;
        }
    }
    skip("keys of reused addresses", "the driver gave no address a second time in 50 tries");
}

/// A socket in the abstract name space, by a name that no other run has.
fn socket_name() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    format!("gapless-cuda-test-{:016x}", RandomState::new().hash_one(std::process::id()))
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn send(to: impl AsFd, export: &Export) {
    let descriptors = [export.descriptors[0].as_fd()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [IoSlice::new(&export.bytes)];
    let sent = rustix::net::sendmsg(to, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, export.bytes.len());
}

fn receive(from: impl AsFd) -> Export {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut bytes = vec![0u8; 1024];
    let mut into = [IoSliceMut::new(&mut bytes)];
    let message =
        rustix::net::recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    bytes.truncate(message.bytes);
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    Export { bytes, descriptors }
}

#[test]
fn shareable_memory_travels_as_a_descriptor_and_outlives_its_exporter() {
    const TEST: &str = "share::shareable_memory_travels_as_a_descriptor_and_outlives_its_exporter";
    const LEN: usize = 3 << 20;
    let Some(device) = device("shareable memory") else { return };
    if part().is_some() {
        let name = hear();
        let socket = socket();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        // First one that lies about its length, then the true one.
        let mut lie = receive(&socket);
        lie.bytes[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let refused = device.import(lie);
        assert!(refused.is_err(), "{refused:?}");
        let region = device.import(receive(&socket)).unwrap();
        assert!(read(&device, region) == pattern(LEN, 21));
        write(&device, region, &pattern(LEN, 22));
        say("written");
        assert_eq!(hear(), "freed");
        assert!(read(&device, region) == pattern(LEN, 22), "the memory outlives its exporter's");
        // SAFETY: nothing uses it any more.
        unsafe { device.release(region) }.unwrap();
        say("read");
        return;
    }
    let name = socket_name();
    let listener = socket();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let mut memory =
        Memory::Own(Arc::clone(&device), device.allocate_shareable(LEN as u64 + 64).unwrap());
    let region = memory.region().sub(64, LEN as u64).unwrap();
    write(&device, region, &pattern(LEN, 21));
    let mut other = Kin::start(TEST, "importer", &[]);
    other.tell(&name);
    let connection = rustix::net::accept(&listener).unwrap();
    for _ in 0..2 {
        let export = device.export(region).unwrap();
        assert_eq!(export.descriptors.len(), 1);
        send(&connection, &export);
    }
    assert_eq!(other.hear(), "written");
    assert!(read(&device, region) == pattern(LEN, 22));
    drop(memory);
    other.tell("freed");
    assert_eq!(other.hear(), "read");
}

#[test]
fn completions_are_seen_by_another_process() {
    const TEST: &str = "share::completions_are_seen_by_another_process";
    let Some(device) = device("completions between processes") else { return };
    if part().is_some() {
        let region = device.import(bytes_only(&hear())).unwrap();
        let work = device.import_completion(&unhex(&hear())).unwrap();
        assert!(!work.poll().unwrap());
        let Completion::Pending(inner) = &work else { panic!("not seen to end yet") };
        assert!(inner.export().is_err(), "another process's is not ours to export");
        let mut back = vec![0u8; 4096];
        let to = gapless_mem::Region::of_mut(&mut back);
        let pinned = device.pinned(4096).unwrap();
        // Page-locked memory, so that the call itself does not wait.
        // SAFETY: both live until the copy is waited for.
        let copied =
            unsafe { device.copy(pinned.region(), region, std::slice::from_ref(&work)) }.unwrap();
        assert!(!copied.poll().unwrap());
        say("waiting");
        wait(&copied);
        assert!(work.poll().unwrap(), "the copy came after it");
        crate::gpu::copy(&device, to, pinned.region());
        assert!(back.chunks(4).all(|number| number == 5u32.to_ne_bytes()), "{:?}", &back[..8]);
        // SAFETY: nothing uses it any more.
        unsafe { device.release(region) }.unwrap();
        say("seen");
        return;
    }
    let Some(module) = kernels("completions between processes", &device) else { return };
    let (add, until) = (function(&module, c"add"), function(&module, c"until"));
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let stream = device.stream().unwrap();
    let mut numbers = Memory::on(&device, 4096);
    write(&device, numbers.region(), &[0; 4096]);
    let key = hex(&device.export(numbers.region()).unwrap().bytes);
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let at = numbers.region().start();
    let arguments = [Argument::of(&at), Argument::of(&1024u32), Argument::of(&5u32)];
    // SAFETY: the kernel changes `numbers`, which live until it is finished.
    unsafe { add.launch(&stream, Grid::line(4, 256), &arguments) }.unwrap();
    let work = stream.record().unwrap();
    let Completion::Pending(inner) = &work else { panic!("a kernel is in flight") };
    let exported = inner.export().unwrap();
    assert_eq!(exported, inner.export().unwrap(), "one event for all who ask");
    assert!(device.import_completion(&exported).is_err(), "not for this process itself");
    let mut other = Kin::start(TEST, "importer", &[]);
    other.tell(&key);
    other.tell(&hex(&exported));
    assert_eq!(other.hear(), "waiting");
    assert!(!work.poll().unwrap());
    flag.set(1);
    assert_eq!(other.hear(), "seen");
    wait(&work);
}
