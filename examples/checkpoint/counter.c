/* A program that counts, and goes on from its last checkpoint: counter LIMIT [MILLISECONDS]
 *
 *     cc counter.c $(pkg-config --cflags --libs gpuos) -o counter
 *     sbatch --requeue --gpuos-checkpoint=10m --wrap './counter 100000'
 *
 * With several ranks, rank 0 would look for requests and MPI_Bcast the number. */
#include <gpuos.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void complain(const gpuos_ckpt *ckpt, const char *what)
{
    char why[512] = "";
    gpuos_ckpt_message(ckpt, why, sizeof why);
    fprintf(stderr, "%s: %s\n", what, why);
}

/* `mode` is "r" or "w". */
static int count_file(const char *folder, const char *mode, long *count)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/count", folder);
    FILE *file = fopen(path, mode);
    if (!file)
        return -1;
    int done = *mode == 'r' ? fscanf(file, "%ld", count) == 1 : fprintf(file, "%ld\n", *count) > 0;
    return fclose(file) == 0 && done ? 0 : -1;
}

int main(int argc, char **argv)
{
    long limit = argc > 1 ? atol(argv[1]) : 1000, count = 0;
    long pause = argc > 2 ? atol(argv[2]) : 100;
    char folder[4096];
    uint32_t number;
    int reason;

    setvbuf(stdout, NULL, _IOLBF, 0);
    gpuos_ckpt *ckpt = gpuos_ckpt_open(-1, -1);
    int start = gpuos_ckpt_join(ckpt, -1);
    if (start == GPUOS_CKPT_RESTORE) {
        if (gpuos_ckpt_restored(ckpt, &number, folder, sizeof folder) != 0 || count_file(folder, "r", &count) != 0) {
            complain(ckpt, "restore");
            return 1;
        }
        printf("restored checkpoint %u at %ld\n", (unsigned)number, count);
    } else if (start == GPUOS_CKPT_NEW) {
        puts("new");
    } else {
        complain(ckpt, "start");
        return 1;
    }

    while (count < limit) {
        count++;
        struct timespec time = {pause / 1000, pause % 1000 * 1000000};
        nanosleep(&time, NULL);
        if (gpuos_ckpt_wanted(ckpt, &number, &reason) != 1)
            continue;
        if (gpuos_ckpt_folder(ckpt, number, folder, sizeof folder) != 0 || count_file(folder, "w", &count) != 0 ||
            gpuos_ckpt_ready(ckpt, number) < 0) {
            complain(ckpt, "checkpoint");
            continue;
        }
        printf("saved %u at %ld\n", (unsigned)number, count);
        if (reason != GPUOS_CKPT_END)
            continue;
        /* If it came to nothing the next one may be the last. */
        if (gpuos_ckpt_wait(ckpt, number, -1) == GPUOS_CKPT_COMMITTED) {
            gpuos_ckpt_close(ckpt);
            return 0;
        }
        complain(ckpt, "checkpoint");
    }
    printf("done at %ld\n", count);
    gpuos_ckpt_close(ckpt);
    return 0;
}
