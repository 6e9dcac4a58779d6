//! One piece of memory for all ranks of a shared window: the part of each follows that of the rank before it, at the same
//! distance in all processes (MPI 4.1 §12.2.3). Rank 0 gives it, and the others map it.

use crate::error::WindowError;
use crate::make::key;
use crate::numbers::{KEY, read_key, write_key};
use crate::window::CallError;
use gapless_bml::Ranks;
use gapless_mem::{DeviceError, Lease};

/// The parts, by rank, of which this rank's has so many bytes. Collective. `allocate` is called at rank 0, with the sum; at all
/// ranks if that is 0.
///
/// # Errors
/// Rank 0 has no such memory; a rank cannot map it.
pub fn contiguous_parts<R: Ranks>(
    ranks: &R,
    bytes: u64,
    allocate: impl FnOnce(u64) -> Result<Lease, R::Error>,
) -> Result<Vec<Lease>, R::Error>
where
    R::Error: CallError,
{
    let me = ranks.rank();
    let all = ranks.allgather_words(&[bytes])?;
    let sum = all.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    // All ranks come to the same.
    let sum = sum.ok_or(WindowError::NoMemory { rank: 0 })?;
    let own = (me == 0 || sum == 0).then(|| allocate(sum)).transpose();
    let mut ours = vec![0u8; KEY * all.len()];
    if let (0, Ok(Some(whole))) = (me, &own) {
        ranks.with_bml(|bml| {
            for (rank, place) in (1..).zip(ours.chunks_mut(KEY).skip(1)) {
                if let Some(key) = ranks.process(rank).ok().and_then(|to| key(bml, to, whole)) {
                    write_key(&key, place);
                }
            }
        })?;
    }
    let mut theirs = vec![0u8; KEY * all.len()];
    ranks.alltoall(&ours, &mut theirs)?;
    let whole = match own {
        Ok(None) => {
            let of = ranks.process(0)?;
            let whole = ranks.with_bml(|bml| {
                let (peer, mapped) = bml.mapped(of)?;
                Some(mapped.map(peer, &read_key(&theirs)?).ok()?.lease().clone())
            })?;
            Ok(whole.filter(|whole| whole.region().len() == sum))
        }
        own => own,
    };
    let is_there = matches!(whole, Ok(Some(_)));
    let missing = ranks.first_no(is_there)?;
    let whole = whole?;
    let (Some(whole), None) = (whole, missing) else {
        return Err(WindowError::Unshared { rank: missing.unwrap_or(me) }.into());
    };
    let mut start = 0;
    let part = |bytes: &u64| {
        let part = whole.sub(start, *bytes);
        start += bytes;
        part
    };
    let parts: Result<Vec<Lease>, _> = all.iter().map(part).collect();
    Ok(parts.map_err(DeviceError::from)?)
}
