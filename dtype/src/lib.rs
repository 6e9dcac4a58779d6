//! Non-contiguous data layouts: MPI derived datatypes, committed layouts and the convertor.

#![deny(unsafe_code)]

pub mod attributes;
mod bounds;
mod build;
mod contents;
#[allow(unsafe_code, reason = "raw pack and unpack, proved in place")]
mod convertor;
#[allow(unsafe_code, reason = "the copy loops, proved in place")]
mod copy;
mod datatype;
mod error;
mod flatten;
mod layout;
pub mod limits;
mod optimize;
mod primitive;
mod program;
mod run;
mod shape;
mod signature;
#[allow(unsafe_code, reason = "layout to layout copies, proved in place")]
mod transfer;

#[cfg(any(test, feature = "testkit"))]
pub mod naive;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use attributes::{AttributeError, CopyRule, Key};
pub use contents::{Combiner, Contents, Distribution, Envelope, Order};
pub use convertor::{Convertor, ConvertorError};
pub use datatype::Datatype;
pub use error::{Argument, Problem, Quantity, TypeError};
pub use flatten::{FlattenError, FlattenFault};
pub use layout::{BlockLengths, Layout};
pub use primitive::{Part, Primitive, Scalar};
pub use run::Run;
pub use shape::{Dim, Displacements, Shape};
pub use signature::{
    Signature, SignatureDecodeError, SignatureDigest, SignatureError, SignatureKind,
};
pub use transfer::{transfer, transfer_raw};
