//! `gapless man`: manual pages, made of what `--help` says.

use super::failure::Failure;
use super::{Arguments, VERSION, say};
use clap::{Command, CommandFactory as _};
use gapless_report::write_atomically;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where to write the pages.
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// Write each page to a file in this folder, as gapless-run.1; without it, all go to standard output
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let pages = pages(command()).map_err(Failure::Output)?;
        let Some(folder) = self.folder else {
            say(&pages.into_iter().map(|(_, page)| page).collect::<String>())?;
            return Ok(ExitCode::SUCCESS);
        };
        std::fs::create_dir_all(&folder).map_err(|error| Failure::BadOption {
            option: "man",
            value: folder.display().to_string(),
            why: format!("this folder cannot be made: {error}"),
        })?;
        for (name, page) in &pages {
            write_atomically(&folder.join(name), page.as_bytes())?;
        }
        say(&format!("{} pages written to {}\n", pages.len(), folder.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The page of a command, then those of its verbs and of theirs, with the names of their files.
fn pages(command: Command) -> io::Result<Vec<(String, String)>> {
    let verbs = command.get_subcommands().cloned().collect::<Vec<_>>();
    let page = clap_mangen::Man::new(command);
    let page = page.source(format!("Gapless {}", *VERSION)).manual("Gapless");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let mut all = vec![(page.get_filename(), String::from_utf8_lossy(&text).into_owned())];
    for verb in verbs {
        all.extend(pages(verb)?);
    }
    Ok(all)
}

/// The command with its names complete, and without `help`, which needs no page.
fn command() -> Command {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a page names has a page.
    fn check(command: &Command, name: &str, pages: &[(String, String)]) {
        let file = format!("{name}.1");
        let (_, page) = pages.iter().find(|(page, _)| *page == file).expect(&file);
        assert!(page.contains(".SH SYNOPSIS") && page.contains("\\-\\-verbose"), "{page}");
        for verb in command.get_subcommands() {
            let name = format!("{name}-{}", verb.get_name());
            assert!(page.contains(&format!("{}(1)", name.replace('-', "\\-"))), "{name} in {page}");
            check(verb, &name, pages);
        }
    }

    #[test]
    fn every_verb_has_a_page() {
        let pages = pages(command()).unwrap();
        check(&Arguments::command(), "gapless", &pages);
        assert!(!pages.iter().any(|(name, _)| name.contains("help")));
    }
}
