//! The engine against the oracle, and messages between two processes out of the toy's memory and the host's into either.

use gapless::launch::{Job, run};
use gapless::{Datatype, Error, Primitive, View, ViewMut, World, detect_space};
use gapless_dtype::testkit::{Params, Rng, describe, random_sample};
use gapless_engine::{Engine, Typed};
use gapless_example_device::{Toy, ToyEngine};
use gapless_mem::{Completion, Device, DeviceError, Pending, Region, Space};
use std::any::Any;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Memory of a toy, or of the host where there is none, with random bytes; they are kept.
struct Place<'t> {
    toy: Option<&'t Toy>,
    bytes: Vec<u8>,
    /// Where the host's memory is.
    here: Vec<u8>,
    region: Region,
}

impl<'t> Place<'t> {
    fn new(toy: Option<&'t Toy>, rng: &mut Rng, len: usize) -> Place<'t> {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        let mut here = bytes.clone();
        let mut region = Region::of_mut(&mut here);
        if let Some(toy) = toy {
            let there = toy.allocate(region.len()).unwrap();
            // SAFETY: both live over the wait, and nothing else uses them.
            unsafe { toy.copy(there, region, &[]) }.unwrap().wait().unwrap();
            region = there;
        }
        Place { toy, bytes, here, region }
    }

    /// What it holds in the end.
    fn take(mut self) -> Vec<u8> {
        if let Some(toy) = self.toy {
            let to = Region::of_mut(&mut self.here);
            // SAFETY: as in `new`.
            unsafe { toy.copy(to, self.region, &[]) }.unwrap().wait().unwrap();
            // SAFETY: `new` got it, and all work on it was waited for.
            unsafe { toy.free(self.region) }.unwrap();
        }
        self.here
    }
}

fn gather(places: &[usize], memory: &[u8]) -> Vec<u8> {
    places.iter().map(|at| memory[*at]).collect()
}

fn scatter(places: &[usize], stream: &[u8], memory: &mut [u8]) {
    places.iter().zip(stream).for_each(|(at, byte)| memory[*at] = *byte);
}

#[test]
fn random_layouts_are_packed_unpacked_and_moved_as_the_oracle_says() {
    let mut rng = Rng::new(gapless_testkit::seed(gapless_testkit::fresh()));
    let toy = Toy::open(3).unwrap();
    let engine = ToyEngine::new(&toy);
    for case in 0..300 {
        let (datatype, typemap) = random_sample(&mut rng, &Params::disjoint());
        let count = rng.below(4);
        if !typemap.is_disjoint(count) {
            continue;
        }
        let say = format!("case {case}: {count} × {}", describe(&datatype));
        let layout = datatype.commit().unwrap();
        let places = typemap.displacements(count).unwrap();
        let origin = places.iter().min().map_or(0, |low| low.min(&0).unsigned_abs());
        let place = |at: i64| usize::try_from(origin.strict_add_signed(at)).unwrap();
        let places: Vec<usize> = places.into_iter().map(place).collect();
        let len = places.iter().max().map_or(place(0), |last| last + 1);
        let (a, b) = (rng.index(places.len() + 1), rng.index(places.len() + 1));
        let (start, end) = (a.min(b), a.max(b));
        let (range, part) = (start as u64..end as u64, &places[start..end]);
        // Packed bytes and the target of the move lie on either side.
        let other = rng.chance(50).then_some(&*toy);
        let [from, back, to] =
            [Some(&*toy), Some(&*toy), other].map(|at| Place::new(at, &mut rng, len));
        let wire = Place::new(other, &mut rng, part.len());
        let typed = |place: &Place<'_>| Typed::new(place.region, origin, &layout, count).unwrap();
        let (source, unpacked, moved) = (typed(&from), typed(&back), typed(&to));
        // SAFETY: all memory lives until it is taken, after the waits; no two places overlap.
        let packed = unsafe { engine.pack(&source, range.clone(), wire.region, &[]) }.unwrap();
        // SAFETY: as above; it comes after what writes there.
        let work = unsafe { engine.unpack(wire.region, &unpacked, range.clone(), &[packed]) };
        work.unwrap().wait().unwrap();
        // SAFETY: as above.
        unsafe { engine.transfer(&source, &moved, range, &[]) }.unwrap().wait().unwrap();
        let stream = gather(part, &from.bytes);
        assert!(wire.take() == stream, "{say}: packed");
        for (place, what) in [(back, "unpacked"), (to, "moved")] {
            let mut right = place.bytes.clone();
            scatter(part, &stream, &mut right);
            assert!(place.take() == right, "{say}: {what}");
        }
    }
}

#[test]
fn what_is_no_block_is_not_located_and_not_freed() {
    let toy = Toy::open(5).unwrap();
    let block = toy.allocate(100).unwrap();
    let (start, end) = (block.start(), block.start() + 100);
    assert_eq!([start, end - 1].map(|at| toy.locate(at)), [Some(toy.space()); 2]);
    assert_eq!([start - 1, end].map(|at| toy.locate(at)), [None; 2]);
    let here = [0u8; 100];
    let shorter = block.sub(0, 99).unwrap();
    let inner = block.sub(50, 50).unwrap();
    for refused in [Region::of(&here), shorter, inner, Region::new(Space::Host, start, 0, 100)] {
        // SAFETY: all are refused, and nothing is freed.
        let error = unsafe { toy.free(refused) }.unwrap_err();
        assert!(matches!(error, DeviceError::WrongSpace { .. }), "{refused:?}: {error}");
        assert_eq!(toy.locate(start), Some(toy.space()));
    }
    // SAFETY: nothing uses it.
    unsafe { toy.free(block) }.unwrap();
    assert_eq!(toy.locate(start), None);
}

#[test]
fn rows_outside_of_their_region_are_refused_by_the_call() {
    let toy = Toy::open(6).unwrap();
    let block = toy.allocate(100).unwrap();
    let here = [1u8; 100];
    for (dst_pitch, src_pitch, width, rows) in
        [(40, 10, 30, 3), (10, 40, 30, 3), (0, 0, 101, 1), (u64::MAX, 0, 1, 2)]
    {
        // SAFETY: both live over the call, which refuses all rows.
        let copied = unsafe {
            toy.copy_2d(block, dst_pitch, Region::of(&here), src_pitch, width, rows, &[])
        };
        assert!(matches!(copied, Err(DeviceError::OutOfRange(_))), "{dst_pitch}, {src_pitch}");
    }
    // SAFETY: both live over the wait; there is no row, and then all rows are inside.
    let copied = [0, 3].map(|rows| unsafe {
        toy.copy_2d(block, 35, Region::of(&here), 35, 30, rows, &[]).and_then(|work| work.wait())
    });
    copied.into_iter().for_each(|ended| ended.unwrap());
    // SAFETY: all work on it is over.
    unsafe { toy.free(block) }.unwrap();
}

/// In a process that is to abort.
const ABORTS: &str = "GAPLESS_EXAMPLE_DEVICE_ABORTS";

/// Work that is over, and panics if it is asked again.
#[derive(Default)]
struct AskedOnce(AtomicBool);

// SAFETY: there is no work, so it is over.
unsafe impl Pending for AskedOnce {
    fn poll(&self) -> Result<bool, DeviceError> {
        assert!(!self.0.swap(true, Ordering::Relaxed), "asked again");
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whoever waits for work after one that panics would wait for ever if the queue's thread ended.
#[test]
fn a_completion_that_panics_in_the_queue_ends_the_process() {
    const TEST: &str = "a_completion_that_panics_in_the_queue_ends_the_process";
    if std::env::var_os(ABORTS).is_none() {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program);
        let status = child.args([TEST, "--exact"]).env(ABORTS, "1").status().unwrap();
        // SIGABRT.
        assert_eq!(status.signal(), Some(6), "{status}");
        return;
    }
    let toy = Toy::open(7).unwrap();
    let (block, here) = (toy.allocate(8).unwrap(), [0u8; 8]);
    let after = [Completion::Pending(Arc::<AskedOnce>::default())];
    // SAFETY: both live as long as the process.
    let work = unsafe { toy.copy(block, Region::of(&here), &after) }.unwrap();
    let begin = Instant::now();
    while !work.poll().unwrap() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
}

/// In a process of the job: by which transport.
const WIRE: &str = "GAPLESS_EXAMPLE_DEVICE_WIRE";

/// Layouts of `n` doubles: without gaps, with a stride, by indices; and where their bytes lie.
fn shapes(n: usize) -> [(Datatype, Vec<usize>); 3] {
    let (double, count) = (Datatype::from(Primitive::Double), n as u64);
    let indices: Vec<i64> = (0..count.cast_signed()).map(|i| 3 * i - i % 2).collect();
    let bytes = |at: fn(usize) -> usize| (0..8 * n).map(|i| at(i / 8) * 8 + i % 8).collect();
    [
        (Datatype::contiguous(count, &double).unwrap(), bytes(|i| i)),
        (Datatype::vector(count, 1, 2, &double).unwrap(), bytes(|i| 2 * i)),
        (Datatype::indexed_block(1, &indices, &double).unwrap(), bytes(|i| 3 * i - i % 2)),
    ]
}

/// Both ranks send to each other: every shape into every shape, in memory of the toy and of the host.
fn exchange(world: &World, toy: &Toy) -> Result<(), Error> {
    let (comm, peer) = (world.comm(), 1 - world.rank());
    for n in [1, 100, 20_000, 100_000] {
        let (shapes, len) = (shapes(n), 3 * 8 * n);
        for case in 0..27 {
            let (seed, pairing) = (n as u64 + case as u64, case / 9);
            let [(send, from), (recv, into)] = [case % 3, case / 3 % 3].map(|at| &shapes[at]);
            let place =
                |there: bool, seed| Place::new(there.then_some(toy), &mut Rng::new(seed), len);
            let source = place(pairing != 0, seed * 2 + u64::from(world.rank()));
            let target = place(pairing != 1, seed);
            for it in [&source, &target] {
                let pointer =
                    std::ptr::without_provenance(usize::try_from(it.region.start()).unwrap());
                assert_eq!(detect_space(pointer), it.region.space());
            }
            let theirs = place(false, seed * 2 + u64::from(peer)).bytes;
            let (send, recv) = (send.commit()?, recv.commit()?);
            comm.scope(|s| {
                // SAFETY: the place lives until it is taken, after the scope; this message alone uses it.
                let view = unsafe { ViewMut::of_region(target.region, 0, &recv, 1) }?;
                let _ = s.irecv(view, peer, 0)?;
                // SAFETY: as above; nothing writes it.
                let view = unsafe { View::of_region(source.region, 0, &send, 1) }?;
                let _ = s.isend(view, peer, 0)?;
                Ok(())
            })?;
            let mut right = target.bytes.clone();
            scatter(into, &gather(from, &theirs), &mut right);
            assert!(target.take() == right, "{n} doubles, case {case}");
            assert!(source.bytes.clone() == source.take(), "{n} doubles, case {case}: the source");
        }
    }
    Ok(())
}

/// Starts this program once more, twice, to play the ranks of `test`.
fn travels(test: &str, wire: &str) {
    if std::env::var_os(WIRE).is_some() {
        let toy = Toy::open(0).unwrap();
        let engine = Arc::new(ToyEngine::new(&toy));
        let builder = World::builder().only([wire]).tcp_interfaces("lo");
        let world = builder.engine(engine).device(Arc::clone(&toy) as _).init().unwrap();
        exchange(&world, &toy).unwrap();
        return world.finalize().unwrap();
    }
    let job = Job {
        ranks: 2,
        program: std::env::current_exe().unwrap().into(),
        arguments: [test, "--exact", "--nocapture", "--test-threads=1"].map(Into::into).to_vec(),
        environment: vec![(WIRE.into(), wire.into())],
        prefix: true,
    };
    assert_eq!(run(&job).unwrap().exit_code(), 0);
}

#[test]
fn messages_travel_by_shared_memory() {
    travels("messages_travel_by_shared_memory", "sm");
}

#[test]
fn messages_travel_by_tcp() {
    travels("messages_travel_by_tcp", "tcp");
}
