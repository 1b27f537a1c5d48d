//! `--gpuos-mem` at submission, and what there is for it and for [`crate::turns`]: what of it may lie in host memory is added to the memory that the job asks of Slurm, so that nothing is
//! promised twice.
//!
//! What is not known is refused and never taken for less: how much memory a GPU has is what gpuos.toml says, of the GPUs that the job could get
//! the smallest counts, and of the numbers of GPUs that a node may come to have the largest.

use std::ffi::{c_char, c_void};

use gpuos_config::access::used;
use gpuos_config::gpuos_toml::{MemoryConfig, MemoryShare};
use gpuos_config::options::{
    GresRequest, JobOptions, MemoryOption, MemoryTiers, Source, Sources, parse_gres,
};
use gpuos_config::site::Site;
use gpuos_model::messages::Message;
use slurm_ffi::api;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::{read, read_str};

use crate::messages::{notes as told, refused};
use crate::notes::{self, Gpus};
use crate::refusal::Refusal;
use crate::shape::Shape;

/// `NO_VAL64`, `INFINITE64`: nothing is said.
pub(crate) const NO_VAL64: u64 = u64::MAX - 1;

/// The bit of `pn_min_memory` that says that it is for each CPU.
pub(crate) const PER_CPU: u64 = 1 << 63;

/// `CR_MEMORY` in `select_type_param`, the same in every release: Slurm counts memory.
const CR_MEMORY: u16 = 0x10;

/// The longest text of memory for each GPU that is read.
const LONGEST: usize = 1024;

/// Where a job's description has the memory that it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// For each node or CPU, in MiB.
    pub per_node: usize,
    /// For each GPU, a text.
    pub per_gpu: usize,
    /// What Slurm counts, in slurmctld's configuration.
    counted: usize,
}

/// The memory of hosts that a job asks for by itself, in MiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Host {
    /// It says nothing.
    Unsaid,
    /// All of each node, `--mem=0`.
    Whole,
    /// `--mem`.
    Node(u64),
    /// `--mem-per-cpu`.
    Cpu,
    /// `--mem-per-gpu`, and what stands before the number in Slurm's text.
    Gpu(String, u64),
    /// Another GRES than GPUs has it.
    Other,
}

impl Offsets {
    /// Those of a release; `None`: the table does not say.
    pub fn of(fields: &Fields) -> Option<Offsets> {
        let at = |field| fields.offset("job_descriptor", field).ok();
        Some(Offsets {
            per_node: at("pn_min_memory")?,
            per_gpu: at("mem_per_tres")?,
            counted: fields.offset("slurm_conf", "select_type_param").ok()?,
        })
    }

    /// What a description asks for. `None`: memory does not look like one.
    pub fn host(&self, description: *mut c_void) -> Option<Host> {
        let at = description as usize;
        let text = match read::<usize>(at.checked_add(self.per_gpu)?)? {
            0 => None,
            text => Some(read_str(text, LONGEST)?).filter(|text| !text.is_empty()),
        };
        let number: u64 = read(at.checked_add(self.per_node)?)?;
        Some(match (text, number) {
            (Some(text), _) => per_gpu(&text).unwrap_or(Host::Other),
            (None, NO_VAL64..) => Host::Unsaid,
            (None, 0) => Host::Whole,
            (None, PER_CPU..) => Host::Cpu,
            (None, number) => Host::Node(number),
        })
    }

    /// Whether slurmctld counts memory.
    pub fn counted(&self) -> bool {
        let conf = api::symbol(c"slurm_conf").map(|conf| conf as usize);
        let word = conf.and_then(|conf| read::<u16>(conf.checked_add(self.counted)?));
        word.is_some_and(|word| word & CR_MEMORY != 0)
    }

    /// Where a description has the text of memory for each GPU.
    pub fn text_per_gpu(&self, description: *mut c_void) -> *mut *mut c_char {
        description.wrapping_byte_add(self.per_gpu).cast()
    }
}

/// `gres:gpu:4096` of older releases, `gres/gpu:4096` of later ones.
fn per_gpu(text: &str) -> Option<Host> {
    let (before, number) = text.rsplit_once(':')?;
    let digits = (1..=15).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let is_gpu = ["gres:gpu", "gres/gpu", "gpu"].contains(&before);
    let number = number.parse().ok().filter(|_| digits && is_gpu)?;
    Some(Host::Gpu(before.to_owned(), number))
}

/// Nodes that are the same in all that counts here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    /// GRES type of the GPUs; empty: there are several, or none.
    gres_type: String,
    gpus: u64,
    /// Memory of a GPU in MiB; `None`: gpuos.toml does not say it.
    pub(crate) gpu_mib: Option<u64>,
    /// Memory of the host in MiB; 0: slurm.conf does not say it.
    pub(crate) host_mib: u64,
    /// Its GPUs can be shared.
    shards: bool,
    /// GiB of NVMe that Slurm counts for what is parked.
    pub(crate) nvme_gib: u64,
}

/// What there is, and what the site allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    pub(crate) config: MemoryConfig,
    /// The GRES in which Slurm counts NVMe for what is parked.
    pub(crate) nvme: Option<String>,
    /// The kinds of nodes with GPUs, each with one that is so.
    kinds: Vec<(Kind, String)>,
    /// There may be nodes that no file names.
    pub(crate) dynamic: bool,
    /// Slurm counts memory.
    pub(crate) counted: bool,
    /// A job that says nothing may get less than all of a node's.
    has_default: bool,
}

impl Inventory {
    /// From the site's files.
    pub fn of(site: &Site, counted: bool) -> Inventory {
        let mut kinds: Vec<(Kind, String)> = Vec::new();
        let hosts = site.nodes.memory_mib().into_iter();
        let hosts = hosts.zip(site.nodes.has_shards());
        let parking = site.config.parking_gres();
        let name = parking.map_or("", |gres| &gres.name);
        // What gpuosd lends is no more than gpuos.toml says.
        let most = parking.map_or(0, |gres| gres.gib.into());
        let hosts = hosts.zip(site.nodes.counts_of(name));
        for (facts, ((host_mib, shards), count)) in site.nodes.all().into_iter().zip(hosts) {
            let stated = site.config.stated_type(&facts);
            let gpu_mib = stated.map(|node_type| node_type.gpu_memory_mib);
            let kind = Kind {
                gres_type: facts.gres_type,
                gpus: facts.gpus as u64,
                gpu_mib: gpu_mib.filter(|mib| *mib > 0),
                host_mib,
                shards,
                nvme_gib: count.min(most),
            };
            if kind.gpus > 0 && !kinds.iter().any(|(other, _)| *other == kind) {
                kinds.push((kind, facts.name));
            }
        }
        Inventory {
            config: site.config.memory.clone(),
            nvme: parking.map(|gres| gres.name.clone()),
            kinds,
            dynamic: site.nodes.dynamic(),
            counted,
            has_default: site.nodes.memory_has_default(),
        }
    }

    /// The nodes whose GPUs a job could get, by the types that it names.
    fn candidates(&self, types: &[String]) -> Vec<&(Kind, String)> {
        let is_one = |kind: &Kind| {
            types.is_empty()
                || kind.gres_type.is_empty()
                || types
                    .iter()
                    .any(|one| one.eq_ignore_ascii_case(&kind.gres_type))
        };
        let kinds = self.kinds.iter();
        kinds.filter(|(kind, _)| is_one(kind)).collect()
    }

    /// A type of GPU with enough memory for a size, if there is one that a job can name.
    fn with_more(&self, mib: u64, tiers: MemoryTiers) -> Option<&str> {
        let enough = |kind: &Kind| {
            let most = kind.gpu_mib.map(|gpu| self.most_mib(gpu, tiers));
            !kind.gres_type.is_empty() && most.is_some_and(|most| most >= mib)
        };
        let mut kinds = self.kinds.iter().map(|(kind, _)| kind);
        // All nodes with GPUs of that name have to do.
        let kind = kinds.find(|kind| {
            let same = self.kinds.iter().map(|(other, _)| other);
            let mut same =
                same.filter(|other| other.gres_type.eq_ignore_ascii_case(&kind.gres_type));
            same.all(enough)
        });
        kind.map(|kind| kind.gres_type.as_str())
    }

    /// MiB that a job can have with a GPU of so many.
    fn most_mib(&self, gpu: u64, tiers: MemoryTiers) -> u64 {
        match tiers {
            MemoryTiers::Hbm => gpu,
            MemoryTiers::HbmAndDram => self.config.most_mib(gpu),
        }
    }

    /// The nodes whose GPUs can be shared.
    pub(crate) fn with_shards(&self) -> Vec<&(Kind, String)> {
        let kinds = self.kinds.iter();
        kinds.filter(|(kind, _)| kind.shards).collect()
    }

    /// Who may have how much of a node's host memory.
    pub fn shares(&self) -> &[MemoryShare] {
        &self.config.shares
    }

    /// MiB of host memory that a job needs on each of its nodes at least; `None`: it is not known.
    pub fn least_of_node(&self, asked: &MemoryOption, shape: &Shape) -> Option<u64> {
        let (share, most) = self.needs(asked, shape)?;
        let each: u64 = gpus_in(shape.per_node.as_ref())
            .iter()
            .map(|gres| gres.count)
            .sum();
        let gpus = if shape.exclusive { most } else { each.max(1) };
        Some(share.saturating_mul(gpus))
    }

    /// MiB of host memory for each GPU, and GPUs of a node at most; `None`: it is not known.
    fn needs(&self, asked: &MemoryOption, shape: &Shape) -> Option<(u64, u64)> {
        let candidates = self.candidates(&types(shape));
        let least = candidates.iter().map(|(kind, _)| kind.gpu_mib);
        let least = least.min_by_key(|mib| mib.unwrap_or(0))??;
        let share = match asked.tiers {
            MemoryTiers::Hbm => 0,
            MemoryTiers::HbmAndDram => self.config.host_share(asked.mib.into(), least),
        };
        let most = candidates.iter().map(|(kind, _)| kind.gpus).max()?;
        Some((share, gpus_of_node(shape, most)))
    }
}

fn gpus_in(text: Option<&String>) -> Vec<GresRequest> {
    // What cannot be read Slurm refuses.
    let all = text.map(|text| parse_gres("gres", text).unwrap_or_default());
    let all = all.into_iter().flatten();
    all.filter(|gres| gres.name == "gpu").collect()
}

/// The types of GPUs that a job names; empty where it takes any.
fn types(shape: &Shape) -> Vec<String> {
    let forms = [
        &shape.per_job,
        &shape.per_node,
        &shape.per_socket,
        &shape.per_task,
    ];
    let forms = forms.into_iter().map(|form| gpus_in(form.as_ref()));
    let named: Vec<Vec<GresRequest>> = forms.filter(|form| !form.is_empty()).collect();
    // A form whose GPUs all have a type bounds what the others take.
    let typed = named
        .iter()
        .find(|form| form.iter().all(|gres| gres.gres_type.is_some()));
    let typed = typed.into_iter().flatten();
    typed.filter_map(|gres| gres.gres_type.clone()).collect()
}

/// The most GPUs that a job may come to have on one node, where no node has more than `most`.
fn gpus_of_node(shape: &Shape, most: u64) -> u64 {
    if shape.exclusive {
        return most;
    }
    let count = |form: &Option<String>| {
        let counts = gpus_in(form.as_ref());
        let sum = counts
            .iter()
            .fold(0u64, |all, gres| all.saturating_add(gres.count));
        Some(sum).filter(|sum| *sum > 0)
    };
    let other_nodes = u64::from(shape.min_nodes.max(1)) - 1;
    // Each other node has one at least.
    let of_job = count(&shape.per_job).map(|all| all.saturating_sub(other_nodes));
    let tasks = match (shape.tasks_per_node, shape.tasks) {
        (0, 0) => 1,
        (0, tasks) => u64::from(tasks).saturating_sub(other_nodes),
        (of_node, _) => of_node.into(),
    };
    let of_tasks = count(&shape.per_task).map(|each| each.saturating_mul(tasks.max(1)));
    let bounds = [count(&shape.per_node), of_job, of_tasks, Some(most)];
    bounds.into_iter().flatten().min().unwrap_or(most).max(1)
}

/// What a job asks of Slurm in place of what it said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Raised {
    /// MiB of each node.
    Node(u64),
    /// Slurm's text for each GPU.
    Gpu(String),
}

/// What a job with the option gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// What changes in what it asks for; `None`: nothing.
    pub raised: Option<Raised>,
    /// For its user.
    pub sentence: Message,
}

/// Adds the host's share to what a new job asks for. `None`: the option says nothing in this job.
///
/// # Errors
/// The site does not allow it, the job asks for something that does not go with it, or it is not known how much host memory it takes.
pub fn choose(
    inventory: &Inventory,
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
    host: Host,
) -> Result<Option<Chosen>, Refusal> {
    let Some(asked) = &options.memory else {
        return Ok(None);
    };
    let is_default = sources.of("gpuos-mem") == Source::Environment;
    match notes::gpus(shape) {
        Gpus::None if options.mig.is_none() && options.share.is_none() => return Ok(None),
        Gpus::None | Gpus::Parts if is_default => return Ok(None),
        _ => {}
    }
    if !inventory.config.oversubscribe {
        return Err(refused::memory_is_off(asked).into());
    }
    if let Some((beside, why, undo)) = does_not_go_with((options, sources), shape) {
        return Err(refused::memory_goes_not_with(asked, beside, why, undo).into());
    }
    if inventory.dynamic {
        return Err(refused::memory_of_any_node(asked).into());
    }
    let candidates = inventory.candidates(&types(shape));
    if let Some((_, node)) = candidates.iter().find(|(kind, _)| kind.gpu_mib.is_none()) {
        return Err(refused::memory_of_gpu_unknown(asked, node).into());
    }
    let least = candidates.iter().filter_map(|(kind, _)| kind.gpu_mib).min();
    let (Some(least), Some((share, gpus))) = (least, inventory.needs(asked, shape)) else {
        return Err(Refusal::impossible(refused::memory_of_no_gpu(asked)));
    };
    let most = inventory.most_mib(least, asked.tiers);
    if u64::from(asked.mib) > most {
        let larger = inventory.with_more(asked.mib.into(), asked.tiers);
        let larger = larger.map_or(String::new(), |kind| {
            format!(", or name a GPU with more: --gpus={kind}:N")
        });
        return Err(Refusal::impossible(refused::memory_is_too_much(
            asked, least, most, larger,
        )));
    }
    let named = || sources.named("--gpuos-mem", &asked.to_string());
    if share == 0 {
        return Ok(Some(Chosen {
            raised: None,
            sentence: told::memory_fits(named(), least),
        }));
    }
    if !inventory.counted && !shape.exclusive {
        return Err(refused::memory_is_not_counted(asked).into());
    }
    let hosts = || candidates.iter().map(|(kind, _)| kind);
    let largest = hosts().map(|kind| kind.host_mib).max().unwrap_or(0);
    let fits = |needed: u64| match needed <= largest {
        true => Ok(()),
        false => Err(Refusal::impossible(refused::memory_of_host_misfits(
            asked, needed, largest,
        ))),
    };
    let whole = || {
        let short = hosts().find(|kind| kind.host_mib < share.saturating_mul(gpus.min(kind.gpus)));
        match short {
            None => Ok(Some(Chosen {
                raised: None,
                sentence: told::memory_of_all(named(), share, least),
            })),
            Some(kind) => Err(refused::memory_of_whole_node(asked, share, kind.host_mib).into()),
        }
    };
    match host {
        Host::Node(own) => {
            let all = own.saturating_add(share.saturating_mul(gpus));
            fits(all)?;
            Ok(Some(Chosen {
                raised: Some(Raised::Node(all)),
                sentence: told::memory_of_node(named(), share, least, all, own, gpus),
            }))
        }
        Host::Gpu(before, own) => {
            let all = own.saturating_add(share);
            fits(all)?;
            Ok(Some(Chosen {
                raised: Some(Raised::Gpu(format!("{before}:{all}"))),
                sentence: told::memory_of_gpu(named(), share, least, all, own),
            }))
        }
        Host::Whole => whole(),
        Host::Unsaid if !inventory.has_default => whole(),
        Host::Unsaid => Err(refused::memory_of_program_unsaid(asked).into()),
        Host::Cpu => Err(refused::memory_per_cpu(asked).into()),
        Host::Other => Err(refused::memory_of_other_gres(asked).into()),
    }
}

/// What of a job does not go with the option, why, and how one of the two is undone.
fn does_not_go_with(
    (options, sources): (&JobOptions, &Sources),
    shape: &Shape,
) -> Option<(String, &'static str, String)> {
    let undo = |name: &str| format!("--gpuos-{name}=off undoes the option");
    let asked = shape.gres_forms();
    let mut asked = asked.flat_map(|text| parse_gres("gres", text).unwrap_or_default());
    let parts = "for whole GPUs alone have it";
    if let Some(gres) = asked.find(|gres| ["gpuos", "shard", "mps"].contains(&gres.name.as_str())) {
        return Some((format!("GRES {}", gres.name), parts, undo("mem")));
    }
    let used = used(options);
    let all = [
        ("mig", parts),
        ("share", parts),
        (
            "mps",
            "whose programs share one context that nothing can be moved under",
        ),
    ];
    all.into_iter().find_map(|(short, why)| {
        let name = format!("gpuos-{short}");
        let (_, value) = used.iter().find(|(used, _)| *used == name)?;
        Some((sources.named(&format!("--{name}"), value), why, undo(short)))
    })
}

/// Checks a change of a job with the option: `update` is what it asks for, `shapes` what it asks of GPUs now and would then.
///
/// # Errors
/// It would have less host memory than its GPUs need.
pub fn check_update(
    inventory: &Inventory,
    asked: &MemoryOption,
    (now, then): (&Shape, &Shape),
    update: &Host,
) -> Result<(), Refusal> {
    let (Some((_, had)), Some((share, gpus))) =
        (inventory.needs(asked, now), inventory.needs(asked, then))
    else {
        return Ok(());
    };
    let enough = match update {
        // As much for each GPU, and no more GPUs of a node.
        Host::Unsaid => gpus <= had,
        Host::Node(mib) => *mib >= share.saturating_mul(gpus),
        Host::Gpu(_, mib) => *mib >= share,
        Host::Whole => true,
        Host::Cpu | Host::Other => share == 0,
    };
    match enough || share == 0 {
        true => Ok(()),
        false => Err(refused::memory_stays(asked, share).into()),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
