//! MIG instances of jobs: made before a step goes on, for what Slurm's record gives to the job and for nothing else,
//! and gone when the job is gone, whenever gpuosd dies.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command};

use gpuos_core::limits::Asked;
use gpuos_core::step::StepId;
use gpuos_core::wire::{MigAsk, MigGpuStatus, MigStatus, Reason, Reply, Request};
use gpuos_host::socket::ClientError;
use gpuos_model::mig::MigPlacement;
use nvidia_ml::model::kind_named;
use nvidia_ml::state::Process;

use crate::site::{Daemon, Site};

pub const BATCH: u32 = StepId::BATCH;

/// Profiles of H100 by name.
pub const G1: u32 = 19;
pub const G3: u32 = 9;

/// A node with GPUs 4 and 5 in the pool.
pub fn pool(head: &str) -> Site {
    pool_of("dgx-h100", head)
}

/// The same, of a kind of node.
pub fn pool_of(kind: &str, head: &str) -> Site {
    let site = Site::made_of("n1", kind);
    for gpu in [4, 5] {
        site.change(gpu, |gpu| gpu.mig = [1, 1]);
    }
    let (_, kind) = kind_named(kind).unwrap();
    let profiles = kind.board().mig.unwrap().profiles.iter().map(|profile| {
        let [compute, size] = profile.slices;
        format!(
            "{{ id = {}, name = \"{}\", compute = {compute}, memory-mib = {}, most = {}, size = {size}, starts = {:?} }}",
            profile.id, profile.name, profile.memory_mib, profile.count, profile.starts
        )
    });
    let profiles: Vec<String> = profiles.collect();
    let text = format!(
        "[mig]\n{head}\n[[mig.board]]\nname = \"h100-80gb\"\nprofiles = [{}]\n\
         [[mig.pool]]\nnodes = \"n1\"\ngpus = \"4-5\"\nboard = \"h100-80gb\"\n",
        profiles.join(", ")
    );
    fs::write(site.path("gpuos.toml"), text).unwrap();
    let mut minors = String::from("config 1\nmonitor 2\n");
    for gpu in 0..8 {
        for gi in 0..14 {
            let cap = 100 * gpu + 2 * gi + 3;
            minors += &format!("gpu{gpu}/gi{gi}/access {cap}\n");
            minors += &format!("gpu{gpu}/gi{gi}/ci0/access {}\n", cap + 1);
        }
    }
    fs::write(site.path("mig-minors"), minors).unwrap();
    site
}

pub fn flags(site: &Site) -> Vec<String> {
    let path = |name: &str| site.path(name).display().to_string();
    let flags = [
        ("--slices", path("slices")),
        ("--caps", "/dev/caps".into()),
        ("--mig-minors", path("mig-minors")),
    ];
    let flags = flags.into_iter();
    flags
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

pub fn start(site: &Site) -> Daemon<'_> {
    let flags = flags(site);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    site.start_with(&flags)
}

/// The same, with a driver that takes its time.
pub fn start_slow(site: &Site) -> Daemon<'_> {
    let flags = flags(site);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuosd"));
    command.env("GPUOS_NVML_LATENCY", "1");
    site.start_under(command, &flags)
}

/// A job that has these bits by Slurm's record, with gpuos's note.
pub fn job(site: &Site, id: u32, bits: &str, (note, more): (&str, &str)) {
    let count = 1;
    let batch = if more.contains("Requeue=") {
        more
    } else {
        "Requeue=1 Restarts=0 BatchFlag=1"
    };
    let text = format!(
        "JobId={id} JobName=train\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
         {batch} Reboot=0 ExitCode=0:0\n   NodeList=n1\n   NumNodes=1 NumCPUs=1\n     \
         Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpuos:h100-80gb:{count}(IDX:{bits})\n   SystemComment={note}\n"
    );
    site.set_slurm(&format!("jobs/{id}"), &text);
}

pub fn gone(site: &Site, id: u32) {
    fs::remove_file(site.path(&format!("slurm/jobs/{id}"))).unwrap();
}

pub fn request(job: u32, step: u32, request: &str, slices: &[u8]) -> Request {
    let job = job.into();
    Request::StepStart {
        id: StepId { job, step },
        uid: 1000,
        gpus: Vec::new(),
        asked: Asked::default(),
        mig: Some(MigAsk {
            request: request.into(),
            slices: slices.to_vec(),
            tasks: 1,
        }),
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    }
}

/// What a step is told: variables, or why it must not run.
pub fn told(reply: Reply) -> Result<BTreeMap<String, String>, String> {
    match reply {
        Reply::Prepared {
            environment,
            failed: None,
            ..
        } => Ok(environment),
        Reply::Prepared {
            failed: Some(why),
            environment,
            ..
        } => {
            assert!(environment.is_empty());
            Err(why)
        }
        other => panic!("{other:?}"),
    }
}

pub fn step(
    daemon: &Daemon,
    job: u32,
    number: u32,
    (wish, slices): (&str, &[u8]),
) -> Result<BTreeMap<String, String>, String> {
    match daemon.ask(&request(job, number, wish, slices)) {
        Err(ClientError::Refused(why)) => Err(why),
        answer => told(answer.unwrap()),
    }
}

pub fn end(daemon: &Daemon, job: u32, step: u32) {
    let job = job.into();
    let id = StepId { job, step };
    daemon.ask(&Request::StepEnd { id }).unwrap();
}

/// Profile, first slice and whether there is a compute instance, of each instance on a GPU.
pub fn instances(site: &Site, gpu: usize) -> Vec<(u32, u32, bool)> {
    let gpu = site.gpu(gpu);
    let all = gpu.gpu_instances();
    let mut all: Vec<_> = all
        .iter()
        .map(|one| (one.profile, one.start, one.computes().len() == 1))
        .collect();
    all.sort_by_key(|one| one.1);
    all
}

pub fn until_empty(site: &Site, gpu: usize) {
    let empty = || instances(site, gpu).is_empty().then_some(());
    site.until(&format!("no instance on GPU {gpu}"), empty);
}

fn slice(site: &Site, gpu: usize, slice: usize) -> String {
    fs::read_to_string(site.path(&format!("slices/gpu{gpu}s{slice}"))).unwrap_or_default()
}

pub fn status(daemon: &Daemon) -> MigStatus {
    match daemon.ask(&Request::Mig).unwrap() {
        Reply::Mig { mig } => *mig,
        other => panic!("{other:?}"),
    }
}

pub fn until_status(
    site: &Site,
    daemon: &Daemon,
    what: &str,
    holds: impl Fn(&MigGpuStatus) -> bool,
) {
    let seen = || {
        status(daemon)
            .gpus
            .first()
            .is_some_and(&holds)
            .then_some(())
    };
    site.until(what, seen);
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

/// A process on an instance, which ends when it is dropped or killed.
pub struct Guest(pub Child);

impl Guest {
    pub fn on(site: &Site, gpu: usize, gi: u32) -> Guest {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        site.change(gpu, |gpu| {
            gpu.processes[0] = Process {
                pid,
                load: 50,
                memory_mib: 1000,
                gpu_instance: gi,
                compute_instance: 0,
                ..Process::default()
            };
        });
        Guest(child)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An instance that somebody makes by hand.
pub fn by_hand(site: &Site, gpu: usize, profile: u32, start: u32) {
    let (_, kind) = kind_named("dgx-h100").unwrap();
    let mig = kind.board().mig.unwrap();
    site.change(gpu, |gpu| {
        let serial = gpu
            .create_instance(mig, profile, Some(start), 7001)
            .unwrap();
        gpu.create_compute(mig, serial, 0, None, 7002).unwrap();
    });
}

#[test]
fn jobs_share_a_gpu_each_with_its_own_instances_and_leave_nothing() {
    let site = pool("");
    let daemon = start(&site);
    let all = || (slice(&site, 5, 7) == "/dev/nvidia5\n").then_some(());
    site.until("slice files at the start", all);
    job(
        &site,
        7,
        "0-3,8",
        ("gpuos: level=node mig=3g.40gb:1,1g.10gb:1 gpus=n1:", ""),
    );
    // The note counts for more than what the step says.
    let own = step(&daemon, 7, BATCH, ("1g.10gb:5", &[0, 1, 2, 3, 8])).unwrap();
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
    assert_eq!(instances(&site, 5), [(G1, 0, true)]);
    assert_eq!(own["GPUOS_MIG_PROFILES"], "3g.40gb,1g.10gb");
    assert_eq!(own["GPUOS_MIG_PLACEMENTS"], "4:0-3,5:0-0");
    let uuids: Vec<&str> = own["GPUOS_MIG_UUIDS"].split(',').collect();
    assert!(uuids.len() == 2 && uuids.iter().all(|uuid| uuid.starts_with("MIG-")));
    assert_eq!(own["CUDA_VISIBLE_DEVICES"], own["GPUOS_MIG_UUIDS"]);
    // GPU instance 1 is the first half.
    assert_eq!(
        slice(&site, 4, 3),
        "/dev/nvidia4\n/dev/caps/nvidia-cap405\n/dev/caps/nvidia-cap406\n"
    );
    assert_eq!(slice(&site, 4, 4), "/dev/nvidia4\n");
    // A second step with a part of it is told that part, without a question to Slurm.
    let asked = site.slurm("log").matches("show job 7").count();
    let part = step(&daemon, 7, 0, ("1g.10gb", &[8])).unwrap();
    assert_eq!(part["GPUOS_MIG_UUIDS"], uuids[1]);
    assert_eq!(site.slurm("log").matches("show job 7").count(), asked);
    // Another job on the same GPU, by what its step says; it names slices of others, too.
    job(&site, 8, "4-5", ("", ""));
    let other = step(&daemon, 8, 0, ("1g.10gb:2", &[0, 1, 2, 3, 4, 5])).unwrap();
    assert_eq!(other["GPUOS_MIG_PLACEMENTS"], "4:4-4,4:5-5");
    assert!(
        uuids
            .iter()
            .all(|uuid| !other["GPUOS_MIG_UUIDS"].contains(uuid))
    );
    until_status(&site, &daemon, "three instances", |gpu| {
        gpu.instances.len() == 3
    });
    let gpu = &status(&daemon).gpus[0];
    let shown: Vec<_> = gpu
        .instances
        .iter()
        .map(|one| (one.job.as_ref(), one.placement.start, &one.phase[..]))
        .collect();
    assert_eq!(
        shown,
        [
            (Some(&7.into()), 0, "ready"),
            (Some(&8.into()), 4, "ready"),
            (Some(&8.into()), 5, "ready")
        ]
    );
    assert_eq!(
        (gpu.gpu.index(), gpu.first, gpu.slices, &gpu.free[..]),
        (4, 0, 8, &[6, 7][..])
    );
    assert_eq!(
        (
            gpu.fits["1g.10gb"],
            gpu.fits["1g.20gb"],
            gpu.fits["3g.40gb"]
        ),
        (1, 1, 0)
    );
    // A step that ends leaves its job's instances; when the job is gone, they go.
    end(&daemon, 7, 0);
    end(&daemon, 7, BATCH);
    assert_eq!(instances(&site, 5).len(), 1);
    gone(&site, 7);
    until_empty(&site, 5);
    site.until("GPU 4 without job 7", || {
        (instances(&site, 4) == [(G1, 4, true), (G1, 5, true)]).then_some(())
    });
    let closed = || (slice(&site, 4, 3) == "/dev/nvidia4\n").then_some(());
    site.until("what may be opened", closed);
    end(&daemon, 8, 0);
    gone(&site, 8);
    until_empty(&site, 4);
    site.until("the audit log", || {
        audited(
            &daemon,
            "job 8 has no longer 1g.10gb in memory slices 5-5 of GPU 4",
        )
        .then_some(())
    });
    assert!(audited(
        &daemon,
        "job 7 has 3g.40gb in memory slices 0-3 of GPU 4: MIG-"
    ));
    assert!(!site.slurm("log").contains("requeue") && !site.slurm("log").contains("scancel"));
}

#[test]
fn nothing_is_made_that_slurm_did_not_give_to_the_job() {
    let site = pool("");
    let daemon = start(&site);
    // Nothing becomes of its job: its tasks end at once.
    let refused = daemon.ask(&request(9, 0, "1g.10gb", &[0])).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(why) if why.contains("Slurm has not given job 9 any memory slice")),
        "{refused}"
    );
    job(&site, 7, "4", ("", ""));
    let why = step(&daemon, 7, 0, ("1g.10gb", &[0])).unwrap_err();
    assert!(
        why.contains("none of the memory slices that step 0 names"),
        "{why}"
    );
    // Not such instances: three slices of one GPU are no 3g.40gb.
    job(&site, 8, "0-2", ("", ""));
    let why = step(&daemon, 8, 0, ("3g.40gb", &[0, 1, 2])).unwrap_err();
    assert!(why.contains("cannot be divided into 3g.40gb"), "{why}");
    assert!(instances(&site, 4).iter().all(|one| one.1 == 4));
    // It would be so again.
    site.until("the end of job 8", || {
        site.slurm("log").contains("scancel 8").then_some(())
    });
    assert!(!site.slurm("log").contains("requeue"));
}

/// A text of the job's user looks like a line of Slurm's.
fn spoil(site: &Site, id: u32) {
    let name = format!("jobs/{id}");
    let mut whole = Command::new("awk");
    whole.arg("-f").arg(site.path("jobs.awk"));
    whole.arg(site.path("slurm").join(&name));
    let whole = String::from_utf8(whole.output().unwrap().stdout).unwrap();
    let forged = "   UserId=root(0) GroupId=root(0)";
    site.set_slurm(&name, &format!("{}\n{forged}\n", whole.trim_end()));
}

#[test]
fn a_record_that_is_not_slurms_alone_gives_nothing_and_takes_nothing() {
    let site = pool("");
    let daemon = start(&site);
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    let had = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
    spoil(&site, 7);
    job(&site, 8, "4", ("gpuos: mig=1g.10gb:1", ""));
    spoil(&site, 8);
    let why = step(&daemon, 8, BATCH, ("1g.10gb", &[4])).unwrap_err();
    assert!(
        why.contains("cannot be read") && why.contains("UserId="),
        "{why}"
    );
    site.until("the audit log", || {
        audited(&daemon, "Slurm's record of job 8 cannot be read").then_some(())
    });
    let again = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert_eq!(again["GPUOS_MIG_UUIDS"], had["GPUOS_MIG_UUIDS"]);
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
    // It is gone by its number, however it is called.
    end(&daemon, 7, BATCH);
    gone(&site, 7);
    until_empty(&site, 4);
}

#[test]
fn a_job_that_comes_back_and_the_next_one_in_its_slices_get_their_own() {
    let site = pool("");
    let daemon = start(&site);
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    let before = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    // Its slurmstepd was killed: nobody has told its end. It comes back with another request.
    let again = "Requeue=1 Restarts=1 BatchFlag=1";
    job(&site, 7, "0-3", ("gpuos: mig=1g.10gb:4", again));
    let after = step(&daemon, 7, BATCH, ("1g.10gb:4", &[0, 1, 2, 3])).unwrap();
    assert_eq!(
        instances(&site, 4),
        [(G1, 0, true), (G1, 1, true), (G1, 2, true), (G1, 3, true)]
    );
    assert!(!after["GPUOS_MIG_UUIDS"].contains(&before["GPUOS_MIG_UUIDS"]));
    // Slurm has given a part of it to somebody else before gpuosd knows that job 7 is gone.
    gone(&site, 7);
    job(&site, 8, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 8, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert_eq!(instances(&site, 4), [(G3, 0, true)]);
}

#[test]
fn an_instance_of_nobody_is_reported_once_and_left_and_a_job_that_needs_its_place_is_requeued() {
    let site = pool("");
    by_hand(&site, 4, G1, 2);
    let daemon = start(&site);
    until_status(&site, &daemon, "the instance", |gpu| {
        gpu.instances
            .iter()
            .any(|one| one.foreign && one.placement == MigPlacement { start: 2, size: 1 })
    });
    site.until("the audit log", || {
        audited(
            &daemon,
            "GPU 4: GPU instance 9 was made by nobody that gpuos knows",
        )
        .then_some(())
    });
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    let why = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap_err();
    assert!(
        why.contains("GPU 4") && why.contains("GPU instance 9"),
        "{why}"
    );
    site.until("requeue", || {
        site.slurm("log")
            .contains("scontrol requeue incomplete 7")
            .then_some(())
    });
    // Beside it there is room.
    job(&site, 9, "4-7", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 9, BATCH, ("3g.40gb", &[4, 5, 6, 7])).unwrap();
    assert_eq!(instances(&site, 4), [(G1, 2, true), (G3, 4, true)]);
    assert_eq!(
        site.log().matches("was made by nobody").count(),
        2,
        "a warning and a line of the audit log"
    );
}

#[test]
fn who_is_in_the_way_is_named_and_who_holds_an_instance_of_a_job_that_is_over_is_ended() {
    let site = pool("");
    by_hand(&site, 5, G1, 0);
    let guest = Guest::on(&site, 5, 7);
    let daemon = start(&site);
    job(&site, 7, "8-11", ("gpuos: mig=3g.40gb:1", ""));
    let why = step(&daemon, 7, BATCH, ("3g.40gb", &[8, 9, 10, 11])).unwrap_err();
    let named = format!("process {} (sleep) of user", guest.0.id());
    assert!(why.contains(&named), "{why}");
    job(&site, 8, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    step(&daemon, 8, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    let mut own = Guest::on(&site, 4, 1);
    until_status(&site, &daemon, "the process", |gpu| {
        gpu.instances.iter().any(|one| one.pids == [own.0.id()])
    });
    end(&daemon, 8, BATCH);
    gone(&site, 8);
    site.until("the end of the process", || {
        own.0.try_wait().unwrap().map(drop)
    });
    site.change(4, |gpu| gpu.processes[0] = Process::default());
    until_empty(&site, 4);
    // That of nobody is left, with who is on it.
    assert_eq!(instances(&site, 5).len(), 1);
    let mut guest = guest;
    assert!(guest.0.try_wait().unwrap().is_none());
}

#[test]
fn instances_of_nobody_go_where_the_policy_says_so() {
    let site = pool("foreign = \"destroy\"");
    by_hand(&site, 4, G1, 2);
    let daemon = start(&site);
    until_empty(&site, 4);
    // Made later, it is seen by NVML's event or with the next job.
    by_hand(&site, 4, G3, 0);
    job(&site, 7, "0", ("gpuos: mig=1g.10gb:1", ""));
    step(&daemon, 7, BATCH, ("1g.10gb", &[0])).unwrap();
    assert_eq!(instances(&site, 4), [(G1, 0, true)]);
}

#[test]
fn a_state_that_is_damaged_costs_no_running_job_its_instance() {
    let site = pool("");
    let daemon = start(&site);
    job(&site, 7, "0-3", ("gpuos: mig=3g.40gb:1", ""));
    let before = step(&daemon, 7, BATCH, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    daemon.kill();
    let path = site.path("state/state");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).unwrap();
    let daemon = start(&site);
    until_status(&site, &daemon, "the adopted instance", |gpu| {
        gpu.instances
            .iter()
            .any(|one| one.job == Some(7.into()) && one.phase == "ready")
    });
    let after = step(&daemon, 7, 0, ("3g.40gb", &[0, 1, 2, 3])).unwrap();
    assert_eq!(before, after);
    end(&daemon, 7, 0);
    gone(&site, 7);
    until_empty(&site, 4);
}
