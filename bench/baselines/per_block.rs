//! One `cudaMemcpyAsync` a block: to the host (Wu et al. 2016, Figure 1 b), or on the device (c). It is
//! bound by what the shortest copies cost, one after the other, or by the payload.

use super::{Bound, each_or_all, shortest};
use crate::error::Failure;
use crate::gpu::lab::{Lab, Spot};

/// Its name in rows.
pub const NAME: &str = "cudaMemcpyAsync per block";
/// More blocks than this are not tried: seconds would pass.
pub const BLOCKS_MAX: u64 = 1 << 14;

/// Enqueues the copies on the lab's stream.
///
/// # Errors
/// What the driver refuses.
pub fn go(lab: &Lab, pairs: &[(Spot, Spot)]) -> Result<(), Failure> {
    pairs.iter().try_for_each(|(to, from)| lab.copy(lab.stream(), to, from))
}

/// What bounds it between these memories, of which a plain copy moves `gbps`.
///
/// # Errors
/// What the driver refuses.
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
