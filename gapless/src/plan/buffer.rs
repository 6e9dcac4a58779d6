//! The arrays that plans exchange parts of.

use crate::device_buf::DeviceBuf;
use crate::error::Error;
use crate::shared_buf::SharedBuf;
use crate::view::region_of;
use gapless_dtype::{AnyBits, ElementType};
use gapless_mem::Region;

mod sealed {
    pub trait Sealed {}
}

/// An array that a [`Plan`](super::Plan) exchanges parts of: a slice, `Vec` or array of elements that can be received
/// ([`AnyBits`](crate::AnyBits)), a [`SharedBuf`], a [`DeviceBuf`]. Sealed: plans believe what it says.
#[diagnostic::on_unimplemented(
    message = "a plan cannot exchange parts of a `{Self}`",
    label = "not a slice, `Vec` or array of elements that can be received, nor a `SharedBuf` or `DeviceBuf`",
    note = "the elements must have `gapless::AnyBits`: numbers do, a struct gets it by \
            `#[derive(gapless::Datatype)]` and `#[repr(C)]` if all its fields have it"
)]
pub trait PlanBuffer: sealed::Sealed {
    /// Its memory, and the type of its elements.
    #[doc(hidden)]
    fn place(&self) -> (Region, ElementType);

    /// The same, to be written.
    #[doc(hidden)]
    fn place_mut(&mut self) -> (Region, ElementType);
}

impl<T: AnyBits> sealed::Sealed for [T] {}
impl<T: AnyBits> sealed::Sealed for Vec<T> {}
impl<T: AnyBits, const N: usize> sealed::Sealed for [T; N] {}
impl sealed::Sealed for SharedBuf {}
impl sealed::Sealed for DeviceBuf {}

impl<T: AnyBits> PlanBuffer for [T] {
    #[inline]
    fn place(&self) -> (Region, ElementType) {
        (region_of(self.as_ptr(), self.len()), ElementType::of::<T>())
    }

    #[inline]
    fn place_mut(&mut self) -> (Region, ElementType) {
        (region_of(self.as_mut_ptr(), self.len()), ElementType::of::<T>())
    }
}

impl<T: AnyBits> PlanBuffer for Vec<T> {
    #[inline]
    fn place(&self) -> (Region, ElementType) {
        self.as_slice().place()
    }

    #[inline]
    fn place_mut(&mut self) -> (Region, ElementType) {
        self.as_mut_slice().place_mut()
    }
}

impl<T: AnyBits, const N: usize> PlanBuffer for [T; N] {
    #[inline]
    fn place(&self) -> (Region, ElementType) {
        self.as_slice().place()
    }

    #[inline]
    fn place_mut(&mut self) -> (Region, ElementType) {
        self.as_mut_slice().place_mut()
    }
}

impl PlanBuffer for SharedBuf {
    fn place(&self) -> (Region, ElementType) {
        self[..].place()
    }

    fn place_mut(&mut self) -> (Region, ElementType) {
        self[..].place_mut()
    }
}

impl PlanBuffer for DeviceBuf {
    fn place(&self) -> (Region, ElementType) {
        (self.region(), ElementType::of::<u8>())
    }

    fn place_mut(&mut self) -> (Region, ElementType) {
        self.place()
    }
}

/// What arrays of a plan have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayShape {
    region: Region,
    element: ElementType,
}

impl ArrayShape {
    pub(super) fn new(region: Region, element: ElementType) -> ArrayShape {
        ArrayShape { region, element }
    }

    pub(super) fn element(&self) -> ElementType {
        self.element
    }

    /// Whether messages that were checked for this array may lie in that one.
    #[inline]
    pub(super) fn check(&self, region: Region, element: ElementType) -> Result<(), Error> {
        // Layouts of Rust types live for ever, so equal names are equal layouts.
        let same = self.region.len() == region.len()
            && self.region.space() == region.space()
            && self.element.layout().id() == element.layout().id();
        if same { Ok(()) } else { Err(self.other(&ArrayShape { region, element })) }
    }

    #[cold]
    fn other(&self, given: &ArrayShape) -> Error {
        Error::OtherArray { planned: self.to_string(), given: given.to_string() }
    }
}

impl std::fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ArrayShape { region, element } = self;
        write!(f, "{} bytes of {} in {}", region.len(), element.name(), region.space())
    }
}
