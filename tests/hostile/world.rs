//! What must be as it was after each wave, whatever was tried: seen by root, from Slurm, the simulated driver and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpuos_tests::slices;

use crate::stage::{NODES, Stage};

/// On a busy machine slurmctld may not hear of a node for a moment. It asks each node three times in the minute after which it would set
/// it down.
const SILENT: Duration = Duration::from_secs(120);
/// What begins the name of how a node is.
const STATE: &str = "state of ";
/// What slurmctld says that has set a node's state, and gpuosd that has asked for it.
const SET: [&str; 4] = [
    "DOWN",
    "DRAIN",
    "the node is drained",
    "asked to set it DOWN",
];

/// What is looked at.
#[derive(Clone, Debug)]
pub struct World {
    all: BTreeMap<String, String>,
    /// How far the log of slurmctld was, and the audit logs of the nodes.
    logs: Vec<usize>,
}

impl World {
    /// How it is.
    pub fn look(stage: &Stage) -> World {
        // Before all else: what is done meanwhile is new to them.
        let logs = logs(stage).iter().map(String::len).collect();
        let mut all = BTreeMap::new();
        let lab = &stage.cluster.lab;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "gone".to_owned(), |pid| pid.to_string());
        all.insert("slurmctld".to_owned(), pid(lab.slurmctld_pid()));
        for node in NODES {
            all.insert(format!("gpuosd of {node}"), pid(lab.gpuosd_pid(node)));
            all.insert(format!("gpuos_mover of {node}"), pid(lab.mover_pid(node)));
            all.insert(format!("slurmd of {node}"), pid(lab.slurmd_pid(node)));
            all.insert(format!("{STATE}{node}"), state(stage, node));
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
        World { all, logs }
    }

    /// What is not as it was. All is looked at once, but for nodes that are silent while nobody has set their state: they are waited for.
    pub fn changed(&self, stage: &Stage) -> Vec<String> {
        let mut now = World::look(stage);
        let deadline = Instant::now() + SILENT;
        loop {
            let changed = self.differs(&now);
            let silent = changed.iter().all(|one| one.starts_with(STATE));
            if changed.is_empty() || !silent || self.is_set(stage) || Instant::now() > deadline {
                return changed;
            }
            println!("looked at again: {}", changed.join("; "));
            std::thread::sleep(Duration::from_secs(2));
            for node in NODES {
                now.all.insert(format!("{STATE}{node}"), state(stage, node));
            }
        }
    }

    fn differs(&self, now: &World) -> Vec<String> {
        let names: BTreeSet<&String> = self.all.keys().chain(now.all.keys()).collect();
        let names = names.into_iter();
        let get = |world: &World, name: &String| world.all.get(name).cloned().unwrap_or_default();
        let changed = names.filter(|name| get(self, name) != get(now, name));
        changed
            .map(|name| format!("{name}: was {}, is {}", get(self, name), get(now, name)))
            .collect()
    }

    /// Whether anybody has set the state of a node since then.
    fn is_set(&self, stage: &Stage) -> bool {
        let logs = logs(stage);
        let new = logs.iter().zip(&self.logs);
        let mut new = new.map(|(log, from)| log.get(*from..).unwrap_or(log));
        new.any(|new| SET.iter().any(|word| new.contains(word)))
    }
}

/// The log of slurmctld, and the audit logs of the nodes.
fn logs(stage: &Stage) -> Vec<String> {
    let audits = NODES.iter().map(|node| stage.audit(node));
    let slurmctld = stage.cluster.lab.slurmctld_log();
    std::iter::once(slurmctld).chain(audits).collect()
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
