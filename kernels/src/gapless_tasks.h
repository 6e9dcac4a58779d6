/* For device code of users that has to do with tasks of other processes (docs/xtq.md, Functions of users). CUDA C++; it
 * includes nothing, and nothing of it is inlined from elsewhere, so it can be given to nvcc or NVRTC as it is. Compile
 * with relocatable device code (`-rdc=true`), to PTX or to a cubin of the GPU's architecture.
 *
 * 1. A function that a worker runs is
 *
 *        extern "C" __device__ unsigned NAME(const gapless_task *task, unsigned long long item)
 *
 *    It is called once for each work-item of the packet's grid, and answers 0, or a number of its own, below 2^31, by
 *    which the task fails. A group of the grid (at most 512 work-items) runs by as many threads of one block. Groups
 *    follow each other in order if the worker has one block; several run them side by side, in any order. So:
 *
 *    - Work-items of a group may meet (`gapless_meet`) and share static `__shared__` memory: at most
 *      GAPLESS_SHARED_BYTES of all linked functions together. What is in it when a group begins means nothing. Work-items
 *      of different groups cannot meet. `__syncthreads` and named barriers are not for these functions.
 *    - It has at most 128 registers a thread: compile with `-maxrregcount=128` if it takes more, or with PTX, of which
 *      the linker takes care.
 *    - It stays inside buffer and payload, does not write the payload or the arguments, and returns in any case: what
 *      takes long asks `gapless_is_stopped` now and then, and returns.
 *    - It launches nothing, and does not wait for other tasks: they may come after it.
 *
 * 2. Kernels of users, on a GPU of another process, put tasks by `gapless_put` and wait for them. They are linked with
 *    the library `gapless_kernels::worker::LANES`. Functions of a worker put on by the same calls (`gapless_out`).
 */
#ifndef GAPLESS_TASKS_OF_USERS_H
#define GAPLESS_TASKS_OF_USERS_H

#define GAPLESS_SHARED_BYTES 16384
#define GAPLESS_PACKET_BYTES 64
/* The longest body (arguments and payload) of a put from a GPU. */
#define GAPLESS_BODY_BYTES 168

/* A task. The first two arguments are the addresses of buffer and payload, the others the initiator's. */
typedef struct {
    void *buffer; /* the registered buffer; 0: there is none */
    unsigned long long buffer_bytes;
    const void *payload; /* 0: there is none */
    unsigned long long payload_bytes;
    const unsigned long long *arguments;
    unsigned long long items; /* work-items of the grid */
    unsigned argument_words;
    unsigned group_items; /* work-items of a group: `item / group_items` is the group's number */
    unsigned grid[3];     /* work-items along x, y, z */
    unsigned group[3];
    void *worker; /* the worker's own */
} gapless_task;

/* The end of a ring of another process's worker. One puts into it at a time. */
typedef struct gapless_lane gapless_lane;

/* What became of a put. Below 64 it is a refusal (xtq/src/error.rs), of which `value` tells more. */
#define GAPLESS_PENDING 0u     /* nothing yet */
#define GAPLESS_ENDED 64u      /* the task has ended: what it wrote can be seen */
#define GAPLESS_FAILED 65u     /* it has failed; `value` says why */
#define GAPLESS_MALFORMED 66u  /* it was no packet */
#define GAPLESS_TIMED_OUT 128u /* the patience is over; it may still run */
#define GAPLESS_ABORTED 129u   /* the host of the initiator said so (`GpuLane::abort`) */

/* Of functions of a worker. */

/* All work-items of a group meet, and see what each has written before. Nonzero if they have: groups of up to 32
 * work-items can, and multiples of 32. Others get 0 and do not wait. */
extern "C" __device__ unsigned gapless_meet(const gapless_task *task);
/* Whether the task is to return now: the worker's host says so, or its life is over. */
extern "C" __device__ unsigned gapless_is_stopped(const gapless_task *task);
/* The ring of another target that this worker may put into, by the number that it was added with; 0: there is none. One
 * work-item of the whole grid uses it: groups may run side by side. */
extern "C" __device__ gapless_lane *gapless_out(const gapless_task *task, unsigned number);

/* Of all. */

/* Puts a task: a packet of 64 bytes, and its body, at most GAPLESS_BODY_BYTES, of which the packet says the lengths. By
 * one thread. What the thread has written before, the task sees. Gives the put's ticket; 0 if there is no room until
 * earlier puts have ended, or if the packet says other lengths. */
extern "C" __device__ unsigned long long gapless_put(gapless_lane *lane, const void *packet, const void *body,
                                                     unsigned body_bytes);
/* The same, by all 32 threads of a warp together, which is quicker. They have met before (`__syncwarp`). */
extern "C" __device__ unsigned long long gapless_put_by_warp(gapless_lane *lane, const void *packet, const void *body,
                                                             unsigned body_bytes);
/* What became of a put, of which fewer than 256 came after: who puts more without looking never learns it. `value` may
 * be 0. */
extern "C" __device__ unsigned gapless_outcome(const gapless_lane *lane, unsigned long long ticket, unsigned *value);
/* The same, when it is known, or after so many nanoseconds. Functions of a worker do not wait. */
extern "C" __device__ unsigned gapless_wait(const gapless_lane *lane, unsigned long long ticket,
                                            unsigned long long patience_ns, unsigned *value);

/* A packet for a kernel's task over a line of groups; its place is a multiple of 8. Its body is `argument_bytes` of
 * arguments, at least 16 and a multiple of 8, whose first two words the target replaces; then the payload. */
static __device__ inline void gapless_packet(void *packet, unsigned index, unsigned queue, unsigned groups,
                                             unsigned items, unsigned argument_bytes, unsigned payload_bytes) {
    unsigned long long *word = (unsigned long long *)packet;
    word[0] = 2ull << 16 | (unsigned long long)index << 32 | (unsigned long long)queue << 40;
    word[1] = 0;
    word[2] = 0;
    word[3] = (unsigned long long)groups * items | 1ull << 32;
    word[4] = 0;
    word[5] = 1ull | (unsigned long long)argument_bytes << 32;
    word[6] = (unsigned long long)payload_bytes << 32;
    word[7] = (unsigned long long)items | 1ull << 16 | 1ull << 32;
}

#endif
