/* Packing and unpacking by layout, as tasks. A layout is registered at the target, and its form lies in the GPU's memory:
 * this head, its pieces, and the plan that they lead to. Tasks name it by its number. After tasks.h. */
#ifndef GAPLESS_LAYOUT_TASKS_H
#define GAPLESS_LAYOUT_TASKS_H

/* What a unit is here, is another thing there. */
#define Unit PlanUnit
#include "args.h"
#include "lookup.h"
#undef Unit

/* kernels/src/worker.rs has the same. */
typedef struct {
    u64 pieces;
    u64 bytes;     /* of the packed stream */
    i64 low, high; /* the first byte that is touched, and behind the last, from displacement 0 */
    u64 unused[4];
} LayoutForm;

/* From the layout to the packed stream. Pointers are 0, so offsets are those from displacement 0 and, of the stream, from
 * 8 bytes before its begin: that keeps words to 8 bytes, as payloads are aligned. */
typedef struct {
    TransferArgs transfer;
    u32 width; /* the exponent of a word's bytes */
    u32 unused[3];
} LayoutPiece;

#define STREAM_BEFORE 8
/* Why it cannot run, or 0. */
INLINE u32 admits_layout(const Task &t) {
    if (t.layout == 0 || t.argument_bytes < (t.object == DO_PACK ? 40 : 32)) return FAILED_UNKNOWN;
    const u64 *a = t.arguments;
    const LayoutForm &form = *(const LayoutForm *)t.layout;
    bool packs = t.object == DO_PACK;
    u64 stream = packs ? t.buffer + a[4] : t.payload;
    bool fits = packs ? inside(t, a[4], form.bytes) : t.payload_bytes == form.bytes;
    if (!fits || ((t.buffer + a[3]) | stream) % 8 != 0 || a[3] > t.buffer_bytes) return FAILED_OUTSIDE;
    i64 at = (i64)a[3];
    return at + form.low >= 0 && at + form.high <= (i64)t.buffer_bytes ? 0 : FAILED_OUTSIDE;
}

/* Where a word lies at both ends. */
typedef struct {
    u64 from, to;
} Way;
INLINE Way way_of(const TransferArgs &p, u64 typed, u64 stream, bool packs, u32 word, u32 w) {
    u64 there = typed + p.span.typed + side_at(&p.from, (const u8 *)0, p.from.first + word, w);
    u64 here = stream + p.span.packed + side_at(&p.to, (const u8 *)0, p.to.first + word, w);
    return packs ? Way{there, here} : Way{here, there};
}
INLINE u64 read_wide(u64 at, u32 width) {
    switch (width) {
    case 0: return *(const u8 *)at;
    case 1: return *(const u16 *)at;
    case 2: return *(const u32 *)at;
    default: return *(const u64 *)at;
    }
}
INLINE void write_wide(u64 at, u64 value, u32 width) {
    switch (width) {
    case 0: *(u8 *)at = (u8)value; break;
    case 1: *(u16 *)at = (u16)value; break;
    case 2: *(u32 *)at = (u32)value; break;
    default: *(u64 *)at = value; break;
    }
}

/* Part `part` of `parts`, by a block; whether this thread was cut short. */
NOINLINE bool move_layout(Watch *watch, const Task &t, u32 part, u32 parts) {
    const LayoutForm &form = *(const LayoutForm *)t.layout;
    const u64 *a = t.arguments;
    bool packs = t.object == DO_PACK;
    u64 typed = t.buffer + a[3], stream = (packs ? t.buffer + a[4] : t.payload) - STREAM_BEFORE;
    u32 done = 0;
    ROLLED for (u64 n = 0; n < form.pieces; n++) {
        const LayoutPiece &piece = ((const LayoutPiece *)(&form + 1))[n];
        const TransferArgs &p = piece.transfer;
        u32 width = piece.width, w = 1u << width, words = p.span.words;
        u32 head = p.span.edges & 255, all = words + head + (p.span.edges >> 8 & 255);
        ROLLED for (u32 i = part * THREADS + THREAD; i < all; i += parts * THREADS) {
            if (++done % ELEMENTS == 0 && is_stopped(watch)) return true;
            /* Behind the words: bytes of those that the piece covers in part, before the first and after the last. */
            u32 word = i, byte = 0;
            if (i >= words) {
                bool before = i < words + head;
                word = before ? 0u - 1 : words;
                byte = before ? w - head + (i - words) : i - words - head;
            }
            Way way = way_of(p, typed, stream, packs, word, w);
            u32 size = i < words ? width : 0;
            write_wide(way.to + byte, read_wide(way.from + byte, size), size);
        }
    }
    return false;
}

#endif
