//! Processes that the driver parks: a job that has a GPU in turns with a job of another user's, is pinned, and would reach more by way of the
//! process that gpuosd starts for it, which has its user's rights.
//!
//! Each attempt has a job of the attacker's and one of the victim's on one GPU. Whatever comes of the first, the second computes on.

pub mod part;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use gpuos_core::wire::{MemoryProgramStatus, Reply, Request};
use gpuos_host::steps::job_processes::{Proc, Processes};

use crate::attacker::{MARK, ROLE, WORDS};
use crate::attempt::{Attempt, Judge, Verdict, Wave, attempt, ensure, judge, known};
use crate::stage::{Stage, first_line};
use crate::users::{ALICE, MALLORY};

/// SECURITY.md's name of the input.
const INPUT: &str = "Processes that the driver parks";

/// Where it is.
const NODE: &str = "n5";
/// The first word of the process that calls the driver.
const FLAG: &str = "--driver-checkpoint";
/// Two shares that do not fit beside each other into the 16023 MiB that [`MEMORY`] leaves of a GPU. His is parked in the memory of
/// the host, as the driver does it; for hers there is NVMe, too, so that the machine of the tests need not have as much memory.
const HIS: [&str; 2] = ["--mem=4096", "--gpuos-share=timeslice,mem=600M"];
const HERS: [&str; 2] = ["--mem=4096", "--gpuos-share=timeslice,mem=15600M"];
/// A simulated GPU that is too small for two of the programs, on which taking one out takes long enough to be seen.
const DEVICE: &str = "memory=32M,link=400M";
const TAKES: &str = "checkpoint=100";
/// So often a pair of jobs is started where his program was ended for being late.
const TRIES: usize = 3;
/// How often her program has to have computed all of its memory once more, to go on.
const MORE: usize = 3;

/// In gpuos.toml of the stage, section `[memory]`.
pub const MEMORY: &str =
    "turns = 2\nreserve-mib = 65536\nnvme-gib = 20\ndriver-checkpoint = true\n";

/// There, too: how much memory the GPUs have that are not divided, and which limit of power.
pub const NODE_TYPE: &str = "
[[node-type]]
name = \"seven\"
gpus = 7
gpu-memory-mib = 81559
gpu-watts = 700
sockets = 2
cores-per-socket = 56
[[nodes]]
match = \"n[1-5]\"
type = \"seven\"
";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    vec![
        looks(),
        hinders(
            "kills each process that calls the driver for him",
            "kills",
            "> killed ",
        ),
        hinders(
            "stops each process that calls the driver for him",
            "stops",
            "> stopped ",
        ),
        own_library(),
        dies(),
        refuses(),
        claims(),
        root_of_his_own(),
        number_of_another(),
    ]
}

/// Has the gpuosd of that node call a driver that is simulated, and steps load the library for memory in tiers: of copies, which root's
/// daemons and users may read.
pub fn prepare(stage: &Stage) {
    let (built, folder) = (gpuos_tests::plugins::programs(), stage.path("cuda"));
    fs::create_dir_all(&folder).expect("a folder");
    for (from, to) in [
        ("libgpuos_preload.so", "libgpuos_preload.so.0"),
        ("libcuda.so", "libcuda.so.1"),
    ] {
        copy(&built.join(from), &folder.join(to));
    }
    crate::memory_grants::with_library(&stage.cluster);
    stage.restart_gpuosd_with(NODE, "--cuda", &folder.join("libcuda.so.1"));
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("install").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{from:?}");
}

/// A job of each of the two.
struct Pair {
    his: u32,
    hers: u32,
    gpuosd: Option<u32>,
    /// What root has.
    files: BTreeMap<String, String>,
}

/// How a program of a job is started.
struct Program<'a> {
    /// The words of its part.
    words: &'a [&'a str],
    /// Settings of the device beside [`DEVICE`].
    device: &'a str,
    /// Further variables of its environment, and a command that starts it.
    with: &'a str,
}

impl Program<'_> {
    fn script(&self, stage: &Stage) -> String {
        let device = [DEVICE, self.device].join(",");
        format!(
            "srun -n1 env LD_LIBRARY_PATH={} GPUOS_NVML_STATE={}/state GPUOS_CUDA={} CUDA_MPS_PIPE_DIRECTORY=/nonexistent {ROLE}=turns {WORDS}='{}' \
             {} {} --exact hostile::plays_its_part --nocapture 2>&1; echo; echo '{MARK}end'",
            stage.path("cuda").display(),
            stage.cluster.lab.gpus_dir(NODE).display(),
            device.trim_end_matches(','),
            self.words.join("\n"),
            self.with,
            stage.path("bin/attacker").display(),
        )
    }
}

impl Pair {
    /// Starts both: his first, and hers beside it.
    fn start(stage: &Stage, his: &Program) -> Result<Pair, String> {
        let on = |share: &[&'static str]| [&["-w", NODE], share].concat();
        let her_program = Program {
            words: &["moves"],
            device: "",
            with: "",
        };
        let gpuosd = stage.cluster.lab.gpuosd_pid(NODE);
        let files = files_of_root(stage, NODE);
        let job = stage.sbatch(MALLORY, &on(&HIS), &his.script(stage))?;
        Ok(Pair {
            gpuosd,
            files,
            his: job,
            hers: stage
                .sbatch(ALICE, &on(&HERS), &her_program.script(stage))
                .inspect_err(|_| stage.cluster.cancel(&[job]))?,
        })
    }

    /// What gpuosd tells of the process of a job.
    fn program(&self, stage: &Stage, job: u32) -> Option<MemoryProgramStatus> {
        let Ok(Reply::Memory { memory }) = stage.ask(NODE, &Request::Memory) else {
            return None;
        };
        let mut programs = memory.programs.into_iter();
        programs.find(|one| one.job == job.into())
    }

    /// Waits for what his process is to be told of.
    fn until_his(
        &self,
        stage: &Stage,
        what: &str,
        is: impl Fn(&MemoryProgramStatus) -> bool,
    ) -> Result<MemoryProgramStatus, String> {
        let found = stage.try_until(|| self.program(stage, self.his).filter(|one| is(one)));
        found.ok_or_else(|| {
            let now = self.program(stage, self.his);
            format!("{what}: {now:?} {}", stage.output(self.his))
        })
    }

    /// Lines of the audit log about his process and what the driver did for it, or why it was ended.
    fn audited(&self, stage: &Stage, words: &str) -> usize {
        let of_job = format!("of job {}: ", self.his);
        let log = stage.audit(NODE);
        let lines = log.lines().filter(|line| line.contains(&of_job));
        lines.filter(|line| line.contains(words)).count()
    }

    /// Waits until the audit log says so.
    fn until_audited(&self, stage: &Stage, words: &str) -> Result<(), String> {
        let said = stage.try_until(|| (self.audited(stage, words) > 0).then_some(()));
        said.ok_or_else(|| {
            let of_job = format!("of job {}: ", self.his);
            let log = stage.audit(NODE);
            let lines: Vec<&str> = log.lines().filter(|line| line.contains(&of_job)).collect();
            format!(
                "the audit log does not say {words}: {lines:?} {}",
                stage.output(self.his)
            )
        })
    }

    fn rounds(&self, stage: &Stage) -> usize {
        stage.output(self.hers).matches("> round").count()
    }

    /// Whatever he did: her program computes on and right, gpuosd is the same process and accuses nobody but him, root's files are as they
    /// were, and in the end nothing is lent to either.
    fn over(&self, stage: &Stage) -> Result<(), String> {
        let before = self.rounds(stage);
        let goes_on = || (self.rounds(stage) >= before + MORE).then_some(());
        let told = stage.try_until(goes_on);
        let hers = stage.output(self.hers);
        told.ok_or_else(|| format!("her program stands after {before} rounds: {hers}"))?;
        ensure(
            !hers.contains("> wrong") && !hers.contains("panicked"),
            || hers.clone(),
        )?;
        stage.run_on(&[self.hers])?;
        let now = stage.cluster.lab.gpuosd_pid(NODE);
        ensure(self.gpuosd.is_some() && now == self.gpuosd, || {
            format!("gpuosd {:?} is {now:?}", self.gpuosd)
        })?;
        let of_hers = format!("of job {}: ", self.hers);
        let log = stage.audit(NODE);
        let accused = log.lines().find(|line| line.contains(&of_hers));
        ensure(accused.is_none(), || accused.unwrap_or_default().to_owned())?;
        let now = files_of_root(stage, NODE);
        let changed = self
            .files
            .iter()
            .find(|(path, was)| now.get(*path) != Some(was));
        ensure(changed.is_none(), || format!("{changed:?} has changed"))?;
        stage.cluster.cancel(&[self.his, self.hers]);
        let free = || {
            let both = [self.his, self.hers];
            let lent = both.iter().any(|job| self.program(stage, *job).is_some());
            (!lent && stage.status(NODE).is_ok()).then_some(())
        };
        let free = stage.try_until(free);
        free.ok_or_else(|| "what was lent is not free again".into())
    }
}

/// Files that are root's alone: what is in those that do not change by themselves, and whose the others are.
fn files_of_root(stage: &Stage, node: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let folders = ["etc", "bin", "cuda"].map(|name| (stage.path(name), true));
    let own = [
        (stage.cluster.lab.gpuosd_state_dir(node), false),
        (stage.runtime(node), false),
    ];
    for (folder, stays) in folders.into_iter().chain(own) {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(about) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let mut digest = DefaultHasher::new();
            if stays && about.is_file() {
                fs::read(entry.path()).unwrap_or_default().hash(&mut digest);
            }
            // What gpuosd writes anew has other names for a moment.
            if stays
                || ["audit.jsonl", "state.json"]
                    .iter()
                    .any(|name| entry.file_name() == *name)
            {
                let text = format!("{}:{} {:x}", about.uid(), about.gid(), digest.finish());
                all.insert(entry.path().display().to_string(), text);
            }
        }
    }
    all
}

/// An attempt with a pair of jobs, in the wave of those.
fn pair(
    name: &'static str,
    holds: &'static str,
    begin: impl Fn(&Stage) -> Result<Pair, String> + 'static,
    look: impl Fn(&Stage, &Pair) -> Result<(), String> + 'static,
) -> Attempt {
    let first = move |stage: &Stage| -> Judge {
        if !stage.cluster.lab.has_cgroup() {
            let why = "no control groups of version 1, by which gpuosd knows whose a process is";
            return known(Verdict::Skipped(why.into()));
        }
        // One after another: each counts turns, and has processes that live for moments.
        judge(move |stage| {
            let mut tries = TRIES;
            loop {
                let pair = begin(stage)?;
                let done = look(stage, &pair).and_then(|()| pair.over(stage));
                let was_ended = pair.audited(stage, "the process was ended: ") > 0;
                stage.cluster.cancel(&[pair.his, pair.hers]);
                tries -= 1;
                // On a busy machine his program can be late with what it is told, and is ended before what is to be seen.
                if done.is_ok() || !was_ended || tries == 0 {
                    return done;
                }
            }
        })
    };
    attempt(INPUT, name, holds, first).in_wave(Wave::Turned)
}

/// A pinned program of his.
fn pinned<'a>(words: &'a [&'a str], with: &'a str) -> Program<'a> {
    Program {
        words,
        device: TAKES,
        with,
    }
}

const PARKS: &str = "the driver parks it from now on";

/// It was parked by the driver and came back, again and again.
fn is_parked_and_comes_back(stage: &Stage, pair: &Pair) -> Result<(), String> {
    let again = |one: &MemoryProgramStatus| one.by_driver && one.parks >= 2;
    let told = pair.until_his(stage, "the driver parks it", again)?;
    ensure(told.uid == MALLORY.uid, || format!("{told:?}"))?;
    let said = pair.audited(stage, PARKS);
    ensure(said == 1, || format!("the audit log says it {said} times"))
}

fn looks() -> Attempt {
    pair(
        "looks into each process that calls the driver for him",
        "the kernel refuses, and the driver parks his program and brings it back",
        |stage| Pair::start(stage, &pinned(&["pinned", "looks"], "")),
        |stage, pair| {
            // The same looks do get into a process of his own.
            stage
                .told(pair.his, "> reaches his own: ")
                .and_then(|own| {
                    let all = part::LOOKS.iter().all(|(name, _)| own.contains(name));
                    ensure(all, || format!("of his own he reaches {own} alone"))
                })?;
            is_parked_and_comes_back(stage, pair)?;
            let said = || stage.output(pair.his);
            let looked = || (said().matches("> looked into ").count() >= 3).then_some(());
            stage.try_until(looked).ok_or_else(said)?;
            let said = said();
            let reached = said.lines().find(|line| line.starts_with("> reached "));
            ensure(reached.is_none(), || reached.unwrap_or_default().to_owned())
        },
    )
}

/// His signals reach the process: it has his rights. What it had begun the next one goes on with, and where none comes to its end the program is
/// ended, for another one waits.
fn hinders(name: &'static str, how: &'static str, says: &'static str) -> Attempt {
    pair(
        name,
        "gpuosd goes on and says so, and the other one has the GPU when it is her turn",
        move |stage| Pair::start(stage, &pinned(&["pinned", how], "")),
        move |stage, pair| {
            stage.told(pair.his, says)?;
            pair.until_audited(stage, "did not take it out of ")?;
            let ended = stage.output(pair.his).contains("> end");
            let said = pair.audited(stage, "the process was ended: ");
            ensure(!ended || said > 0, || {
                format!("it has ended: {}", stage.output(pair.his))
            })
        },
    )
}

fn own_library() -> Attempt {
    let kept = std::rc::Rc::new(std::cell::RefCell::new(None));
    let watch = std::rc::Rc::clone(&kept);
    pair(
        "a driver's library of his own in the loader's variables",
        "the process that calls the driver opens the one that root names, and has nothing of his environment",
        move |stage| {
            watch.replace(Some(watch::Watch::start()));
            let own = stage.work("own-cuda");
            fs::create_dir_all(&own).expect("a folder");
            for name in ["libcuda.so.1", "libgpuos_preload.so.0"] {
                copy(&stage.path("cuda").join(name), &own.join(name));
                chown(own.join(name), Some(MALLORY.uid), Some(MALLORY.uid)).expect("given away");
            }
            let folder = own.display();
            let with =
                format!("LD_LIBRARY_PATH={folder} LD_PRELOAD={folder}/libgpuos_preload.so.0");
            Pair::start(stage, &pinned(&["pinned", "stays"], &with))
        },
        move |stage, pair| {
            is_parked_and_comes_back(stage, pair)?;
            let pid = pair.until_his(stage, "it is there", |_| true)?.pid;
            let own = stage.work("own-cuda").display().to_string();
            let site = stage.path("cuda/libcuda.so.1").display().to_string();
            let watch = kept.take().ok_or("nobody has watched")?;
            let opened = stage.try_until(|| watch.opened(pid, &site).then_some(()));
            let seen = watch.end();
            opened.ok_or_else(|| format!("no process was seen with {site}: {seen:?}"))?;
            for one in seen.values() {
                let foreign = one.files.iter().find(|file| file.starts_with(&own));
                ensure(foreign.is_none(), || format!("{foreign:?} is in {one:?}"))?;
                ensure(one.environment.is_empty(), || format!("{one:?}"))?;
                ensure(
                    one.users.iter().all(|uid| [0, MALLORY.uid].contains(uid)),
                    || format!("{one:?}"),
                )?;
            }
            Ok(())
        },
    )
}

fn dies() -> Attempt {
    pair(
        "ends his program while the driver is called for it, and leaves a child behind",
        "what was lent to it is free, and nobody is called as if it were there still",
        |stage| Pair::start(stage, &pinned(&["pinned", "dies"], "")),
        |stage, pair| {
            stage.told(pair.his, "> died of ")?;
            let free = || pair.program(stage, pair.his).is_none().then_some(());
            let free = stage.try_until(free);
            free.ok_or_else(|| format!("{:?}", pair.program(stage, pair.his)))
        },
    )
}

fn refuses() -> Attempt {
    pair(
        "a program that the driver refuses to take out each time",
        "it is ended, and the audit log has the driver's answer",
        |stage| {
            let his = pinned(&["pinned", "stays"], "");
            let device = "checkpoint=refused";
            Pair::start(stage, &Program { device, ..his })
        },
        |stage, pair| {
            let why = "the driver did not take it out of its GPU: cuCheckpointProcessCheckpoint answered 801";
            pair.until_audited(stage, why)?;
            stage.told(pair.his, "> end").map(|_| ())
        },
    )
}

fn claims() -> Attempt {
    pair(
        "says pinned, parked and back of memory that he does not have",
        "he has no turn by it but his own, and is ended where he does not give way",
        |stage| Pair::start(stage, &pinned(&["claims"], "LD_PRELOAD=")),
        |stage, pair| {
            stage.told(pair.his, "> was told to park")?;
            stage.told(pair.his, "> end")?;
            let said = pair.audited(stage, PARKS);
            ensure(said == 0, || "the driver parked nothing".to_owned())?;
            pair.until_audited(stage, "")
        },
    )
}

/// In a user namespace of his own he is root, and may trace what is in it.
fn root_of_his_own() -> Attempt {
    let one = pair(
        "looks into each process that calls the driver, as root of a user namespace",
        "the kernel refuses, and the driver parks his program and brings it back",
        |stage| {
            let with = "unshare --user --map-root-user";
            Pair::start(stage, &pinned(&["pinned", "looks"], with))
        },
        |stage, pair| {
            is_parked_and_comes_back(stage, pair)?;
            stage.told(pair.his, "> looked into ")?;
            let said = stage.output(pair.his);
            let reached = said.lines().find(|line| line.starts_with("> reached "));
            ensure(reached.is_none(), || reached.unwrap_or_default().to_owned())
        },
    );
    let Attempt { begin, .. } = one;
    Attempt {
        begin: Box::new(|stage| {
            let mut unshare = stage.command(MALLORY, "unshare");
            let can = stage.said(unshare.args(["--user", "--map-root-user", "true"]));
            match can {
                Ok(_) => begin(stage),
                Err(why) => known(Verdict::Skipped(why)),
            }
        }),
        ..one
    }
}

/// Numbers of processes are used again. What gpuosd starts is told a number, a start and a user, and does nothing where they are not one process.
fn number_of_another() -> Attempt {
    let begin = |stage: &Stage| -> Judge {
        let hers = stage.part(ALICE.uid, "name", &["hers"]);
        let mut hers = hers;
        first_line(&mut hers);
        let gpuosd = stage.cluster.lab.gpuosd_pid(NODE).unwrap_or_default();
        let program = format!("/proc/{gpuosd}/exe");
        let (pid, own) = (hers.id(), std::process::id().to_string());
        let who = Proc::at("/proc").who(pid).ok().flatten();
        let started = who.map(|who| who.started).unwrap_or_default();
        let library = stage.path("cuda/libcuda.so.1");
        let call = |pid: u32, started: u64, uid: u32| {
            let mut command = Command::new(&program);
            command.args([FLAG, "out"]);
            command.args([pid.to_string(), started.to_string(), uid.to_string()]);
            command.args(["5000", &own, "/proc"]).arg(&library);
            command.env_clear().current_dir("/").output()
        };
        let mut told = Vec::new();
        for (what, pid, started, uid, code) in [
            ("her process as his", pid, started, MALLORY.uid, 8),
            ("root's process as his", gpuosd, 0, MALLORY.uid, 3),
            ("a later start", pid, started + 1, ALICE.uid, 3),
            ("the first process as his", 1, 0, MALLORY.uid, 3),
            ("a user who is none", pid, started, u32::MAX, 8),
        ] {
            match call(pid, started, uid) {
                Ok(out) if out.status.code() == Some(code) && out.stdout.is_empty() => {}
                other => told.push(format!("{what}: {other:?}")),
            }
        }
        let lives = hers.try_wait().is_ok_and(|ended| ended.is_none());
        stage.keep(hers);
        known(ensure(told.is_empty() && lives, || {
            format!("{told:?}, hers lives: {lives}")
        }))
    };
    attempt(
        INPUT,
        "the number of his process is another's by then",
        "the process that calls the driver sees it, and calls nothing",
        begin,
    )
    .in_wave(Wave::Turned)
}
