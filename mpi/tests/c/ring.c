/* Each rank sends to its right, and receives from its left. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, got = -1;
    MPI_Status status;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD);
    MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    if (got != (rank + size - 1) % size || status.MPI_SOURCE != got || status.MPI_TAG != 7) {
        printf("rank %d got %d from %d\n", rank, got, status.MPI_SOURCE);
        return 1;
    }
    MPI_Finalize();
    return 0;
}
