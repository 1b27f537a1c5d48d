//! The form of the JSON that programs rely on.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::replay::ring;
use crate::site::Site;

/// The paths and kinds of all values in a JSON, one a line.
fn shape(value: &Value, at: &str, lines: &mut std::collections::BTreeSet<String>) {
    let kind = match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                shape(value, &format!("{at}.{key}"), lines);
            }
            return;
        }
        Value::Array(items) => {
            for item in items {
                shape(item, &format!("{at}[]"), lines);
            }
            if items.is_empty() {
                lines.insert(format!("{at}[]"));
            }
            return;
        }
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
    };
    lines.insert(format!("{at} {kind}"));
}

/// Programs rely on these names: a change here needs a new schema number. The files are
/// written anew with GPUOS_UPDATE_SCHEMAS=1.
#[test]
fn the_json_has_the_agreed_form() {
    let site = Site::new("24.11.5");
    let jobs = site.path("jobs.csv");
    site.file("jobs.csv", crate::sim::JOBS);
    site.file("openb_node_list_gpu_node.csv", crate::sim::NODES);
    let timed = ["sim", &jobs, "--protocol=lifetimes", "--seeds=1"];
    let (good, bad) = (site.path("good"), site.path("bad"));
    fs::write(&good, ring(17, false)).unwrap();
    fs::write(&bad, ring(17, true)).unwrap();
    let philly = site.path("philly.csv");
    site.file("philly.csv", &crate::sim_gangs::jobs());
    let gangs = [
        "sim",
        &philly,
        "--protocol=gangs",
        "--policy=best-fit,gpuos",
        "--seeds=1",
        "--days=2",
        "--site-nodes=16",
    ];
    let mig = [
        "sim",
        "--protocol=mig",
        "--gpus=8",
        "--loads=90",
        "--stream=small",
        "--packing=first-fit,gpuos",
        "--seeds=1",
    ];
    let run = crate::top::daemon(&site);
    let lends = crate::mem::daemon(&site);
    for (name, args, schema) in [
        ("topo", &["topo"][..], "gpuos.topo/1"),
        ("topo-node", &["topo", "n1"], "gpuos.topo-node/1"),
        ("why-running", &["why", "2"], "gpuos.why/2"),
        ("why-waiting", &["why", "9"], "gpuos.why/2"),
        ("why-unknown", &["why", "99999"], "gpuos.why/2"),
        ("plan-fits", &["plan", "--gpus=1"], "gpuos.plan/1"),
        ("plan-waits", &["plan", "--gpus-per-node=2"], "gpuos.plan/1"),
        ("sim-openb", &["sim", &jobs, "--seeds=1"], "gpuos.sim/1"),
        ("sim-lifetimes", &timed, "gpuos.sim/1"),
        (
            "plan-defrag-none",
            &["plan", "--gpus-per-node=4", "--defrag"],
            "gpuos.plan-defrag/2",
        ),
        ("replay", &["replay", &good], "gpuos.replay/1"),
        (
            "replay-metrics",
            &["replay", "--metrics", &good],
            "gpuos.replay-metrics/1",
        ),
        ("replay-differs", &["replay", &bad], "gpuos.replay/1"),
        ("sim-gangs", &gangs, "gpuos.sim/1"),
        ("sim-mig", &mig, "gpuos.sim/1"),
        ("mem", &["mem", "show", "--json", &lends], "gpuos.mem/1"),
        ("mem-sim", &["mem", "sim", "loop"], "gpuos.mem-sim/1"),
        (
            "mem-trace",
            &["mem", "sim", "loop", "--print"],
            "gpuos.mem-trace/1",
        ),
        ("doctor", &["doctor"], "gpuos.doctor/1"),
        ("man", &["man"], "gpuos.man/1"),
        ("completion", &["completion", "bash"], "gpuos.completion/1"),
        ("top", &["top", "--json", &run], "gpuos.top/1"),
        ("error", &["topo", "nowhere"], "gpuos.error/1"),
    ] {
        agreed(&site, name, args, schema);
    }
    let saved = Site::new("24.11.5");
    let run = crate::ckpt_bed::forms(&saved);
    for (name, verb, schema) in [
        ("ckpt", "show", "gpuos.ckpt/1"),
        ("ckpt-verify", "verify", "gpuos.ckpt-verify/1"),
        ("ckpt-prune", "prune", "gpuos.ckpt-prune/1"),
        ("ckpt-list", "list", "gpuos.ckpt-list/1"),
    ] {
        agreed(&saved, name, &["ckpt", verb, "17", &run], schema);
    }
    let saved = Site::new("24.11.5");
    let run = crate::ckpt_bed::made(&saved);
    let args = ["ckpt", "now", "17", &run];
    agreed(&saved, "ckpt-now", &args, "gpuos.ckpt-now/1");
    let saved = Site::new("24.11.5");
    let run = crate::ckpt_again::restores(&saved);
    let args = ["ckpt", "drill", "17", &run];
    agreed(&saved, "ckpt-drill", &args, "gpuos.ckpt-drill/1");
    let emptied = crate::remote::site();
    let args = ["drain", "n3", "--migrate"];
    agreed(&emptied, "migrate", &args, "gpuos.migrate/1");
    let several = Site::new("24.11.5");
    let run = crate::ckpt_drills::of_two(&several);
    let args = ["ckpt", "drill", "--all", &run];
    agreed(&several, "ckpt-drills", &args, "gpuos.ckpt-drills/1");
    let args = ["ckpt", "report", &run];
    agreed(&several, "ckpt-report", &args, "gpuos.ckpt-report/1");
    saved.program("scontrol", "#!/bin/sh\n");
    let run = format!("--runtime-dir={}", saved.path("run"));
    let args = ["ckpt", "restart", "17", &run];
    agreed(&saved, "ckpt-restart", &args, "gpuos.ckpt-restart/1");
    let saved = Site::new("24.11.5");
    let run = crate::ckpt_bed::failing(&saved);
    let args = ["ckpt", "now", "17", &run];
    agreed(&saved, "ckpt-now-failed", &args, "gpuos.ckpt-now/1");
    let pool = Site::new("24.11.5");
    let run = crate::mig::whole(&pool);
    agreed(&pool, "mig", &["mig", &run], "gpuos.mig/1");
    agreed(
        &pool,
        "mig-layout",
        &["mig", "--layout", &run],
        "gpuos.mig-layout/1",
    );
    pool.file(
        "layout.toml",
        "[[gpu]]\nnodes = \"n1,n2\"\ngpus = \"4\"\ninstances = []\n",
    );
    let args = [
        "mig",
        "assert",
        &pool.path("layout.toml"),
        "--via=false",
        &run,
    ];
    agreed(&pool, "mig-assert", &args, "gpuos.mig-assert/1");
    let slices = crate::slices::site(&crate::slices::JOBS);
    let args = ["mig", "plan", "3g.40gb"];
    agreed(&slices, "mig-plan-fits", &args, "gpuos.mig-plan/1");
    let args = ["mig", "plan", "7g.80gb"];
    agreed(&slices, "mig-plan-waits", &args, "gpuos.mig-plan/1");
    let args = ["plan", "--mig=7g.80gb", "--defrag"];
    agreed(&slices, "mig-plan-defrag", &args, "gpuos.mig-plan/1");
    let mixed = crate::worth::site();
    let args = ["plan", "--gpus=1", "--objectives=cost=100"];
    agreed(&mixed, "plan-worth", &args, "gpuos.plan/1");
    let idle = crate::defrag::site();
    let args = [&crate::defrag::ASK[..], &["-p", "main"]].concat();
    agreed(&idle, "plan-defrag", &args, "gpuos.plan-defrag/2");
}

/// Holds the form of one answer against its file.
fn agreed(site: &Site, name: &str, args: &[&str], schema: &str) {
    let mut all = vec!["--json"];
    all.extend(args);
    let json = site.run(&all).json();
    assert_eq!(json["schema"], schema, "{name}");
    agrees(name, &json);
}

/// Holds the form of an answer against its file.
pub fn agrees(name: &str, json: &Value) {
    let mut lines = std::collections::BTreeSet::new();
    shape(json, "", &mut lines);
    let text = lines
        .into_iter()
        .map(|line| line + "\n")
        .collect::<String>();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/schemas/{name}.txt"));
    if std::env::var_os("GPUOS_UPDATE_SCHEMAS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let want = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, want, "{name}: {}", file.display());
}
