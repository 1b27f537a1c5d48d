//! Whether gpuos_mover answers on this node, where gpuos.toml has checkpoints made.

use std::path::Path;
use std::time::Duration;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{CheckpointRequest, MoverSettings, Reply, Request, memory_socket};
use gpuos_host::socket::{Client, ClientError, MOVER};
use gpuos_model::hostlist::compress;

use super::about::{self, About};
use super::findings::Findings;
use super::{Context, checkpoints, toml};
use crate::daemons;

const NAME: About = about::GPUOS_MOVER;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn check(look: &Context, findings: &mut Findings) {
    let here = &look.here.nodes;
    let Some(config) = toml::config(look).filter(|_| !here.is_empty()) else {
        return;
    };
    if !config.checkpoint.enabled {
        if config.parking.is_some() {
            parks(look, findings);
        }
        return;
    }
    let (mut away, mut answer) = (Vec::new(), Vec::new());
    for node in here {
        let socket = daemons::of_node(&look.args.runtime_dir, node).join(MOVER);
        match Client::connect(&socket, PATIENCE) {
            Ok(client) if client.daemon.0 != env!("CARGO_PKG_VERSION") => {
                findings.warn(
                    NAME,
                    format!(
                        "gpuos_mover of {node} is {}, and this command {}",
                        client.daemon.0,
                        env!("CARGO_PKG_VERSION")
                    ),
                    "install both of one build, and restart it (`systemctl restart gpuos_mover`)",
                );
            }
            Ok(mut client) => {
                answer.push(node.as_str());
                match settings(&mut client) {
                    Some(told) => {
                        runs(look, node, (&config, &told), findings);
                        checkpoints::store(look, node, Path::new(&told.store), findings);
                        checkpoints::site_key(look, Path::new(&told.key), findings);
                    }
                    None => checkpoints::usual(look, node, findings),
                }
            }
            Err(ClientError::NoDaemon(_)) => {
                away.push(node.as_str());
                checkpoints::usual(look, node, findings);
            }
            Err(_) => {
                findings.warn(
                    NAME,
                    format!(
                        "{node}: gpuos_mover does not answer within {} s",
                        PATIENCE.as_secs()
                    ),
                    "see why by `journalctl -u gpuos_mover`, then `systemctl restart gpuos_mover`",
                );
            }
        }
    }
    if !away.is_empty() {
        findings
            .warn(
                NAME,
                format!(
                    "[checkpoint] enabled = true, and gpuos_mover does not run on {}",
                    compress(away)
                ),
                "`systemctl enable --now gpuos_mover` on the node, then `gpuos ckpt list`; or enabled = false",
            )
            .at(look.args.runtime_dir.display())
            .why("jobs with --gpuos-checkpoint are taken, and run there without checkpoints");
    }
    if !answer.is_empty() && !findings.found(NAME) {
        findings.ok(NAME, format!("answers on {}", compress(answer)));
    }
}

/// Whether gpuos.toml has checkpoints made; what is wrong with the file is found elsewhere.
pub(super) fn enabled(look: &Context) -> bool {
    toml::config(look).is_some_and(|config| config.checkpoint.enabled)
}

/// What a running gpuos_mover says of itself: root alone is told.
fn settings(client: &mut Client) -> Option<MoverSettings> {
    let what = CheckpointRequest::Figures;
    match client.ask(&Request::Checkpoint { what }) {
        Ok(Reply::CheckpointFigures { figures }) => figures.settings,
        _ => None,
    }
}

/// What a running gpuos_mover does not do as gpuos.toml says.
fn runs(
    look: &Context,
    node: &str,
    (config, told): (&Config, &MoverSettings),
    findings: &mut Findings,
) {
    for trouble in &told.troubles {
        findings
            .warn(
                NAME,
                format!("{node}: {trouble}"),
                "mend what it names, then `systemctl restart gpuos_mover`; jobs that run go on meanwhile",
            )
            .at(&told.store);
    }
    if told.digest != config.checkpoint.digest() {
        let path = toml::path(look);
        findings
            .warn(
                about::RESTART,
                format!(
                    "[checkpoint] of {} is another one than that with which gpuos_mover of {node} runs",
                    path.display()
                ),
                "`systemctl restart gpuos_mover` on the node: it reads gpuos.toml when it starts; jobs that run go on meanwhile",
            )
            .at(path.display())
            .why("checkpoints are made, kept and encrypted by the old text");
    }
}

/// A node on which memory is parked and no checkpoints are made: gpuos_mover has the socket of programs alone there.
fn parks(look: &Context, findings: &mut Findings) {
    let away: Vec<&str> = look
        .here
        .gpu_nodes
        .iter()
        .map(String::as_str)
        .filter(|node| {
            let socket = daemons::of_node(&look.args.runtime_dir, node).join(MOVER);
            let socket = memory_socket(&socket.to_string_lossy());
            look.machine.stat(Path::new(&socket)).is_err()
        })
        .collect();
    if !away.is_empty() {
        findings
            .warn(
                NAME,
                format!(
                    "[memory] has nvme = …, and gpuos_mover does not run on {}",
                    compress(away)
                ),
                "`systemctl enable --now gpuos_mover` on the node, or leave nvme out",
            )
            .at(look.args.runtime_dir.display())
            .why("memory of jobs that has to leave GPU and host has no place there, and jobs with park=nvme wait");
    }
}
