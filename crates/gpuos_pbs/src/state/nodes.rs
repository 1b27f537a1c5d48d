//! `pbsnodes -av -F json`: vnodes, and the hosts that they make up.

use std::collections::HashMap;

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::json::Json;
use crate::hook::resources::{MIG_COMPUTE, MIG_MEMORY, NGPUS, SHARE_PARTS, SHOWN, SITE_NGPUS};
use crate::hook::room::site_number;
use crate::hook::vnodes::is_vnode;
use crate::published::Published;
use crate::units::kib;

/// A vnode: a host, or a part of one of which a site has made a vnode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vnode {
    /// Name.
    pub name: String,
    /// Whether PBS starts jobs on it, once it has room.
    pub up: bool,
    /// The same, reservations aside.
    pub works: bool,
    /// Reservations that have it, now or later.
    pub reserved: Vec<String>,
    /// Whether it was taken out of service, by an administrator or by gpuos.
    pub out: bool,
    /// Whether one job has it to itself now, whatever that job leaves of it.
    pub exclusive: bool,
    /// The jobs that PBS has on it, each once.
    pub jobs: Vec<String>,
    /// What it has, by resource; values as PBS prints them.
    pub available: Vec<(String, String)>,
    /// CPUs, and what of them is given away.
    pub cpus: Count,
    /// Memory in KiB.
    pub memory_kib: Count,
    /// GPUs in service.
    pub gpus: Count,
    /// Compute and memory slices of divided GPUs, and parts of shared ones, in service: [`OF_PARTS`].
    pub parts: [Count; 3],
    /// GPUs that the site has counted on it, those included that gpuos has taken out of service.
    pub site_gpus: u64,
    /// The queue whose jobs alone it serves; empty: all.
    pub queue: String,
    /// Its state, as PBS prints it.
    pub state: String,
    /// How jobs have it, as PBS prints it; empty: PBS does not say.
    pub sharing: String,
    /// What an administrator, or gpuos, says of it.
    pub comment: String,
}

/// What PBS counts of GPUs that are divided or shared, by name.
pub const OF_PARTS: [&str; 3] = [MIG_COMPUTE, MIG_MEMORY, SHARE_PARTS];

/// GPUs, CPUs and memory in KiB, in this order.
pub type Counts = [u64; 3];

/// How much there is, and how much of it is given away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// All of it.
    pub all: u64,
    /// What jobs have.
    pub used: u64,
}

impl Count {
    /// What is left.
    pub fn free(self) -> u64 {
        self.all.saturating_sub(self.used)
    }
}

/// A host, with its vnodes. PBS counts GPUs and knows none from another: which ones are free is what gpuosd shows, as far as that agrees with
/// the counts; where nothing is shown the first are free, as many as are counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Name: what PBS has as resource `host`.
    pub name: String,
    /// Whether jobs can start on one of its vnodes at all.
    pub up: bool,
    /// Indices of its vnodes in [`Nodes::vnodes`], in PBS's order.
    pub vnodes: Vec<usize>,
    /// One more than the highest number of a GPU.
    pub gpus: usize,
    /// GPUs that jobs can have as a whole, those that are not offline.
    pub present: GpuSet,
    /// Those of them that no job has.
    pub free: GpuSet,
    /// GPUs out of service.
    pub out: GpuSet,
    /// What gpuosd shows of them.
    pub shown: Option<Published>,
}

/// All vnodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nodes {
    /// Vnodes, in PBS's order.
    pub vnodes: Vec<Vnode>,
    /// Hosts, in the order of their first vnodes.
    pub hosts: Vec<Host>,
    /// What cannot be read: sentences.
    pub notes: Vec<String>,
    by_name: HashMap<String, usize>,
    host_of: Vec<usize>,
}

impl Nodes {
    /// Reads what `pbsnodes -av -F json` prints.
    ///
    /// # Errors
    /// The text is not what pbsnodes prints: a sentence.
    pub fn parse(text: &str) -> Result<Nodes, String> {
        let json = Json::parse(text).map_err(|why| format!("pbsnodes: {why}"))?;
        let all = json
            .get("nodes")
            .map_err(|why| format!("pbsnodes: {why}"))?;
        let all = all.ok_or("pbsnodes: its answer has no \"nodes\"")?;
        let mut nodes = Nodes::default();
        let mut of_host: HashMap<String, usize> = HashMap::new();
        let mut seen: HashMap<&str, u32> = HashMap::new();
        for (name, _) in all.entries() {
            *seen.entry(name).or_default() += 1;
        }
        for (name, json) in all.entries() {
            let read = match seen.get(&**name) {
                Some(1) => vnode(name, json),
                _ => Err("it stands in the answer twice".into()),
            };
            let (vnode, host) = match read {
                Ok(read) => read,
                Err(why) => {
                    let name = name.escape_debug();
                    nodes.notes.push(format!("vnode {name} is left out: {why}"));
                    continue;
                }
            };
            let at = *of_host.entry(host.clone()).or_insert_with(|| {
                nodes.hosts.push(Host {
                    name: host,
                    ..Host::default()
                });
                nodes.hosts.len() - 1
            });
            nodes.hosts[at].vnodes.push(nodes.vnodes.len());
            nodes.by_name.insert(vnode.name.clone(), nodes.vnodes.len());
            nodes.host_of.push(at);
            nodes.vnodes.push(vnode);
        }
        for host in &mut nodes.hosts {
            let own: Vec<&Vnode> = host.vnodes.iter().map(|at| &nodes.vnodes[*at]).collect();
            if let Err(why) = host.count(&own) {
                nodes.notes.push(format!(
                    "{SHOWN} of {} cannot be read, so which of its GPUs are free is not known: {why}",
                    host.name
                ));
            }
        }
        Ok(nodes)
    }

    /// The vnode of a name: its index.
    pub fn vnode(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The host of a vnode: its index.
    pub fn host_of(&self, vnode: usize) -> Option<usize> {
        self.host_of.get(vnode).copied()
    }

    /// Has vnodes that no reservation has but these count as if there were none. The others go on to be somebody's.
    pub fn forgive(&mut self, own: &[&str]) {
        for (at, vnode) in self.vnodes.iter_mut().enumerate() {
            let mut reserved = vnode.reserved.iter();
            let forgiven = !vnode.reserved.is_empty() && reserved.all(|id| own.contains(&&id[..]));
            vnode.up |= vnode.works && forgiven;
            self.hosts[self.host_of[at]].up |= vnode.up;
        }
    }

    /// GPUs of a host that a job could have now: those of vnodes that are up.
    pub fn open(&self, host: &Host) -> GpuSet {
        let open = self.vnodes_of(host).map(|(_, vnode)| vnode);
        let open = open.filter(|vnode| vnode.up && !vnode.is_closed(false));
        first_of(open.map(|vnode| vnode.gpus.free()).sum(), &[host.free])
    }

    /// Whether jobs can have GPUs of a host as a whole, those out of service counted.
    pub fn gives_whole_gpus(&self, host: &Host) -> bool {
        self.vnodes_of(host).any(|(_, vnode)| vnode.site_gpus > 0)
    }

    /// The vnodes of a host, with their indices.
    pub fn vnodes_of(&self, host: &Host) -> impl Iterator<Item = (usize, &Vnode)> {
        host.vnodes
            .iter()
            .filter_map(|at| Some((*at, self.vnodes.get(*at)?)))
    }
}

impl Vnode {
    /// The value of a resource that it has.
    pub fn resource(&self, name: &str) -> Option<&str> {
        let mut found = self.available.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| &value[..])
    }

    /// Whether it has this value of a resource: as the only one, or in a list of them.
    pub fn has(&self, name: &str, value: &str) -> bool {
        let any = |own: &str| own.split(',').any(|one| one.trim() == value);
        self.resource(name).is_some_and(any)
    }

    /// Whether a job that is alone on its vnodes, or any other one, finds nothing left here, whatever is counted.
    pub fn is_closed(&self, alone: bool) -> bool {
        self.exclusive || (alone || self.is_unshared()) && self.is_busy()
    }

    /// Whether each job is alone on it, as the site has it.
    pub fn is_unshared(&self) -> bool {
        UNSHARED.contains(&&self.sharing[..])
    }

    /// Whether a job has something of it.
    fn is_busy(&self) -> bool {
        !self.jobs.is_empty() || self.counts().iter().any(|count| count.used > 0)
    }

    /// What it has of all that is counted here.
    pub fn all(&self) -> Counts {
        self.counts().map(|count| count.all)
    }

    /// What is left of that.
    pub fn left(&self) -> Counts {
        self.counts().map(Count::free)
    }

    fn counts(&self) -> [Count; 3] {
        [self.gpus, self.cpus, self.memory_kib]
    }
}

impl Host {
    /// Names the GPUs that are counted on its vnodes.
    ///
    /// # Errors
    /// What is shown of them cannot be read: why.
    fn count(&mut self, vnodes: &[&Vnode]) -> Result<(), String> {
        self.up = vnodes.iter().any(|vnode| vnode.up);
        let all: u64 = vnodes.iter().map(|vnode| vnode.site_gpus).sum();
        let serve = || vnodes.iter().filter(|vnode| !vnode.out);
        let in_service = serve().map(|vnode| vnode.gpus.all).sum();
        let left = serve().filter(|vnode| !vnode.is_closed(false));
        let left = left.map(|vnode| vnode.gpus.free()).sum();
        let mut shows = vnodes.iter();
        let shows = shows.find_map(|vnode| Some((vnode.site_gpus, vnode.resource(SHOWN)?)));
        let read = shows.map(|(_, text)| Published::parse(text)).transpose();
        let shown = read.clone().unwrap_or_default().unwrap_or_default();
        let whole = shown.whole;
        let named = shown.links.iter().chain(&shown.numa);
        let named = named.fold(whole.0 | shown.out.0, |all, group| all | group.gpus.0);
        let highest = u64::from(u64::BITS - named.leading_zeros());
        let counted = match shows {
            // Vnodes of an earlier gpuos have GPUs that are counted on the host's own too.
            Some((site, _)) if in_service <= whole.len() as u64 => site,
            _ => all,
        };
        self.gpus = highest.max(counted).min(MAX_GPUS as u64) as usize;
        let any = GpuSet::first(self.gpus);
        let serve = whole.minus(shown.out);
        self.present = first_of(in_service, &[shown.free.and(serve), serve, whole, any]);
        self.free = first_of(left, &[shown.free.and(self.present), self.present]);
        self.out = match named {
            0 => any.minus(self.present),
            _ => shown.out,
        };
        self.shown = read?;
        Ok(())
    }
}

/// So many GPUs: those of the first set first, in each the lowest.
pub(super) fn first_of(count: u64, sets: &[GpuSet]) -> GpuSet {
    let all = sets.iter().flat_map(|set| set.iter());
    all.fold(GpuSet::EMPTY, |found, gpu| {
        match (found.len() as u64) < count {
            true => found.with(gpu),
            false => found,
        }
    })
}

/// States in which PBS starts jobs on a vnode, once it has room.
const UP: [&str; 3] = ["free", "job-busy", EXCLUSIVE];

/// The state of a vnode that is out of service until somebody says otherwise.
const OUT: &str = "offline";

/// The state of a vnode that one job has to itself.
const EXCLUSIVE: &str = "job-exclusive";

/// How vnodes are shared. Where hosts are given away whole, PBS decides alone.
const SHARED: [&str; 3] = ["", "default_shared", "ignore_excl"];
/// How a vnode is one job's alone. What a job says against it is not looked at.
const UNSHARED: [&str; 2] = ["default_excl", "force_excl"];

fn vnode(name: &str, json: &Json) -> Result<(Vnode, String), String> {
    if !is_vnode(name) {
        return Err("its name is not valid".into());
    }
    let empty = Json::Object(Vec::new());
    let available = json.get("resources_available")?.unwrap_or(&empty);
    let assigned = json.get("resources_assigned")?.unwrap_or(&empty);
    let count = |name: &str, unit: fn(&str) -> Option<u64>| -> Result<Count, String> {
        let of = |json: &Json| -> Result<u64, String> {
            match json.text(name)? {
                "" => Ok(0),
                text => unit(text).ok_or_else(|| format!("{name} is no number")),
            }
        };
        Ok(Count {
            all: of(available)?,
            used: of(assigned)?,
        })
    };
    let whole = |text: &str| text.parse().ok();
    let gpus = count(NGPUS, whole)?;
    let noted = available.text(SITE_NGPUS)?;
    if matches!(noted.split_once('>'), Some((site, _)) if whole(site).is_none()) {
        return Err(format!("{SITE_NGPUS} has no number"));
    }
    let site_gpus = site_number(gpus.all, Some(noted));
    let sharing = json.text("sharing")?;
    let state = json.text("state")?;
    let states: Vec<&str> = state.split(',').map(str::trim).collect();
    // What a reservation holds, or another scheduler than the default one has, is not for this one to give away.
    let reserved = json.get("resv")?;
    let works = (SHARED.contains(&sharing) || UNSHARED.contains(&sharing))
        && json.text("partition")?.is_empty()
        && states.iter().all(|state| UP.contains(state));
    let host = match available.text("host")? {
        "" => name.split('[').next().unwrap_or(name),
        host => host,
    };
    let (cpus, memory_kib) = (count("ncpus", whole)?, count("mem", kib)?);
    let [compute, memory, shared] = OF_PARTS.map(|name| count(name, whole));
    let listed = json.get("jobs")?;
    let vnode = Vnode {
        name: name.to_owned(),
        up: works && reserved.is_none(),
        works,
        reserved: reserved.map(names).unwrap_or_default(),
        out: states.contains(&OUT),
        exclusive: states.contains(&EXCLUSIVE),
        jobs: listed.map(names).unwrap_or_default(),
        available: available
            .texts()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        cpus,
        memory_kib,
        gpus: Count {
            all: gpus.all.min(MAX_GPUS as u64),
            used: gpus.used,
        },
        parts: [compute?, memory?, shared?],
        site_gpus: site_gpus.min(MAX_GPUS as u64),
        queue: json.text("queue")?.to_owned(),
        state: state.to_owned(),
        sharing: sharing.to_owned(),
        comment: json.text("comment").unwrap_or_default().trim().to_owned(),
    };
    Ok((vnode, host.to_owned()))
}

/// The jobs or reservations of a vnode, which PBS lists as `12.head` or `12.head/0`.
fn names(listed: &Json) -> Vec<String> {
    let all = match listed {
        Json::List(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    let mut names: Vec<String> = Vec::new();
    for one in all {
        let Json::Text(text) = one else { continue };
        for name in text.split(',') {
            let name = name.trim();
            let name = name.split('/').next().unwrap_or(name);
            if !name.is_empty() && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}
