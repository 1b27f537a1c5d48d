//! What would become of a job that is not submitted.

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::pass::what_if::{Asked, Outcome, Told, ask, ask_alone};
use gpuos_pbs::state::{Site, Texts};
use gpuos_placement::plan::{Planner, Wait};
use gpuos_placement::queue::ENDLESS;

/// The answers of a real PBS: four hosts of eight GPUs under two leaf switches, a GPU of the third is offline, job 3 has two GPUs of each host
/// of the first leaf, and jobs 4, which needs all GPUs of a leaf, 5 and 9 wait.
fn recorded() -> Site {
    let texts = Texts {
        vnodes: include_str!("../data/23.06.06-vnodes.json"),
        jobs: include_str!("../data/23.06.06-jobs.json"),
        queues: include_str!("../data/23.06.06-queues.json"),
        server: include_str!("../data/23.06.06-server.json"),
    };
    Site::read(&texts, Config::default()).unwrap()
}

fn asked(select: &str, more: &[(&str, &str)]) -> Asked {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Asked {
        select: select.into(),
        resources: more.iter().map(own).collect(),
        ..Asked::default()
    }
}

fn told(site: &Site, asked: &Asked) -> Result<Told, String> {
    ask(site, &mut Planner::new(site.cluster.clone()), asked)
}

fn alone(site: &Site, asked: &Asked) -> Told {
    ask_alone(site, &mut Planner::new(site.cluster.clone()), asked).unwrap()
}

fn vnodes(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Starts { start, .. } => &start.exec_vnode,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_server_and_its_queue_for_jobs_that_name_none_are_read() {
    let site = recorded();
    let server = &site.server;
    assert_eq!(
        (&server.name[..], &server.release[..]),
        ("head", "23.06.06")
    );
    assert_eq!(server.default_queue, "workq");
    let vnode = &site.nodes.vnodes[site.nodes.vnode("n1[0]").unwrap()];
    assert_eq!(
        (&vnode.state[..], &vnode.sharing[..]),
        ("free", "force_excl")
    );
}

#[test]
fn alone_it_gets_the_vnodes_that_the_planner_would_choose() {
    let site = recorded();
    let pair = alone(
        &site,
        &asked("1:ngpus=2:ncpus=1", &[("gpuos_topology", "nvlink")]),
    );
    let text = vnodes(&pair.outcome);
    let pairs = ["[0]", "[2]", "[4]", "[6]"]
        .iter()
        .any(|first| text.contains(first));
    assert!(pairs && text.matches("ngpus=1").count() == 2, "{text}");
    // Two vnodes of each of two hosts are job 3's, and one is offline.
    assert_eq!((pair.free_gpus, pair.free_hosts), (27, 4));
    let Outcome::Starts { choice, start } = &pair.outcome else {
        panic!("{pair:?}");
    };
    assert_eq!((choice.reached, choice.nodes.len()), (0, 1));
    assert!(!start.sentence.is_empty());
}

#[test]
fn jobs_that_wait_already_come_before_it() {
    let site = recorded();
    let most = asked("2:ngpus=7", &[("gpuos_topology", "leaf:required")]);
    assert!(vnodes(&alone(&site, &most).outcome).starts_with("(n3[0]"));
    // The other leaf is kept for job 4, and GPUs of this one are given to jobs 5 and 9.
    let Outcome::Waits {
        wait,
        why,
        kept_for,
        ..
    } = told(&site, &most).unwrap().outcome
    else {
        panic!("it starts beside the others");
    };
    assert!(
        matches!(wait, Some(Wait::Level { .. } | Wait::Capacity { .. })),
        "{wait:?}"
    );
    assert_eq!(kept_for, Some(3600));
    assert!(!why.contains("--gpuos") && !why.contains("Slurm"), "{why}");
}

#[test]
fn the_first_that_waits_is_told_when_it_can_start() {
    let mut site = recorded();
    site.jobs.retain(|job| job.state == "R");
    let all = Asked {
        place: "scatter".into(),
        ..asked("2:ngpus=8", &[])
    };
    let Outcome::Waits { starts_in, .. } = told(&site, &all).unwrap().outcome else {
        panic!("it starts");
    };
    // Job 3 has an hour.
    assert_eq!(starts_in, Some(3600));
    site.jobs[0].ends_in = None;
    let Outcome::Waits { starts_in, .. } = told(&site, &all).unwrap().outcome else {
        panic!("it starts");
    };
    assert_eq!(starts_in, Some(ENDLESS));
}

#[test]
fn what_the_hook_would_refuse_is_refused_with_its_sentence() {
    let site = recorded();
    let why = |asked: &Asked| told(&site, asked).unwrap_err();
    let level = why(&asked("1:ngpus=1", &[("gpuos_topology", "rack")]));
    assert!(level.contains("-l gpuos_topology=rack"), "{level}");
    assert!(level.contains("node, nvlink, leaf"), "{level}");
    let none = why(&asked("1:ncpus=1", &[]));
    assert!(none.contains("no GPUs"), "{none}");
    let limit = why(&asked("1:ngpus=1", &[("walltime", "soon")]));
    assert!(limit.contains("'soon' is no time limit"), "{limit}");
    let queue = why(&Asked {
        queue: "none".into(),
        ..asked("1:ngpus=1", &[])
    });
    assert_eq!(queue, "PBS has no queue none; name one of workq");
    let scattered = why(&Asked {
        place: "scatter".into(),
        ..asked("2:ngpus=1", &[("gpuos_topology", "node")])
    });
    assert!(scattered.contains("scatter"), "{scattered}");
}

#[test]
fn what_pbs_sched_alone_places_is_told() {
    let mut site = recorded();
    let mixed = told(&site, &asked("1:ngpus=1+1:ngpus=2", &[])).unwrap();
    let several = Outcome::Left("its chunks are of several kinds".into());
    assert_eq!(mixed.outcome, several);
    site.barred = "scheduling is off on the server".into();
    let barred = told(&site, &asked("1:ngpus=1", &[])).unwrap();
    let off = Outcome::Left("scheduling is off on the server".into());
    assert_eq!(barred.outcome, off);
}

#[test]
fn the_command_is_one_that_qsub_takes() {
    let job = Asked {
        place: "scatter".into(),
        queue: "express".into(),
        ..asked(
            "2:ngpus=1",
            &[
                ("gpuos_topology", "leaf"),
                ("gpuos_placement", "affinity:a,b"),
            ],
        )
    };
    assert_eq!(
        job.qsub(),
        "qsub -q express -l select=2:ngpus=1 -l place=scatter -l gpuos_topology=leaf -l 'gpuos_placement=\"affinity:a,b\"'"
    );
}

/// Slices of the last two GPUs of a host are given away: the host has eight all the same, as gpuos.toml says.
#[test]
fn a_divided_gpu_is_one_of_its_host_and_nobodys_as_a_whole() {
    let mut vnodes: serde_json::Value =
        serde_json::from_str(include_str!("../data/23.06.06-vnodes.json")).unwrap();
    for name in ["n4[6]", "n4[7]"] {
        let vnode = &mut vnodes["nodes"][name];
        vnode["sharing"] = "default_shared".into();
        let available = vnode["resources_available"].as_object_mut().unwrap();
        available.remove("ngpus");
        available.insert("gpuos_mig_memory".into(), 8.into());
    }
    let toml = "[[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";
    let config = Config::parse(toml, "gpuos.toml").unwrap();
    let texts = Texts {
        vnodes: &vnodes.to_string(),
        jobs: include_str!("../data/23.06.06-jobs.json"),
        queues: include_str!("../data/23.06.06-queues.json"),
        server: include_str!("../data/23.06.06-server.json"),
    };
    let site = Site::read(&texts, config).unwrap();
    assert_eq!(site.nodes.hosts[3].gpus, 8);
    let pair = alone(&site, &asked("1:ngpus=2:ncpus=1", &[]));
    // 27 without the two.
    assert_eq!((pair.free_gpus, pair.free_hosts), (25, 4));
    let whole = alone(&site, &asked("1:ngpus=8", &[]));
    assert!(
        !vnodes_or_why(&whole.outcome).contains("n4["),
        "{:?}",
        whole.outcome
    );
}

fn vnodes_or_why(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Starts { start, .. } => &start.exec_vnode,
        Outcome::Waits { why, .. } => why,
        Outcome::Left(why) => why,
    }
}
