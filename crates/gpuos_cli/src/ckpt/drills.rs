//! `gpuos ckpt drill --all` and `--sample`: one job after another, each with a line.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use gpuos_core::health::held::held;
use gpuos_core::job::JobId;
use gpuos_host::Machine;
use gpuos_host::slurm;
use gpuos_model::screen::line;
use serde_json::json;

use super::now::spinner;
use super::{drill, find};
use crate::cli::CkptDrillArgs;
use crate::reply::Reply;
use crate::table::count;

/// Minutes for which nodes are waited for where nothing else is said: a full cluster is no failed drill.
const QUEUE_MINUTES: u32 = 10;

/// All running jobs with checkpoints, of the user or, for root, of everybody; or so many of them.
///
/// # Errors
/// Slurm does not tell what runs.
pub fn run(machine: &dyn Machine, args: &CkptDrillArgs) -> Result<Reply> {
    let args = CkptDrillArgs {
        queue_minutes: args.queue_minutes.or(Some(QUEUE_MINUTES)),
        ..args.clone()
    };
    let mut jobs = running(machine, &args)?;
    if let Some(most) = args.sample {
        jobs = sample(jobs, most as usize, &machine.secret()?);
    }
    let (mut well, mut failed, mut not_run) = (Vec::new(), Vec::new(), Vec::new());
    let mut text = String::new();
    let bar = spinner();
    for (at, job) in (1..).zip(&jobs) {
        bar.set_prefix(format!("{at} of {} ", jobs.len()));
        match drill::one(machine, &args, &job.to_string(), &bar) {
            Ok(done) => {
                text += &done.text;
                match done.yes {
                    true => well.push(done.json),
                    false => failed.push(done.json),
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                text += &format!("job {job}: {}\n", line(&why));
                not_run.push(json!({ "job": job, "why": why }));
            }
        }
    }
    bar.finish_and_clear();
    if !jobs.is_empty() && not_run.len() == jobs.len() {
        bail!("no drill could be run\n{}", text.trim_end());
    }
    text += &match jobs.len() {
        0 => "no running job has checkpoints: there was nothing to restore\n".into(),
        all => format!(
            "{} of {} restored, {} failed, {} not run\n",
            well.len(),
            count(all, "job"),
            failed.len(),
            not_run.len()
        ),
    };
    let yes = failed.is_empty() && not_run.is_empty();
    Ok(Reply {
        schema: "gpuos.ckpt-drills/1",
        json: json!({ "lose": args.lose, "restored": well, "failed": failed, "not_run": not_run }),
        text,
        yes,
    })
}

/// Running jobs that have checkpoints, by what nodes publish and by the gpuos_mover of this machine.
fn running(machine: &dyn Machine, args: &CkptDrillArgs) -> Result<Vec<JobId>> {
    let mut kept = BTreeSet::new();
    if args.reach.node.is_none() && !args.reach.local {
        let nodes = slurm::nodes(machine)?;
        let numbers = nodes.iter().flat_map(|node| held(&node.extra));
        kept.extend(numbers.map(|held| JobId::from(held.job)));
    }
    for (_, mover) in find::meant(machine, &args.reach)? {
        // One that does not answer tells of nothing.
        let told = mover.list(None).map(|told| told.jobs).unwrap_or_default();
        let with = told.into_iter().filter(|job| !job.checkpoints.is_empty());
        kept.extend(with.map(|job| job.job));
    }
    let own = machine
        .run("id", &["-u"])?
        .stdout
        .trim()
        .parse::<u32>()
        .ok();
    let jobs = slurm::jobs(machine)?.into_iter();
    let meant = jobs.filter(|job| {
        let id = JobId::from(job.id);
        let allowed = own == Some(0) || own == Some(job.uid);
        job.state == "RUNNING" && allowed && kept.contains(&id)
    });
    Ok(meant.map(|job| JobId::from(job.id)).collect())
}

/// So many of them, which nobody foresees.
fn sample(mut jobs: Vec<JobId>, most: usize, secret: &str) -> Vec<JobId> {
    let mut draw = u64::from_str_radix(secret.get(..16).unwrap_or("1"), 16).unwrap_or(1) | 1;
    while jobs.len() > most {
        // xorshift64
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        let at = (draw % jobs.len() as u64) as usize;
        jobs.remove(at);
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_as_many_as_are_wanted_and_any_of_them() {
        let jobs: Vec<JobId> = (1..=5u32).map(JobId::from).collect();
        assert_eq!(sample(jobs.clone(), 9, "0"), jobs);
        let mut seen = BTreeSet::new();
        for secret in 0..200u64 {
            let some = sample(
                jobs.clone(),
                2,
                &format!("{:016x}", secret * 0x1234_5678_9abc),
            );
            assert_eq!(some.len(), 2);
            seen.extend(some);
        }
        assert_eq!(seen.len(), 5);
    }
}
