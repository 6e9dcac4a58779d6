//! Everything to the host, gaps included, and a pack there by the CPU (Wu et al. 2016, Figure 1 a). It is
//! bound by a plain copy of the span over the bus and the pack by itself, one after the other.

use gapless_kernels::Direction;

use super::Bound;
use crate::error::Failure;
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::subject::Subject;
use crate::gpu::timing;

/// Its name in rows.
pub const NAME: &str = "whole span, packed by the CPU";

/// Page-locked memory for the span and for the packed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// As long as the subject's span at least.
    pub span: Spot,
    /// As long as its payload at least.
    pub packed: Spot,
}

/// Brings the span to the host and packs it to `host.packed`; waits.
///
/// # Errors
/// What driver or engine refuse.
pub fn go(lab: &Lab, subject: &Subject, laid: &Laid, host: &Host) -> Result<(), Failure> {
    let there = host.span.sub(0, subject.span)?;
    lab.copy(lab.stream(), &there, &laid.place().sub(0, subject.span)?)?;
    lab.settle()?;
    pack(lab, subject, host)
}

fn pack(lab: &Lab, subject: &Subject, host: &Host) -> Result<(), Failure> {
    let here = lab.lay(subject, &host.span)?;
    let packed = host.packed.sub(0, subject.payload)?;
    lab.on_host(Direction::Pack, &here, 0..subject.payload, &packed)
}

/// What bounds it: both parts by themselves.
///
/// # Errors
/// As [`go`].
pub fn bound(
    lab: &Lab,
    seconds: f64,
    subject: &Subject,
    laid: &Laid,
    host: &Host,
) -> Result<Bound, Failure> {
    let (there, place) = (host.span.sub(0, subject.span)?, laid.place());
    let span = place.sub(0, subject.span)?;
    let copied = timing::calls(seconds, || {
        lab.copy(lab.stream(), &there, &span)?;
        lab.settle()
    })?;
    let packed = timing::calls(seconds, || pack(lab, subject, host))?;
    let what =
        format!("copying {} bytes over the bus, then packing them, each by itself", subject.span);
    Ok(Bound { what, seconds: copied.median + packed.median })
}
