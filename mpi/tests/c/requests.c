/* ranks: 1
 * General requests: what a status holds is the program's own affair. */
#include <mpi.h>
#include <stdio.h>

static int query(void *extra, MPI_Status *status)
{
    int error = MPI_Status_set_source(status, MPI_ANY_SOURCE);
    (void)extra;
    return error ? error : MPI_Status_set_tag(status, MPI_ANY_TAG);
}

static int free_state(void *extra)
{
    ++*(int *)extra;
    return MPI_SUCCESS;
}

static int refuse(void *extra)
{
    (void)extra;
    return MPI_ERR_IO;
}

static int cancel(void *extra, int complete)
{
    (void)extra, (void)complete;
    return MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    int freed = 0, failed = 0, error;
    MPI_Request request;
    MPI_Status status;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Grequest_start(query, free_state, cancel, &freed, &request);
    MPI_Grequest_complete(request);
    error = MPI_Wait(&request, &status);
    if (error != MPI_SUCCESS || status.MPI_SOURCE != MPI_ANY_SOURCE || status.MPI_TAG != MPI_ANY_TAG) {
        printf("error %d, source %d, tag %d\n", error, status.MPI_SOURCE, status.MPI_TAG);
        failed = 1;
    }
    status.MPI_ERROR = MPI_ERR_OTHER;
    MPI_Wait(&request, &status);
    if (status.MPI_ERROR != MPI_SUCCESS) {
        printf("an empty status with error %d\n", status.MPI_ERROR);
        failed = 1;
    }
    if (freed != 1 || request != MPI_REQUEST_NULL) {
        printf("freed %d times\n", freed);
        failed = 1;
    }
    MPI_Grequest_start(query, refuse, cancel, NULL, &request);
    MPI_Grequest_complete(request);
    error = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (error != MPI_ERR_IO || request != MPI_REQUEST_NULL) {
        printf("free_fn gave MPI_ERR_IO, and the call %d\n", error);
        failed = 1;
    }
    MPI_Finalize();
    return failed;
}
