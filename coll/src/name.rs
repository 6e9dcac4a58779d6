//! Operations and algorithms by name: what people write, and what they read.
//!
//! ```
//! use gapless_coll::{Algorithm, Operation};
//! let algorithm: Algorithm = "chain in 64K over binomial".parse()?;
//! assert_eq!(algorithm.segment, 64 << 10);
//! assert_eq!(algorithm.to_string(), "chain in 64K over binomial");
//! let levels: Algorithm = "ring over 4-nomial over flat".parse()?;
//! assert_eq!(levels.to_string(), "ring over 4-nomial over socket flat");
//! let error = "all_reduce".parse::<Operation>().expect_err("its name is another");
//! assert_eq!(error.to_string(), "there is no operation \"all_reduce\"; did you mean allreduce?");
//! # Ok::<(), gapless_coll::NameError>(())
//! ```
use std::fmt;
use std::str::FromStr;

use crate::Level;
use crate::algorithm::{Algorithm, Exchange, Method, TABLE};
use crate::level::Within;
use crate::operation::Operation;
use crate::tree::Tree;

/// The names of the methods; `N` stands for a number.
pub const METHODS: [&str; TABLE.len()] = {
    let mut names = [""; TABLE.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = TABLE[at].name;
        at += 1;
    }
    names
};

/// What ranks of a host have in the place of a tree, if they share memory.
const SHARED: &str = "shared";

/// Why a text names no operation, method or algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is no such operation.
    #[error("there is no operation {given:?}{}", meant(*near, &Operation::ALL.map(Operation::name)))]
    Operation {
        /// What was given, shortened.
        given: String,
        /// What was meant, if it looks like a name.
        near: Option<&'static str>,
    },
    /// There is no such method.
    #[error("there is no method {given:?}{}", meant(*near, &METHODS))]
    Method {
        /// What was given, shortened.
        given: String,
        /// What was meant, if it looks like a name.
        near: Option<&'static str>,
    },
    /// What stands behind `over` is no tree.
    #[error("{given:?} is no tree: groups are joined {}; those of hosts also {SHARED}", trees())]
    Tree {
        /// What was given, shortened.
        given: String,
    },
    /// What stands behind `in` is no length.
    #[error("{given:?} is no length of a segment: a number of bytes, or of K or M, above 0")]
    Segment {
        /// What was given, shortened.
        given: String,
    },
    /// Levels that are not named from the coarsest on, or too many.
    #[error("in {given:?} levels are not named from the coarsest on: {}", Level::ALL.map(Level::name).join(", "))]
    Level {
        /// What was given, shortened.
        given: String,
    },
    /// Something else than `METHOD [in LENGTH] [over [LEVEL] TREE]…`.
    #[error(
        "{given:?} is no algorithm: METHOD, in LENGTH if in segments, over TREE for each level"
    )]
    Algorithm {
        /// What was given, shortened.
        given: String,
    },
}

/// The names of the methods that are trees.
fn trees() -> String {
    let trees = TABLE.iter().filter(|entry| matches!((entry.make)(2), Method::Tree(_)));
    trees.map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn meant(near: Option<&str>, all: &[&str]) -> String {
    match near {
        Some(near) => format!("; did you mean {near}?"),
        None => format!("; there are {}", all.join(", ")),
    }
}

/// A foreign text, short enough for an error.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The name that a text looks like: few letters differ, whatever the case and the signs between them.
fn near(text: &str, names: &[&'static str]) -> Option<&'static str> {
    let plain = |text: &str| -> Vec<char> {
        let letters = text.chars().filter(char::is_ascii_alphanumeric).take(64);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let given = plain(text.strip_prefix("MPI_").unwrap_or(text));
    let far = |name: &str| {
        let name = plain(name);
        // Of names that are equally far, one with as many letters.
        (changes(&given, &name), given.len().abs_diff(name.len()))
    };
    let name = names.iter().copied().min_by_key(|name| far(name))?;
    (far(name).0 <= given.len() / 4).then_some(name)
}

/// How many letters must be changed, added or left out to make one text the other.
fn changes(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut before = row[0];
        row[0] = at + 1;
        for (index, wanted) in other.iter().enumerate() {
            let changed = before + usize::from(letter != wanted);
            before = row[index + 1];
            row[index + 1] = changed.min(before + 1).min(row[index] + 1);
        }
    }
    row[other.len()]
}

impl FromStr for Operation {
    type Err = NameError;

    /// The operation of a name: that of MPI without the prefix, in lower case.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let unknown = || NameError::Operation {
            given: shown(text),
            near: near(text, &Self::ALL.map(Self::name)),
        };
        Self::ALL.into_iter().find(|it| it.name() == text).ok_or_else(unknown)
    }
}

impl FromStr for Algorithm {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut words = text.split_whitespace();
        let method = words.next().ok_or(NameError::Algorithm { given: String::new() })?;
        let mut algorithm = Self::new(method.parse()?);
        let mut word = words.next();
        if word == Some("in") {
            let len = words.next().unwrap_or_default();
            let wrong = || NameError::Segment { given: shown(len) };
            algorithm.segment = bytes(len).filter(|len| *len > 0).ok_or_else(wrong)?;
            word = words.next();
        }
        let mut next = Some(Level::Host);
        while word == Some("over") {
            let mut name = words.next().unwrap_or_default();
            let named = Level::ALL.into_iter().find(|level| level.name() == name);
            if named.is_some() {
                name = words.next().unwrap_or_default();
            }
            let is_shared = name == SHARED;
            let tree = if is_shared { Some(Tree::Binomial) } else { Tree::named(name) };
            let tree = tree.ok_or_else(|| NameError::Tree { given: shown(name) })?;
            let level = next.map(|next| named.unwrap_or(next)).filter(|level| Some(*level) >= next);
            let level = level.ok_or_else(|| NameError::Level { given: shown(text) })?;
            algorithm = match (is_shared, level) {
                (true, Level::Host) => algorithm.over_shared(),
                (true, _) => return Err(NameError::Tree { given: shown(name) }),
                (false, _) => algorithm.over(level, tree),
            };
            (next, word) = (level.finer(), words.next());
        }
        match word {
            None => Ok(algorithm),
            Some(_) => Err(NameError::Algorithm { given: shown(text) }),
        }
    }
}

/// Bytes, with K or M for powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    number::<u64>(digits)?.checked_mul(unit)
}

/// Digits only: no sign.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

impl FromStr for Method {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let found = TABLE.iter().find_map(|entry| match entry.name.split_once('N') {
            None => (text == entry.name).then(|| (entry.make)(0)),
            Some((before, after)) => {
                let digits = text.strip_prefix(before)?.strip_suffix(after)?;
                Some((entry.make)(number(digits)?))
            }
        });
        found
            .filter(|method| method.is_sound())
            .ok_or_else(|| NameError::Method { given: shown(text), near: near(text, &METHODS) })
    }
}

impl Tree {
    /// The tree of a name.
    fn named(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(Method::Tree(tree)) => Some(tree),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.method)?;
        match self.segment {
            0 => {}
            len if len.is_multiple_of(1 << 20) => write!(f, " in {}M", len >> 20)?,
            len if len.is_multiple_of(1 << 10) => write!(f, " in {}K", len >> 10)?,
            len => write!(f, " in {len}")?,
        }
        self.within.fmt(f)
    }
}

/// ` over binomial over numa flat`, ` over shared`; nothing without levels.
impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.levels().try_for_each(|(level, tree)| match level {
            Level::Host if self.is_shared() => write!(f, " over {SHARED}"),
            Level::Host => write!(f, " over {tree}"),
            finer => write!(f, " over {finer} {tree}"),
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        let entry = TABLE.iter().find(|entry| (entry.make)(number) == *self);
        let name = entry.map_or("", |entry| entry.name);
        match name.split_once('N') {
            None => f.write_str(name),
            Some((before, after)) => write!(f, "{before}{number}{after}"),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Method::Tree(*self).fmt(f)
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Method::Exchange(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, Reduction};
    use crate::choose;
    use crate::locality::Locality;

    /// Whatever can be chosen or tried has a name, and the name is read as what it was.
    #[test]
    fn names_are_read_as_what_was_written() {
        let halves = Locality::new(vec![(0..8).collect(), (8..16).collect()]).expect("all ranks");
        let of = Reduction { unit: 8, commutative: true };
        let (len, in_place) = (1 << 20, false);
        let mut all: Vec<_> = choose::DEFAULT_RULES.iter().map(|rule| rule.algorithm).collect();
        for call in [
            Call::Allreduce { len, of, in_place },
            Call::Alltoall { len, in_place },
            Call::Bcast { root: 0, len },
        ] {
            all.extend(choose::candidates(&call, &halves));
        }
        all.extend([
            Algorithm::new(Method::Pairwise(7)).segmented(1000).over(Level::Host, Tree::Chain),
            Algorithm::new(Method::Linear)
                .over(Level::Host, Tree::Flat)
                .over(Level::L3, Tree::KNomial(3)),
            Algorithm::new(Method::Linear)
                .over(Level::Numa, Tree::Flat)
                .over(Level::L3, Tree::KNomial(3)),
            Algorithm::new(Method::Tree(Tree::KNomial(2))).segmented(3 << 20),
            Algorithm::new(Method::Doubling).over_shared(),
            Algorithm::new(Method::Xtq).segmented(64 << 10),
        ]);
        assert!(all.len() > 100);
        for algorithm in all {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm), "{algorithm}");
        }
        let written = |text: &str| text.parse::<Algorithm>().map(|it| it.to_string());
        for (text, same) in [
            ("ring over host flat", "ring over flat"),
            (
                "ring over flat over flat over flat over flat",
                "ring over flat over socket flat over numa flat over l3 flat",
            ),
            ("ring over socket flat over chain", "ring over socket flat over numa chain"),
        ] {
            assert_eq!(written(text), Ok(same.to_owned()));
        }
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
        }
    }

    #[test]
    fn names_that_are_nobodys_say_what_was_meant() {
        let operation = |text: &str| text.parse::<Operation>().expect_err(text).to_string();
        for (text, near) in [
            ("MPI_Allreduce", "allreduce"),
            ("all-reduce", "allreduce"),
            ("alltoallw", "alltoallv"),
            ("reduce_scater", "reduce_scatter"),
        ] {
            let error = operation(text);
            assert!(error.ends_with(&format!("did you mean {near}?")), "{error}");
        }
        assert!(operation("pingpong").contains("there are barrier, bcast, gather"));
        assert!(operation(&"x".repeat(1000)).len() < 400);
        let algorithm = |text: &str| text.parse::<Algorithm>().expect_err(text).to_string();
        for (text, part) in [
            ("", "no algorithm"),
            ("rings", "did you mean ring?"),
            ("spiral", "there are linear, pairwise-N"),
            ("pat-0", "did you mean pat-N?"),
            ("1-nomial", "did you mean N-nomial?"),
            ("+4-nomial", "did you mean N-nomial?"),
            ("chain in", "no length of a segment"),
            ("chain in 0", "no length of a segment"),
            ("chain in 99999999999999999999K", "no length of a segment"),
            ("ring over ring", "no tree"),
            ("ring over", "no tree"),
            ("ring in 4K over flat twice", "no algorithm"),
            ("chain over flat in 4K", "no algorithm"),
            ("chain over numa", "no tree"),
            (
                "chain over numa flat over socket flat",
                "from the coarsest on: host, socket, numa, l3",
            ),
            ("chain over numa flat over numa flat", "from the coarsest on"),
            ("chain over l3 flat over flat", "from the coarsest on"),
            ("chain over numa shared", "those of hosts also shared"),
            ("chain over flat over shared", "those of hosts also shared"),
            ("chain over flat over flat over flat over flat over flat", "from the coarsest on"),
        ] {
            let error = algorithm(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
