//! Which nodes have placements for a job's instances now, and when the others will have.

use std::collections::{BTreeMap, BTreeSet};

use gpuos_host::slurm::Job;
use gpuos_host::slurm::site::JobRequest;
use gpuos_model::gpu_index::NvmlIndex;
use gpuos_model::mig::MigPlacement;
use gpuos_placement::mig::{Ask, Effort, MigRequest, Pick, tile};
use serde_json::{Value, json};

use super::pool::{Slices, lacks};
use crate::forecast::known_end;

/// The job that is asked about, beside those that run.
const NEW: u32 = u32::MAX;

/// What is asked.
pub struct Question {
    /// What each node is to give.
    pub request: MigRequest,
    /// How many nodes.
    pub nodes: u32,
    /// Tasks of each.
    pub tasks: u32,
    /// What Slurm filters nodes by, and CPUs and memory of each.
    pub filter: JobRequest,
    /// Nodes to consider, by their numbers in the site, ascending; `None`: all. Those of the filter's
    /// `required_nodes` have to be among those that are given.
    pub only: Option<Vec<u32>>,
    /// Where it does not fit: whom to requeue, with so many seconds for each restart.
    pub defrag: Option<u64>,
}

/// An instance that would be made.
pub struct Piece {
    /// The GPU.
    pub gpu: NvmlIndex,
    /// Name of its profile.
    pub profile: String,
    /// Where.
    pub placement: MigPlacement,
}

impl Piece {
    /// It as JSON.
    pub fn json(&self) -> Value {
        json!({ "gpu": self.gpu, "profile": self.profile, "placement": self.placement })
    }
}

/// What a node would give.
pub struct NodeOffer {
    pub node: usize,
    pub pick: Pick,
    pub pieces: Vec<Piece>,
    /// How many instances of each profile would still fit then, each as if it were the only one.
    pub after: BTreeMap<String, u32>,
}

/// A node that gives nothing now.
pub struct Waits {
    pub node: usize,
    pub why: String,
    /// When its placements are free at the latest, and the jobs that have ended then.
    pub later: Option<(String, Vec<String>)>,
}

/// Nodes with room now, the best first, and those without.
pub struct Offers {
    pub fitting: Vec<(usize, Pick)>,
    /// Those of the others that have no free placements, and nothing else is against them.
    pub full: Vec<usize>,
    pub waits: Vec<Waits>,
}

pub fn find(slices: &mut Slices<'_>, question: &Question, ask: &Ask, board: usize) -> Offers {
    let site = slices.site;
    let named = &question.filter.request.required_nodes;
    let prices = slices.pool.prices();
    let mut effort = Effort::default();
    let (mut rooms, mut full, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    let nodes: Vec<usize> = match &question.only {
        Some(only) => only.iter().map(|node| *node as usize).collect(),
        None => (0..site.nodes.len()).collect(),
    };
    for node in nodes {
        let asked = question.only.is_some() || named.contains(&(node as u32));
        match gate(slices, question, node, board) {
            Ok(number) => match slices.pool.pick(&mut effort, &prices, number, ask) {
                Some(pick) => rooms.push((node, pick)),
                None => full.push((node, number)),
            },
            Err(why) if asked || slices.numbers[node].is_ok() => waits.push(Waits {
                node,
                why,
                later: None,
            }),
            // Of thousands of nodes without a pool nobody wants to hear.
            Err(_) => {}
        }
    }
    let order = |(node, pick): &(usize, Pick)| {
        let is_named = named.contains(&(*node as u32));
        pick.order(is_named, 0, site.nodes[*node].weight, *node)
    };
    rooms.sort_unstable_by_key(order);
    // Times as numbers: what Slurm writes sorts as time does.
    let tenants = || slices.tenants.iter().flatten();
    let times: BTreeSet<&str> = tenants().filter_map(|one| known_end(one.job)).collect();
    let times: Vec<&str> = times.into_iter().collect();
    let all_full = full.iter().map(|one| one.0).collect();
    for (node, number) in full {
        let ends = |job: &Job| {
            let at = times.binary_search(&known_end(job)?).ok()?;
            Some(at as i64)
        };
        let own = slices.tenants[node].iter();
        let mut back: Vec<(i64, u64)> = own
            .filter_map(|one| Some((ends(one.job)?, one.taken())))
            .collect();
        back.sort_unstable();
        let later = slices
            .pool
            .pick_later(&mut effort, &prices, number, ask, &back);
        let later = later.map(|(at, pick)| {
            let gone = |job: &Job| ends(job).is_some_and(|end| end <= at);
            let own = slices.tenants[node].iter();
            let own = own.filter(|one| gone(one.job) && one.taken() & pick.bits != 0);
            let jobs = own.map(|one| one.job.label.clone()).collect();
            (times[at as usize].to_string(), jobs)
        });
        waits.push(Waits {
            node,
            why: "no free placements".into(),
            later,
        });
    }
    let at = |one: &Waits| one.later.as_ref().map(|later| later.0.clone());
    waits.sort_by_cached_key(|one| (at(one).is_none(), at(one), one.node));
    Offers {
        fitting: rooms,
        full: all_full,
        waits,
    }
}

/// A node's number in the pool, if the job may use it now.
fn gate(
    slices: &mut Slices<'_>,
    question: &Question,
    node: usize,
    board: usize,
) -> Result<u32, String> {
    let number = slices.numbers[node].clone()?;
    let record = &slices.site.nodes[node];
    if slices.pool.kind_of(number) != board {
        let board = &slices.site.config.mig.boards[slices.pool.kind_of(number)].name;
        return Err(format!("its GPUs are {board}"));
    }
    if !record.is_up() {
        return Err(record.state_text());
    }
    if !question.filter.allows(record) {
        return Err("not for this job (partition, features, reservation or excluded)".into());
    }
    if let Some(why) = lacks(slices.site, &question.filter.request, record) {
        return Err(why);
    }
    Ok(slices.see(node, 0).unwrap_or(number))
}

pub fn node_offers(
    slices: &mut Slices<'_>,
    ask: &Ask,
    board: usize,
    (node, pick): &(usize, Pick),
) -> NodeOffer {
    let geometry = &slices.site.config.mig.boards[board].geometry;
    let mut after = BTreeMap::new();
    if let Ok(number) = slices.numbers[*node] {
        slices.pool.holds(NEW, ask, [(number, pick.bits)]);
        slices.see_with(*node, pick.bits);
        let fits = slices.pool.fits(number);
        let names = geometry
            .profiles()
            .iter()
            .map(|profile| profile.name.clone());
        after = names.zip(fits).collect();
        slices.pool.ends(NEW);
        slices.see(*node, 0);
    }
    NodeOffer {
        node: *node,
        pick: *pick,
        pieces: pieces(slices, ask, board, *node, pick.bits),
        after,
    }
}

/// The instances in slices of a node.
pub fn pieces(slices: &Slices<'_>, ask: &Ask, board: usize, node: usize, bits: u64) -> Vec<Piece> {
    let site = slices.site;
    let geometry = &site.config.mig.boards[board].geometry;
    let pool = site.config.mig.pool_of(&site.nodes[node].name);
    let cuts = ask
        .serves(board)
        .and_then(|serves| tile(geometry, bits, serves));
    let piece = |cut: gpuos_placement::mig::JobInstance| {
        Some(Piece {
            gpu: pool?.0.gpu(cut.gpu)?,
            profile: geometry.profiles()[cut.profile].name.clone(),
            placement: cut.placement,
        })
    };
    cuts.into_iter().flatten().filter_map(piece).collect()
}

/// When enough nodes have room, the named ones among them, and the jobs that have ended then.
pub fn forecast(found: &Offers, wanted: usize, named: &[u32]) -> Option<(String, Vec<String>)> {
    let is_named = |node: usize| named.contains(&(node as u32));
    let has = |node: &&u32| found.fitting.iter().any(|room| room.0 == **node as usize);
    let free = found
        .fitting
        .iter()
        .filter(|room| !is_named(room.0))
        .count();
    // They are in the order of time.
    let waits = |own: bool| {
        let waits = found
            .waits
            .iter()
            .filter(move |one| is_named(one.node) == own);
        waits.filter_map(|one| one.later.as_ref())
    };
    let (full, others) = (
        named.len() - named.iter().filter(has).count(),
        wanted.saturating_sub(named.len()).saturating_sub(free),
    );
    let first: Vec<&(String, Vec<String>)> = waits(true)
        .take(full)
        .chain(waits(false).take(others))
        .collect();
    let last = first.iter().map(|later| &later.0).max()?;
    let mut jobs: Vec<String> = first.iter().flat_map(|later| later.1.clone()).collect();
    let mut seen = BTreeSet::new();
    jobs.retain(|job| seen.insert(job.clone()));
    (first.len() == full + others).then(|| (last.clone(), jobs))
}
