/* What strips.cl-cu and pack.cl-cu need, in CUDA C++. No header of CUDA's is included: that makes compiling fast. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

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
