//! Planners for several topologies, of which one is in use: from Slurm 25.05 on a partition may have a topology of its own.

use gpuos_placement::plan::Planner;

/// The planners that are not in use, by the number of their topology.
#[derive(Default)]
pub struct Views {
    parked: Vec<Option<Planner>>,
    current: usize,
}

impl Views {
    /// The planner of the cluster's own topology is in use; these are of the others, in Slurm's order.
    pub fn new(others: impl Iterator<Item = Planner>) -> Views {
        let parked = std::iter::once(None).chain(others.map(Some)).collect();
        Views { parked, current: 0 }
    }

    /// The number of the topology whose planner is in use.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Puts the planner of another topology in the place of the one in use. Does nothing for a number that there is not.
    pub fn change(&mut self, to: usize, in_use: &mut Option<Planner>) {
        if let Some(found) = self.parked.get_mut(to).and_then(Option::take) {
            self.parked[self.current] = in_use.replace(found);
            self.current = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuos_model::cluster::{Cluster, Fabric, FabricLevel};

    use super::*;

    fn planner(level: &str) -> Planner {
        let level = FabricLevel {
            name: level.into(),
            ..FabricLevel::default()
        };
        Planner::new(Cluster {
            fabric: Fabric {
                levels: vec![level],
            },
            ..Cluster::default()
        })
    }

    #[test]
    fn one_planner_is_in_use_and_none_is_lost() {
        let mut views = Views::new(["b", "c"].map(planner).into_iter());
        let mut in_use = Some(planner("a"));
        let mut seen = String::new();
        for view in [1, 1, 2, 0, 7, 2, 1] {
            views.change(view, &mut in_use);
            let level = &in_use.as_ref().unwrap().cluster().fabric.levels[0];
            seen += &format!("{}{} ", level.name, views.current());
        }
        assert_eq!(seen, "b1 b1 c2 a0 a0 c2 b1 ");
    }
}
