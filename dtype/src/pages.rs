//! Pages: one layout, repeated at indices that are data. A list that changes with every message needs no commit: the
//! indices are looked at once, for the largest and the smallest of them, and nothing is derived of them.
//!
//! Units: bytes; indices count strides.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::TypeError;
use crate::flatten::{FlattenError, FlattenFault};
use crate::layout::Layout;
use crate::run::in_memory;

mod head;
mod memory;

pub use head::PagesHead;

/// What flattened pages begin with.
const MAGIC: [u8; 4] = *b"GPAG";
/// Indices that are looked at together: the cache still has them.
const AT_ONCE: usize = 1024;

/// The indices of pages, in host memory. Cheap to clone. A `Vec` is taken over, a slice is copied.
#[derive(Clone, PartialEq, Eq)]
pub enum PageIndices {
    /// Of 32 bits.
    U32(Arc<Vec<u32>>),
    /// Of 64 bits.
    U64(Arc<Vec<u64>>),
}

/// A page, repeated at indices: instance k of the page lies `stride × indices[k]` bytes from displacement 0. The packed
/// stream is that of the page at the first index, then at the second, and so on. An index may occur twice.
///
/// Block tables of paged key-value caches are such lists. What an indexed datatype says of the same places
/// (MPI 4.1 §5.1.2) takes a commit for each list.
///
/// A value is immutable and cheap to clone.
///
/// ```
/// use gapless_dtype::{Convertor, Datatype, Pages, Primitive};
///
/// // Pages of two ints, one after the other in a pool of four.
/// let page = Datatype::contiguous(2, &Primitive::Int.into())?.commit()?;
/// let pages = Pages::new(&page, 8, &[3u32, 0][..])?;
/// let pool: Vec<u8> = (0..32).collect();
/// let mut packed = [0; 16];
/// Convertor::of_pages(&pages).pack(&pool, 0, &mut packed)?;
/// assert_eq!(packed, [24, 25, 26, 27, 28, 29, 30, 31, 0, 1, 2, 3, 4, 5, 6, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pages(Arc<PagesParts>);

struct PagesParts {
    page: Layout,
    stride: u64,
    indices: PageIndices,
    size: u64,
    bounds: Option<(i64, i64)>,
}

/// Why pages could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PagesError {
    /// The packed bytes of all pages do not fit 63 bits.
    Size {
        /// Pages.
        count: u64,
        /// Packed bytes of one.
        size: u64,
    },
    /// A page would lie where 63 bits do not reach.
    Place {
        /// Where in the list the index is.
        position: u64,
        /// The index.
        index: u64,
        /// Bytes from a page to the next.
        stride: u64,
    },
}

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { count, size } => {
                write!(f, "{count} pages of {size} packed bytes overflow 63 bits")
            }
            Self::Place { position, index, stride } => write!(
                f,
                "index {index} at position {position}, with {stride} bytes a page, overflows 63 \
                 bits"
            ),
        }
    }
}

impl std::error::Error for PagesError {}

impl PageIndices {
    /// How many.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            PageIndices::U32(list) => list.len() as u64,
            PageIndices::U64(list) => list.len() as u64,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index at a position; `None` behind the last.
    #[must_use]
    #[inline]
    pub fn get(&self, position: u64) -> Option<u64> {
        let position = usize::try_from(position).ok()?;
        match self {
            PageIndices::U32(list) => list.get(position).map(|index| u64::from(*index)),
            PageIndices::U64(list) => list.get(position).copied(),
        }
    }

    /// Bytes of an index: 4 or 8.
    #[must_use]
    pub fn index_bytes(&self) -> u16 {
        match self {
            PageIndices::U32(_) => 4,
            PageIndices::U64(_) => 8,
        }
    }

    /// The smallest and the largest; `None` if there are none.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            PageIndices::U32(list) => ends(list).map(|(low, high)| (low.into(), high.into())),
            PageIndices::U64(list) => ends(list),
        }
    }

    /// Where in the list the first index above `limit` is, and which it is.
    #[must_use]
    pub fn first_above(&self, limit: u64) -> Option<(u64, u64)> {
        (0..self.len()).find_map(|at| self.get(at).filter(|it| *it > limit).map(|it| (at, it)))
    }
}

impl From<&[u32]> for PageIndices {
    fn from(list: &[u32]) -> PageIndices {
        PageIndices::U32(Arc::new(memory::collect(list.iter().copied())))
    }
}

impl From<&[u64]> for PageIndices {
    fn from(list: &[u64]) -> PageIndices {
        PageIndices::U64(Arc::new(memory::collect(list.iter().copied())))
    }
}

impl From<Vec<u32>> for PageIndices {
    fn from(list: Vec<u32>) -> PageIndices {
        PageIndices::U32(Arc::new(list))
    }
}

impl From<Vec<u64>> for PageIndices {
    fn from(list: Vec<u64>) -> PageIndices {
        PageIndices::U64(Arc::new(list))
    }
}

impl Pages {
    /// `page` at each of `indices`, `stride` bytes from one index to the next.
    ///
    /// # Errors
    /// The pages' packed bytes, or the place of one, overflow 63 bits.
    pub fn new(
        page: &Layout,
        stride: u64,
        indices: impl Into<PageIndices>,
    ) -> Result<Pages, PagesError> {
        let indices = indices.into();
        let (count, size) = (indices.len(), page.size());
        let total = u128::from(size) * u128::from(count);
        let total = i64::try_from(total).map_err(|_| PagesError::Size { count, size })?;
        let mut bounds = None;
        if let Some((low, high)) = indices.range().filter(|_| size > 0) {
            let at = |index: u64, end: i64| {
                let place = i128::from(stride) * i128::from(index) + i128::from(end);
                i64::try_from(place).ok()
            };
            let found = at(low, page.true_lb()).zip(at(high, page.true_ub()));
            let too_far = || {
                let limit = i64::MAX.abs_diff(page.true_ub().max(0)) / stride.max(1);
                let (position, index) = indices.first_above(limit).unwrap_or((0, high));
                PagesError::Place { position, index, stride }
            };
            bounds = Some(found.ok_or_else(too_far)?);
        }
        let (page, size) = (page.clone(), total.cast_unsigned());
        Ok(Pages(Arc::new(PagesParts { page, stride, indices, size, bounds })))
    }

    /// The layout of a page.
    #[must_use]
    #[inline]
    pub fn page(&self) -> &Layout {
        &self.0.page
    }

    /// Bytes from an index to the next.
    #[must_use]
    pub fn stride(&self) -> u64 {
        self.0.stride
    }

    /// The indices.
    #[must_use]
    pub fn indices(&self) -> &PageIndices {
        &self.0.indices
    }

    /// How many pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.indices.len()
    }

    /// Whether there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.indices.is_empty()
    }

    /// Packed bytes of all pages.
    #[must_use]
    pub fn packed_size(&self) -> u64 {
        self.0.size
    }

    /// The bytes that all pages touch, relative to displacement 0, gaps included: lowest, and one past the highest.
    /// `None` if there are none.
    #[must_use]
    pub fn bounds(&self) -> Option<(i64, i64)> {
        self.0.bounds
    }

    /// The pages as bytes, for a peer; all numbers are little endian.
    ///
    /// ```text
    /// pages := "GPAG" version:u16 index_bytes:u16 stride:u64 count:u64 page_bytes:u64
    ///          layout{page_bytes} index{count}
    /// ```
    #[must_use]
    pub fn flatten(&self) -> Vec<u8> {
        let mut out = self.head().flatten(MAGIC);
        out.reserve_exact(in_memory(self.flattened_bytes()) - out.len());
        match &self.0.indices {
            PageIndices::U32(list) => out.extend(list.iter().flat_map(|it| it.to_le_bytes())),
            PageIndices::U64(list) => out.extend(list.iter().flat_map(|it| it.to_le_bytes())),
        }
        out
    }

    /// Bytes of [`flatten`](Self::flatten), without writing them.
    #[must_use]
    pub fn flattened_bytes(&self) -> u64 {
        let list = self.len().saturating_mul(self.0.indices.index_bytes().into());
        list.saturating_add(self.head().flattened_bytes())
    }

    fn head(&self) -> PagesHead {
        let (page, stride) = (self.0.page.clone(), self.0.stride);
        PagesHead { page, stride, count: self.len(), index_bytes: self.0.indices.index_bytes() }
    }

    /// Whether bytes are of pages, and not of a layout, if they are of either.
    #[must_use]
    pub fn are_flattened(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The pages that `bytes` are the whole [`flatten`](Self::flatten) of. Safe with any bytes; time and memory are
    /// linear in their number, and pages that come out are as sound as those that [`new`](Self::new) makes.
    ///
    /// # Errors
    /// [`FlattenError`] with the offset and the fault.
    pub fn unflatten(bytes: &[u8]) -> Result<Pages, FlattenError> {
        let (head, list) = PagesHead::unflatten(MAGIC, bytes)?;
        let fault = |reason| FlattenError { offset: bytes.len() - list.len(), reason };
        if head.count.checked_mul(head.index_bytes.into()) != Some(list.len() as u64) {
            return Err(fault(FlattenFault::Entries { entries: head.count }));
        }
        let indices = if head.index_bytes == 4 {
            let list = list.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it));
            PageIndices::from(memory::collect(list))
        } else {
            let list = list.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it));
            PageIndices::from(memory::collect(list))
        };
        Pages::new(&head.page, head.stride, indices).map_err(|_| fault(FlattenFault::Overflow))
    }

    /// The pages at some positions of the list; `None` if it is shorter.
    #[must_use]
    pub fn part(&self, positions: Range<u64>) -> Option<Pages> {
        let range = usize::try_from(positions.start).ok()?..usize::try_from(positions.end).ok()?;
        let indices = match self.indices() {
            PageIndices::U32(list) => PageIndices::from(list.get(range)?),
            PageIndices::U64(list) => PageIndices::from(list.get(range)?),
        };
        Pages::new(self.page(), self.stride(), indices).ok()
    }

    /// Whether the pages at all positions that both lists have are the same pages.
    #[must_use]
    pub fn begins_as(&self, other: &Pages) -> bool {
        let same = |at| self.indices().get(at) == other.indices().get(at);
        self.is(other)
            || (self.stride() == other.stride()
                && self.page() == other.page()
                && (0..self.len().min(other.len())).all(same))
    }

    /// Where page `position` of the list begins: its displacement 0, from that of all.
    #[inline]
    pub(crate) fn place(&self, position: u64) -> i64 {
        let index = self.0.indices.get(position).unwrap_or_default();
        // `new` found that all places fit.
        self.0.stride.wrapping_mul(index).cast_signed()
    }

    /// Whether both are clones of one value.
    pub(crate) fn is(&self, other: &Pages) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// One instance of an ordinary layout that touches the same bytes in the same order: for whoever knows no pages.
    /// Costs what a commit of the list does.
    ///
    /// # Errors
    /// As for [`commit`](crate::Datatype::commit).
    pub fn to_layout(&self) -> Result<Layout, TypeError> {
        let places: Vec<i64> = (0..self.len()).map(|position| self.place(position)).collect();
        Layout::placed(self.page(), &places)
    }
}

impl Drop for PagesParts {
    fn drop(&mut self) {
        // A list that somebody else has stays theirs.
        match &mut self.indices {
            PageIndices::U32(list) => Arc::get_mut(list).into_iter().for_each(memory::keep),
            PageIndices::U64(list) => Arc::get_mut(list).into_iter().for_each(memory::keep),
        }
    }
}

impl Eq for Pages {}

impl PartialEq for Pages {
    fn eq(&self, other: &Pages) -> bool {
        let parts = |pages: &Pages| (pages.0.stride, pages.0.size);
        self.is(other)
            || (parts(self) == parts(other)
                && self.0.page == other.0.page
                && self.0.indices == other.0.indices)
    }
}

impl fmt::Debug for PageIndices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} indices", self.len())
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("page", self.page())
            .field("stride", &self.0.stride)
            .field("indices", &self.0.indices)
            .finish_non_exhaustive()
    }
}

/// The smallest and the largest of a list.
fn ends<T: Copy + Ord>(list: &[T]) -> Option<(T, T)> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[allow(unsafe_code, reason = "indices of 64 bits are compared six times as fast")]
        // SAFETY: the processor has AVX2.
        return unsafe { ends_avx2(list) };
    }
    ends_any(list)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn ends_avx2<T: Copy + Ord>(list: &[T]) -> Option<(T, T)> {
    ends_any(list)
}

/// Two folds that the compiler turns into vector instructions.
#[inline(always)]
fn ends_any<T: Copy + Ord>(list: &[T]) -> Option<(T, T)> {
    let first = *list.first()?;
    Some(list.chunks(AT_ONCE).fold((first, first), |(low, high), some| {
        let low = some.iter().fold(low, |low, index| low.min(*index));
        (low, some.iter().fold(high, |high, index| high.max(*index)))
    }))
}

#[cfg(test)]
mod tests;
