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
#define ROLLED _Pragma("unroll 1")
#define UNROLL _Pragma("unroll")

/* Roughly. */
static __device__ __forceinline__ float ROOT(float a) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(a));
    return root;
}
