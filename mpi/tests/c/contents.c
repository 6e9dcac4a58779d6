/* Datatypes give back the call that made them. */
#include "check.h"

#define MOST 32

/* What is expected: integers, addresses and large counts in their order, and datatypes. */
struct call {
    int combiner, ni, na, nc, nd;
    long numbers[MOST];
    MPI_Datatype types[4];
};

static void gives(MPI_Datatype type, const struct call *due, int line)
{
    MPI_Count ni, na, nc, nd;
    int combiner, integers[MOST];
    MPI_Aint addresses[MOST];
    MPI_Count counts[MOST];
    MPI_Datatype types[4];
    MPI_Type_get_envelope_c(type, &ni, &na, &nc, &nd, &combiner);
    if (combiner != due->combiner || ni != due->ni || na != due->na || nc != due->nc || nd != due->nd) {
        printf("line %d: envelope %d %d %d %d of %d\n", line, (int)ni, (int)na, (int)nc, (int)nd, combiner);
        wrong = 1;
        return;
    }
    int si, sa, sd, code = MPI_Type_get_envelope(type, &si, &sa, &sd, &combiner);
    CHECK(nc > 0 ? code != MPI_SUCCESS : code == MPI_SUCCESS && si == ni && sa == na && sd == nd);
    for (int large = 0; large < 2; large++) {
        if (large)
            code = MPI_Type_get_contents_c(type, ni, na, nc, nd, integers, addresses, counts, types);
        else
            code = MPI_Type_get_contents(type, ni, na, nd, integers, addresses, types);
        if (nc > 0 && !large) {
            CHECK(code != MPI_SUCCESS);
            continue;
        }
        CHECK(code == MPI_SUCCESS);
        const long *number = due->numbers;
        for (int i = 0; i < ni; i++, number++)
            if (integers[i] != *number)
                printf("line %d: integer %d is %d\n", line, i, integers[i]), wrong = 1;
        for (int i = 0; i < na; i++, number++)
            if (addresses[i] != *number)
                printf("line %d: address %d is %ld\n", line, i, (long)addresses[i]), wrong = 1;
        for (int i = 0; i < nc; i++, number++)
            if (counts[i] != *number)
                printf("line %d: count %d is %ld\n", line, i, (long)counts[i]), wrong = 1;
        for (int i = 0; i < nd; i++) {
            int named, len;
            char name[MPI_MAX_OBJECT_NAME];
            MPI_Count a, b;
            MPI_Type_size_c(types[i], &a);
            MPI_Type_size_c(due->types[i], &b);
            MPI_Type_get_name(due->types[i], name, &len);
            named = strncmp(name, "MPI_", 4) == 0;
            if (a != b || named != (types[i] == due->types[i]))
                printf("line %d: datatype %d\n", line, i), wrong = 1;
            if (!named)
                MPI_Type_free(&types[i]);
        }
    }
    if (nd > 0 && ni > 0)
        CHECK(MPI_Type_get_contents(type, 0, na, nd, integers, addresses, types) != MPI_SUCCESS);
}

#define GIVES(type, ...) \
    do { struct call due_ = {__VA_ARGS__}; gives(type, &due_, __LINE__); MPI_Type_free(&(type)); } while (0)

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Datatype t, pair;
    int lengths[] = {1, 2}, at[] = {3, -4};
    MPI_Aint bytes[] = {16, -8};
    MPI_Count long_lengths[] = {1, 2}, far[] = {1L << 40, -8};
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Datatype both[] = {pair, MPI_LONG};

    MPI_Type_contiguous(5, MPI_LONG, &t);
    GIVES(t, MPI_COMBINER_CONTIGUOUS, 1, 0, 0, 1, {5}, {MPI_LONG});
    MPI_Type_contiguous_c(5, pair, &t);
    GIVES(t, MPI_COMBINER_CONTIGUOUS, 0, 0, 1, 1, {5}, {pair});
    MPI_Type_vector(2, 3, -4, MPI_LONG_LONG, &t);
    GIVES(t, MPI_COMBINER_VECTOR, 3, 0, 0, 1, {2, 3, -4}, {MPI_LONG_LONG});
    MPI_Type_vector_c(2, 3, -4, pair, &t);
    GIVES(t, MPI_COMBINER_VECTOR, 0, 0, 3, 1, {2, 3, -4}, {pair});
    MPI_Type_create_hvector(2, 3, 4, MPI_INT64_T, &t);
    GIVES(t, MPI_COMBINER_HVECTOR, 2, 1, 0, 1, {2, 3, 4}, {MPI_INT64_T});
    MPI_Type_hvector(2, 3, 40, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_HVECTOR, 2, 1, 0, 1, {2, 3, 40}, {MPI_INT});
    MPI_Type_create_hvector_c(2, 3, 1L << 40, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_HVECTOR, 0, 0, 3, 1, {2, 3, 1L << 40}, {MPI_INT});
    MPI_Type_indexed(2, lengths, at, MPI_CHAR, &t);
    GIVES(t, MPI_COMBINER_INDEXED, 5, 0, 0, 1, {2, 1, 2, 3, -4}, {MPI_CHAR});
    MPI_Type_indexed_c(2, long_lengths, far, MPI_CHAR, &t);
    GIVES(t, MPI_COMBINER_INDEXED, 0, 0, 5, 1, {2, 1, 2, 1L << 40, -8}, {MPI_CHAR});
    MPI_Type_create_hindexed(2, lengths, bytes, pair, &t);
    GIVES(t, MPI_COMBINER_HINDEXED, 3, 2, 0, 1, {2, 1, 2, 16, -8}, {pair});
    MPI_Type_hindexed(2, lengths, bytes, pair, &t);
    GIVES(t, MPI_COMBINER_HINDEXED, 3, 2, 0, 1, {2, 1, 2, 16, -8}, {pair});
    MPI_Type_create_hindexed_c(2, long_lengths, far, MPI_CHAR, &t);
    GIVES(t, MPI_COMBINER_HINDEXED, 0, 0, 5, 1, {2, 1, 2, 1L << 40, -8}, {MPI_CHAR});
    MPI_Type_create_indexed_block(2, 7, at, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_INDEXED_BLOCK, 4, 0, 0, 1, {2, 7, 3, -4}, {MPI_INT});
    MPI_Type_create_indexed_block_c(2, 7, far, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_INDEXED_BLOCK, 0, 0, 4, 1, {2, 7, 1L << 40, -8}, {MPI_INT});
    MPI_Type_create_hindexed_block(2, 7, bytes, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_HINDEXED_BLOCK, 2, 2, 0, 1, {2, 7, 16, -8}, {MPI_INT});
    MPI_Type_create_hindexed_block_c(2, 7, far, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_HINDEXED_BLOCK, 0, 0, 4, 1, {2, 7, 1L << 40, -8}, {MPI_INT});
    MPI_Type_create_struct(2, lengths, bytes, both, &t);
    GIVES(t, MPI_COMBINER_STRUCT, 3, 2, 0, 2, {2, 1, 2, 16, -8}, {pair, MPI_LONG});
    MPI_Type_struct(2, lengths, bytes, both, &t);
    GIVES(t, MPI_COMBINER_STRUCT, 3, 2, 0, 2, {2, 1, 2, 16, -8}, {pair, MPI_LONG});
    MPI_Type_create_struct_c(2, long_lengths, far, both, &t);
    GIVES(t, MPI_COMBINER_STRUCT, 0, 0, 5, 2, {2, 1, 2, 1L << 40, -8}, {pair, MPI_LONG});
    MPI_Type_create_resized(pair, -3, 90, &t);
    GIVES(t, MPI_COMBINER_RESIZED, 0, 2, 0, 1, {-3, 90}, {pair});
    MPI_Type_create_resized_c(pair, -3, 90, &t);
    GIVES(t, MPI_COMBINER_RESIZED, 0, 0, 2, 1, {-3, 90}, {pair});
    MPI_Type_dup(MPI_AINT, &t);
    GIVES(t, MPI_COMBINER_DUP, 0, 0, 0, 1, {0}, {MPI_AINT});

    int sizes[] = {4, 6}, part[] = {2, 3}, start[] = {1, 2};
    MPI_Count sizes_c[] = {4, 6}, part_c[] = {2, 3}, start_c[] = {1, 2};
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_FORTRAN, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_SUBARRAY, 8, 0, 0, 1, {2, 4, 6, 2, 3, 1, 2, MPI_ORDER_FORTRAN}, {MPI_INT});
    MPI_Type_create_subarray_c(2, sizes_c, part_c, start_c, MPI_ORDER_C, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_SUBARRAY, 2, 0, 6, 1, {2, MPI_ORDER_C, 4, 6, 2, 3, 1, 2}, {MPI_INT});
    int ways[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_NONE}, args[] = {MPI_DISTRIBUTE_DFLT_DARG, 5}, grid[] = {2, 1};
    MPI_Type_create_darray(2, 1, 2, sizes, ways, args, grid, MPI_ORDER_C, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_DARRAY, 12, 0, 0, 1,
          {2, 1, 2, 4, 6, ways[0], ways[1], args[0], 5, 2, 1, MPI_ORDER_C}, {MPI_INT});
    MPI_Type_create_darray_c(2, 1, 2, sizes_c, ways, args, grid, MPI_ORDER_C, MPI_INT, &t);
    GIVES(t, MPI_COMBINER_DARRAY, 10, 0, 2, 1,
          {2, 1, 2, ways[0], ways[1], args[0], 5, 2, 1, MPI_ORDER_C, 4, 6}, {MPI_INT});

    /* Those that are not freed. */
    MPI_Datatype f, v;
    MPI_Type_create_f90_real(6, 30, &f);
    struct call real = {MPI_COMBINER_F90_REAL, 2, 0, 0, 0, {6, 30}, {0}};
    gives(f, &real, __LINE__);
    MPI_Type_create_f90_integer(4, &v);
    struct call integer = {MPI_COMBINER_F90_INTEGER, 1, 0, 0, 0, {4}, {0}};
    gives(v, &integer, __LINE__);
    MPI_Type_get_value_index(MPI_FLOAT, MPI_INT64_T, &v);
    struct call value = {MPI_COMBINER_VALUE_INDEX, 0, 0, 0, 2, {0}, {MPI_FLOAT, MPI_INT64_T}};
    gives(v, &value, __LINE__);
    int integers[1];
    MPI_Aint addresses[1];
    CHECK(MPI_Type_get_contents(MPI_INT, 1, 1, 1, integers, addresses, &t) != MPI_SUCCESS);
    MPI_Type_contiguous(3, f, &t);
    MPI_Datatype inner;
    MPI_Type_get_contents(t, 1, 0, 1, integers, addresses, &inner);
    CHECK(inner == f);
    MPI_Type_free(&t);
    MPI_Type_free(&pair);
    MPI_Finalize();
    return wrong;
}
