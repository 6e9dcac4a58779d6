//! Puts and gets in a scope of a window: many at a time, which end in any order, between memory of devices that map
//! each other's, and by every other way.

use super::on_device::{PATHS, Path, copy, ranks};
use gapless::{Datatype, Pages, Place, Primitive, Region, Space, Window, WindowMemory, World};
use gapless_btl_testkit::Random;

/// Bytes of a page, and pages of a pool.
const PAGE: usize = 48;
const POOL: usize = 400;
/// Puts of a round, of so many pages each.
const PUTS: usize = 100;
const EACH: usize = 4;

/// What page `page` of rank `rank` has in a round.
fn content(rank: u32, page: u32, round: u32) -> [u8; PAGE] {
    let number = (rank * 7919 + page * 31 + round * 17).to_le_bytes();
    std::array::from_fn(|at| number[at % 3] ^ u8::try_from(at).unwrap())
}

fn shuffled(random: &mut Random) -> Vec<u32> {
    let mut all: Vec<u32> = (0..u32::try_from(POOL).unwrap()).collect();
    for at in (1..POOL).rev() {
        all.swap(at, random.below(at + 1));
    }
    all
}

fn exchange<M: WindowMemory>(world: &World, space: Space, mut window: Window<u8, M>) {
    let (me, all) = (world.rank(), world.size());
    let (right, left) = ((me + 1) % all, (me + all - 1) % all);
    let byte = Datatype::from(Primitive::Byte);
    let page = Datatype::contiguous(PAGE as u64, &byte).unwrap().commit().unwrap();
    let pages = |list: &[u32]| Pages::new(&page, PAGE as u64, list).unwrap();
    let mut pool = world.alloc_device(space, (PAGE * POOL) as u64).unwrap();
    let device = pool.device();
    window.lock_all().unwrap();
    for round in 0..3 {
        // Both know the lists of both.
        let lists = |rank: u32| {
            let mut random = Random::new(u64::from(rank * 100 + round));
            [shuffled(&mut random), shuffled(&mut random)]
        };
        let numbers = 0..u32::try_from(POOL).unwrap();
        let bytes: Vec<u8> = numbers.flat_map(|at| content(me, at, round)).collect();
        // SAFETY: the buffer is this function's own, and nobody reads it now.
        unsafe { copy(&*device, pool.region(), Region::of(&bytes)) };
        let [mine, theirs] = lists(me);
        window
            .scope(|scope| {
                let mut begun = Vec::new();
                for (mine, theirs) in mine.chunks(EACH).zip(theirs.chunks(EACH)) {
                    let place = Place::pages(0, &pages(theirs));
                    let view = pool.pages(0, &pages(mine))?;
                    begun.push(scope.put(view, right, place, Some(0))?);
                }
                assert_eq!(begun.len(), PUTS);
                // The last ones first; the scope waits for the rest.
                begun.drain(PUTS / 2..).rev().try_for_each(|one| one.wait())
            })
            .unwrap();
        window.wait_notices(0, PUTS as u64 * u64::from(round + 1), &[left]).unwrap();
        let mut found = vec![0u8; PAGE * POOL];
        window.read(&mut found, 0).unwrap();
        let [sent, got] = lists(left);
        for (from, to) in sent.iter().zip(&got) {
            let at = PAGE * usize::try_from(*to).unwrap();
            assert_eq!(found[at..at + PAGE], content(left, *from, round), "rank {me}, {round}");
        }
        // Back again, to where they came from.
        let clear = vec![0u8; PAGE * POOL];
        // SAFETY: as above.
        unsafe { copy(&*device, pool.region(), Region::of(&clear)) };
        let into = pool.pages_mut(0, &pages(&mine)).unwrap();
        let place = Place::pages(0, &pages(&theirs));
        window.scope(|scope| scope.get(into, right, place, None)?.wait()).unwrap();
        let mut again = vec![0u8; PAGE * POOL];
        // SAFETY: as above.
        unsafe { copy(&*device, Region::of_mut(&mut again), pool.region()) };
        assert!(again == bytes, "rank {me}, round {round}");
        world.comm().barrier().unwrap();
    }
    window.unlock_all().unwrap();
    let calls = window.profile().unwrap().calls;
    let of = |name| calls.iter().find(|one| one.name == name).map(|one| (one.count, one.bytes));
    let bytes = 3 * (PAGE * POOL) as u64;
    assert_eq!([of("put"), of("get")], [Some((3 * PUTS as u64, bytes)), Some((3, bytes))]);
    window.free().unwrap();
}

#[test]
fn many_puts_end_in_any_order_and_each_gives_its_notice() {
    for path in PATHS {
        ranks(path, 3, |world, space, _| {
            let (comm, all) = (world.comm(), PAGE * POOL);
            let builder = path.builder(comm).profiled().notices(1);
            if path == Path::Hosts && !comm.rank().is_multiple_of(2) {
                return exchange(world, space, builder.allocate(all).unwrap());
            }
            exchange(world, space, builder.allocate_on(space, all).unwrap());
        });
    }
}

/// A notice comes also if whoever gives it only waits for another.
#[test]
fn ranks_that_wait_in_their_scopes_give_each_other_notices() {
    ranks(Path::Mapped, 2, |world, space, _| {
        let (comm, other) = (world.comm(), 1 - world.rank());
        let mut window: Window<u8, _> = comm.window().notices(1).allocate_on(space, 8).unwrap();
        let given = world.alloc_device(space, 8).unwrap();
        let byte = Datatype::from(Primitive::Byte).commit().unwrap();
        window.lock_all().unwrap();
        for round in 1..20 {
            window
                .scope(|scope| {
                    let _ = scope.put(given.view(0, &byte, 8)?, other, 0, Some(0))?;
                    window.wait_notices(0, round, &[other]).map(drop)
                })
                .unwrap();
        }
        window.unlock_all().unwrap();
        window.free().unwrap();
    });
}

/// What a scope begins has ended behind it, whatever its body does.
#[test]
fn a_scope_ends_what_it_began_if_its_body_fails_or_panics() {
    for panics in [true, false] {
        ranks(Path::Mapped, 2, |world, space, _| {
            let (comm, me) = (world.comm(), world.rank());
            let mut window: Window<u8, _> = comm.window().allocate_on(space, 8).unwrap();
            let given = world.alloc_device(space, 8).unwrap();
            let device = given.device();
            let mine = [me.to_le_bytes()[0] + 1; 8];
            // SAFETY: the buffer is this function's own, and nobody reads it now.
            unsafe { copy(&*device, given.region(), Region::of(&mine)) };
            window.lock_all().unwrap();
            let byte = Datatype::from(Primitive::Byte).commit().unwrap();
            let body = std::panic::AssertUnwindSafe(|| {
                window.scope(|scope| {
                    let _ = scope.put(given.view(0, &byte, 8)?, 1 - me, 0, None)?;
                    assert!(!panics, "it has begun");
                    Err::<(), _>(gapless::Error::OtherWorld)
                })
            });
            match std::panic::catch_unwind(body) {
                Ok(ended) => assert_eq!(ended, Err(gapless::Error::OtherWorld)),
                Err(_) => assert!(panics),
            }
            comm.barrier().unwrap();
            let mut found = [0u8; 8];
            window.read(&mut found, 0).unwrap();
            assert_eq!(found, [(1 - me).to_le_bytes()[0] + 1; 8]);
            window.unlock_all().unwrap();
            window.free().unwrap();
        });
    }
}
