//! `gpuos plan`.

use crate::site::Site;

#[test]
fn plan_says_where_or_why_not() {
    let site = Site::new("24.11.5");
    // n4 back in service: eight free GPUs.
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    let fits = site.run(&["plan", "--gpus-per-node", "h100:4"]);
    assert_eq!(fits.code, 0, "{}{}", fits.out, fits.err);
    assert!(
        fits.out
            .starts_with("It would start now: 4 GPUs on 1 node (n4)"),
        "{}",
        fits.out
    );
    let json = site.run(&["plan", "--gres=gpu:4", "--json"]).json();
    assert_eq!(json["place"]["nodes"][0]["node"], "n4");
    assert_eq!(
        json["place"]["nodes"][0]["gpus"].as_array().unwrap().len(),
        4
    );
    assert_eq!(json["place"]["level"], "nvlink");

    let no = site.run(&["plan", "--gpus-per-node=8", "-N2", "--json"]);
    assert_eq!(no.code, 1);
    let json = no.json();
    assert_eq!(json["fits"], false);
    assert_eq!(json["changes"][0]["option"], "--nodes=1");
    assert_eq!(json["changes"][0]["fewer_gpus"], 8);

    // Two nodes in one leaf do not fit, spread over leaves they do: the level is the change.
    site.edit(
        "nodes.txt",
        "GresUsed=gpu:h100:7(IDX:0-6)",
        "GresUsed=gpu:h100:0(IDX:N/A)",
    );
    let wish = site.run(&[
        "plan",
        "--gpus-per-node=8",
        "-N2",
        "--topology=leaf:required",
        "--json",
    ]);
    assert_eq!(wish.code, 1, "{}", wish.out);
    let json = wish.json();
    assert_eq!(json["wait"]["kind"], "level");
    assert_eq!(
        json["changes"][0]["option"],
        "--gpuos-topology=spine:required"
    );
    assert_eq!(
        json["changes"][1]["option"],
        "--gpuos-topology=leaf:preferred"
    );
    let never = site.run(&["plan", "--gpus-per-node=8", "-N", "9"]);
    assert_eq!(never.code, 1);
    assert!(never.out.contains("can never start"), "{}", never.out);
    let excluded = site.run(&["plan", "--gpus-per-node=8", "-x", "n2,n4"]);
    assert_eq!(excluded.code, 1, "{}", excluded.out);
}

#[test]
fn memory_beyond_that_of_gpus_is_split_and_its_cost_told() {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    let ask = |toml: &str, more: &[&str]| {
        site.file("gpuos.toml", toml);
        let args = [&["plan", "--gpus-per-node=h100:1"], more].concat();
        let told = site.run(&args);
        told.out + &told.err
    };
    let on = "[memory]\noversubscribe = true\n";
    let stated = format!("{on}[[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n");
    let small = format!(
        "{on}[[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 5120\n[[nodes]]\nmatch = \"n[1-4]\"\ntype = \"small\"\n"
    );
    let split = "Memory of each GPU: 120.0 GiB, of it 78.6 GiB in its own and 41.4 GiB in the host's. --mem grows by 42345 MiB for 1 of a node's GPUs.";
    let told = ask("", &["--gpuos-mem=120G"]);
    assert!(told.contains(split), "{told}");
    assert!(
        told.contains("sbatch would refuse it: [memory] oversubscribe in gpuos.toml is not true"),
        "{told}"
    );
    let told = ask(on, &["--gpuos-mem=120G"]);
    assert!(told.contains("says what the GPUs of n"), "{told}");
    let told = ask(&stated, &["--gpuos-mem=120G", "--trace=loop"]);
    assert!(told.contains(split) && !told.contains("refuse"), "{told}");
    assert!(
        told.contains("loop has 6.3 GiB at once: all of it fits, and nothing is moved."),
        "{told}"
    );
    let told = ask(&stated, &["--gpuos-mem=400G"]);
    assert!(told.contains("it is more than the 326236 MiB"), "{told}");
    // Under LRU a loop that is larger than the GPU finds nothing there.
    let told = ask(&small, &["--gpuos-mem=10G,policy=lru", "--trace=loop"]);
    let slow = "loop has 6.3 GiB at once. Under lru ";
    assert!(
        told.contains(slow) && told.contains("times as slow"),
        "{told}"
    );
    let told = ask(&small, &["--gpuos-mem=5G", "--trace=loop"]);
    assert!(
        told.contains("has 6400 MiB at once; write as much or more"),
        "{told}"
    );
    let told = ask(&stated, &["--gpuos-mem=80"]);
    assert!(told.contains("the unit M, G or T is missing"), "{told}");
    site.file("gpuos.toml", &small);
    let args = [
        "plan",
        "--gpus-per-node=h100:2",
        "--gpuos-mem=16G",
        "--trace=scan",
        "--json",
    ];
    let json = site.run(&args).json();
    assert_eq!(json["memory"]["host_mib_of_node"], 2 * (16_384 - 4096));
    assert_eq!(json["memory"]["refused"], serde_json::Value::Null);
    assert!(
        json["memory"]["prediction"]["slowdown_at_most"]
            .as_f64()
            .unwrap()
            >= 1.0
    );
}

#[test]
fn what_names_nothing_in_the_cluster_is_no_request() {
    let site = Site::new("24.11.5");
    for (option, words) in [
        (
            "--partition=main,nope",
            "--partition=nope: no node of this cluster is in it; write one of main",
        ),
        (
            "--constraint=slow",
            "--constraint=slow: no node has these features; there are fast",
        ),
        (
            "--exclude=n4,n9",
            "--exclude=n9: this cluster has no such node",
        ),
        (
            "--nodelist=n4,n9",
            "--nodelist=n9: this cluster has no such node",
        ),
        (
            "--topology=rack",
            "--topology=rack: this cluster has no level 'rack'; write one of nvlink, node, leaf, spine, any",
        ),
        (
            "--alone=rack",
            "--alone=rack: this cluster has no level 'rack'; write one of nvlink, node, leaf, spine",
        ),
    ] {
        let answer = site.run(&["plan", "--gres=gpu:1", option]);
        assert_eq!(answer.code, 1, "{option}: {}", answer.out);
        assert!(
            answer.err.contains(words),
            "{option}: {}{}",
            answer.out,
            answer.err
        );
    }
    // Only Slurm judges brackets.
    for option in [
        "--constraint=fast",
        "--constraint=[slow*2]",
        "--topology=leaf",
        "--topology=any",
    ] {
        let answer = site.run(&["plan", "--gres=gpu:1", option]);
        assert_eq!(answer.err, "", "{option}");
    }
}

#[test]
fn plan_says_what_the_network_gives_beside_the_jobs_that_run() {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    let gang = ["plan", "--gpus-per-node=1", "-N2", "--json"];
    let plain = site.run(&gang).json();
    assert!(plain.get("network").is_none(), "{plain}");
    // A job runs over n1 and n2, and the only free GPUs are on n2 and n4.
    site.file(
        "gpuos.toml",
        "[[fabric.net]]\nname = \"ib\"\nkind = \"fat-tree\"\nnodes = \"n[1-4]\"\n\
         nodes-per-switch = 1\nfanout = [4]\noversubscription = [16]\n",
    );
    let json = site.run(&gang).json();
    let network = &json["network"];
    let gbps = |key: &str| network[key].as_f64().unwrap();
    assert!(gbps("beside_running_gbps") < gbps("alone_gbps"), "{json}");
    assert!(network["narrowest_link"].is_string(), "{json}");
    let said = site.run(&gang[..3]).out;
    assert!(
        said.contains(" GB/s beside the jobs that run; the narrowest link is "),
        "{said}"
    );
    // One node needs no network.
    let one = site.run(&["plan", "--gpus=1", "--json"]).json();
    assert!(one.get("network").is_none(), "{one}");
}

#[test]
fn plan_keeps_to_the_rules_of_the_site() {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    let alone = site.run(&["plan", "--gres=gpu:1", "--alone", "node", "--json"]);
    assert_eq!(alone.code, 0, "{}{}", alone.out, alone.err);
    let json = alone.json();
    assert_eq!(json["place"]["nodes"][0]["node"], "n4");
    let kept = json["kept"][0].as_str().unwrap();
    assert!(
        kept.contains("runs there, and the job wants the node to itself"),
        "{kept}"
    );
    // The jobs that run have no account.
    site.file(
        "gpuos.toml",
        "[[rule]]\ntenants = \"account\"\nlevel = \"node\"\n",
    );
    let tenant = site.run(&["plan", "--gres=gpu:1", "-A", "physics", "-w", "n1"]);
    assert_eq!(tenant.code, 1, "{}", tenant.out);
    assert!(
        tenant
            .out
            .contains("a job without account runs there (rule 1)"),
        "{}",
        tenant.out
    );
    let same = site.run(&["plan", "--gres=gpu:1", "--json"]).json();
    assert_eq!(same.get("kept"), None);
    // A reserve is a last resort.
    site.file("gpuos.toml", "[[reserve]]\nnodes = 1\ngangs = 2\n");
    let small = site.run(&["plan", "--gres=gpu:8"]);
    assert!(small.out.contains("n4 is a last resort"), "{}", small.out);
    let level = site.run(&["plan", "--gres=gpu:1", "--alone", "pod"]);
    assert_eq!(level.code, 1);
    assert!(
        level.err.contains("no level 'pod'; write one of"),
        "{}",
        level.err
    );
    site.file(
        "gpuos.toml",
        "[[rule]]\ntenants = \"user\"\nlevel = \"pod\"\n",
    );
    let doctor = site.run(&["doctor"]);
    assert!(
        doctor.out.contains("this cluster has no level pod"),
        "{}",
        doctor.out
    );
}

/// A node that is short of host memory comes last for a job that may need some, and is as good as ever for others.
#[test]
fn plan_goes_around_nodes_that_are_short_of_host_memory() {
    let site = crate::worth::site();
    let short = |node: &str| {
        let line = format!("NodeName={node} Arch=x86_64 CoresPerSocket=8 \n");
        site.edit(
            "nodes.txt",
            &line,
            &format!("{line}   Extra=[gpuos:1 short=host]\n"),
        );
    };
    let on = |more: &[&str]| {
        let args = [&["plan", "--gres=gpu:1"], more].concat();
        let json = site.run(&[&args[..], &["--json"]].concat()).json();
        (site.run(&args).out, json)
    };
    let node = |json: &serde_json::Value| json["place"]["nodes"][0]["node"].clone();
    let fits = ["--gpuos-mem=79G"];
    let (text, json) = on(&fits);
    assert_eq!(node(&json), "n2");
    assert!(!text.contains("Short of"), "{text}");
    assert_eq!(json["memory"]["short_nodes"], serde_json::json!([]));
    short("n2");
    let said = "Short of host memory: n2. Such nodes come after others for this job.\n";
    let (text, json) = on(&fits);
    assert_eq!(node(&json), "n4");
    assert!(text.contains(said), "{text}");
    assert_eq!(json["memory"]["short_nodes"], serde_json::json!(["n2"]));
    // Others do not care.
    for more in [&[][..], &["--gpuos-mem=79G,tiers=hbm"]] {
        let (text, json) = on(more);
        assert_eq!(node(&json), "n2");
        assert!(!text.contains("Short of"), "{text}");
    }
    // Where there is no other it is none that is forbidden.
    let (text, json) = on(&["--gpuos-mem=79G", "--exclude=n4"]);
    assert_eq!(node(&json), "n2");
    let there = "It would start on n2 all the same, as no other place is as good, and may soon have to give some back.";
    assert!(text.contains(there), "{text}");
    short("n1");
    assert!(
        site.run(&["topo", "n2"])
            .out
            .contains(", short of host memory\n")
    );
    let (text, json) = on(&["--gpuos-mem=79G", "--nodelist=n1"]);
    assert_eq!(json["fits"], false);
    assert!(text.contains("Short of host memory: n[1-2]."), "{text}");
    assert_eq!(
        site.run(&["topo", "--json"]).json()["nodes"][3]["short_of_memory"],
        false
    );
    // A job in the queue as well, by its script.
    let place = || {
        let json = site.run(&["why", "12", "--json"]).json();
        node(&json["jobs"][0])
    };
    assert_eq!(place(), "n2");
    site.file("script", "#!/bin/sh\n#SBATCH --gpuos-mem=79G\n");
    assert_eq!(place(), "n4");
}

/// GPUs that the node's Extra has out of service are planned for nobody, degraded ones last.
#[test]
fn plan_topo_and_why_heed_gpus_out_of_service() {
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    let on_n4 = |gpus: &str| {
        let plan = site.run(&["--json", "plan", "--nodelist=n4", gpus]).json();
        let gpus = plan["place"]["nodes"][0]["gpus"].clone();
        gpus.as_array().map(|list| list.len())
    };
    assert_eq!(on_n4("--gres=gpu:8"), Some(8));
    site.edit(
        "nodes.txt",
        "Extra=x=1 y",
        "Extra=x=1 y [gpuos:1 out=2,5 degraded=0,1]",
    );
    assert_eq!(on_n4("--gres=gpu:8"), None);
    assert_eq!(on_n4("--gres=gpu:6"), Some(6));
    let four = site.run(&["--json", "plan", "--nodelist=n4", "--gres=gpu:4"]);
    let sound: Vec<u64> = vec![3, 4, 6, 7];
    assert_eq!(
        four.json()["place"]["nodes"][0]["gpus"],
        serde_json::json!(sound)
    );
    let topo = site.run(&["topo", "n4"]).out;
    assert!(
        topo.contains("6 of 8 GPUs free (0-1,3-4,6-7), idle, GPU 2,5 out, GPU 0-1 degraded"),
        "{topo}"
    );
    let all = site.run(&["--json", "topo"]).json();
    let n4 = &all["nodes"][3];
    assert_eq!(n4["out"], serde_json::json!([2, 5]));
    assert_eq!(n4["degraded"], serde_json::json!([0, 1]));
    let why = site.run(&["why", "8"]).out;
    let says = "2 of 32 GPUs are out of service: n4 gpu2 gpu5";
    assert!(why.contains(says), "{why}");
    // Words of another release change nothing.
    site.edit(
        "nodes.txt",
        "[gpuos:1 out=2,5",
        "[gpuos:1 later=1 out=2,5 quiet",
    );
    assert_eq!(on_n4("--gres=gpu:8"), None);
    assert_eq!(on_n4("--gres=gpu:6"), Some(6));
    // A damaged word may have named any GPU.
    site.edit("nodes.txt", "out=2,5", "out=2,x");
    assert_eq!(on_n4("--gres=gpu:1"), None);
    let health = site.run(&["health"]).out;
    assert!(health.contains("0,1,2,3,4,5,6,7 "), "{health}");
    assert!(health.contains("no list of GPU indices"), "{health}");
}

#[test]
fn plan_goes_where_less_of_a_jobs_memory_lies_outside_and_says_so() {
    let site = crate::worth::site();
    // n2 has a free GPU of 2 GiB, of which programs have 1, n4 one of 4.
    site.file(
        "gpuos.toml",
        "[memory]\noversubscribe = true\n\
         [[node-type]]\nname = \"large\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 4096\n\
         [[node-type]]\nname = \"small\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 2048\n\
         [[nodes]]\nmatch = \"n4\"\ntype = \"large\"\n\
         [[nodes]]\nmatch = \"n[1-3]\"\ntype = \"small\"\n",
    );
    let on = |more: &[&str]| {
        let args = [&["plan", "--gres=gpu:1"], more].concat();
        let json = site.run(&[&args[..], &["--json"]].concat()).json();
        let node = json["place"]["nodes"][0]["node"].clone();
        (
            site.run(&args).out,
            node,
            json["memory"]["outside_thousandths"].clone(),
        )
    };
    let room = "GPUs have room for all of it on large, 80 % on small. Among places as close, those are worth more to the job where \
                less of it lies outside.\n";
    let (text, node, outside) = on(&["--gpuos-mem=1280M"]);
    assert_eq!(node, "n4", "{text}");
    assert!(text.contains(room), "{text}");
    assert_eq!(outside["large"], 0);
    assert_eq!(outside["small"], 200);
    // It is a wish that comes from nothing else, and forbids nothing.
    let (text, node, _) = on(&["--gpuos-mem=1280M", "--exclude=n4"]);
    assert_eq!(node, "n2", "{text}");
    for fits in [
        &["--gpuos-mem=1G"][..],
        &["--gpuos-mem=1280M,tiers=hbm"],
        &[],
    ] {
        let (text, node, _) = on(fits);
        assert_eq!(node, "n2", "{text}");
        assert!(!text.contains("have room for"), "{text}");
    }
}
