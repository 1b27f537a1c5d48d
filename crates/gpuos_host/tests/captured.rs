//! Parsing what real slurmctld daemons printed: the same jobs on three releases.
//!
//! The files in `data/` were captured from clusters of four nodes with eight GPUs each; paths
//! and host names were shortened, nothing else.

use std::sync::Arc;

use gpuos_config::options::JobOptions;
use gpuos_host::Recorded;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_host::slurm::{Allocation, Job, NodeRecord, Running, Slurm};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::plan::{GpuShape, NodeState, Placement, Planner, Wait, quarters};
use gpuos_workload::WorkloadManager;

const RELEASES: [&str; 3] = ["22.05.8", "24.11.5", "26.05.5"];

fn captured(release: &str, what: &str) -> String {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    std::fs::read_to_string(format!("{dir}/{release}-{what}.txt")).unwrap()
}

fn job(release: &str, name: &str) -> Job {
    let jobs = Job::parse_all(&captured(release, "jobs"));
    let found = jobs.iter().find(|job| job.name == name);
    found
        .unwrap_or_else(|| panic!("{release}: no job {name}"))
        .clone()
}

/// The captured cluster, with the files that its slurmctld had.
fn machine(release: &str) -> Recorded {
    Recorded::default()
        .command("scontrol show config", &captured(release, "config"))
        .command("scontrol -d show nodes", &captured(release, "nodes"))
        .command("scontrol -d show jobs", &captured(release, "jobs"))
        .command("scontrol show topology", &captured(release, "topology"))
        .file(
            "/srv/lab/slurm.conf",
            "ClusterName=cap\nNodeName=n[1-4] Sockets=2 CoresPerSocket=8 Gres=gpu:h100:8\n",
        )
        .file(
            "/srv/lab/gres.conf",
            "Name=gpu Type=h100 File=/srv/lab/gpu[0-3] Cores=0-7\n\
             Name=gpu Type=h100 File=/srv/lab/gpu[4-7] Cores=8-15\n",
        )
}

#[test]
fn nodes_have_their_gpus_and_their_state() {
    for release in RELEASES {
        let nodes = NodeRecord::parse_all(&captured(release, "nodes"));
        let names: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3", "n4"], "{release}");
        for node in &nodes {
            assert_eq!(
                node.gpus,
                [("h100".to_string(), 8)],
                "{release} {}",
                node.name
            );
            assert_eq!((node.sockets, node.cores_per_socket, node.cpus), (2, 8, 16));
            assert_eq!(node.memory_mib, 1000);
            assert_eq!(node.features, ["fast"]);
            assert_eq!(node.partitions, ["main"]);
        }
        let n2 = &nodes[1];
        assert!(n2.gpus_used.len() >= 7, "{release}");
        // The indices of the jobs on a node are those that the node counts as used.
        let jobs = Job::parse_all(&captured(release, "jobs"));
        for node in &nodes {
            let here = |a: &&Allocation| a.nodes.contains(&node.name);
            let running = jobs.iter().filter(|job| job.is_running());
            let used = running.flat_map(|job| job.allocations.iter().filter(here));
            let used = used.fold(0, |set, a| set | a.gpus.0);
            assert_eq!(GpuSet(used), node.gpus_used, "{release} {}", node.name);
        }
        assert_eq!(n2.release, release);
        assert!(n2.is_up());
        let n4 = &nodes[3];
        assert_eq!(n4.gpus_used, GpuSet::EMPTY);
        assert!(!n4.is_up(), "{release}: n4 is drained: {:?}", n4.states);
        assert!(
            n4.reason.starts_with("bad gpu 3, Gres=none ["),
            "{release}: {}",
            n4.reason
        );
        assert_eq!(n4.extra, "x=1 y");
    }
    // Before slurmd has registered.
    let new = "NodeName=n1 CoresPerSocket=8 \n   Gres=gpu:2\n   GresUsed=gpu:1\n   \
               State=UNKNOWN+NOT_RESPONDING ThreadsPerCore=1\n";
    let new = &NodeRecord::parse_all(new)[0];
    assert!(!new.is_up());
    assert_eq!((new.gpu_count(), new.gpus_used), (2, GpuSet::first(1)));
}

#[test]
fn a_running_gang_shows_its_gpus() {
    for release in RELEASES {
        let gang = job(release, "gang");
        assert!(gang.is_running() && !gang.is_pending());
        assert_eq!(gang.nodes.len(), 2, "{release}");
        assert_eq!(gang.gpu_count(), 8);
        let nodes: Vec<&str> = gang
            .allocations
            .iter()
            .flat_map(|a| a.nodes.iter().map(String::as_str))
            .collect();
        assert_eq!(nodes, gang.nodes);
        assert!(
            gang.allocations
                .iter()
                .all(|a| a.gpu_count == 4 && a.gpus.len() == 4)
        );
        assert!(!gang.start.is_empty() && gang.end > gang.start);
        assert_eq!(gang.time_limit, "00:30:00");
        assert!(
            gang.allocations
                .iter()
                .all(|a| a.cpus == 1 && a.memory_mib == 10)
        );
        assert_eq!(job(release, "excl").allocations[0].cpus, 16);
        let cpu = job(release, "cpu");
        assert_eq!((cpu.gpu_count(), cpu.nodes.len()), (0, 1));
    }
}

#[test]
fn requests_come_out_in_the_form_in_which_they_were_made() {
    for release in RELEASES {
        let site = Site::read(&machine(release), None).unwrap();
        let request =
            |name: &str| JobRequest::of_job(&job(release, name), &JobOptions::default(), &site);
        let shape = |name: &str| request(name).unwrap().request.gpus;
        assert_eq!(shape("big"), GpuShape::PerNode(8), "{release}");
        assert_eq!(shape("held"), GpuShape::Total(1));
        assert_eq!(
            shape("sock"),
            GpuShape::PerSocket {
                per_socket: 4,
                sockets: 2
            }
        );
        assert_eq!(
            shape("task2"),
            GpuShape::PerTask {
                per_task: 2,
                tasks: 3
            }
        );
        assert_eq!(request("cpu"), None);

        let range = request("range").unwrap();
        assert_eq!(
            (range.request.min_nodes, range.request.max_nodes),
            (2, 3),
            "{release}"
        );
        assert_eq!(range.gres_type.as_deref(), Some("h100"));
        assert_eq!(range.features, "fast");
        assert!(request("excl").unwrap().request.whole_nodes, "{release}");
        assert!(!range.request.whole_nodes, "{release}");

        let list = request("list").unwrap();
        assert_eq!(list.request.required_nodes, [0]);
        assert_eq!(list.excluded, ["n4"]);
        assert_eq!(list.request.cpus_per_gpu, 1);
        let never = request("never").unwrap();
        assert_eq!(never.request.cpus_per_node, 8);
        assert_eq!(never.request.memory_mib_per_node, 80);
    }
}

#[test]
fn reasons_arrays_and_components_are_kept() {
    for release in RELEASES {
        for (name, reason) in [
            ("held", "JobHeldUser"),
            ("dep", "Dependency"),
            ("later", "BeginTime"),
        ] {
            assert_eq!(job(release, name).reason, reason, "{release}");
        }
        assert_eq!(job(release, "dep").dependency, "afterok:1(unfulfilled)");
        assert_eq!(job(release, "lic").licenses, "matlab:2");
        let jobs = Job::parse_all(&captured(release, "jobs"));
        let array: Vec<&Job> = jobs.iter().filter(|j| j.name == "array").collect();
        let labels: Vec<&str> = array.iter().map(|j| j.label.as_str()).collect();
        assert_eq!(labels, ["4_0", "4"], "{release}");
        assert_eq!(array[1].array_tasks, "1-3%1");
        assert!(
            jobs.iter().any(|j| j.label.ends_with("+1")),
            "{release}: heterogeneous job"
        );
        assert_eq!(job(release, "gone").state, "CANCELLED");
    }
}

#[test]
fn what_users_write_is_not_taken_for_fields() {
    for release in RELEASES {
        let jobs = Job::parse_all(&captured(release, "jobs"));
        let evil = jobs.iter().find(|j| j.name.starts_with("evil")).unwrap();
        assert_eq!(evil.name, "evil NodeList=n9 Reason=None");
        assert_eq!(
            (evil.state.as_str(), evil.reason.as_str()),
            ("PENDING", "Priority"),
            "{release}"
        );
        assert!(evil.nodes.is_empty());
    }
}

#[test]
fn the_running_configuration_is_understood() {
    for release in RELEASES {
        let running = Running::parse(&captured(release, "config"));
        assert_eq!(running.release(), release);
        assert_eq!(running.directory().to_str(), Some("/srv/lab"));
        assert_eq!(running.get("SelectType"), Some("select/cons_tres"));
        assert_eq!(running.get("JobSubmitPlugins"), None);
        assert_eq!(running.plugin_dirs().len(), 1);
        assert_eq!(
            running.controllers,
            ["Slurmctld(primary) at host is UP"],
            "{release}"
        );
    }
}

#[test]
fn the_site_has_slurms_fabric_and_plans_on_it() {
    for release in RELEASES {
        let site = Site::read(&machine(release), None).unwrap();
        assert_eq!(site.notes, Vec::<String>::new(), "{release}");
        let levels: Vec<&str> = site
            .cluster
            .fabric
            .levels
            .iter()
            .map(|l| l.name.as_str())
            .collect();
        assert_eq!(levels, ["leaf", "spine"], "{release}");
        assert_eq!(site.cluster.fabric.levels[0].domains, ["leaf1", "leaf2"]);
        assert_eq!(site.cluster.fabric.levels[0].domain_of, [0, 0, 1, 1]);
        let types: Vec<_> = site
            .cluster
            .nodes
            .iter()
            .map(|n| n.node_type.clone().unwrap())
            .collect();
        assert!(types.iter().all(|t| t.name == "dgx-h100"), "{release}");
        assert!(site.memory_counts());

        // One node is drained and the others are in use: the gang of four nodes has to wait.
        let jobs = Job::parse_all(&captured(release, "jobs"));
        let big = JobRequest::of_job(&job(release, "big"), &JobOptions::default(), &site).unwrap();
        let state = big.state(&site, &jobs);
        assert!(!state[3].candidate && state[2].candidate);
        assert!(state.iter().all(|s| s.present.len() == 8));
        let mut planner = Planner::new(site.cluster.clone());
        match planner.plan(&state, &big.request, 0) {
            Err(Wait::Capacity {
                feasible_nodes: 0,
                needed_nodes: 4,
                needed_gpus: 32,
                ..
            }) => {}
            other => panic!("{release}: {other:?}"),
        }
    }
}

#[test]
fn a_topology_file_is_preferred_to_what_slurmctld_shows() {
    let machine = machine("24.11.5").file(
        "/srv/lab/topology.conf",
        "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[2-4],n77\n",
    );
    let site = Site::read(&machine, None).unwrap();
    assert_eq!(site.cluster.fabric.levels[0].domains, ["a", "b"]);
    assert_eq!(site.topology_strangers, ["n77"], "told by gpuos doctor");
}

#[test]
fn unreadable_or_wrong_files_are_told() {
    // A login node without slurm.conf: still enough to show something.
    let mut bare = machine("24.11.5");
    bare.files.clear();
    let site = Site::read(&bare, None).unwrap();
    assert_eq!(site.notes.len(), 1, "{:?}", site.notes);
    assert!(site.notes[0].contains("slurm.conf"));
    assert_eq!(site.cluster.nodes.len(), 4);

    let broken = machine("24.11.5").file("/srv/lab/gpuos.toml", "[policy]\nplacment = \"pack\"\n");
    let error = Site::read(&broken, None).unwrap_err().to_string();
    assert!(error.starts_with("/srv/lab/gpuos.toml:2:"), "{error}");

    let named = std::path::Path::new("/nowhere/gpuos.toml");
    let error = Site::read(&bare, Some(named)).unwrap_err().to_string();
    assert!(error.contains("/nowhere/gpuos.toml"), "{error}");

    let none = Recorded::default();
    let error = Site::read(&none, None).unwrap_err().to_string();
    assert!(error.contains("scontrol is not on PATH"), "{error}");
}

#[test]
fn options_are_found_in_command_lines_and_scripts() {
    let words = "sbatch -N2 --gpuos-topology=leaf:required --gpuos-placement pack x.sh";
    let options = gpuos_host::slurm::site::options_in_words(words.split(' '));
    let wish = options.topology.unwrap();
    assert_eq!((wish.level.as_str(), wish.required), ("leaf", true));
    assert_eq!(options.placement, Some(Placement::Pack));
    let script =
        "#!/bin/sh\n#SBATCH -N2 --gpuos-topology=node # near\n\nsrun x\n#SBATCH --gpuos=off\n";
    let options = gpuos_host::slurm::site::options_in_script(script);
    assert_eq!(options.topology.unwrap().level, "node");
    assert!(!options.off, "lines after the first command do not count");
}

#[test]
fn features_match_as_in_slurm() {
    let have = ["fast".to_string(), "ib".to_string()];
    for (expression, want) in [
        ("", Some(true)),
        ("fast", Some(true)),
        ("fast&ib", Some(true)),
        ("fast&slow", Some(false)),
        ("slow|ib", Some(true)),
        ("slow", Some(false)),
        ("[rack1|rack2]", None),
        ("fast*2", None),
    ] {
        assert_eq!(
            gpuos_host::slurm::site::feature_match(expression, &have),
            want,
            "{expression}"
        );
    }
}

/// pair runs on n1, gang on n1 and n2 for half an hour less, excl on n3; nothing on n4.
#[test]
fn running_jobs_count_on_their_nodes() {
    let machine = machine("24.11.5");
    let site = Site::read(&machine, None).unwrap();
    let jobs = gpuos_host::slurm::jobs(&machine).unwrap();
    let waits = job("24.11.5", "big");
    let mut wanted = JobRequest::of_job(&waits, &JobOptions::default(), &site).unwrap();
    let mut by = |placement, of: fn(&NodeState) -> u32| -> Vec<u32> {
        wanted.request.placement = placement;
        wanted.state(&site, &jobs).iter().map(of).collect()
    };
    let near = |state: &NodeState| u32::from(state.affinity);
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    assert_eq!(
        by(Placement::Affinity(names(&["gang"])), near),
        [1, 1, 0, 0]
    );
    assert_eq!(
        by(Placement::AntiAffinity(names(&["pair", "2", "excl"])), near),
        [2, 1, 1, 0]
    );
    assert_eq!(
        by(Placement::Affinity(names(&["big", "nobody"])), near),
        [0; 4]
    );
    assert_eq!(by(Placement::Pack, |state| state.until), [0; 4]);
    let ends = by(Placement::Backfill, |state| state.until);
    let (half_hour, last) = (quarters(1800), ends[0]);
    assert_eq!(ends[1], last - half_hour);
    assert!(ends[2] < ends[1] && ends[2] > 0 && ends[3] == 0, "{ends:?}");
}

/// The captured cluster, with the record of one job as it is printed for it alone, times as seconds: this end, and when it is preempted.
fn alone(release: &str, id: u32, end: &str, preempted: &str) -> Recorded {
    let jobs = captured(release, "jobs");
    let start = jobs.find(&format!("JobId={id} ")).unwrap();
    let record = &jobs[start..];
    let record = &record[..record.find("\n\n").unwrap_or(record.len())];
    let line = |line: &str| match line.trim_start().split_once('=') {
        Some(("StartTime", _)) => format!("   StartTime=1763672799 EndTime={end} Deadline=N/A"),
        Some(("SuspendTime", _)) if !preempted.is_empty() => {
            format!("   PreemptEligibleTime=1763672799 PreemptTime={preempted}\n{line}")
        }
        _ => line.to_string(),
    };
    let record: Vec<String> = record.lines().map(line).collect();
    let record = record.join("\n") + "\n\n";
    let command = format!("scontrol -d show job {id}");
    machine(release).command(&command, &record)
}

#[test]
fn the_end_of_a_job_that_runs_is_a_time_from_now() {
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    for release in RELEASES {
        let jobs = Job::parse_all(&captured(release, "jobs"));
        let mut plain = jobs.iter().filter(|job| job.array_tasks.is_empty());
        let runs = plain.clone().find(|job| job.state == "RUNNING").unwrap().id;
        let waits = plain.find(|job| job.is_pending()).unwrap().id;
        let ends = |id: u32, end: &str, preempted: &str| {
            let machine = alone(release, id, end, preempted);
            let slurm = Slurm::new(Arc::new(machine), "n1");
            let job = slurm.job(&id.into()).unwrap().unwrap();
            assert_eq!(job.unreadable, "", "{release}");
            assert_eq!(job.preempted, preempted.starts_with('1') && id == runs);
            job.ends_in_s
        };
        let later = ends(runs, &(now + 5000).to_string(), "").unwrap();
        assert!((4000..=5000).contains(&later), "{release}: {later}");
        assert_eq!(ends(runs, "1763672800", ""), Some(0), "{release}: over");
        assert_eq!(ends(runs, "Unknown", ""), None, "{release}: no limit");
        assert_eq!(ends(runs, "Unknown", "None"), None, "{release}");
        assert_eq!(ends(waits, "Unknown", "1763672900"), None, "{release}");
        // Slurm shows no end of a job without a limit, also when it is about to be preempted.
        assert_eq!(ends(runs, "Unknown", "1763672900"), Some(0), "{release}");
        assert_eq!(
            ends(waits, &(now + 5000).to_string(), ""),
            None,
            "{release}"
        );
    }
}
