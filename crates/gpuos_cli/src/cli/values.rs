//! How values of flags are read: what is none is refused with a sentence that has the form of one.

use gpuos_config::gpuos_toml::http_url;
use gpuos_config::options::{
    GresRequest, MemoryOption, OptionError, parse_class, parse_exclusive, parse_gpus, parse_gres,
    parse_memory, parse_placement, parse_profile, parse_topology,
};
use gpuos_pbs::state::jobs::is_job;
use gpuos_placement::cost::Profile;
use gpuos_placement::plan::{Placement, TopologyRequest};

/// A number of GPUs, perhaps of one type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpus {
    /// How many.
    pub count: u32,
    /// Type.
    pub gres_type: Option<String>,
}

/// A range of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
}

/// Node names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts(pub Vec<String>);

pub(super) fn node_name(text: &str) -> Result<String, String> {
    match crate::remote::is_node(text) {
        true => Ok(text.into()),
        false => Err("write the name of one node, for example n3".into()),
    }
}

pub(super) fn prometheus_url(text: &str) -> Result<String, String> {
    http_url(text).map_err(|form| format!("write {form}"))
}

pub(super) fn class(value: &str) -> Result<String, String> {
    parse_class(value).map_err(|e| reason(&e))
}

pub(super) fn gpu_memory(value: &str) -> Result<MemoryOption, String> {
    parse_memory(value).map_err(|e| reason(&e))
}

pub(super) fn alone(value: &str) -> Result<String, String> {
    parse_exclusive(value).map_err(|e| reason(&e))
}

pub(super) fn job_id(text: &str) -> Result<String, String> {
    match crate::names::Name::parse(text) {
        Some(_) => Ok(text.into()),
        None if is_job(text) => Ok(text.into()),
        None => Err(
            "write a job number: 17, 4_1 for a task of an array, 4_[2-5] for tasks that wait together, or 19+1 for a \
             component; of PBS 17 or 17.head"
                .into(),
        ),
    }
}

fn one_kind(list: Vec<GresRequest>, example: &str) -> Result<Gpus, String> {
    let mut gpus = list.into_iter().filter(|r| r.name == "gpu");
    match (gpus.next(), gpus.next()) {
        (Some(only), None) => match u32::try_from(only.count) {
            Ok(count) if count <= 1_000_000 => Ok(Gpus {
                count,
                gres_type: only.gres_type,
            }),
            _ => Err("that is more GPUs than any cluster has".into()),
        },
        (None, _) => Err(format!("it asks for no GPU; write for example {example}")),
        (Some(_), Some(_)) => Err("name one GPU type only".into()),
    }
}

pub(super) fn gpus(text: &str) -> Result<Gpus, String> {
    let list = parse_gpus("--gpus", text).map_err(|e| reason(&e))?;
    one_kind(list, "8 or h100:8")
}

pub(super) fn gres(text: &str) -> Result<Gpus, String> {
    let list = parse_gres("--gres", text).map_err(|e| reason(&e))?;
    one_kind(list, "gpu:8 or gpu:h100:8")
}

/// clap names the option and the value already.
pub(super) fn reason(error: &OptionError) -> String {
    format!("{}; write {}", error.reason, error.accepted)
}

pub(super) fn nodes(text: &str) -> Result<Nodes, String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    match (min.parse(), max.parse()) {
        (Ok(min), Ok(max)) if min >= 1 && min <= max => Ok(Nodes { min, max }),
        _ => Err("write N or N-M with N at least 1 and M not below N".into()),
    }
}

pub(super) fn memory(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale: u64 = match &text[number.len()..].to_ascii_uppercase()[..] {
        "" | "M" | "MB" | "MI" | "MIB" => 1 << 10,
        "K" | "KB" | "KI" | "KIB" => 1,
        "G" | "GB" | "GI" | "GIB" => 1 << 20,
        "T" | "TB" | "TI" | "TIB" => 1 << 30,
        _ => 0,
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale))
    {
        Some(kibibytes) if scale > 0 => Ok(kibibytes.div_ceil(1024)),
        _ => Err("write a number of MiB, or with a unit: 500G".into()),
    }
}

pub(super) fn topology(text: &str) -> Result<TopologyRequest, String> {
    parse_topology(text).map_err(|e| reason(&e))
}

pub(super) fn placement(text: &str) -> Result<Placement, String> {
    parse_placement(text).map_err(|e| reason(&e))
}

pub(super) fn profile(text: &str) -> Result<Profile, String> {
    parse_profile(text).map_err(|e| reason(&e))
}

pub(super) fn hosts(text: &str) -> Result<Hosts, String> {
    gpuos_model::hostlist::expand(text)
        .map(Hosts)
        .map_err(|e| e.reason)
}
