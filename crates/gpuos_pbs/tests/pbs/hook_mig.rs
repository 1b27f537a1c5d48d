//! Slices of GPUs, power, clocks and MPS: what a job's words become, and what its host does before a program starts.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{Code, MomOrders, Reply, Request};
use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::install::{divide, largest, read_hosts};
use gpuos_pbs::hook::talk::Daemon;
use serde_json::{Value, json};

use crate::hook::ask;
use crate::hook_talks::{choice, made, notes, orders, question, refusal, told};

fn profile(id: u32, name: &str, slices: [u8; 2], starts: &[u8], most: u8) -> Value {
    json!({ "id": id, "name": name, "compute": slices[0], "memory_mib": 9984 * u64::from(slices[1]), "most": most, "size": slices[1],
            "starts": starts, "engines": [0, 0, 0, 0] })
}

/// Two kinds of GPUs, one of seven compute and eight memory slices and one of four of each.
pub fn boards() -> Value {
    let all = [0, 1, 2, 3, 4, 5, 6];
    json!({
        "h100": [
            profile(19, "1g.10gb", [1, 1], &all, 7),
            profile(15, "1g.20gb", [1, 2], &[0, 2, 4, 6], 4),
            profile(9, "3g.40gb", [3, 4], &[0, 4], 2),
            profile(0, "7g.80gb", [7, 8], &[0], 1),
        ],
        "a30": [profile(14, "1g.6gb", [1, 1], &all[..4], 4), profile(5, "2g.12gb", [2, 2], &[0, 2], 2), profile(0, "4g.24gb", [4, 4], &[0], 1)],
    })
}

fn submit(resources: &Value) -> Value {
    ask(&json!({ "event": "queuejob", "boards": boards(), "job": { "resources": resources } }))
}

fn change(old: &Value, changed: &Value) -> Value {
    let (old, job) = (json!({ "resources": old }), json!({ "resources": changed }));
    ask(&json!({ "event": "modifyjob", "boards": boards(), "old": old, "job": job }))
}

#[test]
fn a_request_becomes_counts_in_the_chunk_and_how_much_one_gpu_has_to_have() {
    for (asked, counts) in [
        (
            "1g.10gb",
            "gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=h100",
        ),
        (
            "3g.40gb,1g.10gb:2",
            "gpuos_mig_compute=5:gpuos_mig_memory=6:gpuos_mig_board=h100",
        ),
        (
            "1g.20gb:3",
            "gpuos_mig_compute=3:gpuos_mig_memory=6:gpuos_mig_board=h100",
        ),
        // Of the kinds that have it, the one of which it takes the smallest part.
        (
            "15G",
            "gpuos_mig_compute=1:gpuos_mig_memory=2:gpuos_mig_board=h100",
        ),
        (
            "2g.12gb:2",
            "gpuos_mig_compute=4:gpuos_mig_memory=4:gpuos_mig_board=a30",
        ),
    ] {
        let found = made(&submit(
            &json!({ "select": "ncpus=2:mem=4gb", "gpuos_mig": asked }),
        ));
        assert_eq!(
            found["select"],
            format!("ncpus=2:mem=4gb:{counts}"),
            "{asked}"
        );
        assert!(!found.contains_key("place"), "{found:?}");
    }
    let off = submit(&json!({ "select": "1:ncpus=2", "gpuos_mig": "off" }));
    assert_eq!(off["edits"], json!([]));
}

#[test]
fn a_change_counts_anew_and_takes_out_what_was_counted() {
    let old = json!({
        "select": "1:ncpus=2:gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=h100",
        "place": "pack", "gpuos_mig": "1g.10gb",
    });
    let found = made(&change(&old, &json!({ "gpuos_mig": "3g.40gb" })));
    let counts = "gpuos_mig_compute=3:gpuos_mig_memory=4:gpuos_mig_board=h100";
    assert_eq!(
        found,
        BTreeMap::from([("select".into(), format!("1:ncpus=2:{counts}"))])
    );
    let found = made(&change(&old, &json!({ "select": "1:ncpus=4" })));
    assert!(
        found["select"].starts_with("1:ncpus=4:gpuos_mig_compute=1:"),
        "{found:?}"
    );
    let found = made(&change(&old, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        found,
        BTreeMap::from([("select".into(), "1:ncpus=2".into())])
    );
    // What is not about them leaves them.
    assert_eq!(
        change(&old, &json!({ "walltime": "60" }))["edits"],
        json!([])
    );
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    for (select, asked, says) in [
        (
            "1:ncpus=1",
            "9g.90gb",
            "no GPU here has a profile 9g.90gb; write a profile of this cluster: ",
        ),
        (
            "1:ncpus=1",
            "1g.10gb:8",
            "no GPU has so many at once; write ",
        ),
        // By their numbers they fit.
        (
            "1:ncpus=1",
            "1g.20gb:4,1g.6gb",
            "no kind of GPU has all of them",
        ),
        (
            "1:ncpus=1",
            "3g.40gb:2,1g.10gb:1",
            "no GPU has so many at once",
        ),
        ("1:ncpus=1", "1g.10gb:per-task", "PBS has no tasks"),
        (
            "2:ncpus=1",
            "3g.40gb,1g.10gb",
            "the job has 2 chunks, of which each has slices of one kind",
        ),
        ("ncpus=1+ncpus=2", "1g.10gb:8", "no GPU has so many at once"),
        ("1:ngpus=1", "1g.10gb", "the job asks for whole GPUs too"),
        (
            "1:gpuos_mig=1g.10gb",
            "1g.10gb",
            "cannot be said of a chunk",
        ),
    ] {
        let answer = submit(&json!({ "select": select, "gpuos_mig": asked }));
        let said = refusal(&answer);
        assert!(
            said.starts_with("-l gpuos_mig=") && said.contains(says),
            "{said}"
        );
        assert!(!said.contains("--gpuos"), "{said}");
    }
    let said = submit(&json!({ "gpuos_mig": "1g.10gb" }));
    assert!(refusal(&said).contains("has no -l select="));
    // gpuosd chooses the GPU: whatever place a user writes stays.
    for place in [
        "free:group=host",
        "pack:excl",
        "scatter",
        "group=gpuos_leaf:shared",
    ] {
        let job = json!({ "select": "1:ncpus=1", "place": place, "gpuos_mig": "1g.10gb" });
        assert!(!made(&submit(&job)).contains_key("place"), "{place}");
    }
    // A site without a pool.
    let none = ask(
        &json!({ "event": "queuejob", "job": { "resources": { "select": "1:ncpus=1", "gpuos_mig": "1g.10gb" } } }),
    );
    assert!(
        refusal(&none).contains("no GPU of this cluster is in MIG mode"),
        "{none}"
    );
    // What is set on whole GPUs needs some.
    for (name, value) in [
        ("gpuos_power", "300W"),
        ("gpuos_clocks", "1200"),
        ("gpuos_mps", "50%"),
    ] {
        let with = |select: &str| submit(&json!({ "select": select, name: value }));
        assert!(refusal(&with("1:ncpus=1")).contains("the job asks for no GPU"));
        assert_eq!(with("1:ngpus=1")["edits"], json!([]), "{name}");
    }
}

#[test]
fn each_of_several_chunks_has_slices_of_its_own() {
    let counts = "gpuos_mig_compute=2:gpuos_mig_memory=2:gpuos_mig_board=h100";
    let job = json!({ "select": "2:ncpus=1:mem=1gb+ncpus=4", "gpuos_mig": "1g.10gb:2" });
    let both = format!("2:ncpus=1:mem=1gb:{counts}+ncpus=4:{counts}");
    assert_eq!(
        made(&submit(&job)),
        BTreeMap::from([("select".into(), both.clone())])
    );
    let old = json!({ "select": both, "place": "scatter", "gpuos_mig": "1g.10gb:2" });
    let found = made(&change(&old, &json!({ "select": "1:ncpus=1" })));
    assert_eq!(
        found,
        BTreeMap::from([("select".into(), format!("1:ncpus=1:{counts}"))])
    );
    let found = made(&change(&old, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        found,
        BTreeMap::from([("select".into(), "2:ncpus=1:mem=1gb+ncpus=4".into())])
    );
    assert_eq!(change(&old, &json!({ "select": both }))["edits"], json!([]));
}

#[test]
fn slices_that_were_not_counted_are_not_started() {
    let start = |given: &str| {
        let resources = json!({ "select": "1:ncpus=1", "gpuos_mig": "1g.10gb" });
        let job = json!({ "id": "1.head", "resources": resources, "exec_vnode": given });
        ask(&json!({ "event": "runjob", "now": 1000, "job": job }))
    };
    let one = |vnode: &str| format!("({vnode}:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1)");
    // Several chunks may be on one host.
    let all = [one("n1"), one("n1"), one("n2")].join("+");
    for given in [one("n1"), all, one("n1[1]")] {
        assert_eq!(start(&given)["verdict"], "accept", "{given}");
    }
    for given in [
        "(n1:ncpus=1)".to_owned(),
        format!("{}+(n2:ncpus=1)", one("n1")),
    ] {
        let said = start(&given);
        assert!(
            refusal(&said).contains("a default of the queue or of the server"),
            "{said}"
        );
    }
}

fn launch(resources: &Value, given: &str) -> Value {
    json!({
        "event": "execjob_launch", "server": {}, "host": "n1.site", "gpuosd": "/run/g.sock",
        "hosts": { "n1": { "gpus": [{}, {}, {}, { "mig": { "board": "h100", "compute": 7, "memory": 8 } }] } },
        "job": { "id": "1.head", "resources": resources, "exec_vnode": given, "user": "ann", "uid": 7, "gid": 70, "run": 2 },
    })
}

/// What gpuosd is told, and how long the start waits.
fn asked(event: &Value) -> (Vec<Request>, usize, u64) {
    let question = question(event);
    let [talk] = &question.talks[..] else {
        panic!("{:?}", question.talks);
    };
    (
        told(&question, Daemon::Gpuosd),
        talk.answers,
        talk.patience_ms,
    )
}

/// What is done where gpuosd has chosen these GPUs, and says this of what the job asks of them.
fn done_by(event: &Value, chosen: &[usize], said: &Result<Reply, &str>) -> Value {
    let first = match chosen {
        [] => orders(MomOrders::default()),
        chosen => choice("1.head", chosen, ""),
    };
    let said = said.as_ref().map(|reply| [first, reply.clone()]);
    crate::hook_talks::done(
        event,
        said.as_ref().map(|all| &all[..]).map_err(|why| **why),
    )
}

fn done(event: &Value, said: &Result<Reply, &str>) -> Value {
    done_by(event, &[], said)
}

fn prepared(environment: &[(&str, &str)], notes: &[&str]) -> Reply {
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    Reply::Prepared {
        notes: notes.iter().map(|note| (*note).to_string()).collect(),
        environment: environment.collect(),
        failed: None,
    }
}

#[test]
fn a_program_with_slices_waits_for_them_and_does_not_start_without() {
    let event = launch(
        &json!({ "gpuos_mig": "1g.10gb:2" }),
        "(n1:ncpus=1:gpuos_mig_compute=2:gpuos_mig_memory=2)",
    );
    let (requests, answers, patience) = asked(&event);
    assert_eq!(answers, 3);
    // gpuosd says something after 40 s; half the hook's alarm is 60 s.
    assert!((40_000..60_000).contains(&patience));
    let [
        Request::Mom { report },
        Request::StepStart {
            id,
            uid,
            gpus,
            mig: Some(mig),
            ..
        },
    ] = &requests[..]
    else {
        panic!("{requests:?}");
    };
    let slices = report.jobs[0].slices.clone().expect("slices");
    assert_eq!(
        (
            &slices.request[..],
            slices.gpus.len(),
            report.jobs[0].gpus.len()
        ),
        ("1g.10gb:2", 0, 0)
    );
    assert_eq!((slices.chunks, slices.compute, slices.memory), (1, 2, 2));
    assert_eq!(
        (id.job.to_string(), *uid, gpus.len(), &mig.request[..]),
        ("1.head".into(), 7, 0, "1g.10gb:2")
    );

    let given = [
        ("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"),
        ("GPUOS_MIG_PROFILES", "1g.10gb,1g.10gb"),
        ("LD_PRELOAD", "/x"),
    ];
    let said = done(&event, &Ok(prepared(&given, &[])));
    assert_eq!(
        said["edits"],
        json!([{ "set": "env", "name": "CUDA_VISIBLE_DEVICES", "value": "MIG-a\\,MIG-b" },
               { "set": "env", "name": "GPUOS_MIG_PROFILES", "value": "1g.10gb\\,1g.10gb" }])
    );
    let refused = Reply::Refused {
        code: Code::Forbidden,
        message: "no placement is free".into(),
    };
    let failed = Reply::Prepared {
        notes: Vec::new(),
        environment: BTreeMap::new(),
        failed: Some("no placement is free".into()),
    };
    for (what, why) in [
        (Ok(refused), "no placement is free"),
        (Ok(failed), "no placement is free"),
        (Ok(prepared(&[], &[])), "gpuosd is not told"),
        (Err(""), "gpuosd does not run on this host"),
        (
            Err("it took longer than 46000 ms"),
            "it took longer than 46000 ms",
        ),
    ] {
        let said = done(&event, &what);
        assert!(refusal(&said).contains(why), "{said}");
        assert_eq!(
            said["edits"],
            json!([{ "set": "requeue" }]),
            "PBS would delete the job"
        );
    }
    // On another host than that of the script mom does nothing else meanwhile, and PBS queues nothing again for a task.
    let given = "(n2:gpuos_mig_compute=2:gpuos_mig_memory=2)+(n1:gpuos_mig_compute=2:gpuos_mig_memory=2)+(n1:gpuos_mig_compute=2:gpuos_mig_memory=2)";
    let other = launch(&json!({ "gpuos_mig": "1g.10gb:2" }), given);
    let (requests, answers, patience) = asked(&other);
    let Some(Request::Mom { report }) = requests.first() else {
        panic!("{requests:?}");
    };
    let slices = report.jobs[0].slices.clone().expect("slices");
    assert_eq!((slices.chunks, slices.memory), (2, 4));
    assert!(answers == 3 && patience < 40_000, "{patience}");
    let said = done(&other, &Err("it took longer than 25000 ms"));
    assert!(
        refusal(&said).contains("this program of it is not started"),
        "{said}"
    );
    assert_eq!(said["edits"], json!([]));
    // Those of a vnode of a release before this one are of its GPU.
    let mut former = event.clone();
    former["hosts"]["n1"]["former"] = json!([3]);
    former["job"]["exec_vnode"] = "(n1[3]:gpuos_mig_compute=2:gpuos_mig_memory=2)".into();
    let (requests, ..) = asked(&former);
    let Some(Request::Mom { report }) = requests.first() else {
        panic!("{requests:?}");
    };
    let slices = report.jobs[0].slices.clone().expect("slices");
    assert_eq!(
        slices
            .gpus
            .iter()
            .map(|gpu| u8::from(*gpu))
            .collect::<Vec<_>>(),
        [3]
    );
    // A site that asks no gpuosd at all, and another host of the job's.
    let mut alone = event.clone();
    alone["gpuosd"] = "".into();
    assert!(refusal(&ask(&alone)).contains("gpuosd is not told of jobs on this host"));
    alone["host"] = "n2".into();
    assert_eq!(ask(&alone)["verdict"], "accept");
}

#[test]
fn a_start_waits_for_power_clocks_and_mps_and_goes_on_without() {
    let wishes = json!({ "gpuos_power": "300W", "gpuos_clocks": "1200-1500", "gpuos_mps": "50%" });
    let event = launch(&wishes, "(n1:ncpus=1:ngpus=2)");
    let (requests, answers, patience) = asked(&event);
    assert_eq!((answers, patience), (3, 10_000));
    let Some(Request::StepStart {
        gpus,
        asked: sets,
        mig: None,
        ..
    }) = requests.last()
    else {
        panic!("{requests:?}");
    };
    assert!(gpus.is_empty(), "those of the job, which gpuosd has chosen");
    let mps = sets.mps.expect("MPS");
    assert!(sets.sets() && (mps.percent, mps.gid, mps.joint) == (50, 70, false));
    let note = "GPUs 0,2: 300 W is set for --gpuos-power=900W";
    let pipe = prepared(&[("CUDA_MPS_PIPE_DIRECTORY", "/run/p")], &[note]);
    let said = done_by(&event, &[0, 2], &Ok(pipe));
    assert_eq!(made(&said)["GPUOS_GPUS"], "0\\,2");
    assert_eq!(
        said["notes"],
        json!(["GPUs 0,2: 300 W is set for -l gpuos_power=900W"])
    );
    let last = said["edits"].as_array().and_then(|edits| edits.last());
    assert_eq!(last.expect("an edit")["name"], "CUDA_MPS_PIPE_DIRECTORY");
    let said = done(&event, &Err("it took longer than 10000 ms"));
    assert_eq!(said["verdict"], "accept");
    assert!(notes(&said).contains("are not set"), "{said}");
    // A job that asks for nothing of its GPUs waits for the choice alone.
    let (requests, answers, _) = asked(&launch(&json!({}), "(n1:ngpus=1)"));
    assert_eq!((requests.len(), answers), (1, 2));
}

const TOML: &str = "[[mig.board]]\nname = \"h100\"\nprofiles = [{ id = 0, name = \"7g.80gb\", compute = 7, memory-mib = 80000, most = 1, \
                    size = 8, starts = [0] }]\n[[mig.pool]]\nnodes = \"n1\"\ngpus = \"2-3\"\nboard = \"h100\"\n";

fn divided(toml: &str, count: usize) -> Result<BTreeMap<String, Host>, String> {
    let config = Config::parse(toml, "gpuos.toml").expect("a file");
    let text = json!({ "n1.site": { "gpus": vec![json!({}); count] }, "n2": { "gpus": [{}] } });
    let mut hosts = read_hosts(&text.to_string())?;
    divide(&mut hosts, &config.mig)?;
    Ok(hosts)
}

#[test]
fn gpus_of_a_pool_are_none_that_are_given_as_a_whole() {
    let hosts = divided(TOML, 4).expect("a pool");
    assert_eq!(largest(&hosts)["node"], 2, "of whole GPUs");
    let gpus = &hosts["n1.site"].gpus;
    let divided: Vec<_> = gpus
        .iter()
        .map(|gpu| {
            gpu.mig
                .as_ref()
                .map(|mig| (&mig.board[..], mig.compute, mig.memory))
        })
        .collect();
    assert_eq!(
        divided,
        [None, None, Some(("h100", 7, 8)), Some(("h100", 7, 8))]
    );
}

#[test]
fn a_pool_that_pbs_cannot_count_is_refused() {
    let why = |toml: &str, count| divided(toml, count).expect_err("no pool of PBS's");
    assert!(why(TOML, 5).contains("those of a pool have to be its last ones"));
    assert!(why(TOML, 3).contains("the host has 3"));
    let switchable = TOML.replace("gpus = \"2-3\"\n", "gpus = \"2-3\"\nswitchable = \"3\"\n");
    assert!(why(&switchable, 4).contains("GPUs 3 of n1 are MIG-switchable"));
    assert!(
        divided(&TOML.replace("n1", "n7"), 4)
            .expect("no pool here")
            .values()
            .flat_map(|host| &host.gpus)
            .all(|gpu| gpu.mig.is_none())
    );
}
