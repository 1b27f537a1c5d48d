//! What is exchanged for a program that does the same again and again: about as little as could be.

use std::collections::BTreeSet;

use gpuos_memory::staging::Staging;
use gpuos_memory::table::Tier;
use gpuos_memory::trace::Extent;

/// Extents of a tensor, as an allocation has them.
const PARTS: u32 = 16;
const BYTES: u64 = 16 << 20;

struct Gpu {
    staging: Staging,
    resident: BTreeSet<Extent>,
    all: BTreeSet<Extent>,
    room: usize,
    came: usize,
    asked: usize,
    in_place: usize,
    /// Microseconds.
    now: u64,
}

/// What a kernel takes, an extent that it reads where it lies, and one that is exchanged: of 16 MiB over a link of 55 GB/s.
const TAKES: [u64; 3] = [20, 300, 400];

impl Gpu {
    fn new(room: usize) -> Gpu {
        Gpu {
            staging: Staging::new(),
            resident: BTreeSet::new(),
            all: BTreeSet::new(),
            room,
            came: 0,
            asked: 0,
            in_place: 0,
            now: 0,
        }
    }

    fn kernel(&mut self, tensors: &[u32]) {
        let named: Vec<Extent> = tensors
            .iter()
            .flat_map(|tensor| (0..PARTS).map(move |part| Extent(tensor * PARTS + part)))
            .collect();
        for extent in &named {
            if self.all.insert(*extent) && self.resident.len() < self.room {
                self.resident.insert(*extent);
            }
        }
        self.staging.kernel(&named, self.now);
        let lacks = named.iter().any(|extent| !self.resident.contains(extent));
        if lacks {
            let place = |extent: Extent| {
                let known = self.all.contains(&extent);
                known.then(|| match self.resident.contains(&extent) {
                    true => (Tier::Hbm, BYTES),
                    false => (Tier::Host, BYTES),
                })
            };
            let resident = self.resident.iter().map(|extent| (*extent, BYTES));
            let room = (self.room - self.resident.len()) as u64 * BYTES;
            let exchange = self
                .staging
                .exchange(&named, resident, place, room, 512 << 20);
            self.asked += usize::from(!exchange.is_empty());
            for extent in &exchange.down {
                assert!(self.resident.remove(extent));
            }
            self.came += exchange.up.len();
            self.now += TAKES[2] * exchange.up.len() as u64;
            for extent in exchange.up {
                assert!(self.resident.insert(extent));
            }
            assert!(self.resident.len() <= self.room);
        }
        let misses = named
            .iter()
            .filter(|extent| !self.resident.contains(extent));
        let misses = misses.count();
        self.in_place += misses;
        self.now += TAKES[0] + TAKES[1] * misses as u64;
    }
}

/// A step of training by Adam, as PyTorch does it without fused kernels.
fn step(gpu: &mut Gpu, layers: u32) {
    let (weight, gradient, first, second) = (
        |layer: u32| 4 * layer,
        |layer: u32| 4 * layer + 1,
        |layer: u32| 4 * layer + 2,
        |layer: u32| 4 * layer + 3,
    );
    let other = 4 * layers;
    let temporary = [other + 1, other + 2];
    for layer in 0..layers {
        gpu.kernel(&[other, weight(layer)]);
        gpu.kernel(&[other]);
    }
    for layer in 0..layers {
        gpu.kernel(&[gradient(layer)]);
    }
    for layer in (0..layers).rev() {
        gpu.kernel(&[other]);
        gpu.kernel(&[other, temporary[0]]);
        gpu.kernel(&[other, weight(layer)]);
        gpu.kernel(&[temporary[0], gradient(layer)]);
    }
    for layer in 0..layers {
        gpu.kernel(&[first(layer), gradient(layer)]);
        gpu.kernel(&[second(layer)]);
        gpu.kernel(&[second(layer), gradient(layer)]);
        gpu.kernel(&[temporary[0], second(layer)]);
        gpu.kernel(&[temporary[0]]);
        gpu.kernel(&[temporary[1], temporary[0]]);
        gpu.kernel(&[temporary[1]]);
        gpu.kernel(&[weight(layer), first(layer), temporary[1]]);
    }
}

#[test]
fn training_exchanges_what_does_not_fit_and_little_more() {
    let layers = 14;
    let need = (4 * layers + 3) * PARTS;
    let room = need * 10 / 16;
    let mut gpu = Gpu::new(room as usize);
    for number in 0..10 {
        let before = (gpu.came, gpu.in_place);
        step(&mut gpu, layers);
        let (came, in_place) = (gpu.came - before.0, gpu.in_place - before.1);
        if number >= 4 {
            let lacks = (need - room) as usize;
            assert!(came * 4 <= lacks * 5, "{came} came, {lacks} have no room");
            assert_eq!(in_place, 0);
        }
    }
}

/// Each weight is read by one kernel of each pass, as a decoder does for each word: nothing is won by an exchange.
#[test]
fn what_is_read_once_stays_where_it_is() {
    let mut gpu = Gpu::new(20 * PARTS as usize);
    for _ in 0..10 {
        for layer in 0..40 {
            gpu.kernel(&[layer]);
        }
    }
    assert_eq!(gpu.came, 0);
}

/// A program that never does the same again is not kept waiting.
#[test]
fn what_is_new_is_not_waited_for() {
    let mut gpu = Gpu::new(20 * PARTS as usize);
    let mut state = 1_u64;
    for _ in 0..5000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        gpu.kernel(&[(state >> 40) as u32 % 40]);
    }
    assert!(gpu.asked < 50, "{}", gpu.asked);
}
