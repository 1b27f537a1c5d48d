//! Faults of folders, keys, limits and drivers of a node with checkpoints and memory in tiers, planted on a recorded machine: each has to be
//! named, with what mends it; and the sound node gives no finding.

use std::path::PathBuf;

use gpuos_host::{Kind, Recorded, Stat};
use serde_json::Value;

use crate::cli::{DoctorArgs, HardwareArgs};

/// The checks that are looked at.
const OWN: [&str; 4] = ["checkpoints", "memory", "slurm", "files"];

const TOML: &str = "[checkpoint]\nenabled = true\nshared = \"/scratch/gpuos\"\nencrypt = true\nencrypt-keys = [\"/etc/gpuos/1.key\"]\n\
    [memory]\noversubscribe = true\nturns = 2\ndriver-checkpoint = true\nnvme = \"/nvme/parked\"\nnvme-gib = 400\n\
    [[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";

const CONF: &str = "ClusterName=c\nSlurmctldHost=n1(10.0.0.1)\nPluginDir=/lib/plugins\nSelectType=select/gpuos\n\
    SelectTypeParameters=CR_Core_Memory\nGresTypes=gpu,shard\nProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\n\
    NodeName=n[1-4] Sockets=2 CoresPerSocket=8 RealMemory=2000000 Gres=gpu:h100:8,shard:h100:32\nPartitionName=main Nodes=ALL\n";

const MOUNTS: &str = "/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\nlustre /scratch lustre rw 0 0\n/dev/nvme0n1 /nvme xfs rw 0 0\n";

const MEMLOCK: &str = "systemctl show --property=Id,LimitMEMLOCK gpuosd.service slurmd.service";

const DRIVER: &str =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  1\nGCC version: gcc 12\n";

struct Site {
    machine: Recorded,
    toml: String,
    conf: String,
}

fn stat(kind: Kind, mode: u32, uid: u32, length: u64) -> Stat {
    Stat {
        kind,
        mode,
        uid,
        length,
        ..Stat::default()
    }
}

fn sound() -> Site {
    let mut machine = Recorded::default()
        .file("/proc/sys/kernel/hostname", "n1\n")
        .file("/proc/self/mounts", MOUNTS)
        .file("/proc/driver/nvidia/version", DRIVER)
        .file("/run/systemd/system", "")
        .file("/etc/slurm/gres.conf", "Name=gpu Type=h100 File=/dev/nvidia[0-7]\nName=shard Count=32\n")
        .file("/etc/slurm/cgroup.conf", "ConstrainDevices=yes\nConstrainRAMSpace=yes\n")
        .file("/etc/slurm/plugstack.conf", "optional /lib/spank_gpuos.so\n")
        .folder("/scratch/gpuos", 0o700)
        .folder("/nvme/parked", 0o700)
        .folder("/var/lib/gpuos/checkpoints", 0o700)
        .folder("/etc/munge", 0o700)
        .command("ps -eo pid=,args=", "    1 /sbin/init\n")
        .command("getent hosts 10.0.0.1", "10.0.0.1 n1\n")
        .command("getent hosts n1", "10.0.0.1 n1\n")
        .command(MEMLOCK, "Id=gpuosd.service\nLimitMEMLOCK=infinity\n\nId=slurmd.service\nLimitMEMLOCK=infinity\n");
    for (path, mode, length) in [
        ("/etc/gpuos/1.key", 0o400, 32),
        ("/etc/munge/munge.key", 0o400, 1024),
        ("/usr/lib/gpuos/libgpuos_preload.so.0", 0o755, 900_000),
    ] {
        machine
            .stats
            .insert(path.into(), stat(Kind::File, mode, 0, length));
    }
    for (path, free) in [
        ("/var/lib/gpuos/checkpoints", 500u64 << 30),
        ("/nvme/parked", 500 << 30),
    ] {
        machine.spaces.insert(path.into(), (free, 1 << 40));
    }
    Site {
        machine,
        toml: TOML.into(),
        conf: CONF.into(),
    }
}

impl Site {
    fn stat(mut self, path: &str, stat: Stat) -> Site {
        self.machine.stats.insert(path.into(), stat);
        self
    }

    fn without(mut self, path: &str) -> Site {
        self.machine
            .stats
            .remove(&PathBuf::from(path))
            .expect("planted");
        self
    }

    fn space(mut self, path: &str, free: u64, size: u64) -> Site {
        self.machine.spaces.insert(path.into(), (free, size));
        self
    }

    fn file(mut self, path: &str, text: &str) -> Site {
        self.machine = self.machine.file(path, text);
        self
    }

    fn command(mut self, line: &str, text: &str) -> Site {
        self.machine = self.machine.command(line, text);
        self
    }

    fn mount(self, line: &str) -> Site {
        self.file("/proc/self/mounts", &format!("{MOUNTS}{line}\n"))
    }

    fn toml(mut self, from: &str, to: &str) -> Site {
        assert!(self.toml.contains(from), "{from}");
        self.toml = self.toml.replace(from, to);
        self
    }

    /// Findings of the checks that are looked at, as `status name: message | where | why | fix`.
    fn doctor(self) -> Vec<String> {
        let empty = tempfile::tempdir().unwrap();
        let args = DoctorArgs {
            runtime_dir: empty.path().to_path_buf(),
            hardware: HardwareArgs {
                node_name: Some("n1".into()),
                ..HardwareArgs::default()
            },
            ..DoctorArgs::default()
        };
        let machine = self
            .machine
            .file("/etc/slurm/gpuos.toml", &self.toml)
            .file("/etc/slurm/slurm.conf", &self.conf);
        let (reply, _) = super::run(&machine, None, false, &args).unwrap();
        let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_string();
        let checks = reply.json["checks"].as_array().unwrap().clone();
        let own = checks.iter().filter(|check| {
            let bad = ["fail", "warn"].contains(&check["status"].as_str().unwrap());
            bad && OWN.contains(&check["name"].as_str().unwrap())
        });
        let line = |check: &Value| {
            let words = ["message", "where", "why", "fix"].map(|key| text(check, key));
            format!(
                "{} {}: {}",
                text(check, "status"),
                text(check, "name"),
                words.join(" | ")
            )
        };
        // slurmctld does not run on this machine; what is said of it is looked at where it matters.
        let all: Vec<String> = own.map(line).collect();
        all.into_iter()
            .filter(|one| !one.contains("slurmctld does not answer: "))
            .collect()
    }
}

/// With a key that was munge's, as while the key of gpuos_mover is changed.
fn other_keys() -> Site {
    sound()
        .toml(
            "encrypt = true",
            "encrypt = true\nother-keys = [\"/etc/gpuos/0.key\"]",
        )
        .stat("/etc/gpuos/0.key", stat(Kind::File, 0o400, 118, 32))
}

#[test]
fn a_sound_node_gives_no_finding() {
    assert_eq!(sound().doctor(), [""; 0]);
    assert_eq!(other_keys().doctor(), [""; 0]);
    // Root and SlurmUser may be others, and a key of munge is munge's.
    let munge = sound().stat("/etc/munge/munge.key", stat(Kind::File, 0o400, 118, 1024));
    assert_eq!(munge.doctor(), [""; 0]);
    // Who may not look into munge's folder says nothing of its key.
    let closed = sound()
        .without("/etc/munge/munge.key")
        .without("/etc/munge");
    assert_eq!(closed.doctor(), [""; 0]);
}

#[test]
fn each_planted_fault_is_named_with_its_subject_and_its_fix() {
    let folder = |mode, uid| stat(Kind::Folder, mode, uid, 0);
    let store = "/var/lib/gpuos/checkpoints";
    let library = "/usr/lib/gpuos/libgpuos_preload.so.0";
    let file = |mode, uid, length| stat(Kind::File, mode, uid, length);
    let faults: Vec<(&str, Site, &str, &str)> = vec![
        ("store in memory", sound().mount("tmpfs /var/lib/gpuos tmpfs rw 0 0"), "fail checkpoints: the store of n1: /var/lib/gpuos/checkpoints is on tmpfs, which is memory", "mount a disk of the node there"),
        ("store in memory of another kind", sound().mount("none /var/lib/gpuos/checkpoints ramfs rw 0 0"), "fail checkpoints: the store of n1: /var/lib/gpuos/checkpoints is on ramfs", "mount a disk"),
        ("store full", sound().space(store, 900 << 20, 1 << 40), "fail checkpoints: the store of n1: /var/lib/gpuos/checkpoints is full: 900 MiB are left", "gpuos ckpt prune"),
        ("small store full", sound().space(store, 4 << 30, 100 << 30).space(store, 1 << 30, 20 << 30), "is full: 1024 MiB are left of 20480", "larger disk"),
        ("store for all to read", sound().stat(store, folder(0o755, 0)), "fail checkpoints: the store of n1: /var/lib/gpuos/checkpoints is of user 0 with mode 755", "chmod 700 /var/lib/gpuos/checkpoints"),
        ("store of a user", sound().stat(store, folder(0o700, 4_000_000_001)), "is of user 4000000001", "chown root:root /var/lib/gpuos/checkpoints"),
        ("store is a file", sound().stat(store, file(0o600, 0, 1)), "fail checkpoints: the store of n1: /var/lib/gpuos/checkpoints is no folder", "mkdir -m 700"),
        ("shared folder missing", sound().without("/scratch/gpuos"), "warn checkpoints: shared in [checkpoint]: /scratch/gpuos is not there", "mount the file system on this node"),
        ("shared folder open", sound().stat("/scratch/gpuos", folder(0o777, 0)), "fail checkpoints: shared in [checkpoint]: /scratch/gpuos is of user 0 with mode 777", "chmod 700 /scratch/gpuos"),
        ("shared folder is a file", sound().stat("/scratch/gpuos", file(0o600, 0, 1)), "shared in [checkpoint]: /scratch/gpuos is no folder", "mkdir -m 700 /scratch/gpuos"),
        ("shared folder on a disk of the node", sound().file("/proc/self/mounts", "/dev/sda / ext4 rw 0 0\n/dev/nvme0n1 /nvme xfs rw 0 0\n"), "warn checkpoints: shared in [checkpoint]: /scratch/gpuos is on a disk of this node", "mount the parallel file system"),
        ("shared folder in the store", sound().toml("/scratch/gpuos", "/var/lib/gpuos/checkpoints/x").stat("/var/lib/gpuos/checkpoints/x", folder(0o700, 0)).mount("lustre /var/lib/gpuos/checkpoints/x lustre rw 0 0"), "lies in the store of the node", "name a folder on a file system that all nodes have"),
        ("encryption key missing", sound().without("/etc/gpuos/1.key"), "fail checkpoints: the key of encrypt-keys /etc/gpuos/1.key is not there", "chmod 400 /etc/gpuos/1.key"),
        ("encryption key for all", sound().stat("/etc/gpuos/1.key", file(0o444, 0, 32)), "the key of encrypt-keys /etc/gpuos/1.key can be had by others (mode 444)", "mode 0400"),
        ("encryption key too short", sound().stat("/etc/gpuos/1.key", file(0o400, 0, 16)), "/etc/gpuos/1.key has 16 bytes, and a key 32 or more", "count=1"),
        ("encryption key of a user", sound().stat("/etc/gpuos/1.key", file(0o400, 4_000_000_001, 32)), "/etc/gpuos/1.key is of user 4000000001", "of root with mode 0400"),
        ("encryption key is a folder", sound().stat("/etc/gpuos/1.key", folder(0o700, 0)), "/etc/gpuos/1.key is no file", "of root with mode 0400"),
        ("other key missing", other_keys().without("/etc/gpuos/0.key"), "fail checkpoints: the key of other-keys /etc/gpuos/0.key is not there", "chmod 400 /etc/gpuos/0.key"),
        ("other key for all", other_keys().stat("/etc/gpuos/0.key", file(0o440, 118, 32)), "the key of other-keys /etc/gpuos/0.key can be had by others (mode 440)", "mode 0400"),
        ("munge's key missing", sound().without("/etc/munge/munge.key"), "fail checkpoints: the key of gpuos_mover /etc/munge/munge.key is not there", "on all nodes the same"),
        ("munge's key for all", sound().stat("/etc/munge/munge.key", file(0o644, 118, 1024)), "/etc/munge/munge.key can be had by others (mode 644)", "mode 0400"),
        ("munge's key empty", sound().stat("/etc/munge/munge.key", file(0o400, 118, 0)), "/etc/munge/munge.key has 0 bytes", "dd if=/dev/urandom"),
        ("nvme folder missing", sound().without("/nvme/parked"), "warn memory: nvme in [memory]: /nvme/parked is not there", "mkdir -m 700 /nvme/parked"),
        ("nvme folder in memory", sound().mount("tmpfs /nvme tmpfs rw 0 0"), "fail memory: nvme in [memory]: /nvme/parked is on tmpfs", "mount a disk of the node there"),
        ("nvme folder of a user", sound().stat("/nvme/parked", folder(0o700, 4_000_000_001)), "fail memory: nvme in [memory]: /nvme/parked is of user 4000000001", "chown root:root /nvme/parked"),
        ("nvme folder for all to write", sound().stat("/nvme/parked", folder(0o777, 0)), "/nvme/parked is of user 0 with mode 777", "chmod 755 /nvme/parked"),
        ("nvme too small", sound().space("/nvme/parked", 100 << 30, 200 << 30), "warn memory: nvme-gib = 400, and the file system of /nvme/parked has 200 GiB", "lower nvme-gib"),
        ("library missing", sound().without(library), "fail memory: the library that programs with memory in tiers or in turns load, /usr/lib/gpuos/libgpuos_preload.so.0, is not there", "`make install` on the node"),
        ("library empty", sound().stat(library, file(0o755, 0, 0)), "libgpuos_preload.so.0, is empty", "`make install`"),
        ("library closed to users", sound().stat(library, file(0o700, 0, 9)), "cannot be read by users (mode 700)", "mode 0755"),
        ("library that all may write", sound().stat(library, file(0o777, 0, 9)), "may be written by others than root (mode 777)", "mode 0755"),
        ("library elsewhere", sound().file("/etc/slurm/plugstack.conf", "optional /lib/spank_gpuos.so preload=/opt/x.so\n"), "/opt/x.so, is not there", "correct preload="),
        ("gpuosd may lock little", sound().command(MEMLOCK, "Id=gpuosd.service\nLimitMEMLOCK=65536\n\nId=slurmd.service\nLimitMEMLOCK=infinity\n"), "warn memory: gpuosd.service may lock 64 KiB of memory", "LimitMEMLOCK=infinity, then `systemctl restart gpuosd`"),
        ("slurmd may lock little", sound().command(MEMLOCK, "Id=slurmd.service\nLimitMEMLOCK=8388608\n"), "warn memory: slurmd.service may lock 8192 KiB of memory", "`systemctl restart slurmd`"),
        ("old driver", sound().file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"), "warn memory: driver-checkpoint = true takes driver 570, and this node has 550.54.15", "update the driver"),
        ("memory not confined", sound().file("/etc/slurm/cgroup.conf", "ConstrainDevices=yes\n"), "warn memory: [memory] oversubscribe = true, turns = 2, and nothing keeps a job to its host memory", "ConstrainRAMSpace=yes in cgroup.conf"),
        ("a slurmctld that waits for a name server", sound().command("ps -eo pid=,args=", "    1 /sbin/init\n  812 /usr/sbin/slurmctld -D\n").file("/x", ""), "fail slurm: slurmctld runs (process 812) and does not answer", "what it waits for"),
    ];
    let mut missed = Vec::new();
    for (name, site, words, fix) in faults {
        let found = site.doctor();
        let told = |one: &String| {
            let advice = one.rsplit(" | ").next().unwrap_or_default();
            one.contains(words) && advice.contains(fix)
        };
        if found.iter().filter(|one| told(one)).count() != 1 {
            missed.push(format!("{name}: {words} … {fix} in {found:#?}"));
        }
    }
    assert!(
        missed.is_empty(),
        "{} missed: {}",
        missed.len(),
        missed.join("\n")
    );
}

/// A name that nobody answers for is what a slurmctld that is alive waits for; nothing is said of one that was killed.
#[test]
fn a_slurmctld_that_is_alive_was_not_killed() {
    let mut site = sound().command(
        "ps -eo pid=,args=",
        "    1 /sbin/init\n  812 /usr/sbin/slurmctld -D\n",
    );
    let unknown = site.machine.commands.get_mut("getent hosts n1").unwrap();
    unknown.ok = false;
    let found = site.doctor();
    let about = found
        .iter()
        .find(|one| one.starts_with("fail slurm: "))
        .unwrap();
    for words in [
        "slurmctld runs (process 812)",
        "no name server answers for n1",
        "/etc/resolv.conf",
    ] {
        assert!(about.contains(words), "{about}");
    }
    // That of another cluster is none of this one.
    let other = "    1 /sbin/init\n  812 /usr/sbin/slurmctld -D -f /srv/other/slurm.conf\n";
    let found = sound().command("ps -eo pid=,args=", other).doctor();
    assert_eq!(found, [""; 0]);
    assert!(
        !about.contains("killed before") && !about.contains("breaks off"),
        "{about}"
    );
}
