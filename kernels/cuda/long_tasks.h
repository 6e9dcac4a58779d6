/* Tasks that take the whole block, or several. After streams.h, layout_tasks.h and crew.h. */
#ifndef GAPLESS_LONG_TASKS_H
#define GAPLESS_LONG_TASKS_H

/* How a task is cut into parts, each so long that sharing it is worth while. By one thread. */
INLINE void cut_into_parts(Shared &s, const Task &t, u32 group, bool streams) {
    Parts &p = s.parts;
    p.group = group;
    bool moves = t.object == DO_UNPACK || t.object == DO_PACK;
    if (!moves && !streams) {
        p.all = t.items / group;
        p.kind = is_users(t) ? BY_USERS : BY_GROUPS;
        bool shared = s.blocks > 1 && (p.kind == BY_USERS || t.items >= SHARED_ITEMS);
        u64 wanted = shared ? PARTS_OF_BLOCK * s.blocks : 1;
        p.each = (p.all + wanted - 1) / wanted;
        p.count = (u32)((p.all + p.each - 1) / p.each);
        return;
    }
    bool reduces = t.object == DO_REDUCE;
    p.all = reduces ? t.arguments[4] << element_shift(t.arguments[5]) : t.payload_bytes;
    if (moves) p.all = ((const LayoutForm *)t.layout)->bytes;
    p.kind = moves ? BY_WORDS : BY_BYTES;
    /* A block's share, in whole loads of its threads. */
    u64 share = (p.all / s.blocks + STRETCH_MIN - 1) & ~(u64)(STRETCH_MIN - 1);
    if (share > STRETCH_MAX || share == 0) share = STRETCH_MAX;
    while (p.all / share > PARTS_MAX) share *= 2;
    p.count = (u32)((p.all + share - 1) / share);
    if (moves && p.count > s.blocks) p.count = s.blocks;
    if (p.all < SHARED_MIN) {
        share = p.all;
        p.count = 1;
    }
    p.each = share;
}

/* A task that takes the whole block. */
NOINLINE void run_long(Shared &s, u64 control, u32 team, const Ring &ring) {
    /* All have read this packet's code before it changes. */
    BARRIER();
    Task &t = s.task[team];
    u64 group_word = ((const u64 *)s.slot[team])[7];
    u64 group = (u64)part(group_word, 0, 16) * part(group_word, 16, 16) * part(group_word, 32, 16);
    if (s.far[team]) {
        /* Who has found the packet has fenced, and all have met it since: so what was written before it can be seen. */
        u64 from = ring.arena + ((const u64 *)s.slot[team])[8];
        u32 words = t.argument_bytes / 8;
        u64 buffer = t.buffer, payload = t.payload;
        u64 data = from + (t.argument_bytes + 15) / 16 * 16, word = 0;
        /* Places that are no multiples of 16 are nonsense of the initiator's, and give it nonsense. */
        from &= ~15ull;
        data &= ~15ull;
        if (THREAD < words) word = load_relaxed(from + 8 * THREAD);
        if (!is_streamed(t.object)) {
            stream_copy(payload, data, 0, t.payload_bytes);
        } else {
            /* All have read where it would go. */
            BARRIER();
            if (THREAD == 0) t.payload = data;
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
    /* Bytes are moved by all threads, whatever the grid is. */
    bool streams = t.object == DO_REDUCE || (s.far[team] && is_streamed(t.object));
    if (THREAD == 0) {
        cut_into_parts(s, t, (u32)group, streams);
        s.said = 0;
    }
    BARRIER();
    bool cut = run_together(s, team);
    /* What ran to its end has ended, whatever was ordered meanwhile. */
    if (THREAD == 0 && cut) {
        s.code[team] = STATUS_FAILED;
        s.value[team] = s.said == 0 ? FAILED_STOPPED : FAILED_USER | s.said;
    }
    BARRIER();
}

#endif
