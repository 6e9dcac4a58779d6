/* The shared kernels, for every word width, both directions and between equal layouts, with a block a tile
 * and with fewer. */
#include "prelude_cuda.h"
#include "args.h"
#include "lookup.h"

#define FEW 0
#include "../cuda/ways.h"
#undef FEW
#define FEW 1
#include "../cuda/ways.h"
#undef FEW
