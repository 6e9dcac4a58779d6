//! `xtq10`: Figure 10 of LeBeane et al. 2016, by its method: what all-reduces that are faster by as much as the simulated
//! machine says would save of the time to train a network on eight nodes.
//!
//! Time to train is computing and blocking all-reduces, without overlap. Of an all-reduce of each gradient the time by
//! CPU, HSA and XTQ is simulated; the share of time in all-reduces, which is that of CPU, shrinks as they do. The paper's
//! profiles are not public: shares are those that LeBeane et al. published of the same six workloads in 2017, and
//! gradients those of the networks that come with CNTK. Of one of the six the network is not public: it is left out.
//!
//! Beside them stands the network of `examples/sgd`, whose share was measured ([`mod@profile`], `--profile`). It has no part
//! in what is judged after the paper.

mod profile;

use std::collections::HashMap;

use gapless_report::{Absent, Growth, Mark, PlotError, Report, Row, growth};
use gapless_xtq_sim::{Configuration, Options, Ps, initial};
use serde_json::Value;

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::processes::RankOf;
use crate::sim::{allreduce, gain, judged, row, simulate, summary};
use crate::table::{head, line};

/// The experiment.
pub struct Xtq10;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options10 {
    /// Measure the profile of `examples/sgd` on this machine, and project nothing
    #[arg(long)]
    profile: bool,
    /// Processes of that; as many as there are processors, from 2 to 8, by default
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=16))]
    ranks: Option<u32>,
}

const NODES: usize = 8;
const FLOAT: u64 = 4;
/// From here on one element of each kilobyte is kept, and vectors are rounded up to whole ones a node.
const COARSE: u64 = 1 << 20;
const GRAIN: u64 = 1 << 10;
/// All-reduces of one length, for the curves.
const LENGTHS: [u64; 5] = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20];
/// Shares of the curves, in percent.
const SHARES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

const SHARE: &str = "share_of_cpu_time_in_allreduces";
const GPU_OVER_CPU: &str = "hsa_saves_of_cpu";
const XTQ_OVER_HSA: &str = "xtq_saves_of_hsa";

/// A network: its gradients, and the share of time in all-reduces.
struct Network {
    name: &'static str,
    /// LeBeane et al., GPU Triggered Networking for Intra-Kernel Communications, SC '17, the table of CNTK workloads.
    share: f64,
    /// Elements of each gradient: weights and biases, layer by layer.
    gradients: &'static [u64],
}

/// AN4's LSTM of three layers, 1024 cells and 512 outputs each (CNTK, Examples/Speech/AN4/Config/lstmp-3layer-opt.ndl).
const LSTM: &[u64] = &[
    4096 * 363, 4096, 4096 * 512, 1024, 1024, 1024, 512 * 1024,
    4096 * 512, 4096, 4096 * 512, 1024, 1024, 1024, 512 * 1024,
    4096 * 512, 4096, 4096 * 512, 1024, 1024, 1024, 512 * 1024,
    132 * 512, 132,
];
/// Krizhevsky, Sutskever and Hinton, 2012.
const ALEXNET: &[u64] = &[
    11 * 11 * 3 * 96, 96, 5 * 5 * 48 * 256, 256, 3 * 3 * 256 * 384, 384, 3 * 3 * 192 * 384, 384, 3 * 3 * 192 * 256, 256,
    9216 * 4096, 4096, 4096 * 4096, 4096, 4096 * 1000, 1000,
];
/// CNTK, Examples/Image/Miscellaneous/CIFAR-10/01_Convolution.ndl.
const CIFAR: &[u64] = &[75 * 32, 32, 800 * 32, 32, 800 * 64, 64, 576 * 64, 64, 640, 10];
/// CNTK, Examples/Image/MNIST/Config/02_Convolution.ndl.
const MNIST_CONV: &[u64] = &[25 * 16, 16, 400 * 32, 32, 512 * 128, 128, 1280, 10];
/// CNTK, Examples/Image/MNIST/Config/01_OneHidden.ndl.
const MNIST_HIDDEN: &[u64] = &[784 * 200, 200, 2000, 10];

/// The one of `examples/sgd`, and the loss that is summed with its gradients.
const SGD: &[u64] = &[64 * 32, 32, 32 * 10, 10, 1];
/// Its share of time, by messages, of 2 processes on 2 processors, rounded: trainings differ by more
/// (`bench/results/cpu/xeon/xtq10.json`).
const SGD_SHARE: f64 = 0.5;

/// What the paper says that XTQ saves of HSA's time, in percent; where it names a network, at that one's share.
const PAPER: [(&str, u64, f64); 2] = [("AN4 LSTM", 50, 15.0), ("CIFAR", 4, 0.0)];
/// The means of the paper's six networks, in percent: HSA of CPU, XTQ of HSA.
const PAPER_MEANS: [f64; 2] = [23.0, 8.0];

/// It was measured, not cited.
const MEASURED: Network = Network { name: "sgd, measured", share: SGD_SHARE, gradients: SGD };

const NETWORKS: &[Network] = &[
    Network { name: "AlexNet", share: 0.14, gradients: ALEXNET },
    Network { name: "AN4 LSTM", share: 0.50, gradients: LSTM },
    Network { name: "CIFAR", share: 0.04, gradients: CIFAR },
    Network { name: "MNIST Conv", share: 0.12, gradients: MNIST_CONV },
    Network { name: "MNIST Hidden", share: 0.29, gradients: MNIST_HIDDEN },
];

/// Times of an all-reduce by CPU, HSA and XTQ.
type Three = [Ps; 3];

/// All-reduces by their length: each is simulated once.
struct AllReduces {
    seed: u64,
    known: HashMap<u64, (Three, bool)>,
}

impl AllReduces {
    fn of(&mut self, bytes: u64) -> Result<(Three, bool), Failure> {
        if let Some(known) = self.known.get(&bytes) {
            return Ok(*known);
        }
        let grain = if bytes < COARSE { FLOAT } else { GRAIN };
        let whole = bytes.next_multiple_of(if grain == FLOAT { FLOAT } else { GRAIN * NODES as u64 });
        let two_sided = allreduce(NODES, whole, grain, &"ring".parse()?)?;
        let by_tasks = allreduce(NODES, whole, grain, &"xtq".parse()?)?;
        let sum = |at: u64| (0..NODES).map(|rank| initial(self.seed, rank, at)).fold(0u32, u32::wrapping_add);
        let sums: Vec<u32> = (0..whole / grain).map(|at| sum(at * grain / FLOAT)).collect();
        let (mut three, mut right) = ([Ps::ZERO; 3], true);
        for (at, configuration) in Configuration::ALL.into_iter().enumerate() {
            let options = Options { seed: self.seed, grain, ..Options::new(configuration) };
            let outcome = match configuration {
                Configuration::Xtq => simulate(&by_tasks, &options)?,
                _ => simulate(&two_sided, &options)?,
            };
            right &= outcome.is_whole() && outcome.memory.iter().all(|memory| memory.starts_with(&sums));
            three[at] = outcome.time();
        }
        self.known.insert(bytes, (three, right));
        Ok((three, right))
    }

    /// One after the other.
    fn all(&mut self, gradients: &[u64]) -> Result<(Three, bool), Failure> {
        let (mut sum, mut right) = ([Ps::ZERO; 3], true);
        for elements in gradients {
            let (three, of) = self.of(elements * FLOAT)?;
            (0..3).for_each(|at| sum[at] += three[at]);
            right &= of;
        }
        Ok((sum, right))
    }
}

/// What is saved of the whole time: HSA's of CPU's, and XTQ's of HSA's.
fn saved(share: f64, [cpu, hsa, xtq]: Three) -> (f64, f64) {
    let whole = |time: Ps| 1.0 - share * gain(time, cpu);
    (1.0 - whole(hsa), 1.0 - whole(xtq) / whole(hsa))
}

impl Experiment for Xtq10 {
    type Options = Options10;

    const NAME: &'static str = "xtq10";
    const ABOUT: &'static str = "what faster all-reduces save of training on eight nodes, projected from simulated ones";

    fn run(options: &Options10, common: &Common) -> Result<Findings, Failure> {
        if options.profile {
            return profile::profile(options.ranks);
        }
        let mut all = AllReduces { seed: common.seed, known: HashMap::new() };
        let mut rows = Vec::new();
        let progress = common.progress(NETWORKS.len() + 1 + LENGTHS.len());
        for length in if common.quick { &LENGTHS[..2] } else { &LENGTHS[..] } {
            let (three, right) = all.of(*length)?;
            rows.push(of_three(&format!("all-reduce bytes={length}"), "all-reduce", *length, three, right)?);
            progress.inc(1);
        }
        let (mut hsa, mut xtq, mut measured) = (Vec::new(), Vec::new(), (0.0, 0.0));
        // The large ones take seconds.
        let is_shown = |network: &&Network| !common.quick || network.gradients.iter().all(|it| it * FLOAT < COARSE);
        for Network { name, share, gradients } in [MEASURED].iter().chain(NETWORKS).filter(is_shown) {
            progress.set_message(*name);
            let (three, right) = all.all(gradients)?;
            let (of_cpu, of_hsa) = saved(*share, three);
            if *name == MEASURED.name {
                measured = (of_cpu, of_hsa);
            } else {
                hsa.push((*name, of_cpu));
                xtq.push((*name, of_hsa));
            }
            let bytes = gradients.iter().sum::<u64>() * FLOAT;
            let row = of_three(name, "all-reduces of a step", bytes, three, right)?;
            let row = row.with(SHARE, *share).with(GPU_OVER_CPU, of_cpu).with(XTQ_OVER_HSA, of_hsa);
            rows.push(row.with("gradients", gradients.len()));
            progress.inc(1);
        }
        progress.finish_and_clear();
        let mean = |of: &[(&str, f64)]| of.iter().map(|(_, saved)| saved).sum::<f64>() / of.len().max(1) as f64;
        let of = |name: &str| xtq.iter().find(|(it, _)| *it == name).map_or(f64::NAN, |(_, saved)| *saved);
        let (gpu, mean, lstm, cifar) = (mean(&hsa), mean(&xtq), of("AN4 LSTM"), of("CIFAR"));
        if let Some(row) = rows.last_mut().filter(|_| !common.quick) {
            row.marks.extend([
                Mark::at_least("order: HSA over CPU, mean, less XTQ over HSA, AN4 LSTM", 0.0, gpu - lstm),
                Mark::at_least("order: XTQ over HSA, AN4 LSTM less mean", 0.0, lstm - mean),
                Mark::at_least("order: XTQ over HSA, mean less CIFAR", 0.0, mean - cifar),
                Mark::at_most("XTQ over HSA, CIFAR", 0.02, cifar),
            ]);
        }
        let percent = |share: f64| share * 100.0;
        let notes = format!(
            "projected: the share of time in all-reduces is of CPU; no overlap; saved of the whole time, in %:\n\
             HSA of CPU, mean {:.1} (paper 23); XTQ of HSA, mean {:.1} (paper 8), AN4 LSTM {:.1} (15), CIFAR {:.1} (about 0)\n\
             the network of examples/sgd, its share measured, has no part in means: HSA of CPU {:.1}, XTQ of HSA {:.1}\n{}",
            percent(gpu), percent(mean), percent(lstm), percent(cifar), percent(measured.0), percent(measured.1),
            judged(&rows)
        );
        let absent = Absent {
            case: "Large Synth".to_owned(),
            op: "all-reduces of a step".to_owned(),
            why: "its network is not public; its share is 28 %".to_owned(),
            failed: false,
        };
        Ok(Findings { rows, notes, absent: vec![absent] })
    }

    fn rank(_: &Options10, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        profile::rank(common, rank)
    }

    /// What XTQ saves of HSA's time by the share: a curve a length, and each network; and what the paper says beside that.
    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let mut lines = Vec::new();
        if !profile::table(report).is_empty() {
            return Ok(Vec::new());
        }
        for row in &report.rows {
            let share = row.extra.get(SHARE).and_then(Value::as_f64);
            let name = row.case.replace("all-reduce bytes=", "bytes ");
            let percent = |share: f64| times(row).map_or(0.0, |three| saved(share, three).1.max(0.0) * 100.0);
            let points = match share {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
                Some(share) => vec![((share * 100.0).round() as u64, percent(share))],
                None => SHARES.iter().map(|share| (*share, percent(*share as f64 / 100.0))).collect(),
            };
            lines.push(Growth { name, points });
        }
        let named = PAPER.map(|(name, share, saved)| Growth { name: format!("{name}, paper"), points: vec![(share, saved)] });
        let level = |name: &str, saved: f64| {
            let points = SHARES.iter().map(|share| (*share, saved)).collect();
            Growth { name: name.to_owned(), points }
        };
        let ours = [GPU_OVER_CPU, XTQ_OVER_HSA].map(|key| {
            let of_paper = report.rows.iter().filter(|row| NETWORKS.iter().any(|network| network.name == row.case));
            let all: Vec<f64> = of_paper.filter_map(|row| row.extra.get(key)?.as_f64()).collect();
            100.0 * all.iter().sum::<f64>() / all.len().max(1) as f64
        });
        lines.extend(named);
        lines.extend([
            level("mean, paper", PAPER_MEANS[1]),
            level("mean", ours[1]),
            level("HSA of CPU, mean, paper", PAPER_MEANS[0]),
            level("HSA of CPU, mean", ours[0]),
        ]);
        let title = "What XTQ saves of HSA's time to train, 8 nodes, projected";
        Drawing::alone(growth(title, "share of CPU's time in all-reduces, %", "saved, %", &lines))
    }

    /// Networks and what is saved, for people.
    fn summary(report: &Report) -> String {
        let mut text = head(&["network", "share of time, CPU", "HSA saves of CPU", "XTQ saves of HSA"]);
        let percent = |row: &Row, key: &str| {
            row.extra.get(key).and_then(Value::as_f64).map(|share| format!("{:.1} %", share * 100.0))
        };
        for row in &report.rows {
            if let [Some(share), Some(hsa), Some(xtq)] = [SHARE, GPU_OVER_CPU, XTQ_OVER_HSA].map(|key| percent(row, key)) {
                text += &line(&[row.case.clone(), share, hsa, xtq]);
            }
        }
        let profile = profile::table(report);
        if profile.is_empty() { text + "\n" + &judged(&report.rows) } else { profile }
    }
}

/// A row of XTQ's time, beside HSA's and CPU's.
fn of_three(case: &str, op: &str, bytes: u64, [cpu, hsa, xtq]: Three, right: bool) -> Result<Row, Failure> {
    let row = row(case, op, Configuration::Xtq, bytes, xtq)?;
    Ok(row.against("HSA", summary(hsa)?).against("CPU", summary(cpu)?).verified(right))
}

/// The times of a row.
fn times(row: &Row) -> Option<Three> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "picoseconds")]
    let ps = |seconds: f64| Ps((seconds * 1e12).round() as u64);
    let cpu = row.others.first()?.seconds?.median;
    Some([ps(cpu), ps(row.reference_seconds?.median), ps(row.seconds.median)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_follow_from_shares() {
        let three = [Ps(100), Ps(50), Ps(40)];
        assert_eq!(saved(0.0, three), (0.0, 0.0));
        let (hsa, xtq) = saved(0.5, three);
        assert!((hsa - 0.25).abs() < 1e-12 && (xtq - (1.0 - 0.70 / 0.75)).abs() < 1e-12);
        // As many parameters as these networks have.
        assert_eq!(LSTM.iter().sum::<u64>(), 13_634_692);
        assert_eq!(ALEXNET.iter().sum::<u64>(), 60_965_224);
        let sgd: Vec<u64> = gapless_sgd::network::TENSORS.into_iter().chain([1]).map(|len| len as u64).collect();
        assert_eq!(sgd, SGD);
    }

    /// The share is the one that was measured, as far as that can be told.
    #[test]
    fn the_profile_is_the_committed_one() {
        let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/results/cpu/xeon/xtq10.json");
        let Ok(report) = Report::read_json(committed) else {
            eprintln!("SKIPPED: the profile of xtq10: no repository here");
            return;
        };
        let row = report.rows.iter().find(|row| row.protocol == "messages").unwrap();
        let share = |key: &str| row.extra.get(key).and_then(Value::as_f64).unwrap();
        assert!((share(SHARE) - SGD_SHARE).abs() < 0.05, "{}", share(SHARE));
        assert!(share("share_least") < SGD_SHARE && SGD_SHARE < share("share_most"));
    }
}
