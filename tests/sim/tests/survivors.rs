//! Deaths while the survivors agree who is left, at every point; also while one of them revokes the world first.

use gapless_sim::play_survivors;

/// A rank sends no more messages than that while it agrees and uses the result, so it dies at each of them.
const MESSAGES: u64 = 24;

fn check(seed: u64, size: u32, deaths: &[(u32, u64)], agrees: bool) -> u64 {
    play(seed, size, deaths, (agrees, None))
}

fn play(seed: u64, size: u32, deaths: &[(u32, u64)], how: (bool, Option<u32>)) -> u64 {
    match play_survivors(seed, size, deaths, how) {
        Ok(died) => died,
        Err(failure) => {
            panic!("seed {seed}, {size} ranks, deaths {deaths:?}, {how:?}: {}", failure.what)
        }
    }
}

/// Whoever revokes the world dies after every number of messages, and so may another rank.
#[test]
fn all_hear_that_the_world_is_revoked() {
    let mut died = 0;
    for size in 2..=5 {
        for revoker in 0..size {
            let how = (revoker % 2 == 0, Some(revoker));
            assert_eq!(play(1, size, &[], how), 0);
            for message in 0..MESSAGES {
                died += play(message, size, &[(revoker, message)], how);
                for other in (0..size).filter(|other| *other != revoker) {
                    died += play(message, size, &[(other, message)], how);
                    let both = [(revoker, message % 6), (other, message / 4)];
                    died += play(message, size, &both, how);
                }
            }
        }
    }
    assert!(died > 1_500, "{died} ranks have died");
    for size in [1, 7, 40] {
        assert_eq!(play(1, size, &[], (true, Some(0))), 0);
    }
}

#[test]
fn one_rank_dies_at_every_message() {
    let mut died = 0;
    for size in 2..=5 {
        for rank in 0..size {
            for message in 0..MESSAGES {
                for seed in 0..3 {
                    died += check(seed, size, &[(rank, message)], seed == 2);
                }
            }
        }
    }
    assert!(died > 500, "{died} ranks have died");
}

#[test]
fn two_ranks_die_at_every_pair_of_messages() {
    let mut died = 0;
    for size in 3..=5 {
        for one in 0..size {
            for other in (0..size).filter(|other| *other != one) {
                let pairs = (0..8).flat_map(|first| (0..8).map(move |second| (first, second)));
                // All pairs of numbers, each of some of the pairs of ranks.
                let every = usize::try_from(64 / gapless_testkit::rounds(64)).unwrap();
                let pairs = pairs.skip((one + other) as usize % every).step_by(every);
                for (first, second) in pairs {
                    let seed = first * 8 + second;
                    died += check(seed, size, &[(one, first), (other, second)], false);
                }
            }
        }
    }
    assert!(died > 3_000 * gapless_testkit::rounds(64) / 64, "{died} ranks have died");
}

#[test]
fn all_but_one_die() {
    for size in 2..=5 {
        for left in 0..size {
            for message in 0..12 {
                let others = (0..size).filter(|rank| *rank != left);
                let deaths: Vec<_> = others.map(|rank| (rank, message + u64::from(rank))).collect();
                check(message, size, &deaths, true);
            }
        }
    }
}

#[test]
fn nobody_dies() {
    for size in [1, 2, 3, 7, 40] {
        assert_eq!(check(1, size, &[], true), 0);
    }
}
