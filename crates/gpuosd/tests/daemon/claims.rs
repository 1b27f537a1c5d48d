//! Steps that name GPUs which their jobs have not, by variables of their environment. Only slurmctld's record counts.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuos_core::limits::{Asked, ClockRange, MpsRequest, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::Reply;

use crate::isolation::{audited, findings, of_job, record};
use crate::site::{Daemon, Site};

const BATCH: u32 = StepId::BATCH;

/// A job that runs here without GPUs.
fn job_without(site: &Site, id: u32) {
    site.job(id, "0");
    let text = site.slurm(&format!("jobs/{id}"));
    let (text, _) = text.split_once(" GRES=").unwrap();
    site.set_slurm(&format!("jobs/{id}"), &format!("{text} GRES=\n"));
}

fn cap(watts: u32) -> Asked {
    Asked {
        power: Some(PowerCap::Watts(watts)),
        ..Asked::default()
    }
}

/// All that root's daemon does to GPUs.
fn everything() -> Asked {
    Asked {
        clocks: Some(ClockRange {
            least: 1200,
            most: 1500,
        }),
        mps: Some(MpsRequest {
            percent: 50,
            gid: 1000,
            joint: false,
        }),
        watch_s: Some(1),
        ..cap(200)
    }
}

fn start(daemon: &Daemon, job: u32, step: u32, gpus: &[u8], asked: Asked) -> Vec<String> {
    match daemon.start_step(
        StepId {
            job: job.into(),
            step,
        },
        gpus,
        asked,
    ) {
        Reply::Prepared {
            notes, environment, ..
        } => {
            assert!(environment.is_empty(), "{environment:?}");
            notes
        }
        Reply::Done { .. } => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// What is set on each GPU: watts, and the range of clocks.
fn set(site: &Site) -> Vec<(u32, [u32; 2])> {
    let one = |gpu| {
        (
            site.gpu(gpu).power_limit_mw / 1000,
            site.gpu(gpu).clock_lock,
        )
    };
    (0..8).map(one).collect()
}

#[test]
fn nothing_is_done_to_gpus_that_slurm_has_not_given() {
    let site = Site::new();
    site.job(7, "2");
    site.job(10, "4");
    job_without(&site, 8);
    let daemon = site.start_with(&["--mps-command", "/bin/false"]);
    daemon.ready();
    assert!(start(&daemon, 7, BATCH, &[2], cap(300)).is_empty());
    let before = set(&site);
    let all: Vec<u8> = (0..8).collect();
    for step in [BATCH, 0] {
        let told = start(&daemon, 8, step, &all, everything());
        let why = "the environment names GPU 0,1,2,3,4,5,6,7, which Slurm has not given to this job here: nothing is done \
                   with it";
        assert_eq!(told, [why]);
    }
    // The job of that GPU keeps what it has set: nobody shares it.
    assert_eq!(set(&site), before);
    // A job with one GPU has that one, and no more.
    let told = start(&daemon, 10, 0, &all, cap(400));
    assert!(
        told[0].contains("names GPU 0,1,2,3,5,6,7, which"),
        "{told:?}"
    );
    let mut wanted = before;
    wanted[4].0 = 400;
    assert_eq!(set(&site), wanted);
    // A number that no GPU of the node has makes it no larger.
    start(&daemon, 8, 1, &[63], everything());
    start(&daemon, 8, 2, &[63], Asked::default());
    let status = daemon.status();
    assert_eq!(status.gpus.len(), 8);
    let jobs: Vec<_> = status.jobs.iter().map(|job| job.job.number()).collect();
    assert_eq!(jobs, [Some(7), Some(10)]);
    assert_eq!(status.gpus[2].jobs, [7.into()]);
    assert!(status.gpus[5].cap.is_none() && status.gpus[5].jobs.is_empty());
    assert!(!site.path("run/mps/8").exists());
    let told = || (audited(&site, "job 8: the environment names GPU 0,1") > 0).then_some(());
    site.until("the audit log", told);
}

/// So many lines one user may cause at most since then: sixty at once, and one every other second.
pub fn most_lines(since: Instant) -> usize {
    61 + since.elapsed().as_secs() as usize / 2
}

#[test]
fn lines_about_claims_of_one_user_do_not_fill_the_audit_log() {
    let site = Site::new();
    job_without(&site, 8);
    let daemon = site.start();
    daemon.ready();
    let begun = Instant::now();
    for step in 0..100 {
        start(&daemon, 8, step, &[3], cap(200));
    }
    let count = || audited(&site, "the environment names GPU 3");
    let lines = site.until("a line", || Some(count()).filter(|lines| *lines > 0));
    assert!(lines <= most_lines(begun), "{lines}");
}

#[test]
fn while_slurmctld_is_away_nothing_is_done_and_what_is_its_jobs_comes_later() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    let before = set(&site);
    // What it was told before that it would go by.
    let looked = || site.slurm("log").contains("squeue").then_some(());
    site.until("a look without jobs", looked);
    site.away(true);
    site.job(7, "2");
    job_without(&site, 8);
    for job in [7, 8] {
        let told = start(&daemon, job, BATCH, &[2, 3], cap(300));
        let why =
            "slurmctld does not say which GPUs this job has: power and clocks are set once it does";
        assert_eq!(told, [why]);
    }
    sleep(Duration::from_secs(2));
    assert_eq!(set(&site), before);
    assert!(daemon.status().jobs.is_empty());
    site.away(false);
    site.until("the job's own cap", || {
        (set(&site)[2].0 == 300).then_some(())
    });
    let mut wanted = before;
    wanted[2].0 = 300;
    assert_eq!(set(&site), wanted);
}

#[test]
fn a_slurmctld_that_answers_late_is_not_waited_for() {
    let site = Site::new();
    site.job(7, "2");
    let daemon = site.start_with(&["--answer-within", "1500"]);
    daemon.ready();
    site.until("a look", || daemon.status().jobs.first().map(|_| ()));
    job_without(&site, 8);
    site.job(9, "5");
    // Seconds for each of its commands.
    site.set_slurm("slow", "40");
    for job in [8, 9] {
        let asked = Instant::now();
        let told = start(&daemon, job, 0, &[5], cap(300));
        assert!(asked.elapsed().as_secs() < 35, "{:?}", asked.elapsed());
        assert!(told[0].contains("does not say which GPUs"), "{told:?}");
    }
    fs::remove_file(site.path("slurm/slow")).unwrap();
    site.until("its cap", || (set(&site)[5].0 == 300).then_some(()));
    assert_eq!(daemon.status().gpus[5].jobs, [9.into()]);
}

#[test]
fn a_job_on_a_claimed_gpu_is_treated_as_if_it_were_alone() {
    let site = Site::new();
    let rule = "[[health.rule]]\nname = \"hang\"\nhold = \"1s\"\n[isolation]\ngrace = \"1s\"\n";
    fs::write(site.path("gpuos.toml"), rule).unwrap();
    site.job(7, "3");
    site.job(9, "4");
    job_without(&site, 8);
    // The process of the one who claims it, on a GPU of nobody's.
    record(&site, 41, 1000, "python3", &of_job(8, "0"));
    site.compute(41, Some(6));
    let daemon = site.start_with(&["--proc", site.path("proc").to_str().unwrap()]);
    daemon.ready();
    let watch = Asked {
        watch_s: Some(1),
        ..Asked::default()
    };
    for step in [BATCH, 0] {
        start(&daemon, 8, step, &[3, 4, 6], watch);
    }
    let stranger = || {
        findings(&daemon)
            .into_iter()
            .find(|one| one.gpu.index() == 6)
    };
    let found = site.until("the stranger", stranger);
    let said = "process 41 (python3, uid 1000) of job 8 is on GPU 6, which no job holds";
    assert_eq!(found.message, said);
    let here = |job| daemon.status().jobs.iter().any(|one| one.job == job);
    site.until("jobs", || (here(7.into()) && here(9.into())).then_some(()));
    assert_eq!(daemon.status().gpus[3].jobs, [7.into()]);
    // A fault that names no process is that of the one job that is there; the other's is nobody's.
    site.fault(Some(3), "xid 48");
    site.fault(Some(6), "row-remap failure");
    let log = || site.slurm("log");
    site.until("requeue", || {
        log().contains("requeue incomplete 7").then_some(())
    });
    sleep(Duration::from_secs(3));
    let log = log();
    let others = ["incomplete 8", "incomplete 9", "scancel"];
    assert!(others.iter().all(|one| !log.contains(one)), "{log}");
}
