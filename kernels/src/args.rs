//! What a launch tells a kernel: the Rust side of `args.h`, field for field. The host test `layouts`
//! compares both sides through a compiled kernel; sizes are also asserted here.
//!
//! Structures have no padding, so that they can be passed on as bytes.

use crate::reduce::SOURCES_MAX;
use zerocopy::IntoBytes;

/// Dimensions of a grid of blocks, at most.
pub const DIMS_MAX: usize = 6;
/// Dimensions of a transposed shape besides its two, at most.
pub const BATCH_MAX: usize = 4;
/// Requests of one fused launch, at most.
pub const PARTS_MAX: usize = 32;
/// Places in the order of a fused launch's tiles at which blocks work at the same time.
pub const PARTS_AT_ONCE: u32 = 8;
/// The bit of [`Span::edges`] for what should leave the caches first.
pub const ONCE: u32 = 1 << 31;
/// [`Span::edges`]: threads move half as many words each.
pub const HALF: u32 = 1 << 30;

/// A structure or a field of one, for comparing with the other side.
#[derive(Clone, Copy, Debug)]
pub struct LayoutEntry {
    /// The structure's name in `args.h`.
    pub structure: &'static str,
    /// The field, or nothing for the structure's size.
    pub field: &'static str,
    /// Offset or size on this side, in bytes.
    pub bytes: usize,
}

/// Declares structures and lists their layouts.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident: $size:literal {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, zerocopy::IntoBytes, zerocopy::Immutable,
            )]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_about])* pub $field: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == $size);
        )*

        /// Every structure's size and every field's offset.
        pub const LAYOUT: &[$crate::args::LayoutEntry] = &[$(
            $crate::args::LayoutEntry {
                structure: stringify!($name),
                field: "",
                bytes: size_of::<$name>(),
            },
            $($crate::args::LayoutEntry {
                structure: stringify!($name),
                field: stringify!($field),
                bytes: std::mem::offset_of!($name, $field),
            },)*
        )*];
    };
}
pub(crate) use structures;

structures! {
    /// Division of n < 2³¹ as a multiplication.
    Divide: 8 {
        /// Multiplier.
        magic: u32,
        /// Shift of the upper half.
        shift: u32,
    }
    /// The part of the stream that one launch moves, and where it lies.
    Span: 32 {
        /// Bytes from the typed pointer to displacement 0.
        typed: i64,
        /// Bytes from the packed pointer to word `first`; where both sides have gaps, to displacement 0.
        packed: i64,
        /// First whole word.
        first: u32,
        /// Whole words.
        words: u32,
        /// Tiles, the one for the edges included.
        tiles: u32,
        /// Bytes before word `first`; bytes after the last one shifted by 8; and, shifted by 16, the
        /// bytes of a word that come after the stretch where all of it lies inside that word. The highest
        /// bit, [`ONCE`], says that what is touched should leave the caches first, and [`HALF`] that
        /// threads move half as many words each.
        edges: u32,
    }
    /// One dimension of a grid.
    Dim: 32 {
        /// Bytes from one to the next.
        stride: i64,
        /// How many.
        count: u32,
        /// Words of the stream from one to the next; only transposed shapes have it.
        packed: u32,
        /// Division by the count; of transposed shapes' two, by their tiles.
        by: Divide,
        /// Nothing.
        unused: u64,
    }
    /// Equal blocks on a grid.
    Strided: 208 {
        /// Words of a block.
        len: u32,
        /// Dimensions, outermost first.
        dims: u32,
        /// Division by `len`.
        by_len: Divide,
        /// The dimensions.
        dim: [Dim; DIMS_MAX],
    }
    /// Runs whose lengths advance by a constant.
    Affine: 40 {
        /// Bytes from a run to the next.
        step: i64,
        /// Bytes from an instance to the next.
        extent: i64,
        /// Runs of an instance.
        count: u32,
        /// Words of run 0.
        len: u32,
        /// Words that each run is longer than the one before.
        grow: i32,
        /// Words of an instance.
        size: u32,
        /// Division by `size`.
        by_size: Divide,
    }
    /// Equal blocks at listed displacements.
    Listed: 56 {
        /// Bytes from an instance to the next.
        extent: i64,
        /// Bytes that a listed displacement counts.
        scale: i64,
        /// Bytes into the plan.
        list: u64,
        /// Words of a block.
        len: u32,
        /// Blocks of an instance.
        blocks: u32,
        /// Whether displacements have 64 bits.
        wide: u32,
        /// Nothing.
        unused: u32,
        /// Division by `len`.
        by_len: Divide,
        /// Division by `blocks`.
        by_blocks: Divide,
    }
    /// Any blocks, by a plan.
    Mapped: 56 {
        /// Bytes from an instance to the next.
        extent: i64,
        /// Bytes that a shift counts.
        scale: i64,
        /// Bytes into the plan, to the units.
        units: u64,
        /// Bytes into the plan, to the shifts.
        shifts: u64,
        /// Words of an instance.
        size: u32,
        /// Whether shifts have 64 bits.
        wide: u32,
        /// The plan was made for words 2^`finer` times as wide.
        finer: u32,
        /// Nothing.
        unused: u32,
        /// Division by `size`.
        by_size: Divide,
    }
    /// 32 words of a planned stream.
    Unit: 8 {
        /// Block that the first word lies in.
        block: u32,
        /// Bit i: a block begins at word i; bit 0 is not set.
        begins: u32,
    }
    /// Words whose stream runs across the memory's order.
    Transposed: 208 {
        /// Neighbours lie close in memory.
        dense: Dim,
        /// Neighbours are neighbours in the stream.
        fast: Dim,
        /// Squares along `dense`.
        dense_tiles: u32,
        /// Squares along `fast`.
        fast_tiles: u32,
        /// Dimensions besides, outermost first.
        dims: u32,
        /// 0; where what is read lies across a link 1, and the words more that a line of it has.
        far: u32,
        /// The dimensions besides.
        batch: [Dim; BATCH_MAX],
    }
    /// Either side of a transfer.
    Side: 368 {
        /// One of the `SIDE_` numbers.
        kind: u32,
        /// The number that the span's first whole word has on this side.
        first: u32,
        /// If [`SIDE_STRIDED`].
        strided: Strided,
        /// If [`SIDE_AFFINE`].
        affine: Affine,
        /// If [`SIDE_LISTED`].
        listed: Listed,
        /// If [`SIDE_MAPPED`].
        mapped: Mapped,
    }
    /// Blocks on a grid, of whose first dimension, the pages, the steps may be listed.
    PagesSide: 240 {
        /// Bytes from the list's pointer to the index of page 0.
        list: u64,
        /// The largest index that is moved.
        last: u64,
        /// Bytes of an index; 0 where nothing is listed.
        bytes: u32,
        /// Indices of the user's list before that of page 0.
        before: u32,
        /// The number that the span's first whole word has on this side.
        first: u32,
        /// Nothing.
        unused: u32,
        /// The grid.
        shape: Strided,
    }
    /// Which threads of 32 move scattered words when unpacking, so that whole sectors are written at once.
    Skipping: 8 {
        /// That many of the first.
        lanes: u32,
        /// Words before the span's first at which the first strip begins.
        back: u32,
    }
    /// How long blocks on a grid are cut.
    Rows: 24 {
        /// Words of a strip.
        piece: u32,
        /// Strips of a block; 0 where blocks are not long.
        pieces: u32,
        /// The block that the span begins in.
        row: u32,
        /// Nothing.
        unused: u32,
        /// Division by `pieces`.
        by_pieces: Divide,
    }
    /// Of `copy`.
    CopyArgs: 32 {
        /// What to move.
        span: Span,
    }
    /// Of `strided1` and `strided`.
    StridedArgs: 248 {
        /// What to move.
        span: Span,
        /// By which threads.
        skipping: Skipping,
        /// How it lies.
        shape: Strided,
    }
    /// Of `rows`.
    RowsArgs: 264 {
        /// What to move.
        span: Span,
        /// How blocks are cut.
        rows: Rows,
        /// How it lies.
        shape: Strided,
    }
    /// Of `affine` and `affine_short`.
    AffineArgs: 80 {
        /// What to move.
        span: Span,
        /// By which threads.
        skipping: Skipping,
        /// How it lies.
        shape: Affine,
    }
    /// Of `listed`.
    ListedArgs: 96 {
        /// What to move.
        span: Span,
        /// By which threads.
        skipping: Skipping,
        /// How it lies.
        shape: Listed,
    }
    /// Of `mapped`.
    MappedArgs: 88 {
        /// What to move.
        span: Span,
        /// How it lies.
        shape: Mapped,
    }
    /// Of `transposed`.
    TransposedArgs: 240 {
        /// What to move.
        span: Span,
        /// How it lies.
        shape: Transposed,
    }
    /// Of `transfer`; `span.packed` leads to displacement 0 of the destination, `span.first` is 0.
    TransferArgs: 768 {
        /// What to move.
        span: Span,
        /// The source.
        from: Side,
        /// The destination.
        to: Side,
    }
    /// Of `pages`; `span.packed` and `span.first` as in [`TransferArgs`].
    PagesArgs: 544 {
        /// What to move.
        span: Span,
        /// Blocks of both sides begin at multiples of so many words.
        unit: u32,
        /// Words of a strip.
        piece: u32,
        /// Strips of a unit.
        pieces: u32,
        /// Words of the first unit that lie before the span.
        into: u32,
        /// Division by `pieces`.
        by_pieces: Divide,
        /// A strip is moved by 2^`lanes` threads.
        lanes: u32,
        /// Nothing.
        unused: u32,
        /// The source.
        from: PagesSide,
        /// The destination.
        to: PagesSide,
    }
    /// One request of a fused launch.
    FusedPart: 432 {
        /// What to move.
        span: Span,
        /// By which threads.
        skipping: Skipping,
        /// How its blocks are cut, if they are long ones on a grid.
        rows: Rows,
        /// How it lies; its `first` is the span's.
        side: Side,
    }
    /// Of `fused`; of the span only `tiles` and `first` count.
    FusedArgs: 13984 {
        /// All tiles; and in `first`, bit i says that part i + 1 is the twin of part i: as many words,
        /// which lie close by in memory, so that the same threads move both.
        span: Span,
        /// The tile that each part begins at; a twin where both end; of those that are not, past the end.
        begin: [u32; PARTS_MAX],
        /// The parts.
        part: [FusedPart; PARTS_MAX],
    }
    /// A reduction of sides without gaps.
    ReduceFlatArgs: 96 {
        /// Bytes from the pointer of the target, and of each source, to its first whole word.
        at: [i64; SOURCES_MAX + 1],
        /// Tells operations apart that share a kernel.
        mask: u64,
        /// Words of 16 bytes.
        words: u32,
        /// Tiles, the one for the edges included.
        tiles: u32,
        /// How many, at least 2.
        sources: u32,
        /// Bytes before the first word; bytes after the last one shifted by 8.
        edges: u32,
    }
    /// One side of a reduction.
    ReduceSide: 224 {
        /// Bytes from its pointer to displacement 0.
        at: i64,
        /// Number of the first whole word.
        first: u32,
        /// Nothing.
        unused: u32,
        /// How it lies; without gaps, a block that does not end.
        shape: Strided,
    }
    /// A reduction of sides on grids.
    ReduceGridArgs: 2040 {
        /// Tells operations apart that share a kernel.
        mask: u64,
        /// Words of 16 bytes, or elements.
        words: u32,
        /// Tiles, the one for the edges included.
        tiles: u32,
        /// How many, at least 2.
        sources: u32,
        /// Bytes before the first word; bytes after the last one shifted by 8.
        edges: u32,
        /// The target, then the sources.
        side: [ReduceSide; SOURCES_MAX + 1],
    }
}

/// What one launch of a reduction passes to its kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum ReduceArgs {
    /// Of `flat`.
    Flat(ReduceFlatArgs),
    /// Of `grid` and `each`; in OpenCL a buffer that holds these bytes.
    Grid(Box<ReduceGridArgs>),
}

impl ReduceArgs {
    /// The bytes that the kernel's last parameter is.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            ReduceArgs::Flat(args) => args.as_bytes(),
            ReduceArgs::Grid(args) => args.as_bytes(),
        }
    }
}

/// [`Side::strided`] counts.
pub const SIDE_STRIDED: u32 = 0;
/// [`Side::affine`] counts.
pub const SIDE_AFFINE: u32 = 1;
/// [`Side::listed`] counts.
pub const SIDE_LISTED: u32 = 2;
/// [`Side::mapped`] counts.
pub const SIDE_MAPPED: u32 = 3;

/// What one launch passes to its kernel after the pointers.
#[derive(Clone, Debug, PartialEq)]
pub enum Args {
    /// Of `copy`.
    Copy(CopyArgs),
    /// Of `strided1` and `strided`.
    Strided(StridedArgs),
    /// Of `rows`.
    Rows(RowsArgs),
    /// Of `affine` and `affine_short`.
    Affine(AffineArgs),
    /// Of `listed`.
    Listed(ListedArgs),
    /// Of `mapped`.
    Mapped(MappedArgs),
    /// Of `transposed`.
    Transposed(TransposedArgs),
    /// Of `transfer`.
    Transfer(Box<TransferArgs>),
    /// Of `pages`.
    Pages(Box<PagesArgs>),
    /// Of `fused`: in CUDA a parameter like the others; in OpenCL, whose parameters are smaller, a
    /// buffer that holds these bytes.
    Fused(Box<FusedArgs>),
}

impl Args {
    /// The bytes that the kernel's last parameter is.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Args::Copy(args) => args.as_bytes(),
            Args::Strided(args) => args.as_bytes(),
            Args::Rows(args) => args.as_bytes(),
            Args::Affine(args) => args.as_bytes(),
            Args::Listed(args) => args.as_bytes(),
            Args::Mapped(args) => args.as_bytes(),
            Args::Transposed(args) => args.as_bytes(),
            Args::Transfer(args) => args.as_bytes(),
            Args::Pages(args) => args.as_bytes(),
            Args::Fused(args) => args.as_bytes(),
        }
    }

    /// What is moved.
    #[must_use]
    pub fn span(&self) -> &Span {
        match self {
            Args::Copy(args) => &args.span,
            Args::Strided(args) => &args.span,
            Args::Rows(args) => &args.span,
            Args::Affine(args) => &args.span,
            Args::Listed(args) => &args.span,
            Args::Mapped(args) => &args.span,
            Args::Transposed(args) => &args.span,
            Args::Transfer(args) => &args.span,
            Args::Pages(args) => &args.span,
            Args::Fused(args) => &args.span,
        }
    }

    pub(crate) fn span_mut(&mut self) -> &mut Span {
        match self {
            Args::Copy(args) => &mut args.span,
            Args::Strided(args) => &mut args.span,
            Args::Rows(args) => &mut args.span,
            Args::Affine(args) => &mut args.span,
            Args::Listed(args) => &mut args.span,
            Args::Mapped(args) => &mut args.span,
            Args::Transposed(args) => &mut args.span,
            Args::Transfer(args) => &mut args.span,
            Args::Pages(args) => &mut args.span,
            Args::Fused(args) => &mut args.span,
        }
    }
}
