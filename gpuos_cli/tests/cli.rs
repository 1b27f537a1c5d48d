//! The command as people and scripts meet it: text, JSON and exit codes, over recorded
//! answers of real slurmctld daemons.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const RELEASES: [&str; 3] = ["22.05.8", "24.11.5", "26.05.5"];

/// A directory with the Slurm commands of a recorded cluster, and its configuration files.
struct Site {
    dir: tempfile::TempDir,
}

struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

impl Site {
    fn new(release: &str) -> Site {
        let site = Site {
            dir: tempfile::tempdir().unwrap(),
        };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuos_host/tests/data");
        for what in ["config", "nodes", "jobs", "topology"] {
            let text = fs::read_to_string(data.join(format!("{release}-{what}.txt"))).unwrap();
            // The recorded cluster's files lie in this directory instead.
            site.file(
                &format!("{what}.txt"),
                &text.replace("/srv/lab", &site.path("")),
            );
        }
        let dir = site.path("");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n\
             'show config') exec cat {dir}/config.txt ;;\n\
             '-d show nodes') exec cat {dir}/nodes.txt ;;\n\
             '-d show jobs') exec cat {dir}/jobs.txt ;;\n\
             'show topology') exec cat {dir}/topology.txt ;;\n\
             'write batch_script'*) [ -f {dir}/script ] && exec cat {dir}/script ;;\n\
             esac\necho 'slurm_load: refused' >&2\nexit 1\n"
        );
        site.program("scontrol", &script);
        site.program("munge", "#!/bin/sh\necho MUNGE:x\n");
        site.file(
            "slurm.conf",
            "ClusterName=cap\nNodeName=n[1-4] Sockets=2 CoresPerSocket=8 Gres=gpu:h100:8\n",
        );
        site.file("gres.conf", "Name=gpu Type=h100 File=/dev/gpu[0-7]\n");
        site
    }

    fn path(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        path.to_str().unwrap().trim_end_matches('/').to_string()
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, text: &str) {
        let source = format!("{name}.text");
        self.file(&source, text);
        self.install(&self.dir.path().join(source), name);
    }

    /// Puts a program into `bin`. Another process writes it: a descriptor of this one, open for
    /// writing, would live on for a moment in what another test starts, and nothing that is
    /// open for writing can be run ("Text file busy").
    fn install(&self, source: &Path, name: &str) {
        let status = Command::new("install")
            .args(["-D", "-m", "755"])
            .arg(source)
            .arg(self.dir.path().join("bin").join(name))
            .status()
            .unwrap();
        assert!(status.success(), "install {name}: {status}");
    }

    /// Changes what a recorded answer says.
    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap();
        assert!(text.contains(from), "{name} has no {from}");
        self.file(name, &text.replace(from, to));
    }

    fn run(&self, args: &[&str]) -> Answer {
        let path = format!("{}:/usr/bin:/bin", self.path("bin"));
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap();
        Answer {
            code: out.status.code().unwrap(),
            out: String::from_utf8(out.stdout).unwrap(),
            err: String::from_utf8(out.stderr).unwrap(),
        }
    }
}

#[test]
fn topo_shows_the_fabric_and_the_links() {
    for release in RELEASES {
        let site = Site::new(release);
        let answer = site.run(&["topo"]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert!(
            answer
                .out
                .contains(&format!("Cluster cap, Slurm {release}: 4 nodes, 32 GPUs, "))
        );
        assert!(
            answer.out.contains("1 node out of service"),
            "{}",
            answer.out
        );
        let tree: Vec<&str> = answer
            .out
            .lines()
            .filter_map(|l| l.trim_start().split("  ").next())
            .collect();
        let at = |name: &str| {
            tree.iter()
                .position(|l| *l == name)
                .unwrap_or_else(|| panic!("{name} in {tree:?}"))
        };
        assert!(at("spine spine1") < at("leaf leaf1") && at("leaf leaf1") < at("n1"));
        assert!(at("n2") < at("leaf leaf2") && at("leaf leaf2") < at("n3"));
        assert!(
            !answer.out.contains('\x1b'),
            "no colour when it is not a terminal"
        );

        let matrix = site.run(&["topo", "n2"]).out;
        for word in [
            "GPU7",
            "mlx5_0",
            "CPU Affinity",
            "NUMA Affinity",
            "NV18",
            "PIX",
            "SYS",
            "PXB",
            "PHB",
            "NODE",
        ] {
            assert!(matrix.contains(word), "{word} is missing in\n{matrix}");
        }
        let row = matrix.lines().find(|l| l.starts_with("GPU0 ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            cells[1..9],
            ["X", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18", "NV18"]
        );
        assert_eq!(cells[9], "PIX");
    }
}

#[test]
fn a_node_type_needs_no_slurm() {
    let answer = Command::new(env!("CARGO_BIN_EXE_gpuos"))
        .args(["topo", "--type", "pairs-8"])
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success());
    let row: Vec<&str> = text
        .lines()
        .find(|l| l.starts_with("GPU0 "))
        .unwrap()
        .split_whitespace()
        .collect();
    assert!(
        row[1] == "X" && row[2].starts_with("NV") && !row[3].starts_with("NV"),
        "{row:?}"
    );
}

#[test]
fn why_explains_running_and_waiting_jobs() {
    for release in RELEASES {
        let site = Site::new(release);
        let gang = site.run(&["why", "2"]);
        assert_eq!(gang.code, 0, "{}", gang.err);
        assert!(
            gang.out
                .starts_with("Job 2 runs: 8 GPUs on 2 nodes (n[1-2]), inside leaf leaf1"),
            "{}",
            gang.out
        );
        assert!(gang.out.contains("gpuos left no note"), "{}", gang.out);
        let row = gang.out.lines().find(|l| l.starts_with("n1 ")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["n1", "dgx-h100", "4", "4-7", "NV18"]
        );

        let big = site.run(&["why", "8"]);
        assert_eq!(big.code, 0);
        assert!(
            big.out
                .starts_with("Job 8 waits. Not enough room now: 4 nodes needed"),
            "{}",
            big.out
        );
        let range = site.run(&["--json", "why", "9"]).json();
        let job = &range["jobs"][0];
        assert_eq!(
            (job["cause"].as_str(), job["wait"]["kind"].as_str()),
            (Some("gpus"), Some("capacity"))
        );
        let at = job["forecast"]["at"].as_str().unwrap();
        assert!(at.starts_with("2026-11-20T2"), "{release}: {at}");
        assert!(!job["forecast"]["jobs"].as_array().unwrap().is_empty());

        for (job, words) in [
            ("10", "its user holds it"),
            ("11", "it depends on other jobs (afterok:1(unfulfilled))"),
            ("14", "may start at"),
        ] {
            let answer = site.run(&["why", job]);
            assert_eq!(answer.code, 0);
            assert!(
                answer.out.contains("not for GPUs"),
                "{release}: {}",
                answer.out
            );
            assert!(answer.out.contains(words), "{release}: {}", answer.out);
        }
        // An array: the task that runs and those that wait.
        let array = site.run(&["why", "4", "--json"]).json();
        let labels: Vec<&str> = array["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|j| j["job"].as_str().unwrap())
            .collect();
        assert_eq!(labels, ["4_0", "4"]);
        assert_eq!(site.run(&["why", "4_0"]).code, 0);
    }
}

#[test]
fn why_reads_the_note_and_the_reason_of_gpuos() {
    let site = Site::new("24.11.5");
    site.edit(
        "jobs.txt",
        "   WorkDir=/\n",
        "   WorkDir=/\n   SystemComment=gpuos: level=leaf domain=leaf1 wish=leaf bus=50 lost=0 nodes=4 domains=2 try=1 gpus=n1:4-7,n2:0-3 \n",
    );
    let gang = site.run(&["why", "2"]);
    assert!(gang.out.contains("Slurm refused 1 better"), "{}", gang.out);
    assert!(!gang.out.contains("left no note"), "{}", gang.out);

    // A required level: the wish stands in the reason, from which the smallest change comes.
    // One node is free in each leaf switch.
    let site = Site::new("24.11.5");
    site.edit("nodes.txt", "State=IDLE+DRAIN", "State=IDLE");
    site.edit(
        "nodes.txt",
        "GresUsed=gpu:h100:7(IDX:0-6)",
        "GresUsed=gpu:h100:0(IDX:N/A)",
    );
    site.edit(
        "jobs.txt",
        "JobState=PENDING Reason=Priority",
        "JobState=PENDING Reason=gpuos:_The_job_requires_one_leaf_domain._It_starts_now_with_--gpuos-topology=leaf:preferred.",
    );
    let job = &site.run(&["why", "9", "--json"]).json()["jobs"][0];
    assert_eq!(
        (&job["cause"], &job["wait"]["kind"]),
        (&"gpus".into(), &"level".into())
    );
    let text = site.run(&["why", "9"]).out;
    assert!(
        text.contains("start it now: --gpuos-topology=spine:required"),
        "{text}"
    );
    assert!(
        text.contains("Reason in Slurm: gpuos: The job requires one leaf domain"),
        "{text}"
    );
}

#[test]
fn why_says_no_for_jobs_that_are_gone() {
    let site = Site::new("26.05.5");
    let unknown = site.run(&["why", "99999"]);
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.out.starts_with("Job 99999 is not known"),
        "{}",
        unknown.out
    );
    let gone = site.run(&["--json", "why", "99999"]);
    assert_eq!(gone.code, 1);
    assert_eq!(gone.json()["known"], false);
    let jobs = fs::read_to_string(site.path("jobs.txt")).unwrap();
    let gone = jobs
        .split("JobId=")
        .find(|j| j.contains("JobName=gone"))
        .unwrap();
    let id = gone.split_whitespace().next().unwrap();
    let ended = site.run(&["why", id]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.out.contains("has ended") && ended.out.contains("CANCELLED"),
        "{}",
        ended.out
    );
}

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
fn wrong_usage_is_told_and_exits_2() {
    let site = Site::new("24.11.5");
    for (args, words) in [
        (&["plan"][..], "required arguments"),
        (
            &["plan", "--gpus", "4", "--gres", "gpu:2"],
            "cannot be used with",
        ),
        (&["plan", "--gpus=0"], "asks for no GPU"),
        (&["plan", "--gpus=1", "--nodes=3-1"], "write N or N-M"),
        (
            &["plan", "--gpus=1", "--topology=leaf:maybe"],
            "LEVEL:required",
        ),
        (&["plan", "--gpus=1", "--placement=near"], "pack, spread"),
        (&["plan", "--gpus=1", "--mem=lots"], "number of MiB"),
        (&["plan", "--gpus-per-task=1"], "--ntasks"),
        (&["plan", "--gpus=1", "-w", "n["], "has no ']'"),
        (&["why", "x"], "write a job number"),
        (&["why"], "JOBID"),
        (&["topo", "n1", "--type", "dgx-h100"], "cannot be used with"),
        (&["completion", "tcsh"], "possible values: bash, zsh, fish"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&[], "Usage"),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(words), "{args:?}: {}", answer.err);
        let mut json = vec!["--json"];
        json.extend(args);
        let answer = site.run(&json);
        assert_eq!(answer.code, 2);
        assert_eq!(answer.json()["schema"], "gpuos.error/1", "{args:?}");
    }
    let failed = site.run(&["topo", "nowhere"]);
    assert_eq!((failed.code, failed.out.as_str()), (1, ""));
    assert!(
        failed
            .err
            .contains("no node nowhere: this cluster has n[1-4]"),
        "{}",
        failed.err
    );
    assert_eq!(site.run(&["--help"]).code, 0);
    assert_eq!(site.run(&["--version"]).code, 0);
}

#[test]
fn without_slurm_the_answer_says_what_is_missing() {
    let site = Site::new("24.11.5");
    fs::remove_file(site.dir.path().join("bin/scontrol")).unwrap();
    let bin = site.path("bin");
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", &bin)
            .output()
            .unwrap();
        (
            out.status.code().unwrap(),
            String::from_utf8([out.stdout, out.stderr].concat()).unwrap(),
        )
    };
    let (code, text) = run(&["topo"]);
    assert_eq!(code, 1);
    assert!(text.contains("scontrol is not on PATH: install"), "{text}");
    let (code, text) = run(&["doctor", "--json"]);
    assert_eq!(code, 1);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["checks"][0]["name"], "slurm");
    assert_eq!(json["checks"][0]["status"], "fail");
}

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

#[test]
fn pages_come_from_the_flag_table() {
    let site = Site::new("24.11.5");
    let dir = site.path("man");
    let answer = site.run(&["man", &dir]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    for page in [
        "gpuos",
        "gpuos-topo",
        "gpuos-why",
        "gpuos-plan",
        "gpuos-doctor",
        "gpuos-lab",
        "gpuos-lab-up",
        "gpuos-layout",
    ] {
        let text = fs::read_to_string(format!("{dir}/{page}.1")).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let plan = fs::read_to_string(format!("{dir}/gpuos-plan.1")).unwrap();
    assert!(
        plan.contains("gpus\\-per\\-node") && plan.contains("gpuos plan"),
        "{plan}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = site.run(&["completion", shell]);
        assert_eq!(script.code, 0);
        assert!(script.out.contains("gpus-per-node"), "{shell}");
    }
}

#[test]
fn layout_without_its_program_says_what_to_install() {
    let site = Site::new("24.11.5");
    // A copy of the command, so that nothing lies beside it.
    site.install(Path::new(env!("CARGO_BIN_EXE_gpuos")), "gpuos");
    let run = |args: &[&str]| {
        let out = Command::new(site.path("bin/gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", "/nowhere")
            .output()
            .unwrap();
        (
            out.status.code().unwrap(),
            String::from_utf8([out.stdout, out.stderr].concat()).unwrap(),
        )
    };
    let (code, text) = run(&["layout", "/src"]);
    assert_eq!(code, 1);
    assert!(text.contains("gpuos-layout is not installed"), "{text}");
    // With a program of that name its answer is passed on.
    site.program("gpuos-layout", "#!/bin/sh\necho \"$@\"\nexit 1\n");
    let (code, text) = run(&["layout", "/src", "-o", "t.tsv", "--release", "25.05.1"]);
    assert_eq!(
        (code, text.trim()),
        (1, "/src --output t.tsv --release 25.05.1")
    );
}

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
    for (name, args, schema) in [
        ("topo", &["topo"][..], "gpuos.topo/1"),
        ("topo-node", &["topo", "n1"], "gpuos.topo-node/1"),
        ("why-running", &["why", "2"], "gpuos.why/1"),
        ("why-waiting", &["why", "9"], "gpuos.why/1"),
        ("why-unknown", &["why", "99999"], "gpuos.why/1"),
        ("plan-fits", &["plan", "--gpus=1"], "gpuos.plan/1"),
        ("plan-waits", &["plan", "--gpus-per-node=2"], "gpuos.plan/1"),
        ("doctor", &["doctor"], "gpuos.doctor/1"),
        ("man", &["man"], "gpuos.man/1"),
        ("completion", &["completion", "bash"], "gpuos.completion/1"),
        ("error", &["topo", "nowhere"], "gpuos.error/1"),
    ] {
        let mut all = vec!["--json"];
        all.extend(args);
        let json = site.run(&all).json();
        assert_eq!(json["schema"], schema, "{name}");
        let mut lines = std::collections::BTreeSet::new();
        shape(&json, "", &mut lines);
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
}
