//! `gpuos pbs-planner`: beside pbs_server, it starts GPU jobs that wait on the hosts that the planner chooses.
//!
//! All that it knows it asks of PBS anew for each pass. So it may end at any moment, and pbs_sched goes on meanwhile. What it keeps for the
//! job that is next, PBS keeps too, by reservations: [`keep`].

pub mod keep;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::screen::lines;
use gpuos_pbs::pass::reserve::Reservation;
use gpuos_pbs::pass::{Plan, Start, plan};
use gpuos_pbs::state::{Job, Site};
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use serde_json::{Value, json};

use crate::cli::PbsPlannerArgs;
use crate::reply::{Reply, out};
use keep::{Keeper, is_root};

/// The form of the answer of one pass.
const SCHEMA: &str = "gpuos.pbs-plan/1";

/// The most passes that a job is left out of after PBS has refused to run it, and again and again.
const MOST_PASSES: u32 = 64;

/// How old PBS's answers may be when a job is started by them; what is left then is planned again.
const FRESH: Duration = Duration::from_secs(10);

/// Runs passes without end, or one; `None`: everything is said.
pub fn run(
    machine: &dyn Machine,
    config: Option<&Path>,
    args: &PbsPlannerArgs,
) -> Result<Option<Reply>> {
    let pbs = Pbs::find(machine)?;
    let mut passes = Passes {
        machine,
        pbs,
        keeper: Keeper::find(machine)?,
        reserved: Vec::new(),
        config,
        bounds: Bounds {
            kept: usize::try_from(args.keep).unwrap_or(1),
            ..Bounds::default()
        },
        planner: None,
        refused: HashMap::new(),
        asked: Instant::now(),
        fresh: match args.once {
            true => Duration::MAX,
            false => FRESH,
        },
    };
    if args.once || args.dry_run {
        let (site, plan) = passes.plan()?;
        let done = match args.dry_run {
            true => Vec::new(),
            false => passes.start(&site, &plan.starts),
        };
        return Ok(Some(reply(&site, &plan, &done)));
    }
    let reserves = is_root(machine);
    let mut said = HashSet::new();
    // What PBS said of reservations in the pass before.
    let mut refused = Vec::new();
    loop {
        let pass = passes.plan();
        let mut sentences: Vec<String> = match &pass {
            Ok((site, _)) => {
                let barred = (!site.barred.is_empty())
                    .then(|| format!("no job is started: {}", site.barred));
                site.notes.iter().cloned().chain(barred).collect()
            }
            // PBS may be away for a while; it is asked again.
            Err(e) => vec![format!("{e:#}")],
        };
        sentences.append(&mut refused);
        for sentence in news(sentences, &mut said) {
            eprintln!("gpuos: {}", lines(&sentence));
        }
        if let Ok((site, plan)) = pass {
            let done = passes.start(&site, &plan.starts);
            for (start, outcome) in plan.starts.iter().zip(&done) {
                out(&lines(&format!("{}\n", started(start, outcome))));
            }
            if reserves {
                refused = passes.keep(&site, &plan, &done);
            }
            if done.len() < plan.starts.len() {
                continue;
            }
        }
        machine.pause(Duration::from_secs(args.interval));
    }
}

/// Those of a pass's sentences that the pass before did not have.
fn news(sentences: Vec<String>, said: &mut HashSet<String>) -> Vec<String> {
    let before = std::mem::replace(said, sentences.iter().cloned().collect());
    let mut new = sentences;
    new.retain(|sentence| !before.contains(sentence));
    new
}

/// What became of a start.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Runs,
    /// The plan does not hold any more, so it was not tried.
    NotTried(String),
    Refused(String),
}

struct Passes<'m> {
    machine: &'m dyn Machine,
    pbs: Pbs,
    keeper: Keeper,
    /// The planner's reservations, as PBS had them for the last plan.
    reserved: Vec<Reservation>,
    config: Option<&'m Path>,
    bounds: Bounds,
    /// Made once for a cluster: its tables take time.
    planner: Option<Planner>,
    /// How often PBS has refused to run a job, and in how many passes it is tried again.
    refused: HashMap<String, (u32, u32)>,
    /// When PBS had given the answers of the last plan.
    asked: Instant,
    /// How old they may be for a start that is not the first one of a pass.
    fresh: Duration,
}

impl Passes<'_> {
    fn plan(&mut self) -> Result<(Site, Plan)> {
        let mut site = self.pbs.site(self.machine, self.config)?;
        self.reserved = self.keeper.own(self.machine, &mut site);
        self.asked = Instant::now();
        let known = self.planner.take();
        let known = known.filter(|planner| *planner.cluster() == site.cluster);
        let mut planner = known.unwrap_or_else(|| Planner::new(site.cluster.clone()));
        let refused = self.put_off(&site);
        let plan = plan(&site, &mut planner, self.bounds, &refused);
        self.planner = Some(planner);
        Ok((site, plan))
    }

    /// Has PBS keep what the plan keeps; what it refused, in its words.
    fn keep(&mut self, site: &Site, plan: &Plan, done: &[Outcome]) -> Vec<String> {
        let runs = |nth: usize| done.get(nth) == Some(&Outcome::Runs);
        let starts = plan.starts.iter().enumerate();
        let busy: BTreeSet<String> = starts
            .filter(|(nth, _)| !runs(*nth))
            .map(|(_, start)| start.job.clone())
            .collect();
        let known = (&self.reserved[..], &plan.keeps[..]);
        let refused = self.keeper.follow(self.machine, known, &busy, site);
        refused.iter().map(|why| format!("{why:#}")).collect()
    }

    /// The jobs that are left out of the next pass. What is known of jobs that do not wait any more is forgotten.
    fn put_off(&mut self, site: &Site) -> HashSet<String> {
        let waiting = site.jobs.iter().filter(|job| job.state == "Q");
        let waiting: HashSet<&str> = waiting.map(|job| &job.id[..]).collect();
        self.refused.retain(|job, _| waiting.contains(&job[..]));
        let mut put_off = HashSet::new();
        for (job, (_, passes)) in &mut self.refused {
            if *passes > 0 {
                *passes -= 1;
                put_off.insert(job.clone());
            }
        }
        put_off
    }

    /// Has PBS run the jobs, one after the other, until its answers are too old: then fewer outcomes than starts come back, at
    /// least one.
    fn start(&mut self, site: &Site, starts: &[Start]) -> Vec<Outcome> {
        let by_id: HashMap<&str, &Job> = site.jobs.iter().map(|job| (&job.id[..], job)).collect();
        let mut done = Vec::new();
        for start in starts {
            if !done.is_empty() && self.asked.elapsed() > self.fresh {
                break;
            }
            let outcome = match by_id.get(&start.job[..]) {
                Some(job) => self.try_start(job, &start.exec_vnode),
                None => Outcome::NotTried("PBS does not know it any more".into()),
            };
            done.push(outcome);
        }
        done
    }

    fn try_start(&mut self, job: &Job, exec_vnode: &str) -> Outcome {
        if let Err(e) = self.pbs.still_holds(self.machine, job, exec_vnode) {
            return Outcome::NotTried(format!("{e:#}"));
        }
        match self.pbs.run_at(self.machine, &job.id, exec_vnode) {
            Ok(()) => {
                self.refused.remove(&job.id);
                Outcome::Runs
            }
            Err(e) => {
                let (tries, passes) = self.refused.entry(job.id.clone()).or_default();
                *passes = (1 << (*tries).min(10)).min(MOST_PASSES);
                *tries = tries.saturating_add(1);
                Outcome::Refused(format!("{e:#}"))
            }
        }
    }
}

fn started(start: &Start, outcome: &Outcome) -> String {
    let Start {
        job,
        exec_vnode,
        sentence,
    } = start;
    match outcome {
        Outcome::Runs => format!("{job} starts: {sentence}; {exec_vnode}"),
        Outcome::NotTried(why) => format!("{job} was not tried: {why}"),
        Outcome::Refused(why) => format!("{job} was not started: {why}"),
    }
}

fn reply(site: &Site, plan: &Plan, done: &[Outcome]) -> Reply {
    let mut text = String::new();
    for (nth, start) in plan.starts.iter().enumerate() {
        text += &match done.get(nth) {
            Some(outcome) => started(start, outcome),
            None => format!(
                "{} would start: {}; {}",
                start.job, start.sentence, start.exec_vnode
            ),
        };
        text.push('\n');
    }
    for keeps in &plan.keeps {
        text += &format!("kept for {}: {}\n", keeps.job, keeps.text(&site.nodes));
    }
    for waits in &plan.waits {
        text += &format!("{} waits: {}\n", waits.job, waits.why);
    }
    for left in &plan.left {
        text += &format!("{} is left to pbs_sched: {}\n", left.job, left.why);
    }
    for note in &site.notes {
        text += &format!("note: {note}\n");
    }
    if text.is_empty() {
        text = "No GPU job waits.\n".into();
    }
    let outcome = |outcome: &Outcome| match outcome {
        Outcome::Runs => Value::Null,
        Outcome::NotTried(why) | Outcome::Refused(why) => json!(why),
    };
    Reply {
        schema: SCHEMA,
        json: json!({
            "starts": plan.starts,
            "refused": done.iter().map(outcome).collect::<Vec<Value>>(),
            "keeps": plan.keeps,
            "waits": plan.waits,
            "left": plan.left,
            "notes": site.notes,
        }),
        text,
        yes: !done.iter().any(|outcome| *outcome != Outcome::Runs),
    }
}

#[cfg(test)]
mod tests {
    use gpuos_host::Recorded;

    use super::*;

    const VNODES: &str = r#"{"nodes":{"n":{"state":"free","sharing":"default_shared","resources_available":{"ngpus":1}}}}"#;
    const QUEUES: &str =
        r#"{"Queue":{"workq":{"queue_type":"Execution","enabled":"True","started":"True"}}}"#;
    const SERVER: &str = r#"{"Server":{"head":{"scheduling":"True"}}}"#;

    /// Jobs `1.head` to `3.head`, and a PBS that would run the first two.
    fn machine() -> Recorded {
        let job = |id: u32| {
            format!(r#""{id}.head":{{"job_state":"Q","queue":"workq","schedselect":"1:ngpus=1"}}"#)
        };
        let all = format!("{{\"Jobs\":{{{},{},{}}}}}", job(1), job(2), job(3));
        let asked = (1..4).fold(Recorded::default(), |machine, id| {
            machine.command(&format!("/opt/bin/qstat -f -F json {id}.head"), &all)
        });
        (1..3)
            .fold(asked, |machine, id| {
                machine.command(&format!("/opt/bin/qrun -H (n:ngpus=1) {id}.head"), "")
            })
            .command("/opt/bin/qstat -f -F json", &all)
            .command("/opt/bin/qstat -B -f -F json", SERVER)
            .command("/opt/bin/qstat -Q -f -F json", QUEUES)
            .command("/opt/bin/pbsnodes -av -F json", VNODES)
            .command("/opt/bin/pbsnodes -v -F json n", VNODES)
            .file("/etc/pbs.conf", "PBS_EXEC=/opt\n")
            .file("/etc/gpuos/gpuos.toml", "")
    }

    fn passes(machine: &Recorded, fresh: Duration) -> Passes<'_> {
        Passes {
            machine,
            pbs: Pbs::find(machine).unwrap(),
            keeper: Keeper::find(machine).unwrap(),
            reserved: Vec::new(),
            config: None,
            bounds: Bounds::default(),
            planner: None,
            refused: HashMap::new(),
            asked: Instant::now(),
            fresh,
        }
    }

    fn starts() -> Vec<Start> {
        let start = |id: u32| Start {
            job: format!("{id}.head"),
            exec_vnode: "(n:ngpus=1)".into(),
            sentence: String::new(),
        };
        (1..4).map(start).collect()
    }

    #[test]
    fn what_is_old_starts_one_job_and_is_planned_again() {
        let machine = machine();
        let mut passes = passes(&machine, Duration::ZERO);
        let (site, _) = passes.plan().unwrap();
        assert_eq!(passes.start(&site, &starts()), [Outcome::Runs]);
        passes.fresh = Duration::MAX;
        let done = passes.start(&site, &starts());
        assert_eq!((done.len(), &done[1]), (3, &Outcome::Runs));
    }

    #[test]
    fn a_job_that_pbs_refuses_is_left_out_of_the_next_passes() {
        let machine = machine();
        let mut passes = passes(&machine, Duration::MAX);
        let mut left_out = Vec::new();
        for _ in 0..3 {
            let (site, _) = passes.plan().unwrap();
            let done = passes.start(&site, &starts());
            assert!(matches!(done[2], Outcome::Refused(_)), "{done:?}");
            let mut passes_without = 0;
            while passes.put_off(&site).contains("3.head") {
                passes_without += 1;
            }
            left_out.push(passes_without);
        }
        assert_eq!(left_out, [1, 2, 4]);
        passes.put_off(&Site::default());
        assert!(passes.refused.is_empty());
    }

    #[test]
    fn a_sentence_is_said_when_it_is_new() {
        let mut said = HashSet::new();
        let mut say = |all: &[&str]| news(all.iter().map(|s| (*s).to_owned()).collect(), &mut said);
        assert_eq!(say(&["a", "b"]), ["a", "b"]);
        assert!(say(&["a", "b"]).is_empty());
        assert_eq!(say(&["b", "c"]), ["c"]);
        assert_eq!(say(&["a"]), ["a"]);
    }
}
