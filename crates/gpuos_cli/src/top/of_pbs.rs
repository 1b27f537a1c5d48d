//! Hosts and jobs of PBS for `gpuos top`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_pbs::hook::resources::NGPUS;
use gpuos_pbs::state::nodes::Host;
use gpuos_pbs::state::{Job, Site};

use super::board::{GpuRow, JobRow, NodeTold, Sources};
use crate::pbs_planner::keep::Keeper;

/// Adds what pbs_server says, or that it says nothing.
pub fn add(machine: &dyn Machine, config: Option<&Path>, sources: &mut Sources) {
    match site(machine, config) {
        Ok(site) => told(&site, sources),
        Err(e) => {
            let sentence = format!("no other hosts and no names of jobs: {e:#}");
            sources.missing.push(sentence);
        }
    }
}

fn site(machine: &dyn Machine, config: Option<&Path>) -> Result<Site> {
    let mut site = Pbs::find(machine)?.site(machine, config)?;
    // What the planner reserves is free for the job that is next.
    Keeper::find(machine)?.own(machine, &mut site);
    Ok(site)
}

/// Adds what a site has.
pub fn told(site: &Site, sources: &mut Sources) {
    let hosts = site.nodes.hosts.iter().filter(|host| host.gpus > 0);
    sources.nodes = Some(hosts.map(|host| node(site, host)).collect());
    sources.jobs = site.jobs.iter().filter_map(|job| row(site, job)).collect();
    sources.missing.extend(site.notes.iter().cloned());
}

fn node(site: &Site, host: &Host) -> NodeTold {
    let mut node = NodeTold {
        name: host.name.clone(),
        ..NodeTold::default()
    };
    let own = || site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
    if let Some(first) = own().next() {
        // Where a host has no vnode of its own name, its first one stands for it.
        node.state.clone_from(&first.state);
        node.reason.clone_from(&first.comment);
    }
    let holders = holders(site, host);
    let open = site.nodes.open(host);
    // gpuosd and PBS number GPUs alike: by NVIDIA's order.
    for gpu in (0..host.gpus).filter(|gpu| host.present.contains(*gpu) || host.out.contains(*gpu)) {
        let (state, jobs) = match () {
            () if !host.present.contains(gpu) => ("out", Vec::new()),
            // Where several jobs have some, PBS does not say which.
            () if !host.free.contains(gpu) => ("allocated", holders.clone()),
            () if open.contains(gpu) => ("available", Vec::new()),
            () if own().any(|vnode| vnode.works) => ("reserved", Vec::new()),
            () => ("unknown", Vec::new()),
        };
        if !jobs.is_empty() {
            node.held.insert(gpu, jobs.clone());
        }
        node.gpus.push(GpuRow {
            node: host.name.clone(),
            index: gpu,
            state: state.into(),
            jobs,
            reason: match state {
                "out" => node.reason.clone(),
                _ => String::new(),
            },
            ..GpuRow::default()
        });
    }
    node
}

/// The jobs that have GPUs of a host: those by their vnodes, and tasks of arrays, which PBS does not list beside others.
fn holders(site: &Site, host: &Host) -> Vec<String> {
    let vnodes = || site.nodes.vnodes_of(host).map(|(_, vnode)| vnode);
    let is_here = |name: &str| vnodes().any(|vnode| vnode.name == name);
    let has = |job: &&Job| {
        let mut given = job.given.iter().flatten();
        job.has_vnodes() && given.any(|given| given.count(NGPUS) > 0 && is_here(&given.vnode))
    };
    let listed = site.jobs.iter().filter(has).map(|job| job.id.clone());
    let tasks = vnodes().flat_map(|vnode| &vnode.jobs);
    let mut all: Vec<String> = listed.collect();
    all.extend(tasks.filter(|job| job.contains('[')).cloned());
    all.dedup();
    all
}

/// A job that has GPUs or asks for some.
fn row(site: &Site, job: &Job) -> Option<JobRow> {
    if !job.unreadable.is_empty() {
        return Some(JobRow {
            label: job.id.clone(),
            state: word(&job.state).into(),
            reason: format!("it cannot be read: {}", job.unreadable),
            ..JobRow::default()
        });
    }
    let given = || job.given.iter().flatten().filter(|_| job.has_vnodes());
    let gpus: u64 = given().map(|given| given.count(NGPUS)).sum();
    let asks = job.resource(NGPUS).is_some_and(|count| count != "0");
    let waits = matches!(&job.state[..], "Q" | "H" | "W" | "S" | "B" | "T");
    if gpus == 0 && !(asks && waits) {
        return None;
    }
    let mut hosts: BTreeMap<usize, ()> = BTreeMap::new();
    for given in given() {
        let vnode = site.nodes.vnode(&given.vnode);
        hosts.extend(
            vnode
                .and_then(|at| site.nodes.host_of(at))
                .map(|at| (at, ())),
        );
    }
    let wanted = job.resource("nodect").and_then(|count| count.parse().ok());
    Some(JobRow {
        label: job.id.clone(),
        user: job.user.clone(),
        state: word(&job.state).into(),
        nodes: match gpus {
            0 => wanted.unwrap_or(1),
            _ => hosts.len(),
        },
        gpus: usize::try_from(gpus).unwrap_or(usize::MAX),
        seconds: u64::try_from(job.ran).unwrap_or(0),
        name: job.name.clone(),
        reason: match gpus {
            0 => job.comment.clone(),
            _ => String::new(),
        },
    })
}

/// PBS's letter as a word.
fn word(state: &str) -> &str {
    match state {
        "Q" => "queued",
        "R" => "running",
        "E" => "exiting",
        "H" => "held",
        "W" => "waiting",
        "S" | "U" => "suspended",
        "T" => "moved",
        "B" => "begun",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;
    use gpuos_pbs::state::Texts;

    use super::super::board::Board;
    use super::*;

    /// The answers of a real PBS.
    fn board() -> Board {
        let texts = Texts {
            vnodes: include_str!("../../../gpuos_pbs/tests/data/23.06.06-vnodes.json"),
            jobs: include_str!("../../../gpuos_pbs/tests/data/23.06.06-jobs.json"),
            queues: include_str!("../../../gpuos_pbs/tests/data/23.06.06-queues.json"),
            server: include_str!("../../../gpuos_pbs/tests/data/23.06.06-server.json"),
        };
        let site = Site::read(&texts, Config::default()).unwrap();
        let mut sources = Sources::default();
        told(&site, &mut sources);
        Board::new(sources)
    }

    #[test]
    fn gpus_of_vnodes_have_the_states_and_jobs_that_pbs_says() {
        let board = board();
        let names: Vec<&str> = board.nodes.iter().map(|node| &node.name[..]).collect();
        assert_eq!(names, ["n1", "n2", "n3", "n4"]);
        let first = &board.nodes[0];
        assert_eq!(
            (first.gpus, first.used, first.jobs, first.out),
            (8, 2, 1, 0)
        );
        assert_eq!(first.state, "free");
        let gpu = |node: &str, index: usize| {
            let mut gpus = board.gpus.iter();
            gpus.find(|gpu| gpu.node == node && gpu.index == index)
                .unwrap()
        };
        assert_eq!(gpu("n1", 2).jobs, ["3.head"]);
        assert_eq!(gpu("n1", 2).state, "allocated");
        assert_eq!(gpu("n1", 0).state, "available");
        let bad = gpu("n3", 1);
        let why = "gpuos: GPU 1 is out of service; gpuos health on n3 says why";
        assert_eq!((&bad.state[..], &bad.reason[..]), ("out", why));
        assert_eq!((board.nodes[2].gpus, board.nodes[2].out), (8, 1));
    }

    #[test]
    fn jobs_that_run_come_first_and_those_without_gpus_not_at_all() {
        let board = board();
        let first = &board.jobs[0];
        assert_eq!(
            (&first.label[..], &first.state[..], first.gpus, first.nodes),
            ("3.head", "running", 4, 2)
        );
        assert_eq!(first.reason, "");
        let waits = board.jobs.iter().find(|job| job.label == "4.head");
        let waits = waits.unwrap();
        assert_eq!(
            (&waits.state[..], waits.gpus, waits.nodes),
            ("queued", 0, 2)
        );
    }
}
