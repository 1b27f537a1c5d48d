//! `gpuos mig plan` over a cluster of three nodes with two divided GPUs each, and `gpuos mig assert`.

use std::fmt::Write;

use gpuos_core::wire::MigStatus;

use crate::mig::{daemon, pool};
use crate::site::Site;

pub const CONFIG: &str = r#"
[[mig.board]]
name = "h100-80gb"
profiles = [
  { id = 19, name = "1g.10gb", compute = 1, memory-mib = 9984, most = 7, size = 1, starts = [0, 1, 2, 3, 4, 5, 6] },
  { id = 14, name = "2g.20gb", compute = 2, memory-mib = 20096, most = 3, size = 2, starts = [0, 2, 4] },
  { id = 9, name = "3g.40gb", compute = 3, memory-mib = 40448, most = 2, size = 4, starts = [0, 4] },
  { id = 0, name = "7g.80gb", compute = 7, memory-mib = 81152, most = 1, size = 8, starts = [0] },
]
[[mig.pool]]
nodes = "n[1-3]"
gpus = "4-5"
board = "h100-80gb"
"#;

/// Number, node, slices as Slurm writes them, instances, and the hour of its end; `None`: it has none.
pub type Runs = (u32, &'static str, &'static str, &'static str, Option<u32>);

/// n1 has four free slices of GPU 4 without a placement for 3g.40gb, n2 half a GPU, n3 is drained.
pub const JOBS: [Runs; 5] = [
    (21, "n1", "4(IDX:0-3)", "3g.40gb:1", Some(21)),
    (22, "n1", "1(IDX:6)", "1g.10gb:1", Some(22)),
    (23, "n1", "8(IDX:8-15)", "7g.80gb:1", Some(23)),
    (24, "n2", "8(IDX:0-7)", "7g.80gb:1", None),
    (25, "n2", "1(IDX:8)", "1g.10gb:1", Some(20)),
];

/// The cluster with these jobs.
pub fn site(jobs: &[Runs]) -> Site {
    let site = Site::new("24.11.5");
    site.file("gpuos.toml", CONFIG);
    let nodes = ["n1", "n2", "n3"].map(|node| {
        let state = if node == "n3" { "IDLE+DRAIN" } else { "MIXED" };
        format!(
            "NodeName={node} Arch=x86_64 CoresPerSocket=8\n   CPUAlloc=4 CPUEfctv=16 CPUTot=16\n   \
             Gres=gpuos:h100-80gb:16(S:0)\n   RealMemory=1000 AllocMem=50 Sockets=2 Boards=1\n   \
             State={state} ThreadsPerCore=1 Weight=1\n   Partitions=main\n\n"
        )
    });
    site.file("nodes.txt", &nodes.concat());
    let mut text = String::new();
    for (id, node, slices, mig, end) in jobs {
        let end = end.map_or("Unknown".into(), |hour| format!("2026-11-20T{hour}:00:00"));
        let count = slices.split('(').next().unwrap();
        writeln!(
            text,
            "JobId={id} JobName=a\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
             Requeue=1 Restarts=0 BatchFlag=1\n   RunTime=01:00:00 TimeLimit=02:00:00\n   \
             StartTime=2026-11-20T19:00:00 EndTime={end}\n   Partition=main\n   NodeList={node}\n   \
             NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1\n     \
             Nodes={node} CPU_IDs=0 Mem=10 GRES=gpuos:h100-80gb:{slices}\n   \
             SystemComment=gpuos: level=slice mig={mig} gpus={node}:-\n   \
             TresPerNode=gres/gpuos:h100-80gb:{count}\n"
        )
        .unwrap();
    }
    site.file("jobs.txt", &text);
    site
}

/// No gpuosd is there, so that only Slurm is asked.
fn plan(site: &Site, args: &[&str]) -> crate::site::Answer {
    let dir = format!("--runtime-dir={}", site.path("nowhere"));
    site.run(&[&["mig", "plan"], args, &[&dir]].concat())
}

#[test]
fn a_job_gets_a_whole_placement_and_what_still_fits_is_shown() {
    let site = site(&JOBS);
    let answer = plan(&site, &["3g.40gb"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    for words in [
        "It would start now: 3g.40gb of 1 node (n2)",
        "NODE  GPU  PROFILE  SLICES\nn2      5  3g.40gb  4-7\n",
        "FITS AFTER IT\nn2    0.",
        "1g.10gb:3 or 2g.20gb:1\n",
        "by the mix of 5 jobs",
    ] {
        assert!(answer.out.contains(words), "{words}:\n{}", answer.out);
    }
    let json = plan(&site, &["10G:2", "--json"]).json();
    assert_eq!(
        (&json["schema"], &json["board"]),
        (&"gpuos.mig-plan/1".into(), &"h100-80gb".into())
    );
    assert_eq!(
        (&json["profiles"], &json["slices_per_node"], &json["fits"]),
        (&"1g.10gb:2".into(), &2.into(), &true.into())
    );
    // Half a placement of 3g.40gb that is broken already costs least.
    let place = &json["place"][0];
    assert_eq!(place["instances"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!(place["node"], "n1");
    // The profile that is largest comes first, and each task has its own.
    let json = plan(
        &site,
        &["1g.10gb:per-task", "--ntasks-per-node=3", "n2", "--json"],
    )
    .json();
    assert_eq!(
        (&json["slices_per_node"], &json["place"][0]["node"]),
        (&3.into(), &"n2".into())
    );
    assert_eq!(json["place"][0]["bits"].as_array().unwrap().len(), 3);
}

#[test]
fn what_waits_is_told_for_whom_and_until_when() {
    let site = site(&JOBS);
    let answer = plan(&site, &["7g.80gb"]);
    assert_eq!(answer.code, 1, "{}{}", answer.out, answer.err);
    for words in [
        "no node that it may use has room for 7g.80gb now",
        "At 2026-11-20T20:00:00 at the latest there is room, when job 25 has ended.",
        "n1    4:4-5,7  no free placements  2026-11-20T22:00:00  21,22\n",
        "n3    4:0-7 5:0-7  idle+drain",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            squeezed(&answer.out).contains(&squeezed(words)),
            "{words}:\n{}",
            answer.out
        );
    }
    let json = plan(&site, &["7g.80gb", "-N2", "--json"]).json();
    assert_eq!(json["forecast"]["at"], "2026-11-20T22:00:00", "{json}");
    assert_eq!(
        json["forecast"]["jobs"],
        serde_json::json!(["25", "21", "22"])
    );
    assert_eq!(json["waits"].as_array().unwrap().len(), 3);
    // Only n1, where four slices are free and no placement of them.
    let json = plan(&site, &["3g.40gb", "n1", "--json"]).json();
    assert_eq!(
        (&json["fits"], &json["forecast"]["jobs"]),
        (&false.into(), &serde_json::json!(["21"]))
    );
    // The end of the job on all of n2's first GPU is not known.
    let json = plan(&site, &["7g.80gb:2", "n2", "--json"]).json();
    assert!(json["forecast"].is_null(), "{json}");
}

#[test]
fn nodes_that_are_not_for_the_job_are_told() {
    let site = site(&JOBS[..1]);
    for (args, why) in [
        (&["3g.40gb", "n3"][..], "idle+drain"),
        (&["3g.40gb", "n1", "-c13"], "12 CPUs free, 13 needed"),
        (&["3g.40gb", "n1", "-x", "n1"], "not for this job"),
        (&["3g.40gb", "-p", "other"], "not for this job"),
    ] {
        let json = plan(&site, &[args, &["--json"]].concat()).json();
        assert_eq!(json["fits"], false, "{json}");
        assert!(
            json["waits"][0]["why"].as_str().unwrap().contains(why),
            "{why}: {json}"
        );
    }
    // A GPU of the pool that gpuosd has out of service.
    let text = std::fs::read_to_string(site.path("nodes.txt")).unwrap();
    let out = "   Extra=[gpuos:1 mig-out=5]\n   RealMemory";
    site.file("nodes.txt", &text.replace("   RealMemory", out));
    let json = plan(&site, &["7g.80gb", "n1", "--json"]).json();
    let free = serde_json::json!([{ "gpu": 4, "slices": [4, 5, 6, 7] }]);
    assert_eq!(
        (&json["fits"], &json["waits"][0]["free"]),
        (&false.into(), &free),
        "{json}"
    );
    site.edit("nodes.txt", "gpuos:h100-80gb:16", "gpuos:h100-80gb:8");
    let json = plan(&site, &["3g.40gb", "n1", "--json"]).json();
    let why = json["waits"][0]["why"].as_str().unwrap();
    assert!(why.contains("slurm.conf has 8 slices"), "{why}");
}

#[test]
fn what_no_board_has_is_refused_with_the_profiles_that_there_are() {
    let site = site(&JOBS);
    let answer = plan(&site, &["4g.40gb"]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.err.contains("1g.10gb, 2g.20gb, 3g.40gb, 7g.80gb"),
        "{}",
        answer.err
    );
    let answer = plan(&site, &["3g"]);
    assert!(
        answer.code == 2 && answer.err.contains("start of a profile's name"),
        "{}",
        answer.err
    );
    assert_eq!(plan(&site, &["3g.40gb", "n9"]).code, 1);
    site.file("gpuos.toml", "");
    let answer = plan(&site, &["3g.40gb"]);
    assert!(
        answer.code == 1 && answer.err.contains("[[mig.pool]]"),
        "{}",
        answer.err
    );
}

/// Jobs of the proposal, its cost, and whether it is proved.
fn goes(json: &serde_json::Value) -> (Vec<&str>, Option<f64>, Option<bool>) {
    let jobs = json["defrag"]["jobs"].as_array().unwrap();
    (
        jobs.iter()
            .map(|job| job["job"].as_str().unwrap())
            .collect(),
        json["defrag"]["cost_gpu_seconds"].as_f64(),
        json["defrag"]["proved"].as_bool(),
    )
}

#[test]
fn the_cheapest_jobs_to_requeue_are_named_with_their_cost() {
    let site = site(&JOBS);
    let answer = site.run(&["plan", "--mig=7g.80gb", "--defrag"]);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    for words in [
        "no node that it may use has room for 7g.80gb now",
        "At 2026-11-20T20:00:00 at the latest there is room, when job 25 has ended.",
        "With 1 job requeued it could start: 7g.80gb of 1 node (n2)",
        "Cost: 465 GPU-seconds of work lost, with 120 s for each restart (proved cheapest",
        "Nothing was done; `scontrol requeue 25` would do it.",
    ] {
        assert!(answer.out.contains(words), "{words}:\n{}", answer.out);
    }
    let ask = |args: &[&str]| {
        site.run(&[&["--json", "plan", "--defrag"], args].concat())
            .json()
    };
    // (3600 + 120) s of an eighth of a GPU for each slice.
    let whole = ask(&["--gpuos-mig=7g.80gb"]);
    assert_eq!(goes(&whole), (vec!["25"], Some(465.0), Some(true)));
    assert_eq!(whole["defrag"]["place"][0]["instances"][0]["gpu"], 5);
    assert_eq!(
        (&whole["fits"], &whole["schema"]),
        (&false.into(), &"gpuos.mig-plan/1".into())
    );
    // Several instances, and a node that the job names.
    let two = ask(&["--mig=3g.40gb:2", "-w", "n1"]);
    assert_eq!(goes(&two), (vec!["21", "22"], Some(2325.0), Some(true)));
    let three = ask(&["--mig=3g.40gb:2,1g.10gb", "-w", "n1"]);
    assert_eq!(goes(&three), (vec!["23"], Some(3720.0), Some(true)));
    let none = ask(&["--mig=3g.40gb", "-w", "n3"]);
    assert_eq!(
        (&none["defrag"]["possible"], goes(&none).0.len()),
        (&false.into(), 0)
    );
    // On two nodes that share no job.
    let both = plan(
        &site,
        &[
            "7g.80gb",
            "-N2",
            "--defrag",
            "--restart-seconds=0",
            "--json",
        ],
    )
    .json();
    assert_eq!(
        goes(&both),
        (vec!["21", "22", "25"], Some(2700.0), Some(true))
    );
    // What fits asks for nobody to go.
    let fits = plan(&site, &["3g.40gb", "--defrag"]);
    assert!(
        fits.code == 0 && !fits.out.contains("requeue"),
        "{}",
        fits.out
    );
}

#[test]
fn jobs_that_may_not_be_requeued_stay() {
    let site = site(&JOBS);
    let text = std::fs::read_to_string(site.path("jobs.txt")).unwrap();
    let (before, last) = text.split_once("JobId=25").unwrap();
    let last = last.replace("Requeue=1", "Requeue=0");
    site.file("jobs.txt", &format!("{before}JobId=25{last}"));
    let json = plan(&site, &["7g.80gb", "--defrag", "--json"]).json();
    assert_eq!(goes(&json), (vec!["21", "22"], Some(2325.0), Some(true)));
    assert_eq!(
        (
            &json["defrag"]["requeueable_jobs"],
            &json["defrag"]["kept_jobs"]
        ),
        (&4.into(), &1.into())
    );
    let answer = plan(&site, &["7g.80gb:2", "n2", "--defrag"]);
    assert_eq!(answer.code, 1);
    assert!(
        answer
            .out
            .contains("No set of jobs makes room by being requeued: 1 with"),
        "{}",
        answer.out
    );
    // It is of whole GPUs only.
    let wrong = site.run(&["plan", "--mig=7g.80gb", "--topology=node"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert_eq!(site.run(&["plan", "--mig=7g.80gb", "--gpus=1"]).code, 2);
}

#[test]
fn what_the_search_for_jobs_to_requeue_leaves_out_is_told() {
    let defrag = |site: &Site, more: &[&str]| {
        let answer = plan(site, &[&["7g.80gb", "--defrag"], more].concat());
        let json = plan(site, &[&["7g.80gb", "--defrag", "--json"], more].concat()).json();
        (answer, json["defrag"]["proved"].as_bool())
    };
    // n1 has 4 CPUs, n2 has 12.
    let site = site(&JOBS);
    let nodes = std::fs::read_to_string(site.path("nodes.txt")).unwrap();
    site.file("nodes.txt", &nodes.replacen("CPUAlloc=4", "CPUAlloc=12", 1));
    let (both, proved) = defrag(&site, &["-c13"]);
    assert_eq!((both.code, proved), (1, Some(false)));
    let words = "CPUs or memory are what n[1-2] lacks: which jobs would have to go for these is not looked at.";
    assert!(both.out.contains(words), "{}", both.out);
    assert!(!both.out.contains("No set of jobs"), "{}", both.out);
    let (one, proved) = defrag(&site, &["-c8"]);
    assert_eq!((one.code, proved), (0, Some(false)));
    let words = "(the cheapest on these nodes; n1 has too few CPUs or too little memory free and is left out)";
    assert!(one.out.contains(words), "{}", one.out);
    let (two, proved) = defrag(&site, &["-c8", "-N2"]);
    assert_eq!((two.code, proved), (1, Some(false)));
    for words in ["No set of jobs makes room", "memory are what n1 lacks"] {
        assert!(two.out.contains(words), "{words}: {}", two.out);
    }
    // Sixteen jobs, each on two GPUs: of the ten that are tried five are on a pair.
    let place = |at: usize| {
        format!(
            "2(IDX:{0},{1})",
            at % 2 * 16 + at / 2,
            at % 2 * 16 + at / 2 + 8
        )
    };
    let places = (0..16).map(place).map(String::leak);
    let wide = places.zip(30..);
    let wide: Vec<Runs> = wide
        .map(|(at, id)| (id, "n1", &*at, "1g.10gb:2", None))
        .collect();
    let site = self::site(&wide);
    site.file(
        "gpuos.toml",
        &CONFIG.replace("gpus = \"4-5\"", "gpus = \"4-7\""),
    );
    let nodes = std::fs::read_to_string(site.path("nodes.txt")).unwrap();
    site.file("nodes.txt", &nodes.replace("80gb:16", "80gb:32"));
    let (cut, proved) = defrag(&site, &["n1"]);
    assert_eq!((cut.code, proved), (1, Some(false)), "{}", cut.out);
    let words = "No set of jobs was found that makes room by being requeued, and there may be one: several nodes, or many \
                 jobs on several GPUs, are not tried in all ways: 16 with slices";
    assert!(cut.out.contains(words), "{}", cut.out);
    assert_eq!(
        defrag(&site, &["n1", "--nodes=1", "-x", "n1"]).1,
        Some(true)
    );
}

/// gpuosd of this machine knows of an instance that Slurm does not.
#[test]
fn an_instance_made_by_hand_in_the_way_is_told() {
    let site = site(&[(24, "n1", "8(IDX:0-7)", "7g.80gb:1", None)]);
    let run = daemon(&site, pool());
    let ask = ["mig", "plan", "7g.80gb", "n1", &run];
    let answer = site.run(&ask);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    let words =
        "note: 1g.10gb made by hand is in memory slices 6 of GPU 5 of n1: 7g.80gb could not";
    assert!(answer.out.contains(words), "{}", answer.out);
}

fn assert_file(site: &Site, run: &str, text: &str) -> crate::site::Answer {
    site.file("layout.toml", text);
    site.run(&["mig", "assert", &site.path("layout.toml"), run])
}

#[test]
fn gpus_are_held_against_a_file() {
    let site = Site::new("24.11.5");
    let run = daemon(&site, pool());
    let layout = site.run(&["mig", "--layout", &run]);
    assert_eq!(layout.code, 0, "{}", layout.err);
    let wanted = "\
# How GPUs are divided: `gpuos mig assert FILE` compares.

[[gpu]]
nodes = \"n1\"
gpus = \"4\"
instances = [\"3g.40gb@4-7\"]

[[gpu]]
nodes = \"n1\"
gpus = \"5\"
instances = [\"1g.10gb@6\"]
";
    assert_eq!(layout.out, wanted);
    let same = assert_file(&site, &run, &layout.out);
    assert_eq!(
        (same.code, same.out.starts_with("2 GPUs as")),
        (0, true),
        "{}",
        same.err
    );
    let counted = "[[gpu]]\ngpus = \"4\"\ninstances = [\"3g.40gb\"]\n";
    assert_eq!(assert_file(&site, &run, counted).code, 0);

    let differs = "[[gpu]]\ngpus = \"4-6\"\ninstances = [\"1g.10gb:2\"]\n";
    let answer = assert_file(&site, &run, differs);
    let wanted = "\
n1 GPU 4: 1g.10gb:2 is not there
n1 GPU 4: 3g.40gb@4-7 is there and not wanted
n1 GPU 5: 1g.10gb is not there
n1 GPU 6: it is in no [[mig.pool]] of its node
";
    assert_eq!(
        (answer.code, &answer.out[..]),
        (1, wanted),
        "{}",
        answer.err
    );
    let json = site
        .run(&["--json", "mig", "assert", &site.path("layout.toml"), &run])
        .json();
    assert_eq!(
        (&json["as_said"], &json["compared"]),
        (&false.into(), &3.into())
    );
    assert_eq!(json["differences"].as_array().unwrap().len(), 4);
}

#[test]
fn a_gpuosd_that_has_not_read_gpuos_toml_knows_no_pool() {
    let site = Site::new("24.11.5");
    let unread = MigStatus {
        unread: true,
        ..MigStatus::default()
    };
    let run = daemon(&site, unread);
    let answer = assert_file(&site, &run, "[[gpu]]\ngpus = \"4\"\ninstances = []\n");
    let wanted = "n1 GPU 4: not known: gpuosd has not read gpuos.toml yet\n";
    assert_eq!(
        (answer.code, &answer.out[..]),
        (2, wanted),
        "{}",
        answer.err
    );
    let shown = site.run(&["mig", &run]);
    assert_eq!(shown.code, 1);
    assert!(shown.out.contains("not read gpuos.toml"), "{}", shown.out);
    let layout = site.run(&["mig", "--layout", &run]);
    assert!(layout.out.contains("not read gpuos.toml"), "{}", layout.out);
}

#[test]
fn what_cannot_be_known_and_a_mistake_in_the_file_are_code_2() {
    let site = Site::new("24.11.5");
    let mut status = pool();
    status.gpus[0].ready = false;
    let run = daemon(&site, status);
    site.program("reach", "#!/bin/sh\nexit 255\n");
    let text = "[[gpu]]\nnodes = \"n[1-2]\"\ngpus = \"4\"\ninstances = []\n";
    site.file("layout.toml", text);
    let answer = site.run(&[
        "mig",
        "assert",
        &site.path("layout.toml"),
        "--via=reach",
        &run,
    ]);
    assert_eq!(answer.code, 2, "{}", answer.err);
    for words in [
        "n1 GPU 4: not known: gpuosd has not heard",
        "n2 GPU 4: not known: no answer from n2",
    ] {
        assert!(answer.out.contains(words), "{words}: {}", answer.out);
    }
    let bad = assert_file(&site, &run, "[[gpu]]\ngpus = \"4\"\ninstances = [\"3g\"]\n");
    assert_eq!(bad.code, 2);
    let place = format!(
        "{}:3:14: instances = \"3g\" is not accepted",
        site.path("layout.toml")
    );
    assert!(bad.err.contains(&place), "{}", bad.err);
    let gone = site.run(&["--json", "mig", "assert", "/nowhere/at-all"]);
    assert_eq!(
        (gone.code, &gone.json()["schema"]),
        (2, &"gpuos.error/1".into())
    );
}
