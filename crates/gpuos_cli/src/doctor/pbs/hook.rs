//! The hook in PBS, its configuration, and the resources that `gpuos pbs install` makes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::install::{HOOK, MODIFYRESV, Objects, install, parse_list};
use serde::Deserialize;

use super::super::about;
use super::super::findings::{Findings, Status};
use super::Look;
use crate::pbs::SCRIPT;

/// What mends most of it.
const INSTALL: &str = "on the host of pbs_server, as a manager of PBS: `gpuos pbs install`";

/// What PBS answers somebody who may not see hooks.
const UNAUTHORIZED: &str = "unauthorized";

/// The most seconds between two events of a mom: beyond these gpuosd takes mom for silent at times.
const MOST_SECONDS: u64 = 30;

/// What the hook's configuration says.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct Known {
    /// The command, on the host of pbs_server.
    pub command: PathBuf,
    /// libgpuos_pbs_hook.so, on hosts of moms.
    pub library: PathBuf,
    /// Whether `gpuos pbs-planner` is said to run.
    #[serde(default)]
    pub planner: bool,
    /// Whether gpuos_mover is said to keep checkpoints.
    #[serde(default)]
    pub checkpoints: bool,
    /// GPUs of hosts.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
}

/// What there is of the hook.
enum There {
    /// All of it, as pbs_server has it.
    Hook(BTreeMap<String, String>, String, String),
    /// This user may not see it.
    Hidden,
    Absent,
    /// It was not told.
    Unknown(String),
}

/// Looks at all of it; what the hook is configured with, where that can be read here.
pub fn check(look: &Look, findings: &mut Findings) -> Option<Known> {
    // Without an answer of the server there is nothing to compare.
    let there = look.site.map(|_| ask(look));
    let hooks = match &there {
        Some(There::Hook(attributes, ..)) => Objects::from([(HOOK.to_owned(), attributes.clone())]),
        _ => Objects::new(),
    };
    if look.site.is_some() {
        match qmgr(look, "list resource") {
            Ok(text) => resources(&parse_list(&text, "resource"), &hooks, findings),
            Err(why) => {
                findings.warn(
                    about::RESOURCES,
                    format!("qmgr does not tell PBS's resources: {why}"),
                    "run `gpuos doctor` as root on the host of pbs_server",
                );
            }
        }
    }
    match there {
        Some(There::Hook(attributes, script, config)) => {
            in_server(&attributes, &script, findings);
            configuration(&config, "the configuration of the hook in PBS", findings)
        }
        Some(There::Absent) => {
            findings
                .fail(
                    about::HOOK,
                    "PBS has no hook of gpuos",
                    format!("{INSTALL}, with --hosts gpus.json where gpuosd is to choose GPUs"),
                )
                .why("what jobs say to gpuos is looked at by nobody, and gpuosd chooses no GPUs");
            None
        }
        Some(There::Unknown(why)) => {
            findings.warn(
                about::HOOK,
                format!("qmgr does not tell the hook: {why}"),
                "run `gpuos doctor` as root on the host of pbs_server",
            );
            of_mom(look, findings)
        }
        Some(There::Hidden) | None => of_mom(look, findings),
    }
}

/// What qmgr prints for a line.
fn qmgr(look: &Look, line: &str) -> Result<String, String> {
    let told = look.pbs.qmgr(look.machine, line);
    let told = told.map_err(|e| format!("{e:#}"))?;
    // PBS says so on standard error and ends well all the same.
    match told.stderr.contains(UNAUTHORIZED) {
        true => Err(UNAUTHORIZED.into()),
        false if told.ok => Ok(told.stdout),
        false => Err(told.stderr.split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

fn ask(look: &Look) -> There {
    let hooks = match qmgr(look, "list hook") {
        Ok(text) => parse_list(&text, "hook"),
        Err(why) if why == UNAUTHORIZED => return There::Hidden,
        Err(why) => return There::Unknown(why),
    };
    let Some(attributes) = hooks.get(HOOK) else {
        return There::Absent;
    };
    let export = |kind: &str| {
        qmgr(
            look,
            &format!("export hook {HOOK} application/{kind} default"),
        )
    };
    There::Hook(
        attributes.clone(),
        export("x-python").unwrap_or_default(),
        export("x-config").unwrap_or_default(),
    )
}

/// The lines that `gpuos pbs install` would run say what is missing.
fn resources(present: &Objects, hooks: &Objects, findings: &mut Findings) {
    let lines = match install(present, hooks, "", ("script", "config")) {
        Ok(lines) => lines,
        Err(why) => {
            findings.fail(about::RESOURCES, why, INSTALL);
            return;
        }
    };
    let named = |start: &str| -> Vec<String> {
        let lines = lines.iter().filter_map(|line| line.strip_prefix(start));
        let names = lines.filter_map(|rest| rest.split(' ').next());
        names.map(str::to_owned).collect()
    };
    let (missing, flags) = (named("create resource "), named("set resource "));
    if !missing.is_empty() {
        findings
            .fail(
                about::RESOURCES,
                format!("PBS has no resource {}", missing.join(", ")),
                INSTALL,
            )
            .why("jobs that name one are refused by PBS, and moms cannot say where GPUs are");
    }
    if !flags.is_empty() {
        findings
            .fail(
                about::RESOURCES,
                format!("flags are missing on resource {}", flags.join(", ")),
                INSTALL,
            )
            .why("PBS does not count them on hosts, or does not tell moms of them");
    }
    if missing.is_empty() && flags.is_empty() {
        findings.ok(about::RESOURCES, "PBS has all resources of gpuos");
    }
}

/// The hook as pbs_server has it.
fn in_server(attributes: &BTreeMap<String, String>, script: &str, findings: &mut Findings) {
    let value = |key: &str| attributes.get(key).map_or("", |value| &value[..]);
    if !value("enabled").eq_ignore_ascii_case("true") {
        findings
            .fail(
                about::HOOK,
                "the hook of gpuos is not enabled",
                "qmgr -c 'set hook gpuos enabled = true'",
            )
            .why("nothing is checked, PBS hears nothing of GPUs that fail, and planner and pbs_sched may start two jobs at once with the same GPUs");
    }
    let is_settled = |line: &String| {
        let key = line.strip_prefix("set hook gpuos ")?;
        let (key, wanted) = key.split_once(" = ")?;
        Some((key.to_owned(), wanted.trim_matches('"').to_owned()))
    };
    // What `gpuos pbs install` would set says what is otherwise.
    let hooks = Objects::from([(HOOK.to_owned(), attributes.clone())]);
    let lines = install(&Objects::new(), &hooks, "", ("script", "config")).unwrap_or_default();
    for (key, wanted) in lines.iter().filter_map(is_settled) {
        let has = value(&key);
        match &key[..] {
            "enabled" => {}
            "event" => {
                let words = |text: &str| -> BTreeSet<String> {
                    text.split(',').map(|word| word.trim().to_owned()).collect()
                };
                let (have, need) = (words(has), words(&wanted));
                let missing: Vec<&String> = need.difference(&have).collect();
                let missing: Vec<&str> = missing.iter().map(|word| &word[..]).collect();
                let is_known = |one: &String| need.contains(one) || one == MODIFYRESV;
                if missing.is_empty() && have.iter().all(is_known) {
                    continue;
                }
                let (status, message) = match missing.is_empty() {
                    false => (
                        Status::Fail,
                        format!("the hook is not run for {}", missing.join(", ")),
                    ),
                    true => (
                        Status::Warn,
                        format!("the hook is run for more events than it knows: {has}"),
                    ),
                };
                findings
                    .add(about::HOOK, status, message, INSTALL)
                    .why("what gpuos does at such an event is not done");
            }
            "freq" => freq(has, &wanted, findings),
            key => {
                findings.warn(
                    about::HOOK,
                    format!("the hook has {key} = {has}, and gpuos sets it to {wanted}"),
                    INSTALL,
                );
            }
        }
    }
    if script.trim() != SCRIPT.trim() {
        findings
            .warn(
                about::HOOK,
                "the hook in PBS is of another release than this command",
                format!("{INSTALL}, by the command that is to stay"),
            )
            .why("hook, command and library have to be of one release");
    }
    if !findings.found(about::HOOK) {
        findings.ok(
            about::HOOK,
            "the hook of gpuos is enabled, and of this release",
        );
    }
}

/// How often moms tell what they have: an administrator may have made it rarer.
fn freq(has: &str, wanted: &str, findings: &mut Findings) {
    match has.parse::<u64>() {
        Ok(seconds) if seconds <= MOST_SECONDS => {
            findings.note(
                about::HOOK,
                format!("moms tell what they have every {seconds} s; gpuos sets {wanted}"),
                "",
            );
        }
        _ => {
            findings
                .warn(
                    about::HOOK,
                    format!("moms tell what they have every {has} s"),
                    format!("qmgr -c 'set hook gpuos freq = {wanted}'"),
                )
                .why("gpuosd takes a mom that says nothing for a minute for silent");
        }
    }
}

/// The copies that a mom on this host has, where pbs_server shows nobody here what it has.
fn of_mom(look: &Look, findings: &mut Findings) -> Option<Known> {
    let folder = look.conf.home.join("mom_priv/hooks");
    let read = |name: &str| look.machine.read(&folder.join(name));
    if !look.conf.has_mom {
        findings.note(
            about::HOOK,
            "the hook was not looked at: PBS shows hooks to root on the host of pbs_server alone",
            "run `gpuos doctor` there, as root",
        );
        return None;
    }
    let (script, config) = match (read("gpuos.PY"), read("gpuos.CF")) {
        (Ok(script), Ok(config)) => (script, config),
        (Err(e), _) | (_, Err(e)) if e.kind() == std::io::ErrorKind::NotFound => {
            findings
                .fail(
                    about::HOOK,
                    "the mom of this host has no hook of gpuos",
                    format!("{INSTALL}; PBS then sends it to all moms, which takes a moment"),
                )
                .at(folder.display())
                .why("PBS hears nothing of the GPUs here, and programs are not told theirs");
            return None;
        }
        _ => {
            findings
                .note(
                    about::HOOK,
                    "the hook was not looked at: what the mom of this host has is root's alone to read",
                    "run `gpuos doctor` as root",
                )
                .at(folder.display());
            return None;
        }
    };
    if String::from_utf8_lossy(&script).trim() == SCRIPT.trim() {
        findings.ok(
            about::HOOK,
            "the mom of this host has the hook of gpuos, of this release",
        );
    } else {
        findings
            .warn(
                about::HOOK,
                "the hook that the mom of this host has is of another release than this command",
                format!("install one release on all hosts; then {INSTALL}"),
            )
            .at(folder.display())
            .why("hook, command and library have to be of one release");
    }
    let config = String::from_utf8_lossy(&config);
    configuration(&config, "the configuration of the hook here", findings)
}

fn configuration(text: &str, which: &str, findings: &mut Findings) -> Option<Known> {
    match serde_json::from_str(text) {
        Ok(known) => Some(known),
        Err(why) => {
            findings
                .fail(
                    about::HOOK,
                    format!("{which} cannot be read: {why}"),
                    format!("{INSTALL}, with --hosts"),
                )
                .why("the hook finds neither command nor library: jobs that name something of gpuos are refused");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hook as OpenPBS prints it after all lines that install it: a long value goes on after a tab.
    fn list() -> String {
        let lines = install(&Objects::new(), &Objects::new(), "", ("script", "config")).unwrap();
        let settings = lines.iter().filter_map(|line| {
            let setting = line.strip_prefix("set hook gpuos ")?.replace('"', "");
            let setting = setting.replace(",exechost_startup", ",\n\texechost_startup");
            Some(format!("    {setting}\n"))
        });
        let settings: String = settings.collect();
        format!(
            "Hook other\n    enabled = false\n\nHook gpuos\n    type = site\n    user = pbsadmin\n{settings}    debug = false\n"
        )
    }

    fn said(list: &str, script: &str) -> Vec<String> {
        let hooks = parse_list(list, "hook");
        let mut findings = Findings::default();
        in_server(&hooks[HOOK], script, &mut findings);
        let (reply, _) = findings.reply(true);
        let checks = reply.json["checks"].as_array().cloned().unwrap_or_default();
        let text = |check: &serde_json::Value| {
            let word = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}", word("status"), word("message"))
        };
        checks.iter().map(text).collect()
    }

    #[test]
    fn a_hook_that_is_as_it_was_installed_is_well() {
        assert_eq!(
            said(&list(), SCRIPT),
            ["ok the hook of gpuos is enabled, and of this release"]
        );
    }

    #[test]
    fn what_is_otherwise_is_told_each_with_its_weight() {
        for (from, to, told) in [
            (
                "enabled = true",
                "enabled = false",
                "fail the hook of gpuos is not enabled",
            ),
            ("runjob,", "", "fail the hook is not run for runjob"),
            (
                "freq = 5",
                "freq = 20",
                "note moms tell what they have every 20 s; gpuos sets 5",
            ),
            (
                "freq = 5",
                "freq = 120",
                "warn moms tell what they have every 120 s",
            ),
            (
                "fail_action = none",
                "fail_action = offline_vnodes",
                "warn the hook has fail_action = offline_vnodes, and gpuos sets it to none",
            ),
        ] {
            assert!(list().contains(from), "{from}");
            let said = said(&list().replace(from, to), SCRIPT);
            assert!(said.contains(&told.to_owned()), "{to}: {said:?}");
        }
        let other = said(&list(), "import pbs\n");
        assert_eq!(
            other,
            ["warn the hook in PBS is of another release than this command"]
        );
    }

    #[test]
    fn resources_that_are_missing_or_cannot_be_used_are_told() {
        let all = |list: &str| {
            let mut findings = Findings::default();
            resources(
                &parse_list(list, "resource"),
                &Objects::new(),
                &mut findings,
            );
            findings.reply(true).0.text
        };
        let fresh = "Resource ngpus\n    type = long\n    flag = hn\n";
        let text = all(fresh);
        assert!(
            text.contains("PBS has no resource gpuos_topology, gpuos_placement"),
            "{text}"
        );
        assert!(!text.contains(" ngpus"), "{text}");
        let text = all(&fresh.replace("long", "string"));
        assert!(text.contains("a resource ngpus of type string"), "{text}");
        let text = all(&fresh.replace("hn", "h"));
        assert!(
            text.contains("flags are missing on resource ngpus"),
            "{text}"
        );
    }
}
