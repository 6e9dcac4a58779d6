/* Attributes: keys, copying, deletion and its order; infos. */
#include "check.h"

static int order[8], deleted;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    *(int **)out = (int *)in + *(int *)extra;
    *flag = 1;
    return MPI_SUCCESS;
}

static int refuse(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    return MPI_ERR_INTERN;
}

static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    if (value == NULL)
        return MPI_ERR_OTHER;
    order[deleted++] = *(int *)value;
    return MPI_SUCCESS;
}

static int at_end(MPI_Comm comm, int key, void *value, void *extra)
{
    int initialized, finalized;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    CHECK(comm == MPI_COMM_SELF && initialized && !finalized);
    return forget(comm, key, value, extra);
}

static void infos(void)
{
    MPI_Info info, other;
    char text[MPI_MAX_INFO_VAL], longkey[MPI_MAX_INFO_KEY + 2];
    int n, flag;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "b", "two"));
    OK(MPI_Info_set(info, "a", "one"));
    OK(MPI_Info_set(info, "b", "three"));
    OK(MPI_Info_get_nkeys(info, &n));
    CHECK(n == 2);
    OK(MPI_Info_get_nthkey(info, 0, text));
    CHECK(strcmp(text, "b") == 0);
    FAILS(MPI_Info_get_nthkey(info, 2, text), MPI_ERR_ARG);
    OK(MPI_Info_get_valuelen(info, "b", &n, &flag));
    CHECK(flag && n == 5);
    n = 3;
    OK(MPI_Info_get_string(info, "b", &n, text, &flag));
    CHECK(flag && n == 6 && strcmp(text, "th") == 0);
    OK(MPI_Info_get(info, "b", 2, text, &flag));
    CHECK(flag && strcmp(text, "th") == 0);
    OK(MPI_Info_get(info, "c", 2, text, &flag));
    CHECK(!flag);
    OK(MPI_Info_dup(info, &other));
    OK(MPI_Info_delete(other, "b"));
    FAILS(MPI_Info_delete(other, "b"), MPI_ERR_INFO_NOKEY);
    OK(MPI_Info_get_nkeys(info, &n));
    CHECK(n == 2);
    memset(longkey, 'k', sizeof longkey);
    longkey[MPI_MAX_INFO_KEY + 1] = 0;
    FAILS(MPI_Info_set(info, longkey, "x"), MPI_ERR_INFO_KEY);
    FAILS(MPI_Info_set(info, "", "x"), MPI_ERR_INFO_KEY);
    FAILS(MPI_Info_set(MPI_INFO_NULL, "a", "x"), MPI_ERR_INFO);
    FAILS(MPI_Info_set(MPI_INFO_ENV, "a", "x"), MPI_ERR_INFO);
    OK(MPI_Info_free(&info));
    CHECK(info == MPI_INFO_NULL);
    OK(MPI_Info_free(&other));
    n = sizeof text;
    OK(MPI_Info_get_string(MPI_INFO_ENV, "arch", &n, text, &flag));
    CHECK(flag && n > 1);
}

int main(int argc, char **argv)
{
    int key, plain, kept, picky, step = 1, flag, *got, values[4] = {10, 11, 12, 13}, end, size;
    MPI_Comm dup;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    infos();

    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &got, &flag));
    CHECK(flag && *got >= 32767);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &got, &flag));
    CHECK(flag && *got >= size);
    FAILS(MPI_Comm_set_attr(MPI_COMM_WORLD, MPI_TAG_UB, &key), MPI_ERR_KEYVAL);

    OK(MPI_Comm_create_keyval(copy, forget, &key, &step));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &plain, NULL));
    OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &kept, NULL));
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, key, &got, &flag));
    CHECK(!flag);
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, key, &values[0]));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, plain, &values[1]));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, kept, &values[2]));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Comm_get_attr(dup, key, &got, &flag));
    CHECK(flag && got == &values[1]);
    OK(MPI_Comm_get_attr(dup, plain, &got, &flag));
    CHECK(!flag);
    OK(MPI_Comm_get_attr(dup, kept, &got, &flag));
    CHECK(flag && got == &values[2]);
    /* Setting again deletes the value of before. */
    OK(MPI_Comm_set_attr(dup, key, &values[3]));
    CHECK(deleted == 1 && order[0] == 11);
    /* Attributes keep keys that were freed. */
    end = key;
    OK(MPI_Comm_free_keyval(&end));
    CHECK(end == MPI_KEYVAL_INVALID);
    OK(MPI_Comm_get_attr(dup, key, &got, &flag));
    CHECK(flag && got == &values[3]);
    FAILS(MPI_Comm_get_attr(MPI_COMM_SELF, key, &got, &flag), MPI_ERR_KEYVAL);
    OK(MPI_Comm_free(&dup));
    CHECK(deleted == 2 && order[1] == 13);
    OK(MPI_Comm_delete_attr(MPI_COMM_WORLD, plain));
    CHECK(deleted == 3 && order[2] == 11);
    FAILS(MPI_Comm_delete_attr(MPI_COMM_WORLD, plain), MPI_ERR_KEYVAL);

    /* A copy function that fails; a delete function that fails keeps the communicator. */
    OK(MPI_Comm_create_keyval(refuse, forget, &picky, NULL));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &dup));
    OK(MPI_Comm_set_attr(dup, picky, NULL));
    MPI_Comm other = MPI_COMM_NULL;
    FAILS(MPI_Comm_dup(dup, &other), MPI_ERR_INTERN);
    FAILS(MPI_Comm_free(&dup), MPI_ERR_OTHER);
    CHECK(dup != MPI_COMM_NULL);

    deleted = 0;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_end, &end, NULL));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, end, &values[0]));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, plain, &values[1]));
    MPI_Finalize();
    CHECK(deleted == 2 && order[0] == 11 && order[1] == 10);
    return wrong;
}
