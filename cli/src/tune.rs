//! `gapless tune`: measures on this machine what the choice of protocols goes by, and writes it to the
//! [tuning file](gapless::tuning).
//!
//! Two processes of this program meet, as those of a job do; rank 0 says what is measured. What cannot be
//! measured here (no GPU, a kernel that forbids single copy) is said, and stays a comment in the file:
//! then the defaults hold. On a machine that other work keeps busy nothing is measured, and numbers that are far from any
//! machine's are not written, unless `--force` is given.
//!
//! With `--coll`, the rules by which collectives choose their algorithms (`coll.rs`); with `--hyperq`, how processes that
//! share a GPU copy (`hyperq.rs`).

mod clock;
mod coll;
#[allow(unsafe_code, reason = "has devices work on memory of its own")]
mod devices;
mod found;
mod host;
mod hyperq;
mod link;
mod packets;
mod parts;

use super::failure::Failure;
use super::load::Load;
use super::run::start_ours;
use super::{Worlds, complain, say};
use found::TunedNumbers;
use gapless::launch::Job;
use gapless::tuning::coll::Table;
use gapless::tuning::{self, Location};
use gapless_pml::Tuning;
use gapless_report::{Machine, terminal_columns, write_atomically};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Processes that measure.
const RANKS: u32 = 2;

/// Seconds that may be spent.
const BUDGET: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// What to measure, and where to write it.
#[derive(Debug, clap::Args)]
pub(super) struct Tune {
    /// Write to this file instead of the user's own (~/.config/gapless/tuning.toml, or what
    /// GAPLESS_TUNING names)
    #[arg(short, long, value_name = "FILE", conflicts_with = "dry_run")]
    output: Option<PathBuf>,
    /// Write nothing: print what would be written
    #[arg(long)]
    dry_run: bool,
    /// Measure on a machine that is busy, too, and write numbers that cannot be right
    #[arg(long)]
    force: bool,
    /// Measure the algorithms of collectives instead, and write the rules that choose among them
    /// (~/.config/gapless/coll.toml, or what GAPLESS_COLL names)
    #[arg(long)]
    coll: bool,
    #[command(flatten)]
    hyperq: hyperq::Options,
    /// Seconds to spend, 0.1 to 600; less makes the numbers less sure
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    budget: f64,
    /// This is one of the processes that measure
    #[arg(long, hide = true)]
    as_rank: bool,
    /// Where rank 0 leaves its rules
    #[arg(long, hide = true, value_name = "FILE")]
    part: Option<PathBuf>,
}

impl Tune {
    pub(super) fn run(self, worlds: Worlds<'_>) -> Result<ExitCode, Failure> {
        if !BUDGET.contains(&self.budget) {
            return Err(Failure::BadOption {
                option: "--budget",
                value: self.budget.to_string(),
                why: format!("must be {} to {} seconds", BUDGET.start(), BUDGET.end()),
            });
        }
        if let Some(part) = self.part.as_deref().filter(|_| self.as_rank) {
            if self.hyperq.hyperq {
                return hyperq::measure(worlds, &self.hyperq, self.budget, part);
            }
            return coll::measure(worlds, self.budget, part, self.force);
        }
        let target = self.target()?;
        if self.as_rank {
            return self.measure(worlds, target.as_deref());
        }
        if let Some(load) = Load::look() {
            // On one processor they take turns.
            let has_room = load.leaves(RANKS.min(load.processors));
            if !(has_room || self.force) {
                return Err(Failure::Busy { load });
            }
        }
        if let Some(path) = &target {
            // Found out before anything is measured.
            create_folder(path)?;
        }
        if self.hyperq.hyperq {
            return hyperq::run(&self.hyperq, self.budget, target.as_deref());
        }
        if self.coll {
            return coll::run(self.budget, target.as_deref(), self.force);
        }
        let mut arguments: Vec<OsString> = vec!["tune".into(), "--as-rank".into()];
        arguments.extend(self.force.then(|| "--force".into()));
        arguments.extend(["--budget".into(), self.budget.to_string().into()]);
        match &target {
            Some(path) => {
                // In one word, since the name may begin with a dash.
                let mut output = OsString::from("--output=");
                output.push(path);
                arguments.push(output);
            }
            None => arguments.push("--dry-run".into()),
        }
        start_ours(&Job {
            ranks: RANKS,
            program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
            arguments,
            environment: Vec::new(),
            prefix: false,
        })
    }

    /// Where to write; `None` for a dry run.
    fn target(&self) -> Result<Option<PathBuf>, Failure> {
        if self.dry_run {
            return Ok(None);
        }
        let (location, variable) = match self.coll || self.hyperq.hyperq {
            true => (tuning::coll::location(), tuning::coll::VARIABLE),
            false => (Location::of_environment(), tuning::VARIABLE),
        };
        let known = match &self.output {
            Some(path) => Some(path.clone()),
            None => location.path().map(Path::to_owned),
        };
        known.map(Some).ok_or_else(|| Failure::BadOption {
            option: "--output",
            value: String::new(),
            why: format!(
                "where to? {variable} is empty, or there is neither HOME nor XDG_CONFIG_HOME"
            ),
        })
    }

    /// What both processes do.
    fn measure(&self, worlds: Worlds<'_>, target: Option<&Path>) -> Result<ExitCode, Failure> {
        // The built-in tuning: an older file must not change the numbers, and a broken one must not stop this.
        let builder = worlds.builder()?.tuning(Tuning::default()).coll_table(Table::default());
        let world = builder.init()?;
        let budget = Duration::from_secs_f64(self.budget);
        let mut found = TunedNumbers::default();
        if world.size() != 2 {
            return Err(Failure::NotTwo { ranks: world.size() });
        }
        let link = link::LinkTuner::new(&world)?;
        if world.rank() == 0 {
            // The rest of the time is that of packets, below.
            let (host, devices) = (budget.mul_f64(0.1), budget.mul_f64(0.35));
            let link = link.measure(budget.mul_f64(0.45), &mut found)?;
            host::measure(host, &mut found)?;
            devices::measure(&link, devices, &mut found)?;
            link.done()?;
        } else {
            link.obey(|| devices::assist(&world))?;
        }
        let leads = world.rank() == 0;
        world.finalize()?;
        packets::measure(worlds, budget.mul_f64(0.1), &mut found)?;
        if leads {
            report(&found, target, self.force)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn create_folder(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::BadOption {
            option: "--output",
            value: path.display().to_string(),
            why: "it is a folder".to_owned(),
        });
    }
    // A pipe would wait for its reader, and nobody means a device.
    if let Ok(found) = std::fs::metadata(path)
        && !found.is_file()
    {
        return Err(Failure::BadOption {
            option: "--output",
            value: path.display().to_string(),
            why: "it is there, and no ordinary file".to_owned(),
        });
    }
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    std::fs::create_dir_all(folder).map_err(|error| Failure::BadOption {
        option: "--output",
        value: path.display().to_string(),
        why: format!("its folder cannot be made: {error}"),
    })
}

/// Prints what was found, and writes it.
fn report(found: &TunedNumbers, target: Option<&Path>, force: bool) -> Result<(), Failure> {
    let rest = "What could not be measured is a comment: the default holds.";
    let text = format!("{}{}", heading("The cost model's numbers", rest), found.text());
    let why = found.doubts();
    if !(force || why.is_empty()) {
        say(&format!("{}\n", found.table(terminal_columns())))?;
        return Err(Failure::Implausible { why });
    }
    why.iter().for_each(|doubt| complain(doubt));
    write_or_say(target, &text, &found.table(terminal_columns()))
}

/// Writes the text to the file, and says so after `shown`; says the text if there is no file.
fn write_or_say(target: Option<&Path>, text: &str, shown: &str) -> Result<(), Failure> {
    let Some(path) = target else { return say(text) };
    if let Err(error) = write_atomically(path, text.as_bytes()) {
        // What took long to measure is not lost.
        say(text)?;
        return Err(error.into());
    }
    say(&format!("{shown}\nwritten to {}\n", path.display()))
}

/// What was measured, when and where.
fn heading(what: &str, rest: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(
        "# {what}, as `gapless tune` {} measured them.\n# {}\n# {} seconds after \
         the beginning of 1970. {rest}\n",
        env!("CARGO_PKG_VERSION"),
        Machine::describe().one_line().replace(['\n', '\r'], " "),
        since.as_secs(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_an_ordinary_file_or_none_yet_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for refused in [folder.path(), &pipe, Path::new("/dev/null")] {
            let error = create_folder(refused).unwrap_err();
            assert!(matches!(error, Failure::BadOption { .. }), "{refused:?}: {error}");
        }
        let file = folder.path().join("a/b/tuning.toml");
        create_folder(&file).unwrap();
        std::fs::write(&file, "version = 1\n").unwrap();
        create_folder(&file).unwrap();
    }
}
