//! Numbers of others' jobs, named where root's daemons remove something, or remember it to be removed.
//!
//! The victim's checkpoints lie on n4 and n5. Attackers run on n3, where nothing of hers is yet, and on n5; what she stores is looked at by root, at the
//! disk. A checkpoint of hers is put on n3 by root while the attackers' jobs run, as if her job had come there, and has to be there after they have ended.

use std::fs;
use std::path::{Path, PathBuf};

use super::checkpoints::{ENVIRONMENT, HELLO, OPTION, SOCKET, goes_on, socket};
use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::{EVE, MALLORY, User};

/// A node that the victim's job has, and one that it has not.
const HERS: &str = "n5";
const OTHER: &str = "n2";

/// A program that joins, says what it is told, and stays for as long as it is let.
const JOINS: &str = "d=$GPUOS_CHECKPOINT_DIR; : >$d/ranks/0.1.7; while [ ! -e $d/start.0.7 ]; do sleep 0.1; done; \
    echo \"end=$(head -1 $d/start.0.7)\"; sleep 3600";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    drills(&mut all);
    prunes(&mut all);
    forms(&mut all);
    begins(&mut all);
    all
}

fn stored(stage: &Stage, node: &str, job: u32) -> PathBuf {
    let store = stage.cluster.lab.checkpoints_dir(node);
    store.join(job.to_string())
}

/// All names in a folder, and in its folders.
fn names(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        all.extend(names(&path));
        all.push(path);
    }
    all
}

/// Copies what is kept of a job, once there is a checkpoint that exists.
fn copied(stage: &Stage, from: &Path, to: &Path) -> Result<(), String> {
    let done = stage.try_until(|| {
        if !to.join("CURRENT").exists() {
            let _ = fs::remove_dir_all(to);
            // What retention removes meanwhile is not there any more.
            let copy = std::process::Command::new("cp")
                .arg("-a")
                .args([from, to])
                .output();
            copy.ok()?;
        }
        to.join("CURRENT").exists().then_some(())
    });
    done.ok_or_else(|| format!("nothing to copy: {:?}", names(from)))
}

/// A drill, or a begin, from the victim's job, on a node that has nothing of it when the attacker's job begins. `{victim}` in `value` is her job's
/// number.
fn drills(all: &mut Vec<Attempt>) {
    let holds = "is told that it cannot, and what the victim has stored on that node by the end of his job stays";
    for (name, value, user) in [
        (
            "a drill of another's job that is not there yet",
            "{victim}/1/lose:0",
            MALLORY,
        ),
        (
            "a drill of another's newest checkpoint",
            "{victim}/2/lose:1",
            MALLORY,
        ),
        (
            "a second user's drill of the same job",
            "{victim}/1/lose:2",
            EVE,
        ),
    ] {
        let begun = attempt(OPTION, name, holds, move |stage: &Stage| -> Judge {
            let pid = stage.cluster.lab.mover_pid(HERS);
            let victim = stage.victims.saved;
            let value = value.replace("{victim}", &victim.to_string());
            let restart = format!("--gpuos-restart={value}");
            let options = ["-w", OTHER, "--gpuos-checkpoint=1s,l2=single", &restart];
            let job = stage.sbatch_with(stage.command(user, "sbatch"), &options, JOINS);
            judge(move |stage| {
                let job = job?;
                let end = stage.told(job, "end=")?;
                ensure(
                    end.starts_with("failed ") && end.contains("another user's"),
                    || format!("the program is told {end:?}"),
                )?;
                let here = stored(stage, OTHER, victim);
                // Attempts share the node: the first one puts it there.
                copied(stage, &stored(stage, HERS, victim), &here)?;
                stage.cluster.cancel(&[job]);
                let folder = here.parent().map(|store| store.with_file_name("jobs"));
                let folder = folder.unwrap_or_default().join(job.to_string());
                let gone = stage.try_until(|| (!folder.exists()).then_some(()));
                gone.ok_or_else(|| format!("{} is there", folder.display()))?;
                std::thread::sleep(std::time::Duration::from_secs(2));
                ensure(here.join("CURRENT").exists(), || {
                    format!("what is kept is gone: {:?}", names(&here))
                })?;
                let log = stage.cluster.lab.mover_log(OTHER);
                let removed = format!("what was kept of job {victim} of user");
                ensure(!log.contains(&removed), || {
                    "the log says that it is removed".into()
                })?;
                goes_on(stage, pid)
            })
        });
        all.push(begun.in_wave(Wave::Saving));
    }
    let nothing = "no folder is made for a job of which nobody has shown that it is his";
    for (name, value) in [
        ("a drill of a job that comes next", "{next}/1/lose:0"),
        (
            "a drill of the largest number that there is",
            "4294967295/1/lose:0",
        ),
        ("a begin from a job that comes next", "{next}/1"),
    ] {
        let begun = attempt(OPTION, name, nothing, move |stage: &Stage| -> Judge {
            let pid = stage.cluster.lab.mover_pid(HERS);
            // Numbers are given one after another: one that no job of this wave gets.
            let next = stage.victims.saved + 100_000;
            let value = value.replace("{next}", &next.to_string());
            let named: u32 = value
                .split('/')
                .next()
                .and_then(|it| it.parse().ok())
                .unwrap_or(0);
            let restart = format!("--gpuos-restart={value}");
            let options = ["-w", OTHER, "--gpuos-checkpoint=1s,l2=single", &restart];
            let script = JOINS.replace("3600", "20");
            let job = stage.sbatch_with(stage.command(MALLORY, "sbatch"), &options, &script);
            judge(move |stage| {
                let end = stage.told(job?, "end=")?;
                ensure(end.starts_with("failed "), || {
                    format!("the program is told {end:?}")
                })?;
                let here = stored(stage, OTHER, named);
                ensure(!here.exists(), || format!("{} is there", here.display()))?;
                goes_on(stage, pid)
            })
        });
        all.push(begun.in_wave(Wave::Saving));
    }
}

/// Requests to remove, by sockets of nodes that have the victim's job, had it, and never had it.
fn prunes(all: &mut Vec<Attempt>) {
    let refused = "is refused, nothing of the victim's goes, and her checkpoints go on";
    for (name, node, user, what) in [
        (
            "removes another's checkpoints, and has her job begin anew",
            HERS,
            MALLORY,
            "\"anew\":true",
        ),
        (
            "the same on a node that her job has not",
            OTHER,
            MALLORY,
            "\"anew\":true",
        ),
        ("the same by a second user", HERS, EVE, "\"anew\":true"),
        (
            "removes with a user of his own choice",
            HERS,
            EVE,
            "\"anew\":true,\"uid\":0",
        ),
    ] {
        all.push(attempt(
            SOCKET,
            name,
            refused,
            move |stage: &Stage| -> Judge {
                let pid = stage.cluster.lab.mover_pid(HERS);
                let victim = stage.victims.saved;
                let told = asked(stage, (user, node), victim, what);
                judge(move |stage| {
                    let told = told.heard();
                    let last = told.last().cloned().unwrap_or_default();
                    ensure(last.contains("\"answer\":\"refused\""), || {
                        format!("told {told:?}")
                    })?;
                    let here = stored(stage, HERS, victim);
                    ensure(here.join("CURRENT").exists(), || {
                        format!("what is kept is gone: {:?}", names(&here))
                    })?;
                    goes_on(stage, pid)
                })
            },
        ));
    }
}

/// Requests that name the victim's job otherwise than by its number, or have more done than its owner could.
fn forms(all: &mut Vec<Attempt>) {
    let refused = "is refused, nothing of the victim's goes, and her checkpoints go on";
    for (name, node, what) in [
        (
            "removes another's checkpoints by its number as a text",
            HERS,
            "\"do\":\"prune\",\"job\":\"{victim}\",\"anew\":true",
        ),
        (
            "removes what lies at a path that leads to another's",
            HERS,
            "\"do\":\"prune\",\"job\":\"x/../{victim}\",\"anew\":true",
        ),
        (
            "removes what a task of another's number would have",
            HERS,
            "\"do\":\"prune\",\"job\":\"{victim}[0]\",\"anew\":true",
        ),
        (
            "has another's job begin from an earlier checkpoint, by a node that it has not",
            OTHER,
            "\"do\":\"choose\",\"job\":{victim},\"number\":1",
        ),
        (
            "has another's job requeued by root",
            HERS,
            "\"do\":\"requeue\",\"job\":{victim}",
        ),
    ] {
        all.push(attempt(
            SOCKET,
            name,
            refused,
            move |stage: &Stage| -> Judge {
                let pid = stage.cluster.lab.mover_pid(HERS);
                let victim = stage.victims.saved;
                let what = what.replace("{victim}", &victim.to_string());
                let text = format!("{{\"ask\":\"checkpoint\",\"what\":{{{what}}}}}\n");
                let text = format!("{HELLO}{text}");
                let told = stage.talk_to(MALLORY, &socket(stage, node), text.as_bytes(), 2);
                judge(move |stage| {
                    let told = told.heard();
                    let last = told.last().cloned().unwrap_or_default();
                    ensure(last.contains("\"answer\":\"refused\""), || {
                        format!("told {told:?}")
                    })?;
                    let chosen = stored(stage, HERS, victim).join("chosen");
                    ensure(!chosen.exists(), || "a checkpoint is chosen".into())?;
                    let kept = stored(stage, HERS, victim).join("CURRENT");
                    ensure(kept.exists(), || "what is kept is gone".into())?;
                    goes_on(stage, pid)
                })
            },
        ));
    }
}

/// Begins from the victim's checkpoints, by other ways to say so than the option with her job's number.
fn begins(all: &mut Vec<Attempt>) {
    let holds = "is refused at submission, or the program is told that it cannot";
    for (name, input, value) in [
        (
            "begins from another's job by the name of a task",
            OPTION,
            "{victim}_0/1",
        ),
        (
            "begins from another's job by the name of a component",
            OPTION,
            "{victim}+0/1",
        ),
        (
            "begins from another's job by a default of the environment",
            ENVIRONMENT,
            "{victim}/1",
        ),
    ] {
        let begun = attempt(input, name, holds, move |stage: &Stage| -> Judge {
            let pid = stage.cluster.lab.mover_pid(HERS);
            let victim = stage.victims.saved;
            let value = value.replace("{victim}", &victim.to_string());
            let restart = format!("--gpuos-restart={value}");
            let mut options = vec!["-w", OTHER, "--gpuos-checkpoint=1s,l2=single"];
            let mut command = stage.command(MALLORY, "sbatch");
            match input == OPTION {
                true => options.push(&restart),
                false => drop(command.env("GPUOS_RESTART", &value)),
            }
            let script = JOINS.replace("3600", "20");
            let job = stage.sbatch_with(command, &options, &script);
            judge(move |stage| {
                if let Ok(job) = job {
                    let end = stage.told(job, "end=")?;
                    ensure(end.starts_with("failed "), || {
                        format!("the program is told {end:?}")
                    })?;
                }
                let kept = stored(stage, HERS, victim).join("CURRENT");
                ensure(kept.exists(), || "what is kept is gone".into())?;
                goes_on(stage, pid)
            })
        });
        all.push(begun.in_wave(Wave::Saving));
    }
}

fn asked(stage: &Stage, (user, node): (User, &str), job: u32, more: &str) -> crate::stage::Talk {
    let text =
        format!("{{\"ask\":\"checkpoint\",\"what\":{{\"do\":\"prune\",\"job\":{job},{more}}}}}\n");
    stage.talk_to(
        user,
        &socket(stage, node),
        format!("{HELLO}{text}").as_bytes(),
        2,
    )
}
