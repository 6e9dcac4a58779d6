/* What `figures hosts` measures, with an MPI library: rank 0 prints a line for each piece of work, its messages, their
 * length in bytes, and the median of the seconds that it takes (of a round trip, half). Two ranks.
 *
 * hosts [SECONDS]: for each piece of work, about. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 25, WINDOW_MAX = 64 };

static const struct { int window, count, len; } works[] = {
    {0, 1, 8}, {0, 1, 1 << 10}, {0, 1, 16 << 10}, {0, 1, 256 << 10},
    {1, 64, 8}, {1, 64, 1 << 10}, {1, 64, 16 << 10}, {1, 16, 1 << 20}, {1, 4, 8 << 20},
};

static double turn(int rank, int at, int times, char *bytes)
{
    int count = works[at].count, len = works[at].len, peer = 1 - rank;
    MPI_Request requests[WINDOW_MAX];
    char one = 0;
    double begin = MPI_Wtime();
    for (int time = 0; time < times; time++) {
        if (!works[at].window) {
            if (rank == 0) {
                MPI_Send(bytes, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
                MPI_Recv(bytes, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(bytes, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(bytes, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            }
            continue;
        }
        for (int i = 0; i < count; i++) {
            char *message = bytes + (size_t)i * len;
            if (rank == 0)
                MPI_Isend(message, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(message, len, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&one, 1, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&one, 1, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - begin) / times / (works[at].window ? 1 : 2);
}

/* A processor that the other rank does not share, if there are two: the system may leave both on one for seconds. */
static void settle(void)
{
    const char *hydra = getenv("PMI_RANK"), *prte = getenv("OMPI_COMM_WORLD_RANK");
    int rank = hydra ? atoi(hydra) : prte ? atoi(prte) : 0;
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) || CPU_COUNT(&may) < 2)
        return;
    CPU_ZERO(&one);
    for (int number = 0, at = 0; number < CPU_SETSIZE; number++)
        if (CPU_ISSET(number, &may) && at++ == rank)
            CPU_SET(number, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    int rank, size;
    settle();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = argc > 1 ? atof(argv[1]) : 0.3, medians[ROUNDS];
    char *bytes = calloc(1, 64 << 20);
    if (size != 2 || bytes == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int at = 0; at < (int)(sizeof works / sizeof *works); at++) {
        double first = turn(rank, at, 2, bytes);
        int times = 2;
        while (times < 1 << 20 && times * first < seconds / ROUNDS)
            times *= 2;
        MPI_Bcast(&times, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int round = 0; round < ROUNDS; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            medians[round] = turn(rank, at, times, bytes);
        }
        qsort(medians, ROUNDS, sizeof *medians, by_size);
        if (rank == 0)
            printf("hosts %d %d %.9g\n", works[at].count, works[at].len, medians[ROUNDS / 2]);
    }
    free(bytes);
    MPI_Finalize();
    return 0;
}
