//! Memory beyond that of whole GPUs: what a job's words become, what of it is counted, and what its host does before a program starts.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{Reply, Request, StepMemory};
use gpuos_pbs::hook::event::Host;
use gpuos_pbs::hook::install::{memory, read_hosts};
use gpuos_pbs::hook::select::Select;
use gpuos_pbs::hook::talk::Daemon;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::hook::ask;
use crate::hook_talks::{alone, choice, made, notes, question, refusal, told};

/// GPUs of 80 GiB, of which programs get 79.
fn site() -> Value {
    json!({ "gpu_mib": 81_920, "most_percent": 400, "reserve_mib": 1024 })
}

fn submit(resources: &Value) -> Value {
    ask(&json!({ "event": "queuejob", "memory": site(), "job": { "resources": resources } }))
}

fn change(old: &Value, changed: &Value) -> Value {
    let (old, job) = (json!({ "resources": old }), json!({ "resources": changed }));
    let shares = json!({ "parts": 4, "turns": 2, "gpu_mib": 81_920, "most_mib": 80_000 });
    ask(
        &json!({ "event": "modifyjob", "memory": site(), "shares": shares, "old": old, "job": job }),
    )
}

fn only(select: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("select".into(), select.to_owned())])
}

#[test]
fn what_the_gpus_have_no_room_for_is_added_to_each_chunk_with_gpus() {
    for (asked, select, wanted) in [
        (
            "120G",
            "1:ncpus=4:ngpus=1:mem=16gb",
            "1:ncpus=4:ngpus=1:mem=57gb:gpuos_mem_beyond=41gb",
        ),
        (
            "80G,policy=arc",
            "2:NGPUS=4:Mem=1000mb+1:ncpus=1:mem=1gb+ngpus=1:mem=1kb",
            "2:NGPUS=4:Mem=5096mb:gpuos_mem_beyond=4gb+1:ncpus=1:mem=1gb+ngpus=1:mem=1048577kb:gpuos_mem_beyond=1gb",
        ),
    ] {
        let job = json!({ "select": select, "gpuos_mem": asked });
        assert_eq!(made(&submit(&job)), only(wanted), "{asked}");
    }
    // What a GPU has itself takes nothing of the host, and is no change.
    for asked in ["79G", "80G,tiers=hbm", "2M", "off"] {
        let job = json!({ "select": "1:ngpus=1", "gpuos_mem": asked });
        assert_eq!(submit(&job)["edits"], json!([]), "{asked}");
    }
}

const COUNTED: &str = "1:ncpus=4:ngpus=1:mem=57gb:gpuos_mem_beyond=41gb";

#[test]
fn a_change_takes_out_what_was_added_before_it_adds_anew() {
    let old = json!({ "select": COUNTED, "place": "free", "gpuos_mem": "120G", "mem": "57gb" });
    let with = |changed: Value| change(&old, &changed);
    let found = made(&with(json!({ "gpuos_mem": "100G" })));
    assert_eq!(
        found,
        only("1:ncpus=4:ngpus=1:mem=37gb:gpuos_mem_beyond=21gb")
    );
    let found = made(&with(json!({ "select": "1:ngpus=2:mem=1gb" })));
    assert_eq!(found, only("1:ngpus=2:mem=83gb:gpuos_mem_beyond=82gb"));
    // A copy of what qstat shows, with another number of CPUs.
    let copy = COUNTED.replace("ncpus=4", "ncpus=8");
    assert_eq!(with(json!({ "select": copy }))["edits"], json!([]));
    // Whatever a user says was added, what the GPUs need is added to the rest.
    for (forged, wanted) in [
        (
            "gpuos_mem_beyond=0",
            "1:ncpus=4:ngpus=1:mem=98gb:gpuos_mem_beyond=41gb",
        ),
        (
            "gpuos_mem_beyond=56gb",
            "1:ncpus=4:ngpus=1:mem=42gb:gpuos_mem_beyond=41gb",
        ),
        (
            "gpuos_mem_beyond=57gb",
            "1:ncpus=4:ngpus=1:mem=98gb:gpuos_mem_beyond=41gb",
        ),
        (
            "gpuos_mem_beyond=99999999tb",
            "1:ncpus=4:ngpus=1:mem=98gb:gpuos_mem_beyond=41gb",
        ),
        (
            "gpuos_mem_beyond=much",
            "1:ncpus=4:ngpus=1:mem=98gb:gpuos_mem_beyond=41gb",
        ),
    ] {
        let select = COUNTED.replace("gpuos_mem_beyond=41gb", forged);
        assert_eq!(
            made(&with(json!({ "select": select }))),
            only(wanted),
            "{forged}"
        );
    }
    let found = made(&with(json!({ "gpuos_mem": "off" })));
    assert_eq!(found, only("1:ncpus=4:ngpus=1:mem=16gb"));
    assert_eq!(with(json!({ "walltime": "60" }))["edits"], json!([]));
    // In turns instead: its place is another one. PBS's sum of GPUs is still that of the chunks before.
    let old = json!({ "select": COUNTED, "place": "free", "gpuos_mem": "120G", "mem": "57gb", "ngpus": "1" });
    let with = |changed: Value| change(&old, &changed);
    let none = with(json!({ "select": "1:ncpus=1:mem=1gb" }));
    assert!(refusal(&none).contains("the job asks for no GPU"), "{none}");
    let turns = json!({ "gpuos_mem": "off", "gpuos_share": "timeslice,mem=60G", "select": "1:ncpus=1:mem=1gb" });
    let found = made(&with(turns));
    assert_eq!(found["select"], "1:ncpus=1:mem=61gb:gpuos_share_parts=2");
}

#[test]
fn nothing_that_a_user_writes_beside_chunks_is_lost() {
    let old = json!({ "select": "1:mem=60gb:ncpus=4:ngpus=1", "mem": "60gb", "ncpus": "4", "ngpus": "1" });
    for (name, value) in [("mem", "80gb"), ("ngpus", "2"), ("ncpus", "8")] {
        let said = change(&old, &json!({ "gpuos_mem": "120G", name: value }));
        let wanted = format!("-l {name}={value}: it would be lost");
        assert!(refusal(&said).starts_with(&wanted), "{said}");
        let both = json!({ "gpuos_mem": "120G", "select": "1:ngpus=1:mem=1gb", name: value });
        assert_eq!(
            made(&change(&old, &both)),
            only("1:ngpus=1:mem=42gb:gpuos_mem_beyond=41gb")
        );
        assert_eq!(change(&old, &json!({ name: value }))["edits"], json!([]));
    }
}

#[test]
fn what_was_added_for_a_default_of_a_queue_goes_with_it() {
    // The queue where the job is now has none.
    let old = json!({ "select": COUNTED, "place": "free" });
    let found = made(&change(&old, &json!({ "gpuos_mem": "off" })));
    assert_eq!(found, only("1:ncpus=4:ngpus=1:mem=16gb"));
}

#[test]
fn counts_by_hand_are_refused() {
    for job in [
        json!({ "select": COUNTED }),
        json!({ "select": COUNTED.to_uppercase(), "gpuos_mem": "off" }),
        json!({ "select": COUNTED.replace("beyond=", "beyond = ") }),
        json!({ "select": format!("{COUNTED}:=") }),
        json!({ "gpuos_mem_beyond": "1gb" }),
    ] {
        let said = submit(&job);
        assert!(
            refusal(&said).contains("gpuos counts it by what a job asks for"),
            "{said}"
        );
    }
    let plain = json!({ "select": "1:ngpus=1:mem=1gb", "place": "free" });
    let said = change(&plain, &json!({ "select": COUNTED }));
    assert!(refusal(&said).contains("gpuos counts it"), "{said}");
    let own = json!({ "select": COUNTED, "gpuos_mem": "120G" });
    let said = change(&own, &json!({ "gpuos_mem_beyond": "1kb" }));
    assert!(refusal(&said).contains("gpuos counts it"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_with_the_sentences_of_slurm() {
    let chunk = "1:ngpus=1:mem=1gb";
    for (select, asked, says) in [
        (
            chunk,
            "321G",
            "a GPU that the job could get has 81920 MiB; write at most 327680M here",
        ),
        (chunk, "81G,tiers=hbm", "write at most 81920M here"),
        (chunk, "120", "the unit M, G or T is missing"),
        (
            chunk,
            "80G,tiers=hbm+nvme",
            "the tier nvme is not part of this release",
        ),
        (chunk, "80G,policy=best", "'best' is not one of gpuos, lru"),
        (
            "1:ngpus=1",
            "120G",
            "how much of the host's memory the program itself needs is not said",
        ),
        ("1:ngpus=1:mem=0", "120G", "is not said"),
        ("1:ngpus=1:mem=1gb+1:ngpus=1", "120G", "is not said"),
        ("1:ncpus=1:mem=1gb", "120G", "the job asks for no GPU"),
        (
            "1:ngpus=1:gpuos_mem=120G",
            "120G",
            "cannot be said of a chunk",
        ),
        ("1:ngpus=1\":mem=1gb", "120G", "a quote in"),
    ] {
        let answer = submit(&json!({ "select": select, "gpuos_mem": asked }));
        let said = refusal(&answer);
        assert!(said.contains(says), "{select} {asked}: {said}");
        assert!(!said.contains("--gpuos"), "{said}");
    }
    for (name, value, why) in [
        ("gpuos_mig", "1g.10gb", "for whole GPUs alone have it"),
        ("gpuos_share", "timeslice", "for whole GPUs alone have it"),
        ("gpuos_mps", "50%", "whose programs share one context"),
    ] {
        let select = if name == "gpuos_mps" {
            chunk
        } else {
            "1:ncpus=1:mem=1gb"
        };
        let said = submit(&json!({ "select": select, "gpuos_mem": "120G", name: value }));
        let wanted = format!("does not go with -l {name}, {why}");
        assert!(refusal(&said).contains(&wanted), "{said}");
    }
    // What is set on whole GPUs goes with it.
    for (name, value) in [
        ("gpuos_power", "300W"),
        ("gpuos_clocks", "1200"),
        ("gpuos_topology", "any"),
    ] {
        let said = submit(&json!({ "select": chunk, "gpuos_mem": "120G", name: value }));
        assert!(made(&said)["select"].ends_with(":mem=42gb:gpuos_mem_beyond=41gb"));
    }
    let said = submit(&json!({ "ngpus": "1", "gpuos_mem": "120G" }));
    assert!(refusal(&said).contains("has no -l select="), "{said}");
    for (site, says) in [
        (Value::Null, "this site gives jobs no more memory"),
        (
            json!({ "gpu_mib": 81_920, "most_percent": 400, "reserve_mib": 0, "unknown": "n3" }),
            "how much memory the GPUs of n3 have is not said",
        ),
        (
            json!({ "gpu_mib": 0, "most_percent": 400, "reserve_mib": 0 }),
            "no GPU of this cluster",
        ),
    ] {
        let job = json!({ "resources": { "select": chunk, "gpuos_mem": "120G" } });
        let said = ask(&json!({ "event": "queuejob", "memory": site, "job": job }));
        assert!(refusal(&said).contains(says), "{said}");
    }
}

#[test]
fn a_users_text_is_a_value_or_none() {
    for value in [
        "120G\n-l gpuos_power=1",
        "120G'",
        "120G\"",
        "120G;rm",
        "120G:mem=1kb",
        "120G+1:ngpus=8",
        "\u{202e}120G",
        "120G,policy=lru\\,x",
    ] {
        let said = submit(&json!({ "select": "1:ngpus=1:mem=1gb", "gpuos_mem": value }));
        let line = refusal(&said);
        assert!(line.starts_with("-l gpuos_mem="), "{line}");
        assert!(!line.contains(['\n', '\u{202e}']), "{line}");
    }
}

fn start(resources: &Value, given: &str, site: &Value) -> Value {
    let job = json!({ "id": "1.head", "resources": resources, "exec_vnode": given });
    ask(&json!({ "event": "runjob", "now": 1000, "memory": site, "job": job }))
}

#[test]
fn what_was_not_counted_is_not_started() {
    let job = json!({ "gpuos_mem": "120G" });
    let kib = 42_u64 << 20;
    // Its chunk may be of several vnodes of a host.
    for given in [
        format!("(n1:ncpus=1:ngpus=1:mem={kib}kb)"),
        format!("(n1:mem={}kb+n1[0]:ngpus=1:mem=1gb)", kib - (1 << 20)),
        format!("(n1:ngpus=1:mem={kib}kb)+(n2:ngpus=1:mem={kib}kb)+(n3:ncpus=1)"),
    ] {
        assert_eq!(start(&job, &given, &site())["verdict"], "accept", "{given}");
    }
    for (given, host) in [
        ("(n1:ncpus=1:ngpus=1)".to_owned(), "n1"),
        (format!("(n1:ngpus=2:mem={kib}kb)"), "n1"),
        // What it has elsewhere is of no use here.
        (
            format!("(n1:ngpus=1:mem={}kb)+(n2:ngpus=1:mem=1gb)", 2 * kib),
            "n2",
        ),
    ] {
        let said = start(&job, &given, &site());
        let wanted = format!("what its GPUs of {host} take of the host's memory is not counted");
        assert!(refusal(&said).contains(&wanted), "{given}: {said}");
    }
    // As much as the GPUs take, but all of it for the program: a default that the hook did not see, of before the site had smaller GPUs, or of a chunk
    // without GPUs.
    let two = "(n1:ngpus=1:mem=99gb)+(n1:mem=99gb)";
    for (select, given, verdict) in [
        ("1:ngpus=1:mem=99gb", "(n1:ngpus=1:mem=99gb)", "reject"),
        (
            "1:ngpus=1:mem=99gb:gpuos_mem_beyond=21gb",
            "(n1:ngpus=1:mem=99gb)",
            "reject",
        ),
        (
            "1:ngpus=1:mem=99gb:gpuos_mem_beyond=41gb",
            "(n1:ngpus=1:mem=99gb)",
            "accept",
        ),
        ("1:ngpus=1:mem=99gb+1:mem=99gb", two, "reject"),
        (
            "1:ngpus=1:mem=99gb:gpuos_mem_beyond=41gb+1:mem=99gb",
            two,
            "accept",
        ),
    ] {
        let job = json!({ "gpuos_mem": "120G", "select": select });
        assert_eq!(start(&job, given, &site())["verdict"], verdict, "{select}");
    }
    let whole = format!("(n1:ngpus=1:mem={kib}kb)");
    let said = start(&job, &whole, &Value::Null);
    assert!(refusal(&said).contains("the site has changed"), "{said}");
    let said = start(
        &json!({ "gpuos_mem": "120G", "gpuos_mps": "50%" }),
        &whole,
        &site(),
    );
    assert!(
        refusal(&said).contains("does not go with -l gpuos_mps"),
        "{said}"
    );
    let said = start(&json!({ "gpuos_mem": "lots" }), &whole, &site());
    assert!(
        refusal(&said).contains("not counted as it is now"),
        "{said}"
    );
    let off = json!({ "gpuos_mem": "off" });
    assert_eq!(start(&off, "(n1:ngpus=1)", &site())["verdict"], "accept");
}

fn launch(asked: &str, given: &str) -> Value {
    json!({
        "event": "execjob_launch", "server": {}, "host": "n1.site", "gpuosd": "/run/g.sock", "preload": "/usr/lib/l.so.0",
        "hosts": { "n1": { "gpus": [{ "uuid": "GPU-a" }, { "uuid": "GPU-b" }] } },
        "job": { "id": "1.head", "resources": { "gpuos_mem": asked }, "exec_vnode": given, "user": "ann", "uid": 7, "gid": 70, "run": 2 },
    })
}

/// Two GPUs and 100 GiB here, others elsewhere.
const HERE: &str = "(n1:ngpus=1:mem=50gb)+(n1:ngpus=1:mem=50gb)+(n2:ngpus=1:mem=999gb)";

/// What gpuosd is told, and for how many lines of it the start waits.
fn asked(event: &Value) -> (Vec<Request>, usize) {
    let question = question(event);
    let [talk] = &question.talks[..] else {
        panic!("{:?}", question.talks);
    };
    (told(&question, Daemon::Gpuosd), talk.answers)
}

/// What is done where gpuosd has chosen both GPUs, and says this of what the job asks of them.
fn done(event: &Value, said: Result<Reply, &str>) -> Value {
    let said = said.map(|reply| [choice("1.head", &[0, 1], ""), reply]);
    crate::hook_talks::done(event, said.as_ref().map(|all| &all[..]).map_err(|why| *why))
}

fn noted() -> Reply {
    let message = "noted".into();
    Reply::Done { message }
}

#[test]
fn gpuosd_is_told_what_pbs_gave_here_and_the_program_finds_the_library() {
    let mut event = launch("120G,policy=2q", HERE);
    event["loaded"] = "/x/a.so b.so".into();
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
        (job.count, job.gpus.len(), job.memory_mib),
        (2, 0, 100 << 10)
    );
    assert_eq!((*uid, gpus.len()), (7, 0));
    let wanted = StepMemory {
        bytes_per_gpu: 120 << 30,
        timeslice: false,
    };
    assert_eq!(*memory, Some(wanted));
    let said = done(&event, Ok(noted()));
    assert!(said["notes"].is_null(), "{said}");
    let found = made(&said);
    for (name, value) in [
        ("CUDA_VISIBLE_DEVICES", "GPU-a\\,GPU-b"),
        ("LD_PRELOAD", "/usr/lib/l.so.0:/x/a.so:b.so"),
        ("GPUOS_MEM_GRANT", "128849018880"),
        ("GPUOS_MEM_HBM", "128849018880"),
        ("GPUOS_MEM_POLICY", "2q"),
        ("GPUOS_MEM_SOCKET", "/run/g.sock.memory"),
    ] {
        assert_eq!(found[name], value, "{found:?}");
    }
    // What the event tells every few seconds is the same.
    let mut periodic = launch("120G", HERE);
    periodic["event"] = "exechost_periodic".into();
    periodic["jobs"] = json!({ "1.head": { "exec_vnode": HERE, "user": "ann", "uid": 7, "run": 2, "resources": { "gpuos_mem": "120G" } } });
    let (requests, _) = asked(&periodic);
    let [Request::Mom { report }] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!(report.jobs[0].memory_mib, 100 << 10);
}

#[test]
fn what_is_missing_is_said_and_the_program_starts() {
    let event = launch("120G", HERE);
    let said = done(&event, Err(""));
    assert_eq!(said["verdict"], "accept");
    let notes = notes(&said);
    assert!(
        notes.contains("may not get the memory beyond its GPUs")
            && notes.contains("gpuosd does not run"),
        "{notes}"
    );
    let mut event = launch("120G", HERE);
    event["preload"] = "".into();
    let said = done(&event, Ok(noted()));
    assert!(!made(&said).contains_key("LD_PRELOAD"));
    let notes = said["notes"].to_string();
    assert!(
        notes.contains("no more memory than its GPUs: this host has no libgpuos_preload.so"),
        "{notes}"
    );
    for loaded in ["/x/a.so\nLD_AUDIT=/x", "/x/a.so,B=1", "\"/x", "a;b"] {
        let mut event = launch("120G", HERE);
        event["loaded"] = loaded.into();
        let said = done(&event, Ok(noted()));
        assert_eq!(made(&said)["LD_PRELOAD"], "/usr/lib/l.so.0", "{loaded}");
        assert!(said["notes"].to_string().contains("left out"), "{loaded}");
    }
}

#[test]
fn without_whole_gpus_here_or_under_mps_nothing_is_loaded() {
    for given in ["(n1:ncpus=1:mem=1gb)", "(n2:ngpus=1:mem=99gb)"] {
        assert_eq!(alone(&launch("120G", given))["edits"], json!([]), "{given}");
    }
    // A job of which gpuosd only chooses the GPUs.
    for (name, value) in [("gpuos_mem", "off"), ("gpuos_mem", "lots")] {
        let mut event = launch("120G", HERE);
        event["job"]["resources"][name] = value.into();
        let (requests, answers) = asked(&event);
        assert_eq!((requests.len(), answers), (1, 2), "{value}");
    }
    let mut event = launch("120G", HERE);
    event["job"]["resources"]["gpuos_mps"] = "50%".into();
    let (requests, _) = asked(&event);
    assert!(
        matches!(&requests[..], [_, Request::StepStart { memory: None, .. }]),
        "{requests:?}"
    );
    // Another one gives the GPUs.
    let mut event = launch("120G", HERE);
    event["hosts"]["n1"]["advise"] = true.into();
    let said = ask(&event);
    assert_eq!(said["edits"], json!([]));
    assert!(said["notes"].to_string().contains("only advises"), "{said}");
}

fn hosts(text: &Value) -> BTreeMap<String, Host> {
    read_hosts(&text.to_string()).expect("hosts")
}

#[test]
fn the_smallest_gpu_that_is_given_as_a_whole_counts() {
    let read = |text: &str| Config::parse(text, "gpuos.toml").expect("a file");
    let types = "[memory]\noversubscribe = true\nmost-percent = 150\nreserve-mib = 7\n\n[[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\n\
                 gpu-memory-mib = 64\n\n[[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h100\"\n\n[[nodes]]\nmatch = \"n[2-3]\"\ntype = \"small\"\n";
    let both = json!({ "n1.site": { "gpus": [{}] }, "n2": { "gpus": [{}, { "shares": 4 }] } });
    let found = memory(&hosts(&both), &read(types)).expect("a site");
    assert_eq!(
        (found.gpu_mib, found.most_percent, found.reserve_mib),
        (64, 150, 7)
    );
    assert_eq!(found.unknown, "");
    let own = |text: Value| memory(&hosts(&text), &read(types)).expect("a site");
    // Parts of GPUs, and those that another one gives, are none.
    let none = json!({ "n1": { "gpus": [{}] }, "n2": { "gpus": [{ "shares": 4 }] }, "n3": { "advise": true, "gpus": [{}] } });
    assert_eq!(own(none).gpu_mib, 81_559);
    assert_eq!(own(json!({})).gpu_mib, 0);
    assert_eq!(own(json!({ "n7": { "gpus": [{}] } })).unknown, "n7");
    assert_eq!(memory(&hosts(&both), &read("")), None);
}

proptest! {
    /// Whatever a job was and becomes, its chunks have what their users wrote and what their GPUs need, and nothing of it is lost or doubled.
    #[test]
    fn what_is_added_is_taken_out_again(
        chunks in proptest::collection::vec((1u32..5, 0u64..4, 1u64..1 << 40), 1..4),
        sizes in proptest::collection::vec(1u32..320 << 10, 1..5),
    ) {
        let write = |of: &dyn Fn(u64) -> u64| {
            let each = chunks.iter().map(|(count, gpus, own)| {
                let added = of(*gpus);
                (*count, *gpus, own + added, added)
            });
            each.collect::<Vec<_>>()
        };
        let read = |text: &str| -> Vec<(u32, u64, u64, u64)> {
            let kib = |text: &str| gpuos_pbs::units::kib(text).expect("a size");
            let select = Select::parse(text).expect("a select");
            let each = select.0.iter().map(|chunk| {
                let of = |name: &str| chunk.values(name).next().map_or(0, kib);
                let gpus = chunk.values("ngpus").next().map_or(0, |count| count.parse().expect("a number"));
                (chunk.count.unwrap_or(1), gpus, of("mem"), of("gpuos_mem_beyond"))
            });
            each.collect()
        };
        let plain: Vec<String> = chunks.iter().map(|(count, gpus, own)| format!("{count}:ngpus={gpus}:mem={own}kb")).collect();
        let plain = format!("{}+1:ngpus=1:mem=1kb", plain.join("+"));
        let mut select = plain.clone();
        let mut before: Option<String> = None;
        for mib in sizes {
            let asked = format!("{}M", mib.max(2));
            let answer = match &before {
                None => submit(&json!({ "select": select, "gpuos_mem": asked })),
                Some(had) => change(&json!({ "select": select, "gpuos_mem": had }), &json!({ "gpuos_mem": asked })),
            };
            let found = made(&answer);
            if let Some(changed) = found.get("select") {
                select.clone_from(changed);
            }
            let share = u64::from(mib.max(2)).saturating_sub(80_896) << 10;
            let mut wanted = write(&|gpus| gpus * share);
            wanted.push((1, 1, 1 + share, share));
            prop_assert_eq!(read(&select), wanted);
            before = Some(asked);
        }
        let old = json!({ "select": select, "gpuos_mem": before });
        let found = made(&change(&old, &json!({ "gpuos_mem": "off" })));
        let last = found.get("select").unwrap_or(&select);
        let mut wanted = write(&|_| 0);
        wanted.push((1, 1, 1, 0));
        prop_assert_eq!(read(last), wanted);
    }
}
