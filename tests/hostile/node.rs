//! What a user reaches on a node beside gpuosd's socket: the kernel's log, names of processes, control groups, devices, signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuos_tests::slices;

use crate::attempt::{Attempt, Judge, Verdict, attempt, ensure, judge, known};
use crate::stage::{Stage, first_line};
use crate::users::MALLORY;

/// SECURITY.md's names of the inputs.
const LOG: &str = "The kernel's log";
const PROCESSES: &str = "Names of processes and of control groups";
const DEVICES: &str = "Device files";
const SIGNALS: &str = "Signals";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    log(&mut all);
    processes(&mut all);
    devices(&mut all);
    signals(&mut all);
    all
}

/// A record as the kernel gives it to a reader, of a GPU of n4. `{pci}` is where the GPU is.
fn log(all: &mut Vec<Attempt>) {
    let served = "the GPU serves on, the node is not drained, and its job runs";
    for (gpu, name, record) in [
        (
            0,
            "an option of a mount",
            "3,{n},{n}000,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:{pci}): 48, pid=1, name=x'",
        ),
        (
            1,
            "a value of a mount's option",
            "3,{n},{n}000,-;tmpfs: Bad value for 'size', NVRM: Xid (PCI:{pci}): 48, x",
        ),
        (
            2,
            "the name of a program that crashes",
            "6,{n},{n}000,-;NVRM: Xid (PCI:[4242]: segfault at 0 ip 0 sp 0 error 4 in {pci}): 48, pid=1[0+1]",
        ),
        (
            3,
            "a line that root's logger wrote",
            "12,{n},{n}000,-;NVRM: Xid (PCI:{pci}): 48, pid=1, name=x",
        ),
        (
            4,
            "a newline that the kernel escapes",
            "4,{n},{n}000,-;x\\x0aNVRM: Xid (PCI:{pci}): 48, pid=1, name=x",
        ),
        (
            5,
            "a continuation of a record",
            "6,{n},{n}000,-;usb 1-1: Product: x\n SUBSYSTEM=usb\n DEVICE=NVRM: Xid (PCI:{pci}): 48, pid=1",
        ),
        (
            6,
            "an Xid that NVIDIA's library does not know",
            "4,{n},{n}000,-;NVRM: Xid (PCI:{pci}): 48, pid=1, name=x",
        ),
    ] {
        all.push(
            attempt(LOG, name, served, move |stage| {
                let pci = stage.status("n4").ok().and_then(|status| {
                    let own = status
                        .gpus
                        .into_iter()
                        .find(|one| u8::from(one.index) == gpu)?;
                    Some(
                        own.pci
                            .rsplit_once('.')
                            .map_or(own.pci.clone(), |(start, _)| start.to_owned()),
                    )
                });
                let pci = pci.expect("gpuosd knows where its GPUs are");
                let line = record
                    .replace("{pci}", &pci)
                    .replace("{n}", &(1000 + u32::from(gpu)).to_string());
                stage.log(&line);
                judge(move |stage| {
                    stage.logged();
                    let seen = stage.audit("n4");
                    let of_gpu = format!("\"gpu\":{gpu},");
                    let line = seen
                        .lines()
                        .find(|line| line.contains(&of_gpu) && acts(line));
                    ensure(line.is_none(), || line.unwrap_or_default().to_owned())?;
                    let out = stage.unwell("n4")?;
                    ensure(!out.contains(&gpu.to_string()), || {
                        format!("Extra is {out}")
                    })
                })
            })
            .short(),
        );
    }
    all.push(
        attempt(LOG, "an Xid that drains a node", served, |stage: &Stage| -> Judge {
            stage.log("3,2000,2000,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:1b:00): 79, pid=1'");
            stage.log("3,2001,2001,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:1B:00): 119, pid=1'");
            judge(|stage| {
                stage.logged();
                let drained = stage.status("n4")?.node_drained;
                ensure(drained.is_none(), || drained.unwrap_or_default())?;
                stage.run_on(&[stage.victims.logged])
            })
        })
        .short(),
    );
    all.push(attempt(
        LOG,
        "20,000 lines at once",
        "gpuosd polls on",
        |stage: &Stage| -> Judge {
            let line =
                "3,3000,3000,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:1b:00): 13, pid=1'\n";
            stage.log(line.repeat(20_000).trim_end());
            judge(|stage| {
                stage.logged();
                let polls = || {
                    let status = stage.status("n4").ok()?;
                    (status.daemon.sampled_ms_ago.is_some_and(|ago| ago < 10_000)).then_some(())
                };
                stage
                    .try_until(polls)
                    .ok_or_else(|| "no poll within 10 s".to_owned())
            })
        },
    ));
}

/// Whether a line of the audit log is about something that is done, not only told.
fn acts(line: &str) -> bool {
    ["gets no more jobs", "requeue", "is ended", "drain", "reset"]
        .iter()
        .any(|word| line.contains(word))
}

fn processes(all: &mut Vec<Attempt>) {
    let killed = "it is found on another's GPU, and killed";
    for (name, calls_itself) in [
        ("a program called as one that is exempt", "nvidia-persiste"),
        (
            "a program with a line about its user in its name",
            "x\\nUid:\\t0\\t0\\t0",
        ),
        ("a program that looks as if it had ended", "a) Z 1 1 (b"),
        ("a program with its state in its name", "x\\nState:\\tZ"),
    ] {
        all.push(attempt(PROCESSES, name, killed, move |stage| {
            let mut part = stage.part(MALLORY.uid, "name", &[calls_itself]);
            first_line(&mut part);
            on_gpu(stage, part, None)
        }));
    }
    for (name, group) in [
        (
            "a control group below the user's own that is called as Slurm's",
            "slurmstepd.scope/job_{job}/step_0",
        ),
        (
            "a control group that is called as one of version 1",
            "slurm/uid_{uid}/job_{job}/step_0/task_0",
        ),
    ] {
        all.push(attempt(PROCESSES, name, killed, move |stage| {
            let group = group
                .replace("{job}", &stage.victims.plain.to_string())
                .replace("{uid}", &MALLORY.uid.to_string());
            let made = match Group::make(&group) {
                Ok(made) => made,
                Err(why) => return known(Verdict::Skipped(why)),
            };
            let mut part = stage.part(MALLORY.uid, "name", &["x"]);
            first_line(&mut part);
            if let Err(why) = fs::write(made.path.join("cgroup.procs"), part.id().to_string()) {
                return known(Verdict::Skipped(format!("{}: {why}", made.path.display())));
            }
            on_gpu(stage, part, Some(made))
        }));
    }
}

/// Shows a process on the victim's GPU, and judges that it is killed.
fn on_gpu(stage: &Stage, mut part: std::process::Child, group: Option<Group>) -> Judge {
    let gpu = stage
        .cluster
        .gpus(stage.victims.plain)
        .remove("n1")
        .unwrap_or_default();
    let gpu = gpu.first().copied().unwrap_or_default().to_string();
    slices::nvml(
        &stage.cluster,
        "n1",
        &["run", &gpu, "--pid", &part.id().to_string()],
    );
    Box::new(move |stage| {
        let ended = stage.try_until(|| part.try_wait().ok().flatten());
        slices::nvml(&stage.cluster, "n1", &["stop", &part.id().to_string()]);
        let _ = part.kill();
        let _ = part.wait();
        drop(group);
        let well = ended.is_some();
        ensure(well, || "it runs on".into())
            .and_then(|()| stage.run_on(&[stage.victims.plain]))
            .into()
    })
}

/// A control group as systemd gives one to a user, in a hierarchy that does nothing to its processes.
struct Group {
    path: PathBuf,
    top: PathBuf,
}

impl Group {
    fn make(name: &str) -> Result<Group, String> {
        let roots = [
            "/sys/fs/cgroup/pids",
            "/sys/fs/cgroup/systemd",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup",
        ];
        let mut why = String::new();
        for root in roots {
            let root = Path::new(root);
            let own = format!("gpuos-hostile-{}", std::process::id());
            let top = root.join(&own);
            let path = top.join("user.slice").join(name);
            match fs::create_dir_all(&path) {
                Ok(()) if path.join("cgroup.procs").exists() => return Ok(Group { path, top }),
                Ok(()) => drop(Group { path, top }),
                Err(e) => why = format!("{}: {e}", root.display()),
            }
        }
        Err(format!("no control group can be made here: {why}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut path = self.path.clone();
        while path.starts_with(&self.top) {
            // The kernel may still be busy with a process that has just ended.
            for _ in 0..50 {
                if fs::remove_dir(&path).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            path.pop();
        }
    }
}

fn devices(all: &mut Vec<Attempt>) {
    let denied = "the kernel denies each GPU that the job was not given";
    let script = "for gpu in 0 1 2 3 4 5 6 7; do (: < $DEVICES/nvidia$gpu) 2>&1 | grep -q 'not permitted' || echo open=$gpu; done; echo end=1; sleep 1200";
    for (name, options) in [
        ("opens all GPUs from a job with one", &["--gres=gpu:1"][..]),
        ("opens all GPUs from a job with none", &[]),
        (
            "opens all GPUs from a job with a slice",
            &["--gpuos-mig=1g.10gb"],
        ),
        (
            "opens all GPUs from a job with MPS",
            &["--gres=gpu:1", "--gpuos-mps=on"],
        ),
    ] {
        all.push(attempt(DEVICES, name, denied, move |stage| {
            if !stage.cluster.lab.has_cgroup() {
                return known(Verdict::Skipped(
                    "no control groups of version 1 for Slurm".into(),
                ));
            }
            let mut command = stage.command(MALLORY, "sbatch");
            command.env("DEVICES", stage.cluster.lab.device_dir());
            let job = stage.sbatch_with(command, &[&["-w", "n2"], options].concat(), script);
            judge(move |stage| {
                let job = job?;
                stage.told(job, "end=")?;
                let given = stage.cluster.gpus(job).remove("n2").unwrap_or_default();
                let text = stage.output(job);
                let open: Vec<usize> = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("open=")?.parse().ok())
                    .collect();
                // With a slice the divided GPU itself has to be opened, beside the instance.
                let may = |gpu: &usize| {
                    given.contains(gpu)
                        || *gpu == 7 && options.iter().any(|one| one.contains("mig"))
                };
                ensure(open.iter().all(may), || {
                    format!("opens {open:?}, was given {given:?}")
                })
            })
        }));
    }
    all.push(attempt(DEVICES, "opens another's MIG instance", denied, |stage: &Stage| -> Judge {
        if !stage.cluster.lab.has_cgroup() {
            return known(Verdict::Skipped("no control groups of version 1 for Slurm".into()));
        }
        // What opens any instance that the GPU can have; a program needs the compute instance's as well.
        let fence = stage.cluster.lab.slices_dir("n1").join("fence7");
        let caps = fs::read_to_string(fence).unwrap_or_default();
        let caps = caps.split_whitespace().filter(|word| word.starts_with('/'));
        let caps = caps.collect::<Vec<_>>().join(" ");
        let script = "for cap in $CAPS; do case $( (: < $cap) 2>&1) in *'not permitted'*|*denied*) ;; *) echo open=$cap $( (: < $cap) 2>&1);; esac; done; echo end=1; sleep 1200";
        let mut command = stage.command(MALLORY, "sbatch");
        command.env("CAPS", &caps);
        let job = stage.sbatch_with(command, &["-w", "n1", "--gpuos-mig=1g.10gb"], script);
        judge(move |stage| {
            let job = job?;
            stage.told(job, "end=")?;
            let text = stage.output(job);
            let open = text.lines().filter(|line| line.starts_with("open=")).count();
            // Its own.
            ensure(open == 1, || text.clone())
        })
    }));
}

fn signals(all: &mut Vec<Attempt>) {
    all.push(attempt(
        SIGNALS,
        "kill -9 for each daemon",
        "the kernel refuses",
        |stage: &Stage| -> Judge {
            let lab = &stage.cluster.lab;
            let daemons = [
                lab.slurmctld_pid(),
                lab.slurmd_pid("n1"),
                lab.gpuosd_pid("n1"),
            ];
            let told = daemons.map(|pid| {
                let pid = pid.unwrap_or_default().to_string();
                stage.said(
                    stage
                        .command(MALLORY, "sh")
                        .args(["-c", &format!("kill -9 {pid}")]),
                )
            });
            known(ensure(told.iter().all(Result::is_err), || {
                format!("{told:?}")
            }))
        },
    ));
    all.push(attempt(
        SIGNALS,
        "scancel and requeue of others' jobs",
        "slurmctld refuses",
        |stage: &Stage| -> Judge {
            let [plain, root] =
                [stage.victims.plain, stage.victims.root].map(|job| job.to_string());
            let told = [
                stage.said(stage.command(MALLORY, "scancel").arg(&plain)),
                stage.said(stage.command(MALLORY, "scontrol").args(["requeue", &plain])),
                stage.said(stage.command(MALLORY, "scontrol").args(["requeue", &root])),
            ];
            judge(move |stage| {
                // Some releases of scancel say nothing about jobs that they may not show.
                ensure(told[1..].iter().all(Result::is_err), || format!("{told:?}"))?;
                stage.run_on(&[stage.victims.plain, stage.victims.root])
            })
        },
    ));
}
