//! `gapless bench coll mixture`: different short collectives in turn.

use super::show::{BenchOutput, Column, Figure};
use super::{Coll, rank};
use crate::collectives::{Form, Mixture};
use crate::failure::Failure;
use gapless::World;
use std::time::Instant;

/// Rounds, at least and at most, where the time decides.
const ROUNDS: (usize, usize) = (5, 1000);

/// Whether that is what was asked for.
pub(super) fn is_meant(coll: &Coll) -> bool {
    coll.operation.eq_ignore_ascii_case("mixture")
}

/// An error if there are options that it does not know.
pub(super) fn check(coll: &Coll) -> Result<(), Failure> {
    let common = [
        coll.common.message_size.map(|_| "--message-size"),
        (coll.form != Form::Blocking).then_some("--form"),
        coll.algorithm.as_ref().map(|_| "--algorithm"),
        coll.protocol.map(|_| "--protocol"),
        coll.asks_for_blocks(),
    ];
    match common.into_iter().flatten().next() {
        None => Ok(()),
        Some(option) => {
            let why = "a mixture is of blocking calls of doubles, and has its own sizes".to_owned();
            Err(Failure::BadOption { option, value: String::new(), why })
        }
    }
}

/// Measures it. `-i` is the number of mixtures in each of the fewest rounds.
pub(super) fn measure(coll: &Coll, world: &World) -> Result<(), Failure> {
    let plan = coll.common.plan();
    let mut all = Mixture::new(world)?;
    let columns = (Column::MICROSECONDS, Some(Column::REPEATED));
    let mut output = BenchOutput::new(&coll.common, world.rank() == 0, "coll mixture", columns);
    let ranks = world.size();
    output.begin(&format!("{ranks} ranks, memory host, µs of {}", Mixture::WHAT))?;
    output.series(None)?;
    if !all.check()? {
        return rank::wrong(world, Mixture::WHAT.to_owned());
    }
    let few = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let times = plan.iterations.map_or(Mixture::TIMES, few);
    all.mixture(plan.warmup.map_or(times, few))?;
    let (begin, mut rounds) = (Instant::now(), Vec::new());
    loop {
        rounds.push([all.mixture(times)?, all.repeated(times)?]);
        let fewest = plan.iterations.is_some() && rounds.len() >= ROUNDS.0;
        let late = begin.elapsed().as_secs_f64() > plan.seconds && rounds.len() >= ROUNDS.0;
        // Rank 0's clock decides.
        let mut over = [u8::from(fewest || late || rounds.len() >= ROUNDS.1)];
        world.comm().bcast(&mut over, 0)?;
        if over[0] != 0 {
            break;
        }
    }
    let samples: Vec<f64> = rounds.iter().map(|[mixture, _]| *mixture).collect();
    let repeated = super::show::median(rounds.iter().map(|[_, repeated]| *repeated));
    #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
    let average = samples.iter().sum::<f64>() / samples.len() as f64;
    output.figure(&Figure {
        case: "mixture".to_owned(),
        average,
        repeated: Some(repeated),
        samples,
        space: "host".to_owned(),
        protocol: "table".to_owned(),
        blocks: 1,
        extra: vec![("ranks", u64::from(ranks)), ("iterations", u64::from(times))],
        ..Figure::default()
    })?;
    output.finish()
}
