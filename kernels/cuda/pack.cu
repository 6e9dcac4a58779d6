/* The shared kernels, for every word width and both directions. */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"

#define UNPACK 0
#define W 1
#include "pack.cl-cu"
#undef W
#define W 2
#include "pack.cl-cu"
#undef W
#define W 4
#include "pack.cl-cu"
#undef W
#define W 8
#include "pack.cl-cu"
#undef W
#define W 16
#include "pack.cl-cu"
#undef W
#undef UNPACK

#define UNPACK 1
#define W 1
#include "pack.cl-cu"
#undef W
#define W 2
#include "pack.cl-cu"
#undef W
#define W 4
#include "pack.cl-cu"
#undef W
#define W 8
#include "pack.cl-cu"
#undef W
#define W 16
#include "pack.cl-cu"
