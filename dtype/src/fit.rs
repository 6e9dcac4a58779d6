//! Whether a layout fits the elements of a slice: it describes none of their gaps, has no other basic types, and places
//! numbers where numbers may lie.

use crate::convertor::{Convertor, ConvertorError};
use crate::equivalence::Equivalence;
use crate::layout::Layout;
use crate::primitive::{Primitive, Sort, kind};
use crate::run::Run;
use crate::signature::SignatureKind;
use std::fmt;

/// The type of a slice's elements, as layouts see it.
#[derive(Clone, Copy, Debug)]
pub struct ElementType {
    bytes: u64,
    basic: Option<Primitive>,
    layout: fn() -> &'static Layout,
    name: fn() -> &'static str,
}

/// Why a layout does not fit elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FitError {
    /// A layout of other basic types than the elements have.
    Type {
        /// A basic type of the layout.
        basic: Primitive,
        /// The type of the elements.
        element: &'static str,
    },
    /// A layout that places numbers where the slice cannot have elements.
    Misaligned {
        /// The type of the elements.
        element: &'static str,
        /// Their alignment, in bytes.
        alignment: u64,
    },
    /// Pages of which not all begin where elements do.
    Stride {
        /// Bytes from an index to the next.
        stride: u64,
        /// What they must be a multiple of.
        step: u64,
        /// The type of the elements.
        element: &'static str,
    },
    /// A layout that describes bytes between the fields of the elements.
    Gap {
        /// From the first byte of an element.
        byte: u64,
        /// The type of the elements.
        element: &'static str,
    },
    /// The instances overflow 63 bits.
    Instances(ConvertorError),
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { basic, element } => {
                write!(f, "the layout has {basic}, and the elements of the buffer are {element}")
            }
            Self::Misaligned { element, alignment } => write!(
                f,
                "the layout places {element} at bytes that are no multiples of {alignment}"
            ),
            Self::Stride { stride, step, element } => write!(
                f,
                "pages are {stride} bytes apart, which is no multiple of the {step} that {element} \
                 needs"
            ),
            Self::Gap { byte, element } => write!(
                f,
                "the layout describes byte {byte} of {element}, which lies in none of its fields"
            ),
            Self::Instances(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for FitError {}

impl From<ConvertorError> for FitError {
    fn from(error: ConvertorError) -> Self {
        Self::Instances(error)
    }
}

impl ElementType {
    /// That of slices of `T`.
    #[must_use]
    #[inline]
    pub const fn of<T: Equivalence>() -> ElementType {
        let (bytes, basic) = (size_of::<T>() as u64, T::BASIC);
        ElementType { bytes, basic, layout: T::layout, name: std::any::type_name::<T> }
    }

    /// Bytes from one element to the next.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether the elements are `u8`, which most programs use as bytes: they match everything of their size.
    #[must_use]
    #[inline]
    pub fn is_byte(self) -> bool {
        self.basic == Some(Primitive::Uint8)
    }

    /// The basic type that an element is, if it is one without gaps: pairs may have some.
    #[must_use]
    #[inline]
    pub fn number(self) -> Option<Primitive> {
        self.basic.filter(|basic| !basic.is_pair())
    }

    /// The layout of one element.
    #[must_use]
    #[inline]
    pub fn layout(self) -> &'static Layout {
        (self.layout)()
    }

    /// The name of the type, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        (self.name)()
    }

    /// Whether `count` instances of a layout fit, wherever a displacement of 0 is the start of an element.
    ///
    /// If the elements are numbers, or arrays of numbers, this follows from facts that a committed layout knows. The
    /// layout's basic types are the elements': whatever C calls them, of the same kind, size and alignment. A complex
    /// number counts as its two parts. `MPI_BYTE` fits all elements, and every layout fits `u8`. Structs are compared
    /// byte by byte with what the layout describes, unless that is their own layout; their gaps must not be in it.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn check(self, layout: &Layout, count: u64) -> Result<(), FitError> {
        if self.is_byte() || layout.size() == 0 || count == 0 {
            return Ok(());
        }
        if self.number().is_none() && self.layout().id() == layout.id() {
            return Ok(());
        }
        let Some(basic) = self.numbers() else { return self.check_fields(layout, count) };
        self.check_types(basic, layout)?;
        self.check_places(basic, layout, count)
    }

    /// Whether pages fit, as [`check`](Self::check) says of instances: the page does, and pages are a multiple of an
    /// element apart; those that have numbers, in slices of numbers, a multiple of the numbers' alignment.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn check_pages(self, page: &Layout, stride: u64) -> Result<(), FitError> {
        self.check(page, 1)?;
        if self.is_byte() || page.size() == 0 {
            return Ok(());
        }
        let step = match self.numbers() {
            Some(_) if page.signature().kind() != SignatureKind::Typed => 1,
            Some(basic) => basic.alignment_bytes(),
            None => self.bytes,
        };
        match stride.is_multiple_of(step) {
            true => Ok(()),
            false => Err(FitError::Stride { stride, step, element: self.name() }),
        }
    }

    /// The basic type that the elements consist of, if they are numbers or arrays of them. A pair is a struct: it may
    /// have gaps.
    fn numbers(self) -> Option<Primitive> {
        self.number().or_else(|| {
            let own = self.layout();
            let basic = own.signature().uniform()?;
            (own.is_contiguous() && !basic.is_pair()).then_some(basic)
        })
    }

    fn check_types(self, basic: Primitive, layout: &Layout) -> Result<(), FitError> {
        let others = |theirs: &Primitive| !is_like(*theirs, basic);
        match layout.signature().types().find(others) {
            None => Ok(()),
            Some(basic) => Err(FitError::Type { basic, element: self.name() }),
        }
    }

    /// Origins are multiples of elements, so only displacements count.
    fn check_places(self, basic: Primitive, layout: &Layout, count: u64) -> Result<(), FitError> {
        if layout.signature().kind() != SignatureKind::Typed {
            return Ok(());
        }
        let alignment = basic.alignment_bytes();
        let multiple = |bytes: u64| bytes.is_multiple_of(alignment);
        let next = if count > 1 { layout.extent() } else { 0 };
        // Powers of two divide negative numbers as they divide their bits.
        if multiple(layout.granularity()) && multiple(next.cast_unsigned()) {
            return Ok(());
        }
        Err(FitError::Misaligned { element: self.name(), alignment })
    }

    /// Elements with several fields, or gaps.
    fn check_fields(self, layout: &Layout, count: u64) -> Result<(), FitError> {
        let own = self.layout();
        let others =
            |theirs: &Primitive| !own.signature().types().any(|ours| is_like(*theirs, ours));
        if let Some(basic) = layout.signature().types().find(others) {
            return Err(FitError::Type { basic, element: self.name() });
        }
        if own.is_contiguous() {
            return Ok(());
        }
        let fields = Fields::of(own, self.bytes)?;
        let mut convertor = Convertor::new(layout, count)?;
        each_run(&mut convertor, |run| match fields.gap_in(run) {
            None => Ok(()),
            Some(byte) => Err(FitError::Gap { byte, element: self.name() }),
        })
    }
}

/// Which bytes of an element a message may have.
struct Fields {
    /// `start..end`, in ascending order and apart from each other.
    spans: Vec<(u64, u64)>,
    /// Bytes of an element.
    bytes: u64,
}

impl Fields {
    fn of(own: &Layout, bytes: u64) -> Result<Fields, ConvertorError> {
        let mut spans = Vec::new();
        each_run(&mut Convertor::new(own, 1)?, |run| {
            // A value's bytes count from its first one.
            let start = run.displacement.cast_unsigned();
            spans.push((start, start.saturating_add(run.len)));
            Ok::<(), ConvertorError>(())
        })?;
        spans.sort_unstable();
        spans.dedup_by(|next, last| {
            let touch = next.0 <= last.1;
            if touch {
                last.1 = last.1.max(next.1);
            }
            touch
        });
        Ok(Fields { spans, bytes })
    }

    /// The first byte of a run that lies in no field, from the start of its element.
    fn gap_in(&self, run: Run) -> Option<u64> {
        let mut at = match i64::try_from(self.bytes) {
            Ok(bytes) if bytes > 0 => run.displacement.rem_euclid(bytes).cast_unsigned(),
            // Without bytes there are no fields.
            _ => return Some(0),
        };
        let mut left = run.len;
        while left > 0 {
            let next = self.spans.partition_point(|(_, end)| *end <= at);
            let Some(&(_, end)) = self.spans.get(next).filter(|(start, _)| *start <= at) else {
                return Some(at);
            };
            left = left.saturating_sub(end - at);
            // Behind the last byte of an element is the first one of the next.
            at = if end == self.bytes { 0 } else { end };
        }
        None
    }
}

fn each_run<E>(
    convertor: &mut Convertor,
    mut see: impl FnMut(Run) -> Result<(), E>,
) -> Result<(), E> {
    let mut runs = [Run::default(); 64];
    loop {
        let (written, _) = convertor.iov(&mut runs, u64::MAX);
        if written == 0 {
            return Ok(());
        }
        runs[..written].iter().try_for_each(|run| see(*run))?;
    }
}

/// Whether a layout's basic type may lie where an element's is.
fn is_like(theirs: Primitive, ours: Primitive) -> bool {
    let ((sort, bytes), own) = (kind(theirs), kind(ours));
    let alike = sort == own.0 || sort == Sort::EitherSign && own.0.is_integer();
    sort == Sort::Untyped || alike && bytes == own.1
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a struct with a datatype, written by hand")]
mod tests;
