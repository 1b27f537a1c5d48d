//! `gpuos plan` on a cluster with PBS: what the planner beside pbs_server would do now with a job that is not submitted yet.

mod form;

use std::path::Path;

use anyhow::{Result, anyhow};
use gpuos_host::Machine;
use gpuos_host::pbs::Pbs;
use gpuos_model::cluster::Cluster;
use gpuos_model::hostlist::compress;
use gpuos_pbs::pass::what_if::{Asked, Outcome, Told, ask, ask_alone};
use gpuos_pbs::state::Site;
use gpuos_pbs::state::fresh::vnodes_of;
use gpuos_placement::plan::{Choice, Planner};
use gpuos_placement::queue::ENDLESS;
use serde_json::{Value, json};

use crate::cli::{MigPlanArgs, PlanArgs};
use crate::figures;
use crate::pbs_planner::keep::Keeper;
use crate::pbs_why;
use crate::plan_memory;
use crate::reply::Reply;
use crate::table::count;

use form::{Chunks, Form};

/// The most smaller jobs that are tried for one that would start now.
const MOST_TRIES: usize = 32;

/// `gpuos mig plan`: the same about slices of each of some hosts.
///
/// # Errors
/// An option has no meaning on PBS, PBS does not answer, or it would refuse the job: a sentence.
pub fn slices(machine: &dyn Machine, config: Option<&Path>, args: &MigPlanArgs) -> Result<Reply> {
    let site = Pbs::find(machine)?.site(machine, config)?;
    answer(&site, &Form::of_slices(args)?)
}

/// The answer.
pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &PlanArgs) -> Result<Reply> {
    let form = Form::of(args)?;
    let mut site = Pbs::find(machine)?.site(machine, config)?;
    // What is reserved for a job that is next is the planner's to give.
    Keeper::find(machine)?.own(machine, &mut site);
    let mut reply = answer(&site, &form)?;
    // What PBS would refuse is an error by then.
    if let Some(asked) = args.gpu_mem {
        plan_memory::split_of_chunk(&site, asked, args.trace.as_deref())?.tell(&mut reply);
    }
    Ok(reply)
}

/// What becomes of a job on a site.
fn answer(site: &Site, form: &Form) -> Result<Reply> {
    let mut planner = Planner::new(site.cluster.clone());
    let asked = form.asked();
    let refused = |why: String| anyhow!("PBS would refuse `{}`: {why}", asked.qsub());
    let told = ask(site, &mut planner, &asked).map_err(refused)?;
    let mut beside = Beside::default();
    if let Outcome::Waits { kept_for, .. } = told.outcome {
        let alone = ask_alone(site, &mut planner, &asked).map_err(refused)?;
        beside.is_held_up = matches!(alone.outcome, Outcome::Starts { .. });
        beside.changes = changes(site, &mut planner, form, kept_for);
    }
    Ok(reply(site, &asked, &told, &beside))
}

/// What is told of a job that waits.
#[derive(Default)]
struct Beside {
    /// Whether it would start if no other job waited.
    is_held_up: bool,
    changes: Vec<Change>,
}

/// A change with which the job would start now.
struct Change {
    /// What to give instead.
    option: String,
    /// GPUs less than asked for.
    fewer_gpus: u32,
    sentence: String,
    choice: Choice,
}

/// The smallest changes with which the job would start now: of its time limit, of its level, and of how much it asks for. `kept_for`: in how many
/// seconds a job can start that vnodes are kept for.
fn changes(site: &Site, planner: &mut Planner, form: &Form, kept_for: Option<i64>) -> Vec<Change> {
    let mut found = Vec::new();
    // Whoever ends before that job can start may have its vnodes.
    if let Some(minutes) = kept_for.filter(|at| *at < ENDLESS).map(|at| at / 60)
        && minutes > 0
    {
        let limit = format!("{}:{:02}:00", minutes / 60, minutes % 60);
        let option = format!("--walltime={limit}");
        let short = Form {
            walltime: Some(limit),
            ..form.clone()
        };
        found.extend(change(site, planner, (option, &short, 0)));
    }
    if let (Some(level), true) = (&form.level, form.is_required) {
        let wish = Form {
            is_required: false,
            ..form.clone()
        };
        let option = format!("--topology={level}");
        found.extend(change(site, planner, (option, &wish, 0)));
    }
    let mut fewer = form.chunks.fewer();
    let with = |chunks: &Chunks| Form {
        chunks: chunks.clone(),
        ..form.clone()
    };
    // Each try is a pass over the whole queue: where not even the smallest job starts, no other is tried.
    let smallest = fewer.last().map(|(_, chunks, _)| with(chunks));
    if smallest.is_some_and(|smallest| would_start(site, planner, &smallest)) {
        fewer.truncate(MOST_TRIES);
        let mut starting = fewer
            .into_iter()
            .map(|(option, chunks, fewer)| change(site, planner, (option, &with(&chunks), fewer)));
        found.extend(starting.find_map(|change| change));
    }
    found
}

/// A change, if the job would start with it.
fn change(
    site: &Site,
    planner: &mut Planner,
    (option, form, fewer_gpus): (String, &Form, u32),
) -> Option<Change> {
    let told = ask(site, planner, &form.asked()).ok()?;
    let Outcome::Starts { start, choice } = told.outcome else {
        return None;
    };
    Some(Change {
        option,
        fewer_gpus,
        sentence: start.sentence,
        choice,
    })
}

fn would_start(site: &Site, planner: &mut Planner, form: &Form) -> bool {
    change(site, planner, (String::new(), form, 0)).is_some()
}

fn reply(site: &Site, asked: &Asked, told: &Told, beside: &Beside) -> Reply {
    let qsub = asked.qsub();
    let mut json = json!({
        "fits": false,
        "qsub": qsub,
        "exec_vnode": null,
        "vnodes": [],
        "place": null,
        "wait": null,
        "left_to_pbs_sched": null,
        "starts_in_seconds": null,
        "held_up": beside.is_held_up,
        "changes": beside.changes.iter().map(|change| change.json(site)).collect::<Vec<Value>>(),
        "free_gpus": told.free_gpus,
        "notes": site.notes,
    });
    let text = match &told.outcome {
        Outcome::Starts { start, choice } => {
            let vnodes = vnodes_of(&start.exec_vnode);
            json["fits"] = true.into();
            json["sentence"] = start.sentence.clone().into();
            json["exec_vnode"] = start.exec_vnode.clone().into();
            json["place"] = figures::choice_json(choice, &stated(site));
            let text = format!(
                "It would start now: {}\n\n{}\nVnodes: {}; gpuosd chooses the GPUs when it starts.\n",
                start.sentence,
                figures::table(choice, &stated(site)),
                start.exec_vnode,
            );
            json["vnodes"] = vnodes.into();
            text
        }
        Outcome::Waits {
            why,
            wait,
            starts_in,
            ..
        } => {
            json["wait"] = wait.as_ref().map_or(Value::Null, figures::wait_json);
            json["starts_in_seconds"] = (*starts_in).filter(|at| *at < ENDLESS).into();
            let text = waits(why, *starts_in, beside);
            json["sentence"] = text.trim_end().into();
            text
        }
        Outcome::WithoutGpus { why, room } => {
            json["fits"] = room.is_some().into();
            json["left_to_pbs_sched"] = (*why).into();
            let why = format!("I{}", &why[1..]);
            let hosts = room.iter().flatten().map(|name| &name[..]);
            let text = match room {
                Some(_) => format!(
                    "{why}, and pbs_sched alone places it: {} {} room for its chunks now.\n",
                    compress(hosts.clone()),
                    if hosts.clone().count() == 1 {
                        "has"
                    } else {
                        "have"
                    }
                ),
                None => format!(
                    "{why}, and pbs_sched alone places it: there is no room for all its chunks now.\n"
                ),
            };
            json["vnodes"] = hosts.collect::<Vec<_>>().into();
            json["sentence"] = text.trim_end().into();
            text
        }
        Outcome::Left(why) => {
            json["left_to_pbs_sched"] = why.clone().into();
            let text = format!("The planner would leave it to pbs_sched: {why}.\n");
            json["sentence"] = text.trim_end().into();
            text
        }
    };
    let never = match &told.never[..] {
        "" => String::new(),
        never => format!("It would never start as it is: {never}.\n"),
    };
    let free = match &told.outcome {
        Outcome::WithoutGpus { .. } => String::new(),
        _ => format!(
            "Free for such a job: {} on {}.\n",
            count(told.free_gpus, "GPU"),
            count(told.free_hosts, "host"),
        ),
    };
    let notes = pbs_why::notes(site);
    Reply {
        schema: "gpuos.plan-pbs/1",
        text: format!("{text}{never}As a job: {qsub}\n{free}{notes}"),
        yes: json["fits"] == true,
        json,
    }
}

/// The cluster with those types alone that gpuos.toml states: of others nobody says what links are.
fn stated(site: &Site) -> Cluster {
    let mut cluster = site.cluster.clone();
    for node in &mut cluster.nodes {
        let own = node.node_type.take();
        node.node_type = own.filter(|own| site.config.states(&node.name, own));
    }
    cluster
}

/// Why it waits, until when at least, and what would start it.
fn waits(why: &str, starts_in: Option<i64>, beside: &Beside) -> String {
    let mut text = format!("{}.\n", why.trim_end_matches('.'));
    if beside.is_held_up {
        text += "Jobs that wait already come before it: if none did, it would start now.\n";
    }
    match starts_in {
        Some(ENDLESS..) => {
            text += "When it can start is not known: a job that it waits for has no time limit.\n";
        }
        Some(seconds) => {
            let minutes = usize::try_from(seconds.max(0)).unwrap_or(0).div_ceil(60);
            text += &format!(
                "By the time limits of running jobs there is room for it in {}, or sooner where they end sooner.\n",
                count(minutes, "minute")
            );
        }
        None => {}
    }
    for change in &beside.changes {
        text += &format!(
            "With {} it would start now: {}\n",
            change.option, change.sentence
        );
    }
    text
}

impl Change {
    fn json(&self, site: &Site) -> Value {
        json!({
            "option": self.option,
            "by": "user",
            "fewer_gpus": self.fewer_gpus,
            "place": figures::choice_json(&self.choice, &stated(site)),
        })
    }
}
