/* Kernels that exchange partitions: an example of gapless_partitioned.h, and what tests launch. Compiled to PTX. */
#include "gapless_partitioned.h"

/* A rank's rows of a field, whose columns are cut into as many partitions as the launch has blocks. Before and behind
 * them lies a row of a neighbour's. */
typedef struct {
    unsigned long long field; /* unsigned[rows + 2][columns] */
    const gapless_partitioned *up, *down;       /* sends: the first row, and the last */
    const gapless_partitioned *above, *beneath; /* receives: what comes before the first row, and behind the last */
    unsigned rows;
    unsigned columns; /* a multiple of the blocks */
} example_field;

/* Starts both receives. One block. */
extern "C" __global__ void example_start(const gapless_partitioned *above, const gapless_partitioned *beneath) {
    if (gapless_pstart(above)) gapless_pstart(beneath);
}

/* Makes partitions ready, the block's number and `first` more. */
extern "C" __global__ void example_ready(const gapless_partitioned *send, unsigned first) {
    gapless_pready(send, first + blockIdx.x);
}

/* Waits for partitions. `seen` has two words a block: 1, or 2 if a first look found the partition; then 1, when it has
 * come. */
extern "C" __global__ void example_wait(const gapless_partitioned *receive, unsigned first, unsigned *seen) {
    volatile unsigned *ours = seen + 2 * blockIdx.x;
    if (threadIdx.x == 0) ours[0] = 1 + gapless_parrived(receive, first + blockIdx.x);
    if (gapless_pwait(receive, first + blockIdx.x) && threadIdx.x == 0) ours[1] = 1;
}

/* A step: rows go to the neighbours and come from there, a partition a block; then each element becomes a sum of itself
 * and of those above and beneath. Both receives were started. */
extern "C" __global__ void example_halo(example_field f) {
    unsigned strip = f.columns / gridDim.x, begin = blockIdx.x * strip;
    if (!gapless_pready(f.up, blockIdx.x) || !gapless_pready(f.down, blockIdx.x)) return;
    if (!gapless_pwait(f.above, blockIdx.x) || !gapless_pwait(f.beneath, blockIdx.x)) return;
    for (unsigned column = begin + threadIdx.x; column < begin + strip; column += blockDim.x) {
        unsigned *at = (unsigned *)f.field + column;
        unsigned before = at[0], here = at[f.columns];
        for (unsigned row = 1; row <= f.rows; row++) {
            unsigned next = at[(unsigned long long)(row + 1) * f.columns];
            at[(unsigned long long)row * f.columns] = 3 * before + 5 * here + 7 * next;
            before = here;
            here = next;
        }
    }
}
