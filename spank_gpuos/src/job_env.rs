//! What a job finds in its environment: which GPUs, how they are linked, how close the job is.

use gpuos_config::site::Site;
use gpuos_model::cluster::{Cluster, Link, NO_DOMAIN, NodeType};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::hostlist::expand;

/// The variables, in the order of [`Described`].
pub const GPUS: &std::ffi::CStr = c"GPUOS_GPUS";
/// Links among the GPUs.
pub const LINKS: &std::ffi::CStr = c"GPUOS_LINKS";
/// Level that the whole job reaches.
pub const LEVEL: &std::ffi::CStr = c"GPUOS_LEVEL";

/// What slurmstepd knows of a step when it starts.
#[derive(Clone, Default, Debug)]
pub struct Step {
    /// Slurm's indices of the step's GPUs on this node.
    pub gpus: GpuSet,
    /// GPUs of the whole job on this node, where they are known.
    pub job_gpus: GpuSet,
    /// Nodes of the step, as a hostlist.
    pub step_nodes: String,
    /// Which of these is this node.
    pub node_index: usize,
    /// Nodes of the job, as a hostlist.
    pub job_nodes: String,
    /// Partition of the job; empty when it is not known.
    pub partition: String,
}

/// Links and level; what is not known is absent.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Described {
    /// Value of `GPUOS_LINKS`: `0-1:NV12,0-2:SYS,…`, one entry per pair; empty for a single GPU.
    pub links: Option<String>,
    /// Value of `GPUOS_LEVEL`: `nvlink`, `node`, a level of the fabric, or `any`.
    pub level: Option<String>,
}

/// Reads an index list of Slurm's, such as `SLURM_JOB_GPUS=0,1,4`.
pub fn parse_gpus(list: &str) -> Option<GpuSet> {
    let mut set = GpuSet::EMPTY;
    for index in list.split(',') {
        set = set.with(
            index
                .trim()
                .parse()
                .ok()
                .filter(|index| *index < MAX_GPUS)?,
        );
    }
    Some(set)
}

/// Value of `GPUOS_GPUS`: the indices with commas, lowest first.
pub fn gpus_text(set: GpuSet) -> String {
    let indices: Vec<String> = set.iter().map(|index| index.to_string()).collect();
    indices.join(",")
}

/// Links and level of a step's GPUs.
///
/// # Errors
/// Why the site's files do not answer, for the debug log.
pub fn describe(site: &Site, step: &Step) -> Result<Described, String> {
    let step_nodes = expand(&step.step_nodes).map_err(|e| e.to_string())?;
    let name = step_nodes
        .get(step.node_index)
        .ok_or("this node is not in the step's node list")?;
    let job_nodes = expand(&step.job_nodes).map_err(|e| e.to_string())?;
    let mut facts = Vec::with_capacity(job_nodes.len());
    for (node, known) in job_nodes.iter().zip(site.nodes.facts(&job_nodes)) {
        facts.push(known.ok_or_else(|| format!("node {node} is not in slurm.conf"))?);
    }
    let own = job_nodes
        .iter()
        .position(|node| node == name)
        .ok_or("this node is not in the job's node list")?;
    let cluster = site.cluster_in(&facts, &step.partition)?;
    let node_type = cluster.nodes[own].node_type.as_deref();
    // A type made of nothing but a count says nothing about links.
    let node_type = node_type
        .filter(|t| facts[own].links.is_some() || site.config.node_type(&t.name).is_some());
    let node_type = node_type.filter(|t| step.gpus.minus(GpuSet::first(t.gpus)).is_empty());
    Ok(Described {
        links: node_type.map(|t| links_text(t, step.gpus)),
        level: match job_nodes.len() {
            1 => {
                let all = if step.job_gpus.is_empty() {
                    step.gpus
                } else {
                    step.job_gpus
                };
                node_type.map(|t| if linked(t, all) { "nvlink" } else { "node" }.to_owned())
            }
            _ => Some(common_level(&cluster).to_owned()),
        },
    })
}

/// Whether several GPUs are all linked to each other by NVLink.
fn linked(node_type: &NodeType, set: GpuSet) -> bool {
    let set = set.and(GpuSet::first(node_type.gpus));
    let joined = |a, b| matches!(node_type.link(a, b), Link::Nv(links) if links > 0);
    set.len() > 1
        && set
            .iter()
            .all(|a| set.iter().all(|b| a == b || joined(a, b)))
}

/// The narrowest level at which all nodes of the cluster are in one domain.
fn common_level(cluster: &Cluster) -> &str {
    let common = |domains: &[u32]| domains.iter().all(|d| *d == domains[0] && *d != NO_DOMAIN);
    let mut levels = cluster.fabric.levels.iter();
    levels
        .find(|level| !level.domain_of.is_empty() && common(&level.domain_of))
        .map_or("any", |level| &level.name)
}

fn links_text(node_type: &NodeType, set: GpuSet) -> String {
    let mut pairs = Vec::new();
    for a in set.iter() {
        for b in set.iter().filter(|b| *b > a) {
            pairs.push(format!("{a}-{b}:{}", node_type.link(a, b)));
        }
    }
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLURM: &str = "TopologyPlugin=topology/tree\nNodeName=n[1-4] Gres=gpu:a100:4 Sockets=2 CoresPerSocket=2\nNodeName=u[1-2] Gres=gpu:4\n";
    const GRES: &str = "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-1 Links=-1,12,0,0\n\
        NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia1 Cores=0-1 Links=12,-1,0,0\n\
        NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia2 Cores=2-3 Links=0,0,-1,12\n\
        NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia3 Cores=2-3 Links=0,0,12,-1\n";
    const TOPOLOGY: &str =
        "SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n[3-4]\nSwitchName=s Switches=l[1-2]\n";

    fn site() -> Site {
        Site::read(None, &|name| {
            Ok(match name {
                "slurm.conf" => Some(SLURM.into()),
                "gres.conf" => Some(GRES.into()),
                "topology.conf" => Some(TOPOLOGY.into()),
                _ => None,
            })
        })
        .unwrap()
    }

    fn step(gpus: &str, job_gpus: &str, nodes: &str) -> Step {
        Step {
            gpus: parse_gpus(gpus).unwrap(),
            job_gpus: parse_gpus(job_gpus).unwrap_or_default(),
            step_nodes: nodes.into(),
            node_index: 0,
            job_nodes: nodes.into(),
            partition: String::new(),
        }
    }

    fn described(step: &Step) -> (Option<String>, Option<String>) {
        let Described { links, level } = describe(&site(), step).unwrap();
        (links, level)
    }

    fn both(links: &str, level: &str) -> (Option<String>, Option<String>) {
        (Some(links.into()), Some(level.into()))
    }

    #[test]
    fn lists_are_read_and_written_as_slurm_does() {
        assert_eq!(parse_gpus("0,3").map(gpus_text).as_deref(), Some("0,3"));
        for bad in ["", "x", "0,", "64", "-1", "0-3"] {
            assert_eq!(parse_gpus(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_pair_is_linked_and_two_halves_are_not() {
        assert_eq!(
            described(&step("0,1", "0,1", "n1")),
            both("0-1:NV12", "nvlink")
        );
        assert_eq!(
            described(&step("2,3", "2,3", "n1")),
            both("2-3:NV12", "nvlink")
        );
        assert_eq!(described(&step("0,2", "", "n1")), both("0-2:SYS", "node"));
        // A step with a part of the job's GPUs: links are the step's, the level is the job's.
        assert_eq!(
            described(&step("0,1", "0,1,2", "n1")),
            both("0-1:NV12", "node")
        );
        assert_eq!(described(&step("1", "1", "n1")), both("", "node"));
    }

    #[test]
    fn several_nodes_reach_the_level_they_share() {
        assert_eq!(
            described(&step("0,1", "", "n[1-2]")).1.as_deref(),
            Some("leaf")
        );
        assert_eq!(
            described(&step("0,1", "", "n[2-3]")).1.as_deref(),
            Some("spine")
        );
        assert_eq!(
            described(&step("0,1", "", "n1,u1")).1.as_deref(),
            Some("any")
        );
        let mut part = step("0,1", "", "n3");
        part.job_nodes = "n[1-4]".into();
        assert_eq!(described(&part), both("0-1:NV12", "spine"));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        assert_eq!(described(&step("0,1", "0,1", "u1")), (None, None));
        assert_eq!(described(&step("0,5", "0,5", "n1")), (None, None));
        let mut lost = step("0", "", "n1");
        lost.node_index = 1;
        assert!(describe(&site(), &lost).is_err());
        assert!(
            describe(&site(), &step("0", "", "x1"))
                .unwrap_err()
                .contains("x1")
        );
        assert!(describe(&site(), &step("0", "", "n[")).is_err());
    }
}
