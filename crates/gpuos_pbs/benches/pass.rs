//! One pass over 2,000 waiting jobs on 10,000 GPUs, from the texts that PBS prints to the places: `cargo bench -p gpuos_pbs --bench pass`.
//! The figures are of this machine; it exits with 1 where a pass takes [`GOAL`] or longer.

#[path = "../tests/pbs/world.rs"]
mod world;

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gpuos_config::gpuos_toml::Config;
use gpuos_pbs::pass::plan;
use gpuos_pbs::state::{Site, Texts};
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;

use world::{QUEUES, SERVER, World};

/// What a pass may take with everything that belongs to it.
const GOAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut longest = Duration::ZERO;
    for (what, running) in [("nothing runs", 0), ("most is taken", 1_100)] {
        let mut world = World::random(3, 1_250, running, 2_000);
        for (at, host) in world.hosts.iter_mut().enumerate() {
            host.gpus = 8;
            host.leaf = format!("l{}", at / 16);
        }
        let (vnodes, jobs) = (world.vnodes(), world.jobs());
        let texts = Texts {
            vnodes: &vnodes,
            jobs: &jobs,
            queues: QUEUES,
            server: SERVER,
        };
        let begun = Instant::now();
        let site = match Site::read(&texts, Config::default()) {
            Ok(site) => site,
            Err(why) => {
                eprintln!("the texts cannot be read: {why}");
                return ExitCode::FAILURE;
            }
        };
        let read = begun.elapsed();
        let mut planner = Planner::new(site.cluster.clone());
        let made = begun.elapsed();
        let plan = plan(&site, &mut planner, Bounds::default(), &HashSet::new());
        let all = begun.elapsed();
        longest = longest.max(all);
        println!(
            "{what}: {} KiB of vnodes and {} KiB of jobs read in {} ms, planner {} ms, pass {} ms, all {} ms: {} start, {} wait",
            vnodes.len() >> 10,
            jobs.len() >> 10,
            read.as_millis(),
            (made - read).as_millis(),
            (all - made).as_millis(),
            all.as_millis(),
            plan.starts.len(),
            plan.waits.len(),
        );
    }
    if longest < GOAL {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "a pass took {} ms, and {} are the goal",
        longest.as_millis(),
        GOAL.as_millis()
    );
    ExitCode::FAILURE
}
