//! Ends of jobs, and jobs that PBS has suspended, as a mom tells them.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::{Value, json};

use crate::periodic::{gpuosd, hook_of};
use crate::recorded::events;
use crate::support::{ACCEPTED, Hook, has_python};

/// As a mom of OpenPBS 23.06 tells it: the second run of a job with a GPU of its own.
const END: &str = "pbs.event().type=execjob_end
pbs.get_local_nodename()=n1
pbs.event().job.id=1.head
pbs.event().job.exec_vnode=(n1:ngpus=1:ncpus=1)
pbs.event().job.euser=root
pbs.event().job.substate=53
pbs.event().job.Exit_status=0
pbs.event().job.run_version=2";

fn hosts() -> Value {
    json!({ "n1": { "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }] } })
}

/// What a gpuosd is told of an event. The library gives up early: on a busy machine it may not have come to tell.
fn told(hook: &Hook, event: &str, from: &std::sync::mpsc::Receiver<Value>) -> Value {
    let told = (0..20).find_map(|_| {
        assert_eq!(hook.one(event), ACCEPTED);
        from.recv_timeout(Duration::from_secs(2)).ok()
    });
    told.expect("told")["report"].clone()
}

#[test]
fn gpuosd_is_told_which_run_has_left() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook_of(&hosts(), "gpuosd.sock");
    let from = gpuosd(&socket, vec![json!({})]);
    let report = told(&hook, END, &from);
    assert_eq!(report["ended"], json!([{ "job": "1.head", "run": 2 }]));
    assert_eq!(
        (&report["all"], &report["jobs"]),
        (&json!(false), &json!([]))
    );
}

#[test]
fn whatever_becomes_of_it_the_job_ends() {
    if !has_python() {
        return;
    }
    // It takes connections, and reads nothing.
    let (hook, socket) = hook_of(&hosts(), "gpuosd.sock");
    let silent = UnixListener::bind(format!("{}.root", socket.display())).expect("a socket");
    let (without, _) = hook_of(&hosts(), "nobody.sock");
    assert_eq!(
        [hook.one(END), without.one(END)],
        [ACCEPTED.to_string(), ACCEPTED.to_string()]
    );
    drop(silent);
    // One that has nothing to do with GPUs is left alone before anything is read.
    let broken = Hook::with("{");
    let plain = END.replace("n1:ngpus=1:", "n1:");
    let said = broken.run(&[&plain, END]);
    assert_eq!(said[0], ACCEPTED);
    assert!(
        said[1].starts_with("log=gpuos cannot decide about this: ") && said[1].ends_with(ACCEPTED),
        "{}",
        said[1]
    );
    let asking = format!("{plain}\npbs.event().job.Resource_List[gpuos_checkpoint]=60");
    assert!(broken.one(&asking).starts_with("log="));
}

#[test]
fn what_mom_only_has_to_forget_is_in_no_list() {
    if !has_python() {
        return;
    }
    let (hook, socket) = hook_of(&hosts(), "gpuosd.sock");
    let from = gpuosd(&socket, vec![json!({})]);
    let jobs = [("1.head", 153), ("2.head", 42), ("3.head", 53)].map(|(job, substate)| {
        let job = format!("pbs.event().job_list[\"{job}\"]");
        format!("{job}.exec_vnode=(n1:ngpus=1:ncpus=1)\n{job}.euser=root\n{job}.run_version=2\n{job}.substate={substate}")
    });
    let list = "pbs.event().type=exechost_periodic\npbs.get_local_nodename()=n1";
    let report = told(&hook, &format!("{list}\n{}", jobs.join("\n")), &from);
    let names = report["jobs"].as_array().expect("jobs").iter();
    let names: Vec<_> = names.map(|job| job["job"].clone()).collect();
    assert_eq!(names, ["2.head", "3.head"]);
}

/// Recorded with jobs of which one was suspended for a while; PBS keeps nothing of what gpuosd was told.
#[test]
fn what_a_real_mom_said_of_ends_and_suspensions_is_told() {
    if !has_python() {
        return;
    }
    let (mut ends, mut suspended, mut running) = (0, 0, 0);
    for (turn, (given, wanted)) in events("tests/data/ends.txt.gz").iter().enumerate() {
        let value = |key: &str| {
            let line = given.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.strip_prefix('='))
                .map(str::to_owned)
        };
        let host = value("pbs.get_local_nodename()").expect("a host");
        // It was recorded with a release that made a vnode of each GPU.
        let gpus = json!({ "gpus": vec![json!({}); 8], "former": [0, 1, 2, 3, 4, 5, 6, 7] });
        let (hook, socket) = hook_of(&json!({ &host: gpus }), &format!("{turn}.sock"));
        let from = gpuosd(&socket, vec![json!({})]);
        assert_eq!(format!("{wanted}"), ACCEPTED, "{given}");
        if !given.contains("ngpus=") {
            // Of a job without GPUs nobody is told.
            assert_eq!(hook.one(given), ACCEPTED);
            continue;
        }
        let report = told(&hook, given, &from);
        match value("pbs.event().type").as_deref() {
            Some("execjob_end") => {
                let run = value("pbs.event().job.run_version").expect("a run");
                let run: u64 = run.parse().expect("a number");
                let job = value("pbs.event().job.id");
                assert_eq!(report["ended"], json!([{ "job": job, "run": run }]));
                ends += 1;
            }
            Some("exechost_periodic") => {
                for job in report["jobs"].as_array().expect("jobs") {
                    let name = job["job"].as_str().expect("a name");
                    let substate = value(&format!("pbs.event().job_list[\"{name}\"].substate"));
                    let is = substate.as_deref() == Some("43");
                    assert_eq!(job["suspended"].as_bool().unwrap_or(false), is, "{given}");
                    suspended += usize::from(is);
                    running += usize::from(!is);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        ends >= 4 && suspended >= 1 && running >= 1,
        "{ends} {suspended} {running}"
    );
}
