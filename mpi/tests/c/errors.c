/* Error handlers, classes, codes and their texts. */
#include "check.h"

static MPI_Comm told_of;
static int told, told_code;

static void tell(MPI_Comm *comm, int *code, ...)
{
    told++;
    told_of = *comm;
    told_code = *code;
}

/* Refuses once to delete an attribute. */
static int refuse(MPI_Comm comm, int key, void *value, void *extra)
{
    static int times;
    return times++ ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD, dup;
    MPI_Errhandler mine, got;
    int code, class, other, len, *last, flag;
    char text[MPI_MAX_ERROR_STRING];

    /* The default is fatal; a new communicator has what its parent had. */
    OK(MPI_Comm_get_errhandler(world, &got));
    CHECK(got == MPI_ERRORS_ARE_FATAL);
    OK(MPI_Errhandler_free(&got));
    CHECK(got == MPI_ERRHANDLER_NULL);
    OK(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    FAILS(MPI_Send(&code, 1, MPI_INT, 1000, 0, world), MPI_ERR_RANK);
    FAILS(MPI_Send(&code, 1, MPI_INT, 0, -5, world), MPI_ERR_TAG);
    FAILS(MPI_Send(&code, -1, MPI_INT, 0, 0, world), MPI_ERR_COUNT);
    FAILS(MPI_Send(&code, 1, MPI_INT, 0, 0, MPI_COMM_NULL), MPI_ERR_COMM);
    FAILS(MPI_Comm_size(world, NULL), MPI_ERR_ARG);

    OK(MPI_Comm_create_errhandler(tell, &mine));
    OK(MPI_Comm_set_errhandler(world, mine));
    OK(MPI_Comm_get_errhandler(world, &got));
    CHECK(got == mine);
    OK(MPI_Errhandler_free(&got));
    OK(MPI_Comm_dup(world, &dup));
    OK(MPI_Errhandler_free(&mine));
    CHECK(mine == MPI_ERRHANDLER_NULL);
    /* It is freed, but two communicators have it. */
    OK(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN));
    FAILS(MPI_Send(&code, 1, MPI_INT, 1000, 0, dup), MPI_ERR_RANK);
    CHECK(told == 1 && told_of == dup && class_of(told_code) == MPI_ERR_RANK);
    OK(MPI_Comm_call_errhandler(dup, MPI_ERR_OTHER));
    CHECK(told == 2 && told_code == MPI_ERR_OTHER);
    OK(MPI_Comm_get_errhandler(dup, &got));
    OK(MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN));
    mine = got;
    OK(MPI_Errhandler_free(&got));
    FAILS(MPI_Comm_set_errhandler(dup, mine), MPI_ERR_ERRHANDLER);
    FAILS(MPI_Errhandler_free(&mine), MPI_ERR_ERRHANDLER);
    OK(MPI_Comm_free(&dup));

    /* A request outlives its communicator, and tells its handler. */
    MPI_Request requests[2];
    MPI_Comm freed;
    int rank, two[2] = {1, 2}, one;
    OK(MPI_Comm_rank(world, &rank));
    OK(MPI_Comm_dup(world, &dup));
    OK(MPI_Comm_create_errhandler(tell, &mine));
    OK(MPI_Comm_set_errhandler(dup, mine));
    OK(MPI_Irecv(&one, 1, MPI_INT, rank, 0, dup, &requests[0]));
    OK(MPI_Isend(two, 2, MPI_INT, rank, 0, dup, &requests[1]));
    freed = dup;
    OK(MPI_Comm_free(&dup));
    FAILS(MPI_Wait(&requests[0], MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    CHECK(told == 3 && told_of == freed);
    OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
    OK(MPI_Errhandler_free(&mine));

    /* What fails on a handle that is to be freed, and on a request, is told to the communicator's. */
    int key;
    OK(MPI_Comm_dup(world, &dup));
    OK(MPI_Comm_create_errhandler(tell, &mine));
    OK(MPI_Comm_set_errhandler(dup, mine));
    OK(MPI_Errhandler_free(&mine));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, refuse, &key, NULL));
    OK(MPI_Comm_set_attr(dup, key, NULL));
    FAILS(MPI_Comm_free(&dup), MPI_ERR_OTHER);
    CHECK(told == 4 && told_of == dup);
    OK(MPI_Psend_init(two, 2, 1, MPI_INT, rank, 0, dup, MPI_INFO_NULL, &requests[0]));
    FAILS(MPI_Pready(-1, requests[0]), MPI_ERR_ARG);
    CHECK(told == 5 && told_of == dup);
    OK(MPI_Request_free(&requests[0]));
    int saved = key;
    OK(MPI_Comm_free_keyval(&key));
    OK(MPI_Comm_delete_attr(dup, saved));
    FAILS(MPI_Comm_delete_attr(dup, saved), MPI_ERR_KEYVAL);
    CHECK(told == 6);
    OK(MPI_Comm_free(&dup));

    /* Handlers of other objects. */
    OK(MPI_Win_create_errhandler((MPI_Win_errhandler_function *)tell, &mine));
    FAILS(MPI_Comm_set_errhandler(world, mine), MPI_ERR_ERRHANDLER);
    OK(MPI_Errhandler_free(&mine));
    OK(MPI_File_get_errhandler(MPI_FILE_NULL, &got));
    CHECK(got == MPI_ERRORS_RETURN);

    /* Classes and codes of our own. */
    OK(MPI_Comm_get_attr(world, MPI_LASTUSEDCODE, &last, &flag));
    CHECK(flag && *last == MPI_ERR_LASTCODE);
    OK(MPI_Add_error_class(&class));
    CHECK(class > MPI_ERR_LASTCODE && *last == class);
    OK(MPI_Add_error_code(class, &code));
    CHECK(*last == code && class_of(code) == class && class_of(class) == class);
    OK(MPI_Error_string(code, text, &len));
    CHECK(len == 0 && text[0] == 0);
    OK(MPI_Add_error_string(code, "no coffee"));
    OK(MPI_Error_string(code, text, &len));
    CHECK(len == 9 && strcmp(text, "no coffee") == 0);
    FAILS(MPI_Add_error_string(MPI_ERR_ARG, "no"), MPI_ERR_ARG);
    FAILS(MPI_Add_error_code(code, &other), MPI_ERR_ARG);
    OK(MPI_Add_error_code(MPI_ERR_IO, &other));
    CHECK(class_of(other) == MPI_ERR_IO);
    OK(MPI_Comm_call_errhandler(world, code));
    FAILS(MPI_Remove_error_code(code), MPI_ERR_OTHER);
    FAILS(MPI_Remove_error_class(code), MPI_ERR_ARG);
    OK(MPI_Remove_error_string(code));
    OK(MPI_Error_string(code, text, &len));
    CHECK(len == 0);
    FAILS(MPI_Remove_error_class(class), MPI_ERR_OTHER);
    OK(MPI_Remove_error_code(other));
    OK(MPI_Remove_error_code(code));
    FAILS(MPI_Error_class(code, &other), MPI_ERR_ARG);
    OK(MPI_Remove_error_class(class));
    CHECK(*last == MPI_ERR_LASTCODE);
    for (class = MPI_SUCCESS; class <= MPI_ERR_ABI; class++) {
        OK(MPI_Error_string(class, text, &len));
        CHECK(len > 0 && class_of(class) == class);
    }
    MPI_Finalize();
    return wrong;
}
