/* Writes at random, saves, and loads into memory of other tiers; ends with the line of the first thing that is not as gpuos.h says. Arguments: the device, a folder,
 * and 1 where its file system can have files share bytes, else 0. */
#include <dirent.h>
#include <fcntl.h>
#include <gpuos.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WANT(what) do { if (!(what)) { gpuos_mem_message(text, sizeof text); \
    fprintf(stderr, "line %d, round %d: %s (%s)\n", __LINE__, round_now, #what, text); return 1; } } while (0)
#define EXTENT ((uint64_t)2 << 20)

enum { OBJECTS = 3, EXTENTS = 4, ROUNDS = 6 };

/* One object ends in the middle of an extent. */
static const uint64_t sizes[OBJECTS] = {EXTENTS * EXTENT, EXTENTS * EXTENT - 4097, EXTENT};
static unsigned char *wanted[OBJECTS], *seen;
/* Extents that were written since the last save, and ever. */
static int since[OBJECTS][EXTENTS], ever[OBJECTS][EXTENTS];
static char text[512];
static int device, shares, round_now;
static uint64_t seed = 7;

static uint64_t below(uint64_t most)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % most;
}

static gpuos_mem_options options(uint64_t hbm, uint64_t host, uint64_t file, const char *folder)
{
    gpuos_mem_options all;
    memset(&all, 0, sizeof all);
    all.size = sizeof all;
    all.device = device;
    all.hbm = hbm * EXTENT, all.host = host * EXTENT, all.file = file * EXTENT;
    all.folder = folder;
    return all;
}

static uint64_t bytes(int which[OBJECTS][EXTENTS])
{
    uint64_t sum = 0;
    int o, e;
    for (o = 0; o < OBJECTS; o++)
        for (e = 0; e < EXTENTS; e++)
            if (which[o][e]) {
                uint64_t rest = sizes[o] - (uint64_t)e * EXTENT;
                sum += rest < EXTENT ? rest : EXTENT;
            }
    return sum;
}

/* Writes a part of an object by calls. */
static int write_some(gpuos_mem *mem, const gpuos_object *objects)
{
    int o = (int)below(OBJECTS);
    uint64_t offset = below(sizes[o]), length = 1 + below(3000), at;
    if (length > sizes[o] - offset)
        length = sizes[o] - offset;
    memset(wanted[o] + offset, (int)below(256), length);
    WANT(gpuos_mem_write(mem, objects[o], offset, wanted[o] + offset, length) == 0);
    for (at = offset / EXTENT; at <= (offset + length - 1) / EXTENT; at++)
        since[o][at] = ever[o][at] = 1;
    return 0;
}

static int loads(const char *path)
{
    gpuos_mem *mem;
    gpuos_object object;
    gpuos_mem_options large = options(8, 8, 0, NULL);
    char name[64];
    uint64_t size;
    int o;
    large.extent = 2 * EXTENT;
    WANT(gpuos_mem_open(&large, &mem) == 0);
    for (o = 0; gpuos_mem_saved(path, (size_t)o, name, sizeof name, &size) == 1; o++) {
        WANT(o < OBJECTS && name[0] == 'A' + o && size == sizes[o] && gpuos_mem_alloc(mem, size, 0, &object) == 0);
        WANT(gpuos_mem_register(mem, object, name) == 0);
    }
    WANT(o == OBJECTS && gpuos_mem_load(mem, path, 0) == 0);
    for (o = 0; o < OBJECTS; o++) {
        WANT(gpuos_mem_registered(mem, (size_t)o, &object, NULL, 0) == 1 && gpuos_mem_read(mem, object, 0, seen, sizes[o]) == 0);
        WANT(memcmp(seen, wanted[o], sizes[o]) == 0);
    }
    WANT(gpuos_mem_close(mem) == 0);
    return 0;
}

/* As gpuos_mover does with the files of a checkpoint when they are stored. */
static int removed(const char *path)
{
    char file[1024];
    struct dirent *entry;
    DIR *folder = opendir(path);
    WANT(folder != NULL);
    while ((entry = readdir(folder)) != NULL) {
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    closedir(folder);
    WANT(rmdir(path) == 0);
    return 0;
}

/* Somebody changes a file of a save after it, at another time than it was made. */
static int changed(const char *path)
{
    static const struct timespec times[2] = {{1, 0}, {1, 0}};
    char file[1024];
    int out;
    snprintf(file, sizeof file, "%s/A.memory", path);
    out = open(file, O_WRONLY);
    WANT(out >= 0 && write(out, "changed", 7) == 7 && futimens(out, times) == 0 && close(out) == 0);
    return 0;
}

struct busy {
    gpuos_mem *mem;
    gpuos_object object;
    int failed;
};

static void *writes(void *given)
{
    struct busy *busy = given;
    uint64_t at;
    for (at = 0; at < EXTENTS && !busy->failed; at++) {
        uint64_t offset = at * EXTENT + 64;
        wanted[0][offset]++;
        busy->failed = gpuos_mem_write(busy->mem, busy->object, offset, wanted[0] + offset, 1) != 0;
    }
    return NULL;
}

/* What a thread writes while a save is made is in the one after it. */
static int busy(gpuos_mem *mem, gpuos_object object, const char *folder)
{
    struct busy its = {mem, object, 0};
    pthread_t thread;
    char path[600];
    int i;
    snprintf(path, sizeof path, "%s/busy", folder);
    for (i = 0; i < 3; i++) {
        WANT(pthread_create(&thread, NULL, writes, &its) == 0);
        WANT(gpuos_mem_save(mem, path, 0) == 0);
        WANT(pthread_join(thread, NULL) == 0 && !its.failed);
        if (removed(path))
            return 1;
        WANT(gpuos_mem_save(mem, path, 0) == 0);
        if (loads(path) || removed(path))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    gpuos_mem *mem;
    gpuos_object objects[OBJECTS];
    gpuos_ticket held = 0;
    gpuos_mem_stats before, after;
    gpuos_mem_options three;
    uint64_t address;
    char path[600], name[] = "A";
    int i, o, damage = 0;
    if (argc < 4)
        return 2;
    device = atoi(argv[1]), shares = atoi(argv[3]);
    seen = calloc(1, EXTENTS * EXTENT);
    three = options(3, 2, 12, argv[2]);
    WANT(seen != NULL && gpuos_mem_open(&three, &mem) == 0);
    for (o = 0; o < OBJECTS; o++, name[0]++) {
        wanted[o] = calloc(1, sizes[o]);
        WANT(wanted[o] != NULL && gpuos_mem_alloc(mem, sizes[o], 0, &objects[o]) == 0 && gpuos_mem_register(mem, objects[o], name) == 0);
    }
    WANT(gpuos_mem_place(mem, objects[0], &address, NULL) == 0);
    for (round_now = 0; round_now < ROUNDS; round_now++) {
        uint64_t due;
        for (i = 0; i < 3; i++)
            if (write_some(mem, objects))
                return 1;
        /* The first extent is held for writing over three saves: each of them writes it, and so does the one after its release. */
        if (round_now == 0)
            WANT(gpuos_mem_acquire(mem, objects[0], 0, 1, GPUOS_MEM_WRITE, GPUOS_MEM_NO_STREAM, &held) == 0 && gpuos_mem_wait(mem, held, -1) == 0);
        if (held != 0)
            since[0][0] = ever[0][0] = 1;
        before.size = after.size = sizeof before;
        WANT(gpuos_mem_get_stats(mem, &before) == 0);
        snprintf(path, sizeof path, "%s/%d", argv[2], round_now);
        /* A save that fails between two others changes nothing. */
        WANT(gpuos_mem_save(mem, "/proc/none", 0) == GPUOS_MEM_FILE);
        WANT(gpuos_mem_save(mem, path, 0) == 0 && gpuos_mem_get_stats(mem, &after) == 0);
        if (damage) {
            /* What was changed in the last save is shared with none: the object is written whole. */
            for (i = 0; i < EXTENTS; i++)
                since[0][i] |= ever[0][i];
            damage = 0;
        }
        due = shares && round_now > 0 ? bytes(since) : bytes(ever);
        WANT(after.saves == before.saves + 1 && after.saved == before.saved + due);
        WANT(after.saved_shared - before.saved_shared == bytes(ever) - due);
        WANT(after.saved_hbm - before.saved_hbm <= due && after.brought == before.brought && after.hbm_used == before.hbm_used);
        memset(since, 0, sizeof since);
        if (loads(path))
            return 1;
        if (held != 0) {
            if (device == GPUOS_MEM_HOST) {
                memset((void *)(uintptr_t)address, round_now + 1, 100);
                memset(wanted[0], round_now + 1, 100);
            }
            since[0][0] = 1;
        }
        if (round_now == 2) {
            WANT(gpuos_mem_release(mem, held) == 0);
            held = 0;
        }
        if (round_now == 3) {
            damage = shares;
            if (changed(path))
                return 1;
        }
        if (removed(path))
            return 1;
    }
    WANT(!shares || after.saved_shared > 0);
    if (busy(mem, objects[0], argv[2]))
        return 1;
    WANT(gpuos_mem_close(mem) == 0);
    return 0;
}
