//! `gpuos replay`: the planner is asked again what slurmctld asked it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpuos_host::{Machine, slurm};
use gpuos_model::cluster::Cluster;
use gpuos_placement::explain::{sentence, why_wait};
use gpuos_placement::plan::{Choice, Request, Wait};
use gpuos_placement::record::{self, By, Counts, Recording};
use serde_json::{Value, json};

use crate::cli::ReplayArgs;
use crate::figures::{choice_json, wait_json};
use crate::pbs_why;
use crate::reply::Reply;
use crate::steering;
use crate::table::{count, utc};

pub fn run(machine: &dyn Machine, args: &ReplayArgs) -> Result<Reply> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None if pbs_why::is_meant(machine, false) => bail!(
            "decisions are recorded by slurmctld, and this machine has PBS alone, whose planner keeps none: `gpuos pbs-planner --dry-run` \
             says what it would decide now; or name a file that `gpuos replay --save` wrote"
        ),
        None => ring_of(&slurm::running(machine)?.directory()),
    };
    let bytes = machine.read(&file).map_err(|e| unreadable(&file, &e))?;
    if args.metrics {
        let tally = record::tally(&bytes).unwrap_or_default();
        return Ok(Reply {
            schema: "gpuos.replay-metrics/1",
            json: steering::figures(&tally),
            text: steering::metrics(&tally),
            yes: true,
        });
    }
    let recording = record::read(&bytes).with_context(|| file.display().to_string())?;
    if let Some(copy) = &args.save {
        std::fs::write(copy, &bytes).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(answer(&file, &recording, args.save.as_deref()))
}

/// Where slurmctld with this configuration keeps its decisions.
pub fn ring_of(conf_folder: &Path) -> PathBuf {
    record::path(&conf_folder.to_string_lossy()).into()
}

fn unreadable(file: &Path, error: &std::io::Error) -> anyhow::Error {
    let name = file.display();
    let fix = match error.kind() {
        ErrorKind::NotFound => {
            "slurmctld with select/gpuos makes it on its own host when it starts, unless gpuos.toml \
             says records = 0 under [slurm]; or name a file that `gpuos replay --save` wrote"
        }
        ErrorKind::PermissionDenied => "run this as SlurmUser or root",
        _ => "give a file that `gpuos replay --save` wrote",
    };
    anyhow::anyhow!("cannot read {name}: {error}; {fix}")
}

/// The first decision that came out otherwise.
struct Difference {
    json: Value,
    text: String,
}

fn answer(file: &Path, recording: &Recording, saved: Option<&Path>) -> Reply {
    let mut first: Option<Difference> = None;
    let counts = recording.replay(&mut |step| {
        if step.same || first.is_some() {
            return;
        }
        let cluster = step.planner.cluster();
        let then = step.asked.answer.as_ref().map(|choice| &**choice);
        let then = then.map_err(|wait| &**wait);
        let now = step.again.as_ref();
        let request = &step.asked.request;
        let skip = step.pick.map_or(step.asked.skip, |pick| pick.skip);
        let other = match skip == step.asked.skip {
            true => String::new(),
            false => format!(", now choice {}", skip + 1),
        };
        let kind = match step.asked.by {
            By::Future => "place once running jobs are gone",
            _ => "choice",
        };
        let text = format!(
            "The first: job {} at {}, {kind} {}{other}.\n  recorded: {}\n  now:      {}\n",
            step.asked.job,
            utc(step.asked.at),
            step.asked.skip + 1,
            words(then, request, cluster),
            words(now, request, cluster),
        );
        let json = json!({
            "job": step.asked.job, "at": utc(step.asked.at), "choice": step.asked.skip + 1,
            "choice_now": skip + 1,
            "recorded": answer_json(then, cluster), "now": answer_json(now, cluster),
        });
        first = Some(Difference { json, text });
    });
    let different = counts.replayed - counts.same;
    let times = || recording.asked().map(|asked| asked.at);
    let (from, to) = (times().min().map(utc), times().max().map(utc));
    let nodes = recording.clusters.iter().map(|c| c.nodes.len()).max();
    let nodes = nodes.unwrap_or(0);
    let all = (counts.replayed + counts.skipped) as usize;
    let mut text = format!("{}: {}", file.display(), count(all, "decision"));
    if let (Some(from), Some(to)) = (&from, &to) {
        text += &format!(" from {from} to {to}");
    }
    text += &format!(
        ", {}, recorded by gpuos {}.\n",
        count(nodes, "node"),
        recording.made_by
    );
    text += &match (counts.replayed, different) {
        (0, _) => "There is nothing to repeat.\n".to_string(),
        (1, 0) => "It came out the same, bit by bit.\n".to_string(),
        (n, 0) => format!("{n} were asked again and came out the same, bit by bit.\n"),
        (n, d) => format!("{n} were asked again, and {d} came out otherwise.\n"),
    };
    text += &beside_gangs(&counts);
    if recording.tally != record::Tally::default() {
        text += &format!(
            "By slurmctld's counters {}.\n",
            steering::sentence(&recording.tally)
        );
    }
    if counts.skipped > 0 {
        text += &format!(
            "{} made for the cluster as it was some changes ago, and cannot be asked again.\n",
            match counts.skipped {
                1 => "1 was".to_string(),
                n => format!("{n} were"),
            }
        );
    }
    if let Some(first) = &first {
        text += &first.text;
        if recording.made_by != env!("CARGO_PKG_VERSION") {
            text += "Another release of gpuos made the recording and may have decided otherwise.\n";
        }
    }
    if let Some(saved) = saved {
        text += &format!("Saved as {}.\n", saved.display());
    }
    Reply {
        schema: "gpuos.replay/1",
        json: json!({
            "file": file.display().to_string(),
            "made_by": recording.made_by,
            "nodes": nodes,
            "decisions": all,
            "replayed": counts.replayed,
            "same": counts.same,
            "different": different,
            "not_replayed": counts.skipped,
            "places_once_running_jobs_are_gone": counts.futures,
            "compared_beside_gangs": counts.compared,
            "not_compared_beside_gangs": counts.not_compared,
            "form": recording.format,
            "steering": steering::figures(&recording.tally),
            "from": from,
            "to": to,
            "first_difference": first.map(|first| first.json),
            "saved": saved.map(|saved| saved.display().to_string()),
        }),
        text,
        yes: different == 0,
    }
}

/// What was done about the gangs on the network; empty where there is none.
fn beside_gangs(counts: &Counts) -> String {
    let mut text = String::new();
    if counts.futures > 0 {
        text += &format!(
            "For {} no room was free: repeated is the place in which Slurm preempted or expects room.\n",
            count(counts.futures as usize, "decision")
        );
    }
    if counts.compared > 0 {
        text += &format!(
            "For {} equally close places were compared by what running gangs leave of the network.\n",
            count(counts.compared as usize, "decision")
        );
    }
    if counts.not_compared > 0 {
        text += &format!(
            "For {} more gangs ran than were recorded, and the place is repeated by its number.\n",
            count(counts.not_compared as usize, "decision")
        );
    }
    text
}

fn words(answer: Result<&Choice, &Wait>, request: &Request, cluster: &Cluster) -> String {
    match answer {
        Ok(choice) => sentence(choice, request, cluster),
        Err(wait) => why_wait(wait),
    }
}

fn answer_json(answer: Result<&Choice, &Wait>, cluster: &Cluster) -> Value {
    match answer {
        Ok(choice) => json!({ "choice": choice_json(choice, cluster) }),
        Err(wait) => json!({ "wait": wait_json(wait) }),
    }
}

/// The recording of this cluster's slurmctld. For commands that say more when they can read it.
///
/// # Errors
/// There is none, or this user may not read it.
pub fn recording(machine: &dyn Machine, conf_folder: &Path) -> Result<Recording> {
    let file = ring_of(conf_folder);
    match machine.read(&file) {
        Ok(bytes) => Ok(record::read(&bytes)?),
        Err(error) => bail!(unreadable(&file, &error)),
    }
}
