/* relay.h for every word width. Read once for each UNPACK. */
#define W 1
#include "../cuda/relay.h"
#undef W
#define W 2
#include "../cuda/relay.h"
#undef W
#define W 4
#include "../cuda/relay.h"
#undef W
#define W 8
#include "../cuda/relay.h"
#undef W
#define W 16
#include "../cuda/relay.h"
#undef W
