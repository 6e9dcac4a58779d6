/* Short copies from layout to layout without a launch, by a kernel that stays (lives.h). It waits for its own host
 * alone, so it can keep nobody's kernel from ending for longer than its life.
 *
 * What is to be done is the logarithm of a word's bytes.
 */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"
#include "../cuda/system.h"
#include "../cuda/lives.h"

/* Words of a thread that are loaded before the first is stored. */
#define TOGETHER (sizeof(WORD) == 16 ? 2 : 4)
#define COPY_THREADS PERSISTENT_THREADS

typedef struct {
    /* The addresses of the source, the destination, and both plans. */
    u64 pointers[4];
    TransferArgs args;
} Copy;

template <typename WORD> NOINLINE void move(const Copy &copy) {
    const TransferArgs &a = copy.args;
    const u64 *pointers = copy.pointers;
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

extern "C" __global__ __launch_bounds__(COPY_THREADS, 2) void copy_worker(const __grid_constant__ Start start) {
    __shared__ Life life;
    __shared__ Copy copy;
    begin_life(start, life);
    while (next_command(life, (u64 *)&copy, sizeof(Copy) / 8)) {
        switch (life.head[0]) {
        case 0: move<u8>(copy); break;
        case 1: move<u16>(copy); break;
        case 2: move<u32>(copy); break;
        case 3: move<u64>(copy); break;
        case 4: move<u128>(copy); break;
        }
        end_command(life);
    }
}
