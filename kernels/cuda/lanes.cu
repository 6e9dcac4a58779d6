/* The library for kernels of users that put tasks (gapless_tasks.h): relocatable, to be linked with theirs. Its host's side
 * is `Out` in packets.h: seven words, of which the last is the address of an element of a ring list. */
#include "prelude_cuda.h"
#include "worker.h"
#include "gapless_tasks.h"
#include "../cuda/system.h"
#include "../cuda/packets.h"
#include "../cuda/lanes.h"
