//! The Python package.

use std::process::Command;

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
