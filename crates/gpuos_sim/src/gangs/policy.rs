//! The policies that are compared, behind one trait.

use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::frag::{Learner, Share};
use gpuos_placement::plan::{
    Coming, GpuShape, NodeChoice, NodeState, Placement, Planner, Request, keep,
};

use super::site::Site;
use super::stock::{StockFlat, StockTree};

/// What a job asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Nodes.
    pub nodes: u32,
    /// GPUs on each.
    pub per_node: u32,
    /// When it ends by its limit ([`gpuos_placement::plan::quarters`]); 0 = not known.
    pub until: u32,
}

/// What a policy may use: the free GPUs by node, and the nodes that are kept for another job.
#[derive(Clone, Copy)]
pub struct FreeCapacity<'a> {
    /// Free GPUs of each node.
    pub free: &'a [GpuSet],
    /// Whether a node is kept for another job; empty = none is.
    pub reserved: &'a [bool],
    /// When the last job of each node ends by its limit, likewise; 0 = none runs, or not known.
    pub until: &'a [u32],
}

impl FreeCapacity<'_> {
    /// Free GPUs that the job at hand may use on a node.
    pub fn free(&self, node: usize) -> GpuSet {
        match self.reserved.get(node) {
            Some(true) => GpuSet::EMPTY,
            _ => self.free[node],
        }
    }
}

/// Chooses nodes and GPUs for one job at a time.
pub trait Policy {
    /// Chooses exactly what is asked, nodes ascending, or answers `None` when it does not fit;
    /// with `close`, only a place as close together as the empty cluster has one. `room`
    /// describes the cluster at the moment of the start, now or later.
    fn place(&mut self, room: FreeCapacity<'_>, ask: Ask, close: bool) -> Option<Vec<NodeChoice>>;

    /// Chooses the nodes that are kept for a job which does not fit now; `room` describes the cluster as
    /// it will be then, `now` says what is free on each node now.
    fn forecast(
        &mut self,
        _now: &[GpuSet],
        room: FreeCapacity<'_>,
        ask: Ask,
    ) -> Option<Vec<NodeChoice>> {
        self.place(room, ask, false)
    }

    /// A job comes into the queue.
    fn arrives(&mut self, _ask: Ask) {}

    /// How many seconds a job rather waits for a close place than takes another one, from the
    /// moment at which its turn has come; `limit` is its time limit, seconds.
    fn patience(&self, _ask: Ask, _limit: i64) -> i64 {
        0
    }
}

/// The policies by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyKind {
    /// Slurm without a topology plugin: see [`StockFlat`].
    Stock,
    /// Slurm with topology/tree: see [`StockTree`].
    StockTree,
    /// Best fit: see [`BestFit`].
    BestFit,
    /// gpuos's planner in its default placement.
    Gpuos,
}

impl PolicyKind {
    /// All, in the order of the tables.
    pub const ALL: [PolicyKind; 4] = [
        PolicyKind::Stock,
        PolicyKind::StockTree,
        PolicyKind::BestFit,
        PolicyKind::Gpuos,
    ];

    /// The policy of that name.
    pub fn by_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Stock => "stock",
            PolicyKind::StockTree => "stock-tree",
            PolicyKind::BestFit => "best-fit",
            PolicyKind::Gpuos => "gpuos",
        }
    }

    /// Makes it for a site; `placement` and `patience` are for gpuos alone, see [`Gpuos::new`].
    pub fn make(self, site: &Site, placement: &Placement, patience: i64) -> Box<dyn Policy> {
        match self {
            PolicyKind::Stock => Box::new(StockFlat),
            PolicyKind::StockTree => Box::new(StockTree::new(&site.cluster)),
            PolicyKind::BestFit => Box::new(BestFit),
            PolicyKind::Gpuos => {
                let placement = placement.clone();
                Box::new(Gpuos::new(site.cluster.clone(), placement, patience))
            }
        }
    }
}

/// The `count` free GPUs with the lowest indices, as Slurm takes them where no links are
/// configured.
pub(super) fn lowest(free: GpuSet, count: u32) -> GpuSet {
    let lowest = free.iter().take(count as usize);
    lowest.fold(GpuSet::EMPTY, GpuSet::with)
}

/// Best fit: the nodes with the fewest free GPUs that suffice, the lowest index first among
/// equals, and on each the GPUs with the lowest indices.
#[derive(Debug)]
pub struct BestFit;

impl Policy for BestFit {
    fn place(&mut self, room: FreeCapacity<'_>, ask: Ask, _close: bool) -> Option<Vec<NodeChoice>> {
        let wanted = ask.nodes as usize;
        let mut fits: Vec<(usize, u32)> = (0..room.free.len())
            .map(|node| (room.free(node).len(), node as u32))
            .filter(|(free, _)| *free >= ask.per_node as usize)
            .collect();
        if fits.len() < wanted || wanted == 0 {
            return None;
        }
        fits.select_nth_unstable(wanted - 1);
        fits.truncate(wanted);
        Some(take(room, ask, fits.into_iter().map(|(_, node)| node)))
    }
}

/// The nodes with their lowest free GPUs, ascending.
pub(super) fn take(
    room: FreeCapacity<'_>,
    ask: Ask,
    nodes: impl Iterator<Item = u32>,
) -> Vec<NodeChoice> {
    let mut choice: Vec<NodeChoice> = nodes
        .map(|node| NodeChoice {
            node,
            gpus: lowest(room.free(node as usize), ask.per_node),
        })
        .collect();
    choice.sort_unstable_by_key(|choice| choice.node);
    choice
}

/// A gang is patient for this part of its time limit at most: a tenth.
const PART: i64 = 10;

/// gpuos's planner, as select/gpuos asks it: no wish.
#[derive(Debug)]
pub struct Gpuos {
    /// Nodes that will have room for the job that waits, and stock Slurm's choice among them, where these are kept as
    /// select/gpuos does.
    ahead: Option<(Vec<Coming>, StockTree)>,
    /// The mix of jobs, where it is learned; without it all sizes count alike.
    learner: Option<Learner>,
    planner: Planner,
    state: Vec<NodeState>,
    placement: Placement,
    /// Seconds that a gang waits for a close place at most.
    patience: i64,
    /// By level: nodes of a whole domain.
    widths: Vec<u32>,
    /// Nodes with room, by domain of one level.
    capacity: Vec<u32>,
}

impl Gpuos {
    /// Makes the planner of a cluster. With `patience`, a gang whose turn has come waits up to so
    /// many seconds, and a tenth of its time limit at most, for a place as close together as the
    /// empty cluster has one; jobs behind it may go first meanwhile.
    pub fn new(cluster: Cluster, placement: Placement, patience: i64) -> Gpuos {
        let all = cluster.nodes.iter().map(|node| {
            let gpus = node.node_type.as_ref().map_or(0, |of| of.gpus);
            NodeState {
                present: GpuSet::first(gpus),
                free_cpus: u32::MAX,
                free_memory_mib: u64::MAX,
                ..NodeState::default()
            }
        });
        let levels = cluster.fabric.levels.iter();
        Gpuos {
            ahead: None,
            learner: None,
            state: all.collect(),
            placement,
            patience,
            widths: levels
                .map(|level| level.domain_of.iter().filter(|&&of| of == 0).count() as u32)
                .collect(),
            capacity: Vec::new(),
            planner: Planner::new(cluster),
        }
    }

    /// The same without patience, but closer to select/gpuos: it learns the mix of jobs as they come,
    /// and keeps for those that do not fit now what select/gpuos keeps.
    pub fn learning(cluster: Cluster, placement: Placement) -> Gpuos {
        Gpuos {
            ahead: Some((Vec::new(), StockTree::new(&cluster))),
            learner: Some(Learner::new()),
            ..Gpuos::new(cluster, placement, 0)
        }
    }

    /// The narrowest level with a domain that is wide enough.
    fn closest(&self, ask: Ask) -> Option<usize> {
        self.widths.iter().position(|&width| ask.nodes <= width)
    }

    /// Whether a domain of the level has room.
    fn fits(&mut self, room: FreeCapacity<'_>, ask: Ask, level: usize) -> bool {
        let level = &self.planner.cluster().fabric.levels[level];
        self.capacity.clear();
        self.capacity.resize(level.domains.len(), 0);
        for (node, &domain) in level.domain_of.iter().enumerate() {
            if room.free(node).len() >= ask.per_node as usize {
                self.capacity[domain as usize] += 1;
            }
        }
        self.capacity.iter().any(|&nodes| nodes >= ask.nodes)
    }
}

impl Policy for Gpuos {
    fn forecast(
        &mut self,
        now: &[GpuSet],
        room: FreeCapacity<'_>,
        ask: Ask,
    ) -> Option<Vec<NodeChoice>> {
        let Some((able, stock)) = &mut self.ahead else {
            return self.place(room, ask, false);
        };
        if !self.planner.keeps_busiest(ask.nodes) {
            return stock.place(room, ask, false);
        }
        able.clear();
        able.extend((0..room.free.len()).filter_map(|node| {
            let then = room.free(node).len() as u32;
            (then >= ask.per_node).then_some(Coming {
                penalty: 0,
                now: now[node].len() as u32,
                then,
                node: node as u32,
            })
        }));
        let kept = keep(able, ask.nodes as usize);
        kept.then(|| take(room, ask, able.iter().map(|coming| coming.node)))
    }

    fn arrives(&mut self, ask: Ask) {
        let Some(learner) = &mut self.learner else {
            return;
        };
        let share = Share {
            gpus: ask.per_node.min(255) as u8,
            cpus: 1,
            memory_gib: 1,
            types: 0,
        };
        learner.arrives(share, ask.nodes);
        if learner.due() {
            // Of CPUs and memory there is always enough.
            let sizes = vec![(128, 1 << 20); self.planner.types()];
            self.planner.learn(learner.expected(sizes));
            self.planner.work(usize::MAX);
        }
    }

    fn place(&mut self, room: FreeCapacity<'_>, ask: Ask, close: bool) -> Option<Vec<NodeChoice>> {
        if close && ask.nodes > 1 {
            let level = self.closest(ask)?;
            if !self.fits(room, ask, level) {
                return None;
            }
        }
        for (node, state) in self.state.iter_mut().enumerate() {
            state.free = room.free[node];
            state.until = room.until[node];
            state.candidate = !room.reserved.get(node).is_some_and(|kept| *kept);
        }
        let request = Request {
            until: ask.until,
            placement: self.placement.clone(),
            ..Request::new(ask.nodes, ask.nodes, GpuShape::PerNode(ask.per_node))
        };
        let choice = self.planner.plan(&self.state, &request, 0).ok()?;
        Some(choice.nodes.clone())
    }

    fn patience(&self, ask: Ask, limit: i64) -> i64 {
        let level = self.closest(ask).filter(|_| ask.nodes > 1);
        // Where only the widest level is wide enough, there is nothing to wait for.
        match level {
            Some(level) if level + 1 < self.widths.len() => self.patience.min(limit / PART),
            _ => 0,
        }
    }
}
