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
//! let mut window: Window<f64> = comm.window_allocate(8)?;
//! window.lock(0, Lock::Shared)?;
//! window.put(&most, 0, 0)?;
//! window.unlock(0)?;
//! window.free()?;
//! world.finalize()
//! # }
//! ```

pub use crate::{
    AnyBits, Blocks, BlocksMut, CheckedBits, Communicator, Datatype, Equivalence, InPlace, Layout,
    Lock, OwnedRequest, Pages, Plan, Primitive, RecvBuffer, ReduceOp, Request, Scope, SendBuffer,
    Source, Status, Subarray, TagSel, View, ViewMut, Window, World,
};
