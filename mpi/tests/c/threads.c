/* ranks: 2 3 */
/* Threads send, receive, reduce and complete general requests at the same time. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>

#define THREADS 4
#define ROUNDS 200

static int rank, size, bad;
static MPI_Comm comms[THREADS];
static MPI_Request general;

static void *work(void *argument)
{
    int me = (int)(long)argument, right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < ROUNDS; i++) {
        int out = 1000 * rank + i, in = -1, sum = 0, one = 1;
        MPI_Sendrecv(&out, 1, MPI_INT, right, me, &in, 1, MPI_INT, left, me, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (in != 1000 * left + i)
            bad = 1, printf("thread %d of rank %d: %d in round %d\n", me, rank, in, i);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comms[me]);
        if (sum != size)
            bad = 1, printf("thread %d of rank %d: a sum of %d\n", me, rank, sum);
    }
    return NULL;
}

static int query(void *state, MPI_Status *status)
{
    MPI_Status_set_elements(status, MPI_INT, *(int *)state);
    MPI_Status_set_cancelled(status, 0);
    return MPI_SUCCESS;
}

static int freed(void *state)
{
    *(int *)state = -1;
    return MPI_SUCCESS;
}

static int cancelled(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

static void *complete(void *argument)
{
    (void)argument;
    MPI_Grequest_complete(general);
    return NULL;
}

int main(int argc, char **argv)
{
    int provided, state = 3, count;
    pthread_t threads[THREADS], other;
    MPI_Status status;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided != MPI_THREAD_MULTIPLE)
        bad = 1, printf("threads: %d\n", provided);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* One thread waits while another completes. */
    MPI_Grequest_start(query, freed, cancelled, &state, &general);
    MPI_Request waited = general;
    pthread_create(&other, NULL, complete, NULL);
    MPI_Wait(&waited, &status);
    pthread_join(other, NULL);
    MPI_Get_elements(&status, MPI_INT, &count);
    if (count != 3 || state != -1)
        bad = 1, printf("a general request of %d elements, state %d\n", count, state);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_free(&comms[i]);
    MPI_Finalize();
    return bad;
}
