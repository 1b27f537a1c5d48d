//! What comes of a job that is about to start.

use std::collections::BTreeSet;

use crate::ask::Ask;
use crate::host::{Chosen, Host, Short};

/// What is to be done about the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// It starts with these GPUs.
    Now(Chosen),
    /// It goes back into the queue, and may start elsewhere or later: why.
    Later(String),
    /// This host and the workload manager do not agree on what is free: why. Looked at again for a while, then an administrator
    /// has to.
    HostDiffers(String),
}

/// Decides for a job, of a host of whose GPUs these are held by others.
pub fn start(host: &Host, ask: &Ask, held: &BTreeSet<u8>) -> Start {
    match host.choose(ask, held) {
        Ok(chosen) => Start::Now(chosen),
        Err(Short::Level(why)) => Start::Later(why),
        Err(Short::Gpus(why)) => Start::HostDiffers(why),
    }
}
