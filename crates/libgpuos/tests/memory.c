/* Calls each function about memory and ends with the line of the first that does not do what gpuos.h says. Arguments: the device, a folder. */
#include <gpuos.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(what) do { if (!(what)) { gpuos_mem_message(text, sizeof text); \
    fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, text); return 1; } } while (0)
#define MIB ((uint64_t)1 << 20)

static char text[512];
static unsigned char bytes[4096], back[4096];
static int device;
static const char *folder;

static int says(const char *part)
{
    return gpuos_mem_message(text, sizeof text) == 0 && strstr(text, part) != NULL;
}

static gpuos_mem_options options(uint64_t hbm, uint64_t host, uint64_t file)
{
    gpuos_mem_options all;
    memset(&all, 0, sizeof all);
    all.size = sizeof all;
    all.device = device;
    all.hbm = hbm * MIB;
    all.host = host * MIB;
    all.file = file * MIB;
    all.folder = folder;
    return all;
}

static int wrong(void)
{
    gpuos_mem *mem = NULL;
    gpuos_mem_options bad = options(8, 0, 0);
    WANT(gpuos_mem_open(NULL, &mem) == GPUOS_MEM_ERROR && says("gpuos_mem_open: a NULL structure"));
    WANT(gpuos_mem_open(&bad, NULL) == GPUOS_MEM_ERROR && says("NULL"));
    bad.size = 3;
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("sizeof") && mem == NULL);
    bad = options(8, 0, 0), bad.extent = 3 * MIB;
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("power of two"));
    bad = options(8, 0, 0), bad.policy = "random";
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("gpuos, lru"));
    bad = options(8, 0, 8), bad.folder = "/nonexistent";
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("/nonexistent"));
    bad = options(8, 0, 8), bad.folder = NULL;
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("folder"));
    bad = options(1, 0, 0);
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_ERROR && says("one extent"));
    bad = options(8, 0, 0), bad.device = 7;
    WANT(gpuos_mem_open(&bad, &mem) == GPUOS_MEM_NO_DRIVER && says("GPU 7") + says("no NVIDIA driver") == 1);
    /* Handles that are none: any number and any pointer. */
    WANT(gpuos_mem_free(NULL, 1) == GPUOS_MEM_ERROR && says("NULL handle"));
    WANT(gpuos_mem_free((gpuos_mem *)&bad, 1) == GPUOS_MEM_ERROR && says("no handle"));
    WANT(gpuos_mem_close(NULL) == 0 && gpuos_mem_close((gpuos_mem *)text) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_message(NULL, 7) == GPUOS_MEM_ERROR && gpuos_mem_message(text, 0) == GPUOS_MEM_ERROR);
    return 0;
}

/* Objects that do not fit, over three tiers. */
static int tiers(void)
{
    enum { OBJECTS = 8 };
    gpuos_mem *mem;
    gpuos_object all[OBJECTS], none;
    gpuos_ticket ticket, other;
    gpuos_mem_stats stats;
    uint64_t address, size, offset, length, time;
    gpuos_mem_options three = options(8, 8, 32);
    int i;
    WANT(gpuos_mem_open(&three, &mem) == 0);
    for (i = 0; i < OBJECTS; i++) {
        WANT(gpuos_mem_alloc(mem, 4 * MIB - 5, 0, &all[i]) == 0);
        WANT(gpuos_mem_place(mem, all[i], &address, &size) == 0 && address != 0 && size == 4 * MIB - 5);
    }
    WANT(gpuos_mem_alloc(mem, 0, 0, &none) == GPUOS_MEM_ERROR && says("size of 0") && none == 0);
    WANT(gpuos_mem_alloc(mem, UINT64_MAX, 0, &none) == GPUOS_MEM_FULL && says("all tiers"));
    WANT(gpuos_mem_alloc(mem, 1, 9, &none) == GPUOS_MEM_ERROR && gpuos_mem_alloc(mem, 1, 0, NULL) == GPUOS_MEM_ERROR);
    for (i = 0; i < OBJECTS; i++) {
        memset(bytes, i + 1, sizeof bytes);
        WANT(gpuos_mem_write(mem, all[i], 2 * MIB - 100, bytes, sizeof bytes) == 0);
    }
    stats.size = sizeof stats;
    WANT(gpuos_mem_get_stats(mem, &stats) == 0 && stats.hbm_used <= stats.hbm_limit && stats.objects == OBJECTS && stats.filed > 0);
    for (i = 0; i < OBJECTS; i++) {
        memset(bytes, i + 1, sizeof bytes);
        WANT(gpuos_mem_read(mem, all[i], 2 * MIB - 100, back, sizeof back) == 0 && memcmp(bytes, back, sizeof back) == 0);
        WANT(gpuos_mem_read(mem, all[i], 4096, back, sizeof back) == 0 && back[0] == 0 && memcmp(back, back + 1, sizeof back - 1) == 0);
        WANT(gpuos_mem_acquire(mem, all[i], 0, 4 * MIB - 5, GPUOS_MEM_READ, NULL, &ticket) == 0);
        WANT(gpuos_mem_wait(mem, ticket, -1) == 0 && gpuos_mem_release(mem, ticket) == 0);
        WANT(gpuos_mem_release(mem, ticket) == GPUOS_MEM_ERROR && says("gpuos_mem_release: the ticket was released before"));
        WANT(gpuos_mem_wait(mem, ticket, 0) == GPUOS_MEM_ERROR && says("released before"));
    }
    /* Wrong ranges, access and advice. */
    WANT(gpuos_mem_acquire(mem, all[0], 0, 0, GPUOS_MEM_READ, NULL, &ticket) == GPUOS_MEM_ERROR && says("at least 1"));
    WANT(gpuos_mem_acquire(mem, all[0], 4 * MIB - 5, 1, GPUOS_MEM_READ, NULL, &ticket) == GPUOS_MEM_ERROR && says("not inside"));
    WANT(gpuos_mem_acquire(mem, all[0], UINT64_MAX, 2, GPUOS_MEM_READ, NULL, &ticket) == GPUOS_MEM_ERROR && says("not inside"));
    WANT(gpuos_mem_acquire(mem, all[0], 0, 1, 0, NULL, &ticket) == GPUOS_MEM_ERROR && says("GPUOS_MEM_READ"));
    WANT(gpuos_mem_acquire(mem, all[0], 0, 1, GPUOS_MEM_READ, NULL, NULL) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_advise(mem, all[0], 0, 1, 9) == GPUOS_MEM_ERROR && says("no advice 9"));
    for (i = GPUOS_MEM_NORMAL; i <= GPUOS_MEM_PIN; i++)
        WANT(gpuos_mem_advise(mem, all[0], 0, 1, i) == 0);
    WANT(gpuos_mem_advise(mem, all[0], 0, 1, GPUOS_MEM_NORMAL) == 0);
    WANT(gpuos_mem_prefetch(mem, all[3], 0, 4 * MIB - 5) == 0);
    WANT(gpuos_mem_read(mem, all[0], 0, NULL, 1) == GPUOS_MEM_ERROR && gpuos_mem_write(mem, all[0], 0, NULL, 1) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_wait(mem, 99999, 0) == GPUOS_MEM_ERROR && says("no such ticket"));
    WANT(gpuos_mem_free(mem, 99999) == GPUOS_MEM_ERROR && says("no such object"));
    /* What is held is not freed, and freed only once. */
    WANT(gpuos_mem_acquire(mem, all[0], 0, 1, GPUOS_MEM_WRITE, GPUOS_MEM_NO_STREAM, &ticket) == 0 && gpuos_mem_wait(mem, ticket, -1) == 0);
    WANT(gpuos_mem_free(mem, all[0]) == GPUOS_MEM_ERROR && says("1 tickets hold it"));
    WANT(gpuos_mem_release(mem, ticket) == 0 && gpuos_mem_free(mem, all[0]) == 0);
    WANT(gpuos_mem_free(mem, all[0]) == GPUOS_MEM_ERROR && says("gpuos_mem_free: the object was freed before"));
    WANT(gpuos_mem_acquire(mem, all[0], 0, 1, GPUOS_MEM_READ, NULL, &ticket) == GPUOS_MEM_ERROR && says("freed before"));
    WANT(gpuos_mem_place(mem, all[0], NULL, NULL) == GPUOS_MEM_ERROR);
    /* Two tickets that do not fit together: one waits, the descriptor tells, and it goes on when the other is released. */
    {
        struct pollfd poll_it;
        gpuos_mem_event event;
        event.size = sizeof event;
        poll_it.fd = gpuos_mem_pressure_fd(mem), poll_it.events = POLLIN;
        WANT(poll_it.fd >= 0);
        while (gpuos_mem_pressure(mem, &event) == 1)
            ;
        WANT(poll(&poll_it, 1, 0) == 0);
        WANT(gpuos_mem_limit(mem, 6 * MIB, 8 * MIB, 32 * MIB) == 0);
        WANT(gpuos_mem_acquire(mem, all[1], 0, 4 * MIB - 5, GPUOS_MEM_READ, NULL, &ticket) == 0 && gpuos_mem_wait(mem, ticket, -1) == 0);
        WANT(gpuos_mem_acquire(mem, all[2], 0, 4 * MIB - 5, GPUOS_MEM_READ, NULL, &other) == 0);
        WANT(gpuos_mem_wait(mem, other, 1) == GPUOS_MEM_TIMEOUT && says("time limit"));
        do
            WANT(poll(&poll_it, 1, -1) == 1 && gpuos_mem_pressure(mem, &event) == 1);
        while (event.kind != GPUOS_MEM_WANTED);
        WANT(event.kind == GPUOS_MEM_WANTED && event.bytes == 2 * MIB && event.tier == GPUOS_MEM_TIER_HBM);
        WANT(gpuos_mem_release(mem, ticket) == 0 && gpuos_mem_wait(mem, other, -1) == 0 && gpuos_mem_release(mem, other) == 0);
    }
    /* What is saved. */
    WANT(gpuos_mem_register(mem, all[1], "weights") == 0 && gpuos_mem_register(mem, all[2], "weights") == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_register(mem, all[2], "other") == 0 && gpuos_mem_register(mem, all[2], NULL) == 0);
    WANT(gpuos_mem_registered(mem, 0, &none, text, sizeof text) == 1 && none == all[1] && strcmp(text, "weights") == 0);
    WANT(gpuos_mem_registered(mem, 0, &none, text, 3) == GPUOS_MEM_ERROR && gpuos_mem_registered(mem, 1, &none, NULL, 0) == 0);
    WANT(gpuos_mem_written(mem, all[1], 0, 0, &offset, &length) == 1 && offset == 0 && length == 4 * MIB - 5);
    WANT(gpuos_mem_now(mem, &time) == 0 && gpuos_mem_written(mem, all[1], time, 0, &offset, &length) == 0);
    WANT(gpuos_mem_write(mem, all[1], 3 * MIB, bytes, 1) == 0);
    WANT(gpuos_mem_written(mem, all[1], time, 0, &offset, &length) == 1 && offset == 2 * MIB && length == 2 * MIB - 5);
    WANT(gpuos_mem_written(mem, all[1], time, 4 * MIB, &offset, &length) == 0);
    WANT(gpuos_mem_register(mem, all[2], "") == GPUOS_MEM_ERROR && says("gpuos_mem_register: an empty name"));
    {
        char path[512];
        snprintf(path, sizeof path, "%s/save-%d", folder, device);
        WANT(gpuos_mem_save(mem, NULL, 0) == GPUOS_MEM_ERROR && says("gpuos_mem_save: a NULL folder"));
        WANT(gpuos_mem_save(mem, path, 1) == GPUOS_MEM_ERROR && gpuos_mem_load(mem, path, 1) == GPUOS_MEM_ERROR && says("gpuos_mem_load: unknown flags"));
        WANT(gpuos_mem_load(mem, path, 0) == GPUOS_MEM_FILE && says(path) && gpuos_mem_saved(path, 0, NULL, 0, NULL) == GPUOS_MEM_FILE);
        WANT(gpuos_mem_save(mem, path, 0) == 0);
        WANT(gpuos_mem_save(mem, path, 0) == GPUOS_MEM_FILE && says("weights.memory: File exists"));
        stats.size = sizeof stats;
        WANT(gpuos_mem_get_stats(mem, &stats) == 0 && stats.saves == 1 && stats.saved == 4 * MIB - 5);
        WANT(stats.saved_hbm <= stats.hbm_used && stats.saved_shared == 0);
        WANT(gpuos_mem_saved(path, 0, text, sizeof text, &length) == 1 && strcmp(text, "weights") == 0 && length == 4 * MIB - 5);
        WANT(gpuos_mem_saved(path, 0, text, 7, NULL) == GPUOS_MEM_ERROR && gpuos_mem_saved(path, 1, text, sizeof text, &length) == 0);
        WANT(gpuos_mem_saved(NULL, 0, NULL, 0, NULL) == GPUOS_MEM_ERROR);
        memset(bytes, 99, sizeof bytes);
        WANT(gpuos_mem_read(mem, all[1], 2 * MIB - 100, back, sizeof back) == 0);
        WANT(gpuos_mem_write(mem, all[1], 2 * MIB - 100, bytes, sizeof bytes) == 0 && gpuos_mem_load(mem, path, 0) == 0);
        WANT(gpuos_mem_read(mem, all[1], 2 * MIB - 100, bytes, sizeof bytes) == 0 && memcmp(bytes, back, sizeof bytes) == 0);
        WANT(gpuos_mem_register(mem, all[1], "others") == 0 && gpuos_mem_load(mem, path, 0) == GPUOS_MEM_FILE && says("\"others\""));
    }
    WANT(gpuos_mem_close(mem) == 0);
    WANT(gpuos_mem_close(mem) == GPUOS_MEM_ERROR && says("closed"));
    WANT(gpuos_mem_get_stats(mem, &stats) == GPUOS_MEM_ERROR);
    return 0;
}

/* A file that is only read. */
static int mapped(void)
{
    char path[512];
    gpuos_mem *mem;
    gpuos_object file;
    gpuos_ticket ticket;
    FILE *out;
    gpuos_mem_options one = options(4, 0, 0);
    snprintf(path, sizeof path, "%s/weights", folder);
    out = fopen(path, "w");
    memset(bytes, 77, sizeof bytes);
    WANT(out && fseek(out, 3 * MIB, SEEK_SET) == 0 && fwrite(bytes, sizeof bytes, 1, out) == 1 && fclose(out) == 0);
    WANT(gpuos_mem_open(&one, &mem) == 0);
    WANT(gpuos_mem_map(mem, path, &file) == 0);
    WANT(gpuos_mem_map(mem, NULL, &file) == GPUOS_MEM_ERROR && gpuos_mem_map(mem, folder, &file) == GPUOS_MEM_ERROR && says("regular"));
    WANT(gpuos_mem_map(mem, "/nonexistent", &file) == GPUOS_MEM_ERROR && says("/nonexistent"));
    WANT(gpuos_mem_map(mem, path, &file) == 0);
    WANT(gpuos_mem_read(mem, file, 3 * MIB, back, sizeof back) == 0 && memcmp(bytes, back, sizeof back) == 0);
    WANT(gpuos_mem_acquire(mem, file, 0, 1, GPUOS_MEM_WRITE, NULL, &ticket) == GPUOS_MEM_ERROR && says("only be read"));
    WANT(gpuos_mem_write(mem, file, 0, bytes, 1) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_acquire(mem, file, 3 * MIB, 4096, GPUOS_MEM_READ, NULL, &ticket) == 0 && gpuos_mem_wait(mem, ticket, -1) == 0);
    WANT(gpuos_mem_read(mem, file, 3 * MIB, back, sizeof back) == 0 && memcmp(bytes, back, sizeof back) == 0);
    WANT(gpuos_mem_release(mem, ticket) == 0);
    /* It becomes shorter: what is gone is an error, and neither a signal nor another file's bytes. */
    WANT(gpuos_mem_acquire(mem, file, 0, 1, GPUOS_MEM_READ, NULL, &ticket) == 0 && gpuos_mem_wait(mem, ticket, -1) == 0);
    WANT(gpuos_mem_release(mem, ticket) == 0 && truncate(path, 100) == 0);
    WANT(gpuos_mem_limit(mem, 0, 0, 0) == 0 && gpuos_mem_limit(mem, 4 * MIB, 0, 0) == 0);
    WANT(gpuos_mem_map(mem, path, &file) == 0 && truncate(path, 50) == 0);
    WANT(gpuos_mem_acquire(mem, file, 0, 1, GPUOS_MEM_READ, NULL, &ticket) == 0);
    WANT(gpuos_mem_wait(mem, ticket, -1) == GPUOS_MEM_POISONED && says("shorter"));
    WANT(gpuos_mem_release(mem, ticket) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_close(mem) == 0);
    return 0;
}

static int torch(void)
{
    gpuos_mem *mem;
    gpuos_mem_stats stats;
    gpuos_mem_options two = options(8, 16, 0);
    void *one, *other;
    WANT(gpuos_torch_malloc(1, 0, NULL) == NULL && says("gpuos_torch_malloc: no memory was chosen"));
    WANT(gpuos_torch_use((gpuos_mem *)text, 0) == GPUOS_MEM_ERROR && gpuos_torch_use(NULL, 99) == GPUOS_MEM_ERROR);
    WANT(gpuos_mem_open(&two, &mem) == 0 && gpuos_torch_use(mem, 0) == 0);
    one = gpuos_torch_malloc(3 * MIB, 0, NULL);
    WANT(one != NULL && gpuos_torch_malloc(6 * MIB, 0, NULL) == NULL && says("not held"));
    WANT(gpuos_torch_malloc(-1, 0, NULL) == NULL && gpuos_torch_malloc(0, 0, NULL) == NULL);
    WANT(gpuos_torch_pause(0) == 0);
    other = gpuos_torch_malloc(6 * MIB, 0, NULL);
    WANT(other != NULL && other != one && gpuos_torch_resume(0) == GPUOS_MEM_FULL);
    gpuos_torch_free(other, 6 * MIB, 0, NULL);
    WANT(gpuos_torch_resume(0) == 0);
    gpuos_torch_free(NULL, 0, 0, NULL);
    gpuos_torch_free(text, 1, 0, NULL);
    WANT(says("no segment"));
    gpuos_torch_free(one, 3 * MIB, 0, NULL);
    stats.size = sizeof stats;
    WANT(gpuos_mem_get_stats(mem, &stats) == 0 && stats.objects == 0 && stats.tickets == 0);
    WANT(gpuos_torch_use(NULL, 0) == 0 && gpuos_mem_close(mem) == 0);
    return 0;
}

/* A child has nothing of it, and ends without a word. */
static int forked(void)
{
    gpuos_mem *mem;
    gpuos_object object;
    gpuos_mem_options one = options(8, 8, 0);
    pid_t child;
    int status;
    WANT(gpuos_mem_open(&one, &mem) == 0 && gpuos_mem_alloc(mem, 4 * MIB, 0, &object) == 0);
    WANT(gpuos_mem_write(mem, object, 0, bytes, sizeof bytes) == 0);
    child = fork();
    if (child == 0) {
        gpuos_mem *own;
        gpuos_mem_options host = options(4, 0, 0);
        host.device = GPUOS_MEM_HOST;
        if (gpuos_mem_read(mem, object, 0, back, 1) != GPUOS_MEM_FORKED || !says("child") || gpuos_mem_close(mem) != GPUOS_MEM_FORKED)
            exit(1);
        if (gpuos_mem_save(mem, folder, 0) != GPUOS_MEM_FORKED || gpuos_mem_load(mem, folder, 0) != GPUOS_MEM_FORKED)
            exit(4);
        if (gpuos_mem_open(&host, &own) != 0 || gpuos_mem_alloc(own, 1, 0, &object) != 0 || gpuos_mem_write(own, object, 0, bytes, 1) != 0)
            exit(2);
        exit(gpuos_mem_close(own) == 0 ? 0 : 3);
    }
    WANT(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    WANT(gpuos_mem_read(mem, object, 0, back, sizeof back) == 0 && memcmp(bytes, back, sizeof back) == 0);
    /* Left open: the process ends with it. */
    return 0;
}

struct turn {
    gpuos_mem *mem;
    gpuos_object object;
    int number, failed;
};

static void *turns(void *given)
{
    struct turn *turn = given;
    unsigned char mine[64], seen[64];
    int i;
    memset(mine, turn->number, sizeof mine);
    for (i = 0; i < 50 && !turn->failed; i++) {
        uint64_t offset = (uint64_t)turn->number * 4096 + (uint64_t)(i % 8) * 2 * MIB;
        turn->failed = gpuos_mem_write(turn->mem, turn->object, offset, mine, sizeof mine) != 0
            || gpuos_mem_read(turn->mem, turn->object, offset, seen, sizeof seen) != 0 || memcmp(mine, seen, sizeof mine) != 0;
    }
    return NULL;
}

static int threads(void)
{
    enum { THREADS = 4 };
    struct turn all[THREADS];
    pthread_t ids[THREADS];
    gpuos_mem *mem;
    gpuos_object object;
    gpuos_mem_options three = options(8, 4, 8);
    int i;
    WANT(gpuos_mem_open(&three, &mem) == 0 && gpuos_mem_alloc(mem, 16 * MIB, 0, &object) == 0);
    for (i = 0; i < THREADS; i++) {
        all[i].mem = mem, all[i].object = object, all[i].number = i + 1, all[i].failed = 0;
        WANT(pthread_create(&ids[i], NULL, turns, &all[i]) == 0);
    }
    for (i = 0; i < THREADS; i++)
        WANT(pthread_join(ids[i], NULL) == 0 && !all[i].failed);
    WANT(gpuos_mem_close(mem) == 0);
    return 0;
}

/* Numbers that mean nothing, mixed with some that do: each call ends, with an error or not, and what was written stays. */
static int any(void)
{
    enum { KEPT = 4 };
    gpuos_mem *mem;
    gpuos_object objects[KEPT], kept;
    gpuos_ticket tickets[KEPT] = {0};
    gpuos_mem_stats stats;
    gpuos_mem_event event;
    gpuos_mem_options two = options(8, 16, 0);
    uint64_t seed = 1, numbers[6], out, other;
    int i, n;
    stats.size = sizeof stats, event.size = sizeof event;
    WANT(gpuos_mem_open(&two, &mem) == 0 && gpuos_mem_alloc(mem, 2 * MIB, 0, &kept) == 0);
    memset(bytes, 42, sizeof bytes);
    WANT(gpuos_mem_write(mem, kept, 0, bytes, sizeof bytes) == 0);
    for (i = 0; i < KEPT; i++)
        WANT(gpuos_mem_alloc(mem, 2 * MIB, 0, &objects[i]) == 0);
    for (i = 0; i < 20000; i++) {
        for (n = 0; n < 6; n++) {
            uint64_t r = seed = seed * 6364136223846793005u + 1442695040888963407u;
            r >>= 33;
            numbers[n] = r % 5 == 0 ? r % 9 : r % 5 == 1 ? objects[r % KEPT] : r % 5 == 2 ? tickets[r % KEPT] : r % 5 == 3 ? r % (3 * MIB) : seed;
            if (numbers[n] == kept)
                numbers[n] = 0;
        }
        switch (seed >> 60) {
        case 0: if (gpuos_mem_alloc(mem, numbers[0], 0, &out) == 0) objects[i % KEPT] = out; break;
        case 1: gpuos_mem_free(mem, numbers[0]); break;
        case 2: case 3: case 4: if (gpuos_mem_acquire(mem, numbers[0], numbers[1], numbers[2], (unsigned)numbers[3] % 5, NULL, &out) == 0) tickets[i % KEPT] = out; break;
        case 5: gpuos_mem_wait(mem, numbers[0], 0); break;
        case 6: case 7: case 8: gpuos_mem_release(mem, numbers[0]); break;
        case 9: gpuos_mem_prefetch(mem, numbers[0], numbers[1], numbers[2]); break;
        case 10: gpuos_mem_advise(mem, numbers[0], numbers[1], numbers[2], (int)(numbers[3] % 4)); break;
        case 11: gpuos_mem_read(mem, numbers[0], numbers[1], back, numbers[2] % sizeof back); break;
        case 12: gpuos_mem_written(mem, numbers[0], numbers[1], numbers[2], &out, &other); break;
        case 13: gpuos_mem_register(mem, numbers[0], numbers[1] % 2 ? "name" : NULL); break;
        case 14: gpuos_mem_pressure(mem, &event); gpuos_mem_get_stats(mem, &stats); break;
        default:
            gpuos_mem_release((gpuos_mem *)(uintptr_t)numbers[0], numbers[1]);
            gpuos_torch_free((void *)(uintptr_t)numbers[0], 1, 0, NULL);
            gpuos_mem_place(mem, numbers[0], &out, &other);
        }
        WANT(stats.size == sizeof stats);
    }
    WANT(gpuos_mem_read(mem, kept, 0, back, sizeof back) == 0 && memcmp(bytes, back, sizeof back) == 0);
    WANT(gpuos_mem_close(mem) == 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    device = atoi(argv[1]);
    folder = argv[2];
    return wrong() || tiers() || mapped() || torch() || threads() || any() || forked();
}
