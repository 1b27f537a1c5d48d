//! What programs and moms are told of GPUs, and what qmgr is told of the hook.

use std::collections::BTreeMap;

use gpuos_pbs::hook::install::{
    Objects, install, largest, parse_list, programs, read_hosts, remove,
};
use serde_json::{Value, json};

use crate::hook::ask;

fn hosts() -> Value {
    let gpu = |host: &str, index: usize, pair: &str| json!({ "uuid": format!("GPU-{host}-{index}"), "nvlink": format!("{host}{pair}"), "numa": index / 2 });
    let host = |name: &str, leaf: &str| json!({ "leaf": leaf, "keep_cpus": 2, "keep_mib": 1, "gpus": [gpu(name, 0, "a"), gpu(name, 1, "a"), gpu(name, 2, "b"), gpu(name, 3, "b")] });
    json!({ "n1": host("n1", "l1"), "n2": host("n2", "l1"), "n3": host("n3", "l2") })
}

/// The variables of a program on n1 whose job was given these vnodes.
fn launch(given: &str, hosts: &Value, vnodes: &Value) -> BTreeMap<String, String> {
    let event = json!({ "event": "execjob_launch", "host": "n1", "job": { "exec_vnode": given }, "hosts": hosts, "vnodes": vnodes });
    let answer = ask(&event);
    assert_eq!(answer["verdict"], "accept", "{answer}");
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    let edits = answer["edits"].as_array().expect("edits").iter();
    edits
        .map(|edit| {
            assert_eq!(edit["set"], "env");
            (text(&edit["name"]), text(&edit["value"]))
        })
        .collect()
}

#[test]
fn a_program_is_told_the_gpus_of_its_host() {
    let given = "(n1[3]:ncpus=1:ngpus=1+n1[2]:ngpus=1)+(n2[0]:ngpus=1)+(n1:ncpus=4)";
    let said = launch(given, &hosts(), &json!({}));
    assert_eq!(
        said["CUDA_VISIBLE_DEVICES"], "GPU-n1-2\\,GPU-n1-3",
        "PBS wants commas with a backslash"
    );
    assert_eq!(said["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
    assert_eq!(said["GPUOS_GPUS"], "2\\,3");
    assert_eq!(said["GPUOS_LEVEL"], "leaf");
    let pair = launch("(n1[0]:ngpus=1+n1[1]:ngpus=1)", &hosts(), &json!({}));
    assert_eq!(pair["GPUOS_LEVEL"], "nvlink");
    let one = launch("(n1[1]:ngpus=1)", &hosts(), &json!({}));
    assert_eq!(
        (&one["GPUOS_LEVEL"][..], &one["CUDA_VISIBLE_DEVICES"][..]),
        ("node", "GPU-n1-1")
    );
    let far = launch("(n1[1]:ngpus=1)+(n3[1]:ngpus=1)", &hosts(), &json!({}));
    assert!(!far.contains_key("GPUOS_LEVEL"), "{far:?}");
}

#[test]
fn uuids_come_of_the_vnodes_where_nobody_describes_the_host_and_else_there_are_numbers() {
    let given = "(n1[0]:ngpus=1)+(n1[1]:ngpus=1)";
    let vnodes = json!({ "n1[0]": { "gpuos_uuid": "GPU-x" }, "n1[1]": { "gpuos_uuid": "GPU-y" } });
    assert_eq!(
        launch(given, &json!({}), &vnodes)["CUDA_VISIBLE_DEVICES"],
        "GPU-x\\,GPU-y"
    );
    let half = json!({ "n1[0]": { "gpuos_uuid": "GPU-x" } });
    assert_eq!(
        launch(given, &json!({}), &half)["CUDA_VISIBLE_DEVICES"],
        "0\\,1"
    );
    let hostile = json!({ "n1[0]": { "gpuos_uuid": "a,LD_PRELOAD=/tmp/x" }, "n1[1]": { "gpuos_uuid": "GPU-y" } });
    assert_eq!(
        launch(given, &json!({}), &hostile)["CUDA_VISIBLE_DEVICES"],
        "0\\,1"
    );
}

#[test]
fn jobs_without_gpus_of_this_host_are_started_as_they_are() {
    for given in [
        "",
        "(n1:ncpus=4)",
        "(n2[0]:ngpus=1)",
        "(n1[0]:ncpus=1)",
        "(n1:ngpus=2)",
        "(((",
        "(n1[900]:ngpus=1)",
    ] {
        assert!(launch(given, &hosts(), &json!({})).is_empty(), "{given}");
    }
    let broken = json!({ "event": "execjob_launch", "host": "n1", "job": { "exec_vnode": "(n1[0]:ngpus=1" } });
    let answer = ask(&broken);
    assert_eq!(
        answer["verdict"], "reject",
        "its GPUs would be unknown: {answer}"
    );
}

/// Of 24,000 GPUs the texts have more than a MiB.
#[test]
fn a_program_of_a_very_large_job_is_told_its_gpus() {
    let host = |host: usize| {
        (
            format!("n{host}"),
            json!({ "leaf": "l1", "gpus": [{}, {}, {}, {}, {}, {}, {}, {}] }),
        )
    };
    let mut hosts: serde_json::Map<String, Value> = (0..3000).map(host).collect();
    let given: Vec<String> = (0..24_000)
        .map(|gpu| {
            format!(
                "(n{}[{}]:ncpus=14:mem=257949696kb:ngpus=1:gpuos_leaf=l1)",
                gpu / 8,
                gpu % 8
            )
        })
        .collect();
    let given = given.join("+");
    assert!(given.len() > 1 << 20);
    let said = launch(&given, &hosts.clone().into(), &json!({}));
    assert_eq!(said["GPUOS_GPUS"].split("\\,").count(), 8);
    assert_eq!(said["GPUOS_LEVEL"], "leaf");
    hosts.insert("n2999".into(), json!({ "leaf": "l2", "gpus": [] }));
    let said = launch(&given, &hosts.into(), &json!({}));
    assert!(!said.contains_key("GPUOS_LEVEL"), "{said:?}");
}

/// What is left of the host goes to the vnode that has all of it, or PBS counts the share of the GPUs twice.
#[test]
fn what_is_left_of_a_host_is_its_own_vnode_s_under_the_name_that_it_has() {
    for (host, named, own) in [
        ("n1.site", "n1.site", "n1.site"),
        ("n1.site", "n1", "n1.site"),
        ("n1.site", "n1", "n1"),
        ("n1", "n1", "n1"),
    ] {
        let hosts = json!({ named: { "leaf": "l1", "gpus": [{}, {}] } });
        // One of this name may be left of an earlier start.
        let mut vnodes = json!({ "n1": { "ncpus": "1", "mem": "1kb" } });
        vnodes[own] = json!({ "ncpus": "5", "mem": "1001kb" });
        let answer = ask(
            &json!({ "event": "exechost_startup", "host": host, "hosts": hosts, "vnodes": vnodes }),
        );
        let edits = answer["edits"].as_array().expect("edits");
        let of = |vnode: &str| -> BTreeMap<&str, &Value> {
            let of = edits
                .iter()
                .filter(|edit| edit["set"] == "vnode" && edit["vnode"] == vnode);
            of.map(|edit| (edit["name"].as_str().expect("a name"), &edit["value"]))
                .collect()
        };
        assert_eq!(
            json!(of(own)),
            json!({ "ncpus": 1, "mem": "1kb", "ngpus": 0, "gpuos_leaf": "l1" }),
            "{host} {own}"
        );
        assert_eq!(of("n1[1]")["ncpus"], 2, "{host} {own}");
        let mut vnodes: Vec<_> = edits.iter().map(|edit| edit["vnode"].as_str()).collect();
        vnodes.dedup();
        assert_eq!(vnodes.len(), 3, "{vnodes:?}");
    }
}

fn start(host: &str, hosts: &Value, resources: &Value) -> Value {
    ask(
        &json!({ "event": "exechost_startup", "host": host, "hosts": hosts, "vnodes": { "n1": resources } }),
    )
}

#[test]
fn each_gpu_is_a_vnode_with_its_share_of_the_host() {
    let answer = start(
        "n1",
        &hosts(),
        &json!({ "ncpus": "19", "mem": "10485761kb" }),
    );
    assert_eq!(answer["verdict"], "accept");
    let mut vnodes: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
    let mut alone = Vec::new();
    for edit in answer["edits"].as_array().unwrap() {
        let text = |key: &str| edit[key].as_str().unwrap().to_string();
        if edit["set"] == "sharing" {
            assert_eq!(edit["value"], "force_excl");
            alone.push(text("vnode"));
            continue;
        }
        assert_eq!(edit["set"], "vnode");
        let before = vnodes
            .entry(text("vnode"))
            .or_default()
            .insert(text("name"), edit["value"].clone());
        assert_eq!(before, None, "{edit} twice");
    }
    let names: Vec<&str> = vnodes.keys().map(String::as_str).collect();
    assert_eq!(names, ["n1", "n1[0]", "n1[1]", "n1[2]", "n1[3]"]);
    assert_eq!(alone, names[1..], "no GPU is for two jobs");
    assert_eq!(
        json!(vnodes["n1[2]"]),
        json!({ "ncpus": 4, "mem": "2621184kb", "ngpus": 1, "gpuos_uuid": "GPU-n1-2", "gpuos_nvlink": "n1b", "gpuos_leaf": "l1", "gpuos_numa": "1" })
    );
    // 19 - 2 kept are 4 for each and one left; nothing of the host is counted twice or lost.
    assert_eq!(
        json!(vnodes["n1"]),
        json!({ "ncpus": 3, "mem": "1025kb", "ngpus": 0, "gpuos_leaf": "l1" })
    );
}

#[test]
fn a_host_that_nobody_describes_stays_as_it_is() {
    let own = json!({ "ncpus": "8", "mem": "1gb" });
    for (host, hosts) in [
        ("n1", json!({})),
        ("n7", hosts()),
        ("n1", json!({ "n1": { "gpus": [] } })),
    ] {
        assert_eq!(start(host, &hosts, &own)["edits"], json!([]));
    }
}

#[test]
fn a_description_that_cannot_be_used_makes_no_vnodes() {
    let said = |hosts: Value, own: Value| {
        let answer = start("n1", &hosts, &own);
        assert_eq!(
            (&answer["verdict"], &answer["edits"]),
            (&"reject".into(), &json!([])),
            "{answer}"
        );
        answer["message"].as_str().unwrap().to_string()
    };
    let own = || json!({ "ncpus": "8", "mem": "1gb" });
    assert!(said(hosts(), json!({ "mem": "1gb" })).contains("how many CPUs"));
    assert!(said(hosts(), json!({ "ncpus": "8", "mem": "much" })).contains("how much memory"));
    assert!(said(hosts(), json!({ "ncpus": "5", "mem": "1gb" })).contains("lower keep_cpus"));
    let named = |uuid: &str| json!({ "n1": { "gpus": [{ "uuid": uuid }] } });
    for uuid in ["GPU 1", "GPU-1,2", "x\n", "'; set hook", &"u".repeat(200)] {
        assert!(said(named(uuid), own()).contains("uuid '"), "{uuid}");
    }
    let many = vec![json!({}); 257];
    assert!(said(json!({ "n1": { "gpus": many } }), own()).contains("257 GPUs"));
}

#[test]
fn a_file_of_hosts_is_read_as_a_whole_or_not_at_all() {
    let read = read_hosts(&hosts().to_string()).unwrap();
    assert_eq!(read["n1"].gpus.len(), 4);
    assert_eq!(
        json!(largest(&read)),
        json!({ "node": 4, "nvlink": 2, "leaf": 8 })
    );
    for (text, why) in [
        ("[]", "invalid type"),
        (r#"{"n1":{"gpu":[]}}"#, "unknown field `gpu`"),
        (r#"{"n 1":{}}"#, "'n 1' is no name of a host"),
        (r#"{"n1":{"leaf":"a b"}}"#, "n1: leaf 'a b' is no name"),
    ] {
        let said = read_hosts(text).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}

const RESOURCES: &str = "Resource ngpus\n    type = long\n    flag = hn\n\nResource gpuos_leaf\n    type = string\n\nResource rack\n    type = string\n";
const HOOKS: &str = "Hook gpuos\n    type = site\n    enabled = true\n    event = queuejob,\n\trunjob,\n\tperiodic\n    order = 500\n    alarm = 10\n    fail_action = none\n\nHook other\n    order = 1\n";

#[test]
fn qmgr_is_told_what_is_missing_and_nothing_twice() {
    let (none, script, config) = (Objects::new(), "/t/h.py", "/t/h.json");
    let fresh = install(&none, &none, script, config).unwrap();
    assert!(
        fresh.contains(&"create resource gpuos_topology type=string,flag=m".to_string()),
        "{fresh:?}"
    );
    assert!(
        fresh.contains(&"create resource ngpus type=long,flag=nh".to_string()),
        "{fresh:?}"
    );
    let at = |line: &str| {
        fresh
            .iter()
            .position(|one| one == line)
            .unwrap_or_else(|| panic!("{line}: {fresh:?}"))
    };
    assert!(
        at("create hook gpuos") < at("import hook gpuos application/x-config default /t/h.json")
    );
    assert!(
        at("import hook gpuos application/x-python default /t/h.py")
            < at("set hook gpuos enabled = true")
    );

    let (resources, hooks) = (parse_list(RESOURCES, "resource"), parse_list(HOOKS, "hook"));
    let lines = install(&resources, &hooks, script, config).unwrap();
    assert!(
        lines.contains(&"set resource gpuos_leaf flag = h".to_string()),
        "{lines:?}"
    );
    for unneeded in [
        "resource ngpus",
        "create hook",
        "hook gpuos order",
        "hook gpuos enabled",
    ] {
        assert!(
            !lines.iter().any(|line| line.contains(unneeded)),
            "{unneeded}: {lines:?}"
        );
    }
    // Of an earlier release the hook has fewer events.
    let mut events = lines
        .iter()
        .filter(|line| line.starts_with("set hook gpuos event = "));
    let events = events.next().expect("the events");
    assert!(events.contains("execjob_end"), "{events}");

    let events = &hooks["gpuos"]["event"];
    assert_eq!(events, "queuejob,runjob,periodic");
    let other = parse_list("Resource gpuos_mig\n    type = long\n", "resource");
    let said = install(&other, &none, script, config).unwrap_err();
    assert!(said.contains("gpuos_mig of type long"), "{said}");
}

#[test]
fn what_was_put_in_is_taken_out_and_nothing_else() {
    let nodes = "Node n1\n    Mom = n1\n\nNode n1[0]\n    resources_available.gpuos_leaf = l1\n    resources_available.ngpus = 1\n";
    let lines = remove(
        &parse_list(RESOURCES, "resource"),
        &parse_list(HOOKS, "hook"),
        &parse_list(nodes, "node"),
    );
    assert_eq!(
        lines,
        [
            "set hook gpuos enabled = false",
            "delete hook gpuos",
            "unset node n1[0] resources_available.gpuos_leaf",
            "delete resource gpuos_leaf"
        ]
    );
    assert!(remove(&Objects::new(), &Objects::new(), &Objects::new()).is_empty());
}

#[test]
fn qmgr_is_where_pbs_conf_says() {
    assert_eq!(
        programs("PBS_SERVER=head\nPBS_EXEC=/opt/pbs\n").unwrap(),
        "/opt/pbs/bin"
    );
    for (text, programs_in) in [
        ("PBS_EXEC='/opt/pbs'", "/opt/pbs/bin"),
        ("PBS_EXEC=\"/opt/pbs\"\n", "/opt/pbs/bin"),
        (" PBS_EXEC = /opt/pbs\n", "/opt/pbs/bin"),
        ("PBS_EXEC=/old\nPBS_EXEC=/new\n", "/new/bin"),
    ] {
        assert_eq!(programs(text).as_deref(), Ok(programs_in), "{text}");
    }
    for text in ["", "PBS_EXEC=\n", "PBS_EXEC=opt\n", "#PBS_EXEC=/opt/pbs\n"] {
        assert!(programs(text).is_err(), "{text}");
    }
}
