/* Accesses of memory that others read and write: other kernels, other devices, the host. All at the scope of the system.
 */
#ifndef GAPLESS_SYSTEM_H
#define GAPLESS_SYSTEM_H

#define NOINLINE static __device__ __noinline__

INLINE u64 load_relaxed(u64 at) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
INLINE u64 load_acquire(u64 at) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
INLINE void store_relaxed(u64 at, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
INLINE void store_release(u64 at, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
/* Sixteen bytes that are one to all observers: PTX's b128 is a scalar type. */
INLINE void load_sixteen(u64 at, u64 &lo, u64 &hi) {
    asm volatile("{ .reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
                 : "=l"(lo), "=l"(hi)
                 : "l"(at)
                 : "memory");
}
INLINE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/* Of what this thread has read alone; what it has written is not waited for. */
INLINE void fence_acquire() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.acquire.sys;" ::: "memory");
#else
    fence_sys();
#endif
}
INLINE void fence_sc() { asm volatile("fence.sc.sys;" ::: "memory"); }
INLINE u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

#endif
