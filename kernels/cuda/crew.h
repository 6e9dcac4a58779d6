/* Several blocks for one task. The one that comes first is the command processor, called block 0 here, and works like the
 * others; these wait at a gate in the GPU's memory until it offers a task. A task is cut into parts, virtual blocks of it.
 * Whoever is there takes the next one by a counter, so nobody waits for a block that is not running: block 0 alone would
 * do all of it.
 *
 * The gate is life:32 | OVER | OPEN | epoch:14 | inside:16. Block 0 changes its own bits, helpers count themselves in and
 * out, all by additions. What is offered changes only while the gate is closed and nobody is inside.
 *
 *    block 0                                     a helper
 *    writes the offer, fence, opens         →    comes in (finds it open), fence, reads the offer
 *    takes parts                                 takes parts
 *    closes, waits until nobody is inside   ←    fence, goes out
 *    fence; goes on as if it had done all of it itself
 *
 * Both fences are of the GPU's scope. What block 0 then publishes behind a fence of the system's is behind the parts of
 * all, as causality is transitive. After the worker's shared memory. */
#ifndef GAPLESS_CREW_H
#define GAPLESS_CREW_H

#define GATE_LIFE 32
#define GATE_OVER (1ull << 31)
#define GATE_OPEN (1ull << 30)
#define GATE_EPOCH_ONE (1ull << 16)
#define GATE_EPOCH (0x3fffull << 16)
#define GATE_INSIDE 0xffffull

/* A task that helpers may share, and how far it is. One worker has a loaded image for itself, and one life at a time. */
typedef struct {
    u64 gate;
    u32 next, cut, said, far;
    /* The last life of several blocks that has a command processor. */
    u32 led;
    Task task;
    Parts parts;
    u64 slot[SLOT_BYTES / 8], arguments[ARGUMENTS_MAX / 8];
    Out outs[OUTS_MAX];
} Crew;
static __device__ Crew crew;

INLINE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
INLINE u64 look_at_gate() {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(&crew.gate) : "memory");
    return v;
}

/* Whether this block is the life's command processor. That is the one that comes first, so nobody waits for one that has
 * not begun. All threads learn it. */
INLINE bool leads(Shared &s, u64 life) {
    if (BLOCKS == 1) return true;
    if (THREAD == 0) s.part = atomicExch(&crew.led, (u32)life) != (u32)life;
    BARRIER();
    return s.part != 0;
}

/* Block 0 says that a life has begun, that it is over. By one thread. */
INLINE void begin_life(Shared &s, u64 life) {
    s.gate = life << GATE_LIFE;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(&crew.gate), "l"(s.gate) : "memory");
}
INLINE void change_gate(Shared &s, u64 bits) {
    atomicAdd(&crew.gate, bits - s.gate);
    s.gate = bits;
}
INLINE void end_life(Shared &s) { change_gate(s, s.gate | GATE_OVER); }

/* Groups of work-items, one after another; whether this thread was cut short. */
NOINLINE bool run_groups(Shared &s, u32 team, u64 first, u64 last) {
    const Task &t = s.task[team];
    u32 group = s.parts.group;
    bool cut = false;
    for (u64 g = first; g < last; g++) {
        if (THREAD < group) cut = run_item(&s.watch, t, g * group + THREAD) || cut;
        if ((g - first) % GROUPS != GROUPS - 1 || g == last - 1) continue;
        bool stopped = THREAD == 0 && is_stopped(&s.watch);
        if (__syncthreads_or(stopped)) return true;
    }
    return cut;
}

/* One part, by this block; whether this thread was cut short. */
INLINE bool run_part(Shared &s, u32 team, u32 part) {
    const Parts &p = s.parts;
    u64 first = part * p.each, last = first + p.each < p.all ? first + p.each : p.all;
    switch (p.kind) {
    case BY_BYTES: return run_stretch(&s.watch, s.task[team], first, last);
    case BY_WORDS: return move_layout(&s.watch, s.task[team], part, p.count);
#ifdef WORKER_LINKED
    case BY_USERS: return run_users(s, team, first, last);
#endif
    default: return run_groups(s, team, first, last);
    }
}

/* Parts, one after another: of a task that is shared those that are left, else all. Who offers it begins with the first.
 * Whether the task was cut short here. */
INLINE bool run_parts(Shared &s, u32 team, bool shared, bool offers) {
    u32 next = 0;
    for (;; next++) {
        if (THREAD == 0) s.part = shared && !(offers && next == 0) ? atomicAdd(&crew.next, 1u) : next;
        BARRIER();
        u32 part = s.part;
        if (part >= s.parts.count) break;
        bool cut = run_part(s, team, part);
        bool ends = THREAD == 0 && part + 1 < s.parts.count && is_stopped(&s.watch);
        if (!__syncthreads_or(cut || ends)) continue;
        cut = __syncthreads_or(cut);
        if (!shared) return true;
        if (THREAD == 0) {
            if (s.said != 0) atomicCAS(&crew.said, 0u, s.said);
            /* Nobody takes another one; if nobody would have, nothing is missing. */
            if (atomicMax(&crew.next, s.parts.count) < s.parts.count || cut) atomicOr(&crew.cut, 1u);
        }
        return true;
    }
    return false;
}

/* Runs a task whose parts are known, with whoever comes. Whether it was cut short; all threads learn that. */
INLINE bool run_together(Shared &s, u32 team) {
    bool shared = s.blocks > 1 && s.parts.count > 1;
    if (!shared) return run_parts(s, team, false, true);
    Task &t = s.task[team];
    u32 far = s.far[team];
    if (THREAD < SLOT_BYTES / 8) crew.slot[THREAD] = ((const u64 *)s.slot[team])[THREAD];
    if (far && THREAD < t.argument_bytes / 8) crew.arguments[THREAD] = s.arguments[THREAD];
    if (THREAD < s.put) crew.outs[THREAD] = s.outs[THREAD];
    if (THREAD == 0) {
        crew.task = t;
        crew.parts = s.parts;
        crew.far = far;
        crew.next = 1;
        crew.cut = 0;
        crew.said = 0;
        s.reachable = crew.outs;
    }
    BARRIER();
    if (THREAD == 0) {
        fence_gpu();
        change_gate(s, (s.gate & ~GATE_EPOCH) | GATE_OPEN | ((s.gate + GATE_EPOCH_ONE) & GATE_EPOCH));
    }
    run_parts(s, team, true, true);
    if (THREAD == 0) {
        change_gate(s, s.gate & ~GATE_OPEN);
        while ((look_at_gate() & GATE_INSIDE) != 0) {
        }
        fence_gpu();
        s.reachable = s.outs;
        s.said = *(volatile u32 *)&crew.said;
        s.cut = *(volatile u32 *)&crew.cut;
        /* Somebody was told to stop, and so is this. */
        if (s.cut != 0 && s.said == 0) s.watch.stopped = 1;
    }
    BARRIER();
    if (THREAD < s.put) s.outs[THREAD] = crew.outs[THREAD];
    /* Written again behind the barriers of a later task. */
    return s.cut != 0;
}

/* What all blocks but that one do for a life. */
NOINLINE void help(Shared &s, u64 life) {
    u64 seen = ~0ull;
    for (;;) {
        if (THREAD == 0) {
            u64 gate;
            for (;;) {
                gate = look_at_gate();
                if (gate >> GATE_LIFE != life) continue;
                if ((gate & GATE_OVER) != 0) break;
                if ((gate & GATE_OPEN) == 0 || (gate & GATE_EPOCH) == seen) continue;
                gate = atomicAdd(&crew.gate, 1ull);
                if ((gate & GATE_OPEN) != 0) break;
                atomicAdd(&crew.gate, ~0ull);
            }
            fence_gpu();
            s.gate = gate;
            s.said = 0;
        }
        BARRIER();
        if ((s.gate & GATE_OVER) != 0) return;
        seen = s.gate & GATE_EPOCH;
        Task &t = s.task[0];
        u32 far = crew.far;
        /* A short body, and argument 1, are where this block has them. */
        u64 payload = crew.task.payload;
        if (!far && payload != 0) payload = (u64)(s.slot[0] + 64 + crew.task.argument_bytes);
        if (THREAD < SLOT_BYTES / 8) ((u64 *)s.slot[0])[THREAD] = THREAD == 9 && !far ? payload : crew.slot[THREAD];
        if (far && THREAD < crew.task.argument_bytes / 8) s.arguments[THREAD] = crew.arguments[THREAD];
        if (THREAD == 0) {
            t = crew.task;
            t.arguments = far ? s.arguments : (const u64 *)(s.slot[0] + 64);
            t.payload = payload;
            s.parts = crew.parts;
            s.reachable = crew.outs;
        }
        BARRIER();
        run_parts(s, 0, true, false);
        BARRIER();
        if (THREAD == 0) {
            fence_gpu();
            atomicAdd(&crew.gate, ~0ull);
        }
    }
}

#endif
