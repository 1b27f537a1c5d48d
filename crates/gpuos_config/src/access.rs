//! What a site lets users see and ask for: `[access]` and `[[forbid]]` of gpuos.toml.
use gpuos_core::limits::Asked;

use crate::options::{JobOptions, OptionError, placement_text};

/// `[access]`: who is told of other users' jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Users that are told everything, as root and SlurmUser are.
    pub operators: Vec<u32>,
    /// Everybody is told everything.
    pub all: bool,
}

/// What rules go by: where a job is, and whose. All of it is compared as it is, letter by letter: an account is a user's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing<'a> {
    /// The partition in which it runs, or those in which it may come to run.
    pub partitions: &'a [&'a str],
    /// Account; empty: not known, or none.
    pub account: &'a str,
    /// QOS; empty: not known, or none.
    pub qos: &'a str,
}

/// One `[[forbid]]` table: options that jobs may not use for which all of the rest holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forbid {
    /// Options, without the leading dashes.
    pub options: Vec<&'static str>,
    /// Jobs of this partition; any when absent.
    pub partition: Option<String>,
    /// Jobs of this account; any when absent.
    pub account: Option<String>,
    /// Jobs with this QOS; any when absent.
    pub qos: Option<String>,
    /// Whom users may ask about it, in the site's words; empty: nobody is named.
    pub ask: String,
}

impl Forbid {
    fn holds(&self, job: &Standing<'_>) -> bool {
        let is = |rule: &Option<String>, of: &str| rule.as_ref().is_none_or(|rule| rule == of);
        let partition = self.partition.as_ref();
        partition.is_none_or(|rule| job.partitions.contains(&&rule[..]))
            && is(&self.account, job.account)
            && is(&self.qos, job.qos)
    }

    /// Whom users may ask about it.
    pub fn asks(&self) -> &str {
        match self.ask.is_empty() {
            true => "those who run the cluster",
            false => &self.ask,
        }
    }

    /// That it is not allowed, and where: `it is not allowed in partition debug for account students`.
    pub fn clause(&self) -> String {
        format!("it is not allowed {}", self.scope_text())
    }

    /// The sentence for who used an option (its name without dashes) all the same: job_submit_gpuos's own.
    pub fn refusal(&self, option: &str, value: &str) -> OptionError {
        let accepted = format!("no --{option}, or ask {}", self.asks());
        OptionError::new(&format!("--{option}"), value, &self.clause(), &accepted)
    }

    /// For whom it is forbidden: `in partition debug for account students`.
    fn scope_text(&self) -> String {
        let parts = [
            ("in partition", &self.partition),
            ("for account", &self.account),
            ("with QOS", &self.qos),
        ];
        let parts = parts.iter();
        let parts: Vec<String> = parts
            .filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?)))
            .collect();
        match parts.is_empty() {
            true => "on this cluster".into(),
            false => parts.join(" "),
        }
    }
}

/// All of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forbidden(pub Vec<Forbid>);

impl Forbidden {
    /// The rule that keeps a job from using an option (its name without dashes), if one does.
    pub fn refuses(&self, option: &str, job: &Standing<'_>) -> Option<&Forbid> {
        let mut rules = self.0.iter();
        rules.find(|rule| rule.options.contains(&option) && rule.holds(job))
    }

    /// Whether some job may not use one of these options: without, nobody has to be asked whose a job is.
    pub fn knows<'a>(&self, mut options: impl Iterator<Item = &'a str>) -> bool {
        options.any(|option| self.0.iter().any(|rule| rule.options.contains(&option)))
    }
}

/// The options that a job uses, without dashes, and their values. That it is left to Slurm (`--gpuos=off`) is none that could be
/// forbidden.
pub fn used(options: &JobOptions) -> Vec<(&'static str, String)> {
    // Named one by one: whoever adds an option has to say here that it can be forbidden.
    let JobOptions {
        off: _,
        topology,
        placement,
        shape,
        profile,
        class,
        exclusive,
        power,
        clocks,
        watch_s,
        mps,
        mig,
        share,
        checkpoint,
        restart,
        spares,
        memory,
    } = options;
    let text = |value: &dyn std::fmt::Display| value.to_string();
    // As the options have it.
    let watch = |seconds: u32| match seconds {
        0 => "on".to_owned(),
        seconds => (seconds / 60).to_string(),
    };
    let percent = |share: u8| match share {
        100 => "on".to_owned(),
        share => format!("{share}%"),
    };
    let all = [
        ("gpuos-topology", topology.as_ref().map(ToString::to_string)),
        ("gpuos-placement", placement.as_ref().map(placement_text)),
        ("gpuos-shape", shape.as_ref().map(|one| text(one))),
        ("gpuos-profile", profile.as_ref().map(|one| text(one))),
        ("gpuos-class", class.clone()),
        ("gpuos-exclusive", exclusive.clone()),
        ("gpuos-power", power.as_ref().map(|one| text(one))),
        ("gpuos-clocks", clocks.as_ref().map(|one| text(one))),
        ("gpuos-watch", watch_s.map(watch)),
        ("gpuos-mps", mps.map(percent)),
        ("gpuos-mig", mig.as_ref().map(|one| text(one))),
        ("gpuos-share", share.as_ref().map(|one| text(one))),
        ("gpuos-checkpoint", checkpoint.as_ref().map(|one| text(one))),
        ("gpuos-restart", restart.as_ref().map(|one| text(one))),
        ("gpuos-spares", spares.as_ref().map(|one| text(one))),
        ("gpuos-mem", memory.as_ref().map(|one| text(one))),
    ];
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// Takes out of what a step asks for what its job may not use; the rest is done. `job` is `None` where nobody knows where the job
/// is: then nothing is done that some job may not use. Sentences for the job's standard error.
pub fn allowed(
    forbidden: &Forbidden,
    asked: &mut Asked,
    job: Option<&Standing<'_>>,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut may = |option: &'static str| {
        if !forbidden.knows([option].into_iter()) {
            return true;
        }
        let rule = match job {
            None => {
                notes.push(format!(
                    "--{option} is left out: slurmctld does not say where this job is, and not all jobs may use it"
                ));
                return false;
            }
            Some(job) => forbidden.refuses(option, job),
        };
        if let Some(rule) = rule {
            notes.push(format!(
                "--{option} is left out: {}; ask {}",
                rule.clause(),
                rule.asks()
            ));
        }
        rule.is_none()
    };
    asked.power = asked.power.filter(|_| may("gpuos-power"));
    asked.clocks = asked.clocks.filter(|_| may("gpuos-clocks"));
    asked.watch_s = asked.watch_s.filter(|_| may("gpuos-watch"));
    asked.mps = asked.mps.filter(|wish| match wish.joint {
        // A part of a GPU under MPS is both.
        true => may("gpuos-share") && may("gpuos-mps"),
        false => may("gpuos-mps"),
    });
    notes
}

/// Whether some job may not use what a step asks for: then it has to be known where its job is.
pub fn needs_job_context(forbidden: &Forbidden, asked: &Asked) -> bool {
    let parts = [
        ("gpuos-power", asked.power.is_some()),
        ("gpuos-clocks", asked.clocks.is_some()),
        ("gpuos-watch", asked.watch_s.is_some()),
        ("gpuos-mps", asked.mps.is_some()),
        ("gpuos-share", asked.mps.is_some_and(|wish| wish.joint)),
    ];
    let parts = parts.into_iter().filter(|(_, asks)| *asks);
    forbidden.knows(parts.map(|(option, _)| option))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use gpuos_core::limits::{ClockRange, MpsRequest, PowerCap};

    fn rule(partition: Option<&str>, account: Option<&str>) -> Forbid {
        Forbid {
            options: vec!["gpuos-mps", "gpuos-power"],
            partition: partition.map(str::to_owned),
            account: account.map(str::to_owned),
            ..Forbid::default()
        }
    }

    fn standing<'a>(partitions: &'a [&'a str], account: &'a str) -> Standing<'a> {
        Standing {
            partitions,
            account,
            ..Standing::default()
        }
    }

    #[test]
    fn a_rule_is_for_the_jobs_that_it_names_and_no_other() {
        let forbidden = Forbidden(vec![
            rule(Some("debug"), None),
            rule(Some("gpu"), Some("students")),
        ]);
        let said = |option, partitions: &[&str], account| {
            let rule = forbidden.refuses(option, &standing(partitions, account));
            rule.map(Forbid::clause)
        };
        let debug = "it is not allowed in partition debug";
        assert_eq!(said("gpuos-mps", &["debug"], "x").as_deref(), Some(debug));
        assert_eq!(
            said("gpuos-mps", &["gpu", "debug"], "").as_deref(),
            Some(debug)
        );
        let both = said("gpuos-power", &["gpu"], "students").unwrap();
        assert!(
            both.contains("in partition gpu for account students"),
            "{both}"
        );
        for (option, partitions, account) in [
            ("gpuos-clocks", &["debug"][..], "x"),
            ("gpuos-mps", &["gpu"], "student"),
            ("gpuos-mps", &["gpu"], "Students"),
            ("gpuos-mps", &["gpu"], "students\n"),
            ("gpuos-mps", &["Debug"], ""),
            ("gpuos-mps", &[], "students"),
        ] {
            assert_eq!(
                said(option, partitions, account),
                None,
                "{option} {partitions:?} {account}"
            );
        }
        assert!(forbidden.knows(["gpuos-clocks", "gpuos-mps"].into_iter()));
        assert!(!forbidden.knows(["gpuos-clocks"].into_iter()));
        let everybody = Forbidden(vec![rule(None, None)]);
        let rule = everybody
            .refuses("gpuos-mps", &Standing::default())
            .unwrap();
        let said = (rule.clause(), rule.asks());
        assert_eq!(
            said,
            (
                "it is not allowed on this cluster".into(),
                "those who run the cluster"
            )
        );
    }

    #[test]
    fn a_step_keeps_what_its_job_may_use() {
        let wish = Asked {
            power: Some(PowerCap::Watts(300)),
            clocks: Some(ClockRange {
                least: 1200,
                most: 1500,
            }),
            watch_s: Some(60),
            mps: Some(MpsRequest {
                percent: 50,
                gid: 1,
                joint: false,
            }),
            shared: false,
            undone: false,
        };
        let forbidden = Forbidden(vec![Forbid {
            ask: "hpc@example.org".into(),
            ..rule(Some("debug"), None)
        }]);
        let kept = |asked: &Asked| {
            [
                asked.power.is_some(),
                asked.clocks.is_some(),
                asked.watch_s.is_some(),
                asked.mps.is_some(),
            ]
        };
        assert!(needs_job_context(&forbidden, &wish));
        for (job, left, said) in [
            (Some(standing(&["gpu"], "")), [true; 4], 0),
            (
                Some(standing(&["debug"], "")),
                [false, true, true, false],
                2,
            ),
            (None, [false, true, true, false], 2),
        ] {
            let mut asked = wish;
            let notes = allowed(&forbidden, &mut asked, job.as_ref());
            assert_eq!((kept(&asked), notes.len()), (left, said), "{notes:?}");
            if job.is_some() && said > 0 {
                let first = "--gpuos-power is left out: it is not allowed in partition debug; ask hpc@example.org";
                assert_eq!(notes[0], first);
            }
        }
        let quiet = Asked {
            clocks: wish.clocks,
            ..Asked::default()
        };
        assert!(!needs_job_context(&forbidden, &quiet));
        // A part of a GPU under MPS is a use of MPS.
        let mut joint = Asked {
            mps: wish.mps.map(|mps| MpsRequest { joint: true, ..mps }),
            ..Asked::default()
        };
        let notes = allowed(&forbidden, &mut joint, Some(&standing(&["debug"], "")));
        assert!(joint.mps.is_none() && notes.len() == 1);
    }

    proptest! {
        #[test]
        fn an_account_is_a_whole_name(account in "\\PC{0,12}") {
            let forbidden = Forbidden(vec![rule(None, Some("students"))]);
            let refused = forbidden.refuses("gpuos-mps", &standing(&["gpu"], &account)).is_some();
            prop_assert_eq!(refused, account == "students");
        }
    }
}
