//! Slurm select plugin: cons_tres, steered to the nodes and GPUs that gpuos plans.
