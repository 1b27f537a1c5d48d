//! Slurm as the workload manager of a node.

use core::net::SocketAddr;
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_config::slurm_conf::Addresses as Lines;
use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::made::Run;
use gpuos_core::peers::ManagerAnswer;
use gpuos_core::step::StepId;
use gpuos_workload::action::{Action, Outcome};
use gpuos_workload::job::{Job, JobState};
use gpuos_workload::node::NodeRecord;
use gpuos_workload::numbering::GpuNumbering;
use gpuos_workload::{Addresses, Holders, Silent, Topology, WorkloadManager};

use super::group_names::GroupNames;
use super::local::conf_folder;
use super::site::local_topologies;
use super::{act, address, numbering, running};
use crate::Machine;
use crate::munge::socket_of;

/// Slurm's commands and files on a node.
pub struct Slurm {
    machine: Arc<dyn Machine + Send + Sync>,
    node: String,
    /// Told of each job that is read.
    names: Arc<GroupNames>,
}

impl Slurm {
    /// Of the node of that name.
    pub fn new(machine: Arc<dyn Machine + Send + Sync>, node: &str) -> Slurm {
        Slurm {
            machine,
            node: node.into(),
            names: Arc::default(),
        }
    }

    /// With names of jobs' control groups, which are noted as slurmctld tells them.
    #[must_use]
    pub fn with_group_names(mut self, names: &Arc<GroupNames>) -> Slurm {
        self.names = Arc::clone(names);
        self
    }

    /// What gpuosd needs of a job's record.
    fn known(&self, record: super::Job, now: u64) -> Job {
        // One that waits has no groups, and an array that waits has its tasks' numbers.
        if !record.nodes.is_empty() {
            self.names.learn(&record.sluid, &record.id.into());
        }
        job(record, now)
    }
}

impl WorkloadManager for Slurm {
    fn act(&self, action: &Action) -> Outcome {
        act::act(&*self.machine, &self.node, action)
    }

    fn node(&self) -> Result<NodeRecord, Outcome> {
        act::node(&*self.machine, &self.node).map(node)
    }

    fn jobs(&self) -> Result<Vec<Job>, Outcome> {
        let jobs = act::jobs_on(&*self.machine, &self.node)?;
        let now = now();
        let jobs = jobs.into_iter().map(|record| self.known(record, now));
        Ok(jobs.collect())
    }

    fn job(&self, id: &JobId) -> Result<Option<Job>, Outcome> {
        // What is no number is no job of Slurm's.
        let Some(number) = id.number() else {
            return Ok(None);
        };
        let record = act::job(&*self.machine, number)?;
        Ok(record.map(|record| self.known(record, now())))
    }

    fn holders(&self, id: &JobId) -> Result<Holders, Outcome> {
        match id.number() {
            Some(number) => act::holders(&*self.machine, number),
            None => Ok(Holders::default()),
        }
    }

    fn note_checkpoints(&self, id: &JobId, run: &Run) -> Outcome {
        match id.number() {
            Some(number) => act::note_checkpoints(&*self.machine, &self.node, number, run),
            None => Outcome::Nothing(format!("{id} is no job of Slurm's")),
        }
    }

    fn note_unsaved(&self, id: &JobId, run: u32, why: Option<&str>) -> Outcome {
        match id.number() {
            Some(number) => act::note_unsaved(&*self.machine, &self.node, number, run, why),
            None => Outcome::Nothing(format!("{id} is no job of Slurm's")),
        }
    }

    fn forget_checkpoints(&self, id: &JobId, uid: Option<u32>) -> Outcome {
        match id.number() {
            Some(number) => act::forget_checkpoints(&*self.machine, &self.node, number, uid),
            None => Outcome::Nothing(format!("{id} is no job of Slurm's")),
        }
    }

    fn step_nodes(&self, step: &StepId) -> Result<Option<Vec<String>>, Outcome> {
        let Some(number) = step.job.number() else {
            return Ok(None);
        };
        act::step_nodes(&*self.machine, number, step.step)
    }

    /// `SlurmUser = slurm(64030)`.
    fn own_user(&self) -> Option<u32> {
        let running = running(&*self.machine).ok()?;
        let (_, number) = running.get("SlurmUser")?.rsplit_once('(')?;
        number.strip_suffix(')')?.parse().ok()
    }

    fn cluster(&self) -> Result<Option<String>, Outcome> {
        let running = running(&*self.machine);
        let running = running.map_err(|e| Outcome::NoAnswer(format!("{e:#}")))?;
        Ok(running.get("ClusterName").map(String::from))
    }

    fn config_folder(&self) -> Option<PathBuf> {
        Some(running(&*self.machine).ok()?.directory())
    }

    fn local_folder(&self) -> Option<PathBuf> {
        conf_folder(&*self.machine)
    }

    fn numbering(&self) -> Result<GpuNumbering, String> {
        numbering::of_node(&*self.machine, &self.node)
    }

    fn addresses(&self) -> Result<Arc<dyn Addresses>, String> {
        let lines = address::addresses(&*self.machine)?;
        Ok(Arc::new(OfSlurmConf(lines)))
    }

    fn topology(&self, nodes: &[String]) -> Result<Topology, String> {
        let topologies = local_topologies(&*self.machine)?;
        let Some(file) = topologies.of_cluster() else {
            return Ok(Topology {
                nodes: nodes.to_vec(),
                ..Topology::default()
            });
        };
        let mut all: Vec<String> = file.nodes();
        all.extend_from_slice(nodes);
        all.sort_unstable();
        all.dedup();
        Ok(Topology {
            fabric: file.fabric(&all),
            nodes: all,
        })
    }

    fn ask_daemon(&self, address: SocketAddr, limit: Duration) -> ManagerAnswer {
        address::ask_slurmd(address, limit)
    }

    fn set_down(&self, silent: &Silent) -> Outcome {
        act::set_down(&*self.machine, &self.node, silent)
    }

    fn is_set_down(&self) -> Result<bool, Outcome> {
        act::is_set_down(&*self.machine, &self.node)
    }

    fn resume(&self) -> Outcome {
        act::resume(&*self.machine, &self.node)
    }
}

struct OfSlurmConf(Lines);

impl Addresses for OfSlurmConf {
    fn of(&self, node: &str) -> (String, u16) {
        self.0.of(node)
    }

    fn munge_socket(&self) -> Option<PathBuf> {
        socket_of(&self.0.auth_info).map(Path::to_path_buf)
    }
}

/// What gpuosd needs of a node's record.
fn node(record: super::NodeRecord) -> NodeRecord {
    let (published, damaged) = ExtraPart::read(&record.extra);
    let drained = record.states.iter().any(|state| state.starts_with("DRAIN"));
    NodeRecord {
        drain: drained.then_some(record.reason),
        name: record.name,
        sockets: record.sockets,
        cores_per_socket: record.cores_per_socket,
        gpus: record.gpus,
        published,
        damaged: damaged.map(|why| why.to_string()),
    }
}

/// Seconds since 1970 by this node's clock, which munge wants to agree with slurmctld's.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

/// In how many seconds Slurm will end a job that runs. That of one that is ending, as after scancel, is over.
fn ends_in(record: &super::Job, now: u64) -> Option<u64> {
    let time = |text: &str| text.parse::<u64>().ok();
    if state(record) != JobState::Running {
        return None;
    }
    match time(&record.end) {
        Some(end) => Some(end.saturating_sub(now)),
        // Without a limit Slurm prints no end, also when it is preempting the job and there is one.
        None => is_preempted(record).then_some(0),
    }
}

/// Whether Slurm is preempting a job that runs.
fn is_preempted(record: &super::Job) -> bool {
    state(record) == JobState::Running && record.preempted.parse::<u64>().is_ok()
}

/// What gpuosd and gpuos_mover need of a job's record.
fn job(record: super::Job, now: u64) -> Job {
    let has = |part: super::Allocation| gpuos_workload::job::Allocation {
        nodes: part.nodes,
        gpus: part.gpus,
        slices: part.slices,
        shared: part.shared,
        memory_mib: part.memory_mib,
        others: part.others,
    };
    Job {
        id: record.id.into(),
        state: state(&record),
        ends_in_s: ends_in(&record, now),
        queued_at: record.submitted.parse().ok(),
        started_at: record.start.parse().ok(),
        preempted: is_preempted(&record),
        user: record.user,
        uid: record.uid,
        account: record.account,
        qos: record.qos,
        partitions: record.partitions,
        state_word: record.state,
        nodes: record.nodes,
        script_on: record.batch_host,
        required_nodes: record.required_nodes,
        may_requeue: record.may_requeue,
        restarts: record.restarts,
        run_seconds: record.run_seconds,
        allocations: record.allocations.into_iter().map(has).collect(),
        shares: record.shares,
        unplaced: None,
        note: record.system_comment,
        unreadable: record.unreadable,
    }
}

fn state(record: &super::Job) -> JobState {
    match record.state.as_str() {
        "PENDING" | "REQUEUED" => JobState::Waiting,
        "CONFIGURING" => JobState::Starting,
        "RUNNING" => JobState::Running,
        "COMPLETING" => JobState::Ending,
        _ if record.is_running() => JobState::Stopped,
        _ if record.has_ended() => JobState::Over,
        _ => JobState::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    #[test]
    fn a_record_has_what_is_published_of_its_gpus_and_what_is_wrong_with_that() {
        let record = |state: &str, extra: &str| {
            node(super::super::NodeRecord {
                states: vec!["IDLE".into(), state.into()],
                reason: "fan".into(),
                extra: extra.into(),
                gpus: vec![("h100".into(), 6), ("a100".into(), 2)],
                ..Default::default()
            })
        };
        let well = record("", "rack=7 [gpuos:1 out=2]");
        assert_eq!(
            (&well.published.out[..], &well.damaged, &well.drain),
            (&[2u8.try_into().unwrap()][..], &None, &None)
        );
        assert_eq!(well.gpu_count(), 8);
        let damaged = record("DRAINED", "[gpuos:1 degraded=x]");
        assert!(
            damaged
                .damaged
                .is_some_and(|why| why.contains("degraded=x"))
        );
        assert_eq!(damaged.drain.as_deref(), Some("fan"));
        assert_eq!(record("DRAINING", "").drain.as_deref(), Some("fan"));
    }

    #[test]
    fn slurms_words_for_states_become_what_a_node_needs_to_know() {
        for (word, wanted) in [
            ("PENDING", JobState::Waiting),
            ("REQUEUED", JobState::Waiting),
            ("CONFIGURING", JobState::Starting),
            ("RUNNING", JobState::Running),
            ("SUSPENDED", JobState::Stopped),
            ("STAGE_OUT", JobState::Stopped),
            ("COMPLETING", JobState::Ending),
            ("CANCELLED", JobState::Over),
            ("NODE_FAIL", JobState::Over),
            ("OUT_OF_MEMORY", JobState::Over),
            // They come back, or may: what is kept of them stays.
            ("REQUEUE_HOLD", JobState::Waiting),
            ("REQUEUE_FED", JobState::Waiting),
            ("SPECIAL_EXIT", JobState::Waiting),
            ("RESV_DEL_HOLD", JobState::Waiting),
            ("REVOKED", JobState::Waiting),
            ("A_STATE_OF_TOMORROW", JobState::Waiting),
            ("", JobState::Waiting),
        ] {
            let record = super::super::Job {
                state: word.into(),
                ..Default::default()
            };
            let has_nodes = record.is_running();
            let job = job(record, 0);
            assert_eq!((job.state, job.state_word.as_str()), (wanted, word));
            assert_eq!(job.is_running(), has_nodes, "{word}");
        }
    }

    #[test]
    fn what_ends_already_has_no_end_before_it() {
        for (word, wanted) in [
            ("RUNNING", (Some(60), true)),
            ("COMPLETING", (None, false)),
            ("PENDING", (None, false)),
            ("TIMEOUT", (None, false)),
        ] {
            let record = super::super::Job {
                state: word.into(),
                end: "1060".into(),
                preempted: "990".into(),
                ..Default::default()
            };
            let job = job(record, 1000);
            assert_eq!((job.ends_in_s, job.preempted), wanted, "{word}");
        }
    }

    #[test]
    fn the_fabric_is_that_of_the_nodes_own_files() {
        let file = "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n3\n";
        let machine = Recorded::default()
            .file("/etc/slurm/slurm.conf", "TopologyPlugin=topology/tree\n")
            .file("/etc/slurm/topology.conf", file);
        let slurm = Slurm::new(Arc::new(machine), "n1");
        let known = slurm.topology(&["n9".into(), "n2".into()]).unwrap();
        assert_eq!(known.nodes, ["n1", "n2", "n3", "n9"]);
        let leaf = &known.fabric.levels[0];
        assert_eq!(
            (leaf.name.as_str(), &leaf.domain_of[..3]),
            ("leaf", &[0, 0, 1][..])
        );
        // A mistake is told, and no description is none.
        let machine = Recorded::default()
            .file("/etc/slurm/slurm.conf", "TopologyPlugin=topology/tree\n")
            .file("/etc/slurm/topology.conf", "SwitchName=s1 Switches=s2\n");
        let slurm = Slurm::new(Arc::new(machine), "n1");
        let error = slurm.topology(&[]).unwrap_err();
        assert!(error.contains("/etc/slurm/topology.conf"), "{error}");
        let slurm = Slurm::new(Arc::new(Recorded::default()), "n1");
        let none = slurm.topology(&["n1".into()]).unwrap();
        assert!(none.fabric.levels.is_empty() && none.nodes == ["n1"]);
    }

    #[test]
    fn the_users_number_is_what_stands_behind_its_name() {
        for (value, wanted) in [
            ("slurm(64030)", Some(64030)),
            ("root(0)", Some(0)),
            ("slurm", None),
        ] {
            let config = format!("SlurmUser               = {value}\n");
            let machine = Recorded::default().command("scontrol show config", &config);
            let slurm = Slurm::new(Arc::new(machine), "n1");
            assert_eq!(slurm.own_user(), wanted);
        }
        let nobody = Slurm::new(Arc::new(Recorded::default()), "n1");
        assert_eq!((nobody.own_user(), nobody.config_folder()), (None, None));
    }
}
