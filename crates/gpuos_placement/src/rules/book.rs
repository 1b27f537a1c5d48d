//! Who runs where, counted by domain, and the verdicts that follow.
use std::collections::{BTreeMap, HashMap};

use gpuos_model::cluster::{Cluster, NO_DOMAIN};

use super::cause::Conflict;
use super::names::{NONE, Names};
use super::reserved::Reserved;
use super::{Bond, Facts, Rules, Tenant, Verdict};
use crate::rules::Target;

/// Rules, bound to a cluster, and the jobs that run on it.
#[derive(Debug)]
pub struct Book {
    pub(super) rules: Rules,
    /// All levels: `node` first, then those of the fabric.
    pub(super) scopes: Vec<Scope>,
    pub(super) bound: Vec<Bound>,
    pub(super) reserves: Vec<Reserved>,
    pub(super) power: Vec<Power>,
    /// Power domain of each node, or [`NO_DOMAIN`].
    pub(super) power_of: Vec<u32>,
    watts_of: Vec<u32>,
    pub(super) names: Names,
    pub(super) jobs: BTreeMap<u32, Entry>,
    verdicts: Vec<Verdict>,
    binds: bool,
    soles: u32,
}

/// The domains of one level.
#[derive(Debug)]
pub(super) struct Scope {
    pub level: String,
    /// Their names.
    pub names: Vec<String>,
    /// Domain of each node.
    pub of: Vec<u32>,
    /// How many nodes of running jobs each domain holds, each job counted by itself.
    pub busy: Vec<u32>,
    /// The same of jobs that have the domain to themselves.
    pub sole: Vec<u32>,
}

/// A rule with its counts.
#[derive(Debug)]
pub(super) struct Bound {
    /// Its index in [`Rules::rules`].
    pub rule: usize,
    pub scope: usize,
    partition: Option<u32>,
    tally: Tally,
}

#[derive(Debug)]
enum Tally {
    /// Nodes of jobs of each of two classes, by domain.
    Classes([u32; 2], [Vec<u32>; 2]),
    /// Nodes of jobs of each tenant, by domain.
    Tenants(Tenant, Vec<Vec<(u32, u32)>>),
}

#[derive(Debug)]
pub(super) struct Power {
    /// Its index in [`Rules::power`].
    pub index: usize,
    limit: u32,
    drawn: u32,
}

/// A running job.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: Key,
    pub user: u32,
    pub nodes: Vec<u32>,
}

/// What rules compare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub uid: u32,
    pub account: u32,
    pub partition: u32,
    pub class: u32,
    pub sole: Option<usize>,
}

/// A job that asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    pub(super) key: Key,
    pub(super) nodes: u32,
    pub(super) minutes: Option<u32>,
}

impl Scope {
    /// All levels of a cluster.
    fn all(cluster: &Cluster) -> Vec<Scope> {
        let nodes = || cluster.nodes.iter().map(|node| node.name.clone());
        let count = cluster.nodes.len();
        let scope = |level: &str, names: Vec<String>, of| Scope {
            level: level.into(),
            busy: vec![0; names.len()],
            sole: vec![0; names.len()],
            names,
            of,
        };
        let mut scopes = vec![scope(
            "node",
            nodes().collect(),
            (0..count as u32).collect(),
        )];
        for level in &cluster.fabric.levels {
            let mut names = level.domains.clone();
            let mut of = Vec::with_capacity(count);
            for (node, name) in nodes().enumerate() {
                let domain = level.domain_of.get(node).copied().unwrap_or(NO_DOMAIN);
                if (domain as usize) < level.domains.len() {
                    of.push(domain);
                } else {
                    of.push(names.len() as u32);
                    names.push(name);
                }
            }
            scopes.push(scope(&level.name, names, of));
        }
        scopes
    }
}

impl Book {
    /// Makes an empty book. Levels and nodes that the cluster does not have are left out; see
    /// `gpuos_config::gpuos_toml::Config::unknown_levels`.
    pub fn new(rules: &Rules, cluster: &Cluster) -> Book {
        let count = cluster.nodes.len();
        let watts = |node: &gpuos_model::cluster::Node| {
            let known =
                |t: &std::sync::Arc<gpuos_model::cluster::NodeType>| match t.figures.node_watts {
                    0 => t.figures.gpu_watts.saturating_mul(t.gpus as u32),
                    watts => watts,
                };
            node.node_type.as_ref().map_or(0, known)
        };
        let mut book = Book {
            scopes: Scope::all(cluster),
            bound: Vec::new(),
            reserves: Vec::new(),
            power: Vec::new(),
            power_of: vec![NO_DOMAIN; count],
            watts_of: cluster.nodes.iter().map(watts).collect(),
            names: Names::default(),
            jobs: BTreeMap::new(),
            verdicts: vec![Verdict::Allowed; count],
            binds: rules.bind(),
            soles: 0,
            rules: rules.clone(),
        };
        for (at, rule) in rules.rules.iter().enumerate() {
            let Some(scope) = book.scope(&rule.level) else {
                continue;
            };
            let domains = book.scopes[scope].names.len();
            let tally = match &rule.bond {
                Bond::Classes(a, b) => Tally::Classes(
                    [a, b].map(|name| book.names.hold(name)),
                    [vec![0; domains], vec![0; domains]],
                ),
                Bond::Tenants(tenant) => Tally::Tenants(*tenant, vec![Vec::new(); domains]),
            };
            let partition = rule.partition.as_ref().map(|name| book.names.hold(name));
            book.bound.push(Bound {
                rule: at,
                scope,
                partition,
                tally,
            });
        }
        let at: HashMap<&str, u32> = cluster
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .zip(0..)
            .collect();
        for (index, reserve) in rules.reserves.iter().enumerate() {
            let Some(scope) = book.scope(&reserve.level) else {
                continue;
            };
            let mut part = vec![reserve.nodes.is_empty(); count];
            for node in reserve
                .nodes
                .iter()
                .filter_map(|name| at.get(name.as_str()))
            {
                part[*node as usize] = true;
            }
            book.reserves
                .push(Reserved::new(index, scope, &book.scopes[scope], part));
        }
        for (index, domain) in rules.power.iter().enumerate() {
            for node in domain.nodes.iter().filter_map(|name| at.get(name.as_str())) {
                book.power_of[*node as usize] = book.power.len() as u32;
            }
            let limit = match domain.watts {
                0 => u32::MAX,
                watts => watts,
            };
            book.power.push(Power {
                index,
                limit,
                drawn: 0,
            });
        }
        book
    }

    /// The scope of a level by name; a node without an NVLink domain of the fabric is one itself.
    pub(super) fn scope(&self, level: &str) -> Option<usize> {
        let found = self.scopes.iter().position(|scope| scope.level == level);
        found.or((level == "nvlink").then_some(0))
    }

    /// Whether a job has to be judged at all.
    pub fn matters(&self, job: &Newcomer) -> bool {
        self.binds || self.soles > 0 || job.key.sole.is_some()
    }

    fn key(&self, job: &Facts<'_>, number: impl Fn(&str) -> u32) -> Key {
        Key {
            uid: job.uid,
            account: number(job.account),
            partition: number(job.partition),
            class: self.rules.class_of(job).map_or(NONE, number),
            sole: job.exclusive.and_then(|level| self.scope(level)),
        }
    }

    /// A job that asks for a place. An exclusive level that the cluster does not have counts as none.
    pub fn newcomer(&self, job: &Facts<'_>) -> Newcomer {
        Newcomer {
            key: self.key(job, |name| self.names.known(name)),
            nodes: job.nodes,
            minutes: job.minutes,
        }
    }

    /// A job has these nodes now, whatever was known of it before.
    pub fn start(&mut self, id: u32, job: &Facts<'_>, nodes: &[u32]) {
        // Held before those of its earlier nodes are given back, so that their numbers stay.
        for name in [job.user, job.account, job.partition] {
            self.names.hold(name);
        }
        if let Some(class) = self.rules.class_of(job) {
            self.names.hold(class);
        }
        self.end(id);
        let entry = Entry {
            key: self.key(job, |name| self.names.known(name)),
            user: self.names.known(job.user),
            nodes: nodes
                .iter()
                .copied()
                .filter(|n| (*n as usize) < self.verdicts.len())
                .collect(),
        };
        self.soles += u32::from(entry.key.sole.is_some());
        self.count(&entry, true);
        self.jobs.insert(id, entry);
    }

    /// A job has ended.
    pub fn end(&mut self, id: u32) {
        if let Some(entry) = self.jobs.remove(&id) {
            self.soles -= u32::from(entry.key.sole.is_some());
            self.count(&entry, false);
            let Key {
                account,
                partition,
                class,
                ..
            } = entry.key;
            for number in [entry.user, account, partition, class] {
                self.names.release(number);
            }
        }
    }

    /// Names that it knows: those of the rules and of jobs that run.
    pub fn names_known(&self) -> usize {
        self.names.len()
    }

    /// Calls `each` with the nodes that the target of an affinity rule means, once for each job
    /// there; [`Target::Job`] is for the caller to find.
    pub fn for_each_node(&self, target: Target<'_>, mut each: impl FnMut(u32)) {
        match target {
            Target::Job(_) => {}
            Target::Class(name) => {
                let class = self.names.known(name);
                let jobs = self.jobs.values().filter(|job| job.key.class == class);
                jobs.flat_map(|job| &job.nodes).for_each(|node| each(*node));
            }
            Target::Power(name) => {
                let is = |of: &&Power| self.rules.power[of.index].name == name;
                let Some(at) = self.power.iter().position(|of| is(&of)) else {
                    return;
                };
                let of = self.power_of.iter().zip(0..);
                of.filter(|(of, _)| **of == at as u32)
                    .for_each(|(_, node)| each(node));
            }
            Target::Domain { level, name } => {
                let scope = level.and_then(|level| self.scope(level));
                let scopes = match scope {
                    Some(at) => &self.scopes[at..=at],
                    None => &self.scopes[..],
                };
                for scope in scopes {
                    let of = scope.of.iter().zip(0..);
                    let named = of.filter(|(of, _)| scope.names[**of as usize] == name);
                    named.for_each(|(_, node)| each(node));
                }
            }
        }
    }

    /// Whether a hard reserve keeps a node from a job that was judged last.
    pub fn is_reserved_against(&self, job: &Newcomer, node: u32) -> bool {
        let blame = self.blame(job, node as usize);
        matches!(blame, Some(Conflict::Reserve(at)) if self.verdict(Conflict::Reserve(at)) == Verdict::Forbidden)
    }

    /// Calls `each` with the running jobs that keep a job from nodes: once they have all ended, and no
    /// others came, the nodes are open to it.
    pub fn for_each_blocker(
        &self,
        job: &Newcomer,
        wanted: &dyn Fn(u32) -> bool,
        mut each: impl FnMut(u32),
    ) {
        let domains = |scope: &Scope| {
            let mut domains = vec![false; scope.names.len()];
            for node in (0..self.verdicts.len()).filter(|node| wanted(*node as u32)) {
                domains[scope.of[node] as usize] = true;
            }
            domains
        };
        let domains: Vec<Vec<bool>> = self.scopes.iter().map(domains).collect();
        let meets = |scope: usize, other: &Entry| {
            let of = &self.scopes[scope].of;
            let mut held = other.nodes.iter().map(|node| of[*node as usize] as usize);
            held.any(|domain| domains[scope][domain])
        };
        for (id, other) in &self.jobs {
            let soles = [job.key.sole, other.key.sole].into_iter().flatten();
            let hard = |bound: &&Bound| !self.rules.rules[bound.rule].prefer;
            let apart = self.bound.iter().filter(hard).filter(|bound| {
                bound.concerns(&job.key)
                    && bound.concerns(&other.key)
                    && bound.parts(&job.key, &other.key)
            });
            let mut scopes = soles.chain(apart.map(|bound| bound.scope));
            if scopes.any(|scope| meets(scope, other)) {
                each(*id);
            }
        }
    }

    /// The verdicts of the last [`Book::judge`].
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    fn count(&mut self, entry: &Entry, more: bool) {
        let step = |count: &mut u32| match more {
            true => *count += 1,
            false => *count -= 1,
        };
        let key = &entry.key;
        for &node in &entry.nodes {
            let node = node as usize;
            if let Some(power) = self.power.get_mut(self.power_of[node] as usize) {
                let others = self.scopes[0].busy[node] - u32::from(!more);
                match (others, more) {
                    (0, true) => power.drawn += self.watts_of[node],
                    (0, false) => power.drawn -= self.watts_of[node],
                    _ => {}
                }
            }
            for (at, scope) in self.scopes.iter_mut().enumerate() {
                let domain = scope.of[node] as usize;
                step(&mut scope.busy[domain]);
                if key.sole == Some(at) {
                    step(&mut scope.sole[domain]);
                }
            }
            for bound in self.bound.iter_mut().filter(|bound| bound.concerns(key)) {
                let domain = self.scopes[bound.scope].of[node] as usize;
                match &mut bound.tally {
                    Tally::Classes(classes, counts) => {
                        for (class, counts) in classes.iter().zip(counts) {
                            if *class == key.class {
                                step(&mut counts[domain]);
                            }
                        }
                    }
                    Tally::Tenants(tenant, here) => {
                        let (tenant, here) = (key.tenant(*tenant), &mut here[domain]);
                        match here.iter().position(|(other, _)| *other == tenant) {
                            Some(at) => {
                                step(&mut here[at].1);
                                if here[at].1 == 0 {
                                    here.swap_remove(at);
                                }
                            }
                            None => here.push((tenant, 1)),
                        }
                    }
                }
            }
        }
    }

    /// The verdict on each node, by node index. Nodes that are not `in_service` are not kept for
    /// anybody. Allocates nothing.
    pub fn judge(&mut self, job: &Newcomer, in_service: &dyn Fn(u32) -> bool) -> &[Verdict] {
        self.reserve(job, in_service);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        for (node, verdict) in verdicts.iter_mut().enumerate() {
            *verdict = self
                .blame(job, node)
                .map_or(Verdict::Allowed, |blame| self.verdict(blame));
        }
        self.verdicts = verdicts;
        &self.verdicts
    }

    /// Chooses what the reserves keep from a job.
    pub(super) fn reserve(&mut self, job: &Newcomer, in_service: &dyn Fn(u32) -> bool) {
        for reserved in &mut self.reserves {
            let of = &self.rules.reserves[reserved.index];
            let short = of
                .unless_shorter
                .zip(job.minutes)
                .is_some_and(|(most, has)| has < most);
            if job.nodes >= of.gangs || short {
                reserved.none();
            } else {
                reserved.choose(of.count, &self.scopes[reserved.scope], in_service);
            }
        }
    }

    /// What speaks against a node, the worst of it. [`Book::reserve`] was asked before.
    pub(super) fn blame(&self, job: &Newcomer, node: usize) -> Option<Conflict> {
        let on = |scope: usize| self.scopes[scope].of[node] as usize;
        if let Some(scope) = job.key.sole.filter(|s| self.scopes[*s].busy[on(*s)] > 0) {
            return Some(Conflict::Wanted(scope));
        }
        if self.soles > 0 {
            let held = |scope: &usize| self.scopes[*scope].sole[on(*scope)] > 0;
            if let Some(scope) = (0..self.scopes.len()).find(held) {
                return Some(Conflict::Sole(scope));
            }
        }
        if !self.binds {
            return None;
        }
        let mut worst = None;
        let mut add = |blame: Conflict| {
            let verdict = Some(self.verdict(blame));
            if verdict > worst.map(|worst| self.verdict(worst)) {
                worst = Some(blame);
            }
        };
        for (at, bound) in self.bound.iter().enumerate() {
            if bound.concerns(&job.key) && bound.excludes(&job.key, on(bound.scope)) {
                add(Conflict::Rule(at));
            }
        }
        for (at, reserved) in self.reserves.iter().enumerate() {
            if reserved.keeps(node, on(reserved.scope)) {
                add(Conflict::Reserve(at));
            }
        }
        if let Some(power) = self.power.get(self.power_of[node] as usize) {
            let more = match self.scopes[0].busy[node] {
                0 => self.watts_of[node],
                _ => 0,
            };
            if more > 0 && power.drawn.saturating_add(more) > power.limit {
                add(Conflict::Power(self.power_of[node] as usize));
            }
        }
        worst
    }

    pub(super) fn verdict(&self, blame: Conflict) -> Verdict {
        match blame {
            Conflict::Wanted(_) | Conflict::Sole(_) => Verdict::Forbidden,
            Conflict::Rule(at) if self.rules.rules[self.bound[at].rule].prefer => Verdict::Avoided,
            Conflict::Rule(_) => Verdict::Forbidden,
            Conflict::Reserve(at) => match self.rules.reserves[self.reserves[at].index].hard {
                true => Verdict::Forbidden,
                false => Verdict::LastResort,
            },
            Conflict::Power(_) => Verdict::Avoided,
        }
    }
}

impl Key {
    pub fn tenant(&self, tenant: Tenant) -> u32 {
        match tenant {
            Tenant::Account => self.account,
            Tenant::User => self.uid,
        }
    }
}

impl Bound {
    pub fn concerns(&self, key: &Key) -> bool {
        self.partition
            .is_none_or(|partition| partition == key.partition)
    }

    /// Whether a running job, which the rule concerns, is one that `new` may not be beside.
    pub fn parts(&self, new: &Key, other: &Key) -> bool {
        match &self.tally {
            Tally::Classes([a, b], _) => {
                (*a == new.class && *b == other.class) || (*b == new.class && *a == other.class)
            }
            Tally::Tenants(by, _) => new.tenant(*by) != other.tenant(*by),
        }
    }

    fn excludes(&self, new: &Key, domain: usize) -> bool {
        match &self.tally {
            Tally::Classes([a, b], [has_a, has_b]) => {
                (*a == new.class && has_b[domain] > 0) || (*b == new.class && has_a[domain] > 0)
            }
            Tally::Tenants(by, here) => {
                let mine = new.tenant(*by);
                here[domain].iter().any(|(tenant, _)| *tenant != mine)
            }
        }
    }
}
