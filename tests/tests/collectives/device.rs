//! Collectives on device memory: each rank has a device of its own, pretended or OpenCL's, and any of its buffers may
//! lie there.

use crate::collectives::rank_of;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::coll::{CollError, Operation};
use gapless::tuning::coll::{Rule, Table};
use gapless::{
    Builder, CollectiveError, Communicator, Datatype, Device, Error, InPlace, Layout, OpenClDevice,
    Primitive, ReduceOp, Region, View, ViewMut, World,
};
use gapless_btl_testkit::conformance::skip;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::job_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const RANKS: u32 = 3;
const LEN: usize = 1500;
const GAP: i32 = -9;

/// Numbers, each with a gap behind it, on a device or not.
struct Memory<'d> {
    host: Vec<i32>,
    device: Option<(&'d dyn Device, Region)>,
}

impl<'d> Memory<'d> {
    fn new(device: Option<&'d dyn Device>, numbers: &[i32]) -> Memory<'d> {
        let host: Vec<i32> = numbers.iter().flat_map(|number| [*number, GAP]).collect();
        let device = device.map(|device| {
            let bytes: Vec<u8> = host.iter().flat_map(|number| number.to_ne_bytes()).collect();
            let region = device.allocate(bytes.len() as u64).unwrap();
            // SAFETY: both live over the wait, and nothing else touches them.
            unsafe { device.copy(region, Region::of(&bytes), &[]) }.unwrap().wait().unwrap();
            (device, region)
        });
        Memory { host, device }
    }

    fn layout() -> Layout {
        let number = Datatype::from(Primitive::Int32);
        Datatype::resized(0, 8, &number).unwrap().commit().unwrap()
    }

    fn view(&self) -> View<'_> {
        let (layout, count) = (Memory::layout(), (self.host.len() / 2) as u64);
        match self.device {
            // SAFETY: the memory is this value's until `numbers` frees it, and nothing writes it before.
            Some((_, region)) => unsafe { View::of_region(region, 0, &layout, count) }.unwrap(),
            None => View::typed(&self.host, 0, &layout, count).unwrap(),
        }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        let (layout, count) = (Memory::layout(), (self.host.len() / 2) as u64);
        match self.device {
            // SAFETY: as in `view`; the value is borrowed exclusively.
            Some((_, region)) => unsafe { ViewMut::of_region(region, 0, &layout, count) }.unwrap(),
            None => ViewMut::typed(&mut self.host, 0, &layout, count).unwrap(),
        }
    }

    /// What it holds; its gaps were left alone. Frees it.
    fn numbers(self) -> Vec<i32> {
        let mut host = self.host;
        if let Some((device, region)) = self.device {
            let mut bytes = vec![0u8; host.len() * 4];
            let into = Region::of_mut(&mut bytes);
            // SAFETY: as in `new`.
            unsafe { device.copy(into, region, &[]) }.unwrap().wait().unwrap();
            // SAFETY: allocated in `new`; every collective in it has ended.
            unsafe { device.free(region) }.unwrap();
            let number = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().unwrap());
            host = bytes.chunks_exact(4).map(number).collect();
        }
        assert!(host.iter().skip(1).step_by(2).all(|gap| *gap == GAP));
        host.into_iter().step_by(2).collect()
    }
}

fn given(from: i32, count: usize) -> Vec<i32> {
    (0..count).map(|at| from * 1000 + i32::try_from(at).unwrap()).collect()
}

/// `spaces`: which of this rank's buffers lie on the device.
fn exchange(comm: &Communicator, device: &dyn Device, spaces: u32) {
    let (me, n) = (rank_of(comm), RANKS as usize);
    let memory = |bit: u32, numbers: &[i32]| {
        Memory::new((spaces >> bit & 1 == 1).then_some(device), numbers)
    };
    let whole: Vec<i32> = (0..3).flat_map(|from| given(from, LEN)).collect();
    let sum: Vec<i32> = (0..LEN).map(|at| 3000 + 3 * i32::try_from(at).unwrap()).collect();

    let (send, mut recv) = (memory(0, &given(me, LEN)), memory(1, &[0; LEN]));
    comm.allreduce(send.view(), recv.view_mut(), ReduceOp::Sum).unwrap();
    assert_eq!(recv.numbers(), sum);
    let mut both = memory(1, &given(me, LEN));
    comm.allreduce(InPlace, both.view_mut(), ReduceOp::Sum).unwrap();
    assert_eq!(both.numbers(), sum);
    let mut recv = memory(1, &[0; LEN]);
    comm.scan(send.view(), recv.view_mut(), ReduceOp::Max).unwrap();
    assert_eq!(recv.numbers(), given(me, LEN));
    let mut recv = memory(1, &vec![0; n * LEN]);
    comm.allgather(send.view(), recv.view_mut()).unwrap();
    assert_eq!(recv.numbers(), whole);
    let (send, mut recv) = (memory(0, &whole), memory(1, &vec![0; n * LEN]));
    comm.alltoall(send.view(), recv.view_mut()).unwrap();
    let own = given(me, LEN);
    assert_eq!(recv.numbers(), [&own[..], &own, &own].concat());
    assert_eq!(send.numbers(), whole);
    let mut word = memory(0, &given(if me == 2 { 2 } else { 0 }, 9000));
    comm.bcast(word.view_mut(), 2).unwrap();
    assert_eq!(word.numbers(), given(2, 9000));
    let (send, mut recv) = (memory(0, &given(5, 7)), memory(1, &given(4, 7)));
    comm.reduce_local(send.view(), recv.view_mut(), ReduceOp::Sum).unwrap();
    assert_eq!(recv.numbers()[6], 9012);
    drop(send.numbers());
}

fn all_spaces(
    builder: impl Fn(u32, Builder) -> Builder + Sync,
    device: impl Fn(u32) -> Arc<dyn Device> + Sync,
) {
    let hub = Hub::new();
    let world = |rank| {
        let transport = Box::new(Loopback::new(&hub));
        builder(rank, World::builder().only(["loopback"]).transport(transport))
    };
    job_of(RANKS, world, |world| {
        let device = device(world.rank());
        for round in 0..4 {
            // Each rank's buffers lie elsewhere than the next one's.
            exchange(world.comm(), &*device, (round + world.rank()) % 4);
        }
    });
}

#[test]
fn any_buffer_may_lie_on_a_device_whose_work_ends_late() {
    let devices: Vec<_> = (0..RANKS).map(|rank| Arc::new(FakeDevice::new(rank))).collect();
    let engine = |rank: u32, builder: Builder| {
        let engine = FakeEngine::new(&devices[rank as usize], 3);
        builder.engine(Arc::new(FakeEngine { attaches: false, ..engine }))
    };
    all_spaces(engine, |rank| Arc::clone(&devices[rank as usize]) as _);
}

#[test]
fn any_buffer_may_lie_on_an_opencl_device() {
    let open = || OpenClDevice::open(0).map_err(|error| error.to_string());
    if let Err(why) = open() {
        return skip("any_buffer_may_lie_on_an_opencl_device", &why);
    }
    all_spaces(|_, builder| builder, |_| Arc::new(open().unwrap()));
}

/// The engine of a rank that passes data on fails: those that it passes them on to learn who failed.
#[test]
fn a_device_that_fails_is_named_by_its_rank() {
    let device = Arc::new(FakeDevice::new(0));
    let engine = Arc::new(FakeEngine { attaches: false, ..FakeEngine::new(&device, 1) });
    engine.broken.store(true, Ordering::Relaxed);
    let hub = Hub::new();
    let world = |rank| {
        let transport = Box::new(Loopback::new(&hub));
        let builder = World::builder().only(["loopback"]).transport(transport);
        if rank == 1 { builder.engine(Arc::clone(&engine) as _) } else { builder }
    };
    job_of(RANKS, world, |world| {
        let comm = world.comm();
        let device = (comm.rank() == 1).then_some(&*device as &dyn Device);
        // By messages, and long enough to go along a chain.
        let chain = Rule {
            operation: Operation::Bcast,
            ranks_max: usize::MAX,
            bytes_max: u64::MAX,
            algorithm: "chain".parse().unwrap(),
        };
        world.set_coll_table(Table { rules: vec![chain], ..Table::default() });
        let chained = comm.dup().unwrap();
        let mut word = Memory::new(device, &given(0, 9000));
        let result = chained.scope(|s| s.ibcast(word.view_mut(), 0)?.wait());
        match comm.rank() {
            0 => result.unwrap(),
            1 => drop(result.unwrap_err()),
            _ => {
                let Err(Error::Collective { error, .. }) = result else { panic!("{result:?}") };
                let error_there = CollError::GaveUp { rank: 1 };
                assert_eq!(
                    *error,
                    CollectiveError::Failed { error: error_there, process: Some(1) }
                );
            }
        }
        // Through shared memory nobody else needs it.
        let result = comm.bcast(word.view_mut(), 0);
        assert_eq!(result.is_err(), comm.rank() == 1, "{result:?}");
        comm.barrier().unwrap();
        drop(word.numbers());
    });
}

/// The same where a rank's engine fails at the first thing that it sends, straight out of memory of the device.
#[test]
fn a_device_whose_data_cannot_be_sent_is_named_by_its_rank() {
    let device = Arc::new(FakeDevice::new(0));
    let engine = Arc::new(FakeEngine { attaches: false, ..FakeEngine::new(&device, 1) });
    engine.broken.store(true, Ordering::Relaxed);
    let hub = Hub::new();
    let world = |rank| {
        let transport = Box::new(Loopback::new(&hub));
        let builder = World::builder().only(["loopback"]).transport(transport);
        if rank == 1 { builder.engine(Arc::clone(&engine) as _) } else { builder }
    };
    job_of(RANKS, world, |world| {
        let comm = world.comm();
        let device = (comm.rank() == 1).then_some(&*device as &dyn Device);
        for len in [LEN, 90_000] {
            let send = Memory::new(device, &given(rank_of(comm), len));
            let mut all = vec![0; RANKS as usize * len];
            let result = match comm.rank() {
                0 => comm.gather(send.view(), &mut all, 0),
                _ => comm.gather(send.view(), (), 0),
            };
            if comm.rank() == 2 {
                result.unwrap();
            } else {
                let Err(Error::Collective { error, .. }) = &result else { panic!("{result:?}") };
                let CollectiveError::Failed { error, process } = &**error else {
                    panic!("{error:?}")
                };
                assert_eq!((error.culprit(), *process), (Some(1), Some(1)), "{len}: {error:?}");
            }
            comm.barrier().unwrap();
            drop(send.numbers());
        }
    });
}
