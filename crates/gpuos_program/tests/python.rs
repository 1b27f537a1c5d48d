//! The Python package.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Mover, count, root, run_counter};

/// A command for Python, unless none is here that is new enough.
fn python() -> Option<Command> {
    let mut command = Command::new("python3");
    let new = "import sys; sys.exit(sys.version_info < (3, 9))";
    let here = command.args(["-c", new]).status();
    if !here.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no python3 of version 3.9 or newer here");
        return None;
    }
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", root().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

#[test]
fn its_own_tests_pass() {
    let Some(mut command) = python() else { return };
    let out = command
        .args(["-W", "error", "-m", "unittest", "discover", "-s"])
        .arg(root().join("python/tests"))
        .arg("-t")
        .arg(root().join("python"))
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("\nOK"), "{text}");
}

#[test]
fn the_example_counts_on() {
    if python().is_none() {
        return;
    }
    run_counter(|| {
        let mut command = python().expect("is here");
        command
            .arg(root().join("examples/checkpoint/loop.py"))
            .args(["1000000", "0.001"]);
        command
    });
}

#[test]
fn ranks_of_an_mpi_program_agree_by_a_broadcast() {
    let Some(mut rank_1) = python() else { return };
    let mover = Mover::start();
    let text = |told: u32| {
        format!(
            "from gpuos import checkpoint
with checkpoint.session(broadcast=lambda value: ({told} or value[0], 2)) as ckpt:
    while not ckpt.due():
        pass
    ckpt.save(write=lambda folder: (folder / 'count').write_text(str(checkpoint.launched()[0])))
    assert ckpt.ending
"
        )
    };
    let mut rank_0 = python().expect("is here");
    let start = |command: &mut Command, rank: &str, text: String| {
        command
            .args(["-c", &text])
            .env("GPUOS_CHECKPOINT_DIR", mover.path())
            .env("OMPI_COMM_WORLD_RANK", rank)
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .env_remove("TORCHELASTIC_RUN_ID")
            .spawn()
            .expect("starts")
    };
    // Rank 1 is told of checkpoint 1 before it is asked for: it waits for its folder.
    let mut ranks = [
        start(&mut rank_0, "0", text(0)),
        start(&mut rank_1, "1", text(1)),
    ];
    mover.ended(mover.ask("end")).expect("committed");
    for rank in &mut ranks {
        assert!(rank.wait().expect("ends").success());
    }
    assert_eq!(count(&mover, 1), Some(0));
}

/// The training loop of the examples, with so many ranks, each up to its end or until the caller ends it: then it is one with a pause in each step.
fn train(
    command: impl Fn() -> Command,
    (ranks, pause): (u16, &str),
    mover: Option<&Mover>,
    meet: &Path,
) -> Vec<Child> {
    let start = |rank: u16| {
        let mut command = command();
        command
            .arg(root().join("examples/checkpoint/train.py"))
            .args(["300", pause])
            .env("INIT_METHOD", format!("file://{}", meet.display()))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .stdout(Stdio::piped());
        for name in ["TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
            command.env_remove(name);
        }
        match mover {
            Some(mover) => command.env("GPUOS_CHECKPOINT_DIR", mover.path()),
            None => command.env_remove("GPUOS_CHECKPOINT_DIR"),
        };
        command.spawn().expect("starts")
    };
    (0..ranks).map(start).collect()
}

/// Ends a program in the midst, after a checkpoint, and holds the parameters of its second start against those of a run that nothing disturbed.
fn ends_with_the_same_parameters(command: impl Fn() -> Command, ranks: u16) {
    let folder = tempfile::tempdir().expect("a folder");
    let ended = |programs: Vec<Child>| -> Vec<String> {
        let out = programs.into_iter().map(|program| {
            let out = program.wait_with_output().expect("ends");
            assert!(out.status.success(), "{out:?}");
            String::from_utf8_lossy(&out.stdout).into_owned()
        });
        out.collect()
    };
    let parameters = |out: &[String]| -> Vec<String> {
        let of = |out: &String| {
            let line = out.lines().find(|line| line.starts_with("parameters "));
            line.unwrap_or_else(|| panic!("{out}")).to_string()
        };
        out.iter().map(of).collect()
    };
    let meet = |name: &str| folder.path().join(name);
    let undisturbed = train(&command, (ranks, "0"), None, &meet("undisturbed"));
    let undisturbed = ended(undisturbed);
    let mover = Mover::start();
    // It goes on for as long as any machine needs to ask for a checkpoint.
    let mut programs = train(&command, (ranks, "0.2"), Some(&mover), &meet("first"));
    mover.ended(mover.ask("interval")).expect("committed");
    for program in &mut programs {
        program.kill().expect("it ran");
        program.wait().expect("ends");
    }
    mover.restart();
    let again = ended(train(&command, (ranks, "0"), Some(&mover), &meet("again")));
    for out in &again {
        assert!(out.starts_with("restored checkpoint 1 at "), "{out}");
    }
    assert_eq!(parameters(&again), parameters(&undisturbed));
}

#[test]
fn a_training_loop_ends_with_the_same_parameters() {
    if python().is_some() {
        ends_with_the_same_parameters(|| python().expect("is here"), 1);
    }
}

#[test]
fn ranks_of_torch_end_with_the_same_parameters() {
    if std::env::var_os("GPUOS_LONG").is_none() {
        eprintln!("skipped: it takes long to load torch, so make random has this");
        return;
    }
    // Debian's goes with its own Python, which need not be the first in PATH.
    let has_torch = |python: &&str| {
        let mut command = Command::new(python);
        let out = command.args(["-c", "import torch.distributed"]).output();
        out.is_ok_and(|out| out.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_torch) else {
        eprintln!("skipped: there is no torch here");
        return;
    };
    let command = || {
        let mut command = Command::new(python);
        command
            .env("PYTHONPATH", root().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    ends_with_the_same_parameters(command, 3);
}

/// What never came on this node is over when a newer one is asked for.
#[test]
fn a_checkpoint_that_never_came_is_over() {
    let Some(mut command) = python() else { return };
    let mover = Mover::start();
    let text = "
from gpuos import checkpoint
from pathlib import Path
import os
client = checkpoint.Checkpoints()
client.join()
folder = Path(os.environ['GPUOS_CHECKPOINT_DIR'])
(folder / 'request').write_text('3 interval\\n')
assert client.outcome(2).why == 'it came to nothing, as checkpoint 3 is asked for', client.outcome(2)
assert client.outcome(3).state == 'pending', client.outcome(3)
(folder / 'commit').write_text('2\\n')
assert client.outcome(2).state == 'committed', client.outcome(2)
";
    let out = command
        .args(["-c", text])
        .env("GPUOS_CHECKPOINT_DIR", mover.path())
        .output()
        .expect("runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
}
