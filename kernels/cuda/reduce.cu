/* The shared kernels of reductions, for every operation and all types that it has (Combine in reduce.rs). */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"
#include "numbers.h"
#define PASTED(op, type, form) reduce_##op##_##type##_##form
#define EXPANDED(op, type, form) PASTED(op, type, form)
#define NAME(form) EXPANDED(OP_NAME, TYPE_NAME, form)

#define OP OP_BITS
#define OP_NAME bits
#include "../cuda/types.h"
#undef OP
#undef OP_NAME

#define OP OP_SUM
#define OP_NAME sum
#include "../cuda/types.h"
#undef OP
#undef OP_NAME

#define OP OP_PROD
#define OP_NAME prod
#include "../cuda/types.h"
#undef OP
#undef OP_NAME

#define OP OP_LOGIC
#define OP_NAME logic
#include "../cuda/types.h"
#undef OP
#undef OP_NAME

#define OP OP_ORDER
#define OP_NAME order
#include "../cuda/types.h"
#undef OP
#undef OP_NAME

#define OP OP_LOC
#define OP_NAME loc
#include "../cuda/types.h"
#undef OP
#undef OP_NAME
