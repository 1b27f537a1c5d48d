//! Power caps and clocks of jobs: set with the first step, undone when the job is gone, whatever happens in
//! between.

use gpuos_core::limits::{Asked, ClockRange, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::{Reply, Request};

use crate::site::{Daemon, Site};

const BATCH: u32 = StepId::BATCH;

fn cap(watts: u32) -> Asked {
    Asked {
        power: Some(PowerCap::Watts(watts)),
        ..Asked::default()
    }
}

/// Starts a step; what its user is told.
fn start(daemon: &Daemon, job: u32, step: u32, gpus: &[u8], asked: Asked) -> Vec<String> {
    match daemon.start_step(
        StepId {
            job: job.into(),
            step,
        },
        gpus,
        asked,
    ) {
        Reply::Prepared { notes, .. } => notes,
        Reply::Done { .. } => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn end(daemon: &Daemon, job: u32, step: u32) {
    let id = StepId {
        job: job.into(),
        step,
    };
    daemon.ask(&Request::StepEnd { id }).unwrap();
}

fn watts(site: &Site, gpu: usize) -> u32 {
    site.gpu(gpu).power_limit_mw / 1000
}

fn until_watts(site: &Site, gpu: usize, wanted: u32) {
    let there = || (watts(site, gpu) == wanted).then_some(());
    site.until(&format!("GPU {gpu} at {wanted} W"), there);
}

fn audited(daemon: &Daemon, text: &str) -> bool {
    match daemon
        .ask(&Request::Audit {
            lines: 200,
            job: None,
        })
        .unwrap()
    {
        Reply::Audit { lines } => lines.iter().any(|line| line.contains(text)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_jobs_gpus_are_set_before_its_step_goes_on_and_come_back() {
    let site = Site::new();
    site.change(1, |gpu| gpu.power_limit_mw = 600_000);
    for (job, gpus) in [(7, "0-1"), (8, "2"), (9, "3"), (10, "4-5")] {
        site.job(job, gpus);
    }
    let daemon = site.start();
    daemon.ready();
    let asked = Asked {
        clocks: Some(ClockRange {
            least: 1200,
            most: 1500,
        }),
        ..cap(300)
    };
    assert_eq!(
        start(&daemon, 7, BATCH, &[0, 1], asked),
        Vec::<String>::new()
    );
    // The answer comes when it is done.
    assert_eq!(
        (watts(&site, 0), watts(&site, 1), watts(&site, 2)),
        (300, 300, 700)
    );
    assert_eq!(site.gpu(0).clock_lock, [1200, 1500]);
    let shown = daemon.status().gpus[0].cap.clone().unwrap();
    assert_eq!(
        (shown.job, &shown.text[..]),
        (7.into(), "300 W, clocks 1200-1500 MHz")
    );
    // A neighbour that asks for nothing, and one that asks for too little.
    start(&daemon, 8, 0, &[2], Asked::default());
    let told = start(&daemon, 9, BATCH, &[3], cap(10));
    let moved = "GPU 3: 200 W is set for --gpuos-power=10W: the board takes 200 W to 700 W";
    assert_eq!(told, [moved]);
    let fast = ClockRange {
        least: 100,
        most: 9000,
    };
    let fast = Asked {
        clocks: Some(fast),
        ..Asked::default()
    };
    let told = start(&daemon, 10, BATCH, &[4, 5], fast);
    let moved = "GPUs 4,5: 345-1980 MHz is set for --gpuos-clocks=100-9000: the board takes 345 MHz to 1980 MHz";
    assert_eq!(told, [moved]);
    assert_eq!(site.gpu(4).clock_lock, [345, 1980]);
    assert_eq!((watts(&site, 2), watts(&site, 3)), (700, 200));
    end(&daemon, 7, BATCH);
    until_watts(&site, 0, 700);
    until_watts(&site, 1, 600);
    site.until("clocks", || {
        (site.gpu(0).clock_lock == [0, 0]).then_some(())
    });
    assert_eq!(watts(&site, 3), 200);
    site.until("the audit log", || {
        audited(
            &daemon,
            "job 7 is done with it: 600 W, unlocked clocks again",
        )
        .then_some(())
    });
    assert!(audited(
        &daemon,
        "job 7 has 300 W, clocks 1200-1500 MHz (before: 700 W)"
    ));
    assert_eq!(daemon.status().gpus[0].cap, None);
}

#[test]
fn a_job_between_two_steps_keeps_its_cap_until_slurm_says_that_it_is_gone() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    site.job(7, "4");
    start(&daemon, 7, 0, &[4], cap(300));
    end(&daemon, 7, 0);
    start(&daemon, 7, 1, &[4], cap(300));
    assert_eq!(watts(&site, 4), 300);
    end(&daemon, 7, 1);
    std::fs::remove_file(site.path("slurm/jobs/7")).unwrap();
    until_watts(&site, 4, 700);
}

#[test]
fn kill_9_forgets_no_cap() {
    let site = Site::new();
    site.job(7, "0");
    site.job(8, "1");
    let daemon = site.start();
    daemon.ready();
    start(&daemon, 7, BATCH, &[0], cap(300));
    start(&daemon, 8, BATCH, &[1], cap(400));
    daemon.kill();
    // Job 7 ends and GPU 1 is reset while nobody looks; job 8 goes on.
    std::fs::remove_file(site.path("slurm/jobs/7")).unwrap();
    site.change(1, |gpu| gpu.power_limit_mw = 700_000);
    let daemon = site.start();
    daemon.ready();
    until_watts(&site, 0, 700);
    until_watts(&site, 1, 400);
    end(&daemon, 8, BATCH);
    until_watts(&site, 1, 700);
    // A daemon that is killed between the end of a job and what follows.
    site.job(9, "2");
    start(&daemon, 9, BATCH, &[2], cap(300));
    std::fs::remove_file(site.path("slurm/jobs/9")).unwrap();
    end(&daemon, 9, BATCH);
    daemon.kill();
    let daemon = site.start();
    daemon.ready();
    until_watts(&site, 2, 700);
}

#[test]
fn whole_gpus_only_and_an_administrators_word_is_noticed() {
    let site = Site::new();
    for (job, gpus) in [(7, "0"), (8, "5"), (9, "6")] {
        site.job(job, gpus);
    }
    let daemon = site.start();
    daemon.ready();
    let share = Asked {
        shared: true,
        ..cap(300)
    };
    let told = start(&daemon, 7, BATCH, &[0], share);
    assert!(
        told[0].contains("GPU 0: it is shared with other jobs"),
        "{told:?}"
    );
    site.change(5, |gpu| gpu.mig = [1, 1]);
    let told = start(&daemon, 8, BATCH, &[5], cap(300));
    assert!(told[0].contains("divided into MIG instances"), "{told:?}");
    start(&daemon, 9, BATCH, &[6], cap(300));
    site.change(6, |gpu| gpu.power_limit_mw = 450_000);
    site.until("the audit log", || {
        audited(
            &daemon,
            "somebody has set a power limit of 450 W over the 300 W of job 9",
        )
        .then_some(())
    });
    assert_eq!(watts(&site, 6), 450);
    end(&daemon, 9, BATCH);
    until_watts(&site, 6, 700);
    assert_eq!((watts(&site, 0), watts(&site, 5)), (700, 700));
}

#[test]
fn a_watched_job_that_does_not_compute_is_requeued_and_others_are_left() {
    let site = Site::new();
    let rule = "[[health.rule]]\nname = \"hang\"\nhold = \"1h\"\n";
    std::fs::write(site.path("gpuos.toml"), rule).unwrap();
    for (job, gpus) in [(7, "0-1"), (8, "2-3"), (9, "4")] {
        site.job(job, gpus);
    }
    let daemon = site.start();
    daemon.ready();
    let watch = Asked {
        watch_s: Some(3),
        ..Asked::default()
    };
    // One GPU of job 8 computes.
    site.change(3, |gpu| {
        (gpu.processes[0].pid, gpu.processes[0].load) = (4711, 90)
    });
    start(&daemon, 7, BATCH, &[0, 1], watch);
    start(&daemon, 8, BATCH, &[2, 3], watch);
    start(&daemon, 9, BATCH, &[4], Asked::default());
    site.until("requeue", || {
        site.slurm("log")
            .contains("scontrol requeue incomplete 7")
            .then_some(())
    });
    let why = "a job that asked to be watched does not compute";
    site.until("the audit log", || audited(&daemon, why).then_some(()));
    // Job 8 has been idle on one GPU for as long by now, and job 9 altogether.
    let log = site.slurm("log");
    assert!(
        !log.contains("requeue incomplete 8") && !log.contains("requeue incomplete 9"),
        "{log}"
    );
    // The wish outlives the daemon.
    daemon.kill();
    let daemon = site.start();
    daemon.ready();
    site.change(3, |gpu| gpu.processes[0].pid = 0);
    site.until("requeue", || {
        site.slurm("log")
            .contains("scontrol requeue incomplete 8")
            .then_some(())
    });
    assert!(!site.slurm("log").contains("requeue incomplete 9"));
}
