//! A datatype taken apart: which constructor made it, with which arguments.
//!
//! [`Contents`] mirrors the constructors one to one, so that whoever understands its thirteen
//! cases understands every datatype: commit, the signature and the oracle all start from it.
//! [`Envelope`] is the summary that `MPI_Type_get_envelope` reports.
//!
//! Read first: MPI 4.1 §5.1.13 (decoding a datatype).

use std::fmt;

use crate::datatype::Datatype;
use crate::error::TypeError;
use crate::primitive::Primitive;

/// Storage order of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last dimension is contiguous (`MPI_ORDER_C`).
    C,
    /// The first dimension is contiguous (`MPI_ORDER_FORTRAN`).
    Fortran,
}

/// How one dimension of a global array is dealt out to processes (MPI 4.1 §5.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// One block per process.
    Block,
    /// Blocks dealt out in turn.
    Cyclic,
    /// Not distributed: the process has the whole dimension.
    None,
}

/// A datatype's constructor and the arguments it was called with.
///
/// Counts and indices are as given; what has `bytes` in its name is in bytes, other strides and
/// displacements are in extents of `old`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the constructors' arguments, described there")]
pub enum Contents<'a> {
    /// A predefined type.
    Primitive(Primitive),
    /// [`Datatype::dup`].
    Dup { old: &'a Datatype },
    /// [`Datatype::contiguous`].
    Contiguous { count: u64, old: &'a Datatype },
    /// [`Datatype::vector`].
    Vector { count: u64, blocklength: u64, stride: i64, old: &'a Datatype },
    /// [`Datatype::hvector`].
    Hvector { count: u64, blocklength: u64, stride_bytes: i64, old: &'a Datatype },
    /// [`Datatype::indexed`].
    Indexed { blocklengths: &'a [u64], displacements: &'a [i64], old: &'a Datatype },
    /// [`Datatype::hindexed`].
    Hindexed { blocklengths: &'a [u64], displacements_bytes: &'a [i64], old: &'a Datatype },
    /// [`Datatype::indexed_block`].
    IndexedBlock { blocklength: u64, displacements: &'a [i64], old: &'a Datatype },
    /// [`Datatype::hindexed_block`].
    HindexedBlock { blocklength: u64, displacements_bytes: &'a [i64], old: &'a Datatype },
    /// [`Datatype::structure`].
    Struct { blocklengths: &'a [u64], displacements_bytes: &'a [i64], types: &'a [Datatype] },
    /// [`Datatype::subarray`].
    Subarray {
        sizes: &'a [u64],
        subsizes: &'a [u64],
        starts: &'a [u64],
        order: Order,
        old: &'a Datatype,
    },
    /// [`Datatype::darray`].
    Darray {
        size: u64,
        rank: u64,
        gsizes: &'a [u64],
        distribs: &'a [Distribution],
        dargs: &'a [Option<u64>],
        psizes: &'a [u64],
        order: Order,
        old: &'a Datatype,
    },
    /// [`Datatype::resized`].
    Resized { lb: i64, extent: i64, old: &'a Datatype },
}

/// Which constructor made a datatype (`MPI_COMBINER_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Combiner {
    /// A predefined type.
    Named,
    /// [`Datatype::dup`].
    Dup,
    /// [`Datatype::contiguous`].
    Contiguous,
    /// [`Datatype::vector`].
    Vector,
    /// [`Datatype::hvector`].
    Hvector,
    /// [`Datatype::indexed`].
    Indexed,
    /// [`Datatype::hindexed`].
    Hindexed,
    /// [`Datatype::indexed_block`].
    IndexedBlock,
    /// [`Datatype::hindexed_block`].
    HindexedBlock,
    /// [`Datatype::structure`].
    Struct,
    /// [`Datatype::subarray`].
    Subarray,
    /// [`Datatype::darray`].
    Darray,
    /// [`Datatype::resized`].
    Resized,
}

impl Combiner {
    /// Every combiner, in declaration order.
    pub const ALL: [Combiner; 13] = [
        Combiner::Named,
        Combiner::Dup,
        Combiner::Contiguous,
        Combiner::Vector,
        Combiner::Hvector,
        Combiner::Indexed,
        Combiner::Hindexed,
        Combiner::IndexedBlock,
        Combiner::HindexedBlock,
        Combiner::Struct,
        Combiner::Subarray,
        Combiner::Darray,
        Combiner::Resized,
    ];

    /// The name of the constructor that this stands for.
    pub const fn name(self) -> &'static str {
        match self {
            Combiner::Named => "named",
            Combiner::Dup => "dup",
            Combiner::Contiguous => "contiguous",
            Combiner::Vector => "vector",
            Combiner::Hvector => "hvector",
            Combiner::Indexed => "indexed",
            Combiner::Hindexed => "hindexed",
            Combiner::IndexedBlock => "indexed_block",
            Combiner::HindexedBlock => "hindexed_block",
            Combiner::Struct => "structure",
            Combiner::Subarray => "subarray",
            Combiner::Darray => "darray",
            Combiner::Resized => "resized",
        }
    }
}

impl fmt::Display for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The summary of a datatype's construction: what `MPI_Type_get_envelope` returns (MPI 4.1
/// §5.1.13), in the counting of its table of combiners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The constructor.
    pub combiner: Combiner,
    /// Number of integer arguments, counts of lists included.
    pub integers: usize,
    /// Number of address-sized arguments.
    pub addresses: usize,
    /// Number of datatype arguments.
    pub datatypes: usize,
}

impl<'a> Contents<'a> {
    /// Which constructor this is.
    pub fn combiner(&self) -> Combiner {
        match self {
            Contents::Primitive(_) => Combiner::Named,
            Contents::Dup { .. } => Combiner::Dup,
            Contents::Contiguous { .. } => Combiner::Contiguous,
            Contents::Vector { .. } => Combiner::Vector,
            Contents::Hvector { .. } => Combiner::Hvector,
            Contents::Indexed { .. } => Combiner::Indexed,
            Contents::Hindexed { .. } => Combiner::Hindexed,
            Contents::IndexedBlock { .. } => Combiner::IndexedBlock,
            Contents::HindexedBlock { .. } => Combiner::HindexedBlock,
            Contents::Struct { .. } => Combiner::Struct,
            Contents::Subarray { .. } => Combiner::Subarray,
            Contents::Darray { .. } => Combiner::Darray,
            Contents::Resized { .. } => Combiner::Resized,
        }
    }

    /// How many arguments of each kind MPI would report.
    pub fn envelope(&self) -> Envelope {
        let (integers, addresses, datatypes) = match *self {
            Contents::Primitive(_) => (0, 0, 0),
            Contents::Dup { .. } => (0, 0, 1),
            Contents::Contiguous { .. } => (1, 0, 1),
            Contents::Vector { .. } => (3, 0, 1),
            Contents::Hvector { .. } => (2, 1, 1),
            Contents::Indexed { displacements, .. } => (2 * displacements.len() + 1, 0, 1),
            Contents::Hindexed { displacements_bytes: d, .. } => (d.len() + 1, d.len(), 1),
            Contents::IndexedBlock { displacements, .. } => (displacements.len() + 2, 0, 1),
            Contents::HindexedBlock { displacements_bytes: d, .. } => (2, d.len(), 1),
            Contents::Struct { types, .. } => (types.len() + 1, types.len(), types.len()),
            Contents::Subarray { sizes, .. } => (3 * sizes.len() + 2, 0, 1),
            Contents::Darray { gsizes, .. } => (4 * gsizes.len() + 4, 0, 1),
            Contents::Resized { .. } => (0, 2, 1),
        };
        Envelope { combiner: self.combiner(), integers, addresses, datatypes }
    }

    /// The types that this one is made of: none, one, or a structure's members.
    pub fn types(&self) -> &'a [Datatype] {
        match *self {
            Contents::Primitive(_) => &[],
            Contents::Struct { types, .. } => types,
            Contents::Dup { old }
            | Contents::Contiguous { old, .. }
            | Contents::Vector { old, .. }
            | Contents::Hvector { old, .. }
            | Contents::Indexed { old, .. }
            | Contents::Hindexed { old, .. }
            | Contents::IndexedBlock { old, .. }
            | Contents::HindexedBlock { old, .. }
            | Contents::Subarray { old, .. }
            | Contents::Darray { old, .. }
            | Contents::Resized { old, .. } => std::slice::from_ref(old),
        }
    }

    /// The same arguments over other types, in the order of [`types`](Self::types).
    ///
    /// # Panics
    ///
    /// If `types` has another length.
    pub fn with_types<'b>(&self, types: &'b [Datatype]) -> Contents<'b>
    where
        'a: 'b,
    {
        assert_eq!(types.len(), self.types().len(), "one type for each");
        let mut contents: Contents<'b> = *self;
        match &mut contents {
            Contents::Primitive(_) => {}
            Contents::Struct { types: old, .. } => *old = types,
            Contents::Dup { old }
            | Contents::Contiguous { old, .. }
            | Contents::Vector { old, .. }
            | Contents::Hvector { old, .. }
            | Contents::Indexed { old, .. }
            | Contents::Hindexed { old, .. }
            | Contents::IndexedBlock { old, .. }
            | Contents::HindexedBlock { old, .. }
            | Contents::Subarray { old, .. }
            | Contents::Darray { old, .. }
            | Contents::Resized { old, .. } => *old = &types[0],
        }
        contents
    }

    /// Calls the constructor again with these arguments: a new type with the same contents.
    ///
    /// # Errors
    ///
    /// None for contents that come from a datatype; for contents put together by hand, whatever the
    /// constructor returns.
    pub fn rebuild(&self) -> Result<Datatype, TypeError> {
        match *self {
            Contents::Primitive(primitive) => Ok(primitive.into()),
            Contents::Dup { old } => old.dup(),
            Contents::Contiguous { count, old } => Datatype::contiguous(count, old),
            Contents::Vector { count, blocklength, stride, old } => {
                Datatype::vector(count, blocklength, stride, old)
            }
            Contents::Hvector { count, blocklength, stride_bytes, old } => {
                Datatype::hvector(count, blocklength, stride_bytes, old)
            }
            Contents::Indexed { blocklengths, displacements, old } => {
                Datatype::indexed(blocklengths, displacements, old)
            }
            Contents::Hindexed { blocklengths, displacements_bytes, old } => {
                Datatype::hindexed(blocklengths, displacements_bytes, old)
            }
            Contents::IndexedBlock { blocklength, displacements, old } => {
                Datatype::indexed_block(blocklength, displacements, old)
            }
            Contents::HindexedBlock { blocklength, displacements_bytes, old } => {
                Datatype::hindexed_block(blocklength, displacements_bytes, old)
            }
            Contents::Struct { blocklengths, displacements_bytes, types } => {
                Datatype::structure(blocklengths, displacements_bytes, types)
            }
            Contents::Subarray { sizes, subsizes, starts, order, old } => {
                Datatype::subarray(sizes, subsizes, starts, order, old)
            }
            Contents::Darray { size, rank, gsizes, distribs, dargs, psizes, order, old } => {
                Datatype::darray(size, rank, gsizes, distribs, dargs, psizes, order, old)
            }
            Contents::Resized { lb, extent, old } => Datatype::resized(lb, extent, old),
        }
    }

    /// Whether both are the same call, leaving aside which types it was made with.
    pub(crate) fn same_call(&self, other: &Contents<'_>) -> bool {
        use Contents as C;
        match (*self, *other) {
            (C::Primitive(a), C::Primitive(b)) => a == b,
            (C::Dup { .. }, C::Dup { .. }) => true,
            (C::Contiguous { count: a, .. }, C::Contiguous { count: b, .. }) => a == b,
            (
                C::Vector { count: c1, blocklength: b1, stride: s1, .. },
                C::Vector { count: c2, blocklength: b2, stride: s2, .. },
            )
            | (
                C::Hvector { count: c1, blocklength: b1, stride_bytes: s1, .. },
                C::Hvector { count: c2, blocklength: b2, stride_bytes: s2, .. },
            ) => (c1, b1, s1) == (c2, b2, s2),
            (
                C::Indexed { blocklengths: b1, displacements: d1, .. },
                C::Indexed { blocklengths: b2, displacements: d2, .. },
            )
            | (
                C::Hindexed { blocklengths: b1, displacements_bytes: d1, .. },
                C::Hindexed { blocklengths: b2, displacements_bytes: d2, .. },
            )
            | (
                C::Struct { blocklengths: b1, displacements_bytes: d1, .. },
                C::Struct { blocklengths: b2, displacements_bytes: d2, .. },
            ) => (b1, d1) == (b2, d2),
            (
                C::IndexedBlock { blocklength: b1, displacements: d1, .. },
                C::IndexedBlock { blocklength: b2, displacements: d2, .. },
            )
            | (
                C::HindexedBlock { blocklength: b1, displacements_bytes: d1, .. },
                C::HindexedBlock { blocklength: b2, displacements_bytes: d2, .. },
            ) => (b1, d1) == (b2, d2),
            (
                C::Subarray { sizes: z1, subsizes: u1, starts: s1, order: o1, .. },
                C::Subarray { sizes: z2, subsizes: u2, starts: s2, order: o2, .. },
            ) => (z1, u1, s1, o1) == (z2, u2, s2, o2),
            (
                C::Darray {
                    size: z1,
                    rank: r1,
                    gsizes: g1,
                    distribs: d1,
                    dargs: a1,
                    psizes: p1,
                    order: o1,
                    ..
                },
                C::Darray {
                    size: z2,
                    rank: r2,
                    gsizes: g2,
                    distribs: d2,
                    dargs: a2,
                    psizes: p2,
                    order: o2,
                    ..
                },
            ) => (z1, r1, g1, d1, a1, p1, o1) == (z2, r2, g2, d2, a2, p2, o2),
            (C::Resized { lb: l1, extent: e1, .. }, C::Resized { lb: l2, extent: e2, .. }) => {
                (l1, e1) == (l2, e2)
            }
            _ => false,
        }
    }
}
