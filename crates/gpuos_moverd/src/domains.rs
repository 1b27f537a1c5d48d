//! Which nodes of a job fail together, by `[checkpoint] domains` of gpuos.toml and the workload manager's fabric.

use std::sync::Arc;

use gpuos_checkpoint::sets::{NodeDomains, Scheme, arrange};
use gpuos_config::gpuos_toml::Config;
use gpuos_workload::{Topology, WorkloadManager};

/// Where the failure domains of nodes are looked up.
pub struct FailureDomains {
    config: Config,
    manager: Arc<dyn WorkloadManager>,
}

impl FailureDomains {
    /// By this configuration.
    pub fn new(config: Config, manager: Arc<dyn WorkloadManager>) -> FailureDomains {
        FailureDomains { config, manager }
    }

    /// The failure domains of the nodes of a job, in their order, and what is missing there, each as a sentence. Where they cannot be
    /// known the nodes have none: checkpoints matter more than which nodes keep them for each other.
    pub fn of(&self, nodes: &[String]) -> (Vec<NodeDomains>, Vec<String>) {
        let without = |why: String| {
            let why = format!("{why}; the sets of its nodes are made without failure domains");
            (vec![NodeDomains::default(); nodes.len()], vec![why])
        };
        let topology = match self.config.keeps_levels_apart() {
            true => match self.manager.topology(nodes) {
                Ok(topology) => topology,
                Err(why) => return without(why),
            },
            false => Topology::default(),
        };
        let Topology {
            nodes: known,
            fabric,
        } = topology;
        let found = self.config.failure_domains(nodes, &known, &fabric);
        found.unwrap_or_else(|error| without(error.to_string()))
    }
}

/// The failure domains that can be heeded in sets of these nodes, with a sentence for each level that cannot: a job whose nodes are all
/// below one switch has checkpoints all the same. `levels` are in the order of their weight.
pub fn satisfiable(
    all: &[NodeDomains],
    levels: &[String],
    scheme: Scheme,
) -> (Vec<NodeDomains>, Vec<String>) {
    let mut heeded = vec![NodeDomains::default(); all.len()];
    let mut notes = Vec::new();
    for level in levels {
        let mut more = heeded.clone();
        for (own, known) in more.iter_mut().zip(all) {
            if let Some(label) = known.0.get(level) {
                own.0.insert(level.clone(), label.clone());
            }
        }
        match arrange(&more, scheme) {
            Ok(_) => heeded = more,
            Err(why) => notes.push(format!(
                "nodes of one {level} domain keep checkpoints for each other: {why}"
            )),
        }
    }
    (heeded, notes)
}

#[cfg(test)]
mod tests {
    use gpuos_model::cluster::FabricLevel;
    use gpuos_workload::recorded::{Recorded, Table};

    use super::*;

    const LEAF: &str = "[checkpoint]\ndomains = [\"leaf\"]\n";

    fn of(
        text: &str,
        topology: Option<Result<Topology, String>>,
    ) -> (Vec<NodeDomains>, Vec<String>) {
        let config = Config::parse(text, "gpuos.toml").unwrap();
        let manager = Recorded::new(Table {
            topology,
            ..Table::default()
        });
        FailureDomains::new(config, Arc::new(manager)).of(&["n1".into(), "n2".into()])
    }

    #[test]
    fn the_fabric_is_asked_for_only_where_it_matters() {
        let none = vec![NodeDomains::default(); 2];
        let broken = || Some(Err("topology.conf: line 1 has a mistake".to_string()));
        assert_eq!(of("", broken()), (none.clone(), vec![]));
        let power = "[checkpoint]\ndomains = [\"power\"]\n";
        assert_eq!(of(power, broken()), (none.clone(), vec![]));
        // What cannot be read is said, and the job has checkpoints all the same.
        let (domains, notes) = of(LEAF, broken());
        assert_eq!(domains, none);
        assert!(
            notes[0].contains("line 1 has a mistake; the sets"),
            "{notes:?}"
        );
        let (domains, notes) = of(LEAF, None);
        assert_eq!(domains, none);
        assert!(notes[0].contains("no level leaf"), "{notes:?}");
    }

    #[test]
    fn nodes_get_the_switch_that_they_hang_on() {
        let leaf = FabricLevel {
            name: "leaf".into(),
            domains: vec!["s1".into(), "s2".into()],
            domain_of: vec![1, 0],
            gbps: 0.0,
        };
        let topology = Topology {
            nodes: vec!["n1".into(), "n2".into()],
            fabric: gpuos_model::cluster::Fabric { levels: vec![leaf] },
        };
        let wanted = [
            NodeDomains::of([("leaf", "s2")]),
            NodeDomains::of([("leaf", "s1")]),
        ];
        assert_eq!(of(LEAF, Some(Ok(topology))), (wanted.to_vec(), vec![]));
    }

    #[test]
    fn a_level_that_would_leave_a_job_without_sets_is_not_heeded() {
        let node = |leaf, power| NodeDomains::of([("leaf", leaf), ("power", power)]);
        let levels = ["leaf".to_string(), "power".to_string()];
        let power = |label| NodeDomains::of([("power", label)]);
        // Both nodes below one switch, at two supplies.
        let (heeded, notes) = satisfiable(
            &[node("s1", "a"), node("s1", "b")],
            &levels,
            Scheme::Partner,
        );
        assert_eq!(heeded, [power("a"), power("b")]);
        assert!(
            notes.len() == 1 && notes[0].contains("one leaf domain"),
            "{notes:?}"
        );
        let apart = [node("s1", "a"), node("s2", "b")];
        assert_eq!(
            satisfiable(&apart, &levels, Scheme::Partner),
            (apart.to_vec(), vec![])
        );
        // What cannot be arranged at all is refused elsewhere.
        let (heeded, _) = satisfiable(&apart[..1], &levels, Scheme::Partner);
        assert_eq!(heeded, [NodeDomains::default()]);
        assert!(arrange(&heeded, Scheme::Partner).is_err());
    }
}
