//! Messages whose ends are pages: one layout at indices that are data, on either side or both, over every kind of link,
//! by every protocol, in memory of the host and of devices; each byte is compared with what the indices say. And puts
//! and gets of them (`windows.rs`).

mod case;
mod windows;

use case::{cases, compare, copy};
use gapless::btl::Btl;
use gapless::{
    Builder, Communicator, Config, Datatype, Error, Owned, Pages, PmlError, Primitive, Protocol,
    Region, Space, Tuning, View, ViewMut, World,
};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_engine::EngineError;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::{byte_at, job, job_of};
use std::sync::Arc;

const FAKE: Space = Space::Device { kind: "fake", device: 0 };

fn sm(rank: u32, name: &str, config: &Config) -> Builder {
    let named =
        SmConfig::new(format!("pages, {name} {}", std::process::id()), format!("rank {rank}"));
    let sm = Box::new(Sm::new(named).unwrap());
    let builder = World::builder().tuning(Tuning::default()).config(config.clone());
    builder.only(["sm"]).transport(sm)
}

fn forced(force: Option<Protocol>) -> Config {
    Config { force, ..Config::default() }
}

/// Those of memory of the host, and whatever the cost model takes.
const ON_HOST: [Option<Protocol>; 6] = [
    None,
    Some(Protocol::Eager),
    Some(Protocol::Pipeline),
    Some(Protocol::Mapped),
    Some(Protocol::MappedPut),
    Some(Protocol::SingleCopy),
];

#[test]
fn pages_over_loopbacks() {
    let plain = loopback::Config::default();
    let storm = Plan {
        seed: 4712,
        full_per_mille: 200,
        full_calls_max: 10,
        delay_polls_max: 5,
        rdma_refused_per_mille: 300,
        mapped_refused_per_mille: 300,
        ..Plan::default()
    };
    let links = [
        ("plain", plain.clone(), Plan::default()),
        (
            "messages only",
            loopback::Config { rdma: false, mapped: false, ..plain.clone() },
            Plan::default(),
        ),
        (
            "tiny",
            loopback::Config {
                eager_bytes: 256,
                max_fragment_bytes: 256,
                slots: 2,
                ..plain.clone()
            },
            Plan::default(),
        ),
        ("stormy", plain, storm),
    ];
    let cases = cases(10);
    for (name, link, plan) in &links {
        for force in ON_HOST {
            let hub = Hub::new();
            let transports = |_| -> Vec<Box<dyn Btl>> {
                vec![Box::new(Fault::new(Loopback::with(&hub, link.clone()), plan.clone()))]
            };
            let what = format!("{name} loopback, {force:?}");
            job(2, &forced(force), transports, |world| {
                let protocols = cases.iter().flat_map(|case| case.exchange(world, &what));
                let protocols: Vec<Protocol> = protocols.collect();
                let must = force.filter(|_| *name == "plain");
                assert!(must.is_none_or(|it| protocols.contains(&it)), "{what}: {protocols:?}");
            });
        }
    }
}

#[test]
fn pages_over_shared_memory_and_to_oneself() {
    let cases = cases(24);
    for force in ON_HOST {
        let what = format!("shared memory, {force:?}");
        let each = |world: &World| {
            cases.iter().for_each(|case| drop(case.exchange(world, &what)));
        };
        for ranks in [1, 2] {
            job_of(ranks, |rank| sm(rank, "pages", &forced(force)), each);
        }
    }
}

#[test]
fn pages_over_tcp() {
    let cases = cases(12);
    for force in [None, Some(Protocol::Eager), Some(Protocol::Pipeline)] {
        let what = format!("TCP, {force:?}");
        let builder = |_| World::builder().only(["tcp"]).tcp_interfaces("lo").config(forced(force));
        job_of(2, builder, |world| {
            cases.iter().for_each(|case| drop(case.exchange(world, &what)));
        });
    }
}

/// A world of two ranks with an engine of a fake device each.
fn with_engines(name: &str, config: &Config, body: impl Fn(&World, &FakeEngine) + Sync) {
    with_slow_engines((name, 3), config, body);
}

/// The same, of engines whose work takes so many polls.
fn with_slow_engines(
    (name, polls): (&str, u32),
    config: &Config,
    body: impl Fn(&World, &FakeEngine) + Sync,
) {
    let engine = |_| {
        let device = Arc::new(FakeDevice::with_delay(0, 2));
        Arc::new(FakeEngine { attaches: false, ..FakeEngine::new(&device, polls) })
    };
    let engines = [0, 1].map(engine);
    let builder = |rank: u32| {
        let engine = &engines[rank as usize];
        let builder = sm(rank, name, config).open_devices(false);
        builder.engine(Arc::clone(engine) as _).device(Arc::clone(&engine.device) as _)
    };
    job_of(2, builder, |world| body(world, &engines[world.rank() as usize]));
}

/// The same, for whoever asks the device alone.
fn with_fakes(name: &str, config: &Config, body: impl Fn(&World, &FakeDevice) + Sync) {
    with_engines(name, config, |world, engine| body(world, &engine.device));
}

#[test]
fn pages_in_memory_of_devices() {
    let cases = cases(6);
    for force in [None].into_iter().chain(Protocol::ALL.map(Some)) {
        let what = format!("devices, {force:?}");
        with_fakes("pages on devices", &forced(force), |world, device| {
            cases.iter().for_each(|case| case.between_devices(world, device, &what));
        });
    }
}

/// Indices lie in memory of devices at both ends, of another width each.
#[test]
fn indices_in_memory_of_devices() {
    let page = Datatype::contiguous(600, &Primitive::Byte.into()).unwrap().commit().unwrap();
    for force in [None].into_iter().chain(Protocol::ALL.map(Some)) {
        with_fakes("indices on devices", &forced(force), |world, device| {
            let comm = world.comm();
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let upload = |bytes: &[u8]| {
                let memory = world.alloc_device(FAKE, bytes.len() as u64).unwrap();
                copy(device, memory.region(), Region::of(bytes));
                memory
            };
            let byte = |rank: u32, at: usize| byte_at(u64::from(rank), at as u64);
            let pool: Vec<u8> = (0..600 * 400).map(|at| byte(me, at)).collect();
            for count in [1u32, 4, 300] {
                let out = |rank: u32| (0..count).map(move |at| (at * 7 + rank) % 390);
                let into = |at: u64| (at * 11 + 3) % 400;
                let outs: Vec<u8> = out(me).flat_map(u32::to_ne_bytes).collect();
                let intos: Vec<u8> =
                    (0..u64::from(count)).flat_map(|at| into(at).to_ne_bytes()).collect();
                let (from, mut to) = (upload(&pool), upload(&pool));
                let (outs, intos) = (upload(&outs), upload(&intos));
                let exchanged = comm.scope(|s| {
                    let indices = intos.indices_u64(0..count.into())?;
                    let into = s.irecv(to.pages_at_mut(0, &page, 600, indices)?, peer, 0)?;
                    let indices = outs.indices_u32(0..count.into())?;
                    let _ = s.isend(from.pages_at(0, &page, 600, indices)?, peer, 0)?;
                    s.wait(into)
                });
                let status =
                    exchanged.unwrap_or_else(|error| panic!("{force:?}, {count} pages: {error}"));
                // One end's device reads both lists.
                let one = [Protocol::Mapped, Protocol::MappedPut];
                let must = force.filter(|force| count == 300 && one.contains(force));
                assert!(must.is_none_or(|must| status.protocol == must), "{}", status.protocol);
                let mut right = pool.clone();
                for (at, from) in (0..).zip(out(peer)) {
                    let (from, to) =
                        (from as usize * 600, usize::try_from(into(at)).unwrap() * 600);
                    (0..600).for_each(|at| right[to + at] = byte(peer, from + at));
                }
                let mut found = vec![0; pool.len()];
                copy(device, Region::of_mut(&mut found), to.region());
                compare(&found, &right, &format!("{force:?}, {count} pages"));
            }
        });
    }
}

/// What a device finds in its list when it reads it is an error at that end. The other end learns that, of all that has
/// begun.
#[test]
fn an_index_beyond_the_memory_that_a_device_finds_fails_the_message() {
    let page = Datatype::contiguous(600, &Primitive::Byte.into()).unwrap().commit().unwrap();
    for force in [None].into_iter().chain(Protocol::ALL.map(Some)) {
        with_fakes("wild indices", &forced(force), |world, device| {
            let comm = world.comm();
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            for (count, wild) in [(2u32, 0), (2, 1), (300, 0), (300, 1)] {
                let list: Vec<u8> = (0..count)
                    .flat_map(|at| match (at == count / 2, wild == me) {
                        (true, true) => u32::MAX.to_ne_bytes(),
                        _ => at.to_ne_bytes(),
                    })
                    .collect();
                let mut pool = world.alloc_device(FAKE, 600 * 300).unwrap();
                let table = world.alloc_device(FAKE, list.len() as u64).unwrap();
                copy(device, table.region(), Region::of(&list));
                let indices = table.indices_u32(0..count.into()).unwrap();
                let what = format!("{force:?}, {count} pages, wild at {wild}, rank {me}");
                if me == 0 {
                    let ended = comm.send(pool.pages_at(0, &page, 600, indices).unwrap(), peer, 0);
                    assert!(ended.is_err() || wild != 0, "{what}");
                    // What is not even begun is nothing that the receiver hears of.
                    comm.send(&[0u8; 0], peer, 0).unwrap();
                } else {
                    let into = pool.pages_at_mut(0, &page, 600, indices).unwrap();
                    let ended = comm.recv(into, peer, 0);
                    let is_last = ended.as_ref().is_ok_and(|status| status.bytes == 0);
                    assert!(ended.is_err() || wild == 0 && is_last, "{what}: {ended:?}");
                    if !is_last {
                        comm.recv(&mut [0u8; 0], peer, 0).unwrap();
                    }
                }
                comm.barrier().unwrap();
            }
        });
    }
}

/// A peer that moves data by a bad list is not rested of for that: the next buffer goes the same way.
#[test]
fn bad_lists_of_a_receiver_put_other_buffers_off_nothing() {
    let page = Datatype::contiguous(600, &Primitive::Byte.into()).unwrap().commit().unwrap();
    with_fakes("bad lists", &forced(Some(Protocol::MappedPut)), |world, device| {
        let comm = world.comm();
        let mut pool = world.alloc_device(FAKE, 600 * 300).unwrap();
        let bytes = Datatype::from(Primitive::Byte).commit().unwrap();
        for round in 0..12 {
            if comm.rank() == 0 {
                // It may hear of what the receiver finds.
                let _ = comm.send(pool.view(0, &bytes, 600 * 300).unwrap(), 1, 0);
                continue;
            }
            let last = if round < 10 { 300u32 } else { 299 };
            let list: Vec<u8> = (0..299).chain([last]).flat_map(u32::to_ne_bytes).collect();
            let table = world.alloc_device(FAKE, list.len() as u64).unwrap();
            copy(device, table.region(), Region::of(&list));
            let indices = table.indices_u32(0..300).unwrap();
            let ended = comm.recv(pool.pages_at_mut(0, &page, 600, indices).unwrap(), 0, 0);
            match ended {
                Ok(status) => assert_eq!((status.protocol, last), (Protocol::MappedPut, 299)),
                Err(error) => assert_eq!(last, 300, "{round}: {error}"),
            }
        }
    });
}

/// What the peers say of pages, for messages of all lengths.
fn pair(name: &str, body: impl Fn(&Communicator) + Sync) {
    for force in [None, Some(Protocol::Eager), Some(Protocol::Pipeline), Some(Protocol::Mapped)] {
        job_of(2, |rank| sm(rank, name, &forced(force)), |world| body(world.comm()));
    }
}

/// Pages of so many numbers.
fn numbers(primitive: Primitive, count: u64, list: &[u32]) -> Pages {
    let page = Datatype::contiguous(count, &primitive.into()).unwrap().commit().unwrap();
    Pages::new(&page, count * primitive.size_bytes(), list).unwrap()
}

fn refused(error: Error) -> PmlError {
    match error {
        Error::Message(failure) => failure.error,
        other => panic!("{other}"),
    }
}

/// As of other layouts: more than there is room for, other numbers.
#[test]
fn pages_that_do_not_fit_the_other_ends_are_errors() {
    pair("misfits", |comm| {
        for count in [1u64, 1000, 20_000] {
            let memory = vec![1.0f64; usize::try_from(4 * count).unwrap()];
            let mut into = memory.clone();
            if comm.rank() == 0 {
                let three = numbers(Primitive::Double, count, &[3, 0, 1]);
                comm.send(View::pages(&memory, 0, &three).unwrap(), 1, 0).unwrap();
                comm.send(View::pages(&memory, 0, &three).unwrap(), 1, 1).unwrap();
                comm.send(View::pages(&memory, 0, &three).unwrap(), 1, 2).unwrap();
                comm.send(&memory[..1], 1, 3).unwrap();
                continue;
            }
            let two = numbers(Primitive::Double, count, &[2, 0]);
            let two = ViewMut::pages(&mut into, 0, &two).unwrap();
            let error = refused(comm.recv(two, 0, 0).unwrap_err());
            assert_eq!(error, PmlError::Truncated { sent: 24 * count, room: 16 * count });
            let mut other = vec![0i64; into.len()];
            let longs = numbers(Primitive::Int64, count, &[0, 1, 2]);
            let longs = ViewMut::pages(&mut other, 0, &longs).unwrap();
            let error = refused(comm.recv(longs, 0, 1).unwrap_err());
            assert!(matches!(error, PmlError::SignatureMismatch { .. }), "{error}");
            // Room for more, in pages of another size.
            let more = numbers(Primitive::Double, count.div_ceil(2), &[5, 1, 0, 3, 2, 4, 6]);
            let mut into = vec![0.0f64; usize::try_from(7 * count.div_ceil(2)).unwrap()];
            let status = comm.recv(ViewMut::pages(&mut into, 0, &more).unwrap(), 0, 2).unwrap();
            assert_eq!(status.bytes, 24 * count);
            // None.
            let none = numbers(Primitive::Double, count, &[]);
            let none = ViewMut::pages(&mut into, 0, &none).unwrap();
            let error = refused(comm.recv(none, 0, 3).unwrap_err());
            assert_eq!(error, PmlError::Truncated { sent: 8, room: 0 });
        }
    });
}

/// Bytes of a page that occurs twice are those of one of its places in the message; all others are as they should be.
#[test]
fn an_index_twice_at_the_target_spoils_its_page_alone() {
    pair("twice", |comm| {
        for count in [1usize, 3000, 50_000] {
            let list = numbers(Primitive::Int32, count as u64, &[2, 4, 2, 0]);
            if comm.rank() == 0 {
                let memory: Vec<i32> = (0..4).flat_map(|page| vec![page; count]).collect();
                comm.send(&memory, 1, 0).unwrap();
                continue;
            }
            let mut into = vec![-1i32; 5 * count];
            comm.recv(ViewMut::pages(&mut into, 0, &list).unwrap(), 0, 0).unwrap();
            let pages: Vec<&[i32]> = into.chunks_exact(count).collect();
            for (page, due) in [(0, 3), (1, -1), (3, -1), (4, 1)] {
                assert!(pages[page].iter().all(|it| *it == due), "page {page} of {count} numbers");
            }
        }
    });
}

#[test]
fn plans_and_owned_buffers_move_pages_again_and_again() {
    let layout = Datatype::contiguous(700, &Primitive::Uint32.into()).unwrap().commit().unwrap();
    let pages = |list: &[u64]| Pages::new(&layout, 2800, list).unwrap();
    let value = |rank: u32, step: u32, page: u32| (rank * 100 + step) * 100 + page;
    let fresh = |rank, step| -> Vec<u32> {
        (0..10).flat_map(|page| vec![value(rank, step, page); 700]).collect()
    };
    pair("plans", |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        // The one end's list is longer than that of the other's receive by what comes from elsewhere.
        let (out, into) = match me {
            0 => (vec![9, 1, 4], vec![2, 6]),
            _ => (vec![3, 8], vec![7, 0, 5]),
        };
        let theirs: [u32; 3] = if me == 0 { [3, 8, 0] } else { [9, 1, 4] };
        let check = |memory: &[u32], step| {
            let mut right = fresh(me, step);
            for (page, from) in into.iter().zip(theirs) {
                let page = usize::try_from(*page).unwrap() * 700;
                right[page..page + 700].fill(value(peer, step, from));
            }
            assert!(memory == right, "rank {me}, step {step}");
        };
        let mut array = fresh(me, 0);
        let plan = comm.plan(&array).send_pages(0, &pages(&out), peer, 0).unwrap();
        let mut plan = plan.recv_pages(0, &pages(&into), peer, 0).unwrap().build().unwrap();
        for step in 0..4 {
            // In one array and in another.
            array = fresh(me, step);
            let status = plan.exchange(&mut array).unwrap()[1];
            assert_eq!(status.bytes, 2800 * into.len() as u64);
            check(&array, step);
        }
        let sent = Owned::pages(fresh(me, 5), 0, &pages(&out));
        let sent = comm.isend_owned(sent, peer, 1).unwrap();
        let received = Owned::pages(fresh(me, 5), 0, &pages(&into));
        let (array, status) = comm.irecv_owned(received, peer, 1).unwrap().wait();
        status.unwrap();
        check(&array, 5);
        sent.wait().1.unwrap();
    });
}

#[test]
fn an_index_beyond_the_memory_is_named_on_devices_too() {
    with_fakes("outside", &Config::default(), |world, _| {
        let mut memory = world.alloc_device(FAKE, 100).unwrap();
        let list = numbers(Primitive::Int32, 4, &[1, 5, 6]);
        let error = memory.pages(0, &list).map(drop).unwrap_err();
        let outside = EngineError::PageOutside { position: 2, index: 6, last: 5 };
        assert_eq!(error, Error::Buffer(outside));
        assert!(error.to_string().contains("index 6 at position 2"), "{error}");
        let error = memory.pages_mut(20, &list).map(drop).unwrap_err();
        let outside = EngineError::PageOutside { position: 1, index: 5, last: 4 };
        assert_eq!(error, Error::Buffer(outside));
    });
}
