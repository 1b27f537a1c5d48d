//! `gpuos doctor` and `gpuos health` on real clusters: what ends slurmctld is named while it is down, and a sound
//! cluster gives no finding.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_lab::{Lab, Suite};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::plugins::{built, daemons, programs};
use gpuos_tests::{Cluster, Setup, per_suite, skip};
use serde_json::Value;

per_suite!(
    what_ends_slurmctld_is_named,
    what_ends_slurmd_is_named,
    labs_have_gpuos_and_nobody_watches
);

/// What `gpuos ARGS --json` says in the lab, and its exit code.
fn gpuos(cluster: &Cluster, args: &[&str]) -> (i32, Value) {
    let program = programs().join("gpuos");
    let args = [&["--json"], args].concat();
    let out = cluster
        .lab
        .output(&program.to_string_lossy(), &args)
        .expect("gpuos runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    (out.status.code().expect("a code"), json)
}

/// Exit code and findings, each on one line.
fn doctor(cluster: &Cluster) -> (i32, Vec<String>) {
    let (code, json) = gpuos(cluster, &["doctor"]);
    let list = json["checks"].as_array().expect("a list").iter();
    let bad = list.filter(|check| check["status"] == "fail" || check["status"] == "warn");
    let text = |check: &Value| {
        let words = ["status", "name", "message", "where", "why", "fix"];
        words
            .map(|key| check[key].as_str().unwrap_or_default())
            .join(" | ")
    };
    (code, bad.map(text).collect())
}

/// Nothing is found, once daemons that have just started have heard of each other.
fn sound(cluster: &Cluster) {
    let mut last = (0, Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        last = doctor(cluster);
        if last == (0, Vec::new()) {
            return;
        }
        sleep(Duration::from_millis(500));
    }
    panic!("{last:#?}{}", cluster.report("select/gpuos"));
}

/// Starts slurmctld, which must not stay up, and asks doctor.
fn ends(cluster: &Cluster, fault: &str, words: &[&str]) {
    // Newer releases listen before they load their plugins.
    let _ = cluster.lab.start_slurmctld();
    cluster.until(&format!("{fault}: slurmctld ends"), || {
        cluster.lab.slurmctld_pid().is_none().then_some(())
    });
    let (code, found) = doctor(cluster);
    assert_eq!(code, 1, "{fault}");
    let told = found
        .iter()
        .any(|one| words.iter().all(|word| one.contains(word)));
    assert!(
        told,
        "{fault}: {words:?} in {found:#?}\n{}",
        cluster.report("")
    );
    let away = found
        .iter()
        .find(|one| one.contains("slurmctld does not answer"));
    let away = away.unwrap_or_else(|| panic!("{fault}: {found:#?}"));
    assert!(
        away.contains("mend what else is said here"),
        "{fault}: {away}"
    );
    // The loader that maps a file which is cut off gets a signal for it.
    let quoted = away.contains("fatal: ")
        || fault == "truncated"
            && (away.contains("breaks off") || away.contains("killed before it could log"));
    assert!(quoted, "{fault}: the log's last word is quoted: {away}");
}

fn what_ends_slurmctld_is_named(suite: &Suite) {
    let mut setup = Setup::new("doctor", suite);
    setup.spec.job_submit = true;
    let Some(cluster) = setup.steered() else {
        return;
    };
    sound(&cluster);
    // A mistake after the start: the file is not what slurmctld has read.
    cluster
        .lab
        .write_conf("gpuos.toml", "[policy]\nplacement = \"pack\"\n")
        .expect("written");
    let (code, found) = doctor(&cluster);
    assert_eq!(code, 1);
    assert!(
        found
            .iter()
            .any(|one| one.contains("gpuos.toml was written since slurmctld looked for it")),
        "{found:#?}"
    );
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    sound(&cluster);
    cluster
        .lab
        .write_conf("gpuos.toml", "[policy]\nplacement = \"spread\"\n")
        .expect("written");
    let (_, found) = doctor(&cluster);
    assert!(
        found
            .iter()
            .any(|one| one.contains("gpuos.toml was edited since slurmctld read it")),
        "{found:#?}"
    );
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    sound(&cluster);

    cluster.until("slurmctld ends", || {
        cluster.lab.kill_slurmctld(15).expect("ends").then_some(())
    });
    let dir = cluster.lab.dir().join("lib/gpuos");
    let plugin = dir.join("select_gpuos.so");
    let whole = fs::read(&plugin).expect("the plugin");
    // Its place in slurm.conf.
    let conf = cluster.lab.slurm_conf().expect("slurm.conf");
    cluster
        .lab
        .edit_slurm_conf(|text| text.replace("/lib/gpuos:", "/lib/gpous:"))
        .expect("written");
    ends(
        &cluster,
        "PluginDir",
        &[
            "fail | PluginDir",
            "/lib/gpous, which cannot be used",
            "etc/slurm.conf:",
        ],
    );
    cluster
        .lab
        .edit_slurm_conf(|_| conf.clone())
        .expect("written");
    // Its bytes. A slurmd may have the file mapped that was there.
    let put = |bytes: &[u8]| {
        fs::remove_file(&plugin).expect("removed");
        fs::write(&plugin, bytes).expect("written");
    };
    put(&whole[..20_000]);
    ends(
        &cluster,
        "truncated",
        &["fail | select_gpuos", "select_gpuos.so is cut off"],
    );
    put(&newer(&whole));
    ends(
        &cluster,
        "newer glibc",
        &["fail | select_gpuos", "needs GLIBC_9.9", "of libc.so.6"],
    );
    put(&whole);
    // Its rights. Root reads everything, so that SlurmUser has to be another.
    let own = |uid: u32| {
        for name in ["state", "log", "run"] {
            own_all(&cluster.lab.dir().join(name), uid);
        }
    };
    cluster
        .lab
        .edit_slurm_conf(|text| text.replace("SlurmUser=root", "SlurmUser=nobody"))
        .expect("written");
    own(65_534);
    fs::set_permissions(&plugin, PermissionsExt::from_mode(0o600)).expect("chmod");
    ends(
        &cluster,
        "unreadable",
        &[
            "fail | select_gpuos",
            "cannot be read by SlurmUser nobody",
            "chmod a+r",
        ],
    );
    fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).expect("chmod");
    cluster
        .lab
        .edit_slurm_conf(|_| conf.clone())
        .expect("written");
    own(0);

    cluster.lab.start_slurmctld().expect("starts again");
    cluster.ready();
    sound(&cluster);
}

/// Where the kernel has control groups of version 1, slurmd ends at its start with a cgroup.conf that wants version 2, and
/// doctor says so; with the lab's own cgroup.conf both are content.
fn what_ends_slurmd_is_named(suite: &Suite) {
    let groups = fs::read_to_string("/proc/self/cgroup").expect("this process's groups");
    if groups.lines().all(|line| line.starts_with("0:")) {
        skip(
            "hybrid",
            "this machine has control groups of version 2 alone",
        );
        return;
    }
    let mut setup = Setup::new("groups", suite);
    setup.spec.job_submit = true;
    let Some(cluster) = setup.steered() else {
        return;
    };
    sound(&cluster);
    let path = cluster.lab.dir().join("etc/cgroup.conf");
    let own = fs::read_to_string(path).expect("cgroup.conf");
    assert!(cluster.lab.stop_slurmd("n1").expect("ends"));
    let write = |text: &str| {
        cluster
            .lab
            .write_conf("cgroup.conf", text)
            .expect("written")
    };
    write("CgroupPlugin=cgroup/v2\n");
    let _ = cluster.lab.start_slurmd("n1");
    // Newer releases look at the mount before they look at the groups.
    let words = [
        "Hybrid mode is not supported",
        "is not a valid cgroup2 mountpoint",
    ];
    cluster.until("slurmd ends", || {
        let log = cluster.lab.slurmd_log("n1");
        let said = words.iter().any(|word| log.contains(word));
        (said && cluster.lab.slurmd_pid("n1").is_none()).then_some(())
    });
    let (code, found) = doctor(&cluster);
    assert_eq!(code, 1);
    let words = [
        "fail | cgroup version",
        "CgroupPlugin=cgroup/v2 takes cgroup/v2, and this host has",
        "cgroup.conf:1",
        "systemd.unified_cgroup_hierarchy=1",
    ];
    let told = |one: &String| words.iter().all(|word| one.contains(word));
    assert!(found.iter().any(told), "{words:?} in {found:#?}");
    write(&own);
    cluster.lab.start_slurmd("n1").expect("starts again");
    cluster.ready();
    sound(&cluster);
}

fn own_all(path: &Path, uid: u32) {
    chown(path, Some(uid), None).expect("chown");
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            own_all(&entry.path(), uid);
        } else {
            let _ = chown(entry.path(), Some(uid), None);
        }
    }
}

/// The plugin as a newer system would have built it: a version of glibc's symbols that no glibc has yet. The number of
/// bytes stays, and with it all places in the file.
fn newer(plugin: &[u8]) -> Vec<u8> {
    let mut bytes = plugin.to_vec();
    let at = (0..bytes.len() - 12)
        .find(|at| {
            let name = &bytes[*at..at + 11];
            name.starts_with(b"\0GLIBC_2.")
                && name[9..].iter().all(u8::is_ascii_digit)
                && bytes[at + 11] == 0
        })
        .expect("a version of glibc");
    // `2.34` becomes `9.99`: the loader goes by a hash of the name, which stands in the same table.
    let old = bytes[at + 1..at + 11].to_vec();
    let new: Vec<u8> = [&b"GLIBC_9.99"[..]].concat();
    let (from, to) = (elf_hash(&old), elf_hash(&new));
    bytes[at + 1..at + 11].copy_from_slice(&new);
    let hash = from.to_ne_bytes();
    let found: Vec<usize> = (0..bytes.len() - 4)
        .filter(|at| bytes[*at..at + 4] == hash)
        .collect();
    for at in found {
        bytes[at..at + 4].copy_from_slice(&to.to_ne_bytes());
    }
    bytes
}

/// The hash of the System V ABI.
fn elf_hash(name: &[u8]) -> u32 {
    name.iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

/// Ends a lab also when the test fails.
struct Down(String);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = gpuos_lab::down(&self.0);
    }
}

/// `gpuos` on this machine, not in a lab, with variables.
fn outside(args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(programs().join("gpuos"));
    command
        .args(args)
        .env_remove("SLURM_CONF")
        .envs(env.iter().copied());
    let out = command.output().expect("gpuos runs");
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().expect("a code"), text)
}

/// In a lab `gpuos` is on PATH and finds the gpuosds of its nodes without flags; from outside `$GPUOS_LAB` means it. With
/// nobody who looks, nothing is well.
fn labs_have_gpuos_and_nobody_watches(suite: &Suite) {
    let name = format!("watch-{suite}-{}", std::process::id());
    let paths = [built(), daemons()].map(|path| path.to_string_lossy().into_owned());
    let down = Down(name.clone());
    let (code, said) = outside(
        &[
            "lab",
            "up",
            "--name",
            &name,
            "--slurm",
            &suite.to_string(),
            "--nodes",
            "2",
            "--gpus",
            "simulated",
            "--mig",
            "7",
            "--cgroup",
            "off",
            "--conf",
            "JobSubmitPlugins=gpuos",
            "--plugin-dir",
            &paths[0],
            "--daemon-dir",
            &paths[1],
        ],
        &[],
    );
    if code != 0 {
        match Setup::new("watch", suite).up() {
            None => return,
            Some(_) => panic!("{said}"),
        }
    }
    let cluster = Cluster {
        lab: Lab::open(&name).expect("it is up"),
        expects_errors: false,
    };
    if !cluster.lab.slurmctld_log().contains("steering cons_tres") {
        return;
    }
    let inside = |words: &[&str]| {
        let args = [&["lab", "run", "--name", &name, "--", "gpuos"], words].concat();
        outside(&args, &[])
    };
    cluster.until("all is watched, and well", || {
        (inside(&["health"]).0 == 0).then_some(())
    });
    sound(&cluster);
    let (code, said) = inside(&["mig"]);
    assert!(code == 0 && said.contains("n1: 1 x "), "{code}: {said}");
    let (code, said) = inside(&["mig", "n2"]);
    assert!(code == 0 && said.contains("n2: 1 x "), "{code}: {said}");
    let (code, said) = inside(&["drain", "n2:3", "--reason", "fan"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = inside(&["health"]);
    assert!(code == 1 && said.contains("n2"), "{code}: {said}");
    let (code, said) = inside(&["online", "n2:3", "--force"]);
    assert_eq!(code, 0, "{said}");
    cluster.until("all is well again", || {
        (inside(&["health"]).0 == 0).then_some(())
    });
    // From outside, by the variable.
    let lab = [("GPUOS_LAB", name.as_str())];
    let (code, said) = outside(&["health"], &lab);
    assert!(
        code == 0 && said.contains("All GPUs are watched, and well."),
        "{code}: {said}"
    );
    let (code, said) = outside(&["lab", "status"], &lab);
    assert!(
        code == 0 && said.starts_with(&format!("lab {name}: up")),
        "{code}: {said}"
    );
    let (code, said) = outside(&["topo"], &[("GPUOS_LAB", "no-such-lab")]);
    assert!(code == 1 && said.contains("no-such-lab"), "{code}: {said}");

    assert_eq!(cluster.lab.kill_gpuosd("n2", 15).ok(), Some(true));
    let (code, health) = gpuos(&cluster, &["health"]);
    assert_eq!((code, &health["watched"]), (1, &"no".into()), "{health}");
    assert_eq!(health["unwatched"], serde_json::json!(["n2"]), "{health}");
    let (_, said) = inside(&["health"]);
    assert!(
        said.contains("No gpuosd runs on n2: nobody watches"),
        "{said}"
    );
    assert!(!said.contains("and well"), "{said}");
    let (code, found) = doctor(&cluster);
    assert_eq!(code, 1);
    assert!(
        found
            .iter()
            .any(|one| one.contains("gpuosd does not run on n2: nobody watches the GPUs")),
        "{found:#?}"
    );
    assert_eq!(
        inside(&["health", "n2"]).0,
        1,
        "by Slurm's records it is well, and nobody watches it"
    );
    cluster.lab.start_gpuosd("n2").expect("starts");
    sound(&cluster);
    drop(down);
}
