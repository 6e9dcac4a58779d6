/* The worker, to be linked with functions of users (gapless_tasks.h) and with one that calls them by number, which the host
 * writes (`worker.rs`). */
#define WORKER_LINKED 1
#include "../cuda/worker.cu"
