//! `gpuos drain NODE --migrate`: the node's jobs with checkpoints save, and go on elsewhere.
//!
//! ```text
//!  gpuosd drains the node: no job comes ─► each job saves ─► committed ─► the node's Extra names the job ─► requeued ─► may start at once
//! ```
//!
//! A job that does not save in time, or may not be requeued, stays where it is and ends there as jobs of a draining node do.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use gpuos_core::health::Verb;
use gpuos_core::health::held::{held, is_cut};
use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointJob;
use gpuos_host::Machine;
use gpuos_host::slurm::act;
use gpuos_host::socket::{Client, NAME};
use gpuos_model::screen::line;
use gpuos_workload::action::{Action, Outcome};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::ckpt::before::{self, Saved};
use crate::ckpt::now::spinner;
use crate::cli::DrainArgs;
use crate::drain::{PATIENCE, ask};
use crate::reply::Reply;
use crate::table::count;
use crate::{daemons, remote};

/// How often slurmctld is asked.
const LOOK: Duration = Duration::from_secs(2);
/// gpuosd asks gpuos_mover every 15 s, and writes what it tells within 10 s where the node drains.
const PUBLISHED: Duration = Duration::from_secs(60);
/// A requeued job is cleaned up on its nodes before it can start.
const CLEANED: Duration = Duration::from_secs(120);

/// What becomes of a job of the node.
struct Moved {
    job: JobId,
    saved: Option<u32>,
    published: bool,
    requeued: bool,
    why: String,
}

impl Moved {
    fn json(&self) -> Value {
        json!({
            "job": self.job,
            "saved": self.saved,
            "published": self.published,
            "requeued": self.requeued,
            "why": self.why,
        })
    }

    fn text(&self) -> String {
        let Moved { job, why, .. } = self;
        match (self.saved, self.requeued) {
            (Some(number), true) if self.published => {
                format!("job {job} has saved as checkpoint {number} and is requeued\n")
            }
            (Some(number), true) => format!(
                "job {job} has saved as checkpoint {number} and is requeued, though the node is not published as holding it: {}\n",
                line(why)
            ),
            (Some(number), false) => format!(
                "job {job} has saved as checkpoint {number} and stays: {}\n",
                line(why)
            ),
            (None, _) => format!("job {job} stays, and has not saved: {}\n", line(why)),
        }
    }
}

pub fn run(machine: &dyn Machine, args: &DrainArgs) -> Result<Reply> {
    let target = &args.admin.target;
    if !target.gpus.is_empty() {
        bail!(
            "--migrate is about a whole node: write `gpuos drain {} --migrate`, or --force for single GPUs",
            target.node
        );
    }
    let reach = &args.admin.reach;
    let dir = daemons::pick(&reach.runtime_dir, Some(&target.node));
    let only_here = args.admin.local || daemons::is_of_nodes(&reach.runtime_dir);
    match Client::connect(&dir.join(NAME), PATIENCE) {
        Ok(client) if client.daemon.1 == target.node => here(machine, client, args),
        Ok(client) if args.admin.local => bail!(
            "this is node {}, not {}: leave --local out to reach it over ssh",
            client.daemon.1,
            target.node
        ),
        Err(e) if only_here => {
            daemons::check_known(machine, &target.node)?;
            Err(anyhow!(e))
        }
        _ => far(machine, args),
    }
}

fn here(machine: &dyn Machine, mut client: Client, args: &DrainArgs) -> Result<Reply> {
    let node = &args.admin.target.node;
    let dir = daemons::pick(&args.admin.reach.runtime_dir, Some(node));
    // First: no other job comes meanwhile, and who ends this command has a node that drains.
    let message = ask(&mut client, Verb::Drain, &args.admin, false)?;
    let jobs = before::running(machine, &dir);
    let bar = spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let moved = migrated(machine, args, &dir, &jobs, &bar);
    bar.finish_and_clear();
    let gone = moved.iter().filter(|moved| moved.requeued).count();
    let mut text = format!("{message}\n");
    text.extend(moved.iter().map(Moved::text));
    text += &match moved.len() {
        0 => format!("no job with checkpoints runs on {node}\n"),
        all => format!("{gone} of {} requeued\n", count(all, "job")),
    };
    let jobs: Vec<Value> = moved.iter().map(Moved::json).collect();
    Ok(Reply {
        schema: "gpuos.migrate/1",
        json: json!({ "node": node, "message": message, "jobs": jobs }),
        text,
        yes: gone == moved.len(),
    })
}

/// Has them save and requeues them, each as soon as it may be.
fn migrated(
    machine: &dyn Machine,
    args: &DrainArgs,
    dir: &std::path::Path,
    jobs: &[CheckpointJob],
    bar: &ProgressBar,
) -> Vec<Moved> {
    let node = &args.admin.target.node;
    let limit = Duration::from_secs(u64::from(args.limit) * 60);
    let begun = Instant::now();
    let watch = |left: usize| bar.set_message(format!("{} to save", count(left, "job")));
    let saved = before::saved(machine, dir, jobs, limit, watch);
    let mut moved: Vec<Moved> = saved
        .into_iter()
        .map(|(job, saved)| {
            let (saved, why) = match saved {
                Saved::As(number) => (Some(number), String::new()),
                Saved::Not(why) | Saved::Unasked(why) => (None, why),
                Saved::Late => {
                    let why = format!(
                        "it took longer than {} min (`gpuos ckpt show {job}` tells what it waits for)",
                        args.limit
                    );
                    (None, why)
                }
            };
            Moved {
                job,
                saved,
                published: false,
                requeued: false,
                why,
            }
        })
        .collect();
    // One that has ended meanwhile is nobody to be moved.
    moved.retain(|one| one.saved.is_some() || runs(machine, node, &one.job));
    // The new nodes look there for what this one holds.
    let patience = limit.saturating_sub(begun.elapsed()).clamp(LOOK, PUBLISHED);
    published(machine, node, &mut moved, patience, bar);
    for one in moved.iter_mut().filter(|one| one.saved.is_some()) {
        bar.set_message(format!("job {} is requeued", one.job));
        let requeue = Action::Requeue {
            job: one.job.clone(),
        };
        match act::act(machine, node, &requeue) {
            Outcome::Done(_) => one.requeued = true,
            other => one.why = other.words().to_string(),
        }
    }
    released(machine, node, &moved, bar);
    moved
}

/// Whether a job is on the node still and does not end; what slurmctld does not tell counts as yes.
fn runs(machine: &dyn Machine, node: &str, job: &JobId) -> bool {
    let Some(Ok(record)) = job.number().map(|number| act::job(machine, number)) else {
        return true;
    };
    record.is_some_and(|record| {
        let here = record.nodes.iter().any(|name| name == node);
        here && record.is_running() && record.state != "COMPLETING"
    })
}

/// Waits until the node's `Extra` names the jobs that have saved.
fn published(
    machine: &dyn Machine,
    node: &str,
    moved: &mut [Moved],
    patience: Duration,
    bar: &ProgressBar,
) {
    let deadline = Instant::now() + patience;
    loop {
        let record = act::node(machine, node);
        let extra = record.as_ref().map_or("", |record| &record.extra);
        let named: BTreeSet<u32> = held(extra).into_iter().map(|held| held.job).collect();
        // Who is left out of a list is found by the record of his job.
        let leaves_out = is_cut(extra);
        let mut left = 0;
        for one in moved.iter_mut().filter(|one| one.saved.is_some()) {
            let number = one.job.number();
            one.published = leaves_out || number.is_some_and(|job| named.contains(&job));
            left += usize::from(!one.published);
        }
        if left == 0 || Instant::now() >= deadline {
            break;
        }
        bar.set_message(format!(
            "{} to be published in the node's record",
            count(left, "job")
        ));
        sleep(LOOK);
    }
    for one in moved
        .iter_mut()
        .filter(|one| one.saved.is_some() && !one.published)
    {
        one.why = "gpuosd has not written it in time".into();
    }
}

/// Has requeued jobs start as soon as there are nodes, in place of Slurm's two minutes.
fn released(machine: &dyn Machine, node: &str, moved: &[Moved], bar: &ProgressBar) {
    let deadline = Instant::now() + CLEANED;
    let mut waits: Vec<&JobId> = moved
        .iter()
        .filter_map(|one| one.requeued.then_some(&one.job))
        .collect();
    while !waits.is_empty() && Instant::now() < deadline {
        bar.set_message(format!("{} to leave the node", count(waits.len(), "job")));
        waits.retain(|job| {
            let (job, avoid_node) = ((*job).clone(), false);
            let release = Action::Release { job, avoid_node };
            let outcome = act::act(machine, node, &release);
            matches!(outcome, Outcome::NotYet(_) | Outcome::NoAnswer(_))
        });
        if !waits.is_empty() {
            sleep(LOOK);
        }
    }
}

/// The same command on the node.
fn far(machine: &dyn Machine, args: &DrainArgs) -> Result<Reply> {
    let admin = &args.admin;
    let node = &admin.target.node;
    let mut words = format!(
        "gpuos --json drain --local {node} --migrate --limit={}",
        args.limit
    );
    if !admin.reason.is_empty() {
        words += &format!(" --reason={}", remote::quoted(&admin.reason));
    }
    words += &remote::runtime_dir(&admin.reach.runtime_dir);
    let limit = Duration::from_secs(u64::from(args.limit) * 60) + PUBLISHED + CLEANED * 2;
    let (told, yes) = remote::ask_within(machine, limit, &admin.reach.via, node, &words)?;
    let mut text = format!("{}\n", line(told["message"].as_str().unwrap_or_default()));
    for job in told["jobs"].as_array().into_iter().flatten() {
        let saved = job["saved"]
            .as_u64()
            .and_then(|number| u32::try_from(number).ok());
        let moved = Moved {
            job: serde_json::from_value(job["job"].clone()).unwrap_or_default(),
            saved,
            published: job["published"] == true,
            requeued: job["requeued"] == true,
            why: job["why"].as_str().unwrap_or_default().into(),
        };
        text += &moved.text();
    }
    let mut json = told;
    if let Some(fields) = json.as_object_mut() {
        fields.remove("schema");
    }
    Ok(Reply {
        schema: "gpuos.migrate/1",
        json,
        text,
        yes,
    })
}
