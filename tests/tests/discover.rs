//! `gpuos discover`, `gpuos topo --live` and `gpuos doctor` over the simulated NVML and a recorded `/sys`.

#[path = "../../crates/gpuos_host/tests/recorded/mod.rs"]
mod recorded;

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuos_config::gpuos_toml::Config;
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::node_types::by_name;
use gpuos_tests::plugins::programs;
use recorded::Recorded;
use serde_json::Value;

/// A simulated node in a folder: NVML, `/sys` where it is wanted, and a Slurm that answers from files.
struct Node {
    dir: tempfile::TempDir,
}

struct Answer {
    code: i32,
    out: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

impl Node {
    fn new(kind: &str) -> Node {
        let node = Node {
            dir: tempfile::tempdir().unwrap(),
        };
        node.nvml(&["create", kind, "--dir", &node.path("")]);
        node
    }

    fn path(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        path.to_str().unwrap().trim_end_matches('/').into()
    }

    fn nvml(&self, words: &[&str]) {
        let mut tool = Command::new(programs().join("gpuos-nvml"));
        tool.args(words).env("GPUOS_NVML_STATE", self.path("state"));
        let output = tool.output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn gpuos(&self, words: &[&str]) -> Answer {
        let mut gpuos = Command::new(programs().join("gpuos"));
        gpuos
            .args(words)
            .arg("--nvml")
            .arg(self.path("libnvidia-ml.so.1"));
        gpuos.args(["--sysfs", &self.path("sys"), "--node-name", "n1"]);
        gpuos
            .env_clear()
            .env("GPUOS_NVML_STATE", self.path("state"));
        gpuos.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin")));
        let output = gpuos.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Answer {
            code: output.status.code().unwrap(),
            out: text(output.stdout) + &text(output.stderr),
        }
    }

    /// Records `/sys` of the kind that this node is.
    fn record_sys(&self, kind: &str) -> Recorded {
        let shown = self.gpuos(&["discover", "--json"]).json();
        let gpus = shown["gpus"].as_array().unwrap();
        let address = |gpu: &Value| gpu["pci"].as_str().unwrap().to_owned();
        let addresses: Vec<String> = gpus.iter().map(address).collect();
        Recorded::of(
            Path::new(&self.path("sys")),
            &by_name(kind).unwrap(),
            &addresses,
        )
    }

    /// The Slurm of four nodes with 8 H100 that gpuos_host's tests recorded, with these files of it here.
    fn slurm(&self, gres_conf: &str, gpuos_toml: &str) {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gpuos_host/tests/data");
        for what in ["config", "nodes", "topology"] {
            let text = fs::read_to_string(data.join(format!("24.11.5-{what}.txt"))).unwrap();
            fs::write(self.path(what), text.replace("/srv/lab", &self.path(""))).unwrap();
        }
        let dir = self.path("");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n'show config') exec cat {dir}/config ;;\n\
             '-d show nodes') exec cat {dir}/nodes ;;\n'show topology') exec cat {dir}/topology ;;\n\
             esac\nexit 1\n"
        );
        // Another process writes the program, so that no descriptor of it is open when it runs.
        fs::write(self.path("scontrol.text"), script).unwrap();
        let install = Command::new("install")
            .args([
                "-D",
                "-m",
                "755",
                &self.path("scontrol.text"),
                &self.path("bin/scontrol"),
            ])
            .status();
        assert!(install.unwrap().success());
        let slurm =
            "ClusterName=cap\nNodeName=n[1-4] Sockets=2 CoresPerSocket=56 Gres=gpu:h100:8\n";
        fs::write(self.path("slurm.conf"), slurm).unwrap();
        fs::write(self.path("gres.conf"), gres_conf).unwrap();
        fs::write(self.path("gpuos.toml"), gpuos_toml).unwrap();
    }

    /// Status, message and fix of the check `hardware`, one for each finding.
    fn hardware(&self) -> Vec<[String; 3]> {
        let json = self.gpuos(&["doctor", "--json"]).json();
        let checks = json["checks"].as_array().unwrap().iter();
        let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
        checks
            .filter(|check| check["name"] == "hardware")
            .map(|check| ["status", "message", "fix"].map(|key| text(check, key)))
            .collect()
    }
}

#[test]
fn discover_prints_lines_that_gpuos_and_slurm_read() {
    let node = Node::new("dgx-h100");
    node.record_sys("dgx-h100");
    let answer = node.gpuos(&["discover", "--json"]);
    assert_eq!(answer.code, 0, "{}", answer.out);
    let json = answer.json();
    assert_eq!(json["schema"], "gpuos.discover/1");
    assert_eq!(
        (&json["type"], &json["shipped"]),
        (&"dgx-h100".into(), &true.into())
    );
    let config = Config::parse(json["gpuos_toml"].as_str().unwrap(), "printed").unwrap();
    assert_eq!(
        *config.node_type("dgx-h100").unwrap(),
        by_name("dgx-h100").unwrap()
    );
    assert_eq!(json["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(json["gpus"][4]["cores"], "56-111");
    assert_eq!(
        (&json["gpus"][0]["nvlinks"], &json["notes"]),
        (&18.into(), &Value::Array(vec![]))
    );
    let text = node.gpuos(&["discover"]).out;
    for line in [
        "# gpuos.toml",
        "match = \"n1\"",
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55",
        "NodeName=n1 Gres=gpu:h100:8 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
    // The whole text is one file of comments and lines: nothing else is in it.
    let matrix = node.gpuos(&["topo", "--live"]);
    assert_eq!(matrix.code, 0, "{}", matrix.out);
    let row = matrix
        .out
        .lines()
        .find(|line| line.starts_with("GPU7 "))
        .unwrap();
    assert!(
        row.contains("NV18") && row.contains("PIX") && row.contains("56-111"),
        "{row}"
    );
    assert_eq!(
        node.gpuos(&["topo", "--live", "--json"]).json()["schema"],
        "gpuos.topo-node/1"
    );
}

#[test]
fn kinds_that_gpuos_does_not_ship_get_a_stanza() {
    for kind in ["a30-4", "v100-4", "dgx-a100-40gb"] {
        let node = Node::new(kind);
        let json = node.gpuos(&["discover", "--json"]).json();
        assert_eq!(json["shipped"], false, "{kind}");
        let name = json["type"].as_str().unwrap();
        let text = json["gpuos_toml"].as_str().unwrap();
        let config =
            Config::parse(text, "printed").unwrap_or_else(|e| panic!("{kind}: {e}\n{text}"));
        let read = config.node_type(name).unwrap();
        assert_eq!(json["node_type"]["gpus"], read.gpus);
        assert_eq!(json["node_type"]["gpu"], read.gpu.as_str());
    }
}

#[test]
fn doctor_tells_where_the_hardware_differs_and_what_to_write() {
    let node = Node::new("dgx-h100");
    let sys = node.record_sys("dgx-h100");
    let gres = "Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55\n\
                Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111\n";
    node.slurm(gres, "");
    let all = node.hardware();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0][0], "ok", "{all:?}");

    sys.down("mlx5_9");
    let all = node.hardware();
    assert_eq!((all.len(), all[0][0].as_str()), (1, "warn"), "{all:?}");
    assert!(
        all[0][1].starts_with("nic: dgx-h100 says mlx5_0, "),
        "{all:?}"
    );
    assert!(
        all[0][2].contains("base = \"dgx-h100\"") && all[0][2].contains("write nic = [{"),
        "{all:?}"
    );

    node.nvml(&["fault", "gpu3", "nvlink", "5", "down"]);
    node.nvml(&["fault", "gpu6", "lost"]);
    let all = node.hardware();
    let told = |words: &str| all.iter().any(|[_, message, _]| message.contains(words));
    assert!(
        told("slurm.conf gives n1 8 GPUs, the driver shows 7"),
        "{all:?}"
    );
    assert!(
        told("GPU 6 of NVML is left out") && told("1 of 18 NVLinks are down (5)"),
        "{all:?}"
    );
    assert!(all.iter().any(|[status, ..]| status == "fail"));
}

#[test]
fn doctor_reads_the_order_and_the_cores_of_gres_conf() {
    let node = Node::new("dgx-h100");
    node.record_sys("dgx-h100");
    let gres = "Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=0-55\n\
                Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55\n";
    let own = "[[node-type]]\nname = \"mine\"\nbase = \"dgx-h100\"\nsockets = 1\n[[nodes]]\nmatch = \"n1\"\ntype = \"mine\"\n";
    node.slurm(gres, own);
    let all = node.hardware();
    let find = |words: &str| {
        let found = all.iter().find(|[_, message, _]| message.contains(words));
        found.unwrap_or_else(|| panic!("{words}: {all:?}"))
    };
    let order = "in the order of nvidia-smi -L: File=/dev/nvidia0,/dev/nvidia1,/dev/nvidia2,";
    assert!(find("in the order /dev/nvidia4")[2].contains(order));
    assert!(find("gres.conf says Cores=0-55 for /dev/nvidia4")[2].ends_with("Cores=56-111"));
    assert!(
        find("sockets: mine says 1")[2]
            .contains("[[node-type]] name = \"mine\", write sockets = 2")
    );
    find("numa: mine says");
}

/// What discover prints of GPUs in MIG mode is what doctor wants to see.
#[test]
fn gpus_in_mig_mode_are_printed_as_a_pool_and_compared_with_it() {
    let node = Node::new("dgx-h100");
    node.record_sys("dgx-h100");
    let off = node.gpuos(&["discover"]).out;
    assert!(
        off.contains("\n# MIG mode: off for 8 that have it"),
        "{off}"
    );
    node.nvml(&["mig", "4-7", "on"]);
    let text = node.gpuos(&["discover"]).out;
    for line in [
        "# n1: 4 x NVIDIA H100 80GB HBM3, 4 x NVIDIA H100 80GB HBM3 in MIG mode, driver 580.95.05",
        "# MIG mode: on for 4 GPUs; off for 4 that have it (`nvidia-smi -i GPU -mig 1` turns it on, for slices \
         that jobs share: docs/admin/mig.md)",
        "gpus = \"4-7\"",
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55",
        "NodeName=n1 Name=gpuos Type=h100-80gb File=/var/lib/gpuos/slices/gpu7s[0-7] Cores=56-111",
        "GresTypes=gpu,gpuos",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
    let json = node.gpuos(&["discover", "--json"]).json();
    assert_eq!(
        (&json["divided"][0]["gpu"], &json["divided"][0]["slices"]),
        (&4.into(), &8.into())
    );
    let toml = json["gpuos_toml"].as_str().unwrap();
    let gres = json["gres_conf"].as_str().unwrap();
    let slurm = |toml: &str| {
        node.slurm(gres, toml);
        let nodes = fs::read_to_string(node.path("nodes")).unwrap();
        fs::write(
            node.path("nodes"),
            nodes.replace("gpu:h100:8", "gpu:h100:4"),
        )
        .unwrap();
        node.hardware()
    };
    let all = slurm(toml);
    assert_eq!((all.len(), all[0][0].as_str()), (1, "ok"), "{all:?}");
    let all = slurm(&toml.replace("\"4-7\"", "\"3-6\""));
    let told = |words: &str| all.iter().any(|[_, message, _]| message.contains(words));
    assert!(
        told("[[mig.pool]] has GPU 3 of n1")
            && told("GPU 7 of n1 is in MIG mode and in no [[mig.pool]]"),
        "{all:?}"
    );
    // All of them: no node type is left.
    node.nvml(&["mig", "all", "on"]);
    let all = node.gpuos(&["discover"]);
    assert!(
        all.code == 0 && all.out.contains("NodeName=n1 Gres=gpuos:h100-80gb:64 "),
        "{}",
        all.out
    );
}

/// MIG-switchable GPUs stand in both GRES, by NVML's index, and may be in either mode.
#[test]
fn mig_switchable_gpus_are_printed_in_both_gres() {
    let node = Node::new("dgx-h100");
    node.record_sys("dgx-h100");
    node.nvml(&["mig", "4-7", "on"]);
    let text = node.gpuos(&["discover", "--switchable", "6-7"]).out;
    for line in [
        "# n1: 6 x NVIDIA H100 80GB HBM3, 4 x NVIDIA H100 80GB HBM3 in MIG mode (GPU 6-7 is counted twice: it is MIG-switchable), \
         driver 580.95.05",
        "gpus = \"4-7\"",
        "# reset: not A100 and A30.",
        "switchable = \"6-7\"",
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55",
        "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[6-7] Cores=56-111",
        "NodeName=n1 Name=gpuos Type=h100-80gb File=/var/lib/gpuos/slices/gpu7s[0-7] Cores=56-111",
        "NodeName=n1 Gres=gpu:h100:6,gpuos:h100-80gb:32 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing in\n{text}"
        );
    }
    assert!(!text.contains("# note: GPU"), "{text}");
    let json = node
        .gpuos(&["discover", "--json", "--switchable=6-7"])
        .json();
    let switchable = |at: usize| &json["divided"][at]["switchable"];
    assert_eq!(
        (switchable(1), switchable(2)),
        (&false.into(), &true.into())
    );
    assert_eq!(json["node_type"]["gpus"], 6);
    let off = node.gpuos(&["discover", "--switchable", "3,7"]);
    assert!(
        off.code == 1 && off.out.contains("n1 shows no GPU 3 in MIG mode"),
        "{}",
        off.out
    );

    let (toml, gres) = (json["gpuos_toml"].as_str(), json["gres_conf"].as_str());
    let (toml, gres) = (toml.unwrap(), gres.unwrap());
    let config = Config::parse(toml, "printed").unwrap();
    let (pool, _) = config.mig.pool_of("n1").unwrap();
    assert_eq!(pool.whole(NvmlIndex::new(7).unwrap()), GresGpu::new(5));
    let slurm = |gres: &str, toml: &str| {
        node.slurm(gres, toml);
        let nodes = fs::read_to_string(node.path("nodes")).unwrap();
        let nodes = nodes.replace("gpu:h100:8", "gpu:h100:6");
        fs::write(node.path("nodes"), nodes).unwrap();
        node.hardware()
    };
    let all = slurm(gres, toml);
    assert_eq!((all.len(), all[0][0].as_str()), (1, "ok"), "{all:?}");
    // Mode off is how a MIG-switchable GPU may be, and is a fault of one that is not.
    node.nvml(&["mig", "6", "off"]);
    let all = slurm(gres, toml);
    assert_eq!((all.len(), all[0][0].as_str()), (1, "ok"), "{all:?}");
    node.nvml(&["mig", "5", "off"]);
    let all = slurm(gres, toml);
    assert!(
        all.iter()
            .any(|[_, told, _]| told.contains("[[mig.pool]] has GPU 5 of n1")),
        "{all:?}"
    );
    node.nvml(&["mig", "5", "on"]);
    // In gres.conf in another order.
    let swapped = gres.replace("[0-3]", "[A]").replace("[6-7]", "[0-3]");
    let all = slurm(&swapped.replace("[A]", "[6-7]"), toml);
    let told = |words: &str| all.iter().any(|[_, message, _]| message.contains(words));
    assert!(
        told(
            "GPU 7 of n1 is MIG-switchable ([[mig.pool]]) and has to be number 5 of GRES gpu: gres.conf makes it number 1"
        ),
        "{all:?}"
    );
    let all = slurm(&gres.replace("[6-7]", "6"), toml);
    let told = |words: &str| all.iter().any(|[_, message, _]| message.contains(words));
    assert!(
        told("number 5 of GRES gpu: it is not one of GRES gpu"),
        "{all:?}"
    );
}

#[test]
fn another_machine_is_none_of_doctors_business() {
    let node = Node::new("l40s-8");
    node.slurm("", "");
    let nodes = fs::read_to_string(node.path("nodes")).unwrap();
    fs::write(
        node.path("nodes"),
        nodes.replace("NodeName=n1 ", "NodeName=m1 "),
    )
    .unwrap();
    assert!(node.hardware().is_empty());
}
