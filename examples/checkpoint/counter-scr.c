/* A program that counts, and goes on from its last checkpoint by the functions of SCR: counter-scr LIMIT [MILLISECONDS]
 *
 *     cc counter-scr.c $(pkg-config --cflags --libs gpuos-scr) -o counter-scr
 *     mpicc -DWITH_MPI counter-scr.c $(pkg-config --cflags --libs gpuos-scr) -o counter-scr
 *     sbatch --requeue --gpuos-checkpoint=10m -N2 --wrap 'srun --mpi=pmix ./counter-scr 100000' */
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <scr.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank;

/* `mode` is "r" or "w"; the path is that of a run without SCR. */
static int count_file(const char *dataset, const char *mode, long *count)
{
    char path[SCR_MAX_FILENAME + 32], routed[SCR_MAX_FILENAME];
    snprintf(path, sizeof path, "%s/rank.%d", dataset, rank);
    if (SCR_Route_file(path, routed) != SCR_SUCCESS)
        return 0;
    FILE *file = fopen(routed, mode);
    if (!file)
        return 0;
    int done = *mode == 'r' ? fscanf(file, "%ld", count) == 1 : fprintf(file, "%ld\n", *count) > 0;
    return fclose(file) == 0 && done;
}

static int loop(long limit, long pause)
{
    long count = 0;
    char dataset[SCR_MAX_FILENAME];
    int have = 0, need = 0, ends = 0;

    if (SCR_Have_restart(&have, dataset) == SCR_SUCCESS && have) {
        SCR_Start_restart(dataset);
        if (SCR_Complete_restart(count_file(dataset, "r", &count)) != SCR_SUCCESS)
            return 1;
        printf("restored %s at %ld\n", dataset, count);
    } else {
        puts("new");
    }

    while (count < limit) {
        count++;
        struct timespec time = {pause / 1000, pause % 1000 * 1000000};
        nanosleep(&time, NULL);
        if (SCR_Need_checkpoint(&need) != SCR_SUCCESS || !need)
            continue;
        snprintf(dataset, sizeof dataset, "count.%ld", count);
        if (SCR_Start_output(dataset, SCR_FLAG_CHECKPOINT) != SCR_SUCCESS)
            continue;
        if (SCR_Complete_output(count_file(dataset, "w", &count)) == SCR_SUCCESS)
            printf("saved %s at %ld\n", dataset, count);
        if (SCR_Should_exit(&ends) == SCR_SUCCESS && ends)
            return 0;
    }
    printf("done at %ld\n", count);
    return 0;
}

int main(int argc, char **argv)
{
#ifdef WITH_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
    setvbuf(stdout, NULL, _IOLBF, 0);
    int failed = SCR_Init() != SCR_SUCCESS;
    if (!failed) {
        failed = loop(argc > 1 ? atol(argv[1]) : 1000, argc > 2 ? atol(argv[2]) : 100);
        SCR_Finalize();
    }
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return failed;
}
