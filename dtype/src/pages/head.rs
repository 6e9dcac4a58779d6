//! What flattened pages begin with: all but where they are.

use crate::flatten::{FlattenError, FlattenFault};
use crate::layout::Layout;

const VERSION: u16 = 1;
/// Bytes before the page's layout.
const HEAD: usize = 32;

/// The head of flattened [`Pages`](crate::Pages): the page, how many there are, and how the indices are written. These
/// follow the head, or what stands for them.
///
/// ```text
/// magic:[u8; 4] version:u16 index_bytes:u16 stride:u64 count:u64 page_bytes:u64 layout{page_bytes}
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PagesHead {
    /// A page.
    pub page: Layout,
    /// Bytes from an index to the next.
    pub stride: u64,
    /// How many pages.
    pub count: u64,
    /// Bytes of an index: 4 or 8.
    pub index_bytes: u16,
}

impl PagesHead {
    /// Bytes of [`flatten`](Self::flatten), without writing them.
    #[must_use]
    pub fn flattened_bytes(&self) -> u64 {
        self.page.flattened_bytes().saturating_add(HEAD as u64)
    }

    /// The head as bytes, which begin with `magic`; all numbers are little endian.
    #[must_use]
    pub fn flatten(&self, magic: [u8; 4]) -> Vec<u8> {
        let page = self.page.flatten();
        let mut out = Vec::with_capacity(HEAD + page.len());
        out.extend(magic);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.index_bytes.to_le_bytes());
        let numbers = [self.stride, self.count, page.len() as u64];
        out.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
        out.extend(page);
        out
    }

    /// The head that `bytes` begin with, and what follows it. Trusts nothing.
    ///
    /// # Errors
    /// [`FlattenError`] with the offset and the fault.
    pub fn unflatten(magic: [u8; 4], bytes: &[u8]) -> Result<(PagesHead, &[u8]), FlattenError> {
        let fault = |offset, reason| FlattenError { offset, reason };
        let truncated = fault(bytes.len().min(HEAD), FlattenFault::Truncated);
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(truncated)?;
        if !head.starts_with(&magic) {
            return Err(fault(0, FlattenFault::Magic));
        }
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let long = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (found, expected) = (short(4), VERSION);
        if found != expected {
            return Err(fault(4, FlattenFault::Version { found, expected }));
        }
        let index_bytes = short(6);
        if !matches!(index_bytes, 4 | 8) {
            return Err(fault(6, FlattenFault::Malformed("indices of neither 4 nor 8 bytes")));
        }
        let page_bytes = usize::try_from(long(24)).unwrap_or(usize::MAX);
        let (page, rest) = rest.split_at_checked(page_bytes).ok_or(truncated)?;
        let page =
            Layout::unflatten(page).map_err(|error| fault(HEAD + error.offset, error.reason))?;
        Ok((PagesHead { page, stride: long(8), count: long(16), index_bytes }, rest))
    }
}
