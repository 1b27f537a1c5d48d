//! `gpuos wlm prolog` and `epilog` where gpuos_mover keeps the checkpoints of jobs.

use std::fs;

use crate::wlm::{Job, code, errors, mode};

/// A job whose checkpoints gpuos_mover is to keep.
#[test]
fn without_a_mover_a_job_starts_and_is_told_that_it_has_no_checkpoints() {
    let with_store = |job: &mut Job, more: &str| {
        let of = format!(
            "<JB_owner>ann</JB_owner><JB_gid>1</JB_gid><JB_ja_tasks><x><JAT_status>512</JAT_status><JAT_task_number>1</JAT_task_number>\
             <JAT_start_time>500</JAT_start_time></x></JB_ja_tasks>{more}</element>"
        );
        job.record = job.record.replace("</element>", &of);
    };
    let spool = "active_jobs/7.1";
    let mut job = Job::new(1);
    let nobody = job.work.path().join("nobody").display().to_string();
    let mover = ["--mover", &nobody];
    // Another checkpointing environment, or none, is none of gpuos's.
    with_store(&mut job, "");
    assert_eq!(code(&job.call_with("prolog", spool, &mover)), 0);
    assert!(!job.environment().contains("GPUOS_CHECKPOINT_DIR"));
    let mut job = Job::new(1);
    with_store(&mut job, "<JB_checkpoint_name>gpuos</JB_checkpoint_name>");
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
