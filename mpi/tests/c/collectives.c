/* Each collective in its three forms, in place and not, on any number of ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, bad;

static void expect(int good, const char *what, int form)
{
    if (!good) {
        printf("rank %d of %d: %s, form %d\n", rank, size, what, form);
        bad = 1;
    }
}

/* Ends a collective that was begun or described: one of three forms. */
static void end(int form, MPI_Request *request)
{
    if (form == 2)
        MPI_Start(request);
    if (form > 0)
        MPI_Wait(request, MPI_STATUS_IGNORE);
    if (form == 2)
        MPI_Request_free(request);
}

#define FORMS(name, iname, ...)                                                                                        \
    do {                                                                                                               \
        MPI_Request request;                                                                                           \
        if (form == 0)                                                                                                 \
            MPI_##name(__VA_ARGS__, MPI_COMM_WORLD);                                                                   \
        else if (form == 1)                                                                                            \
            MPI_##iname(__VA_ARGS__, MPI_COMM_WORLD, &request);                                                        \
        else                                                                                                           \
            MPI_##name##_init(__VA_ARGS__, MPI_COMM_WORLD, MPI_INFO_NULL, &request);                                   \
        end(form, &request);                                                                                           \
    } while (0)

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *all = malloc(sizeof(int) * size * 2), *counts = malloc(sizeof(int) * size), *starts = malloc(sizeof(int) * size);
    int *out = malloc(sizeof(int) * size * 2);
    for (int i = 0; i < size; i++) {
        counts[i] = 1;
        starts[i] = size - 1 - i;
    }
    for (int form = 0; form < 3; form++) {
        int mine = 10 + rank, root = size - 1, value = rank == root ? 77 : 0;
        FORMS(Bcast, Ibcast, &value, 1, MPI_INT, root);
        expect(value == 77, "bcast", form);
        memset(all, 0, sizeof(int) * size);
        FORMS(Gather, Igather, &mine, 1, MPI_INT, all, rank == root ? 1 : -9, rank == root ? MPI_INT : MPI_DATATYPE_NULL, root);
        for (int i = 0; i < size; i++)
            expect(rank != root || all[i] == 10 + i, "gather", form);
        FORMS(Gatherv, Igatherv, &mine, 1, MPI_INT, all, counts, starts, MPI_INT, 0);
        for (int i = 0; i < size; i++)
            expect(rank != 0 || all[size - 1 - i] == 10 + i, "gatherv", form);
        for (int i = 0; i < size; i++)
            out[i] = 100 + i;
        FORMS(Scatter, Iscatter, out, 1, MPI_INT, &value, 1, MPI_INT, 0);
        expect(value == 100 + rank, "scatter", form);
        FORMS(Scatterv, Iscatterv, out, counts, starts, MPI_INT, &value, 1, MPI_INT, 0);
        expect(value == 100 + size - 1 - rank, "scatterv", form);
        all[rank] = mine;
        FORMS(Allgather, Iallgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 1, MPI_INT);
        for (int i = 0; i < size; i++)
            expect(all[i] == 10 + i, "allgather", form);
        FORMS(Allgatherv, Iallgatherv, &mine, 1, MPI_INT, all, counts, starts, MPI_INT);
        for (int i = 0; i < size; i++)
            expect(all[size - 1 - i] == 10 + i, "allgatherv", form);
        for (int i = 0; i < size; i++)
            out[i] = 100 * rank + i;
        FORMS(Alltoall, Ialltoall, out, 1, MPI_INT, all, 1, MPI_INT);
        for (int i = 0; i < size; i++)
            expect(all[i] == 100 * i + rank, "alltoall", form);
        FORMS(Alltoallv, Ialltoallv, out, counts, starts, MPI_INT, all, counts, starts, MPI_INT);
        for (int i = 0; i < size; i++)
            expect(all[size - 1 - i] == 100 * i + size - 1 - rank, "alltoallv", form);
        double sums[3] = {rank, 1, 2}, got[3];
        FORMS(Allreduce, Iallreduce, sums, got, 3, MPI_DOUBLE, MPI_SUM);
        expect(got[0] == size * (size - 1) / 2 && got[1] == size && got[2] == 2 * size, "allreduce", form);
        memcpy(got, sums, sizeof(got));
        FORMS(Allreduce, Iallreduce, MPI_IN_PLACE, got, 3, MPI_DOUBLE, MPI_MAX);
        expect(got[0] == size - 1, "allreduce in place", form);
        FORMS(Reduce, Ireduce, &mine, &value, 1, MPI_INT, MPI_SUM, root);
        expect(rank != root || value == 10 * size + size * (size - 1) / 2, "reduce", form);
        FORMS(Scan, Iscan, &mine, &value, 1, MPI_INT, MPI_SUM);
        expect(value == 10 * (rank + 1) + rank * (rank + 1) / 2, "scan", form);
        value = -1;
        FORMS(Exscan, Iexscan, &mine, &value, 1, MPI_INT, MPI_SUM);
        expect(rank == 0 ? value == -1 : value == 10 * rank + rank * (rank - 1) / 2, "exscan", form);
        for (int i = 0; i < size; i++)
            out[i] = i + rank;
        FORMS(Reduce_scatter, Ireduce_scatter, out, &value, counts, MPI_INT, MPI_SUM);
        expect(value == size * rank + size * (size - 1) / 2, "reduce_scatter", form);
        FORMS(Reduce_scatter_block, Ireduce_scatter_block, out, &value, 1, MPI_INT, MPI_SUM);
        expect(value == size * rank + size * (size - 1) / 2, "reduce_scatter_block", form);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return bad;
}
