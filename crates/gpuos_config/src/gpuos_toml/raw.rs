//! gpuos.toml as it is written: every key optional, every value with its place.
use gpuos_core::health::RawRule as RawHealthRule;
use gpuos_model::node_types::RawType;
use serde::Deserialize;
use toml::Spanned;

/// The whole file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct RawFile {
    pub slurm: RawSlurm,
    pub policy: RawPolicy,
    pub metrics: RawMetrics,
    pub heartbeat: RawHeartbeat,
    pub checkpoint: RawCheckpoint,
    pub memory: RawMemory,
    pub memory_share: Vec<Spanned<RawMemoryShare>>,
    pub node_type: Vec<Spanned<RawType>>,
    pub nodes: Vec<Spanned<RawRule>>,
    pub fabric: RawFabric,
    pub class: Vec<Spanned<RawClass>>,
    pub rule: Vec<Spanned<RawApart>>,
    pub reserve: Vec<Spanned<RawReserve>>,
    pub power_domain: Vec<Spanned<RawPower>>,
    pub health: RawHealth,
    pub isolation: RawIsolation,
    pub mig: RawMig,
    pub access: RawAccess,
    pub forbid: Vec<Spanned<RawForbid>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [health]")]
pub(crate) struct RawHealth {
    pub returns: Option<Spanned<i64>>,
    pub returns_within: Option<Spanned<String>>,
    pub attempts: Option<Spanned<i64>>,
    pub reset: Option<bool>,
    pub reset_timeout: Option<Spanned<String>>,
    pub check_timeout: Option<Spanned<String>>,
    pub settle: Option<Spanned<String>>,
    pub calm: Option<Spanned<String>>,
    pub publish_burst: Option<Spanned<i64>>,
    pub publish_every: Option<Spanned<String>>,
    pub publish_wait: Option<Spanned<String>>,
    pub publish_spread: Option<Spanned<String>>,
    pub retry: Option<Spanned<String>>,
    pub file_systems: Option<Vec<Spanned<String>>>,
    pub rule: Vec<Spanned<RawHealthRule>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [metrics]")]
pub(crate) struct RawMetrics {
    pub listen: Option<Spanned<String>>,
    pub jobs: Option<bool>,
    pub dcgm_dir: Option<Spanned<String>>,
    pub jobstats_dir: Option<Spanned<String>>,
    pub prometheus: Option<Spanned<String>>,
    pub traces: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [heartbeat]")]
pub(crate) struct RawHeartbeat {
    pub act: Option<Spanned<String>>,
    pub port: Option<Spanned<i64>>,
    pub interval_ms: Option<Spanned<i64>>,
    pub silent_ms: Option<Spanned<i64>>,
    pub hung_ms: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [checkpoint]")]
pub(crate) struct RawCheckpoint {
    pub enabled: Option<bool>,
    pub port: Option<Spanned<i64>>,
    pub scheme: Option<Spanned<String>>,
    pub keep: Option<Spanned<i64>>,
    pub least_seconds: Option<Spanned<i64>>,
    pub ready_seconds: Option<Spanned<i64>>,
    pub overhead_percent: Option<Spanned<i64>>,
    pub node_mtbf_hours: Option<Spanned<i64>>,
    pub ended_hours: Option<Spanned<i64>>,
    pub max_gib: Option<Spanned<i64>>,
    pub user_gib: Option<Spanned<i64>>,
    pub user_percent: Option<Spanned<i64>>,
    pub rate_mib: Option<Spanned<i64>>,
    pub disk_rate_mib: Option<Spanned<i64>>,
    pub compress: Option<Spanned<String>>,
    pub encrypt: Option<bool>,
    pub encrypt_keys: Option<Vec<Spanned<String>>>,
    pub other_keys: Option<Vec<Spanned<String>>>,
    pub domains: Option<Vec<Spanned<String>>>,
    pub shared: Option<Spanned<String>>,
    pub shared_every: Option<Spanned<i64>>,
    pub shared_rate_mib: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [memory]")]
pub(crate) struct RawMemory {
    pub oversubscribe: Option<bool>,
    pub most_percent: Option<Spanned<i64>>,
    pub reserve_mib: Option<Spanned<i64>>,
    pub turns: Option<Spanned<i64>>,
    pub turn_seconds: Option<Spanned<i64>>,
    pub switch_seconds: Option<Spanned<i64>>,
    pub driver_checkpoint: Option<bool>,
    pub nvme: Option<Spanned<String>>,
    pub nvme_gib: Option<Spanned<i64>>,
    pub nvme_rate_mib: Option<Spanned<i64>>,
    pub nvme_gres: Option<Spanned<String>>,
    pub nvme_gres_gib: Option<Spanned<i64>>,
    pub pressure_begins: Option<Spanned<i64>>,
    pub pressure_ends: Option<Spanned<i64>>,
    pub stalled_begins: Option<Spanned<i64>>,
    pub link_ahead: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[memory-share]]")]
pub(crate) struct RawMemoryShare {
    pub account: Option<Spanned<String>>,
    pub partition: Option<Spanned<String>>,
    pub qos: Option<Spanned<String>>,
    pub guaranteed: Option<Spanned<String>>,
    pub at_most: Option<Spanned<String>>,
    pub rank: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [access]")]
pub(crate) struct RawAccess {
    pub operator_uids: Option<Vec<Spanned<i64>>>,
    pub jobs: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[forbid]]")]
pub(crate) struct RawForbid {
    pub options: Option<Spanned<Vec<Spanned<String>>>>,
    pub partition: Option<Spanned<String>>,
    pub account: Option<Spanned<String>>,
    pub qos: Option<Spanned<String>>,
    pub ask: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [isolation]")]
pub(crate) struct RawIsolation {
    pub foreign: Option<Spanned<String>>,
    pub grace: Option<Spanned<String>>,
    pub exempt_uids: Option<Vec<Spanned<i64>>>,
    pub exempt_programs: Option<Vec<Spanned<String>>>,
    pub kill_root: Option<bool>,
    pub devices: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [mig], [[mig.board]] or [[mig.pool]]")]
pub(crate) struct RawMig {
    pub foreign: Option<Spanned<String>>,
    pub switch_after: Option<Spanned<String>>,
    pub switch_hold: Option<Spanned<String>>,
    pub board: Vec<Spanned<RawMigBoard>>,
    pub pool: Vec<Spanned<RawMigPool>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[mig.board]]")]
pub(crate) struct RawMigBoard {
    pub name: Option<Spanned<String>>,
    pub profiles: Option<Spanned<Vec<Spanned<RawMigProfile>>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write { id = 19, name = \"1g.10gb\" }")]
pub(crate) struct RawMigProfile {
    pub id: Option<Spanned<i64>>,
    pub name: Option<Spanned<String>>,
    pub compute: Option<Spanned<i64>>,
    pub memory_mib: Option<Spanned<i64>>,
    pub most: Option<Spanned<i64>>,
    pub size: Option<Spanned<i64>>,
    pub starts: Option<Spanned<Vec<i64>>>,
    pub engines: Option<Spanned<Vec<i64>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[mig.pool]]")]
pub(crate) struct RawMigPool {
    pub nodes: Option<Spanned<String>>,
    pub gpus: Option<Spanned<String>>,
    pub switchable: Option<Spanned<String>>,
    pub board: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[class]]")]
pub(crate) struct RawClass {
    pub name: Option<Spanned<String>>,
    pub partition: Option<Spanned<String>>,
    pub account: Option<Spanned<String>>,
    pub user: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[rule]]")]
pub(crate) struct RawApart {
    pub never_beside: Option<Spanned<Vec<Spanned<String>>>>,
    pub tenants: Option<Spanned<String>>,
    pub level: Option<Spanned<String>>,
    pub prefer: Option<bool>,
    pub partition: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[reserve]]")]
pub(crate) struct RawReserve {
    pub nodes: Option<Spanned<i64>>,
    pub domains: Option<Spanned<i64>>,
    pub level: Option<Spanned<String>>,
    pub gangs: Option<Spanned<i64>>,
    pub hard: Option<bool>,
    pub unless_shorter: Option<Spanned<String>>,
    #[serde(rename = "match")]
    pub part: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[power-domain]]")]
pub(crate) struct RawPower {
    pub name: Option<Spanned<String>>,
    pub nodes: Option<Spanned<String>>,
    pub watts: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [slurm]")]
pub(crate) struct RawSlurm {
    pub steer: Option<bool>,
    pub note: Option<Spanned<String>>,
    pub log: Option<Spanned<String>>,
    pub attempts: Option<Spanned<i64>>,
    pub records: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [policy]")]
pub(crate) struct RawPolicy {
    pub placement: Option<Spanned<String>>,
    pub topology: Option<Spanned<String>>,
    pub objectives: Option<Spanned<RawObjectives>>,
    pub rule: Vec<Spanned<RawPolicyRule>>,
}

/// Weights in percent.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write { throughput = 100 }")]
pub(crate) struct RawObjectives {
    pub throughput: Option<i64>,
    pub latency: Option<i64>,
    pub energy: Option<i64>,
    pub cost: Option<i64>,
    pub fairness: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[policy.rule]]")]
pub(crate) struct RawPolicyRule {
    pub partition: Option<Spanned<String>>,
    pub qos: Option<Spanned<String>>,
    pub placement: Option<Spanned<String>>,
    pub topology: Option<Spanned<String>>,
    pub objectives: Option<Spanned<RawObjectives>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[nodes]]")]
pub(crate) struct RawRule {
    #[serde(rename = "match")]
    pub nodes: Option<Spanned<String>>,
    #[serde(rename = "type")]
    pub node_type: Option<Spanned<String>>,
    pub gpu_cap_watts: Option<Spanned<i64>>,
    pub health_percent: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.level]], [[fabric.switch]] or [[fabric.net]]")]
pub(crate) struct RawFabric {
    pub level: Vec<Spanned<RawLevel>>,
    pub switch: Vec<Spanned<RawSwitch>>,
    pub net: Vec<Spanned<RawNet>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.net]]")]
pub(crate) struct RawNet {
    pub name: Option<Spanned<String>>,
    pub kind: Option<Spanned<String>>,
    pub nodes: Option<Spanned<String>>,
    pub node_gbps: Option<Spanned<f64>>,
    pub border_gbps: Option<Spanned<f64>>,
    pub nodes_per_switch: Option<Spanned<i64>>,
    pub switch_gbps: Option<Spanned<f64>>,
    pub fanout: Option<Spanned<Vec<i64>>>,
    pub uplinks: Option<Spanned<Vec<i64>>>,
    pub oversubscription: Option<Spanned<Vec<f64>>>,
    pub size: Option<Spanned<Vec<i64>>>,
    pub dimensions: Option<Spanned<i64>>,
    pub groups: Option<Spanned<i64>>,
    pub switches_per_group: Option<Spanned<i64>>,
    pub global_links: Option<Spanned<i64>>,
    pub global_gbps: Option<Spanned<f64>>,
    pub switch: Option<Vec<Spanned<RawNetSwitch>>>,
    pub link: Option<Vec<Spanned<RawNetLink>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.net.switch]]")]
pub(crate) struct RawNetSwitch {
    pub name: Option<Spanned<String>>,
    pub nodes: Option<Spanned<String>>,
    pub rail: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.net.link]]")]
pub(crate) struct RawNetLink {
    pub between: Option<Spanned<Vec<String>>>,
    pub gbps: Option<Spanned<f64>>,
    pub links: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.level]]")]
pub(crate) struct RawLevel {
    pub name: Option<Spanned<String>>,
    pub gbps: Option<Spanned<f64>>,
    pub uplinks: Option<Spanned<i64>>,
    pub uplink_gbps: Option<Spanned<f64>>,
    pub oversubscription: Option<Spanned<f64>>,
    pub rails: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[fabric.switch]]")]
pub(crate) struct RawSwitch {
    pub name: Option<Spanned<String>>,
    pub level: Option<Spanned<String>>,
    pub nodes: Option<Spanned<String>>,
    pub switches: Option<Spanned<Vec<String>>>,
}
