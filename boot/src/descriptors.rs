//! The limit of open files (`ulimit -n`): raised as far as is wanted and allowed, and checked before files are opened.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than a program has open that uses no other library.
const OWN: u64 = 16;

/// Open files of this process for each link to a peer.
const A_LINK: u64 = 2;

/// What a process of a job of `size` needs at least: its links of the start, to ranks at distances of powers of two.
pub fn least(size: u32) -> u64 {
    let distances = u64::from(size.next_power_of_two().trailing_zeros());
    OWN + A_LINK * u64::from(size.saturating_sub(1)).min(2 * distances)
}

/// What it needs at most: a link to each other process.
pub fn most(size: u32) -> u64 {
    OWN + A_LINK * u64::from(size)
}

/// Raises the soft limit to `wanted`, or as far as the hard one lets it. Gives the limit that holds then, if that is
/// less than `needed`.
pub fn raise(wanted: u64, needed: u64) -> Result<(), u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(mut now) = current else { return Ok(()) };
    let allowed = maximum.map_or(wanted, |most| most.min(wanted));
    if now < allowed {
        let raised = Rlimit { current: Some(allowed), maximum };
        now = setrlimit(Resource::Nofile, raised).map_or(now, |()| allowed);
    }
    if now < needed { Err(now) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_needs_more_the_larger_it_is() {
        assert_eq!([0, 1, 2, 3, 4, 500].map(least), [16, 16, 18, 20, 22, 52]);
        assert!((1..100_000).all(|size| least(size) <= most(size) && most(size) > u64::from(size)));
    }

    #[test]
    fn a_limit_that_is_high_enough_is_left_alone() {
        let before = getrlimit(Resource::Nofile);
        assert_eq!(raise(1, 1), Ok(()));
        assert_eq!(getrlimit(Resource::Nofile), before);
        if let Some(hard) = before.maximum {
            assert!(raise(1, hard + 1).is_err_and(|limit| limit <= hard));
        }
    }
}
