//! Which hosts a job can use by its queue and by the resources that it names, whoever places it; and what of it no host could ever have.

use gpuos_model::hostlist::compress;

use super::jobs::Job;
use super::nodes::{Count, Host, OF_PARTS, Vnode};
use super::site::Site;
use super::wanted::{Kind, OF_PROGRAMS, is_alone, is_number};
use crate::hook::resources::{LINKED, MIG_FITS, NGPUS, SHARE_FITS};
use crate::hook::select::{Chunk, Select};
use crate::units::kib;

/// The names of what is counted, in a select.
const COUNTED: [&str; 6] = {
    let [compute, memory, shared] = OF_PARTS;
    [NGPUS, "ncpus", "mem", compute, memory, shared]
};

/// Numbers that a host shows of its free GPUs, which a chunk may ask for and does not take.
const COMPARED: [&str; 3] = [LINKED, MIG_FITS, SHARE_FITS];

/// How much there is of each, in the order of [`COUNTED`].
type Counts = [u64; COUNTED.len()];

fn counts(vnode: &Vnode, of: impl Fn(Count) -> u64) -> Counts {
    let [compute, memory, shared] = vnode.parts;
    [
        vnode.gpus,
        vnode.cpus,
        vnode.memory_kib,
        compute,
        memory,
        shared,
    ]
    .map(of)
}

/// A chunk, and what its vnodes have to be like.
struct Ask {
    count: u64,
    each: Counts,
    /// At least so much a host has to show.
    shown: Vec<(&'static str, u64)>,
    kind: Kind,
}

/// Which hosts a job can use; `None`: all.
///
/// # Errors
/// No host could ever have it: what it lacks, as a sentence without its end.
pub fn scope(job: &Job, site: &Site) -> Result<Option<String>, String> {
    let Ok(select) = Select::parse(&job.select) else {
        return Ok(None);
    };
    let mut told = Vec::new();
    for chunk in &select.0 {
        let ask = Ask::of(chunk, job, site);
        ask.never(site)?;
        let could = |host: &&Host| ask.holds(ask.most(site, host));
        let all = &site.nodes.hosts;
        let hosts: Vec<&str> = all
            .iter()
            .filter(could)
            .map(|host| &host.name[..])
            .collect();
        if hosts.len() < all.len() {
            let sentence = format!("{} can have {}", compress(hosts), ask.text());
            if !told.contains(&sentence) {
                told.push(sentence);
            }
        }
    }
    if is_alone(job) {
        told.push("it wants vnodes without other jobs (place=excl)".into());
    }
    Ok((!told.is_empty()).then(|| told.join("; ")))
}

/// The hosts with room now for a chunk of a job; `None`: there is too little for all its chunks, each kind of them looked at alone.
pub fn room(job: &Job, site: &Site) -> Option<Vec<String>> {
    let select = Select::parse(&job.select).ok()?;
    let mut names: Vec<String> = Vec::new();
    for chunk in &select.0 {
        let ask = Ask::of(chunk, job, site);
        let mut sum: u64 = 0;
        for host in &site.nodes.hosts {
            let left = |vnode: &Vnode| counts(vnode, Count::free);
            let left = total(site, host, |vnode| ask.kind.allows(vnode), left);
            let times = left.iter().zip(ask.each);
            let times = times
                .filter_map(|(left, each)| left.checked_div(each))
                .min();
            let times = match ask.is_shown(site, host) {
                true => times.unwrap_or(u64::MAX),
                false => 0,
            };
            sum = sum.saturating_add(times);
            if times > 0 && !names.contains(&host.name) {
                names.push(host.name.clone());
            }
        }
        if sum < ask.count {
            return None;
        }
    }
    Some(names)
}

/// What the vnodes of a host that are meant have together.
fn total(
    site: &Site,
    host: &Host,
    is_meant: impl Fn(&Vnode) -> bool,
    of: impl Fn(&Vnode) -> Counts,
) -> Counts {
    let vnodes = site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
    let meant = vnodes.filter(|vnode| is_meant(vnode));
    meant.map(of).fold(Counts::default(), |sum, more| {
        std::array::from_fn(|at| u64::saturating_add(sum[at], more[at]))
    })
}

impl Ask {
    fn of(chunk: &Chunk, job: &Job, site: &Site) -> Ask {
        let counted = |name: &str| {
            let value = chunk.values(name).next().unwrap_or("0");
            match name {
                "mem" => kib(value),
                _ => value.parse().ok(),
            }
        };
        let is_need = |(name, value): &&(String, String)| {
            let name = name.to_ascii_lowercase();
            let known = COUNTED.contains(&&name[..]) || OF_PROGRAMS.contains(&&name[..]);
            !known && !is_number(value)
        };
        let needs = chunk.wants.iter().filter(is_need);
        let needs = needs.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        Ask {
            count: chunk.count.unwrap_or(1).into(),
            each: COUNTED.map(|name| counted(name).unwrap_or(0)),
            shown: COMPARED
                .into_iter()
                .filter_map(|name| Some((name, counted(name).filter(|least| *least > 0)?)))
                .collect(),
            kind: Kind {
                needs: needs.collect(),
                alone: is_alone(job),
                ..Kind::of_queue(job, site)
            },
        }
    }

    /// All that a host could ever give such chunks.
    fn most(&self, site: &Site, host: &Host) -> Counts {
        let all = |vnode: &Vnode| {
            let mut all = counts(vnode, |count| count.all);
            all[0] = all[0].max(vnode.site_gpus);
            all
        };
        total(site, host, |vnode| self.kind.fits(vnode), all)
    }

    /// Whether a host has in one piece what is to be so.
    fn is_shown(&self, site: &Site, host: &Host) -> bool {
        let shows = |name: &str, least: u64| {
            let mut vnodes = site.nodes.vnodes_of(host);
            vnodes.any(|(_, vnode)| {
                let shown = vnode.resource(name).and_then(|text| text.parse().ok());
                shown.is_some_and(|shown: u64| shown >= least)
            })
        };
        self.shown.iter().all(|(name, least)| shows(name, *least))
    }

    fn holds(&self, counts: Counts) -> bool {
        counts.iter().zip(self.each).all(|(has, each)| *has >= each)
    }

    /// What a chunk needs, as it is written.
    fn text(&self) -> String {
        let counts = COUNTED.iter().zip(self.each).filter(|(_, each)| *each > 0);
        let counts = counts.map(|(name, each)| match *name {
            "mem" => format!("mem={each}kb"),
            name => format!("{name}={each}"),
        });
        let needs = self.kind.needs.iter();
        let needs = needs.map(|(name, value)| format!("{name}={value}"));
        let text: Vec<String> = needs.chain(counts).collect();
        let queue = match &self.kind.queue[..] {
            "" => String::new(),
            queue => format!(" for queue {queue}"),
        };
        text.join(":") + &queue
    }

    fn never(&self, site: &Site) -> Result<(), String> {
        let vnodes = &site.nodes.vnodes;
        let of_queue = match &self.kind.queue[..] {
            "" => String::new(),
            queue => format!(" of queue {queue}"),
        };
        for need in &self.kind.needs {
            let one = |queue: &str| Kind {
                queue: queue.into(),
                needs: vec![need.clone()],
                ..Kind::default()
            };
            let own = one(&self.kind.queue);
            if vnodes.iter().any(|vnode| own.fits(vnode)) {
                continue;
            }
            let (name, value) = need;
            let mut others = vnodes.iter().filter(|vnode| vnode.queue != self.kind.queue);
            let elsewhere = others.find(|vnode| one(&vnode.queue).fits(vnode));
            return Err(match elsewhere.map(|vnode| &vnode.queue[..]) {
                None => format!("no vnode has {name}={value}"),
                Some("") => {
                    format!("no vnode{of_queue} has {name}={value}; those of no queue have")
                }
                Some(queue) => format!("vnodes of queue {queue} alone have {name}={value}"),
            });
        }
        let hosts = || site.nodes.hosts.iter().map(|host| self.most(site, host));
        let needs = match self.kind.needs.is_empty() {
            true => String::new(),
            false => {
                let all = self.kind.needs.iter();
                let all = all.map(|(name, value)| format!("{name}={value}"));
                format!(" with {}", all.collect::<Vec<_>>().join(", "))
            }
        };
        for (at, name) in COUNTED.iter().enumerate() {
            let most = hosts().map(|counts| counts[at]).max().unwrap_or(0);
            if self.each[at] > most {
                let unit = if *name == "mem" { "kb" } else { "" };
                return Err(format!(
                    "a chunk has {name}={}{unit}, and no host{of_queue}{needs} has more than {most}{unit}",
                    self.each[at]
                ));
            }
        }
        match hosts().any(|counts| self.holds(counts)) {
            true => Ok(()),
            false => Err(format!("no host has all of {} together", self.text())),
        }
    }
}
