//! The profile of `examples/sgd`: how much of the time of a step its all-reduces take, by messages, by tasks of *host*, and
//! as programs sum by default. Processes of this program train the network.

use gapless::{InPlace, ReduceOp, World};
use gapless_cli::pingpong::Pinned;
use gapless_report::{Report, Row, Samples, Time};
use gapless_sgd::{Options, SumMode, train};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{SHARE, Xtq10};
use crate::error::Failure;
use crate::experiment::{Common, Experiment, Findings};
use crate::processes::{Processes, RankOf};
use crate::sim::median;
use crate::table::{head, line};

const REPETITIONS: usize = 7;
const OP: &str = "a step of training";

/// What one way took: of each repetition, seconds of a step, and the share of that in all-reduces; means of all ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Profile {
    way: String,
    seconds: Vec<f64>,
    shares: Vec<f64>,
    bytes: Vec<u64>,
}

/// Has processes train, and reads what they found.
pub(super) fn profile(ranks: Option<u32>) -> Result<Findings, Failure> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let ranks = ranks.unwrap_or(u32::try_from(processors).unwrap_or(8).clamp(2, 8));
    let found: Vec<Profile> = Processes::new(Xtq10::NAME, ranks).found(Xtq10::NAME, ())?;
    let mut rows = Vec::new();
    for Profile { way, seconds, shares, bytes } in found {
        let summary = Samples::from_seconds(seconds).summary().map_err(Failure::samples(OP))?;
        let (least, most) = shares.iter().fold((1.0f64, 0.0f64), |(low, high), it| (low.min(*it), high.max(*it)));
        let row = Row::new("sgd", OP, "host", way, bytes.iter().sum(), summary)
            .verified(true)
            .with("ranks", ranks)
            .with(SHARE, median(shares))
            .with("share_least", least)
            .with("share_most", most)
            .with("allreduces_bytes", bytes);
        rows.push(row);
    }
    let notes = format!(
        "training of examples/sgd by {ranks} processes beside {processors} processors: the share of a step's time in its \
         all-reduces, median, least and most of {REPETITIONS} trainings\n{}",
        lines(&rows)
    );
    Ok(Findings::new(rows, notes))
}

/// One of the processes.
pub(super) fn rank(common: &Common, rank: &RankOf) -> Result<(), Failure> {
    let world = World::init()?;
    let _pinned = Pinned::to(usize::try_from(world.rank()).unwrap_or(0));
    let options = Options { steps: if common.quick { 5 } else { 600 }, ..Options::default() };
    let wrong = |error: gapless_sgd::Failure| Failure::Job(error.to_string());
    let mut found = Vec::new();
    let mut losses: Option<Vec<f32>> = None;
    for way in [SumMode::Messages, SumMode::Xtq, SumMode::Default] {
        let mut profile = Profile { way: way.to_string(), seconds: Vec::new(), shares: Vec::new(), bytes: Vec::new() };
        for _ in 0..REPETITIONS {
            let trained = train(&world, way, options).map_err(wrong)?;
            let mut both = [trained.time.as_secs_f64() / options.steps as f64, trained.share()];
            world.comm().allreduce(InPlace, &mut both, ReduceOp::Sum)?;
            profile.seconds.push(both[0] / f64::from(world.size()));
            profile.shares.push(both[1] / f64::from(world.size()));
            profile.bytes = trained.sizes;
            // Messages and tasks add in the same order.
            if way != SumMode::Default && *losses.get_or_insert_with(|| trained.losses.clone()) != trained.losses {
                return Err(Failure::Job(format!("by {way} the losses are others")));
            }
        }
        found.push(profile);
    }
    rank.finalize(world, &found)
}

fn number(row: &Row, key: &str) -> f64 {
    row.extra.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn lines(rows: &[Row]) -> String {
    let mut text = head(&["gradients by", "a step", "share in all-reduces", "least", "most"]);
    for row in rows.iter().filter(|row| row.op == OP) {
        let percent = |key: &str| format!("{:.1} %", 100.0 * number(row, key));
        let [share, least, most] = [SHARE, "share_least", "share_most"].map(percent);
        text += &line(&[row.protocol.clone(), Time(row.seconds.median).to_string(), share, least, most]);
    }
    text
}

/// Shares by way, for people; nothing if the report is of no profile.
pub(super) fn table(report: &Report) -> String {
    if report.rows.iter().any(|row| row.op == OP) { lines(&report.rows) } else { String::new() }
}
