//! Six traces of how programs use GPU memory, made from a seed. They are models of the patterns that their names say, not
//! recordings of programs.

use gpuos_model::rng::Rng;

use crate::trace::{Extent, Touch, Trace};

/// A pattern: its name, what it is, and how it is made.
pub struct Pattern {
    /// Its name in commands and tables.
    pub name: &'static str,
    /// What it models, for a table.
    pub about: &'static str,
    make: fn(&mut Rng) -> Vec<Touch>,
}

/// All of them.
pub const PATTERNS: [Pattern; 6] = [
    Pattern {
        name: "training",
        about: "steps of training: forward, backward, optimizer; batches at random",
        make: training,
    },
    Pattern {
        name: "kv-cache",
        about: "decoding for 24 requests at a time: all weights and each request's cache, which grows and goes",
        make: kv_cache,
    },
    Pattern {
        name: "scan",
        about: "a hot set, and sweeps over what is used once a sweep",
        make: scan,
    },
    Pattern {
        name: "loop",
        about: "one pass over all after the other",
        make: passes,
    },
    Pattern {
        name: "zipf",
        about: "at random, few extents often (Zipf with exponent 0.9)",
        make: zipf,
    },
    Pattern {
        name: "stencil",
        about: "time steps between two grids, each point from its neighbours",
        make: stencil,
    },
];

const EXTENT_MIB: u32 = 16;

impl Pattern {
    /// The pattern of that name.
    pub fn named(name: &str) -> Option<&'static Pattern> {
        PATTERNS.iter().find(|pattern| pattern.name == name)
    }

    /// The trace of a seed.
    pub fn trace(&self, seed: u64) -> Trace {
        Trace {
            extent_mib: EXTENT_MIB,
            touches: (self.make)(&mut Rng::new(seed)),
        }
    }
}

fn read(extent: u64) -> Touch {
    Touch::Read(Extent(extent as u32))
}

fn write(extent: u64) -> Touch {
    Touch::Write(Extent(extent as u32))
}

fn training(rng: &mut Rng) -> Vec<Touch> {
    const LAYERS: u64 = 48;
    // Of each layer: weights, activations, gradients, moments of the optimizer.
    const OF_LAYER: [u64; 4] = [3, 2, 3, 6];
    const BATCHES: u64 = 64;
    let width: u64 = OF_LAYER.iter().sum();
    let part = |layer: u64, which: usize| {
        let before: u64 = OF_LAYER[..which].iter().sum();
        let first = layer * width + before;
        first..first + OF_LAYER[which]
    };
    let mut touches = Vec::new();
    for _ in 0..60 {
        for _ in 0..2 {
            touches.push(read(LAYERS * width + rng.below(BATCHES)));
        }
        for layer in 0..LAYERS {
            touches.extend(part(layer, 0).map(read));
            touches.extend(part(layer, 1).map(write));
        }
        for layer in (0..LAYERS).rev() {
            touches.extend(part(layer, 0).chain(part(layer, 1)).map(read));
            touches.extend(part(layer, 2).map(write));
        }
        for layer in 0..LAYERS {
            touches.extend(part(layer, 2).map(read));
            touches.extend(part(layer, 0).chain(part(layer, 3)).map(write));
        }
    }
    touches
}

fn kv_cache(rng: &mut Rng) -> Vec<Touch> {
    const WEIGHTS: u64 = 160;
    const AT_ONCE: usize = 24;
    struct Request {
        cache: Vec<u64>,
        left: u64,
    }
    let mut free: Vec<u64> = (WEIGHTS..WEIGHTS + 4000).rev().collect();
    let mut active: Vec<Request> = Vec::new();
    let mut touches = Vec::new();
    for _ in 0..600 {
        while active.len() < AT_ONCE {
            let prompt = 2 + rng.below(10) as usize;
            let cache = free.split_off(free.len() - prompt);
            touches.extend(cache.iter().copied().map(write));
            let left = 20 + rng.below(200);
            active.push(Request { cache, left });
        }
        touches.extend((0..WEIGHTS).map(read));
        for request in &mut active {
            // An extent holds the caches of several tokens.
            if rng.below(12) == 0 {
                request.cache.extend(free.pop());
            }
            let (last, before) = request.cache.split_last().expect("a prompt has some");
            touches.extend(before.iter().copied().map(read));
            touches.push(write(*last));
            request.left -= 1;
        }
        for done in active.extract_if(.., |request| request.left == 0) {
            let freed = done
                .cache
                .iter()
                .map(|extent| Touch::Free(Extent(*extent as u32)));
            touches.extend(freed);
            free.extend(done.cache);
        }
    }
    touches
}

fn scan(rng: &mut Rng) -> Vec<Touch> {
    const HOT: u64 = 200;
    const SWEPT: u64 = 600;
    let (mut touches, mut at) = (Vec::new(), 0);
    for _ in 0..60_000 {
        if rng.below(10) < 7 {
            touches.push(read(rng.below(HOT)));
        } else {
            touches.push(read(HOT + at));
            at = (at + 1) % SWEPT;
        }
    }
    touches
}

fn passes(_: &mut Rng) -> Vec<Touch> {
    (0..60).flat_map(|_| (0..400).map(read)).collect()
}

fn zipf(rng: &mut Rng) -> Vec<Touch> {
    const EXTENTS: usize = 1000;
    let mut sums = Vec::with_capacity(EXTENTS);
    let mut sum = 0.0;
    for rank in 1..=EXTENTS {
        sum += 1.0 / (rank as f64).powf(0.9);
        sums.push(sum);
    }
    let mut names: Vec<u64> = (0..EXTENTS as u64).collect();
    rng.shuffle(&mut names);
    let touch = |_| {
        let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|sum| *sum < at).min(EXTENTS - 1);
        match rng.below(4) {
            0 => write(names[rank]),
            _ => read(names[rank]),
        }
    };
    (0..100_000).map(touch).collect()
}

fn stencil(_: &mut Rng) -> Vec<Touch> {
    const GRID: u64 = 240;
    let mut touches = Vec::new();
    for step in 0..60 {
        let (from, to) = match step % 2 {
            0 => (0, GRID),
            _ => (GRID, 0),
        };
        for at in 0..GRID {
            let near = at.saturating_sub(1)..=(at + 1).min(GRID - 1);
            touches.extend(near.map(|near| read(from + near)));
            touches.push(write(to + at));
        }
    }
    touches
}
