/* A kernel that stays, and runs collectives of few bytes for its host: those whose ranks find each other by words with
 * flags, which lie where they lie for a launch of any shape. So some ranks may launch a call, and others have it run
 * here. After words.h.
 *
 * What the host writes (lives.h) changes what it keeps of the arguments. A call waits for its peers as a launch does;
 * nobody waits for it but its host.
 */
#ifndef GAPLESS_CALLS_H
#define GAPLESS_CALLS_H
#include "../cuda/lives.h"

/* What is to be done. */
#define CALL_ALLREDUCE 0u
#define CALL_WORDS 1u

typedef struct {
    Start start;
    PeersArgs args;
} CallsStart;

extern "C" __global__ __launch_bounds__(PERSISTENT_THREADS, 1) void peers_calls(const __grid_constant__ CallsStart start) {
    __shared__ Life life;
    __shared__ PeersArgs args;
    const u32 words = sizeof(PeersArgs) / 8;
    if (THREAD < words) ((u64 *)&args)[THREAD] = ((const u64 *)&start.args)[THREAD];
    BARRIER();
    begin_life(start.start, life);
    while (next_command(life, (u64 *)&args, words)) {
        switch (life.head[0]) {
        case CALL_ALLREDUCE: flagged<Any>(args); break;
        case CALL_WORDS: swap_words(args); break;
        }
        end_command(life);
    }
}

#endif
