//! Reading an array while parts of it are exchanged: whatever no message writes.

use super::Plan;
use crate::error::Error;
use crate::view::region_of;
use gapless_dtype::{AnyBits, ElementType};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// The elements of an array that no message of an exchange in flight writes; see [`Plan::exchange_beside`].
pub struct Rest<'a, T> {
    start: *const T,
    len: usize,
    /// Bytes that are written, `start..end`, in ascending order and apart from each other.
    written: &'a [(u64, u64)],
    elements: PhantomData<&'a [T]>,
}

// By hand, as elements need be neither.
impl<T> Clone for Rest<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rest<'_, T> {}

impl<T> fmt::Debug for Rest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rest of {} elements, {} spans written", self.len, self.written.len())
    }
}

// SAFETY: it gives shared references to elements, and nothing else.
unsafe impl<T: Sync> Send for Rest<'_, T> {}

// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rest<'_, T> {}

impl<'a, T> Rest<'a, T> {
    /// Some elements, as long as no message writes one of them. Finding out takes time logarithmic in the blocks that
    /// are received into.
    ///
    /// # Errors
    /// [`Error::InUse`] names the bytes that are written.
    ///
    /// # Panics
    /// The range reaches outside the array, as for a slice.
    pub fn get(&self, range: Range<usize>) -> Result<&'a [T], Error> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {} elements",
            self.len
        );
        // They lie in memory, so their bytes have numbers.
        let [from, to] = [range.start, range.end].map(|at| (at * size_of::<T>()) as u64);
        let next = self.written.partition_point(|(_, end)| *end <= from);
        if let Some(&(start, end)) =
            self.written.get(next).filter(|(start, _)| from < to && *start < to)
        {
            return Err(Error::InUse { start: start.max(from), end: end.min(to) });
        }
        // SAFETY: the range lies in the array, whose elements are values, and which is borrowed exclusively for longer
        // than `'a`. Until then only messages use it, which write none of these bytes, and slices like this one.
        Ok(unsafe { std::slice::from_raw_parts(self.start.wrapping_add(range.start), range.len()) })
    }
}

impl Plan {
    /// As [`exchange_while`](Plan::exchange_while), of work that reads the array: `work` gets what no message writes,
    /// such as the inner cells, of which a solver can compute the next ones meanwhile.
    ///
    /// ```
    /// # fn main() -> Result<(), gapless::Error> {
    /// # use gapless::{Datatype, Error, Primitive, World};
    /// # let world = World::init()?;
    /// # let comm = world.comm();
    /// let one = Datatype::from(Primitive::Double).commit()?;
    /// // Cells 0 and 5 are the neighbours', which is this process on both sides.
    /// let mut cells = [0.0, 1.0, 2.0, 3.0, 4.0, 0.0];
    /// let mut next = cells;
    /// let plan = comm.plan(&cells).send(1, &one, 1, 0, 0)?.send(4, &one, 1, 0, 1)?;
    /// let mut plan = plan.recv(5, &one, 1, 0, 0)?.recv(0, &one, 1, 0, 1)?.build()?;
    /// plan.exchange_beside(&mut cells, |rest| {
    ///     assert!(matches!(rest.get(0..2), Err(Error::InUse { .. })));
    ///     let inner = rest.get(1..5)?;
    ///     next[2..4].copy_from_slice(&[inner[0] + inner[2], inner[1] + inner[3]]);
    ///     Ok::<(), Error>(())
    /// })??;
    /// (next[1], next[4]) = (cells[0] + cells[2], cells[3] + cells[5]);
    /// assert_eq!(next[1..5], [6.0, 4.0, 6.0, 4.0]);
    /// # world.finalize()
    /// # }
    /// ```
    ///
    /// Nothing that `work` reads outlives it:
    ///
    /// ```compile_fail
    /// # fn main() -> Result<(), gapless::Error> {
    /// # let world = gapless::World::init()?;
    /// let mut cells = [0.0; 6];
    /// let mut plan = world.comm().plan(&cells).build()?;
    /// // error: lifetime may not live long enough
    /// let escaped = plan.exchange_beside(&mut cells, |rest| rest.get(0..6))??;
    /// cells[0] = escaped[1];
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`exchange_while`](Plan::exchange_while).
    ///
    /// # Panics
    /// As there.
    pub fn exchange_beside<T: AnyBits, R>(
        &mut self,
        array: &mut [T],
        work: impl FnOnce(Rest<'_, T>) -> R,
    ) -> Result<R, Error> {
        // The only pointer to the array until this returns: another would end this one's right to it.
        let (start, len) = (array.as_mut_ptr().cast_const(), array.len());
        self.bind(region_of(start, len), ElementType::of::<T>())?;
        let written = Arc::clone(&self.written);
        let rest = Rest { start, len, written: &written, elements: PhantomData };
        // SAFETY: all messages lie in `array` (`bind`), which is borrowed exclusively until this call has returned.
        // Meanwhile `work` reads elements of which messages write no byte: `written` has all that they write.
        unsafe { self.around(|| work(rest)) }
    }
}
