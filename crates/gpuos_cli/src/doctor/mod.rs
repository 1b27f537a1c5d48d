//! `gpuos doctor`: is the installation sound, and if not, what mends it.
//!
//! It reads Slurm's files itself and opens the plugins' as the loader would, so that it can tell what ends slurmctld
//! before its start as well as after it. Where slurmctld answers, what that says counts. [`pbs`] is the doctor of a machine of PBS.

pub mod about;
mod cgroup;
mod changed;
mod checkpoints;
mod daemon;
mod files;
mod findings;
mod folders;
mod gpus;
mod grace;
mod gres;
mod gres_lines;
mod hardware;
mod here;
#[cfg(test)]
mod host_faults;
mod log;
mod memory;
mod mover;
mod node_lines;
mod nvme;
mod pbs;
mod plugins;
mod plugstack;
mod processes;
mod settings;
mod shards;
#[cfg(test)]
mod site_faults;
mod slices;
mod slurm;
mod steering;
mod toml;
mod units;

use std::path::Path;

use anyhow::Result;
use gpuos_host::slurm::Running;
use gpuos_host::slurm::files::{self as slurm_files, SlurmFile};
use gpuos_host::{Machine, User};

use crate::cli::DoctorArgs;
use crate::reply::Reply;

use findings::Findings;
use here::Here;
use log::Log;
use units::Units;

/// The form of the JSON.
pub const SCHEMA: &str = crate::reply::DOCTOR;

/// What the checks look at.
struct Context<'a> {
    machine: &'a dyn Machine,
    /// gpuos.toml that the command line names.
    config: Option<&'a Path>,
    args: &'a DoctorArgs,
    /// What slurmctld says; `None`: it does not answer.
    running: Option<&'a Running>,
    /// What it runs with, else what it would by its file.
    settings: &'a Running,
    /// slurm.conf, where it can be read here.
    conf: Option<&'a SlurmFile>,
    /// SlurmUser; `None`: this machine knows no such user.
    user: Option<&'a User>,
    log: &'a Log,
    /// What this machine is in the cluster.
    here: &'a Here,
}

impl Context<'_> {
    /// Whether jobs are, or would be, placed by gpuos.
    fn selected(&self) -> bool {
        self.settings.get("SelectType") == Some("select/gpuos")
    }

    /// `slurm.conf:12` for a setting, else the file. The key is in lower case.
    fn place(&self, key: &str) -> String {
        let setting = self.conf.and_then(|conf| conf.get(key));
        let whole = || self.settings.slurm_conf().display().to_string();
        setting.map_or_else(whole, |setting| setting.place)
    }
}

/// The answer and the exit code: 0 all is well, 1 something was found, 2 there was nothing to look at. `pbs`: PBS is the workload
/// manager.
pub fn run(
    machine: &dyn Machine,
    config: Option<&Path>,
    pbs: bool,
    args: &DoctorArgs,
) -> Result<(Reply, u8)> {
    if pbs {
        return pbs::run(machine, config, args);
    }
    let mut findings = Findings::default();
    let running = slurm::ask(machine);
    let known = running.as_ref().ok().map(Running::slurm_conf);
    let conf = slurm_files::slurm_conf(machine, known.as_deref());
    let settings = match (&running, &conf) {
        (Ok(running), _) => running.clone(),
        (Err(_), Ok(conf)) => conf.settings(),
        (Err(why), Err(none)) => {
            findings
                .fail(
                    about::SLURM,
                    format!("slurmctld does not answer: {why:#}"),
                    "run this on the host of slurmctld, and set SLURM_CONF to the slurm.conf of the cluster",
                )
                .why("without slurmctld and without slurm.conf there is nothing to look at");
            findings.fail(about::SLURM_CONF, none, "set SLURM_CONF to its path");
            slurm::munge(machine, None, &mut findings);
            return Ok(findings.reply(false));
        }
    };
    let name = settings::slurm_user(&settings);
    let user = User::find(machine, &name);
    let log = Log::read(machine, &settings);
    let here = Here::find(machine, args, running.as_ref().ok(), conf.as_ref().ok());
    let look = Context {
        machine,
        config,
        args,
        running: running.as_ref().ok(),
        settings: &settings,
        conf: conf.as_ref().ok(),
        user: user.as_ref(),
        log: &log,
        here: &here,
    };
    files::check(&look, &conf, &mut findings);
    plugins::check(&look, &mut findings);
    settings::check(&look, &name, &mut findings);
    plugstack::check(&look, &mut findings);
    node_lines::check(&look, &mut findings);
    gres::check(&look, &mut findings);
    cgroup::check(&look, &mut findings);
    toml::check(&look, &mut findings);
    // After what ends it: the advice for slurmctld names that.
    slurm::controller(&look, running.as_ref().err(), &mut findings);
    slurm::munge(machine, Some(&settings), &mut findings);
    slurm::release(&look, &mut findings);
    log::check(&look, &mut findings);
    if look.running.is_some() {
        changed::check(&look, &mut findings);
        gpus::check(&look, &mut findings);
        steering::check(&look, &mut findings);
    }
    let two = cgroup::host(&look, &mut findings);
    let units = Units::read(&look);
    units::check(&look, &units, two, &mut findings);
    daemon::check(&look, &units, &mut findings);
    checkpoints::check(&look, &mut findings);
    memory::check(&look, &mut findings);
    mover::check(&look, &mut findings);
    grace::check(&look, &mut findings);
    Ok(findings.reply(true))
}
