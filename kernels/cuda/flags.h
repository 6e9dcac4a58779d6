/* Words that two devices, or a device and the host, tell each other something by. Each has one writer. */
static __device__ __forceinline__ u64 flag_acquire(const u64 *at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

static __device__ __forceinline__ void flag_release(u64 *at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ __forceinline__ u32 word_now(const u32 *at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

/* What the caller's block did before (a barrier says that it did) is before whatever is stored next. */
static __device__ __forceinline__ void system_fence() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

static __device__ __forceinline__ void flag_store(u64 *at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ __forceinline__ void word_store(u32 *at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ u64 nanoseconds() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

/* Waits until a flag has come to `wanted`, which wraps like the flag. The host's word crosses the bus, and
 * the clock is coarse: both are looked at now and then. `waits`: RelayArgs.waits. */
static __device__ __noinline__ u32 relay_wait(const u64 *flag, u64 wanted, const u32 *watch, u64 waits) {
    u64 begin = 0;
    ROLLED for (u32 spins = 1;; spins++) {
        u64 now = flag_acquire(flag);
        if (now == RELAY_BROKEN) return RELAY_PEER;
        if ((i64)(now - wanted) >= 0) return RELAY_DONE;
        if (spins % 64 == 0) {
            u64 time = nanoseconds();
            begin = begin == 0 ? time : begin;
            if (word_now(watch) != 0) return RELAY_STOPPED;
            if (time - begin > (u64)(u32)waits << 10) return RELAY_LATE;
        }
        asm volatile("nanosleep.u32 %0;" ::"r"((u32)(waits >> 32)));
    }
}
