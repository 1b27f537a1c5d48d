//! gpuos itself is upgraded while jobs run: plugins and gpuosd of an older build, then those of this one, with slurmctld and
//! the gpuosds restarted and everything else left alone. `make upgrade FROM=REVISION` builds the older ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuos_lab::{Select, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, plugins, skip, slices};

per_suite!(jobs_keep_what_they_have);

/// GPUs of the MIG pool of each node.
const POOL: u64 = 0xf0;

fn gpuos(dir: &Path) -> Select {
    Select::Gpuos {
        plugin_dir: dir.to_path_buf(),
        own_dir: true,
    }
}

/// GPUs of a node with a power limit of 300 W, by NVML's index.
fn limited(cluster: &Cluster, node: &str) -> Vec<usize> {
    let text = slices::nvml(cluster, node, &["show"]);
    let lines = text.lines().skip(1).enumerate();
    let limited = lines.filter(|(_, line)| line.contains("limit 300 W"));
    limited.map(|(gpu, _)| gpu).collect()
}

/// The node's `Extra`, in which slurmctld keeps which GPUs are out of service; empty while it says nothing.
fn extra(cluster: &Cluster, node: &str) -> String {
    let text = cluster.run("scontrol", &["show", "node", node]);
    let lines = text.lines().map(str::trim);
    let mut said = lines.filter_map(|line| line.strip_prefix("Extra="));
    said.next().unwrap_or_default().to_string()
}

/// The command `gpuos` of this build.
fn gpuos_says(cluster: &Cluster, words: &[&str]) {
    let gpuos = plugins::programs().join("gpuos");
    cluster.run(gpuos.to_str().expect("UTF-8"), words);
}

/// Has the gpuosd of n2 do something with a GPU.
fn tell(cluster: &Cluster, words: &[&str]) {
    let dir = cluster.lab.gpuosd_runtime_dir("n2");
    let dir = ["--runtime-dir", dir.to_str().expect("UTF-8")];
    gpuos_says(cluster, &[words, &dir].concat());
}

/// Keys of gpuos.toml that have another name since the older build: old, new.
const RENAMED: [(&str, &str); 3] = [
    ("moving = ", "switchable = "),
    ("move-after = ", "switch-after = "),
    ("move-hold = ", "switch-hold = "),
];

fn gpuos_toml(cluster: &Cluster) -> PathBuf {
    cluster.lab.dir().join("etc/gpuos.toml")
}

/// gpuos.toml of the lab with other names of keys.
fn renamed(
    cluster: &Cluster,
    names: impl Fn(&(&'static str, &'static str)) -> [&'static str; 2],
) -> String {
    let text = std::fs::read_to_string(gpuos_toml(cluster)).expect("the lab writes it");
    let names = RENAMED.iter().map(names);
    names.fold(text, |text, [from, to]| {
        text.replace(&format!("\n{from}"), &format!("\n{to}"))
    })
}

fn restart_gpuosds(cluster: &Cluster) {
    for node in cluster.lab.spec().node_names() {
        assert!(cluster.lab.kill_gpuosd(&node, 15).expect("ends"));
        cluster.lab.start_gpuosd(&node).expect("starts");
    }
}

/// A cluster of the older build, which may refuse what this one's lab writes into gpuos.toml.
fn older(setup: impl Fn() -> Setup) -> Option<Cluster> {
    let cluster = setup().up()?;
    if cluster.passes_through().is_none() {
        return Some(cluster);
    }
    let mut setup = setup();
    setup.spec.gpuos_toml = Some(renamed(&cluster, |&(old, new)| [new, old]));
    drop(cluster);
    setup.steered()
}

/// New plugins, a new gpuosd, and both in force.
fn upgrade(cluster: &mut Cluster) {
    // As an administrator does whom a daemon tells a key's new name.
    let text = renamed(cluster, |&(old, new)| [old, new]);
    std::fs::write(gpuos_toml(cluster), text).expect("writes");
    cluster
        .lab
        .set_select(gpuos(plugins::built()))
        .expect("places the plugins");
    cluster.restart_slurmctld();
    let bin = cluster.lab.dir().join("bin");
    for file in ["gpuosd", "gpuos-nvml"] {
        // As a package manager does: those that run keep the file that they have.
        let new = bin.join(format!(".{file}"));
        let mut copy = Command::new("cp");
        copy.arg(plugins::daemons().join(file)).arg(&new);
        assert!(copy.status().expect("cp runs").success());
        std::fs::rename(&new, bin.join(file)).expect("replaces it");
    }
    restart_gpuosds(cluster);
}

fn jobs_keep_what_they_have(suite: &Suite) {
    let Some(old) = std::env::var_os("GPUOS_UPGRADE_FROM").map(PathBuf::from) else {
        return skip(
            "an upgrade",
            "GPUOS_UPGRADE_FROM names no folder with an older build: make upgrade",
        );
    };
    let setup = || {
        let mut setup = slices::switchable("upgraded", suite, 2, POOL, 0xc0);
        setup.spec.select = gpuos(&old);
        setup.spec.simulated_gpus = Some(old.clone());
        setup
    };
    let Some(mut cluster) = older(setup) else {
        return;
    };
    let whole = cluster.start(&["--gres=gpu:2", "-w", "n1", "--gpuos-power=300W"]);
    let sliced = cluster.start(&["--gpuos-mig=3g.40gb", "-w", "n1"]);
    let waits = cluster.sbatch(&["-H", "--gres=gpu:1"], "sleep 600");
    tell(&cluster, &["drain", "n2:1", "--reason", "loud fan"]);
    cluster.until("slurmctld knows of the drain", || {
        extra(&cluster, "n2").contains("out=1").then_some(())
    });
    let (gpus, node) = (cluster.gpus(whole), "n1");
    // By NVML's index, which differs from Slurm's behind the pool.
    let limits = cluster.until("the limit is set", || {
        let limits = limited(&cluster, node);
        (limits.len() == 2).then_some(limits)
    });
    let bits = slices::bits(&cluster, sliced);
    let instances = cluster.until("the instance is there", || {
        let all = slices::instances(&cluster, node);
        (all.len() == 1).then_some(all)
    });
    let before = extra(&cluster, "n2");
    cluster.save(whole);

    upgrade(&mut cluster);

    for job in [whole, sliced] {
        assert_eq!(
            cluster.wait(job, &["RUNNING", "COMPLETED", "FAILED", "PENDING"]),
            "RUNNING",
            "job {job}"
        );
    }
    assert_eq!(cluster.gpus(whole), gpus);
    assert_eq!(slices::bits(&cluster, sliced), bits);
    // Some rounds of both gpuosds: nothing that jobs have is undone, and what is out stays out.
    for _ in 0..20 {
        assert_eq!(slices::instances(&cluster, node), instances);
        assert_eq!(limited(&cluster, node), limits);
        assert_eq!(extra(&cluster, "n2"), before);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    // What the old one noted is read, what the new one decides is steered, and the drained GPU is nobody's.
    gpuos_says(&cluster, &["why", &whole.to_string()]);
    cluster.run("scontrol", &["release", &waits.to_string()]);
    cluster.wait(waits, &["RUNNING"]);
    let all = cluster.start(&["--gres=gpu:3", "-w", "n2"]);
    assert!(
        !cluster.gpus(all)["n2"].contains(&1),
        "{:?}",
        cluster.gpus(all)
    );
    assert!(cluster.note(all).is_some());
    let counts = cluster.recording().replay(&mut |step| {
        assert!(step.same, "{:?} now {:?}", step.asked, step.again);
    });
    assert!(counts.replayed > 0, "{counts:?}");
    // What the old one began the new one ends.
    cluster.cancel(&[whole, sliced, waits, all]);
    cluster.until("limits and instances are gone", || {
        (limited(&cluster, node).is_empty() && slices::instances(&cluster, node).is_empty())
            .then_some(())
    });
    tell(&cluster, &["online", "n2:1"]);
    cluster.until("the GPU is back", || {
        (!extra(&cluster, "n2").contains("out=")).then_some(())
    });
    cluster.drained();
    cluster.no_complaints();
}
