//! Ranks that do not agree on lengths, and long ones.
use super::*;

/// What one rank sends another, as each of them sees it: the one that reads says what does not fit.
#[test]
fn who_reads_notices_another_length() {
    let alltoallv = |len: u64| {
        let (send, recv) = ([[0, len], [8, 0]], [[0, 8], [len, 0]]);
        let call = |rank: usize| {
            let (send, recv) = (listed(send[rank]), listed(recv[rank]));
            Call::Alltoallv { send, recv, in_place: false }
        };
        [call(0), call(1)]
    };
    let gatherv = |len: u64| {
        let call = |len| Call::Gatherv { root: 1, len, lens: listed([len, 4]), in_place: false };
        [call(len), Call::Gatherv { root: 1, len: 4, lens: listed([len, 4]), in_place: false }]
    };
    let scatterv = |len: u64| {
        let call =
            |own| Call::Scatterv { root: 0, len: own, lens: listed([4, len]), in_place: false };
        [call(4), call(len)]
    };
    let sees: [&dyn Fn(u64) -> [Call<'static>; 2]; 3] = [&alltoallv, &gatherv, &scatterv];
    for (sent, expected) in [(8, 12), (12, 8), (0, 8), (9000, 8), (8, 9000), (300_000, 300_004)] {
        for sees in sees {
            let (mut job, mut segments) = job(2);
            let (mut random, mut both) = (Random(51), Vec::new());
            for (rank, segment) in segments.iter_mut().enumerate() {
                let calls = sees([sent, expected][rank]);
                let mut one = collective(&calls, Arithmetic::Sum, &[Lie::Plain], &mut random);
                one.begin((rank, segment), 3, &calls[rank]).unwrap();
                both.push(one);
            }
            let results = finish(&mut job, &mut segments);
            let wrong = Err(CollError::Length { rank: 0, sent, expected });
            let told = [Ok(()), Err(CollError::GaveUp { rank: 1 })];
            assert!(told.contains(&results[0]) && results[1] == wrong, "{results:?}");
            let mut after = collective(&alltoallv(20), Arithmetic::Sum, &[Lie::Plain], &mut random);
            for (rank, segment) in segments.iter_mut().enumerate() {
                after.begin((rank, segment), 4, &alltoallv(20)[rank]).unwrap();
            }
            assert_eq!(finish(&mut job, &mut segments), [Ok(()), Ok(())]);
            after.check();
        }
    }
}

/// Lists of one sum that are cut otherwise would mix up elements of different blocks.
#[test]
fn blocks_of_other_lengths_are_noticed_where_their_sum_is_the_same() {
    let (of, in_place) = (sum(Arithmetic::Sum), false);
    let calls =
        [[4000, 8], [8, 4000]].map(|lens| Call::ReduceScatter { lens: listed(lens), of, in_place });
    let (mut job, mut segments) = job(2);
    let mut random = Random(49);
    let one = |call: &Call<'_>, random: &mut Random| {
        collective(&[*call; 2], Arithmetic::Sum, &[Lie::Plain], random)
    };
    let mut each: Vec<Collective> = calls.iter().map(|call| one(call, &mut random)).collect();
    for (rank, segment) in segments.iter_mut().enumerate() {
        each[rank].begin((rank, segment), 3, &calls[rank]).unwrap();
    }
    for (result, other) in finish(&mut job, &mut segments).into_iter().zip([1, 0]) {
        let Err(CollError::Differs { rank, argument, .. }) = result else { panic!("{result:?}") };
        assert_eq!((rank, argument), (other, "lengths of blocks"));
    }
}

/// So much that what comes out of slots may pass the caches by.
#[test]
fn what_is_longer_than_caches_arrives_whole() {
    let (mut job, mut segments) = job(3);
    let (mut random, of) = (Random(57), sum(Arithmetic::Sum));
    // No multiple of a fragment, of a slice or of a cache line.
    let len = (4 << 20) + 1212;
    let calls = [
        Call::Bcast { root: 1, len },
        Call::Allgather { len: len / 8 * 4, in_place: false },
        Call::Allreduce { len, of, in_place: true },
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let mut one = collective(&[call; 3], Arithmetic::Sum, &[Lie::Plain], &mut random);
        for (rank, segment) in segments.iter_mut().enumerate() {
            one.begin((rank, segment), number, &call).unwrap();
        }
        assert_eq!(finish(&mut job, &mut segments), vec![Ok(()); 3], "{call:?}");
        one.check();
    }
}

/// A collective that was tried at once and goes on later delivers all fragments, also of what goes to a rank itself.
#[test]
fn what_was_tried_goes_on_with_all_fragments() {
    let several: Choose = |ranks, _, random| {
        let (len, root) = (80_000, 1);
        let calls =
            [Call::Alltoall { len, in_place: false }, Call::Scatter { root, len, in_place: false }];
        vec![calls[usize::try_from(random.below(2)).unwrap()]; ranks]
    };
    let mut random = Random(52);
    for ranks in [2, 3] {
        let [halfway, _] = play((ranks, 30, several), &HostEngine, &mut random);
        assert!(halfway > 4, "{halfway}");
    }
}
