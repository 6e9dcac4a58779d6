//! All blocks by one `cuMemcpyBatchAsync`, which drivers from CUDA 12.8 on have. It is bound by what the
//! shortest copies cost in such a batch, or by the payload.

use super::{Bound, each_or_all, shortest};
use crate::error::Failure;
use crate::gpu::lab::{Lab, Spot};

/// Its name in rows.
pub const NAME: &str = "cuMemcpyBatchAsync";
/// More blocks than this are not tried.
pub const BLOCKS_MAX: u64 = 1 << 18;

/// Enqueues the copies on the lab's stream.
///
/// # Errors
/// A driver that has no such call, or what it refuses.
pub fn go(lab: &Lab, pairs: &[(Spot, Spot)]) -> Result<(), Failure> {
    lab.copy_batch(pairs)
}

/// What bounds it between these memories, of which a plain copy moves `gbps`.
///
/// # Errors
/// As [`go`].
pub fn bound(
    lab: &Lab,
    seconds: f64,
    (to, from): (&Spot, &Spot),
    copies: usize,
    payload: u64,
    gbps: f64,
) -> Result<Bound, Failure> {
    let each = shortest(lab, seconds, from, to, copies, |pairs| go(lab, pairs))?;
    Ok(each_or_all(copies, each, payload, gbps))
}
