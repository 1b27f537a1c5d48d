//! Forty faults and more, each with the jobs that are hit, the GPU that goes out, the story in the audit
//! log, and the way back.

use gpuos_core::health::{Event, GpuState, HostFault, Job, RecoveryAction, Sample, Verb};

use crate::health_support::{World, admin, job, nth, numbers, sound, xid};

/// What becomes of job 7 on GPU 3.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Job7 {
    Left,
    Killed,
    Requeued,
}

/// What becomes of GPU 3.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gpu3 {
    /// It serves as before.
    Serves,
    /// It gets jobs last, until the trouble is over.
    Degraded,
    /// It gets jobs last, and is reset when job 7 has ended.
    ResetWhenIdle,
    /// Out, and back after a reset.
    Reset,
    /// Out until the node is booted.
    Reboot,
    /// Out until an administrator says online.
    Admin,
}

enum Fault {
    Event(fn() -> Event),
    /// The same event so many times, a second apart.
    Events(u32, fn() -> Event),
    /// What the GPU shows from now on.
    Shows(fn(&mut Sample)),
    /// The same, getting worse each second.
    Grows(fn(&mut Sample, u64)),
}

struct Case {
    name: &'static str,
    fault: Fault,
    /// Seconds until it must have had its effect.
    within: u64,
    job: Job7,
    gpu: Gpu3,
    node_drained: bool,
    /// A part of the story.
    says: &'static str,
}

use Fault::{Event as One, Events, Grows, Shows};

fn recovery(number: u32) -> Event {
    Event::RecoveryAction {
        gpu: nth(3),
        action: RecoveryAction::from_nvml(number),
    }
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let case = |name, fault, within, job, gpu, node_drained, says| Case { name, fault, within, job, gpu, node_drained, says };
    use Gpu3::{Admin, Degraded, Reboot, Reset, ResetWhenIdle, Serves};
    use Job7::{Killed, Left, Requeued};
    vec![
        case("xid 13", One(|| xid(3, 13)), 1, Killed, Serves, false, "step 7.0 is killed: Xid 13"),
        case("xid 31", One(|| xid(3, 31)), 1, Killed, Serves, false, "memory page fault"),
        case("xid 32", One(|| xid(3, 32)), 1, Killed, Serves, false, "Xid 32"),
        case("xid 69", One(|| xid(3, 69)), 1, Killed, Serves, false, "Xid 69"),
        case("xid 94", One(|| xid(3, 94)), 1, Killed, Serves, false, "contained memory error"),
        case("xid 126", One(|| xid(3, 126)), 1, Killed, Serves, false, "copy engine"),
        case("xid 38", One(|| xid(3, 38)), 20, Left, Serves, false, "Xid 38"),
        case("xid 43", One(|| xid(3, 43)), 20, Left, Serves, false, "Xid 43"),
        case("xid 44", One(|| xid(3, 44)), 20, Left, Serves, false, "Xid 44"),
        case("xid 45", One(|| xid(3, 45)), 20, Left, Serves, false, "Xid 45"),
        case("xid 92", One(|| xid(3, 92)), 20, Left, Serves, false, "Xid 92"),
        case("xid 93", One(|| xid(3, 93)), 20, Left, Serves, false, "Xid 93"),
        case("xid 121", One(|| xid(3, 121)), 20, Left, Serves, false, "Xid 121"),
        case("xid 154", One(|| xid(3, 154)), 20, Left, Serves, false, "Xid 154"),
        case("an xid that nobody knows", One(|| xid(3, 9999)), 20, Left, Serves, false, "no rule has this number"),
        case("xid 63", One(|| xid(3, 63)), 20, Left, ResetWhenIdle, false, "it is reset when nobody has it"),
        case("xid 46", One(|| xid(3, 46)), 20, Requeued, Reset, false, "job 7 is requeued: Xid 46"),
        case("xid 48", One(|| xid(3, 48)), 20, Requeued, Reset, false, "double-bit ECC error"),
        case("xid 62", One(|| xid(3, 62)), 20, Requeued, Reset, false, "Xid 62"),
        case("xid 64", One(|| xid(3, 64)), 20, Left, Reset, false, "could not be remapped"),
        case("xid 74", One(|| xid(3, 74)), 20, Requeued, Reset, false, "NVLink error"),
        case("xid 95", One(|| xid(3, 95)), 20, Requeued, Reset, false, "uncontained memory error"),
        case("xid 109 once", One(|| xid(3, 109)), 20, Left, Serves, false, "1 of 2 within 3600 s"),
        case("xid 109 twice", Events(2, || xid(3, 109)), 20, Requeued, Reset, false, "2 times within 3600 s"),
        case("xid 110", One(|| xid(3, 110)), 20, Requeued, Reset, false, "security fault"),
        case("xid 119", One(|| xid(3, 119)), 20, Requeued, Reset, false, "did not answer in time"),
        case("xid 120", One(|| xid(3, 120)), 20, Requeued, Reset, false, "Xid 120"),
        case("xid 136", One(|| xid(3, 136)), 20, Requeued, Reset, false, "NVLink training failed"),
        case("xid 140", One(|| xid(3, 140)), 20, Requeued, Reset, false, "Xid 140"),
        case("xid 143", One(|| xid(3, 143)), 20, Requeued, Reset, false, "Xid 143"),
        case("xid 145", One(|| xid(3, 145)), 20, Left, Degraded, false, "jobs take other GPUs first"),
        case("xid 79", One(|| xid(3, 79)), 20, Requeued, Reboot, true, "fallen off the bus"),
        case("lost", One(|| Event::Lost { gpu: nth(3) }), 20, Requeued, Reboot, true, "the GPU is lost"),
        case("xid 160", One(|| xid(3, 160)), 20, Left, Reboot, false, "memory channel is retired"),
        case("recovery: reset", One(|| recovery(1)), 20, Requeued, Reset, false, "gpu-reset"),
        case("recovery: reboot", One(|| recovery(2)), 20, Requeued, Reboot, true, "node-reboot"),
        case("recovery: drain peer-to-peer", One(|| recovery(3)), 20, Left, Reset, false, "drain-p2p"),
        case("recovery: drain and reset", One(|| recovery(4)), 20, Left, Reset, false, "drain-and-reset"),
        case("recovery: in a sample", Shows(|s| s.recovery_action = Some(1)), 20, Requeued, Reset, false, "gpu-reset"),
        case("recovery: unknown", One(|| recovery(77)), 20, Left, Serves, false, "action that this gpuos does not know"),
        case("uncorrected ECC without an xid", Shows(|s| s.ecc_uncorrected = Some(1)), 20, Left, ResetWhenIdle, false, "uncorrected ECC errors"),
        case("corrected ECC errors", Grows(|s, t| s.ecc_corrected = Some(t * 200)), 20, Left, Degraded, false, "(threshold 1000)"),
        case("on-chip memory", Shows(|s| s.sram_threshold = Some(true)), 20, Left, Admin, false, "passed NVIDIA's threshold"),
        case("row pending", Shows(|s| s.rows_pending = Some(true)), 20, Left, ResetWhenIdle, false, "a row is remapped"),
        case("row failure", Shows(|s| s.rows_failed = Some(true)), 20, Left, Admin, false, "to be replaced"),
        case("spare rows", Shows(|s| s.banks = Some([600, 0, 0, 1, 0])), 20, Left, Degraded, false, "few or no spare rows"),
        case("page pending", Shows(|s| s.pages_pending = Some(true)), 20, Left, ResetWhenIdle, false, "a page is retired"),
        case("pages", Shows(|s| s.pages_double_bit = Some(63)), 20, Left, Admin, false, "63 (threshold 63)"),
        case("NVLink down", Shows(|s| s.nvlinks_down = 5), 40, Left, Degraded, false, "NVLinks are down: 2"),
        case("NVLink CRC errors", Grows(|s, t| s.nvlink_crc = Some(t * 1000)), 20, Left, Degraded, false, "CRC errors"),
        case("NVLink recoveries", Grows(|s, t| s.nvlink_recoveries = Some(t)), 20, Left, Degraded, false, "recoveries"),
        case("NVLink replays", Grows(|s, t| s.nvlink_replays = Some(t * 10)), 20, Left, Degraded, false, "replays"),
        case("PCIe replays", Grows(|s, t| s.pcie_replays = Some(t)), 20, Left, Degraded, false, "PCIe replays"),
        case("PCIe width", Shows(|s| s.pcie_width = Some(8)), 320, Left, Degraded, false, "PCIe lanes are missing: 8"),
        case("PCIe generation at work", Shows(|s| { s.pcie_generation = Some(3); s.busy_percent = Some(90); }), 320, Left, Degraded, false, "below its generation"),
        case("PCIe generation when idle", Shows(|s| s.pcie_generation = Some(1)), 320, Left, Serves, false, ""),
        case("heat", Shows(|s| s.clock_reasons = Some(0x40)), 80, Left, Degraded, false, "for heat"),
        case("nearly too hot", Shows(|s| s.celsius = Some(86)), 80, Left, Degraded, false, "5 below the slowdown"),
        case("power brake", Shows(|s| s.clock_reasons = Some(0x80)), 80, Left, Degraded, false, "power brake"),
        case("hang, not watched", Shows(|s| s.busy_percent = Some(0)), 700, Left, Serves, false, ""),
        case("network adapter", One(|| Event::Host(HostFault::NicLink { nic: "mlx5_3".into(), up: false, gpus: vec![nth(3)] })), 40, Left, Degraded, false, "mlx5_3"),
    ]
}

fn mend(world: &mut World) {
    world.samples[3] = sound();
    world.tell(Event::RecoveryAction {
        gpu: nth(3),
        action: RecoveryAction::None,
    });
    let nic = HostFault::NicLink {
        nic: "mlx5_3".into(),
        up: true,
        gpus: vec![nth(3)],
    };
    world.tell(Event::Host(nic));
}

#[test]
fn every_fault_hits_whom_it_must_and_all_returns() {
    let cases = cases();
    assert!(cases.len() >= 40, "{}", cases.len());
    for case in cases {
        let name = case.name;
        let mut world = World::new(8);
        world.touched.extend([3]);
        world.jobs = vec![job(7, &[3]), job(8, &[2, 4])];
        world.run(2);
        let mut grow = None;
        match case.fault {
            One(event) => world.tell(event()),
            Events(times, event) => {
                for _ in 0..times {
                    world.tell(event());
                    world.run(1);
                }
            }
            Shows(change) => change(&mut world.samples[3]),
            Grows(change) => grow = Some(change),
        }
        for second in 0..case.within {
            if let Some(change) = grow {
                change(&mut world.samples[3], second);
            }
            // Resets would come between: here the job's fate is looked at.
            world.run(1);
        }
        let story = world.story();
        assert!(story.contains(case.says), "{name}\n{story}");
        let fate = match (world.killed.as_slice(), world.requeued.as_slice()) {
            ([], []) => Job7::Left,
            ([(7, Some(0))], []) => Job7::Killed,
            ([], [(7, false)]) => Job7::Requeued,
            other => panic!("{name}: {other:?}\n{story}"),
        };
        assert_eq!(fate, case.job, "{name}\n{story}");
        assert_eq!(
            world.drained.is_some(),
            case.node_drained,
            "{name}\n{story}"
        );
        assert_eq!(world.node.state(nth(2)), GpuState::Allocated, "{name}");

        // The neighbours serve on; the GPU is what it should be.
        let state = world.node.state(nth(3));
        let degraded = matches!(case.gpu, Gpu3::Degraded | Gpu3::ResetWhenIdle);
        match case.gpu {
            _ if degraded => {
                assert_eq!(state, GpuState::Degraded, "{name}\n{story}");
                assert!(world.part.out.is_empty(), "{name}");
            }
            Gpu3::Serves => assert!(
                !state.is_out() && world.part.is_empty(),
                "{name}: {state:?}\n{story}"
            ),
            _ => {
                assert!(
                    world.states[&3].contains(&GpuState::Draining),
                    "{name}\n{story}"
                );
                let told = world
                    .published
                    .iter()
                    .any(|(_, part)| numbers(&part.out) == [3]);
                assert!(told, "{name}\n{story}");
            }
        }

        // The job ends, the trouble is mended, and the GPU comes back by the way that its rule says.
        world.jobs.retain(|job| job.job == 8.into());
        match case.gpu {
            Gpu3::Serves | Gpu3::Degraded => mend(&mut world),
            Gpu3::Reboot => {
                world.run(60);
                assert!(
                    world.reset.is_empty() && world.node.state(nth(3)) == GpuState::Drained,
                    "{name}\n{}",
                    world.story()
                );
                mend(&mut world);
                world.jobs.clear();
                world.tell(Event::Started { rebooted: true });
            }
            Gpu3::Admin => {
                world.run(60);
                assert_eq!(
                    world.node.state(nth(3)),
                    GpuState::Drained,
                    "{name}\n{}",
                    world.story()
                );
                mend(&mut world);
                world.run(2);
                world.tell(admin(Verb::Online, Some(3), false));
            }
            Gpu3::Reset | Gpu3::ResetWhenIdle => {}
        }
        world.run(150);
        if case.gpu == Gpu3::Serves || case.gpu == Gpu3::Degraded {
            // What is counted within an hour has to be over, and then calm.
            world.leap(2 * 3600);
        }
        world.run(30);
        let story = world.story();
        assert_eq!(
            world.node.state(nth(3)),
            GpuState::Available,
            "{name}\n{story}"
        );
        assert!(
            world.part.is_empty() && world.drained.is_none(),
            "{name}: {}\n{story}",
            world.part
        );
        let resets = usize::from(matches!(case.gpu, Gpu3::Reset | Gpu3::ResetWhenIdle));
        assert_eq!(world.reset.len(), resets, "{name}\n{story}");
        assert_eq!(
            world.killed.len() + world.requeued.len(),
            usize::from(case.job != Job7::Left),
            "{name}"
        );
    }
}

fn in_instance(code: u32, instance: u32) -> Event {
    Event::Xid {
        gpu: nth(0),
        code,
        gpu_instance: Some(instance),
        compute_instance: Some(0),
        pid: None,
    }
}

fn slices() -> Vec<Job> {
    let slice = |number, instance| Job {
        instances: vec![(nth(0), instance)],
        ..job(number, &[0])
    };
    vec![slice(1, 1), slice(2, 2)]
}

#[test]
fn an_error_in_one_mig_instance_leaves_the_others_alone() {
    let mut world = World::new(1);
    world.jobs = slices();
    world.run(1);
    world.tell(in_instance(94, 2));
    assert_eq!(world.killed, [(2, Some(0))]);
    world.tell(in_instance(13, 1));
    assert_eq!(world.killed.len(), 2);

    // These take the whole GPU, whatever instance they name.
    for code in [48, 79, 95, 119] {
        let mut world = World::new(1);
        world.jobs = slices();
        world.run(1);
        world.tell(in_instance(code, 2));
        world.run(20);
        assert_eq!(world.requeued, [(1, false), (2, false)], "Xid {code}");
    }

    // Nobody knows whose instance 5 is: nobody is killed for it.
    let mut world = World::new(1);
    world.jobs = slices();
    world.run(1);
    world.tell(in_instance(13, 5));
    world.run(5);
    assert!(world.killed.is_empty());
}

#[test]
fn only_the_step_whose_process_is_named_is_killed() {
    let mut world = World::new(1);
    let second = Job {
        step: Some(1),
        pids: vec![99],
        ..job(7, &[0])
    };
    world.jobs = vec![job(7, &[0]), second];
    world.run(1);
    world.tell(Event::Xid {
        gpu: nth(0),
        code: 31,
        gpu_instance: None,
        compute_instance: None,
        pid: Some(99),
    });
    assert_eq!(world.killed, [(7, Some(1))]);
}

#[test]
fn a_programs_fault_on_a_gpu_that_jobs_share_is_nobody_elses() {
    let of = |pid| Event::Xid {
        gpu: nth(0),
        code: 31,
        gpu_instance: None,
        compute_instance: None,
        pid,
    };
    let both = || {
        let mut world = World::new(1);
        let second = Job {
            pids: vec![99],
            ..job(8, &[0])
        };
        world.jobs = vec![job(7, &[0]), second];
        world.run(1);
        world
    };
    let mut world = both();
    world.tell(of(None));
    assert_eq!(world.killed, []);
    world.tell(of(Some(99)));
    assert_eq!(world.killed, [(8, Some(0))]);
    // What takes the whole GPU takes all who have it.
    let mut world = both();
    world.tell(xid(0, 79));
    world.run(20);
    let mut requeued: Vec<u32> = world.requeued.iter().map(|(job, _)| *job).collect();
    requeued.sort_unstable();
    assert_eq!(requeued, [7, 8], "{}", world.story());
}

#[test]
fn a_job_that_may_not_be_requeued_loses_its_steps_on_the_gpu_only() {
    let mut world = World::new(2);
    let elsewhere = Job {
        step: Some(1),
        requeue: false,
        ..job(7, &[1])
    };
    let mut here = job(7, &[0]);
    here.requeue = false;
    world.jobs = vec![here, elsewhere];
    world.run(1);
    world.tell(xid(0, 48));
    world.run(20);
    assert_eq!(
        (world.killed.as_slice(), world.requeued.len()),
        (&[(7, Some(0))][..], 0)
    );
}

#[test]
fn a_stronger_word_decides() {
    // The counter that rises with a contained error does not reset the GPU.
    let mut world = World::new(1);
    world.run(1);
    world.samples[0].ecc_uncorrected = Some(1);
    world.poll();
    world.tell(xid(0, 94));
    world.run(30);
    assert_eq!(
        world.node.state(nth(0)),
        GpuState::Available,
        "{}",
        world.story()
    );

    // NVML asks for a reset after an Xid that needs a boot: a reset it is.
    let mut world = World::new(1);
    world.run(1);
    world.tell(xid(0, 160));
    world.tell(Event::RecoveryAction {
        gpu: nth(0),
        action: RecoveryAction::GpuReset,
    });
    world.run(60);
    assert_eq!(world.reset, [0]);
    assert_eq!(world.node.state(nth(0)), GpuState::Available);
}

#[test]
fn a_watched_job_that_does_not_compute_is_requeued() {
    let mut world = World::new(2);
    let mut watched = job(7, &[1]);
    watched.watch = true;
    world.jobs = vec![watched];
    world.touched.extend([1]);
    world.run(590);
    assert!(world.requeued.is_empty());
    world.run(60);
    assert_eq!(world.requeued, [(7, false)], "{}", world.story());
    world.run(60);
    assert_eq!(world.node.state(nth(1)), GpuState::Available);
    assert!(world.reset.is_empty());
}

#[test]
fn without_slurmctld_jobs_are_requeued_away_from_the_node_and_told_again() {
    let mut world = World::new(2);
    world.jobs = vec![job(7, &[1])];
    world.run(1);
    world.slurmctld = false;
    world.tell(xid(1, 48));
    world.run(600);
    assert!(world.requeued.is_empty() && world.reset.is_empty());
    assert_eq!(world.node.state(nth(1)), GpuState::Draining);
    world.slurmctld = true;
    world.run(100);
    assert_eq!(world.requeued.len(), 1, "{}", world.story());
    world.run(60);
    assert_eq!(world.node.state(nth(1)), GpuState::Available);
}

#[test]
fn a_gpu_that_alone_does_not_answer_gets_jobs_last_until_it_does() {
    let mut world = World::new(2);
    world.jobs = vec![job(7, &[1])];
    world.run(5);
    // A few polls that time out are nothing.
    world.silent.insert(1);
    world.run(20);
    world.silent.clear();
    world.run(60);
    assert_eq!(world.node.state(nth(1)), GpuState::Allocated);
    world.silent.insert(1);
    world.run(45);
    assert_eq!(
        world.node.state(nth(1)),
        GpuState::Degraded,
        "{}",
        world.story()
    );
    assert_eq!(numbers(&world.part.degraded), [1]);
    let story = world.story();
    assert!(
        story.contains("does not answer NVIDIA's library, and others do"),
        "{story}"
    );
    // Drained by somebody, it comes back only when it answers.
    world.jobs.clear();
    world.touched.insert(1);
    world.tell(admin(Verb::Drain, Some(1), false));
    world.run(30);
    world.tell(admin(Verb::Online, Some(1), false));
    world.run(120);
    assert!(world.node.state(nth(1)).is_out(), "{}", world.story());
    world.silent.clear();
    world.run(120);
    assert!(!world.node.state(nth(1)).is_out(), "{}", world.story());
    world.leap(3600);
    assert_eq!(
        world.node.state(nth(1)),
        GpuState::Available,
        "{}",
        world.story()
    );
    assert!(world.requeued.is_empty() && world.killed.is_empty() && world.drained.is_none());
}

#[test]
fn a_library_that_hangs_for_a_minute_harms_nobody_and_one_that_stays_away_drains_the_node() {
    let mut world = World::new(2);
    world.jobs = vec![job(7, &[1])];
    world.run(1);
    world.library = false;
    world.tell(Event::LibrarySilent);
    world.run(60);
    assert!(world.drained.is_none() && world.requeued.is_empty());
    world.tell(Event::LibraryBack);
    world.run(5);
    world.tell(Event::LibrarySilent);
    world.run(200);
    assert!(
        world
            .drained
            .as_deref()
            .unwrap()
            .contains("does not answer"),
        "{}",
        world.story()
    );
    assert!(world.requeued.is_empty() && world.killed.is_empty());
    world.tell(Event::LibraryBack);
    world.run(60);
    assert!(world.drained.is_none(), "{}", world.story());
}
