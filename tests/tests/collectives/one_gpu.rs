//! Processes whose buffers lie on one GPU, pretended by devices whose memory they share, or a GPU: collectives go
//! there. One whose buffers lie elsewhere, or which is killed, holds nobody up.

use gapless::coll::choose::Table;
use gapless::raw::{self, Buffer, Operation, Request, Typed};
use gapless::tuning::coll::{Entry, Gpu, HyperQStep, Mode, Settings};
use gapless::{
    Blocks, BlocksMut, Collective, CudaDriver, DeviceBuf, Equivalence, Error, InPlace, ReduceOp,
    Root, Space, World,
};
use gapless_btl_testkit::conformance::skip;
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::launcher::{Lines, Member, TestLauncher, say};
use std::sync::Arc;
use std::time::Duration;

const TEST: &str = "collectives::one_gpu::processes_on_one_gpu_meet_there";
const ON_CUDA: &str = "collectives::one_gpu::processes_on_a_cuda_gpu_meet_there";
/// Before the mode: on a GPU.
const CUDA: &str = "cuda ";
/// In the place of a mode: copies of one kind alone, by a table.
const STAGED: &str = "host-staged";
const IPC: &str = "ipc";
/// Before the mode: on two.
const TWO: &str = "two ";
const RANKS: u32 = 4;
const VICTIM: u32 = 2;
const WATCHDOG: Duration = Duration::from_secs(30);

#[test]
fn processes_on_one_gpu_meet_there() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    meet(TEST, "");
}

#[test]
fn processes_on_a_cuda_gpu_meet_there() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    match CudaDriver::load() {
        Ok(_) => meet(ON_CUDA, CUDA),
        Err(why) => skip(ON_CUDA, &why.to_string()),
    }
}

fn meet(test: &str, place: &str) {
    let two = place.is_empty() || CudaDriver::load().is_ok_and(|driver| driver.devices() > 1);
    let modes = [Mode::Static, Mode::Dynamic, Mode::Remembering, Mode::Led].map(Mode::name);
    let all = modes.into_iter().chain([STAGED, IPC]).map(|mode| ("", mode));
    for (gpus, mode) in all.chain(two.then_some((TWO, Mode::Auto.name()))) {
        let part = format!("{place}{gpus}{mode}");
        let mut launcher = TestLauncher::start(test, &[&*part; RANKS as usize], |_, _| {});
        let mut lines = Lines::new(&part, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "all is right", RANKS as usize);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "named it", RANKS as usize - 1);
    }
}

/// A rank's world, and buffers on the GPU.
struct Rank {
    world: World,
    send: DeviceBuf,
    recv: DeviceBuf,
}

impl Rank {
    // Messages to itself carry numbers from the device, and there.
    fn read(&self, count: usize) -> Vec<i32> {
        let mut numbers = vec![0; count];
        let (own, from) = (self.world.self_comm(), self.recv.view(0, i32::layout(), count as u64));
        own.scope(|s| {
            let _ = s.irecv(&mut numbers[..], 0, 0)?;
            let _ = s.isend(from?, 0, 0)?;
            Ok(())
        })
        .unwrap();
        numbers
    }

    /// What it sends.
    fn write(&mut self, numbers: &[i32]) {
        put(&self.world, &mut self.send, numbers);
    }
}

fn put(world: &World, into: &mut DeviceBuf, numbers: &[i32]) {
    let (own, layout) = (world.self_comm().clone(), i32::layout());
    let into = into.view_mut(0, layout, numbers.len() as u64).unwrap();
    own.scope(|s| {
        let _ = s.irecv(into, 0, 0)?;
        let _ = s.isend(numbers, 0, 0)?;
        Ok(())
    })
    .unwrap();
}

fn numbers(rank: u32, count: usize) -> Vec<i32> {
    (0..count).map(|at| i32::try_from(at * 3).unwrap() + 7 * i32::try_from(rank).unwrap()).collect()
}

/// Blocks of different lengths, empty ones too: they go by messages if all ranks' buffers lie on devices. `away`: those
/// of rank 1 do not.
fn by_messages(rank: &mut Rank, all: &[Vec<i32>], away: bool) {
    let (comm, me) = (rank.world.comm().clone(), rank.world.rank());
    let (layout, count) = (i32::layout(), all[0].len() as u64);
    // What a rank gives to another: nothing to itself.
    let len = |from: u32, to: u32| match from == to {
        true => 0,
        false => (count / 8 + u64::from(to)).min(count / 4),
    };
    let sends: Vec<u64> = (0..RANKS).map(|to| len(me, to)).collect();
    let recvs: Vec<u64> = (0..RANKS).map(|from| len(from, me)).collect();
    let total = usize::try_from(recvs.iter().sum::<u64>()).unwrap();
    let part = |from: u32| {
        let start: u64 = (0..me).map(|to| len(from, to)).sum();
        let [start, len] = [start, len(from, me)].map(|number| usize::try_from(number).unwrap());
        &all[from as usize][start..start + len]
    };
    let want: Vec<i32> = (0..RANKS).flat_map(|from| part(from).to_vec()).collect();
    let by_messages = |rank: &Rank| -> u64 {
        rank.world.counters().unwrap().used().map(|(_, counts)| counts.bytes).sum()
    };
    let (before, sent) = (by_messages(rank), 4 * sends.iter().sum::<u64>());
    let came = if away && me == 1 {
        let mut into = vec![0; total];
        let send = Blocks::packed(&all[1][..], &sends).unwrap();
        comm.alltoallv(send, BlocksMut::packed(&mut into[..], &recvs).unwrap()).unwrap();
        into
    } else {
        let send = Blocks::packed(rank.send.view(0, layout, count).unwrap(), &sends).unwrap();
        let into = rank.recv.view_mut(0, layout, total as u64).unwrap();
        comm.alltoallv(send, BlocksMut::packed(into, &recvs).unwrap()).unwrap();
        if sent > 0 {
            // Ranks that sleep are woken by messages, which are short.
            assert_eq!(by_messages(rank) - before >= sent, !away, "{sent} bytes");
        }
        rank.read(total)
    };
    assert_eq!(came, want);
}

/// Collectives that do not block, and persistent ones, stay on no GPU: they go by messages, too. Each is done twice, a
/// persistent one by itself.
fn not_blocking(rank: &mut Rank, all: &[Vec<i32>]) {
    let (comm, me) = (rank.world.comm().clone(), rank.world.rank() as usize);
    let (each, layout) = (all[0].len() as u64 / u64::from(RANKS), i32::layout());
    let count = each * u64::from(RANKS);
    let part = usize::try_from(each).unwrap();
    let want: Vec<i32> =
        all.iter().flat_map(|from| from[me * part..(me + 1) * part].to_vec()).collect();
    for persistent in [false, true] {
        let typed = |memory: &DeviceBuf| Typed::new(memory.region(), 0, layout, count).unwrap();
        let (sent, received) = (typed(&rank.send), typed(&rank.recv));
        let sides = || (Buffer::Whole(sent.clone()), Buffer::Whole(received.clone()));
        let root = Root::Rank(0);
        let call = || {
            // SAFETY: nobody uses the buffers before the request has ended.
            unsafe { raw::collective(Operation::Alltoall, root, sides(), &[], None) }
        };
        let mut kept = persistent.then(|| {
            // SAFETY: as above.
            unsafe { Request::collective_init(&comm, call()) }.unwrap()
        });
        for _ in 0..3 {
            match &mut kept {
                Some(kept) => {
                    kept.start().unwrap();
                    kept.wait().unwrap();
                }
                None => {
                    // SAFETY: as above.
                    unsafe { Request::collective(&comm, call()) }.unwrap().wait().unwrap();
                }
            }
            assert_eq!(rank.read(want.len()), want);
            put(&rank.world, &mut rank.recv, &vec![-1; want.len()]);
        }
    }
}

fn rank(mut member: Member) {
    let whole = member.part.clone();
    let on_cuda = whole.strip_prefix(CUDA);
    let part = on_cuda.unwrap_or(&whole);
    let on_two = part.strip_prefix(TWO);
    let how = on_two.unwrap_or(part);
    let mode = Mode::named(how).unwrap_or(Mode::Static);
    // Two ranks on each.
    let gpu = if on_two.is_some() { member.rank / 2 } else { 0 };
    let mut hyperq = Settings { mode, bytes_min: 0, ..Settings::default() };
    if [STAGED, IPC].contains(&how) {
        let staged = usize::from(how == STAGED);
        let entry = |step| Entry { step, processes: 2, bytes: 1, staged };
        let gpu = |mps| {
            let entries = [HyperQStep::Gather, HyperQStep::Scatter].map(entry).into();
            Gpu { model: String::new(), mps, entries }
        };
        hyperq.table.gpus = [false, true].map(gpu).into();
    }
    let builder = World::builder().coll_table(Table { hyperq, ..Table::default() });
    let (builder, space) = match on_cuda {
        Some(_) => (builder, Space::Cuda { device: gpu }),
        None => {
            let identity = 77 + u128::from(gpu);
            let device = Arc::new(FakeDevice::with_delay(0, 1).identified(identity, false));
            let engine = FakeEngine::new(&device, 2);
            (
                builder.engine(Arc::new(engine)).device(device),
                Space::Device { kind: "fake", device: 0 },
            )
        }
    };
    let world = builder.wireup(member.wireup()).init().unwrap();
    let most = 4 * 100_000;
    let buf = || world.alloc_device(space, most).unwrap();
    let (send, recv) = (buf(), buf());
    let mut rank = Rank { world, send, recv };
    let (comm, me) = (rank.world.comm().clone(), rank.world.rank());
    let (layout, n) = (i32::layout(), RANKS as usize);
    for (round, count) in [1, 1000, 1000, 60_000, 60_000].into_iter().enumerate() {
        let all: Vec<Vec<i32>> = (0..RANKS).map(|from| numbers(from, count)).collect();
        let sum: Vec<i32> = (0..count).map(|at| all.iter().map(|each| each[at]).sum()).collect();
        rank.write(&all[me as usize]);
        // One rank's buffers lie in the host's memory now and then.
        let away = round == 2 && me == 1;
        let len = count as u64;
        if away {
            let mut into = vec![0; count];
            comm.allreduce(&all[1], &mut into, ReduceOp::Sum).unwrap();
            assert_eq!(into, sum);
        } else {
            let into = rank.recv.view_mut(0, layout, len).unwrap();
            comm.allreduce(rank.send.view(0, layout, len).unwrap(), into, ReduceOp::Sum).unwrap();
            assert_eq!(rank.read(count), sum);
        }
        if me == 0 && round != 2 && (mode == Mode::Led || on_two.is_some()) {
            assert_eq!(comm.led_on_gpus(), Some(if on_two.is_some() { 2 } else { 1 }));
        } else if me == 0 && round != 2 {
            let copied = comm.copied_on_gpu().expect("it went there");
            assert_eq!(copied[0] + copied[1], n - 1);
            match how {
                STAGED => assert_eq!(copied, [3, 0]),
                IPC => assert_eq!(copied, [0, 3]),
                _ => {}
            }
        }
        if count < 20_000 {
            let root = u32::try_from(round).unwrap() % RANKS;
            let into = rank.recv.view_mut(0, layout, len * u64::from(RANKS)).unwrap();
            comm.allgather(rank.send.view(0, layout, len).unwrap(), into).unwrap();
            assert_eq!(rank.read(n * count), all.concat());
            comm.bcast(rank.send.view_mut(0, layout, len).unwrap(), root).unwrap();
            let into = rank.recv.view_mut(0, layout, len).unwrap();
            comm.reduce(rank.send.view(0, layout, len).unwrap(), into, ReduceOp::Sum, 0).unwrap();
            if me == 0 {
                let times = |number: &i32| number * i32::try_from(n).unwrap();
                assert!(
                    rank.read(count).iter().eq(all[root as usize]
                        .iter()
                        .map(times)
                        .collect::<Vec<_>>()
                        .iter())
                );
            }
        }
        if count < 20_000 {
            rank.write(&all[me as usize]);
            by_messages(&mut rank, &all, round == 2);
            not_blocking(&mut rank, &all);
        }
        // Behind others, which have ended here and there.
        let begun: Vec<_> = [1500, 3000]
            .map(|len| {
                comm.begin_owned((), vec![me + 1; len], |_, recv| {
                    Collective::allreduce(InPlace, recv, ReduceOp::Sum)
                })
                .unwrap()
            })
            .into();
        let into = rank.recv.view_mut(0, layout, len).unwrap();
        comm.allreduce(rank.send.view(0, layout, len).unwrap(), into, ReduceOp::Sum).unwrap();
        if count >= 20_000 {
            assert_eq!(rank.read(count), sum);
        }
        for one in begun {
            let ((_, ended), result) = one.wait();
            result.unwrap();
            assert!(ended.iter().all(|sum| *sum == 10), "{ended:?}");
        }
        comm.barrier().unwrap();
    }
    say("all is right");
    // Whoever is killed is in one of these, or between two.
    let error = loop {
        let into = rank.recv.view_mut(0, layout, 500).unwrap();
        let from = rank.send.view(0, layout, 500).unwrap();
        if let Err(error) = comm.allreduce(from, into, ReduceOp::Max) {
            break error;
        }
    };
    assert!(error.to_string().contains(&format!(" {VICTIM} is lost")), "{error}");
    assert!(matches!(error, Error::Collective { .. }));
    say("named it");
}
