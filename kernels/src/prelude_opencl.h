/* What strips.cl-cu and pack.cl-cu need, in OpenCL C 1.2. */
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef short i16;
typedef int i32;
typedef ulong u64;
typedef long i64;
typedef float f32;
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
#define READ_INDEX(type, at) (*(GLOBAL const volatile type *)(at))
#define LOWER(at, number) atomic_min((volatile GLOBAL u32 *)(at), number)
#define UNROLL _Pragma("unroll")

/* Reductions: words of 16 bytes as others, floats as bits, arithmetic that is never contracted. */
#pragma OPENCL FP_CONTRACT OFF
#define FOUR32(a, b, c, d) ((u128)(a, b, c, d))
#define PAIR128(low, high) as_uint4((ulong2)(low, high))
#define FIRST32(word) (word).s0
#define SECOND32(word) (word).s1
#define THIRD32(word) (word).s2
#define FOURTH32(word) (word).s3
#define LOW64(word) as_ulong2(word).s0
#define HIGH64(word) as_ulong2(word).s1
#define AS_F32(bits) as_float(bits)
#define BITS_F32(value) as_uint(value)
#define AS_F64(bits) as_double(bits)
#define BITS_F64(value) as_ulong(value)
#define ADD32(a, b) ((a) + (b))
#define SUB32(a, b) ((a) - (b))
#define MUL32(a, b) ((a) * (b))
#define ADD64(a, b) ((a) + (b))
#define SUB64(a, b) ((a) - (b))
#define MUL64(a, b) ((a) * (b))
INLINE f32 WIDEN_HALF(u32 bits) {
    u16 half_bits = (u16)bits;
    return vload_half(0, (const half *)&half_bits);
}
INLINE u32 NARROW_HALF(f32 value) {
    u16 half_bits;
    vstore_half_rte(value, 0, (half *)&half_bits);
    return half_bits;
}
/* A side is a buffer and a place in it. */
#define BUFFERS                                                                             \
    GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL u8 *b2, GLOBAL u8 *b3, GLOBAL u8 *b4, GLOBAL u8 *b5, \
        GLOBAL u8 *b6, GLOBAL u8 *b7, GLOBAL u8 *b8,
#define SIDES GLOBAL u8 *bases[] = {b0, b1, b2, b3, b4, b5, b6, b7, b8};
#define BASE(side) bases[side]
#define SIDE_TYPE(type) GLOBAL const type *
