//! Operations that combine.
use super::*;

/// Units of elements: bytes, and longer ones, which must not be cut.
fn lens(n: usize) -> Vec<(u64, u64)> {
    let few = n <= 12;
    let n = n as u64;
    if few {
        return vec![(0, 1), (1, 1), (n - 1, 1), (n + 1, 1), (3 * (2 * n + 1), 3)];
    }
    vec![(n - 1, 1), (3 * (n + 1), 3)]
}

fn prove_all(
    n: usize,
    operation: Operation,
    call: &dyn Fn(u64, Reduction, bool) -> Vec<Call<'static>>,
) {
    for commutative in [false, true] {
        for in_place in in_place(n) {
            for (len, unit) in lens(n) {
                let calls = call(len, sum(unit, commutative), in_place);
                check(
                    &Locality::flat(n),
                    &calls,
                    &algorithms(operation, commutative, 2 * unit, n),
                    1,
                );
            }
        }
    }
}

fn prove_on_levels(
    n: usize,
    operation: Operation,
    call: &dyn Fn(u64, Reduction, bool) -> Vec<Call<'static>>,
) {
    for commutative in [false, true] {
        let calls = call(3 * 7, sum(3, commutative), n.is_multiple_of(2));
        for (locality, all) in on_levels(operation, commutative, 6, n) {
            check(&locality, &calls, &all, 1);
        }
    }
}

#[test]
fn reduce() {
    for n in 1..=RANKS_MAX {
        for root in roots(n) {
            prove_all(n, Operation::Reduce, &|len, of, in_place| {
                vec![Call::Reduce { root, len, of, in_place }; n]
            });
        }
    }
}

#[test]
fn reduce_on_levels() {
    for n in 1..=RANKS_MAX {
        for root in roots(n) {
            prove_on_levels(n, Operation::Reduce, &|len, of, in_place| {
                vec![Call::Reduce { root, len, of, in_place }; n]
            });
        }
    }
}

#[test]
fn allreduce() {
    for n in 1..=RANKS_MAX {
        let call = |len, of, in_place| vec![Call::Allreduce { len, of, in_place }; n];
        prove_all(n, Operation::Allreduce, &call);
        prove_on_levels(n, Operation::Allreduce, &call);
    }
}

#[test]
fn an_allreduce_gives_all_ranks_the_same_bits() {
    use crate::prove::prove_same_bits;
    for n in 1..=RANKS_MAX {
        let call = Call::Allreduce { len: n as u64 + 1, of: sum(1, true), in_place: false };
        let calls = vec![call; n];
        let one = algorithms(Operation::Allreduce, true, 0, n).into_iter();
        let one = one.map(|algorithm| (Locality::flat(n), algorithm));
        let levels = on_levels(Operation::Allreduce, true, 0, n).into_iter();
        let levels = levels.flat_map(|(locality, all)| {
            all.into_iter().map(move |algorithm| (locality.clone(), algorithm))
        });
        for (locality, algorithm) in one.chain(levels) {
            let schedules = schedules(&locality, &calls, &algorithm);
            let verdict = prove_same_bits(&schedules, &Definition::new(&calls, 1));
            assert_eq!(verdict, Ok(()), "{algorithm} among {n}");
        }
    }
}

#[test]
fn scans() {
    for n in 1..=RANKS_MAX {
        prove_all(n, Operation::Scan, &|len, of, in_place| {
            vec![Call::Scan { len, of, in_place }; n]
        });
        prove_all(n, Operation::Exscan, &|len, of, in_place| {
            vec![Call::Exscan { len, of, in_place }; n]
        });
    }
}

#[test]
fn reduce_scatter_on_levels() {
    for n in 1..=RANKS_MAX {
        let all = [false, true].into_iter();
        // Beyond some ranks by turns, to save time.
        for commutative in all.filter(|it| n <= 12 || n.is_multiple_of(2) == *it) {
            let (of, in_place) = (sum(3, commutative), n.is_multiple_of(4));
            let calls = vec![Call::ReduceScatterBlock { len: 3, of, in_place }; n];
            for (locality, all) in on_levels(Operation::ReduceScatterBlock, commutative, 0, n) {
                check(&locality, &calls, &all, 1);
            }
        }
    }
}

#[test]
fn reduce_scatters() {
    for n in 1..=RANKS_MAX {
        for commutative in [false, true] {
            for in_place in in_place(n) {
                for (len, grain, unit) in [(0, 1, 1), (1, 1, 1), (6, 1, 3), (LONG, LONG, LONG)] {
                    let of = sum(unit, commutative);
                    let calls = vec![Call::ReduceScatterBlock { len, of, in_place }; n];
                    check(
                        &Locality::flat(n),
                        &calls,
                        &algorithms(Operation::ReduceScatterBlock, commutative, unit, n),
                        grain,
                    );
                }
                for unit in [1, LONG] {
                    let lens = uneven(n, unit);
                    let of = sum(unit, commutative);
                    let calls = vec![Call::ReduceScatter { lens: &lens, of, in_place }; n];
                    check(
                        &Locality::flat(n),
                        &calls,
                        &algorithms(Operation::ReduceScatter, commutative, 2 * unit, n),
                        unit,
                    );
                }
            }
        }
    }
}
