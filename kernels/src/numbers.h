/* Operations and types as combine.h tells them apart, and what it needs besides the preludes. */
#ifndef GAPLESS_NUMBERS_H
#define GAPLESS_NUMBERS_H

#define OP_BITS 0
#define OP_SUM 1
#define OP_PROD 2
#define OP_LOGIC 3
#define OP_ORDER 4
#define OP_LOC 5

#define TYPE_I8 0
#define TYPE_I16 1
#define TYPE_I32 2
#define TYPE_I64 3
#define TYPE_F16 4
#define TYPE_BF16 5
#define TYPE_F32 6
#define TYPE_F64 7
#define TYPE_C32 8
#define TYPE_C64 9

/* A value, whose bits are the low ones, and its index. */
typedef struct {
    u64 value;
    u32 index;
    u32 unused;
} Located;

/* The nearest one, ties to even. The device's NaNs have all bits set: they are replaced, as rounding would carry. */
INLINE u32 narrow_bf16(f32 value) {
    u32 bits = BITS_F32(value);
    return value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* A number in the order of 16-bit floats, the same for both zeros, NaN above all; `flip` is -1 to turn the order of the
 * others around. */
INLINE i32 rank16(u32 bits, u32 infinite, i32 flip) {
    i32 magnitude = (i32)(bits & 0x7fffu);
    i32 rank = bits >> 15 != 0 ? -magnitude : magnitude;
    return (u32)magnitude > infinite ? 32767 : rank ^ flip;
}

#endif
