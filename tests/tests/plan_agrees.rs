//! What `gpuos plan` says would start now starts, and what it says would wait waits: random requests among random jobs, planned, submitted
//! and compared. `GPUOS_PLAN_CASES=1000` is the long run.

use gpuos_lab::Suite;
use gpuos_model::rng::Rng;
use gpuos_tests::plugins::programs;
use gpuos_tests::show::long_field;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(what_is_planned_is_what_happens);

/// Requests that are tried for each way to give memory to jobs that ask for none.
const CASES: usize = 6;

/// What is asked for: the same for the same seed.
struct Dice(Rng);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a [&'a str]]) -> &'a [&'a str] {
        of[self.below(of.len())]
    }

    /// Options that `gpuos plan` and sbatch have in common.
    fn request(&mut self) -> Vec<&'static str> {
        let gpus = self.one(&[
            &["-N1", "--gpus-per-node=1"],
            &["-N1", "--gpus-per-node=4"],
            &["-N1", "--gpus-per-node=8"],
            &["-N2", "--gpus-per-node=2"],
            &["-N2", "--gpus-per-node=8"],
            &["-N1", "--gpus=3"],
            &["-N2", "--gpus=6"],
            &["-N1", "--gres=gpu:2"],
            &["-N1", "-n2", "--gpus-per-task=2"],
        ]);
        let memory = self.one(&[&[], &[], &["--mem=100"], &["--mem=700"], &["--mem=0"]]);
        let cpus = self.one(&[&[], &[], &["-c4"], &["--cpus-per-gpu=2"]]);
        let nodes = self.one(&[&[], &[], &[], &["--exclude=n1"], &["--nodelist=n2"]]);
        let whole = self.one(&[&[], &[], &[], &[], &["--exclusive"]]);
        [gpus, memory, cpus, nodes, whole].concat()
    }
}

fn cases() -> usize {
    let given = std::env::var("GPUOS_PLAN_CASES").ok();
    let given = given.and_then(|text| text.parse::<usize>().ok());
    given.map_or(CASES, |all| all.div_ceil(WAYS.len()))
}

/// What slurm.conf gives jobs that ask for no memory, and a partition.
const WAYS: [(&[&str], &str); 5] = [
    (&[], ""),
    (&["DefMemPerNode=400"], ""),
    (&["DefMemPerCPU=50"], "DefMemPerNode=600"),
    (&["DefMemPerGPU=150"], ""),
    (&["DefMemPerCPU=20"], ""),
];

fn plan(cluster: &Cluster, request: &[&str]) -> (bool, String) {
    let program = programs().join("gpuos");
    let args = [&["plan"], request].concat();
    let out = cluster
        .lab
        .output(&program.to_string_lossy(), &args)
        .expect("gpuos runs");
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (text.contains("It would start now"), text)
}

/// Whether slurmctld starts the job, once it has looked, and the job; `None` where it takes none that can never run.
fn starts(cluster: &Cluster, request: &[&str]) -> (bool, Option<u32>, String) {
    let job = match cluster.try_sbatch(request, "sleep 600") {
        Ok(job) => job,
        Err(why) if why.contains("node configuration is not available") => {
            return (false, None, why);
        }
        Err(why) => panic!("{request:?}: {why}{}", cluster.report("")),
    };
    cluster.until("slurmctld has decided", || {
        let shown = cluster.show(job);
        let state = long_field(&shown, "JobState")
            .unwrap_or_default()
            .to_owned();
        let looked = !state.contains("Reason=None") && !state.contains("Reason=Priority");
        match state.starts_with("RUNNING") {
            true => Some((true, Some(job), shown)),
            false => (state.starts_with("PENDING") && looked).then_some((false, Some(job), shown)),
        }
    })
}

fn what_is_planned_is_what_happens(suite: &Suite) {
    let mut setup = Setup::new("plans", suite);
    setup
        .spec
        .slurm_conf_extra
        .push("SelectTypeParameters=CR_Core_Memory".into());
    setup.spec.node_extra = "RealMemory=1000".into();
    let Some(cluster) = setup.steered() else {
        return;
    };
    let before = cluster.lab.slurm_conf().expect("reads");
    let (mut all, mut differ) = (0, Vec::new());
    for (at, (lines, partition)) in WAYS.into_iter().enumerate() {
        let with = |line: &str| match line.starts_with("PartitionName=") {
            true => format!("{line} {partition}\n"),
            false => format!("{line}\n"),
        };
        let more: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let text = more + &before.lines().map(with).collect::<String>();
        cluster.lab.edit_slurm_conf(|_| text).expect("edits");
        cluster.restart_slurmctld();
        let mut dice = Dice(Rng::new(at as u64));
        for case in 0..cases() {
            let mut running = Vec::new();
            for _ in 0..dice.below(3) {
                let (runs, job, _) = starts(&cluster, &dice.request());
                match runs {
                    true => running.extend(job),
                    false => cluster.cancel(job.as_slice()),
                }
            }
            let request = dice.request();
            let (planned, said) = plan(&cluster, &request);
            let (started, job, shown) = starts(&cluster, &request);
            all += 1;
            if planned != started {
                let nodes = cluster.run("scontrol", &["show", "node"]);
                let what = format!(
                    "{lines:?} {partition} case {case} {request:?}: planned {planned}, started {started}"
                );
                eprintln!("{what}\n{said}\n{shown}\n{nodes}");
                differ.push(what);
            }
            running.extend(job);
            cluster.cancel(&running);
        }
    }
    assert!(
        differ.len() * 100 <= all,
        "{} of {all} differ: {differ:#?}",
        differ.len()
    );
}
