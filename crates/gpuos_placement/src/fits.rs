//! Whether a node can take a part of a job beside its GPUs: the memory and cores that Slurm's
//! `select/cons_tres` looks at before it says yes or no.
//!
//! What stands here follows `_verify_node_state`, `_can_job_run_on_node` and `_allocate_sc` of
//! `src/plugins/select/cons_tres/job_test.c`, which have been the same from 22.05 to 26.05. It is
//! only ever used to choose what is offered: the last word is cons_tres's.

/// What of a node's memory a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Memory {
    /// Memory is no consumable resource here.
    #[default]
    Free,
    /// So many MiB on each node (`--mem`, `DefMemPerNode`).
    Node(u64),
    /// So many MiB for each CPU (`--mem-per-cpu`, `DefMemPerCPU`).
    Cpu(u64),
    /// So many MiB for each GPU (`--mem-per-gpu`, `DefMemPerGPU`).
    Gpu(u64),
    /// All of it: `--mem=0`, or no word from anybody. Then nobody else may hold any.
    All,
}

impl Memory {
    /// MiB that a node must have free at least for so many CPUs and GPUs of the job.
    pub fn least(self, cpus: u32, gpus: u32) -> u64 {
        match self {
            Memory::Free | Memory::All => 0,
            Memory::Node(mib) => mib,
            Memory::Cpu(mib) => mib.saturating_mul(u64::from(cpus.max(1))),
            Memory::Gpu(mib) => mib.saturating_mul(u64::from(gpus.max(1))),
        }
    }

    /// Whether it takes only nodes of which nobody holds any memory. Nothing for each CPU counts as all:
    /// so does cons_tres.
    pub fn takes_all(self) -> bool {
        matches!(
            self,
            Memory::All | Memory::Node(0) | Memory::Cpu(0) | Memory::Gpu(0)
        )
    }
}

/// What a job asks of the cores of each of its nodes; 0 = not said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cores {
    /// `--sockets-per-node`
    pub sockets: u16,
    /// `--cores-per-socket`: free cores that a socket must have to count.
    pub per_socket: u16,
    /// `--threads-per-core`: CPUs of a core that are used.
    pub threads: u16,
    /// `--ntasks-per-socket`
    pub tasks_per_socket: u16,
    /// `--ntasks-per-core`, `--hint=nomultithread`, `CR_ONE_TASK_PER_CORE`
    pub tasks_per_core: u16,
    /// `--ntasks-per-node`
    pub tasks_per_node: u32,
    /// `--cpus-per-task`, at least 1.
    pub cpus_per_task: u32,
    /// CPUs on each node at least.
    pub least: u32,
    /// Whether a socket is given as a whole (`CR_Socket`).
    pub whole_sockets: bool,
    /// Whether the job takes the node alone.
    pub alone: bool,
    /// Whether tasks may share CPUs (`--overcommit`).
    pub overcommit: bool,
    /// `MaxCPUsPerNode` of the partition.
    pub most_per_node: Option<u32>,
    /// `MaxCPUsPerSocket` of the partition.
    pub most_per_socket: Option<u32>,
}

impl Cores {
    /// Whether more has to be known of a node than how many of its CPUs are free.
    pub fn is_special(&self) -> bool {
        let Cores {
            sockets,
            per_socket,
            threads,
            tasks_per_socket,
            tasks_per_core,
            ..
        } = *self;
        sockets > 1
            || per_socket > 1
            || threads > 0
            || tasks_per_socket > 0
            || tasks_per_core > 0
            || self.whole_sockets
            || self.alone
            || self.most_per_node.is_some()
            || self.most_per_socket.is_some()
    }

    /// CPUs of a core that the job uses, of a node with so many for each.
    fn threads_used(&self, threads: u32) -> u32 {
        let by_tasks = match self.tasks_per_core {
            0 => threads,
            tasks => u32::from(tasks).saturating_mul(self.cpus_per_task.max(1)),
        };
        let by_threads = match self.threads {
            0 => threads,
            threads => u32::from(threads),
        };
        threads.min(by_tasks).min(by_threads)
    }

    /// How many of so many CPUs have the memory that the job asks for each: they are left out by sockets where
    /// these are given as a whole, else by cores.
    pub fn with_memory(&self, cpus: u32, memory: Memory, free_mib: u64, node: &Node<'_>) -> u32 {
        let Memory::Cpu(each @ 1..) = memory else {
            return cpus;
        };
        let threads = u32::from(node.threads.max(1));
        let whole = match self.whole_sockets {
            true => u32::from(node.cores_per_socket) * threads,
            false => threads,
        };
        let step = match self.tasks_per_core > 0 || self.threads > 0 {
            true => whole.min(self.threads_used(threads)),
            false => whole,
        };
        let mut cpus = cpus;
        while u64::from(cpus).saturating_mul(each) > free_mib {
            cpus = cpus.saturating_sub(step);
        }
        cpus - cpus % self.cpus_per_task.max(1)
    }

    /// How many CPUs of a node the job could be given; 0 = none, the node does not serve it.
    pub fn usable(&self, node: &Node<'_>) -> u32 {
        let threads = u32::from(node.threads.max(1));
        if u32::from(self.threads) > threads
            || u32::from(self.tasks_per_socket) > threads * u32::from(node.cores_per_socket)
        {
            return 0;
        }
        if self.alone && node.sockets.iter().any(|socket| socket.used > 0) {
            return 0;
        }
        let (mut all_free, mut all_used) = (0, 0);
        let mut free_of = |socket: &Socket| {
            let (mut free, mut used) = (u32::from(socket.free), u32::from(socket.own));
            if self.whole_sockets && used > 0 {
                used += free;
                free = 0;
            } else if let Some(most) = self.most_per_socket {
                free = match used * threads >= most {
                    true => 0,
                    false => free.min(most / threads),
                };
            }
            all_free += free * threads;
            all_used += used * threads;
            free
        };
        let mut free = [0; SOCKETS];
        let sockets = node.sockets.len().min(SOCKETS);
        for (free, socket) in free.iter_mut().zip(node.sockets) {
            *free = free_of(socket);
        }
        let mut limit = u32::MAX;
        if let Some(most) = self
            .most_per_node
            .filter(|most| all_free + all_used > *most)
        {
            if self.alone || all_used >= most {
                return 0;
            }
            limit = most - all_used;
        }
        let least = u32::from(self.per_socket.max(1));
        let counts = free[..sockets].iter().filter(|free| **free >= least);
        if counts.clone().count() < usize::from(self.sockets.max(1)) {
            return 0;
        }
        let each = self.threads_used(threads);
        let cpus: u32 = counts.clone().map(|free| free * each).sum();
        let tasks: u32 = match self.tasks_per_socket {
            0 => cpus,
            most => counts
                .clone()
                .map(|free| (free * each).min(most.into()))
                .sum(),
        };
        if cpus < self.least || tasks < self.tasks_per_node && !self.overcommit {
            return 0;
        }
        let cpus = match self.tasks_per_socket {
            0 => cpus,
            tasks => {
                let most = u32::from(tasks) * self.cpus_per_task.max(1);
                // A core is given as a whole.
                let most = most.next_multiple_of(each.max(1));
                counts.map(|free| (free * each).min(most)).sum()
            }
        };
        cpus.min(limit)
    }
}

/// Nodes with more sockets than this are not looked at core by core.
pub const SOCKETS: usize = 8;

/// The cores of one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Socket {
    /// Those that nobody holds and the node does not keep for itself.
    pub free: u16,
    /// Those that jobs hold.
    pub used: u16,
    /// Those of them that count against the job's limits: its partition's.
    pub own: u16,
}

/// The cores of a node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// CPUs of one core.
    pub threads: u16,
    /// Cores of one socket.
    pub cores_per_socket: u16,
    /// Its sockets.
    pub sockets: &'a [Socket],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(free: [u16; 2], cores: u16) -> [Socket; 2] {
        free.map(|free| Socket {
            free,
            used: cores - free,
            own: cores - free,
        })
    }

    fn cpus(wish: Cores, free: [u16; 2], threads: u16) -> u32 {
        wish.usable(&Node {
            threads,
            cores_per_socket: 8,
            sockets: &sockets(free, 8),
        })
    }

    #[test]
    fn cores_are_counted_as_cons_tres_counts_them() {
        let plain = Cores {
            cpus_per_task: 1,
            ..Cores::default()
        };
        let table: &[(Cores, [u16; 2], u16, u32)] = &[
            (plain, [8, 8], 1, 16),
            (plain, [3, 0], 2, 6),
            (plain, [0, 0], 2, 0),
            (
                Cores {
                    sockets: 2,
                    ..plain
                },
                [8, 0],
                1,
                0,
            ),
            (
                Cores {
                    sockets: 2,
                    ..plain
                },
                [8, 1],
                1,
                9,
            ),
            (
                Cores {
                    per_socket: 4,
                    ..plain
                },
                [8, 3],
                1,
                8,
            ),
            (
                Cores {
                    per_socket: 4,
                    sockets: 2,
                    ..plain
                },
                [8, 3],
                1,
                0,
            ),
            (
                Cores {
                    threads: 1,
                    ..plain
                },
                [8, 8],
                2,
                16,
            ),
            (
                Cores {
                    threads: 2,
                    ..plain
                },
                [8, 8],
                1,
                0,
            ),
            (
                Cores {
                    tasks_per_core: 1,
                    ..plain
                },
                [8, 8],
                2,
                16,
            ),
            (
                Cores {
                    tasks_per_core: 1,
                    cpus_per_task: 2,
                    ..plain
                },
                [8, 8],
                2,
                32,
            ),
            (
                Cores {
                    tasks_per_socket: 2,
                    tasks_per_node: 4,
                    ..plain
                },
                [8, 1],
                1,
                0,
            ),
            (
                Cores {
                    tasks_per_socket: 2,
                    tasks_per_node: 4,
                    ..plain
                },
                [8, 2],
                1,
                4,
            ),
            (
                Cores {
                    tasks_per_socket: 2,
                    cpus_per_task: 3,
                    ..plain
                },
                [8, 5],
                1,
                11,
            ),
            (
                Cores {
                    tasks_per_node: 9,
                    ..plain
                },
                [8, 0],
                1,
                0,
            ),
            (
                Cores {
                    tasks_per_node: 9,
                    overcommit: true,
                    ..plain
                },
                [8, 0],
                1,
                8,
            ),
            (Cores { least: 9, ..plain }, [8, 0], 1, 0),
            (
                Cores {
                    whole_sockets: true,
                    ..plain
                },
                [8, 7],
                1,
                8,
            ),
            (
                Cores {
                    alone: true,
                    ..plain
                },
                [8, 7],
                1,
                0,
            ),
            (
                Cores {
                    alone: true,
                    ..plain
                },
                [8, 8],
                1,
                16,
            ),
            (
                Cores {
                    most_per_node: Some(10),
                    ..plain
                },
                [8, 0],
                1,
                2,
            ),
            (
                Cores {
                    most_per_node: Some(8),
                    ..plain
                },
                [8, 0],
                1,
                0,
            ),
            (
                Cores {
                    most_per_node: Some(16),
                    ..plain
                },
                [8, 0],
                1,
                8,
            ),
            (
                Cores {
                    most_per_socket: Some(4),
                    ..plain
                },
                [8, 5],
                1,
                8,
            ),
            (
                Cores {
                    most_per_socket: Some(2),
                    ..plain
                },
                [8, 5],
                1,
                2,
            ),
        ];
        for (wish, free, threads, wanted) in table {
            assert_eq!(cpus(*wish, *free, *threads), *wanted, "{wish:?} {free:?}");
        }
    }

    #[test]
    fn memory_for_each_cpu_leaves_out_whole_sockets_where_these_are_given() {
        let node = Node {
            threads: 1,
            cores_per_socket: 32,
            sockets: &[],
        };
        let wish = |whole_sockets, cpus_per_task| Cores {
            whole_sockets,
            cpus_per_task,
            ..Cores::default()
        };
        for (wish, memory, wanted) in [
            (wish(true, 1), Memory::Cpu(10_000), 32),
            (wish(false, 1), Memory::Cpu(10_000), 52),
            (wish(false, 8), Memory::Cpu(10_000), 48),
            (wish(false, 1), Memory::Cpu(0), 64),
            (wish(false, 1), Memory::Node(10_000), 64),
            (wish(true, 1), Memory::Cpu(1 << 40), 0),
        ] {
            assert_eq!(
                wish.with_memory(64, memory, 524_288, &node),
                wanted,
                "{wish:?} {memory:?}"
            );
        }
    }

    #[test]
    fn memory_in_all_forms() {
        for (memory, least, all) in [
            (Memory::Free, 0, false),
            (Memory::Node(100), 100, false),
            (Memory::Node(0), 0, true),
            (Memory::Cpu(10), 40, false),
            (Memory::Cpu(0), 0, true),
            (Memory::Gpu(10), 20, false),
            (Memory::All, 0, true),
        ] {
            assert_eq!(
                (memory.least(4, 2), memory.takes_all()),
                (least, all),
                "{memory:?}"
            );
        }
        assert_eq!(Memory::Cpu(10).least(0, 0), 10);
    }
}
