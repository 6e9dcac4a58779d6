//! The bounds that this crate states and enforces, each with a typed error.
//!
//! Everything that recurses over a datatype or a decoded layout is safe because of the depth
//! bounds; everything that allocates for foreign bytes is safe because of the size bounds.

/// Deepest nesting of constructors above a predefined type.
///
/// A subarray or darray counts as the tree of simpler constructors that it stands for, about one
/// level per dimension. Beyond it a constructor returns
/// [`TypeError::TooDeep`](crate::TypeError::TooDeep).
pub const MAX_DEPTH: usize = 128;

/// Deepest nesting of a signature's repeats and sequences: at most two per constructor.
pub const MAX_SIGNATURE_DEPTH: usize = 2 * MAX_DEPTH + 2;

/// Most nodes in an encoded signature that [`Signature::decode`](crate::Signature::decode)
/// accepts.
pub const MAX_SIGNATURE_NODES: usize = 1 << 20;

/// Most references from sequences to their parts, all together, in an encoded signature.
pub const MAX_SIGNATURE_PARTS: usize = 1 << 22;

/// Most ops in a committed program, built or decoded. Only an indexed type with as many different block
/// lengths over a type with gaps comes near it.
pub const MAX_PROGRAM_OPS: usize = 1 << 22;

/// Most runs that [`Layout::overlaps`](crate::Layout::overlaps) compares with each other.
pub const OVERLAP_RUNS_MAX: u64 = 1 << 14;

/// Deepest nesting of a committed program's ops: at most two per constructor, and a list's own level.
pub const MAX_PROGRAM_DEPTH: usize = 2 * MAX_DEPTH + 4;
