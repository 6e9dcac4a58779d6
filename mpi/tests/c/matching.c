/* ranks: 1 2
 * Elements that are received as other ones: by their bytes. On two ranks the user wants their kinds compared. */
#include "check.h"

static double from[4] = {1, 2, 3, 4}, into[4];
static MPI_Status status;

/* What the receive says of so many elements, sent by this process to itself. */
static int received(MPI_Datatype sent, int many, MPI_Datatype posted, int room)
{
    MPI_Request request;
    memset(into, 0, sizeof into);
    OK(MPI_Irecv(into, room, posted, 0, 1, MPI_COMM_SELF, &request));
    OK(MPI_Send(from, many, sent, 0, 1, MPI_COMM_SELF));
    return MPI_Wait(&request, &status);
}

/* What a reduction of a derived datatype of doubles makes of 1 and 1. */
static double sum(void)
{
    MPI_Datatype pair;
    double one[2] = {1, 1}, all[2];
    OK(MPI_Type_contiguous(2, MPI_DOUBLE, &pair));
    OK(MPI_Type_commit(&pair));
    OK(MPI_Allreduce(one, all, 1, pair, MPI_SUM, MPI_COMM_WORLD));
    OK(MPI_Type_free(&pair));
    return all[1];
}

int main(int argc, char **argv)
{
    const char *ranks = getenv("PMI_SIZE");
    int kinds = ranks && atoi(ranks) == 2, count, size;
    if (kinds) setenv("GAPLESS_MPI_TYPES", "kinds", 1);
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    int other = kinds ? MPI_ERR_TYPE : MPI_SUCCESS;
    FAILS(received(MPI_UINT8_T, 16, MPI_INT, 4), other);
    CHECK(kinds || memcmp(from, into, 16) == 0);
    FAILS(received(MPI_DOUBLE, 2, MPI_INT64_T, 4), other);
    OK(MPI_Get_count(&status, MPI_INT64_T, &count));
    CHECK(count == (kinds ? 0 : 2));
    FAILS(received(MPI_UINT8_T, 20, MPI_INT, 4), MPI_ERR_TRUNCATE);
    /* Bytes, and names of one kind. */
    OK(received(MPI_BYTE, 32, MPI_DOUBLE, 4));
    OK(received(MPI_DOUBLE, 4, MPI_PACKED, 32));
    OK(received(MPI_LONG_LONG, 4, MPI_INT64_T, 4));
    CHECK(memcmp(from, into, 32) == 0);
    /* Windows, and reductions, which ask what elements are. */
    MPI_Win win;
    double *memory;
    OK(MPI_Win_allocate(16, 1, MPI_INFO_NULL, MPI_COMM_SELF, &memory, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win));
    CHECK((MPI_Put(from, 16, MPI_UINT8_T, 0, 0, 2, MPI_DOUBLE, win) == MPI_SUCCESS) == !kinds);
    OK(MPI_Win_unlock(0, win));
    CHECK(kinds || memory[1] == 2);
    OK(MPI_Win_free(&win));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    CHECK(sum() == size);
    OK(MPI_Finalize());
    return wrong;
}
