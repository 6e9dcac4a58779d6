/* Collectives with layouts: each rank moves the pieces of a table, from layout to layout, in its own memory and between
 * its own and its peers'.
 *
 * A piece is moved by the rank that it comes from, which writes into the peer's memory, or by the rank that it goes to,
 * which reads there. Where neither is good, as words lie scattered at both ends, it takes two steps: its source packs it
 * into the peer's staging memory, and after a meeting its destination unpacks it there. Both give the same stretch of the
 * packed stream to blocks of the same number, so that no more has to meet than those.
 *
 * What stays within a rank is moved by further blocks, which wait for nobody: they need not be resident with the others.
 */
#ifndef GAPLESS_LAYOUTS_H
#define GAPLESS_LAYOUTS_H

/* Where word `word` of a side lies; the kind of side is the same for all threads. */
INLINE i64 word_at(const Side &side, u32 word, u32 w) {
    if (side.kind == SIDE_STRIDED) return strided_at(&side.strided, word, w);
    if (side.kind == SIDE_AFFINE) return affine_at(&side.affine, word, w);
    if (side.kind == SIDE_LISTED) return listed_at(&side.listed, (const u8 *)0, word, w);
    return mapped_at(&side.mapped, (const u8 *)0, word, w);
}

/* Words [first, end) of a piece: all U of a thread are read before the first is written. */
template <typename W, u32 U> INLINE void move_between(const TransferArgs &t, u32 first, u32 end) {
    ROLLED for (u32 i = first + THREAD; i < end; i += U * THREADS) {
        W value[U];
        UNROLL for (u32 k = 0; k < U; k++) {
            u32 word = i + k * THREADS < end ? i + k * THREADS : end - 1;
            value[k] = READ(W, t.span.typed + word_at(t.from, t.from.first + word, sizeof(W)));
        }
        UNROLL for (u32 k = 0; k < U; k++) {
            u32 word = i + k * THREADS;
            if (word < end) WRITE(W, t.span.packed + word_at(t.to, t.to.first + word, sizeof(W)), value[k]);
        }
    }
}

/* The bytes before the first whole word and after the last one, a thread each. */
INLINE void move_edges(const TransferArgs &t, u32 w) {
    u32 head = t.span.edges & 255, tail = t.span.edges >> 8 & 255;
    if (THREAD < head + tail) {
        u32 after = THREAD >= head;
        u32 word = after ? t.span.words : 0u - 1;
        u32 byte = after ? THREAD - head : w - head + THREAD;
        u8 value = READ(u8, t.span.typed + word_at(t.from, t.from.first + word, w) + byte);
        WRITE(u8, t.span.packed + word_at(t.to, t.to.first + word, w) + byte, value);
    }
}

/* All jobs of a list. */
INLINE void move_jobs(const LayoutsArgs &l, u32 list) {
    __shared__ Piece piece;
    const u32 *begins = (const u32 *)l.begins;
    u32 job = begins[list], end = begins[list + 1], now = ~0u;
    ROLLED for (; job < end; job++) {
        Job mine = ((const Job *)l.jobs)[job];
        if (mine.piece != now) {
            now = mine.piece;
            BARRIER();
            const u32 *from = (const u32 *)((const Piece *)l.pieces + now);
            for (u32 i = THREAD; i < sizeof(Piece) / 4; i += THREADS) ((u32 *)&piece)[i] = from[i];
            BARRIER();
        }
        const TransferArgs &t = piece.transfer;
        u32 first = mine.first, past = mine.first + mine.words;
        switch (piece.width) {
        case 0: move_between<u8, 8>(t, first, past); break;
        case 1: move_between<u16, 8>(t, first, past); break;
        case 2: move_between<u32, 8>(t, first, past); break;
        case 3: move_between<u64, 8>(t, first, past); break;
        default: move_between<u128, 4>(t, first, past); break;
        }
        if (mine.edges) move_edges(t, 1u << piece.width);
    }
}

extern "C" __global__ __launch_bounds__(512, 1) void peers_layouts(ARGS(LayoutsArgs)) {
    const PeersArgs &common = a.common;
    u64 ours = common.window[common.rank];
    u64 dead = load_relaxed((u64)&HEAD(ours)->dead);
    if (is_dead(common, dead)) return;
    if (BLOCK >= a.meeting) {
        move_jobs(a, BLOCK);
        return;
    }
    Count *count = &HEAD(ours)->count[BLOCK];
    u64 epoch = load_relaxed((u64)&count->epoch), turns = load_relaxed((u64)&count->turns);
    if (!meet(common, turns, common.doing)) return;
    move_jobs(a, BLOCK);
    if (a.steps > 1) {
        if (!meet(common, turns, common.doing)) return;
        move_jobs(a, BLOCKS + BLOCK);
    }
    if (!meet(common, turns, common.doing)) return;
    if (THREAD == 0) count->turns = turns;
    leave(common, epoch, a.meeting);
}

#endif
