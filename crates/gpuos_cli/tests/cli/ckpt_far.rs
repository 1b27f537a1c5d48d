//! `gpuos ckpt` where this machine has no gpuos_mover, or one that gives no answer.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use gpuos_core::wire::{CheckpointJob, CheckpointPhase, MAX_REPLY, PROTOCOL, Reply, encode};
use gpuos_host::socket::MOVER;

use crate::ckpt_bed::{Part, job, mover, start, telling, with};
use crate::site::Site;

/// A machine without gpuos_mover, where the far end of `reach` is another machine, whose gpuos_mover plays this part.
struct Login {
    site: Site,
    none: String,
}

impl Login {
    fn new(part: Part) -> Login {
        let site = Site::new("24.11.5");
        let far = mover(&site, part);
        // Another directory on the other machine than the one that this one's command names.
        let gpuos = format!(
            "#!/bin/sh\nfor word; do\n    shift\n    case \"$word\" in --runtime-dir=*) ;; *) set -- \"$@\" \"$word\" ;; esac\n\
             done\nexec {} \"$@\" {far}\n",
            env!("CARGO_BIN_EXE_gpuos")
        );
        site.file("far.text", &gpuos);
        site.install(&site.dir.path().join("far.text"), "../far/gpuos");
        let reach = format!(
            "#!/bin/sh\nnode=$1\nshift\necho \"$node $*\" >>{}\nPATH={}:$PATH exec sh -c \"$*\"\n",
            site.path("words"),
            site.path("far")
        );
        site.program("reach", &reach);
        // The far end tells of job 17; by Slurm that is what was job 2, on n[1-2].
        site.edit("jobs.txt", "JobId=17 ", "JobId=717 ");
        site.edit("jobs.txt", "JobId=2 ", "JobId=17 ");
        let none = site.path("none");
        Login { site, none }
    }

    /// What the command answers inside this job.
    fn run(&self, job: &str, args: &[&str]) -> (i32, String, String) {
        let path = format!("{}:/usr/bin:/bin", self.site.path("bin"));
        let out = Command::new(env!("CARGO_BIN_EXE_gpuos"))
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env("GPUOS_VIA", "reach")
            .env("GPUOS_RUNTIME_DIR", &self.none)
            .env("SLURM_JOB_ID", job)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = out.status.code().unwrap();
        (code, text(out.stdout), text(out.stderr))
    }

    /// What the other node was told since the last time, a line each.
    fn words(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.site.path("words")).unwrap_or_default();
        let _ = std::fs::remove_file(self.site.path("words"));
        let dir = format!(" --runtime-dir='{}'", self.none);
        text.lines().map(|line| line.replace(&dir, "")).collect()
    }
}

#[test]
fn without_a_mover_the_jobs_first_node_is_asked() {
    let login = Login::new(telling(&with(&[4], None, &[])));
    let (code, out, err) = login.run("17", &["ckpt", "show"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("Job 17 of 4000000001 on n[1-2]"), "{out}");
    assert!(out.contains("The job's other nodes, n2,"), "{out}");
    assert_eq!(login.words(), ["n1 gpuos --json ckpt list --local '17'"]);
    let (code, out, err) = login.run("17", &["ckpt", "verify"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("n1: 1 checkpoint read, all of it holds\n"),
        "{out}"
    );
}

/// The words for the other node, and its answer.
#[test]
fn another_node_is_asked_by_the_same_command_there() {
    let after = [with(&[4, 5], None, &[])];
    let login = Login::new(Part {
        after_now: after.into(),
        ..telling(&with(&[4], None, &[]))
    });
    let (code, out, err) = login.run("1", &["ckpt", "now", "17", "--node", "n9"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("checkpoint 5 of job 17 is committed"),
        "{out}"
    );
    let words = login.words();
    assert_eq!(
        words[..2],
        [
            "n9 gpuos --json ckpt list --local '17'",
            "n9 gpuos --json ckpt now --no-wait --local '17'"
        ]
    );
    assert!(words[2..].iter().all(|line| *line == words[0]), "{words:?}");
    let (code, out, err) = login.run("1", &["ckpt", "prune", "17", "--node", "n9"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("n1: 2 checkpoints of job 17 are removed\n"),
        "{out}"
    );
    let (code, out, err) = login.run("1", &["ckpt", "list", "--node", "n9"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("1 job, "), "{out}");
    assert_eq!(
        login.words().last().unwrap(),
        "n9 gpuos --json ckpt list --local"
    );
}

#[test]
fn who_cannot_be_asked_is_said_with_what_to_do() {
    let login = Login::new(Part::default());
    let said = |args: &[&str], parts: &[&str]| {
        let (code, out, err) = login.run("17", args);
        assert_eq!((code, &out[..]), (1, ""), "{args:?}");
        for part in parts {
            assert!(err.contains(part), "{args:?}: {part}: {err}");
        }
    };
    let none = "no gpuos_mover answers here";
    said(
        &["ckpt", "list"],
        &[none, "--node NODE", "gpuos ckpt show JOBID"],
    );
    said(
        &["ckpt", "show", "17", "--local"],
        &[none, "systemctl start gpuos_mover"],
    );
    // Job 9 waits, 999 is not there, 4 is an array, of which 4_0 runs as job 7 on n1.
    said(
        &["ckpt", "show", "9"],
        &[none, "has no nodes now", "--node"],
    );
    said(
        &["ckpt", "show", "999"],
        &[none, "does not know job 999", "--node"],
    );
    said(
        &["ckpt", "now", "4_0"],
        &["gpuos_mover of n1 tells you of no checkpoints of job 7"],
    );
    said(&["ckpt", "now", "4_99"], &["does not know job 4_99"]);
    login.words();
    said(
        &["ckpt", "show", "--via", "false"],
        &["no answer from n1 by `false`"],
    );
    login.site.program(
        "scontrol",
        "#!/bin/sh\necho slurm_load: refused >&2\nexit 1\n",
    );
    said(&["ckpt", "show", "17"], &[none, "refused", "--node"]);
    assert_eq!(login.words(), [""; 0]);
}

/// The job was started again on other nodes than this one.
#[test]
fn a_node_that_the_job_has_left_sends_on_to_where_it_runs() {
    let login = Login::new(telling(&with(&[4], None, &[])));
    let left = CheckpointJob {
        nodes: Vec::new(),
        ..job(17, CheckpointPhase::Left)
    };
    start(&login.site, "none", "n7", telling(&[left]));
    let (code, out, err) = login.run("17", &["ckpt", "show"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("running: checkpoints can be made"), "{out}");
    assert_eq!(login.words(), ["n1 gpuos --json ckpt list --local '17'"]);
    // What it keeps itself is asked of it.
    let (code, out, err) = login.run("17", &["ckpt", "prune", "17"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("n7: 2 checkpoints of job 17"), "{out}");
    for args in [
        &["ckpt", "show", "--local"][..],
        &["ckpt", "show", "--via", "false"],
    ] {
        let (code, out, err) = login.run("17", args);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("left: the job does not run here"), "{out}");
    }
    assert_eq!(login.words(), [""; 0]);
}

/// A gpuos_mover that ends in the middle of an answer, and one whose answer is none.
#[test]
fn what_is_no_answer_is_said_to_be_gpuos_movers() {
    for (last, part) in [
        (&b""[..], "gpuos_mover did not answer"),
        (
            b"{\"answer\":\"soup\"}\n",
            "gpuos_mover's answer cannot be read",
        ),
    ] {
        let site = Site::new("24.11.5");
        let dir = site.path("run");
        std::fs::create_dir_all(&dir).unwrap();
        let listener = UnixListener::bind(Path::new(&dir).join(MOVER)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let hello = Reply::Hello {
                    protocol: PROTOCOL,
                    release: "0.1.0".into(),
                    node: "n1".into(),
                };
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(&encode(&hello, MAX_REPLY).unwrap());
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(last);
            }
        });
        let run = format!("--runtime-dir={dir}");
        for args in [&["ckpt", "list"][..], &["ckpt", "show", "17"]] {
            let answer = site.run(&[args, &[&run]].concat());
            assert_eq!(answer.code, 1);
            assert!(answer.err.contains(part), "{}", answer.err);
        }
        let json = site.run(&["ckpt", "list", "--json", &run]);
        assert_eq!(json.json()["schema"], "gpuos.error/1");
    }
}

#[test]
fn wrong_usage_exits_2() {
    let site = Site::new("24.11.5");
    for args in [
        &["ckpt"][..],
        &["ckpt", "show"],
        &["ckpt", "show", "x"],
        &["ckpt", "prune"],
        &["ckpt", "list", "../x"],
        &["ckpt", "show", "1", "--node", "-oProxyCommand=id"],
        &["ckpt", "show", "1", "--node", "n1", "--local"],
        &["ckpt", "show", "1", "--config", "/etc/none"],
    ] {
        assert_eq!(site.run(args).code, 2, "{args:?}");
    }
}
