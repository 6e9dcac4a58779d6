/* Communicators and groups. */
#include "check.h"

static int rank, size;

/* Whether messages go round in a communicator. */
static int works(MPI_Comm comm)
{
    int me, all, got = -1;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    MPI_Send(&me, 1, MPI_INT, (me + 1) % all, 3, comm);
    MPI_Recv(&got, 1, MPI_INT, (me + all - 1) % all, 3, comm, MPI_STATUS_IGNORE);
    return got == (me + all - 1) % all;
}

static void groups(void)
{
    MPI_Group all, even, rest, other;
    int ranks[2] = {0, size - 1}, translated[3], asked[3] = {0, size - 1, MPI_PROC_NULL}, n, result;
    int range[1][3] = {{0, size - 1, 2}};
    OK(MPI_Comm_group(MPI_COMM_WORLD, &all));
    OK(MPI_Group_size(all, &n));
    CHECK(n == size);
    OK(MPI_Group_rank(all, &n));
    CHECK(n == rank);
    OK(MPI_Group_range_incl(all, 1, range, &even));
    OK(MPI_Group_size(even, &n));
    CHECK(n == (size + 1) / 2);
    OK(MPI_Group_rank(even, &n));
    CHECK(n == (rank % 2 == 0 ? rank / 2 : MPI_UNDEFINED));
    OK(MPI_Group_difference(all, even, &rest));
    CHECK((rest == MPI_GROUP_EMPTY) == (size == 1));
    OK(MPI_Group_union(even, rest, &other));
    OK(MPI_Group_compare(all, other, &result));
    CHECK(result == (size <= 2 ? MPI_IDENT : MPI_SIMILAR));
    OK(MPI_Group_translate_ranks(all, 3, asked, even, translated));
    CHECK(translated[0] == 0 && translated[2] == MPI_PROC_NULL);
    CHECK(translated[1] == ((size - 1) % 2 ? MPI_UNDEFINED : (size - 1) / 2));
    MPI_Group_free(&other);
    MPI_Fint number = MPI_Group_c2f(even), numbers[MPI_F_STATUS_SIZE];
    CHECK(MPI_Group_f2c(number) == even);
    MPI_Status status = {.MPI_SOURCE = 1, .MPI_TAG = 2, .MPI_ERROR = 3}, copy;
    OK(MPI_Status_c2f(&status, numbers));
    OK(MPI_Status_f2c(numbers, &copy));
    CHECK(sizeof numbers == sizeof copy && numbers[MPI_F_TAG] == 2 && copy.MPI_ERROR == 3);
    OK(MPI_Group_excl(all, size == 1 ? 1 : 2, ranks, &other));
    OK(MPI_Group_size(other, &n));
    CHECK(n == (size == 1 ? 0 : size - 2));
    MPI_Group_free(&other);
    FAILS(MPI_Group_incl(all, 1, &size, &other), MPI_ERR_RANK);
    FAILS(MPI_Group_size(MPI_GROUP_NULL, &n), MPI_ERR_GROUP);
    OK(MPI_Group_free(&all));
    CHECK(all == MPI_GROUP_NULL);
    MPI_Group_free(&even);
    MPI_Group_free(&rest);
}

/* Disconnecting waits for what is in flight, also if its requests were freed. */
static void disconnect(void)
{
    enum { LEN = 1 << 18 };
    static int sent[LEN], got[2][LEN];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, flag;
    MPI_Request freed, kept, sends[2];
    MPI_Comm comm;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    for (int i = 0; i < LEN; i++)
        sent[i] = rank + i;
    OK(MPI_Irecv(got[0], LEN, MPI_INT, left, 0, comm, &freed));
    OK(MPI_Irecv(got[1], LEN, MPI_INT, left, 1, comm, &kept));
    OK(MPI_Isend(sent, LEN, MPI_INT, right, 0, comm, &sends[0]));
    OK(MPI_Isend(sent, LEN, MPI_INT, right, 1, comm, &sends[1]));
    OK(MPI_Request_free(&freed));
    OK(MPI_Request_free(&sends[0]));
    OK(MPI_Comm_disconnect(&comm));
    CHECK(comm == MPI_COMM_NULL);
    for (int i = 0; i < LEN; i += LEN - 1)
        CHECK(got[0][i] == left + i && got[1][i] == left + i);
    OK(MPI_Test(&kept, &flag, MPI_STATUS_IGNORE));
    CHECK(flag);
    OK(MPI_Wait(&sends[1], MPI_STATUS_IGNORE));
}

static int refuse(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag)
{
    return MPI_ERR_OTHER;
}

/* Attributes that cannot be copied fail the request, and leave no communicator. */
static void refused(void)
{
    MPI_Comm comm, dup;
    MPI_Request request;
    int key, n;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_create_keyval(refuse, MPI_COMM_NULL_DELETE_FN, &key, NULL));
    OK(MPI_Comm_set_attr(comm, key, NULL));
    OK(MPI_Comm_idup(comm, &dup, &request));
    FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_OTHER);
    FAILS(MPI_Comm_size(dup, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_dup(comm, &dup), MPI_ERR_OTHER);
    OK(MPI_Comm_free_keyval(&key));
    OK(MPI_Comm_free(&comm));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD, one, two, inter;
    MPI_Group group, part;
    MPI_Request request;
    MPI_Info info;
    char name[MPI_MAX_OBJECT_NAME];
    int n, result, half, flag;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    groups();
    disconnect();
    refused();

    OK(MPI_Comm_dup(world, &one));
    OK(MPI_Comm_compare(world, one, &result));
    CHECK(result == MPI_CONGRUENT && works(one));
    OK(MPI_Comm_compare(one, one, &result));
    CHECK(result == MPI_IDENT);
    OK(MPI_Comm_get_name(one, name, &n));
    CHECK(n == 0);
    OK(MPI_Comm_set_name(one, "mine"));
    OK(MPI_Comm_get_name(one, name, &n));
    CHECK(n == 4 && strcmp(name, "mine") == 0);
    OK(MPI_Comm_get_name(world, name, &n));
    CHECK(strcmp(name, "MPI_COMM_WORLD") == 0);
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "mpi_assert_no_any_tag", "true"));
    OK(MPI_Comm_dup_with_info(one, info, &two));
    MPI_Info_free(&info);
    OK(MPI_Comm_get_info(two, &info));
    n = sizeof name;
    OK(MPI_Info_get_string(info, "mpi_assert_no_any_tag", &n, name, &flag));
    CHECK(flag && strcmp(name, "true") == 0);
    MPI_Info_free(&info);
    OK(MPI_Comm_free(&two));
    CHECK(two == MPI_COMM_NULL);

    OK(MPI_Comm_idup(one, &two, &request));
    OK(MPI_Comm_set_errhandler(two, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MPI_Errhandler errhandler;
    OK(MPI_Comm_get_errhandler(two, &errhandler));
    CHECK(works(two) && errhandler == MPI_ERRORS_ARE_FATAL);
    OK(MPI_Comm_disconnect(&two));
    OK(MPI_Comm_get_name(MPI_COMM_NULL, name, &n));
    CHECK(strcmp(name, "MPI_COMM_NULL") == 0);

    OK(MPI_Comm_split(world, rank % 2 ? MPI_UNDEFINED : 0, -rank, &two));
    CHECK((two == MPI_COMM_NULL) == (rank % 2));
    if (two != MPI_COMM_NULL) {
        MPI_Comm_rank(two, &n);
        CHECK(n == (size - 1) / 2 - rank / 2 && works(two));
        MPI_Comm_free(&two);
    }
    FAILS(MPI_Comm_split(world, -7, 0, &two), MPI_ERR_ARG);
    OK(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &two));
    CHECK(works(two));
    MPI_Comm_free(&two);
    OK(MPI_Comm_split_type(world, MPI_COMM_TYPE_HW_GUIDED, 0, MPI_INFO_NULL, &two));
    CHECK(two == MPI_COMM_NULL);

    MPI_Comm_group(world, &group);
    half = (size + 1) / 2;
    int lower[1][3] = {{0, half - 1, 1}};
    MPI_Group_range_incl(group, 1, lower, &part);
    OK(MPI_Comm_create(world, part, &two));
    CHECK((two != MPI_COMM_NULL) == (rank < half));
    if (two != MPI_COMM_NULL) {
        CHECK(works(two));
        MPI_Comm_free(&two);
        OK(MPI_Comm_create_group(world, part, 5, &two));
        CHECK(works(two));
        MPI_Comm_free(&two);
        OK(MPI_Comm_create_from_group(part, "a tag", MPI_INFO_NULL, MPI_ERRORS_RETURN, &two));
        CHECK(works(two));
        MPI_Comm_free(&two);
    }
    FAILS(MPI_Comm_remote_size(world, &n), MPI_ERR_COMM);
    if (size > 1) {
        int low = rank < half;
        OK(MPI_Comm_split(world, low, 0, &two));
        OK(MPI_Intercomm_create(two, 0, rank == 0 || rank == half ? world : MPI_COMM_NULL, low ? half : 0, 9, &inter));
        OK(MPI_Comm_test_inter(inter, &flag));
        OK(MPI_Comm_remote_size(inter, &n));
        CHECK(flag && n == (low ? size - half : half));
        MPI_Comm_free(&two);
        OK(MPI_Intercomm_merge(inter, low, &two));
        MPI_Comm_rank(two, &n);
        CHECK(works(two) && n == (low ? rank + size - half : rank - half));
        MPI_Comm_free(&two);
        OK(MPI_Comm_split_type(inter, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &two));
        if (two != MPI_COMM_NULL)
            MPI_Comm_free(&two);
        int sum = 0, root = rank == 0 ? MPI_ROOT : low ? MPI_PROC_NULL : 0;
        // Who has nothing to do may give any datatype.
        OK(MPI_Reduce(&size, &sum, 1, root == MPI_PROC_NULL ? MPI_BYTE : MPI_INT, MPI_SUM, root, inter));
        CHECK(rank != 0 || sum == size * (size - half));
        MPI_Comm_free(&inter);
        MPI_Group high;
        MPI_Group_excl(group, 0, NULL, &high);
        MPI_Group_free(&high);
        MPI_Group_difference(group, part, &high);
        OK(MPI_Intercomm_create_from_groups(low ? part : high, 0, low ? high : part, 0, "x", MPI_INFO_NULL, MPI_ERRORS_RETURN, &inter));
        OK(MPI_Comm_remote_size(inter, &n));
        CHECK(n == (low ? size - half : half));
        MPI_Comm_free(&inter);
        MPI_Group_free(&high);
    }
    MPI_Group_free(&group);
    MPI_Group_free(&part);
    OK(MPI_Comm_free(&one));
    one = MPI_COMM_WORLD;
    FAILS(MPI_Comm_free(&one), MPI_ERR_COMM);
    OK(MPI_Comm_get_parent(&two));
    CHECK(two == MPI_COMM_NULL);
    MPI_Finalize();
    return wrong;
}
