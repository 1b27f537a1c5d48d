//! Asking again.
use super::event::{Asked, By, Event, Gang, Outcome};
use super::read::Recording;
use crate::fabric::Promise;
use crate::plan::{Choice, NodeState, Planner, Request, Wait};
use crate::traffic::{Pick, Traffic};

/// One question of a recording, asked again.
pub struct Step<'a> {
    /// As it was recorded.
    pub asked: &'a Asked<'static>,
    /// What became of it, if that was recorded right after.
    pub outcome: Option<Outcome>,
    /// The choice now of equally close places beside the running gangs, if there was one.
    pub pick: Option<Pick>,
    /// The answer now.
    pub again: Result<Choice, Wait>,
    /// Whether it is the recorded one, bit by bit.
    pub same: bool,
    /// The planner, for more questions about the same state.
    pub planner: &'a mut Planner,
    /// What it saw.
    pub states: &'a [NodeState],
}

/// How a replay went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Decisions that were asked again.
    pub replayed: u64,
    /// Those that came out as recorded.
    pub same: u64,
    /// Decisions for a cluster that is not kept any more, which cannot be asked again.
    pub skipped: u64,
    /// Decisions among those asked again for which places were compared beside the running gangs.
    pub compared: u64,
    /// Places among those asked again that were named for when running jobs are gone.
    pub futures: u64,
    /// Decisions for which that could not be done again, as the gangs are not recorded in whole: their
    /// places were asked for by their numbers.
    pub not_compared: u64,
}

impl Recording {
    /// All questions, oldest first, as they were recorded.
    pub fn asked(&self) -> impl Iterator<Item = &Asked<'static>> {
        let events = self.segments.iter().flat_map(|segment| &segment.events);
        events.filter_map(|event| match event {
            Event::Asked(asked) => Some(asked),
            _ => None,
        })
    }

    /// Asks the planner all questions again, oldest first, each with the state of that moment.
    pub fn replay(&self, visit: &mut dyn FnMut(Step<'_>)) -> Counts {
        let mut counts = Counts::default();
        let mut planners: Vec<Option<Planner>> = self.clusters.iter().map(|_| None).collect();
        let mut quiet: Vec<Option<Traffic>> = Vec::new();
        for (cluster, net) in self.clusters.iter().zip(&self.nets) {
            let net = net.as_ref().and_then(|net| net.net(cluster).ok());
            quiet.push(net.map(Traffic::new));
        }
        for segment in &self.segments {
            let mut traffic = None;
            let quiet = segment.cluster.and_then(|at| quiet.get(at)?.as_ref());
            let planner = segment.cluster.and_then(|at| {
                let new = || Some(Planner::new(self.clusters.get(at)?.clone()));
                let place = planners.get_mut(at)?;
                *place = place.take().or_else(new);
                place.as_mut()
            });
            let Some(planner) = planner else {
                let asked = |event: &&Event| matches!(event, Event::Asked(_));
                counts.skipped += segment.events.iter().filter(asked).count() as u64;
                continue;
            };
            // A segment begins with the mix, if there is one.
            if !matches!(segment.events.first(), Some(Event::Learned(_))) {
                planner.unlearn();
            }
            let mut state = State::new(planner.cluster().nodes.len());
            for (at, event) in segment.events.iter().enumerate() {
                state.apply(event);
                follow(&mut traffic, quiet, event);
                if let Event::Learned(expected) = event
                    && planner.learned() != Some(&**expected)
                {
                    planner.learn(expected.clone().into_owned());
                    planner.work(usize::MAX);
                }
                let Event::Asked(asked) = event else {
                    continue;
                };
                let states = state.seen();
                let pick = match (asked.by, &mut traffic) {
                    (By::Network(_), Some(traffic)) => {
                        Some(traffic.best(planner, states, &asked.request))
                    }
                    _ => None,
                };
                let skip = pick.map_or(asked.skip, |pick| pick.skip);
                let again = match asked.by {
                    By::Future => future(planner, states, &asked.request, skip),
                    _ => planner.plan(states, &asked.request, skip).cloned(),
                };
                counts.futures += u64::from(asked.by == By::Future);
                let picked = |pick: Pick| (pick.skip, By::Network(pick.beside));
                let same = is_same(&again, asked)
                    && pick.is_none_or(|pick| picked(pick) == (asked.skip, asked.by));
                counts.replayed += 1;
                counts.compared += u64::from(pick.is_some_and(|pick| pick.beside.is_some()));
                let unknown = matches!(asked.by, By::Network(Some(_))) && pick.is_none();
                counts.not_compared += u64::from(unknown);
                counts.same += u64::from(same);
                let outcome = match segment.events.get(at + 1) {
                    Some(Event::Ended { job, outcome }) if *job == asked.job => Some(*outcome),
                    _ => None,
                };
                visit(Step {
                    asked,
                    outcome,
                    pick,
                    again,
                    same,
                    planner,
                    states,
                });
            }
        }
        counts
    }
}

/// The gangs on the network after an event.
fn follow(traffic: &mut Option<Traffic>, quiet: Option<&Traffic>, event: &Event<'_>) {
    match (event, traffic.as_mut()) {
        (Event::Network { whole }, _) => *traffic = quiet.filter(|_| *whole).cloned(),
        (Event::Gang(gang), Some(traffic)) => resume(traffic, gang),
        (Event::Gangs(gangs), Some(traffic)) => {
            gangs.iter().for_each(|gang| resume(traffic, gang));
        }
        (Event::GangEnded { job }, Some(traffic)) => traffic.end(*job),
        _ => {}
    }
}

fn resume(traffic: &mut Traffic, gang: &Gang<'_>) {
    let ring = gang.ring;
    traffic.resume(gang.job, gang.nodes.to_vec(), Promise { ring });
}

/// The place for when running jobs are gone, or why there is no room now where there is no such place.
fn future(
    planner: &mut Planner,
    states: &[NodeState],
    request: &Request,
    nth: u32,
) -> Result<Choice, Wait> {
    match planner.future(states, request, nth) {
        Some(place) => Ok(place.clone()),
        None => planner.plan(states, request, u32::MAX).cloned(),
    }
}

/// Compared as they are written down: figures by their bits.
fn is_same(again: &Result<Choice, Wait>, asked: &Asked<'_>) -> bool {
    let now = postcard::to_allocvec(&again.as_ref());
    let then = postcard::to_allocvec(&asked.answer);
    matches!((now, then), (Ok(now), Ok(then)) if now == then)
}

/// The states of all nodes, as events make them.
struct State {
    known: Vec<NodeState>,
    seen: Vec<NodeState>,
}

impl State {
    fn new(nodes: usize) -> State {
        State {
            known: vec![NodeState::default(); nodes],
            seen: vec![NodeState::default(); nodes],
        }
    }

    fn apply(&mut self, event: &Event<'_>) {
        let range = |from: u32, count: u32| {
            let end = (from as usize).saturating_add(count as usize);
            (from as usize).min(self.known.len())..end.min(self.known.len())
        };
        let range = match event {
            Event::Nodes { from, count, .. } | Event::Offered { from, count, .. } => {
                range(*from, *count)
            }
            _ => return,
        };
        for node in range {
            let known = &mut self.known[node];
            match event {
                Event::Nodes { state, .. } => {
                    *known = NodeState {
                        candidate: known.candidate,
                        ..*state
                    }
                }
                Event::Offered { yes, .. } => known.candidate = *yes,
                _ => {}
            }
            self.seen[node] = match known.candidate {
                true => *known,
                false => NodeState::default(),
            };
        }
    }

    /// As the planner sees them: nodes that are not offered say nothing.
    fn seen(&self) -> &[NodeState] {
        &self.seen
    }
}
