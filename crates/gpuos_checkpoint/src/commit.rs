//! A checkpoint exists on all nodes of a job or not at all.
