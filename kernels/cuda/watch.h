/* Looks while nothing comes, and sums that come alone. Only the warps that look, one a ring, and the one that keeps the
 * clock meet between two looks; the others wait at the block's barrier. A sum that waits for nothing is run and ended by
 * the warp that has found it, and the block never hears of it.
 *
 * The warps meet so that no look is on its way while a task ends: a fence of the system's scope waits for all that its
 * multiprocessor has on its way over the bus. Several looks at one slot on their way would gain nothing, whoever makes
 * them: such loads go over the bus one after another. What counts is when a look is made. Who puts one task after another
 * puts the next one a while after it has seen the last one's end, and a look that comes just before that costs another
 * one. So a warp rests after the end of a task for as long as has proved good. After the worker's shared memory. */
#ifndef GAPLESS_WATCH_H
#define GAPLESS_WATCH_H

/* Cycles by which a rest gets longer when the look behind it came too early twice in a row, and shorter else; at most. */
#define REST_MORE 256u
#define REST_LESS 1u
#define REST_MAX 3072u
/* Rings up to which that is so; with more, a warp rests shorter, because the others' looks wait for it. */
#define RESTING_RINGS 2
#define REST_MANY 1024u
/* What was asked for: tables have changed. Below it, why the worker leaves. */
#define ASKED_TABLES 0x100u
/* More looks than a rest is blamed for. */
#define LOOKS_LATE 3u

INLINE u32 cycles() {
    u32 t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}

/* So many threads of the block meet; whether one of them wants that. Warps come as a whole. Functions of users meet at
 * barrier 1. */
INLINE bool meet(u32 threads, bool wants) {
    u32 any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.red.or.pred q, 2, %2, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((u32)wants), "r"(threads)
                 : "memory");
    return any != 0;
}

/* What the host tells: how often it has changed tables, and what it orders. No more is loaded than is asked for: registers
 * that nobody asks for are used for something else, which then waits until they have been loaded. */
typedef struct {
    u64 changed;
    u32 told;
} Orders;
INLINE Orders load_orders(u64 control) {
    Orders o;
    o.changed = load_relaxed(control + CONTROL_CHANGED);
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(o.told) : "l"(control + CONTROL_ORDERS) : "memory");
    return o;
}

/* What the host or the clock ask for: 0 if nothing. By who looks at the clock. */
INLINE u32 asked_for(Shared &s, Orders orders, bool &worked) {
    u64 now = nanoseconds();
    u32 asked = 0;
    if (worked) {
        s.until = now;
        worked = false;
    }
    if ((orders.told & ORDER_ABORT) != 0) asked = WHY_ABORTED;
    else if ((orders.told & ORDER_LEAVE) != 0) asked = WHY_TOLD;
    else if (now > s.watch.deadline) asked = WHY_OLD;
    else if (now > s.until && now - s.until > s.idle) asked = WHY_IDLE;
    if (orders.changed != s.changed && orders.changed % 2 == 0) asked |= ASKED_TABLES;
    return asked;
}

/* Counts what has ended in a round: by the warp that keeps the clock, when those who look have met. Whether there was
 * something. */
INLINE bool count_mail(Shared &s, u64 control, u32 round) {
    u64 &mail = s.mail[round % 2][THREAD % 32], head = mail;
    if (!__any_sync(0xffffffffu, head != 0)) return false;
    mail = 0;
    count_ended(s, control, head);
    return true;
}

#define NOT_WHOLE 0u
#define FOR_BLOCK 1u
#define IS_OVER 2u
/* What a warp does about what it has read of a ring's next two slots, of which the first has something: whether that packet's
 * task is over, or the block must come. */
NOINLINE u32 attend(Shared &s, u32 team, u32 unit, Unit v, u32 sequence, u32 ring, u32 round) {
    u32 all = 0xffffffffu;
    Found has = look_at(s, team, unit, v, sequence);
    u32 have = __ballot_sync(all, has.whole);
    if ((have & 1) == 0) return NOT_WHOLE;
    if (have != 0xffff || !__any_sync(all, has.quick)) return FOR_BLOCK;
    /* What was written before the packet can be seen by its task. */
    fence_acquire();
    if (has.whole) keep_slot(s, team, unit, v, has);
    __syncwarp();
    bool over = has.whole && end_at_once(s, team, unit, has, Look{ring, 0, AHEAD, true});
    if (over && unit == 0) s.mail[round % 2][team] = ((const u64 *)s.slot[team])[0];
    return __any_sync(all, over) ? IS_OVER : FOR_BLOCK;
}

/* Looks until a packet, or the host, asks for the block: by warps that look or keep the clock, of which there are `threads`.
 * What a warp has found it finds again in `early`. Whether this thread has found what the host or the clock ask for. */
INLINE bool watch(Shared &s, u64 control, u32 threads, u32 team, u32 unit, Look mine, bool &worked, Orders &orders,
                  Unit &early, u64 &early_at) {
    u32 all = 0xffffffffu, looks = LOOKS_LATE, due = 0;
    bool looking = __any_sync(all, mine.active), called = false;
    u32 round = 0, rest = s.rest[mine.ring];
    bool was_early = false;
    for (;; round++) {
        bool wants = false;
        if (THREAD == LAST && round % ROUNDS == 2) orders = load_orders(control);
        if (looking) {
            u64 at = slot_at(s.rings[mine.ring].slots, (u32)s.rings[mine.ring].position + mine.ahead, unit);
            u32 sequence = sequence_at(s, mine);
            while (looks == 0 && (i32)(cycles() - due) < 0) {
            }
            __syncwarp();
            Unit v = load_unit(at);
            looks = looks < LOOKS_LATE ? looks + 1 : LOOKS_LATE;
            /* The ring's next packet is there, or begins to be. */
            if ((__ballot_sync(all, ((u32)v.lo & 0xffff) == sequence) & 1) != 0) {
                u32 what = attend(s, team, unit, v, sequence, mine.ring, round);
                if (what == IS_OVER) {
                    /* One that comes too early is an accident. */
                    bool early_again = looks == 2 && was_early;
                    rest = early_again ? rest + REST_MORE : rest > REST_LESS ? rest - REST_LESS : 0;
                    u32 most = s.count > RESTING_RINGS ? REST_MANY : REST_MAX;
                    rest = rest < most ? rest : most;
                    was_early = looks == 2 && !was_early;
                    due = cycles() + rest;
                    looks = 0;
                } else if (what == FOR_BLOCK) {
                    early = v;
                    early_at = at;
                    wants = true;
                }
            }
        }
        if (THREAD / 32 == LAST / 32) {
            worked = count_mail(s, control, round + 1) || worked;
            if (THREAD == LAST && round % ROUNDS == 2 + ROUNDS / 2) {
                u32 asked = asked_for(s, orders, worked);
                s.why = asked % ASKED_TABLES;
                called = asked != 0;
            }
        }
        if (meet(threads, wants || called)) break;
    }
    if (looking) s.rest[mine.ring] = rest;
    if (THREAD / 32 == LAST / 32) worked = count_mail(s, control, round) || worked;
    return called;
}

#endif
