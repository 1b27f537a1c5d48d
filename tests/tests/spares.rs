//! `gpuos run` on a real Slurm: a program loses a node and goes on on a spare one, in the same job, without the queue.

use std::fs;
use std::time::Instant;

use gpuos_lab::Suite;
use gpuos_tests::{Cluster, Setup, per_suite, plugins};

use super::checkpoint::{committed, counter, had_saved, have_told, lose, output, said, until};
use super::checkpoint_matrix::{kill, slurmstepd};

per_suite!(
    a_program_goes_on_on_spare_nodes,
    without_a_spare_left_the_job_is_requeued,
    what_is_said_of_spares_is_what_happens,
);

/// Nodes with a mover each, and checks at submission.
fn movers(name: &str, suite: &Suite, nodes: usize) -> Option<Cluster> {
    let mut setup = Setup::new(name, suite);
    setup.spec.nodes = nodes.into();
    setup.spec.movers = Some(plugins::daemons().to_path_buf());
    setup.spec.job_submit = true;
    setup.steered()
}

/// A job of so many nodes and spares, whose program counts and saves every second.
fn count(cluster: &Cluster, nodes: usize, spares: usize, more: &[&str]) -> u32 {
    let gpuos = plugins::programs().join("gpuos");
    let script = format!(
        "{} run --verbose -l {} 100000 0.02",
        gpuos.display(),
        counter()
    );
    let (nodes, spares) = (format!("-N{nodes}"), format!("--gpuos-spares={spares}"));
    let usual = [
        &nodes[..],
        &spares,
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--gpuos-checkpoint=1s,l2=xor:3",
    ];
    let job = cluster.sbatch(&[&usual, more].concat(), &script);
    cluster.wait(job, &["RUNNING"]);
    job
}

/// Ends everything of a node at once, the processes of its jobs, too.
fn lose_all(cluster: &Cluster, node: &str) {
    lose(cluster, node, || end_programs(cluster, node));
}

/// Ends the programs with checkpoints of a node, and their slurmstepds.
fn end_programs(cluster: &Cluster, node: &str) {
    let jobs = cluster.lab.checkpoints_dir(node).with_file_name("jobs");
    let variable = format!("GPUOS_CHECKPOINT_DIR={}/", jobs.display());
    for process in fs::read_dir("/proc").expect("it is there").flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let pid = process.file_name().to_string_lossy().parse();
        if let Ok(pid) = pid
            && environment
                .split('\0')
                .any(|entry| entry.starts_with(&variable))
        {
            if let Some(above) = slurmstepd(pid) {
                kill(above);
            }
            kill(pid);
        }
    }
}

/// The nodes on which the job's program runs now.
fn nodes(cluster: &Cluster, job: u32) -> String {
    let text = cluster.run(
        "squeue",
        &[
            "--steps",
            "--noheader",
            "-j",
            &job.to_string(),
            "-o",
            "%i %N",
        ],
    );
    let mut steps = text
        .lines()
        .filter(|line| !line.contains(".batch") && !line.contains(".extern"));
    steps
        .next_back()
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap_or_default()
        .into()
}

/// Waits until the job's program runs on these: the step that was lost may be shown for a while.
fn runs_on(cluster: &Cluster, job: u32, wanted: &str) {
    until(cluster, &format!("it runs on {wanted}"), || {
        (nodes(cluster, job) == wanted).then_some(())
    });
}

/// All ranks have gone on so many times, the last time from one checkpoint that is as new as `newest`, with what they had saved for it.
fn have_gone_on(cluster: &Cluster, job: u32, times: usize, newest: u32) -> u32 {
    let begun = Instant::now();
    let restored = |rank| {
        until(cluster, "it goes on", || {
            let all = said(cluster, job, rank, "restored checkpoint");
            (all.len() == times).then(|| all.last().copied())?
        })
    };
    let from: Vec<(u32, u32)> = (0..3).map(restored).collect();
    println!("all ranks go on after {} ms", begun.elapsed().as_millis());
    for (rank, (number, count)) in (0..).zip(&from) {
        assert_eq!(*number, from[0].0, "one checkpoint: {from:?}");
        assert!(*number >= newest, "{newest} was committed: {from:?}");
        let saved = said(cluster, job, rank, "saved");
        assert!(
            had_saved(&saved, (*number, *count)),
            "rank {rank}: {saved:?}, {from:?}"
        );
    }
    until(cluster, "another checkpoint", || {
        committed(cluster, "n1", job).filter(|number| *number > from[0].0)
    })
}

fn restarts(cluster: &Cluster, job: u32) -> u32 {
    let text = cluster.run("scontrol", &["show", "job", &job.to_string()]);
    let word = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("Restarts="));
    word.and_then(|word| word.parse().ok()).expect("Restarts=")
}

/// Two checkpoints more, of which the ranks have told: of the first one after a loss alone they may have had no time to.
fn two_more(cluster: &Cluster, job: u32, newest: u32) -> u32 {
    let more = until(cluster, "two more", || {
        committed(cluster, "n1", job).filter(|number| *number >= newest + 2)
    });
    have_told(cluster, job, 3, more);
    more
}

fn a_program_goes_on_on_spare_nodes(suite: &Suite) {
    let Some(cluster) = movers("spares", suite, 5) else {
        return;
    };
    let job = count(&cluster, 3, 2, &[]);
    until(&cluster, "a checkpoint", || committed(&cluster, "n1", job));
    runs_on(&cluster, job, "n[1-3]");
    let newest = until(&cluster, "two checkpoints", || {
        committed(&cluster, "n1", job).filter(|number| *number >= 2)
    });
    have_told(&cluster, job, 3, newest);
    lose_all(&cluster, "n2");
    let newest = have_gone_on(&cluster, job, 1, newest);
    runs_on(&cluster, job, "n[1,3-4]");
    let newest = two_more(&cluster, job, newest);
    // And the one that has just come.
    lose_all(&cluster, "n4");
    have_gone_on(&cluster, job, 2, newest);
    runs_on(&cluster, job, "n[1,3,5]");
    assert_eq!(restarts(&cluster, job), 0);
    let text = output(&cluster, job);
    println!("{}", sentences(&text));
    for sentence in [
        "gpuos run: node n2 is lost",
        "the program is started again on n[1,3-4] from checkpoint",
        "gpuos run: node n4 is lost",
        "the program is started again on n[1,3,5] from checkpoint",
    ] {
        assert!(text.contains(sentence), "{sentence}:\n{text}");
    }
}

/// What `gpuos run` and Slurm have said.
fn sentences(text: &str) -> String {
    let own = |line: &&str| line.contains("gpuos run: ") || line.contains("srun: ");
    let lines: Vec<&str> = text.lines().filter(own).collect();
    lines.join("\n")
}

fn without_a_spare_left_the_job_is_requeued(suite: &Suite) {
    let Some(cluster) = movers("spares-few", suite, 5) else {
        return;
    };
    let job = count(&cluster, 3, 1, &["--requeue"]);
    let newest = until(&cluster, "checkpoints", || {
        committed(&cluster, "n1", job).filter(|number| *number >= 2)
    });
    have_told(&cluster, job, 3, newest);
    lose_all(&cluster, "n2");
    let newest = have_gone_on(&cluster, job, 1, newest);
    let newest = two_more(&cluster, job, newest);
    assert_eq!(restarts(&cluster, job), 0);
    lose_all(&cluster, "n3");
    until(&cluster, "the job is requeued", || {
        let state = cluster.lab.job_state(job).ok();
        state.filter(|state| state == "PENDING")
    });
    let text = output(&cluster, job);
    println!("{}", sentences(&text));
    assert!(text.contains(&format!("job {job} is requeued")), "{text}");
    assert!(restarts(&cluster, job) >= 1);
    // It needs four nodes, of which three are left.
    assert!(newest > 0);
    revive(&cluster, "n3");
    cluster.update(&[&format!("JobId={job}"), "StartTime=now+3"]);
    cluster.wait(job, &["RUNNING"]);
    have_gone_on(&cluster, job, 2, newest);
}

/// A node comes back, with an empty disk.
fn revive(cluster: &Cluster, node: &str) {
    cluster.lab.start_slurmd(node).expect("it starts");
    cluster.lab.start_mover(node).expect("it starts");
    let name = format!("NodeName={node}");
    // Slurm may have resumed it by itself.
    let _ = cluster.try_run("scontrol", &["update", &name, "State=RESUME"]);
}

fn what_is_said_of_spares_is_what_happens(suite: &Suite) {
    let Some(cluster) = movers("spares-words", suite, 4) else {
        return;
    };
    let refused = |options: &[&str], why: &str| {
        let said = cluster
            .try_sbatch(options, "true")
            .expect_err("it is refused");
        assert!(said.contains(why), "{options:?}: {said}");
    };
    let checkpoints = "--gpuos-checkpoint=1h,l2=single";
    refused(
        &["-N2", "--gpuos-spares=1"],
        "write --gpuos-checkpoint with it",
    );
    refused(
        &[checkpoints, "--gpuos-spares=1", "-n4"],
        "how many nodes the program needs is not said",
    );
    refused(
        &[checkpoints, "--gpuos-spares=1", "-N2", "-n3"],
        "3 tasks are not the same number",
    );
    refused(
        &[checkpoints, "--gpuos-spares=1", "-N2", "--gpus=2"],
        "--gpus-per-node=N",
    );
    refused(
        &[checkpoints, "--gpuos-spares=0", "-N2"],
        "write a number of nodes from 1 to 1023",
    );
    let gpuos = plugins::programs().join("gpuos");
    let gpuos = gpuos.display();
    let script = format!(
        "echo all $SLURM_JOB_NUM_NODES $SLURM_NTASKS $GPUOS_JOB_SPARES dir:$GPUOS_CHECKPOINT_DIR; \
         {gpuos} run sh -c 'echo in $SLURM_NNODES $SLURM_NTASKS $SLURM_STEP_NUM_TASKS dir:$GPUOS_CHECKPOINT_DIR run:$GPUOS_RUN_START'; \
         srun -N1 -n1 sh -c 'echo plain dir:$GPUOS_CHECKPOINT_DIR'; \
         {gpuos} run --tries-failed=2 sh -c 'echo fails; exit 7'; echo code $?"
    );
    let job = cluster.sbatch(
        &[
            "-N2",
            "--ntasks-per-node=2",
            "--gpuos-spares=1",
            checkpoints,
        ],
        &script,
    );
    cluster.wait(job, &["COMPLETED"]);
    let text = output(&cluster, job);
    println!("{text}");
    let times = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    // Some releases have the tasks as they were asked for, others all.
    assert!(
        ["all 3 4 1 dir:\n", "all 3 6 1 dir:\n"]
            .iter()
            .any(|line| text.contains(line)),
        "{text}"
    );
    assert_eq!(times("in 2 4 4 dir:/"), 4, "{text}");
    assert!(!text.contains("run:1"), "{text}");
    assert!(text.contains("plain dir:\n"), "{text}");
    assert!(
        text.contains("its program is what `gpuos run` starts"),
        "{text}"
    );
    assert!(
        text.contains("it has failed 2 times without a new checkpoint"),
        "{text}"
    );
    assert!(text.contains("code 7\n"), "{text}");
    // Tasks without a word of how many a node gets.
    let script = format!("{gpuos} run sh -c 'echo in $SLURM_NNODES $SLURM_NTASKS'");
    let job = cluster.sbatch(&["-N2", "-n6", "--gpuos-spares=1", checkpoints], &script);
    cluster.wait(job, &["COMPLETED"]);
    let text = output(&cluster, job);
    let tasks = text.lines().filter(|line| *line == "in 2 6").count();
    assert_eq!(tasks, 6, "{text}");
    // Nothing in this is another one on another release.
    if *suite == Suite::Native {
        with_no_spare_the_program_goes_on_with_fewer_nodes(&cluster);
    }
}

/// Counts and saves, and goes on from what any number of ranks has saved: all have the same count, nearly.
const ANY: &str = r#"
. "$GPUOS_HELPERS/gpuos-checkpoint.sh"
gpuos_checkpoint_any_ranks
gpuos_checkpoint_start || exit 1
count=0
if [ -n "$gpuos_checkpoint_from" ]; then
    for file in "$gpuos_checkpoint_from/count" "$gpuos_checkpoint_from"/rank-0-of-*/count; do
        [ ! -f "$file" ] || count=$(cat "$file")
    done
    # The test waits for the line after it.
    echo "of $gpuos_checkpoint_ranks ranks"
    echo "restored checkpoint $gpuos_checkpoint_restored at $count"
fi
while :; do
    sleep 0.02
    count=$((count + 1))
    gpuos_checkpoint_wanted || continue
    number=$gpuos_checkpoint_number
    gpuos_checkpoint_folder "$number" || continue
    echo "$count" >"$gpuos_checkpoint_into/count"
    ! gpuos_checkpoint_ready "$number" || echo "saved $number at $count"
done
"#;

/// `gpuos run --least` in a job without spares that lives on when a node is lost.
fn with_no_spare_the_program_goes_on_with_fewer_nodes(cluster: &Cluster) {
    let program = cluster.lab.dir().join("work/any.sh");
    fs::write(&program, ANY).expect("it is writable");
    let (counter, gpuos) = (counter(), plugins::programs().join("gpuos"));
    let helpers = counter.split(' ').nth(1).expect("GPUOS_HELPERS=");
    let script = format!(
        "{} run --least=2 --verbose -l env {helpers} sh {}",
        gpuos.display(),
        program.display()
    );
    let options = [
        "-N3",
        "--ntasks-per-node=1",
        "--no-kill",
        "--gpuos-checkpoint=1s,l2=partner",
    ];
    let job = cluster.sbatch(&options, &script);
    cluster.wait(job, &["RUNNING"]);
    let newest = until(cluster, "two checkpoints", || {
        committed(cluster, "n1", job).filter(|number| *number >= 2)
    });
    runs_on(cluster, job, "n[1-3]");
    have_told(cluster, job, 3, newest);
    lose_all(cluster, "n2");
    let from = [0, 1].map(|rank| {
        until(cluster, "it goes on", || {
            said(cluster, job, rank, "restored checkpoint").pop()
        })
    });
    runs_on(cluster, job, "n[1,3]");
    let text = output(cluster, job);
    println!("{}", sentences(&text));
    let (number, count) = from[0];
    assert!(number >= newest && from[1] == from[0], "{newest}: {from:?}");
    let saved = said(cluster, job, 0, "saved");
    assert!(had_saved(&saved, (number, count)), "{saved:?}, {from:?}");
    for sentence in [
        "0: of 3 ranks",
        "1: of 3 ranks",
        "gpuos run: node n2 is lost",
        "the program is started again on n[1,3] from checkpoint",
    ] {
        assert!(text.contains(sentence), "{sentence}:\n{text}");
    }
    assert_eq!(restarts(cluster, job), 0);
    until(cluster, "a checkpoint of two ranks", || {
        committed(cluster, "n1", job).filter(|newest| *newest > number + 1)
    });
    cluster.cancel(&[job]);
}
