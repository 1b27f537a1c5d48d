//! What gpuos promises on PBS, under load: no GPU to two jobs, jobs where the planner said, as much as they asked for, and nothing lost or left
//! when pbs_server, a pbs_mom or the planner is killed at a random moment.
//!
//! Two witnesses that know nothing of each other: notes that the jobs themselves write on each of their hosts, of what gpuos told them; and PBS's
//! accounting. `GPUOS_PBS_JOBS=COUNT` and `GPUOS_PBS_KILLS=COUNT` make it a long run, by `make pbs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_model::rng::Rng;
use gpuos_tests::{Needs, costs, pbs_with};

use crate::pbs_site::{
    self, Gpus, LIMIT, Planner, SERVER, accounting, given, has_hook, load, machine, planned, ran,
    signal, until, write_part,
};

/// How long all jobs may take.
const ALL: Duration = Duration::from_secs(3000);

/// Where jobs note what they have; in a lab's folder that all users may write.
const NOTES: &str = "work/notes";

/// What is noted of one run of a job.
#[derive(Default, Debug)]
struct Run {
    /// The GPUs that its hosts were told, as host and number, and when the last one was.
    gpus: BTreeSet<(String, String)>,
    begun: u128,
    /// When it said that it ended; none of one that was killed.
    ended: Option<u128>,
}

/// What a job asked for.
struct Asked {
    job: String,
    gpus: usize,
    gang: bool,
}

fn number(variable: &str, otherwise: usize) -> usize {
    let given = std::env::var(variable).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// A job that notes what each of its chunks is told, holds it for a while, and notes its end.
fn script(lab: &PbsLab, seconds: &str) -> String {
    let notes = lab.dir().join(NOTES);
    let notes = notes.display();
    format!(
        "run=$(date +%s%N)\n\
         pbsdsh -- sh -c 'echo \"begin $PBS_JOBID $1 $(date +%s%N) $(hostname -s) $GPUOS_GPUS\" >> {notes}' sh $run || exit 1\n\
         sleep {seconds}\n\
         echo \"end $PBS_JOBID $run $(date +%s%N)\" >> {notes}\n"
    )
}

/// A random job; nothing where the server is away.
fn submit(lab: &PbsLab, random: &mut Rng) -> Option<Asked> {
    let gpus = [1, 1, 2, 4, 8][random.below(5) as usize];
    let chunks = 1 + random.below(3) as usize;
    let select = format!("select={chunks}:ngpus={gpus}:ncpus={gpus}");
    let mut options = vec!["-l", &select];
    let scatter = random.below(2) == 0;
    if scatter {
        options.extend(["-l", "place=scatter"]);
    }
    match random.below(4) {
        // A leaf has two hosts.
        0 if !scatter || chunks < 3 => options.extend(["-l", "gpuos_topology=leaf:required"]),
        1 => options.extend(["-l", "gpuos_topology=leaf"]),
        // So that launches of all jobs are gpuos's.
        _ => options.extend(["-l", "gpuos_topology=any"]),
    }
    // For those without a limit nothing is reserved, as nobody knows when they end.
    if random.below(2) == 0 {
        options.extend(["-l", "walltime=0:05:00"]);
    }
    let seconds = format!("{}.{}", random.below(3), random.below(10));
    let job = lab.qsub(Some("user1"), &options, &script(lab, &seconds));
    Some(Asked {
        job: job.ok()?,
        gpus: chunks * gpus,
        gang: chunks > 1,
    })
}

/// Runs of jobs, by their notes.
fn noted(lab: &PbsLab) -> HashMap<String, BTreeMap<String, Run>> {
    let text = fs::read_to_string(lab.dir().join(NOTES)).unwrap_or_default();
    let mut jobs: HashMap<String, BTreeMap<String, Run>> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (job, run) = (words[1].to_owned(), words[2].to_owned());
        let run = jobs.entry(job).or_default().entry(run).or_default();
        let when: u128 = words[3].parse().unwrap_or_else(|_| panic!("{line}"));
        match words[..] {
            ["begin", _, _, _, host, gpus] => {
                let gpus = gpus.split(',');
                run.gpus
                    .extend(gpus.map(|gpu| (host.to_owned(), gpu.to_owned())));
                run.begun = run.begun.max(when);
            }
            ["end", ..] => run.ended = Some(when),
            _ => panic!("a note without GPUs: {line}"),
        }
    }
    jobs
}

impl Run {
    /// How many of each host.
    fn counts(&self) -> Gpus {
        let mut counts = Gpus::new();
        for (host, _) in &self.gpus {
            *counts.entry(host.clone()).or_default() += 1;
        }
        counts
    }
}

/// Pairs of jobs that had a GPU at the same time, by their own notes. Of a run without an end only its beginning is known.
fn twice(jobs: &HashMap<String, BTreeMap<String, Run>>) -> Vec<String> {
    let mut of: BTreeMap<String, Vec<(u128, u128, &str)>> = BTreeMap::new();
    for (job, runs) in jobs {
        for run in runs.values() {
            for (host, gpu) in &run.gpus {
                let had = (run.begun, run.ended.unwrap_or(run.begun), &job[..]);
                of.entry(format!("{host}:{gpu}")).or_default().push(had);
            }
        }
    }
    let mut found = Vec::new();
    for (gpu, mut all) in of {
        all.sort_unstable();
        for pair in all.windows(2) {
            if pair[1].0 < pair[0].1 && pair[0].2 != pair[1].2 {
                found.push(format!("{gpu}: {} and {}", pair[0].2, pair[1].2));
            }
        }
    }
    found
}

/// Where PBS started each job, each time, in the order in which it did.
fn started(lab: &PbsLab) -> HashMap<String, Vec<Gpus>> {
    let mut started: HashMap<String, Vec<Gpus>> = HashMap::new();
    for (kind, job, rest) in accounting(lab) {
        if kind == "S" {
            started.entry(job).or_default().push(given(&rest));
        }
    }
    started
}

/// Jobs whose last end in PBS's accounting has another exit status than 0.
fn failed(lab: &PbsLab) -> BTreeSet<String> {
    let mut failed = BTreeSet::new();
    for (kind, job, rest) in accounting(lab) {
        if kind == "E" {
            match rest.split(' ').any(|word| word == "Exit_status=0") {
                true => failed.remove(&job),
                false => failed.insert(job),
            };
        }
    }
    failed
}

/// What came of all jobs.
#[derive(Default, Debug)]
struct Came {
    jobs: usize,
    gangs: usize,
    runs: usize,
    by_planner: usize,
    planned_gangs: usize,
    twice: Vec<String>,
    elsewhere: Vec<String>,
    counts: Vec<String>,
    /// Runs that went on though a program on one of their hosts was not started, as that host's mom was killed: PBS's own loss.
    silent: Vec<String>,
    /// Runs of which PBS's accounting has no beginning.
    unrecorded: Vec<String>,
    /// Jobs that PBS ended, with another exit status than 0.
    ended: Vec<String>,
    never: Vec<String>,
}

/// Holds both witnesses, and the planner, against each other.
fn judge(lab: &PbsLab, asked: &[Asked]) -> Came {
    let (notes, started) = (noted(lab), started(lab));
    let failed = failed(lab);
    let mut came = Came {
        jobs: asked.len(),
        gangs: asked.iter().filter(|one| one.gang).count(),
        twice: twice(&notes),
        ..Came::default()
    };
    for one in asked {
        let runs = notes.get(&one.job);
        let ended = runs.is_some_and(|runs| runs.values().any(|run| run.ended.is_some()));
        if !ended {
            match failed.contains(&one.job) {
                true => came.ended.push(one.job.clone()),
                false => came.never.push(one.job.clone()),
            }
        }
        for run in runs.into_iter().flat_map(BTreeMap::values) {
            came.runs += 1;
            let counts = run.counts();
            let places: Vec<&Gpus> = started.get(&one.job).into_iter().flatten().collect();
            // Of a run that was killed a host may not have come to its note.
            let ended = run.ended.is_some();
            let is_its = |place: &&&Gpus| {
                counts.iter().all(|(host, gpus)| {
                    place
                        .get(host)
                        .is_some_and(|has| gpus == has || !ended && gpus < has)
                })
            };
            let on_its_hosts = |place: &&Gpus| counts.keys().all(|host| place.contains_key(host));
            let what = format!("{}: {:?} for {}", one.job, run.gpus, one.gpus);
            if places.iter().find(is_its).is_some() {
                if ended && run.gpus.len() < one.gpus {
                    came.silent.push(what);
                }
            } else if places.into_iter().any(|place| on_its_hosts(&place)) {
                came.counts.push(what);
            } else {
                came.unrecorded.push(what);
            }
        }
    }
    let gangs: BTreeSet<&str> = asked
        .iter()
        .filter(|one| one.gang)
        .map(|one| &one.job[..])
        .collect();
    for (job, place) in planned(lab) {
        came.by_planner += 1;
        came.planned_gangs += usize::from(gangs.contains(&job[..]));
        let places = started.get(&job);
        if !places.is_some_and(|places| places.contains(&place)) {
            came.elsewhere
                .push(format!("{job}: {place:?} by the planner, not by PBS"));
        }
    }
    came
}

impl Came {
    fn rows(&self) -> String {
        let row = |what: &str, many: usize| format!("| {what} | {many} |\n");
        [
            row("jobs, each of 1 to 24 GPUs", self.jobs),
            row("of them with several chunks", self.gangs),
            row("runs that jobs noted", self.runs),
            row("starts by the planner", self.by_planner),
            row("of them with several chunks", self.planned_gangs),
            row("GPUs that two jobs had at a time", self.twice.len()),
            row(
                "starts elsewhere than the planner said",
                self.elsewhere.len(),
            ),
            row(
                "runs with another number of GPUs than asked for",
                self.counts.len(),
            ),
            row(
                "runs without the program of a host whose mom was killed",
                self.silent.len(),
            ),
            row(
                "runs of which PBS's accounting has no beginning",
                self.unrecorded.len(),
            ),
            row("jobs that PBS ended with an error", self.ended.len()),
            row("jobs that never came to their end", self.never.len()),
        ]
        .concat()
    }
}

fn all_end(lab: &PbsLab, asked: &[Asked]) {
    let deadline = Instant::now() + ALL;
    for one in asked {
        let left = deadline.saturating_duration_since(Instant::now());
        ran(lab.wait_job(&one.job, &["F"], left));
    }
}

/// The line above a table.
fn head(lab: &PbsLab, seed: u64, begun: &str) -> String {
    format!(
        "Seen on {}, OpenPBS {}, on {}, seed {seed}, load {begun} before and {} after.\n\n| what | number |\n| --- | ---: |\n",
        gpuos_tests::results::today(),
        lab.version(),
        machine(),
        load()
    )
}

#[test]
fn random_jobs_while_planner_and_scheduler_compete() {
    let Some(prefix) = pbs_with("random jobs with a ledger of their own", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_holds::random");
    let lab = pbs_site::up(&prefix, "pbs-jobs");
    let (seed, count, begun) = (2026, number("GPUOS_PBS_JOBS", 40), load());
    let ended = AtomicBool::new(false);
    let mut asked = Vec::new();
    scope(|scope| {
        let (lab, ended, asked) = (&lab, &ended, &mut asked);
        scope.spawn(move || {
            let mut random = Rng::new(seed + 1);
            let _planner = Planner::start(lab, 1);
            // The scheduler looks at once at each job that comes; the planner gets its turn while it stands.
            while !ended.load(Ordering::Relaxed) {
                signal(lab, "-STOP");
                sleep(Duration::from_millis(500 + random.below(3000)));
                signal(lab, "-CONT");
                sleep(Duration::from_millis(200 + random.below(2000)));
            }
        });
        let mut random = Rng::new(seed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while asked.len() < count {
                asked.extend(submit(lab, &mut random));
            }
            all_end(lab, asked);
        }));
        ended.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    pbs_site::all_free(&lab);
    let came = judge(&lab, &asked);
    // The accounting by itself.
    pbs_site::ledger(&lab);
    let text = head(&lab, seed, &begun) + &came.rows();
    eprintln!("{text}{came:#?}");
    write_part("jobs", &text);
    assert!(came.by_planner > 0);
    assert_eq!(came.unrecorded, Vec::<String>::new());
    assert_eq!(came.ended, Vec::<String>::new());
    assert_eq!(came.silent, Vec::<String>::new());
    hold(&came);
    ran(lab.down());
}

/// Panics where gpuos's promise was broken; what a killed pbs_server or mom of PBS's loses is counted, and is nobody's promise.
fn hold(came: &Came) {
    assert_eq!(came.twice, Vec::<String>::new());
    assert_eq!(came.elsewhere, Vec::<String>::new());
    assert_eq!(came.counts, Vec::<String>::new());
    assert_eq!(came.never, Vec::<String>::new());
}

#[test]
fn nothing_is_lost_or_left_when_daemons_are_killed() {
    let Some(prefix) = pbs_with(
        "pbs_server, pbs_mom and the planner killed",
        Needs::Scheduler,
    ) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_holds::killed");
    let lab = pbs_site::up(&prefix, "pbs-kill");
    let (seed, kills, begun) = (77, number("GPUOS_PBS_KILLS", 2), load());
    let mut random = Rng::new(seed);
    let nodes = lab.record().spec.node_names();
    let mut asked: Vec<Asked> = Vec::new();
    let mut planner = Some(Planner::start(&lab, 1));
    // What is killed comes by turns, the moments are random.
    for nth in 0..3 * kills {
        // The planner gets its turn.
        signal(&lab, "-STOP");
        let moment = Instant::now() + Duration::from_millis(300 + random.below(3000));
        while Instant::now() < moment {
            match waiting(&lab) < 12 {
                true => asked.extend(submit(&lab, &mut random)),
                false => sleep(Duration::from_millis(50)),
            }
        }
        if random.below(2) == 0 {
            signal(&lab, "-CONT");
            sleep(Duration::from_millis(random.below(1000)));
        }
        match nth % 3 {
            0 => {
                ran(lab.kill("head", SERVER, 9));
                ran(lab.start("head", SERVER));
                until("the server answers", || lab.run("qstat", &["-B"]).is_ok());
            }
            1 => {
                let node = &nodes[random.below(nodes.len() as u64) as usize];
                ran(lab.kill(node, MOM, 9));
                sleep(Duration::from_millis(random.below(1500)));
                ran(lab.start(node, MOM));
            }
            _ => {
                drop(planner.take());
                planner = Some(Planner::start(&lab, 1));
            }
        }
    }
    signal(&lab, "-CONT");
    let lost = all_end_but_lost(&lab, &asked);
    drop(planner);
    pbs_site::all_free(&lab);
    let hooks = nodes.iter().filter(|node| has_hook(&lab, node)).count();
    let before = noted(&lab).len();
    let last = ran(lab.qsub(
        Some("user1"),
        &[
            "-l",
            "select=4:ngpus=8:ncpus=8",
            "-l",
            "place=scatter",
            "-l",
            "gpuos_topology=any",
        ],
        &script(&lab, "0"),
    ));
    ran(lab.wait_job(&last, &["F"], LIMIT));
    assert_eq!(noted(&lab).len(), before + 1);
    let everywhere = &noted(&lab)[&last];
    assert_eq!(everywhere.values().next().unwrap().gpus.len(), 32);
    let came = judge(&lab, &asked);
    let more = format!(
        "| kills of pbs_server, of a pbs_mom and of the planner, each | {kills} |\n\
         | jobs that pbs_server has as running after its end and no mom has: requeued by hand, then they ran | {} |\n\
         | hosts that are not free at the end | 0 |\n\
         | moms that have the hook at the end | {hooks} of {} |\n",
        lost.len(),
        nodes.len()
    );
    let text = head(&lab, seed, &begun) + &came.rows() + &more;
    eprintln!("{text}{came:#?}");
    write_part("kills", &text);
    assert_eq!(hooks, nodes.len());
    // One start at a time is under way in pbs_server.
    let unrecorded = &came.unrecorded;
    assert!(unrecorded.len() <= kills, "{unrecorded:?}");
    assert!(came.silent.len() <= kills, "{:?}", came.silent);
    hold(&came);
    ran(lab.down());
}

/// How long a job is on its way to its mom at most.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

/// Waits until all have ended, and requeues what pbs_server has lost: killed while it sent a job to a mom, it has that job as on its way for ever
/// after. An operator's `qrerun -W force` is what helps.
fn all_end_but_lost(lab: &PbsLab, asked: &[Asked]) -> BTreeSet<String> {
    let on_its_way = || -> BTreeSet<String> {
        let text = lab.run("qselect", &["-s", "R"]).unwrap_or_default();
        let jobs = text.lines().map(str::to_owned);
        let substate = |job: &String| lab.job(job, "substate").ok().flatten();
        jobs.filter(|job| substate(job).as_deref() == Some("41"))
            .collect()
    };
    let is_left = || !ran(lab.run("qselect", &[])).trim().is_empty();
    let (deadline, mut lost) = (Instant::now() + ALL, BTreeSet::new());
    while is_left() && Instant::now() < deadline {
        let (before, begun) = (on_its_way(), Instant::now());
        while is_left() && begun.elapsed() < ON_ITS_WAY {
            sleep(Duration::from_millis(500));
        }
        for job in before.intersection(&on_its_way()) {
            ran(lab.run("qrerun", &["-W", "force", job]));
            lost.insert(job.clone());
        }
    }
    all_end(lab, asked);
    lost
}

/// How many jobs wait; many, where the server does not say.
fn waiting(lab: &PbsLab) -> usize {
    let text = lab.run("qselect", &["-s", "Q"]);
    text.map_or(usize::MAX, |text| text.lines().count())
}

/// PBS adds what a queue's jobs ask for by default after the hook has seen them, so that pbs_sched knows of no level.
#[test]
fn a_level_that_is_a_default_of_the_queue_is_kept_at_the_second_try() {
    let Some(prefix) = pbs_with("a level by default", Needs::Scheduler) else {
        return;
    };
    let _cost = costs::of("slurm::pbs_holds::default");
    let lab = pbs_site::up(&prefix, "pbs-level");
    let line = "set queue workq resources_default.gpuos_topology = leaf:required";
    ran(lab.run("qmgr", &["-c", line]));
    // Of the first leaf one host has no room, so that the first two hosts with room are of two leaves.
    let small = ["-l", "select=1:ngpus=1:ncpus=1:host=n1"];
    let small = pbs_site::submit(&lab, &small, "sleep 1000\n");
    ran(lab.wait_job(&small, &["R"], LIMIT));
    let options = ["-l", "select=2:ngpus=8:ncpus=8", "-l", "place=scatter"];
    let gang = pbs_site::submit(&lab, &options, &script(&lab, "0"));
    until("the job has a group", || {
        let place = ran(lab.job(&gang, "Resource_List.place"));
        place.as_deref() == Some("scatter:group=gpuos_leaf")
    });
    let comment = ran(lab.job(&gang, "comment")).unwrap_or_default();
    // Another cycle of pbs_sched may have started it by now.
    let waits = comment.contains("keeps its place in the queue");
    assert!(waits || comment.starts_with("Job run at"), "{comment}");
    let state = ran(lab.job(&gang, "job_state"));
    assert_ne!(state.as_deref(), Some("W"), "{comment}");
    // pbs_sched's next cycle may be minutes away.
    let _planner = Planner::start(&lab, 1);
    ran(lab.wait_job(&gang, &["F"], LIMIT));
    let starts = started(&lab).remove(&gang).unwrap();
    let hosts: BTreeSet<&String> = starts.iter().flat_map(Gpus::keys).collect();
    assert_eq!(Vec::from_iter(hosts), ["n3", "n4"]);
    ran(lab.down());
}
