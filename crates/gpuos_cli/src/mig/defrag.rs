//! `--defrag` for a job with slices: which jobs to requeue so that its instances fit, at what cost. Nothing is done.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_host::slurm::{Job, Target, in_command};
use gpuos_model::hostlist::compress;
use gpuos_model::mig::States;
use gpuos_placement::explain::slices_sentence;
use gpuos_placement::mig::evict::{Divided, Eviction, NoEviction, Tenant, evict};
use gpuos_placement::mig::{Ask, Effort, Pick, tile};
use serde_json::{Value, json};

use super::offers::{Piece, pieces};
use super::pool::{Slices, asked, out_of_service};
use super::slices_of;
use crate::table::{Table, count};

/// Why an answer is not proved.
const NOT_ALL: &str = "several nodes, or many jobs on several GPUs, are not tried in all ways";

/// Room that requeueing makes.
struct Preemption<'a> {
    jobs: Vec<&'a Job>,
    place: Vec<(usize, Pick)>,
    /// No other set of jobs costs less.
    proved: bool,
}

/// What is to be made room for.
pub struct Wanted<'a> {
    /// The job's instances.
    pub ask: &'a Ask,
    /// Number of their board.
    pub board: usize,
    /// Nodes of the site without placements for them.
    pub full: &'a [usize],
    /// Nodes that lack CPUs or memory: what would be gained there is not looked at.
    pub short: Vec<usize>,
    /// Those of the full ones that the job names: room has to be made there.
    pub named: Vec<usize>,
    /// On how many of them room has to be made.
    pub missing: usize,
    /// Seconds that a requeued job needs to start again.
    pub restart: u64,
}

/// The proposal: whether there is one, text and JSON.
pub fn propose(slices: &mut Slices<'_>, wanted: &Wanted<'_>) -> (bool, String, Value) {
    let tenants = wanted.full.iter().flat_map(|node| &slices.tenants[*node]);
    let tenants = tenants.filter(|one| one.whole == 0);
    let jobs: BTreeMap<u32, &Job> = tenants.map(|one| (one.job.id, one.job)).collect();
    let may = jobs.values().filter(|job| job.may_requeue).count();
    let stay = jobs.len() - may;
    let found = find(slices, wanted);
    let whole = f64::from(
        slices.site.config.mig.boards[wanted.board]
            .geometry
            .slices(),
    );
    let seconds = |job: &Job| cost(job, wanted.restart) as f64 / whole;
    let site = slices.site;
    let short = compress(wanted.short.iter().map(|at| site.nodes[*at].name.as_str()));
    let room = match found {
        Ok(room) => room,
        Err(none) => {
            let all = none == NoEviction::Proved;
            let text = none_sentence(all, [may, stay], &short);
            let json = json!({
                "possible": false, "proved": all && short.is_empty(), "cost_gpu_seconds": null,
                "restart_seconds": wanted.restart, "jobs": [], "place": [], "requeueable_jobs": may,
                "kept_jobs": stay,
            });
            return (false, text, json);
        }
    };
    let name = |node: usize| site.nodes[node].name.as_str();
    let total: f64 = room.jobs.iter().map(|job| seconds(job)).sum();
    let mut table = Table::new(&["JOB", "USER", "NODES", "SLICES", "GPU-SECONDS"]);
    for job in &room.jobs {
        table.row([
            job.label.clone(),
            job.user.clone(),
            compress(job.nodes.iter().map(String::as_str)),
            held(job).to_string(),
            format!("{:.0}", seconds(job)),
        ]);
    }
    let mut place = Table::new(&["NODE", "GPU", "PROFILE", "SLICES"]);
    let mut places = Vec::new();
    for (node, pick) in &room.place {
        let found = pieces(slices, wanted.ask, wanted.board, *node, pick.bits);
        for piece in &found {
            place.row([
                name(*node).to_string(),
                piece.gpu.to_string(),
                piece.profile.clone(),
                slices_of(piece.placement),
            ]);
        }
        let found: Vec<Value> = found.iter().map(Piece::json).collect();
        places.push(json!({ "node": name(*node), "instances": found }));
    }
    let names = wanted.ask.names(&slices.pool, wanted.board);
    let on = compress(room.place.iter().map(|one| name(one.0)));
    // Components of one heterogeneous job are requeued together.
    let mut commands: Vec<String> = Vec::new();
    for job in &room.jobs {
        let name = Target::of(job).map_or_else(|| in_command(job), |target| target.whole());
        if !commands.contains(&name) {
            commands.push(name);
        }
    }
    let proved = room.proved && short.is_empty();
    let how = match (room.proved, proved) {
        (true, true) => "proved cheapest: no other set of jobs costs less".into(),
        (true, false) => format!(
            "the cheapest on these nodes; {short} has too few CPUs or too little memory free and is left out"
        ),
        (false, _) => format!("the best that was found: {NOT_ALL}"),
    };
    let text = format!(
        "\nWith {} requeued it could start: {}\n\n{}\n{}\n\
         Cost: {total:.0} GPU-seconds of work lost, with {} s for each restart ({how}).\n\
         Nothing was done; `scontrol requeue {}` would do it. {} of the jobs with slices on these nodes may be requeued, {stay} may not.\n",
        count(room.jobs.len(), "job"),
        slices_sentence(&names, &on, room.place.len() as u32),
        table.render(),
        place.render(),
        wanted.restart,
        commands.join(" "),
        may,
    );
    let jobs: Vec<Value> = room
        .jobs
        .iter()
        .map(|job| {
            json!({
                "job": job.label, "user": job.user, "nodes": job.nodes, "slices": held(job),
                "gpu_seconds": seconds(job),
            })
        })
        .collect();
    let json = json!({
        "possible": true, "proved": proved, "cost_gpu_seconds": total, "restart_seconds": wanted.restart,
        "jobs": jobs, "place": places, "requeueable_jobs": may, "kept_jobs": stay,
    });
    (true, text, json)
}

/// That nothing is proposed, and why: of the jobs with slices on the nodes `may` be requeued and `stay` not.
fn none_sentence(all: bool, [may, stay]: [usize; 2], short: &str) -> String {
    let mut text = String::from("\n");
    if may + stay > 0 || short.is_empty() {
        text += &match all {
            true => "No set of jobs makes room by being requeued".into(),
            false => format!(
                "No set of jobs was found that makes room by being requeued, and there may be one: {NOT_ALL}"
            ),
        };
        text += &format!(": {may} with slices on these nodes may be, {stay} may not.\n");
    }
    if !short.is_empty() {
        text += &format!(
            "CPUs or memory are what {short} lacks: which jobs would have to go for these is not looked at.\n"
        );
    }
    text
}

/// Slices of a job on all its nodes.
fn held(job: &Job) -> u64 {
    let each = job.allocations.iter();
    each.map(|part| part.slices.len() as u64 * part.nodes.len() as u64)
        .sum()
}

/// What a requeue loses, in slices times seconds.
fn cost(job: &Job, restart: u64) -> u64 {
    held(job).saturating_mul(job.run_seconds.saturating_add(restart))
}

fn find<'a>(slices: &mut Slices<'a>, wanted: &Wanted<'_>) -> Result<Preemption<'a>, NoEviction> {
    let geometry = &slices.site.config.mig.boards[wanted.board].geometry;
    let states = States::new(geometry).map_err(|_| NoEviction::NotFound)?;
    let mut none = NoEviction::Proved;
    let mut rooms: Vec<(bool, u64, usize, Eviction)> = Vec::new();
    for &node in wanted.full {
        let own = slices
            .site
            .config
            .mig
            .pool_of(&slices.site.nodes[node].name);
        let (Some((own, _)), Some(serves)) = (own, wanted.ask.serves(wanted.board)) else {
            continue;
        };
        let divided = Divided {
            geometry,
            states: &states,
            gpus: own.gpus.len(),
            out: out_of_service(slices.site, &slices.site.nodes[node]),
        };
        let tenants = slices.tenants[node].iter();
        let tenants: Vec<Tenant> = tenants
            .map(|one| Tenant {
                bits: one.taken(),
                scarce: scarce(slices, &states, wanted.board, one.job, one.bits),
                // What a job with whole GPUs loses is not counted in slices: it stays.
                cost: (one.whole == 0 && one.job.may_requeue)
                    .then(|| cost(one.job, wanted.restart)),
            })
            .collect();
        match evict(divided, &tenants, serves) {
            Ok(found) => rooms.push((!wanted.named.contains(&node), found.cost, node, found)),
            Err(NoEviction::Proved) => {}
            Err(NoEviction::NotFound) => none = NoEviction::NotFound,
        }
    }
    rooms.sort_by_key(|room| (room.0, room.1, room.2));
    let named = rooms.iter().filter(|room| !room.0).count();
    if named < wanted.named.len() {
        return Err(none);
    }
    let missing = wanted.missing.max(named).max(1);
    // Of nodes that share no job the cheapest are the cheapest together.
    let mut seen = BTreeSet::new();
    let on = wanted.full.iter().map(|node| &slices.tenants[*node]);
    let mut on = on.flatten();
    let shared = missing > 1 && !on.all(|one| seen.insert(one.job.id));
    let exact = rooms.iter().all(|room| room.3.exact);
    let mut proved = !shared && exact && none == NoEviction::Proved;
    let mut jobs: BTreeMap<u32, &'a Job> = BTreeMap::new();
    let mut place = Vec::new();
    for (_, _, node, found) in &rooms {
        if place.len() == missing {
            break;
        }
        let gone: Vec<(&'a Job, u64)> = found
            .goes
            .iter()
            .map(|at| &slices.tenants[*node][*at])
            .map(|one| (one.job, one.bits))
            .collect();
        let freed = gone.iter().fold(0, |all, one| all | one.1);
        gone.iter().for_each(|one| slices.pool.ends(one.0.id));
        // slurmctld would have to find the same room.
        let prices = slices.pool.prices();
        let pick = slices.see(*node, freed).and_then(|number| {
            let mut effort = Effort::default();
            slices.pool.pick(&mut effort, &prices, number, wanted.ask)
        });
        let Some(pick) = pick else {
            (proved, none) = (false, NoEviction::NotFound);
            // They stay, unless they go for another node.
            let stay = gone.iter().filter(|one| !jobs.contains_key(&one.0.id));
            stay.for_each(|one| slices.holds(one.0));
            slices.see(*node, 0);
            continue;
        };
        jobs.extend(gone.iter().map(|one| (one.0.id, one.0)));
        place.push((*node, pick));
    }
    match place.len() == missing {
        true => Ok(Preemption {
            jobs: jobs.into_values().collect(),
            place,
            proved,
        }),
        false => Err(none),
    }
}

/// A job's instances of profiles that a GPU can run out of.
fn scarce(
    slices: &Slices<'_>,
    states: &States,
    board: usize,
    job: &Job,
    bits: u64,
) -> Vec<(usize, usize)> {
    let ask = asked(&slices.pool, job, u64::from(bits.count_ones()));
    let serves = ask.as_ref().and_then(|ask| ask.serves(board));
    let geometry = &slices.site.config.mig.boards[board].geometry;
    let cuts = serves.and_then(|serves| tile(geometry, bits, serves));
    let cuts = cuts.into_iter().flatten();
    let cuts = cuts.filter(|cut| states.is_scarce(cut.profile));
    cuts.filter_map(|cut| {
        Some((
            cut.gpu.index(),
            states.spot(cut.profile, cut.placement.start)?,
        ))
    })
    .collect()
}
