//! Where waiting jobs go.

use std::collections::{HashMap, HashSet};

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::hook::vnodes::parse_exec_vnode;
use gpuos_pbs::pass::{Plan, plan};
use gpuos_pbs::state::{Site, Texts};
use gpuos_pbs::units::kib;
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use proptest::prelude::*;

use crate::state::site;
use crate::world::{Form, Running, Waits, World};

/// The plan of a site.
fn planned(site: &Site) -> Plan {
    plan(
        site,
        &mut Planner::new(site.cluster.clone()),
        Bounds::default(),
        &HashSet::new(),
    )
}

/// The plan of a site, held against an account of its own: no vnode twice, nothing that is not there, each job what it asked for.
pub fn checked(site: &Site) -> Plan {
    let plan = planned(site);
    let mut owner: HashMap<String, &str> = HashMap::new();
    for start in &plan.starts {
        let job = site.jobs.iter().find(|job| job.id == start.job).unwrap();
        assert!(job.state == "Q" && job.unreadable.is_empty(), "{start:?}");
        let chunks = parse_exec_vnode(&start.exec_vnode).unwrap();
        let select = gpuos_pbs::hook::select::Select::parse(&job.select).unwrap();
        assert_eq!(
            chunks.len() as u32,
            select.0[0].count.unwrap_or(1),
            "{start:?}"
        );
        for chunk in &chunks {
            let sum = |name: &str| chunk.iter().map(|given| given.count(name)).sum::<u64>();
            let asked = |name: &str| {
                select.0[0]
                    .values(name)
                    .next()
                    .map_or(0, |n| n.parse().unwrap_or(0))
            };
            assert_eq!(sum("ngpus"), asked("ngpus"), "{start:?}");
            assert_eq!(sum("ncpus"), asked("ncpus"), "{start:?}");
            let mut hosts: Vec<_> = chunk
                .iter()
                .map(|given| site.nodes.host_of(site.nodes.vnode(&given.vnode).unwrap()))
                .collect();
            hosts.dedup();
            assert_eq!(hosts.len(), 1, "a chunk is on one host: {start:?}");
        }
        for given in chunks.iter().flatten() {
            let at = site.nodes.vnode(&given.vnode).unwrap();
            let vnode = &site.nodes.vnodes[at];
            assert!(vnode.up && !vnode.is_full(&start.job), "{start:?}");
            assert!(given.count("ncpus") <= vnode.cpus.all, "{start:?}");
            let memory = given.resources.iter().find(|(name, _)| name == "mem");
            let memory = memory.map_or(0, |(_, size)| kib(size).unwrap());
            assert!(memory <= vnode.memory_kib.all, "{start:?}");
            let before = owner.insert(given.vnode.clone(), &start.job);
            assert!(
                before.is_none_or(|other| other == start.job),
                "{}",
                given.vnode
            );
        }
    }
    plan
}

/// A cluster of 2 leaves with 2 hosts of 4 GPUs each, and these jobs.
fn small(waiting: Vec<Waits>) -> World {
    let mut world = World::random(1, 4, 0, 0);
    for (at, host) in world.hosts.iter_mut().enumerate() {
        (host.gpus, host.island, host.out, host.down) = (4, 4, 0, false);
        host.leaf = format!("l{}", at / 2);
    }
    world.waiting = waiting;
    world
}

fn waits(id: u32, chunks: u32, gpus: u32) -> Waits {
    Waits {
        id,
        chunks,
        gpus,
        cpus: gpus,
        mib: 0,
        form: Form::Scatter,
        topology: None,
        placement: None,
        limit: None,
        name: "a".into(),
    }
}

fn on(id: u32, host: usize, gpus: u64, limit: u32) -> Running {
    Running {
        id,
        on: vec![(host, gpus)],
        cpus: 1,
        limit,
        ran: 0,
    }
}

fn of(world: &World) -> Plan {
    checked(&site(&world.vnodes(), &world.jobs()))
}

#[test]
fn a_gang_starts_on_exactly_these_vnodes_of_one_leaf() {
    let mut gang = waits(9, 2, 4);
    gang.topology = Some("leaf:required".into());
    (gang.cpus, gang.mib) = (6, 10);
    let mut world = small(vec![gang]);
    world.running.push(on(1, 0, 1, 3600));
    let plan = of(&world);
    let chunk = |host: &str| {
        let part = |gpu, cpus| format!("{host}[{gpu}]:ncpus={cpus}:mem=2560kb:ngpus=1");
        format!(
            "({}+{}+{}+{})",
            part(0, 2),
            part(1, 2),
            part(2, 1),
            part(3, 1)
        )
    };
    assert_eq!(plan.starts.len(), 1, "{plan:?}");
    assert_eq!(
        plan.starts[0].exec_vnode,
        format!("{}+{}", chunk("n2"), chunk("n3"))
    );
    assert!(
        plan.starts[0].sentence.contains("l1"),
        "{:?}",
        plan.starts[0].sentence
    );
}

#[test]
fn a_gang_that_is_next_keeps_its_leaf_from_jobs_that_last_longer() {
    let mut gang = waits(1000, 2, 4);
    gang.topology = Some("leaf:required".into());
    let later = |id, limit| Waits {
        limit,
        ..waits(id, 1, 4)
    };
    let mut world = small(vec![
        gang,
        later(1001, None),
        later(1002, Some(600)),
        later(1003, None),
    ]);
    // The first leaf is free in an hour, the second in ten.
    world.running = vec![on(1, 0, 1, 3600), on(2, 2, 1, 36_000)];
    let plan = of(&world);
    assert_eq!(plan.keeps.len(), 1);
    assert_eq!(
        (plan.keeps[0].job.as_str(), plan.keeps[0].starts_in),
        ("1000.head", 3600)
    );
    let first: Vec<String> = (0..2)
        .flat_map(|host| (0..4).map(move |gpu| format!("n{host}[{gpu}]")))
        .collect();
    assert_eq!(plan.keeps[0].vnodes, first);
    let starts: Vec<_> = plan
        .starts
        .iter()
        .map(|start| (&start.job[..], &start.exec_vnode[1..3]))
        .collect();
    // Who ends before takes the kept host, who may not end takes the other one, and the last waits.
    assert_eq!(starts, [("1001.head", "n3"), ("1002.head", "n1")]);
    assert_eq!(plan.waits.len(), 2);
}

#[test]
fn a_group_is_required_unless_its_wish_is_only_preferred() {
    let mut world = small(vec![waits(1000, 3, 4)]);
    let starts = |world: &World, place: &str| {
        let jobs = world.jobs().replace("\"place\":\"scatter\"", place);
        let plan = checked(&site(&world.vnodes(), &jobs));
        assert!(plan.left.is_empty(), "{plan:?}");
        plan.starts.len()
    };
    let group = "\"place\":\"scatter:group=gpuos_leaf\"";
    assert_eq!(starts(&world, group), 0);
    world.waiting[0].topology = Some("leaf".into());
    assert_eq!(starts(&world, group), 1);
    world.waiting[0].topology = Some("leaf:required".into());
    assert_eq!(starts(&world, group), 0);
}

#[test]
fn a_queue_with_a_higher_priority_comes_first() {
    let mut world = small(vec![waits(1000, 4, 4), waits(1001, 4, 4)]);
    world.running.clear();
    let jobs = world.jobs();
    let (first, second) = jobs.split_at(jobs.find("1001.head").unwrap());
    let jobs = format!(
        "{first}{}",
        second.replacen("\"queue\":\"workq\"", "\"queue\":\"express\"", 1)
    );
    let plan = checked(&site(&world.vnodes(), &jobs));
    assert_eq!(plan.starts[0].job, "1001.head");
    assert_eq!(plan.waits[0].job, "1000.head");
}

#[test]
fn what_is_not_understood_is_left_to_pbs_sched_with_the_reason() {
    let world = small(vec![waits(1000, 1, 1)]);
    let says = |from: &str, to: &str| {
        let jobs = world.jobs();
        assert!(jobs.contains(from), "{from}");
        let plan = checked(&site(&world.vnodes(), &jobs.replace(from, to)));
        assert!(plan.starts.is_empty(), "{to}");
        plan.left
            .iter()
            .map(|left| left.why.clone())
            .collect::<Vec<_>>()
            .join("; ")
    };
    let place = "\"place\":\"scatter\"";
    for (to, why) in [
        ("\"place\":\"vscatter\"", "place=vscatter"),
        ("\"place\":\"exclhost\"", "place=exclhost"),
        ("\"place\":\"group=rack\"", "place=group=rack"),
        (
            "\"place\":\"free\",\"gpuos_mig\":\"1g.10gb\"",
            "it asks for a part of a GPU",
        ),
        (
            "\"place\":\"free\",\"scratch\":\"5\"",
            "it asks for scratch beside its select",
        ),
    ] {
        assert_eq!(says(place, to), why);
    }
    let select = "\"schedselect\":\"1:ngpus=1:ncpus=1\"";
    for (to, why) in [
        ("1:ngpus=1+1:ncpus=1", "its chunks are of several kinds"),
        ("1:ngpus=1:host=n1", "its select has host=n1"),
        ("1:ngpus=1:licenses=3", "its select has licenses=3"),
        ("1:ngpus=1:licenses=.5", "its select has licenses=.5"),
        ("1:ngpus=1:rate=-1e3", "its select has rate=-1e3"),
        ("1:ngpus=1:aoe=rhel9", "its select has aoe=rhel9"),
        ("1:ngpus=1:eoe=low", "its select has eoe=low"),
    ] {
        assert_eq!(says(select, &format!("\"schedselect\":\"{to}\"")), why);
    }
    let more = "\"Priority\":0";
    assert_eq!(says(more, "\"array\":\"True\""), "it is an array");
    assert_eq!(
        says(more, "\"exec_vnode\":\"(n1[0]:ngpus=1)\""),
        "it goes on where it was"
    );
    assert_eq!(
        says(more, "\"reserve_ID\":\"R12.head\""),
        "it is of reservation R12.head"
    );
    assert!(says("\"queue\":\"workq\"", "\"queue\":\"limited\"").contains("max_run"));
    assert_eq!(says("\"job_state\":\"Q\"", "\"job_state\":\"H\""), "");
}

#[test]
fn what_was_added_for_gpus_is_memory_of_the_chunk_and_nothing_else() {
    let world = small(vec![waits(1000, 1, 1)]);
    let jobs = world.jobs();
    let with = |memory: &str| {
        let select = format!("\"schedselect\":\"1:ngpus=1:ncpus=1{memory}\"");
        let jobs = jobs.replace("\"schedselect\":\"1:ngpus=1:ncpus=1\"", &select);
        let asked = "\"place\":\"scatter\",\"gpuos_mem\":\"120G\"";
        checked(&site(
            &world.vnodes(),
            &jobs.replace("\"place\":\"scatter\"", asked),
        ))
    };
    let plan = with(":mem=1mb:gpuos_mem_beyond=512kb");
    assert_eq!((plan.starts.len(), plan.left.len()), (1, 0), "{plan:?}");
    let plan = with(":mem=999999gb:gpuos_mem_beyond=999998gb");
    assert!(plan.starts.is_empty(), "{plan:?}");
}

#[test]
fn vnodes_that_jobs_share_are_given_away_by_pbs_alone() {
    let world = small(vec![waits(1000, 1, 1)]);
    let vnodes = world.vnodes().replace("force_excl", "default_shared");
    let plan = checked(&site(&vnodes, &world.jobs()));
    assert!(plan.starts.is_empty());
    assert!(plan.left[0].why.contains("sharing=force_excl"), "{plan:?}");
}

#[test]
fn a_gpu_whose_vnode_a_job_without_gpus_has_is_not_free() {
    let world = small(vec![waits(1000, 1, 1)]);
    let taken = "\"resources_assigned\":{\n                \"ncpus\":1";
    let vnodes = world.vnodes().replace("\"resources_assigned\":{", taken);
    let plan = checked(&site(&vnodes, &world.jobs()));
    assert!(plan.starts.is_empty(), "{plan:?}");
    assert_eq!(plan.waits.len(), 1);
}

#[test]
fn only_what_has_its_vnodes_gives_them_back() {
    let mut world = small(vec![waits(1000, 4, 4)]);
    world.running = vec![on(1, 0, 1, 3600)];
    let starts_in = |jobs: &str| {
        let plan = checked(&site(&world.vnodes(), jobs));
        plan.keeps[0].starts_in
    };
    let jobs = world.jobs();
    assert_eq!(starts_in(&jobs), 3600);
    // What is taken and in no listed job, as that of a task of an array, comes back at a time that nobody knows.
    let gone = jobs.replace("\"1.head\"", "\"1[].head\"");
    let gone = gone.replace("exec_vnode", "exec_host");
    assert_eq!(starts_in(&gone), gpuos_placement::queue::ENDLESS);
    // A job that is held keeps only the text.
    let running = "\"job_state\":\"R\"";
    let held = jobs.replace(running, "\"job_state\":\"H\"");
    assert_eq!(starts_in(&held), gpuos_placement::queue::ENDLESS);
    world.running.clear();
    let free = checked(&site(&world.vnodes(), &held));
    assert_eq!(free.starts.len(), 1, "{free:?}");
}

#[test]
fn a_job_that_pbs_refused_lately_has_no_vnodes_in_the_plan() {
    let world = small(vec![waits(1000, 4, 4), waits(1001, 1, 1)]);
    let site = site(&world.vnodes(), &world.jobs());
    let mut planner = Planner::new(site.cluster.clone());
    let refused = HashSet::from(["1000.head".to_owned()]);
    let plan = plan(&site, &mut planner, Bounds::default(), &refused);
    let starts: Vec<_> = plan.starts.iter().map(|start| &start.job[..]).collect();
    assert_eq!(starts, ["1001.head"]);
    assert_eq!(plan.left[0].why, "PBS refused to run it lately");
    assert!(plan.keeps.is_empty());
}

#[test]
fn vnodes_that_a_refused_start_has_left_are_free_for_that_job_alone() {
    let mut world = small(vec![waits(1001, 4, 4)]);
    world.running = vec![on(1, 2, 6, 3600)];
    let vnodes = world.vnodes().replace("\"1.head/0\"", "\"1001.head/0\"");
    let nothing = "\"resources_assigned\":{\n                \"mem\":\"0kb\",\n                \"ncpus\":1,\n                \"ngpus\":1";
    assert!(vnodes.contains(nothing));
    let vnodes = vnodes.replace(nothing, "\"resources_assigned\":{");
    world.running.clear();
    let plan = checked(&site(&vnodes, &world.jobs()));
    assert_eq!(plan.starts.len(), 1, "{plan:?}");
    assert_eq!(plan.starts[0].job, "1001.head");
    assert!(plan.starts[0].exec_vnode.contains("n2[1]"), "{plan:?}");
    world.waiting[0].id = 1002;
    let plan = checked(&site(&vnodes, &world.jobs()));
    assert_eq!((plan.starts.len(), plan.waits.len()), (0, 1), "{plan:?}");
}

#[test]
fn a_vnode_of_several_gpus_that_an_earlier_job_has_is_waited_for() {
    let vnodes = r#"{"nodes":{"big":{"state":"free","sharing":"force_excl","resources_available":{"ncpus":64,"ngpus":8},
        "resources_assigned":{}}}}"#;
    let world = small(vec![waits(1000, 1, 2), waits(1001, 1, 2)]);
    let plan = checked(&site(vnodes, &world.jobs()));
    assert_eq!(plan.starts.len(), 1, "{plan:?}");
    assert!(plan.left.is_empty(), "{plan:?}");
    assert!(
        plan.waits[0].why.contains("jobs before it in this pass"),
        "{plan:?}"
    );
}

#[test]
fn resources_of_vnodes_and_queues_choose_among_them() {
    let world = small(vec![waits(1000, 1, 1)]);
    let jobs = world
        .jobs()
        .replace("1:ngpus=1:ncpus=1", "1:ngpus=1:ncpus=1:gpuos_leaf=l1");
    let plan = checked(&site(&world.vnodes(), &jobs));
    assert!(plan.starts[0].exec_vnode.starts_with("(n2["), "{plan:?}");
    // The GPUs of n3 are another queue's.
    let own = (0..4).fold(world.vnodes(), |text, gpu| {
        let name = format!("\"n3[{gpu}]\":{{");
        text.replace(&name, &format!("{name}\"queue\":\"express\","))
    });
    let jobs = world
        .jobs()
        .replace("\"queue\":\"workq\"", "\"queue\":\"express\"");
    let plan = checked(&site(&own, &jobs));
    assert!(plan.starts[0].exec_vnode.starts_with("(n3["), "{plan:?}");
    let mut four = world.clone();
    four.waiting = vec![waits(1000, 4, 1)];
    assert!(checked(&site(&own, &four.jobs())).starts.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_vnode_twice_and_the_same_plan_again(seed in any::<u64>(), hosts in 1usize..12) {
        let world = World::random(seed, hosts, hosts, 24);
        let site = site(&world.vnodes(), &world.jobs());
        let first = checked(&site);
        prop_assert_eq!(&first, &planned(&site));
        prop_assert!(first.keeps.len() <= 1);
        let all = first.starts.len() + first.waits.len() + first.left.len();
        prop_assert_eq!(all, 24);
        // A planner that has planned before gives the same plan.
        let mut planner = Planner::new(site.cluster.clone());
        plan(&site, &mut planner, Bounds::default(), &HashSet::new());
        prop_assert_eq!(first, plan(&site, &mut planner, Bounds::default(), &HashSet::new()));
    }
}

#[test]
fn what_a_real_pbs_printed_is_planned() {
    let recorded = |what: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        std::fs::read_to_string(format!("{folder}/23.06.06-{what}.json")).unwrap()
    };
    let texts = ["vnodes", "jobs", "queues", "server"].map(recorded);
    let [vnodes, jobs, queues, server] = texts.each_ref().map(|text| &text[..]);
    let texts = Texts {
        vnodes,
        jobs,
        queues,
        server,
    };
    let site = Site::read(&texts, Config::default()).unwrap();
    assert_eq!(site.notes, Vec::<String>::new());
    assert_eq!((site.nodes.hosts.len(), site.nodes.hosts[0].gpus), (4, 8));
    let plan = checked(&site);
    let of = |stays: &[gpuos_pbs::pass::Stays]| {
        let all = stays
            .iter()
            .map(|stays| format!("{}: {}", stays.job, stays.why));
        all.collect::<Vec<_>>()
    };
    let left = [
        "7[].head: it is an array",
        "5.head: the vnodes of the GPUs that it could have lack CPUs or memory for it",
    ];
    assert_eq!(of(&plan.left), left);
    // One leaf has a job, and in the other one a GPU is offline: no leaf has two whole hosts.
    assert_eq!(plan.waits.len(), 1);
    assert_eq!(plan.waits[0].job, "4.head");
    let starts: Vec<_> = plan.starts.iter().map(|start| &start.job[..]).collect();
    assert_eq!(starts, ["9.head"]);
    for start in &plan.starts {
        assert!(!start.exec_vnode.contains("n3[1]"), "{start:?}");
    }
}
