//! What of a node's state a user is told: his own, and counts of the rest.
//!
//! Root, SlurmUser and the operators of `[access]` in gpuos.toml are told everything; all others go through here. What
//! a board shows of itself (state, heat, power, load, memory) is told to everybody: it says how busy a GPU is, and not whose
//! work that is.
use std::collections::BTreeMap;

use super::{
    GpuStatus, Happening, HiddenStatus, MigGpuStatus, MigInstance, MigLoad, MigStatus, Status,
};
use crate::isolation::Finding;
use crate::job::JobId;

/// A user who asks, and whose each job of the node is.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    /// The user, by the kernel's word.
    pub uid: u32,
    /// Users of jobs, by job. A job that is not in it is nobody's whom this user could be.
    pub users: &'a BTreeMap<JobId, u32>,
}

/// Sentences with one of these may name jobs or processes of others.
const NAMES: [&str; 5] = ["job", "step", "process", "pid", "uid "];

/// Whether sentences of this kind name others besides the job that they are about: who is on whose GPU is told by both names.
pub fn names_others(what: &str) -> bool {
    what == "isolation"
}

impl Viewer<'_> {
    fn owns(&self, job: &JobId) -> bool {
        self.users.get(job) == Some(&self.uid)
    }

    /// Takes the jobs of others out of a list; how many they were.
    fn own(&self, jobs: &mut Vec<JobId>) -> u32 {
        let all = jobs.len();
        jobs.retain(|job| self.owns(job));
        (all - jobs.len()) as u32
    }

    /// A sentence, or what stands for it where it could name somebody.
    fn plain(&self, text: &mut String, instead: &str) {
        if NAMES.iter().any(|word| text.contains(word)) {
            *text = instead.into();
        }
    }

    fn gpu(&self, gpu: &mut GpuStatus) {
        gpu.jobs_of_others = self.own(&mut gpu.jobs);
        let all = gpu.processes.len();
        gpu.processes.retain(|one| {
            one.uid == self.uid || one.job.as_ref().is_some_and(|job| self.owns(job))
        });
        gpu.processes_of_others = (all - gpu.processes.len()) as u32;
        for process in &mut gpu.processes {
            // In the job of another it is told without that.
            if process.job.as_ref().is_some_and(|job| !self.owns(job)) {
                (process.job, process.step) = (None, None);
            }
            // In his job, of another user.
            if process.uid != self.uid {
                process.program.clear();
            }
        }
        gpu.cap.take_if(|cap| !self.owns(&cap.job));
        // An administrator's own words are for everybody, and stand in Slurm's node record as well.
        if gpu.by_uid.is_none() {
            self.plain(&mut gpu.reason, "root is told why");
        }
        for fault in &mut gpu.faults {
            let rule = format!("{}: root is told more", fault.rule);
            self.plain(&mut fault.message, &rule);
        }
    }

    /// A finding as this user may read it; `None`: it is none of his business.
    fn finding(&self, finding: Finding) -> Option<Finding> {
        let own_job = finding.job.as_ref().is_some_and(|job| self.owns(job));
        let own = finding.uid == Some(self.uid) || (finding.uid.is_none() && own_job);
        let held: Vec<JobId> = finding
            .holders
            .iter()
            .filter(|job| self.owns(job))
            .cloned()
            .collect();
        let gpu = finding.gpu;
        let message = match (own, finding.pid, held.first()) {
            // Of a step's group: it names that step alone.
            (true, None, _) => finding.message,
            (true, Some(pid), _) => {
                format!(
                    "process {pid} of yours is on GPU {gpu}, which is not that process's to use"
                )
            }
            (false, _, Some(job)) => {
                format!("somebody else is on GPU {gpu}, which your job {job} holds")
            }
            (false, _, None) => return None,
        };
        Some(Finding {
            gpu,
            pid: finding.pid.filter(|_| own),
            uid: finding.uid.filter(|_| own),
            job: finding.job.filter(|_| own_job),
            holders: held,
            message,
        })
    }

    fn instance(&self, one: &mut MigInstance) {
        let others = match &one.job {
            Some(job) => !self.owns(job),
            // Somebody's by hand: who is on it is not known.
            None => !one.pids.is_empty(),
        };
        if others {
            one.others = one.job.is_some();
            (one.job, one.uuid) = (None, None);
            one.pids.clear();
            (one.memory_used_mib, one.load) = (None, MigLoad::default());
            let why = || Some("another user's job".into());
            (one.memory_unknown, one.load.load_unknown) = (why(), why());
        }
    }

    fn mig_gpu(&self, gpu: &mut MigGpuStatus) {
        for one in &mut gpu.instances {
            self.instance(one);
        }
        if gpu.holder.as_ref().is_some_and(|job| !self.owns(job)) {
            gpu.holder = None;
            gpu.others = true;
        }
        if let Some(trouble) = &mut gpu.trouble {
            self.plain(trouble, "root is told what is wrong");
        }
    }
}

impl Status {
    /// What a user is told of it.
    #[must_use]
    pub fn redacted_for(mut self, viewer: &Viewer<'_>) -> Status {
        let all = self.jobs.len();
        self.jobs.retain(|job| viewer.owns(&job.job));
        let mut hidden = HiddenStatus {
            jobs: (all - self.jobs.len()) as u32,
            ..HiddenStatus::default()
        };
        for gpu in &mut self.gpus {
            viewer.gpu(gpu);
            hidden.processes += gpu.processes_of_others;
        }
        if let Some(why) = &mut self.node_drained {
            viewer.plain(why, "root is told why");
        }
        let all = self.peers.len();
        for peer in &mut self.peers {
            viewer.own(&mut peer.jobs);
        }
        // Which nodes share a job is that job's.
        self.peers.retain(|peer| !peer.jobs.is_empty());
        hidden.peers = (all - self.peers.len()) as u32;
        let findings = std::mem::take(&mut self.isolation.findings);
        let all = findings.len();
        let told = findings.into_iter().filter_map(|one| viewer.finding(one));
        self.isolation.findings = told.collect();
        hidden.findings = (all - self.isolation.findings.len()) as u32;
        // Why it is not known may name a step.
        if self.isolation.devices.starts_with("unknown") {
            self.isolation.devices = "unknown".into();
        }
        for trouble in &mut self.daemon.troubles {
            viewer.plain(trouble, "root is told of a trouble");
        }
        self.hidden = Some(hidden);
        self
    }
}

impl MigStatus {
    /// What a user is told of it.
    #[must_use]
    pub fn redacted_for(mut self, viewer: &Viewer<'_>) -> MigStatus {
        for gpu in &mut self.gpus {
            viewer.mig_gpu(gpu);
        }
        self
    }
}

impl Happening {
    /// What a user is told of it: all of what his own job is about, and of the rest that something happened.
    #[must_use]
    pub fn redacted_for(mut self, viewer: &Viewer<'_>) -> Happening {
        let own = self.job.as_ref().is_some_and(|job| viewer.owns(job));
        if own && !names_others(&self.what) {
            return self;
        }
        self.job = self.job.filter(|_| own);
        self.message = match self.gpu {
            Some(gpu) => format!("GPU {gpu}: {}; root is told more", self.what),
            None => format!("{}; root is told more", self.what),
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{
        CapStatus, DaemonStatus, FaultStatus, IsolationStatus, JobStatus, PeerStatus, ProcessStatus,
    };
    use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
    use gpuos_model::mig::MigPlacement;
    use gpuos_model::node_gpu::NodeGpu;

    /// Numbers that stand for one user's things, and that no other may read: 4 digits that nothing else has.
    fn status(of: &[(u32, u32)]) -> Status {
        let gpus = of.iter().enumerate().map(|(index, (uid, job))| GpuStatus {
            jobs: of.iter().map(|one| one.1.into()).collect(),
            processes: vec![ProcessStatus {
                pid: uid + 5000,
                uid: *uid,
                program: format!("program{}", uid + 5000),
                job: Some((*job).into()),
                step: Some("0".into()),
                ..ProcessStatus::default()
            }],
            cap: Some(CapStatus {
                job: (*job).into(),
                text: "300 W".into(),
            }),
            reason: format!("job {job} hangs"),
            faults: vec![FaultStatus {
                rule: "hang".into(),
                message: format!("job {job} of uid {uid} hangs"),
                at_ms: 1,
            }],
            ..GpuStatus::new(NodeGpu::try_from(index as u8).expect("a GPU"))
        });
        let finding = |(gpu, (uid, job)): (usize, &(u32, u32))| Finding {
            gpu: GresGpu::new(gpu).expect("a GPU"),
            pid: Some(uid + 5000),
            uid: Some(*uid),
            job: Some((*job).into()),
            holders: of.iter().map(|one| one.1.into()).collect(),
            message: format!(
                "process {} (x, uid {uid}) of job {job} is on GPU 1, which jobs {of:?} hold",
                uid + 5000
            ),
        };
        let jobs = of.iter().map(|(uid, job)| JobStatus {
            job: (*job).into(),
            uid: *uid,
            ..JobStatus::default()
        });
        let peers = of.iter().map(|(uid, job)| PeerStatus {
            node: format!("node{}", uid + 5000),
            jobs: vec![(*job).into()],
            ..PeerStatus::default()
        });
        Status {
            node: "n1".into(),
            gpus: gpus.collect(),
            jobs: jobs.collect(),
            peers: peers.collect(),
            node_drained: of.first().map(|one| format!("requeues job {}", one.1)),
            isolation: IsolationStatus {
                devices: format!(
                    "unknown: of step {}.0: x",
                    of.first().map_or(0, |one| one.1)
                ),
                findings: of.iter().enumerate().map(finding).collect(),
            },
            daemon: DaemonStatus {
                troubles: of.iter().map(|one| format!("of job {}", one.1)).collect(),
                ..DaemonStatus::default()
            },
            ..Status::default()
        }
    }

    fn mig(of: &[(u32, u32)]) -> MigStatus {
        let instance = |(uid, job): &(u32, u32)| MigInstance {
            profile: "1g.10gb".into(),
            placement: MigPlacement { start: 0, size: 1 },
            gi: Some(1),
            ci: Some(0),
            uuid: Some(format!("MIG-{}", uid + 5000)),
            job: Some((*job).into()),
            phase: "ready".into(),
            foreign: false,
            others: false,
            pids: vec![uid + 5000],
            memory_total_mib: Some(10),
            memory_used_mib: Some(u64::from(uid + 5000)),
            memory_unknown: None,
            load: MigLoad::default(),
        };
        let gpu = |one: &(u32, u32)| MigGpuStatus {
            instances: of.iter().map(instance).collect(),
            holder: Some(one.1.into()),
            trouble: Some(format!("job {} waits", one.1)),
            ..MigGpuStatus::new(NvmlIndex::LAST)
        };
        MigStatus {
            gpus: of.iter().map(gpu).collect(),
            ..MigStatus::default()
        }
    }

    #[test]
    fn the_rest_is_counted_and_a_users_own_is_whole() {
        let of = [(1001, 71), (1002, 72)];
        let users: BTreeMap<JobId, u32> =
            of.iter().map(|(uid, job)| ((*job).into(), *uid)).collect();
        let viewer = Viewer {
            uid: 1001,
            users: &users,
        };
        let told = status(&of).redacted_for(&viewer);
        assert_eq!(told.jobs.len(), 1);
        let counts = |gpu: &GpuStatus| {
            (
                gpu.jobs.clone(),
                gpu.jobs_of_others,
                gpu.processes.len(),
                gpu.processes_of_others,
            )
        };
        let counts: Vec<_> = told.gpus.iter().map(counts).collect();
        assert_eq!(
            counts,
            [(vec![71.into()], 1, 1, 0), (vec![71.into()], 1, 0, 1)]
        );
        assert_eq!(told.gpus[0].processes[0].program, "program6001");
        assert!(told.gpus[0].cap.is_some() && told.gpus[1].cap.is_none());
        let hidden = told.hidden.unwrap();
        assert_eq!(
            (hidden.jobs, hidden.processes, hidden.peers, hidden.findings),
            (1, 1, 1, 0)
        );
        let said: Vec<&str> = told
            .isolation
            .findings
            .iter()
            .map(|one| &one.message[..])
            .collect();
        assert_eq!(
            said[1],
            "somebody else is on GPU 1, which your job 71 holds"
        );
        let mig = mig(&of).redacted_for(&viewer);
        assert_eq!(mig.gpus[0].holder, Some(71.into()));
        assert!(mig.gpus[1].holder.is_none() && mig.gpus[1].others);
        let [own, other] = &mig.gpus[0].instances[..] else {
            panic!("{mig:?}")
        };
        assert!(own.job == Some(71.into()) && !own.others && other.others && other.job.is_none());
        // Nobody's job: counts alone.
        let nobody = Viewer {
            uid: 1003,
            ..viewer
        };
        assert_eq!(
            status(&of).redacted_for(&nobody).hidden.unwrap().findings,
            2
        );
    }

    fn happening(what: &str, job: Option<JobId>, message: String) -> Happening {
        Happening {
            at_ms: 1,
            what: what.into(),
            gpu: Some(NodeGpu::try_from(3).expect("a GPU")),
            job,
            message,
        }
    }

    proptest! {
        /// Whatever is there, nothing of another user is in what is written to a socket.
        #[test]
        fn nothing_of_another_user_is_told(
            uids in prop::collection::btree_set(1001u32..1100, 1..6),
            viewer in 1001u32..1100,
            what in prop::sample::select(vec!["isolation", "warn", "requeue"]),
        ) {
            let of: Vec<(u32, u32)> = uids.iter().map(|uid| (*uid, uid + 2000)).collect();
            let users: BTreeMap<JobId, u32> = of.iter().map(|(uid, job)| ((*job).into(), *uid)).collect();
            let viewer = Viewer { uid: viewer, users: &users };
            let mut told = serde_json::to_string(&status(&of).redacted_for(&viewer)).unwrap();
            told += &serde_json::to_string(&mig(&of).redacted_for(&viewer)).unwrap();
            for (uid, job) in &of {
                let message = format!("process {} uid {uid} job {job}", uid + 5000);
                // Of isolation the job is that of either.
                let event = happening(what, Some((*job).into()), message);
                told += &serde_json::to_string(&event.redacted_for(&viewer)).unwrap();
            }
            for (uid, job) in of.iter().filter(|(uid, _)| *uid != viewer.uid) {
                for secret in [*uid, *job, uid + 5000] {
                    prop_assert!(!told.contains(&secret.to_string()), "{secret} is in {told}");
                }
            }
        }
    }
}
