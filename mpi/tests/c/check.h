/* What the tests say when something is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            wrong = 1; \
        } \
    } while (0)

/* The class of the error that a call gives. */
static inline int class_of(int code)
{
    int class = -1;
    MPI_Error_class(code, &class);
    return class;
}

#define FAILS(call, class) CHECK(class_of(call) == (class))
#define OK(call) CHECK((call) == MPI_SUCCESS)
