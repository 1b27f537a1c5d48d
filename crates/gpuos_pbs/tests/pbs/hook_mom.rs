//! What gpuosd is told of the jobs of a mom's host, and which of them mom has run again or end.

use gpuos_core::job::JobId;
use gpuos_core::wire::{MomOrders, MomReport, Request};
use gpuos_pbs::hook::talk::Daemon;
use serde_json::{Value, json};

use crate::hook_talks::{alone, done, edits, gpus, orders, question, report, told};

fn id(name: &str) -> JobId {
    name.parse().expect("an id")
}

/// n1 with two GPUs and three jobs: one of one GPU, one of two hosts, one without GPUs.
fn event(server: Value) -> Value {
    let job = |given: &str, session: u32| json!({ "exec_vnode": given, "session": session, "user": "ann", "uid": 1000, "run": 1 });
    let mut event = json!({
        "event": "exechost_periodic", "host": "n1.site", "gpuosd": "/run/gpuos/gpuosd.sock",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a", "nvlink": "p", "numa": 1 }, { "uuid": "GPU-b", "shares": 4 }] } },
        "vnodes": { "n1": {} },
        "jobs": {
            "1.head": job("(n1:ncpus=1:ngpus=1)", 100),
            "2[3].head": job("(n1:ncpus=1:ngpus=1)+(n2:ncpus=1:ngpus=1)", 200),
            "3.head": job("(n1:ncpus=1)", 300),
        },
    });
    if !server.is_null() {
        event["server"] = server;
        event["turn"] = json!(1);
    }
    event
}

/// The same once pbs_server has said this of jobs, and that the host is online.
fn known(jobs: &Value) -> Value {
    event(
        json!({ "vnodes": { "n1": { "offline": false, "resources": { "ngpus": "2" } } }, "jobs": jobs }),
    )
}

/// What is done by an answer.
fn obeyed(event: &Value, wanted: MomOrders) -> Value {
    done(event, Ok(&[orders(wanted)]))
}

fn changed(event: &Value, wanted: MomOrders) -> Value {
    edits(&obeyed(event, wanted)).clone().into()
}

#[test]
fn gpuosd_is_told_the_gpus_of_the_host_and_the_jobs_that_have_some() {
    let all = question(&event(Value::Null));
    assert!(all.talks[0].answers == 2 && all.talks[0].socket == "/run/gpuos/gpuosd.sock.root");
    let told = report(&event(Value::Null));
    assert!(told.all && !told.asked && told.host.is_none() && !told.advise);
    let described = serde_json::to_value(&told.described).expect("JSON");
    assert_eq!(
        described,
        json!([{ "uuid": "GPU-a", "nvlink": "p", "numa": 1 }, { "uuid": "GPU-b", "shares": 4 }])
    );
    let jobs: Vec<_> = told
        .jobs
        .iter()
        .map(|job| (job.job.clone(), job.count, job.gpus.len(), job.uid))
        .collect();
    assert_eq!(
        jobs,
        [(id("1.head"), 1, 0, 1000), (id("2[3].head"), 1, 0, 1000)]
    );

    let seen = report(&known(&json!({})));
    let host = seen.host.expect("it was asked for");
    assert!(seen.asked && !host.offline && host.reason.is_none() && host.shown.is_empty());
    // What pbs_server did not say, nobody knows.
    assert_eq!(report(&event(json!({ "jobs": {} }))).host, None);
}

/// Its vnodes are of a release that made one of each GPU, or of a site that has one of each socket.
#[test]
fn a_name_of_a_vnode_is_a_gpu_only_where_it_was_one() {
    let mut event = event(Value::Null);
    event["vnodes"] = json!({ "n1": {}, "n1[0]": {}, "n1[1]": {} });
    event["jobs"]["1.head"]["exec_vnode"] = "(n1[0]:ncpus=1:ngpus=1+n1:ncpus=3)".into();
    let job = |event: &Value| {
        let job = report(event).jobs[0].clone();
        (job.count, job.gpus, job.shared)
    };
    assert_eq!(job(&event), (1, gpus(&[]), gpus(&[])));
    event["hosts"]["n1"]["former"] = json!([0, 1]);
    assert_eq!(job(&event), (0, gpus(&[0]), gpus(&[])));
    event["jobs"]["1.head"]["exec_vnode"] = "(n1[1]:gpuos_share_parts=2)".into();
    event["jobs"]["1.head"]["resources"] = json!({ "gpuos_share": "timeslice" });
    assert_eq!(job(&event), (0, gpus(&[]), gpus(&[1])));
}

/// A daemon reads lines of a few KiB.
#[test]
fn many_jobs_are_told_in_several_lines() {
    let mut many = event(Value::Null);
    for job in 10..400 {
        many["jobs"][format!("{job}.head")] =
            json!({ "exec_vnode": "(n1:ngpus=1)", "user": "ann", "uid": 1000, "run": 1 });
    }
    let question = question(&many);
    let requests = told(&question, Daemon::Gpuosd);
    assert!(requests.len() > 2 && question.talks[0].answers == requests.len() + 1);
    let reports = requests.into_iter().map(|request| match request {
        Request::Mom { report } => *report,
        other => panic!("{other:?}"),
    });
    let mut reports: Vec<MomReport> = reports.collect();
    let last = reports.pop().expect("the last");
    assert!(last.all && !last.described.is_empty());
    assert!(reports.iter().all(|part| !part.all && part.also.is_empty()));
    let parts = reports
        .iter()
        .flat_map(|part| &part.jobs)
        .map(|job| &job.job);
    let parts: Vec<_> = parts.collect();
    assert!(parts.iter().copied().eq(&last.also));
    assert_eq!(parts.len() + last.jobs.len(), 392);
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
    for (key, value) in [("hosts", json!({})), ("gpuosd", json!(""))] {
        let mut other = event.clone();
        other[key] = value;
        assert!(edits(&alone(&other)).is_empty());
    }
}

#[test]
fn pbs_server_is_asked_for_what_is_needed_and_no_more() {
    let mut alone = event(Value::Null);
    alone["jobs"] = json!({});
    let nothing = obeyed(&alone, MomOrders::default());
    assert!(nothing.get("ask").is_none(), "{nothing}");
    let look = MomOrders {
        look: true,
        ..MomOrders::default()
    };
    let asked = obeyed(&alone, look.clone());
    assert_eq!(asked["ask"], json!({ "vnodes": ["n1"], "jobs": [] }));
    alone["vnodes"] = json!({ "n1.site": {}, "n1.site[0]": {}, "n1.site[1]": {} });
    let asked = obeyed(&alone, look);
    assert_eq!(
        asked["ask"]["vnodes"],
        json!(["n1.site", "n1.site[0]", "n1.site[1]"])
    );
    // Of a job of several hosts another may have said that it has to run again.
    let again = MomOrders {
        rerun: [(id("1.head"), 0), (id("9.head"), 0)].into(),
        ..MomOrders::default()
    };
    let asked = obeyed(&event(Value::Null), again.clone());
    assert_eq!(
        asked["ask"],
        json!({ "vnodes": ["n1"], "jobs": ["1.head", "2[3].head"] })
    );
    // What gpuosd wants once it knows more is asked for in the same event, and not for ever.
    let mut second = known(&json!({ "2[3].head": { "exit": null, "rerun": true } }));
    assert_eq!(
        obeyed(&second, again.clone())["ask"]["jobs"],
        json!(["1.head"])
    );
    second["turn"] = json!(2);
    assert_eq!(changed(&second, again), json!([]));
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
    assert_eq!(changed(&known(&job(Value::Null, true)), orders(0)), rerun);
    assert_eq!(changed(&known(&job(json!(-18), true)), orders(1)), kill);
    // One that must not run twice is deleted.
    let delete = json!([{ "set": "delete", "value": "1.head" }]);
    assert_eq!(changed(&known(&job(Value::Null, false)), orders(0)), delete);
    let end = MomOrders {
        end: [(id("1.head"), 0)].into(),
        ..MomOrders::default()
    };
    assert_eq!(changed(&known(&job(Value::Null, true)), end), delete);
    assert_eq!(changed(&known(&job(json!(-19), true)), orders(1)), kill);
    // A pbs_server that does not say keeps it for some time, and not for ever.
    let mut silent = known(&json!({}));
    silent["turn"] = json!(2);
    assert_eq!(changed(&silent, orders(0)), json!([]));
    assert_eq!(changed(&silent, orders(3)), rerun);
    assert_eq!(changed(&silent, orders(4)), kill);
    // One that says nothing at all is away: the end would be the job's own.
    let mut away = event(json!({}));
    away["turn"] = json!(2);
    assert_eq!(changed(&away, orders(4)), json!([]));
    // Whose a session is has to be known, and the script of another host's job is not here.
    for (key, value) in [("uid", Value::Null), ("session", json!(0))] {
        let mut other = known(&job(json!(-18), true));
        other["jobs"]["1.head"][key] = value;
        assert_eq!(changed(&other, orders(1)), json!([]), "{key}");
    }
}

#[test]
fn a_job_that_another_of_its_hosts_wants_to_run_again_ends_where_its_script_is() {
    let said = |jobs: Value| changed(&known(&jobs), MomOrders::default());
    let spread = json!({ "2[3].head": { "exit": -18, "rerun": true } });
    assert_eq!(
        said(spread),
        json!([{ "set": "kill", "value": 200, "uid": 1000 }])
    );
    assert_eq!(
        said(json!({ "2[3].head": { "exit": null, "rerun": true } })),
        json!([])
    );
    // One that is here alone is nobody else's to end.
    assert_eq!(
        said(json!({ "1.head": { "exit": -18, "rerun": true } })),
        json!([])
    );
}
