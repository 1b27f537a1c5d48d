//! `gpuos ckpt show`: all about a job's checkpoints.

use anyhow::Result;
use gpuos_core::wire::{CheckpointForm, CheckpointJob, CheckpointPhase};
use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;
use serde_json::json;

use super::find::{self, Found};
use super::recorded;
use super::words::{self, NONE, ranges, size, span, span_ms};
use crate::cli::CkptJobArgs;
use crate::reply::Reply;
use crate::table::{Table, count};

pub fn run(machine: &dyn Machine, args: &CkptJobArgs) -> Result<Reply> {
    let found = match find::find(machine, &args.reach, &args.job, find::For::Running) {
        Ok(found) => found,
        Err(why) => return recorded::reply(machine, &args.job, why),
    };
    let mut text = String::new();
    if let Some((_, node, job)) = found.leading() {
        let users = words::users(machine, [job.uid]);
        let user = users.get(&job.uid);
        let user = user.cloned().unwrap_or_else(|| job.uid.to_string());
        // A job that waits has not left anything: it goes on from it.
        let back = match job.phase {
            CheckpointPhase::Left => found.comes_back(machine, &args.job),
            _ => None,
        };
        text = head(node, job, &user, back.as_deref());
        text += &on_other_nodes(&found, node, job);
        text += &joined(&found, job);
        text += &making(&found, job);
    }
    text += &kept(&found, words::clock());
    text += &refused(&found);
    text += &listed(&found, "came to nothing:", |job| &job.failures);
    text += &listed(&found, "does not hold:", |job| &job.faults);
    text += &rest(&found);
    Ok(Reply {
        schema: "gpuos.ckpt/1",
        json: json!({ "job": found.id, "told": found.told(), "missing": found.missing }),
        text,
        yes: true,
    })
}

/// What is the same on all nodes.
fn head(node: &str, job: &CheckpointJob, user: &str, back: Option<&str>) -> String {
    let nodes = match job.nodes.is_empty() {
        true => node.to_string(),
        false => compress(job.nodes.iter().map(String::as_str)),
    };
    let run = match job.run {
        0 => String::new(),
        1 => ", restarted once".into(),
        run => format!(", restarted {run} times"),
    };
    let mut text = format!("Job {} of {user} on {nodes}{run}\n", job.job);
    text += &started(job);
    text += &match back {
        Some(back) => format!("  kept: {}\n", line(back)),
        None => format!("  {}\n", phase(job)),
    };
    if job.phase != CheckpointPhase::Left {
        text += &match job.restored {
            Some(number) => format!("  went on from checkpoint {number}\n"),
            None if job.phase == CheckpointPhase::Running => {
                "  began without a checkpoint\n".into()
            }
            None => String::new(),
        };
    }
    if let Some(failing) = words::failing(job) {
        text += &format!("  not stored: {failing}\n");
    }
    for passed in &job.passed_over {
        text += &format!("  passed over: {}\n", line(passed));
    }
    for came in &job.came {
        text += &format!("  {}\n", line(came));
    }
    text += &match (job.interval_s, &*line(&job.interval_why)) {
        (_, why) if why.starts_with("every ") => format!("  {why}\n"),
        (Some(seconds), "") => format!("  every {}\n", span(seconds)),
        (Some(seconds), why) => format!("  every {}: {why}\n", span(seconds)),
        (None, _) => String::new(),
    };
    text += &format!("  {}\n", words::survives_sentence(job));
    text + &level3(job)
}

/// How often `gpuos run` has started the program, why the last time, and which nodes are left for the next.
fn started(job: &CheckpointJob) -> String {
    if job.start == 0 {
        return String::new();
    }
    let list = |nodes: &[String]| compress(nodes.iter().map(String::as_str));
    let mut text = format!(
        "  start {} of the program in this run of the job",
        job.start
    );
    match (&job.lost[..], job.start) {
        ([], 1) => {}
        ([], _) => text += ", as it had ended",
        (lost, _) => text += &format!(", without {}", list(lost)),
    }
    match &job.spares[..] {
        [] => text += "; no node was left to spare then\n",
        spares => text += &format!("; to spare then: {}\n", list(spares)),
    }
    text
}

/// What of it is on the parallel file system.
fn level3(job: &CheckpointJob) -> String {
    let newest = job.drained.map(|number| format!("; newest {number}"));
    match job.level3.is_empty() {
        true => String::new(),
        false => format!(
            "  level 3: {}{}\n",
            line(&job.level3),
            newest.unwrap_or_default()
        ),
    }
}

fn phase(job: &CheckpointJob) -> String {
    let mut text = format!(
        "{}: {}",
        words::phase(job.phase),
        words::phase_sentence(job.phase)
    );
    if !job.why.is_empty() {
        text += &format!("; {}", line(&job.why));
    }
    text
}

/// Where a node is not as far as the one that leads.
fn on_other_nodes(found: &Found<'_>, leading: &str, lead: &CheckpointJob) -> String {
    let others = found.movers.iter().flat_map(|(_, told)| {
        let jobs = told.jobs.iter();
        jobs.map(|job| (told.node.as_str(), job))
    });
    let others = others
        .filter(|(node, job)| *node != leading && (job.phase, &job.why) != (lead.phase, &lead.why));
    let lines = others.map(|(node, job)| format!("  {node} is {}\n", phase(job)));
    lines.collect()
}

/// Which ranks have joined.
fn joined(found: &Found<'_>, lead: &CheckpointJob) -> String {
    let jobs = found.movers.iter().flat_map(|(_, told)| {
        let jobs = told.jobs.iter();
        jobs.map(|job| (told.node.as_str(), job))
    });
    let each: Vec<String> = jobs
        .clone()
        .filter(|(_, job)| !job.ranks.is_empty())
        .map(|(node, job)| format!("{} on {node}", ranges(job.ranks.iter().copied())))
        .collect();
    let size = jobs.clone().find_map(|(_, job)| job.size);
    match (size, each.is_empty()) {
        (Some(size), false) => format!(
            "  {} of the program, joined: {}\n",
            count(size as usize, "rank"),
            each.join(", ")
        ),
        (Some(size), true) => format!(
            "  {} of the program, none joined here\n",
            count(size as usize, "rank")
        ),
        (None, _) if lead.phase == CheckpointPhase::Running => {
            "  no rank of the program has joined yet\n".into()
        }
        (None, _) => String::new(),
    }
}

fn making(found: &Found<'_>, lead: &CheckpointJob) -> String {
    let Some(making) = &lead.making else {
        return String::new();
    };
    let mut text = format!(
        "  making checkpoint {} {} for {}: waits for {}",
        making.number,
        words::reason(making),
        span_ms(making.for_ms),
        words::waits(making)
    );
    for (_, told) in &found.movers {
        let others = told.jobs.iter().filter(|job| !std::ptr::eq(*job, lead));
        for other in others.filter_map(|job| job.making.as_ref()) {
            if other.number == making.number && !other.waits_for.is_empty() {
                text += &format!("; {}: {}", told.node, words::waits(other));
            }
        }
    }
    text + "\n"
}

/// The checkpoints, of all nodes that were asked.
fn kept(found: &Found<'_>, now: u64) -> String {
    let several = found.movers.len() > 1;
    let mut head = vec![
        "NODE",
        "NUMBER",
        "AGE",
        "COMMITTED",
        "FILES",
        "SIZE",
        "ON DISK",
        "TOOK",
    ];
    let skip = usize::from(!several);
    let mut rows = Vec::new();
    for (_, told) in &found.movers {
        for kept in told.jobs.iter().flat_map(|job| &job.checkpoints) {
            rows.push((kept.number, told.node.clone(), kept));
        }
    }
    if rows.is_empty() {
        return "\nno checkpoint is kept yet\n".into();
    }
    rows.sort_by_key(|(number, ..)| *number);
    let coded = rows.iter().any(|(.., kept)| kept.form.is_some());
    if coded {
        head.push("FORM");
    }
    let mut table = Table::new(&head[skip..]);
    for (number, node, kept) in rows {
        let cells = [
            node,
            number.to_string(),
            span(now.saturating_sub(kept.time)),
            if kept.committed { "yes" } else { "no" }.into(),
            kept.files.to_string(),
            size(kept.bytes),
            size(kept.stored),
            kept.took_ms.map_or_else(|| NONE.into(), span_ms),
        ];
        let form = coded.then(|| kept.form.as_ref().map_or_else(|| NONE.into(), form));
        table.row(cells.into_iter().chain(form).skip(skip));
    }
    format!("\n{}", table.render())
}

/// What is compressed, by how much all of it became less, and what is encrypted.
fn form(form: &CheckpointForm) -> String {
    let packed = form.compression.as_ref().map(|how| {
        let less = form.plain.saturating_sub(form.kept);
        let percent = u128::from(less) * 100 / u128::from(form.plain.max(1));
        format!("{how} (-{percent} %)")
    });
    let secret = form.encryption.as_ref().map(|how| {
        let part = form.encrypted < form.kept;
        if part {
            format!("{how} in part")
        } else {
            how.clone()
        }
    });
    let both: Vec<String> = packed.into_iter().chain(secret).collect();
    line(&both.join(", ")).into_owned()
}

/// Checkpoints that the program could not load.
fn refused(found: &Found<'_>) -> String {
    let jobs = found.movers.iter().flat_map(|(_, told)| &told.jobs);
    let all = words::refused(jobs);
    let lines = all.iter().map(|sentence| format!("  {sentence}\n"));
    let lines: String = lines.collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\npassed over from now on:\n{lines}"),
    }
}

/// Sentences that nodes tell, each once.
fn listed(found: &Found<'_>, title: &str, of: fn(&CheckpointJob) -> &Vec<String>) -> String {
    let mut all: Vec<&String> = Vec::new();
    for sentence in found
        .movers
        .iter()
        .flat_map(|(_, told)| &told.jobs)
        .flat_map(of)
    {
        if !all.contains(&sentence) {
            all.push(sentence);
        }
    }
    if all.is_empty() {
        return String::new();
    }
    let lines = all.iter().map(|sentence| format!("  {}\n", line(sentence)));
    format!("\n{title}\n{}", lines.collect::<String>())
}

/// Who was not asked, and how to.
pub fn rest(found: &Found<'_>) -> String {
    let missing = found
        .missing
        .iter()
        .map(|why| format!("not asked: {}\n", line(why)));
    let mut text: String = missing.collect();
    let Some((_, _, lead)) = found.leading() else {
        return text;
    };
    let asked = |node: &&String| found.movers.iter().any(|(_, told)| told.node == **node);
    let named = |node: &&String| {
        found
            .missing
            .iter()
            .any(|why| why.starts_with(&format!("{node}: ")))
    };
    let others = lead
        .nodes
        .iter()
        .filter(|node| !asked(node) && !named(node));
    let others: Vec<&str> = others.map(String::as_str).collect();
    if !others.is_empty() {
        text += &format!(
            "The job's other nodes, {}, keep parts of their own: --node NODE asks one of them.\n",
            compress(others.iter().copied())
        );
    }
    match text.is_empty() {
        true => text,
        false => format!("\n{text}"),
    }
}
