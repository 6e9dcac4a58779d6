/* A program's own MPI_Send takes the library's place, which is there as PMPI_Send (MPI 4.1 §15.2). */
#include <mpi.h>
#include <stdio.h>

static int calls;

int MPI_Init(int *argc, char ***argv)
{
    calls++;
    return PMPI_Init(argc, argv);
}

int MPI_Send(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm)
{
    calls++;
    return PMPI_Send(buf, count, datatype, dest, tag, comm);
}

int main(int argc, char **argv)
{
    int rank, x = 1, y = 0;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Irecv(&y, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &request);
    MPI_Send(&x, 1, MPI_INT, rank, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    PMPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    if (calls != 2 || y != 1)
        printf("%d calls, %d received\n", calls, y);
    return calls != 2 || y != 1;
}
