//! Collectives on CUDA streams: ranks are processes, each with a GPU of its own, or all on one under MPS. Where there is
//! neither, the tests are skipped.
//!
//! Results are compared, bit by bit, with those of blocking collectives on host memory.

mod blocking;
mod deaths;
mod failures;
mod layouts;
mod ledger;
mod partitioned;

use gapless::{
    Communicator, CudaDevice, CudaDriver, CudaStream, Device, DeviceBuf, Equivalence, Error,
    Primitive, ReduceOp, Region, Space, StreamBuffer, StreamComm, StreamError, StreamOptions,
    Workers, World,
};
use gapless_mem_cuda::Mps;
use gapless_tests::launcher::{Member, Said, TestLauncher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Much longer than anything right takes.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Blocks of a launch where all ranks are on one GPU.
const FEW: u32 = 8;
/// Ranks at least.
const RANKS: usize = 2;

/// Three, as sums of three depend on their order, where there is a GPU for each, or all take one.
fn ranks() -> usize {
    let devices = CudaDriver::load().map_or(0, |driver| driver.devices() as usize);
    if devices == RANKS { RANKS } else { RANKS + 1 }
}

/// Why ranks cannot run here.
fn obstacle() -> Option<String> {
    let driver = match CudaDriver::load() {
        Ok(driver) => driver,
        Err(why) => return Some(why.to_string()),
    };
    if driver.devices() as usize >= RANKS {
        return None;
    }
    match driver.device(0) {
        Ok(device) if device.mps() != Mps::Off => None,
        Ok(_) => Some("one GPU, and no MPS".to_owned()),
        Err(why) => Some(why.to_string()),
    }
}

/// One job after the other: they take each other's blocks, and some want all of a GPU.
fn alone() -> MutexGuard<'static, ()> {
    static GATE: Mutex<()> = Mutex::new(());
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has ranks run this test until all have ended well, but those that are killed when one says so.
fn launcher(test: &str, victim: Option<u32>) {
    if let Some(why) = obstacle() {
        return gapless_btl_testkit::conformance::skip(test, &why);
    }
    let _alone = alone();
    let mut launcher = TestLauncher::start(test, &vec!["rank"; ranks()], |_, _| {});
    let until = Instant::now() + WATCHDOG;
    let mut left = ranks();
    while left > 0 {
        match launcher.hear(until.saturating_duration_since(Instant::now())) {
            Some((_, Said::Line(line))) if line == "kill" => launcher.kill(victim.unwrap()),
            Some((_, Said::Line(_))) => {}
            Some((rank, Said::Ended(status))) => {
                assert!(status.success() || Some(rank) == victim, "rank {rank}: {status}");
                left -= 1;
            }
            None => panic!("{test}: ranks hang"),
        }
    }
}

/// A rank: its world, its device, a stream.
struct Rank {
    world: World,
    space: Space,
    device: CudaDevice,
    stream: CudaStream,
    options: StreamOptions,
}

impl Rank {
    fn new(member: &mut Member) -> Rank {
        Rank::with(member, Workers::Never)
    }

    /// For messages and for blocking calls.
    fn with(member: &mut Member, workers: Workers) -> Rank {
        let world = World::builder().workers(workers).wireup(member.wireup()).init().unwrap();
        let driver = CudaDriver::load().unwrap();
        let ordinal = world.rank() % driver.devices();
        let device = driver.device(ordinal).unwrap();
        let stream = device.stream().unwrap();
        let blocks = if driver.devices() < 2 { FEW } else { 64 };
        let options = StreamOptions { blocks, workers, ..StreamOptions::default() };
        Rank { world, space: Space::Cuda { device: ordinal }, device, stream, options }
    }

    fn comm(&self) -> &Communicator {
        self.world.comm()
    }

    fn on(&self) -> StreamComm<'_> {
        self.comm().on_with(&self.stream, self.options).unwrap()
    }

    fn memory(&self, bytes: usize) -> DeviceBuf {
        self.world.alloc_device(self.space, bytes as u64).unwrap()
    }

    fn write(&self, to: Region, bytes: &[u8]) {
        let to = to.sub(0, bytes.len() as u64).unwrap();
        // SAFETY: both live until the copy is waited for, and no kernel runs.
        unsafe { self.device.copy(to, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
    }

    fn read(&self, from: Region, bytes: usize) -> Vec<u8> {
        let mut into = vec![0u8; bytes];
        let from = from.sub(0, bytes as u64).unwrap();
        // SAFETY: as in `write`.
        unsafe { self.device.copy(Region::of_mut(&mut into), from, &[]) }.unwrap().wait().unwrap();
        into
    }
}

/// Pseudo-random bytes that are no NaN in any type: the exponents of all are bounded.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |at: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let byte = state.to_le_bytes()[6];
        // 0x3b or 0xbb above 16, 32 and 64 bits alike: small numbers of both signs.
        if at % 2 == 1 { 0x3b | (byte & 0x80) } else { byte }
    };
    (0..len).map(byte).collect()
}

/// The same reduction in host memory.
fn on_host<T: Equivalence + gapless::AnyBits + Copy + Default>(
    comm: &Communicator,
    bytes: &[u8],
    read: fn(&[u8]) -> T,
    write: fn(T, &mut Vec<u8>),
    op: ReduceOp,
) -> Vec<u8> {
    let ours: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(read).collect();
    let mut result = vec![T::default(); ours.len()];
    comm.allreduce(&ours, &mut result, op).unwrap();
    let mut out = Vec::new();
    result.into_iter().for_each(|value| write(value, &mut out));
    out
}

macro_rules! host {
    ($comm:expr, $bytes:expr, $op:expr, $t:ty) => {
        on_host::<$t>(
            $comm,
            $bytes,
            |bytes| <$t>::from_ne_bytes(bytes.try_into().unwrap()),
            |value, out| out.extend(value.to_ne_bytes()),
            $op,
        )
    };
}

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
const ELEMENTS: [(Primitive, usize); 8] = [
    (Primitive::Float16, 2),
    (Primitive::BFloat16, 2),
    (Primitive::Float, 4),
    (Primitive::Double, 8),
    (Primitive::Int32, 4),
    (Primitive::Int64, 8),
    (Primitive::Uint32, 4),
    (Primitive::Uint64, 8),
];

fn expected(comm: &Communicator, bytes: &[u8], element: Primitive, op: ReduceOp) -> Vec<u8> {
    match element {
        Primitive::Float16 => host!(comm, bytes, op, half::f16),
        Primitive::BFloat16 => host!(comm, bytes, op, half::bf16),
        Primitive::Float => host!(comm, bytes, op, f32),
        Primitive::Double => host!(comm, bytes, op, f64),
        Primitive::Int32 => host!(comm, bytes, op, i32),
        Primitive::Int64 => host!(comm, bytes, op, i64),
        Primitive::Uint32 => host!(comm, bytes, op, u32),
        _ => host!(comm, bytes, op, u64),
    }
}

/// What is compared lies between bytes that nobody may touch.
const GUARD: usize = 64;
const POISON: u8 = 0xa7;

fn guarded(rank: &Rank, memory: Region, at: usize, right: &[u8], what: &str) {
    let found = rank.read(memory, at + right.len() + GUARD);
    assert!(found[at..at + right.len()] == *right, "{what}: wrong");
    assert!(found[..at].iter().all(|byte| *byte == POISON), "{what}: before");
    assert!(found[at + right.len()..].iter().all(|byte| *byte == POISON), "{what}: behind");
}

#[test]
fn every_reduction_has_the_bits_of_the_host() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("every_reduction_has_the_bits_of_the_host", None);
    };
    const MOST: usize = 4 << 20;
    let rank = Rank::new(&mut member);
    let comm = rank.comm();
    let (send, recv) = (rank.memory(MOST + 4096), rank.memory(MOST + 4096));
    let mut on = rank.on();
    let mut register = |memory: &DeviceBuf| {
        // SAFETY: both outlive `on`.
        unsafe { on.register(memory.region()) }.unwrap()
    };
    let shared = (register(&send), register(&recv));
    let mut run =
        |element, size: usize, op, count: usize, registered: bool, shift: usize, in_place: bool| {
            let what = format!(
                "{element:?} {op:?} {count} registered {registered} shift {shift} {in_place}"
            );
            let at = GUARD + shift * size;
            let ours = bytes(count * size, (count * size) as u64 + 17 * u64::from(comm.rank() + 1));
            let right = expected(comm, &ours, element, op);
            let target = if in_place { send.region() } else { recv.region() };
            rank.write(target, &vec![POISON; at + count * size + GUARD]);
            rank.write(send.region().sub(at as u64, (count * size) as u64).unwrap(), &ours);
            let place = |memory: Region, it: gapless::Registered| -> StreamBuffer {
                match registered {
                    true => it.at(at as u64),
                    false => memory.sub(at as u64, memory.len() - at as u64).unwrap().into(),
                }
            };
            let from = place(send.region(), shared.0);
            let to = if in_place { from } else { place(recv.region(), shared.1) };
            comm.barrier().unwrap();
            // SAFETY: both outlive `on`, and nothing else uses them until `wait` has returned at all ranks.
            unsafe { on.allreduce(from, to, count as u64, element, op) }.unwrap();
            on.wait().unwrap();
            comm.barrier().unwrap();
            guarded(&rank, target, at, &right, &what);
        };
    for (element, size) in ELEMENTS {
        for op in OPS {
            run(element, size, op, 1001, false, 0, false);
            run(element, size, op, MOST / size - 3, true, 0, false);
        }
        for registered in [false, true] {
            for shift in [0, 1] {
                for bytes in [8, 4096, 40_000, 1 << 20, (1 << 20) + 64, MOST - 64] {
                    for in_place in [false, true] {
                        run(
                            element,
                            size,
                            ReduceOp::Sum,
                            bytes / size - 1 + usize::from(bytes == 8),
                            registered,
                            shift,
                            in_place,
                        );
                    }
                }
            }
        }
    }
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn blocks_get_where_they_belong() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("blocks_get_where_they_belong", None);
    };
    const MOST: usize = 3 << 20;
    let rank = Rank::new(&mut member);
    let comm = rank.comm();
    let (n, me) = (comm.size() as usize, comm.rank() as usize);
    let (send, recv) = (rank.memory(n * MOST), rank.memory(n * MOST + GUARD));
    let mut on = rank.on();
    let mut register = |memory: &DeviceBuf| {
        // SAFETY: both outlive `on`.
        unsafe { on.register(memory.region()) }.unwrap()
    };
    let shared = (register(&send), register(&recv));
    let short = [1, 2, 3, 7, 8, 9, 13, 255, 1000, 1001, 4095, 4096, 4099, 16_381, 32 << 10];
    for len in short.into_iter().chain([65_537, 131_071, 128 << 10, 1 << 20, MOST]) {
        let ours = |rank: usize| bytes(n * len, (len + 7919 * rank) as u64);
        let check = |what: &str, right: &[u8]| guarded(&rank, recv.region(), 0, right, what);
        let prepare = || {
            rank.write(recv.region(), &vec![POISON; n * len + GUARD]);
            rank.write(send.region(), &ours(me));
            comm.barrier().unwrap();
        };
        let finish = |on: &StreamComm<'_>| {
            on.wait().unwrap();
            comm.barrier().unwrap();
        };
        prepare();
        // SAFETY: as above, and nothing else uses them until `wait` has returned at all ranks.
        unsafe { on.allgather(send.region(), shared.1, len as u64) }.unwrap();
        finish(&on);
        let right: Vec<u8> = (0..n).flat_map(|from| ours(from)[..len].to_vec()).collect();
        check(&format!("all-gather of {len}"), &right);
        prepare();
        // SAFETY: as above.
        unsafe { on.alltoall(send.region(), shared.1, len as u64) }.unwrap();
        finish(&on);
        let block = |from: usize| ours(from)[me * len..(me + 1) * len].to_vec();
        check(&format!("all-to-all of {len}"), &(0..n).flat_map(block).collect::<Vec<u8>>());
        prepare();
        // SAFETY: as above.
        unsafe { on.allgather(shared.0.at((me * len) as u64), shared.0, len as u64) }.unwrap();
        finish(&on);
        let gathered: Vec<u8> =
            (0..n).flat_map(|from| ours(from)[from * len..(from + 1) * len].to_vec()).collect();
        assert!(rank.read(send.region(), n * len) == gathered, "all-gather of {len}, in place");
        prepare();
        // SAFETY: as above.
        unsafe { on.broadcast(shared.0, (n * len) as u64, 1) }.unwrap();
        finish(&on);
        assert!(rank.read(send.region(), n * len) == ours(1), "broadcast of {len}");
        let count = len / 4;
        if count == 0 {
            continue;
        }
        prepare();
        let kinds = (Primitive::Float, ReduceOp::Sum);
        // SAFETY: as above.
        unsafe { on.reduce_scatter(shared.0, recv.region(), count as u64, kinds.0, kinds.1) }
            .unwrap();
        finish(&on);
        let whole = host!(comm, &ours(me)[..n * count * 4], kinds.1, f32);
        guarded(
            &rank,
            recv.region(),
            0,
            &whole[me * count * 4..(me + 1) * count * 4],
            "reduce-scatter",
        );
    }
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn a_captured_graph_can_be_launched_again_and_again() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("a_captured_graph_can_be_launched_again_and_again", None);
    };
    let rank = Rank::new(&mut member);
    let comm = rank.comm();
    const LONG: usize = 2 << 20;
    const BLOCK: usize = 1003;
    let (short, long) = (rank.memory(4096), rank.memory(LONG));
    let (n, me) = (comm.size() as usize, comm.rank() as usize);
    let blocks = rank.memory(2 * n * BLOCK);
    let mut on = rank.on();
    // SAFETY: it outlives `on`.
    let shared = unsafe { on.register(long.region()) }.unwrap();
    // SAFETY: likewise.
    let registered = unsafe { on.register(blocks.region()) }.unwrap();
    // Five launches, an odd number, so that what alternates does so from launch to launch.
    let graph = rank.stream.capture(|_| {
        let mut add = |buffer: StreamBuffer, count| {
            // SAFETY: both outlive the graph's last launch, and nothing else uses them while it runs.
            unsafe { on.allreduce(buffer, buffer, count, Primitive::Int32, ReduceOp::Sum) }
        };
        add(short.region().into(), 1024)?;
        add(shared.into(), LONG as u64 / 4)?;
        add(short.region().into(), 1024)?;
        // SAFETY: as above.
        unsafe { on.allgather(shared, registered, BLOCK as u64) }?;
        // SAFETY: as above.
        unsafe { on.alltoall(shared, registered.at((n * BLOCK) as u64), BLOCK as u64) }
    });
    let graph = graph.unwrap();
    for round in 0..20 {
        let number = |rank: u32| 3 * rank as i32 + round;
        let all: i32 = (0..comm.size()).map(number).sum();
        let summands = comm.size() as i32;
        let fill = |bytes: usize| number(comm.rank()).to_ne_bytes().repeat(bytes / 4);
        rank.write(short.region(), &fill(4096));
        rank.write(long.region(), &fill(LONG));
        comm.barrier().unwrap();
        // SAFETY: as above; no other work of `on` is under way.
        unsafe { graph.launch(&rank.stream) }.unwrap();
        if round % 3 == 0 {
            // Beside what is called as usual.
            // SAFETY: as above.
            unsafe {
                on.allreduce(short.region(), short.region(), 1, Primitive::Int32, ReduceOp::Max)
            }
            .unwrap();
        }
        on.wait().unwrap();
        comm.barrier().unwrap();
        assert_eq!(rank.read(short.region(), 4096), (summands * all).to_ne_bytes().repeat(1024));
        assert!(rank.read(long.region(), LONG) == all.to_ne_bytes().repeat(LONG / 4));
        let summed = all.to_ne_bytes().repeat(n * BLOCK);
        let right =
            [&summed[..BLOCK], &summed[me * BLOCK..(me + 1) * BLOCK]].map(|it| it.repeat(n));
        assert!(rank.read(blocks.region(), 2 * n * BLOCK) == right.concat());
    }
    drop(graph);
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn ranks_have_as_many_blocks_as_their_gpu_holds() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("ranks_have_as_many_blocks_as_their_gpu_holds", None);
    };
    let rank = Rank::new(&mut member);
    let memory = rank.memory(2 << 20);
    // 64 by default, if ranks share a GPU or not.
    let mut on = rank.comm().on(&rank.stream).unwrap();
    let ours = 1i32.to_ne_bytes().repeat(1 << 19);
    rank.write(memory.region(), &ours);
    rank.comm().barrier().unwrap();
    // SAFETY: it outlives `on`, and nothing else uses it.
    unsafe {
        on.allreduce(memory.region(), memory.region(), 1 << 19, Primitive::Int32, ReduceOp::Sum)
    }
    .unwrap();
    on.wait().unwrap();
    let all = i32::try_from(rank.comm().size()).unwrap();
    assert!(rank.read(memory.region(), 2 << 20) == all.to_ne_bytes().repeat(1 << 19));
    drop(on);
    rank.world.finalize().unwrap();
}

#[test]
fn ranks_that_take_turns_on_one_gpu_are_refused() {
    let test = "ranks_that_take_turns_on_one_gpu_are_refused";
    let Some(mut member) = Member::of_launcher() else {
        let turns = CudaDriver::load().and_then(|driver| driver.device(0));
        return match turns {
            Ok(device) if device.mps() == Mps::Off => {
                drop(device);
                launcher_anywhere(test)
            }
            Ok(_) => gapless_btl_testkit::conformance::skip(test, "MPS is on"),
            Err(why) => gapless_btl_testkit::conformance::skip(test, &why.to_string()),
        };
    };
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let stream = CudaDriver::load().unwrap().device(0).unwrap().stream().unwrap();
    let refused = world.comm().on(&stream).unwrap_err();
    assert_eq!(refused, Error::Stream(StreamError::SameDevice { one: 0, other: 1 }));
    world.finalize().unwrap();
}

/// As [`launcher`], whatever GPUs there are.
fn launcher_anywhere(test: &str) {
    let mut launcher = TestLauncher::start(test, &["rank"; RANKS], |_, _| {});
    for _ in 0..RANKS {
        match launcher.hear(WATCHDOG) {
            Some((rank, Said::Ended(status))) => assert!(status.success(), "rank {rank}: {status}"),
            other => panic!("{other:?}"),
        }
    }
}
