//! `kill -9` of gpuosd at random moments while jobs come and go that have something of it: slices, limits of power and clocks, MPS, parts in turns,
//! memory beyond their GPU, control groups. `GPUOS_PBS_KILLS=COUNT` makes it a long run, by `make pbs`.
//!
//! Two witnesses beside gpuosd itself: notes that the jobs write, of what they were told, and the driver with its state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuos_lab::pbs::GPUOSD;
use gpuos_model::rng::Rng;
use gpuos_tests::{costs, pbs, results};

use crate::pbs_full::{BEYOND, Full, LIMIT, SLICE, TURNS, WHAT_LEFT};
use crate::pbs_site::{load, machine, ran, write_part};

/// How often gpuosd is killed: `GPUOS_PBS_KILLS=COUNT` makes it more, as for the other daemons.
fn kills() -> usize {
    let given = std::env::var("GPUOS_PBS_KILLS").ok();
    given.map_or(3, |text| text.parse().expect("GPUOS_PBS_KILLS is a number"))
}

/// What jobs ask for, and the row in which they are counted.
const KINDS: [(&str, &[&str]); 7] = [
    ("a slice of a GPU", &SLICE),
    (
        "half of a GPU in slices",
        &["-l", "select=1:ncpus=1", "-l", "gpuos_mig=3g.40gb"],
    ),
    (
        "two GPUs with limits of power and clocks",
        &[
            "-l",
            "select=1:ncpus=1:ngpus=2",
            "-l",
            "gpuos_power=300W",
            "-l",
            "gpuos_clocks=1200-1500",
        ],
    ),
    (
        "a GPU under MPS",
        &["-l", "select=1:ncpus=1:ngpus=1", "-l", "gpuos_mps=50%"],
    ),
    ("a GPU in turns with its memory", &TURNS),
    ("memory beyond that of their GPU", &BEYOND),
    (
        "a GPU of each host, with a limit of power",
        &[
            "-l",
            "select=2:ncpus=1:ngpus=1",
            "-l",
            "place=scatter",
            "-l",
            "gpuos_power=250W",
        ],
    ),
];
/// The kinds whose script runs a CUDA program.
const COMPUTE: [usize; 2] = [4, 5];
/// The kind of which several have the same GPU.
const BESIDE: usize = 4;

/// A run of a job, by its notes: when it began and ended, in nanoseconds, where, and what it was told.
#[derive(Debug)]
struct Run {
    job: String,
    host: String,
    has: Vec<String>,
    begun: u128,
    ended: Option<u128>,
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_nanos()
}

struct Kills {
    site: Full,
    /// Each job with its kind.
    jobs: BTreeMap<String, usize>,
    /// Host, and when its gpuosd was killed and was there again.
    killed: Vec<(String, u128, u128)>,
    /// What there was of each kind right before the kills, all of them together.
    there: BTreeMap<&'static str, usize>,
}

impl Kills {
    fn notes(&self) -> std::path::PathBuf {
        self.site.work.join("notes")
    }

    /// A job that notes what it is told, holds it for a while, and notes its end.
    fn submit(&mut self, random: &mut Rng) {
        let kind = random.below(KINDS.len() as u64) as usize;
        let user = ["user1", "user2"][random.below(2) as usize];
        let seconds = format!("{}.{}", 1 + random.below(5), random.below(10));
        let notes = self.notes();
        let notes = notes.display();
        let holds = match COMPUTE.contains(&kind) {
            true => self.site.computes(&seconds),
            false => format!("sleep {seconds}\n"),
        };
        let script = format!(
            "run=$(date +%s%N)\n\
             echo \"begin $PBS_JOBID $run $(hostname) $CUDA_VISIBLE_DEVICES\" >>{notes}\n\
             {holds}\
             echo \"end $PBS_JOBID $run $(date +%s%N)\" >>{notes}\n"
        );
        let job = self.site.submit(user, KINDS[kind].1, &script);
        self.jobs.insert(job, kind);
    }

    fn waiting(&self) -> usize {
        let text = self.site.lab.run("qselect", &["-s", "QW"]);
        text.map_or(usize::MAX, |text| text.lines().count())
    }

    /// gpuosd of a host is killed, and is away for a while.
    fn kill(&mut self, random: &mut Rng) {
        let at = random.below(self.site.hosts.len() as u64) as usize;
        let host = self.site.hosts[at].clone();
        for one in self.site.left() {
            if let Some(kind) = WHAT_LEFT.iter().find(|kind| one.starts_with(**kind)) {
                *self.there.entry(kind).or_default() += 1;
            }
        }
        let when = now();
        assert!(ran(self.site.lab.kill(&host, GPUOSD, 9)), "it ran");
        for _ in 0..random.below(3) {
            self.submit(random);
        }
        sleep(Duration::from_millis(random.below(2500)));
        ran(self.site.lab.start(&host, GPUOSD));
        self.killed.push((host, when, now()));
    }

    fn runs(&self) -> Vec<Run> {
        let text = fs::read_to_string(self.notes()).unwrap_or_default();
        let mut runs: BTreeMap<(String, String), Run> = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let key = (words[1].to_owned(), words[2].to_owned());
            match words[..] {
                ["begin", job, begun, host, has] => {
                    let run = Run {
                        job: job.to_owned(),
                        host: host.to_owned(),
                        has: has.split(',').map(str::to_owned).collect(),
                        begun: begun.parse().expect("a time"),
                        ended: None,
                    };
                    runs.insert(key, run);
                }
                ["end", _, _, when] => {
                    let run = runs.get_mut(&key).expect("it has begun");
                    run.ended = Some(when.parse().expect("a time"));
                }
                _ => panic!("a note without GPUs: {line}"),
            }
        }
        runs.into_values().collect()
    }

    /// Pairs of runs that had the same GPU or instance at a time, by their notes.
    fn twice(&self, runs: &[Run]) -> Vec<String> {
        let mut of: BTreeMap<(&str, &str), Vec<&Run>> = BTreeMap::new();
        for run in runs.iter().filter(|run| self.jobs[&run.job] != BESIDE) {
            for one in &run.has {
                of.entry((&run.host, one)).or_default().push(run);
            }
        }
        let mut found = Vec::new();
        for ((host, what), mut all) in of {
            all.sort_by_key(|run| run.begun);
            for pair in all.windows(2) {
                if pair[1].begun < pair[0].ended.unwrap_or(pair[0].begun) {
                    found.push(format!(
                        "{host} {what}: {} and {}",
                        pair[0].job, pair[1].job
                    ));
                }
            }
        }
        found
    }
}

#[test]
fn nothing_that_jobs_had_is_left_when_gpuosd_is_killed_at_any_moment() {
    let Some(prefix) = pbs("gpuosd killed under jobs with slices, limits and memory") else {
        return;
    };
    let _cost = costs::of("slurm::pbs_kills");
    let (seed, count, begun) = (2027, kills(), load());
    let mut random = Rng::new(seed);
    let site = Full::up(&prefix, "pbs-kills");
    let confines = site.confines();
    let mut all = Kills {
        site,
        jobs: BTreeMap::new(),
        killed: Vec::new(),
        there: BTreeMap::new(),
    };
    let notes = all.notes();
    fs::write(&notes, "").unwrap();
    fs::set_permissions(&notes, fs::Permissions::from_mode(0o666)).unwrap();
    for _ in 0..count {
        for _ in 0..4 + random.below(4) {
            if all.waiting() < 8 {
                all.submit(&mut random);
            }
        }
        sleep(Duration::from_millis(random.below(5000)));
        all.kill(&mut random);
    }
    // What was put off for a minute, or several, ends too.
    let limit = LIMIT + Duration::from_secs(20) * u32::try_from(count).expect("few kills");
    all.site.until_in(limit, "all jobs are over", || {
        let text = all.site.lab.run("qselect", &[]);
        text.is_ok_and(|text| text.trim().is_empty())
    });
    let left_at_once = all.site.left().len();
    all.site.nothing_is_left();

    let runs = all.runs();
    let ended: BTreeSet<&String> = runs
        .iter()
        .filter(|run| run.ended.is_some())
        .map(|run| &run.job)
        .collect();
    let status = |job: &&String| all.site.attribute(job, "Exit_status") != "0";
    let never: Vec<&String> = all.jobs.keys().filter(|job| !ended.contains(job)).collect();
    let failed: Vec<&String> = all.jobs.keys().filter(status).collect();
    let again: Vec<&String> = all
        .jobs
        .keys()
        .filter(|job| all.site.attribute(job, "run_count") != "1")
        .collect();
    let twice = all.twice(&runs);
    let under = runs.iter().filter(|run| {
        let (from, to) = (run.begun, run.ended.unwrap_or(run.begun));
        let mut killed = all.killed.iter().filter(|(host, ..)| *host == run.host);
        killed.any(|(_, when, there)| *when < to && from < *there)
    });
    let ends = runs.iter().filter(|run| {
        let mut killed = all.killed.iter().filter(|(host, ..)| *host == run.host);
        killed.any(|(_, when, there)| run.ended.is_some_and(|at| *when < at && at < *there))
    });
    let starts = runs.iter().filter(|run| {
        let mut killed = all.killed.iter().filter(|(host, ..)| *host == run.host);
        killed.any(|(_, when, there)| *when < run.begun && run.begun < *there)
    });
    let row = |what: &str, many: usize| format!("| {what} | {many} |\n");
    let of_kind = KINDS.iter().enumerate().map(|(kind, (what, _))| {
        let many = all.jobs.values().filter(|one| **one == kind).count();
        row(&format!("of them with {what}"), many)
    });
    let of_kind: String = of_kind.collect();
    let there = all.there.iter();
    let there: String = there
        .map(|(kind, many)| row(&format!("{kind}, right before a kill"), *many))
        .collect();
    let groups = match confines {
        true => {
            "instances, limits, MPS, jobs, memory lent and control groups that are left at the end"
        }
        false => {
            "instances, limits, MPS, jobs and memory lent that are left at the end (this machine has no control groups for jobs)"
        }
    };
    let text = [
        format!(
            "Seen on {}, OpenPBS {}, on {}, seed {seed}, load {begun} before and {} after.\n\n| what | number |\n| --- | ---: |\n",
            results::today(),
            all.site.lab.version(),
            machine(),
            load()
        ),
        row("kills of gpuosd of one of two hosts", count),
        row("jobs", all.jobs.len()),
        of_kind,
        there,
        row("runs under which gpuosd was killed or away", under.count()),
        row("of them whose script began while it was away", starts.count()),
        row("of them whose script ended while it was away", ends.count()),
        row("jobs that PBS started more than once", again.len()),
        row("GPUs and instances that two jobs had at a time", twice.len()),
        row("jobs that never came to their end, or ended with an error", never.len() + failed.len()),
        row(groups, 0),
        row("vnodes that are not free at the end", 0),
    ]
    .concat();
    eprintln!("{text}{left_at_once} are left when pbs_server shows the last job's end");
    for run in &runs {
        eprintln!("{run:?}");
    }
    assert_eq!(twice, Vec::<String>::new());
    // Of a long run each kind was there to be left.
    let seen =
        |what: &&str| all.there.contains_key(*what) || !confines && *what == "control groups";
    assert!(count < 10 || WHAT_LEFT.iter().all(seen), "{:?}", all.there);
    let outputs = failed.iter().chain(&never).map(|job| {
        let said = fs::read_to_string(all.site.work.join(format!("of-{job}.out")));
        format!(
            "{job}: {}\n{}",
            all.site.lab.job_output(job),
            said.unwrap_or_default()
        )
    });
    let outputs: Vec<String> = outputs.collect();
    assert!(outputs.is_empty(), "{}", outputs.join("\n"));
    write_part("gpuosd", &text);
    ran(all.site.lab.down());
}
