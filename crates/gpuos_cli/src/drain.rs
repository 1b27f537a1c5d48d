//! `gpuos drain`, `online` and `offline`: GPUs out of service and back. gpuosd of the node does it; this
//! command asks it over its socket, or over ssh on another node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use gpuos_core::health::Verb;
use gpuos_core::job::JobId;
use gpuos_core::wire::{Reply as Answer, Request};
use gpuos_host::Machine;
use gpuos_host::socket::{Client, NAME};
use serde_json::json;

use crate::ckpt::before;
use crate::cli::AdminArgs;
use crate::daemons;
use crate::remote::{self, quoted};
use crate::reply::Reply;

/// How long a daemon may take: it answers once the change is safe on its disk.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(machine: &dyn Machine, verb: Verb, args: &AdminArgs) -> Result<Reply> {
    let path = daemons::pick(&args.reach.runtime_dir, Some(&args.target.node)).join(NAME);
    // In a lab all nodes are here.
    let only_here = args.local || daemons::is_of_nodes(&args.reach.runtime_dir);
    match Client::connect(&path, PATIENCE) {
        Ok(client) if client.daemon.1 == args.target.node => here(machine, client, verb, args),
        Ok(client) if args.local => bail!(
            "this is node {}, not {}: leave --local out to reach it over ssh",
            client.daemon.1,
            args.target.node
        ),
        Err(e) if only_here => {
            daemons::check_known(machine, &args.target.node)?;
            Err(anyhow!(e))
        }
        _ => far(machine, verb, args),
    }
}

fn here(machine: &dyn Machine, mut client: Client, verb: Verb, args: &AdminArgs) -> Result<Reply> {
    let mut message = String::new();
    if args.force && verb != Verb::Online {
        for said in save(machine, &mut client, verb, args)? {
            message += &said;
            message += "; ";
        }
        // gpuosd does not keep a connection for as long as checkpoints may take.
        let dir = daemons::pick(&args.reach.runtime_dir, Some(&args.target.node));
        client = Client::connect(&dir.join(NAME), PATIENCE)?;
    }
    message += &ask(&mut client, verb, args, args.force)?;
    let json = json!({
        "node": args.target.node,
        "gpus": args.target.gpus,
        "verb": verb.word(),
        "message": message,
    });
    Ok(Reply {
        schema: "gpuos.admin/1",
        json,
        text: format!("{message}\n"),
        yes: true,
    })
}

/// Has gpuosd do it, with the jobs or after them; its answer.
pub fn ask(client: &mut Client, verb: Verb, args: &AdminArgs, force: bool) -> Result<String> {
    let request = Request::Admin {
        verb,
        gpus: args.target.gpus.clone(),
        reason: args.reason.clone(),
        force,
    };
    match client.ask(&request)? {
        Answer::Done { message } => Ok(message),
        _ => Err(daemons::other_answer("gpuosd")),
    }
}

/// Jobs that make checkpoints do so before they are requeued; sentences of how that went.
fn save(
    machine: &dyn Machine,
    client: &mut Client,
    verb: Verb,
    args: &AdminArgs,
) -> Result<Vec<String>> {
    let gpus = client.status()?.gpus.into_iter();
    let meant = |index| args.target.gpus.is_empty() || args.target.gpus.contains(&index);
    let held = gpus.filter(|gpu| meant(gpu.index));
    let jobs: BTreeSet<JobId> = held.flat_map(|gpu| gpu.jobs).collect();
    let jobs: Vec<JobId> = jobs.into_iter().collect();
    let dir = daemons::pick(&args.reach.runtime_dir, Some(&args.target.node));
    let saving = before::among(machine, &dir, &jobs);
    if saving.is_empty() {
        return Ok(Vec::new());
    }
    // No other job comes meanwhile, and who waits no longer and ends this command has them out of service.
    ask(client, verb, args, false)?;
    let ids: Vec<String> = saving.iter().map(|job| job.job.to_string()).collect();
    eprintln!(
        "gpuos: waiting for checkpoints of job {} before it is requeued",
        ids.join(", ")
    );
    Ok(before::save(machine, &dir, &saving))
}

/// Asks gpuosd of another node, by the same command there.
fn far(machine: &dyn Machine, verb: Verb, args: &AdminArgs) -> Result<Reply> {
    let (told, yes) = remote::ask(
        machine,
        &args.reach.via,
        &args.target.node,
        &remote_line(verb, args),
    )?;
    let message = told["message"].as_str().unwrap_or_default().to_string();
    let mut json = told;
    if let Some(fields) = json.as_object_mut() {
        fields.remove("schema");
    }
    Ok(Reply {
        schema: "gpuos.admin/1",
        json,
        text: format!("{message}\n"),
        yes,
    })
}

/// The command for the shell of the other node.
fn remote_line(verb: Verb, args: &AdminArgs) -> String {
    let gpus = args.target.gpus.iter();
    let gpus: Vec<String> = gpus.map(|gpu| gpu.to_string()).collect();
    let target = match gpus.is_empty() {
        true => args.target.node.clone(),
        false => format!("{}:{}", args.target.node, gpus.join(",")),
    };
    let mut line = format!("gpuos --json {} --local {target}", verb.word());
    if !args.reason.is_empty() {
        line += &format!(" --reason={}", quoted(&args.reason));
    }
    if args.force {
        line += " --force";
    }
    line += &remote::runtime_dir(&args.reach.runtime_dir);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Reach;
    use crate::target::Target;

    #[test]
    fn a_reason_reaches_the_other_node_as_one_word() {
        let args = AdminArgs {
            target: Target::parse("n3:5,mig4").unwrap(),
            reason: "Ann's fan; rm -rf $HOME `x`".into(),
            force: true,
            local: false,
            reach: Reach {
                via: "ssh".into(),
                runtime_dir: daemons::RUNTIME_DIR.into(),
            },
        };
        let line = remote_line(Verb::Drain, &args);
        let wanted = "gpuos --json drain --local n3:5,mig4 --reason='Ann'\\''s fan; rm -rf $HOME `x`' --force";
        assert_eq!(line, wanted);
    }
}
