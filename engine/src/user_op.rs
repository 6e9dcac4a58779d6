//! Operations that users define (MPI 4.1 §6.9.5).

use crate::{EngineError, Operand};
use gapless_dtype::{Layout, SignatureKind};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A user's function on two vectors of elements of a given datatype, as `MPI_Op_create` makes one. Cheap to clone.
///
/// The function is called on the host, with vectors that belong to the call: they are no user's buffer, and as long
/// as is good for the cache. A reduction calls it as often as it takes, from any thread and from several at a time.
///
/// If the function panics, the panic goes no further: the reduction ends with [`EngineError::Panicked`]. No memory
/// is in use then; elements of the target that were combined before have been written. What the panic carried is
/// never dropped.
///
/// ```
/// use gapless_dtype::{Datatype, Primitive};
/// use gapless_engine::UserOp;
/// // Numbers modulo 7, as bytes.
/// let element = Datatype::from(Primitive::Uint8).commit()?;
/// let product = UserOp::packed("product modulo 7", true, &element, |vectors| {
///     for (left, right) in vectors.invec.iter().zip(vectors.inoutvec) {
///         *right = *left * *right % 7;
///     }
/// });
/// assert!(product.is_commutative());
/// # Ok::<(), gapless_dtype::TypeError>(())
/// ```
#[derive(Clone)]
pub struct UserOp(Arc<Definition>);

type Function = dyn Fn(Vectors<'_>) + Send + Sync;

struct Definition {
    name: String,
    is_commutative: bool,
    element: Layout,
    form: Form,
    function: Box<Function>,
}

/// How elements lie in the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One behind the other, without gaps.
    Packed,
    /// As the datatype says, an extent apart.
    Typed,
}

/// What a user's function is given. It replaces element `i` of `inoutvec` by `invec[i] op inoutvec[i]`.
#[derive(Debug)]
pub struct Vectors<'a> {
    /// The left operands.
    pub invec: &'a [u8],
    /// The right operands, which the results replace.
    pub inoutvec: &'a mut [u8],
    /// Where displacement 0 of the first element is, in bytes from the start of either vector. 0 for packed
    /// elements. Its address is a multiple of 64 in both.
    pub origin: usize,
    /// How many elements there are; at least one.
    pub len: usize,
}

impl UserOp {
    /// An operation on elements of `element` that lie packed in the function's vectors: each as many bytes as the
    /// layout's size, in packed order, without gaps.
    #[must_use]
    pub fn packed(
        name: &str,
        is_commutative: bool,
        element: &Layout,
        function: impl Fn(Vectors<'_>) + Send + Sync + 'static,
    ) -> UserOp {
        UserOp::new(name, is_commutative, element, Form::Packed, Box::new(function))
    }

    /// An operation on elements of `element` that lie in the function's vectors as the layout says, an extent
    /// apart: what an `MPI_User_function` expects. Bytes in gaps are arbitrary.
    #[must_use]
    pub fn typed(
        name: &str,
        is_commutative: bool,
        element: &Layout,
        function: impl Fn(Vectors<'_>) + Send + Sync + 'static,
    ) -> UserOp {
        UserOp::new(name, is_commutative, element, Form::Typed, Box::new(function))
    }

    fn new(
        name: &str,
        is_commutative: bool,
        element: &Layout,
        form: Form,
        function: Box<Function>,
    ) -> UserOp {
        let (name, element) = (name.to_owned(), element.clone());
        UserOp(Arc::new(Definition { name, is_commutative, element, form, function }))
    }

    /// The name that the user gave, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the user said that the order of operands does not matter.
    #[must_use]
    pub fn is_commutative(&self) -> bool {
        self.0.is_commutative
    }

    /// The layout of one element.
    #[must_use]
    pub fn element(&self) -> &Layout {
        &self.0.element
    }

    pub(crate) fn form(&self) -> Form {
        self.0.form
    }

    /// Packed bytes of an element; at least 1.
    pub(crate) fn bytes(&self) -> u64 {
        self.element().size().max(1)
    }

    /// Whether `count` instances of `layout` are whole elements. Bytes stand for anything.
    ///
    /// # Errors
    /// [`EngineError::OtherElements`].
    pub(crate) fn check(
        &self,
        layout: &Layout,
        count: u64,
        operand: Operand,
    ) -> Result<(), EngineError> {
        let element = self.element();
        let (theirs, ours) = (layout.signature(), element.signature());
        let is_typed = |kind| kind == SignatureKind::Typed;
        let is_known = is_typed(theirs.kind()) && is_typed(ours.kind());
        let is_repeated = || {
            let (all, one) = (theirs.digest(count), ours.digest(1));
            let copies = all.elements.checked_div(one.elements).unwrap_or(0);
            all == ours.digest(copies)
        };
        let is_same = layout.id() == element.id() || theirs == ours;
        // What has no elements fits everything, and nothing else fits it.
        let fits =
            layout.size() == 0 || (element.size() > 0 && (is_same || !is_known || is_repeated()));
        match fits {
            true => Ok(()),
            false => Err(EngineError::OtherElements { operand, op: self.name().to_owned() }),
        }
    }

    /// Calls the function.
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub(crate) fn call(&self, vectors: Vectors<'_>) -> Result<(), EngineError> {
        let function = AssertUnwindSafe(|| (self.0.function)(vectors));
        catch_unwind(function).map_err(|payload| {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let message = text.unwrap_or_else(|| "it did not say why".to_owned());
            // Dropping it might panic as well.
            std::mem::forget(payload);
            EngineError::Panicked { op: self.name().to_owned(), message }
        })
    }
}

impl fmt::Debug for UserOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOp")
            .field("name", &self.name())
            .field("is_commutative", &self.is_commutative())
            .field("form", &self.form())
            .finish_non_exhaustive()
    }
}
