//! `gpuos ckpt list`: a line for each job with checkpoints.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointJob;
use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use gpuos_model::screen::line;
use serde_json::{Value, json};

use super::by_pbs;
use super::find;
use super::mover::{NoMover, Told};
use super::recorded;
use super::words::{self, NONE, size, span};
use crate::cli::CkptListArgs;
use crate::pbs_why;
use crate::reply::Reply;
use crate::table::{Table, count};

pub fn run(machine: &dyn Machine, args: &CkptListArgs) -> Result<Reply> {
    let (mut told, mut missing, mut first) = (Vec::new(), Vec::new(), None);
    for (node, mover) in find::meant(machine, &args.reach)? {
        match mover.list(args.job.as_ref()) {
            Ok(answer) => told.push(answer),
            Err(e) => {
                missing.extend(node.map(|node| format!("{node}: {e:#}")));
                first.get_or_insert(e);
            }
        }
    }
    if told.is_empty() {
        let Some(why) = first else {
            bail!("there is no node of a lab here: `gpuos lab up` starts one");
        };
        let reach = &args.reach;
        let is_elsewhere = reach.node.is_none() && why.is::<NoMover>();
        if is_elsewhere
            && !reach.local
            && let Some(reply) = match pbs_why::is_meant(machine, false) {
                true => by_pbs::list(machine, args.job.as_ref(), &why),
                false => recorded::list(machine, args.job.as_ref(), &why),
            }
        {
            return Ok(reply);
        }
        let hint = match is_elsewhere {
            true => {
                "; from a machine without one, --node NODE asks a node, and `gpuos ckpt show JOBID` the job's first node"
            }
            false => "",
        };
        bail!("{why:#}{hint}");
    }
    let rows = rows(&told);
    let users = words::users(machine, rows.iter().map(|row| row.lead.uid));
    let now = words::clock();
    let nodes = compress(told.iter().map(|told| told.node.as_str()));
    let mut text = table(&rows, &users, now, &nodes);
    for missing in &missing {
        text += &format!("not asked: {}\n", line(missing));
    }
    let jobs: Vec<Value> = rows.iter().map(|row| row.json(&users, now)).collect();
    Ok(Reply {
        schema: "gpuos.ckpt-list/1",
        json: json!({ "jobs": jobs, "told": told, "missing": missing }),
        text,
        yes: true,
    })
}

/// A job as all nodes that were asked see it.
struct Row<'a> {
    id: &'a JobId,
    /// What the node told that decides, or knows more than the others.
    lead: &'a CheckpointJob,
    all: Vec<(&'a str, &'a CheckpointJob)>,
}

fn rows(told: &[Told]) -> Vec<Row<'_>> {
    let mut by_job: BTreeMap<&JobId, Vec<(&str, &CheckpointJob)>> = BTreeMap::new();
    for told in told {
        for job in &told.jobs {
            by_job.entry(&job.job).or_default().push((&told.node, job));
        }
    }
    by_job
        .into_iter()
        .filter_map(|(id, all)| {
            let (_, lead) = *all.iter().min_by_key(|(_, job)| find::rank(job))?;
            Some(Row { id, lead, all })
        })
        .collect()
}

impl Row<'_> {
    fn nodes(&self) -> Vec<String> {
        match self.lead.nodes.is_empty() {
            true => self.all.iter().map(|(node, _)| node.to_string()).collect(),
            false => self.lead.nodes.clone(),
        }
    }

    /// Number, time and bytes of the newest committed checkpoint.
    fn newest(&self) -> Option<(u32, u64, u64)> {
        let kept = self.all.iter().flat_map(|(_, job)| &job.checkpoints);
        let kept: Vec<_> = kept.filter(|kept| kept.can_be_given()).collect();
        let number = kept.iter().map(|kept| kept.number).max()?;
        let parts = kept.iter().filter(|kept| kept.number == number);
        let time = parts.clone().map(|kept| kept.time).max()?;
        let bytes = parts.fold(0, |sum: u64, kept| sum.saturating_add(kept.bytes));
        Some((number, time, bytes))
    }

    /// Bytes on the disks of the nodes that were asked.
    fn stored(&self) -> u64 {
        let kept = self.all.iter().flat_map(|(_, job)| &job.checkpoints);
        kept.fold(0, |sum, kept| sum.saturating_add(kept.stored))
    }

    fn interval(&self) -> Option<u64> {
        self.all.iter().find_map(|(_, job)| job.interval_s)
    }

    fn phase(&self) -> String {
        match &self.lead.making {
            Some(making) => format!("making {}", making.number),
            None => words::phase(self.lead.phase).into(),
        }
    }

    fn json(&self, users: &BTreeMap<u32, String>, now: u64) -> Value {
        let newest = self.newest();
        json!({
            "job": self.id,
            "uid": self.lead.uid,
            "user": users.get(&self.lead.uid),
            "nodes": self.nodes(),
            "phase": self.lead.phase,
            "why": self.lead.why,
            "newest": newest.map(|(number, ..)| number),
            "age_s": newest.map(|(_, time, _)| now.saturating_sub(time)),
            "interval_s": self.interval(),
            "scheme": self.lead.scheme,
            "losses": self.lead.losses,
            "bytes": newest.map(|(.., bytes)| bytes),
            "stored": self.stored(),
        })
    }
}

fn table(rows: &[Row<'_>], users: &BTreeMap<u32, String>, now: u64, nodes: &str) -> String {
    if rows.is_empty() {
        return format!("{nodes}: no checkpoints of jobs that you may see\n");
    }
    let mut table = Table::new(&[
        "JOB", "USER", "NODES", "PHASE", "NEWEST", "AGE", "EVERY", "SURVIVES", "SIZE",
    ]);
    let none = || NONE.to_string();
    for row in rows {
        let newest = row.newest();
        let uid = row.lead.uid;
        table.row([
            row.id.to_string(),
            users.get(&uid).cloned().unwrap_or_else(|| uid.to_string()),
            compress(row.nodes().iter().map(String::as_str)),
            row.phase(),
            newest.map_or_else(none, |(number, ..)| number.to_string()),
            newest.map_or_else(none, |(_, time, _)| span(now.saturating_sub(time))),
            row.interval().map_or_else(none, span),
            words::survives(row.lead),
            newest.map_or_else(none, |(.., bytes)| size(bytes)),
        ]);
    }
    let mut text = table.render();
    for row in rows.iter().filter(|row| !row.lead.why.is_empty()) {
        text += &format!("job {}: {}\n", row.id, line(&row.lead.why));
    }
    for row in rows {
        for refused in words::refused(row.all.iter().map(|(_, job)| *job)) {
            text += &format!("job {}: {refused}\n", row.id);
        }
    }
    let stored = rows.iter().map(Row::stored).fold(0, u64::saturating_add);
    let jobs = count(rows.len(), "job");
    text + &format!("{jobs}, {} on disk on {nodes}\n", size(stored))
}
