//! `gapless completions`: the words of this command, for a shell that completes them.

use super::failure::Failure;
use super::{Arguments, say};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::process::ExitCode;

/// Which shell.
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell; its script goes to standard output
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        say(&script(self.shell))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn script(shell: Shell) -> String {
    let mut command = Arguments::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_is_told_each_verb() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            let words: Vec<&str> = script.split(|one: char| !one.is_alphanumeric()).collect();
            for verb in Arguments::command().get_subcommands() {
                assert!(words.contains(&verb.get_name()), "{shell}: {}", verb.get_name());
            }
        }
    }
}
