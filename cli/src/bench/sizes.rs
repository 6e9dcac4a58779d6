//! The sizes of messages: from the least to the greatest, each twice the one before.

use crate::explain::bytes;
use std::fmt;
use std::str::FromStr;

/// What was asked for: either end may be left to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    least: Option<u64>,
    most: Option<u64>,
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let end = |text: &str| (!text.is_empty()).then(|| bytes(text)).transpose();
        let sizes = match text.split_once(':') {
            Some((least, most)) => Sizes { least: end(least)?, most: end(most)? },
            None => {
                let one = bytes(text)?;
                Sizes { least: Some(one), most: Some(one) }
            }
        };
        match (sizes.least, sizes.most) {
            (Some(least), Some(most)) if least > most => {
                Err("the least size stands before the colon, the greatest behind it".to_owned())
            }
            _ => Ok(sizes),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |size: Option<u64>| size.map_or(String::new(), |size| size.to_string());
        write!(f, "{}:{}", end(self.least), end(self.most))
    }
}

impl Sizes {
    /// All of them, where ends that are not given are these; the end that is given counts if they contradict.
    pub(super) fn list(this: Option<Sizes>, (least, most): (u64, u64)) -> Vec<u64> {
        let given = this.unwrap_or(Sizes { least: None, most: None });
        let (least, most) = match (given.least, given.most) {
            (Some(low), None) => (low, most.max(low)),
            (None, Some(high)) => (least.min(high), high),
            (low, high) => (low.unwrap_or(least), high.unwrap_or(most)),
        };
        let next = |size: &u64| if *size == 0 { Some(1) } else { size.checked_mul(2) };
        std::iter::successors(Some(least), next).take_while(|size| *size <= most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_from_the_least_to_the_greatest() {
        let list = |text: &str| Sizes::list(Some(text.parse().unwrap()), (1, 16));
        assert_eq!(list("0:4"), [0, 1, 2, 4]);
        assert_eq!(list("3:20"), [3, 6, 12]);
        assert_eq!(list("1K:4k"), [1024, 2048, 4096]);
        assert_eq!(list("100"), [100]);
        assert_eq!(list(":4"), [1, 2, 4]);
        assert_eq!(list("8:"), [8, 16]);
        assert_eq!(list("64:"), [64]);
        assert_eq!(list("0:0"), [0]);
        assert_eq!(list(":"), Sizes::list(None, (1, 16)));
        assert_eq!(list("9223372036854775807"), [u64::MAX / 2]);
        for text in ["", "4:2", "x", "1:2:3", "-1", "1.5", "8G:9223372036854775808"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
