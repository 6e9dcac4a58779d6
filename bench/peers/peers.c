/* What an MPI library takes for the work that Gapless is compared on; see xtask/src/peers.rs, which starts it,
 * and src/main.rs, which does the same work with Gapless.
 *
 *   mpicc -O2 -o peers peers.c && mpiexec -n RANKS ./peers FOLDER
 *
 * Rank r reads commands, a line each, from the fifo FOLDER/r; rank 0 answers each on the fifo FOLDER/answers
 * with two medians in seconds: of the work, and of memcpy of as many bytes, by rank 0 alone. So no rank spins
 * while another library is measured. Units: bytes and seconds. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE 64
#define PAGE 4096
#define SAMPLES_MAX 4096
#define KEPT_MAX 16
/* Bytes that the places of each side touch before the first one's turn comes again. */
static size_t rotation = 64u << 20;
static int rank, ranks;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void need(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "peers: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Numbers that look random; the same in both programs. */
static unsigned long long state;
static unsigned long long draw(unsigned long long below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct {
    double at[SAMPLES_MAX];
    int n;
} Samples;

static void add(Samples *s, double seconds) {
    if (s->n < SAMPLES_MAX) s->at[s->n++] = seconds;
}

static double median(Samples *s) {
    if (s->n == 0) return 0;
    qsort(s->at, s->n, sizeof(double), ascending);
    return s->at[s->n / 2];
}

/* A layout: `count` instances of `type`, which touch `span` bytes from the buffer's first. Places in an arena
 * begin `step` bytes apart, `many` of them in each `stretch` bytes: places of faces interleave. */
typedef struct {
    MPI_Datatype type;
    int count, made;
    size_t payload, span, step, many, stretch;
    int *pages, pages_len; /* of "pages": a list of displacements, twice over */
} Layout;

/* A type of pages of 8 KiB, whose list begins at `turns`: that of each turn is another. */
enum { PAGE_DOUBLES = 1024 };
static MPI_Datatype pages(const Layout *l, size_t turns) {
    MPI_Datatype type;
    const int *at = l->pages + turns % l->pages_len;
    MPI_Type_create_indexed_block(l->pages_len, PAGE_DOUBLES, at, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    return type;
}

static Layout dense(size_t bytes) {
    Layout l = {MPI_BYTE, (int)bytes, 0, bytes, bytes, 0, 1, (bytes + LINE - 1) / LINE * LINE + LINE};
    return l;
}

static Layout layout(const char *name, size_t bytes) {
    size_t n = 0, doubles = bytes / 8;
    Layout l = dense(bytes);
    l.count = 1;
    l.made = 1;
    if (!strcmp(name, "contiguous")) return dense(bytes);
    if (!strcmp(name, "V")) { /* half the rows of a matrix */
        while ((n + 1) * (n + 1) <= doubles) n++;
        MPI_Type_vector(n, n, 2 * n, MPI_DOUBLE, &l.type);
        l.payload = 8 * n * n;
        l.span = 16 * n * n;
    } else if (!strcmp(name, "T")) { /* its lower triangle */
        while ((n + 1) * (n + 2) / 2 <= doubles) n++;
        int *lens = malloc(n * sizeof(int)), *at = malloc(n * sizeof(int));
        for (size_t j = 0; j < n; j++) lens[j] = n - j, at[j] = j * (n + 1);
        MPI_Type_indexed(n, lens, at, MPI_DOUBLE, &l.type);
        free(lens), free(at);
        l.payload = 4 * n * (n + 1);
        l.span = 8 * n * n;
    } else if (!strcmp(name, "X")) { /* its columns, one after the other */
        MPI_Datatype column, narrow;
        while ((n + 1) * (n + 1) <= doubles) n++;
        MPI_Type_vector(n, 1, n, MPI_DOUBLE, &column);
        MPI_Type_create_resized(column, 0, 8, &narrow);
        MPI_Type_contiguous(n, narrow, &l.type);
        MPI_Type_free(&column), MPI_Type_free(&narrow);
        l.payload = l.span = 8 * n * n;
    } else if (!strcmp(name, "struct")) { /* records of three doubles and an int, every 32 bytes */
        int lens[2] = {3, 1};
        MPI_Aint at[2] = {0, 24};
        MPI_Datatype kinds[2] = {MPI_DOUBLE, MPI_INT}, record;
        MPI_Type_create_struct(2, lens, at, kinds, &record);
        MPI_Type_create_resized(record, 0, 32, &l.type);
        MPI_Type_free(&record);
        l.count = bytes / 28;
        l.payload = 28 * (size_t)l.count;
        l.span = 32 * (size_t)l.count;
    } else if (!strcmp(name, "yface")) { /* rows of a face that lies across the middle axis */
        n = bytes < (1 << 20) ? 64 : 256;
        size_t depth = bytes / (8 * n * n);
        int sizes[3] = {n, n, n}, subs[3] = {n, depth, n}, starts[3] = {0, 0, 0};
        MPI_Type_create_subarray(3, sizes, subs, starts, MPI_ORDER_C, MPI_DOUBLE, &l.type);
        l.payload = 8 * n * n * depth;
        l.span = 8 * n * n * (n - 1) + 8 * n * depth;
        l.step = 8 * n * depth; /* the rows behind */
        l.many = n / depth;
        l.stretch = 8 * n * n * n;
    } else if (!strcmp(name, "xface")) { /* elements of a face that lies across the fastest axis of 512 */
        size_t edge = 512, depth = bytes / (8 * edge * edge);
        need(depth >= 1 && depth <= 8, "an x-face has 2 to 16 MiB");
        int sizes[3] = {edge, edge, edge}, subs[3] = {edge, edge, depth}, starts[3] = {0, 0, 0};
        MPI_Type_create_subarray(3, sizes, subs, starts, MPI_ORDER_C, MPI_DOUBLE, &l.type);
        l.payload = 8 * edge * edge * depth;
        l.span = 8 * edge * edge * edge - 8 * (edge - depth);
        l.step = LINE;
        l.many = 56;
        l.stretch = 8 * edge * edge * edge;
    } else if (!strncmp(name, "list", 4) || !strncmp(name, "block", 5)) {
        /* listN[s]: blocks of N doubles with gaps, s: shuffled; blockN[s]: the same without a list of lengths */
        const char *digit = name + (*name == 'l' ? 4 : 5);
        int width = *digit - '0';
        need(width >= 1 && width <= 3, name);
        n = doubles / width;
        int *at = malloc(n * sizeof(int));
        size_t next = 0;
        state = n ^ ((unsigned long long)width << 32);
        for (size_t i = 0; i < n; i++) {
            at[i] = next;
            next += width + 1 + draw(2 * width);
        }
        if (digit[1] == 's')
            for (size_t i = n - 1; i > 0; i--) {
                size_t j = draw(i + 1);
                int t = at[i];
                at[i] = at[j], at[j] = t;
            }
        if (*name == 'l') {
            int *lens = malloc(n * sizeof(int));
            for (size_t i = 0; i < n; i++) lens[i] = width;
            MPI_Type_indexed(n, lens, at, MPI_DOUBLE, &l.type);
            free(lens);
        } else
            MPI_Type_create_indexed_block(n, width, at, MPI_DOUBLE, &l.type);
        free(at);
        l.payload = 8 * n * width;
        l.span = 8 * next;
    } else if (!strcmp(name, "pages")) { /* half of the pages of a pool, in any order, other ones on each rank */
        n = l.pages_len = doubles / PAGE_DOUBLES;
        need(n > 0, "pages have 8 KiB");
        int *at = l.pages = malloc(2 * n * sizeof(int));
        state = n + rank;
        for (size_t i = 0; i < 2 * n; i++) at[i] = i * PAGE_DOUBLES;
        for (size_t i = 0; i < n; i++) {
            size_t j = i + draw(2 * n - i);
            int t = at[i];
            at[i] = at[j], at[j] = t;
        }
        memcpy(at + n, at, n * sizeof(int));
        l.type = pages(&l, 0);
        l.payload = 8 * n * PAGE_DOUBLES;
        l.span = 2 * l.payload;
    } else
        need(0, name);
    MPI_Type_commit(&l.type);
    if (l.step == 0) l.stretch = (l.span + LINE - 1) / LINE * LINE + LINE;
    return l;
}

static void drop(Layout *l) {
    if (l->made) MPI_Type_free(&l->type);
    free(l->pages);
}

/* Memory with as many places of a layout as the rotation asks for. */
typedef struct {
    char *memory, *first;
    size_t places, at, step, many, stretch;
} Arena;

static size_t begin(const Arena *a, size_t place) {
    return place % a->many * a->step + place / a->many * a->stretch;
}

static Arena arena(const Layout *l) {
    Arena a = {0};
    a.places = rotation / l->payload + 2;
    if (a.places > 1 << 16) a.places = 1 << 16;
    a.step = l->step, a.many = l->many, a.stretch = l->stretch;
    size_t len = (a.places - 1) / a.many * a.stretch + (a.many - 1) * a.step + l->span + LINE;
    a.memory = malloc(len + PAGE);
    need(a.memory != NULL, "out of memory");
    a.first = (char *)(((size_t)a.memory + PAGE - 1) / PAGE * PAGE);
    for (size_t i = 0; i + 8 <= len; i += 8) *(size_t *)(a.first + i) = i * 0x9e3779b97f4a7c15ull;
    return a;
}

/* The next place: a step that shares no divisor with their number visits all. */
static char *turn(Arena *a) {
    size_t stride = a->places / 2 + 1;
    while (a->places > 1) {
        size_t x = stride, y = a->places;
        while (y) { size_t t = x % y; x = y, y = t; }
        if (x == 1) break;
        stride++;
    }
    a->at = (a->at + stride) % a->places;
    return a->first + begin(a, a->at);
}

/* What the last command worked on. */
static Layout here, flat;
static Arena user, wire, from, to;
static char current[128];

static void prepare(const char *name, size_t bytes) {
    char key[128];
    snprintf(key, sizeof key, "%s %zu", name, bytes);
    if (!strcmp(key, current)) return;
    if (current[0]) {
        drop(&here);
        free(user.memory), free(wire.memory), free(from.memory), free(to.memory);
    }
    strcpy(current, key);
    here = layout(name, bytes);
    flat = dense(here.payload);
    user = arena(&here), wire = arena(&flat), from = arena(&flat), to = arena(&flat);
}

static volatile char sink;
static double copied(void) {
    char *a = turn(&from), *b = turn(&to);
    double start = now();
    memcpy(b, a, flat.payload);
    double end = now();
    sink += b[flat.payload / 2];
    return end - start;
}

static void answer(FILE *out, Samples *ours, Samples *copies) {
    if (rank == 0) {
        fprintf(out, "%.9e %.9e\n", median(ours), median(copies));
        fflush(out);
    }
}

/* As many operations as make a sample that a clock can time. */
static int batch(size_t payload) { return payload >= 1 << 18 ? 1 : (1 << 18) / payload; }

static void pack(FILE *out, int packing, const char *name, size_t bytes, double seconds) {
    static Samples ours, copies;
    prepare(name, bytes);
    ours.n = copies.n = 0;
    int size, position, times = batch(here.payload);
    MPI_Pack_size(here.count, here.type, MPI_COMM_SELF, &size);
    double end = now() + seconds;
    for (int round = 0; round < 4 || now() < end; round++) {
        double total = 0, copying = 0;
        for (int i = 0; i < times; i++) {
            char *a = turn(&user), *b = turn(&wire);
            position = 0;
            double start = now();
            if (packing)
                MPI_Pack(a, here.count, here.type, b, here.payload, &position, MPI_COMM_SELF);
            else
                MPI_Unpack(b, here.payload, &position, a, here.count, here.type, MPI_COMM_SELF);
            total += now() - start;
        }
        for (int i = 0; i < times; i++) copying += copied();
        if (round == 0) continue;
        add(&ours, total / times), add(&copies, copying / times);
    }
    answer(out, &ours, &copies);
}

/* Committing an index list (where `created`, making the type too: a library may do the work there), and copying
 * the list to fresh memory. What was made is kept, so that the allocator has no memory that was touched before. */
static void commit(FILE *out, int created, size_t blocks, double seconds) {
    static Samples ours, copies;
    ours.n = copies.n = 0;
    int *at = malloc(blocks * sizeof(int));
    state = blocks;
    for (size_t i = 0, next = 0; i < blocks; i++) at[i] = next, next += 2 + draw(2);
    MPI_Datatype types[KEPT_MAX];
    int *lists[KEPT_MAX], kept = 0;
    double end = now() + seconds;
    for (int round = 0; round < 4 || (now() < end && round < KEPT_MAX); round++) {
        MPI_Datatype type;
        double start = now();
        MPI_Type_create_indexed_block(blocks, 1, at, MPI_DOUBLE, &type);
        if (!created) start = now();
        MPI_Type_commit(&type);
        double committed = now() - start;
        start = now();
        int *copy = malloc(blocks * sizeof(int));
        memcpy(copy, at, blocks * sizeof(int));
        double copying = now() - start;
        sink += copy[blocks / 2];
        types[kept] = type, lists[kept++] = copy;
        if (round == 0) continue;
        add(&ours, committed), add(&copies, copying);
    }
    while (kept-- > 0) MPI_Type_free(&types[kept]), free(lists[kept]);
    free(at);
    answer(out, &ours, &copies);
}

/* Half a round trip; both ends rotate. With `anew` each message has a type of pages of its own, at both ends. */
static void message(FILE *out, const char *name, size_t bytes, int anew, double seconds) {
    static Samples ours, copies;
    static size_t turns;
    prepare(name, bytes);
    need(!anew || here.pages, "only types of pages are made anew");
    ours.n = copies.n = 0;
    int times = batch(here.payload) > 2000 ? 2000 : batch(here.payload), other = 1 - rank, more = 1;
    double end = now() + seconds;
    for (int round = 0; more; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        for (int i = 0; i < times; i++) {
            char *a = turn(&user), *b = turn(&user);
            for (int back = 0; back < 2; back++) {
                char *place = back ? b : a;
                MPI_Datatype type = anew ? pages(&here, ++turns) : here.type;
                if (rank == back)
                    MPI_Send(place, here.count, type, other, 1, MPI_COMM_WORLD);
                else
                    MPI_Recv(place, here.count, type, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (anew) MPI_Type_free(&type);
            }
        }
        double took = (now() - start) / times / 2;
        double copying = rank == 0 ? copied() : 0; /* alone: two copies at a time are slower */
        if (round > 0) add(&ours, took), add(&copies, copying);
        more = round < 4 || now() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    answer(out, &ours, &copies);
}

/* Time of a message, of many on their way at once. */
static void rate(FILE *out, size_t bytes, int window, double seconds) {
    static Samples ours, copies;
    prepare("contiguous", bytes);
    ours.n = copies.n = 0;
    int other = 1 - rank, more = 1, times = 100;
    MPI_Request *pending = malloc(window * sizeof(MPI_Request));
    char *memory = malloc(window * bytes), token = 0;
    memset(memory, 1, window * bytes);
    double end = now() + seconds;
    for (int round = 0; more; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        for (int i = 0; i < times; i++) {
            for (int k = 0; k < window; k++)
                if (rank == 0)
                    MPI_Isend(memory + k * bytes, bytes, MPI_BYTE, other, 2, MPI_COMM_WORLD, &pending[k]);
                else
                    MPI_Irecv(memory + k * bytes, bytes, MPI_BYTE, other, 2, MPI_COMM_WORLD, &pending[k]);
            MPI_Waitall(window, pending, MPI_STATUSES_IGNORE); /* MPICH's header makes gcc warn here */
            if (rank == 0)
                MPI_Recv(&token, 1, MPI_BYTE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            else
                MPI_Send(&token, 1, MPI_BYTE, other, 3, MPI_COMM_WORLD);
        }
        double took = (now() - start) / times / window;
        double copying = rank == 0 ? copied() : 0;
        if (round > 0) add(&ours, took), add(&copies, copying);
        more = round < 4 || now() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    free(pending), free(memory);
    answer(out, &ours, &copies);
}

/* Lets a rank be late for a slot by so much. */
#define LATE 1e-6
#define SLOTS_MAX 2000

/* Does a collective once. Blocks are `each` elements of `type`; vectors are all of them. */
static void perform(MPI_Comm world, const char *op, void *send, void *recv, int each, int all, MPI_Datatype type) {
    if (!strcmp(op, "barrier")) MPI_Barrier(world);
    else if (!strcmp(op, "bcast")) MPI_Bcast(rank == 0 ? send : recv, all, type, 0, world);
    else if (!strcmp(op, "gather")) MPI_Gather(send, each, type, recv, each, type, 0, world);
    else if (!strcmp(op, "scatter")) MPI_Scatter(send, each, type, recv, each, type, 0, world);
    else if (!strcmp(op, "allgather")) MPI_Allgather(send, each, type, recv, each, type, world);
    else if (!strcmp(op, "alltoall")) MPI_Alltoall(send, each, type, recv, each, type, world);
    else if (!strcmp(op, "reduce")) MPI_Reduce(send, recv, all, type, MPI_SUM, 0, world);
    else if (!strcmp(op, "allreduce")) MPI_Allreduce(send, recv, all, type, MPI_SUM, world);
    else if (!strcmp(op, "reduce_scatter_block"))
        MPI_Reduce_scatter_block(send, recv, each, type, MPI_SUM, world);
    else if (!strcmp(op, "scan")) MPI_Scan(send, recv, all, type, MPI_SUM, world);
    else need(0, op);
}

/* A collective, from the moment at which all ranks begin to the end of the last. All begin at slots of one clock, so no
 * library's barrier shows; a slot for which a rank came late does not count. Each rank's buffers rotate, and what it
 * sends was written just before. `bytes`: the longer of a rank's two buffers, packed. */
static void collective(FILE *out, const char *op, const char *name, size_t bytes, double seconds) {
    static Samples ours, copies;
    static double ends[SLOTS_MAX], late[SLOTS_MAX];
    int each = bytes / 8 / ranks, gaps = !strcmp(name, "comb");
    int whole = !strcmp(op, "bcast") || !strcmp(op, "reduce") || !strcmp(op, "allreduce") || !strcmp(op, "scan");
    int all = whole ? (int)(bytes / 8) : each * ranks;
    MPI_Datatype type = MPI_DOUBLE;
    if (gaps) {
        MPI_Type_create_resized(MPI_DOUBLE, 0, 16, &type);
        MPI_Type_commit(&type);
    }
    size_t place = ((size_t)bytes * (gaps ? 2 : 1) + 2 * LINE) / LINE * LINE;
    size_t places = rotation / ranks / place + 2;
    double *mine = malloc(place * places), *theirs = malloc(place * places);
    need(mine && theirs, "out of memory");
    memset(mine, 0, place * places), memset(theirs, 0, place * places);
    char key[32] = "contiguous";
    prepare(key, bytes);
    ours.n = copies.n = 0;
    size_t turns = 0;
    double slot = 0;
    for (int again = 0; again < 8 && ours.n < 4; again++) {
        /* How long it takes, with the writing: the longest of a few. */
        double took = 0, most;
        for (int i = 0; i < 4; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = now();
            double *send = mine + turns % places * (place / 8), *recv = theirs + turns % places * (place / 8);
            for (size_t k = 0; k < place / 8; k++) send[k] = turns + rank;
            perform(MPI_COMM_WORLD, op, send, recv, each, all, type);
            turns++;
            if (i > 0 && now() - start > took) took = now() - start;
        }
        MPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (2 * most + 5e-6 > slot) slot = 2 * most + 5e-6;
        else slot *= 2;
        int slots = seconds / slot < 8 ? 8 : seconds / slot > SLOTS_MAX ? SLOTS_MAX : seconds / slot;
        double first = now() + slot + 1e-4;
        MPI_Bcast(&slots, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Bcast(&slot, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        MPI_Bcast(&first, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        for (int i = 0; i < slots; i++) {
            double *send = mine + turns % places * (place / 8), *recv = theirs + turns % places * (place / 8);
            for (size_t k = 0; k < place / 8; k++) send[k] = turns + rank;
            turns++;
            double begin = first + i * slot;
            late[i] = now() - begin;
            while (now() < begin) {}
            perform(MPI_COMM_WORLD, op, send, recv, each, all, type);
            ends[i] = now() - begin;
        }
        MPI_Allreduce(MPI_IN_PLACE, ends, slots, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, late, slots, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        for (int i = 0; i < slots; i++)
            if (late[i] <= LATE) add(&ours, ends[i]);
    }
    if (rank == 0)
        for (int i = 0; i < 8; i++) add(&copies, copied());
    free(mine), free(theirs);
    if (gaps) MPI_Type_free(&type);
    answer(out, &ours, &copies);
}

/* Different short collectives on three communicators, as in cli/src/collectives/mixture.rs; elements of the vector, or of
 * a block. */
static const struct {
    int comm;
    const char *op;
    int len;
} CALLS[] = {
    {0, "allreduce", 1}, {1, "barrier", 0}, {2, "bcast", 8}, {0, "allgather", 1}, {1, "allreduce", 8}, {2, "reduce", 1},
    {0, "barrier", 0}, {1, "alltoall", 1}, {2, "allreduce", 32}, {0, "bcast", 1}, {1, "gather", 1}, {2, "scatter", 8},
    {0, "scan", 1}, {1, "reduce_scatter_block", 1}, {2, "barrier", 0}, {0, "reduce", 8},
};
enum { CALLS_LEN = sizeof CALLS / sizeof *CALLS, MIXTURES = 500 };

/* The time of all of them, in turn or each repeated: from a barrier to the last rank's end. */
static void mixture(FILE *out, int repeats, double seconds) {
    static Samples ours, copies;
    static MPI_Comm comms[3];
    static double *send, *recv;
    if (!send) {
        for (int i = 0; i < 3; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        send = calloc(CALLS_LEN * 8 * (ranks + 4), 8), recv = calloc(CALLS_LEN * 8 * (ranks + 4), 8);
        need(send && recv, "out of memory");
    }
    prepare("contiguous", 8);
    ours.n = copies.n = 0;
    int more = 1;
    double end = now() + seconds;
    for (int round = 0; more; round++) {
        double took = 0, most;
        for (int k = 0; k < (repeats ? CALLS_LEN : 1); k++) {
            MPI_Barrier(comms[0]);
            double start = now();
            for (int i = 0; i < MIXTURES; i++)
                for (int at = repeats ? k : 0; at < (repeats ? k + 1 : CALLS_LEN); at++) {
                    int place = at * 8 * (ranks + 4), len = CALLS[at].len;
                    perform(comms[CALLS[at].comm], CALLS[at].op, send + place, recv + place, len, len, MPI_DOUBLE);
                }
            took += (now() - start) / MIXTURES;
        }
        MPI_Allreduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (round > 0) add(&ours, most), add(&copies, rank == 0 ? copied() : 0);
        more = round < 4 || now() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    answer(out, &ours, &copies);
}

/* One-sided operations of rank 0 on memory of rank 1, which waits in a barrier: each ended there before the next, by a
 * flush; "lock", by an epoch of its own. With "idle-" before it, rank 1 sleeps outside the library meanwhile. "comb" is
 * every other number, "rows" are eight of sixteen, at both ends. */
static void one_sided(FILE *out, const char *op, const char *name, size_t bytes, double seconds) {
    static Samples ours, copies;
    prepare("contiguous", bytes);
    ours.n = copies.n = 0;
    int idle = !strncmp(op, "idle-", 5);
    if (idle) op += 5;
    int more = 1, n = bytes / 8, locks = !strcmp(op, "lock"), gaps = strcmp(name, "contiguous") != 0;
    int times = bytes > 16384 ? 2000 * 16384ull / bytes : 2000, count = gaps ? 1 : n, run = !strcmp(name, "rows") ? 8 : 1;
    if (times < 8) times = 8;
    need(!gaps || run == 8 || !strcmp(name, "comb"), name);
    MPI_Datatype type = MPI_DOUBLE;
    if (gaps) MPI_Type_vector(n / run, run, 2 * run, MPI_DOUBLE, &type), MPI_Type_commit(&type);
    size_t span = gaps ? 2 * bytes : bytes;
    double *memory, *local = aligned_alloc(64, (span + 63) / 64 * 64), *old = calloc(span, 1);
    for (size_t i = 0; i < span / 8; i++) local[i] = 1.0 - (double)(i % 3); /* no page of zeros that the system shares */
    MPI_Win win;
    MPI_Win_allocate(span, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    memset(memory, 0, span);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && !locks) MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, win);
    double end = now() + seconds;
    for (int round = 0; more; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        struct timespec nap = {0, 40 * 1000 * 1000};
        if (idle && rank == 1) nanosleep(&nap, NULL);
        double start = now();
        for (int i = 0; rank == 0 && i < times; i++) {
            local[0] = i;
            if (locks) {
                MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, win);
                MPI_Put(local, n, MPI_DOUBLE, 1, 0, n, MPI_DOUBLE, win);
                MPI_Win_unlock(1, win);
                continue;
            }
            if (!strcmp(op, "put")) MPI_Put(local, count, type, 1, 0, count, type, win);
            else if (!strcmp(op, "get")) MPI_Get(local, count, type, 1, 0, count, type, win);
            else if (!strcmp(op, "accumulate"))
                MPI_Accumulate(local, count, type, 1, 0, count, type, MPI_SUM, win);
            else if (!strcmp(op, "fetch")) MPI_Fetch_and_op(local, old, MPI_LONG, 1, 0, MPI_SUM, win);
            else need(0, op);
            MPI_Win_flush(1, win);
        }
        double took = (now() - start) / times;
        if (rank == 0 && round > 0) add(&ours, took), add(&copies, copied());
        MPI_Barrier(MPI_COMM_WORLD);
        more = round < 4 || now() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0 && !locks) MPI_Win_unlock(1, win);
    MPI_Win_free(&win);
    if (gaps) MPI_Type_free(&type);
    free(local), free(old);
    answer(out, &ours, &copies);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    need(argc >= 2, "usage: peers FOLDER [ROTATION_BYTES]");
    if (argc > 2) rotation = strtoull(argv[2], NULL, 10);
    char path[4096], command[256];
    snprintf(path, sizeof path, "%s/%d", argv[1], rank);
    FILE *in = fopen(path, "r"), *out = NULL;
    need(in != NULL, path);
    if (rank == 0) {
        snprintf(path, sizeof path, "%s/answers", argv[1]);
        out = fopen(path, "w");
        need(out != NULL, path);
    }
    while (fgets(command, sizeof command, in)) {
        char name[64], op[64];
        size_t bytes;
        int window;
        double seconds;
        if (sscanf(command, "pack %63s %zu %lf", name, &bytes, &seconds) == 3)
            pack(out, 1, name, bytes, seconds);
        else if (sscanf(command, "unpack %63s %zu %lf", name, &bytes, &seconds) == 3)
            pack(out, 0, name, bytes, seconds);
        else if (sscanf(command, "commit %zu %lf", &bytes, &seconds) == 2)
            commit(out, 0, bytes, seconds);
        else if (sscanf(command, "create %zu %lf", &bytes, &seconds) == 2)
            commit(out, 1, bytes, seconds);
        else if (sscanf(command, "message %63s %zu %lf", name, &bytes, &seconds) == 3)
            message(out, name, bytes, 0, seconds);
        else if (sscanf(command, "anew %63s %zu %lf", name, &bytes, &seconds) == 3)
            message(out, name, bytes, 1, seconds);
        else if (sscanf(command, "rate %zu %d %lf", &bytes, &window, &seconds) == 3)
            rate(out, bytes, window, seconds);
        else if (sscanf(command, "mixture %63s %lf", op, &seconds) == 2)
            mixture(out, !strcmp(op, "repeated"), seconds);
        else if (sscanf(command, "coll %63s %63s %zu %lf", op, name, &bytes, &seconds) == 4)
            collective(out, op, name, bytes, seconds);
        else if (sscanf(command, "window %63s %63s %zu %lf", op, name, &bytes, &seconds) == 4)
            one_sided(out, op, name, bytes, seconds);
        else
            need(0, command);
    }
    MPI_Finalize();
    return 0;
}
