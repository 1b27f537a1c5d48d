//! `gpuos plan`: where a job would go now.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use gpuos_host::slurm::NodeRecord;
use gpuos_host::slurm::site::{Asker, JobRequest, Neighbours, Site, feature_match};
use gpuos_host::{Machine, slurm};
use gpuos_placement::cost::Scoring;
use gpuos_placement::explain::sentence;
use gpuos_placement::fits::Memory;
use gpuos_placement::plan::{Choice, GpuShape, NodeState, Planner, Request};
use serde_json::json;

use crate::cli::{Gpus, PlanArgs};
use crate::figures;
use crate::mix::Mix;
use crate::network::{self, Network};
use crate::notes::notes;
use crate::outlook::{Outlook, known_level, lead, outlook};
use crate::plan_memory::{self, Split};
use crate::remedies::{Case, changes, shown};
use crate::replay::recording;
use crate::reply::Reply;
use crate::table::count;
use crate::value_gain::Worths;

pub fn run(machine: &dyn Machine, config: Option<&Path>, args: &PlanArgs) -> Result<Reply> {
    no_option_of_pbs(args)?;
    if let Some(request) = &args.mig {
        return crate::mig::plan::of_plan(machine, config, request, args);
    }
    let mut site = Site::read(machine, config)?;
    site.see_partition(&args.partition);
    let site = site;
    let partition = partition(&site, args);
    let policy = &site.config.policy;
    let mut planner = Planner::new(site.cluster.clone());
    names_something(args, &site, &planner.level_names())?;
    let mut wanted = request(args, &site, &partition)?;
    let trace = args.trace.as_deref();
    let memory = args
        .gpu_mem
        .map(|asked| plan_memory::split(&site, asked, &wanted, trace));
    let memory = memory.transpose()?;
    let host_mib = memory.as_ref().map_or(0, Split::host_mib);
    let of_node = &mut wanted.request.memory_mib_per_node;
    *of_node = of_node.saturating_add(host_mib);
    let with_memory = |mut reply: Reply, on: Option<&Choice>| {
        if let Some(memory) = &memory {
            memory.add(&site, on, &mut reply);
        }
        reply
    };
    if wanted.partitions.is_empty() {
        // As sbatch does, where Slurm says which one that is.
        let default = site.default_partition().map(str::to_owned);
        let known = |name: &String| site.nodes.iter().any(|node| node.partitions.contains(name));
        wanted.partitions.extend(default.filter(known));
    }
    let jobs = slurm::jobs(machine)?;
    let mut state = wanted.state(&site, &jobs);
    let recording = recording(machine, &site.running.directory()).ok();
    let mix = Mix::apply(&mut planner, recording.as_ref(), &site, &jobs);
    let objectives = args
        .objectives
        .or(policy.objectives_for(&partition, &args.qos));
    let wish = Scoring::of(objectives, args.profile, None, None);
    let reserve_mib = site.config.memory.reserve_mib;
    let grant = args.gpu_mem.map(|asked| asked.grant(reserve_mib));
    let weighed = Scoring::with_memory(wish, grant.unwrap_or_default());
    let conditions = site.config.conditions(&site.cluster);
    planner.weigh(
        weighed.as_ref(),
        &conditions,
        &mut wanted.request,
        &mut state,
    );
    let asker = Asker {
        user: machine.env("USER").unwrap_or_default(),
        account: args.account.clone(),
        class: args.class.clone(),
        exclusive: args.alone.clone(),
        minutes: None,
    };
    let before_rules = state.clone();
    let neighbours = Neighbours::judge(&site, &jobs, &wanted, &asker, &mut state);
    let mut resorts = neighbours.first_resorts(&state).into_iter();
    if let Some(first) = resorts.find(|first| planner.plan(first, &wanted.request, 0).is_ok()) {
        state = first;
    }
    let mut traffic = network::traffic(&site, &jobs);
    let mut asked = wanted.request.clone();
    if let Some(wish) = asked.topology.as_mut().filter(|_| args.defrag) {
        // The level is what room is made for, so a place outside it is none.
        wish.required = true;
    }
    // As select_gpuos does.
    let skip = match &mut traffic {
        Some(traffic) => traffic.best(&mut planner, &state, &asked).skip,
        None => 0,
    };
    let case = Case {
        site: &site,
        jobs: &jobs,
        wanted: &wanted,
        asker: &asker,
        states: &before_rules,
    };
    let wait = match planner.plan(&state, &asked, skip) {
        Ok(choice) => {
            let choice = choice.clone();
            let network = traffic.and_then(|mut traffic| network::of(&mut traffic, &choice));
            let asked = (&wanted.request, &state[..]);
            let worths = wish.map(|wish| Worths::of(&mut planner, &site, wish, asked, &choice));
            let beside = (network.as_ref(), worths.as_ref());
            let mut reply = fits(&site, &wanted, &choice, &state, beside);
            reply.text += &mix.text(&wanted.request);
            reply.json["mix"] = mix.json();
            add_exclusions(&neighbours, &mut reply);
            return Ok(with_memory(reply, Some(&choice)));
        }
        Err(_) if args.defrag => {
            let mut reply = crate::defrag::run(machine, &mut planner, &mix, case, args)?;
            add_exclusions(&neighbours, &mut reply);
            return Ok(with_memory(reply, None));
        }
        Err(wait) => wait,
    };
    let outlook = known_level(&wait).then(|| outlook(&mut planner, case));
    let lead = lead(&wait, outlook.as_ref(), wanted.request.required_nodes.len());
    let mut text = format!("{lead}\n");
    let changes = changes(&mut planner, case);
    for change in shown(&changes) {
        text += &format!(
            "With {} it would start now: {}\n",
            change.option,
            sentence(&change.choice, &wanted.request, &site.cluster)
        );
    }
    if let Some(outlook) = outlook.as_ref().filter(|outlook| outlook.adds()) {
        text += &format!("{}.\n", outlook.claim);
    }
    text += &notes(&site);
    let json = json!({
        "fits": false,
        "sentence": text.trim_end(),
        "wait": figures::wait_json(&wait),
        "changes": changes.iter().map(|c| c.json(&site)).collect::<Vec<_>>(),
        "forecast": outlook.as_ref().and_then(|o| o.forecast.as_ref()).map(|f| f.json(&site)),
        "outlook": outlook.as_ref().map(Outlook::json),
        "mix": mix.json(),
        "notes": site.notes,
    });
    let mut reply = Reply {
        schema: "gpuos.plan/1",
        json,
        text,
        yes: false,
    };
    add_exclusions(&neighbours, &mut reply);
    Ok(with_memory(reply, None))
}

/// Refuses what jobs of Slurm do not have.
fn no_option_of_pbs(args: &PlanArgs) -> Result<()> {
    let given = [
        ("--select", args.select.is_some()),
        ("--walltime", args.walltime.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!(
            "{option} is for PBS, and Slurm is asked: write the options of sbatch, or --pbs where this machine has both"
        ),
        None => Ok(()),
    }
}

/// Adds what rules keep from the job.
fn add_exclusions(neighbours: &Neighbours, reply: &mut Reply) {
    if !neighbours.exclusions.is_empty() {
        let said: Vec<String> = neighbours
            .exclusions
            .iter()
            .map(|kept| kept.to_string())
            .collect();
        reply.text += &neighbours.text();
        reply.json["kept"] = json!(said);
    }
}

fn fits(
    site: &Site,
    wanted: &JobRequest,
    choice: &Choice,
    state: &[NodeState],
    (network, worths): (Option<&Network>, Option<&Worths>),
) -> Reply {
    let said = sentence(choice, &wanted.request, &site.cluster);
    let free: usize = state
        .iter()
        .filter(|s| s.candidate)
        .map(|s| s.free.len())
        .sum();
    let offering = state.iter().filter(|s| s.candidate && !s.free.is_empty());
    let nodes = offering.count();
    let text = format!(
        "It would start now: {said}\n\n{}{}{}\nFree for such a job: {} on {}.\n{}",
        figures::table(choice, &site.cluster),
        network.map(Network::text).unwrap_or_default(),
        worths.map(|worths| worths.text(site)).unwrap_or_default(),
        count(free, "GPU"),
        count(nodes, "node"),
        notes(site)
    );
    let mut json = json!({
        "fits": true,
        "sentence": said,
        "place": figures::choice_json(choice, &site.cluster),
        "free_gpus": free,
        "notes": site.notes,
    });
    // Only where gpuos.toml describes the network.
    if let Some(network) = network {
        json["network"] = network.json();
    }
    // Only where something is weighed.
    if let Some(worths) = worths {
        json["worth"] = worths.json();
    }
    Reply {
        schema: "gpuos.plan/1",
        json,
        text,
        yes: true,
    }
}

/// Refuses what names nothing in this cluster; its answer would be about another job. `levels` are those that
/// a job can name, `any` last.
fn names_something(args: &PlanArgs, site: &Site, levels: &[String]) -> Result<()> {
    let of_nodes = |list: fn(&NodeRecord) -> &Vec<String>| -> Vec<String> {
        let all: BTreeSet<&String> = site.nodes.iter().flat_map(list).collect();
        all.into_iter().cloned().collect()
    };
    let partitions = of_nodes(|node| &node.partitions);
    if let Some(name) = args.partition.iter().find(|p| !partitions.contains(p)) {
        let known = partitions.join(", ");
        bail!("--partition={name}: no node of this cluster is in it; write one of {known}");
    }
    if let Some(wanted) = &args.constraint {
        let fits = |node: &NodeRecord| feature_match(wanted, &node.features) != Some(false);
        if !site.nodes.iter().any(fits) {
            let known = of_nodes(|node| &node.features).join(", ");
            bail!("--constraint={wanted}: no node has these features; there are {known}");
        }
    }
    for (option, list) in [("--nodelist", &args.nodelist), ("--exclude", &args.exclude)] {
        let (_, missing) = site.indices(list.as_ref().map_or(&[], |hosts| &hosts.0));
        if let Some(name) = missing.first() {
            bail!("{option}={name}: this cluster has no such node; `gpuos topo` shows them");
        }
    }
    let topology = args.topology.as_ref().map(|wish| &wish.level);
    for (option, level, known) in [
        ("--topology", topology, levels),
        ("--alone", args.alone.as_ref(), &levels[..levels.len() - 1]),
    ] {
        if let Some(level) = level.filter(|level| !known.contains(level)) {
            let known = known.join(", ");
            bail!("{option}={level}: this cluster has no level '{level}'; write one of {known}");
        }
    }
    Ok(())
}

fn request(args: &PlanArgs, site: &Site, partition: &str) -> Result<JobRequest> {
    let typed = |gpus: &Gpus| gpus.gres_type.clone();
    let (gpus, gres_type) = if let Some(g) = args.gres.as_ref().or(args.gpus_per_node.as_ref()) {
        (GpuShape::PerNode(g.count), typed(g))
    } else if let Some(g) = &args.gpus_per_task {
        let tasks = args.ntasks.unwrap_or(1);
        (
            GpuShape::PerTask {
                per_task: g.count,
                tasks,
            },
            typed(g),
        )
    } else if let Some(g) = &args.gpus_per_socket {
        let shape = GpuShape::PerSocket {
            per_socket: g.count,
            sockets: 1,
        };
        (shape, typed(g))
    } else if let Some(g) = &args.gpus {
        (GpuShape::Total(g.count), typed(g))
    } else {
        bail!("give one of --gpus, --gpus-per-node, --gpus-per-task, --gpus-per-socket or --gres");
    };
    if let (Some(a), Some(b)) = (&gres_type, &args.gpu_type)
        && a != b
    {
        bail!("--type={b} contradicts the type {a} given with the number; give one of them");
    }
    if args.gpu_type.as_deref() == Some("") {
        bail!("--type is empty; give the type of the GPUs as gres.conf has it, or leave it out");
    }
    let gres_type = gres_type.or_else(|| args.gpu_type.clone());
    let of_type = |node: &NodeRecord| node.gpus_of_type(gres_type.as_deref()).len();
    if let (Some(wanted), true) = (&gres_type, site.nodes.iter().all(|node| of_type(node) == 0)) {
        let mut known: Vec<&str> = site
            .nodes
            .iter()
            .flat_map(|n| n.gpus.iter().map(|(t, _)| t.as_str()))
            .filter(|t| !t.is_empty())
            .collect();
        known.sort_unstable();
        known.dedup();
        let known = if known.is_empty() {
            "no GPU type".into()
        } else {
            known.join(", ")
        };
        bail!("no node has GPUs of type {wanted}; this cluster has {known}");
    }
    // As sbatch does: one node, unless the tasks or the GPUs ask for a range.
    let (min_nodes, max_nodes) = match (args.nodes, gpus) {
        (Some(nodes), _) => (nodes.min, nodes.max),
        (None, GpuShape::Total(n)) => (1, n.max(1)),
        (None, GpuShape::PerTask { tasks, .. }) => (1, tasks),
        (None, _) => (1, 1),
    };
    let names = |hosts: &Option<crate::cli::Hosts>| hosts.clone().map(|h| h.0).unwrap_or_default();
    let (required_nodes, _) = site.indices(&names(&args.nodelist));
    let min_nodes = min_nodes.max(required_nodes.len() as u32);
    let default = site.default_memory(&args.partition);
    let memory = match args.mem {
        Some(mib) if site.memory_counts() => Memory::Node(mib),
        _ => default,
    };
    // Tasks spread over the nodes; each node has room for its share at least.
    let tasks = args
        .ntasks
        .unwrap_or(min_nodes)
        .div_ceil(max_nodes.max(1))
        .max(1);
    let policy = &site.config.policy;
    let wanted = JobRequest {
        request: Request {
            min_nodes,
            max_nodes: max_nodes.max(min_nodes),
            gpus,
            cpus_per_node: tasks.saturating_mul(args.cpus_per_task),
            cpus_per_gpu: args.cpus_per_gpu,
            memory_mib_per_node: 0,
            whole_nodes: args.exclusive,
            required_nodes,
            topology: args
                .topology
                .clone()
                .or_else(|| policy.topology_for(partition, &args.qos).cloned()),
            placement: args
                .placement
                .clone()
                .unwrap_or_else(|| policy.placement_for(partition, &args.qos).clone()),
            cost_first: false,
            until: 0,
        },
        gres_type,
        partitions: args.partition.clone(),
        reserved: false,
        features: args.constraint.clone().unwrap_or_default(),
        excluded: names(&args.exclude),
        missing: Vec::new(),
        needs_host_memory: args.gpu_mem.is_some_and(|asked| asked.tiers.has_host()),
        memory: Memory::Free,
        default_per_gpu_mib: match default {
            Memory::Gpu(mib) => mib,
            _ => 0,
        },
    };
    Ok(wanted.with_memory(memory))
}

/// The partition whose rules hold: the first one named, else Slurm's default where a rule could name it.
fn partition(site: &Site, args: &PlanArgs) -> String {
    let rules = &site.config.policy.rules;
    match args.partition.first() {
        Some(named) => named.clone(),
        None if rules.iter().all(|rule| rule.partition.is_none()) => String::new(),
        None => site.default_partition().unwrap_or_default().to_owned(),
    }
}
