//! How long the accumulates of a replay are: lengths, and how many accumulates have each. What the paper shows of its
//! application is a picture; of a user's, the profile of a window ([`gapless::WindowProfile::accumulations`]) has the
//! numbers.

use std::fmt;
use std::str::FromStr;

use gapless_report::Bytes;

use crate::random::Random;

/// The longest accumulate, in bytes: a rank's part of the window.
pub(super) const BYTES_MAX: u64 = 64 << 10;
/// What the window is made of, in bytes.
const ELEMENT: u64 = 8;

/// Lengths in bytes, and how many accumulates have each; no number is 0. As text: `64:6,128:8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mix(Vec<(u64, u64)>);

/// Why something is no mix.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MixError {
    #[error("«{0}» is no BYTES:COUNT")]
    Pair(String),
    #[error("{0} B: accumulates have {ELEMENT} to {BYTES_MAX} B, a multiple of {ELEMENT}")]
    Length(u64),
    #[error("no accumulates of {0} B")]
    None(u64),
    #[error("too many accumulates")]
    Many,
}

impl Default for Mix {
    /// Ours: small to medium.
    fn default() -> Mix {
        let shares = [6, 8, 12, 14, 16, 14, 12, 9, 5, 3, 1];
        Mix(shares.iter().enumerate().map(|(at, share)| (64 << at, *share)).collect())
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Mix, MixError> {
        let pair = |text: &str| -> Result<(u64, u64), MixError> {
            let numbers = text.split_once(':').and_then(|(bytes, count)| Some((bytes.parse().ok()?, count.parse().ok()?)));
            let (bytes, count): (u64, u64) = numbers.ok_or_else(|| MixError::Pair(text.to_owned()))?;
            match (bytes, count) {
                _ if bytes == 0 || bytes > BYTES_MAX || !bytes.is_multiple_of(ELEMENT) => Err(MixError::Length(bytes)),
                (_, 0) => Err(MixError::None(bytes)),
                // So many that a sum of all, times a length, fits.
                _ if count > u64::from(u32::MAX) => Err(MixError::Many),
                pair => Ok(pair),
            }
        };
        let pairs: Vec<_> = text.split(',').map(pair).collect::<Result<_, _>>()?;
        let total = pairs.iter().map(|(_, count)| *count).sum::<u64>();
        if total > u64::from(u32::MAX) { Err(MixError::Many) } else { Ok(Mix(pairs)) }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(bytes, count)| format!("{bytes}:{count}")).collect();
        f.write_str(&pairs.join(","))
    }
}

impl Mix {
    /// Lengths in bytes, and how many accumulates have each.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// How many accumulates there are.
    pub(super) fn total(&self) -> u64 {
        self.pairs().map(|(_, count)| count).sum()
    }

    /// Bytes of an accumulate, on the mean.
    pub(super) fn mean_bytes(&self) -> u64 {
        self.pairs().map(|(bytes, count)| bytes * count).sum::<u64>() / self.total()
    }

    /// The elements of one that chance has chosen.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let mut place = random.below(self.total());
        let of = self.pairs().find(|(_, count)| match place.checked_sub(*count) {
            Some(rest) => {
                place = rest;
                false
            }
            None => true,
        });
        usize::try_from(of.map_or(ELEMENT, |(bytes, _)| bytes) / ELEMENT).unwrap_or(1)
    }

    /// For people: lengths with units.
    pub(super) fn shown(&self) -> String {
        let pairs: Vec<String> = self.pairs().map(|(bytes, count)| format!("{} {count}", Bytes(bytes))).collect();
        let of = if self.total() == 100 { "of a hundred".to_owned() } else { format!("of {}", self.total()) };
        format!("Lengths, and how many {of}: {}.", pairs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_survives_the_way_to_a_process() {
        let ours = Mix::default();
        assert_eq!((ours.total(), ours.pairs().map(|(bytes, _)| bytes).max()), (100, Some(BYTES_MAX)));
        assert_eq!(ours.to_string().parse(), Ok(ours));
        let two: Mix = "8:1,65536:3".parse().unwrap();
        assert_eq!((two.to_string(), two.mean_bytes()), ("8:1,65536:3".to_owned(), (8 + 3 * 65536) / 4));
        assert_eq!(two.shown(), "Lengths, and how many of 4: 8 B 1, 64 KiB 3.");
    }

    #[test]
    fn what_is_no_mix_says_why() {
        let wrong = |text: &str| text.parse::<Mix>().unwrap_err();
        for text in ["", "64", "64:", "64:6,", "x:1", "64:-1", "64:1:1"] {
            assert!(matches!(wrong(text), MixError::Pair(_)), "{text}");
        }
        for (text, bytes) in [("0:1", 0), ("12:1", 12), ("65544:1", 65544)] {
            assert_eq!(wrong(text), MixError::Length(bytes));
        }
        assert_eq!(wrong("64:0"), MixError::None(64));
        assert_eq!([wrong("8:4294967296"), wrong("8:4294967295,16:1")], [MixError::Many, MixError::Many]);
    }

    #[test]
    fn draws_keep_to_it() {
        let (mix, mut random) = (Mix::default(), Random::new(3));
        let mut counts = vec![0u64; mix.pairs().count()];
        for _ in 0..20_000 {
            let bytes = 8 * mix.draw(&mut random) as u64;
            counts[mix.pairs().position(|(of, _)| of == bytes).unwrap()] += 1;
        }
        for ((bytes, share), count) in mix.pairs().zip(counts) {
            assert!(count.abs_diff(200 * share) < 60 * share.isqrt() + 30, "{bytes}: {count}");
        }
    }
}
