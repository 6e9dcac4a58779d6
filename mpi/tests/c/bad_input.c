/* Bad input gets the class that MPI names, by the handler, and changes nothing. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int bad;

#define EXPECT(class, call)                                                                                            \
    do {                                                                                                               \
        int its_code = (call), found = -1;                                                                                 \
        MPI_Error_class(its_code, &found);                                                                                 \
        if (found != (class))                                                                                          \
            bad = 1, printf("%s: class %d instead of " #class "\n", #call, found);                                     \
    } while (0)

int main(int argc, char **argv)
{
    int rank, size, x = 5, y, flag, len;
    char text[MPI_MAX_ERROR_STRING];
    MPI_Status status;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD, copy;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);

    EXPECT(MPI_ERR_RANK, MPI_Send(&x, 1, MPI_INT, size, 0, world));
    EXPECT(MPI_ERR_RANK, MPI_Send(&x, 1, MPI_INT, -77, 0, world));
    EXPECT(MPI_ERR_RANK, MPI_Recv(&x, 1, MPI_INT, size + 1, 0, world, &status));
    EXPECT(MPI_ERR_TAG, MPI_Send(&x, 1, MPI_INT, 0, -5, world));
    EXPECT(MPI_ERR_COUNT, MPI_Send(&x, -1, MPI_INT, 0, 0, world));
    EXPECT(MPI_ERR_COUNT, MPI_Irecv_c(&x, -1, MPI_INT, 0, 0, world, &request));
    EXPECT(MPI_ERR_TYPE, MPI_Send(&x, 1, MPI_DATATYPE_NULL, 0, 0, world));
    EXPECT(MPI_ERR_TYPE, MPI_Send(&x, 1, (MPI_Datatype)0x7abcdef0, 0, 0, world));
    EXPECT(MPI_ERR_COMM, MPI_Send(&x, 1, MPI_INT, 0, 0, MPI_COMM_NULL));
    EXPECT(MPI_ERR_COMM, MPI_Barrier((MPI_Comm)0x70000fff));
    EXPECT(MPI_ERR_COMM, MPI_Comm_rank((MPI_Comm)MPI_INT, &x));
    EXPECT(MPI_ERR_BUFFER, MPI_Send(NULL, 1, MPI_INT, 0, 0, world));
    EXPECT(MPI_ERR_ARG, MPI_Comm_rank(world, NULL));
    EXPECT(MPI_ERR_ARG, MPI_Isend(&x, 1, MPI_INT, 0, 0, world, NULL));
    EXPECT(MPI_ERR_ROOT, MPI_Bcast(&x, 1, MPI_INT, size, world));
    EXPECT(MPI_ERR_OP, MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_OP_NULL, world));
    EXPECT(MPI_ERR_OP, MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_REPLACE, world));
    request = (MPI_Request)0x70012345;
    EXPECT(MPI_ERR_REQUEST, MPI_Wait(&request, &status));
    EXPECT(MPI_ERR_REQUEST, MPI_Start(&request));
    request = MPI_REQUEST_NULL;
    EXPECT(MPI_SUCCESS, MPI_Wait(&request, &status));
    EXPECT(MPI_ERR_REQUEST, MPI_Request_free(&request));
    EXPECT(MPI_ERR_ARG, MPI_Waitall(-1, &request, MPI_STATUSES_IGNORE));

    /* Freed handles are not handles. */
    MPI_Datatype pair, kept;
    MPI_Type_contiguous(2, MPI_INT, &pair);
    EXPECT(MPI_ERR_TYPE, MPI_Send(&x, 1, pair, 0, 0, world));
    MPI_Type_commit(&pair);
    kept = pair;
    MPI_Type_free(&pair);
    EXPECT(MPI_ERR_TYPE, MPI_Send(&x, 1, kept, 0, 0, world));
    EXPECT(MPI_ERR_TYPE, MPI_Type_free(&kept));
    MPI_Comm_dup(world, &copy);
    MPI_Comm freed = copy;
    MPI_Comm_free(&copy);
    EXPECT(MPI_ERR_COMM, MPI_Barrier(freed));
    /* A freed handle stays one, however many others are made and freed after it. */
    for (int i = 0; i < 2000; i++) {
        MPI_Datatype other;
        MPI_Type_contiguous(3, MPI_INT, &other);
        if (other == kept)
            bad = 1, printf("a freed handle came back after %d others\n", i), i = 2000;
        MPI_Type_free(&other);
    }
    EXPECT(MPI_ERR_TYPE, MPI_Type_size(kept, &y));
    if (sizeof(MPI_Comm) == 8) {
        MPI_Comm alive, garbage;
        MPI_Comm_dup(world, &alive);
        unsigned long long number = 0;
        memcpy(&number, &alive, sizeof alive);
        number |= 1ull << 44;
        memcpy(&garbage, &number, sizeof garbage);
        EXPECT(MPI_ERR_COMM, MPI_Comm_rank(garbage, &y));
        MPI_Comm_free(&alive);
    }

    /* A message that is longer than the receive, and one of another type. */
    double two[2] = {1, 2}, one[1] = {0};
    MPI_Isend(two, 2, MPI_DOUBLE, rank, 1, world, &request);
    EXPECT(MPI_ERR_TRUNCATE, MPI_Recv(one, 1, MPI_DOUBLE, rank, 1, world, &status));
    if (status.MPI_SOURCE != rank || status.MPI_TAG != 1)
        bad = 1, printf("the status of a truncated message is of %d, tag %d\n", status.MPI_SOURCE, status.MPI_TAG);
    MPI_Wait(&request, MPI_STATUS_IGNORE);

    /* What is not there says so, and its name. */
    MPI_File file;
    int code = MPI_File_open(world, "nowhere", MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    EXPECT(MPI_ERR_UNSUPPORTED_OPERATION, code);
    MPI_Error_string(code, text, &len);
    if (!strstr(text, "MPI_File_open") || (int)strlen(text) != len)
        bad = 1, printf("the error's text is %s\n", text);

    /* All is as it was. */
    MPI_Isend(&x, 1, MPI_INT, rank, 9, world, &request);
    MPI_Iprobe(rank, 9, world, &flag, &status);
    EXPECT(MPI_SUCCESS, MPI_Recv(&y, 1, MPI_INT, rank, 9, world, &status));
    MPI_Wait(&request, &status);
    MPI_Barrier(world);
    MPI_Finalize();
    return bad;
}
