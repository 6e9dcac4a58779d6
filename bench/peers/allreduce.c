/* What memory allows an all-reduce of doubles: processes that map each other's buffers do what one does, without any
 * protocol but a barrier. Usage: allreduce RANKS BYTES [SECONDS]. Linux on x86-64; needs a processor for each rank.
 *
 * Each rank writes its input before each call, and inputs rotate over 64 MiB a rank. Times are from a common begin to the
 * last rank's end, the median over calls, in microseconds. "pull": each combines a slice of all inputs and then copies the
 * other slices; "push": it writes its slice to all ranks; "NT": by stores that pass the caches by. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { MAXN = 64 };
typedef struct { _Alignas(128) atomic_long v; } flag;
typedef struct { flag at[MAXN]; int over; } shared;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int n, me; static shared *sh; static long phase;
static void barrier(void) { ++phase; atomic_store_explicit(&sh->at[me].v, phase, memory_order_release);
  for (int r = 0; r < n; r++) while (atomic_load_explicit(&sh->at[r].v, memory_order_acquire) < phase) _mm_pause(); }
static char *base; static size_t bytes, span; static int sets;
static double *in(int r, int s) { return (double *)(base + ((size_t)(s * n + r) * 2) * span); }
static double *out(int r, int s) { return (double *)(base + ((size_t)(s * n + r) * 2 + 1) * span); }
__attribute__((target("avx2"))) static void reduce(int s, size_t a, size_t b, int push, int nt) {
  const double *x[MAXN]; double *o[MAXN]; int m = push ? n : 1;
  for (int r = 0; r < n; r++) x[r] = in(r, s);
  for (int r = 0; r < m; r++) o[r] = out(push ? (me + r) % n : me, s);
  for (size_t i = a; i < b; i += 8) {
    __m256d u = _mm256_loadu_pd(x[0] + i), v = _mm256_loadu_pd(x[0] + i + 4);
    for (int r = 1; r < n; r++) { u = _mm256_add_pd(u, _mm256_loadu_pd(x[r] + i)); v = _mm256_add_pd(v, _mm256_loadu_pd(x[r] + i + 4)); }
    for (int r = 0; r < m; r++) if (nt) { _mm256_stream_pd(o[r] + i, u); _mm256_stream_pd(o[r] + i + 4, v); } else { _mm256_storeu_pd(o[r] + i, u); _mm256_storeu_pd(o[r] + i + 4, v); }
  }
  if (nt) _mm_sfence();
}
__attribute__((target("avx2"))) static void copy(double *to, const double *from, size_t k, int nt) {
  if (!nt) { memcpy(to, from, k * 8); return; }
  for (size_t i = 0; i < k; i += 4) _mm256_stream_pd(to + i, _mm256_loadu_pd(from + i));
  _mm_sfence();
}
static void work(int kind, int s) {
  size_t k = bytes / 8, part = k / n, a = part * me, chunks, c;
  switch (kind) {
  case 0: memcpy(out(me, s), in(me, s), bytes); break;
  case 1: memcpy(out(me, s), in((me + 1) % n, s), bytes); break;
  case 2: case 3: case 4: /* whole slices */
    reduce(s, a, a + part, 0, kind == 4); barrier();
    for (int d = 1; d < n; d++) { int r = (me + d) % n; copy(out(me, s) + part * r, out(r, s) + part * r, part, kind >= 3); }
    break;
  case 5: reduce(s, a, a + part, 1, 0); break;
  case 6: reduce(s, a, a + part, 1, 1); break;
  case 7: /* by fragments of 128 KiB */
    chunks = bytes / (128 << 10); if (!chunks) chunks = 1; size_t f = k / chunks, fp = f / n;
    for (c = 0; c < chunks; c++) { size_t at = c * f + fp * me; reduce(s, at, at + fp, 0, 0); barrier();
      for (int d = 1; d < n; d++) { int r = (me + d) % n; copy(out(me, s) + c * f + fp * r, out(r, s) + c * f + fp * r, fp, 0); } }
    break;
  case 8: reduce(s, a, a + part, 0, 0); break;
  case 9: for (size_t i = 0; i < k; i += 8) { volatile double *q = in((me + 1) % n, s); (void)q[i]; } break;
  }
}
static int cmp(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }
int main(int argc, char **argv) {
  n = atoi(argv[1]); bytes = strtoul(argv[2], 0, 0); double limit = argc > 3 ? atof(argv[3]) : 0.3;
  static const char *names[] = {"memcpy own", "memcpy peer's", "pull", "pull, NT copies", "pull, all NT", "push", "push, NT", "pull 128K", "combine only", "touch peer's lines"};
  span = (bytes + 4095) / 4096 * 4096; sets = (int)((size_t)(64 << 20) / span); if (sets < 4) sets = 4; if (sets > 64) sets = 64;
  base = mmap(0, (size_t)sets * n * 2 * span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  madvise(base, (size_t)sets * n * 2 * span, MADV_HUGEPAGE);
  sh = mmap(0, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static double *t; t = mmap(0, (1 << 16) * sizeof(double) * MAXN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cpu_set_t all; sched_getaffinity(0, sizeof all, &all); int cpus[1024], nc = 0;
  for (int c = 0; c < 1024; c++) if (CPU_ISSET(c, &all)) cpus[nc++] = c;
  for (me = 0; me < n - 1; me++) if (!fork()) break;
  cpu_set_t one; CPU_ZERO(&one); CPU_SET(cpus[me % nc], &one); sched_setaffinity(0, sizeof one, &one);
  for (int s = 0; s < sets; s++) { memset(in(me, s), 0, bytes); memset(out(me, s), 0, bytes); }
  for (int kind = 0; kind < 10; kind++) {
    barrier(); double begin = now(); int calls = 0;
    for (;; calls++) {
      int s = calls % sets; double *x = in(me, s); for (size_t i = 0; i < bytes / 8; i++) x[i] = me + i;
      barrier(); double a = now(); work(kind, s); double b = now();
      t[(size_t)calls * MAXN + me] = b - a; barrier();
      if (!me) sh->over = now() - begin > limit || calls > 4000;
      barrier();
      if (sh->over) break;
    }
    if (!me) { static double v[1 << 16]; for (int c = 0; c <= calls; c++) { v[c] = 0; for (int r = 0; r < n; r++) if (t[(size_t)c * MAXN + r] > v[c]) v[c] = t[(size_t)c * MAXN + r]; }
      qsort(v, calls + 1, 8, cmp); printf("%2d ranks %8zu B  %-20s %8.2f us  (%d calls)\n", n, bytes, names[kind], v[calls / 2] * 1e6, calls + 1);
      fflush(stdout); }
  }
  if (me == n - 1) { while (wait(0) > 0) ; }
  return 0;
}
