//! The committed layout: what a datatype is once it is only to be used. A program over byte runs, its
//! bounds, shape, block statistics and signature.
//!
//! Committing costs time linear in the constructors' lists and happens once per datatype object. Layouts
//! are immutable, shared and cheap to clone; they do not keep the datatype alive. Units: bytes.
//!
//! Read first: `program.rs` (what is committed) and `optimize.rs` (what normalisation does).

mod overlap;

use std::fmt;
use std::sync::{Arc, Weak};

use crate::contents::Combiner;
use crate::datatype::Datatype;
use crate::error::{Argument, Quantity, TypeError};
use crate::limits::{MAX_PROGRAM_DEPTH, MAX_PROGRAM_OPS};
use crate::memory_kind::MemoryKind;
use crate::program::{self, Program, ProgramError};
use crate::shape::{Period, RunTable, Shape};
use crate::signature::{Signature, SignatureKind};
use overlap::KnownOverlap;

/// A committed datatype (`MPI_Type_commit`, MPI 4.1 §5.1.9), ready for any number of convertors.
///
/// Two layouts are equal if their programs, bounds, signatures and [kinds of memory](Self::memory_kind) are; equal
/// datatypes, or one decoded from the other's [`flatten`](Self::flatten) that says nothing of memory, have equal
/// layouts.
#[derive(Clone, PartialEq, Eq)]
pub struct Layout(Arc<Committed>);

/// A layout's identity: two layouts with the same one are clones of each other. It is the layout's for as
/// long as a clone or a [`WeakLayout`] of it lives, then another layout may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayoutId(usize);

/// Refers to a layout without keeping it: for whoever caches what was made of it.
#[derive(Clone)]
pub struct WeakLayout(Weak<Committed>);

#[derive(PartialEq, Eq)]
struct Committed {
    program: Program,
    bounds: LayoutBounds,
    shape: Shape,
    signature: Signature,
    memory: Option<MemoryKind>,
    overlap: KnownOverlap,
}

/// Bounds as MPI has them; what the data touches is `true_lb..true_ub`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayoutBounds {
    pub(crate) lb: i64,
    pub(crate) ub: i64,
    pub(crate) true_lb: i64,
    pub(crate) true_ub: i64,
}

/// Lengths of a layout's blocks, its maximal merged runs, in bytes. All 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockLengths {
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The longest.
    pub max: u64,
}

impl Datatype {
    /// The datatype's committed layout; made once, then shared (MPI 4.1 §5.1.9).
    ///
    /// # Errors
    ///
    /// [`TypeError::Overflow`] where one instance's bytes, counted as often as they occur, do not fit 63
    /// bits; [`TypeError::TooManyOps`] past [`MAX_PROGRAM_OPS`]; [`TypeError::MemoryKinds`].
    pub fn commit(&self) -> Result<Layout, TypeError> {
        let slot = self.committed();
        if let Some(layout) = slot.get() {
            return Ok(layout.clone());
        }
        let layout = Layout::build(self)?;
        Ok(slot.get_or_init(|| layout).clone())
    }

    /// As [`commit`](Self::commit), with the signature [by kinds](Signature::by_kind): such layouts match each other if their
    /// types are of the same kind and size. The layout is the caller's to keep, unless no type has another of its kind.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_by_kind(&self) -> Result<Layout, TypeError> {
        let by_kind = self.signature().by_kind();
        if by_kind == *self.signature() {
            return self.commit();
        }
        Layout::with_signature(self, by_kind)
    }

    /// As [`commit`](Self::commit), with the signature [by size](Signature::by_size): such layouts match each other,
    /// and all others, as far as bytes go. The layout is the caller's to keep, unless its types are bytes.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_by_size(&self) -> Result<Layout, TypeError> {
        match self.signature().kind() {
            SignatureKind::Bytes => self.commit(),
            _ => Layout::with_signature(self, self.signature().by_size()),
        }
    }
}

impl Layout {
    /// Commits `datatype` without looking for a layout that it has already.
    ///
    /// # Errors
    ///
    /// As [`Datatype::commit`].
    pub fn build(datatype: &Datatype) -> Result<Layout, TypeError> {
        Layout::with_signature(datatype, datatype.signature().clone())
    }

    fn with_signature(datatype: &Datatype, signature: Signature) -> Result<Layout, TypeError> {
        let program = program::lower(datatype)
            .map_err(|error| refusal(error, datatype.contents().combiner()))?;
        let bounds = LayoutBounds {
            lb: datatype.lb(),
            ub: datatype.ub(),
            true_lb: datatype.true_lb(),
            true_ub: datatype.true_ub(),
        };
        debug_assert!(
            program.bounds().is_none_or(|(lo, hi)| (lo, hi) == (bounds.true_lb, bounds.true_ub))
        );
        debug_assert_eq!(program.root_facts().map_or(0, |facts| facts.size), datatype.size());
        let memory = datatype.memory_kind()?;
        Ok(Layout::in_memory(program, bounds, signature, memory))
    }

    /// One instance of a layout at each of `places`, in their order.
    ///
    /// # Errors
    ///
    /// As [`Datatype::commit`].
    pub(crate) fn placed(page: &Layout, places: &[i64]) -> Result<Layout, TypeError> {
        let overflow = || {
            let places = Argument::whole("indices");
            TypeError::overflow(Combiner::HindexedBlock, Quantity::Size, places)
        };
        let program = program::placed(page.committed(), page.extent(), places);
        let program = program.map_err(|error| refusal(error, Combiner::HindexedBlock))?;
        let copies = places.len() as u64;
        let signature = page.signature().repeated(copies).ok_or_else(overflow)?;
        let (true_lb, true_ub) = program.bounds().unwrap_or((0, 0));
        let bounds = LayoutBounds { lb: true_lb, ub: true_ub, true_lb, true_ub };
        Ok(Layout::in_memory(program, bounds, signature, page.memory_kind()))
    }

    /// Puts a layout together from parts that have been checked against each other.
    pub(crate) fn from_parts(
        program: Program,
        bounds: LayoutBounds,
        signature: Signature,
    ) -> Layout {
        Layout::in_memory(program, bounds, signature, None)
    }

    fn in_memory(
        program: Program,
        bounds: LayoutBounds,
        signature: Signature,
        memory: Option<MemoryKind>,
    ) -> Layout {
        let shape = Shape::of(&program);
        Layout(Arc::new(Committed {
            program,
            bounds,
            shape,
            signature,
            memory,
            overlap: KnownOverlap::default(),
        }))
    }

    /// Packed bytes of one instance.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u64 {
        self.0.program.root_facts().map_or(0, |facts| facts.size)
    }

    /// Lower bound (MPI 4.1 §5.1.7).
    #[must_use]
    pub fn lb(&self) -> i64 {
        self.0.bounds.lb
    }

    /// Upper bound (MPI 4.1 §5.1.7).
    #[must_use]
    pub fn ub(&self) -> i64 {
        self.0.bounds.ub
    }

    /// Bytes from one instance to the next; may be zero or negative.
    #[must_use]
    #[inline]
    pub fn extent(&self) -> i64 {
        // Whoever made the bounds checked that their difference fits.
        self.0.bounds.ub.wrapping_sub(self.0.bounds.lb)
    }

    /// Lowest byte of data (MPI 4.1 §5.1.8); 0 if there is none.
    #[must_use]
    #[inline]
    pub fn true_lb(&self) -> i64 {
        self.0.bounds.true_lb
    }

    /// One past the highest byte of data; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn true_ub(&self) -> i64 {
        self.0.bounds.true_ub
    }

    /// Bytes from the lowest byte of data to past the highest.
    #[must_use]
    pub fn true_extent(&self) -> i64 {
        self.0.bounds.true_ub.wrapping_sub(self.0.bounds.true_lb)
    }

    /// Maximal merged runs of one instance in packed order: neighbours merge where one ends and the next
    /// begins at the same byte.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.program.root_facts().map_or(0, |facts| facts.chain.blocks)
    }

    /// As [`blocks`](Self::blocks), of `count` instances; `None` if their packed size overflows 63 bits.
    #[must_use]
    #[inline]
    pub fn blocks_of(&self, count: u64) -> Option<u64> {
        let Some(facts) = self.0.program.root_facts() else { return Some(0) };
        if count == 0 {
            return Some(0);
        }
        i64::try_from(u128::from(facts.size) * u128::from(count)).ok()?;
        let next = i128::from(facts.first) + i128::from(self.extent());
        Some(facts.chain.repeated(count, i128::from(facts.end) == next).blocks)
    }

    /// Lengths of one instance's blocks.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean for choosing by; 53 bits are plenty")]
    pub fn block_lengths(&self) -> BlockLengths {
        self.0.program.root_facts().map_or_else(BlockLengths::default, |facts| BlockLengths {
            min: facts.chain.min(),
            mean: facts.size as f64 / facts.chain.blocks as f64,
            max: facts.chain.max(),
        })
    }

    /// Bytes between the true bounds that hold no data; 0 where blocks overlap so much that none are
    /// certain.
    #[must_use]
    pub fn gap_bytes(&self) -> u64 {
        self.true_extent().cast_unsigned().saturating_sub(self.size())
    }

    /// Whether any number of instances is one run that begins at displacement 0.
    #[must_use]
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.contiguous_bytes().is_some()
    }

    /// The bytes of an instance, if any number of instances [is contiguous](Layout::is_contiguous).
    #[must_use]
    #[inline]
    pub fn contiguous_bytes(&self) -> Option<u64> {
        match self.0.shape {
            Shape::Empty => Some(0),
            Shape::Contiguous { displacement: 0, len } => {
                (len.cast_signed() == self.extent()).then_some(len)
            }
            _ => None,
        }
    }

    /// The regular form, if there is one.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// An instance as equal parts at one stride, where [`shape`](Self::shape) knows no closed form of the
    /// whole: contiguous or strided structures, repeated triangles or lists.
    #[must_use]
    pub fn period(&self) -> Option<Period> {
        match self.0.shape {
            Shape::General => Period::of(&self.0.program),
            _ => None,
        }
    }

    /// The runs of one instance as a table, where the layout keeps it as one: for whoever reads millions
    /// of them and finds [`Convertor::iov`](crate::Convertor::iov) too slow. Neighbours may be adjacent
    /// if a peer wrote the layout; then there are more than [`blocks`](Self::blocks).
    #[must_use]
    pub fn run_table(&self) -> Option<RunTable<'_>> {
        RunTable::of(&self.0.program)
    }

    /// The largest power of two that divides every run's displacement and length: what words may be as
    /// wide as, if origin and packed bytes allow. 0 if there is no data. Known since commit.
    ///
    /// Runs count as the program has them. Where two lists meet in runs that merge, it is theirs, which
    /// divides that of the merged run.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.0.program.granularity()
    }

    /// Which layout this is, whatever it looks like.
    #[must_use]
    #[inline]
    pub fn id(&self) -> LayoutId {
        LayoutId(Arc::as_ptr(&self.0).addr())
    }

    /// A reference that does not keep the layout.
    #[must_use]
    pub fn downgrade(&self) -> WeakLayout {
        WeakLayout(Arc::downgrade(&self.0))
    }

    /// The sequence of basic types.
    #[must_use]
    #[inline]
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// The kind of memory that buffers lie in, as the datatype said when it was committed
    /// ([`Datatype::in_memory`]). It does not travel: a peer's copy of the layout has none.
    #[must_use]
    #[inline]
    pub fn memory_kind(&self) -> Option<MemoryKind> {
        self.0.memory
    }

    /// A readable listing of the committed program: one op a line, each named by what uses it; the last
    /// line says where the whole is placed.
    pub fn program(&self) -> impl fmt::Display {
        &self.0.program
    }

    pub(crate) fn committed(&self) -> &Program {
        &self.0.program
    }

    pub(crate) fn bounds(&self) -> LayoutBounds {
        self.0.bounds
    }
}

impl WeakLayout {
    /// The layout, if a clone of it lives.
    #[must_use]
    pub fn upgrade(&self) -> Option<Layout> {
        self.0.upgrade().map(Layout)
    }

    /// Whether a clone of the layout lives; once there is none, there never will be.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// The identity that the layout has, or had.
    #[must_use]
    pub fn id(&self) -> LayoutId {
        LayoutId(self.0.as_ptr().addr())
    }
}

impl fmt::Debug for WeakLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakLayout").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("size", &self.size())
            .field("blocks", &self.blocks())
            .field("bounds", &self.0.bounds)
            .field("program", &format_args!("{}", self.0.program))
            .finish_non_exhaustive()
    }
}

/// Why the datatype cannot be committed, in the constructors' own terms.
fn refusal(error: ProgramError, constructor: Combiner) -> TypeError {
    match error {
        ProgramError::TooManyOps => TypeError::TooManyOps { limit: MAX_PROGRAM_OPS },
        ProgramError::TooDeep => TypeError::TooDeep {
            constructor,
            depth: MAX_PROGRAM_DEPTH + 1,
            limit: MAX_PROGRAM_DEPTH,
        },
        ProgramError::Overflow | ProgramError::Malformed(_) => {
            TypeError::overflow(constructor, Quantity::Size, Argument::whole("old"))
        }
    }
}

#[cfg(test)]
mod tests;
