//! What may be wrong with a collective.

use super::Root;
use gapless_coll::topologies::TopologyError;
use gapless_coll::{BuildError, CollError};
use gapless_engine::EngineError;
use thiserror::Error;

/// Why a collective was refused or failed. [`Failed`](CollectiveError::Failed) apart, nothing of it was sent.
///
/// A rank that is refused has called the collective all the same, as far as the order of calls goes: later ones are
/// not mistaken for it. Ranks whose arguments were fine wait for it.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// MPI does not define the operation for two groups.
    #[error("intercommunicators have no such operation")]
    InterComm,
    /// In a communicator of one group all ranks give the root's rank.
    #[error(
        "the root is given as Root::{root:?} in a communicator of one group, where it is a rank"
    )]
    Root {
        /// What was given.
        root: Root,
    },
    /// An argument is needed at this rank, and `()` was given.
    #[error("this rank needs the {argument}")]
    Missing {
        /// Which.
        argument: &'static str,
    },
    /// In place, where that is not possible.
    #[error("the {argument} of this rank cannot be in place")]
    InPlace {
        /// Which argument.
        argument: &'static str,
    },
    /// A buffer is not as long as another argument says.
    #[error("the {argument} has {bytes} bytes instead of {expected}")]
    Length {
        /// Which buffer.
        argument: &'static str,
        /// Its packed bytes.
        bytes: u64,
        /// What they should be.
        expected: u64,
    },
    /// A block of the one buffer is not as long as the whole other one.
    #[error(
        "the {many} of {bytes} bytes has {blocks} blocks of {}, but the {one} has {len}",
        bytes / (*blocks as u64).max(1)
    )]
    Block {
        /// The buffer that has a block for each rank.
        many: &'static str,
        /// Its packed bytes.
        bytes: u64,
        /// How many blocks.
        blocks: usize,
        /// The buffer that is one block.
        one: &'static str,
        /// Its packed bytes.
        len: u64,
    },
    /// A buffer cannot be cut into blocks of one length.
    #[error("the {argument} of {bytes} bytes does not consist of {blocks} blocks of one length")]
    Uneven {
        /// Which buffer.
        argument: &'static str,
        /// Its packed bytes.
        bytes: u64,
        /// How many blocks it should have.
        blocks: usize,
    },
    /// A list does not have an entry for each rank, or neighbour.
    #[error("the {argument} has {given} blocks instead of {expected}")]
    Blocks {
        /// Which argument.
        argument: &'static str,
        /// Its entries.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A layout names a byte twice, so that nothing can be received into it.
    #[error("the {argument} has a layout that names a byte twice")]
    Overlap {
        /// Which buffer.
        argument: &'static str,
    },
    /// Pages that a collective cannot take: their indices lie in memory of a device, or they are too many to be one
    /// layout.
    #[error("the {argument}: {error}")]
    Pages {
        /// Which buffer.
        argument: &'static str,
        /// Why not.
        error: EngineError,
    },
    /// The operation does not combine such elements.
    #[error("the {argument}: {error}")]
    Operation {
        /// Which buffer.
        argument: &'static str,
        /// Why not.
        error: EngineError,
    },
    /// The elements to combine differ between the two buffers.
    #[error("the {argument} has {found}, but the other buffer has {expected}")]
    OtherElements {
        /// Which buffer.
        argument: &'static str,
        /// Its elements: a basic type, or their length.
        found: String,
        /// Those of the other.
        expected: String,
    },
    /// A neighbourhood collective on a communicator without a topology.
    #[error("the communicator has no topology")]
    NoTopology,
    /// The topology has no neighbours for such a collective.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The arguments do not fit together.
    #[error(transparent)]
    Arguments(#[from] BuildError),
    /// It could not begin, or it failed.
    #[error("{error}")]
    Failed {
        /// Why. Ranks are those of the communicator; of an intercommunicator, those of both groups
        /// [numbered through](gapless_coll::execute::between).
        error: CollError,
        /// The culprit's number in the job, if it is known.
        process: Option<u32>,
    },
}
