/* The command processor of XTQ on the target GPU: a block that stays, polls rings of packets, rewrites them and runs
 * what they ask for; other blocks help with long tasks (crew.h). LeBeane et al. 2016, §III. What lies where, and
 * what the numbers mean: worker.h.
 *
 * A round: 32 teams of 16 threads read a slot each, a unit a thread, by one load, so a batch costs one way over the bus;
 * while nothing comes, two teams of each ring do, a warp, without the rest of the block (watch.h). If there are rings in
 * this GPU's own memory, the block stays together, and those are looked at again and again until the others' loads have
 * come over the bus. A team that finds its sequence number in all units has a whole packet, and
 * makes it a task at once (quick.h). If it is the only one of its ring, and waits for no other, the team also runs and
 * ends it at once. Else packets of a ring are taken in order. Short tasks run side by side, a team each, as far as the
 * widths of their queues allow; long ones take the whole block, one after another. A warp ends the round: one fence, then
 * all statuses.
 *
 * What is read of a ring may be anything at any time: every length and offset is checked here.
 */
#include "prelude_cuda.h"
#include "worker.h"
#include "../cuda/system.h"
#include "../cuda/packets.h"
#include "../cuda/tasks.h"
#include "../cuda/layout_tasks.h"
#include "../cuda/streams.h"
#ifdef WORKER_LINKED
#include "gapless_tasks.h"
#include "../cuda/lanes.h"
#endif

#define TEAM 16
#define TEAMS (WORKER_THREADS / TEAM)
/* Rounds between two looks at the clock. */
#define ROUNDS 8
/* Virtual groups between two looks at the clock. */
#define GROUPS 64
/* Work-items of a grid. */
#define ITEMS_MAX (1ull << 40)
/* Slots of each ring that are looked at while nothing comes. */
#define AHEAD 2
/* Bytes, and work-items, from which on a task is shared with other blocks. */
#define SHARED_MIN 32768u
#define SHARED_ITEMS 8192u
/* Parts of a task: for each block, if it is cut by groups; at most. */
#define PARTS_OF_BLOCK 8u
#define PARTS_MAX (1ull << 30)
/* Who tells the host and initiators what the worker does: none of the first warps, whose fences would wait for that. */
#define TELLER 352
/* Warps of the block. */
#define WARPS (WORKER_THREADS / 32)
/* Looks at a ring nearby in a round: if no others are waited for; and at most. */
#define LOOKS 4
#define LOOKS_MAX 64
/* A slot whose task has ended before the round's others begin. */
#define ENDED_AT_ONCE 2
/* Who looks at the clock and at the host's orders: of a warp that reads slots last. */
#define LAST (WORKER_THREADS - 1)

#ifndef WORKER_LINKED
#include "../cuda/initiator.h"
#endif

/* How a task is cut into parts: `all` of what it is cut by, `each` of them a part, but for the last. */
#define BY_GROUPS 0
#define BY_BYTES 1
#define BY_WORDS 2
#define BY_USERS 3
typedef struct {
    u64 all, each;
    u32 group, count, kind;
} Parts;

typedef struct {
    /* Both tables. */
    u64 rows[2 * ENTRIES * ROW_WORDS];
    /* The slots that were read, without their sequences from unit 4 on: a packet and its body. */
    u8 slot[TEAMS][SLOT_BYTES];
    u64 arguments[ARGUMENTS_MAX / 8];
    u64 counted[SIGNALS_MAX];
    u64 buffer[BUFFERS_MAX], buffer_bytes[BUFFERS_MAX];
    Ring rings[RINGS_MAX];
    Out outs[OUTS_MAX];
    /* Layouts, once a task has asked for one. */
    u64 layouts[LAYOUTS_MAX];
    u32 has_layouts;
    Task task[TEAMS];
    u32 code[TEAMS], value[TEAMS];
    /* Whether a slot is whole, or its task has ended already (`ENDED_AT_ONCE`); whether its body lies in the arena; whether
     * the task is short; whether it needs no further looks (quick.h); its queue; whether it begins when all before it have
     * ended. */
    u8 whole[TEAMS], far[TEAMS], shrt[TEAMS], quick[TEAMS], queue[TEAMS], after[TEAMS], failed[TEAMS];
    u32 width[TEAMS];
    u32 count, buffers, put, largest;
    Watch watch;
    /* Of each ring's position: kept, because a division takes long. */
    u32 next[RINGS_MAX];
    /* Whether a ring's slots lie in this GPU's memory; how many looks at others have come back. */
    u8 near[RINGS_MAX];
    /* What was read last over the bus for that: nobody needs it. */
    u32 settled;
    /* Of each team: how many rings come before its own, and how many teams of that. */
    u8 share[TEAMS], place[TEAMS];
    u32 returned;
    /* Of each ring: cycles for which its warp rests when a task has ended (watch.h). Of each team: how the packet begins whose
     * task has ended in this round of looks, and in the one before; 0: none has. */
    u32 rest[RINGS_MAX];
    u64 mail[2][TEAMS];
    u64 changed, changing, tasks, refusals, idle;
    /* Rings in the host's list, as the last look at the tables has found it; those that the teams are spread over; how many
     * of them lie nearby. */
    u64 listed;
    u32 known, nears;
    /* Teams that look at each ring, if all get the same; rings whose looks others wait for, while some nearby are looked at. */
    u32 per, over_the_bus;
    /* When something has come last, as far as who looks at the clock has seen. */
    u64 until;
    u32 why;
    /* Blocks of this life. Of a task that they share (crew.h): its parts, the one that this block has, whether it was cut short,
     * what a function of a user's says, the rings that it puts into. The gate, as this block knows it. */
    u32 blocks, part, cut, said;
    Parts parts;
    Out *reachable;
    u64 gate;
#ifdef WORKER_LINKED
    gapless_task user;
#endif
} Shared;

#ifdef WORKER_LINKED
#include "../cuda/user_tasks.h"
#endif
#include "../cuda/looks.h"
#include "../cuda/kept.h"
#include "../cuda/taking.h"
#include "../cuda/quick.h"
#include "../cuda/crew.h"
#include "../cuda/long_tasks.h"
#include "../cuda/rounds.h"
#include "../cuda/watch.h"

/* Tells initiators what the worker does: those of rings from this one on. */
NOINLINE void say_from(const Shared &s, u32 first, u64 state) {
    u32 ring = THREAD - TELLER;
    if (ring >= first && ring < s.count) store_relaxed(s.rings[ring].head + RING_STATE, state);
}
INLINE void say_state(const Shared &s, u64 state) { say_from(s, 0, state); }

/* The teams are spread over all rings from now on. By all threads, which meet. */
NOINLINE void count_near(Shared &s) {
    u32 nears = __syncthreads_count(THREAD < s.count && s.near[THREAD] != 0);
    if (THREAD == 0) {
        s.known = s.count;
        s.nears = nears;
        s.over_the_bus = s.per > 1 && nears != 0 ? s.count - nears : 0;
    }
    BARRIER();
}

/* What a processor has stored into slots nearby, before it read a state that was not yet `LEAVING`, may still be on its way
 * over the bus. What is read over that comes behind it: when all threads have said so, and have met. */
NOINLINE void settle_near(Shared &s) {
    if (THREAD >= s.count || s.near[THREAD] == 0) return;
    u64 state = load_relaxed(s.rings[THREAD].head + RING_STATE);
    *(volatile u32 *)&s.settled = (u32)state;
}

/* The control block's address, this life's number among those of the image, what the control block begins with, and a
 * ring's next slot. */
typedef struct {
    u64 control, life, first[FIRST_WORDS], slot[SLOT_BYTES / 8];
} Start;
static_assert(CONTROL_RING_LIST + FIRST_RINGS * 8 * RING_WORDS <= 8 * FIRST_WORDS, "rings that a launch may give a slot of");
static_assert(CONTROL_OUTS < CONTROL_COUNTED && CONTROL_COUNTED + 8 * SIGNALS_MAX <= 8 * FIRST_WORDS,
              "words that are taken out of it");

extern "C" __global__ __launch_bounds__(WORKER_THREADS, 1) void xtq_worker(const __grid_constant__ Start start) {
    __shared__ Shared s;
    u32 team = THREAD / TEAM, unit = THREAD % TEAM;
    u64 control = start.control, changed = start.first[CONTROL_CHANGED / 8];
    u64 rings = start.first[CONTROL_RINGS / 8], outs = start.first[CONTROL_OUTS / 8];
    rings = rings > RINGS_MAX ? RINGS_MAX : rings;
    outs = outs > OUTS_MAX ? OUTS_MAX : outs;
    if (THREAD == 0) {
        u64 life = start.first[CONTROL_LIFE / 8], now = nanoseconds();
        s.count = (u32)rings;
        s.put = (u32)outs;
        s.tasks = start.first[CONTROL_TASKS / 8];
        s.refusals = start.first[CONTROL_REFUSALS / 8];
        s.idle = start.first[CONTROL_IDLE / 8];
        s.watch.orders = control + CONTROL_ORDERS;
        s.watch.deadline = life > ~0ull - now ? ~0ull : now + life;
        s.watch.looked = now;
        s.watch.stopped = 0;
        s.why = 0;
        s.blocks = BLOCKS;
        s.reachable = s.outs;
        s.changed = changed;
        s.returned = 0;
        s.has_layouts = 0;
    }
    if (!leads(s, start.life)) return help(s, start.life);
    /* Teams look at the next slots of rings, at most `per` of each; while nothing comes, at fewer: then a warp looks at a
     * ring, unless there are more rings than warps. */
    u32 per = spread_teams(s, (u32)rings);
    /* Tables as the last life left them, and the first look: on their way while all else is made ready. Each thread loads
     * something as its look, for a look in a branch would be waited for at its end. Rings that did not come with the
     * launch are looked at later. */
    Unit row = {kept.rows[2 * THREAD], kept.rows[2 * THREAD + 1]};
    Unit buffer = {kept.buffers[2 * (THREAD % BUFFERS_MAX)], kept.buffers[2 * (THREAD % BUFFERS_MAX) + 1]};
    u64 buffers = kept.count, largest = kept.largest;
    bool same = control == kept.control && changed == kept.changed;
    u32 ahead = team % per, ring = CONTROL_RING_LIST / 8 + team / per * RING_WORDS;
    bool looks = team / per < rings && ahead < AHEAD && ring + RING_WORDS <= FIRST_WORDS;
    u64 slots = looks ? start.first[ring + RING_SLOTS_AT] : 0, position = looks ? start.first[ring + RING_POSITION] : 0;
    u64 early_at = looks ? slot_at(slots, (u32)position + ahead, unit) : 0;
    /* A ring's next slot may have come with the launch; the one behind it is then looked at in the next round. */
    bool given = looks && team / per + 1 == start.first[CONTROL_FIRST / 8];
    Unit early = load_unit(looks && !given ? early_at : (u64)&kept);
    if (THREAD < TEAMS) {
        s.rest[THREAD] = 0;
        s.mail[0][THREAD] = s.mail[1][THREAD] = 0;
    }
    if (THREAD == 0) begin_life(s, start.life);
    if (THREAD < SIGNALS_MAX) s.counted[THREAD] = start.first[CONTROL_COUNTED / 8 + THREAD];
    /* What is read over the bus is read side by side. */
    if (THREAD >= 256 && THREAD < 256 + 4 * rings) {
        u32 i = (THREAD - 256) / 4, pair = THREAD % 4, word = CONTROL_RING_LIST / 8 + i * RING_WORDS + 2 * pair;
        Unit part;
        if (word + 1 < FIRST_WORDS) part = Unit{start.first[word], start.first[word + 1]};
        else part = load_unit(control + 8 * word);
        if (pair < 3) ((Unit *)&s.rings[i])[pair] = part;
        else s.near[i] = part.lo != 0;
    } else if (THREAD >= 96 && THREAD < 96 + outs) {
        u32 i = THREAD - 96;
        s.outs[i].list = control + CONTROL_OUT_LIST + i * 8 * RING_WORDS;
        s.outs[i].ring = load_ring(s.outs[i].list);
    }
    keep_rows(s, s.rows, row, buffer, buffers);
    if (THREAD == 0) s.largest = (u32)largest;
    same = __syncthreads_and(same);
    if (THREAD < rings) s.next[THREAD] = (u32)sequence_of(s.rings[THREAD].position);
    /* Without tables nothing is taken; who holds them up keeps this no longer than its life. */
    while (!same && !reload(s, control)) {
        bool stopped = THREAD == 0 && is_stopped(&s.watch);
        if (!__syncthreads_or(stopped)) continue;
        if (THREAD == 0) s.why = nanoseconds() < s.watch.deadline ? WHY_ABORTED : WHY_OLD;
        break;
    }
    /* The tables may have come with more rings. */
    if (s.count != rings) per = spread_teams(s, s.count);
    BARRIER();
    bool lives = s.why == 0;
    BARRIER();
    count_near(s);
    u32 number = THREAD % 32, ended = 0, round = 0;
    u32 due = 0;
    Spread spread = {0, NO_RING, false};
    bool leaving = false, worked = false;
    if (THREAD == LAST) s.until = nanoseconds();
    Orders orders = {};
    if (given) early = ahead == 0 ? Unit{start.slot[2 * unit], start.slot[2 * unit + 1]} : Unit{0, 0};
    while (lives) {
        Look mine = look_of(s, spread, team);
        Look lane = look_of(s, spread, number);
        Found has = {};
        bool at_once = false, called = false, watched = !spread.wide && s.per > 1 && s.nears == 0 && !leaving && round != 0;
        if (!spread.wide) due += s.over_the_bus;
        /* Looked at some rounds later: it takes the bus's time. Not in the first round, whose fence would wait for it. */
        if (THREAD == LAST && round % ROUNDS == 1) orders = load_orders(control);
        if (watched) {
            /* Who has looked and found something goes on with it; nobody else looks in this round. */
            bool looks = __any_sync(0xffffffffu, mine.active);
            u32 others = look_of(s, spread, (team - THREAD / TEAM + LAST / TEAM) % TEAMS).active ? 0 : 32;
            if (looks || THREAD / 32 == LAST / 32) {
                called = watch(s, control, 32 * s.count + others, team, unit, mine, worked, orders, early, early_at);
            }
            mine.active = mine.active && early_at != 0;
        }
        /* A warp's two teams go together, for what they ask of each other. */
        if (s.count != 0 && __any_sync(0xffffffffu, mine.active)) {
            u32 position = (u32)s.rings[mine.ring].position + mine.ahead;
            u64 at = slot_at(s.rings[mine.ring].slots, position, unit);
            bool is_narrow = !spread.wide && s.per > 1, near = is_narrow && s.near[mine.ring] != 0;
            Unit v = early;
            if (early_at != at) v = load_unit(at);
            u32 sequence = sequence_at(s, mine);
            if (near) {
                /* Until there is something, or the others' looks have come back. */
                for (u32 looks = 1; looks < LOOKS_MAX; looks++) {
                    bool there = unit == 0 && ((u32)v.lo & 0xffff) == sequence, enough = s.over_the_bus == 0 && looks == LOOKS;
                    enough = enough || (s.over_the_bus != 0 && *(volatile u32 *)&s.returned == due);
                    if (__any_sync(0xffffffffu, there || enough)) break;
                    v = load_unit(at);
                }
            } else if (s.over_the_bus != 0 && is_narrow) {
                /* Who says that depends on what was loaded, so that has come. */
                u32 there = __ballot_sync(0xffffffffu, ((u32)v.lo & 0xffff) == sequence);
                if (number == (there == ~0u ? 0 : __ffs(~there) - 1)) atomicAdd(&s.returned, 1u);
            }
            has = look_at(s, team, unit, v, sequence);
            has.whole = has.whole && mine.active;
            u32 have = __ballot_sync(0xffffffffu, has.whole);
            if (have != 0) {
                /* What was written before the packet can be seen by its task, far or not. */
                fence_acquire();
                if (has.whole) keep_slot(s, team, unit, v, has);
                __syncwarp();
                if (has.whole && has.quick) {
                    /* The ring's other team has found nothing. */
                    bool only = is_narrow && mine.ahead == 0 && have == 0xffffu << team % 2 * TEAM;
                    at_once = only && !leaving && end_at_once(s, team, unit, has, mine);
                    if (!at_once) take_quickly(s, team, unit, has);
                } else if (has.whole && unit == 0) {
                    take(s, team, s.rings[mine.ring]);
                }
            }
        }
        early_at = 0;
        if (unit == 0) s.whole[team] = at_once ? ENDED_AT_ONCE : has.whole;
        bool any = __syncthreads_or(has.whole), found = any, several = false;
        /* Only now: the fence of a sum that was there already would wait for this. */
        if (round == 0) {
            say_state(s, RUNNING);
            if (THREAD == TELLER) store_relaxed(control + CONTROL_STATE, RUNNING);
        }
        if (any) {
            /* Of each ring those that nothing is missing before; every warp finds the same. */
            u32 seen = s.whole[number];
            u32 all = __ballot_sync(0xffffffffu, seen == 1), over = __ballot_sync(0xffffffffu, seen == ENDED_AT_ONCE);
            bool next = (~(all >> (number - lane.ahead)) & ((2u << lane.ahead) - 1)) == 0;
            u32 mask = __ballot_sync(0xffffffffu, next && seen == 1);
            found = (mask | over) != 0;
            if (found && leaving) {
                say_state(s, RUNNING);
                if (THREAD == TELLER) store_relaxed(control + CONTROL_STATE, RUNNING);
                leaving = false;
            }
            if (mask != 0) {
                several = (mask & (mask - 1)) != 0;
                Spread then = spread;
                then.turn = within(spread.turn + 1, s.count);
                then.wide = several;
                then.busy = NO_RING;
                if (several) {
                    /* Several of one ring came: more may follow there. */
                    bool many = lane.ahead == 0 && lane.active && (mask >> number & 3 & ones(lane.of)) == 3;
                    u32 busy = __ballot_sync(0xffffffffu, many);
                    bool one = busy != 0 && (busy & (busy - 1)) == 0 && s.count > 1 && s.count <= BUSY_RINGS;
                    u32 ring = __shfl_sync(0xffffffffu, lane.ring, one ? __ffs(busy) - 1 : 0);
                    if (one) then.busy = ring;
                    /* What comes next is on its way while these run. */
                    Look look = look_of(s, then, team);
                    u32 taken = mask >> first_of(s, spread, look.ring) & ones(teams_of(s, spread, look.ring));
                    u32 position = (u32)s.rings[look.ring].position + __popc(taken) + look.ahead;
                    early_at = slot_at(s.rings[look.ring].slots, position, unit);
                    early = load_unit(early_at);
                }
                mask = run_round(s, control, mask, team, unit, lane);
                spread = then;
            }
            if (found) {
                /* Another warp each time, and none that looked lately: a fence waits for what its own warp has last sent
                 * over the bus. */
                if (THREAD / 32 == (ended + WARPS / 2) % WARPS) {
                    if (mask != 0) end_round(s, control, mask, lane);
                    if (over != 0) count_ended(s, control, over >> number & 1 ? ((const u64 *)s.slot[number])[0] : 0);
                }
                ended++;
            }
            /* So warps take turns with what they end themselves, too. All threads do the same, and from here to the next
             * look nothing is kept by team; `several` has loaded by the old ones, so there they stay. A warp keeps its pair
             * of teams, so `team % 2` is a thread's for ever; nobody may rely on `team == THREAD / TEAM`. */
            if (over != 0 && !several) {
                team = (team + TEAMS - 2) % TEAMS;
            }
        }
        if (leaving && !found) break;
        /* Several came: more may follow. Else few looks are quicker than many. */
        if (!found) spread.wide = false;
        /* There is one first round, however long the life. */
        if (++round == 0) round = ROUNDS;
        bool special = called;
        if (THREAD == LAST) {
            worked = worked || found;
            if (round % ROUNDS == ROUNDS / 2) {
                u32 asked = asked_for(s, orders, worked);
                s.why = asked % ASKED_TABLES;
                special = special || asked != 0;
            }
        }
        /* Where nothing came, nothing was changed that others read. */
        if (!any && !watched && round % ROUNDS != ROUNDS / 2) continue;
        if (!__syncthreads_or(special)) continue;
        u32 why = s.why;
        reload(s, control);
        if (s.count != s.known) {
            /* Rings were added. */
            u32 per = spread_teams(s, s.count);
            say_from(s, s.known, RUNNING);
            BARRIER();
            count_near(s);
            spread = Spread{0, NO_RING, false};
            early_at = 0;
        }
        if (why == 0) continue;
        if (why != WHY_IDLE) break;
        /* The host's side of this: write a packet, fence, read the state. One of us sees the other. */
        say_state(s, LEAVING);
        if (THREAD == TELLER) {
            store_relaxed(control + CONTROL_STATE, LEAVING);
            s.why = 0;
        }
        fence_sc();
        BARRIER();
        settle_near(s);
        BARRIER();
        /* Only looks that begin now count. */
        early_at = 0;
        leaving = true;
    }
    BARRIER();
    if (!leaving) {
        /* Sent away, or too old: it takes nothing more, so the last look is for the host, which starts the next one. */
        say_state(s, LEAVING);
        if (THREAD == TELLER) store_relaxed(control + CONTROL_STATE, LEAVING);
        fence_sc();
        BARRIER();
        settle_near(s);
        BARRIER();
        if (THREAD < s.count) {
            const Ring &ring = s.rings[THREAD];
            Unit first = load_unit(ring.slots + ring.position % SLOTS * SLOT_BYTES);
            if ((first.lo & 0xffff) == sequence_of(ring.position)) store_relaxed(ring.head + RING_WANTED, 1);
        }
        BARRIER();
    }
    if (THREAD == 0) end_life(s);
    /* A later life goes on where this one ends. */
    if (THREAD == 0) store_relaxed(control + CONTROL_WHY, leaving ? WHY_IDLE : s.why);
    if (THREAD < s.count) {
        u64 place = control + CONTROL_RING_LIST + THREAD * 8 * RING_WORDS;
        store_relaxed(place + 8 * RING_POSITION, s.rings[THREAD].position);
        store_release(s.rings[THREAD].head + RING_STATE, GONE);
    }
    fence_sys();
    BARRIER();
    if (THREAD == 0) {
        store_release(control + CONTROL_STATE, GONE);
    }
}
