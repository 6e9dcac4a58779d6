/* Collectives between GPUs: what a launch tells a kernel, and what lies in a rank's window. The C side of peers.rs,
 * field for field. After args.h.
 *
 * Every rank has a window: device memory that all its peers have mapped. Kernels of all ranks with the same arguments
 * (but for addresses and `rank`) run at the same time and find each other through the windows. Nothing here comes from
 * the host while they run but `abort`.
 */
#ifndef GAPLESS_PEERS_H
#define GAPLESS_PEERS_H

#define RANKS_MAX 16
#define BLOCKS_MAX 64

/* Of a block. Only this rank's kernels touch it. */
typedef struct {
    u64 epoch; /* launches so far: all blocks have the same number between two launches */
    u64 turns; /* meetings of this block with its likes so far */
} Count;

/* The head of a window. */
typedef struct {
    u64 dead; /* a Status: nothing is waited for any more */
    u64 unused[15];
    Count count[BLOCKS_MAX];
    /* By block, by whether the meeting's number is odd, by rank: number of the meeting:32 | what is done:32. */
    u64 met[BLOCKS_MAX][2][RANKS_MAX];
} Head;

/* What a launch is given. Addresses are as this rank's device sees them. */
typedef struct {
    u64 window[RANKS_MAX]; /* of each rank */
    u64 src[RANKS_MAX];    /* of each rank; of words, this rank's block for each */
    u64 dst[RANKS_MAX];    /* of each rank; 0: nothing is written there; of words, where each one's block goes here */
    u64 elements;          /* of the whole, or where parts are not split, of one part; of moves, bytes of a block */
    u64 words;             /* bytes from the window's start to its words with flags */
    u64 slot;              /* bytes of one rank's words with flags, of one parity */
    u64 stage;             /* bytes from the window's start to its staging memory; 0: none is used */
    u64 piece;             /* elements of a block's piece of staging memory, each way */
    u64 abort;             /* a word of the host: not 0: stop, and what it says is whom to blame */
    u64 status;            /* a word of the host: a Status */
    u64 patience;          /* nanoseconds that a wait may last */
    u32 rank;
    u32 ranks;
    u32 doing;   /* a number that all ranks' launches have in common, and few others */
    u32 width;   /* bytes that divide all addresses: 1, 2, 4, 8 or 16 */
    u32 split;   /* whether each rank combines a part of the elements, or all of them */
    u32 which;   /* of words, the root of a broadcast, or no rank; of an all-reduce of calls.h, what is combined */
} PeersArgs;

/* A collective with layouts (layouts.h): what a launch is given besides. Only tables differ between launches. */
typedef struct {
    PeersArgs common;
    u64 begins; /* address of u32[]: job number at which each block's list begins; of step 0, then of step 1 */
    u64 jobs;   /* address of Job[] */
    u64 pieces; /* address of Piece[] */
    u32 meeting; /* blocks that meet their likes; those after them move what stays here */
    u32 steps;   /* 1, or 2 where something goes through staging memory */
} LayoutsArgs;

/* A block moves whole words [first, first + words) of a piece. */
typedef struct {
    u32 piece;
    u32 first;
    u32 words;
    u32 edges; /* whether the bytes of words that the piece covers in part are this job's, too */
} Job;

/* Bytes that go from one layout to another. The pointers that `transfer` adds offsets to, plans' too, are 0. */
typedef struct {
    TransferArgs transfer;
    u32 width; /* log2 of the bytes of a word */
    u32 unused[3];
} Piece;

/* A Status: what happened:8 | unused:24 | the rank that it is about:32. */
#define LATE 1u     /* the rank did not come in time */
#define ABORTED 2u  /* the host gave up, as it has lost the rank */
#define OTHERWISE 3u /* the rank does something else */
#define TOLD 4u     /* the rank has failed, and said so */
/* 5 and 6: gapless_partitioned.h */

#endif
