//! What hosts are before gpuos makes vnodes of their GPUs, and how they are given back.
//!
//! Moms change what a host's own vnode counts, so a host on which jobs run would count what these have a second time, and one whose vnode has
//! something of the site's would have it for none of its GPUs: neither is taken. What a vnode had is noted in the hook's configuration, which
//! PBS keeps.

use std::collections::{BTreeMap, BTreeSet};

use super::event::Host;
use super::install::{HOOK, Objects, remove};
use super::vnodes::{gpu_of, is_vnode, short};

/// What moms change of a host's own vnode.
const CHANGED: [&str; 3] = [
    "resources_available.ncpus",
    "resources_available.mem",
    "resources_available.ngpus",
];

/// Resources that PBS itself says of a vnode, after what their keys begin with.
const OF_PBS: [&str; 11] = [
    "arch",
    "host",
    "vnode",
    "ncpus",
    "mem",
    "vmem",
    "ngpus",
    "naccelerators",
    "accelerator",
    "accelerator_memory",
    "hpmem",
];

/// What the key of a vnode's resource begins with.
const AVAILABLE: &str = "resources_available.";

/// Counts of a host's own vnode by their keys, as `qmgr` prints them; `None`: it had none.
pub type Counts = BTreeMap<String, Option<String>>;

/// Hosts of whose GPUs vnodes are to be made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// What new ones have now, by their names.
    pub before: BTreeMap<String, Counts>,
    /// Sentences about those that are left out.
    pub left_out: Vec<String>,
    /// Lines for `qmgr` that have their counts said by their moms alone, and no job start there before these have made the vnodes.
    pub lines: Vec<String>,
}

/// Looks at hosts that are new, or described otherwise than before: those with something of the site's are taken out of `hosts`.
///
/// # Errors
/// Jobs run on some: a sentence that names hosts and jobs. Nothing may be changed then.
pub fn take(
    hosts: &mut BTreeMap<String, Host>,
    known: &BTreeMap<String, Host>,
    nodes: &Objects,
) -> Result<Taken, String> {
    let mut taken = Taken::default();
    let mut busy = Vec::new();
    hosts.retain(|name, host| {
        let is_new = !known.contains_key(name);
        if host.advise || host.gpus.is_empty() || known.get(name) == Some(host) {
            return true;
        }
        let own = own_vnode(nodes, name);
        let of_site = own.map(|(_, has)| of_site(has)).unwrap_or_default();
        if is_new && !of_site.is_empty() {
            taken.left_out.push(format!(
                "{name} is left out: its vnode has {}, which vnodes of its GPUs would not have. Take it away (qmgr -c 'unset node {name} …'), and install again.",
                of_site.join(", ")
            ));
            return false;
        }
        let jobs = jobs_of(nodes, name);
        if !jobs.is_empty() {
            busy.push(format!("{name} ({})", jobs.into_iter().collect::<Vec<_>>().join(", ")));
        }
        // What a host has that has vnodes of its GPUs already is not what it had before these.
        let divided = vnodes_of(nodes, name).any(|(vnode, _)| gpu_of(vnode).is_some());
        if let Some((_, has)) = own.filter(|_| is_new && !divided) {
            let count = |key: &str| (key.to_owned(), has.get(key).cloned());
            taken.before.insert(name.clone(), CHANGED.map(count).into());
        }
        // What a manager of PBS has set a mom does not change.
        if let Some((own, _)) = own.filter(|(own, _)| is_vnode(own)) {
            let line = |key| format!("unset node {own} {key}");
            taken.lines.extend(CHANGED.map(line));
        }
        true
    });
    match busy.is_empty() {
        true => Ok(taken),
        false => Err(format!(
            "jobs run on {}: their CPUs, memory and GPUs would be counted a second time on the vnodes of GPUs. Nothing was changed. Have no new \
             ones start there (pbsnodes -o HOST), wait until these have ended, and install again; or leave these hosts out of gpus.json for now",
            busy.join(", ")
        )),
    }
}

/// What takes gpuos out of PBS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removal {
    /// Lines for `qmgr`.
    pub lines: Vec<String>,
    /// Sentences about hosts that cannot be given back yet.
    pub kept: Vec<String>,
}

/// The lines that take all of gpuos out, and give each host back with what it had before. While jobs run on some of these hosts, they, the hook,
/// which is disabled, and the resources stay.
pub fn removal(
    resources: &Objects,
    hooks: &Objects,
    nodes: &Objects,
    before: &BTreeMap<String, Counts>,
) -> Removal {
    let mut removal = Removal::default();
    let mut rest = nodes.clone();
    let mut given_back = Vec::new();
    for (host, counts) in before {
        let jobs = jobs_of(nodes, host);
        if !jobs.is_empty() {
            removal.kept.push(format!(
                "{host} keeps the vnodes of its GPUs while jobs run there: {}. The hook is disabled and stays until then. Have no new jobs start there \
                 (pbsnodes -o), and run gpuos pbs remove again when these have ended.",
                jobs.into_iter().collect::<Vec<_>>().join(", ")
            ));
            rest.retain(|name, has| !is_of(name, has, host));
            continue;
        }
        for (vnode, _) in vnodes_of(nodes, host).filter(|(name, _)| gpu_of(name).is_some()) {
            if is_vnode(vnode) {
                given_back.push(format!("delete node {vnode}"));
                rest.remove(vnode);
            }
        }
        let Some((own, _)) = own_vnode(nodes, host).filter(|(name, _)| is_vnode(name)) else {
            continue;
        };
        for (key, value) in counts {
            given_back.push(match value {
                Some(value) => format!("set node {own} {key} = {value}"),
                None => format!("unset node {own} {key}"),
            });
        }
    }
    let lines = remove(resources, hooks, &rest).into_iter();
    let (stops, lines): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.starts_with(&format!("set hook {HOOK} ")));
    let waits = !removal.kept.is_empty();
    let later =
        |line: &String| line.starts_with("delete hook ") || line.starts_with("delete resource ");
    let lines = lines.into_iter().filter(|line| !waits || !later(line));
    // The hook has what hosts had before: it goes when these have it again.
    removal.lines = stops.into_iter().chain(given_back).chain(lines).collect();
    removal
}

/// Whether a vnode is one of this host.
fn is_of(vnode: &str, has: &BTreeMap<String, String>, host: &str) -> bool {
    let host = short(host);
    let named = vnode.split('[').next().unwrap_or_default();
    short(named) == host || has.get("Mom").is_some_and(|mom| short(mom) == host)
}

fn vnodes_of<'a>(
    nodes: &'a Objects,
    host: &'a str,
) -> impl Iterator<Item = (&'a String, &'a BTreeMap<String, String>)> {
    nodes
        .iter()
        .filter(move |(name, has)| is_of(name, has, host))
}

/// The vnode that is the host itself.
fn own_vnode<'a>(
    nodes: &'a Objects,
    host: &'a str,
) -> Option<(&'a String, &'a BTreeMap<String, String>)> {
    vnodes_of(nodes, host).find(|(name, _)| short(name) == short(host) && !name.contains('['))
}

/// Jobs that have something on a host: `17.head/0, 17.head/1`.
fn jobs_of(nodes: &Objects, host: &str) -> BTreeSet<String> {
    let listed = vnodes_of(nodes, host).filter_map(|(_, has)| has.get("jobs"));
    let names = listed.flat_map(|text| text.split(',')).map(|one| {
        let name = one.trim().split('/').next().unwrap_or_default();
        name.to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// What of a vnode neither PBS nor gpuos says: the site does.
fn of_site(has: &BTreeMap<String, String>) -> Vec<String> {
    let is = |key: &&String| match key.strip_prefix(AVAILABLE) {
        Some(name) => !OF_PBS.contains(&name) && !name.starts_with("gpuos_"),
        None => ["queue", "partition"].contains(&key.as_str()),
    };
    let keys = has.keys().filter(is);
    keys.map(|key| format!("{key} = {}", has[key])).collect()
}
