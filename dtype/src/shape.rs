//! What a layout looks like, for code that has a fast path for it: the closed forms that a kernel or a
//! copy loop can take as a handful of numbers. Displacements and lengths are in bytes; runs follow each
//! other in packed order as described.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::optimize::signed_difference;
use crate::program::{Op, Program, ProgramPart};

/// The regular form of one instance of a layout, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No bytes at all.
    Empty,
    /// One run.
    Contiguous {
        /// Where it begins.
        displacement: i64,
        /// Bytes.
        len: u64,
    },
    /// Equal runs on a grid. Dimensions that continue each other are collapsed.
    Strided {
        /// Where the first run begins.
        displacement: i64,
        /// Bytes in a run.
        len: u64,
        /// Outermost first; the last one advances first. Never empty.
        dims: SmallVec<[Dim; 4]>,
    },
    /// Equal runs at listed displacements. Neighbours may be adjacent; then there are more of them than
    /// [`blocks`](crate::Layout::blocks), but fewer than twice as many unless a peer wrote the layout.
    EqualBlocks {
        /// To be added to every entry of `displacements`.
        displacement: i64,
        /// Bytes in a run.
        len: u64,
        /// Where the runs begin, in packed order.
        displacements: Displacements,
    },
    /// Run j has `len0 + j·len_step` bytes at `displacement0 + j·displacement_step`.
    Affine {
        /// Runs.
        count: u64,
        /// Where run 0 begins.
        displacement0: i64,
        /// Bytes from a run's begin to the next one's.
        displacement_step: i64,
        /// Bytes in run 0.
        len0: u64,
        /// How many bytes longer each run is than the one before; negative in a triangle that narrows.
        len_step: i64,
    },
    /// None of these: list its runs with [`Convertor::iov`](crate::Convertor::iov).
    General,
}

/// An instance as equal parts at one stride, each of which has gaps of its own: an array of structures
/// is one. What describes one part then describes any number of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// Parts; at least 2.
    pub count: u64,
    /// Bytes from one part to the next; may be zero or negative.
    pub stride: i64,
    /// Packed bytes of a part.
    pub size: u64,
    /// Maximal merged runs of a part.
    pub blocks: u64,
    /// Lowest byte of the first part.
    pub true_lb: i64,
    /// One past the first part's highest byte.
    pub true_ub: i64,
    /// The first part's regular form.
    pub shape: Shape,
}

/// Runs of unequal lengths, as the layout keeps them: what an indexed type is mostly committed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTable<'a> {
    /// To be added to every entry of `displacements`.
    pub displacement: i64,
    /// Where the runs begin, in packed order.
    pub displacements: &'a [i64],
    /// The packed byte that each run begins with; one more entry says where the last one ends.
    pub starts: &'a [u64],
}

/// One dimension of [`Shape::Strided`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// How many; at least 2.
    pub count: u64,
    /// Bytes from one to the next; may be zero or negative.
    pub stride: i64,
}

/// A list of displacements in bytes, shared with the layout that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displacements(Arc<Vec<i64>>);

impl Deref for Displacements {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

impl Shape {
    pub(crate) fn of(program: &Program) -> Shape {
        match program.root() {
            None => Shape::Empty,
            Some(root) => Shape::of_part(program, root),
        }
    }

    pub(crate) fn of_part(program: &Program, root: ProgramPart) -> Shape {
        let displacement = root.disp;
        match program.op(root.op) {
            Op::Run { len } => Shape::Contiguous { displacement, len: *len },
            Op::Loop { .. } => Shape::of_loops(program, root),
            Op::Blocks { len, disps } => Shape::EqualBlocks {
                displacement,
                len: *len,
                displacements: Displacements(Arc::clone(disps)),
            },
            Op::Affine { count, step, len, len_step } => Shape::Affine {
                count: *count,
                displacement0: displacement,
                displacement_step: *step,
                len0: *len,
                len_step: *len_step,
            },
            // Longer lists that are affine were made so when they were normalised.
            Op::List { disps, starts } if disps.len() == 2 => {
                let (len0, len1) = (starts[1], starts[2] - starts[1]);
                match (disps[1].checked_sub(disps[0]), signed_difference(len0, len1)) {
                    (Some(displacement_step), Some(len_step)) if len_step != 0 => Shape::Affine {
                        count: 2,
                        displacement0: displacement.wrapping_add(disps[0]),
                        displacement_step,
                        len0,
                        len_step,
                    },
                    _ => Shape::General,
                }
            }
            Op::List { .. } | Op::Each { .. } | Op::Seq { .. } => Shape::General,
        }
    }

    fn of_loops(program: &Program, root: ProgramPart) -> Shape {
        let mut dims = SmallVec::new();
        let mut at = root.op;
        loop {
            match program.op(at) {
                Op::Loop { count, stride, body } => {
                    dims.push(Dim { count: *count, stride: *stride });
                    at = *body;
                }
                Op::Run { len } => {
                    return Shape::Strided { displacement: root.disp, len: *len, dims };
                }
                _ => return Shape::General,
            }
        }
    }
}

impl Period {
    pub(crate) fn of(program: &Program) -> Option<Period> {
        let root = program.root()?;
        let Op::Loop { count, stride, body } = *program.op(root.op) else { return None };
        let facts = program.facts(body);
        Some(Period {
            count,
            stride,
            size: facts.size,
            blocks: facts.chain.blocks,
            true_lb: root.disp.wrapping_add(facts.lo),
            true_ub: root.disp.wrapping_add(facts.hi),
            shape: Shape::of_part(program, ProgramPart { disp: root.disp, op: body }),
        })
    }
}

impl<'a> RunTable<'a> {
    pub(crate) fn of(program: &'a Program) -> Option<RunTable<'a>> {
        let root = program.root()?;
        let Op::List { disps, starts } = program.op(root.op) else { return None };
        Some(RunTable { displacement: root.disp, displacements: disps, starts })
    }
}
