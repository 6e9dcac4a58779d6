//! What messages between GPUs are to reach, as data, and how a row is judged by it.
//!
//! A mark is for certain protocols: layout to layout or through staging memory for GPUs that reach each other,
//! through host memory for those that do not. A row of another protocol says nothing about its mark: it is
//! *void*, counted and reported as such, and not met.

use gapless_report::{Mark, Row, Time};

/// Kinds of work that are judged alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// Contiguous, V and T between two GPUs.
    Link,
    /// One end without gaps, the other V.
    Half,
    /// Transpose.
    X,
    /// Lists and applications' layouts of blocks of 16 bytes and more.
    Listed,
    /// V and T between two processes on one GPU.
    Shared,
    /// V and T without a mapping, through host memory.
    NoIpc,
    /// A few bytes: against the launches and the message that they cannot do without.
    Latency,
    /// Rank 0's kernels have eight thread blocks: against as many as they like.
    Few,
    /// Beside a kernel that keeps a part of the GPU busy: against an idle GPU.
    Occupied,
    /// Over a network: against as long a message without gaps between page-locked memory of the same two hosts.
    Network,
    /// The same beside a kernel that keeps a part of the GPU busy: against an idle GPU.
    NetworkOccupied,
    /// The same, shown and not judged.
    NetworkFree,
    /// V between two GPUs, in memory from `World::alloc_device` as long as the message's buffers.
    ToSize,
    /// The same in memory of `cudaMalloc`.
    Foreign,
    /// Measured, not judged.
    Free,
}

impl MarkKind {
    /// Whether it is held against a message of the host's over the same network.
    #[must_use]
    pub fn is_of_network(self) -> bool {
        matches!(self, MarkKind::Network | MarkKind::NetworkOccupied | MarkKind::NetworkFree)
    }
}

/// A ratio that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// To what.
    pub reference: &'static str,
    /// The ratio, at least.
    pub at_least: f64,
}

/// What a row without kernel restrictions is called where it is a reference.
pub const UNRESTRICTED: &str = "unrestricted";
/// What a row beside an idle GPU is called where it is a reference.
pub const IDLE: &str = "idle GPU";
/// What a message over a network is held against.
pub const HOST_LINE: &str = "contiguous in the host";
/// What a latency is judged by: itself, over launch-and-wait twice and one host message.
pub const LATENCY: &str = "latency ÷ (2 launch-and-wait + host message)";
/// The most that it may be.
pub const LATENCY_AT_MOST: f64 = 1.2;

const MIB: u64 = 1 << 20;

/// What `kind` is to reach with so many bytes of payload, if anything is asked.
#[must_use]
pub fn aim(kind: MarkKind, payload: u64) -> Option<Aim> {
    let aim = |reference, at_least| Some(Aim { reference, at_least });
    match kind {
        MarkKind::Link if payload >= 256 * MIB => aim("memcpy", 0.95),
        MarkKind::Link if payload >= 64 * MIB => aim("memcpy", 0.93),
        MarkKind::Link if payload >= 16 * MIB => aim("memcpy", 0.85),
        MarkKind::Link if payload >= 4 * MIB => aim("memcpy", 0.70),
        MarkKind::Link if payload >= MIB => aim("memcpy", 0.50),
        MarkKind::Half if payload >= 64 * MIB => aim("memcpy", 0.93),
        MarkKind::X if payload >= 64 * MIB => aim("memcpy", 0.88),
        MarkKind::Listed if payload >= 64 * MIB => aim("memcpy", 0.80),
        MarkKind::Shared if payload >= 256 * MIB => aim("memcpy", 0.90),
        MarkKind::NoIpc if payload >= 64 * MIB => aim("pinned copy", 0.90),
        MarkKind::ToSize => aim("memcpy", 0.93),
        MarkKind::Foreign => aim("memcpy", 0.88),
        MarkKind::Few => aim(UNRESTRICTED, 0.85),
        MarkKind::Occupied | MarkKind::NetworkOccupied => aim(IDLE, 0.90),
        MarkKind::Network if payload >= 64 * MIB => aim(HOST_LINE, 0.95),
        MarkKind::Network if payload >= 16 * MIB => aim(HOST_LINE, 0.90),
        _ => None,
    }
}

/// The protocols that a kind's mark means; none: any.
#[must_use]
pub fn meant(kind: MarkKind) -> &'static [&'static str] {
    const REACHING: &[&str] =
        &["mapped", "mapped-put", "staged-put", "staged-put-copy", "staged-get", "staged-get-copy"];
    match kind {
        MarkKind::Link
        | MarkKind::Half
        | MarkKind::X
        | MarkKind::Listed
        | MarkKind::ToSize
        | MarkKind::Foreign
        | MarkKind::Few
        | MarkKind::Occupied => REACHING,
        // Layout to layout.
        MarkKind::Shared => &["mapped", "mapped-put"],
        MarkKind::NoIpc => &["copy-in-out", "zero-copy-in-out"],
        MarkKind::Latency => &["eager", "mapped", "mapped-put"],
        MarkKind::Network | MarkKind::NetworkOccupied => &["pipeline"],
        MarkKind::NetworkFree | MarkKind::Free => &[],
    }
}

/// Judges a row by its ratio. A ratio that is asked for and not there, or that of a void row, is a mark
/// missed at 0.
#[must_use]
pub fn judge(mut row: Row, kind: MarkKind) -> Row {
    let latency = kind == MarkKind::Latency;
    let aim = aim(kind, row.payload_bytes);
    if aim.is_none() && !latency {
        return row;
    }
    let meant = meant(kind);
    // There and back may use two protocols.
    let strange = row.protocol.split('+').any(|protocol| !meant.contains(&protocol));
    let void = !meant.is_empty() && strange;
    if void {
        let ran = format!("ran {}, means {}", row.protocol, meant.join(" or "));
        row = row.with(VOID, ran);
        row.protocol += " (void)";
    }
    match aim {
        Some(Aim { reference, at_least }) => {
            let reached = row.ratio_to(reference).filter(|_| !void).unwrap_or(0.0);
            row.mark(Mark::at_least(reference, at_least, reached))
        }
        None => {
            // A void one must not be met.
            let reached = latency_ratio(&row).filter(|_| !void).unwrap_or(NEVER);
            row.mark(Mark::at_most(LATENCY, LATENCY_AT_MOST, reached))
        }
    }
}

/// The field of a row whose protocol is not one that its mark is for.
pub const VOID: &str = "void";
/// The value of a latency mark that cannot be judged.
const NEVER: f64 = 1e9;

/// A latency over what it cannot do without; needs the fields that the job adds.
fn latency_ratio(row: &Row) -> Option<f64> {
    let field = |name| row.extra.get(name).and_then(|value| value.as_f64());
    let least = 2.0 * field(LAUNCH)? + field(HOST_MESSAGE)?;
    Some(row.seconds.median / least)
}

/// Seconds from a launch to knowing that it has ended.
pub const LAUNCH: &str = "launch_and_wait_seconds";
/// Seconds of as long a message between the same processes, in host memory.
pub const HOST_MESSAGE: &str = "host_message_seconds";

/// Where a latency's time goes, in a line; `None` for what is no latency.
#[must_use]
pub fn breakdown(row: &Row) -> Option<String> {
    let field = |name| row.extra.get(name).and_then(|value| value.as_f64());
    let (launch, host) = (field(LAUNCH)?, field(HOST_MESSAGE)?);
    let (all, rest) = (row.seconds.median, row.seconds.median - 2.0 * launch - host);
    let sign = if rest < 0.0 { "less" } else { "and" };
    Some(format!(
        "{}, {}: {} = 2 × {} (launch and wait) + {} (host message) {sign} {}",
        row.case,
        row.space,
        Time(all),
        Time(launch),
        Time(host),
        Time(rest.abs())
    ))
}

/// How many marks are met, of how many, how many of those are void, and a line for each that is not met.
#[must_use]
pub fn tally(rows: &[Row]) -> (usize, usize, usize, Vec<String>) {
    let (met, all, mut lines) = crate::gpu::aims::tally(rows);
    let void: Vec<&Row> = rows.iter().filter(|row| row.extra.contains_key(VOID)).collect();
    for row in &void {
        let why = row.extra[VOID].as_str().unwrap_or_default();
        let name = format!("{}, {}: ", row.case, row.op);
        for line in lines.iter_mut().filter(|line| line.starts_with(&name)) {
            *line = format!("{name}void: {why}");
        }
    }
    (met, all, void.len(), lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn row(protocol: &str, mib: u64, ours: f64) -> Row {
        let time = |seconds| Samples::from_seconds([seconds]).summary().unwrap();
        Row::new("V n=1", "oneway", "cuda:0->cuda:1", protocol, mib * MIB, time(ours))
            .against("memcpy", time(1.0))
    }

    #[test]
    fn marks_depend_on_the_payload() {
        let asked = |kind, mib| aim(kind, mib * MIB).map(|aim| aim.at_least);
        let link = [0, 1, 3, 4, 16, 64, 255, 256].map(|mib| asked(MarkKind::Link, mib));
        let as_told =
            [None, Some(0.5), Some(0.5), Some(0.7), Some(0.85), Some(0.93), Some(0.93), Some(0.95)];
        assert_eq!(link, as_told);
        assert_eq!(asked(MarkKind::Shared, 64), None);
        assert_eq!(asked(MarkKind::Shared, 256), Some(0.9));
        assert_eq!(aim(MarkKind::NoIpc, 64 * MIB).unwrap().reference, "pinned copy");
        assert_eq!(asked(MarkKind::Free, 1024), None);
        let network = [4, 16, 63, 64].map(|mib| asked(MarkKind::Network, mib));
        assert_eq!(network, [None, Some(0.9), Some(0.9), Some(0.95)]);
        assert_eq!(asked(MarkKind::NetworkOccupied, 1), Some(0.9));
        assert_eq!(asked(MarkKind::NetworkFree, 1024), None);
    }

    #[test]
    fn another_way_is_void_and_not_met() {
        let good = judge(row("staged-put", 64, 1.0), MarkKind::Link);
        let bad = judge(row("staged-put", 64, 2.0), MarkKind::Link);
        let void = judge(row("pipeline", 64, 1.0), MarkKind::Link);
        assert_eq!(good.met(), Some(true));
        assert_eq!(bad.met(), Some(false));
        assert_eq!((void.met(), void.protocol.as_str()), (Some(false), "pipeline (void)"));
        for (ways, is_void) in [
            ("mapped+mapped-put", false),
            ("mapped-put", false),
            ("mapped+pipeline", true),
            ("staged-put", true),
        ] {
            let row = judge(row(ways, 256, 1.0), MarkKind::Shared);
            assert_eq!(row.extra.contains_key(VOID), is_void, "{ways}");
            assert_eq!(row.met(), Some(!is_void), "{ways}");
        }
        let (met, all, voids, lines) = tally(&[good, bad, void]);
        assert_eq!((met, all, voids, lines.len()), (1, 3, 1, 2));
        assert!(lines.iter().any(|line| line.contains("void: ran pipeline")), "{lines:?}");
        assert_eq!(judge(row("pipeline", 64, 1.0), MarkKind::Free).met(), None);
    }

    #[test]
    fn latencies_are_judged_by_what_they_cannot_do_without() {
        let with = |row: Row| row.with(LAUNCH, 0.4).with(HOST_MESSAGE, 0.2);
        assert_eq!(judge(with(row("eager", 0, 1.1)), MarkKind::Latency).met(), Some(true));
        assert_eq!(judge(with(row("eager", 0, 1.3)), MarkKind::Latency).met(), Some(false));
        assert_eq!(judge(with(row("pipeline", 0, 1.0)), MarkKind::Latency).met(), Some(false));
        assert_eq!(judge(row("eager", 0, 1.0), MarkKind::Latency).met(), Some(false));
        let told = breakdown(&with(row("eager", 0, 1.1))).unwrap();
        assert!(
            told.ends_with("= 2 × 400 ms (launch and wait) + 200 ms (host message) and 100 ms"),
            "{told}"
        );
        assert_eq!(breakdown(&row("eager", 0, 1.0)), None);
    }
}
