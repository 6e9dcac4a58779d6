/* Collectives whose ranks are GPUs: each rank runs the same kernel, which waits for its peers' through memory that they
 * have mapped.
 *
 * Three kinds, the first two for all elements and operations:
 *
 * - flagged_*: an all-reduce of few bytes. Each rank writes its data into a slot in every peer's window, 8 bytes of
 *   data and 8 of flags at a time, reads everybody's from its own window, and combines them in the order of the
 *   ranks. The flag comes with the data, so nothing else is waited for. Slots are cleared when they have been read,
 *   so a word with a flag is always new. The flag tells launches apart, and what they do: one that does something
 *   else is found out.
 * - direct_*: an all-reduce of many. Blocks of the same number meet; each rank combines its part of everybody's memory,
 *   where it lies, into its own, and then writes it to everybody; they meet again. Or, through staging memory, piece by
 *   piece. Reduce-scatter is the same without the writes.
 * - move: each rank writes into peers' memory. Of few bytes, peers_words (words.h) does it through words with flags.
 *
 * Collectives with layouts are in layouts.h, a kernel that stays and runs those of few bytes in calls.h.
 *
 * A rank can be at most one launch ahead of a peer, because every kernel waits for every peer: so words with flags, and
 * meetings, alternate between two places. Launches and meetings are counted in the window, so a captured launch can be
 * replayed. Every wait ends: by the peer, by the host's word, by a failure here or there, or when its time is up.
 */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"
#include "peers.h"
#include "../cuda/system.h"
#include "../cuda/elements.h"

INLINE u64 swap_if_zero(u64 at, u64 v) {
    u64 before;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;" : "=l"(before) : "l"(at), "l"(v) : "memory");
    return before;
}
INLINE u128 load_flagged(u64 at) {
    u128 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d)
                 : "l"(at)
                 : "memory");
    return v;
}
INLINE void store_flagged(u64 at, u128 v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.a), "r"(v.b), "r"(v.c), "r"(v.d)
                 : "memory");
}
INLINE void clear_flagged(u64 at) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(0) : "memory");
}

/* Failures. */

#define HEAD(window) ((Head *)(window))

/* It cannot go on: the first to say so tells the host and all peers. They learn which process has ended; of anything
 * else, only that it was found here. */
NOINLINE void fail(const PeersArgs &a, u32 what, u32 whom) {
    u64 status = ((u64)whom << 32) | what;
    u64 before = swap_if_zero((u64)&HEAD(a.window[a.rank])->dead, status);
    store_relaxed(a.status, before != 0 ? before : status);
    if (before != 0) return;
    u64 told = what == ABORTED && whom != a.rank ? status : ((u64)a.rank << 32) | TOLD;
    for (u32 r = 0; r < a.ranks; r++) {
        if (r == a.rank) continue;
        (void)swap_if_zero((u64)&HEAD(a.window[r])->dead, told);
    }
    fence_sys();
}

/* A wait. Whether to go on is asked seldom. */
typedef struct {
    u64 since;
    u32 looks;
} Patience;

#define LOOKS 64

NOINLINE bool give_up(const PeersArgs &a, u64 since, u32 whom) {
    u64 dead = load_relaxed((u64)&HEAD(a.window[a.rank])->dead);
    if (dead != 0) {
        store_relaxed(a.status, dead);
        return true;
    }
    u32 abort;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(abort) : "l"(a.abort) : "memory");
    if (abort != 0) {
        fail(a, ABORTED, abort - 1);
        return true;
    }
    if (nanoseconds() - since > a.patience) {
        fail(a, LATE, whom);
        return true;
    }
    return false;
}

INLINE bool waits(const PeersArgs &a, Patience &p, u32 whom) {
    p.looks++;
    if (p.looks % LOOKS != 0) return true;
    if (p.since == 0) p.since = nanoseconds();
    return !give_up(a, p.since, whom);
}

/* Whether this launch is to do nothing, because an earlier one, or a peer, has failed. A peer may say so while threads
 * of this block look: they decide together. */
INLINE bool is_dead(const PeersArgs &a, u64 dead) {
    if (dead != 0) store_relaxed(a.status, dead);
    return __syncthreads_or(dead != 0);
}

/* The launch is over for this block. Block b also counts for those that this launch has no block for, so that all
 * blocks have counted as many launches, whatever their sizes were. */
INLINE void leave(const PeersArgs &a, u64 epoch, u32 blocks) {
    BARRIER();
    Head *head = HEAD(a.window[a.rank]);
    for (u32 b = BLOCK + THREAD * blocks; b < BLOCKS_MAX; b += THREADS * blocks) head->count[b].epoch = epoch + 1;
}

/* This block meets those of its number of all ranks: what was written before by any of their threads is seen by all of
 * their threads after. */
INLINE bool meet(const PeersArgs &a, u64 &turns, u32 doing) {
    turns++;
    BARRIER();
    bool failed = false;
    if (THREAD < a.ranks && THREAD != a.rank) {
        u64 word = (turns << 32) | doing;
        u32 odd = (u32)turns & 1;
        fence_sys();
        store_relaxed((u64)&HEAD(a.window[THREAD])->met[BLOCK][odd][a.rank], word);
        u64 at = (u64)&HEAD(a.window[a.rank])->met[BLOCK][odd][THREAD];
        Patience p = {0, 0};
        u64 seen;
        while (((seen = load_acquire(at)) >> 32) != (word >> 32)) {
            if (!waits(a, p, THREAD)) {
                failed = true;
                break;
            }
        }
        if (!failed && seen != word) {
            fail(a, OTHERWISE, THREAD);
            failed = true;
        }
    }
    return !__syncthreads_or(failed);
}

/* An all-reduce of few bytes. */

/* Waits for a word with this flag; without it, if that was in vain. Words are clear until a peer of this launch writes
 * them, so another flag is of one that does something else. */
NOINLINE u128 wait_flagged(const PeersArgs &a, u64 at, u32 flag, u32 whom) {
    Patience p = {0, 0};
    u128 word;
    do {
        word = load_flagged(at);
        if ((word.b != 0 && word.b != flag) || (word.d != 0 && word.d != flag)) {
            fail(a, OTHERWISE, whom);
            break;
        }
    } while ((word.b != flag || word.d != flag) && waits(a, p, whom));
    if (word.d != flag) word.b = 0;
    return word;
}

template <typename T> union Packet {
    u64 w;
    T t[8 / sizeof(T)];
};

template <typename O> struct Packets {
    /* A thread's, read in one go. */
    static const u32 TOGETHER = 4;
    static __device__ __forceinline__ u64 combined(const PeersArgs &, u64 left, u64 right) {
        return combine<O, u64>(left, right);
    }
};
template <> struct Packets<Any> {
    static const u32 TOGETHER = 2;
    static __device__ __forceinline__ u64 combined(const PeersArgs &a, u64 left, u64 right) {
        return combine_any(a.which, left, right);
    }
};

/* Sends and receives the packets [i, i + K * stride) that are `stride` apart, as many as there are below `packets`: all
 * are sent before any is waited for. K packets of R ranks are looked at in one go. */
template <typename O, u32 K, u32 R>
INLINE bool flagged_batch(const PeersArgs &a, u32 i, u32 stride, u32 packets, u64 words, u32 flag) {
    typedef typename O::T T;
    const u32 N = 8 / sizeof(T);
    const T *src = (const T *)a.src[a.rank];
    T *dst = (T *)a.dst[a.rank];
    u64 ours = a.window[a.rank] + words;
    Packet<T> mine[K];
    UNROLL for (u32 k = 0; k < K; k++) {
        u32 at = i + k * stride;
        mine[k].w = 0;
        if (at >= packets) continue;
        if (a.width >= 8 && (u64)(at + 1) * N <= a.elements) {
            mine[k].w = READ(u64, (const u64 *)src + at);
        } else {
            UNROLL for (u32 e = 0; e < N; e++)
                if ((u64)at * N + e < a.elements) mine[k].t[e] = src[(u64)at * N + e];
        }
    }
    ROLLED for (u32 p = 1; p < a.ranks; p++) {
        u32 peer = a.rank + p < a.ranks ? a.rank + p : a.rank + p - a.ranks;
        u64 theirs = a.window[peer] + words + a.rank * a.slot;
        UNROLL for (u32 k = 0; k < K; k++) {
            u32 at = i + k * stride;
            u128 word = {(u32)mine[k].w, flag, (u32)(mine[k].w >> 32), flag};
            if (at < packets) store_flagged(theirs + (u64)at * 16, word);
        }
    }
    Packet<T> sum[K];
    ROLLED for (u32 from = 0; from < a.ranks; from += R) {
        u128 got[K][R];
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, r = from + j;
            got[k][j] = u128{(u32)mine[k].w, flag, (u32)(mine[k].w >> 32), flag};
            if (at < packets && r < a.ranks && r != a.rank) got[k][j] = load_flagged(ours + r * a.slot + (u64)at * 16);
        }
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, r = from + j;
            if (at >= packets || r >= a.ranks) continue;
            u64 here = ours + r * a.slot + (u64)at * 16;
            if (got[k][j].b != flag || got[k][j].d != flag) {
                got[k][j] = wait_flagged(a, here, flag, r);
                if (got[k][j].b != flag) return false;
            }
            if (r != a.rank) clear_flagged(here);
            Packet<T> theirs;
            theirs.w = (u64)got[k][j].c << 32 | got[k][j].a;
            sum[k].w = r == 0 ? theirs.w : Packets<O>::combined(a, sum[k].w, theirs.w);
        }
    }
    UNROLL for (u32 k = 0; k < K; k++) {
        u32 at = i + k * stride;
        if (at >= packets) continue;
        if (a.width >= 8 && (u64)(at + 1) * N <= a.elements) {
            WRITE(u64, (u64 *)dst + at, sum[k].w);
        } else {
            UNROLL for (u32 e = 0; e < N; e++)
                if ((u64)at * N + e < a.elements) dst[(u64)at * N + e] = sum[k].t[e];
        }
    }
    return true;
}

template <typename O> INLINE void flagged(const PeersArgs &a) {
    const u32 N = 8 / sizeof(typename O::T);
    u64 ours = a.window[a.rank];
    u64 epoch = load_relaxed((u64)&HEAD(ours)->count[BLOCK].epoch);
    u64 dead = load_relaxed((u64)&HEAD(ours)->dead);
    u32 packets = (u32)((a.elements + N - 1) / N), stride = BLOCKS * THREADS, i = BLOCK * THREADS + THREAD;
    if (is_dead(a, dead)) return;
    u32 flag = ((u32)epoch ^ a.doing) | 0x80000000u;
    u64 words = a.words + (epoch & 1) * a.slot * a.ranks;
    const u32 K = Packets<O>::TOGETHER;
    if (packets <= stride) {
        if (i < packets) (void)flagged_batch<O, 1, K>(a, i, stride, packets, words, flag);
    } else {
        ROLLED for (; i < packets; i += K * stride)
            if (!flagged_batch<O, K, 1>(a, i, stride, packets, words, flag)) break;
    }
    leave(a, epoch, BLOCKS);
}

#include "../cuda/words.h"
#include "../cuda/calls.h"

/* An all-reduce of many bytes. */

/* Combines the words [from, to) of all sources into the destinations. Threads of all blocks take turns, `stride` words
 * apart; the first is `from + first`. */
template <typename O, typename W, u32 U>
INLINE void reduce_words(const PeersArgs &a, const u64 *src, const u64 *dst, u64 from, u64 to, u32 first, u32 stride) {
    u64 i = from + first;
    for (; i + (u64)(U - 1) * stride < to; i += (u64)U * stride) {
        W sum[U];
        UNROLL for (u32 k = 0; k < U; k++) sum[k] = READ(W, (const W *)src[0] + i + k * stride);
        ROLLED for (u32 r = 1; r < a.ranks; r++) {
            W next[U];
            UNROLL for (u32 k = 0; k < U; k++) next[k] = READ(W, (const W *)src[r] + i + k * stride);
            UNROLL for (u32 k = 0; k < U; k++) sum[k] = combine<O, W>(sum[k], next[k]);
        }
        ROLLED for (u32 p = 0; p < a.ranks; p++) {
            if (dst[p] == 0) continue;
            UNROLL for (u32 k = 0; k < U; k++) WRITE(W, (W *)dst[p] + i + k * stride, sum[k]);
        }
    }
    for (; i < to; i += stride) {
        W sum = READ(W, (const W *)src[0] + i);
        ROLLED for (u32 r = 1; r < a.ranks; r++) sum = combine<O, W>(sum, READ(W, (const W *)src[r] + i));
        ROLLED for (u32 p = 0; p < a.ranks; p++)
            if (dst[p] != 0) WRITE(W, (W *)dst[p] + i, sum);
    }
}

/* Writes the words [from, to) of this rank's destination to its peers'. Threads take those that they have combined: the
 * same begin and stride, so nothing is waited for. */
template <typename W, u32 U> INLINE void spread_words(const PeersArgs &a, u64 from, u64 to, u32 first, u32 stride) {
    const W *own = (const W *)a.dst[a.rank];
    for (u64 i = from + first; i < to; i += (u64)U * stride) {
        W w[U];
        UNROLL for (u32 k = 0; k < U; k++)
            if (i + k * stride < to) w[k] = READ(W, own + i + k * stride);
        ROLLED for (u32 p = 1; p < a.ranks; p++) {
            u32 peer = a.rank + p < a.ranks ? a.rank + p : a.rank + p - a.ranks;
            UNROLL for (u32 k = 0; k < U; k++)
                if (i + k * stride < to) WRITE(W, (W *)a.dst[peer] + i + k * stride, w[k]);
        }
    }
}

template <u32 BYTES> struct WordOf;
template <> struct WordOf<2> { typedef u16 W; };
template <> struct WordOf<4> { typedef u32 W; };
template <> struct WordOf<8> { typedef u64 W; };

#define DIRECT_AT_ONCE 4

/* A rank's part of `elements` elements: by words of 16 bytes where addresses allow it; what is left over is the last
 * rank's. `first` and `stride` count threads. It is combined, or written to peers. */
template <typename O, bool SPREADS>
INLINE void do_part(const PeersArgs &a, const u64 *src, const u64 *dst, u64 elements, u32 first, u32 stride) {
    typedef typename O::T T;
    typedef typename WordOf<sizeof(T)>::W W;
    const u32 N = 16 / sizeof(T), U = DIRECT_AT_ONCE;
    u64 words = elements / N;
    u64 from = 0, to = words;
    bool last = true;
    if (a.split) {
        u64 part = (words + a.ranks - 1) / a.ranks;
        from = a.rank * part < words ? a.rank * part : words;
        to = from + part < words ? from + part : words;
        last = a.rank == a.ranks - 1;
    }
    if (SPREADS && a.width >= 16) {
        spread_words<u128, U>(a, from, to, first, stride);
        if (last) spread_words<W, 1>(a, words * N, elements, first, stride);
    } else if (SPREADS) {
        spread_words<W, U>(a, from * N, last ? elements : to * N, first, stride);
    } else if (a.width >= 16) {
        reduce_words<O, u128, U>(a, src, dst, from, to, first, stride);
        if (last) reduce_words<O, W, 1>(a, src, dst, words * N, elements, first, stride);
    } else {
        reduce_words<O, W, U>(a, src, dst, from * N, last ? elements : to * N, first, stride);
    }
}

/* Copies within this rank's memory, by this block. */
INLINE void copy_here(u64 dst, u64 src, u64 bytes, u32 width) {
    u64 done = 0;
    if (width >= 16) {
        u64 words = bytes / 16, i = THREAD;
        for (; i + 3 * THREADS < words; i += 4 * THREADS) {
            u128 w[4];
            UNROLL for (u32 k = 0; k < 4; k++) w[k] = READ(u128, (const u128 *)src + i + k * THREADS);
            UNROLL for (u32 k = 0; k < 4; k++) WRITE(u128, (u128 *)dst + i + k * THREADS, w[k]);
        }
        for (; i < words; i += THREADS) WRITE(u128, (u128 *)dst + i, READ(u128, (const u128 *)src + i));
        done = words * 16;
    } else if (width >= 4) {
        u64 words = bytes / 4;
        for (u64 i = THREAD; i < words; i += THREADS) WRITE(u32, (u32 *)dst + i, READ(u32, (const u32 *)src + i));
        done = words * 4;
    }
    for (u64 i = done + THREAD; i < bytes; i += THREADS) WRITE(u8, (u8 *)dst + i, READ(u8, (const u8 *)src + i));
}

template <typename O> INLINE void direct(const PeersArgs &a) {
    typedef typename O::T T;
    __shared__ u64 src[RANKS_MAX], dst[RANKS_MAX];
    u64 ours = a.window[a.rank];
    Count *count = &HEAD(ours)->count[BLOCK];
    u64 epoch = load_relaxed((u64)&count->epoch), turns = load_relaxed((u64)&count->turns);
    if (is_dead(a, load_relaxed((u64)&HEAD(ours)->dead))) return;
    if (a.stage == 0) {
        if (THREAD < a.ranks) {
            src[THREAD] = a.src[THREAD];
            dst[THREAD] = THREAD == a.rank ? a.dst[THREAD] : 0;
        }
        u32 first = BLOCK * THREADS + THREAD, stride = BLOCKS * THREADS;
        if (!meet(a, turns, a.doing)) return;
        do_part<O, false>(a, src, dst, a.elements, first, stride);
        /* All ranks write when they have read: reads and writes over links at the same time are slower than one after
         * the other. */
        if (a.split) do_part<O, true>(a, src, dst, a.elements, first, stride);
        if (!meet(a, turns, a.doing)) return;
    } else {
        /* Pieces alternate between two places, in and out. While peers combine piece k, this rank puts piece k + 1 into
         * the other place, which they read last for piece k - 1, before the meeting; and what they write of piece k + 1
         * goes to where piece k - 1 was, which was copied out before the meeting that precedes it. */
        u64 bytes = a.piece * sizeof(T), step = BLOCKS * a.piece, base = BLOCK * a.piece;
        u64 place = a.window[a.rank] + a.stage + BLOCK * 4 * bytes;
        u32 odd = 0;
        if (base < a.elements) {
            u64 len = a.elements - base < a.piece ? a.elements - base : a.piece;
            copy_here(place, a.src[a.rank] + base * sizeof(T), len * sizeof(T), a.width);
        }
        for (; base < a.elements; base += step, odd ^= 1) {
            u64 len = a.elements - base < a.piece ? a.elements - base : a.piece;
            if (!meet(a, turns, a.doing)) return;
            if (base >= step) {
                u64 before = (base - step) * sizeof(T);
                copy_here(a.dst[a.rank] + before, place + (2 + (odd ^ 1)) * bytes, bytes, a.width);
            }
            if (THREAD < a.ranks) {
                src[THREAD] = a.window[THREAD] + a.stage + (BLOCK * 4 + odd) * bytes;
                dst[THREAD] = src[THREAD] + 2 * bytes;
            }
            BARRIER();
            do_part<O, false>(a, src, dst, len, THREAD, THREADS);
            u64 next = base + step;
            if (next < a.elements) {
                u64 more = a.elements - next < a.piece ? a.elements - next : a.piece;
                copy_here(place + (odd ^ 1) * bytes, a.src[a.rank] + next * sizeof(T), more * sizeof(T), a.width);
            } else {
                if (!meet(a, turns, a.doing)) return;
                copy_here(a.dst[a.rank] + base * sizeof(T), place + (2 + odd) * bytes, len * sizeof(T), a.width);
            }
        }
    }
    if (THREAD == 0) count->turns = turns;
    leave(a, epoch, BLOCKS);
}

/* Moves. */

#define MOVE_AT_ONCE 4

template <typename W> INLINE u64 move_words(const PeersArgs &a, u64 words) {
    u64 stride = BLOCKS * THREADS, i = BLOCK * THREADS + THREAD;
    for (; i < words; i += MOVE_AT_ONCE * stride) {
        ROLLED for (u32 p = 1; p <= a.ranks; p++) {
            u32 peer = a.rank + p < a.ranks ? a.rank + p : a.rank + p - a.ranks;
            const W *src = (const W *)a.src[peer];
            W *dst = (W *)a.dst[peer];
            if (dst == 0 || dst == src) continue;
            W w[MOVE_AT_ONCE];
            UNROLL for (u32 k = 0; k < MOVE_AT_ONCE; k++)
                if (i + k * stride < words) w[k] = READ(W, src + i + k * stride);
            UNROLL for (u32 k = 0; k < MOVE_AT_ONCE; k++)
                if (i + k * stride < words) WRITE(W, dst + i + k * stride, w[k]);
        }
    }
    return words * sizeof(W);
}

extern "C" __global__ __launch_bounds__(512, 1) void peers_move(ARGS(PeersArgs)) {
    u64 ours = a.window[a.rank];
    Count *count = &HEAD(ours)->count[BLOCK];
    u64 epoch = load_relaxed((u64)&count->epoch), turns = load_relaxed((u64)&count->turns);
    if (is_dead(a, load_relaxed((u64)&HEAD(ours)->dead))) return;
    if (!meet(a, turns, a.doing)) return;
    u64 done = 0;
    if (a.width >= 16) {
        done = move_words<u128>(a, a.elements / 16);
    } else if (a.width >= 4) {
        done = move_words<u32>(a, a.elements / 4);
    }
    for (u64 i = done + BLOCK * THREADS + THREAD; i < a.elements; i += BLOCKS * THREADS) {
        for (u32 p = 0; p < a.ranks; p++) {
            const u8 *src = (const u8 *)a.src[p];
            u8 *dst = (u8 *)a.dst[p];
            if (dst != 0 && dst != src) WRITE(u8, dst + i, READ(u8, src + i));
        }
    }
    if (!meet(a, turns, a.doing)) return;
    if (THREAD == 0) count->turns = turns;
    leave(a, epoch, BLOCKS);
}

#include "../cuda/layouts.h"

#define ONE(kind, name, Op, element)                                                                                   \
    extern "C" __global__ __launch_bounds__(512, 1) void peers_##kind##_##name(ARGS(PeersArgs)) {                      \
        kind<Op<element>>(a);                                                                                          \
    }
#define BOTH(element, name, Op) ONE(flagged, name, Op, element) ONE(direct, name, Op, element)
#define ADDING(element, name) BOTH(element, sum_##name, Sum) BOTH(element, prod_##name, Prod)
#define CHOOSING(element, name) BOTH(element, max_##name, Max) BOTH(element, min_##name, Min)

ADDING(Half<F16>, f16)
ADDING(Half<BF16>, bf16)
ADDING(F32, f32)
ADDING(F64, f64)
ADDING(Int<u32>, i32)
ADDING(Int<u64>, i64)
CHOOSING(Half<F16>, f16)
CHOOSING(Half<BF16>, bf16)
CHOOSING(F32, f32)
CHOOSING(F64, f64)
CHOOSING(Int<i32>, i32)
CHOOSING(Int<i64>, i64)
CHOOSING(Int<u32>, u32)
CHOOSING(Int<u64>, u64)
