//! Slurm job_submit plugin: checks the gpuos options of a job when it is submitted.
