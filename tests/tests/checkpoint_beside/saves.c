/* A program that saves MIB a rank COUNT times, PAUSE seconds after each other, and says what each took: saves MIB COUNT PAUSE
 *
 * It is compiled twice against the functions of SCR, once with SCR's own library and once with that of gpuos. With -DPLAIN it writes its files
 * into the folder that PLAIN_FOLDER names and has them on the disk before it goes on. */
#include <mpi.h>
#ifndef PLAIN
#include <scr.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int write_all(const char *path, const char *state, size_t size, int sync)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return 0;
    int done = fwrite(state, 1, size, file) == size && fflush(file) == 0;
    done = done && (!sync || fsync(fileno(file)) == 0);
    return fclose(file) == 0 && done;
}

#ifdef PLAIN
static int save(int number, const char *state, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/rank.%d.%d", getenv("PLAIN_FOLDER"), rank, number % 2);
    return write_all(path, state, size, 1);
}
#else
static int save(int number, const char *state, size_t size)
{
    char name[64], path[128], routed[SCR_MAX_FILENAME];
    snprintf(name, sizeof name, "saved.%d", number);
    snprintf(path, sizeof path, "%s/rank.%d", name, rank);
    if (SCR_Start_output(name, SCR_FLAG_CHECKPOINT) != SCR_SUCCESS)
        return 0;
    int valid = SCR_Route_file(path, routed) == SCR_SUCCESS && write_all(routed, state, size, 0);
    return SCR_Complete_output(valid) == SCR_SUCCESS;
}
#endif

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t size = (size_t)atol(argv[1]) << 20;
    int count = atoi(argv[2]);
    double pause = atof(argv[3]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#ifndef PLAIN
    if (SCR_Init() != SCR_SUCCESS)
        return 1;
#endif
    char *state = malloc(size);
    for (size_t at = 0; at < size; at += sizeof(long))
        *(long *)(state + at) = random() ^ (long)at << 20;
    double last = now();
    for (int number = 1; number <= count;) {
        usleep(10000);
        int wanted = now() - last >= pause;
#ifndef PLAIN
        if (SCR_Need_checkpoint(&wanted) != SCR_SUCCESS)
            return 1;
#else
        MPI_Bcast(&wanted, 1, MPI_INT, 0, MPI_COMM_WORLD);
#endif
        if (!wanted)
            continue;
        /* All of it has changed. */
        for (size_t at = 0; at < size; at += sizeof(long))
            *(long *)(state + at) += 1;
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = now();
        if (!save(number, state, size))
            continue;
        MPI_Barrier(MPI_COMM_WORLD);
        last = now();
        if (rank == 0) {
            printf("stood %.4f\n", last - begun);
            fflush(stdout);
        }
        number++;
    }
#ifndef PLAIN
    SCR_Finalize();
#endif
    MPI_Finalize();
    return 0;
}
