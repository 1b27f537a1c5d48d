//! `--gpuos-share` in real Slurm clusters: what is asked becomes shards, jobs share GPUs, and whole GPUs are nobody else's.

use std::collections::BTreeMap;
use std::path::Path;

use gpuos_core::health::Verb;
use gpuos_core::wire::Request;
use gpuos_host::slurm::Job;
use gpuos_host::socket::{Client, NAME};
use gpuos_lab::{Suite, field};
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, MPS_CONTROL, Setup, per_suite, program, show};

per_suite!(
    gpus_are_shared_as_asked,
    shares_keep_off_whole_gpus_with_other_cores
);

fn requests_become_shards(cluster: &Cluster) {
    let (job, said) = cluster
        .submit_held(&["--gpuos-share=timeslice:2"])
        .expect("it is taken");
    let shown = cluster.show(job);
    let asks = field(&shown, "TresPerNode").unwrap_or_default();
    assert_eq!(asks.replace("gres:", "gres/"), "gres/shard:2");
    assert!(
        said.contains("gpuos: --gpuos-share=timeslice:2: 2 of the 4 shards of a GPU on each node; memory: no limit"),
        "{said}"
    );
    // They cannot be taken from it.
    let id = format!("JobId={job}");
    let said = cluster.try_run("scontrol", &["update", &id, "Gres=gpu:1"]);
    assert!(said.is_err(), "{said:?}");
    cluster.run("scancel", &[&job.to_string()]);
    for (args, why) in [
        (
            &["--gpuos-share=timeslice:5"][..],
            "has 4 shards at most; write timeslice:4 or less",
        ),
        (&["--gpuos-share=half"], "write timeslice, timeslice:N"),
        (
            &["--gpuos-share=timeslice", "--gres=gpu:1"],
            "GRES gpu, for Slurm gives a job whole GPUs or parts",
        ),
        (
            &["--gpuos-share=timeslice", "--gpus=2"],
            "it does not go with GRES gpu",
        ),
        (
            &["--gpuos-share=timeslice", "--gres=shard:1"],
            "GRES shard, which it stands for",
        ),
        (
            &["--gpuos-share=timeslice", "--exclusive"],
            "it does not go with --exclusive",
        ),
        (
            &["--gpuos-share=timeslice", "--gpuos-mps=on"],
            "it does not go with --gpuos-mps",
        ),
        (
            &["--gpuos-share=timeslice", "--gpuos-mig=1/2"],
            "it does not go with --gpuos-mig",
        ),
        (
            &["--gpuos-share=timeslice", "--gpuos-power=80%"],
            "it does not go with --gpuos-power",
        ),
    ] {
        let said = cluster.submit_held(args).expect_err("it is refused");
        assert!(
            said.contains(why) && said.contains("--gpuos-share="),
            "{args:?}: {said}"
        );
    }
}

/// What all running jobs have on their nodes; panics where a GPU is given twice.
fn given(cluster: &Cluster) -> BTreeMap<u32, (u64, u64)> {
    let text = cluster.run("scontrol", &["-d", "show", "job"]);
    let jobs = Job::parse_all(&text);
    let (mut whole, mut parts) = (BTreeMap::new(), BTreeMap::new());
    let mut all = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.is_running()) {
        for part in &job.allocations {
            for node in &part.nodes {
                for gpu in part.gpus.iter() {
                    let other = whole.insert((node.clone(), gpu), job.id);
                    assert_eq!(other, None, "GPU {gpu} of {node} is given twice");
                }
                let shards = job.tres_per_node.rsplit(':').next();
                let shards = shards.and_then(|count| count.parse::<u32>().ok());
                for gpu in part.shared.iter() {
                    let used = parts.entry((node.clone(), gpu)).or_insert(0);
                    *used += shards.expect("a number of shards");
                }
            }
            all.insert(job.id, (part.gpus.0, part.shared.0));
        }
    }
    for (place, used) in &parts {
        assert!(*used <= 4, "{place:?} has given {used} of its 4 shards");
        assert!(
            !whole.contains_key(place),
            "{place:?} is given as a whole and in parts\n{text}"
        );
    }
    all
}

fn gpus_are_shared_as_asked(suite: &Suite) {
    let mut setup = Setup::simulated("share", suite, 1);
    setup.spec.job_submit = true;
    setup.spec.shards = 4;
    let Some(cluster) = setup.steered() else {
        return;
    };
    requests_become_shards(&cluster);
    // A GPU that is out of service has no shards to give either.
    drain(&cluster, 0);
    let work = |name: &str| {
        let path = cluster.lab.dir().join("work").join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    };
    // The batch script and its steps find the same GPU, and a step without GRES none.
    let env = "echo $CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE";
    let script = format!(
        "{env} > env.batch; srun sh -c '{env}' > env.step; srun --gres=none sh -c '{env}' > env.none; sleep 3600"
    );
    let first = cluster.sbatch(&["--gpuos-share=timeslice"], &script);
    cluster.wait(first, &["RUNNING"]);
    cluster.until("the steps have run", || {
        cluster
            .lab
            .dir()
            .join("work/env.none")
            .exists()
            .then_some(())
    });
    // Whole GPUs are left whole: the shares of several jobs stand on one GPU until that is full.
    let more = ["timeslice:2", "timeslice"]
        .map(|share| cluster.start(&[&format!("--gpuos-share={share}")]));
    let have = given(&cluster);
    let shared = have[&first].1;
    assert!(shared.count_ones() == 1 && shared & 1 == 0, "{have:?}");
    for job in more {
        assert_eq!(have[&job], (0, shared), "{have:?}");
    }
    let gpu = shared.trailing_zeros();
    cluster.until(
        "the batch script and both steps have said what they see",
        || {
            let seen = ["batch", "step", "none"].map(|name| work(&format!("env.{name}")));
            (!seen[2].is_empty()).then_some(seen)
        },
    );
    assert_eq!(work("env.batch").trim(), format!("{gpu} 1"));
    assert_eq!(work("env.step").trim(), format!("{gpu} 1"));
    assert_eq!(work("env.none").trim(), "");
    // The next share is on another GPU, and no whole GPU is given of either.
    let next = cluster.start(&["--gpuos-share=timeslice:3"]);
    let have = given(&cluster);
    let other = have[&next].1;
    assert!(other != shared && other.count_ones() == 1, "{have:?}");
    let whole = cluster.start(&["--gres=gpu:5"]);
    // A share beside another, where no GPU is left.
    let last = cluster.start(&["--gpuos-share=timeslice"]);
    let have = given(&cluster);
    assert_eq!(have[&last].1, other, "{have:?}");
    let taken = have
        .values()
        .fold(0, |all, (whole, parts)| all | whole | parts);
    assert_eq!(taken, 0xfe, "{have:?}");
    let waits = cluster.sbatch(&["--gres=gpu:1"], "sleep 3600");
    holders(&cluster, gpu as u8, &[first, more[0], more[1]]);
    // With the last of its shares gone a GPU is whole again.
    for job in [next, last] {
        cluster.run("scancel", &[&job.to_string()]);
    }
    cluster.wait(waits, &["RUNNING"]);
    let have = given(&cluster);
    assert_eq!(have[&waits], (other, 0), "{have:?}");
    assert_eq!(have[&whole].0.count_ones(), 5, "{have:?}");
    // Slurm 22.05 alone would give the GPU as a whole once the first of several that share it has gone.
    cluster.run("scancel", &[&more[0].to_string()]);
    cluster.wait(more[0], &["CANCELLED"]);
    let late = cluster.sbatch(&["--gres=gpu:1"], "sleep 3600");
    let why = cluster.until("it was looked for a GPU", || {
        let show = cluster.show(late);
        let reason = field(&show, "Reason")?.to_owned();
        let waits = reason == "Resources" || reason.starts_with("gpuos:_The_job_needs");
        (waits || field(&show, "JobState") != Some("PENDING")).then_some(reason)
    });
    assert_ne!(why, "None", "it runs");
    given(&cluster);
    cluster.run("scancel", &[&late.to_string()]);
    under_mps(&cluster, shared, first);
    cluster.drained();
    come_and_go(&cluster);
}

/// The only idle cores are near GPUs that somebody has as a whole. cons_tres before 23.11.5 would then take the first GPU
/// with shards left, whoever has it. Nor are such GPUs out of reach for who may preempt.
fn shares_keep_off_whole_gpus_with_other_cores(suite: &Suite) {
    let mut setup = Setup::new("cores", suite);
    setup.spec.nodes = 1.into();
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.shards = 4;
    setup.spec.slurm_conf_extra.extend([
        "PreemptType=preempt/partition_prio".into(),
        "PreemptMode=REQUEUE".into(),
        "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP".into(),
    ]);
    let Some(cluster) = setup.steered() else {
        return;
    };
    let whole = cluster.start(&["--gres=gpu:4", "--gpuos=off"]);
    assert_eq!(given(&cluster)[&whole].0, 0x0f);
    // All cores are taken, and then only those of the other socket.
    let sockets = |job: u32| show::job_sockets(&cluster.show(job), 56)["n1"].clone();
    let others = ["-c27", "-c27", "-c27", "-c27", "-c1", "-c1", "-c1"];
    let others = others.map(|cores| cluster.start(&["-n1", cores]));
    let near: Vec<u32> = others
        .into_iter()
        .filter(|job| sockets(*job) == [0])
        .collect();
    assert!(!near.is_empty());
    cluster.cancel(&near);
    for options in [&["--gres=shard:1"][..], &["--gres=shard:2", "--gpuos=off"]] {
        let share = cluster.start(options);
        let shared = given(&cluster)[&share].1;
        assert!(
            shared.count_ones() == 1 && shared & 0x0f == 0,
            "{shared:x} {}",
            cluster.show(share)
        );
        assert_eq!(sockets(share), [0]);
        cluster.cancel(&[share]);
    }
    let rest = cluster.start(&["--gres=gpu:4"]);
    assert_eq!(given(&cluster)[&rest].0, 0xf0);
    let share = cluster.start(&["--gres=shard:1", "-p", "high"]);
    assert_eq!(given(&cluster)[&share].1.count_ones(), 1);
    cluster.drained();
}

/// Jobs of all kinds, as many as `GPUOS_SHARE_JOBS` says: no GPU is given twice, and nothing is left.
fn come_and_go(cluster: &Cluster) {
    let jobs = std::env::var("GPUOS_SHARE_JOBS");
    let jobs = jobs.ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(6);
    let mut seed = 7u64;
    let mut any = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % most
    };
    let mut all = Vec::new();
    for _ in 0..jobs {
        let ask = match any(4) {
            0 => format!("--gres=gpu:{}", 1 + any(3)),
            1 => format!("--gpuos-share=mps:{}%", 25 * (1 + any(4))),
            _ => format!("--gpuos-share=timeslice:{}", 1 + any(4)),
        };
        let time = format!("sleep 0.{}", 1 + any(9));
        all.push(cluster.sbatch(&[&ask, "-t", "10"], &time));
        given(cluster);
    }
    cluster.until("all have run", || {
        given(cluster);
        let queue = cluster.run("squeue", &["-h", "-o", "%i"]);
        queue.trim().is_empty().then_some(())
    });
    for job in all {
        cluster.wait(job, &["COMPLETED"]);
    }
    cluster.drained();
    let folder = cluster.lab.gpuosd_runtime_dir("n1").join("mps");
    cluster.until("no MPS daemon is left", || {
        let left = std::fs::read_dir(&folder);
        left.map_or(0, Iterator::count).eq(&0).then_some(())
    });
}

/// Two jobs under one MPS daemon on a GPU that has `beside` in turns with them.
fn under_mps(cluster: &Cluster, shared: u64, beside: u32) {
    let dir = cluster.lab.dir();
    program(&dir.join("bin/nvidia-cuda-mps-control"), MPS_CONTROL);
    let work = |name: &str| {
        let text = std::fs::read_to_string(dir.join("work").join(name));
        text.unwrap_or_default()
    };
    let says = "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
                $CUDA_VISIBLE_DEVICES $(cat $CUDA_MPS_PIPE_DIRECTORY/pid) $(cat $CUDA_MPS_PIPE_DIRECTORY/gpus)";
    let start = |name: &str| {
        let script = format!(
            "{says} > {name}.batch; srun sh -c '{says}' > {name}.step; touch {name}.done; sleep 3600"
        );
        let job = cluster.sbatch(&["--gpuos-share=mps:25%"], &script);
        cluster.wait(job, &["RUNNING"]);
        cluster.until("both have said what they see", || {
            dir.join("work")
                .join(format!("{name}.done"))
                .exists()
                .then_some(())
        });
        (
            job,
            ["batch", "step"].map(|of| work(&format!("{name}.{of}"))),
        )
    };
    // On a busy machine a daemon may need longer than a step waits for it: that job goes on without.
    let start = |name: &str| {
        for attempt in 1.. {
            let (job, seen) = start(&format!("{name}{attempt}"));
            let served = |seen: &String| seen.split_whitespace().count() == 6;
            if seen.iter().all(served) || attempt == 8 {
                return (job, seen);
            }
            cluster.run("scancel", &[&job.to_string()]);
            cluster.wait(job, &["CANCELLED"]);
        }
        unreachable!()
    };
    let (one, two) = (start("one"), start("two"));
    let both = [one.0, two.0];
    let have = given(cluster);
    for job in both {
        assert_eq!(have[&job], (0, shared), "{have:?}");
    }
    let [seen, step] = one.1;
    let words: Vec<&str> = seen.split_whitespace().collect();
    let [pipe, "25", memory, uuid, pid, served] = words[..] else {
        panic!("{seen}: {}", work(&format!("{}.out", both[0])));
    };
    let gpu = shared.trailing_zeros();
    assert!(pipe.contains(&format!("mps/gpu{gpu}-")), "{pipe}");
    assert!(
        memory.starts_with("0=") && memory.ends_with('M'),
        "{memory}"
    );
    assert!(uuid.starts_with("GPU-") && uuid == served, "{seen}");
    assert_eq!([&step, &two.1[0], &two.1[1]], [&seen; 3]);
    holders(cluster, gpu as u8, &[beside, beside + 2, both[0], both[1]]);
    let own = Path::new(pipe).parent().expect("a folder");
    cluster.run("scancel", &[&both[0].to_string()]);
    cluster.wait(both[0], &["CANCELLED"]);
    assert!(own.exists());
    cluster.run("scancel", &[&both[1].to_string()]);
    cluster.until("nothing of the MPS daemon is left", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ended = stat.is_empty() || stat.contains(") Z ");
        (ended && !own.exists()).then_some(())
    });
}

fn gpuosd(cluster: &Cluster) -> Client {
    let socket = cluster.lab.gpuosd_runtime_dir("n1").join(NAME);
    Client::connect(&socket, LIMIT).expect("gpuosd of n1")
}

/// Takes a GPU out of service, and waits until Slurm knows.
fn drain(cluster: &Cluster, gpu: u8) {
    let ask = Request::Admin {
        verb: Verb::Drain,
        gpus: vec![gpu.try_into().unwrap()],
        reason: "loud fan".into(),
        force: false,
    };
    gpuosd(cluster).ask(&ask).expect("it answers");
    cluster.until("Slurm knows that the GPU is out", || {
        let node = cluster.run("scontrol", &["show", "node", "n1"]);
        node.contains(&format!("out={gpu}")).then_some(())
    });
}

/// Waits until gpuosd knows these holders of a GPU.
fn holders(cluster: &Cluster, gpu: u8, jobs: &[u32]) {
    let mut client = gpuosd(cluster);
    cluster.until("gpuosd knows who shares the GPU", || {
        let status = client.status().expect("it answers");
        let on = status
            .jobs
            .iter()
            .filter(|job| job.gpus.contains(&gpu.try_into().unwrap()));
        let on: Vec<u32> = on.filter_map(|job| job.job.number()).collect();
        (on == jobs).then_some(())
    });
}
