//! Programs of collectives by the hundred. `GAPLESS_SIM_COLLECTIVES` is a range of seeds, `FROM..TO`.

use gapless_coll::Operation;
use gapless_sim::{Keep, hunt_collectives, tell_collectives};

/// Unless the environment says otherwise. The last of them is a world of hundreds of ranks.
const SEEDS: std::ops::Range<u64> = LARGE - 59..LARGE + 1;
const LARGE: u64 = 332;

#[test]
fn every_collective_ends_with_the_right_result_or_blames_the_dead() {
    let text = std::env::var("GAPLESS_SIM_COLLECTIVES");
    let seeds = text.map_or(SEEDS, |text| {
        let number = |text: &str| text.parse().expect("GAPLESS_SIM_COLLECTIVES is FROM..TO");
        let (from, to) = text.split_once("..").expect("GAPLESS_SIM_COLLECTIVES is FROM..TO");
        number(from)..number(to)
    });
    let count = seeds.end.saturating_sub(seeds.start);
    match hunt_collectives(seeds) {
        Ok(seen) => {
            println!("{seen}");
            if count >= 150 {
                assert!(seen.large_worlds > 0 && seen.deaths > count / 10, "{seen}");
                for operation in Operation::ALL {
                    assert!(seen.well.get(&operation).is_some_and(|well| *well > count), "{seen}");
                    // A rank of a neighbourhood or of an unrooted tree may need nothing of the dead.
                    assert!(seen.failed.contains_key(&operation), "{seen}");
                }
            }
        }
        Err(report) => panic!("\n{report}"),
    }
}

#[test]
fn a_seed_is_all_there_is() {
    for seed in 0..20 {
        let (first, story) = tell_collectives(seed, &Keep::default());
        let (second, again) = tell_collectives(seed, &Keep::default());
        assert_eq!(first.ok(), second.ok(), "seed {seed}");
        assert!(story.about(&[], usize::MAX) == again.about(&[], usize::MAX), "seed {seed}");
    }
}
