/* Buffers of the process, of communicators and of sessions; flushes that need others do not hold them up. */
#include "check.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD, dup;
    MPI_Session session;
    MPI_Request request;
    static char memory[3][4096 + MPI_BSEND_OVERHEAD];
    char *got;
    int rank, size, n, sent, came = -1;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    OK(MPI_Comm_dup(world, &dup));

    sent = rank;
    OK(MPI_Buffer_attach(memory[0], sizeof memory[0]));
    FAILS(MPI_Buffer_attach(memory[1], sizeof memory[1]), MPI_ERR_BUFFER);
    OK(MPI_Bsend(&sent, 1, MPI_INT, (rank + 1) % size, 0, world));
    OK(MPI_Buffer_iflush(&request));
    OK(MPI_Recv(&came, 1, MPI_INT, (rank + size - 1) % size, 0, world, MPI_STATUS_IGNORE));
    CHECK(came == (rank + size - 1) % size);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));

    OK(MPI_Comm_attach_buffer(dup, memory[1], sizeof memory[1]));
    OK(MPI_Bsend(&sent, 1, MPI_INT, (rank + 1) % size, 0, dup));
    OK(MPI_Comm_iflush_buffer(dup, &request));
    OK(MPI_Recv(&came, 1, MPI_INT, (rank + size - 1) % size, 0, dup, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Comm_detach_buffer(dup, &got, &n));
    CHECK(got == memory[1] && n == sizeof memory[1]);

    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Session_attach_buffer(session, memory[2], sizeof memory[2]));
    OK(MPI_Session_flush_buffer(session));
    OK(MPI_Session_iflush_buffer(session, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Session_detach_buffer(session, &got, &n));
    CHECK(got == memory[2] && n == sizeof memory[2]);
    OK(MPI_Session_finalize(&session));

    /* Attaching another buffer, and freeing its communicator, waits for nothing. */
    static int sent_long[1 << 18], got_long[1 << 18];
    MPI_Comm other;
    OK(MPI_Comm_dup(world, &other));
    OK(MPI_Comm_attach_buffer(dup, memory[1], sizeof memory[1]));
    OK(MPI_Bsend(sent_long, 1 << 18, MPI_INT, rank, 0, dup));
    OK(MPI_Comm_attach_buffer(other, memory[2], sizeof memory[2]));
    OK(MPI_Comm_free(&other));
    OK(MPI_Recv(got_long, 1 << 18, MPI_INT, rank, 0, dup, MPI_STATUS_IGNORE));
    OK(MPI_Comm_detach_buffer(dup, &got, &n));
    CHECK(got == memory[1] && n == sizeof memory[1]);
    /* With its buffer, a communicator's lack of a limit is gone. */
    OK(MPI_Comm_dup(world, &other));
    OK(MPI_Comm_attach_buffer(other, memory[2], sizeof memory[2]));
    OK(MPI_Comm_free(&other));
    FAILS(MPI_Bsend(sent_long, 1 << 18, MPI_INT, rank, 0, world), MPI_ERR_BUFFER);

    OK(MPI_Buffer_detach(&got, &n));
    CHECK(got == memory[0] && n == sizeof memory[0]);
    MPI_Comm_free(&dup);
    MPI_Finalize();
    return wrong;
}
