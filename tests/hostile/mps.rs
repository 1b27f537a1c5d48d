//! Folders of MPS, which are the user's own and which gpuosd removes; and the daemons, which run with his rights.

pub(crate) mod trace;
mod traced;

use std::fs;

use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::{ALICE, MALLORY};

/// SECURITY.md's name of the input.
const INPUT: &str = "Folders of MPS";

/// What a job says that has no daemon: on a busy machine that may come later than a step waits for it.
const LATE: &str = "late";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let alive = "gpuosd is the same process, and the folder goes or is given up with a note";
    let kept = "what is not the user's stays";
    let mut all = vec![
        on(
            "n4",
            alive,
            "18,000 folders in one another",
            "\"$ATTACKER\" --exact hostile::plays_its_part --nocapture >/dev/null",
            |_, _| Ok(()),
        ),
        tried(
            alive,
            "a folder that its user cannot read",
            "mkdir -p $own/pipe/x/y; chmod 000 $own/pipe/x",
            |_, _| Ok(()),
        ),
        tried(
            alive,
            "a fifo in the place of the control file",
            "rm -f $own/pipe/control; mkfifo $own/pipe/control $own/log/x",
            |_, _| Ok(()),
        ),
        tried(
            alive,
            "20,000 files",
            "cd $own/log && seq 20000 | xargs touch",
            |_, _| Ok(()),
        ),
        tried(
            alive,
            "a process number that is another's",
            "echo $VICTIM > $own/pipe/pid",
            |_, _| Ok(()),
        ),
    ];
    // The last wave: where gpuosd does not live through it, nothing else is looked for on that node.
    all.iter_mut()
        .take(1)
        .for_each(|one| one.wave = Wave::Unchecked);
    all.extend([
        tried(kept, "a link to another user's folder", "ln -s $HERS $own/log/x; rm -rf $own/pipe; ln -s $HERS $own/pipe", has_file),
        tried(kept, "folder and link that change places", "(mkdir $own/a; ln -s $HERS $own/b; i=0; while [ $i -lt 20000 ]; do mv -T $own/a $own/c; mv -T $own/b $own/a; mv -T $own/c $own/b; i=$((i+1)); done) >/dev/null 2>&1 &", has_file),
        tried(kept, "its own folder replaced by a link", "mv $own/pipe $own/x; ln -s /dev $own/pipe; ln -s / $own/root", has_file),
    ]);
    all.extend(traced::all());
    all
}

type Look = fn(&Stage, &str) -> Result<(), String>;

fn has_file(stage: &Stage, name: &str) -> Result<(), String> {
    let file = stage.work(name).join("hers");
    ensure(file.is_file(), || format!("{} is gone", file.display()))
}

/// A job with MPS that does something to its folders and ends.
fn tried(holds: &'static str, name: &'static str, script: &'static str, look: Look) -> Attempt {
    on("n3", holds, name, script, look)
}

/// The same on another node.
fn on(
    node: &'static str,
    holds: &'static str,
    name: &'static str,
    script: &'static str,
    look: Look,
) -> Attempt {
    attempt(INPUT, name, holds, move |stage: &Stage| -> Judge {
        let hers = format!("hers-{}", name.replace(' ', "-"));
        let folder = stage.work(&hers);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("hers"), "hers\n").expect("a file");
        for path in [&folder, &folder.join("hers")] {
            std::os::unix::fs::chown(path, Some(ALICE.uid), Some(ALICE.uid)).expect("given away");
        }
        let pid = stage.cluster.lab.gpuosd_pid(node);
        let lines = format!(
            "own=$(dirname x$CUDA_MPS_PIPE_DIRECTORY)\ncase $own in x*/mps/*) own=${{own#x}} ;; *) echo end={LATE}; exit ;; esac\n\
             export GPUOS_HOSTILE_ROLE=nest GPUOS_HOSTILE_WORDS=\"$own/log\n18000\"\n{script}\necho end=$own"
        );
        let victim = stage.cluster.lab.slurmd_pid(node).unwrap_or_default();
        let submit = move |stage: &Stage| {
            let mut command = stage.command(MALLORY, "sbatch");
            command
                .env("HERS", &folder)
                .env("VICTIM", victim.to_string());
            let options = ["-w", node, "--gres=gpu:1", "--gpuos-mps=on"];
            stage.sbatch_with(command, &options, &lines)
        };
        let job = submit(stage);
        judge(move |stage| {
            let mut own = stage.told(job?, "end=")?;
            for _ in 0..8 {
                if own == LATE {
                    own = stage.told(submit(stage)?, "end=")?;
                }
            }
            ensure(own != LATE, || "no daemon came in time".into())?;
            let over = || {
                let name = own.rsplit('/').next().unwrap_or_default();
                let noted = stage.audit(node).lines().any(|line| {
                    line.contains(name)
                        && (line.contains("MPS") && line.contains("given up")
                            || line.contains("left"))
                });
                let other = stage.cluster.lab.gpuosd_pid(node) != pid;
                (noted || other || !std::path::Path::new(&own).exists()).then_some(())
            };
            let over = stage.try_until(over);
            let now = stage.cluster.lab.gpuosd_pid(node);
            ensure(now.is_some() && now == pid, || {
                format!("gpuosd {pid:?} is {now:?}")
            })?;
            stage.status(node)?;
            look(stage, &hers)?;
            over.ok_or_else(|| format!("{own} is there, and no note about it"))
        })
    })
}
