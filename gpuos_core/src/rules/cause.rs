//! Why a node is not, or not gladly, given to a job: as data, and in words.

use std::fmt;

use super::book::{Book, Entry, Newcomer};
use super::{Bond, Tenant, Verdict};
use crate::hostlist::compress;

/// What speaks against a node, by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blame {
    /// The job wants the domain of this scope to itself.
    Wanted(usize),
    /// Another one has it to itself.
    Sole(usize),
    Rule(usize),
    Reserve(usize),
    Power(usize),
}

/// Why a node is not, or not gladly, given to a job. Displays as a part of a sentence.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// A running job has the domain to itself.
    Sole {
        /// The job.
        job: u32,
        /// The domain, such as `nvlink rack1`; empty for the node itself.
        domain: String,
    },
    /// The job wants the domain to itself, and another one is there.
    Wanted {
        /// The other job.
        job: u32,
        /// As in [`Cause::Sole`].
        domain: String,
    },
    /// A `[[rule]]` keeps it apart from others.
    Rule {
        /// Which one, from 1.
        number: usize,
        /// The others: `class io`, `account physics`.
        others: String,
        /// As in [`Cause::Sole`].
        domain: String,
    },
    /// A `[[reserve]]` keeps the place.
    Reserve {
        /// Which one, from 1.
        number: usize,
        /// For gangs on at least so many nodes.
        gangs: u32,
    },
    /// The power domain could not supply one more node.
    Power {
        /// Its name.
        domain: String,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Sole { job, domain } => match domain.as_str() {
                "" => write!(f, "job {job} has the node to itself"),
                domain => write!(f, "job {job} has {domain} to itself"),
            },
            Cause::Wanted { job, domain } => match domain.as_str() {
                "" => write!(
                    f,
                    "job {job} runs there, and the job wants the node to itself"
                ),
                domain => write!(
                    f,
                    "job {job} runs in {domain}, which the job wants to itself"
                ),
            },
            Cause::Rule {
                number,
                others,
                domain,
            } => match domain.as_str() {
                "" => write!(f, "{others} runs there (rule {number})"),
                domain => write!(f, "{others} runs in {domain} (rule {number})"),
            },
            Cause::Reserve { number, gangs } => {
                write!(
                    f,
                    "kept for gangs on {gangs} nodes or more (reserve {number})"
                )
            }
            Cause::Power { domain } => {
                write!(f, "power domain {domain} cannot supply one more node")
            }
        }
    }
}

/// Nodes that a job is kept from, or that it avoids, for one cause. Displays as a sentence without
/// a full stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// How bad it is.
    pub verdict: Verdict,
    /// Why.
    pub cause: Cause,
    /// Names of the nodes.
    pub nodes: Vec<String>,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = compress(self.nodes.iter().map(String::as_str));
        let are = if self.nodes.len() == 1 { "is" } else { "are" };
        let what = match (self.verdict, &self.cause) {
            (Verdict::Forbidden, Cause::Reserve { .. }) => "not for this job",
            (Verdict::Forbidden, _) => "kept apart",
            (Verdict::LastResort, _) => "a last resort",
            _ => "avoided",
        };
        write!(f, "{nodes} {are} {what}: {}", self.cause)
    }
}

impl Book {
    /// What speaks against the nodes that `asked` names, grouped by cause, the worst first; for
    /// people, not for decisions.
    pub fn explain(
        &mut self,
        job: &Newcomer,
        in_service: &dyn Fn(u32) -> bool,
        asked: &dyn Fn(u32) -> bool,
    ) -> Vec<Kept> {
        self.reserve(job, in_service);
        let mut all: Vec<Kept> = Vec::new();
        for node in (0..self.scopes[0].of.len()).filter(|node| asked(*node as u32)) {
            let Some(blame) = self.blame(job, node) else {
                continue;
            };
            let (verdict, cause) = (self.verdict(blame), self.cause(job, blame, node));
            let name = self.scopes[0].names[node].clone();
            match all.iter_mut().find(|kept| kept.cause == cause) {
                Some(kept) => kept.nodes.push(name),
                None => all.push(Kept {
                    verdict,
                    cause,
                    nodes: vec![name],
                }),
            }
        }
        all.sort_by_key(|kept| std::cmp::Reverse((kept.verdict, kept.nodes.len())));
        all
    }

    fn cause(&self, job: &Newcomer, blame: Blame, node: usize) -> Cause {
        let domain = |scope: usize| match &self.scopes[scope] {
            _ if scope == 0 => String::new(),
            of => format!("{} {}", of.level, of.names[of.of[node] as usize]),
        };
        match blame {
            Blame::Wanted(scope) => Cause::Wanted {
                job: self.first(scope, node, |_| true).map_or(0, |(id, _)| id),
                domain: domain(scope),
            },
            Blame::Sole(scope) => {
                let sole = |entry: &Entry| entry.key.sole == Some(scope);
                Cause::Sole {
                    job: self.first(scope, node, sole).map_or(0, |(id, _)| id),
                    domain: domain(scope),
                }
            }
            Blame::Rule(at) => {
                let bound = &self.bound[at];
                let apart =
                    |entry: &Entry| bound.concerns(&entry.key) && bound.parts(&job.key, &entry.key);
                let other = self.first(bound.scope, node, apart).map(|(_, entry)| entry);
                let name = |number: fn(&Entry) -> u32| {
                    other.map_or("", |entry| self.names.text(number(entry)))
                };
                let others = match &self.rules.rules[bound.rule].bond {
                    Bond::Classes(..) => format!("class {}", name(|entry| entry.key.class)),
                    Bond::Tenants(Tenant::Account) => match name(|entry| entry.key.account) {
                        "" => "a job without account".into(),
                        account => format!("account {account}"),
                    },
                    Bond::Tenants(Tenant::User) => match name(|entry| entry.user) {
                        "" => format!("user {}", other.map_or(0, |entry| entry.key.uid)),
                        user => format!("user {user}"),
                    },
                };
                Cause::Rule {
                    number: bound.rule + 1,
                    others,
                    domain: domain(bound.scope),
                }
            }
            Blame::Reserve(at) => {
                let index = self.reserves[at].index;
                Cause::Reserve {
                    number: index + 1,
                    gangs: self.rules.reserves[index].gangs,
                }
            }
            Blame::Power(at) => Cause::Power {
                domain: self.rules.power[self.power[at].index].name.clone(),
            },
        }
    }

    /// The running job with the lowest id in the node's domain that is meant.
    fn first(
        &self,
        scope: usize,
        node: usize,
        meant: impl Fn(&Entry) -> bool,
    ) -> Option<(u32, &Entry)> {
        let of = &self.scopes[scope].of;
        let here = |entry: &Entry| entry.nodes.iter().any(|n| of[*n as usize] == of[node]);
        let mut jobs = self.jobs.iter();
        jobs.find(|(_, entry)| meant(entry) && here(entry))
            .map(|(id, entry)| (*id, entry))
    }
}
