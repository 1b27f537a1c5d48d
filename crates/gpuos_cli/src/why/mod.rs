//! `gpuos why`: where a job went, or why it waits.

mod decided;
mod gone;
mod memory;
mod pending;
mod reason;
mod requeue;
mod running;
mod slices;

use std::path::Path;

use anyhow::{Result, anyhow};
use gpuos_config::options::JobOptions;
use gpuos_host::Machine;
use gpuos_host::slurm::act::unsaved_comment;
use gpuos_host::slurm::site::{Site, options_in_script, options_in_words};
use gpuos_host::slurm::{self, Job};
use gpuos_placement::explain::Note;
use gpuos_placement::record::Recording;
use serde_json::{Value, json};

use self::memory::Asked;
use crate::ckpt::brief;
use crate::cli::WhyArgs;
use crate::names::Name;
use crate::notes::notes;
use crate::replay::recording;
use crate::reply::Reply;

/// The answer about one job.
struct Answer {
    /// What stands first.
    sentence: String,
    /// Tables and figures.
    details: String,
    /// Fields of the JSON.
    json: Value,
    /// Whether the job is there, waiting or running.
    yes: bool,
}

pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &WhyArgs) -> Result<Reply> {
    let label = &args.job;
    let jobs = slurm::jobs(machine)?;
    let asked_for = Name::parse(label).ok_or_else(|| anyhow!("{label}: no job number"))?;
    let mine: Vec<&Job> = jobs.iter().filter(|job| asked_for.means(job)).collect();
    if mine.is_empty() {
        return Ok(gone::from_accounting(machine, &jobs, label, &asked_for));
    }
    let mut site = Site::read(machine, config)?;
    // Whoever may not read it still gets an answer.
    let recording = recording(machine, &site.running.directory()).ok();
    let mut text = String::new();
    let mut answers = Vec::new();
    let mut yes = false;
    for job in mine {
        let name = asked_for.of(job);
        site.see_partition(&job.partitions);
        let mut answer = answer(machine, &site, &jobs, recording.as_ref(), (job, &name));
        if let Some(told) = requeue::told(&job.admin_comment) {
            answer.sentence += &format!(" {told}");
        }
        let decided = decided::last(recording.as_ref(), job);
        if let (Some(mix), true) = (&decided.mix, job.is_running()) {
            answer.sentence += &format!(" {mix}");
        }
        let kept = job.is_running() && job.unreadable.is_empty();
        let kept = kept.then(|| brief::of(&args.runtime_dir, job)).flatten();
        if let Some((sentence, told)) = kept {
            answer.sentence += &format!(" {sentence}");
            if let Value::Object(fields) = &mut answer.json {
                fields.insert("checkpoints".into(), told);
            }
        } else if let Some(why) = unsaved_comment(&job.admin_comment) {
            let why = why.trim_end_matches('.');
            let what = match job.is_running() {
                true => "its checkpoints come to nothing",
                false => "the checkpoints of its last run came to nothing",
            };
            answer.sentence += &format!(" By its record {what}: {why}.");
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text += &format!("{}\n", answer.sentence);
        if !answer.details.is_empty() {
            text += &format!("\n{}", answer.details);
        }
        yes |= answer.yes;
        if !decided.text.is_empty() {
            text += &format!("\n{}", decided.text);
        }
        let mut fields = json!({
            "job": job.label,
            "id": job.id,
            "name": job.name,
            "user": job.user,
            "state": job.state,
            "reason": job.reason,
            "sentence": answer.sentence,
            "decision": decided.json,
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut fields, answer.json) {
            all.extend(more);
        }
        answers.push(fields);
    }
    text += &notes(&site);
    let json = json!({ "job": label, "known": true, "jobs": answers, "notes": site.notes });
    Ok(Reply {
        schema: "gpuos.why/2",
        json,
        text,
        yes,
    })
}

fn answer(
    machine: &dyn Machine,
    site: &Site,
    jobs: &[Job],
    recording: Option<&Recording>,
    (job, name): (&Job, &str),
) -> Answer {
    if !job.unreadable.is_empty() {
        let sentence = format!(
            "Job {} is {}, and what it has or asks for cannot be read: {}. A text of its user, such as its name, looks \
             like a part of its record; `scontrol update JobId={} JobName=…` gives it a name of one line.",
            job.label,
            job.state,
            job.unreadable,
            slurm::in_command(job)
        );
        return Answer {
            sentence,
            details: String::new(),
            json: json!({ "unreadable": job.unreadable }),
            yes: job.is_running() || job.is_pending(),
        };
    }
    if job.is_running() {
        let mut answer = running::explain(site, jobs, job);
        let (_, memory) = options(machine, job);
        memory.running(site, job, &mut answer);
        answer
    } else if job.is_pending() {
        let others = outside(machine, site, job);
        let options = options(machine, job);
        pending::explain(site, (jobs, recording), (job, name), &options, others)
    } else {
        let ended = if job.end.is_empty() {
            String::new()
        } else {
            format!(" at {}", job.end)
        };
        let sentence = format!("Job {name} has ended{ended}: {}.", job.state);
        Answer {
            sentence,
            details: String::new(),
            json: json!({}),
            yes: false,
        }
    }
}

/// The nodes that are not in the reservation of a job that has one: it gets none of them.
fn outside(machine: &dyn Machine, site: &Site, job: &Job) -> Vec<String> {
    if job.reservation.is_empty() {
        return Vec::new();
    }
    let Some(inside) = slurm::reserved_nodes(machine, &job.reservation) else {
        return Vec::new();
    };
    let names = site.nodes.iter().map(|node| &node.name);
    names
        .filter(|name| !inside.contains(name))
        .cloned()
        .collect()
}

/// The gpuos options that a job was submitted with, from wherever Slurm shows them:
/// a note of gpuos, the submit line (26.05 on), or the batch script. Those that give it memory may stand in the script beside others
/// in the line.
fn options(machine: &dyn Machine, job: &Job) -> (JobOptions, Asked) {
    let mut options = options_in_words(job.submit_line.split_whitespace());
    let named = ["--gpuos-mem", "--gpuos-share"];
    let is_said = named.iter().any(|name| job.submit_line.contains(name));
    let mut script = JobOptions::default();
    if !is_said {
        let id = job.id.to_string();
        let written = slurm::scontrol(machine, &["write", "batch_script", &id, "-"]);
        script = written.map_or(script, |text| options_in_script(&text));
    }
    let memory = Asked::new(job, &options, &script);
    if options.is_default() {
        options = script;
    }
    // The reason that gpuos gives for a required level names the option that would not wait.
    let own = reason::words(&job.reason);
    if reason::is_own(&own) && options.topology.is_none() {
        let named = own
            .split_whitespace()
            .map(|word| word.trim_end_matches('.'));
        options.topology = options_in_words(named).topology;
        if let Some(wish) = &mut options.topology {
            wish.required = true;
        }
    }
    if let Some(wish) = Note::parse(&job.system_comment).and_then(|note| note.wish) {
        options.topology = Some(wish);
    }
    (options, memory)
}

#[cfg(test)]
mod table;
