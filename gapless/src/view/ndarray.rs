//! Views of `ndarray`, given by value. References to arrays and views are buffers (`gapless_dtype::Buffer`).

use super::{RecvBuffer, SendBuffer, View, ViewMut};
use gapless_dtype::{AnyBits, Equivalence};
use ndarray::{ArrayView, ArrayViewMut, Dimension};

impl<'v, A: Equivalence, D: Dimension> SendBuffer<'v> for ArrayView<'v, A, D> {
    fn into_view(self) -> View<'v> {
        let typed = View::from(&self).typed;
        // SAFETY: this view borrows its elements for `'v`, and `typed` describes them alone.
        unsafe { View::of_typed(typed) }
    }
}

impl<'v, A: AnyBits, D: Dimension> RecvBuffer<'v> for ArrayViewMut<'v, A, D> {
    fn into_view(mut self) -> ViewMut<'v> {
        let typed = ViewMut::from(&mut self).typed;
        // SAFETY: this view borrows its elements exclusively for `'v`, and is given up here; `typed` describes them
        // alone, each once: two indices of a view that can be written lead to two elements (`ndarray` keeps to that, as
        // `gapless_dtype`'s `buffer/ndarray.rs` says, and a receive refuses instances that name a byte twice).
        unsafe { ViewMut::of_typed(typed) }
    }
}
