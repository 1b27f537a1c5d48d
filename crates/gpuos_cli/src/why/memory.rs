//! What of a job's memory its GPUs take of the host: by `--gpuos-mem`, or as a place for what is parked while others have the GPU.
//!
//! Slurm's record has one number for all of it. Which part of it is the GPUs' follows from the option as Slurm shows it and from gpuos.toml; where
//! one of them does not say it, nothing is said.

use gpuos_config::options::{JobOptions, MemoryOption};
use gpuos_core::limits::Share;
use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_placement::plan::GpuShape;
use serde_json::{Value, json};

use super::{Answer, requeue};
use crate::plan_memory::{Split, gib, split, split_of_running};
use crate::table::count;

/// The options of a job that give it memory, and where they stand.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    memory: Option<MemoryOption>,
    share: Option<Share>,
    /// In its batch script.
    in_script: bool,
    /// sbatch's command line, which counts more than the script, is not known.
    is_line_unknown: bool,
}

/// What a waiting job's GPUs take of the memory that it asks for.
pub struct Taken {
    text: String,
    json: Value,
    /// MiB of each node's memory, where it is known how many GPUs are counted.
    mib: Option<u64>,
}

impl Asked {
    /// Of a submit line, or of a batch script where the line has none of them.
    pub fn new(job: &Job, line: &JobOptions, script: &JobOptions) -> Asked {
        let is_said = |options: &JobOptions| options.memory.is_some() || options.share.is_some();
        let in_script = !is_said(line);
        let from = if in_script { script } else { line };
        Asked {
            memory: from.memory,
            share: from.share,
            in_script,
            is_line_unknown: in_script && job.submit_line.is_empty(),
        }
    }

    /// What stands before the end of a sentence that goes by the script alone.
    fn unless(&self) -> &'static str {
        match self.is_line_unknown {
            true => ", unless sbatch's command line said otherwise",
            false => "",
        }
    }

    /// `--gpuos-mem=120G`, with where it stands.
    fn named(&self, name: &str, value: &dyn std::fmt::Display) -> String {
        let place = match self.in_script {
            true => " of its batch script",
            false => "",
        };
        format!("--gpuos-{name}={value}{place}")
    }

    /// The part of a waiting job's memory that is for its GPUs; `None`: there is none, or it is not known.
    pub fn waiting(&self, site: &Site, job: &Job, wanted: &JobRequest) -> Option<Taken> {
        let asked = self.memory?;
        let split = split(site, asked, wanted, None).ok()?;
        let each = split.share_mib();
        let all = job.memory_node_mib;
        // sbatch refuses the option beside memory for each CPU.
        let is_other = job.memory_cpu_mib > 0 || (all > 0 && all < each);
        if split.is_refused() || each == 0 || is_other {
            return None;
        }
        let named = self.named("mem", &asked);
        let counted = split
            .gpus_of_node()
            .filter(|_| all > 0 && is_counted_alike(job, wanted));
        let mib = counted.map(|_| split.host_mib());
        if mib.is_some_and(|mib| mib > all) {
            return None;
        }
        let text = match counted {
            Some(gpus) => format!(
                "Of the {all} MiB of each node's memory that it asks for, {} MiB are what {named} takes of the host for {}{}.",
                split.host_mib(),
                count(gpus as usize, "GPU"),
                self.unless()
            ),
            None => {
                format!(
                    "{named} takes {each} MiB of the host's memory for each of its GPUs{}.",
                    self.unless()
                )
            }
        };
        let json = json!({
            "option": format!("--gpuos-mem={asked}"),
            "in_script": self.in_script,
            "host_mib_per_gpu": each,
            "host_mib_of_node": mib,
        });
        Some(Taken { text, json, mib })
    }

    /// The same of a job that waits for a share of a GPU.
    pub fn parked(&self, job: &Job) -> Option<Taken> {
        let share = self.share?;
        let mib = u64::from(share.in_turns_mib()?);
        let all = job.memory_node_mib;
        let named = self.named("share", &share);
        let nvme = u64::from(share.nvme_gib());
        let text = match nvme {
            0 if all >= mib => format!(
                "Of the {all} MiB of each node's memory that it asks for, {mib} MiB are the place of {named} for what is parked{}.",
                self.unless()
            ),
            0 => return None,
            gib => format!(
                "With {named} what is parked goes to NVMe, for which it waits too: {gib} GiB of each node's{}.",
                self.unless()
            ),
        };
        let json = json!({
            "option": format!("--gpuos-share={share}"),
            "in_script": self.in_script,
            "gpu_mib": mib,
            "host_mib_of_node": (nvme == 0).then_some(mib),
            "nvme_gib_of_node": (nvme > 0).then_some(nvme),
        });
        Some(Taken {
            text,
            json,
            mib: None,
        })
    }

    /// Adds to the answer on a running job where its memory lies by its option, and which command tells what it has of it.
    pub fn running(&self, site: &Site, job: &Job, answer: &mut Answer) {
        let told = match job.gpu_count() {
            0 => self.running_in_turns(job),
            _ => self.running_in_tiers(site, job),
        };
        let (Some((sentence, told)), Some(node)) = (told, job.nodes.first()) else {
            return;
        };
        answer.sentence += &format!(
            " {sentence} `gpuos mem show {} --node={node}` tells what its programs there have of that now.",
            job.label
        );
        answer.json["memory"] = told;
    }

    fn running_in_tiers(&self, site: &Site, job: &Job) -> Option<(String, Value)> {
        let asked = self.memory?;
        let split = split_of_running(site, asked, &job.nodes).ok()?;
        let config = &site.config.memory;
        let has = |part: &gpuos_host::slurm::Allocation| {
            let needed = split.share_mib().saturating_mul(part.gpu_count.into());
            part.memory_mib >= needed
        };
        // Slurm gave it less: it was submitted with another option than this one.
        if !config.oversubscribe || (site.memory_counts() && !job.allocations.iter().all(has)) {
            return None;
        }
        let json = json!({
            "option": format!("--gpuos-mem={asked}"),
            "in_script": self.in_script,
            "size_mib": asked.mib,
            "own_mib_per_gpu": split.own_mib(),
            "host_mib_per_gpu": split.share_mib(),
        });
        Some((self.in_tiers(asked, &split), json))
    }

    fn in_tiers(&self, asked: MemoryOption, split: &Split) -> String {
        let (named, unless) = (self.named("mem", &asked), self.unless());
        let size = gib(asked.mib.into());
        match split.share_mib() {
            0 => format!("By {named} each of its GPUs has {size}, all in its own memory{unless}."),
            host => format!(
                "By {named} each of its GPUs has {size}: {} in its own memory and {} in the host's{unless}.",
                gib(split.own_mib()),
                gib(host)
            ),
        }
    }

    fn running_in_turns(&self, job: &Job) -> Option<(String, Value)> {
        let share = self.share?;
        let mib = u64::from(share.in_turns_mib()?);
        requeue::shares(job)?;
        let place = match share.nvme_gib() {
            0 => "the host's memory",
            _ => "NVMe",
        };
        let sentence = format!(
            "By {} it has {} of the GPU's memory while that is its turn, and as much of {place} for while it is another's{}.",
            self.named("share", &share),
            gib(mib),
            self.unless()
        );
        let json = json!({
            "option": format!("--gpuos-share={share}"),
            "in_script": self.in_script,
            "size_mib": mib,
            "parked_on_nvme": share.nvme_gib() > 0,
        });
        Some((sentence, json))
    }
}

/// Whether the GPUs of a node that count are sure to be those that sbatch counted: other forms of a request say it in more than one way.
fn is_counted_alike(job: &Job, wanted: &JobRequest) -> bool {
    let forms = [
        &job.tres_per_node,
        &job.tres_per_task,
        &job.tres_per_socket,
        &job.tres_per_job,
    ];
    let with_gpus = forms.iter().filter(|form| form.contains("gpu"));
    let one = with_gpus.count() == 1 && !job.exclusive;
    one && matches!(
        wanted.request.gpus,
        GpuShape::PerNode(_) | GpuShape::Total(_)
    )
}

impl Taken {
    /// The request without it, where it is known how much that is of each node.
    pub fn without(&self, wanted: &JobRequest) -> Option<JobRequest> {
        let mut less = wanted.clone();
        let memory = &mut less.request.memory_mib_per_node;
        *memory = memory.checked_sub(self.mib?)?;
        Some(less)
    }

    /// The line; `room`: whether there would be room without it, where that was tried.
    pub fn text(&self, room: Option<bool>) -> String {
        let more = match room {
            Some(true) => " Without these there would be room for it now.",
            _ => "",
        };
        format!("{}{more}\n", self.text)
    }

    /// Adds the same to an answer's JSON.
    pub fn add_json(&self, room: Option<bool>, json: &mut Value) {
        let mut own = self.json.clone();
        own["room_without"] = json!(room);
        json["memory"] = own;
    }
}
