//! `gpuos doctor`: is the installation sound, and if not, what mends it.

mod gpus;
mod hardware;
mod plugins;
mod shards;
mod slices;
mod slurm;

use std::path::Path;

use anyhow::Result;
use gpuos_core::screen::lines;
use gpuos_host::Machine;
use gpuos_host::slurm::Running;
use serde_json::json;

use crate::cli::HardwareArgs;
use crate::reply::Reply;
use crate::table::{colour, count, paint};

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// As it should be.
    Ok,
    /// Works, but not as it could; or not known.
    Warn,
    /// Does not work.
    Fail,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }
}

/// One check with its outcome.
struct Check {
    name: &'static str,
    status: Status,
    message: String,
    /// What to do; empty when nothing is to be done.
    fix: String,
}

/// What was looked at, in order.
#[derive(Default)]
struct Findings(Vec<Check>);

impl Findings {
    fn ok(&mut self, name: &'static str, message: impl Into<String>) {
        self.add(name, Status::Ok, message, "");
    }

    fn warn(&mut self, name: &'static str, message: impl Into<String>, fix: impl Into<String>) {
        self.add(name, Status::Warn, message, fix);
    }

    fn fail(&mut self, name: &'static str, message: impl Into<String>, fix: impl Into<String>) {
        self.add(name, Status::Fail, message, fix);
    }

    fn add(
        &mut self,
        name: &'static str,
        status: Status,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.0.push(Check {
            name,
            status,
            message: message.into(),
            fix: fix.into(),
        });
    }
}

pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &HardwareArgs) -> Result<Reply> {
    let mut findings = Findings::default();
    let running = slurm::controller(machine, &mut findings);
    slurm::munge(machine, running.as_ref(), &mut findings);
    if let Some(running) = running {
        let selected = is_selected(&running);
        slurm::release(machine, &running, selected, &mut findings);
        plugins::files(machine, &running, selected, &mut findings);
        plugins::settings(machine, &running, &mut findings);
        slurm::log(machine, &running, selected, &mut findings);
        gpus::check(machine, config, &running, args, &mut findings);
    }
    Ok(reply(&findings.0))
}

/// The form of the JSON.
pub const SCHEMA: &str = "gpuos.doctor/1";

fn is_selected(running: &Running) -> bool {
    running.get("SelectType") == Some("select/gpuos")
}

fn reply(checks: &[Check]) -> Reply {
    let colour = colour();
    let number = |status: Status| checks.iter().filter(|c| c.status == status).count();
    let mut text = String::new();
    for check in checks {
        let code = match check.status {
            Status::Ok => 32,
            Status::Warn => 33,
            Status::Fail => 31,
        };
        let word = paint(&format!("{:<5}", check.status.word()), code, colour);
        text += &format!("{word}{:<17}{}\n", check.name, lines(&check.message));
        if !check.fix.is_empty() {
            text += &format!("{:22}fix: {}\n", "", lines(&check.fix));
        }
    }
    let (warnings, failures) = (number(Status::Warn), number(Status::Fail));
    text += &format!("\n{}\n", verdict(failures, warnings));
    let list: Vec<_> = checks
        .iter()
        .map(|c| json!({ "name": c.name, "status": c.status.word(), "message": c.message, "fix": c.fix }))
        .collect();
    let json =
        json!({ "ok": failures == 0, "warnings": warnings, "failures": failures, "checks": list });
    Reply {
        schema: SCHEMA,
        json,
        text,
        yes: failures == 0,
    }
}

/// The last line, for so many failed checks and remarks.
fn verdict(failures: usize, remarks: usize) -> String {
    match (failures, remarks) {
        (0, 0) => "All is well.".into(),
        (0, _) => format!("It works, with {}.", count(remarks, "remark")),
        (_, 0) => format!("{} failed.", count(failures, "check")),
        _ => format!(
            "{} failed, and there {} {}.",
            count(failures, "check"),
            if remarks == 1 { "is" } else { "are" },
            count(remarks, "remark")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn the_verdict_counts_in_plain_english() {
        for (failures, remarks, words) in [
            (0, 0, "All is well."),
            (0, 1, "It works, with 1 remark."),
            (0, 2, "It works, with 2 remarks."),
            (1, 0, "1 check failed."),
            (2, 1, "2 checks failed, and there is 1 remark."),
            (1, 3, "1 check failed, and there are 3 remarks."),
        ] {
            assert_eq!(verdict(failures, remarks), words);
        }
    }
}
