//! A file of hosts, as hydra, Open MPI, Slurm and PBS have them, as a list for `--hosts`.
//!
//! ```text
//! a            # a host; one that is named again has one process more
//! b:4          # hydra
//! c slots=4    # Open MPI; its other words (max_slots=8) do not count
//! ```

use super::bad;
use super::hosts::Named;
use crate::failure::Failure;
use std::path::Path;

const OPTION: &str = "--hostfile";

/// The hosts of a file, as in `a,b:4,c:4`.
pub(super) fn read(path: &Path) -> Result<Named, Failure> {
    let given = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    match text.and_then(|text| list(&text)) {
        Ok(list) => Ok(Named { option: OPTION, given, list }),
        Err(why) => Err(bad(OPTION, &given, &why)),
    }
}

/// A host, and how many processes, if that is said.
type Host<'t> = (&'t str, Option<u32>);

/// What the options of several hosts take. They say what is wrong with a name.
fn list(text: &str) -> Result<String, String> {
    let mut hosts: Vec<Host<'_>> = Vec::new();
    for (at, line) in (1..).zip(text.lines()) {
        let host = host(line).map_err(|why| format!("line {at}: {why}"))?;
        let Some((name, count)) = host else { continue };
        match hosts.iter_mut().find(|(known, _)| *known == name) {
            // Whoever names a host for each of its processes means it.
            Some((_, known)) => {
                *known = Some(known.unwrap_or(1).saturating_add(count.unwrap_or(1)));
            }
            None => hosts.push((name, count)),
        }
    }
    let is_counted = hosts.iter().any(|(_, count)| count.is_some());
    let word = |(name, count): Host<'_>| match count.or(is_counted.then_some(1)) {
        Some(count) => format!("{name}:{count}"),
        None => name.to_owned(),
    };
    let words: Vec<String> = hosts.into_iter().map(word).collect();
    if words.is_empty() { Err("it names no host".to_owned()) } else { Ok(words.join(",")) }
}

/// The host of a line, if it has one.
fn host(line: &str) -> Result<Option<Host<'_>>, String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if first.is_empty() {
        return Ok(None);
    }
    let number = |text: &str| match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{text:?} is no number of processes, 1 or more")),
    };
    let (name, mut count) = match first.split_once(':') {
        // More colons are those of an address.
        Some((name, count)) if !count.contains(':') => (name, Some(number(count)?)),
        _ => (first, None),
    };
    // `slots=4`, with blanks around the sign or without.
    let rest = rest.replace('=', " = ");
    let words: Vec<&str> = rest.split_whitespace().collect();
    for setting in words.chunks(3) {
        match setting {
            ["slots", "=", slots] => count = Some(number(slots)?),
            [_, "=", _] => {}
            other => return Err(format!("{:?} is no setting, as in slots=4", other.join(" "))),
        }
    }
    Ok(Some((name, count)))
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn all_kinds_of_files_are_lists() {
        for (text, listed) in [
            ("a\nb\n", "a,b"),
            ("# all of them\n\na:2 # big\n b:4\n", "a:2,b:4"),
            ("a slots=2 max_slots=4\nb\n", "a:2,b:1"),
            ("a\na\nb\na\n", "a:3,b:1"),
            ("a slots=2\na slots=3\n", "a:5"),
            ("a slots = 2 max-slots= 4\n", "a:2"),
            ("a slots=2\na\n", "a:3"),
            ("a:2\na:2\n", "a:4"),
            ("a\na:2\n", "a:3"),
            // Refused as a name.
            ("fe80::1\n", "fe80::1"),
        ] {
            assert_eq!(list(text).as_deref(), Ok(listed), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said_with_its_line() {
        for (text, why) in [
            ("# nobody\n", "it names no host"),
            ("a\nb slots=abc\n", "line 2: \"abc\" is no number of processes, 1 or more"),
            ("a slots=0\n", "line 1: \"0\" is no number of processes, 1 or more"),
            ("a:x\n", "line 1: \"x\" is no number of processes, 1 or more"),
            ("a slots 2\n", "line 1: \"slots 2\" is no setting, as in slots=4"),
            ("a b c\n", "line 1: \"b c\" is no setting, as in slots=4"),
        ] {
            assert_eq!(list(text), Err(why.to_owned()), "{text}");
        }
    }
}
