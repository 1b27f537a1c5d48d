//! GRES `gpuos` in a real Slurm: one bit for each memory slice of the GPUs in a pool, what jobs are told of theirs, and
//! what the device control group lets them open.

use std::fs;
use std::path::PathBuf;

use gpuos_lab::{Cgroup, Select, Suite, field};
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite, plugins, skip};

per_suite!(
    bits_and_variables,
    a_step_opens_the_devices_of_its_slices_alone,
    no_job_opens_an_instance_that_is_made_while_it_runs,
    without_a_layout_there_is_only_counting,
    a_plugin_that_panics_stops_no_job,
);

/// GPUs 4 to 7 of a DGX H100 are in the pool: 32 slices. Without spank_gpuos, which lets no step with slices run
/// where no gpuosd has made its instances.
fn setup(name: &str, suite: &Suite) -> Setup {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 1.into();
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.mig = GpuSet(0b1111_0000);
    // Slurm alone chooses the bits: this is about what becomes of them.
    setup.spec.gpuos_toml = Some("[slurm]\nsteer = false\n".into());
    setup.spec.spank = false;
    setup.spec.select = Select::Gpuos {
        plugin_dir: plugins::built().to_path_buf(),
        own_dir: true,
    };
    setup
}

/// The bits that Slurm says a job has, as `12-15`.
fn bits(cluster: &Cluster, job: u32) -> String {
    let show = cluster.show(job);
    let all = show
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix("GRES="));
    let found = all.filter_map(|gres| {
        gres.split("gpuos:")
            .nth(1)?
            .split_once("(IDX:")?
            .1
            .split_once(')')
    });
    let mut found = found.map(|(bits, _)| bits.to_owned());
    found.next().unwrap_or_default()
}

/// `NAME=VALUE` lines that a job wrote.
fn told<'a>(text: &'a str, name: &str) -> &'a str {
    let start = format!("{name}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name}= in {text}"))
}

fn idle(cluster: &Cluster) {
    let node = cluster.run("scontrol", &["show", "node", "n1"]);
    let gres = field(&node, "Gres").unwrap_or_default();
    // Which socket it is said to be on differs between releases.
    let gres: String = gres
        .split("(S:0)")
        .flat_map(|part| part.split("(S:1)"))
        .collect();
    assert_eq!(gres, "gpu:h100:4,gpuos:h100-80gb:32", "{node}");
    let state = field(&node, "State").unwrap_or_default();
    assert!(["IDLE", "MIXED"].contains(&state), "{node}");
    let log = cluster.lab.slurmd_log("n1");
    let bad = |line: &&str| line.contains("error:") && line.contains("gres");
    assert_eq!(log.lines().find(bad), None);
}

/// A job with four slices that hands its variable on wherever Slurm hands it on; its bits.
fn job(cluster: &Cluster) -> String {
    let script = "\
        echo batch=$GPUOS_SLICES\n\
        srun -n1 sh -c 'echo step=$GPUOS_SLICES'\n\
        srun -n1 --gres=gpuos:2 sh -c 'echo part=$GPUOS_SLICES'\n\
        srun -n1 --gres=none sh -c 'echo none=${GPUOS_SLICES-unset}'\n\
        GPUOS_SLICES=0-31 srun -n1 sh -c 'echo forged=$GPUOS_SLICES'\n\
        GPUOS_SLICES=0-31 srun -n1 --gres=none sh -c 'echo forged_none=${GPUOS_SLICES-unset}'\n\
        echo end=1; sleep 3600";
    let options = ["--gres=gpuos:4", "--export=ALL,GPUOS_SLICES=0-31"];
    let job = cluster.sbatch(&options, script);
    let text = cluster
        .lab
        .wait_output(job, "end=1", LIMIT)
        .expect("its script");
    let bits = bits(cluster, job);
    for name in ["batch", "step", "forged"] {
        assert_eq!(told(&text, name), bits, "{name}: {text}");
    }
    assert!(
        bits.contains('-')
            && bits.starts_with(told(&text, "part").split('-').next().unwrap_or("?")),
        "{text}"
    );
    for name in ["none", "forged_none"] {
        assert_eq!(told(&text, name), "unset", "{name}: {text}");
    }
    bits
}

fn bits_and_variables(suite: &Suite) {
    let Some(cluster) = setup("slices-bits", suite).up() else {
        return;
    };
    let work = cluster.lab.dir().join("work");
    for name in ["Prolog", "Epilog"] {
        let lines = format!(
            "echo $SLURM_JOB_ID {name} ${{GPUOS_SLICES-unset}} >> {}/told",
            work.display()
        );
        let script = cluster.script(name, &lines);
        cluster
            .lab
            .set_slurm_conf(name, Some(&script))
            .expect("edits");
    }
    cluster.lab.restart().expect("restarts");
    idle(&cluster);
    let first = job(&cluster);
    let other = job(&cluster);
    assert_eq!([first.as_str(), other.as_str()], ["0-3", "4-7"]);
    let held = || {
        let node = cluster.run("scontrol", &["-d", "show", "node", "n1"]);
        field(&node, "GresUsed").unwrap_or_default().to_owned()
    };
    assert!(held().contains("gpuos:h100-80gb:8(IDX:0-7)"), "{}", held());
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
    assert_eq!(job(&cluster), "8-11");
    cluster.lab.restart().expect("restarts");
    assert_eq!(job(&cluster), "12-15");
    assert!(
        held().contains("gpuos:h100-80gb:16(IDX:0-15)"),
        "{}",
        held()
    );
    idle(&cluster);
    let none = cluster.sbatch(
        &["--gres=gpu:1", "--export=ALL,GPUOS_SLICES=0-31"],
        "echo batch=${GPUOS_SLICES-unset}",
    );
    cluster.wait(none, &["COMPLETED"]);
    assert_eq!(told(&cluster.lab.job_output(none), "batch"), "unset");
    cluster.drained();
    let told = fs::read_to_string(work.join("told")).expect("prolog and epilog ran");
    for when in ["Prolog", "Epilog"] {
        let lines = told.lines().filter(|line| line.contains(when));
        let mut all: Vec<&str> = lines.filter_map(|line| line.rsplit(' ').next()).collect();
        all.sort_unstable();
        assert_eq!(
            all,
            ["0-3", "12-15", "4-7", "8-11", "unset"],
            "{when}: {told}"
        );
    }
}

/// A command that says what opening each file says: `open`, `EPERM` or `ENXIO`, in the order of the files.
fn opens(cluster: &Cluster, step: &str, files: &[PathBuf]) -> String {
    let files: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    format!(
        "{step} sh {} {}",
        cluster.lab.dir().join("work/opens").display(),
        files.join(" ")
    )
}

/// Writes the script that [`opens`] runs.
fn opener(cluster: &Cluster) {
    cluster.script(
        "opens",
        "for file; do\n\
         said=$( { : < $file; } 2>&1 ) && echo open && continue\n\
         case $said in *'not permitted'*) echo EPERM;; *'No such device or address'*) echo ENXIO;; *) echo $said;; esac\n\
         done | paste -sd ' ' | sed s/^/opens=/",
    );
}

fn a_step_opens_the_devices_of_its_slices_alone(suite: &Suite) {
    let mut setup = setup("slices-devices", suite);
    setup.spec.cgroup = Cgroup::Auto;
    let Some(cluster) = setup.up() else {
        return;
    };
    if !cluster.lab.has_cgroup() {
        return skip(
            "devices of slices",
            "no control groups of version 1 for this Slurm",
        );
    }
    // Instances over slices 0-3 and 4-7 of GPU 4, and one of GPU 5 that is made later.
    let cap = |number: u32| {
        cluster
            .lab
            .caps_dir("n1")
            .join(format!("nvidia-cap{number}"))
    };
    let gpu = |number: u32| cluster.lab.device_dir().join(format!("nvidia{number}"));
    let all = [
        gpu(4),
        cap(543),
        cap(544),
        cap(552),
        cap(553),
        gpu(5),
        cap(678),
        gpu(0),
    ];
    for slice in 0..8 {
        let first = if slice < 4 { 543 } else { 552 };
        let text = [gpu(4), cap(first), cap(first + 1)].map(|path| format!("{}\n", path.display()));
        let file = cluster.lab.slices_dir("n1").join(format!("gpu4s{slice}"));
        fs::write(file, text.concat()).expect("writes");
    }
    opener(&cluster);
    let step = opens(&cluster, "srun -n1", &all);
    let none = opens(&cluster, "srun -n1 --gres=none", &all);
    let batch = opens(&cluster, "", &all);
    let script = format!("{step}; {batch}; {none}; echo end=1; sleep 3600");
    let seen = |options: &[&str]| {
        let job = cluster.sbatch(options, &script);
        let text = cluster
            .lab
            .wait_output(job, "end=1", LIMIT)
            .expect("its script");
        let lines = text.lines().filter_map(|line| line.strip_prefix("opens="));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let nothing = "EPERM EPERM EPERM EPERM EPERM EPERM EPERM EPERM";
    let first = "ENXIO ENXIO ENXIO EPERM EPERM EPERM EPERM EPERM";
    let second = "ENXIO EPERM EPERM ENXIO ENXIO EPERM EPERM EPERM";
    assert_eq!(seen(&["--gres=gpuos:4"]), [first, first, nothing]);
    assert_eq!(seen(&["--gres=gpuos:4"]), [second, second, nothing]);
    // GPU 5 whole: its capability is in no slice file yet.
    let whole = "EPERM EPERM EPERM EPERM EPERM ENXIO EPERM EPERM";
    assert_eq!(seen(&["--gres=gpuos:8"]), [whole, whole, nothing]);
    let alone = seen(&["--gres=gpu:h100:1"]);
    assert_eq!(alone[0], "EPERM EPERM EPERM EPERM EPERM EPERM EPERM ENXIO");
    // A file that is missing or says nonsense is only nothing for its slice.
    let slices = cluster.lab.slices_dir("n1");
    fs::remove_file(slices.join("gpu6s0")).expect("removes");
    fs::write(
        slices.join("gpu6s1"),
        format!("nvidia0\n/dev\n../\n{}", "x".repeat(9000)),
    )
    .expect("writes");
    assert_eq!(seen(&["--gres=gpuos:2"]), [nothing, nothing, nothing]);
    cluster.drained();
}

/// With gpuosd: the first job is asked once the second has its instance, so that no file named that one before.
fn no_job_opens_an_instance_that_is_made_while_it_runs(suite: &Suite) {
    let mut setup = Setup::simulated("slices-made", suite, 1);
    setup.spec.mig = GpuSet(0b1111_0000);
    setup.spec.cgroup = Cgroup::Auto;
    setup.spec.job_submit = true;
    setup.spec.select = Select::Gpuos {
        plugin_dir: plugins::built().to_path_buf(),
        own_dir: true,
    };
    let Some(cluster) = setup.steered() else {
        return;
    };
    if !cluster.lab.has_cgroup() {
        return skip(
            "instances of others",
            "no control groups of version 1 for this Slurm",
        );
    }
    opener(&cluster);
    let caps = |bits: &str| -> Vec<PathBuf> {
        let first = bits.split(['-', ',']).next().unwrap_or_default();
        let bit: usize = first.parse().expect("a bit");
        let file = format!("gpu{}s{}", 4 + bit / 8, bit % 8);
        let text =
            fs::read_to_string(cluster.lab.slices_dir("n1").join(file)).expect("a slice file");
        let caps = text.lines().filter(|line| line.contains("nvidia-cap"));
        caps.map(PathBuf::from).collect()
    };
    let work = cluster.lab.dir().join("work");
    let script = format!(
        "echo bits=$GPUOS_SLICES mig=$CUDA_VISIBLE_DEVICES; while ! [ -e {0}/go ]; do sleep 0.1; done; . {0}/go; \
         echo end=1; sleep 3600",
        work.display()
    );
    let mut found = Vec::new();
    for profile in ["3g.40gb", "1g.10gb"] {
        let job = cluster.sbatch(&[&format!("--gpuos-mig={profile}")], &script);
        let text = cluster
            .lab
            .wait_output(job, "mig=MIG-", LIMIT)
            .expect("its instance");
        let held = told(&text, "bits")
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(held, bits(&cluster, job));
        found.push((job, caps(&held)));
    }
    let all: Vec<PathBuf> = found.iter().flat_map(|(_, caps)| caps.clone()).collect();
    assert_eq!(all.len(), 4, "{all:?}");
    // The jobs read it as soon as it is there.
    fs::write(work.join("go.new"), opens(&cluster, "", &all)).expect("writes");
    fs::rename(work.join("go.new"), work.join("go")).expect("it is there");
    let seen = |job: u32| {
        let text = cluster
            .lab
            .wait_output(job, "end=1", LIMIT)
            .expect("its script");
        told(&text, "opens").to_owned()
    };
    // A compute instance is nothing without its GPU instance, so that of the later job may be open to the first.
    let first = seen(found[0].0);
    assert!(first.starts_with("ENXIO ENXIO EPERM "), "{first}");
    assert_eq!(seen(found[1].0), "EPERM EPERM ENXIO ENXIO");
    cluster.cancel(&[found[0].0, found[1].0]);
}

fn without_a_layout_there_is_only_counting(suite: &Suite) {
    let Some(cluster) = setup("slices-layout", suite).up() else {
        return;
    };
    let table = "gres_device\tnonsense\n";
    cluster
        .lab
        .write_conf("gpuos-layouts.tsv", table)
        .expect("writes");
    cluster.lab.restart().expect("restarts");
    let script = "echo batch=${GPUOS_SLICES-unset}; srun -n1 true; echo end=$?";
    let job = cluster.sbatch(&["--gres=gpuos:4"], script);
    cluster.wait(job, &["COMPLETED"]);
    let text = cluster.lab.job_output(job);
    assert_eq!([told(&text, "batch"), told(&text, "end")], ["unset", "0"]);
    let log = cluster.lab.slurmd_log("n1");
    let said = log
        .lines()
        .find(|line| line.contains("jobs get no GPUOS_SLICES"));
    assert!(
        said.is_some_and(|line| line.contains("gpuos-layouts.tsv: line 1")),
        "{log}"
    );
    counts(&cluster);
}

fn a_plugin_that_panics_stops_no_job(suite: &Suite) {
    let mut setup = setup("slices-panic", suite);
    setup.spec.select = Select::Installed {
        plugin_dir: plugins::with_faults().to_path_buf(),
        own_dir: true,
    };
    let Some(mut cluster) = setup.up() else {
        return;
    };
    cluster.expects_errors = true;
    let entry = match cluster.is_before([23, 2, 0]) {
        true => "gres_p_epilog_build_env",
        false => "gres_p_prep_build_env",
    };
    cluster.lab.set_slurmctld_env(&[("GPUOS_PANIC_AT", entry)]);
    cluster.restart_slurmctld();
    let job = cluster.sbatch(
        &["--gres=gpuos:4"],
        "srun -n1 true; echo end=$? batch=$GPUOS_SLICES",
    );
    cluster.wait(job, &["COMPLETED"]);
    assert_eq!(told(&cluster.lab.job_output(job), "end"), "0 batch=0-3");
    let log = cluster.lab.slurmctld_log();
    assert!(log.contains(&format!("internal error in {entry}")), "{log}");
    counts(&cluster);
}

/// The node has its slices and is not drained.
fn counts(cluster: &Cluster) {
    let node = cluster.run("scontrol", &["show", "node", "n1"]);
    assert!(
        !node.contains("DRAIN") && node.contains("gpuos:h100-80gb:32"),
        "{node}"
    );
}
