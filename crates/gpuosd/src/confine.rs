//! Programs of jobs of PBS are brought into the control group of their job, where they may open the job's GPUs and no others. The hook in
//! pbs_mom asks for it before a program starts, and waits; so nothing here waits for NVIDIA's library or for the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gpuos_core::job::JobId;
use gpuos_host::steps::device_groups::{DeviceGroups, StepGroup, StepGroups};
use gpuos_host::steps::job_processes::{Killed, Proc, Processes, Who};
use gpuos_host::steps::own_groups::{GroupsPath, Own, OwnGroups, Started};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_workload::WorkloadManager;

use crate::slices::caps;

/// An instance of a GPU: NVML's index, and the driver's ids of GPU instance and compute instance.
type Instance = (NvmlIndex, u32, u32);

/// How long it is waited to learn which device files GPUs have: after a start the library and mom have to be heard first. The hook waits longer.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Empty groups are removed so often.
const SWEEPS: Duration = Duration::from_secs(2);

/// Which device files GPUs have: minor numbers of NVIDIA's.
#[derive(Debug, Default)]
pub struct DeviceFiles {
    /// `None`: not known yet.
    known: Mutex<Option<Minors>>,
    changed: Condvar,
}

/// Minor numbers of GPUs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Minors {
    /// Of those that jobs have whole, by their numbers for the workload manager.
    pub whole: BTreeMap<GresGpu, u32>,
    /// Of those of the pool.
    pub divided: BTreeMap<NvmlIndex, u32>,
}

impl DeviceFiles {
    /// Sets what is known; `None`: what was known may not hold any more.
    pub fn set(&self, known: Option<Minors>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        self.changed.notify_all();
    }

    /// Those of some GPUs that jobs have whole, once they are known.
    ///
    /// # Errors
    /// They are not known in time: a clause.
    pub fn of_gpus(&self, gpus: &BTreeSet<GresGpu>) -> Result<BTreeSet<u32>, String> {
        let gpus: Vec<GresGpu> = gpus.iter().copied().collect();
        let found = self.of((&gpus, &BTreeSet::new()), PATIENCE)?;
        Ok(found.whole.into_values().collect())
    }

    /// Those of some GPUs, and of some of the pool.
    ///
    /// # Errors
    /// They are not known in time: a clause.
    fn of(
        &self,
        (gpus, pool): (&[GresGpu], &BTreeSet<NvmlIndex>),
        patience: Duration,
    ) -> Result<Minors, String> {
        if gpus.is_empty() && pool.is_empty() {
            return Ok(Minors::default());
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let lacks = |known: &mut Option<Minors>| {
            let all = |known: &Minors| {
                let whole = gpus.iter().all(|gpu| known.whole.contains_key(gpu));
                whole && pool.iter().all(|gpu| known.divided.contains_key(gpu))
            };
            !known.as_ref().is_some_and(all)
        };
        let waited = self.changed.wait_timeout_while(known, patience, lacks);
        let (known, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(known) = known.as_ref() else {
            return Err(
                "gpuosd does not know yet which device files the GPUs have: NVIDIA's library and the workload manager have to tell it first"
                    .into(),
            );
        };
        let none = |gpu: &dyn fmt::Display| format!("gpuosd knows no device file of GPU {gpu}");
        let whole = gpus.iter().map(|gpu| {
            let minor = known.whole.get(gpu).ok_or_else(|| none(gpu))?;
            Ok((*gpu, *minor))
        });
        let divided = pool.iter().map(|gpu| {
            let minor = known.divided.get(gpu).ok_or_else(|| none(gpu))?;
            Ok((*gpu, *minor))
        });
        Ok(Minors {
            whole: whole.collect::<Result<_, String>>()?,
            divided: divided.collect::<Result<_, String>>()?,
        })
    }
}

/// Confines programs of jobs.
pub struct Confiner {
    groups: Result<Arc<OwnGroups>, String>,
    files: Arc<DeviceFiles>,
    /// The driver's list of device files of MIG instances.
    instances: PathBuf,
    /// Why it failed last: each reason is in the log once.
    failed: Mutex<Option<String>>,
}

impl fmt::Debug for Confiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Confiner in {:?}", self.groups)
    }
}

impl Confiner {
    /// With these groups, or why there are none, the device files that others find, and the driver's list of those of MIG instances.
    pub fn new(
        groups: Result<OwnGroups, String>,
        files: Arc<DeviceFiles>,
        instances: PathBuf,
    ) -> Confiner {
        Confiner {
            groups: groups.map(Arc::new),
            files,
            instances,
            failed: Mutex::default(),
        }
    }

    /// The path of the groups, as the kernel has it; `None`: there are none.
    pub fn path(&self) -> Option<&GroupsPath> {
        self.groups.as_ref().ok().map(|groups| groups.path())
    }

    /// How isolation stands, in a clause for people: what the kernel lets programs open is set here, and not looked at again.
    pub fn clause(&self) -> String {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.groups, &*failed) {
            (Err(why), _) => format!("jobs of PBS cannot be kept to their GPUs: {why}"),
            (Ok(_), Some(why)) => {
                format!("the last program of a job could not be kept to its GPUs: {why}")
            }
            (Ok(groups), None) => format!(
                "programs for which pbs_mom's hook asks gpuosd are kept to their job's GPUs by control groups in {}, and the kernel is not asked what they \
                 may open",
                groups.folder().display()
            ),
        }
    }

    /// Brings the process that becomes a program of a job into the job's group. Of a job with slices `instances` are those that it has.
    ///
    /// # Errors
    /// The program would start unconfined: why, in a clause.
    pub fn confine(
        &self,
        job: &JobId,
        process: Started,
        (gpus, instances): (&[GresGpu], Option<&BTreeSet<Instance>>),
    ) -> Result<(), String> {
        let done = self.groups.clone().and_then(|groups| {
            let own = self.own(gpus, instances)?;
            groups.confine(job, process, &own)
        });
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let why = done.as_ref().err();
        if let Some(why) = why.filter(|why| failed.as_ref() != Some(why)) {
            tracing::warn!("a program of job {job} is not kept to its GPUs: {why}");
        }
        *failed = why.cloned();
        done
    }

    /// What a job may open.
    fn own(&self, gpus: &[GresGpu], instances: Option<&BTreeSet<Instance>>) -> Result<Own, String> {
        let none = BTreeSet::new();
        let instances = match instances {
            Some(instances) if instances.is_empty() => {
                return Err("gpuosd has told it of no MIG instances of its own yet".into());
            }
            instances => instances.unwrap_or(&none),
        };
        let pool = instances.iter().map(|(gpu, ..)| *gpu).collect();
        let minors = self.files.of((gpus, &pool), PATIENCE)?;
        let mut own = Own {
            gpus: minors.whole.into_values().collect(),
            ..Own::default()
        };
        if instances.is_empty() {
            return Ok(own);
        }
        let file = self.instances.display();
        let list = fs::read_to_string(&self.instances).map_err(|e| format!("{file}: {e}"))?;
        for (gpu, gi, ci) in instances {
            let minor = minors.divided.get(gpu).copied();
            let numbers = minor.and_then(|minor| caps(&list, minor, *gi, *ci));
            let numbers = numbers.ok_or_else(|| {
                format!("{file} has no device files of GPU instance {gi}, compute instance {ci} of GPU {gpu}")
            })?;
            own.gpus.extend(minor);
            own.instances.extend(numbers);
        }
        Ok(own)
    }

    /// GPUs have other numbers now: which device files they have is to be found anew.
    pub fn renumbered(&self) {
        self.files.set(None);
    }

    /// Starts the thread that removes empty groups, those included that a gpuosd before this one made.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn start_sweeping(&self) -> io::Result<()> {
        let Ok(groups) = self.groups.clone() else {
            return Ok(());
        };
        let sweep = move || {
            loop {
                groups.sweep();
                thread::sleep(SWEEPS);
            }
        };
        thread::Builder::new().name("groups".into()).spawn(sweep)?;
        Ok(())
    }
}

/// Processes of a host of PBS: their jobs are told by the groups. One that is in none may be of a job that started while it could not be confined,
/// and is accused of nothing while its user has a job with GPUs here.
pub struct PbsProcesses {
    /// With jobs by groups of gpuos's own.
    pub proc: Proc,
    /// Says whose jobs are here.
    pub manager: Arc<dyn WorkloadManager>,
}

impl Processes for PbsProcesses {
    fn who(&self, pid: u32) -> io::Result<Option<Who>> {
        let Some(mut who) = self.proc.who(pid)? else {
            return Ok(None);
        };
        if who.step.is_none() {
            who.unclear = match self.manager.jobs() {
                Ok(jobs) => {
                    let own = |uid: u32| uid == who.uid || who.owners.contains(&uid);
                    // Whose a job is may not be known yet: any process may be of it.
                    let here = jobs.iter().any(|job| own(job.uid) || job.uid == u32::MAX);
                    here.then(|| {
                        "it is in no control group of a job, and its user has a job here".into()
                    })
                }
                Err(_) => Some("pbs_mom does not say whose jobs are here".into()),
            };
        }
        Ok(Some(who))
    }

    fn kill(&self, pid: u32, started: u64) -> io::Result<Killed> {
        self.proc.kill(pid, started)
    }
}

/// Groups of jobs that are not asked what they let programs open: gpuosd made them, and says how they stand.
#[derive(Debug)]
pub struct Unasked(pub Arc<Confiner>);

impl DeviceGroups for Unasked {
    fn steps(&self) -> Result<StepGroups, String> {
        Err(self.0.clause())
    }

    fn allowed(&self, _group: &StepGroup, _minors: &[u32]) -> io::Result<BTreeSet<u32>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize) -> GresGpu {
        GresGpu::new(index).unwrap()
    }

    fn whole<const N: usize>(minors: [(GresGpu, u32); N]) -> Option<Minors> {
        Some(Minors {
            whole: minors.into(),
            ..Minors::default()
        })
    }

    #[test]
    fn a_job_with_slices_opens_its_instances_and_their_gpu_or_is_not_confined() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("mig-minors");
        let files = Arc::new(DeviceFiles::default());
        let none = Err("no control groups".to_owned());
        let confiner = Confiner::new(none, files.clone(), list.clone());
        let seven = NvmlIndex::new(7).unwrap();
        let own = |instances: &[(u32, u32)]| {
            let all = instances.iter().map(|(gi, ci)| (seven, *gi, *ci));
            confiner.own(&[], Some(&all.collect()))
        };
        assert!(own(&[]).unwrap_err().contains("no MIG instances"));
        files.set(Some(Minors {
            divided: [(seven, 4)].into(),
            ..Minors::default()
        }));
        assert!(own(&[(1, 0)]).unwrap_err().contains("mig-minors"));
        let text = "gpu4/gi1/access 39\ngpu4/gi1/ci0/access 40\ngpu7/gi1/access 75\ngpu7/gi1/ci0/access 76\n";
        fs::write(&list, text).unwrap();
        assert!(own(&[(2, 0)]).unwrap_err().contains("GPU instance 2"));
        // The driver's numbers are those of the device file, not of NVML.
        let expected = Own {
            gpus: [4].into(),
            instances: [39, 40].into(),
        };
        assert_eq!(own(&[(1, 0)]), Ok(expected));
        assert_eq!(confiner.own(&[], None), Ok(Own::default()));
    }

    #[test]
    fn device_files_are_waited_for_and_never_guessed() {
        let files = Arc::new(DeviceFiles::default());
        let of = |gpus: &[usize]| {
            let gpus: Vec<GresGpu> = gpus.iter().map(|index| gpu(*index)).collect();
            let found = files.of((&gpus, &BTreeSet::new()), Duration::ZERO)?;
            Ok::<BTreeSet<u32>, String>(found.whole.into_values().collect())
        };
        assert_eq!(of(&[]), Ok(BTreeSet::new()));
        assert!(of(&[0]).unwrap_err().contains("does not know yet"));
        files.set(whole([(gpu(0), 3), (gpu(1), 2)]));
        assert_eq!(of(&[0, 1]), Ok([2, 3].into()));
        assert!(of(&[0, 2]).unwrap_err().contains("GPU 2"));
        files.set(None);
        assert!(of(&[0]).is_err());
        // What comes while it is waited for counts.
        let waits = files.clone();
        let waiting = thread::spawn(move || {
            let found = waits.of((&[gpu(5)], &BTreeSet::new()), Duration::from_secs(600));
            found.unwrap().whole
        });
        files.set(whole([(gpu(5), 7)]));
        assert_eq!(waiting.join().unwrap(), [(gpu(5), 7)].into());
    }

    #[test]
    fn without_groups_nobody_is_confined_and_it_is_said_why() {
        let none = Err("no control groups of version 2 are mounted".to_owned());
        let confiner = Confiner::new(none, Arc::default(), PathBuf::new());
        let said = confiner.confine(&7.into(), (4711, 1), (&[], None));
        assert!(said.unwrap_err().contains("version 2"));
        assert!(confiner.path().is_none() && confiner.clause().contains("version 2"));
        assert!(confiner.start_sweeping().is_ok());
    }
}
