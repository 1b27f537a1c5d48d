//! What must be as it was after each wave, whatever was tried: seen by root, from Slurm, the simulated driver and the kernel.

use std::collections::BTreeMap;

use gpuos_tests::slices;

use crate::stage::{NODES, Stage};

/// What is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct World(BTreeMap<String, String>);

impl World {
    /// How it is.
    pub fn look(stage: &Stage) -> World {
        let mut all = BTreeMap::new();
        let lab = &stage.cluster.lab;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "gone".to_owned(), |pid| pid.to_string());
        all.insert("slurmctld".to_owned(), pid(lab.slurmctld_pid()));
        for node in NODES {
            all.insert(format!("gpuosd of {node}"), pid(lab.gpuosd_pid(node)));
            all.insert(format!("gpuos_mover of {node}"), pid(lab.mover_pid(node)));
            all.insert(format!("slurmd of {node}"), pid(lab.slurmd_pid(node)));
            all.insert(format!("state of {node}"), state(stage, node));
        }
        let jobs = stage.victims.all();
        let now = stage.jobs(&jobs);
        for job in jobs {
            let seen = now.get(&job).map_or_else(
                || "gone".to_owned(),
                |(state, restarts)| format!("{state}, requeued {restarts} times"),
            );
            all.insert(format!("job {job}, which is to be left alone"), seen);
        }
        let held = format!("{:?}", stage.slices());
        all.insert("the victim's MIG instance".into(), held);
        let shown = slices::nvml(&stage.cluster, "n1", &["show"]);
        let capped = shown.matches("limit 300 W").count();
        all.insert(
            "GPUs with the victim's power cap".into(),
            capped.to_string(),
        );
        let mps = stage
            .runtime("n2")
            .join(format!("mps/{}/pipe/pid", stage.victims.mps));
        let daemon = std::fs::read_to_string(mps).unwrap_or_default();
        let daemon = daemon.trim();
        let lives = std::path::Path::new("/proc")
            .join(daemon)
            .join("status")
            .exists();
        all.insert(
            format!("the victim's MPS daemon {daemon}"),
            lives.to_string(),
        );
        World(all)
    }

    /// What is not as it was.
    pub fn differs(&self, now: &World) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.0.keys().chain(now.0.keys()).collect();
        let names = names.into_iter();
        let get = |world: &World, name: &String| world.0.get(name).cloned().unwrap_or_default();
        let changed = names.filter(|name| get(self, name) != get(now, name));
        changed
            .map(|name| format!("{name}: was {}, is {}", get(self, name), get(now, name)))
            .collect()
    }
}

/// Whether Slurm lets a node have jobs. One that is idle or in use is well.
fn state(stage: &Stage, node: &str) -> String {
    let text = stage.cluster.run("sinfo", &["-h", "-n", node, "-o", "%T"]);
    // With a minus backfill has plans for it.
    match text.trim().trim_end_matches('-') {
        "idle" | "mixed" | "allocated" | "completing" | "planned" => "in service".to_owned(),
        other => other.to_owned(),
    }
}
