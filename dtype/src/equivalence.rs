//! Rust types that have a datatype: what may be sent, what may be received, and what may be received once its bits were
//! looked at.
//!
//! The crates above read and write memory as these traits say, in safe calls. So they are `unsafe` traits, each with its
//! contract as a list; `#[derive(Datatype)]` (crate `gapless-derive`) writes the implementations for structs, whose
//! fields it takes from the compiler.

mod derived;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{OnceLock, PoisonError, RwLock};

use crate::datatype::Datatype;
use crate::fit::ElementType;
use crate::layout::Layout;
use crate::primitive::Primitive;

/// A type whose values may be sent: it has a datatype that describes one value.
///
/// Numbers, `bool` (`MPI_C_BOOL`), `char` (`MPI_UINT32_T`, its code point) and arrays have it; structs derive it:
///
/// ```
/// use gapless_dtype::{Datatype, Equivalence, Primitive};
///
/// assert_eq!(f64::datatype(), Datatype::from(Primitive::Double));
/// assert_eq!(<[f64; 3]>::layout().size(), 24);
/// ```
///
/// An enum gets it by hand, from the integer that represents it:
///
/// ```
/// use gapless_dtype::{CheckedBits, Datatype, Equivalence};
///
/// #[derive(Debug, PartialEq)]
/// #[repr(u8)]
/// enum Phase {
///     Gas,
///     Liquid,
/// }
///
/// // SAFETY: a `Phase` is one initialised byte, without a cell in it.
/// unsafe impl Equivalence for Phase {
///     fn datatype() -> Datatype {
///         u8::datatype()
///     }
/// }
///
/// // SAFETY: 0 and 1 are the values that there are.
/// unsafe impl CheckedBits for Phase {
///     fn is_valid(bytes: &[u8]) -> bool {
///         bytes[0] <= 1
///     }
/// }
/// ```
///
/// # Safety
/// Unsafe code believes this:
///
/// 1. Displacement 0 of [`datatype`](Self::datatype) is a value's first byte, its extent is `size_of::<Self>()`, and
///    every byte that it describes lies inside the value.
/// 2. Every byte that it describes is initialised, in every value: no padding, no payload that only some variants of
///    an enum have, no [`MaybeUninit`](std::mem::MaybeUninit).
/// 3. No such byte changes behind a shared reference: none lies in an [`UnsafeCell`](std::cell::UnsafeCell), so none in
///    an atomic.
/// 4. [`layout`](Self::layout) is what `datatype` commits to, and [`BASIC`](Self::BASIC), if it is not `None`, the basic
///    type that `datatype` is. What is not documented here is as provided.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be sent: it has no datatype",
    label = "`gapless::Equivalence` is missing for `{Self}`",
    note = "a struct gets it by `#[derive(gapless::Datatype)]` and `#[repr(C)]`, if all its fields have it",
    note = "addresses (references, `Box`, `Vec`, `String`, pointers) mean nothing to another process: send what they \
            point to, as a slice"
)]
pub unsafe trait Equivalence: Sized + Send + Sync + 'static {
    /// The basic type that [`datatype`](Self::datatype) is, if it is one.
    const BASIC: Option<Primitive> = None;

    /// The datatype of one value.
    ///
    /// # Panics
    /// Types nest deeper than [`MAX_DEPTH`](crate::limits::MAX_DEPTH).
    fn datatype() -> Datatype;

    /// The datatype, committed: made once, when it is first asked for.
    ///
    /// # Panics
    /// As [`datatype`](Self::datatype).
    fn layout() -> &'static Layout {
        committed::<Self>()
    }

    /// The datatype of a struct whose fields have these offsets in bytes and these datatypes. For the derive macro,
    /// which names nothing but traits: so a path that leads elsewhere leads to other traits, and to no harm.
    #[doc(hidden)]
    fn derived_datatype(fields: &[(usize, Datatype)]) -> Datatype {
        derived::structure::<Self>(fields)
    }

    /// The layout, kept in a place of the type's own. For the derive macro.
    #[doc(hidden)]
    fn derived_layout(slot: &'static OnceLock<Layout>) -> &'static Layout {
        slot.get_or_init(|| commit(&Self::datatype()))
    }

    /// How a message has one value: as so many elements of a type. An array is its elements, everything else one
    /// element of its own type.
    #[doc(hidden)]
    fn as_elements() -> (usize, ElementType) {
        (1, ElementType::of::<Self>())
    }
}

/// A type whose values may be received: every pattern of bits is one of its values.
///
/// `#[derive(Datatype)]` implements it if all fields have it. `bool`, `char` and enums do not: a byte of 2 is no `bool`.
/// Receive `u8` in their place, or use [`CheckedBits`].
///
/// # Safety
/// Whatever bytes are written to the places that [`Equivalence::datatype`] describes in a value, it is a valid value
/// again, and unsafe code that uses it stays sound.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be received: some patterns of bits are none of its values",
    label = "`gapless::AnyBits` is missing for `{Self}`",
    note = "receive a `bool` as `u8`, a `char` as `u32`, an enum as its integer; or use `recv_checked`, which receives \
            into scratch memory and looks at the bits before it stores them",
    note = "a struct gets it by `#[derive(gapless::Datatype)]` and `#[repr(C)]`, if all its fields have it"
)]
pub unsafe trait AnyBits: Equivalence {}

/// A type whose values may be received into scratch memory, and stored once their bits were looked at.
///
/// `#[derive(Datatype)]` implements it if all fields have it. For an enum see [`Equivalence`].
///
/// # Safety
/// If [`is_valid`](Self::is_valid) says so of `size_of::<Self>()` bytes, these bytes are a valid value, whatever the
/// bytes between those are that [`Equivalence::datatype`] describes; unsafe code that uses it stays sound.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` cannot be received, even with a look at its bits",
    label = "`gapless::CheckedBits` is missing for `{Self}`",
    note = "a struct gets it by `#[derive(gapless::Datatype)]` and `#[repr(C)]`, if all its fields have it; an enum by \
            `unsafe impl`"
)]
pub unsafe trait CheckedBits: Equivalence {
    /// Whether these bytes, which are `size_of::<Self>()`, are a value.
    fn is_valid(bytes: &[u8]) -> bool;

    /// Whether the bytes from `offset` on begin with a value. For the derive macro.
    #[doc(hidden)]
    fn derived_is_valid(bytes: &[u8], offset: usize) -> bool {
        let field = bytes.get(offset..).and_then(|rest| rest.get(..size_of::<Self>()));
        field.is_some_and(Self::is_valid)
    }
}

/// The one committed layout of a type that has no place of its own for it: an array, a generic struct.
fn committed<T: Equivalence>() -> &'static Layout {
    static ALL: RwLock<BTreeMap<TypeId, &'static Layout>> = RwLock::new(BTreeMap::new());
    let id = TypeId::of::<T>();
    // Nothing panics while the lock is held.
    if let Some(layout) = ALL.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
        return layout;
    }
    // Other types are asked for theirs meanwhile. It stays for ever: there are only so many types.
    let layout = commit(&T::datatype());
    let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
    all.entry(id).or_insert_with(|| Box::leak(Box::new(layout)))
}

fn commit(datatype: &Datatype) -> Layout {
    datatype.commit().expect("a type of Rust has at most as many bytes as there are addresses")
}

impl Primitive {
    /// The layout of one item.
    #[must_use]
    pub fn layout(self) -> &'static Layout {
        of_basic(self)
    }
}

/// The committed layout of a basic type.
fn of_basic(primitive: Primitive) -> &'static Layout {
    static LAYOUTS: [OnceLock<Layout>; Primitive::ALL.len()] =
        [const { OnceLock::new() }; Primitive::ALL.len()];
    LAYOUTS[primitive as usize].get_or_init(|| commit(&primitive.into()))
}

macro_rules! basic {
    ($($rust:ty => $primitive:ident),* $(,)?) => {
        $(
            // SAFETY: 1 and 2: one item of this basic type, which has the type's size and alignment (below) and no gaps:
            // all of the value's bytes, and a number has no padding. 3: it is no cell. 4: `of_basic` commits the type.
            unsafe impl Equivalence for $rust {
                const BASIC: Option<Primitive> = Some(Primitive::$primitive);

                fn datatype() -> Datatype {
                    Primitive::$primitive.into()
                }

                #[inline]
                fn layout() -> &'static Layout {
                    of_basic(Primitive::$primitive)
                }
            }
            const _: () = {
                assert!(size_of::<$rust>() as u64 == Primitive::$primitive.size_bytes());
                assert!(size_of::<$rust>() as u64 == Primitive::$primitive.extent_bytes());
                assert!(align_of::<$rust>() as u64 == Primitive::$primitive.alignment_bytes());
            };
        )*
    };
}

macro_rules! numbers {
    ($($rust:ty => $primitive:ident),* $(,)?) => {
        basic! { $($rust => $primitive),* }
        $(
            // SAFETY: a number: every pattern of its bits is one.
            unsafe impl AnyBits for $rust {}

            // SAFETY: as above.
            unsafe impl CheckedBits for $rust {
                #[inline]
                fn is_valid(_: &[u8]) -> bool {
                    true
                }
            }
        )*
    };
}

numbers! {
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    isize => Aint,
    f32 => Float, f64 => Double,
}

#[cfg(feature = "half")]
numbers! { half::f16 => Float16, half::bf16 => BFloat16 }

#[cfg(feature = "num-complex")]
numbers! { num_complex::Complex<f32> => FloatComplex, num_complex::Complex<f64> => DoubleComplex }

#[cfg(target_pointer_width = "64")]
numbers! { usize => Uint64 }
#[cfg(target_pointer_width = "32")]
numbers! { usize => Uint32 }

basic! { bool => Bool, char => Uint32 }

// SAFETY: the two values of a `bool` (the Reference, «Boolean type»).
unsafe impl CheckedBits for bool {
    #[inline]
    fn is_valid(bytes: &[u8]) -> bool {
        matches!(bytes, [0 | 1])
    }
}

// SAFETY: `char::from_u32` knows which numbers are values.
unsafe impl CheckedBits for char {
    fn is_valid(bytes: &[u8]) -> bool {
        bytes.try_into().is_ok_and(|bytes| char::from_u32(u32::from_ne_bytes(bytes)).is_some())
    }
}

// SAFETY: 1 to 3: an array's elements lie one behind the other, each at a multiple of its size, and nothing else is in
// it (the Reference, «Array layout»); the elements keep the rest. 4: `layout` is the provided one.
unsafe impl<T: Equivalence, const N: usize> Equivalence for [T; N] {
    fn datatype() -> Datatype {
        Datatype::contiguous(N as u64, &T::datatype()).expect("arrays nest less deep than that")
    }

    fn as_elements() -> (usize, ElementType) {
        (N, ElementType::of::<T>())
    }
}

// SAFETY: of each element.
unsafe impl<T: AnyBits, const N: usize> AnyBits for [T; N] {}

// SAFETY: of each element.
unsafe impl<T: CheckedBits, const N: usize> CheckedBits for [T; N] {
    fn is_valid(bytes: &[u8]) -> bool {
        // Elements without bytes have one value, if any.
        size_of::<T>() == 0 && (N == 0 || T::is_valid(&[]))
            || size_of::<T>() > 0 && bytes.chunks_exact(size_of::<T>()).all(T::is_valid)
    }
}

// SAFETY: 1 to 3: it has no bytes, and none are described. 4: `layout` is the provided one.
unsafe impl<T: ?Sized + Send + Sync + 'static> Equivalence for PhantomData<T> {
    fn datatype() -> Datatype {
        derived::structure::<Self>(&[])
    }
}

// SAFETY: nothing is ever written.
unsafe impl<T: ?Sized + Send + Sync + 'static> AnyBits for PhantomData<T> {}

// SAFETY: it has no bytes, and a value can be made anywhere.
unsafe impl<T: ?Sized + Send + Sync + 'static> CheckedBits for PhantomData<T> {
    fn is_valid(_: &[u8]) -> bool {
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
