//! The options that users give (`--gpuos-…`), and the GRES strings that Slurm gives.
//!
//! One table, [`OPTIONS`], says what there is: `sbatch --help`, the man page and the checks
//! come from it. All of it is user input, also where slurmctld hands it over: lengths are
//! bounded, names are ASCII, and every refusal is a sentence.
use std::fmt;

use gpuos_core::limits::{ClockRange, PowerCap, Share};
use gpuos_model::hostlist::shorten;
use gpuos_model::words::{check_value, not_understood};
use gpuos_placement::cost::{Grant, Profile};
use gpuos_placement::gang::{GroupShape, SHAPE_FORM};
use gpuos_placement::mig::MigRequest;
use gpuos_placement::plan::{Placement, TopologyRequest};

mod checkpoint;
pub mod environment;
pub mod given;
pub mod gres;
pub mod handover;
mod limits;
mod memory;
mod mig;
pub mod refusals;
mod share;
pub(crate) mod size;
mod source;
mod spares;

pub use checkpoint::{
    CheckpointOption, Drain, Every, MOST_EVERY, MOST_LOST, Restart, parse_checkpoint, parse_restart,
};
pub(crate) use gres::check_name as check_gres_name;
pub use gres::{GresRequest, parse_count, parse_gpus, parse_gres};
pub use limits::{parse_clocks, parse_mps, parse_power, parse_share, parse_watch};
pub use memory::{MemoryOption, MemoryPolicy, MemoryTiers, parse_memory};
pub use mig::{MAX_KINDS, parse_mig};
use share::check_target;
pub use share::{is_exclusive, parse_class, parse_exclusive};
pub use source::{Inherited, SOURCES, Source, Sources, is_off};
pub use spares::parse_spares;

/// How the names of gpuos options start in a job's `spank_job_env`: Slurm's prefix and the
/// name of the SPANK plugin.
pub const PREFIX: &str = "_SLURM_SPANK_OPTION_gpuos_";

/// The most names in an affinity rule.
pub const MAX_NAMES: usize = 16;

const TOPOLOGY_FORM: &str = "LEVEL, LEVEL:required or LEVEL:preferred";
const PLACEMENT_FORM: &str = "default, pack, spread, best-fit, frag, backfill, first-fit, affinity:NAME[,NAME...] or anti-affinity:NAME[,NAME...]";
const SWITCH_FORM: &str = "on or off";
const PROFILE_FORM: &str = "compute, memory, communication or io";

/// An option of sbatch, salloc and srun that gpuos adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHelp {
    /// Name without the leading dashes.
    pub name: &'static str,
    /// Form of the argument, for `--help`.
    pub argument: &'static str,
    /// Environment variable that gives the default; the option wins, and `off` undoes it.
    pub environment: &'static str,
    /// One line for `--help`.
    pub summary: &'static str,
    /// A paragraph for the man page.
    pub details: &'static str,
    /// Whether gpuosd has to know of a job that has it also where the job has no GPUs.
    pub without_gpus: bool,
}

/// All options, in the order in which help shows them.
pub const OPTIONS: &[OptionHelp] = &[
    OptionHelp {
        name: "gpuos-topology",
        argument: "LEVEL[:required]",
        environment: "GPUOS_TOPOLOGY",
        summary: "keep the job's GPUs within one domain of LEVEL (node, nvlink, leaf, ...)",
        details: "LEVEL is node, nvlink, a level of the cluster's fabric (gpuos topo lists them: \
                  leaf, spine, block, ...) or any. Preferred is the default: the job starts \
                  farther apart when no domain has room. With :required it stays pending \
                  until one has, and squeue shows the reason. off undoes this option and every \
                  other one but --gpuos: a default of the environment and a line of the script. \
                  What is about GPUs is ignored for a job without any, with a word to its user.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-placement",
        argument: "RULE",
        environment: "GPUOS_PLACEMENT",
        summary: "best-fit, frag, backfill, pack, spread, first-fit, [anti-]affinity:A[,..]",
        details: "Which of several equally close places is taken. default takes the one that \
                  leaves the most useful GPUs for the next jobs: by the usual mix of jobs, as \
                  frag does, where it is known, else as best-fit does, with all sizes equally \
                  likely. backfill is default, and of the nodes of a leaf takes the one where other \
                  jobs last as long by their time limits. pack takes the fewest and fullest nodes, spread the emptiest, \
                  first-fit the lowest. affinity:A,B goes near the \
                  nodes that run the named jobs or users, anti-affinity:A,B away from them. \
                  class=NAME stands for the jobs of a class, switch=NAME or LEVEL=NAME (leaf=l1, \
                  rack=r7) for a domain of the fabric, power=NAME for a power domain of \
                  gpuos.toml. Up to 16 names.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos",
        argument: "on|off",
        environment: "GPUOS",
        summary: "off: let Slurm place this job as it would without gpuos",
        details: "With off, Slurm alone chooses nodes and GPUs of this job. on is the default.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-shape",
        argument: "GROUPS",
        environment: "GPUOS_SHAPE",
        summary: "groups of a training job, such as tp8:pp4:dp16 (tp, cp, pp, dp, ep)",
        details: "Sizes of the job's groups: tensor (tp), context (cp), pipeline (pp), data (dp) \
                  and expert parallel (ep), each once, in the order in which the program numbers \
                  its ranks, the fastest first. Their product, without ep, is the number of GPUs; \
                  ep is a part of cp times dp. The job finds the order of nodes and ranks that \
                  keeps tensor groups in NVLink and pipelines under one switch in the file \
                  $GPUOS_RANK_FILE, which mpirun --rankfile reads.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-profile",
        argument: "PROFILE",
        environment: "GPUOS_PROFILE",
        summary: "what limits the job: compute, memory, communication or io",
        details: "What the job's time goes with: the GPUs' arithmetic, their memory bandwidth, the \
                  links between GPUs, or files and the host. Where nodes of several types are \
                  free, those are taken first that suit it best by the objectives of the \
                  partition or QOS, or by speed where there are none; the job waits for none.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-class",
        argument: "NAME",
        environment: "GPUOS_CLASS",
        summary: "what kind of job this is, for rules such as never beside noisy",
        details: "The rules of the site ([[rule]] in gpuos.toml) and affinity:class=NAME go by \
                  it. Where gpuos.toml describes classes, only these can be named, and a job \
                  that names none may get one by its partition, account or user.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-exclusive",
        argument: "LEVEL",
        environment: "GPUOS_EXCLUSIVE",
        summary: "no other GPU job in the same domain of LEVEL (node, nvlink, leaf, ...)",
        details: "The job starts only in domains of LEVEL where no other job has GPUs, and while \
                  it runs no job with GPUs joins it there. It waits until such a domain is \
                  free, and squeue shows the reason. Jobs without GPUs are not kept out.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-power",
        argument: "WATTS|SHARE",
        environment: "GPUOS_POWER",
        summary: "cap the power of each of the job's GPUs, such as 300W or 80% of the usual",
        details: "From the job's first step to its end each of its GPUs has this power limit, and then the \
                  one that it had before. A share is that of the board's default limit. What the board \
                  does not take is moved to the nearest that it does. GPUs that the job shares with \
                  others keep their limit. gpuosd does it, and the job's standard error says what was \
                  moved, with the board's range, and what could not be done. srun --gpuos-power=off in a \
                  job undoes it for the step.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-clocks",
        argument: "MHZ[-MHZ]",
        environment: "GPUOS_CLOCKS",
        summary: "lock the clocks of the job's GPUs to 1200 MHz, or to a range 1200-1500",
        details: "The clocks of the multiprocessors stay in this range from the job's first step to its \
                  end, as far as power and heat allow. Else as --gpuos-power.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-watch",
        argument: "on|off|MINUTES",
        environment: "GPUOS_WATCH",
        summary: "this job computes all the time: act when none of its GPUs does for MINUTES",
        details: "When no GPU of the job on a node has computed for that long, gpuosd does what the health \
                  rule hang says: by default the job is requeued, and its GPUs are checked before they \
                  get another one. on stands for the time in the rule, 10 minutes by default. The \
                  time in which a job reads its data counts too.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-mps",
        argument: "on|off|SHARE",
        environment: "GPUOS_MPS",
        summary: "NVIDIA's MPS for the job: its processes share GPUs; 50%: of the threads each",
        details: "gpuosd starts an MPS daemon for the job on each of its nodes, as its user, and ends it with \
                  the job. SHARE limits what part of a GPU's threads each process may use; on does not. \
                  Processes of one job only share, with address spaces of their own (Volta and later), but \
                  a fatal fault of one ends all of the job on that GPU. Memory is not limited. Not on GPUs \
                  that are shared with other jobs, and not in MIG instances. Where MPS cannot be started, \
                  the job's standard error says so and the job runs without.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-mig",
        argument: "SLICES",
        environment: "GPUOS_MIG",
        summary: "slices of GPUs on each node: 3g.40gb, 1g.10gb:2,3g.40gb, 10G, 1/2",
        details: "MIG instances, made for the job and destroyed after it: a profile (3g.40gb), memory \
                  (10G, 10Gi) or a part of a GPU (1/2), of which the smallest profile that has it is \
                  taken; +me adds the media engines, :COUNT says how many, a comma separates several kinds, and \
                  :per-task at the end gives each task its own. Without :per-task it is for each \
                  node. A CUDA process uses one slice: for three processes write \
                  1g.10gb:per-task and --ntasks-per-node=3. sbatch says what was chosen. The job finds its instances in \
                  CUDA_VISIBLE_DEVICES and GPUOS_MIG_UUIDS. Not about the place: goes with --gpuos=off.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-share",
        argument: "WAY",
        environment: "GPUOS_SHARE",
        summary: "a part of one GPU on each node: timeslice[:N][,mem=SIZE[,park=nvme]], mps:25%",
        details: "timeslice: the GPU's jobs take turns, N (1) is how many of its shards the job counts as. \
                  With mem=SIZE, where the site allows it, they take turns with its memory too: each job has SIZE of it while it is its turn, \
                  and as much of the host's, which sbatch adds to --mem, while it is another's; programs are not changed. \
                  With park=nvme it is on NVMe meanwhile, which Slurm counts where the site has it, and nothing is added to --mem. \
                  mps:SHARE: under an MPS daemon with the user's other jobs on that GPU, with that \
                  share of its threads, counted in shards too. Without mem= nothing limits what others take of \
                  the GPU's memory; sbatch says what is kept apart and what is not. Where that is \
                  too little, --gpuos-mig. Not with other GPUs in the same job, --exclusive, \
                  --gpuos-mig, --gpuos-mps, --gpuos-power or --gpuos-clocks. Goes with --gpuos=off.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-checkpoint",
        argument: "TIME[,l0=SIZE][,l2=SCHEME][,l3=WHICH]",
        environment: "GPUOS_CHECKPOINT",
        summary: "checkpoints of the job on its nodes, every 10m or as often as it pays: auto",
        details: "The program writes its state into a folder when it is asked to, and finds it there when the job \
                  starts again: $GPUOS_CHECKPOINT_DIR. TIME is auto or a time such as 30s, 10m or 2h. \
                  With SIZE, such as 16G, the folder lies in so much memory of each node at most, which is the \
                  job's own and counts in --mem, and is stored from there while the program goes on. \
                  SCHEME says what the job's nodes keep for each other, so that a checkpoint outlives lost nodes: \
                  single nothing, partner a copy on another node, xor:N one parity shard in sets of N \
                  nodes, rs:K+M M of them in sets of K+M; without it the site decides. WHICH is every:N, one of N \
                  checkpoints is copied to the site's parallel file system, or off. For the whole job, its steps \
                  included, and without GPUs too. sbatch --requeue has Slurm start the job again after a \
                  node has failed. Goes with --gpuos=off.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-restart",
        argument: "auto|new|no|JOB[/N]",
        environment: "GPUOS_RESTART",
        summary: "from which checkpoint the job begins: of an earlier job: 1234, 1234/7; new; no",
        details: "auto: from its own newest checkpoint when it starts again; where one was made and cannot be found, the program is told \
                  so and does not begin anew. new: as auto, and from the start where none can be restored. JOB, the number of an earlier job of \
                  the same user, which has ended: from its newest checkpoint, or from its checkpoint N, as long as \
                  the new job has none itself. On any number of nodes, with another number of ranks only where the \
                  program can do that, and only with --gpuos-checkpoint. Where the checkpoint cannot be had, the program is told so and does not begin anew. \
                  no: from the start, in each of its runs; what it has is kept until newer ones take its place. \
                  Goes with --gpuos=off.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-spares",
        argument: "N",
        environment: "GPUOS_SPARES",
        summary: "N nodes more than --nodes says, for when the program loses some: see gpuos run",
        details: "The job gets N nodes more, and goes on when Slurm finds one of its nodes down. gpuos run in the batch \
                  script runs the program on as many nodes as --nodes says and, when one of them is lost, starts it \
                  again on those that are left and a spare one, from the newest checkpoint. Needs --gpuos-checkpoint \
                  and --nodes. Tasks and CPUs are those of --nodes, and more for the spares; GPUs are given \
                  for each node or task. Not with --gpuos-shape, heterogeneous jobs or srun. Goes with --gpuos=off.",
        without_gpus: false,
    },
    OptionHelp {
        name: "gpuos-mem",
        argument: "SIZE[,tiers=TIERS][,policy=POLICY]",
        environment: "GPUOS_MEM",
        summary: "memory for each GPU, more than it has: 120G; the rest lies in the host's memory",
        details: "CUDA programs of the job see SIZE as the memory of each of its GPUs. What the GPU has no room for lies in \
                  memory of the host, which the GPU reads in place, and moves between the two as the program uses it. \
                  That host memory is the job's: it is added to --mem or --mem-per-gpu at submission, and sbatch says how much. \
                  TIERS is hbm+dram, or hbm for a limit within the GPU's memory. POLICY decides what leaves the GPU: gpuos, \
                  lru, clock, 2q or arc. Programs need no change; how much slower one gets depends on what it touches: \
                  gpuos plan --gpuos-mem tells. Steps have what their job has, or less: srun --gpuos-mem. Whole GPUs only: not with \
                  --gpuos-mig, --gpuos-mps or --gpuos-share. Goes with --gpuos=off.",
        without_gpus: false,
    },
];

/// Why the value of an option is refused. Displays as one sentence that names the option,
/// what was given and what is accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionError {
    /// The option as the user writes it, for example `--gpuos-topology`.
    pub option: String,
    /// The value given, shortened.
    pub given: String,
    /// What is wrong with it.
    pub reason: String,
    /// The accepted form.
    pub accepted: String,
    /// Where the value came from.
    pub source: Source,
}

impl OptionError {
    /// An error about `given`, which is shortened to what fits into one line.
    pub fn new(option: &str, given: &str, reason: &str, accepted: &str) -> OptionError {
        OptionError {
            option: option.into(),
            given: shorten(given),
            reason: reason.into(),
            accepted: accepted.into(),
            source: Source::Flag,
        }
    }

    /// The same about a value that came from there.
    pub fn came_from(self, source: Source) -> OptionError {
        OptionError { source, ..self }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OptionError {
            option,
            given,
            reason,
            accepted,
            source,
        } = self;
        let given = source.named(option, given);
        write!(f, "{given}: {reason}; write {accepted}")?;
        match source {
            Source::Environment if option != "--gpuos" => {
                write!(f, "; {option}=off undoes it for one job")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for OptionError {}

/// Reads the value of `--gpuos-topology`. Level names become lower case.
pub fn parse_topology(value: &str) -> Result<TopologyRequest, OptionError> {
    topology_of("--gpuos-topology", value)
}

/// [`parse_topology`] for a value that was given in another place, which the error names.
pub(crate) fn topology_of(option: &str, value: &str) -> Result<TopologyRequest, OptionError> {
    TopologyRequest::parse(value)
        .map_err(|reason| OptionError::new(option, value, &reason, TOPOLOGY_FORM))
}

/// Reads the value of `--gpuos-placement`.
pub fn parse_placement(value: &str) -> Result<Placement, OptionError> {
    placement_of("--gpuos-placement", value)
}

/// [`parse_placement`] for a value that was given in another place, which the error names.
pub(crate) fn placement_of(option: &str, value: &str) -> Result<Placement, OptionError> {
    let error = |reason: &str| OptionError::new(option, value, reason, PLACEMENT_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    let (rule, names) = match value.split_once(':') {
        Some((rule, names)) => (rule, Some(names)),
        None => (value, None),
    };
    let rule = rule.to_ascii_lowercase();
    let near = match (rule.as_str(), names) {
        ("pack", None) => return Ok(Placement::Pack),
        ("spread", None) => return Ok(Placement::Spread),
        ("best-fit", None) => return Ok(Placement::BestFit),
        ("backfill", None) => return Ok(Placement::Backfill),
        ("frag", None) => return Ok(Placement::Frag),
        ("first-fit", None) => return Ok(Placement::FirstFit),
        ("default", None) => return Ok(Placement::Default),
        ("affinity", _) => true,
        ("anti-affinity", _) => false,
        (
            "pack" | "spread" | "best-fit" | "frag" | "backfill" | "first-fit" | "default",
            Some(_),
        ) => {
            return Err(error(&format!("'{rule}' takes no names")));
        }
        _ => return Err(error(&not_understood(&rule))),
    };
    let names: Vec<&str> = names.unwrap_or_default().split(',').collect();
    if names.len() > MAX_NAMES {
        return Err(error(&format!("more than {MAX_NAMES} names")));
    }
    for name in &names {
        check_target(name).map_err(|reason| error(&reason))?;
    }
    let names = names.into_iter().map(String::from).collect();
    Ok(match near {
        true => Placement::Affinity(names),
        false => Placement::AntiAffinity(names),
    })
}

/// Reads the value of `--gpuos`: whether gpuos places the job (`on`) or Slurm alone (`off`).
pub fn parse_switch(value: &str) -> Result<bool, OptionError> {
    match value.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(OptionError::new(
            "--gpuos",
            value,
            &not_understood(value),
            SWITCH_FORM,
        )),
    }
}

/// Reads the value of `--gpuos-shape`.
pub fn parse_shape(value: &str) -> Result<GroupShape, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-shape", value, reason, SHAPE_FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    GroupShape::parse(value).map_err(|reason| error(&reason))
}

/// Reads the value of `--gpuos-profile`.
pub fn parse_profile(value: &str) -> Result<Profile, OptionError> {
    let error = |_| {
        let reason = not_understood(value);
        OptionError::new("--gpuos-profile", value, &reason, PROFILE_FORM)
    };
    value.parse().map_err(error)
}

/// The rule as [`parse_placement`] reads it.
pub fn placement_text(placement: &Placement) -> String {
    match placement {
        Placement::Default => "default".into(),
        Placement::BestFit => "best-fit".into(),
        Placement::Frag => "frag".into(),
        Placement::Backfill => "backfill".into(),
        Placement::FirstFit => "first-fit".into(),
        Placement::Pack => "pack".into(),
        Placement::Spread => "spread".into(),
        Placement::Affinity(names) => format!("affinity:{}", names.join(",")),
        Placement::AntiAffinity(names) => format!("anti-affinity:{}", names.join(",")),
    }
}

/// What a job says to gpuos.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobOptions {
    /// Slurm alone places the job.
    pub off: bool,
    /// Wished or required closeness.
    pub topology: Option<TopologyRequest>,
    /// Rule among equally close places.
    pub placement: Option<Placement>,
    /// Groups of a training job.
    pub shape: Option<GroupShape>,
    /// What limits the job.
    pub profile: Option<Profile>,
    /// What kind of job it is.
    pub class: Option<String>,
    /// The level whose domains it wants to itself.
    pub exclusive: Option<String>,
    /// Power cap of its GPUs.
    pub power: Option<PowerCap>,
    /// Clocks of its GPUs.
    pub clocks: Option<ClockRange>,
    /// Seconds without work after which it counts as hung; 0 = what the rule says.
    pub watch_s: Option<u32>,
    /// MPS, with this percentage of a GPU's threads for each process.
    pub mps: Option<u8>,
    /// Slices of GPUs.
    pub mig: Option<MigRequest>,
    /// A part of a GPU beside other jobs.
    pub share: Option<Share>,
    /// Checkpoints.
    pub checkpoint: Option<CheckpointOption>,
    /// From which checkpoint the job begins.
    pub restart: Option<Restart>,
    /// Spare nodes.
    pub spares: Option<u16>,
    /// Memory for each GPU.
    pub memory: Option<MemoryOption>,
}

impl JobOptions {
    /// Whether something of it says where the job is to be.
    pub fn asks_for_place(&self) -> bool {
        self.topology.is_some()
            || self.placement.is_some()
            || self.shape.is_some()
            || self.exclusive.is_some()
    }

    /// Sets one option by its name in [`OPTIONS`] (`-` and `_` count as the same); `off` clears any but the switch.
    ///
    /// # Errors
    /// The value is not accepted, or there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let name = name.replace('_', "-");
        let known = name != "gpuos" && OPTIONS.iter().any(|option| option.name == name);
        self.set_value(&name, value).map_err(|error| match known {
            true => OptionError {
                accepted: format!("{}, or off", error.accepted),
                ..error
            },
            false => error,
        })
    }

    fn set_value(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let asked = Some(value).filter(|value| !is_off(value));
        match name {
            "gpuos-topology" => self.topology = asked.map(parse_topology).transpose()?,
            "gpuos-placement" => self.placement = asked.map(parse_placement).transpose()?,
            "gpuos-shape" => self.shape = asked.map(parse_shape).transpose()?,
            "gpuos-profile" => self.profile = asked.map(parse_profile).transpose()?,
            "gpuos-class" => self.class = asked.map(parse_class).transpose()?,
            "gpuos-exclusive" => self.exclusive = asked.map(parse_exclusive).transpose()?,
            "gpuos-power" => self.power = asked.map(parse_power).transpose()?,
            "gpuos-clocks" => self.clocks = asked.map(parse_clocks).transpose()?,
            "gpuos-watch" => self.watch_s = asked.map(parse_watch).transpose()?,
            "gpuos-mps" => self.mps = asked.map(parse_mps).transpose()?,
            "gpuos-mig" => self.mig = asked.map(parse_mig).transpose()?,
            "gpuos-share" => self.share = asked.map(parse_share).transpose()?,
            "gpuos-checkpoint" => self.checkpoint = asked.map(parse_checkpoint).transpose()?,
            "gpuos-restart" => self.restart = asked.map(parse_restart).transpose()?,
            "gpuos-spares" => self.spares = asked.map(parse_spares).transpose()?,
            "gpuos-mem" => self.memory = asked.map(parse_memory).transpose()?,
            "gpuos" => self.off = !parse_switch(value)?,
            other => {
                let known: Vec<String> = OPTIONS.iter().map(|o| format!("--{}", o.name)).collect();
                return Err(OptionError::new(
                    &format!("--{}", shorten(other)),
                    value,
                    "gpuos on this cluster has no such option",
                    &known.join(", "),
                ));
            }
        }
        Ok(())
    }

    /// Reads a job's `spank_job_env`: entries `NAME=VALUE`; those of others are skipped.
    ///
    /// # Errors
    /// As [`JobOptions::set`]; the first error ends the reading.
    pub fn from_spank_env<'a>(
        entries: impl Iterator<Item = &'a str>,
    ) -> Result<JobOptions, OptionError> {
        let mut options = JobOptions::default();
        for entry in entries {
            if let Some(option) = entry.strip_prefix(PREFIX) {
                let (name, value) = option.split_once('=').unwrap_or((option, ""));
                options.set(name, value)?;
            }
        }
        Ok(options)
    }

    /// Whether programs of the job may come to have memory of the host in place of a GPU's: in tiers, or while it is another job's turn.
    pub fn needs_host_memory(&self) -> bool {
        let tiers = self.memory.is_some_and(|memory| memory.tiers.has_host());
        let parks = |share: Share| share.in_turns_mib().is_some() && share.nvme_gib() == 0;
        tiers || self.share.is_some_and(parks)
    }

    /// [`MemoryOption::grant`], if the job has one.
    pub fn grant(&self, reserve_mib: u32) -> Grant {
        let grant = |memory: MemoryOption| memory.grant(reserve_mib);
        self.memory.map(grant).unwrap_or_default()
    }

    /// Whether the job says nothing at all.
    pub fn is_default(&self) -> bool {
        *self == JobOptions::default()
    }
}

#[cfg(test)]
mod tests;
