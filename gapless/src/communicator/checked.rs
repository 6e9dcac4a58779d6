//! Receiving what not every pattern of bits is a value of: into scratch memory, with a look at the bits.

use super::Communicator;
use crate::error::Error;
use crate::view::{ViewMut, all_of, region_of};
use gapless_dtype::{CheckedBits, Convertor, ElementType, transfer_raw};
use gapless_pml::{Source, Status, TagSel};

impl Communicator {
    /// Receives elements that need a look at their bits: `bool`, `char`, enums, and structs that have them. The message
    /// comes into scratch memory, and is copied to `into` if all its elements are valid. Of an element of which only the
    /// first part came, the rest stays as it is.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// let world = gapless::World::init()?;
    /// let comm = world.comm();
    /// let sent = comm.isend_owned(vec![true, false, true], comm.rank(), 0)?;
    /// let mut flags = [false; 3];
    /// comm.recv_checked(&mut flags, comm.rank(), 0)?;
    /// assert_eq!(flags, [true, false, true]);
    /// # sent.wait().1?;
    /// world.finalize()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv`](Communicator::recv); [`Error::Invalid`]: an element is none, `into` is as it was, and the message is
    /// gone.
    pub fn recv_checked<T: CheckedBits>(
        &self,
        into: &mut [T],
        source: impl Into<Source>,
        tag: impl Into<TagSel>,
    ) -> Result<Status, Error> {
        let mut scratch = vec![0u8; size_of_val(into)];
        let region = region_of(scratch.as_mut_ptr().cast_const(), scratch.len());
        let typed = all_of(region, into.len(), ElementType::of::<T>());
        // SAFETY: the scratch memory is as long as the elements, and is used by nothing else before the receive is over.
        let mut view = unsafe { ViewMut::of_typed(typed) };
        let status = self.recv_view(&mut view, source.into(), tag.into())?;
        if status.bytes == 0 {
            return Ok(status);
        }
        // There are bytes, so that the elements have some.
        complete(into, &mut scratch, status.bytes)?;
        let came = usize::try_from(status.bytes.div_ceil(T::layout().size())).unwrap_or(usize::MAX);
        let elements = scratch.chunks_exact(size_of::<T>()).take(came);
        if let Some(index) = elements.clone().position(|bytes| !T::is_valid(bytes)) {
            let (index, element) = (index as u64, std::any::type_name::<T>());
            return Err(Error::Invalid { index, element, status });
        }
        let bytes = elements.len() * size_of::<T>();
        let target = into.as_mut_ptr().cast::<u8>();
        // SAFETY: `bytes` are those of whole elements, at most of all of `into`, and the scratch memory is as long. Each
        // element's are a valid value, as `is_valid` said.
        unsafe { std::ptr::copy_nonoverlapping(scratch.as_ptr(), target, bytes) };
        Ok(status)
    }
}

/// Takes the rest of an element that came in part from the one that it goes to.
fn complete<T: CheckedBits>(into: &[T], scratch: &mut [u8], came: u64) -> Result<(), Error> {
    let size = T::layout().size();
    let missing = (size - came % size) % size;
    let all =
        Convertor::new(T::layout(), into.len() as u64).map_err(gapless_dtype::FitError::from)?;
    let (mut from, mut to) = (all.clone(), all);
    from.seek(came).map_err(gapless_dtype::FitError::from)?;
    to.seek(came).map_err(gapless_dtype::FitError::from)?;
    let (start, target) = (into.as_ptr().cast::<u8>(), scratch.as_mut_ptr());
    // SAFETY: what a layout describes of its type's values lies in them and is initialised; the scratch memory is as long
    // as the slice, and nobody else's.
    unsafe { transfer_raw(&mut from, start, &mut to, target, missing) };
    Ok(())
}
