//! The mix of jobs in `gpuos plan` and `gpuos why`: the same as in slurmctld.

use std::fs;

use gpuos_config::gpuos_toml::Config;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types::NodeFacts;
use gpuos_placement::frag::{Expected, Share};
use gpuos_placement::plan::{Criterion, GpuShape, NodeState, Planner, Request};
use gpuos_placement::record::{By, Outcome, Purpose, Sizes, Writer, path};

use crate::site::Site;

/// Small jobs, and ones that need half of a node's cores: where only one of these has room, a small one takes less away.
fn of_cores() -> Expected {
    let share = |cpus| Share {
        gpus: 1,
        cpus,
        memory_gib: 0,
        types: 0,
    };
    Expected {
        classes: vec![(share(8), 3), (share(1), 1)],
        nodes: vec![(16, 1000)],
    }
}

/// The recording of a slurmctld with so many nodes: the mix, if it has learned one, and a decision on
/// job 2, for which two nodes have two GPUs free, the second with fewer cores.
fn ring(nodes: u32, learned: Option<&Expected>) -> Vec<u8> {
    let node = |at: u32| NodeFacts {
        name: format!("n{}", at + 1),
        gpus: 8,
        gres_type: "h100".into(),
        ..NodeFacts::default()
    };
    let facts: Vec<NodeFacts> = (0..nodes).map(node).collect();
    let cluster = Config::default().cluster(&facts, None).unwrap();
    let mut planner = Planner::new(cluster.clone());
    let sizes = Sizes::new(64, nodes as usize);
    let mut memory = vec![0; sizes.total()];
    let mut writer = Writer::open(&mut memory, sizes, nodes as usize);
    writer.model(&mut memory, &cluster, None);
    if let Some(expected) = learned {
        planner.learn(expected.clone());
        planner.work(usize::MAX);
        writer.learned(&mut memory, expected);
    }
    let mut states = vec![NodeState::default(); nodes as usize];
    for (state, cpus) in states.iter_mut().zip([16, 8]) {
        *state = NodeState {
            candidate: true,
            present: GpuSet::first(8),
            free: GpuSet::first(2),
            free_cpus: cpus,
            free_memory_mib: u64::MAX,
            ..NodeState::default()
        };
    }
    let mut request = Request::new(1, 1, GpuShape::PerNode(1));
    request.cpus_per_node = 1;
    let choice = planner.plan(&states, &request, 0).unwrap().clone();
    assert_eq!(choice.decided == Criterion::Mix, learned.is_some());
    let at = 1_795_210_800;
    writer.states(&mut memory, &states);
    let why = Purpose::Start;
    writer.asked(
        &mut memory,
        2,
        why,
        (0, By::Order),
        &request,
        Ok(&choice),
        at,
    );
    writer.ended(&mut memory, 2, Outcome::Taken);
    memory
}

/// n2 and n4 have two free GPUs each, n4 with fewer cores.
fn site() -> Site {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site.edit(
        "nodes.txt",
        "GresUsed=gpu:h100:7(IDX:0-6)",
        "GresUsed=gpu:h100:6(IDX:0-5)",
    );
    site.edit(
        "nodes.txt",
        "GresUsed=gpu:h100:0(IDX:N/A)",
        "GresUsed=gpu:h100:6(IDX:0-5)",
    );
    site.edit("nodes.txt", "CPUAlloc=0 ", "CPUAlloc=8 ");
    site
}

const ONE: [&str; 3] = ["plan", "--gpus-per-node=1", "--json"];

#[test]
fn plan_and_why_choose_by_the_mix_that_slurmctld_recorded() {
    let site = site();
    let place = path(&site.path(""));
    let mut found = Vec::new();
    for learned in [None, Some(of_cores())] {
        fs::write(&place, ring(4, learned.as_ref())).unwrap();
        let (plan, text) = (site.run(&ONE).json(), site.run(&ONE[..2]).out);
        // It waits for a licence or its turn, and asks for one GPU.
        let why = site.run(&["why", "12", "--json"]).json();
        let runs = site.run(&["why", "2"]).out;
        found.push((plan, text, why["jobs"][0].clone(), runs));
    }
    // The recording of another cluster says nothing.
    fs::write(&place, ring(2, Some(&of_cores()))).unwrap();
    let other = site.run(&ONE).json();
    fs::remove_file(&place).unwrap();
    let node = |json: &serde_json::Value| json["place"]["nodes"][0]["node"].clone();

    let (plan, text, why, runs) = &found[0];
    assert_eq!((node(plan), node(why)), ("n2".into(), "n2".into()), "{why}");
    assert_eq!(plan["mix"]["source"], "even");
    assert!(text.contains("slurmctld has learned no mix yet"), "{text}");
    assert!(!runs.contains("mix of jobs"), "{runs}");

    let (plan, text, why, runs) = &found[1];
    assert_eq!((node(plan), node(why)), ("n4".into(), "n4".into()), "{why}");
    assert_eq!(plan["mix"], why["mix"]);
    assert_eq!(plan["mix"]["source"], "slurmctld");
    assert_eq!(
        plan["mix"]["sizes"],
        serde_json::json!([{ "gpus": 1, "percent": 100 }])
    );
    assert!(
        text.contains("compared by the mix that slurmctld has learned: 100 % 1 GPU.\n"),
        "{text}"
    );
    let first = runs.lines().next().unwrap();
    assert!(
        first.contains("the one that the mix of jobs (100 % 1 GPU) will miss least."),
        "{runs}"
    );
    assert_eq!(other["mix"]["source"], "jobs");
}

#[test]
fn room_that_is_made_is_valued_by_the_same_mix() {
    let site = crate::defrag::site();
    let place = path(&site.path(""));
    let mut found = Vec::new();
    for learned in [None, Some(of_cores())] {
        fs::write(&place, ring(4, learned.as_ref())).unwrap();
        let ask = [&crate::defrag::ASK[..], &["--json"]].concat();
        let text = site.run(&crate::defrag::ASK).out;
        found.push((site.run(&ask).json(), site.run(&ONE).json(), text));
    }
    fs::remove_file(&place).unwrap();
    for (defrag, plan, text) in &found {
        assert_eq!(defrag["mix"], plan["mix"]);
        assert_eq!(defrag["place"]["nodes"][0]["node"], "n2", "{defrag}");
        assert!(text.contains("Nodes are compared "), "{text}");
    }
    assert_eq!(found[1].0["mix"]["source"], "slurmctld");
    let lost = |at: usize| found[at].0["place"]["usability_lost_gpus"].as_f64();
    assert!(lost(0).is_some() && lost(0) != lost(1), "{found:?}");
}

#[test]
fn without_a_recording_the_jobs_that_run_and_wait_make_the_mix() {
    let site = site();
    let known = site.run(&ONE).json();
    assert_eq!(known["mix"]["source"], "jobs", "{known}");
    let jobs = known["mix"]["jobs"].as_u64().unwrap();
    let text = site.run(&ONE[..2]).out;
    assert!(
        text.contains(&format!("the mix of the {jobs} jobs with GPUs")),
        "{text}"
    );
    let percent = |size: &serde_json::Value| size["percent"].as_u64().unwrap();
    let sizes = known["mix"]["sizes"].as_array().unwrap();
    let all: u64 = sizes.iter().map(percent).sum();
    assert!((98..=102).contains(&all), "{known}");
    // Jobs of eight GPUs count by their GPUs: one waits for four nodes.
    assert_eq!(sizes[0]["gpus"], 8, "{known}");

    // Too few to conclude anything from.
    let text = fs::read_to_string(site.dir.path().join("jobs.txt")).unwrap();
    let few: Vec<&str> = text.split("\n\n").take(3).collect();
    site.file("jobs.txt", &(few.join("\n\n") + "\n\n"));
    let few = site.run(&ONE).json();
    assert_eq!(few["mix"]["source"], "even", "{few}");
    let text = site.run(&ONE[..2]).out;
    assert!(text.contains("all sizes of jobs equally likely"), "{text}");
    // Nothing is said where no mix matters.
    let other = site.run(&["plan", "--gpus-per-node=1", "--placement=best-fit"]);
    assert!(!other.out.contains("equally likely"), "{}", other.out);
}
