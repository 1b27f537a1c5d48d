//! Which nodes of a job that was requeued have parts of its checkpoints: each is asked by a task of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gpuos_host::Machine;
use gpuos_model::hostlist::compress;
use serde_json::Value;

use super::choose::Node;

/// Longest time for all of them; without an answer nodes are taken in their order.
const LIMIT: Duration = Duration::from_secs(20);

/// Notes for each node the newest checkpoint of which it has a part.
pub fn look(machine: &dyn Machine, job: u32, nodes: &mut [Node], runtime_dir: &Path) {
    let Some(own) = std::env::current_exe().ok() else {
        return;
    };
    let names: Vec<String> = nodes
        .iter()
        .filter(|node| node.lost.is_none())
        .map(|node| node.name.clone())
        .collect();
    let count = names.len();
    let args = [
        "--overlap".to_string(),
        "--label".into(),
        "--kill-on-bad-exit=0".into(),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        "--ntasks-per-node=1".into(),
        format!("--nodelist={}", compress(names.iter().map(String::as_str))),
        own.to_string_lossy().into_owned(),
        "--json".into(),
        "ckpt".into(),
        "list".into(),
        job.to_string(),
        "--local".into(),
        format!("--runtime-dir={}", runtime_dir.display()),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // One that fails does not silence the others.
    let Ok(output) = machine.run_within(LIMIT, "srun", &args) else {
        return;
    };
    let newest = newest(&output.stdout);
    for node in nodes {
        node.has = newest.get(&node.name).copied();
    }
}

/// The newest checkpoint of each node that a program can be given, in what the tasks have printed, each line with the task's number before it.
fn newest(text: &str) -> BTreeMap<String, u32> {
    let mut of_task: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines() {
        if let Some((task, line)) = line.split_once(": ") {
            let told = of_task.entry(task.trim()).or_default();
            told.push_str(line);
            told.push('\n');
        }
    }
    let mut found = BTreeMap::new();
    for told in of_task.values() {
        let told: Value = serde_json::from_str(told).unwrap_or_default();
        for one in told["told"].as_array().into_iter().flatten() {
            let jobs = one["jobs"].as_array().into_iter().flatten();
            let kept = jobs.flat_map(|job| job["checkpoints"].as_array().into_iter().flatten());
            let good = kept.filter(|kept| kept["committed"] == true && kept["refused"].is_null());
            let newest = good.filter_map(|kept| kept["number"].as_u64()).max();
            let newest = newest.and_then(|number| u32::try_from(number).ok());
            if let (Some(node), Some(newest)) = (one["node"].as_str(), newest) {
                found.insert(node.to_string(), newest);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::newest;

    #[test]
    fn answers_of_tasks_are_told_apart_however_their_lines_come() {
        let text = "0: {\n1: {\n0:   \"told\": [{\"node\": \"n1\", \"jobs\": [{\"checkpoints\": [\n\
                    1:   \"told\": [{\"node\": \"n2\", \"jobs\": []}]\n1: }\n\
                    0:   {\"number\": 3, \"committed\": true}, {\"number\": 4, \"committed\": false},\n\
                    0:   {\"number\": 5, \"committed\": true, \"refused\": {\"rank\": 0}}]}]}]\n0: }\n\
                    2: gpuos: no gpuos_mover answers here\n";
        let found = newest(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found["n1"], 3);
    }
}
