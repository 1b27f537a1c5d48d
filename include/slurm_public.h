/* What bindgen reads of an installed Slurm (libslurm-dev) to check the layout table against it. */
#include <slurm/slurm.h>
#include <slurm/slurm_version.h>
