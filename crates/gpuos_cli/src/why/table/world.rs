//! A cluster at one moment, generated, and printed as scontrol prints it.

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

/// Memory of a GPU, and what of it is kept for the driver.
pub const GPU_MIB: u64 = 81_559;
pub const KEPT_MIB: u64 = 1024;

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
    /// MiB of the host's memory for each GPU, by `--gpuos-mem`.
    pub beyond: u64,
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
    /// MiB of the host's memory for each GPU, by `--gpuos-mem`: they are in `memory`.
    pub beyond: u64,
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

impl Node {
    /// Whether gpuos.toml says what its GPUs have.
    pub fn is_described(&self) -> bool {
        self.gpus == 8
    }
}

impl Waiting {
    /// The most GPUs that it may have on one node of eight, in the forms in which sbatch and the record count alike.
    pub fn gpus_of_node(&self) -> Option<u64> {
        match self.form {
            Form::Each(gpus) if !self.whole => Some(gpus.into()),
            // Each other node has one at least.
            Form::Total(gpus) => Some((gpus - (self.min - 1)).clamp(1, 8).into()),
            _ => None,
        }
    }
}

/// `--gpuos-mem` with so many MiB of the host's memory for each GPU.
pub fn memory_option(beyond: u64) -> String {
    format!("--gpuos-mem={}M", GPU_MIB - KEPT_MIB + beyond)
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
        world.give_memory(&mut Dice::new(seed + (1 << 32)));
        world
    }

    /// Some jobs have memory beyond that of their GPUs, of which gpuos.toml says what they have.
    fn give_memory(&mut self, dice: &mut Dice) {
        if self.nodes.iter().any(|node| !node.is_described()) {
            return;
        }
        for job in &mut self.running {
            let most = job.on.iter().map(|on| u64::from(on.1.count_ones())).max();
            let beyond = job.memory / most.unwrap_or(0).max(1);
            let all = dice.pick(&[beyond, beyond / 2, 0]);
            // What can be seen in GiB with one digit.
            if job.mig.is_empty() && job.memory >= 300 {
                job.beyond = all;
            }
        }
        for job in &mut self.waiting {
            job.beyond = dice.pick(&[0, 90, 400]);
            match job.gpus_of_node() {
                Some(gpus) => job.memory += job.beyond * gpus,
                None => job.beyond = 0,
            }
        }
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
            beyond: 0,
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
            beyond: 0,
        }
    }
}
