/* Tasks that take the whole block. After tasks.h, layout_tasks.h and user_tasks.h. */
#ifndef GAPLESS_LONG_TASKS_H
#define GAPLESS_LONG_TASKS_H

/* The block has run a task, or was cut short. What ran to its end has ended, whatever was ordered meanwhile. */
INLINE void end_long(Shared &s, u32 team, bool cut) {
    cut = __syncthreads_or(cut);
    if (THREAD == 0 && cut) {
        s.code[team] = STATUS_FAILED;
        s.value[team] = FAILED_STOPPED;
    }
    BARRIER();
}

/* A task that takes the whole block. */
NOINLINE void run_long(Shared &s, u64 control, u32 team, const Ring &ring) {
    /* All have read this packet's code before it changes. */
    BARRIER();
    Task &t = s.task[team];
    u64 group_word = ((const u64 *)s.slot[team])[7];
    u64 group = (u64)part(group_word, 0, 16) * part(group_word, 16, 16) * part(group_word, 32, 16);
    if (s.far[team]) {
        /* The packet was seen, so what was written before it can be seen. */
        fence_sys();
        u64 from = ring.arena + ((const u64 *)s.slot[team])[8];
        u32 words = t.argument_bytes / 8;
        u64 buffer = t.buffer, payload = t.payload, bytes = t.payload_bytes, units = bytes / 16;
        u64 data = from + (t.argument_bytes + 15) / 16 * 16, word = 0;
        /* Places that are no multiples of 16 are nonsense of the initiator's, and give it nonsense. */
        from &= ~15ull;
        data &= ~15ull;
        if (THREAD < words) word = load_relaxed(from + 8 * THREAD);
        for (u64 i = THREAD; i < units; i += FLIGHT * THREADS) {
            Unit v[FLIGHT];
            UNROLL for (u32 k = 0; k < FLIGHT; k++)
                if (i + k * THREADS < units) v[k] = load_unit(data + 16 * (i + k * THREADS));
            UNROLL for (u32 k = 0; k < FLIGHT; k++) {
                if (i + k * THREADS >= units) continue;
                ((u64 *)payload)[2 * (i + k * THREADS)] = v[k].lo;
                ((u64 *)payload)[2 * (i + k * THREADS) + 1] = v[k].hi;
            }
        }
        if (THREAD < bytes % 16) {
            u64 at = units * 16 + THREAD;
            ((u8 *)payload)[at] = *(volatile const u8 *)(data + at);
        }
        if (THREAD < words) s.arguments[THREAD] = THREAD == 0 ? buffer : THREAD == 1 ? payload : word;
        BARRIER();
    }
    bool moves = t.object == DO_UNPACK || t.object == DO_PACK;
    u32 failed = 0;
    if (moves && !s.has_layouts) {
        if (THREAD < LAYOUTS_MAX) s.layouts[THREAD] = load_relaxed(control + CONTROL_LAYOUT_LIST + 8 * THREAD);
        BARRIER();
        if (THREAD == 0) s.has_layouts = 1;
    }
    if (THREAD == 0 && moves) {
        t.layout = t.argument_bytes >= 32 && t.arguments[2] < LAYOUTS_MAX ? s.layouts[t.arguments[2]] : 0;
        failed = admits_layout(t);
    } else if (THREAD == 0 && !is_users(t)) {
        failed = admits(t, s.put);
    }
    if (failed != 0) {
        s.code[team] = STATUS_FAILED;
        s.value[team] = failed;
    }
    /* The barrier brings the verdict: who looked at the code might meet what is written there next. */
    if (__syncthreads_or(failed != 0)) return;
    /* Layouts are moved by all threads, whatever the grid is. */
    if (moves) return end_long(s, team, move_layout(&s.watch, t));
    if (t.object == DO_PAUSE) {
        if (THREAD == 0) {
            u64 since = nanoseconds();
            while (nanoseconds() - since < t.arguments[2]) {
                if (is_stopped(&s.watch)) {
                    s.code[team] = STATUS_FAILED;
                    s.value[team] = FAILED_STOPPED;
                    break;
                }
            }
        }
        BARRIER();
        return;
    }
    if (t.object == DO_FORWARD) {
        Ring &out = s.outs[t.arguments[2]].ring;
        bool room = has_room(out);
        if (!__syncthreads_and(room)) {
            if (THREAD == 0) {
                s.code[team] = STATUS_FAILED;
                s.value[team] = FAILED_FULL;
            }
        } else if (THREAD < TEAM) {
            /* The chain's earlier writes come before the packet that puts it on. */
            fence_sys();
            const u8 *packet = (const u8 *)t.payload;
            u32 bytes = t.payload_bytes - 64;
            put_unit(out, THREAD, unit_of(THREAD, packet, packet + 64, bytes), bytes);
        }
        BARRIER();
        if (THREAD == 0 && s.code[team] == REWRITTEN) {
            out.position++;
            u64 list = control + CONTROL_OUT_LIST + t.arguments[2] * 8 * RING_WORDS;
            store_relaxed(list + 8 * RING_POSITION, out.position);
            /* As any initiator announces: the packet, this fence, the state. */
            fence_sc();
            u64 state = load_relaxed(out.head + RING_STATE);
            if (state != STARTING && state != RUNNING) store_relaxed(out.head + RING_WANTED, 1);
        }
        BARRIER();
        return;
    }
#ifdef WORKER_LINKED
    if (is_users(t)) return run_users(s, team, group_word, group);
#endif
    u64 groups = t.items / group;
    bool cut = false;
    for (u64 g = 0; g < groups; g++) {
        if (THREAD < group) cut = run_item(&s.watch, t, g * group + THREAD) || cut;
        if (g % GROUPS != GROUPS - 1 || g == groups - 1) continue;
        bool stopped = THREAD == 0 && is_stopped(&s.watch);
        if (__syncthreads_or(stopped)) {
            cut = true;
            break;
        }
    }
    end_long(s, team, cut);
}

#endif
