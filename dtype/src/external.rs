//! `external32`, MPI's portable representation of data (MPI 4.1 §14.5.2): big-endian, without gaps, in sizes that are the
//! same everywhere. `MPI_Pack_external` and its kin are these functions (MPI 4.1 §5.3).
//!
//! Of integers whose size is another here (`long`), the low half is packed, and extended when it is unpacked; a wide
//! character is one of UTF-16 there, U+FFFD if it takes two. A `long double` is binary128 there: x87's has 64 bits of
//! significand, so what is packed comes back, and what others packed is rounded to the nearest, ties to even.

use crate::convertor::ConvertorError;
use crate::items::{ItemRun, Items};
use crate::layout::Layout;
use crate::primitive::Primitive;
use crate::run::in_memory;
use crate::signature::Signature;
use Primitive as P;
use std::fmt;

/// Why instances could not be packed or unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalError {
    /// The external bytes are more than there is room for, or than there are.
    Room {
        /// Bytes that the instances take.
        needed: u64,
        /// Bytes of the buffer.
        found: u64,
    },
    /// The instances overflow 63 bits.
    Instances(ConvertorError),
}

impl fmt::Display for ExternalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room { needed, found } => {
                write!(f, "the instances take {needed} bytes as external32, and there are {found}")
            }
            Self::Instances(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ExternalError {}

impl From<ConvertorError> for ExternalError {
    fn from(error: ConvertorError) -> Self {
        Self::Instances(error)
    }
}

impl Primitive {
    /// Bytes of one item as `external32` (MPI 4.1 Table 14.2); of a pair, those of its parts.
    pub(crate) fn external_bytes(self) -> u64 {
        match self {
            P::Long | P::UnsignedLong => 4,
            P::Wchar => 2,
            P::LongDouble => 16,
            P::LongDoubleComplex => 32,
            pair if pair.is_pair() => pair.parts().map(|(part, _)| part.external_bytes()).sum(),
            _ => self.size_bytes(),
        }
    }
}

/// Bytes of `count` instances as `external32` (`MPI_Pack_external_size`, MPI 4.1 §5.3), capped at 2⁶⁴ − 1.
pub fn external_size(signature: &Signature, count: u64) -> u64 {
    signature.sum(Primitive::external_bytes).saturating_mul(count)
}

/// Packs `count` instances as `external32` into the front of `out` (`MPI_Pack_external`); returns how many bytes.
///
/// # Errors
///
/// [`ExternalError::Room`] where `out` is too short; nothing was written then. [`ExternalError::Instances`].
///
/// # Safety
///
/// Every byte of the instances, at `origin` plus its displacement, may be read through `origin`, and none is in `out`.
pub unsafe fn pack_external(
    layout: &Layout,
    count: u64,
    origin: *const u8,
    out: &mut [u8],
) -> Result<usize, ExternalError> {
    let size = in_room(layout, count, out.len())?;
    let mut rest = &mut out[..size];
    let mut element = [0; ELEMENT_MAX];
    for run in Items::new(layout, count)? {
        let (native, external) = lengths(run);
        for i in 0..run.items {
            let from = place(origin, run, i);
            let element = &mut element[..native];
            // SAFETY: an item of the instances, which may be read; the other side is an array of this call.
            unsafe { std::ptr::copy_nonoverlapping(from, element.as_mut_ptr(), native) };
            let Some(out) = rest.split_off_mut(..external) else { break };
            encode(run.primitive, element, out);
        }
    }
    Ok(size)
}

/// Unpacks `count` instances from the `external32` bytes at the front of `packed` (`MPI_Unpack_external`); returns how many
/// bytes that took. Gaps stay untouched.
///
/// # Errors
///
/// [`ExternalError::Room`] where `packed` is too short; nothing was written then. [`ExternalError::Instances`].
///
/// # Safety
///
/// Every byte of the instances, at `origin` plus its displacement, may be written through `origin`, and none is in `packed`.
pub unsafe fn unpack_external(
    packed: &[u8],
    layout: &Layout,
    count: u64,
    origin: *mut u8,
) -> Result<usize, ExternalError> {
    let size = in_room(layout, count, packed.len())?;
    let mut rest = &packed[..size];
    let mut element = [0; ELEMENT_MAX];
    for run in Items::new(layout, count)? {
        let (native, external) = lengths(run);
        for i in 0..run.items {
            let to = place(origin.cast_const(), run, i).cast_mut();
            let Some(bytes) = rest.split_off(..external) else { break };
            let element = &mut element[..native];
            decode(run.primitive, bytes, element);
            // SAFETY: an item of the instances, which may be written; the other side is an array of this call.
            unsafe { std::ptr::copy_nonoverlapping(element.as_ptr(), to, native) };
        }
    }
    Ok(size)
}

/// Bytes of the longest basic item.
const ELEMENT_MAX: usize = 32;

fn in_room(layout: &Layout, count: u64, found: usize) -> Result<usize, ExternalError> {
    let needed = external_size(layout.signature(), count);
    let found = found as u64;
    if needed > found {
        return Err(ExternalError::Room { needed, found });
    }
    Ok(in_memory(needed))
}

/// Bytes of an item here, and as external32.
fn lengths(run: ItemRun) -> (usize, usize) {
    let bytes = run.primitive.size_bytes();
    (in_memory(bytes), in_memory(run.primitive.external_bytes()))
}

/// Where item `i` lies. It is at an address, so the offset fits.
fn place(origin: *const u8, run: ItemRun, i: u64) -> *const u8 {
    let at = run.displacement.wrapping_add_unsigned(i * run.primitive.size_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "the distance of two addresses")]
    origin.wrapping_offset(at as isize)
}

/// One basic item, from this machine's representation.
fn encode(primitive: Primitive, native: &[u8], out: &mut [u8]) {
    match primitive {
        P::FloatComplex | P::DoubleComplex | P::Float16Complex | P::Float128Complex => {
            halves(native, out, reversed)
        }
        P::LongDoubleComplex => halves(native, out, long_double_out),
        P::LongDouble => long_double_out(native, out),
        P::Wchar => {
            let mut code = [0; 4];
            little(native, &mut code);
            let unit = u16::try_from(u32::from_le_bytes(code)).unwrap_or(0xfffd);
            out.copy_from_slice(&unit.to_be_bytes());
        }
        // The low bytes, if it is longer here.
        _ => {
            let mut bytes = [0; ELEMENT_MAX];
            little(native, &mut bytes[..native.len()]);
            let low = bytes[..out.len()].iter().rev();
            out.iter_mut().zip(low).for_each(|(out, byte)| *out = *byte);
        }
    }
}

/// One basic item, into this machine's representation.
fn decode(primitive: Primitive, external: &[u8], native: &mut [u8]) {
    match primitive {
        P::FloatComplex | P::DoubleComplex | P::Float16Complex | P::Float128Complex => {
            halves(external, native, reversed)
        }
        P::LongDoubleComplex => halves(external, native, long_double_in),
        P::LongDouble => long_double_in(external, native),
        _ => {
            let negative = primitive == P::Long && external.first().is_some_and(|b| *b >= 0x80);
            let mut bytes = [if negative { 0xff } else { 0 }; ELEMENT_MAX];
            bytes.iter_mut().zip(external.iter().rev()).for_each(|(to, byte)| *to = *byte);
            // Native to little-endian and back is the same step.
            little(&bytes[..native.len()], native);
        }
    }
}

/// Real and imaginary part.
fn halves(from: &[u8], to: &mut [u8], each: impl Fn(&[u8], &mut [u8])) {
    let ((re, im), (out_re, out_im)) =
        (from.split_at(from.len() / 2), to.split_at_mut(to.len() / 2));
    each(re, out_re);
    each(im, out_im);
}

/// Native bytes as big-endian ones, or the other way.
fn reversed(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
    if cfg!(target_endian = "little") {
        to.reverse();
    }
}

/// Native bytes as little-endian ones, or the other way.
fn little(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
    if cfg!(target_endian = "big") {
        to.reverse();
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
use {reversed as long_double_in, reversed as long_double_out};

/// Bits of a binary128's fraction that x87's has not.
const NARROWED: u32 = 112 - 63;
/// The integer bit, which x87 writes down.
const INTEGER: u64 = 1 << 63;
const EXPONENT: u16 = 0x7fff;

/// x87's format, 10 bytes and padding, to binary128. Their exponents are the same.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn long_double_out(native: &[u8], out: &mut [u8]) {
    let (mut low, mut high) = ([0; 8], [0; 2]);
    low.copy_from_slice(&native[..8]);
    high.copy_from_slice(&native[8..10]);
    let (significand, mut head) = (u64::from_le_bytes(low), u16::from_le_bytes(high));
    if head & EXPONENT == 0 && significand & INTEGER != 0 {
        head |= 1;
    }
    let bits = u128::from(head) << 112 | u128::from(significand & !INTEGER) << NARROWED;
    out.copy_from_slice(&bits.to_be_bytes());
}

/// binary128 to x87's format, rounded to the nearest, ties to even. The padding is zero.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn long_double_in(external: &[u8], native: &mut [u8]) {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(external);
    let bits = u128::from_be_bytes(bytes);
    let [.., high] = [0, (bits >> 112)].map(|bits| u16::try_from(bits).unwrap_or(0));
    let fraction = bits & ((1 << 112) - 1);
    let kept = u64::try_from(fraction >> NARROWED).unwrap_or(0);
    let (mut head, mut significand) = (high, kept);
    if high & EXPONENT == EXPONENT {
        // Infinity, or a NaN, which stays one.
        let lost = fraction != 0 && kept == 0;
        significand |= INTEGER | if lost { INTEGER >> 1 } else { 0 };
    } else {
        let (rest, half) = (fraction & ((1 << NARROWED) - 1), 1 << (NARROWED - 1));
        let up = rest > half || rest == half && kept & 1 == 1;
        // A carry out of the fraction is the next exponent, and leaves a fraction of 0.
        significand += u64::from(up);
        if significand == INTEGER {
            (head, significand) = (head + 1, 0);
        }
        if head & EXPONENT != 0 {
            significand |= INTEGER;
        }
    }
    native.fill(0);
    native[..8].copy_from_slice(&significand.to_le_bytes());
    native[8..10].copy_from_slice(&head.to_le_bytes());
}

#[cfg(test)]
mod tests;
