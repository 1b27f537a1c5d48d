//! Random programs over several streams, graphs and moving extents, against a plain reference: bytes are
//! equal at the end, whatever the threads did meanwhile. `GPUOS_CUDA_SEEDS=N` runs N programs.

use crate::common::{Cuda, on};

const BLOCK: u64 = 2 << 20;
/// Bytes at the beginning of each buffer that programs use.
const USED: usize = 4096;
const BUFFERS: usize = 6;
const STREAMS: usize = 3;

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

struct Program<'a> {
    cuda: &'a Cuda,
    kernels: [u64; 5],
    streams: Vec<u64>,
    buffers: Vec<u64>,
    /// The stream that touched each buffer last.
    last: Vec<usize>,
    event: u64,
    wanted: Vec<Vec<u8>>,
}

impl Program<'_> {
    /// Lets a stream wait for all who touched these buffers.
    fn order(&mut self, stream: usize, buffers: &[usize]) {
        for buffer in buffers {
            let last = self.last[*buffer];
            if last != stream {
                self.cuda
                    .ok("cuEventRecord", &[self.event, self.streams[last]]);
                self.cuda
                    .ok("cuStreamWaitEvent", &[self.streams[stream], self.event, 0]);
            }
        }
        for buffer in buffers {
            self.last[*buffer] = stream;
        }
    }

    fn launch(&self, kernel: usize, stream: usize, args: &[u64]) {
        assert_eq!(
            self.cuda
                .launch(self.kernels[kernel], self.streams[stream], args),
            0
        );
    }

    /// One step, and the same on the reference.
    fn step(&mut self, random: &mut Random) {
        let stream = random.below(STREAMS as u64) as usize;
        let (x, y) = (
            random.below(BUFFERS as u64) as usize,
            random.below(BUFFERS as u64) as usize,
        );
        let offset = random.below(512) as usize * 4;
        let words = random.below(256) as usize + 1;
        let value = random.below(1 << 32) as u32;
        let at = |program: &Program<'_>, buffer: usize| program.buffers[buffer] + offset as u64;
        let range = offset..offset + words * 4;
        match random.below(8) {
            0 => {
                self.order(stream, &[x]);
                self.launch(0, stream, &[at(self, x), value.into(), words as u64]);
                self.wanted[x][range].copy_from_slice(&value.to_le_bytes().repeat(words));
            }
            1 => {
                self.order(stream, &[x, y]);
                let (a, b) = (at(self, x), at(self, y));
                self.launch(1, stream, &[a, a, b, words as u64]);
                let other = self.wanted[y].clone();
                for i in range.step_by(4) {
                    let word =
                        |bytes: &[u8]| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
                    let sum = word(&self.wanted[x]).wrapping_add(word(&other));
                    self.wanted[x][i..i + 4].copy_from_slice(&sum.to_le_bytes());
                }
            }
            2 if x != y => {
                self.order(stream, &[x, y]);
                self.launch(2, stream, &[at(self, x), at(self, y), words as u64 * 4]);
                let bytes = self.wanted[y][range.clone()].to_vec();
                self.wanted[x][range].copy_from_slice(&bytes);
            }
            3 if x != y => {
                self.order(stream, &[x, y]);
                let all = [
                    at(self, x),
                    at(self, y),
                    words as u64 * 4,
                    self.streams[stream],
                ];
                self.cuda.ok("cuMemcpyDtoDAsync_v2", &all);
                let bytes = self.wanted[y][range.clone()].to_vec();
                self.wanted[x][range].copy_from_slice(&bytes);
            }
            4 => {
                self.order(stream, &[x]);
                let bytes: Vec<u8> = (0..words * 4).map(|i| (value as usize + i) as u8).collect();
                let all = [
                    at(self, x),
                    bytes.as_ptr() as u64,
                    bytes.len() as u64,
                    self.streams[stream],
                ];
                self.cuda.ok("cuMemcpyHtoDAsync_v2", &all);
                self.wanted[x][range].copy_from_slice(&bytes);
            }
            5 => {
                self.order(stream, &[x]);
                self.launch(
                    3,
                    stream,
                    &[self.buffers[x], USED as u64, words as u64, value.into()],
                );
                let mut state = u64::from(value) | 1;
                for step in 0..words as u64 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let i = (state % (USED as u64 / 8)) as usize * 8;
                    let word = &mut self.wanted[x][i..i + 8];
                    let sum = u64::from_le_bytes((&*word).try_into().unwrap()).wrapping_add(step);
                    word.copy_from_slice(&sum.to_le_bytes());
                }
            }
            6 => self.graph(stream, x, offset as u64, value),
            7 => self.relocate(x, 1 + random.below(3)),
            _ => {}
        }
    }

    /// Captures two fills and launches the graph.
    fn graph(&mut self, stream: usize, x: usize, offset: u64, value: u32) {
        self.order(stream, &[x]);
        let handle = self.streams[stream];
        self.cuda.ok("cuStreamBeginCapture_v2", &[handle, 2]);
        self.launch(0, stream, &[self.buffers[x] + offset, 1, 2]);
        self.launch(0, stream, &[self.buffers[x] + offset + 4, value.into(), 2]);
        let mut graph = 0_u64;
        self.cuda
            .ok("cuStreamEndCapture", &[handle, &raw mut graph as u64]);
        let exec = self.cuda.get("cuGraphInstantiateWithFlags", &[graph, 0]);
        self.cuda.ok("cuGraphLaunch", &[exec, handle]);
        self.cuda.ok("cuGraphExecDestroy", &[exec]);
        self.cuda.ok("cuGraphDestroy", &[graph]);
        let words = [1, value, value].map(u32::to_le_bytes).concat();
        self.wanted[x][offset as usize..][..12].copy_from_slice(&words);
    }

    /// Gives a buffer other memory behind its address: drains, copies, unmaps, maps.
    fn relocate(&mut self, x: usize, kind: u64) {
        let (cuda, at) = (self.cuda, self.buffers[x]);
        cuda.ok("cuCtxSynchronize", &[]);
        let bytes = cuda.download(at, USED);
        cuda.ok("cuMemUnmap", &[at, BLOCK]);
        back(cuda, at, kind);
        cuda.upload(at, &bytes);
    }
}

fn back(cuda: &Cuda, at: u64, kind: u64) {
    let prop = [1_u32, 0, kind as u32, 0, 0, 0, 0, 0];
    let memory = cuda.get("cuMemCreate", &[BLOCK, prop.as_ptr() as u64, 0]);
    cuda.ok("cuMemMap", &[at, BLOCK, 0, memory, 0]);
    cuda.ok("cuMemRelease", &[memory]);
    let access = [1_u32, 0, 3];
    cuda.ok("cuMemSetAccess", &[at, BLOCK, access.as_ptr() as u64, 1]);
}

#[test]
fn random_programs_leave_the_bytes_of_the_reference() {
    on(
        "random_programs_leave_the_bytes_of_the_reference",
        "memory=64M",
        |cuda| {
            let context = cuda.context(0);
            let programs: u64 =
                std::env::var("GPUOS_CUDA_SEEDS").map_or(200, |n| n.parse().expect("a number"));
            let kernels = ["fill", "add", "copy", "walk", "checksum"].map(|name| cuda.kernel(name));
            for seed in 0..programs {
                let mut random = Random(seed);
                let mut program = Program {
                    cuda,
                    kernels,
                    streams: (0..STREAMS).map(|_| cuda.stream()).collect(),
                    buffers: Vec::new(),
                    last: vec![0; BUFFERS],
                    event: cuda.get("cuEventCreate", &[2]),
                    wanted: vec![vec![0; USED]; BUFFERS],
                };
                for _ in 0..BUFFERS {
                    let at = cuda.get("cuMemAddressReserve", &[BLOCK, 0, 0, 0]);
                    back(cuda, at, 1);
                    cuda.upload(at, &[0; USED]);
                    program.buffers.push(at);
                }
                for _ in 0..40 {
                    program.step(&mut random);
                }
                cuda.ok("cuCtxSynchronize", &[]);
                for (at, wanted) in program.buffers.iter().zip(&program.wanted) {
                    assert!(cuda.download(*at, USED) == *wanted, "seed {seed}");
                    cuda.ok("cuMemUnmap", &[*at, BLOCK]);
                    cuda.ok("cuMemAddressFree", &[*at, BLOCK]);
                }
                for stream in &program.streams {
                    cuda.ok("cuStreamDestroy_v2", &[*stream]);
                }
                cuda.ok("cuEventDestroy_v2", &[program.event]);
            }
            cuda.ok("cuCtxDestroy_v2", &[context]);
        },
    );
}
