"""What programs of a job do with gpuos. `gpuos.checkpoint` makes checkpoints."""
