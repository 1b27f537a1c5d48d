//! A MIG-switchable GPU, from the command line to the driver, in real Slurm clusters: whole, divided, and whole again. At no
//! time a job has it whole while another has slices of it.

use gpuos_core::wire::{MigGpuStatus, Reply, Request};
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::{Cgroup, Suite};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::show::indices;
use gpuos_tests::slices::{SLICES, bits, check, instances, nvml, switchable, told};
use gpuos_tests::{Cluster, measured_runs, per_suite};

per_suite!(a_gpu_moves_and_comes_back);

/// What a job writes: its devices, in its script and in a step, and what opening GPU 0 and GPU 7 says there.
fn show(cluster: &Cluster) -> String {
    let gpu = |number: u32| cluster.lab.device_dir().join(format!("nvidia{number}"));
    let step = cluster.script(
        "step",
        &format!(
            "echo step=$CUDA_VISIBLE_DEVICES\necho placements=$GPUOS_MIG_PLACEMENTS\nfor file in {} {}; do\n\
             said=$( {{ : < $file; }} 2>&1 ) && echo open && continue\n\
             case $said in *'not permitted'*) echo EPERM;; *) echo ENXIO;; esac\n\
             done | paste -sd ' ' | sed s/^/opens=/",
            gpu(0).display(),
            gpu(7).display()
        ),
    );
    format!("echo batch=$CUDA_VISIBLE_DEVICES; srun -n1 {step}; echo end=1; sleep 600")
}

/// Where Slurm confines steps to their devices: whether one could open GPU 0, and GPU 7.
fn opens(cluster: &Cluster, text: &str, gpus: [bool; 2]) {
    if cluster.lab.has_cgroup() {
        let wanted = gpus.map(|opens| if opens { "ENXIO" } else { "EPERM" });
        assert_eq!(told(text, "opens"), wanted.join(" "), "{text}");
    }
}

/// Number in GRES gpu of GPU 7: GPU 6 is in MIG mode for good.
const NUMBER: usize = 6;

/// Waits until a job has written all; what it wrote. Meanwhile, nobody shares the GPU with the other kind of job.
fn output(cluster: &Cluster, job: u32) -> String {
    cluster.until(&format!("job {job} has written all"), || {
        apart(cluster);
        let text = cluster.lab.job_output(job);
        text.contains("end=1").then_some(())
    });
    let text = cluster.lab.wait_output(job, "end=", LIMIT);
    text.unwrap_or_else(|error| panic!("{error}{}", cluster.report("gpuos")))
}

/// The whole GPUs of a job on n1, by Slurm's record.
fn whole(cluster: &Cluster, job: u32) -> Vec<usize> {
    let text = cluster.show(job);
    let mut lines = text.lines().filter(|line| line.contains("CPU_IDs="));
    let own = lines.find_map(|line| line.split("gpu:").nth(1)?.split("IDX:").nth(1));
    indices(
        own.and_then(|own| own.split(')').next())
            .unwrap_or_default(),
    )
}

/// No running job has GPU 7 whole while another has slices of it; those with it whole, and those with slices.
fn apart(cluster: &Cluster) -> (Vec<u32>, Vec<u32>) {
    let text = cluster.run("squeue", &["-h", "-t", "R,CG", "-o", "%A"]);
    let jobs: Vec<u32> = text
        .lines()
        .map(|id| id.trim().parse().expect("a job id"))
        .collect();
    let (mut wholes, mut sliced) = (Vec::new(), Vec::new());
    for job in jobs {
        // One that took the whole node has both.
        if whole(cluster, job).contains(&NUMBER) {
            wholes.push(job);
        } else if bits(cluster, job)
            .get("n1")
            .is_some_and(|bits| bits.iter().any(|bit| *bit >= SLICES))
        {
            sliced.push(job);
        }
    }
    // Of a job that has ended since the other was looked at nothing is said.
    let runs = |job: &u32| {
        cluster
            .lab
            .job_state(*job)
            .is_ok_and(|state| state == "RUNNING")
    };
    if !wholes.is_empty() && !sliced.is_empty() {
        let all: Vec<&u32> = wholes
            .iter()
            .chain(&sliced)
            .filter(|job| runs(job))
            .collect();
        let both = all.iter().any(|job| wholes.contains(job))
            && all.iter().any(|job| sliced.contains(job));
        assert!(
            !both,
            "GPU 7 is whole for {wholes:?} and divided for {sliced:?}{}",
            cluster.report("gpuos")
        );
    }
    (wholes, sliced)
}

/// Whether the driver has MIG mode on for GPU 7.
fn mode_is_on(cluster: &Cluster) -> bool {
    let text = nvml(cluster, "n1", &["show"]);
    let line = text.lines().find(|line| line.starts_with("gpu7"));
    line.expect("GPU 7").contains("MIG")
}

/// GPU 7 as gpuosd tells it.
fn status(cluster: &Cluster) -> MigGpuStatus {
    let socket = cluster.lab.gpuosd_runtime_dir("n1").join(NAME);
    let mut client = Client::connect(&socket, LIMIT).expect("gpuosd listens");
    match client.ask(&Request::Mig).expect("gpuosd answers") {
        Reply::Mig { mig } => mig.gpus.into_iter().nth(1).expect("GPU 7"),
        other => panic!("{other:?}"),
    }
}

/// Submits a job and sees it wait.
fn waits(cluster: &Cluster, options: &[&str]) -> u32 {
    let job = cluster.sbatch(options, &show(cluster));
    cluster.until("a reason to wait", || {
        apart(cluster);
        let text = cluster.show(job);
        let pending = text.contains("JobState=PENDING");
        assert!(pending, "{text}{}", cluster.report("gpuos"));
        (!text.contains("Reason=None")).then_some(())
    });
    job
}

/// The same jobs of both kinds each time, in an order that looks random. Each finds GPU 7 as it should be, from its first
/// moment to its last.
fn churn(cluster: &Cluster, jobs: usize) {
    const WANTS: [&[&str]; 8] = [
        &["--gres=gpu:7"],
        &["--gpuos-mig=1g.10gb"],
        &["--gpuos-mig=3g.40gb"],
        &["--gres=gpu:1"],
        &["--gpuos-mig=1g.10gb:2"],
        &["--gpus=7"],
        &["--gpuos-mig=7g.80gb"],
        &["--gres=gpu:3", "--gpuos-mig=2g.20gb"],
    ];
    let gpus = format!(
        "{}/bin/gpuos-nvml --state {}/state",
        cluster.lab.dir().display(),
        cluster.lab.gpus_dir("n1").display()
    );
    let look = cluster.script(
        "look",
        &format!(
            "for uuid in $(echo $GPUOS_MIG_UUIDS | tr , ' '); do\n\
             {gpus} instances | grep -q \"^gpu7 .*$uuid\" || {{ echo no $uuid; exit 8; }}\ndone\n\
             case $CUDA_VISIBLE_DEVICES in MIG-*) ;; *,*,*,*,*,*,*) {gpus} show | grep '^gpu7 ' | grep MIG && exit 9;; esac\nexit 0"
        ),
    );
    let mut seed: u64 = 20_261_122;
    let submit = |_| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (want, tenths) = (WANTS[(seed >> 40) as usize % WANTS.len()], seed >> 50 & 7);
        let step = format!("{look} && sleep 0.{tenths} && {look}");
        cluster.sbatch(want, &format!("srun -n1 sh -c '{step}' && {look}"))
    };
    let all: Vec<u32> = (0..jobs).map(submit).collect();
    for job in all {
        let state = cluster.until(&format!("job {job} is over"), || {
            apart(cluster);
            let state = cluster.lab.job_state(job).ok()?;
            (!["PENDING", "CONFIGURING", "RUNNING", "COMPLETING"].contains(&state.as_str()))
                .then_some(state)
        });
        let text = cluster.lab.job_output(job);
        assert_eq!(
            state,
            "COMPLETED",
            "job {job}: {text}{}",
            cluster.report("gpuos")
        );
    }
}

/// A node whose GPU 6 is in MIG mode for good, and whose GPU 7 is MIG-switchable.
fn node(name: &str, suite: &Suite) -> Option<Cluster> {
    let mut setup = switchable(name, suite, 1, 0b1100_0000, 1 << 7);
    setup.spec.mig_switch_seconds = [1, 1];
    setup.spec.cgroup = Cgroup::Auto;
    setup.steered()
}

/// Hundreds of jobs of both kinds; by `scripts/mig-soak.sh`.
#[test]
fn soak() {
    let Some(jobs) = measured_runs("GPUOS_MIG_SWITCH_JOBS", "scripts/mig-soak.sh") else {
        return;
    };
    if let Some(cluster) = node("mig-switch-soak", &Suite::Native) {
        let fixed = cluster.start(&["--gpuos-mig=7g.80gb"]);
        churn(&cluster, jobs);
        cluster.cancel(&[fixed]);
        let log = cluster.lab.gpuosd_log("n1");
        let moved = |what: &str| log.matches(what).count();
        println!(
            "GPU 7, Slurm {}, {jobs} jobs: divided {} times, whole {} times",
            cluster.lab.version(),
            moved("GPU 7 is in MIG mode now"),
            moved("GPU 7 is whole now")
        );
        cluster.drained();
    }
}

fn a_gpu_moves_and_comes_back(suite: &Suite) {
    let Some(cluster) = node("mig-switch", suite) else {
        return;
    };
    assert!(!mode_is_on(&cluster));
    let fixed = cluster.start(&["--gpuos-mig=7g.80gb"]);
    assert_eq!(bits(&cluster, fixed)["n1"], (0..8).collect::<Vec<_>>());
    // Slurm counts those that a step may open.
    let all = match cluster.lab.has_cgroup() {
        true => "0,1,2,3,4,5,6",
        false => "0,1,2,3,4,5,7",
    };
    let script = show(&cluster);
    let first = cluster.sbatch(&["--gres=gpu:7"], &script);
    let text = output(&cluster, first);
    opens(&cluster, &text, [true, true]);
    assert_eq!([told(&text, "batch"), told(&text, "step")], [all, all]);
    let told_of = status(&cluster);
    assert!(told_of.switchable && told_of.whole, "{told_of:?}");
    cluster.until("slurmctld has said whose it is", || {
        (status(&cluster).holder == Some(first.into())).then_some(())
    });
    // It is held whole, and then divided, as soon as it is idle and has been whole for long enough.
    let slices = waits(&cluster, &["--gpuos-mig=3g.40gb"]);
    assert!(!mode_is_on(&cluster));
    cluster.cancel(&[first]);
    let text = output(&cluster, slices);
    let device = told(&text, "step");
    assert!(device.starts_with("MIG-"), "{text}");
    assert_eq!(told(&text, "batch"), device, "{text}");
    assert!(told(&text, "placements").starts_with("7:"), "{text}");
    opens(&cluster, &text, [false, true]);
    assert!(mode_is_on(&cluster));
    check(&cluster, &[6, 7]);
    let told_of = status(&cluster);
    assert!(told_of.switchable && !told_of.whole, "{told_of:?}");
    // Those GPUs that are not MIG-switchable are for whole jobs all the time.
    let third = waits(&cluster, &["--gres=gpu:7"]);
    let beside = cluster.sbatch(&["--gres=gpu:6", "--time=10"], &script);
    let text = output(&cluster, beside);
    opens(&cluster, &text, [true, false]);
    assert_eq!(told(&text, "step"), "0,1,2,3,4,5", "{text}");
    cluster.cancel(&[beside, slices]);
    let text = output(&cluster, third);
    opens(&cluster, &text, [true, true]);
    assert_eq!([told(&text, "batch"), told(&text, "step")], [all, all]);
    assert!(!mode_is_on(&cluster));
    let left = instances(&cluster, "n1");
    assert!(left.iter().all(|one| one.gpu == 6), "{left:?}");
    cluster.cancel(&[third]);
    // A job with both has no whole MIG-switchable GPU.
    let both = cluster.sbatch(&["--gres=gpu:6", "--gpuos-mig=1g.10gb"], &script);
    let text = output(&cluster, both);
    opens(&cluster, &text, [true, true]);
    assert_eq!(whole(&cluster, both), [0, 1, 2, 3, 4, 5], "{text}");
    assert!(told(&text, "placements").starts_with("7:"), "{text}");
    check(&cluster, &[6, 7]);
    cluster.cancel(&[both]);
    churn(&cluster, 16);
    // A job that takes the whole node has it whole, slices and all.
    cluster.cancel(&[fixed]);
    let alone = cluster.sbatch(&["--exclusive", "--gres=gpu:7"], &script);
    let text = output(&cluster, alone);
    assert_eq!([told(&text, "batch"), told(&text, "step")], [all, all]);
    assert!(!mode_is_on(&cluster));
    cluster.drained();
    cluster.until("no instance", || {
        instances(&cluster, "n1").is_empty().then_some(())
    });
    let text = cluster.run("scontrol", &["-o", "show", "node"]);
    assert!(!text.contains("DRAIN") && !text.contains("DOWN"), "{text}");
}
