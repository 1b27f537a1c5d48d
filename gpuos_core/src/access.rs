//! What a site lets users see and ask for: `[access]` and `[[forbid]]` of gpuos.toml.

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
    /// Name of the user; empty: not known.
    pub user: &'a str,
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
    /// Jobs of this user; any when absent.
    pub user: Option<String>,
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
            && is(&self.user, job.user)
    }

    /// For whom it is forbidden: `in partition debug for account students`.
    fn whom(&self) -> String {
        let parts = [
            ("in partition", &self.partition),
            ("for account", &self.account),
            ("with QOS", &self.qos),
            ("for user", &self.user),
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
    /// Whether a job may not use an option (its name without dashes): why, in a clause such as "is not allowed in partition
    /// debug; ask ann".
    pub fn refuses(&self, option: &str, job: &Standing<'_>) -> Option<String> {
        let mut rules = self.0.iter();
        let rule = rules.find(|rule| rule.options.contains(&option) && rule.holds(job))?;
        let ask = match rule.ask.is_empty() {
            true => "those who run the cluster",
            false => &rule.ask,
        };
        Some(format!("is not allowed {}; ask {ask}", rule.whom()))
    }

    /// Whether some job may not use one of these options: without, nobody has to be asked whose a job is.
    pub fn knows<'a>(&self, mut options: impl Iterator<Item = &'a str>) -> bool {
        options.any(|option| self.0.iter().any(|rule| rule.options.contains(&option)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            forbidden.refuses(option, &standing(partitions, account))
        };
        let debug = "is not allowed in partition debug; ask those who run the cluster";
        assert_eq!(said("gpuos-mps", &["debug"], "x").as_deref(), Some(debug));
        assert_eq!(said("gpuos-mps", &["gpu", "debug"], "").as_deref(), Some(debug));
        let both = said("gpuos-power", &["gpu"], "students").unwrap();
        assert!(both.contains("in partition gpu for account students"), "{both}");
        for (option, partitions, account) in [
            ("gpuos-clocks", &["debug"][..], "x"),
            ("gpuos-mps", &["gpu"], "student"),
            ("gpuos-mps", &["gpu"], "Students"),
            ("gpuos-mps", &["gpu"], "students\n"),
            ("gpuos-mps", &["Debug"], ""),
            ("gpuos-mps", &[], "students"),
        ] {
            assert_eq!(said(option, partitions, account), None, "{option} {partitions:?} {account}");
        }
        assert!(forbidden.knows(["gpuos-clocks", "gpuos-mps"].into_iter()));
        assert!(!forbidden.knows(["gpuos-clocks"].into_iter()));
        let everybody = Forbidden(vec![rule(None, None)]);
        let said = everybody.refuses("gpuos-mps", &Standing::default()).unwrap();
        assert!(said.contains("on this cluster"), "{said}");
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
