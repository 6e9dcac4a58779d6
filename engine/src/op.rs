//! What is combined, and how: the operations of MPI 4.1 §6.9.2, users' own, and the elements they work on.
//!
//! Read first: MPI 4.1 §6.9.2 (which operation is defined for which type), §6.9.4 (pairs), §6.9.5 (users' own).

use crate::{EngineError, Operand, UserOp};
use gapless_dtype::{Layout, Primitive, SignatureKind};

/// A predefined reduction operation (MPI 4.1 §6.9.2, §6.9.4, §12.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// `MPI_MAX`: the larger. NaN, if either is.
    Max,
    /// `MPI_MIN`: the smaller. NaN, if either is.
    Min,
    /// `MPI_SUM`; integers wrap.
    Sum,
    /// `MPI_PROD`; integers wrap.
    Prod,
    /// `MPI_LAND`: logical and; the result is 0 or 1.
    Land,
    /// `MPI_BAND`: bitwise and.
    Band,
    /// `MPI_LOR`: logical or; the result is 0 or 1.
    Lor,
    /// `MPI_BOR`: bitwise or.
    Bor,
    /// `MPI_LXOR`: logical exclusive or; the result is 0 or 1.
    Lxor,
    /// `MPI_BXOR`: bitwise exclusive or.
    Bxor,
    /// `MPI_MAXLOC`: the larger value with its index; the smaller index where values are equal. A NaN is larger
    /// than any number; of two, the left.
    MaxLoc,
    /// `MPI_MINLOC`: the smaller value with its index; the smaller index where values are equal. A NaN is smaller
    /// than any number; of two, the left.
    MinLoc,
    /// `MPI_REPLACE`: the right operand. In accumulation the target is left, what comes from the origin right.
    Replace,
    /// `MPI_NO_OP`: the left operand.
    NoOp,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [ReduceOp; 14] = [
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Land,
        ReduceOp::Band,
        ReduceOp::Lor,
        ReduceOp::Bor,
        ReduceOp::Lxor,
        ReduceOp::Bxor,
        ReduceOp::MaxLoc,
        ReduceOp::MinLoc,
        ReduceOp::Replace,
        ReduceOp::NoOp,
    ];

    /// MPI's name, e.g. `MPI_SUM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Max => "MPI_MAX",
            ReduceOp::Min => "MPI_MIN",
            ReduceOp::Sum => "MPI_SUM",
            ReduceOp::Prod => "MPI_PROD",
            ReduceOp::Land => "MPI_LAND",
            ReduceOp::Band => "MPI_BAND",
            ReduceOp::Lor => "MPI_LOR",
            ReduceOp::Bor => "MPI_BOR",
            ReduceOp::Lxor => "MPI_LXOR",
            ReduceOp::Bxor => "MPI_BXOR",
            ReduceOp::MaxLoc => "MPI_MAXLOC",
            ReduceOp::MinLoc => "MPI_MINLOC",
            ReduceOp::Replace => "MPI_REPLACE",
            ReduceOp::NoOp => "MPI_NO_OP",
        }
    }

    /// Whether the order of operands does not matter: of all but `MPI_REPLACE` and `MPI_NO_OP`.
    #[must_use]
    pub fn is_commutative(self) -> bool {
        !self.only_moves()
    }

    /// Whether the result is one of the operands, whatever they are.
    pub(crate) fn only_moves(self) -> bool {
        matches!(self, ReduceOp::Replace | ReduceOp::NoOp)
    }

    /// Whether the operation is defined for elements of this type (the table in MPI 4.1 §6.9.2; the 16-bit floats
    /// count as floating point).
    #[must_use]
    pub fn is_defined_for(self, primitive: Primitive) -> bool {
        let class = Class::of(primitive);
        match self {
            ReduceOp::Max | ReduceOp::Min => {
                matches!(class, Class::Integer | Class::Address | Class::Real)
            }
            ReduceOp::Sum | ReduceOp::Prod => {
                matches!(class, Class::Integer | Class::Address | Class::Real | Class::Complex)
            }
            ReduceOp::Land | ReduceOp::Lor | ReduceOp::Lxor => {
                matches!(class, Class::Integer | Class::Logical)
            }
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => {
                matches!(class, Class::Integer | Class::Address | Class::Byte)
            }
            ReduceOp::MaxLoc | ReduceOp::MinLoc => class == Class::Pair,
            ReduceOp::Replace | ReduceOp::NoOp => true,
        }
    }

    /// The elements of a buffer; `None` if they are bytes, which stand for anything, or none. They need not be such
    /// as the operation is defined for. Numbers in turn, as of a struct of a value and an index, are pairs, whatever C
    /// calls their types; two of one type are a pair to those operations that work on pairs.
    ///
    /// # Errors
    /// [`EngineError::MixedElements`].
    pub fn element(
        self,
        layout: &Layout,
        operand: Operand,
    ) -> Result<Option<Primitive>, EngineError> {
        let signature = layout.signature();
        if signature.kind() == SignatureKind::Bytes || signature.elements() == 0 {
            return Ok(None);
        }
        let found = match self {
            ReduceOp::MaxLoc | ReduceOp::MinLoc => signature.pair().or_else(|| signature.uniform()),
            _ => signature.uniform().or_else(|| signature.pair()),
        };
        found.map(Some).ok_or(EngineError::MixedElements { operand, op: self.name() })
    }

    /// # Errors
    /// [`EngineError::UndefinedOp`].
    pub(crate) fn check(self, primitive: Primitive) -> Result<(), EngineError> {
        match self.is_defined_for(primitive) {
            true => Ok(()),
            false => Err(EngineError::UndefinedOp { op: self.name(), primitive }),
        }
    }
}

/// The groups of types in the tables of MPI 4.1 §6.9.2 and §6.9.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    /// "Multi-language types": addresses, counts, offsets.
    Address,
    Real,
    Logical,
    Complex,
    Byte,
    Pair,
    /// Characters and packed bytes: no operation combines them.
    Opaque,
}

impl Class {
    fn of(primitive: Primitive) -> Class {
        use Primitive as P;
        match primitive {
            P::SignedChar | P::UnsignedChar | P::Short | P::UnsignedShort => Class::Integer,
            P::Int | P::Unsigned | P::Long | P::UnsignedLong => Class::Integer,
            P::LongLong | P::UnsignedLongLong => Class::Integer,
            P::Int8 | P::Int16 | P::Int32 | P::Int64 | P::Int128 => Class::Integer,
            P::Uint8 | P::Uint16 | P::Uint32 | P::Uint64 => Class::Integer,
            P::Aint | P::Count | P::Offset => Class::Address,
            P::Float16 | P::BFloat16 | P::Float | P::Double => Class::Real,
            P::LongDouble | P::Float128 => Class::Real,
            P::Bool | P::Bool16 | P::Bool32 | P::Bool64 | P::Bool128 => Class::Logical,
            P::FloatComplex | P::DoubleComplex | P::LongDoubleComplex => Class::Complex,
            P::Float16Complex | P::Float128Complex => Class::Complex,
            P::Byte => Class::Byte,
            P::Char | P::Wchar | P::Packed => Class::Opaque,
            _ => Class::Pair,
        }
    }
}

/// What combines two elements: one of MPI's operations, or a user's. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Op {
    /// One of MPI's.
    Predefined(ReduceOp),
    /// A user's (MPI 4.1 §6.9.5).
    User(UserOp),
}

impl From<ReduceOp> for Op {
    fn from(op: ReduceOp) -> Op {
        Op::Predefined(op)
    }
}

impl From<UserOp> for Op {
    fn from(op: UserOp) -> Op {
        Op::User(op)
    }
}

impl Op {
    /// MPI's name, or the one that the user gave.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Op::Predefined(op) => op.name(),
            Op::User(op) => op.name(),
        }
    }

    /// Whether the order of operands does not matter; users say so of their own.
    #[must_use]
    pub fn is_commutative(&self) -> bool {
        match self {
            Op::Predefined(op) => op.is_commutative(),
            Op::User(op) => op.is_commutative(),
        }
    }

    /// Packed bytes of one of the elements that this operation combines in buffers of this layout: a packed stream
    /// may be cut at multiples of that. 1 where the operation only moves elements, or there are none.
    ///
    /// # Errors
    /// [`EngineError::UndefinedOp`], [`EngineError::MixedElements`], [`EngineError::OtherElements`]: such buffers
    /// cannot be reduced with it, anywhere.
    pub fn element_bytes(&self, layout: &Layout) -> Result<u64, EngineError> {
        self.elements(layout).map(|(_, bytes)| bytes)
    }

    /// What a predefined operation combines in buffers of this layout, if that is known, and
    /// [`element_bytes`](Self::element_bytes).
    ///
    /// # Errors
    /// As there.
    pub fn elements(&self, layout: &Layout) -> Result<(Option<Primitive>, u64), EngineError> {
        match self {
            Op::Predefined(op) if op.only_moves() || layout.size() == 0 => {
                Ok((op.element(layout, Operand::Target).ok().flatten(), 1))
            }
            Op::Predefined(op) => {
                let element = op.element(layout, Operand::Target)?;
                let combined = element.unwrap_or(Primitive::Byte);
                op.check(combined)?;
                Ok((element, combined.size_bytes()))
            }
            Op::User(op) => op.check(layout, 1, Operand::Target).map(|()| (None, op.bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::Datatype;

    /// The rows of MPI's tables, written out.
    #[test]
    fn the_table_is_mpis() {
        use Primitive as P;
        let integers = [
            P::SignedChar,
            P::UnsignedChar,
            P::Short,
            P::UnsignedShort,
            P::Int,
            P::Unsigned,
            P::Long,
            P::UnsignedLong,
            P::LongLong,
            P::UnsignedLongLong,
            P::Int8,
            P::Int16,
            P::Int32,
            P::Int64,
            P::Int128,
            P::Uint8,
            P::Uint16,
            P::Uint32,
            P::Uint64,
        ];
        let (addresses, bytes) = ([P::Aint, P::Count, P::Offset], [P::Byte]);
        let reals = [P::Float16, P::BFloat16, P::Float, P::Double, P::LongDouble, P::Float128];
        let complexes = [
            P::Float16Complex,
            P::FloatComplex,
            P::DoubleComplex,
            P::LongDoubleComplex,
            P::Float128Complex,
        ];
        let logicals = [P::Bool, P::Bool16, P::Bool32, P::Bool64, P::Bool128];
        let pairs = P::ALL.into_iter().filter(|p| p.is_pair()).collect::<Vec<_>>();
        let compared = [&integers[..], &addresses, &reals].concat();
        let added = [&compared[..], &complexes].concat();
        let logical = [&integers[..], &logicals].concat();
        let bitwise = [&integers[..], &addresses, &bytes].concat();
        for (ops, types) in [
            (&[ReduceOp::Max, ReduceOp::Min][..], compared),
            (&[ReduceOp::Sum, ReduceOp::Prod], added),
            (&[ReduceOp::Land, ReduceOp::Lor, ReduceOp::Lxor], logical),
            (&[ReduceOp::Band, ReduceOp::Bor, ReduceOp::Bxor], bitwise),
            (&[ReduceOp::MaxLoc, ReduceOp::MinLoc], pairs),
            (&[ReduceOp::Replace, ReduceOp::NoOp], P::ALL.to_vec()),
        ] {
            for (op, p) in ops.iter().flat_map(|op| P::ALL.map(|p| (op, p))) {
                assert_eq!(op.is_defined_for(p), types.contains(&p), "{op:?} of {p}");
            }
        }
    }

    #[test]
    fn layouts_tell_their_elements() {
        let column = |p| Datatype::vector(4, 1, 3, &Datatype::from(p)).unwrap().commit().unwrap();
        let bytes = |op: ReduceOp, p| Op::from(op).element_bytes(&column(p));
        assert_eq!(bytes(ReduceOp::Sum, Primitive::Double), Ok(8));
        assert_eq!(bytes(ReduceOp::MaxLoc, Primitive::ShortInt), Ok(6));
        assert_eq!(bytes(ReduceOp::MaxLoc, Primitive::TwoInt), Ok(8));
        assert_eq!(bytes(ReduceOp::Sum, Primitive::TwoInt), Ok(4));
        assert_eq!(bytes(ReduceOp::MinLoc, Primitive::Int64), Ok(16));
        assert_eq!(bytes(ReduceOp::Band, Primitive::Byte), Ok(1));
        assert_eq!(bytes(ReduceOp::Replace, Primitive::Char), Ok(1));
        for (op, of, known) in [
            (ReduceOp::Sum, Primitive::Double, Some(Primitive::Double)),
            (ReduceOp::MinLoc, Primitive::Int64, Some(Primitive::Int64Int64)),
            (ReduceOp::Replace, Primitive::Char, Some(Primitive::Char)),
            (ReduceOp::Band, Primitive::Byte, None),
        ] {
            let (element, bytes) = Op::from(op).elements(&column(of)).unwrap();
            assert_eq!((element, Ok(bytes)), (known, Op::from(op).element_bytes(&column(of))));
        }
        let undefined = |op: ReduceOp, primitive| {
            assert_eq!(
                bytes(op, primitive),
                Err(EngineError::UndefinedOp { op: op.name(), primitive })
            );
        };
        undefined(ReduceOp::Sum, Primitive::Byte);
        undefined(ReduceOp::Sum, Primitive::Char);
        undefined(ReduceOp::MaxLoc, Primitive::LongDouble);
        let two = [Primitive::Int.into(), Primitive::Double.into()];
        let mixed = Datatype::structure(&[1, 1], &[0, 8], &two).unwrap().commit().unwrap();
        let error = Op::from(ReduceOp::Max).element_bytes(&mixed);
        assert!(matches!(error, Err(EngineError::MixedElements { op: "MPI_MAX", .. })));
    }
}
