/* What becomes of two elements, for CUDA C++ and OpenCL C. Read once for each operation and type, with OP and TYPE
 * defined; reduce.cl-cu follows each time.
 *
 * The results are those of gapless-engine's host reducer, bit for bit: every operation is rounded on its own, nothing
 * is contracted, 16-bit floats are combined as 32-bit ones and rounded, integers wrap. Only NaNs may differ in
 * their payload. `mask` tells operations apart that share a kernel:
 *
 * | OP    | operations      | mask |
 * |-------|-----------------|------|
 * | BITS  | and, or, xor    | low half: bits of `a & b` that count; high half: those of `a ^ b` |
 * | LOGIC | and, or, xor    | bit 2x + y is the result for truths x and y |
 * | ORDER | maximum, minimum| integers: flips bits so that the larger unsigned one wins; floats: all ones for minimum |
 * | LOC   | the same of pairs | all ones for minimum |
 *
 * A VALUE is an element in registers. ELEMENT are its bytes in memory, which are read and written in parts of
 * PART_BYTES, the alignment of what C calls the type. */
#undef ELEMENT
#undef PART_BYTES
#undef VALUE
#undef IS_PAIR
#undef INFINITE
#undef WIDEN
#undef NARROW
#define IS_PAIR (OP == OP_LOC)

#if TYPE == TYPE_I8
#define ELEMENT 1
#define PART_BYTES 1
#elif TYPE == TYPE_I16 || TYPE == TYPE_F16 || TYPE == TYPE_BF16
#define ELEMENT (IS_PAIR ? 6 : 2)
#define PART_BYTES 2
#elif TYPE == TYPE_I32 || TYPE == TYPE_F32
#define ELEMENT (IS_PAIR ? 8 : 4)
#define PART_BYTES 4
#elif TYPE == TYPE_I64 || TYPE == TYPE_F64
#define ELEMENT (IS_PAIR ? 12 : 8)
#define PART_BYTES (IS_PAIR ? 4 : 8)
#elif TYPE == TYPE_C32
#define ELEMENT 8
#define PART_BYTES 4
#elif TYPE == TYPE_C64
#define ELEMENT 16
#define PART_BYTES 8
#endif

#if TYPE == TYPE_F16
#define INFINITE 0x7c00u
#elif TYPE == TYPE_BF16
#define INFINITE 0x7f80u
#endif

#if OP == OP_LOC
#define VALUE Located
#elif TYPE == TYPE_C64
#define VALUE u128
#elif ELEMENT == 8
#define VALUE u64
#else
#define VALUE u32
#endif

/* An element from memory and back. */
#if OP == OP_LOC
INLINE VALUE NAME(get)(GLOBAL const u8 *at) {
    Located got;
#if TYPE == TYPE_I16
    got.value = READ(u16, at);
    got.index = (u32)READ(u16, at + 2) | (u32)READ(u16, at + 4) << 16;
#elif ELEMENT == 12
    got.value = (u64)READ(u32, at) | (u64)READ(u32, at + 4) << 32;
    got.index = READ(u32, at + 8);
#else
    got.value = READ(u32, at);
    got.index = READ(u32, at + 4);
#endif
    return got;
}
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) {
#if TYPE == TYPE_I16
    WRITE(u16, at, (u16)put.value);
    WRITE(u16, at + 2, (u16)put.index);
    WRITE(u16, at + 4, (u16)(put.index >> 16));
#elif ELEMENT == 12
    WRITE(u32, at, (u32)put.value);
    WRITE(u32, at + 4, (u32)(put.value >> 32));
    WRITE(u32, at + 8, put.index);
#else
    WRITE(u32, at, (u32)put.value);
    WRITE(u32, at + 4, put.index);
#endif
}
#elif TYPE == TYPE_C64
INLINE VALUE NAME(get)(GLOBAL const u8 *at) { return PAIR128(READ(u64, at), READ(u64, at + 8)); }
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) {
    WRITE(u64, at, LOW64(put));
    WRITE(u64, at + 8, HIGH64(put));
}
#elif TYPE == TYPE_C32
INLINE VALUE NAME(get)(GLOBAL const u8 *at) {
    return (u64)READ(u32, at) | (u64)READ(u32, at + 4) << 32;
}
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) {
    WRITE(u32, at, (u32)put);
    WRITE(u32, at + 4, (u32)(put >> 32));
}
#elif ELEMENT == 8
INLINE VALUE NAME(get)(GLOBAL const u8 *at) { return READ(u64, at); }
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) { WRITE(u64, at, put); }
#elif ELEMENT == 4
INLINE VALUE NAME(get)(GLOBAL const u8 *at) { return READ(u32, at); }
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) { WRITE(u32, at, put); }
#elif ELEMENT == 2
INLINE VALUE NAME(get)(GLOBAL const u8 *at) { return READ(u16, at); }
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) { WRITE(u16, at, (u16)put); }
#else
INLINE VALUE NAME(get)(GLOBAL const u8 *at) { return READ(u8, at); }
INLINE void NAME(put)(GLOBAL u8 *at, VALUE put) { WRITE(u8, at, (u8)put); }
#endif

/* 16-bit floats as 32-bit ones and back: to nearest, ties to even. */
#if TYPE == TYPE_F16
#define WIDEN(a) WIDEN_HALF(a)
#define NARROW(a) NARROW_HALF(a)
#elif TYPE == TYPE_BF16
#define WIDEN(a) AS_F32((a) << 16)
#define NARROW(a) narrow_bf16(a)
#endif

/* `a op b`. Of elements shorter than 4 bytes the upper bits are zero before and after. */
INLINE VALUE NAME(one)(VALUE a, VALUE b, u64 mask) {
#if OP == OP_BITS
    return (a & b & (VALUE)(u32)mask) | ((a ^ b) & (VALUE)(u32)(mask >> 32));
#elif OP == OP_LOGIC
    return (VALUE)((u32)mask >> ((a != 0 ? 2u : 0u) + (b != 0 ? 1u : 0u)) & 1u);
#elif OP == OP_LOC
#if TYPE == TYPE_F32
    u32 flip = (u32)mask & 0x80000000u;
    f32 l = AS_F32((u32)a.value ^ flip), r = AS_F32((u32)b.value ^ flip);
#elif TYPE == TYPE_F64
    u64 flip = mask & 0x8000000000000000ul;
    f64 l = AS_F64(a.value ^ flip), r = AS_F64(b.value ^ flip);
#elif TYPE == TYPE_I16
    i64 l = (i64)(i16)a.value ^ (i64)mask, r = (i64)(i16)b.value ^ (i64)mask;
#elif TYPE == TYPE_I32
    i64 l = (i64)(i32)a.value ^ (i64)mask, r = (i64)(i32)b.value ^ (i64)mask;
#else
    i64 l = (i64)a.value ^ (i64)mask, r = (i64)b.value ^ (i64)mask;
#endif
    u32 left = l > r || l != l;
    u32 right = r > l || r != r || (i32)b.index < (i32)a.index;
    return left || !right ? a : b;
#elif OP == OP_ORDER
#if TYPE == TYPE_F32
    u32 flip = (u32)mask & 0x80000000u;
    f32 l = AS_F32(a ^ flip), r = AS_F32(b ^ flip);
    return r > l || r != r ? b : a;
#elif TYPE == TYPE_F64
    u64 flip = mask & 0x8000000000000000ul;
    f64 l = AS_F64(a ^ flip), r = AS_F64(b ^ flip);
    return r > l || r != r ? b : a;
#elif TYPE == TYPE_F16 || TYPE == TYPE_BF16
    i32 l = rank16(a, INFINITE, (i32)mask), r = rank16(b, INFINITE, (i32)mask);
    return r > l ? b : a;
#else
    return (b ^ (VALUE)mask) > (a ^ (VALUE)mask) ? b : a;
#endif
#elif TYPE == TYPE_C32
    f32 ar = AS_F32((u32)a), ai = AS_F32((u32)(a >> 32));
    f32 br = AS_F32((u32)b), bi = AS_F32((u32)(b >> 32));
    f32 re = SUB32(MUL32(ar, br), MUL32(ai, bi)), im = ADD32(MUL32(ar, bi), MUL32(ai, br));
    return (u64)BITS_F32(re) | (u64)BITS_F32(im) << 32;
#elif TYPE == TYPE_C64
    f64 ar = AS_F64(LOW64(a)), ai = AS_F64(HIGH64(a)), br = AS_F64(LOW64(b)), bi = AS_F64(HIGH64(b));
    f64 re = SUB64(MUL64(ar, br), MUL64(ai, bi)), im = ADD64(MUL64(ar, bi), MUL64(ai, br));
    return PAIR128(BITS_F64(re), BITS_F64(im));
#elif TYPE == TYPE_F32
    return BITS_F32(OP == OP_SUM ? ADD32(AS_F32(a), AS_F32(b)) : MUL32(AS_F32(a), AS_F32(b)));
#elif TYPE == TYPE_F64
    return BITS_F64(OP == OP_SUM ? ADD64(AS_F64(a), AS_F64(b)) : MUL64(AS_F64(a), AS_F64(b)));
#elif TYPE == TYPE_F16 || TYPE == TYPE_BF16
    return NARROW(OP == OP_SUM ? ADD32(WIDEN(a), WIDEN(b)) : MUL32(WIDEN(a), WIDEN(b)));
#elif ELEMENT == 1
    return (OP == OP_SUM ? a + b : a * b) & 0xffu;
#elif ELEMENT == 2
    return (OP == OP_SUM ? a + b : a * b) & 0xffffu;
#else
    return OP == OP_SUM ? a + b : a * b;
#endif
}

#if !IS_PAIR
/* The elements of 16 bytes. */
#if ELEMENT < 8
INLINE u32 NAME(four)(u32 a, u32 b, u64 mask) {
#if ELEMENT == 4 || OP == OP_BITS
    return NAME(one)(a, b, mask);
#elif ELEMENT == 2
    return NAME(one)(a & 0xffffu, b & 0xffffu, mask) | NAME(one)(a >> 16, b >> 16, mask) << 16;
#elif OP == OP_SUM
    return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u);
#else
    return NAME(one)(a & 0xffu, b & 0xffu, mask) | NAME(one)(a >> 8 & 0xffu, b >> 8 & 0xffu, mask) << 8 |
           NAME(one)(a >> 16 & 0xffu, b >> 16 & 0xffu, mask) << 16 | NAME(one)(a >> 24, b >> 24, mask) << 24;
#endif
}
#endif
INLINE u128 NAME(all)(u128 a, u128 b, u64 mask) {
#if TYPE == TYPE_C64
    return NAME(one)(a, b, mask);
#elif ELEMENT == 8
    return PAIR128(NAME(one)(LOW64(a), LOW64(b), mask), NAME(one)(HIGH64(a), HIGH64(b), mask));
#else
    return FOUR32(NAME(four)(FIRST32(a), FIRST32(b), mask), NAME(four)(SECOND32(a), SECOND32(b), mask),
                  NAME(four)(THIRD32(a), THIRD32(b), mask), NAME(four)(FOURTH32(a), FOURTH32(b), mask));
#endif
}
#endif
