//! MIG-switchable GPUs, which are in GRES `gpu` and in GRES `gpuos`: whole for one job, divided for the next, whenever gpuosd dies between.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpuos_core::limits::{Asked, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::{MigGpuStatus, Reason, Request};
use gpuos_host::socket::ClientError;

use crate::isolation::{Ends, findings, of_job, record};
use crate::mig::{
    BATCH, G1, G3, by_hand, end, flags, gone, instances, job, pool, pool_of, request, start,
    start_slow, status, step, told,
};
use crate::site::{Daemon, Site};

/// Number in GRES gpu of GPU 5, which is MIG-switchable beside GPU 4, which is not.
const SWITCHABLE: u8 = 4;

/// GPU 5 is MIG-switchable, and is whole.
fn site(kind: &str, head: &str) -> Site {
    let site = pool_of(kind, head);
    site.change(5, |gpu| gpu.mig = [0, 0]);
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    let conf = conf.replace("gpus = \"4-5\"", "gpus = \"4-5\"\nswitchable = \"5\"");
    fs::write(site.path("gpuos.toml"), conf).unwrap();
    site
}

fn whole(job: u32, number: u32) -> Request {
    Request::StepStart {
        id: StepId {
            job: job.into(),
            step: number,
        },
        uid: 1000,
        gpus: vec![SWITCHABLE],
        asked: Asked::default(),
        mig: None,
        switchable: true,
        memory: None,
        reason: Reason::Devices,
    }
}

/// What a step with the whole GPU is told.
fn step_whole(daemon: &Daemon, job: u32) -> Result<BTreeMap<String, String>, String> {
    match daemon.ask(&whole(job, BATCH)) {
        Err(ClientError::Refused(why)) => Err(why),
        answer => told(answer.unwrap()),
    }
}

/// Slices 8 to 15 are those of GPU 5.
fn step_slices(daemon: &Daemon, job: u32) -> Result<BTreeMap<String, String>, String> {
    step(daemon, job, BATCH, ("3g.40gb", &[8, 9, 10, 11]))
}

fn job_slices(site: &Site, id: u32) {
    job(site, id, "8-11", ("gpuos: mig=3g.40gb:1", ""));
}

fn over(site: &Site, daemon: &Daemon, job: u32) {
    gone(site, job);
    end(daemon, job, BATCH);
}

fn of_5(daemon: &Daemon) -> MigGpuStatus {
    let mut gpus = status(daemon).gpus.into_iter();
    let gpu = gpus.find(|gpu| gpu.gpu.index() == 5);
    gpu.unwrap_or_else(|| MigGpuStatus::new(5u8.try_into().unwrap()))
}

fn until_requeued(site: &Site, job: u32) {
    let text = format!("scontrol requeue incomplete {job}");
    site.until(&text, || site.slurm("log").contains(&text).then_some(()));
}

#[test]
fn a_gpu_serves_a_whole_job_then_slices_then_a_whole_job() {
    let site = site("dgx-h100", "");
    let daemon = start(&site);
    let file = || fs::read_to_string(site.path("run/gpuosd.sock.switchable")).ok();
    assert_eq!(site.until("the list of MIG-switchable GPUs", file), "4\n");
    // It is whole: nothing is to be done.
    site.job(7, "4");
    assert_eq!(step_whole(&daemon, 7), Ok(BTreeMap::new()));
    let seen = || Some(of_5(&daemon)).filter(|gpu| gpu.holder == Some(7.into()));
    let gpu = site.until("who has it whole", seen);
    assert_eq!((gpu.switchable, gpu.whole, gpu.trouble), (true, true, None));
    assert!(gpu.free.is_empty());
    // As long as that job has it, nobody else gets a part.
    job_slices(&site, 8);
    let why = step_slices(&daemon, 8).unwrap_err();
    assert_eq!(why, "GPU 5 cannot be divided: job 7 has it whole");
    until_requeued(&site, 8);
    assert_eq!(site.gpu(5).mig, [0, 0]);
    end(&daemon, 8, BATCH);
    gone(&site, 8);
    over(&site, &daemon, 7);
    job_slices(&site, 9);
    let own = step_slices(&daemon, 9).unwrap();
    assert_eq!(own["GPUOS_MIG_PLACEMENTS"], "5:0-3");
    assert_eq!(instances(&site, 5), [(G3, 0, true)]);
    let gpu = of_5(&daemon);
    assert_eq!((gpu.switchable, gpu.whole, gpu.holder), (true, false, None));
    // The other way round.
    site.job(10, "4");
    let why = step_whole(&daemon, 10).unwrap_err();
    assert_eq!(why, "GPU 5 cannot be whole: job 9 has slices of it");
    until_requeued(&site, 10);
    assert_eq!(instances(&site, 5), [(G3, 0, true)]);
    end(&daemon, 10, BATCH);
    gone(&site, 10);
    over(&site, &daemon, 9);
    // The next one comes before gpuosd knows that job 9 is gone, and wants less power.
    site.job(11, "4");
    let mut asks = whole(11, BATCH);
    if let Request::StepStart { asked, .. } = &mut asks {
        asked.power = Some(PowerCap::Watts(300));
    }
    assert_eq!(told(daemon.ask(&asks).unwrap()), Ok(BTreeMap::new()));
    assert_eq!(site.gpu(5).power_limit_mw, 300_000);
    assert_eq!(site.gpu(5).mig, [0, 0]);
    assert!(instances(&site, 5).is_empty());
    // The next one waits for one that ends, and that slurmctld has still on the GPU.
    let ends = site.slurm("jobs/11").replace("=RUNNING", "=COMPLETING");
    site.set_slurm("jobs/11", &ends);
    end(&daemon, 11, BATCH);
    job_slices(&site, 12);
    let mut client = daemon.client();
    let asks = request(12, BATCH, "3g.40gb", &[8, 9, 10, 11]);
    let made = thread::spawn(move || told(client.ask(&asks).unwrap()));
    thread::sleep(Duration::from_secs(2));
    assert_eq!(site.gpu(5).mig, [0, 0]);
    gone(&site, 11);
    made.join().unwrap().unwrap();
    // One that says that it has the GPU is not believed, once something is to be done for it.
    site.job(13, "3");
    let why = step_whole(&daemon, 13).unwrap_err();
    assert!(why.contains("Slurm has not given"), "{why}");
    assert_eq!(instances(&site, 5), [(G3, 0, true)]);
    assert_eq!(daemon.status().daemon.troubles, Vec::<String>::new());
    // Without MIG-switchable GPUs there is no list.
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    fs::write(
        site.path("gpuos.toml"),
        conf.replace("switchable = \"5\"", ""),
    )
    .unwrap();
    daemon.ask(&Request::Reload).unwrap();
    assert_eq!(file(), None);
}

/// Slurm gives both of a GPU to a job with whole nodes.
#[test]
fn a_gpu_of_which_a_job_has_all_is_whole_for_it() {
    let site = site("dgx-h100", "");
    site.change(5, |gpu| gpu.mig = [1, 1]);
    let daemon = start(&site);
    site.job(7, "4)gpuos:h100-80gb:16(IDX:0-15");
    let text = site.slurm("jobs/7").replace(")gpuos", "),gpuos");
    site.set_slurm("jobs/7", &text);
    let asks = |request: &str, step, slices: Range<u8>| {
        let mut asks = crate::mig::request(7, step, request, &slices.collect::<Vec<_>>());
        if let Request::StepStart {
            gpus, switchable, ..
        } = &mut asks
        {
            (*gpus, *switchable) = (vec![SWITCHABLE], true);
        }
        asks
    };
    let tell = |asks: Request| told(daemon.ask(&asks).unwrap());
    assert_eq!(tell(asks("", BATCH, 0..16)), Ok(BTreeMap::new()));
    assert_eq!(site.gpu(5).mig, [0, 0]);
    // Of the slices of GPU 4, for which nobody asked, nothing is made.
    assert_eq!(tell(asks("", 0, 0..8)), Ok(BTreeMap::new()));
    assert!(instances(&site, 4).is_empty());
    // A step that asks for some later does not run without.
    let why = step(&daemon, 7, 1, ("3g.40gb", &[0, 1, 2, 3])).unwrap_err();
    assert!(why.contains("asked for no instances"), "{why}");
    assert!(!site.slurm("log").contains("scancel"));
}

#[test]
fn a_job_keeps_its_instances_where_another_gpu_leaves_the_list() {
    let site = site("dgx-h100", "");
    let daemon = start(&site);
    // All of the node: GPU 4 divided as it asked, GPU 5 whole.
    site.job(7, "4)gpuos:h100-80gb:16(IDX:0-15");
    let text = site.slurm("jobs/7").replace(")gpuos", "),gpuos");
    let note = "   SystemComment=gpuos: mig=7g.80gb:1\n";
    site.set_slurm("jobs/7", &format!("{text}{note}"));
    let all: Vec<u8> = (0..8).collect();
    step(&daemon, 7, BATCH, ("7g.80gb", &all)).unwrap();
    let made = instances(&site, 4);
    assert_eq!(made.len(), 1);
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    fs::write(
        site.path("gpuos.toml"),
        conf.replace("switchable = \"5\"", ""),
    )
    .unwrap();
    daemon.ask(&Request::Reload).unwrap();
    // Slurm is asked anew for a batch script that is told again.
    step(&daemon, 7, BATCH, ("7g.80gb", &all)).unwrap();
    assert_eq!(instances(&site, 4), made);
    let audit = site.until("the audit log", || {
        let audit = fs::read_to_string(site.path("state/audit.jsonl")).ok();
        audit.filter(|audit| audit.contains("job 7"))
    });
    assert!(!audit.contains("no longer"), "{audit}");
}

#[test]
fn neither_the_list_nor_gpuos_toml_keeps_gpuosd_from_its_work() {
    let site = site("dgx-h100", "");
    let list = site.path("run/gpuosd.sock.switchable");
    fs::create_dir_all(list.join("in-the-way")).unwrap();
    let daemon = start(&site);
    let why = "which GPUs are MIG-switchable";
    let of_it = |troubles: Vec<String>| troubles.iter().any(|one| one.contains(why));
    site.until("the trouble", || {
        of_it(daemon.status().daemon.troubles).then_some(())
    });
    assert!(of_5(&daemon).switchable);
    fs::remove_dir_all(&list).unwrap();
    daemon.ask(&Request::Reload).unwrap();
    assert_eq!(fs::read_to_string(&list).unwrap(), "4\n");
    assert_eq!(daemon.status().daemon.troubles, Vec::<String>::new());
    daemon.kill();
    // What is whole, whole jobs may have, also where nobody can read what is MIG-switchable now.
    fs::write(site.path("gpuos.toml"), "[mig").unwrap();
    let daemon = start(&site);
    site.job(7, "4");
    assert_eq!(step_whole(&daemon, 7), Ok(BTreeMap::new()));
}

#[test]
fn a_later_step_finds_all_as_it_was() {
    let site = site("dgx-h100", "");
    let daemon = start(&site);
    site.job(7, "4");
    let step = |number| {
        let mut asks = whole(7, number);
        if let Request::StepStart { asked, .. } = &mut asks {
            asked.power = Some(PowerCap::Watts(300));
        }
        assert_eq!(told(daemon.ask(&asks).unwrap()), Ok(BTreeMap::new()));
        assert_eq!(site.gpu(5).power_limit_mw, 300_000);
    };
    let audit = || fs::read_to_string(site.path("state/audit.jsonl")).unwrap_or_default();
    let set = || audit().lines().filter(|line| line.contains(" W")).count();
    // Between two steps of salloc nothing is undone.
    step(0);
    let at_first = site.until("the audit log", || Some(set()).filter(|lines| *lines > 0));
    end(&daemon, 7, 0);
    step(1);
    // One beside another waits for no look at the GPU.
    site.fault(Some(5), "hang 3600");
    step(2);
    assert_eq!(set(), at_first, "{}", audit());
}

#[test]
fn who_uses_the_gpu_keeps_its_mode_and_is_named() {
    let site = site("dgx-h100", "");
    let mut guest = Ends(Command::new("sleep").arg("1000").spawn().unwrap());
    site.compute(guest.0.id(), Some(5));
    let daemon = start(&site);
    job_slices(&site, 7);
    let why = step_slices(&daemon, 7).unwrap_err();
    let named = format!("process {} (sleep) of user", guest.0.id());
    assert!(
        why.contains("cannot be turned on") && why.contains(&named),
        "{why}"
    );
    until_requeued(&site, 7);
    assert_eq!(site.gpu(5).mig, [0, 0]);
    assert!(guest.0.try_wait().unwrap().is_none());
    site.compute(guest.0.id(), None);
    // An instance of nobody is left, and the GPU with it.
    site.change(5, |gpu| gpu.mig = [1, 1]);
    by_hand(&site, 5, G1, 2);
    site.job(8, "4");
    let why = step_whole(&daemon, 8).unwrap_err();
    assert!(
        why.contains("GPU instance 9") && why.contains("by nobody"),
        "{why}"
    );
    until_requeued(&site, 8);
    assert_eq!(instances(&site, 5), [(G1, 2, true)]);
}

#[test]
fn a_gpu_that_changes_with_a_reset_only_is_to_be_kept_out_of_the_list() {
    let site = site("dgx-a100", "");
    let daemon = start(&site);
    job_slices(&site, 7);
    let why = step_slices(&daemon, 7).unwrap_err();
    assert!(
        why.contains("GPU 5") && why.contains("out of `switchable`"),
        "{why}"
    );
    until_requeued(&site, 7);
    assert_eq!(site.gpu(5).mig, [0, 0]);
}

#[test]
fn a_gpu_that_moves_fails_under_its_number_in_gres_gpu_with_the_jobs_on_its_slices() {
    let site = site("dgx-h100", "");
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    let head = "[health]\nsettle = \"1s\"\n[isolation]\ngrace = \"1s\"\n";
    fs::write(site.path("gpuos.toml"), format!("{head}{conf}")).unwrap();
    record(&site, 41, 1000, "python3", &of_job(7, "batch"));
    let flags = flags(&site);
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (proc, resets) = (site.path("proc"), site.resets());
    flags.extend(["--proc", proc.to_str().unwrap(), "--reset-command", &resets]);
    let daemon = site.start_with(&flags);
    job_slices(&site, 7);
    step_slices(&daemon, 7).unwrap();
    site.until("who has slices of it", || {
        let gpus = daemon.status().gpus;
        let gpu = gpus.get(usize::from(SWITCHABLE));
        gpu.is_some_and(|gpu| gpu.jobs == [7.into()]).then_some(())
    });
    assert!(
        daemon
            .status()
            .gpus
            .iter()
            .all(|gpu| gpu.index.to_string() != "mig5")
    );
    // Its process is at home there.
    site.change(5, |gpu| {
        gpu.processes[0] = nvidia_ml::state::Process {
            pid: 41,
            gpu_instance: 1,
            compute_instance: 0,
            ..Default::default()
        };
    });
    site.until("a process of its job", || {
        let gpus = daemon.status().gpus;
        let on = &gpus[usize::from(SWITCHABLE)].processes;
        on.iter().any(|one| one.pid == 41).then_some(())
    });
    thread::sleep(Duration::from_secs(3));
    assert!(findings(&daemon).is_empty());
    site.fault(Some(5), "xid 48");
    until_requeued(&site, 7);
    assert_eq!(site.slurm("extra"), "rack=7 [gpuos:1 out=4]");
    job(
        &site,
        8,
        "12",
        ("gpuos: mig=1g.10gb:1", "Requeue=0 Restarts=0"),
    );
    let why = step(&daemon, 8, 0, ("1g.10gb", &[12])).unwrap_err();
    assert!(why.contains("GPU 5 is out of service"), "{why}");
    end(&daemon, 8, 0);
    gone(&site, 8);
    // Not before its instances are gone.
    assert_eq!(site.slurm("resets"), "");
    site.change(5, |gpu| gpu.processes[0] = Default::default());
    over(&site, &daemon, 7);
    site.until("the reset", || {
        site.mend();
        (daemon.state(usize::from(SWITCHABLE)) == "available").then_some(())
    });
    assert!(site.slurm("resets").starts_with("reset 5:"));
    assert!(!site.slurm("log").contains("DRAIN"));
    job_slices(&site, 9);
    step_slices(&daemon, 9).unwrap();
}

#[test]
fn a_number_that_gres_conf_gives_to_another_gpu_moves_nothing() {
    let site = site("dgx-h100", "");
    // Without NVML's GPU 3.
    let gres = "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-2,5-7]\n";
    fs::write(site.path("gres.conf"), gres).unwrap();
    let flags = flags(&site);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuosd"));
    command.env("SLURM_CONF", site.path("slurm.conf"));
    let daemon = site.start_under(command, &flags);
    let trouble = site.until("the trouble", || {
        let all = daemon.status().daemon.troubles;
        all.into_iter().find(|why| why.contains("gres.conf"))
    });
    assert!(trouble.contains("number 4 of GRES gpu"), "{trouble}");
    job_slices(&site, 7);
    let why = step_slices(&daemon, 7).unwrap_err();
    assert!(why.contains("by gres.conf it is 3"), "{why}");
    assert_eq!(site.gpu(5).mig, [0, 0]);
    // Number 4 is another GPU now: nobody knows whether that is what the job is to have.
    site.job(8, "4");
    let why = step_whole(&daemon, 8).unwrap_err();
    assert!(why.contains("by gres.conf it is 3"), "{why}");
    // Once gres.conf is mended, all is well.
    fs::write(site.path("gres.conf"), gres.replace("0-2", "0-3")).unwrap();
    site.until("the end of the trouble", || {
        daemon.status().daemon.troubles.is_empty().then_some(())
    });
    end(&daemon, 8, BATCH);
    assert_eq!(step_whole(&daemon, 8), Ok(BTreeMap::new()));
}

/// Kills gpuosd so long after a step has asked for what the GPU is not.
fn killed_at(delay: Duration, to_whole: bool) {
    let site = site("dgx-h100", "");
    if to_whole {
        let daemon = start(&site);
        job_slices(&site, 6);
        step_slices(&daemon, 6).unwrap();
        gone(&site, 6);
        daemon.kill();
        site.job(7, "4");
    } else {
        job_slices(&site, 7);
    }
    let daemon = start_slow(&site);
    let ready = || of_5(&daemon).ready.then_some(());
    site.until("the first look", ready);
    let mut client = daemon.client();
    let slices = request(7, BATCH, "3g.40gb", &[8, 9, 10, 11]);
    let wanted = if to_whole { whole(7, BATCH) } else { slices };
    let asks = thread::spawn(move || drop(client.ask(&wanted)));
    thread::sleep(delay);
    daemon.kill();
    asks.join().unwrap();
    let daemon = start(&site);
    let made = match to_whole {
        true => step_whole(&daemon, 7).map(|_| instances(&site, 5)),
        false => step_slices(&daemon, 7).map(|_| instances(&site, 5)),
    };
    let expected = if to_whole {
        vec![]
    } else {
        vec![(G3, 0, true)]
    };
    assert_eq!(made, Ok(expected), "{delay:?}");
    let mode = u32::from(!to_whole);
    assert_eq!(site.gpu(5).mig, [mode, mode], "{delay:?}");
    // And back.
    over(&site, &daemon, 7);
    match to_whole {
        true => {
            job_slices(&site, 8);
            step_slices(&daemon, 8).unwrap();
        }
        false => {
            site.job(8, "4");
            step_whole(&daemon, 8).unwrap();
            assert!(instances(&site, 5).is_empty());
        }
    }
    assert!(!site.slurm("log").contains("requeue"), "{}", site.log());
}

#[test]
fn killed_while_a_gpu_is_divided_gpuosd_finishes_it() {
    // The driver takes 2.5 s for the mode, 0.5 s for an instance.
    for at in [0, 60, 400, 2500, 2800, 3100] {
        killed_at(Duration::from_millis(at), false);
    }
}

#[test]
fn killed_while_a_gpu_becomes_whole_gpuosd_finishes_it() {
    // A second for each of the two destroys.
    for at in [0, 200, 900, 1800, 2400, 4200] {
        killed_at(Duration::from_millis(at), true);
    }
}

#[test]
fn a_pool_whose_gpus_stay_is_as_ever() {
    let site = pool("");
    let daemon = start(&site);
    job_slices(&site, 7);
    step_slices(&daemon, 7).unwrap();
    assert!(!site.path("run/gpuosd.sock.switchable").exists());
    let gpu = of_5(&daemon);
    assert_eq!(
        (gpu.switchable, gpu.whole, gpu.holder),
        (false, false, None)
    );
}
