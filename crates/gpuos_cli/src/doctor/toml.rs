//! The files of gpuos beside slurm.conf: gpuos.toml and gpuos-layouts.tsv, as files.

use std::path::{Path, PathBuf};

use gpuos_config::gpuos_toml::Config;
use gpuos_config::slurm_conf::NodeLines;
use gpuos_host::slurm::files::SlurmFile;
use gpuos_host::{Kind, Machine};

use super::about::{self, About};
use super::findings::{Findings, Status};
use super::{Context, files};

const NAME: About = about::GPUOS_TOML;

/// The table that a site makes for a release of its own; select/gpuos reads it.
pub const SITE_TABLE: &str = "gpuos-layouts.tsv";

/// The path at which gpuos.toml is looked for.
pub fn path(look: &Context) -> PathBuf {
    let given = look.config.map(Path::to_path_buf);
    let named = || look.machine.env("GPUOS_CONF").map(PathBuf::from);
    given
        .or_else(named)
        .unwrap_or_else(|| look.settings.directory().join("gpuos.toml"))
}

/// gpuos.toml, or the defaults where there is none; `None`: it has a mistake, or cannot be read, which is found elsewhere.
pub fn config(look: &Context) -> Option<Config> {
    let path = path(look);
    let bytes = match look.machine.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(_) => return None,
    };
    Config::parse(&String::from_utf8(bytes).ok()?, &path.display().to_string()).ok()
}

/// The nodes that slurm.conf and gres.conf name.
pub fn node_lines(look: &Context) -> Option<NodeLines> {
    let conf = look.conf?;
    let folder = look.settings.directory();
    let read = |name: &str| {
        let path = if name == "slurm.conf" {
            conf.path.clone()
        } else {
            folder.join(name)
        };
        Ok(look
            .machine
            .read(&path)
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    NodeLines::read(&read).ok()
}

pub fn check(look: &Context, findings: &mut Findings) {
    let path = path(look);
    match what(look.machine, &path) {
        What::Nothing => elsewhere(look, &path, findings),
        What::Wrong(what) => {
            findings
                .fail(
                    NAME,
                    format!("{} {what}", path.display()),
                    "make it a file, or remove it",
                )
                .at(path.display())
                .why("select/gpuos passes every call through while it cannot read it");
        }
        What::File => {
            files::rights(look.machine, NAME, &path, look.user, findings);
            text(look, &path, findings);
        }
    }
    table(look, findings);
}

enum What {
    Nothing,
    File,
    Wrong(&'static str),
}

fn what(machine: &dyn Machine, path: &Path) -> What {
    match machine.stat(path) {
        Ok(stat) if stat.kind == Kind::File => What::File,
        Ok(stat) if stat.kind == Kind::Folder => What::Wrong("is a folder"),
        Ok(_) => What::Wrong("is no file"),
        Err(_) if machine.link(path).is_some() => What::Wrong("is a link that leads nowhere"),
        // Nobody can tell, or it is not there.
        Err(_) => What::Nothing,
    }
}

/// Where no gpuos.toml lies in its place: one that lies in another, or has nearly its name.
fn elsewhere(look: &Context, path: &Path, findings: &mut Findings) {
    let machine = look.machine;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut places: Vec<PathBuf> = [
        "/etc/gpuos/gpuos.toml",
        "/etc/gpuos.toml",
        "/etc/slurm/gpuos.toml",
        "/etc/slurm-llnl/gpuos.toml",
        "/usr/etc/gpuos.toml",
        "/usr/local/etc/gpuos.toml",
        "/usr/local/etc/gpuos/gpuos.toml",
    ]
    .map(PathBuf::from)
    .to_vec();
    places.extend(folder.parent().map(|above| above.join("gpuos.toml")));
    places.extend(
        machine
            .glob(&folder.join("*"))
            .iter()
            .map(|sub| sub.join("gpuos.toml")),
    );
    places.extend(
        look.settings
            .plugin_dirs()
            .iter()
            .map(|dir| dir.join("gpuos.toml")),
    );
    let mut near = machine.glob(&folder.join("*gpu*os*"));
    near.extend(machine.glob(&folder.join("gpuos*")));
    let nearly = |file: &PathBuf| {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let backup = name.ends_with('~')
            || name.ends_with(".sample")
            || name.ends_with(".bak")
            || name.ends_with(".dpkg-old");
        !backup
            && name != SITE_TABLE
            && files::distance(&name.to_ascii_lowercase(), "gpuos.toml") <= 4
    };
    places.extend(near.into_iter().filter(nearly));
    let other = places
        .into_iter()
        .find(|other| other != path && matches!(what(machine, other), What::File));
    if let Some(other) = other {
        findings
            .warn(
                NAME,
                format!(
                    "{} is not read: gpuos.toml belongs beside slurm.conf",
                    other.display()
                ),
                format!(
                    "move it to {}, or set GPUOS_CONF for slurmctld, slurmd and gpuosd",
                    path.display()
                ),
            )
            .at(other.display())
            .why(format!(
                "{} is not there, so every key has its default",
                path.display()
            ));
    } else if look.config.is_some() || machine.env("GPUOS_CONF").is_some() {
        findings
            .fail(
                NAME,
                format!("cannot read {}: there is no such file", path.display()),
                "correct --config or GPUOS_CONF",
            )
            .at(path.display());
    } else {
        findings.ok(
            NAME,
            format!("none in {}: every key has its default", folder.display()),
        );
    }
}

/// What the file says, as far as it needs no slurmctld.
fn text(look: &Context, path: &Path, findings: &mut Findings) {
    let shown = path.display().to_string();
    let passes = "select/gpuos passes every call through until it is mended and read again";
    let bytes = match look.machine.read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            findings
                .fail(
                    NAME,
                    format!("cannot read {shown}: {error}"),
                    "run `gpuos doctor` as a user who may read it, and let root and SlurmUser read the file",
                )
                .at(&shown);
            return;
        }
    };
    if bytes.starts_with(b"\xef\xbb\xbf") {
        findings
            .warn(
                NAME,
                format!("{shown} starts with a byte-order mark"),
                "save it as UTF-8 without one",
            )
            .at(format!("{shown}:1"))
            .why("not every reader of TOML takes it");
    }
    let Ok(text) = String::from_utf8(bytes) else {
        findings
            .fail(NAME, format!("{shown}: not UTF-8 text"), "save it as UTF-8")
            .at(&shown)
            .why(passes);
        return;
    };
    let config = match Config::parse(&text, &shown) {
        Ok(config) => config,
        Err(error) => {
            findings
                .fail(
                    NAME,
                    error.to_string(),
                    "mend the line; packaging/gpuos.toml.sample documents every key",
                )
                .at(format!("{}:{}", error.file, error.line))
                .why(passes);
            return;
        }
    };
    if !config.slurm.steer {
        findings
            .warn(
                NAME,
                "[slurm] steer = false: gpuos places no job",
                "remove the line, and run `scontrol reconfigure`",
            )
            .at(&shown);
    }
    // With slurmctld the nodes are those that it has; without it those of its files.
    if look.running.is_none() {
        by_files(look, &config, findings);
    }
}

/// gpuos.toml against the nodes that slurm.conf names.
fn by_files(look: &Context, config: &Config, findings: &mut Findings) {
    let (Some(conf), Some(lines)) = (look.conf, node_lines(look)) else {
        return;
    };
    let facts = lines.all();
    let names: Vec<&str> = facts.iter().map(|facts| facts.name.as_str()).collect();
    let mut told = config.foreign_types(&facts);
    if !lines.dynamic() {
        told.extend(config.unknown_nodes(&names));
    }
    told.extend(config.unknown_partitions(&partitions(conf)));
    if let Err(error) = config.cluster(&facts, None) {
        told.push(error);
    }
    for error in told.iter().take(5) {
        findings
            .warn(NAME, error.to_string(), "correct the name, or take it out")
            .at(format!("{}:{}", error.file, error.line));
    }
}

fn partitions(conf: &SlurmFile) -> Vec<&str> {
    conf.table("partitionname")
        .filter_map(|line| line.get("partitionname"))
        .collect()
}

/// The site's own layout table: a file with rows, or nothing.
fn table(look: &Context, findings: &mut Findings) {
    let path = look.settings.directory().join(SITE_TABLE);
    let fix = "write it anew (`gpuos layout SLURM-SOURCE-DIR -o …`), or remove it; then restart slurmctld";
    let why = "select/gpuos passes every call through while it cannot read it";
    let mut bad = |message: String, status: Status| {
        findings
            .add(about::LAYOUTS, status, message, fix)
            .at(path.display())
            .why(why);
    };
    match what(look.machine, &path) {
        What::Nothing => return,
        What::Wrong(what) => return bad(format!("{} {what}", path.display()), Status::Fail),
        What::File => {}
    }
    match look.machine.read(&path) {
        Err(error) => {
            return bad(
                format!("{} cannot be read: {error}", path.display()),
                Status::Fail,
            );
        }
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let rows = text
                .lines()
                .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
            let wrong = text.lines().position(|line| {
                let comment = line.trim().is_empty() || line.starts_with('#');
                !comment && line.split('\t').count() < 7
            });
            if bytes.contains(&0) || std::str::from_utf8(&bytes).is_err() {
                return bad(format!("{} is no text", path.display()), Status::Fail);
            }
            if let Some(wrong) = wrong {
                return bad(
                    format!(
                        "{}:{}: a row has seven columns, separated by tabs",
                        path.display(),
                        wrong + 1
                    ),
                    Status::Fail,
                );
            }
            if rows.count() < 2 {
                return bad(format!("{} has no rows", path.display()), Status::Warn);
            }
        }
    }
    files::rights(look.machine, about::LAYOUTS, &path, look.user, findings);
}
