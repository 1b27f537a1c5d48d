//! A cluster at one moment, generated, and printed as scontrol prints it.

use std::fmt::Write;
use std::path::PathBuf;

use gpuos_host::Recorded;

/// Numbers that look random, the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            dice.below(2);
        }
        dice
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Memory slices of a divided GPU.
pub const SLICES: usize = 8;
/// Profiles of the board: name, size and where it may start.
pub const PROFILES: [(&str, usize, &[usize]); 4] = [
    ("1g.10gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
    ("2g.20gb", 2, &[0, 2, 4]),
    ("3g.40gb", 4, &[0, 4]),
    ("7g.80gb", 8, &[0]),
];

pub struct Node {
    pub name: String,
    pub gpus: usize,
    pub cpus: u32,
    pub memory: u64,
    pub partition: &'static str,
    /// As scontrol writes it; `None`: up.
    pub state: Option<&'static str>,
    pub reserved: bool,
    /// GPUs out of service.
    pub out: u64,
    /// GPUs that are divided, by their number in the pool those out of service.
    pub pool: usize,
    pub pool_out: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum End {
    /// Minutes from the moment.
    In(u32),
    Never,
    /// What backfill makes of `Never`.
    Year,
}

pub struct Running {
    pub id: u32,
    pub label: String,
    /// Node, GPUs, slices.
    pub on: Vec<(usize, u64, u64)>,
    pub cpus: u32,
    pub memory: u64,
    pub end: End,
    /// slurmctld does not show it to who asks.
    pub hidden: bool,
    /// Instances on each node, where it has slices.
    pub mig: String,
    /// GPUs in all rather than on each node, and the fewest nodes that it asked for.
    pub total: bool,
    pub least: u32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Form {
    Each(u32),
    Total(u32),
    Task(u32, u32),
    /// Instances of a profile on each node.
    Mig(usize, u32),
    None,
}

#[derive(Clone)]
pub struct Waiting {
    pub id: u32,
    pub form: Form,
    pub min: u32,
    pub max: u32,
    pub cpus: u32,
    pub memory: u64,
    pub partition: &'static str,
    pub named: Vec<usize>,
    pub excluded: Vec<usize>,
    pub whole: bool,
    /// Level, and whether it is required.
    pub level: Option<(&'static str, bool)>,
    pub reason: &'static str,
    pub head: String,
    pub label: String,
    pub restarts: u32,
    pub dependency: &'static str,
    /// Its last place, where it was requeued.
    pub note: String,
}

pub struct World {
    pub release: &'static str,
    pub nodes: Vec<Node>,
    pub running: Vec<Running>,
    pub waiting: Vec<Waiting>,
}

/// The leaf switch of a node.
pub fn leaf(node: usize) -> usize {
    node / 2
}

impl World {
    pub fn generate(seed: u64) -> World {
        let mut dice = Dice::new(seed);
        let release = dice.pick(&["22.05.8", "24.11.5", "26.05.5"]);
        let divided = dice.one_in(3);
        let gpus = dice.pick(&[2, 4, 8]);
        let count = dice.pick(&[1, 2, 3, 4, 4, 4]);
        let trouble = dice.pick(&[0, 0, 3, 6]);
        let nodes: Vec<Node> = (0..count)
            .map(|at| {
                let bad = trouble > 0 && dice.one_in(trouble);
                let gpus = if dice.one_in(4) { gpus / 2 } else { gpus };
                let sick = trouble > 0 && dice.one_in(trouble);
                Node {
                    name: format!("n{}", at + 1),
                    gpus,
                    cpus: 16,
                    memory: 1000,
                    partition: if dice.one_in(5) { "other" } else { "main" },
                    state: bad.then(|| {
                        let states = [
                            "IDLE+DRAIN",
                            "DOWN*",
                            "IDLE+MAINT+RESERVED",
                            "IDLE*+NOT_RESPONDING",
                            "UNKNOWN",
                            "DOWN+INVALID_REG",
                        ];
                        dice.pick(&states)
                    }),
                    reserved: dice.one_in(12),
                    out: if sick {
                        1 << dice.below(gpus as u64)
                    } else {
                        0
                    },
                    pool: if divided { 2 } else { 0 },
                    pool_out: if divided && sick {
                        1 << dice.below(2)
                    } else {
                        0
                    },
                }
            })
            .collect();
        let mut world = World {
            release,
            nodes,
            running: Vec::new(),
            waiting: Vec::new(),
        };
        for nth in 0..dice.below(7) {
            world.run(&mut dice, 100 + nth as u32);
        }
        for nth in 0..3 {
            let waits = world.ask(&mut dice, 200 + 10 * nth);
            world.waiting.push(waits);
        }
        world
    }

    /// GPUs of a node that are neither taken nor out of service.
    pub fn taken(&self, node: usize) -> (u64, u64, u32, u64) {
        let mut taken = (0, 0, 0, 0);
        for job in &self.running {
            for (_, gpus, slices) in job.on.iter().filter(|on| on.0 == node) {
                taken = (
                    taken.0 | gpus,
                    taken.1 | slices,
                    taken.2 + job.cpus,
                    taken.3 + job.memory,
                );
            }
        }
        taken
    }

    fn run(&mut self, dice: &mut Dice, id: u32) {
        let profile = dice.below(4) as usize;
        let slices = self.nodes.iter().any(|node| node.pool > 0) && dice.one_in(2);
        let each = 1 + dice.below(4) as usize;
        let wanted = if slices {
            1
        } else {
            1 + dice.below(3) as usize
        };
        let (cpus, memory) = (dice.pick(&[1, 2, 8]), dice.pick(&[10, 300]));
        let mut on = Vec::new();
        for node in 0..self.nodes.len() {
            let (gpus, bits, used, memory_used) = self.taken(node);
            let own = &self.nodes[node];
            // A node that is drained may still run what it ran; one that is down does not.
            let up = own.state.is_none_or(|state| state.contains("DRAIN"));
            let elsewhere = on
                .first()
                .is_some_and(|on: &(usize, u64, u64)| self.nodes[on.0].partition != own.partition);
            if on.len() == wanted
                || elsewhere
                || !up
                || used + cpus > own.cpus
                || memory_used + memory > own.memory
            {
                continue;
            }
            if slices {
                let (_, size, starts) = PROFILES[profile];
                let spots = (0..own.pool)
                    .flat_map(|gpu| starts.iter().map(move |start| gpu * SLICES + start));
                let masks = spots.map(|spot| ((1u128 << size) - 1) as u64 * (1 << spot));
                if let Some(mask) = masks.into_iter().find(|mask| bits & mask == 0) {
                    on.push((node, 0, mask));
                }
                continue;
            }
            let free: Vec<usize> = (0..own.gpus).filter(|gpu| gpus >> gpu & 1 == 0).collect();
            if free.len() >= each {
                let from = dice.below((free.len() - each + 1) as u64) as usize;
                let mask = free[from..from + each]
                    .iter()
                    .fold(0, |all, gpu| all | 1 << gpu);
                on.push((node, mask, 0));
            }
        }
        if on.is_empty() {
            return;
        }
        let total = !slices && dice.one_in(3);
        self.running.push(Running {
            id,
            label: if dice.one_in(6) {
                format!("{}_{}", id - 50, 3)
            } else {
                id.to_string()
            },
            least: if total { 1 } else { on.len() as u32 },
            on,
            cpus,
            memory,
            end: match dice.below(4) {
                0 | 1 => End::In(1 + dice.below(500) as u32),
                2 => End::Never,
                _ => End::Year,
            },
            hidden: dice.one_in(12),
            mig: if slices {
                format!("{}:1", PROFILES[profile].0)
            } else {
                String::new()
            },
            total,
        });
    }

    fn ask(&self, dice: &mut Dice, id: u32) -> Waiting {
        let divided = self.nodes.iter().any(|node| node.pool > 0);
        let nodes = self.nodes.len() as u64;
        // Mostly what some node has.
        let largest = self
            .nodes
            .iter()
            .map(|node| node.gpus as u64)
            .max()
            .unwrap_or(1);
        let gpus = 1 + dice.below(largest + 1) as u32;
        let min = 1 + dice.below(nodes.min(3)) as u32;
        let (form, min, max) = match dice.below(10) {
            _ if divided && dice.one_in(2) => (Form::Mig(dice.below(4) as usize, 1), min, min),
            0..4 => (Form::Each(gpus.min(8)), min, min),
            4 => (Form::Each(gpus.min(4)), 1, min),
            5 | 6 => (Form::Total(gpus * 2), 1, (gpus * 2).min(4)),
            7 => (Form::Total(gpus), 1, 1),
            8 => {
                let tasks = 1 + dice.below(4) as u32;
                (Form::Task(1 + dice.below(3) as u32, tasks), 1, tasks)
            }
            _ => (Form::None, min, min),
        };
        let level = match form {
            Form::Each(_) | Form::Total(_) if dice.one_in(2) => Some((
                dice.pick(&["leaf", "leaf", "spine", "node"]),
                !dice.one_in(3),
            )),
            _ => None,
        };
        let level = level.filter(|(name, _)| *name != "node" || min == 1);
        let named: Vec<usize> = match dice.one_in(6) {
            true => vec![dice.below(nodes) as usize],
            false => Vec::new(),
        };
        let kind = dice.below(8);
        let reason = match dice.below(12) {
            0 => "JobHeldUser",
            1 => "Dependency",
            2 => "BeginTime",
            3..6 => "Priority",
            6 => "None",
            7 if kind == 0 => "JobArrayTaskLimit",
            _ => "Resources",
        };
        let restarts = u32::from(dice.one_in(5));
        let (head, label) = match kind {
            0 => (
                format!("JobId={id} ArrayJobId={id} ArrayTaskId=2-4%1 ArrayTaskThrottle=1"),
                format!("{id}_3"),
            ),
            1 => (
                format!("JobId={id} ArrayJobId={id} ArrayTaskId=1,5-9"),
                format!("{id}_[5-7]"),
            ),
            2 => (
                format!("JobId={id} HetJobId={} HetJobOffset=1", id - 1),
                format!("{}+1", id - 1),
            ),
            _ => (format!("JobId={id}"), id.to_string()),
        };
        let named_elsewhere = named
            .first()
            .is_some_and(|at| self.nodes[*at].partition != "main");
        Waiting {
            id,
            form,
            min: min.max(named.len() as u32),
            max: max.max(named.len() as u32),
            cpus: dice.pick(&[1, 1, 4, 12]),
            memory: dice.pick(&[10, 10, 600]),
            partition: if named_elsewhere || dice.one_in(6) {
                "other"
            } else {
                "main"
            },
            named,
            excluded: if dice.one_in(10) {
                vec![dice.below(nodes) as usize]
            } else {
                Vec::new()
            },
            whole: matches!(form, Form::Each(_)) && dice.one_in(6),
            level,
            reason,
            head,
            label,
            restarts,
            dependency: if reason == "Dependency" {
                "afterok:1(unfulfilled)"
            } else {
                "(null)"
            },
            note: match restarts {
                0 => String::new(),
                _ => {
                    let at = dice.below(nodes) as usize;
                    let out = self.nodes[at].out.trailing_zeros().min(7);
                    let gpu = if self.nodes[at].out == 0 { 0 } else { out };
                    format!(
                        "gpuos: level=node bus=0 lost=0 nodes=1 domains=1 gpus={}:{gpu}",
                        self.nodes[at].name
                    )
                }
            },
        }
    }

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
        for job in &self.waiting {
            let line = format!("scontrol write batch_script {} -", job.id);
            machine = machine.command(
                &line,
                &format!("#!/bin/sh\n#SBATCH {}\ntrue\n", options(job)),
            );
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
            let on = gpuos_core::hostlist::compress(names);
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
            self.tail(&mut text, (job.cpus, job.memory), false, &note, "", &tres);
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
                list => gpuos_core::hostlist::compress(
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
    gpuos_core::gpuset::GpuSet(bits).to_string()
}
