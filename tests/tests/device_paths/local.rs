//! Messages of a process to itself, from each kind of memory to each, of one device and of another: whichever engine
//! reaches both moves them, or they go through the host; nothing runs on memory that its device may not use.

use crate::gear::{Kind, settle};
use crate::letters::Letter;
use crate::side::Side;
use crate::{Words, listen, seed};
use gapless::{CudaDriver, Protocol, View, ViewMut, World};
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{Engine, EngineError, HostEngine};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Completion, Device, DeviceError, HostDevice, Region, Space};
use gapless_mem_cuda::{CudaDevice, Stream};
use gapless_tests::launcher::{Member, TestLauncher, say};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Room for the longest buffer.
const ROOM: u64 = 20 << 20;

/// A buffer of some kind of memory, and the device that copies it.
struct Place {
    name: String,
    region: Region,
    device: Arc<dyn Device>,
    _keep: Option<Vec<u8>>,
}

/// What the two buffers of a message are to look like.
fn shapes(seed: u64, long: usize) -> Vec<Letter> {
    let letter = |send, recv| Letter { seed, send, recv, from_device: true, to_device: true };
    let rows = |bytes| Side::blocks(4096, bytes, 512);
    vec![
        letter(Side::row(40_000), Side::row(40_000)),
        letter(Side::comb(40_000, 64), Side::comb(40_000, 16)),
        letter(Side::comb(40_000, 64), Side::row(Side::comb(40_000, 64).bytes())),
        letter(Side::row(Side::comb(40_000, 64).bytes()), Side::comb(40_000, 64)),
        Letter::long(seed, 300_000),
        letter(rows(long), rows(long)),
    ]
}

pub(crate) fn all_pairs(test: &str, kind: Kind) {
    let Some(mut member) = Member::of_launcher() else {
        let part = format!("local {} {}", kind.name(), seed(test));
        listen(&mut TestLauncher::start(test, &[part], |_, _| {}), test);
        return;
    };
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let kind = words.word();
    let seed = words.number();
    if kind == Kind::Fake.name() {
        return pretended(member, seed);
    }
    let world = World::builder().wireup(member.wireup()).init().expect("a world of its own");
    let driver = CudaDriver::load().expect("as the test has found");
    let devices = [0, 1].map(|ordinal| Arc::new(driver.device(ordinal).expect("a device")));
    let streams = devices.each_ref().map(|device| device.stream().expect("a stream"));
    let (from, to) = (places(&devices, &streams), places(&devices, &streams));
    exchange(&world, &from, &to, &shapes(seed, 17 << 20));
    // An illegal access would have ended all work of the process.
    for device in &devices {
        let memory = device.allocate(64).expect("the device works");
        // SAFETY: both live over the wait, and nothing else touches them.
        let copied = unsafe { device.copy(memory, Region::of(&[7u8; 64]), &[]) };
        settle(&copied.expect("the device works"));
        assert!(device.lost().is_none());
    }
    world.finalize().expect("it ends");
    say("clean");
}

/// A buffer of each kind of memory of two devices.
fn places(devices: &[Arc<CudaDevice>; 2], streams: &[Stream; 2]) -> Vec<Place> {
    let mut all = Vec::new();
    for (device, stream) in devices.iter().zip(streams) {
        let own = device.ordinal();
        for (name, region) in [
            ("malloc", device.allocate(ROOM).expect("device memory")),
            ("pool", stream.allocate(ROOM).expect("memory of a pool")),
            ("VMM", device.allocate_shareable_for(ROOM, &[own]).expect("mapped memory")),
        ] {
            let name = format!("{name} of {own}");
            all.push(Place { name, region, device: Arc::clone(device) as _, _keep: None });
        }
        settle(&stream.record().expect("the pool gives it"));
    }
    let device = &devices[0];
    let managed = device.allocate_managed(ROOM).expect("managed memory");
    let name = |name: &str| name.to_owned();
    all.push(Place {
        name: name("managed"),
        region: managed,
        device: Arc::clone(device) as _,
        _keep: None,
    });
    for registered in [true, false] {
        let mut bytes = vec![0u8; usize::try_from(ROOM).expect("test sizes")];
        let region = Region::of_mut(&mut bytes);
        if registered {
            // SAFETY: the bytes live as long as the process's use of the device.
            unsafe { device.register(region) }.expect("page-locked memory");
        }
        all.push(Place {
            name: name(if registered { "registered" } else { "host" }),
            region,
            device: Arc::new(HostDevice::new()),
            _keep: Some(bytes),
        });
    }
    all
}

/// A message of each shape from each place to each, compared in every byte; gives how they went.
fn exchange(world: &World, from: &[Place], to: &[Place], letters: &[Letter]) -> Went {
    let mut went = Went::new();
    for source in from {
        for target in to {
            let protocols = went.entry((source.name.clone(), target.name.clone())).or_default();
            for (number, letter) in letters.iter().enumerate() {
                let what = format!("{} to {}, shape {number}", source.name, target.name);
                protocols.push(message(world, source, target, letter, &what));
            }
            say(&format!("{} to {}: {protocols:?}", source.name, target.name));
        }
    }
    went
}

/// The protocols of the messages between two kinds of memory.
type Went = BTreeMap<(String, String), Vec<Protocol>>;

fn message(world: &World, source: &Place, target: &Place, letter: &Letter, what: &str) -> Protocol {
    let out = letter.send.image(letter.seed, letter.send.bytes());
    let mut inn = letter.recv.image(0, 0);
    let there = source.region.sub(0, out.len() as u64).expect("there is room");
    let here = target.region.sub(0, inn.len() as u64).expect("there is room");
    for (device, region, bytes) in [(&source.device, there, &out), (&target.device, here, &inn)] {
        // SAFETY: both live over the wait, and nothing else touches them.
        settle(&unsafe { device.copy(region, Region::of(bytes), &[]) }.expect("a copy"));
    }
    let (send, recv) = (&letter.send, &letter.recv);
    let status = world.self_comm().scope(|s| {
        // SAFETY: the buffer outlives the scope, which joins the message, and nobody else touches it.
        let into = unsafe { ViewMut::of_region(here, recv.origin, &recv.layout(), recv.count) }?;
        let receive = s.irecv(into, 0, 0)?;
        // SAFETY: as above, and nobody writes it.
        let view = unsafe { View::of_region(there, send.origin, &send.layout(), send.count) }?;
        let send = s.isend(view, 0, 0)?;
        s.wait(send)?;
        s.wait(receive)
    });
    let status = status.unwrap_or_else(|error| panic!("{what}: {error}"));
    // SAFETY: as above; the message has ended.
    let back = unsafe { target.device.copy(Region::of_mut(&mut inn), here, &[]) };
    settle(&back.expect("a copy"));
    letter.compare(&inn, what);
    status.protocol
}

/// The engine of a pretended device, which may reach another one's memory.
struct Reaching {
    own: Arc<FakeDevice>,
    beside: Option<Arc<FakeDevice>>,
}

// SAFETY: the host's engine does the work at once, on what the devices show of their memory.
unsafe impl Wrapper for Reaching {
    fn name(&self) -> &'static str {
        "reaching"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.own.space()
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        self.serves_own(space).then(|| Arc::clone(&self.own) as _)
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        let found = |region: Region| match &self.beside {
            Some(beside) if beside.space() == region.space() => beside.alias(region),
            _ if region.space().cpu_accessible() || self.serves_own(region.space()) => {
                self.own.alias(region)
            }
            _ => {
                let (device, space) = ("reaching".to_owned(), region.space());
                Err(DeviceError::OutOfReach { device, address: region.start(), space })
            }
        };
        // SAFETY: the caller's promise.
        unsafe { work.elsewhere(found)?.run(&HostEngine, after) }
    }
}

impl Reaching {
    fn serves_own(&self, space: Space) -> bool {
        space == self.own.space()
    }
}

/// Two pretended devices, of which none reaches the other's memory, or one does.
fn pretended(mut member: Member, seed: u64) {
    for one_reaches in [false, true] {
        let devices = [0, 1].map(|number| Arc::new(FakeDevice::new(number)));
        let [first, second] = &devices;
        let beside = one_reaches.then(|| Arc::clone(first));
        let engines: [Arc<dyn Engine>; 2] = [
            Arc::new(Reaching { own: Arc::clone(first), beside: None }),
            Arc::new(Reaching { own: Arc::clone(second), beside }),
        ];
        let builder = World::builder().wireup(member.wireup()).open_devices(false);
        let builder = engines.into_iter().fold(builder, |builder, engine| builder.engine(engine));
        let builder = devices.iter().fold(builder, |b, device| b.device(Arc::clone(device) as _));
        let world = builder.init().expect("a world of its own");
        let places = || {
            let place = |device: &Arc<FakeDevice>| Place {
                name: device.space().to_string(),
                region: device.allocate(2 << 20).expect("device memory"),
                device: Arc::clone(device) as _,
                _keep: None,
            };
            devices.iter().map(place).collect::<Vec<Place>>()
        };
        let went = exchange(&world, &places(), &places(), &shapes(seed, 500_000));
        for ((from, to), protocols) in &went {
            let local = protocols.iter().all(|&protocol| protocol == Protocol::Local);
            assert_eq!(local, from == to || one_reaches, "{from} to {to}: {protocols:?}");
        }
        world.finalize().expect("it ends");
    }
    say("clean");
}
