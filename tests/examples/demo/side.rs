//! One of the two clusters that the demo compares, and what it shows of its jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_lab::{Cgroup, Lab, LabSpec, Select, Suite, find_plugin_dir};
use gpuos_model::cluster::NodeType;
use gpuos_model::hostlist::compress;
use gpuos_tests::show::{self, Gpus};

/// Nodes of each cluster, and under each leaf switch.
pub const NODES: usize = 16;
/// Nodes under one leaf switch.
pub const LEAF: usize = 8;

/// How long a Slurm command or a state of a job may take.
const LIMIT: Duration = Duration::from_secs(45);

/// gpuos.toml of the gpuos cluster. Everything else has its default.
pub const FABRIC: &str = r#"[[fabric.level]]
name = "leaf"

[[fabric.switch]]
name = "leaf1"
level = "leaf"
nodes = "n[1-8]"

[[fabric.switch]]
name = "leaf2"
level = "leaf"
nodes = "n[9-16]"
"#;

/// A cluster of the demo.
pub struct Side {
    /// Title of its column.
    pub title: &'static str,
    lab: Lab,
}

/// A job of one cluster.
#[derive(Clone, Copy)]
pub struct Job(pub u32);

impl Side {
    /// Starts a cluster, with gpuos or without.
    pub fn up(suite: &Suite, gpuos: bool) -> Result<Side, gpuos_lab::LabError> {
        let mut spec = LabSpec {
            nodes: NODES.into(),
            node_type: "pairs-8".into(),
            suite: suite.clone(),
            cgroup: Cgroup::Off,
            slurm_conf_extra: vec![
                "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1".into(),
                "KillWait=1".into(),
            ],
            ..LabSpec::unique(if gpuos { "demo-gpuos" } else { "demo-stock" })
        };
        if gpuos {
            spec.select = Select::Gpuos {
                plugin_dir: find_plugin_dir()?,
                own_dir: true,
            };
            spec.gpuos_toml = Some(FABRIC.into());
            spec.spank = true;
            spec.job_submit = true;
        }
        Ok(Side {
            title: if gpuos {
                "select/gpuos"
            } else {
                "stock select/cons_tres"
            },
            lab: Lab::up(&spec, &mut |step| eprintln!("  ... {step}"))?,
        })
    }

    /// Release of its Slurm.
    pub fn version(&self) -> &str {
        self.lab.version()
    }

    /// Why gpuos steers nothing here, from slurmctld's log; `None` when it steers.
    pub fn passes_through(&self) -> Option<String> {
        let log = self.lab.slurmctld_log();
        let line = log.lines().find(|line| line.contains("passing through"))?;
        Some(line.to_string())
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let out = self.lab.output_within(program, args, LIMIT)?;
        if !out.status.success() {
            let error = String::from_utf8_lossy(&out.stderr);
            bail!("{program} {}: {}", args.join(" "), error.trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Submits a job that sleeps.
    pub fn submit(&self, options: &[&str]) -> Result<Job> {
        Ok(Job(self.lab.sbatch(options, "sleep 600")?))
    }

    /// Submits a job that sleeps, and waits until it runs.
    pub fn start(&self, options: &[&str]) -> Result<Job> {
        let job = self.submit(options)?;
        self.running(job)?;
        Ok(job)
    }

    /// Waits until a job runs.
    pub fn running(&self, job: Job) -> Result<()> {
        self.lab.wait_job(job.0, &["RUNNING"], LIMIT)?;
        Ok(())
    }

    /// The GPUs of a running job, by node.
    pub fn gpus(&self, job: Job) -> Result<Gpus> {
        let id = job.0.to_string();
        Ok(show::job_gpus(
            &self.run("scontrol", &["-d", "show", "job", &id])?,
        ))
    }

    /// Ends jobs and waits until their GPUs are free.
    pub fn end(&self, jobs: &[Job]) -> Result<()> {
        let ids: Vec<String> = jobs.iter().map(|job| job.0.to_string()).collect();
        let list = ids.join(",");
        for id in &ids {
            self.run("scancel", &[id])?;
        }
        let deadline = Instant::now() + LIMIT;
        while !self.run("squeue", &["-h", "-j", &list])?.trim().is_empty() {
            if Instant::now() > deadline {
                bail!("jobs {list} do not end");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Fills all GPUs of a node with 1-GPU jobs, then ends those on `free`: whatever a scheduler
    /// prefers, these GPUs are free and the others are not. Returns the jobs that go on.
    pub fn leave_free(&self, node: &str, free: &[usize]) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for _ in 0..8 {
            jobs.push(self.submit(&["--gres=gpu:1", "-w", node])?);
        }
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for job in jobs {
            self.running(job)?;
            let gpus = self.gpus(job)?;
            let gpu = gpus.values().flatten().next().context("a GPU")?;
            if free.contains(gpu) {
                &mut go
            } else {
                &mut stay
            }
            .push(job);
        }
        self.end(&go)?;
        Ok(stay)
    }

    /// State and reason of a waiting job as squeue shows them, once the reason is gpuos's.
    pub fn reason(&self, job: Job) -> Result<(String, String)> {
        let id = job.0.to_string();
        let text = self.until("gpuos", || {
            self.run("squeue", &["-h", "-j", &id, "-o", "%T %r"])
        })?;
        let (state, reason) = text.trim().split_once(' ').unwrap_or_default();
        Ok((state.to_string(), reason.to_string()))
    }

    /// `gpuos why` of a waiting job.
    pub fn why_waiting(&self, job: Job) -> Result<String> {
        let id = job.0.to_string();
        self.until("Smallest change", || self.gpuos(&["why", &id]))
    }

    /// Asks until the answer has a text in it. slurmctld takes the reason of a waiting job back
    /// each time it tries the job, and gpuos sets it again when the next job is tried: so a
    /// small job comes by now and then, as on any cluster that is in use.
    fn until(&self, part: &str, ask: impl Fn() -> Result<String>) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        let mut next = Instant::now() + Duration::from_secs(2);
        loop {
            let text = ask()?;
            if text.contains(part) || Instant::now() > deadline {
                return Ok(text);
            }
            if Instant::now() > next {
                // n3 has a job already, so no gang waits for it.
                self.lab.sbatch(&["--gres=gpu:1", "-w", "n3"], "true")?;
                next = Instant::now() + Duration::from_secs(2);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the gpuos command answers in this cluster.
    pub fn gpuos(&self, args: &[&str]) -> Result<String> {
        let own = std::env::current_exe().context("own path")?;
        // target/release/examples/demo beside target/release/gpuos.
        let command: PathBuf = own.ancestors().nth(2).context("own folder")?.join("gpuos");
        self.run(&command.to_string_lossy(), args)
    }

    /// Ends the cluster.
    pub fn down(self) -> Result<()> {
        Ok(self.lab.down()?)
    }
}

/// `n1 GPUs 0,2`, or for many nodes their names.
pub fn place(gpus: &Gpus) -> String {
    match gpus.iter().next() {
        Some((node, set)) if gpus.len() == 1 => {
            let set: Vec<String> = set.iter().map(ToString::to_string).collect();
            let word = if set.len() == 1 { "GPU" } else { "GPUs" };
            format!("{node}, {word} {}", set.join(","))
        }
        _ => {
            let mut names: Vec<&str> = gpus.keys().map(String::as_str).collect();
            names.sort_by_key(|name| number(name));
            compress(names)
        }
    }
}

/// The number in a name like `n12`.
fn number(node: &str) -> usize {
    node[1..].parse().unwrap_or_default()
}

/// Links among GPUs of one node, the best kind first: `2 x NV4, 4 x NODE`.
pub fn links(node_type: &NodeType, gpus: &[usize]) -> String {
    let mut kinds: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for (i, a) in gpus.iter().enumerate() {
        for b in &gpus[i + 1..] {
            let word = node_type.link(*a, *b).to_string();
            let rank = if word.starts_with("NV") { 0 } else { 1 };
            *kinds.entry((rank, word)).or_default() += 1;
        }
    }
    match kinds.iter().next() {
        None => "no links needed".into(),
        Some(((_, word), 1)) if kinds.len() == 1 => word.clone(),
        Some(_) => {
            let list: Vec<String> = kinds
                .iter()
                .map(|((_, word), count)| format!("{count} x {word}"))
                .collect();
            list.join(", ")
        }
    }
}

/// The leaf switches above nodes `n1` to `n16`: `leaf1 (6 nodes), leaf2 (2 nodes)`.
pub fn leaves(gpus: &Gpus) -> String {
    let mut count: BTreeMap<usize, usize> = BTreeMap::new();
    for node in gpus.keys() {
        *count.entry(number(node).div_ceil(LEAF)).or_default() += 1;
    }
    let list: Vec<String> = count
        .iter()
        .map(|(leaf, nodes)| match nodes {
            1 => format!("leaf{leaf} (1 node)"),
            nodes => format!("leaf{leaf} ({nodes} nodes)"),
        })
        .collect();
    list.join(", ")
}
