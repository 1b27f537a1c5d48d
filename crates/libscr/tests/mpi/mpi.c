#include "mpi.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS 16
#define NUMBERS_EACH 8
#define WANT(what) do { if (!(what)) { fprintf(stderr, "mpi.c:%d: %s\n", __LINE__, #what); abort(); } } while (0)

#ifdef NUMBERS
static const MPI_Comm copied = (int)0x84000001;
#else
char ompi_mpi_comm_world[64], ompi_mpi_int[64], ompi_mpi_op_max[64];
static char copy_of_world[64];
#define copied ((MPI_Comm)(void *)copy_of_world)
#endif

/* In the file: how many have come to the round, and their numbers. Rounds take turns in two sets, so that a slow reader of one keeps its numbers. */
struct meeting {
    int come, rounds;
    int processes[RANKS];
    int numbers[2][RANKS][NUMBERS_EACH];
};

static int begun, ended, rank, size, copies;
static struct meeting *meeting;

static int variable(const char *one, const char *other)
{
    const char *text = getenv(one) ? getenv(one) : getenv(other);
    WANT(text);
    return atoi(text);
}

int MPI_Init(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    rank = variable("FAKE_RANK", "SLURM_PROCID");
    size = variable("FAKE_SIZE", "SLURM_STEP_NUM_TASKS");
    WANT(rank >= 0 && rank < size && size <= RANKS);
    int file = open(getenv("FAKE_MPI"), O_RDWR | O_CREAT, 0600);
    WANT(file >= 0 && ftruncate(file, sizeof *meeting) == 0);
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    WANT(meeting != MAP_FAILED);
    close(file);
    __atomic_store_n(&meeting->processes[rank], getpid(), __ATOMIC_RELEASE);
    begun = 1;
    return 0;
}

int MPI_Finalize(void)
{
    WANT(copies == 0);
    ended = 1;
    return 0;
}

int MPI_Initialized(int *flag)
{
    *flag = begun;
    return 0;
}

int MPI_Finalized(int *flag)
{
    *flag = ended;
    return 0;
}

int MPI_Comm_rank(MPI_Comm comm, int *own)
{
    WANT(begun && comm == MPI_COMM_WORLD);
    *own = rank;
    return 0;
}

int MPI_Comm_size(MPI_Comm comm, int *all)
{
    WANT(begun && comm == MPI_COMM_WORLD);
    *all = size;
    return 0;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
    WANT(begun && comm == MPI_COMM_WORLD);
    copies++;
    *copy = copied;
    return 0;
}

int MPI_Comm_free(MPI_Comm *comm)
{
    WANT(*comm == copied);
    copies--;
    return 0;
}

/* As an MPI over TCP, whose connections end with a rank: whether one has. */
static int alone(void)
{
    for (int other = 0; other < size; other++) {
        int process = __atomic_load_n(&meeting->processes[other], __ATOMIC_ACQUIRE);
        if (process != 0 && kill(process, 0) != 0 && errno == ESRCH)
            return 1;
    }
    return 0;
}

int MPI_Allreduce(const void *own, void *all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    WANT(begun && !ended && type == MPI_INT && op == MPI_MAX && comm == copied && copies == 1);
    WANT(count > 0 && count <= NUMBERS_EACH && own != all);
    int round = __atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE);
    memcpy(meeting->numbers[round % 2][rank], own, sizeof(int) * (size_t)count);
    if (__atomic_add_fetch(&meeting->come, 1, __ATOMIC_ACQ_REL) == size) {
        __atomic_store_n(&meeting->come, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&meeting->rounds, round + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE) == round) {
        usleep(200);
        /* One that has ended may have ended the round before. */
        WANT(!alone() || __atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE) != round);
    }
    int *highest = all;
    for (int i = 0; i < count; i++) {
        highest[i] = meeting->numbers[round % 2][0][i];
        for (int other = 1; other < size; other++)
            if (meeting->numbers[round % 2][other][i] > highest[i])
                highest[i] = meeting->numbers[round % 2][other][i];
    }
    return 0;
}

int MPI_Get_library_version(char *version, int *length)
{
    *length = sprintf(version, "%s", getenv("FAKE_VERSION") ? getenv("FAKE_VERSION") : "MPICH Version: 4.0 (stand-in)");
    return 0;
}
