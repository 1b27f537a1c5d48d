//! `--gpuos-share=timeslice,mem=SIZE` in real Slurm clusters: what is asked becomes shards and memory, and two CUDA programs that do not fit beside
//! each other have one GPU in turns, over the simulated driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuos_lab::{Cgroup, Suite, field};
use gpuos_tests::{Cluster, Setup, per_suite, plugins};
use serde_json::Value;

use crate::memory_grants::{Driver, held, library, with_library};

per_suite!(jobs_have_a_gpu_in_turns);

/// Two jobs on a GPU at most, and of 81559 MiB so much for contexts that the host has room for what is parked. Its NVMe is counted, all but 4 GiB.
const GPUOS: &str = "[memory]\nturns = 2\nreserve-mib = 65536\nnvme = \"FOLDER\"\nnvme-gib = 24\nnvme-gres = \"nvme\"\nnvme-gres-gib = 20\n\n\
    [[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h100\"\n";

/// What a job asks for that has more than half of the rest, 16023 MiB, in turns.
pub(crate) const MOST: [&str; 2] = ["--mem=100", "--gpuos-share=timeslice,mem=8100M"];

/// The same with what is parked on NVMe: for Slurm 8 GiB, also with what gpuosd adds for a program that sees less of a GPU than this has.
pub(crate) const ON_NVME: [&str; 2] = ["--mem=100", "--gpuos-share=timeslice,mem=7900M,park=nvme"];

pub(crate) fn lab(mut setup: Setup, parked: &Path) -> Option<Cluster> {
    setup.spec.nodes = 1.into();
    setup.spec.node_type = "dgx-h100".into();
    setup.spec.job_submit = true;
    setup.spec.shards = 4;
    setup.spec.nvme = 20;
    setup.spec.gpuos_toml = Some(GPUOS.replace("FOLDER", &parked.to_string_lossy()));
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    // Which of a user's jobs a process belongs to control groups tell.
    setup.spec.cgroup = Cgroup::Auto;
    // Turns of a second, and moves that are taken to take no time.
    setup.spec.memory_turn = 1;
    let cluster = setup.steered()?;
    with_library(&cluster);
    Some(cluster)
}

fn requests(cluster: &Cluster) {
    let (mem, said) = held(cluster, &MOST, "MinMemoryNode");
    assert_eq!(mem, "8200M", "{said}");
    for wanted in [
        "at most 2 jobs have a GPU in turns; 8100 MiB of the host's memory are a place for what is parked: --mem is 8200 MiB",
        "2 of the 4 shards of a GPU on each node; memory: as much of the GPU's as mem= says while it is its turn",
    ] {
        assert!(said.contains(wanted), "{said}");
    }
    let (shards, _) = held(cluster, &MOST, "TresPerNode");
    assert_eq!(shards, "2");
    let more = ["--mem=100", "--gpuos-share=timeslice:3,mem=1G"];
    assert_eq!(held(cluster, &more, "TresPerNode").0, "3");
    let share = MOST[1];
    for (args, why) in [
        (
            &["--mem=100", "--gpuos-share=timeslice"][..],
            "write timeslice,mem=SIZE",
        ),
        (
            &["--mem=100", "--gpuos-share=mps:25%"],
            "write timeslice,mem=SIZE",
        ),
        (
            &["--mem=100", "--gres=shard:1"],
            "--gpuos-share=timeslice,mem=SIZE in its place",
        ),
        (
            &["--mem=100", "--gpuos-share=timeslice,mem=60"],
            "the unit M, G or T is missing",
        ),
        (
            &["--mem=100", "--gpuos-share=timeslice,mem=1G,mem=2G"],
            "mem= stands there twice",
        ),
        (
            &["--mem=100", "--gpuos-share=mps:25%,mem=1G"],
            "mem= goes with timeslice alone",
        ),
        (
            &["--mem=100", "--gpuos-share=timeslice,mem=16024M"],
            "write mem=16023M or less",
        ),
        (&["--mem=9T", share], "no node with shards has more than"),
        (&["--mem=0", share], "write --mem=SIZE with it"),
        (&["--mem-per-cpu=10", share], "write --mem=SIZE with it"),
        (&[share], "write --mem=SIZE with it"),
        (
            &["--mem=100", share, "--gres=gpu:1"],
            "it does not go with GRES gpu",
        ),
        (
            &["--mem=100", share, "--gres=shard:1"],
            "does not go with GRES shard",
        ),
        (
            &["--mem=100", share, "--exclusive"],
            "it does not go with --exclusive",
        ),
        (
            &["--mem=100", share, "--gpuos-mps=on"],
            "it does not go with --gpuos-mps=on",
        ),
        (
            &["--mem=100", share, "--gpuos-mig=1/2"],
            "it does not go with --gpuos-mig=1/2",
        ),
        (
            &["--mem=100", share, "--gpuos-mem=90G"],
            "it does not go with --gpuos-mem=90G",
        ),
        (
            &["--mem=100", share, "--gpuos-power=80%"],
            "it does not go with --gpuos-power=80%",
        ),
    ] {
        let said = cluster.submit_held(args).expect_err("it is refused");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let (job, _) = cluster.submit_held(&MOST).expect("it is taken");
    let id = format!("JobId={job}");
    for (change, taken) in [
        ("MinMemoryNode=8099", false),
        ("MinMemoryCPU=100", false),
        ("Gres=gpu:1", false),
        ("MinMemoryNode=8100", true),
    ] {
        let told = cluster.try_run("scontrol", &["update", &id, change]);
        assert_eq!(told.is_ok(), taken, "{change}: {told:?}");
    }
    cluster.run("scancel", &[&job.to_string()]);
    // A job without any option of gpuos's is not let round it by a change either.
    let (job, _) = cluster.submit_held(&["--gres=gpu:1"]).expect("it is taken");
    let id = format!("JobId={job}");
    let told = cluster.try_run("scontrol", &["update", &id, "Gres=shard:1"]);
    assert!(told.is_err(), "{told:?}");
    cluster.run("scancel", &[&job.to_string()]);
}

/// What is parked on NVMe is counted there, and no memory is added.
fn requests_of_nvme(cluster: &Cluster) {
    let (mem, said) = held(cluster, &ON_NVME, "MinMemoryNode");
    assert_eq!(mem, "100M", "{said}");
    for wanted in [
        "8 in GRES nvme are GiB of NVMe on each node for the 7900 MiB that are parked, and --mem is for the program alone",
        "is parked on NVMe while others have theirs",
    ] {
        assert!(said.contains(wanted), "{said}");
    }
    let share = ON_NVME[1];
    // Nothing has to be said of the program's own memory.
    let (job, _) = cluster.submit_held(&[share]).expect("it is taken");
    let asks = cluster.show(job);
    let asks = field(&asks, "TresPerNode").expect("GRES").to_owned();
    assert!(
        asks.contains("nvme:8") && asks.contains("shard:2"),
        "{asks}"
    );
    let id = format!("JobId={job}");
    for (change, taken) in [("Gres=shard:2", false), ("MinMemoryNode=50", true)] {
        let told = cluster.try_run("scontrol", &["update", &id, change]);
        assert_eq!(told.is_ok(), taken, "{change}: {told:?}");
    }
    cluster.run("scancel", &[&job.to_string()]);
    for (args, why) in [
        (&[share, "--gres=nvme:1"][..], "does not go with GRES nvme"),
        (
            &["--gpuos-share=timeslice,park=nvme"],
            "park= goes with timeslice,mem=SIZE alone",
        ),
        (
            &["--gpuos-share=timeslice,mem=1G,park=tape"],
            "is neither nvme nor host",
        ),
    ] {
        let said = cluster.submit_held(args).expect_err("it is refused");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

/// Of three such jobs two have NVMe: Slurm counts it, whatever GPUs there are.
fn nvme_is_counted(cluster: &Cluster) {
    let jobs = [(); 3].map(|()| cluster.sbatch(&ON_NVME, "sleep 600"));
    for job in &jobs[..2] {
        cluster.wait(*job, &["RUNNING"]);
    }
    let shown = cluster.run("scontrol", &["-d", "show", "job", &jobs[0].to_string()]);
    let record = gpuos_host::slurm::Job::parse_all(&shown).remove(0);
    let has = |name: &str| {
        let mut others = record.allocations[0].others.iter();
        others
            .find(|(gres, _)| gres == name)
            .map(|(_, count)| *count)
    };
    assert_eq!(has("nvme"), Some(8), "{shown}");
    cluster.until("the third waits for it", || {
        let shown = cluster.show(jobs[2]);
        assert_eq!(field(&shown, "JobState"), Some("PENDING"));
        (field(&shown, "Reason") == Some("Resources")).then_some(())
    });
    for job in jobs {
        cluster.run("scancel", &[&job.to_string()]);
    }
    cluster.drained();
}

/// What a step's programs find.
fn variables(cluster: &Cluster) {
    let library = library(cluster);
    let show = "echo \"[$LD_PRELOAD|$GPUOS_MEM_GRANT|$GPUOS_MEM_HBM|${GPUOS_MEM_SOCKET##*/}]\"";
    let script = format!(
        "{show}; srun sh -c '{show}'; srun --gpuos-share=timeslice,mem=4000M sh -c '{show}'; srun --gpuos-share=off sh -c '{show}'; \
         srun --gpuos-share=timeslice sh -c '{show}'; srun --gpuos-share=timeslice,mem=8101M sh -c '{show}'; srun --gres=none sh -c '{show}'"
    );
    let job = cluster.sbatch(&MOST, &script);
    cluster.wait(job, &["COMPLETED"]);
    let text = fs::read_to_string(cluster.lab.dir().join(format!("work/{job}.out"))).unwrap();
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with('[')).collect();
    let all = format!("[{library}|8493465600|8493465600|gpuosd.sock.memory]");
    let half = format!("[{library}|4194304000|4194304000|gpuosd.sock.memory]");
    let all = all.as_str();
    assert_eq!(shown, [all, all, &half, all, all, all, "[|||]"], "{text}");
    for option in [
        "--gpuos-share=off",
        "--gpuos-share=timeslice",
        "--gpuos-share=timeslice,mem=8101M",
    ] {
        let note = format!("{option} says nothing: a step shares the GPU as its job does");
        assert!(text.contains(&note), "{note}: {text}");
    }
}

/// Two jobs in turns stand on one GPU, a third on another, and nobody has either as a whole.
fn places(cluster: &Cluster) {
    let jobs = [(); 3].map(|()| cluster.sbatch(&MOST, "sleep 600"));
    let label = jobs.map(|job| job.to_string());
    let on = jobs.map(|job| {
        cluster.wait(job, &["RUNNING"]);
        let shown = cluster.run("scontrol", &["-d", "show", "job", &job.to_string()]);
        let record = gpuos_host::slurm::Job::parse_all(&shown).remove(0);
        record.gpus_on("n1").0
    });
    assert!(on.iter().all(|gpus| gpus.count_ones() == 1), "{on:?}");
    assert_eq!(on[0], on[1]);
    assert_ne!(on[0], on[2]);
    let gpuos = plugins::programs().join("gpuos").display().to_string();
    let why = cluster.run(&gpuos, &["why", &label[0]]);
    let beside = format!(
        "Beside it there: job {}. Where they do not fit together",
        label[1]
    );
    assert!(
        why.contains("with a share of GPU") && why.contains(&beside),
        "{why}"
    );
    let whole = cluster.sbatch(&["--gres=gpu:7"], "sleep 600");
    cluster.until("it waits for a whole GPU", || {
        let shown = cluster.show(whole);
        let reason = field(&shown, "Reason")?.to_owned();
        assert_eq!(field(&shown, "JobState"), Some("PENDING"));
        (reason != "None").then_some(())
    });
    for job in jobs.into_iter().chain([whole]) {
        cluster.run("scancel", &[&job.to_string()]);
    }
    cluster.drained();
}

/// What gpuosd has lent, as `gpuos mem show` tells it.
pub(crate) fn lent(cluster: &Cluster) -> Value {
    let gpuos = plugins::programs().join("gpuos").display().to_string();
    let sockets = cluster.lab.gpuosd_runtime_dir("n1");
    let sockets = sockets.to_str().expect("UTF-8");
    let words = ["mem", "show", "--json", "--runtime-dir", sockets];
    let shown = cluster.try_run(&gpuos, &words).unwrap_or_default();
    serde_json::from_str(&shown).unwrap_or_default()
}

/// Of the processes of a job on the node, what is told of the first.
pub(crate) fn of_job(told: &Value, job: u32) -> Option<Value> {
    let programs = told["memory"]["programs"].as_array()?;
    let mut own = programs.iter().filter(|one| one["job"] == job);
    own.next().cloned()
}

/// A job of the program below.
pub(crate) struct Turned<'a> {
    cluster: &'a Cluster,
    pub(crate) id: u32,
    stays: PathBuf,
}

impl<'a> Turned<'a> {
    /// One that goes on until it is told to end, over links of that many bytes a second; 0: as fast as the machine.
    fn start(cluster: &'a Cluster, name: &str, link: &str) -> Turned<'a> {
        Turned::start_with(&MOST, cluster, name, link)
    }

    pub(crate) fn start_with(
        args: &[&str],
        cluster: &'a Cluster,
        name: &str,
        link: &str,
    ) -> Turned<'a> {
        let stays = cluster.lab.dir().join("work").join(name);
        fs::write(&stays, "").expect("written");
        let test = std::env::current_exe().expect("this program");
        let folder = cluster.lab.dir().join("cuda");
        // The driver's GPUs are those that gpuosd sees, with memory for one of the two programs.
        let script = format!(
            "srun env LD_LIBRARY_PATH={} GPUOS_NVML_STATE={} GPUOS_CUDA=memory=128M,link={link} {CLIENT}={} CUDA_MPS_PIPE_DIRECTORY=/nonexistent {} \
             --exact memory_turns::client --nocapture",
            folder.display(),
            cluster.lab.dir().join("nvml/n1/state").display(),
            stays.display(),
            test.display()
        );
        let id = cluster.sbatch(args, &script);
        Turned { cluster, id, stays }
    }

    pub(crate) fn said(&self) -> String {
        let file = format!("work/{}.out", self.id);
        fs::read_to_string(self.cluster.lab.dir().join(file)).unwrap_or_default()
    }

    /// What is told of its process, once that is so.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.cluster.until(what, || {
            let (said, told) = (self.said(), lent(self.cluster));
            assert!(!said.contains("panicked"), "{said}{told}");
            of_job(&told, self.id).filter(|one| holds(one))
        })
    }

    pub(crate) fn rounds(&self) -> usize {
        self.said().matches("round").count()
    }

    /// Tells it to end, and reads that all of its bytes were right.
    pub(crate) fn ends_well(&self) {
        fs::remove_file(&self.stays).expect("removed");
        let states = ["COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED"];
        let state = self.cluster.wait(self.id, &states);
        let text = self.said();
        assert_eq!(state, "COMPLETED", "{text}");
        assert!(text.contains("all bytes were right"), "{text}");
    }
}

/// They do not fit beside each other, and both end well.
fn both_end_well(cluster: &Cluster) {
    let jobs = ["first", "second"].map(|name| Turned::start(cluster, name, "0"));
    for job in &jobs {
        let one = job.until("it was parked three times", |one| {
            one["parks"].as_u64() >= Some(3)
        });
        assert_eq!(one["leases"][0]["hbm"], one["leases"][0]["refuge"], "{one}");
    }
    let told = lent(cluster);
    let gpus = told["memory"]["gpus"].as_array().expect("GPUs");
    let shared: Vec<&Value> = gpus.iter().filter(|gpu| gpu["in_turns"] == true).collect();
    assert_eq!(shared.len(), 1, "{told}");
    jobs.iter().for_each(Turned::ends_well);
    cluster.until("nothing is lent any more", || {
        let told = lent(cluster);
        (told["memory"]["host"]["promised"] == 0).then_some(())
    });
}

/// The same with NVMe as the place for what is parked: nothing of it is in host memory.
fn both_park_on_nvme(cluster: &Cluster, parked: &Path) {
    let jobs = ["third", "fourth"].map(|name| Turned::start_with(&ON_NVME, cluster, name, "0"));
    for job in &jobs {
        let one = job.until("it was parked three times", |one| {
            one["parks"].as_u64() >= Some(3)
        });
        assert_eq!(one["leases"][0]["hbm"], one["leases"][0]["refuge"], "{one}");
    }
    let told = lent(cluster);
    let promised = |tier: &str| told["memory"][tier]["promised"].as_u64();
    assert_eq!(promised("host"), Some(0), "{told}");
    assert!(promised("nvme") >= Some(192 << 20), "{told}");
    jobs.iter().for_each(Turned::ends_well);
    cluster.until("nothing lies there any more", || {
        let told = lent(cluster);
        let files = fs::read_dir(parked.join("n1")).map_or(0, Iterator::count);
        (told["memory"]["nvme"]["promised"] == 0 && files == 0).then_some(())
    });
}

/// One is killed in the middle of its swap, over a link that makes it last: the other goes on.
fn one_is_killed_while_it_parks(cluster: &Cluster) {
    let [first, second] = ["killed", "left"].map(|name| Turned::start(cluster, name, "64M"));
    let (victim, left) = cluster.until("one of them parks", || {
        let told = lent(cluster);
        let parks = |job: &Turned| of_job(&told, job.id).filter(|one| one["place"] == "parking");
        match (parks(&first), parks(&second)) {
            (Some(one), _) => Some((one, &second)),
            (_, Some(one)) => Some((one, &first)),
            _ => None,
        }
    });
    let pid = victim["pid"].as_i64().expect("a process") as i32;
    // SAFETY: it takes numbers alone. The process is one of this lab's, and was there just now.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let (killed, before) = (Instant::now(), left.rounds());
    // What it has comes back over a slow link: its turn begins when it is told.
    left.until("the turn of the other one", |one| {
        one["place"] == "returning" || one["place"] == "resident"
    });
    let took = killed.elapsed();
    println!("told {} ms after the other was killed", took.as_millis());
    if std::env::var_os("GPUOS_LONG").is_some() {
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    cluster.until("it goes on", || (left.rounds() > before).then_some(()));
    left.ends_well();
    let other = if left.id == first.id { &second } else { &first };
    cluster.wait(other.id, &["FAILED"]);
}

/// A job that is suspended while it has the GPU hears nothing, and is not ended for that.
fn one_is_suspended(cluster: &Cluster) {
    let jobs = ["asleep", "awake"].map(|name| Turned::start(cluster, name, "0"));
    for job in &jobs {
        job.until("it was parked", |one| one["parks"].as_u64() >= Some(1));
    }
    let [asleep, awake] = &jobs;
    let suspend = |what: &str| cluster.run("scontrol", &[what, &asleep.id.to_string()]);
    asleep.until("its turn", |one| one["place"] == "resident");
    suspend("suspend");
    asleep.until("gpuosd knows that it is stopped", |one| {
        one["stopped"] == true
    });
    // Longer than a process has that is told to park.
    std::thread::sleep(Duration::from_secs(14));
    let one = of_job(&lent(cluster), asleep.id).expect("it is there");
    assert_eq!(one["stopped"], true, "{one}");
    suspend("resume");
    asleep.until("it goes on", |one| one["stopped"] == false);
    let before = [asleep.rounds(), awake.rounds()];
    cluster.until("both go on", || {
        let now = [asleep.rounds(), awake.rounds()];
        (now[0] > before[0] && now[1] > before[1]).then_some(())
    });
    jobs.iter().for_each(Turned::ends_well);
}

fn jobs_have_a_gpu_in_turns(suite: &Suite) {
    let native = *suite == Suite::Native;
    let setup = match native {
        true => Setup::simulated("turns", suite, 1),
        false => Setup::new("turns", suite),
    };
    let parked = tempfile::tempdir().expect("a folder");
    let Some(cluster) = lab(setup, parked.path()) else {
        return;
    };
    requests(&cluster);
    requests_of_nvme(&cluster);
    nvme_is_counted(&cluster);
    variables(&cluster);
    places(&cluster);
    if native && cluster.lab.has_cgroup() {
        both_end_well(&cluster);
        both_park_on_nvme(&cluster, parked.path());
        one_is_killed_while_it_parks(&cluster);
        one_is_suspended(&cluster);
    }
    cluster.drained();
}

/// Has the test below be a program of a job, which goes on while this file is there.
pub const CLIENT: &str = "GPUOS_TURNS_CLIENT";

/// A program of a job: three quarters of what its GPU has, filled and added again and again, and each sum looked at.
#[test]
fn client() {
    let Some(stays) = std::env::var_os(CLIENT) else {
        return;
    };
    const BYTES: u64 = 32 << 20;
    const WORDS: u64 = BYTES / 4;
    let cuda = Driver::open();
    cuda.call("cuInit", &[0]);
    cuda.get("cuCtxCreate_v2", &[0, 0]);
    let [a, b, sum] = [(); 3].map(|()| cuda.get("cuMemAlloc_v2", &[BYTES]));
    let (fill, add) = cuda.fill_and_add();
    let own = u64::from(std::process::id());
    let mut bytes = vec![0u8; BYTES as usize];
    let mut round = 0u64;
    while fs::exists(&stays).unwrap_or(false) {
        round += 1;
        cuda.launch(fill, &[a, round, WORDS]);
        cuda.launch(fill, &[b, own << 8, WORDS]);
        cuda.launch(add, &[sum, a, b, WORDS]);
        cuda.call("cuCtxSynchronize", &[]);
        let place = bytes.as_mut_ptr() as u64;
        cuda.call("cuMemcpyDtoH_v2", &[place, sum, BYTES]);
        let wanted = ((own << 8) as u32).wrapping_add(round as u32).to_ne_bytes();
        assert!(
            bytes.chunks_exact(4).all(|word| word == wanted),
            "round {round}"
        );
        println!("round {round}");
    }
    println!("all bytes were right");
}
