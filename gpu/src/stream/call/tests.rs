use super::*;

const CUDA: Space = Space::Cuda { device: 0 };
const FLOATS: (ReduceOp, Primitive) = (ReduceOp::Sum, Primitive::Float);

/// Rank `rank` of `ranks`, with two registrations of 64 MiB; no address of a rank is one of another's.
fn ground(rank: u32, ranks: u32) -> Ground {
    let everywhere = |base: u64| {
        let mut at = [0; RANKS_MAX];
        let members = at.iter_mut().zip(1u64..).take(ranks as usize);
        members.for_each(|(start, number)| *start = base + (number << 40));
        at
    };
    let lens = [64 << 20; RANKS_MAX];
    let registered = |base| Everywhere { at: everywhere(base), len: 64 << 20, lens };
    Ground {
        owner: 9,
        rank,
        ranks,
        space: CUDA,
        windows: everywhere(0),
        registered: vec![registered(1 << 32), registered(2 << 32)],
        blocks: 64,
        patience: 1,
        abort: 8,
        status: 16,
    }
}

fn shared(index: usize, offset: u64) -> StreamBuffer {
    Registered { owner: 9, index, len: 64 << 20 }.at(offset)
}

fn own(address: u64, len: u64) -> StreamBuffer {
    Region::new(CUDA, address, 0, len).into()
}

#[test]
fn all_ranks_launch_the_same() {
    let ranks = 4;
    type Call = fn(&Ground) -> Result<Option<Launch>, StreamError>;
    let calls: [Call; 10] = [
        |it| it.allreduce((own(1 << 20, 64), own(2 << 20, 64)), 16, FLOATS),
        |it| it.allreduce((shared(0, 0), shared(1, 0)), 1 << 20, FLOATS),
        |it| it.allreduce((shared(0, 64), shared(0, 64)), 1 << 20, FLOATS),
        |it| it.allreduce((own(1 << 20, 8 << 20), own(2 << 20, 8 << 20)), 1 << 20, FLOATS),
        |it| it.reduce_scatter((shared(0, 0), own(1 << 20, 4 << 20)), 1 << 20, FLOATS),
        |it| it.allgather((own(1 << 20, 1 << 20), shared(0, 0)), 1 << 20),
        |it| it.alltoall((own(1 << 20, 4 << 20), shared(0, 0)), 1 << 20),
        |it| it.broadcast(shared(0, 0), 1 << 20, 2),
        |it| it.broadcast(shared(0, 0), 64, 2),
        |it| Ok(Some(it.barrier())),
    ];
    let mut names = std::collections::BTreeSet::new();
    for call in calls {
        let all: Vec<Launch> =
            (0..ranks).map(|rank| call(&ground(rank, ranks)).unwrap().unwrap()).collect();
        let common = |it: &Launch| {
            let args = it.args;
            (it.kernel, it.shape, args.doing, args.elements, args.stage, args.piece, args.split)
        };
        assert!(all.iter().all(|it| common(it) == common(&all[0])), "{all:?}");
        names.insert(all[0].args.doing);
        for (rank, it) in (0..).zip(&all) {
            assert_eq!((it.args.rank, it.args.ranks), (rank, ranks));
        }
    }
    assert_eq!(names.len(), calls.len(), "calls are told apart");
}

#[test]
fn short_ones_need_no_registration_and_ranks_may_differ_in_it() {
    let with = ground(0, 2).allreduce((shared(0, 0), shared(1, 0)), 100, FLOATS).unwrap().unwrap();
    let without = (own(1 << 20, 400), own(2 << 20, 400));
    let without = ground(1, 2).allreduce(without, 100, FLOATS).unwrap().unwrap();
    assert_eq!((with.kernel, with.args.doing), (without.kernel, without.args.doing));
    assert_eq!(with.kernel, Kernel::Flagged(PeersOperation::Sum, Element::F32));
}

#[test]
fn moves_go_where_they_belong() {
    let it = ground(1, 3);
    const LONG: u64 = 1 << 20;
    let sent = (own(5 << 20, LONG), shared(0, 16));
    let gathered = it.allgather(sent, LONG).unwrap().unwrap().args;
    for rank in 0..3 {
        assert_eq!(gathered.src[rank], 5 << 20);
        assert_eq!(gathered.dst[rank], it.registered[0].at[rank] + 16 + LONG);
    }
    let sent = (own(5 << 20, 3 * LONG), shared(0, 0));
    let exchanged = it.alltoall(sent, LONG).unwrap().unwrap().args;
    for rank in 0..3 {
        assert_eq!(exchanged.src[rank], (5 << 20) + LONG * rank as u64);
        assert_eq!(exchanged.dst[rank], it.registered[0].at[rank] + LONG);
    }
    assert_eq!(gathered.dst[3..], [0; RANKS_MAX - 3]);
    let spread = it.broadcast(shared(1, 0), LONG, 1).unwrap().unwrap().args;
    assert_eq!(spread.dst[..3], [it.registered[1].at[0], 0, it.registered[1].at[2]]);
    let received = it.broadcast(shared(1, 0), LONG, 0).unwrap().unwrap().args;
    assert_eq!(received.dst, [0; RANKS_MAX]);
    let scattered = (shared(0, 0), own(1 << 20, 4096));
    let scattered = it.reduce_scatter(scattered, 1024, FLOATS).unwrap().unwrap().args;
    assert_eq!(scattered.src[2], it.registered[0].at[2] + 4096);
    assert_eq!(scattered.dst, it.only_ours(1 << 20));
}

#[test]
fn short_moves_go_through_words_into_ones_own_memory() {
    let it = ground(1, 3);
    let sent = (own(5 << 20, 3 * 4100), shared(0, 16));
    let exchanged = it.alltoall(sent, 4100).unwrap().unwrap();
    let gathered = it.allgather(sent, 4100).unwrap().unwrap();
    assert_eq!((exchanged.kernel, gathered.kernel), (Kernel::Words, Kernel::Words));
    assert_eq!(exchanged.args.width, 4, "blocks of others begin at any multiple of their length");
    for rank in 0..3 {
        let block = 4100 * rank as u64;
        assert_eq!(exchanged.args.src[rank], (5 << 20) + block);
        assert_eq!(gathered.args.src[rank], 5 << 20);
        assert_eq!(exchanged.args.dst[rank], it.registered[0].at[1] + 16 + block);
        assert_eq!(exchanged.args.dst, gathered.args.dst);
    }
    // A broadcast's are all in the buffer, and only the root's are whole.
    let spread = it.broadcast(shared(1, 8), 64, 2).unwrap().unwrap();
    assert_eq!((spread.kernel, spread.args.which), (Kernel::Words, 2));
    assert_eq!(exchanged.args.which, 3, "no rank");
    let buffer = it.registered[1].at[1] + 8;
    assert_eq!(
        (spread.args.src[..3].to_vec(), spread.args.src),
        (vec![buffer; 3], spread.args.dst)
    );
    // As many as a slot has room for, and no more.
    for (bytes, kernel) in [(0, Kernel::Words), (1, Kernel::Move)] {
        let bytes = peers::words_max(3) + bytes;
        let it = it.allgather((own(5 << 20, bytes), shared(0, 0)), bytes).unwrap().unwrap();
        assert_eq!(it.kernel, kernel);
    }
}

#[test]
fn widths_are_those_of_all_addresses_that_are_used() {
    let it = ground(0, 2);
    let width =
        |send, recv| it.allreduce((send, recv), 8 << 20, FLOATS).unwrap().unwrap().args.width;
    assert_eq!(width(shared(0, 0), shared(1, 0)), 16);
    assert_eq!(width(shared(0, 8), shared(1, 0)), 8);
    assert_eq!(width(own(1 << 30, 32 << 20), own((1 << 31) + 4, 32 << 20)), 4);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let it = ground(0, 2);
    let reduce = |send, recv, count, kinds| it.allreduce((send, recv), count, kinds).unwrap_err();
    let fine = own(1 << 20, 4096);
    assert_eq!(
        reduce(fine, own(1 << 20, 4095), 1024, FLOATS),
        StreamError::TooShort { argument: "recv", needed: 4096, len: 4095 }
    );
    assert_eq!(
        reduce(shared(0, (64 << 20) - 4), fine, 2, FLOATS),
        StreamError::TooShort { argument: "send", needed: 8, len: 4 }
    );
    assert_eq!(
        reduce(shared(0, u64::MAX), fine, 2, FLOATS),
        StreamError::TooShort { argument: "send", needed: 8, len: 0 }
    );
    assert_eq!(
        reduce(fine, fine, u64::MAX / 2, FLOATS),
        StreamError::TooLong { count: u64::MAX / 2, bytes: 4 }
    );
    assert_eq!(
        reduce(own((1 << 20) + 2, 64), fine, 1, FLOATS),
        StreamError::Misaligned { argument: "send", bytes: 4 }
    );
    let host = Region::new(Space::Host, 1 << 20, 0, 64).into();
    assert_eq!(
        reduce(host, fine, 1, FLOATS),
        StreamError::WrongSpace { argument: "send", space: Space::Host, device: CUDA }
    );
    for (op, element) in [(ReduceOp::Band, Primitive::Int), (ReduceOp::Sum, Primitive::Int8)] {
        assert_eq!(reduce(fine, fine, 1, (op, element)), StreamError::Unsupported { op, element });
    }
    let foreign = Registered { owner: 8, index: 0, len: 64 }.at(0);
    assert_eq!(reduce(foreign, fine, 1, FLOATS), StreamError::Foreign);
    let foreign = Registered { owner: 9, index: 2, len: 64 }.at(0);
    assert_eq!(reduce(foreign, fine, 1, FLOATS), StreamError::Foreign);
    let refused = it.allgather((fine, own(1 << 20, 8192)), 4096).unwrap_err();
    assert!(matches!(refused, StreamError::NotRegistered { argument: "recv", .. }), "{refused}");
    let refused = it.reduce_scatter((fine, fine), 1, FLOATS).unwrap_err();
    assert!(matches!(refused, StreamError::NotRegistered { argument: "send", .. }), "{refused}");
    let refused = it.broadcast(shared(0, 0), 1, 2).unwrap_err();
    assert_eq!(refused, StreamError::NoSuchRank { rank: 2, size: 2 });
    assert_eq!(it.allreduce((fine, fine), 0, FLOATS), Ok(None));
    assert_eq!(it.allgather((fine, shared(0, 0)), 0), Ok(None));
}
