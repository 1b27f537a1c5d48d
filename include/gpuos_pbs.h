/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What libgpuos_pbs_hook.so decides about events of PBS. gpuos_hook.py loads it in pbs_python, by ctypes.
 *
 * No function writes to standard output or error, none waits longer than half the hook's alarm, and no error of the library ends the process: the answer says so.
 * They may be called by several threads at once. */

#ifndef GPUOS_PBS_H
#define GPUOS_PBS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A caller that knows another one must not call the rest. */
#define GPUOS_PBS_VERSION 1
uint32_t gpuos_pbs_version(void);

/* The answer to an event: both are JSON of the form gpuos.pbs/1, the event up to 8 MiB of it, ended by a NUL. "verdict" of the
 * answer is accept, reject or error, and "message" a sentence of one line where it is not accept; "edits" has what PBS is to change.
 * error: the text was no event, and nothing was decided. NULL: there was no memory. Give the answer back with gpuos_pbs_free. */
char *gpuos_pbs_event(const char *json);

/* Gives back an answer of gpuos_pbs_event; NULL is none. */
void gpuos_pbs_free(char *answer);

#ifdef __cplusplus
}
#endif

#endif
