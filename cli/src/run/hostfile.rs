//! A file of hosts, as hydra, Open MPI, Slurm and PBS have them, as a list for `--hosts`.
//!
//! ```text
//! a            # a host; one that is named again has one process more
//! b:4          # hydra
//! c slots=4    # Open MPI; its other words (max_slots=8) do not count
//! ```

use super::bad;
use crate::failure::Failure;
use std::path::Path;

const OPTION: &str = "--hostfile";

/// The hosts of a file, as in `a,b:4,c:4`.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    let wrong = |why: String| bad(OPTION, &path.display().to_string(), &why);
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    list(&text).ok_or_else(|| wrong("it names no host".to_owned()))
}

/// What the options of several hosts take; `None` if there is no host. They say what is wrong with one.
fn list(text: &str) -> Option<String> {
    /// A host, how many processes, and how often it was named.
    type Host<'t> = (&'t str, Option<u32>, u32);
    let mut hosts: Vec<Host<'_>> = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let slots = words.find_map(|word| word.strip_prefix("slots=")?.parse().ok());
        match hosts.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, count, named)) => {
                *count = count.zip(slots).map(|(one, other)| one.saturating_add(other));
                *named += 1;
            }
            None => hosts.push((name, slots, 1)),
        }
    }
    // Whoever names a host for each of its processes means it.
    let counted = hosts.iter().any(|(_, slots, named)| slots.is_some() || *named > 1);
    let word = |(name, slots, named): Host<'_>| match slots.or(counted.then_some(named)) {
        Some(count) if !name.contains(':') => format!("{name}:{count}"),
        _ => name.to_owned(),
    };
    let words: Vec<String> = hosts.into_iter().map(word).collect();
    (!words.is_empty()).then(|| words.join(","))
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn all_kinds_of_files_are_lists() {
        for (text, listed) in [
            ("a\nb\n", Some("a,b")),
            ("# all of them\n\na:2 # big\n b:4\n", Some("a:2,b:4")),
            ("a slots=2 max_slots=4\nb\n", Some("a:2,b:1")),
            ("a\na\nb\na\n", Some("a:3,b:1")),
            ("a slots=2\na slots=3\n", Some("a:5")),
            ("# nobody\n", None),
        ] {
            assert_eq!(list(text).as_deref(), listed, "{text}");
        }
    }
}
