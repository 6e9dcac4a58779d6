//! What an experiment is: a name, options, and a function that measures.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use gapless_report::{Absent, PlotError, Point, Report, Row, Series};
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::Failure;
use crate::rotation::Rotation;

/// Options that all experiments share.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The folder for NAME.json and NAME.svg; made if it is not there
    #[arg(short, long, value_name = "DIR", default_value = "target/figures", global = true)]
    pub out: PathBuf,
    /// Seconds for each figure
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3, value_parser = seconds, global = true)]
    pub time: f64,
    /// What contents and orders derive from
    #[arg(long, default_value_t = 1, global = true)]
    pub seed: u64,
    /// Tiny sizes, hardly any samples and no rotation: shows that everything works, and nothing else
    #[arg(long, global = true)]
    pub quick: bool,
}

impl Common {
    /// Seconds for each figure.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        if self.quick { 0.001 } else { self.time }
    }

    /// How far operations rotate.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        if self.quick { Rotation::token() } else { Rotation::of_machine() }
    }

    /// A bar on standard error, if that is a terminal.
    #[must_use]
    pub fn progress(&self, steps: usize) -> ProgressBar {
        let bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}")
        {
            bar.set_style(style);
        }
        bar
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 3600.0);
    seconds.ok_or_else(|| "more than 0 and at most 3600 seconds".to_owned())
}

/// What an experiment found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The figures, each of them checked.
    pub rows: Vec<Row>,
    /// How they were measured, for below the table: sentences, with a line break at the end.
    pub notes: String,
    /// Figures that could not be had, and why.
    pub absent: Vec<Absent>,
}

impl Findings {
    /// Figures that are all there.
    #[must_use]
    pub fn new(rows: Vec<Row>, notes: String) -> Findings {
        Findings { rows, notes, absent: Vec::new() }
    }
}

/// A picture of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// What follows the experiment's name in the file's; empty for the main picture.
    pub suffix: String,
    /// SVG text.
    pub svg: String,
}

impl Drawing {
    /// The pages of one picture: several get a number behind the suffix.
    #[must_use]
    pub fn pages(suffix: &str, svgs: Vec<String>) -> Vec<Drawing> {
        let alone = svgs.len() == 1;
        let number = |at: usize| if alone { String::new() } else { format!("-{}", at + 1) };
        let drawing = |(at, svg)| Drawing { suffix: format!("{suffix}{}", number(at)), svg };
        svgs.into_iter().enumerate().map(drawing).collect()
    }
}

/// Lines of these points, each with its line's name, in the order in which they come.
pub(crate) fn gathered(points: impl IntoIterator<Item = (String, Point)>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (name, point) in points {
        match all.iter_mut().find(|one| one.name == name) {
            Some(one) => one.points.push(point),
            None => all.push(Series { name, points: vec![point] }),
        }
    }
    all
}

/// The GPU's name, for titles.
pub(crate) fn gpu(report: &Report) -> &str {
    report.machine.gpus.first().map_or("no GPU", |gpu| &gpu.name)
}

/// An experiment. Implement it in a file below `experiments/` and name that file in its list.
pub trait Experiment {
    /// Its own options, with a default for each.
    type Options: Args;

    /// Its name: a subcommand of `figures`, and what its files are called.
    const NAME: &'static str;
    /// One line about it.
    const ABOUT: &'static str;

    /// Measures.
    ///
    /// # Errors
    /// Whatever makes the figures impossible or worthless; a wrong byte among them.
    fn run(options: &Self::Options, common: &Common) -> Result<Findings, Failure>;

    /// Draws what was measured; the schema's own plot unless the experiment knows better.
    ///
    /// # Errors
    /// Figures that have no place on a plot.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        Ok(Drawing::pages("", report.to_svgs()?))
    }
}

/// An experiment as the list keeps it: its type is forgotten.
#[derive(Clone, Copy)]
pub struct ExperimentEntry {
    /// [`Experiment::NAME`].
    pub name: &'static str,
    /// [`Experiment::ABOUT`].
    pub about: &'static str,
    /// Adds the options to a subcommand.
    pub arguments: fn(Command) -> Command,
    /// Measures, with the options that were matched.
    pub run: fn(&ArgMatches, &Common) -> Result<Findings, Failure>,
    /// [`Experiment::draw`].
    pub draw: fn(&Report) -> Result<Vec<Drawing>, PlotError>,
}

impl ExperimentEntry {
    /// The entry of an experiment.
    #[must_use]
    pub const fn of<E: Experiment>() -> ExperimentEntry {
        ExperimentEntry {
            name: E::NAME,
            about: E::ABOUT,
            arguments: E::Options::augment_args,
            run: run::<E>,
            draw: E::draw,
        }
    }

    /// The subcommand.
    #[must_use]
    pub fn command(&self) -> Command {
        (self.arguments)(Command::new(self.name)).about(self.about)
    }
}

fn run<E: Experiment>(matches: &ArgMatches, common: &Common) -> Result<Findings, Failure> {
    let options = E::Options::from_arg_matches(matches)
        .map_err(|error| Failure::Option { option: E::NAME, why: error.to_string() })?;
    E::run(&options, common)
}
