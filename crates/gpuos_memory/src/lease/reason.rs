//! What users read: why something is refused, ended or put off, and what to do.

use std::fmt;

use super::ids::{Bytes, GpuId};

/// Why a process does not get what it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The job is not known, is over, or the process is another job's.
    NoJob,
    /// The job has no such GPU here.
    NotItsGpu {
        /// The GPU.
        gpu: GpuId,
    },
    /// The process is being ended.
    Ending,
    /// The job has too many processes already.
    TooMany {
        /// The most.
        most: usize,
    },
    /// More than was checked when the job was submitted.
    BeyondGrant {
        /// What was asked for.
        asked: u64,
        /// What is left of the job's grant on this GPU.
        left: u64,
    },
    /// The job's memory on this node does not suffice for what has to lie in host memory.
    BeyondMemory {
        /// Host memory that it takes.
        takes: u64,
        /// What is left of the job's.
        left: u64,
    },
    /// The account has no more.
    BeyondQuota {
        /// Host memory that it takes.
        takes: u64,
        /// What is left of the account's.
        left: u64,
    },
    /// The node has no more host memory to lend.
    HostFull {
        /// Host memory that it takes.
        takes: u64,
    },
    /// Neither the job's host memory nor NVMe has room for parking it while others have the GPU.
    NoRefuge {
        /// Bytes without a place.
        lacks: u64,
    },
    /// Under time slices on a full GPU nobody gets more than at first.
    Grows,
}

impl Refused {
    /// Whether it is about the process or its job, and not about one GPU.
    pub fn is_about_all(&self) -> bool {
        matches!(
            self,
            Refused::NoJob | Refused::Ending | Refused::TooMany { .. }
        )
    }

    /// Whether what processes of the same job have is the reason, which is free again when they are dead.
    pub fn may_be_of_the_dead(&self) -> bool {
        match self {
            Refused::NoJob | Refused::NotItsGpu { .. } | Refused::Ending => false,
            Refused::TooMany { .. }
            | Refused::BeyondGrant { .. }
            | Refused::BeyondMemory { .. }
            | Refused::BeyondQuota { .. }
            | Refused::HostFull { .. }
            | Refused::NoRefuge { .. }
            | Refused::Grows => true,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoJob => f.write_str(
                "memory in tiers was asked for by a process of no job that has it: submit the job with --gpuos-mem, or with --gpuos-share=timeslice,mem=SIZE",
            ),
            Refused::NotItsGpu { gpu } => write!(
                f,
                "memory was asked for on GPU {}, which the job does not have on this node: use the GPUs in CUDA_VISIBLE_DEVICES",
                gpu.0
            ),
            Refused::Ending => f.write_str("memory was asked for by a process that is being ended"),
            Refused::TooMany { most } => write!(
                f,
                "the job has {most} processes with memory in tiers on this node, and more are not taken: end some, or start fewer"
            ),
            Refused::BeyondGrant { asked, left } => write!(
                f,
                "{} were asked for on a GPU, and {} are left of what the job has there: submit it with a larger --gpuos-mem, or a larger mem= of --gpuos-share",
                Bytes(*asked),
                Bytes(*left)
            ),
            Refused::BeyondMemory { takes, left } => write!(
                f,
                "it takes {} of host memory, and {} are left of the job's memory on this node: submit it with a larger --mem",
                Bytes(*takes),
                Bytes(*left)
            ),
            Refused::BeyondQuota { takes, left } => write!(
                f,
                "it takes {} of host memory, and {} are left of what the account may have on this node: wait for its other jobs",
                Bytes(*takes),
                Bytes(*left)
            ),
            Refused::HostFull { takes } => write!(
                f,
                "it takes {} of host memory, and the node has less to lend now: try again later, or ask for less",
                Bytes(*takes)
            ),
            Refused::NoRefuge { lacks } => write!(
                f,
                "{} could not be parked while other jobs have the GPU: submit the job with a larger --mem",
                Bytes(*lacks)
            ),
            Refused::Grows => f.write_str(
                "more memory was asked for on a GPU that is shared in turns and is full: ask for all of it when the process starts",
            ),
        }
    }
}

/// Why a process is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It did not park in time.
    Deaf,
    /// Work that it had given to its GPU before was not done in the time that the site gives for it.
    Works {
        /// That time.
        seconds: u64,
    },
    /// Its memory cannot be moved, and the driver did not take it out of its GPU either.
    NotCheckpointed,
    /// It did not take its turn in time.
    NotBack,
    /// NVMe did not take what had to leave its GPU, and host memory has no room for it.
    NoNvme,
    /// It freed nothing in time, and there was no place to park it, or it did not go there in time.
    DeafUnderPressure,
    /// It did not come back after gpuosd was started anew, or its connection was lost.
    Away,
    /// It was stopped by its user for too long, and others waited.
    Stopped,
    /// It says that its memory is where it cannot be.
    Elsewhere,
    /// Its job is over.
    JobOver,
    /// Its GPU is gone.
    GpuGone,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ended::Works { seconds } => {
                return write!(
                    f,
                    "the process was ended: it was another job's turn on the GPU, and work that it had given to the GPU before was not done \
                     {seconds} s later (switch-seconds in [memory] of gpuos.toml); kernels that wait for the host do that, and kernels \
                     that take so long: divide them, or have the GPU alone with --gpus=1"
                );
            }
            Ended::Deaf => {
                "the process was ended: it was another job's turn on the GPU, and gpuos's library in the process did not answer; have the GPU alone with --gpus=1 if that comes again"
            }
            Ended::NotCheckpointed => {
                "the process was ended: its memory cannot be moved while it runs, and the driver's checkpoint (driver-checkpoint in [memory] of gpuos.toml) did not take it out of the GPU for the next job; jobs of such programs have a GPU to themselves with --gpus=1"
            }
            Ended::NoNvme => {
                "the process was ended: what has to leave its GPU could not be written to NVMe, and its job's memory has no room for it, or is for its programs alone (park=nvme); submit it with a larger --mem, and without park=nvme"
            }
            Ended::NotBack => "the process was ended: it did not take its turn on the GPU in time",
            Ended::DeafUnderPressure => {
                "the process was ended: the node ran out of host memory, and it freed none when it was asked to"
            }
            Ended::Away => "the process was ended: it holds memory of a GPU and had no connection to gpuosd for too long",
            Ended::Stopped => {
                "the process was ended: it was stopped for too long while it held memory of a GPU for which other jobs wait; a job that its workload manager suspends is not ended for that"
            }
            Ended::Elsewhere => "the process was ended: it used GPU memory without its turn",
            Ended::JobOver => "the process was ended: its job is over",
            Ended::GpuGone => "the process was ended: its GPU is gone",
        })
    }
}

/// Why a job is requeued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requeued {
    /// Nothing else freed enough host memory.
    Pressure,
}

impl fmt::Display for Requeued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Requeued::Pressure => {
                "requeued: the node ran out of host memory, nothing else freed enough of it, and the job has the lowest rank of those with memory in tiers"
            }
        })
    }
}

/// What a process should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Host memory is short: who can free some should.
    Pressure,
    /// The memory of its own job is short.
    JobPressure,
    /// Neither is any more.
    Calm,
    /// All else was done, and its job would be requeued now if it could be.
    NoRequeue,
    /// Turns on this GPU are too short for what a switch costs, so they go on until the end, or until a job has no work.
    Serialised {
        /// A switch, in ms.
        switch_ms: u64,
    },
    /// Turns have a length again.
    Sliced,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Pressure => {
                f.write_str("the node is short of host memory: what can be freed should be")
            }
            Notice::JobPressure => {
                f.write_str("the job is short of the host memory that it has: what can be freed should be")
            }
            Notice::Calm => f.write_str("host memory is not short any more"),
            Notice::NoRequeue => f.write_str(
                "the node is short of host memory, and nothing else frees enough of it: the job would be requeued now, and was submitted \
                 without --requeue. The kernel may end one of its processes: save what can be saved",
            ),
            Notice::Serialised { switch_ms } => write!(
                f,
                "a switch between jobs takes {}.{} s on this GPU, too much for turns: each job now has the GPU until it ends or has no work",
                switch_ms / 1000,
                switch_ms % 1000 / 100
            ),
            Notice::Sliced => f.write_str("jobs on this GPU take turns again"),
        }
    }
}
