//! Collectives that own their buffers, with a layout for each rank or neighbour: against the blocking form.

use crate::collectives::ranks;
use gapless::{
    Blocks, BlocksMut, Collective, CollectiveError, Communicator, Datatype, Error, InPlace, Layout,
    OwnedBlocks, Parts, Primitive, View,
};
use gapless_btl_testkit::Random;

/// Blocks of a buffer: origin, layout, count.
struct Places(Vec<(u64, Layout, u64)>);

impl Places {
    /// So many numbers in each block, anywhere in a buffer of `len`, in any order; no number is in two blocks.
    fn new(random: &mut Random, lens: &[usize], len: usize) -> Places {
        let mut free: Vec<i64> = (0..i64::try_from(len).unwrap()).collect();
        let mut block = |&len: &usize| {
            let places: Vec<i64> =
                (0..len).map(|_| free.swap_remove(random.below(free.len()))).collect();
            let origin = places.iter().copied().min().unwrap_or(0);
            let displacements: Vec<i64> = places.iter().map(|place| place - origin).collect();
            let number = Primitive::Int32.into();
            let layout = Datatype::indexed_block(1, &displacements, &number).unwrap();
            (u64::try_from(origin).unwrap(), layout.commit().unwrap(), 1)
        };
        Places(lens.iter().map(&mut block).collect())
    }

    fn own(&self, buffer: Vec<i32>) -> OwnedBlocks<Vec<i32>> {
        let each = self.0.iter().map(|(origin, layout, count)| (*origin, layout, *count));
        OwnedBlocks::new(buffer, each)
    }

    fn sent<'b>(&self, buffer: &'b [i32]) -> Blocks<'b> {
        let view = |(origin, layout, count): &(u64, Layout, u64)| {
            View::typed(buffer, *origin, layout, *count).unwrap()
        };
        Blocks::each(self.0.iter().map(view))
    }

    fn received<'b>(&self, buffer: &'b mut [i32]) -> BlocksMut<'b> {
        let mut parts = Parts::of(buffer);
        let view = |(origin, layout, count): &(u64, Layout, u64)| {
            parts.view_mut(*origin, layout, *count).unwrap()
        };
        BlocksMut::each(self.0.iter().map(view))
    }
}

fn alltoallw<'v>(send: Blocks<'v>, recv: BlocksMut<'v>) -> Collective<'v> {
    Collective::alltoallw(send, recv)
}

/// The forms that own their buffers give what the blocking one gives.
fn compare(
    comm: &Communicator,
    random: &mut Random,
    (sends, receives): (&[usize], &[usize]),
    describe: impl for<'v> Fn(Blocks<'v>, BlocksMut<'v>) -> Collective<'v>,
) {
    let len = |lens: &[usize]| lens.iter().sum::<usize>() + 5;
    let (out, inn) = (len(sends), len(receives));
    let (from, to) = (Places::new(random, sends, out), Places::new(random, receives, inn));
    let mut given = |len| -> Vec<i32> {
        (0..len).map(|_| i32::try_from(random.below(1 << 30)).unwrap()).collect()
    };
    let room = vec![-1; inn];
    let right = |sent: &[i32]| {
        let mut received = room.clone();
        comm.perform(describe(from.sent(sent), to.received(&mut received))).unwrap();
        received
    };
    let sent = given(out);
    let begun = comm.begin_owned_blocks(from.own(sent.clone()), to.own(room.clone()), &describe);
    let ((same, received), result) = begun.unwrap().wait();
    assert_eq!((result, &same, received), (Ok(()), &sent, right(&sent)));
    let (send, recv) = (from.own(vec![0; out]), to.own(room.clone()));
    let mut kept = comm.collective_init_blocks(send, recv, &describe).unwrap();
    for _ in 0..3 {
        let sent = given(out);
        kept.buffers_mut().unwrap().0.copy_from_slice(&sent);
        kept.start().unwrap();
        kept.wait().unwrap();
        assert_eq!(kept.buffers().unwrap().1, right(&sent));
    }
}

#[test]
fn alltoallw_with_random_layouts() {
    for size in 1..=4 {
        ranks(size, |comm| {
            let (me, n) = (comm.rank() as usize, size as usize);
            for round in 0..6 {
                // The same at all ranks: how many numbers go from one to another.
                let mut common = Random::new(round);
                let lens: Vec<usize> =
                    (0..n * n).map(|_| [0, 1, 7, 40, 3000][common.below(5)]).collect();
                let sends = &lens[me * n..][..n];
                let receives: Vec<usize> = (0..n).map(|from| lens[from * n + me]).collect();
                let mut own = Random::new(100 * round + me as u64);
                compare(comm, &mut own, (sends, &receives), |send, recv| {
                    Collective::alltoallw(send, recv)
                });
            }
        });
    }
}

/// In place, each rank sends another what it receives from it.
#[test]
fn alltoallw_in_place_with_random_layouts() {
    for size in 1..=4 {
        ranks(size, |comm| {
            let (me, n) = (comm.rank() as usize, size as usize);
            for round in 0..4 {
                let mut common = Random::new(round);
                let lens: Vec<usize> =
                    (0..n * n).map(|_| [0, 1, 7, 40, 3000][common.below(5)]).collect();
                let both: Vec<usize> =
                    (0..n).map(|other| lens[me.min(other) * n + me.max(other)]).collect();
                let len = both.iter().sum::<usize>() + 5;
                let mut own = Random::new(100 * round + me as u64);
                let places = Places::new(&mut own, &both, len);
                let start: Vec<i32> =
                    (0..len).map(|_| i32::try_from(own.below(1 << 30)).unwrap()).collect();
                let mut right = start.clone();
                comm.perform(Collective::alltoallw(InPlace, places.received(&mut right))).unwrap();
                let mut kept = comm
                    .collective_init_blocks((), places.own(start.clone()), |_, recv| {
                        Collective::alltoallw(InPlace, recv)
                    })
                    .unwrap();
                kept.start().unwrap();
                kept.wait().unwrap();
                assert_eq!(kept.buffers().unwrap().1, right);
                // What it has received goes back.
                kept.start().unwrap();
                kept.wait().unwrap();
                assert_eq!(kept.buffers().unwrap().1, start);
            }
        });
    }
}

#[test]
fn neighbor_alltoallw_with_random_layouts() {
    for size in 1..=4 {
        ranks(size, |comm| {
            let ring = comm.cart_create(&[size], &[true], false).unwrap().unwrap();
            let line = comm.cart_create(&[size], &[false], false).unwrap().unwrap();
            let (me, n) = (comm.rank() as usize, size as usize);
            for round in 0..6 {
                let mut common = Random::new(round);
                // How many numbers each rank sends down, and up.
                let lens: Vec<[usize; 2]> =
                    (0..n).map(|_| [0; 2].map(|_| [0, 1, 7, 3000][common.below(4)])).collect();
                // From below comes what was sent up there.
                let receives = [lens[(me + n - 1) % n][1], lens[(me + 1) % n][0]];
                let mut own = Random::new(100 * round + me as u64);
                for grid in [&ring, &line] {
                    compare(grid, &mut own, (&lens[me], &receives), |send, recv| {
                        Collective::neighbor_alltoallw(send, recv)
                    });
                }
            }
        });
    }
}

#[test]
fn what_is_refused_comes_back() {
    ranks(2, |comm| {
        let number = Datatype::from(Primitive::Int32).commit().unwrap();
        let each = |origins: [u64; 2], count| origins.map(|origin| (origin, &number, count));
        let refused = |send: Vec<i32>, recv: Vec<i32>, origins| {
            let send = OwnedBlocks::new(send, each([0, 1], 2));
            let recv = OwnedBlocks::new(recv, each(origins, 2));
            let begun = comm.begin_owned_blocks(send.clone(), recv.clone(), alltoallw);
            let begun = begun.map(drop).unwrap_err();
            let kept = comm.collective_init_blocks(send, recv, alltoallw).map(drop).unwrap_err();
            assert_eq!((&begun.error, &begun.buffer), (&kept.error, &kept.buffer));
            begun
        };
        // Blocks that are sent may overlap, those that are received into must not: as in the blocking form.
        let error = refused(vec![1; 3], vec![2; 4], [0, 1]);
        assert_eq!(error.error, Error::InUse { start: 4, end: 8 });
        assert_eq!(error.buffer, (vec![1; 3], vec![2; 4]));
        let mut memory = [0i32; 4];
        let mut parts = Parts::of(&mut memory);
        parts.view_mut(0, &number, 2).unwrap();
        assert_eq!(parts.view_mut(1, &number, 2).unwrap_err(), error.error);
        // Outside of the buffer, on either side.
        for (out, inn) in [(2, 4), (3, 3)] {
            let error = refused(vec![1; out], vec![2; inn], [0, 2]);
            assert!(matches!(error.error, Error::Buffer(_)), "{}", error.error);
            assert_eq!((error.buffer.0.len(), error.buffer.1.len()), (out, inn));
        }
        // Other elements than those of the buffer.
        let double = Datatype::from(Primitive::Double).commit().unwrap();
        let begun = comm.begin_owned_blocks(
            OwnedBlocks::new(vec![0i32; 4], [(0, &double, 1), (2, &double, 1)]),
            OwnedBlocks::new(vec![0i32; 4], each([0, 2], 2)),
            |send, recv| Collective::alltoallw(send, recv),
        );
        assert!(matches!(begun.map(drop).unwrap_err().error, Error::Fit(_)));
        // MPI has no neighbourhood collective in place, and no receive buffer in place here.
        let ring = comm.cart_create(&[2], &[true], false).unwrap().unwrap();
        let in_place = |error: Error, argument| match error {
            Error::Collective { error, .. } => {
                assert_eq!(*error, CollectiveError::InPlace { argument });
            }
            other => panic!("{other}"),
        };
        let room = || OwnedBlocks::new(vec![0i32; 4], each([0, 2], 2));
        let begun = ring.collective_init_blocks((), room(), |_, recv| {
            Collective::neighbor_alltoallw(InPlace, recv)
        });
        in_place(begun.map(drop).unwrap_err().error, "send buffer");
        let begun =
            comm.begin_owned_blocks(room(), (), |send, _| Collective::alltoallw(send, InPlace));
        in_place(begun.map(drop).unwrap_err().error, "receive buffer");
        comm.barrier().unwrap();
    });
}
