//! Layouts with closed forms, each beside its general path; and what applications send.

use gapless_layouts::default_set;

use crate::error::Failure;
use crate::gpu::aims::AimKind;
use crate::gpu::session::{Session, SessionWork};
use crate::gpu::subject::{self, PERTURBED_BLOCKS_MAX, Subject};

/// Edges of the papers' matrices.
const EDGES: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16384];
const QUICK_EDGES: [u64; 2] = [64, 512];
/// A transpose of a larger matrix has too many blocks to be listed.
const LISTED_EDGE_MAX: u64 = 2048;
/// Bytes of payload of short blocks: beyond every cache.
const SHORT_BYTES: u64 = 256 << 20;

fn edges(session: &Session<'_>, from: u64) -> Vec<u64> {
    let all: &[u64] = if session.common.quick { &QUICK_EDGES } else { &EDGES };
    let from = if session.common.quick { 0 } else { from };
    all.iter().copied().filter(|&edge| edge >= from).collect()
}

/// Makes a subject and measures it; whatever goes wrong is this case's affair.
pub(super) fn one(
    session: &mut Session<'_>,
    kind: AimKind,
    name: &str,
    quoted: Option<(&str, u64)>,
    make: impl FnOnce() -> Result<Subject, Failure>,
) {
    session.attempt(name, "pack, unpack", |session| {
        let subject = make()?;
        let work = SessionWork { quoted, ..SessionWork::new(&subject, kind) };
        session.measure(&work)
    });
}

pub(super) fn contiguous(session: &mut Session<'_>) -> Result<(), Failure> {
    let quick = [1];
    let all = [1, 8, 64, 256, 1024, 2048];
    let sizes = if session.common.quick { &quick[..] } else { &all[..] };
    for mib in sizes {
        let bytes = mib << 20;
        let name = format!("contiguous bytes={bytes}");
        one(session, AimKind::Contiguous, &name, None, || Subject::contiguous(bytes));
    }
    Ok(())
}

pub(super) fn v(session: &mut Session<'_>) -> Result<(), Failure> {
    for n in edges(session, 512) {
        one(session, AimKind::V, &format!("V n={n}"), Some(("V", n)), || subject::v(n));
        let name = format!("V perturbed n={n}");
        one(session, AimKind::General, &name, None, || subject::v_perturbed(n));
    }
    Ok(())
}

pub(super) fn t(session: &mut Session<'_>) -> Result<(), Failure> {
    for n in edges(session, 1024) {
        one(session, AimKind::T, &format!("T n={n}"), Some(("T", n)), || subject::t(n));
        let name = format!("T perturbed n={n}");
        one(session, AimKind::General, &name, None, || subject::t_perturbed(n));
    }
    Ok(())
}

pub(super) fn x(session: &mut Session<'_>) -> Result<(), Failure> {
    for n in edges(session, 1024) {
        one(session, AimKind::X, &format!("X n={n}"), Some(("X", n)), || subject::x(n, n));
        if n <= LISTED_EDGE_MAX {
            let name = format!("X perturbed n={n}");
            one(session, AimKind::General, &name, None, || subject::x_perturbed(n));
        }
    }
    let oblong: &[(u64, u64)] = match session.common.quick {
        true => &[(96, 33)],
        false => &[(1024, 4096), (8192, 2048), (3000, 5000), (16384, 1024)],
    };
    for &(rows, columns) in oblong {
        let name = format!("X {rows}x{columns}");
        one(session, AimKind::X, &name, None, || subject::x(rows, columns));
    }
    Ok(())
}

pub(super) fn blocks(session: &mut Session<'_>) -> Result<(), Failure> {
    let payload = if session.common.quick { 1 << 16 } else { SHORT_BYTES };
    for len in [4, 8, 12, 16, 24, 32, 64] {
        // Twice the length, and a stride that is an odd number of elements: floats or doubles.
        let odd = 2 * len + if len % 8 == 0 { 8 } else { 4 };
        let kind = if len == 64 { AimKind::Blocks64 } else { AimKind::Short };
        for stride in [2 * len, odd] {
            let name = format!("blocks {len}@{stride}");
            let quoted = (stride == 2 * len).then_some(("blocks", len));
            one(session, kind, &name, quoted, || subject::blocks(len, stride, payload));
        }
        // One stride is enough to see what a list costs.
        let payload = payload.min(PERTURBED_BLOCKS_MAX * len);
        let name = format!("blocks perturbed {len}@{}", 2 * len);
        one(session, AimKind::General, &name, None, || {
            subject::blocks_perturbed(len, 2 * len, payload)
        });
    }
    Ok(())
}

/// What `pingpong` sends when nothing is chosen: both sides of every message, where they differ.
pub(super) fn layouts(session: &mut Session<'_>) -> Result<(), Failure> {
    let mut cases = default_set();
    if session.common.quick {
        cases.truncate(3);
    }
    for case in cases {
        one(session, AimKind::Application, &case.name, None, || {
            Subject::of(format!("app {}", case.name), &case.send)
        });
        if !case.send.datatype.same_structure(&case.recv.datatype) {
            let name = format!("{} (received)", case.name);
            one(session, AimKind::Application, &name, None, || {
                Subject::of(format!("app {name}"), &case.recv)
            });
        }
    }
    Ok(())
}
