//! The settings of slurm.conf that gpuos needs, or that go against it.

use std::path::Path;

use gpuos_host::slurm::Running;
use gpuos_host::{Kind, User};

use super::Context;
use super::about;
use super::findings::{Findings, Status};
use super::plugins;

/// SlurmUser's name: slurmctld shows `slurm(64030)`.
pub fn slurm_user(settings: &Running) -> String {
    let name = settings.get("SlurmUser").unwrap_or("root");
    name.split('(').next().unwrap_or(name).to_string()
}

pub fn check(look: &Context, user: &str, findings: &mut Findings) {
    if look.user.is_none() {
        findings
            .fail(
                about::SLURM_USER,
                format!("this machine knows no user {user}"),
                "make the user, the same on all hosts, or correct SlurmUser",
            )
            .at(look.place("slurmuser"))
            .why("slurmctld ends without it");
    }
    select(look, findings);
    job_submit(look, findings);
    tres(look, findings);
    private(look, findings);
    places(look, findings);
}

fn select(look: &Context, findings: &mut Findings) {
    let is = look.settings.get("SelectType").unwrap_or("not set");
    let place = look.place("selecttype");
    if look.selected() {
        findings.ok(about::SELECT_TYPE, is);
        parameters(look, findings);
        return;
    }
    let dirs = plugins::folders(look.machine, look.settings);
    let file = is.replace('/', "_") + ".so";
    if !dirs.is_empty()
        && is.starts_with("select/")
        && plugins::find(look.machine, &dirs, &file).is_none()
    {
        findings
            .fail(
                about::SELECT_TYPE,
                format!(
                    "{is}: there is no {file} in PluginDir ({})",
                    plugins::shown(&dirs)
                ),
                "set SelectType=select/gpuos",
            )
            .at(place)
            .why("slurmctld ends at its start without its select plugin");
        return;
    }
    findings
        .warn(
            about::SELECT_TYPE,
            format!("{is}: jobs are placed by stock Slurm"),
            format!(
                "set SelectType=select/gpuos in {} and restart slurmctld",
                look.settings.slurm_conf().display()
            ),
        )
        .at(place)
        .why("nothing of gpuos' placement, options and reasons works without it");
}

/// cons_tres places nothing by GPUs where it counts whole nodes only.
fn parameters(look: &Context, findings: &mut Findings) {
    let value = look
        .settings
        .get("SelectTypeParameters")
        .unwrap_or("")
        .to_uppercase();
    if value
        .split(',')
        .any(|word| word == "CR_LINEAR" || word == "CR_MEMORY")
        && !value.contains("CPU")
        && !value.contains("CORE")
        && !value.contains("SOCKET")
    {
        findings
            .warn(
                about::SELECT_TYPE,
                format!("SelectTypeParameters={value} gives whole nodes to jobs"),
                "set SelectTypeParameters=CR_Core_Memory",
            )
            .at(look.place("selecttypeparameters"));
    }
}

fn job_submit(look: &Context, findings: &mut Findings) {
    let list = look.settings.list("JobSubmitPlugins");
    let conf = look.settings.slurm_conf();
    let place = look.place("jobsubmitplugins");
    let dirs = plugins::folders(look.machine, look.settings);
    for name in &list {
        let name = name.trim_start_matches("job_submit/");
        let file = format!("job_submit_{name}.so");
        if name != "gpuos"
            && !dirs.is_empty()
            && plugins::find(look.machine, &dirs, &file).is_none()
        {
            findings
                .fail(
                    about::JOB_SUBMIT,
                    format!("JobSubmitPlugins names {name}, and there is no {file} in PluginDir"),
                    "correct the name, or install the plugin",
                )
                .at(&place)
                .why("slurmctld ends at its start with a plugin that it cannot load");
        }
    }
    let at = list
        .iter()
        .position(|name| matches!(*name, "gpuos" | "job_submit/gpuos"));
    match at {
        None => {
            let mut new = list.clone();
            new.push("gpuos");
            findings
                .warn(
                    about::JOB_SUBMIT,
                    "job_submit/gpuos is not loaded: wrong --gpuos options are not refused when a job is submitted",
                    format!("set JobSubmitPlugins={} in {} and restart slurmctld", new.join(","), conf.display()),
                )
                .at(place);
        }
        Some(at) if at + 1 < list.len() => {
            let after: Vec<&str> = list[at + 1..].to_vec();
            let mut new = list.clone();
            let own = new.remove(at);
            new.push(own);
            findings
                .warn(
                    about::JOB_SUBMIT,
                    format!("gpuos stands before {} in JobSubmitPlugins, and does not see what that makes of a job", after.join(",")),
                    format!("set JobSubmitPlugins={}", new.join(",")),
                )
                .at(place);
        }
        Some(_) if !findings.found(about::JOB_SUBMIT) => {
            findings.ok(about::JOB_SUBMIT, list.join(","));
        }
        Some(_) => {}
    }
}

fn tres(look: &Context, findings: &mut Findings) {
    let settings = look.settings;
    let accounted = settings
        .get("AccountingStorageType")
        .is_some_and(|kind| kind.ends_with("slurmdbd"));
    if !accounted {
        return;
    }
    let list = settings.list("AccountingStorageTRES");
    let has = |name: &str| {
        list.iter()
            .any(|one| one.eq_ignore_ascii_case(name) || one.starts_with(&format!("{name}:")))
    };
    let missing: Vec<String> = settings
        .list("GresTypes")
        .into_iter()
        .filter(|kind| ["gpu", "gpuos"].contains(kind))
        .map(|kind| format!("gres/{kind}"))
        .filter(|name| !has(name))
        .collect();
    if !missing.is_empty() {
        findings
            .warn(
                about::ACCOUNTING,
                format!("AccountingStorageTRES has no {}: limits of accounts and sacct do not count them", missing.join(" and ")),
                format!("add AccountingStorageTRES={} and restart slurmctld", missing.join(",")),
            )
            .at(look.place("accountingstoragetres"));
    }
}

fn private(look: &Context, findings: &mut Findings) {
    let list = look.settings.list("PrivateData");
    let hides: Vec<&str> = list
        .into_iter()
        .filter(|what| ["jobs", "nodes"].contains(what))
        .collect();
    if !hides.is_empty() {
        findings
            .note(
                about::PRIVATE_DATA,
                format!("users see no {} of others: `gpuos why`, `plan` and `top` count without them there", hides.join(" and ")),
                "nothing is to be done; operators and root see all",
            )
            .at(look.place("privatedata"));
    }
}

/// Folders that slurmctld writes into.
fn places(look: &Context, findings: &mut Findings) {
    // Where slurmctld runs on another host, its folders are there.
    let here = look.running.is_none_or(|_| look.log.missing.is_none());
    if !here {
        return;
    }
    let settings = look.settings;
    let log = settings
        .get("SlurmctldLogFile")
        .and_then(|path| Path::new(path).parent());
    let state = settings.get("StateSaveLocation").map(Path::new);
    for (key, folder) in [("SlurmctldLogFile", log), ("StateSaveLocation", state)] {
        let Some(folder) = folder else { continue };
        let message = match look.machine.stat(folder) {
            Err(error) => format!("{key}: {} cannot be used: {error}", folder.display()),
            Ok(stat) if stat.kind != Kind::Folder => {
                format!("{key}: {} is no folder", folder.display())
            }
            Ok(stat) => match look.user.filter(|user: &&User| !user.may(3, &stat)) {
                Some(user) => format!(
                    "{key}: SlurmUser {} may not write into {}",
                    user.name,
                    folder.display()
                ),
                None => continue,
            },
        };
        let status = match look.running {
            // It runs: then it is on another host, or the folder went away under it.
            Some(_) => Status::Warn,
            None => Status::Fail,
        };
        let user = look.user.map_or("SlurmUser", |user| user.name.as_str());
        findings
            .add(
                about::FOLDERS,
                status,
                message,
                format!("make the folder, and give it to {user}"),
            )
            .at(look.place(&key.to_ascii_lowercase()))
            .why("slurmctld ends at its start where it cannot write its log or its state");
    }
}
