//! What the loop is told, made of what each thread tells.

use std::sync::mpsc::SyncSender;

use gpuos_core::health::Event;
use gpuos_core::limits::{self, MpsEvent};
use gpuos_core::wire::{Happening, Peer, Reply, Request};

use crate::gpus::{self, Found};
use crate::peers::Report;
use crate::queue::Task;
use crate::work::{self, Answer};
use crate::{desk, host, isolation, mig};

/// What the loop is told.
#[derive(Debug)]
pub enum Message {
    /// The library was opened, or why not.
    Library(Result<Vec<Found>, String>),
    /// A round of polls has come to its end.
    Polled,
    /// Something for the rules.
    Health(Event),
    /// A client asks.
    Asked {
        /// Who.
        peer: Peer,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: SyncSender<Reply>,
    },
    /// A client watches.
    Watch(Peer, SyncSender<Happening>),
    /// Which user the controller of the workload manager runs as, by its word.
    WorkloadUser(u32),
    /// A task came to its end.
    Workload(Task, Answer),
    /// Something of the host beside its GPUs.
    Host(host::Told),
    /// Something about power limits and clocks.
    Limits(limits::Event),
    /// Something about MPS.
    Mps(MpsEvent),
    /// Something about MIG instances, with NVML's index of the GPU.
    Mig(u8, mig::Told),
    /// The disk knows that a job could not get its MIG instances.
    MigCounted(u32),
    /// Of the other nodes of jobs.
    Peers(Report),
    /// Who is on the GPUs.
    Isolation(isolation::Told),
    /// Read gpuos.toml again.
    Reload,
    /// End.
    End,
}

impl From<Event> for Message {
    fn from(event: Event) -> Message {
        Message::Health(event)
    }
}

impl From<limits::Event> for Message {
    fn from(event: limits::Event) -> Message {
        Message::Limits(event)
    }
}

impl From<MpsEvent> for Message {
    fn from(event: MpsEvent) -> Message {
        Message::Mps(event)
    }
}

impl From<(u8, mig::Told)> for Message {
    fn from((gpu, told): (u8, mig::Told)) -> Message {
        Message::Mig(gpu, told)
    }
}

impl From<host::Told> for Message {
    fn from(told: host::Told) -> Message {
        Message::Host(told)
    }
}

impl From<isolation::Told> for Message {
    fn from(told: isolation::Told) -> Message {
        Message::Isolation(told)
    }
}

impl From<Report> for Message {
    fn from(report: Report) -> Message {
        Message::Peers(report)
    }
}

impl From<work::Told> for Message {
    fn from(told: work::Told) -> Message {
        match told {
            work::Told::Answer(task, answer) => Message::Workload(task, answer),
            work::Told::WorkloadUser(uid) => Message::WorkloadUser(uid),
        }
    }
}

impl From<gpus::Told> for Message {
    fn from(told: gpus::Told) -> Message {
        match told {
            gpus::Told::Library(told) => Message::Library(told),
            gpus::Told::Polled => Message::Polled,
            gpus::Told::Health(event) => Message::Health(event),
            gpus::Told::Hardware(found) => Message::Host(host::Told::Hardware(found)),
            gpus::Told::Divided(gpu) => Message::Mig(gpu, mig::Told::Changed),
        }
    }
}

impl From<desk::Told> for Message {
    fn from(told: desk::Told) -> Message {
        match told {
            desk::Told::Asked {
                peer,
                request,
                reply,
            } => Message::Asked {
                peer,
                request,
                reply,
            },
            desk::Told::Watch(peer, watcher) => Message::Watch(peer, watcher),
        }
    }
}
