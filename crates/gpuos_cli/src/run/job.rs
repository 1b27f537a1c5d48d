//! What Slurm says of the job in which `gpuos run` runs, and of its nodes.

use std::net::ToSocketAddrs;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuos_core::job::JobId;
use gpuos_core::peers::ManagerAnswer;
use gpuos_host::Machine;
use gpuos_host::slurm::{NodeRecord, Record, Slurm, Target, scontrol};
use gpuos_model::hostlist::{compress, expand};
use gpuos_workload::{Addresses, WorkloadManager};

use super::choose::Node;

/// How long a slurmd may take to answer before its node counts as lost.
const ANSWER: Duration = Duration::from_secs(1);
/// Slurmds that are asked at the same time.
const AT_ONCE: usize = 64;
/// Longest time for one of Slurm's commands.
const LIMIT: Duration = Duration::from_secs(30);
/// States in which a node runs nothing. DRAIN and FAILING let what is there go on.
const DOWN: &[&str] = &[
    "DOWN",
    "FAIL",
    "ERROR",
    "POWERED_DOWN",
    "POWERING_DOWN",
    "NOT_RESPONDING",
];
/// States of a node that is to get nothing new.
const DRAINS: &[&str] = &["DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "REBOOT"];

/// What the job has said of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tasks {
    of_node: Option<usize>,
    /// As the script has it: releases have the number there that was asked for, or that of all nodes.
    of_script: Option<usize>,
    /// As slurmctld has it, of all nodes.
    of_all: Option<usize>,
}

/// The job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The job as Slurm's commands take it.
    pub target: Target,
    /// Nodes that it had at its start.
    pub size: usize,
    /// Those that are spares among them.
    pub spares: usize,
    tasks: Tasks,
    /// How often Slurm has requeued it.
    pub restarts: u32,
}

impl Job {
    /// By the variables that Slurm and gpuos set in a batch script or salloc's shell.
    ///
    /// # Errors
    /// There is no job around.
    pub fn here(machine: &dyn Machine) -> Result<Job> {
        let number = |name: &str| machine.env(name).and_then(|text| text.parse::<u32>().ok());
        let none = match machine.env("PBS_JOBID") {
            Some(_) => {
                "gpuos run starts its program by Slurm's srun: a job of PBS that loses a host is started again as a whole (qsub -r y), and goes on \
                 from its checkpoint"
            }
            None => {
                "there is no job here (SLURM_JOB_ID is not set): use gpuos run in a batch script, or in the shell of salloc"
            }
        };
        let target = Target::here(machine).context(none)?;
        let count = |name| number(name).map(|number| number as usize);
        let id = target.id();
        let args = ["show", "job", &target.to_string()];
        let records = scontrol(machine, &args).map(|text| Record::parse_all(&text, "JobId"));
        let records = records.unwrap_or_default();
        let tasks = Tasks {
            of_node: count("SLURM_NTASKS_PER_NODE"),
            of_script: count("SLURM_NTASKS"),
            of_all: records
                .iter()
                .find(|record| record.number("JobId") == Some(id.into()))
                .and_then(|record| usize::try_from(record.number("NumTasks")?).ok()),
        };
        let size = number("SLURM_JOB_NUM_NODES").or(number("SLURM_NNODES"));
        Ok(Job {
            target,
            size: size.unwrap_or(1) as usize,
            spares: number("GPUOS_JOB_SPARES").unwrap_or(0) as usize,
            tasks,
            restarts: number("SLURM_RESTART_COUNT").unwrap_or(0),
        })
    }

    /// Tasks of a program on so many nodes; `None`: nothing was said of them.
    pub fn tasks(&self, nodes: usize) -> Option<usize> {
        let Tasks {
            of_node,
            of_script,
            of_all,
        } = self.tasks;
        if let Some(each) = of_node {
            return each.checked_mul(nodes);
        }
        let tasks = of_script?;
        let of = match Some(tasks) == of_all {
            true => self.size,
            false => self.size.saturating_sub(self.spares),
        };
        let product = tasks.checked_mul(nodes)?;
        (of > 0 && product.is_multiple_of(of)).then_some(product / of)
    }

    /// How checkpoints name it.
    pub fn name(&self) -> JobId {
        JobId::from(self.target.id())
    }

    /// The nodes that it has now; `None`: it does not run any more.
    ///
    /// # Errors
    /// slurmctld does not answer.
    pub fn nodes(&self, machine: &dyn Machine) -> Result<Option<Vec<String>>> {
        let (id, name) = (self.target.id().to_string(), self.target.to_string());
        let args = [
            "--noheader",
            "--states=all",
            "--jobs",
            &name,
            "--format=%A|%T|%N",
        ];
        let output = machine.run_within(LIMIT, "squeue", &args)?;
        if !output.ok {
            let said = output.stderr.trim();
            if said.contains("Invalid job id") {
                return Ok(None);
            }
            bail!("squeue does not tell of job {name}: {said}");
        }
        Ok(nodes(&output.stdout, &id))
    }

    /// The same with what is known of each. `probe`: whether their slurmds answer is looked at, too.
    ///
    /// # Errors
    /// slurmctld does not answer.
    pub fn look(&self, machine: &dyn Machine, probe: bool) -> Result<Option<Vec<Node>>> {
        let Some(names) = self.nodes(machine)? else {
            return Ok(None);
        };
        let list = compress(names.iter().map(String::as_str));
        let text = scontrol(machine, &["show", "node", &list])?;
        let records = NodeRecord::parse_all(&text);
        let mut all: Vec<Node> = names.into_iter().map(|name| node(name, &records)).collect();
        if probe {
            ask_slurmds(&mut all);
        }
        Ok(Some(all))
    }

    /// Number of the step that this srun has started; `None`: none yet, or not any more.
    pub fn step_of(&self, machine: &dyn Machine, srun: u32) -> Option<u32> {
        let args = ["--oneliner", "show", "step", &self.target.steps()];
        step_of(&scontrol(machine, &args).ok()?, srun)
    }

    /// Whether slurmctld has a step still. As long as it does not answer it has.
    pub fn has_step(&self, machine: &dyn Machine, step: u32) -> bool {
        let name = self.target.show_step(step);
        match scontrol(machine, &["--oneliner", "show", "step", &name]) {
            Ok(text) => text.trim_start().starts_with("StepId="),
            Err(why) => !format!("{why:#}").contains("not found"),
        }
    }
}

/// What squeue printed of the job of that number, if it runs.
fn nodes(text: &str, id: &str) -> Option<Vec<String>> {
    let mut rows = text.lines().map(|line| line.trim().splitn(3, '|'));
    rows.find_map(|mut fields| {
        let own = fields.next()? == id;
        let runs = fields.next()? == "RUNNING";
        let nodes = expand(fields.next()?).ok()?;
        (own && runs).then_some(nodes)
    })
}

fn node(name: String, records: &[NodeRecord]) -> Node {
    let states = records.iter().find(|record| record.name == name);
    let states = states.map(|record| &record.states[..]).unwrap_or_default();
    let among = |words: &[&str]| states.iter().find(|state| words.contains(&&state[..]));
    Node {
        lost: among(DOWN).map(|state| format!("it is {state}")),
        drains: among(DRAINS).is_some(),
        has: None,
        name,
    }
}

/// The number of the step in a text of scontrol's that this srun has started: 0 of `17_4.0`.
fn step_of(text: &str, srun: u32) -> Option<u32> {
    let pid = format!(":{srun}");
    let own = text.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.any(|word| word.starts_with("SrunHost:Pid=") && word.ends_with(&pid))
    })?;
    let id = own.trim_start().strip_prefix("StepId=")?;
    let (_, step) = id.split_whitespace().next()?.rsplit_once('.')?;
    step.parse().ok()
}

/// Notes the nodes whose slurmds do not answer. Where slurm.conf cannot be read here nothing is noted.
fn ask_slurmds(nodes: &mut [Node]) {
    let manager = Slurm::new(std::sync::Arc::new(gpuos_host::ThisMachine), "");
    let Ok(addresses) = manager.addresses() else {
        return;
    };
    let silent = Mutex::new(Vec::new());
    let open: Vec<&str> = nodes
        .iter()
        .filter(|node| node.lost.is_none())
        .map(|node| node.name.as_str())
        .collect();
    let (manager, addresses, noted) = (&manager, &*addresses, &silent);
    for some in open.chunks(AT_ONCE) {
        thread::scope(|scope| {
            for name in some {
                scope.spawn(move || {
                    if !answers(manager, addresses, name)
                        && let Ok(mut noted) = noted.lock()
                    {
                        noted.push(name.to_string());
                    }
                });
            }
        });
    }
    let silent = silent.into_inner().unwrap_or_default();
    for node in nodes.iter_mut().filter(|node| silent.contains(&node.name)) {
        node.lost = Some("its slurmd does not answer".into());
    }
}

/// A name without an address says nothing of the node.
fn answers(manager: &Slurm, addresses: &dyn Addresses, name: &str) -> bool {
    let (host, port) = addresses.of(name);
    let found = (host.as_str(), port).to_socket_addrs();
    let Some(address) = found.ok().and_then(|mut all| all.next()) else {
        return true;
    };
    manager.ask_daemon(address, ANSWER) == ManagerAnswer::Answers
}

#[cfg(test)]
mod tests {
    use gpuos_host::Recorded;

    use super::*;

    #[test]
    fn the_program_has_its_share_of_the_tasks() {
        let machine = Recorded {
            env: [("SLURM_JOB_ID".to_string(), "1".to_string())].into(),
            ..Recorded::default()
        };
        let tasks = |of_node, of_script, of_all, nodes| {
            let job = Job {
                target: Target::here(&machine).expect("a job"),
                size: 5,
                spares: 1,
                restarts: 0,
                tasks: Tasks {
                    of_node,
                    of_script,
                    of_all,
                },
            };
            job.tasks(nodes)
        };
        assert_eq!(tasks(Some(2), Some(8), Some(5), 4), Some(8));
        // As they were asked for, and with those of the spares.
        assert_eq!(tasks(None, Some(20), Some(25), 4), Some(20));
        assert_eq!(tasks(None, Some(20), Some(20), 4), Some(16));
        assert_eq!(tasks(None, Some(20), Some(25), 2), Some(10));
        assert_eq!(tasks(None, Some(7), Some(25), 3), None);
        assert_eq!(tasks(None, None, Some(5), 4), None);
    }

    #[test]
    fn the_job_is_found_among_the_tasks_of_its_array() {
        let text = "18|RUNNING|n3\n17|RUNNING|n[1-2]\n19|PENDING|\n20|COMPLETING|n4\n";
        let of = |id| nodes(text, id).map(|nodes| nodes.join(" "));
        assert_eq!(of("17").unwrap(), "n1 n2");
        assert_eq!(of("18").unwrap(), "n3");
        for gone in ["19", "20", "21", "1"] {
            assert_eq!(of(gone), None, "{gone}");
        }
    }

    #[test]
    fn a_step_is_known_by_the_srun_that_started_it() {
        let text = "StepId=17.batch UserId=0 Name=a\n\
                    StepId=17.0 UserId=0 Name=x SrunHost:Pid=n1:412 \n\
                    StepId=17.1 UserId=0 Name=x SrunHost:Pid=n1:41 \n";
        assert_eq!(step_of(text, 41), Some(1));
        assert_eq!(step_of(text, 412), Some(0));
        assert_eq!(step_of(text, 2), None);
    }

    #[test]
    fn nodes_are_lost_or_drain_by_their_states() {
        let text = "NodeName=a State=MIXED\n\nNodeName=b State=DOWN*\n\nNodeName=c State=ALLOCATED+DRAIN\n\n\
                    NodeName=d State=ALLOCATED+NOT_RESPONDING\n";
        let records = NodeRecord::parse_all(text);
        let of = |name: &str| {
            let node = node(name.into(), &records);
            (node.lost.is_some(), node.drains)
        };
        assert_eq!(of("a"), (false, false));
        assert_eq!(of("b"), (true, false));
        assert_eq!(of("c"), (false, true));
        assert_eq!(of("d"), (true, false));
    }
}
