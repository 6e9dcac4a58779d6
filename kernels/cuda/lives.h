/* A life of a kernel of one block that stays, and runs what its host writes into a ring, in order. What lies where:
 * persistent.h.
 *
 * It leaves when nothing has come for `idle` nanoseconds, after `life`, and when a command says so. Then it says so,
 * and looks once more: the host writes a command, fences, and reads the state. One of the two sees the other.
 */
#ifndef GAPLESS_LIVES_H
#define GAPLESS_LIVES_H
#include "persistent.h"

/* Looks between two at the clock. */
#define LOOKS_AT_ONCE 8
/* Who says that a command has ended: of another warp than those which look for the next one, whose fence would wait for
 * their loads. */
#define TELLER (PERSISTENT_THREADS - 1)
#define HEAD_WORDS (PERSISTENT_HEAD_BYTES / 8)
#define BODY_WORDS (PERSISTENT_UNITS * PERSISTENT_UNIT_BODY / 8)

typedef struct {
    u64 control, idle, life;
} Start;

/* A life, in shared memory: registers are dear. */
typedef struct {
    /* The command: its head, then words. */
    union {
        u16 halves[PERSISTENT_UNITS * PERSISTENT_UNIT_BODY / 2];
        u8 head[PERSISTENT_HEAD_BYTES];
        u64 words[BODY_WORDS];
    };
    Start start;
    /* Commands that have ended with this one. */
    u64 number, begun;
    u32 found, leaving;
} Life;

INLINE void begin_life(const Start &start, Life &life) {
    if (THREAD == 0) {
        life.start = start;
        life.number = load_relaxed(start.control + PERSISTENT_ENDED);
        life.begun = nanoseconds();
        life.leaving = 0;
        life.head[0] = 0;
        store_relaxed(start.control + PERSISTENT_STATE, PERSISTENT_RUNNING);
    }
    BARRIER();
}

/* The last word of a life; behind it comes one more look. By the first warp. */
INLINE void say_away(Life &life) {
    if (THREAD == 0) {
        life.leaving = 1;
        store_relaxed(life.start.control + PERSISTENT_STATE, PERSISTENT_AWAY);
    }
    __syncwarp();
    fence_sc();
}

/* The next command, what was written before it, and its arguments as far as it has them: `words` words at `args`, in
 * shared memory. Whatever it says, nothing outside is touched. False: the life is over. By all threads, after all have
 * ended the last one. */
NOINLINE bool next_command(Life &life, u64 *args, u32 words) {
    if (THREAD < PERSISTENT_UNITS) {
        u64 next = life.number, since = nanoseconds(), sequence = 1 + next % PERSISTENT_SEQUENCES;
        u64 at = life.start.control + PERSISTENT_RING + THREAD * PERSISTENT_UNIT_BYTES;
        at += next % PERSISTENT_SLOTS * (PERSISTENT_UNITS * PERSISTENT_UNIT_BYTES);
        bool told = life.head[0] == PERSISTENT_LEAVE, leaving = life.leaving != 0;
        /* Who sees that gives it nothing more; what was given already it still runs. */
        if (!leaving && __any_sync(0xffffffffu, told || since - life.begun > life.start.life)) {
            leaving = true;
            say_away(life);
        }
        bool whole;
        u64 low, high;
        /* One look at a time: looks at one place go over the bus one after another, and a command waits for those before. */
        for (u32 looks = 1;; looks++) {
            load_sixteen(at, low, high);
            whole = __all_sync(0xffffffffu, (low & 0xffff) == sequence);
            if (whole || leaving) break;
            if (looks % LOOKS_AT_ONCE != 0) continue;
            u64 now = nanoseconds();
            bool over = now - since > life.start.idle || now - life.begun > life.start.life;
            if (!__any_sync(0xffffffffu, over)) continue;
            leaving = true;
            say_away(life);
        }
        if (whole) {
            /* What was written before the command can be seen by all threads behind the barrier. */
            fence_acquire();
            u16 *body = life.halves + THREAD * (PERSISTENT_UNIT_BODY / 2);
            UNROLL for (u32 i = 0; i < 3; i++) body[i] = (u16)(low >> 16 * (i + 1));
            UNROLL for (u32 i = 0; i < 4; i++) body[3 + i] = (u16)(high >> 16 * i);
        }
        if (THREAD == 0) {
            life.found = whole;
            life.number = next + 1;
        }
    }
    BARRIER();
    if (!life.found) return false;
    u32 segments = life.head[1], at = HEAD_WORDS;
    for (u32 i = 0; i < PERSISTENT_SEGMENTS_MAX && i < segments; i++) {
        u32 to = life.head[2 + 2 * i], length = life.head[3 + 2 * i];
        if (at + length > BODY_WORDS || to + length > words) break;
        if (THREAD < length) args[to + THREAD] = life.words[at + THREAD];
        at += length;
    }
    BARRIER();
    return true;
}

/* The command has ended, with all that any thread has written. By all threads. */
INLINE void end_command(const Life &life) {
    /* The next command may change it behind the barrier. */
    u64 number = life.number;
    BARRIER();
    if (THREAD == TELLER) {
        fence_sys();
        store_relaxed(life.start.control + PERSISTENT_ENDED, number);
    }
}

#endif
