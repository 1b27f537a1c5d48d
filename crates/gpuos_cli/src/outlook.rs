//! What has to happen before a job that waits has room: running jobs end, or what is out of service comes back. Only
//! what no part of the cluster could serve, as it is configured, can never start.

use gpuos_host::slurm::NodeRecord;
use gpuos_host::slurm::site::{JobRequest, Judge, Site};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::explain::{Claim, Unavailable, why_wait_on};
use gpuos_placement::plan::{Never, NodeState, Planner, Wait};
use serde_json::{Value, json};

use crate::forecast::{Forecast, forecast};
use crate::remedies::{Case, place_among};

/// Of more things that are away than this only the first ones are tried one by one.
const TRIED: usize = 256;

/// What a job waits for, beside priority.
pub struct Outlook {
    /// When running jobs make room, if they alone do.
    pub forecast: Option<Forecast>,
    /// The fact to be told.
    pub claim: Claim,
}

impl Outlook {
    /// Whether the job can start on no part of the cluster, whatever ends or comes back.
    pub fn never(&self) -> bool {
        matches!(self.claim, Claim::Never(_))
    }

    /// Whether it waits for something that is not in service.
    pub fn unavailable(&self) -> Option<&[Unavailable]> {
        match &self.claim {
            Claim::NotWhile(away) | Claim::EnoughBack(away) => Some(away),
            _ => None,
        }
    }

    /// Whether its claim is the first thing to say.
    fn leads(&self) -> bool {
        self.never() || self.unavailable().is_some()
    }

    /// Whether its claim adds to the first sentence.
    pub fn adds(&self) -> bool {
        !self.leads()
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let kind = match &self.claim {
            Claim::Never(_) => "never",
            Claim::NotWhile(_) => "not_while",
            Claim::EnoughBack(_) => "enough_back",
            Claim::FitsAt { .. } => "room_at",
            Claim::FitsAfter { .. } => "room_after",
            Claim::FitsAfterUnseen => "room_unseen",
            Claim::RulesKeep => "rules",
            Claim::NothingSmaller => "nothing_smaller",
        };
        let unavailable = self.unavailable().unwrap_or_default().iter();
        let away =
            unavailable.map(|one| json!({ "node": one.node, "gpu": one.gpu, "state": one.state }));
        let ends = self.forecast.as_ref();
        json!({
            "kind": kind,
            "away": away.collect::<Vec<_>>(),
            "jobs": ends.map_or(&[][..], |ends| &ends.jobs),
            "jobs_without_end": ends.map_or(&[][..], |ends| &ends.open),
            "sentence": self.claim.to_string(),
        })
    }
}

/// Whether a job that waits so can have an outlook: a level that the cluster does not have stays away.
pub fn known_level(wait: &Wait) -> bool {
    !matches!(wait, Wait::UnknownLevel { .. })
}

/// The first sentence on a job that waits and names so many nodes: why, with what has to come back or can never be.
pub fn lead(wait: &Wait, outlook: Option<&Outlook>, named: usize) -> String {
    match (wait, outlook) {
        (_, Some(outlook)) if outlook.leads() => format!("{}.", outlook.claim),
        // Nodes that are whole for nobody now are no candidates, so that the planner sees an empty cluster.
        (Wait::Never { .. }, Some(_)) => "No node that it may use has room now.".into(),
        _ => why_wait_on(wait, named),
    }
}

/// What a job that has no place now waits for.
pub fn outlook(planner: &mut Planner, case: Case<'_>) -> Outlook {
    if let Some(forecast) = forecast(planner, case) {
        return Outlook {
            claim: forecast.claim(),
            forecast: Some(forecast),
        };
    }
    Outlook {
        claim: beyond_ends(planner, case),
        forecast: None,
    }
}

/// The same where the end of the running jobs that are known is not enough.
fn beyond_ends(planner: &mut Planner, case: Case<'_>) -> Claim {
    let Case {
        site,
        wanted,
        asker,
        ..
    } = case;
    let away = all_unavailable(site, wanted);
    let nothing = vec![false; away.len()];
    let mut fits = |back: &[bool]| {
        let states = idle(site, wanted, &away, back);
        planner.plan(&states, &wanted.request, 0).is_ok()
    };
    if fits(&nothing) {
        // Nodes that are idle in this picture and are not with all known jobs gone are held by jobs not shown.
        let states = idle(site, wanted, &away, &nothing);
        let mut judge = Judge::new(site, &[]);
        return match place_among(planner, &mut judge, (wanted, asker), &states) {
            Some(_) => Claim::FitsAfterUnseen,
            None => Claim::RulesKeep,
        };
    }
    let all = vec![true; away.len()];
    if fits(&all) {
        return has_to_be_back(&away, fits);
    }
    let sound = idle(site, wanted, &away, &all);
    Claim::Never(never(planner, site, wanted, &sound))
}

/// Why a job does not fit with everything idle and in service, from what each node would offer: the planner's own words
/// are about all nodes, also those that are not for this job.
fn never(planner: &mut Planner, site: &Site, wanted: &JobRequest, sound: &[NodeState]) -> Never {
    let request = &wanted.request;
    let units = request.gpus.units();
    let (each, in_all) = (units.gpus, units.gpus_in_all());
    let room = |state: &NodeState| {
        let most = state.free_cpus.checked_div(request.cpus_per_gpu);
        let gpus = (state.free.len() as u32).min(most.unwrap_or(u32::MAX));
        let fits = state.candidate
            && state.free_cpus >= request.cpus_per_node
            && state.free_memory_mib >= request.memory_mib_per_node;
        if fits { gpus / each.max(1) * each } else { 0 }
    };
    let full = |node: &&u32| {
        sound
            .get(**node as usize)
            .is_none_or(|state| room(state) == 0)
    };
    if let Some(node) = request.required_nodes.iter().find(full) {
        let name = site.nodes.get(*node as usize).map(|node| node.name.clone());
        return Never::Node {
            name: name.unwrap_or_default(),
        };
    }
    let mut rooms: Vec<u32> = sound.iter().map(room).filter(|room| *room > 0).collect();
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    let nodes = (request.min_nodes, request.max_nodes);
    if (rooms.len() as u32) < request.min_nodes || in_all.is_none() && request.topology.is_none() {
        return Never::Nodes {
            gpus: each,
            have: rooms.len() as u32,
            nodes,
        };
    }
    let have: u32 = rooms.iter().take(request.max_nodes as usize).sum();
    if let Some(need) = in_all.filter(|need| have < *need) {
        return Never::Gpus { need, have, nodes };
    }
    let mut anywhere = request.clone();
    let level = anywhere.topology.take().filter(|wish| wish.required);
    match level {
        Some(wish) if planner.plan(sound, &anywhere, 0).is_ok() => Never::Said(format!(
            "no domain of the level {} is large enough for it",
            wish.level
        )),
        _ => Never::Said("no set of its nodes has room for it, not even idle".into()),
    }
}

/// What has to come back before a job fits that does with all of it back and does not without: `fits` tells it for any
/// part of it.
pub fn has_to_be_back(
    away: &[(usize, Unavailable)],
    mut fits: impl FnMut(&[bool]) -> bool,
) -> Claim {
    let all = vec![true; away.len()];
    // What has to come back: one thing after the other is left out as long as the rest is enough.
    let mut back = all.clone();
    for at in 0..away.len().min(TRIED) {
        back[at] = false;
        back[at] = !fits(&back);
    }
    let mut needed = |at: usize| {
        let mut others = all.clone();
        others[at] = false;
        !fits(&others)
    };
    let named: Vec<usize> = (0..away.len()).filter(|at| back[*at]).collect();
    let each = named.len() <= TRIED && named.iter().copied().all(&mut needed);
    let named: Vec<Unavailable> = named.iter().map(|at| away[*at].1.clone()).collect();
    match each {
        true => Claim::NotWhile(named),
        false => Claim::EnoughBack(named),
    }
}

/// Nodes and GPUs that the job could use and that are not in service.
fn all_unavailable(site: &Site, wanted: &JobRequest) -> Vec<(usize, Unavailable)> {
    let mut away = Vec::new();
    let nodes = site.nodes.iter().enumerate();
    for (at, node) in nodes.filter(|(_, node)| may_use(wanted, node)) {
        let one = |gpu: Option<usize>, state: &str| {
            let one = Unavailable {
                node: node.name.clone(),
                gpu,
                state: state.into(),
            };
            (at, one)
        };
        away.extend(state_of(node, wanted.reserved).map(|state| one(None, state)));
        let out = node.gpus_out();
        away.extend(out.iter().map(|gpu| one(Some(gpu), "out of service")));
    }
    away
}

/// Whether partition, features and exclusions let the job use a node, reserved or not.
pub fn may_use(wanted: &JobRequest, node: &NodeRecord) -> bool {
    let reserved = JobRequest {
        reserved: true,
        ..wanted.clone()
    };
    reserved.allows(node)
}

/// Why a node gets no jobs now, after "is".
pub fn state_of(node: &NodeRecord, reserved: bool) -> Option<&'static str> {
    const WORDS: [(&str, &str); 14] = [
        ("MAINT", "in maintenance"),
        ("DOWN", "down"),
        ("DRAIN", "drained"),
        ("DRAINED", "drained"),
        ("DRAINING", "drained"),
        ("NOT_RESPONDING", "not responding"),
        ("NO_RESPOND", "not responding"),
        ("UNKNOWN", "not registered yet"),
        ("INVALID_REG", "not registered as configured"),
        ("INVAL", "not registered as configured"),
        ("REBOOT_ISSUED", "rebooting"),
        ("FAIL", "failing"),
        ("POWERING_DOWN", "powering down"),
        ("POWER_DOWN", "powering down"),
    ];
    if !node.is_up() {
        let word = WORDS
            .iter()
            .find(|(state, _)| node.states.iter().any(|own| own == state));
        return Some(word.map_or("not in service", |(_, word)| word));
    }
    (node.is_reserved() && !reserved).then_some("reserved")
}

/// The cluster for the job with nothing running, and those of what is away back in service that `back` says. What is
/// away stands in the order of the nodes.
fn idle(
    site: &Site,
    wanted: &JobRequest,
    away: &[(usize, Unavailable)],
    back: &[bool],
) -> Vec<NodeState> {
    let mut gone = away.iter().zip(back).peekable();
    let state = |(at, node): (usize, &NodeRecord)| {
        let (mut up, mut out) = (true, GpuSet::EMPTY);
        while let Some(((_, one), back)) = gone.next_if(|((node, _), _)| *node == at) {
            match one.gpu {
                _ if *back => {}
                Some(gpu) => out = out.with(gpu),
                None => up = false,
            }
        }
        let whole = !wanted.request.whole_nodes || out.is_empty();
        NodeState {
            candidate: up && whole && may_use(wanted, node),
            present: GpuSet::first(node.gpu_count()).minus(out),
            free: node.gpus_of_type(wanted.gres_type.as_deref()).minus(out),
            free_cpus: node.cpus,
            free_memory_mib: match site.memory_counts() {
                true => node.memory_mib,
                false => u64::MAX,
            },
            ..NodeState::default()
        }
    };
    site.nodes.iter().enumerate().map(state).collect()
}
