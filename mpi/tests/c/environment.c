/* Versions, threads, memory, names; finalize as the last thing. */
#include "check.h"

int main(int argc, char **argv)
{
    int major, minor, flag, provided, len, rank, size;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Info info;
    double *memory, got = 0;

    MPI_Initialized(&flag);
    CHECK(!flag);
    OK(MPI_Get_version(&major, &minor));
    CHECK(major == MPI_VERSION && minor == MPI_SUBVERSION);
    OK(MPI_Get_library_version(text, &len));
    CHECK(strncmp(text, "Gapless ", 8) == 0 && len == (int)strlen(text));
    OK(MPI_Abi_get_version(&major, &minor));
    CHECK(major == MPI_ABI_VERSION && minor == MPI_ABI_SUBVERSION);
    OK(MPI_Abi_get_info(&info));
    len = sizeof text;
    OK(MPI_Info_get_string(info, "mpi_aint_size", &len, text, &flag));
    CHECK(flag && atoi(text) == sizeof(MPI_Aint));
    OK(MPI_Info_free(&info));

    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided));
    CHECK(provided == MPI_THREAD_SERIALIZED);
    OK(MPI_Query_thread(&len));
    CHECK(len == provided);
    OK(MPI_Is_thread_main(&flag));
    CHECK(flag);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    FAILS(MPI_Init(&argc, &argv), MPI_ERR_OTHER);
    OK(MPI_Get_processor_name(text, &len));
    CHECK(len > 0 && len < MPI_MAX_PROCESSOR_NAME && (int)strlen(text) == len);
    OK(MPI_Pcontrol(1, "anything"));
    OK(MPI_Get_hw_resource_info(&info));
    OK(MPI_Info_free(&info));

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Alloc_mem(100000 * sizeof(double), MPI_INFO_NULL, &memory));
    memory[99999] = rank;
    OK(MPI_Sendrecv(&memory[99999], 1, MPI_DOUBLE, (rank + 1) % size, 0, &got, 1, MPI_DOUBLE, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(got == (rank + size - 1) % size);
    OK(MPI_Free_mem(memory));
    FAILS(MPI_Free_mem(memory), MPI_ERR_BASE);
    FAILS(MPI_Alloc_mem(-1, MPI_INFO_NULL, &memory), MPI_ERR_ARG);

    /* A session beside the world model outlives it. */
    MPI_Session session;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    MPI_Finalize();
    MPI_Finalized(&flag);
    CHECK(flag);
    OK(MPI_Session_get_num_psets(session, MPI_INFO_NULL, &len));
    OK(MPI_Session_finalize(&session));
    return wrong;
}
