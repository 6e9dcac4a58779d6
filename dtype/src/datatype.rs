//! The datatype: an immutable tree of constructors over predefined types.
//!
//! A node owns its constructor's arguments (lists are copied once, into the node), shares the
//! types it is made of, and carries what follows from them: size, bounds, depth. All are computed
//! when the node is made, from its children's alone, so making a type costs time proportional to
//! its own arguments. What is derived later (signature, committed layout) is kept in the node.
//! Sizes, bounds and extents are in bytes.
//!
//! Read first: MPI 4.1 §5.1 (derived datatypes). Constructors are in `build/`, the rule for bounds
//! in `bounds.rs`.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::bounds::{Bounds, Span};
use crate::build::Recipe;
use crate::contents::{Combiner, Contents, Envelope};
use crate::error::{Argument, Quantity, TypeError};
use crate::layout::Layout;
use crate::limits::MAX_DEPTH;
use crate::memory_kind::MemoryKind;
use crate::primitive::Primitive;
use crate::signature::Signature;

/// A description of data that need not be contiguous: an MPI datatype.
///
/// A handle to an immutable object; clones share it, and `==` tells whether two handles are of the
/// same object ([`same_structure`](Self::same_structure) compares what they describe). Predefined
/// types come from [`Primitive`] by `From`; there is one object of each.
///
/// ```
/// use gapless_dtype::{Datatype, Primitive};
///
/// // A column of a row-major 4 × 6 matrix of doubles.
/// let double = Datatype::from(Primitive::Double);
/// let column = Datatype::vector(4, 1, 6, &double)?;
/// assert_eq!(column.size(), 4 * 8);
/// assert_eq!(column.extent(), (3 * 6 + 1) * 8);
///
/// // Resized to one element, so that columns can be counted.
/// let column = Datatype::resized(0, 8, &column)?;
/// assert_eq!((column.extent(), column.true_extent()), (8, 152));
/// # Ok::<(), gapless_dtype::TypeError>(())
/// ```
#[derive(Clone)]
pub struct Datatype(Arc<Node>);

struct Node {
    recipe: Recipe,
    size: u64,
    bounds: Bounds,
    /// `lb..ub`, from `bounds`.
    span: Span,
    depth: usize,
    /// As `depth`, with subarrays and darrays counted as the trees they stand for.
    lowered_depth: usize,
    signature: OnceLock<Signature>,
    layout: OnceLock<Layout>,
    memory: Option<MemoryKind>,
}

impl Datatype {
    /// Makes a node; `blame` is the argument that decides over its bounds.
    pub(crate) fn assemble(
        recipe: Recipe,
        size: u64,
        bounds: Bounds,
        blame: Argument,
    ) -> Result<Datatype, TypeError> {
        Self::in_kind(recipe, size, bounds, blame, None)
    }

    /// Makes a node whose buffers lie in a kind of memory, if one is said.
    pub(crate) fn in_kind(
        recipe: Recipe,
        size: u64,
        bounds: Bounds,
        blame: Argument,
        memory: Option<MemoryKind>,
    ) -> Result<Datatype, TypeError> {
        let contents = recipe.contents();
        let constructor = contents.combiner();
        let span = bounds
            .lb_ub()
            .ok_or_else(|| TypeError::overflow(constructor, Quantity::Bounds, blame))?;
        let own = usize::from(constructor != Combiner::Named);
        let deepest = |depth: fn(&Datatype) -> usize| {
            own + contents.types().iter().map(depth).max().unwrap_or(0)
        };
        let depth = deepest(Datatype::depth);
        let lowered_depth = match recipe.lowered() {
            Some(lowered) => lowered.0.lowered_depth,
            None => deepest(|t| t.0.lowered_depth),
        };
        if lowered_depth > MAX_DEPTH {
            return Err(TypeError::TooDeep { constructor, depth: lowered_depth, limit: MAX_DEPTH });
        }
        Ok(Datatype(Arc::new(Node {
            recipe,
            size,
            bounds,
            span,
            depth,
            lowered_depth,
            signature: OnceLock::new(),
            layout: OnceLock::new(),
            memory,
        })))
    }

    /// Bytes of data in one instance (`MPI_Type_size`).
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Lower bound (MPI 4.1 §5.1.7).
    pub fn lb(&self) -> i64 {
        self.0.span.lo
    }

    /// Upper bound (MPI 4.1 §5.1.7), padding included.
    pub fn ub(&self) -> i64 {
        self.0.span.hi
    }

    /// Distance from one instance to the next, `ub − lb`. May be negative after
    /// [`resized`](Self::resized).
    pub fn extent(&self) -> i64 {
        // Cannot wrap: `assemble` refuses bounds whose difference overflows.
        self.0.span.hi.wrapping_sub(self.0.span.lo)
    }

    /// Displacement of the first byte of data (MPI 4.1 §5.1.8); 0 if there is none.
    pub fn true_lb(&self) -> i64 {
        self.0.bounds.data.map_or(0, |data| data.lo)
    }

    /// Displacement behind the last byte of data; 0 if there is none.
    pub fn true_ub(&self) -> i64 {
        self.0.bounds.data.map_or(0, |data| data.hi)
    }

    /// Bytes from the first to behind the last byte of data; never negative.
    pub fn true_extent(&self) -> i64 {
        self.true_ub().wrapping_sub(self.true_lb())
    }

    /// Strictest alignment of the basic types inside, in bytes; 1 if there are none.
    pub fn alignment(&self) -> u64 {
        self.0.bounds.alignment
    }

    /// Levels of constructors above the deepest predefined type; 0 for a predefined type.
    pub fn depth(&self) -> usize {
        self.0.depth
    }

    /// Which constructor made this type, and how many arguments it took.
    pub fn envelope(&self) -> Envelope {
        self.contents().envelope()
    }

    /// The constructor and its original arguments (MPI 4.1 §5.1.13).
    pub fn contents(&self) -> Contents<'_> {
        self.0.recipe.contents()
    }

    /// The simpler tree that a subarray or darray stands for, with the same typemap and bounds;
    /// `None` for every other constructor.
    ///
    /// It is made of `contiguous`, `hvector`, `hindexed_block` and `structure` over the same old
    /// type, inside one `resized` that sets the bounds of the full array (MPI 4.1 §5.1.3, §5.1.4).
    pub fn lower(&self) -> Option<Datatype> {
        self.0.recipe.lowered().cloned()
    }

    /// Whether both describe the same construction: equal constructors with equal arguments, all
    /// the way down. Kinds of memory do not count.
    pub fn same_structure(&self, other: &Datatype) -> bool {
        // Shared nodes are compared once, or a small type with much sharing would take forever.
        let mut seen = HashSet::new();
        let mut to_compare = vec![(self, other)];
        while let Some((a, b)) = to_compare.pop() {
            if a == b || !seen.insert((Arc::as_ptr(&a.0), Arc::as_ptr(&b.0))) {
                continue;
            }
            let (a, b) = (a.contents(), b.contents());
            if !a.same_call(&b) || a.types().len() != b.types().len() {
                return false;
            }
            to_compare.extend(a.types().iter().zip(b.types()));
        }
        true
    }

    /// The sequence of basic types, compressed; computed once.
    pub fn signature(&self) -> &Signature {
        self.0.signature.get_or_init(|| Signature::compute(self))
    }

    /// Where the committed layout is kept; [`commit`](Self::commit) fills it.
    pub(crate) fn committed(&self) -> &OnceLock<Layout> {
        &self.0.layout
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.0.bounds
    }

    /// What the type itself says of it, and not those that it is made of.
    pub(crate) fn own_memory_kind(&self) -> Option<MemoryKind> {
        self.0.memory
    }
}

impl From<Primitive> for Datatype {
    /// The predefined type; always the same object for the same primitive.
    fn from(primitive: Primitive) -> Datatype {
        static PREDEFINED: [OnceLock<Datatype>; Primitive::ALL.len()] =
            [const { OnceLock::new() }; Primitive::ALL.len()];
        PREDEFINED[primitive as usize].get_or_init(|| predefined(primitive)).clone()
    }
}

fn predefined(primitive: Primitive) -> Datatype {
    let signed = |bytes: u64| i64::try_from(bytes).expect("predefined types are small");
    let end = primitive.parts().map(|(part, at)| at + part.size_bytes());
    let bounds = Bounds {
        data: Some(Span { lo: 0, hi: signed(end.max().expect("a primitive has a part")) }),
        markers: None,
        alignment: primitive.alignment_bytes(),
    };
    let recipe = Recipe::Primitive(primitive);
    let blame = Argument::whole("primitive");
    Datatype::assemble(recipe, primitive.size_bytes(), bounds, blame)
        .expect("predefined types are small")
}

impl PartialEq for Datatype {
    fn eq(&self, other: &Datatype) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Datatype {}

impl Hash for Datatype {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Datatype {
    /// One level: a tree with shared parts written out could be endless.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Contents::Primitive(primitive) = self.contents() {
            return f.write_str(primitive.name());
        }
        f.debug_struct("Datatype")
            .field("combiner", &self.envelope().combiner)
            .field("size", &self.size())
            .field("lb", &self.lb())
            .field("extent", &self.extent())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
