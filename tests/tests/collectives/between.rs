//! Collectives on intercommunicators: a group of two ranks and one of three, each with something for the other.

use crate::collectives::ranks;
use gapless::coll::BuildError;
use gapless::{
    Blocks, BlocksMut, Collective, CollectiveError, Communicator, Error, InPlace, ReduceOp, Root,
};

/// Numbers of a block: short ones go by way of the groups' first ranks, long ones do not.
const LENS: [usize; 3] = [0, 3, 5000];

/// A rank of the five.
struct Case<'c> {
    inter: &'c Communicator,
    world: &'c Communicator,
    /// In the world.
    own: Vec<u32>,
    others: Vec<u32>,
}

impl Case<'_> {
    fn me(&self) -> usize {
        self.inter.rank() as usize
    }

    /// What this rank gives as root, if it is this rank of the world.
    fn root(&self, root: u32) -> Root {
        if root == self.world.rank() {
            return Root::Here;
        }
        let rank = self.others.iter().position(|other| *other == root);
        rank.map_or(Root::Other, |rank| Root::from(u32::try_from(rank).unwrap()))
    }

    /// What this rank contributes is that of its rank in the world.
    fn given(&self) -> u32 {
        self.world.rank()
    }
}

/// What a rank of the world contributes.
fn numbers(from: u32, count: usize) -> Vec<u32> {
    (0..count).map(|at| from * 100_003 + u32::try_from(at).unwrap() * 7 + 1).collect()
}

fn sum(ranks: &[u32], count: usize) -> Vec<u32> {
    let add = |sum: Vec<u32>, rank: &u32| {
        sum.iter().zip(numbers(*rank, count)).map(|(one, other)| one + other).collect()
    };
    ranks.iter().fold(vec![0; count], add)
}

fn all(ranks: &[u32], count: usize) -> Vec<u32> {
    ranks.iter().flat_map(|rank| numbers(*rank, count)).collect()
}

/// Ranks 1 and 3 on one side, the others on the other.
fn groups(check: impl Fn(&Case<'_>) + Sync) {
    ranks(5, |world| {
        let sides = [vec![1, 3], vec![0, 2, 4]];
        let side = usize::from(world.rank() % 2 == 0);
        let half = world.split(Some(u32::try_from(side).unwrap()), 0).unwrap().unwrap();
        let leader = sides[1 - side][0];
        let inter = half.intercomm(0, world, leader, 7).unwrap();
        let [one, two] = sides;
        let (own, others) = if side == 0 { (one, two) } else { (two, one) };
        check(&Case { inter: &inter, world, own, others });
    });
}

fn why(result: Result<(), Error>) -> CollectiveError {
    match result {
        Err(Error::Collective { error, .. }) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_root_has_goes_to_the_other_group() {
    groups(|case| {
        case.inter.barrier().unwrap();
        for (root, len) in (0..5).flat_map(|root| LENS.map(|len| (root, len))) {
            let given = case.root(root);
            let has = numbers(root, len);
            let mut buffer = if given == Root::Here { has.clone() } else { vec![9; len] };
            case.inter.bcast(&mut buffer, given).unwrap();
            assert_eq!(buffer, if given == Root::Other { vec![9; len] } else { has });

            // Blocks of one length, and then rank `r` of the other group has `r` numbers less.
            let count = case.others.len();
            let whole = numbers(root, count * len);
            let part = |at: usize, len: usize| numbers(root, (at + 1) * len)[at * len..].to_vec();
            let mut block = vec![9; len];
            match given {
                Root::Here => case.inter.scatter(&whole, (), given),
                Root::Rank(_) => case.inter.scatter((), &mut block, given),
                Root::Other => case.inter.scatter((), (), given),
            }
            .unwrap();
            let receives = matches!(given, Root::Rank(_));
            assert_eq!(block, if receives { part(case.me(), len) } else { vec![9; len] });

            let less = |at: usize| len.saturating_sub(at);
            let mut block = vec![9; less(case.me())];
            let counts: Vec<u64> = (0..count).map(|at| less(at) as u64).collect();
            let starts: Vec<u64> = (0..count).map(|at| (at * len) as u64).collect();
            match given {
                Root::Here => {
                    case.inter.scatterv(Blocks::new(&whole, &counts, &starts).unwrap(), (), given)
                }
                _ => case.inter.scatterv((), &mut block, given),
            }
            .unwrap();
            let mut right = part(case.me(), len);
            right.truncate(less(case.me()));
            assert_eq!(block, if receives { right } else { vec![9; less(case.me())] });
        }
    });
}

#[test]
fn what_a_group_has_goes_to_the_root_in_the_other() {
    groups(|case| {
        for (root, len) in (0..5).flat_map(|root| LENS.map(|len| (root, len))) {
            let given = case.root(root);
            let count = case.others.len();
            let mine = numbers(case.given(), len);
            let at_root = |right: Vec<u32>| match given {
                Root::Here => right,
                _ => vec![9; right.len()],
            };
            let mut into = vec![9; count * len];
            case.inter.gather(&mine, &mut into, given).unwrap();
            assert_eq!(into, at_root(all(&case.others, len)));

            let less = |at: usize| len.saturating_sub(at);
            let counts: Vec<u64> = (0..count).map(|at| less(at) as u64).collect();
            let total: usize = (0..count).map(less).sum();
            let mut into = vec![9; total];
            let blocks = BlocksMut::packed(&mut into, &counts).unwrap();
            case.inter.gatherv(&mine[..less(case.me())], blocks, given).unwrap();
            let ranks = case.others.iter().enumerate();
            let right = ranks.flat_map(|(at, rank)| numbers(*rank, less(at))).collect();
            assert_eq!(into, at_root(right));

            let mut into = vec![9; len];
            case.inter.reduce(&mine, &mut into, ReduceOp::Sum, given).unwrap();
            assert_eq!(into, at_root(sum(&case.others, len)));
        }
    });
}

/// Also non-blocking, and blocks whose lengths differ by direction.
#[test]
fn groups_exchange_what_they_have() {
    groups(|case| {
        for len in LENS {
            let count = case.others.len();
            // What a rank sends has the length of its group.
            let (out, inn) = (len + case.own.len(), len + count);
            let mine = numbers(case.given(), out);
            let mut into = vec![9; count * inn];
            case.inter.allgather(&mine, &mut into).unwrap();
            assert_eq!(into, all(&case.others, inn));
            let mut into = vec![9; count * inn];
            case.inter.scope(|s| s.iallgather(&mine, &mut into)?.wait()).unwrap();
            assert_eq!(into, all(&case.others, inn));

            let mut into = vec![9; (0..count).map(|at| len + at).sum()];
            let counts: Vec<u64> = (0..count).map(|at| (len + at) as u64).collect();
            let blocks = BlocksMut::packed(&mut into, &counts).unwrap();
            let mine = numbers(case.given(), len + case.me());
            case.inter.perform(Collective::allgatherv(&mine, blocks)).unwrap();
            let ranks = case.others.iter().enumerate();
            let right: Vec<u32> = ranks.flat_map(|(at, rank)| numbers(*rank, len + at)).collect();
            assert_eq!(into, right);

            // Block `to` of what `from` sends.
            let block = |from: u32, to: usize, len: usize| {
                numbers(from, (to + 1) * len)[to * len..].to_vec()
            };
            let send = numbers(case.given(), count * out);
            let right: Vec<u32> =
                case.others.iter().flat_map(|rank| block(*rank, case.me(), inn)).collect();
            let mut into = vec![9; count * inn];
            case.inter.alltoall(&send, &mut into).unwrap();
            assert_eq!(into, right);
            let mut into = vec![9; count * inn];
            let (outs, inns) = (vec![out as u64; count], vec![inn as u64; count]);
            let blocks = Blocks::packed(&send, &outs).unwrap();
            case.inter.alltoallv(blocks, BlocksMut::packed(&mut into, &inns).unwrap()).unwrap();
            assert_eq!(into, right);
        }
    });
}

#[test]
fn groups_get_what_the_other_one_combines() {
    groups(|case| {
        for len in LENS {
            let mut into = vec![9; len];
            let mine = numbers(case.given(), len);
            case.inter.allreduce(&mine, &mut into, ReduceOp::Sum).unwrap();
            assert_eq!(into, sum(&case.others, len));

            // The groups' blocks differ, but not their sum.
            let own = case.own.len();
            let total = 6 * len;
            let mine = numbers(case.given(), total);
            let right = sum(&case.others, total);
            let mut into = vec![9; total / own];
            case.inter.reduce_scatter_block(&mine, &mut into, ReduceOp::Sum).unwrap();
            assert_eq!(into, right[case.me() * into.len()..][..into.len()]);
            let counts: Vec<u64> = match own {
                2 => vec![len as u64, 5 * len as u64],
                _ => vec![3 * len as u64, 0, 3 * len as u64],
            };
            let before: u64 = counts[..case.me()].iter().sum();
            let mut into = vec![9; usize::try_from(counts[case.me()]).unwrap()];
            case.inter.reduce_scatter(&mine, &mut into, &counts, ReduceOp::Sum).unwrap();
            assert_eq!(into, right[usize::try_from(before).unwrap()..][..into.len()]);
        }
    });
}

/// Its ranks compare their arguments, also those that are neither the root nor in the other group.
#[test]
fn persistent_ones_start_again_and_again() {
    groups(|case| {
        let root = case.root(2);
        let kept = case.inter.collective_init(vec![0u32; 4], vec![0u32; 4], |send, recv| {
            Collective::reduce(send, recv, ReduceOp::Sum, root)
        });
        let mut kept = kept.unwrap();
        for round in 1..4 {
            kept.buffers_mut().unwrap().0.fill(round * case.given());
            kept.start().unwrap();
            kept.wait().unwrap();
            let right = if root == Root::Here { round * 4 } else { 0 };
            assert_eq!(kept.buffers().unwrap().1, &[right; 4]);
        }
    });
}

#[test]
fn what_does_not_fit_two_groups_is_named() {
    use CollectiveError as E;
    groups(|case| {
        let (inter, sum) = (case.inter, ReduceOp::Sum);
        let (one, mut two, mut four) = ([1u32], [0u32; 2], [0u32; 4]);
        assert_eq!(why(inter.scan(&two.clone(), &mut two, sum)), E::InterComm);
        assert_eq!(why(inter.exscan(&two.clone(), &mut two, sum)), E::InterComm);
        assert_eq!(why(inter.neighbor_allgather(&one, &mut two)), E::InterComm);
        assert_eq!(why(inter.neighbor_alltoall(&one, &mut two)), E::InterComm);
        let argument = "send buffer";
        assert_eq!(why(inter.allreduce(InPlace, &mut two, sum)), E::InPlace { argument });
        let (rank, ranks) = (case.others.len(), case.others.len());
        let root = why(inter.bcast(&mut two, u32::try_from(rank).unwrap()));
        assert_eq!(root, E::Arguments(BuildError::NoSuchRank { rank, ranks }));
        let (given, expected) = (4, ranks);
        let blocks = BlocksMut::packed(&mut four, &[1; 4]).unwrap();
        let gather = why(inter.allgatherv(&one, blocks));
        assert_eq!(gather, E::Blocks { argument: "receive buffer", given, expected });
        let counts = why(inter.reduce_scatter(&four, &mut two, &[1; 4], sum));
        let expected = case.own.len();
        assert_eq!(counts, E::Blocks { argument: "list of counts", given, expected });
        // Rank 3 of the world is the culprit, whatever its number is here: it is nearest to the first of the others.
        let len = if case.root(3) == Root::Here { 3 } else { 1 };
        let sent = inter.bcast(&mut four[..len], case.root(3));
        if case.world.rank() == 0 {
            let error = why(sent);
            assert!(matches!(error, E::Failed { process: Some(3), .. }), "{error:?}");
        }
        // In one group there is nobody else's root.
        for root in [Root::Here, Root::Other] {
            assert_eq!(why(case.world.bcast(&mut two, root)), E::Root { root });
        }
        inter.barrier().unwrap();
    });
}
