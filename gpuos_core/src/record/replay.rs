//! Asking again.

use super::event::{Asked, Event, Outcome};
use super::read::Recording;
use crate::plan::{Choice, NodeState, Planner, Wait};

/// One question of a recording, asked again.
pub struct Step<'a> {
    /// As it was recorded.
    pub asked: &'a Asked<'static>,
    /// What became of it, if that was recorded right after.
    pub outcome: Option<Outcome>,
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
        for segment in &self.segments {
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
                let again = planner.plan(states, &asked.request, asked.skip).cloned();
                let same = is_same(&again, asked);
                counts.replayed += 1;
                counts.same += u64::from(same);
                let outcome = match segment.events.get(at + 1) {
                    Some(Event::Ended { job, outcome }) if *job == asked.job => Some(*outcome),
                    _ => None,
                };
                visit(Step {
                    asked,
                    outcome,
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
            Event::Asked(_) | Event::Ended { .. } | Event::Learned(_) => return,
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
                Event::Asked(_) | Event::Ended { .. } | Event::Learned(_) => {}
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
