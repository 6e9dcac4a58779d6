/* Sessions without MPI_Init: several at once, one after the other. */
#include "check.h"

static void use(MPI_Session session)
{
    MPI_Group group;
    MPI_Comm comm;
    MPI_Info info;
    int n, len = 0, rank, size, got = -1;
    char name[64];
    OK(MPI_Session_get_num_psets(session, MPI_INFO_NULL, &n));
    CHECK(n == 2);
    OK(MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &len, NULL));
    CHECK(len == 12);
    OK(MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &len, name));
    CHECK(strcmp(name, "mpi://WORLD") == 0);
    FAILS(MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 2, &len, name), MPI_ERR_ARG);
    OK(MPI_Session_get_pset_info(session, "mpi://SELF", &info));
    MPI_Info_free(&info);
    FAILS(MPI_Group_from_session_pset(session, "mpi://nobody", &group), MPI_ERR_ARG);
    OK(MPI_Group_from_session_pset(session, "mpi://world", &group));
    OK(MPI_Comm_create_from_group(group, "use", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
    MPI_Group_free(&group);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    OK(MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, 0, comm));
    OK(MPI_Recv(&got, 1, MPI_INT, (rank + size - 1) % size, 0, comm, MPI_STATUS_IGNORE));
    CHECK(got == (rank + size - 1) % size);
    OK(MPI_Comm_disconnect(&comm));
}

int main(void)
{
    MPI_Session one, two;
    int flag;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &one));
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &two));
    MPI_Initialized(&flag);
    CHECK(!flag);
    use(one);
    OK(MPI_Session_finalize(&one));
    CHECK(one == MPI_SESSION_NULL);
    use(two);
    OK(MPI_Session_finalize(&two));
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &one));
    use(one);
    OK(MPI_Session_finalize(&one));
    return wrong;
}
