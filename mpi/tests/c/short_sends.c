/* ranks: 2 */
/* Threads complete short sends, which are over when they start, in every way at the same time. */
#include "check.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS 500
#define MANY 8

static int rank;

static void *work(void *argument)
{
    int me = (int)(long)argument, other = 1 - rank;
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Request sends[MANY], recvs[MANY];
        int out[MANY], in[MANY], places[MANY], done = 0, left = MANY;
        for (int k = 0; k < MANY; k++) {
            out[k] = 100 * i + k, in[k] = -1;
            MPI_Irecv(&in[k], 1, MPI_INT, other, me, MPI_COMM_WORLD, &recvs[k]);
            MPI_Isend(&out[k], 1, MPI_INT, other, me, MPI_COMM_WORLD, &sends[k]);
        }
        switch ((i + me) % 4) {
        case 0:
            while (left > 0) {
                MPI_Waitsome(MANY, sends, &done, places, MPI_STATUSES_IGNORE);
                left -= done;
            }
            break;
        case 1:
            while (!done) MPI_Testall(MANY, sends, &done, MPI_STATUSES_IGNORE);
            break;
        case 2:
            for (int k = 0; k < MANY; k++)
                for (done = 0; !done;) MPI_Test(&sends[k], &done, MPI_STATUS_IGNORE);
            break;
        default:
            for (int k = 0; k < MANY; k++) MPI_Request_free(&sends[k]);
        }
        for (int k = 0; k < MANY; k++) CHECK(sends[k] == MPI_REQUEST_NULL);
        MPI_Waitall(MANY, recvs, MPI_STATUSES_IGNORE);
        for (int k = 0; k < MANY; k++) CHECK(in[k] == 100 * i + k);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, work, (void *)t);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    OK(MPI_Finalize());
    return wrong;
}
