//! What was found, and how it is told: the worst first, each with its place, what it means and what mends it.

use std::fmt::Display;

use serde_json::json;

use super::about::About;
use crate::reply::Reply;
use crate::table::{colour, count, paint};

/// How a check went, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// Does not work.
    Fail,
    /// Works, but not as it should.
    Warn,
    /// Worth knowing; nothing is wrong.
    Note,
    /// As it should be.
    Ok,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }

    /// The colour on a terminal.
    fn code(self) -> u8 {
        match self {
            Status::Ok => 32,
            Status::Note => 36,
            Status::Warn => 33,
            Status::Fail => 31,
        }
    }
}

/// One check with its outcome.
pub struct Check {
    pub name: About,
    pub status: Status,
    message: String,
    /// `FILE:LINE` or a path; empty where there is none.
    place: String,
    /// What follows from it; empty where the message says so.
    why: String,
    /// What to do; empty when nothing is to be done.
    fix: String,
}

impl Check {
    /// Where it is.
    pub fn at(&mut self, place: impl Display) -> &mut Check {
        self.place = plain(&place.to_string());
        self
    }

    /// Why it matters.
    pub fn why(&mut self, text: impl Into<String>) -> &mut Check {
        self.why = plain(&text.into());
        self
    }
}

/// What was looked at, in order.
#[derive(Default)]
pub struct Findings(pub Vec<Check>);

impl Findings {
    pub fn ok(&mut self, name: About, message: impl Into<String>) -> &mut Check {
        self.add(name, Status::Ok, message, "")
    }

    pub fn note(
        &mut self,
        name: About,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> &mut Check {
        self.add(name, Status::Note, message, fix)
    }

    pub fn warn(
        &mut self,
        name: About,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> &mut Check {
        self.add(name, Status::Warn, message, fix)
    }

    pub fn fail(
        &mut self,
        name: About,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> &mut Check {
        self.add(name, Status::Fail, message, fix)
    }

    pub fn add(
        &mut self,
        name: About,
        status: Status,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> &mut Check {
        self.0.push(Check {
            name,
            status,
            message: plain(&message.into()),
            place: String::new(),
            why: String::new(),
            fix: plain(&fix.into()),
        });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Whether a check of that name found something.
    pub fn found(&self, name: About) -> bool {
        let bad = |check: &&Check| check.status <= Status::Warn;
        self.0.iter().filter(bad).any(|check| check.name == name)
    }

    /// The answer. `looked`: something could be looked at.
    pub fn reply(mut self, looked: bool) -> (Reply, u8) {
        // The order of the checks is kept among those of one kind.
        self.0.sort_by_key(|check| check.status);
        let checks = self.0;
        let colour = colour();
        let number = |status: Status| checks.iter().filter(|c| c.status == status).count();
        let mut text = String::new();
        for check in &checks {
            let word = format!("{:<5}", check.status.word());
            let word = paint(&word, check.status.code(), colour);
            text += &format!("{word}{:<17}{}\n", check.name.word(), check.message);
            for (label, value) in [
                ("where", &check.place),
                ("why", &check.why),
                ("fix", &check.fix),
            ] {
                if !value.is_empty() {
                    text += &format!("{:22}{label}: {value}\n", "");
                }
            }
        }
        let (failures, warnings) = (number(Status::Fail), number(Status::Warn));
        let list: Vec<_> = checks
            .iter()
            .map(|c| {
                json!({
                    "name": c.name.word(),
                    "status": c.status.word(),
                    "message": c.message,
                    "where": c.place,
                    "why": c.why,
                    "fix": c.fix,
                })
            })
            .collect();
        text += &match looked {
            true => format!("\n{}\n", verdict(failures, warnings)),
            false => "\nNothing could be looked at.\n".to_string(),
        };
        let yes = looked && failures + warnings == 0;
        let json = json!({
            "ok": yes,
            "looked": looked,
            "warnings": warnings,
            "failures": failures,
            "notes": number(Status::Note),
            "checks": list,
        });
        let code = match (looked, yes) {
            (false, _) => 2,
            (true, yes) => u8::from(!yes),
        };
        let schema = super::SCHEMA;
        let reply = Reply {
            schema,
            json,
            text,
            yes,
        };
        (reply, code)
    }
}

/// Text that others wrote, as one line that does nothing to a terminal.
fn plain(text: &str) -> String {
    gpuos_model::screen::line(text).into_owned()
}

/// The last line, for so many failed checks and warnings.
fn verdict(failures: usize, warnings: usize) -> String {
    match (failures, warnings) {
        (0, 0) => "All is well.".into(),
        (0, _) => format!("It works, with {}.", count(warnings, "warning")),
        (_, 0) => format!("{} failed.", count(failures, "check")),
        _ => format!(
            "{} failed, and there {} {}.",
            count(failures, "check"),
            if warnings == 1 { "is" } else { "are" },
            count(warnings, "warning")
        ),
    }
}

/// ` (and 2 more)` for the rest of a list of which the first is shown.
pub fn others(count: usize) -> String {
    if count > 1 {
        format!(" (and {} more)", count - 1)
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    #[test]
    fn the_verdict_counts_in_plain_english() {
        for (failures, warnings, words) in [
            (0, 0, "All is well."),
            (0, 1, "It works, with 1 warning."),
            (0, 2, "It works, with 2 warnings."),
            (1, 0, "1 check failed."),
            (2, 1, "2 checks failed, and there is 1 warning."),
            (1, 3, "1 check failed, and there are 3 warnings."),
        ] {
            assert_eq!(verdict(failures, warnings), words);
        }
    }

    #[test]
    fn text_of_others_stays_on_its_line() {
        let evil = "a\u{1b}[2J\nfix: run rm\r\u{202e}b\u{9b}";
        assert_eq!(plain(evil), "a\\u{1b}[2J\\nfix: run rm\\r\\u{202e}b\\u{9b}");
    }

    #[test]
    fn the_worst_comes_first_and_the_exit_code_says_what_it_was() {
        let mut findings = Findings::default();
        findings.ok(about::DISK, "well");
        findings.note(about::CLOCK, "known", "");
        let (reply, code) = findings.reply(true);
        assert_eq!((reply.yes, code), (true, 0));
        let mut findings = Findings::default();
        findings.ok(about::DISK, "well");
        findings
            .warn(about::CLOCK, "odd", "mend it")
            .at("/x:3")
            .why("it matters");
        findings.fail(about::SLURM, "broken", "mend it first");
        assert!(findings.found(about::CLOCK) && !findings.found(about::DISK));
        let (reply, code) = findings.reply(true);
        assert_eq!(code, 1);
        let names: Vec<&str> = reply.json["checks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|check| check["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["slurm", "clock", "disk"]);
        assert!(reply.text.contains("where: /x:3\n"), "{}", reply.text);
        assert_eq!(Findings::default().reply(false).1, 2);
    }
}
