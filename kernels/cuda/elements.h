/* Elements of collectives between GPUs, and how two are combined. Each has a way to be widened, so that 16 bits are
 * computed in 32, and rounded after every operation. */
#ifndef GAPLESS_ELEMENTS_H
#define GAPLESS_ELEMENTS_H

struct F16 {
    typedef u16 Bits;
    static __device__ __forceinline__ float wide(u16 x) {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
        return f;
    }
    static __device__ __forceinline__ u16 narrow(float f) {
        u16 x;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(f));
        return x;
    }
    static __device__ __forceinline__ bool nan(u16 x) { return (x & 0x7fff) > 0x7c00; }
};
struct BF16 {
    typedef u16 Bits;
    static __device__ __forceinline__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
    static __device__ __forceinline__ u16 narrow(float f) {
        u16 x;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x) : "f"(f));
        return x;
    }
    static __device__ __forceinline__ bool nan(u16 x) { return (x & 0x7fff) > 0x7f80; }
};
template <typename H> struct Half {
    typedef u16 Bits;
    static __device__ __forceinline__ u16 sum(u16 a, u16 b) { return H::narrow(__fadd_rn(H::wide(a), H::wide(b))); }
    static __device__ __forceinline__ u16 prod(u16 a, u16 b) { return H::narrow(__fmul_rn(H::wide(a), H::wide(b))); }
    static __device__ __forceinline__ u16 max(u16 a, u16 b) {
        if (H::nan(a) || H::nan(b)) return H::nan(a) ? a : b;
        return H::wide(b) > H::wide(a) ? b : a;
    }
    static __device__ __forceinline__ u16 min(u16 a, u16 b) {
        if (H::nan(a) || H::nan(b)) return H::nan(a) ? a : b;
        return H::wide(b) < H::wide(a) ? b : a;
    }
};
struct F32 {
    typedef float Bits;
    static __device__ __forceinline__ float sum(float a, float b) { return __fadd_rn(a, b); }
    static __device__ __forceinline__ float prod(float a, float b) { return __fmul_rn(a, b); }
    static __device__ __forceinline__ float max(float a, float b) { return b > a || b != b ? b : a; }
    static __device__ __forceinline__ float min(float a, float b) { return b < a || b != b ? b : a; }
};
struct F64 {
    typedef double Bits;
    static __device__ __forceinline__ double sum(double a, double b) { return __dadd_rn(a, b); }
    static __device__ __forceinline__ double prod(double a, double b) { return __dmul_rn(a, b); }
    static __device__ __forceinline__ double max(double a, double b) { return b > a || b != b ? b : a; }
    static __device__ __forceinline__ double min(double a, double b) { return b < a || b != b ? b : a; }
};
template <typename I> struct Int {
    typedef I Bits;
    static __device__ __forceinline__ I sum(I a, I b) { return a + b; }
    static __device__ __forceinline__ I prod(I a, I b) { return a * b; }
    static __device__ __forceinline__ I max(I a, I b) { return b > a ? b : a; }
    static __device__ __forceinline__ I min(I a, I b) { return b < a ? b : a; }
};

#define OPERATION(Name, name)                                                                                          \
    template <typename E> struct Name {                                                                                \
        typedef typename E::Bits T;                                                                                    \
        static __device__ __forceinline__ T of(T a, T b) { return E::name(a, b); }                                     \
    };
OPERATION(Sum, sum)
OPERATION(Prod, prod)
OPERATION(Max, max)
OPERATION(Min, min)

/* Words of W that hold several elements. */
template <typename O, typename W> INLINE W combine(W left, W right) {
    typedef typename O::T T;
    const u32 N = sizeof(W) / sizeof(T);
    union {
        W w;
        T t[N];
    } l, r;
    l.w = left;
    r.w = right;
    UNROLL for (u32 i = 0; i < N; i++) l.t[i] = O::of(l.t[i], r.t[i]);
    return l.w;
}

/* What is only known at run time (calls.h): elements are bytes. */
struct Any {
    typedef u8 T;
};
NOINLINE u64 combine_any(u32 what, u64 left, u64 right) {
#define CASE(op, Op, element, E)                                                                                       \
    case op * 8 + element: return combine<Op<E>, u64>(left, right);
#define CASES(element, sums, E)                                                                                        \
    CASE(0, Sum, element, sums) CASE(1, Prod, element, sums) CASE(2, Max, element, E) CASE(3, Min, element, E)
    switch (what) {
        CASES(0, Half<F16>, Half<F16>)
        CASES(1, Half<BF16>, Half<BF16>)
        CASES(2, F32, F32)
        CASES(3, F64, F64)
        CASES(4, Int<u32>, Int<i32>)
        CASES(5, Int<u64>, Int<i64>)
        CASES(6, Int<u32>, Int<u32>)
        CASES(7, Int<u64>, Int<u64>)
    }
    return left;
}

#endif
