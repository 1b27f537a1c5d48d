//! The shell file, in each shell that is here.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Mover, count, root, run_counter};

const SHELLS: [&str; 2] = ["dash", "bash"];

fn shells() -> impl Iterator<Item = &'static str> {
    SHELLS.into_iter().filter(|shell| {
        let here = Command::new(shell).args(["-c", ":"]).status();
        let here = here.is_ok_and(|status| status.success());
        if !here {
            eprintln!("skipped: there is no {shell} here");
        }
        here
    })
}

/// A command for a script that sources the file first.
fn script(shell: &str, folder: Option<&Path>, text: &str) -> Command {
    let file: PathBuf = root().join("share/gpuos-checkpoint.sh");
    let mut command = Command::new(shell);
    command
        .args(["-euc", &format!(". '{}'\n{text}", file.display())])
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    if let Some(folder) = folder {
        command.env("GPUOS_CHECKPOINT_DIR", folder);
    }
    command
}

/// Its standard output, if it ends well; else standard error.
fn output(command: &mut Command) -> Result<String, String> {
    let out = command.output().expect("a shell");
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into()),
        false => Err(String::from_utf8_lossy(&out.stderr).into()),
    }
}

#[test]
fn the_example_counts_on() {
    for shell in shells() {
        run_counter(|| {
            let mut command = Command::new(shell);
            command
                .arg(root().join("examples/checkpoint/counter.sh"))
                .args(["1000000", "0.001"])
                .env("GPUOS_HELPERS", root().join("share"));
            command
        });
    }
}

#[test]
fn a_job_without_checkpoints_runs_on() {
    let text = "gpuos_checkpoint_start
        ! gpuos_checkpoint_wanted
        ! gpuos_checkpoint_folder 1
        ! gpuos_checkpoint_ready 1
        ! gpuos_checkpoint_wait 1
        echo \"[$gpuos_checkpoint_from] $gpuos_checkpoint_why\"";
    for shell in shells() {
        let said = output(&mut script(shell, None, text));
        assert_eq!(
            said.as_deref(),
            Ok("[] this job makes no checkpoints\n"),
            "{shell}"
        );
    }
}

#[test]
fn what_cannot_be_loaded_is_refused_and_the_one_before_is_given() {
    let text = "! gpuos_checkpoint_refuse
        gpuos_checkpoint_ask
        gpuos_checkpoint_start
        gpuos_checkpoint_ask
        [ -f \"$GPUOS_CHECKPOINT_DIR/ranks/ask.0\" ] || exit 1
        for number in 1 2; do
            until gpuos_checkpoint_wanted; do sleep 0.01; done
            gpuos_checkpoint_folder $number
            echo $number >\"$gpuos_checkpoint_into/state\"
            gpuos_checkpoint_ready $number
            gpuos_checkpoint_wait $number
        done
        gpuos_checkpoint_start
        cat \"$gpuos_checkpoint_from/state\"
        gpuos_checkpoint_refuse 'no layer 7'
        ! gpuos_checkpoint_refuse || exit 1
        gpuos_checkpoint_start
        cat \"$gpuos_checkpoint_from/state\"
        gpuos_checkpoint_refuse
        gpuos_checkpoint_start || echo \"$gpuos_checkpoint_why\"";
    for shell in shells() {
        let mover = Mover::start();
        let mut command = script(shell, Some(mover.path()), text);
        let running = std::thread::spawn(move || output(&mut command));
        for number in [1, 2] {
            assert_eq!(mover.ask("asked"), number);
            mover.ended(number).expect("committed");
        }
        let said = running.join().expect("it ends");
        let wanted = "2\n1\nno checkpoint can be restored\n";
        assert_eq!(said.as_deref(), Ok(wanted), "{shell}");
        let mut refused = mover.refused();
        refused.sort();
        assert_eq!(refused, ["", "no layer 7"], "{shell}");
    }
}

#[test]
fn what_was_saved_and_came_to_nothing_is_told_by_what_comes_next() {
    let text = "save() {
            until gpuos_checkpoint_wanted; do sleep 0.01; done
            number=$gpuos_checkpoint_number
            gpuos_checkpoint_folder \"$number\"
            gpuos_checkpoint_ready \"$number\"
        }
        gpuos_checkpoint_start
        save
        until [ -n \"$gpuos_checkpoint_lost\" ]; do gpuos_checkpoint_wanted || sleep 0.01; done
        gpuos_checkpoint_ask
        echo \"$gpuos_checkpoint_lost: $gpuos_checkpoint_lost_why\"
        save
        until [ -z \"$gpuos_checkpoint_lost\" ]; do gpuos_checkpoint_wanted || sleep 0.01; done
        echo \"$gpuos_checkpoint_lost_why over\"";
    for shell in shells() {
        let mover = Mover::start();
        let mut command = script(shell, Some(mover.path()), text);
        let running = std::thread::spawn(move || command.output().expect("a shell"));
        let lost = mover.ask_in_vain("interval", "no room");
        mover.ended(lost).expect_err("fails");
        mover.ended(mover.ask("interval")).expect("committed");
        let out = running.join().expect("it ends");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(said(&out.stdout), "1: no room\n over\n", "{shell}: {out:?}");
        assert_eq!(
            said(&out.stderr),
            "gpuos: checkpoint 1 was saved and came to nothing: no room; the program goes on, and it would begin again from its start\n",
            "{shell}"
        );
    }
}

/// What the newest join says, and whether it is free.
fn join_of(mover: &Mover) -> (String, bool) {
    use rustix::fs::{FlockOperation, flock};
    let ranks = std::fs::read_dir(mover.path().join("ranks")).expect("there");
    let newest = ranks.flatten().map(|entry| entry.path()).max();
    let path = newest.expect("a join");
    let file = std::fs::File::open(&path).expect("opened");
    let is_free = flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    (std::fs::read_to_string(&path).expect("read"), is_free)
}

#[test]
fn a_join_is_locked_as_long_as_the_shell_runs_whatever_it_has_open() {
    // It joins twice, as a program that begins again, and has a file of its own open.
    let text = "echo mine >\"$GPUOS_CHECKPOINT_DIR/../mine\"
        exec 9<\"$GPUOS_CHECKPOINT_DIR/../mine\"
        gpuos_checkpoint_start
        gpuos_checkpoint_start
        echo joined
        read -r line
        read -r own <&9
        echo \"$line $own\"";
    for shell in shells() {
        let mover = Mover::start();
        let mut command = script(shell, Some(mover.path()), text);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.spawn().expect("a shell");
        let mut said = BufReader::new(running.stdout.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("read");
        assert_eq!(line, "joined\n", "{shell}");
        assert_eq!(join_of(&mover), ("locked\n".into(), false), "{shell}");
        let mut stdin = running.stdin.take().expect("piped");
        stdin.write_all(b"end\n").expect("written");
        line.clear();
        said.read_line(&mut line).expect("read");
        assert!(running.wait().expect("ends").success());
        assert_eq!(line, "end mine\n", "{shell}");
        assert_eq!(join_of(&mover), ("locked\n".into(), true), "{shell}");
    }
}

#[test]
fn without_flock_a_join_says_nothing_of_a_lock() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["date", "rm", "sleep"].into_iter().chain(shells()) {
        let program = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(name));
        let program = program.into_iter().find(|path| path.exists());
        let to = program.expect("it is here");
        std::os::unix::fs::symlink(to, dir.path().join(name)).expect("a link");
    }
    for shell in shells() {
        let mover = Mover::start();
        let mut command = script(shell, Some(mover.path()), "gpuos_checkpoint_start");
        command.env("PATH", dir.path());
        assert_eq!(output(&mut command).as_deref(), Ok(""), "{shell}");
        assert_eq!(join_of(&mover), (String::new(), true), "{shell}");
    }
}

#[test]
fn a_program_that_outlives_sigterm_does_so_with_what_it_starts() {
    let text = "gpuos_checkpoint_outlive
        kill -TERM $$
        sh -c 'kill -TERM $$; echo child goes on'
        echo goes on";
    for shell in shells() {
        let said = output(&mut script(shell, None, text));
        assert_eq!(said.as_deref(), Ok("child goes on\ngoes on\n"), "{shell}");
    }
}

#[test]
fn ranks_come_from_the_launcher_or_are_given() {
    let show = "_gpuos_launcher; echo $_gpuos_rank $_gpuos_size";
    for shell in shells() {
        let with = |set: &[(&str, &str)]| {
            let mut command = script(shell, None, show);
            command.envs(set.iter().copied());
            output(&mut command).expect("shown").trim_end().to_string()
        };
        let step = |id| {
            [
                ("SLURM_STEP_ID", id),
                ("SLURM_PROCID", "1"),
                ("SLURM_STEP_NUM_TASKS", "2"),
            ]
        };
        let torch = [("RANK", "5"), ("WORLD_SIZE", "16")];
        let pmi = [("PMI_RANK", "2"), ("PMI_SIZE", "4")];
        assert_eq!(with(&[]), "0 1");
        assert_eq!(with(&step("3")), "1 2");
        assert_eq!(with(&step("4294967291")), "0 1");
        assert_eq!(with(&[&step("3")[..], &torch, &pmi].concat()), "2 4");
        let torchrun = [("TORCHELASTIC_RUN_ID", "none")];
        assert_eq!(
            with(&[&step("3")[..], &torch, &pmi, &torchrun].concat()),
            "5 16"
        );
    }
}

#[test]
fn a_start_that_fails_says_why() {
    for shell in shells() {
        let mover = Mover::start();
        mover.refuse("made by 8 ranks, and this program has 1");
        let refused = output(&mut script(
            shell,
            Some(mover.path()),
            "gpuos_checkpoint_start",
        ));
        assert_eq!(
            refused,
            Err("gpuos: made by 8 ranks, and this program has 1\n".into()),
            "{shell}"
        );
        let text = "gpuos_checkpoint_start 4 4";
        let refused = output(&mut script(shell, Some(mover.path()), text)).expect_err("refused");
        assert!(
            refused.starts_with("gpuos: rank 4 of 4 cannot be"),
            "{refused}"
        );
        let nowhere = Some(Path::new("/nonexistent/7"));
        let refused = output(&mut script(shell, nowhere, "gpuos_checkpoint_start"));
        assert!(
            refused
                .expect_err("refused")
                .contains("in a container, bind")
        );
    }
}

#[test]
fn a_checkpoint_whose_folder_does_not_come_is_not_wanted_again() {
    // The request is there and no folder: the test makes it, as the mover would not.
    let text = "gpuos_checkpoint_start
        echo '7 interval' >\"$GPUOS_CHECKPOINT_DIR/request\"
        gpuos_checkpoint_wanted
        ! gpuos_checkpoint_folder 7 0
        echo \"$gpuos_checkpoint_why\"
        ! gpuos_checkpoint_wanted
        echo '8 interval' >\"$GPUOS_CHECKPOINT_DIR/request\"
        gpuos_checkpoint_wanted
        echo \"$gpuos_checkpoint_number\"";
    for shell in shells() {
        let mover = Mover::start();
        let said = output(&mut script(shell, Some(mover.path()), text));
        let expected = "the folder for checkpoint 7 did not come within 0 s\n8\n";
        assert_eq!(said.as_deref(), Ok(expected), "{shell}");
    }
}

#[test]
fn of_two_programs_at_once_the_later_one_alone_saves() {
    // The test removes the file by which the script has joined, as another process would.
    let text = "gpuos_checkpoint_start
        rm \"$GPUOS_CHECKPOINT_DIR\"/ranks/*
        echo '7 interval' >\"$GPUOS_CHECKPOINT_DIR/request\"
        ! gpuos_checkpoint_wanted 2>>\"$GPUOS_CHECKPOINT_DIR/told\"
        ! gpuos_checkpoint_wanted 2>>\"$GPUOS_CHECKPOINT_DIR/told\"
        grep -c 'one program at a time' \"$GPUOS_CHECKPOINT_DIR/told\"
        ! gpuos_checkpoint_folder 7
        ! gpuos_checkpoint_ready 7
        echo \"$gpuos_checkpoint_why\"";
    for shell in shells() {
        let mover = Mover::start();
        let said = output(&mut script(shell, Some(mover.path()), text));
        let expected = "1\nanother process of this job has joined as rank 0 of 1 after this one: a job makes checkpoints of one program at a time\n";
        assert_eq!(said.as_deref(), Ok(expected), "{shell}");
    }
}

#[test]
fn outcomes_are_told_apart() {
    // The script saves whatever is wanted until it is told to stop, and says how each ended.
    let text = "gpuos_checkpoint_start
        while [ \"$gpuos_checkpoint_reason\" != end ]; do
            sleep 0.01
            gpuos_checkpoint_wanted || continue
            gpuos_checkpoint_folder \"$gpuos_checkpoint_number\"
            gpuos_checkpoint_ready \"$gpuos_checkpoint_number\"
            code=0
            gpuos_checkpoint_wait \"$gpuos_checkpoint_number\" || code=$?
            echo \"$gpuos_checkpoint_number $code $gpuos_checkpoint_why\"
        done
        ! gpuos_checkpoint_folder 1
        echo \"$gpuos_checkpoint_why\"
        gpuos_checkpoint_outcome 2
        echo \"$gpuos_checkpoint_outcome\"
        code=0
        gpuos_checkpoint_wait 9 0 || code=$?
        echo \"$code $gpuos_checkpoint_why\"";
    for shell in shells() {
        let mover = Mover::start();
        let mut command = script(shell, Some(mover.path()), text);
        let script = command.stdout(Stdio::piped()).spawn().expect("a shell");
        assert!(
            mover
                .ended(mover.ask_in_vain("interval", "node 3 is away"))
                .is_err()
        );
        assert!(mover.ended(mover.ask("asked")).is_ok());
        assert!(mover.ended(mover.ask_in_vain("end", "no room")).is_err());
        let out = script.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(
            said,
            "1 1 node 3 is away\n2 0 \n3 1 no room\na newer checkpoint exists\ncommitted\n\
             2 the end of checkpoint 9 did not come within 0 s\n",
            "{shell}"
        );
        assert!(count(&mover, 2).is_none(), "no file was written");
    }
}

/// What never came on this node is over when a newer one is asked for.
#[test]
fn a_checkpoint_that_never_came_is_over() {
    let text = "gpuos_checkpoint_start
        at=$GPUOS_CHECKPOINT_DIR
        printf '3 interval\\n' >\"$at/request\"
        gpuos_checkpoint_outcome 2
        echo \"$gpuos_checkpoint_outcome: $gpuos_checkpoint_why\"
        gpuos_checkpoint_outcome 3 || echo \"$gpuos_checkpoint_outcome\"
        printf '2\\n' >\"$at/commit\"
        gpuos_checkpoint_outcome 2
        echo \"$gpuos_checkpoint_outcome\"";
    for shell in shells() {
        let mover = Mover::start();
        let said = output(&mut script(shell, Some(mover.path()), text));
        let wanted =
            "failed: it came to nothing, as checkpoint 3 is asked for\npending\ncommitted\n";
        assert_eq!(said.as_deref(), Ok(wanted), "{shell}");
    }
}
