//! `gpuos plan`, `topo`, `top` and `doctor` on a machine of PBS, over a PBS that answers from files.

use std::fs;

use gpuos_pbs::hook::install::{Objects, install};
use gpuos_pbs::hook::resources::{RESOURCES, Resource};

use crate::pbs_planner::world::{Running, SERVER, World};
use crate::pbs_planner::{Pbs, world};

/// Two hosts of four GPUs under one leaf switch; job 900 has three GPUs of the first and one of the second.
fn half_full() -> World {
    let mut world = world();
    world.waiting.clear();
    world.running.push(Running {
        id: 900,
        on: vec![(0, 0b0111), (1, 0b0001)],
        cpus: 1,
        limit: 600,
        ran: 0,
    });
    world
}

/// A PBS with a queue for jobs that name none.
fn pbs(world: &World) -> Pbs {
    let pbs = Pbs::new(world);
    let server = SERVER.replace(
        "\"scheduling\"",
        "\"pbs_version\":\"23.06.06\",\"default_queue\":\"workq\",\"scheduling\"",
    );
    pbs.0.file("server", &server);
    pbs
}

#[test]
fn plan_says_on_which_vnodes_a_job_would_start() {
    let pbs = pbs(&half_full());
    let answer = pbs.gpuos(&["plan", "--gpus=3", "--nodes=1", "--topology=nvlink"]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""), "{}", answer.out);
    let out = &answer.out;
    assert!(out.starts_with("It would start now: "), "{out}");
    let vnodes = "\nVnodes: (n1:ncpus=1:ngpus=3); gpuosd chooses the GPUs when it starts.\n";
    assert!(out.contains(vnodes), "{out}");
    // Nobody has said how fast links are.
    assert!(!out.contains("GB/s"), "{out}");
    let job = "\nAs a job: qsub -l select=1:ngpus=3:ncpus=1 -l gpuos_topology=nvlink\n";
    assert!(out.contains(job), "{out}");
    assert!(
        out.contains("Free for such a job: 4 GPUs on 2 hosts."),
        "{out}"
    );
    let json = pbs
        .gpuos(&["plan", "--gpus=3", "--nodes=1", "--json"])
        .json();
    assert_eq!(json["schema"], "gpuos.plan-pbs/1");
    crate::schemas::agrees("plan-pbs-fits", &json);
    assert_eq!(json["exec_vnode"], "(n1:ncpus=1:ngpus=3)");
    assert_eq!(json["vnodes"], serde_json::json!(["n1"]));
    assert_eq!(json["place"]["bus_gbps"], 0.0);
}

#[test]
fn plan_says_why_a_job_would_wait_and_what_would_start_it() {
    let pbs = pbs(&half_full());
    let args = ["plan", "--gpus-per-node=3", "--nodes=2"];
    let answer = pbs.gpuos(&args);
    assert_eq!((answer.code, &answer.err[..]), (1, ""));
    let out = &answer.out;
    assert!(out.starts_with("Not enough room now: "), "{out}");
    // Job 900 has ten minutes.
    assert!(out.contains("there is room for it in 10 minutes"), "{out}");
    assert!(
        out.contains("With --nodes=1 it would start now: 3 GPUs on 1 node (n1)"),
        "{out}"
    );
    assert!(
        out.contains("qsub -l select=2:ngpus=3:ncpus=1 -l place=scatter"),
        "{out}"
    );
    let json = pbs.gpuos(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["starts_in_seconds"], 600);
    crate::schemas::agrees("plan-pbs-waits", &json);
}

#[test]
fn plan_says_where_the_memory_of_a_job_would_lie() {
    let pbs = pbs(&half_full());
    let plan = |memory: &str, more: &[&str]| {
        let args = ["plan", "--gpus-per-node=2", "--cpus-per-gpu=1", memory];
        pbs.gpuos(&[&args[..], more].concat())
    };
    let off = plan("--gpuos-mem=120G", &["--mem=8G"]);
    assert_eq!(off.code, 1, "{}", off.out);
    assert!(off.err.contains("PBS would refuse `qsub "), "{}", off.err);
    let stated = "[memory]\noversubscribe = true\n[[node-type]]\nname = \"half\"\nbase = \"dgx-h100\"\ngpus = 4\n\
         [[nodes]]\nmatch = \"n[0-1]\"\ntype = \"half\"\n";
    pbs.0.file("gpuos.toml", stated);
    let fits = plan("--gpuos-mem=120G,policy=lru", &["--mem=8G", "--trace=loop"]);
    let out = &fits.out;
    assert_eq!((fits.code, &fits.err[..]), (0, ""), "{out}");
    assert!(
        out.contains("\nAs a job: qsub -l select=1:ngpus=2:ncpus=2:mem=8192mb -l 'gpuos_mem=\"120G,policy=lru\"'\n"),
        "{out}"
    );
    assert!(
        out.contains(
            "Memory of each GPU: 120.0 GiB, of it 78.6 GiB in its own and 41.4 GiB in the host's. mem of a chunk grows by 42345 MiB for each of its GPUs.\n"
        ),
        "{out}"
    );
    assert!(out.contains("loop has 6.3 GiB at once"), "{out}");
    let json = plan("--gpuos-mem=120G", &["--mem=8G", "--json"]).json();
    assert_eq!(json["memory"]["host_mib_per_gpu"], 42345);
    // It is placed with all of that, and where no host has as much it is not said to start.
    let place = json["exec_vnode"].as_str().unwrap_or_default();
    let kib = place.split(":mem=").skip(1).filter_map(|rest| {
        let kib = rest.split("kb").next()?;
        kib.parse::<u64>().ok()
    });
    assert_eq!(kib.sum::<u64>() >> 10, 8192 + 2 * 42345, "{json}");
    let large = plan("--gpuos-mem=300G", &["--mem=8G"]);
    assert!(!large.out.contains("It would start now"), "{}", large.out);
    assert_eq!(json["memory"]["host_mib_of_node"], serde_json::Value::Null);
    // The sentences of qsub.
    let program = plan("--gpuos-mem=120G", &[]);
    assert!(program.err.contains("mem="), "{}", program.err);
    let most = plan("--gpuos-mem=400G", &["--mem=8G"]);
    assert!(most.err.contains("write at most 326236M"), "{}", most.err);
}

#[test]
fn jobs_that_wait_come_before_a_planned_one() {
    // Job 1000 takes one GPU, job 1001 waits for all eight: what is left is kept for it.
    let pbs = pbs(&world());
    let long = pbs.gpuos(&["plan", "--gpus=1"]);
    assert_eq!(long.code, 1, "{}", long.out);
    assert!(
        long.out.contains("if none did, it would start now"),
        "{}",
        long.out
    );
    let queue = pbs.gpuos(&["plan", "--gpus=1", "--partition=express"]);
    assert_eq!(queue.code, 0, "{}", queue.out);
    // Job 1001 can start in ten minutes, when job 900 has had its time: who ends before then may have its GPUs.
    let mut kept = half_full();
    kept.waiting.extend(world().waiting.pop());
    let kept = self::pbs(&kept);
    let long = kept.gpuos(&["plan", "--gpus=2"]);
    assert_eq!(long.code, 1, "{}", long.out);
    let short = "With --walltime=0:10:00 it would start now: 2 GPUs on 1 node";
    assert!(long.out.contains(short), "{}", long.out);
    let short = kept.gpuos(&["plan", "--gpus=2", "--walltime=0:10:00"]);
    assert_eq!(short.code, 0, "{}", short.out);
    let left = pbs.gpuos(&["plan", "--gpus=1", "-p", "limited"]);
    assert_eq!(left.code, 1);
    assert!(
        left.out
            .starts_with("The planner would leave it to pbs_sched: queue limited: it has max_run"),
        "{}",
        left.out
    );
}

#[test]
fn options_that_mean_nothing_on_pbs_are_refused_by_name() {
    let pbs = pbs(&half_full());
    for (args, option) in [
        (&["--gres=gpu:1"][..], "--gres"),
        (&["--gpus=h100:1"], "a type of GPUs"),
        (&["--gpus-per-socket=1"], "--gpus-per-socket"),
        (&["--gpus=1", "--qos=high"], "--qos"),
        (&["--gpus=1", "--exclusive"], "--exclusive"),
        (&["--gpus=1", "--defrag"], "--defrag"),
        (&["--gpus=1", "--nodelist=n0"], "--nodelist"),
        (&["--gpus=4", "--nodes=2-3"], "--nodes=2-3"),
        (&["--gpus=5", "--nodes=2"], "--gpus=5 with --nodes=2"),
        (&["--gpus=4", "--mem=1G"], "--mem"),
        (
            &["--select=1:ngpus=1", "--nodes=2"],
            "--nodes beside --select",
        ),
    ] {
        let answer = pbs.gpuos(&[&["plan"], args].concat());
        assert_eq!(answer.code, 1, "{args:?}: {}", answer.out);
        let told = answer.err.strip_prefix("gpuos: ").unwrap_or_default();
        assert!(told.starts_with(option), "{args:?}: {}", answer.err);
    }
    let refused = pbs.gpuos(&["plan", "--gpus=1", "--topology=rack"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.err.contains("PBS would refuse `qsub"),
        "{}",
        refused.err
    );
    assert!(
        refused.err.contains("-l gpuos_topology=rack"),
        "{}",
        refused.err
    );
}

#[test]
fn options_of_pbs_are_refused_on_slurm() {
    let slurm = crate::site::Site::new("24.11.5");
    for args in [
        &["plan", "--select=1:ngpus=1"][..],
        &["plan", "--gpus=1", "--walltime=60"],
    ] {
        let answer = slurm.run(args);
        assert_eq!(answer.code, 1, "{}", answer.out);
        assert!(answer.err.contains("is for PBS"), "{}", answer.err);
    }
}

#[test]
fn chunks_can_be_written_as_qsub_takes_them() {
    let pbs = pbs(&half_full());
    let free = pbs.gpuos(&["plan", "--select=4:ngpus=1:ncpus=8", "--place=free"]);
    assert_eq!(free.code, 0, "{}{}", free.out, free.err);
    let chunk = |host: &str| format!("({host}:ncpus=8:ngpus=1)");
    let chunks = [chunk("n0"), chunk("n1"), chunk("n1"), chunk("n1")].join("+");
    assert!(free.out.contains(&chunks), "{}", free.out);
    let scatter = pbs.gpuos(&["plan", "--select=2:ngpus=1", "--place=scatter"]);
    assert!(
        scatter.out.contains("Vnodes: (n0:ngpus=1)+(n1:ngpus=1);"),
        "{}",
        scatter.out
    );
}

#[test]
fn topo_shows_hosts_under_their_leaf_switches() {
    let mut world = half_full();
    world.hosts[1].out = 0b1000;
    let pbs = pbs(&world);
    let answer = pbs.gpuos(&["topo"]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""));
    let out = &answer.out;
    assert!(
        out.starts_with("Cluster head, PBS 23.06.06: 2 hosts, 8 GPUs, 3 free\n"),
        "{out}"
    );
    assert!(out.contains("leaf l0"), "{out}");
    assert!(out.contains("GPU 3 out"), "{out}");
    let json = pbs.gpuos(&["topo", "--json"]).json();
    assert_eq!(json["schema"], "gpuos.topo/1");
    assert_eq!(json["levels"][0]["domains"][0]["nodes"][1], "n1");
    let first = &json["nodes"][0];
    assert_eq!(first["used"], serde_json::json!([0, 1, 2]));
    assert_eq!(first["free"], serde_json::json!([3]));
    let node = pbs.gpuos(&["topo", "n1"]);
    assert_eq!(node.code, 0, "{}", node.err);
    let known = node.out.contains("GPU 3 out\n\nNVLink n1.0: GPU 0-3\n");
    assert!(known && !node.out.contains("GB/s"), "{}", node.out);
    let row = node.out.lines().find(|line| line.starts_with("n1 "));
    assert!(
        row.is_some_and(|row| row.contains("900.head")),
        "{}",
        node.out
    );
    let none = pbs.gpuos(&["topo", "n9"]);
    assert!(
        none.err.contains("no host n9: this cluster has n[0-1]"),
        "{}",
        none.err
    );
}

#[test]
fn nothing_is_said_of_links_of_which_nobody_has_told() {
    let mut world = half_full();
    for host in &mut world.hosts {
        (host.shown, host.island) = (None, 1);
    }
    let pbs = pbs(&world);
    let node = pbs.gpuos(&["topo", "n1"]).out;
    assert!(node.contains("What links its GPUs is not known"), "{node}");
    assert!(!node.contains("GB/s") && !node.contains("PHB"), "{node}");
    let plan = pbs.gpuos(&["plan", "--gpus=3", "--nodes=1"]).out;
    assert!(!plan.contains("GB/s") && !plan.contains("PHB"), "{plan}");
}

#[test]
fn plan_of_a_job_without_gpus_says_where_pbs_sched_has_room_for_it() {
    let pbs = pbs(&half_full());
    let plan = pbs.gpuos(&["plan", "--select=2:ncpus=30"]);
    assert_eq!((plan.code, &plan.err[..]), (1, ""), "{}", plan.out);
    assert!(
        plan.out.contains("there is no room for all its chunks now"),
        "{}",
        plan.out
    );
    let plan = pbs.gpuos(&["plan", "--select=2:ncpus=20", "--json"]);
    assert_eq!((plan.code, &plan.err[..]), (0, ""), "{}", plan.out);
    let json = plan.json();
    assert_eq!(json["left_to_pbs_sched"], "it has no GPUs");
    assert_eq!(json["vnodes"], serde_json::json!(["n0", "n1"]));
    let never = pbs.gpuos(&["plan", "--select=1:ncpus=33"]);
    let told = "It would never start as it is: a chunk has ncpus=33, and no host has more than 32.";
    assert!(never.out.contains(told), "{}", never.out);
}

#[test]
fn health_shows_hosts_with_trouble_by_their_vnodes() {
    let mut world = half_full();
    world.hosts[1].out = 0b1000;
    world.hosts[1].more =
        "\"comment\":\"gpuos: GPU 3 is out of service; gpuos health on n1 says why\",".into();
    let pbs = pbs(&world);
    let none = format!("--runtime-dir={}", pbs.0.path("nowhere"));
    let answer = pbs.gpuos(&["health", &none]);
    assert_eq!((answer.code, &answer.err[..]), (1, ""), "{}", answer.out);
    let row = answer
        .out
        .lines()
        .find(|line| line.starts_with("n1 "))
        .unwrap_or_default();
    assert!(
        row.contains(" 3 ") && row.contains("GPU 3 is out of service"),
        "{}",
        answer.out
    );
    assert!(!answer.out.contains("\nn0 "), "{}", answer.out);
    let gone = pbs.gpuos(&["health", "n9", &none]);
    assert!(gone.err.contains("PBS has no host n9"), "{}", gone.err);
}

#[test]
fn what_is_slurms_alone_says_so_on_pbs() {
    let pbs = pbs(&half_full());
    for (args, told) in [
        (&["replay"][..], "gpuos pbs-planner --dry-run"),
        (
            &["mig", "plan", "1g.10gb", "--defrag"],
            "PBS has nothing of it",
        ),
        (&["mig", "plan", "1g.10gb", "n0", "n1"], "name one, or none"),
        (
            &["drain", "n0", "--migrate"],
            "--migrate moves jobs by Slurm",
        ),
    ] {
        let answer = pbs.gpuos(args);
        assert_eq!(answer.code, 1, "{args:?}: {}", answer.out);
        assert!(answer.err.contains(told), "{args:?}: {}", answer.err);
    }
}

#[test]
fn jobs_that_make_checkpoints_are_listed_by_pbs_server_where_no_mover_is() {
    let pbs = pbs(&half_full());
    let saves = "\"Resource_List\":{\"gpuos_checkpoint\":\"10m\",\"gpuos_hosts\":\"n[2-3]\",";
    let jobs = half_full().jobs().replacen("\"Resource_List\":{", saves, 1);
    pbs.0.file("jobs", &jobs);
    let none = format!("--runtime-dir={}", pbs.0.path("nowhere"));
    let answer = pbs.gpuos(&["ckpt", "list", &none]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""), "{}", answer.out);
    let row = answer
        .out
        .lines()
        .find(|line| line.starts_with("900.head "));
    let row = row.unwrap_or_default();
    assert!(
        row.contains(" n[0-1] ") && row.contains("may lie on n[2-3]"),
        "{}",
        answer.out
    );
}

#[test]
fn a_machine_with_slurm_and_pbs_says_which_is_asked() {
    let pbs = pbs(&half_full());
    pbs.0.program("scontrol", "#!/bin/sh\nexit 1\n");
    let asked = pbs.gpuos(&["topo", "--pbs"]);
    assert_eq!(asked.code, 0, "{}", asked.err);
    assert_eq!(
        asked.err,
        "gpuos: this machine has Slurm and PBS, and PBS is asked\n"
    );
    let slurm = pbs.gpuos(&["topo"]);
    let told = "gpuos: this machine has Slurm and PBS, and Slurm is asked; --pbs asks PBS\n";
    assert!(slurm.err.starts_with(told), "{}", slurm.err);
}

#[test]
fn top_shows_gpus_with_the_jobs_that_have_them() {
    let mut world = half_full();
    world.waiting = crate::pbs_planner::world().waiting;
    let pbs = pbs(&world);
    let none = format!("--runtime-dir={}", pbs.0.path("nowhere"));
    let answer = pbs.gpuos(&["top", "--once", &none]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""));
    let out = &answer.out;
    assert!(
        out.starts_with("2 nodes, 8 GPUs: 4 used, 0 out, 0 degraded; 1 running, 2 waiting"),
        "{out}"
    );
    assert!(out.contains("no gpuosd answers here"), "{out}");
    assert!(out.contains("900.head"), "{out}");
    // What a user wrote does nothing to the terminal.
    assert!(!out.contains('\u{1b}'), "{out:?}");
    let json = pbs.gpuos(&["top", "--json", &none]).json();
    assert_eq!(json["schema"], "gpuos.top/1");
    assert_eq!(json["gpus"][0]["jobs"][0], "900.head");
    assert_eq!(json["gpus"][0]["state"], "allocated");
    assert_eq!(json["jobs"][1]["state"], "queued");
    pbs.0.program(
        "qstat",
        "#!/bin/sh\necho 'Connection refused' >&2; exit 1\n",
    );
    let away = pbs.gpuos(&["top", "--once", &none]);
    assert_eq!(away.code, 1);
    assert!(away.out.contains("Connection refused"), "{}", away.out);
}

/// What `qmgr` answers of a hook that is as `gpuos pbs install` makes it.
fn with_hook(pbs: &Pbs) {
    let folder = pbs.0.path("");
    let resource = |one: &Resource| {
        let (name, kind, flags) = (one.name, one.kind, one.flags);
        format!("Resource {name}\n    type = {kind}\n    flag = {flags}\n")
    };
    let resources = RESOURCES.iter().map(resource);
    pbs.0.file("resources", &resources.collect::<String>());
    // As it is after all lines that install it.
    let lines = install(&Objects::new(), &Objects::new(), "", ("script", "config")).unwrap();
    let settings = lines.iter().filter_map(|line| {
        let setting = line.strip_prefix("set hook gpuos ")?;
        Some(format!("    {}\n", setting.replace('"', "")))
    });
    let hook = format!(
        "Hook gpuos\n    type = site\n{}",
        settings.collect::<String>()
    );
    pbs.0.file("hooks", &hook);
    let script = include_str!("../../../../pbs_hook/gpuos_hook.py");
    pbs.0.file("script", script);
    let host = serde_json::json!({ "gpus": vec![serde_json::json!({}); 4] });
    let config = serde_json::json!({
        "command": env!("CARGO_BIN_EXE_gpuos"), "library": "/none.so", "hosts": { "n0": host, "n1": host },
    });
    pbs.0.file("config", &config.to_string());
    pbs.0.program(
        "qmgr",
        &format!(
            "#!/bin/sh\ncase \"$2\" in 'list hook') f=hooks;; 'list resource') f=resources;; *x-python*) f=script;; *) f=config;; esac\n\
             exec /bin/cat {folder}/$f\n"
        ),
    );
    pbs.0.program("pbs_rstat", "#!/bin/sh\n");
    let ps = format!("#!/bin/sh\nexec /bin/cat {folder}/ps\n");
    pbs.0.program("ps", &ps);
    pbs.0.file(
        "ps",
        "      1 /sbin/init\n     20 /opt/pbs/sbin/pbs_server.bin\n",
    );
    pbs.0.file(
        "home/sched_priv/sched_config",
        "resources: \"ngpus, gpuos_nvlink, gpuos_linked, gpuos_leaf, ncpus\"\n",
    );
    pbs.0.file(
        "pbs.conf",
        &format!(
            "PBS_SERVER=head\nPBS_EXEC={folder}\nPBS_HOME={folder}/home\nPBS_START_SERVER=1\nPBS_START_SCHED=1\nPBS_START_MOM=0\n"
        ),
    );
}

#[test]
fn doctor_finds_a_pbs_that_is_as_it_was_installed_well() {
    let pbs = pbs(&half_full());
    with_hook(&pbs);
    let answer = pbs.gpuos(&["doctor"]);
    assert_eq!((answer.code, &answer.err[..]), (0, ""), "{}", answer.out);
    for told in [
        "pbs_server head answers, PBS 23.06.06",
        "the hook of gpuos is enabled, and of this release",
        "PBS has all resources of gpuos",
        "PBS counts the GPUs of n[0-1] as they are described, and these show which are free",
        "pbs_sched counts GPUs",
        "pbs_sched places jobs, without a planner",
        "of this release",
        "PBS has no vnodes of an earlier gpuos",
        "All is well.",
    ] {
        assert!(answer.out.contains(told), "{told}: {}", answer.out);
    }
    let json = pbs.gpuos(&["doctor", "--json"]).json();
    assert_eq!(json["schema"], "gpuos.doctor/1");
    crate::schemas::agrees("doctor", &json);
}

/// How a PBS is made otherwise than it was installed.
type Fault = (&'static str, fn(&Pbs), &'static [&'static str]);

#[test]
fn doctor_says_what_is_wrong_and_what_mends_it() {
    let faults: [Fault; 9] = [
        (
            "the hook is not there",
            |pbs| pbs.0.file("hooks", "Hook other\n    enabled = true\n"),
            &["PBS has no hook of gpuos", "gpuos pbs install"],
        ),
        (
            "it is off",
            |pbs| pbs.0.edit("hooks", "enabled = true", "enabled = false"),
            &["is not enabled", "set hook gpuos enabled = true"],
        ),
        (
            "it is of another release",
            |pbs| pbs.0.file("script", "import pbs\n"),
            &["of another release than this command"],
        ),
        (
            "a resource is missing",
            |pbs| {
                pbs.0
                    .edit("resources", "Resource gpuos_leaf\n", "Resource leaf\n")
            },
            &["PBS has no resource gpuos_leaf"],
        ),
        (
            "pbs_sched does not count GPUs",
            |pbs| pbs.0.edit("home/sched_priv/sched_config", "ngpus, ", ""),
            &[
                "pbs_sched does not look at ngpus",
                "a HUP",
                "it gives GPUs twice",
            ],
        ),
        (
            "the command is gone",
            |pbs| {
                pbs.0
                    .edit("config", env!("CARGO_BIN_EXE_gpuos"), "/none/gpuos")
            },
            &["the hook calls /none/gpuos, which is no program here"],
        ),
        (
            "the planner is taken for granted",
            |pbs| {
                pbs.0
                    .edit("config", "{\"command\"", "{\"planner\":true,\"command\"")
            },
            &[
                "the hook was told of a planner",
                "systemctl enable --now gpuos-pbs-planner",
            ],
        ),
        (
            "a planner has died",
            |pbs| {
                let one = "Resv ID: R7.head\nReserve_Name = gpuos_12\nReserve_Owner = root@head\nreserve_start = Fri Nov 27 12:09:31 2026\n\
                    Resource_List.select = 1:ngpus=1:vnode=n1\n";
                pbs.0.file("reservations", one);
                let folder = pbs.0.path("");
                let rstat = format!("#!/bin/sh\nexec /bin/cat {folder}/reservations\n");
                pbs.0.program("pbs_rstat", &rstat);
            },
            &[
                "reservation R7.head keeps GPUs for job 12",
                "pbs_rdel R7.head",
            ],
        ),
        (
            "pbs_server is away",
            |pbs| {
                pbs.0.program(
                    "qstat",
                    "#!/bin/sh\necho 'Connection refused' >&2; exit 1\n",
                )
            },
            &["pbs_server cannot be asked", "Connection refused"],
        ),
    ];
    for (what, plant, told) in faults {
        let pbs = pbs(&half_full());
        with_hook(&pbs);
        plant(&pbs);
        let answer = pbs.gpuos(&["doctor"]);
        assert_eq!(answer.code, 1, "{what}: {}{}", answer.out, answer.err);
        for told in told {
            assert!(answer.out.contains(told), "{what}: {told}: {}", answer.out);
        }
    }
    let pbs = pbs(&half_full());
    with_hook(&pbs);
    fs::remove_file(pbs.0.path("pbs.conf")).unwrap();
    let nothing = pbs.gpuos(&["doctor", "--pbs"]);
    assert_eq!(nothing.code, 2, "{}", nothing.out);
    assert!(nothing.out.contains("$PBS_CONF_FILE"), "{}", nothing.out);
}

#[test]
fn a_user_who_may_not_see_hooks_is_told_so() {
    let pbs = pbs(&half_full());
    with_hook(&pbs);
    let resources = pbs.0.path("resources");
    pbs.0.program(
        "qmgr",
        &format!(
            "#!/bin/sh\ncase \"$2\" in *hook*) echo 'user1@head is unauthorized to access hooks data from server head' >&2;; \
             *) exec /bin/cat {resources};; esac\n"
        ),
    );
    let answer = pbs.gpuos(&["doctor"]);
    assert_eq!(answer.code, 0, "{}", answer.out);
    assert!(
        answer
            .out
            .contains("PBS shows hooks to root on the host of pbs_server alone"),
        "{}",
        answer.out
    );
}

#[test]
fn slices_are_planned_by_what_hosts_count_and_show() {
    let pbs = pbs(&half_full());
    let answer = pbs.gpuos(&["mig", "plan", "3g.40gb"]);
    let none = "no GPU of this cluster is in MIG mode";
    assert!(
        answer.code == 1 && answer.err.contains(none),
        "{}",
        answer.err
    );
    pbs.0.file(
        "gpuos.toml",
        "[[mig.board]]\nname = \"a30\"\nprofiles = [{ id = 0, name = \"4g.24gb\", compute = 4, memory-mib = 24000, most = 1, size = 4, starts = [0] }]\n",
    );
    let toml = pbs.0.path("gpuos.toml");
    for args in [
        &["mig", "plan", "4g.24gb", "-N2"][..],
        &["plan", "--mig=4g.24gb", "--nodes=2"],
    ] {
        let answer = pbs.gpuos(&[&["--json", "--config", &toml], args].concat());
        assert_eq!(answer.code, 1, "{}", answer.err);
        let said: serde_json::Value = serde_json::from_str(&answer.out).expect("JSON");
        let asked = "qsub -l select=2:ncpus=1 -l place=scatter -l gpuos_mig=4g.24gb";
        assert_eq!(said["qsub"], asked);
        let sentence = said["sentence"].as_str().unwrap_or_default();
        assert!(
            sentence.starts_with("It has parts of GPUs, and pbs_sched alone"),
            "{sentence}"
        );
    }
}
