//! Memory slices of GPUs under select/gpuos: jobs get whole placements that the board has, what fits in none waits, and
//! nothing is lost in a restart. On every release, with the same plugins.
//!
//! Allocations have no steps, so that slurmctld alone is seen.

use std::collections::BTreeMap;
use std::path::Path;

use gpuos_config::options::parse_mig;
use gpuos_lab::Suite;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::hostlist::expand;
use gpuos_model::mig::{Geometry, States};
use gpuos_placement::mig::{JobInstance, tile};
use gpuos_tests::plugins::programs;
use gpuos_tests::slices::{ask, start};
use gpuos_tests::{Cluster, Setup, per_suite, show};
use serde_json::{Value, json};

per_suite!(one_gpu, several_nodes, come_and_go);

/// Slices of a job by node.
type Slices = BTreeMap<String, u64>;

fn setup(name: &str, suite: &Suite, nodes: usize, gpus: u64) -> Setup {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = nodes.into();
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.mig = GpuSet(gpus);
    setup.spec.job_submit = true;
    setup
}

/// The slices that Slurm says a job has.
fn slices(cluster: &Cluster, job: u32) -> Slices {
    let text = cluster.show(job);
    let mut all = Slices::new();
    for line in text.lines().filter(|line| line.contains("CPU_IDs=")) {
        let word = |key: &str| {
            let words = line.split_ascii_whitespace();
            words.filter_map(|word| word.strip_prefix(key)).next()
        };
        let own = word("GRES=").and_then(|gres| gres.split("gpuos:").nth(1));
        let bits = own.and_then(|own| own.split_once("(IDX:")?.1.split_once(')'));
        let bits = show::indices(bits.map_or("", |(bits, _)| bits));
        let bits = bits.into_iter().fold(0, |all, bit| all | 1 << bit);
        for node in expand(word("Nodes=").unwrap_or_default()).expect("nodes") {
            all.insert(node, bits);
        }
    }
    all
}

/// The same of a job on one node.
fn on_one(cluster: &Cluster, job: u32) -> u64 {
    let all = slices(cluster, job);
    assert_eq!(all.len(), 1, "{}", cluster.show(job));
    all.into_values().fold(0, |all, bits| all | bits)
}

/// A job waits, and squeue says that it is for placements.
fn waits(cluster: &Cluster, job: u32) {
    let id = job.to_string();
    cluster.until("squeue says that placements are missing", || {
        let text = cluster.run("squeue", &["-h", "-j", &id, "-o", "%T %r"]);
        assert!(text.starts_with("PENDING"), "{text}{}", cluster.show(job));
        text.contains("whole placements").then_some(())
    });
}

fn board(cluster: &Cluster) -> Geometry {
    let file = cluster.lab.dir().join("etc/gpuos.toml");
    let text = std::fs::read_to_string(file).expect("the lab writes it");
    let config = gpuos_config::gpuos_toml::Config::parse(&text, "gpuos.toml").expect("it is sound");
    let (_, board) = config.mig.pool_of("n1").expect("it has a pool");
    board.geometry.clone()
}

fn one_gpu(suite: &Suite) {
    let mut setup = setup("placements", suite, 1, 1 << 7);
    // Debian suites in folders have no database.
    let has = |program: &str| Path::new("/usr/sbin").join(program).exists();
    let billed = *suite == Suite::Native && has("mariadbd") && has("slurmdbd");
    if billed {
        setup.spec.accounting = true;
        setup.spec.slurm_conf_extra.extend([
            "AccountingStorageTRES=gres/gpu,gres/gpuos,gres/gpuos:h100-80gb".into(),
            "PartitionName=billed Nodes=ALL MaxTime=INFINITE State=UP TRESBillingWeights=CPU=0,GRES/gpu=8,GRES/gpuos=1"
                .into(),
        ]);
    }
    let Some(cluster) = setup.steered() else {
        return;
    };
    if billed {
        slices_are_billed(&cluster);
    }
    seven_small(&cluster);
    halves_and_wholes(&cluster);
    an_exact_mix(&cluster);
    slices_without_a_placement(&cluster);
    by_number(&cluster);
    media(&cluster);
}

/// With the weights of docs/admin/mig.md an instance costs its part of a whole GPU, in slurmdbd's records too.
fn slices_are_billed(cluster: &Cluster) {
    for (ask, wanted) in [
        (
            "--gpuos-mig=3g.40gb",
            &["billing=4", "gres/gpuos=4", "gres/gpuos:h100-80gb=4"][..],
        ),
        ("--gres=gpu:1", &["billing=8", "gres/gpu=1"]),
    ] {
        let job = start(cluster, "billed", &format!("-p billed {ask}"));
        let id = job.to_string();
        let words = ["-X", "-n", "-P", "-j", &id, "-o", "AllocTRES"];
        cluster.until(&format!("sacct has what a job with {ask} has"), || {
            let told = cluster.run("sacct", &words);
            let tres: Vec<&str> = told.trim().split(',').collect();
            wanted.iter().all(|part| tres.contains(part)).then_some(())
        });
        cluster.cancel(&[job]);
        cluster.drained();
    }
}

fn seven_small(cluster: &Cluster) {
    let jobs: Vec<u32> = (0..7)
        .map(|n| start(cluster, &format!("small{n}"), "--gpuos-mig=1g.10gb"))
        .collect();
    let bits: Vec<u64> = jobs.iter().map(|job| on_one(cluster, *job)).collect();
    assert!(bits.iter().all(|bits| bits.count_ones() == 1), "{bits:x?}");
    assert_eq!(bits.iter().fold(0, |all, bits| all | bits), 0x7f);
    let comment = show::long_field(&cluster.show(jobs[0]), "SystemComment").map(String::from);
    let comment = comment.unwrap_or_default();
    assert!(comment.contains(" mig=1g.10gb:1 "), "{comment}");
    // Slice 7 is free, and no placement of one slice begins there.
    let eighth = ask(cluster, "eighth", "--gpuos-mig=1g.10gb");
    waits(cluster, eighth);
    cluster.cancel(&jobs[3..4]);
    cluster.wait(eighth, &["RUNNING"]);
    assert_eq!(on_one(cluster, eighth), bits[3]);
    cluster.drained();
}

fn halves_and_wholes(cluster: &Cluster) {
    let halves = ["half1", "half2"].map(|name| start(cluster, name, "--gpuos-mig=3g.40gb"));
    let mut bits = halves.map(|job| on_one(cluster, job));
    bits.sort_unstable();
    assert_eq!(bits, [0x0f, 0xf0]);
    let whole = ask(cluster, "whole", "--gpuos-mig=7g.80gb");
    waits(cluster, whole);
    cluster.cancel(&halves[..1]);
    waits(cluster, whole);
    cluster.cancel(&halves[1..]);
    cluster.wait(whole, &["RUNNING"]);
    assert_eq!(on_one(cluster, whole), 0xff);
    cluster.drained();
}

/// What `gpuos mig plan` says of a request.
fn planned(cluster: &Cluster, request: &str) -> Value {
    let program = programs().join("gpuos");
    let program = program.to_str().expect("a path in UTF-8");
    // It exits with 1 where the job waits.
    let line = format!("{program} --json mig plan {request} || true");
    let text = cluster.run("sh", &["-c", &line]);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Three jobs, one of several instances, that fill the GPU exactly.
fn an_exact_mix(cluster: &Cluster) {
    let four = start(cluster, "four", "--gpuos-mig=4g.40gb");
    assert_eq!(on_one(cluster, four), 0x0f, "its only placement");
    let plan = planned(cluster, "1g.10gb:2,1g.20gb");
    assert_eq!(plan["place"][0]["bits"], json!([4, 5, 6, 7]), "{plan}");
    assert_eq!(plan["place"][0]["instances"][0]["gpu"], 7, "{plan}");
    let mix = start(cluster, "mix", "--gpuos-mig=1g.10gb:2,1g.20gb");
    assert_eq!(on_one(cluster, mix), 0xf0);
    let note = cluster.show(mix);
    assert!(note.contains("mig=1g.20gb:1,1g.10gb:2 "), "{note}");
    cluster.drained();
}

/// Four slices are free, in no placement.
fn slices_without_a_placement(cluster: &Cluster) {
    let jobs: Vec<u32> = (0..7)
        .map(|n| start(cluster, &format!("one{n}"), "--gpuos-mig=1g.10gb --time=60"))
        .collect();
    let at = |bit: u64| {
        let found = jobs.iter().find(|job| on_one(cluster, **job) == 1 << bit);
        *found.expect("each slice has one")
    };
    cluster.cancel(&[at(0), at(2), at(4)]);
    let half = ask(cluster, "windowless", "--gpuos-mig=3g.40gb --time=10");
    waits(cluster, half);
    let plan = planned(cluster, "3g.40gb");
    let free = json!([{ "gpu": 7, "slices": [0, 2, 4, 7] }]);
    assert_eq!(
        (&plan["fits"], &plan["waits"][0]["free"]),
        (&json!(false), &free),
        "{plan}"
    );
    assert!(plan["forecast"]["at"].is_string(), "{plan}");
    // By the number of free slices it would start at once.
    let id = half.to_string();
    cluster.until("backfill has foreseen a start, later", || {
        let text = cluster.run("squeue", &["-h", "-j", &id, "-o", "%T %S"]);
        assert!(text.starts_with("PENDING"), "{text}");
        (!text.contains("N/A")).then_some(())
    });
    waits(cluster, half);
    cluster.cancel(&[at(1), at(3)]);
    cluster.wait(half, &["RUNNING"]);
    assert_eq!(on_one(cluster, half), 0x0f);
    cluster.drained();
}

/// Slices that are asked for by number are a placement of the smallest profile with so many.
fn by_number(cluster: &Cluster) {
    let one = start(cluster, "beside", "--gpuos-mig=1g.10gb");
    let two = start(cluster, "number", "--gres=gpuos:2");
    let bits = on_one(cluster, two);
    assert!([0x03, 0x0c, 0x30, 0xc0].contains(&bits), "{bits:x}");
    // Off says that Slurm alone places; of instances it says nothing.
    let off = start(cluster, "off", "--gres=gpuos:3 --gpuos=off");
    assert_eq!(on_one(cluster, off).count_ones(), 3);
    assert!(!cluster.show(off).contains("mig="), "{}", cluster.show(off));
    cluster.cancel(&[one, two, off]);
    let off = start(cluster, "offmig", "--gpuos-mig=3g.40gb --gpuos=off");
    let bits = on_one(cluster, off);
    assert!([0x0f, 0xf0].contains(&bits), "{bits:x}");
    cluster.drained();
}

/// A GPU has one media extension, also after a restart of slurmctld.
fn media(cluster: &Cluster) {
    let first = start(cluster, "media1", "--gpuos-mig=1g.10gb+me");
    let second = ask(cluster, "media2", "--gpuos-mig=1g.10gb+me");
    waits(cluster, second);
    cluster.save(first);
    cluster.restart_slurmctld();
    let plain = start(cluster, "plain", "--gpuos-mig=1g.10gb --time=10");
    waits(cluster, second);
    assert_ne!(on_one(cluster, plain), on_one(cluster, first));
    cluster.cancel(&[first]);
    cluster.wait(second, &["RUNNING"]);
    cluster.drained();
}

fn several_nodes(suite: &Suite) {
    let Some(cluster) = setup("nodes", suite, 3, 0b1100_0000).steered() else {
        return;
    };
    let both = start(&cluster, "both", "-N2 --gpuos-mig=4g.40gb,2g.20gb");
    let all = slices(&cluster, both);
    assert_eq!(all.len(), 2, "{}", cluster.show(both));
    for bits in all.values() {
        assert_eq!(bits.count_ones(), 6, "{all:x?}");
        assert!(bits & 0x0f == 0x0f || bits >> 8 & 0x0f == 0x0f, "{all:x?}");
    }
    // Beside whole GPUs, and on a node that it names.
    let mixed = start(&cluster, "mixed", "-w n3 --gres=gpu:2 --gpuos-mig=3g.40gb");
    assert!([0x0f, 0xf0, 0xf00, 0xf000].contains(&slices(&cluster, mixed)["n3"]));
    assert!(cluster.show(mixed).contains("gpu:h100:2(IDX:"));
    let tasks = start(
        &cluster,
        "tasks",
        "-N1 -n3 --ntasks-per-node=3 --gpuos-mig=1g.20gb:per-task",
    );
    let bits = on_one(&cluster, tasks);
    assert_eq!(bits.count_ones(), 6, "{bits:x}");
    let before: Vec<Slices> = [both, mixed, tasks].map(|job| slices(&cluster, job)).into();
    cluster.crash(both);
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    let after: Vec<Slices> = [both, mixed, tasks].map(|job| slices(&cluster, job)).into();
    assert_eq!(before, after);
    // Six GPUs, four of them in use at most: a whole one is free, and nothing is given twice.
    let whole = start(&cluster, "wholes", "--gpuos-mig=7g.80gb");
    let (node, bits) = slices(&cluster, whole).pop_first().expect("a node");
    assert!([0xff, 0xff00].contains(&bits), "{bits:x}");
    for held in &before {
        assert_eq!(held.get(&node).unwrap_or(&0) & bits, 0, "{before:x?}");
    }
    cluster.drained();
    out_of_service(&cluster);
}

/// What gpuosd writes into `Extra`: NVML's numbers for GPUs of the pool, whatever GRES gpu counts.
fn out_of_service(cluster: &Cluster) {
    let extra = |node: &str, text: &str| {
        let (node, text) = (format!("NodeName={node}"), format!("Extra={text}"));
        cluster.run("scontrol", &["update", &node, &text]);
    };
    for node in ["n1", "n2", "n3"] {
        extra(node, "[gpuos:1 out=0 mig-out=6]");
    }
    let three: Vec<u32> = (0..3)
        .map(|n| start(cluster, &format!("sound{n}"), "--gpuos-mig=7g.80gb"))
        .collect();
    for job in &three {
        assert_eq!(on_one(cluster, *job), 0xff00);
    }
    let fourth = ask(cluster, "fourth", "--gpuos-mig=1g.10gb");
    waits(cluster, fourth);
    // Another GPU of GRES gpu is out now, and none of the pool.
    extra("n2", "[gpuos:1 out=0,1]");
    cluster.wait(fourth, &["RUNNING"]);
    let (node, bits) = slices(cluster, fourth).pop_first().expect("a node");
    assert!(node == "n2" && bits & 0xff00 == 0, "{node} {bits:x}");
    cluster.drained();
}

/// Jobs come and go at random; what runs never overlaps and always tiles.
fn come_and_go(suite: &Suite) {
    let Some(cluster) = setup("churn", suite, 2, 0b1100_0000).steered() else {
        return;
    };
    let geometry = board(&cluster);
    let requests = [
        "1g.10gb",
        "1g.10gb:2",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
        "1g.10gb+me",
        "3g.40gb,1g.10gb",
        "10G",
        "1/2",
    ];
    let mut seed = 5u64;
    let mut random = |limit: usize| {
        seed = seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % limit
    };
    let mut jobs: Vec<(u32, &str)> = Vec::new();
    for round in 0..30 {
        let request = requests[random(requests.len())];
        let options = format!("--gpuos-mig={request}");
        jobs.push((ask(&cluster, &format!("job{round}"), &options), request));
        if round % 3 == 2 {
            let (gone, _) = jobs.swap_remove(random(jobs.len()));
            cluster.cancel(&[gone]);
        }
        match round {
            12 => cluster.lab.reconfigure().expect("reconfigures"),
            20 => cluster.crash(jobs[0].0),
            _ => {}
        }
        check(&cluster, &geometry, &jobs);
    }
    // One after the other all of them run.
    while !jobs.is_empty() {
        let running = |job: &(u32, &str)| !slices(&cluster, job.0).is_empty();
        let at = cluster.until("one of them runs", || jobs.iter().position(running));
        check(&cluster, &geometry, &jobs);
        cluster.cancel(&[jobs.remove(at).0]);
    }
    cluster.drained();
}

/// Instances of all jobs, found again in their slices, can be on the GPUs at once.
fn check(cluster: &Cluster, geometry: &Geometry, jobs: &[(u32, &str)]) {
    let states = States::new(geometry).expect("it is sound");
    let mut cuts: BTreeMap<String, Vec<JobInstance>> = BTreeMap::new();
    for (job, request) in jobs {
        let serves = parse_mig(request)
            .expect("is understood")
            .serves(geometry)
            .expect("is served");
        for (node, bits) in slices(cluster, *job) {
            let own = tile(geometry, bits, &serves);
            let own =
                own.unwrap_or_else(|| panic!("{request} in {bits:x}: {}", cluster.show(*job)));
            cuts.entry(node).or_default().extend(own);
        }
    }
    for (node, cuts) in cuts {
        for gpu in 0..2 {
            let own = cuts.iter().filter(|cut| cut.gpu.index() == gpu);
            let spot = |cut: &JobInstance| {
                states
                    .spot(cut.profile, cut.placement.start)
                    .expect("a placement")
            };
            let state = states.of(own.map(spot));
            assert_ne!(state, gpuos_model::mig::NONE, "{node}: {cuts:?}");
        }
    }
}
