//! `gpuos pbs`: the hook goes into PBS and out of it again, by qmgr. `gpuos pbs-hook`: what that hook asks.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuos_host::{Machine, ThisMachine};
use gpuos_model::mig::Geometry;
use gpuos_pbs::hook::beyond::Beyond;
use gpuos_pbs::hook::event::{Host, Shares};
use gpuos_pbs::hook::hosts::{Counts, removal, take};
use gpuos_pbs::hook::install::{
    HOOK, Objects, beside, divide, install, largest, memory, parse_list, programs, read_hosts,
    several_sets, shares,
};
use gpuos_pbs::hook::resources::NGPUS;
use gpuos_pbs::hook::{MOST_BYTES, answer};
use gpuos_pbs::sched_config::{Change, needed};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;

use crate::cli::{PbsArgs, PbsCommand, PbsInstallArgs, PbsReach};
use crate::pbs_sched_config::SchedConfig;
use crate::reply::{Reply, out};

/// The hook, as PBS gets it.
pub const SCRIPT: &str = include_str!("../../../pbs_hook/gpuos_hook.py");

/// How long qmgr may take for a line. pbs_server answers nobody while a hook runs there.
const LIMIT: Duration = Duration::from_secs(60);

/// What the hook is told of this installation. Its names are those in gpuos_hook.py.
#[derive(Serialize, Deserialize)]
struct Config {
    /// This command.
    command: String,
    /// libgpuos_pbs_hook.so.
    library: String,
    /// Whether `gpuos pbs-planner` runs.
    #[serde(default)]
    planner: bool,
    /// Whether gpuos_mover keeps checkpoints.
    #[serde(default)]
    checkpoints: bool,
    /// Whether programs are kept to the GPUs of their jobs.
    #[serde(default)]
    confine: String,
    /// GPUs of the largest domain of each level.
    #[serde(default)]
    largest: BTreeMap<String, u64>,
    /// Whether some hosts have several sets of GPUs with NVLink.
    #[serde(default)]
    several_sets: bool,
    /// How GPUs of pools can be divided, by the names of their kinds.
    #[serde(default)]
    boards: BTreeMap<String, Geometry>,
    /// How GPUs that jobs share are shared.
    #[serde(default)]
    shares: Option<Shares>,
    /// What there is of memory beyond that of whole GPUs.
    #[serde(default)]
    memory: Option<Beyond>,
    /// libgpuos_preload.so.
    #[serde(default)]
    preload: String,
    /// GPUs of hosts.
    #[serde(default)]
    hosts: BTreeMap<String, Host>,
    /// What these hosts counted before.
    #[serde(default)]
    before: BTreeMap<String, Counts>,
    /// PBS had no `ngpus` before.
    #[serde(default)]
    made_ngpus: bool,
    /// What was changed of pbs_sched's configuration.
    #[serde(default)]
    sched_config: Option<Change>,
}

/// What of the configuration later installs and the removal go by.
#[derive(Default)]
struct Noted {
    hosts: BTreeMap<String, Host>,
    before: BTreeMap<String, Counts>,
    made_ngpus: bool,
    sched_config: Option<Change>,
}

/// Answers one event of the hook, from standard input to standard output.
pub fn hook() -> Result<u8> {
    let mut event = Vec::new();
    // One byte more tells that there is more.
    let most = u64::try_from(MOST_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut event)
        .context("cannot read the event on standard input")?;
    out(&format!("{}\n", answer(&String::from_utf8_lossy(&event))));
    Ok(0)
}

/// `gpuos pbs`.
pub fn run(json: bool, args: &PbsArgs) -> Result<Reply> {
    match &args.command {
        PbsCommand::Install(args) => put_in(json, args),
        PbsCommand::Remove(args) => take_out(json, &args.reach),
    }
}

fn put_in(json: bool, args: &PbsInstallArgs) -> Result<Reply> {
    let qmgr = Qmgr::find(&args.reach)?;
    let (hooks, resources) = (qmgr.list("hook")?, qmgr.list("resource")?);
    let noted = match hooks.contains_key(HOOK) {
        true => qmgr.noted(),
        false => Noted::default(),
    };
    let mut hosts = match &args.hosts {
        Some(file) => hosts(file)?,
        None => noted.hosts.clone(),
    };
    let gpuos_toml = gpuos_host::pbs::config(&ThisMachine, None)?;
    let boards = divide(&mut hosts, &gpuos_toml.mig).map_err(anyhow::Error::msg)?;
    let taken = take(&mut hosts, &noted.hosts, &qmgr.list("node")?, &noted.before);
    let shares = shares(&hosts, &gpuos_toml).map_err(anyhow::Error::msg)?;
    let command = match &args.command {
        Some(command) => command.clone(),
        None => std::env::current_exe()
            .context("cannot tell where this command is; name it with --command")?,
    };
    let looked_at = needed(!boards.is_empty(), shares.is_some());
    let sched = SchedConfig::of(args.sched_config.as_deref(), &qmgr.conf);
    let edited = sched.with(&looked_at, noted.sched_config.as_ref());
    let config = Config {
        command: path_text(&command)?,
        library: path_text(&args.library)?,
        planner: args.planner,
        checkpoints: args.checkpoints,
        confine: args.confine.clone(),
        largest: largest(&hosts),
        several_sets: several_sets(&hosts),
        boards,
        shares,
        memory: memory(&hosts, &gpuos_toml),
        preload: path_text(&args.preload)?,
        hosts,
        before: taken.before,
        made_ngpus: noted.made_ngpus || !resources.contains_key(NGPUS),
        sched_config: edited.change().or(noted.sched_config),
    };
    let files = Files::new(&config, args.reach.dry_run)?;
    let imported = (&files.script()[..], &files.config()[..]);
    let mut lines =
        install(&resources, &hooks, &qmgr.version()?, imported).map_err(anyhow::Error::msg)?;
    lines.extend(taken.lines);
    let failed = qmgr.run(&lines, json, args.reach.dry_run)?;
    if let Some((line, why)) = failed.first() {
        bail!(
            "qmgr refused '{line}': {why}; mend what it names, and run gpuos pbs install again: what is done already stays and is not done twice"
        );
    }
    let mut text = edited.apply(args.reach.dry_run, json)?;
    for sentence in taken.notes.iter().chain(&beside(&config.hosts, &hooks)) {
        text += &format!("{sentence}\n");
    }
    if !args.reach.dry_run {
        text += "The hook is in use. Hosts show their GPUs some seconds after gpuosd runs there.\n";
    }
    Ok(reply(&lines, &failed, args.reach.dry_run, text))
}

fn take_out(json: bool, reach: &PbsReach) -> Result<Reply> {
    let qmgr = Qmgr::find(reach)?;
    let (resources, hooks) = (qmgr.list("resource")?, qmgr.list("hook")?);
    let nodes = qmgr.list("node")?;
    let noted = match hooks.contains_key(HOOK) {
        true => qmgr.noted(),
        false => Noted::default(),
    };
    let mut removal = removal(&resources, &hooks, &nodes, (&noted.hosts, &noted.before));
    if noted.made_ngpus && removal.kept.is_empty() {
        removal.lines.push(format!("delete resource {NGPUS}"));
    }
    let lines = removal.lines;
    let failed = qmgr.run(&lines, json, reach.dry_run)?;
    let kept = removal.kept.iter().map(|sentence| format!("{sentence}\n"));
    let mut text: String = kept.collect();
    for (line, why) in &failed {
        text += &format!("not done: {line}: {why}\n");
    }
    if let Some(change) = &noted.sched_config {
        text += &SchedConfig::of(Some(Path::new(&change.file)), &qmgr.conf)
            .without(change)
            .apply(reach.dry_run, json)?;
    }
    if lines.is_empty() {
        text += "There is nothing of gpuos in this PBS.\n";
    } else if !failed.is_empty() {
        text += "What a job or a vnode has cannot be taken out. Run gpuos pbs remove again when these jobs have ended.\n";
    }
    for sentence in &removal.notes {
        text += &format!("{sentence}\n");
    }
    let mut reply = reply(&lines, &failed, reach.dry_run, text);
    reply.yes &= removal.kept.is_empty();
    Ok(reply)
}

fn reply(lines: &[String], failed: &[(String, String)], dry_run: bool, text: String) -> Reply {
    let refused: Vec<_> = failed
        .iter()
        .map(|(line, why)| json!({ "line": line, "why": why }))
        .collect();
    Reply {
        schema: "gpuos.pbs-qmgr/1",
        json: json!({ "lines": lines, "refused": refused, "dry_run": dry_run }),
        text,
        yes: failed.is_empty(),
    }
}

fn hosts(file: &Path) -> Result<BTreeMap<String, Host>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("--hosts: cannot read {}", file.display()))?;
    let hosts = read_hosts(&text);
    hosts.map_err(|why| {
        anyhow::anyhow!(
            "--hosts: {}: {why}; docs/admin/pbs.md has the form",
            file.display()
        )
    })
}

/// A path for a line of qmgr, or for another host.
fn path_text(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._+-@".contains(&b);
        text.starts_with('/') && text.bytes().all(plain)
    });
    let text = text.with_context(|| {
        format!("{} cannot stand in a line for qmgr: write a whole path of letters, digits and / . _ + - @", path.display())
    })?;
    Ok(text.into())
}

/// The qmgr of the PBS that is meant.
struct Qmgr {
    program: String,
    pbs_conf: String,
    /// The text of pbs.conf.
    conf: String,
}

impl Qmgr {
    fn find(reach: &PbsReach) -> Result<Qmgr> {
        let conf = &reach.pbs_conf;
        let other = "name the file of your PBS with --pbs-conf";
        let text = fs::read_to_string(conf)
            .with_context(|| format!("cannot read {}; {other}", conf.display()))?;
        let programs =
            programs(&text).map_err(|why| anyhow::anyhow!("{}: {why}; {other}", conf.display()))?;
        let program = format!("{programs}/qmgr");
        if !Path::new(&program).is_file() {
            bail!(
                "{} names {programs}, where there is no qmgr; {other}",
                conf.display()
            );
        }
        Ok(Qmgr {
            program,
            pbs_conf: conf
                .to_str()
                .with_context(|| format!("{} is no UTF-8 text; {other}", conf.display()))?
                .into(),
            conf: text,
        })
    }

    /// What qmgr prints for a line.
    ///
    /// # Errors
    /// What it says on standard error, where it fails; the outer one: it cannot be run, or gave no answer in time.
    fn ask(&self, line: &str) -> Result<Result<String, String>> {
        let variable = ("PBS_CONF_FILE", &self.pbs_conf[..]);
        let done = ThisMachine.run_with_env(LIMIT, variable, &self.program, &["-c", line])?;
        Ok(match done.ok {
            true => Ok(done.stdout),
            false => Err(done.stderr.split_whitespace().collect::<Vec<_>>().join(" ")),
        })
    }

    /// All objects of a kind. That there are none is an error of qmgr's, and told from a server that does not answer.
    fn list(&self, kind: &str) -> Result<Objects> {
        let all = match kind {
            "node" => "list node @default".to_owned(),
            kind => format!("list {kind}"),
        };
        match self.ask(&all)? {
            Ok(text) => Ok(parse_list(&text, kind)),
            Err(_) => match self.ask("list server")? {
                Ok(_) => Ok(Objects::new()),
                Err(why) => bail!(
                    "pbs_server does not answer qmgr: {why}; start it, or run this as a manager of PBS where it runs"
                ),
            },
        }
    }

    /// What the hook's configuration has noted; nothing where it is not of ours.
    fn noted(&self) -> Noted {
        let line = format!("export hook {HOOK} application/x-config default");
        let text = self.ask(&line).ok().and_then(Result::ok);
        let known: Option<Config> = text.and_then(|text| serde_json::from_str(&text).ok());
        let known = known.map(|known| Noted {
            hosts: known.hosts,
            before: known.before,
            made_ngpus: known.made_ngpus,
            sched_config: known.sched_config,
        });
        known.unwrap_or_default()
    }

    /// The release of pbs_server.
    fn version(&self) -> Result<String> {
        let text = self.ask("list server pbs_version")?.unwrap_or_default();
        let version = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("pbs_version = "));
        Ok(version.unwrap_or_default().to_owned())
    }

    /// Runs the lines, each after it was shown; those that failed come back with what qmgr said.
    fn run(&self, lines: &[String], json: bool, dry_run: bool) -> Result<Vec<(String, String)>> {
        let mut failed = Vec::new();
        for line in lines {
            if !json {
                out(&format!("qmgr -c '{line}'\n"));
            }
            if !dry_run && let Err(why) = self.ask(line)? {
                failed.push((line.clone(), why));
            }
        }
        Ok(failed)
    }
}

/// How the name of such a folder begins.
const PREFIX: &str = "gpuos-pbs-";

/// Hook and configuration as files for qmgr, in a folder of this user's alone; gone with this.
struct Files {
    folder: PathBuf,
    /// With --dry-run it is not made.
    _made: Option<TempDir>,
}

impl Files {
    fn new(config: &Config, dry_run: bool) -> Result<Files> {
        let all = std::env::temp_dir();
        path_text(&all)?;
        if dry_run {
            return Ok(Files {
                folder: all.join(format!("{PREFIX}{}", std::process::id())),
                _made: None,
            });
        }
        // Whoever made it before could change what PBS runs as root.
        let mut folder = tempfile::Builder::new();
        let folder = folder.permissions(fs::Permissions::from_mode(0o700));
        let made = folder.prefix(PREFIX).tempdir_in(&all);
        let made = made.with_context(|| {
            format!(
                "cannot make a folder in {}; set TMPDIR to one in which you may",
                all.display()
            )
        })?;
        let files = Files {
            folder: made.path().into(),
            _made: Some(made),
        };
        let write = |file: String, text: &str| {
            fs::write(&file, text).with_context(|| format!("cannot write {file}"))
        };
        write(files.script(), SCRIPT)?;
        write(files.config(), &serde_json::to_string_pretty(config)?)?;
        Ok(files)
    }

    fn script(&self) -> String {
        self.folder
            .join("gpuos_hook.py")
            .to_string_lossy()
            .into_owned()
    }

    fn config(&self) -> String {
        self.folder
            .join("gpuos_hook.json")
            .to_string_lossy()
            .into_owned()
    }
}
