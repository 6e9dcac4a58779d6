//! Plays seeds: `gapless-sim SEED [KEEP]` tells a story, `gapless-sim FROM..TO` plays a range and counts.
#![forbid(unsafe_code)]

use gapless_sim::{Keep, hunt, tell};
use std::process::ExitCode;

const USAGE: &str = "usage: gapless-sim SEED [KEEP] | gapless-sim FROM..TO";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(first) = words.next() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let keep = words.next().map_or(Some(Keep::default()), |text| Keep::parse(&text));
    if let Some((from, to)) = first.split_once("..") {
        let (Ok(from), Ok(to)) = (from.parse(), to.parse()) else {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        };
        return match hunt(from..to) {
            Ok(coverage) => {
                print!("{coverage}");
                ExitCode::SUCCESS
            }
            Err(report) => {
                print!("{report}");
                ExitCode::FAILURE
            }
        };
    }
    let (Ok(seed), Some(keep)) = (first.parse(), keep) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let (outcome, story) = tell(seed, &keep);
    match outcome {
        Ok(coverage) => {
            print!("{}{coverage}", story.about(&[], usize::MAX));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{}{}", story.about(&failure.ranks, usize::MAX), failure.what);
            ExitCode::FAILURE
        }
    }
}
