//! SPANK plugin: the --gpuos-* options, and the GPUOS_* variables of a job.
