//! Where a job could start once the running jobs are gone: for the scheduler's forecast.
use gpuos_model::cluster::NO_DOMAIN;
use gpuos_model::gpuset::GpuSet;

use super::job::{Assume, Job};
use super::types::{Choice, Criterion, NodeChoice, NodeState, Request};
use super::{Planner, Reach, bits};

/// A place that would hold the job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Free GPUs there now, counted down from the highest number: most come first.
    busy: u32,
    /// Whether it is a domain of the fabric: nodes come before it.
    fabric: bool,
    /// Domain, or node.
    index: u32,
    /// Number of the domain among the spans of its level, or the position of the node.
    at: u32,
    /// GPUs that may be used there; empty = all.
    gpus: GpuSet,
}

impl Planner {
    /// The `n`-th place in which the job could start if nothing ran, those with most free GPUs
    /// first. A place is a domain of the *required* level that could hold the job on the nodes
    /// that the scheduler offers; without a required level it is all nodes. `nodes` lists every
    /// node of the place that could take a part; `gpus` says which GPUs may be used there,
    /// empty = all: at the level `nvlink` inside the node, one set with NVLink between all pairs.
    /// `None` when there is no such place, or the request is one that never fits.
    pub fn future(&mut self, state: &[NodeState], request: &Request, n: u32) -> Option<&Choice> {
        self.sync(state);
        self.foresee(request, None, n)
    }

    /// [`Planner::future`] by the state that the events have left, with the candidates of
    /// [`Planner::decide`].
    pub fn foresee(
        &mut self,
        request: &Request,
        candidates: Option<&[u64]>,
        n: u32,
    ) -> Option<&Choice> {
        let job = Job::new(request, self.cluster.nodes.len()).ok()?;
        let reach = match self.wish(request).ok()? {
            Some((reach, true)) => reach,
            _ => Reach::Any,
        };
        self.candidates(candidates);
        let mut places = std::mem::take(&mut self.future);
        places.clear();
        // One node is within any domain of the fabric.
        let on_one = job.max == 1 && matches!(reach, Reach::Fabric(_));
        let level = match reach {
            Reach::Fabric(level) if !on_one => Some(level),
            Reach::NvLink(level) if job.max > 1 => level,
            Reach::Any | Reach::Fabric(_) => Some(self.fabric.levels),
            Reach::Node | Reach::NvLink(_) => None,
        };
        if matches!(reach, Reach::Node | Reach::NvLink(_)) && job.min == 1 {
            self.future_nodes(&job, reach, &mut places);
        }
        if let Some(level) = level {
            self.future_domains(&job, level, &mut places);
        }
        let found = places.len() as u32;
        let place = (n < found).then(|| *places.select_nth_unstable(n as usize).1);
        self.future = places;
        let place = place?;
        self.choice.nodes.clear();
        let (mut reached, mut domain) = (1, None);
        if let Some(level) = level.filter(|_| place.fabric) {
            let span = self.fabric.spans(level)[place.at as usize];
            reached = level as u32 + 2;
            domain = (level < self.fabric.levels).then_some(span.domain);
            for at in span.start..span.end {
                if bits::has(&self.room.fit, at) {
                    self.choice.nodes.push(NodeChoice {
                        node: self.fabric.node(at),
                        gpus: GpuSet::EMPTY,
                    });
                }
            }
            self.choice.nodes.sort_unstable_by_key(|choice| choice.node);
        } else {
            if matches!(reach, Reach::NvLink(_)) {
                reached = 0;
            }
            self.choice.nodes.push(NodeChoice {
                node: self.fabric.node(place.at),
                gpus: place.gpus,
            });
        }
        self.choice.reached = reached;
        self.choice.domain = domain;
        self.choice.bus_gbps = 0.0;
        self.choice.usability_lost = 0.0;
        self.choice.feasible_nodes = self.choice.nodes.len() as u32;
        self.choice.feasible_domains = found;
        self.choice.decided = Criterion::default();
        Some(&self.choice)
    }

    fn future_nodes(&mut self, job: &Job, reach: Reach, places: &mut Vec<Place>) {
        let count = job.gpus_on_one();
        for at in 0..self.fabric.len() {
            let node = self.fabric.node(at);
            let state = self.state.assumed(Assume::Idle, at);
            if job.room(&state) < job.units.unwrap_or(1)
                || job.required.iter().any(|&required| required != node)
            {
                continue;
            }
            let free = self.state.now.free(at);
            let mut add = |allowed: GpuSet| {
                places.push(Place {
                    busy: u32::MAX - free.and(allowed).len() as u32,
                    fabric: false,
                    index: node,
                    at,
                    gpus: if allowed == state.present {
                        GpuSet::EMPTY
                    } else {
                        allowed
                    },
                });
            };
            let Reach::NvLink(_) = reach else {
                add(state.present);
                continue;
            };
            let table = &self.tables[self.type_of[node as usize] as usize];
            if table.linked(state.present) || count == 1 && !job.leave {
                add(state.present);
            }
            if table.linked(state.present) || count == 1 || job.leave {
                continue;
            }
            for at in 0..table.islands.len() {
                let allowed = table.islands[at].and(state.present);
                // GPUs out of service can leave one island inside another, or two the same.
                let covered = table.islands.iter().enumerate().any(|(index, other)| {
                    let other = other.and(state.present);
                    let larger = other.len() > allowed.len() || index < at;
                    index != at && larger && allowed.minus(other).is_empty()
                });
                if allowed.len() as u64 >= count && !covered {
                    add(allowed);
                }
            }
        }
    }

    fn future_domains(&mut self, job: &Job, level: usize, places: &mut Vec<Place>) {
        self.offers(Assume::Idle, job);
        if level < self.fabric.levels {
            self.confine(level);
        }
        for (number, span) in self.fabric.spans(level).iter().enumerate() {
            if span.domain == NO_DOMAIN || self.left_over(job, span).is_none() {
                continue;
            }
            let (now, candidates) = (&self.state.now, self.state.candidates());
            // A node with three free GPUs is counted three times.
            let with = |gpus| bits::count_both(now.least(gpus), candidates, span.start, span.end);
            let free: u32 = (1..=self.room.gpus()).map(with).sum();
            places.push(Place {
                busy: u32::MAX - free,
                fabric: true,
                index: span.domain,
                at: number as u32,
                gpus: GpuSet::EMPTY,
            });
        }
    }
}
