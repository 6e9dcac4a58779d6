/* What a launch tells a kernel: the C side of args.rs, field for field.
 *
 * The typed side is memory with gaps; the packed side is a stretch of the packed stream. Both are
 * counted in words of W bytes: a word never straddles two blocks, and W divides every displacement,
 * stride and length, and the address of the stream's first byte. A launch covers the words
 * [first, first + words) of a stream whose word numbers stay below 2^31; a longer one is cut, or
 * started anew further in, by the host (launch.rs). Bytes are counted only where a field says so.
 */
#ifndef GAPLESS_ARGS_H
#define GAPLESS_ARGS_H

#define DIMS_MAX 6
#define BATCH_MAX 4
#define PARTS_MAX 32
#define PARTS_AT_ONCE 8
#define SOURCES_MAX 8

/* n / divisor for n < 2^31, as ((2n * magic) >> 32) >> shift. */
typedef struct {
    u32 magic;
    u32 shift;
} Divide;

/* The part of the stream that one launch moves, and where it lies. */
typedef struct {
    i64 typed;  /* bytes from the typed pointer to displacement 0 */
    i64 packed; /* bytes from the packed pointer to word `first`; where both sides have gaps, to
                   displacement 0 */
    u32 first;
    u32 words;
    u32 tiles; /* the one for the edges included */
    u32 edges; /* bytes before word `first`, bytes after the last one << 8, and << 16 the bytes of a
                  word that come after the stretch where all of it lies inside that word; the
                  highest bit says that what is touched should leave the caches first, the one
                  below it that threads move half as many words each */
} Span;

/* One dimension of a grid of blocks. */
typedef struct {
    i64 stride; /* bytes */
    u32 count;
    u32 packed; /* words of the stream from one to the next; only transposed shapes read it */
    Divide by;
    u64 unused;
} Dim;

/* Equal blocks on a grid; the last dimension advances first. */
typedef struct {
    u32 len;
    u32 dims;
    Divide by_len;
    Dim dim[DIMS_MAX];
} Strided;

/* Run j of an instance: len + j * grow words at j * step bytes. */
typedef struct {
    i64 step;   /* bytes */
    i64 extent; /* bytes from an instance to the next */
    u32 count;
    u32 len;
    i32 grow;
    u32 size; /* of an instance */
    Divide by_size;
} Affine;

/* Equal blocks at listed displacements. */
typedef struct {
    i64 extent; /* bytes from an instance to the next */
    i64 scale;  /* bytes that a listed displacement counts */
    u64 list;   /* bytes into the plan: a displacement for each block */
    u32 len;
    u32 blocks; /* of an instance */
    u32 wide;   /* whether displacements have 64 bits */
    u32 unused;
    Divide by_len;
    Divide by_blocks;
} Listed;

/* Any blocks: a plan says for each unit of 32 words which block its first word lies in, and at which
 * of the others a block begins; and for each block how far apart its bytes lie in memory and stream. */
typedef struct {
    i64 extent; /* bytes from an instance to the next */
    i64 scale;  /* bytes that a shift counts */
    u64 units;  /* bytes into the plan: a Unit for each 32 words */
    u64 shifts; /* bytes into the plan: a shift for each block */
    u32 size;   /* of an instance */
    u32 wide;   /* whether shifts have 64 bits */
    u32 finer;  /* the plan was made for words 2^finer times as wide */
    u32 unused;
    Divide by_size;
} Mapped;

/* 32 words of the stream, as wide as when the plan was made. */
typedef struct {
    u32 block;  /* that word 0 lies in */
    u32 begins; /* bit i: a block begins at word i; bit 0 is not set */
} Unit;

/* Blocks of one word whose stream runs along `fast`, while memory runs along `dense`. */
typedef struct {
    Dim dense; /* neighbours lie close in memory; `by` divides by its tiles */
    Dim fast;  /* neighbours are neighbours in the stream; `by` divides by its tiles */
    u32 dense_tiles;
    u32 fast_tiles;
    u32 dims;
    u32 far; /* 0; where what is read lies across a link 1, and the words more that a line of it has */
    Dim batch[BATCH_MAX];
} Transposed;

/* Either side of a move from layout to layout. */
typedef struct {
    u32 kind;  /* SIDE_… */
    u32 first; /* the number that the span's first whole word has on this side */
    Strided strided;
    Affine affine;
    Listed listed;
    Mapped mapped;
} Side;

#define SIDE_STRIDED 0
#define SIDE_AFFINE 1
#define SIDE_LISTED 2
#define SIDE_MAPPED 3

/* Blocks on a grid, of whose first dimension, the pages, the steps may be listed: page k lies at as many strides as its
 * index says. Indices have no sign. Of a page whose index is above `last` nothing is moved. */
typedef struct {
    u64 list;   /* bytes from the list's pointer to the index of page 0 */
    u64 last;
    u32 bytes;  /* of an index; 0 where nothing is listed */
    u32 before; /* indices of the user's list before that of page 0 */
    u32 first;  /* the number that the span's first whole word has on this side */
    u32 unused;
    Strided shape;
} PagesSide;

/* Which threads of 32 move scattered words when unpacking, so that whole sectors are written at once. */
typedef struct {
    u32 lanes; /* that many of the first */
    u32 back;  /* words before the span's first at which the first strip begins */
} Skipping;

/* How long blocks on a grid are cut: into `pieces` of `piece` words, one a strip. */
typedef struct {
    u32 piece;
    u32 pieces; /* 0 where blocks are not long */
    u32 row;    /* the block that the span begins in */
    u32 unused;
    Divide by_pieces;
} Rows;

/* What kernels take: the span, then the shape. */
typedef struct {
    Span span;
} CopyArgs;

typedef struct {
    Span span;
    Skipping skipping;
    Strided shape;
} StridedArgs;

/* As StridedArgs, of long blocks. */
typedef struct {
    Span span;
    Rows rows;
    Strided shape;
} RowsArgs;

typedef struct {
    Span span;
    Skipping skipping;
    Affine shape;
} AffineArgs;

typedef struct {
    Span span;
    Skipping skipping;
    Listed shape;
} ListedArgs;

typedef struct {
    Span span;
    Mapped shape;
} MappedArgs;

typedef struct {
    Span span;
    Transposed shape;
} TransposedArgs;

/* `span.packed` is here what `span.typed` is: displacement 0 of the destination; `span.first` is 0. */
typedef struct {
    Span span;
    Side from;
    Side to;
} TransferArgs;

/* `span.packed` and `span.first` as in TransferArgs. A strip is moved by 2^lanes threads, and lies in one block of either
 * side: blocks of both begin at multiples of `unit` words. */
typedef struct {
    Span span;
    u32 unit;
    u32 piece;  /* words of a strip */
    u32 pieces; /* strips of a unit */
    u32 into;   /* words of the first unit before the span */
    Divide by_pieces;
    u32 lanes;
    u32 unused;
    PagesSide from;
    PagesSide to;
} PagesArgs;

/* One request of many. */
typedef struct {
    Span span;
    Skipping skipping;
    Rows rows;
    Side side; /* `first` is the span's */
} FusedPart;

/* Up to PARTS_MAX requests in one launch. Of the span two fields count: the number of tiles, rounded up
 * to a multiple of PARTS_AT_ONCE, and `first`, in which bit i says that part i + 1 is the twin of part i:
 * as many words, which lie close by in memory, so that the same threads move both. */
typedef struct {
    Span span;
    u32 begin[PARTS_MAX]; /* the tile that each part begins at; a twin where both end; of those that are
                             not, past the end */
    FusedPart part[PARTS_MAX];
} FusedArgs;

/* A reduction of sides without gaps: `at` leads to the first whole word of the target and of each source. */
typedef struct {
    i64 at[SOURCES_MAX + 1]; /* bytes from the side's pointer */
    u64 mask;                /* combine.h */
    u32 words;               /* of 16 bytes */
    u32 tiles;               /* the one for the edges included */
    u32 sources;             /* at least 2 */
    u32 edges;               /* bytes before word 0; bytes after the last one << 8 */
} ReduceFlatArgs;

/* One side of a reduction; one without gaps is a block that does not end. */
typedef struct {
    i64 at;    /* bytes from the side's pointer to displacement 0 */
    u32 first; /* number of the first whole word */
    u32 unused;
    Strided shape;
} ReduceSide;

/* A reduction of sides on grids. */
typedef struct {
    u64 mask;    /* combine.h */
    u32 words;   /* of 16 bytes, or elements */
    u32 tiles;   /* the one for the edges included */
    u32 sources; /* at least 2 */
    u32 edges;   /* bytes before the first word; bytes after the last one << 8 */
    ReduceSide side[SOURCES_MAX + 1];
} ReduceGridArgs;

#endif
