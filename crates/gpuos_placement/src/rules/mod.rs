//! Who may run beside whom, and which places are kept for others.
//!
//! [`Rules`] is what the administrator says in gpuos.toml, by names. A [`Book`] is made of it for one
//! cluster; it is told which jobs start and end, and [`Book::judge`] says of every node whether a new
//! job may go there: the [`Verdict`]. Judging allocates nothing and looks at counts of each domain,
//! never at the jobs that run. [`Book::explain`] names the causes for people.
//!
//! A domain is a domain of the fabric level that a rule names, or a node. A node that is in no domain
//! of the level is a domain of its own. Only jobs with GPUs count, and only they are judged.

mod book;
mod cause;
mod names;
mod reserved;
mod target;

pub use book::{Book, Newcomer};
pub use cause::{Cause, Exclusion};
pub use target::Target;

/// What gpuos.toml says, in the order of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// `[[class]]`; when there is any, no other class can be named.
    pub classes: Vec<Class>,
    /// `[[rule]]`.
    pub rules: Vec<Rule>,
    /// `[[reserve]]`.
    pub reserves: Vec<Reserve>,
    /// `[[power-domain]]`.
    pub power: Vec<PowerDomain>,
}

/// `[[class]]`: a kind of job. A job that names no class is of the first one whose conditions it meets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Partition of its jobs; any when absent.
    pub partition: Option<String>,
    /// Account of its jobs; any when absent.
    pub account: Option<String>,
    /// User of its jobs, by name or number; any when absent.
    pub user: Option<String>,
}

/// `[[rule]]`: two kinds of jobs are not to share a domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Which jobs.
    pub bond: Bond,
    /// `node`, `nvlink` or a level of the fabric.
    pub level: String,
    /// Whether other places are only preferred.
    pub prefer: bool,
    /// The rule is for jobs of this partition, on both sides; for all when absent.
    pub partition: Option<String>,
}

/// Which jobs a [`Rule`] keeps apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bond {
    /// `never-beside`: jobs of the first class from those of the second, which may be the same.
    Classes(String, String),
    /// `tenants`: jobs of each from those of all others.
    Tenants(Tenant),
}

/// Who counts as one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tenant {
    /// An account.
    Account,
    /// A user.
    User,
}

/// `[[reserve]]`: places kept for big gangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// How many domains of the level.
    pub count: u32,
    /// `node`, `nvlink` or a level of the fabric.
    pub level: String,
    /// Nodes that it is made of; empty = all.
    pub nodes: Vec<String>,
    /// Jobs on at least so many nodes are not kept out.
    pub gangs: u32,
    /// Whether others never go there; else only when there is no other place.
    pub hard: bool,
    /// Jobs with a shorter time limit, in minutes, are not kept out.
    pub unless_shorter: Option<u32>,
}

/// `[[power-domain]]`: nodes that share a supply of power.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PowerDomain {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// What it can supply in W; idle nodes are avoided when they would need more. 0 = no limit.
    pub watts: u32,
}

/// What the rules ask of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts<'a> {
    /// Number of its user.
    pub uid: u32,
    /// Name of its user, if it is known.
    pub user: &'a str,
    /// Account, or empty.
    pub account: &'a str,
    /// The partition that it runs in, or is to run in.
    pub partition: &'a str,
    /// Class, as the job itself says (`--gpuos-class`).
    pub class: Option<&'a str>,
    /// Level of the domains that it wants to itself (`--gpuos-exclusive`).
    pub exclusive: Option<&'a str>,
    /// Nodes that it asks for.
    pub nodes: u32,
    /// Time limit in minutes; `None` = no limit, or not known.
    pub minutes: Option<u32>,
}

/// Whether a job may go to a node, from good to bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Verdict {
    /// Nothing speaks against it.
    #[default]
    Allowed,
    /// Equally close places elsewhere are better.
    Avoided,
    /// Only when there is no other place.
    LastResort,
    /// No.
    Forbidden,
}

impl Rules {
    /// Whether a job may be judged differently for them: classes and names of power domains alone
    /// change nothing.
    pub fn bind(&self) -> bool {
        !self.rules.is_empty()
            || !self.reserves.is_empty()
            || self.power.iter().any(|domain| domain.watts > 0)
    }

    /// The class of a job: what it says itself, else the first `[[class]]` that fits it.
    pub fn class_of<'a>(&'a self, job: &Facts<'a>) -> Option<&'a str> {
        let is = |asked: &Option<String>, has: &str| asked.as_ref().is_none_or(|a| a == has);
        let fits = |class: &&Class| {
            let asks = class.partition.is_some() || class.account.is_some() || class.user.is_some();
            let number = class.user.as_ref().and_then(|user| user.parse().ok());
            asks && is(&class.partition, job.partition)
                && is(&class.account, job.account)
                && (is(&class.user, job.user) || number == Some(job.uid))
        };
        let given = || self.classes.iter().find(fits).map(|c| c.name.as_str());
        job.class.or_else(given)
    }

    /// Whether a job may name this class.
    ///
    /// # Errors
    /// The classes that it may name, when there are `[[class]]` tables and it is none of them.
    pub fn check_class(&self, name: &str) -> Result<(), String> {
        if self.classes.is_empty() || self.classes.iter().any(|class| class.name == name) {
            return Ok(());
        }
        let mut known: Vec<&str> = self.classes.iter().map(|c| c.name.as_str()).collect();
        known.dedup();
        Err(known.join(", "))
    }
}
