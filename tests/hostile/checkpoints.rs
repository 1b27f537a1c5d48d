//! Checkpoints: the folder of a job, which its user fills, and the socket and the TCP port of gpuos_mover.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use crate::attempt::{Attempt, Judge, Wave, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::{ALICE, EVE, MALLORY};

/// SECURITY.md's names of the inputs.
const FOLDER: &str = "Folders of jobs with checkpoints";
pub(crate) const SOCKET: &str = "Requests on gpuos_mover's socket";
const PORT: &str = "gpuos_mover's TCP port";
pub(crate) const OPTION: &str = "Values of gpuos's options";
pub(crate) const ENVIRONMENT: &str = "Variables of the environment";

/// Where the attackers' jobs run; the victim's job has this node as well.
const NODE: &str = "n5";

pub(crate) const HELLO: &str = "{\"ask\":\"hello\",\"protocol\":1,\"client\":\"gpuos\"}\n";

/// The program of the victim's job, on two nodes: a rank on each, which saves whenever it is asked.
pub const VICTIM: &str = "srun -N2 -n2 sh -c 'd=$GPUOS_CHECKPOINT_DIR; r=$SLURM_PROCID; : >$d/ranks/$r.2.7; l=0; \
    while :; do n=; [ -e $d/request ] && read n w <$d/request; if [ -n \"$n\" ] && [ \"$n\" != $l ]; then \
    echo hers >$d/$n/files/rank-$r-of-2/f && touch $d/$n/ready.$r && l=$n; fi; sleep 0.2; done'";

/// A program that joins, is asked, does `{trick}` in its folder, and waits for what becomes of it. `$d` is the job's folder, `$n` the number.
const PROGRAM: &str = "d=$GPUOS_CHECKPOINT_DIR; : >$d/ranks/0.1.7; while [ ! -e $d/request ]; do sleep 0.1; done; read n w <$d/request; \
    cd $d/$n/files/rank-0-of-1; echo mine >f; {trick}; touch $d/$n/ready.0; i=0; \
    while [ $i -lt {tenths} ] && [ ! -e $d/failed ] && [ ! -e $d/commit ]; do sleep 0.1; i=$((i+1)); done; \
    echo \"end=$(cat $d/failed $d/commit 2>/dev/null | head -1)\"; {after}; echo after=over; sleep 60";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    folders(&mut all);
    memory(&mut all);
    all.iter_mut()
        .filter(|one| one.wave == Wave::Checked)
        .for_each(|one| one.wave = Wave::Saving);
    requests(&mut all);
    strangers(&mut all);
    environment(&mut all);
    others(&mut all);
    all
}

fn jobs(stage: &Stage, node: &str) -> PathBuf {
    let store = stage.cluster.lab.checkpoints_dir(node);
    store.with_file_name("jobs")
}

/// The number of the newest checkpoint of the victim's job.
fn hers(stage: &Stage) -> Option<u32> {
    let folder = jobs(stage, NODE).join(stage.victims.saved.to_string());
    let text = fs::read_to_string(folder.join("commit")).ok()?;
    text.trim().parse().ok()
}

/// `Ok` where movers are the same processes, and checkpoints of the victim's job are made still.
pub(crate) fn goes_on(stage: &Stage, pid: Option<u32>) -> Result<(), String> {
    let now = stage.cluster.lab.mover_pid(NODE);
    ensure(now.is_some() && now == pid, || {
        format!("gpuos_mover {pid:?} is {now:?}")
    })?;
    let before = hers(stage);
    let more = stage.try_until(|| (hers(stage) > before).then_some(()));
    more.ok_or_else(|| {
        let log = stage.cluster.lab.mover_log(NODE);
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        format!("no checkpoint of the victim's after {before:?}: {last:?}")
    })
}

/// One that a job's program tries in its folder. `told` is what it must be told.
fn tried(name: &str, holds: &'static str, trick: &str, after: &str, told: &'static str) -> Attempt {
    tried_as("1s,l2=single", name, holds, (trick, after), told)
}

/// The same of a job with this value of the option.
fn tried_as(
    asked: &'static str,
    name: &str,
    holds: &'static str,
    (trick, after): (&str, &str),
    told: &'static str,
) -> Attempt {
    let (own, trick, after) = (name.to_owned(), trick.to_owned(), after.to_owned());
    attempt(FOLDER, name, holds, move |stage: &Stage| -> Judge {
        let hers = stage.work(&format!("saved-{}", own.replace(' ', "-")));
        fs::create_dir(&hers).expect("a folder");
        fs::write(hers.join("hers"), "hers\n").expect("a file");
        for path in [&hers, &hers.join("hers")] {
            std::os::unix::fs::chown(path, Some(ALICE.uid), Some(ALICE.uid)).expect("given away");
        }
        let pid = stage.cluster.lab.mover_pid(NODE);
        // Not for long where it may be told nothing.
        let tenths = ["100", "2000"][usize::from(!told.is_empty())];
        let script = PROGRAM
            .replace("{tenths}", tenths)
            .replace("{trick}", &trick)
            .replace("{after}", &after);
        let mut command = stage.command(MALLORY, "sbatch");
        command.env("HERS", &hers);
        command.env(
            "VICTIM",
            jobs(stage, NODE).join(stage.victims.saved.to_string()),
        );
        let asked = format!("--gpuos-checkpoint={asked}");
        let options = ["-w", NODE, &asked];
        let job = stage.sbatch_with(command, &options, &script);
        judge(move |stage| {
            let job = job?;
            let end = stage.told(job, "end=")?;
            ensure(end.contains(told), || {
                format!("the program is told {end:?}")
            })?;
            stage.told(job, "after=")?;
            let said = stage.output(job);
            ensure(!said.contains("hers") && !said.contains("DONE"), || {
                said.clone()
            })?;
            let kept = fs::read_to_string(hers.join("hers")).unwrap_or_default();
            ensure(kept == "hers\n", || {
                format!("the victim's file has {kept:?}")
            })?;
            let store = stage.cluster.lab.checkpoints_dir(NODE);
            let leaked = has(&store.join(job.to_string()), b"hers\n");
            ensure(!leaked, || {
                "the victim's bytes are in the checkpoint".into()
            })?;
            // Whatever it was, it is removed in the end.
            let trash = jobs(stage, NODE).join(format!(".gone/{}", MALLORY.uid));
            let gone = stage.try_until(|| (!trash.exists()).then_some(()));
            gone.ok_or_else(|| format!("{} is there", trash.display()))?;
            goes_on(stage, pid)
        })
    })
}

/// Whether a file beneath a folder has these bytes.
fn has(folder: &std::path::Path, bytes: &[u8]) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| match path.is_dir() {
            true => has(&path, bytes),
            false => {
                let text = fs::read(&path).unwrap_or_default();
                text.windows(bytes.len()).any(|part| part == bytes)
            }
        })
}

fn folders(all: &mut Vec<Attempt>) {
    let none = "no byte of another user's is read for him, and gpuos_mover goes on";
    all.extend([
        tried("a link to another user's file", none, "ln -s $HERS/hers x", ":", "symbolic link").short(),
        tried("a link to the whole machine", none, "ln -s / x", ":", "symbolic link"),
        tried("its own folder replaced by a link", none, "cd ../..; mv files x; ln -s $HERS files", ":", ""),
        tried("a pipe that nobody writes to", none, "mkfifo x", ":", "named pipe").short(),
        tried(
            "folder and link that change places",
            none,
            "mkdir a; ln -s $HERS b; (i=0; while [ $i -lt 3000 ]; do mv -T a c; mv -T b a; mv -T c b; i=$((i+1)); done) 2>/dev/null & true",
            ":",
            "",
        ),
        tried("a socket and a device", none, "mknod x c 1 5 2>/dev/null || mkfifo x", ":", "it is"),
        tried("asks for a checkpoint all the time", "gpuos_mover goes on, and the victim's checkpoints are made",
            "(i=0; while [ $i -lt 20000 ]; do : >$d/ranks/ask.0; mkfifo $d/ranks/ask.$i; i=$((i+1)); done) 2>/dev/null & true", ":", ""),
        tried("20,000 joins", "gpuos_mover goes on", "seq 20000 | sed 's/$/.65535.1/' | (cd $d/ranks && xargs touch)", ":", ""),
        tried("18,000 folders in one another", "gpuos_mover goes on", "GPUOS_HOSTILE_WORDS=\"$(printf '%s\\n18000' $PWD)\" GPUOS_HOSTILE_ROLE=nest \"$ATTACKER\" --exact hostile::plays_its_part --nocapture >/dev/null",
            ":",
            "folders deep"),
    ]);
    let roots = "what root wrote is as it was, and only what was given to the user is his";
    let writes = "for f in $d/commit $d/failed $d/request $d/start.0.7 $d/taken; do (echo x >$f) 2>/dev/null && [ -s $f ] && echo DONE $f; done; \
        mkdir $d/x 2>/dev/null && echo DONE x; mv $d/ranks $d/r 2>/dev/null && echo DONE mv; rm -f $d/commit; [ -e $d/commit ] || echo DONE rm";
    all.push(tried("writes where root writes", roots, ":", writes, "").short());
    let looks = "cat $VICTIM/ranks/* $VICTIM/[0-9]*/files/*/* 2>/dev/null && echo DONE; ls $VICTIM/ranks 2>/dev/null && echo DONE; \
        touch $VICTIM/x $VICTIM/ranks/1.2.99 2>/dev/null && echo DONE; :";
    all.push(
        tried(
            "another's job's folder",
            "it can neither be read nor written",
            ":",
            looks,
            "",
        )
        .short(),
    );
}

/// The same where the folder lies in memory, which root has mounted.
fn memory(all: &mut Vec<Attempt>) {
    let none = "root's mount stays as it is, no byte of another user's is read for him, and gpuos_mover goes on";
    let in_memory = "[ \"$(stat -f -c %T .)\" = tmpfs ] || echo DONE disk; ";
    let own = "umount $d/memory 2>/dev/null && echo DONE umount; umount -l $d/memory 2>/dev/null && echo DONE lazily; \
        (echo x >$d/memory/x) 2>/dev/null && echo DONE x; mkdir $d/memory/9 2>/dev/null && echo DONE 9; \
        mv $d/memory/$n $d/memory/m 2>/dev/null && echo DONE mv; mv $d/memory $d/m 2>/dev/null && echo DONE m; \
        rm -f $d/$n && echo DONE rm; ls $d/memory/.gone 2>/dev/null && echo DONE gone; cp /bin/true t; chmod 7777 t; ./t 2>/dev/null && echo DONE run; \
        ls $VICTIM/memory/* 2>/dev/null && echo DONE ls; rm -f t";
    let mounts = "mkdir m; unshare -rm sh -c 'mount -t tmpfs x m; mount --bind . ../../memory; umount -l ../../..; echo x >m/f' 2>/dev/null; \
        unshare -rm mount -t tmpfs x $d/memory 2>/dev/null";
    for (name, trick, told) in [
        ("changes what root has mounted", own, ""),
        (
            "mounts over its folder in a namespace of its own",
            mounts,
            "",
        ),
        (
            "fills its folder",
            "head -c 99M /dev/zero >x 2>/dev/null && echo DONE full; rm x",
            "",
        ),
        (
            "leaves no memory free",
            "head -c 99M /dev/zero >x 2>/dev/null && echo DONE full",
            "",
        ),
        (
            "a link to another user's file",
            "ln -s $HERS/hers x",
            "symbolic link",
        ),
        (
            "its folder replaced by a link",
            "cd ../..; mv files x; ln -s $HERS files",
            "",
        ),
        (
            "a join that says that memory is not seen",
            ": >$d/ranks/no-memory; mkdir $d/ranks/memory; ln -s / $d/ranks/1.2.3",
            "",
        ),
        (
            "names that look like a mount",
            "mkdir -p \"memory - tmpfs gpuos rw\" 'memory\\040-\\040tmpfs' \"$(printf '1 2 0:9 / %s/memory rw - tmpfs gpuos rw\\n' ../..)\"; chattr +i f 2>/dev/null",
            "",
        ),
    ] {
        let name = format!("in memory, {name}");
        let trick = format!("{in_memory}{trick}");
        all.push(tried_as(
            "1s,l0=32M,l2=single",
            &name,
            none,
            (&trick, ":"),
            told,
        ));
    }
}

fn requests(all: &mut Vec<Attempt>) {
    let job = |text: &str| format!("{{\"ask\":\"checkpoint\",\"what\":{text}}}\n");
    let refused = "is refused, and the victim's checkpoints go on";
    for (name, what) in [
        (
            "asks for a checkpoint of another's job",
            "{\"do\":\"now\",\"job\":{victim}}",
        ),
        (
            "chooses from which checkpoint another's job goes on",
            "{\"do\":\"choose\",\"job\":{victim},\"number\":1}",
        ),
        (
            "verifies another's checkpoints",
            "{\"do\":\"verify\",\"job\":{victim}}",
        ),
        (
            "removes another's checkpoints",
            "{\"do\":\"prune\",\"job\":{victim}}",
        ),
        (
            "reports a step of another's job",
            "{\"do\":\"step\",\"id\":{\"job\":{victim},\"step\":1},\"uid\":61001,\"gid\":61001,\"asked\":\"1s\"}",
        ),
    ] {
        let text = job(what);
        all.push(
            attempt(SOCKET, name, refused, move |stage: &Stage| -> Judge {
                let text = text.replace("{victim}", &stage.victims.saved.to_string());
                let read = serde_json::from_str::<gpuos_core::wire::Request>(&text);
                assert!(read.is_ok(), "{text}: {read:?}");
                let pid = stage.cluster.lab.mover_pid(NODE);
                let told = stage.talk_to(
                    MALLORY,
                    &socket(stage, NODE),
                    format!("{HELLO}{text}").as_bytes(),
                    2,
                );
                judge(move |stage| {
                    let told = told.heard();
                    let last = told.last().cloned().unwrap_or_default();
                    ensure(
                        last.contains("\"answer\":\"refused\"") && last.contains("only root"),
                        || format!("told {told:?}"),
                    )?;
                    goes_on(stage, pid)
                })
            })
            .short(),
        );
    }
    let own = "is told of his own jobs only";
    all.push(
        attempt(
            SOCKET,
            "asks for all checkpoints",
            own,
            move |stage: &Stage| -> Judge {
                let text = "{\"ask\":\"checkpoint\",\"what\":{\"do\":\"list\"}}\n";
                let told = stage.talk_to(
                    EVE,
                    &socket(stage, NODE),
                    format!("{HELLO}{text}").as_bytes(),
                    2,
                );
                judge(move |stage| {
                    let told = told.heard().join("\n");
                    let answered = told.contains("\"answer\":\"checkpoints\"");
                    let hers = format!("\"job\":{}", stage.victims.saved);
                    let uid = format!("\"uid\":{}", ALICE.uid);
                    ensure(
                        answered && !told.contains(&hers) && !told.contains(&uid),
                        || told.clone(),
                    )
                })
            },
        )
        .short(),
    );
    let alive = "the victim's checkpoints go on, and gpuos_mover is the same process";
    for (name, text) in [
        ("a line of 128 KiB", "x".repeat(128 << 10)),
        (
            "20,000 lines of nonsense",
            format!("{HELLO}{}", "nonsense\n".repeat(20_000)),
        ),
        (
            "lists as fast as it can",
            format!(
                "{HELLO}{}",
                "{\"ask\":\"checkpoint\",\"what\":{\"do\":\"list\"}}\n".repeat(5_000)
            ),
        ),
    ] {
        all.push(attempt(
            SOCKET,
            format!("sends {name}"),
            alive,
            move |stage: &Stage| -> Judge {
                let pid = stage.cluster.lab.mover_pid(NODE);
                let told =
                    stage.talk_to(MALLORY, &socket(stage, NODE), text.as_bytes(), usize::MAX);
                judge(move |stage| {
                    told.heard();
                    goes_on(stage, pid)
                })
            },
        ));
    }
}

pub(crate) fn socket(stage: &Stage, node: &str) -> PathBuf {
    stage.runtime(node).join(gpuos_host::socket::MOVER)
}

/// Where the mover of the node listens, by its log.
fn address(stage: &Stage) -> Result<SocketAddr, String> {
    let log = stage.cluster.lab.mover_log(NODE);
    let mut said = log
        .lines()
        .filter_map(|line| line.split("heard at TCP ").nth(1));
    let said = said.next().ok_or_else(|| format!("no port: {log}"))?;
    let word: String = said
        .chars()
        .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
        .collect();
    word.parse().map_err(|e| format!("{word}: {e}"))
}

fn strangers(all: &mut Vec<Attempt>) {
    let alone = "the stranger is told nothing, and the victim's checkpoints go on";
    let big = |length: u32| [&length.to_be_bytes()[..], &[b'M'; 64 << 10]].concat();
    let little = |length: u32| [&length.to_le_bytes()[..], &[b'M'; 64 << 10]].concat();
    for (name, bytes, count) in [
        ("200 connections that say nothing", Vec::new(), 200),
        ("half a length", vec![0, 0], 50),
        ("a length of 4 GiB", big(u32::MAX), 20),
        (
            "a length of 8 KiB, and no end",
            little(8 << 10)[..5000].to_vec(),
            100,
        ),
        (
            "a request for a web page",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            20,
        ),
        (
            "noise",
            (0..20_000u32)
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
            50,
        ),
    ] {
        all.push(attempt(
            PORT,
            format!("sends {name}"),
            alone,
            move |stage: &Stage| -> Judge {
                let pid = stage.cluster.lab.mover_pid(NODE);
                let to = address(stage);
                let open: Vec<TcpStream> = (0..count)
                    .filter_map(|_| {
                        let mut stream = TcpStream::connect(to.as_ref().ok()?).ok()?;
                        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
                        let _ = stream.write_all(&bytes);
                        Some(stream)
                    })
                    .collect();
                judge(move |stage| {
                    to?;
                    goes_on(stage, pid)?;
                    for mut stream in open {
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
                        let mut told = [0; 64];
                        let read = stream.read(&mut told).unwrap_or(0);
                        ensure(read == 0, || format!("it was told {:?}", &told[..read]))?;
                    }
                    Ok(())
                })
            },
        ));
    }
    all.push(
        attempt(
            PORT,
            "a credential of an ordinary user, again and again",
            alone,
            |stage: &Stage| -> Judge {
                let pid = stage.cluster.lab.mover_pid(NODE);
                let munge = stage.path("munge/socket").display().to_string();
                let job = stage.victims.saved.to_string();
                let sealed = stage.said(
                    stage
                        .command(MALLORY, "munge")
                        .args(["-S", &munge, "-s", &job]),
                );
                let to = address(stage);
                let answers: Result<usize, String> = to.and_then(|to| {
                    let sealed = sealed?;
                    let sealed = sealed.trim().as_bytes();
                    let length = u32::try_from(sealed.len()).map_err(|e| e.to_string())?;
                    let heads = [length.to_be_bytes(), length.to_le_bytes()];
                    let mut told = 0;
                    for head in heads.iter().cycle().take(20) {
                        let mut stream = TcpStream::connect(to).map_err(|e| e.to_string())?;
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
                        let _ = stream.write_all(&[&head[..], sealed].concat());
                        told += stream.read(&mut [0; 64]).unwrap_or(0);
                    }
                    Ok(told)
                });
                judge(move |stage| {
                    let told = answers?;
                    ensure(told == 0, || format!("it was told {told} bytes"))?;
                    goes_on(stage, pid)
                })
            },
        )
        .short(),
    );
}

/// Jobs that want to begin from the checkpoint of another user's job.
fn others(all: &mut Vec<Attempt>) {
    let holds = "is told that it cannot, gets no byte of it, and the victim's checkpoints go on";
    for (name, value) in [
        ("begins from the checkpoint of another's job", "{victim}"),
        ("begins from checkpoint 1 of another's job", "{victim}/1"),
        (
            "begins from the largest number that there is",
            "4294967295/4294967295",
        ),
    ] {
        all.push(attempt(OPTION, name, holds, move |stage: &Stage| -> Judge {
            let pid = stage.cluster.lab.mover_pid(NODE);
            let victim = stage.victims.saved.to_string();
            let restart = format!("--gpuos-restart={}", value.replace("{victim}", &victim));
            let script = "d=$GPUOS_CHECKPOINT_DIR; : >$d/ranks/0.1.7; while [ ! -e $d/start.0.7 ]; do sleep 0.1; done; \
                echo \"end=$(head -1 $d/start.0.7)\"; echo after=$(ls $d | grep -c restore); sleep 20";
            let options = ["-w", NODE, "--gpuos-checkpoint=1s,l2=single", &restart];
            let job = stage.sbatch_with(stage.command(MALLORY, "sbatch"), &options, script);
            judge(move |stage| {
                let job = job?;
                let end = stage.told(job, "end=")?;
                ensure(end.starts_with("failed "), || format!("the program is told {end:?}"))?;
                let after = stage.told(job, "after=")?;
                ensure(after == "0", || format!("{after} folders of restored files"))?;
                goes_on(stage, pid)
            })
        }));
    }
}

fn environment(all: &mut Vec<Attempt>) {
    let own =
        "root's daemon makes a folder only beneath its own, and the program is told of that one";
    all.push(
        attempt(
            ENVIRONMENT,
            "GPUOS_CHECKPOINT_DIR and GPUOS_JOB_CHECKPOINT set by hand",
            own,
            |stage: &Stage| -> Judge {
                let elsewhere = stage.work("elsewhere");
                let mut command = stage.command(MALLORY, "sbatch");
                command.env("GPUOS_CHECKPOINT_DIR", &elsewhere);
                command.env("GPUOS_JOB_CHECKPOINT", "1s,dir=/etc\nJobId=1");
                let job = stage.sbatch_with(
                    command,
                    &["-w", NODE, "--gpuos-checkpoint=10m"],
                    "echo dir=$GPUOS_CHECKPOINT_DIR; sleep 30",
                );
                judge(move |stage| {
                    let job = job?;
                    let told = stage.told(job, "dir=")?;
                    let wanted = jobs(stage, NODE).join(job.to_string());
                    ensure(told == wanted.display().to_string(), || told.clone())?;
                    ensure(!elsewhere.exists(), || {
                        format!("{} is there", elsewhere.display())
                    })
                })
            },
        )
        .short(),
    );
    let steps = "which step is the program, and on which nodes, is slurmctld's word: the mover goes on with what it says";
    all.push(
        attempt(
            ENVIRONMENT,
            "GPUOS_RUN_START and GPUOS_JOB_SPARES set by hand, huge, going back and with names in them, in steps with records for names",
            steps,
            |stage: &Stage| -> Judge {
                let name = "x NodeList=n99 Nodes=1\nStepId=1.0 UserId=0 NodeList=n99 Nodes=1";
                let script = format!(
                    "for s in 4294967295 1 0 -1 '2 n99' n99 3; do export GPUOS_RUN_START=\"$s\" GPUOS_JOB_SPARES=\"$s\"; \
                     srun -n1 -J \"{name}\" sh -c 'echo in $SLURM_STEP_ID dir=$GPUOS_CHECKPOINT_DIR run=$GPUOS_RUN_START'; done; echo end=; sleep 20"
                );
                let job = stage.sbatch(
                    MALLORY,
                    &["-w", NODE, "--gpuos-checkpoint=10m,l2=single"],
                    &script,
                );
                judge(move |stage| {
                    let job = job?;
                    stage.told(job, "end=")?;
                    let wanted = jobs(stage, NODE).join(job.to_string());
                    for step in 0..7 {
                        let told = stage.told(job, &format!("in {step} "))?;
                        let is_own = told == format!("dir={} run=", wanted.display());
                        ensure(is_own || told == "dir= run=", || format!("step {step}: {told}"))?;
                    }
                    let ids = fs::read_dir(jobs(stage, NODE)).map_err(|e| e.to_string())?;
                    let odd = ids.flatten().map(|entry| entry.file_name()).find(|name| {
                        let name = name.to_string_lossy();
                        !name.starts_with('.') && name.parse::<u32>().is_err()
                    });
                    ensure(odd.is_none(), || format!("{odd:?} is there"))
                })
            },
        )
        .short(),
    );
    let none = "no folder for checkpoints, and a sentence";
    all.push(
        attempt(ENVIRONMENT, "asks for checkpoints where gpuos.toml forbids them, by the environment of the job", none, |stage: &Stage| -> Judge {
            let mut command = stage.command(MALLORY, "sbatch");
            command.env("GPUOS_JOB_CHECKPOINT", "1s");
            command.env("SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_checkpoint", "1s");
            let script = "export GPUOS_JOB_CHECKPOINT=1s; echo dir=$GPUOS_CHECKPOINT_DIR; \
                echo step=$(srun -n1 sh -c 'echo $GPUOS_CHECKPOINT_DIR'); \
                echo asks=$(srun -n1 --gpuos-checkpoint=1s sh -c 'echo $GPUOS_CHECKPOINT_DIR'); echo end=; sleep 20";
            let job = stage.sbatch_with(command, &["-w", NODE, "-p", "walled"], script);
            judge(move |stage| {
                // Refused, with a sentence that is not Slurm's.
                let Ok(job) = job else { return Ok(()) };
                stage.told(job, "end=")?;
                for start in ["dir=", "step=", "asks="] {
                    let told = stage.told(job, start).unwrap_or_default();
                    ensure(told.is_empty(), || format!("{start}{told}"))?;
                }
                let made = jobs(stage, NODE).join(job.to_string());
                ensure(!made.exists(), || format!("{} is there", made.display()))
            })
        })
        .in_wave(Wave::Walled)
        .short(),
    );
}
