//! Hosts on which another one gives GPUs, and gpuos only advises.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::{HostOrder, MomOrders, MomRoom};
use gpuos_pbs::hook::install::{beside, divide, largest, parse_list, read_hosts};
use serde_json::{Value, json};

use crate::hook_talks::{alone, done, gpus, orders, report};

fn hosts() -> Value {
    json!({ "n1": { "leaf": "l1", "advise": true, "gpus": [
        { "uuid": "GPU-a", "nvlink": "x", "numa": 0 }, { "uuid": "GPU-b", "nvlink": "x", "numa": 0 },
        { "uuid": "GPU-c", "nvlink": "y", "numa": 1 }, { "uuid": "GPU-d", "nvlink": "y", "numa": 1 },
    ] } })
}

fn event(kind: &str, more: Value) -> Value {
    let mut event =
        json!({ "event": kind, "host": "n1.site", "hosts": hosts(), "gpuosd": "/run/g.sock" });
    for (key, value) in more.as_object().expect("a table") {
        event[key] = value.clone();
    }
    event
}

#[test]
fn a_program_is_given_nothing_and_refused_nothing() {
    for given in ["(n1:ncpus=1:ngpus=2)", "(n1[0]:ncpus=1:ngpus=1)"] {
        for confine in ["off", "try", "require"] {
            let job = json!({ "id": "1.head", "exec_vnode": given, "user": "ann", "uid": 7, "run": 1,
                "resources": { "gpuos_topology": "leaf:required" } });
            let said = alone(&event(
                "execjob_launch",
                json!({ "confine": confine, "job": job }),
            ));
            assert_eq!(
                (&said["verdict"], &said["edits"]),
                (&json!("accept"), &json!([])),
                "{said}"
            );
            assert!(
                said["message"].is_null() && said["notes"].is_null(),
                "{said}"
            );
        }
    }
    let job = json!({ "id": "1.head", "exec_vnode": "(n1:ngpus=2)", "resources": { "gpuos_power": "300" } });
    let said = alone(&event("execjob_launch", json!({ "job": job })));
    assert_eq!(said["verdict"], "accept");
    assert!(
        said["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("only advises")),
        "{said}"
    );
}

/// Jobs with GPUs by pbs_cgroups's word, by PBS's count alone, and without.
fn periodic(server: &Value) -> Value {
    let job = |given: &str, visible: &str| json!({ "exec_vnode": given, "visible": visible, "session": 100, "user": "ann", "uid": 7, "run": 1 });
    let mut told = event(
        "exechost_periodic",
        json!({ "vnodes": { "n1": {} }, "jobs": {
            "1.head": job("(n1:ncpus=1:ngpus=2)", "GPU-d,GPU-b"),
            "2.head": job("(n1[0]:ncpus=1:ngpus=1)", ""),
            "3.head": job("(n1:ncpus=1)", ""),
            "4.head": job("(n1:ncpus=1:ngpus=1)", "MIG-1, GPU-x\n"),
        } }),
    );
    if !server.is_null() {
        told["server"] = server.clone();
        told["turn"] = json!(1);
    }
    told
}

#[test]
fn gpuosd_is_told_who_has_what_and_that_it_only_advises() {
    let told = report(&periodic(&Value::Null));
    assert!(told.advise && told.all && told.host.is_none());
    let described = told.described.iter().map(|gpu| &gpu.uuid[..]);
    assert!(described.eq(["GPU-a", "GPU-b", "GPU-c", "GPU-d"]));
    assert!(
        told.jobs.iter().all(|job| job.count == 0),
        "nobody has to choose"
    );
    let jobs: Vec<_> = told
        .jobs
        .iter()
        .map(|job| (job.job.to_string(), job.gpus.clone()))
        .collect();
    let wanted = [
        ("1.head", gpus(&[1, 3])),
        ("2.head", gpus(&[])),
        ("4.head", gpus(&[])),
    ];
    assert_eq!(jobs, wanted.map(|(id, gpus)| (id.to_owned(), gpus)));
    for (comment, advice, is_others) in [
        ("", None, false),
        ("gpuos advises: GPU 1 is bad", Some("GPU 1 is bad"), false),
        ("fan", None, true),
    ] {
        let server = json!({ "vnodes": { "n1": { "comment": comment } } });
        let seen = report(&periodic(&server)).host.expect("it is told");
        assert_eq!(
            (seen.reason.as_deref(), seen.commented),
            (advice, is_others),
            "{comment}"
        );
    }
}

/// What mom does.
fn obeys(wanted: &MomOrders, server: &Value) -> Value {
    done(&periodic(server), Ok(&[orders(wanted.clone())]))
}

#[test]
fn of_what_gpuosd_finds_a_comment_is_made_and_nothing_else() {
    let orders = MomOrders {
        host: HostOrder::Offline("GPU 1 should get no more jobs".into()),
        look: true,
        // Of a gpuosd that does not know better.
        room: Some(MomRoom::default()),
        rerun: BTreeMap::from([("1.head".parse().expect("an id"), 3)]),
        end: BTreeMap::from([("2.head".parse().expect("an id"), 9)]),
        ..MomOrders::default()
    };
    let ask = obeys(&orders, &Value::Null);
    assert_eq!(ask["ask"], json!({ "vnodes": ["n1"], "jobs": [] }), "{ask}");
    let made = |orders: &MomOrders, comment: &str| {
        let server = json!({ "vnodes": { "n1": { "offline": true, "comment": comment } } });
        obeys(orders, &server)["edits"].clone()
    };
    let set = |value: &str| json!([{ "set": "comment", "vnode": "n1", "value": value }]);
    let advice = "gpuos advises: GPU 1 should get no more jobs";
    assert_eq!(made(&orders, ""), set(advice));
    assert_eq!(made(&orders, "gpuos advises: GPU 3"), set(advice));
    assert_eq!(made(&orders, advice), json!([]));
    assert_eq!(made(&orders, "fan"), json!([]), "another's stays");
    let well = MomOrders {
        host: HostOrder::Online,
        ..MomOrders::default()
    };
    assert_eq!(made(&well, advice), set(""));
    assert_eq!(made(&well, "fan"), json!([]));
    assert_eq!(
        made(&MomOrders::default(), advice),
        json!([]),
        "it does not know yet"
    );
    let long = MomOrders {
        host: HostOrder::Offline("x\n".repeat(4000)),
        ..MomOrders::default()
    };
    let value = made(&long, "")[0]["value"]
        .as_str()
        .expect("a comment")
        .to_owned();
    assert!(value.len() < 400 && !value.contains('\n'), "{value}");
}

#[test]
fn such_a_host_has_no_pool_and_its_sets_of_nvlink_promise_nothing() {
    let mut known = read_hosts(&hosts().to_string()).expect("hosts");
    let own = largest(&known);
    assert_eq!((own["node"], own["leaf"], own.get("nvlink")), (4, 4, None));
    let toml = "[[mig.board]]\nname = \"a30\"\nprofiles = [\n  { id = 14, name = \"1g.6gb\", compute = 1, memory-mib = 5952, most = 4, \
                size = 1, starts = [0, 1, 2, 3] },\n]\n[[mig.pool]]\nnodes = \"n1\"\ngpus = \"3\"\nboard = \"a30\"\n";
    let config = Config::parse(toml, "gpuos.toml").expect("a configuration");
    let why = divide(&mut known, &config.mig).expect_err("a pool is gpuos's to divide");
    assert!(why.contains("has advise in gpus.json"), "{why}");
}

#[test]
fn an_administrator_is_told_which_hosts_are_whose() {
    let mut all = hosts();
    all["n2"] = json!({ "gpus": [{}] });
    all["n3"] = json!({ "gpus": [] });
    let known = read_hosts(&all.to_string()).expect("hosts");
    let said = |hooks: &str| beside(&known, &parse_list(hooks, "Hook"));
    let [advised] = &said("Hook pbs_cgroups\n    enabled = false\n")[..] else {
        panic!("one sentence");
    };
    assert!(
        advised.starts_with("On n1 another one gives GPUs"),
        "{advised}"
    );
    let both = said("Hook pbs_cgroups\n    enabled = true\n");
    assert!(
        both[1].contains("it leaves out n2 (exclude_hosts"),
        "{both:?}"
    );
    assert!(beside(&BTreeMap::new(), &BTreeMap::new()).is_empty());
}
