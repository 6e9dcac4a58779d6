//! What an experiment is: a name, options, and a function that measures.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use gapless_cli::pingpong::Party;
use gapless_report::{
    Absent, Curve, Growth, PlotError, Point, Report, Row, Samples, Series, Summary,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::Failure;
use crate::processes::RankOf;
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
    /// Be one of an experiment's processes
    #[arg(long, hide = true, global = true, value_name = "JSON")]
    pub as_rank: Option<RankOf>,
}

/// Bytes of each side's buffers with `--quick`, at most.
const QUICK_BUFFER_BYTES: u64 = 1 << 20;

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

    /// With `--quick`, the process has short buffers.
    #[must_use]
    pub fn with_quick_buffers(&self, party: Party) -> Party {
        if self.quick { party.with_buffers(QUICK_BUFFER_BYTES) } else { party }
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

/// Options of an experiment that has none of its own.
#[derive(Clone, Debug, clap::Args)]
pub struct NoOptions {}

/// What an experiment found.
#[derive(Clone, Debug, Default)]
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
    /// The only picture.
    ///
    /// # Errors
    /// There is none.
    pub fn alone(svg: Result<String, PlotError>) -> Result<Vec<Drawing>, PlotError> {
        Ok(vec![Drawing { suffix: String::new(), svg: svg? }])
    }

    /// A picture of each of these that has lines: its suffix, its title, its lines.
    pub(crate) fn each<L>(
        all: impl IntoIterator<Item = (String, String, Vec<L>)>,
        draw: impl Fn(&str, &[L]) -> Result<String, PlotError>,
    ) -> Result<Vec<Drawing>, PlotError> {
        let all = all.into_iter().filter(|(_, _, lines)| !lines.is_empty());
        let drawing = |(suffix, title, lines): (String, String, Vec<L>)| {
            Ok(Drawing { suffix, svg: draw(&title, &lines)? })
        };
        all.map(drawing).collect()
    }

    /// The same, an error if there is none.
    pub(crate) fn some<L>(
        all: impl IntoIterator<Item = (String, String, Vec<L>)>,
        draw: impl Fn(&str, &[L]) -> Result<String, PlotError>,
    ) -> Result<Vec<Drawing>, PlotError> {
        let drawings = Drawing::each(all, draw)?;
        if drawings.is_empty() { Err(PlotError::Empty) } else { Ok(drawings) }
    }

    /// The pages of one picture: several get a number behind the suffix.
    #[must_use]
    pub fn pages(suffix: &str, svgs: Vec<String>) -> Vec<Drawing> {
        let alone = svgs.len() == 1;
        let number = |at: usize| if alone { String::new() } else { format!("-{}", at + 1) };
        let drawing = |(at, svg)| Drawing { suffix: format!("{suffix}{}", number(at)), svg };
        svgs.into_iter().enumerate().map(drawing).collect()
    }
}

/// What has the same key, together, in the order in which keys come.
pub(crate) fn grouped<K: PartialEq, T>(all: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, one) in all {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(one),
            None => groups.push((key, vec![one])),
        }
    }
    groups
}

/// A line of a picture: a name and points.
pub(crate) trait PlotLine {
    /// What it goes through.
    type Point;
    /// A line of this name.
    fn through(name: String, points: Vec<Self::Point>) -> Self;
}

impl PlotLine for Series {
    type Point = Point;
    fn through(name: String, points: Vec<Point>) -> Series {
        Series { name, points }
    }
}

impl PlotLine for Curve {
    type Point = (u64, Summary);
    fn through(name: String, points: Vec<(u64, Summary)>) -> Curve {
        Curve { name, points }
    }
}

impl PlotLine for Growth {
    type Point = (u64, f64);
    fn through(name: String, points: Vec<(u64, f64)>) -> Growth {
        Growth { name, points }
    }
}

/// Lines of these points, each with its line's name, in the order in which they come.
pub(crate) fn gathered<L: PlotLine>(
    points: impl IntoIterator<Item = (String, L::Point)>,
) -> Vec<L> {
    grouped(points).into_iter().map(|(name, points)| L::through(name, points)).collect()
}

/// Times by a number of each row, a line for each kind, which begins the case's name, and operation.
pub(crate) fn by_kind(report: &Report, number: impl Fn(&Row) -> u64) -> Vec<Curve> {
    let kind = |row: &Row| row.case.split(' ').next().unwrap_or_default().to_owned();
    let line = |row: &Row| (format!("{}, {}", kind(row), row.op), (number(row), row.seconds));
    gathered(report.rows.iter().map(line))
}

/// A summary of these times; `what` took them.
pub(crate) fn summary(what: impl Into<String>, seconds: &[f64]) -> Result<Summary, Failure> {
    let samples = Samples::from_seconds(seconds.iter().copied());
    samples.summary().map_err(Failure::samples(what))
}

/// A row's rate at a place of a plot, with its quartiles.
pub(crate) fn rate_at(row: &Row, at: u64) -> Point {
    let rate = |seconds: f64| row.payload_bytes as f64 / seconds / 1e9;
    let spread = row.seconds.q1.zip(row.seconds.q3).map(|(q1, q3)| (rate(q3), rate(q1)));
    Point { payload_bytes: at, gbps: row.gbps, spread }
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

    /// What one of its processes does, if it has some: rank 0 leaves what it found.
    ///
    /// # Errors
    /// As of [`run`](Experiment::run).
    fn rank(_: &Self::Options, _: &Common, _: &RankOf) -> Result<(), Failure> {
        Err(Failure::Option {
            option: "--as-rank",
            why: format!("{} has no processes", Self::NAME),
        })
    }

    /// Draws what was measured; the schema's own plot unless the experiment knows better.
    ///
    /// # Errors
    /// Figures that have no place on a plot.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        Ok(Drawing::pages("", report.to_svgs()?))
    }

    /// Shows what was measured in a document, as Markdown; the schema's own table unless the experiment knows better.
    fn summary(report: &Report) -> String {
        format!("```text\n{}```\n", report.table())
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
    /// [`Experiment::summary`].
    pub summary: fn(&Report) -> String,
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
            summary: E::summary,
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
    match &common.as_rank {
        None => E::run(&options, common),
        // Whoever started it shows what it found.
        Some(rank) => E::rank(&options, common, rank).map(|()| Findings::default()),
    }
}
