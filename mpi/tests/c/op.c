/* Operations on elements of this process. */
#include "check.h"

static MPI_Datatype seen;

static void less(void *in, void *inout, int *len, MPI_Datatype *type)
{
    seen = *type;
    for (int i = 0; i < *len; i++)
        ((int *)inout)[i] = ((int *)in)[i] - ((int *)inout)[i];
}

static void product(void *in, void *inout, MPI_Count *len, MPI_Datatype *type)
{
    seen = *type;
    double *a = in, *b = inout;
    for (MPI_Count i = 0; i < *len; i++, a += 2, b += 2) {
        double re = a[0] * b[0] - a[1] * b[1];
        b[1] = a[0] * b[1] + a[1] * b[0];
        b[0] = re;
    }
}

static MPI_Datatype line;

/* The line a x + b, of the line c x + d. */
static void compose(void *in, void *inout, int *len, MPI_Datatype *type)
{
    CHECK(*type == line);
    int *left = in, *right = inout;
    for (int i = 0; i < *len; i++, left += 2, right += 2) {
        right[1] = left[0] * right[1] + left[1];
        right[0] = left[0] * right[0];
    }
}

static void first(void *in, void *inout, int *len, MPI_Datatype *type)
{
    int size = 0;
    CHECK(MPI_Type_size(*type, &size) == MPI_SUCCESS && size == 8);
    memcpy(inout, in, (size_t)*len * 8);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int a[] = {1, 2, 3}, b[] = {10, 0, -5}, commutes;
    MPI_Reduce_local(a, b, 3, MPI_INT, MPI_SUM);
    CHECK(b[0] == 11 && b[1] == 2 && b[2] == -2);
    MPI_Reduce_local_c(a, b, 3, MPI_INTEGER, MPI_MIN);
    CHECK(b[0] == 1 && b[1] == 2 && b[2] == -2);
    int yes[] = {5, 0, 0}, no[] = {-1, 7, 0};
    MPI_Reduce_local(yes, no, 3, MPI_LOGICAL, MPI_LAND);
    CHECK(no[0] == 1 && no[1] == 0 && no[2] == 0);
    struct { double v; int i; } x = {2.5, 9}, y = {2.5, 4};
    MPI_Reduce_local(&x, &y, 1, MPI_DOUBLE_INT, MPI_MAXLOC);
    CHECK(y.v == 2.5 && y.i == 4);
    float p[] = {1, 7}, q[] = {3, 2};
    MPI_Reduce_local(p, q, 1, MPI_2REAL, MPI_MINLOC);
    CHECK(q[0] == 1 && q[1] == 7);
    long double l = 1.5L, m = 2.25L;
    MPI_Reduce_local(&l, &m, 1, MPI_LONG_DOUBLE, MPI_PROD);
    CHECK(m == 3.375L);
    MPI_Datatype pair;
    struct { int v; long i; } r = {3, 1}, s = {4, 2};
    MPI_Type_get_value_index(MPI_INT, MPI_LONG, &pair);
    MPI_Reduce_local(&r, &s, 1, pair, MPI_MINLOC);
    CHECK(s.v == 3 && s.i == 1);

    MPI_Op op, large;
    MPI_Op_create(less, 0, &op);
    MPI_Op_commutative(op, &commutes);
    CHECK(!commutes);
    int left[] = {5, 6}, right[] = {1, 2};
    MPI_Reduce_local(left, right, 2, MPI_INT, op);
    CHECK(right[0] == 4 && right[1] == 4 && seen == MPI_INT);
    MPI_Datatype complex;
    MPI_Type_contiguous(2, MPI_DOUBLE, &complex);
    MPI_Op_create_c(product, 1, &large);
    MPI_Op_commutative(large, &commutes);
    CHECK(commutes);
    double u[] = {0, 1, 2, 0}, v[] = {0, 1, 3, 1};
    FAILS(MPI_Reduce_local(u, v, 2, complex, large), MPI_ERR_TYPE);
    MPI_Type_commit(&complex);
    MPI_Reduce_local_c(u, v, 2, complex, large);
    CHECK(v[0] == -1 && v[1] == 0 && v[2] == 6 && v[3] == 2 && seen == complex);
    /* The same by messages; the order of ranks stays, as the operation does not commute. */
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Op chain;
    MPI_Op_create(compose, 0, &chain);
    MPI_Type_contiguous(2, MPI_INT, &line);
    MPI_Type_commit(&line);
    int mine[] = {rank + 2, rank}, due[] = {1, 0};
    for (int i = 0; i < size; i++) {
        due[1] += due[0] * i;
        due[0] *= i + 2;
    }
    MPI_Allreduce(MPI_IN_PLACE, mine, 1, line, chain, MPI_COMM_WORLD);
    CHECK(mine[0] == due[0] && mine[1] == due[1]);
    MPI_Op_free(&chain);
    MPI_Type_free(&line);
    double turns[20];
    for (int i = 0; i < 20; i++)
        turns[i] = i % 2;
    MPI_Allreduce(MPI_IN_PLACE, turns, 10, complex, large, MPI_COMM_WORLD);
    static const double powers[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    for (int i = 0; i < 20; i++)
        CHECK(turns[i] == powers[size % 4][i % 2]);
    /* A datatype that is freed while it is in use. */
    MPI_Datatype two;
    MPI_Request request;
    MPI_Op choose;
    int both[] = {rank, -rank};
    MPI_Type_contiguous(2, MPI_INT, &two);
    MPI_Type_commit(&two);
    MPI_Op_create(first, 0, &choose);
    MPI_Iallreduce(MPI_IN_PLACE, both, 1, two, choose, MPI_COMM_WORLD, &request);
    MPI_Op_free(&choose);
    MPI_Type_free(&two);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(both[0] == 0 && both[1] == 0);
    long total = 5;
    MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(total == 5L * size);
    MPI_Type_free(&complex);

    FAILS(MPI_Reduce_local(u, v, 1, MPI_DOUBLE, MPI_BAND), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(u, v, 1, MPI_DOUBLE, MPI_MAXLOC), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(u, v, 1, MPI_AINT, MPI_LAND), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_LOGICAL, MPI_SUM), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_CHAR, MPI_SUM), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_BYTE, MPI_MAX), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_C_FLOAT_COMPLEX, MPI_MAX), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_INT, MPI_REPLACE), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(a, b, 1, MPI_INT, MPI_OP_NULL), MPI_ERR_OP);
    FAILS(MPI_Op_create(NULL, 1, &op), MPI_ERR_ARG);
    MPI_Op sum = MPI_SUM;
    FAILS(MPI_Op_free(&sum), MPI_ERR_OP);
    MPI_Op stale = op;
    MPI_Op_free(&op);
    CHECK(op == MPI_OP_NULL);
    FAILS(MPI_Op_commutative(stale, &commutes), MPI_ERR_OP);
    MPI_Op_free(&large);
    MPI_Finalize();
    return wrong;
}
