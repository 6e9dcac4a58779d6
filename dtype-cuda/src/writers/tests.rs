//! Plans written by several threads are those that one writes; what goes wrong in one is told, and no memory
//! is lost.

use super::*;
use crate::plan::{Patch, PlanSpec};
use crate::staging::StagingRings;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Layout, Primitive};

/// Blocks of some lengths in no order: a list if they are equal, or a table.
fn layout(rng: &mut Rng, blocks: usize, lengths: &[u64]) -> Layout {
    let lens: Vec<u64> = (0..blocks).map(|_| *rng.pick(lengths)).collect();
    let mut places: Vec<i64> = (0..blocks as u64).map(|at| at.cast_signed() * 1000).collect();
    rng.shuffle(&mut places);
    Datatype::hindexed(&lens, &places, &Primitive::Double.into()).unwrap().commit().unwrap()
}

/// Two lists one after the other, which are no table.
fn structure(rng: &mut Rng, blocks: usize, lengths: &[u64]) -> Layout {
    let mut one = || {
        let mut places: Vec<i64> = (0..blocks as u64).map(|at| at.cast_signed() * 1000).collect();
        rng.shuffle(&mut places);
        let lens: Vec<u64> = places.iter().map(|_| *rng.pick(lengths)).collect();
        Datatype::hindexed(&lens, &places, &Primitive::Double.into()).unwrap()
    };
    let types = [one(), one()];
    Datatype::structure(&[1, 1], &[0, 1 << 40], &types).unwrap().commit().unwrap()
}

struct Plan {
    bytes: Vec<u8>,
    ready: u64,
    patched: usize,
}

impl Plan {
    fn of(spec: &PlanSpec) -> Plan {
        Plan { bytes: vec![0xEE; usize::try_from(spec.bytes).unwrap()], ready: 0, patched: 0 }
    }

    fn put(&mut self, staging: &[u8], patches: &Patches, ready: u64) {
        assert!(ready >= self.ready, "{ready} after {}", self.ready);
        self.ready = ready;
        for Patch { staged, at } in patches {
            let at = usize::try_from(*at).unwrap();
            self.bytes[at..at + staged.len()].copy_from_slice(&staging[staged.clone()]);
            self.patched += staged.len();
        }
    }
}

/// The plan by one thread, piece after piece.
fn alone(layout: &Layout, spec: &PlanSpec, piece_bytes: usize) -> (Plan, usize) {
    let pieces = Pieces::of(layout, spec, piece_bytes).unwrap();
    let mut plan = Plan::of(spec);
    let mut staging = vec![0; piece_bytes];
    let mut before = 0;
    for number in 0..pieces.count() {
        let mut patches = Patches::new();
        let Wrote { ready, blocks } = pieces.write(number, &mut staging, &mut patches);
        pieces.settle(before, blocks, &mut staging, &mut patches);
        before += blocks;
        plan.put(&staging, &patches, ready);
    }
    (plan, pieces.count())
}

/// Picks up all pieces in order, and gives the memory back.
fn pick_up(build: &PlanBuild, plan: &mut Plan) -> Result<(), Broken> {
    for number in 0..build.count() {
        let mut written = loop {
            let put = build.put();
            if let Some(written) = build.take(number)? {
                break written;
            }
            if !build.write_one() {
                build.wait_beyond(put);
            }
        };
        plan.put(written.piece.bytes(), &written.patches, written.ready);
        build.give(written.piece);
    }
    Ok(())
}

/// A plan to be written. A test that fails gives it up, so that its writers end.
struct Started(Arc<PlanBuild>);

impl std::ops::Deref for Started {
    type Target = Arc<PlanBuild>;

    fn deref(&self) -> &Arc<PlanBuild> {
        &self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

fn begin(pieces: Pieces, memory: usize, piece_bytes: usize) -> Started {
    let build = PlanBuild::new(pieces);
    (0..memory).for_each(|_| build.give(StagingRings::plain(piece_bytes)));
    Started(build)
}

#[test]
fn several_threads_write_what_one_writes() {
    let mut rng = Rng::new(0x57A7_7E2D);
    let (mut tables, mut structures, mut most) = (0, 0, 0);
    for writers in [1, 2, 5, 9] {
        let pool = Writers::new(writers);
        for case in 0..60 {
            let alphabets: [&[u64]; 3] = [&[2], &[1, 2, 3], &[1, 40, 100]];
            let lengths = *rng.pick(&alphabets);
            let blocks = 20 + rng.index(3000);
            let walked = case % 3 == 0;
            let layout = match walked {
                true => structure(&mut rng, blocks, lengths),
                false => layout(&mut rng, blocks, lengths),
            };
            let spec = PlanSpec::of(&layout);
            let piece_bytes = 1024 + rng.index(4000);
            if Pieces::of(&layout, &spec, piece_bytes).is_none() {
                continue;
            }
            structures += usize::from(walked);
            let (want, count) = alone(&layout, &spec, piece_bytes);
            assert_eq!((want.ready, want.patched), (spec.size, want.bytes.len()));
            // From one piece of memory for all to one for each.
            let memory = 1 + rng.index(count + 2);
            let build =
                begin(Pieces::of(&layout, &spec, piece_bytes).unwrap(), memory, piece_bytes);
            pool.call(&build, build.count());
            let mut plan = Plan::of(&spec);
            pick_up(&build, &mut plan).unwrap();
            assert!(plan.bytes == want.bytes, "{writers} writers, case {case}");
            assert_eq!((plan.ready, plan.patched), (want.ready, want.patched));
            assert_eq!(build.stop().len(), memory, "all memory is back");
            tables += usize::from(lengths.len() > 1 && !walked);
            most = most.max(count);
        }
    }
    let seen = (tables, structures, most);
    assert!(tables > 60 && structures > 20 && most > 8, "{seen:?}");
}

#[test]
fn plans_of_several_threads_share_the_writers() {
    let pool = Writers::new(4);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..20 {
                    let layout = layout(&mut rng, 2000, &[1, 2, 3]);
                    let spec = PlanSpec::of(&layout);
                    let (want, _) = alone(&layout, &spec, 2048);
                    let build = begin(Pieces::of(&layout, &spec, 2048).unwrap(), 3, 2048);
                    pool.call(&build, build.count());
                    let mut plan = Plan::of(&spec);
                    pick_up(&build, &mut plan).unwrap();
                    assert!(plan.bytes == want.bytes);
                }
            });
        }
    });
}

#[test]
fn a_writer_that_panics_is_told_of_and_loses_nothing() {
    let mut rng = Rng::new(3);
    let layout = layout(&mut rng, 3000, &[1, 2, 3]);
    let spec = PlanSpec::of(&layout);
    for writers in [1, 3] {
        let pool = Writers::new(writers);
        // Memory that is shorter than pieces are.
        let build = begin(Pieces::of(&layout, &spec, 2048).unwrap(), 4, 100);
        pool.call(&build, build.count());
        let mut plan = Plan::of(&spec);
        let Err(Broken(why)) = pick_up(&build, &mut plan) else { panic!("it was written") };
        assert!(!why.is_empty());
        assert_eq!(build.stop().len(), 4);
        // The threads go on.
        let build = begin(Pieces::of(&layout, &spec, 2048).unwrap(), 4, 2048);
        pool.call(&build, build.count());
        pick_up(&build, &mut plan).unwrap();
        assert!(plan.bytes == alone(&layout, &spec, 2048).0.bytes);
    }
}

#[test]
fn writing_that_is_given_up_ends_and_gives_its_memory_back() {
    let mut rng = Rng::new(4);
    let layout = layout(&mut rng, 20_000, &[1, 2, 3]);
    let spec = PlanSpec::of(&layout);
    let pool = Writers::new(5);
    for taken in 0..12 {
        let build = begin(Pieces::of(&layout, &spec, 4096).unwrap(), 6, 4096);
        pool.call(&build, build.count());
        let mut held = Vec::new();
        for number in 0..taken {
            if build.write_one()
                && let Some(written) = build.take(number).unwrap()
            {
                held.push(written.piece);
            }
        }
        assert_eq!(build.stop().len() + held.len(), 6, "after {taken}");
        assert!(!build.write_one(), "nothing is started any more");
    }
    // Dropped while a plan is being written: the threads end.
    let build = begin(Pieces::of(&layout, &spec, 4096).unwrap(), 6, 4096);
    pool.call(&build, build.count());
    build.give_up();
    drop(pool);
    assert_eq!(build.stop().len(), 6);
}

#[test]
fn one_writer_starts_no_thread() {
    let mut rng = Rng::new(5);
    let layout = layout(&mut rng, 3000, &[1, 2, 3]);
    let spec = PlanSpec::of(&layout);
    let pool = Writers::new(1);
    let build = begin(Pieces::of(&layout, &spec, 4096).unwrap(), 2, 4096);
    pool.call(&build, build.count());
    assert!(pool.threads.lock().unwrap().is_none());
    let mut plan = Plan::of(&spec);
    pick_up(&build, &mut plan).unwrap();
    assert!(plan.bytes == alone(&layout, &spec, 4096).0.bytes);
}
