//! gpuos with a real Grid Engine 8.1.9, which runs in namespaces of its own: devices, refusals, checkpoints, killed daemons, and
//! random jobs against a ledger that the jobs write themselves.

#[path = "gridengine/lab.rs"]
mod lab;
#[path = "gridengine/site.rs"]
mod site;
#[path = "gridengine/store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use gpuos_model::rng::Rng;
use gpuos_tests::costs;

use lab::{GPUS, Grid, HOSTS, packages};

/// What jobs say of themselves: where they are, and which GPUs they were told of.
const TELL: &str = r#"echo "$(hostname) [$CUDA_VISIBLE_DEVICES] [$GPUOS_GPUS] [$GPUOS_LEVEL] [$CUDA_DEVICE_ORDER]""#;

#[test]
fn a_job_of_grid_engine_has_the_gpus_that_it_asks_for() {
    let Some(packages) = packages("Grid Engine: devices, checkpoints, killed daemons") else {
        return;
    };
    let _cost = costs::of("slurm::gridengine::jobs");
    let grid = Grid::up(&packages);
    devices(&grid);
    refusals(&grid);
    hostile_jobs(&grid);
    checkpoints(&grid);
    killed_daemons(&grid);
    lost_gpu(&grid);
}

/// Waits until a job is gone, and gives what it wrote.
fn ended(grid: &Grid, user: &str, job: &str) -> String {
    grid.until("the job ends", |grid| grid.is_gone(job));
    grid.written(user, job)
}

fn devices(grid: &Grid) {
    // GPUs 0 and 1 are one of the pairs of n1.
    let first = grid.qsub(
        "alice",
        "-l gpu=2,gpuos_topology=nvlink:required,h=n1",
        TELL,
    );
    let said = ended(grid, "alice", &first);
    assert_eq!(said, "n1 [0,1] [0,1] [nvlink] [PCI_BUS_ID]\n");
    // n2 has UUIDs, and all of its GPUs are linked.
    let all = grid.qsub("alice", "-l gpu=8,gpuos_topo=dgx-h100", TELL);
    let said = ended(grid, "alice", &all);
    assert!(said.starts_with("n2 [GPU-"), "{said}");
    assert_eq!(said.matches("GPU-").count(), 8, "{said}");
    assert!(
        said.ends_with("[0,1,2,3,4,5,6,7] [nvlink] [PCI_BUS_ID]\n"),
        "{said}"
    );
    // Once for a job of several slots; and none is what a job without GPUs sees.
    let slots = grid.qsub("bob", "-pe smp 4 -l gpu=1,h=n1", TELL);
    assert_eq!(
        ended(grid, "bob", &slots),
        "n1 [0] [0] [node] [PCI_BUS_ID]\n"
    );
    let none = grid.qsub("bob", "-l h=n1", TELL);
    assert_eq!(ended(grid, "bob", &none), "n1 [] [] [] []\n");
    starts(grid);
    for host in HOSTS {
        assert_eq!(grid.held(host), [""; 0], "{host}");
    }
}

/// Commands and scripts are started as they are without gpuos.
fn starts(grid: &Grid) {
    let home = grid.dir.join("home/alice");
    for (nth, (flags, said)) in [("-b y", "a b c\n"), ("-b y -shell n", "a  b c $HOME\n")]
        .into_iter()
        .enumerate()
    {
        let line = format!(
            "cd {0} && qsub -terse -cwd -o {0} -e {0} -N line{nth} -S /bin/sh -l gpu=1 {flags} /bin/echo 'a  b' 'c' {1}",
            home.display(),
            ["'; exit 0'", "'$HOME'"][nth]
        );
        let job = grid.ok("head", "alice", &line);
        let job = job.trim();
        grid.until("the command ends", |grid| grid.is_gone(job));
        let out = home.join(format!("line{nth}.o{job}"));
        let errors = home.join(format!("line{nth}.e{job}"));
        let errors = fs::read_to_string(errors).unwrap_or_default();
        assert_eq!(
            fs::read_to_string(out).unwrap_or_default(),
            said,
            "{flags}: {errors}"
        );
    }
    let bash = grid.qsub(
        "alice",
        "-S /bin/bash -l gpu=1",
        "echo ${BASH_VERSION:+bash} $#",
    );
    let said = ended(grid, "alice", &bash);
    assert_eq!(said, "bash 0\n");
}

fn refusals(grid: &Grid) {
    for (options, words) in [
        (
            "-l gpu=2,gpuos_topology=rack",
            "a job on one host has no level 'rack'; write one of nvlink, node, any",
        ),
        ("-l gpuos_topology=nvlink", "the job asks for no GPU"),
        // A resource that no complex defines.
        (
            "-l gpu=1,gpuos_mig=1g.10gb",
            "unknown resource \"gpuos_mig\"",
        ),
        ("-l gpu=2 -ac gpuos_topology=x:y:z", "is not understood"),
    ] {
        let script = grid.dir.join("work/true.sh");
        fs::write(&script, "#!/bin/sh\n").expect("a script");
        let line = format!("qsub {options} {}", script.display());
        let output = grid.sh("head", "alice", &line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = said + &String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && said.contains(words),
            "{options}: {said}"
        );
    }
    // What the context says does not count beside -l.
    let job = grid.qsub(
        "alice",
        "-l gpu=2,gpuos_topology=off,h=n1 -ac gpuos_topology=x:y:z",
        TELL,
    );
    let said = ended(grid, "alice", &job);
    assert_eq!(said, "n1 [0,1] [0,1] [nvlink] [PCI_BUS_ID]\n");
    // The wish stays with the job, and the host is chosen by what it reports.
    let job = grid.qsub(
        "alice",
        "-h -l gpu=4,gpuos_topology=nvlink:required",
        "true",
    );
    let told = grid.ok("head", "alice", &format!("qstat -j {job}"));
    assert!(
        told.contains("gpuos_nvlink=4") && told.contains("gpuos_topology=nvlink:required"),
        "{told}"
    );
    grid.ok("head", "alice", &format!("qdel {job}"));
}

/// What a user writes changes neither what he is given nor a file of another's.
fn hostile_jobs(grid: &Grid) {
    let before = fs::read_to_string(grid.dir.join("etc/environment")).ok();
    let mine = "CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3,GPUOS_GPUS=all,SGE_JOB_SPOOL_DIR=/etc,GPUOS_OPTIONS=--state=/tmp/x,LD_PRELOAD=/tmp/x.so";
    let options = format!(
        "-l gpu=1,h=n1 -v \"{mine}\" -v \"X=</JB_env_list><JB_hard_resource_list>\" -ac \"a<b=]]>\" -N \"x<JB_uid>0\" -A \"a<b\""
    );
    let job = grid.qsub("bob", &options, TELL);
    grid.until("the job ends", |grid| grid.is_gone(&job));
    let home = grid.dir.join("home/bob");
    let said = fs::read_to_string(home.join(format!("x<JB_uid>0.o{job}"))).unwrap_or_default();
    assert_eq!(said, "n1 [0] [0] [node] [PCI_BUS_ID]\n");
    assert_eq!(
        fs::read_to_string(grid.dir.join("etc/environment")).ok(),
        before
    );
    // An argument that ends the description of its own job, and begins that of the next one's.
    let lie = "x\nBEGIN\nSTART\nPARAM l_hard gpu=1\nPARAM ac gpuos_topology=rack\nBEGIN";
    let line = format!("qsub -b y -l gpu=1,gpuos_topology=node /bin/echo '{lie}'");
    let output = grid.sh("head", "bob", &line);
    for turn in 0..3 {
        let next = grid.qsub("alice", "-h -l gpu=3,gpuos_topology=nvlink", "true");
        let told = grid.ok("head", "alice", &format!("qstat -j {next}"));
        let kept = told.contains("gpu=3") && told.contains("gpuos_topology=nvlink");
        assert!(kept && !told.contains("rack"), "{turn} {output:?}: {told}");
        grid.ok("head", "alice", &format!("qdel {next}"));
    }
    grid.until("all jobs end", Grid::is_idle);
}

/// A program that saves when it is asked to and goes on from what was complete.
const SAVES: &str = r#"
echo "begins $GPUOS_RESTORE"
step=0
[ -z "$GPUOS_RESTORE" ] || step=$(cat "$GPUOS_RESTORE/step")
echo "from $step"
while [ ! -e "$1" ]; do
    step=$((step + 1))
    if number=$(cat "$GPUOS_SAVES/request" 2>/dev/null) && [ ! -d "$GPUOS_SAVES/$number" ]; then
        mkdir "$GPUOS_SAVES/$number"
        echo "$step" >"$GPUOS_SAVES/$number/step"
        : >"$GPUOS_SAVES/$number/ready"
    fi
    sleep 0.1
done
"#;

fn checkpoints(grid: &Grid) {
    let end = grid.dir.join("work/end");
    let script = SAVES.replace("$1", &end.display().to_string());
    let job = grid.qsub("alice", "-ckpt gpuos -c x -l gpu=2", &script);
    let folder = grid.dir.join(format!("saves/{job}.1"));
    grid.until("the job runs", |grid| {
        grid.written("alice", &job).contains("from 0")
    });
    assert!(folder.is_dir(), "{}", grid.written("alice", &job));
    // Suspended, a job with a checkpointing environment saves and goes elsewhere or begins again here.
    grid.ok("head", "alice", &format!("qmod -sj {job}"));
    grid.until("the job begins again", |grid| {
        grid.written("alice", &job).matches("from ").count() == 2
    });
    let said = grid.written("alice", &job);
    let committed = fs::read_to_string(folder.join("committed")).unwrap_or_default();
    assert_eq!(committed, "1\n", "{said}");
    let step = fs::read_to_string(folder.join("1/step")).expect("what was saved");
    assert!(
        said.contains(&format!("begins /mnt/saves/{job}.1/1\nfrom {step}")),
        "{said}"
    );
    let told = grid.ok(
        "head",
        "alice",
        &format!("gpuos wlm restore --folder /mnt/saves/{job}.1"),
    );
    assert_eq!(told, format!("/mnt/saves/{job}.1/1\n"));
    fs::write(&end, "").expect("a file");
    ended(grid, "alice", &job);
    grid.until("its checkpoints are gone", |_| !folder.exists());
    for host in HOSTS {
        assert_eq!(grid.held(host), [""; 0], "{host}");
    }
}

fn free(grid: &Grid) -> usize {
    grid.ok("head", "root", "qhost -F gpuos_free")
        .matches("gpuos_free=8")
        .count()
}

/// Two jobs were told of so many GPUs, and of none of each other's.
fn are_apart(one: (&str, usize), other: (&str, usize)) {
    let list = |text: &str| {
        let list = text.split(['[', ']']).nth(1).unwrap_or_default();
        list.split(',').map(String::from).collect::<BTreeSet<_>>()
    };
    let (mine, theirs) = (list(one.0), list(other.0));
    let counts = (mine.len(), theirs.len());
    assert_eq!(counts, (one.1, other.1), "{one:?} {other:?}");
    assert!(mine.is_disjoint(&theirs), "{one:?} {other:?}");
}

/// Neither a daemon that is killed nor a job whose keeper is killed loses GPUs, or has them given to another meanwhile.
fn killed_daemons(grid: &Grid) {
    let end = grid.dir.join("work/end2");
    let wait = format!(
        "{TELL}; while [ ! -e {} ]; do sleep 0.1; done",
        end.display()
    );
    let job = grid.qsub("alice", "-l gpu=6,h=n1", &wait);
    grid.until("the job runs", |grid| {
        grid.written("alice", &job).starts_with("n1 [")
    });
    assert_eq!(grid.kill("n1", "sge_execd"), 1);
    grid.start_execd("n1");
    let other = grid.qsub("bob", "-l gpu=2,h=n1", TELL);
    let said = ended(grid, "bob", &other);
    let mine = grid.written("alice", &job);
    are_apart((&mine, 6), (&said, 2));
    fs::write(&end, "").expect("a file");
    ended(grid, "alice", &job);
    grid.until("all is free again", |grid| free(grid) == HOSTS.len());

    // Without its shepherd a job has no epilog, and Grid Engine leaves its program behind: the GPUs stay that program's.
    let forever = grid.qsub(
        "alice",
        "-r n -l gpu=8,h=n1",
        &format!("{TELL}; sleep 1000"),
    );
    grid.until("the job runs", |grid| {
        grid.written("alice", &forever).starts_with("n1 [")
    });
    assert_eq!(grid.kill("n1", "sge_shepherd"), 1);
    let next = grid.qsub("bob", "-l gpu=8,h=n1", TELL);
    grid.until("the host takes no jobs", |grid| {
        let queues = grid.ok("head", "root", "qstat -f -explain E");
        queues.contains(&format!("job {next}'s failure at host n1"))
    });
    let said = grid.written("bob", &next);
    let words = format!(
        "0 of its 8 are free here; programs of jobs that have ended still run: {forever}.1 (group "
    );
    assert!(said.contains(&words), "{said}");
    assert!(!said.contains("n1 ["), "{said}");
    assert_eq!(grid.kill("n1", "sleep.1000"), 1);
    grid.ok("head", "root", "qmod -cq gpu.q");
    let said = ended(grid, "bob", &next);
    assert!(said.contains("n1 [0,1,2,3,4,5,6,7]"), "{said}");
    grid.until("all is free again", |grid| free(grid) == HOSTS.len());
    assert_eq!(grid.held("n1"), [""; 0]);
}

/// A job that is told its GPUs and ends when a file is there; with that file.
fn waiting(grid: &Grid, name: &str, options: &str) -> (String, PathBuf) {
    let end = grid.dir.join("work").join(name);
    let script = format!(
        "{TELL}; while [ ! -e {} ]; do sleep 0.1; done",
        end.display()
    );
    let job = grid.qsub("alice", options, &script);
    grid.until("the job runs", |grid| {
        grid.written("alice", &job).ends_with("]\n")
    });
    (job, end)
}

/// A GPU that is lost does not have the others change their numbers, under which jobs have them.
fn lost_gpu(grid: &Grid) {
    let (first, first_end) = waiting(grid, "end3", "-l gpu=1,h=n2");
    let (job, end) = waiting(grid, "end4", "-l gpu=2,h=n2");
    fs::write(&first_end, "").expect("a file");
    let said = ended(grid, "alice", &first);
    assert!(said.contains(" [0] "), "{said}");
    grid.break_gpu("n2", 0);
    let other = grid.qsub("bob", "-l gpu=5,h=n2", TELL);
    let said = ended(grid, "bob", &other);
    let mine = grid.written("alice", &job);
    are_apart((&mine, 2), (&said, 5));
    fs::write(&end, "").expect("a file");
    ended(grid, "alice", &job);
    assert_eq!(grid.held("n2"), [""; 0]);
}

/// What a job noted: once as it began, and once as it was about to end.
#[derive(Debug)]
struct Noted {
    job: String,
    begins: bool,
    host: String,
    visible: Vec<String>,
    numbers: Vec<usize>,
    level: String,
}

/// Jobs write one line each time, into one file: its order is that of the kernel.
fn ledger(text: &str) -> Vec<Noted> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words.len(), 6, "{line}");
        let list = |word: &str| -> Vec<String> {
            let inner = word.trim_matches(['[', ']']).split(',');
            inner
                .filter(|one| !one.is_empty())
                .map(String::from)
                .collect()
        };
        Noted {
            job: words[1].into(),
            begins: words[0] == "begin",
            host: words[2].into(),
            visible: list(words[3]),
            numbers: list(words[4])
                .iter()
                .map(|one| one.parse().expect("a number"))
                .collect(),
            level: words[5].trim_matches(['[', ']']).into(),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn no_gpu_is_given_twice_to_200_random_jobs() {
    let Some(packages) = packages("Grid Engine: 200 random jobs") else {
        return;
    };
    let _cost = costs::of("slurm::gridengine::random");
    let grid = Grid::up(&packages);
    let file = grid.dir.join("work/ledger");
    fs::write(&file, "").expect("a file");
    grid.ok("head", "root", &format!("chmod 666 {}", file.display()));
    let script = grid.dir.join("work/job.sh");
    let note = format!(
        "note() {{ echo \"$1 $JOB_ID.$SGE_TASK_ID $(hostname) [$CUDA_VISIBLE_DEVICES] [$GPUOS_GPUS] [$GPUOS_LEVEL]\" >>{}; }}",
        file.display()
    );
    fs::write(
        &script,
        format!("#!/bin/sh\n{note}\nnote begin\nsleep $1\nnote end\n"),
    )
    .expect("a script");

    let seed = std::env::var("PROPTEST_RNG_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut below = |bound: u64| rng.below(bound) as usize;
    let mut asked: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    for _ in 0..200 {
        let gpus = [0, 1, 1, 1, 2, 2, 2, 3, 4, 8][below(10)];
        let wish = match gpus {
            0 => "",
            _ => ["", "", "nvlink", "nvlink:required", "node:required"][below(5)],
        };
        let tasks = if below(20) == 0 { "-t 1-3" } else { "" };
        let mut wanted = format!("h_rt=300,gpu={gpus}");
        if !wish.is_empty() {
            wanted += &format!(",gpuos_topology={wish}");
        }
        let seconds = format!("0.{}", below(10));
        let user = ["alice", "bob"][below(2)];
        let lies = ["", "-v CUDA_VISIBLE_DEVICES=0", "-v GPUOS_LEVEL=nvlink"][below(3)];
        let line = format!(
            "qsub -terse -o /dev/null -j y -S /bin/sh {lies} {tasks} -l {wanted} {} {seconds}",
            script.display()
        );
        let said = grid.ok("head", user, &line);
        let job = said
            .trim()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_string();
        let count = if tasks.is_empty() { 1 } else { 3 };
        for task in 1..=count {
            let name = if count == 1 {
                "undefined".into()
            } else {
                task.to_string()
            };
            asked.insert(format!("{job}.{name}"), (gpus, wish));
        }
    }
    // How long all of them take is the machine's; from one line to the next it is not.
    let lines = || {
        fs::read_to_string(&file)
            .expect("the ledger")
            .lines()
            .count()
    };
    while !grid.is_idle() {
        let before = lines();
        grid.until("a job begins or ends", |grid| {
            lines() > before || grid.is_idle()
        });
    }

    let noted = ledger(&fs::read_to_string(&file).expect("the ledger"));
    let mut held: BTreeMap<(String, usize), String> = BTreeMap::new();
    let mut most = 0;
    for one in &noted {
        let (gpus, wish) = asked.get(&one.job).unwrap_or_else(|| panic!("{one:?}"));
        assert_eq!(
            (one.visible.len(), one.numbers.len()),
            (*gpus, *gpus),
            "{one:?} of {wish}"
        );
        for number in &one.numbers {
            assert!(*number < GPUS, "{one:?}");
            let gpu = (one.host.clone(), *number);
            if one.begins {
                let before = held.insert(gpu, one.job.clone());
                assert_eq!(before, None, "{one:?} has a GPU of another's");
            } else {
                assert_eq!(held.remove(&gpu).as_ref(), Some(&one.job), "{one:?}");
            }
        }
        most = most.max(held.len());
        // n1 has pairs, and everything is linked on n2.
        let linked = match one.host.as_str() {
            "n1" => one.numbers.len() == 2 && one.numbers[0] / 2 == one.numbers[1] / 2,
            _ => one.numbers.len() > 1,
        };
        if *wish == "nvlink:required" {
            assert!(linked || *gpus == 1, "{one:?}");
        }
        if *gpus > 1 {
            assert_eq!(one.level == "nvlink", linked, "{one:?}");
        }
        let by_uuid = one.visible.iter().all(|name| name.starts_with("GPU-"));
        assert_eq!(by_uuid, one.host == "n2" || *gpus == 0, "{one:?}");
    }
    assert_eq!(noted.len(), 2 * asked.len(), "a job began twice or never");
    assert!(held.is_empty(), "{held:?}");
    // Jobs ran beside each other, or the ledger says nothing.
    assert!(most >= GPUS, "at most {most} GPUs at a time");
    for host in HOSTS {
        assert_eq!(grid.held(host), [""; 0], "{host}");
    }
}
