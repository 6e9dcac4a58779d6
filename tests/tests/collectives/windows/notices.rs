//! Notices: ranks that wait for nothing else see the data that they stand for, on every path; and a rank that is killed
//! ends what was asked of it, and nothing else.

use super::model::Shape;
use super::{Lock, PATHS, Path, Random, window, worlds};
use gapless::{Communicator, Error, Place, Primitive, View, Window, WindowError, World};
use gapless_tests::job_of;
use gapless_tests::launcher::{Lines, Member, TestLauncher, say};
use std::time::Duration;

const SIZE: u32 = 4;
/// Rounds, and numbers that a put of one of them has at most.
const ROUNDS: u64 = 30;
const MOST: usize = 900;
/// Numbers of the window that each put has for itself.
const ROOM: u64 = 4 * MOST as u64;

/// On every path, and over TCP.
fn on_all_paths(body: impl Fn(&str, &World, &dyn Fn(&Communicator, usize) -> Window<u32>) + Sync) {
    for path in PATHS {
        let make = |comm: &Communicator, count: usize| {
            drop(window::<u32>(comm, path, 1));
            path.builder(comm).notices(SIZE).allocate(count).unwrap()
        };
        worlds(path, SIZE, |world| body(&format!("{path:?}"), world, &make));
    }
    let builder = |_| World::builder().only(["tcp"]).tcp_interfaces("lo");
    let make =
        |comm: &Communicator, count: usize| comm.window().notices(SIZE).allocate(count).unwrap();
    job_of(SIZE, builder, |world| body("tcp", world, &make));
}

/// What a rank puts to another one in a round: the same at both.
fn piece(seed: u64, (from, to): (u32, u32), round: u64) -> (Shape, Shape, Vec<u32>) {
    let mut random = Random::new(seed + 1000 * round + u64::from(10 * from + to));
    let elements = [0, 1, 7, 1 + random.below(MOST)][random.below(4)];
    let shape = |random: &mut Random| Shape::random(random, Primitive::Uint32, elements);
    let (here, there) = (shape(&mut random), shape(&mut random));
    let numbers = (0..elements).map(|at| u32::try_from(at + random.below(1 << 20)).unwrap());
    let numbers = numbers.collect();
    (here, there, numbers)
}

/// Every rank puts to every one, and looks at what it has got in the order of the notices, or sooner.
#[test]
fn whoever_sees_a_notice_sees_its_data() {
    let seed = std::env::var("GAPLESS_SEED").map_or(3, |seed| seed.parse().unwrap());
    println!("GAPLESS_SEED={seed}");
    on_all_paths(|path, world, make| {
        let (comm, me) = (world.comm(), world.rank());
        let all = ROUNDS * u64::from(SIZE) * ROOM;
        let mut window = make(comm, usize::try_from(all).unwrap());
        let mut random = Random::new(seed + u64::from(me));
        let start = |from: u32, round: u64| (round * u64::from(SIZE) + u64::from(from)) * ROOM;
        let check = |window: &Window<u32>, from: u32, round: u64| {
            let (_, there, numbers) = piece(seed, (from, me), round);
            let mut found = vec![0u32; numbers.len()];
            let at = Place::typed(start(from, round), &there.layout, there.count);
            window.read(&mut found, at).unwrap();
            assert!(found == numbers, "{path}: of {from} in round {round}");
        };
        window.lock_all().unwrap();
        let mut seen = [0u64; SIZE as usize];
        for round in 0..ROUNDS {
            for to in 0..SIZE {
                let (here, there, numbers) = piece(seed, (me, to), round);
                let mut data = vec![0u32; here.places.iter().max().map_or(0, |last| last / 4 + 1)];
                for (place, number) in here.places.iter().zip(&numbers) {
                    data[place / 4] = *number;
                }
                let at = Place::typed(start(me, round), &there.layout, there.count);
                let view = View::typed(&data[..], 0, &here.layout, here.count).unwrap();
                window.put_notify(view, to, at, me).unwrap();
            }
            for from in 0..SIZE {
                let seen = &mut seen[from as usize];
                let count = match random.below(3) {
                    0 => window.wait_notices(from, round + 1, &[from]).unwrap(),
                    1 => window.wait_notices(from, round.saturating_sub(3), &[]).unwrap(),
                    _ => window.notices(from).unwrap(),
                };
                assert!(count >= *seen && count <= ROUNDS);
                (*seen..count).for_each(|round| check(&window, from, round));
                *seen = count;
            }
        }
        for from in 0..SIZE {
            assert_eq!(window.wait_notices(from, ROUNDS, &[from]).unwrap(), ROUNDS);
            (seen[from as usize]..ROUNDS).for_each(|round| check(&window, from, round));
            assert_eq!(window.take_notices(from).unwrap(), ROUNDS);
        }
        window.unlock_all().unwrap();
        assert_eq!(window.notices(me).unwrap(), 0, "{path}: a notice comes once");
        window.free().unwrap();
    });
}

/// A page goes round between two ranks: the reader tells when it may be written again.
#[test]
fn a_page_is_written_again_when_it_was_read() {
    on_all_paths(|path, world, make| {
        let (comm, me) = (world.comm(), world.rank());
        let mut window = make(comm, 5000);
        window.lock_all().unwrap();
        let other = me ^ 1;
        for round in 1..=20u32 {
            if me.is_multiple_of(2) {
                // Nobody reads it now.
                window.write(&vec![round; 5000], 0).unwrap();
                window.put_notify(&[0u32; 0], other, 0, 0).unwrap();
                window.wait_notices(1, 1, &[other]).unwrap();
                assert_eq!(window.take_notices(1).unwrap(), 1);
            } else {
                window.wait_notices(0, 1, &[other]).unwrap();
                assert_eq!(window.take_notices(0).unwrap(), 1);
                let mut page = vec![0u32; 5000];
                if round.is_multiple_of(2) {
                    window.get_notify(&mut page, other, 0, 1).unwrap();
                } else {
                    let read = window.rget_notify(page, other, 0, 1).unwrap();
                    let (found, result) = read.wait();
                    result.unwrap();
                    page = found;
                }
                assert!(page.iter().all(|number| *number == round), "{path}");
            }
        }
        window.unlock_all().unwrap();
        window.free().unwrap();
    });
}

#[test]
fn wrong_calls_are_typed_errors() {
    worlds(Path::Mapped, 2, |world| {
        let comm = world.comm();
        let why = |result: Result<(), Error>| super::why(result);
        let mut window: Window<u32> = comm.window().notices(3).allocate(4).unwrap();
        assert_eq!(
            why(window.put_notify(&[1u32], 1, 0, 0)),
            WindowError::NoEpoch { call: "put_notify", rank: 1 }
        );
        window.lock(1, Lock::Shared).unwrap();
        let none = WindowError::NoCounter { counter: 3, counters: 3 };
        assert_eq!(why(window.put_notify(&[1u32], 1, 0, 3)), none);
        assert_eq!(why(window.get_notify(&mut [1u32], 1, 0, 3)), none);
        let refused = window.rput_notify(vec![1u32], 1, 0, 3).unwrap_err();
        assert_eq!(refused.buffer, [1]);
        assert_eq!(why(Err(refused.error)), none);
        let refused = window.rget_notify(vec![1u32], 1, 0, 3).unwrap_err();
        assert_eq!(why(Err(refused.error)), none);
        assert_eq!(why(window.notices(3).map(drop)), none);
        assert_eq!(why(window.take_notices(3).map(drop)), none);
        assert_eq!(why(window.wait_notices(3, 0, &[]).map(drop)), none);
        let nobody = WindowError::NoSuchRank { rank: 2, size: 2 };
        assert_eq!(why(window.wait_notices(0, 1, &[2]).map(drop)), nobody);
        let outside = why(window.put_notify(&[1u32], 1, 4, 0));
        assert!(matches!(outside, WindowError::Outside { rank: 1, .. }), "{outside}");
        window.unlock(1).unwrap();
        comm.barrier().unwrap();
        assert_eq!([0, 1, 2].map(|counter| window.notices(counter).unwrap()), [0; 3]);
        window.free().unwrap();
        let window = comm.window_allocate::<u32>(1).unwrap();
        let none = WindowError::NoCounter { counter: 0, counters: 0 };
        assert_eq!(why(window.notices(0).map(drop)), none);
        // All ranks say the same number.
        let made = comm.window().notices(comm.rank()).allocate::<u32>(1);
        assert!(matches!(why(made.map(drop)), WindowError::Differs { .. }));
    });
}

const TEST: &str = "collectives::windows::notices::a_rank_that_is_killed_ends_its_own_requests";
const VICTIM: u32 = 2;
/// Two seconds are promised.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Thousands of operations are under way to a rank that does nothing any more, and to one that does.
#[test]
fn a_rank_that_is_killed_ends_its_own_requests() {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    for path in ["mapped", "messages"] {
        let mut launcher = TestLauncher::start(TEST, &[path; 3], |_, _| {});
        let mut lines = Lines::new(path, VICTIM, WATCHDOG);
        lines.wait(&mut launcher, "all is under way", 2);
        launcher.kill(VICTIM);
        lines.wait(&mut launcher, "named it", 2);
    }
}

fn rank(mut member: Member) {
    const EACH: u64 = 2000;
    let world = World::builder().wireup(member.wireup()).init().unwrap();
    let (comm, me) = (world.comm(), world.rank());
    let builder = comm.window().notices(3);
    let builder = if member.part == "messages" { builder.by_messages() } else { builder };
    let mut window: Window<u64> = builder.allocate(2 * 3 * 2000).unwrap();
    window.lock_all().unwrap();
    comm.barrier().unwrap();
    if me == VICTIM {
        window.put_notify(&[7u64], 0, 0, 1).unwrap();
        window.put_notify(&[7u64], 1, 0, 1).unwrap();
        window.flush_all().unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    assert_eq!(window.wait_notices(1, 1, &[VICTIM]).unwrap(), 1);
    assert_eq!(window.load(0).unwrap(), 7);
    let other = 1 - me;
    let mine = |at: u64| 6000 + EACH * u64::from(me) + at;
    let begin = |at: u64| {
        let put = |rank| window.rput_notify(vec![at + 1], rank, mine(at), 0).unwrap();
        let get = |rank| window.rget_notify(vec![0u64], rank, mine(at), 0).unwrap();
        [VICTIM, other].map(|rank| (put(rank), get(rank)))
    };
    let requests: Vec<_> = (0..EACH).map(begin).collect();
    say("all is under way");
    // It names the rank that it waits for, though others give notices.
    let error = window.wait_notices(1, 2, &[VICTIM]).unwrap_err();
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    for (at, [of_victim, of_other]) in requests.into_iter().enumerate().rev() {
        let at = at as u64;
        of_other.0.wait().1.unwrap();
        let (found, result) = of_other.1.wait();
        result.unwrap();
        assert_eq!(found, [at + 1]);
        of_victim.0.wait().1.unwrap();
        match of_victim.1.wait() {
            (found, Ok(())) => assert_eq!(found, [at + 1]),
            (_, Err(error)) => assert_eq!(error.lost_rank(), Some(VICTIM), "{error}"),
        }
    }
    window.flush(other).unwrap();
    // All of the other's puts and gets.
    assert_eq!(window.wait_notices(0, 2 * EACH, &[other]).unwrap(), 2 * EACH);
    let error = window.flush(VICTIM).unwrap_err();
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    // Whoever waits for any is not told while there is one.
    window.put_notify(&[1u64], other, 0, 2).unwrap();
    assert_eq!(window.wait_notices(2, 1, &[]).unwrap(), 1);
    say("named it");
    let _ = world.finalize();
}
