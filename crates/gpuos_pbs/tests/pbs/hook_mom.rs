//! What gpuosd is told of a mom's host, and what mom does by its answer.

use gpuos_core::job::JobId;
use gpuos_core::wire::{HostOrder, MomOrders, MomReport, Reply, Request};
use gpuos_model::gpu_index::GresGpu;
use gpuos_pbs::hook::question::Question;
use gpuos_pbs::hook::{Step, begin};
use serde_json::{Value, json};

const GPU_0: &str = "gpuos: GPU 0 is out of service; gpuos health on n1 says why";

fn gpus(indices: &[usize]) -> Vec<GresGpu> {
    let gpus = indices.iter().map(|index| GresGpu::new(*index));
    gpus.map(|gpu| gpu.expect("a GPU")).collect()
}

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

/// n1 with two GPUs and three jobs: one of one GPU, one of two hosts, one without GPUs.
fn event(server: Value) -> Value {
    let job = |given: &str, session: u32| json!({ "exec_vnode": given, "session": session, "user": "ann", "uid": 1000, "run": 1 });
    let mut event = json!({
        "schema": "gpuos.pbs/1", "event": "exechost_periodic", "host": "n1.site", "gpuosd": "/run/gpuos/gpuosd.sock",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }] } },
        "vnodes": { "n1": {}, "n1[0]": {}, "n1[1]": {} },
        "jobs": {
            "1.head": job("(n1[0]:ncpus=1:ngpus=1)", 100),
            "2[3].head": job("(n1[1]:ncpus=1:ngpus=1)+(n2[0]:ncpus=1:ngpus=1)", 200),
            "3.head": job("(n1:ncpus=1)", 300),
        },
    });
    if !server.is_null() {
        event["server"] = server;
        event["turn"] = json!(1);
    }
    event
}

fn question(event: &Value) -> Box<Question> {
    match begin(&event.to_string()) {
        Step::Ask(question) => question,
        Step::Done(said) => panic!("{said}"),
    }
}

fn report(question: &Question) -> MomReport {
    let text = String::from_utf8(question.talks[0].lines.clone()).expect("text");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a request"));
    assert!(matches!(lines.next(), Some(Request::Hello { .. })));
    match lines.next() {
        Some(Request::Mom { report }) => *report,
        other => panic!("{other:?}"),
    }
}

/// What is done by an answer.
fn done(event: &Value, orders: MomOrders) -> Value {
    let hello = Reply::Hello {
        protocol: 1,
        release: "1".into(),
        node: "n1".into(),
    };
    let orders = Reply::Mom {
        orders: Box::new(orders),
    };
    let line = |reply: &Reply| serde_json::to_string(reply).expect("JSON");
    let lines = format!("{}\n{}\n", line(&hello), line(&orders));
    let said = question(event).answer(&[Ok(lines.into_bytes())]);
    serde_json::from_str(&said).expect("an answer")
}

fn edits(event: &Value, orders: MomOrders) -> Value {
    let said = done(event, orders);
    assert_eq!(said["verdict"], "accept", "{said}");
    assert!(said.get("ask").is_none(), "{said}");
    said["edits"].clone()
}

/// A server with these comments of the three vnodes; `-`: it is online.
fn server(comments: [&str; 3], jobs: Value) -> Value {
    let names = ["n1", "n1[0]", "n1[1]"];
    let vnode = |comment: &&str| match *comment {
        "-" => json!({ "offline": false, "comment": "" }),
        comment => json!({ "offline": true, "comment": comment }),
    };
    let pairs = names.iter().zip(comments.iter().map(vnode));
    let vnodes: serde_json::Map<String, Value> = pairs
        .map(|(name, vnode)| (name.to_string(), vnode))
        .collect();
    json!({ "vnodes": vnodes, "jobs": jobs })
}

fn told(jobs: Value) -> Value {
    event(server(["-", "-", "-"], jobs))
}

#[test]
fn gpuosd_is_told_the_jobs_that_have_gpus_of_the_host() {
    let all = question(&event(Value::Null));
    assert!(all.talks[0].answers == 2 && all.talks[0].socket == "/run/gpuos/gpuosd.sock.root");
    let told = report(&all);
    assert!(told.all && !told.asked && told.vnodes.is_none());
    assert_eq!(told.gpus, ["GPU-a", "GPU-b"]);
    let jobs: Vec<_> = told
        .jobs
        .iter()
        .map(|job| (job.job.clone(), job.gpus.clone(), job.uid))
        .collect();
    let wanted = [
        (id("1.head"), gpus(&[0]), 1000),
        (id("2[3].head"), gpus(&[1]), 1000),
    ];
    assert_eq!(jobs, wanted);

    let seen = report(&question(&event(server(["-", GPU_0, "fan"], json!({})))));
    let vnodes = seen.vnodes.expect("they were asked for");
    assert_eq!((vnodes.offline, vnodes.own), (gpus(&[0, 1]), gpus(&[0])));
    assert!(seen.asked && vnodes.drained.is_none() && !vnodes.whole);
    // What pbs_server did not say of all vnodes, nobody knows.
    let part = json!({ "vnodes": { "n1": { "offline": false } }, "jobs": {} });
    assert_eq!(report(&question(&event(part))).vnodes, None);
}

#[test]
fn a_launch_is_told_and_not_waited_for() {
    let launch = json!({
        "schema": "gpuos.pbs/1", "event": "execjob_launch", "host": "n1", "gpuosd": "/run/g.sock",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }] } },
        "job": { "id": "1.head", "exec_vnode": "(n1[0]:ngpus=1)", "user": "ann", "uid": 7, "run": 2 },
    });
    let asked = question(&launch);
    let told = report(&asked);
    assert!(asked.talks[0].answers == 0 && !told.all);
    assert_eq!((told.jobs[0].uid, told.jobs[0].run), (7, 2));
    // Whatever becomes of it, the program starts with its GPUs.
    for said in [Ok(Vec::new()), Err("gone".to_string())] {
        let said: Value = serde_json::from_str(&asked.answer(&[said])).expect("an answer");
        assert_eq!(said["edits"][0]["value"], "GPU-a");
    }
    for (key, value) in [("exec_vnode", json!("(n1:ncpus=1)")), ("id", json!("a b"))] {
        let mut other = launch.clone();
        other["job"][key] = value;
        assert!(
            matches!(begin(&other.to_string()), Step::Done(_)),
            "{other}"
        );
    }
}

#[test]
fn without_gpuosd_nothing_is_done_and_only_one_that_is_there_is_spoken_of() {
    let event = event(Value::Null);
    let asked = question(&event);
    let answer = |said: Result<Vec<u8>, String>| {
        let said: Value = serde_json::from_str(&asked.answer(&[said])).expect("an answer");
        assert_eq!(
            (said["verdict"].as_str(), &said["edits"]),
            (Some("accept"), &json!([]))
        );
        said["message"].as_str().unwrap_or_default().to_string()
    };
    assert_eq!(answer(Err(String::new())), "");
    assert!(answer(Err("it took longer than 1000 ms".into())).contains("1000 ms"));
    assert!(answer(Ok(b"{}\n".to_vec())).contains("gave no answer"));
    assert!(answer(Ok(Vec::new())).contains("ended before"));
    // A host whose GPUs nobody described is not gpuos's.
    let mut other = event.clone();
    other["hosts"] = json!({});
    assert!(matches!(begin(&other.to_string()), Step::Done(_)));
    other = event;
    other["gpuosd"] = json!("");
    assert!(matches!(begin(&other.to_string()), Step::Done(_)));
}

#[test]
fn pbs_server_is_asked_for_what_is_needed_and_no_more() {
    let mut alone = event(Value::Null);
    alone["jobs"] = json!({});
    let nothing = done(&alone, MomOrders::default());
    assert!(nothing.get("ask").is_none(), "{nothing}");
    let look = MomOrders {
        look: true,
        ..MomOrders::default()
    };
    let asked = done(&alone, look);
    assert_eq!(
        asked["ask"],
        json!({ "vnodes": ["n1", "n1[0]", "n1[1]"], "jobs": [] })
    );
    // Of a job of several hosts another may have said that it has to run again.
    let again = MomOrders {
        rerun: [(id("1.head"), 0), (id("9.head"), 0)].into(),
        ..MomOrders::default()
    };
    let asked = done(&event(Value::Null), again.clone());
    assert_eq!(
        asked["ask"],
        json!({ "vnodes": ["n1", "n1[0]", "n1[1]"], "jobs": ["1.head", "2[3].head"] })
    );
    // What gpuosd wants once it knows more is asked for in the same event, and not for ever.
    let mut second = told(json!({ "2[3].head": { "exit": null, "rerun": true } }));
    assert_eq!(
        done(&second, again.clone())["ask"]["jobs"],
        json!(["1.head"])
    );
    second["turn"] = json!(2);
    assert_eq!(edits(&second, again), json!([]));
}

#[test]
fn a_gpu_that_is_out_has_its_vnode_offline_and_others_keep_theirs() {
    let out = |indices: &[usize]| MomOrders {
        out: Some(gpus(indices)),
        ..MomOrders::default()
    };
    let change = |comments, orders| edits(&event(server(comments, json!({}))), orders);
    let offline = json!([{ "set": "offline", "vnode": "n1[0]", "value": GPU_0 }]);
    assert_eq!(change(["-", "-", "-"], out(&[0])), offline);
    assert_eq!(change(["-", GPU_0, "-"], out(&[0])), json!([]));
    let online = json!([{ "set": "online", "vnode": "n1[0]" }]);
    assert_eq!(change(["-", GPU_0, "-"], out(&[])), online);
    // An administrator's stays with his comment, whether the GPU is well or not.
    assert_eq!(change(["-", "fan", "-"], out(&[0])), json!([]));
    assert_eq!(change(["-", "fan", "-"], out(&[])), json!([]));
    assert_eq!(change(["-", "", "-"], out(&[])), json!([]));
    // Before gpuosd knows what is out, nothing is changed.
    assert_eq!(change(["-", GPU_0, "-"], MomOrders::default()), json!([]));
    // What pbs_server does not say of, is left.
    let part = event(json!({ "vnodes": {}, "jobs": {} }));
    assert_eq!(edits(&part, out(&[0])), json!([]));
}

#[test]
fn a_drained_host_has_all_vnodes_offline_and_gpus_that_are_out_stay_so() {
    let orders = |host, out: Option<Vec<GresGpu>>| MomOrders {
        host,
        out,
        ..MomOrders::default()
    };
    let change = |comments, orders| edits(&event(server(comments, json!({}))), orders);
    let drain = HostOrder::Offline("gpuos: fan\nis \u{1b}[31mloud".into());
    let text = "gpuos: host: fan\\nis \\u{1b}[31mloud";
    let set = |vnode: &str| json!({ "set": "offline", "vnode": vnode, "value": text });
    // Before gpuosd knows what is out, a comment of a GPU that is out is not written over.
    let unknown = change([text, GPU_0, text], orders(drain.clone(), None));
    assert_eq!(unknown, json!([]));
    let made = change(["-", "-", "mine"], orders(drain.clone(), None));
    assert_eq!(made, json!([set("n1"), set("n1[0]")]));
    let kept = change([text, GPU_0, text], orders(HostOrder::Leave, None));
    assert_eq!(kept, json!([]));
    let both = change([text, text, text], orders(drain, Some(gpus(&[0]))));
    assert_eq!(
        both,
        json!([{ "set": "offline", "vnode": "n1[0]", "value": GPU_0 }])
    );
    let back = change(
        [text, GPU_0, text],
        orders(HostOrder::Online, Some(gpus(&[0]))),
    );
    assert_eq!(
        back,
        json!([{ "set": "online", "vnode": "n1" }, { "set": "online", "vnode": "n1[1]" }])
    );
    let seen = report(&question(&event(server([text, text, "fan"], json!({}))))).vnodes;
    let seen = seen.expect("they were asked for");
    assert!(seen.whole && seen.own.is_empty());
    assert_eq!(
        seen.drained.as_deref(),
        Some("gpuos: fan\\nis \\u{1b}[31mloud")
    );
}

#[test]
fn a_job_ends_once_pbs_server_knows_that_it_runs_again() {
    let orders = |times: u32| MomOrders {
        rerun: [(id("1.head"), times)].into(),
        ..MomOrders::default()
    };
    let job = |exit: Value, rerun: bool| json!({ "1.head": { "exit": exit, "rerun": rerun } });
    let rerun = json!([{ "set": "rerun", "value": "1.head" }]);
    let kill = json!([{ "set": "kill", "value": 100, "uid": 1000 }]);
    assert_eq!(edits(&told(job(Value::Null, true)), orders(0)), rerun);
    assert_eq!(edits(&told(job(json!(-18), true)), orders(1)), kill);
    // One that must not run twice is deleted.
    let delete = json!([{ "set": "delete", "value": "1.head" }]);
    assert_eq!(edits(&told(job(Value::Null, false)), orders(0)), delete);
    let end = MomOrders {
        end: [(id("1.head"), 0)].into(),
        ..MomOrders::default()
    };
    assert_eq!(edits(&told(job(Value::Null, true)), end), delete);
    assert_eq!(edits(&told(job(json!(-19), true)), orders(1)), kill);
    // A pbs_server that does not say keeps it for some time, and not for ever.
    let mut silent = told(json!({}));
    silent["turn"] = json!(2);
    assert_eq!(edits(&silent, orders(0)), json!([]));
    assert_eq!(edits(&silent, orders(3)), rerun);
    assert_eq!(edits(&silent, orders(4)), kill);
    // One that says nothing at all is away: the end would be the job's own.
    let mut away = event(json!({}));
    away["turn"] = json!(2);
    assert_eq!(edits(&away, orders(4)), json!([]));
    // Whose a session is has to be known.
    let mut unknown = told(job(json!(-18), true));
    unknown["jobs"]["1.head"]["uid"] = Value::Null;
    assert_eq!(edits(&unknown, orders(1)), json!([]));
    // The script of another host's job is not here.
    let mut sister = told(job(json!(-18), true));
    sister["jobs"]["1.head"]["session"] = json!(0);
    assert_eq!(edits(&sister, orders(1)), json!([]));
}

#[test]
fn a_job_that_another_of_its_hosts_wants_to_run_again_ends_where_its_script_is() {
    let spread = told(json!({ "2[3].head": { "exit": -18, "rerun": true } }));
    assert_eq!(
        edits(&spread, MomOrders::default()),
        json!([{ "set": "kill", "value": 200, "uid": 1000 }])
    );
    let well = told(json!({ "2[3].head": { "exit": null, "rerun": true } }));
    assert_eq!(edits(&well, MomOrders::default()), json!([]));
    // One that is here alone is nobody else's to end.
    let alone = told(json!({ "1.head": { "exit": -18, "rerun": true } }));
    assert_eq!(edits(&alone, MomOrders::default()), json!([]));
}
