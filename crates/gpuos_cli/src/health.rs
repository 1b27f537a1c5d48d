//! `gpuos health`: how GPUs are. Of this node gpuosd tells everything; of others Slurm's node records, or by [`pbs`] PBS's vnodes, tell
//! which GPUs are out, which jobs avoid, and what is drained.

mod pbs;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use gpuos_core::health::ExtraPart;
use gpuos_core::job::JobId;
use gpuos_core::wire::{Happening, Reply as Answer, Request, Status};
use gpuos_host::socket::{Client, ClientError, NAME};
use gpuos_host::{Machine, host_name, slurm};
use gpuos_model::hostlist::compress;
use gpuos_model::node_gpu::NodeGpu;
use serde_json::{Value, json};

use crate::cli::HealthArgs;
use crate::daemons;
use crate::pbs_why;
use crate::remote;
use crate::reply::{self, Reply};
use crate::table::{Table, utc};

/// How long gpuosd may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a reload may take: gpuosd asks slurmctld where gpuos.toml is.
const RELOAD: Duration = Duration::from_secs(70);

/// The answer; `None`: it was printed as it came.
pub fn run(machine: &dyn Machine, as_json: bool, args: &HealthArgs) -> Result<Option<Reply>> {
    let lab = daemons::is_of_nodes(&args.runtime_dir);
    let dir = daemons::pick(&args.runtime_dir, args.node.as_deref());
    let here = || match &args.node {
        None => true,
        Some(node) => lab || connect(&dir, PATIENCE).is_ok_and(|own| own.daemon.1 == *node),
    };
    if args.watch || args.reload || args.audit.is_some() {
        return match &args.node {
            Some(node) if !here() => far(machine, as_json, args, node),
            _ if args.watch => watch(&dir, as_json).map(|()| None),
            _ if args.reload => reload(&dir).map(Some),
            _ => audit(&dir, args.audit.unwrap_or(1), args.job.clone()).map(Some),
        };
    }
    if lab && args.node.is_none() {
        return of_lab(machine, &args.runtime_dir).map(Some);
    }
    let local = daemons::status(&dir, PATIENCE);
    match (local, &args.node) {
        (Ok(status), None) => Ok(Some(one(&status))),
        (Ok(status), Some(node)) if status.node == *node => Ok(Some(one(&status))),
        // A daemon that is there and does not answer is not passed over.
        (Err(e), None) if !matches!(e, ClientError::NoDaemon(_)) => Err(e.into()),
        (Ok(own), node) => {
            let watched = Watched {
                by: vec![own.node],
                whole: false,
            };
            nodes(machine, node.as_deref(), &watched).map(Some)
        }
        (Err(_), node) => {
            let watched = Watched {
                by: Vec::new(),
                // A lab with device files alone has no gpuosd at all.
                whole: lab || machine.env("GPUOS_LAB").is_some(),
            };
            nodes(machine, node.as_deref(), &watched).map(Some)
        }
    }
}

/// Which nodes have somebody who looks at their GPUs, as far as it is known here.
struct Watched {
    /// Nodes whose gpuosd answered here.
    by: Vec<String>,
    /// Whether all gpuosds that there are can be asked here, as in a lab: then no other node has one.
    whole: bool,
}

/// All nodes of a lab, by their gpuosds and by Slurm's records of those that have none.
fn of_lab(machine: &dyn Machine, dir: &Path) -> Result<Reply> {
    let mut statuses = Vec::new();
    for (_, dir) in daemons::all(dir) {
        statuses.extend(daemons::status(&dir, PATIENCE).ok());
    }
    let watched = Watched {
        by: statuses.iter().map(|status| status.node.clone()).collect(),
        whole: true,
    };
    let told: Vec<Reply> = statuses.iter().map(one).collect();
    let mut reply = nodes(machine, None, &watched)?;
    // Those that are well need no lines.
    for (one, status) in told.into_iter().zip(&statuses).filter(|(one, _)| !one.yes) {
        reply.yes = false;
        reply.json["well"] = false.into();
        if !reply.text.contains(&format!("node {}\n", status.node)) {
            reply.text += &one.text;
        }
    }
    Ok(reply)
}

fn connect(runtime_dir: &Path, patience: Duration) -> Result<Client, ClientError> {
    Client::connect(&runtime_dir.join(NAME), patience)
}

/// What only gpuosd of another node can say, by the same command there.
fn far(
    machine: &dyn Machine,
    as_json: bool,
    args: &HealthArgs,
    node: &str,
) -> Result<Option<Reply>> {
    let json = if as_json || !args.watch {
        " --json"
    } else {
        ""
    };
    let what = match args.audit {
        Some(lines) => format!("--audit={lines}"),
        None if args.reload => "--reload".into(),
        None => "--watch".into(),
    };
    let mut line = format!("gpuos{json} health {what}");
    if let Some(job) = &args.job {
        line += &format!(" --job={job}");
    }
    line += &remote::runtime_dir(&args.runtime_dir);
    if args.watch {
        return remote::watch(&args.via, node, &line).map(|()| None);
    }
    let (told, yes) = remote::ask(machine, &args.via, node, &line)?;
    let mut reply = match (told["lines"].as_array(), told["message"].as_str()) {
        (Some(lines), _) => audited(lines.clone()),
        (_, Some(message)) => reloaded(message),
        _ => bail!("gpuos of {node} gave another answer: {told}"),
    };
    reply.yes = yes;
    Ok(Some(reply))
}

/// This node, by gpuosd.
fn one(status: &Status) -> Reply {
    let mut table = Table::new(&["GPU", "STATE", "C", "W", "BUSY", "MIB", "JOBS", "WHY"]);
    let number = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    for gpu in &status.gpus {
        let mut jobs: Vec<String> = gpu.jobs.iter().map(JobId::to_string).collect();
        if gpu.jobs_of_others > 0 {
            jobs.push(others(gpu.jobs_of_others));
        }
        let faults = gpu.faults.iter().map(|fault| fault.message.clone());
        let mut why: Vec<String> = faults.collect();
        if !gpu.reason.is_empty() && !why.contains(&gpu.reason) {
            why.insert(0, gpu.reason.clone());
        }
        if let Some(cap) = &gpu.cap {
            why.push(format!("{} for job {}", cap.text, cap.job));
        }
        table.row([
            gpu.index.to_string(),
            gpu.state.clone(),
            number(gpu.temperature_c.map(u64::from)),
            number(gpu.power_mw.map(|milliwatts| u64::from(milliwatts / 1000))),
            gpu.utilisation
                .map_or_else(String::new, |busy| format!("{busy}%")),
            number(gpu.memory_mib),
            jobs.join(","),
            why.join("; "),
        ]);
    }
    let mut text = format!("node {}\n", status.node);
    if let Some(reason) = &status.node_drained {
        text += &format!("drained: {reason}\n");
    }
    if status.daemon.advises {
        text += "gpuos only advises on this host: another one gives its GPUs to jobs\n";
    }
    for trouble in &status.daemon.troubles {
        text += &format!("gpuosd: {trouble}\n");
    }
    text += &table.render();
    text += &peers(status);
    text += &hidden(status);
    for finding in &status.isolation.findings {
        text += &format!("isolation: {}\n", finding.message);
    }
    let bad = ["degraded", "draining", "drained", "resetting", "offline"];
    let well = status.gpus.iter().all(|gpu| !bad.contains(&&gpu.state[..]));
    let unseen = status.hidden.as_ref().map_or(0, |hidden| hidden.findings);
    let quiet =
        status.daemon.troubles.is_empty() && status.isolation.findings.is_empty() && unseen == 0;
    let yes = well && status.node_drained.is_none() && quiet;
    Reply {
        schema: "gpuos.health/1",
        json: json!({ "well": yes, "status": status }),
        text,
        yes,
    }
}

/// Jobs of other users in a column of jobs.
pub(crate) fn others(count: u32) -> String {
    match count {
        1 => "another user's".into(),
        count => format!("{count} of others"),
    }
}

/// What gpuosd tells root only, in a line.
fn hidden(status: &Status) -> String {
    let Some(hidden) = &status.hidden else {
        return String::new();
    };
    let parts = [
        (hidden.jobs, "job", "jobs"),
        (hidden.processes, "process", "processes"),
        (hidden.peers, "peer", "peers"),
        (hidden.findings, "finding", "findings"),
    ];
    let parts = parts.iter().filter(|(count, ..)| *count > 0);
    let parts: Vec<String> = parts
        .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("not shown, as of other users: {}\n", parts.join(", ")),
    }
}

/// The other nodes of this node's jobs, as gpuosd hears them.
fn peers(status: &Status) -> String {
    if status.peers.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["PEER", "STATE", "HEARD", "JOBS"]);
    for peer in &status.peers {
        let heard = match peer.heard_ms_ago {
            Some(ms) => format!("{:.1} s ago", ms as f64 / 1e3),
            None => "never".into(),
        };
        let jobs: Vec<String> = peer.jobs.iter().map(JobId::to_string).collect();
        table.row([peer.node.clone(), peer.state.clone(), heard, jobs.join(",")]);
    }
    table.render()
}

fn list<T: ToString>(gpus: &[T]) -> String {
    let names: Vec<String> = gpus.iter().map(T::to_string).collect();
    names.join(",")
}

/// Nodes with something to tell, as a workload manager has them.
struct Listed {
    /// What the manager calls its records.
    records: &'static str,
    table: Table,
    rows: Vec<Value>,
    /// Whether all is well.
    yes: bool,
    /// The nodes with GPUs that are asked about.
    meant: Vec<String>,
}

/// Nodes, by the workload manager's records; without a name those with something to tell.
fn nodes(machine: &dyn Machine, wanted: Option<&str>, watched: &Watched) -> Result<Reply> {
    let listed = match pbs_why::is_meant(machine, false) {
        true => pbs::nodes(machine, wanted)?,
        false => of_slurm(machine, wanted)?,
    };
    Ok(watching(machine, wanted, watched, listed))
}

/// Nodes, by Slurm's records.
fn of_slurm(machine: &dyn Machine, wanted: Option<&str>) -> Result<Listed> {
    let all = slurm::nodes(machine)?;
    if let Some(name) = wanted
        && !all.iter().any(|node| node.name == name)
    {
        bail!("Slurm knows no node {name}: `sinfo -N` lists them");
    }
    let mut table = Table::new(&["NODE", "STATE", "GPUS", "OUT", "DEGRADED", "WHY"]);
    let (mut rows, mut yes) = (Vec::new(), true);
    for node in &all {
        let (mut part, broken) = ExtraPart::read(&node.extra);
        let broken = broken.map(|e| e.to_string());
        // What is damaged names all GPUs that a node could have.
        if broken.is_some() {
            part.out.retain(|gpu| gpu.index() < node.gpu_count());
        }
        let well = part.is_empty() && broken.is_none() && node.is_up();
        let none = node.gpu_count() == 0 && part.is_empty();
        if wanted.map_or(well || none, |name| node.name != name) {
            continue;
        }
        yes &= well;
        let why = match (&broken, part.is_empty()) {
            (Some(broken), _) => broken.clone(),
            (None, false) if node.reason.is_empty() => {
                format!("ask on {}: gpuos health", node.name)
            }
            (None, _) => node.reason.clone(),
        };
        table.row([
            node.name.clone(),
            node.state_text(),
            node.gpu_count().to_string(),
            match part.has_whole_pool_out() {
                true => {
                    let gpus = (!part.out.is_empty()).then(|| list(&part.out));
                    let all = gpus.into_iter().chain(["all of the pool".to_string()]);
                    all.collect::<Vec<_>>().join(",")
                }
                false => list(&part.all_out()),
            },
            list(&part.degraded),
            why.clone(),
        ]);
        let mut row = json!({
            "node": node.name,
            "state": node.state_text(),
            "gpus": node.gpu_count(),
            "out": part.out,
            "degraded": part.degraded,
            "why": why,
        });
        if !part.pool_out.is_empty() {
            row["mig_out"] = json!(part.pool_out);
        }
        rows.push(row);
    }
    let meant = all.iter().filter(|node| {
        let gpus = node.gpu_count() > 0 || !node.slices.is_empty();
        gpus && wanted.is_none_or(|name| node.name == name)
    });
    Ok(Listed {
        records: "Slurm's records",
        table,
        rows,
        yes,
        meant: meant.map(|node| node.name.clone()).collect(),
    })
}

/// The same with whether somebody looks at the GPUs there.
fn watching(
    machine: &dyn Machine,
    wanted: Option<&str>,
    watched: &Watched,
    listed: Listed,
) -> Reply {
    let Listed {
        records,
        table,
        rows,
        mut yes,
        meant,
    } = listed;
    let host = host_name(machine);
    let meant: Vec<&str> = meant.iter().map(String::as_str).collect();
    let known = |name: &&str| watched.whole || host.as_deref() == Some(*name);
    let answers = |name: &&str| watched.by.iter().any(|by| by == name);
    let away: Vec<&str> = meant
        .iter()
        .copied()
        .filter(|name| !answers(name) && known(name))
        .collect();
    let unknown: Vec<&str> = meant
        .iter()
        .copied()
        .filter(|name| !answers(name) && !known(name))
        .collect();
    let mut text = match rows.len() {
        0 => format!("By {records} nothing is wrong with any GPU.\n"),
        _ => table.render(),
    };
    if !away.is_empty() {
        text += &format!(
            "No gpuosd runs on {}: nobody watches the GPUs there, and a record without a fault says nothing.\n  \
             start it there: `systemctl enable --now gpuosd`\n",
            compress(away.iter().copied())
        );
    }
    if !unknown.is_empty() {
        text += &format!(
            "Whether a gpuosd watches the GPUs of {} is not known here: run `gpuos health` there.\n",
            compress(unknown.iter().copied())
        );
    }
    if yes && away.is_empty() && unknown.is_empty() {
        text += match wanted {
            None => "All GPUs are watched, and well.\n",
            Some(_) => "Its GPUs are watched, and well.\n",
        };
    }
    let watched = match (away.is_empty(), unknown.is_empty()) {
        (false, _) => "no",
        (true, false) => "unknown",
        (true, true) => "yes",
    };
    // What nobody looks at is not known to be well.
    yes &= away.is_empty() && unknown.is_empty();
    Reply {
        schema: "gpuos.health-nodes/1",
        json: json!({ "well": yes, "watched": watched, "unwatched": away, "nodes": rows }),
        text,
        yes,
    }
}

fn reload(runtime_dir: &Path) -> Result<Reply> {
    let Answer::Done { message } = connect(runtime_dir, RELOAD)?.ask(&Request::Reload)? else {
        return Err(daemons::other_answer("gpuosd"));
    };
    Ok(reloaded(&message))
}

fn reloaded(message: &str) -> Reply {
    Reply {
        schema: "gpuos.health-reload/1",
        json: json!({ "message": message }),
        text: format!("{message}\n"),
        yes: true,
    }
}

fn audit(runtime_dir: &Path, lines: u32, job: Option<JobId>) -> Result<Reply> {
    let asked = Request::Audit { lines, job };
    let Answer::Audit { lines } = connect(runtime_dir, PATIENCE)?.ask(&asked)? else {
        return Err(daemons::other_answer("gpuosd"));
    };
    let values: Vec<Value> = lines
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    Ok(audited(values))
}

fn audited(values: Vec<Value>) -> Reply {
    let mut text = String::new();
    for value in &values {
        let at = value["at_ms"].as_u64().unwrap_or(0) / 1000;
        let gpu: Option<NodeGpu> = serde_json::from_value(value["gpu"].clone()).ok();
        let gpu = gpu.map(|gpu| format!("GPU {gpu}: "));
        let said = value["text"].as_str().unwrap_or_default();
        text += &format!("{} {}{said}\n", utc(at), gpu.unwrap_or_default());
    }
    Reply {
        schema: "gpuos.health-audit/1",
        json: json!({ "lines": values }),
        text,
        yes: true,
    }
}

/// Prints what happens until gpuosd ends or the reader goes.
fn watch(runtime_dir: &Path, as_json: bool) -> Result<()> {
    let mut client = connect(runtime_dir, PATIENCE)?;
    client.watch()?;
    loop {
        match client.next_reply()? {
            Some(Answer::Happened { event }) => reply::out(&line(&event, as_json)),
            Some(_) => return Err(daemons::other_answer("gpuosd")),
            None => {}
        }
    }
}

fn line(event: &Happening, as_json: bool) -> String {
    if as_json {
        let object = json!({ "schema": "gpuos.event/1", "event": event });
        return format!("{object}\n");
    }
    let gpu = event
        .gpu
        .map(|gpu| format!("GPU {gpu}: "))
        .unwrap_or_default();
    format!("{} {gpu}{}\n", utc(event.at_ms / 1000), event.message)
}

#[cfg(test)]
mod tests {
    use gpuos_core::wire::PeerStatus;

    use super::*;

    #[test]
    fn peers_stand_below_the_gpus() {
        assert_eq!(peers(&Status::default()), "");
        let peer = |node: &str, state: &str, heard_ms_ago| PeerStatus {
            node: node.into(),
            state: state.into(),
            heard_ms_ago,
            jobs: vec![7.into(), 8.into()],
        };
        let status = Status {
            peers: vec![
                peer("n2", "suspect", Some(2340)),
                peer("n3", "unknown", None),
            ],
            ..Status::default()
        };
        let text = peers(&status);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["PEER", "STATE", "HEARD", "JOBS"]);
        assert_eq!(lines[1], ["n2", "suspect", "2.3", "s", "ago", "7,8"]);
        assert_eq!(lines[2], ["n3", "unknown", "never", "7,8"]);
    }
}
