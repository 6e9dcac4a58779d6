//! Non-contiguous data layouts: MPI derived datatypes, committed layouts and the convertor.

pub mod attributes;
mod bounds;
mod build;
mod contents;
mod convertor;
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
mod transfer;

#[cfg(any(test, feature = "testkit"))]
pub mod naive;
#[cfg(feature = "testkit")]
pub mod testkit;
