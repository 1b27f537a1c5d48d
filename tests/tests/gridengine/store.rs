//! Checkpoints of jobs of Grid Engine that gpuos_mover keeps: a counter that goes on where it was, on other hosts and after kills.

use std::fs;
use std::path::Path;
use std::time::Instant;

use gpuos_tests::costs;

use super::lab::{Grid, HOSTS, packages};

/// A counter of the examples, and what it was told.
fn counter() -> String {
    let of = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        path.display().to_string()
    };
    let (share, examples) = (of("share"), of("examples/checkpoint"));
    format!(
        "echo \"on $(hostname) [$GPUOS_CHECKPOINT_DIR] [$GPUOS_SAVES]\"\n\
         GPUOS_HELPERS={share} exec sh {examples}/counter.sh 1000000 0.02"
    )
}

/// The last word of each line that begins so.
fn words(grid: &Grid, user: &str, job: &str, begins: &str) -> Vec<String> {
    let said = grid.written(user, job);
    let lines = said.lines().filter(|line| line.starts_with(begins));
    let last = lines.filter_map(|line| line.split_whitespace().next_back());
    last.map(String::from).collect()
}

/// Jobs start on this host alone from now on.
fn only(grid: &Grid, host: &str) {
    for other in HOSTS {
        let flag = if other == host { "-e" } else { "-d" };
        grid.ok("head", "root", &format!("qmod {flag} '*@{other}'"));
    }
}

/// Has a job make a checkpoint.
fn now(grid: &Grid, host: &str, job: &str) {
    // Its program joins some time after its start.
    grid.until("the program joins", |grid| {
        let line = format!("gpuos --json ckpt show --local {job}.1");
        let said = grid.sh(host, "alice", &line);
        String::from_utf8_lossy(&said.stdout).contains("\"phase\": \"running\"")
            || String::from_utf8_lossy(&said.stdout).contains("\"phase\":\"running\"")
    });
    let line = format!("gpuos ckpt now --local {job}.1");
    let said = grid.ok(host, "alice", &line);
    assert!(said.contains("is committed"), "{said}");
}

/// Waits until a job goes on for the so many-th time, and looks that it does where it saved last, on this host.
fn goes_on(grid: &Grid, job: &str, times: usize, host: &str) {
    grid.until("the counter goes on", |grid| {
        words(grid, "alice", job, "restored checkpoint").len() >= times
    });
    let said = grid.written("alice", job);
    let restored = words(grid, "alice", job, "restored checkpoint");
    let saved = words(grid, "alice", job, "saved");
    assert!(saved.contains(&restored[times - 1]), "{said}");
    assert_eq!(said.matches("new\n").count(), 1, "{said}");
    let hosts: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("on "))
        .collect();
    let last = hosts.last().copied().unwrap_or_default();
    assert!(last.starts_with(&format!("on {host} [")), "{said}");
}

#[test]
fn a_job_goes_on_from_what_gpuos_mover_keeps() {
    let Some(packages) = packages("Grid Engine: checkpoints that gpuos_mover keeps") else {
        return;
    };
    let _cost = costs::of("slurm::gridengine::store");
    let grid = Grid::up_with_movers(&packages);
    let began = Instant::now();
    let took = |what: &str| eprintln!("{what}: after {:.1} s", began.elapsed().as_secs_f64());
    let first = moved(&grid);
    took("moved");
    hostile(&grid, &first);
    took("hostile");
    killed(&grid, &first);
    took("killed");
    waits(&grid, &first);
    took("waits");
}

fn kept(grid: &Grid, host: &str, job: &str) -> bool {
    let folder = grid.dir.join(format!("hosts/{host}/mover/kept/{job}.1"));
    folder.exists()
}

/// Suspended, a job saves and goes to another host; started again by its user, too.
fn moved(grid: &Grid) -> String {
    only(grid, "n1");
    let options = "-ckpt gpuos -l gpuos_checkpoint=1h,gpu=1";
    let job = grid.qsub("alice", options, &counter());
    grid.until("the counter counts", |grid| {
        grid.written("alice", &job).contains("new\n")
    });
    let folder = grid.dir.join(format!("hosts/n1/mover/jobs/{job}.1"));
    let said = grid.written("alice", &job);
    assert!(
        said.starts_with(&format!("on n1 [{}] []\n", folder.display())),
        "{said}"
    );
    now(grid, "n1", &job);
    only(grid, "n2");
    grid.ok("head", "alice", &format!("qmod -sj {job}"));
    goes_on(grid, &job, 1, "n2");
    // What n1 kept came from there, by what sge_qmaster remembers of the job.
    let gave = "node n1, which the job does not have now, gave the part of node 0";
    assert!(grid.mover_log("n2").contains(gave));
    let told = grid.ok("head", "alice", &format!("qstat -j {job}"));
    assert!(
        told.contains("gpuos_at_n1") && told.contains("gpuos_at_n2"),
        "{told}"
    );
    // The migration had it save once more.
    assert_eq!(words(grid, "alice", &job, "saved").len(), 2);
    now(grid, "n2", &job);
    only(grid, "n1");
    grid.ok("head", "alice", &format!("qmod -rj {job}"));
    goes_on(grid, &job, 2, "n1");
    assert!(kept(grid, "n1", &job) && kept(grid, "n2", &job));
    job
}

/// What a user writes gives him nothing of another's.
fn hostile(grid: &Grid, other: &str) {
    let folder = grid.dir.join(format!("hosts/n1/mover/jobs/{other}.1"));
    for verb in ["now", "show", "verify", "prune", "restart"] {
        let line = format!("gpuos ckpt {verb} --local {other}.1");
        let said = grid.sh("n1", "bob", &line);
        assert!(!said.status.success(), "{verb}: {said:?}");
    }
    // Another's folder, number and hosts, in environment, context and name.
    let options = format!(
        "-ckpt gpuos -ac gpuos_at_n2,gpuos_checkpoint=1h -v GPUOS_CHECKPOINT_DIR={0},JOB_ID={other},GPUOS_MOVER=/tmp -N 'x<JB_job_number>{other}'",
        folder.display()
    );
    let job = grid.qsub(
        "bob",
        &options,
        "echo \"[$GPUOS_CHECKPOINT_DIR]\"; ls \"$GPUOS_CHECKPOINT_DIR\" >&2",
    );
    grid.until("the job ends", |grid| grid.is_gone(&job));
    let home = grid.dir.join("home/bob");
    let said = fs::read_to_string(home.join(format!("x<JB_job_number>{other}.o{job}")));
    let own = grid.dir.join(format!("hosts/n1/mover/jobs/{job}.1"));
    assert_eq!(said.unwrap_or_default(), format!("[{}]\n", own.display()));
    // Once it is there a user can write its context: what is no exec host is not asked, and another's job not changed.
    let lies = "gpuos_at_evil.example.org,gpuos_at_head,gpuos_at_-x";
    assert!(
        !grid
            .sh("head", "bob", &format!("qalter -ac {lies} {other}"))
            .status
            .success()
    );
    grid.ok("head", "alice", &format!("qalter -ac {lies} {other}"));
    // No checkpointing environment, or a value that is none.
    for (options, words) in [
        ("-l gpuos_checkpoint=10m", "write -ckpt gpuos with it"),
        (
            "-ckpt gpuos -l gpuos_checkpoint=soon",
            "gpuos_checkpoint=soon",
        ),
        (
            "-ckpt gpuos -l gpuos_checkpoint=10m+l0=1G",
            "no folder in memory",
        ),
    ] {
        let line = format!("qsub -b y {options} true");
        let said = grid.sh("head", "bob", &line);
        let text = String::from_utf8_lossy(&said.stderr).into_owned()
            + &String::from_utf8_lossy(&said.stdout);
        assert!(
            !said.status.success() && text.contains(words),
            "{options}: {text}"
        );
    }
}

/// Neither a gpuos_mover nor a sge_execd that is killed ends checkpoints, and a host that is lost has the job go on from the parallel
/// file system.
fn killed(grid: &Grid, job: &str) {
    assert_eq!(grid.kill("n1", "gpuos_mover"), 1);
    assert_eq!(grid.kill("n1", "sge_execd"), 1);
    grid.start_execd("n1");
    grid.start_mover("n1");
    let saved = words(grid, "alice", job, "saved").len();
    now(grid, "n1", job);
    let said = words(grid, "alice", job, "saved");
    assert_eq!(said.len(), saved + 1, "the same program goes on: {said:?}");
    grid.until("it is drained", |grid| {
        let log = grid.mover_log("n1");
        let restarted = log.rsplit("gpuos_mover 0").next().unwrap_or_default();
        restarted.contains("is drained")
    });
    only(grid, "n2");
    assert_eq!(grid.kill("n1", "gpuos_mover"), 1);
    assert_eq!(grid.kill("n1", "sge_execd"), 1);
    assert_eq!(grid.kill("n1", "sge_shepherd"), 1);
    assert!(grid.kill("n1", "sh.counter[.]sh") >= 1);
    grid.ok("head", "alice", &format!("qmod -rj {job}"));
    goes_on(grid, job, 3, "n2");
    let restored = words(grid, "alice", job, "restored checkpoint");
    assert_eq!(
        restored.last(),
        said.last(),
        "from the newest, which n1 alone had"
    );
}

/// A job that waits for its restart keeps its checkpoints; those of one that is gone are removed.
fn waits(grid: &Grid, job: &str) {
    let drained = grid.dir.join(format!("pfs/{job}.1"));
    let again = |grid: &Grid| {
        assert_eq!(grid.kill("n2", "gpuos_mover"), 1);
        grid.start_mover("n2");
    };
    // One that is over when the other waits.
    let over = grid.qsub("alice", "-ckpt gpuos", &counter());
    grid.until("the counter counts", |grid| {
        grid.written("alice", &over).contains("new\n")
    });
    now(grid, "n2", &over);
    grid.ok("head", "alice", &format!("qdel {over}"));
    grid.until("the job is gone", |grid| grid.is_gone(&over));
    grid.ok("head", "root", "qmod -d gpu.q");
    grid.ok("head", "alice", &format!("qmod -rj {job}"));
    grid.until("the job waits", |grid| {
        let listed = grid.ok("head", "root", "qstat -u '*' -s p");
        listed.contains(&format!(" {job} "))
    });
    assert!(kept(grid, "n2", &over));
    // A start of gpuos_mover looks at all that is kept.
    again(grid);
    grid.until("it has looked", |grid| !kept(grid, "n2", &over));
    assert!(kept(grid, "n2", job) && drained.exists());
    grid.ok("head", "alice", &format!("qdel {job}"));
    grid.until("the job is gone", |grid| grid.is_gone(job));
    // Each removes what it keeps, and from the parallel file system what it has drained first.
    again(grid);
    grid.start_mover("n1");
    grid.until("what was kept is removed", |grid| {
        let mut hosts = HOSTS.iter();
        !hosts.any(|host| kept(grid, host, job)) && !drained.exists()
    });
}
