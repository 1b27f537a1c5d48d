//! Adapters to the machine: Slurm commands, processes and files, for the command and the lab.
