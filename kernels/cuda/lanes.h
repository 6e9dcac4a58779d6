/* Putting from device code of users: the calls of gapless_tasks.h that are not a worker's alone. After packets.h. */
#ifndef GAPLESS_LANES_H
#define GAPLESS_LANES_H

#define LANE_TEAM 16
/* Looks at an answer between two at the host's word. */
#define LANE_LOOKS 64

INLINE bool says_its_length(const void *packet, u32 bytes) {
    return bytes <= INLINE_BYTES && body_of((const u64 *)packet) == bytes;
}

/* By `step` threads, of which this is number `first`; all have found that there is room. */
NOINLINE void put_units(const Ring &ring, const void *packet, const void *body, u32 bytes, u32 first, u32 step) {
    ROLLED for (u32 unit = first; unit < LANE_TEAM; unit += step) {
        put_unit(ring, unit, unit_of(unit, (const u8 *)packet, (const u8 *)body, bytes), bytes);
    }
}

/* The put is there: who looks for a worker learns that one is wanted. By one thread, when all have put. */
INLINE u64 put_done(gapless_lane *lane) {
    u64 position = lane->ring.position++;
    store_relaxed(lane->list + 8 * RING_POSITION, position + 1);
    fence_sc();
    u64 state = load_relaxed(lane->ring.head + RING_STATE);
    if (state != STARTING && state != RUNNING) store_relaxed(lane->ring.head + RING_WANTED, 1);
    return position + 1;
}

extern "C" __device__ u64 gapless_put(gapless_lane *lane, const void *packet, const void *body, u32 bytes) {
    if (!says_its_length(packet, bytes) || !has_room(lane->ring)) return 0;
    fence_sys();
    put_units(lane->ring, packet, body, bytes, 0, 1);
    return put_done(lane);
}

extern "C" __device__ u64 gapless_put_by_warp(gapless_lane *lane, const void *packet, const void *body, u32 bytes) {
    u32 all = 0xffffffffu, number = THREAD % 32;
    bool goes = says_its_length(packet, bytes) && has_room(lane->ring);
    if (!__all_sync(all, goes)) return 0;
    fence_sys();
    __syncwarp();
    if (number < LANE_TEAM) put_units(lane->ring, packet, body, bytes, number, LANE_TEAM);
    __syncwarp();
    u64 ticket = number == 0 ? put_done(lane) : 0;
    /* The next put finds the new position in all lanes. */
    __syncwarp();
    return __shfl_sync(all, ticket, 0);
}

extern "C" __device__ u32 gapless_outcome(const gapless_lane *lane, u64 ticket, u32 *value) {
    u64 status = load_acquire(lane->ring.status + (ticket - 1) % SLOTS * 8);
    if (ticket == 0 || (status & 0xffff) != sequence_of(ticket - 1)) return GAPLESS_PENDING;
    if (value != 0) *value = (u32)(status >> 32);
    return (u32)(status >> 16 & 0xff);
}

extern "C" __device__ u32 gapless_wait(const gapless_lane *lane, u64 ticket, u64 patience, u32 *value) {
    u64 since = nanoseconds();
    for (u32 looks = 0;; looks++) {
        u32 code = gapless_outcome(lane, ticket, value);
        if (code != GAPLESS_PENDING) return code;
        if (nanoseconds() - since > patience) return GAPLESS_TIMED_OUT;
        if (looks % LANE_LOOKS == LANE_LOOKS - 1 && load_relaxed(lane->ring.head + RING_ABORT) != 0) {
            return GAPLESS_ABORTED;
        }
    }
}

#endif
