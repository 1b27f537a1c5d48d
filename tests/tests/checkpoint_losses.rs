//! Eight nodes with `rs:6+2`: any two lose their stores at any moment, and the program goes on with the bytes that it had saved; three do, and it goes on from what
//! was drained before.
//!
//! `GPUOS_CKPT_LOSSES=SEEDS` tries so many jobs with a loss of each kind, by `make ckpt-losses`; without it nothing is done. `GPUOS_CKPT_LOSSES_SEED` is the first of
//! them. A mover is killed, its store removed, and it is started again with an empty one. Whether files are what was saved is seen by the ranks, which can make them
//! again from their number and their count.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuos_core::wire::{CheckpointRequest, Reply, Request};
use gpuos_host::socket::Client;
use gpuos_lab::Suite;
use gpuos_tests::counted::{Start, starts};
use gpuos_tests::{Cluster, Setup, measured_runs, plugins, results};

use crate::checkpoint::{committed, drained, logs, until};
use crate::checkpoint_matrix::{Random, kill, programs_of, root};

const NODES: usize = 8;

/// Files of one rank: one stays, one changes each time, one now and then; the lengths differ.
const PROGRAM: &str = "
import random, sys, time
from gpuos import checkpoint
ckpt, count = checkpoint.Checkpoints(), 0
def files(count):
    for name, of in ('same', 0), ('changing', count), ('at-times', count // 100):
        draw = random.Random(f'{ckpt.rank} {name} {of}')
        yield name, draw.randbytes(draw.randrange(200000))
start = ckpt.join()
if start:
    count = int((start.folder / 'count').read_text())
    names = sorted(path.name for path in start.folder.iterdir())
    same = names == ['at-times', 'changing', 'count', 'same']
    same = same and all((start.folder / name).read_bytes() == data for name, data in files(count))
    print(f'restored checkpoint {start.number} at {count}' if same else 'OTHER BYTES', flush=True)
else:
    print('new', flush=True)
while True:
    count += 1
    time.sleep(0.025)
    wanted = ckpt.wanted()
    if wanted:
        try:
            folder = ckpt.folder(wanted.number)
            (folder / 'count').write_text(str(count))
            for name, data in files(count):
                (folder / name).write_bytes(data)
            ckpt.ready(wanted.number)
            print(f'saved {wanted.number} at {count}', flush=True)
        except checkpoint.GivenUp as why:
            print(why, flush=True)
";

/// Starts the program again when it fails.
const SCRIPT: &str = r#"
start=0
while [ $start -lt 100 ]; do
    start=$((start + 1))
    export LOG=$PWD/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$start
    srun --kill-on-bad-exit=1 --wait=5 sh ./losses-rank.sh python3 losses.py && exit 0
done
"#;
const RANK: &str = r#"exec >>"$LOG.$SLURM_PROCID.log" 2>&1
GPUOS_MATRIX_RANK=$SLURM_PROCID exec "$@""#;

/// When stores are lost, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// Two, while a checkpoint is saved, read and encoded.
    Prepare,
    /// Two, while one has just been committed on some node.
    Commit,
    /// Two, while one is copied to the parallel file system.
    Drain,
    /// One, and another while the first is made again.
    Rebuild,
    /// Three at once.
    Three,
}

const LOSSES: [Loss; 5] = [
    Loss::Prepare,
    Loss::Commit,
    Loss::Drain,
    Loss::Rebuild,
    Loss::Three,
];

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Loss::Prepare => "two while one is prepared",
            Loss::Commit => "two while one is committed",
            Loss::Drain => "two while one is drained",
            Loss::Rebuild => "one, and another while it is rebuilt",
            Loss::Three => "three",
        }
    }
}

struct Job {
    cluster: Cluster,
    id: u32,
    nodes: Vec<String>,
    shared: PathBuf,
    random: Random,
}

#[test]
fn stores_are_lost() {
    let Some(seeds) = measured_runs("GPUOS_CKPT_LOSSES", "make ckpt-losses") else {
        return;
    };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = number("GPUOS_CKPT_LOSSES_SEED").unwrap_or(since.unwrap_or_default().as_secs());
    let shared = tempfile::tempdir().expect("a folder");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(shared.path(), private).expect("it is ours");
    let mut setup = Setup::new("ckpt-losses", &Suite::Native);
    setup.spec.nodes = NODES.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.gpuos_toml = Some(format!(
        "[checkpoint]\nenabled = true\nport = 0\nleast-seconds = 1\ncompress = \"always\"\nencrypt = true\nshared = {:?}\n",
        shared.path()
    ));
    let Some(mut cluster) = setup.steered() else {
        return;
    };
    let work = cluster.lab.dir().join("work");
    fs::write(work.join("losses.py"), PROGRAM).expect("written");
    fs::write(work.join("losses-rank.sh"), RANK).expect("written");
    let mut done = Done::default();
    for seed in (first..).take(seeds) {
        eprintln!("GPUOS_CKPT_LOSSES_SEED={seed}");
        cluster = begin(cluster, shared.path(), seed).lose_all(&mut done);
    }
    if results::wanted() {
        done.write(seeds, first);
    }
}

/// Seconds from each loss until all ranks went on, by kind.
#[derive(Default)]
struct Done(BTreeMap<&'static str, Vec<u64>>);

impl Done {
    /// A loss that did not hold has ended the test.
    fn write(&self, seeds: usize, first: u64) {
        let date = results::today();
        let mut csv = String::from("date,lost,tries,held,longest_s\n");
        let mut made = format!(
            "{date}, {seeds} jobs, seeds from {first}.\n\n| lost | held | longest until all ranks went on, s |\n| --- | ---: | ---: |\n"
        );
        for (name, took) in &self.0 {
            let (tries, longest) = (took.len(), took.iter().max().unwrap_or(&0));
            csv += &format!("{date},{name:?},{tries},{tries},{longest}\n");
            made += &format!("| {name} | {tries} of {tries} | {longest} |\n");
        }
        results::write("ckpt-losses", &csv, &made);
    }
}

fn begin(cluster: Cluster, shared: &Path, seed: u64) -> Job {
    let python = root().join("python");
    let script = format!("export PYTHONPATH={}\n{SCRIPT}", python.display());
    let options = [
        "-N8",
        "--ntasks-per-node=1",
        "--gpuos-checkpoint=1s,l2=rs:6+2,l3=every:2",
    ];
    let id = cluster.sbatch(&options, &script);
    cluster.wait(id, &["RUNNING"]);
    Job {
        id,
        nodes: cluster.lab.spec().node_names(),
        shared: shared.join(id.to_string()),
        random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        cluster,
    }
}

impl Job {
    fn lose_all(mut self, done: &mut Done) -> Cluster {
        for loss in LOSSES {
            let (said, took) = self.lose(loss);
            let (name, seconds) = (loss.name(), took.as_secs());
            eprintln!("{name}: {said}, {seconds} s");
            done.0.entry(name).or_default().push(seconds);
        }
        self.cluster.cancel(&[self.id]);
        for process in programs_of(&self.cluster) {
            kill(process.pid);
        }
        self.cluster
    }

    fn pause(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.random.below(most_ms)));
    }

    /// The newest checkpoint that any node's programs were told of.
    fn newest(&self) -> u32 {
        let of = |node: &String| committed(&self.cluster, node, self.id);
        self.nodes.iter().filter_map(of).max().unwrap_or(0)
    }

    /// Why newer checkpoints than the restored one are not used, as `gpuos ckpt show` has it.
    fn passed_over(&self) -> Vec<String> {
        let runtime = self.cluster.lab.gpuosd_runtime_dir(&self.nodes[0]);
        let socket = runtime.join("gpuos_mover.sock");
        let what = CheckpointRequest::List {
            job: Some(self.id.into()),
        };
        let client = Client::connect(&socket, Duration::from_secs(30));
        match client.and_then(|mut client| client.ask(&Request::Checkpoint { what })) {
            Ok(Reply::Checkpoints { jobs }) => {
                jobs.into_iter().flat_map(|job| job.passed_over).collect()
            }
            _ => Vec::new(),
        }
    }

    fn drained(&self) -> u32 {
        drained(&self.shared, NODES).unwrap_or(0)
    }

    fn starts(&self) -> Vec<Start> {
        starts(&self.cluster.lab.dir().join("work"), self.id)
    }

    /// Waits until a step of this kind is under way.
    fn until_begun(&mut self, loss: Loss) {
        let folder = |node: &String| {
            let jobs = self
                .cluster
                .lab
                .checkpoints_dir(node)
                .with_file_name("jobs");
            jobs.join(self.id.to_string())
        };
        match loss {
            Loss::Prepare => {
                let request = folder(&self.nodes[0]).join("request");
                until(&self.cluster, "a request", || {
                    request.exists().then_some(())
                });
                self.pause(800);
            }
            Loss::Drain => {
                let newest = self.drained();
                let begun = || {
                    let mut parts = fs::read_dir(&self.shared).into_iter().flatten().flatten();
                    parts.any(|node| {
                        let ids = fs::read_dir(node.path()).into_iter().flatten().flatten();
                        let mut names = ids.filter_map(|id| id.file_name().into_string().ok());
                        names.any(|name| {
                            let number = name.split_once('-').map(|parts| parts.0.parse::<u32>());
                            matches!(number, Some(Ok(number)) if number > newest)
                        })
                    })
                };
                until(&self.cluster, "one is drained", || begun().then_some(()));
                self.pause(150);
            }
            Loss::Commit | Loss::Rebuild => {
                let newest = self.newest();
                until(&self.cluster, "a commit", || {
                    (self.newest() > newest).then_some(())
                });
                self.pause(if loss == Loss::Commit { 60 } else { 1000 });
            }
            // So that there is something newer than what is drained.
            Loss::Three => {
                let newest = self.newest();
                until(&self.cluster, "a commit that is not drained", || {
                    let now = self.newest();
                    (now > newest && now > self.drained()).then_some(())
                });
                self.pause(300);
            }
        }
    }

    /// So many nodes, none twice.
    fn choose(&mut self, count: usize) -> Vec<String> {
        let mut nodes = self.nodes.clone();
        let mut draw = || nodes.remove(self.random.below(nodes.len() as u64) as usize);
        (0..count).map(|_| draw()).collect()
    }

    fn lose_stores(&self, nodes: &[String]) {
        let lab = &self.cluster.lab;
        for node in nodes {
            lab.kill_mover(node, libc::SIGKILL).expect("it ran");
        }
        for node in nodes {
            fs::remove_dir_all(lab.checkpoints_dir(node)).expect("it had a store");
        }
    }

    fn start_movers(&self, nodes: &[String]) {
        for node in nodes {
            self.cluster.lab.start_mover(node).expect("starts");
        }
    }

    fn end_ranks(&self) {
        for process in programs_of(&self.cluster) {
            if process.rank.is_some() {
                kill(process.pid);
            }
        }
    }

    /// Stores are lost, the program ends, and goes on. What it went on from, and how long that took.
    fn lose(&mut self, loss: Loss) -> (String, Duration) {
        let before = self.newest();
        until(&self.cluster, "checkpoints", || {
            let newest = self.newest();
            (newest >= before + 2 && self.drained() + 3 >= newest).then_some(())
        });
        self.until_begun(loss);
        let count = if loss == Loss::Three { 3 } else { 2 };
        let nodes = self.choose(count);
        let starts = self.starts().len();
        let (mut together, mut later) = (&nodes[..], &nodes[..0]);
        if loss == Loss::Rebuild {
            (together, later) = nodes.split_at(1);
        }
        let begun = Instant::now();
        self.lose_stores(together);
        let (newest, drained) = (self.newest(), self.drained());
        let ends_first = self.random.below(2) == 0;
        if ends_first {
            self.end_ranks();
        }
        self.start_movers(together);
        if !later.is_empty() {
            // Before the others have found each other again, or while parts are made again.
            self.pause(1500);
            self.lose_stores(later);
            self.start_movers(later);
        }
        if !ends_first {
            self.pause(1500);
            self.end_ranks();
        }
        let cluster = &self.cluster;
        let from = until(cluster, "the program goes on", || {
            let all = self.starts();
            let last = all.get(starts..)?.last()?;
            let bad = last.values().flat_map(|said| &said.other);
            let bad: Vec<&String> = bad.filter(|line| line.contains("OTHER")).collect();
            assert!(bad.is_empty(), "{loss:?}: {nodes:?}: {bad:?}");
            assert!(
                !last.values().any(|said| said.new),
                "{loss:?}: {nodes:?}: it began anew: {last:?}\n{}",
                logs(cluster)
            );
            let from = (0..NODES as u32).map(|rank| last.get(&rank)?.restored.clone());
            let from: Option<Vec<(String, u64)>> = from.collect();
            from
        });
        let took = begun.elapsed();
        let numbers: Vec<u32> = from.iter().filter_map(|own| own.0.parse().ok()).collect();
        let from = numbers[0];
        assert!(
            numbers.iter().all(|number| *number == from) && numbers.len() == NODES,
            "{loss:?}: {nodes:?}: they go on from several: {numbers:?}"
        );
        let said = format!(
            "{nodes:?} lost, {newest} was the newest, {drained} drained, it goes on from {from}"
        );
        match loss {
            Loss::Three if newest > drained => {
                assert_eq!(from, drained, "{said}");
                let told = self.passed_over();
                let newest = format!("checkpoint {newest}");
                assert!(
                    told.iter().any(|why| why.contains(&newest)),
                    "{said}: {told:?}"
                );
            }
            Loss::Three => assert!(from >= drained, "{said}"),
            _ => assert!(from >= newest, "{said}"),
        }
        let goes_on = self.newest();
        until(cluster, "another checkpoint", || {
            (self.newest() > goes_on.max(from)).then_some(())
        });
        (said, took)
    }
}
