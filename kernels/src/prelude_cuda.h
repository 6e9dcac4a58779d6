/* What pack.cl-cu needs, in CUDA C++. No header of CUDA's is included: that makes compiling fast. */
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
#define READ(type, at) (*(GLOBAL const type *)(at))
#define WRITE(type, at, word) (*(GLOBAL type *)(at) = (word))
#define UNROLL _Pragma("unroll")

/* Roughly. */
static __device__ __forceinline__ float ROOT(float a) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(a));
    return root;
}

/* Of what is touched once, so that it leaves the caches first. Volatile keeps the loads before the
 * stores. Narrow words are not worth it. */
#define ONCE(type, kind, letter)                                                            \
    static __device__ __forceinline__ type once_read(const type *at) {                      \
        type word;                                                                          \
        asm volatile("ld.global.cs." kind " %0, [%1];" : "=" letter(word) : "l"(at));       \
        return word;                                                                        \
    }                                                                                       \
    static __device__ __forceinline__ void once_write(type *at, type word) {                \
        asm volatile("st.global.cs." kind " [%0], %1;" ::"l"(at), letter(word) : "memory"); \
    }
ONCE(u32, "u32", "r")
ONCE(u64, "u64", "l")
static __device__ __forceinline__ u128 once_read(const u128 *at) {
    u128 word;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.a), "=r"(word.b), "=r"(word.c), "=r"(word.d)
                 : "l"(at));
    return word;
}
static __device__ __forceinline__ void once_write(u128 *at, u128 word) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word.a), "r"(word.b),
                 "r"(word.c), "r"(word.d)
                 : "memory");
}
static __device__ __forceinline__ u8 once_read(const u8 *at) { return *at; }
static __device__ __forceinline__ u16 once_read(const u16 *at) { return *at; }
static __device__ __forceinline__ void once_write(u8 *at, u8 word) { *at = word; }
static __device__ __forceinline__ void once_write(u16 *at, u16 word) { *at = word; }
#define READ_ONCE(type, at) once_read((const type *)(at))
#define WRITE_ONCE(type, at, word) once_write((type *)(at), word)
