/* Partitioned messages (MPI 4.1 §4) between GPUs, whose partitions CUDA kernels of users mark ready, test and wait for
 * (docs/streams.md, Partitions). No host has a part in it, so a kernel can be captured into a graph and replayed. CUDA
 * C++ for compute capability 7.0 or later; it includes nothing, so it can be given to nvcc or NVRTC as it is.
 *
 * `StreamComm::plan_partitioned` gives the address of a handle for each message, at its sender and at its receiver. A
 * handle that is 0 is a message with nobody (MPI_PROC_NULL): all calls do nothing, and say true.
 *
 * A receive is started again and again; the n-th start begins its epoch n. The n-th `gapless_pready` of a partition
 * sends it in epoch n: it waits until the receiver has started that, so it never overwrites what the receiver reads.
 *
 * 1. All threads of a block call `gapless_pstart`, `gapless_pready` and `gapless_pwait` together, with the same
 *    arguments. They meet in there, so what any of them has written before is sent, and what has come can be read by
 *    all. `gapless_parrived` and `gapless_pfailed` are calls of one thread.
 * 2. One block at a time makes a partition ready, and the order of its epochs is that of the calls.
 * 3. Before `gapless_pstart`, all partitions have come (`gapless_pwait`) and all reads of them have ended, in whatever
 *    block; after it, others wait for the new epoch. Between blocks the program sees to this order: by kernels that
 *    follow each other on a stream, say.
 * 4. No pointer to the memory of a message is `__restrict__`, and none is read by `__ldg`: others write it meanwhile.
 * 5. A rank starts its receives before it waits in `gapless_pready`: its peer may be waiting, too. Blocks that wait are
 *    all resident at once: all that wait at a time, those of collectives queued beside them too, are no more than
 *    `StreamComm::blocks`.
 *
 * Every wait ends: by the peer, by the host that has lost a peer, by a failure here or there, or when the patience is
 * over. Then the call says false, so does every later one that waits, and `StreamComm::check` says why.
 */
#ifndef GAPLESS_PARTITIONED_H
#define GAPLESS_PARTITIONED_H

/* What the ranks of a communicator have in common. */
typedef struct {
    unsigned long long dead[16]; /* addresses of each rank's word that is not 0 when nothing is waited for any more */
    unsigned long long abort;    /* address of 4 bytes of the host. Not 0: stop, because of the rank of 1 less */
    unsigned long long status;   /* address of a word of the host: what has failed:32 | the rank that it is about:32 */
    unsigned long long patience; /* nanoseconds that a wait may last */
    unsigned rank;
    unsigned ranks;
} gapless_partition_ranks;

/* A message, at its sender or at its receiver. Each end has words of 8 bytes, of epochs: one that the receiver has
 * started, then for each partition one that it was last made ready in, at the sender, or that it last came in. */
typedef struct {
    unsigned long long ranks;  /* address of gapless_partition_ranks */
    unsigned long long source; /* partition 0 at the sender */
    unsigned long long target; /* partition 0 at the receiver */
    unsigned long long bytes;  /* of a partition */
    unsigned long long ours;   /* words here */
    unsigned long long theirs; /* words at the peer */
    unsigned partitions;
    unsigned peer;
    unsigned kind; /* GAPLESS_PARTITIONED_SEND or _RECV */
    unsigned unused;
} gapless_partitioned;

#define GAPLESS_PARTITIONED_SEND 1u
#define GAPLESS_PARTITIONED_RECV 2u

static_assert(sizeof(gapless_partition_ranks) == 160, "as the host has it");
static_assert(sizeof(gapless_partitioned) == 64, "as the host has it");

/* What follows, up to the next heading, is not for users. */

#define GAPLESS_P_LATE 1u         /* the rank did not come in time */
#define GAPLESS_P_ABORTED 2u      /* the host gave up, as it has lost the rank */
#define GAPLESS_P_TOLD 4u         /* the rank has failed, and said so */
#define GAPLESS_P_NO_PARTITION 5u /* the message with the rank has no such partition, or goes the other way */
#define GAPLESS_P_EARLY 6u        /* a receive from the rank was started before all partitions had come */
#define GAPLESS_P_LOOKS 64u

#define GAPLESS_P static __device__ inline

GAPLESS_P unsigned long long gapless_p_load(unsigned long long at) {
    unsigned long long word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
GAPLESS_P unsigned long long gapless_p_acquire(unsigned long long at) {
    unsigned long long word;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
GAPLESS_P void gapless_p_store(unsigned long long at, unsigned long long word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
GAPLESS_P void gapless_p_release(unsigned long long at, unsigned long long word) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
GAPLESS_P unsigned long long gapless_p_swap_if_zero(unsigned long long at, unsigned long long word) {
    unsigned long long before;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;" : "=l"(before) : "l"(at), "l"(word) : "memory");
    return before;
}
GAPLESS_P unsigned long long gapless_p_now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
GAPLESS_P unsigned gapless_p_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
GAPLESS_P unsigned gapless_p_threads() { return blockDim.x * blockDim.y * blockDim.z; }

/* It cannot go on: the first to say so tells the host and all peers. Says false. */
GAPLESS_P __noinline__ bool gapless_p_fail(const gapless_partition_ranks *all, unsigned what, unsigned whom) {
    unsigned long long status = (unsigned long long)whom << 32 | what;
    unsigned long long before = gapless_p_swap_if_zero(all->dead[all->rank], status);
    gapless_p_store(all->status, before != 0 ? before : status);
    if (before != 0) return false;
    if (what != GAPLESS_P_ABORTED || whom == all->rank) status = (unsigned long long)all->rank << 32 | GAPLESS_P_TOLD;
    for (unsigned rank = 0; rank < all->ranks; rank++)
        if (rank != all->rank) (void)gapless_p_swap_if_zero(all->dead[rank], status);
    __threadfence_system();
    return false;
}

/* Whether a kernel here, or a peer, has failed. */
GAPLESS_P bool gapless_p_dead(const gapless_partition_ranks *all) {
    unsigned long long dead = gapless_p_load(all->dead[all->rank]);
    if (dead != 0) gapless_p_store(all->status, dead);
    return dead != 0;
}

/* Whether that, or the host, ends all waits. */
GAPLESS_P __noinline__ bool gapless_p_over(const gapless_partition_ranks *all) {
    unsigned abort;
    if (gapless_p_dead(all)) return true;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(abort) : "l"(all->abort) : "memory");
    return abort != 0 && !gapless_p_fail(all, GAPLESS_P_ABORTED, abort - 1);
}

GAPLESS_P const gapless_partition_ranks *gapless_p_all(const gapless_partitioned *message) {
    return (const gapless_partition_ranks *)message->ranks;
}

/* Waits until a word has got to an epoch. By one thread. */
GAPLESS_P __noinline__ bool gapless_p_until(const gapless_partitioned *message, unsigned long long at,
                                            unsigned long long epoch) {
    const gapless_partition_ranks *all = gapless_p_all(message);
    unsigned long long since = 0;
    for (unsigned looks = 1; gapless_p_acquire(at) < epoch; looks++) {
        if (looks % GAPLESS_P_LOOKS != 0) continue;
        if (since == 0) since = gapless_p_now();
        if (gapless_p_over(all)) return false;
        if (gapless_p_now() - since > all->patience) return gapless_p_fail(all, GAPLESS_P_LATE, message->peer);
    }
    return true;
}

/* Whether a message of this kind has this partition; if not, that is a failure. */
GAPLESS_P bool gapless_p_has(const gapless_partitioned *message, unsigned kind, unsigned partition) {
    if (message->kind == kind && partition < message->partitions) return true;
    return gapless_p_fail(gapless_p_all(message), GAPLESS_P_NO_PARTITION, message->peer);
}

template <typename W>
GAPLESS_P unsigned long long gapless_p_words(unsigned long long target, unsigned long long source,
                                             unsigned long long bytes) {
    const W *from = (const W *)source;
    W *to = (W *)target;
    unsigned long long words = bytes / sizeof(W), step = gapless_p_threads(), i = gapless_p_thread();
    for (; i + 3 * step < words; i += 4 * step) {
        W a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        to[i] = a;
        to[i + step] = b;
        to[i + 2 * step] = c;
        to[i + 3 * step] = d;
    }
    for (; i < words; i += step) to[i] = from[i];
    return words * sizeof(W);
}

/* Copies, by all threads of the block, in the longest words that both addresses allow. */
GAPLESS_P void gapless_p_copy(unsigned long long target, unsigned long long source, unsigned long long bytes) {
    unsigned long long both = target | source, done = 0;
    if (both % 16 == 0) {
        done = gapless_p_words<uint4>(target, source, bytes);
    } else if (both % 4 == 0) {
        done = gapless_p_words<unsigned>(target, source, bytes);
    }
    (void)gapless_p_words<unsigned char>(target + done, source + done, bytes - done);
}

/* For users. */

/* Starts a receive: partitions of its next epoch may come (MPI_Start). By all threads of a block; see 3 above. It is a
 * failure if partitions of the epoch before have not come. */
GAPLESS_P bool gapless_pstart(const gapless_partitioned *receive) {
    if (receive == 0) return true;
    const gapless_partition_ranks *all = gapless_p_all(receive);
    const bool first = gapless_p_thread() == 0;
    bool wrong = receive->kind != GAPLESS_PARTITIONED_RECV, early = false;
    unsigned long long epoch = wrong ? 0 : gapless_p_load(receive->ours);
    for (unsigned i = gapless_p_thread(); !wrong && i < receive->partitions; i += gapless_p_threads())
        early |= gapless_p_load(receive->ours + 8 + 8ull * i) < epoch;
    bool over = first && gapless_p_dead(all);
    early = __syncthreads_or(early);
    if (first && !over && (wrong || early))
        over = !gapless_p_fail(all, wrong ? GAPLESS_P_NO_PARTITION : GAPLESS_P_EARLY, receive->peer);
    if (first && !over) {
        gapless_p_store(receive->ours, epoch + 1);
        gapless_p_release(receive->theirs, epoch + 1);
    }
    return !__syncthreads_or(over);
}

/* Sends a partition, when the receiver has started its next epoch (MPI_Pready). By all threads of a block. When it has
 * said true, the partition's memory may be written again. */
GAPLESS_P bool gapless_pready(const gapless_partitioned *send, unsigned partition) {
    if (send == 0) return true;
    const bool first = gapless_p_thread() == 0;
    const unsigned long long word = 8 + 8ull * partition, at = partition * send->bytes;
    unsigned long long epoch = 0;
    bool failed = false;
    if (first) {
        failed = gapless_p_dead(gapless_p_all(send)) || !gapless_p_has(send, GAPLESS_PARTITIONED_SEND, partition);
        if (!failed) {
            epoch = gapless_p_load(send->ours + word) + 1;
            failed = !gapless_p_until(send, send->ours, epoch);
        }
    }
    if (__syncthreads_or(failed)) return false;
    gapless_p_copy(send->target + at, send->source + at, send->bytes);
    __syncthreads();
    if (first) {
        gapless_p_store(send->ours + word, epoch);
        gapless_p_release(send->theirs + word, epoch);
    }
    return true;
}

/* Whether a partition of the current epoch has come (MPI_Parrived). By one thread. It waits for nothing, and a failure
 * does not make it false: who asks again and again asks `gapless_pfailed`, too. */
GAPLESS_P bool gapless_parrived(const gapless_partitioned *receive, unsigned partition) {
    if (receive == 0) return true;
    if (!gapless_p_has(receive, GAPLESS_PARTITIONED_RECV, partition)) return false;
    return gapless_p_acquire(receive->ours + 8 + 8ull * partition) >= gapless_p_load(receive->ours);
}

/* Waits until a partition of the current epoch has come. By all threads of a block. */
GAPLESS_P bool gapless_pwait(const gapless_partitioned *receive, unsigned partition) {
    if (receive == 0) return true;
    bool failed = false;
    if (gapless_p_thread() == 0) {
        failed = gapless_p_dead(gapless_p_all(receive)) || !gapless_p_has(receive, GAPLESS_PARTITIONED_RECV, partition) ||
                 !gapless_p_until(receive, receive->ours + 8 + 8ull * partition, gapless_p_load(receive->ours));
    }
    return !__syncthreads_or(failed);
}

/* Whether the communicator has failed. By one thread. */
GAPLESS_P bool gapless_pfailed(const gapless_partitioned *message) {
    return message != 0 && gapless_p_over(gapless_p_all(message));
}

#endif
