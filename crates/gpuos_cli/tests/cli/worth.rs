//! What places are worth, in `plan`, `why` and `doctor`.

use crate::site::Site;

/// Two kinds of nodes: the one with a free GPU on n2 is dear, the one on n4 cheap and capped.
const TOML: &str = "[[node-type]]\nname = \"dear\"\nbase = \"dgx-h100\"\nprice-per-gpu-hour = 4.0\n\
    [[node-type]]\nname = \"cheap\"\nbase = \"dgx-h100\"\nprice-per-gpu-hour = 1.5\ngpu-memory-gbps = 2000\n\
    [[nodes]]\nmatch = \"n[1-3]\"\ntype = \"dear\"\n\
    [[nodes]]\nmatch = \"n4\"\ntype = \"cheap\"\ngpu-cap-watts = 490\n";

pub fn site() -> Site {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site.file("gpuos.toml", TOML);
    site.file(
        "partitions.txt",
        "PartitionName=main\n   Default=YES Nodes=n[1-4]\n",
    );
    site
}

fn node(site: &Site, more: &[&str]) -> String {
    let args = [&["plan", "--gres=gpu:1", "--json"], more].concat();
    let answer = site.run(&args);
    assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
    let json = answer.json();
    json["place"]["nodes"][0]["node"].as_str().unwrap().into()
}

#[test]
fn plan_weighs_what_it_is_told_and_says_why() {
    let site = site();
    assert_eq!(
        node(
            &site,
            &["--objectives", "throughput=100", "--profile=memory"]
        ),
        "n2"
    );
    assert_eq!(node(&site, &["--objectives", "cost=100"]), "n4");
    // A profile is enough.
    assert_eq!(node(&site, &["--profile=memory"]), "n2");
    let text = site
        .run(&["plan", "--gres=gpu:1", "--objectives=cost=80,energy=20"])
        .out;
    for part in [
        "by energy=20,cost=80, in percent of the best",
        "ENERGY %",
        "PRICE/GPU-HOUR",
        "1.500",
        "more by energy=20,cost=80 than n2 (dear).",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // 10.2 kW less eight times 700 W, by eight: 575 W beside the GPU.
    assert!(text.contains("1275") && text.contains("1065"), "{text}");
    let json = site
        .run(&["plan", "--gres=gpu:1", "--objectives=cost=100", "--json"])
        .json();
    let worth = &json["worth"];
    assert_eq!(worth["than"], "n2");
    assert_eq!(worth["types"][0]["type"], "cheap");
    assert_eq!(worth["types"][0]["chosen"], true);
    let cost = |at: usize| worth["types"][at]["parts"]["cost"].as_u64().unwrap();
    assert!(cost(0) > 900 && cost(1) < 500, "{worth}");
    // Nothing said, nothing weighed, but for what the node's cap tells.
    let json = site.run(&["plan", "--gres=gpu:1", "--json"]).json();
    assert!(json.get("worth").is_none(), "{json}");
    let wrong = site.run(&["plan", "--gres=gpu:1", "--objectives=cost=10"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("they make 10"), "{}", wrong.err);
}

#[test]
fn plan_follows_the_rules_of_partition_and_qos() {
    let site = site();
    let rules = "[[policy.rule]]\npartition = \"main\"\nobjectives = { cost = 100 }\n\
                 [[policy.rule]]\nqos = \"fast\"\nobjectives = { throughput = 100 }\n";
    site.file("gpuos.toml", &format!("{rules}{TOML}"));
    assert_eq!(node(&site, &["-p", "main"]), "n4");
    // The default partition is the one that Slurm has.
    assert_eq!(node(&site, &[]), "n4");
    site.file(
        "partitions.txt",
        "PartitionName=other\n   Default=YES Nodes=n[1-4]\n",
    );
    assert_eq!(node(&site, &["--qos=fast", "--profile=memory"]), "n2");
    let doctor = site.run(&["doctor"]).out;
    assert!(
        doctor.contains("[[policy.rule]] with qos = holds for no job"),
        "{doctor}"
    );
    assert!(!doctor.contains("fairness"), "{doctor}");
    let fair = "[policy]\nobjectives = { fairness = 50, cost = 50 }\n";
    site.file("gpuos.toml", fair);
    let doctor = site.run(&["doctor"]).out;
    for part in [
        "fairness goes by the jobs' priority",
        "cost has no price for dgx-h100",
    ] {
        assert!(doctor.contains(part), "{part}: {doctor}");
    }
}

#[test]
fn why_tells_what_the_note_says_of_worth() {
    let site = site();
    site.edit(
        "jobs.txt",
        "AdminComment=hello admin",
        "SystemComment=gpuos: level=node bus=370 lost=2 nodes=1 domains=1 by=cost=100 more=31 than=n4 gpus=n1:0-1\n   \
         AdminComment=hello admin",
    );
    let text = site.run(&["why", "1"]).out;
    assert!(
        text.contains("More work by 31 % for the price than n4 (cheap)."),
        "{text}"
    );
}
