/* Short copies from layout to layout without a launch: one block that stays, and runs what its host writes into a ring, in
 * order. What lies where: copy_worker.h.
 *
 * It waits for its own host alone, so it can keep nobody's kernel from ending for longer than its life. It leaves when
 * nothing has come for `idle` nanoseconds, after `life`, and when a command says so. Then it says so, and looks once more: the
 * host writes a command, fences, and reads the state. One of the two sees the other.
 */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"
#include "copy_worker.h"
#include "../cuda/system.h"

/* Looks between two at the clock. */
#define LOOKS 8
/* Words of a thread that are loaded before the first is stored. */
#define TOGETHER (sizeof(WORD) == 16 ? 2 : 4)
/* Who says that a command has ended: of another warp than those which look for the next one, whose fence would wait for
 * their loads. */
#define TELLER (COPY_THREADS - 1)

typedef struct {
    u64 control, idle, life;
} Start;

typedef struct {
    TransferArgs args;
    /* The command: its head, then words. */
    union {
        u16 halves[COPY_UNITS * COPY_UNIT_BODY / 2];
        u8 head[COPY_HEAD_BYTES];
        u64 words[COPY_UNITS * COPY_UNIT_BODY / 8];
    } command;
    u32 found;
} Shared;

#define HEAD_WORDS (COPY_HEAD_BYTES / 8)
#define BODY_WORDS (COPY_UNITS * COPY_UNIT_BODY / 8)

/* The words of TransferArgs that the command has. Whatever it says, nothing outside either is touched. */
INLINE void take_apart(Shared &s) {
    u32 segments = s.command.head[1], at = HEAD_WORDS + COPY_POINTERS;
    for (u32 i = 0; i < COPY_SEGMENTS_MAX && i < segments; i++) {
        u32 to = s.command.head[2 + 2 * i], length = s.command.head[3 + 2 * i];
        if (at + length > BODY_WORDS || to + length > sizeof(TransferArgs) / 8) return;
        if (THREAD < length) ((u64 *)&s.args)[to + THREAD] = s.command.words[at + THREAD];
        at += length;
    }
}

template <typename WORD> NOINLINE void move(const Shared &s) {
    const TransferArgs &a = s.args;
    const u64 *pointers = s.command.words + HEAD_WORDS;
    const u8 *source = (const u8 *)pointers[0] + a.span.typed, *plan = (const u8 *)pointers[2];
    u8 *target = (u8 *)pointers[1] + a.span.packed;
    const u8 *to_plan = (const u8 *)pointers[3];
    const u32 w = sizeof(WORD), n = a.span.words;
    u32 head = a.span.edges & 255, tail = a.span.edges >> 8 & 255;
    if (THREAD < head + tail) {
        u32 after = THREAD >= head, word = after ? n : 0u - 1, byte = after ? THREAD - head : w - head + THREAD;
        const u8 *from = source + side_at(&a.from, plan, a.from.first + word, w) + byte;
        write_word(target + side_at(&a.to, to_plan, a.to.first + word, w) + byte, read_word(from));
    }
    ROLLED for (u32 begin = 0; begin < n; begin += COPY_THREADS * TOGETHER) {
        WORD value[TOGETHER];
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
            u32 k = begin + THREAD + i * COPY_THREADS;
            if (k < n) value[i] = read_word((const WORD *)(source + side_at(&a.from, plan, a.from.first + k, w)));
        }
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
            u32 k = begin + THREAD + i * COPY_THREADS;
            if (k < n) write_word((WORD *)(target + side_at(&a.to, to_plan, a.to.first + k, w)), value[i]);
        }
    }
}

/* The last word of a life; behind it comes one more look. */
INLINE void say_away(const Start &start) {
    if (THREAD == 0) store_relaxed(start.control + COPY_STATE, COPY_AWAY);
    __syncwarp();
    fence_sc();
}

extern "C" __global__ __launch_bounds__(COPY_THREADS, 2) void copy_worker(const __grid_constant__ Start start) {
    __shared__ Shared s;
    u64 next = load_relaxed(start.control + COPY_ENDED), begun = nanoseconds();
    /* Of the first warp, which alone decides. */
    bool leaving = false, told = false;
    if (THREAD == 0) store_relaxed(start.control + COPY_STATE, COPY_RUNNING);
    for (;;) {
        if (THREAD < COPY_UNITS) {
            u64 at = start.control + COPY_RING + next % COPY_SLOTS * (COPY_UNITS * COPY_UNIT_BYTES);
            at += THREAD * COPY_UNIT_BYTES;
            u64 sequence = 1 + next % COPY_SEQUENCES, since = nanoseconds();
            /* Who sees that gives it nothing more; what was given already it still runs. */
            if (!leaving && __any_sync(0xffffffffu, told || since - begun > start.life)) {
                leaving = true;
                say_away(start);
            }
            bool whole;
            u64 low, high;
            /* One look at a time: looks at one place go over the bus one after another, and a command waits for those before. */
            for (u32 looks = 1;; looks++) {
                load_sixteen(at, low, high);
                whole = __all_sync(0xffffffffu, (low & 0xffff) == sequence);
                if (whole || leaving) break;
                if (looks % LOOKS != 0) continue;
                u64 now = nanoseconds();
                bool over = now - since > start.idle || now - begun > start.life;
                if (!__any_sync(0xffffffffu, over)) continue;
                leaving = true;
                say_away(start);
            }
            if (whole) {
                /* What was written before the command can be seen by all threads behind the barrier. */
                fence_acquire();
                u16 *body = s.command.halves + THREAD * (COPY_UNIT_BODY / 2);
                UNROLL for (u32 i = 0; i < 3; i++) body[i] = (u16)(low >> 16 * (i + 1));
                UNROLL for (u32 i = 0; i < 4; i++) body[3 + i] = (u16)(high >> 16 * i);
            }
            if (THREAD == 0) s.found = whole;
        }
        BARRIER();
        if (!s.found) return;
        take_apart(s);
        BARRIER();
        u32 width = s.command.head[0];
        switch (width) {
        case 0: move<u8>(s); break;
        case 1: move<u16>(s); break;
        case 2: move<u32>(s); break;
        case 3: move<u64>(s); break;
        case 4: move<u128>(s); break;
        default: told = width == COPY_LEAVE; break;
        }
        BARRIER();
        next++;
        if (THREAD == TELLER) {
            fence_sys();
            store_relaxed(start.control + COPY_ENDED, next);
        }
    }
}
