/* Functions that a worker runs for users: an example of gapless_tasks.h, and what tests link. Compiled to PTX, which
 * serves every GPU. */
#include "gapless_tasks.h"

/* Floats of the buffer are multiplied by argument 2's, those that the payload's numbers name. */
extern "C" __device__ unsigned example_scale(const gapless_task *task, unsigned long long item) {
    float *floats = (float *)task->buffer;
    const unsigned *which = (const unsigned *)task->payload;
    float by = __uint_as_float((unsigned)task->arguments[2]);
    for (unsigned long long i = item; i < task->payload_bytes / 4; i += task->items) {
        if (which[i] >= task->buffer_bytes / 4) return 7;
        floats[which[i]] *= by;
    }
    return 0;
}

/* Counts the bytes of the payload, 256 counters of 32 bits in the buffer: each group in shared memory, then into it. */
extern "C" __device__ unsigned example_count(const gapless_task *task, unsigned long long item) {
    __shared__ unsigned counts[256];
    unsigned own = (unsigned)(item % task->group_items);
    for (unsigned i = own; i < 256; i += task->group_items) counts[i] = 0;
    if (!gapless_meet(task)) return 1;
    const unsigned char *bytes = (const unsigned char *)task->payload;
    if (task->arguments[1] != (unsigned long long)bytes) return 8;
    for (unsigned long long i = item; i < task->payload_bytes; i += task->items) atomicAdd(&counts[bytes[i]], 1u);
    gapless_meet(task);
    for (unsigned i = own; i < 256 && i < task->buffer_bytes / 4; i += task->group_items) {
        if (counts[i] != 0) atomicAdd((unsigned *)task->buffer + i, counts[i]);
    }
    return 0;
}

/* Runs until it is to stop. */
extern "C" __device__ unsigned example_wait(const gapless_task *task, unsigned long long) {
    while (!gapless_is_stopped(task)) {
    }
    return 2;
}

/* The last work-item adds 1 to each word of the payload's, and puts that on into ring 0, with the same grid: a chain of
 * workers. Argument 2 counts how often; argument 3 is the index of kernel and queue there. At its end the words go into the
 * buffer. */
extern "C" __device__ unsigned example_pass(const gapless_task *task, unsigned long long item) {
    if (item != task->items - 1) return 0;
    unsigned long long body[GAPLESS_BODY_BYTES / 8];
    unsigned words = (unsigned)(task->payload_bytes / 8);
    const unsigned long long *from = (const unsigned long long *)task->payload;
    if (words + 4 > GAPLESS_BODY_BYTES / 8) return 3;
    body[0] = body[1] = 0;
    body[2] = task->arguments[2] - 1;
    body[3] = task->arguments[3];
    for (unsigned i = 0; i < words; i++) body[4 + i] = from[i] + 1;
    if (task->arguments[2] == 0) {
        if (words * 8 > task->buffer_bytes) return 4;
        for (unsigned i = 0; i < words; i++) ((volatile unsigned long long *)task->buffer)[i] = body[4 + i];
        return 0;
    }
    gapless_lane *next = gapless_out(task, 0);
    if (next == 0) return 5;
    unsigned long long packet[GAPLESS_PACKET_BYTES / 8];
    gapless_packet(packet, (unsigned)task->arguments[3], (unsigned)task->arguments[3],
                   (unsigned)(task->items / task->group_items), task->group_items, 32, words * 8);
    return gapless_put(next, packet, body, 32 + words * 8) != 0 ? 0 : 6;
}
