//! `gpuos doctor`.

use std::fs;

use crate::site::Site;

#[test]
fn doctor_names_each_fault_with_its_fix() {
    let site = Site::new("24.11.5");
    let checks = |site: &Site| {
        let answer = site.run(&["doctor", "--json"]);
        let json = answer.json();
        let status = |name: &str| {
            let list = json["checks"].as_array().unwrap();
            let Some(one) = list.iter().find(|c| c["name"] == name) else {
                return (String::new(), String::new());
            };
            let text = |key: &str| one[key].as_str().unwrap().to_string();
            if one["status"] != "ok" {
                assert!(!text("fix").is_empty(), "{one}");
            }
            (text("status"), text("message"))
        };
        let names = [
            "munge",
            "release",
            "select_gpuos",
            "SelectType",
            "plugstack",
            "JobSubmit",
            "gpuos.toml",
            "fabric",
            "node types",
        ];
        let found: std::collections::BTreeMap<_, _> =
            names.iter().map(|n| (*n, status(n))).collect();
        (answer.code, found)
    };
    let (code, stock) = checks(&site);
    assert_eq!(code, 1, "no plugins are installed");
    for name in ["munge", "release", "gpuos.toml", "fabric", "node types"] {
        assert_eq!(stock[name].0, "ok", "{name}: {}", stock[name].1);
    }
    assert_eq!(stock["select_gpuos"].0, "fail");
    assert_eq!(stock["SelectType"].0, "warn");
    assert_eq!(stock["plugstack"].0, "fail");

    // Everything in place, but the plugin files are not what they should be.
    let plugins = site.path("plugins");
    site.edit(
        "config.txt",
        "= /usr/lib/x86_64-linux-gnu/slurm-wlm",
        &format!("= {plugins}"),
    );
    site.edit("config.txt", "= select/cons_tres", "= select/gpuos");
    site.edit(
        "config.txt",
        "JobSubmitPlugins        = (null)",
        "JobSubmitPlugins        = lua,gpuos",
    );
    site.edit("config.txt", "= 24.11.5", "= 99.11.5");
    site.file("plugins/select_gpuos.so", "not a plugin");
    site.file("plugins/spank_gpuos.so", "not a plugin either");
    site.file("plugins/job_submit_lua.so", "somebody else's");
    site.file("plugstack.conf", "include plugstack.d/*.conf\n");
    site.file(
        "plugstack.d/gpuos.conf",
        "# ours\nrequired spank_gpuos.so\n",
    );
    site.file("log/ctld.log", "[x] select/gpuos: Slurm 99.11.5: steering cons_tres\n[y] error: select/gpuos: passing through to cons_tres, jobs are scheduled as by stock Slurm: why not\n");
    site.file("gpuos.toml", "[policy]\nplacement = 3\n");
    let (code, broken) = checks(&site);
    assert_eq!(code, 1);
    assert!(
        broken["select_gpuos"].1.contains("is not an ELF file"),
        "{}",
        broken["select_gpuos"].1
    );
    assert_eq!(broken["SelectType"].0, "ok");
    assert!(
        broken["plugstack"].1.ends_with("required spank_gpuos.so"),
        "{}",
        broken["plugstack"].1
    );
    assert_eq!(
        broken["JobSubmit"],
        ("ok".to_string(), "lua,gpuos".to_string())
    );
    assert_eq!(broken["release"].0, "fail");
    let text = site.run(&["doctor"]).out;
    assert!(
        text.contains("select/gpuos does not place jobs: passing through"),
        "{text}"
    );
    assert!(text.contains("gpuos layout DIR -o"), "{text}");
    assert!(text.contains("gpuos.toml:2:"), "{text}");

    // A site's own table makes the release known.
    let row = "struct\tfield\toffset\tsize\tctype\tfirst\tlast\njob_record\tmagic\t0\t4\tuint32_t\t99.11.5\t99.11.5\n";
    site.file("gpuos-layouts.tsv", row);
    site.file("gpuos.toml", "");
    assert_eq!(checks(&site).1["release"].0, "ok");
    // A real shared object that is no plugin.
    let own = fs::read_dir("/lib64")
        .into_iter()
        .chain(fs::read_dir("/lib/x86_64-linux-gnu"))
        .flatten()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.file_name().is_some_and(|n| n == "libc.so.6"));
    if let Some(libc) = own {
        fs::copy(libc, site.dir.path().join("plugins/select_gpuos.so")).unwrap();
        let message = checks(&site).1["select_gpuos"].1.clone();
        assert!(message.contains("does not export plugin_name"), "{message}");
    }
}

/// A topology file that Slurm's own reader would not take either: the fabric is left out, and doctor says which
/// line to mend.
#[test]
fn a_topology_file_that_cannot_be_is_a_warning_with_its_line() {
    let cases = [
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=a\n",
            "topology.conf:2:1: the switches form a circle through b",
        ),
        (
            "SwitchName=a Nodes=n[1-2\n",
            "topology.conf:1:1: 'n[1-2' is not a hostlist",
        ),
        (
            "SwitchName=a Nodes=n1\nSwitchName=c Switches=a,z\n",
            "topology.conf:2:1: ",
        ),
    ];
    for (text, words) in cases {
        let site = Site::new("24.11.5");
        site.file("topology.conf", text);
        let json = site.run(&["doctor", "--json"]).json();
        let list = json["checks"].as_array().unwrap();
        let files = list.iter().find(|check| check["name"] == "files");
        let files = files.unwrap_or_else(|| panic!("{text}: {json}"));
        assert_eq!(files["status"], "warn", "{files}");
        assert!(
            files["message"].as_str().unwrap().contains(words),
            "{files}"
        );
        let fix = files["fix"].as_str().unwrap();
        assert!(fix.starts_with("mend the line"), "{files}");
        // Jobs are planned without the fabric.
        let plan = site.run(&["plan", "--gres=gpu:1"]);
        assert_eq!(plan.code, 0, "{}{}", plan.out, plan.err);
        assert!(plan.out.contains("the fabric is left out"), "{}", plan.out);
    }
}

/// Pools of GPU slices need their GRES, its plugin, and the right number on each node.
#[test]
fn doctor_compares_pools_of_slices_with_slurm() {
    let site = Site::new("24.11.5");
    let slices = |site: &Site| {
        let json = site.run(&["doctor", "--json"]).json();
        let list = json["checks"].as_array().unwrap().iter();
        let own = list.filter(|check| check["name"] == "slices");
        let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap().to_string();
        let told =
            own.map(|check| format!("{}: {}", text(check, "status"), text(check, "message")));
        told.collect::<Vec<String>>()
    };
    assert_eq!(slices(&site), [""; 0], "no pool, no word");
    site.file(
        "gpuos.toml",
        "[[mig.board]]\nname = \"a30\"\nprofiles = [{ id = 0, name = \"4g.24gb\", compute = 4, memory-mib = 24000, \
         most = 1, size = 4, starts = [0] }]\n[[mig.pool]]\nnodes = \"n[1-2]\"\ngpus = \"0-1\"\nboard = \"a30\"\n",
    );
    let told = slices(&site);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("fail: GresTypes"), "{told:?}");
    assert!(
        told[1].starts_with("fail: no gres_gpuos.so in PluginDir"),
        "{told:?}"
    );
    assert!(
        told[2].contains("n[1-2]: [[mig.pool]] makes gpuos:a30:8"),
        "{told:?}"
    );

    let plugins = site.path("plugins");
    fs::create_dir_all(&plugins).unwrap();
    fs::write(format!("{plugins}/gres_gpuos.so"), "").unwrap();
    site.edit(
        "config.txt",
        "= /usr/lib/x86_64-linux-gnu/slurm-wlm",
        &format!("= {plugins}"),
    );
    site.edit("config.txt", "= gpu\n", "= gpu,gpuos\n");
    let nodes = fs::read_to_string(site.path("nodes.txt")).unwrap();
    let (first, rest) = nodes.split_once("NodeName=n2 ").unwrap();
    let first = first.replace("(S:0-1)\n", "(S:0-1),gpuos:a30:8\n");
    site.file("nodes.txt", &format!("{first}NodeName=n2 {rest}"));
    let told = slices(&site);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("fail: n2: [[mig.pool]] makes gpuos:a30:8"),
        "{told:?}"
    );
    let rest = rest.replacen("(S:0-1)\n", "(S:0-1),gpuos:a30:8\n", 1);
    site.file("nodes.txt", &format!("{first}NodeName=n2 {rest}"));
    assert_eq!(slices(&site), ["ok: a30 (n[1-2])"]);
    // A MIG-switchable one has to be among the eight of GRES gpu: GPU 8 is not, so 9 would be number 8.
    let switchable = "gpus = \"8-9\"\nswitchable = \"9\"";
    site.edit("gpuos.toml", "gpus = \"0-1\"", switchable);
    let told = slices(&site);
    assert_eq!(
        told,
        [
            "fail: n[1-2]: GPU 9 of the pool is MIG-switchable, so it is in GRES gpu too, of which slurm.conf has 8"
        ]
    );
}

/// Before Slurm 23.02 slurmctld does not show nodes of a cloud that are powered down: they are in slurm.conf all the same.
#[test]
fn nodes_that_slurmctld_does_not_show_are_no_strangers() {
    let site = Site::new("22.05.8");
    let conf = fs::read_to_string(site.path("slurm.conf")).unwrap_or_default();
    site.file(
        "slurm.conf",
        &format!("{conf}NodeName=c[1-4] State=CLOUD Gres=gpu:h100:8\n"),
    );
    site.file(
        "gpuos.toml",
        "[[nodes]]\nmatch = \"c[1-5]\"\ntype = \"dgx-h100\"\n[[fabric.level]]\nname = \"leaf\"\n\
         [[fabric.switch]]\nname = \"cloud\"\nlevel = \"leaf\"\nnodes = \"c[1-4]\"\n",
    );
    let told = site.run(&["doctor"]).out;
    assert!(
        told.contains("slurmctld does not show nodes of slurm.conf: ")
            && told.contains("c[1-4]")
            && told.contains("PrivateData=cloud"),
        "{told}"
    );
    assert!(!told.contains("node c1 is not in slurm.conf"), "{told}");
    assert!(told.contains("node c5 is not in slurm.conf"), "{told}");
    assert!(!told.contains("is below cloud"), "{told}");
}

/// GPUs that jobs share need a count that Slurm cannot give twice.
#[test]
fn doctor_looks_at_nvme_for_what_is_parked() {
    let site = Site::new("24.11.5");
    let told = |site: &Site| {
        let json = site.run(&["doctor", "--json"]).json();
        let list = json["checks"].as_array().unwrap().iter();
        let own = list.filter(|check| check["name"] == "nvme");
        let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap().to_owned();
        let told =
            own.map(|check| format!("{}: {}", text(check, "status"), text(check, "message")));
        told.collect::<Vec<String>>()
    };
    assert_eq!(told(&site), [""; 0], "it is not counted");
    let toml =
        "[memory]\nnvme = \"/nvme\"\nnvme-gib = 500\nnvme-gres = \"nvme\"\nnvme-gres-gib = 400\n";
    site.file("gpuos.toml", toml);
    let none = told(&site);
    assert!(
        none[0].starts_with("warn: no node has GRES nvme"),
        "{none:?}"
    );
    let nodes = fs::read_to_string(site.path("nodes.txt")).unwrap();
    let with = |gres: &str| nodes.replacen("(S:0-1)\n", gres, 1);
    site.file("nodes.txt", &with("(S:0-1),nvme:400\n"));
    assert_eq!(told(&site), ["ok: 400 GiB (n1)"]);
    site.file("nodes.txt", &with("(S:0-1),nvme:401\n"));
    let many = told(&site);
    assert!(
        many[0].starts_with("warn: n1: 401 of GRES nvme, and gpuosd lends 400 GiB of it"),
        "{many:?}"
    );
    site.file("nodes.txt", &with("(S:0-1),nvme:100\n"));
    let few = told(&site);
    assert!(
        few[0].starts_with("warn: n1: 100 of GRES nvme, and gpuosd keeps 400 GiB for it"),
        "{few:?}"
    );
}

#[test]
fn doctor_looks_at_shards() {
    for (release, remembers) in [("22.05.8", false), ("24.11.5", true)] {
        let site = Site::new(release);
        let shards = |site: &Site| {
            let json = site.run(&["doctor", "--json"]).json();
            let list = json["checks"].as_array().unwrap().iter();
            let own = list.filter(|check| check["name"] == "shards");
            let told = own.map(|check| {
                let text = |key: &str| check[key].as_str().unwrap();
                format!("{}: {}", text("status"), text("message"))
            });
            told.collect::<Vec<String>>()
        };
        assert_eq!(shards(&site), [""; 0], "no shards, no word");
        let nodes = fs::read_to_string(site.path("nodes.txt")).unwrap();
        let with = |gres: &str| nodes.replacen("(S:0-1)\n", gres, 1);
        site.file("nodes.txt", &with("(S:0-1),shard:h100:32(S:0-1)\n"));
        let told = shards(&site);
        match remembers {
            true => assert_eq!(told, ["ok: 4 of each GPU (n1)"]),
            false => assert!(
                told[0].contains("once one of its jobs has ended"),
                "{told:?}"
            ),
        }
        site.edit("config.txt", "= select/cons_tres", "= select/gpuos");
        assert_eq!(shards(&site), ["ok: 4 of each GPU (n1)"]);
        site.file("nodes.txt", &with("(S:0-1),shard:30,mps:800\n"));
        let told = shards(&site);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].starts_with("warn: n1: both GRES shard and GRES mps"),
            "{told:?}"
        );
        assert!(
            told[1].starts_with("warn: n1: the shards cannot be dealt out"),
            "{told:?}"
        );
        site.file(
            "nodes.txt",
            &with("(S:0-1)\n").replacen("gpu:h100:8(S:0-1)", "gpu:8,shard:32", 1),
        );
        let told = shards(&site);
        assert!(told[0].contains("neither Type= nor Cores="), "{told:?}");
    }
}
