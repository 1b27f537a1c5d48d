//! From stock Slurm to gpuos and back by SelectType and PluginDir alone, with jobs that run on; gpuos
//! installed but not selected; stepmgr; and an upgrade of Slurm under gpuos.

use std::fs;

use gpuos_lab::{Lab, LabError, Select, Suite};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::show::Gpus;
use gpuos_tests::{Cluster, Setup, per_suite, plugins, skip};

per_suite!(there_and_back, merged_folder, step_manager);

fn gpuos(own_dir: bool) -> Select {
    Select::Gpuos {
        plugin_dir: plugins::built().to_path_buf(),
        own_dir,
    }
}

fn installed(own_dir: bool) -> Select {
    Select::Installed {
        plugin_dir: plugins::built().to_path_buf(),
        own_dir,
    }
}

/// Jobs that were started on the way, with the GPUs they were given.
#[derive(Default)]
struct Running(Vec<(u32, Gpus)>);

impl Running {
    /// A job over both nodes whose step runs as long as it does.
    fn start(&mut self, cluster: &Cluster) {
        let script = "srun sh -c 'echo step=$SLURM_NODEID; sleep 3600'";
        let job = cluster.sbatch(&["-N2", "--gres=gpu:1", "--ntasks-per-node=1"], script);
        cluster.wait(job, &["RUNNING"]);
        cluster
            .lab
            .wait_output(job, "step=1", LIMIT)
            .unwrap_or_else(|e| panic!("{e}{}", cluster.report("")));
        self.0.push((job, cluster.gpus(job)));
    }

    /// All of them run, with the GPUs they had, and new steps start inside.
    fn check(&self, cluster: &Cluster, after: &str) {
        let mut given = Vec::new();
        for (job, gpus) in &self.0 {
            let state = cluster.lab.job_state(*job).expect("known");
            assert_eq!(
                state,
                "RUNNING",
                "job {job} after {after}{}",
                cluster.report("")
            );
            assert_eq!(cluster.gpus(*job), *gpus, "job {job} after {after}");
            for (node, set) in gpus {
                given.extend(set.iter().map(|gpu| (node.clone(), *gpu)));
            }
        }
        let count = given.len();
        given.sort();
        given.dedup();
        assert_eq!(given.len(), count, "a GPU is given twice after {after}");
        cluster.until(&format!("the nodes count {count} after {after}"), || {
            let used: u32 = cluster.used().values().map(|used| used.gpus).sum();
            (used as usize == count).then_some(())
        });
    }
}

/// One change of the selection: jobs stay, new ones run, steered exactly when gpuos is selected.
fn change(cluster: &mut Cluster, jobs: &mut Running, select: Select) {
    let after = format!("change to {select:?}");
    let from = cluster.lab.slurmctld_log().len();
    let selected = matches!(select, Select::Gpuos { .. });
    let stock = select == Select::Stock;
    cluster.lab.set_select(select).expect("edits");
    if stock {
        for folder in ["lib/gpuos", "lib/slurm"] {
            let _ = fs::remove_dir_all(cluster.lab.dir().join(folder));
        }
    }
    if let Err(e) = cluster.lab.restart() {
        panic!("{after}: {e}");
    }
    // Before that stock Slurm gives jobs no GPUs.
    cluster.registered();
    jobs.check(cluster, &after);
    jobs.start(cluster);
    let (job, _) = jobs.0.last().expect("a job");
    let log = cluster.lab.slurmctld_log().split_off(from);
    assert_eq!(log.contains("steering cons_tres"), selected, "{after}");
    assert_eq!(cluster.note(*job).is_some(), selected, "{after}");
    if !selected {
        assert!(!log.contains("select/gpuos: "), "{after}: {log}");
    }
    jobs.check(cluster, &after);
}

fn there_and_back(suite: &Suite) {
    // A release that gpuos does not know is passed through and has no notes: not for this test.
    if Setup::new("known", suite).steered().is_none() {
        return;
    }
    let Some(mut cluster) = Setup::new("migrate", suite).stock().up() else {
        return;
    };
    let mut jobs = Running::default();
    jobs.start(&cluster);
    change(&mut cluster, &mut jobs, installed(true));
    change(&mut cluster, &mut jobs, gpuos(true));
    change(&mut cluster, &mut jobs, Select::Stock);
    change(&mut cluster, &mut jobs, gpuos(true));
    change(&mut cluster, &mut jobs, installed(true));
    change(&mut cluster, &mut jobs, Select::Stock);
    cluster.drained();
}

/// The same with gpuos's plugins copied into Slurm's own folder.
fn merged_folder(suite: &Suite) {
    let mut setup = Setup::new("merged", suite);
    setup.spec.select = gpuos(false);
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    let mut jobs = Running::default();
    jobs.start(&cluster);
    // The one line of plugstack.conf goes too.
    cluster
        .lab
        .write_conf("plugstack.conf", "")
        .expect("writes");
    change(&mut cluster, &mut jobs, installed(false));
    change(&mut cluster, &mut jobs, Select::Stock);
    change(&mut cluster, &mut jobs, gpuos(false));
    cluster.drained();
}

/// Jobs whose steps are managed on their first node (24.05 and later).
fn step_manager(suite: &Suite) {
    let mut setup = Setup::new("stepmgr", suite);
    setup
        .spec
        .slurm_conf_extra
        .push("PrologFlags=Contain".into());
    let Some(cluster) = setup.steered() else {
        return;
    };
    if cluster.lab.version() < "24.05" {
        return skip("stepmgr", "it came with Slurm 24.05");
    }
    let lab = &cluster.lab;
    lab.set_slurm_conf("SlurmctldParameters", Some("enable_stepmgr"))
        .expect("edits");
    lab.restart().expect("restarts");
    let script = "srun -N2 sh -c 'echo step=$SLURM_NODEID gpus=$CUDA_VISIBLE_DEVICES'; echo end=$?; sleep 3600";
    let options = ["-N2", "--gres=gpu:2", "--ntasks-per-node=1", "--stepmgr"];
    let job = cluster.sbatch(&options, script);
    cluster.wait(job, &["RUNNING"]);
    let text = cluster.lab.wait_output(job, "end=", LIMIT).expect("writes");
    assert!(
        text.contains("end=0") && text.contains("step=1 gpus=0,1"),
        "{text}"
    );
    cluster.planned(job);
    cluster.drained();
}

/// Slurm 24.11 goes to 26.05 under gpuos, with jobs that run.
#[test]
fn upgrade() {
    let (old, new) = (Suite::Debian("trixie".into()), Suite::Debian("sid".into()));
    let all = gpuos_tests::suites();
    if !all.contains(&old) || !all.contains(&new) {
        skip("upgrade", "GPUOS_TEST_SUITES names not both trixie and sid");
        return;
    }
    if Setup::new("probe", &new).steered().is_none() {
        return;
    }
    let Some(mut cluster) = Setup::new("upgrade", &old).steered() else {
        return;
    };
    let mut jobs = Running::default();
    jobs.start(&cluster);
    let before = cluster.lab.version().to_string();
    match Lab::upgrade(&mut cluster.lab, &new, &mut |_| ()) {
        Ok(()) => {}
        Err(e) if LabError::is_environment(&e) => return skip("upgrade", &e.to_string()),
        Err(e) => panic!("upgrade: {e}"),
    }
    assert_ne!(cluster.lab.version(), before);
    jobs.check(&cluster, "the upgrade");
    jobs.start(&cluster);
    jobs.check(&cluster, "a start after the upgrade");
    let (last, _) = jobs.0.last().expect("a job");
    assert!(cluster.note(*last).is_some());
    cluster.drained();
}
