/* Who looks at which slot: how the teams of the worker's block are spread over its rings. After the worker's shared memory. */
#ifndef GAPLESS_LOOKS_H
#define GAPLESS_LOOKS_H

/* Which slot a team looks at: of which ring, and how far ahead; by how many teams that ring is looked at together. Those
 * of a ring are neighbours. What is not `active` is not looked at. */
typedef struct {
    u32 ring, ahead, of;
    bool active;
} Look;

/* How the teams are spread over the rings: if all get the same, `s.per` of each. */
typedef struct {
    /* The ring that comes first; the one that gets most teams, if that is one. */
    u32 turn, busy;
    /* Whether all look, because several have come. */
    bool wide;
} Spread;
#define NO_RING 0xffffffffu
/* Rings up to which a busy one gets most teams. */
#define BUSY_RINGS 8

INLINE u32 ones(u32 count) { return count >= 32 ? 0xffffffffu : (1u << count) - 1; }
INLINE u32 within(u32 ring, u32 count) { return ring < count ? ring : ring - count; }
INLINE Look look_of(const Shared &s, const Spread &p, u32 team) {
    u32 count = s.count, share = s.share[team], place = s.place[team];
    if (p.wide && p.busy != NO_RING) {
        u32 most = TEAMS - AHEAD * (count - 1);
        if (team < most) return Look{p.busy, team, most, true};
        u32 other = team - most;
        return Look{within(p.busy + 1 + other / AHEAD, count), other % AHEAD, AHEAD, true};
    }
    bool is_one = share < count;
    u32 ring = is_one ? within(p.turn + share, count) : p.turn;
    return Look{ring, place, s.per, is_one && (p.wide || place < AHEAD)};
}
/* The first of the teams that look at a ring, and how many teams that may be. */
INLINE u32 first_of(const Shared &s, const Spread &p, u32 ring) {
    u32 count = s.count;
    if (!p.wide || p.busy == NO_RING) return within(ring + count - p.turn, count) * s.per;
    u32 behind = within(ring + count - p.busy, count);
    return behind == 0 ? 0 : TEAMS - AHEAD * (count - behind);
}
INLINE u32 teams_of(const Shared &s, const Spread &p, u32 ring) {
    if (!p.wide || p.busy == NO_RING) return s.per;
    return ring == p.busy ? TEAMS - AHEAD * (s.count - 1) : AHEAD;
}
/* Spreads the teams over so many rings: each has as many, an even number if several. Gives how many. By all threads, which
 * meet before anybody looks. */
INLINE u32 spread_teams(Shared &s, u32 count) {
    u32 per = count == 0 ? TEAMS : TEAMS / count;
    if (per > 1) per &= ~1u;
    if (THREAD == 0) s.per = per;
    if (THREAD < TEAMS) {
        s.share[THREAD] = THREAD / per;
        s.place[THREAD] = THREAD % per;
    }
    return per;
}
INLINE u32 wrapped(u32 sequence) { return sequence > SEQUENCES ? sequence - SEQUENCES : sequence; }
INLINE u32 sequence_at(const Shared &s, Look look) { return wrapped(s.next[look.ring] + look.ahead); }
INLINE u64 slot_at(u64 slots, u32 position, u32 unit) {
    return slots + (position % SLOTS * SLOT_BYTES + unit * UNIT_BYTES);
}

#endif
