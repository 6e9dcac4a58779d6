/* widths.h for both directions, and for moves between equal layouts. Read once for each FEW. */
#define SAME 0
#define UNPACK 0
#include "../cuda/widths.h"
#undef UNPACK
#define UNPACK 1
#include "../cuda/widths.h"
#undef SAME
#define SAME 1
#include "../cuda/widths.h"
#undef UNPACK
#undef SAME
