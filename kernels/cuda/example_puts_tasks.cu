/* A kernel that puts tasks at the worker of another GPU: an example of gapless_tasks.h, to be linked with lanes.cu. */
#include "gapless_tasks.h"

/* A warp of another GPU puts a packet and its body `count` times, at most `window` of them unanswered (256 at most: later
 * puts overwrite what became of earlier ones), and writes down: the outcome that was none of a task that ended, or 0; tasks that ended; nanoseconds. */
extern "C" __global__ void example_initiate(gapless_lane *lane, const void *packet, const void *body,
                                            unsigned long long body_bytes, unsigned long long count,
                                            unsigned long long window, unsigned long long patience_ns,
                                            unsigned long long *out) {
    unsigned long long begin, end, put = 0, done = 0, first = 0;
    unsigned wrong = 0;
    if (window > 256) window = 256;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    while (done < count && wrong == 0) {
        if (put < count && put - done < window) {
            unsigned long long ticket = gapless_put_by_warp(lane, packet, body, (unsigned)body_bytes);
            if (ticket == 0 && put == done) wrong = 1;
            if (ticket != 0 && put == 0) first = ticket;
            if (ticket != 0) put++;
            if (ticket != 0 || wrong != 0) continue;
        }
        unsigned code = gapless_wait(lane, first + done, patience_ns, 0);
        code = __shfl_sync(0xffffffffu, code, 0);
        if (code == GAPLESS_ENDED) done++;
        else wrong = code;
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
    if (threadIdx.x != 0) return;
    out[0] = wrong;
    out[1] = done;
    out[2] = end - begin;
}
