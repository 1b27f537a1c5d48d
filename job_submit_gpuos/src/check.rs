//! Whether a request with gpuos options can ever be met on this cluster.
//!
//! Pure: a [`Shape`] and the options go in, a [`Refusal`] may come out. What is not certain is
//! accepted, and a job without gpuos options is never looked at.

use gpuos_config::access::used;
use gpuos_config::options::{JobOptions, Sources, parse_gres};
use gpuos_core::limits::PowerCap;
use gpuos_model::cluster::{Cluster, NodeType};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::messages::Message;
use gpuos_model::node_types;
use gpuos_placement::gang::GroupShape;
use gpuos_placement::plan::{GpuShape, NodeState, Planner, Request, Unit, Wait};
use gpuos_placement::rules::Rules;

use crate::messages::{impossible, refused};
use crate::neighbours;
use crate::notes;
use crate::refusal::{Kind, Refusal};
use crate::shape::Shape;

/// The cluster as requests are checked against it, all of it free.
pub struct Catalogue {
    planner: Planner,
    /// For the topologies that partitions may have beside the cluster's own.
    others: Vec<Planner>,
    levels: Vec<String>,
    rules: Rules,
    bounded: bool,
}

impl Catalogue {
    /// From the cluster in each of its topologies, its own first, and its rules; `bounded` says whether there are no nodes but these.
    pub fn new(clusters: Vec<Cluster>, rules: Rules, bounded: bool) -> Catalogue {
        let mut planners = clusters.into_iter().map(Planner::new);
        let planner = planners
            .next()
            .unwrap_or_else(|| Planner::new(Cluster::default()));
        let others: Vec<Planner> = planners.collect();
        let mut levels = planner.level_names();
        for level in others.iter().flat_map(Planner::level_names) {
            if !levels.contains(&level) {
                levels.push(level);
            }
        }
        Catalogue {
            planner,
            others,
            levels,
            rules,
            bounded,
        }
    }

    /// Checks one request.
    ///
    /// # Errors
    /// The request contradicts itself, names a level that the cluster does not have, or could
    /// not even be met by the empty cluster.
    pub fn check(
        &mut self,
        options: &JobOptions,
        sources: &Sources,
        shape: &Shape,
    ) -> Result<(), Refusal> {
        self.power(options, shape)?;
        if options.off {
            return contradiction(options, sources);
        }
        if let Some(wish) = &options.topology
            && !self.levels.contains(&wish.level)
        {
            let levels = self.levels.join(", ");
            return Err(refused::no_level(wish, &wish.level, levels).into());
        }
        neighbours::check(options, &self.rules, &self.levels)?;
        if let Some(groups) = &options.shape {
            ranks(groups, shape)?;
        }
        let Some((kind, gpus)) = gpus(shape).filter(|_| self.bounded) else {
            return Ok(());
        };
        let request = self.request(options, shape, gpus);
        let state = self.state(kind.as_deref());
        let fits = self.planner.plan(&state, &request, 0).map(|_| ());
        match fits {
            // Which topology holds for the job its partition says, which may still be changed.
            Err(_) if self.fits_elsewhere(&state, &request) => Ok(()),
            Err(wait) => {
                Err(self.impossible(options, request, &state, &why(wait, kind.as_deref())))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Whether another topology than the cluster's own has a place for a request.
    fn fits_elsewhere(&mut self, state: &[NodeState], request: &Request) -> bool {
        let mut others = self.others.iter_mut();
        others.any(|planner| planner.plan(state, request, 0).is_ok())
    }

    /// What the user of a job is to know though it is taken. `unnamed` says which of some words name no job that runs
    /// or waits, if that can be said.
    pub fn notes(
        &self,
        options: &JobOptions,
        sources: &Sources,
        shape: &Shape,
        unnamed: &notes::Unnamed<'_>,
    ) -> Vec<Message> {
        let mut notes = notes::of_job(options, sources, shape);
        if options.off {
            return notes;
        }
        let cluster = self.planner.cluster();
        if self.bounded && notes::gpus(shape) != notes::Gpus::None {
            notes.extend(notes::of_levels(options, sources, cluster));
        }
        notes.extend(notes::of_neighbours(
            options,
            sources,
            (&self.rules, cluster),
            unnamed,
        ));
        notes
    }

    /// Refuses a power cap above what any GPU draws that the job could get. A type without a figure may
    /// draw as much; the least that a board takes is known on its node only.
    fn power(&self, options: &JobOptions, shape: &Shape) -> Result<(), Refusal> {
        let Some(cap @ PowerCap::Watts(watts)) = options.power.filter(|_| self.bounded) else {
            return Ok(());
        };
        let kind = gpus(shape).and_then(|(kind, _)| kind);
        let shipped = node_types::builtin();
        let nodes = &self.planner.cluster().nodes;
        let types = nodes.iter().filter_map(|node| node.node_type.as_deref());
        let types =
            types.filter(|node_type| node_type.gpus > 0 && is_of(node_type, kind.as_deref()));
        let figures: Vec<u32> = types.map(|of| most_watts(of, &shipped)).collect();
        match figures.iter().max() {
            Some(&most) if most < watts && !figures.contains(&0) => {
                let what = kind.map_or_else(|| "GPU".to_owned(), |kind| format!("{kind} GPU"));
                Err(Refusal::impossible(refused::too_many_watts(
                    cap, what, most,
                )))
            }
            _ => Ok(()),
        }
    }

    fn request(&self, options: &JobOptions, shape: &Shape, gpus: GpuShape) -> Request {
        let min_nodes = shape.min_nodes.max(1);
        let max_nodes = match (shape.max_nodes, gpus) {
            (0, GpuShape::Total(n)) => n.max(min_nodes),
            (0, GpuShape::PerTask { tasks, .. }) => tasks.max(min_nodes),
            (most, _) => most.max(min_nodes),
        };
        Request {
            whole_nodes: shape.exclusive,
            topology: options.topology.clone().filter(|wish| wish.required),
            ..Request::new(min_nodes, max_nodes, gpus)
        }
    }

    /// All GPUs of the asked type free; a node whose type is not known may have them.
    fn state(&self, kind: Option<&str>) -> Vec<NodeState> {
        let free = |node: &gpuos_model::cluster::Node| {
            let Some(node_type) = &node.node_type else {
                return GpuSet::EMPTY;
            };
            if is_of(node_type, kind) {
                GpuSet::first(node_type.gpus)
            } else {
                GpuSet::EMPTY
            }
        };
        let nodes = &self.planner.cluster().nodes;
        nodes
            .iter()
            .map(|node| NodeState {
                candidate: !free(node).is_empty(),
                present: free(node),
                free: free(node),
                free_cpus: u32::MAX,
                free_memory_mib: u64::MAX,
                affinity: 0,
                penalty: 0,
                until: 0,
            })
            .collect()
    }

    fn impossible(
        &mut self,
        options: &JobOptions,
        request: Request,
        state: &[NodeState],
        why: &str,
    ) -> Refusal {
        let anywhere = Request {
            topology: None,
            ..request.clone()
        };
        let fits_elsewhere =
            request.topology.is_some() && self.planner.plan(state, &anywhere, 0).is_ok();
        match &options.topology {
            Some(wish) if fits_elsewhere => {
                let error = refused::no_domain_is_large_enough(wish, why, &wish.level);
                Refusal::impossible(error)
            }
            _ => Refusal::of_other(Kind::Impossible, impossible::never(why)),
        }
    }
}

/// The most that a GPU of a node type may draw; 0 = not known. Boards of one name differ (an A100 on a PCIe
/// card takes 300 W, on a module 400), and slurm.conf has but the name.
fn most_watts(node_type: &NodeType, shipped: &[NodeType]) -> u32 {
    let own = node_type.figures.gpu_watts;
    let same = shipped
        .iter()
        .filter(|other| other.gres_type.eq_ignore_ascii_case(&node_type.gres_type));
    let others = same.map(|other| other.figures.gpu_watts);
    match own {
        0 => 0,
        own => others.fold(own, u32::max),
    }
}

/// Whether GPUs of a node type are of the asked type, or may be.
fn is_of(node_type: &NodeType, kind: Option<&str>) -> bool {
    kind.is_none_or(|kind| {
        node_type.gres_type.is_empty() || node_type.gres_type.eq_ignore_ascii_case(kind)
    })
}

/// Why the empty cluster does not fit.
fn why(wait: Wait, kind: Option<&str>) -> String {
    let gpus = kind.map_or_else(|| "GPUs".to_owned(), |kind| format!("{kind} GPUs"));
    match wait {
        Wait::Never { why } => why.to_string(),
        Wait::Capacity {
            feasible_nodes,
            needed_nodes,
            free_gpus,
            needed_gpus,
        } => impossible::too_few(needed_gpus, gpus, needed_nodes, free_gpus, feasible_nodes).into(),
        Wait::Level {
            level,
            best_domain,
            unit,
            have,
            need,
        } => {
            let what = match unit {
                Unit::Nodes => "nodes",
                Unit::Gpus => "GPUs",
            };
            impossible::too_narrow(need, what, level, best_domain, have, gpus).into()
        }
        Wait::UnknownLevel { level, known } => {
            impossible::unknown_level(level, known.join(", ")).into()
        }
    }
}

/// Refuses `--gpuos=off` beside options that only gpuos could honour.
pub fn contradiction(options: &JobOptions, sources: &Sources) -> Result<(), Refusal> {
    let about_place = ["topology", "placement", "shape", "profile", "exclusive"];
    let is_one = |(name, _): &(&str, String)| {
        let short = name.strip_prefix("gpuos-");
        about_place.into_iter().any(|one| Some(one) == short)
    };
    let Some((name, value)) = used(options).into_iter().find(is_one) else {
        return Ok(());
    };
    if !options.off {
        return Ok(());
    }
    let other = sources.named(&format!("--{name}"), &value);
    Err(refused::contradicts("off", other, name).into())
}

/// Refuses a shape whose ranks cannot be the GPUs that the job asks for. Where their number is open
/// (a range of nodes, whole nodes, mixed forms), the job's start decides.
fn ranks(groups: &GroupShape, shape: &Shape) -> Result<(), Refusal> {
    let refused = |reason: String| Err(Refusal::impossible(refused::shape_misfits(groups, reason)));
    let Some((_, gpus)) = gpus(shape) else {
        let forms = [
            &shape.per_job,
            &shape.per_node,
            &shape.per_socket,
            &shape.per_task,
        ];
        return match shape.exclusive || forms.into_iter().any(Option::is_some) {
            true => Ok(()),
            false => refused(impossible::no_gpus().into()),
        };
    };
    let nodes = match (shape.min_nodes, shape.max_nodes) {
        (0, _) if shape.tasks > 1 => None,
        (least, most) if most == 0 || most == least => Some(least.max(1)),
        _ => None,
    };
    let checked = match (gpus, nodes) {
        (GpuShape::PerNode(per), Some(nodes)) => {
            groups.check(u64::from(per) * u64::from(nodes), Some(per))
        }
        (GpuShape::PerNode(per), None) => {
            // As many nodes as the shape needs, if that can be.
            let ranks = u64::from(groups.ranks());
            match ranks % u64::from(per.max(1)) {
                0 => groups.check(ranks, Some(per)),
                _ => Err(impossible::nodes_not_filled(ranks, per).into()),
            }
        }
        (GpuShape::Total(gpus), _) => groups.check(gpus.into(), None),
        (GpuShape::PerTask { per_task, tasks }, _) if shape.tasks > 0 => {
            groups.check(u64::from(per_task) * u64::from(tasks), None)
        }
        _ => Ok(()),
    };
    checked.or_else(refused)
}

/// The GPUs of a request and their type. `None` when there are none, when several forms or types
/// are mixed, or when a text is not understood: then it is Slurm who judges.
fn gpus(shape: &Shape) -> Option<(Option<String>, GpuShape)> {
    let forms = [
        &shape.per_job,
        &shape.per_node,
        &shape.per_socket,
        &shape.per_task,
    ];
    let mut found = None;
    for (form, text) in forms.iter().enumerate() {
        let Some(text) = text else { continue };
        for gres in parse_gres("gres", text)
            .ok()?
            .into_iter()
            .filter(|gres| gres.name == "gpu")
        {
            if found.is_some() {
                return None;
            }
            found = Some((form, gres.gres_type, u32::try_from(gres.count).ok()?));
        }
    }
    let (form, kind, count) = found?;
    let gpus = match form {
        0 => GpuShape::Total(count),
        1 => GpuShape::PerNode(count),
        // Slurm judges how many sockets there can be.
        2 => GpuShape::PerSocket {
            per_socket: count,
            sockets: 1,
        },
        _ => GpuShape::PerTask {
            per_task: count,
            tasks: shape.tasks.max(shape.min_nodes).max(1),
        },
    };
    Some((kind, gpus))
}

#[cfg(test)]
mod tests;
