//! What ordinary users can see and do at gpuosd's socket: their own, and nothing that keeps others or root out.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use gpuos_core::job::JobId;
use gpuos_core::limits::{Asked, ClockRange, PowerCap};
use gpuos_core::step::StepId;
use gpuos_core::wire::{Reason, Reply, Request, Status};
use gpuos_host::socket::{Client, ClientError, NAME};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::isolation::{of_job, record};
use crate::port::port;
use crate::site::{Daemon, LIMIT, Site};

/// A site whose socket users can reach; `None` where the test is not root, and can be no other user.
fn site() -> Option<Site> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be other users");
        return None;
    }
    let site = Site::new();
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    Some(site)
}

/// Does something as another user: rights are a thread's own, for the kernel.
fn as_user<T: Send>(uid: u32, run: impl FnOnce() -> T + Send) -> T {
    let user = Uid::from_raw(uid);
    thread::scope(|scope| {
        let run = scope.spawn(move || {
            set_thread_res_uid(user, user, user).unwrap();
            run()
        });
        run.join().unwrap()
    })
}

fn client(site: &Site) -> Client {
    let path = site.path("run").join(NAME);
    site.until("the socket", || Client::connect(&path, LIMIT).ok())
}

fn status_as(site: &Site, uid: u32) -> Status {
    as_user(uid, || client(site).status().unwrap())
}

#[test]
fn a_user_is_told_his_own_and_root_everything() {
    let Some(site) = site() else { return };
    site.job(7, "0-1");
    // As unlike any other number as can be.
    record(&site, 71_717, 1000, "secretprogram", &of_job(7, "0"));
    site.compute(71_717, Some(0));
    let proc = site.path("proc");
    let daemon = site.start_with(&["--proc", proc.to_str().unwrap()]);
    daemon.ready();
    let known = || {
        let status = daemon.status();
        (status.jobs.len() == 1 && !status.gpus[0].processes.is_empty()).then_some(status)
    };
    let whole = site.until("the job and its process", known);
    assert!(whole.hidden.is_none());
    let own = status_as(&site, 1000);
    assert_eq!(
        (own.jobs.len(), own.gpus[0].jobs.clone()),
        (1, vec![7.into()])
    );
    assert_eq!(own.gpus[0].processes[0].program, "secretprogram");
    let other = status_as(&site, 1001);
    let text = serde_json::to_string(&other).unwrap();
    assert!(
        !text.contains("71717") && !text.contains("secretprogram"),
        "{text}"
    );
    assert!(other.jobs.is_empty() && other.gpus.iter().all(|gpu| gpu.jobs.is_empty()));
    assert_eq!(
        (other.gpus[0].jobs_of_others, other.gpus[2].jobs_of_others),
        (1, 0)
    );
    let hidden = other.hidden.unwrap();
    assert_eq!((hidden.jobs, hidden.processes), (1, 1));
    // GPUs themselves are everybody's business.
    assert!(other.gpus.iter().all(|gpu| !gpu.uuid.is_empty()));
    // An operator by gpuos.toml.
    fs::write(
        site.path("gpuos.toml"),
        "[access]\noperator-uids = [1001]\n",
    )
    .unwrap();
    daemon.ask(&Request::Reload).unwrap();
    assert_eq!(status_as(&site, 1001).jobs, whole.jobs);
    assert!(status_as(&site, 1002).jobs.is_empty());
    fs::write(site.path("gpuos.toml"), "[access]\njobs = \"all\"\n").unwrap();
    daemon.ask(&Request::Reload).unwrap();
    assert_eq!(status_as(&site, 1002).jobs, whole.jobs);
}

#[test]
fn slurm_user_is_told_everything() {
    let Some(site) = site() else { return };
    let config = format!(
        "SlurmUser               = slurm(1003)\nSLURM_CONF = {}/slurm.conf\n",
        site.path("").display()
    );
    site.set_slurm("config", &config);
    site.job(7, "0-1");
    let daemon = site.start();
    daemon.ready();
    site.until("the job", || {
        (daemon.status().jobs.len() == 1).then_some(())
    });
    let seen = || (status_as(&site, 1003).jobs.len() == 1).then_some(());
    site.until("SlurmUser", seen);
    assert!(status_as(&site, 1004).jobs.is_empty());
}

#[test]
fn a_watcher_hears_of_others_that_something_happened_and_no_more() {
    let Some(site) = site() else { return };
    fs::write(site.path("gpuos.toml"), "[isolation]\ngrace = \"1s\"\n").unwrap();
    site.job(7, "0");
    let daemon = site.start_with(&["--proc", site.path("proc").to_str().unwrap()]);
    daemon.ready();
    let mut watcher = as_user(1001, || {
        let mut watcher = client(&site);
        watcher.watch().unwrap();
        watcher
    });
    // Of job 7's user, on a GPU that it does not hold; and of a third one on that of job 7.
    record(&site, 81_811, 1000, "train", &of_job(7, "0"));
    record(&site, 81_812, 1002, "miner", "/user.slice");
    site.compute(81_811, Some(3));
    site.compute(81_812, Some(0));
    for _ in 0..2 {
        let event = loop {
            match watcher.next_reply().unwrap() {
                Some(Reply::Happened { event }) if event.what == "isolation" => break event,
                _ => {}
            }
        };
        assert_eq!(event.job, None);
        let text = event.message;
        let told = text.contains("root is told more") && !text.contains("8181");
        assert!(told, "{text}");
    }
}

#[test]
fn users_who_take_all_places_keep_neither_others_nor_root_out() {
    let Some(site) = site() else { return };
    let daemon = site.start();
    daemon.ready();
    let path = site.path("run").join(NAME);
    let mut held: Vec<Client> = Vec::new();
    for uid in 2001..=2012 {
        held.extend(as_user(uid, || {
            let connect = |_| match Client::connect(&path, LIMIT) {
                Ok(mut client) => client.watch().is_ok().then_some(client),
                Err(ClientError::Refused(why)) => {
                    assert!(why.contains("of this user"), "{why}");
                    None
                }
                Err(other) => panic!("{other}"),
            };
            (0..9).filter_map(connect).collect::<Vec<_>>()
        }));
    }
    assert!(held.len() >= 48, "{}", held.len());
    for uid in [2050, 2051] {
        as_user(uid, || {
            assert_eq!(
                Client::connect(&path, LIMIT)
                    .unwrap()
                    .status()
                    .unwrap()
                    .node,
                "n1"
            )
        });
    }
    // A flood of one user, who goes on with it: root comes by his own socket, and by that of everybody.
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let user = Uid::from_raw(2001);
            set_thread_res_uid(user, user, user).unwrap();
            (0..3000)
                .filter(|_| UnixStream::connect(&path).is_ok())
                .count()
        });
        for _ in 0..20 {
            assert_eq!(daemon.status().node, "n1");
            let end = Request::StepEnd {
                id: StepId {
                    job: 1.into(),
                    step: 0,
                },
            };
            assert!(matches!(daemon.ask(&end), Ok(Reply::Done { .. })));
        }
        assert!(flood.join().unwrap() > 0);
    });
    // The socket for root is root's.
    let own = format!("{}.root", path.display());
    let refused = as_user(2001, || UnixStream::connect(&own).unwrap_err().kind());
    assert_eq!(refused, std::io::ErrorKind::PermissionDenied);
    assert!(UnixStream::connect(&own).is_ok());
}

#[test]
fn gpus_of_a_users_running_jobs_give_him_more_places() {
    let Some(site) = site() else { return };
    let (ann, eve) = (1000, 1001);
    site.job(7, "0-1");
    let daemon = site.start();
    daemon.ready();
    site.until("the job", || {
        (daemon.status().jobs.len() == 1).then_some(())
    });
    // A step of a job of which slurmctld says nothing: its environment names GPUs.
    let claim = Request::StepStart {
        id: StepId {
            job: 9.into(),
            step: 0,
        },
        uid: eve,
        gpus: vec![2, 3, 4, 5],
        asked: Asked::default(),
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    };
    daemon.ask(&claim).unwrap();
    let path = site.path("run").join(NAME);
    let connect = |_| match Client::connect(&path, LIMIT) {
        Ok(client) => Some(client),
        Err(ClientError::Refused(why)) => {
            assert!(why.contains("GPUs of his running jobs"), "{why}");
            None
        }
        Err(other) => panic!("{other}"),
    };
    let open = |uid| as_user(uid, || (0..18).filter_map(connect).collect::<Vec<_>>());
    let (own, others) = (open(ann), open(eve));
    assert_eq!((own.len(), others.len()), (8 + 2 * 4, 8));
    // The job ends: what is open stays open, as there is room.
    fs::remove_file(site.path("slurm/jobs/7")).unwrap();
    site.until("the job is gone", || {
        daemon.ask(&Request::Reload).unwrap();
        daemon.status().jobs.is_empty().then_some(())
    });
    let answered = own.into_iter().map(|mut one| one.status().is_ok());
    assert_eq!(answered.filter(|answered| *answered).count(), 16);
    // As soon as gpuosd knows that those are closed.
    let again = site.until("his own places", || {
        Some(open(ann).len()).filter(|places| *places >= 8)
    });
    assert_eq!(again, 8);
}

#[test]
fn users_may_not_report_steps_nor_act() {
    let Some(site) = site() else { return };
    let daemon = site.start();
    daemon.ready();
    let asks = [
        start(7, Asked::default()),
        Request::StepEnd {
            id: StepId {
                job: 7.into(),
                step: 0,
            },
        },
        Request::Reload,
        Request::Audit {
            lines: 5,
            job: None,
        },
    ];
    as_user(1001, || {
        for request in &asks {
            match client(&site).ask(request) {
                Err(ClientError::Refused(why)) => assert_eq!(why, "only root may do that"),
                other => panic!("{request:?}: {other:?}"),
            }
        }
    });
    assert!(daemon.status().jobs.is_empty());
}

/// The audit log about a job, as a user asks for it: the lines, or why he is refused.
fn audit_as(site: &Site, uid: u32, job: Option<u32>) -> Result<Vec<serde_json::Value>, String> {
    let lines = 200;
    let job = job.map(JobId::from);
    let told = as_user(uid, || {
        client(site).ask(&Request::Audit {
            lines,
            job: job.clone(),
        })
    });
    match told {
        Ok(Reply::Audit { lines }) => {
            let line = |line: &String| serde_json::from_str(line).unwrap();
            Ok(lines.iter().map(line).collect())
        }
        Err(ClientError::Refused(why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

/// A step of a job on the GPU of its number, with a power cap, of which the audit log tells.
fn capped(site: &Site, daemon: &Daemon, job: u32, uid: u32) {
    site.job(job, &job.to_string());
    let text = site.slurm(&format!("jobs/{job}"));
    let text = text.replace("UserId=ann(1000)", &format!("UserId=u{uid}({uid})"));
    site.set_slurm(&format!("jobs/{job}"), &text);
    let asked = Asked {
        power: Some(PowerCap::Watts(300)),
        ..Asked::default()
    };
    assert_eq!(notes(daemon, &start_of(uid, job, asked)), [""; 0]);
    let told = || {
        let of_user = format!("\"job\":{job},\"job_uid\":{uid},");
        (crate::isolation::audited(site, &of_user) > 0).then_some(())
    };
    site.until("a line about the job", told);
}

/// The last step of a job has ended, and slurmctld knows it no more.
fn over(site: &Site, daemon: &Daemon, job: u32) {
    fs::remove_file(site.path(&format!("slurm/jobs/{job}"))).unwrap();
    let job = JobId::from(job);
    let id = StepId {
        job: job.clone(),
        step: 0,
    };
    daemon.ask(&Request::StepEnd { id }).unwrap();
    let gone = || {
        let jobs = daemon.status().jobs;
        jobs.iter().all(|one| one.job != job).then_some(())
    };
    site.until("the job is gone", gone);
}

#[test]
fn a_user_reads_the_audit_log_about_his_own_jobs_and_nobody_elses() {
    const REFUSED: &str = "only root and the user whose job it is may do that";
    let Some(site) = site() else { return };
    let (ann, bob, eve) = (1000, 1002, 1003);
    let mut daemon = site.start();
    daemon.ready();
    capped(&site, &daemon, 1, ann);
    capped(&site, &daemon, 2, bob);
    let own = |uid, job: u32| {
        let lines = audit_as(&site, uid, Some(job)).unwrap();
        assert!(!lines.is_empty());
        for line in &lines {
            assert_eq!((&line["job"], &line["job_uid"]), (&job.into(), &uid.into()));
        }
        lines.len()
    };
    let refused = |uid, job: u32| {
        assert_eq!(audit_as(&site, uid, Some(job)), Err(REFUSED.to_string()));
    };
    let before = own(ann, 1);
    own(bob, 2);
    // Of a job of others and of one that there is not he is told the same.
    for job in [2, 0, 3, 71, u32::MAX] {
        refused(ann, job);
    }
    refused(eve, 1);
    for uid in [ann, bob, eve] {
        let only = Err("only root may do that".to_string());
        assert_eq!(audit_as(&site, uid, None), only);
    }
    assert_eq!(audit_as(&site, 0, Some(4711)), Ok(Vec::new()));
    // A job that is over is still his whose it was, by what was written then; a new gpuosd knows it, too.
    over(&site, &daemon, 1);
    assert!(own(ann, 1) >= before);
    daemon.kill();
    daemon = site.start();
    daemon.ready();
    let lines = own(ann, 1);
    refused(bob, 1);
    // Where the disk was slow the one that was killed had not saved that the job is over: the new one finds out.
    let reset = || (site.gpu(1).power_limit_mw == 700_000).then_some(());
    site.until("the power is as it was", reset);
    // Its number comes again as a job of somebody else, who is told nothing of the one before.
    capped(&site, &daemon, 1, bob);
    own(bob, 1);
    refused(ann, 1);
    assert!(audit_as(&site, 0, Some(1)).unwrap().len() > lines);
}

fn start(job: u32, asked: Asked) -> Request {
    start_of(1000, job, asked)
}

fn start_of(uid: u32, job: u32, asked: Asked) -> Request {
    Request::StepStart {
        id: StepId {
            job: job.into(),
            step: 0,
        },
        uid,
        gpus: vec![job as u8],
        asked,
        mig: None,
        switchable: false,
        memory: None,
        reason: Reason::Devices,
    }
}

/// A job of a partition and an account.
fn job(site: &Site, id: u32, partition: &str, account: &str) {
    site.job(id, &id.to_string());
    let text = site.slurm(&format!("jobs/{id}"));
    let text = text.replace(
        "   JobState=",
        &format!("   Priority=1 Nice=0 Account={account} QOS=normal\n   JobState="),
    );
    let text = text.replace(
        "   NodeList=",
        &format!("   Partition={partition} AllocNode:Sid=login:1\n   NodeList="),
    );
    site.set_slurm(&format!("jobs/{id}"), &text);
}

fn notes(daemon: &Daemon, request: &Request) -> Vec<String> {
    match daemon.ask(request).unwrap() {
        Reply::Prepared { notes, .. } => notes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_forbidden_is_left_out_on_the_node_too() {
    let site = Site::new();
    let text = "[[forbid]]\noptions = [\"gpuos-power\"]\npartition = \"debug\"\nask = \"hpc@example.org\"\n\
                [[forbid]]\noptions = [\"gpuos-power\"]\naccount = \"students\"\n";
    fs::write(site.path("gpuos.toml"), text).unwrap();
    job(&site, 1, "debug", "physics");
    job(&site, 2, "gpu", "students");
    job(&site, 3, "gpu", "physics");
    job(&site, 4, "gpu", "students2");
    let daemon = site.start();
    daemon.ready();
    daemon.ask(&Request::Reload).unwrap();
    let asked = Asked {
        power: Some(PowerCap::Watts(300)),
        clocks: Some(ClockRange {
            least: 1200,
            most: 1500,
        }),
        ..Asked::default()
    };
    let before = site.gpu(1).power_limit_mw;
    assert_eq!(
        notes(&daemon, &start(1, asked)),
        ["--gpuos-power is left out: it is not allowed in partition debug; ask hpc@example.org"]
    );
    assert_eq!(
        notes(&daemon, &start(2, asked)),
        [
            "--gpuos-power is left out: it is not allowed for account students; ask those who run the cluster"
        ]
    );
    // The rest is done, and other jobs have what they ask for.
    assert_eq!(site.gpu(1).power_limit_mw, before);
    for number in [3, 4] {
        assert_eq!(notes(&daemon, &start(number, asked)), [""; 0]);
        assert_eq!(site.gpu(number as usize).power_limit_mw, 300_000);
    }
    // A job of which slurmctld says nothing, and one that it does not know, have it left out.
    job(&site, 5, "gpu", "physics");
    let unknown = notes(&daemon, &start(6, asked));
    assert!(
        unknown[0].contains("slurmctld does not say where this job is"),
        "{unknown:?}"
    );
    site.away(true);
    let away = notes(&daemon, &start(5, asked));
    assert!(
        away[0].contains("slurmctld does not say where this job is"),
        "{away:?}"
    );
    assert_eq!(site.gpu(5).power_limit_mw, before);
}

/// gpuosd on a node that slurm.conf has at the loopback, with this port of slurmd.
fn with_port<'a>(site: &'a Site, port: u16) -> Daemon<'a> {
    let conf =
        format!("ClusterName=c\nNodeName=n1 NodeAddr=127.0.0.1 Port={port} Gres=gpu:h100:8\n");
    fs::write(site.path("slurm.conf"), conf).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuosd"));
    command.env("SLURM_CONF", site.path("slurm.conf"));
    site.start_under(command, &[])
}

#[test]
fn the_port_of_the_heartbeat_is_no_users_to_have() {
    let Some(site) = site() else { return };
    let port = port();
    let daemon = with_port(&site, port);
    daemon.ready();
    // No job of several nodes is there, and the port is kept all the same.
    site.until("the port", || {
        site.log().contains("keeps UDP port").then_some(())
    });
    let taken = as_user(1001, || {
        UdpSocket::bind(("0.0.0.0", port)).unwrap_err().kind()
    });
    assert_eq!(taken, std::io::ErrorKind::AddrInUse);
    assert!(daemon.status().daemon.troubles.is_empty());
}

#[test]
fn a_user_who_has_the_port_first_is_named_until_he_lets_it_go() {
    let Some(site) = site() else { return };
    let port = port();
    let held = as_user(1001, || UdpSocket::bind(("0.0.0.0", port)).unwrap());
    let daemon = with_port(&site, port);
    let why = format!("UDP port {port} is taken by a program of uid 1001");
    let told = || {
        let troubles = daemon.status().daemon.troubles;
        troubles.iter().any(|one| one.contains(&why)).then_some(())
    };
    site.until("who has it", told);
    let audited = || (crate::isolation::audited(&site, &why) == 1).then_some(());
    site.until("the audit log", audited);
    drop(held);
    let quiet = || daemon.status().daemon.troubles.is_empty().then_some(());
    site.until("it is kept", quiet);
    assert!(UdpSocket::bind(("0.0.0.0", port)).is_err());
}
