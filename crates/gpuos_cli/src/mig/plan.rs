//! `gpuos mig plan`: which slices a job would get now, or what it waits for. slurmctld's decision on what scontrol shows.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_host::{Machine, slurm};
use gpuos_model::hostlist::compress;
use gpuos_placement::explain::{Claim, have, no_slices, slices_sentence};
use gpuos_placement::mig::{Ask, MigRequest, Pick};
use gpuos_placement::plan::{GpuShape, Request};
use serde_json::{Value, json};

use super::offers::{NodeOffer, Offers, Piece, Question, Waits, find, forecast, node_offers};
use super::pool::{Slices, lacks};
use super::{ask, defrag, local, outlook, ranges, slices_of};
use crate::cli::{Hosts, MigPlanArgs, PlanArgs, Reach};
use crate::notes::notes;
use crate::reply::Reply;
use crate::table::{Table, count};

/// Nodes that are shown in a table; the JSON has all.
const SHOWN: usize = 24;

/// The answer.
pub struct Answer {
    /// The instances on each node: `3g.40gb:1,1g.10gb:2`.
    pub names: String,
    /// Where it would start, or why it has no room now.
    pub sentence: String,
    /// What has to happen before it has room; `None`: it has.
    pub claim: Option<Claim>,
    /// Whether it would start now, or room can be made.
    pub yes: bool,
    /// For people.
    pub text: String,
    /// For programs.
    pub json: Value,
}

pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &MigPlanArgs) -> Result<Reply> {
    let site = Site::read(machine, config)?;
    let jobs = slurm::jobs(machine)?;
    let question = question(&site, args)?;
    let mut slices = Slices::read(&site, &jobs)?;
    let reach = Some((machine, &args.reach, args.check));
    Ok(reply(answer(&mut slices, &jobs, &question, reach)?))
}

/// `gpuos plan --mig`: the same with the options of that command.
pub fn of_plan(
    machine: &dyn Machine,
    config: Option<&Path>,
    request: &MigRequest,
    args: &PlanArgs,
) -> Result<Reply> {
    let site = Site::read(machine, config)?;
    let jobs = slurm::jobs(machine)?;
    let hosts = |list: &Option<Hosts>| list.clone().map_or(Vec::new(), |hosts| hosts.0);
    let (named, strange) = site.indices(&hosts(&args.nodelist));
    if let Some(name) = strange.first() {
        bail!("--nodelist={name}: this cluster has no such node; `gpuos topo` shows them");
    }
    let nodes = args
        .nodes
        .map_or(1, |nodes| nodes.min)
        .max(named.len() as u32);
    let tasks = args.ntasks.unwrap_or(nodes).div_ceil(nodes);
    let question = Question {
        request: request.clone(),
        nodes,
        tasks,
        filter: JobRequest {
            partitions: args.partition.clone(),
            features: args.constraint.clone().unwrap_or_default(),
            excluded: hosts(&args.exclude),
            ..filter(Request {
                cpus_per_node: tasks.saturating_mul(args.cpus_per_task),
                memory_mib_per_node: args.mem.unwrap_or(0),
                required_nodes: named,
                ..Request::new(nodes, nodes, GpuShape::Total(0))
            })
        },
        only: None,
        defrag: args.defrag.then_some(args.restart_seconds),
    };
    let mut slices = Slices::read(&site, &jobs)?;
    Ok(reply(answer(&mut slices, &jobs, &question, None)?))
}

/// The answer of the command.
pub fn reply(answer: Answer) -> Reply {
    Reply {
        schema: "gpuos.mig-plan/1",
        json: answer.json,
        text: answer.text,
        yes: answer.yes,
    }
}

/// A job of which no more than this is known.
fn filter(request: Request) -> JobRequest {
    JobRequest {
        request,
        gres_type: None,
        partitions: Vec::new(),
        reserved: false,
        features: String::new(),
        excluded: Vec::new(),
        missing: Vec::new(),
        needs_host_memory: false,
        memory: gpuos_placement::fits::Memory::Free,
        default_per_gpu_mib: 0,
    }
}

fn question(site: &Site, args: &MigPlanArgs) -> Result<Question> {
    let names: Vec<String> = args.only.iter().flat_map(|hosts| hosts.0.clone()).collect();
    let (only, strange) = site.indices(&names);
    if let Some(name) = strange.first() {
        bail!("{name}: this cluster has no such node; `gpuos topo` shows them");
    }
    let excluded = args
        .exclude
        .clone()
        .map(|hosts| hosts.0)
        .unwrap_or_default();
    Ok(Question {
        request: args.request.clone(),
        nodes: args.nodes,
        tasks: args.ntasks_per_node,
        filter: JobRequest {
            partitions: args.partition.clone(),
            features: args.constraint.clone().unwrap_or_default(),
            excluded,
            ..filter(Request {
                cpus_per_node: args.ntasks_per_node.saturating_mul(args.cpus_per_task),
                memory_mib_per_node: args.mem.unwrap_or(0),
                ..Request::new(args.nodes, args.nodes, GpuShape::Total(0))
            })
        },
        only: (!only.is_empty()).then_some(only),
        defrag: args.defrag.then_some(args.restart_seconds),
    })
}

/// What a job would get now, or what it waits for. With `reach`, gpuosd of this node, and if it says so those of other
/// nodes, are asked what is in the way that Slurm does not know.
///
/// # Errors
/// No board of a pool serves the request; a sentence with the profiles that there are.
pub fn answer(
    slices: &mut Slices<'_>,
    jobs: &[Job],
    question: &Question,
    reach: Option<(&dyn Machine, &Reach, bool)>,
) -> Result<Answer> {
    let site = slices.site;
    let served = site.config.mig.serve(&question.request, question.tasks)?;
    let board = &site.config.mig.boards[served.board].name;
    let ask = Ask::of_request(&question.request, &slices.pool, served.slices)
        .ok_or_else(|| anyhow!("{}: more instances than a node can have", question.request))?;
    let names = ask.names(&slices.pool, served.board);
    slices.pool.arrives(&ask, question.nodes);
    let mut found = find(slices, question, &ask, served.board);
    let wanted = question.nodes as usize;
    let named = &question.filter.request.required_nodes;
    let has_named = |rooms: &[(usize, Pick)]| {
        named
            .iter()
            .all(|node| rooms.iter().any(|room| room.0 == *node as usize))
    };
    let fits = found.fitting.len() >= wanted && has_named(&found.fitting);
    let (rooms, needed) = (found.fitting.len(), question.nodes);
    found.fitting.truncate(wanted);
    let given: Vec<NodeOffer> = match fits {
        true => found
            .fitting
            .iter()
            .map(|room| node_offers(slices, &ask, served.board, room))
            .collect(),
        false => Vec::new(),
    };
    let on = compress(given.iter().map(|one| site.nodes[one.node].name.as_str()));
    let sentence = match fits {
        true => slices_sentence(&names, &on, needed),
        false => {
            let named = || found.fitting.iter().map(|room| room.0 as u32);
            let have = named().filter(|node| question.filter.request.required_nodes.contains(node));
            let all = question.filter.request.required_nodes.len();
            no_slices(
                &names,
                rooms as u32,
                needed,
                (have.count() as u32, all as u32),
            )
        }
    };
    let later = (!fits).then(|| forecast(&found, wanted, named)).flatten();
    let claim = (!fits).then(|| match &later {
        Some((at, jobs)) => Claim::FitsAt {
            at: at.clone(),
            jobs: jobs.clone(),
        },
        None => outlook::outlook(slices, jobs, question, &ask, served.board),
    });
    let named_full = found.full.iter().copied();
    let named_full = named_full.filter(|node| named.contains(&(*node as u32)));
    let able = named.iter().all(|node| {
        let node = *node as usize;
        found.fitting.iter().any(|room| room.0 == node) || found.full.contains(&node)
    });
    let room = question.defrag.filter(|_| !fits).map(|restart| {
        let short = found.waits.iter().filter(|one| {
            let record = &site.nodes[one.node];
            lacks(site, &question.filter.request, record).as_ref() == Some(&one.why)
        });
        let wanted = defrag::Wanted {
            short: short.map(|one| one.node).collect(),
            ask: &ask,
            board: served.board,
            // A node that the job names and that cannot be had at all leaves none.
            full: if able { &found.full } else { &[] },
            named: named_full.collect(),
            missing: wanted.saturating_sub(rooms),
            restart,
        };
        defrag::propose(slices, &wanted)
    });
    let way = match (reach, fits) {
        (Some(reach), true) => in_the_way(reach, site, &given),
        _ => Vec::new(),
    };
    let mut text = match fits {
        true => format!("It would start now: {sentence}\n\n{}", table(site, &given)),
        false => format!("{sentence}\n\n{}", waiting(slices, &found)),
    };
    match (&later, &claim) {
        (Some((at, jobs)), _) => {
            text += &format!(
                "\nAt {at} at the latest there is room, when {} ended.\n",
                have(jobs)
            );
        }
        (None, Some(claim)) => text += &format!("\n{claim}.\n"),
        (None, None) => {}
    }
    if let Some((_, said, _)) = &room {
        text += said;
    }
    for one in &way {
        text += &format!("note: {one}\n");
    }
    text += &format!(
        "\nCosts are what others lose, in GPUs, by the mix of {} that run and wait; slurmctld goes by those that it has \
         met since it started. Priority, fair share and limits are for Slurm to judge.\n{}",
        count(slices.mix, "job"),
        notes(site)
    );
    let place = |one: &NodeOffer| {
        json!({
            "node": site.nodes[one.node].name,
            "cost_milli_gpus": one.pick.cost,
            "bits": (0..u64::BITS).filter(|bit| one.pick.bits >> bit & 1 == 1).collect::<Vec<_>>(),
            "instances": one.pieces.iter().map(Piece::json).collect::<Vec<_>>(),
            "fits_after": one.after,
        })
    };
    let waits = |one: &Waits| {
        let free = slices.free(one.node).into_iter();
        json!({
            "node": site.nodes[one.node].name,
            "why": one.why,
            "free": free.map(|(gpu, free)| json!({ "gpu": gpu, "slices": free })).collect::<Vec<_>>(),
            "at": one.later.as_ref().map(|later| &later.0),
            "jobs": one.later.as_ref().map(|later| &later.1),
        })
    };
    let json = json!({
        "request": question.request.to_string(),
        "board": board,
        "profiles": names,
        "slices_per_node": served.slices,
        "nodes": question.nodes,
        "fits": fits,
        "sentence": sentence,
        "place": given.iter().map(place).collect::<Vec<_>>(),
        "waits": found.waits.iter().filter(|_| !fits).map(waits).collect::<Vec<_>>(),
        "outlook": claim.as_ref().map(ToString::to_string),
        "forecast": later.map(|(at, jobs)| json!({ "at": at, "jobs": jobs })),
        "in_the_way": way,
        "defrag": room.as_ref().map(|room| &room.2),
        "mix_jobs": slices.mix,
        "notes": site.notes,
    });
    Ok(Answer {
        names,
        sentence,
        claim,
        yes: fits || room.is_some_and(|room| room.0),
        text,
        json,
    })
}

/// Instances that somebody made by hand in slices that Slurm would give: Slurm does not know of them.
fn in_the_way(
    (machine, reach, all): (&dyn Machine, &Reach, bool),
    site: &Site,
    given: &[NodeOffer],
) -> Vec<String> {
    let mut said = Vec::new();
    for one in given {
        let node = &site.nodes[one.node].name;
        let told = match all {
            true => ask(machine, reach, Some(node)),
            false => match local(reach, node) {
                Some(told) => told,
                None => continue,
            },
        };
        let mig = match told {
            Ok((_, mig)) => mig,
            Err(why) => {
                said.push(format!(
                    "gpuosd of {node} cannot say what is in the way: {why:#}"
                ));
                continue;
            }
        };
        for piece in &one.pieces {
            let gpu = mig.gpus.iter().filter(|gpu| gpu.gpu == piece.gpu);
            let foreign = gpu.flat_map(|gpu| &gpu.instances);
            let foreign =
                foreign.filter(|one| one.foreign && one.placement.overlaps(piece.placement));
            said.extend(foreign.map(|one| {
                format!(
                    "{} made by hand is in memory slices {} of GPU {} of {node}: {} could not be made beside it",
                    one.profile,
                    slices_of(one.placement),
                    piece.gpu,
                    piece.profile,
                )
            }));
        }
    }
    said
}

fn table(site: &Site, given: &[NodeOffer]) -> String {
    let mut table = Table::new(&["NODE", "GPU", "PROFILE", "SLICES"]);
    let mut then = Table::new(&["NODE", "COST", "FITS AFTER IT"]);
    for one in given.iter().take(SHOWN) {
        let node = &site.nodes[one.node].name;
        for piece in &one.pieces {
            table.row([
                node.clone(),
                piece.gpu.to_string(),
                piece.profile.clone(),
                slices_of(piece.placement),
            ]);
        }
        let fits = one.after.iter().filter(|(_, count)| **count > 0);
        let fits: Vec<String> = fits
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        then.row([
            node.clone(),
            format!("{:.3}", one.pick.cost as f64 / 1000.0),
            match fits.is_empty() {
                true => "-".into(),
                false => fits.join(" or "),
            },
        ]);
    }
    format!("{}\n{}{}", table.render(), then.render(), more(given.len()))
}

fn waiting(slices: &Slices<'_>, found: &Offers) -> String {
    let mut table = Table::new(&["NODE", "FREE", "WHY NOT", "ROOM FROM", "WHEN ENDED"]);
    for one in found.waits.iter().take(SHOWN) {
        let free = slices
            .free(one.node)
            .into_iter()
            .filter(|(_, free)| !free.is_empty());
        let free: Vec<String> = free
            .map(|(gpu, free)| format!("{gpu}:{}", ranges(&free)))
            .collect();
        let (at, jobs) = one.later.clone().unwrap_or_default();
        table.row([
            slices.site.nodes[one.node].name.clone(),
            match free.is_empty() {
                true => "-".into(),
                false => free.join(" "),
            },
            one.why.clone(),
            at,
            jobs.join(","),
        ]);
    }
    format!("{}{}", table.render(), more(found.waits.len()))
}

fn more(rows: usize) -> String {
    match rows.saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("and {} more; --json has all\n", count(more, "node")),
    }
}
