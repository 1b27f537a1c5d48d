//! A real gpuosd on a simulated NVIDIA library, with Slurm's commands as a script that remembers.

mod ahead;
mod as_user;
mod bpf;
mod checkpointed;
mod claims;
mod clear;
#[path = "../../../../tests/cuda/tests/common/mod.rs"]
#[allow(dead_code, reason = "the simulated driver's tests use all of it")]
mod common;
mod contained;
mod devices;
mod ends;
mod harm;
mod host;
mod isolation;
mod journal;
mod killed;
mod limits;
mod makespan;
mod memory;
mod memory_program;
mod mig;
mod mig_fails;
mod mig_health;
mod mig_killed;
mod mig_memory;
mod mig_switch;
mod mps;
mod mps_contained;
mod nvme;
mod partition;
mod pbs;
mod pbs_isolation;
mod pbs_share;
mod pooled;
#[path = "../../../../tests/src/port.rs"]
mod port;
mod pressure;
#[path = "../../../../tests/src/program.rs"]
mod program;
mod site;
mod turns;
mod unasked;
mod unit;
mod walls;

use gpuos_core::health::Verb;
use gpuos_core::step::StepId;
use gpuos_core::wire::{Reason, Reply, Request};
use gpuos_host::socket::ClientError;
use site::Site;

#[test]
fn a_fault_takes_one_gpu_out_and_the_log_tells_it() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    // A GPU without a job is checked at once: hold it, so that it stays out.
    site.fault(Some(5), "row-remap failure");
    let out = || site.slurm("extra").contains("out=5").then_some(());
    site.until("GPU 5 in Extra", out);
    assert!(
        site.slurm("extra").starts_with("rack=7 [gpuos:1"),
        "{}",
        site.slurm("extra")
    );
    let status = daemon.status();
    assert!(!status.gpus[5].faults.is_empty() && status.gpus[4].faults.is_empty());
    assert_eq!(site.slurm("state").trim(), "IDLE");
    let told = || match daemon
        .ask(&Request::Audit {
            lines: 50,
            job: None,
        })
        .unwrap()
    {
        Reply::Audit { lines } => lines
            .iter()
            .any(|line| line.contains("\"gpu\":5"))
            .then_some(()),
        other => panic!("{other:?}"),
    };
    site.until("the audit log", told);
}

#[test]
fn a_gpu_that_alone_does_not_answer_gets_jobs_last() {
    let site = Site::new();
    let rule = "[[health.rule]]\nname = \"silent\"\nhold = \"2s\"\n";
    std::fs::write(site.path("gpuos.toml"), rule).unwrap();
    site.job(7, "5");
    let daemon = site.start();
    daemon.ready();
    site.fault(Some(5), "driver-timeout");
    let last = || (site.slurm("extra") == "rack=7 [gpuos:1 degraded=5]").then_some(());
    site.until("GPU 5 in Extra", last);
    let faults = &daemon.status().gpus[5].faults;
    assert!(faults[0].message.contains("does not answer"), "{faults:?}");
    assert_eq!(daemon.status().daemon.troubles, Vec::<String>::new());
    let log = site.slurm("log");
    assert!(
        !log.contains("requeue") && !log.contains("scancel"),
        "{log}"
    );
}

/// gpuosd in a container: the kernel has no number for a client outside of it.
#[test]
fn a_client_outside_of_gpuosds_pid_namespace_is_served() {
    let site = Site::new();
    let mut command = std::process::Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        env!("CARGO_BIN_EXE_gpuosd"),
    ]);
    let mut daemon = site.start_under(command, &[]);
    let lives = site.until("gpuosd, or none", || {
        let socket = daemon.socket().exists();
        (socket || !daemon.lives()).then_some(socket)
    });
    if !lives {
        return eprintln!("skipped: no PID namespace can be made here: {}", site.log());
    }
    daemon.ready();
    assert!(daemon.admin(Verb::Drain, 2).contains("GPU 2"));
}

#[test]
fn administrators_take_gpus_out_and_bring_them_back() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    assert!(daemon.admin(Verb::Drain, 2).contains("GPU 2"));
    site.until("Extra", || {
        (site.slurm("extra") == "rack=7 [gpuos:1 out=2]").then_some(())
    });
    let wrong = Request::Admin {
        verb: Verb::Drain,
        gpus: vec![8u8.try_into().unwrap()],
        reason: String::new(),
        force: false,
    };
    match daemon.ask(&wrong) {
        Err(ClientError::Refused(why)) => assert!(why.contains("no GPU 8"), "{why}"),
        other => panic!("{other:?}"),
    }
    let said = daemon.admin(Verb::Online, 2);
    assert!(
        said.contains("comes back once a check has passed"),
        "{said}"
    );
    site.until("Extra without", || {
        (site.slurm("extra") == "rack=7").then_some(())
    });
    assert_eq!(daemon.state(2), "available");
}

#[test]
fn steps_are_known_by_report_and_what_they_have_by_slurm() {
    let site = Site::new();
    site.job(7, "0");
    let daemon = site.start();
    daemon.ready();
    let known = || {
        let jobs = daemon.status().jobs;
        jobs.iter()
            .any(|job| {
                job.job == 7.into()
                    && job.gpus.iter().all(|gpu| gpu.index() == 0)
                    && job.gpus.len() == 1
            })
            .then_some(())
    };
    site.until("job 7", known);
    site.job(8, "3");
    let id = StepId {
        job: 8.into(),
        step: 0,
    };
    let start = Request::StepStart {
        id: id.clone(),
        uid: 1000,
        gpus: vec![3],
        asked: gpuos_core::limits::Asked::default(),
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    };
    daemon.ask(&start).unwrap();
    site.until("job 8", || {
        (daemon.status().gpus[3].jobs == [8.into()]).then_some(())
    });
    assert_eq!(daemon.state(3), "allocated");
    let said = daemon.admin(Verb::Drain, 3);
    assert!(
        said.contains("job 8 still runs there and may finish"),
        "{said}"
    );
    daemon.admin(Verb::Online, 3);
    daemon.ask(&Request::StepEnd { id }).unwrap();
    std::fs::remove_file(site.path("slurm/jobs/8")).unwrap();
    site.until("its end", || {
        daemon.status().gpus[3].jobs.is_empty().then_some(())
    });
}

#[test]
fn a_job_on_a_gpu_that_fails_is_requeued_and_started_at_once() {
    let site = Site::new();
    site.job(7, "3");
    site.job(9, "4");
    let daemon = site.start();
    daemon.ready();
    site.until("jobs", || (daemon.status().jobs.len() == 2).then_some(()));
    site.fault(Some(3), "xid 48");
    let requeued = || {
        site.slurm("log")
            .contains("scontrol requeue incomplete 7")
            .then_some(())
    };
    site.until("requeue", requeued);
    let started = || {
        site.slurm("log")
            .contains("scontrol update JobId=7 StartTime=now")
            .then_some(())
    };
    site.until("StartTime", started);
    let log = site.slurm("log");
    let at = |text: &str| {
        log.find(text)
            .unwrap_or_else(|| panic!("{text} is not in\n{log}"))
    };
    // slurmctld knows that the GPU is out before the job can come back.
    assert!(at("out=3") < at("scontrol requeue incomplete 7"), "{log}");
    assert!(
        !log.contains("requeue incomplete 9") && !log.contains("scancel"),
        "{log}"
    );
}

#[test]
fn a_wrong_gpuos_toml_is_refused_and_a_good_one_is_taken() {
    let site = Site::new();
    let daemon = site.start();
    daemon.ready();
    std::fs::write(
        site.path("gpuos.toml"),
        "[health]\nreturns = 3\nretruns = 4\n",
    )
    .unwrap();
    match daemon.ask(&Request::Reload) {
        Err(ClientError::Refused(why)) => assert!(why.contains("retruns"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(daemon.status().daemon.troubles.len(), 1);
    std::fs::write(site.path("gpuos.toml"), "[health]\nreturns = 3\n").unwrap();
    assert!(matches!(
        daemon.ask(&Request::Reload),
        Ok(Reply::Done { .. })
    ));
    assert_eq!(daemon.status().daemon.troubles, Vec::<String>::new());
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_collector_for_a_gpuosd_without_traces_is_a_trouble() {
    let site = Site::new();
    let text = "[metrics]\ntraces = \"http://127.0.0.1:4318\"\n";
    std::fs::write(site.path("gpuos.toml"), text).unwrap();
    let daemon = site.start();
    let trouble = site.until("the trouble", || {
        let troubles = daemon.status().daemon.troubles;
        troubles.into_iter().find(|why| why.contains("traces"))
    });
    assert!(trouble.contains("--features otel"), "{trouble}");
}
