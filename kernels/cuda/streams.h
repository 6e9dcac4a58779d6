/* Long payloads, a stretch of bytes at a time, by a block: 16 bytes of a payload a thread, several on their way at once,
 * because most of them come over the bus. A payload is read where its initiator has written it, each unit once. After
 * tasks.h. */
#ifndef GAPLESS_STREAMS_H
#define GAPLESS_STREAMS_H

/* Units of a payload that a thread has on their way at a time. */
#define FLIGHT 2
/* Bytes that the block's threads read by one load each, and the most that are on their way. */
#define STRETCH_MIN (16u * WORKER_THREADS)
#define STRETCH_MAX (FLIGHT * STRETCH_MIN)

/* Sixteen bytes of a buffer, which begin at a multiple of 4. */
INLINE Unit read_own(u64 at) {
    if (at % 16 == 0) {
        u128 v = *(const u128 *)at;
        return Unit{(u64)v.a | (u64)v.b << 32, (u64)v.c | (u64)v.d << 32};
    }
    if (at % 8 == 0) return Unit{((const u64 *)at)[0], ((const u64 *)at)[1]};
    const u32 *w = (const u32 *)at;
    return Unit{(u64)w[0] | (u64)w[1] << 32, (u64)w[2] | (u64)w[3] << 32};
}
INLINE void write_own(u64 at, Unit v) {
    u32 w[4] = {(u32)v.lo, (u32)(v.lo >> 32), (u32)v.hi, (u32)(v.hi >> 32)};
    if (at % 16 == 0) {
        *(u128 *)at = u128{w[0], w[1], w[2], w[3]};
    } else if (at % 8 == 0) {
        ((u64 *)at)[0] = v.lo;
        ((u64 *)at)[1] = v.hi;
    } else if (at % 4 == 0) {
        UNROLL for (u32 i = 0; i < 4; i++) ((u32 *)at)[i] = w[i];
    } else {
        UNROLL for (u32 i = 0; i < 16; i++) ((u8 *)at)[i] = (u8)(w[i / 4] >> 8 * (i % 4));
    }
}

/* Whether a task's payload is taken in stretches, if it lies in the arena. */
INLINE bool is_streamed(u64 object) { return object == DO_ACCUMULATE || object == DO_COMBINE || object == DO_COPY; }

template <typename T> union Elements {
    Unit unit;
    T t[16 / sizeof(T)];
};
/* One element, atomically. */
template <typename T, typename W> INLINE void accumulate_one(T *at, T v, u32 op) {
    if (op == ACC_SUM) return add(at, v);
    union {
        T t;
        W w;
    } before, after;
    W seen = *(volatile W *)at;
    do {
        before.w = seen;
        after.t = combined(before.t, v, op);
        seen = swap_if((W *)at, before.w, after.w);
    } while (seen != before.w);
}
/* Sixteen bytes of a payload, into those of the buffer at `to`, or into `own`, which are those. */
template <typename T, typename W, bool ATOMIC> INLINE void put_elements(u64 to, Unit &own, Unit more, u32 op) {
    Elements<T> a, b;
    a.unit = own;
    b.unit = more;
    UNROLL for (u32 e = 0; e < 16 / sizeof(T); e++) {
        if (ATOMIC) accumulate_one<T, W>((T *)to + e, b.t[e], op);
        else a.t[e] = combined(a.t[e], b.t[e], op);
    }
    own = a.unit;
}
template <bool ATOMIC> INLINE void put_any(u64 to, Unit &own, Unit more, u32 what) {
    u32 op = what & 0xff;
    switch (what >> 8) {
    case ACC_I32: return put_elements<i32, u32, ATOMIC>(to, own, more, op);
    case ACC_U32: return put_elements<u32, u32, ATOMIC>(to, own, more, op);
    case ACC_I64: return put_elements<i64, u64, ATOMIC>(to, own, more, op);
    case ACC_U64: return put_elements<u64, u64, ATOMIC>(to, own, more, op);
    case ACC_F32: return put_elements<f32, u32, ATOMIC>(to, own, more, op);
    default: return put_elements<f64, u64, ATOMIC>(to, own, more, op);
    }
}
/* Bytes `begin`, a multiple of 16, to `end` of a payload go into the buffer. */
template <bool ATOMIC> INLINE void stream(u64 to, u64 from, u32 begin, u32 end, u32 what) {
    u32 whole = end & ~15u;
    ROLLED for (u32 i = begin + 16 * THREAD; i < whole; i += STRETCH_MAX) {
        Unit more[FLIGHT], own[FLIGHT] = {};
        UNROLL for (u32 k = 0; k < FLIGHT; k++) {
            u32 at = i + k * STRETCH_MIN;
            if (at >= whole) continue;
            more[k] = load_unit(from + at);
            if (!ATOMIC) own[k] = read_own(to + at);
        }
        UNROLL for (u32 k = 0; k < FLIGHT; k++) {
            u32 at = i + k * STRETCH_MIN;
            if (at >= whole) continue;
            put_any<ATOMIC>(to + at, own[k], more[k], what);
            if (!ATOMIC) write_own(to + at, own[k]);
        }
    }
}
NOINLINE void stream_atomically(u64 to, u64 from, u32 begin, u32 end, u32 what) {
    stream<true>(to, from, begin, end, what);
}
NOINLINE void stream_plainly(u64 to, u64 from, u32 begin, u32 end, u32 what) {
    stream<false>(to, from, begin, end, what);
}
NOINLINE void stream_copy(u64 to, u64 from, u32 begin, u32 end) {
    u32 whole = end & ~15u;
    ROLLED for (u32 i = begin + 16 * THREAD; i < whole; i += STRETCH_MAX) {
        Unit v[FLIGHT];
        UNROLL for (u32 k = 0; k < FLIGHT; k++)
            if (i + k * STRETCH_MIN < whole) v[k] = load_unit(from + i + k * STRETCH_MIN);
        UNROLL for (u32 k = 0; k < FLIGHT; k++)
            if (i + k * STRETCH_MIN < whole) write_own(to + i + k * STRETCH_MIN, v[k]);
    }
    u32 at = whole + THREAD;
    if (at < end) *(u8 *)(to + at) = *(const volatile u8 *)(from + at);
}

/* Bytes `begin` to `end` of a task whose payload lies in the arena, or of the elements that it reduces. */
NOINLINE bool run_stretch(Watch *watch, const Task &t, u64 begin, u64 end) {
    const u64 *a = t.arguments;
    u64 to = t.buffer + a[2];
    switch (t.object) {
    case DO_ACCUMULATE:
    case DO_COMBINE: {
        /* What is no whole unit is the payload's end. */
        u64 whole = end & ~15ull, rest = end - whole;
        if (t.object == DO_COMBINE) {
            stream_plainly(to, t.payload, (u32)begin, (u32)end, (u32)a[3]);
            if (rest != 0) combine_any(to + whole, t.payload + whole, (u32)rest, (u32)a[3], THREAD, THREADS);
            return false;
        }
        stream_atomically(to, t.payload, (u32)begin, (u32)end, (u32)a[3]);
        rest >>= element_shift(a[3]);
        return rest != 0 && accumulate_any(watch, to + whole, t.payload + whole, rest, a[3], THREAD, THREADS);
    }
    case DO_COPY: stream_copy(to, t.payload, (u32)begin, (u32)end); return false;
    default: {
        u64 count = (end - begin) >> element_shift(a[5]);
        return accumulate_any(watch, to + begin, t.buffer + a[3] + begin, count, a[5], THREAD, THREADS);
    }
    }
}

#endif
