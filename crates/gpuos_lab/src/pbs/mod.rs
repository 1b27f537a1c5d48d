//! A private PBS on one machine: a server with its scheduler and communication daemon on the host `head`, and a MoM on each
//! node, every host in namespaces of its own.
//!
//! - `install`: the PBS and the programs of the machine, `files`: what hosts have in /etc and for themselves,
//! - `hosts`: namespaces, links and commands in them, by the scripts `switch.sh` and `host.sh`,
//! - `daemons`: starting and ending what runs on a host, `movers`: those that keep checkpoints, `jobs`: what tests need most of them in few words.
//!
//! ```no_run
//! use gpuos_lab::LabSpec;
//! use gpuos_lab::pbs::PbsLab;
//!
//! let spec = LabSpec {
//!     nodes: 4.into(),
//!     pbs: Some("/opt/pbs".into()),
//!     ..LabSpec::unique("doc")
//! };
//! let lab = PbsLab::up(&spec, &mut |step| eprintln!("{step}"))?;
//! print!("{}", lab.run("pbsnodes", &["-aS"])?);
//! # Ok::<(), gpuos_lab::LabError>(())
//! ```

mod daemons;
mod files;
mod hosts;
mod install;
mod jobs;
mod movers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use daemons::{GPUOSD, HEAD_DAEMONS, MOM};
pub use files::USERS;
pub use hosts::HOST_ENV;
pub use movers::MOVER;

use crate::daemons::{TOOLS, place_command};
use crate::error::LabError;
use crate::gpus;
use crate::hold::{self, Held, Hold};
use crate::mig;
use crate::node_type;
use crate::spec::LabSpec;
use crate::store::{self, Record};
use crate::sys;
use files::HEAD;
use hosts::Hosts;
use install::Install;

/// Most nodes of a lab: each has some five processes of its own.
const MOST: usize = 64;

/// How long the nodes may take to be there.
const READY: Duration = Duration::from_secs(240);

/// A private PBS. One that was made with [`LabSpec::detached`] false ends, with all its hosts, processes and files, when this
/// value is dropped or when the process ends, however.
pub struct PbsLab {
    record: Record,
    install: Install,
    hold: Hold,
}

impl Held for PbsLab {
    fn held(&mut self) -> (&mut Record, &mut Hold) {
        (&mut self.record, &mut self.hold)
    }
}

impl PbsLab {
    /// Makes a lab and waits until its nodes are free. `progress` is told what goes on.
    ///
    /// # Errors
    /// The specification asks for what cannot be, this machine cannot have such a lab, or a daemon does not start.
    pub fn up(spec: &LabSpec, progress: &mut dyn FnMut(&str)) -> Result<PbsLab, LabError> {
        spec.check()?;
        let prefix = check(spec)?;
        node_type::all(spec)?;
        let install = Install::find(prefix)?;
        hold::up(spec, |record| PbsLab::build(record, install, progress))
    }

    fn build(
        mut record: Record,
        install: Install,
        progress: &mut dyn FnMut(&str),
    ) -> Result<PbsLab, LabError> {
        record.slurm.clone_from(&install.version);
        record.write(&record.dir)?;
        let spec = &record.spec;
        progress(&format!(
            "lab {}: PBS {}, {} nodes of type {}",
            spec.name,
            install.version,
            spec.node_names().len(),
            spec.node_type
        ));
        files::make(&record, &install)?;
        if let Some(from) = &record.spec.simulated_gpus {
            gpus::make(&record, from)?;
            mig::make(&record)?;
        }
        if let Some(from) = &record.spec.movers {
            movers::make(&record, from)?;
        }
        let lab = PbsLab {
            record,
            install,
            hold: Hold::default(),
        };
        place_command(&lab.record)?;
        let hosts = lab.hosts();
        lab.hold.adopt(hosts.start_switch()?);
        for (host, node_type) in lab.typed_hosts() {
            lab.hold.adopt(hosts.start_host(&host, &node_type)?);
        }
        progress("making the server's database and the homes of the hosts");
        lab.make_homes()?;
        progress("starting server and scheduler");
        HEAD_DAEMONS
            .iter()
            .try_for_each(|daemon| lab.start(HEAD, daemon))?;
        lab.configure()?;
        progress("starting the MoMs, and waiting for the nodes");
        for node in lab.record.spec.node_names() {
            if lab.record.spec.simulated_gpus.is_some() {
                lab.start(&node, GPUOSD)?;
            }
            if lab.record.spec.movers.is_some() {
                lab.start(&node, MOVER)?;
            }
            lab.start(&node, MOM)?;
            lab.run("qmgr", &["-c", &format!("create node {node}")])?;
        }
        lab.wait_ready(READY)?;
        Ok(lab)
    }

    /// A lab that is up, by name. Dropping this value leaves it up.
    ///
    /// # Errors
    /// There is no such lab, it has a Slurm and no PBS, or its PBS is not installed any more.
    pub fn open(name: &str) -> Result<PbsLab, LabError> {
        if let Ok(host) = std::env::var(HOST_ENV) {
            return Err(LabError::Spec(format!(
                "this is {host} of a lab already: run the command as it is, or leave the lab's shell first"
            )));
        }
        if !sys::is_root() {
            return Err(LabError::NotRoot);
        }
        let record = store::record(name)?;
        let Some(prefix) = &record.spec.pbs else {
            return Err(LabError::Spec(format!(
                "lab {name} has a Slurm and no PBS: this is for labs of PBS"
            )));
        };
        Ok(PbsLab {
            install: Install::find(prefix)?,
            record,
            hold: Hold::default(),
        })
    }

    fn hosts(&self) -> Hosts<'_> {
        Hosts {
            record: &self.record,
            install: &self.install,
        }
    }

    /// All hosts, each with its node type; the head's counts for nothing.
    fn typed_hosts(&self) -> Vec<(String, String)> {
        let head = (HEAD.to_string(), self.record.spec.node_type.clone());
        let nodes = self.record.spec.typed_nodes();
        std::iter::once(head).chain(nodes).collect()
    }

    /// Name of the lab.
    pub fn name(&self) -> &str {
        &self.record.spec.name
    }

    /// Folder of the lab: `work/` (open to all users), `log/`, `etc/` (what its hosts have as `/etc`), ….
    pub fn dir(&self) -> &Path {
        &self.record.dir
    }

    /// What it keeps of itself.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Release of its PBS, for example `23.06.06`.
    pub fn version(&self) -> &str {
        &self.install.version
    }

    /// Names of its hosts: `head`, then the nodes.
    pub fn host_names(&self) -> Vec<String> {
        files::hosts(&self.record)
    }

    /// The PBS home of a host, which the host has as `/var/spool/pbs`.
    pub fn home(&self, host: &str) -> PathBuf {
        files::home(&self.record, host)
    }

    /// The folder of a node's simulated GPUs: the file `state` and the library.
    pub fn gpus_dir(&self, node: &str) -> PathBuf {
        gpus::gpus_dir(&self.record, node)
    }

    /// The command `gpuos` that made the lab, as it was then; `None` where another program made it.
    pub fn own_command(&self) -> Option<PathBuf> {
        Some(self.record.path(TOOLS).join("gpuos")).filter(|path| path.is_file())
    }

    /// A command on the head, as root.
    ///
    /// # Errors
    /// The head has ended.
    pub fn command(&self, program: &str) -> Result<Command, LabError> {
        self.command_on(HEAD, None, program)
    }

    /// A command on a host, as root or as another account: one of [`USERS`], or one that this machine has.
    ///
    /// # Errors
    /// There is no such host or account, or the host has ended.
    pub fn command_on(
        &self,
        host: &str,
        user: Option<&str>,
        program: &str,
    ) -> Result<Command, LabError> {
        self.knows(host)?;
        self.hosts().command(host, user, program)
    }

    /// An error where the lab has no host of that name.
    fn knows(&self, host: &str) -> Result<(), LabError> {
        let hosts = self.host_names();
        if hosts.iter().any(|name| name == host) {
            return Ok(());
        }
        Err(LabError::Spec(format!(
            "lab {} has no host {host}: give one of {}",
            self.name(),
            hosts.join(", ")
        )))
    }

    /// Breaks or mends a simulated GPU of a node: `gpu` is `gpu3`, `3` or `node`, `words` a fault as `gpuos-nvml` knows it,
    /// `repair`, or `reset`.
    ///
    /// # Errors
    /// The lab has no simulated GPUs or no such node, or gpuos-nvml does not know the words.
    pub fn fault(&self, node: &str, gpu: &str, words: &[&str]) -> Result<String, LabError> {
        gpus::simulated(&self.record)?;
        self.is_node(node)?;
        gpus::fault(&self.record, node, gpu, words)
    }

    /// Ends all hosts of the lab with their jobs, and removes its files.
    ///
    /// # Errors
    /// A process hangs in the kernel.
    pub fn down(mut self) -> Result<(), LabError> {
        self.hold.end(&self.record)
    }
}

impl Drop for PbsLab {
    fn drop(&mut self) {
        if self.hold.ends_it() {
            // Nobody is left to tell; the next start sweeps up what would not go.
            let _ = self.hold.end(&self.record);
        }
    }
}

/// Refuses what a lab of PBS cannot be, with a sentence; the prefix of its PBS.
fn check(spec: &LabSpec) -> Result<&Path, LabError> {
    let fail = |text: String| Err(LabError::Spec(text));
    let prefix = match &spec.pbs {
        Some(prefix) if prefix.is_absolute() => prefix,
        Some(prefix) => {
            return fail(format!(
                "--pbs {}: give the absolute path of the folder that PBS is installed under, for example /opt/pbs",
                prefix.display()
            ));
        }
        None => {
            return fail("LabSpec::pbs names no PBS: give the prefix of an installed one".into());
        }
    };
    let names = spec.node_names();
    if names.is_empty() || names.len() > MOST || spec.cloud_nodes.is_some() {
        return fail(format!(
            "{} nodes: a lab of PBS has 1 to {MOST}, each with a MoM, and no cloud nodes",
            names.len()
        ));
    }
    let host = |name: &&String| {
        let is_letter = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        name.bytes().all(is_letter) && name.as_str() != HEAD && name.as_str() != "localhost"
    };
    if let Some(bad) = names.iter().find(|name| !host(name)) {
        return fail(format!(
            "node name {bad:?}: hosts of a lab of PBS have names of a-z, 0-9 and -, and {HEAD} is that of the server"
        ));
    }
    let slurms = spec.select.plugins().is_some()
        || spec.spank
        || spec.accounting
        || !spec.mig_switchable.is_empty();
    if slurms || !spec.slurm_conf_extra.is_empty() || spec.topology_conf.is_some() {
        return fail(
            "plugins, accounting, MIG-switchable GPUs, switches and lines for slurm.conf are for labs of Slurm: leave them out with a PBS"
                .into(),
        );
    }
    if !spec.mig.is_empty() && spec.simulated_gpus.is_none() {
        return fail("--mig with a PBS needs simulated GPUs: give --gpus simulated".into());
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(spec: LabSpec) -> String {
        match check(&spec) {
            Err(LabError::Spec(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    fn of(pbs: &str) -> LabSpec {
        LabSpec {
            pbs: Some(pbs.into()),
            ..LabSpec::default()
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence() {
        assert!(refused(of("opt/pbs")).contains("--pbs opt/pbs: give the absolute path"));
        let mut spec = of("/opt/pbs");
        spec.nodes = 65.into();
        assert!(refused(spec).contains("65 nodes: a lab of PBS has 1 to 64"));
        for name in ["head", "N1", "n_1", "localhost"] {
            let mut spec = of("/opt/pbs");
            spec.nodes = [name].as_slice().into();
            assert!(refused(spec).contains(&format!("node name {name:?}")));
        }
        let mut spec = of("/opt/pbs");
        spec.accounting = true;
        assert!(refused(spec).contains("are for labs of Slurm"));
        assert_eq!(check(&of("/opt/pbs")).unwrap(), Path::new("/opt/pbs"));
    }

    #[test]
    fn a_folder_without_a_pbs_is_refused_with_what_is_missing() {
        let dir = std::env::temp_dir().join("gpuos-no-pbs");
        let error = Install::find(&dir).unwrap_err().to_string();
        assert!(error.contains("sbin/pbs_server"), "{error}");
        assert!(error.contains("give the prefix of an OpenPBS"), "{error}");
    }

    #[test]
    fn every_host_has_an_address_of_its_own() {
        let all: std::collections::BTreeSet<_> = (0..=MOST).map(files::address).collect();
        assert_eq!(all.len(), MOST + 1);
        assert_eq!(files::address(0).to_string(), "10.77.0.1");
        assert_eq!(files::address(255).to_string(), "10.77.1.0");
    }
}
