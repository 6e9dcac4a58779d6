//! Collectives of processes that share one GPU, with two kinds of copies (Faraji and Afsahi, "Hyper-Q Aware Intranode
//! MPI Collectives on the GPU", ESPM2 2015). Pure: it decides, [`execute`](crate::execute) acts.
//!
//! A collective has up to three steps. In the *gather*, processes copy what they have into a buffer of one process, the
//! leader. Then the leader combines it, if the operation is a reduction. In the *scatter*, processes copy what they get
//! out of that buffer. [`Frame`] says who gives and takes what in which operation.
//!
//! Each copy is of one of two [kinds](Kind). An IPC copy is the process's own, between its buffer and the leader's,
//! which it has mapped. A host-staged copy goes through page-locked memory of the host, in two hops: each process
//! copies between that and its own memory only. Which kind is quicker depends on the length, on how many processes
//! there are, and on whether they share the GPU or take turns; both at once use more of the machine than either alone.
//!
//! A [`Policy`] decides who copies by which kind, and when:
//! - [`Fixed`] has so many copies of each kind: the paper's *static* algorithm, whose numbers come from a [`Table`];
//! - [`Dynamic`] finds out in the call itself, as the paper's §4 says;
//! - [`Memory`] remembers from call to call what was quick.
//!
//! Or no process but one on each GPU copies anything: its *GPU leader*, which maps the buffers of all others there
//! ([`Group`]). Where processes take turns on a GPU nothing waits for a turn then, and where buffers lie on several
//! GPUs, GPU leaders exchange what each GPU comes to ([`Mode::Led`]).
//!
//! A policy is a step function: it is told who has [arrived](Event::Arrived) and whose copy has
//! [ended](Event::Completed), and says what to [do](Act). One executor runs all of them.

mod dynamic;
mod fixed;
mod frame;
mod groups;
mod memory;
mod policy;
mod staging;
mod table;
#[cfg(test)]
mod tests;

pub use dynamic::Dynamic;
pub use fixed::Fixed;
pub use frame::{Frame, Give, Take};
pub use groups::{Group, groups, in_order};
pub use memory::{CALLS_PER_PROBE, Learned, Memory};
pub use policy::Policy;
pub use staging::{MIRROR_MAX, QUICK_BYTES, RING, Staging};
pub use table::{Entry, Gpu, Mode, Settings, Table};

use std::fmt;

/// How one process's bytes go into the leader's buffer, or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Through page-locked memory of the host.
    Staged,
    /// By the process itself, in memory that it has mapped.
    Ipc,
}

impl Kind {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Kind {
        match self {
            Kind::Staged => Kind::Ipc,
            Kind::Ipc => Kind::Staged,
        }
    }

    fn index(self) -> usize {
        match self {
            Kind::Staged => 0,
            Kind::Ipc => 1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Staged => "host-staged",
            Kind::Ipc => "IPC",
        })
    }
}

/// A step of a collective in which processes copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HyperQStep {
    /// Into the leader's buffer.
    Gather,
    /// Out of it.
    Scatter,
}

/// What a policy is told of a rank that is not the leader: it has arrived, or its copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is ready to copy.
    Arrived(usize),
    /// Its copy of this kind has ended.
    Completed(usize, Kind),
}

/// What a policy has a rank do: begin a copy, or leave the rest of one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// This rank begins a copy of this kind.
    Issue(usize, Kind),
    /// What is left of this rank's host-staged copy is not made.
    Drop(usize),
}
