/* The shared kernels, for every word width and both directions, with a block a tile and with fewer. */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"

#define FEW 0
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
#undef W
#undef UNPACK
#undef FEW
#define FEW 1
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
#undef W
#undef UNPACK
#undef FEW
