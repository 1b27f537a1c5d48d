/* scr.h of gpuos: the names of SCR 3 (Scalable Checkpoint/Restart, github.com/LLNL/scr) over gpuos's checkpoints.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program that is written for SCR is compiled with this header and linked with `pkg-config --cflags --libs gpuos-scr`. SCR's user manual says what
 * the functions mean; here stands what is different. docs/user/checkpoint-scr.md has more.
 *
 * Ranks agree by the program's own MPI: Open MPI, or one with MPICH's ABI (MPICH, Intel MPI, MVAPICH), as a shared library. A program without MPI has one
 * rank. Calls are collective over MPI_COMM_WORLD, but SCR_Config, SCR_Route_file and SCR_Get_version. Everything but SCR_SUCCESS is an error; the first
 * of each function has a sentence on standard error. In a job without checkpoints none is ever needed, and there is none to go on from. */
#ifndef SCR_H
#define SCR_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SCR_MAJOR_VERSION "3"
#define SCR_MINOR_VERSION "1"
#define SCR_PATCH_VERSION "0"
#define SCR_VERSION "v3.1.0"

#define SCR_SUCCESS (0)

/* Room for a name or a path, with its NUL. */
#define SCR_MAX_FILENAME 1024

/* Flags of SCR_Start_output. */
#define SCR_FLAG_NONE 0
#define SCR_FLAG_CHECKPOINT 1 /* the program can go on from it */
#define SCR_FLAG_OUTPUT 2     /* its files are wanted where their names say */

/* Joins, and waits until all ranks have. An error means that the program should end: it may be that there are checkpoints and they cannot be loaded. */
int SCR_Init(void);
int SCR_Finalize(void);

/* "KEY=VALUE" sets, "KEY=" takes back, both before SCR_Init, and return NULL. "KEY" gives the value, which the caller frees, or NULL. SCR_PREFIX, the folder
 * that has all files of checkpoints below it, is the only setting that acts; without it that is the working directory of SCR_Init. */
const char *SCR_Config(const char *config);

/* 1: a checkpoint is wanted, by the job's --gpuos-checkpoint or by `gpuos ckpt now`. The same on all ranks. */
int SCR_Need_checkpoint(int *flag);

/* A dataset begins. A checkpoint that is not wanted now is an error if it is not output too, and its files then go where their names say. `name` may be
 * NULL for a checkpoint. */
int SCR_Start_output(const char *name, int flags);

/* Where to open a file. Paths below the prefix are kept, so that two files of a rank may have the same name in two folders. Of output alone, it is where its
 * name says. While a checkpoint is loaded, each rank finds its own files. */
int SCR_Route_file(const char *name, char *file);

/* SCR_SUCCESS: all ranks have said valid = 1, and gpuos has what they wrote. It is stored while the program goes on; if that fails, the checkpoint before
 * is as it was, rank 0 says so on standard error with the reason, and the next call of this is SCR_FAILURE on all ranks, although that checkpoint is saved. A job that will be ended waits here until its last checkpoint exists, and SCR_Should_exit then says 1. Files of a checkpoint that is output too are
 * copied here to where their names say. After valid = 0 the checkpoint is needed again. */
int SCR_Complete_output(int valid);

/* The same, for a checkpoint without a name. */
int SCR_Start_checkpoint(void);
int SCR_Complete_checkpoint(int valid);

/* 1: there is a checkpoint to go on from, and its name. There is one at most: after SCR_Complete_restart(0) there is none. */
int SCR_Have_restart(int *flag, char *name);
int SCR_Start_restart(char *name);
int SCR_Complete_restart(int valid);

/* 1: the job will be ended, and its last checkpoint exists. */
int SCR_Should_exit(int *flag);

/* SCR_SUCCESS for the name that SCR_Have_restart gives. Others cannot be had, and the other two are always errors: gpuos removes older checkpoints itself. */
int SCR_Current(const char *name);
int SCR_Drop(const char *name);
int SCR_Delete(const char *name);

/* The version, to be left as it is. */
char *SCR_Get_version(void);

#ifdef __GNUC__
__attribute__((unused, format(printf, 1, 2)))
#endif
/* As SCR_Config. It stands here because its arguments are C's alone. */
static const char *SCR_Configf(const char *format, ...)
{
    const char *value = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : (char *)malloc((size_t)length + 1);
    if (text) {
        va_start(arguments, format);
        vsnprintf(text, (size_t)length + 1, format, arguments);
        va_end(arguments);
        value = SCR_Config(text);
        free(text);
    }
    return value;
}

#ifdef __cplusplus
}
#endif

#endif
