//! What `[checkpoint]` of gpuos.toml needs: a store with room on a disk, keys, the folder that all nodes share, nodes enough for its scheme,
//! and a Slurm that starts jobs again.

use std::path::Path;

use gpuos_config::gpuos_toml::CheckpointConfig;
use gpuos_host::Kind;

use super::about::{self, About};
use super::findings::Findings;
use super::folders::{Folder, is_local, is_trusted};
use super::{Context, toml};

const NAME: About = about::CHECKPOINTS;

/// Where gpuos_mover keeps checkpoints and its key, unless it is told otherwise.
const STORE: &str = "/var/lib/gpuos/checkpoints";
const KEY: &str = "/etc/munge/munge.key";

/// Bytes of a key at least.
const LEAST_KEY: u64 = 32;
/// What stays free of the store's disk in any case: a part of it, and no more than so many bytes.
const FREE_PART: u64 = 20;
const FREE_MOST: u64 = 1 << 30;

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(config) = toml::config(look) else {
        return;
    };
    let config = config.checkpoint;
    if !config.enabled {
        unused(look, &config, findings);
        return;
    }
    let before = findings.0.len();
    cluster(look, &config, findings);
    numbers(look, &config, findings);
    if !look.here.nodes.is_empty() {
        keys(look, &config, findings);
        shared(look, &config, findings);
    }
    if findings.0.len() == before {
        let text = format!("scheme {}, {} kept", config.scheme, config.keep);
        findings.ok(NAME, text);
    }
}

fn place(look: &Context) -> String {
    toml::path(look).display().to_string()
}

/// Keys that mean something to somebody who forgot the one that turns all of it on.
fn unused(look: &Context, config: &CheckpointConfig, findings: &mut Findings) {
    if *config != CheckpointConfig::default() {
        findings
            .warn(
                NAME,
                "[checkpoint] is written, and has no enabled = true: jobs with --gpuos-checkpoint are refused",
                "add enabled = true to [checkpoint], or take the table out",
            )
            .at(place(look));
    }
}

/// What Slurm and its nodes have to be like.
fn cluster(look: &Context, config: &CheckpointConfig, findings: &mut Findings) {
    let lines = toml::node_lines(look);
    let nodes = lines.as_ref().filter(|lines| !lines.dynamic());
    let nodes = nodes.map_or(usize::MAX, |lines| lines.all().len());
    let needs = config.scheme.nodes();
    if needs > nodes {
        let all = u32::try_from(nodes).unwrap_or(u32::MAX);
        let other = config.scheme_for(None, all);
        let other = other.map_or_else(|_| "single".into(), |other| other.to_string());
        findings
            .warn(
                NAME,
                format!(
                    "scheme = \"{}\" is for sets of {needs} nodes, and slurm.conf has {nodes}: every job has {other} in its place",
                    config.scheme
                ),
                format!("write scheme = \"{other}\", or one that {nodes} nodes are enough for"),
            )
            .at(place(look))
            .why("fewer nodes may be lost than the scheme promises");
    }
    if look.settings.get("JobRequeue") == Some("0") {
        findings
            .warn(
                NAME,
                "JobRequeue=0: Slurm does not start jobs again after a node has failed",
                "set JobRequeue=1, or have users write --requeue",
            )
            .at(look.place("jobrequeue"))
            .why("what their checkpoints are for does not happen by itself");
    }
    let ports = ["SlurmctldPort", "SlurmdPort"];
    let taken = ports.iter().find(|key| {
        let written = look.settings.get(key).unwrap_or(match **key {
            "SlurmdPort" => "6818",
            _ => "6817",
        });
        let (first, last) = written.split_once('-').unwrap_or((written, written));
        let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
        range.is_some_and(|(first, last)| (first..=last).contains(&config.port))
    });
    if let Some(key) = taken {
        findings
            .fail(
                NAME,
                format!("port = {} of [checkpoint] is that of {key}", config.port),
                "write another one, such as port = 6821, the same for all nodes",
            )
            .at(place(look))
            .why("gpuos_mover cannot listen there, and movers of a job never find each other");
    }
}

/// Numbers that do not go together.
fn numbers(look: &Context, config: &CheckpointConfig, findings: &mut Findings) {
    if config.user_gib > 0 && config.user_gib < config.max_gib {
        findings
            .warn(
                NAME,
                format!(
                    "user-gib = {} is less than max-gib = {}: nobody can have a checkpoint as large as that",
                    config.user_gib, config.max_gib
                ),
                "raise user-gib, or lower max-gib",
            )
            .at(place(look));
    }
    if !config.encrypt && !config.encrypt_keys.is_empty() {
        findings
            .warn(
                NAME,
                "encrypt-keys names keys, and encrypt is not true: nothing that is stored from now on is encrypted",
                "add encrypt = true, unless the keys are kept to read what is there",
            )
            .at(place(look));
    }
}

/// The store and the key of a mover that does not tell where they are: at their usual places, as far as there is something.
pub fn usual(look: &Context, node: &str, findings: &mut Findings) {
    // Movers of a lab have stores of their own.
    if look.here.lab {
        return;
    }
    let path = Path::new(STORE);
    if look.machine.stat(path).is_ok() {
        store(look, node, path, findings);
    }
    site_key(look, Path::new(KEY), findings);
}

/// The store of a node, in this folder.
pub fn store(look: &Context, node: &str, path: &Path, findings: &mut Findings) {
    let key = format!("the store of {node}");
    let folder = Folder {
        name: NAME,
        key: &key,
        path,
        closed: 0o077,
        why: "no checkpoint is kept on this node",
    };
    let missing = format!(
        "`systemctl start gpuos_mover`, which makes it; on a disk of its own: mount that, mkdir -m 700 {}",
        path.display()
    );
    if !folder.check(look.machine, &missing, findings) {
        return;
    }
    folder.on_disk(look.machine, findings);
    let Ok((free, size)) = look.machine.disk_space(path) else {
        return;
    };
    let kept = (size / FREE_PART).min(FREE_MOST);
    if size > 0 && free <= kept {
        findings
            .fail(
                NAME,
                format!(
                    "{key}: {} is full: {} MiB are left of {}, and {} stay free in any case",
                    path.display(),
                    free >> 20,
                    size >> 20,
                    kept >> 20
                ),
                "see who has what by `gpuos ckpt list`, have jobs that ended pruned (`gpuos ckpt prune`), set max-gib and user-gib, or give it a \
                 larger disk",
            )
            .at(path.display())
            .why("checkpoints come to nothing, and jobs go back further than their users think");
    }
}

/// A file with a key. `owner`: root alone may own it.
fn key_file(look: &Context, what: &str, path: &Path, owner: bool, findings: &mut Findings) {
    let shown = path.display();
    let fix = format!(
        "have it on all nodes the same, of root with mode 0400: dd if=/dev/urandom bs=32 count=1 of={shown}; chmod 400 {shown}"
    );
    let why = "gpuos_mover does not start without it, and jobs run without checkpoints";
    let stat = match look.machine.stat(path) {
        Ok(stat) => stat,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            findings
                .fail(NAME, format!("{what} {shown} is not there"), fix)
                .at(shown)
                .why(why);
            return;
        }
        Err(_) => return,
    };
    let wrong = match () {
        () if stat.kind != Kind::File => "is no file".into(),
        () if owner && !is_trusted(look.machine, stat.uid) => format!("is of user {}", stat.uid),
        () if stat.mode & 0o077 != 0 => format!("can be had by others (mode {:o})", stat.mode),
        () if stat.length < LEAST_KEY => {
            format!("has {} bytes, and a key {LEAST_KEY} or more", stat.length)
        }
        () => return,
    };
    findings
        .fail(NAME, format!("{what} {shown} {wrong}"), fix)
        .at(shown)
        .why(why);
}

/// The key that gpuos_mover has of all nodes: munge's, of munge's own user.
pub fn site_key(look: &Context, path: &Path, findings: &mut Findings) {
    // Others than root do not see into munge's folder.
    let folder = path.parent().unwrap_or(path);
    if look.machine.stat(folder).is_ok() {
        key_file(look, "the key of gpuos_mover", path, false, findings);
    }
}

fn keys(look: &Context, config: &CheckpointConfig, findings: &mut Findings) {
    // gpuos_mover takes others than root for owners of the keys that are like its own: munge's may be among them.
    for (name, paths, owner) in [
        ("encrypt-keys", &config.encrypt_keys, true),
        ("other-keys", &config.other_keys, false),
    ] {
        for path in paths {
            key_file(look, &format!("the key of {name}"), path, owner, findings);
        }
    }
}

/// The folder on a file system of all nodes.
fn shared(look: &Context, config: &CheckpointConfig, findings: &mut Findings) {
    let Some(path) = &config.shared else { return };
    let folder = Folder {
        name: NAME,
        key: "shared in [checkpoint]",
        path,
        closed: 0o077,
        why: "nothing is drained there, and a job that loses more nodes than its scheme bears has nothing to go on from",
    };
    let missing = format!(
        "mount the file system on this node, and make the folder once: mkdir -m 700 {}",
        path.display()
    );
    if !folder.check(look.machine, &missing, findings) || look.here.lab {
        return;
    }
    let lines = toml::node_lines(look);
    if lines.is_some_and(|lines| lines.all().len() > 1) && is_local(look.machine, path) {
        findings
            .warn(
                NAME,
                format!(
                    "shared in [checkpoint]: {} is on a disk of this node, which other nodes do not have",
                    path.display()
                ),
                "mount the parallel file system there, or name a folder on it",
            )
            .at(path.display())
            .why("what is drained there is lost with the node");
    }
    if path.starts_with(STORE) {
        findings
            .warn(
                NAME,
                format!(
                    "shared in [checkpoint]: {} lies in the store of the node",
                    path.display()
                ),
                "name a folder on a file system that all nodes have",
            )
            .at(place(look));
    }
}
