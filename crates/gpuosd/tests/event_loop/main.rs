//! The real loop of the daemon in a world whose time a test moves: clocks that jump, a slurmctld that is away or slow,
//! a library that hangs, and everything at random.

mod random;
mod world;

use gpuos_core::health::Verb;
use world::{TODAY, World};

const HOUR: i64 = 3_600_000;
/// What the machine's clock may do, in ms; the last one is 1970.
const JUMPS: [i64; 5] = [HOUR, -HOUR, 24 * HOUR, -24 * HOUR, -(TODAY as i64)];

#[test]
fn without_a_pool_no_gpu_is_asked_about_instances() {
    let mut world = World::new();
    world.job(7, &[2], true, true);
    world.seconds(200);
    assert_eq!(world.status().gpus[2].state, "allocated");
    assert!(!world.asked_about_instances());
}

/// gpuosd of another release, or an administrator, wrote into its part.
#[test]
fn words_that_are_not_known_stay_and_what_is_damaged_is_written_anew() {
    let mut world = World::new();
    world.seconds(30);
    world.slurm.extra = "rack=7 [gpuos:1 later=4 quiet]".into();
    world.admin(Verb::Drain, 2);
    world.until("it is told", 60, |world| world.slurm.out() == [2]);
    assert_eq!(world.slurm.extra, "rack=7 [gpuos:1 out=2 later=4 quiet]");
    world.slurm.extra = "rack=7 [gpuos:1 later=4 out=x quiet]".into();
    let whole = "rack=7 [gpuos:1 later=4 out=2 quiet]";
    world.until("it is mended", 120, |world| world.slurm.extra == whole);
    world.admin(Verb::Online, 2);
    let well = "rack=7 [gpuos:1 later=4 quiet]";
    world.until("it serves", 200, |world| world.slurm.extra == well);
    // Nothing is out, and still a damaged part does not stay.
    for damaged in ["rack=7 [gpuos:1 out=", "rack=7 [gpuos:1 degraded=x]"] {
        world.slurm.extra = damaged.into();
        world.until("it is mended", 120, |world| world.slurm.extra == "rack=7");
    }
}

/// gpuosd without a state believes what stands there; of a damaged word the worst.
#[test]
fn what_a_damaged_part_may_have_had_out_stays_out() {
    let mut world = World::new();
    world.slurm.extra = "[gpuos:1 later=4 out=2,x]".into();
    let all = "[gpuos:1 later=4 out=0,1,2,3,4,5,6,7]";
    world.until("all are out", 120, |world| world.slurm.extra == all);
    world.admin(Verb::Online, 3);
    world.until("one is back", 200, |world| {
        !world.slurm.extra.contains(",3")
    });
    assert_eq!(world.slurm.out(), [0, 1, 2, 4, 5, 6, 7]);
}

/// A fault under a job, with the clock set at every second of what follows.
#[test]
fn a_clock_that_jumps_shortens_and_lengthens_no_wait() {
    let recovered = |jump: Option<i64>| {
        let mut world = World::new();
        world.seconds(30);
        world.job(7, &[2], true, true);
        world.seconds(30);
        world.xid(2, 48);
        let begin = world.now();
        for second in 0..60 {
            if let Some(jump) = jump {
                // There and back, so that the clock stays near what it jumps to.
                world.jump(if second % 2 == 0 { jump } else { -jump });
            }
            world.second();
        }
        let at = |what: &str| {
            let mut log = world.slurm.log.iter();
            let (at, _) = log
                .find(|(_, done)| done.starts_with(what))
                .unwrap_or_else(|| panic!("{what}"));
            at - begin
        };
        let requeue = at("Requeue");
        let reset = world.device_at("reset 2").expect("a reset") - begin;
        // A job that was started before slurmctld knew would be under the reset.
        assert!(reset >= requeue + 10_000, "{jump:?}: {requeue} {reset}");
        assert!(!world.slurm.jobs[&7].held, "it may start again");
        assert_eq!(world.status().gpus[2].state, "available", "{jump:?}");
        assert!(world.slurm.out().is_empty(), "{jump:?}");
        (requeue, reset)
    };
    let calm = recovered(None);
    for jump in JUMPS {
        assert_eq!(recovered(Some(jump)), calm, "{jump}");
    }
}

#[test]
fn under_a_clock_that_was_set_nothing_is_forgotten_and_nothing_fires() {
    for jump in JUMPS {
        let mut world = World::new();
        world.seconds(60);
        world.admin(Verb::Drain, 3);
        world.seconds(30);
        world.jump(jump);
        world.seconds(300);
        assert_eq!(world.slurm.out(), [3]);
        assert_eq!(world.slurm.drained, None);
        assert_eq!(world.device_log, [], "{jump}");
        let states: Vec<String> = world
            .status()
            .gpus
            .iter()
            .map(|gpu| gpu.state.clone())
            .collect();
        assert_eq!(
            states.iter().filter(|state| *state == "available").count(),
            7,
            "{states:?}"
        );
        // What may be told in which time is counted on.
        world.admin(Verb::Drain, 4);
        world.until("GPU 4 is out", 25, |world| world.slurm.out() == [3, 4]);
        // Also after a restart, whose saved state is from another time.
        world.jump(-jump);
        world.start();
        world.seconds(60);
        assert_eq!(world.slurm.out(), [3, 4]);
        for gpu in [3, 4] {
            world.admin(Verb::Online, gpu);
        }
        world.until("they are back", 180, |world| world.slurm.out().is_empty());
    }
}

#[test]
fn a_slurmctld_that_is_away_for_ten_minutes_is_told_all_once_it_is_back() {
    let mut world = World::new();
    world.seconds(30);
    world.job(7, &[2], true, true);
    world.job(8, &[5], true, true);
    world.seconds(30);
    world.slurm.away = true;
    world.admin_node(Verb::Drain);
    world.admin(Verb::Drain, 0);
    world.xid(2, 48);
    world.seconds(300);
    world.start();
    world.xid(6, 48);
    world.seconds(300);
    assert_eq!(world.slurm.on(2), [7], "nobody could requeue it");
    assert_eq!(
        world.device_log,
        [],
        "what slurmctld does not know is not reset"
    );
    let asked = world
        .slurm
        .log
        .iter()
        .filter(|(_, what)| what == "away")
        .count();
    assert!(asked < 250, "asked {asked} times in 600 s");
    assert!(
        world
            .status()
            .daemon
            .troubles
            .iter()
            .any(|trouble| trouble.contains("contact"))
    );
    world.slurm.away = false;
    world.until("it knows", 130, |world| {
        [0, 2, 6].iter().all(|gpu| world.slurm.out().contains(gpu))
    });
    world.until("job 7 is requeued", 60, |world| {
        world.slurm.jobs[&7].pending && !world.slurm.jobs[&7].held
    });
    assert!(!world.slurm.jobs[&7].excluded);
    world.until("all but the drained one is back", 240, |world| {
        world.slurm.out() == [0]
    });
    assert_eq!(world.slurm.on(5), [8], "the neighbour runs on");
    assert!(world.slurm.drained.is_some(), "by an administrator");
    world.slurm.away = true;
    world.admin_node(Verb::Online);
    world.seconds(60);
    world.slurm.away = false;
    world.until("the node is back", 120, |world| {
        world.slurm.drained.is_none()
    });
    assert!(world.status().daemon.troubles.is_empty());
}

/// A job whose GPU failed, requeued while slurmctld does not take what gpuosd says of its GPUs.
fn requeued_untold() -> World {
    let mut world = World::new();
    world.seconds(30);
    world.job(7, &[2], true, true);
    world.seconds(30);
    world.slurm.refuses_extra = true;
    world.xid(2, 48);
    world.until("job 7 is requeued", 60, |world| {
        world.slurm.jobs[&7].pending
    });
    world
}

#[test]
fn a_requeued_job_keeps_off_a_node_only_while_its_gpu_could_come_back_to_it() {
    let mut never = requeued_untold();
    never.until("it may start elsewhere", 100, |world| {
        !world.slurm.jobs[&7].held
    });
    assert!(never.slurm.jobs[&7].excluded);

    let mut late = requeued_untold();
    late.seconds(10);
    late.slurm.refuses_extra = false;
    late.until("it may start", 100, |world| !world.slurm.jobs[&7].held);
    // A job that asked for this node, or has no other, would never run again.
    assert!(!late.slurm.jobs[&7].excluded, "its GPU is out by then");
}

#[test]
fn a_library_that_hangs_for_a_minute_harms_nobody_and_for_long_drains_the_node() {
    let mut world = World::new();
    world.seconds(30);
    world.job(7, &[2], true, true);
    world.library = false;
    world.seconds(60);
    assert_eq!(world.slurm.drained, None);
    // What is drained meanwhile is not checked before the library answers.
    world.admin(Verb::Drain, 1);
    world.admin(Verb::Online, 1);
    world.xid(4, 48);
    world.seconds(60);
    assert_eq!(world.device_log, []);
    world.library = true;
    world.until("all is back", 120, |world| world.slurm.out().is_empty());
    assert_eq!(world.slurm.on(2), [7]);
    world.library = false;
    world.until("the node is drained", 240, |world| {
        world.slurm.drained.is_some()
    });
    assert_eq!(world.slurm.on(2), [7], "its job runs out");
    world.library = true;
    world.until("the node is back", 60, |world| {
        world.slurm.drained.is_none()
    });
}

#[test]
fn eight_gpus_that_fail_at_once_with_a_slow_slurmctld() {
    let mut world = World::new();
    world.slurm.slow = 5000;
    world.seconds(30);
    for gpu in 0..8 {
        world.job(10 + u32::from(gpu), &[gpu], gpu % 4 != 3, gpu % 2 == 1);
    }
    world.seconds(60);
    for gpu in 0..8 {
        world.xid(gpu, 48);
    }
    world.until("all jobs have left", 240, |world| {
        (0..8).all(|gpu| world.slurm.on(gpu).is_empty())
    });
    let killed = (10..18).filter(|job| !world.slurm.jobs.contains_key(job));
    assert_eq!(
        killed.collect::<Vec<_>>(),
        [13, 17],
        "those that may not be requeued"
    );
    world.until("all GPUs are back", 400, |world| {
        world.slurm.out().is_empty()
    });
    world.until("all may start", 60, |world| {
        world.slurm.jobs.values().all(|job| !job.held)
    });
}
