//! `pbsnodes -av -F json`: vnodes, and the hosts that they make up.

use std::collections::HashMap;

use gpuos_model::gpuset::{GpuSet, MAX_GPUS};

use super::json::Json;
use crate::hook::resources::{LEAF, MIG_MEMORY, NVLINK, SHARE_PARTS};
use crate::hook::vnodes::{gpu_of, is_vnode};
use crate::units::kib;

/// A vnode: a part of a host that PBS gives away by itself, such as one GPU with its share of CPUs, or a whole host.
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
    /// Whether it is one job's alone: then pbs_server refuses a second one, whoever runs it.
    pub exclusive: bool,
    /// Whether some job has it.
    pub taken: bool,
    /// The jobs that PBS has on it, each once.
    pub jobs: Vec<String>,
    /// What it has, by resource; values as PBS prints them.
    pub available: Vec<(String, String)>,
    /// CPUs, and what of them is given away.
    pub cpus: Count,
    /// Memory in KiB.
    pub memory_kib: Count,
    /// GPUs.
    pub gpus: Count,
    /// The queue whose jobs alone it serves; empty: all.
    pub queue: String,
    /// Index of the first GPU of it among those of its host.
    pub first_gpu: usize,
    /// Its state, as PBS prints it.
    pub state: String,
    /// How jobs have it, as PBS prints it; empty: PBS does not say.
    pub sharing: String,
    /// What an administrator, or gpuos, says of it.
    pub comment: String,
}

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

/// A host, with its vnodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Name: what PBS has as resource `host`.
    pub name: String,
    /// Whether jobs can start on it at all: its first vnode is up, or it has none of the host's name.
    pub up: bool,
    /// Indices of its vnodes in [`Nodes::vnodes`]: that of the host's own name first, then by the number in brackets.
    pub vnodes: Vec<usize>,
    /// How many GPUs it has, those out of service included.
    pub gpus: usize,
}

/// All vnodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nodes {
    /// Vnodes, in PBS's order.
    pub vnodes: Vec<Vnode>,
    /// Hosts, in the order of their first vnodes.
    pub hosts: Vec<Host>,
    /// What cannot be read, and where GPUs are another's to give: sentences.
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
            number(host, &mut nodes.vnodes);
            let own = host.vnodes.first().map(|at| &nodes.vnodes[*at]);
            if own.is_some_and(|own| own.is_of_others(&host.name)) {
                nodes.notes.push(format!(
                    "GPUs of {} are counted on the host's own vnode, as pbs_cgroups does it, which gives them to jobs: gpuos only advises there",
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
        for vnode in &mut self.vnodes {
            let mut reserved = vnode.reserved.iter();
            let forgiven = !vnode.reserved.is_empty() && reserved.all(|id| own.contains(&&id[..]));
            vnode.up |= vnode.works && forgiven;
        }
    }

    /// Whether jobs can have GPUs of a host as a whole, by gpuos.
    pub fn gives_whole_gpus(&self, host: &Host) -> bool {
        let mut vnodes = self.vnodes_of(host);
        vnodes.any(|(_, vnode)| vnode.gpus.all > 0 && vnode.exclusive)
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

    /// Whether jobs share its GPU, or it is given away by its slices.
    pub fn is_in_parts(&self) -> bool {
        let has = |name: &&str| self.resource(name).is_some();
        // What it had once may be left on one that is given as a whole.
        !self.exclusive && [SHARE_PARTS, MIG_MEMORY].iter().any(has)
    }

    /// Whether another one gives its GPUs: it is the own vnode of a host that gpuos knows, on which gpuos has none.
    fn is_of_others(&self, host: &str) -> bool {
        let known = [LEAF, NVLINK]
            .iter()
            .any(|name| self.resource(name).is_some());
        self.name == host && self.gpus.all > 0 && !self.exclusive && known
    }

    /// Whether a job can have nothing of it, because it is another's alone.
    pub fn is_full(&self, job: &str) -> bool {
        self.exclusive && self.taken && self.left_with() != Some(job)
    }

    /// The job with which a start that was refused has left it: nothing of it is given away, and yet it is one job's. PBS would
    /// start this job on it, and no other.
    pub fn left_with(&self) -> Option<&str> {
        match &self.jobs[..] {
            [job] if self.exclusive && !self.is_used() => Some(job),
            _ => None,
        }
    }

    /// Whether something of it is given away.
    fn is_used(&self) -> bool {
        self.cpus.used > 0 || self.memory_kib.used > 0 || self.gpus.used > 0
    }

    /// Its GPUs by their index on the host, and those of them that are free for a job: of a vnode with several PBS says only
    /// how many.
    pub fn gpu_sets(&self, job: &str) -> (GpuSet, GpuSet) {
        let last = self.first_gpu.saturating_add(self.gpus.all as usize);
        let set = |from: usize| (from..last.min(MAX_GPUS)).fold(GpuSet::EMPTY, GpuSet::with);
        let used = match self.is_full(job) {
            true => usize::MAX,
            false => usize::try_from(self.gpus.used).unwrap_or(usize::MAX),
        };
        (
            set(self.first_gpu),
            set(self.first_gpu.saturating_add(used)),
        )
    }
}

/// States in which PBS starts jobs on a vnode, once it has room.
const UP: [&str; 3] = ["free", "job-busy", EXCLUSIVE];

/// The state of a vnode that is out of service until somebody says otherwise.
const OUT: &str = "offline";

/// The state of a vnode that one job has to itself.
const EXCLUSIVE: &str = "job-exclusive";

/// How vnodes are shared. Where hosts are given away whole, PBS decides alone.
const SHARED: [&str; 4] = ["", "default_shared", "default_excl", "ignore_excl"];
/// The one way in which a vnode is one job's alone, whatever the job says.
const UNSHARED: &str = "force_excl";

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
    let gpus = count("ngpus", whole)?;
    // A GPU that jobs share, or that is divided, is one of the host's, and nobody's as a whole.
    let parts = [count(SHARE_PARTS, whole)?, count(MIG_MEMORY, whole)?];
    let parts = parts.into_iter().find(|parts| parts.all > 0);
    let gpus = match parts {
        Some(parts) if gpus.all == 0 => Count {
            all: 1,
            used: parts.used.min(1),
        },
        _ => gpus,
    };
    let sharing = json.text("sharing")?;
    let exclusive = sharing == UNSHARED;
    let state = json.text("state")?;
    let states: Vec<&str> = state.split(',').map(str::trim).collect();
    // What a reservation holds, or another scheduler than the default one has, is not for this one to give away.
    let reserved = json.get("resv")?;
    let works = (exclusive || SHARED.contains(&sharing))
        && json.text("partition")?.is_empty()
        && states.iter().all(|state| UP.contains(state));
    let host = match available.text("host")? {
        "" => name.split('[').next().unwrap_or(name),
        host => host,
    };
    let (cpus, memory_kib) = (count("ncpus", whole)?, count("mem", kib)?);
    let listed = json.get("jobs")?;
    let mut vnode = Vnode {
        name: name.to_owned(),
        up: works && reserved.is_none(),
        works,
        reserved: reserved.map(names).unwrap_or_default(),
        out: states.contains(&OUT),
        exclusive,
        taken: states.contains(&EXCLUSIVE) || listed.is_some(),
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
        queue: json.text("queue")?.to_owned(),
        first_gpu: 0,
        state: state.to_owned(),
        sharing: sharing.to_owned(),
        comment: json.text("comment").unwrap_or_default().trim().to_owned(),
    };
    vnode.taken |= vnode.is_used();
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

/// Orders the vnodes of a host and numbers its GPUs: by the number in brackets where each vnode has one GPU at most, so that
/// those of others stay the same when one is gone; else one after the other.
fn number(host: &mut Host, vnodes: &mut [Vnode]) {
    let bracket = |vnode: &Vnode| gpu_of(&vnode.name).map(|(_, index)| index);
    let name = host.name.clone();
    let numbered = |vnode: &Vnode| vnode.name != name && bracket(vnode).is_some();
    host.vnodes
        .sort_by_key(|at| (numbered(&vnodes[*at]), bracket(&vnodes[*at]), *at));
    let single = host.vnodes.iter().all(|at| {
        let vnode = &vnodes[*at];
        vnode.gpus.all == 0 || vnode.gpus.all == 1 && bracket(vnode).is_some_and(|n| n < MAX_GPUS)
    });
    let mut next = 0;
    for at in &host.vnodes {
        let vnode = &mut vnodes[*at];
        vnode.first_gpu = match single {
            true => bracket(vnode).unwrap_or(next),
            false => next,
        };
        if vnode.gpus.all > 0 {
            next = vnode.first_gpu + vnode.gpus.all as usize;
        }
    }
    host.gpus = next.min(MAX_GPUS);
    let own = host.vnodes.first().map(|at| &vnodes[*at]);
    host.up = own.is_none_or(|vnode| numbered(vnode) || vnode.up);
}
