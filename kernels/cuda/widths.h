/* pack.cl-cu for every word width. Read once for each FEW, UNPACK and SAME. */
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
