//! What `qmgr` is told so that PBS has the hook, and so that it has it no more.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_config::gpuos_toml::{Config, MigConfig};
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::Geometry;

use super::beyond::{Beyond, stated_mib};
use super::described::{self, has_several_sets};
use super::event::{Divided, Gpu, Host, Shares};
use super::resources::{FORMER, NGPUS, RESOURCES, Resource};
use crate::pbs_conf;

/// Name of the hook.
pub const HOOK: &str = "gpuos";

/// Events that the hook is run for.
const EVENTS: &str =
    "queuejob,modifyjob,resvsub,runjob,execjob_launch,execjob_end,exechost_periodic";
/// One more, which PBS has since 22.05.
pub const MODIFYRESV: &str = "modifyresv";

/// The hook's alarm in seconds: twice as long as anything waits in an event, from its start.
pub const ALARM: u64 = 120;

/// What the hook is set to. After pbs_cgroups (100), so that it has the last word on the environment of
/// a job; a hook that fails takes no node offline. A mom tells what it has every 5 s, after the hook has ended.
const SETTINGS: [(&str, &str); 4] = [
    ("freq", "5"),
    ("order", "500"),
    ("alarm", "120"),
    ("fail_action", "none"),
];

/// Objects as `qmgr -c "list …"` prints them: by name, with their attributes.
pub type Objects = BTreeMap<String, BTreeMap<String, String>>;

/// Reads what `qmgr -c "list KIND"` prints: a line such as `Hook gpuos`, and under it attributes that begin with blanks. A line that
/// begins with a tab goes on with the one before.
pub fn parse_list(text: &str, kind: &str) -> Objects {
    let mut objects = Objects::new();
    // Name of the object and key of the attribute that the line before was of.
    let mut at: Option<(String, String)> = None;
    for line in text.lines() {
        let head = line
            .split_once(' ')
            .filter(|(word, _)| word.eq_ignore_ascii_case(kind));
        if let Some((_, name)) = head {
            at = Some((name.trim().to_owned(), String::new()));
            objects.entry(name.trim().to_owned()).or_default();
            continue;
        }
        let Some((name, last)) = &mut at else {
            continue;
        };
        let Some(object) = objects.get_mut(name) else {
            continue;
        };
        if line.starts_with('\t') {
            if let Some(value) = object.get_mut(last) {
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once('=').filter(|_| line.starts_with(' ')) {
            *last = key.trim().to_owned();
            object.insert(last.clone(), value.trim().to_owned());
        }
    }
    objects
}

/// The lines that bring PBS, of this version, from what it has to a hook that is in use. `script` and `config` are files that qmgr can read.
///
/// # Errors
/// A resource is there with a type that gpuos cannot use; nothing may be changed then.
pub fn install(
    resources: &Objects,
    hooks: &Objects,
    version: &str,
    (script, config): (&str, &str),
) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for resource in &RESOURCES {
        lines.extend(with_resource(resource, resources.get(resource.name))?);
    }
    let present = hooks.get(HOOK);
    if present.is_none() {
        lines.push(format!("create hook {HOOK}"));
    }
    let is = |key: &str, value: &str| {
        present
            .and_then(|hook| hook.get(key))
            .is_some_and(|have| words(have) == words(value))
    };
    let events = match knows_modifyresv(version) {
        true => format!("{EVENTS},{MODIFYRESV}"),
        false => EVENTS.to_owned(),
    };
    for (key, value) in [("event", &events[..])].into_iter().chain(SETTINGS) {
        if !is(key, value) {
            lines.push(format!("set hook {HOOK} {key} = \"{value}\""));
        }
    }
    lines.push(format!(
        "import hook {HOOK} application/x-config default {config}"
    ));
    lines.push(format!(
        "import hook {HOOK} application/x-python default {script}"
    ));
    if !is("enabled", "true") && !is("enabled", "True") {
        lines.push(format!("set hook {HOOK} enabled = true"));
    }
    Ok(lines)
}

/// Whether a PBS has an event for a reservation that is changed.
fn knows_modifyresv(version: &str) -> bool {
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.trim().parse().ok());
    major.is_some_and(|major: u32| major >= 22)
}

fn with_resource(
    resource: &Resource,
    present: Option<&BTreeMap<String, String>>,
) -> Result<Option<String>, String> {
    let Resource {
        name, kind, flags, ..
    } = *resource;
    let Some(present) = present else {
        let flags = if flags.is_empty() {
            String::new()
        } else {
            format!(",flag={flags}")
        };
        return Ok(Some(format!("create resource {name} type={kind}{flags}")));
    };
    let text = |key: &str| present.get(key).map_or("", |value| &value[..]);
    // A set of words would do as well for vnodes, and a site may have made it so.
    let fits = text("type") == kind || (kind == "string" && text("type") == "string_array");
    if !fits {
        return Err(format!(
            "this PBS has a resource {name} of type {}, and gpuos needs one of type {kind}: delete it with qmgr, or rename it, then try again",
            text("type")
        ));
    }
    let (have, need): (BTreeSet<char>, BTreeSet<char>) =
        (text("flag").chars().collect(), flags.chars().collect());
    // More flags than that are the site's own.
    Ok((!need.is_subset(&have)).then(|| format!("set resource {name} flag = {flags}")))
}

fn words(text: &str) -> BTreeSet<&str> {
    text.trim_matches('"').split(',').map(str::trim).collect()
}

/// The lines that take all of it out again, but for [`NGPUS`], which other jobs may use. `nodes` have what their vnodes were given.
pub fn remove(resources: &Objects, hooks: &Objects, nodes: &Objects) -> Vec<String> {
    let mut lines = Vec::new();
    if hooks.contains_key(HOOK) {
        // A mom in which an end of this hook runs answers a deletion and keeps the hook, which has to do nothing then. To take `execjob_end` out of its events
        // before would have such a mom delete it under that end, and crash (seen in OpenPBS 23.06.06).
        lines.push(format!("set hook {HOOK} enabled = false"));
        lines.push(format!("delete hook {HOOK}"));
    }
    let ours = || {
        let ours = RESOURCES.iter().map(|resource| resource.name);
        ours.chain(FORMER).filter(|name| *name != NGPUS)
    };
    for (node, attributes) in nodes {
        for name in ours() {
            let key = format!("resources_available.{name}");
            // A name with a blank or a quote is none that mom gave.
            if attributes.contains_key(&key) && !node.contains([' ', '"', '\'', ';']) {
                lines.push(format!("unset node {node} {key}"));
            }
        }
    }
    let present = ours().filter(|name| resources.contains_key(*name));
    lines.extend(present.map(|name| format!("delete resource {name}")));
    lines
}

/// The directory with PBS's programs, by the text of pbs.conf.
///
/// # Errors
/// It names none.
pub fn programs(pbs_conf: &str) -> Result<String, String> {
    match pbs_conf::value(pbs_conf, "PBS_EXEC") {
        Some(directory) if directory.starts_with('/') => Ok(format!("{directory}/bin")),
        _ => Err("it has no line PBS_EXEC=DIRECTORY".into()),
    }
}

/// How many GPUs the largest domain of each level has.
pub fn largest(hosts: &BTreeMap<String, Host>) -> BTreeMap<String, u64> {
    let mut domains: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let unknown = String::new();
    for (name, host) in hosts {
        let first = host.gpus.first().map(|gpu| &gpu.nvlink);
        // Another one takes GPUs of such a host without a look at their sets.
        let apart = host.advise && host.gpus.iter().any(|gpu| Some(&gpu.nvlink) != first);
        for gpu in host.gpus.iter().filter(|gpu| gpu.is_whole()) {
            let of = [
                ("node", name),
                ("nvlink", if apart { &unknown } else { &gpu.nvlink }),
                ("leaf", &host.leaf),
            ];
            for (level, domain) in of.into_iter().filter(|(_, domain)| !domain.is_empty()) {
                *domains.entry((level, domain)).or_default() += 1;
            }
        }
    }
    let mut largest = BTreeMap::new();
    for ((level, _), gpus) in domains {
        let most = largest.entry(level.to_owned()).or_insert(gpus);
        *most = gpus.max(*most);
    }
    largest
}

/// Whether some hosts have several sets of GPUs with NVLink.
pub fn several_sets(hosts: &BTreeMap<String, Host>) -> bool {
    hosts.values().any(has_several_sets)
}

/// Says of the GPUs of hosts which are divided, by the pools of gpuos.toml. How their kinds can be divided, by name.
///
/// # Errors
/// A pool cannot be PBS's: a sentence.
pub fn divide(
    hosts: &mut BTreeMap<String, Host>,
    config: &MigConfig,
) -> Result<BTreeMap<String, Geometry>, String> {
    let mut boards = BTreeMap::new();
    for (name, host) in hosts {
        host.gpus.iter_mut().for_each(|gpu| gpu.mig = None);
        let short = name.split('.').next().unwrap_or_default();
        let Some((pool, board)) = config.pool_of(short).filter(|_| !host.gpus.is_empty()) else {
            continue;
        };
        if host.advise {
            return Err(format!(
                "{short} has advise in gpus.json, where gpuos makes no slices, and is in a pool of gpuos.toml: take it out of one of the two"
            ));
        }
        let count = host.gpus.len();
        let (own, switchable) = (pool.gpus, pool.switchable);
        if !switchable.is_empty() {
            return Err(format!(
                "GPUs {switchable} of {short} are MIG-switchable in gpuos.toml, and PBS counts a GPU in one way only: leave them out of switchable"
            ));
        }
        let first = count.saturating_sub(own.len());
        if !own.iter().map(NvmlIndex::index).eq(first..count) {
            return Err(format!(
                "GPUs {own} of {short} are in a pool of gpuos.toml, and the host has {count}: those of a pool have to be its last ones"
            ));
        }
        let divided = Divided {
            board: board.name.clone(),
            compute: board.geometry.compute(),
            memory: board.geometry.slices(),
        };
        for gpu in host.gpus.iter_mut().skip(first) {
            if gpu.shares > 0 {
                return Err(format!(
                    "a GPU of {short} has shares in gpus.json and is in a pool of gpuos.toml: take it out of one of the two"
                ));
            }
            gpu.mig = Some(divided.clone());
        }
        boards.insert(board.name.clone(), board.geometry.clone());
    }
    Ok(boards)
}

/// How the GPUs that jobs share are shared, by what the administrator says of hosts and by gpuos.toml; `None`: none is.
///
/// # Errors
/// They are not shared alike, or it is not said how much memory one has that jobs are to have in turns: a sentence.
pub fn shares(hosts: &BTreeMap<String, Host>, config: &Config) -> Result<Option<Shares>, String> {
    let mut shares: Option<Shares> = None;
    let turns = config.memory.turns;
    for (name, host) in hosts {
        let short = name.split('.').next().unwrap_or_default();
        let shared = host.gpus.iter().filter(|gpu| gpu.shares > 0);
        for (nth, gpu) in shared.enumerate() {
            let known = shares.map_or(u64::MAX, |shares| shares.gpu_mib);
            // All of a host have as much.
            let gpu_mib = match (turns, nth) {
                (0, _) => 0,
                (_, 0) => stated_mib(short, host.gpus.len(), config).ok_or_else(|| {
                    format!(
                        "jobs are to have GPUs of {short} in turns with their memory, and how much memory these have is not said: write a [[nodes]] \
                         for {short} into gpuos.toml, or turns = 0"
                    )
                })?,
                _ => known,
            };
            let parts = gpu.shares;
            let other = shares.map_or(parts, |shares| shares.parts);
            if other != parts {
                return Err(format!(
                    "a GPU of {short} has {parts} shares in gpus.json, and another one {other}: all that are shared have to have as many"
                ));
            }
            let gpu_mib = gpu_mib.min(known);
            shares = Some(Shares {
                parts,
                turns,
                gpu_mib,
                most_mib: config.memory.most_in_turns_mib(gpu_mib),
            });
        }
    }
    Ok(shares)
}

/// What jobs can have of memory beyond that of whole GPUs, by what the administrator says of hosts and by gpuos.toml; `None`: the site has none for them.
pub fn memory(hosts: &BTreeMap<String, Host>, config: &Config) -> Option<Beyond> {
    let has = |host: &Host| !host.advise && host.gpus.iter().any(Gpu::is_whole);
    let hosts = hosts.iter().filter(|(_, host)| has(host));
    Beyond::of(
        config,
        hosts.map(|(name, host)| (name.split('.').next().unwrap_or_default(), host.gpus.len())),
    )
}

/// The hook that comes with PBS and gives GPUs, too.
const PBS_CGROUPS: &str = "pbs_cgroups";

/// What an administrator is told of hosts on which another one gives GPUs, or may: a sentence each.
pub fn beside(hosts: &BTreeMap<String, Host>, hooks: &Objects) -> Vec<String> {
    let names = |advise: bool| -> Vec<&str> {
        let own = hosts
            .iter()
            .filter(|(_, host)| host.advise == advise && !host.gpus.is_empty());
        own.map(|(name, _)| &name[..]).collect()
    };
    let (advised, own) = (names(true), names(false));
    let enabled = hooks.get(PBS_CGROUPS).and_then(|hook| hook.get("enabled"));
    let enabled = enabled.is_some_and(|word| word.eq_ignore_ascii_case("true"));
    let mut said = Vec::new();
    if !advised.is_empty() {
        said.push(format!(
            "On {} another one gives GPUs, and gpuos only advises: it makes no vnodes there and gives, confines and refuses nothing.",
            advised.join(", ")
        ));
    }
    if enabled && !own.is_empty() {
        said.push(format!(
            "The hook pbs_cgroups is enabled, which counts GPUs as well: see that it leaves out {} (exclude_hosts, or run_only_on_hosts without them), or give them \"advise\": true in gpus.json.",
            own.join(", ")
        ));
    }
    said
}

/// The hosts that an administrator describes, as JSON: a table of [`Host`] by name.
///
/// # Errors
/// Why the text is none, or which value cannot be used.
pub fn read_hosts(text: &str) -> Result<BTreeMap<String, Host>, String> {
    let hosts: BTreeMap<String, Host> =
        serde_json::from_str(text).map_err(|why| why.to_string())?;
    for (name, host) in &hosts {
        if !gpuos_model::hostlist::is_name(name) {
            return Err(format!(
                "'{}' is no name of a host",
                gpuos_model::hostlist::shorten(name)
            ));
        }
        described::check(host).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(hosts)
}
