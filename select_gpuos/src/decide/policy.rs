//! What holds for one job: the policy of its partition and QOS, and what places are worth to it.

use std::collections::HashMap;

use gpuos_config::gpuos_toml::Policy;
use gpuos_config::options::JobOptions;
use gpuos_placement::cost::{Condition, End, Grant, History, Objective, Scoring};
use gpuos_placement::explain::{Note, ValueGain};
use gpuos_placement::plan::{Choice, NodeState, Planner, Request};
use gpuos_placement::record::Run;
use slurm_ffi::gres::JobGres;
use slurm_ffi::handles::Job;
use slurm_ffi::{log, qos};

use crate::abi::call::Counts;
use crate::abi::source::Source;
use crate::messages;
use crate::read::request::{self, Wanted};
use crate::read::snapshot::Snapshot;
use crate::tell::records::Records;

/// How many users and job names are remembered.
const REMEMBERED: usize = 4096;

/// What is kept from job to job.
pub struct Standing {
    /// Names of QOS by number; `None` = Slurm has no such QOS.
    names: HashMap<u32, Option<String>>,
    /// Whether it was said that names of QOS cannot be had.
    complained: bool,
    /// Conditions of the nodes of the planner's cluster, by index.
    pub conditions: Vec<Condition>,
    /// What the job at hand wants of a place.
    wish: Option<Scoring>,
    /// The highest priority of late.
    priority: u32,
    history: History,
}

impl Default for Standing {
    fn default() -> Standing {
        Standing {
            names: HashMap::new(),
            complained: false,
            conditions: Vec::new(),
            wish: None,
            priority: 0,
            history: History::new(REMEMBERED),
        }
    }
}

impl Standing {
    /// Forgets what comes from files and from Slurm's tables.
    pub fn reload(&mut self) {
        self.names.clear();
        self.complained = false;
        self.priority = 0;
    }

    /// Takes over what an earlier slurmctld has recorded of runs, where nothing is known yet.
    pub fn recall(&mut self, records: &mut Records) {
        if !self.history.is_empty() {
            return;
        }
        if let Some(history) = records.history(REMEMBERED) {
            if !history.is_empty() {
                log::info(&messages::history_is_remembered(history.len()));
            }
            self.history = history;
        }
    }

    /// Name of a job's QOS, empty when it has none; looked up only where a rule asks for it.
    pub fn qos(&mut self, source: &Source<'_>, policy: &Policy, job: Job<'_>) -> String {
        let number = job.qos();
        if policy.rules.iter().all(|rule| rule.qos.is_none()) {
            return String::new();
        }
        if let Some(known) = self.names.get(&number) {
            return known.clone().unwrap_or_default();
        }
        match source.qos_name(number) {
            Ok(name) => {
                self.names.insert(number, name.clone());
                name.unwrap_or_default()
            }
            Err(why) => {
                if !std::mem::replace(&mut self.complained, true) {
                    let why = match why {
                        qos::Unknown::NoList => "slurmctld knows no QOS; it does with slurmdbd",
                        qos::Unknown::NoFunction => "this slurmctld does not tell the names of QOS",
                    };
                    log::error(&messages::no_qos(why));
                }
                self.names.insert(number, None);
                String::new()
            }
        }
    }

    /// Sets the penalties of the candidates by what they are worth to the job.
    #[inline(never)]
    pub fn weigh(
        &mut self,
        planner: &mut Planner,
        job: Job<'_>,
        options: &JobOptions,
        (objectives, memory): (Option<gpuos_placement::cost::Objectives>, Grant),
        (request, snapshot): (&mut Request, &mut Snapshot),
    ) {
        let alone = options.profile.is_none() && options.shape.is_none();
        let learned = match objectives {
            Some(_) if alone && !self.history.is_empty() => {
                let known = self.history.get(&job.user().to_string(), job.name());
                known.and_then(|known| known.communication)
            }
            _ => None,
        };
        self.wish = Scoring::of(objectives, options.profile, options.shape.as_ref(), learned);
        if let Some(wish) = &mut self.wish
            && wish.objectives.weight(Objective::Fairness) > 0
        {
            // Slowly less, so that one job with a priority set by hand does not count for ever.
            let known = self.priority - self.priority / 1024;
            self.priority = known.max(job.priority());
            let short = u64::from(self.priority - job.priority()) * 1000;
            wish.over_share = short.checked_div(self.priority.into()).unwrap_or(0) as u32;
        }
        // The note tells of objectives; what memory outside GPUs costs is no gain by them.
        let wish = Scoring::with_memory(self.wish, memory);
        let states = &mut snapshot.states;
        planner.weigh(wish.as_ref(), &self.conditions, request, states);
    }
}

/// What a job's wishes are weighed among.
pub struct Among<'a> {
    /// Where records are read.
    pub source: &'a Source<'a>,
    /// The planner, if there is one.
    pub planner: Option<&'a mut Planner>,
    /// The candidates as they are.
    pub snapshot: &'a mut Snapshot,
}

impl Standing {
    /// What a job wants of the planner, by the policy of its partition and QOS where it says nothing itself;
    /// sets what the candidates are worth to it.
    pub fn wanted(
        &mut self,
        (policy, memory): (&Policy, Grant),
        among: Among<'_>,
        asked: Counts,
        (job, gpus): (Job<'_>, JobGres<'_>),
        options: &JobOptions,
    ) -> Option<Wanted> {
        // Names count for rules only.
        let (partition, qos) = match policy.rules.is_empty() {
            true => ("", String::new()),
            false => (job.partition(), self.qos(among.source, policy, job)),
        };
        let mut wanted = request::build(
            asked,
            job,
            gpus,
            options,
            policy.topology_for(partition, &qos),
            policy.placement_for(partition, &qos),
        )?;
        if let Some(planner) = among.planner {
            let objectives = policy.objectives_for(partition, &qos);
            let weighs = objectives.is_some() || options.profile.is_some();
            if !weighs && memory.is_none() && self.conditions.is_empty() {
                // Nobody weighs places: they are worth the same to the job.
                self.wish = None;
            } else {
                let asked = (&mut wanted.request, among.snapshot);
                self.weigh(planner, job, options, (objectives, memory), asked);
            }
        }
        Some(wanted)
    }

    /// By how much the chosen place is worth more to the job than one of another kind, for the note.
    pub fn value_gain(
        &self,
        planner: Option<&mut Planner>,
        states: &[NodeState],
        chosen: &Choice,
        request: &Request,
    ) -> Option<ValueGain> {
        let wish = self.wish.as_ref()?;
        let planner = planner?;
        let conditions = &self.conditions;
        let (than, percent) = planner.beside(chosen, wish, conditions, request, states)?;
        Some(ValueGain {
            objectives: wish.objectives,
            percent,
            than: planner.cluster().nodes.get(than as usize)?.name.clone(),
        })
    }

    /// Learns from the end of a job, what its note says of its place included.
    pub fn learn(&mut self, policy: &Policy, records: &mut Records, job: Job<'_>) {
        // Only jobs with objectives are placed by what earlier runs teach.
        if !policy.weighs() {
            return;
        }
        // Others teach nothing, so their notes need not be read.
        if !job.completed() || job.run_seconds() == 0 {
            return;
        }
        let Some(note) = job.system_comment().and_then(Note::parse) else {
            return;
        };
        let gpus: usize = note.gpus.iter().map(|one| one.gpus.len()).sum();
        let seconds = job.run_seconds();
        log::debug(&format!(
            "job {}: {seconds} s, remembered as a run of {}",
            job.id(),
            job.name()
        ));
        let (user, name) = (job.user().to_string(), job.name());
        let bus = (note.bus_gbps * 100.0) as u32;
        self.history.note(&End {
            user: &user,
            name,
            gpus: gpus as u32,
            seconds,
            bus,
            completed: true,
        });
        records.ran(Run {
            user: user.as_str().into(),
            name: name.into(),
            gpus: gpus as u32,
            seconds,
            bus,
        });
    }
}
