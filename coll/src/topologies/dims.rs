//! Balanced grids (`MPI_Dims_create`, MPI 4.1 §8.5.2).

use super::TopologyError;

/// The sides of a grid of `processes` places: entries of `dims` that are 0 are chosen, others stay.
///
/// Chosen sides are as close to each other as possible: the difference between the largest and the smallest is the
/// least; among those, the largest is the least, then the next. They stand in non-increasing order.
///
/// # Errors
/// [`TopologyError::NoProcesses`]; [`TopologyError::NotDivisible`] where the sides that are given do not divide
/// the number of processes, or where none is left to choose and they do not make it up.
///
/// ```
/// # use gapless_coll::topologies::dims_create;
/// assert_eq!(dims_create(12, &[0, 0])?, [4, 3]);
/// assert_eq!(dims_create(6, &[0, 3, 0])?, [2, 3, 1]);
/// assert!(dims_create(7, &[0, 3, 0]).is_err());
/// # Ok::<(), gapless_coll::topologies::TopologyError>(())
/// ```
pub fn dims_create(processes: u32, dims: &[u32]) -> Result<Vec<u32>, TopologyError> {
    if processes == 0 {
        return Err(TopologyError::NoProcesses);
    }
    let fixed = dims.iter().filter(|side| **side > 0);
    let given = fixed.fold(1, |product: u64, side| product.saturating_mul(u64::from(*side)));
    let free = dims.iter().filter(|side| **side == 0).count();
    let rest = u32::try_from(given).ok().filter(|given| processes.is_multiple_of(*given));
    let rest = rest.map(|given| processes / given).filter(|rest| free > 0 || *rest == 1);
    let rest = rest.ok_or(TopologyError::NotDivisible { processes, given })?;
    // A number of 32 bits has no more factors than that: the other sides are 1.
    let mut chosen = balanced(rest, free.min(32)).into_iter();
    let fill = |side: &u32| if *side == 0 { chosen.next().unwrap_or(1) } else { *side };
    Ok(dims.iter().map(fill).collect())
}

/// `n` as a product of `k` numbers, as [`dims_create`] says.
fn balanced(n: u32, k: usize) -> Vec<u32> {
    let mut search = Search { divisors: divisors(n), current: Vec::with_capacity(k), best: None };
    search.descend(n, k);
    search.best.unwrap_or_default()
}

/// All divisors of `n`, in order.
fn divisors(n: u32) -> Vec<u32> {
    let small = (1..=n.isqrt()).filter(|divisor| n.is_multiple_of(*divisor));
    let small: Vec<u32> = small.collect();
    let large = small.iter().rev().map(|divisor| n / divisor).filter(|large| *large > n.isqrt());
    let large: Vec<u32> = large.collect();
    [small, large].concat()
}

/// Tries factors from the largest side to the smallest, close ones first.
struct Search {
    divisors: Vec<u32>,
    current: Vec<u32>,
    best: Option<Vec<u32>>,
}

impl Search {
    /// Extends the sides chosen so far by `k` more whose product is `n`.
    fn descend(&mut self, n: u32, k: usize) {
        if k == 0 {
            if n == 1 && self.is_better() {
                self.best = Some(self.current.clone());
            }
            return;
        }
        let most = self.current.last().copied().unwrap_or(n);
        for at in 0..self.divisors.len() {
            let side = self.divisors[at];
            if side > most || side > n {
                break;
            }
            // The others are no larger, so this one has to be large enough for all.
            if !n.is_multiple_of(side) || !reaches(side, k, n) {
                continue;
            }
            // They are at most as large on average as the rest allows: the difference cannot be less than this.
            let first = self.current.first().copied().unwrap_or(side);
            let smallest = root(n / side, k - 1).min(side);
            if self.difference().is_some_and(|best| first - smallest > best) {
                if self.current.is_empty() {
                    break;
                }
                continue;
            }
            self.current.push(side);
            self.descend(n / side, k - 1);
            self.current.pop();
        }
    }

    /// Largest minus smallest of the best so far.
    fn difference(&self) -> Option<u32> {
        let best = self.best.as_ref()?;
        Some(best.first()? - best.last()?)
    }

    fn is_better(&self) -> bool {
        let key = |sides: &Vec<u32>| {
            (sides.first().zip(sides.last()).map(|(first, last)| first - last), sides.clone())
        };
        self.best.as_ref().is_none_or(|best| key(&self.current) < key(best))
    }
}

/// Whether `side` to the power of `k` is at least `n`.
fn reaches(side: u32, k: usize, n: u32) -> bool {
    let mut power = 1u64;
    for _ in 0..k {
        power = power.saturating_mul(u64::from(side));
        if power >= u64::from(n) {
            return true;
        }
        if side <= 1 {
            break;
        }
    }
    power >= u64::from(n)
}

/// The largest number whose power `k` is at most `n`; `u32::MAX` for no power at all.
fn root(n: u32, k: usize) -> u32 {
    match k {
        0 => u32::MAX,
        1 => n,
        _ => {
            // 2 to the power of 32 is more than any `n`.
            let (mut low, mut high) = (1u32, n.isqrt() + 1);
            while high - low > 1 {
                let middle = low.midpoint(high);
                let exceeds = (1..=k)
                    .try_fold(1u64, |power, _| {
                        let power = power.saturating_mul(u64::from(middle));
                        (power <= u64::from(n)).then_some(power)
                    })
                    .is_none();
                if exceeds {
                    high = middle;
                } else {
                    low = middle;
                }
            }
            low
        }
    }
}
