/* A packet becomes a task, or is refused: the way of those that are not quick. After the worker's shared memory. */
#ifndef GAPLESS_TAKING_H
#define GAPLESS_TAKING_H

/* The shortest receive buffer that is long enough; without one, the code says why. */
INLINE u64 claim(const Shared &s, u32 bytes, u32 *code) {
    u64 best = ~0ull, at = 0;
    for (u32 i = 0; i < s.buffers; i++) {
        if (s.buffer_bytes[i] >= bytes && s.buffer_bytes[i] < best) {
            best = s.buffer_bytes[i];
            at = s.buffer[i];
        }
    }
    if (best == ~0ull) *code = s.buffers == 0 ? REFUSED_NO_BUFFER : REFUSED_SMALL_BUFFER;
    return at;
}

/* A packet becomes a task, or is refused. By one thread of its team. */
NOINLINE void take(Shared &s, u32 team, const Ring &ring) {
    Packet p;
    const u64 *at = (const u64 *)s.slot[team];
    UNROLL for (u32 w = 0; w < 8; w++) p.word[w] = at[w];
    u32 arguments = ARGUMENT_BYTES(p), payload = PAYLOAD(p), value = 0;
    bool far = s.far[team];
    u64 place = far ? at[8] : 0, begin = far ? (u64)s.arguments : (u64)(s.slot[team] + 64), data = begin + arguments;
    u64 first[2] = {0, 0}, queue;
    u64 wanted = ARGUMENT_BYTES(p);
    u32 index = INDEX(p) % ENTRIES, which = QUEUE(p) % ENTRIES;
    const u64 *row = s.rows + index * ROW_WORDS, *queue_row = (s.rows + ENTRIES * ROW_WORDS) + which * ROW_WORDS;
    u32 code = rewrite(p, 0, s.rows, (s.rows + ENTRIES * ROW_WORDS), begin, data, first, &queue);
    if (code == REFUSED_PAYLOAD) value = part(row[ROW_LIMITS], 0, 32);
    if (code == REFUSED_ARGUMENTS) value = part(row[ROW_LIMITS], 32, 16);
    if (code == NO_PACKET) code = STATUS_MALFORMED;
    if (far && code == REWRITTEN) {
        u64 body = (wanted + 15) / 16 * 16 + payload;
        if (place > ring.arena_bytes || body > ring.arena_bytes - place) code = STATUS_MALFORMED;
    }
    u64 grid[3] = {part(p.word[3], 0, 32), part(p.word[3], 32, 32), part(p.word[5], 0, 32)};
    u64 group = (u64)part(p.word[7], 0, 16) * part(p.word[7], 16, 16) * part(p.word[7], 32, 16);
    if (code == REWRITTEN) {
        u32 most = part(row[ROW_GRID_Z_ITEMS], 32, 32);
        if (group > most || part(p.word[5], 48, 16) * 16u > WORKER_LOCAL_MAX) {
            code = REFUSED_GROUP;
            value = most;
        } else if (grid[0] > part(row[ROW_GRID_XY], 0, 32) || grid[1] > part(row[ROW_GRID_XY], 32, 32) ||
                   grid[2] > part(row[ROW_GRID_Z_ITEMS], 0, 32)) {
            code = REFUSED_GRID;
        } else if (grid[0] * grid[1] > ITEMS_MAX || grid[0] * grid[1] * grid[2] > ITEMS_MAX ||
                   __umul64hi(grid[0] * grid[1], grid[2]) != 0) {
            code = REFUSED_GRID;
        }
    }
    if (code == REWRITTEN && payload != 0) {
        u64 buffer = claim(s, payload, &code);
        if (code == REFUSED_SMALL_BUFFER) value = s.largest;
        if (far) first[1] = buffer;
    }
    s.code[team] = code;
    s.value[team] = value;
    s.failed[team] = 0;
    if (code != REWRITTEN) return;
    u64 *words = (u64 *)(far ? (u64)s.arguments : (u64)(s.slot[team] + 64));
    if (!far) {
        words[0] = first[0];
        words[1] = first[1];
    }
    ((u64 *)s.slot[team])[0] = p.word[0];
    Task &t = s.task[team];
    t.object = p.word[0] >> 48 << 48 | p.word[2] >> 16;
    t.buffer = first[0];
    t.buffer_bytes = row[ROW_BUFFER_BYTES];
    t.payload = first[1];
    t.payload_bytes = payload;
    t.arguments = words;
    t.argument_bytes = arguments;
    t.items = grid[0] * grid[1] * grid[2];
    bool few = t.object != DO_REDUCE || (arguments >= 48 && words[4] <= INLINE_BYTES);
    s.shrt[team] = !far && t.items <= 64 && (t.object < DO_PAUSE || t.object == DO_COMBINE) && few;
    s.queue[team] = (u8)which;
    s.after[team] = (p.word[0] >> 24 & BARRIER_FLAG) != 0;
    s.width[team] = part(queue_row[QUEUE_WIDTH], 0, 32);
}

#endif
