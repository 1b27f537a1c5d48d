//! Where waiting jobs go.

use std::collections::{HashMap, HashSet};

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::hook::vnodes::{Given, parse_exec_vnode};
use gpuos_pbs::pass::{Plan, plan};
use gpuos_pbs::state::{Site, Texts};
use gpuos_pbs::units::kib;
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use proptest::prelude::*;

use crate::state::site;
use crate::world::{Dice, Form, Running, Waits, World};

/// The plan of a site.
fn planned(site: &Site) -> Plan {
    plan(
        site,
        &mut Planner::new(site.cluster.clone()),
        Bounds::default(),
        &HashSet::new(),
    )
}

/// The plan of a site, held against an account of its own: no more of a vnode than is left, each job exactly what it asked for, on vnodes that have
/// what it needs, and nobody beside who wants to be alone.
pub fn checked(site: &Site) -> Plan {
    let plan = planned(site);
    let mut given: HashMap<String, [u64; 3]> = HashMap::new();
    let mut users: HashMap<String, Vec<(&str, bool)>> = HashMap::new();
    for start in &plan.starts {
        let job = site.jobs.iter().find(|job| job.id == start.job).unwrap();
        assert!(job.state == "Q" && job.unreadable.is_empty(), "{start:?}");
        let chunks = parse_exec_vnode(&start.exec_vnode).unwrap();
        let select = gpuos_pbs::hook::select::Select::parse(&job.select).unwrap();
        let chunk = &select.0[0];
        assert_eq!(chunks.len() as u32, chunk.count.unwrap_or(1), "{start:?}");
        let place: Vec<&str> = job.place.split(':').collect();
        let mut hosts = Vec::new();
        for parts in &chunks {
            let number = |name: &str| chunk.values(name).next().map_or(0, |n| n.parse().unwrap());
            let size = chunk
                .values("mem")
                .next()
                .map_or(0, |size| kib(size).unwrap());
            let sums = parts.iter().map(counts).fold([0; 3], add);
            assert_eq!(sums, [number("ngpus"), number("ncpus"), size], "{start:?}");
            let host = |given: &Given| site.nodes.host_of(site.nodes.vnode(&given.vnode).unwrap());
            let first = host(&parts[0]);
            assert!(parts.iter().all(|given| host(given) == first), "{start:?}");
            hosts.push(first);
        }
        hosts.sort_unstable();
        hosts.dedup();
        match place[0] {
            "scatter" => assert_eq!(hosts.len(), chunks.len(), "{start:?}"),
            "pack" => assert_eq!(hosts.len(), 1, "{start:?}"),
            _ => {}
        }
        let alone = place.contains(&"excl");
        for part in chunks.iter().flatten() {
            let vnode = &site.nodes.vnodes[site.nodes.vnode(&part.vnode).unwrap()];
            assert!(vnode.up && vnode.queue.is_empty(), "{start:?}");
            let busy = !vnode.jobs.is_empty() || vnode.gpus.used + vnode.cpus.used > 0;
            let alone = alone || vnode.sharing.ends_with("excl");
            assert!(
                !(alone && busy) && vnode.state != "job-exclusive",
                "{start:?}"
            );
            for model in chunk.values("gmodel") {
                assert_eq!(vnode.resource("gmodel"), Some(model), "{start:?}");
            }
            let sum = given.entry(part.vnode.clone()).or_default();
            *sum = add(*sum, counts(part));
            let all = [vnode.gpus, vnode.cpus, vnode.memory_kib];
            let within = all.iter().zip(*sum).all(|(count, sum)| sum <= count.free());
            assert!(within, "{start:?}: {sum:?} of {all:?}");
            users
                .entry(part.vnode.clone())
                .or_default()
                .push((&start.job, alone));
        }
    }
    for (vnode, users) in users {
        let one = users.iter().all(|(job, _)| *job == users[0].0);
        let alone = users.iter().any(|(_, alone)| *alone);
        assert!(one || !alone, "{vnode}: {users:?}");
    }
    plan
}

/// GPUs, CPUs and memory in KiB.
fn counts(given: &Given) -> [u64; 3] {
    let memory = given.resources.iter().find(|(name, _)| name == "mem");
    let memory = memory.map_or(0, |(_, size)| kib(size).unwrap());
    [given.count("ngpus"), given.count("ncpus"), memory]
}

fn add(one: [u64; 3], other: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|at| one[at] + other[at])
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
        more: String::new(),
        place: String::new(),
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
fn a_gang_starts_on_the_hosts_of_one_leaf() {
    let mut gang = waits(9, 2, 4);
    gang.topology = Some("leaf:required".into());
    (gang.cpus, gang.mib) = (6, 10);
    let mut world = small(vec![gang]);
    world.running.push(on(1, 0, 1, 3600));
    let plan = of(&world);
    let chunk = |host: &str| format!("({host}:ncpus=6:mem=10240kb:ngpus=4)");
    assert_eq!(plan.starts.len(), 1, "{plan:?}");
    let start = &plan.starts[0].exec_vnode;
    assert_eq!(*start, format!("{}+{}", chunk("n2"), chunk("n3")));
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
    assert_eq!(plan.keeps[0].vnodes, ["n0", "n1"]);
    let kept = plan.keeps[0].parts.iter();
    assert_eq!(
        kept.map(|part| part.counts).collect::<Vec<_>>(),
        [[4, 4, 0]; 2]
    );
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

/// Jobs without GPUs have what is counted for them, and no more.
#[test]
fn jobs_with_gpus_run_beside_those_without() {
    let world = small(vec![waits(1000, 1, 4)]);
    let with = |cpus: u32| {
        let used = format!("\"resources_assigned\":{{\n                \"ncpus\":{cpus}");
        let vnodes = world.vnodes();
        let vnodes = vnodes.replace(
            "\"resources_assigned\":{\n                \"ncpus\":0",
            &used,
        );
        let plan = checked(&site(&vnodes, &world.jobs()));
        (plan.starts.len(), plan.waits.len())
    };
    assert_eq!(with(28), (1, 0));
    assert_eq!(with(29), (0, 1));
}

#[test]
fn who_wants_to_be_alone_gets_vnodes_without_jobs() {
    let alone = |id, gpus| Waits {
        place: ":excl".into(),
        ..waits(id, 1, gpus)
    };
    let mut world = small(vec![alone(1000, 1), alone(1001, 1), waits(1002, 1, 4)]);
    world.running = vec![on(1, 0, 1, 3600)];
    world.hosts[1].more = "\"jobs\":[\"5.head/0\"],".into();
    let plan = of(&world);
    let starts: Vec<_> = plan
        .starts
        .iter()
        .map(|start| &start.exec_vnode[..])
        .collect();
    assert_eq!(starts.len(), 3, "{plan:?}");
    assert!(
        starts[..2]
            .iter()
            .all(|start| start.contains("(n2") || start.contains("(n3"))
    );
    assert!(starts[2].starts_with("(n1:"), "{plan:?}");
    // The same where the site has it so for all jobs.
    let mut world = small(vec![waits(1000, 1, 1), waits(1001, 1, 1)]);
    for host in &mut world.hosts {
        host.more = "\"sharing\":\"default_excl\",".into();
    }
    world.running = vec![on(1, 0, 1, 3600), on(2, 1, 1, 3600), on(3, 2, 1, 3600)];
    let plan = of(&world);
    assert_eq!((plan.starts.len(), plan.waits.len()), (1, 1), "{plan:?}");
    // All of such a vnode comes back with its job.
    world.waiting = vec![waits(1000, 4, 4)];
    world.running = vec![on(1, 0, 1, 3600)];
    assert_eq!(of(&world).keeps[0].starts_in, 3600);
    // What one job has to itself now has nothing left.
    let vnodes = small(Vec::new())
        .vnodes()
        .replace("\"free\"", "\"job-exclusive\"");
    let plan = checked(&site(&vnodes, &small(vec![waits(1000, 1, 1)]).jobs()));
    assert_eq!((plan.starts.len(), plan.waits.len()), (0, 1), "{plan:?}");
}

#[test]
fn a_chunk_may_lie_on_several_vnodes_of_a_host_and_prefers_one() {
    let mut world = small(vec![
        waits(1000, 1, 3),
        waits(1001, 1, 2),
        waits(1002, 1, 2),
    ]);
    world.hosts.truncate(2);
    for host in &mut world.hosts {
        (host.vnodes, host.gpus, host.island) = (2, 4, 2);
    }
    world.hosts[1].down = true;
    let starts = |world: &World| {
        let plan = of(world);
        let starts = plan.starts.iter().map(|start| start.exec_vnode.clone());
        starts.collect::<Vec<_>>()
    };
    let split = "(n0[0]:ncpus=3:ngpus=2+n0[1]:ngpus=1)";
    assert_eq!(starts(&world), [split]);
    world.waiting.remove(0);
    let pair = |part| format!("(n0[{part}]:ncpus=2:ngpus=2)");
    assert_eq!(starts(&world), [pair(0), pair(1)]);
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
    // What is given away and in no listed job, as that of a task of an array, comes back at a time that nobody knows.
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
fn resources_of_vnodes_and_queues_choose_among_them() {
    let world = small(vec![waits(1000, 1, 1)]);
    let jobs = world
        .jobs()
        .replace("1:ngpus=1:ncpus=1", "1:ngpus=1:ncpus=1:gpuos_leaf=l1");
    let plan = checked(&site(&world.vnodes(), &jobs));
    assert!(plan.starts[0].exec_vnode.starts_with("(n2:"), "{plan:?}");
    for (name, value, host) in [
        ("gmodel", "h100", "n2"),
        ("ib", "true", "n2"),
        ("host", "N3", "n3"),
        ("arch", "linux", "n0"),
    ] {
        let mut world = world.clone();
        world.waiting[0].more = format!(":{name}={value}");
        world.hosts[2].has = "\"gmodel\":\"h100\",\"ib\":\"True\",".into();
        let plan = of(&world);
        let start = &plan.starts[0].exec_vnode;
        assert!(start.starts_with(&format!("({host}:")), "{name}: {plan:?}");
    }
    let mut none = world.clone();
    none.waiting[0].more = ":gmodel=a100".into();
    assert_eq!(of(&none).starts.len(), 0);
    // n3 is another queue's.
    let mut own = world.clone();
    own.hosts[3].more = "\"queue\":\"express\",".into();
    let jobs = own
        .jobs()
        .replace("\"queue\":\"workq\"", "\"queue\":\"express\"");
    let plan = planned(&site(&own.vnodes(), &jobs));
    assert!(plan.starts[0].exec_vnode.starts_with("(n3:"), "{plan:?}");
    own.waiting = vec![waits(1000, 4, 1)];
    assert!(of(&own).starts.is_empty());
}

/// A site as anybody may have it: hosts of several vnodes, others' reservations, what is shown long out of date, users who want to be alone.
fn any_world(seed: u64, hosts: usize) -> World {
    let mut world = World::random(seed, hosts, hosts / 3, 24);
    let mut dice = Dice::new(seed ^ 0x5eed);
    for host in &mut world.hosts {
        host.vnodes = [1, 1, 2, 4][dice.below(4) as usize];
        host.shown = [Some(0), Some(1), None][dice.below(3) as usize];
        host.cpus = 1 + dice.below(8) as u32;
        let more = [
            "\"sharing\":\"default_excl\",",
            "\"sharing\":\"force_excl\",",
            "\"sharing\":\"force_exclhost\",",
            "\"queue\":\"express\",",
            "\"resv\":\"R7.head\",",
            "\"jobs\":[\"5.head/0\"],",
            "\"partition\":\"p2\",",
        ];
        // Half of them have nothing special.
        let special = more.get(dice.below(16) as usize);
        host.more = special.copied().unwrap_or_default().into();
        let has = ["", "\"gmodel\":\"h100\",", "\"gmodel\":\"a100\","];
        host.has = has[dice.below(3) as usize].into();
    }
    for job in &mut world.waiting {
        job.cpus = 1 + dice.below(2 * u64::from(job.gpus)) as u32;
        job.place = ["", "", ":shared", ":excl"][dice.below(4) as usize].into();
        job.more = ["", "", ":gmodel=h100"][dice.below(3) as usize].into();
    }
    world
}

/// The sites of the property below are such that jobs start in all ways that there are.
#[test]
fn any_world_starts_jobs_in_all_ways() {
    let (mut split, mut alone, mut named) = (0, 0, 0);
    for seed in 0..60 {
        let world = any_world(seed, 8);
        let site = site(&world.vnodes(), &world.jobs());
        for start in checked(&site).starts {
            let job = site.jobs.iter().find(|job| job.id == start.job).unwrap();
            let chunks = parse_exec_vnode(&start.exec_vnode).unwrap();
            split += usize::from(chunks.iter().any(|parts| parts.len() > 1));
            alone += usize::from(job.place.ends_with("excl"));
            named += usize::from(job.select.contains("gmodel"));
        }
    }
    assert!(
        split > 5 && alone > 5 && named > 5,
        "{split} {alone} {named}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_more_of_a_vnode_than_it_has_left(seed in any::<u64>(), hosts in 1usize..12) {
        let world = any_world(seed, hosts);
        let site = site(&world.vnodes(), &world.jobs());
        let plan = checked(&site);
        prop_assert_eq!(plan.starts.len() + plan.waits.len() + plan.left.len(), 24);
        for keeps in &plan.keeps {
            for part in &keeps.parts {
                let vnode = &site.nodes.vnodes[part.vnode];
                let all = vnode.all();
                prop_assert!((0..3).all(|at| part.counts[at] <= all[at]));
            }
        }
    }

    #[test]
    fn nothing_twice_and_the_same_plan_again(seed in any::<u64>(), hosts in 1usize..12) {
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
    assert_eq!(of(&plan.left), ["7[].head: it is an array"]);
    // One leaf has a job, and in the other one a GPU is offline: no leaf has two whole hosts.
    assert_eq!(plan.waits.len(), 1);
    assert_eq!(plan.waits[0].job, "4.head");
    let starts: Vec<_> = plan.starts.iter().map(|start| &start.job[..]).collect();
    assert_eq!(starts, ["5.head", "9.head"]);
}
