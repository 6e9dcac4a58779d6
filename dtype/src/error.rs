//! What can be wrong with a constructor's arguments, and which argument it was.
//!
//! MPI calls such arguments erroneous and leaves the outcome open; here every one of them gets a
//! [`TypeError`] that names the constructor, the argument and, for lists, the place in it.

use std::fmt;

use crate::contents::Combiner;

/// Why a datatype could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeError {
    /// Two lists that go together differ in length.
    Length {
        /// The constructor that was called.
        constructor: Combiner,
        /// The list that does not fit.
        argument: &'static str,
        /// Its length.
        len: usize,
        /// The list that it goes with.
        other: &'static str,
        /// That list's length.
        expected: usize,
    },
    /// An argument's value is illegal.
    Argument {
        /// The constructor that was called.
        constructor: Combiner,
        /// The culprit.
        argument: Argument,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A number that follows from the arguments does not fit in 64 bits.
    Overflow {
        /// The constructor that was called.
        constructor: Combiner,
        /// What overflows.
        quantity: Quantity,
        /// The argument with which it does.
        argument: Argument,
    },
    /// The tree would be deeper than [`MAX_DEPTH`](crate::limits::MAX_DEPTH).
    TooDeep {
        /// The constructor that was called.
        constructor: Combiner,
        /// The depth that the new type would have.
        depth: usize,
        /// The greatest depth allowed.
        limit: usize,
    },
    /// Committing the type takes more ops than
    /// [`MAX_PROGRAM_OPS`](crate::limits::MAX_PROGRAM_OPS).
    TooManyOps {
        /// The most that are allowed.
        limit: usize,
    },
    /// The types that it is made of lie in different kinds of memory
    /// ([`Datatype::in_memory`](crate::Datatype::in_memory)).
    MemoryKinds {
        /// The constructor of the type.
        constructor: Combiner,
    },
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { constructor, argument, len, other, expected } => {
                write!(f, "{constructor}: {argument} has {len} entries, but {other} has {expected}")
            }
            Self::Argument { constructor, argument, problem } => {
                write!(f, "{constructor}: {argument} {problem}")
            }
            Self::Overflow { constructor, quantity, argument } => {
                write!(f, "{constructor}: {quantity} overflows 64 bits because of {argument}")
            }
            Self::TooDeep { constructor, depth, limit } => write!(
                f,
                "{constructor}: the type would nest {depth} constructors deep, more than {limit}"
            ),
            Self::TooManyOps { limit } => {
                write!(f, "the type's committed layout needs more than {limit} operations")
            }
            Self::MemoryKinds { constructor } => write!(
                f,
                "{constructor}: the types that it is made of lie in different kinds of memory"
            ),
        }
    }
}

impl std::error::Error for TypeError {}

/// An argument of a constructor: its name, and its place if it is an entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// The argument's name in the constructor's signature.
    pub name: &'static str,
    /// The entry's index, if the argument is a list and one entry is to blame.
    pub index: Option<usize>,
}

impl Argument {
    /// A scalar argument, or a list as a whole.
    pub const fn whole(name: &'static str) -> Argument {
        Argument { name, index: None }
    }

    /// One entry of a list.
    pub const fn entry(name: &'static str, index: usize) -> Argument {
        Argument { name, index: Some(index) }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// What is wrong with an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// There is no default; of a builder.
    Missing,
    /// The list must not be empty.
    Empty,
    /// The value is too small.
    Below {
        /// The value given.
        value: u64,
        /// The least that is legal.
        least: u64,
    },
    /// The value is too large.
    Above {
        /// The value given.
        value: u64,
        /// The most that is legal.
        most: u64,
    },
    /// Only one value is legal.
    Not {
        /// The value given.
        value: u64,
        /// The value required.
        required: u64,
    },
    /// The list's product is not what it must be.
    Product {
        /// The product, capped at `u128::MAX`.
        product: u128,
        /// The product required.
        required: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is not given"),
            Self::Empty => f.write_str("is empty"),
            Self::Below { value, least } => write!(f, "is {value}, less than {least}"),
            Self::Above { value, most } => write!(f, "is {value}, more than {most}"),
            Self::Not { value, required } => write!(f, "is {value}, but must be {required}"),
            Self::Product { product, required } => {
                write!(f, "multiplies to {product}, but must to {required}")
            }
        }
    }
}

impl std::error::Error for Problem {}

/// A number that every datatype has and that must fit in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// Bytes of data (unsigned).
    Size,
    /// A piece's displacement from the origin in bytes (signed).
    Displacement,
    /// A bound, true bound, extent or true extent in bytes (signed).
    Bounds,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantity::Size => "the size",
            Quantity::Displacement => "a displacement",
            Quantity::Bounds => "the extent or a bound",
        })
    }
}

impl TypeError {
    pub(crate) fn overflow(
        constructor: Combiner,
        quantity: Quantity,
        argument: Argument,
    ) -> TypeError {
        TypeError::Overflow { constructor, quantity, argument }
    }

    pub(crate) fn argument(
        constructor: Combiner,
        argument: Argument,
        problem: Problem,
    ) -> TypeError {
        TypeError::Argument { constructor, argument, problem }
    }

    /// `Ok` if both lists have the same length.
    pub(crate) fn check_length(
        constructor: Combiner,
        (argument, len): (&'static str, usize),
        (other, expected): (&'static str, usize),
    ) -> Result<(), TypeError> {
        if len == expected {
            return Ok(());
        }
        Err(TypeError::Length { constructor, argument, len, other, expected })
    }

    /// Blames `argument` of `constructor` for what went wrong in a simpler type made for it.
    pub(crate) fn within(self, constructor: Combiner, argument: Argument) -> TypeError {
        match self {
            TypeError::Overflow { quantity, .. } => {
                TypeError::overflow(constructor, quantity, argument)
            }
            TypeError::TooDeep { depth, limit, .. } => {
                TypeError::TooDeep { constructor, depth, limit }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_culprit() {
        let error = TypeError::argument(
            Combiner::Subarray,
            Argument::entry("starts", 1),
            Problem::Above { value: 5, most: 4 },
        );
        assert_eq!(error.to_string(), "subarray: starts[1] is 5, more than 4");
        let error = TypeError::overflow(Combiner::Vector, Quantity::Size, Argument::whole("count"));
        assert_eq!(error.to_string(), "vector: the size overflows 64 bits because of count");
    }
}
