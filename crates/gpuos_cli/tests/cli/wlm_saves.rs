//! Checkpoints of jobs of Grid Engine, LSF and Torque in folders of their users: when one counts, and what starts from it.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::wlm::{Ended, adapter, code, errors, fed, out, run, wlm};

#[test]
fn a_checkpoint_counts_when_the_program_says_it_is_complete() {
    let work = TempDir::new().unwrap();
    let folder = work.path().join("7.1");
    let at = folder.display().to_string();
    let none = wlm(&["restore", "--folder", &at], "", &[]);
    assert_eq!(code(&none), 1, "{none:?}");
    let variables = [
        ("SGE_CKPT_DIR", work.path().to_str().unwrap()),
        ("JOB_ID", "7"),
        ("SGE_TASK_ID", "undefined"),
    ];
    let started = wlm(
        &[
            "wrap",
            "gridengine",
            "--",
            "sh",
            "-c",
            "echo $GPUOS_SAVES:$GPUOS_RESTORE",
        ],
        "",
        &variables,
    );
    assert_eq!(out(&started), format!("{at}:\n"));
    let late = wlm(&["ckpt", "--folder", &at, "--limit", "1"], "", &[]);
    assert!(
        code(&late) == 1 && errors(&late).contains("within 1 s"),
        "{late:?}"
    );
    assert!(!folder.join("request").exists());
    for _ in 0..2 {
        // A program that is fast: it is complete as soon as it is wanted.
        let program = format!(
            "while ! n=$(cat {at}/request 2>/dev/null); do sleep 0.05; done; mkdir -p {at}/$n; echo $n >{at}/$n/state; : >{at}/$n/ready"
        );
        let program = Command::new("sh").args(["-c", &program]).spawn().unwrap();
        let mut program = Ended(program);
        let done = wlm(&["ckpt", "--folder", &at], "", &[]);
        assert_eq!(code(&done), 0, "{done:?}");
        program.0.wait().unwrap();
    }
    let told = out(&wlm(&["restore", "--folder", &at], "", &[]));
    let last = told.trim().to_string();
    assert_eq!(
        fs::read_to_string(format!("{last}/state")).unwrap().trim(),
        last.rsplit('/').next().unwrap()
    );
    let left = fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .filter(|one| one.path().is_dir())
        .count();
    assert_eq!(left, 1, "older ones are gone");
    let again = wlm(
        &[
            "wrap",
            "gridengine",
            "--",
            "sh",
            "-c",
            "echo $GPUOS_RESTORE",
        ],
        "",
        &variables,
    );
    assert_eq!(out(&again), told);
    // Where gpuos_mover keeps checkpoints there is no such folder.
    let print = ["sh", "-c", "echo [$GPUOS_SAVES]"];
    let words = [&["wrap", "gridengine", "--stored", "--"][..], &print].concat();
    assert_eq!(out(&wlm(&words, "", &variables)), "[]\n");
}

/// A job whose program saves when it is asked to, in a process group of its own.
fn saving(folder: &Path) -> Ended {
    let program = format!(
        "cd {0}; while [ -d {0} ]; do if n=$(cat request 2>/dev/null) && [ ! -d $n ]; then mkdir $n && echo $n >$n/state && : >$n/ready; fi; sleep 0.05; done",
        folder.display()
    );
    let mut command = Command::new("sh");
    Ended(
        command
            .args(["-c", &program])
            .process_group(0)
            .spawn()
            .expect("a job"),
    )
}

/// How a process has ended by itself; none while it runs.
fn signal_of(job: &mut Ended) -> Option<i32> {
    job.0
        .try_wait()
        .expect("a job")
        .and_then(|how| how.signal())
}

const PRINT: [&str; 3] = ["sh", "-c", "echo $GPUOS_SAVES:$GPUOS_RESTORE"];

/// Arguments and variables are those of IBM's example of a method, which prints them: lsf-utils, criu.
#[test]
fn a_job_of_lsf_saves_is_ended_and_starts_again_from_what_it_saved() {
    let work = TempDir::new().unwrap();
    let [starter, echkpnt, erestart] = ["starter", "echkpnt.gpuos", "erestart.gpuos"]
        .map(|name| adapter(&work, &format!("lsf/{name}")));
    let chk = work.path().join("chk");
    fs::create_dir_all(chk.join("477")).unwrap();
    let at = |job: &str| format!("{}/{job}", chk.display());
    let first = at("477");
    let of_job = [
        ("LSB_CHKPNT_DIR", &first[..]),
        ("LSB_ECHKPNT_METHOD", "gpuos"),
    ];
    let told = run(&starter, &PRINT, "", &of_job);
    assert_eq!(out(&told), format!("{first}/gpuos:\n"), "{told:?}");
    // A job that saves by another method, or not at all.
    fs::create_dir(chk.join("1")).unwrap();
    let other = [
        ("LSB_CHKPNT_DIR", &at("1")[..]),
        ("LSB_ECHKPNT_METHOD", "criu"),
    ];
    assert_eq!(out(&run(&starter, &PRINT, "", &other)), ":\n");
    assert_eq!(out(&run(&starter, &PRINT, "", &[])), ":\n");
    assert!(!chk.join("1/gpuos").exists());

    let folder = chk.join("477/gpuos");
    let mut job = saving(&folder);
    let group = job.0.id().to_string();
    // No group of a job: nothing is asked for, and nothing ended.
    for wrong in ["", "0", "1", "01", "-1", "x", "12 13"] {
        let refused = run(&echkpnt, &["-k", "-d", "477.tmp", wrong], "", &of_job);
        assert_eq!(code(&refused), 2, "{wrong}: {refused:?}");
    }
    assert_eq!(code(&run(&echkpnt, &["-k", &group], "", &[])), 2);
    // Where no checkpoint is made, the job goes on.
    let nowhere = [("LSB_CHKPNT_DIR", &at("1")[..])];
    let failed = run(&echkpnt, &["-c", "-k", "-d", "1.tmp", &group], "", &nowhere);
    assert_eq!(code(&failed), 1, "{failed:?}");
    let saved = run(&echkpnt, &["-c", "-d", "477.tmp", &group], "", &of_job);
    assert_eq!(code(&saved), 0, "{saved:?}");
    assert_eq!(signal_of(&mut job), None, "it has not been told to end");
    let ended = run(
        &echkpnt,
        &["-c", "-k", "-d", "477.tmp", &group],
        "",
        &of_job,
    );
    assert_eq!(code(&ended), 0, "{ended:?}");
    let began = Instant::now();
    while signal_of(&mut job) != Some(9) {
        assert!(began.elapsed() < Duration::from_secs(60), "it still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read_to_string(folder.join("committed")).unwrap(), "2\n");

    // LSF renames the folder for the new job. The command is a line of a shell.
    fs::rename(chk.join("477"), chk.join("478")).unwrap();
    let second = at("478");
    let line = r#"echo "it's $GPUOS_RESTORE"; cat "$GPUOS_RESTORE/state""#;
    let again = [
        ("LSB_CHKPNT_DIR", &second[..]),
        ("LSB_ERESTART_USRCMD", line),
    ];
    let wrote = run(&erestart, &["-f", "478"], "", &again);
    assert_eq!(code(&wrote), 0, "{wrote:?}");
    let text = fs::read_to_string(chk.join("478/.restart_cmd")).unwrap();
    let command = text.strip_prefix("LSB_RESTART_CMD=").expect("its form");
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    let mut shell = Command::new("sh");
    let started = fed(shell.args(["-c", command]), "", &again);
    assert_eq!(
        out(&started),
        format!("it's {second}/gpuos/2\n2\n"),
        "{started:?}"
    );

    // Nothing is started again where there is nothing to go on from, or by what is not one line.
    for (dir, line) in [(&at("1"), line), (&second, ""), (&second, "a\nb")] {
        let _ = fs::remove_file(chk.join("478/.restart_cmd"));
        let refused = run(
            &erestart,
            &["1"],
            "",
            &[("LSB_CHKPNT_DIR", dir), ("LSB_ERESTART_USRCMD", line)],
        );
        assert_ne!(code(&refused), 0, "{refused:?}");
        assert!(!Path::new(dir).join(".restart_cmd").exists(), "{line}");
    }
}

#[test]
fn a_job_of_torque_goes_on_from_its_checkpoint() {
    let work = TempDir::new().unwrap();
    let starter = adapter(&work, "torque/starter");
    let epilogue = adapter(&work, "torque/epilogue.user");
    let saves = work.path().join("saves");
    fs::create_dir(&saves).unwrap();
    let job = "17[3].head-a.example.org";
    let of_job = [
        ("PBS_JOBID", job),
        ("PBS_NODENUM", "0"),
        ("PBS_TASKNUM", "1"),
    ];
    // Without a folder of the site, jobs have none.
    assert_eq!(out(&run(&starter, &PRINT, "", &of_job)), ":\n");
    let site = format!("SAVES={}\n", saves.display());
    fs::write(work.path().join("default-gpuos-torque"), site).unwrap();
    let folder = saves.join(job);
    let at = folder.display().to_string();
    let first = run(&starter, &PRINT, "", &of_job);
    assert_eq!(out(&first), format!("{at}:\n"), "{first:?}");
    for no in ["", "../17", "17/../../x", "x"] {
        let without = run(&starter, &PRINT, "", &[("PBS_JOBID", no)]);
        assert!(
            out(&without) == ":\n" && errors(&without).contains("no job of Torque"),
            "{no}: {without:?}"
        );
    }

    let program = saving(&folder);
    let done = wlm(&["ckpt", "--folder", &at], "", &[]);
    assert_eq!(code(&done), 0, "{done:?}");
    drop(program);
    // Torque's ten arguments; what a user names a job is one of them.
    let ends = |job: &str| {
        let name = "$(rm -rf ..);x";
        let all = [
            job, "alice", "users", name, "4711", "nodes=1", "cput=0", "batch", "../..", "0",
        ];
        assert_eq!(code(&run(&epilogue, &all, "", &[])), 0, "{job}");
    };
    ends(job);
    // What a job spawns leaves alone what the job is about to save; the job that begins again does not want it.
    fs::create_dir(folder.join("2")).unwrap();
    let told = format!("{at}:{at}/1\n");
    for (name, value) in [
        ("PBS_TASKNUM", "2"),
        ("PBS_NODENUM", "1"),
        ("GPUOS_SAVES", &at),
    ] {
        let mut variables = of_job.to_vec();
        variables.push((name, value));
        assert_eq!(out(&run(&starter, &PRINT, "", &variables)), told, "{name}");
        assert!(folder.join("2").exists(), "{name}");
    }
    assert_eq!(out(&run(&starter, &PRINT, "", &of_job)), told);
    assert!(!folder.join("2").exists());

    let victim = work.path().join("victim");
    fs::create_dir(&victim).unwrap();
    for no in ["", ".", "..", "../victim", "17/../../victim"] {
        ends(no);
    }
    assert!(victim.exists() && folder.join("1/ready").exists());
    // One that has saved nothing leaves nothing behind.
    let empty = run(&starter, &PRINT, "", &[("PBS_JOBID", "18.head")]);
    assert_eq!(code(&empty), 0, "{empty:?}");
    assert!(saves.join("18.head").exists());
    ends("18.head");
    assert!(!saves.join("18.head").exists());

    let not_here = wlm(&["wrap", "lsf", "--saves", "/tmp", "--", "true"], "", &[]);
    assert!(
        code(&not_here) == 1 && errors(&not_here).contains("for jobs of Torque"),
        "{not_here:?}"
    );
}
