//! A generated cluster as Slurm's commands print it.

use std::fmt::Write;
use std::path::PathBuf;

use gpuos_host::Recorded;

use super::world::{End, Form, PROFILES, SLICES, Waiting, World, memory_option};

impl World {
    /// The machine that prints it.
    pub fn machine(&self) -> Recorded {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gpuos_host/tests/data");
        let config = std::fs::read_to_string(data.join(format!("{}-config.txt", self.release)));
        let config = config.expect("recorded");
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let leaves = names.chunks(2).enumerate();
        let mut topology: String = leaves
            .map(|(nth, nodes)| format!("SwitchName=leaf{} Nodes={}\n", nth + 1, nodes.join(",")))
            .collect();
        let below = (1..=names.len().div_ceil(2)).map(|nth| format!("leaf{nth}"));
        writeln!(
            topology,
            "SwitchName=spine Switches={}",
            below.collect::<Vec<_>>().join(",")
        )
        .unwrap();
        let mut gpuos = String::new();
        if self.nodes.iter().any(|node| node.pool > 0) {
            gpuos += "[[mig.board]]\nname = \"h100-80gb\"\nprofiles = [\n";
            for ((name, size, starts), (id, compute)) in
                PROFILES.iter().zip([(19, 1), (14, 2), (9, 3), (0, 7)])
            {
                writeln!(
                    gpuos,
                    "{{ id = {id}, name = \"{name}\", compute = {compute}, memory-mib = {}, most = {}, size = {size}, starts = {starts:?} }},",
                    9984 * size,
                    starts.len(),
                )
                .unwrap();
            }
            gpuos += "]\n";
            for node in &self.nodes {
                writeln!(
                    gpuos,
                    "[[mig.pool]]\nnodes = \"{}\"\ngpus = \"{}-{}\"\nboard = \"h100-80gb\"",
                    node.name,
                    node.gpus,
                    node.gpus + node.pool - 1
                )
                .unwrap();
            }
        }
        let described = self.nodes.iter().filter(|node| node.is_described());
        let described: Vec<&str> = described.map(|node| node.name.as_str()).collect();
        if !described.is_empty() {
            writeln!(
                gpuos,
                "[memory]\noversubscribe = true\n[[nodes]]\nmatch = \"{}\"\ntype = \"dgx-h100\"",
                gpuos_model::hostlist::compress(described)
            )
            .unwrap();
        }
        let mut machine = Recorded::default()
            .command("scontrol show config", &config)
            .command("scontrol -d show nodes", &self.nodes_text())
            .command("scontrol -d show jobs", &self.jobs_text())
            .command(
                "scontrol show partitions",
                "PartitionName=main\n   Default=YES\n",
            )
            .file("/srv/lab/slurm.conf", "ClusterName=cap\n")
            .file("/srv/lab/topology.conf", &topology)
            .file("/srv/lab/gpuos.toml", &gpuos);
        let waiting = self.waiting.iter().map(|job| (job.id, options(job)));
        let running = self.running.iter().filter(|job| job.beyond > 0);
        let running = running.map(|job| (job.id, memory_option(job.beyond)));
        for (id, options) in waiting.chain(running) {
            let line = format!("scontrol write batch_script {id} -");
            let script = format!("#!/bin/sh\n#SBATCH {options}\ntrue\n");
            machine = machine.command(&line, &script);
        }
        machine
    }

    fn nodes_text(&self) -> String {
        let mut text = String::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let (gpus, slices, cpus, memory) = self.taken(at);
            let busy = match cpus {
                0 => "IDLE",
                _ if cpus == node.cpus => "ALLOCATED",
                _ => "MIXED",
            };
            let mut state = match node.state {
                Some(state) => state.replace("IDLE", busy),
                None => busy.to_string(),
            };
            if node.reserved && node.state.is_none() {
                state += "+RESERVED";
            }
            let mut gres = format!("gpu:h100:{}(S:0-1)", node.gpus);
            let mut used = match gpus {
                0 => "gpu:h100:0(IDX:N/A)".to_string(),
                gpus => format!("gpu:h100:{}(IDX:{})", gpus.count_ones(), list(gpus)),
            };
            if node.pool > 0 {
                write!(gres, ",gpuos:h100-80gb:{}(S:1)", node.pool * SLICES).unwrap();
                match slices {
                    0 => used += ",gpuos:h100-80gb:0(IDX:N/A)",
                    slices => write!(
                        used,
                        ",gpuos:h100-80gb:{}(IDX:{})",
                        slices.count_ones(),
                        list(slices)
                    )
                    .unwrap(),
                }
            }
            let name = &node.name;
            write!(
                text,
                "NodeName={name} Arch=x86_64 CoresPerSocket=8 \n   CPUAlloc={cpus} CPUEfctv={0} CPUTot={0} CPULoad=0.59\n   \
                 AvailableFeatures=(null)\n   ActiveFeatures=(null)\n   Gres={gres}\n   GresDrain=N/A\n   GresUsed={used}\n   \
                 NodeAddr=127.0.0.1 NodeHostName=host Port=23101 Version={1}\n   OS=Linux 6.1.0 #1 SMP \n   \
                 RealMemory={2} AllocMem={memory} FreeMem=23375 Sockets=2 Boards=1\n   \
                 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions={3} \n   \
                 BootTime=2026-11-20T19:54:35 SlurmdStartTime=2026-11-20T20:47:36\n   CfgTRES=cpu={0},mem={2}M,billing={0}\n",
                node.cpus, self.release, node.memory, node.partition,
            )
            .unwrap();
            let mut part = String::new();
            if node.out != 0 {
                write!(part, " out={}", list(node.out)).unwrap();
            }
            if node.pool_out != 0 {
                write!(part, " mig-out={}", list(node.pool_out << node.gpus)).unwrap();
            }
            if !part.is_empty() {
                writeln!(text, "   Extra=[gpuos:1{part}]").unwrap();
            }
            text += "\n";
        }
        text
    }

    fn jobs_text(&self) -> String {
        let mut text = String::new();
        for job in self.running.iter().filter(|job| !job.hidden) {
            let names: Vec<&str> = job
                .on
                .iter()
                .map(|on| self.nodes[on.0].name.as_str())
                .collect();
            let on = gpuos_model::hostlist::compress(names);
            let (end, limit) = match job.end {
                End::In(minutes) => (
                    at(minutes),
                    format!("{:02}:{:02}:00", minutes / 60 + 1, minutes % 60),
                ),
                End::Never => ("Unknown".into(), "UNLIMITED".into()),
                End::Year => ("2027-11-20T20:00:00".into(), "365-00:00:00".into()),
            };
            let head = match job.label.split_once('_') {
                Some((array, task)) => {
                    format!("JobId={} ArrayJobId={array} ArrayTaskId={task}", job.id)
                }
                None => format!("JobId={}", job.id),
            };
            self.head(
                &mut text,
                &head,
                "RUNNING",
                "None",
                ("00:10:00", &limit, 0, "(null)"),
            );
            writeln!(
                text,
                "   StartTime=2026-11-20T19:50:00 EndTime={end} Deadline=N/A"
            )
            .unwrap();
            let count = job.on.len() as u32;
            let partition = self.nodes[job.on[0].0].partition;
            let hosts = (on.as_str(), "(null)", "(null)");
            self.shape(
                &mut text,
                hosts,
                (count, count),
                (job.least, job.cpus),
                (partition, count),
            );
            for (node, gpus, slices) in &job.on {
                let gres = match slices {
                    0 => format!("gpu:h100:{}(IDX:{})", gpus.count_ones(), list(*gpus)),
                    slices => format!(
                        "gpuos:h100-80gb:{}(IDX:{})",
                        slices.count_ones(),
                        list(*slices)
                    ),
                };
                let ids = if job.cpus == 1 {
                    "0".to_string()
                } else {
                    format!("0-{}", job.cpus - 1)
                };
                writeln!(
                    text,
                    "     Nodes={} CPU_IDs={ids} Mem={} GRES={gres}",
                    self.nodes[*node].name, job.memory
                )
                .unwrap();
            }
            let each = job.on[0].1.count_ones();
            let slices = job.on[0].2.count_ones();
            let all: u32 = job.on.iter().map(|on| on.1.count_ones()).sum();
            let note = match slices {
                0 => String::new(),
                _ => format!(
                    "gpuos: level=slice bus=0 lost=0 nodes=0 domains=0 mig={} gpus={on}:-",
                    job.mig
                ),
            };
            let tres = match (slices, job.total) {
                (0, true) => format!("TresPerJob={}", self.tres(&format!("gpu:{all}"))),
                (0, false) => format!("TresPerNode={}", self.tres(&format!("gpu:{each}"))),
                (slices, _) => format!(
                    "TresPerNode={}",
                    self.tres(&format!("gpuos:h100-80gb:{slices}"))
                ),
            };
            let asked = match job.beyond {
                0 => String::new(),
                beyond => memory_option(beyond),
            };
            self.tail(
                &mut text,
                (job.cpus, job.memory),
                false,
                &note,
                &asked,
                &tres,
            );
        }
        for job in &self.waiting {
            self.head(
                &mut text,
                &job.head,
                "PENDING",
                job.reason,
                ("00:00:00", "UNLIMITED", job.restarts, job.dependency),
            );
            writeln!(text, "   StartTime=Unknown EndTime=Unknown Deadline=N/A").unwrap();
            let hosts = |list: &[usize]| match list {
                [] => "(null)".to_string(),
                list => gpuos_model::hostlist::compress(
                    list.iter().map(|at| self.nodes[*at].name.as_str()),
                ),
            };
            let lists = (hosts(&job.named), hosts(&job.excluded));
            let tasks = match job.form {
                Form::Task(_, tasks) => tasks,
                _ => job.min,
            };
            let hosts = ("", lists.0.as_str(), lists.1.as_str());
            self.shape(
                &mut text,
                hosts,
                (job.min, job.max),
                (job.min, job.cpus),
                (job.partition, tasks),
            );
            let tres = match job.form {
                Form::Each(gpus) => format!("TresPerNode={}", self.tres(&format!("gpu:{gpus}"))),
                Form::Total(gpus) => format!("TresPerJob={}", self.tres(&format!("gpu:{gpus}"))),
                Form::Task(gpus, _) => format!("TresPerTask={}", self.tres(&format!("gpu:{gpus}"))),
                Form::Mig(profile, count) => {
                    let slices = PROFILES[profile].1 as u32 * count;
                    format!(
                        "TresPerNode={}",
                        self.tres(&format!("gpuos:h100-80gb:{slices}"))
                    )
                }
                Form::None => String::new(),
            };
            self.tail(
                &mut text,
                (job.cpus, job.memory),
                job.whole,
                &job.note,
                &options(job),
                &tres,
            );
        }
        text
    }

    fn tres(&self, what: &str) -> String {
        match self.release {
            "22.05.8" => format!("gres:{what}"),
            _ => format!("gres/{what}"),
        }
    }

    fn head(
        &self,
        text: &mut String,
        head: &str,
        state: &str,
        reason: &str,
        times: (&str, &str, u32, &str),
    ) {
        let (run, limit, restarts, dependency) = times;
        write!(
            text,
            "{head} JobName=a\n   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A\n   Priority=1 Nice=0 Account=(null) QOS=(null)\n   \
             JobState={state} Reason={reason} Dependency={dependency}\n   \
             Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0\n   DerivedExitCode=0:0\n   \
             RunTime={run} TimeLimit={limit} TimeMin=N/A\n   \
             SubmitTime=2026-11-20T19:00:00 EligibleTime=2026-11-20T19:00:03\n   AccrueTime=2026-11-20T19:00:00\n",
        )
        .unwrap();
    }

    fn shape(
        &self,
        text: &mut String,
        (on, named, excluded): (&str, &str, &str),
        (min, max): (u32, u32),
        (least, cpus): (u32, u32),
        (partition, tasks): (&str, u32),
    ) {
        let count = match min == max {
            true => min.to_string(),
            false => format!("{min}-{max}"),
        };
        write!(
            text,
            "   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-20T20:00:00 Scheduler=Main\n   \
             Partition={partition} AllocNode:Sid=localhost:1\n   ReqNodeList={named} ExcNodeList={excluded}\n   NodeList={on}\n   \
             NumNodes={count} NumCPUs={cpus} NumTasks={tasks} CPUs/Task={cpus} ReqB:S:C:T=0:0:*:*\n",
        )
        .unwrap();
        match self.release {
            "22.05.8" => writeln!(text, "   TRES=cpu={cpus},node={least},billing=1").unwrap(),
            _ => writeln!(
                text,
                "   ReqTRES=cpu={cpus},node={least},billing=1\n   AllocTRES=(null)"
            )
            .unwrap(),
        }
        text.push_str("   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*\n");
    }

    fn tail(
        &self,
        text: &mut String,
        (cpus, memory): (u32, u64),
        whole: bool,
        note: &str,
        options: &str,
        tres: &str,
    ) {
        write!(text, "   MinCPUsNode={cpus} MinMemoryNode={memory}M MinTmpDiskNode=0\n   Features=(null) DelayBoot=00:00:00\n").unwrap();
        let sharing = match (self.release, whole) {
            ("26.05.5", true) => "OverSubscribe=NO Exclusive=NODE",
            ("26.05.5", false) => "OverSubscribe=NO Exclusive=NO",
            (_, true) => "OverSubscribe=NO",
            (_, false) => "OverSubscribe=OK",
        };
        write!(
            text,
            "   {sharing} Contiguous=0 Licenses=(null) Network=(null)\n   Command=(null)\n"
        )
        .unwrap();
        if self.release == "26.05.5" && !options.is_empty() {
            writeln!(text, "   SubmitLine=sbatch {options} --wrap true").unwrap();
        }
        text.push_str("   WorkDir=/\n");
        if !note.is_empty() {
            writeln!(text, "   SystemComment={note} ").unwrap();
        }
        text.push_str("   StdErr=/dev/null\n   StdIn=/dev/null\n   StdOut=/dev/null\n");
        if !tres.is_empty() {
            writeln!(text, "   {tres}").unwrap();
        }
        text.push_str("\n\n");
    }
}
/// The gpuos options of a job.
fn options(job: &Waiting) -> String {
    let mut options = String::new();
    if job.beyond > 0 {
        write!(options, "{} ", memory_option(job.beyond)).unwrap();
    }
    if let Some((level, required)) = job.level {
        let word = if required { "required" } else { "preferred" };
        write!(options, "--gpuos-topology={level}:{word}").unwrap();
    }
    if let Form::Mig(profile, count) = job.form {
        write!(options, "--gpuos-mig={}:{count}", PROFILES[profile].0).unwrap();
    }
    options
}

/// A moment so many minutes on.
pub fn at(minutes: u32) -> String {
    let minute = 20 * 60 + minutes;
    format!(
        "2026-11-{:02}T{:02}:{:02}:00",
        20 + minute / 1440,
        minute / 60 % 24,
        minute % 60
    )
}

/// `0-2,5`.
pub fn list(bits: u64) -> String {
    gpuos_model::gpuset::GpuSet(bits).to_string()
}
