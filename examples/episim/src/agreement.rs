//! Whether all ranks simulate the same epidemic in the same way. Kernels write at indices that other ranks have
//! computed: these are inside the memory only then.

use crate::Failure;
use crate::options::Options;
use crate::population::Synthetic;
use gapless::{Communicator, InPlace, ReduceOp};
use std::fmt;

/// Why a rank does not simulate, though it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ranks do not all have the same of this option.
    Differ(&'static str),
    /// Another rank cannot simulate; its own error says why.
    Elsewhere,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Differ(option) => write!(f, "the ranks' options differ in {option}"),
            Refused::Elsewhere => write!(f, "another rank cannot simulate: its error says why"),
        }
    }
}

impl std::error::Error for Refused {}

/// Words that ranks compare: each option and its complement, and whether a rank has failed.
type Words = [u64; 2 * OPTIONS + 1];

/// Options that all ranks must have the same.
const OPTIONS: usize = 12;

fn named(options: &Options) -> [(&'static str, u64); OPTIONS] {
    let Synthetic { persons, locations, visits, household, tail, transmissibility, .. } =
        options.population.synthetic;
    let Synthetic { infected, days, .. } = options.population.synthetic;
    [
        ("persons", persons.into()),
        ("locations", locations.into()),
        ("visits", visits.into()),
        ("household", household.into()),
        ("tail", tail.into()),
        ("transmissibility", transmissibility.into()),
        ("infected", infected.into()),
        ("days", days.into()),
        ("seed", options.population.seed),
        ("the way of moving visits", options.scheme as u64),
        ("the kind of device", options.device as u64),
        ("where visits are computed", options.visits_there.into()),
    ]
}

/// What a rank says.
fn words(options: &Options, failed: bool) -> Words {
    let mut words = [u64::from(failed); 2 * OPTIONS + 1];
    for (pair, (_, word)) in words.as_chunks_mut().0.iter_mut().zip(named(options)) {
        *pair = [word, !word];
    }
    words
}

/// What follows from the greatest of all ranks' words.
fn judge(options: &Options, greatest: &Words) -> Result<(), Refused> {
    let pairs = greatest.as_chunks().0.iter().zip(named(options));
    // The complement of the greatest complement is the least.
    let mut differ = pairs.filter(|([most, least], _)| *most != !*least);
    match differ.next() {
        Some((_, (name, _))) => Err(Refused::Differ(name)),
        None if greatest[2 * OPTIONS] != 0 => Err(Refused::Elsewhere),
        None => Ok(()),
    }
}

/// Compares the options of all ranks, each of which says whether it has failed. All call this, and all get an error, or
/// none does.
///
/// # Errors
/// [`Refused`]; a process is lost.
pub(crate) fn agree(comm: &Communicator, options: &Options, failed: bool) -> Result<(), Failure> {
    let mut greatest = words(options, failed);
    comm.allreduce(InPlace, &mut greatest, ReduceOp::Max)?;
    Ok(judge(options, &greatest)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceKind, Scheme};

    /// What two ranks come to, of which the second may have failed.
    fn of_two(one: &Options, other: &Options, failed: bool) -> Result<(), Refused> {
        let (mut greatest, others) = (words(one, false), words(other, failed));
        for (word, other) in greatest.iter_mut().zip(others) {
            *word = (*word).max(other);
        }
        assert_eq!(judge(one, &greatest), judge(other, &greatest));
        judge(one, &greatest)
    }

    #[test]
    fn each_option_that_differs_is_named() {
        type Change = fn(&mut Options);
        let alike = Options::default();
        assert_eq!(of_two(&alike, &alike, false), Ok(()));
        assert_eq!(of_two(&alike, &alike, true), Err(Refused::Elsewhere));
        let others: [(&str, Change); OPTIONS] = [
            ("persons", |it| it.population.synthetic.persons += 1),
            ("locations", |it| it.population.synthetic.locations -= 1),
            ("visits", |it| it.population.synthetic.visits += 1),
            ("household", |it| it.population.synthetic.household -= 1),
            ("tail", |it| it.population.synthetic.tail += 1),
            ("transmissibility", |it| it.population.synthetic.transmissibility = 0),
            ("infected", |it| it.population.synthetic.infected = u32::MAX),
            ("days", |it| it.population.synthetic.days += 1),
            ("seed", |it| it.population.seed = u64::MAX),
            ("the way of moving visits", |it| it.scheme = Scheme::Basic),
            ("the kind of device", |it| it.device = DeviceKind::OpenCl),
            ("where visits are computed", |it| it.visits_there = true),
        ];
        for (name, change) in others {
            let mut other = alike.clone();
            change(&mut other);
            for failed in [false, true] {
                assert_eq!(of_two(&alike, &other, failed), Err(Refused::Differ(name)));
                assert_eq!(of_two(&other, &alike, failed), Err(Refused::Differ(name)));
            }
        }
        let differ = Refused::Differ("seed").to_string();
        assert_eq!(differ, "the ranks' options differ in seed");
    }
}
