//! Devices: they copy into slots and out of arrivals, and their memory is mapped by peers. Each end has
//! a fake device of its own, as processes have; its memory may not be touched by the CPU, its work
//! ends late, and it keeps books of what is registered with it and imported.

use super::bench::Watch;
use super::child::{self, Kin};
use super::death::{meet_child, meet_parent, process_end, send_one};
use super::duo::{A, B, Duo, message, poll};
use super::memory::map_by_message;
use super::wake::Wake;
use super::{Fixture, Suite};
use gapless_btl::{AmTag, Btl, Event, MapError, Mapping, PeerId, Queue, RemoteKey, Token};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, HostDevice, Lease, Region, Space};
use gapless_testkit::Random;
use std::sync::Arc;

/// A device whose work ends when it has been asked about a few times.
fn device(number: u32) -> Arc<FakeDevice> {
    Arc::new(FakeDevice::with_delay(number, 3))
}

fn attach(end: &mut impl Btl, device: &Arc<FakeDevice>) -> bool {
    end.attach(&(Arc::clone(device) as Arc<dyn Device>)).is_ok()
}

/// Has a device copy, and waits for it.
fn copy(device: &FakeDevice, to: Region, from: Region) {
    // SAFETY: the callers hold both memories over this call, which waits for the end; nothing else
    // touches them meanwhile.
    let copied = unsafe { device.copy(to, from, &[]) };
    let copied = copied.expect("memory that the device reaches");
    assert!(to.is_empty() || !copied.poll().expect("it does not fail"), "it ends late");
    copied.wait().expect("it does not fail");
}

/// Writes memory that a device reaches.
fn write(device: &FakeDevice, to: Region, bytes: &[u8]) {
    copy(device, to, Region::of(bytes));
}

/// Reads memory that a device reaches.
fn read(device: &FakeDevice, from: Region) -> Vec<u8> {
    let mut bytes = vec![0u8; usize::try_from(from.len()).expect("test sizes")];
    copy(device, Region::of_mut(&mut bytes), from);
    bytes
}

fn assert_bytes(got: &[u8], number: u64, case: &str) {
    let right = message(number, got.len());
    let wrong = got.iter().zip(&right).position(|(got, right)| got != right);
    assert_eq!(wrong, None, "{case}: first wrong byte of {}", got.len());
}

/// Attaching a device, whether the transport can use it or not, disturbs nothing; nor does detaching it, after which
/// nothing is held of it.
pub fn attaching_a_device(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let fake: Arc<dyn Device> = Arc::new(FakeDevice::with_delay(0, 2));
    duo.expect_health();
    for side in [A, B] {
        for _ in 0..2 {
            // A refusal means staging, no more.
            _ = duo.ends[side].attach(&fake);
        }
        duo.expect_health();
    }
    _ = duo.ends[A].attach(&(Arc::new(HostDevice::new()) as Arc<dyn Device>));
    duo.expect_health();
    let idle = Arc::new(FakeDevice::new(1));
    let device: Arc<dyn Device> = Arc::<FakeDevice>::clone(&idle);
    for side in [A, B] {
        for _ in 0..2 {
            _ = duo.ends[side].attach(&device);
            duo.expect_health();
            assert!(duo.ends[side].detach(&device), "an idle device");
            duo.expect_health();
        }
    }
    assert_eq!(idle.registered(), [], "a detached device knows no memory");
    assert_eq!(Arc::strong_count(&device), 2, "a detached device is let go");
    drop(duo);
    assert!(Arc::strong_count(&fake) <= 1, "a dropped transport lets the device go");
}

/// A device of the sender's copies straight into slots, one of the receiver's straight out of
/// arrivals, of every kind of length, attached before the ends met or after. An arrival that
/// outlives its transport is still good for the device, and in the end nothing is registered.
pub fn devices_reach_slots(_: &Suite, mut fixture: impl Fixture) {
    for before in [true, false] {
        let devices = [device(0), device(1)];
        let (mut a, mut b) = fixture.pair();
        if before {
            assert!(attach(&mut a, &devices[A]) && attach(&mut b, &devices[B]));
        }
        let mut duo = Duo::of(a, b);
        duo.expect_health();
        if !before {
            for side in [A, B] {
                assert!(attach(&mut duo.ends[side], &devices[side]));
            }
        }
        let max = duo.ends[A].limits().max_fragment_bytes;
        let eager = duo.ends[A].limits().eager_bytes;
        let mut lens = vec![0, 1, 8, 223, 224, 225, 256, eager, max];
        lens.retain(|len| *len <= max);
        let memory: Vec<Region> = devices
            .iter()
            .map(|device| device.allocate(max as u64).expect("fake memory"))
            .collect();
        let mut parked = None;
        let mut number = 0;
        for len in lens {
            for (from, to) in [(A, B), (B, A)] {
                number += 1;
                let source = memory[from].sub(0, len as u64).expect("inside");
                write(&devices[from], source, &message(number, len));
                let slot = duo.reserve(from, len);
                copy(&devices[from], slot.region(), source);
                duo.ends[from].send(slot, AmTag(5), Token::NONE);
                let fragment = duo.take_fragment(to);
                assert_eq!(fragment.len(), len);
                let target = memory[to].sub(0, len as u64).expect("inside");
                write(&devices[to], target, &vec![0xee; len]);
                copy(&devices[to], target, fragment.region());
                let case = format!("{len} bytes, attached first: {before}");
                assert_bytes(&read(&devices[to], target), number, &case);
                if to == B {
                    parked = Some((fragment, number));
                }
            }
        }
        drop(duo);
        let (fragment, number) = parked.expect("the last one");
        assert!(devices[A].registered().is_empty(), "the sender's segments: {:?}", devices[A]);
        let target = memory[B].sub(0, fragment.len() as u64).expect("inside");
        copy(&devices[B], target, fragment.region());
        assert_bytes(&read(&devices[B], target), number, "parked");
        drop(fragment);
        assert!(devices[B].registered().is_empty(), "the receiver's: {:?}", devices[B]);
    }
}

/// The devices of both ends.
type Devices = [Arc<FakeDevice>; 2];

/// Two ends with a device each; `None` if device memory cannot be mapped here.
fn equipped<F: Fixture>(suite: &Suite, fixture: &mut F) -> Option<(Duo<F::Btl>, Devices)> {
    let mut duo = Duo::new(fixture);
    // Through one device both ends would reach everything anyway.
    let devices = [device(0), device(1)];
    for side in [A, B] {
        _ = attach(&mut duo.ends[side], &devices[side]);
    }
    let memory = devices[A].allocate(64).expect("fake memory");
    if key(&mut duo, memory).is_none() {
        suite.skip("the transport does not map device memory");
        return None;
    }
    take_back(&mut duo, memory);
    Some((duo, devices))
}

fn key<T: Btl>(duo: &mut Duo<T>, region: Region) -> Option<RemoteKey> {
    let peer = duo.peer[A];
    key_for(&mut duo.ends[A], peer, region)
}

/// A key for memory that this process has.
fn key_for(end: &mut impl Btl, peer: PeerId, region: Region) -> Option<RemoteKey> {
    // SAFETY: the callers have the memory over this call, which keeps nothing of the lease.
    let lease = unsafe { Lease::kept_by_caller(region) };
    end.mapped()?.key(peer, &lease)
}

fn map_for<T: Btl>(duo: &mut Duo<T>, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
    let peer = duo.peer[B];
    duo.ends[B].mapped().expect("both ends are alike").map_for(peer, key, user)
}

fn invalidate<T: Btl>(duo: &mut Duo<T>, region: Region) -> bool {
    duo.ends[A].mapped().expect("both ends are alike").invalidate(region)
}

/// Ends the keys of a region, and waits until nobody has it mapped.
fn take_back<T: Btl>(duo: &mut Duo<T>, region: Region) {
    let watch = Watch::new("peers to let go of memory that they do not use");
    while invalidate(duo, region) {
        duo.step();
        watch.tick();
    }
}

/// Ends the keys of a region that somebody uses: that is known, and stays so.
fn expect_in_use<T: Btl>(duo: &mut Duo<T>, region: Region) {
    for _ in 0..20 {
        assert!(invalidate(duo, region), "it is mapped over there");
        (0..20).for_each(|_| duo.step());
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

/// How the receiving end's device reaches a mapping: its own imports it, or the transport handed out
/// the owner's memory itself.
fn reader<'a>(devices: &'a Devices, mapping: &Mapping) -> &'a FakeDevice {
    let space = mapping.region().space();
    devices.iter().find(|device| device.space() == space).expect("a space of these devices")
}

/// Memory of the owner's device: any part of it is mapped by the other's, each sees what the other
/// writes, and parts of one buffer are one mapping.
pub fn mapped_device_memory(suite: &Suite, mut fixture: impl Fixture) {
    let Some((mut duo, devices)) = equipped(suite, &mut fixture) else { return };
    for len in [1, 64, 4095, 4096, 4097, 1 << 20] {
        let memory = devices[A].allocate(len).expect("fake memory");
        let (offset, part) = (len / 3, len - len / 3 - len / 5);
        let part = memory.sub(offset, part).expect("inside");
        let some = usize::try_from(part.len()).expect("short");
        let made = key(&mut duo, part).expect("it gave one before");
        assert_eq!(key(&mut duo, part), Some(made), "the same again");
        let mapping = map_by_message(&mut duo, &made).expect("a good key");
        let user = reader(&devices, &mapping);
        assert_eq!(mapping.region().len(), part.len());
        write(&devices[A], part, &message(len, some));
        assert_bytes(&read(user, mapping.region()), len, "the peer sees it");
        write(user, mapping.region(), &message(len + 1, some));
        assert_bytes(&read(&devices[A], part), len + 1, "and we see the peer");
        let whole = key(&mut duo, memory).expect("all of it");
        let own = devices[B].space();
        let again = map_for(&mut duo, &whole, own).expect("a good key");
        assert_eq!(
            again.region().start() + offset,
            mapping.region().start(),
            "one buffer is mapped once"
        );
        expect_in_use(&mut duo, memory);
        assert!(map_by_message(&mut duo, &made).is_err(), "and not mapped anew");
        assert_bytes(&read(user, mapping.region()), len + 1, "a mapping in use stays");
        drop(mapping);
        expect_in_use(&mut duo, memory);
        drop(again);
        take_back(&mut duo, memory);
        assert!(key(&mut duo, memory).is_some_and(|new| new != whole), "it can be shared anew");
        take_back(&mut duo, memory);
        // SAFETY: no work is under way, and nobody has it mapped.
        unsafe { devices[A].free(memory) }.expect("allocated above");
    }
    duo.expect_silence();
    drop(duo);
    assert_eq!(devices[B].imported(), 0);
}

/// Damaged keys, memory of devices that are not attached, users
/// that are not: refused by name, and no harm done.
pub fn device_keys_are_checked(suite: &Suite, mut fixture: impl Fixture) {
    let Some((mut duo, devices)) = equipped(suite, &mut fixture) else { return };
    let memory = devices[A].allocate(8192).expect("fake memory");
    let good = key(&mut duo, memory).expect("it gave one before");
    let stranger = FakeDevice::new(5);
    let strange = stranger.allocate(64).expect("fake memory");
    assert!(key(&mut duo, strange).is_none(), "memory of a device that is not attached");
    let nobody = key_for(&mut duo.ends[A], PeerId(77), memory);
    assert!(nobody.is_none(), "nobody is called that");
    let error = map_for(&mut duo, &good, stranger.space()).expect_err("a user not attached");
    assert!(matches!(error, MapError::Unavailable { .. }), "{error:?}");
    let bytes = good.as_bytes();
    for bad in [vec![], bytes[..bytes.len() - 1].to_vec(), [bytes, &[0]].concat()] {
        let Some(bad) = RemoteKey::new(&bad) else { continue };
        let error = map_by_message(&mut duo, &bad).expect_err("a damaged key");
        assert!(matches!(error, MapError::BadKey { .. }), "{error:?}");
    }
    let mut random = Random::new(suite.seed());
    for _ in 0..300 {
        let mut nonsense = bytes.to_vec();
        let at = random.below(nonsense.len());
        nonsense[at] ^= 1 << random.below(8);
        let nonsense = RemoteKey::new(&nonsense).expect("as long as a key");
        // What still maps is memory of the peer's that it shares, all of it there.
        if let Ok(mapping) = map_by_message(&mut duo, &nonsense) {
            let user = reader(&devices, &mapping);
            assert_eq!(read(user, mapping.region()).len() as u64, mapping.region().len());
        }
    }
    let mapping = map_by_message(&mut duo, &good).expect("it is still good");
    duo.expect_health();
    // A transport that ends takes nothing away from whoever still holds a mapping.
    write(&devices[A], memory, &message(8, 8192));
    drop(duo);
    let user = reader(&devices, &mapping);
    assert_bytes(&read(user, mapping.region()), 8, "held beyond the end");
    drop(mapping);
    assert_eq!(devices[B].imported(), 0);
}

/// Memory that is freed and allocated anew, at the same address or not, invalidated before or simply
/// forgotten, is never taken for what was there.
pub fn device_memory_freed_and_reused(suite: &Suite, mut fixture: impl Fixture) {
    let Some((mut duo, devices)) = equipped(suite, &mut fixture) else { return };
    let mut before: Option<(Region, RemoteKey)> = None;
    let mut reused = 0;
    for round in 0..200u64 {
        let memory = devices[A].allocate(8192).expect("fake memory");
        let made = key(&mut duo, memory).expect("it gave one before");
        write(&devices[A], memory, &message(round, 8192));
        let mapping = map_by_message(&mut duo, &made).expect("a good key");
        assert_bytes(&read(reader(&devices, &mapping), mapping.region()), round, "after reuse");
        if let Some((old, old_key)) = before {
            reused += u32::from(old == memory);
            assert_ne!(old_key, made, "each buffer has keys of its own");
            if old == memory {
                assert!(map_by_message(&mut duo, &old_key).is_err(), "what was there is gone");
            }
        }
        drop(mapping);
        if round % 2 == 0 {
            take_back(&mut duo, memory);
        }
        // SAFETY: no work is under way; a fake device does not mind that others have it mapped.
        unsafe { devices[A].free(memory) }.expect("allocated above");
        before = Some((memory, made));
    }
    if reused == 0 {
        suite.skip("the system never gave out an address again");
    }
    duo.expect_silence();
}

/// More buffers than anybody keeps, shared and mapped in turns, some of them in use all the while.
pub fn device_buffers_beyond_the_cache(suite: &Suite, mut fixture: impl Fixture) {
    let Some((mut duo, devices)) = equipped(suite, &mut fixture) else { return };
    let buffers: Vec<Region> = (0..40u64)
        .map(|number| {
            let memory = devices[A].allocate(5000).expect("fake memory");
            write(&devices[A], memory, &message(number, 5000));
            memory
        })
        .collect();
    let mut held = Vec::new();
    for round in 0..3 {
        for (number, memory) in (0..).zip(&buffers) {
            let made = key(&mut duo, *memory).expect("there is always room for one more");
            let mapping = map_by_message(&mut duo, &made).expect("a good key");
            let user = reader(&devices, &mapping);
            assert_bytes(&read(user, mapping.region()), number, "one of many");
            if round == 1 && number % 4 == 0 {
                held.push((number, mapping));
            }
            duo.step();
        }
    }
    for (number, mapping) in &held {
        let user = reader(&devices, mapping);
        assert_bytes(&read(user, mapping.region()), *number, "held all the while");
    }
    drop(held);
    for memory in &buffers {
        take_back(&mut duo, *memory);
    }
    assert_eq!(devices[B].imported(), 0, "what was withdrawn is let go of");
    duo.expect_silence();
}

/// A process that is killed while its device memory is mapped: whoever uses it finishes, what
/// nobody uses is let go of with the loss.
pub fn peer_killed_while_mapped(suite: &Suite, mut fixture: impl Fixture) {
    const LEN: u64 = 100_000;
    if child::role().is_some() {
        let own = device(2);
        let (mut end, peer) = meet_parent(&mut fixture);
        _ = attach(&mut end, &own);
        let mut events = Queue::with_capacity(8);
        let watch = Watch::new("the link");
        while end.reserve(peer, 0).is_err() {
            drop(poll(&mut end, &mut events));
            watch.tick();
        }
        for number in 0..2 {
            let memory = own.allocate(LEN).expect("fake memory");
            write(&own, memory, &message(number, usize::try_from(LEN).expect("short")));
            let made = key_for(&mut end, peer, memory);
            let bytes = made.as_ref().map_or(&[][..], RemoteKey::as_bytes);
            assert!(send_one(&mut end, peer, AmTag(1), bytes));
        }
        child::listen();
        return;
    }
    let Some(mut end) = process_end(suite, &mut fixture) else { return };
    let own = device(9);
    _ = attach(&mut end, &own);
    for _ in 0..2 {
        let mut kin = Kin::start(suite, "owner");
        let peer = meet_child(&mut end, &mut kin);
        let mut wake = Wake::new(peer);
        let watch = Watch::new("keys");
        while wake.messages.len() < 2 {
            wake.poll(&mut end);
            watch.tick();
        }
        let keys: Vec<_> =
            wake.messages.iter().filter_map(|(_, bytes)| RemoteKey::new(bytes)).collect();
        if keys.iter().any(|key| key.as_bytes().is_empty()) {
            return suite.skip("the transport does not map device memory");
        }
        let mapped = end.mapped().expect("it gave keys");
        let used = mapped.map(peer, &keys[0]).expect("a good key");
        drop(mapped.map_for(peer, &keys[1], own.space()).expect("a good key"));
        assert_bytes(&read(&own, used.region()), 0, "alive");
        kin.kill();
        wake.expect_gone(&mut end);
        assert_bytes(&read(&own, used.region()), 0, "dead");
        assert_eq!(own.imported(), 1, "what nobody uses went with the peer");
        let gone = end.mapped().expect("as before").map(peer, &keys[1]).expect_err("lost");
        assert!(matches!(gone, MapError::Link(_) | MapError::Unavailable { .. }), "{gone:?}");
        drop(used);
        assert_eq!(own.imported(), 0);
    }
    drop(end);
    assert!(own.registered().is_empty(), "{own:?}");
}

/// Arrivals with their credits.
impl<T: Btl> Duo<T> {
    /// The next arrival at one end, as it is.
    fn take_fragment(&mut self, side: usize) -> gapless_btl::Fragment {
        let mut events = Queue::with_capacity(1);
        let watch = Watch::new("a message");
        loop {
            match poll(&mut self.ends[side], &mut events).pop() {
                None => {}
                Some(Event::Arrived { from, fragment, .. }) => {
                    assert_eq!(from, self.peer[side]);
                    return fragment;
                }
                Some(other) => panic!("{other:?}"),
            }
            self.poll(1 - side);
            watch.tick();
        }
    }
}
