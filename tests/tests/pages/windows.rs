//! Puts and gets of pages between memory of a device and windows: where the one side is page-locked memory of the host,
//! the device moves them from layout to layout in one piece of work.

use crate::pages::case::{compare, copy};
use crate::pages::{FAKE, sm, with_engines, with_slow_engines};
use gapless::{
    Assertions, Config, Datatype, Device, DeviceBuf, Error, Layout, Lock, Pages, Place, Primitive,
    Region, SharedBuf, View, ViewMut, Window, WindowError, WindowMemory, World, raw,
};
use gapless_engine::EngineError;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::{byte_at, job_of};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGE: u64 = 600;
/// Pages of a pool.
const POOL: u64 = 400;

fn page() -> Layout {
    Datatype::contiguous(PAGE, &Primitive::Byte.into()).unwrap().commit().unwrap()
}

fn bytes(seed: u64) -> Vec<u8> {
    (0..PAGE * POOL).map(|at| byte_at(seed, at)).collect()
}

fn upload(world: &World, engine: &FakeEngine, bytes: &[u8]) -> DeviceBuf {
    let memory = world.alloc_device(engine.device.space(), bytes.len() as u64).unwrap();
    copy(&engine.device, memory.region(), Region::of(bytes));
    memory
}

/// What lies at the pages of one list becomes what lies at those of another.
fn moved(from: &[u8], list: &[u32], into: &mut [u8], to: &[u64]) {
    let place = |index: u64| usize::try_from(index * PAGE).unwrap();
    let len = place(1);
    for (from_page, to_page) in list.iter().zip(to) {
        let (from_at, to_at) = (place(u64::from(*from_page)), place(*to_page));
        into[to_at..to_at + len].copy_from_slice(&from[from_at..from_at + len]);
    }
}

/// The memory of an origin.
enum Origin {
    Host(SharedBuf),
    Device(DeviceBuf),
}

impl Origin {
    fn read(&self, engine: &FakeEngine) -> Vec<u8> {
        match self {
            Origin::Host(memory) => memory.to_vec(),
            Origin::Device(memory) => {
                let mut bytes = vec![0; usize::try_from(memory.region().len()).unwrap()];
                copy(&engine.device, Region::of_mut(&mut bytes), memory.region());
                bytes
            }
        }
    }
}

/// Lists of both ends, in memory of the host, and of the device if they are to be read there.
struct Lists {
    ours: Vec<u32>,
    theirs: Vec<u64>,
    on_device: Option<[DeviceBuf; 2]>,
}

impl Lists {
    fn new(world: &World, engine: &FakeEngine, count: u32, on_device: bool) -> Lists {
        let ours: Vec<u32> = (0..count).map(|at| at * 7 % 390).collect();
        let theirs: Vec<u64> = (0..u64::from(count)).map(|at| (at * 11 + 3) % POOL).collect();
        let words = [
            ours.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<u8>>(),
            theirs.iter().flat_map(|it| it.to_ne_bytes()).collect(),
        ];
        let on_device = on_device.then(|| words.map(|words| upload(world, engine, &words)));
        Lists { ours, theirs, on_device }
    }

    fn ours(&self) -> Pages {
        Pages::new(&page(), PAGE, &self.ours[..]).unwrap()
    }

    fn place(&self) -> Place {
        match &self.on_device {
            None => Place::pages(0, &Pages::new(&page(), PAGE, &self.theirs[..]).unwrap()),
            // SAFETY: the list lives longer than any operation.
            Some([_, theirs]) => unsafe {
                Place::device_pages(0, &page(), PAGE, (theirs.region(), true))
            },
        }
    }

    fn view<'a>(&'a self, origin: &'a Origin) -> View<'a> {
        let count = self.ours.len() as u64;
        match (origin, &self.on_device) {
            (Origin::Host(memory), _) => View::pages(&memory[..], 0, &self.ours()),
            (Origin::Device(memory), None) => memory.pages(0, &self.ours()),
            (Origin::Device(memory), Some([ours, _])) => {
                memory.pages_at(0, &page(), PAGE, ours.indices_u32(0..count).unwrap())
            }
        }
        .unwrap()
    }

    fn view_mut<'a>(&'a self, origin: &'a mut Origin) -> ViewMut<'a> {
        let count = self.ours.len() as u64;
        match (origin, &self.on_device) {
            (Origin::Host(memory), _) => ViewMut::pages(&mut memory[..], 0, &self.ours()),
            (Origin::Device(memory), None) => memory.pages_mut(0, &self.ours()),
            (Origin::Device(memory), Some([ours, _])) => {
                memory.pages_at_mut(0, &page(), PAGE, ours.indices_u32(0..count).unwrap())
            }
        }
        .unwrap()
    }
}

/// Rank 0 puts into the other's window and gets back, in a scope and out of it.
fn exchange<M: WindowMemory>(
    (world, engine): (&World, &FakeEngine),
    mut window: Window<u8, M>,
    mut origin: impl FnMut(&[u8]) -> Origin,
    what: &str,
) {
    let (here, there) = (bytes(1), bytes(2));
    window.write(&there, 0).unwrap();
    window.fence().unwrap();
    let (put, got) = (&mut origin(&here), &mut origin(&here));
    let mut expected = there.clone();
    for (count, on_device, scoped) in
        [(3, false, false), (3, true, true), (300, false, true), (300, true, false)]
    {
        if world.rank() != 0 {
            continue;
        }
        let what = format!("{what}, {count} pages, {on_device}, {scoped}");
        let lists = Lists::new(world, engine, count, on_device);
        let begun = || engine.pieces.lock().unwrap().len();
        let pieces = begun();
        match scoped {
            true => window.scope(|s| s.put(lists.view(put), 1, lists.place(), None)?.wait()),
            false => window.put(lists.view(put), 1, lists.place()),
        }
        .unwrap();
        match scoped {
            true => window.scope(|s| s.get(lists.view_mut(got), 1, lists.place(), None)?.wait()),
            false => window.get(lists.view_mut(got), 1, lists.place()),
        }
        .unwrap();
        // Short ones need not go by the device.
        assert!(count < 300 && !on_device || begun() == pieces + 2, "{what}");
        moved(&here, &lists.ours, &mut expected, &lists.theirs);
        let mut found = vec![0; expected.len()];
        window.get(&mut found, 1, 0).unwrap();
        compare(&found, &expected, &what);
        compare(&got.read(engine), &here, &what);
    }
    window.fence_last().unwrap();
    window.free().unwrap();
}

#[test]
fn devices_move_pages_to_and_from_page_locked_memory_in_one_piece() {
    with_engines("pages of the host", &Config::default(), |world, engine| {
        let bytes = usize::try_from(PAGE * POOL).unwrap();
        let on_device = |bytes: &[u8]| Origin::Device(upload(world, engine, bytes));
        let on_host = |bytes: &[u8]| {
            let mut memory = world.alloc(bytes.len()).unwrap();
            memory.copy_from_slice(bytes);
            Origin::Host(memory)
        };
        let with = (world, engine);
        let comm = world.comm();
        exchange(with, comm.window_allocate(bytes).unwrap(), on_device, "into the host's memory");
        let window = comm.window().allocate_on(FAKE, bytes).unwrap();
        exchange(with, window, on_host, "out of the host's memory");
    });
}

/// What no device reaches by itself is packed, unless only a device can read the lists.
#[test]
fn pages_of_ordinary_memory_are_packed_or_refused() {
    with_engines("ordinary memory", &Config::default(), |world, engine| {
        let (here, mut there) = (bytes(1), bytes(2));
        let me = world.rank();
        let mut window = world.comm().window().create(there.clone()).unwrap();
        window.lock_all().unwrap();
        let origin = Origin::Device(upload(world, engine, &here));
        let lists = Lists::new(world, engine, 300, true);
        let refused = window.put(lists.view(&origin), me, lists.place()).unwrap_err();
        let lists_are_the_devices =
            |why: &WindowError| *why == WindowError::Elements(EngineError::DeviceIndices);
        assert!(
            matches!(&refused, Error::Window(why) if lists_are_the_devices(why)),
            "{refused:?}"
        );
        let lists = Lists::new(world, engine, 300, false);
        window.put(lists.view(&origin), me, lists.place()).unwrap();
        window.unlock_all().unwrap();
        moved(&here, &lists.ours, &mut there, &lists.theirs);
        compare(&window.free().unwrap(), &there, "ordinary memory");
    });
}

/// The device finds them; no byte outside is touched.
#[test]
fn wild_indices_of_devices_are_errors_of_puts_into_memory_of_the_host() {
    with_engines("wild windows", &Config::default(), |world, engine| {
        let mut window = world.comm().window_allocate::<u8>(6000).unwrap();
        window.lock_all().unwrap();
        let words = [3u32, 10, 9];
        let words: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
        let table = upload(world, engine, &words);
        let pool = upload(world, engine, &[7; 6000]);
        let good = Pages::new(&page(), PAGE, &[0u32, 1, 2][..]).unwrap();
        // SAFETY: the list lives longer than the put.
        let place = unsafe { Place::device_pages(0, &page(), PAGE, (table.region(), false)) };
        let ended = window.put(pool.pages(0, &good).unwrap(), 1 - world.rank(), place);
        let why = ended.unwrap_err().to_string();
        assert!(why.contains("position 1") && why.contains('9'), "{why}");
        window.unlock_all().unwrap();
        window.free().unwrap();
    });
}

/// Put again and again, and the call that ends it returns once the device is done. This process maps the target's
/// memory, where all other operations end as they begin.
#[test]
fn flushes_and_unlocks_wait_for_devices() {
    with_slow_engines(("slow windows", 500), &Config::default(), |world, engine| {
        let (comm, here, none) = (world.comm(), bytes(1), Assertions::empty());
        let window = raw::Window::allocate(comm.window(), PAGE * POOL, 1).unwrap();
        if world.rank() == 0 {
            let pool = upload(world, engine, &here);
            let (page, start) = (page(), pool.region().address() + pool.region().offset());
            let origin = raw::Typed::at(FAKE, start, &page, POOL).unwrap();
            let is_slow = || engine.under_way.load(Ordering::Relaxed) > 0;
            for end in ["flush", "flush_local", "flush_all", "unlock", "unlock_all"] {
                match end {
                    "unlock_all" => window.lock_all(none),
                    _ => window.lock(1, Lock::Exclusive, none),
                }
                .unwrap();
                // SAFETY: the pool lives until the request has ended, and nobody writes it.
                let mut put = unsafe { window.rput(&origin, 1, 0, (&page, POOL)) }.unwrap();
                assert!(is_slow(), "{end}");
                match end {
                    "flush" => window.flush(1),
                    "flush_local" => window.flush_local(1),
                    "flush_all" => window.flush_all(),
                    "unlock" => window.unlock(1),
                    _ => window.unlock_all(),
                }
                .unwrap();
                assert!(!is_slow(), "{end}");
                put.wait().unwrap();
                if end.starts_with("flush") {
                    window.unlock(1).unwrap();
                }
            }
        }
        window.free().unwrap();
    });
}

#[test]
fn a_flush_tells_of_a_bad_index_once() {
    with_slow_engines(("slow and wild", 500), &Config::default(), |world, engine| {
        let mut window = world.comm().window_allocate::<u8>(6000).unwrap();
        if world.rank() == 0 {
            window.lock_all().unwrap();
            let pool = upload(world, engine, &[7; 6000]);
            let words = [3u32, 10, 9];
            let words: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
            let table = upload(world, engine, &words);
            let three = Pages::new(&page(), PAGE, &[0u32, 1, 2][..]).unwrap();
            for has_ended in [true, false] {
                let told = window.scope(|s| {
                    // SAFETY: the list lives longer than the put.
                    let place =
                        unsafe { Place::device_pages(0, &page(), PAGE, (table.region(), false)) };
                    let _ = s.put(pool.pages(0, &three)?, 1, place, None)?;
                    while has_ended && engine.under_way.load(Ordering::Relaxed) > 0 {
                        window.sync();
                    }
                    let why = window.flush(1).unwrap_err().to_string();
                    assert!(why.contains("position 1"), "{why}");
                    window.flush(1)
                });
                told.unwrap();
            }
            window.unlock_all().unwrap();
        }
        window.free().unwrap();
    });
}

/// The memory of the host is page-locked for both, and each moves what lies in its own.
#[test]
fn each_of_two_devices_moves_its_own_memory() {
    let engine = |number| {
        let device = Arc::new(FakeDevice::new(number));
        Arc::new(FakeEngine { attaches: false, ..FakeEngine::new(&device, 1) })
    };
    let engines = [0, 1].map(engine);
    let builder = |rank| {
        let builder = sm(rank, "two devices", &Config::default()).open_devices(false);
        engines.iter().fold(builder, |builder, engine| {
            builder.engine(Arc::clone(engine) as _).device(Arc::clone(&engine.device) as _)
        })
    };
    job_of(1, builder, |world| {
        let (here, mut there) = (bytes(1), bytes(2));
        let mut window = world.comm().window_allocate::<u8>(here.len()).unwrap();
        for engine in &engines {
            window.write(&there, 0).unwrap();
            window.lock_all().unwrap();
            let origin = Origin::Device(upload(world, engine, &here));
            let lists = Lists::new(world, engine, 300, true);
            window.put(lists.view(&origin), 0, lists.place()).unwrap();
            window.unlock_all().unwrap();
            moved(&here, &lists.ours, &mut there, &lists.theirs);
            let mut found = vec![0; there.len()];
            window.read(&mut found, 0).unwrap();
            compare(&found, &there, "each moves its own");
            there = bytes(3);
        }
        window.free().unwrap();
    });
}
