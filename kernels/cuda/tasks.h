/* What the worker runs: device functions, which the Kernel Table names by number. After packets.h. */
#ifndef GAPLESS_TASKS_H
#define GAPLESS_TASKS_H

/* Elements between two looks at the clock, of one thread. */
#define ELEMENTS 4096
/* Nanoseconds between two looks at the host's orders, while a task runs. */
#define ORDERS_NS 50000

typedef struct {
    u64 object, buffer, buffer_bytes, payload, items;
    /* The form of the layout that it names; 0 if it names none. */
    u64 layout;
    const u64 *arguments;
    u32 payload_bytes, argument_bytes;
} Task;

/* Whether what runs is to end at once: the host says so, or this life is over. Asked seldom. */
typedef struct {
    u64 orders, looked, deadline;
    u32 stopped;
} Watch;
NOINLINE bool is_stopped(Watch *watch) {
    volatile Watch *w = watch;
    if (w->stopped) return true;
    u64 now = nanoseconds();
    if (now - w->looked < ORDERS_NS) return false;
    w->looked = now;
    if (now < w->deadline && (load_relaxed(w->orders) & ORDER_ABORT) == 0) return false;
    w->stopped = 1;
    return true;
}

template <typename T> INLINE T combined(T a, T b, u32 op) {
    switch (op) {
    case ACC_SUM: return a + b;
    case ACC_PROD: return a * b;
    case ACC_MIN: return b < a || b != b ? b : a;
    default: return b > a || b != b ? b : a;
    }
}
/* Atomic sums into a buffer, which never lies in shared memory: nobody asks what was there before, so nobody waits. */
INLINE void add(u32 *at, u32 v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(v) : "memory");
}
INLINE void add(u64 *at, u64 v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(v) : "memory");
}
INLINE void add(i32 *at, i32 v) { add((u32 *)at, (u32)v); }
INLINE void add(i64 *at, i64 v) { add((u64 *)at, (u64)v); }
INLINE void add(f32 *at, f32 v) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "f"(v) : "memory");
}
INLINE void add(f64 *at, f64 v) {
    asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "d"(v) : "memory");
}
INLINE u32 swap_if(u32 *at, u32 old, u32 v) { return atomicCAS(at, old, v); }
INLINE u64 swap_if(u64 *at, u64 old, u64 v) { return atomicCAS(at, old, v); }

/* Elements first, first + stride, … of `count`, each combined atomically; whether it was cut short. The source may lie
 * anywhere: then it is read byte by byte. */
template <typename T, typename W>
INLINE bool accumulate(Watch *watch, u64 to, u64 from, u64 count, u32 op, u64 first, u64 stride) {
    u32 done = 0;
    for (u64 i = first; i < count; i += stride) {
        if (++done % ELEMENTS == 0 && is_stopped(watch)) return true;
        union {
            T t;
            W w;
            u8 b[sizeof(T)];
        } v, before, after;
        if (from % sizeof(T) == 0) {
            v.t = ((const T *)from)[i];
        } else {
            UNROLL for (u32 b = 0; b < sizeof(T); b++) v.b[b] = ((const u8 *)from)[i * sizeof(T) + b];
        }
        T *at = (T *)to + i;
        if (op == ACC_SUM) {
            add(at, v.t);
            continue;
        }
        W seen = *(volatile W *)at;
        do {
            before.w = seen;
            after.t = combined(before.t, v.t, op);
            seen = swap_if((W *)at, before.w, after.w);
        } while (seen != before.w);
    }
    return false;
}
INLINE u32 element_shift(u64 what) {
    u64 element = what >> 8;
    return element == ACC_I32 || element == ACC_U32 || element == ACC_F32 ? 2 : 3;
}
INLINE bool is_multiple(u64 number, u32 shift) { return (number & ((1u << shift) - 1)) == 0; }
INLINE bool is_known(u64 what) { return (what & 0xff) <= ACC_MAX && what >> 8 <= ACC_F64; }
NOINLINE bool accumulate_any(Watch *watch, u64 to, u64 from, u64 count, u64 what, u64 first, u64 stride) {
    u32 op = (u32)what & 0xff;
    switch (what >> 8) {
    case ACC_I32: return accumulate<i32, u32>(watch, to, from, count, op, first, stride);
    case ACC_U32: return accumulate<u32, u32>(watch, to, from, count, op, first, stride);
    case ACC_I64: return accumulate<i64, u64>(watch, to, from, count, op, first, stride);
    case ACC_U64: return accumulate<u64, u64>(watch, to, from, count, op, first, stride);
    case ACC_F32: return accumulate<f32, u32>(watch, to, from, count, op, first, stride);
    default: return accumulate<f64, u64>(watch, to, from, count, op, first, stride);
    }
}

/* As accumulate, by plain loads and stores: nobody else touches the elements meanwhile. So results are the processor's, to
 * the last bit. 16 bytes at a time. Nothing looks at the clock: a payload is no longer than a ring's arena. */
template <typename T> struct __align__(16) Piece {
    T t[16 / sizeof(T)];
};
template <typename T> INLINE void combine(u64 to, u64 from, u32 bytes, u32 op, u32 first, u32 stride) {
    bool wide = (to | from) % 16 == 0;
    u32 done = wide ? bytes / 16 * 16 : 0;
    for (u32 i = first * 16; i < done; i += 16 * stride) {
        Piece<T> own = *(const Piece<T> *)(to + i), more = *(const Piece<T> *)(from + i);
        UNROLL for (u32 e = 0; e < 16 / sizeof(T); e++) own.t[e] = combined(own.t[e], more.t[e], op);
        *(Piece<T> *)(to + i) = own;
    }
    for (u32 i = done + first * (u32)sizeof(T); i < bytes; i += stride * (u32)sizeof(T)) {
        union {
            T t;
            u8 b[sizeof(T)];
        } v;
        UNROLL for (u32 b = 0; b < sizeof(T); b++) v.b[b] = *(const u8 *)(from + i + b);
        *(T *)(to + i) = combined(*(T *)(to + i), v.t, op);
    }
}
NOINLINE void combine_any(u64 to, u64 from, u32 bytes, u32 what, u32 first, u32 stride) {
    u32 op = what & 0xff;
    switch (what >> 8) {
    case ACC_I32: return combine<i32>(to, from, bytes, op, first, stride);
    case ACC_U32: return combine<u32>(to, from, bytes, op, first, stride);
    case ACC_I64: return combine<i64>(to, from, bytes, op, first, stride);
    case ACC_U64: return combine<u64>(to, from, bytes, op, first, stride);
    case ACC_F32: return combine<f32>(to, from, bytes, op, first, stride);
    default: return combine<f64>(to, from, bytes, op, first, stride);
    }
}

/* Whether a function of a user's runs it; where none is linked, nobody does. */
INLINE bool is_users(const Task &t) {
#ifdef WORKER_LINKED
    return t.object >= DO_USER;
#else
    return false;
#endif
}

INLINE bool inside(const Task &t, u64 offset, u64 bytes) {
    return offset <= t.buffer_bytes && bytes <= t.buffer_bytes - offset;
}

/* Whether the task can run at all: 0, or why not. */
INLINE u32 admits(const Task &t, u32 outs) {
    const u64 *a = t.arguments;
    switch (t.object) {
    case DO_COMBINE:
    case DO_ACCUMULATE: {
        if (t.argument_bytes < 32 || !is_known(a[3])) return FAILED_UNKNOWN;
        if (t.object == DO_COMBINE && t.items > COMBINE_ITEMS_MAX) return FAILED_UNKNOWN;
        bool aligned = is_multiple((t.buffer + a[2]) | t.payload_bytes, element_shift(a[3]));
        return inside(t, a[2], t.payload_bytes) && aligned ? 0 : FAILED_OUTSIDE;
    }
    case DO_COPY:
        if (t.argument_bytes < 24) return FAILED_UNKNOWN;
        return inside(t, a[2], t.payload_bytes) ? 0 : FAILED_OUTSIDE;
    case DO_REDUCE: {
        if (t.argument_bytes < 48 || !is_known(a[5]) || a[4] >> 40 != 0) return FAILED_UNKNOWN;
        u32 shift = element_shift(a[5]);
        bool aligned = is_multiple((t.buffer + a[2]) | (t.buffer + a[3]), shift);
        return inside(t, a[2], a[4] << shift) && inside(t, a[3], a[4] << shift) && aligned ? 0 : FAILED_OUTSIDE;
    }
    case DO_NUMBER: return t.buffer % 4 == 0 && inside(t, 0, t.items * 4) ? 0 : FAILED_OUTSIDE;
    case DO_PAUSE: return t.argument_bytes < 24 ? FAILED_UNKNOWN : 0;
    case DO_FORWARD:
        if (t.argument_bytes < 24 || a[2] >= outs) return FAILED_UNKNOWN;
        if (t.payload_bytes < 64 || t.payload_bytes > 64 + INLINE_BYTES) return FAILED_OUTSIDE;
        /* What says another length than it has would never be whole, and nothing behind it would run. */
        return body_of((const u64 *)t.payload) == t.payload_bytes - 64 ? 0 : FAILED_OUTSIDE;
    default: return FAILED_UNKNOWN;
    }
}

/* One work-item. Whether it was cut short. */
INLINE bool run_item(Watch *watch, const Task &t, u64 item) {
    const u64 *a = t.arguments;
    switch (t.object) {
    case DO_ACCUMULATE:
        return accumulate_any(watch, t.buffer + a[2], t.payload, t.payload_bytes >> element_shift(a[3]), a[3], item,
                              t.items);
    case DO_COPY: {
        u8 *to = (u8 *)(t.buffer + a[2]);
        const u8 *from = (const u8 *)t.payload;
        u64 bytes = t.payload_bytes, done = 0;
        u32 copied = 0;
        if (((u64)to | (u64)from) % 16 == 0) {
            for (u64 i = item; i < bytes / 16; i += t.items) {
                if (++copied % ELEMENTS == 0 && is_stopped(watch)) return true;
                ((u128 *)to)[i] = ((const u128 *)from)[i];
            }
            done = bytes / 16 * 16;
        }
        for (u64 i = done + item; i < bytes; i += t.items) {
            if (++copied % ELEMENTS == 0 && is_stopped(watch)) return true;
            to[i] = from[i];
        }
        return false;
    }
    case DO_REDUCE: return accumulate_any(watch, t.buffer + a[2], t.buffer + a[3], a[4], a[5], item, t.items);
    case DO_COMBINE:
        combine_any(t.buffer + a[2], t.payload, t.payload_bytes, (u32)a[3], (u32)item, (u32)t.items);
        return false;
    case DO_NUMBER: atomicAdd((u32 *)t.buffer + item, 1u); return false;
    default: return false;
    }
}

#endif
