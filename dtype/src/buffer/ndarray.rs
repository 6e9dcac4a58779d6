//! Arrays and views of `ndarray`: strides of any sign, axes of any length, in logical order (the last axis varies
//! fastest).
//!
//! # Which elements a mutable view has
//!
//! No two indices of a view that can be written lead to one element. `ndarray` promises that of an owned array, of
//! `ArrayViewMut` and of `&mut ArrayRef`: their safe constructors (`from_shape`, slicing, splitting, permuting) keep to
//! it, `broadcast` makes only views that are read, and the constructors from pointers are `unsafe` and ask for it. So
//! an axis of more than one element has a stride of 0 only in views that are read.

use super::{Buffer, BufferMut, Spread, sealed};
use crate::datatype::Datatype;
use crate::equivalence::{AnyBits, Equivalence};
use crate::error::TypeError;
use crate::fit::ElementType;
use crate::layout::Layout;
use crate::primitive::Primitive;
use ndarray::{ArrayBase, ArrayRef, Data, DataMut, Dimension};
use smallvec::SmallVec;
use std::any::TypeId;
use std::cell::RefCell;

/// Length and stride, in elements, of axes, the slowest first.
type Axes = SmallVec<[(usize, isize); 6]>;

/// The first axis, and those others of more than one element. Others that continue each other are joined; the first stays
/// what it is, whatever the strides are: blocks of a collective are its slices.
fn axes(shape: &[usize], strides: &[isize]) -> Axes {
    let mut axes = Axes::new();
    for (at, (&len, &stride)) in shape.iter().zip(strides).enumerate() {
        if at > 0 && len == 1 {
            continue;
        }
        if let [_, .., (outer, far)] = &mut axes[..]
            && stride.checked_mul(len.cast_signed()) == Some(*far)
        {
            // The product of all lengths is at most `isize::MAX`, says `ndarray`.
            (*outer, *far) = (*outer * len, stride);
        } else {
            axes.push((len, stride));
        }
    }
    axes
}

/// How many elements the first lies behind the lowest, and how many memory has from the lowest to the highest.
fn reach(axes: &Axes) -> (usize, usize) {
    axes.iter().fold((0, 1), |(below, span), &(len, stride)| {
        // The way from one element of an allocation to another fits.
        let way = (len - 1) * stride.unsigned_abs();
        (if stride < 0 { below + way } else { below }, span + way)
    })
}

/// Whether an array has no byte.
fn is_empty<A>(shape: &[usize]) -> bool {
    shape.contains(&0) || size_of::<A>() == 0
}

/// What lies at one index of the first axis, in logical order.
fn layout<A: Equivalence>(axes: &Axes) -> Result<Layout, TypeError> {
    let bytes = size_of::<A>() as i64;
    let mut datatype = match ElementType::of::<A>().is_byte() {
        // As of slices: bytes match everything of their size.
        true => Datatype::from(Primitive::Byte),
        false => A::datatype(),
    };
    for &(len, stride) in axes[1..].iter().rev() {
        datatype = Datatype::hvector(len as u64, 1, stride as i64 * bytes, &datatype)?;
    }
    Datatype::resized(0, axes[0].1 as i64 * bytes, &datatype)?.commit()
}

/// How many layouts a thread keeps: making one takes longer than a short message.
const KEPT_MAX: usize = 32;

thread_local! {
    static KEPT: RefCell<KeptArray> = const { RefCell::new(KeptArray { list: Vec::new(), next: 0 }) };
}

/// The layouts that a thread made last: the type of the elements, the axes without the length of the first, and what
/// was made of them.
struct KeptArray {
    list: Vec<(TypeId, Axes, Layout)>,
    /// Which is replaced next, once there are enough.
    next: usize,
}

impl KeptArray {
    fn find<A: Equivalence>(&self, axes: &Axes) -> Option<Layout> {
        let like = |(element, theirs, _): &&(TypeId, Axes, Layout)| {
            *element == TypeId::of::<A>() && theirs == axes
        };
        self.list.iter().find(like).map(|(_, _, layout)| layout.clone())
    }

    fn keep<A: Equivalence>(&mut self, axes: Axes, layout: &Layout) {
        let made = (TypeId::of::<A>(), axes, layout.clone());
        if self.list.len() < KEPT_MAX {
            self.list.push(made);
        } else {
            self.list[self.next] = made;
            self.next = (self.next + 1) % KEPT_MAX;
        }
    }
}

impl<A: Equivalence, D: Dimension> sealed::Sealed for ArrayRef<A, D> {}

impl<A: Equivalence, D: Dimension> Buffer for ArrayRef<A, D> {
    fn parts(&self) -> (*const u8, usize, ElementType) {
        let (first, element) = (self.as_ptr(), ElementType::of::<A>());
        if is_empty::<A>(self.shape()) {
            return (first.cast(), self.len(), element);
        }
        let (below, span) = reach(&axes(self.shape(), self.strides()));
        (first.wrapping_sub(below).cast(), span, element)
    }

    /// The first axis is the count, so that the blocks of a collective are its slices.
    fn spread(&self) -> Option<Spread> {
        if is_empty::<A>(self.shape()) {
            return None;
        }
        let mut axes = axes(self.shape(), self.strides());
        if let [] | [(1, _) | (_, 1)] = axes[..] {
            return None;
        }
        let origin_bytes = reach(&axes).0 as u64 * size_of::<A>() as u64;
        // The layout does not depend on it.
        let count = std::mem::take(&mut axes.first_mut()?.0) as u64;
        let known = KEPT.try_with(|kept| kept.borrow().find::<A>(&axes));
        let layout = known.ok().flatten().unwrap_or_else(|| {
            let layout = layout::<A>(&axes).expect("an array has fewer than 2^63 bytes");
            let _ = KEPT.try_with(|kept| kept.borrow_mut().keep::<A>(axes, &layout));
            layout
        });
        Some(Spread { origin_bytes, layout, count })
    }
}

impl<A: AnyBits, D: Dimension> BufferMut for ArrayRef<A, D> {
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType) {
        // The pointer that may write.
        let first = self.as_mut_ptr();
        let (start, count, element) = self.parts();
        let below = (first.addr() - start.addr()) / size_of::<A>().max(1);
        (first.wrapping_sub(below).cast(), count, element)
    }
}

impl<A: Equivalence, S: Data<Elem = A>, D: Dimension> sealed::Sealed for ArrayBase<S, D> {}

impl<A: Equivalence, S: Data<Elem = A>, D: Dimension> Buffer for ArrayBase<S, D> {
    fn parts(&self) -> (*const u8, usize, ElementType) {
        (**self).parts()
    }

    fn spread(&self) -> Option<Spread> {
        (**self).spread()
    }
}

impl<A: AnyBits, S: DataMut<Elem = A>, D: Dimension> BufferMut for ArrayBase<S, D> {
    fn parts_mut(&mut self) -> (*mut u8, usize, ElementType) {
        // A shared array's elements become its own here, which may change its strides: `spread` is asked afterwards.
        (**self).parts_mut()
    }
}
