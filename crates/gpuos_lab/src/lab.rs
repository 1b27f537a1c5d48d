//! A lab that is up.

mod anew;
mod nodes;
mod steps;
mod tools;

pub use tools::field;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anew::Before;

use crate::cgroup::{self, Cgroups};
use crate::conf;
use crate::daemons::{Daemons, place_command, tail};
use crate::error::{Context, LabError};
use crate::hold::{self, Held, Hold};
use crate::install::{Install, inside};
use crate::mig;
use crate::movers;
use crate::node_type;
use crate::pauses::Pauses;
use crate::plugins;
use crate::spec::{Cgroup, LabSpec, Select, Suite};
use crate::store::{self, Record};
use crate::suite;
use crate::sys;
use crate::tiers;

/// How long nodes may take until they can run jobs, on a machine on which many labs start at once.
const READY: Duration = Duration::from_secs(240);
/// How long slurmctld may take to save what is new.
const SAVED: Duration = Duration::from_secs(16);
/// So long a slurmctld may have no pid: one that a reconfigure puts in place of the old one has none for a moment.
const REPLACED: Duration = Duration::from_secs(15);

/// A private Slurm cluster. One that was made with [`LabSpec::detached`] false ends, with all
/// its processes and files, when this value is dropped or when the process ends, however.
pub struct Lab {
    pub(crate) record: Record,
    pub(crate) install: Install,
    cgroups: Cgroups,
    hold: Hold,
    /// Set for slurmctld when this value starts it.
    slurmctld_env: Vec<(String, String)>,
}

impl Held for Lab {
    fn held(&mut self) -> (&mut Record, &mut Hold) {
        (&mut self.record, &mut self.hold)
    }
}

impl Lab {
    /// Makes a lab and waits until its nodes are idle. `progress` is told what goes on.
    pub fn up(spec: &LabSpec, progress: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        spec.check()?;
        node_type::all(spec)?;
        hold::up(spec, |record| Lab::build(record, progress))
    }

    fn build(mut record: Record, progress: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        if let Suite::Debian(name) = &record.spec.suite {
            record.root = Some(suite::root(name, &record.id, progress)?);
        }
        let install = Install::find(&record.spec.suite, record.root.clone())?;
        record.slurm.clone_from(&install.version);
        record.cgroup = wants_cgroup(&record, &install)?;
        record.write(&record.dir)?;
        let spec = &record.spec;
        progress(&format!(
            "lab {}: Slurm {}, {} nodes of type {}",
            spec.name,
            install.version,
            spec.node_names().len() + spec.cloud_nodes.unwrap_or(0),
            spec.node_type
        ));
        let cgroups = Cgroups::make(&record.id, &record.dir, record.cgroup)?;
        let lab = Lab {
            record,
            install,
            cgroups,
            hold: Hold::default(),
            slurmctld_env: Vec::new(),
        };
        lab.write_files()?;
        lab.adopt(lab.daemons().start_munged()?);
        if lab.record.spec.accounting {
            progress("making a database for slurmdbd");
            lab.daemons().prepare_accounting()?;
            lab.adopt(lab.daemons().start_mariadbd()?);
            lab.adopt(lab.daemons().start_slurmdbd()?);
            lab.run("sacctmgr", &["-i", "add", "cluster", &lab.record.spec.name])?;
        }
        lab.adopt(lab.daemons().start_slurmctld(&lab.slurmctld_env)?);
        lab.start_slurmds(&lab.record.spec.node_names(), false)?;
        progress("waiting for the nodes");
        lab.wait_ready(READY)?;
        if lab.record.spec.simulated_gpus.is_some() {
            progress("starting gpuosd on the nodes");
            lab.start_gpuosds()?;
        }
        if lab.record.spec.movers.is_some() {
            progress("starting gpuos_mover on the nodes");
            lab.start_movers()?;
        }
        Ok(lab)
    }

    /// A lab that is up, by name. Dropping this value leaves it up.
    pub fn open(name: &str) -> Result<Lab, LabError> {
        if !sys::is_root() {
            return Err(LabError::NotRoot);
        }
        let record = store::record(name)?;
        if record.spec.pbs.is_some() {
            return Err(LabError::Spec(format!(
                "lab {name} has a PBS and no Slurm: this is for labs of Slurm"
            )));
        }
        Ok(Lab {
            install: Install::find(&record.spec.suite, record.root.clone())?,
            cgroups: Cgroups::of(&record.id),
            record,
            hold: Hold::default(),
            slurmctld_env: Vec::new(),
        })
    }

    pub(crate) fn daemons(&self) -> Daemons<'_> {
        Daemons {
            record: &self.record,
            install: &self.install,
            cgroups: &self.cgroups,
        }
    }

    /// Keeps a child, and waits for those that have ended.
    pub(crate) fn adopt(&self, child: Child) {
        self.hold.adopt(child);
    }

    fn write_files(&self) -> Result<(), LabError> {
        let (record, dir) = (&self.record, &self.record.dir);
        for sub in [
            "etc", "log", "munge", "run", "spool", "state", "root", "work",
        ] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).context(|| format!("cannot make {}", path.display()))?;
        }
        // Jobs of any user may write their output here.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(dir.join("work"), open)
            .context(|| format!("cannot open {} to all users", dir.join("work").display()))?;
        let mut key = vec![0u8; 128];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut key))
            .and_then(|()| {
                let mut options = fs::OpenOptions::new();
                options.create_new(true).write(true).mode(0o400);
                options.open(dir.join("munge/key"))?.write_all(&key)
            })
            .context(|| "cannot write the lab's munge key".to_string())?;
        self.make_devices()?;
        mig::make(record)?;
        self.place_plugins(&record.spec.select)?;
        place_command(record)?;
        tiers::place(record)?;
        let etc = dir.join("etc");
        let write = |name: &str, text: &str| {
            fs::write(etc.join(name), text)
                .context(|| format!("cannot write {}", etc.join(name).display()))
        };
        write("slurm.conf", &conf::slurm_conf(record, &self.install)?)?;
        write("hosts", &conf::hosts())?;
        write("gres.conf", &conf::gres_conf(record)?)?;
        write("cgroup.conf", &conf::cgroup_conf(record, &self.install))?;
        let plugstack = if record.spec.spank {
            // Where the gpuosd of each node listens.
            let socket = match record.spec.simulated_gpus {
                Some(_) => format!(
                    " socket={}/gpuosd.sock",
                    self.gpuosd_runtime_dir("%n").display()
                ),
                None => String::new(),
            };
            let mover = match record.spec.movers {
                Some(_) => format!(
                    " mover={}/gpuos_mover.sock jobs={}",
                    self.gpuosd_runtime_dir("%n").display(),
                    movers::jobs_dir(record, "%n").display()
                ),
                None => String::new(),
            };
            let preload = match record.spec.tiers {
                Some(_) => format!(" preload={}", tiers::library(record).display()),
                None => String::new(),
            };
            format!(
                "optional {}{socket}{mover}{preload}\n",
                self.spank_file()?.display()
            )
        } else {
            String::new()
        };
        write("plugstack.conf", &plugstack)?;
        let mig = mig::stanza(&record.spec)?;
        let more = format!(
            "{mig}{}{}",
            movers::stanza(&record.spec),
            tiers::stanza(&record.spec)
        );
        let gpuos_toml = match &record.spec.gpuos_toml {
            Some(own) => Some(format!("{own}{more}")),
            None => Some(more).filter(|text| !text.is_empty()),
        };
        for (name, text) in [
            ("gpuos.toml", &gpuos_toml),
            ("topology.conf", &record.spec.topology_conf),
            ("topology.yaml", &record.spec.topology_yaml),
        ] {
            if let Some(text) = text {
                write(name, text)?;
            }
        }
        Ok(())
    }

    fn make_devices(&self) -> Result<(), LabError> {
        let spec = &self.record.spec;
        let types = node_type::all(spec)?;
        let most = types.iter().map(|t| t.gpus).max().unwrap_or(0);
        let dir = self.record.device_dir();
        fs::create_dir_all(&dir).context(|| format!("cannot make {}", dir.display()))?;
        for gpu in 0..most {
            let path = dir.join(format!("nvidia{gpu}"));
            sys::make_gpu_file(&path, gpu as u32).map_err(|e| LabError::Machine {
                what: format!("cannot make the device file {}: {e}", path.display()),
                fix: "a lab needs the right to make device files (CAP_MKNOD; in a container: --cap-add MKNOD)"
                    .to_string(),
            })?;
        }
        Ok(())
    }

    /// Copies gpuos's plugins to where this selection wants them.
    fn place_plugins(&self, select: &Select) -> Result<(), LabError> {
        match select.plugins() {
            Some((built, true)) => plugins::copy(built, &self.record.path("lib/gpuos")),
            Some((built, false)) => {
                let named = &self.install.plugin_dir;
                let stock = inside(self.install.root.as_deref(), named);
                plugins::merge(built, &stock, named, &self.record.path("lib/slurm"))
            }
            None => Ok(()),
        }
    }

    /// spank_gpuos.so of the lab; also labs with stock selection can have it.
    fn spank_file(&self) -> Result<PathBuf, LabError> {
        let dir = match self.record.spec.select.plugins() {
            Some((_, true)) => self.record.path("lib/gpuos"),
            Some((_, false)) => self.record.path("lib/slurm"),
            None => {
                let dir = self.record.path("lib/spank");
                plugins::copy(&plugins::find_plugin_dir()?, &dir)?;
                dir
            }
        };
        let file = dir.join("spank_gpuos.so");
        if file.is_file() {
            Ok(file)
        } else {
            Err(LabError::Missing {
                program: "spank_gpuos.so".to_string(),
                fix: "`make build` in gpuos's source folder makes it, or start the lab without it"
                    .to_string(),
            })
        }
    }

    /// Name of the lab.
    pub fn name(&self) -> &str {
        &self.record.spec.name
    }

    /// Folder of the lab: `etc/slurm.conf`, `log/`, `work/` (open to all users), ….
    pub fn dir(&self) -> &Path {
        &self.record.dir
    }

    /// What it was made from.
    pub fn spec(&self) -> &LabSpec {
        &self.record.spec
    }

    /// What it keeps of itself.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Release of its Slurm, for example `22.05.8`.
    pub fn version(&self) -> &str {
        &self.install.version
    }

    /// Whether jobs are confined by device cgroups.
    pub fn has_cgroup(&self) -> bool {
        self.record.cgroup
    }

    /// The folder with the device files `nvidia0`, `nvidia1`, ….
    pub fn device_dir(&self) -> PathBuf {
        self.record.device_dir()
    }

    /// A command in the lab: Slurm's commands talk to it, and with a Debian suite the command
    /// runs in its root. Fails when the lab is not up.
    pub fn command(&self, program: &str) -> Result<Command, LabError> {
        self.daemons().command(program, false)
    }

    /// Waits until all nodes with a slurmd can run jobs, or, without any, slurmctld answers.
    pub fn wait_ready(&self, limit: Duration) -> Result<(), LabError> {
        let nodes = self.record.spec.node_names();
        let (pauses, deadline) = (Pauses::new(), Instant::now() + limit);
        let mut seen = Instant::now();
        loop {
            let out = self.output("sinfo", &["-h", "-N", "-o", "%N %T"])?;
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let ready = |name: &String| {
                text.lines().any(|line| {
                    line.split_once(' ').is_some_and(|(node, state)| {
                        // With a minus backfill has plans for the node, which takes nothing from it.
                        let state = state.trim_end_matches('-');
                        node == name
                            && ["idle", "mixed", "allocated", "reserved", "planned"]
                                .contains(&state)
                    })
                })
            };
            if out.status.success() && nodes.iter().all(ready) {
                return Ok(());
            }
            if self.slurmctld_pid().is_some() {
                seen = Instant::now();
            } else if seen.elapsed() > REPLACED {
                return Err(LabError::Daemon {
                    daemon: "slurmctld".to_string(),
                    what: "has ended".to_string(),
                    log: tail(&self.record.path("log/slurmctld.log"), 25),
                });
            }
            if Instant::now() > deadline {
                let errors = String::from_utf8_lossy(&out.stderr).into_owned();
                let mut log = tail(&self.record.path("log/slurmctld.log"), 15);
                if let Some(node) = nodes.iter().find(|name| !ready(name)) {
                    log += &format!("and of the slurmd of {node}:\n");
                    log += &tail(&self.record.path(&format!("log/slurmd.{node}.log")), 15);
                }
                return Err(LabError::NotReady {
                    seconds: limit.as_secs(),
                    states: text.replace('\n', "; ") + &errors,
                    log,
                });
            }
            pauses.pause();
        }
    }

    /// Pid of slurmctld while it runs.
    pub fn slurmctld_pid(&self) -> Option<u32> {
        self.daemons().pid("slurmctld").map(|(pid, _)| pid)
    }

    /// Pid of the slurmd of a node while it runs.
    pub fn slurmd_pid(&self, node: &str) -> Option<u32> {
        let daemon = format!("slurmd.{node}");
        self.daemons().pid(&daemon).map(|(pid, _)| pid)
    }

    /// Sends slurmctld a signal that ends it (15 saves its state, 9 does not) and waits until
    /// it has ended. False when it was not running.
    pub fn kill_slurmctld(&self, signal: i32) -> Result<bool, LabError> {
        self.daemons().stop("slurmctld", signal)
    }

    /// Has slurmctld save its state and waits for that, 8 s where it does so at once and 24 s at
    /// most: one that has nothing new to save writes nothing. What happened before this call
    /// survives a `kill_slurmctld(9)`. Without it slurmctld saves 5 s after a change, and a
    /// start by the backfill scheduler counts as no change.
    pub fn wait_saved(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + SAVED;
        loop {
            let asked = SystemTime::now();
            // Any update request sets off a save, also one for a job that does not exist.
            self.output("scontrol", &["update", "JobId=2147483000", "Nice=0"])?;
            // A save that was under way at the call may not have the latest change.
            let begin = SystemTime::now() + Duration::from_millis(500);
            let end = Instant::now() + Duration::from_secs(8);
            while !self.has_saved("job_state", begin) && Instant::now() < end {
                sleep(Duration::from_millis(100));
            }
            // On a busy machine it may not have come to it yet.
            if self.has_saved("job_state", asked) || Instant::now() > deadline {
                return Ok(());
            }
        }
    }

    /// Whether slurmctld has written a file of its state since then, for example `node_state`.
    pub fn has_saved(&self, file: &str, since: SystemTime) -> bool {
        let data = fs::metadata(self.record.path("state").join(file));
        let time = data.and_then(|data| data.modified());
        time.is_ok_and(|time| time > since)
    }

    /// Environment variables for slurmctld, in place of those given before. They hold from the
    /// next [`Lab::start_slurmctld`] or [`Lab::restart`] on, with this value only.
    pub fn set_slurmctld_env(&mut self, variables: &[(&str, &str)]) {
        let own = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        self.slurmctld_env = variables.iter().map(own).collect();
    }

    /// Starts slurmctld and waits until it listens.
    pub fn start_slurmctld(&self) -> Result<(), LabError> {
        self.adopt(self.daemons().start_slurmctld(&self.slurmctld_env)?);
        Ok(())
    }

    /// Ends the slurmd of a node. Its jobs run on. False when it was not running.
    pub fn stop_slurmd(&self, node: &str) -> Result<bool, LabError> {
        self.daemons()
            .stop(&format!("slurmd.{node}"), libc::SIGTERM)
    }

    /// Starts the slurmd of a node. [`Lab::wait_ready`] waits until slurmctld knows of it.
    pub fn start_slurmd(&self, node: &str) -> Result<(), LabError> {
        self.start_slurmds(&[node.to_string()], false)
    }

    /// `booted`: they say that their nodes were booted just now.
    fn start_slurmds(&self, nodes: &[String], booted: bool) -> Result<(), LabError> {
        for child in self.daemons().start_slurmds(nodes, booted)? {
            self.adopt(child);
        }
        Ok(())
    }

    /// Ends slurmctld and all slurmds in order and starts them again with the present files.
    /// Jobs run on.
    pub fn restart(&self) -> Result<(), LabError> {
        let nodes = self.record.spec.node_names();
        self.kill_slurmctld(libc::SIGTERM)?;
        for node in &nodes {
            self.stop_slurmd(node)?;
        }
        self.start_slurmctld()?;
        self.start_slurmds(&nodes, false)?;
        self.wait_ready(READY)
    }

    /// `scontrol reconfigure`. From 23.11 on slurmctld and each slurmd start anew by it, a moment after the command has ended: that is
    /// waited for, and an error where one does not.
    pub fn reconfigure(&self) -> Result<(), LabError> {
        let before = Before::look(self);
        self.run("scontrol", &["reconfigure"])?;
        match self.version() < "23.11" {
            true => Ok(()),
            false => before.wait(),
        }
    }

    /// Text of slurm.conf.
    pub fn slurm_conf(&self) -> Result<String, LabError> {
        let path = self.record.path("etc/slurm.conf");
        fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))
    }

    /// Rewrites slurm.conf. The daemons read it on [`Lab::reconfigure`] or [`Lab::restart`].
    pub fn edit_slurm_conf(&self, edit: impl FnOnce(String) -> String) -> Result<(), LabError> {
        let text = edit(self.slurm_conf()?);
        self.write_conf("slurm.conf", &text)
    }

    /// Sets a key of slurm.conf, or removes it with `None`.
    pub fn set_slurm_conf(&self, key: &str, value: Option<&str>) -> Result<(), LabError> {
        self.edit_slurm_conf(|text| conf::set_key(&text, key, value))
    }

    /// Writes a file beside slurm.conf, for example `gpuos.toml`. Whoever reads it meanwhile has all of the old one or of the
    /// new one.
    pub fn write_conf(&self, name: &str, text: &str) -> Result<(), LabError> {
        let etc = self.record.path("etc");
        let (path, new) = (etc.join(name), etc.join(format!(".{name}.new")));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .context(|| format!("cannot write {}", path.display()))
    }

    /// Changes SelectType, and PluginDir with it, in slurm.conf; copies the plugins anew. The
    /// daemons follow on [`Lab::restart`].
    pub fn set_select(&mut self, select: Select) -> Result<(), LabError> {
        self.place_plugins(&select)?;
        let path = conf::plugin_path(&self.record, &self.install, &select);
        self.edit_slurm_conf(|text| {
            let text = conf::set_key(&text, "SelectType", Some(select.select_type()));
            conf::set_key(&text, "PluginDir", Some(&path))
        })?;
        self.record.spec.select = select;
        self.record.write(&self.record.dir)
    }

    /// Log of slurmctld since the lab was made.
    pub fn slurmctld_log(&self) -> String {
        let bytes = fs::read(self.record.path("log/slurmctld.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Log of the slurmd of a node.
    pub fn slurmd_log(&self, node: &str) -> String {
        let path = self.record.path(&format!("log/slurmd.{node}.log"));
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    }

    /// Ends all processes of the lab, jobs too, and removes its files.
    pub fn down(mut self) -> Result<(), LabError> {
        self.hold.end(&self.record)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.hold.ends_it() {
            // Nobody is left to tell; the next start sweeps up what would not go.
            let _ = self.hold.end(&self.record);
        }
    }
}

/// Whether jobs are to be confined: what was asked for, and what host and Slurm can do. Makes
/// the cgroups for it.
fn wants_cgroup(record: &Record, install: &Install) -> Result<bool, LabError> {
    if record.spec.cgroup == Cgroup::Off {
        return Ok(false);
    }
    let plugin = install.plugin_dir.join("cgroup_v1.so");
    let can = if inside(install.root.as_deref(), &plugin).is_file() {
        cgroup::make_for_slurm(&record.id)
    } else {
        Err(format!("Slurm {} has no cgroup/v1 here", install.version))
    };
    match can {
        Ok(()) => Ok(true),
        Err(_) if record.spec.cgroup == Cgroup::Auto => Ok(false),
        Err(what) => Err(LabError::Machine {
            what,
            fix: "run without device cgroups (--cgroup off), or on a machine with cgroup v1"
                .to_string(),
        }),
    }
}
