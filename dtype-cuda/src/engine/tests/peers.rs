//! What goes by the copy engine between two devices: on a pretend vendor whose copies of rows are real, byte
//! by byte against the host's engine; and what does not.

use crate::engine::*;
use crate::plan::PlanSpec;
use crate::tests::mock::{Mock, Op, number};
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::HostEngine;
use std::sync::atomic::Ordering;

const SPAN: u64 = 1 << 18;

struct Bench {
    mock: Arc<Mock>,
    engine: GpuEngine,
    here: Region,
    there: Region,
}

impl Bench {
    fn new() -> Bench {
        let mock = Arc::new(Mock::new(2));
        let config = Config { copy_bytes_min: 64, ..Config::default() };
        let engine = GpuEngine::over(Arc::clone(&mock) as Arc<dyn Accelerator>, config.bounded());
        let device = engine.device();
        let (here, there) = (device.allocate(SPAN).unwrap(), device.allocate(SPAN).unwrap());
        mock.log().elsewhere.push(there.address());
        Bench { mock, engine, here, there }
    }

    fn write(&self, region: Region, bytes: &[u8]) {
        let region = region.sub(0, bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        let done = unsafe { self.engine.device().copy(region, Region::of(bytes), &[]) };
        done.unwrap().wait().unwrap();
    }

    fn read(&self, region: Region) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(region.len()).unwrap()];
        // SAFETY: both live until the wait ends.
        let done = unsafe { self.engine.device().copy(Region::of_mut(&mut bytes), region, &[]) };
        done.unwrap().wait().unwrap();
        bytes
    }

    /// What was asked since the last time, without completions.
    fn ops(&self) -> Vec<Op> {
        let ops = std::mem::take(&mut self.mock.log().ops);
        ops.into_iter().map(|(_, op)| op).filter(|op| !matches!(op, Op::Record(_))).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.mock.log().end_all();
    }
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    (0..SPAN).map(|_| rng.next_u64().to_be_bytes()[0]).collect()
}

fn commit(datatype: Datatype) -> Layout {
    datatype.commit().unwrap()
}

fn double() -> Datatype {
    Primitive::Double.into()
}

/// A layout of rows: a vector, a sub-array, a transposed matrix, perhaps several.
fn rows(rng: &mut Rng) -> (Layout, u64) {
    let n = 32 + rng.below(8);
    let vector = |rng: &mut Rng, n: u64| {
        let gap = *rng.pick(&[0, 1, 13]);
        Datatype::vector(2 + rng.below(9), n, (n + gap).cast_signed(), &double()).unwrap()
    };
    let made = match rng.below(5) {
        0 => vector(rng, n),
        4 => {
            let number = 2 + rng.below(7);
            let lengths: Vec<u64> = (0..number).map(|_| 1 + rng.below(900)).collect();
            let places: Vec<i64> = (0..number.cast_signed()).map(|at| (7 - at) * 950).collect();
            Datatype::indexed(&lengths, &places, &double()).unwrap()
        }
        1 => {
            let down = Datatype::vector(5, n, -(n + 3).cast_signed(), &double()).unwrap();
            return (commit(down), 1);
        }
        2 => {
            let column = Datatype::vector(n, 1, n.cast_signed(), &double()).unwrap();
            let column = Datatype::resized(0, 8, &column).unwrap();
            return (commit(Datatype::contiguous(n, &column).unwrap()), 1);
        }
        _ => {
            let plane = vector(rng, n);
            Datatype::hvector(1 + rng.below(4), 1, 4 * 11 * 53 * 8, &plane).unwrap()
        }
    };
    (commit(made), 1 + rng.below(2))
}

#[test]
fn whatever_copies_move_is_what_the_host_would_and_gaps_stay() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let bench = Bench::new();
    let (source, target) = (noise(&mut rng), noise(&mut rng));
    let (mut copied, mut left) = (0, 0);
    for _ in 0..600 {
        let (one, count) = rows(&mut rng);
        let same = rng.chance(50);
        let (two, times) = if same { (one.clone(), count) } else { rows(&mut rng) };
        let len = (one.size() * count).min(two.size() * times);
        let (mut start, mut end) = (0, len);
        if rng.chance(50) {
            end = rng.below(len + 1);
            start = rng.below(end + 1);
        }
        let (from, to) =
            if rng.chance(50) { (bench.here, bench.there) } else { (bench.there, bench.here) };
        bench.write(from, &source);
        bench.write(to, &target);
        let mut expected = target.clone();
        let origin = 20_000;
        let src = Typed::new(Region::of(&source), origin, &one, count).unwrap();
        let dst = Typed::new(Region::of_mut(&mut expected), origin, &two, times).unwrap();
        let near = Typed::new(from, origin, &one, count).unwrap();
        let far = Typed::new(to, origin, &two, times).unwrap();
        let (range, part) = (start..end, (3, end - start));
        let packed = to.sub(part.0, part.1).unwrap();
        let what = rng.below(3);
        // SAFETY (of all below): what is named lives until the work ends, which is at once, and does not
        // overlap.
        let (done, told) = match what {
            0 => {
                let host = Region::of_mut(&mut expected).sub(part.0, part.1).unwrap();
                // SAFETY: as above.
                unsafe { HostEngine.pack(&src, range.clone(), host, &[]) }.unwrap();
                let told = bench.engine.copies(Direction::Pack, &near, range.clone(), packed);
                // SAFETY: as above.
                (unsafe { bench.engine.pack(&near, range.clone(), packed, &[]) }, told)
            }
            1 => {
                let host = Region::of(&source).sub(part.0, part.1).unwrap();
                // SAFETY: as above.
                unsafe { HostEngine.unpack(host, &dst, range.clone(), &[]) }.unwrap();
                let packed = from.sub(part.0, part.1).unwrap();
                let told = bench.engine.copies(Direction::Unpack, &far, range.clone(), packed);
                // SAFETY: as above.
                (unsafe { bench.engine.unpack(packed, &far, range.clone(), &[]) }, told)
            }
            _ => {
                // SAFETY: as above.
                unsafe { HostEngine.transfer(&src, &dst, range.clone(), &[]) }.unwrap();
                let told = bench.engine.transfer_copies(&near, &far, range.clone());
                // SAFETY: as above.
                (unsafe { bench.engine.transfer(&near, &far, range.clone(), &[]) }, told)
            }
        };
        done.unwrap();
        // Uploads of plans end only so, and their memory is waited for.
        bench.mock.log().end_all();
        let (ops, told) = (bench.ops(), told.unwrap());
        let case =
            || format!("seed {seed}: {what}, {one:?} x {count}, {two:?} x {times}, {range:?}");
        if told.is_empty() {
            assert!(ops.iter().all(|op| !matches!(op, Op::Rows(..))), "{}: {ops:?}", case());
            left += 1;
            continue;
        }
        copied += 1;
        assert!(ops.iter().all(|op| matches!(op, Op::Rows(..))), "{}: {ops:?}", case());
        assert_eq!(ops.len(), told.len(), "{}", case());
        assert_eq!(told.iter().map(|copy| copy.rows * copy.width).sum::<u64>(), end - start);
        assert!(bench.read(to) == expected, "{}", case());
        assert!(bench.read(from) == source, "the source: {}", case());
    }
    assert!(copied > 150 && left > 50, "{copied} copied, {left} left");
}

#[test]
fn within_a_device_and_for_little_kernels_do_it() {
    let bench = Bench::new();
    let layout = commit(Datatype::vector(64, 64, 100, &double()).unwrap());
    let size = layout.size();
    let typed = |region| Typed::new(region, 0, &layout, 1).unwrap();
    let packed = |region: Region| region.sub(1 << 17, size).unwrap();
    let ask = |engine: &GpuEngine, region| {
        // SAFETY: the pretend vendor copies only what lives.
        unsafe { engine.pack(&typed(bench.here), 0..size, packed(region), &[]) }.unwrap();
        bench.ops()
    };
    assert!(matches!(ask(&bench.engine, bench.here)[..], [Op::Launch(_)]));
    assert!(matches!(ask(&bench.engine, bench.there)[..], [Op::Rows(_, _, 64)]));
    // Both elsewhere: one device as well.
    bench.mock.log().elsewhere.push(bench.here.address());
    assert!(matches!(ask(&bench.engine, bench.there)[..], [Op::Launch(_)]));
    bench.mock.log().elsewhere.pop();
    // Rows to or from a mapping of which the driver makes a poor job; a single contiguous span is none.
    bench.mock.log().odd.push(bench.there.address());
    assert!(matches!(ask(&bench.engine, bench.there)[..], [Op::Launch(_)]));
    let one = Typed::contiguous(bench.here.sub(0, size).unwrap());
    // SAFETY: as above.
    unsafe { bench.engine.pack(&one, 0..size, packed(bench.there), &[]) }.unwrap();
    assert!(matches!(bench.ops()[..], [Op::Rows(_, _, 1)]));
    bench.mock.log().odd.pop();

    // The bounds: of bytes, and lower with a budget.
    for (bytes_min, budget, copies) in [
        (size, None, true),
        (size + 1, None, false),
        (size + 1, NonZeroU32::new(8), true),
        (size * 8 + 8, NonZeroU32::new(8), false),
        (u64::MAX, None, false),
    ] {
        let config = Config { copy_bytes_min: bytes_min, ..Config::default() };
        let mock = Arc::clone(&bench.mock) as Arc<dyn Accelerator>;
        let engine = GpuEngine::over(mock, config.bounded()).with_budget(budget);
        let ops = ask(&engine, bench.there);
        assert_eq!(matches!(ops[..], [Op::Rows(..)]), copies, "{bytes_min} {budget:?}: {ops:?}");
        let told =
            engine.launches(Direction::Pack, &typed(bench.here), 0..size, packed(bench.there));
        assert_eq!(told.unwrap().is_empty(), copies);
        bench.mock.log().end_all();
    }
}

#[test]
fn a_copy_that_fails_is_reported_and_started_copies_are_waited_for() {
    let bench = Bench::new();
    let layout = commit(Datatype::vector(64, 64, 100, &double()).unwrap());
    let typed = Typed::new(bench.here, 0, &layout, 1).unwrap();
    let (start, end) = (8, layout.size() - 8);
    let packed = bench.there.sub(0, end - start).unwrap();
    for fails_in in 0..3 {
        bench.mock.log().fails_in = Some(fails_in);
        // SAFETY: the pretend vendor copies only what lives.
        let error = unsafe { bench.engine.pack(&typed, start..end, packed, &[]) }.unwrap_err();
        assert!(matches!(error, EngineError::Device(_)), "{error}");
        let ops = bench.ops();
        assert_eq!(ops.len(), fails_in + 1, "{ops:?}");
        assert_eq!(ops.last(), Some(&Op::Drain));
    }
    bench.mock.log().fails_in = None;
    assert!(!bench.mock.log().lost.load(Ordering::SeqCst));
}

#[test]
fn most_of_a_triangle_is_copied_and_kernels_do_the_rest_on_another_lane() {
    let bench = Bench::new();
    let n = 160;
    let lengths: Vec<u64> = (0..n).map(|j| n - j).collect();
    let places: Vec<i64> = (0..n.cast_signed()).map(|j| j * (n.cast_signed() + 1)).collect();
    let triangle = commit(Datatype::indexed(&lengths, &places, &double()).unwrap());
    let again = commit(Datatype::indexed(&lengths, &places, &double()).unwrap());
    let size = triangle.size();
    let src = Typed::new(bench.here, 16, &triangle, 1).unwrap();
    let dst = Typed::new(bench.there, 64, &again, 1).unwrap();
    let started = {
        let small = commit(Datatype::vector(5, 1, 2, &double()).unwrap());
        let typed = Typed::new(bench.here, 0, &small, 1).unwrap();
        // SAFETY: the pretend vendor copies only what lives; here and below.
        unsafe { bench.engine.pack(&typed, 0..40, bench.here.sub(0, 40).unwrap(), &[]) }.unwrap()
    };
    bench.ops();
    // SAFETY: as above.
    let done =
        unsafe { bench.engine.transfer(&src, &dst, 0..size, std::slice::from_ref(&started)) };
    let ops = std::mem::take(&mut bench.mock.log().ops);
    let lane = ops[0].0;
    match ops.as_slice() {
        [
            (_, Op::Wait(begin)),
            copies @ ..,
            (two, Op::Wait(begin_too)),
            (beside, Op::Launch(_)),
            (three, Op::Record(end)),
            (four, Op::Wait(end_too)),
            (five, Op::Record(last)),
        ] => {
            assert_eq!([begin, begin_too], [&number(&started); 2]);
            assert_eq!((end, *last), (end_too, number(&done.unwrap())));
            assert!([four, five].iter().all(|&&on| on == lane));
            assert!([two, beside, three].iter().all(|&&on| on != lane));
            assert!(copies.iter().all(|(on, op)| *on == lane && matches!(op, Op::Rows(..))));
            assert_eq!(copies.len(), 3);
            assert!(bench.mock.log().started.ends_with(&[lane, *beside]), "both begin");
        }
        _ => panic!("{ops:?}"),
    }
    // After nothing, each lane gets what it is to do and no more.
    bench.mock.log().end_all();
    // SAFETY: as above.
    unsafe { bench.engine.transfer(&src, &dst, 0..size, &[]) }.unwrap();
    let ops = bench.ops();
    assert!(ops[..3].iter().all(|op| matches!(op, Op::Rows(..))), "{ops:?}");
    assert!(matches!(ops[3..], [Op::Launch(_), Op::Wait(_)]), "{ops:?}");
    assert_eq!(bench.engine.transfer_copies(&src, &dst, 0..size).unwrap().len(), 3);
    assert_eq!(bench.engine.transfer_launches(&src, &dst, 0..size).unwrap().len(), 1);
    // What is copied is copied where it belongs: the rectangles of both are the same bytes.
    let mut rng = Rng::new(3);
    let (source, target) = (noise(&mut rng), noise(&mut rng));
    bench.write(bench.here, &source);
    bench.write(bench.there, &target);
    // SAFETY: as above.
    unsafe { bench.engine.transfer(&src, &dst, 0..size, &[]) }.unwrap();
    bench.ops();
    let mut expected = target.clone();
    let from = Typed::new(Region::of(&source), 16, &triangle, 1).unwrap();
    let into = Typed::new(Region::of_mut(&mut expected), 64, &triangle, 1).unwrap();
    // SAFETY: both live, and do not overlap.
    unsafe { HostEngine.transfer(&from, &into, 0..size, &[]) }.unwrap();
    let there = bench.read(bench.there);
    let right = there.iter().zip(&expected).zip(&target);
    assert!(right.clone().all(|((is, would), was)| is == would || is == was));
    let moved = right.filter(|((is, _), was)| is != was).count() as u64;
    assert!(moved > size * 7 / 10 && moved < size, "{moved} of {size}");

    // Part of it is left to kernels, and so is one that goes to another.
    let other = commit(Datatype::indexed(&lengths[1..], &places[1..], &double()).unwrap());
    let other = Typed::new(bench.there, 64, &other, 1).unwrap();
    for (dst, range) in [(&dst, 8..size), (&dst, 0..size - 8), (&other, 0..other.packed_bytes())] {
        assert!(bench.engine.transfer_copies(&src, dst, range).unwrap().is_empty());
    }
    // Whatever fails, nothing is left in flight.
    for fails_in in 0..9 {
        bench.mock.log().fails_in = Some(fails_in);
        // SAFETY: as above.
        let done = unsafe { bench.engine.transfer(&src, &dst, 0..size, &[]) };
        bench.mock.log().fails_in = None;
        let busy = bench.mock.log().busy();
        assert_eq!(done.is_err(), fails_in < 7);
        assert!(done.is_ok() || busy.iter().all(|lane| drained(&bench, *lane)), "{busy:?}");
        bench.mock.log().end_all();
        bench.ops();
    }
}

#[test]
fn a_triangle_on_a_callers_stream_keeps_off_the_engines_lanes() {
    let bench = Bench::new();
    let lengths: Vec<u64> = (1..=160).rev().collect();
    let places: Vec<i64> = (0..160).map(|j| j * 161).collect();
    let triangle = commit(Datatype::indexed(&lengths, &places, &double()).unwrap());
    let src = Typed::new(bench.here, 0, &triangle, 1).unwrap();
    let dst = Typed::new(bench.there, 0, &triangle, 1).unwrap();
    let shared = &*bench.engine.shared;
    let task = shared.move_between(&src, &dst, &(0..triangle.size()), None).unwrap();
    let callers = bench.mock.callers();
    // SAFETY: the pretend vendor copies only what lives.
    unsafe { shared.run(callers, &mut None, &task, &mut crate::lanes::Holds::new(), None) }
        .unwrap();
    let ops = std::mem::take(&mut bench.mock.log().ops);
    // Two lanes, the one for uploads, and the caller's.
    assert!(ops.iter().all(|(on, _)| *on == 3), "{ops:?}");
    let ops: Vec<&Op> = ops.iter().map(|(_, op)| op).collect();
    assert!(matches!(ops[..], [Op::Launch(_), Op::Rows(..), Op::Rows(..), Op::Rows(..)]));
}

#[test]
fn a_move_asks_its_lane_for_its_work_and_its_end_and_for_nothing_else() {
    let bench = Bench::new();
    let layout = |gap: i64| {
        let vector = Datatype::vector(64, 64, 64 + gap, &double()).unwrap();
        commit(vector)
    };
    let typed = |region, layout: &Layout| Typed::new(region, 0, layout, 1).unwrap();
    let (one, two) = (layout(8), layout(16));
    for to in [&one, &two] {
        for (round, there) in [bench.there, bench.there, bench.here].into_iter().enumerate() {
            let (src, dst) =
                (typed(bench.here, &one), typed(there.sub(1 << 17, 1 << 17).unwrap(), to));
            // SAFETY: the pretend vendor copies only what lives.
            unsafe { bench.engine.transfer(&src, &dst, 0..one.size(), &[]) }.unwrap();
            bench.mock.log().end_all();
            let ops = std::mem::take(&mut bench.mock.log().ops);
            let ops: Vec<&Op> = ops.iter().map(|(_, op)| op).collect();
            match round {
                0 | 1 => assert!(matches!(ops[..], [Op::Rows(..), Op::Record(_)]), "{ops:?}"),
                _ => assert!(matches!(ops[..], [Op::Launch(_), Op::Record(_)]), "{ops:?}"),
            }
        }
    }
}

/// Whether the last that was asked of a lane is to end.
fn drained(bench: &Bench, lane: usize) -> bool {
    let log = bench.mock.log();
    log.ops.iter().rfind(|(on, _)| *on == lane).is_none_or(|(_, op)| *op == Op::Drain)
}

#[test]
fn squares_read_whole_lines_of_what_lies_elsewhere() {
    let bench = Bench::new();
    let shared = &bench.engine.shared;
    let row = Datatype::vector(90, 1, 90, &double()).unwrap();
    let layout = commit(Datatype::contiguous(90, &Datatype::resized(0, 8, &row).unwrap()).unwrap());
    let size = layout.size();
    let far = |direction, typed: Region, packed: Region| {
        let typed = Typed::new(typed, 0, &layout, 1).unwrap();
        let packed = packed.sub(0, size).unwrap();
        let job = crate::shared::PackJob::new(direction, &typed, &(0..size), packed, None).unwrap();
        let (at, direct) = shared.spots(&job, packed).unwrap();
        let launches = shared.by_form(&job, at, direct.unwrap()).unwrap();
        match &launches[0].args {
            gapless_kernels::args::Args::Transposed(args) => args.shape.far,
            other => panic!("{other:?}"),
        }
    };
    let (here, there) = (bench.here, bench.there);
    assert_eq!(far(Direction::Pack, there, here), 16, "a line has 16 doubles");
    assert_eq!(far(Direction::Unpack, here, there), 16);
    assert_eq!(far(Direction::Pack, here, there), 0, "it is written there");
    assert_eq!(far(Direction::Unpack, there, here), 0);
    assert_eq!(far(Direction::Pack, here, here), 0);
}

#[test]
fn launches_across_a_link_are_told_as_they_are_made() {
    let bench = Bench::new();
    let told = |launches: Result<Vec<crate::Launched>, EngineError>| launches.unwrap()[0].blocks;
    let typed = |region, layout: &Layout| Typed::new(region, 0, layout, 1).unwrap();
    // Rows that become columns: 50 words that may begin 15 earlier are three squares, else two.
    let matrix = |(rows, down): (u64, i64), (words, along): (u64, i64)| {
        let row = Datatype::hvector(words, 1, along, &double()).unwrap();
        commit(Datatype::hvector(rows, 1, down, &row).unwrap())
    };
    let (rows, columns) = (matrix((200, 640), (50, 8)), matrix((200, 8), (50, 1664)));
    let transfer = |from, to| {
        let (src, dst) = (typed(from, &rows), typed(to, &columns));
        told(bench.engine.transfer_launches(&src, &dst, 0..rows.size()))
    };
    assert_eq!(transfer(bench.here, bench.there) * 3, transfer(bench.there, bench.here) * 2);

    // A list: unpacked from there, all threads of a strip take part.
    let places: Vec<i64> = (0..5000).map(|j| (j * 7) % 5001 * 5).collect();
    let list = commit(Datatype::indexed_block(3, &places, &double()).unwrap());
    let unpack = |from: Region, to| {
        let from = from.sub(0, list.size()).unwrap();
        let engine = &bench.engine;
        told(engine.launches(Direction::Unpack, &typed(to, &list), 0..list.size(), from))
    };
    let (near, far) = (unpack(bench.here, bench.there), unpack(bench.there, bench.here));
    let shared = &bench.engine.shared;
    let spec = PlanSpec::of(&list);
    let side = typed(bench.here, &list);
    let packed = bench.there.sub(0, list.size()).unwrap();
    let task = shared.pack(Direction::Unpack, &side, &(0..list.size()), packed, None).unwrap();
    let crate::shared::Task::Packed { job, typed: at, direct: Some(direct), .. } = task else {
        panic!("kernels reach both")
    };
    let shape = spec.side(&list, 1, 0);
    let mut made = crate::shared::lay_out(&shape, &job.what(at, direct)).unwrap();
    assert_eq!(near, made[0].blocks);
    gapless_kernels::launch::from_afar(&mut made, None);
    assert_eq!(far, made[0].blocks);
    assert_ne!(near, far);
}
