/* gpuos.h: checkpoints of a job, and memory of GPUs in tiers, for programs in C and C++. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *     gpuos_ckpt *ckpt = gpuos_ckpt_open(-1, -1);
 *     int start = gpuos_ckpt_join(ckpt, -1);
 *     if (start == GPUOS_CKPT_RESTORE) { gpuos_ckpt_restored(ckpt, &number, folder, sizeof folder); load(folder); }
 *     else if (start < 0) { gpuos_ckpt_message(ckpt, text, sizeof text); give up; }
 *     for each step:
 *         if (gpuos_ckpt_wanted(ckpt, &number, &reason) && gpuos_ckpt_folder(ckpt, number, folder, sizeof folder) == 0) {
 *             save(folder);
 *             gpuos_ckpt_ready(ckpt, number);
 *             if (reason == GPUOS_CKPT_END && gpuos_ckpt_wait(ckpt, number, -1) == GPUOS_CKPT_COMMITTED)
 *                 break;
 *         }
 *     gpuos_ckpt_close(ckpt);
 *
 * In a job without checkpoints join returns GPUOS_CKPT_NEW and none is ever wanted. docs/user/checkpoint-files.md has the protocol behind it,
 * examples/checkpoint/counter.c a whole program. Link with `pkg-config --cflags --libs gpuos`.
 *
 * Memory is the second part, from gpuos_mem_open on.
 *
 * Negative results are errors; gpuos_ckpt_message has the sentence. A NULL handle is GPUOS_CKPT_ERROR. A handle may be used by several
 * threads, whose calls then wait for each other. Times are in milliseconds, and negative ones mean no limit. */
#ifndef GPUOS_H
#define GPUOS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results of gpuos_ckpt_join. */
#define GPUOS_CKPT_NEW 0       /* there is no checkpoint: begin from the start */
#define GPUOS_CKPT_RESTORE 1   /* go on from the one of gpuos_ckpt_restored */

/* Results of gpuos_ckpt_outcome and gpuos_ckpt_wait. */
#define GPUOS_CKPT_PENDING 0   /* it is being made */
#define GPUOS_CKPT_COMMITTED 1 /* it, or a newer one, exists on all nodes */

/* Result of gpuos_ckpt_ready and gpuos_ckpt_ask, beside 0: the call did what it is for, and the checkpoint that was saved before came to nothing. */
#define GPUOS_CKPT_BEFORE_LOST 1

/* Errors. */
#define GPUOS_CKPT_ERROR (-1)   /* a wrong argument, or a file that cannot be read or made */
#define GPUOS_CKPT_FAILED (-2)  /* join: there are checkpoints and they cannot be loaded, the program should end with an error;
                                   folder, ready, outcome, wait: this checkpoint came to nothing, the program goes on */
#define GPUOS_CKPT_TIMEOUT (-3) /* the limit was over first */

/* Reasons. */
#define GPUOS_CKPT_INTERVAL 0 /* it is time */
#define GPUOS_CKPT_ASKED 1    /* somebody asked for it */
#define GPUOS_CKPT_END 2      /* the job will be ended: wait for the commit and exit */

typedef struct gpuos_ckpt gpuos_ckpt;

/* The version of the library, for example "0.1.0". */
const char *gpuos_version(void);

/* A handle for rank `rank` of `size`. -1, -1: what the launcher's environment says (torchrun, Open MPI, PMI, Slurm), else 0 of 1. A rank that
 * cannot be is an error of gpuos_ckpt_join. NULL: out of memory. */
gpuos_ckpt *gpuos_ckpt_open(long rank, long size);

/* Frees a handle. NULL is allowed. */
void gpuos_ckpt_close(gpuos_ckpt *ckpt);

/* 1: the job makes checkpoints. 0: it does not, and the program runs on all the same. */
int gpuos_ckpt_available(const gpuos_ckpt *ckpt);

/* The rank, and how many there are, or GPUOS_CKPT_ERROR. */
int gpuos_ckpt_rank(const gpuos_ckpt *ckpt);
int gpuos_ckpt_size(const gpuos_ckpt *ckpt);

/* Before gpuos_ckpt_join, on all ranks: the program can begin from a checkpoint of any number of ranks. With as many ranks as have made it nothing
 * is different; with another number each rank is given the files of all of them, and reads what it needs. 0 or GPUOS_CKPT_ERROR. */
int gpuos_ckpt_any_ranks(gpuos_ckpt *ckpt);

/* Joins and waits until all ranks have: GPUOS_CKPT_NEW, GPUOS_CKPT_RESTORE, or an error. Says on standard error every 60 s that it waits, and, on rank 0,
 * from which checkpoint the program goes on. */
int gpuos_ckpt_join(gpuos_ckpt *ckpt, long limit_ms);

/* After GPUOS_CKPT_RESTORE: the checkpoint, and the folder with this rank's files, a copy that it may change. 0 or GPUOS_CKPT_ERROR. `number`
 * may be NULL. */
int gpuos_ckpt_restored(gpuos_ckpt *ckpt, uint32_t *number, char *folder, size_t size);

/* After GPUOS_CKPT_RESTORE: how many ranks have made the checkpoint. If that is not gpuos_ckpt_size, which only happens after gpuos_ckpt_any_ranks, the
 * folder of gpuos_ckpt_restored has one folder for each of them, rank-R-of-S, which other ranks read, too, and none may write. 0: the program goes on
 * from none. */
int gpuos_ckpt_restored_ranks(gpuos_ckpt *ckpt);

/* After GPUOS_CKPT_RESTORE: the checkpoint cannot be loaded. It is passed over from now on, in later runs of the job, too; the program joins
 * again and is given the one before. If one rank cannot load it, all ranks call this and join again. `why`: a line for the user, or NULL.
 * 0 or GPUOS_CKPT_ERROR. */
int gpuos_ckpt_refuse(gpuos_ckpt *ckpt, const char *why);

/* Asks for a checkpoint as soon as all ranks can: gpuos_ckpt_wanted shows it then, as every other. What comes sooner than the site's least-seconds
 * after the last that the program has asked for waits. One rank asks. 0, also where the job makes none; GPUOS_CKPT_BEFORE_LOST; or an error. */
int gpuos_ckpt_ask(gpuos_ckpt *ckpt);

/* What is saved is stored while the program goes on, which may fail: the disk is full, another node is gone. GPUOS_CKPT_BEFORE_LOST: so it was with the
 * checkpoint that this rank has saved last, as gpuos_ckpt_wanted, gpuos_ckpt_ask or gpuos_ckpt_ready has found; which, and gpuos_ckpt_message says why.
 * The program goes on; rank 0 has said it on standard error, once. 0: it, or a newer one, exists, or it is not known yet. `number` may be NULL. */
int gpuos_ckpt_lost(gpuos_ckpt *ckpt, uint32_t *number);

/* 1: a checkpoint is wanted that this rank has not saved, and which and why; 0: none. Cheap enough for each step. Of several ranks one looks
 * and tells the others the number, for example with MPI_Bcast. `number` and `reason` may be NULL. None is wanted of a process in whose place
 * another one has joined, which standard error says: a job makes checkpoints of one program at a time. */
int gpuos_ckpt_wanted(gpuos_ckpt *ckpt, uint32_t *number, int *reason);

/* The folder into which this rank writes its files. Waits 60 s at most where another rank has seen the request first. 0 or an error;
 * after GPUOS_CKPT_TIMEOUT this checkpoint is not wanted of this rank again. */
int gpuos_ckpt_folder(gpuos_ckpt *ckpt, uint32_t number, char *folder, size_t size);

/* This rank's files are complete, and it leaves them alone from now on. 0; GPUOS_CKPT_BEFORE_LOST, as of gpuos_ckpt_lost, but for the one for the job's end,
 * whose outcome gpuos_ckpt_wait has; or an error. */
int gpuos_ckpt_ready(gpuos_ckpt *ckpt, uint32_t number);

/* GPUOS_CKPT_PENDING, GPUOS_CKPT_COMMITTED, or an error. */
int gpuos_ckpt_outcome(gpuos_ckpt *ckpt, uint32_t number);

/* Waits for the end of a checkpoint: GPUOS_CKPT_COMMITTED or an error. Needed only after GPUOS_CKPT_END. */
int gpuos_ckpt_wait(gpuos_ckpt *ckpt, uint32_t number, long limit_ms);

/* Why the last call that failed did, cut to `size` - 1 bytes. 0 or GPUOS_CKPT_ERROR. */
int gpuos_ckpt_message(const gpuos_ckpt *ckpt, char *message, size_t size);

/* Memory in tiers: objects that may be larger than the GPU's memory, in extents that are in GPU memory, in host memory, or in a file.
 *
 *     gpuos_mem_options options = {sizeof options};          all other fields are 0
 *     options.hbm = 8ULL << 30;
 *     options.host = 64ULL << 30;
 *     gpuos_mem *mem;
 *     gpuos_object cache;
 *     gpuos_ticket ticket;
 *     uint64_t address;
 *     if (gpuos_mem_open(&options, &mem) < 0) { gpuos_mem_message(text, sizeof text); give up; }
 *     gpuos_mem_alloc(mem, 40ULL << 30, 0, &cache);
 *     gpuos_mem_place(mem, cache, &address, NULL);           a CUdeviceptr, the same as long as the object lives
 *     gpuos_mem_acquire(mem, cache, offset, length, GPUOS_MEM_READ | GPUOS_MEM_WRITE, stream, &ticket);
 *     if (gpuos_mem_wait(mem, ticket, -1) == 0) {
 *         launch on stream what uses address + offset;
 *         gpuos_mem_release(mem, ticket);                    at once: what was launched keeps it there until it has ended
 *     }
 *
 * Only what is acquired may be touched: a kernel that touches anything else has an illegal address, and with GPUOS_MEM_HOST the program is ended by
 * SIGSEGV. An object is zeros at first. Programs order their own uses of an object, as with other memory; two tickets may hold the same bytes.
 *
 * The driver is opened when gpuos_mem_open is called for a GPU, and is never linked. Handles, objects and tickets are numbers that are not used again: one that
 * was freed, released or never given is an error. Several threads may use a handle at once. In a child of fork all calls on the parent's handles
 * are GPUOS_MEM_FORKED, and the child may open its own where the driver allows that. docs/user/memory.md has more, examples/memory/kv_cache.py a program. */

/* Errors. gpuos_mem_message has the call and the reason. */
#define GPUOS_MEM_ERROR (-1)     /* a wrong argument, or something that this machine does not do */
#define GPUOS_MEM_FULL (-2)      /* no room: all tiers are full, or more at once than GPU memory takes */
#define GPUOS_MEM_TIMEOUT (-3)   /* the limit was over first; the ticket waits on */
#define GPUOS_MEM_POISONED (-4)  /* bytes are lost, as they could not be read when they were moved */
#define GPUOS_MEM_NO_DRIVER (-5) /* there is no driver or no such GPU; GPUOS_MEM_HOST does without */
#define GPUOS_MEM_FORKED (-6)    /* this process is a child of the one that opened the handle */
#define GPUOS_MEM_FILE (-7)      /* save, load, saved: a folder or file that cannot be written or read, or is no save of what is registered */

/* A device: host memory takes the place of a GPU's. */
#define GPUOS_MEM_HOST (-1)

/* Access. What is acquired for writing has no copy elsewhere any more. */
#define GPUOS_MEM_READ 1u
#define GPUOS_MEM_WRITE 2u

/* No stream: nothing that was launched uses it when it is released. */
#define GPUOS_MEM_NO_STREAM ((void *)-1)

/* Advice, for all extents that a part touches. */
#define GPUOS_MEM_NORMAL 0      /* the policy alone decides */
#define GPUOS_MEM_HOT 1         /* it leaves GPU memory last */
#define GPUOS_MEM_COLD 2        /* it leaves first */
#define GPUOS_MEM_READ_MOSTLY 3 /* its copy in host memory is given up last */
#define GPUOS_MEM_PIN 4         /* once it is in GPU memory it stays there */

/* Events of gpuos_mem_pressure. */
#define GPUOS_MEM_WANTED 1 /* a ticket waits for so many bytes of GPU memory that others hold or have pinned: release what can be */
#define GPUOS_MEM_OVER 2   /* so many bytes of a tier are used beyond its limit, as this was lowered */
#define GPUOS_MEM_LESS 3   /* a tier could not be had as it was set: its limit is so many bytes now */

/* Tiers of events. */
#define GPUOS_MEM_TIER_HBM 0
#define GPUOS_MEM_TIER_HOST 1
#define GPUOS_MEM_TIER_FILE 2

typedef struct gpuos_mem gpuos_mem;
typedef uint64_t gpuos_object; /* 0 is none */
typedef uint64_t gpuos_ticket; /* 0 is none */

/* Set `size` to sizeof of the structure, here and below: later versions add fields at the end, and zeros mean what they meant before. */
typedef struct gpuos_mem_options {
    size_t size;
    int32_t device;     /* a GPU's number in this process, from 0, or GPUOS_MEM_HOST */
    uint32_t flags;     /* 0 */
    uint64_t hbm;       /* bytes of GPU memory; 0: nine tenths of what is free now */
    uint64_t host;      /* bytes of host memory for what is not there; 0: none */
    uint64_t file;      /* bytes of a file for what is in neither; 0: none */
    const char *folder; /* where the file is, which has no name; on a disk of the node */
    uint64_t extent;    /* bytes that move together: a power of two from 2 to 64 MiB; 0: 2 MiB */
    const char *policy; /* gpuos, lru, clock, 2q or arc; NULL: gpuos */
} gpuos_mem_options;

typedef struct gpuos_mem_event {
    size_t size;
    uint32_t kind;
    uint32_t tier;
    uint64_t bytes;
} gpuos_mem_event;

typedef struct gpuos_mem_stats {
    size_t size;
    uint64_t extent;                                  /* bytes of an extent */
    uint64_t hbm_used, hbm_limit;                     /* bytes */
    uint64_t host_used, host_limit;
    uint64_t file_used, file_limit;
    uint64_t objects, tickets;                        /* that are there */
    uint64_t hits, brought, ahead;                    /* extents that were acquired and there; that were brought in, and of these in advance */
    uint64_t copied, dropped, filed, poisoned;        /* that left GPU memory with and without a copy; that were written to the file; that were lost */
    uint64_t direct;                                  /* 1: the file passes the page cache */
    uint64_t saves, saved;                            /* calls of gpuos_mem_save that succeeded, and bytes that they have written to files */
    uint64_t saved_hbm, saved_shared;                 /* of these bytes, those that were read from GPU memory; bytes shared with the save before, not among them */
} gpuos_mem_stats;

/* Opens memory in tiers. 0 or an error. */
int gpuos_mem_open(const gpuos_mem_options *options, gpuos_mem **mem);

/* Ends it with all its objects, after all work of the GPU. NULL is allowed. 0 or an error. */
int gpuos_mem_close(gpuos_mem *mem);

/* Why the last call of this thread that failed did, with the call, cut to `size` - 1 bytes. 0 or GPUOS_MEM_ERROR. */
int gpuos_mem_message(char *message, size_t size);

/* Makes an object of `size` bytes, which are zeros and take no room until they are acquired. `flags`: 0. All objects together fit into the tiers, whole extents
 * counted, with one extent to spare, or this is GPUOS_MEM_FULL. 0 or an error. */
int gpuos_mem_alloc(gpuos_mem *mem, uint64_t size, unsigned flags, gpuos_object *object);

/* Makes an object of a file, which can only be read. Programs that map the same file share its pages in host memory, those of other jobs on the node, too; what is
 * acquired is uploaded from there. 0 or an error. */
int gpuos_mem_map(gpuos_mem *mem, const char *path, gpuos_object *object);

/* Where an object begins, and its bytes. Either may be NULL. 0 or an error. */
int gpuos_mem_place(gpuos_mem *mem, gpuos_object object, uint64_t *address, uint64_t *size);

/* Asks for a part of an object in GPU memory, to be used by work on `stream` (a CUstream or cudaStream_t, NULL the default stream) or GPUOS_MEM_NO_STREAM. Returns at
 * once; gpuos_mem_wait tells when it is there. Of tickets that wait the first that fits is served, with all its extents. 0 or an error. */
int gpuos_mem_acquire(gpuos_mem *mem, gpuos_object object, uint64_t offset, uint64_t length, unsigned access, void *stream, gpuos_ticket *ticket);

/* Waits until it is there, at most so many milliseconds; negative: without limit. 0 or an error. After an error other than GPUOS_MEM_TIMEOUT the ticket is
 * gone. */
int gpuos_mem_wait(gpuos_mem *mem, gpuos_ticket ticket, long limit_ms);

/* Gives back what a ticket holds; it stays until the work that its stream was given before has ended. Or gives up that it waits. 0 or an error. */
int gpuos_mem_release(gpuos_mem *mem, gpuos_ticket ticket);

/* Asks for a part in advance, as far as the policy would keep it there. 0 or an error. */
int gpuos_mem_prefetch(gpuos_mem *mem, gpuos_object object, uint64_t offset, uint64_t length);

/* Says what the program knows about a part. 0 or an error. */
int gpuos_mem_advise(gpuos_mem *mem, gpuos_object object, uint64_t offset, uint64_t length, int advice);

/* Copies bytes out of an object from wherever they are, without moving it, after the work that was given before it was released; and into it, by way of GPU memory.
 * 0 or an error. */
int gpuos_mem_read(gpuos_mem *mem, gpuos_object object, uint64_t offset, void *buffer, size_t length);
int gpuos_mem_write(gpuos_mem *mem, gpuos_object object, uint64_t offset, const void *buffer, size_t length);

/* Frees an object that no ticket holds, after the work that was given before it was released. 0 or an error. */
int gpuos_mem_free(gpuos_mem *mem, gpuos_object object);

/* Other limits of the tiers, in bytes. What is beyond them leaves as soon as it can. 0 or an error. */
int gpuos_mem_limit(gpuos_mem *mem, uint64_t hbm, uint64_t host, uint64_t file);

/* A descriptor for poll: readable while there is an event. It is the library's, who alone reads and closes it. Or an error. */
int gpuos_mem_pressure_fd(gpuos_mem *mem);

/* Takes the oldest event. 1: there was one; 0: none; or an error. */
int gpuos_mem_pressure(gpuos_mem *mem, gpuos_mem_event *event);

/* What is used, and what was done. 0 or an error. */
int gpuos_mem_get_stats(gpuos_mem *mem, gpuos_mem_stats *stats);

/* Registers an object for checkpoints under a name of its own; NULL: not any more. The name is UTF-8 of at most 240 bytes, where all but letters, digits, `_`, `-` and
 * dots count as three: it becomes a file's name. 0 or an error. */
int gpuos_mem_register(gpuos_mem *mem, gpuos_object object, const char *name);

/* The registered object of an index from 0, in the order in which they were made. `name` may be NULL. 1: there is one; 0: none; or an error. */
int gpuos_mem_registered(gpuos_mem *mem, size_t index, gpuos_object *object, char *name, size_t size);

/* The time of now, for gpuos_mem_written. 0 or an error. */
int gpuos_mem_now(gpuos_mem *mem, uint64_t *time);

/* The next part of an object, not before `from`, whose extents were acquired for writing or released from it after a time of gpuos_mem_now, or are held for writing;
 * 0 is before all times. A program that saves takes the time first, then what was written since the time of the save before. 1: there is a part; 0: none;
 * or an error. */
int gpuos_mem_written(gpuos_mem *mem, gpuos_object object, uint64_t since, uint64_t from, uint64_t *offset, uint64_t *length);

/* Saves all registered objects into a folder, as that of gpuos_ckpt_folder, which is made if only its last part is missing; two handles need two folders. Nothing is
 * brought into GPU memory: bytes are read where they are, after the work that was given before they were released, and what was never written is a hole. Where the
 * file system can have files share bytes (XFS, Btrfs), what nobody has written since the last save is shared with its files, which stay open for that; it takes
 * their room as long. What is held for writing meanwhile is saved as it is at some moment, and is written again by the next save. Of objects of mapped
 * files the size alone is saved. An object that is freed meanwhile is an error. After an error the files that were made are gone, and nothing counts as saved by this call. `flags`: 0. 0 or an error. */
int gpuos_mem_save(gpuos_mem *mem, const char *folder, unsigned flags);

/* Loads all registered objects from a folder into which gpuos_mem_save has saved them, by way of GPU memory, as gpuos_mem_write does. What was saved and what is
 * registered have to be the same: names, sizes and which are mapped files; extents and tiers may be others. Where they are not, or the folder has no whole save, that
 * is GPUOS_MEM_FILE and nothing has changed; gpuos_ckpt_refuse goes on from there. After an error while bytes are copied, which the message says, objects are loaded in
 * part. `flags`: 0. 0 or an error. */
int gpuos_mem_load(gpuos_mem *mem, const char *folder, unsigned flags);

/* The object of an index from 0 that is saved in a folder: its name and bytes, either of which may be NULL, to allocate and register it before gpuos_mem_load. 1: there is
 * one; 0: none; or an error. */
int gpuos_mem_saved(const char *folder, size_t index, char *name, size_t size, uint64_t *bytes);

/* For torch.cuda.memory.CUDAPluggableAllocator and MemPool: gpuos_torch_malloc and gpuos_torch_free allocate segments from the handle that was chosen for the
 * device. A segment is held in GPU memory as long as it lives, but for the time between pause and resume, after which it has the same bytes at the same
 * address. gpuos_torch_use with NULL chooses none. 0 or an error; malloc: NULL and gpuos_mem_message. */
int gpuos_torch_use(gpuos_mem *mem, int device);
void *gpuos_torch_malloc(ptrdiff_t size, int device, void *stream);
void gpuos_torch_free(void *address, ptrdiff_t size, int device, void *stream);
int gpuos_torch_pause(int device);
int gpuos_torch_resume(int device);

#ifdef __cplusplus
}
#endif

#endif
