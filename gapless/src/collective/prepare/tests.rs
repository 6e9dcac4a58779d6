//! What the table of a communicator decides.

use super::*;
use gapless_tuning::coll::Rule;

#[test]
fn the_table_of_the_communicator_decides() {
    let locality = Locality::flat(5);
    let steps = |method: &str| {
        let algorithm = method.parse().unwrap();
        let (ranks_max, bytes_max) = (usize::MAX, u64::MAX);
        let rules = vec![Rule { operation: Operation::Bcast, ranks_max, bytes_max, algorithm }];
        let place = RankPlace {
            rank: 0,
            table: &Table { rules, ..Table::default() },
            locality: &locality,
            recent: &ScheduleCache::default(),
            shares: Shares::No,
            neighbors: &|| Err(CollectiveError::NoTopology),
        };
        let mut bytes = [0u8; 64];
        let bcast = Collective::bcast(&mut bytes, 0);
        let prepared = bcast.prepare(&place, false).unwrap();
        assert!(!prepared.shared, "it is not to go through shared memory");
        prepared.schedules.unwrap().schedule().len()
    };
    assert_eq!((steps("flat"), steps("chain")), (4, 1));
}
