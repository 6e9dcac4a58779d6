/* The command processor of XTQ on the target GPU: one block that stays, polls rings of packets, rewrites them and runs
 * what they ask for. LeBeane et al. 2016, §III. What lies where, and what the numbers mean: worker.h.
 *
 * A round: 32 teams of 16 threads read a slot each, a unit a thread, by one load, so a batch costs one way over the bus;
 * while nothing comes, two teams of each ring do. A team that finds its sequence number in all units has a whole packet,
 * and makes it a task at once (quick.h). Packets of a ring are taken in order. Short tasks run side by side, a team each,
 * as far as the widths of their queues allow; long ones take the whole block, one after another. A warp ends the round:
 * one fence, then all statuses.
 *
 * What is read of a ring may be anything at any time: every length and offset is checked here.
 */
#include "prelude_cuda.h"
#include "worker.h"
#include "../cuda/system.h"
#include "../cuda/packets.h"
#include "../cuda/tasks.h"
#include "../cuda/layout_tasks.h"
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
/* Units that a thread reads at a time of a long body. */
#define FLIGHT 4
/* Who looks at the clock and at the host's orders: of a warp that reads slots last. */
#define LAST (WORKER_THREADS - 1)

#ifndef WORKER_LINKED
/* The same packets through this as through xtq/src/rewrite.rs: 64 bytes each, and two places; out come the packet, the
 * first two arguments, the queue and the code, 96 bytes. */
extern "C" __global__ __launch_bounds__(256, 1) void xtq_rewrite(const u64 packets, const u64 places, const u64 tables,
                                                                 const u64 out, const u64 count) {
    const u64 *functions = (const u64 *)tables;
    for (u64 i = BLOCK * THREADS + THREAD; i < count; i += BLOCKS * THREADS) {
        Packet p;
        UNROLL for (u32 w = 0; w < 8; w++) p.word[w] = ((const u64 *)packets)[8 * i + w];
        u64 first[2] = {0, 0}, queue = 0;
        u64 arguments = ((const u64 *)places)[2 * i], payload = ((const u64 *)places)[2 * i + 1];
        const u64 *kernels = functions + ENTRIES * ROW_WORDS, *queues = kernels + ENTRIES * ROW_WORDS;
        u32 code = rewrite(p, functions, kernels, queues, arguments, payload, first, &queue);
        u64 *to = (u64 *)out + 12 * i;
        UNROLL for (u32 w = 0; w < 8; w++) to[w] = p.word[w];
        to[8] = first[0];
        to[9] = first[1];
        to[10] = queue;
        to[11] = code;
    }
}

/* Initiators on a GPU: one team puts the same packet `count` times, at most `window` of them unanswered, and writes
 * down how many nanoseconds that took. Words of `out`: what went wrong, tasks that ended, nanoseconds of all, then, if
 * the window is 1, of each. */
extern "C" __global__ __launch_bounds__(32, 1) void xtq_initiate(const u64 list, const u64 packet, const u64 body_bytes,
                                                                 const u64 count, const u64 window, const u64 patience,
                                                                 const u64 out) {
    if (THREAD >= TEAM) return;
    u32 mask = 0xffff;
    Ring ring = load_ring(list);
    Unit unit = unit_of(THREAD, (const u8 *)packet, (const u8 *)packet + 64, (u32)body_bytes);
    u64 begin = ring.position, done = 0, wrong = 0, start = nanoseconds(), since = start;
    while (done < count && wrong == 0) {
        if (ring.position - begin < count && ring.position - begin - done < window) {
            since = window == 1 ? nanoseconds() : since;
            put_unit(ring, THREAD, unit, (u32)body_bytes);
            ring.position++;
            continue;
        }
        u64 oldest = begin + done, status = load_acquire(ring.status + oldest % SLOTS * 8), now = nanoseconds();
        status = __shfl_sync(mask, status, 0);
        now = __shfl_sync(mask, now, 0);
        if ((status & 0xffff) == sequence_of(oldest)) {
            if ((status >> 16 & 0xff) != STATUS_ENDED) wrong = status;
            if (THREAD == 0 && window == 1) ((u64 *)out)[3 + done] = now - since;
            done++;
            since = now;
        } else if (now - since > patience) {
            wrong = 1;
        }
    }
    if (THREAD == 0) {
        ((u64 *)out)[0] = wrong;
        ((u64 *)out)[1] = done;
        ((u64 *)out)[2] = nanoseconds() - start;
        ((u64 *)list)[RING_POSITION] = ring.position;
    }
}

#endif

/* The worker. */

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
    u64 layouts[LAYOUTS_MAX];
    Task task[TEAMS];
    u32 code[TEAMS], value[TEAMS];
    /* Whether a slot is whole; whether its body lies in the arena; whether the task is short; its queue; whether it
     * begins when all before it have ended. */
    u8 whole[TEAMS], far[TEAMS], shrt[TEAMS], queue[TEAMS], after[TEAMS], failed[TEAMS];
    u32 width[TEAMS];
    u32 count, buffers, put, largest;
    Watch watch;
    /* Of each ring's position: kept, because a division takes long. */
    u32 next[RINGS_MAX];
    u64 changed, changing, tasks, refusals, idle;
    u32 why;
#ifdef WORKER_LINKED
    gapless_task user;
    u32 said;
#endif
} Shared;

#ifdef WORKER_LINKED
#include "../cuda/user_tasks.h"
#endif

/* Which slot a team looks at: of which ring, and how far ahead; by how many teams that ring is looked at together. Those
 * of a ring are neighbours. What is not `active` is not looked at. */
typedef struct {
    u32 ring, ahead, of;
    bool active;
} Look;

/* How the teams are spread over the rings. */
typedef struct {
    /* Of each ring, if all get the same. */
    u32 per;
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
INLINE Look look_of(const Spread &p, u32 count, u32 team, u32 share, u32 place) {
    if (p.wide && p.busy != NO_RING) {
        u32 most = TEAMS - AHEAD * (count - 1);
        if (team < most) return Look{p.busy, team, most, true};
        u32 other = team - most;
        return Look{within(p.busy + 1 + other / AHEAD, count), other % AHEAD, AHEAD, true};
    }
    bool is_one = share < count;
    u32 ring = is_one ? within(p.turn + share, count) : p.turn;
    return Look{ring, place, p.per, is_one && (p.wide || place < AHEAD)};
}
/* The first of the teams that look at a ring, and how many teams that may be. */
INLINE u32 first_of(const Spread &p, u32 count, u32 ring) {
    if (!p.wide || p.busy == NO_RING) return within(ring + count - p.turn, count) * p.per;
    u32 behind = within(ring + count - p.busy, count);
    return behind == 0 ? 0 : TEAMS - AHEAD * (count - behind);
}
INLINE u32 teams_of(const Spread &p, u32 count, u32 ring) {
    if (!p.wide || p.busy == NO_RING) return p.per;
    return ring == p.busy ? TEAMS - AHEAD * (count - 1) : AHEAD;
}
INLINE u32 wrapped(u32 sequence) { return sequence > SEQUENCES ? sequence - SEQUENCES : sequence; }
INLINE u32 sequence_at(const Shared &s, Look look) { return wrapped(s.next[look.ring] + look.ahead); }

/* Tables and receive buffers as the last life of a control block had them: while nothing changes, a new one reads nothing
 * of the host's. */
typedef struct {
    u64 control, changed, rows[2 * ENTRIES * ROW_WORDS], buffers[2 * BUFFERS_MAX], count;
} Kept;
static __device__ Kept kept;
static_assert(WORKER_THREADS == ENTRIES * ROW_WORDS, "a unit a thread");
static_assert(CONTROL_QUEUES == CONTROL_KERNELS + 8 * ENTRIES * ROW_WORDS, "both tables are one stretch");

/* The rows, a unit a thread: both tables lie behind one another, there as here. */
INLINE void keep_rows(Shared &s, u64 *rows, Unit row, Unit buffer, u64 count) {
    rows[2 * THREAD] = row.lo;
    rows[2 * THREAD + 1] = row.hi;
    if (THREAD < BUFFERS_MAX) {
        s.buffer[THREAD] = buffer.lo;
        s.buffer_bytes[THREAD] = buffer.hi;
    } else if (THREAD == BUFFERS_MAX) {
        s.buffers = count > BUFFERS_MAX ? BUFFERS_MAX : (u32)count;
    }
}
INLINE void sum_up(Shared &s, u64 control, u64 changed) {
    BARRIER();
    if (THREAD == 0) {
        u64 largest = 0;
        for (u32 i = 0; i < s.buffers; i++) largest = s.buffer_bytes[i] > largest ? s.buffer_bytes[i] : largest;
        s.largest = largest > 0xffffffffull ? 0xffffffffu : (u32)largest;
        s.changed = changed;
        store_release(control + CONTROL_SEEN, changed);
    }
    BARRIER();
}

/* What the host may change while the worker runs: tables, receive buffers. By all threads. The count of changes is odd
 * while the host writes, so it is a sequence lock over all of it. What did not hold still is not used: the old is kept,
 * nothing is answered, and a later look tries again. Whether it held still; all threads learn that. Words are loaded side
 * by side, each once, because each takes the bus's time. */
INLINE bool reload(Shared &s, u64 control) {
    if (THREAD == 0) s.changing = load_acquire(control + CONTROL_CHANGED);
    /* One has acquired the count, and all meet it: what was written before the count can be seen by all. */
    BARRIER();
    u64 changed = s.changing, count = 0;
    Unit row = load_unit(control + CONTROL_KERNELS + 16 * THREAD), buffer = {0, 0};
    if (THREAD < BUFFERS_MAX) buffer = load_unit(control + CONTROL_BUFFER_LIST + 16 * THREAD);
    if (THREAD == BUFFERS_MAX) count = load_relaxed(control + CONTROL_BUFFERS);
    /* Every thread's loads come before its look at the count. */
    fence_sys();
    bool moved = changed % 2 != 0 || load_relaxed(control + CONTROL_CHANGED) != changed;
    moved = moved || (THREAD % (ROW_WORDS / 2) == 0 && row.lo % 2 != 0);
    if (__syncthreads_or(moved)) return false;
    keep_rows(s, s.rows, row, buffer, count);
    kept.rows[2 * THREAD] = row.lo;
    kept.rows[2 * THREAD + 1] = row.hi;
    if (THREAD < BUFFERS_MAX) {
        kept.buffers[2 * THREAD] = buffer.lo;
        kept.buffers[2 * THREAD + 1] = buffer.hi;
    }
    if (THREAD == BUFFERS_MAX) kept.count = count;
    if (THREAD == 0) {
        kept.control = control;
        kept.changed = changed;
    }
    sum_up(s, control, changed);
    return true;
}

/* Tells initiators what the worker does. */
INLINE void say_state(const Shared &s, u64 state) {
    if (THREAD < s.count) store_relaxed(s.rings[THREAD].head + RING_STATE, state);
}

#include "../cuda/quick.h"

INLINE u64 slot_at(u64 slots, u32 position, u32 unit) {
    return slots + (position % SLOTS * SLOT_BYTES + unit * UNIT_BYTES);
}

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
INLINE void take(Shared &s, u32 team, const Ring &ring) {
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

/* The packets of this round, of which team `i` has one if bit `i` is set, in their order: `mine` is what this
 * thread's team has found, `lane` what the team looks at that has the number of its lane. Gives those that were done. */
INLINE u32 run_round(Shared &s, u64 control, u32 mask, u32 team, u32 unit, const Found &mine, Look lane) {
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
                u32 failed = run_short(s, team, unit, mine);
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
    u64 signal = s.rows[part(head, 32, 8) % ENTRIES * ROW_WORDS + ROW_SIGNAL] - 1;
    bool counts = ended && (head >> 24 & REGISTERED_SIGNAL) != 0 && signal < SIGNALS_MAX;
    if (counts) atomicAdd(&s.counted[signal], 1ull);
    __syncwarp();
    if (counts) store_relaxed(control + CONTROL_COUNTED + signal * 8, s.counted[signal]);
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

extern "C" __global__ __launch_bounds__(WORKER_THREADS, 1) void xtq_worker(const u64 control) {
    __shared__ Shared s;
    u32 team = THREAD / TEAM, unit = THREAD % TEAM;
    /* All of it side by side: a load takes the bus's time. */
    if (THREAD == 0) {
        u64 rings = load_relaxed(control + CONTROL_RINGS), outs = load_relaxed(control + CONTROL_OUTS);
        u64 tasks = load_relaxed(control + CONTROL_TASKS), refusals = load_relaxed(control + CONTROL_REFUSALS);
        u64 idle = load_relaxed(control + CONTROL_IDLE), life = load_relaxed(control + CONTROL_LIFE);
        u64 now = nanoseconds();
        s.count = rings > RINGS_MAX ? RINGS_MAX : (u32)rings;
        s.put = outs > OUTS_MAX ? OUTS_MAX : (u32)outs;
        s.tasks = tasks;
        s.refusals = refusals;
        s.idle = idle;
        s.watch.orders = control + CONTROL_ORDERS;
        s.watch.deadline = life > ~0ull - now ? ~0ull : now + life;
        s.watch.looked = now;
        s.watch.stopped = 0;
        s.why = 0;
        s.changed = 0;
    }
    if (THREAD < SIGNALS_MAX) s.counted[THREAD] = load_relaxed(control + CONTROL_COUNTED + 8 * THREAD);
    u64 changed = THREAD == 0 ? load_acquire(control + CONTROL_CHANGED) : 0;
    if (THREAD >= 256 && THREAD < 256 + 4 * RINGS_MAX) {
        u32 i = (THREAD - 256) / 4, pair = THREAD % 4;
        Unit part = load_unit(control + CONTROL_RING_LIST + i * 8 * RING_WORDS + 16 * pair);
        if (pair < 3) ((Unit *)&s.rings[i])[pair] = part;
    } else if (THREAD >= 96 && THREAD < 96 + OUTS_MAX) {
        u32 i = THREAD - 96;
        s.outs[i].list = control + CONTROL_OUT_LIST + i * 8 * RING_WORDS;
        s.outs[i].ring = load_ring(s.outs[i].list);
    } else if (THREAD >= 128 && THREAD < 128 + LAYOUTS_MAX) {
        s.layouts[THREAD - 128] = load_relaxed(control + CONTROL_LAYOUT_LIST + 8 * (THREAD - 128));
    }
    keep_rows(s, s.rows, Unit{kept.rows[2 * THREAD], kept.rows[2 * THREAD + 1]},
              Unit{kept.buffers[2 * (THREAD % BUFFERS_MAX)], kept.buffers[2 * (THREAD % BUFFERS_MAX) + 1]}, kept.count);
    bool same = __syncthreads_and(THREAD != 0 || (control == kept.control && changed == kept.changed));
    if (THREAD < RINGS_MAX) {
        s.next[THREAD] = (u32)sequence_of(s.rings[THREAD].position);
    }
    if (same) sum_up(s, control, kept.changed);
    /* Without tables nothing is taken; who holds them up keeps this no longer than its life. */
    while (!same && !reload(s, control)) {
        bool stopped = THREAD == 0 && is_stopped(&s.watch);
        if (!__syncthreads_or(stopped)) continue;
        if (THREAD == 0) s.why = nanoseconds() < s.watch.deadline ? WHY_ABORTED : WHY_OLD;
        break;
    }
    BARRIER();
    bool lives = s.why == 0;
    BARRIER();
    if (lives) {
        say_state(s, RUNNING);
        if (THREAD == 0) store_relaxed(control + CONTROL_STATE, RUNNING);
    }
    /* Teams look at the next slots of rings, at most `per` of each; while nothing comes, at fewer. */
    u32 per = s.count == 0 ? TEAMS : TEAMS / s.count, number = THREAD % 32, ended = 0, round = 0;
    Spread spread = {per, 0, NO_RING, false};
    u32 share = team / per, place = team % per, lane_share = number / per, lane_place = number % per;
    bool leaving = false, worked = false;
    u64 until = nanoseconds();
    Unit orders = {0, 0}, early = {0, 0};
    u64 early_at = 0;
    while (lives) {
        Look mine = look_of(spread, s.count, team, share, place);
        Look lane = look_of(spread, s.count, number, lane_share, lane_place);
        Found has = {};
        /* Looked at half a turn later: it takes the bus's time. */
        if (THREAD == LAST && round % ROUNDS == 0) orders = load_unit(control + CONTROL_CHANGED);
        /* A warp's two teams go together, for what they ask of each other. */
        if (s.count != 0 && __any_sync(0xffffffffu, mine.active)) {
            u32 position = (u32)s.rings[mine.ring].position + mine.ahead;
            u64 at = slot_at(s.rings[mine.ring].slots, position, unit);
            Unit v = early;
            if (early_at != at) v = load_unit(at);
            has = look_at(s, team, unit, v, sequence_at(s, mine));
            has.whole = has.whole && mine.active;
            if (__any_sync(0xffffffffu, has.whole)) {
                /* What was written before the packet can be seen by its task, far or not. */
                fence_acquire();
                if (has.whole) keep_slot(s, team, unit, v, has);
                __syncwarp();
                if (has.whole && has.quick) take_quickly(s, team, unit, has);
                else if (has.whole && unit == 0) take(s, team, s.rings[mine.ring]);
            }
        }
        early_at = 0;
        if (unit == 0) s.whole[team] = has.whole;
        bool found = __syncthreads_or(has.whole), several = false;
        if (found) {
            /* Of each ring those that nothing is missing before; every warp finds the same. */
            u32 all = __ballot_sync(0xffffffffu, s.whole[number] != 0);
            bool next = (~(all >> (number - lane.ahead)) & ((2u << lane.ahead) - 1)) == 0;
            u32 mask = __ballot_sync(0xffffffffu, next && s.whole[number] != 0);
            found = mask != 0;
            if (found) {
                if (leaving) {
                    say_state(s, RUNNING);
                    if (THREAD == 0) store_relaxed(control + CONTROL_STATE, RUNNING);
                    leaving = false;
                }
                several = (mask & (mask - 1)) != 0;
                u32 first = __ffs(mask) - 1;
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
                    Look look = look_of(then, s.count, team, share, place);
                    u32 taken = mask >> first_of(spread, s.count, look.ring) & ones(teams_of(spread, s.count, look.ring));
                    u32 position = (u32)s.rings[look.ring].position + __popc(taken) + look.ahead;
                    early_at = slot_at(s.rings[look.ring].slots, position, unit);
                    early = load_unit(early_at);
                }
                if (several || s.watch.stopped != 0 || !s.shrt[first] || s.code[first] != REWRITTEN) {
                    mask = run_round(s, control, mask, team, unit, has, lane);
                } else {
                    if (team == first) {
                        u32 failed = run_short(s, team, unit, has);
                        if (failed != 0 && unit == 0) {
                            s.value[team] = failed;
                            s.failed[team] = 1;
                        }
                    }
                    BARRIER();
                }
                /* Another warp each time: a fence waits for what its own warp has last sent over the bus. */
                if (THREAD / 32 == ended % (WORKER_THREADS / 32)) end_round(s, control, mask, lane);
                ended++;
                spread = then;
            }
        }
        if (leaving && !found) break;
        /* Several came: more may follow. Else few looks are quicker than many. */
        if (!found) spread.wide = false;
        round++;
        bool special = false;
        if (THREAD == LAST) {
            worked = worked || found;
            u64 now = 0;
            if (round % ROUNDS == ROUNDS / 2) {
                now = nanoseconds();
                if (worked) {
                    until = now;
                    worked = false;
                }
                special = orders.lo != s.changed && orders.lo % 2 == 0;
                if ((orders.hi & ORDER_ABORT) != 0) s.why = WHY_ABORTED;
                else if ((orders.hi & ORDER_LEAVE) != 0) s.why = WHY_TOLD;
                else if (now > s.watch.deadline) s.why = WHY_OLD;
                else if (now > until && now - until > s.idle) s.why = WHY_IDLE;
                special = special || s.why != 0;
            }
        }
        if (!__syncthreads_or(special)) continue;
        u32 why = s.why;
        reload(s, control);
        if (why == 0) continue;
        if (why != WHY_IDLE) break;
        /* The host's side of this: write a packet, fence, read the state. One of us sees the other. */
        say_state(s, LEAVING);
        if (THREAD == 0) {
            store_relaxed(control + CONTROL_STATE, LEAVING);
            s.why = 0;
        }
        fence_sc();
        BARRIER();
        /* Only looks that begin now count. */
        early_at = 0;
        leaving = true;
    }
    BARRIER();
    if (!leaving) {
        /* Sent away, or too old: it takes nothing more, so the last look is for the host, which starts the next one. */
        say_state(s, LEAVING);
        if (THREAD == 0) store_relaxed(control + CONTROL_STATE, LEAVING);
        fence_sc();
        BARRIER();
        if (THREAD < s.count) {
            const Ring &ring = s.rings[THREAD];
            Unit first = load_unit(ring.slots + ring.position % SLOTS * SLOT_BYTES);
            if ((first.lo & 0xffff) == sequence_of(ring.position)) store_relaxed(ring.head + RING_WANTED, 1);
        }
        BARRIER();
    }
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
