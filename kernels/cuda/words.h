/* A move of few bytes, through words with flags: a rank sends its block for each peer into its slot of that peer's
 * window, and takes each peer's block out of its own window. So it writes no peer's buffer, and meets nobody. Of a
 * broadcast only the root's block counts; others send a packet that is taken for nothing, so that nobody gets ahead.
 *
 * src[p] is this rank's block for rank p, and dst[p] is where the block of rank p goes, here. All are of `elements`
 * bytes. Source and destination may be the same memory: a thread has sent what it then writes over.
 */

INLINE u64 take_packet(const PeersArgs &a, u64 block, u32 at) {
    if (a.width >= 8 && ((u64)at + 1) * 8 <= a.elements) return READ(u64, (const u64 *)block + at);
    Packet<u8> packet;
    packet.w = 0;
    UNROLL for (u32 e = 0; e < 8; e++)
        if ((u64)at * 8 + e < a.elements) packet.t[e] = READ(u8, (const u8 *)block + (u64)at * 8 + e);
    return packet.w;
}

INLINE void put_packet(const PeersArgs &a, u64 block, u32 at, u64 w) {
    if (a.width >= 8 && ((u64)at + 1) * 8 <= a.elements) {
        WRITE(u64, (u64 *)block + at, w);
        return;
    }
    Packet<u8> packet;
    packet.w = w;
    UNROLL for (u32 e = 0; e < 8; e++)
        if ((u64)at * 8 + e < a.elements) WRITE(u8, (u8 *)block + (u64)at * 8 + e, packet.t[e]);
}

/* The packets [i, i + K * stride) that are `stride` apart, as many as there are below `packets`: all are sent before
 * any is waited for. K packets of R ranks are read in one go. */
template <u32 K, u32 R>
INLINE bool words_batch(const PeersArgs &a, u32 i, u32 stride, u32 packets, u64 words, u32 flag) {
    /* A broadcast's packets are one that all ranks send, and the root's others. */
    bool all = a.which >= a.ranks, ours_count = all || a.which == a.rank;
    ROLLED for (u32 p = 0; p < a.ranks; p += R) {
        u64 w[K][R];
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, to = a.rank + p + j < a.ranks ? a.rank + p + j : a.rank + p + j - a.ranks;
            w[k][j] = 0;
            if (at < packets && p + j < a.ranks && ours_count) w[k][j] = take_packet(a, a.src[to], at);
        }
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, to = a.rank + p + j < a.ranks ? a.rank + p + j : a.rank + p + j - a.ranks;
            if (at >= packets || p + j >= a.ranks || !(ours_count || at == 0)) continue;
            if (to != a.rank) {
                u128 word = {(u32)w[k][j], flag, (u32)(w[k][j] >> 32), flag};
                store_flagged(a.window[to] + words + a.rank * a.slot + (u64)at * 16, word);
            } else if (a.dst[to] != a.src[to]) {
                put_packet(a, a.dst[to], at, w[k][j]);
            }
        }
    }
    u64 ours = a.window[a.rank] + words;
    ROLLED for (u32 from = 0; from < a.ranks; from += R) {
        u128 got[K][R];
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, r = from + j;
            got[k][j] = u128{0, flag, 0, flag};
            bool comes = at == 0 || all || a.which == r;
            if (at < packets && r < a.ranks && r != a.rank && comes) got[k][j] = load_flagged(ours + r * a.slot + (u64)at * 16);
        }
        UNROLL for (u32 k = 0; k < K; k++) UNROLL for (u32 j = 0; j < R; j++) {
            u32 at = i + k * stride, r = from + j;
            bool counts = all || a.which == r;
            if (at >= packets || r >= a.ranks || r == a.rank || !(counts || at == 0)) continue;
            u64 here = ours + r * a.slot + (u64)at * 16;
            if (got[k][j].b != flag || got[k][j].d != flag) {
                got[k][j] = wait_flagged(a, here, flag, r);
                if (got[k][j].b != flag) return false;
            }
            clear_flagged(here);
            if (counts) put_packet(a, a.dst[r], at, (u64)got[k][j].c << 32 | got[k][j].a);
        }
    }
    return true;
}

INLINE void swap_words(const PeersArgs &a) {
    u64 ours = a.window[a.rank];
    u64 epoch = load_relaxed((u64)&HEAD(ours)->count[BLOCK].epoch);
    u64 dead = load_relaxed((u64)&HEAD(ours)->dead);
    u32 packets = (u32)((a.elements + 7) / 8), stride = BLOCKS * THREADS, i = BLOCK * THREADS + THREAD;
    if (is_dead(a, dead)) return;
    u32 flag = ((u32)epoch ^ a.doing) | 0x80000000u;
    u64 words = a.words + (epoch & 1) * a.slot * a.ranks;
    if (packets <= stride) {
        if (i < packets) (void)words_batch<1, 4>(a, i, stride, packets, words, flag);
    } else {
        ROLLED for (; i < packets; i += 4 * stride)
            if (!words_batch<4, 1>(a, i, stride, packets, words, flag)) break;
    }
    leave(a, epoch, BLOCKS);
}

extern "C" __global__ __launch_bounds__(512, 1) void peers_words(ARGS(PeersArgs)) { swap_words(a); }
