//! Checkpoints on a real Slurm: a program saves itself, loses its node, and goes on from its last checkpoint on other nodes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gpuos_lab::Suite;
use gpuos_tests::cluster::LIMIT;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

per_suite!(
    ranks_go_on_after_their_node_is_lost,
    a_job_of_one_node_goes_on_from_what_was_drained,
    a_job_that_has_lost_all_its_nodes_goes_on_from_what_was_drained,
    checkpoints_go_on_after_movers_were_killed,
    a_program_that_starts_while_the_mover_is_away_joins_when_it_is_back,
    a_program_that_refuses_goes_back_over_a_requeue,
    a_job_of_which_all_is_refused_begins_anew_at_its_users_word,
    what_is_not_stored_is_said_where_its_user_looks,
);

/// Nodes with a mover each, and no gpuosd.
pub(crate) fn movers(name: &str, suite: &Suite, nodes: usize) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = nodes.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.steered()
}

/// The example of the documentation, which counts and saves.
pub(crate) fn counter() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the project");
    let (share, examples) = (root.join("share"), root.join("examples/checkpoint"));
    format!(
        "env GPUOS_HELPERS={} sh {}/counter.sh",
        share.display(),
        examples.display()
    )
}

pub(crate) fn output(cluster: &Cluster, job: u32) -> String {
    let file = cluster.lab.dir().join(format!("work/{job}.out"));
    fs::read_to_string(file).unwrap_or_default()
}

/// What the movers of all nodes have logged.
pub(crate) fn logs(cluster: &Cluster) -> String {
    let nodes = cluster.lab.spec().node_names();
    let told = nodes
        .iter()
        .map(|node| format!("== mover of {node}\n{}", cluster.lab.mover_log(node)));
    told.collect()
}

/// Waits until `done` gives a value; in vain with all that is known of movers and jobs.
pub(crate) fn until<T>(cluster: &Cluster, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        if let Some(value) = done() {
            return value;
        }
        if std::time::Instant::now() > deadline {
            let outputs: String = (1..4).map(|job| output(cluster, job)).collect();
            let queue = cluster.run("scontrol", &["show", "jobs"]);
            panic!(
                "waited in vain: {what}\n{}\n{outputs}\n{queue}",
                logs(cluster)
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Waits until a job is requeued, and has it start soon: slurmctld would hold it back for two minutes, for a node that comes back. Not in
/// the second in which its credential was revoked, though.
pub(crate) fn starts_soon(cluster: &Cluster, job: u32) {
    until(cluster, "the job is requeued", || {
        let state = cluster.lab.job_state(job).ok();
        state.filter(|state| state == "PENDING")
    });
    cluster.update(&[&format!("JobId={job}"), "StartTime=now+3"]);
}

/// Requeues a job, which starts soon.
pub(crate) fn requeue(cluster: &Cluster, job: u32) {
    cluster.run("scontrol", &["requeue", &job.to_string()]);
    starts_soon(cluster, job);
}

/// The number of the newest checkpoint that a job's programs were told of on a node.
pub(crate) fn committed(cluster: &Cluster, node: &str, job: u32) -> Option<u32> {
    let jobs = cluster.lab.checkpoints_dir(node).with_file_name("jobs");
    let file = jobs.join(job.to_string()).join("commit");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// What a rank's program has printed that begins with `word`: the numbers after it, in order.
pub(crate) fn said(cluster: &Cluster, job: u32, rank: u32, word: &str) -> Vec<(u32, u32)> {
    let start = format!("{rank}: {word} ");
    let text = output(cluster, job);
    // The last one may not be written to its end.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().filter_map(|line| line.strip_prefix(&start));
    let numbers = lines.filter_map(|line| {
        let (number, count) = line.split_once(" at ")?;
        Some((number.parse().ok()?, count.parse().ok()?))
    });
    numbers.collect()
}

/// Waits until ranks from 0 on have told that they saved this checkpoint, or a later one: what one tells just before its end may be lost.
pub(crate) fn have_told(cluster: &Cluster, job: u32, ranks: u32, number: u32) {
    until(cluster, "the ranks tell that they have saved", || {
        let told = |rank| {
            let saved = said(cluster, job, rank, "saved");
            saved.iter().any(|(of, _)| *of >= number)
        };
        (0..ranks).all(told).then_some(())
    });
}

/// Whether a rank that goes on from this checkpoint at this count has saved it so. Of the last one before its end it may have had no time
/// to tell, and what it told of the last two may not have come to the file: then it has told of the one before those, at a lower count.
pub(crate) fn had_saved(saved: &[(u32, u32)], (number, count): (u32, u32)) -> bool {
    let told = saved.iter().rfind(|(of, _)| *of <= number);
    told.is_some_and(|(of, at)| match number - *of {
        0 => *at == count,
        lost => lost <= 2 && *at < count,
    })
}

#[test]
fn a_rank_goes_on_from_what_it_has_told_or_one_of_the_next_two() {
    let saved = [(1, 10), (2, 20), (4, 40)];
    for whole in [(1, 10), (2, 20), (3, 21), (4, 40), (5, 41), (6, 60)] {
        assert!(had_saved(&saved, whole), "{whole:?}");
    }
    for other in [(1, 11), (2, 10), (3, 20), (4, 41), (5, 40), (7, 70), (0, 0)] {
        assert!(!had_saved(&saved, other), "{other:?}");
    }
    assert!(!had_saved(&[], (1, 10)), "nothing was ever told");
}

/// Ends everything of a node at once, and what its disk has of checkpoints; slurmctld is told that it is down. `programs`: ends those.
pub(crate) fn lose(cluster: &Cluster, node: &str, programs: impl FnOnce()) {
    cluster.kill_slurmd(node);
    programs();
    cluster.lab.kill_mover(node, libc::SIGKILL).expect("it ran");
    let store = cluster.lab.checkpoints_dir(node);
    fs::remove_dir_all(&store).expect("it had a store");
    cluster.update(&[&format!("NodeName={node}"), "State=DOWN", "Reason=lost"]);
}

/// A job of three ranks on three nodes, which saves every second if `more` does not say otherwise.
pub(crate) fn count(cluster: &Cluster, more: &[&str]) -> u32 {
    let script = format!("srun -l {} 100000 0.02", counter());
    let options = [
        "--requeue",
        "-N3",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--gpuos-checkpoint=1s,l2=xor:3",
    ];
    let job = cluster.sbatch(&[&options, more].concat(), &script);
    cluster.wait(job, &["RUNNING"]);
    job
}

/// Waits until a checkpoint is committed that is so much newer than the newest one.
fn more(cluster: &Cluster, job: u32, by: u32) -> u32 {
    let newest = committed(cluster, "n1", job).unwrap_or(0);
    until(cluster, "more checkpoints", || {
        committed(cluster, "n1", job).filter(|number| *number >= newest + by)
    })
}

/// A node is lost, and the job goes on from a checkpoint that is as new as what its programs knew of. `meanwhile`: done when it has
/// started again.
fn goes_on_without(cluster: &Cluster, node: &str, job: u32, meanwhile: impl FnOnce()) {
    let newest = committed(cluster, "n1", job).expect("it had one");
    have_told(cluster, job, 3, newest);
    lose(cluster, node, || {});
    let newest = committed(cluster, "n1", job).expect("it had one");
    starts_soon(cluster, job);
    cluster.wait(job, &["RUNNING"]);
    meanwhile();
    let restored = |rank| {
        until(cluster, "it goes on", || {
            said(cluster, job, rank, "restored checkpoint").pop()
        })
    };
    let from: Vec<(u32, u32)> = (0..3).map(restored).collect();
    for (rank, (number, count)) in (0..).zip(&from) {
        assert_eq!(
            *number, from[0].0,
            "all ranks go on from one checkpoint: {from:?}"
        );
        assert!(
            *number >= newest,
            "checkpoint {newest} was committed: {from:?}"
        );
        let saved = said(cluster, job, rank, "saved");
        assert!(
            had_saved(&saved, (*number, *count)),
            "rank {rank}: {saved:?}, {from:?}"
        );
    }
    until(cluster, "another checkpoint", || {
        committed(cluster, "n1", job).filter(|number| *number > newest + 1)
    });
}

fn a_job_of_one_node_goes_on_from_what_was_drained(suite: &Suite) {
    go_on_from_what_was_drained("ckpt-l3", suite, 1);
}

fn a_job_that_has_lost_all_its_nodes_goes_on_from_what_was_drained(suite: &Suite) {
    go_on_from_what_was_drained("ckpt-l3-all", suite, 2);
}

/// The newest checkpoint of which the parts of so many nodes are in a folder.
pub(crate) fn drained(folder: &Path, nodes: usize) -> Option<u32> {
    let of = |node: usize| {
        let ids = fs::read_dir(folder.join(format!("node-{node}"))).ok();
        let ids = ids.into_iter().flatten().flatten();
        let whole = ids.filter(|id| id.path().join("manifest").exists());
        let numbers = whole.filter_map(|id| {
            let name = id.file_name().into_string().ok()?;
            name.split_once('-')?.0.parse().ok()
        });
        numbers.collect::<BTreeSet<u32>>()
    };
    let all = (0..nodes).map(of).reduce(|one, other| &one & &other)?;
    all.last().copied()
}

/// Whether names of files can be read in what is drained of a node.
fn tells_names(folder: &Path) -> bool {
    let parts = fs::read_dir(folder.join("node-0")).into_iter().flatten();
    let manifests = parts.flatten().map(|id| id.path().join("manifest"));
    let mut bytes = manifests.filter_map(|manifest| fs::read(manifest).ok());
    bytes.any(|bytes| bytes.windows(5).any(|it| it == b"rank-"))
}

/// A job loses all of its nodes and what was on their disks, and goes on on as many others. With several nodes, what is kept is
/// compressed and encrypted.
fn go_on_from_what_was_drained(name: &str, suite: &Suite, nodes: usize) {
    let shared = tempfile::tempdir().expect("a folder");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(shared.path(), private).expect("it is ours");
    let form = match nodes {
        1 => "",
        _ => "compress = \"always\"\nencrypt = true\n",
    };
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = (2 * nodes).into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.gpuos_toml = Some(format!(
        "[checkpoint]\nenabled = true\nport = 0\nleast-seconds = 1\n{form}shared = {:?}\n",
        shared.path()
    ));
    let Some(cluster) = setup.steered() else {
        return;
    };
    let all = cluster.lab.spec().node_names();
    let script = format!("srun -l {} 100000 0.02", counter());
    let job = cluster.sbatch(
        &[
            "--requeue",
            &format!("-N{nodes}"),
            "--ntasks-per-node=1",
            "--open-mode=append",
            "--gpuos-checkpoint=1s,l3=every:1",
        ],
        &script,
    );
    cluster.wait(job, &["RUNNING"]);
    let drained = || drained(&shared.path().join(job.to_string()), nodes);
    until(&cluster, "one is drained", || {
        drained().filter(|number| *number >= 2)
    });
    have_told(&cluster, job, nodes as u32, 2);
    let folder = shared.path().join(job.to_string());
    assert_eq!(tells_names(&folder), form.is_empty());
    let of = |node: &&String| committed(&cluster, node, job).is_some();
    let lost: Vec<String> = all.iter().filter(of).cloned().collect();
    assert_eq!(lost.len(), nodes, "{lost:?}");
    let fresh: Vec<&String> = all.iter().filter(|node| !lost.contains(node)).collect();
    // A job that has lost all its nodes would start at once, in the second in which its credential was revoked.
    for node in &fresh {
        cluster.set_node(node, "DRAIN");
    }
    lost.iter().for_each(|node| lose(&cluster, node, || {}));
    let newest = drained().expect("it had one");
    starts_soon(&cluster, job);
    for node in &fresh {
        cluster.set_node(node, "RESUME");
    }
    cluster.wait(job, &["RUNNING"]);
    let restored = |rank| {
        until(&cluster, "it goes on", || {
            said(&cluster, job, rank, "restored checkpoint").pop()
        })
    };
    for rank in 0..nodes as u32 {
        let (number, count) = restored(rank);
        assert!(number >= newest, "{number}, and {newest} was drained");
        let saved = said(&cluster, job, rank, "saved");
        assert!(
            had_saved(&saved, (number, count)),
            "{saved:?}, {number} at {count}"
        );
    }
    until(&cluster, "another checkpoint", || {
        committed(&cluster, fresh[0], job).filter(|number| *number > newest + 1)
    });
}

fn ranks_go_on_after_their_node_is_lost(suite: &Suite) {
    let Some(cluster) = movers("ckpt-lost", suite, 4) else {
        return;
    };
    let job = count(&cluster, &[]);
    more(&cluster, job, 2);
    goes_on_without(&cluster, "n2", job, || {});
}

/// Movers of nodes end in the midst of what they do, and come back.
fn kill_and_start(cluster: &Cluster, nodes: &[&str]) {
    for node in nodes {
        let killed = cluster.lab.kill_mover(node, libc::SIGKILL);
        assert!(killed.expect("it can be killed"), "{node} had one");
    }
    for node in nodes {
        cluster.lab.start_mover(node).expect("it starts");
    }
}

fn checkpoints_go_on_after_movers_were_killed(suite: &Suite) {
    let Some(cluster) = movers("ckpt-killed", suite, 4) else {
        return;
    };
    let job = count(&cluster, &[]);
    more(&cluster, job, 1);
    let again = |nodes: &[&str]| {
        kill_and_start(&cluster, nodes);
        more(&cluster, job, 2);
    };
    // One that leads, one that does not, at some moment; all of them.
    for nodes in [&["n3"][..], &["n1"], &["n1", "n2", "n3"]] {
        again(nodes);
    }
    if std::env::var_os("GPUOS_LONG").is_some() {
        for round in 0..30 {
            std::thread::sleep(std::time::Duration::from_millis(round * 37));
            again(&[["n1", "n2", "n3"][round as usize % 3]]);
        }
    }
    for rank in 0..3 {
        let restored = said(&cluster, job, rank, "restored checkpoint");
        assert_eq!(restored, [], "the program has run all the time");
    }
    goes_on_without(&cluster, "n2", job, || {
        // While its rank waits for its files, or gets them.
        let folder = cluster.lab.checkpoints_dir("n3").with_file_name("jobs");
        let folder = folder.join(job.to_string());
        until(&cluster, "a rank joins in the second run", || {
            let run = fs::read_to_string(folder.join("run")).ok()?;
            let mut ranks = fs::read_dir(folder.join("ranks")).ok()?;
            (run.starts_with("1 ") && ranks.next().is_some()).then_some(())
        });
        let mut names = fs::read_dir(&folder).expect("it is there").flatten();
        let told = names.any(|name| name.file_name().to_string_lossy().starts_with("start."));
        println!("killed before its answer: {}", !told);
        kill_and_start(&cluster, &["n3"]);
    });
}

fn a_program_that_starts_while_the_mover_is_away_joins_when_it_is_back(suite: &Suite) {
    let Some(cluster) = movers("ckpt-away", suite, 1) else {
        return;
    };
    let killed = cluster.lab.kill_mover("n1", libc::SIGKILL);
    assert!(killed.expect("it can be killed"), "n1 had one");
    let script = format!("{} 100000 0.02", counter());
    let options = ["--requeue", "-N1", "--gpuos-checkpoint=1s"];
    let job = cluster.sbatch(&options, &script);
    let folder = cluster.lab.checkpoints_dir("n1").with_file_name("jobs");
    let ranks = folder.join(job.to_string()).join("ranks");
    until(&cluster, "its rank has joined", || {
        let mut names = fs::read_dir(&ranks).ok()?;
        names.next().map(|_| ())
    });
    let text = until(&cluster, "it is told that it waits", || {
        let text = output(&cluster, job);
        text.contains("the program waits for it").then_some(text)
    });
    assert!(!text.contains("new"), "{text}");
    cluster.lab.start_mover("n1").expect("it starts");
    until(&cluster, "a checkpoint", || committed(&cluster, "n1", job));
}

/// A program in sh that saves a count, and cannot load one that is above `$MOST`. While there is a file `bad` it saves what nobody can store.
const FUSSY: &str = r#"
set -u
. "$GPUOS_HELPERS/gpuos-checkpoint.sh"
gpuos_checkpoint_start || exit 1
until [ -z "$gpuos_checkpoint_from" ] || [ "$(cat "$gpuos_checkpoint_from/count")" -le "$MOST" ]; do
    echo "refused $gpuos_checkpoint_restored"
    gpuos_checkpoint_refuse "the count is $(cat "$gpuos_checkpoint_from/count")"
    gpuos_checkpoint_start || exit 1
done
count=0
[ -z "$gpuos_checkpoint_from" ] || count=$(cat "$gpuos_checkpoint_from/count")
echo "goes on at $count from ${gpuos_checkpoint_restored:-none}"
while :; do
    sleep 0.05
    gpuos_checkpoint_wanted && gpuos_checkpoint_folder "$gpuos_checkpoint_number" || continue
    count=$((count + 1))
    echo "$count" >"$gpuos_checkpoint_into/count"
    [ ! -e bad ] || mkfifo "$gpuos_checkpoint_into/pipe"
    gpuos_checkpoint_ready "$gpuos_checkpoint_number" && gpuos_checkpoint_wait "$gpuos_checkpoint_number" && echo "saved $count" || echo "lost: $gpuos_checkpoint_why"
done
"#;

/// A job of [`FUSSY`], which has begun.
struct FussyJob<'a> {
    cluster: &'a Cluster,
    job: u32,
}

impl FussyJob<'_> {
    /// Submits it on two nodes, with the highest count that it loads.
    fn submit(cluster: &Cluster, most: u32) -> FussyJob<'_> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let share = root.canonicalize().expect("the project").join("share");
        // Without a blank line: scontrol of 26.05 prints the script in the job's record.
        let script = format!(
            "export GPUOS_HELPERS={} MOST={most}\n{}",
            share.display(),
            FUSSY.trim()
        );
        let options = [
            "--requeue",
            "-N2",
            "--open-mode=append",
            "--gpuos-checkpoint=1h,l2=partner",
        ];
        let job = cluster.sbatch(&options, &script);
        let submitted = FussyJob { cluster, job };
        submitted.says("goes on at 0 from none", 1);
        submitted
    }

    fn says(&self, what: &str, times: usize) {
        until(self.cluster, what, || {
            let text = output(self.cluster, self.job);
            (text.matches(what).count() >= times).then_some(())
        });
    }

    /// Runs the command, which asks the mover of a node.
    fn gpuos(&self, node: &str, words: &str) -> String {
        self.try_gpuos(node, words).expect(words)
    }

    fn try_gpuos(&self, node: &str, words: &str) -> Result<String, String> {
        let program = plugins::programs().join("gpuos");
        let sockets = self.cluster.lab.gpuosd_runtime_dir(node);
        let sockets = sockets.to_str().expect("UTF-8");
        let words = words.split(' ').chain(["--runtime-dir", sockets]);
        let words: Vec<&str> = words.collect();
        let program = program.display().to_string();
        self.cluster.try_run(&program, &words)
    }

    fn save(&self, count: u32) {
        println!("{}", self.gpuos("n1", &format!("ckpt now {}", self.job)));
        self.says(&format!("saved {count}"), 1);
    }
}

fn a_program_that_refuses_goes_back_over_a_requeue(suite: &Suite) {
    let Some(cluster) = movers("ckpt-refuse", suite, 2) else {
        return;
    };
    let fussy = FussyJob::submit(&cluster, 1);
    fussy.save(1);
    fussy.save(2);
    // The second is refused, and the mark holds in the runs after that one.
    requeue(&cluster, fussy.job);
    fussy.says("refused 2", 1);
    fussy.says("goes on at 1 from 1", 1);
    let shown = fussy.gpuos("n1", &format!("ckpt show {}", fussy.job));
    assert!(
        shown.contains("checkpoint 2 is refused by rank 0 on n1: the count is 2"),
        "{shown}"
    );
    println!("{shown}");
    until(&cluster, "show says from where it went on", || {
        let shown = fussy.gpuos("n1", &format!("ckpt show {}", fussy.job));
        shown.contains("went on from checkpoint 1").then_some(())
    });
    requeue(&cluster, fussy.job);
    fussy.says("goes on at 1 from 1", 2);
    let text = output(&cluster, fussy.job);
    assert_eq!(text.matches("refused 2").count(), 1);
}

/// Its user removes what the program refuses, and the same job begins from its start.
fn a_job_of_which_all_is_refused_begins_anew_at_its_users_word(suite: &Suite) {
    let Some(cluster) = movers("ckpt-refuse-all", suite, 2) else {
        return;
    };
    let fussy = FussyJob::submit(&cluster, 0);
    fussy.save(1);
    // As from a login node, which has no gpuos_mover.
    until(&cluster, "list by its record", || {
        let listed = fussy.gpuos("login", "ckpt list");
        (listed.contains("run 0 on n[1-2]: checkpoint 1 was made")
            && listed.contains("RUNNING  n[1-2]"))
        .then(|| println!("{listed}"))
    });
    requeue(&cluster, fussy.job);
    fussy.says("refused 1", 1);
    fussy.says("gpuos ckpt prune --anew", 1);
    until(&cluster, "it has failed", || {
        cluster
            .show(fussy.job)
            .contains("JobState=FAILED")
            .then_some(())
    });
    for node in ["n1", "n2"] {
        let removed = until(&cluster, "its mover knows that it has ended", || {
            let removed = fussy.try_gpuos(node, &format!("ckpt prune {}", fussy.job));
            removed.ok()
        });
        println!("{removed}");
        let gone = format!("{node}: what was kept of job {} is removed", fussy.job);
        assert!(removed.contains(&gone), "{removed}");
    }
    // Slurm lets nobody change the record of a job that has ended.
    let job = fussy.job.to_string();
    cluster.run("scontrol", &["requeuehold", &job]);
    let begins = until(&cluster, "it waits, and is to begin anew", || {
        let said = fussy.try_gpuos("n2", &format!("ckpt prune --anew {job}"));
        said.ok()
            .filter(|said| said.contains("begins from its start"))
    });
    println!("{begins}");
    cluster.run("scontrol", &["release", &job]);
    starts_soon(&cluster, fussy.job);
    fussy.says("goes on at 0 from none", 2);
    cluster.cancel(&[fussy.job]);
}

fn what_is_not_stored_is_said_where_its_user_looks(suite: &Suite) {
    let Some(cluster) = movers("ckpt-unsaved", suite, 2) else {
        return;
    };
    let fussy = FussyJob::submit(&cluster, 9);
    fussy.save(1);
    let bad = cluster.lab.dir().join("work/bad");
    fs::write(&bad, "").expect("the job's folder");
    let now = format!("ckpt now {}", fussy.job);
    let refused = fussy.try_gpuos("n1", &now).expect_err("it is not stored");
    assert!(refused.contains("came to nothing"), "{refused}");
    let job = fussy.job.to_string();
    until(&cluster, "its record says so", || {
        let comment = cluster.show(fussy.job);
        (comment.contains("made=1") && comment.contains("gpuos: not saved: checkpoint 2"))
            .then_some(())
    });
    // As from a login node, which has no gpuos_mover.
    let listed = fussy.gpuos("login", "ckpt list");
    let why = fussy.gpuos("login", &format!("why {job}"));
    println!("{listed}\n{why}");
    let line = format!("job {job}: checkpoints come to nothing: checkpoint 2");
    assert!(listed.contains(&line), "{listed}");
    let sentence = "By its record its checkpoints come to nothing: checkpoint 2";
    assert!(why.contains(sentence), "{why}");
    fussy.says("lost: cannot read", 1);
    fs::remove_file(&bad).expect("it is there");
    fussy.gpuos("n1", &now);
    until(&cluster, "its record says so no more", || {
        let comment = cluster.show(fussy.job);
        (!comment.contains("not saved") && comment.contains("made=3")).then_some(())
    });
    cluster.cancel(&[fussy.job]);
}
