//! Slices of GPUs, power, clocks and MPS: what a job's words become, and what its host does before a program starts.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{Code, Reply, Request};
use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::install::{divide, largest, read_hosts};
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

use crate::hook::ask;

fn profile(id: u32, name: &str, slices: [u8; 2], starts: &[u8], most: u8) -> Value {
    json!({ "id": id, "name": name, "compute": slices[0], "memory_mib": 9984 * u64::from(slices[1]), "most": most, "size": slices[1],
            "starts": starts, "engines": [0, 0, 0, 0] })
}

/// Two kinds of GPUs, one of seven compute and eight memory slices and one of four of each.
fn boards() -> Value {
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

/// What an accepted job becomes.
fn edits(answer: &Value) -> BTreeMap<String, String> {
    assert_eq!(answer["verdict"], "accept", "{answer}");
    let edits = answer["edits"].as_array().expect("edits").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    edits
        .map(|edit| (text(&edit["name"]), text(&edit["value"])))
        .collect()
}

fn refusal(answer: &Value) -> &str {
    assert_eq!(answer["verdict"], "reject", "{answer}");
    answer["message"].as_str().expect("a sentence")
}

#[test]
fn a_request_becomes_counts_in_the_chunk_and_a_group_of_one_gpu() {
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
        let found = edits(&submit(
            &json!({ "select": "ncpus=2:mem=4gb", "gpuos_mig": asked }),
        ));
        assert_eq!(
            found["select"],
            format!("ncpus=2:mem=4gb:{counts}"),
            "{asked}"
        );
        assert_eq!(found["place"], "free:group=gpuos_mig_gpu");
    }
    let off = submit(&json!({ "select": "1:ncpus=2", "gpuos_mig": "off" }));
    assert_eq!(off["edits"], json!([]));
}

#[test]
fn a_change_counts_anew_and_takes_out_what_was_counted() {
    let old = json!({
        "select": "1:ncpus=2:gpuos_mig_compute=1:gpuos_mig_memory=1:gpuos_mig_board=h100",
        "place": "pack:group=gpuos_mig_gpu", "gpuos_mig": "1g.10gb",
    });
    let found = edits(&change(&old, &json!({ "gpuos_mig": "3g.40gb" })));
    let counts = "gpuos_mig_compute=3:gpuos_mig_memory=4:gpuos_mig_board=h100";
    assert_eq!(
        found,
        BTreeMap::from([("select".into(), format!("1:ncpus=2:{counts}"))])
    );
    let found = edits(&change(&old, &json!({ "select": "1:ncpus=4" })));
    assert!(
        found["select"].starts_with("1:ncpus=4:gpuos_mig_compute=1:"),
        "{found:?}"
    );
    let found = edits(&change(&old, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("1:ncpus=2", "pack")
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
    let other =
        json!({ "select": "1:ncpus=1", "place": "free:group=host", "gpuos_mig": "1g.10gb" });
    assert!(refusal(&submit(&other)).contains("contradicts -l place=free:group=host"));
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
fn each_of_several_chunks_has_its_slices_on_a_vnode_of_its_own() {
    let counts = "gpuos_mig_compute=2:gpuos_mig_memory=2:gpuos_mig_board=h100";
    let job = json!({ "select": "2:ncpus=1:mem=1gb+ncpus=4", "gpuos_mig": "1g.10gb:2" });
    let found = edits(&submit(&job));
    let both = format!("2:ncpus=1:mem=1gb:{counts}+ncpus=4:{counts}");
    assert_eq!((&found["select"], &found["place"][..]), (&both, "vscatter"));
    let with = |place: &str| {
        submit(&json!({ "select": "2:ncpus=1", "place": place, "gpuos_mig": "1g.10gb:2" }))
    };
    let found = edits(&with("group=gpuos_leaf:shared"));
    assert_eq!(found["place"], "vscatter:shared:group=gpuos_leaf");
    assert!(!edits(&with("vscatter")).contains_key("place"));
    assert_eq!(edits(&with("free:shared"))["place"], "vscatter:shared");
    assert_eq!(edits(&with("group=gpuos_mig_gpu"))["place"], "vscatter");
    // Within sets of one host PBS takes chunks apart.
    for place in ["scatter", "pack", "group=host", "vscatter:group=host"] {
        let said = with(place);
        let wanted = format!("-l place={place} lets PBS take some of another GPU");
        assert!(refusal(&said).contains(&wanted), "{said}");
    }

    // What several chunks made of the place goes with them.
    let old = json!({ "select": both, "place": "vscatter", "gpuos_mig": "1g.10gb:2" });
    let found = edits(&change(&old, &json!({ "select": "1:ncpus=1" })));
    assert_eq!(
        (&found["select"], &found["place"][..]),
        (&format!("1:ncpus=1:{counts}"), "free:group=gpuos_mig_gpu")
    );
    let found = edits(&change(&old, &json!({ "gpuos_mig": "off" })));
    assert_eq!(
        (&found["select"][..], &found["place"][..]),
        ("2:ncpus=1:mem=1gb+ncpus=4", "free")
    );
    assert_eq!(change(&old, &json!({ "select": both }))["edits"], json!([]));
    let one = json!({ "select": format!("1:ncpus=1:{counts}"), "place": "free:group=gpuos_mig_gpu", "gpuos_mig": "1g.10gb:2" });
    let found = edits(&change(&one, &json!({ "select": "2:ncpus=1" })));
    assert_eq!(found["place"], "vscatter");
    assert_eq!(found["select"], format!("2:ncpus=1:{counts}"));
}

/// A start of a job with slices, after its last one ended so, which was the `run`-th.
fn start(id: &str, given: &str, exit: Option<i64>, (run, vetoes): (u64, &str)) -> Value {
    let resources =
        json!({ "select": "1:ncpus=1", "gpuos_mig": "1g.10gb", "gpuos_vetoes": vetoes });
    let job =
        json!({ "id": id, "resources": resources, "exec_vnode": given, "exit": exit, "run": run });
    ask(&json!({ "event": "runjob", "now": 1000, "job": job }))
}

const HERE: &str = "(n1[3]:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1)";

#[test]
fn a_start_that_its_host_has_refused_is_put_off_once_for_each() {
    assert_eq!(start("1.head", HERE, None, (0, ""))["verdict"], "accept");
    for (run, seconds) in [(1, 60), (2, 120), (7, 3600), (20, 3600)] {
        let said = start("1.head", HERE, Some(-16), (run, ""));
        assert!(
            refusal(&said).contains(&format!("(number {run})")),
            "{said}"
        );
        assert_eq!(
            said["edits"],
            json!([{ "set": "resource", "name": "gpuos_vetoes", "value": run }, { "set": "start-after", "value": 1000 + seconds }])
        );
        let again = start("1.head", HERE, Some(-16), (run, &run.to_string()));
        assert_eq!(again["verdict"], "accept", "its time has come");
    }
    // One that ran and is to run again, and one that PBS cannot put off.
    assert_eq!(
        start("1.head", HERE, Some(-18), (1, ""))["verdict"],
        "accept"
    );
    assert_eq!(
        start("1[2].head", HERE, Some(-16), (1, ""))["verdict"],
        "accept"
    );
}

#[test]
fn slices_of_two_gpus_and_such_that_were_not_counted_are_not_started() {
    let two =
        "(n1[3]:gpuos_mig_compute=1+n1[2]:ncpus=1:gpuos_mig_memory=1+n1[3]:gpuos_mig_memory=1)";
    let said = start("1.head", two, None, (0, ""));
    assert!(
        refusal(&said).contains("would be on n1[3] and on n1[2]"),
        "{said}"
    );
    // What of the one counts memory and of the other compute slices is of two GPUs, too.
    let said = start(
        "1.head",
        "(n1[3]:gpuos_mig_compute=1+n1[2]:gpuos_mig_memory=1)",
        None,
        (0, ""),
    );
    assert!(refusal(&said).contains("of one GPU"), "{said}");
    // Several chunks have a vnode each, on one host or on several.
    let one = |vnode: &str| format!("({vnode}:ncpus=1:gpuos_mig_compute=1:gpuos_mig_memory=1)");
    let given = [one("n1[2]"), one("n1[3]"), one("n2[3]")].join("+");
    assert_eq!(start("1.head", &given, None, (0, ""))["verdict"], "accept");
    let given = [one("n1[3]"), one("n2[3]"), one("n1[3]")].join("+");
    let said = start("1.head", &given, None, (0, ""));
    assert!(
        refusal(&said).contains("slices of two of its chunks would be on n1[3]"),
        "{said}"
    );
    let given = format!("{}+(n2:ncpus=1)", one("n1[3]"));
    let said = start("1.head", &given, None, (0, ""));
    assert!(refusal(&said).contains("a default of the queue"), "{said}");
    let said = start("1.head", "(n1:ncpus=1)", None, (0, ""));
    assert!(
        refusal(&said).contains("a default of the queue or of the server"),
        "{said}"
    );
}

fn launch(resources: &Value, given: &str) -> Value {
    json!({
        "schema": "gpuos.pbs/1", "event": "execjob_launch", "host": "n1.site", "gpuosd": "/run/g.sock",
        "hosts": { "n1": { "gpus": [{}, {}, {}, { "mig": { "board": "h100", "compute": 7, "memory": 8 } }] } },
        "job": { "id": "1.head", "resources": resources, "exec_vnode": given, "user": "ann", "uid": 7, "gid": 70, "run": 2 },
    })
}

fn question(event: &Value) -> Box<Question> {
    match begin(&event.to_string()) {
        Step::Ask(question) => question,
        Step::Done(said) => panic!("{said}"),
    }
}

/// What gpuosd is told, and how long the start waits.
fn told(event: &Value) -> (Vec<Request>, usize, u64) {
    let question = question(event);
    let [talk] = &question.talks[..] else {
        panic!("{:?}", question.talks);
    };
    let text = String::from_utf8(talk.lines.clone()).expect("text");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a request"));
    (lines.skip(1).collect(), talk.answers, talk.patience_ms)
}

fn done(event: &Value, said: &Result<Reply, &str>) -> Value {
    let said = match said {
        Err(why) => Err((*why).to_owned()),
        Ok(reply) => {
            let lines = [
                json!({ "answer": "hello", "protocol": 1, "release": "1", "node": "n1" })
                    .to_string(),
                json!({ "answer": "mom", "orders": {} }).to_string(),
                serde_json::to_string(reply).expect("JSON"),
            ];
            Ok((lines.join("\n") + "\n").into_bytes())
        }
    };
    serde_json::from_str(&question(event).answer(&[said])).expect("an answer")
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
        "(n1[3]:ncpus=1:gpuos_mig_compute=2:gpuos_mig_memory=2)",
    );
    let (requests, answers, patience) = told(&event);
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
        ("1g.10gb:2", 1, 0)
    );
    assert_eq!(u8::from(slices.gpus[0]), 3);
    assert_eq!((slices.compute, slices.memory), (2, 2));
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
    let given = "(n2[3]:gpuos_mig_compute=2:gpuos_mig_memory=2)+(n1[3]:gpuos_mig_compute=2:gpuos_mig_memory=2)";
    let other = launch(&json!({ "gpuos_mig": "1g.10gb:2" }), given);
    let (requests, answers, patience) = told(&other);
    let Some(Request::Mom { report }) = requests.first() else {
        panic!("{requests:?}");
    };
    let slices = report.jobs[0].slices.clone().expect("slices");
    assert_eq!((slices.gpus.len(), slices.memory), (1, 2));
    assert!(answers == 3 && patience < 40_000, "{patience}");
    let said = done(&other, &Err("it took longer than 25000 ms"));
    assert!(
        refusal(&said).contains("this program of it is not started"),
        "{said}"
    );
    assert_eq!(said["edits"], json!([]));
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
    let event = launch(&wishes, "(n1[0]:ncpus=1:ngpus=1+n1[2]:ngpus=1)");
    let (requests, answers, patience) = told(&event);
    assert_eq!((answers, patience), (3, 3_000));
    let Some(Request::StepStart {
        gpus,
        asked,
        mig: None,
        ..
    }) = requests.last()
    else {
        panic!("{requests:?}");
    };
    assert_eq!(gpus, &[0, 2]);
    let mps = asked.mps.expect("MPS");
    assert!(asked.sets() && (mps.percent, mps.gid, mps.joint) == (50, 70, false));
    let note = "GPUs 0,2: 300 W is set for --gpuos-power=900W";
    let said = done(
        &event,
        &Ok(prepared(&[("CUDA_MPS_PIPE_DIRECTORY", "/run/p")], &[note])),
    );
    assert_eq!(
        said["notes"],
        json!(["GPUs 0,2: 300 W is set for -l gpuos_power=900W"])
    );
    let last = said["edits"].as_array().and_then(|edits| edits.last());
    assert_eq!(last.expect("an edit")["name"], "CUDA_MPS_PIPE_DIRECTORY");
    let said = done(&event, &Err("it took longer than 3000 ms"));
    assert_eq!(said["verdict"], "accept");
    assert!(
        said["notes"][0]
            .as_str()
            .expect("a note")
            .contains("are not set"),
        "{said}"
    );
    // Nobody waits for a job that asks for nothing.
    let (requests, answers, _) = told(&launch(&json!({}), "(n1[0]:ngpus=1)"));
    assert_eq!((requests.len(), answers), (1, 0));
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
fn gpus_of_a_pool_are_vnodes_that_jobs_share_and_slices_are_counted_on() {
    let hosts = divided(TOML, 4).expect("a pool");
    assert_eq!(largest(&hosts)["node"], 2, "of whole GPUs");
    let answer = ask(
        &json!({ "event": "exechost_startup", "host": "n1.site", "hosts": hosts,
                              "vnodes": { "n1.site": { "ncpus": "8", "mem": "8000kb" } } }),
    );
    assert_eq!(answer["verdict"], "accept", "{answer}");
    let edits = answer["edits"].as_array().expect("edits").iter();
    let of = |vnode: &str, name: &str| {
        let mut own = edits.clone().filter(|edit| edit["vnode"] == vnode);
        let found =
            own.find(|edit| edit["name"] == name || name == "sharing" && edit["set"] == "sharing");
        found.map(|edit| edit["value"].clone()).unwrap_or_default()
    };
    for (vnode, sharing, ngpus, memory, alone) in [
        ("n1[1]", "force_excl", 1, Value::Null, Value::Null),
        ("n1[3]", "default_shared", 0, 8.into(), "n1-3".into()),
    ] {
        assert_eq!(
            (of(vnode, "sharing"), of(vnode, "ngpus")),
            (sharing.into(), ngpus.into())
        );
        assert_eq!(
            (of(vnode, "gpuos_mig_memory"), of(vnode, "gpuos_mig_gpu")),
            (memory, alone)
        );
    }
    assert_eq!(
        (
            of("n1[2]", "gpuos_mig_compute"),
            of("n1[2]", "gpuos_mig_board")
        ),
        (7.into(), "h100".into())
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
