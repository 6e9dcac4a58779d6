/* Kernels beside the worker: the rewrite alone, to be compared with the host's; an initiator on a GPU, which times what it
 * puts; and a matrix product, as work that a worker is not to slow. In worker.cu. */
#ifndef GAPLESS_INITIATOR_H
#define GAPLESS_INITIATOR_H

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

/* C = A B, of matrices of `n` by `n` floats, row by row, where `n` is a multiple of 64. A block makes a square of 64 by 64,
 * a thread 4 by 4 of it. */
#define SQUARE 64
#define STRIP 16
extern "C" __global__ __launch_bounds__(256, 2) void xtq_multiply(const u64 a, const u64 b, const u64 c, const u64 n) {
    __shared__ float left[STRIP][SQUARE + 4], right[STRIP][SQUARE + 4];
    u32 side = (u32)n, across = side / SQUARE, top = BLOCK / across * SQUARE, first = BLOCK % across * SQUARE;
    u32 row = THREAD / 16 * 4, column = THREAD % 16 * 4;
    float sums[4][4] = {};
    for (u32 k = 0; k < side; k += STRIP) {
        UNROLL for (u32 i = THREAD; i < STRIP * SQUARE; i += 256) {
            left[i % STRIP][i / STRIP] = ((const float *)a)[(u64)(top + i / STRIP) * side + k + i % STRIP];
            right[i / SQUARE][i % SQUARE] = ((const float *)b)[(u64)(k + i / SQUARE) * side + first + i % SQUARE];
        }
        BARRIER();
        UNROLL for (u32 i = 0; i < STRIP; i++)
            UNROLL for (u32 y = 0; y < 4; y++)
                UNROLL for (u32 x = 0; x < 4; x++) sums[y][x] += left[i][row + y] * right[i][column + x];
        BARRIER();
    }
    UNROLL for (u32 y = 0; y < 4; y++)
        UNROLL for (u32 x = 0; x < 4; x++) ((float *)c)[(u64)(top + row + y) * side + first + column + x] = sums[y][x];
}

#endif
