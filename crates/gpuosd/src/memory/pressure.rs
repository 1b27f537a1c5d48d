//! A thread that looks at host memory: of the machine, of the NUMA nodes of its GPUs, and of jobs with memory in tiers. A few short files
//! of the kernel's each second, while there are such jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_host::hardware::host_memory::{HostMemory, numa_of};
use gpuos_host::steps::device_groups::Cgroups;
use gpuos_host::steps::job_memory::JobMemory;

use super::Notice;
use crate::sink::Sink;

/// Between two looks, while there are jobs with memory in tiers, ...
const LOOK: Duration = Duration::from_secs(1);
/// ... and while there are none.
const REST: Duration = Duration::from_secs(10);
/// A job whose control group is not there yet is looked for this often: it begins with its first step.
const AGAIN: Duration = Duration::from_secs(5);
/// Jobs that are looked at; no node has more.
const MOST: usize = 256;

/// Who is to be looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// Jobs with memory in tiers, and their users.
    pub jobs: Vec<(JobId, u32)>,
    /// PCI addresses of the GPUs of which something is lent.
    pub gpus: Vec<String>,
}

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The host.
    pub host: HostMemory,
    /// NUMA nodes of GPUs of which something is lent.
    pub near: Vec<u16>,
    /// Jobs with a control group.
    pub jobs: BTreeMap<JobId, JobMemory>,
}

/// Where the thread looks.
pub struct Places {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sysfs: PathBuf,
    /// Control groups.
    pub groups: Cgroups,
}

/// Starts the thread. What is sent to it is looked at from then on.
///
/// # Errors
/// The thread cannot be made.
pub fn start(places: Places, to: Sink<Notice>) -> std::io::Result<Sender<Order>> {
    let (orders, from) = channel();
    let watch = Watch {
        places,
        order: Order::default(),
        near: Vec::new(),
        folders: BTreeMap::new(),
    };
    let run = move || watch.run(&from, &to);
    thread::Builder::new().name("pressure".into()).spawn(run)?;
    Ok(orders)
}

struct Watch {
    places: Places,
    order: Order,
    near: Vec<u16>,
    /// The folder of each job, and when it was looked for.
    folders: BTreeMap<JobId, (Option<PathBuf>, Instant)>,
}

impl Watch {
    fn run(mut self, from: &Receiver<Order>, to: &Sink<Notice>) {
        let mut due = Instant::now();
        loop {
            match from.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(order) => {
                    self.set(order);
                    due = due.min(Instant::now() + LOOK);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let rest = match self.order.jobs.is_empty() {
                        true => REST,
                        false => LOOK,
                    };
                    due = Instant::now() + rest;
                    if !to.send(Notice::Pressure(Box::new(self.look()))) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn set(&mut self, order: Order) {
        let numa = |pci: &String| numa_of(&self.places.sysfs, pci);
        self.near = order.gpus.iter().filter_map(numa).collect();
        self.near.sort_unstable();
        self.near.dedup();
        self.folders
            .retain(|job, _| order.jobs.iter().any(|(other, _)| other == job));
        self.order = order;
    }

    fn look(&mut self) -> Seen {
        let mut jobs = BTreeMap::new();
        for (job, uid) in self.order.jobs.iter().take(MOST) {
            let now = Instant::now();
            let stale = |it: &(Option<PathBuf>, Instant)| {
                it.0.is_none() && now.saturating_duration_since(it.1) >= AGAIN
            };
            if self.folders.get(job).is_none_or(stale) {
                let folder = self.places.groups.memory_of(job, *uid);
                self.folders.insert(job.clone(), (folder, now));
            }
            let folder = self.folders.get(job).and_then(|it| it.0.as_deref());
            match folder.and_then(JobMemory::read) {
                Some(memory) => drop(jobs.insert(job.clone(), memory)),
                // Slurm may make it anew when the job is requeued.
                None if folder.is_some() => drop(self.folders.remove(job)),
                None => {}
            }
        }
        Seen {
            host: HostMemory::read(&self.places.proc, &self.places.sysfs),
            near: self.near.clone(),
            jobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::sync_channel;

    use super::*;

    struct Told(Notice);
    impl From<Notice> for Told {
        fn from(told: Notice) -> Told {
            Told(told)
        }
    }

    #[test]
    fn what_is_looked_at_follows_the_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("proc")).unwrap();
        fs::write(
            at("proc/meminfo"),
            "MemTotal: 100 kB\nMemAvailable: 60 kB\n",
        )
        .unwrap();
        let places = Places {
            proc: at("proc"),
            sysfs: at("sys"),
            groups: Cgroups::at(at("cgroup"), folder.path(), "n1"),
        };
        let (to, from) = sync_channel::<Told>(8);
        let orders = start(places, Sink::of(&to)).unwrap();
        let next = || match from.recv_timeout(Duration::from_secs(60)) {
            Ok(Told(Notice::Pressure(seen))) => *seen,
            Ok(Told(told)) => panic!("{told:?}"),
            Err(e) => panic!("{e}"),
        };
        let first = next();
        assert_eq!(first.host.all.map(|room| room.available), Some(60 << 10));
        assert!(first.jobs.is_empty());
        let group = at("cgroup/system.slice/slurmstepd.scope/job_7");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.current"), "5\n").unwrap();
        fs::write(group.join("memory.max"), "9\n").unwrap();
        orders
            .send(Order {
                jobs: vec![(7.into(), 1000), (8.into(), 1000)],
                gpus: Vec::new(),
            })
            .unwrap();
        let seen = next();
        assert_eq!(seen.jobs.len(), 1);
        assert_eq!(seen.jobs[&7.into()].limit, Some(9));
        // It is over.
        fs::remove_dir_all(&group).unwrap();
        assert!(next().jobs.is_empty());
        orders.send(Order::default()).unwrap();
        drop(orders);
    }
}
