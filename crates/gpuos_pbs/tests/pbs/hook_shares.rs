//! Parts of GPUs: what a job's words become, what of it is counted, and what its host does before a program starts.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{Reply, Request, StepMemory};
use gpuos_pbs::hook::event::{Host, Shares};
use gpuos_pbs::hook::install::{largest, read_hosts, shares};
use gpuos_pbs::hook::talk::Daemon;
use serde_json::{Value, json};

use crate::hook::ask;
use crate::hook_talks::{alone, choice, made, notes, question, refusal, told};

/// Four parts of each GPU; `turns` jobs have it in turns, 0: in no turns of gpuos's.
fn site(turns: u32) -> Value {
    json!({ "parts": 4, "turns": turns, "gpu_mib": 81_559, "most_mib": 80_535 })
}

fn submit_at(turns: u32, resources: &Value) -> Value {
    ask(&json!({ "event": "queuejob", "shares": site(turns), "job": { "resources": resources } }))
}

fn change(old: &Value, changed: &Value) -> Value {
    let (old, job) = (json!({ "resources": old }), json!({ "resources": changed }));
    ask(&json!({ "event": "modifyjob", "shares": site(2), "old": old, "job": job }))
}

const IN_TURNS: &str = "timeslice,mem=60G";

#[test]
fn a_share_becomes_counts_and_a_place_for_what_is_parked() {
    for (turns, asked, select, wanted) in [
        // No more than two of them on a GPU of four parts.
        (
            2,
            IN_TURNS,
            "1:ncpus=2:mem=16gb",
            "1:ncpus=2:mem=76gb:gpuos_share_parts=2",
        ),
        (
            2,
            "timeslice:3,mem=1000M",
            "ncpus=2:mem=24mb",
            "ncpus=2:mem=1gb:gpuos_share_parts=3",
        ),
        (
            3,
            "timeslice,mem=1G",
            "1:MEM=1kb",
            "1:MEM=1048577kb:gpuos_share_parts=2",
        ),
        (0, "timeslice", "1:ncpus=2", "1:ncpus=2:gpuos_share_parts=1"),
        (
            0,
            "timeslice:2",
            "1:ncpus=2:mem=1gb",
            "1:ncpus=2:mem=1gb:gpuos_share_parts=2",
        ),
        (0, "mps:26%", "1:ncpus=2", "1:ncpus=2:gpuos_share_parts=2"),
        (0, "mps:25%", "1:ncpus=2", "1:ncpus=2:gpuos_share_parts=1"),
    ] {
        let job = json!({ "select": select, "gpuos_share": asked });
        let found = made(&submit_at(turns, &job));
        assert_eq!(found["select"], wanted, "{asked}");
        assert!(!found.contains_key("place"), "{found:?}");
    }
    let off = json!({ "select": "1:ncpus=2", "gpuos_share": "off" });
    assert_eq!(submit_at(2, &off)["edits"], json!([]));
}

#[test]
fn a_change_counts_anew_and_never_loses_or_doubles_the_place() {
    let counted = "1:ncpus=2:mem=76gb:gpuos_share_parts=2";
    let old = json!({
        "select": counted, "place": "pack", "gpuos_share": IN_TURNS,
        // What PBS adds up of the chunks.
        "mem": "76gb", "gpuos_share_parts": "2",
    });
    let only = |select: &str| BTreeMap::from([("select".into(), select.to_owned())]);
    let found = made(&change(
        &old,
        &json!({ "gpuos_share": "timeslice,mem=10G" }),
    ));
    assert_eq!(found, only("1:ncpus=2:mem=26gb:gpuos_share_parts=2"));
    let found = made(&change(&old, &json!({ "select": "1:ncpus=4:mem=1gb" })));
    assert_eq!(found, only("1:ncpus=4:mem=61gb:gpuos_share_parts=2"));
    // A copy of what qstat shows.
    let copy = counted.replace("ncpus=2", "ncpus=8");
    assert_eq!(change(&old, &json!({ "select": copy }))["edits"], json!([]));
    // The place, and the parts, are not a user's to make smaller.
    let less = counted
        .replace("parts=2", "parts=1")
        .replace("76gb", "70gb");
    let found = made(&change(&old, &json!({ "select": less })));
    assert_eq!(found, only("1:ncpus=2:mem=70gb:gpuos_share_parts=2"));
    let found = made(&change(&old, &json!({ "gpuos_share": "off" })));
    assert_eq!(found, only("1:ncpus=2:mem=16gb"));
    assert_eq!(
        change(&old, &json!({ "walltime": "60" }))["edits"],
        json!([])
    );
}

#[test]
fn counts_by_hand_are_refused() {
    for job in [
        json!({ "select": "1:ncpus=1:gpuos_share_parts=1" }),
        json!({ "select": "1:ncpus=1:GPUOS_SHARE_PARTS=4", "gpuos_share": "off" }),
        json!({ "gpuos_share_parts": "1" }),
    ] {
        let said = submit_at(2, &job);
        assert!(
            refusal(&said).contains("gpuos counts it by what a job asks for"),
            "{said}"
        );
    }
    let plain = json!({ "select": "1:ncpus=1", "place": "free" });
    for changed in [
        json!({ "select": "1:ncpus=1:gpuos_share_parts=4" }),
        json!({ "gpuos_share_parts": "4" }),
    ] {
        let said = change(&plain, &changed);
        assert!(refusal(&said).contains("gpuos counts it"), "{said}");
    }
    let shared =
        json!({ "select": "1:ncpus=1:mem=61gb:gpuos_share_parts=2", "gpuos_share": IN_TURNS });
    let said = change(&shared, &json!({ "gpuos_share_parts": "1" }));
    assert!(refusal(&said).contains("gpuos counts it"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    let chunk = "1:ncpus=1:mem=1gb";
    for (turns, select, asked, says) in [
        (2, chunk, "timeslice", "write timeslice,mem=SIZE"),
        (2, chunk, "mps:25%", "write timeslice,mem=SIZE"),
        (0, chunk, IN_TURNS, "write no mem="),
        (2, chunk, "timeslice,mem=80536M", "write mem=80535M or less"),
        (
            2,
            chunk,
            "timeslice,mem=60",
            "the unit M, G or T is missing",
        ),
        (2, chunk, "timeslice,mem=1G,park=nvme", "without park=nvme"),
        (2, chunk, "timeslice:5,mem=1G", "a GPU has 4 parts"),
        (0, chunk, "timeslice:5", "a GPU has 4 parts"),
        (2, "1:ncpus=1", IN_TURNS, "write mem=SIZE in -l select="),
        (
            2,
            "1:ncpus=1:mem=0",
            IN_TURNS,
            "write mem=SIZE in -l select=",
        ),
        (
            2,
            "1:ncpus=1:mem=much",
            IN_TURNS,
            "write mem=SIZE in -l select=",
        ),
        (2, "2:ncpus=1:mem=1gb", IN_TURNS, "the job has 2 chunks"),
        (2, "ncpus=1+ncpus=2", IN_TURNS, "the job has 2 chunks"),
        (2, "1:ngpus=1:mem=1gb", IN_TURNS, "does not go with ngpus"),
        (
            2,
            "1:gpuos_share=timeslice",
            IN_TURNS,
            "cannot be said of a chunk",
        ),
    ] {
        let answer = submit_at(turns, &json!({ "select": select, "gpuos_share": asked }));
        let said = refusal(&answer);
        assert!(
            said.starts_with("-l gpuos_share=") && said.contains(says),
            "{select} {asked}: {said}"
        );
        assert!(!said.contains("--gpuos"), "{said}");
    }
    for (name, value) in [
        ("gpuos_mig", "1g.10gb"),
        ("gpuos_mps", "50%"),
        ("gpuos_power", "300W"),
        ("gpuos_clocks", "1200"),
    ] {
        let said = submit_at(
            2,
            &json!({ "select": chunk, "gpuos_share": IN_TURNS, name: value }),
        );
        assert!(
            refusal(&said).contains(&format!("does not go with -l {name}")),
            "{said}"
        );
    }
    for (place, says) in [
        ("free:excl", "contradicts -l place=free:excl"),
        ("exclhost", "contradicts -l place=exclhost"),
    ] {
        let job = json!({ "select": chunk, "place": place, "gpuos_share": IN_TURNS });
        let said = submit_at(2, &job);
        assert!(refusal(&said).contains(says), "{said}");
    }
    let without = submit_at(2, &json!({ "gpuos_share": IN_TURNS }));
    assert!(
        refusal(&without).contains("the job has 0 chunks"),
        "{without}"
    );
    // A site that shares nothing.
    let none = json!({ "event": "queuejob", "job": { "resources": { "select": chunk, "gpuos_share": "timeslice" } } });
    let said = ask(&none);
    assert!(
        refusal(&said).contains("no GPU of this cluster is shared by jobs"),
        "{said}"
    );
}

fn start(resources: &Value, given: &str) -> Value {
    let job = json!({ "id": "1.head", "resources": resources, "exec_vnode": given });
    ask(&json!({ "event": "runjob", "now": 1000, "shares": site(2), "job": job }))
}

#[test]
fn what_was_not_counted_is_not_started() {
    let job = json!({ "gpuos_share": IN_TURNS });
    let kib = 61_u64 << 20;
    let whole = format!("(n1[0]:ncpus=1:mem={kib}kb:gpuos_share_parts=2)");
    assert_eq!(start(&job, &whole)["verdict"], "accept");
    for (given, says) in [
        // A default of a queue, fewer parts than the site has by now, no place for all that is parked.
        ("(n1:ncpus=1)".to_owned(), "not counted as it is now"),
        (
            whole.replace("parts=2", "parts=1"),
            "not counted as it is now",
        ),
        (
            whole.replace("61", "59").replace(&kib.to_string(), "1024"),
            "not counted as it is now",
        ),
    ] {
        let said = start(&job, &given);
        assert!(refusal(&said).contains(says), "{given}: {said}");
    }
    // None of its business.
    assert_eq!(
        start(&json!({ "gpuos_share": "off" }), "(n1:ncpus=1)")["verdict"],
        "accept"
    );
}

fn launch(asked: &str, given: &str) -> Value {
    json!({
        "event": "execjob_launch", "server": {}, "host": "n1.site", "gpuosd": "/run/g.sock", "preload": "/usr/lib/l.so.0",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b", "shares": 4 }] } },
        "job": { "id": "1.head", "resources": { "gpuos_share": asked }, "exec_vnode": given, "user": "ann", "uid": 7, "gid": 70, "run": 2 },
    })
}

const HERE: &str = "(n1:ncpus=1:mem=62928896kb:gpuos_share_parts=2)";

/// What gpuosd is told, and for how many lines of it the start waits.
fn asked(event: &Value) -> (Vec<Request>, usize) {
    let question = question(event);
    let [talk] = &question.talks[..] else {
        panic!("{:?}", question.talks);
    };
    (told(&question, Daemon::Gpuosd), talk.answers)
}

/// What is done where gpuosd has chosen GPU 1, and says this of what the job asks of it.
fn done(event: &Value, said: Result<Reply, &str>) -> Value {
    let said = said.map(|reply| [choice("1.head", &[1], ""), reply]);
    crate::hook_talks::done(event, said.as_ref().map(|all| &all[..]).map_err(|why| *why))
}

/// What gpuosd says where it has nothing to make.
fn noted() -> Reply {
    let message = "noted".into();
    Reply::Done { message }
}

fn ready(environment: &[(&str, &str)]) -> Reply {
    let environment = environment.iter();
    Reply::Prepared {
        notes: Vec::new(),
        environment: environment
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        failed: None,
    }
}

#[test]
fn gpuosd_is_told_of_the_part_and_the_program_finds_the_library() {
    let event = launch(IN_TURNS, HERE);
    let (requests, answers) = asked(&event);
    assert_eq!(answers, 3);
    let [
        Request::Mom { report },
        Request::StepStart {
            uid, gpus, memory, ..
        },
    ] = &requests[..]
    else {
        panic!("{requests:?}");
    };
    let job = &report.jobs[0];
    assert_eq!(
        (job.gpus.len(), job.shared.len(), job.count, job.parts),
        (0, 0, 0, 2)
    );
    assert_eq!(job.memory_mib, 61_454);
    assert_eq!((*uid, gpus.len()), (7, 0));
    let wanted = StepMemory {
        bytes_per_gpu: 60 << 30,
        timeslice: true,
    };
    assert_eq!(*memory, Some(wanted));
    let said = done(&event, Ok(noted()));
    assert!(said["notes"].is_null(), "{said}");
    let found = made(&said);
    let all = [
        ("CUDA_VISIBLE_DEVICES", "GPU-b"),
        ("GPUOS_GPUS", "1"),
        ("LD_PRELOAD", "/usr/lib/l.so.0"),
        ("GPUOS_MEM_GRANT", "64424509440"),
        ("GPUOS_MEM_HBM", "64424509440"),
        ("GPUOS_MEM_POLICY", "gpuos"),
        ("GPUOS_MEM_SOCKET", "/run/g.sock.memory"),
    ];
    for (name, value) in all {
        assert_eq!(found[name], value, "{found:?}");
    }
    // Without gpuosd it starts, and its user is told.
    let said = done(&event, Err(""));
    assert_eq!(said["verdict"], "accept");
    let notes = notes(&said);
    assert!(
        notes.contains("takes no turns") && notes.contains("gpuosd does not run"),
        "{notes}"
    );
}

#[test]
fn what_a_user_loads_himself_is_kept_behind_it_and_no_text_of_his_is_more_than_names() {
    for (loaded, wanted, is_told) in [
        ("/x/a.so b.so", "/usr/lib/l.so.0:/x/a.so:b.so", false),
        ("/usr/lib/l.so.0:/x/a.so", "/usr/lib/l.so.0:/x/a.so", false),
        ("/x/a.so\nLD_AUDIT=/x", "/usr/lib/l.so.0", true),
        ("/x/a.so,B=1", "/usr/lib/l.so.0", true),
        ("\"/x", "/usr/lib/l.so.0", true),
    ] {
        let mut event = launch(IN_TURNS, HERE);
        event["loaded"] = loaded.into();
        let said = done(&event, Ok(noted()));
        assert_eq!(made(&said)["LD_PRELOAD"], wanted, "{loaded}");
        assert_eq!(
            said["notes"].to_string().contains("left out"),
            is_told,
            "{loaded}"
        );
    }
    let mut event = launch(IN_TURNS, HERE);
    event["preload"] = "".into();
    let said = done(&event, Ok(noted()));
    assert!(!made(&said).contains_key("LD_PRELOAD"));
    assert!(
        said["notes"].to_string().contains("no libgpuos_preload.so"),
        "{said}"
    );
}

#[test]
fn other_ways_of_sharing_load_nothing_and_parts_that_were_not_asked_for_are_none() {
    // The driver takes turns: gpuosd only chooses the GPU.
    let event = launch("timeslice", HERE);
    let (requests, answers) = asked(&event);
    assert!(
        matches!(&requests[..], [Request::Mom { .. }]),
        "{requests:?}"
    );
    assert_eq!(answers, 2);

    let event = launch("mps:25%", HERE);
    let (requests, _) = asked(&event);
    let [_, Request::StepStart { asked, memory, .. }] = &requests[..] else {
        panic!("{requests:?}");
    };
    let mps = asked.mps.expect("MPS");
    assert!(mps.percent == 25 && mps.joint && mps.gid == 70 && memory.is_none());
    let pipe = [("CUDA_MPS_PIPE_DIRECTORY", "/run/gpuos/mps/gpu1-7/pipe")];
    let found = made(&done(&event, Ok(ready(&pipe))));
    assert_eq!(found["CUDA_MPS_PIPE_DIRECTORY"], pipe[0].1);
    assert!(!found.contains_key("LD_PRELOAD"));

    // Counts that came round the check of pbs_server.
    for asked in ["off", ""] {
        let event = launch(asked, HERE);
        assert_eq!(alone(&event)["edits"], json!([]), "{asked}");
    }
}

fn hosts(gpus: &Value) -> BTreeMap<String, Host> {
    let text = json!({ "n1": { "gpus": gpus }, "n2.site": { "gpus": [{}, {}] } }).to_string();
    read_hosts(&text).expect("hosts")
}

/// What has parts of a GPU says so by the vnode of a release before this one.
#[test]
fn parts_of_a_former_vnode_are_of_its_gpu() {
    let mut event = launch("timeslice", "(n1[1]:gpuos_share_parts=2)");
    event["hosts"]["n1"]["former"] = json!([1]);
    let (requests, answers) = asked(&event);
    let [Request::Mom { report }] = &requests[..] else {
        panic!("{requests:?}");
    };
    let job = &report.jobs[0];
    let numbers: Vec<u8> = job.shared.iter().map(|gpu| u8::from(*gpu)).collect();
    assert_eq!((&numbers[..], job.parts, answers), (&[1][..], 0, 0));
    let said = crate::hook_talks::done(&event, Err(""));
    assert_eq!(made(&said)["CUDA_VISIBLE_DEVICES"], "GPU-b");
}

#[test]
fn what_is_shared_is_alike_and_its_memory_is_known_where_it_is_had_in_turns() {
    let read = |text: &str| Config::parse(text, "gpuos.toml").expect("a file");
    let turns = "[memory]\nturns = 2\n\n[[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h100\"\n";
    let two = hosts(&json!([{ "shares": 4 }, { "shares": 4 }]));
    let found = shares(&two, &read(turns)).expect("shares");
    let wanted: Shares = serde_json::from_value(site(2)).expect("JSON");
    assert_eq!(found, Some(wanted));
    assert_eq!(
        largest(&two).get("node"),
        Some(&2),
        "those of the other host"
    );
    assert_eq!(shares(&hosts(&json!([{}])), &read(turns)), Ok(None));
    let plain = shares(&two, &read("")).expect("shares").expect("some");
    assert_eq!((plain.parts, plain.turns), (4, 0));
    let unlike = hosts(&json!([{ "shares": 4 }, { "shares": 2 }]));
    let why = shares(&unlike, &read("")).expect_err("they are not alike");
    assert!(
        why.contains("2 shares in gpus.json, and another one 4"),
        "{why}"
    );
    let unknown = shares(&two, &read("[memory]\nturns = 2\n")).expect_err("no memory");
    assert!(unknown.contains("write a [[nodes]]"), "{unknown}");
    let many = read_hosts(&json!({ "n1": { "gpus": [{ "shares": 257 }] } }).to_string());
    assert!(many.expect_err("too many").contains("more than 256"));
}
