//! What the hook costs pbs_server and its moms, and how long `qstat` waits meanwhile, on a real PBS.
//!
//! `GPUOS_PBS=JOBS` measures it with so many jobs, by `make pbs`; without it nothing is done. With `GPUOS_WRITE=1` the table is written to
//! docs/results. Times are PBS's own, of its log: from before the event is handed to Python until after, and of that what the hook's own code
//! takes. They are held against a hook that accepts at once, as that is what Python in PBS costs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use gpuos_lab::pbs::{MOM, PbsLab};
use gpuos_tests::{Needs, measured_runs, pbs_with};
use serde_json::Value;

use crate::pbs_site::{self, LIMIT, Planner, SERVER, load, machine, ran, until, write_part};

const CLIENTS: &str = include_str!("pbs_measured/clients.py");

/// A hook that accepts at once.
const EMPTY: &str = "import pbs\npbs.event().accept()\n";

/// Seconds from one job to the next: two cores have to start and end them meanwhile.
const PACE: &str = "0.25";

/// The goals, in milliseconds: the 99th of 100 in pbs_server and on a mom, and the longest that qstat waits for the hook.
const GOALS: [f64; 3] = [15.0, 30.0, 100.0];

/// Which hook is in use, beside a planner or not.
const ARMS: [(&str, &str, bool); 4] = [
    ("no hook", "", false),
    ("a hook that accepts at once", "empty", false),
    ("gpuos", "gpuos", false),
    ("gpuos, and the planner each second", "gpuos", true),
];

/// Milliseconds.
#[derive(Default, Clone)]
struct Times(Vec<f64>);

impl Times {
    fn of(seconds: &Value) -> Times {
        let all = seconds.as_array().into_iter().flatten();
        Times(all.filter_map(Value::as_f64).map(|s| s * 1e3).collect())
    }

    /// The time that so many of a hundred are below.
    fn at(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(place.min(last)).copied().unwrap_or(f64::NAN)
    }

    /// Cells of a table: how many, the median, the 99th of 100 and the longest.
    fn cells(&self) -> String {
        let [median, high, most] = [50, 99, 100].map(|percent| self.at(percent));
        format!("{} | {median:.1} | {high:.1} | {most:.1} |", self.0.len())
    }
}

/// Behind the name of a part: processor time of PBS's own process, which a busy machine leaves as it is.
const CPU: &str = " cpu";

/// Times by event and by part of it, as a log has them since some byte of it.
type Parts = BTreeMap<(String, String), Times>;

/// `label=hook_EVENT_HOOK_… action=PART walltime=SECONDS cputime=…`
fn parts(log: &str, hook: &str) -> Parts {
    let mut parts = Parts::new();
    for line in log.lines() {
        let word = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key));
        let Some((_, label)) = line.split_once("label=hook_") else {
            continue;
        };
        let (Some((event, _)), Some(part)) =
            (label.split_once(&format!("_{hook}_")), word("action="))
        else {
            continue;
        };
        for (time, kind) in [("walltime=", ""), ("cputime=", CPU)] {
            let seconds = word(time).and_then(|text| text.parse::<f64>().ok());
            let key = (event.to_owned(), format!("{part}{kind}"));
            if let Some(seconds) = seconds {
                parts.entry(key).or_default().0.push(seconds * 1e3);
            }
        }
    }
    parts
}

struct Measure {
    lab: PbsLab,
    jobs: usize,
}

#[derive(Default)]
struct Table {
    server: String,
    moms: String,
    clients: String,
    goals: String,
}

#[test]
fn the_hook_in_server_and_moms() {
    let Some(jobs) = measured_runs("GPUOS_PBS", "make pbs") else {
        return;
    };
    let Some(prefix) = pbs_with("the cost of the hook", Needs::RealPbs) else {
        return;
    };
    let lab = pbs_site::up(&prefix, "pbs-cost");
    let measure = Measure { lab, jobs };
    measure.add_empty();
    let mut table = Table::default();
    let begun = load();
    let mut own = Parts::new();
    for (arm, hook, planner) in ARMS {
        let parts = measure.server(&mut table, (arm, hook), planner);
        if (hook, planner) == ("gpuos", false) {
            own = parts;
        }
    }
    measure.moms(&mut table, "empty", "a hook that accepts at once");
    let of_moms = measure.moms(&mut table, "gpuos", "gpuos");
    table.goal("pbs_server", own.iter(), "server_process_hooks", GOALS[0]);
    table.goal("a mom", of_moms.iter(), "mom_process_hooks", GOALS[1]);
    let longest = own
        .iter()
        .filter(|((_, part), _)| part == "server_process_hooks");
    let longest = longest.map(|(_, times)| times.at(100)).fold(0.0, f64::max);
    let _ = writeln!(
        table.goals,
        "| longest that pbs_server serves nobody for the hook | {:.0} ms | {longest:.1} ms | {} |",
        GOALS[2],
        reached(longest, GOALS[2])
    );
    let made = table.text(&measure, (&begun, &load()));
    eprintln!("{made}");
    write_part("latency", &made);
    ran(measure.lab.down());
}

fn reached(took: f64, goal: f64) -> &'static str {
    match took <= goal {
        true => "yes",
        false => "no",
    }
}

impl Measure {
    /// A second hook for the same events.
    fn add_empty(&self) {
        let script = self.lab.dir().join("work/empty.py");
        fs::write(&script, EMPTY).unwrap();
        let import = format!(
            "import hook empty application/x-python default {}",
            script.display()
        );
        for line in [
            "create hook empty",
            "set hook empty event = 'queuejob,runjob,execjob_launch'",
            "set hook empty enabled = false",
            &import,
        ] {
            let line = line.replace('\'', "\"");
            ran(self.lab.run("qmgr", &["-c", &line]));
        }
    }

    /// Has this hook alone in use; none where the name is empty.
    fn in_use(&self, hook: &str) {
        for name in ["gpuos", "empty"] {
            let line = format!("set hook {name} enabled = {}", name == hook);
            ran(self.lab.run("qmgr", &["-c", &line]));
        }
        // Moms are told, and say so with each hook that they copy.
        let nodes = self.lab.record().spec.node_names();
        let there = |node: &String, name: &str| {
            let path = self
                .lab
                .home(node)
                .join(format!("mom_priv/hooks/{name}.HK"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let off = text.contains("enabled=0") || text.to_lowercase().contains("enabled=false");
            !text.is_empty() && off != (name == hook)
        };
        until("moms know which hook is in use", || {
            let mut all = nodes.iter();
            all.all(|node| ["gpuos", "empty"].iter().all(|name| there(node, name)))
        });
    }

    /// Jobs at a steady pace while qstat asks: rows of the server and of its clients.
    fn server(&self, table: &mut Table, (arm, hook): (&str, &str), planner: bool) -> Parts {
        self.in_use(hook);
        let planner = planner.then(|| Planner::start(&self.lab, 1));
        let before = self.lab.daemon_log("head", SERVER).len();
        let [script, job] =
            ["work/clients.py", "work/job.sh"].map(|name| self.lab.dir().join(name));
        fs::write(&script, CLIENTS).unwrap();
        fs::write(&job, "true\n").unwrap();
        let mut command = ran(self.lab.command_on("head", Some("user1"), "python3"));
        let jobs = self.share(hook == "gpuos" && planner.is_none());
        command.arg(&script).args([&jobs.to_string(), PACE]);
        command.args(["-l", "select=1:ngpus=1:ncpus=1"]);
        if hook == "gpuos" {
            command.args(["-l", "gpuos_topology=leaf:required"]);
        }
        let out = command.arg(&job).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let said: Value = serde_json::from_slice(&out.stdout).unwrap();
        self.idle();
        drop(planner);
        let (qsub, qstat) = (Times::of(&said["qsub"]), Times::of(&said["qstat"]));
        let _ = writeln!(table.clients, "| qsub | {arm} | {}", qsub.cells());
        let _ = writeln!(table.clients, "| qstat -B | {arm} | {}", qstat.cells());
        let log = self.lab.daemon_log("head", SERVER);
        let parts = parts(log.get(before..).unwrap_or_default(), hook);
        for ((event, part), times) in &parts {
            let what = match &part[..] {
                "server_process_hooks" => "whole event",
                "server_process_hooks cpu" => "processor time of pbs_server",
                "run_code" => "of it the hook's code",
                _ => continue,
            };
            let _ = writeln!(
                table.server,
                "| {event} | {arm} | {what} | {}",
                times.cells()
            );
        }
        parts
    }

    /// How many jobs an arm has: what is only compared with needs no hundredths.
    fn share(&self, is_ours: bool) -> usize {
        match is_ours {
            true => self.jobs,
            false => (self.jobs / 5).max(1),
        }
    }

    /// Waits until no job is left.
    fn idle(&self) {
        until("all jobs have ended", || {
            let left = self.lab.run("qstat", &[]);
            left.is_ok_and(|text| text.trim().is_empty())
        });
    }

    /// Launches one after the other, of a job with one GPU of each host: rows of the moms.
    fn moms(&self, table: &mut Table, hook: &str, arm: &str) -> Parts {
        self.in_use(hook);
        let nodes = self.lab.record().spec.node_names();
        let logs = || nodes.iter().map(|node| self.lab.daemon_log(node, MOM));
        let before: Vec<usize> = logs().map(|log| log.len()).collect();
        let options = ["-l", "select=4:ngpus=1:ncpus=1", "-l", "place=scatter"];
        let wish = ["-l", "gpuos_topology=any"];
        let options = match hook {
            "gpuos" => [&options[..], &wish[..]].concat(),
            _ => options.to_vec(),
        };
        let script = format!(
            "i=0; while [ $i -lt {} ]; do pbsdsh -n $((i % 4)) -- /bin/true; i=$((i + 1)); done\n",
            2 * self.share(hook == "gpuos")
        );
        let job = pbs_site::submit(&self.lab, &options, &script);
        ran(self.lab.wait_job(&job, &["F"], 4 * LIMIT));
        let mut all = Parts::new();
        for (log, before) in logs().zip(before) {
            for (key, times) in parts(log.get(before..).unwrap_or_default(), hook) {
                all.entry(key).or_default().0.extend(times.0);
            }
        }
        for ((event, part), times) in &all {
            let what = match &part[..] {
                "mom_process_hooks" => "whole event",
                "pbs_python cpu" => "processor time of pbs_python",
                "start_interpreter" => "of it Python's start",
                "run_code" => "of it the hook's code",
                _ => continue,
            };
            let _ = writeln!(table.moms, "| {event} | {arm} | {what} | {}", times.cells());
        }
        all
    }
}

impl Table {
    fn goal<'p>(
        &mut self,
        whom: &str,
        parts: impl Iterator<Item = (&'p (String, String), &'p Times)>,
        whole: &str,
        goal: f64,
    ) {
        let mut all = Times::default();
        for ((_, part), times) in parts {
            if part == whole {
                all.0.extend(&times.0);
            }
        }
        assert!(all.0.len() >= 2, "no event of {whom} was seen");
        let took = all.at(99);
        let _ = writeln!(
            self.goals,
            "| an event in {whom}, 99 of 100 (of {}) | {goal:.0} ms | {took:.1} ms | {} |",
            all.0.len(),
            reached(took, goal)
        );
    }

    fn text(&self, measure: &Measure, (begun, ended): (&str, &str)) -> String {
        let head = "| number | median | 99 of 100 | longest |\n| --- | --- | --- | ---: | ---: | ---: | ---: |\n";
        format!(
            "Measured on {}, OpenPBS {}, on {}; load {begun} before and {ended} after. Milliseconds.\n\n\
             | goal | | reached | |\n| --- | ---: | ---: | --- |\n{}\n\
             In pbs_server, {} jobs, a fifth of that in the other rows, one every {PACE} s:\n\n| event | hook | what {head}{}\n\
             On moms, one launch after the other:\n\n| event | hook | what {head}{}\n\
             Commands on the server's host meanwhile, each a process of its own:\n\n\
             | command | beside | number | median | 99 of 100 | longest |\n| --- | --- | ---: | ---: | ---: | ---: |\n{}",
            gpuos_tests::results::today(),
            measure.lab.version(),
            machine(),
            self.goals,
            measure.jobs,
            self.server,
            self.moms,
            self.clients
        )
    }
}
