//! What most programs use: `use gapless::prelude::*;`.
//!
//! ```
//! use gapless::prelude::*;
//!
//! #[derive(Datatype, Clone, Debug, Default, PartialEq)]
//! #[repr(C)]
//! struct Particle {
//!     kind: u8,
//!     position: [f64; 3],
//! }
//!
//! # fn main() -> Result<(), gapless::Error> {
//! let world = World::init()?;
//! let comm = world.comm();
//! let mut all = vec![Particle::default(); comm.size() as usize];
//! comm.allgather(&Particle { kind: 1, position: [0.5; 3] }, &mut all)?;
//! let mut most = f64::from(comm.rank());
//! comm.allreduce(InPlace, &mut most, ReduceOp::Max)?;
//! world.finalize()
//! # }
//! ```

pub use crate::{
    AnyBits, CheckedBits, Communicator, Datatype, Equivalence, InPlace, Layout, OwnedRequest, Plan,
    Primitive, RecvBuffer, ReduceOp, Request, Scope, SendBuffer, Source, Status, TagSel, View,
    ViewMut, World,
};
