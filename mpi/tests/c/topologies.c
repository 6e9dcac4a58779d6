/* Grids and graphs. */
#include "check.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm world = MPI_COMM_WORLD, grid, row, graph;
    int rank, size, n, m, weighted, kind, dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], from, to;
    int index[64], edges[128], got[4], weights[4], keep[2] = {0, 1};
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);

    OK(MPI_Dims_create(size, 2, dims));
    CHECK(dims[0] * dims[1] == size && dims[0] >= dims[1]);
    int odd[2] = {size + 1, 0}, less[1] = {-1};
    FAILS(MPI_Dims_create(size, 2, odd), MPI_ERR_DIMS);
    FAILS(MPI_Dims_create(size, 1, less), MPI_ERR_DIMS);
    OK(MPI_Topo_test(world, &kind));
    CHECK(kind == MPI_UNDEFINED);
    FAILS(MPI_Cartdim_get(world, &n), MPI_ERR_TOPOLOGY);

    OK(MPI_Cart_create(world, 2, dims, periods, 0, &grid));
    OK(MPI_Topo_test(grid, &kind));
    CHECK(kind == MPI_CART);
    OK(MPI_Cartdim_get(grid, &n));
    CHECK(n == 2);
    int sides[2], wraps[2];
    OK(MPI_Cart_get(grid, 2, sides, wraps, coords));
    CHECK(sides[0] == dims[0] && wraps[0] == 1 && wraps[1] == 0);
    CHECK(coords[0] * dims[1] + coords[1] == rank);
    coords[0] += dims[0];
    OK(MPI_Cart_rank(grid, coords, &n));
    CHECK(n == rank);
    OK(MPI_Cart_shift(grid, 1, 1, &from, &to));
    CHECK((from == MPI_PROC_NULL) == (coords[1] == 0));
    FAILS(MPI_Cart_shift(grid, 2, 1, &from, &to), MPI_ERR_DIMS);
    FAILS(MPI_Cart_coords(grid, size, 2, coords), MPI_ERR_RANK);
    OK(MPI_Cart_sub(grid, keep, &row));
    MPI_Comm_size(row, &n);
    CHECK(n == dims[1]);
    OK(MPI_Cartdim_get(row, &n));
    CHECK(n == 1);
    MPI_Comm_free(&row);
    /* Grids of no dimension have one place. */
    keep[1] = 0;
    OK(MPI_Cart_sub(grid, keep, &row));
    MPI_Comm_size(row, &n);
    OK(MPI_Cartdim_get(row, &m));
    CHECK(n == 1 && m == 0);
    OK(MPI_Cart_rank(row, NULL, &n));
    CHECK(n == 0);
    MPI_Comm_free(&row);
    OK(MPI_Cart_create(world, 0, NULL, NULL, 0, &row));
    CHECK((row == MPI_COMM_NULL) == (rank > 0));
    if (row != MPI_COMM_NULL)
        MPI_Comm_free(&row);
    OK(MPI_Cart_map(world, 2, dims, periods, &n));
    dims[0] += 1;
    FAILS(MPI_Cart_create(world, 2, dims, periods, 0, &row), MPI_ERR_TOPOLOGY);
    MPI_Comm_free(&grid);

    /* A ring. */
    for (n = 0; n < size; n++) {
        index[n] = 2 * (n + 1);
        edges[2 * n] = (n + size - 1) % size;
        edges[2 * n + 1] = (n + 1) % size;
    }
    OK(MPI_Graph_create(world, size, index, edges, 0, &graph));
    OK(MPI_Topo_test(graph, &kind));
    CHECK(kind == MPI_GRAPH);
    OK(MPI_Graphdims_get(graph, &n, &m));
    CHECK(n == size && m == 2 * size);
    OK(MPI_Graph_neighbors_count(graph, rank, &n));
    CHECK(n == 2);
    OK(MPI_Graph_neighbors(graph, rank, 2, got));
    CHECK(got[0] == edges[2 * rank] && got[1] == edges[2 * rank + 1]);
    FAILS(MPI_Graph_neighbors_count(graph, -1, &n), MPI_ERR_RANK);
    MPI_Comm_free(&graph);

    int sources[1] = {edges[2 * rank]}, destinations[1] = {edges[2 * rank + 1]}, in[1] = {rank}, out[1] = {7};
    OK(MPI_Dist_graph_create_adjacent(world, 1, sources, in, 1, destinations, out, MPI_INFO_NULL, 0, &graph));
    OK(MPI_Topo_test(graph, &kind));
    CHECK(kind == MPI_DIST_GRAPH);
    OK(MPI_Dist_graph_neighbors_count(graph, &n, &m, &weighted));
    CHECK(n == 1 && m == 1 && weighted);
    OK(MPI_Dist_graph_neighbors(graph, 1, got, weights, 1, got + 1, weights + 1));
    CHECK(got[0] == sources[0] && got[1] == destinations[0] && weights[0] == rank && weights[1] == 7);
    MPI_Comm_free(&graph);
    /* Rank 0 gives all edges. */
    int degrees[64], all[64];
    for (n = 0; n < size; n++) {
        all[n] = n;
        degrees[n] = 1;
        edges[n] = (n + 1) % size;
    }
    n = rank == 0 ? size : 0;
    OK(MPI_Dist_graph_create(world, n, all, degrees, edges, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph));
    OK(MPI_Dist_graph_neighbors_count(graph, &n, &m, &weighted));
    CHECK(n == 1 && m == 1 && !weighted);
    OK(MPI_Dist_graph_neighbors(graph, 1, got, MPI_UNWEIGHTED, 1, got + 1, MPI_UNWEIGHTED));
    CHECK(got[0] == (rank + size - 1) % size && got[1] == (rank + 1) % size);
    MPI_Comm_free(&graph);
    OK(MPI_Dist_graph_create_adjacent(world, 0, NULL, MPI_WEIGHTS_EMPTY, 0, NULL, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, 0, &graph));
    OK(MPI_Dist_graph_neighbors_count(graph, &n, &m, &weighted));
    CHECK(n == 0 && m == 0 && weighted);
    MPI_Comm_free(&graph);
    FAILS(MPI_Dist_graph_create_adjacent(world, 1, sources, MPI_WEIGHTS_EMPTY, 0, NULL, MPI_WEIGHTS_EMPTY, MPI_INFO_NULL, 0, &graph), MPI_ERR_ARG);
    MPI_Finalize();
    return wrong;
}
