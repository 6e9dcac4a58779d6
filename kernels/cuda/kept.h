/* What the host may change while the worker runs, and what a life leaves for the next. After the worker's shared memory. */
#ifndef GAPLESS_KEPT_H
#define GAPLESS_KEPT_H

/* Tables and receive buffers as the last life of a control block had them, and the length of the largest: while nothing
 * changes, a new one reads nothing of the host's. Aligned as a unit: a new life's threads that have no slot to look at load
 * one of it. */
typedef struct {
    u64 control, changed, rows[2 * ENTRIES * ROW_WORDS], buffers[2 * BUFFERS_MAX], count, largest;
} Kept;
static __device__ __align__(16) Kept kept;
static_assert(WORKER_THREADS == ENTRIES * ROW_WORDS, "a unit a thread");
static_assert(CONTROL_QUEUES == CONTROL_KERNELS + 8 * ENTRIES * ROW_WORDS, "both tables are one stretch");

/* The rows, a unit a thread: both tables lie behind one another, there as here. */
INLINE void keep_rows(Shared &s, u64 *rows, Unit row, Unit buffer, u64 count) {
    rows[2 * THREAD] = row.lo;
    rows[2 * THREAD + 1] = row.hi;
    if (THREAD < BUFFERS_MAX) {
        s.buffer[THREAD] = buffer.lo;
        s.buffer_bytes[THREAD] = buffer.hi;
    } else if (THREAD == BUFFERS_MAX) {
        s.buffers = count > BUFFERS_MAX ? BUFFERS_MAX : (u32)count;
    }
}

/* What the host may change while the worker runs: tables, receive buffers. By all threads. The count of changes is odd
 * while the host writes, so it is a sequence lock over all of it. What did not hold still is not used: the old is kept,
 * nothing is answered, and a later look tries again. Whether it held still; all threads learn that. Words are loaded side
 * by side, each once, because each takes the bus's time. */
NOINLINE bool reload(Shared &s, u64 control) {
    if (THREAD == 0) s.changing = load_acquire(control + CONTROL_CHANGED);
    /* One has acquired the count, and all meet it: what was written before the count can be seen by all. */
    BARRIER();
    u64 changed = s.changing, count = 0;
    Unit row = load_unit(control + CONTROL_KERNELS + 16 * THREAD), buffer = {0, 0};
    if (THREAD < BUFFERS_MAX) buffer = load_unit(control + CONTROL_BUFFER_LIST + 16 * THREAD);
    if (THREAD == BUFFERS_MAX) count = load_relaxed(control + CONTROL_BUFFERS);
    /* Every thread's loads come before its look at the count. */
    fence_sys();
    bool moved = changed % 2 != 0 || load_relaxed(control + CONTROL_CHANGED) != changed;
    moved = moved || (THREAD % (ROW_WORDS / 2) == 0 && row.lo % 2 != 0);
    if (__syncthreads_or(moved)) return false;
    keep_rows(s, s.rows, row, buffer, count);
    kept.rows[2 * THREAD] = row.lo;
    kept.rows[2 * THREAD + 1] = row.hi;
    if (THREAD < BUFFERS_MAX) {
        kept.buffers[2 * THREAD] = buffer.lo;
        kept.buffers[2 * THREAD + 1] = buffer.hi;
    }
    if (THREAD == BUFFERS_MAX) kept.count = count;
    BARRIER();
    if (THREAD == 0) {
        u64 largest = 0;
        for (u32 i = 0; i < s.buffers; i++) largest = s.buffer_bytes[i] > largest ? s.buffer_bytes[i] : largest;
        s.largest = largest > 0xffffffffull ? 0xffffffffu : (u32)largest;
        s.changed = changed;
        kept.largest = s.largest;
        kept.control = control;
        kept.changed = changed;
    }
    if (THREAD == TELLER) store_release(control + CONTROL_SEEN, changed);
    BARRIER();
    return true;
}

#endif
