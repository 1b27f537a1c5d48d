"""What programs of a job do with gpuos. `gpuos.checkpoint` makes checkpoints, `gpuos.memory` has objects that are larger than a GPU's memory."""
