//! Who holds which GPU of which node, by an account that knows nothing of Slurm's counts: prolog and epilog
//! write it on the nodes. [`check`] says whether a GPU was ever held by two jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use gpuos_model::hostlist::expand;

use crate::{Cluster, show};

/// Nanoseconds since 1970.
pub fn now() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |time| time.as_nanos())
}

/// Prolog and epilog write who holds which GPU of which node, and since when.
pub fn write_scripts(cluster: &Cluster) {
    let lab = &cluster.lab;
    let ledger = lab.dir().join("work/ledger");
    for (name, kind) in [("Prolog", "S"), ("Epilog", "E")] {
        let line = format!(
            "echo {kind} $(date +%s%N) ${{SLURMD_NODENAME:-$SLURM_NODENAME}} $SLURM_JOB_ID \
             ${{SLURM_JOB_GPUS:-none}} ${{SLURM_JOB_RESTART_COUNT:--}} >> {}",
            ledger.display()
        );
        let script = cluster.script(name, &line);
        lab.set_slurm_conf(name, Some(&script)).expect("edits");
    }
    // Then a slurmd says which epilogs it skips.
    lab.set_slurm_conf("SlurmdDebug", Some("debug"))
        .expect("edits");
    // On all nodes of the job, before it starts.
    lab.set_slurm_conf("PrologFlags", Some("Alloc"))
        .expect("edits");
    lab.restart().expect("restarts");
}

/// A node has failed and is set down: slurmctld has taken back every start of a job there. Slurmctld goes
/// on sending what it had under way to the node, though, and a slurmd that comes back soon runs the prolog
/// of a start that was taken back (stock Slurm too). So the ledger notes which starts can still be valid.
pub fn record_failure(cluster: &Cluster, node: &str) {
    let jobs = cluster.run("scontrol", &["show", "job"]);
    let valid: Vec<String> = jobs.split("\n\n").filter_map(first_valid).collect();
    let valid = match valid.is_empty() {
        true => "none".to_string(),
        false => valid.join(","),
    };
    record(cluster, &format!("F {} {node} {valid}", now()));
}

/// `JOB:RESTARTS`: a start of this job with a lower restart count has been taken back. `None` where
/// no start has been.
fn first_valid(block: &str) -> Option<String> {
    let field = |name| gpuos_lab::field(block, name);
    let job = field("JobId")?;
    let restarts: u32 = field("Restarts")?.parse().ok()?;
    let goes_on = [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
    ];
    let over = !goes_on.contains(&field("JobState")?);
    // A job that is over starts again only after a requeue, which counts one more.
    let first = restarts + u32::from(over);
    (first > 0).then(|| format!("{job}:{first}"))
}

/// slurmctld was killed at a moment of nobody's choosing and is back: a start that it had not saved is one that it
/// knows nothing of, under any select plugin, and has the node end. What no job on its list holds is given up, as of
/// `killed`, a time before the new slurmctld could start any job.
pub fn record_crash(cluster: &Cluster, killed: u128) {
    let running = cluster.until("slurmctld answers", || {
        let jobs = cluster.try_run("squeue", &["-h", "-t", "R,S,CG,CF", "-o", "%A %N"]);
        jobs.ok()
    });
    let known: Vec<(&str, &str)> = running
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let jobs: Vec<String> = known.iter().map(|(job, _)| format!("{job}:0")).collect();
    let jobs = match jobs.is_empty() {
        true => "none".to_string(),
        false => jobs.join(","),
    };
    record(cluster, &format!("C {killed} all {jobs}"));
    for (job, nodes) in known {
        for line in given(&killed.to_string(), nodes, job) {
            record(cluster, &line);
        }
    }
}

/// Lines on a job that has these nodes.
fn given(time: &str, nodes: &str, job: &str) -> Vec<String> {
    let nodes = expand(nodes.trim()).unwrap_or_default();
    let line = |node: &String| format!("G {time} {node} {job}");
    nodes.iter().map(line).collect()
}

fn record(cluster: &Cluster, line: &str) {
    use std::io::Write;
    let path = cluster.lab.dir().join("work/ledger");
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    // At once, or a prolog's line could come between the line and its end.
    let line = format!("{line}\n");
    file.expect("opens")
        .write_all(line.as_bytes())
        .expect("writes");
}

/// What happened; at the same moment in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A node has failed: nothing on it is held any more.
    Failure,
    /// slurmctld was killed: jobs that it knows nothing of hold nothing any more.
    Crash,
    /// A job has ended on a node.
    End,
    /// A slurmd has started anew while a job was ending on its node, and will run no epilog for it.
    Inherited,
    /// Such a job has ended on the node: the slurmd has seen that no process of it is left.
    Skipped,
    /// slurmctld gives a job its nodes.
    Given,
    /// A job starts on a node.
    Start,
}

/// A line of the ledger.
pub struct Event {
    time: u128,
    /// What happened.
    pub kind: Kind,
    /// On which node.
    pub node: String,
    /// The job; 0 at a failure.
    pub job: u32,
    /// The GPUs of the job on the node.
    pub gpus: Vec<usize>,
    /// How often the job had been started anew; not every epilog knows it.
    pub restarts: Option<u32>,
    /// At a failure: the first restart count of each job that is still valid. At a crash: the jobs that are known.
    valid: Vec<(u32, u32)>,
}

/// The ledger so far, in the order of time.
pub fn read(cluster: &Cluster) -> Vec<Event> {
    let text = fs::read_to_string(cluster.lab.dir().join("work/ledger"));
    let skips: String = cluster
        .lab
        .spec()
        .node_names()
        .iter()
        .fold(String::new(), |all, node| {
            let lines = skipped_epilogs(node, &cluster.lab.slurmd_log(node));
            all + &with_times(cluster, &lines)
        });
    let given = with_times(cluster, &allocations(&cluster.lab.slurmctld_log()));
    parse(&(text.unwrap_or_default() + &skips + &given))
}

/// Of the log of slurmctld: lines of the ledger on jobs that are given nodes, each with the log's words for the time.
fn allocations(log: &str) -> Vec<(String, String)> {
    let lines = |line: &str| {
        let (time, text) = line.strip_prefix('[')?.split_once("] ")?;
        let rest = ["sched: Allocate JobId=", "_start_job: Started JobId="]
            .iter()
            .find_map(|words| Some(text.split_once(words)?.1))?;
        // `7 NodeList=n1 #CPUs=1`, of an array `5_1(7) in all on n1`
        let (name, rest) = rest.split_once(' ')?;
        let number = name.split_once('(').map_or(name, |(_, own)| own);
        let job = number.trim_end_matches(')');
        let nodes = match rest.strip_prefix("NodeList=") {
            Some(rest) => rest.split(' ').next()?,
            None => rest.rsplit(' ').next()?,
        };
        let lines = given("TIME", nodes, job).into_iter();
        Some(
            lines
                .map(|line| (time.to_string(), line))
                .collect::<Vec<_>>(),
        )
    };
    log.lines().filter_map(lines).flatten().collect()
}

/// Of the log of a slurmd: lines of the ledger on epilogs that it skips, each with the log's words for the
/// time. `tests/epilog.rs` shows when this happens.
fn skipped_epilogs(node: &str, log: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (time, text) = line.strip_prefix('[')?.split_once("] ")?;
        let (kind, rest) = match text.split_once("arning: revoke on ") {
            Some((_, rest)) => ("I", rest.strip_suffix(" has no expiration")?),
            None => ("N", text.strip_prefix("debug:  Not running epilog for ")?),
        };
        // `job 7`, `jobid 7: REASON` or `JobId=7 SLUID=...`
        let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let job = &digits[..end.unwrap_or(digits.len())];
        Some((time.to_string(), format!("{kind} TIME {node} {job}")))
    };
    log.lines().filter_map(line).collect()
}

/// Slurm's logs have local time, of the root that the release runs in.
fn with_times(cluster: &Cluster, lines: &[(String, String)]) -> String {
    let times: String = lines.iter().map(|(time, _)| format!("{time}\n")).collect();
    let file = cluster.lab.dir().join("work/times");
    fs::write(&file, times).expect("writes");
    let text = cluster.run("date", &["+%s%N", "-f", &file.to_string_lossy()]);
    assert_eq!(text.lines().count(), lines.len(), "{text}");
    let with_time =
        |(time, (_, line)): (&str, &(String, String))| line.replace("TIME", time) + "\n";
    text.lines().zip(lines).map(with_time).collect()
}

/// Lines are `S TIME NODE JOB GPUS RESTARTS`, the same with `E`, `I TIME NODE JOB`, the same with `N`,
/// `F TIME NODE JOB:RESTARTS,...`, `C TIME all JOB:0,...`, and `G TIME NODE JOB`.
fn parse(text: &str) -> Vec<Event> {
    let pair = |text: &str| {
        let (job, first) = text.split_once(':')?;
        Some((job.parse().ok()?, first.parse().ok()?))
    };
    let mut events: Vec<Event> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let word = |index: usize| words.get(index).copied().unwrap_or_default();
            Event {
                kind: match word(0) {
                    "F" => Kind::Failure,
                    "C" => Kind::Crash,
                    "S" => Kind::Start,
                    "E" => Kind::End,
                    "I" => Kind::Inherited,
                    "N" => Kind::Skipped,
                    "G" => Kind::Given,
                    _ => panic!("ledger: {line:?}"),
                },
                time: word(1).parse().expect("a time"),
                node: word(2).to_string(),
                job: word(3).parse().unwrap_or(0),
                gpus: show::indices(word(4)),
                restarts: word(5).parse().ok(),
                valid: word(3).split(',').filter_map(pair).collect(),
            }
        })
        .collect();
    events.sort_by_key(|event| (event.time, event.kind));
    events
}

/// Who holds a GPU.
struct Hold {
    job: u32,
    restarts: Option<u32>,
    /// No epilog will tell of its end.
    inherited: bool,
}

/// No GPU may be held by two jobs at once. What a start that was taken back before has on record does not
/// count: the GPU may be another job's by then. Nor does one that a slurmctld had sent which was killed then, and that the
/// next one knows nothing of: a slurmd that is about to read its configuration runs its prolog only after slurmctld answers
/// again, and its batch script never ("Could not confirm batch launch").
pub fn check(events: &[Event]) -> Result<(), String> {
    let mut held: BTreeMap<(&str, usize), Hold> = BTreeMap::new();
    let mut valid: BTreeMap<u32, u32> = BTreeMap::new();
    // Which jobs have which nodes by the slurmctld that runs; all, as long as none was killed.
    let mut given: Option<BTreeSet<(u32, &str)>> = None;
    for event in events {
        let here = |node: &str, hold: &Hold| node == event.node && hold.job == event.job;
        match event.kind {
            Kind::Failure => {
                held.retain(|(node, _), _| *node != event.node);
                for (job, first) in &event.valid {
                    let known = valid.entry(*job).or_default();
                    *known = (*known).max(*first);
                }
            }
            Kind::Crash => {
                let known: BTreeSet<u32> = event.valid.iter().map(|(job, _)| *job).collect();
                held.retain(|_, hold| known.contains(&hold.job));
                given = Some(BTreeSet::new());
            }
            Kind::Given => {
                if let Some(given) = &mut given {
                    given.insert((event.job, &event.node));
                }
            }
            Kind::End => held.retain(|(node, _), hold| {
                // The epilog of a requeued start names the count of the next one.
                let other_start = match (event.restarts, hold.restarts) {
                    (Some(ended), Some(holds)) => holds > ended,
                    _ => false,
                };
                !here(node, hold) || other_start
            }),
            Kind::Inherited => {
                for ((node, _), hold) in &mut held {
                    hold.inherited |= here(node, hold);
                }
            }
            Kind::Skipped => held.retain(|(node, _), hold| !here(node, hold) || !hold.inherited),
            Kind::Start => {
                let first = valid.get(&event.job).copied().unwrap_or(0);
                let taken_back = event.restarts.is_some_and(|restarts| restarts < first);
                let unknown = given
                    .as_ref()
                    .is_some_and(|given| !given.contains(&(event.job, &event.node)));
                if taken_back || unknown {
                    continue;
                }
                for gpu in &event.gpus {
                    let hold = Hold {
                        job: event.job,
                        restarts: event.restarts,
                        inherited: false,
                    };
                    let before = held.insert((&event.node, *gpu), hold);
                    if let Some(other) = before.filter(|other| other.job != event.job) {
                        return Err(format!(
                            "{} GPU {gpu} was given to job {} while job {} held it",
                            event.node, event.job, other.job
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_sees_a_gpu_given_twice() {
        let good = "S 10 n1 1 0,1 0\nS 12 n2 2 0 0\nE 20 n1 1 0,1 -\nS 30 n1 3 1-2 0\nF 40 n1 none\n\
                S 41 n1 4 1 0\n";
        assert_eq!(check(&parse(good)), Ok(()));
        let bad = good.to_string() + "S 50 n1 5 0-1 0\n";
        assert!(check(&parse(&bad)).is_err());
    }

    /// The order that 26.05 shows after a slurmd's death: job 5 was given GPU 0, the node failed, job 6 was
    /// given the GPU, and then the node ran the prolog of job 5's first start, and its epilog.
    #[test]
    fn a_start_that_was_taken_back_holds_nothing() {
        let check = |text: &str| check(&parse(text));
        let start = "F 10 n1 5:1\nS 20 n1 6 0 0\n";
        assert_eq!(check(&format!("{start}S 30 n1 5 0 0\n")), Ok(()));
        // Its second start is as good as any.
        let twice = check(&format!("{start}S 30 n1 5 0 1\n"));
        assert_eq!(
            twice.unwrap_err(),
            "n1 GPU 0 was given to job 5 while job 6 held it"
        );
        // The end of the first start is not the end of the second.
        let late_end = "F 10 n1 5:1\nS 20 n1 5 0 1\nE 25 n1 5 0 0\nS 30 n1 6 0 0\n";
        assert!(check(late_end).is_err());
        // After a requeue slurmctld has counted on before the epilog runs.
        let requeued = "S 20 n1 5 0 0\nE 25 n1 5 0 1\nS 30 n1 6 0 0\n";
        assert_eq!(check(requeued), Ok(()));
        // A start that was taken back keeps nobody out either.
        let first = "F 10 n1 5:1\nS 20 n1 5 0 0\nS 30 n1 6 0 0\n";
        assert_eq!(check(first), Ok(()));
    }

    #[test]
    fn after_a_crash_what_slurmctld_knows_is_held_and_nothing_else() {
        let check = |text: &str| check(&parse(text));
        let start = "S 10 n1 1 0 0\nS 11 n1 2 1 0\nC 20 all 1:0\nG 20 n1 1\nG 25 n1 3\n";
        assert_eq!(check(&format!("{start}S 30 n1 3 1 0\n")), Ok(()));
        assert!(check(&format!("{start}S 30 n1 3 0 0\n")).is_err());
        let none = "S 10 n1 1 0 0\nC 20 all none\nG 25 n1 3\nS 30 n1 3 0 0\n";
        assert_eq!(check(none), Ok(()));
        // Sent by the slurmctld that was killed; the next one has given its number to another job since.
        let late = "C 20 all none\nG 25 n2 1\nS 30 n1 1 0 0\nG 35 n1 2\nS 40 n1 2 0 0\nG 45 n1 1\n";
        assert_eq!(check(late), Ok(()));
        assert!(check(&format!("{late}S 50 n1 1 0 0\n")).is_err());
    }

    #[test]
    fn the_log_says_which_jobs_slurmctld_gives_nodes() {
        let log = "[2026-11-23T03:37:10.712] sched: Allocate JobId=872 NodeList=n1 #CPUs=1 Partition=all\n\
                   [2026-11-23T01:53:18.094] sched/backfill: _start_job: Started JobId=525_1(583) in all on n[4-5]\n\
                   [2026-11-23T01:53:18.181] _job_complete: JobId=518 done\n";
        let lines: Vec<String> = allocations(log).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, ["G TIME n1 872", "G TIME n4 583", "G TIME n5 583"]);
    }

    /// Job 1 was ending on n1 when its slurmd started anew: not its epilog tells of the end.
    #[test]
    fn a_skipped_epilog_ends_what_was_held_before_the_slurmd_started() {
        let check = |text: &str| check(&parse(text));
        let start = "S 10 n1 1 0 0\nI 20 n1 1\n";
        assert_eq!(check(&format!("{start}N 30 n1 1\nS 40 n1 2 0 0\n")), Ok(()));
        // Until then the GPU is held.
        assert!(check(&format!("{start}S 25 n1 2 0 0\nN 30 n1 1\n")).is_err());
        assert!(check(&format!("{start}S 25 n1 2 0 0\n")).is_err());
        // Of the same job elsewhere, of another job, and of a later start of this job it says nothing.
        assert!(check(&format!("{start}N 30 n2 1\nS 40 n1 2 0 0\n")).is_err());
        assert!(check(&format!("{start}N 30 n1 3\nS 40 n1 2 0 0\n")).is_err());
        assert!(check(&format!("{start}S 25 n1 1 0 1\nN 30 n1 1\nS 40 n1 2 0 0\n")).is_err());
        // A slurmd skips a second epilog of a job too: without its start anew that ends nothing.
        assert!(check("S 10 n1 1 0 0\nN 30 n1 1\nS 40 n1 2 0 0\n").is_err());
    }

    #[test]
    fn skipped_epilogs_are_found_in_the_logs_of_all_releases() {
        let log = "[2026-11-21T15:09:31.331] Warning: revoke on job 49 has no expiration\n\
                   [2026-11-21T15:12:27.081] warning: revoke on job 427 has no expiration\n\
                   [2026-11-21T15:13:00.432] warning: revoke on JobId=753 SLUID=sERXM7 has no expiration\n\
                   [2026-11-21T15:14:00.001] debug:  Not running epilog for jobid 427: File exists\n\
                   [2026-11-21T15:14:00.002] debug:  Not running epilog for JobId=753 SLUID=sERXM7: File exists\n\
                   [2026-11-21T15:14:00.003] debug:  completed epilog for jobid 428\n\
                   Not running epilog for\n";
        let found = skipped_epilogs("n3", log);
        let lines: Vec<&str> = found.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "I TIME n3 49",
                "I TIME n3 427",
                "I TIME n3 753",
                "N TIME n3 427",
                "N TIME n3 753"
            ]
        );
        assert_eq!(found[0].0, "2026-11-21T15:09:31.331");
    }

    #[test]
    fn a_failure_notes_which_starts_are_valid() {
        let job = |state: &str, restarts: u32| {
            first_valid(&format!(
                "JobId=7 JobName=wrap\n   JobState={state} Reason=None\n   Requeue=1 Restarts={restarts} BatchFlag=1"
            ))
        };
        assert_eq!(job("PENDING", 0), None);
        assert_eq!(job("RUNNING", 0), None);
        assert_eq!(job("PENDING", 1).as_deref(), Some("7:1"));
        assert_eq!(job("CANCELLED", 0).as_deref(), Some("7:1"));
        assert_eq!(job("COMPLETED", 2).as_deref(), Some("7:3"));
    }
}
