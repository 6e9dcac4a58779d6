//! Several messages out of and into one buffer at once. A halo exchange sends the rim of an array and receives the
//! ghost cells around it, which the borrow checker cannot tell apart. Here the bytes themselves are compared.

use crate::error::Error;
use crate::view::{View, ViewMut, pages_in, region_of, typed_in};
use gapless_dtype::{AnyBits, ElementType, Layout, Pages, Run};
use gapless_engine::Typed;
use gapless_mem::Region;
use std::marker::PhantomData;

/// Bytes of the buffer, `start..end`, in ascending order and apart from each other.
pub(crate) type Spans = Vec<(u64, u64)>;

/// Divides one buffer among several messages, as long as none writes what another uses.
///
/// Taking a part costs time in proportion to the layouts' blocks, about as much as packing them, for each part taken
/// before. For messages that repeat, a [`Plan`](crate::Plan) does that once.
///
/// ```
/// use gapless::{Datatype, Parts, Primitive, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let column = Datatype::vector(3, 1, 4, &Primitive::Double.into())?.commit()?;
/// let mut matrix: Vec<f64> = (0..12).map(f64::from).collect(); // 3 × 4
/// world.comm().scope(|s| {
///     let mut parts = Parts::of(&mut matrix);
///     let _ = s.irecv(parts.view_mut(3, &column, 1)?, 0, 0)?; // the last column …
///     let _ = s.isend(parts.view(0, &column, 1)?, 0, 0)?; // … from the first
///     assert!(parts.view_mut(0, &column, 1).is_err());
///     Ok(())
/// })?;
/// assert_eq!(matrix[0..4], [0.0, 1.0, 2.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Parts<'a> {
    region: Region,
    element: ElementType,
    taken: UsedBytes,
    memory: PhantomData<&'a mut [u8]>,
}

/// Which bytes of a buffer messages use.
#[derive(Debug, Default)]
pub(crate) struct UsedBytes {
    read: Vec<Spans>,
    written: Vec<Spans>,
}

impl UsedBytes {
    /// All bytes that messages write, in ascending order.
    pub(crate) fn written(&self) -> Spans {
        let mut all = self.written.concat();
        // No two have a byte in common.
        all.sort_unstable();
        all
    }

    /// One more message reads the bytes of `typed`.
    ///
    /// # Errors
    /// [`Error::InUse`]: another writes one of them.
    pub(crate) fn read(&mut self, typed: &Typed) -> Result<(), Error> {
        let spans = spans(typed)?;
        self.written.iter().try_for_each(|taken| apart(taken, &spans))?;
        self.read.push(spans);
        Ok(())
    }

    /// One more message writes the bytes of `typed`.
    ///
    /// # Errors
    /// [`Error::InUse`]: another uses one of them.
    pub(crate) fn write(&mut self, typed: &Typed) -> Result<(), Error> {
        let spans = spans(typed)?;
        self.read.iter().chain(&self.written).try_for_each(|taken| apart(taken, &spans))?;
        self.written.push(spans);
        Ok(())
    }
}

impl<'a> Parts<'a> {
    /// All of a buffer; no part is in use yet.
    #[must_use]
    pub fn of<T: AnyBits>(slice: &'a mut [T]) -> Parts<'a> {
        let region = region_of(slice.as_mut_ptr(), slice.len());
        let (element, memory) = (ElementType::of::<T>(), PhantomData);
        Parts { region, element, taken: UsedBytes::default(), memory }
    }

    /// `count` instances of `layout`, for reading; displacement 0 is `origin` *elements* into the buffer. Parts that are
    /// only read may overlap.
    ///
    /// # Errors
    /// Bytes in use for writing; as [`View::typed`].
    pub fn view(&mut self, origin: u64, layout: &Layout, count: u64) -> Result<View<'a>, Error> {
        self.part(typed_in(self.region, self.element, origin, layout, count)?)
    }

    /// Pages, for reading; displacement 0 is `origin` *elements* into the buffer.
    ///
    /// # Errors
    /// Bytes in use for writing; as [`View::pages`].
    pub fn pages(&mut self, origin: u64, pages: &Pages) -> Result<View<'a>, Error> {
        self.part(pages_in(self.region, self.element, origin, pages)?)
    }

    fn part(&mut self, typed: Typed) -> Result<View<'a>, Error> {
        self.taken.read(&typed)?;
        // SAFETY: the buffer is borrowed exclusively for `'a`, and `typed` lies inside. No part that is written, now or
        // later, has a byte of it (`taken`).
        Ok(unsafe { View::of_typed(typed) })
    }

    /// `count` instances of `layout`, for writing.
    ///
    /// # Errors
    /// Bytes in use already; as [`View::typed`].
    pub fn view_mut(
        &mut self,
        origin: u64,
        layout: &Layout,
        count: u64,
    ) -> Result<ViewMut<'a>, Error> {
        self.part_mut(typed_in(self.region, self.element, origin, layout, count)?)
    }

    /// Pages, for writing. Bytes that two pages share are undefined then, as for [`ViewMut::pages`].
    ///
    /// # Errors
    /// Bytes in use already; as [`View::pages`].
    pub fn pages_mut(&mut self, origin: u64, pages: &Pages) -> Result<ViewMut<'a>, Error> {
        self.part_mut(pages_in(self.region, self.element, origin, pages)?)
    }

    fn part_mut(&mut self, typed: Typed) -> Result<ViewMut<'a>, Error> {
        self.taken.write(&typed)?;
        // SAFETY: as in `part`; no other part has a byte of it.
        Ok(unsafe { ViewMut::of_typed(typed) })
    }
}

/// The bytes that a message uses, from the buffer's start.
fn spans(typed: &Typed) -> Result<Spans, Error> {
    let mut convertor = typed.convertor()?;
    let mut runs = [Run::default(); 64];
    let mut list: Spans = Vec::new();
    loop {
        let (written, _) = convertor.iov(&mut runs, u64::MAX);
        if written == 0 {
            break;
        }
        // `Typed` has checked that all of them lie inside the buffer.
        list.extend(runs[..written].iter().map(|run| {
            let start = typed.origin().wrapping_add_signed(run.displacement);
            (start, start.wrapping_add(run.len))
        }));
    }
    if !list.is_sorted() {
        list.sort_unstable();
    }
    list.dedup_by(|next, last| {
        let touch = next.0 <= last.1;
        if touch {
            last.1 = last.1.max(next.1);
        }
        touch
    });
    Ok(list)
}

/// Whether no byte is in both.
fn apart(taken: &Spans, wanted: &Spans) -> Result<(), Error> {
    let (mut a, mut b) = (taken.iter().peekable(), wanted.iter().peekable());
    while let (Some(&&(a_start, a_end)), Some(&&(b_start, b_end))) = (a.peek(), b.peek()) {
        let (start, end) = (a_start.max(b_start), a_end.min(b_end));
        if start < end {
            return Err(Error::InUse { start, end });
        }
        if a_end <= b_end {
            a.next();
        } else {
            b.next();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn bytes_are_told_apart() {
        let byte = Datatype::from(Primitive::Byte);
        let vector = |count, len, stride| {
            Datatype::vector(count, len, stride, &byte).unwrap().commit().unwrap()
        };
        let mut memory = [0u8; 64];
        let mut parts = Parts::of(&mut memory);
        let even = vector(8, 2, 4);
        parts.view_mut(0, &even, 1).unwrap();
        parts.view(2, &even, 1).unwrap();
        parts.view(2, &even, 1).unwrap();
        let error = parts.view_mut(30, &vector(1, 3, 1), 1).unwrap_err();
        assert_eq!(error, Error::InUse { start: 30, end: 32 });
        assert!(matches!(
            parts.view(0, &vector(1, 1, 1), 1),
            Err(Error::InUse { start: 0, end: 1 })
        ));
        // Backwards, and out of order.
        assert!(parts.view_mut(60, &vector(7, 1, -4), 1).is_ok());
        assert!(parts.view_mut(36, &vector(1, 1, 1), 1).is_err());
        assert!(parts.view_mut(37, &vector(1, 3, 1), 1).is_ok());
        assert!(matches!(parts.view(60, &even, 1), Err(Error::Buffer(_))));
        assert!(parts.view_mut(0, &vector(0, 1, 1), 1).is_ok());
    }

    #[test]
    fn every_small_pair_is_judged_as_by_marking_bytes() {
        let byte = Datatype::from(Primitive::Byte);
        let mut all = Vec::new();
        for (count, len, stride) in [(1, 1, 1), (2, 1, 2), (2, 2, 3), (3, 1, -2), (2, 3, 1)] {
            for origin in 4..12u64 {
                all.push((origin, Datatype::vector(count, len, stride, &byte).unwrap()));
            }
        }
        let marks = |(origin, datatype): &(u64, Datatype)| {
            let mut memory = [0u8; 24];
            let layout = datatype.commit().unwrap();
            let mut convertor = gapless_dtype::Convertor::new(&layout, 1).unwrap();
            let ones = [1u8; 8];
            let size = usize::try_from(layout.size()).unwrap();
            let origin = usize::try_from(*origin).unwrap();
            convertor.unpack(&ones[..size], &mut memory, origin).unwrap();
            memory
        };
        for one in &all {
            for other in &all {
                let mut memory = [0u8; 24];
                let mut parts = Parts::of(&mut memory);
                parts.view_mut(one.0, &one.1.commit().unwrap(), 1).unwrap();
                let allowed = parts.view(other.0, &other.1.commit().unwrap(), 1).is_ok();
                let both = marks(one).iter().zip(marks(other)).any(|(a, b)| *a == 1 && b == 1);
                assert_eq!(allowed, !both, "{one:?} and {other:?}");
            }
        }
    }
}
