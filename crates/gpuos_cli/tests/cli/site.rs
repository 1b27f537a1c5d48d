//! A recorded cluster that the command is run on.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Releases whose answers are recorded.
pub const RELEASES: [&str; 3] = ["22.05.8", "24.11.5", "26.05.5"];

/// A directory with the Slurm commands of a recorded cluster, and its configuration files.
pub struct Site {
    pub dir: tempfile::TempDir,
}

/// What the command said.
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn of(out: Output) -> Answer {
        Answer {
            code: out.status.code().unwrap(),
            out: String::from_utf8(out.stdout).unwrap(),
            err: String::from_utf8(out.stderr).unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

impl Site {
    pub fn new(release: &str) -> Site {
        let site = Site {
            dir: tempfile::tempdir().unwrap(),
        };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuos_host/tests/data");
        for what in ["config", "nodes", "jobs", "topology"] {
            let text = fs::read_to_string(data.join(format!("{release}-{what}.txt"))).unwrap();
            // The recorded cluster's files lie in this directory instead, and its jobs take some memory where they ask for none, not all of a
            // node's.
            let text = text.replace("/srv/lab", &site.path(""));
            let text = text.replace(
                "DefMemPerNode           = UNLIMITED",
                "DefMemPerNode           = 100",
            );
            let text = text.replace("MinMemoryNode=0 ", "MinMemoryNode=100M ");
            site.file(&format!("{what}.txt"), &text);
        }
        let dir = site.path("");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n\
             'show config') exec cat {dir}/config.txt ;;\n\
             '-d show nodes') exec cat {dir}/nodes.txt ;;\n\
             '-d show jobs') exec awk -f {dir}/jobs.awk {dir}/jobs.txt ;;\n\
             'show topology') exec cat {dir}/topology.txt ;;\n\
             'show partitions') exec cat {dir}/partitions.txt ;;\n\
             'write batch_script'*) [ -f {dir}/script ] && exec cat {dir}/script ;;\n\
             esac\necho 'slurm_load: refused' >&2\nexit 1\n"
        );
        site.program("scontrol", &script);
        site.file("jobs.awk", include_str!("../../../../tests/src/slurm.awk"));
        let queue = format!(
            "#!/bin/sh\nexec awk -v rows=\"$SQUEUE_FORMAT2\" -f {dir}/jobs.awk {dir}/jobs.txt\n"
        );
        site.program("squeue", &queue);
        site.program("munge", "#!/bin/sh\necho MUNGE:x\n");
        site.file(
            "slurm.conf",
            "ClusterName=cap\nNodeName=n[1-4] Sockets=2 CoresPerSocket=8 Gres=gpu:h100:8\n",
        );
        site.file("gres.conf", "Name=gpu Type=h100 File=/dev/gpu[0-7]\n");
        site
    }

    pub fn path(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        path.to_str().unwrap().trim_end_matches('/').to_string()
    }

    pub fn file(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn program(&self, name: &str, text: &str) {
        let source = format!("{name}.text");
        self.file(&source, text);
        self.install(&self.dir.path().join(source), name);
    }

    /// Puts a program into `bin`. Another process writes it: a descriptor of this one, open for
    /// writing, would live on for a moment in what another test starts, and nothing that is
    /// open for writing can be run ("Text file busy").
    pub fn install(&self, source: &Path, name: &str) {
        let status = Command::new("install")
            .args(["-D", "-m", "755"])
            .arg(source)
            .arg(self.dir.path().join("bin").join(name))
            .status()
            .unwrap();
        assert!(status.success(), "install {name}: {status}");
    }

    /// Changes what a recorded answer says.
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap();
        assert!(text.contains(from), "{name} has no {from}");
        self.file(name, &text.replace(from, to));
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        let path = format!("{}:/usr/bin:/bin", self.path("bin"));
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap();
        Answer::of(out)
    }
}
