/* ranks: 2 3 */
/* Partitioned messages: other partitions at both ends, started twice, partitions handed over in any order. */
#include <mpi.h>
#include <stdio.h>

/* A partition without elements comes when it was handed over. */
static int of_nothing(int right, int left)
{
    int arrived, bad = 0;
    MPI_Request send, recv;
    MPI_Psend_init(NULL, 2, 0, MPI_DOUBLE, right, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &send);
    MPI_Precv_init(NULL, 2, 0, MPI_DOUBLE, left, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &recv);
    MPI_Start(&recv);
    MPI_Start(&send);
    MPI_Pready(0, send);
    for (arrived = 0; !arrived;)
        MPI_Parrived(recv, 0, &arrived);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Parrived(recv, 1, &arrived);
    if (arrived)
        bad = 1, printf("a partition came that nobody had handed over\n");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Pready(1, send);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    MPI_Wait(&recv, MPI_STATUS_IGNORE);
    MPI_Request_free(&send);
    MPI_Request_free(&recv);
    return bad;
}

int main(int argc, char **argv)
{
    int rank, size, bad = 0;
    double out[24], in[24];
    MPI_Request send, recv, nobody;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Psend_init(out, 6, 4, MPI_DOUBLE, right, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &send);
    MPI_Precv_init(in, 3, 8, MPI_DOUBLE, left, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &recv);
    MPI_Psend_init(out, 2, 1, MPI_DOUBLE, MPI_PROC_NULL, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &nobody);
    for (int round = 0; round < 2; round++) {
        int list[2] = {4, 0}, arrived = 0;
        for (int i = 0; i < 24; i++)
            out[i] = 1000 * round + 100 * rank + i, in[i] = -1;
        MPI_Start(&recv);
        MPI_Start(&send);
        MPI_Start(&nobody);
        MPI_Pready(5, send);
        MPI_Pready_range(1, 3, send);
        MPI_Pready_list(2, list, send);
        MPI_Pready(0, nobody);
        while (!arrived)
            MPI_Parrived(recv, 1, &arrived);
        if (in[8] != 1000 * round + 100 * left + 8 || in[15] != 1000 * round + 100 * left + 15)
            bad = 1, printf("rank %d: partition 1 of round %d: %g\n", rank, round, in[8]);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        MPI_Wait(&recv, MPI_STATUS_IGNORE);
        MPI_Wait(&nobody, MPI_STATUS_IGNORE);
        for (int i = 0; i < 24; i++)
            if (in[i] != 1000 * round + 100 * left + i)
                bad = 1, printf("rank %d: element %d of round %d: %g\n", rank, i, round, in[i]);
    }
    MPI_Request_free(&send);
    MPI_Request_free(&recv);
    MPI_Request_free(&nobody);
    bad |= of_nothing(right, left);
    MPI_Finalize();
    return bad;
}
