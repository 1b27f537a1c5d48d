//! What the site's files say, as it is kept between calls.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_config::access::Forbidden;
use gpuos_config::gpuos_toml::{CheckpointConfig, MigConfig};
use gpuos_model::gpuset::MAX_GPUS;
use slurm_ffi::conf;
use slurm_ffi::layout::Fields;
use slurm_ffi::log;
use slurm_ffi::release::Release;

use crate::check::Catalogue;
use crate::memory::{self, Inventory};
use crate::messages::in_log;

/// What requests are checked against.
pub struct Cluster {
    /// Nodes, types and rules.
    pub catalogue: Catalogue,
    /// How GPUs are divided.
    pub mig: MigConfig,
    /// The most shards of a GPU; 0 = GPUs are not shared.
    pub shards: u64,
    /// Jobs that share a GPU in turns with its memory, at most; 0: jobs cannot.
    pub turns: u32,
    /// The GRES in which Slurm counts NVMe for what is parked.
    pub nvme: Option<String>,
}

/// All that was read.
pub struct Read {
    /// When slurmctld had read its configuration.
    pub at: i64,
    /// It was read in a later second than that: what is configured anew from then on has another one.
    pub settled: bool,
    /// Absent: the files have a mistake, or gpuos does not place jobs.
    pub cluster: Option<Cluster>,
    /// What the site forbids, in any case.
    pub forbidden: Forbidden,
    /// Absent: the site's files have a mistake.
    pub checkpoint: Option<CheckpointConfig>,
    /// Absent: the files have a mistake, or the layout table lacks something.
    pub memory: Option<Inventory>,
    /// How many nodes there are; absent: there may be more than the files name, or they have a mistake.
    pub nodes: Option<usize>,
}

/// Seconds since 1970, as slurmctld tells times.
pub fn now() -> Option<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(now.as_secs()).ok()
}

/// Reads the site's files, for a slurmctld that had read its configuration at a time.
pub fn read_site(of: (&Fields, Release), memory: Option<&memory::Offsets>, at: i64) -> Read {
    let (fields, release) = of;
    let settled = now().is_some_and(|now| now != at);
    let mut forbidden = Forbidden::default();
    let mut checkpoint = None;
    let mut inventory = None;
    let mut number = None;
    let site = conf::site(Some(fields), Some(release)).and_then(|site| {
        forbidden = site.config.forbidden.clone();
        checkpoint = Some(site.config.checkpoint.clone());
        inventory = memory.map(|offsets| Inventory::of(&site, offsets.counted()));
        let nodes = site.nodes.all();
        number = Some(nodes.len()).filter(|_| !site.nodes.dynamic());
        let clusters = site.clusters(&nodes)?;
        // Nodes with more GPUs than a plan can hold are Slurm's alone.
        let bounded = !site.nodes.dynamic() && nodes.iter().all(|node| node.gpus <= MAX_GPUS);
        Ok((site, clusters, bounded))
    });
    let cluster = match site {
        Ok((site, ..)) if !site.config.slurm.steer => None,
        Ok((site, clusters, bounded)) => {
            log_once(None);
            let rules = site.config.rules().clone();
            Some(Cluster {
                catalogue: Catalogue::new(clusters, rules, bounded),
                mig: site.config.mig.clone(),
                shards: site.nodes.shards_of_gpu(),
                turns: site.config.memory.turns,
                nvme: site.config.parking_gres().map(|gres| gres.name.clone()),
            })
        }
        Err(why) => {
            log_once(Some(why));
            None
        }
    };
    Read {
        at,
        settled,
        cluster,
        forbidden,
        checkpoint,
        memory: inventory,
        nodes: number,
    }
}

/// Says what is wrong with the files, once until something else is: slurmctld reads its
/// configuration several times while it starts.
fn log_once(why: Option<String>) {
    static SAID: Mutex<Option<String>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = why.as_ref().filter(|why| said.as_ref() != Some(why)) {
        log::error(&in_log::unchecked(why));
    }
    *said = why;
}

/// Says once that descriptions of jobs do not look as the table says.
pub fn unreadable() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        log::error(&in_log::description_misfits());
    });
}
