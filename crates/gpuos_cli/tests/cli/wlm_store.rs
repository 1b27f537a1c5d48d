//! `gpuos wlm prolog` and `epilog` where gpuos_mover keeps the checkpoints of jobs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use gpuos_core::wire::{MAX_REPLY, MAX_REQUEST, MomJob, PROTOCOL, Reply, Request, decode, encode};
use gpuos_host::socket::MOVER;

use crate::wlm::{Job, code, errors, mode};

const CHECKPOINTS: &str = "<JB_checkpoint_name>gpuos</JB_checkpoint_name>";

/// Has qstat show a job whose checkpoints gpuos_mover is to keep, and which was given its host then.
fn with_store(job: &mut Job, more: &str) {
    let of = format!(
        "<JB_owner>ann</JB_owner><JB_gid>1</JB_gid><JB_ja_tasks><x><JAT_status>512</JAT_status><JAT_task_number>1</JAT_task_number>\
         <JAT_start_time>500</JAT_start_time></x></JB_ja_tasks>{more}</element>"
    );
    job.record = job.record.replace("</element>", &of);
}

/// A gpuos_mover that agrees with all that it is told, and passes on what it was told of jobs.
fn agrees(stream: UnixStream, told: &Sender<MomJob>) {
    let mut to = stream.try_clone().unwrap();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let reply = match decode(line.as_bytes(), MAX_REQUEST).unwrap() {
            Request::Hello { .. } => Reply::Hello {
                protocol: PROTOCOL,
                release: "0.1.0".into(),
                node: "n1".into(),
            },
            Request::Mom { mut report } => {
                told.send(report.jobs.remove(0)).unwrap();
                Reply::Mom {
                    orders: Box::default(),
                }
            }
            Request::Checkpoint { .. } => Reply::Prepared {
                notes: Vec::new(),
                environment: BTreeMap::new(),
                failed: None,
            },
            other => panic!("{other:?}"),
        };
        to.write_all(&encode(&reply, MAX_REPLY).unwrap()).unwrap();
    }
}

fn mover(folder: &Path) -> Receiver<MomJob> {
    let listener = UnixListener::bind(folder.join(MOVER)).unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            agrees(stream.unwrap(), &tell);
        }
    });
    told
}

/// The epilog of a run that ends late may come after the next run has begun.
#[test]
fn an_epilog_names_the_run_that_its_prolog_began() {
    let mut job = Job::new(0);
    with_store(&mut job, CHECKPOINTS);
    let told = mover(job.work.path());
    let folder = job.work.path().display().to_string();
    let call = |verb: &str| {
        let done = job.call_with(verb, "active_jobs/7.1", &["--mover", &folder]);
        assert_eq!(code(&done), 0, "{done:?}");
        let job = told
            .recv_timeout(Duration::from_secs(60))
            .expect("it tells");
        (job.run, job.hosts.is_empty())
    };
    assert_eq!(call("prolog"), (500, false));
    assert_eq!(call("epilog"), (500, true));
    // A prolog that is called once more, and a file that is not the prolog's.
    assert_eq!(call("prolog"), (500, false));
    let note = job.work.path().join("active_jobs/7.1/gpuos_run");
    let other = job.work.path().join("other");
    fs::write(&other, "7\n").unwrap();
    for plant in ["link", "hard link", "nothing", "words"] {
        fs::remove_file(&note).unwrap();
        match plant {
            "link" => symlink(&other, &note).unwrap(),
            "hard link" => fs::hard_link(&other, &note).unwrap(),
            "words" => fs::write(&note, "500 501\n").unwrap(),
            _ => fs::create_dir(&note).unwrap(),
        }
        assert_eq!(call("epilog"), (0, true), "{plant}");
        if note.is_dir() {
            fs::remove_dir(&note).unwrap();
            fs::write(&note, "").unwrap();
        }
    }
    fs::remove_file(&note).unwrap();
    symlink(&other, &note).unwrap();
    // What is there gives way, and nothing else.
    assert_eq!(call("prolog"), (500, false));
    assert_eq!(fs::read_to_string(&other).unwrap(), "7\n");
    assert_eq!(call("epilog"), (500, true));
}

#[test]
fn without_a_mover_a_job_starts_and_is_told_that_it_has_no_checkpoints() {
    let spool = "active_jobs/7.1";
    let mut job = Job::new(1);
    let nobody = job.work.path().join("nobody").display().to_string();
    let mover = ["--mover", &nobody];
    // Another checkpointing environment, or none, is not one of gpuos's.
    with_store(&mut job, "");
    assert_eq!(code(&job.call_with("prolog", spool, &mover)), 0);
    assert!(!job.environment().contains("GPUOS_CHECKPOINT_DIR"));
    let mut job = Job::new(1);
    with_store(&mut job, CHECKPOINTS);
    // Where the site has files gpuos_mover is not asked.
    let files = job.call("prolog", spool);
    assert_eq!((code(&files), errors(&files)), (0, String::new()));
    let alone = job.call_with("prolog", spool, &mover);
    assert_eq!(code(&alone), 0, "{alone:?}");
    let words = "the program has no checkpoints: gpuos_mover does not run on this host";
    assert!(errors(&alone).contains(words), "{alone:?}");
    let told = job.environment();
    assert!(told.ends_with("\nGPUOS_CHECKPOINT_DIR=\n"), "{told}");
    assert_eq!(code(&job.call_with("epilog", spool, &mover)), 0);
    // Slots on two hosts.
    let hosts = job.work.path().join(spool).join("pe_hostfile");
    fs::write(&hosts, "n1 1 q@n1 UNDEFINED\nn2 1 q@n2 UNDEFINED\n").unwrap();
    mode(&hosts, 0o644);
    let refused = job.call_with("prolog", spool, &mover);
    assert_eq!(code(&refused), 100, "{refused:?}");
    assert!(errors(&refused).contains("jobs on one host"), "{refused:?}");
    assert_eq!(code(&job.call("prolog", spool)), 0);
    // What its user wrote into the context since it was submitted.
    let context = "<JB_checkpoint_name>gpuos</JB_checkpoint_name><JB_context><x><VA_variable>gpuos_checkpoint</VA_variable>\
                   <VA_value>soon</VA_value></x></JB_context>";
    let mut job = Job::new(1);
    with_store(&mut job, context);
    assert_eq!(code(&job.call_with("prolog", spool, &mover)), 100);
}
