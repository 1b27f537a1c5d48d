//! Hosts as administrators describe them, and what qmgr is told of the hook and its resources.

use gpuos_pbs::hook::install::{
    Objects, install, largest, parse_list, programs, read_hosts, remove, several_sets,
};
use serde_json::{Value, json};

fn hosts() -> Value {
    let gpu = |host: &str, index: usize, pair: &str| json!({ "uuid": format!("GPU-{host}-{index}"), "nvlink": format!("{host}{pair}"), "numa": index / 2 });
    let host = |name: &str, leaf: &str| json!({ "leaf": leaf, "keep_cpus": 2, "keep_mib": 1, "gpus": [gpu(name, 0, "a"), gpu(name, 1, "a"), gpu(name, 2, "b"), gpu(name, 3, "b")] });
    json!({ "n1": host("n1", "l1"), "n2": host("n2", "l1"), "n3": host("n3", "l2") })
}

#[test]
fn a_file_of_hosts_is_read_as_a_whole_or_not_at_all() {
    let read = read_hosts(&hosts().to_string()).unwrap();
    assert_eq!(read["n1"].gpus.len(), 4);
    assert_eq!(
        json!(largest(&read)),
        json!({ "node": 4, "nvlink": 2, "leaf": 8 })
    );
    // What it says for the hook is read again; what means nothing any more is not written.
    let mut written = serde_json::to_value(&read).unwrap();
    assert!(written["n1"].get("keep_cpus").is_none(), "{written}");
    written["n1"]["former"] = json!([1, 3]);
    assert_eq!(
        read_hosts(&written.to_string()).unwrap()["n1"].former,
        [1, 3]
    );
    let named = |uuid: &str| json!({ "n1": { "gpus": [{ "uuid": uuid }] } }).to_string();
    for (text, why) in [
        ("[]".to_owned(), "invalid type"),
        (r#"{"n1":{"gpu":[]}}"#.into(), "unknown field `gpu`"),
        (r#"{"n 1":{}}"#.into(), "'n 1' is no name of a host"),
        (
            r#"{"n1":{"leaf":"a b"}}"#.into(),
            "n1: leaf 'a b' is no name",
        ),
        (named("GPU 1"), "n1: uuid 'GPU 1' is no name"),
        (named("GPU-1,2"), "uuid '"),
        (named("'; set hook"), "uuid '"),
        (named(&"u".repeat(200)), "uuid '"),
        (
            json!({ "n1": { "gpus": vec![json!({}); 257] } }).to_string(),
            "257 GPUs",
        ),
    ] {
        let said = read_hosts(&text).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_host_has_several_sets_where_not_all_whole_gpus_are_in_one() {
    let several = |gpus: Value| {
        several_sets(&read_hosts(&json!({ "n1": { "gpus": gpus } }).to_string()).unwrap())
    };
    for (gpus, wanted) in [
        (json!([{ "nvlink": "a" }, { "nvlink": "a" }]), false),
        (json!([{ "nvlink": "a" }, { "nvlink": "b" }]), true),
        (json!([{ "nvlink": "a" }, {}]), true),
        (json!([{}, {}]), false),
        (json!([{ "nvlink": "a" }]), false),
        // The others are none that jobs have as a whole.
        (
            json!([{ "nvlink": "a" }, { "nvlink": "b", "shares": 2 }]),
            false,
        ),
        (json!([]), false),
    ] {
        assert_eq!(several(gpus.clone()), wanted, "{gpus}");
    }
}

const RESOURCES: &str = "Resource ngpus\n    type = long\n    flag = hn\n\nResource gpuos_leaf\n    type = string\n\nResource rack\n    type = string\n";
const HOOKS: &str = "Hook gpuos\n    type = site\n    enabled = true\n    event = queuejob,\n\trunjob,\n\tperiodic\n    order = 500\n    alarm = 10\n    fail_action = none\n\nHook other\n    order = 1\n";
const FILES: (&str, &str) = ("/t/h.py", "/t/h.json");

fn events(lines: &[String]) -> &str {
    let mut events = lines
        .iter()
        .filter_map(|line| line.strip_prefix("set hook gpuos event = "));
    events.next().expect("the events")
}

#[test]
fn qmgr_is_told_what_is_missing_and_nothing_twice() {
    let none = Objects::new();
    let fresh = install(&none, &none, "23.06.06", FILES).unwrap();
    for line in [
        "create resource gpuos_topology type=string,flag=m",
        "create resource ngpus type=long,flag=nh",
        "create resource gpuos_host type=string,flag=h",
        // Compared with what a host says, and not counted.
        "create resource gpuos_linked type=long,flag=h",
        "create resource gpuos_mig_fits type=long,flag=h",
        "create resource gpuos_share_fits type=long,flag=h",
        "create resource gpuos_share_parts type=long,flag=nh",
    ] {
        assert!(fresh.contains(&line.to_string()), "{line}: {fresh:?}");
    }
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
    let lines = install(&resources, &hooks, "23.06.06", FILES).unwrap();
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
    // Of an earlier release the hook has other events.
    assert!(events(&lines).contains("execjob_end"), "{lines:?}");
    assert_eq!(hooks["gpuos"]["event"], "queuejob,runjob,periodic");
    let other = parse_list("Resource gpuos_mig\n    type = long\n", "resource");
    let said = install(&other, &none, "23.06.06", FILES).unwrap_err();
    assert!(said.contains("gpuos_mig of type long"), "{said}");
}

/// One event that a PBS does not know, and all are refused.
#[test]
fn the_hook_is_run_for_events_that_this_pbs_has() {
    let of = |version: &str| {
        let lines = install(&Objects::new(), &Objects::new(), version, FILES).unwrap();
        events(&lines).to_owned()
    };
    for version in ["22.05.11", "23.06.06", "2024.1.0"] {
        assert!(of(version).contains("modifyresv"), "{version}");
    }
    for version in ["20.0.1", "19.1.3", "", "unknown"] {
        assert!(!of(version).contains("modifyresv"), "{version}");
    }
    for version in ["20.0.1", "23.06.06"] {
        let events = of(version);
        assert!(events.contains("resvsub") && events.contains("exechost_periodic"));
        assert!(!events.contains("exechost_startup"), "no vnode is made");
    }
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
    let former = parse_list("Resource gpuos_uuid\n    type = string\n", "resource");
    let lines = remove(&former, &Objects::new(), &Objects::new());
    assert_eq!(lines, ["delete resource gpuos_uuid"]);
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
