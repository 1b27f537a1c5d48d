//! Whether gpuos_mover answers on this node, where gpuos.toml has checkpoints made.

use std::time::Duration;

use gpuos_config::gpuos_toml::Config;
use gpuos_host::socket::{Client, ClientError, MOVER};
use gpuos_model::hostlist::compress;

use super::about::{self, About};
use super::findings::Findings;
use super::{Context, toml};
use crate::daemons;

const NAME: About = about::GPUOS_MOVER;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn check(look: &Context, findings: &mut Findings) {
    let here = &look.here.nodes;
    if here.is_empty() || !enabled(look) {
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
            Ok(_) => answer.push(node.as_str()),
            Err(ClientError::NoDaemon(_)) => away.push(node.as_str()),
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

/// Whether gpuos.toml says so; what is wrong with the file is found elsewhere.
pub(super) fn enabled(look: &Context) -> bool {
    let path = toml::path(look);
    let bytes = look.machine.read(&path).unwrap_or_default();
    let text = String::from_utf8(bytes).unwrap_or_default();
    let config = Config::parse(&text, &path.display().to_string());
    config.is_ok_and(|config| config.checkpoint.enabled)
}
