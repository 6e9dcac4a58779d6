//! Simulates an epidemic, with any number of processes, on CPUs or devices:
//!
//! ```text
//! cargo build --release --example episim
//! cargo run --release -- run -n 4 target/release/examples/episim [--device host|cuda|opencl] [--move 5a|5b|5c] \
//!     [--visits cpu|device] [--synthetic EIGHT,NUMBERS] [--days N] [--seed N] [--check] [--svg FILE]
//! ```
//!
//! Without arguments, 55 days of a population as large as Delaware's. README.md beside says what all this means.

use gapless::World;
use gapless_episim::health::Day;
use gapless_episim::{Failure, Options, Phase, Summary, run, serial};
use gapless_report::{Growth, Samples, course, write_atomically};
use indicatif::ProgressBar;
use std::process::ExitCode;

fn main() -> ExitCode {
    match simulate() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("episim: the curve differs from what one process computes");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("episim: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives whether all is as it must be.
fn simulate() -> Result<bool, Failure> {
    let arguments = std::env::args_os().skip(1).map(|argument| {
        argument.into_string().map_err(|argument| format!("the argument {argument:?} is not UTF-8"))
    });
    let arguments: Vec<String> = arguments.collect::<Result<_, _>>()?;
    let options = Options::parse(arguments.iter().map(String::as_str))?;
    let world = World::init()?;
    let says = world.rank() == 0;
    // On standard error, if that is a terminal.
    let days = u64::from(options.population.synthetic.days);
    let bar = if says { ProgressBar::new(days) } else { ProgressBar::hidden() };
    let summary = run(&world, &options, &mut |day| bar.set_position(day.into()))?;
    bar.finish_and_clear();
    let size = world.size();
    world.finalize()?;
    if !says {
        return Ok(true);
    }
    show(&options, size, &summary)?;
    if let Some(file) = &options.svg {
        write_atomically(file.as_ref(), curve(&summary.days)?.as_bytes())?;
    }
    if !options.check {
        return Ok(true);
    }
    let right = serial(&options.population) == summary.days;
    println!("one process computes {}", if right { "the same" } else { "another curve" });
    Ok(right)
}

fn show(options: &Options, ranks: u32, summary: &Summary) -> Result<(), Failure> {
    let Some(last) = summary.days.last() else { return Ok(()) };
    let peak = (1..).zip(&summary.days).max_by_key(|(_, day)| day.infectious);
    let (at, peak) = peak.map_or((0, 0), |(at, day)| (at, day.infectious));
    let count = summary.days.len();
    println!(
        "{ranks} ranks, {:?}, {}: {count} days of {} visits; {} persons had it, {peak} at a time (day {at})",
        options.device,
        options.scheme,
        summary.visits / count as u64,
        u64::from(options.population.synthetic.persons) - last.susceptible,
    );
    for phase in Phase::ALL {
        // A scheme does not have all of them.
        let times = summary.times(phase).filter(|seconds| *seconds > 0.0);
        let median = Samples::from_seconds(times).summary().map_or(0.0, |times| times.median);
        println!("{phase:<20}{:>10.3} ms a day", median * 1e3);
    }
    println!("{:<20}{:>10.3} ms once", "allocate buffers", summary.created * 1e3);
    Ok(())
}

/// The curve, as SVG.
fn curve(days: &[Day]) -> Result<String, Failure> {
    let line = |name: &str, number: fn(&Day) -> u64| Growth {
        name: name.to_owned(),
        points: (1..).zip(days).map(|(at, day)| (at, number(day) as f64)).collect(),
    };
    let lines = [
        line("latent", |day| day.latent),
        line("infectious", |day| day.infectious),
        line("infected on the day", |day| day.infected),
    ];
    Ok(course("The epidemic", "day", "persons", &lines)?)
}
