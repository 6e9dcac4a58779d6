//! What each kind of work is to reach: the marks of the GPU engine, as data.
//!
//! A mark is about a ratio to a reference of the same run (`memcpy`, our `contiguous` kernel, the traffic
//! `floor`), and may hold for some payloads only.

use gapless_report::{Mark, Row};

/// Kinds of work that are judged alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AimKind {
    /// Without gaps.
    Contiguous,
    /// Sub-matrix.
    V,
    /// Triangle.
    T,
    /// Transpose.
    X,
    /// Blocks below 64 bytes.
    Short,
    /// Blocks of 64 bytes.
    Blocks64,
    /// Lists, ascending.
    Ascending,
    /// Lists, shuffled.
    Shuffled,
    /// Faces and halos.
    Face,
    /// What applications send.
    Application,
    /// The general path beside a closed form: measured, not judged.
    General,
    /// V between GPU and page-locked host memory, staged.
    StagedV,
    /// T, likewise.
    StagedT,
    /// By a kernel that reaches host memory itself, with at most four blocks.
    ZeroCopy,
    /// To or from another GPU.
    Peer,
    /// The same with eight blocks.
    PeerFew,
}

/// A ratio that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// To what.
    pub reference: &'static str,
    /// The ratio, at least.
    pub at_least: f64,
}

const MIB: u64 = 1 << 20;

/// What `kind` is to reach with so many bytes of payload; `cached` says that all of its traffic fits the
/// GPU's cache, where memory sets no floor.
#[must_use]
pub fn aims(kind: AimKind, payload: u64, cached: bool) -> Vec<Aim> {
    let aim = |reference, at_least| Aim { reference, at_least };
    match kind {
        AimKind::Contiguous if payload >= 256 * MIB => vec![aim("memcpy", 0.97)],
        AimKind::V => vec![aim("contiguous", 0.98), aim("memcpy", 0.95)],
        AimKind::T if payload >= 256 * MIB => vec![aim("memcpy", 0.96)],
        AimKind::T if payload >= 64 * MIB => vec![aim("memcpy", 0.93)],
        AimKind::T => vec![aim("contiguous", 0.95)],
        AimKind::X => vec![aim("memcpy", 0.95)],
        AimKind::Short | AimKind::Ascending => vec![aim("floor", 0.90)],
        AimKind::Blocks64 => vec![aim("floor", 0.85)],
        AimKind::Shuffled => vec![aim("floor", 0.65)],
        AimKind::Face if payload >= 8 * MIB => vec![aim("floor", 0.90)],
        AimKind::Application if cached => vec![aim("contiguous", 0.70)],
        AimKind::Application => vec![aim("floor", 0.70)],
        AimKind::StagedV if payload >= 64 * MIB => vec![aim("pinned copy", 0.97)],
        AimKind::StagedT if payload >= 64 * MIB => vec![aim("pinned copy", 0.95)],
        AimKind::ZeroCopy => vec![aim("contiguous zero-copy", 0.98)],
        AimKind::Peer => vec![aim("contiguous to peer", 0.97)],
        AimKind::PeerFew => vec![aim("contiguous to peer", 0.90)],
        AimKind::Contiguous
        | AimKind::Face
        | AimKind::General
        | AimKind::StagedV
        | AimKind::StagedT => Vec::new(),
    }
}

/// Judges a row by its ratios. A ratio that is asked for and not there is a mark missed at 0.
#[must_use]
pub fn judge(mut row: Row, kind: AimKind, cached: bool) -> Row {
    for aim in aims(kind, row.payload_bytes, cached) {
        let reached = row.ratio_to(aim.reference).unwrap_or(0.0);
        row = row.mark(Mark::at_least(aim.reference, aim.at_least, reached));
    }
    row
}

/// How many marks the rows meet, of how many; and a line for each that is missed.
#[must_use]
pub fn tally<'a>(rows: impl IntoIterator<Item = &'a Row>) -> (usize, usize, Vec<String>) {
    let (mut met, mut all, mut missed) = (0, 0, Vec::new());
    for row in rows {
        for mark in &row.marks {
            all += 1;
            if mark.met {
                met += 1;
                continue;
            }
            let Mark { what, bound, at_least, value, .. } = mark;
            let sign = if *at_least { "≥" } else { "≤" };
            missed
                .push(format!("{}, {}: {what} {value:.3}, asked {sign} {bound}", row.case, row.op));
        }
    }
    (met, all, missed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_report::Samples;

    fn asked(kind: AimKind, mib: u64) -> Vec<(&'static str, f64)> {
        let aims = aims(kind, mib * MIB, false);
        aims.into_iter().map(|aim| (aim.reference, aim.at_least)).collect()
    }

    #[test]
    fn marks_depend_on_the_payload_where_they_should() {
        assert_eq!(asked(AimKind::Contiguous, 255), []);
        assert_eq!(asked(AimKind::Contiguous, 256), [("memcpy", 0.97)]);
        assert_eq!(asked(AimKind::V, 2), [("contiguous", 0.98), ("memcpy", 0.95)]);
        assert_eq!(asked(AimKind::T, 63), [("contiguous", 0.95)]);
        assert_eq!(asked(AimKind::T, 64), [("memcpy", 0.93)]);
        assert_eq!(asked(AimKind::T, 256), [("memcpy", 0.96)]);
        assert_eq!(asked(AimKind::Face, 7), []);
        assert_eq!(asked(AimKind::Face, 8), [("floor", 0.90)]);
        assert_eq!(asked(AimKind::StagedV, 63), []);
        assert_eq!(asked(AimKind::StagedT, 64), [("pinned copy", 0.95)]);
        assert_eq!(asked(AimKind::General, 999), []);
        assert_eq!(aims(AimKind::Application, 1, true)[0].reference, "contiguous");
        assert_eq!(aims(AimKind::Application, 1, false)[0].reference, "floor");
    }

    #[test]
    fn rows_are_judged_and_counted() {
        let time = |seconds| Samples::from_seconds([seconds]).summary().unwrap();
        let row = |ours| {
            let row = Row::new("V n=1", "pack", "cuda:0", "k", MIB, time(ours));
            row.against("memcpy", time(1.0)).against("contiguous", time(1.0))
        };
        let rows = [judge(row(1.0), AimKind::V, false), judge(row(1.04), AimKind::V, false)];
        assert_eq!(rows[0].met(), Some(true));
        assert_eq!(rows[1].met(), Some(false));
        let (met, all, missed) = tally(&rows);
        assert_eq!((met, all, missed.len()), (3, 4, 1));
        assert!(missed[0].starts_with("V n=1, pack: contiguous 0.962, asked ≥ 0.98"), "{missed:?}");
        let bare = Row::new("V n=1", "pack", "cuda:0", "k", MIB, time(1.0));
        assert_eq!(judge(bare, AimKind::X, false).met(), Some(false));
    }
}
