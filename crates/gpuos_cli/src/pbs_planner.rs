//! `gpuos pbs-planner`: beside pbs_server, it starts GPU jobs that wait on the vnodes that the planner chooses.
//!
//! All that it knows it asks of PBS anew for each pass. So it may end at any moment, and pbs_sched goes on meanwhile.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::screen::lines;
use gpuos_pbs::pass::{Plan, Start, plan};
use gpuos_pbs::state::Site;
use gpuos_placement::plan::Planner;
use gpuos_placement::queue::Bounds;
use serde_json::{Value, json};

use crate::cli::PbsPlannerArgs;
use crate::reply::{Reply, out};

/// The form of the answer of one pass.
const SCHEMA: &str = "gpuos.pbs-plan/1";

/// The most passes that a job is left out of after PBS has refused to run it, and again and again.
const MOST_PASSES: u32 = 64;

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
        config,
        bounds: Bounds {
            kept: usize::try_from(args.keep).unwrap_or(1),
            ..Bounds::default()
        },
        planner: None,
        refused: HashMap::new(),
    };
    if args.once || args.dry_run {
        let (site, plan) = passes.plan()?;
        let done = match args.dry_run {
            true => Vec::new(),
            false => passes.start(&plan.starts),
        };
        return Ok(Some(reply(&site, &plan, &done)));
    }
    let mut said = String::new();
    loop {
        match passes.plan() {
            Ok((site, plan)) => {
                for note in &site.notes {
                    say(note, &mut said);
                }
                if !site.barred.is_empty() {
                    say(&format!("no job is started: {}", site.barred), &mut said);
                }
                for (start, refused) in plan.starts.iter().zip(passes.start(&plan.starts)) {
                    out(&lines(&format!("{}\n", started(start, &refused))));
                }
            }
            // PBS may be away for a while; it is asked again.
            Err(e) => say(&format!("{e:#}"), &mut said),
        }
        machine.pause(Duration::from_secs(args.interval));
    }
}

/// Says what was not said last.
fn say(sentence: &str, said: &mut String) {
    if sentence != said {
        eprintln!("gpuos: {}", lines(sentence));
        sentence.clone_into(said);
    }
}

/// What became of a start.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Runs,
    /// PBS refused it lately, so it was not tried.
    NotTried,
    Refused(String),
}

struct Passes<'m> {
    machine: &'m dyn Machine,
    pbs: Pbs,
    config: Option<&'m Path>,
    bounds: Bounds,
    /// Made once for a cluster: its tables take time.
    planner: Option<Planner>,
    /// How often PBS has refused to run a job, and in how many passes it is tried again.
    refused: HashMap<String, (u32, u32)>,
}

impl Passes<'_> {
    fn plan(&mut self) -> Result<(Site, Plan)> {
        let site = self.pbs.site(self.machine, self.config)?;
        let known = self.planner.take();
        let known = known.filter(|planner| *planner.cluster() == site.cluster);
        let mut planner = known.unwrap_or_else(|| Planner::new(site.cluster.clone()));
        let plan = plan(&site, &mut planner, self.bounds);
        self.planner = Some(planner);
        Ok((site, plan))
    }

    /// Has PBS run the jobs, one after the other.
    fn start(&mut self, starts: &[Start]) -> Vec<Outcome> {
        for (_, passes) in self.refused.values_mut() {
            *passes = passes.saturating_sub(1);
        }
        let mut before = std::mem::take(&mut self.refused);
        let run = |start: &Start| {
            let tries = before.remove(&start.job).unwrap_or_default();
            if tries.1 > 0 {
                self.refused.insert(start.job.clone(), tries);
                return Outcome::NotTried;
            }
            let ran = self.pbs.run_at(self.machine, &start.job, &start.exec_vnode);
            match ran {
                Ok(()) => Outcome::Runs,
                Err(e) => {
                    let passes = (1 << tries.0.min(10)).min(MOST_PASSES);
                    let tries = (tries.0.saturating_add(1), passes);
                    self.refused.insert(start.job.clone(), tries);
                    Outcome::Refused(format!("{e:#}"))
                }
            }
        };
        starts.iter().map(run).collect()
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
        Outcome::NotTried => format!("{job} is not tried again yet: PBS refused to run it"),
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
        let vnodes = keeps.vnodes.join(" ");
        text += &format!("kept for {}: {vnodes}\n", keeps.job);
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
        Outcome::NotTried => json!("PBS refused to run it lately"),
        Outcome::Refused(why) => json!(why),
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
