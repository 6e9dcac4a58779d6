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
static_assert(RING_POSITION == 5 && RING_NEAR == 6, "in the third unit of a ring's list, and in the last");
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

/* Threads that load the list of rings: four a ring, whose last word but one of each is not needed. */
#define LISTING 256

/* What the host may change while the worker runs: tables, receive buffers, and the list of rings, which only grows. By all
 * threads. The count of changes is odd while the host writes, so it is a sequence lock over all of it. What did not hold
 * still is not used: the old is kept, nothing is answered, and a later look tries again. Whether it held still; all threads
 * learn that. Words are loaded side by side, each once, because each takes the bus's time. Who finds more rings than before
 * (`s.count`) is to spread the teams anew. */
NOINLINE bool reload(Shared &s, u64 control) {
    if (THREAD == 0) s.changing = load_acquire(control + CONTROL_CHANGED);
    /* One has acquired the count, and all meet it: what was written before the count can be seen by all. */
    BARRIER();
    u64 changed = s.changing, count = 0;
    u32 known = s.count, listed = (THREAD - LISTING) / 4, pair = THREAD % 4;
    bool lists = THREAD >= LISTING && listed >= known && listed < RINGS_MAX;
    Unit part = {0, 0};
    Unit row = load_unit(control + CONTROL_KERNELS + 16 * THREAD), buffer = {0, 0};
    if (THREAD < BUFFERS_MAX) buffer = load_unit(control + CONTROL_BUFFER_LIST + 16 * THREAD);
    if (THREAD == BUFFERS_MAX) count = load_relaxed(control + CONTROL_BUFFERS);
    if (THREAD == LISTING - 1) s.listed = load_relaxed(control + CONTROL_RINGS);
    if (lists) part = load_unit(control + CONTROL_RING_LIST + (listed * (RING_WORDS / 2) + pair) * 16);
    /* Every thread's loads come before its look at the count. */
    fence_sys();
    bool moved = changed % 2 != 0 || load_relaxed(control + CONTROL_CHANGED) != changed;
    moved = moved || (THREAD % (ROW_WORDS / 2) == 0 && row.lo % 2 != 0);
    if (__syncthreads_or(moved)) return false;
    u32 rings = s.listed > RINGS_MAX ? RINGS_MAX : (u32)s.listed;
    if (lists && listed < rings) {
        if (pair < 3) ((Unit *)&s.rings[listed])[pair] = part;
        else s.near[listed] = part.lo != 0;
        if (pair == RING_POSITION / 2) s.next[listed] = (u32)sequence_of(part.hi);
    }
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
        if (rings > known) s.count = rings;
        kept.largest = s.largest;
        kept.control = control;
        kept.changed = changed;
    }
    if (THREAD == TELLER) store_release(control + CONTROL_SEEN, changed);
    BARRIER();
    return true;
}

#endif
