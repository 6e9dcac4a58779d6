/* Units, packets, the rewrite, and putting: what the worker and initiators on a GPU share. After worker.h. */
#ifndef GAPLESS_PACKETS_H
#define GAPLESS_PACKETS_H

#define ARGUMENTS_MAX 4096

typedef struct {
    u64 lo, hi;
} Unit;

INLINE Unit load_unit(u64 at) {
    Unit v;
    load_sixteen(at, v.lo, v.hi);
    return v;
}
INLINE void store_unit(u64 at, u64 lo, u64 hi) {
    asm volatile("{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t; }"
                 :
                 : "l"(at), "l"(lo), "l"(hi)
                 : "memory");
}
INLINE u64 sequence_of(u64 position) { return 1 + position % SEQUENCES; }

/* The rewrite: xtq/src/rewrite.rs, and the checks of packet.rs. */

typedef struct {
    u64 word[8];
} Packet;

INLINE u32 part(u64 word, u32 at, u32 bits) { return (u32)(word >> at & (0xffffffffull >> (32 - bits))); }

/* Whether a dimension's items are whole groups, and some. Most groups are powers of two: a division takes long. */
INLINE bool divides(u32 grid, u32 group) {
    if (group == 0 || grid == 0) return false;
    u32 below = group - 1;
    return (group & below) == 0 ? (grid & below) == 0 : grid % group == 0;
}

#define KIND(p) part((p).word[0], 16, 8)
#define FLAGS(p) part((p).word[0], 24, 8)
#define INDEX(p) part((p).word[0], 32, 8)
#define QUEUE(p) part((p).word[0], 40, 8)
#define PAYLOAD(p) part((p).word[6], 32, 32)
#define KERNEL_KIND 2
#define FUNCTION_KIND 1
#define BARRIER_FLAG 2
#define REGISTERED_SIGNAL 0x80ull
#define ARGUMENT_BYTES(p) (KIND(p) == KERNEL_KIND ? part((p).word[5], 32, 16) : 0u)
#define NO_PACKET 0u
#define REWRITTEN 0xffu

/* Whether an initiator may have sent it. */
INLINE bool is_sent(const Packet &p) {
    u32 sequence = part(p.word[0], 0, 16);
    bool whole = sequence != 0;
    UNROLL for (u32 i = 1; i < 4; i++) whole = whole && part(p.word[2 * i], 0, 16) == sequence;
    u32 kind = KIND(p);
    bool fields = (kind == FUNCTION_KIND || kind == KERNEL_KIND) && FLAGS(p) < 4 && INDEX(p) < ENTRIES &&
                  QUEUE(p) < ENTRIES && p.word[0] >> 48 == 0 && p.word[2] >> 16 == 0;
    if (!whole || !fields || kind == FUNCTION_KIND) return whole && fields;
    u64 xy = p.word[3], z = p.word[5], group = p.word[7];
    u32 bytes = part(z, 32, 16);
    return p.word[1] == 0 && group >> 48 == 0 && divides(part(xy, 0, 32), part(group, 0, 16)) &&
           divides(part(xy, 32, 32), part(group, 16, 16)) && divides(part(z, 0, 32), part(group, 32, 16)) &&
           bytes >= 16 && bytes <= ARGUMENTS_MAX && bytes % 8 == 0;
}

/* Rewrites a packet in place: REWRITTEN, or why not. `rows` are those of the packet's table and of queues. */
INLINE u32 rewrite(Packet &p, const u64 *functions, const u64 *kernels, const u64 *queues, u64 arguments, u64 payload,
                   u64 first[2], u64 *queue) {
    if (!is_sent(p)) return NO_PACKET;
    bool kernel = KIND(p) == KERNEL_KIND;
    const u64 *table = kernel ? kernels : functions;
    if (table == 0) return REFUSED_NOT_REGISTERED;
    const u64 *row = table + INDEX(p) * ROW_WORDS, *place = queues + QUEUE(p) * ROW_WORDS;
    if (row[ROW_OBJECT] == 0) return REFUSED_NOT_REGISTERED;
    if (place[QUEUE_BASE] == 0) return REFUSED_NO_QUEUE;
    if (PAYLOAD(p) > part(row[ROW_LIMITS], 0, 32)) return REFUSED_PAYLOAD;
    if (kernel && ARGUMENT_BYTES(p) != part(row[ROW_LIMITS], 32, 16)) return REFUSED_ARGUMENTS;
    first[0] = row[ROW_BUFFER];
    first[1] = PAYLOAD(p) == 0 ? 0 : payload;
    *queue = place[QUEUE_BASE];
    u64 object = row[ROW_OBJECT], signal = row[ROW_SIGNAL];
    p.word[0] = (p.word[0] & 0xffffffffffffull) | (object >> 48) << 48;
    p.word[2] = (p.word[2] & 0xffffull) | object << 16;
    if (signal != 0) {
        p.word[0] |= REGISTERED_SIGNAL << 24;
        p.word[4] = (p.word[4] & 0xffffull) | signal << 16;
        p.word[6] = (p.word[6] & 0xffffffff0000ffffull) | (signal >> 48) << 16;
    }
    if (kernel) {
        p.word[1] = arguments;
    } else {
        p.word[1] = first[0];
        p.word[3] = first[1];
    }
    return REWRITTEN;
}

/* Putting. */

/* A ring as who puts into it, or takes out of it, sees it. */
typedef struct {
    u64 head, slots, status, arena, arena_bytes, position;
} Ring;

/* A ring to put into, and where its position is kept: an element of a list (gapless_tasks.h). */
typedef struct gapless_lane {
    Ring ring;
    u64 list;
} Out;

INLINE Ring load_ring(u64 from) {
    Ring r;
    r.head = load_relaxed(from + 8 * RING_HEAD_AT);
    r.slots = load_relaxed(from + 8 * RING_SLOTS_AT);
    r.status = load_relaxed(from + 8 * RING_STATUS_AT);
    r.arena = load_relaxed(from + 8 * RING_ARENA_AT);
    r.arena_bytes = load_relaxed(from + 8 * RING_ARENA_BYTES);
    r.position = load_relaxed(from + 8 * RING_POSITION);
    return r;
}

/* Whether the slot of the next put is free. */
INLINE bool has_room(const Ring &ring) {
    if (ring.position < SLOTS) return true;
    u64 status = load_acquire(ring.status + ring.position % SLOTS * 8);
    return (status & 0xffff) == sequence_of(ring.position - SLOTS);
}

/* Bytes of the body that a packet says it has, whatever it is. */
INLINE u64 body_of(const u64 *packet) {
    u64 arguments = part(packet[0], 16, 8) == KERNEL_KIND ? part(packet[5], 32, 16) : 0;
    return arguments + part(packet[6], 32, 32);
}

/* A unit of a put, without its sequence: of 64 bytes of a packet and a body that fits into the slot. Beyond the body it
 * is all 0, and stays so. */
INLINE Unit unit_of(u32 unit, const u8 *packet, const u8 *body, u32 body_bytes) {
    u64 lo = 0, hi = 0;
    if (unit < PACKET_UNITS) {
        lo = *(const u64 *)(packet + unit * UNIT_BYTES) & ~0xffffull;
        hi = *(const u64 *)(packet + unit * UNIT_BYTES + 8);
    } else {
        u32 from = (unit - PACKET_UNITS) * UNIT_BODY;
        UNROLL for (u32 i = 0; i < 6; i++)
            if (from + i < body_bytes) lo |= (u64)body[from + i] << (16 + 8 * i);
        UNROLL for (u32 i = 0; i < 8; i++)
            if (from + 6 + i < body_bytes) hi |= (u64)body[from + 6 + i] << (8 * i);
    }
    return Unit{lo, hi};
}

/* Puts it: 16 threads, of which this is number `unit`, do so, when there is room. What the task is to see was written
 * before, by these threads' leave. */
INLINE void put_unit(const Ring &ring, u32 unit, Unit v, u32 body_bytes) {
    bool used = unit < PACKET_UNITS || (unit - PACKET_UNITS) * UNIT_BODY < body_bytes;
    u64 sequence = used ? sequence_of(ring.position) : 0;
    store_unit(ring.slots + ring.position % SLOTS * SLOT_BYTES + unit * UNIT_BYTES, v.lo | sequence, v.hi);
}

#endif
