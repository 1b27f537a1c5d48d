//! A small site: nodes with GPUs that are whole, divided, or MIG-switchable, and random arrivals, ends, drains and restarts of
//! slurmctld against the step functions that decide what a job is offered. What is offered is given by a Slurm that takes
//! anything that looks free, and held against a ledger that knows nothing of GRES.
//!
//! `GPUOS_SOAK=50000 cargo test -p gpuos_placement --release --test placement decisions_sim` does more operations than
//! a plain run, other ones each time; `GPUOS_SOAK_SEED` repeats one.

mod site;
mod slurm;

use site::{Ask, Site};

/// One run.
fn run(seed: u64, operations: u64) {
    let mut site = Site::new(seed);
    for _ in 0..operations {
        site.operate();
    }
    site.serve_all_that_wait();
    site.report();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_gpu_twice_and_nobody_waits_for_ever() {
    let long = number("GPUOS_SOAK");
    let operations = long.unwrap_or(1500);
    if let Some(seed) = number("GPUOS_SOAK_SEED") {
        return run(seed, operations);
    }
    // A long run is another one each time.
    let clock = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |now| now.as_nanos() as u64)
    };
    let first = long.map_or(1, |_| clock());
    for seed in (0..4).map(|nth| first.wrapping_add(nth)) {
        println!("GPUOS_SOAK_SEED={seed}");
        run(seed, operations);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let history = |seed: u64| {
        let mut site = Site::new(seed);
        (0..400).for_each(|_| site.operate());
        site.history()
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}

#[test]
fn an_empty_site_serves_every_form() {
    for ask in Ask::EACH {
        let mut site = Site::new(3);
        assert!(site.fits_an_empty_site(&ask), "{ask:?}");
        assert!(site.would_start(&ask), "{ask:?}");
    }
}
