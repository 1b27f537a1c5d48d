//! Which jobs hold which GPUs of this node: what spank_gpuos reports, and what Slurm says when asked.
//!
//! A report names GPUs by the environment of its step, which its user may have written. So it is a claim: only slurmctld's
//! record gives a GPU to a job, and until then the job has none here.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_core::health;
use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, Holder};
use gpuos_core::step::StepId;
use gpuos_core::wire::{JobStatus, Reason};
use gpuos_model::gpu_index::GresGpu;
use gpuos_model::node_gpu::NodeGpu;
use gpuos_workload::job::Job;
use serde::{Deserialize, Serialize};

/// No node runs more jobs with GPUs; reports beyond are dropped.
const MOST: usize = 4096;

/// One job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobOnNode {
    /// Its user.
    pub uid: u32,
    /// The user's name, once Slurm was asked.
    #[serde(default)]
    pub user: String,
    /// GPUs that the job itself holds here, by its batch script's report or as Slurm listed them.
    pub gpus: BTreeSet<GresGpu>,
    /// Its steps and those of their GPUs that are the job's by Slurm's word.
    pub steps: BTreeMap<u32, BTreeSet<GresGpu>>,
    /// What Slurm has given it here, by its last word: nothing else is taken from a report.
    #[serde(default)]
    #[serde(rename = "given")]
    granted: BTreeSet<GresGpu>,
    /// GPUs that steps name, about which Slurm has said nothing yet: any numbers.
    #[serde(default)]
    claims: BTreeMap<u32, BTreeSet<u8>>,
    /// Whether it may be requeued, once Slurm was asked.
    pub requeue: Option<bool>,
    /// What it asked for.
    #[serde(default)]
    pub asked: Asked,
    /// What its batch script asks for, to which it comes back after steps that say otherwise for themselves.
    #[serde(default)]
    script: Option<Asked>,
    /// GPUs of its last step, until Slurm says whether the job is gone.
    #[serde(default)]
    pub last: BTreeSet<GresGpu>,
    /// It is kept without GPUs, too: the daemon has to know of it for an option that it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    needed: bool,
    /// When it was reported last, in the table's own count.
    #[serde(skip)]
    touched: u64,
}

/// All jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// By number.
    pub jobs: BTreeMap<JobId, JobOnNode>,
    /// Reports so far.
    #[serde(skip)]
    count: u64,
}

impl Table {
    /// A step has started. Returns whether its job is new here.
    pub fn started(&mut self, id: &StepId, uid: u32, gpus: &[u8], asked: Asked) -> bool {
        let new = !self.jobs.contains_key(&id.job);
        if new && self.jobs.len() >= MOST {
            return false;
        }
        self.count += 1;
        let held = self.jobs.entry(id.job.clone()).or_default();
        held.uid = uid;
        held.touched = self.count;
        let own = &of_gres(gpus) & &held.granted;
        held.claims.remove(&id.step);
        let others = gpus.iter().filter(|gpu| !has(&own, **gpu));
        let others: BTreeSet<u8> = others.copied().collect();
        if !others.is_empty() {
            held.claims.insert(id.step, others);
        }
        if id.is_special() {
            held.gpus.extend(&own);
        }
        held.steps.insert(id.step, own);
        held.last.clear();
        // A job that was requeued may ask for something else, or for nothing.
        if !asked.is_nothing() || id.is_special() {
            held.asked = asked;
        }
        if id.is_special() && !id.is_extern() {
            held.script = Some(asked);
        }
        new
    }

    /// Why a step of a job that has started was reported: one that is needed for an option stays to its end, whatever it has.
    pub fn reported(&mut self, job: &JobId, reason: Reason) {
        if let Some(held) = self.jobs.get_mut(job) {
            held.needed |= reason == Reason::Option;
        }
    }

    /// What slurmctld's record of a job gives it on `node`, asked for by itself and before its step is told.
    pub fn grant(&mut self, node: &str, job: &Job) {
        if self.jobs.len() >= MOST && !self.jobs.contains_key(&job.id) {
            return;
        }
        let held = self.jobs.entry(job.id.clone()).or_default();
        held.granted = gpus_of(job, node);
        // What is noted besides is of a run of before.
        held.gpus.retain(|gpu| held.granted.contains(gpu));
        held.steps
            .retain(|_, of_step| of_step.is_subset(&held.granted));
        held.uid = job.uid;
        held.user.clone_from(&job.user);
        held.requeue = Some(job.may_requeue);
        held.confirm();
    }

    /// How many GPUs the node has at least, for this job to have those that it has.
    pub fn min_node_gpus(&self, job: &JobId) -> usize {
        let gpus = self.jobs.get(job).map(JobOnNode::all_gpus);
        gpus.and_then(|gpus| gpus.last().map(|gpu| gpu.index() + 1))
            .unwrap_or(0)
    }

    /// Whether Slurm has yet to say whose the GPUs are that a step of this job names.
    pub fn claims(&self, job: &JobId) -> bool {
        self.jobs
            .get(job)
            .is_some_and(|held| !held.claims.is_empty())
    }

    /// A step has ended. A job without steps is gone, unless Slurm said that it holds GPUs itself, or something
    /// was done for it and more steps may come: then only Slurm says when it is gone, and `true` asks to
    /// look.
    pub fn ended(&mut self, id: &StepId) -> bool {
        let Some(held) = self.jobs.get_mut(&id.job) else {
            return false;
        };
        let gpus = held.steps.remove(&id.step).unwrap_or_default();
        held.claims.remove(&id.step);
        if id.is_special() {
            held.gpus.clear();
            held.granted.clear();
        }
        if id.is_special() && !id.is_extern() {
            held.script = None;
        }
        let special = |step: &u32| StepId::is_special_number(*step);
        let alone = held.steps.keys().all(special);
        if let Some(script) = held.script.filter(|_| alone) {
            held.asked = script;
        }
        if held.steps.is_empty() && held.asked.waits() && !id.is_special() {
            held.last = gpus;
            return true;
        }
        // Of a job without GPUs the batch script is the last; where there is none, only Slurm knows which step is.
        let stays = held.needed && !id.is_special();
        if held.steps.is_empty() && held.gpus.is_empty() && !stays {
            self.jobs.remove(&id.job);
            return false;
        }
        held.steps.is_empty()
    }

    /// Whether Slurm has yet to be asked about a GPU: nobody is known to hold it, or somebody of whom it is not known
    /// whether he may be requeued.
    pub fn is_new(&self, gpu: GresGpu) -> bool {
        let on = self.on(gpu);
        on.is_empty() || on.iter().any(|job| self.jobs[job].requeue.is_none())
    }

    /// The job is not here any more.
    pub fn gone(&mut self, job: &JobId) {
        self.jobs.remove(job);
    }

    /// The count to give to [`Table::set`] with an answer to a question that is asked now.
    pub fn mark(&self) -> u64 {
        self.count
    }

    /// What Slurm said of all jobs on `node`, asked at `mark`. Jobs reported since then stay.
    pub fn set(&mut self, node: &str, told: &[Job], mark: u64) {
        let here: BTreeMap<JobId, BTreeSet<GresGpu>> = told
            .iter()
            .map(|job| (job.id.clone(), gpus_of(job, node)))
            .filter(|(_, gpus)| !gpus.is_empty())
            .collect();
        let there = told.iter().filter(|job| job.is_running());
        let there: BTreeSet<JobId> = there.map(|job| job.id.clone()).collect();
        // Of a job whose record cannot be read it is only known that it is there: what it had stays its own.
        let unread = told
            .iter()
            .filter(|job| !job.unreadable.is_empty() && job.is_running());
        let unread: BTreeSet<JobId> = unread.map(|job| job.id.clone()).collect();
        self.jobs.retain(|id, held| {
            let needed = held.needed && there.contains(id);
            here.contains_key(id) || unread.contains(id) || needed || held.touched > mark
        });
        for job in told {
            let Some(gpus) = here.get(&job.id) else {
                continue;
            };
            let held = self.jobs.entry(job.id.clone()).or_default();
            held.uid = job.uid;
            held.user.clone_from(&job.user);
            if held.touched > mark {
                held.gpus.extend(gpus);
                held.granted.extend(gpus);
            } else {
                // A job that was requeued has others than before.
                held.gpus.clone_from(gpus);
                held.granted.clone_from(gpus);
                held.steps.retain(|_, of_step| of_step.is_subset(gpus));
            }
            held.confirm();
            held.requeue = Some(job.may_requeue);
            held.last.clear();
        }
    }

    /// What the health rules are told.
    pub fn health_jobs(&self) -> Vec<health::Job> {
        let mut list = Vec::new();
        for (id, held) in &self.jobs {
            let job = |step, gpus: &BTreeSet<GresGpu>| health::Job {
                job: id.clone(),
                step,
                gpus: gpus.iter().copied().map(NodeGpu::Gres).collect(),
                // slurmctld itself refuses what may not be requeued.
                requeue: held.requeue.unwrap_or(true),
                watch: held.asked.watch_s.is_some(),
                watch_s: held.asked.watch_s.unwrap_or(0),
                ..health::Job::default()
            };
            let mut rest = held.gpus.clone();
            let mut script = None;
            for (step, gpus) in &held.steps {
                if (StepId {
                    job: id.clone(),
                    step: *step,
                })
                .is_special()
                {
                    script = Some(*step);
                    continue;
                }
                rest.retain(|gpu| !gpus.contains(gpu));
                if !gpus.is_empty() {
                    list.push(job(Some(*step), gpus));
                }
            }
            // What no step of srun has, the batch script may use.
            if !rest.is_empty() {
                list.push(job(script, &rest));
            }
        }
        list
    }

    /// What decides about power limits and clocks.
    pub fn holders(&self) -> Vec<Holder> {
        let holder = |(id, held): (&JobId, &JobOnNode)| Holder {
            job: id.clone(),
            uid: held.uid,
            gpus: held.all_gpus().union(&held.last).copied().collect(),
            asked: held.asked,
            resting: held.steps.is_empty(),
        };
        self.jobs.iter().map(holder).collect()
    }

    /// What clients are told.
    pub fn status(&self) -> Vec<JobStatus> {
        let status = |(id, held): (&JobId, &JobOnNode)| JobStatus {
            job: id.clone(),
            uid: held.uid,
            gpus: held.all_gpus().into_iter().collect(),
            steps: held.steps.keys().copied().collect(),
        };
        let has = |held: &JobOnNode| {
            held.needed || !held.granted.is_empty() || !held.all_gpus().is_empty()
        };
        let here = self.jobs.iter().filter(|(_, held)| has(held));
        here.map(status).collect()
    }

    /// Jobs that hold a GPU.
    pub fn on(&self, gpu: GresGpu) -> Vec<JobId> {
        let on = |held: &JobOnNode| held.all_gpus().contains(&gpu);
        let jobs = self.jobs.iter().filter(|(_, held)| on(held));
        jobs.map(|(id, _)| id.clone()).collect()
    }
}

impl JobOnNode {
    /// Slurm has said what the job has: steps have that of what they named, and the rest is nobody's claim any more.
    fn confirm(&mut self) {
        for (step, named) in std::mem::take(&mut self.claims) {
            let own = &of_gres(&named) & &self.granted;
            if StepId::is_special_number(step) {
                self.gpus.extend(&own);
            }
            self.steps.entry(step).or_default().extend(own);
        }
    }

    /// GPUs of the job itself and of its steps.
    pub fn all_gpus(&self) -> BTreeSet<GresGpu> {
        let steps = self.steps.values().flatten();
        self.gpus.iter().chain(steps).copied().collect()
    }
}

/// The GPUs of a running job on a node, by index, those included of which it has a part.
pub fn gpus_of(job: &Job, node: &str) -> BTreeSet<GresGpu> {
    // Prolog and epilog use the GPUs, too.
    if !job.is_running() {
        return BTreeSet::new();
    }
    let gpus = job.gpus_on(node);
    gpus.iter().filter_map(GresGpu::new).collect()
}

/// Those of the numbers that a step names which a GPU of GRES `gpu` can have.
pub fn of_gres<'a>(named: impl IntoIterator<Item = &'a u8>) -> BTreeSet<GresGpu> {
    let gpus = named.into_iter().map(|gpu| GresGpu::try_from(*gpu));
    gpus.filter_map(Result::ok).collect()
}

/// Whether a number that a step names is one of these GPUs.
pub fn has(gpus: &BTreeSet<GresGpu>, named: u8) -> bool {
    GresGpu::try_from(named).is_ok_and(|gpu| gpus.contains(&gpu))
}

#[cfg(test)]
mod tests {
    use gpuos_model::gpuset::GpuSet;
    use gpuos_workload::job::{Allocation, JobState};

    use super::*;

    const BATCH: u32 = StepId::BATCH;

    const NOTHING: Asked = Asked {
        power: None,
        clocks: None,
        watch_s: None,
        mps: None,
        shared: false,
        undone: false,
    };

    fn id(job: u32, step: u32) -> StepId {
        let job = job.into();
        StepId { job, step }
    }

    fn number(job: &JobId) -> u32 {
        job.number().unwrap()
    }

    fn on(table: &Table, gpu: u8) -> Vec<u32> {
        let gpu = gpu.try_into().unwrap();
        table.on(gpu).iter().map(number).collect()
    }

    fn told(table: &Table) -> Vec<(u32, Option<u32>, Vec<u8>)> {
        let list = table.health_jobs().into_iter();
        let gpus = |job: &health::Job| job.gpus.iter().map(|gpu| u8::from(*gpu)).collect();
        list.map(|job| (number(&job.job), job.step, gpus(&job)))
            .collect()
    }

    #[test]
    fn a_requeued_job_lets_go_of_the_gpus_that_it_had() {
        let mut table = Table::default();
        table.set("n1", &[running(7, &[0, 1])], table.mark());
        table.started(&id(7, 0), 1000, &[0], NOTHING);
        table.set("n1", &[running(7, &[1, 2])], table.mark());
        assert!(on(&table, 0).is_empty());
        assert_eq!((on(&table, 1), on(&table, 2)), (vec![7], vec![7]));
    }

    #[test]
    fn what_a_step_names_is_its_jobs_once_slurm_says_so() {
        let mut table = Table::default();
        table.started(&id(7, 0), 1000, &[0, 1, 2, 63], NOTHING);
        assert!(table.claims(&7.into()) && table.status().is_empty());
        let holder = &table.holders()[0];
        assert!(holder.gpus.is_empty() && on(&table, 1).is_empty());
        assert_eq!(table.min_node_gpus(&7.into()), 0);
        table.set("n1", &[running(7, &[1, 4])], table.mark());
        assert!(!table.claims(&7.into()));
        assert_eq!(told(&table), [(7, Some(0), vec![1]), (7, None, vec![4])]);
        // What it names later is looked at in the same way, whatever it has.
        table.started(&id(7, 1), 1000, &[2, 4], NOTHING);
        assert!(on(&table, 2).is_empty());
        table.grant("n1", &running(7, &[2, 4]));
        assert_eq!(on(&table, 2), [7]);
        // A job without GPUs has none, and is forgotten with its step.
        table.started(&id(8, 0), 1000, &[5], NOTHING);
        table.grant("n1", &running(8, &[]));
        assert!(on(&table, 5).is_empty() && !table.claims(&8.into()));
        table.ended(&id(8, 0));
        assert!(!table.jobs.contains_key(&8.into()));
    }

    #[test]
    fn gpus_belong_to_steps_and_what_is_left_to_the_script() {
        let mut table = Table::default();
        assert!(table.started(&id(7, BATCH), 1000, &[0, 1, 2], NOTHING));
        assert_eq!(told(&table), []);
        table.grant("n1", &running(7, &[0, 1, 2]));
        assert_eq!(told(&table), [(7, Some(BATCH), vec![0, 1, 2])]);
        assert!(!table.started(&id(7, 0), 1000, &[1], NOTHING));
        assert_eq!(
            told(&table),
            [(7, Some(0), vec![1]), (7, Some(BATCH), vec![0, 2])]
        );
        table.ended(&id(7, 0));
        table.ended(&id(7, BATCH));
        assert_eq!(
            table,
            Table {
                count: 2,
                ..Table::default()
            }
        );
    }

    #[test]
    fn a_job_whose_gpus_were_set_rests_between_two_steps() {
        let mut table = Table::default();
        let asked = Asked {
            power: Some(gpuos_core::limits::PowerCap::Watts(300)),
            ..NOTHING
        };
        table.grant("n1", &running(7, &[1]));
        table.started(&id(7, 0), 1000, &[1], asked);
        assert!(table.ended(&id(7, 0)));
        assert!(on(&table, 1).is_empty() && table.health_jobs().is_empty());
        let holder = &table.holders()[0];
        assert!(holder.resting && holder.gpus == of_gres(&[1]) && holder.asked == asked);
        // A step that says nothing changes nothing, and Slurm's word ends it.
        table.started(&id(7, 1), 1000, &[1], NOTHING);
        table.ended(&id(7, 1));
        assert_eq!(table.holders()[0].asked, asked);
        table.set("n1", &[], table.mark());
        assert!(table.jobs.is_empty());
        // The batch script's end is that of the job.
        table.grant("n1", &running(8, &[1]));
        table.started(&id(8, BATCH), 1000, &[1], asked);
        assert!(!table.ended(&id(8, BATCH)) && table.jobs.is_empty());
    }

    #[test]
    fn a_step_undoes_for_itself_what_its_job_asked_for() {
        let mut table = Table::default();
        let watched = Asked {
            watch_s: Some(0),
            ..NOTHING
        };
        let undone = Asked {
            undone: true,
            ..NOTHING
        };
        let watch = |table: &Table| table.health_jobs().iter().any(|job| job.watch);
        table.grant("n1", &running(7, &[0, 1]));
        table.started(&id(7, BATCH), 1000, &[0, 1], watched);
        assert!(watch(&table));
        table.started(&id(7, 0), 1000, &[0, 1], undone);
        assert!(!watch(&table));
        table.ended(&id(7, 0));
        assert!(watch(&table));
    }

    #[test]
    fn a_job_whose_record_cannot_be_read_keeps_what_it_had_and_gets_nothing() {
        let mut table = Table::default();
        let mark = table.mark();
        table.set("n1", &[running(7, &[0, 1]), running(8, &[2])], mark);
        let unread = |number| Job {
            unreadable: "UserId= stands in it twice".into(),
            allocations: Vec::new(),
            ..running(number, &[])
        };
        table.set("n1", &[unread(7), unread(9)], table.mark());
        assert_eq!((on(&table, 0), on(&table, 1)), (vec![7], vec![7]));
        assert!(on(&table, 2).is_empty() && !table.jobs.contains_key(&9.into()));
    }

    fn running(number: u32, gpus: &[usize]) -> Job {
        Job {
            id: number.into(),
            uid: 1000,
            state: JobState::Running,
            may_requeue: number == 2,
            allocations: vec![Allocation {
                nodes: vec!["n1".into()],
                gpus: gpus.iter().fold(GpuSet::EMPTY, |set, gpu| set.with(*gpu)),
                slices: GpuSet::EMPTY,
                shared: GpuSet::EMPTY,
                memory_mib: 0,
                others: Vec::new(),
            }],
            ..Job::default()
        }
    }

    #[test]
    fn a_job_holds_its_gpus_from_the_prolog_to_the_epilog() {
        for (state, holds) in [
            (JobState::Starting, true),
            (JobState::Ending, true),
            (JobState::Stopped, true),
            (JobState::Waiting, false),
            (JobState::Over, false),
        ] {
            let mut table = Table::default();
            let mut job = running(7, &[3]);
            job.state = state;
            table.set("n1", &[job], table.mark());
            assert_eq!(!on(&table, 3).is_empty(), holds, "{state:?}");
        }
    }

    #[test]
    fn all_jobs_that_share_a_gpu_hold_it() {
        let mut table = Table::default();
        let part = |number: u32| {
            let mut job = running(number, &[]);
            job.allocations[0].shared = GpuSet::EMPTY.with(3);
            job
        };
        table.set("n1", &[part(7), part(8), running(9, &[2])], table.mark());
        assert_eq!(on(&table, 3), [7, 8]);
        assert_eq!(
            told(&table),
            [(7, None, vec![3]), (8, None, vec![3]), (9, None, vec![2])]
        );
    }

    #[test]
    fn a_job_without_gpus_that_an_option_needs_stays_to_its_end() {
        let listed = |table: &Table| -> Vec<u32> {
            let jobs = table.status().into_iter();
            jobs.inspect(|job| assert!(job.gpus.is_empty()))
                .map(|job| number(&job.job))
                .collect()
        };
        for (reason, kept) in [(Reason::Option, vec![7]), (Reason::Devices, vec![])] {
            let mut table = Table::default();
            table.started(&id(7, BATCH), 1000, &[], NOTHING);
            table.reported(&7.into(), reason);
            assert_eq!(listed(&table), kept);
            table.started(&id(7, 0), 1000, &[], NOTHING);
            table.ended(&id(7, 0));
            table.grant("n1", &running(7, &[]));
            table.set("n1", &[running(7, &[])], table.mark());
            assert_eq!(listed(&table), kept);
            assert!(table.health_jobs().is_empty(), "no rule is told of it");
            table.ended(&id(7, BATCH));
            assert!(table.jobs.is_empty());
        }
        // Without a batch script Slurm says when it is over.
        let mut table = Table::default();
        table.started(&id(8, 0), 1000, &[], NOTHING);
        table.reported(&8.into(), Reason::Option);
        assert!(table.ended(&id(8, 0)), "it is looked at");
        table.set("n1", &[running(8, &[])], table.mark());
        assert_eq!(listed(&table), [8]);
        table.set("n1", &[], table.mark());
        assert!(table.jobs.is_empty());
    }

    #[test]
    fn slurms_word_replaces_what_is_older_than_the_question() {
        let mut table = Table::default();
        table.started(&id(1, 0), 1000, &[0], NOTHING);
        let mark = table.mark();
        table.started(&id(3, 0), 1000, &[3], NOTHING);
        table.set("n1", &[running(2, &[4, 5]), running(9, &[])], mark);
        assert_eq!(told(&table), [(2, None, vec![4, 5])]);
        assert!(table.claims(&3.into()), "it was reported since");
        assert_eq!(table.jobs[&2.into()].requeue, Some(true));
        assert_eq!(on(&table, 5), [2]);
        table.set("n2", &[running(2, &[4, 5])], table.mark());
        assert_eq!(told(&table), []);
    }
}
