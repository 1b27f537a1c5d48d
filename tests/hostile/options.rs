//! Values of options, variables of the environment, and requests that go round the options.

use std::fs;

use gpuos_tests::slices;

use crate::attempt::{Attempt, Wave, attempt, ensure, judge, known};
use crate::stage::Stage;
use crate::users::{ALICE, EVE, MALLORY};

/// SECURITY.md's names of the inputs.
const VALUES: &str = "Values of gpuos's options";
const ENVIRONMENT: &str = "Variables of the environment";
const REQUESTS: &str = "Requests for GRES";
const COMMANDS: &str = "The command gpuos";

/// Each option, with a value that is good up to where the forged text begins: a new one gets a row.
const OPTIONS: [(&str, &str); gpuos_config::options::OPTIONS.len()] = [
    ("topology", "node"),
    ("placement", "affinity:class="),
    ("gpuos", "on"),
    ("shape", "tp2"),
    ("profile", "compute"),
    ("class", "noisy"),
    ("exclusive", "node"),
    ("power", "300W"),
    ("clocks", "1200"),
    ("watch", "10"),
    ("mps", "50%"),
    ("mig", "1g.10gb"),
    ("share", "timeslice,mem=60G"),
    ("checkpoint", "10m"),
    ("restart", "1234/7"),
    ("spares", "1"),
    ("mem", "120G"),
];

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    values(&mut all);
    environment(&mut all);
    requests(&mut all);
    commands(&mut all);
    walled(&mut all);
    sources(&mut all);
    all
}

fn values(all: &mut Vec<Attempt>) {
    let says = "sbatch is refused with a short sentence without control characters";
    for (option, good) in OPTIONS {
        let name = format!("control characters, a path and 10,000 characters in --gpuos-{option}");
        let made = attempt(VALUES, name, says, move |stage| {
            let flag = match option {
                "gpuos" => "--gpuos".to_owned(),
                option => format!("--gpuos-{option}"),
            };
            let tails = [
                "\nJobId=1",
                "\u{1b}[2J",
                "/../../etc/passwd",
                &"x".repeat(10_000),
            ];
            let told = tails.map(|tail| {
                let option = format!("{flag}={good}{tail}");
                stage.sbatch(MALLORY, &["-H", "--gres=gpu:2", &option], "true")
            });
            known(told.into_iter().try_for_each(|told| {
                let why = match told {
                    Err(why) => why,
                    Ok(job) => return Err(format!("it is job {job}")),
                };
                let control = why.chars().find(|c| c.is_control() && *c != '\n');
                ensure(control.is_none() && why.len() < 4096, || {
                    format!("{control:?} in {} characters", why.len())
                })
            }))
        });
        all.push(match option {
            "class" | "mig" | "shape" => made.short(),
            _ => made,
        });
    }
}

/// What a job finds of GPUs: its own and no other ones.
const SHOW: &str = "echo gpus=$CUDA_VISIBLE_DEVICES; srun -n1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES; echo rank=$GPUOS_RANK_FILE'; echo end=1";

fn environment(all: &mut Vec<Attempt>) {
    let own = "the job has its own GPUs and no others, and no file of others is written";
    for (name, variables, options) in [
        (
            "slices by GPUOS_SLICES and GPUOS_MIG_UUIDS",
            &[
                "GPUOS_SLICES=0-7",
                "GPUOS_JOB_MIG=7g.80gb",
                "GPUOS_MIG_UUIDS={uuid}",
            ][..],
            &["--gres=gpu:1"][..],
        ),
        (
            "slices by Slurm's variables of SPANK options",
            &[
                "_SLURM_SPANK_OPTION_gpuos_gpuos_mig=7g.80gb",
                "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mig=7g.80gb",
            ],
            &["--gres=gpu:1"],
        ),
        (
            "all GPUs by SLURM_JOB_GPUS and SLURM_STEP_GPUS",
            &[
                "SLURM_JOB_GPUS=0,1,2,3,4,5,6,7",
                "SLURM_STEP_GPUS=0,1,2,3,4,5,6,7",
                "SLURM_GPUS_ON_NODE=8",
                "GPUOS_GPUS=0,1,2,3,4,5,6,7",
            ],
            &["--gres=gpu:1"],
        ),
        (
            "a file of another user's as rank file",
            &["GPUOS_RANK_FILE={file}", "GPUOS_JOB_SHAPE=tp2"],
            &["--gres=gpu:2", "--gpuos-shape=tp2"],
        ),
        (
            "a shape that is a path, by the environment",
            &[
                "GPUOS_JOB_SHAPE=tp2/../../../{file}",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_shape=../../{file}",
            ],
            &["--gres=gpu:2"],
        ),
        (
            "memory beyond that of GPUs by LD_PRELOAD, GPUOS_MEM_* and what jobs hand to steps",
            &[
                "LD_PRELOAD={file}:/nowhere\nX=1",
                "GPUOS_MEM_GRANT=99999999999999999999",
                "GPUOS_MEM_SOCKET={file}",
                "GPUOS_JOB_LIMITS=mem=16T,policy=lru",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_mem=16T",
                "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mem=16T",
            ],
            &["--gres=gpu:1"],
        ),
        (
            "a GPU in turns, by what jobs hand to steps and Slurm's number of shards",
            &[
                "GPUOS_JOB_LIMITS=share=timeslice,mem=16T",
                "SLURM_SHARDS_ON_NODE=4",
                "GPUOS_MEM_SOCKET={file}",
            ],
            &["--gres=gpu:1"],
        ),
        (
            "the same by Slurm's variables of SPANK options",
            &[
                "_SLURM_SPANK_OPTION_gpuos_gpuos_share=timeslice,mem=16T",
                "SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_share=timeslice,mem=16T",
            ],
            &["--gres=gpu:1"],
        ),
        (
            "control characters by Slurm's variables of SPANK options",
            &[
                "_SLURM_SPANK_OPTION_gpuos_gpuos_class=a\nJobId=1",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_power=1\u{1b}[2J",
            ],
            &["--gres=gpu:1"],
        ),
    ] {
        let made = attempt(ENVIRONMENT, name, own, move |stage| {
            let file = stage.work(&format!("of-alice-{}", name.len()));
            let kept = "kept\n";
            fs::write(&file, kept).expect("a file");
            let mine = std::os::unix::fs::chown(&file, Some(ALICE.uid), Some(ALICE.uid));
            mine.expect("root gives it away");
            let uuid = stage.slices().pop().unwrap_or_default();
            let mut command = stage.command(MALLORY, "sbatch");
            for one in variables {
                let one = one
                    .replace("{uuid}", &uuid)
                    .replace("{file}", &file.display().to_string());
                let (name, value) = one.split_once('=').expect("a variable");
                command.env(name, value);
            }
            let options = [&["-w", "n3"], options].concat();
            let job = stage.sbatch_with(command, &options, SHOW);
            judge(move |stage| {
                let text = fs::read_to_string(&file).unwrap_or_default();
                ensure(text == kept, || format!("{} is {text:?}", file.display()))?;
                let Ok(job) = job else { return Ok(()) };
                stage.told(job, "end=")?;
                let given = stage
                    .cluster
                    .gpus(job)
                    .remove("n3")
                    .unwrap_or_default()
                    .len();
                for start in ["gpus=", "step="] {
                    let told = stage.told(job, start)?;
                    let count = told.split(',').filter(|one| !one.is_empty()).count();
                    // What slurmctld has forgotten of a job that has ended was at most what it asked for.
                    let most = given.max(options.len().min(2));
                    ensure(count <= most && !told.contains("MIG-"), || {
                        format!("{start}{told}")
                    })?;
                }
                let rank = stage.told(job, "rank=")?;
                let good = rank.is_empty()
                    || rank.starts_with("/run/gpuos/")
                    || rank == file.display().to_string();
                ensure(good, || format!("rank={rank}"))
            })
        });
        all.push(made);
    }
    all.push(attempt(
        ENVIRONMENT,
        "another's job by SLURM_JOB_ID for srun",
        "srun is refused, and the other's job has no step more",
        |stage| {
            let mut srun = stage.command(MALLORY, "srun");
            let id = stage.victims.plain.to_string();
            srun.env("SLURM_JOB_ID", &id).env("SLURM_JOBID", &id);
            let told = stage.said(srun.args(["--overlap", "-n1", "id", "-u"]));
            known(ensure(told.is_err(), || format!("{told:?}")))
        },
    ));
    let none = "what Slurm hands to the step is the job's own, and no instance is made for another";
    all.push(
        attempt(ENVIRONMENT, "another's instance by --export", none, |stage| {
            let uuid = stage.slices().pop().unwrap_or_default();
            let export = format!("--export=ALL,GPUOS_SLICES=4-7,CUDA_VISIBLE_DEVICES={uuid},NVIDIA_VISIBLE_DEVICES={uuid}");
            let job = stage.sbatch(MALLORY, &["-w", "n1", "--gpuos-mig=1g.10gb", &export], SHOW);
            judge(move |stage| {
                let job = job?;
                match stage.told(job, "end=") {
                    // From here on the attacker's environment is Slurm's to make; where it cannot, the job does not run.
                    Err(why) if why.contains("user env retrieval failed") => return Ok(()),
                    told => told?,
                };
                for start in ["gpus=", "step="] {
                    let told = stage.told(job, start)?;
                    ensure(told.starts_with("MIG-") && told != uuid, || format!("{start}{told}"))?;
                }
                ensure(stage.slices() == [uuid], || format!("now {:?}", stage.slices()))
            })
        }),

    );
}

/// What says where values came from, and what a job hands to its steps: the user's own words.
fn sources(all: &mut Vec<Attempt>) {
    let words = "sentences have no control characters and no length of his making, and nothing of others is moved";
    for (name, text) in [
        (
            "names all options",
            "environment=gpuos,topology,power,mig script=watch".to_owned(),
        ),
        (
            "control characters",
            "environment=power\nJobId=1 \u{1b}[2J script=mig\u{1b}]0;x\u{7}".to_owned(),
        ),
        (
            "60,000 characters",
            format!("environment=power{}", ",power".repeat(10_000)),
        ),
        (
            "a path",
            "environment=../../../etc/passwd script=%s%n".to_owned(),
        ),
    ] {
        let text = move |stage: &Stage| {
            let mut command = stage.command(MALLORY, "sbatch");
            for name in [
                "GPUOS_SOURCES",
                "SPANK_GPUOS_SOURCES",
                "SLURM_SPANK_GPUOS_SOURCES",
                "_SLURM_SPANK_OPTION_gpuos_SOURCES",
            ] {
                command.env(name, &text);
            }
            command
        };
        let name = format!("{name} as places where options came from");
        let made = attempt(ENVIRONMENT, name, words, move |stage| {
            // Refused by the controller, which is what names the place.
            let refused = ["-H", "--gres=gpu:1", "--gpuos-power=99999W"];
            let refused = stage.sbatch_with(text(stage), &refused, "true");
            let taken = ["-H", "--gpuos-power=300W"];
            let taken = stage.sbatch_with(text(stage), &taken, "true");
            let before = slices::nvml(&stage.cluster, "n1", &["show"]);
            judge(move |stage| {
                let Err(why) = refused else {
                    return Err(format!("it is {refused:?}"));
                };
                let control = why.chars().find(|c| c.is_control() && *c != '\n');
                ensure(control.is_none() && why.len() < 4096, || why.clone())?;
                ensure(why.contains("--gpuos-power=99999W: no "), || why.clone())?;
                let limits = |text: &str| text.matches("limit 300 W").count();
                let now = slices::nvml(&stage.cluster, "n1", &["show"]);
                ensure(limits(&now) == limits(&before), || now.clone())?;
                taken.map(drop)
            })
        });
        all.push(made.short());
    }
    let own = "the step has what its job has at most, and the caps of others stay";
    all.push(attempt(
        ENVIRONMENT,
        "what a job hands to its steps, with control characters and 60,000 of them",
        own,
        |stage| {
            let script = "long=$(printf 'x%.0s' $(seq 60000)); odd=$(printf 'power=250W\\033[2J watch=\\001 environment=power'); \
                for limits in \"$long\" \"$odd\" \"environment=$long\" 'power=off watch=off mps=off environment=power'; do \
                GPUOS_JOB_LIMITS=\"$limits\" GPUOS_JOB_MIG=\"$limits\" GPUOS_JOB_SHAPE=\"$limits\" \
                srun -n1 --gpuos-watch=off sh -c 'echo step=${#GPUOS_JOB_LIMITS}$(printf %s \"$GPUOS_JOB_LIMITS\" | tr -d \"[:print:]\" | wc -c)'; \
                done; echo end=1";
            let job = stage.sbatch(MALLORY, &["-w", "n3", "--gres=gpu:1"], script);
            judge(move |stage| {
                let job = job?;
                stage.told(job, "end=")?;
                let text = stage.output(job);
                let good = |line: &&str| {
                    let told = line.strip_prefix("step=").unwrap_or("0");
                    told.len() > 3 || !told.ends_with('0')
                };
                let bad = text.lines().find(good);
                ensure(bad.is_none() && text.matches("step=").count() == 4, || text.clone())?;
                let shown = slices::nvml(&stage.cluster, "n1", &["show"]);
                ensure(shown.matches("limit 300 W").count() == 1, || shown.clone())
            })
        },
    ));
}

fn requests(all: &mut Vec<Attempt>) {
    let hers = "no instance is made in another's slices, and the node stays in service";
    for (name, options) in [
        (
            "slices by --gres without --gpuos-mig",
            &["--gres=gpuos:h100-80gb:2"][..],
        ),
        ("slices by --gres of another type", &["--gres=gpuos:x\ny:2"]),
        (
            "more slices than --gpuos-mig gives",
            &["--gres=gpuos:h100-80gb:3", "--gpuos-mig=1g.10gb"],
        ),
        (
            "slices by --tres-per-task",
            &["-n1", "--tres-per-task=gres/gpuos:2"],
        ),
        ("a count that is too large", &["--gres=gpu:99999999999"]),
        ("a count below 0", &["--gres=gpu:-1"]),
        ("slices by --gpus", &["--gpus=gpuos:2"]),
    ] {
        let made = attempt(REQUESTS, name, hers, move |stage| {
            let before = stage.slices();
            let options = [&["-w", "n1"], options].concat();
            let job = stage.sbatch(MALLORY, &options, SHOW);
            judge(move |stage| {
                let now = stage.slices();
                ensure(now == before, || format!("{before:?} is {now:?}"))?;
                let Ok(job) = job else { return Ok(()) };
                let started = || {
                    let text = stage.output(job);
                    let waits = stage
                        .jobs(&[job])
                        .get(&job)
                        .is_some_and(|(state, _)| state == "PENDING");
                    (waits
                        || text.contains("end=")
                        || !stage.jobs(&[job]).contains_key(&job)
                        || stage.jobs(&[job])[&job].0 != "RUNNING")
                        .then_some(text)
                };
                let text = stage.try_until(started).unwrap_or_default();
                let told = text
                    .lines()
                    .filter(|line| before.iter().any(|uuid| line.contains(uuid)));
                ensure(told.count() == 0, || text.clone())
            })
        });
        all.push(made);
    }
    let later = "jobs of others that fit start, and those that run go on";
    all.push(attempt(
        REQUESTS,
        "a node for itself, by --gpuos-exclusive",
        later,
        |stage| {
            let greedy = stage.sbatch(
                MALLORY,
                &["-w", "n3", "--gres=gpu:1", "--gpuos-exclusive=node"],
                "sleep 1200",
            );
            let mut asked = stage.command(ALICE, "sbatch");
            asked.arg("-t5");
            let other = stage.sbatch_with(asked, &["-w", "n3", "--gres=gpu:1"], "echo end=1");
            judge(move |stage| {
                greedy?;
                stage.told(other?, "end=").map(drop)
            })
        },
    ));
    all.push(attempt(
        REQUESTS,
        "1,000 tasks of an array at once",
        later,
        |stage| {
            let array = [
                "--array=1-1000",
                "-H",
                "--gres=gpu:7",
                "--gpuos-topology=node:required",
            ];
            let many = stage.sbatch(EVE, &array, "true");
            let other = stage.sbatch(ALICE, &["-w", "n3", "--gres=gpu:1"], "echo end=1");
            judge(move |stage| {
                many?;
                stage.told(other?, "end=").map(drop)
            })
        },
    ));
}

/// Options that gpuos.toml keeps from jobs of a partition.
fn walled(all: &mut Vec<Attempt>) {
    let none = "the job is refused, or runs without what is forbidden";
    let script = "echo mps=$CUDA_MPS_PIPE_DIRECTORY; srun -n1 sh -c 'echo step=$CUDA_MPS_PIPE_DIRECTORY'; \
                  srun -n1 --gpuos-mps=on sh -c 'echo asks=$CUDA_MPS_PIPE_DIRECTORY'; echo end=1; sleep 1200";
    for (name, variables, options) in [
        ("asks for it", &[][..], &["--gpuos-mps=on"][..]),
        (
            "asks by the environment",
            &["GPUOS_MPS=on", "GPUOS_POWER=200W"],
            &[],
        ),
        (
            "asks by Slurm's variables of SPANK options",
            &[
                "_SLURM_SPANK_OPTION_gpuos_gpuos_mps=on",
                "_SLURM_SPANK_OPTION_gpuos_gpuos_power=200W",
            ],
            &[],
        ),
        (
            "asks in a list of partitions",
            &[],
            &["--partition=all,walled", "--gpuos-power=200W"],
        ),
        (
            "asks in a task of an array",
            &[],
            &["--array=3", "--gpuos-power=200W"],
        ),
        ("asks by a step", &[], &[]),
    ] {
        let name = format!("{name}, where gpuos.toml forbids it");
        all.push(
            attempt(VALUES, name, none, move |stage| {
                let mut command = stage.command(MALLORY, "sbatch");
                command.envs(
                    variables
                        .iter()
                        .filter_map(|one: &&str| one.split_once('=')),
                );
                let first = ["-w", "n2", "--gres=gpu:1", "--partition=walled"];
                let job = stage.sbatch_with(command, &[&first[..], options].concat(), script);
                judge(move |stage| {
                    // Refused, with a sentence that is not Slurm's.
                    let Ok(job) = job else { return Ok(()) };
                    stage.told(job, "end=")?;
                    for start in ["mps=", "step=", "asks="] {
                        let told = stage.told(job, start).unwrap_or_default();
                        ensure(told.is_empty(), || format!("{start}{told}"))?;
                    }
                    let shown = slices::nvml(&stage.cluster, "n2", &["show"]);
                    ensure(!shown.contains("limit 200 W"), || shown.clone())
                })
            })
            .in_wave(Wave::Walled),
        );
    }
    all.push(
        attempt(
            VALUES,
            "moves a job to where gpuos.toml forbids what it asks for",
            none,
            |stage| {
                let job = stage.sbatch(MALLORY, &["-H", "--gres=gpu:1", "--gpuos-mps=on"], "true");
                let told = job.map(|job| stage.update(MALLORY, job, &["Partition=walled"]));
                known(match told {
                    Ok(Err(_)) => Ok(()),
                    other => Err(format!("{other:?}")),
                })
            },
        )
        .in_wave(Wave::Walled)
        .short(),
    );
}

fn commands(all: &mut Vec<Attempt>) {
    let nothing = "nothing of another user's job where PrivateData keeps it from him";
    for words in [
        &["top", "--once"][..],
        &["top", "--json"],
        &["why", "{job}"],
        &["mig"],
        &["health", "--json"],
    ] {
        let name = format!(
            "runs gpuos {} for others' jobs",
            words.join(" ").replace(" {job}", "")
        );
        all.push(
            attempt(COMMANDS, name, nothing, move |stage| {
                let runtime = stage.runtime("n1").display().to_string();
                let job = stage.victims.slices.to_string();
                let mut all: Vec<String> = words
                    .iter()
                    .map(|word| word.replace("{job}", &job))
                    .collect();
                if words[0] != "why" {
                    all.extend(["--runtime-dir".to_owned(), runtime]);
                }
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                let text = stage.shown_by(Some(MALLORY), &all);
                let told = text.contains("victim")
                    || text.contains(ALICE.name)
                    || text.contains(&ALICE.uid.to_string());
                known(ensure(!told, || text))
            })
            .short(),
        );
    }
    for verb in ["drain", "offline", "online"] {
        let name = format!("runs gpuos {verb}");
        all.push(attempt(
            COMMANDS,
            name,
            "is refused, and the node is in service",
            move |stage| {
                let runtime = stage.runtime("n1").display().to_string();
                let words = [verb, "n1:0", "--reason", "x", "--runtime-dir", &runtime];
                let text = stage.shown_by(Some(MALLORY), &words);
                judge(move |stage| {
                    let out = stage.unwell("n1")?;
                    ensure(out.is_empty(), || format!("{out}: {text}"))
                })
            },
        ));
    }
    all.push(
        attempt(
            COMMANDS,
            "changes the record of a node and of another's job",
            "slurmctld refuses",
            |stage: &Stage| {
                let said = |args: &[&str]| {
                    stage.said(stage.command(MALLORY, "scontrol").arg("update").args(args))
                };
                let job = format!("JobId={}", stage.victims.plain);
                let told = [
                    said(&["NodeName=n1", "Extra=[gpuos:1 out=0-6]"]),
                    said(&["NodeName=n1", "Extra=[gpuos:1 ckpt=1:4000000000]"]),
                    said(&["NodeName=n1", "State=DRAIN", "Reason=gpuos: x"]),
                    said(&[&job, "JobName=x"]),
                    said(&[
                        &job,
                        "SystemComment=gpuos: level=slice mig=7g.80gb:1 gpus=n1:-",
                    ]),
                ];
                known(ensure(told.iter().all(Result::is_err), || {
                    format!("{told:?}")
                }))
            },
        )
        .in_wave(Wave::Unchecked),
    );
    all.push(
        attempt(COMMANDS, "writes a note into his own job", "what gpuosd makes stays what slurmctld gave", |stage: &Stage| {
            let job = stage.sbatch(MALLORY, &["-H", "--gres=gpu:1"], "true");
            let told = job.map(|job| {
                let note = "SystemComment=gpuos: level=slice bus=0 lost=0 nodes=0 domains=0 mig=7g.80gb:1 gpus=n1:-";
                let _ = stage.update(MALLORY, job, &[note]);
                stage.cluster.show(job)
            });
            judge(move |_| {
                let text = told?;
                ensure(!slices_in(&text), || text)
            })
        }),
    );
}

/// Whether a record has a note of slices.
fn slices_in(text: &str) -> bool {
    text.contains("mig=7g.80gb")
}
