//! A sound installation in a folder, for `gpuos doctor`: what is planted in it is then the only fault.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::site::{Answer, Site};

/// Plugins as Slurm wants them, as far as a file shows it: made by the compiler that links Rust programs too.
fn stubs() -> &'static Path {
    static STUBS: OnceLock<tempfile::TempDir> = OnceLock::new();
    STUBS
        .get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let plugin = |name: &str, version: u32, more: &str| {
                let source = dir.path().join(format!("{name}.c"));
                let text = format!(
                    "#include <stdlib.h>\nconst char plugin_name[] = \"x\", plugin_type[] = \"x\";\n\
                     const unsigned plugin_version = {version};\nvoid *init(void) {{ return malloc(1); }}\n\
                     const char mark[] = \"@(#)gpuos 0.1.0\";\n{more}"
                );
                fs::write(&source, text).unwrap();
                let out = Command::new("cc")
                    .args(["-shared", "-fPIC", "-o"])
                    .arg(dir.path().join(format!("{name}.so")))
                    .arg(&source)
                    .output()
                    .expect("cc, which links Rust programs");
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            };
            let select = "const unsigned plugin_id = 109;\nint fini(void) { return 0; }\nint select_p_job_test(void) { return 0; }\n";
            plugin("select_gpuos", 0, select);
            plugin("spank_gpuos", 0, "int slurm_spank_init(void) { return 0; }\n");
            let submit = "int job_submit(void) { return 0; }\nint job_modify(void) { return 0; }\n";
            plugin("job_submit_gpuos", 0, submit);
            plugin("gres_gpuos", 0, "");
            plugin("select_cons_tres", 24 << 16 | 11 << 8 | 5, select);
            dir
        })
        .path()
}

/// The installation. Slurm is 24.11.5; its nodes are n1 to n4 with eight H100 each.
pub struct Bed {
    pub site: Site,
}

impl Bed {
    pub fn new() -> Bed {
        let site = Site::new("24.11.5");
        let bed = Bed { site };
        fs::set_permissions(bed.site.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in [
            "select_gpuos",
            "spank_gpuos",
            "job_submit_gpuos",
            "gres_gpuos",
            "select_cons_tres",
        ] {
            bed.copy(&format!("{name}.so"), &format!("plugins/{name}.so"));
        }
        let dir = bed.path("");
        bed.file("state/job_state", "");
        bed.file("plugstack.conf", "optional spank_gpuos.so\n");
        bed.file("cgroup.conf", "ConstrainDevices=yes\n");
        bed.file(
            "gres.conf",
            "AutoDetect=off\nNodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n",
        );
        bed.file(
            "slurm.conf",
            &format!(
                "ClusterName=cap\nSlurmctldHost=host(127.0.0.1)\nSlurmUser=root\nPluginDir={dir}/plugins\n\
                 SelectType=select/gpuos\nSelectTypeParameters=CR_Core_Memory\nJobSubmitPlugins=gpuos\nGresTypes=gpu\n\
                 ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\nTopologyPlugin=topology/tree\n\
                 SlurmctldLogFile={dir}/log/ctld.log\nStateSaveLocation={dir}/state\n\
                 NodeName=n[1-4] Sockets=2 CoresPerSocket=8 Gres=gpu:h100:8\nPartitionName=main Nodes=ALL Default=YES\n"
            ),
        );
        bed.file(
            "topology.conf",
            "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=spine Switches=leaf[1-2]\n",
        );
        for (from, to) in [
            (
                "= /usr/lib/x86_64-linux-gnu/slurm-wlm",
                format!("= {dir}/plugins"),
            ),
            ("= select/cons_tres", "= select/gpuos".into()),
            (
                "JobSubmitPlugins        = (null)",
                "JobSubmitPlugins        = gpuos".into(),
            ),
            ("= proctrack/linuxproc", "= proctrack/cgroup".into()),
            (
                "TaskPlugin              = (null)",
                "TaskPlugin              = task/cgroup,task/affinity".into(),
            ),
        ] {
            bed.site.edit("config.txt", from, &to);
        }
        bed.log("");
        bed.scontrol(true);
        bed
    }

    pub fn path(&self, name: &str) -> String {
        self.site.path(name)
    }

    pub fn file(&self, name: &str, text: &str) {
        self.site.file(name, text);
    }

    /// Adds a line to a file.
    pub fn add(&self, name: &str, line: &str) {
        let old = fs::read_to_string(self.path(name)).unwrap_or_default();
        self.file(name, &format!("{old}{line}\n"));
    }

    /// A value of slurm.conf, and of what slurmctld says too.
    pub fn set(&self, key: &str, value: &str) {
        let all = fs::read_to_string(self.path("slurm.conf")).unwrap();
        let start = format!("{key}=");
        let mut lines: Vec<String> = all.lines().map(str::to_string).collect();
        match lines.iter_mut().find(|line| line.starts_with(&start)) {
            Some(line) => *line = format!("{key}={value}"),
            None => lines.insert(1, format!("{key}={value}")),
        }
        self.file("slurm.conf", &(lines.join("\n") + "\n"));
        let all = fs::read_to_string(self.path("config.txt")).unwrap();
        let lines = all.lines().map(|line| match line.split_once(" = ") {
            Some((name, _)) if name.trim() == key => format!("{name} = {value}"),
            _ => line.to_string(),
        });
        self.file("config.txt", &(lines.collect::<Vec<_>>().join("\n") + "\n"));
    }

    fn copy(&self, stub: &str, to: &str) {
        let to = self.site.dir.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(stubs().join(stub), to).unwrap();
    }

    pub fn plugin(&self, name: &str) -> String {
        self.path(&format!("plugins/{name}.so"))
    }

    /// Changes bytes of a plugin to others, of the same number.
    pub fn patch(&self, plugin: &str, from: &[u8], to: &[u8]) {
        assert_eq!(from.len(), to.len());
        let path = self.plugin(plugin);
        let mut bytes = fs::read(&path).unwrap();
        let mut any = false;
        for at in 0..bytes.len() - from.len() {
            if bytes[at..].starts_with(from) {
                bytes[at..at + to.len()].copy_from_slice(to);
                any = true;
            }
        }
        assert!(any, "{plugin} has not these bytes");
        fs::write(path, bytes).unwrap();
    }

    pub fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// slurmctld's log since its start, with `more` at its end.
    pub fn log(&self, more: &str) {
        let start = "[1] slurmctld version 24.11.5 started on cluster cap\n";
        let steers = "[2] select/gpuos: Slurm 24.11.5: steering cons_tres\n";
        self.file("log/ctld.log", &format!("{start}{steers}{more}"));
    }

    /// Whether slurmctld answers.
    pub fn scontrol(&self, up: bool) {
        let dir = self.path("");
        let answers = match up {
            true => format!(
                "'show config') echo \"Configuration data as of $(date +%FT%T)\"; exec sed 1d {dir}/config.txt ;;\n\
                 '-d show nodes') exec cat {dir}/nodes.txt ;;\n'-d show jobs') exec cat {dir}/jobs.txt ;;\n\
                 'show topology') exec cat {dir}/topology.txt ;;\n'show partitions') exec cat {dir}/partitions.txt ;;\n"
            ),
            false => String::new(),
        };
        self.site.program(
            "scontrol",
            &format!(
                "#!/bin/sh\ncase \"$*\" in\n-V) echo slurm 24.11.5; exit ;;\n{answers}esac\n\
                 echo 'slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
            ),
        );
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.path("bin"));
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env("SLURM_CONF", self.path("slurm.conf"))
            .output()
            .unwrap();
        Answer::of(out)
    }

    /// Exit code, and the findings that are none of `ok` and `note`, each as `status name: message | where | why | fix`.
    pub fn doctor(&self, more: &[&str]) -> (i32, Vec<String>) {
        let answer = self.run(&[&["doctor", "--json"], more].concat());
        let json = answer.json();
        let list = json["checks"].as_array().unwrap().iter();
        let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_string();
        let mut last = String::new();
        let mut found = Vec::new();
        for check in list {
            let status = text(check, "status");
            let order = ["fail", "warn", "note", "ok"];
            let place = |status: &str| order.iter().position(|one| *one == status).unwrap();
            assert!(
                last.is_empty() || place(&last) <= place(&status),
                "the worst comes first: {json}"
            );
            if status == "fail" || status == "warn" {
                assert!(!text(check, "fix").is_empty(), "no advice: {check}");
                let words = ["message", "where", "why", "fix"].map(|key| text(check, key));
                found.push(format!(
                    "{status} {}: {}",
                    text(check, "name"),
                    words.join(" | ")
                ));
            }
            last = status;
        }
        (answer.code, found)
    }
}

/// Fails with the faults that `gpuos doctor` has not told as it should.
pub fn none_missed(missed: &[String]) {
    assert!(
        missed.is_empty(),
        "{} missed: {}",
        missed.len(),
        missed.join("\n")
    );
}
