//! A private Slurm cluster on one machine, with device files as GPUs.
