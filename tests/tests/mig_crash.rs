//! `kill -9` of gpuosd, slurmd, slurmstepd and slurmctld at each point of making and releasing slices, in real Slurm
//! clusters: no instance is left, no slice is lost, no job is on the device of another.
//!
//! A neighbour holds half of the GPU all the time. In each cell of the table a job takes the other half as two
//! instances, a daemon is killed at a point of its life and started anew, and the story goes on to its end. A slice that
//! was lost would be missing to the next job.

use std::fs;
use std::time::{Duration, Instant};

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::slices::{agree, bits, devices, instances, nvml, pool, told};
use gpuos_tests::{Cluster, per_suite};

per_suite!(daemons_die);

/// The next job in the slices of that of a cell, which divides them in another way.
const NEXT: [&str; 2] = ["--gpuos-mig=1g.10gb:4", "--open-mode=append"];

/// The GPU that is divided.
const GPU: usize = 7;

/// Who is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Daemon {
    Gpuosd,
    Slurmd,
    /// That of the batch script or step that is at this point.
    Slurmstepd,
    /// Its state is saved.
    Slurmctld,
    /// It has not saved what happened last.
    SlurmctldUnsaved,
}

/// When.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Point {
    Pending,
    /// slurmd runs the prolog.
    Prolog,
    /// The step is reported, and gpuosd asks slurmctld whose the slices are.
    Asked,
    /// A call of the driver: its name, and the how manyth it is, from 0 on.
    Making(&'static str, u32),
    /// As before, and the job has been cancelled meanwhile.
    Cancelled,
    /// The batch script runs.
    Running,
    /// A step of it runs.
    Step,
    /// slurmd runs the epilog.
    Epilog,
    /// The job is gone, its instances go, and the next job has been given the slices.
    Releasing(&'static str, u32),
}

use Daemon::{Gpuosd, Slurmctld, SlurmctldUnsaved, Slurmd, Slurmstepd};
use Point::{Asked, Cancelled, Epilog, Making, Pending, Prolog, Releasing, Running, Step};

const MAKING: [Point; 8] = [
    Making("before-make-gpu", 0),
    Making("after-make-gpu", 0),
    Making("before-make-compute", 0),
    Making("after-make-compute", 0),
    Making("before-make-gpu", 1),
    Making("after-make-gpu", 1),
    Making("before-make-compute", 1),
    Making("after-make-compute", 1),
];

const RELEASING: [Point; 8] = [
    Releasing("before-destroy-compute", 0),
    Releasing("after-destroy-compute", 0),
    Releasing("before-destroy-gpu", 0),
    Releasing("after-destroy-gpu", 0),
    Releasing("before-destroy-compute", 1),
    Releasing("after-destroy-compute", 1),
    Releasing("before-destroy-gpu", 1),
    Releasing("after-destroy-gpu", 1),
];

/// Every cell of the table.
fn table() -> Vec<(Daemon, Point)> {
    let mut all = Vec::new();
    let slurm = [Pending, Prolog, Asked, Cancelled, Running, Step, Epilog];
    for daemon in [Gpuosd, Slurmd, Slurmstepd, Slurmctld] {
        // There is no slurmstepd yet, or no longer.
        let has =
            |point: &Point| daemon != Slurmstepd || !matches!(point, Pending | Prolog | Epilog);
        let points = slurm.into_iter().chain(MAKING).chain(RELEASING);
        // What the other three know does not differ between the first instance and the second.
        let tells = |point: &Point| {
            daemon == Gpuosd
                || match point {
                    Making(call, number) => (*number == 0) == call.ends_with("gpu"),
                    Releasing(call, number) => (*number == 1) == call.ends_with("gpu"),
                    _ => true,
                }
        };
        all.extend(
            points
                .filter(has)
                .filter(tells)
                .map(|point| (daemon, point)),
        );
    }
    let unsaved = [Running, Epilog, MAKING[1], MAKING[7], RELEASING[0]];
    all.extend(unsaved.map(|point| (SlurmctldUnsaved, point)));
    all
}

/// Those that are played without being asked for.
const SAMPLE: [(Daemon, Point); 5] = [
    (Gpuosd, MAKING[1]),
    (Slurmstepd, MAKING[6]),
    (Slurmd, Asked),
    (Slurmctld, RELEASING[0]),
    (Gpuosd, RELEASING[6]),
];

fn name((daemon, point): (Daemon, Point)) -> String {
    let daemon = match daemon {
        SlurmctldUnsaved => "slurmctld, not saved".to_owned(),
        daemon => format!("{daemon:?}").to_lowercase(),
    };
    let point = match point {
        Pending => "the job waits".into(),
        Prolog => "in the prolog".into(),
        Asked => "gpuosd asks slurmctld".into(),
        Making(call, number) | Releasing(call, number) => {
            format!("{} {}", call.replace('-', " "), number + 1)
        }
        Cancelled => "cancelled after make gpu 1".into(),
        Running => "the script runs".into(),
        Step => "a step runs".into(),
        Epilog => "in the epilog".into(),
    };
    format!("{daemon}: {point}")
}

fn daemons_die(suite: &Suite) {
    // `all`, or what the names of cells begin with.
    let wanted = std::env::var("GPUOS_MIG_CRASHES").ok();
    let cells: Vec<(Daemon, Point)> = match wanted.as_deref() {
        None if *suite != Suite::Native => {
            eprintln!("skipped: scripts/mig-crash.sh plays the table on {suite}");
            return;
        }
        None => SAMPLE.to_vec(),
        // What comes of lost state is Slurm's as well, and differs: by name only.
        Some("all") => {
            let all = table().into_iter();
            all.filter(|(daemon, _)| *daemon != SlurmctldUnsaved)
                .collect()
        }
        Some(part) => {
            let all = table().into_iter();
            all.filter(|cell| name(*cell).starts_with(part)).collect()
        }
    };
    assert!(
        !cells.is_empty(),
        "GPUOS_MIG_CRASHES: no cell has this name"
    );
    let mut scene = None;
    let mut failed = Vec::new();
    for cell in &cells {
        let Some(lab) = scene.take().or_else(|| Scene::new(suite)) else {
            return;
        };
        let begin = Instant::now();
        let told = lab.play(*cell);
        let version = lab.cluster.lab.version();
        let took = begin.elapsed().as_secs_f64();
        match told {
            Ok(how) => {
                println!(
                    "crash {version}  {:<50} ok  {took:5.1} s  {how}",
                    name(*cell)
                );
                scene = Some(lab);
            }
            Err(why) => {
                println!("crash {version}  {:<50} FAILED  {why}", name(*cell));
                let log = lab.cluster.lab.gpuosd_log("n1");
                failed.push(format!(
                    "{}: {why}\ngpuosd:\n{log}{}",
                    name(*cell),
                    lab.cluster.report("")
                ));
            }
        }
    }
    if let Some(lab) = scene {
        lab.end();
    }
    println!(
        "crash {suite}: {} of {} cells hold",
        cells.len() - failed.len(),
        cells.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// A lab with a job that holds half of the GPU.
struct Scene {
    cluster: Cluster,
    neighbour: u32,
    uuid: String,
    /// What a job of the table runs.
    script: String,
}

/// The job of a cell.
struct Job {
    id: u32,
    /// The next one in its slices.
    next: Option<u32>,
}

impl Scene {
    fn new(suite: &Suite) -> Option<Scene> {
        let cluster = pool("mig-crash", suite, 1, 1 << GPU).steered()?;
        let work = cluster.lab.dir().join("work");
        for name in ["Prolog", "Epilog"] {
            let lines = format!(
                "cd {}\necho {name} $SLURM_JOB_ID >> ran\nwhile [ -e hold-{name} ]; do sleep 0.1; done",
                work.display()
            );
            let file = cluster.script(name, &lines);
            let set = cluster.lab.set_slurm_conf(name, Some(&file));
            set.expect("edits");
        }
        cluster.lab.restart().expect("restarts");
        // What the program sees is compared with what the driver has at that moment.
        let lines = format!(
            "echo $1=$CUDA_VISIBLE_DEVICES $GPUOS_MIG_PLACEMENTS\n\
             {0}/bin/gpuos-nvml --state {1}/state instances | sed \"s/^/$1 sees /\"\n\
             while [ -e hold-$1 ]; do sleep 0.1; done",
            cluster.lab.dir().display(),
            cluster.lab.gpus_dir("n1").display(),
        );
        let seen = cluster.script("seen", &lines);
        let neighbour = cluster.sbatch(
            &["--gpuos-mig=3g.40gb"],
            "echo step=$CUDA_VISIBLE_DEVICES; sleep 100000",
        );
        let text = cluster.lab.wait_output(neighbour, "step=", LIMIT);
        let uuid = told(&text.expect("it runs"), "step");
        cluster.save(neighbour);
        Some(Scene {
            // A srun that asks a slurmctld which has just started would ask again a minute later only.
            script: format!(
                "{seen} batch; for n in $(seq 24); do srun -I5 -n1 {seen} step && break; done; echo end=1"
            ),
            cluster,
            neighbour,
            uuid,
        })
    }

    fn hold(&self, name: &str) {
        let file = self.cluster.lab.dir().join(format!("work/hold-{name}"));
        fs::write(file, "").expect("writes");
    }

    fn go_on(&self, name: &str) {
        let _ = fs::remove_file(self.cluster.lab.dir().join(format!("work/hold-{name}")));
    }

    fn nvml(&self, words: &str) -> String {
        nvml(&self.cluster, "n1", &words.split(' ').collect::<Vec<_>>())
    }

    fn until<T>(&self, what: &str, mut done: impl FnMut() -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = done() {
                return Ok(value);
            }
            if Instant::now() > deadline {
                return Err(format!("waited in vain: {what}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// State of a job; `UNKNOWN` when slurmctld has no such job, `None` where it does not answer.
    fn state(&self, job: u32) -> Option<String> {
        match self
            .cluster
            .try_run("scontrol", &["-o", "show", "job", &job.to_string()])
        {
            Ok(text) => gpuos_lab::field(&text, "JobState").map(String::from),
            Err(why) => why.contains("Invalid job id").then(|| "UNKNOWN".into()),
        }
    }

    fn signal_slurmctld(&self, name: &str) {
        let pid = self.cluster.lab.slurmctld_pid().expect("it runs");
        let out = std::process::Command::new("kill")
            .args([&format!("-{name}"), &pid.to_string()])
            .status();
        assert!(
            out.is_ok_and(|status| status.success()),
            "kill -{name} {pid}"
        );
    }

    /// Whether gpuosd waits for a command of Slurm.
    fn asks(&self) -> bool {
        let Some(gpuosd) = self.cluster.lab.gpuosd_pid("n1") else {
            return false;
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut stats = all.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        stats.any(|stat| {
            let parent = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            stat.contains("(scontrol)") && parent == Some(gpuosd)
        })
    }

    /// A slurmctld that is not to save what happens next knows the job: it would give its number to another.
    fn submit(&self, daemon: Daemon, options: &[&str]) -> u32 {
        if daemon != SlurmctldUnsaved {
            return self.cluster.sbatch(options, &self.script);
        }
        let held = [options, &["--hold"]].concat();
        let id = self.cluster.sbatch(&held, &self.script);
        self.cluster.save(self.neighbour);
        self.cluster.run("scontrol", &["release", &id.to_string()]);
        id
    }

    /// Has a job come to a point.
    fn reach(&self, point: Point, daemon: Daemon) -> Result<Job, String> {
        for name in match point {
            Pending => vec!["batch"],
            Prolog => vec!["Prolog", "batch"],
            Asked => vec!["Prolog", "batch"],
            Making(..) | Running | Cancelled => vec!["batch"],
            Step | Releasing(..) => vec!["step"],
            Epilog => vec!["Epilog"],
        } {
            self.hold(name);
        }
        match point {
            Making(call, number) => drop(self.nvml(&format!("hold {call} {number}"))),
            Cancelled => drop(self.nvml("hold after-make-gpu")),
            _ => {}
        }
        let mut options = vec!["--gpuos-mig=2g.20gb:2", "--requeue", "--open-mode=append"];
        if point == Pending {
            options.push("--hold");
        }
        let id = self.submit(daemon, &options);
        let mut job = Job { id, next: None };
        let begun = |name: &str| {
            let text =
                fs::read_to_string(self.cluster.lab.dir().join("work/ran")).unwrap_or_default();
            text.contains(&format!("{name} {id}\n")).then_some(())
        };
        let wrote = |what: &str| self.cluster.lab.job_output(id).contains(what).then_some(());
        let held = || (!self.nvml("held").is_empty()).then_some(());
        match point {
            Pending => self.until("it waits", || (self.state(id)? == "PENDING").then_some(()))?,
            Prolog => self.until("the prolog", || begun("Prolog"))?,
            Asked => {
                self.until("the prolog", || begun("Prolog"))?;
                if daemon == Slurmctld {
                    self.cluster.save(self.neighbour);
                }
                self.signal_slurmctld("STOP");
                self.go_on("Prolog");
                let batch = format!("{id}.batch");
                let asks =
                    || (self.asks() && self.cluster.lab.has_slurmstepd(&batch)).then_some(());
                self.until("gpuosd asks", asks)?;
            }
            Making(..) => self.until("the call", held)?,
            Cancelled => {
                self.until("the call", held)?;
                self.cluster.run("scancel", &[&id.to_string()]);
                self.until("it is cancelled", || {
                    (self.state(id)? != "RUNNING").then_some(())
                })?;
            }
            Running => self.until("it runs", || wrote("batch="))?,
            Step => self.until("its step runs", || wrote("step="))?,
            Epilog => self.until("the epilog", || begun("Epilog"))?,
            Releasing(call, number) => {
                self.until("its step runs", || wrote("step="))?;
                // A srun that meets no slurmctld waits for a minute.
                self.hold("batch");
                job.next = Some(self.submit(daemon, &NEXT));
                self.nvml(&format!("hold {call} {number}"));
                self.go_on("step");
                self.until("the call", held)?;
                let batch = format!("{}.batch", job.next.unwrap_or_default());
                let there = || self.cluster.lab.has_slurmstepd(&batch).then_some(());
                self.until("the next job's slurmstepd", there)?;
            }
        }
        Ok(job)
    }

    /// Kills the daemon, lets go on what was held, and starts the daemon again.
    fn crash(&self, daemon: Daemon, point: Point, job: &Job) -> Result<(), String> {
        let lab = &self.cluster.lab;
        let own = |e: gpuos_lab::LabError| e.to_string();
        if daemon == Slurmctld && point != Asked {
            self.cluster.save(self.neighbour);
        }
        let there = match daemon {
            Gpuosd => lab.kill_gpuosd("n1", 9).map_err(own)?,
            Slurmd => {
                self.cluster.kill_slurmd("n1");
                true
            }
            Slurmstepd => {
                let step = if point == Step { "0" } else { "batch" };
                lab.kill_slurmstepd(&format!("{}.{step}", job.next.unwrap_or(job.id)))
            }
            Slurmctld | SlurmctldUnsaved => lab.kill_slurmctld(9).map_err(own)?,
        };
        if !there {
            return Err("it did not run".into());
        }
        if point == Asked && daemon != Slurmctld {
            self.signal_slurmctld("CONT");
        }
        self.nvml("hold off");
        for name in ["Prolog", "Epilog"] {
            self.go_on(name);
        }
        match daemon {
            Gpuosd => lab.start_gpuosd("n1").map_err(own)?,
            Slurmd => lab.start_slurmd("n1").map_err(own)?,
            // slurmctld hears of it by the registration of the node.
            Slurmstepd => {
                self.cluster.kill_slurmd("n1");
                lab.start_slurmd("n1").map_err(own)?;
            }
            Slurmctld | SlurmctldUnsaved => {
                lab.start_slurmctld().map_err(own)?;
            }
        }
        self.cluster.ready();
        Ok(())
    }

    /// One cell: how its jobs ended, or what does not hold.
    fn play(&self, (daemon, point): (Daemon, Point)) -> Result<String, String> {
        let before = self.cluster.lab.slurmctld_pid();
        let mut job = self.reach(point, daemon)?;
        self.crash(daemon, point, &job)?;
        let id = job.id.to_string();
        if point == Pending {
            // slurmctld may have lost it.
            let _ = self.cluster.try_run("scontrol", &["release", &id]);
        }
        // Slurm takes its time to see that nobody runs its script or step.
        let orphan = daemon == Slurmstepd;
        let unstarted = (daemon, point) == (Slurmd, Prolog);
        let mut how = Vec::new();
        if let Some(next) = job.next {
            if daemon == SlurmctldUnsaved {
                // slurmctld has forgotten its end, and takes its time to miss it.
                let _ = self.cluster.try_run("scancel", &[&id]);
            }
            how.push(self.over(job.id, &["step"])?);
            job.id = next;
        }
        if orphan || unstarted {
            let _ = self.cluster.try_run("scancel", &[&job.id.to_string()]);
        }
        how.push(self.over(job.id, &["batch", "step"])?);
        let good: &[&str] = match (daemon, point) {
            _ if orphan || unstarted || point == Cancelled => &["CANCELLED"],
            (SlurmctldUnsaved, _) => &["COMPLETED", "UNKNOWN", "CANCELLED", "FAILED", "NODE_FAIL"],
            _ => &["COMPLETED"],
        };
        let ended = how.last().map(String::as_str).unwrap_or_default();
        if !good.iter().any(|good| ended.starts_with(good)) {
            return Err(format!("it is {ended}, and not {}", good.join(" or ")));
        }
        if orphan && point != Running {
            // gpuosd has not heard of its end, and the next job has its slices.
            let next = self.cluster.sbatch(&NEXT, &self.script);
            how.push(self.over(next, &["batch", "step"])?);
        }
        self.nothing_is_left()?;
        let now = self.cluster.lab.slurmctld_pid();
        if now.is_none() || (matches!(daemon, Slurmctld | SlurmctldUnsaved) == (now == before)) {
            return Err(format!("slurmctld was {before:?} and is {now:?}"));
        }
        Ok(how.join(", then "))
    }

    /// Waits until a job is over, and checks the devices that it had. Its state, and how often it had devices.
    fn over(&self, job: u32, go_on: &[&str]) -> Result<String, String> {
        let ended =
            |state: &str| !["PENDING", "CONFIGURING", "RUNNING", "COMPLETING"].contains(&state);
        let mut checked = 0;
        let state = self.until(&format!("job {job} is over"), || {
            let state = self.state(job)?;
            if state == "PENDING" {
                // Slurm holds a requeued job back for a while, and may have forgotten that it was released.
                let _ = self
                    .cluster
                    .try_run("scontrol", &["release", &job.to_string()]);
                let id = format!("JobId={job}");
                let _ = self
                    .cluster
                    .try_run("scontrol", &["update", &id, "StartTime=now"]);
            }
            let runs = self
                .cluster
                .lab
                .job_output(job)
                .lines()
                .filter(|line| line.starts_with("batch="))
                .count();
            if state == "RUNNING" && runs > checked {
                let same = agree(&self.cluster, &[GPU]);
                let known = !bits(&self.cluster, job).is_empty();
                if same.is_err() || !known {
                    return None;
                }
                checked = runs;
            }
            if runs == checked || ended(&state) {
                go_on.iter().for_each(|name| self.go_on(name));
            }
            ended(&state).then_some(state)
        });
        let state = state.map_err(|why| format!("{why}; {:?}", agree(&self.cluster, &[GPU])))?;
        let text = self.cluster.lab.job_output(job);
        let had = devices(&text)?;
        if state == "COMPLETED" && (had < 2 || !text.contains("end=1")) {
            return Err(format!("job {job} has not run: {text}"));
        }
        Ok(format!("{state} {had}"))
    }

    /// Only the neighbour's instance is there, and the node is in service.
    fn nothing_is_left(&self) -> Result<(), String> {
        let alone = || {
            let all = instances(&self.cluster, "n1");
            (all.len() == 1 && all[0].uuid.as_ref() == Some(&self.uuid)).then_some(())
        };
        let left = self.until("only the neighbour's instance", alone);
        left.map_err(|why| format!("{why}: {:?}", instances(&self.cluster, "n1")))?;
        self.until("Slurm's records agree", || {
            agree(&self.cluster, &[GPU]).ok()
        })?;
        let text = self.cluster.run("scontrol", &["-o", "show", "node"]);
        if text.contains("DRAIN") || text.contains("DOWN") {
            return Err(text);
        }
        Ok(())
    }

    /// The whole GPU can be had once the neighbour has gone.
    fn end(self) {
        self.cluster.cancel(&[self.neighbour]);
        let script = self.script.as_str();
        let job = self.cluster.sbatch(&["--gpuos-mig=7g.80gb"], script);
        self.cluster.wait(job, &["COMPLETED"]);
        let text = self.cluster.lab.job_output(job);
        assert_eq!(devices(&text), Ok(2), "{text}");
        self.cluster.drained();
        self.cluster.until("no instance", || {
            instances(&self.cluster, "n1").is_empty().then_some(())
        });
    }
}
