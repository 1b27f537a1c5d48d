//! `gpuos plan` on a cluster with PBS: what the planner beside pbs_server would do now with a job that is not submitted yet.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use gpuos_config::options::placement_text;
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

use crate::cli::{Gpus, PlanArgs};
use crate::figures;
use crate::pbs_planner::keep::Keeper;
use crate::pbs_why;
use crate::plan_memory;
use crate::reply::Reply;
use crate::table::count;

/// The most smaller jobs that are tried for one that would start now.
const MOST_TRIES: usize = 32;

/// Why slices of GPUs are not planned here.
const NO_SLICES: &str =
    "whole GPUs are planned on PBS; `gpuos mig` shows what is free of divided ones";

/// The answer to a question about slices.
///
/// # Errors
/// Always: a sentence.
pub fn slices() -> Result<Reply> {
    bail!("`gpuos mig plan` knows Slurm alone: {NO_SLICES}")
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

/// What a job asks for, by its chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Form {
    chunks: Chunks,
    place: String,
    queue: String,
    /// `gpuos_topology`, without `:required`.
    level: Option<String>,
    is_required: bool,
    placement: Option<String>,
    walltime: Option<String>,
    memory: Option<String>,
}

/// The chunks of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Chunks {
    /// As the user wrote them.
    Written(String),
    Alike {
        count: u32,
        gpus: u32,
        cpus: u32,
        /// Of each; 0: nothing is said.
        mib: u64,
        /// The option that says how many there are, and that which says how many GPUs each has.
        options: (&'static str, &'static str),
    },
}

/// Options of sbatch that say nothing on PBS, whether they are given, and what to do instead.
fn of_slurm_alone(args: &PlanArgs) -> [(&'static str, bool, &'static str); 18] {
    let typed = |gpus: &Option<Gpus>| gpus.as_ref().is_some_and(|g| g.gres_type.is_some());
    let types = typed(&args.gpus) || typed(&args.gpus_per_node) || typed(&args.gpus_per_task);
    let leave = "leave it out";
    let chunk =
        "write what the vnodes must have into --select, for example --select=1:ngpus=4:NAME=VALUE";
    let whole = "write all GPUs of the nodes, for example --gpus-per-node=8";
    [
        ("--mig", args.mig.is_some(), NO_SLICES),
        (
            "--gpus-per-socket",
            args.gpus_per_socket.is_some(),
            "write --gpus-per-node, or --select",
        ),
        (
            "--gres",
            args.gres.is_some(),
            "write --gpus-per-node, or --select",
        ),
        ("a type of GPUs", types, chunk),
        ("--type", args.gpu_type.is_some(), chunk),
        ("--constraint", args.constraint.is_some(), chunk),
        (
            "--nodelist",
            args.nodelist.is_some(),
            "write the host into --select, for example --select=1:ngpus=4:host=NAME",
        ),
        ("--exclude", args.exclude.is_some(), leave),
        ("--exclusive", args.exclusive, whole),
        ("--alone", args.alone.is_some(), whole),
        ("--class", args.class.is_some(), leave),
        ("--account", !args.account.is_empty(), leave),
        ("--qos", !args.qos.is_empty(), leave),
        ("--profile", args.profile.is_some(), leave),
        ("--objectives", args.objectives.is_some(), leave),
        (
            "--defrag",
            args.defrag,
            "jobs of PBS are not moved to make room",
        ),
        (
            "several queues in --partition",
            args.partition.len() > 1,
            "name one",
        ),
        (
            "--ntasks without --gpus-per-task",
            args.ntasks.is_some() && args.gpus_per_task.is_none(),
            "write --cpus-per-gpu, or chunks with --select",
        ),
    ]
}

impl Form {
    /// What the options say.
    ///
    /// # Errors
    /// One of them has no meaning on PBS, or they have none together: a sentence with the option.
    fn of(args: &PlanArgs) -> Result<Form> {
        let mut all = of_slurm_alone(args).into_iter();
        if let Some((option, _, instead)) = all.find(|(_, given, _)| *given) {
            bail!("{option}: PBS has nothing of it; {instead}");
        }
        let (chunks, place) = match &args.select {
            Some(select) => {
                only_select(args)?;
                let place = args.place.clone().unwrap_or_default();
                (Chunks::Written(select.clone()), place)
            }
            None => chunks(args)?,
        };
        let wish = args.topology.as_ref();
        Ok(Form {
            chunks,
            place,
            queue: args.partition.first().cloned().unwrap_or_default(),
            level: wish.map(|wish| wish.level.clone()),
            is_required: wish.is_some_and(|wish| wish.required),
            placement: args.placement.as_ref().map(placement_text),
            walltime: args.walltime.clone(),
            memory: args.gpu_mem.map(|asked| asked.to_string()),
        })
    }

    fn asked(&self) -> Asked {
        let level = self.level.as_ref().map(|level| match self.is_required {
            true => format!("{level}:required"),
            false => level.clone(),
        });
        let said = [
            ("gpuos_topology", level),
            ("gpuos_placement", self.placement.clone()),
            ("walltime", self.walltime.clone()),
            ("gpuos_mem", self.memory.clone()),
        ];
        let resources = said.into_iter();
        Asked {
            select: self.chunks.select(),
            place: self.place.clone(),
            resources: resources
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect(),
            queue: self.queue.clone(),
        }
    }
}

/// Refuses what says again, or otherwise, what stands in `--select`.
fn only_select(args: &PlanArgs) -> Result<()> {
    let others = [
        ("--nodes", args.nodes.is_some()),
        ("--cpus-per-task", args.cpus_per_task != 1),
        ("--cpus-per-gpu", args.cpus_per_gpu != 0),
        ("--mem", args.mem.is_some()),
    ];
    match others.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!(
            "{option} beside --select: a chunk says itself what it takes; write it there, as in --select=2:ngpus=4:ncpus=8:mem=64gb, and hosts \
             as --place=scatter"
        ),
        None => Ok(()),
    }
}

/// Chunks and place of a job by the options that Slurm has too.
fn chunks(args: &PlanArgs) -> Result<(Chunks, String)> {
    let nodes = args.nodes;
    let one = nodes.is_some_and(|nodes| nodes.max == 1);
    let exactly = nodes.filter(|nodes| nodes.min == nodes.max).map(|n| n.min);
    let ranges = "PBS has no number of hosts between two others: write one number, or chunks with --select and --place";
    let cpus = |tasks: u32, gpus: u32| {
        let of_gpus = args.cpus_per_gpu.saturating_mul(gpus);
        args.cpus_per_task.saturating_mul(tasks).max(of_gpus)
    };
    if let Some(gpus) = &args.gpus_per_task {
        let tasks = args.ntasks.unwrap_or(1);
        let place = match nodes {
            None => "",
            Some(_) if one => "pack",
            Some(nodes) if nodes.min == 1 && nodes.max >= tasks => "",
            Some(_) if exactly == Some(tasks) => "scatter",
            Some(_) => bail!(
                "--nodes with --gpus-per-task: on PBS tasks are on one host, on a host each, or spread freely; write --nodes=1, --nodes={tasks}, or \
                 leave it out"
            ),
        };
        let mib = match (args.mem, place) {
            (None, _) => 0,
            (Some(mib), "pack") => mib.div_ceil(tasks.into()),
            (Some(mib), "scatter") => mib,
            (Some(_), _) => bail!(
                "--mem is memory of a node, and tasks are spread freely: write mem= into --select"
            ),
        };
        let chunks = Chunks::Alike {
            count: tasks,
            gpus: gpus.count,
            cpus: cpus(1, gpus.count),
            mib,
            options: ("--ntasks", "--gpus-per-task"),
        };
        return Ok((chunks, place.into()));
    }
    let of_nodes = |count: u32, gpus: u32, options| {
        let chunks = Chunks::Alike {
            count,
            gpus,
            cpus: cpus(1, gpus),
            mib: args.mem.unwrap_or(0),
            options,
        };
        let place = if count > 1 { "scatter" } else { "" };
        (chunks, place.to_owned())
    };
    if let Some(gpus) = &args.gpus_per_node {
        let count = match (nodes, exactly) {
            (None, _) => 1,
            (_, Some(count)) => count,
            (Some(nodes), None) => bail!("--nodes={}-{}: {ranges}", nodes.min, nodes.max),
        };
        return Ok(of_nodes(count, gpus.count, ("--nodes", "--gpus-per-node")));
    }
    let total = args.gpus.as_ref().map_or(0, |gpus| gpus.count);
    match (nodes, exactly) {
        (_, Some(count)) if total.is_multiple_of(count) => {
            Ok(of_nodes(count, total / count, ("--nodes", "--gpus")))
        }
        (_, Some(count)) => bail!(
            "--gpus={total} with --nodes={count}: chunks of a job of PBS are alike here; write a number of GPUs that {count} divides"
        ),
        (Some(nodes), None) if nodes.min > 1 || nodes.max < total => {
            bail!("--nodes={}-{}: {ranges}", nodes.min, nodes.max)
        }
        _ => {
            if total > 1 && (args.mem.is_some() || args.cpus_per_task != 1) {
                let option = if args.mem.is_some() {
                    "--mem"
                } else {
                    "--cpus-per-task"
                };
                bail!(
                    "{option} with --gpus and without --nodes: it is not known on how many hosts the GPUs are; write --cpus-per-gpu, or mem= into \
                     --select"
                );
            }
            let chunks = Chunks::Alike {
                count: total.max(1),
                gpus: total.min(1),
                cpus: cpus(1, 1),
                mib: args.mem.unwrap_or(0),
                options: ("--gpus", ""),
            };
            Ok((chunks, String::new()))
        }
    }
}

impl Chunks {
    fn select(&self) -> String {
        match self {
            Chunks::Written(select) => select.clone(),
            Chunks::Alike {
                count,
                gpus,
                cpus,
                mib,
                ..
            } => {
                let memory = match mib {
                    0 => String::new(),
                    mib => format!(":mem={mib}mb"),
                };
                format!("{count}:ngpus={gpus}:ncpus={cpus}{memory}")
            }
        }
    }

    /// The same job with less: the options to give, the chunks, and how many GPUs it has less. Those that lose least come first.
    fn fewer(&self) -> Vec<(String, Chunks, u32)> {
        let Chunks::Alike {
            count,
            gpus,
            cpus,
            mib,
            options: (counted, each),
        } = *self
        else {
            return Vec::new();
        };
        let with = |count: u32, gpus: u32| Chunks::Alike {
            count,
            gpus,
            cpus,
            mib,
            options: (counted, each),
        };
        let mut all: Vec<(String, Chunks, u32)> = Vec::new();
        for less in (1..count).rev() {
            let option = match (counted, each) {
                // All GPUs are said in one number, which has to go on being divided.
                ("--nodes", "--gpus") => format!("--nodes={less} --gpus={}", less * gpus),
                _ => format!("{counted}={less}"),
            };
            all.push((option, with(less, gpus), (count - less) * gpus));
        }
        for less in (1..gpus).rev().filter(|_| !each.is_empty()) {
            let option = match each {
                "--gpus" => format!("--gpus={}", less * count),
                each => format!("{each}={less}"),
            };
            all.push((option, with(count, less), (gpus - less) * count));
        }
        all.sort_by_key(|(_, _, fewer)| *fewer);
        all
    }
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
        Outcome::WithoutGpus { room } => {
            json["fits"] = room.is_some().into();
            json["left_to_pbs_sched"] = "it has no GPUs".into();
            let hosts = room.iter().flatten().map(|name| &name[..]);
            let text = match room {
                Some(_) => format!(
                    "It has no GPUs, and pbs_sched alone places it: {} have room for its chunks now.\n",
                    compress(hosts.clone())
                ),
                None => "It has no GPUs, and pbs_sched alone places it: there is no room for all its chunks now.\n".into(),
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
