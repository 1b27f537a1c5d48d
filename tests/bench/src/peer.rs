//! A cluster of one of the two that are compared, with the probe before its select plugin.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuos_lab::{Cgroup, Lab, LabSpec, Suite, field};

use crate::cells::Cluster;
use crate::samples::{Sample, Samples};

/// Who chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Who {
    /// Slurm's select/cons_tres.
    Stock,
    /// An older build of select/gpuos.
    #[value(skip)]
    Older,
    /// select/gpuos.
    Gpuos,
}

impl Who {
    /// Its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Who::Stock => "stock",
            Who::Older => "older",
            Who::Gpuos => "gpuos",
        }
    }
}

/// Shared objects that were built for the benchmark.
#[derive(clap::Args)]
pub struct Files {
    /// The probe, built from tests/bench/probe.
    #[arg(long, env = "GPUOS_BENCH_PROBE")]
    pub probe: PathBuf,
    /// gpuos's select plugin, an optimised build.
    #[arg(long, env = "GPUOS_BENCH_PLUGIN")]
    pub plugin: PathBuf,
    /// An older build of it, for [`Who::Older`].
    #[arg(skip)]
    pub older: Option<PathBuf>,
}

/// One running slurmctld.
pub struct Peer {
    lab: Lab,
    samples: Samples,
}

impl Peer {
    /// Starts slurmctld for a cluster without daemons on its nodes.
    pub fn up(
        who: Who,
        suite: &Suite,
        cluster: &Cluster,
        flat: bool,
        files: &Files,
    ) -> Result<Peer> {
        let mut spec = LabSpec {
            cloud_nodes: Some(cluster.nodes),
            node_type: "dgx-h100".to_string(),
            ..LabSpec::default()
        };
        if !flat {
            spec.topology_conf = Some(LabSpec::tree_topology(&spec.cloud_names(), cluster.leaf));
        }
        spec.slurm_conf_extra = vec![
            // Every pending job is looked at in every pass, and backfill adds no calls of its own.
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,default_queue_depth=10000,\
             bf_interval=3600"
                .to_string(),
        ];
        spec.slurm_conf_extra.extend(cluster.partitions());
        Peer::start(who, suite, spec, files)
    }

    /// Starts slurmctld alone for a lab of cloud nodes.
    pub fn start(who: Who, suite: &Suite, spec: LabSpec, files: &Files) -> Result<Peer> {
        let mut spec = LabSpec {
            nodes: 0.into(),
            suite: suite.clone(),
            cgroup: Cgroup::Off,
            name: LabSpec::unique(&format!("bench-{}", who.name())).name,
            ..spec
        };
        spec.slurm_conf_extra.extend([
            "SlurmctldDebug=info".to_string(),
            // All nodes that jobs get are woken at once: scontrol hides those that are not.
            "ResumeRate=0".to_string(),
        ]);
        let lab = Lab::up(&spec, &mut |_| ())?;
        install_probe(&lab, who, files)?;
        let samples = Samples::new(lab.dir().join("log/job_test.samples"));
        let peer = Peer { lab, samples };
        peer.samples.peek()?;
        Ok(peer)
    }

    /// Ends slurmctld and starts it anew, with its jobs.
    pub fn restart(&mut self) -> Result<()> {
        self.lab.kill_slurmctld(15)?;
        self.lab.start_slurmctld()?;
        self.lab.wait_ready(Duration::from_secs(120))?;
        self.samples.take().map(drop)
    }

    /// Slurm's release.
    pub fn version(&self) -> &str {
        self.lab.version()
    }

    /// Why the plugin passes everything through, if it does.
    pub fn pass_through(&self) -> Option<String> {
        self.lab
            .slurmctld_log()
            .lines()
            .find(|line| line.contains("passing through to cons_tres"))
            .map(str::to_owned)
    }

    fn slurm(&self, program: &str, args: &[&str]) -> Result<(bool, String)> {
        let limited = [&["30", program], args].concat();
        let out = self.lab.output("timeout", &limited)?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        Ok((out.status.success(), text))
    }

    /// Submits; fails when Slurm refuses.
    pub fn submit(&self, args: &[&str]) -> Result<()> {
        let fixed = ["-n1", "--time=60", "--output=/dev/null", "--wrap=true"];
        // Later options win, so the caller's come last.
        let (ok, text) = self.slurm("sbatch", &[&fixed[..], args].concat())?;
        if !ok {
            bail!("sbatch {}: {}", args.join(" "), text.trim());
        }
        Ok(())
    }

    /// Asks when a job would start, whatever the answer.
    pub fn ask(&self, args: &[&str]) -> Result<()> {
        let fixed = ["-n1", "--time=60", "--test-only", "--wrap=true"];
        self.slurm("sbatch", &[&fixed[..], args].concat()).map(drop)
    }

    /// Waits until no job is pending.
    pub fn wait_started(&self, limit: Duration) -> Result<()> {
        self.wait(
            "jobs to start",
            limit,
            &["-h", "-r", "-t", "PD", "-o", "%i"],
        )
    }

    /// Cancels all jobs of a name and waits until they are gone.
    pub fn cancel(&self, name: &str) -> Result<()> {
        self.slurm("scancel", &[&format!("--name={name}")])?;
        self.wait(
            "jobs to end",
            Duration::from_secs(30),
            &["-h", "-n", name, "-o", "%i"],
        )
    }

    fn wait(&self, what: &str, limit: Duration, squeue: &[&str]) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let (ok, text) = self.slurm("squeue", squeue)?;
            if ok && text.trim().is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let lines = text.lines().count();
                bail!("waited {} s for {what}: {lines} left", limit.as_secs());
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Asks for an allocation, which slurmctld tries to start within the request itself; returns
    /// what was sampled until `seen`, and takes the job back.
    pub fn allocate(
        &mut self,
        args: &[&str],
        seen: impl Fn(&Sample) -> bool,
    ) -> Result<Vec<Sample>> {
        let mut client = self
            .lab
            .command("salloc")?
            .args(["--no-shell", "--job-name=probe", "-n1", "--time=60"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run salloc")?;
        let samples = self.wait_sample(seen);
        // It would wait for nodes that never come up, or for room.
        client.kill()?;
        client.wait()?;
        self.cancel("probe")?;
        let mut samples = samples?;
        samples.extend(self.samples.take()?);
        Ok(samples)
    }

    /// Runs one of Slurm's programs; what it printed, or an error with its words. Times are
    /// printed as seconds since 1970.
    pub fn client(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = self.lab.command("timeout")?;
        let command = command.args(["60", program]).args(args);
        let out = command.env("SLURM_TIME_FORMAT", "%s").output()?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            bail!("{program} {}: {}", args.join(" "), said.trim());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Samples since the last call.
    pub fn take(&mut self) -> Result<Vec<Sample>> {
        self.samples.take()
    }

    fn wait_sample(&mut self, seen: impl Fn(&Sample) -> bool) -> Result<Vec<Sample>> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.samples.peek()?.iter().any(&seen) && Instant::now() < deadline {
            sleep(Duration::from_millis(2));
        }
        self.samples.take()
    }

    /// GPUs in use, as Slurm counts them.
    pub fn gpus_in_use(&self) -> Result<usize> {
        let (_, text) = self.slurm("scontrol", &["-d", "-o", "show", "nodes"])?;
        // GresUsed=gpu:h100:5(IDX:0-4)
        let used = |line: &str| {
            let gres = field(line, "GresUsed")?.split('(').next()?.to_string();
            gres.rsplit(':').next()?.parse::<usize>().ok()
        };
        Ok(text.lines().filter_map(used).sum())
    }
}

/// One folder with links to all of Slurm's plugins, and the probe in the place of the one to be
/// measured; the same for both peers.
fn install_probe(lab: &Lab, who: Who, files: &Files) -> Result<()> {
    let conf = lab.slurm_conf()?;
    let stock = conf
        .lines()
        .find_map(|line| line.strip_prefix("PluginDir="))
        .context("the lab has no PluginDir")?
        .to_string();
    let (name, select) = match who {
        Who::Stock => ("select_cons_tres.so", "select/cons_tres"),
        Who::Older | Who::Gpuos => ("select_gpuos.so", "select/gpuos"),
    };
    let dir = lab.dir().join("lib/bench");
    fs::create_dir_all(&dir)?;
    // Releases before 25.05 load every select plugin they find: only the measured one is there.
    for file in lab.run("ls", &[&stock])?.lines() {
        if file.ends_with(".so") && file != "select_cons_tres.so" {
            symlink(Path::new(&stock).join(file), dir.join(file))?;
        }
    }
    let copy = |from: &Path, to: &str| {
        fs::copy(from, dir.join(to))
            .map(drop)
            .with_context(|| format!("cannot copy {}", from.display()))
    };
    copy(&files.probe, name)?;
    let plugin = match who {
        Who::Stock => None,
        Who::Older => files.older.as_deref(),
        Who::Gpuos => Some(files.plugin.as_path()),
    };
    if let Some(plugin) = plugin {
        fs::create_dir_all(dir.join("inner"))?;
        copy(plugin, "inner/select_gpuos.so")?;
        copy(&files.probe, "inner/select_cons_tres.so")?;
    }
    lab.set_slurm_conf("PluginDir", Some(&dir.to_string_lossy()))?;
    lab.set_slurm_conf("SelectType", Some(select))?;
    lab.kill_slurmctld(15)?;
    lab.start_slurmctld()?;
    lab.wait_ready(Duration::from_secs(120))?;
    Ok(())
}
