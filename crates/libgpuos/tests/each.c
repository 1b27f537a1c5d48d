/* Calls each function and ends with the line of the first that does not do what gpuos.h says. */
#include <gpuos.h>
#include <stdio.h>
#include <string.h>

#define WANT(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); return 1; } } while (0)

static char text[256];

static int says(const gpuos_ckpt *ckpt, const char *part)
{
    return gpuos_ckpt_message(ckpt, text, sizeof text) == 0 && strstr(text, part) != NULL;
}

static int without(void)
{
    uint32_t number = 7;
    int reason = 7;
    gpuos_ckpt *ckpt = gpuos_ckpt_open(2, 3);
    WANT(strchr(gpuos_version(), '.'));
    WANT(gpuos_ckpt_available(ckpt) == 0);
    WANT(gpuos_ckpt_rank(ckpt) == 2 && gpuos_ckpt_size(ckpt) == 3);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_NEW);
    WANT(gpuos_ckpt_wanted(ckpt, &number, &reason) == 0 && number == 7 && reason == 7);
    WANT(gpuos_ckpt_restored(ckpt, &number, text, sizeof text) == GPUOS_CKPT_ERROR && says(ckpt, "from no checkpoint"));
    WANT(gpuos_ckpt_folder(ckpt, 1, text, sizeof text) == GPUOS_CKPT_ERROR && says(ckpt, "GPUOS_CHECKPOINT_DIR is not set"));
    WANT(gpuos_ckpt_ready(ckpt, 1) == GPUOS_CKPT_ERROR && gpuos_ckpt_refuse(ckpt, "x") == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_outcome(ckpt, 1) == GPUOS_CKPT_FAILED);
    WANT(gpuos_ckpt_wait(ckpt, 1, -1) == GPUOS_CKPT_FAILED);
    gpuos_ckpt_close(ckpt);

    ckpt = gpuos_ckpt_open(3, 3);
    WANT(ckpt && gpuos_ckpt_rank(ckpt) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_ERROR && says(ckpt, "rank 3 of 3 cannot be"));
    gpuos_ckpt_close(ckpt);
    ckpt = gpuos_ckpt_open(0, -1);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_ERROR);
    gpuos_ckpt_close(ckpt);

    gpuos_ckpt_close(NULL);
    WANT(gpuos_ckpt_available(NULL) == GPUOS_CKPT_ERROR && gpuos_ckpt_rank(NULL) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_join(NULL, 0) == GPUOS_CKPT_ERROR && gpuos_ckpt_wanted(NULL, NULL, NULL) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_folder(NULL, 1, text, sizeof text) == GPUOS_CKPT_ERROR && gpuos_ckpt_ready(NULL, 1) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_refuse(NULL, NULL) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_any_ranks(NULL) == GPUOS_CKPT_ERROR && gpuos_ckpt_restored_ranks(NULL) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_wait(NULL, 1, 0) == GPUOS_CKPT_ERROR && gpuos_ckpt_message(NULL, text, sizeof text) == GPUOS_CKPT_ERROR);
    return 0;
}

/* Saves two checkpoints: the first comes to nothing, the second is the end. */
static int with(void)
{
    uint32_t number;
    int reason, round;
    char folder[4096], small[4];
    gpuos_ckpt *ckpt = gpuos_ckpt_open(0, 1);
    WANT(gpuos_ckpt_available(ckpt) == 1);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_NEW);
    WANT(gpuos_ckpt_ask(ckpt) == 0 && gpuos_ckpt_ask(NULL) == GPUOS_CKPT_ERROR);
    for (round = 1; round <= 2; round++) {
        while (gpuos_ckpt_wanted(ckpt, &number, &reason) == 0)
            ;
        WANT(number == (uint32_t)round && reason == (round == 1 ? GPUOS_CKPT_ASKED : GPUOS_CKPT_END));
        WANT(gpuos_ckpt_wanted(ckpt, NULL, NULL) == 1);
        WANT(gpuos_ckpt_outcome(ckpt, number) == GPUOS_CKPT_PENDING);
        WANT(gpuos_ckpt_wait(ckpt, number, 1) == GPUOS_CKPT_TIMEOUT && says(ckpt, "time limit"));
        WANT(gpuos_ckpt_folder(ckpt, number, NULL, 0) == GPUOS_CKPT_ERROR);
        WANT(gpuos_ckpt_folder(ckpt, number, small, sizeof small) == GPUOS_CKPT_ERROR && says(ckpt, "room for 4"));
        WANT(gpuos_ckpt_message(ckpt, small, sizeof small) == 0 && strcmp(small, "the") == 0);
        WANT(gpuos_ckpt_folder(ckpt, number, folder, sizeof folder) == 0);
        strncat(folder, "/state", sizeof folder - strlen(folder) - 1);
        FILE *file = fopen(folder, "w");
        WANT(file && fputs("state of rank 0 of 1\n", file) >= 0 && fclose(file) == 0);
        WANT(gpuos_ckpt_ready(ckpt, number) == 0);
        WANT(gpuos_ckpt_wanted(ckpt, &number, NULL) == 0);
        if (round == 1)
            WANT(gpuos_ckpt_wait(ckpt, number, -1) == GPUOS_CKPT_FAILED && says(ckpt, "no room"));
        else
            WANT(gpuos_ckpt_wait(ckpt, number, -1) == GPUOS_CKPT_COMMITTED);
        WANT(gpuos_ckpt_lost(ckpt, &number) == (round == 1 ? GPUOS_CKPT_BEFORE_LOST : 0));
        WANT(number == (uint32_t)round);
    }
    WANT(gpuos_ckpt_ready(ckpt, 1) == GPUOS_CKPT_FAILED);
    WANT(gpuos_ckpt_restored_ranks(ckpt) == 0);
    WANT(gpuos_ckpt_refuse(ckpt, NULL) == GPUOS_CKPT_ERROR && says(ckpt, "nothing to refuse"));
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_RESTORE && gpuos_ckpt_restored(ckpt, &number, folder, sizeof folder) == 0 && number == 2);
    WANT(gpuos_ckpt_restored_ranks(ckpt) == gpuos_ckpt_size(ckpt));
    WANT(gpuos_ckpt_refuse(ckpt, "no layer 7") == 0 && gpuos_ckpt_refuse(ckpt, NULL) == GPUOS_CKPT_ERROR);
    WANT(gpuos_ckpt_restored(ckpt, NULL, folder, sizeof folder) == GPUOS_CKPT_ERROR);
    /* There was none before it. */
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_FAILED && says(ckpt, "no checkpoint can be restored"));
    gpuos_ckpt_close(ckpt);
    return 0;
}

static int save(gpuos_ckpt *ckpt)
{
    uint32_t number;
    char folder[4096];
    while (gpuos_ckpt_wanted(ckpt, &number, NULL) == 0)
        ;
    WANT(gpuos_ckpt_folder(ckpt, number, folder, sizeof folder) == 0);
    return gpuos_ckpt_ready(ckpt, number);
}

/* Nobody waits for one that comes to nothing, and what comes next tells of it. */
static int lost(void)
{
    uint32_t number = 0;
    gpuos_ckpt *ckpt = gpuos_ckpt_open(0, 1);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_NEW);
    WANT(gpuos_ckpt_lost(ckpt, NULL) == 0 && gpuos_ckpt_lost(NULL, NULL) == GPUOS_CKPT_ERROR);
    WANT(save(ckpt) == 0);
    while (gpuos_ckpt_lost(ckpt, &number) == 0)
        gpuos_ckpt_wanted(ckpt, NULL, NULL);
    WANT(number == 1 && says(ckpt, "checkpoint 1, which was saved before, came to nothing: no room"));
    WANT(gpuos_ckpt_ask(ckpt) == GPUOS_CKPT_BEFORE_LOST);
    WANT(save(ckpt) == GPUOS_CKPT_BEFORE_LOST && says(ckpt, "no room"));
    while (gpuos_ckpt_lost(ckpt, NULL) == GPUOS_CKPT_BEFORE_LOST)
        gpuos_ckpt_wanted(ckpt, NULL, NULL);
    gpuos_ckpt_close(ckpt);
    return 0;
}

static int refused(void)
{
    gpuos_ckpt *ckpt = gpuos_ckpt_open(0, 1);
    WANT(gpuos_ckpt_join(ckpt, -1) == GPUOS_CKPT_FAILED && says(ckpt, "made by 8 ranks"));
    gpuos_ckpt_close(ckpt);
    return 0;
}

static int silent(void)
{
    gpuos_ckpt *ckpt = gpuos_ckpt_open(0, 1);
    WANT(gpuos_ckpt_join(ckpt, 10) == GPUOS_CKPT_TIMEOUT && says(ckpt, "within the time limit"));
    gpuos_ckpt_close(ckpt);
    return 0;
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    return strcmp(which, "without") == 0   ? without()
           : strcmp(which, "with") == 0    ? with()
           : strcmp(which, "lost") == 0    ? lost()
           : strcmp(which, "refused") == 0 ? refused()
                                           : silent();
}
