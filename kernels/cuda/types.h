/* combine.h and reduce.cl-cu for every type that OP has. */
#if OP != OP_LOC
#define TYPE TYPE_I8
#define TYPE_NAME i8
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP != OP_BITS
#define TYPE TYPE_I16
#define TYPE_NAME i16
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#define TYPE TYPE_I32
#define TYPE_NAME i32
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#if OP != OP_BITS
#define TYPE TYPE_I64
#define TYPE_NAME i64
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_SUM || OP == OP_PROD || OP == OP_ORDER
#define TYPE TYPE_F16
#define TYPE_NAME f16
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_SUM || OP == OP_PROD || OP == OP_ORDER
#define TYPE TYPE_BF16
#define TYPE_NAME bf16
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_SUM || OP == OP_PROD || OP == OP_ORDER || OP == OP_LOC
#define TYPE TYPE_F32
#define TYPE_NAME f32
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_SUM || OP == OP_PROD || OP == OP_ORDER || OP == OP_LOC
#define TYPE TYPE_F64
#define TYPE_NAME f64
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_PROD
#define TYPE TYPE_C32
#define TYPE_NAME c32
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
#if OP == OP_PROD
#define TYPE TYPE_C64
#define TYPE_NAME c64
#include "combine.h"
#include "reduce.cl-cu"
#undef TYPE
#undef TYPE_NAME
#endif
