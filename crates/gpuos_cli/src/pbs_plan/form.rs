//! What a job is to be on PBS, by the options of `gpuos plan` and `gpuos mig plan`.

use anyhow::{Result, bail};
use gpuos_config::options::placement_text;
use gpuos_pbs::pass::what_if::Asked;
use gpuos_placement::mig::MigRequest;

use crate::cli::{Gpus, MigPlanArgs, PlanArgs};

/// What a job asks for, by its chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Form {
    /// Its chunks.
    pub chunks: Chunks,
    /// `-l place=`; empty: none.
    pub place: String,
    /// Its queue; empty: the one for jobs that name none.
    pub queue: String,
    /// `gpuos_topology`, without `:required`.
    pub level: Option<String>,
    /// Whether the level is required.
    pub is_required: bool,
    /// `gpuos_placement`.
    pub placement: Option<String>,
    /// Its time limit.
    pub walltime: Option<String>,
    /// `gpuos_mem`.
    pub memory: Option<String>,
    /// `gpuos_mig`.
    pub slices: Option<String>,
}

/// The chunks of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunks {
    /// As the user wrote them.
    Written(String),
    Alike {
        count: u32,
        gpus: u32,
        cpus: u32,
        /// Of each; 0: nothing is said.
        mib: u64,
        /// The option that says how many there are, and that which says how many GPUs each has.
        options: (&'static str, &'static str),
    },
}

/// Options of sbatch that say nothing on PBS, whether they are given, and what to do instead.
fn of_slurm_alone(args: &PlanArgs) -> [(&'static str, bool, &'static str); 17] {
    let typed = |gpus: &Option<Gpus>| gpus.as_ref().is_some_and(|g| g.gres_type.is_some());
    let types = typed(&args.gpus) || typed(&args.gpus_per_node) || typed(&args.gpus_per_task);
    let leave = "leave it out";
    let chunk =
        "write what the vnodes must have into --select, for example --select=1:ngpus=4:NAME=VALUE";
    let whole = "write all GPUs of the nodes, for example --gpus-per-node=8";
    [
        (
            "--gpus-per-socket",
            args.gpus_per_socket.is_some(),
            "write --gpus-per-node, or --select",
        ),
        (
            "--gres",
            args.gres.is_some(),
            "write --gpus-per-node, or --select",
        ),
        ("a type of GPUs", types, chunk),
        ("--type", args.gpu_type.is_some(), chunk),
        ("--constraint", args.constraint.is_some(), chunk),
        (
            "--nodelist",
            args.nodelist.is_some(),
            "write the host into --select, for example --select=1:ngpus=4:host=NAME",
        ),
        ("--exclude", args.exclude.is_some(), leave),
        ("--exclusive", args.exclusive, whole),
        ("--alone", args.alone.is_some(), whole),
        ("--class", args.class.is_some(), leave),
        ("--account", !args.account.is_empty(), leave),
        ("--qos", !args.qos.is_empty(), leave),
        ("--profile", args.profile.is_some(), leave),
        ("--objectives", args.objectives.is_some(), leave),
        (
            "--defrag",
            args.defrag,
            "jobs of PBS are not moved to make room",
        ),
        (
            "several queues in --partition",
            args.partition.len() > 1,
            "name one",
        ),
        (
            "--ntasks without --gpus-per-task",
            args.ntasks.is_some() && args.gpus_per_task.is_none(),
            "write --cpus-per-gpu, or chunks with --select",
        ),
    ]
}

/// Refuses the first of these options that is given.
fn refuse_alien(options: &[(&str, bool, &str)]) -> Result<()> {
    match options.iter().find(|(_, given, _)| *given) {
        Some((option, _, instead)) => bail!("{option}: PBS has nothing of it; {instead}"),
        None => Ok(()),
    }
}

impl Form {
    /// What the options say.
    ///
    /// # Errors
    /// One of them has no meaning on PBS, or they have none together: a sentence with the option.
    pub fn of(args: &PlanArgs) -> Result<Form> {
        refuse_alien(&of_slurm_alone(args))?;
        let (chunks, place) = match &args.select {
            Some(select) => {
                only_select(args)?;
                let place = args.place.clone().unwrap_or_default();
                (Chunks::Written(select.clone()), place)
            }
            None => chunks(args)?,
        };
        let wish = args.topology.as_ref();
        Ok(Form {
            chunks,
            place,
            queue: args.partition.first().cloned().unwrap_or_default(),
            level: wish.map(|wish| wish.level.clone()),
            is_required: wish.is_some_and(|wish| wish.required),
            placement: args.placement.as_ref().map(placement_text),
            walltime: args.walltime.clone(),
            memory: args.gpu_mem.map(|asked| asked.to_string()),
            slices: args.mig.as_ref().map(MigRequest::to_string),
        })
    }

    /// What `gpuos mig plan` is asked.
    ///
    /// # Errors
    /// An option has no meaning on PBS: a sentence with it.
    pub fn of_slices(args: &MigPlanArgs) -> Result<Form> {
        let names: Vec<String> = args.only.iter().flat_map(|hosts| hosts.0.clone()).collect();
        let leave = "leave it out";
        let alien = [
            ("--constraint", args.constraint.is_some(), leave),
            ("--exclude", args.exclude.is_some(), leave),
            ("--check", args.check, "run `gpuos mig` on the host"),
            (
                "--defrag",
                args.defrag,
                "jobs of PBS are not moved to make room",
            ),
            (
                "several queues in --partition",
                args.partition.len() > 1,
                "name one",
            ),
            ("several nodes", names.len() > 1, "name one, or none"),
        ];
        refuse_alien(&alien)?;
        let host = names.first().map(|name| format!(":host={name}"));
        let memory = args.mem.map(|mib| format!(":mem={mib}mb"));
        let select = format!(
            "{}:ncpus={}{}{}",
            args.nodes,
            args.ntasks_per_node.saturating_mul(args.cpus_per_task),
            memory.unwrap_or_default(),
            host.unwrap_or_default()
        );
        Ok(Form {
            chunks: Chunks::Written(select),
            place: if args.nodes > 1 { "scatter" } else { "" }.into(),
            queue: args.partition.first().cloned().unwrap_or_default(),
            level: None,
            is_required: false,
            placement: None,
            walltime: None,
            memory: None,
            slices: Some(args.request.to_string()),
        })
    }

    pub fn asked(&self) -> Asked {
        let level = self.level.as_ref().map(|level| match self.is_required {
            true => format!("{level}:required"),
            false => level.clone(),
        });
        let said = [
            ("gpuos_topology", level),
            ("gpuos_placement", self.placement.clone()),
            ("walltime", self.walltime.clone()),
            ("gpuos_mem", self.memory.clone()),
            ("gpuos_mig", self.slices.clone()),
        ];
        let resources = said.into_iter();
        Asked {
            select: self.chunks.select(),
            place: self.place.clone(),
            resources: resources
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect(),
            queue: self.queue.clone(),
        }
    }
}

/// Refuses what says again, or otherwise, what stands in `--select`.
fn only_select(args: &PlanArgs) -> Result<()> {
    let others = [
        ("--nodes", args.nodes.is_some()),
        ("--cpus-per-task", args.cpus_per_task != 1),
        ("--cpus-per-gpu", args.cpus_per_gpu != 0),
        ("--mem", args.mem.is_some()),
    ];
    match others.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!(
            "{option} beside --select: a chunk says itself what it takes; write it there, as in --select=2:ngpus=4:ncpus=8:mem=64gb, and hosts \
             as --place=scatter"
        ),
        None => Ok(()),
    }
}

/// Chunks and place of a job by the options that Slurm has too.
fn chunks(args: &PlanArgs) -> Result<(Chunks, String)> {
    let nodes = args.nodes;
    let one = nodes.is_some_and(|nodes| nodes.max == 1);
    let exactly = nodes.filter(|nodes| nodes.min == nodes.max).map(|n| n.min);
    let ranges = "PBS has no number of hosts between two others: write one number, or chunks with --select and --place";
    let cpus = |tasks: u32, gpus: u32| {
        let of_gpus = args.cpus_per_gpu.saturating_mul(gpus);
        args.cpus_per_task.saturating_mul(tasks).max(of_gpus)
    };
    if let Some(gpus) = &args.gpus_per_task {
        let tasks = args.ntasks.unwrap_or(1);
        let place = match nodes {
            None => "",
            Some(_) if one => "pack",
            Some(nodes) if nodes.min == 1 && nodes.max >= tasks => "",
            Some(_) if exactly == Some(tasks) => "scatter",
            Some(_) => bail!(
                "--nodes with --gpus-per-task: on PBS tasks are on one host, on a host each, or spread freely; write --nodes=1, --nodes={tasks}, or \
                 leave it out"
            ),
        };
        let mib = match (args.mem, place) {
            (None, _) => 0,
            (Some(mib), "pack") => mib.div_ceil(tasks.into()),
            (Some(mib), "scatter") => mib,
            (Some(_), _) => bail!(
                "--mem is memory of a node, and tasks are spread freely: write mem= into --select"
            ),
        };
        let chunks = Chunks::Alike {
            count: tasks,
            gpus: gpus.count,
            cpus: cpus(1, gpus.count),
            mib,
            options: ("--ntasks", "--gpus-per-task"),
        };
        return Ok((chunks, place.into()));
    }
    let of_nodes = |count: u32, gpus: u32, options| {
        let chunks = Chunks::Alike {
            count,
            gpus,
            cpus: cpus(1, gpus),
            mib: args.mem.unwrap_or(0),
            options,
        };
        let place = if count > 1 { "scatter" } else { "" };
        (chunks, place.to_owned())
    };
    if let Some(gpus) = &args.gpus_per_node {
        let count = match (nodes, exactly) {
            (None, _) => 1,
            (_, Some(count)) => count,
            (Some(nodes), None) => bail!("--nodes={}-{}: {ranges}", nodes.min, nodes.max),
        };
        return Ok(of_nodes(count, gpus.count, ("--nodes", "--gpus-per-node")));
    }
    let total = args.gpus.as_ref().map_or(0, |gpus| gpus.count);
    match (nodes, exactly) {
        (_, Some(count)) if total.is_multiple_of(count) => {
            Ok(of_nodes(count, total / count, ("--nodes", "--gpus")))
        }
        (_, Some(count)) => bail!(
            "--gpus={total} with --nodes={count}: chunks of a job of PBS are alike here; write a number of GPUs that {count} divides"
        ),
        (Some(nodes), None) if nodes.min > 1 || nodes.max < total => {
            bail!("--nodes={}-{}: {ranges}", nodes.min, nodes.max)
        }
        _ => {
            if total > 1 && (args.mem.is_some() || args.cpus_per_task != 1) {
                let option = if args.mem.is_some() {
                    "--mem"
                } else {
                    "--cpus-per-task"
                };
                bail!(
                    "{option} with --gpus and without --nodes: it is not known on how many hosts the GPUs are; write --cpus-per-gpu, or mem= into \
                     --select"
                );
            }
            let chunks = Chunks::Alike {
                count: total.max(1),
                gpus: total.min(1),
                cpus: cpus(1, 1),
                mib: args.mem.unwrap_or(0),
                options: ("--gpus", ""),
            };
            Ok((chunks, String::new()))
        }
    }
}

impl Chunks {
    fn select(&self) -> String {
        match self {
            Chunks::Written(select) => select.clone(),
            Chunks::Alike {
                count,
                gpus,
                cpus,
                mib,
                ..
            } => {
                let memory = match mib {
                    0 => String::new(),
                    mib => format!(":mem={mib}mb"),
                };
                let gpus = match gpus {
                    0 => String::new(),
                    gpus => format!("ngpus={gpus}:"),
                };
                format!("{count}:{gpus}ncpus={cpus}{memory}")
            }
        }
    }

    /// The same job with less: the options to give, the chunks, and how many GPUs it has less. Those that lose least come first.
    pub fn fewer(&self) -> Vec<(String, Chunks, u32)> {
        let Chunks::Alike {
            count,
            gpus,
            cpus,
            mib,
            options: (counted, each),
        } = *self
        else {
            return Vec::new();
        };
        let with = |count: u32, gpus: u32| Chunks::Alike {
            count,
            gpus,
            cpus,
            mib,
            options: (counted, each),
        };
        let mut all: Vec<(String, Chunks, u32)> = Vec::new();
        for less in (1..count).rev() {
            let option = match (counted, each) {
                // All GPUs are said in one number, which has to go on being divided.
                ("--nodes", "--gpus") => format!("--nodes={less} --gpus={}", less * gpus),
                _ => format!("{counted}={less}"),
            };
            all.push((option, with(less, gpus), (count - less) * gpus));
        }
        for less in (1..gpus).rev().filter(|_| !each.is_empty()) {
            let option = match each {
                "--gpus" => format!("--gpus={}", less * count),
                each => format!("{each}={less}"),
            };
            all.push((option, with(count, less), (gpus - less) * count));
        }
        all.sort_by_key(|(_, _, fewer)| *fewer);
        all
    }
}
