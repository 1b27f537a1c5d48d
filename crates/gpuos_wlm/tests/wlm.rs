//! Tests of `gpuos_wlm` by its public face.

#[path = "wlm/batch.rs"]
mod batch;
#[path = "wlm/hosts.rs"]
mod hosts;
#[path = "wlm/jobs.rs"]
mod jobs;
#[path = "wlm/jsv.rs"]
mod jsv;
#[path = "wlm/tasks.rs"]
mod tasks;
