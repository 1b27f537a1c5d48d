//! Jobs that cannot have their MIG instances, and what becomes of them.

use gpuos_core::wire::Request;

use crate::mig::{BATCH, G3, Guest, by_hand, instances, job, pool, start, step, until_status};
use crate::site::{Daemon, Site};

/// Profile 4g.40gb of H100: as many memory slices as 3g.40gb.
const G4: u32 = 5;

#[test]
fn an_instance_of_nobody_in_exactly_a_jobs_slices_is_left_with_who_uses_it() {
    let site = pool("");
    by_hand(&site, 4, G3, 0);
    by_hand(&site, 5, G4, 0);
    let mut guest = Guest::on(&site, 4, 1);
    let daemon = start(&site);
    until_status(&site, &daemon, "the instance of nobody", |gpu| {
        gpu.instances.iter().any(|one| one.foreign)
    });
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    let why = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap_err();
    let named = format!("process {} (sleep) of user", guest.0.id());
    assert!(
        why.contains("GPU instance 1") && why.contains(&named),
        "{why}"
    );
    // Another profile: the job is not told to use what it did not ask for.
    job(&site, 8, "8-11", ("gpuos: mig=3g.40gb:1", ""));
    let why = step(&daemon, 8, BATCH, ("3g.40gb", &[8, 9, 10, 11])).unwrap_err();
    assert!(why.contains("GPU 5"), "{why}");
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
    assert_eq!(instances(&site, 5), [(G4, 0, true)]);
    assert!(guest.0.try_wait().unwrap().is_none());
}

/// Slurm's Restarts counts preemptions, too.
#[test]
fn a_job_is_ended_after_its_own_failures_and_not_after_others() {
    let site = pool("");
    by_hand(&site, 4, G3, 0);
    let mut daemon = start(&site);
    let fails = |daemon: &Daemon, restarts: u32, expected: usize| {
        let more = format!("Requeue=1 Restarts={restarts} BatchFlag=1");
        job(&site, 7, "0", ("gpuos: mig=1g.10gb:1", &more));
        let why = step(daemon, 7, BATCH, ("1g.10gb", &[0])).unwrap_err();
        assert!(why.contains("GPU 4"), "{why}");
        // The step is told first: its standard error is closed with the job.
        let told = |text: &str| site.slurm("log").matches(text).count();
        let acts = || (told("requeue incomplete 7"), told("scancel 7"));
        site.until("what becomes of the job", || {
            let (requeues, ends) = acts();
            // The script writes its log before it does what it is asked.
            let done = !site.slurm("jobs/7").contains("RUNNING");
            (done && requeues + ends == expected).then_some(())
        });
        acts()
    };
    // It counts on over restarts.
    for (at, acts) in [(1, 0), (2, 0), (3, 0), (3, 1)].into_iter().enumerate() {
        assert_eq!(fails(&daemon, 8 + at as u32, at + 1), acts);
        daemon.kill();
        daemon = start(&site);
    }
}

/// The record of a job that runs, as `job` writes it, that asks for this node or not.
fn runs(site: &Site, id: u32, restarts: u32, pinned: bool) {
    let asks = if pinned {
        "\n   ReqNodeList=n1 ExcNodeList=(null)"
    } else {
        ""
    };
    let more = format!("Requeue=1 Restarts={restarts} BatchFlag=1{asks}\n  ");
    job(site, id, "0", ("gpuos: mig=1g.10gb:1", &more));
}

fn held(site: &Site, id: u32) -> bool {
    site.slurm(&format!("jobs/{id}")).contains(" Priority=0 ")
}

#[test]
fn while_the_driver_is_away_jobs_are_held_and_not_ended_and_let_go_when_it_is_back() {
    let site = pool("");
    let mut daemon = start(&site);
    daemon.ready_pool();
    let count = |text: &str| site.slurm("log").matches(text).count();
    site.change(4, |gpu| gpu.driver_timeout = 1);
    // One that may go elsewhere is requeued at first, one that may not is held at once.
    for at in 0..4 {
        runs(&site, 7, at, false);
        let why = step(&daemon, 7, BATCH, ("1g.10gb", &[0])).unwrap_err();
        assert!(why.contains("GPU 4"), "{why}");
        site.until("the requeue", || {
            let told = site.log().matches("job 7 is requeued").count();
            (told == at as usize + 1).then_some(())
        });
        let [requeues, holds] = ["requeue ", "requeuehold "].map(count);
        assert_eq!(
            (requeues, holds),
            (at.min(2) as usize + 1, usize::from(at == 3))
        );
    }
    runs(&site, 8, 0, true);
    step(&daemon, 8, BATCH, ("1g.10gb", &[0])).unwrap_err();
    site.until("the hold", || held(&site, 8).then_some(()));
    assert_eq!(count("requeue "), 3);
    for id in [7, 8] {
        let record = site.slurm(&format!("jobs/{id}"));
        let said = record.contains("gpuos: held by node n1: it starts when");
        assert!(said && held(&site, id), "{record}");
    }
    // A gpuosd that is started anew knows them; while the driver is away they stay.
    daemon.kill();
    daemon = start(&site);
    daemon.ready_pool();
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!((count("release "), count("scancel")), (0, 0));
    site.change(4, |gpu| gpu.driver_timeout = 0);
    for id in [7, 8] {
        site.until("the job is let go", || (!held(&site, id)).then_some(()));
        site.until("its comment is gone", || {
            let record = site.slurm(&format!("jobs/{id}"));
            (!record.contains("held by")).then_some(())
        });
    }
    let soon = || count("update JobId=8 StartTime=now") > 0;
    site.until("a start soon", || soon().then_some(()));
    assert_eq!(count("scancel"), 0, "{}", site.slurm("log"));
    // It gets its instance then, and nothing lets it go once more.
    runs(&site, 8, 1, true);
    step(&daemon, 8, BATCH, ("1g.10gb", &[0])).unwrap();
    assert_eq!(count("release 8"), 1);
}

#[test]
fn what_an_administrator_holds_stays_held() {
    let site = pool("");
    let daemon = start(&site);
    daemon.ready_pool();
    site.change(4, |gpu| gpu.driver_timeout = 1);
    runs(&site, 8, 0, true);
    step(&daemon, 8, BATCH, ("1g.10gb", &[0])).unwrap_err();
    site.until("the hold", || held(&site, 8).then_some(()));
    // Taken over: the comment says so.
    let record = site.slurm("jobs/8");
    let at = record.find("   AdminComment=").unwrap();
    site.set_slurm(
        "jobs/8",
        &format!("{}   AdminComment=ask ann\n", &record[..at]),
    );
    site.change(4, |gpu| gpu.driver_timeout = 0);
    runs(&site, 9, 0, false);
    step(&daemon, 9, BATCH, ("1g.10gb", &[0])).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert!(site.slurm("jobs/8").contains("AdminComment=ask ann"));
    assert!(!site.slurm("log").contains("scontrol release"));
}

#[test]
fn a_gpuosd_that_starts_before_slurmctld_reads_its_pool_when_that_answers() {
    let site = pool("");
    let conf = site.path("slurm.conf").display().to_string();
    site.set_slurm("config", &format!("SLURM_CONF              = {conf}\n"));
    site.away(true);
    let daemon = start(&site);
    let says = |text: &str| {
        daemon
            .status()
            .daemon
            .troubles
            .iter()
            .any(|one| one.contains(text))
    };
    let missed = || says("where gpuos.toml is").then_some(());
    site.until("it misses gpuos.toml", missed);
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    site.away(false);
    let told = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert!(told["CUDA_VISIBLE_DEVICES"].starts_with("MIG-"), "{told:?}");
    // NVIDIA's library waited for it as well, as GPUs are in MIG mode.
    let over = || (!says("gpuos.toml")).then_some(());
    site.until("nothing misses gpuos.toml", over);
    // Nor does a reload without slurmctld forget what was read.
    site.away(true);
    daemon.ask(&Request::Reload).unwrap_err();
    let told = step(&daemon, 7, 0, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert!(told["CUDA_VISIBLE_DEVICES"].starts_with("MIG-"), "{told:?}");
}

#[test]
fn a_gpu_that_is_not_in_mig_mode_gets_no_instance() {
    let site = pool("");
    site.change(5, |gpu| gpu.mig = [0, 0]);
    let daemon = start(&site);
    job(&site, 8, "8", ("gpuos: mig=1g.10gb:1", ""));
    let why = step(&daemon, 8, BATCH, ("1g.10gb", &[8])).unwrap_err();
    assert!(why.contains("not in MIG mode"), "{why}");
    let troubles = daemon.status().daemon.troubles;
    assert!(
        troubles
            .iter()
            .any(|why| why.contains("nvidia-smi -i 5 -mig 1")),
        "{troubles:?}"
    );
    assert!(instances(&site, 5).is_empty());
}
