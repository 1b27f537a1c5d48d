//! MIG-switchable GPUs, which are in GRES `gpu` and in GRES `gpuos` under select/gpuos: nobody has one whole of which somebody else
//! has a slice; they change sides for jobs that wait, and forecasts know of both. On every release, with the same plugins.
//!
//! Allocations have no steps, so that slurmctld alone is seen.

use gpuos_lab::Suite;
use gpuos_model::gpuset::GpuSet;
use gpuos_tests::slices::{ask, start};
use gpuos_tests::{Cluster, Setup, per_suite, show};

per_suite!(they_change_sides, come_and_go);

/// GPU 5 is divided for good, 6 and 7 are MIG-switchable: 5 and 6 of GRES gpu, slices 8 to 23.
const POOL: u64 = 0b1110_0000;
const SWITCHABLE: [(u64, u64); 2] = [(1 << 5, 0xff << 8), (1 << 6, 0xff << 16)];
const FIXED: u64 = 0xff;
/// All of GRES gpu.
const WHOLE: u64 = 0x7f;
const HOUR: u32 = 3600;

fn cluster(name: &str, suite: &Suite, seconds: [u32; 2], shards: u32) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = 1.into();
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.mig = GpuSet(POOL);
    setup.spec.mig_switchable = GpuSet(0b1100_0000);
    setup.spec.mig_switch_seconds = seconds;
    setup.spec.job_submit = true;
    setup.spec.shards = shards;
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
    ]);
    setup.steered()
}

/// Has gpuos.toml say something else.
fn change(cluster: &Cluster, from: &str, to: &str) {
    let file = cluster.lab.dir().join("etc/gpuos.toml");
    let text = std::fs::read_to_string(&file).expect("the lab writes it");
    assert!(text.contains(from), "{text}");
    std::fs::write(&file, text.replace(from, to)).expect("writes");
    cluster.lab.reconfigure().expect("reconfigures");
    cluster.ready();
}

/// What a job has: GPUs, slices, and GPUs of which it has shards. Of `scontrol -d show job`, as
/// `GRES=gpu:h100:2(IDX:0-1),gpuos:h100-80gb:4(IDX:12-15)` and, since 23.11, `shard:1(0/2,1/2)`.
fn bits(text: &str) -> (u64, u64, u64) {
    let line = text.lines().find(|line| line.contains("CPU_IDs="));
    let of = |gres: &str| {
        let own = line.and_then(|line| line.split(&format!("{gres}:")).nth(1));
        let list = own.and_then(|own| own.split_once('(')?.1.split_once(')'));
        let list = list.map_or("", |(list, _)| list);
        let bits = match list.strip_prefix("IDX:") {
            Some(index) => show::indices(index),
            None => {
                let used = |part: &str| !part.starts_with("0/");
                let parts = list.split(',').filter(|part| !part.is_empty());
                parts
                    .enumerate()
                    .filter(|(_, part)| used(part))
                    .map(|(at, _)| at)
                    .collect()
            }
        };
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    };
    (of("gpu"), of("gpuos"), of("shard"))
}

/// GPUs and slices of a job.
fn held(cluster: &Cluster, job: u32) -> (u64, u64) {
    let (gpus, slices, _) = bits(&cluster.show(job));
    (gpus, slices)
}

/// Nobody has a GPU whole, or a shard of it, of which another job has a slice, and nobody has what another has.
fn check(cluster: &Cluster) {
    let text = cluster.run("scontrol", &["-d", "show", "job"]);
    let running = text
        .split("\n\n")
        .filter(|job| job.contains("JobState=RUNNING"));
    let all: Vec<(u64, u64, u64)> = running.map(bits).collect();
    for (nth, (gpus, slices, shared)) in all.iter().enumerate() {
        for (other, others) in all.iter().enumerate().filter(|(at, _)| *at != nth) {
            let twice = (gpus & (others.0 | others.2), slices & others.1);
            assert_eq!(twice, (0, 0), "{nth} {other} {text}");
            for (whole, cut) in SWITCHABLE {
                let both = (gpus | shared) & whole != 0 && others.1 & cut != 0;
                assert!(!both, "{nth} {other} {text}");
            }
        }
    }
}

/// A job waits, and squeue says so.
fn waits(cluster: &Cluster, job: u32, why: &str) {
    let id = job.to_string();
    cluster.until(&format!("squeue says that job {job} waits: {why}"), || {
        let text = cluster.run("squeue", &["-h", "-j", &id, "-o", "%T %r"]);
        assert!(text.starts_with("PENDING"), "{text}{}", cluster.show(job));
        text.contains(why).then_some(())
    });
}

/// A time of a job in seconds, by squeue's letter for it.
fn time(cluster: &Cluster, job: u32, letter: &str) -> Option<i64> {
    let id = job.to_string();
    let text = cluster.run("squeue", &["-h", "-j", &id, "-o", letter]);
    let seconds = cluster.try_run("date", &["-d", text.trim(), "+%s"]).ok()?;
    seconds.trim().parse().ok()
}

/// Backfill foresees a start of a job that waits, and not before another one ends.
fn foreseen_after(cluster: &Cluster, job: u32, holder: u32) {
    let start = cluster.until("backfill has foreseen a start", || time(cluster, job, "%S"));
    let end = time(cluster, holder, "%e").expect("it has an end");
    assert!(start >= end, "{start} {end} {}", cluster.show(job));
    assert!(start < end + 1800, "{start} {end} {}", cluster.show(job));
}

fn they_change_sides(suite: &Suite) {
    // A job waits long enough to be seen on a busy machine.
    let Some(mut cluster) = cluster("sides", suite, [20, HOUR], 0) else {
        return;
    };
    // At the start all MIG-switchable ones are whole: a job with slices waits its time for one.
    let fixed = start(&cluster, "fixed", "--gpuos-mig=7g.80gb");
    assert_eq!(held(&cluster, fixed), (0, FIXED));
    let moved = ask(&cluster, "moved", "--gpuos-mig=7g.80gb --time=60");
    waits(&cluster, moved, "served jobs with whole GPUs last");
    cluster.wait(moved, &["RUNNING"]);
    let (_, slices) = held(&cluster, moved);
    assert!(
        SWITCHABLE.iter().any(|(_, cut)| *cut == slices),
        "{slices:x}"
    );
    let seconds = |letter| time(&cluster, moved, letter).expect("a time");
    assert!(
        seconds("%S") >= seconds("%V") + 20,
        "{}",
        cluster.show(moved)
    );
    // A job for all GPUs has them when the slices are given back.
    let all = ask(&cluster, "all", "--gres=gpu:7 --time=60");
    foreseen_after(&cluster, all, moved);
    check(&cluster);
    // The GPU is given back, and stays with its kind for the hour; another job with slices has it at once.
    cluster.cancel(&[moved]);
    waits(&cluster, all, "served jobs with slices last");
    // Also where the select plugin is told to begin anew; since 23.11 scontrol reconfigure is another process.
    cluster.run("scontrol", &["setdebugflags", "+agent"]);
    let again = start(&cluster, "again", "--gpuos-mig=3g.40gb --time=5");
    let cut = held(&cluster, again).1;
    assert_eq!(
        (cut.count_ones(), cut & slices),
        (4, cut),
        "{cut:x} {slices:x}"
    );
    cluster.cancel(&[again]);
    change(
        &cluster,
        "switch-after = \"20s\"\nswitch-hold = \"3600s\"",
        "switch-after = \"3s\"\nswitch-hold = \"0s\"",
    );
    cluster.wait(all, &["RUNNING"]);
    assert_eq!(held(&cluster, all), (WHOLE, 0));
    // Slices of a GPU that somebody has whole come back when he ends.
    let later = ask(&cluster, "later", "--gpuos-mig=7g.80gb --time=600");
    cluster.cancel(&[fixed]);
    cluster.wait(later, &["RUNNING"]);
    let next = ask(&cluster, "next", "--gpuos-mig=7g.80gb --time=5");
    foreseen_after(&cluster, next, all);
    check(&cluster);
    cluster.drained();
    both_kinds(&cluster);
    nobody_has_to_go(&cluster);
    nobody_knows_yet(&cluster);
    out_of_service(&cluster);
    cluster.expects_errors = true;
    mistakes(&cluster);
}

/// Jobs that have whole GPUs and slices.
fn both_kinds(cluster: &Cluster) {
    // One job has no MIG-switchable GPU whole beside slices, for the slices might be its own.
    let both = start(cluster, "both", "--gres=gpu:5 --gpuos-mig=7g.80gb:2");
    let (gpus, slices) = held(cluster, both);
    assert_eq!((gpus, slices.count_ones()), (0x1f, 16), "{slices:x}");
    let more = ask(cluster, "more", "--gres=gpu:1 --gpuos-mig=1g.10gb");
    waits(cluster, more, "");
    check(cluster);
    cluster.cancel(&[both, more]);
    let never = ask(cluster, "never", "--gres=gpu:6 --gpuos-mig=1g.10gb");
    waits(cluster, never, "gets no MIG-switchable GPU as a whole");
    cluster.cancel(&[never]);
    // Who takes the whole node has all of both.
    let node = start(cluster, "node", "--exclusive --time=60");
    assert_eq!(held(cluster, node), (WHOLE, 0xff_ffff));
    let one = ask(cluster, "one", "--gres=gpu:1 --time=10");
    foreseen_after(cluster, one, node);
    cluster.cancel(&[node]);
    cluster.wait(one, &["RUNNING"]);
    let node = ask(cluster, "nodes", "--exclusive --time=1");
    foreseen_after(cluster, node, one);
    cluster.drained();
}

/// Nobody is preempted where a MIG-switchable GPU is idle, whatever it served last.
fn nobody_has_to_go(cluster: &Cluster) {
    let cut = start(cluster, "cutall", "--gpuos-mig=7g.80gb:3");
    cluster.cancel(&[cut]);
    let low = start(cluster, "low", "--gres=gpu:5");
    let high = start(cluster, "high", "-p high --gres=gpu:1");
    let (gpus, _) = held(cluster, high);
    assert!(
        SWITCHABLE.iter().any(|(whole, _)| *whole == gpus),
        "{gpus:x}"
    );
    let state = cluster.lab.job_state(low).expect("known");
    assert_eq!(state, "RUNNING");
    // Where they are not enough somebody is.
    let more = start(cluster, "highs", "-p high --gres=gpu:6");
    assert_eq!(held(cluster, more).0, WHOLE & !gpus);
    cluster.cancel(&[low, high, more]);
    cluster.drained();
}

/// After a restart nothing is given before it is known what runs.
fn nobody_knows_yet(cluster: &Cluster) {
    let cut = start(cluster, "cut", "--gpuos-mig=7g.80gb:2");
    let whole = start(cluster, "whole", "--gres=gpu:6");
    let before = [cut, whole].map(|job| held(cluster, job));
    let rest = ask(cluster, "rest", "--gres=gpu:1");
    let slice = ask(cluster, "slice", "--gpuos-mig=1g.10gb");
    cluster.crash(cut);
    assert_eq!([cut, whole].map(|job| held(cluster, job)), before);
    let third = ask(cluster, "third", "--gpuos=off --gres=gpuos:2");
    for job in [rest, slice, third] {
        waits(cluster, job, "");
    }
    check(cluster);
    cluster.cancel(&[cut]);
    cluster.wait(slice, &["RUNNING"]);
    check(cluster);
    cluster.drained();
}

/// A MIG-switchable GPU is known by its number in GRES gpu: out of service, it gives no slices either.
fn out_of_service(cluster: &Cluster) {
    let out = "Extra=[gpuos:1 out=5]";
    cluster.run("scontrol", &["update", "NodeName=n1", out]);
    let sound = start(cluster, "sound", "--gpuos-mig=7g.80gb:2");
    assert_eq!(held(cluster, sound), (0, FIXED | SWITCHABLE[1].1));
    let third = ask(cluster, "outs", "--gpuos-mig=1g.10gb");
    waits(cluster, third, "whole placements");
    let gpus = start(cluster, "gpus", "--gres=gpu:5");
    let sixth = ask(cluster, "sixth", "--gres=gpu:1");
    waits(cluster, sixth, "out of service");
    assert_eq!(held(cluster, gpus), (0x1f, 0));
    cluster.run("scontrol", &["update", "NodeName=n1", "Extra="]);
    cluster.wait(third, &["RUNNING"]);
    check(cluster);
    cluster.drained();
}

/// Where gpuos.toml does not fit, slices are given to nobody, and GPUs only where no slices are in use.
fn mistakes(cluster: &Cluster) {
    let cut = start(cluster, "cuts", "--gpuos-mig=7g.80gb:2");
    change(cluster, "gpus = \"5-7\"", "gpus = \"4-7\"");
    let whole = ask(cluster, "gpu", "--gres=gpu:1");
    let slice = ask(cluster, "sliced", "--gres=gpuos:1 --gpuos=off");
    cluster.until("the log says so", || {
        let log = cluster.lab.slurmctld_log();
        log.contains("n1: its GPUs are not switched").then_some(())
    });
    for job in [whole, slice] {
        waits(cluster, job, "");
    }
    cluster.cancel(&[cut]);
    cluster.wait(whole, &["RUNNING"]);
    waits(cluster, slice, "");
    change(cluster, "gpus = \"4-7\"", "gpus = \"5-7\"");
    cluster.wait(slice, &["RUNNING"]);
    check(cluster);
    cluster.drained();
    change(cluster, "\"leave\"", "\"let\"");
    let slices = ask(cluster, "slices", "--gres=gpuos:1");
    // Backfill has come past the other one.
    let another = start(cluster, "another", "--gres=gpu:1");
    waits(cluster, slices, "");
    change(cluster, "\"let\"", "\"leave\"");
    cluster.wait(slices, &["RUNNING"]);
    check(cluster);
    // job_submit has complained of the file, which is no wonder: no `drained` from here on.
    cluster.cancel(&[slices, another]);
    without_gpuos_toml(cluster);
}

/// From a start without a gpuos.toml that can be read nobody knows which GPUs are MIG-switchable: none is given beside slices.
fn without_gpuos_toml(cluster: &Cluster) {
    let cut = start(cluster, "kept", "--gpuos-mig=7g.80gb:2");
    let file = cluster.lab.dir().join("etc/gpuos.toml");
    let sound = std::fs::read_to_string(&file).expect("it is there");
    for broken in [Some("[mig"), None] {
        match broken {
            Some(text) => std::fs::write(&file, text).expect("writes"),
            None => std::fs::remove_file(&file).expect("removes"),
        }
        cluster.crash(cut);
        let said = || {
            let log = cluster.lab.slurmctld_log();
            log.matches("nobody knows which of its GPUs").count()
        };
        let before = said();
        let whole = ask(cluster, "blind", "--gres=gpu:1");
        cluster.until("the log says so", || (said() > before).then_some(()));
        waits(cluster, whole, "");
        std::fs::write(&file, &sound).expect("writes");
        cluster.lab.reconfigure().expect("reconfigures");
        cluster.ready();
        cluster.wait(whole, &["RUNNING"]);
        check(cluster);
        cluster.cancel(&[whole]);
    }
    cluster.cancel(&[cut]);
}

/// Jobs of both kinds come and go at random, under gpuos and past it.
fn come_and_go(suite: &Suite) {
    let Some(cluster) = cluster("switchable", suite, [0, 0], 2) else {
        return;
    };
    let requests = [
        "--gres=gpu:1",
        "--gres=gpu:2",
        "--gres=shard:1",
        "--gres=shard:2",
        "--gres=gpu:6",
        "--gres=gpu:h100:3 --gpuos=off",
        "--gpus=2",
        "--gpuos-mig=7g.80gb",
        "--gpuos-mig=3g.40gb",
        "--gpuos-mig=1g.10gb:3",
        "--gres=gpuos:8 --gpuos=off",
        "--gres=gpu:1 --gpuos-mig=2g.20gb",
        "--exclusive",
    ];
    let mut seed = 7u64;
    let mut random = |limit: usize| {
        seed = seed
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) as usize % limit
    };
    let mut jobs = Vec::new();
    for round in 0..40 {
        // job_submit refuses instances where gpuos does not steer.
        let steers = !(11..=25).contains(&round);
        let request = requests[random(requests.len())];
        let request = match request.contains("mig") && !steers {
            true => "--gres=gpuos:4",
            false => request,
        };
        jobs.push(ask(&cluster, &format!("job{round}"), request));
        check(&cluster);
        if round % 3 > 0 && jobs.len() > 4 {
            cluster.cancel(&[jobs.swap_remove(random(jobs.len()))]);
            check(&cluster);
        }
        match round {
            // What is given twice is for gpuos to hinder there too.
            10 => change(&cluster, "[mig]\n", "[slurm]\nsteer = false\n[mig]\n"),
            20 => cluster.crash(jobs[0]),
            25 => change(&cluster, "steer = false", "steer = true"),
            _ => {}
        }
    }
    // One after the other all of them run.
    while !jobs.is_empty() {
        let running = |job: &u32| bits(&cluster.show(*job)) != (0, 0, 0);
        let at = cluster.until("one of them runs", || jobs.iter().position(running));
        check(&cluster);
        cluster.cancel(&[jobs.remove(at)]);
    }
    cluster.drained();
}
