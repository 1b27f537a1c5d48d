//! Texts of a job that users write: each says that the job is another one, and root's daemon would requeue or end that.
//!
//! The forged text goes into one field after the other. The job asks to be watched (`--gpuos-watch`) and does nothing, so gpuosd has to
//! do something about it within seconds; each attempt has a bait of its own, a job of another user that must stay as it is.

use std::fs;
use std::path::PathBuf;

use gpuos_tests::slices;

use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge, known};
use crate::stage::Stage;
use crate::users::{ALICE, EVE, MALLORY};

/// SECURITY.md's name of the input.
const INPUT: &str = "Texts of a job";

const CARRIER: &str = "Job arrays and heterogeneous jobs";

const UNTOUCHED: &str = "the other user's job runs on, and was not requeued";
const REFUSED: &str = "is refused with a sentence, or changes nothing in the record";

/// What makes gpuosd act.
const WATCHED: [&str; 4] = [
    "--requeue",
    "--gres=gpu:1",
    "--gpuos-watch=on",
    "--exclude=n4",
];

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    refused(&mut all);
    labels(&mut all);
    carriers(&mut all);
    records(&mut all);
    all
}

/// With job_submit/gpuos control characters do not come in.
fn refused(all: &mut Vec<Attempt>) {
    let says = "sbatch is refused with a sentence of gpuos's";
    for (name, option) in [
        (
            "a newline in the name",
            "--job-name=x\nArrayJobId=1 ArrayTaskId=z",
        ),
        ("an escape sequence in the name", "--job-name=x\u{1b}[2Jy"),
        ("a carriage return in the name", "--job-name=x\rJobId=1"),
        (
            "a newline in the comment",
            "--comment=x\nHetJobId=1 HetJobOffset=0",
        ),
        ("a newline in the working folder", "--chdir=/tmp/x\nJobId=1"),
        ("a newline in the output file", "--output=/tmp/x\nJobId=1"),
        ("a newline in the error file", "--error=/tmp/x\nJobId=1"),
        ("a newline in the input file", "--input=/tmp/x\nJobId=1"),
    ] {
        all.push(
            attempt(INPUT, name, says, move |stage| {
                let told = stage.sbatch(MALLORY, &["-H", option], "true");
                known(match told {
                    Ok(job) => Err(format!("it is job {job}")),
                    Err(why) => ensure(why.contains("gpuos") && !why.contains('\u{1b}'), || why),
                })
            })
            .short(),
        );
    }
    for (name, field) in [
        (
            "a newline in the name, by an update",
            "JobName=x\nArrayJobId=1 ArrayTaskId=z",
        ),
        (
            "a newline in the comment, by an update",
            "Comment=x\nJobId=1",
        ),
    ] {
        all.push(
            attempt(INPUT, name, "scontrol update is refused", move |stage| {
                let job = stage.sbatch(MALLORY, &["-H"], "true");
                let told = job.map(|job| stage.update(MALLORY, job, &[field]));
                known(match told {
                    Ok(Ok(_)) => Err("it was taken".to_owned()),
                    Ok(Err(_)) => Ok(()),
                    Err(why) => Err(why),
                })
            })
            .short(),
        );
    }
}

/// A field, and the options that put a text there. The text may have newlines.
type Field = (&'static str, fn(&Stage, &str) -> Vec<String>);

fn option(name: &str, text: &str) -> Vec<String> {
    vec![format!("--{name}={text}")]
}

/// A folder or file of the attacker's with that name.
fn named(stage: &Stage, text: &str) -> PathBuf {
    // Of the lab's working folder, which everybody may write.
    stage.work(&text.replace('/', "_"))
}

fn script(stage: &Stage, text: &str) -> String {
    let file = named(stage, text);
    fs::write(&file, "#!/bin/sh\nsleep 1200\n").expect("a script");
    file.display().to_string()
}

const FIELDS: [Field; 14] = [
    ("the name", |_, text| option("job-name", text)),
    ("the comment", |_, text| option("comment", text)),
    ("the account", |_, text| option("account", text)),
    ("the wckey", |_, text| option("wckey", text)),
    ("the mail address", |_, text| option("mail-user", text)),
    ("the network", |_, text| option("network", text)),
    ("the reservation", |_, text| option("reservation", text)),
    ("extra", |_, text| option("extra", text)),
    ("the features", |_, text| option("constraint", text)),
    ("the working folder", |stage, text| {
        let folder = named(stage, text);
        fs::create_dir_all(&folder).expect("a folder");
        option("chdir", &folder.display().to_string())
    }),
    ("the output file", |stage, text| {
        option("output", &named(stage, text).display().to_string())
    }),
    ("the error file", |stage, text| {
        option("error", &named(stage, text).display().to_string())
    }),
    ("the path of the script", |stage, text| {
        vec![script(stage, text)]
    }),
    ("an argument of the script", |stage, text| {
        vec![script(stage, "plain"), text.to_owned()]
    }),
];

/// A job of another user, on any CPU.
fn bait(stage: &Stage) -> u32 {
    let options = ["-J", "bait", "--requeue", "--exclude=n4"];
    stage
        .sbatch(ALICE, &options, "sleep 7200")
        .expect("a job like any other")
}

/// Whether the bait is as it was, and something was done about the forged job: else nothing was shown.
fn untouched(stage: &Stage, job: u32, bait: u32) -> Judge {
    stage.forged.borrow_mut().push((job, bait));
    judge(move |stage| {
        stage.come_to_run(bait)?;
        ensure(stage.is_acted_on(job), || {
            format!(
                "gpuosd never did anything about job {job}: {:?}",
                stage.jobs(&[job])
            )
        })
    })
}

/// Submits a forged job, and gives the judge of its bait.
fn forge(stage: &Stage, options: &[&str], bait: u32) -> Judge {
    match stage.sbatch(MALLORY, options, "sleep 1200") {
        Ok(job) => untouched(stage, job, bait),
        // Slurm takes no such text there.
        Err(_) => known(Ok(())),
    }
}

fn labels(all: &mut Vec<Attempt>) {
    for (field, put) in FIELDS {
        let name = format!("another job's number in {field}");
        let made = attempt(INPUT, name, UNTOUCHED, move |stage| {
            let bait = bait(stage);
            let text = put(stage, &format!("x\nArrayJobId={bait} ArrayTaskId=z"));
            let own: Vec<&str> = text.iter().map(String::as_str).collect();
            // Options come before a script.
            forge(stage, &[&WATCHED[..], &own].concat(), bait)
        });
        let made = made.in_wave(Wave::Unchecked);
        all.push(match field {
            "the name" | "the comment" | "the working folder" => made.short(),
            _ => made,
        });
    }
    let name = "another het job's number in the name";
    all.push(
        attempt(INPUT, name, UNTOUCHED, |stage| {
            let bait = bait(stage);
            let name = format!("--job-name=x\nHetJobId={bait} HetJobOffset=0");
            forge(stage, &[&WATCHED[..], &[&name]].concat(), bait)
        })
        .in_wave(Wave::Unchecked)
        .short(),
    );
    let name = "another job's number in the name of a job that may not be requeued";
    all.push(
        attempt(INPUT, name, UNTOUCHED, |stage| {
            let bait = bait(stage);
            let name = format!("--job-name=x\nArrayJobId={bait} ArrayTaskId=z");
            forge(
                stage,
                &[&WATCHED[1..], &["--no-requeue", &name]].concat(),
                bait,
            )
        })
        .in_wave(Wave::Unchecked)
        .short(),
    );
    let name = "another job's number in the name, while the job runs, and back";
    all.push(
        attempt(INPUT, name, UNTOUCHED, |stage| {
            let bait = bait(stage);
            let job = stage.sbatch(MALLORY, &WATCHED, "sleep 1200");
            judge(move |stage| {
                let job = job?;
                // Back again: whoever looks later finds nothing.
                let _ = stage.update(MALLORY, job, &["JobName=x"]);
                stage.come_to_run(bait)
            })
        })
        .in_wave(Wave::Unchecked),
    );
}

fn carriers(all: &mut Vec<Attempt>) {
    all.push(
        attempt(
            CARRIER,
            "a task of an array names another job",
            UNTOUCHED,
            |stage| {
                let bait = bait(stage);
                let name = format!("--job-name=x\nArrayJobId={bait} ArrayTaskId=z");
                forge(stage, &[&WATCHED[..], &["--array=5", &name]].concat(), bait)
            },
        )
        .in_wave(Wave::Unchecked),
    );
    all.push(
        attempt(
            CARRIER,
            "a part of a het job names another job",
            UNTOUCHED,
            |stage| {
                let bait = bait(stage);
                let name = format!("--job-name=x\nHetJobId={bait} HetJobOffset=0");
                let first = [&WATCHED[..], &[&name]].concat();
                forge(stage, &[&first[..], &[":", "-n1", &name]].concat(), bait)
            },
        )
        .in_wave(Wave::Unchecked),
    );
}

/// Records that say more than the job's own.
fn records(all: &mut Vec<Attempt>) {
    let slices = "the other user's MIG instance stays, and no slice of hers is another's";
    let claims =
        "x\n   NodeList=n1\n     Nodes=n1 CPU_IDs=0 Mem=16 GRES=gpuos:h100-80gb:4(IDX:{bits})";
    let note = "x\n   SystemComment=gpuos: level=slice bus=0 lost=0 nodes=0 domains=0 mig=7g.80gb:1 gpus=n1:-\n     \
                Nodes=n1 CPU_IDs=0 Mem=16 GRES=gpuos:h100-80gb:8(IDX:0-7)";
    for (at, (name, text)) in [
        ("another's slices in the name of a job with slices", claims),
        (
            "another's slices and a note in the name of a job with slices",
            note,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        all.push(
            attempt(INPUT, name, slices, move |stage| {
                let job = stage.sliced[at];
                let bits = slices::bits(&stage.cluster, stage.victims.slices);
                let bits = bits.get("n1").cloned().unwrap_or_default();
                let bits: Vec<String> = bits.iter().map(usize::to_string).collect();
                let name = format!("JobName={}", text.replace("{bits}", &bits.join(",")));
                let held = stage.slices();
                let own = slices::bits(&stage.cluster, job)
                    .remove("n1")
                    .unwrap_or_default();
                let _ = stage.update(MALLORY, job, &[&name]);
                judge(move |stage| {
                    // At its end its slices are destroyed, and no others.
                    let _ = stage.said(stage.command(MALLORY, "scancel").arg(job.to_string()));
                    let gone = || {
                        let all = slices::instances(&stage.cluster, "n1");
                        let there = all
                            .iter()
                            .any(|one| one.slices.iter().any(|slice| own.contains(slice)));
                        (!there).then_some(())
                    };
                    stage.try_until(gone).ok_or("its own instance stays")?;
                    let now = stage.slices();
                    ensure(now == held && !now.is_empty(), || {
                        format!("{held:?} is {now:?}")
                    })?;
                    stage.run_on(&[stage.victims.slices])
                })
            })
            .in_wave(Wave::Unchecked)
            .short(),
        );
    }
    all.push(
        attempt(
            INPUT,
            "root's number in the name of a job with MPS",
            "its daemon has its user's rights",
            |stage| {
                let options = ["-w", "n4", "--gres=gpu:1", "--gpuos-mps=on"];
                let name = "--job-name=x\n   UserId=root(0) GroupId=root(0) MCS_label=N/A";
                let script =
                    "stat -c owner=%u $CUDA_MPS_PIPE_DIRECTORY/pid || echo owner=none; sleep 1200";
                let job = stage.sbatch(MALLORY, &[&options[..], &[name]].concat(), script);
                judge(move |stage| {
                    let Ok(job) = job else { return Ok(()) };
                    // Without a daemon there is none with others' rights.
                    let owner = stage.told(job, "owner=").unwrap_or("none".into());
                    ensure(owner == "none" || owner == MALLORY.uid.to_string(), || {
                        format!("it is uid {owner}'s")
                    })
                })
            },
        )
        .in_wave(Wave::Unchecked),
    );
    let phantom = "no command shows the job that is none";
    for (name, between) in [
        ("a second record in the name", "\n"),
        ("a second record behind a blank line in the name", "\n\n"),
    ] {
        all.push(
            attempt(INPUT, name, phantom, move |stage| {
                let text = format!(
                    "--job-name=x{between}JobId=4242424 JobName=phantom\n   UserId=root(0) GroupId=root(0)\n   JobState=RUNNING \
                     Reason=None\n   NodeList=n1\n   NumNodes=1\n     Nodes=n1 CPU_IDs=0 Mem=16 GRES=gpu:h100:3(IDX:0-2)"
                );
                let job = stage.sbatch(EVE, &[&text, "-w", "n1"], "sleep 1200");
                judge(move |stage| {
                    let Ok(job) = job else { return Ok(()) };
                    for words in [&["top", "--once"][..], &["top", "--json"], &["plan", "--gpus", "1"]] {
                        let text = stage.screen(words);
                        // In the name it may stand, as one line.
                        let rows = text.lines().filter(|line| line.trim_start().starts_with("4242424"));
                        let rows = rows.count() + text.matches("\"id\": 4242424").count();
                        ensure(rows == 0, || format!("gpuos {}: {text}", words.join(" ")))?;
                    }
                    let text = stage.gpuos(&["why", "4242424"]);
                    ensure(!text.contains("phantom") && !text.contains("root"), || text)?;
                    stage.come_to_run(job)
                })
            })
            .in_wave(Wave::Unchecked)
            .short(),
        );
    }
    let name = "keys repeated in the comment of a waiting job";
    all.push(
        attempt(INPUT, name, REFUSED, |stage| {
            let text = "--comment=x\n   JobState=RUNNING Reason=None\n   NodeList=n1 NumNodes=1\n     Nodes=n1 CPU_IDs=0 Mem=1 \
                        GRES=gpu:h100:7(IDX:0-6)";
            let job = stage.sbatch(EVE, &["-H", "--gres=gpu:1", text], "true");
            judge(move |stage| {
                let Ok(job) = job else { return Ok(()) };
                let text = stage.gpuos(&["why", &job.to_string()]);
                let runs = text.contains("runs on") || text.contains("is running");
                ensure(!runs, || text)
            })
        })
        .in_wave(Wave::Unchecked),
    );
}
