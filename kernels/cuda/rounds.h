/* A round's packets: in which order their tasks run, and how they end. After quick.h and long_tasks.h. */
#ifndef GAPLESS_ROUNDS_H
#define GAPLESS_ROUNDS_H

/* The packets of this round, of which team `i` has one if bit `i` is set, in their order: `lane` is what the team looks at
 * that has the number of this thread's lane. Gives those that were done. */
INLINE u32 run_round(Shared &s, u64 control, u32 mask, u32 team, u32 unit, Look lane) {
    u32 left = mask, number = THREAD % 32;
    while (left != 0) {
        /* Nothing more begins: what is left waits in its ring for the next life. Only long tasks set this, and barriers
         * lie between, so all find the same. */
        if (s.watch.stopped) break;
        /* A wave: short tasks that may run side by side; refused ones are over already. All warps find the same. */
        bool here = (left >> number & 1) != 0;
        bool task = here && s.code[number] == REWRITTEN;
        /* Of few different ones: each costs time. Only tasks' own matter. */
        u32 key = task ? s.queue[number] : ENTRIES, before = 0;
        if ((left & (left - 1)) != 0) before = __match_any_sync(0xffffffffu, key) & ((1u << number) - 1) & left;
        bool begins = (u32)__popc(before) < s.width[number] && !(s.after[number] && before != 0);
        u32 not_here = __ballot_sync(0xffffffffu, here && task && !(s.shrt[number] && begins));
        u32 wave = not_here == 0 ? left : left & ((1u << (__ffs(not_here) - 1)) - 1);
        if (wave != 0) {
            if ((wave >> team & 1) != 0 && s.code[team] == REWRITTEN) {
                u32 failed = run_short(s, team, unit);
                if (failed != 0 && unit == 0) {
                    s.value[team] = failed;
                    s.failed[team] = 1;
                }
            }
        } else {
            u32 first = __ffs(left) - 1;
            wave = 1u << first;
            u32 ring = __shfl_sync(0xffffffffu, lane.ring, first);
            run_long(s, control, first, s.rings[ring]);
        }
        left &= ~wave;
        BARRIER();
    }
    /* Those that were done are the first of each ring. */
    return mask & ~left;
}

/* The signal that a task counts when it has ended, if that is below SIGNALS_MAX: `head` is its packet's, rewritten. */
INLINE u64 signal_of(const Shared &s, u64 head) {
    bool has = (head >> 24 & REGISTERED_SIGNAL) != 0;
    return has ? s.rows[part(head, 32, 8) % ENTRIES * ROW_WORDS + ROW_SIGNAL] - 1 : ~0ull;
}
/* By one warp, behind a fence that covers what the tasks wrote. */
INLINE void count_signals(Shared &s, u64 control, u64 signal, bool counts) {
    if (counts) atomicAdd(&s.counted[signal], 1ull);
    __syncwarp();
    if (counts) store_relaxed(control + CONTROL_COUNTED + signal * 8, s.counted[signal]);
}

/* Counts tasks that have ended at once: of each lane's team the packet's head, or 0. By one warp, which has met all. */
NOINLINE void count_ended(Shared &s, u64 control, u64 head) {
    u32 number = THREAD % 32, mask = __ballot_sync(0xffffffffu, head != 0);
    u64 signal = signal_of(s, head);
    bool counts = head != 0 && signal < SIGNALS_MAX;
    if (__any_sync(0xffffffffu, counts)) {
        fence_sys();
        count_signals(s, control, signal, counts);
    }
    if (number == 0) {
        s.tasks += __popc(mask);
        store_relaxed(control + CONTROL_TASKS, s.tasks);
    }
    __syncwarp();
}

/* The end of tasks of which team `i` had one if bit `i` is set: by one warp, which has met all who ran them. So its fence
 * covers what they wrote. */
INLINE void end_round(Shared &s, u64 control, u32 mask, Look lane) {
    u32 number = THREAD % 32;
    bool here = (mask >> number & 1) != 0;
    u32 code = here ? s.code[number] : 0;
    if (code == REWRITTEN) code = s.failed[number] != 0 ? STATUS_FAILED : STATUS_ENDED;
    u64 head = ((const u64 *)s.slot[number])[0];
    bool ended = here && code == STATUS_ENDED;
    u32 refused = __ballot_sync(0xffffffffu, here && !ended);
    Ring &ring = s.rings[lane.ring];
    u32 slot = ((u32)ring.position + lane.ahead) % SLOTS;
    u64 value = (u64)s.value[number] << 32, status = sequence_at(s, lane) | (u64)code << 16 | value;
    u64 place = ring.status + slot * 8;
    if (here && !ended) {
        u64 count = s.refusals + __popc(refused & ((1u << number) - 1));
        u64 said = lane.ring | (u64)part(head, 32, 8) << 8 | (u64)part(head, 40, 8) << 16 | (u64)code << 24 | value;
        store_relaxed(control + CONTROL_REFUSED + count % REFUSED_MAX * 8, said);
    }
    fence_sys();
    if (here) store_relaxed(place, status);
    u64 signal = signal_of(s, head);
    count_signals(s, control, signal, ended && signal < SIGNALS_MAX);
    if (number == 0) {
        s.tasks += __popc(mask) - __popc(refused);
        store_relaxed(control + CONTROL_TASKS, s.tasks);
        if (refused != 0) {
            s.refusals += __popc(refused);
            store_release(control + CONTROL_REFUSALS, s.refusals);
        }
    }
    /* The first team of each ring counts those of all. */
    u32 own = mask >> number & ones(lane.of);
    if (here && lane.ahead == 0) {
        ring.position += __popc(own);
        s.next[lane.ring] = wrapped(s.next[lane.ring] + __popc(own));
    }
}

#endif
