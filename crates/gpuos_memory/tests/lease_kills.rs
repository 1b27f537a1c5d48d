//! Forty points at which something is killed: process, mover, daemon, step or node, each at eight moments.

use gpuos_memory::lease::{Config, GpuId, Input, JobId, JobSpec, Supply};

use crate::lease_support::GIB;
use crate::lease_support::world::{Kill, Moment, World};

const KILLS: [Kill; 5] = [
    Kill::Client,
    Kill::Mover,
    Kill::Broker,
    Kill::Step,
    Kill::Node,
];

const MOMENTS: [Moment; 8] = [
    Moment::Asked,
    Moment::Answered,
    Moment::ToldPark,
    Moment::Parking,
    Moment::ToldTurn,
    Moment::Returning,
    Moment::ToldDemote,
    Moment::Demoting,
];

fn config() -> Config {
    Config {
        quantum_ms: 500,
        switches: 10,
        rate: 1 << 40,
        longest_ms: 20_000,
        idle_ms: 100,
        switch_ms: 3000,
        end_ms: 300,
        away_ms: 3000,
        demote_ms: 3000,
        cool_ms: 200,
        notice_ms: 100,
        ..Config::default()
    }
}

fn job(job: u64, gpus: &[u32], grant: u64, timeslice: bool) -> JobSpec {
    JobSpec {
        job: JobId(job),
        gpus: gpus.iter().map(|gpu| GpuId(*gpu)).collect(),
        hbm_per_gpu: 80 * GIB,
        host: grant * gpus.len() as u64 * GIB,
        nvme: 0,
        bytes_per_gpu: grant * GIB,
        timeslice,
        account: None,
        rank: job,
        guaranteed: 0,
    }
}

/// Two jobs of 64 GiB in turns on two GPUs, and one that has a GPU of its own with 40 GiB of it in host memory.
fn kill_at(kill: Kill, moment: Moment, count: u64) -> Result<bool, String> {
    let supply = Supply {
        gpus: (0..3).map(|gpu| (GpuId(gpu), 80 * GIB)).collect(),
        host: 400 * GIB,
        nvme: 300 * GIB,
        nvme_counted: 0,
    };
    let mut world = World::new(count, config(), supply);
    world.plan = Some((kill, moment, count));
    world.ms_per_gib = 1;
    for (spec, work) in [
        (job(1, &[0, 1], 64, true), 6000),
        (job(2, &[0, 1], 64, true), 6000),
        (job(3, &[2], 120, false), 3000),
    ] {
        world.job(spec.clone());
        let bytes = spec.bytes_per_gpu / 2;
        for _ in 0..2 {
            let asks = spec.gpus.iter().map(|gpu| (*gpu, bytes)).collect();
            world.process(spec.job, asks, work);
        }
        world.run(world.now + 300)?;
    }
    world.run(4000)?;
    // Short of memory for a while, so that something is demoted.
    world.input(Input::Pressure {
        free: 50,
        total: 1000,
        stalled: 0,
    });
    world.run(6000)?;
    world.input(Input::Pressure {
        free: 500,
        total: 1000,
        stalled: 0,
    });
    world.run(120_000)?;
    world.left()?;
    let [demoted, parks] = [world.seen.demoted, world.seen.parks];
    if kill == Kill::Mover && (demoted == 0 || parks == 0) {
        return Err("nothing was moved".to_owned());
    }
    Ok(world.plan.is_none())
}

#[test]
fn nothing_is_left_whatever_is_killed_at_forty_points() {
    let mut points = 0;
    for kill in KILLS {
        for moment in MOMENTS {
            let mut hit = 0;
            for count in 0..6 {
                match kill_at(kill, moment, count) {
                    Ok(killed) => hit += u64::from(killed),
                    Err(why) => panic!("{kill:?} at {moment:?}, the {count}th time: {why}"),
                }
            }
            assert!(hit > 0, "{kill:?} at {moment:?} never came");
            points += 1;
        }
    }
    assert_eq!(points, 40);
}
