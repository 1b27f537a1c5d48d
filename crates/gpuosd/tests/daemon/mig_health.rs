//! GPUs of a pool under the health rules: one that fails goes out alone, with the jobs that have slices on it, and is reset
//! when nothing is left on it.

use std::fs;

use gpuos_core::health::Verb;
use gpuos_core::wire::{GpuStatus, Reply, Request};
use gpuos_host::socket::ClientError;
use gpuos_model::node_gpu::NodeGpu;

use crate::mig::{
    BATCH, G1, G3, by_hand, end, flags, gone, instances, job, pool, status, step, until_empty,
};
use crate::site::{Daemon, Site};

fn start<'a>(site: &'a Site, reset: &str) -> Daemon<'a> {
    let conf = site.path("gpuos.toml");
    let text = fs::read_to_string(&conf).unwrap();
    if !text.contains("[health]") {
        fs::write(conf, format!("[health]\nsettle = \"1s\"\n{text}")).unwrap();
    }
    let flags = flags(site);
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--reset-command", reset]);
    let daemon = site.start_with(&flags);
    let all = || {
        let gpus = daemon.status().gpus;
        let named = gpus.iter().filter(|gpu| !gpu.uuid.is_empty());
        (named.count() == 8).then_some(())
    };
    site.until("six GPUs and two of the pool", all);
    daemon
}

fn of(daemon: &Daemon, nvml: u8) -> GpuStatus {
    let number = NodeGpu::Pool(nvml.try_into().unwrap());
    let mut gpus = daemon.status().gpus.into_iter();
    gpus.find(|gpu| gpu.index == number).unwrap()
}

fn until_state(site: &Site, daemon: &Daemon, nvml: u8, state: &str) {
    site.until(&format!("GPU {nvml} {state}"), || {
        (of(daemon, nvml).state == state).then_some(())
    });
}

fn until_extra(site: &Site, extra: &str) {
    site.until(extra, || (site.slurm("extra") == extra).then_some(()));
}

fn until_logged(site: &Site, text: &str) {
    site.until(text, || site.slurm("log").contains(text).then_some(()));
}

#[test]
fn a_gpu_of_the_pool_fails_alone_and_comes_back_after_a_reset_without_instances() {
    let site = pool("");
    let daemon = start(&site, &site.resets());
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    job(&site, 8, "8", ("gpuos: mig=1g.10gb:1", ""));
    step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    step(&daemon, 8, BATCH, ("1g.10gb", &[8])).unwrap();
    // One of nobody beside them.
    by_hand(&site, 4, G1, 4);
    until_jobs(&site, &daemon);
    site.fault(Some(4), "xid 48");
    until_logged(&site, "scontrol requeue incomplete 7");
    let log = site.slurm("log");
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}\n{log}"));
    assert!(at("mig-out=4") < at("scontrol requeue incomplete 7"));
    assert_eq!(site.slurm("extra"), "rack=7 [gpuos:1 mig-out=4]");
    // A job that slurmctld put there before it knew.
    job(
        &site,
        9,
        "5",
        ("gpuos: mig=1g.10gb:1", "Requeue=0 Restarts=0"),
    );
    let why = step(&daemon, 9, 0, ("1g.10gb", &[5])).unwrap_err();
    assert!(
        why.contains("GPU 4 is out of service (draining): ")
            && (why.contains("Xid 48") || why.contains("gpu-reset")),
        "{why}"
    );
    let trouble = status(&daemon).gpus[0].trouble.clone().unwrap_or_default();
    assert!(trouble.contains("is out of service"), "{trouble}");
    end(&daemon, 9, 0);
    gone(&site, 9);
    end(&daemon, 7, BATCH);
    gone(&site, 7);
    site.until("the instance of nobody alone", || {
        (instances(&site, 4) == [(G1, 4, true)]).then_some(())
    });
    until_state(&site, &daemon, 4, "drained");
    // As long as gpuosd sees it, nothing is reset.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(site.slurm("resets"), "");
    assert_eq!(of(&daemon, 4).state, "drained");
    site.change(4, |gpu| gpu.instances = Default::default());
    until_empty(&site, 4);
    site.until("the reset", || {
        site.mend();
        (of(&daemon, 4).state == "available").then_some(())
    });
    assert!(site.slurm("resets").starts_with("reset 4:"));
    until_extra(&site, "rack=7");
    // The other GPU has worked on, and this one works again.
    assert_eq!(instances(&site, 5), [(G1, 0, true)]);
    job(&site, 10, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 10, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
    let log = site.slurm("log");
    assert!(
        !log.contains("requeue incomplete 8") && !log.contains("scancel") && !log.contains("DRAIN"),
        "{log}"
    );
}

/// Waits until the rules know jobs 7 and 8.
fn until_jobs(site: &Site, daemon: &Daemon) {
    let known =
        || (of(daemon, 4).jobs == [7.into()] && of(daemon, 5).jobs == [8.into()]).then_some(());
    site.until("who has slices", known);
}

#[test]
fn an_xid_of_an_instance_ends_its_job_and_no_other() {
    let site = pool("");
    let daemon = start(&site, "true");
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    job(&site, 8, "4-7,8", ("gpuos: mig=3g.40gb:1,1g.10gb:1", ""));
    step(&daemon, 7, 0, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    step(&daemon, 8, 0, ("3g.40gb:1,1g.10gb:1", &[4, 5, 6, 7, 8])).unwrap();
    let known = || (of(&daemon, 4).jobs == [7.into(), 8.into()]).then_some(());
    site.until("who has slices", known);
    // GPU instance 1 is the first half. An error of a program of nobody's instance, and one that names none.
    site.fault(Some(4), "xid 31 6/0");
    site.fault(Some(4), "xid 13");
    site.fault(Some(4), "xid 31 1/0");
    until_logged(&site, "scancel 7.0");
    site.fault(Some(5), "xid 43");
    let noted = || {
        let lines = match daemon
            .ask(&Request::Audit {
                lines: 100,
                job: None,
            })
            .unwrap()
        {
            Reply::Audit { lines } => lines.join("\n"),
            other => panic!("{other:?}"),
        };
        lines.contains("Xid 43").then_some(())
    };
    site.until("the last one", noted);
    let log = site.slurm("log");
    assert!(
        !log.contains("scancel 8") && !log.contains("requeue") && !log.contains("out="),
        "{log}"
    );
    assert_eq!(instances(&site, 4).len(), 2);
    assert_eq!(of(&daemon, 4).state, "allocated");
}

#[test]
fn administrators_name_a_gpu_of_the_pool_and_a_reset_that_ends_mig_mode_brings_nothing_back() {
    let site = pool("");
    let daemon = start(&site, &site.resets());
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    job(&site, 8, "8", ("gpuos: mig=1g.10gb:1", ""));
    step(&daemon, 8, BATCH, ("1g.10gb", &[8])).unwrap();
    until_jobs(&site, &daemon);
    let wrong = Request::Admin {
        verb: Verb::Drain,
        gpus: vec!["mig6".parse().unwrap()],
        reason: String::new(),
        force: false,
    };
    match daemon.ask(&wrong) {
        Err(ClientError::Refused(why)) => assert!(
            why.contains("no GPU mig6") && why.contains("in its pool mig4, mig5"),
            "{why}"
        ),
        other => panic!("{other:?}"),
    }
    let mig4 = u8::from(NodeGpu::Pool(4u8.try_into().unwrap()));
    let said = daemon.admin(Verb::Drain, mig4);
    assert!(
        said.contains("GPU mig4 draining; job 7 still runs there"),
        "{said}"
    );
    until_extra(&site, "rack=7 [gpuos:1 mig-out=4]");
    // It runs out, its next step with it.
    step(&daemon, 7, 0, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    daemon.kill();
    let daemon = start(&site, &site.resets());
    assert_eq!(of(&daemon, 4).state, "draining");
    daemon.admin(Verb::Online, mig4);
    until_extra(&site, "rack=7");
    assert!(!site.slurm("log").contains("requeue") && !site.slurm("log").contains("scancel"));
    end(&daemon, 7, 0);
    end(&daemon, 7, BATCH);
    gone(&site, 7);
    until_empty(&site, 4);
    site.change(4, |gpu| gpu.mig = [1, 0]);
    site.fault(Some(4), "xid 48");
    site.until("why it does not come back", || {
        site.mend();
        site.log().contains("it is not in MIG mode").then_some(())
    });
    assert_eq!(site.slurm("extra"), "rack=7 [gpuos:1 mig-out=4]");
    assert_eq!(instances(&site, 5), [(G1, 0, true)]);
}

/// Else a fault of a GPU of the pool would be taken for one of another GPU, which is well.
#[test]
fn with_a_gpuos_toml_that_cannot_be_read_the_pool_of_before_counts() {
    let site = pool("");
    let daemon = start(&site, "true");
    daemon.kill();
    fs::write(site.path("gpuos.toml"), "[health]\nretruns = 4\n").unwrap();
    // Slurm's GPU 4 is NVML's 6.
    site.job(7, "4");
    let daemon = start(&site, "true");
    site.until("job 7", || {
        (daemon.status().gpus[4].jobs == [7.into()]).then_some(())
    });
    site.fault(Some(4), "xid 48");
    until_extra(&site, "rack=7 [gpuos:1 mig-out=4]");
    let troubles = daemon.status().daemon.troubles;
    assert!(
        troubles.iter().any(|why| why.contains("retruns")),
        "{troubles:?}"
    );
    assert!(!site.slurm("log").contains("requeue"));
}
