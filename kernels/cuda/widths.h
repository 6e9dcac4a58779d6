/* strips.cl-cu and pack.cl-cu for every word width. Read once for each FEW, UNPACK and SAME. */
#define W 1
#include "strips.cl-cu"
#include "pack.cl-cu"
#undef W
#define W 2
#include "strips.cl-cu"
#include "pack.cl-cu"
#undef W
#define W 4
#include "strips.cl-cu"
#include "pack.cl-cu"
#undef W
#define W 8
#include "strips.cl-cu"
#include "pack.cl-cu"
#undef W
#define W 16
#include "strips.cl-cu"
#include "pack.cl-cu"
#undef W
