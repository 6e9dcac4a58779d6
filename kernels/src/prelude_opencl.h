/* What strips.cl-cu and pack.cl-cu need, in OpenCL C 1.2. */
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef int i32;
typedef ulong u64;
typedef long i64;
typedef uint4 u128;

#define GLOBAL __global
#define LOCAL __local
#define RESTRICT restrict
#define INLINE static inline
#define KERNEL(name, threads_max, blocks_min) __kernel void name
#define THREAD ((u32)get_local_id(0))
#define THREADS ((u32)get_local_size(0))
#define BLOCK ((u32)get_group_id(0))
#define BLOCKS ((u32)get_num_groups(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define MULHI(a, b) mul_hi((u32)(a), (u32)(b))
#define ONES(a) popcount(a)
#define QUOTIENT(a, b) ((a) / (b))
#define ROOT(a) sqrt(a)
#define ARGS(type) const type a
/* A structure too large for parameters lies in a buffer; a part of it is copied. */
#define TABLE(type) GLOBAL const type *a
#define TABLE_AT (*a)
#define PART(type, name, from) const type name = (from)
#define ROLLED _Pragma("unroll 1")
#define READ(type, at) (*(GLOBAL const type *)(at))
#define WRITE(type, at, word) (*(GLOBAL type *)(at) = (word))
#define READ_ONCE(type, at) READ(type, at)
#define WRITE_ONCE(type, at, word) WRITE(type, at, word)
#define UNROLL _Pragma("unroll")
