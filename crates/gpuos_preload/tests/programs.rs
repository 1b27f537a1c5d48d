//! Random programs of 1 to 8 threads, and now and then of 64, over streams, contexts, graphs, memory that they map themselves, pools, kernels
//! that follow pointers, freeing and allocating, while extents move at random: bytes are those of a plain reference, and nothing is an illegal access. `GPUOS_PRELOAD_SEEDS=N` runs N programs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Cuda, Flag};
use crate::shim::{MIB, finds, moves, preloaded};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// Parts of a buffer that programs use: its beginning, the border of two extents, its end.
const WINDOWS: usize = 3;
const WINDOW: usize = 4096;
const BUFFERS: usize = 3;
const STREAMS: usize = 2;
const STEPS: u64 = 40;
/// The most bytes of a step.
const MOST: usize = 1024;

/// How a buffer was made.
#[derive(Clone, Copy)]
enum Kind {
    /// By `cuMemAlloc`.
    Plain,
    /// By `cuMemAllocAsync`.
    Pooled,
    /// Of two handles side by side, all of it mapped a second time at this address.
    Mapped {
        alias: u64,
        handles: [u64; 2],
        bytes: u64,
    },
}

struct Buffer {
    at: u64,
    kind: Kind,
    /// Windows from its beginning.
    offsets: [u64; WINDOWS],
    wanted: [Vec<u8>; WINDOWS],
    /// The stream that touched it last.
    last: usize,
}

struct Worker<'a> {
    cuda: &'a Cuda,
    kernels: &'a [u64; 6],
    streams: Vec<u64>,
    event: u64,
    flag: Flag,
    /// Words of it that were used: each is waited for once.
    flagged: u64,
    buffers: Vec<Buffer>,
    /// Of the context, for memory that belongs to none.
    device: u32,
    /// More threads have smaller buffers.
    many: bool,
    random: Random,
}

impl Worker<'_> {
    /// Memory of some kind, and the stream in whose order it is there.
    fn memory(&mut self, bytes: u64) -> (u64, Kind, usize) {
        let stream = self.random.below(STREAMS as u64) as usize;
        match self.random.below(5) {
            0 => {
                let at = self.cuda.alloc_async(bytes, self.streams[stream]);
                self.cuda.ok("cuStreamSynchronize", &[self.streams[stream]]);
                (at, Kind::Pooled, stream)
            }
            1..=2 => {
                let whole = bytes.next_multiple_of(2 * MIB).max(4 * MIB);
                let [at, alias] = [(); 2].map(|()| self.cuda.reserve(whole));
                let parts = [2 * MIB, whole - 2 * MIB];
                let handles = parts.map(|part| self.cuda.create(part, self.device));
                for start in [at, alias] {
                    self.cuda.map(start, parts[0], 0, handles[0], self.device);
                    self.cuda
                        .map(start + parts[0], parts[1], 0, handles[1], self.device);
                }
                if self.random.below(2) == 0 {
                    // Mapped, it stays.
                    handles
                        .iter()
                        .for_each(|handle| self.cuda.ok("cuMemRelease", &[*handle]));
                    let kind = Kind::Mapped {
                        alias,
                        handles: [0; 2],
                        bytes: whole,
                    };
                    return (at, kind, stream);
                }
                (
                    at,
                    Kind::Mapped {
                        alias,
                        handles,
                        bytes: whole,
                    },
                    stream,
                )
            }
            _ => (self.cuda.alloc(bytes), Kind::Plain, stream),
        }
    }

    /// Frees a buffer, with work under way as far as its kind allows that.
    fn free(&self, buffer: &Buffer) {
        let last = self.streams[buffer.last];
        match buffer.kind {
            Kind::Plain => self.cuda.ok("cuMemFree_v2", &[buffer.at]),
            Kind::Pooled => self.cuda.free_async(buffer.at, last),
            Kind::Mapped {
                alias,
                handles,
                bytes,
            } => {
                self.cuda.ok("cuStreamSynchronize", &[last]);
                for handle in handles.into_iter().filter(|handle| *handle != 0) {
                    self.cuda.ok("cuMemRelease", &[handle]);
                }
                for at in [buffer.at, alias] {
                    self.cuda.ok("cuMemUnmap", &[at, bytes]);
                    self.cuda.ok("cuMemAddressFree", &[at, bytes]);
                }
            }
        }
    }

    /// An address of a buffer's window, by either of its mappings.
    fn address(&mut self, buffer: usize, window: usize, offset: usize) -> u64 {
        let second = self.random.below(2) == 0;
        let buffer = &self.buffers[buffer];
        let start = match buffer.kind {
            Kind::Mapped { alias, .. } if second => alias,
            _ => buffer.at,
        };
        start + buffer.offsets[window] + offset as u64
    }

    fn buffer(&mut self) -> Buffer {
        let most = if self.many { 1 } else { 5 };
        let bytes = (2 + self.random.below(most)) * MIB;
        let bytes = bytes
            + if self.many {
                0
            } else {
                4096 * self.random.below(3)
            };
        let (at, kind, last) = self.memory(bytes);
        let offsets = [0, 2 * MIB - 2048, bytes - WINDOW as u64]
            .map(|offset| offset.min(bytes - WINDOW as u64));
        // In the smallest buffers the last two are the same.
        let offsets = if offsets[1] + WINDOW as u64 > offsets[2] {
            [offsets[0], MIB, offsets[2]]
        } else {
            offsets
        };
        let wanted = offsets.map(|offset| {
            let bytes: Vec<u8> = (0..WINDOW).map(|_| self.random.below(256) as u8).collect();
            self.cuda.upload(at + offset, &bytes);
            bytes
        });
        Buffer {
            at,
            kind,
            offsets,
            wanted,
            last,
        }
    }

    /// Lets a stream wait for all who touched these buffers.
    fn order(&mut self, stream: usize, buffers: &[usize]) {
        for buffer in buffers {
            let last = self.buffers[*buffer].last;
            if last != stream {
                self.cuda
                    .ok("cuEventRecord", &[self.event, self.streams[last]]);
                self.cuda
                    .ok("cuStreamWaitEvent", &[self.streams[stream], self.event, 0]);
            }
            self.buffers[*buffer].last = stream;
        }
    }

    fn launch(&self, kernel: usize, stream: usize, args: &[u64]) {
        let code = self
            .cuda
            .launch(self.kernels[kernel], self.streams[stream], args);
        assert_eq!(code, 0, "kernel {kernel}");
    }

    fn step(&mut self) {
        let stream = self.random.below(STREAMS as u64) as usize;
        let (x, y) = (
            self.random.below(BUFFERS as u64) as usize,
            self.random.below(BUFFERS as u64) as usize,
        );
        let (v, w) = (
            self.random.below(WINDOWS as u64) as usize,
            self.random.below(WINDOWS as u64) as usize,
        );
        let offset = self.random.below((WINDOW - MOST) as u64 / 8) as usize * 8;
        let words = self.random.below(MOST as u64 / 4) as usize + 1;
        let value = self.random.below(1 << 32) as u32;
        let range = offset..offset + words * 4;
        let (a, b) = (self.address(x, v, offset), self.address(y, w, offset));
        let handle = self.streams[stream];
        match self.random.below(12) {
            0 => {
                self.order(stream, &[x]);
                self.launch(0, stream, &[a, value.into(), words as u64]);
                self.buffers[x].wanted[v][range]
                    .copy_from_slice(&value.to_le_bytes().repeat(words));
            }
            1 => {
                self.order(stream, &[x, y]);
                self.launch(1, stream, &[a, a, b, words as u64]);
                let other = self.buffers[y].wanted[w].clone();
                let own = &mut self.buffers[x].wanted[v];
                for i in range.step_by(4) {
                    let word =
                        |bytes: &[u8]| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
                    let sum = word(own).wrapping_add(word(&other));
                    own[i..i + 4].copy_from_slice(&sum.to_le_bytes());
                }
            }
            kind @ 2..=3 if x != y => {
                self.order(stream, &[x, y]);
                let bytes = words as u64 * 4;
                match kind {
                    2 => self.launch(2, stream, &[a, b, bytes]),
                    _ => self.cuda.ok("cuMemcpyDtoDAsync_v2", &[a, b, bytes, handle]),
                }
                let bytes = self.buffers[y].wanted[w][range.clone()].to_vec();
                self.buffers[x].wanted[v][range].copy_from_slice(&bytes);
            }
            4 => {
                self.order(stream, &[x]);
                let bytes: Vec<u8> = (0..words * 4).map(|i| (value as usize + i) as u8).collect();
                self.cuda.ok(
                    "cuMemcpyHtoDAsync_v2",
                    &[a, bytes.as_ptr() as u64, bytes.len() as u64, handle],
                );
                self.buffers[x].wanted[v][range].copy_from_slice(&bytes);
            }
            5 => {
                self.order(stream, &[x]);
                self.cuda
                    .ok("cuMemsetD32Async", &[a, value.into(), words as u64, handle]);
                self.buffers[x].wanted[v][range]
                    .copy_from_slice(&value.to_le_bytes().repeat(words));
            }
            6 => self.walk(stream, x, v, value),
            7..=8 => self.graph(stream, x, v, offset, value),
            9 => self.follow(stream, [x, y], [v, w], offset),
            10 => {
                // Free it and allocate another one, with work under way.
                self.free(&self.buffers[x]);
                self.buffers[x] = self.buffer();
            }
            _ => self.check(x),
        }
    }

    fn walk(&mut self, stream: usize, x: usize, v: usize, value: u32) {
        self.order(stream, &[x]);
        let at = self.address(x, v, 0);
        let steps = 64;
        self.launch(3, stream, &[at, WINDOW as u64, steps, value.into()]);
        let mut state = u64::from(value) | 1;
        for step in 0..steps {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let i = (state % (WINDOW as u64 / 8)) as usize * 8;
            let word = &mut self.buffers[x].wanted[v][i..i + 8];
            let sum = u64::from_le_bytes((&*word).try_into().unwrap()).wrapping_add(step);
            word.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// A graph of two fills.
    fn captured(&self, stream: usize, at: u64, value: u32) -> u64 {
        let handle = self.streams[stream];
        self.cuda.ok("cuStreamBeginCapture_v2", &[handle, 2]);
        self.launch(0, stream, &[at, 1, 2]);
        self.launch(0, stream, &[at + 4, value.into(), 2]);
        let mut graph = 0_u64;
        self.cuda
            .ok("cuStreamEndCapture", &[handle, &raw mut graph as u64]);
        graph
    }

    /// Captures two fills and launches the graph three times, the last time with what it waits for held back.
    fn graph(&mut self, stream: usize, x: usize, v: usize, offset: usize, value: u32) {
        self.order(stream, &[x]);
        let (at, handle) = (self.address(x, v, offset), self.streams[stream]);
        let graph = self.captured(stream, at, value);
        let exec = self.cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        for _ in 0..2 {
            self.cuda.ok("cuGraphLaunch", &[exec, handle]);
        }
        let mut value = value;
        if self.random.below(4) == 0 {
            value = value.wrapping_add(1);
            let other = self.captured(stream, at, value);
            self.cuda.ok("cuGraphExecUpdate_v2", &[exec, other, 0]);
            self.cuda.ok("cuGraphDestroy", &[other]);
        }
        let held = self.random.below(8) == 0;
        if held {
            self.flagged += 1;
            self.launch(4, stream, &[self.flag.0 + 4 * self.flagged, 1]);
        }
        self.cuda.ok("cuGraphLaunch", &[exec, handle]);
        if held {
            // Whoever moves meanwhile has to wait for it; while it does, this thread must not.
            std::thread::sleep(std::time::Duration::from_millis(1));
            Flag(self.flag.0 + 4 * self.flagged).set(1);
        }
        self.cuda.ok("cuGraphExecDestroy", &[exec]);
        self.cuda.ok("cuGraphDestroy", &[graph]);
        let words = [1, value, value].map(u32::to_le_bytes).concat();
        self.buffers[x].wanted[v][offset..offset + 12].copy_from_slice(&words);
    }

    /// A kernel reads a word of one buffer by a pointer that stands in another, where no call of the program shows it.
    fn follow(&mut self, stream: usize, [x, y]: [usize; 2], [v, w]: [usize; 2], offset: usize) {
        if x == y {
            return;
        }
        self.order(stream, &[x, y]);
        let (at, target) = (self.address(x, v, offset), self.address(y, w, offset));
        let bytes = target.to_le_bytes();
        self.cuda.ok(
            "cuMemcpyHtoDAsync_v2",
            &[at, bytes.as_ptr() as u64, 8, self.streams[stream]],
        );
        self.launch(5, stream, &[at + 8, at, 2]);
        let word = self.buffers[y].wanted[w][offset..offset + 8].to_vec();
        self.buffers[x].wanted[v][offset..offset + 8].copy_from_slice(&bytes);
        self.buffers[x].wanted[v][offset + 8..offset + 16].copy_from_slice(&word);
    }

    fn check(&mut self, x: usize) {
        self.cuda
            .ok("cuStreamSynchronize", &[self.streams[self.buffers[x].last]]);
        for window in 0..WINDOWS {
            let at = self.address(x, window, 0);
            let found = self.cuda.download(at, WINDOW);
            assert!(found == self.buffers[x].wanted[window], "bytes differ");
        }
    }
}

/// One program: each thread has its buffers, streams and one of the contexts.
fn program(cuda: &Cuda, contexts: &[(u64, u32)], kernels: &[u64; 6], seed: u64) {
    let threads = if seed % 32 == 31 { 64 } else { 1 + seed % 8 };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let (context, device) = contexts[(thread as usize) % contexts.len()];
                cuda.ok("cuCtxSetCurrent", &[context]);
                let mut worker = Worker {
                    cuda,
                    kernels,
                    streams: (0..STREAMS).map(|_| cuda.stream()).collect(),
                    event: cuda.get("cuEventCreate", &[2]),
                    flag: cuda.flag(),
                    flagged: 0,
                    buffers: Vec::new(),
                    device,
                    many: threads > 8,
                    random: Random(seed * 64 + thread),
                };
                for _ in 0..BUFFERS {
                    let buffer = worker.buffer();
                    worker.buffers.push(buffer);
                }
                for _ in 0..STEPS {
                    worker.step();
                }
                for x in 0..BUFFERS {
                    worker.check(x);
                    worker.free(&worker.buffers[x]);
                }
                for stream in worker.streams {
                    // What is freed in its order is freed.
                    cuda.ok("cuStreamSynchronize", &[stream]);
                    cuda.ok("cuStreamDestroy_v2", &[stream]);
                }
            });
        }
    });
}

/// Runs some programs, on one device or on two.
pub fn programs(cuda: &Cuda, devices: u64) {
    cuda.ok("cuInit", &[0]);
    let count = |name: &str, default| {
        std::env::var(name).map_or(default, |n| n.parse::<u64>().expect("a number"))
    };
    let (first, count) = (
        count("GPUOS_PRELOAD_FIRST", 0),
        count("GPUOS_PRELOAD_SEEDS", 50),
    );
    let contexts: Vec<(u64, u32)> = (0..2)
        .map(|which| which % devices)
        .map(|device| (cuda.get("cuCtxCreate_v2", &[0, device]), device as u32))
        .collect();
    let kernels = ["fill", "add", "copy", "walk", "wait", "chase"].map(|name| cuda.kernel(name));
    static RUNNING: AtomicU64 = AtomicU64::new(0);
    let _say = std::thread::spawn(|| {
        // Which program a failure was in.
        std::panic::set_hook(Box::new(|info| {
            eprintln!("program {}: {info}", RUNNING.load(Ordering::SeqCst))
        }));
    })
    .join();
    for seed in first..first + count {
        RUNNING.store(seed, Ordering::SeqCst);
        program(cuda, &contexts, &kernels, seed);
    }
    for (context, _) in contexts {
        cuda.ok("cuCtxSetCurrent", &[context]);
        cuda.ok("cuCtxSynchronize", &[]);
        // What was freed while another thread captured is given back when somebody allocates.
        let at = cuda.alloc(2 * MIB);
        cuda.ok("cuMemFree_v2", &[at]);
        let (free, all) = cuda.info();
        assert_eq!(free, all, "all is freed");
    }
}

const SLOW: &str = "memory=64M,hbm=8G,link=8G";

fn shaken(test: &str, devices: u64, seed: &str) {
    let settings = format!("devices={devices},{SLOW}");
    let more = [("GPUOS_PRELOAD_SHAKE", seed)];
    moves(50, || {
        preloaded(test, [2048, 16], &settings, &more, |cuda| {
            programs(cuda, devices);
        })
    });
}

#[test]
fn bytes_are_those_of_the_reference_while_extents_move() {
    shaken(
        "bytes_are_those_of_the_reference_while_extents_move",
        1,
        "1",
    );
}

#[test]
fn and_on_two_devices() {
    shaken("and_on_two_devices", 2, "2");
}

#[test]
fn and_where_the_policy_moves() {
    let test = "and_where_the_policy_moves";
    preloaded(test, [2048, 16], "memory=64M", &[], |cuda| {
        programs(cuda, 1)
    });
}

/// A thread that gives graphs and kernels and waits for each: nothing else has it wait at the gate.
#[test]
fn graphs_and_kernels_write_while_extents_move() {
    let test = "graphs_and_kernels_write_while_extents_move";
    let settings = format!("devices=1,{SLOW}");
    preloaded(
        test,
        [256, 16],
        &settings,
        &[("GPUOS_PRELOAD_SHAKE", "9")],
        |cuda| {
            cuda.context(0);
            let (fill, stream) = (cuda.kernel("fill"), cuda.stream());
            let bytes = 8 * MIB;
            let at = cuda.alloc(bytes);
            let execs: Vec<u64> = (0..2)
                .map(|value| {
                    cuda.ok("cuStreamBeginCapture_v2", &[stream, 2]);
                    assert_eq!(cuda.launch(fill, stream, &[at, value + 1, bytes / 4]), 0);
                    let mut graph = 0_u64;
                    cuda.ok("cuStreamEndCapture", &[stream, &raw mut graph as u64]);
                    cuda.get("cuGraphInstantiateWithFlags", &[graph, 0])
                })
                .collect();
            for round in 0..200_u32 {
                let value = round % 2;
                match round % 4 < 2 {
                    true => cuda.ok("cuGraphLaunch", &[execs[value as usize], stream]),
                    false => assert_eq!(
                        cuda.launch(fill, stream, &[at, (value + 1).into(), bytes / 4]),
                        0
                    ),
                }
                // Waiting is no work: it does not go through the gate.
                cuda.ok("cuStreamSynchronize", &[stream]);
                if round % 20 == 19 {
                    for place in 0..8 {
                        let word = cuda.download(at + (place + 1) * MIB - 4, 4);
                        assert_eq!(
                            word,
                            (value + 1).to_le_bytes(),
                            "round {round}, MiB {place}"
                        );
                    }
                }
            }
        },
    );
}

/// Errors of the shim, each planted alone, are found by the same programs.
fn found(mutant: &str) {
    if !cfg!(debug_assertions) {
        return;
    }
    let test = match mutant {
        "graph-gate" | "launch-gate" => "programs::graphs_and_kernels_write_while_extents_move",
        _ => "programs::bytes_are_those_of_the_reference_while_extents_move",
    };
    let more = [("GPUOS_PRELOAD_SHAKE", "3"), ("GPUOS_PRELOAD_SEEDS", "60")];
    let found = finds(test, mutant, &format!("devices=1,{SLOW}"), &more);
    assert!(found, "nobody found the planted error '{mutant}'");
}

macro_rules! planted {
    ($($name:ident $mutant:literal;)*) => { $(
        #[test]
        fn $name() {
            found($mutant);
        }
    )* };
}

planted! {
    found_graphs_past_the_gate "graph-gate";
    found_kernels_past_the_gate "launch-gate";
    found_copies_past_the_gate "copy-gate";
    found_nobody_waits_for_calls "inside";
    found_nobody_waits_for_work "drain";
    found_one_context_is_waited_for "one-context";
    found_moved_memory_is_read_only "read-only";
    found_moved_memory_has_no_access "no-access";
    found_the_end_is_not_copied "short-copy";
    found_nothing_is_copied "no-copy";
    found_freed_under_work "free-drain";
}
