//! Faults of a host, planted on a recorded node: its control groups, its kernel, its units. Each has to be named, with what
//! mends it; and a sound host gives no finding.

mod groups;
mod units;

use std::path::Path;

use gpuos_host::Recorded;
use gpuos_host::hardware::device_programs::DevicePrograms;
use serde_json::Value;

use crate::cli::DoctorArgs;

/// The checks that look at the host.
const OWN: [&str; 4] = ["cgroup version", "devices", "units", "gpuosd"];

const SYSTEMCTL: &str = "systemctl show \
    --property=Id,LoadState,ActiveState,SubState,UnitFileState,Result,Delegate \
    gpuosd.service slurmd.service slurmctld.service munge.service";

const UNIFIED: &str = "sysfs /sys sysfs rw 0 0\n\
    cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n";

const LEGACY: &str = "tmpfs /sys/fs/cgroup tmpfs ro,mode=755 0 0\n\
    cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
    cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
    cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
    cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
    cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0\n\
    cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0\n";

const CONSTRAIN: &str = "ConstrainDevices=yes\nConstrainCores=yes\nConstrainRAMSpace=yes\n";

/// A unit as `systemctl show` prints it.
fn unit(name: &str, load: &str, active: &str, sub: &str, file: &str) -> String {
    let result = match active {
        "failed" => "exit-code",
        _ => "success",
    };
    format!(
        "Result={result}\nDelegate=yes\nId={name}.service\nLoadState={load}\nActiveState={active}\nSubState={sub}\nUnitFileState={file}\n"
    )
}

fn running(name: &str) -> String {
    unit(name, "loaded", "active", "running", "enabled")
}

fn absent(name: &str) -> String {
    unit(name, "not-found", "inactive", "dead", "")
}

/// A node n1 with GPUs.
#[derive(Clone)]
struct Node {
    machine: Recorded,
    release: &'static str,
    slurm_conf: String,
    units: Vec<String>,
    /// systemctl does not reach systemd.
    mute: bool,
}

/// Debian's node with Slurm 24.11.5, version 2 of control groups, systemd, and slurmctld elsewhere.
fn sound() -> Node {
    let machine = Recorded::default()
        .file("/proc/sys/kernel/hostname", "n1\n")
        .file("/proc/sys/kernel/osrelease", "6.12.0-arm64\n")
        .file("/proc/cmdline", "root=/dev/nvme0n1p1 ro quiet\n")
        .file("/etc/slurm/gres.conf", "Name=gpu Type=h100 File=/dev/nvidia[0-7]\n")
        .file("/lib/plugins/select_cons_tres.so", "")
        .file("/lib/plugins/cgroup_v1.so", "")
        .file("/lib/plugins/cgroup_v2.so", "")
        .file("/run/systemd/system", "")
        .file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
        .file(
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/cgroup.controllers",
            "cpuset cpu io memory pids\n",
        )
        .command(
            "ps -eo pid=,args=",
            "    1 /sbin/init\n  40 /usr/sbin/munged\n  50 /usr/sbin/slurmd -D -s\n  60 [slurmd]x\n",
        );
    let machine = Recorded {
        device_programs: DevicePrograms::Yes,
        ..machine
    };
    let node = Node {
        machine,
        release: "24.11.5",
        slurm_conf: "ClusterName=c\nSlurmctldHost=head\nPluginDir=/lib/plugins\nSelectType=select/gpuos\n\
            SelectTypeParameters=CR_Core_Memory\nGresTypes=gpu\nProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\n\
            NodeName=n[1-2] Gres=gpu:h100:8\nPartitionName=main Nodes=ALL\n"
            .into(),
        units: vec![
            running("gpuosd"),
            running("slurmd"),
            absent("slurmctld"),
            running("munge"),
        ],
        mute: false,
    };
    node.mounts(UNIFIED).groups(CONSTRAIN)
}

impl Node {
    fn file(mut self, path: &str, text: &str) -> Node {
        self.machine = self.machine.file(path, text);
        self
    }

    fn without(mut self, path: &str) -> Node {
        self.machine.files.remove(Path::new(path)).expect("planted");
        self
    }

    /// What is mounted, and the groups of the command that follow from it.
    fn mounts(self, mounts: &str) -> Node {
        let legacy = mounts.lines().any(|line| line.starts_with("cgroup "));
        let groups = if legacy {
            "3:cpuset:/\n1:name=systemd:/\n0::/\n"
        } else {
            "0::/user.slice\n"
        };
        self.file("/proc/self/mounts", mounts)
            .file("/proc/self/cgroup", groups)
    }

    fn hybrid(self) -> Node {
        self.mounts(&format!(
            "{LEGACY}cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        ))
    }

    /// cgroup.conf.
    fn groups(self, text: &str) -> Node {
        self.file("/etc/slurm/cgroup.conf", text)
    }

    fn release(mut self, release: &'static str) -> Node {
        self.release = release;
        self
    }

    fn set(mut self, from: &str, to: &str) -> Node {
        assert!(self.slurm_conf.contains(from));
        self.slurm_conf = self.slurm_conf.replace(from, to);
        self
    }

    fn programs(mut self, all: &str) -> Node {
        self.machine = self.machine.command("ps -eo pid=,args=", all);
        self
    }

    fn kernel(mut self, answer: DevicePrograms) -> Node {
        self.machine.device_programs = answer;
        self
    }

    /// Another state of a unit. One that does not run leaves no process either.
    fn unit(mut self, at: usize, text: String) -> Node {
        self.units[at] = text;
        self.programs("    1 /sbin/init\n")
    }

    /// Findings of the host as `status name: message | where | why | fix`; and all statuses.
    fn doctor(self) -> (Vec<String>, Vec<String>) {
        let empty = tempfile::tempdir().unwrap();
        let args = DoctorArgs {
            runtime_dir: empty.path().to_path_buf(),
            ..DoctorArgs::default()
        };
        let units = self.units.join("\n");
        let mut machine = self
            .machine
            .command("scontrol -V", &format!("slurm {}\n", self.release))
            .command(SYSTEMCTL, &units)
            .file("/etc/slurm/slurm.conf", &self.slurm_conf);
        let systemctl = machine.commands.get_mut(SYSTEMCTL).unwrap();
        systemctl.ok = !self.mute;
        let (reply, _) = super::run(&machine, None, false, &args).unwrap();
        let checks = reply.json["checks"].as_array().unwrap().clone();
        let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_string();
        let own = checks
            .iter()
            .filter(|check| OWN.contains(&check["name"].as_str().unwrap()));
        let line = |check: &Value| {
            let words = ["message", "where", "why", "fix"].map(|key| text(check, key));
            let head = format!("{} {}", text(check, "status"), text(check, "name"));
            format!("{head}: {}", words.join(" | "))
        };
        let all: Vec<String> = own.map(line).collect();
        // gpuosd does not answer in any of these tests: what its unit says of that is looked at where it matters.
        let bad = |one: &&String| {
            (one.starts_with("fail") || one.starts_with("warn"))
                && !one.contains("; its unit gpuosd.service runs")
                && !one.ends_with("on the node, then `gpuos health`")
        };
        (all.iter().filter(bad).cloned().collect(), all)
    }
}

/// Name, node, and the words that have to stand in one finding.
type Fault = (&'static str, Node, &'static [&'static str]);

/// Each fault gives a finding with these words and no other finding.
fn seen(faults: Vec<Fault>) {
    for (name, node, words) in faults {
        let (found, all) = node.doctor();
        let told = |one: &String| words.iter().all(|word| one.contains(word));
        assert!(
            found.len() == 1 && told(&found[0]),
            "{name}: {words:?} in {found:#?} of {all:#?}"
        );
        assert!(!found[0].ends_with("| "), "{name}: no fix in {found:#?}");
    }
}

/// None of these gives a finding.
fn silent(nodes: Vec<(&str, Node)>) {
    for (name, node) in nodes {
        let (found, _) = node.doctor();
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn a_sound_host_gives_no_finding() {
    let (found, all) = sound().doctor();
    assert_eq!(found, [""; 0]);
    for name in ["cgroup version", "devices", "units"] {
        let ok = format!("ok {name}: ");
        assert!(
            all.iter().any(|one| one.starts_with(&ok)),
            "{name}: {all:#?}"
        );
    }
    let lab = || {
        sound()
            .set("proctrack/cgroup", "proctrack/linuxproc")
            .set("task/cgroup,", "")
    };
    silent(vec![
        ("old Slurm", sound().release("22.05.8")),
        ("new Slurm", sound().release("26.05.5")),
        (
            "no cgroup.conf",
            sound()
                .without("/etc/slurm/cgroup.conf")
                .set("task/cgroup,", ""),
        ),
        (
            "version named",
            sound().groups("CgroupPlugin=cgroup/v2\nConstrainDevices=yes\n"),
        ),
        (
            "no scope yet",
            sound().without("/sys/fs/cgroup/system.slice/slurmstepd.scope/cgroup.controllers"),
        ),
        ("no systemd", sound().without("/run/systemd/system")),
        (
            "no systemd and no slurmd unit",
            sound()
                .unit(1, absent("slurmd"))
                .without("/run/systemd/system"),
        ),
        ("a container without control groups", sound().mounts("")),
        (
            "hybrid, and version 1 named",
            sound()
                .hybrid()
                .groups("CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"),
        ),
        (
            "hybrid, and no plugin uses groups",
            lab().hybrid().groups(""),
        ),
        ("disabled", lab().hybrid().groups("CgroupPlugin=disabled\n")),
        (
            "version 2, and version 1 loaded but not used",
            lab().groups("CgroupPlugin=cgroup/v1\n"),
        ),
        (
            "Slurm mounts version 1",
            sound()
                .release("22.05.8")
                .groups("CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\n"),
        ),
        (
            "version 1 in a place of its own",
            sound().hybrid().groups(
                "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/lab/cgroup\nConstrainCores=yes\n",
            ),
        ),
        (
            "memory not counted",
            sound()
                .set("CR_Core_Memory", "CR_Core")
                .file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
        ),
        ("kernel not asked", sound().kernel(DevicePrograms::Unknown)),
        (
            "kernel without programs, and nothing constrained",
            sound()
                .kernel(DevicePrograms::No)
                .groups("CgroupPlugin=cgroup/v2\n"),
        ),
        (
            "slurmd run otherwise",
            sound()
                .unit(1, absent("slurmd"))
                .programs("1 /sbin/init\n9 /opt/slurm/sbin/slurmd\n"),
        ),
        (
            "processes hidden",
            sound().unit(1, absent("slurmd")).programs("70 bash\n"),
        ),
        (
            "no node of the cluster",
            sound().hybrid().set("n[1-2]", "m[1-2]"),
        ),
        (
            "munge not used",
            sound()
                .unit(3, absent("munge"))
                .programs("1 init\n9 slurmd\n")
                .set("ClusterName", "AuthType=auth/slurm\nClusterName"),
        ),
    ]);
}
