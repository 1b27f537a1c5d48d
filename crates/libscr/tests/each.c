/* Calls each function and ends with the line of the first that does not do what scr.h says: each WHAT. With WITH_MPI, as one of several ranks. */
#ifdef WITH_MPI
#include <mpi.h>
#endif
#include <fcntl.h>
#include <scr.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WANT(what) do { if (!(what)) { fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #what); return 1; } } while (0)

static int rank, size = 1;
static char routed[SCR_MAX_FILENAME], name[SCR_MAX_FILENAME];

static int put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    return file && fputs(text, file) >= 0 && fclose(file) == 0;
}

static int holds(const char *path, const char *text)
{
    char read[64] = "";
    FILE *file = fopen(path, "r");
    return file && fgets(read, sizeof read, file) && fclose(file) == 0 && strcmp(read, text) == 0;
}

/* Waits until a checkpoint is needed. Ranks come to each call at other times. */
static int needed(void)
{
    int need = 0;
    while (!need) {
        usleep(1000 * (unsigned)(1 + rank));
        WANT(SCR_Need_checkpoint(&need) == SCR_SUCCESS);
    }
    return 0;
}

/* In a job without checkpoints. */
static int without(void)
{
    int flag = 7;
    WANT(SCR_Need_checkpoint(&flag) != SCR_SUCCESS && flag == 0);
    WANT(SCR_Finalize() != SCR_SUCCESS);
    WANT(SCR_Configf("SCR_FLUSH=%d", 10) == NULL);
    char *value = (char *)SCR_Config("SCR_FLUSH");
    WANT(value && strcmp(value, "10") == 0);
    free(value);
    WANT(SCR_Config("SCR_FLUSH=") == NULL && SCR_Config("SCR_FLUSH") == NULL);
    WANT(SCR_Config("CKPT=0 TYPE=XOR") == NULL);
    value = (char *)SCR_Config("CKPT=0 TYPE");
    WANT(value && strcmp(value, "XOR") == 0);
    free(value);

    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Init() != SCR_SUCCESS);
    WANT(SCR_Config("SCR_FLUSH=3") == NULL && SCR_Config("SCR_FLUSH") == NULL);
    WANT(strncmp(SCR_Get_version(), SCR_VERSION, strlen(SCR_VERSION)) == 0);
    WANT(SCR_Have_restart(&flag, name) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Start_restart(NULL) != SCR_SUCCESS && SCR_Complete_restart(1) != SCR_SUCCESS);
    WANT(SCR_Need_checkpoint(&flag) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Should_exit(&flag) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Complete_output(1) != SCR_SUCCESS);
    WANT(SCR_Route_file("some/../name", routed) == SCR_SUCCESS && strcmp(routed, "some/../name") == 0);
    WANT(SCR_Need_checkpoint(NULL) != SCR_SUCCESS && SCR_Route_file(NULL, routed) != SCR_SUCCESS && SCR_Route_file("x", NULL) != SCR_SUCCESS);
    WANT(SCR_Current("x") != SCR_SUCCESS && SCR_Drop("x") != SCR_SUCCESS && SCR_Delete("x") != SCR_SUCCESS);

    /* Output is written to where its name says. */
    WANT(SCR_Start_output("plot", SCR_FLAG_NONE) != SCR_SUCCESS);
    WANT(SCR_Start_output("plot", SCR_FLAG_OUTPUT) == SCR_SUCCESS);
    WANT(SCR_Need_checkpoint(&flag) != SCR_SUCCESS);
    WANT(SCR_Route_file("plots/a/one", routed) == SCR_SUCCESS && put(routed, "plot\n"));
    WANT(SCR_Complete_output(1) == SCR_SUCCESS && holds("plots/a/one", "plot\n"));
    WANT(SCR_Start_output("plot", SCR_FLAG_OUTPUT) == SCR_SUCCESS && SCR_Complete_output(0) != SCR_SUCCESS);

    /* A checkpoint that nobody wants is none. */
    WANT(SCR_Start_checkpoint() != SCR_SUCCESS);
    WANT(SCR_Route_file("state", routed) == SCR_SUCCESS && strcmp(routed, "state") == 0);
    WANT(SCR_Complete_checkpoint(1) != SCR_SUCCESS);
    /* Whoever writes one all the same finds its folder. */
    WANT(SCR_Start_checkpoint() != SCR_SUCCESS);
    WANT(SCR_Route_file("deep/down/state", routed) == SCR_SUCCESS && strcmp(routed, "deep/down/state") == 0 && put(routed, "all the same\n"));
    WANT(SCR_Complete_checkpoint(1) != SCR_SUCCESS && holds("deep/down/state", "all the same\n"));
    WANT(SCR_Start_output("both", SCR_FLAG_CHECKPOINT | SCR_FLAG_OUTPUT) == SCR_SUCCESS && SCR_Complete_output(1) == SCR_SUCCESS);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* Saves four checkpoints: one that a rank cannot write at first, one that is output too and comes to nothing, one after it, and the end. */
static int with(void)
{
    int flag;
    char mine[64], state[64];
    snprintf(mine, sizeof mine, "step/rank.%d", rank);
    snprintf(state, sizeof state, "state of rank %d of %d\n", rank, size);
    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, NULL) == SCR_SUCCESS && flag == 0);

    WANT(needed() == 0);
    WANT(SCR_Start_output("first", SCR_FLAG_CHECKPOINT) == SCR_SUCCESS);
    WANT(SCR_Route_file("left-over", routed) == SCR_SUCCESS && put(routed, "x"));
    WANT(SCR_Route_file("/nowhere/below", routed) != SCR_SUCCESS);
    WANT(SCR_Complete_output(rank != size - 1) != SCR_SUCCESS);
    WANT(needed() == 0);
    WANT(SCR_Start_output("first again", SCR_FLAG_CHECKPOINT) == SCR_SUCCESS);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && strcmp(routed, mine) != 0 && put(routed, state));
    WANT(SCR_Route_file("other/same", routed) == SCR_SUCCESS && put(routed, "one\n"));
    WANT(SCR_Route_file("another/same", routed) == SCR_SUCCESS && put(routed, "two\n"));
    WANT(SCR_Complete_output(1) == SCR_SUCCESS);
    WANT(SCR_Should_exit(&flag) == SCR_SUCCESS && flag == 0);

    WANT(needed() == 0);
    WANT(SCR_Start_output("second", SCR_FLAG_CHECKPOINT | SCR_FLAG_OUTPUT) == SCR_SUCCESS);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && put(routed, state));
    WANT(SCR_Complete_output(1) == SCR_SUCCESS && holds(mine, state));

    /* It is saved itself, and says that the one before came to nothing. */
    WANT(needed() == 0);
    WANT(SCR_Start_output("third", SCR_FLAG_CHECKPOINT) == SCR_SUCCESS);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && put(routed, state));
    WANT(SCR_Complete_output(1) != SCR_SUCCESS);

    WANT(needed() == 0);
    WANT(SCR_Start_output(NULL, SCR_FLAG_CHECKPOINT) == SCR_SUCCESS);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && put(routed, state));
    WANT(SCR_Route_file("other/same", routed) == SCR_SUCCESS && put(routed, "one\n"));
    WANT(SCR_Route_file("another/same", routed) == SCR_SUCCESS && put(routed, "two\n"));
    WANT(SCR_Complete_output(1) == SCR_SUCCESS);
    WANT(SCR_Should_exit(&flag) == SCR_SUCCESS && flag == 1);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* Loads the last of them, which a rank cannot, then the one before, and then there is none. */
static int again(void)
{
    int flag;
    char mine[64], state[64], known[SCR_MAX_FILENAME];
    snprintf(mine, sizeof mine, "step/rank.%d", rank);
    snprintf(state, sizeof state, "state of rank %d of %d\n", rank, size);
    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, known) == SCR_SUCCESS && flag == 1 && strcmp(known, "checkpoint.4") == 0);
    WANT(SCR_Current(known) == SCR_SUCCESS && SCR_Current("first") != SCR_SUCCESS);
    WANT(SCR_Start_restart(name) == SCR_SUCCESS && strcmp(name, known) == 0);
    WANT(SCR_Need_checkpoint(&flag) != SCR_SUCCESS);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && holds(routed, state));
    WANT(SCR_Route_file(mine + strlen("step/"), routed) == SCR_SUCCESS && holds(routed, state));
    WANT(SCR_Route_file("another/same", routed) == SCR_SUCCESS && holds(routed, "two\n"));
    WANT(SCR_Route_file("same", routed) != SCR_SUCCESS && SCR_Route_file("left-over", routed) != SCR_SUCCESS);
    WANT(SCR_Complete_restart(rank != size - 1) != SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, known) == SCR_SUCCESS && flag == 1 && strcmp(known, "third") == 0);
    WANT(SCR_Start_restart(name) == SCR_SUCCESS && SCR_Complete_restart(0) != SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, known) == SCR_SUCCESS && flag == 1 && strcmp(known, "first again") == 0);
    WANT(SCR_Start_restart(name) == SCR_SUCCESS && strcmp(name, known) == 0);
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && holds(routed, state));
    WANT(SCR_Complete_restart(0) != SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, NULL) != SCR_SUCCESS && SCR_Start_restart(NULL) != SCR_SUCCESS);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* A block of a file that all ranks write. */
enum { BLOCK = 5000 };

static int block(const char *path, int which, int writes)
{
    static char own[BLOCK], seen[BLOCK];
    int file = open(path, writes ? O_WRONLY | O_CREAT : O_RDONLY, 0600);
    memset(own, 'a' + which, sizeof own);
    int done = file >= 0 && (writes ? pwrite(file, own, sizeof own, (off_t)which * BLOCK) : pread(file, seen, sizeof seen, (off_t)which * BLOCK)) == BLOCK;
    return file >= 0 && close(file) == 0 && done && (writes || memcmp(own, seen, sizeof own) == 0);
}

/* All ranks write one file, and each one of its own. */
static int shared(void)
{
    char mine[64];
    snprintf(mine, sizeof mine, "own/%d", rank);
    WANT(SCR_Init() == SCR_SUCCESS && needed() == 0);
    WANT(SCR_Start_output("all", SCR_FLAG_CHECKPOINT | SCR_FLAG_OUTPUT) == SCR_SUCCESS);
    WANT(SCR_Route_file("all/together", routed) == SCR_SUCCESS && block(routed, rank, 1));
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && put(routed, "mine\n"));
    WANT(SCR_Complete_output(1) == SCR_SUCCESS && holds(mine, "mine\n"));
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* All ranks find all of it again. */
static int shared_again(void)
{
    int flag;
    char mine[64];
    snprintf(mine, sizeof mine, "own/%d", rank);
    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, name) == SCR_SUCCESS && flag == 1 && strcmp(name, "all") == 0);
    WANT(SCR_Start_restart(NULL) == SCR_SUCCESS);
    WANT(SCR_Route_file("all/together", routed) == SCR_SUCCESS);
    for (int which = 0; which < size; which++)
        WANT(block(routed, which, 0));
    WANT(SCR_Route_file(mine, routed) == SCR_SUCCESS && holds(routed, "mine\n"));
    WANT(SCR_Complete_restart(1) == SCR_SUCCESS);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* The first rank makes the file and the others open it, as they do who share it; here each has one of its own. */
static int apart(void)
{
    WANT(SCR_Init() == SCR_SUCCESS && needed() == 0);
    WANT(SCR_Start_output("all", SCR_FLAG_CHECKPOINT) == SCR_SUCCESS);
    WANT(SCR_Route_file("all/together", routed) == SCR_SUCCESS);
    int wrote = rank == 0 ? block(routed, rank, 1) : block(routed, rank, 0);
    WANT(SCR_Complete_output(wrote) != SCR_SUCCESS);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* As if there were no checkpoint: its user wants that. */
static int anew(void)
{
    int flag;
    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, NULL) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* Without checkpoints, in a job that has them. */
static int disabled(void)
{
    int flag;
    WANT(SCR_Init() == SCR_SUCCESS);
    WANT(SCR_Have_restart(&flag, NULL) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Need_checkpoint(&flag) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Start_checkpoint() == SCR_SUCCESS);
    WANT(SCR_Route_file("off/state", routed) == SCR_SUCCESS && put(routed, "off\n"));
    WANT(SCR_Complete_checkpoint(1) == SCR_SUCCESS && holds("off/state", "off\n"));
    WANT(SCR_Should_exit(&flag) == SCR_SUCCESS && flag == 0);
    WANT(SCR_Finalize() == SCR_SUCCESS);
    return 0;
}

/* There are checkpoints, and they cannot be loaded; or the ranks cannot agree. */
static int refused(void)
{
    WANT(SCR_Init() != SCR_SUCCESS);
    WANT(SCR_Start_checkpoint() != SCR_SUCCESS);
    return 0;
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
#ifdef WITH_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
#endif
    int failed = strcmp(which, "without") == 0 ? without()
                 : strcmp(which, "with") == 0  ? with()
                 : strcmp(which, "again") == 0 ? again()
                 : strcmp(which, "shared") == 0 ? shared()
                 : strcmp(which, "shared-again") == 0 ? shared_again()
                 : strcmp(which, "apart") == 0 ? apart()
                 : strcmp(which, "anew") == 0 ? anew()
                 : strcmp(which, "disabled") == 0 ? disabled()
                                               : refused();
#ifdef WITH_MPI
    if (!failed)
        MPI_Finalize();
#endif
    return failed;
}
