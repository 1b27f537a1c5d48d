//! Host memory that is short on a real Slurm: what sbatch refuses by a share of the site's, and a job that gpuosd has requeued. The marks are
//! such that any machine is short.

use std::fs;

use gpuos_lab::{Cgroup, Suite};
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use crate::memory_grants::{lab, program};

per_suite!(a_node_that_is_short_requeues_the_job_of_the_lowest_rank);

const SHARES: &str = "\n[[memory-share]]\naccount = \"small\"\nat-most = \"100M\"\nrank = 1\n\n\
    [[memory-share]]\naccount = \"kept\"\nguaranteed = \"1G\"\n";

/// Adds to gpuos.toml, and has gpuosd read it.
fn configure(cluster: &Cluster, memory: &str, more: &str) {
    let file = cluster.lab.dir().join("etc/gpuos.toml");
    let text = fs::read_to_string(&file).expect("gpuos.toml");
    let text = text.replace("[memory]\n", &format!("[memory]\n{memory}"));
    fs::write(&file, text + more).expect("gpuos.toml");
    let sockets = cluster.lab.gpuosd_runtime_dir("n1");
    let gpuos = plugins::programs().join("gpuos").display().to_string();
    let words = [
        "health",
        "--reload",
        "--runtime-dir",
        sockets.to_str().expect("UTF-8"),
    ];
    cluster.run(&gpuos, &words);
}

fn a_node_that_is_short_requeues_the_job_of_the_lowest_rank(suite: &Suite) {
    let mut setup = Setup::simulated("short", suite, 1);
    // Which of a user's jobs a process belongs to control groups tell.
    setup.spec.cgroup = Cgroup::Auto;
    let Some(cluster) = lab(setup) else { return };
    configure(&cluster, "", SHARES);
    cluster.lab.reconfigure().expect("reconfigures");
    let args = ["--gres=gpu:1", "--mem=100", "--gpuos-mem=256M"];
    // 192 MiB of the host are more than the account gets of a node.
    cluster.until("sbatch refuses it", || {
        let told = cluster.submit_held(&[&args[..], &["--account=small"]].concat());
        let says = |why: &String| why.contains("account small get 100 MiB of a node together");
        told.err().filter(says)
    });
    if !cluster.lab.has_cgroup() {
        return;
    }
    let program = program(&cluster);
    let stay = cluster.lab.dir().join("work/stay");
    fs::write(&stay, "").expect("written");
    let gpus = cluster.lab.dir().join("nvml/n1/state");
    // The simulated driver shows all GPUs, also those that a control group keeps from the job.
    let script = format!(
        "srun env GPUOS_GRANTS_STAYS={} GPUOS_NVML_STATE={} sh -c 'CUDA_VISIBLE_DEVICES=$SLURM_STEP_GPUS exec {program}'",
        stay.display(),
        gpus.display()
    );
    let run = |more: &[&str]| cluster.sbatch(&[&args[..], more].concat(), &script);
    // What its first run was told stays in the file.
    let lowest = ["--requeue", "--open-mode=append"];
    let [kept, low] = [&["--account=kept", "--requeue"][..], &lowest].map(run);
    let file = |job: u32| cluster.lab.dir().join(format!("work/{job}.out"));
    for job in [kept, low] {
        cluster.until("the program works", || {
            let text = fs::read_to_string(file(job)).unwrap_or_default();
            assert!(!text.contains("panicked"), "{text}");
            text.contains("all bytes are right").then_some(())
        });
    }
    configure(&cluster, "pressure-begins = 2\npressure-ends = 1\n", "");
    cluster.until("the requeue", || {
        let shown = cluster.show(low);
        // It may have been so once more since.
        (!shown.contains("Restarts=0")).then_some(())
    });
    // Its user is told: on its standard error, in its record, and by the command, also when it has ended.
    let why = "requeued: the node ran out of host memory";
    cluster.until("what its user is told", || {
        let told = fs::read_to_string(file(low)).unwrap_or_default();
        told.contains(&format!("gpuos: {why}")).then_some(())
    });
    let told = |of: u32| {
        let gpuos = plugins::programs().join("gpuos").display().to_string();
        // Its exit code says whether the job waits or runs.
        let said = cluster.try_run(&gpuos, &["why", &of.to_string()]);
        said.unwrap_or_else(|ended| ended)
    };
    let record = format!("AdminComment=gpuos: told by node n1: {why}");
    assert!(cluster.show(low).contains(&record), "{}", cluster.show(low));
    let sentence = format!("gpuosd on n1 has told its user: {why}");
    assert!(told(low).contains(&sentence), "{}", told(low));
    assert!(!told(kept).contains("has told its user"), "{}", told(kept));
    // Jobs that may need its memory come here last.
    cluster.until("slurmctld is told", || {
        let node = cluster.run("scontrol", &["show", "node", "n1"]);
        node.contains("[gpuos:1 short=host]").then_some(())
    });
    let text = cluster.show(kept);
    assert!(
        text.contains("Restarts=0"),
        "what is guaranteed stays: {text}"
    );
    cluster.until("the other program is told", || {
        let told = fs::read_to_string(file(kept)).unwrap_or_default();
        told.contains("the node is short of host memory")
            .then_some(())
    });
    cluster.run("scancel", &[&low.to_string()]);
    fs::remove_file(&stay).expect("removed");
    cluster.wait(low, &["CANCELLED"]);
    assert!(told(low).contains(&sentence), "{}", told(low));
    let state = cluster.wait(kept, &["COMPLETED", "FAILED", "CANCELLED"]);
    assert_eq!(state, "COMPLETED");
    cluster.drained();
}
