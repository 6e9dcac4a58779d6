/* The command processor of XTQ on the target GPU: one block that stays, polls rings of packets, rewrites them and runs
 * what they ask for. LeBeane et al. 2016, §III. What lies where, and what the numbers mean: worker.h.
 *
 * A round: 32 teams of 16 threads read a slot each, a unit a thread, by one load, so a batch costs one way over the bus.
 * A team that finds its sequence number in all units has a whole packet. Packets of a ring are taken in order. The
 * teams rewrite theirs, then short tasks run side by side, a team each, as far as the widths of their queues allow;
 * long ones take the whole block, one after another. Warp 0 ends the round: one fence, then all statuses.
 *
 * What is read of a ring may be anything at any time: every length and offset is checked here.
 */
#include "prelude_cuda.h"
#include "worker.h"
#include "../cuda/system.h"
#include "../cuda/packets.h"
#include "../cuda/tasks.h"

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

/* The worker. */

typedef struct {
    u64 kernels[ENTRIES * ROW_WORDS];
    u64 queues[ENTRIES * ROW_WORDS];
    /* The slots that were read, without their sequences from unit 4 on: a packet and its body. */
    u8 slot[TEAMS][SLOT_BYTES];
    u64 arguments[ARGUMENTS_MAX / 8];
    u64 counted[SIGNALS_MAX];
    u64 buffer[BUFFERS_MAX], buffer_bytes[BUFFERS_MAX];
    Ring rings[RINGS_MAX];
    Ring outs[OUTS_MAX];
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
} Shared;

/* Which slot a team looks at: that of a ring, counted from the ring whose turn it is, and how far ahead. */
typedef struct {
    u32 ring, ahead;
} Look;
INLINE Look look_of(const Shared &s, u32 turn, u32 share, u32 ahead) {
    u32 ring = turn + share;
    return Look{ring < s.count ? ring : ring - s.count, ahead};
}
INLINE u32 wrapped(u32 sequence) { return sequence > SEQUENCES ? sequence - SEQUENCES : sequence; }
INLINE u32 sequence_at(const Shared &s, Look look) { return wrapped(s.next[look.ring] + look.ahead); }

/* What the host may change while the worker runs: tables, receive buffers. By all threads. The count of changes is odd
 * while the host writes, so it is a sequence lock over all of it, and each row has one of its own (xtq/src/tables.rs).
 * What did not hold still is not used: the old is kept, nothing is answered, and a later look tries again. Whether it
 * held still; all threads learn that. Words are loaded side by side, because each takes the bus's time. */
INLINE bool reload(Shared &s, u64 control) {
    if (THREAD == 0) s.changing = load_acquire(control + CONTROL_CHANGED);
    /* One has acquired the count, and all meet it: what was written before the count can be seen by all. */
    BARRIER();
    u64 changed = s.changing, from = 0, before = 0;
    bool moved = changed % 2 != 0, row = THREAD < 2 * ENTRIES;
    Unit word[ROW_WORDS / 2] = {};
    if (row) {
        from = THREAD < ENTRIES ? control + CONTROL_KERNELS + THREAD * 8 * ROW_WORDS
                                : control + CONTROL_QUEUES + (THREAD - ENTRIES) * 8 * ROW_WORDS;
        before = load_acquire(from);
        UNROLL for (u32 w = 0; w < ROW_WORDS / 2; w++) word[w] = load_unit(from + 16 * w);
    } else if (THREAD < 2 * ENTRIES + BUFFERS_MAX) {
        word[0] = load_unit(control + CONTROL_BUFFER_LIST + 16 * (THREAD - 2 * ENTRIES));
    } else if (THREAD == 2 * ENTRIES + BUFFERS_MAX) {
        word[0].lo = load_relaxed(control + CONTROL_BUFFERS);
    }
    /* Every thread's loads come before its look at the sequences. */
    if (THREAD <= 2 * ENTRIES + BUFFERS_MAX) {
        fence_sys();
        moved = moved || load_relaxed(control + CONTROL_CHANGED) != changed;
        if (row) moved = moved || before % 2 != 0 || load_relaxed(from) != before;
    }
    if (__syncthreads_or(moved)) return false;
    if (row) {
        u64 *to = THREAD < ENTRIES ? s.kernels + THREAD * ROW_WORDS : s.queues + (THREAD - ENTRIES) * ROW_WORDS;
        UNROLL for (u32 w = 0; w < ROW_WORDS / 2; w++) {
            to[2 * w] = word[w].lo;
            to[2 * w + 1] = word[w].hi;
        }
    } else if (THREAD < 2 * ENTRIES + BUFFERS_MAX) {
        s.buffer[THREAD - 2 * ENTRIES] = word[0].lo;
        s.buffer_bytes[THREAD - 2 * ENTRIES] = word[0].hi;
    } else if (THREAD == 2 * ENTRIES + BUFFERS_MAX) {
        s.buffers = word[0].lo > BUFFERS_MAX ? BUFFERS_MAX : (u32)word[0].lo;
    }
    BARRIER();
    if (THREAD == 0) {
        u64 largest = 0;
        for (u32 i = 0; i < s.buffers; i++) largest = s.buffer_bytes[i] > largest ? s.buffer_bytes[i] : largest;
        s.largest = largest > 0xffffffffull ? 0xffffffffu : (u32)largest;
        s.changed = changed;
        store_release(control + CONTROL_SEEN, changed);
    }
    BARRIER();
    return true;
}

/* Tells initiators what the worker does. */
INLINE void say_state(const Shared &s, u64 state) {
    if (THREAD < s.count) store_relaxed(s.rings[THREAD].head + RING_STATE, state);
}

/* Reads a slot by a team, into shared memory. Whether it is whole, which all of the team learn. */
INLINE bool read_slot(Shared &s, u32 team, u32 unit, u64 slots, u32 position, u32 sequence) {
    Unit v = load_unit(slots + (position % SLOTS * SLOT_BYTES + unit * UNIT_BYTES));
    u32 shift = (team & 1) * TEAM;
    bool mine = ((u32)v.lo & 0xffff) == sequence;
    u32 have = __ballot_sync(0xffffffffu, mine) >> shift;
    if ((have & 0xf) != 0xf) have = 0;
    u64 first = __shfl_sync(0xffffffffu, v.lo, shift), third = __shfl_sync(0xffffffffu, v.hi, shift + 2),
        fourth = __shfl_sync(0xffffffffu, v.lo, shift + 3);
    u32 arguments = part(first, 16, 8) == KERNEL_KIND ? part(third, 32, 16) : 0;
    u64 body = (u64)arguments + part(fourth, 32, 32);
    bool far = body > INLINE_BYTES;
    u32 units = PACKET_UNITS + (far ? 1 : ((u32)body + UNIT_BODY - 1) / UNIT_BODY);
    u32 need = (1u << units) - 1;
    if (have == 0 || (have & need) != need) return false;
    u8 *to = s.slot[team];
    if (unit < PACKET_UNITS) {
        ((u64 *)to)[2 * unit] = v.lo;
        ((u64 *)to)[2 * unit + 1] = v.hi;
    } else if (far) {
        if (unit == PACKET_UNITS) ((u64 *)to)[8] = v.hi;
    } else {
        u16 *at = (u16 *)(to + 64 + (unit - PACKET_UNITS) * UNIT_BODY);
        UNROLL for (u32 i = 0; i < 3; i++) at[i] = (u16)(v.lo >> (16 + 16 * i));
        UNROLL for (u32 i = 0; i < 4; i++) at[3 + i] = (u16)(v.hi >> (16 * i));
    }
    if (unit == 0) s.far[team] = far;
    return true;
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
    const u64 *row = s.kernels + index * ROW_WORDS, *queue_row = s.queues + which * ROW_WORDS;
    u32 code = rewrite(p, 0, s.kernels, s.queues, begin, data, first, &queue);
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
    s.shrt[team] = !far && t.items <= 64 && t.object < DO_PAUSE && few;
    s.queue[team] = (u8)which;
    s.after[team] = (p.word[0] >> 24 & BARRIER_FLAG) != 0;
    s.width[team] = part(queue_row[QUEUE_WIDTH], 0, 32);
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
    u32 failed = THREAD == 0 ? admits(t, s.put) : 0;
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
        Ring &out = s.outs[t.arguments[2]];
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
    /* What ran to its end has ended, whatever was ordered meanwhile. */
    cut = __syncthreads_or(cut);
    if (THREAD == 0 && cut) {
        s.code[team] = STATUS_FAILED;
        s.value[team] = FAILED_STOPPED;
    }
    BARRIER();
}

/* The packets of this round, of which team `i` has one if bit `i` is set, in their order. `mine` is what this thread's
 * team looks at, `lane` what the team looks at that has the number of its lane. */
INLINE void run_round(Shared &s, u64 control, u32 mask, u32 team, u32 unit, Look mine, Look lane, u32 per) {
    if (unit == 0 && (mask >> team & 1) != 0) take(s, team, s.rings[mine.ring]);
    BARRIER();
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
                u32 failed = admits(s.task[team], s.put);
                if (failed == 0) {
                    for (u64 i = unit; i < s.task[team].items; i += TEAM) run_item(&s.watch, s.task[team], i);
                } else if (unit == 0) {
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
    mask &= ~left;
    /* Warp 0 has met all others: its fence covers what they wrote. */
    if (THREAD < 32) {
        bool here = (mask >> THREAD & 1) != 0;
        u32 code = here ? s.code[THREAD] : 0;
        if (code == REWRITTEN) code = s.failed[THREAD] != 0 ? STATUS_FAILED : STATUS_ENDED;
        u64 head = ((const u64 *)s.slot[THREAD])[0];
        u64 signal = s.kernels[part(head, 32, 8) % ENTRIES * ROW_WORDS + ROW_SIGNAL] - 1;
        bool ended = here && code == STATUS_ENDED;
        bool counts = ended && (head >> 24 & REGISTERED_SIGNAL) != 0 && signal < SIGNALS_MAX;
        u32 refused = __ballot_sync(0xffffffffu, here && !ended);
        Ring &ring = s.rings[lane.ring];
        u32 slot = ((u32)ring.position + lane.ahead) % SLOTS;
        u64 value = (u64)s.value[THREAD] << 32, status = sequence_at(s, lane) | (u64)code << 16 | value;
        if (here && !ended) {
            u64 number = s.refusals + __popc(refused & ((1u << THREAD) - 1));
            u64 said = lane.ring | (u64)part(head, 32, 8) << 8 | (u64)part(head, 40, 8) << 16 | (u64)code << 24 | value;
            store_relaxed(control + CONTROL_REFUSED + number % REFUSED_MAX * 8, said);
        }
        fence_sys();
        if (here) store_relaxed(ring.status + slot * 8, status);
        if (counts) atomicAdd(&s.counted[signal], 1ull);
        __syncwarp();
        if (counts) store_relaxed(control + CONTROL_COUNTED + signal * 8, s.counted[signal]);
        if (THREAD == 0) {
            s.tasks += __popc(mask) - __popc(refused);
            store_relaxed(control + CONTROL_TASKS, s.tasks);
            if (refused != 0) {
                s.refusals += __popc(refused);
                store_release(control + CONTROL_REFUSALS, s.refusals);
            }
        }
        /* The first team of each ring counts those of all. */
        u32 own = mask >> THREAD & (per >= 32 ? 0xffffffffu : (1u << per) - 1);
        if (here && lane.ahead == 0) {
            ring.position += __popc(own);
            s.next[lane.ring] = wrapped(s.next[lane.ring] + __popc(own));
        }
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
    if (THREAD >= 64 && THREAD < 64 + RINGS_MAX) {
        u32 i = THREAD - 64;
        s.rings[i] = load_ring(control + CONTROL_RING_LIST + i * 8 * RING_WORDS);
        s.next[i] = (u32)sequence_of(s.rings[i].position);
    } else if (THREAD >= 96 && THREAD < 96 + OUTS_MAX) {
        u32 i = THREAD - 96;
        s.outs[i] = load_ring(control + CONTROL_OUT_LIST + i * 8 * RING_WORDS);
    }
    /* Without tables nothing is taken; who holds them up keeps this no longer than its life. */
    BARRIER();
    while (!reload(s, control)) {
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
    u32 per = s.count == 0 ? TEAMS : TEAMS / s.count, turn = 0, round = 0, number = THREAD % 32;
    u32 share = team / per, ahead = team % per, lane_share = number / per, lane_ahead = number % per;
    bool looks = share < s.count, leaving = false, wide = true;
    u64 until = nanoseconds();
    bool worked = false;
    while (lives) {
        Look mine = look_of(s, turn, looks ? share : 0, ahead);
        Look lane = look_of(s, turn, lane_share < s.count ? lane_share : 0, lane_ahead);
        bool whole = false;
        Unit orders = {s.changed, 0};
        if (THREAD == 0 && round % ROUNDS == 0) orders = load_unit(control + CONTROL_CHANGED);
        /* Both teams of a warp do, or neither. */
        if (s.count != 0 && (wide || __any_sync(0xffffffffu, ahead < AHEAD))) {
            u32 position = (u32)s.rings[mine.ring].position + ahead;
            whole = read_slot(s, team, unit, s.rings[mine.ring].slots, position, sequence_at(s, mine)) && looks;
        }
        /* What was written before the packet can be seen by its task, far or not. */
        if (whole) fence_sys();
        if (unit == 0) s.whole[team] = whole;
        bool found = __syncthreads_or(whole), several = false;
        if (found) {
            /* Of each ring those that nothing is missing before; every warp finds the same. */
            u32 all = __ballot_sync(0xffffffffu, s.whole[number] != 0);
            bool next = (~(all >> (number - lane_ahead)) & ((2u << lane_ahead) - 1)) == 0;
            u32 mask = __ballot_sync(0xffffffffu, next && s.whole[number] != 0);
            found = mask != 0;
            several = __popc(mask) > 1;
            if (found) {
                if (leaving) {
                    say_state(s, RUNNING);
                    if (THREAD == 0) store_relaxed(control + CONTROL_STATE, RUNNING);
                    leaving = false;
                }
                run_round(s, control, mask, team, unit, mine, lane, per);
            }
        }
        if (leaving && !found) break;
        /* Several came: more may follow. Else few looks are quicker than many. */
        wide = several;
        round++;
        turn = turn + 1 < s.count ? turn + 1 : 0;
        bool special = false;
        if (THREAD == 0) {
            worked = worked || found;
            u64 now = round % ROUNDS == 0 ? nanoseconds() : 0;
            if (now != 0 && worked) {
                until = now;
                worked = false;
            }
            if (orders.lo != s.changed && orders.lo % 2 == 0) special = true;
            if ((orders.hi & ORDER_ABORT) != 0) s.why = WHY_ABORTED;
            else if ((orders.hi & ORDER_LEAVE) != 0) s.why = WHY_TOLD;
            else if (now > s.watch.deadline) s.why = WHY_OLD;
            else if (now > until && now - until > s.idle) s.why = WHY_IDLE;
            special = special || s.why != 0;
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
