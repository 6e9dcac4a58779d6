//! `cudaMemcpy`: the payload without its gaps. What it is bound by is the memory, and the best that the
//! same run saw of it: this call's own time or a kernel's that copies as much.

use gapless_report::Summary;

use super::{Bound, Reading};

/// Its name in rows.
pub const NAME: &str = "cudaMemcpy";

/// Its figure beside the fastest copy of as much that was seen.
#[must_use]
pub fn reading(space: &str, payload: u64, time: Summary, kernel: Summary) -> Reading {
    let seconds = time.median.min(kernel.median);
    let what = "the fastest copy of as much in this run, by itself or by a kernel".to_owned();
    Reading {
        baseline: NAME,
        case: format!("contiguous bytes={payload}"),
        op: "copy",
        space: space.to_owned(),
        payload,
        seconds: time,
        bound: Bound { what, seconds },
    }
}
