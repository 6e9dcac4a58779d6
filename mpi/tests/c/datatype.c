/* Sizes, bounds, names and counts of datatypes; bad arguments. */
#include "check.h"

static void bounds(MPI_Datatype type, long size, long lb, long extent, long true_lb, long true_extent)
{
    int s;
    MPI_Aint l, e;
    MPI_Count sc, lc, ec;
    MPI_Type_size(type, &s);
    CHECK(s == size);
    MPI_Type_get_extent(type, &l, &e);
    CHECK(l == lb && e == extent);
    MPI_Type_get_true_extent(type, &l, &e);
    CHECK(l == true_lb && e == true_extent);
    MPI_Type_size_x(type, &sc);
    MPI_Type_get_extent_c(type, &lc, &ec);
    CHECK(sc == size && lc == lb && ec == extent);
    MPI_Type_get_true_extent_x(type, &lc, &ec);
    CHECK(lc == true_lb && ec == true_extent);
}

static void predefined(void)
{
    struct { MPI_Datatype type; int size; const char *name; } known[] = {
        {MPI_CHAR, 1, "MPI_CHAR"}, {MPI_SHORT, 2, "MPI_SHORT"}, {MPI_INT, 4, "MPI_INT"},
        {MPI_LONG, sizeof(long), "MPI_LONG"}, {MPI_DOUBLE, 8, "MPI_DOUBLE"}, {MPI_2INT, 8, "MPI_2INT"},
        {MPI_LONG_DOUBLE, sizeof(long double), "MPI_LONG_DOUBLE"}, {MPI_C_BOOL, 1, "MPI_C_BOOL"},
        {MPI_WCHAR, 4, "MPI_WCHAR"}, {MPI_AINT, 8, "MPI_AINT"}, {MPI_BYTE, 1, "MPI_BYTE"},
        {MPI_DOUBLE_INT, 12, "MPI_DOUBLE_INT"}, {MPI_INTEGER, 4, "MPI_INTEGER"}, {MPI_2REAL, 8, "MPI_2REAL"},
        {MPI_2DOUBLE_PRECISION, 16, "MPI_2DOUBLE_PRECISION"}, {MPI_COMPLEX32, 32, "MPI_COMPLEX32"},
        {MPI_LOGICAL2, 2, "MPI_LOGICAL2"}, {MPI_INTEGER16, 16, "MPI_INTEGER16"}, {MPI_REAL2, 2, "MPI_REAL2"},
        {MPI_UINT64_T, 8, "MPI_UINT64_T"}, {MPI_C_DOUBLE_COMPLEX, 16, "MPI_C_DOUBLE_COMPLEX"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int size, len, ni, na, nd, combiner;
        char name[MPI_MAX_OBJECT_NAME];
        MPI_Type_size(known[i].type, &size);
        CHECK(size == known[i].size);
        MPI_Type_get_name(known[i].type, name, &len);
        CHECK(strcmp(name, known[i].name) == 0 && len == (int)strlen(name));
        MPI_Type_get_envelope(known[i].type, &ni, &na, &nd, &combiner);
        CHECK(combiner == MPI_COMBINER_NAMED && ni == 0 && na == 0 && nd == 0);
        MPI_Datatype copy = known[i].type;
        FAILS(MPI_Type_free(&copy), MPI_ERR_TYPE);
        CHECK(copy == known[i].type);
    }
    char name[MPI_MAX_OBJECT_NAME];
    int len;
    MPI_Type_get_name(MPI_DATATYPE_NULL, name, &len);
    CHECK(strcmp(name, "MPI_DATATYPE_NULL") == 0);
    bounds(MPI_DOUBLE_INT, 12, 0, 16, 0, 12);
    bounds(MPI_SHORT_INT, 6, 0, 8, 0, 8);
}

static void derived(void)
{
    MPI_Datatype column, moved, record, twice, list;
    MPI_Type_vector(3, 2, 4, MPI_INT, &column);
    bounds(column, 24, 0, 40, 0, 40);
    MPI_Type_create_resized(column, -4, 60, &moved);
    bounds(moved, 24, -4, 60, 0, 40);
    MPI_Type_dup(moved, &twice);
    bounds(twice, 24, -4, 60, 0, 40);

    int lengths[] = {1, 2};
    MPI_Aint places[] = {0, 8};
    MPI_Datatype types[] = {MPI_CHAR, MPI_DOUBLE};
    MPI_Type_create_struct(2, lengths, places, types, &record);
    bounds(record, 17, 0, 24, 0, 24);

    int at[] = {4, -1, 2};
    MPI_Type_create_indexed_block(3, 1, at, MPI_SHORT, &list);
    bounds(list, 6, -2, 12, -2, 12);
    MPI_Type_free(&list);
    CHECK(list == MPI_DATATYPE_NULL);

    MPI_Count far[] = {0, 1L << 40}, ones[] = {1, 1}, size;
    MPI_Type_create_hindexed_c(2, ones, far, MPI_BYTE, &list);
    bounds(list, 2, 0, (1L << 40) + 1, 0, (1L << 40) + 1);
    MPI_Type_free(&list);
    MPI_Type_contiguous_c(1L << 33, MPI_INT, &list);
    int small;
    MPI_Type_size(list, &small);
    MPI_Type_size_c(list, &size);
    CHECK(small == MPI_UNDEFINED && size == 1L << 35);
    MPI_Type_free(&list);

    int sizes[] = {4, 6}, part[] = {2, 3}, start[] = {1, 2};
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, MPI_INT, &list);
    bounds(list, 24, 0, 96, 32, 36);
    MPI_Type_free(&list);
    int ways[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, args[] = {MPI_DISTRIBUTE_DFLT_DARG, 1}, grid[] = {2, 2};
    MPI_Type_create_darray(4, 3, 2, sizes, ways, args, grid, MPI_ORDER_C, MPI_INT, &list);
    bounds(list, 24, 0, 96, 52, 44);
    MPI_Type_free(&list);

    MPI_Aint lb, ub, extent;
    MPI_Type_lb(moved, &lb);
    MPI_Type_ub(moved, &ub);
    MPI_Type_extent(moved, &extent);
    CHECK(lb == -4 && ub == 56 && extent == 60);
    char name[MPI_MAX_OBJECT_NAME];
    int len;
    MPI_Type_get_name(record, name, &len);
    CHECK(len == 0 && name[0] == 0);
    MPI_Type_set_name(record, "a record");
    MPI_Type_get_name(record, name, &len);
    CHECK(strcmp(name, "a record") == 0);
    MPI_Type_free(&column);
    MPI_Type_free(&moved);
    MPI_Type_free(&record);
    MPI_Type_free(&twice);
}

/* Counts and elements of whole and broken messages. */
static void counts(void)
{
    MPI_Datatype record, nothing;
    int lengths[] = {1, 2}, n;
    MPI_Aint places[] = {0, 8};
    MPI_Datatype types[] = {MPI_INT, MPI_DOUBLE};
    MPI_Count many;
    MPI_Status status;
    memset(&status, 0, sizeof status);
    MPI_Type_create_struct(2, lengths, places, types, &record);
    for (int elements = 0; elements < 10; elements++) {
        MPI_Status_set_elements(&status, record, elements);
        MPI_Get_elements(&status, record, &n);
        CHECK(n == elements);
        MPI_Get_elements_x(&status, record, &many);
        CHECK(many == elements);
        MPI_Get_count(&status, record, &n);
        CHECK(n == (elements % 3 == 0 ? elements / 3 : MPI_UNDEFINED));
    }
    MPI_Status_set_elements(&status, MPI_BYTE, 7);
    MPI_Get_elements(&status, record, &n);
    CHECK(n == MPI_UNDEFINED);
    MPI_Status_set_elements_x(&status, MPI_DOUBLE, (MPI_Count)1 << 32);
    MPI_Get_count(&status, MPI_DOUBLE, &n);
    CHECK(n == MPI_UNDEFINED);
    MPI_Get_count_c(&status, MPI_DOUBLE, &many);
    CHECK(many == (MPI_Count)1 << 32);
    MPI_Status_set_elements(&status, MPI_DOUBLE_INT, 4);
    MPI_Get_count(&status, MPI_DOUBLE_INT, &n);
    CHECK(n == 2);
    MPI_Type_contiguous(0, MPI_INT, &nothing);
    MPI_Status_set_elements(&status, nothing, 0);
    MPI_Get_count(&status, nothing, &n);
    CHECK(n == 0);
    MPI_Type_free(&nothing);
    MPI_Type_free(&record);
}

static void fortran(void)
{
    MPI_Datatype type, again;
    MPI_Type_match_size(MPI_TYPECLASS_REAL, 8, &type);
    CHECK(type == MPI_REAL8);
    MPI_Type_match_size(MPI_TYPECLASS_INTEGER, 4, &type);
    CHECK(type == MPI_INTEGER4);
    MPI_Type_match_size(MPI_TYPECLASS_COMPLEX, 16, &type);
    CHECK(type == MPI_COMPLEX16);
    FAILS(MPI_Type_match_size(MPI_TYPECLASS_REAL, 5, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_match_size(5, 8, &type), MPI_ERR_ARG);
    MPI_Type_create_f90_real(15, MPI_UNDEFINED, &type);
    MPI_Type_create_f90_real(15, MPI_UNDEFINED, &again);
    CHECK(type == again);
    bounds(type, 8, 0, 8, 0, 8);
    FAILS(MPI_Type_free(&type), MPI_ERR_TYPE);
    MPI_Type_create_f90_complex(6, 30, &type);
    bounds(type, 8, 0, 8, 0, 8);
    MPI_Type_create_f90_integer(10, &type);
    bounds(type, 8, 0, 8, 0, 8);
    FAILS(MPI_Type_create_f90_real(MPI_UNDEFINED, MPI_UNDEFINED, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_create_f90_real(90, 1, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_create_f90_integer(99, &type), MPI_ERR_ARG);
    MPI_Type_get_value_index(MPI_DOUBLE, MPI_INT, &type);
    CHECK(type == MPI_DOUBLE_INT);
    MPI_Type_get_value_index(MPI_DOUBLE, MPI_INT64_T, &type);
    bounds(type, 16, 0, 16, 0, 16);
    MPI_Type_get_value_index(MPI_DOUBLE, MPI_INT64_T, &again);
    CHECK(type == again);
    MPI_Type_get_value_index(MPI_C_BOOL, MPI_CHAR, &type);
    CHECK(type == MPI_DATATYPE_NULL);
    MPI_Type_get_value_index(MPI_FLOAT, MPI_FLOAT, &type);
    CHECK(type == MPI_DATATYPE_NULL);
}

static void bad(void)
{
    MPI_Datatype type = MPI_DATATYPE_NULL, freed;
    int minus = -1, one = 1, size;
    MPI_Type_contiguous(2, MPI_INT, &freed);
    MPI_Datatype stale = freed;
    MPI_Type_free(&freed);
    FAILS(MPI_Type_size(stale, &size), MPI_ERR_TYPE);
    FAILS(MPI_Type_commit(&stale), MPI_ERR_TYPE);
    FAILS(MPI_Type_contiguous(1, MPI_DATATYPE_NULL, &type), MPI_ERR_TYPE);
    FAILS(MPI_Type_contiguous(-1, MPI_INT, &type), MPI_ERR_COUNT);
    FAILS(MPI_Type_indexed(1, &minus, &one, MPI_INT, &type), MPI_ERR_COUNT);
    FAILS(MPI_Type_indexed(1, NULL, &one, MPI_INT, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_contiguous(1, MPI_INT, NULL), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(1, &one, &one, &one, MPI_ORDER_C, MPI_INT, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(1, &one, &one, &one, 77, MPI_INT, &type), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(0, NULL, NULL, NULL, MPI_ORDER_C, MPI_INT, &type), MPI_ERR_ARG);
    CHECK(type == MPI_DATATYPE_NULL);
    MPI_Type_contiguous(1, MPI_INT, &type);
    int self, out = 5;
    MPI_Comm_rank(MPI_COMM_WORLD, &self);
    FAILS(MPI_Send(&out, 1, type, self, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    MPI_Type_free(&type);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    predefined();
    derived();
    counts();
    fortran();
    bad();
    int here[2];
    MPI_Aint first, second;
    MPI_Get_address(&here[0], &first);
    MPI_Get_address(&here[1], &second);
    CHECK(MPI_Aint_diff(second, first) == sizeof *here);
    MPI_Finalize();
    return wrong;
}
