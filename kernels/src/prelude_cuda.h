/* What strips.cl-cu and pack.cl-cu need, in CUDA C++. No header of CUDA's is included: that makes compiling fast. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef short i16;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

struct __align__(16) u128 {
    u32 a, b, c, d;
};

#define GLOBAL
#define LOCAL __shared__
#define RESTRICT __restrict__
#define INLINE static __device__ __forceinline__
#define KERNEL(name, threads_max, blocks_min)                                               \
    extern "C" __global__ __launch_bounds__(threads_max, blocks_min) void name
#define THREAD threadIdx.x
#define THREADS blockDim.x
#define BLOCK blockIdx.x
#define BLOCKS gridDim.x
#define BARRIER() __syncthreads()
#define MULHI(a, b) __umulhi(a, b)
#define ONES(a) ((u32)__popc(a))
#define QUOTIENT(a, b) __fdividef(a, b)
#define ARGS(type) const __grid_constant__ type a
/* A structure too large for OpenCL's parameters, and a part of it. */
#define TABLE(type) ARGS(type)
#define TABLE_AT a
#define PART(type, name, from) const type &name = (from)
#define ROLLED _Pragma("unroll 1")
#define READ(type, at) read_word((const type *)(at))
#define WRITE(type, at, word) write_word((type *)(at), word)
#define READ_ONCE(type, at) read_once((const type *)(at))
#define WRITE_ONCE(type, at, word) write_once((type *)(at), word)
#define READ_INDEX(type, at) read_word((const type *)(at))
#define LOWER(at, number) atomicMin((u32 *)(at), number)
#define UNROLL _Pragma("unroll")

/* Roughly. */
static __device__ __forceinline__ float ROOT(float a) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(a));
    return root;
}

/* Volatile keeps all loads of a thread before its stores, which is what hides their latency. What is
 * touched once leaves the caches first. */
#define WORDS(name, way, type, kind, letter, held)                                                \
    static __device__ __forceinline__ type read_##name(const type *at) {                    \
        held word;                                                                          \
        asm volatile("ld.global" way "." kind " %0, [%1];" : "=" letter(word) : "l"(at));   \
        return (type)word;                                                                  \
    }                                                                                       \
    static __device__ __forceinline__ void write_##name(type *at, type word) {              \
        asm volatile("st.global" way "." kind " [%0], %1;" ::"l"(at), letter((held)word)    \
                     : "memory");                                                           \
    }
#define ALL_WORDS(name, way)                                                                \
    WORDS(name, way, u8, "u8", "r", u32)                                                    \
    WORDS(name, way, u16, "u16", "h", u16)                                                  \
    WORDS(name, way, u32, "u32", "r", u32)                                                  \
    WORDS(name, way, u64, "u64", "l", u64)                                                  \
    static __device__ __forceinline__ u128 read_##name(const u128 *at) {                    \
        u128 word;                                                                          \
        asm volatile("ld.global" way ".v4.u32 {%0, %1, %2, %3}, [%4];"                      \
                     : "=r"(word.a), "=r"(word.b), "=r"(word.c), "=r"(word.d)               \
                     : "l"(at));                                                            \
        return word;                                                                        \
    }                                                                                       \
    static __device__ __forceinline__ void write_##name(u128 *at, u128 word) {              \
        asm volatile("st.global" way ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at),           \
                     "r"(word.a), "r"(word.b), "r"(word.c), "r"(word.d)                     \
                     : "memory");                                                           \
    }
ALL_WORDS(word, "")
ALL_WORDS(once, ".cs")

/* Reductions: words of 16 bytes as others, floats as bits, arithmetic that is never contracted. */
INLINE u128 FOUR32(u32 a, u32 b, u32 c, u32 d) {
    u128 word = {a, b, c, d};
    return word;
}
INLINE u128 PAIR128(u64 low, u64 high) {
    return FOUR32((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
#define FIRST32(word) (word).a
#define SECOND32(word) (word).b
#define THIRD32(word) (word).c
#define FOURTH32(word) (word).d
#define LOW64(word) ((u64)(word).a | (u64)(word).b << 32)
#define HIGH64(word) ((u64)(word).c | (u64)(word).d << 32)
#define AS_F32(bits) __uint_as_float(bits)
#define BITS_F32(value) __float_as_uint(value)
#define AS_F64(bits) __longlong_as_double((i64)(bits))
#define BITS_F64(value) ((u64)__double_as_longlong(value))
#define ADD32(a, b) __fadd_rn(a, b)
#define SUB32(a, b) __fsub_rn(a, b)
#define MUL32(a, b) __fmul_rn(a, b)
#define ADD64(a, b) __dadd_rn(a, b)
#define SUB64(a, b) __dsub_rn(a, b)
#define MUL64(a, b) __dmul_rn(a, b)
INLINE f32 WIDEN_HALF(u32 bits) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}
INLINE u32 NARROW_HALF(f32 value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
/* Sides are told by their addresses. */
#define BUFFERS
#define SIDES
#define BASE(side) (u8 *)0
#define SIDE_TYPE(type) const type *
