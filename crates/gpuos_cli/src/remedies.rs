//! What would start a job that has to wait: the smallest change of its request, or of a rule that keeps it
//! from the nodes.

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{Asker, JobRequest, Judge, Site};
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Planner, Request, TopologyRequest};
use gpuos_placement::rules::Rules;
use serde_json::{Value, json};

use crate::figures::choice_json;

/// A job that asks for a place, and what it finds.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The site.
    pub site: &'a Site,
    /// The jobs in its queue.
    pub jobs: &'a [Job],
    /// What the job asks for.
    pub wanted: &'a JobRequest,
    /// Whose it is.
    pub asker: &'a Asker,
    /// What is free on every node, before rules.
    pub states: &'a [NodeState],
}

/// Who can make a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Who submits the job.
    User,
    /// The administrator, in gpuos.toml.
    Administrator,
}

/// A change with which a job would start now.
pub struct Change {
    /// What to give or to have instead, for example `--nodes=3`.
    pub option: String,
    /// Who can.
    pub who: Who,
    /// GPUs less than asked for.
    pub fewer_gpus: u32,
    /// Where it would go.
    pub choice: Choice,
}

impl Change {
    /// The change as JSON.
    pub fn json(&self, site: &Site) -> Value {
        json!({
            "option": self.option,
            "by": match self.who {
                Who::User => "user",
                Who::Administrator => "administrator",
            },
            "fewer_gpus": self.fewer_gpus,
            "place": choice_json(&self.choice, &site.cluster),
        })
    }
}

/// Searches changes, one after the other.
struct Search<'a> {
    case: Case<'a>,
    planner: &'a mut Planner,
    judge: Judge<'a>,
    found: Vec<Change>,
}

impl Search<'_> {
    /// The place of a request under the rules, if there is one now.
    fn place(&mut self, wanted: &JobRequest, asker: &Asker) -> Option<Choice> {
        place_among(
            self.planner,
            &mut self.judge,
            (wanted, asker),
            self.case.states,
        )
    }

    /// Notes the change if the job would start with it; answers whether it would.
    fn try_one(
        &mut self,
        (wanted, asker): (&JobRequest, &Asker),
        option: String,
        fewer_gpus: u32,
    ) -> bool {
        let choice = self.place(wanted, asker);
        let fits = choice.is_some();
        self.found.extend(choice.map(|choice| Change {
            option,
            who: Who::User,
            fewer_gpus,
            choice,
        }));
        fits
    }

    /// The same of a request that differs.
    fn try_request(&mut self, request: Request, option: String, fewer_gpus: u32) -> bool {
        let wanted = JobRequest {
            request,
            ..self.case.wanted.clone()
        };
        self.try_one((&wanted, self.case.asker), option, fewer_gpus)
    }

    /// A wider level, or the level as a wish.
    fn levels(&mut self) {
        let request = self.case.wanted.request.clone();
        let Some(wish) = request.topology.clone().filter(|wish| wish.required) else {
            return;
        };
        let known = self.planner.level_names();
        let wider = known.iter().position(|level| *level == wish.level);
        let wider = wider.map_or(0, |at| at + 1);
        for level in known.into_iter().skip(wider).filter(|level| level != "any") {
            let topology = TopologyRequest {
                level,
                required: true,
            };
            let option = format!("--gpuos-topology={topology}");
            let topology = Some(topology);
            let request = Request {
                topology,
                ..request.clone()
            };
            if self.try_request(request, option, 0) {
                break;
            }
        }
        let option = format!("--gpuos-topology={}:preferred", wish.level);
        let topology = Some(TopologyRequest {
            required: false,
            ..wish
        });
        self.try_request(
            Request {
                topology,
                ..request
            },
            option,
            0,
        );
    }

    /// Nodes that others share, where the job asks for whole ones.
    fn shared_nodes(&mut self) {
        let case = self.case;
        if !case.wanted.request.whole_nodes {
            return;
        }
        let mut wanted = case.wanted.clone();
        wanted.request.whole_nodes = false;
        let mut states = case.states.to_vec();
        // Nodes with other jobs are open to it then.
        for (state, open) in states.iter_mut().zip(wanted.state(case.site, case.jobs)) {
            state.candidate = open.candidate;
        }
        let asked = (&wanted, case.asker);
        let choice = place_among(self.planner, &mut self.judge, asked, &states);
        self.found.extend(choice.map(|choice| Change {
            option: "no --exclusive".into(),
            who: Who::User,
            fewer_gpus: 0,
            choice,
        }));
    }

    /// The same GPUs on more nodes: a total may be spread.
    fn more_nodes(&mut self) {
        let request = &self.case.wanted.request;
        let GpuShape::Total(total) = request.gpus else {
            return;
        };
        let min_nodes = request.min_nodes;
        let most = (self.case.states.len() as u32).min(total);
        for max_nodes in request.max_nodes + 1..=most {
            let request = Request {
                max_nodes,
                ..request.clone()
            };
            if self.try_request(request, format!("--nodes={min_nodes}-{max_nodes}"), 0) {
                break;
            }
        }
    }

    /// What the job says of its neighbours, or of its time, said otherwise.
    fn other_neighbours(&mut self) {
        let Case { wanted, asker, .. } = self.case;
        if let Some(level) = &asker.exclusive {
            let known = self.planner.level_names();
            let narrower = known.iter().take_while(|name| *name != level);
            let narrower: Vec<String> =
                narrower.filter(|name| *name != "nvlink").cloned().collect();
            // The widest that is possible.
            for level in narrower.into_iter().rev() {
                let option = format!("--gpuos-exclusive={level}");
                let exclusive = Some(level);
                let asker = Asker {
                    exclusive,
                    ..asker.clone()
                };
                if self.try_one((wanted, &asker), option, 0) {
                    break;
                }
            }
            let asker = Asker {
                exclusive: None,
                ..asker.clone()
            };
            self.try_one((wanted, &asker), "no --gpuos-exclusive".into(), 0);
        }
        if asker.class.is_some() {
            let asker = Asker {
                class: None,
                ..asker.clone()
            };
            self.try_one((wanted, &asker), "no --gpuos-class".into(), 0);
        }
        let reserves = self.case.site.config.rules().reserves.iter();
        let limits = reserves.filter_map(|reserve| reserve.unless_shorter);
        let below =
            limits.filter(|limit| *limit > 1 && asker.minutes.is_none_or(|has| has >= *limit));
        let mut minutes: Vec<u32> = below.map(|limit| limit - 1).collect();
        minutes.sort_unstable_by(|a, b| b.cmp(a));
        minutes.dedup();
        for minutes in minutes {
            let asker = Asker {
                minutes: Some(minutes),
                ..asker.clone()
            };
            if self.try_one((wanted, &asker), format!("--time={minutes}"), 0) {
                break;
            }
        }
    }

    /// A rule less in gpuos.toml: each one alone, else all of them.
    fn fewer_rules(&mut self) {
        let Case {
            site,
            jobs,
            wanted,
            asker,
            states,
        } = self.case;
        let rules = site.config.rules();
        let mut less: Vec<(String, Rules)> = Vec::new();
        for at in (0..rules.rules.len()).filter(|at| !rules.rules[*at].prefer) {
            let mut without = rules.clone();
            without.rules.remove(at);
            less.push((format!("no rule {} in gpuos.toml", at + 1), without));
        }
        for at in (0..rules.reserves.len()).filter(|at| rules.reserves[*at].hard) {
            let mut without = rules.clone();
            without.reserves.remove(at);
            less.push((format!("no reserve {} in gpuos.toml", at + 1), without));
        }
        if less.len() > 1 {
            let mut without = rules.clone();
            without.rules.clear();
            without.reserves.clear();
            less.push(("no rules and no reserves in gpuos.toml".into(), without));
        }
        for (option, rules) in less {
            let mut judge = Judge::by(&rules, site, jobs);
            if let Some(choice) = place_among(self.planner, &mut judge, (wanted, asker), states) {
                self.found.push(Change {
                    option,
                    who: Who::Administrator,
                    fewer_gpus: 0,
                    choice,
                });
                break;
            }
        }
    }
}

/// The place of a job under rules, as slurmctld would choose it: nodes that are a last resort only when
/// there is no other place. `states` are those before rules.
pub fn place_among(
    planner: &mut Planner,
    judge: &mut Judge<'_>,
    (wanted, asker): (&JobRequest, &Asker),
    states: &[NodeState],
) -> Option<Choice> {
    let mut marked = states.to_vec();
    let last_resort = judge.mark(wanted, asker, &mut marked);
    if !last_resort.is_empty() {
        let mut first = marked.clone();
        for at in last_resort {
            first[at].candidate = false;
        }
        if let Ok(choice) = planner.plan(&first, &wanted.request, 0) {
            return Some(choice.clone());
        }
    }
    planner.plan(&marked, &wanted.request, 0).ok().cloned()
}

/// Changes that would start a job now, the smallest first: one that keeps all GPUs comes before one
/// that gives some up, and what the job can ask for before what the administrator would have to change.
pub fn changes(planner: &mut Planner, case: Case<'_>) -> Vec<Change> {
    let mut search = Search {
        case,
        planner,
        judge: Judge::new(case.site, case.jobs),
        found: Vec::new(),
    };
    search.levels();
    search.shared_nodes();
    search.more_nodes();
    search.other_neighbours();
    search.fewer_rules();
    for list in fewer(&case.wanted.request) {
        for (request, option, fewer) in list {
            if search.try_request(request, option, fewer) {
                break;
            }
        }
    }
    let mut found = search.found;
    found.sort_by_key(|change| change.fewer_gpus);
    found
}

/// What to tell of the changes: the smallest, and if that is for the administrator, the smallest that the
/// job itself can ask for.
pub fn shown(changes: &[Change]) -> impl Iterator<Item = &Change> {
    let first = changes.first();
    let other = first.filter(|change| change.who == Who::Administrator);
    let own = |_: &Change| changes.iter().find(|change| change.who == Who::User);
    first.into_iter().chain(other.and_then(own))
}

/// Requests with less, each list from the least loss on.
fn fewer(request: &Request) -> Vec<Vec<(Request, String, u32)>> {
    /// Longer searches are of no use to a person.
    const STEPS: usize = 512;
    let with = |gpus: GpuShape| Request {
        gpus,
        ..request.clone()
    };
    let mut lists = Vec::new();
    let nodes = |each: u32| -> Vec<(Request, String, u32)> {
        let less = (request.required_nodes.len().max(1) as u32..request.min_nodes).rev();
        less.take(STEPS)
            .map(|n| {
                let request = Request {
                    min_nodes: n,
                    max_nodes: n,
                    ..request.clone()
                };
                (request, format!("--nodes={n}"), 0)
            })
            .map(|(r, option, _)| {
                let lost = (request.min_nodes - r.min_nodes) * each;
                (r, option, lost)
            })
            .collect()
    };
    match request.gpus {
        GpuShape::PerNode(n) => {
            lists.push(nodes(n));
            let gpus = |m: u32| {
                (
                    with(GpuShape::PerNode(m)),
                    format!("--gpus-per-node={m}"),
                    (n - m) * request.min_nodes,
                )
            };
            lists.push((1..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::PerSocket {
            per_socket: n,
            sockets,
        } => {
            lists.push(nodes(n.saturating_mul(sockets)));
            let gpus = |m: u32| {
                (
                    with(GpuShape::PerSocket {
                        per_socket: m,
                        sockets,
                    }),
                    format!("--gpus-per-socket={m}"),
                    (n - m) * request.min_nodes,
                )
            };
            lists.push((1..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::Total(n) => {
            let least = request.min_nodes.max(1);
            let gpus = |m: u32| (with(GpuShape::Total(m)), format!("--gpus={m}"), n - m);
            lists.push((least..n).rev().take(STEPS).map(gpus).collect());
        }
        GpuShape::PerTask { per_task, tasks } => {
            let less = |t: u32| {
                let shape = GpuShape::PerTask { per_task, tasks: t };
                (with(shape), format!("--ntasks={t}"), (tasks - t) * per_task)
            };
            lists.push(
                (request.min_nodes.max(1)..tasks)
                    .rev()
                    .take(STEPS)
                    .map(less)
                    .collect(),
            );
        }
    }
    lists
}
