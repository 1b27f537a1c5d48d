//! `--gpuos-mig` from the command line to the instance, in real Slurm clusters: what is asked becomes slices of GRES
//! gpuos, gpuosd makes the instances before a program runs, and nobody gets those of another.

use std::collections::BTreeMap;

use gpuos_lab::{Suite, field};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::slices::{SLICES, bits, check, held, instances, nvml, owners, pool, told};
use gpuos_tests::{Cluster, measured_runs, per_suite};

per_suite!(
    a_gpu_is_filled_exactly,
    each_task_has_its_own,
    nobody_gets_the_slices_of_another,
    what_cannot_be_made_is_said,
    jobs_come_and_go,
);

/// Waits until a job has written all; what it wrote.
fn output(cluster: &Cluster, job: u32) -> String {
    let text = cluster.lab.wait_output(job, "end=", LIMIT);
    text.unwrap_or_else(|error| panic!("{error}{}", cluster.report("gpuos")))
}

fn no_node_is_drained(cluster: &Cluster) {
    let text = cluster.run("scontrol", &["-o", "show", "node"]);
    assert!(!text.contains("DRAIN") && !text.contains("DOWN"), "{text}");
}

/// Ends all jobs; then the driver has no instance.
fn nothing_is_left(cluster: &Cluster) {
    cluster.drained();
    for node in cluster.lab.spec().node_names() {
        cluster.until(&format!("no instance on {node}"), || {
            instances(cluster, &node).is_empty().then_some(())
        });
    }
    no_node_is_drained(cluster);
}

/// What a job of the tests writes: its devices, in its script and in a step.
const SHOW: &str = "echo batch=$CUDA_VISIBLE_DEVICES; \
     srun -n1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES; echo profiles=$GPUOS_MIG_PROFILES; echo placements=$GPUOS_MIG_PLACEMENTS'; \
     echo end=1; sleep 600";

fn a_gpu_is_filled_exactly(suite: &Suite) {
    let Some(cluster) = pool("mig-fill", suite, 1, 1 << 7).steered() else {
        return;
    };
    let rounds: [&[&str]; 3] = [
        &["1g.10gb"; 7],
        &["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"],
        &["7g.80gb"],
    ];
    for round in rounds {
        let mut jobs = Vec::new();
        let mut uuids = Vec::new();
        for profile in round {
            let option = format!("--gpuos-mig={profile}");
            let job = cluster.sbatch(&[&option], SHOW);
            let text = output(&cluster, job);
            let own = told(&text, "step");
            assert!(own.starts_with("MIG-") && !own.contains(','), "{text}");
            assert_eq!(told(&text, "batch"), own, "{text}");
            assert_eq!(told(&text, "profiles"), *profile, "{text}");
            assert!(told(&text, "placements").starts_with("7:"), "{text}");
            uuids.push(own);
            jobs.push(job);
            check(&cluster, &[7]);
        }
        let mut shown: Vec<String> = instances(&cluster, "n1")
            .into_iter()
            .filter_map(|i| i.uuid)
            .collect();
        shown.sort_unstable();
        uuids.sort_unstable();
        assert_eq!(shown, uuids, "{round:?}");
        // The GPU is full: one more waits.
        let more = cluster.sbatch(&["--gpuos-mig=1g.10gb"], "true");
        cluster.until("a reason to wait", || {
            let text = cluster.show(more);
            let reason = field(&text, "Reason").unwrap_or_default();
            let words = ["Resources", "Priority", "gpuos:"];
            words.iter().any(|word| reason.contains(word)).then_some(())
        });
        check(&cluster, &[7]);
        cluster.cancel(&[more]);
        cluster.cancel(&jobs);
        nothing_is_left(&cluster);
    }
}

fn each_task_has_its_own(suite: &Suite) {
    let Some(cluster) = pool("mig-tasks", suite, 2, 0b1100_0000).steered() else {
        return;
    };
    let script = "echo batch=$CUDA_VISIBLE_DEVICES; srun sh -c 'echo task$SLURM_PROCID=$CUDA_VISIBLE_DEVICES:$GPUOS_MIG_UUIDS'; \
         srun -n1 -N1 --gres=none sh -c 'echo none=${CUDA_VISIBLE_DEVICES-unset}:${GPUOS_MIG_UUIDS-unset}'; echo end=1; sleep 600";
    let options = [
        "-N2",
        "--ntasks-per-node=2",
        "--gpuos-mig=1g.10gb,2g.20gb:per-task",
    ];
    let job = cluster.sbatch(&options, script);
    let text = output(&cluster, job);
    let mut all = Vec::new();
    for task in 0..4 {
        let (devices, uuids) = {
            let line = told(&text, &format!("task{task}"));
            let (a, b) = line.split_once(':').expect("two lists");
            (a.to_owned(), b.to_owned())
        };
        assert_eq!(devices, uuids, "{text}");
        let own: Vec<String> = devices.split(',').map(String::from).collect();
        assert_eq!(own.len(), 2, "{text}");
        all.extend(own);
    }
    all.sort_unstable();
    let mut shown = Vec::new();
    for node in ["n1", "n2"] {
        shown.extend(
            instances(&cluster, node)
                .into_iter()
                .filter_map(|one| one.uuid),
        );
    }
    shown.sort_unstable();
    assert_eq!(all, shown, "{text}");
    assert_eq!(told(&text, "batch").split(',').count(), 4, "{text}");
    assert_eq!(told(&text, "none"), "unset:unset", "{text}");
    check(&cluster, &[6, 7]);
    cluster.cancel(&[job]);
    // Without a script, and beside a whole GPU.
    let show = "echo $CUDA_VISIBLE_DEVICES";
    let text = cluster.run("srun", &["-n1", "--gpuos-mig=1g.10gb", "sh", "-c", show]);
    assert!(text.starts_with("MIG-"), "{text}");
    let script = "srun -n1 sh -c 'echo both=$CUDA_VISIBLE_DEVICES:$GPUOS_MIG_UUIDS'; echo end=1";
    let both = cluster.sbatch(&["--gres=gpu:1", "--gpuos-mig=1g.10gb"], script);
    let text = told(&output(&cluster, both), "both");
    let whole = text
        .split_once(":MIG-")
        .map(|(whole, _)| whole.parse::<u8>());
    assert!(whole.is_some_and(|whole| whole.is_ok()), "{text}");
    // srun alone asks for its step what it asks for its job; whether that has what job_submit adds is the release's.
    let show_list = "echo uuids=$GPUOS_MIG_UUIDS";
    let alone = ["-n1", "--gres=gpu:1", "--gpuos-mig=1g.10gb", "sh", "-c"];
    match cluster.try_run("srun", &[&alone[..], &[show_list]].concat()) {
        Ok(text) => assert!(text.starts_with("uuids=MIG-"), "{text}"),
        Err(why) => assert!(
            why.contains("Slurm gave no slices") && !why.contains("uuids="),
            "{why}"
        ),
    }
    let text = cluster.run(
        "salloc",
        &["--gpuos-mig=1g.10gb", "srun", "-n1", "sh", "-c", show],
    );
    assert!(text.contains("MIG-"), "{text}");
    one_gpu_fails(&cluster);
    nothing_is_left(&cluster);
}

/// Two jobs on a node with a GPU each; one GPU fails. Its job comes back elsewhere, the other one works on.
fn one_gpu_fails(cluster: &Cluster) {
    let begin = |options: &[&str]| {
        let all = [&["--requeue", "--gpuos-mig=7g.80gb"], options].concat();
        let job = cluster.sbatch(&all, "echo end=1; sleep 600");
        output(cluster, job);
        let (node, bits) = bits(cluster, job).pop_first().expect("a node");
        (job, node, 6 + bits[0] / SLICES)
    };
    let (broken, node, on) = begin(&[]);
    let (sound, ..) = begin(&["-w", &node]);
    let gpu = format!("gpu{on}");
    let told = cluster.lab.fault(&node, &gpu, &["xid", "48"]);
    told.expect("gpuos-nvml knows it");
    let restarts = |job| field(&cluster.show(job), "Restarts")?.parse::<u32>().ok();
    cluster.until("the job is requeued", || {
        restarts(broken).filter(|restarts| *restarts > 0).map(drop)
    });
    let text = cluster.run("scontrol", &["-o", "show", "node", &node]);
    assert!(text.contains(&format!("mig-out={on}]")), "{text}");
    cluster.wait(broken, &["RUNNING"]);
    assert!(!bits(cluster, broken).contains_key(&node));
    assert_eq!(restarts(sound), Some(0));
    cluster.wait(sound, &["RUNNING"]);
    no_node_is_drained(cluster);
    cluster.cancel(&[broken, sound]);
}

fn nobody_gets_the_slices_of_another(suite: &Suite) {
    let Some(cluster) = pool("mig-forge", suite, 1, 1 << 7).steered() else {
        return;
    };
    let owner = cluster.sbatch(&["--gpuos-mig=3g.40gb"], SHOW);
    let stolen = told(&output(&cluster, owner), "step");
    let bits = bits(&cluster, owner)["n1"].clone();
    let bits: Vec<String> = bits.iter().map(usize::to_string).collect();
    let forged = format!(
        "GPUOS_SLICES={0} GPUOS_JOB_MIG=3g.40gb GPUOS_MIG_UUIDS={stolen} _SLURM_SPANK_OPTION_gpuos_gpuos_mig=3g.40gb \
         SLURM_SPANK__SLURM_SPANK_OPTION_gpuos_gpuos_mig=3g.40gb SPANK_GPUOS_SLICES={0}",
        bits.join(",")
    );
    let script = format!(
        "echo batch=$CUDA_VISIBLE_DEVICES; env {forged} srun -n1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES; \
         echo uuids=$GPUOS_MIG_UUIDS; echo slices=$GPUOS_SLICES'; echo end=1; sleep 600"
    );
    let forge = |options: &[&str]| {
        let file = cluster.script("forge", &script);
        let work = cluster.lab.dir().join("work");
        let (out, dir) = (
            format!("--output={}/%A.out", work.display()),
            format!("--chdir={}", work.display()),
        );
        let mut args: Vec<&str> = forged.split_whitespace().collect();
        args.extend(["sbatch", "--parsable", &out, &dir]);
        args.extend(options);
        args.push(&file);
        let out = cluster.output("env", &args).expect("sbatch runs");
        let id = String::from_utf8_lossy(&out.stdout).trim().parse();
        let job = id.unwrap_or_else(|_| panic!("{out:?}"));
        (job, output(&cluster, job))
    };
    // A job without slices, and one with a slice of its own.
    let (plain, text) = forge(&["--gres=gpu:1"]);
    let whole = told(&text, "batch");
    assert!(whole.parse::<u8>().is_ok(), "{text}");
    assert_eq!(
        [told(&text, "step"), told(&text, "slices")],
        [whole, String::new()],
        "{text}"
    );
    let (own, text) = forge(&["--gpuos-mig=1g.10gb"]);
    let device = told(&text, "step");
    assert!(device.starts_with("MIG-") && device != stolen, "{text}");
    assert_eq!(told(&text, "batch"), device, "{text}");
    assert_eq!(told(&text, "uuids"), device, "{text}");
    check(&cluster, &[7]);
    cluster.cancel(&[plain, own, owner]);
    nothing_is_left(&cluster);
}

fn what_cannot_be_made_is_said(suite: &Suite) {
    let Some(cluster) = pool("mig-fail", suite, 1, 1 << 7).steered() else {
        return;
    };
    // Somebody has made an instance by hand, and it is left.
    nvml(&cluster, "n1", &["carve", "gpu7", "9", "0"]);
    let options = ["--gpuos-mig=7g.80gb", "--requeue", "--open-mode=append"];
    let job = cluster.sbatch(&options, "echo end=never");
    cluster.until("the job is requeued", || {
        let restarts = field(&cluster.show(job), "Restarts")?.parse::<u32>().ok()?;
        (restarts > 0).then_some(())
    });
    let text = cluster.lab.job_output(job);
    assert!(
        text.contains("gpuos:") && !text.contains("end=never"),
        "{text}"
    );
    cluster.cancel(&[job]);
    assert_eq!(instances(&cluster, "n1").len(), 1);
    no_node_is_drained(&cluster);
    // No gpuosd: the program does not run, and the node stays in service.
    cluster.lab.kill_gpuosd("n1", 9).expect("it ran");
    let job = cluster.sbatch(&["--gpuos-mig=1g.10gb", "--no-requeue"], "echo end=never");
    cluster.wait(job, &["FAILED"]);
    let text = cluster.lab.job_output(job);
    assert!(
        text.contains("no gpuosd listens on this node") && !text.contains("end=never"),
        "{text}"
    );
    assert!(cluster.show(job).contains("ExitCode=1:0"));
    no_node_is_drained(&cluster);
    cluster.lab.start_gpuosd("n1").expect("it starts");
    cluster.drained();
}

/// The next of a row of numbers that looks random and is the same each time.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn jobs_come_and_go(suite: &Suite) {
    if let Some(cluster) = pool("mig-churn", suite, 2, 0b1100_0000).steered() {
        churn(&cluster, 4, 10);
    }
}

/// Thousands of jobs that come and go; by `scripts/mig-soak.sh`.
#[test]
fn soak() {
    const ROUND: usize = 50;
    let Some(jobs) = measured_runs("GPUOS_MIG_SOAK_JOBS", "scripts/mig-soak.sh") else {
        return;
    };
    if let Some(cluster) = pool("mig-soak", &Suite::Native, 4, 0b1111_0000).steered() {
        churn(&cluster, jobs.div_ceil(ROUND), ROUND);
    }
}

/// Random jobs in rounds: some are cancelled, some fail, some are requeued while they run. No slice is two jobs', no
/// instance is given twice, and after each round none is left.
fn churn(cluster: &Cluster, rounds: usize, each: usize) {
    let wants = [
        "1g.10gb",
        "1g.10gb:2",
        "2g.20gb",
        "3g.40gb",
        "1g.10gb,3g.40gb",
        "7g.80gb",
        "10G",
        "1/2",
    ];
    let mut seed = 20_261_122;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..rounds {
        let mut jobs = Vec::new();
        let mut requeued = std::collections::BTreeSet::new();
        for _ in 0..each {
            let want = wants[next(&mut seed) as usize % wants.len()];
            let option = format!("--gpuos-mig={want}");
            let code = if next(&mut seed).is_multiple_of(8) {
                3
            } else {
                0
            };
            let sleep = next(&mut seed) % 10;
            let script = format!("{SHOW_STEP} sleep 0.{sleep}; exit {code}");
            jobs.push((cluster.sbatch(&[&option], &script), code));
            let one = jobs[next(&mut seed) as usize % jobs.len()].0.to_string();
            // It may be over already.
            if next(&mut seed).is_multiple_of(5) {
                let _ = cluster.try_run("scancel", &[&one]);
            }
        }
        for _ in 0..each / 8 {
            let running = cluster.until("jobs run, or are over", || {
                let running = held(cluster);
                // Those that were requeued wait for minutes.
                let left = cluster.run("squeue", &["-h", "-o", "%A"]);
                let held_back = |id: &str| id.trim().parse().is_ok_and(|id| requeued.contains(&id));
                let over = left.lines().all(held_back);
                (over || !running.is_empty()).then_some(running)
            });
            owners(&running);
            let one = running
                .keys()
                .nth(next(&mut seed) as usize % running.len().max(1));
            if let Some((job, _)) = one {
                let again = cluster.try_run("scontrol", &["requeue", &job.to_string()]);
                if again.is_ok() {
                    requeued.insert(*job);
                }
            }
        }
        *counts.entry("requeued".into()).or_default() += requeued.len();
        for &(job, code) in &jobs {
            let state = cluster.until("the job is over", || {
                let state = cluster.lab.job_state(job).ok()?;
                // Slurm holds a requeued job back for a while.
                if state == "PENDING" {
                    let id = format!("JobId={job}");
                    let _ = cluster.try_run("scontrol", &["update", &id, "StartTime=now"]);
                }
                ["COMPLETED", "CANCELLED", "FAILED"]
                    .contains(&&*state)
                    .then_some(state)
            });
            let text = cluster.lab.job_output(job);
            // Slurm takes a script that ends while it is being requeued for one that failed.
            assert!(
                state != "FAILED" || code == 3 || requeued.contains(&job),
                "job {job} is {state}: {text}{}",
                cluster.report("gpuos")
            );
            if state != "CANCELLED" && !(state == "FAILED" && requeued.contains(&job)) {
                // An instance is made for one run of one job and goes with it.
                for uuid in told(&text, "step").split(',') {
                    assert!(
                        uuid.starts_with("MIG-") && seen.insert(uuid.to_owned()),
                        "job {job}: {text}"
                    );
                }
            }
            *counts.entry(state).or_default() += 1;
        }
        for node in cluster.lab.spec().node_names() {
            cluster.until(
                &format!("no instance on {node} after round {round}"),
                || instances(cluster, &node).is_empty().then_some(()),
            );
        }
    }
    println!(
        "slices, Slurm {}, {} jobs: {counts:?}, {} instances",
        cluster.lab.version(),
        rounds * each,
        seen.len()
    );
    nothing_is_left(cluster);
}

/// A step that writes its devices.
const SHOW_STEP: &str = "srun -n1 sh -c 'echo step=$CUDA_VISIBLE_DEVICES';";

/// How long it takes from srun to the first line of its program, on a whole GPU and on a slice in turns; by
/// `scripts/mig-start.sh`. The simulated driver takes no time to make an instance.
#[test]
fn first_line() {
    let Some(runs) = measured_runs("GPUOS_MIG_START_RUNS", "scripts/mig-start.sh") else {
        return;
    };
    let Some(cluster) = pool("migstart", &Suite::Native, 4, 0b1111_0000).steered() else {
        return;
    };
    let took = |option: &str| {
        let before = gpuos_tests::ledger::now();
        let line = cluster.run("srun", &["-Q", option, "date", "+%s%N"]);
        let line: u128 = line.trim().parse().expect("nanoseconds");
        line.saturating_sub(before) as f64 / 1e6
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        times[0].push(took("--gres=gpu:1"));
        times[1].push(took("--gpuos-mig=1g.10gb"));
    }
    for (what, times) in ["a whole GPU", "a slice"].into_iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).max(1) - 1];
        println!(
            "first line, Slurm {}, {runs} runs on {what}: median {:.0} ms, p95 {:.0} ms, longest {:.0} ms",
            cluster.lab.version(),
            at(0.5),
            at(0.95),
            at(1.0)
        );
    }
    cluster.drained();
}
