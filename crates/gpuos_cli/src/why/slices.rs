//! Jobs with memory slices of GPUs: which instances they have, or why they have none yet.

use gpuos_config::options::{JobOptions, parse_gres, parse_mig};
use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::{JobRequest, Site};
use gpuos_model::gpu_index::PoolGpu;
use gpuos_placement::explain::{Claim, InstanceAt, Note, slices_of_job};
use gpuos_placement::mig::MigRequest;
use gpuos_placement::plan::{GpuShape, Request};
use serde_json::json;

use super::{Answer, reason};
use crate::mig::offers::{Piece, Question, pieces};
use crate::mig::plan::answer;
use crate::mig::pool::{Slices, asked};

/// How many slices of each node a job asks for, and of which board if it names one. `None`: it asks for none.
pub fn wanted(job: &Job) -> Option<(u64, Option<String>)> {
    let gres = parse_gres("TRES", &job.tres_per_node).ok()?;
    let slices: Vec<_> = gres
        .into_iter()
        .filter(|gres| gres.name == "gpuos")
        .collect();
    let count = slices.iter().map(|gres| gres.count).sum::<u64>();
    let board = slices.into_iter().find_map(|gres| gres.gres_type);
    (count > 0).then_some((count, board))
}

/// Why a job with slices waits.
pub fn pending(
    site: &Site,
    jobs: &[Job],
    (job, name): (&Job, &str),
    options: &JobOptions,
    reserved_away: Vec<String>,
) -> Answer {
    let said = |sentence: String, details: String, claim: Option<&Claim>| Answer {
        sentence,
        details,
        json: json!({ "cause": "slices", "outlook": claim.map(ToString::to_string) }),
        yes: true,
    };
    let mut details = match reason::is_own(&job.reason) {
        true => format!("Reason in Slurm: {}\n", reason::words(&job.reason)),
        false => String::new(),
    };
    let slurm = match job.reason.as_str() {
        "" | "None" => "the scheduler has not looked at it yet".to_string(),
        "Priority" => "jobs with a higher priority come first".to_string(),
        "Resources" => "Slurm found no room for it when it looked last".to_string(),
        other if reason::is_own(other) => {
            "Slurm found no room for it when it looked last".to_string()
        }
        other => format!("Slurm says {}", reason::words(other)),
    };
    let count = wanted(job).map_or(0, |(count, _)| count);
    let (mut slices, question) = match question(site, jobs, job, options, reserved_away) {
        Ok(both) => both,
        Err(why) => {
            let sentence = format!(
                "Job {name} waits for {count} memory slices of GPUs on each node: {slurm}."
            );
            return said(sentence, format!("{details}{why}.\n"), None);
        }
    };
    let found = match answer(&mut slices, jobs, &question, None) {
        Ok(found) => found,
        Err(why) => {
            let sentence = format!(
                "Job {name} waits for {count} memory slices of GPUs on each node: {slurm}."
            );
            return said(sentence, format!("{details}{why:#}.\n"), None);
        }
    };
    details = format!(
        "It asks for {} on each of {}.\n{details}",
        found.names,
        crate::table::count(question.nodes as usize, "node")
    );
    match &found.claim {
        None => said(
            format!("Job {name} would fit now, but waits: {slurm}."),
            format!("{details}Its place now: {}\n", found.sentence),
            None,
        ),
        Some(claim @ (Claim::Never(_) | Claim::NotWhile(_) | Claim::EnoughBack(_))) => said(
            format!("Job {name} waits. {claim}."),
            format!("{details}Now {}\n", found.sentence),
            Some(claim),
        ),
        Some(claim) => said(
            format!("Job {name} waits: {}", found.sentence),
            format!("{details}{claim}.\n"),
            Some(claim),
        ),
    }
}

/// What a waiting job asks for, as `gpuos mig plan` asks it.
fn question<'a>(
    site: &'a Site,
    jobs: &'a [Job],
    job: &Job,
    options: &JobOptions,
    reserved_away: Vec<String>,
) -> Result<(Slices<'a>, Question), String> {
    let slices = Slices::read(site, jobs).map_err(|why| format!("{why:#}"))?;
    let (count, board) = wanted(job).ok_or("it asks for no slices")?;
    let request = request(&slices, job, options, count, board.as_deref());
    let request = request.ok_or(
        "Which instances it wants is not known: only the number of slices stands in its record",
    )?;
    let filter = filter(site, job, reserved_away);
    Ok((
        slices,
        Question {
            request,
            nodes: filter
                .request
                .min_nodes
                .max(filter.request.required_nodes.len() as u32),
            tasks: 1,
            filter,
            only: None,
            defrag: None,
        },
    ))
}

/// The instances on each node, for the board whose slices it names.
fn request(
    slices: &Slices<'_>,
    job: &Job,
    options: &JobOptions,
    count: u64,
    board: Option<&str>,
) -> Option<MigRequest> {
    // The record as it would be with the option in its submit line, which only some releases show.
    let mut shown = job.clone();
    if let Some(mig) = &options.mig {
        shown.submit_line = format!("--gpuos-mig={mig}");
    }
    shown.system_comment.clear();
    let ask = asked(&slices.pool, &shown, count)?;
    let boards = slices.site.config.mig.boards.iter().enumerate();
    let fits = |(at, own): &(usize, &gpuos_config::gpuos_toml::MigBoard)| {
        board.is_none_or(|name| own.name.eq_ignore_ascii_case(name)) && ask.fits_kind(*at)
    };
    let (kind, _) = boards.into_iter().find(fits)?;
    parse_mig(&ask.names(&slices.pool, kind)).ok()
}

/// What Slurm filters nodes by.
fn filter(site: &Site, job: &Job, reserved_away: Vec<String>) -> JobRequest {
    let cpus = job
        .tasks_per_node
        .max(1)
        .saturating_mul(job.cpus_per_task.max(1));
    let cpus = job.min_cpus_node.max(cpus).max(1);
    let (required_nodes, missing) = site.indices(&job.required_nodes);
    let nodes = job.min_nodes.max(1);
    JobRequest {
        request: Request {
            cpus_per_node: cpus,
            memory_mib_per_node: match job.memory_node_mib {
                0 => job.memory_cpu_mib.saturating_mul(u64::from(cpus)),
                all => all,
            },
            required_nodes,
            ..Request::new(nodes, nodes, GpuShape::Total(0))
        },
        gres_type: None,
        partitions: job.partitions.clone(),
        reserved: !job.reservation.is_empty(),
        features: job.features.clone(),
        excluded: [&job.excluded_nodes[..], &reserved_away].concat(),
        missing,
        needs_host_memory: false,
        memory: gpuos_placement::fits::Memory::Free,
        default_per_gpu_mib: 0,
    }
}

/// Which slices a running job has; `None`: none.
pub fn running(site: &Site, jobs: &[Job], job: &Job) -> Option<Answer> {
    let parts = || {
        job.allocations
            .iter()
            .filter(|part| !part.slices.is_empty())
    };
    parts().next()?;
    let slices = Slices::read(site, jobs).ok();
    let mut have: Vec<InstanceAt> = Vec::new();
    for part in parts() {
        for at in site.indices(&part.nodes).0 {
            let made = slices
                .as_ref()
                .map(|slices| instances(slices, job, at as usize, part.slices.0));
            let made = made.unwrap_or_default();
            have.extend(made);
        }
    }
    let mig = Note::parse(&job.system_comment).and_then(|note| note.mig);
    let count: usize = parts()
        .map(|part| part.slices.len() * part.nodes.len())
        .sum();
    let said = match have.is_empty() {
        false => slices_of_job(&have),
        true => format!(
            "{} of GPUs (bits {}; which GPU that is says [[mig.pool]] in gpuos.toml)",
            crate::table::count(count, "memory slice"),
            parts()
                .map(|part| part.slices.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let of = |one: &InstanceAt| {
        json!({
            "node": one.node, "gpu": one.gpu, "profile": one.profile,
            "start": one.start, "size": one.size,
        })
    };
    let note = match mig {
        Some(_) => "",
        None => " gpuos left no note: Slurm chose the slices.",
    };
    Some(Answer {
        sentence: format!("Job {} runs: {said}.{note}", job.label),
        details: String::new(),
        json: json!({
            "nodes": job.nodes, "mig": mig, "note": job.system_comment,
            "instances": have.iter().map(of).collect::<Vec<_>>(),
        }),
        yes: true,
    })
}

/// The instances in a job's slices of a node; slices of which no instance can be made are told as they are.
fn instances(slices: &Slices<'_>, job: &Job, node: usize, bits: u64) -> Vec<InstanceAt> {
    let record = &slices.site.nodes[node];
    let Some((own, board)) = slices.site.config.mig.pool_of(&record.name) else {
        return Vec::new();
    };
    let ask = asked(&slices.pool, job, u64::from(bits.count_ones()));
    let made = ask
        .map(|ask| pieces(slices, &ask, own.board, node, bits))
        .unwrap_or_default();
    if !made.is_empty() {
        let at = |piece: Piece| InstanceAt {
            node: record.name.clone(),
            gpu: piece.gpu,
            profile: piece.profile,
            start: piece.placement.start,
            size: piece.placement.size,
        };
        return made.into_iter().map(at).collect();
    }
    let each = usize::from(board.geometry.slices());
    let bare = (0..64)
        .filter(|bit| bits >> bit & 1 == 1)
        .filter_map(|bit| {
            Some(InstanceAt {
                node: record.name.clone(),
                gpu: own.gpu(PoolGpu::new(bit / each)?)?,
                profile: String::new(),
                start: (bit % each) as u8,
                size: 1,
            })
        });
    bare.collect()
}
