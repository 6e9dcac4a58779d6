//! Writing a plan into memory that no device reads: how long the first stage of a first use takes by itself.

use crate::config::Config;
use crate::plan::{MapWriter, Patches, PlanKind, PlanSpec};
use crate::prepare::{in_any_order, piece_bytes, pieces};
use crate::staging::StagingRings;
use crate::writers::{PlanBuild, Writers};
use gapless_dtype::Layout;
use std::time::{Duration, Instant};

/// How a layout's plan is written, and how long that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// Bytes of the plan.
    pub plan_bytes: u64,
    /// Pieces that it is written in.
    pub pieces: usize,
    /// How long each time took.
    pub times: Vec<Duration>,
}

/// Writes the plan of `layout` as an engine told `config` does, `times` times, and throws it away. Any layout
/// has a plan, though an engine makes none where it has a closed form. Needs no device.
///
/// # Panics
/// If the layout has more than 2³² blocks, or writing fails: either is a mistake.
#[must_use]
pub fn rehearse(layout: &Layout, config: &Config, times: usize) -> Rehearsal {
    let config = config.clone().bounded();
    let spec = PlanSpec::of(layout);
    assert!(spec.bytes < u64::MAX, "no plan has more than 2³² blocks");
    let len = piece_bytes(&config, spec.bytes);
    let writers = Writers::new(config.writers);
    let mut staging: Vec<_> = (0..pieces(&config)).map(|_| StagingRings::plain(len)).collect();
    let mut rehearsal = Rehearsal { plan_bytes: spec.bytes, pieces: 0, times: Vec::new() };
    for _ in 0..times {
        let begin = Instant::now();
        if let Some(pieces) = in_any_order(layout, &spec, &config) {
            let build = PlanBuild::new(pieces);
            staging.drain(..).for_each(|piece| build.give(piece));
            writers.call(&build, build.count().saturating_sub(1));
            rehearsal.pieces = build.count();
            for number in 0..build.count() {
                let written = loop {
                    let put = build.put();
                    if let Some(written) = build.take(number).expect("writing fails nowhere") {
                        break written;
                    }
                    if !build.write_one() {
                        build.wait_beyond(put);
                    }
                };
                build.give(written.piece);
            }
            rehearsal.times.push(begin.elapsed());
            staging = build.stop();
        } else if let PlanKind::Mapped(map) = spec.kind {
            let mut writer = MapWriter::new(layout, &spec, map);
            let mut patches = Patches::new();
            rehearsal.pieces = 0;
            while writer.next(staging[0].bytes(), &mut patches).is_some() {
                rehearsal.pieces += 1;
                patches.clear();
            }
            rehearsal.times.push(begin.elapsed());
        }
    }
    rehearsal
}
