//! What would become of a job that is not submitted.

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::pass::what_if::{Asked, Outcome, Told, ask, ask_alone};
use gpuos_pbs::state::nodes::Count;
use gpuos_pbs::state::{Site, Texts, scope};
use gpuos_placement::plan::{Planner, Wait};
use gpuos_placement::queue::ENDLESS;

/// The answers of a real PBS: four hosts of eight GPUs under two leaf switches, a GPU of the third is out of service, job 3 has two GPUs of each host
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
    let vnode = &site.nodes.vnodes[site.nodes.vnode("n1").unwrap()];
    assert_eq!(
        (&vnode.state[..], &vnode.sharing[..]),
        ("free", "default_shared")
    );
}

#[test]
fn alone_it_gets_the_vnodes_that_the_planner_would_choose() {
    let site = recorded();
    let pair = alone(
        &site,
        &asked("1:ngpus=2:ncpus=1", &[("gpuos_topology", "nvlink")]),
    );
    assert!(vnodes(&pair.outcome).ends_with(":ncpus=1:ngpus=2)"));
    // Two GPUs of each of two hosts are job 3's, and one is out of service.
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
    assert!(vnodes(&alone(&site, &most).outcome).starts_with("(n3:"));
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
fn a_job_without_gpus_is_pbs_scheds_and_it_is_told_where_there_is_room() {
    let site = recorded();
    let room = |select: &str| match told(&site, &asked(select, &[])).unwrap().outcome {
        Outcome::WithoutGpus { room, .. } => room.map(|hosts| hosts.join(" ")),
        other => panic!("{other:?}"),
    };
    // Job 3 has two CPUs and 1 GiB of n1 and of n2.
    assert_eq!(room("1:ncpus=16").as_deref(), Some("n3 n4"));
    assert_eq!(room("4:ncpus=14:mem=7gb").as_deref(), Some("n1 n2 n3 n4"));
    assert_eq!(room("5:ncpus=14"), None);
    assert_eq!(room("1:ncpus=1:host=n2").as_deref(), Some("n2"));
}

/// Two hosts with GPUs that are divided: n1 has more memory slices left than n2, and on each GPU fewer.
#[test]
fn where_slices_have_room_is_told_by_what_hosts_count_and_show() {
    let mut site = recorded();
    let toml = r#"
        [[mig.board]]
        name = "a30"
        profiles = [
          { id = 14, name = "1g.6gb", compute = 1, memory-mib = 6000, most = 4, size = 1, starts = [0, 1, 2, 3] },
          { id = 5, name = "2g.12gb", compute = 2, memory-mib = 12000, most = 2, size = 2, starts = [0, 2] },
          { id = 0, name = "4g.24gb", compute = 4, memory-mib = 24000, most = 1, size = 4, starts = [0] },
        ]"#;
    site.config = Config::parse(toml, "gpuos.toml").expect("a gpuos.toml");
    for (host, used, fits) in [("n1", 4, "1"), ("n2", 5, "2")] {
        let at = site.nodes.vnode(host).expect("it is there");
        let vnode = &mut site.nodes.vnodes[at];
        let slices = Count { all: 8, used };
        (vnode.parts[0], vnode.parts[1]) = (slices, slices);
        let shown = [("gpuos_mig_fits", fits), ("gpuos_mig_board", "a30")];
        let shown = shown.map(|(name, value)| (name.to_owned(), value.to_owned()));
        vnode.available.extend(shown);
    }
    let room = |select: &str, slices: &str| {
        let asked = asked(select, &[("gpuos_mig", slices)]);
        match told(&site, &asked).expect("it is taken").outcome {
            Outcome::WithoutGpus { why, room } => {
                assert_eq!(why, "it has parts of GPUs");
                room.map(|hosts| hosts.join(" "))
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(room("1:ncpus=1", "1g.6gb").as_deref(), Some("n1 n2"));
    assert_eq!(room("1:ncpus=1", "2g.12gb").as_deref(), Some("n2"));
    assert_eq!(room("2:ncpus=1", "2g.12gb"), None);
    assert_eq!(room("1:ncpus=1:host=n1", "2g.12gb"), None);
    assert_eq!(room("1:ncpus=1", "1g.6gb:4").as_deref(), Some("n1"));
    assert_eq!(room("1:ncpus=99", "1g.6gb"), None);
    let none = told(&site, &asked("1:ncpus=1", &[("gpuos_mig", "7g.80gb")])).unwrap_err();
    assert!(none.contains("1g.6gb"), "{none}");
}

#[test]
fn what_no_host_could_ever_have_is_named() {
    let mut site = recorded();
    let has = |site: &mut Site, at: usize, name: &str, value: &str| {
        let available = &mut site.nodes.vnodes[at].available;
        available.push((name.to_owned(), value.to_owned()));
    };
    has(&mut site, 0, "gmodel", "h100");
    has(&mut site, 1, "gmodel", "a100");
    has(&mut site, 1, "ib", "True");
    let never = |select: &str| told(&site, &asked(select, &[])).unwrap().never;
    for (select, wanted) in [
        ("1:ngpus=8:gmodel=h100", ""),
        ("1:ngpus=1:gmodel=b200", "no vnode has gmodel=b200"),
        (
            "1:ngpus=9",
            "a chunk has ngpus=9, and no host has more than 8",
        ),
        (
            "1:ngpus=1:ncpus=17:ib=true",
            "a chunk has ncpus=17, and no host with ib=true has more than 16",
        ),
        (
            "1:ngpus=1:gmodel=h100:ib=true",
            "a chunk has ngpus=1, and no host with gmodel=h100, ib=true has more than 0",
        ),
        (
            "1:ncpus=1:mem=9gb",
            "a chunk has mem=9437184kb, and no host has more than 8388608kb",
        ),
    ] {
        assert_eq!(never(select), wanted, "{select}");
    }
    let scope = |select: &str| {
        let job = asked(select, &[]).job(&site).unwrap();
        scope::scope(&job, &site).unwrap()
    };
    assert_eq!(scope("1:ngpus=8:ncpus=1"), None);
    let one = "n1 can have gmodel=h100:ngpus=2";
    assert_eq!(scope("1:ngpus=2:gmodel=h100").as_deref(), Some(one));
    // A queue with vnodes of its own.
    site.nodes.vnodes[3].queue = "big".into();
    let told = told(&site, &asked("1:ngpus=1:host=n4", &[])).unwrap();
    assert_eq!(told.never, "vnodes of queue big alone have host=n4");
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

/// The last two GPUs of a host are divided: it has eight all the same, as gpuos.toml says.
#[test]
fn a_divided_gpu_is_one_of_its_host_and_nobodys_as_a_whole() {
    let mut vnodes: serde_json::Value =
        serde_json::from_str(include_str!("../data/23.06.06-vnodes.json")).unwrap();
    let available = &mut vnodes["nodes"]["n4"]["resources_available"];
    available["gpuos_host"] = "whole=0-5;free=0-5;out=-".into();
    available["ngpus"] = 6.into();
    available["gpuos_mig_memory"] = 16.into();
    let toml = "[[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";
    let config = Config::parse(toml, "gpuos.toml").unwrap();
    let texts = Texts {
        vnodes: &vnodes.to_string(),
        jobs: include_str!("../data/23.06.06-jobs.json"),
        queues: include_str!("../data/23.06.06-queues.json"),
        server: include_str!("../data/23.06.06-server.json"),
    };
    let site = Site::read(&texts, config).unwrap();
    assert_eq!(site.cluster.nodes[3].node_type.as_ref().unwrap().gpus, 8);
    let pair = alone(&site, &asked("1:ngpus=2:ncpus=1", &[]));
    // 27 without the two.
    assert_eq!((pair.free_gpus, pair.free_hosts), (25, 4));
    let whole = alone(&site, &asked("1:ngpus=8", &[]));
    assert!(
        !vnodes_or_why(&whole.outcome).contains("n4"),
        "{:?}",
        whole.outcome
    );
}

fn vnodes_or_why(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Starts { start, .. } => &start.exec_vnode,
        Outcome::Waits { why, .. } => why,
        Outcome::Left(why) => why,
        Outcome::WithoutGpus { .. } => "",
    }
}
