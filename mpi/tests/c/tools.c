/* The tools' interface: variables are found by name, read and written; what is none is told so. */
#include "check.h"

#define IS(call, code) CHECK((call) == (code))

int main(int argc, char **argv)
{
    int provided, n, index, count, len, class, bind, type_is, found = 0;
    char name[128], desc[256];
    MPI_Datatype type;
    MPI_T_cvar_handle cvar;
    MPI_T_pvar_session session;
    MPI_T_pvar_handle pvar;
    unsigned long long before, after;
    unsigned depth, less;
    double real;

    IS(MPI_T_cvar_get_num(&n), MPI_T_ERR_NOT_INITIALIZED);
    IS(MPI_T_finalize(), MPI_T_ERR_NOT_INITIALIZED);
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided));
    OK(MPI_T_cvar_get_index("host.depth", &index));
    OK(MPI_T_cvar_handle_alloc(index, NULL, &cvar, &count));
    CHECK(count == 1);
    OK(MPI_T_cvar_read(cvar, &depth));
    IS(MPI_T_cvar_write(cvar, &depth), MPI_T_ERR_CVAR_SET_NOT_NOW);
    MPI_Init(&argc, &argv);
    OK(MPI_T_cvar_read(cvar, &depth));
    less = depth + 1;
    OK(MPI_T_cvar_write(cvar, &less));
    OK(MPI_T_cvar_read(cvar, &less));
    CHECK(less == depth + 1);
    less = 0;
    IS(MPI_T_cvar_write(cvar, &less), MPI_T_ERR_INVALID);
    OK(MPI_T_cvar_handle_free(&cvar));
    CHECK(cvar == MPI_T_CVAR_HANDLE_NULL);
    IS(MPI_T_cvar_read(cvar, &depth), MPI_T_ERR_INVALID_HANDLE);
    IS(MPI_T_cvar_get_index("nothing", &index), MPI_T_ERR_INVALID_NAME);

    OK(MPI_T_cvar_get_num(&n));
    for (index = 0; index < n; index++) {
        len = sizeof name;
        count = sizeof desc;
        OK(MPI_T_cvar_get_info(index, name, &len, NULL, &type, NULL, desc, &count, &bind, NULL));
        CHECK(len == (int)strlen(name) + 1 && desc[0] && bind == MPI_T_BIND_NO_OBJECT);
        type_is = type == MPI_DOUBLE || type == MPI_UNSIGNED || type == MPI_UNSIGNED_LONG_LONG;
        CHECK(type_is);
        found += strcmp(name, "host.pipeline_mb_s") == 0 && type == MPI_DOUBLE;
        len = 4;
        OK(MPI_T_cvar_get_info(index, name, &len, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
        CHECK(strlen(name) == 3 && len > 4);
    }
    CHECK(found == 1);
    OK(MPI_T_cvar_get_index("host.pipeline_mb_s", &index));
    OK(MPI_T_cvar_handle_alloc(index, NULL, &cvar, &count));
    OK(MPI_T_cvar_read(cvar, &real));
    CHECK(real >= 1);
    IS(MPI_T_cvar_get_info(n, name, &len, NULL, NULL, NULL, NULL, NULL, NULL, NULL), MPI_T_ERR_INVALID_INDEX);
    IS(MPI_T_cvar_get_info(-1, name, &len, NULL, NULL, NULL, NULL, NULL, NULL, NULL), MPI_T_ERR_INVALID_INDEX);

    /* Counters. */
    OK(MPI_T_pvar_get_index("eager.bytes", MPI_T_PVAR_CLASS_COUNTER, &index));
    IS(MPI_T_pvar_get_index("eager.bytes", MPI_T_PVAR_CLASS_TIMER, &n), MPI_T_ERR_INVALID_NAME);
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_handle_alloc(session, index, NULL, &pvar, &count));
    OK(MPI_T_pvar_read(session, pvar, &before));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_T_pvar_read(session, pvar, &after));
    CHECK(after >= before);
    IS(MPI_T_pvar_start(session, pvar), MPI_T_ERR_PVAR_NO_STARTSTOP);
    OK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES));
    IS(MPI_T_pvar_write(session, pvar, &after), MPI_T_ERR_PVAR_NO_WRITE);
    OK(MPI_T_pvar_session_free(&session));
    IS(MPI_T_pvar_read(session, pvar, &after), MPI_T_ERR_INVALID_SESSION);
    OK(MPI_T_pvar_get_num(&n));
    for (index = 0; index < n; index++) {
        len = sizeof name;
        OK(MPI_T_pvar_get_info(index, name, &len, NULL, &class, &type, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
        CHECK(type == MPI_UNSIGNED_LONG_LONG);
        OK(MPI_T_pvar_get_index(name, class, &count));
        CHECK(count == index);
    }

    OK(MPI_T_category_get_num(&n));
    for (found = index = 0; index < n; index++) {
        OK(MPI_T_category_get_info(index, NULL, NULL, NULL, NULL, &count, NULL, NULL));
        found += count;
    }
    OK(MPI_T_cvar_get_num(&n));
    CHECK(found == n);
    OK(MPI_T_event_get_num(&n));
    CHECK(n == 0);
    IS(MPI_T_event_get_index("x", &n), MPI_T_ERR_INVALID_NAME);
    IS(MPI_T_enum_get_info(MPI_T_ENUM_NULL, &n, NULL, NULL), MPI_T_ERR_INVALID_HANDLE);
    MPI_Finalize();
    OK(MPI_T_finalize());
    return wrong;
}
