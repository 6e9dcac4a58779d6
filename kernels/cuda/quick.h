/* The way of most packets: a kernel's, few work-items, the body in its slot. The 16 threads of a team check theirs side
 * by side, out of the registers that they have read it into, and run the task. What a look does not find in order goes
 * the long way (`take`), which knows why. After the worker's shared memory. */
#ifndef GAPLESS_QUICK_H
#define GAPLESS_QUICK_H

static_assert(ROW_GRID_Z_ITEMS == ROW_GRID_XY + 1, "four limits behind one another");

/* Work-items of a short task. */
#define SHORT_ITEMS 64u

/* What a thread of a team asks of its own unit of a packet: what these bits of the first half are, and which of the
 * second are 0. Both halves of `is_sent` that concern one unit alone. */
typedef struct {
    u64 bits, are, zero;
} Asked;
INLINE Asked asked_of(u32 unit) {
    /* Kind; flags, index and queue below their ends; no object. No address of arguments. */
    if (unit == 0) return Asked{0xffffc0c0fcff0000ull, (u64)KERNEL_KIND << 16, ~0ull};
    if (unit == 1) return Asked{~0xffffull, 0, 0};
    /* No local memory, which the worker has none of. */
    if (unit == 2) return Asked{0, 0, 0xffffull << 48};
    if (unit == 3) return Asked{0, 0, 0xffffull << 48};
    return Asked{0, 0, 0};
}

/* Whether the worker runs it by a team, whatever its arguments are. */
INLINE bool is_quick(u64 object) {
    return object == DO_ACCUMULATE || object == DO_COPY || object == DO_NUMBER || object == DO_COMBINE;
}

/* What a team finds in a slot. */
typedef struct {
    /* All of the packet is there; its body lies in the arena; it becomes a task without further looks. */
    bool whole, far, quick;
    u64 head;
    u32 arguments, payload;
} Found;

/* A team looks at what it has read of a slot: all of it, whatever is there, so that what a packet needs is what was done
 * last, and at hand. By both teams of a warp. */
INLINE Found look_at(const Shared &s, u32 team, u32 unit, Unit v, u32 sequence) {
    u32 all = 0xffffffffu, from = (team & 1) * TEAM;
    u32 have = __ballot_sync(all, ((u32)v.lo & 0xffff) == sequence) >> from;
    u64 head = __shfl_sync(all, v.lo, from), xy = __shfl_sync(all, v.hi, from + 1);
    u64 z = __shfl_sync(all, v.hi, from + 2), sides = __shfl_sync(all, v.hi, from + 3);
    u32 payload = __shfl_sync(all, (u32)(v.lo >> 32), from + 3);
    u32 index = part(head, 32, 8) % ENTRIES, which = part(head, 40, 8) % ENTRIES;
    u32 arguments = part(head, 16, 8) == KERNEL_KIND ? part(z, 32, 16) : 0;
    u64 body = (u64)arguments + payload;
    Found f;
    f.head = head;
    f.arguments = arguments;
    f.payload = payload;
    f.far = body > INLINE_BYTES;
    u32 units = PACKET_UNITS + (f.far ? 1 : ((u32)body + UNIT_BODY - 1) / UNIT_BODY), need = (1u << units) - 1;
    f.whole = (have & need) == need;
    const u64 *row = s.rows + index * ROW_WORDS;
    u64 object = row[ROW_OBJECT], limits = row[ROW_LIMITS], base = s.rows[ENTRIES * ROW_WORDS + which * ROW_WORDS + QUEUE_BASE];
    u32 x = part(xy, 0, 32), y = part(xy, 32, 32), deep = part(z, 0, 32);
    u32 group = part(sides, 0, 16) * part(sides, 16, 16) * part(sides, 32, 16);
    /* Each of the first three threads looks at a dimension, the fourth at groups. */
    u32 grid = unit == 0 ? x : unit == 1 ? y : deep, side = (u32)(sides >> (unit < 3 ? 16 * unit : 0)) & 0xffff;
    u32 most = ((const u32 *)(row + ROW_GRID_XY))[unit & 3], below = side - 1;
    bool even = (side != 0) & (grid != 0) & ((grid & below) == 0) & ((side & below) == 0) & (grid <= most);
    Asked asked = asked_of(unit);
    bool ok = ((v.lo & asked.bits) == asked.are) & ((v.hi & asked.zero) == 0);
    ok = ok & (unit < 3 ? even : (unit > 3) | (group <= most));
    ok = ok & (x <= SHORT_ITEMS) & (y <= SHORT_ITEMS) & (deep <= SHORT_ITEMS) & (x * y * deep <= SHORT_ITEMS);
    ok = ok & is_quick(object) & (base != 0) & (payload <= part(limits, 0, 32)) & (arguments == part(limits, 32, 16));
    ok = ok & (payload == 0 || payload <= s.largest) & !f.far;
    f.quick = (__ballot_sync(all, ok) >> from & 0xffff) == 0xffff && f.whole;
    return f;
}

/* What was read goes into shared memory: a packet, its body behind it. By a team that has found it whole. */
INLINE void keep_slot(Shared &s, u32 team, u32 unit, Unit v, const Found &f) {
    u8 *to = s.slot[team];
    if (unit < PACKET_UNITS) {
        ((u64 *)to)[2 * unit] = v.lo;
        ((u64 *)to)[2 * unit + 1] = v.hi;
    } else if (f.far) {
        if (unit == PACKET_UNITS) ((u64 *)to)[8] = v.hi;
    } else {
        u16 *at = (u16 *)(to + 64 + (unit - PACKET_UNITS) * UNIT_BODY);
        UNROLL for (u32 i = 0; i < 3; i++) at[i] = (u16)(v.lo >> (16 + 16 * i));
        UNROLL for (u32 i = 0; i < 4; i++) at[3 + i] = (u16)(v.hi >> (16 * i));
    }
    if (unit == 0) {
        s.far[team] = f.far;
        s.quick[team] = f.quick;
    }
}

/* It becomes a task, as `take` would have it. By its team, all of whose body is kept. */
INLINE void take_quickly(Shared &s, u32 team, u32 unit, const Found &f) {
    u32 index = part(f.head, 32, 8) % ENTRIES, which = part(f.head, 40, 8) % ENTRIES;
    const u64 *row = s.rows + index * ROW_WORDS;
    u64 *words = (u64 *)(s.slot[team] + 64);
    if (unit == 0) {
        words[0] = row[ROW_BUFFER];
        s.code[team] = REWRITTEN;
        s.value[team] = 0;
        s.shrt[team] = 1;
        s.width[team] = (u32)s.rows[ENTRIES * ROW_WORDS + which * ROW_WORDS + QUEUE_WIDTH];
    } else if (unit == 1) {
        words[1] = f.payload == 0 ? 0 : (u64)words + f.arguments;
        s.failed[team] = 0;
        s.queue[team] = (u8)which;
        s.after[team] = (f.head >> 24 & BARRIER_FLAG) != 0;
        ((u64 *)s.slot[team])[0] = row[ROW_SIGNAL] != 0 ? f.head | REGISTERED_SIGNAL << 24 : f.head;
    }
}

template <typename T> INLINE void add_all(u64 to, const u8 *from, u32 count, u32 first, u32 stride) {
    for (u32 i = first; i < count; i += stride) add((T *)to + i, ((const T *)from)[i]);
}

/* What a task of a row would add, in one place: whether it is a sum in order, which most are, with nothing of the switches.
 * What `admits` asks for is asked for here. `slot` is a packet with its body. */
INLINE bool add_in_order(const u64 *row, const u8 *slot, u32 arguments, u32 payload, u32 unit) {
    const u64 *packet = (const u64 *)slot;
    u64 to = row[ROW_BUFFER], bytes = row[ROW_BUFFER_BYTES], offset = packet[8 + 2], what = packet[8 + 3];
    u32 items = part(packet[3], 0, 32) * part(packet[3], 32, 32) * part(packet[5], 0, 32), shift = element_shift(what);
    bool sums = (row[ROW_OBJECT] == DO_ACCUMULATE) & (arguments >= 32) & ((what & 0xff) == ACC_SUM) & is_known(what) &
                is_multiple((to + offset) | payload, shift) & (offset <= bytes) & (payload <= bytes - offset);
    if (!sums) return false;
    u32 stride = items < TEAM ? items : TEAM, element = (u32)(what >> 8);
    const u8 *from = slot + 64 + arguments;
    if (unit >= stride) return true;
    to += offset;
    if (element == ACC_F64) add_all<f64>(to, from, payload >> 3, unit, stride);
    else if (element == ACC_F32) add_all<f32>(to, from, payload >> 2, unit, stride);
    else if (shift == 3) add_all<u64>(to, from, payload >> 3, unit, stride);
    else add_all<u32>(to, from, payload >> 2, unit, stride);
    return true;
}

/* Any short task, by its team, as `run_short`. */
NOINLINE u32 run_any(Shared &s, u32 team, u32 unit, const Task &t) {
    u32 failed = admits(t, s.put);
    if (failed != 0) return failed;
    for (u64 i = unit; i < t.items; i += TEAM) run_item(&s.watch, t, i);
    return 0;
}

/* A short task, by its team; 0, or why it cannot run. */
INLINE u32 run_short(Shared &s, u32 team, u32 unit) {
    if (!s.quick[team]) return run_any(s, team, unit, s.task[team]);
    const u64 *packet = (const u64 *)s.slot[team], *words = packet + 8;
    const u64 *row = s.rows + part(packet[0], 32, 8) % ENTRIES * ROW_WORDS;
    u32 arguments = part(packet[5], 32, 16), payload = part(packet[6], 32, 32);
    if (add_in_order(row, s.slot[team], arguments, payload, unit)) return 0;
    Task &t = s.task[team];
    if (unit == 0) {
        t.object = row[ROW_OBJECT];
        t.buffer = row[ROW_BUFFER];
        t.buffer_bytes = row[ROW_BUFFER_BYTES];
        t.payload = payload == 0 ? 0 : (u64)words + arguments;
        t.payload_bytes = payload;
        t.arguments = words;
        t.argument_bytes = arguments;
        t.items = part(packet[3], 0, 32) * part(packet[3], 32, 32) * part(packet[5], 0, 32);
    }
    __syncwarp(0xffffu << ((team & 1) * TEAM));
    return run_any(s, team, unit, t);
}

/* A sum that is the only packet of its ring, and that waits for no other, as all of a round before have ended: its team
 * adds, and says that the task has ended, before any barrier. Whether it has; what else there is goes the way of all. The
 * other threads' writes come before this one's fence, and that before the status. */
INLINE bool end_at_once(Shared &s, u32 team, u32 unit, const Found &f, Look look) {
    const u64 *row = s.rows + part(f.head, 32, 8) % ENTRIES * ROW_WORDS;
    const u64 *queue = s.rows + (ENTRIES + part(f.head, 40, 8) % ENTRIES) * ROW_WORDS;
    bool waits = s.count > 1 && ((u32)queue[QUEUE_WIDTH] < TEAMS || (f.head >> 24 & BARRIER_FLAG) != 0);
    if (waits || s.watch.stopped != 0) return false;
    if (!add_in_order(row, s.slot[team], f.arguments, f.payload, unit)) return false;
    /* The warp's first team: it looks at the ring's next packet. */
    __syncwarp(0xffffu);
    if (unit == 0) {
        Ring &ring = s.rings[look.ring];
        u32 sequence = s.next[look.ring];
        fence_sys();
        store_relaxed(ring.status + (u32)ring.position % SLOTS * 8, sequence | (u64)STATUS_ENDED << 16);
        ring.position++;
        s.next[look.ring] = wrapped(sequence + 1);
        ((u64 *)s.slot[team])[0] = row[ROW_SIGNAL] != 0 ? f.head | REGISTERED_SIGNAL << 24 : f.head;
    }
    return true;
}

#endif
