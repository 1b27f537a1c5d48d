//! The doctor on a machine of PBS: whether gpuos is in PBS as it should be, on the host of pbs_server and on those of moms.
//!
//! - [`conf`]: pbs.conf and PBS's programs, and what this host is by it,
//! - [`hook`]: the hook, its configuration and the resources,
//! - [`vnodes`]: GPUs as they are described, counted and shown, and what is left over,
//! - [`here`]: what lies and runs on this host.

mod conf;
mod here;
mod hook;
mod vnodes;

use std::path::Path;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::{self, Pbs};
use gpuos_pbs::pass::reserve::Reservation;
use gpuos_pbs::state::Site;

use super::about;
use super::findings::Findings;
use crate::cli::DoctorArgs;
use crate::pbs_planner::keep::Keeper;
use crate::reply::Reply;

use conf::Conf;

/// What the checks look at.
struct Look<'a> {
    machine: &'a dyn Machine,
    args: &'a DoctorArgs,
    conf: &'a Conf,
    pbs: &'a Pbs,
    /// What pbs_server says; `None`: it does not answer.
    site: Option<&'a Site>,
    /// The planner's reservations.
    reserved: &'a [Reservation],
}

/// The answer and the exit code: 0 all is well, 1 something was found, 2 there was nothing to look at.
pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &DoctorArgs) -> Result<(Reply, u8)> {
    let mut findings = Findings::default();
    let found = Conf::read(machine).and_then(|conf| Ok((conf, Pbs::find(machine)?)));
    let (conf, pbs) = match found {
        Ok(found) => found,
        Err(why) => {
            findings
                .fail(
                    about::PBS_CONF,
                    format!("{why:#}"),
                    "run this on the host of pbs_server or of a mom, or name its pbs.conf in $PBS_CONF_FILE",
                )
                .why("without pbs.conf it is not known where PBS is");
            return Ok(findings.reply(false));
        }
    };
    conf::check(machine, &conf, &mut findings);
    let toml = match pbs::config(machine, config) {
        Ok(toml) => toml,
        Err(why) => {
            findings
                .fail(
                    about::GPUOS_TOML,
                    format!("{why:#}"),
                    "mend the file, or leave it away",
                )
                .why("gpuos pbs-planner, gpuosd and the commands take nothing from it, and end");
            gpuos_config::gpuos_toml::Config::default()
        }
    };
    let mut site = match pbs.site_with(machine, toml) {
        Ok(site) => Some(site),
        Err(why) => {
            findings.fail(
                about::PBS,
                format!("pbs_server cannot be asked: {why:#}"),
                "start PBS on its host (`systemctl start pbs`), and see that PBS_SERVER in pbs.conf names that host",
            );
            None
        }
    };
    let keeper = Keeper::find(machine)?;
    let reserved = match &mut site {
        Some(site) => keeper.own(machine, site),
        None => Vec::new(),
    };
    let look = Look {
        machine,
        args,
        conf: &conf,
        pbs: &pbs,
        site: site.as_ref(),
        reserved: &reserved,
    };
    if let Some(site) = &site {
        server(site, &mut findings);
    }
    let known = hook::check(&look, &mut findings);
    if let (Some(site), Some(known)) = (&site, &known) {
        vnodes::check(site, known, &mut findings);
    }
    if let Some(site) = &site {
        vnodes::left_over(site, &mut findings);
    }
    here::check(&look, known.as_ref(), &mut findings);
    Ok(findings.reply(true))
}

/// pbs_server itself, and whether jobs may be started from outside pbs_sched.
fn server(site: &Site, findings: &mut Findings) {
    let server = &site.server;
    findings.ok(
        about::PBS,
        format!(
            "pbs_server {} answers, PBS {}",
            server.name,
            match &server.release[..] {
                "" => "of a release that it does not tell",
                release => release,
            }
        ),
    );
    if server.default_queue.is_empty() {
        findings.note(
            about::PBS,
            "the server has no default_queue: `gpuos plan` has to be told a queue with --partition",
            "",
        );
    }
}
