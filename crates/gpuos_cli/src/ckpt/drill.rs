//! `gpuos ckpt drill`: proves that a job's checkpoint can be restored on other nodes.
//!
//! `--lose` has it made again without some of its parts; several jobs are in `drills`.
//!
//! It is a job of the same user that begins from the checkpoint (`--gpuos-restart`), whose program reads what it is given and ends. What is
//! restored is held against its keyed digests by gpuos_mover, as at every restart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_core::wire::{CheckpointJob, CheckpointKept};
use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::find;
use super::now::spinner;
use super::words::{self, size, span, span_ms};
use crate::cli::CkptDrillArgs;
use crate::reply::Reply;
use crate::table::count;

/// How often the line on a terminal is drawn.
const TICK: Duration = Duration::from_millis(200);

/// What each rank runs.
const RANK: &str = include_str!("drill.sh");

/// What a rank has restored.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Restored {
    number: u32,
    files: u64,
    bytes: u64,
    ms: u64,
    node: String,
    came: Vec<String>,
}

/// What came of a drill.
pub struct Done {
    /// For programs.
    pub json: Value,
    /// For people.
    pub text: String,
    /// The checkpoint was restored.
    pub yes: bool,
}

pub fn run(machine: &dyn Machine, args: &CkptDrillArgs, job: &str) -> Result<Reply> {
    let bar = spinner();
    let done = one(machine, args, job, &bar)?;
    Ok(Reply {
        schema: "gpuos.ckpt-drill/1",
        json: done.json,
        text: done.text,
        yes: done.yes,
    })
}

/// Restores a checkpoint of this job elsewhere.
///
/// # Errors
/// Nothing was tried: the job is not found, or its drill did not run.
pub fn one(
    machine: &dyn Machine,
    args: &CkptDrillArgs,
    label: &str,
    bar: &ProgressBar,
) -> Result<Done> {
    let found = find::find(machine, &args.reach, label, find::For::Kept)?;
    let (_, _, job) = found.leading().context("nobody has the job")?;
    let Some(kept) = chosen(job, args.number) else {
        let which = args
            .number
            .map_or("checkpoint".into(), |number| format!("checkpoint {number}"));
        return Ok(Done {
            json: json!({ "job": found.id }),
            text: format!("no {which} of job {} is kept\n", found.id),
            yes: false,
        });
    };
    let (Some(nodes), Some(ranks)) = (kept.nodes, kept.ranks) else {
        bail!(
            "the gpuos_mover that was asked does not say for how many nodes and ranks checkpoint {} is: have it of the same release as this command",
            kept.number
        );
    };
    // What its job does not say, as it has ended, the drill finds out.
    if args.lose > job.losses && !job.scheme.is_empty() {
        bail!(
            "job {} keeps what {} can be made again from (l2={}), and --lose={} asks for more: nothing was tried",
            found.id,
            count(job.losses.into(), "lost part"),
            line(&job.scheme),
            args.lose
        );
    }
    let age = words::clock().saturating_sub(kept.time);
    let begun = Instant::now();
    let text = submitted(machine, args, (job, kept), (nodes, ranks), bar)?;
    let took = begun.elapsed();
    let said = read(&text);
    let failed: Vec<&String> = said
        .values()
        .filter_map(|said| said.as_ref().err())
        .collect();
    let restored: Vec<&Restored> = said
        .values()
        .filter_map(|said| said.as_ref().ok())
        .collect();
    let yes = failed.is_empty() && restored.len() == ranks as usize;
    let number = restored.last().map_or(kept.number, |one| one.number);
    let files: u64 = restored.iter().map(|one| one.files).sum();
    let bytes: u64 = restored.iter().map(|one| one.bytes).sum();
    let ms = restored.iter().map(|one| one.ms).max().unwrap_or(0);
    let mut came: Vec<String> = Vec::new();
    for told in restored.iter().flat_map(|one| &one.came) {
        if !came.contains(told) {
            came.push(told.clone());
        }
    }
    let mut on: Vec<&str> = restored.iter().map(|one| one.node.as_str()).collect();
    on.sort_unstable();
    on.dedup();
    let json = json!({
        "job": found.id,
        "number": number,
        "lose": args.lose,
        "well": yes,
        "nodes": on,
        "ranks": restored.len(),
        "files": files,
        "bytes": bytes,
        "restore_ms": ms,
        "drill_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "age_s": age,
        "came": came,
        "failed": failed,
    });
    let mut text = match yes {
        true => format!(
            "checkpoint {number} of job {} was restored on {}: {} of {}, {}, each byte held against its digest\n  restored in {}, with the queue in {}; the \
             checkpoint was {} old when the drill began\n",
            found.id,
            compress(on.iter().copied()),
            count(usize::try_from(files).unwrap_or(usize::MAX), "file"),
            count(restored.len(), "rank"),
            size(bytes),
            span_ms(ms),
            span(took.as_secs()),
            span(age),
        ),
        false => {
            let why = match failed.first() {
                Some(why) => line(why).into_owned(),
                None => format!(
                    "{} of {} said that they were restored; the drill's job said: {}",
                    restored.len(),
                    count(ranks as usize, "rank"),
                    line(text.trim())
                ),
            };
            format!(
                "checkpoint {number} of job {} could not be restored: {why}\n",
                found.id
            )
        }
    };
    for told in &came {
        text += &format!("  {}\n", line(told));
    }
    Ok(Done { json, text, yes })
}

/// The checkpoint that is meant: of those that a program can be given the newest.
fn chosen(job: &CheckpointJob, number: Option<u32>) -> Option<&CheckpointKept> {
    let mut kept = job.checkpoints.iter().rev();
    match number {
        Some(number) => kept.find(|kept| kept.number == number),
        None => kept.find(|kept| kept.can_be_given()),
    }
}

/// Runs the drill's job and waits for it; what it has printed.
fn submitted(
    machine: &dyn Machine,
    args: &CkptDrillArgs,
    (job, kept): (&CheckpointJob, &CheckpointKept),
    (nodes, ranks): (u32, u32),
    bar: &ProgressBar,
) -> Result<String> {
    let mut words = as_user(machine, job.uid);
    let fixed = [
        "--job-name=gpuos-drill",
        "--kill-on-bad-exit=0",
        "--gpuos-checkpoint=7d,l2=single,l3=off",
    ];
    words.extend(fixed.into_iter().map(String::from));
    words.push(format!(
        "--gpuos-restart={}/{}/lose:{}",
        job.job, kept.number, args.lose
    ));
    words.push(format!("--nodes={nodes}"));
    words.push(format!("--ntasks={ranks}"));
    words.push(format!("--time={}", args.minutes));
    let patience = args.queue_minutes;
    words.extend(patience.map(|minutes| format!("--immediate={}", minutes * 60)));
    words.extend(
        args.partition
            .iter()
            .map(|name| format!("--partition={name}")),
    );
    if !args.any_node && !job.nodes.is_empty() {
        words.push(format!(
            "--exclude={}",
            compress(job.nodes.iter().map(String::as_str))
        ));
    }
    words.extend(["sh", "-c", RANK].map(String::from));
    bar.set_message(format!(
        "restoring checkpoint {} of job {} elsewhere",
        kept.number, job.job
    ));
    bar.reset();
    bar.enable_steady_tick(TICK);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = machine.run("env", &words);
    bar.finish_and_clear();
    let output = output.context("srun, which runs the drill")?;
    match output.stdout.contains("gpuos-drill ") {
        true => Ok(output.stdout),
        false => bail!(
            "the drill did not run: {}",
            output
                .stderr
                .trim()
                .lines()
                .next_back()
                .unwrap_or("srun said nothing")
        ),
    }
}

/// The words before srun's own: root has a job of somebody else restored as that user, whose job the drill has to be.
fn as_user(machine: &dyn Machine, uid: u32) -> Vec<String> {
    let own = machine.run("id", &["-u"]).map(|said| said.stdout);
    let is_root = own.is_ok_and(|own| own.trim() == "0");
    let name = words::users(machine, [uid]).remove(&uid);
    let Some(name) = name.filter(|_| is_root && uid != 0) else {
        // Inside of another job srun would make a step of that one.
        return ["-u", "SLURM_JOB_ID", "-u", "SLURM_JOBID", "srun"]
            .map(String::from)
            .to_vec();
    };
    // Nothing of root's environment is the user's business.
    let kept = ["PATH", "SLURM_CONF", crate::daemons::RUNTIME_ENV].into_iter();
    let kept = kept.filter_map(|of| Some(format!("{of}={}", machine.env(of)?)));
    let user = ["runuser", "-u", &name, "--", "srun", "--chdir=/"].map(String::from);
    ["-i".to_string()]
        .into_iter()
        .chain(kept)
        .chain(user)
        .collect()
}

/// What ranks have said, by rank: what was restored, or why not.
fn read(text: &str) -> BTreeMap<u32, Result<Restored, String>> {
    let said = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("gpuos-drill ")?;
        let (rank, rest) = rest.split_once(' ')?;
        let (word, rest) = rest.split_once(' ')?;
        let said = match word {
            "restored" => Ok(restored(rest)?),
            _ => Err(rest.to_string()),
        };
        Some((rank.parse().ok()?, said))
    });
    said.collect()
}

fn restored(text: &str) -> Option<Restored> {
    let mut words = text.splitn(6, ' ');
    let number = words.next()?.parse().ok()?;
    let files = words.next()?.parse().ok()?;
    let bytes = words.next()?.parse().ok()?;
    let ms = words.next()?.parse().ok()?;
    let node = words.next()?.to_string();
    let came = words
        .next()
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let came = came
        .as_ref()
        .and_then(|told| told["told"][0]["jobs"][0]["came"].as_array());
    let came = came
        .into_iter()
        .flatten()
        .filter_map(|told| Some(told.as_str()?.to_string()));
    Some(Restored {
        number,
        files,
        bytes,
        ms,
        node,
        came: came.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_is_read_and_all_else_is_not() {
        let text = "hello\ngpuos-drill 0 restored 5 2 4096 1500 n4 {\"told\":[{\"jobs\":[{\"came\":[\"node n1 gave it\"]}]}]}\n\
                    gpuos-drill 1 failed cannot begin from checkpoint 5\ngpuos-drill x restored 5\ngpuos-drill 2 restored 5 1 7 9 n5 \n";
        let said = read(text);
        let Restored {
            number,
            files,
            bytes,
            ms,
            node,
            came,
        } = said[&0].as_ref().expect("it was restored");
        assert_eq!(
            (*number, *files, *bytes, *ms, node.as_str()),
            (5, 2, 4096, 1500, "n4")
        );
        assert_eq!(came, &["node n1 gave it"]);
        assert_eq!(said[&1], Err("cannot begin from checkpoint 5".into()));
        let last = said[&2].as_ref().expect("it was restored");
        assert!(last.came.is_empty());
        assert_eq!(said.len(), 3);
    }
}
