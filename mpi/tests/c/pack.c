/* Packing, in this machine's representation and the portable one; long and long long match. */
#include "check.h"

static void native(void)
{
    int matrix[12], copy[12], size, more, position = 0;
    char buffer[64];
    MPI_Datatype column;
    for (int i = 0; i < 12; i++)
        matrix[i] = i, copy[i] = -1;
    MPI_Type_vector(3, 1, 4, MPI_INT, &column);
    FAILS(MPI_Pack(matrix, 1, column, buffer, 64, &position, MPI_COMM_WORLD), MPI_ERR_TYPE);
    MPI_Type_commit(&column);
    MPI_Pack_size(1, column, MPI_COMM_WORLD, &size);
    MPI_Pack_size(2, MPI_DOUBLE, MPI_COMM_WORLD, &more);
    CHECK(size >= 12 && more >= 16);
    double two[] = {1.5, -2.5}, back[2];
    MPI_Pack(matrix + 1, 1, column, buffer, 64, &position, MPI_COMM_WORLD);
    CHECK(position <= size);
    MPI_Pack(two, 2, MPI_DOUBLE, buffer, 64, &position, MPI_COMM_WORLD);
    int end = position;
    FAILS(MPI_Pack(matrix, 10, MPI_INT, buffer, 64, &position, MPI_COMM_WORLD), MPI_ERR_TRUNCATE);
    CHECK(position == end);
    position = 0;
    MPI_Unpack(buffer, end, &position, copy + 2, 1, column, MPI_COMM_WORLD);
    MPI_Unpack(buffer, end, &position, back, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    CHECK(position == end);
    for (int i = 0; i < 12; i++)
        CHECK(copy[i] == (i % 4 == 2 ? i - 1 : -1));
    CHECK(back[0] == 1.5 && back[1] == -2.5);
    FAILS(MPI_Unpack(buffer, end, &position, back, 1, MPI_DOUBLE, MPI_COMM_WORLD), MPI_ERR_TRUNCATE);
    position = 77;
    FAILS(MPI_Pack(matrix, 1, MPI_INT, buffer, 64, &position, MPI_COMM_WORLD), MPI_ERR_ARG);
    /* Absolute addresses. */
    MPI_Aint at;
    MPI_Datatype there;
    int one = 1;
    MPI_Get_address(&matrix[7], &at);
    MPI_Type_create_hindexed(1, &one, &at, MPI_INT, &there);
    MPI_Type_commit(&there);
    MPI_Count large = 0;
    MPI_Pack_c(MPI_BOTTOM, 1, there, buffer, 64, &large, MPI_COMM_WORLD);
    CHECK(large == 4 && memcmp(buffer, &matrix[7], 4) == 0);
    MPI_Type_free(&there);
    MPI_Type_free(&column);
}

static void portable(void)
{
    struct { int i; long l; double d; short s; } from = {-2, 0x01020304, 1.0, 0x1234}, into;
    unsigned char due[] = {255, 255, 255, 254, 1, 2, 3, 4, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x12, 0x34}, out[32];
    int lengths[] = {1, 1, 1, 1};
    MPI_Aint places[4], base, size, position = 0;
    MPI_Datatype types[] = {MPI_INT, MPI_LONG, MPI_DOUBLE, MPI_SHORT}, record;
    MPI_Get_address(&from, &base);
    MPI_Get_address(&from.i, &places[0]);
    MPI_Get_address(&from.l, &places[1]);
    MPI_Get_address(&from.d, &places[2]);
    MPI_Get_address(&from.s, &places[3]);
    for (int i = 0; i < 4; i++)
        places[i] -= base;
    MPI_Type_create_struct(4, lengths, places, types, &record);
    MPI_Type_commit(&record);
    MPI_Pack_external_size("external32", 1, record, &size);
    CHECK(size == sizeof due);
    MPI_Pack_external("external32", &from, 1, record, out, sizeof out, &position);
    CHECK(position == sizeof due && memcmp(out, due, sizeof due) == 0);
    FAILS(MPI_Pack_external("external32", &from, 1, record, out, sizeof out, &position), MPI_ERR_TRUNCATE);
    position = 0;
    memset(&into, 0, sizeof into);
    MPI_Unpack_external("external32", out, size, &position, &into, 1, record);
    CHECK(position == size && into.i == from.i && into.l == from.l && into.d == from.d && into.s == from.s);
    FAILS(MPI_Pack_external("elsewhere", &from, 1, record, out, sizeof out, &position), MPI_ERR_UNSUPPORTED_DATAREP);
    MPI_Type_free(&record);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    native();
    portable();
    /* A message of long is one of long long, of struct members, too. */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct { long l; int i; } record = {7, 8};
    long long got[2] = {0, 0};
    int lengths[] = {1, 1};
    MPI_Aint places[] = {0, 8};
    MPI_Datatype out_types[] = {MPI_LONG, MPI_INT}, in_types[] = {MPI_INT64_T, MPI_INTEGER}, out, in;
    MPI_Type_create_struct(2, lengths, places, out_types, &out);
    MPI_Type_create_struct(2, lengths, places, in_types, &in);
    MPI_Type_commit(&out);
    MPI_Type_commit(&in);
    MPI_Status status;
    MPI_Request request;
    MPI_Irecv(got, 1, in, rank, 3, MPI_COMM_WORLD, &request);
    MPI_Send(&record, 1, out, rank, 3, MPI_COMM_WORLD);
    CHECK(MPI_Wait(&request, &status) == MPI_SUCCESS && got[0] == 7 && *(int *)&got[1] == 8);
    MPI_Type_free(&out);
    MPI_Type_free(&in);
    MPI_Finalize();
    return wrong;
}
