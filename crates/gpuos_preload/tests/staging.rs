//! Programs that do the same again and again, with more than the GPU's memory: what a kernel needs is there before it begins.

use crate::common::Cuda;
use crate::shim::{MIB, preloaded};

pub const LAYERS: usize = 6;
const BYTES: u64 = 8 * MIB;
/// Words that a kernel works on, at the beginning of a buffer.
const WORDS: u64 = 512;
/// Where words lie that none touches.
const END: u64 = BYTES - 4096;

/// A layer's weights, gradients and two moments.
pub type Layer = [u64; 4];

/// A step of training, as far as what it touches goes.
fn step(cuda: &Cuda, add: u64, data: u64, layers: &[Layer], words: u64) {
    let add = |to: u64, one: u64, other: u64| {
        assert_eq!(cuda.launch(add, 0, &[to, one, other, words]), 0);
    };
    for [weights, ..] in layers {
        add(data, data, *weights);
    }
    for [weights, gradients, ..] in layers.iter().rev() {
        add(*gradients, data, *weights);
    }
    for [weights, gradients, first, second] in layers {
        for moment in [first, second] {
            for _ in 0..3 {
                add(*moment, *moment, *gradients);
            }
        }
        add(*weights, *first, *second);
    }
}

/// The same with numbers.
fn reference(data: &mut u32, layers: &mut [[u32; 4]]) {
    for layer in layers.iter() {
        *data = data.wrapping_add(layer[0]);
    }
    for layer in layers.iter_mut().rev() {
        layer[1] = data.wrapping_add(layer[0]);
    }
    for layer in layers.iter_mut() {
        for moment in 2..4 {
            for _ in 0..3 {
                layer[moment] = layer[moment].wrapping_add(layer[1]);
            }
        }
        layer[0] = layer[2].wrapping_add(layer[3]);
    }
}

/// How many kernels waited for what they needed.
fn waited(said: &str) -> u64 {
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words
        .windows(2)
        .position(|two| two == ["kernels", "waited"]);
    at.and_then(|at| words[at - 1].parse().ok())
        .unwrap_or_else(|| panic!("no report:\n{said}"))
}

/// Trains, and looks whether all is right. Answers the data and the layers.
pub fn trains(cuda: &Cuda, steps: u32) -> (u64, Vec<Layer>) {
    cuda.context(0);
    let (fill, add) = (cuda.kernel("fill"), cuda.kernel("add"));
    let data = cuda.alloc(2 * MIB);
    assert_eq!(cuda.launch(fill, 0, &[data, 1, WORDS]), 0);
    let mut wanted = Vec::new();
    let layers: Vec<Layer> = (0..LAYERS)
        .map(|number| {
            let layer: Layer = std::array::from_fn(|_| cuda.alloc(BYTES));
            wanted.push(std::array::from_fn(|which| (number * 4 + which) as u32));
            for (at, value) in layer.iter().zip(wanted[number]) {
                let value = u64::from(value);
                assert_eq!(cuda.launch(fill, 0, &[*at, value, WORDS]), 0);
                assert_eq!(cuda.launch(fill, 0, &[at + END, value + 7, WORDS]), 0);
            }
            layer
        })
        .collect();
    let mut sum = 1;
    for _ in 0..steps {
        step(cuda, add, data, &layers, WORDS);
        reference(&mut sum, &mut wanted);
    }
    cuda.ok("cuCtxSynchronize", &[]);
    let read = |at: u64| {
        let bytes = cuda.download(at, 4 * WORDS as usize);
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert!(words.iter().all(|word| *word == words[0]));
        words[0]
    };
    assert_eq!(read(data), sum);
    for (number, (layer, wanted)) in layers.iter().zip(&wanted).enumerate() {
        for (which, at) in layer.iter().enumerate() {
            assert_eq!(read(*at), wanted[which], "layer {number}, buffer {which}");
            assert_eq!(read(at + END), (number * 4 + which) as u32 + 7);
        }
    }
    (data, layers)
}

#[test]
fn what_the_next_kernel_needs_is_there() {
    let said = preloaded(
        "what_the_next_kernel_needs_is_there",
        [256, 128],
        "memory=256M",
        &[("GPUOS_PRELOAD_STAGE", "1")],
        |cuda| drop(trains(cuda, 12)),
    );
    if let Some(said) = said {
        assert!(waited(&said) >= 20, "{said}");
    }
}

#[test]
fn bytes_are_right_while_extents_move_at_random_as_well() {
    let test = "bytes_are_right_while_extents_move_at_random_as_well";
    let more = [("GPUOS_PRELOAD_STAGE", "1"), ("GPUOS_PRELOAD_SHAKE", "11")];
    let said = preloaded(test, [256, 128], "memory=256M", &more, |cuda| {
        drop(trains(cuda, 10));
    });
    if let Some(said) = said {
        assert!(waited(&said) > 0, "{said}");
    }
}

#[test]
fn where_another_policy_is_named_no_kernel_waits() {
    let said = preloaded(
        "where_another_policy_is_named_no_kernel_waits",
        [256, 128],
        "memory=256M",
        &[("GPUOS_MEM_POLICY", "lru")],
        |cuda| drop(trains(cuda, 6)),
    );
    if let Some(said) = said {
        assert_eq!(waited(&said), 0, "{said}");
    }
}

/// A kernel that waits for what the thread does after the next launch: that launch must not wait for the kernel for ever.
#[test]
fn who_waits_for_the_program_is_not_waited_for() {
    let said = preloaded(
        "who_waits_for_the_program_is_not_waited_for",
        [256, 128],
        "memory=256M",
        &[("GPUOS_PRELOAD_STAGE", "1")],
        |cuda| {
            let (data, layers) = trains(cuda, 6);
            let (wait, add) = (cuda.kernel("wait"), cuda.kernel("add"));
            let stream = cuda.stream();
            let flag = cuda.flag();
            for round in 1..6 {
                assert_eq!(cuda.launch(wait, stream, &[flag.0, round]), 0);
                step(cuda, add, data, &layers, WORDS);
                flag.set(round as u32);
                cuda.ok("cuCtxSynchronize", &[]);
            }
        },
    );
    drop(said);
}

/// Seconds of a step of training whose kernels touch all of each buffer, where the GPU has so many MiB of 194.
fn takes(test: &str, hbm: u64, policy: &str) -> Option<f64> {
    let settings = format!("memory=256M,link={LINK},hbm=64000000000");
    let said = preloaded(
        test,
        [256, hbm],
        &settings,
        &[("GPUOS_MEM_POLICY", policy)],
        |cuda| {
            cuda.context(0);
            let add = cuda.kernel("add");
            let data = cuda.alloc(BYTES);
            let layers: Vec<Layer> = (0..LAYERS)
                .map(|_| std::array::from_fn(|_| cuda.alloc(BYTES)))
                .collect();
            let mut best = f64::INFINITY;
            for _ in 0..12 {
                let begun = std::time::Instant::now();
                step(cuda, add, data, &layers, BYTES / 4);
                cuda.ok("cuCtxSynchronize", &[]);
                best = best.min(begun.elapsed().as_secs_f64());
            }
            eprintln!("step {best}");
        },
    )?;
    let line = said.lines().find_map(|line| line.strip_prefix("step "));
    line?.parse().ok()
}

/// Bytes a second of the link in [`takes`].
const LINK: u64 = 250_000_000;

/// What a step of training costs, beside one that fits and the least by the link: `GPUOS_LONG=1 cargo test --release -p gpuos_preload --test
/// preload what_a_step -- --nocapture`.
#[test]
fn what_a_step_takes_where_not_all_of_it_fits() {
    let test = "what_a_step_takes_where_not_all_of_it_fits";
    if std::env::var_os("GPUOS_LONG").is_none() {
        return;
    }
    // In the process of the test the first one is all.
    let mut took = Vec::new();
    for (hbm, policy) in [(240, "gpuos"), (128, "gpuos"), (128, "arc")] {
        let Some(seconds) = takes(test, hbm, policy) else {
            return;
        };
        took.push(seconds);
    }
    let least = ((LAYERS * 4 + 1) as u64 * BYTES - 128 * MIB) as f64 / LINK as f64;
    println!(
        "fits {:.3} s, least by the link {least:.3} s each way, gpuos {:.3} s, arc {:.3} s",
        took[0], took[1], took[2]
    );
}
