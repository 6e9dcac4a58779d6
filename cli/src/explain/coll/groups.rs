//! Groups of ranks as the options of `gapless explain --coll` give them.

use crate::spaces::counted;
use gapless_coll::{BuildError, Locality};

/// How `n` ranks are spread over hosts, or over groups of another level: so many of about equally many ranks, or as
/// listed.
pub(super) fn groups(text: &str, n: usize) -> Result<Vec<Vec<usize>>, String> {
    const HOW: &str = "give their number, or the ranks of each: 0-3/4-7";
    if let Ok(count) = text.parse::<usize>() {
        if count == 0 || count > n {
            return Err(format!("{} are in 1 to {n} groups", counted(n as u64, "rank")));
        }
        let start = |group: usize| group * (n / count) + group.min(n % count);
        return Ok((0..count).map(|group| (start(group)..start(group + 1)).collect()).collect());
    }
    let mut groups = Vec::new();
    for group in text.split('/') {
        let mut ranks = Vec::new();
        for run in group.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let number = |text: &str| text.parse::<usize>().map_err(|_| HOW.to_owned());
            let (first, last) = (number(first)?, number(last)?);
            if last >= n || first > last {
                return Err(format!("{run} is not among the ranks 0 to {}", n - 1));
            }
            ranks.extend(first..=last);
        }
        groups.push(ranks);
    }
    match groups.iter().map(Vec::len).sum::<usize>() {
        all if all == n => Ok(groups),
        all => Err(format!("{all} ranks are listed, and there are {n}")),
    }
}

/// Why groups are none, in words.
pub(super) fn joined(locality: Result<Locality, BuildError>) -> Result<Locality, String> {
    locality.map_err(|error| match error {
        BuildError::Nesting { .. } => {
            "these are not parts of the coarser groups; give the ranks of each: 0-3/4-7".to_owned()
        }
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_or_listed() {
        let hosts = |text, n| groups(text, n).and_then(|it| joined(Locality::new(it)));
        let of = |text, n| hosts(text, n).unwrap().hosts().to_vec();
        assert_eq!(of("2", 5), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(of("3", 3), [[0], [1], [2]]);
        assert_eq!(of("0-1,4/2-3", 5), [vec![0, 1, 4], vec![2, 3]]);
        for (text, why) in [
            ("0", "in 1 to 5 groups"),
            ("6", "in 1 to 5 groups"),
            ("two", "give their number"),
            ("0-4/", "give their number"),
            ("0-5", "0-5 is not among the ranks 0 to 4"),
            ("3-1", "3-1 is not among"),
            ("0-3/3", "exactly once"),
            ("0-3", "4 ranks are listed, and there are 5"),
            ("0-18446744073709551615", "not among the ranks"),
        ] {
            let error = hosts(text, 5).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
