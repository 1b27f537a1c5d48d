//! The only place that knows the structures of Slurm: layouts per release, guarded entries, handles.
