//! Which engines of OpenCL contexts are given up, so that a program that makes contexts again and again does not fill
//! the memory with what is kept for them.
//!
//! Contexts are bounded, and queues of one context; those that were used least recently go first. What was given up is
//! made again when a message next needs it. A context counts once, whatever devices and queues it has; with a bound of
//! one this is the cache of Aji et al. 2012, §III.C.

use super::Which;

/// Queues of one context whose engines are kept.
const QUEUES: usize = 16;

impl Which {
    /// The context of an OpenCL space.
    pub(super) fn context(self) -> Option<u64> {
        match self {
            Which::OpenCl { context, .. } => Some(context),
            #[cfg(feature = "cuda")]
            Which::Cuda { .. } => None,
        }
    }
}

/// Those to be given up so that at most `bound` contexts are left; `all` with the time of each one's last use.
pub(super) fn surplus(all: &[(Which, u64)], bound: usize) -> Vec<Which> {
    let mut by_use: Vec<_> =
        all.iter().filter_map(|&(which, used)| Some((used, which.context()?, which))).collect();
    by_use.sort_unstable_by_key(|&(used, ..)| std::cmp::Reverse(used));
    // From the most recent on: the contexts that are kept, each with its number of queues.
    let mut kept: Vec<(u64, usize)> = Vec::new();
    let mut gone = Vec::new();
    for (_, context, which) in by_use {
        match kept.iter().position(|(known, _)| *known == context) {
            Some(at) if kept[at].1 < QUEUES => kept[at].1 += 1,
            None if kept.len() < bound.max(1) => kept.push((context, 1)),
            _ => gone.push(which),
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(context: u64, queue: u64) -> Which {
        Which::OpenCl { context, device: 9, queue: Some(queue).filter(|&queue| queue != 0) }
    }

    #[test]
    fn contexts_that_were_used_least_recently_go_with_all_their_queues() {
        let all = [(of(1, 0), 7), (of(2, 0), 1), (of(3, 0), 5), (of(2, 4), 6)];
        for (bound, gone) in [
            (0, &[of(2, 4), of(3, 0), of(2, 0)][..]),
            (1, &[of(2, 4), of(3, 0), of(2, 0)]),
            (2, &[of(3, 0)]),
            (3, &[]),
        ] {
            assert_eq!(surplus(&all, bound), gone, "{bound} contexts");
        }
        assert_eq!(surplus(&[], 1), []);
    }

    #[test]
    fn queues_of_one_context_are_bounded() {
        let used = QUEUES as u64 + 3;
        let all: Vec<_> = (1..=used).map(|queue| (of(1, queue), used - queue)).collect();
        assert_eq!(surplus(&all, 8), [of(1, used - 2), of(1, used - 1), of(1, used)]);
    }

    #[test]
    #[cfg(feature = "cuda")]
    fn cuda_devices_stay() {
        let cuda = |ordinal| (Which::Cuda { ordinal }, 0);
        let all = [cuda(0), (of(1, 0), 1), cuda(1), (of(2, 0), 2)];
        assert_eq!(surplus(&all, 1), [of(1, 0)]);
    }
}
