/* gpuos.h: checkpoints of a job, for programs in C and C++. SPDX-License-Identifier: MIT OR Apache-2.0
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
 * In a job without checkpoints join returns GPUOS_CKPT_NEW and none is ever wanted. docs/user/checkpoint.md has the protocol behind it,
 * examples/checkpoint/counter.c a whole program. Link with `pkg-config --cflags --libs gpuos`.
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

/* Joins and waits until all ranks have: GPUOS_CKPT_NEW, GPUOS_CKPT_RESTORE, or an error. Says on standard error every 60 s that it waits. */
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
 * after the last that the program has asked for waits. One rank asks. 0, also where the job makes none, or an error. */
int gpuos_ckpt_ask(gpuos_ckpt *ckpt);

/* 1: a checkpoint is wanted that this rank has not saved, and which and why; 0: none. Cheap enough for each step. Of several ranks one looks
 * and tells the others the number, for example with MPI_Bcast. `number` and `reason` may be NULL. None is wanted of a process in whose place
 * another one has joined, which standard error says: a job makes checkpoints of one program at a time. */
int gpuos_ckpt_wanted(gpuos_ckpt *ckpt, uint32_t *number, int *reason);

/* The folder into which this rank writes its files. Waits 60 s at most where another rank has seen the request first. 0 or an error;
 * after GPUOS_CKPT_TIMEOUT this checkpoint is not wanted of this rank again. */
int gpuos_ckpt_folder(gpuos_ckpt *ckpt, uint32_t number, char *folder, size_t size);

/* This rank's files are complete, and it leaves them alone from now on. 0 or an error. */
int gpuos_ckpt_ready(gpuos_ckpt *ckpt, uint32_t number);

/* GPUOS_CKPT_PENDING, GPUOS_CKPT_COMMITTED, or an error. */
int gpuos_ckpt_outcome(gpuos_ckpt *ckpt, uint32_t number);

/* Waits for the end of a checkpoint: GPUOS_CKPT_COMMITTED or an error. Needed only after GPUOS_CKPT_END. */
int gpuos_ckpt_wait(gpuos_ckpt *ckpt, uint32_t number, long limit_ms);

/* Why the last call that failed did, cut to `size` - 1 bytes. 0 or GPUOS_CKPT_ERROR. */
int gpuos_ckpt_message(const gpuos_ckpt *ckpt, char *message, size_t size);

#ifdef __cplusplus
}
#endif

#endif
