/* Windows: every flavor, every epoch, every operation, attributes, errors. */
#include "check.h"
#include <stdint.h>

static int me, size, right, left;

static void returns(MPI_Win win)
{
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
}

static void fences(void)
{
    double *base, given[2] = {me + 0.5, me + 1.5}, found[2] = {-1, -1};
    MPI_Win win;
    OK(MPI_Win_allocate(4 * sizeof(double), sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win));
    returns(win);
    base[0] = base[3] = -3;
    OK(MPI_Win_fence(MPI_MODE_NOPRECEDE, win));
    OK(MPI_Put(given, 2, MPI_DOUBLE, right, 1, 2, MPI_DOUBLE, win));
    OK(MPI_Put(given, 2, MPI_DOUBLE, MPI_PROC_NULL, 1, 2, MPI_DOUBLE, win));
    OK(MPI_Win_fence(0, win));
    CHECK(base[0] == -3 && base[1] == left + 0.5 && base[2] == left + 1.5);
    OK(MPI_Get(found, 2, MPI_DOUBLE, left, 1, 2, MPI_DOUBLE, win));
    OK(MPI_Accumulate(given, 1, MPI_DOUBLE, right, 3, 1, MPI_DOUBLE, MPI_SUM, win));
    OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, win));
    CHECK(found[0] == (left + size - 1) % size + 0.5 && found[1] == (left + size - 1) % size + 1.5);
    CHECK(base[3] == -3 + left + 0.5);
    FAILS(MPI_Put(given, 2, MPI_DOUBLE, right, 0, 2, MPI_DOUBLE, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_unlock(right, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_fence(MPI_MODE_NOCHECK, win), MPI_ERR_ASSERT);
    FAILS(MPI_Win_lock(0, right, 0, win), MPI_ERR_LOCKTYPE);
    FAILS(MPI_Win_lock(MPI_LOCK_SHARED, size, 0, win), MPI_ERR_RANK);
    OK(MPI_Win_lock(MPI_LOCK_SHARED, right, 0, win));
    FAILS(MPI_Put(given, 2, MPI_DOUBLE, right, 3, 2, MPI_DOUBLE, win), MPI_ERR_RMA_RANGE);
    FAILS(MPI_Put(given, 2, MPI_DOUBLE, right, 0, 2, MPI_INT, win), MPI_ERR_TYPE);
    FAILS(MPI_Put(given, -1, MPI_DOUBLE, right, 0, 1, MPI_DOUBLE, win), MPI_ERR_COUNT);
    FAILS(MPI_Accumulate(given, 1, MPI_DOUBLE, right, 0, 1, MPI_DOUBLE, MPI_BAND, win), MPI_ERR_OP);
    OK(MPI_Win_unlock(right, win));
    OK(MPI_Win_free(&win));
    CHECK(win == MPI_WIN_NULL);
    FAILS(MPI_Win_fence(0, win), MPI_ERR_WIN);
}

static void locks(void)
{
    int64_t memory[3] = {0, 0, 7}, one = 1, old = -1, swap = me + 100, expected = 0, all[3];
    MPI_Request requests[3];
    MPI_Status status;
    MPI_Win win;
    OK(MPI_Win_create(memory, sizeof memory, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    returns(win);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Win_lock_all(0, win));
    OK(MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, 0, MPI_SUM, win));
    OK(MPI_Win_flush(0, win));
    CHECK(old >= 0 && old < size);
    OK(MPI_Compare_and_swap(&swap, &expected, &old, MPI_INT64_T, right, 8, win));
    OK(MPI_Win_flush_local(right, win));
    CHECK(old == 0);
    OK(MPI_Get_accumulate(NULL, 0, MPI_DATATYPE_NULL, &old, 1, MPI_INT64_T, right, 8, 1, MPI_INT64_T,
                          MPI_NO_OP, win));
    OK(MPI_Win_flush_local(right, win));
    CHECK(old == me + 100);
    OK(MPI_Fetch_and_op(NULL, &old, MPI_INT64_T, right, 16, MPI_NO_OP, win));
    OK(MPI_Win_flush_all(win));
    CHECK(old == 7);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Rget(&all, 3, MPI_INT64_T, 0, 0, 3, MPI_INT64_T, win, &requests[0]));
    OK(MPI_Raccumulate(&one, 1, MPI_INT64_T, right, 16, 1, MPI_INT64_T, MPI_SUM, win, &requests[1]));
    OK(MPI_Rput(&one, 1, MPI_INT64_T, MPI_PROC_NULL, 16, 1, MPI_INT64_T, win, &requests[2]));
    OK(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE));
    CHECK(all[0] == size && all[1] == (size - 1) % size + 100);
    OK(MPI_Rget_accumulate(&one, 1, MPI_INT64_T, &old, 1, MPI_INT64_T, right, 16, 1, MPI_INT64_T,
                           MPI_REPLACE, win, &requests[0]));
    OK(MPI_Wait(&requests[0], &status));
    CHECK(old == 8);
    OK(MPI_Win_unlock_all(win));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, win));
    CHECK(memory[1] == left + 100 && memory[2] == 1);
    OK(MPI_Win_unlock(me, win));
    OK(MPI_Win_free(&win));
}

static void groups(void)
{
    int memory[2] = {-1, -1}, ranks[2] = {left, right}, flag = 0;
    MPI_Group world, others;
    MPI_Win win;
    OK(MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    OK(MPI_Win_get_group(win, &world));
    OK(MPI_Group_incl(world, left == right ? 1 : 2, ranks, &others));
    OK(MPI_Win_post(others, 0, win));
    OK(MPI_Win_start(others, 0, win));
    OK(MPI_Put(&me, 1, MPI_INT, right, 0, 1, MPI_INT, win));
    OK(MPI_Put(&me, 1, MPI_INT, left, 1, 1, MPI_INT, win));
    OK(MPI_Win_complete(win));
    while (!flag)
        OK(MPI_Win_test(win, &flag));
    CHECK(memory[0] == left && memory[1] == right);
    OK(MPI_Group_free(&world));
    OK(MPI_Group_free(&others));
    OK(MPI_Win_free(&win));
}

static void dynamic(void)
{
    int memory[4] = {me, me, me, me}, found = -1;
    MPI_Aint address, *all = malloc(size * sizeof *all);
    MPI_Win win;
    OK(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    returns(win);
    OK(MPI_Win_attach(win, memory, sizeof memory));
    OK(MPI_Get_address(memory, &address));
    OK(MPI_Allgather(&address, 1, MPI_AINT, all, 1, MPI_AINT, MPI_COMM_WORLD));
    OK(MPI_Win_lock(MPI_LOCK_SHARED, right, 0, win));
    OK(MPI_Get(&found, 1, MPI_INT, right, MPI_Aint_add(all[right], 4), 1, MPI_INT, win));
    OK(MPI_Win_unlock(right, win));
    CHECK(found == right);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Win_detach(win, memory));
    FAILS(MPI_Win_detach(win, memory), MPI_ERR_RMA_ATTACH);
    OK(MPI_Win_free(&win));
    free(all);
}

static void shared(void)
{
    int *mine, *its, unit, flag, *number;
    MPI_Aint bytes, *amount;
    void *base;
    MPI_Comm node;
    MPI_Win win;
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    OK(MPI_Win_allocate_shared(me == 0 ? 0 : sizeof(int), sizeof(int), MPI_INFO_NULL, node, &mine, &win));
    OK(MPI_Win_lock_all(MPI_MODE_NOCHECK, win));
    if (me > 0)
        *mine = me;
    OK(MPI_Win_sync(win));
    OK(MPI_Barrier(node));
    OK(MPI_Win_sync(win));
    if (size > 1) {
        OK(MPI_Win_shared_query(win, MPI_PROC_NULL, &bytes, &unit, &its));
        CHECK(bytes == sizeof(int) && unit == sizeof(int));
        for (int rank = 1; rank < size; rank++)
            CHECK(its[rank - 1] == rank);
        CHECK(me == 0 || mine == its + me - 1);
    }
    OK(MPI_Win_unlock_all(win));
    OK(MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &number, &flag));
    CHECK(flag && *number == MPI_WIN_FLAVOR_SHARED);
    OK(MPI_Win_get_attr(win, MPI_WIN_MODEL, &number, &flag));
    CHECK(flag && *number == MPI_WIN_UNIFIED);
    OK(MPI_Win_get_attr(win, MPI_WIN_DISP_UNIT, &number, &flag));
    CHECK(flag && *number == sizeof(int));
    OK(MPI_Win_get_attr(win, MPI_WIN_SIZE, &amount, &flag));
    CHECK(flag && *amount == (me == 0 ? 0 : (MPI_Aint)sizeof(int)));
    OK(MPI_Win_get_attr(win, MPI_WIN_BASE, &base, &flag));
    CHECK(flag && base == mine);
    OK(MPI_Win_free(&win));
    OK(MPI_Comm_free(&node));
}

static int deleted, told;

static int forget(MPI_Win win, int key, void *value, void *extra)
{
    deleted = *(int *)value;
    return MPI_SUCCESS;
}

static void hear(MPI_Win *win, int *code, ...)
{
    told = class_of(*code);
}

static void objects(void)
{
    int key, value = 5, *found, flag, len;
    char name[MPI_MAX_OBJECT_NAME], text[MPI_MAX_INFO_VAL];
    MPI_Errhandler handler;
    MPI_Info info;
    MPI_Win win;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "no_locks", "true"));
    OK(MPI_Info_set(info, "accumulate_ordering", "none"));
    OK(MPI_Info_set(info, "same_size", "perhaps"));
    OK(MPI_Info_set(info, "color", "blue"));
    OK(MPI_Win_create(NULL, 0, 1, info, MPI_COMM_WORLD, &win));
    OK(MPI_Info_free(&info));
    OK(MPI_Win_create_errhandler(hear, &handler));
    OK(MPI_Win_set_errhandler(win, handler));
    OK(MPI_Errhandler_free(&handler));
    FAILS(MPI_Win_flush_all(win), MPI_ERR_RMA_SYNC);
    CHECK(told == MPI_ERR_RMA_SYNC);
    OK(MPI_Win_get_name(win, name, &len));
    CHECK(len == 0);
    OK(MPI_Win_set_name(win, "here"));
    OK(MPI_Win_get_name(win, name, &len));
    CHECK(len == 4 && strcmp(name, "here") == 0);
    OK(MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, forget, &key, NULL));
    OK(MPI_Win_set_attr(win, key, &value));
    OK(MPI_Win_get_attr(win, key, &found, &flag));
    CHECK(flag && found == &value);
    OK(MPI_Win_free_keyval(&key));
    OK(MPI_Win_get_info(win, &info));
    OK(MPI_Info_get(info, "no_locks", sizeof text - 1, text, &flag));
    CHECK(flag && strcmp(text, "true") == 0);
    OK(MPI_Info_get(info, "same_size", sizeof text - 1, text, &flag));
    CHECK(flag && strcmp(text, "true") == 0);
    OK(MPI_Info_get(info, "color", sizeof text - 1, text, &flag));
    CHECK(!flag);
    OK(MPI_Info_set(info, "no_locks", "false"));
    OK(MPI_Win_set_info(win, info));
    OK(MPI_Info_free(&info));
    OK(MPI_Win_get_info(win, &info));
    OK(MPI_Info_get(info, "no_locks", sizeof text - 1, text, &flag));
    CHECK(flag && strcmp(text, "false") == 0);
    OK(MPI_Info_get(info, "accumulate_ordering", sizeof text - 1, text, &flag));
    CHECK(flag && strcmp(text, "none") == 0);
    OK(MPI_Info_free(&info));
    OK(MPI_Win_free(&win));
    CHECK(deleted == 5);
    OK(MPI_Win_get_name(MPI_WIN_NULL, text, &flag));
    CHECK(strcmp(text, "MPI_WIN_NULL") == 0);
    FAILS(MPI_Win_create(NULL, -1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_SIZE);
    FAILS(MPI_Win_create(NULL, 0, 0, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_DISP);
}

int main(int argc, char **argv)
{
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &me));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    right = (me + 1) % size;
    left = (me + size - 1) % size;
    fences();
    locks();
    groups();
    dynamic();
    shared();
    objects();
    OK(MPI_Finalize());
    return wrong;
}
