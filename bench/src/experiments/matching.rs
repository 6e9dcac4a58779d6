//! `matching`: what a message costs while others are outstanding.
//!
//! Two ends in one thread over the loopback transport, so that nothing but the message layer grows.
//! `posted`: so many receives wait, each for a tag of its own; a message matches one of them, which is
//! posted again. `unexpected`: so many messages wait, each with a tag of its own; a receive takes one
//! of them, which is sent again. `same` takes the same one every time and shows what is computed;
//! `random` takes a random one and also pays for the cache misses of tables that are larger and larger.
//! `forwards` and `backwards` begin with nothing outstanding: so many are posted or sent, then all of them
//! are matched, in the same order or from the last to the first; the time is one message's share of it all.

use gapless_cli::pingpong::Pinned;
use gapless_pml::RequestId;
use gapless_report::{PlotError, Report, Row, Summary, curves};

use crate::check::same;
use crate::clock::alone;
use crate::duo::{Duo, SLOT};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, by_kind};
use crate::random::Random;
use crate::table::by_count;

/// The experiment.
pub struct Matching;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How many receives or messages are outstanding; repeatable, or separated by commas
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "10,100,1000,10000,100000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    outstanding: Vec<u32>,
}

impl Experiment for Matching {
    type Options = Options;

    const NAME: &'static str = "matching";
    const ABOUT: &'static str = "cost of a message by outstanding receives and unexpected messages";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let counts: &[u32] = if common.quick { &[10, 100] } else { &options.outstanding };
        let pinned = Pinned::to(0);
        let progress = common.progress(2 * counts.len());
        let mut rows = Vec::new();
        for kind in [MatchKind::Posted, MatchKind::Unexpected] {
            let mut first: Option<(u32, [Summary; 4])> = None;
            for &count in counts {
                progress.set_message(format!("{} {count}", kind.name()));
                let mut all = Crowd::new(kind, 0, count, common.seed)?;
                let (forwards, backwards) = (all.whole(count, false, common)?, all.whole(count, true, common)?);
                drop(all);
                let mut crowd = Crowd::new(kind, count, count, common.seed)?;
                let (same, random) = (crowd.measure(Pick::Same, common)?, crowd.measure(Pick::Random, common)?);
                let times = [same, random, forwards, backwards];
                let (fewest, theirs) = *first.get_or_insert((count, times));
                for (op, (time, theirs)) in OPS.into_iter().zip(times.into_iter().zip(theirs)) {
                    rows.push(
                        Row::new(crowd.case(), op, "host", "eager", SLOT, time)
                            .against(format!("{fewest} outstanding"), theirs)
                            .verified(true)
                            .with("outstanding", count),
                    );
                }
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = format!(
            "a message of {SLOT} B between two ends in one thread over the loopback transport, send \
             and receive together;\nposted: so many receives wait, a message matches one of them; \
             unexpected: so many messages wait, a receive takes one\nof them; same: the same one every \
             time; random: any, out of tables that leave the caches; ÷: speed relative to the\nfewest; {}.\n",
            match pinned.processor() {
                Some(processor) => format!("on processor {processor}"),
                None => "not pinned".to_owned(),
            }
        );
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let count = |row: &Row| row.extra.get("outstanding").and_then(serde_json::Value::as_u64);
        let lines = by_kind(report, |row| count(row).unwrap_or(1));
        let title = format!("a message, by what is outstanding ({})", report.machine.cpu);
        Drawing::alone(curves(&title, "outstanding", &lines))
    }

    fn summary(report: &Report) -> String {
        by_count(report, "outstanding")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchKind {
    Posted,
    Unexpected,
}

impl MatchKind {
    fn name(self) -> &'static str {
        match self {
            MatchKind::Posted => "posted",
            MatchKind::Unexpected => "unexpected",
        }
    }
}

/// Which of what is outstanding has its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pick {
    Same,
    Random,
}

/// What is measured, in the order of the rows.
const OPS: [&str; 4] = ["same", "random", "forwards", "backwards"];

/// Two ends with so much outstanding.
struct Crowd {
    kind: MatchKind,
    count: u32,
    duo: Duo,
    random: Random,
    /// By tag: the receive that waits for it. Empty for unexpected messages.
    posted: Vec<RequestId>,
    /// By tag: the number that the waiting message carries. Empty for posted receives.
    numbers: Vec<u64>,
    next: u64,
}

impl Crowd {
    /// `count` outstanding, with room for `most`.
    fn new(kind: MatchKind, count: u32, most: u32, seed: u64) -> Result<Crowd, Failure> {
        let duo = Duo::new(u64::from(most) * SLOT)?;
        let random = Random::new(seed);
        let (posted, numbers) = (Vec::new(), Vec::new());
        let mut crowd = Crowd { kind, count, duo, random, posted, numbers, next: 0 };
        for at in 0..count {
            match kind {
                MatchKind::Posted => {
                    let receive = crowd.duo.post(at.into(), tag(at))?;
                    crowd.posted.push(receive);
                }
                MatchKind::Unexpected => {
                    let number = crowd.send(tag(at))?;
                    crowd.numbers.push(number);
                }
            }
        }
        Ok(crowd)
    }

    fn case(&self) -> String {
        format!("{} outstanding={}", self.kind.name(), self.count)
    }

    fn measure(&mut self, pick: Pick, common: &Common) -> Result<Summary, Failure> {
        // Every byte of a good many messages, then only that they arrive.
        for _ in 0..2000 {
            let (slot, number) = self.message(pick)?;
            let found = self.duo.received(slot)?.to_ne_bytes();
            let case = self.case();
            same(&found, &number.to_ne_bytes())
                .map_err(|wrong| Failure::Wrong { case, op: "message", wrong })?;
        }
        let mut failed = None;
        let time = alone(common.seconds(), || {
            if failed.is_none() {
                failed = self.message(pick).err();
            }
        });
        match failed {
            Some(failure) => Err(failure),
            None => time.map_err(Failure::samples("a message")),
        }
    }

    /// One message's share of `count` that are all outstanding before the first is matched.
    fn whole(&mut self, count: u32, backwards: bool, common: &Common) -> Result<Summary, Failure> {
        self.round(count, backwards)?;
        for at in 0..count {
            let number = self.numbers[usize::try_from(at).unwrap_or(0)];
            let found = self.duo.received(at.into())?.to_ne_bytes();
            let case = format!("{} outstanding={count}", self.kind.name());
            same(&found, &number.to_ne_bytes())
                .map_err(|wrong| Failure::Wrong { case, op: "message", wrong })?;
        }
        let mut failed = None;
        let time = alone(common.seconds(), || {
            if failed.is_none() {
                failed = self.round(count, backwards).err();
            }
        });
        match failed {
            Some(failure) => Err(failure),
            None => time.map_err(Failure::samples("a message")).map(|time| time.divided_by(count)),
        }
    }

    /// Makes `count` outstanding, then none; notes the number of each message.
    fn round(&mut self, count: u32, backwards: bool) -> Result<(), Failure> {
        self.posted.clear();
        self.numbers.clear();
        for at in 0..count {
            match self.kind {
                MatchKind::Posted => self.posted.push(self.duo.post(at.into(), tag(at))?),
                MatchKind::Unexpected => {
                    let number = self.send(tag(at))?;
                    self.numbers.push(number);
                }
            }
        }
        self.numbers.resize(self.numbers.len().max(self.posted.len()), 0);
        for turn in 0..count {
            let pick = if backwards { count - 1 - turn } else { turn };
            let at = usize::try_from(pick).unwrap_or(0);
            match self.kind {
                MatchKind::Posted => {
                    self.next += 1;
                    self.numbers[at] = self.next;
                    let sent = self.duo.send(self.next, tag(pick))?;
                    self.duo.finish(sent, self.posted[at])?;
                }
                MatchKind::Unexpected => {
                    let received = self.duo.post(pick.into(), tag(pick))?;
                    self.duo.arrived(received)?;
                }
            }
        }
        Ok(())
    }

    /// One message; gives the slot it arrived in and what it should hold.
    fn message(&mut self, pick: Pick) -> Result<(u64, u64), Failure> {
        let pick = match pick {
            Pick::Same => self.count / 2,
            Pick::Random => u32::try_from(self.random.below(self.count.into())).unwrap_or(0),
        };
        let at = usize::try_from(pick).unwrap_or(0);
        match self.kind {
            MatchKind::Posted => {
                self.next += 1;
                let sent = self.duo.send(self.next, tag(pick))?;
                self.duo.finish(sent, self.posted[at])?;
                self.posted[at] = self.duo.post(pick.into(), tag(pick))?;
                Ok((pick.into(), self.next))
            }
            MatchKind::Unexpected => {
                let number = self.numbers[at];
                let received = self.duo.post(pick.into(), tag(pick))?;
                self.duo.arrived(received)?;
                self.numbers[at] = self.send(tag(pick))?;
                Ok((pick.into(), number))
            }
        }
    }

    /// A message for which nothing is posted.
    fn send(&mut self, tag: i32) -> Result<u64, Failure> {
        self.next += 1;
        let sent = self.duo.send(self.next, tag)?;
        self.duo.sent(sent)?;
        Ok(self.next)
    }
}

fn tag(at: u32) -> i32 {
    i32::try_from(at).unwrap_or(i32::MAX)
}
