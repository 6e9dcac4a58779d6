//! The words after `gapless run`, as people write them for mpiexec, in the form that the parser of options takes:
//! `-np 4` becomes `--np 4`, and `--` goes before the program.

use clap::Command;
use std::ffi::{OsStr, OsString};

/// What separates programs.
const SEPARATOR: &str = ":";

/// Variables whose value may be the word after their name, as hydra has it: `-genv NAME VALUE`.
const IN_TWO_WORDS: [&str; 2] = ["-env", "-genv"];

/// What other launchers call an option and its value in one word.
const SYNONYMS: [(&str, [&str; 2]); 7] = [
    ("bind-to-core", ["--bind-to", "core"]),
    ("bind-to-socket", ["--bind-to", "socket"]),
    ("bind-to-none", ["--bind-to", "none"]),
    ("bycore", ["--map-by", "core"]),
    ("byslot", ["--map-by", "slot"]),
    ("bynode", ["--map-by", "node"]),
    ("bysocket", ["--map-by", "socket"]),
];

/// The same words, with the options before the program as the parser takes them. `command` knows the options. Everything
/// from the program on stays as it is.
pub(super) fn prepare(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let mut prepared = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(text) = word.to_str().filter(|text| text.starts_with('-') && *text != "-") else {
            // The program.
            prepared.push("--".into());
            prepared.push(word);
            break;
        };
        if text == "--" {
            prepared.push(word);
            break;
        }
        let plain = text.trim_start_matches('-');
        if let Some((_, meant)) = SYNONYMS.iter().find(|(typed, _)| *typed == plain) {
            prepared.extend(meant.map(OsString::from));
            continue;
        }
        let option = with_two_dashes(command, text);
        if let Some(value) = option.strip_prefix("--map-by=") {
            prepared.extend(["--map-by", value].map(OsString::from));
            mapped(&mut prepared);
            continue;
        }
        let takes_next = takes_next_word(command, &option);
        prepared.push(option.into());
        match takes_next {
            Some(true) => {
                let mut value = words.next();
                if let Some(name) = value.as_mut().filter(|_| IN_TWO_WORDS.contains(&text))
                    && !name.to_string_lossy().contains('=')
                    && let Some(rest) = words.next()
                {
                    name.push("=");
                    name.push(rest);
                }
                prepared.extend(value);
                mapped(&mut prepared);
            }
            Some(false) => {}
            // Not known: the parser says so, and sees nothing behind it.
            None => return prepared,
        }
    }
    prepared.extend(words);
    prepared
}

/// The word that a call gives a variable as its value, if it does, as `NAME=VALUE`: perhaps it was meant as the program.
pub(super) fn taken_as_value(words: &[OsString]) -> Option<String> {
    words.windows(3).find_map(|three| {
        let [option, name, value] = three else { return None };
        let name = name.to_str().filter(|name| !name.contains('='))?;
        let is_one = IN_TWO_WORDS.iter().any(|known| option == known);
        is_one.then(|| format!("{name}={}", value.to_string_lossy()))
    })
}

/// What Open MPI puts into the value of `--map-by`, as options of their own: `ppr:2:node` as `--ppn 2`, and
/// `core:OVERSUBSCRIBE` as `--map-by core --oversubscribe`.
fn mapped(prepared: &mut Vec<OsString>) {
    let [.., option, value] = &prepared[..] else { return };
    let Some(value) = value.to_str().filter(|_| option == "--map-by").map(str::to_ascii_lowercase)
    else {
        return;
    };
    let (rest, crowded) = match value.strip_suffix(":oversubscribe") {
        Some(rest) => (rest, true),
        None => (value.as_str(), false),
    };
    let count = rest.strip_prefix("ppr:").and_then(|rest| rest.strip_suffix(":node"));
    let mut meant = match (count, rest) {
        (Some(count), _) => vec!["--ppn", count],
        (None, "") if crowded => vec![],
        (None, unit) if crowded => vec!["--map-by", unit],
        _ => return,
    };
    meant.extend(crowded.then_some("--oversubscribe"));
    prepared.truncate(prepared.len() - 2);
    prepared.extend(meant.into_iter().map(OsString::from));
}

/// The programs between the separators.
pub(super) fn programs(words: &[OsString]) -> impl Iterator<Item = &[OsString]> {
    words.split(|word| word.as_os_str() == OsStr::new(SEPARATOR))
}

/// `-np` as `--np`: a word of several letters behind one dash, unless it is short options (`-n4`, `-vv`, `-xA=B`).
fn with_two_dashes(command: &Command, text: &str) -> String {
    let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
        return text.to_owned();
    };
    let name = letters.split('=').next().unwrap_or_default();
    let is_long = name.chars().count() > 1 && long(command, name).is_some();
    if is_long || !are_short(command, letters) { format!("-{text}") } else { text.to_owned() }
}

/// Whether these letters are short options: flags, and then perhaps one option with its value, which no option's name
/// could be: a number, or text with a capital letter or an equals sign.
fn are_short(command: &Command, letters: &str) -> bool {
    let mut rest = letters.chars();
    while let Some(letter) = rest.next() {
        let Some(option) = short(command, letter) else {
            return letters.chars().count() == 1;
        };
        if option.get_action().takes_values() {
            let value = rest.as_str();
            let is_value = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || c == '=';
            return value.is_empty() || value.contains(is_value);
        }
    }
    true
}

fn short(command: &Command, letter: char) -> Option<&clap::Arg> {
    command.get_arguments().find(|argument| {
        let aliases = argument.get_all_short_aliases().unwrap_or_default();
        argument.get_short() == Some(letter) || aliases.contains(&letter)
    })
}

fn long<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long() == Some(name) || aliases.contains(&name)
    })
}

/// Whether the value of this option is the next word; `None` if there is no such option.
fn takes_next_word(command: &Command, option: &str) -> Option<bool> {
    if let Some(name) = option.strip_prefix("--") {
        let (name, has_value) =
            name.split_once('=').map_or((name, false), |(name, _)| (name, true));
        return long(command, name)
            .map(|argument| argument.get_action().takes_values() && !has_value);
    }
    let mut letters = option.get(1..)?.chars();
    while let Some(letter) = letters.next() {
        let argument = short(command, letter)?;
        if argument.get_action().takes_values() {
            return Some(letters.as_str().is_empty());
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(words: &str) -> String {
        let words = words.split(' ').map(OsString::from).collect();
        let words = prepare(&super::super::command(), words);
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn single_dashes_are_taken_for_two() {
        for (typed, meant) in [
            ("-np 2 a", "--np 2 -- a"),
            ("-np=2 a", "--np=2 -- a"),
            ("-n 2 -wdir /tmp a b", "-n 2 --wdir /tmp -- a b"),
            ("-n4 -p a", "-n4 -p -- a"),
            ("-n=4 a", "-n=4 -- a"),
            ("-pn 4 a", "-pn 4 -- a"),
            ("-vv -n 1 a", "-vv -n 1 -- a"),
            ("-xA=b -x B -n 1 a", "-xA=b -x B -n 1 -- a"),
            ("-bind-to core -n 1 a", "--bind-to core -n 1 -- a"),
            ("-help", "--help"),
            ("-ppn 2 -n 4 a", "--ppn 2 -n 4 -- a"),
            ("-N 2 -l -f hosts a", "-N 2 -l -f hosts -- a"),
            ("-genv A b -env C=d -n 1 a b", "--genv A=b --env C=d -n 1 -- a b"),
            ("--env A=b a", "--env A=b -- a"),
            ("-tag-output --bycore a", "--tag-output --map-by core -- a"),
            ("--bind-to-core a", "--bind-to core -- a"),
            ("--map-by ppr:2:node a", "--ppn 2 -- a"),
            ("-map-by :OVERSUBSCRIBE a", "--oversubscribe -- a"),
            ("--map-by socket:OVERSUBSCRIBE a", "--map-by socket --oversubscribe -- a"),
            ("--map-by ppr:2:node:OVERSUBSCRIBE a", "--ppn 2 --oversubscribe -- a"),
            ("--map-by=ppr:2:node a", "--ppn 2 -- a"),
            ("-map-by=:OVERSUBSCRIBE a", "--oversubscribe -- a"),
            ("--map-by=l3 --bynode a", "--map-by l3 --map-by node -- a"),
            ("--map-by core:PE=2 a", "--map-by core:PE=2 -- a"),
        ] {
            assert_eq!(prepared(typed), meant);
        }
    }

    #[test]
    fn the_program_is_not_looked_into() {
        assert_eq!(prepared("-n 1 a -np 2 --bindto : x"), "-n 1 -- a -np 2 --bindto : x");
        assert_eq!(prepared("-n 1 -- -a -np"), "-n 1 -- -a -np");
        assert_eq!(prepared("-n 1 - -np"), "-n 1 -- - -np");
        assert_eq!(prepared("--timeout 5 -n 1 a"), "--timeout 5 -n 1 -- a");
        assert_eq!(prepared("--timeout=5 a"), "--timeout=5 -- a");
    }

    #[test]
    fn what_is_unknown_is_left_to_the_parser() {
        assert_eq!(prepared("-n 1 --bindto core a"), "-n 1 --bindto");
        assert_eq!(prepared("-bindto core a"), "--bindto");
        assert_eq!(prepared("-nolocal -n 1 a"), "--nolocal");
        assert_eq!(prepared("-q a"), "-q");
    }

    #[test]
    fn a_variable_that_took_the_program_is_named() {
        let taken =
            |words: &str| taken_as_value(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(taken("-n 2 -env A sh -c x"), Some("A=sh".to_owned()));
        assert_eq!(taken("-n 2 -genv A=1 B=2 x"), None);
        assert_eq!(taken("-n 2 --env A=1 x"), None);
    }

    #[test]
    fn programs_are_separated() {
        let words: Vec<OsString> = ["a", ":", "-n", "1", "b", ":"].map(OsString::from).to_vec();
        let programs: Vec<usize> = programs(&words).map(<[OsString]>::len).collect();
        assert_eq!(programs, [1, 3, 0]);
    }
}
