//! `gpuos why` for a job of PBS: where it runs, or why it waits and what the planner would do with it.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_pbs::hook::resources::{MIG, NGPUS, SHARE, SHARE_PARTS};
use gpuos_pbs::hook::vnodes::{Given, parse_exec_vnode};
use gpuos_pbs::pass::{Plan, plan};
use gpuos_pbs::state::jobs::is_job;
use gpuos_pbs::state::{Job, Site, scope};
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use serde_json::{Value, json};

use crate::pbs_planner::keep::Keeper;
use crate::reply::Reply;

/// Whether PBS is asked: it was said, or this machine has a PBS and no commands of Slurm.
pub fn is_meant(machine: &dyn Machine, said: bool) -> bool {
    said || machine.find("scontrol").is_none() && Pbs::find(machine).is_ok()
}

/// The same for a command that asks one of the two: where the machine has both, a line on standard error says which.
pub fn is_asked(machine: &dyn Machine, said: bool) -> bool {
    let pbs = is_meant(machine, said);
    if machine.find("scontrol").is_some() && Pbs::find(machine).is_ok() {
        eprintln!(
            "gpuos: this machine has Slurm and PBS, and {}",
            match pbs {
                true => "PBS is asked",
                false => "Slurm is asked; --pbs asks PBS",
            }
        );
    }
    pbs
}

/// The answer about a job.
pub fn run(machine: &dyn Machine, config: Option<&Path>, label: &str) -> Result<Reply> {
    let pbs = Pbs::find(machine)?;
    let mut site = pbs.site(machine, config)?;
    // What is reserved for a job that is next is the planner's to give.
    Keeper::find(machine)?.own(machine, &mut site);
    let is_asked = |job: &&Job| job.id == label || job.number() == label;
    let found = site.jobs.iter().find(is_asked).cloned();
    let found = match found {
        // The list of jobs has arrays alone.
        None if subjob(label) => pbs.job(machine, label)?,
        found => found,
    };
    let Some(job) = &found else {
        let sentence = format!(
            "PBS has no job {label} that waits or runs; `qstat -x -f {label}` shows one that has ended."
        );
        return Ok(reply(label, None, sentence, Value::Null, &site));
    };
    let (sentence, more) = match &job.unreadable[..] {
        "" if job.has_vnodes() => (runs(&site, job), names(&job.given)),
        "" if subjob(&job.id) => (of_array(job), Value::Null),
        _ => waits(&site, job),
    };
    let waits = job.unreadable.is_empty() && job.state == "Q";
    let limits = match waits {
        true => limits(&site, job),
        false => String::new(),
    };
    let said = match job.comment.trim_end_matches('.') {
        "" => String::new(),
        comment => format!(" PBS says: {comment}."),
    };
    Ok(reply(
        label,
        Some(job),
        sentence + &limits + &said,
        more,
        &site,
    ))
}

/// Which hosts a job can use by its queue, its place and what it names, where these are not all.
fn limits(site: &Site, job: &Job) -> String {
    match scope::scope(job, site) {
        Err(never) => format!(" It will never start as it is: {never}."),
        Ok(Some(limits)) => format!(" By its resources and queue {limits}."),
        Ok(None) => String::new(),
    }
}

/// Whether a name is that of one job of an array, as in `12[3]` or `12[3].head`.
fn subjob(name: &str) -> bool {
    is_job(name) && name.contains('[') && !name.contains("[]")
}

/// Why a job of an array has no vnodes.
fn of_array(job: &Job) -> String {
    let id = &job.id;
    match &job.state[..] {
        "Q" => format!("Job {id} waits; pbs_sched places the jobs of an array."),
        "X" => {
            format!("Job {id} has ended; its array goes on. `qstat -x -f {id}` shows how it ended.")
        }
        "S" => format!("Job {id} is suspended."),
        state => format!("Job {id} of an array is in state {state}, and has no vnodes."),
    }
}

/// What cannot be read of a cluster, or is to be known of it, a line each.
pub fn notes(site: &Site) -> String {
    let lines = site.notes.iter().map(|note| format!("note: {note}\n"));
    lines.collect()
}

fn reply(label: &str, job: Option<&Job>, sentence: String, more: Value, site: &Site) -> Reply {
    let notes = notes(site);
    Reply {
        schema: "gpuos.why-pbs/1",
        json: json!({
            "job": label,
            "known": job.is_some(),
            "id": job.map(|job| &job.id),
            "name": job.map(|job| &job.name),
            "user": job.map(|job| &job.user),
            "state": job.map(|job| &job.state),
            "vnodes": more,
            "sentence": sentence,
            "notes": site.notes,
        }),
        text: format!("{sentence}\n{notes}"),
        yes: job.is_some(),
    }
}

fn names(given: &[Vec<Given>]) -> Value {
    let names = given.iter().flatten().map(|given| &given.vnode[..]);
    names.collect::<Vec<&str>>().into()
}

/// Where a job is that has its vnodes.
fn runs(site: &Site, job: &Job) -> String {
    let given = || job.given.iter().flatten();
    let names: Vec<&str> = given().map(|given| &given.vnode[..]).collect();
    let gpus: u64 = given().map(|given| given.count(NGPUS)).sum();
    let mut parts: Vec<(&str, u64)> = Vec::new();
    for given in given().filter(|given| given.count(NGPUS) > 0) {
        match parts.iter_mut().find(|(name, _)| *name == given.vnode) {
            Some((_, count)) => *count += given.count(NGPUS),
            None => parts.push((&given.vnode, given.count(NGPUS))),
        }
    }
    let parts = parts
        .into_iter()
        .map(|(name, count)| format!("{count} of {name}"));
    let parts: Vec<String> = parts.collect();
    let mut hosts: Vec<usize> = names
        .iter()
        .filter_map(|name| site.nodes.host_of(site.nodes.vnode(name)?))
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut levels = site.cluster.fabric.levels.iter();
    let within = levels.find_map(|level| {
        let domain = |host: &usize| level.domain_of.get(*host).copied().unwrap_or(NO_DOMAIN);
        let first = domain(hosts.first()?);
        let one = first != NO_DOMAIN && hosts.iter().all(|host| domain(host) == first);
        let name = level.domains.get(first as usize).filter(|_| one)?;
        Some(format!("in {} {name}", level.name))
    });
    let place = match (hosts.len(), within) {
        (0, _) => "on vnodes that PBS does not list any more".to_owned(),
        (1, _) => "on one host".to_owned(),
        (count, Some(within)) => format!("on {count} hosts {within}"),
        (count, None) => format!("on {count} hosts, in no domain together"),
    };
    if let Some(part) = part(site, job) {
        return part;
    }
    let has = match gpus {
        0 => "no GPUs".to_owned(),
        gpus => crate::table::count(usize::try_from(gpus).unwrap_or(usize::MAX), "GPU"),
    };
    let parts = match &parts[..] {
        [] => names.join(" "),
        parts => parts.join(", "),
    };
    format!("Job {} has {has}, {place}: {parts}.", job.id)
}

/// The part of a GPU that a job has; `None`: it has none.
fn part(site: &Site, job: &Job) -> Option<String> {
    let mut given = job.given.iter().flatten();
    let given = given.find(|given| given.count(SHARE_PARTS) > 0)?;
    let host = site.nodes.vnode(&given.vnode);
    let host = host.and_then(|at| site.nodes.hosts.get(site.nodes.host_of(at)?));
    let host = host.map_or(&given.vnode, |host| &host.name);
    Some(format!(
        "Job {} has {} of a GPU of {host}; `gpuos mem show` there says of which one, who is beside it, and whose turn it is.",
        job.id,
        crate::table::count(given.count(SHARE_PARTS) as usize, "part"),
    ))
}

/// Why a job waits, and the vnodes on which the planner would start it.
fn waits(site: &Site, job: &Job) -> (String, Value) {
    let id = &job.id;
    if job.state != "Q" {
        if !job.unreadable.is_empty() {
            let sentence = format!(
                "Job {id} does not wait, and it cannot be read: {}.",
                job.unreadable
            );
            return (sentence, Value::Null);
        }
        let what = match &job.state[..] {
            "S" => "it is suspended, and its vnodes are given to others meanwhile",
            "H" => "it is held",
            "W" => {
                "it waits for its time; one that requires a level is put off for a while when PBS would spread it"
            }
            "B" => "it is an array with tasks that have begun",
            _ => "of such jobs nothing is decided here",
        };
        return (
            format!("Job {id} is in state {}: {what}.", job.state),
            Value::Null,
        );
    }
    let plan = plan(
        site,
        &mut Planner::new(site.cluster.clone()),
        Bounds::default(),
        &HashSet::new(),
    );
    let Plan {
        starts,
        keeps,
        waits,
        left,
        ..
    } = &plan;
    if let Some(start) = starts.iter().find(|start| start.job == *id) {
        let sentence = format!(
            "Job {id} would start now: {}; on {}.",
            start.sentence.trim_end_matches('.'),
            start.exec_vnode
        );
        let given = parse_exec_vnode(&start.exec_vnode).unwrap_or_default();
        return (sentence, names(&given));
    }
    if let Some(left) = left.iter().find(|left| left.job == *id) {
        let sentence = format!("Job {id} is left to pbs_sched: {}.", left.why);
        return (sentence, Value::Null);
    }
    let Some(waits) = waits.iter().find(|waits| waits.job == *id) else {
        let has = |name: &str| {
            job.resources
                .iter()
                .any(|(one, _)| one.eq_ignore_ascii_case(name))
        };
        let what = match has(SHARE) || has(MIG) {
            true => "a part of a GPU",
            false => "no GPUs",
        };
        let sentence = format!("Job {id} asks for {what}; pbs_sched places it.");
        return (sentence, Value::Null);
    };
    let mut sentence = format!("Job {id} waits: {}.", waits.why.trim_end_matches('.'));
    match keeps.first() {
        Some(keeps) if keeps.job == *id => {
            sentence += &format!(
                " A planner with --keep=1, as by default, keeps {} for it.",
                keeps.text(&site.nodes)
            );
        }
        Some(keeps) => {
            sentence += &format!(
                " A planner with --keep=1, as by default, keeps vnodes for job {} before it.",
                keeps.job
            );
        }
        None => {}
    }
    (sentence, Value::Null)
}
