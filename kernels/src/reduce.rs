//! Which kernel combines: an operation, elements, and how the sides lie. Together they are its name in every image.
//!
//! Kernels know operations and elements by what they do to bits, so that few serve all of MPI's: the sum of complex
//! numbers is that of their parts, a maximum of signed integers is one of unsigned integers with a bit flipped. What
//! remains is a *mask* (`combine.h`).

use crate::Width;
use std::fmt;

/// Sources of one launch, at most.
pub const SOURCES_MAX: usize = 8;

/// What becomes of two elements (`OP_…` in `numbers.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CombineOperation {
    /// Bitwise and, or, exclusive or.
    Bits,
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Logical and, or, exclusive or.
    Logic,
    /// Maximum and minimum.
    Order,
    /// Maximum and minimum of values with indices.
    Loc,
}

/// What an element is (`TYPE_…` in `numbers.h`). Of [`CombineOperation::Loc`] it is the value, before an index of 4
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// An integer of 1 byte.
    I8,
    /// An integer of 2 bytes.
    I16,
    /// An integer of 4 bytes.
    I32,
    /// An integer of 8 bytes.
    I64,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// Two binary32: a complex number.
    C32,
    /// Two binary64: a complex number.
    C64,
}

impl Element {
    const ALL: [Element; 10] = [
        Element::I8,
        Element::I16,
        Element::I32,
        Element::I64,
        Element::F16,
        Element::BF16,
        Element::F32,
        Element::F64,
        Element::C32,
        Element::C64,
    ];

    fn name(self) -> &'static str {
        match self {
            Element::I8 => "i8",
            Element::I16 => "i16",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::F16 => "f16",
            Element::BF16 => "bf16",
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::C32 => "c32",
            Element::C64 => "c64",
        }
    }
}

impl CombineOperation {
    const ALL: [CombineOperation; 6] = [
        CombineOperation::Bits,
        CombineOperation::Sum,
        CombineOperation::Prod,
        CombineOperation::Logic,
        CombineOperation::Order,
        CombineOperation::Loc,
    ];

    fn name(self) -> &'static str {
        match self {
            CombineOperation::Bits => "bits",
            CombineOperation::Sum => "sum",
            CombineOperation::Prod => "prod",
            CombineOperation::Logic => "logic",
            CombineOperation::Order => "order",
            CombineOperation::Loc => "loc",
        }
    }

    /// Whether there are kernels for it (`types.h`).
    fn takes(self, element: Element) -> bool {
        use Element as E;
        match element {
            E::I8 => self != CombineOperation::Loc,
            E::I32 => true,
            E::I16 | E::I64 => self != CombineOperation::Bits,
            E::F16 | E::BF16 => {
                matches!(
                    self,
                    CombineOperation::Sum | CombineOperation::Prod | CombineOperation::Order
                )
            }
            E::F32 | E::F64 => !matches!(self, CombineOperation::Bits | CombineOperation::Logic),
            E::C32 | E::C64 => self == CombineOperation::Prod,
        }
    }
}

/// An operation on elements, for which there are kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Combine {
    operation: CombineOperation,
    element: Element,
}

impl Combine {
    /// How many there are places for in tables by [`number`](Combine::number).
    pub const NUMBERS: usize = CombineOperation::ALL.len() * Element::ALL.len();

    /// `None` if there is no kernel.
    #[must_use]
    pub fn new(operation: CombineOperation, element: Element) -> Option<Combine> {
        operation.takes(element).then_some(Combine { operation, element })
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Combine> {
        let each =
            |operation| Element::ALL.into_iter().filter_map(move |e| Combine::new(operation, e));
        CombineOperation::ALL.into_iter().flat_map(each)
    }

    /// Its place in a table: below [`NUMBERS`](Combine::NUMBERS).
    #[must_use]
    pub fn number(self) -> usize {
        self.operation as usize * Element::ALL.len() + self.element as usize
    }

    /// The operation.
    #[must_use]
    pub fn operation(self) -> CombineOperation {
        self.operation
    }

    /// The elements.
    #[must_use]
    pub fn element(self) -> Element {
        self.element
    }

    /// Whether it computes with binary64, which OpenCL devices need not have.
    #[must_use]
    pub fn needs_doubles(self) -> bool {
        matches!(self.element, Element::F64 | Element::C64)
    }

    /// Packed bytes of an element.
    #[must_use]
    pub fn bytes(self) -> u32 {
        let index = if self.operation == CombineOperation::Loc { 4 } else { 0 };
        index
            + match self.element {
                Element::I8 => 1,
                Element::I16 | Element::F16 | Element::BF16 => 2,
                Element::I32 | Element::F32 => 4,
                Element::I64 | Element::F64 | Element::C32 => 8,
                Element::C64 => 16,
            }
    }

    /// What an element is read and written in, so that it must lie at multiples of that.
    #[must_use]
    pub fn part(self) -> Width {
        let is_pair = self.operation == CombineOperation::Loc;
        match self.element {
            Element::I8 => Width::W1,
            Element::I16 | Element::F16 | Element::BF16 => Width::W2,
            Element::I32 | Element::F32 | Element::C32 => Width::W4,
            Element::I64 | Element::F64 if is_pair => Width::W4,
            Element::I64 | Element::F64 | Element::C64 => Width::W8,
        }
    }

    /// Whether words of 16 bytes hold whole elements.
    #[must_use]
    pub fn fills_words(self) -> bool {
        self.operation != CombineOperation::Loc
    }

    /// OpenCL C that defines what [`combine.h`](crate::opencl_reduce_source) is read for.
    pub(crate) fn defines(self) -> String {
        let (op, ty) = (self.operation.name(), self.element.name());
        let (op_number, ty_number) = (self.operation as u32, self.element as u32);
        format!(
            "#define OP {op_number}\n#define TYPE {ty_number}\n#define NAME(form) reduce_{op}_{ty}_##form\n"
        )
    }
}

/// How the sides of a reduction lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// All without gaps, and at the same place within 16 bytes: in words of 16 bytes.
    Flat,
    /// Blocks on a grid, or without gaps: in words of 16 bytes.
    Grid,
    /// The same, element by element.
    Each,
}

/// One kernel of the image of reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReduceKernel {
    /// What becomes of two elements.
    pub combine: Combine,
    /// How the sides lie.
    pub form: Form,
}

impl ReduceKernel {
    /// How many there are places for in tables by [`number`](ReduceKernel::number).
    pub const NUMBERS: usize = Combine::NUMBERS * 3;

    /// All of them.
    pub fn all() -> impl Iterator<Item = ReduceKernel> {
        Combine::all().flat_map(|combine| {
            let forms = [Form::Flat, Form::Grid, Form::Each].into_iter();
            let forms = forms.filter(move |&form| combine.fills_words() || form == Form::Each);
            forms.map(move |form| ReduceKernel { combine, form })
        })
    }

    /// Its place in a table: below [`NUMBERS`](ReduceKernel::NUMBERS).
    #[must_use]
    pub fn number(self) -> usize {
        self.combine.number() * 3 + self.form as usize
    }

    /// Whether its arguments are too large for OpenCL's parameters, so that there the last parameter is a buffer that
    /// holds them.
    #[must_use]
    pub fn tabled(self) -> bool {
        self.form != Form::Flat
    }
}

impl fmt::Display for ReduceKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Flat => "flat",
            Form::Grid => "grid",
            Form::Each => "each",
        };
        let Combine { operation, element } = self.combine;
        write!(f, "reduce_{}_{}_{form}", operation.name(), element.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_has_a_name_and_a_place_of_its_own() {
        let names: BTreeSet<_> = ReduceKernel::all().map(|kernel| kernel.to_string()).collect();
        let places: BTreeSet<_> = ReduceKernel::all().map(ReduceKernel::number).collect();
        assert_eq!((names.len(), places.len()), (places.len(), ReduceKernel::all().count()));
        assert!(places.iter().all(|&place| place < ReduceKernel::NUMBERS));
        assert!(names.contains("reduce_sum_f32_flat") && names.contains("reduce_loc_i16_each"));
        assert!(!names.contains("reduce_loc_i16_flat") && !names.contains("reduce_bits_f32_flat"));
    }

    #[test]
    fn elements_are_whole_parts() {
        for combine in Combine::all() {
            assert_eq!(combine.bytes() % combine.part().bytes(), 0, "{combine:?}");
            assert!(!combine.fills_words() || 16 % combine.bytes() == 0, "{combine:?}");
        }
    }
}
