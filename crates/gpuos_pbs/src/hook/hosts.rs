//! What `qmgr` is told of vnodes: where hosts are, how many GPUs they have where PBS does not know it, and what takes all of that back.
//!
//! All of it is on vnodes that the site has. Releases before this one made a vnode of each GPU: those are taken out here, those with jobs when these have ended.

use std::collections::{BTreeMap, BTreeSet};

use super::described::{SAID, said};
use super::event::Host;
use super::install::{HOOK, Objects, remove};
use super::resources::{FORMER, NGPUS, RESOURCES, SITE_NGPUS};
use super::room::{OF_HOST, site_number};
use super::vnodes::{gpu_of, is_vnode, short};

/// What the key of a vnode's resource begins with.
const AVAILABLE: &str = "resources_available.";

/// How all comments of gpuos begin.
const MARK: &str = "gpuos";

/// Counts of a host's own vnode by their keys, as `qmgr` prints them; `None`: it had none. Releases that made vnodes of GPUs noted CPUs and memory, too.
pub type Counts = BTreeMap<String, Option<String>>;

type Node = BTreeMap<String, String>;

/// What is to be told of hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// What hosts counted before gpuos, by their names.
    pub before: BTreeMap<String, Counts>,
    /// Sentences for the administrator.
    pub notes: Vec<String>,
    /// Lines for `qmgr`.
    pub lines: Vec<String>,
}

/// Brings the vnodes of `hosts` to what is described, and those of hosts whose GPUs gpuos gives no more to what they were. Hosts that do not fit what PBS
/// counts are taken out of `hosts`; one with jobs on vnodes of a release before this one stays as it is `known`. `noted`: what was noted at installs before.
pub fn take(
    hosts: &mut BTreeMap<String, Host>,
    known: &BTreeMap<String, Host>,
    nodes: &Objects,
    noted: &BTreeMap<String, Counts>,
) -> Taken {
    let mut taken = Taken {
        before: noted.clone(),
        ..Taken::default()
    };
    for (name, had) in known {
        let new = hosts.get(name).filter(|new| !new.gpus.is_empty());
        if new.is_some_and(|new| !new.advise || had.advise) {
            continue;
        }
        let made = Made::of(nodes, name, noted.get(name));
        if !made.busy.is_empty() {
            hosts.insert(name.clone(), had.clone());
            continue;
        }
        // Where it is is said of a host on which gpuos advises, too.
        let said: &[&str] = if new.is_some() { &SAID } else { &[] };
        made.take_out(&mut taken, nodes, name, None);
        give_back(&mut taken, nodes, name, &made, said);
        taken.before.remove(name);
    }
    hosts.retain(|name, host| {
        if host.gpus.is_empty() {
            return true;
        }
        if host.keep_cpus > 0 || host.keep_mib > 0 {
            taken.notes.push(format!(
                "keep_cpus and keep_mib of {name} mean nothing any more: all CPUs and memory of a host are counted on its own vnode."
            ));
        }
        let made = match known.contains_key(name) {
            true => Made::of(nodes, name, noted.get(name)),
            false => Made::default(),
        };
        if host.advise {
            where_it_is(&mut taken, nodes, name, host, &made);
            return true;
        }
        made.take_out(&mut taken, nodes, name, Some(host));
        host.former = made.busy.iter().filter_map(|(vnode, _)| Some(gpu_of(vnode)?.1)).collect();
        if !made.busy.is_empty() {
            taken.notes.push(made.stay(name, "install again, and the host has all its CPUs, memory and GPUs"));
        }
        if let Err(why) = counts(&mut taken, nodes, name, host, &made) {
            taken.notes.push(why);
            if known.contains_key(name) {
                give_back(&mut taken, nodes, name, &made, &[]);
                taken.before.remove(name);
            }
            return false;
        }
        where_it_is(&mut taken, nodes, name, host, &made);
        true
    });
    taken
}

/// Says on each vnode of a host where that is.
fn where_it_is(taken: &mut Taken, nodes: &Objects, name: &str, host: &Host, made: &Made) {
    for (vnode, has) in vnodes_of(nodes, name).filter(|(vnode, _)| !made.has(vnode)) {
        for (resource, value) in said(host, vnode) {
            let key = format!("{AVAILABLE}{resource}");
            match (has.get(&key), &value[..]) {
                (None, "") => {}
                (Some(_), "") => taken.lines.push(format!("unset node {vnode} {key}")),
                (Some(own), value) if own == value => {}
                (_, value) => taken
                    .lines
                    .push(format!("set node {vnode} {key} = {value}")),
            }
        }
    }
}

/// Has PBS count the GPUs of a host where it counts none.
///
/// # Errors
/// It counts more than are described: a sentence.
fn counts(
    taken: &mut Taken,
    nodes: &Objects,
    name: &str,
    host: &Host,
    made: &Made,
) -> Result<(), String> {
    if !made.is_empty() {
        // These were counted.
        return Ok(());
    }
    let numbers: Vec<u64> = vnodes_of(nodes, name)
        .filter_map(|(_, has)| gpus_of(has))
        .collect();
    let all: u64 = numbers.iter().sum();
    let described = host.gpus.len() as u64;
    if all > described {
        return Err(format!(
            "{name} is left out: PBS counts {all} GPUs there and {described} are described. Describe all of them, and install again."
        ));
    }
    if let Some((vnode, _)) = own_vnode(nodes, name).filter(|_| numbers.is_empty()) {
        let key = format!("{AVAILABLE}{NGPUS}");
        taken
            .lines
            .push(format!("set node {vnode} {key} = {}", host.whole()));
        let before = taken.before.entry(name.to_owned()).or_default();
        before.entry(key).or_insert(None);
    }
    Ok(())
}

/// The site's own number of GPUs of a vnode.
fn gpus_of(has: &Node) -> Option<u64> {
    let now = has.get(&format!("{AVAILABLE}{NGPUS}"))?.parse().ok()?;
    let noted = has.get(&format!("{AVAILABLE}{SITE_NGPUS}"));
    Some(site_number(now, noted.map(String::as_str)))
}

/// Vnodes that a release before this one has made of the GPUs of a host.
#[derive(Default)]
struct Made<'a> {
    /// Those on which jobs run.
    busy: Vec<(&'a String, &'a Node)>,
    idle: Vec<(&'a String, &'a Node)>,
}

impl<'a> Made<'a> {
    /// By what that release said of them, or by what it noted of the host: a site may have vnodes of such names itself.
    fn of(nodes: &'a Objects, name: &'a str, before: Option<&Counts>) -> Made<'a> {
        let was_divided =
            before.is_some_and(|before| before.contains_key(&format!("{AVAILABLE}ncpus")));
        let is_made = |vnode: &str, has: &Node| {
            let is_marked = FORMER
                .iter()
                .any(|name| has.contains_key(&format!("{AVAILABLE}{name}")));
            let is_alone = has
                .get("sharing")
                .is_some_and(|sharing| sharing == "force_excl");
            gpu_of(vnode).is_some() && is_vnode(vnode) && (is_marked || was_divided && is_alone)
        };
        let made = vnodes_of(nodes, name).filter(|(vnode, has)| is_made(vnode, has));
        let (busy, idle) = made.partition(|(_, has)| has.contains_key("jobs"));
        Made { busy, idle }
    }

    fn is_empty(&self) -> bool {
        self.busy.is_empty() && self.idle.is_empty()
    }

    fn has(&self, vnode: &str) -> bool {
        let mut all = self.busy.iter().chain(&self.idle);
        all.any(|(name, _)| *name == vnode)
    }

    /// That some stay, and what to do when their jobs have ended.
    fn stay(&self, name: &str, then: &str) -> String {
        let jobs: BTreeSet<String> = self.busy.iter().flat_map(|(_, has)| jobs_of(has)).collect();
        format!(
            "{name}: vnodes of {} GPUs stay, offline, until the jobs on them have ended ({}); then run gpuos pbs {then}.",
            self.busy.len(),
            jobs.into_iter().collect::<Vec<_>>().join(", ")
        )
    }

    /// Takes them out, and gives the host's own vnode what they had of it. Those on which jobs run get no others and stay, with what they have. `host`: as it
    /// is described, where its GPUs are to be counted.
    fn take_out(&self, taken: &mut Taken, nodes: &Objects, name: &str, host: Option<&Host>) {
        let Some((own, has)) = own_vnode(nodes, name).filter(|_| !self.is_empty()) else {
            return;
        };
        let idle = self.idle.iter();
        taken
            .lines
            .extend(idle.map(|(vnode, _)| format!("delete node {vnode}")));
        for (vnode, has) in &self.busy {
            let state = has.get("state").map_or("", |state| &state[..]);
            if !state.contains("offline") {
                taken
                    .lines
                    .push(format!("set node {vnode} state = offline"));
            }
        }
        let before = taken.before.entry(name.to_owned()).or_default();
        for (resource, unit) in [("ncpus", ""), ("mem", "kb"), (NGPUS, "")] {
            let key = format!("{AVAILABLE}{resource}");
            let number = |has: &Node| match resource {
                NGPUS => gpus_of(has),
                "mem" => crate::units::kib(has.get(&key)?),
                _ => has.get(&key)?.parse().ok(),
            };
            let sum =
                |of: &[(&String, &Node)]| of.iter().filter_map(|(_, has)| number(has)).sum::<u64>();
            let noted = before.get(&key).cloned().flatten();
            if let Some(value) = noted.as_ref().filter(|_| self.busy.is_empty()) {
                taken.lines.push(format!("set node {own} {key} = {value}"));
                before.remove(&key);
                continue;
            }
            let now = match (resource, host) {
                // PBS counted none of itself.
                (NGPUS, None) if noted.is_none() => continue,
                (NGPUS, Some(host)) if noted.is_none() => {
                    host.whole().saturating_sub(sum(&self.busy))
                }
                _ if resource != NGPUS && self.busy.is_empty() => {
                    taken.lines.push(format!("unset node {own} {key}"));
                    before.remove(&key);
                    continue;
                }
                _ => number(has).unwrap_or(0).saturating_add(sum(&self.idle)),
            };
            taken
                .lines
                .push(format!("set node {own} {key} = {now}{unit}"));
            before.entry(key).or_insert(None);
        }
    }
}

/// What takes gpuos out of PBS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removal {
    /// Lines for `qmgr`.
    pub lines: Vec<String>,
    /// Sentences about hosts that cannot be given back yet.
    pub kept: Vec<String>,
    /// Sentences about what stays as it is.
    pub notes: Vec<String>,
}

/// The lines that take all of gpuos out, and give each host back with what it had before. While jobs run on vnodes of a release before this one, these, the
/// hook, which is disabled, and the resources stay.
pub fn removal(
    resources: &Objects,
    hooks: &Objects,
    nodes: &Objects,
    (hosts, before): (&BTreeMap<String, Host>, &BTreeMap<String, Counts>),
) -> Removal {
    let mut removal = Removal::default();
    let mut taken = Taken {
        before: before.clone(),
        ..Taken::default()
    };
    let names: BTreeSet<&String> = hosts.keys().chain(before.keys()).collect();
    let mut former = Vec::new();
    for name in names {
        let made = Made::of(nodes, name, before.get(name));
        made.take_out(&mut taken, nodes, name, None);
        if !made.busy.is_empty() {
            removal.kept.push(made.stay(
                name,
                "remove again. The hook is disabled, and stays until then",
            ));
        }
        give_back(&mut taken, nodes, name, &made, &[]);
        former.push(made);
    }
    removal.notes = taken.notes;
    let lines = remove(resources, hooks, nodes).into_iter();
    let (stops, lines): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.starts_with(&format!("set hook {HOOK} ")));
    let waits = !removal.kept.is_empty();
    let later =
        |line: &String| line.starts_with("delete hook ") || line.starts_with("delete resource ");
    let known: BTreeSet<String> = taken.lines.iter().cloned().collect();
    // Those that stay are known by what they have.
    let gone = |line: &String| {
        let vnode = line
            .strip_prefix("unset node ")
            .and_then(|rest| rest.split(' ').next());
        vnode.is_some_and(|vnode| former.iter().any(|made| made.has(vnode)))
    };
    let lines = lines
        .into_iter()
        .filter(|line| !(known.contains(line) || gone(line) || waits && later(line)));
    // The hook has what hosts had before: it goes when these have it again.
    removal.lines = stops
        .into_iter()
        .chain(taken.lines.iter().cloned())
        .chain(lines)
        .collect();
    removal
}

/// Gives a host back: its number of GPUs, and what gpuos says on its vnodes but for these resources.
fn give_back(taken: &mut Taken, nodes: &Objects, name: &str, made: &Made, kept: &[&str]) {
    let key = format!("{AVAILABLE}{NGPUS}");
    let own = own_vnode(nodes, name).map(|(vnode, _)| vnode);
    let before = taken.before.get(name).and_then(|before| before.get(&key));
    let counted_none = before == Some(&None);
    for (vnode, has) in
        vnodes_of(nodes, name).filter(|(vnode, _)| is_vnode(vnode) && !made.has(vnode))
    {
        if Some(vnode) == own && counted_none {
            taken
                .lines
                .retain(|line| !line.starts_with(&format!("set node {vnode} {key} ")));
            taken.lines.push(format!("unset node {vnode} {key}"));
        } else if let Some(site) = gpus_of(has).filter(|_| made.is_empty())
            && has.get(&key) != Some(&site.to_string())
        {
            taken.lines.push(format!("set node {vnode} {key} = {site}"));
        }
        let ours = RESOURCES
            .iter()
            .map(|resource| resource.name)
            .filter(|name| *name != NGPUS);
        let ours = ours.chain(SAID).filter(|name| !kept.contains(name));
        for name in ours.collect::<BTreeSet<_>>() {
            let key = format!("{AVAILABLE}{name}");
            if has.contains_key(&key) {
                taken.lines.push(format!("unset node {vnode} {key}"));
            }
        }
        let comment = has.get("comment").map_or("", |comment| &comment[..]);
        if comment.starts_with(OF_HOST) {
            taken.notes.push(format!("{vnode} stays offline, with gpuos's reason in its comment: put it online when it is well (pbsnodes -r {vnode})."));
        } else if comment.starts_with(MARK) {
            taken.lines.push(format!("unset node {vnode} comment"));
        }
    }
}

/// Whether a vnode is one of this host.
fn is_of(vnode: &str, has: &Node, host: &str) -> bool {
    let host = short(host);
    let named = vnode.split('[').next().unwrap_or_default();
    short(named) == host || has.get("Mom").is_some_and(|mom| short(mom) == host)
}

fn vnodes_of<'a>(
    nodes: &'a Objects,
    host: &'a str,
) -> impl Iterator<Item = (&'a String, &'a Node)> {
    nodes
        .iter()
        .filter(move |(name, has)| is_of(name, has, host))
}

/// The vnode that is the host itself.
fn own_vnode<'a>(nodes: &'a Objects, host: &'a str) -> Option<(&'a String, &'a Node)> {
    let mut own = vnodes_of(nodes, host);
    own.find(|(name, _)| short(name) == short(host) && !name.contains('[') && is_vnode(name))
}

/// Jobs of a vnode: `17.head/0, 17.head/1`.
fn jobs_of(has: &Node) -> BTreeSet<String> {
    let listed = has.get("jobs").map_or("", |jobs| &jobs[..]);
    let names = listed
        .split(',')
        .map(|one| one.trim().split('/').next().unwrap_or_default());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}
