//! The engine of host memory: dtype's convertor on regions. Stateless; packing and unpacking allocate nothing. A
//! transfer between layouts of short runs goes through a buffer of up to 256 KiB, on the heap if it is above 4 KiB.

use crate::{Engine, EngineError, Typed};
use gapless_dtype::{Convertor, transfer_raw};
use gapless_mem::{Completion, Region, Space};
use std::ops::Range;

/// Packs and unpacks memory that the CPU may touch, on the caller's thread: completions are ready
/// when a call returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostEngine;

const NAME: &str = "host";

/// Where displacement 0 of `typed` is. The pointer may lie outside the region; only what the
/// layout adds to it is accessed, and that was checked to lie inside.
pub(crate) fn origin(typed: &Typed) -> Result<*mut u8, EngineError> {
    Ok(start(typed.region())?.wrapping_add(usize::try_from(typed.origin()).unwrap_or(usize::MAX)))
}

pub(crate) fn start(region: Region) -> Result<*mut u8, EngineError> {
    region.as_ptr().ok_or(EngineError::WrongSpace { engine: NAME, space: region.space() })
}

/// A cursor at the start of the range, once range and region are known to fit.
pub(crate) fn cursor(typed: &Typed, range: &Range<u64>) -> Result<Convertor, EngineError> {
    typed.check_range(range)?;
    let mut convertor = typed.convertor()?;
    convertor.seek(range.start)?;
    Ok(convertor)
}

pub(crate) fn check_length(region: Region, range: &Range<u64>) -> Result<(), EngineError> {
    let bytes = range.end.saturating_sub(range.start);
    if region.len() != bytes {
        return Err(EngineError::LengthMismatch { region: region.len(), range: bytes });
    }
    Ok(())
}

pub(crate) fn wait_all(after: &[Completion]) -> Result<(), EngineError> {
    for earlier in after {
        earlier.wait()?;
    }
    Ok(())
}

// SAFETY: the numbers are those of the contract.
// 1. The convertor's loops touch what the layout describes, from the range's start for its length; `Typed` has
//    found all of it inside the region.
// 2. All is done by this thread between `wait_all`, which ends with an error if earlier work failed, and return.
// 3. `cursor`, `check_length` and `start` come first.
unsafe impl Engine for HostEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn serves(&self, space: Space) -> bool {
        space.cpu_accessible()
    }

    unsafe fn pack(
        &self,
        src: &Typed,
        range: Range<u64>,
        dst: Region,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        check_length(dst, &range)?;
        let mut convertor = cursor(src, &range)?;
        let (from, to) = (origin(src)?, start(dst)?);
        wait_all(after)?;
        // SAFETY: `Typed` proved that the layout stays inside its region, which the caller keeps
        // readable; `to` is valid for the range's length, checked above; the caller guarantees
        // that they do not overlap.
        unsafe { convertor.pack_raw(from, to, range.end - range.start) };
        Ok(Completion::Ready)
    }

    unsafe fn unpack(
        &self,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        check_length(src, &range)?;
        let mut convertor = cursor(dst, &range)?;
        let (from, to) = (start(src)?, origin(dst)?);
        wait_all(after)?;
        // SAFETY: as in `pack`, the other way round.
        unsafe { convertor.unpack_raw(from, to, range.end - range.start) };
        Ok(Completion::Ready)
    }

    unsafe fn transfer(
        &self,
        src: &Typed,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let mut source = cursor(src, &range)?;
        let mut target = cursor(dst, &range)?;
        let (from, to) = (origin(src)?, origin(dst)?);
        wait_all(after)?;
        // SAFETY: as in `pack`, with both layouts proven inside their regions.
        unsafe { transfer_raw(&mut source, from, &mut target, to, range.end - range.start) };
        Ok(Completion::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_mem::Device;
    use gapless_mem::fake::FakeDevice;

    fn column() -> gapless_dtype::Layout {
        Datatype::vector(4, 1, 4, &Primitive::Int.into()).unwrap().commit().unwrap()
    }

    /// The column's bytes out of 64.
    fn column_of(matrix: &[u8]) -> Vec<u8> {
        (0..16).map(|at| matrix[at / 4 * 16 + at % 4]).collect()
    }

    #[test]
    fn a_range_is_packed_and_unpacked_and_gaps_stay() {
        let source: Vec<u8> = (0..64).collect();
        let mut target = vec![0xEE; 64];
        let mut wire = [0u8; 7];
        let from = Typed::new(Region::of(&source), 0, &column(), 1).unwrap();
        let to = Typed::new(Region::of_mut(&mut target), 0, &column(), 1).unwrap();
        // SAFETY: all three buffers live through the calls and do not overlap.
        unsafe { HostEngine.pack(&from, 2..9, Region::of_mut(&mut wire), &[]) }.unwrap();
        assert_eq!(wire, [2, 3, 16, 17, 18, 19, 32]);
        // SAFETY: as above.
        unsafe { HostEngine.unpack(Region::of(&wire), &to, 2..9, &[]) }.unwrap();
        let touched: Vec<usize> = (0..64).filter(|&i| target[i] != 0xEE).collect();
        assert_eq!(touched, [2, 3, 16, 17, 18, 19, 32]);
        assert!(touched.iter().all(|&i| target[i] == source[i]));
    }

    #[test]
    fn it_serves_memory_that_the_processor_reaches_and_no_other() {
        assert_eq!(HostEngine.name(), NAME);
        assert!(HostEngine.serves(Space::Host));
        assert!(!HostEngine.serves(Space::Device { kind: "fake", device: 0 }));
        assert!(!HostEngine.serves(Space::Cuda { device: 0 }));
    }

    #[test]
    fn layout_to_layout_needs_no_staging() {
        let source: Vec<u8> = (0..64).collect();
        let mut target = vec![0xEE; 16];
        let from = Typed::new(Region::of(&source), 0, &column(), 1).unwrap();
        let to = Typed::contiguous(Region::of_mut(&mut target));
        // SAFETY: both buffers live through the call and do not overlap.
        unsafe { HostEngine.transfer(&from, &to, 0..16, &[]) }.unwrap();
        assert_eq!(target, [0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35, 48, 49, 50, 51]);
    }

    /// Calls of every kind come after a copy that a device has still to make: they read and overwrite what it
    /// wrote.
    #[test]
    fn nothing_is_touched_before_what_it_comes_after() {
        let device = FakeDevice::with_delay(0, 3);
        let fresh: Vec<u8> = (0..64).collect();
        let packed: Vec<u8> = column_of(&fresh);
        for call in 0..3 {
            let (mut first, mut second) = (vec![0xEE; 64], vec![0xDD; 64]);
            let (first, second) = (Region::of_mut(&mut first), Region::of_mut(&mut second));
            // SAFETY: all buffers live until the calls below have waited for this.
            let copied = unsafe { device.copy(first, Region::of(&fresh), &[]) }.unwrap();
            assert_eq!(copied.poll(), Ok(false), "it is not there yet");
            let (bytes, after) = (second.sub(0, 16).unwrap(), [copied]);
            let typed = Typed::new(first, 0, &column(), 1).unwrap();
            let into = Typed::new(second, 0, &column(), 1).unwrap();
            let flat = first.sub(0, 16).unwrap();
            let done = match call {
                // SAFETY: all buffers live through the call and do not overlap.
                0 => unsafe { HostEngine.pack(&typed, 0..16, bytes, &after) },
                // SAFETY: as above.
                1 => unsafe {
                    HostEngine.transfer(&typed, &Typed::contiguous(bytes), 0..16, &after)
                },
                // SAFETY: as above.
                _ => unsafe { HostEngine.unpack(flat, &into, 0..16, &after) },
            };
            assert!(matches!(done, Ok(Completion::Ready)));
            // SAFETY: the region is that of a vector, which nobody writes any more.
            let second = unsafe { std::slice::from_raw_parts(second.as_ptr().unwrap(), 64) };
            match call {
                0 | 1 => assert_eq!(second[..16], packed, "call {call}"),
                _ => assert_eq!(column_of(second), fresh[..16]),
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let source = [0u8; 64];
        let mut wire = [0u8; 8];
        let from = Typed::new(Region::of(&source), 0, &column(), 1).unwrap();
        let to = Region::of_mut(&mut wire);
        // SAFETY: refused before anything is touched.
        let error = unsafe { HostEngine.pack(&from, 0..9, to, &[]) }.unwrap_err();
        assert_eq!(error, EngineError::LengthMismatch { region: 8, range: 9 });
        // SAFETY: as above.
        let error = unsafe { HostEngine.pack(&from, 9..17, to, &[]) }.unwrap_err();
        assert!(matches!(error, EngineError::RangeOutside { end: 17, .. }));
        let far = Region::new(Space::Cuda { device: 0 }, 0, 0, 8);
        // SAFETY: as above.
        let error = unsafe { HostEngine.pack(&from, 0..8, far, &[]) }.unwrap_err();
        assert!(matches!(error, EngineError::WrongSpace { .. }));
    }
}
