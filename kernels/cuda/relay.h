/* A message from one GPU's memory to another's without a processor in between, in CUDA C++. Read once for
 * each W and UNPACK.
 *
 * One kernel packs the whole message into a ring of fragments in the receiver's memory, another unpacks it
 * from there; both run at the same time. Block b of one works with block b of the other, a lane: it has
 * `depth` places of the ring to itself, and two flags. `ready`, in the receiver's memory, counts the turns
 * that have been packed, `credit`, in the sender's, those that have been unpacked, both since the ring was
 * made. So each flag has one writer and is polled where it lies. Fragment f of a message belongs to lane f
 * modulo the number of lanes.
 *
 * Turns of a message are counted alike for all lanes: as many as the first lane has fragments. A lane with
 * fewer skips turns, and its credit is raised over them at the end, or the next messages would wait for
 * places that nobody ever fills. `ready` needs no such raising: it is waited for where there is a fragment.
 *
 * No wait is without end: it is given up when the host says so, when the other side has given up, or when it
 * has taken too long. Then the flag for the other side is set to BROKEN, and the ring is of no use any more. What
 * became of a lane stands in `watch`: one word that the host writes, and behind WATCH_LANES one for each
 * lane, written by its block.
 */
#if W == 1
#define WORD u8
#define ITEMS 8
#elif W == 2
#define WORD u16
#define ITEMS 8
#elif W == 4
#define WORD u32
#define ITEMS 8
#elif W == 8
#define WORD u64
#define ITEMS 8
#else
#define WORD u128
#define ITEMS 4
#endif
#define JOIN(name, width) name##width
#define NAME(name, width) JOIN(name, width)

#if UNPACK
KERNEL(NAME(relay_unpack_w, W), 512, 2)
#else
KERNEL(NAME(relay_pack_w, W), 512, 2)
#endif
(u8 *typed, u8 *ring, const u8 *__restrict__ plan, u64 *ready, u64 *credit, u32 *watch, ARGS(RelayArgs)) {
    __shared__ u32 verdict;
    u64 *own = ready + (u64)BLOCK * FLAG_WORDS, *other = credit + (u64)BLOCK * FLAG_WORDS;
    u32 fragments = (a.words + a.fragment - 1) / a.fragment;
    u32 outcome = RELAY_DONE;
    u64 turn = a.turn;
    ROLLED for (u32 number = BLOCK; number < fragments; number += BLOCKS, turn++) {
        if (THREAD == 0) {
#if UNPACK
            verdict = relay_wait(own, turn + 1, watch, a.waits);
#else
            verdict = relay_wait(other, turn + 1 - a.depth, watch, a.waits);
#endif
        }
        BARRIER();
        if (verdict != RELAY_DONE) {
            outcome = verdict;
            break;
        }
        u32 begin = number * a.fragment;
        u32 n = a.words - begin < a.fragment ? a.words - begin : a.fragment;
        u8 *place = ring + ((u64)BLOCK * a.depth + turn % a.depth) * a.fragment * W;
        ROLLED for (u32 k = THREAD; k < n; k += THREADS * ITEMS) {
            WORD value[ITEMS];
#if UNPACK
            UNROLL for (u32 i = 0; i < ITEMS; i++)
                if (k + i * THREADS < n) value[i] = READ(WORD, place + (u64)(k + i * THREADS) * W);
#endif
            i64 at[ITEMS];
            UNROLL for (u32 i = 0; i < ITEMS; i++) {
                u32 word = begin + (k + i * THREADS < n ? k + i * THREADS : k);
                at[i] = a.typed + side_at(&a.side, plan, a.side.first + word, W);
            }
#if UNPACK
            UNROLL for (u32 i = 0; i < ITEMS; i++)
                if (k + i * THREADS < n) WRITE(WORD, typed + at[i], value[i]);
#else
            UNROLL for (u32 i = 0; i < ITEMS; i++)
                if (k + i * THREADS < n) value[i] = READ(WORD, typed + at[i]);
            UNROLL for (u32 i = 0; i < ITEMS; i++)
                if (k + i * THREADS < n) WRITE(WORD, place + (u64)(k + i * THREADS) * W, value[i]);
#endif
        }
        /* The barrier puts everybody's words before the flag, and the flag's release before those who
         * see it, on whichever device. */
        BARRIER();
#if UNPACK
        if (THREAD == 0 && number + BLOCKS < fragments) flag_release(other, turn + 1);
#else
        if (THREAD == 0) flag_release(own, turn + 1);
#endif
    }
    /* One fence for the last flag and the word to the host: a second one would wait until the other device has
     * the flag, which takes as long as a short message. Nobody is harmed by a flag that comes after the word:
     * it is waited for like any other, and its memory outlives the ring. */
    if (THREAD == 0) {
        system_fence();
#if UNPACK
        u64 next = a.turn + (fragments + BLOCKS - 1) / BLOCKS;
        flag_store(other, outcome == RELAY_DONE ? next : RELAY_BROKEN);
#else
        if (outcome != RELAY_DONE) flag_store(own, RELAY_BROKEN);
#endif
        word_store(watch + WATCH_LANES + BLOCK, outcome);
    }
}

#undef WORD
#undef ITEMS
#undef JOIN
#undef NAME
