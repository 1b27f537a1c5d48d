//! Why a node is not, or not gladly, given to a job: as data, and in words.
use std::collections::BTreeMap;
use std::fmt;

use gpuos_model::hostlist::compress;

use super::book::{Book, Entry, Newcomer};
use super::{Bond, Tenant, Verdict};

/// What speaks against a node, by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Conflict {
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
pub struct Exclusion {
    /// How bad it is.
    pub verdict: Verdict,
    /// Why.
    pub cause: Cause,
    /// Names of the nodes.
    pub nodes: Vec<String>,
}

impl fmt::Display for Exclusion {
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

/// For each blame, the running job with the lowest id in each domain of its scope that is meant by it: looked
/// for once, not for each node.
type Firsts<'a> = BTreeMap<Conflict, Vec<Option<(u32, &'a Entry)>>>;

impl Book {
    /// What speaks against the nodes that `asked` names, grouped by cause, the worst first; for
    /// people, not for decisions.
    pub fn explain(
        &mut self,
        job: &Newcomer,
        in_service: &dyn Fn(u32) -> bool,
        asked: &dyn Fn(u32) -> bool,
    ) -> Vec<Exclusion> {
        self.reserve(job, in_service);
        let mut all: Vec<Exclusion> = Vec::new();
        let (mut known, mut firsts) = (BTreeMap::new(), Firsts::new());
        for node in (0..self.scopes[0].of.len()).filter(|node| asked(*node as u32)) {
            let Some(blame) = self.blame(job, node) else {
                continue;
            };
            let cause = self.cause(job, blame, node, &mut firsts);
            let at = *known.entry(cause).or_insert_with_key(|cause| {
                all.push(Exclusion {
                    verdict: self.verdict(blame),
                    cause: cause.clone(),
                    nodes: Vec::new(),
                });
                all.len() - 1
            });
            all[at].nodes.push(self.scopes[0].names[node].clone());
        }
        all.sort_by_key(|kept| std::cmp::Reverse((kept.verdict, kept.nodes.len())));
        all
    }

    fn cause<'a>(
        &'a self,
        job: &Newcomer,
        blame: Conflict,
        node: usize,
        firsts: &mut Firsts<'a>,
    ) -> Cause {
        let domain = |scope: usize| match &self.scopes[scope] {
            _ if scope == 0 => String::new(),
            of => format!("{} {}", of.level, of.names[of.of[node] as usize]),
        };
        match blame {
            Conflict::Wanted(scope) => Cause::Wanted {
                job: self
                    .first(firsts, (blame, scope), node, |_| true)
                    .map_or(0, |(id, _)| id),
                domain: domain(scope),
            },
            Conflict::Sole(scope) => {
                let sole = |entry: &Entry| entry.key.sole == Some(scope);
                Cause::Sole {
                    job: self
                        .first(firsts, (blame, scope), node, sole)
                        .map_or(0, |(id, _)| id),
                    domain: domain(scope),
                }
            }
            Conflict::Rule(at) => {
                let bound = &self.bound[at];
                let apart =
                    |entry: &Entry| bound.concerns(&entry.key) && bound.parts(&job.key, &entry.key);
                let other = self.first(firsts, (blame, bound.scope), node, apart);
                let other = other.map(|(_, entry)| entry);
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
            Conflict::Reserve(at) => {
                let index = self.reserves[at].index;
                Cause::Reserve {
                    number: index + 1,
                    gangs: self.rules.reserves[index].gangs,
                }
            }
            Conflict::Power(at) => Cause::Power {
                domain: self.rules.power[self.power[at].index].name.clone(),
            },
        }
    }

    /// The running job with the lowest id in the node's domain that is meant.
    fn first<'a>(
        &'a self,
        firsts: &mut Firsts<'a>,
        (blame, scope): (Conflict, usize),
        node: usize,
        meant: impl Fn(&Entry) -> bool,
    ) -> Option<(u32, &'a Entry)> {
        let of = &self.scopes[scope].of;
        let of_domains = firsts.entry(blame).or_insert_with(|| {
            let mut first = vec![None; self.scopes[scope].names.len()];
            for (id, entry) in self.jobs.iter().filter(|(_, entry)| meant(entry)) {
                for node in &entry.nodes {
                    first[of[*node as usize] as usize].get_or_insert((*id, entry));
                }
            }
            first
        });
        of_domains[of[node] as usize]
    }
}
