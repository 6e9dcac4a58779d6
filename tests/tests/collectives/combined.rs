//! Reductions of device buffers are combined on the device, and give what the host's give, bit for bit, where data goes by
//! messages. Each rank has an OpenCL device of its own.

use crate::collectives::by_tasks;
use gapless::btl::loopback::{Hub, Loopback};
use gapless::coll::Method;
use gapless::coll::choose::{DEFAULT_RULES, Table};
use gapless::{
    Collective, Communicator, Datatype, Device, GpuEngine, Layout, OpenClDevice, Primitive,
    ReduceOp, Region, View, ViewMut, World,
};
use gapless_btl_testkit::conformance::skip;
use gapless_engine::testkit::{Work, Wrapper};
use gapless_engine::{Engine, EngineError, Op, Reducer, Typed};
use gapless_mem::{Completion, Space};
use gapless_tests::job_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const RANKS: u32 = 3;

/// An engine whose reductions are counted.
struct Watched {
    engine: GpuEngine,
    combined: Arc<AtomicU64>,
}

// SAFETY: all work is handed on to the engine, by which the contract holds.
unsafe impl Wrapper for Watched {
    fn name(&self) -> &'static str {
        Engine::name(&self.engine)
    }

    fn serves(&self, space: Space) -> bool {
        Engine::serves(&self.engine, space)
    }

    fn device(&self, space: Space) -> Option<Arc<dyn Device>> {
        Engine::device(&self.engine, space)
    }

    fn reducer(&self, space: Space) -> Option<Arc<dyn Reducer>> {
        Engine::reducer(&self.engine, space)?;
        let (engine, combined) = (self.engine.clone(), Arc::clone(&self.combined));
        Some(Arc::new(Watched { engine, combined }))
    }

    unsafe fn work(&self, work: Work, after: &[Completion]) -> Result<Completion, EngineError> {
        // SAFETY: the caller's promise.
        unsafe { work.run(&self.engine, after) }
    }
}

// SAFETY: as above.
unsafe impl Reducer for Watched {
    fn supports(&self, op: &Op, layout: &Layout) -> bool {
        self.engine.supports(op, layout)
    }

    fn serves(&self, space: Space) -> bool {
        Reducer::serves(&self.engine, space)
    }

    unsafe fn reduce_into(
        &self,
        op: &Op,
        srcs: &[Typed],
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        self.combined.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.engine.reduce_into(op, srcs, dst, range, after) }
    }
}

/// Numbers whose sums depend on the order.
fn numbers(rank: u32, count: usize) -> Vec<f32> {
    let number = |at: usize| {
        let at = u32::try_from(at).unwrap().wrapping_mul(2_654_435_761) ^ rank.wrapping_mul(97);
        (f32::from(u16::try_from(at >> 16).unwrap()) - 30_000.0) / 7.0
    };
    (0..count).map(number).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Memory of a device.
struct Held<'d>(&'d dyn Device, Region);

impl<'d> Held<'d> {
    fn new(device: &'d dyn Device, numbers: &[f32]) -> Held<'d> {
        let bytes = bytes(numbers);
        let region = device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live over the wait, and nothing else touches them.
        unsafe { device.copy(region, Region::of(&bytes), &[]) }.unwrap().wait().unwrap();
        Held(device, region)
    }

    /// What it holds. Frees it.
    fn bytes(self) -> Vec<u8> {
        let Held(device, region) = self;
        let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
        // SAFETY: as in `new`.
        unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }.unwrap().wait().unwrap();
        // SAFETY: allocated in `new`; every collective in it has ended.
        unsafe { device.free(region) }.unwrap();
        bytes
    }
}

/// One collective, and how many instances it gives for `count` that it takes.
type Reduces = (&'static str, for<'b> fn(View<'b>, ViewMut<'b>) -> Collective<'b>, fn(u64) -> u64);

const ALL: [Reduces; 3] = [
    ("allreduce", |send, recv| Collective::allreduce(send, recv, ReduceOp::Sum), |count| count),
    (
        "reduce_scatter_block",
        |send, recv| Collective::reduce_scatter_block(send, recv, ReduceOp::Sum),
        |count| count / RANKS as u64,
    ),
    ("scan", |send, recv| Collective::scan(send, recv, ReduceOp::Sum), |count| count),
];

fn begin(comm: &Communicator, collective: Collective<'_>) {
    comm.scope(|s| s.begin(collective)?.wait()).unwrap();
}

/// The same collectives on the host and on the device; `count` instances of a layout, floats in memory for each.
fn compare(comm: &Communicator, device: &dyn Device, layout: &Layout, floats: usize, count: u64) {
    for (name, collective, results) in ALL {
        let given = numbers(comm.rank(), floats * usize::try_from(count).unwrap());
        let result = results(count);
        let room = numbers(7, floats * usize::try_from(result).unwrap());
        let mut near = room.clone();
        let send = View::typed(&given, 0, layout, count).unwrap();
        let recv = ViewMut::typed(&mut near, 0, layout, result).unwrap();
        begin(comm, collective(send, recv));
        let (send, recv) = (Held::new(device, &given), Held::new(device, &room));
        // SAFETY: the memory is held until `bytes` frees it, and nothing else touches it before.
        let from = unsafe { View::of_region(send.1, 0, layout, count) }.unwrap();
        // SAFETY: as above.
        let into = unsafe { ViewMut::of_region(recv.1, 0, layout, result) }.unwrap();
        begin(comm, collective(from, into));
        assert!(recv.bytes() == bytes(&near), "{name} of {count}");
        assert!(send.bytes() == bytes(&given), "{name} of {count}: what was sent");
    }
}

#[test]
fn device_buffers_are_combined_on_the_device_as_on_the_host() {
    let open = || OpenClDevice::open(0).map_err(|error| error.to_string());
    if let Err(why) = open() {
        return skip("device_buffers_are_combined_on_the_device_as_on_the_host", &why);
    }
    let engines: Vec<(Arc<OpenClDevice>, GpuEngine, Arc<AtomicU64>)> = (0..RANKS)
        .map(|_| {
            let device = Arc::new(open().unwrap());
            let engine = GpuEngine::opencl(Arc::clone(&device)).unwrap();
            (device, engine, Arc::default())
        })
        .collect();
    let hub = Hub::new();
    let world = |rank: u32| {
        let (_, engine, combined) = &engines[rank as usize];
        let watched = Watched { engine: engine.clone(), combined: Arc::clone(combined) };
        let transport = Box::new(Loopback::new(&hub));
        let by_messages =
            DEFAULT_RULES.iter().filter(|rule| rule.algorithm.method != Method::Shared);
        let table = Table { rules: by_messages.copied().collect(), ..Table::default() };
        let builder = World::builder().only(["loopback"]).transport(transport).coll_table(table);
        builder.engine(Arc::new(watched))
    };
    let float = Datatype::from(Primitive::Float);
    let plain = float.commit().unwrap();
    // Rows of 5 out of 8, and one float more to the next instance.
    let rows = Datatype::vector(30, 5, 8, &float).unwrap();
    let strided = Datatype::resized(0, 4 * 240, &rows).unwrap().commit().unwrap();
    job_of(RANKS, world, |world| {
        let (device, _, combined) = &engines[world.rank() as usize];
        for (layout, floats, count) in
            [(&plain, 1, 30_000), (&strided, 240, 3), (&strided, 240, 90)]
        {
            combined.store(0, Ordering::Relaxed);
            compare(world.comm(), &**device, layout, floats, count);
            // The first rank of a scan combines nothing, but of the others it does.
            assert!(combined.load(Ordering::Relaxed) > 0, "{count}: combined on the host");
        }
        // Tasks combine in memory of the host, and give the same.
        world.set_coll_table(by_tasks::table());
        compare(&world.comm().dup().unwrap(), &**device, &strided, 240, 3);
    });
}
