//! Which algorithm a call goes by: a table, and what the cost model says of the alternatives.
//!
//! The choice depends only on what all ranks know: the operation, the bytes of [`Call::bytes`], whether the operation
//! is commutative, and which ranks are near each other. So all ranks choose the same without a message. Where a buffer
//! lies and what its layout is, one rank knows alone: that never matters here.
use crate::Level;
use crate::algorithm::{Algorithm, Exchange, Method, MethodEntry, TABLE};
use crate::call::Call;
use crate::cost::{Cost, predict};
use crate::error::BuildError;
use crate::hyperq::Settings;
use crate::locality::Locality;
use crate::operation::Operation;
use crate::sample::Sample;
use crate::sm::SharedSegment;
use crate::suits::{is_frugal, suits};
use crate::tree::Tree;

/// A rule of a [`Table`]: which algorithm an operation goes by, up to so many ranks and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For this operation.
    pub operation: Operation,
    /// For up to so many ranks.
    pub ranks_max: usize,
    /// For up to so many bytes, as [`Call::bytes`] counts them. Calls that do not know them are longer than any.
    pub bytes_max: u64,
    /// What to do.
    pub algorithm: Algorithm,
}

/// The table by which algorithms are chosen: the first rule holds that fits the call and whose algorithm can do it.
///
/// Rules of [`Method::Shared`] are for calls whose ranks share memory ([`shared_rule_for`]); others pass them over.
/// Algorithms on levels are passed over if one of the levels does not divide the ranks ([`Locality::has_levels`]), and
/// for all-to-alls if a rank would need much more memory than its buffers. Those
/// over shared memory ([`Algorithm::over_shared`]) are as good where the ranks of a host share none: then these go by
/// messages. All ranks of a communicator must have the same table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// How ranks that share a GPU go about collectives whose buffers lie there.
    pub hyperq: Settings,
}

impl Table {
    /// These rules, and behind them [`DEFAULT_RULES`] for what they leave open.
    #[must_use]
    pub fn with(mut rules: Vec<Rule>) -> Self {
        rules.extend_from_slice(DEFAULT_RULES);
        Self { rules, hyperq: Settings::default() }
    }
}

impl Default for Table {
    /// [`DEFAULT_RULES`].
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

const ANY: usize = usize::MAX;
const ANY_LEN: u64 = u64::MAX;

const fn rule(operation: Operation, ranks_max: usize, bytes_max: u64, method: Method) -> Rule {
    Rule { operation, ranks_max, bytes_max, algorithm: Algorithm::new(method) }
}

const fn cut(rule: Rule, segment: u64) -> Rule {
    Rule { algorithm: rule.algorithm.segmented(segment), ..rule }
}

const fn levels(rule: Rule) -> Rule {
    Rule { algorithm: rule.algorithm.over(Level::Host, Tree::Binomial), ..rule }
}

/// The ranks of each host share memory. With more than one of them beside its leader, that is quicker than a tree of
/// messages.
const fn near(rule: Rule) -> Rule {
    Rule { algorithm: rule.algorithm.over_shared(), ..rule }
}

/// Of three ranks on two hosts, one host has two. A message between these is as quick as shared memory.
const FEW: usize = 3;
/// With two ranks on each of two hosts that is so in bcast and allgather, and messages among all ranks are quicker for
/// gather, scatter and reduce-scatter.
const PAIRS: usize = 4;

const BINOMIAL: Method = Method::Tree(Tree::Binomial);
const FLAT: Method = Method::Tree(Tree::Flat);
const CHAIN: Method = Method::Tree(Tree::Chain);
const RING: Method = Method::Exchange(Exchange::Ring);
const BRUCK: Method = Method::Exchange(Exchange::Bruck);
const BLOCKS: Method = Method::Exchange(Exchange::Doubling);
const DIRECT: Method = Method::Exchange(Exchange::Direct);
const DOUBLING: Method = Method::Doubling;
const HALVING: Method = Method::Halving;
const SHARED: Method = Method::Shared;

/// Rules for machines that were not measured: few messages for short calls, few bytes for long ones. On several hosts,
/// short calls go by messages between the hosts' leaders, and through shared memory on each host. Among many ranks
/// nothing goes round a ring or along a chain, in as many rounds as there are ranks, if its pieces would be short. If
/// they are long, a reduction that is scattered goes round the ring: that takes memory for two blocks, the others as
/// much as all ranks' blocks.
pub const DEFAULT_RULES: &[Rule] = &[
    rule(Operation::Barrier, ANY, ANY_LEN, SHARED),
    rule(Operation::Bcast, ANY, ANY_LEN, SHARED),
    rule(Operation::Gather, ANY, ANY_LEN, SHARED),
    rule(Operation::Gatherv, ANY, ANY_LEN, SHARED),
    rule(Operation::Scatter, ANY, ANY_LEN, SHARED),
    rule(Operation::Scatterv, ANY, ANY_LEN, SHARED),
    rule(Operation::Allgather, ANY, ANY_LEN, SHARED),
    rule(Operation::Allgatherv, ANY, ANY_LEN, SHARED),
    rule(Operation::Alltoall, ANY, ANY_LEN, SHARED),
    rule(Operation::Alltoallv, ANY, ANY_LEN, SHARED),
    rule(Operation::NeighborAllgather, ANY, ANY_LEN, SHARED),
    rule(Operation::NeighborAlltoall, ANY, ANY_LEN, SHARED),
    rule(Operation::Reduce, ANY, ANY_LEN, SHARED),
    rule(Operation::Allreduce, ANY, ANY_LEN, SHARED),
    rule(Operation::ReduceScatter, ANY, ANY_LEN, SHARED),
    rule(Operation::ReduceScatterBlock, ANY, ANY_LEN, SHARED),
    rule(Operation::Scan, ANY, ANY_LEN, SHARED),
    rule(Operation::Exscan, ANY, ANY_LEN, SHARED),
    levels(rule(Operation::Barrier, FEW, ANY_LEN, BRUCK)),
    near(rule(Operation::Barrier, ANY, ANY_LEN, BRUCK)),
    rule(Operation::Barrier, ANY, ANY_LEN, BRUCK),
    levels(rule(Operation::Bcast, PAIRS, 16 << 10, BINOMIAL)),
    near(rule(Operation::Bcast, ANY, 32 << 10, BINOMIAL)),
    near(rule(Operation::Bcast, ANY, 1 << 20, BLOCKS)),
    rule(Operation::Bcast, ANY, 16 << 10, BINOMIAL),
    cut(rule(Operation::Bcast, 4, ANY_LEN, CHAIN), 64 << 10),
    rule(Operation::Bcast, ANY, 512 << 10, BLOCKS),
    rule(Operation::Bcast, 64, ANY_LEN, RING),
    rule(Operation::Bcast, ANY, ANY_LEN, BLOCKS),
    rule(Operation::Gather, PAIRS, 2 << 10, BINOMIAL),
    rule(Operation::Gather, PAIRS, ANY_LEN, FLAT),
    near(rule(Operation::Gather, ANY, 8 << 10, BINOMIAL)),
    rule(Operation::Gather, ANY, 2 << 10, BINOMIAL),
    rule(Operation::Gather, ANY, ANY_LEN, FLAT),
    rule(Operation::Scatter, PAIRS, 8 << 10, BINOMIAL),
    near(rule(Operation::Scatter, ANY, 8 << 10, BINOMIAL)),
    rule(Operation::Scatter, ANY, 2 << 10, BINOMIAL),
    rule(Operation::Scatter, ANY, ANY_LEN, FLAT),
    levels(rule(Operation::Allgather, PAIRS, 1 << 10, BRUCK)),
    near(rule(Operation::Allgather, ANY, 1 << 10, BRUCK)),
    rule(Operation::Allgather, ANY, 1 << 10, BRUCK),
    rule(Operation::Allgather, ANY, 16 << 10, BLOCKS),
    rule(Operation::Allgather, 256, ANY_LEN, RING),
    rule(Operation::Allgather, ANY, ANY_LEN, BRUCK),
    rule(Operation::Allgatherv, ANY, 32 << 10, BRUCK),
    rule(Operation::Allgatherv, 64, ANY_LEN, RING),
    rule(Operation::Allgatherv, ANY, ANY_LEN, BRUCK),
    rule(Operation::Alltoall, FEW, 32 << 10, Method::Linear),
    // Measured on two hosts with as many ranks on each. Among as many ranks on more hosts, groups are smaller, and
    // nobody has measured which is quicker.
    near(rule(Operation::Alltoall, 8, 256, Method::Linear)),
    near(rule(Operation::Alltoall, 16, 128, Method::Linear)),
    near(rule(Operation::Alltoall, 32, 32, Method::Linear)),
    rule(Operation::Alltoall, 7, 32 << 10, Method::Linear),
    rule(Operation::Alltoall, ANY, 256, BRUCK),
    rule(Operation::Alltoall, 256, 32 << 10, Method::Linear),
    rule(Operation::Alltoall, ANY, ANY_LEN, Method::Pairwise(4)),
    rule(Operation::Alltoallv, 256, ANY_LEN, Method::Linear),
    rule(Operation::Alltoallv, ANY, ANY_LEN, Method::Pairwise(16)),
    levels(rule(Operation::Reduce, FEW, 8 << 10, BINOMIAL)),
    near(rule(Operation::Reduce, ANY, 32 << 10, BINOMIAL)),
    rule(Operation::Reduce, ANY, 8 << 10, BINOMIAL),
    rule(Operation::Reduce, ANY, ANY_LEN, HALVING),
    levels(rule(Operation::Allreduce, FEW, 8 << 10, DOUBLING)),
    near(rule(Operation::Allreduce, ANY, 16 << 10, DOUBLING)),
    rule(Operation::Allreduce, ANY, 2 << 10, DOUBLING),
    rule(Operation::Allreduce, ANY, 1 << 20, HALVING),
    rule(Operation::Allreduce, 64, ANY_LEN, RING),
    rule(Operation::Allreduce, ANY, ANY_LEN, HALVING),
    rule(Operation::ReduceScatter, ANY, 512 << 10, BLOCKS),
    rule(Operation::ReduceScatter, ANY, 512 << 10, HALVING),
    rule(Operation::ReduceScatter, 64, ANY_LEN, DIRECT),
    rule(Operation::ReduceScatter, ANY, 64 << 20, BRUCK),
    rule(Operation::ReduceScatter, 1 << 10, ANY_LEN, RING),
    rule(Operation::ReduceScatter, ANY, ANY_LEN, BRUCK),
    rule(Operation::ReduceScatterBlock, PAIRS, 16 << 10, HALVING),
    near(rule(Operation::ReduceScatterBlock, ANY, 2 << 10, HALVING)),
    rule(Operation::ReduceScatterBlock, ANY, 16 << 10, BLOCKS),
    rule(Operation::ReduceScatterBlock, ANY, 16 << 10, HALVING),
    rule(Operation::ReduceScatterBlock, 64, ANY_LEN, DIRECT),
    rule(Operation::ReduceScatterBlock, 256, ANY_LEN, RING),
    rule(Operation::ReduceScatterBlock, ANY, 64 << 10, BRUCK),
    rule(Operation::ReduceScatterBlock, ANY, ANY_LEN, RING),
    rule(Operation::Scan, ANY, 64 << 10, DOUBLING),
    cut(rule(Operation::Scan, 64, ANY_LEN, CHAIN), 32 << 10),
    rule(Operation::Scan, ANY, 4 << 20, DOUBLING),
    cut(rule(Operation::Scan, 1024, ANY_LEN, CHAIN), 32 << 10),
    rule(Operation::Scan, ANY, ANY_LEN, DOUBLING),
    rule(Operation::Exscan, ANY, 64 << 10, DOUBLING),
    cut(rule(Operation::Exscan, 64, ANY_LEN, CHAIN), 32 << 10),
    rule(Operation::Exscan, ANY, 4 << 20, DOUBLING),
    cut(rule(Operation::Exscan, 1024, ANY_LEN, CHAIN), 32 << 10),
    rule(Operation::Exscan, ANY, ANY_LEN, DOUBLING),
];

/// What does the operation whatever the arguments are.
#[must_use]
pub fn fallback(operation: Operation) -> Algorithm {
    Algorithm::new(match operation {
        Operation::Barrier | Operation::Allgather | Operation::Allgatherv => BRUCK,
        Operation::Bcast | Operation::Gather | Operation::Scatter | Operation::Reduce => BINOMIAL,
        Operation::Allreduce | Operation::Scan | Operation::Exscan => DOUBLING,
        Operation::ReduceScatter | Operation::ReduceScatterBlock => HALVING,
        Operation::Gatherv
        | Operation::Scatterv
        | Operation::Alltoall
        | Operation::Alltoallv
        | Operation::NeighborAllgather
        | Operation::NeighborAlltoall => Method::Linear,
    })
}

/// The algorithm for a call that goes by messages. All ranks get the same for calls that fit together.
#[must_use]
pub fn choose(table: &Table, call: &Call<'_>, locality: &Locality) -> Algorithm {
    let rule = rule_for(table, call, locality);
    rule.map_or(fallback(call.operation()), |index| table.rules[index].algorithm)
}

/// Which rule of the table holds for a call that goes by messages; none: its algorithm is the [`fallback`].
#[must_use]
pub fn rule_for(table: &Table, call: &Call<'_>, locality: &Locality) -> Option<usize> {
    let fits = |rule: &Rule| {
        covers(rule, call, locality.ranks())
            && locality.has_levels(&rule.algorithm)
            && suits(call, locality, &rule.algorithm)
            && is_affordable(call, locality, &rule.algorithm)
    };
    table.rules.iter().position(fits)
}

/// Whether a rule may have it: an all-to-all on levels of long blocks takes memory for what all ranks of a host send,
/// at each of them. What other operations take grows with their own buffers.
fn is_affordable(call: &Call<'_>, locality: &Locality, algorithm: &Algorithm) -> bool {
    call.operation() != Operation::Alltoall || is_frugal(call, locality, algorithm)
}

/// By which rule of the table a call goes through memory that its ranks share, if they do share some and the call
/// can go that way ([`SharedSegment::takes`](crate::sm::SharedSegment::takes)). The operation's first rule of
/// [`Method::Shared`] for so many ranks says up to which length; rules of other methods do not matter.
#[must_use]
pub fn shared_rule_for(table: &Table, call: &Call<'_>, locality: &Locality) -> Option<usize> {
    let ranks = locality.ranks();
    let is_meant = |rule: &Rule| {
        rule.operation == call.operation()
            && rule.algorithm == Algorithm::new(SHARED)
            && ranks <= rule.ranks_max
    };
    let index = table.rules.iter().position(is_meant)?;
    (covers(&table.rules[index], call, ranks) && SharedSegment::takes(call, ranks)).then_some(index)
}

/// Whether a rule is for such a call.
fn covers(rule: &Rule, call: &Call<'_>, ranks: usize) -> bool {
    rule.operation == call.operation()
        && ranks <= rule.ranks_max
        && call.bytes().unwrap_or(u64::MAX) <= rule.bytes_max
}

/// The algorithms that can do a call, with common parameters: what to try when tuning, and what to show. Those are left
/// out by which a rank would take more than four times the memory of the largest rank's buffers, and a MiB.
#[must_use]
pub fn candidates(call: &Call<'_>, locality: &Locality) -> Vec<Algorithm> {
    let tried =
        |entry: &'static MethodEntry| entry.tried.iter().map(|&number| (entry.make)(number));
    let methods = TABLE.iter().flat_map(tried);
    use Operation::{Allreduce, Bcast, Exscan, Reduce, Scan};
    let is_vector = matches!(call.operation(), Bcast | Reduce | Allreduce | Scan | Exscan)
        && call.bytes().is_some_and(|len| len > SEGMENT);
    let mut all = Vec::new();
    for method in methods {
        let whole = Algorithm::new(method);
        all.push(whole);
        // Segments make pipelines of trees that move vectors.
        if is_vector && matches!(method, Method::Tree(_)) {
            all.push(whole.segmented(SEGMENT));
        }
        let (mut on_levels, levels) = (whole, locality.dividing());
        if levels.contains(&Level::Host) {
            all.push(whole.over_shared());
        }
        for level in levels {
            on_levels = on_levels.over(level, Tree::Binomial);
            all.push(on_levels);
        }
    }
    all.retain(|algorithm| {
        suits(call, locality, algorithm) && is_frugal(call, locality, algorithm)
    });
    all
}

/// The segment that candidates are cut into, in bytes.
const SEGMENT: u64 = 32 << 10;

/// An algorithm that can do a call, and how it would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternative {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The predicted time in seconds; none if there would be too many steps to play.
    pub seconds: Option<f64>,
}

/// The candidates for a sample with the predicted time of each: the quickest first, those without a prediction last.
///
/// It builds the schedules of all ranks for each candidate, unless they have more than `steps_max` steps together: with
/// direct exchanges, steps grow with the square of the ranks. A step takes about 200 bytes of memory meanwhile.
///
/// # Errors
/// As for [`build()`](crate::build()).
pub fn alternatives(
    sample: &Sample,
    locality: &Locality,
    cost: &Cost,
    steps_max: usize,
) -> Result<Vec<Alternative>, BuildError> {
    let one = |algorithm: Algorithm| {
        let schedules = sample.build_all(locality, &algorithm, steps_max)?;
        let seconds = schedules.map(|schedules| predict(&schedules, locality, cost));
        Ok(Alternative { algorithm, seconds })
    };
    let call = sample.of(0);
    let all = candidates(&call.call(), locality).into_iter().map(one);
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let time = |it: &Alternative| it.seconds.unwrap_or(f64::INFINITY);
    all.sort_by(|one, other| time(one).total_cmp(&time(other)));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::call::Reduction;
    use crate::level::Within;

    const ORDERED: Reduction = Reduction { unit: 8, commutative: false };
    const ANY_ORDER: Reduction = Reduction { unit: 8, commutative: true };

    fn calls(len: u64, of: Reduction) -> Vec<Call<'static>> {
        let in_place = false;
        vec![
            Call::Barrier,
            Call::Bcast { root: 0, len },
            Call::Gather { root: 0, len, in_place },
            Call::Scatter { root: 0, len, in_place },
            Call::Allgather { len, in_place },
            Call::Alltoall { len, in_place },
            Call::Reduce { root: 0, len, of, in_place },
            Call::Allreduce { len, of, in_place },
            Call::ReduceScatterBlock { len, of, in_place },
            Call::Scan { len, of, in_place },
            Call::Exscan { len, of, in_place },
        ]
    }

    fn localities(n: usize) -> [Locality; 3] {
        let groups = |count: usize| (0..count).map(|at| (at..n).step_by(count).collect()).collect();
        let halves = vec![(0..n / 2).collect(), (n / 2..n).collect()];
        [vec![(0..n).collect()], halves, groups(3)].map(|it| Locality::new(it).expect("all ranks"))
    }

    /// Each is for lengths and ranks that occur, chains are cut into segments, and none stands behind one of the same
    /// algorithm that takes as much.
    #[test]
    fn every_rule_is_used() {
        for (at, rule) in DEFAULT_RULES.iter().enumerate() {
            assert!(rule.bytes_max >= 32 && rule.ranks_max >= 3, "{rule:?}");
            let hides = |earlier: &&Rule| {
                earlier.operation == rule.operation
                    && earlier.algorithm == rule.algorithm
                    && earlier.ranks_max >= rule.ranks_max
                    && earlier.bytes_max >= rule.bytes_max
            };
            assert_eq!(DEFAULT_RULES[..at].iter().find(hides), None, "{rule:?}");
            let cut = rule.algorithm.method == CHAIN;
            assert!(!cut || (4 << 10..=1 << 20).contains(&rule.algorithm.segment), "{rule:?}");
        }
    }

    #[test]
    fn what_is_chosen_can_be_built() {
        for n in [1, 2, 3, 8, 33, 300] {
            for locality in localities(n) {
                for of in [ORDERED, ANY_ORDER] {
                    for len in [0, 8, 1 << 10, 32 << 10, 1 << 20, 1 << 24] {
                        for call in calls(len, of) {
                            let chosen = choose(&Table::default(), &call, &locality);
                            let built = build(n / 2, &locality, &call, &chosen);
                            assert!(built.is_ok(), "{call:?} among {n}: {chosen}");
                            let last = fallback(call.operation());
                            assert!(build(0, &locality, &call, &last).is_ok(), "{call:?}: {last}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn among_many_ranks_nothing_takes_as_many_rounds_as_there_are_ranks() {
        let many = Locality::flat(2000);
        let lens = vec![4 << 10; 2000];
        for of in [ORDERED, ANY_ORDER] {
            for len in [8, 32 << 10, 1 << 20, 1 << 30] {
                let listed = [
                    Call::Allgatherv { lens: &lens, in_place: false },
                    Call::ReduceScatter { lens: &lens, of, in_place: false },
                ];
                for call in calls(len, of).into_iter().chain(listed) {
                    let method = choose(&Table::default(), &call, &many).method;
                    // Its pieces are the blocks.
                    let long =
                        matches!(call, Call::ReduceScatterBlock { len, .. } if len > 64 << 10);
                    assert!(long || method != RING, "{call:?} by {method}");
                    assert!(method != CHAIN, "{call:?} by {method}");
                }
            }
        }
    }

    #[test]
    fn the_first_rule_that_can_do_it_holds() {
        let call = |of| Call::Allreduce { len: 64, of, in_place: false };
        let ring = rule(Operation::Allreduce, ANY, ANY_LEN, RING);
        let few = rule(Operation::Allreduce, 4, ANY_LEN, Method::Linear);
        let short = rule(Operation::Allreduce, ANY, 63, HALVING);
        let table = Table { rules: vec![short, few, ring], ..Table::default() };
        let choice = |n, of| choose(&table, &call(of), &Locality::flat(n)).method;
        assert_eq!(choice(4, ANY_ORDER), Method::Linear);
        assert_eq!(choice(5, ANY_ORDER), RING);
        // The ring does not keep the order.
        assert_eq!(choice(5, ORDERED), DOUBLING);
    }

    #[test]
    fn all_to_alls_on_levels_are_passed_over_if_they_take_much_memory() {
        let own = ["linear over shared", "linear over binomial", "linear"];
        let rules = own.map(|name| Rule {
            algorithm: name.parse().expect("an algorithm"),
            ..rule(Operation::Alltoall, ANY, ANY_LEN, RING)
        });
        let halves = |n| localities(n)[1].clone();
        let chosen = |rule: Rule, n, len| {
            let call = Call::Alltoall { len, in_place: false };
            rule_for(&Table { rules: vec![rule], ..Table::default() }, &call, &halves(n))
        };
        for rule in &rules[..2] {
            // A leader of 32 ranks takes 96 times what a rank sends. One of two takes six times that.
            assert_eq!([8, 64].map(|len| chosen(*rule, 64, len)), [Some(0); 2], "{rule:?}");
            assert_eq!([1 << 10, 1 << 20, u64::MAX].map(|len| chosen(*rule, 64, len)), [None; 3]);
            assert_eq!(chosen(*rule, 4, 1 << 30), Some(0), "{rule:?}");
        }
        assert_eq!(chosen(rules[2], 64, 1 << 20), Some(0), "without levels it takes none");
    }

    #[test]
    fn levels_are_used_where_there_are_some() {
        let call = Call::Bcast { root: 0, len: 8 };
        let within = |locality: &Locality| choose(&Table::default(), &call, locality).within;
        let [flat, halves, _] = localities(8);
        let singles = Locality::new((0..8).map(|rank| vec![rank]).collect()).expect("all ranks");
        let hosts = Within::NONE.with(Level::Host, Tree::Binomial);
        assert_eq!((within(&flat), within(&singles)), (Within::NONE, Within::NONE));
        assert_eq!(within(&halves), Within::SHARED);
        let of = ANY_ORDER;
        for call in [
            Call::Gather { root: 1, len: 8, in_place: false },
            Call::Scatter { root: 1, len: 8, in_place: false },
            Call::ReduceScatterBlock { len: 8, of, in_place: false },
        ] {
            let within = |locality: &Locality| choose(&Table::default(), &call, locality).within;
            let [_, pairs, _] = localities(4);
            assert_eq!((within(&halves), within(&pairs)), (Within::SHARED, Within::NONE));
            // By turns.
            assert_eq!(within(&localities(8)[2]), Within::NONE);
        }
        let few = Locality::new(vec![vec![0, 1], vec![2]]).expect("all ranks");
        assert_eq!(within(&few), hosts);
        let alltoall = |n, len| {
            let call = Call::Alltoall { len, in_place: true };
            choose(&Table::default(), &call, &localities(n)[1]).within
        };
        assert_eq!(
            [(4, 256), (8, 256), (32, 32)].map(|(n, len)| alltoall(n, len)),
            [Within::SHARED; 3]
        );
        assert_eq!([(3, 8), (8, 257), (34, 8)].map(|(n, len)| alltoall(n, len)), [Within::NONE; 3]);
        let gather = Call::Allgather { len: 8, in_place: false };
        let proposed = |locality: &Locality| {
            let all = candidates(&gather, locality);
            all.into_iter().map(|it| it.within).collect::<std::collections::HashSet<_>>()
        };
        assert_eq!(proposed(&singles), [Within::NONE].into());
        assert_eq!(proposed(&halves), [Within::NONE, Within::SHARED, hosts].into());
        let pairs = (0..4).map(|pair| vec![2 * pair, 2 * pair + 1]).collect::<Vec<_>>();
        let nodes = |it: Locality| it.with(Level::Numa, pairs.clone()).expect("parts of hosts");
        let both = hosts.with(Level::Numa, Tree::Binomial);
        let two = halves.clone();
        assert_eq!(proposed(&nodes(halves)), [Within::NONE, Within::SHARED, hosts, both].into());
        let inside = Within::NONE.with(Level::Numa, Tree::Binomial);
        assert_eq!(proposed(&nodes(flat.clone())), [Within::NONE, inside].into());
        // The built-in rules know levels between hosts only.
        assert_eq!((within(&nodes(two)), within(&nodes(flat))), (Within::SHARED, Within::NONE));
    }

    #[test]
    fn every_operation_has_alternatives_and_long_reductions_are_cut() {
        let flat = |n| Locality::flat(n);
        for operation in Operation::ALL {
            let sample = Sample::new(operation, 12, 0, 64 << 10).expect("a sample");
            let all =
                alternatives(&sample, &flat(12), &Cost::TYPICAL, usize::MAX).expect("schedules");
            use Operation::{Gatherv, NeighborAllgather, NeighborAlltoall, Scatterv};
            let alone =
                matches!(operation, Gatherv | Scatterv | NeighborAllgather | NeighborAlltoall);
            assert!(all.len() >= if alone { 1 } else { 2 }, "{operation}");
            let times: Vec<_> = all.iter().map(|it| it.seconds.expect("it was played")).collect();
            assert!(times.iter().all(|time| time.is_finite() && *time > 0.0), "{operation}");
            assert!(times.is_sorted(), "{operation}");
        }
        let long = Sample::new(Operation::Allreduce, 16, 0, 1 << 20).expect("a sample");
        let all = alternatives(&long, &flat(16), &Cost::TYPICAL, 2000).expect("schedules");
        let at = |method| all.iter().position(|it| it.algorithm == Algorithm::new(method));
        assert!(at(HALVING) < at(DOUBLING) && at(RING) < at(BINOMIAL), "{all:?}");
        // What would take too many steps is listed, and not played.
        let played = |few: usize| {
            let all = alternatives(&long, &flat(16), &Cost::TYPICAL, few).expect("schedules");
            all.iter().filter(|it| it.seconds.is_some()).count()
        };
        assert!(played(500) < all.len() && played(0) == 0);
    }
}
