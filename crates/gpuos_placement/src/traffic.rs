//! The running gangs on a network, and which of several places for another has the most bandwidth
//! beside them.
use std::collections::HashMap;

use gpuos_model::gpuset::GpuSet;

use crate::fabric::{Net, Promise, Promises, Scratch};
use crate::plan::{Choice, NodeChoice, NodeState, Placement, Planner, Request};

/// How many places are compared.
const PLACES: u32 = 4;
/// Gangs on more nodes take the first place, lest the rings of several places take too long to lay:
/// such a gang spans much of the fabric wherever it lies.
const MOST_NODES: usize = 64;

/// Which of the planner's choices a gang is to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pick {
    /// Number of the choice, as [`Planner::plan`] takes it for `skip`.
    pub skip: u32,
    /// Its modelled bandwidth between the nodes beside the running gangs, in hundredths of GB/s;
    /// `None` when there was nothing to compare.
    pub beside: Option<u32>,
}

/// A network and what its running gangs were promised. Kept current by events: [`Traffic::start`]
/// and [`Traffic::end`].
#[derive(Clone, Debug)]
pub struct Traffic {
    net: Net,
    promises: Promises,
    /// Nothing promised, for figures without contention.
    quiet: Promises,
    scratch: Scratch,
    gang: Vec<(u32, GpuSet)>,
    running: HashMap<u32, (Vec<(u32, GpuSet)>, Promise)>,
}

impl Traffic {
    /// A network that nobody uses yet.
    pub fn new(net: Net) -> Traffic {
        Traffic {
            promises: Promises::new(&net),
            quiet: Promises::new(&net),
            scratch: Scratch::new(&net),
            gang: Vec::with_capacity(net.nodes()),
            running: HashMap::new(),
            net,
        }
    }

    /// A job runs on these nodes from now on; what was known of it before is replaced. An empty GPU
    /// set stands for all GPUs of the node. Jobs on one node need no network.
    pub fn start(&mut self, job: u32, nodes: Vec<(u32, GpuSet)>) {
        self.end(job);
        if nodes.len() > 1 {
            let promise = self
                .promises
                .add(&self.net, &mut self.scratch, &nodes, 1000);
            self.running.insert(job, (nodes, promise));
        }
    }

    /// The nodes of a running gang and what it was promised; `None` when it needs no network.
    pub fn gang(&self, job: u32) -> Option<(&[(u32, GpuSet)], Promise)> {
        let (nodes, promise) = self.running.get(&job)?;
        Some((nodes, *promise))
    }

    /// A job runs on these nodes and was promised this when it started: as [`Traffic::start`], whatever
    /// has been promised to others since.
    pub fn resume(&mut self, job: u32, nodes: Vec<(u32, GpuSet)>, promise: Promise) {
        self.end(job);
        self.promises
            .keep(&self.net, &mut self.scratch, &nodes, promise);
        self.running.insert(job, (nodes, promise));
    }

    /// A job ends.
    pub fn end(&mut self, job: u32) {
        if let Some((nodes, promise)) = self.running.remove(&job) {
            self.promises
                .remove(&self.net, &mut self.scratch, &nodes, promise);
        }
    }

    /// Forgets all running jobs.
    pub fn clear(&mut self) {
        self.running.clear();
        self.promises = self.quiet.clone();
    }

    /// Modelled bus bandwidth of a place between its nodes, in hundredths of GB/s, and the link
    /// that bounds it: if nobody else used the network, and beside the running gangs.
    /// [`crate::fabric::UNBOUNDED`] for a place that needs no network or where nothing is known of its links.
    pub fn bandwidth(&mut self, place: &Choice) -> [(u32, Option<u32>); 2] {
        let on = |promises: &Promises, scratch: &mut Scratch, gang: &mut Vec<_>| {
            let units = among(&self.net, promises, scratch, gang, place);
            (units, scratch.narrowest())
        };
        let (scratch, gang) = (&mut self.scratch, &mut self.gang);
        [
            on(&self.quiet, scratch, gang),
            on(&self.promises, scratch, gang),
        ]
    }

    /// Which of the planner's best choices has the most bandwidth beside the running gangs. Of the first four choices those count
    /// that are as close as the best one, on as many nodes, with as good links inside them and worth
    /// as much to the job; of equals the first. The first one also when there is nothing to compare: nobody else on the network, a job
    /// on one node or on more than 64, or a placement rule that says otherwise where to go.
    pub fn best(&mut self, planner: &mut Planner, states: &[NodeState], request: &Request) -> Pick {
        let free = matches!(
            request.placement,
            Placement::Default | Placement::BestFit | Placement::Frag | Placement::Backfill
        );
        if !free || self.running.is_empty() || request.max_nodes.max(request.min_nodes) < 2 {
            return Pick::default();
        }
        let mut best: Option<(u32, u32)> = None;
        let mut first = None;
        for skip in 0..PLACES {
            let Ok(place) = planner.plan(states, request, skip) else {
                break;
            };
            let nodes = place.nodes.len();
            // Bandwidth beside others is no reason to take what is worth less to the job.
            let cost = |one: &NodeChoice| states.get(one.node as usize).map_or(0, NodeState::cost);
            let cost = place.nodes.iter().map(cost).max();
            let alike = (place.reached, nodes, place.bus_gbps.to_bits(), cost);
            if !(2..=MOST_NODES).contains(&nodes) || *first.get_or_insert(alike) != alike {
                break;
            }
            let (scratch, gang) = (&mut self.scratch, &mut self.gang);
            let units = among(&self.net, &self.promises, scratch, gang, place);
            if best.is_none_or(|(_, most)| units > most) {
                best = Some((skip, units));
            }
        }
        best.map_or_else(Pick::default, |(skip, units)| Pick {
            skip,
            beside: Some(units),
        })
    }

    /// What a link joins, in words for people.
    pub fn link_name(&self, link: u32) -> String {
        self.net.link_name(link)
    }
}

fn among(
    net: &Net,
    promises: &Promises,
    scratch: &mut Scratch,
    gang: &mut Vec<(u32, GpuSet)>,
    place: &Choice,
) -> u32 {
    gang.clear();
    gang.extend(place.nodes.iter().map(|one| (one.node, one.gpus)));
    net.bandwidth(promises, scratch, gang)
}
