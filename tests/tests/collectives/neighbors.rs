//! Topologies of communicators, and collectives among neighbours.

use crate::collectives::{rank_of, ranks};
use gapless::btl::loopback::{Hub, Loopback};
use gapless::coll::topologies::{Contribution, TopologyError, WeightedRank};
use gapless::{Blocks, BlocksMut, Communicator, Error, ReduceOp, Topology, View, ViewMut, World};
use gapless_tests::worlds_on;

#[test]
fn a_grid_and_its_rows() {
    ranks(7, |comm| {
        let Some(grid) = comm.cart_create(&[2, 3], &[true, false], true).unwrap() else {
            return assert_eq!(comm.rank(), 6, "the only one without a place");
        };
        assert_eq!((grid.size(), grid.rank()), (6, comm.rank()));
        let (row, column) = (grid.rank() / 3, grid.rank() % 3);
        assert_eq!(grid.cart_coords(grid.rank()).unwrap(), [row, column]);
        assert_eq!(grid.cart_rank(&[-1, i64::from(column)]).unwrap(), 3 + column);
        let other = 3 * (1 - row) + column;
        let shift = grid.cart_shift(0, 1).unwrap();
        assert_eq!((shift.source, shift.destination), (Some(other), Some(other)));
        // Who sends up, down, left and right; nobody beyond the sides.
        let left = (column > 0).then(|| grid.rank() - 1);
        let right = (column < 2).then(|| grid.rank() + 1);
        let neighbors = [Some(other), Some(other), left, right];
        let mut theirs = [99u32; 4];
        grid.neighbor_allgather(&[grid.rank()], &mut theirs).unwrap();
        assert_eq!(theirs, neighbors.map(|rank| rank.unwrap_or(99)));

        // What goes up comes from below: each block says whose it is, and which way it goes.
        let out: Vec<u32> = (0..4).map(|way| grid.rank() * 10 + way).collect();
        let mut inn = [99u32; 4];
        grid.neighbor_alltoall(&out, &mut inn).unwrap();
        let opposite = [1, 0, 3, 2];
        for (way, from) in neighbors.iter().enumerate() {
            assert_eq!(inn[way], from.map_or(99, |from| from * 10 + opposite[way]), "way {way}");
        }
        // Blocks of other lengths in the other dimension, and others in memory of their own.
        let (out, mut inn) = ([rank_of(&grid); 6], [99; 6]);
        let lens = [1, 1, 2, 2];
        let blocks = Blocks::packed(&out, &lens).unwrap();
        let room = BlocksMut::packed(&mut inn, &lens).unwrap();
        grid.neighbor_alltoallv(blocks, room).unwrap();
        assert_eq!(inn[0], i32::try_from(other).unwrap());
        assert_eq!(inn[3], left.map_or(99, |rank| i32::try_from(rank).unwrap()));
        let (bytes, mut room) = ([[1u8; 3], [2; 3], [3; 3], [4; 3]], [[0u8; 3]; 4]);
        let views = Blocks::each(bytes.iter().map(View::from));
        let into = BlocksMut::each(room.iter_mut().map(ViewMut::from));
        grid.scope(|s| s.ineighbor_alltoallw(views, into)?.wait()).unwrap();
        assert_eq!(room[0], [2; 3]);

        let line = grid.dup().unwrap().cart_sub(&[false, true]).unwrap();
        assert_eq!((line.size(), line.rank()), (3, column));
        let mut sum = [0u32];
        line.allreduce(&[grid.rank()], &mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [9 * row + 3]);
        assert_eq!(line.cart_shift(0, 1).unwrap().source, column.checked_sub(1));
    });
}

#[test]
fn graphs() {
    ranks(4, |comm| {
        // A star: rank 0 and all others.
        let star = comm.graph_create(&[3, 4, 5, 6], &[1, 2, 3, 0, 0, 0], false).unwrap().unwrap();
        let mut theirs = vec![0u32; if star.rank() == 0 { 3 } else { 1 }];
        star.neighbor_allgather(&[star.rank() * 7], &mut theirs).unwrap();
        assert_eq!(theirs, if star.rank() == 0 { vec![7, 14, 21] } else { vec![0] });

        // A ring, each rank's own edges; then the same given by rank 2 alone.
        let (right, left) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
        let own = comm.dist_graph_create_adjacent((&[left], None), (&[right], Some(&[5]))).unwrap();
        let mut given = Contribution::default();
        if comm.rank() == 2 {
            given.sources = (0..4).collect();
            given.degrees = vec![1; 4];
            given.destinations = vec![1, 2, 3, 0];
            given.weights = Some(vec![9; 4]);
        }
        let told = comm.dist_graph_create(&given).unwrap();
        for ring in [&own, &told] {
            let mut theirs = [0u32];
            ring.neighbor_alltoall(&[ring.rank() + 50], &mut theirs).unwrap();
            assert_eq!(theirs, [left + 50]);
        }
        let Some(Topology::DistGraph(graph)) = told.topology() else { panic!("a graph") };
        assert_eq!(graph.sources(), [WeightedRank { rank: left, weight: Some(9) }]);
    });
}

/// Ranks by turns on two hosts.
#[test]
fn neighbours_share_hosts_if_ranks_may_have_other_numbers() {
    let hub = Hub::new();
    let builder = |_| World::builder().only(["loopback"]).transport(Box::new(Loopback::new(&hub)));
    worlds_on(&[0, 1, 0, 1, 0, 1, 0, 1], builder, |world| {
        let comm = world.comm();
        // How many of a rank's neighbours are on another host.
        let far = |made: &Communicator, neighbors: usize| {
            let host = comm.rank() % 2;
            let mut theirs = vec![host; neighbors];
            made.neighbor_allgather(&[host], &mut theirs).unwrap();
            theirs.iter().filter(|theirs| **theirs != host).count()
        };
        let as_it_is = comm.cart_create(&[8], &[true], false).unwrap().unwrap();
        assert_eq!((as_it_is.rank(), far(&as_it_is, 2)), (comm.rank(), 2));
        let ring = comm.cart_create(&[8], &[true], true).unwrap().unwrap();
        let at_the_end = matches!(ring.rank(), 0 | 3 | 4 | 7);
        assert_eq!(far(&ring, 2), usize::from(at_the_end), "place {}", ring.rank());
        // Pairs of neighbouring numbers.
        let (index, edges) = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 0, 3, 2, 5, 4, 7, 6]);
        let pairs = comm.graph_create(&index, &edges, true).unwrap().unwrap();
        assert_eq!(far(&pairs, 1), 0);
        // Each knows its number beforehand, also who gets none.
        assert_eq!(comm.cart_map(&[8], &[true]).unwrap(), Some(ring.rank()));
        assert_eq!(comm.graph_map(&index, &edges).unwrap(), Some(pairs.rank()));
        let small = comm.cart_create(&[2, 3], &[false, false], true).unwrap();
        let place = comm.cart_map(&[2, 3], &[false, false]).unwrap();
        assert_eq!(place, small.map(|made| made.rank()));
        let pair = comm.graph_create(&index[..2], &edges[..2], true).unwrap();
        let node = comm.graph_map(&index[..2], &edges[..2]).unwrap();
        assert_eq!(node, pair.map(|made| made.rank()));
        let refused = comm.cart_map(&[3, 3], &[true, true]);
        let places = TopologyError::TooFewProcesses { places: 9, processes: 8 };
        assert!(matches!(refused, Err(Error::Topology(error)) if error == places));
        assert!(comm.graph_map(&[1], &[0]).is_ok() && comm.graph_map(&[1], &[7]).is_err());
        // Algorithms on two levels do the rest.
        let (mut sum, mut word) = ([0], [comm.rank()]);
        comm.scope(|s| s.iallreduce(&[1], &mut sum, ReduceOp::Sum)?.wait()).unwrap();
        comm.scope(|s| s.ibcast(&mut word, 5)?.wait()).unwrap();
        assert_eq!((sum, word), ([8], [5]));
        world.finalize().unwrap();
    });
}

#[test]
fn what_is_no_topology_is_said() {
    ranks(2, |comm| {
        let refused = |made: Result<_, Error>| made.map(drop as fn(Option<Communicator>));
        let few = TopologyError::TooFewProcesses { places: 4, processes: 2 };
        assert_eq!(refused(comm.cart_create(&[2, 2], &[false; 2], false)), Err(few.clone().into()));
        assert_eq!(refused(comm.graph_create(&[0; 4], &[], false)), Err(few.into()));
        assert_eq!(comm.cart_shift(0, 1).unwrap_err(), Error::NoGrid);
        // Only one direction: no neighbourhood.
        let odd = comm.graph_create(&[1, 1], &[1], false).unwrap().unwrap();
        let error = odd.neighbor_allgather(&[1u8], &mut [0u8; 1]).unwrap_err();
        assert!(error.to_string().contains("edges"), "{error}");
    });
}
