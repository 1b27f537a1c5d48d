//! What slurmctld is told beside GPUs, as a hint where jobs had better go: which jobs' checkpoints the node holds, and whether it is short
//! of host memory. That is told seldom, on many nodes not at once, and never instead of what is to be said of GPUs or before it.
//!
//! What is written here alone takes none of the limits that publications of GPUs have, gives way to one, and that it failed says
//! nothing about what slurmctld knows of GPUs: the words about them are written with it as they stand.
use std::collections::BTreeMap;

use gpuos_model::rng::Rng;
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use super::extra::ExtraPart;
use super::state::NodeHealth;
use super::step::Ctx;

/// Between two publications for these words alone, in ms.
const EVERY_MS: u64 = 60_000;
/// The same of a node that is emptied: its jobs are requeued as soon as slurmctld knows where their checkpoints are.
const EMPTIED_MS: u64 = 10_000;
/// A size is told anew when it has become so many times larger or smaller: a checkpoint grows and shrinks with each that is made.
const FACTOR: u32 = 2;
/// A change is told within so many times the spread of other publications: nodes of a job have it at the same moment.
const SLOW: u64 = 10;

/// What slurmctld is to know of it, and knows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Holding {
    /// Jobs and their GiB; `None`: nobody has said.
    wanted: Option<BTreeMap<u32, u32>>,
    /// What stands there; `None`: not known.
    confirmed: Option<BTreeMap<u32, u32>>,
    /// Whether there are more jobs than are wanted there, where these are known.
    #[serde(default)]
    wanted_more: bool,
    /// Whether it stands there that there are more, where what stands there is known.
    #[serde(default)]
    stands_more: bool,
    /// Whether the node is short of host memory; `None`: nobody has said.
    #[serde(default)]
    short: Option<bool>,
    /// Whether that stands there, where `confirmed` is known.
    #[serde(default)]
    stands_short: bool,
    /// The publication under way is for this alone.
    alone: bool,
    /// When a change is told that was seen.
    due: Option<u64>,
    /// The next is not before this.
    not_before: u64,
}

impl Holding {
    /// What is to stand there; what stands there stays where nobody has said anything.
    pub fn part(&self) -> BTreeMap<u32, u32> {
        let known = self.wanted.as_ref().or(self.confirmed.as_ref());
        known.cloned().unwrap_or_default()
    }

    /// Whether it is to stand there that there are more.
    pub fn has_more(&self) -> bool {
        match self.wanted {
            Some(_) => self.wanted_more,
            None => self.confirmed.is_some() && self.stands_more,
        }
    }

    /// Whether the node is short of host memory, as it is to stand there.
    pub fn is_short(&self) -> bool {
        self.short.unwrap_or(self.stands_short)
    }

    /// Whether slurmctld has all of it, or nobody knows what it has.
    fn is_told(&self, part: &ExtraPart) -> bool {
        let stands = self.confirmed.as_ref();
        let more = (self.stands_short, self.stands_more) == (part.short, part.held_more);
        stands.is_none_or(|stands| *stands == part.held && more)
    }

    /// Whether this alone is under way.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// A publication has begun.
    pub fn begun(&mut self, alone: bool) {
        self.alone = alone;
        self.due = None;
    }

    /// A publication has ended; `None`: nobody knows what stands there now.
    pub fn ended(&mut self, stands: Option<&ExtraPart>) {
        self.alone = false;
        self.confirmed = stands.map(|part| part.held.clone());
        self.stands_short = stands.map_or(self.stands_short, |part| part.short);
        self.stands_more = stands.map_or(self.stands_more, |part| part.held_more);
    }
}

/// [`super::Event::Held`].
pub(super) fn told(node: &mut NodeHealth, jobs: &BTreeMap<u32, u32>, more: bool) {
    let named = ExtraPart::largest_held(jobs);
    let holding = &mut node.holding;
    holding.wanted_more = more || named.len() < jobs.len();
    let wanted = &mut holding.wanted;
    if !wanted.as_ref().is_some_and(|known| is_alike(known, &named)) {
        *wanted = Some(named);
    }
}

/// [`super::Event::Short`].
pub(super) fn short(node: &mut NodeHealth, short: bool) {
    node.holding.short = Some(short);
}

/// Whether the jobs are the same, and about as large.
fn is_alike(known: &BTreeMap<u32, u32>, jobs: &BTreeMap<u32, u32>) -> bool {
    let within = |a: u32, b: u32| a.max(1) <= b.max(1).saturating_mul(FACTOR);
    let sizes = |(one, other): (&u32, &u32)| within(*one, *other) && within(*other, *one);
    known.keys().eq(jobs.keys()) && known.values().zip(jobs.values()).all(sizes)
}

/// [`super::Event::Shown`], while nothing is under way. A gpuosd without a state of its own takes over what stands there.
pub(super) fn shown(node: &mut NodeHealth, stands: &ExtraPart) {
    let holding = &mut node.holding;
    if holding.wanted.is_none() {
        holding.wanted = Some(stands.held.clone());
        holding.wanted_more = stands.held_more;
    }
    holding.short.get_or_insert(stands.short);
    holding.confirmed = Some(stands.held.clone());
    holding.stands_short = stands.short;
    holding.stands_more = stands.held_more;
}

/// After a start nobody knows what stands there.
pub(super) fn started(node: &mut NodeHealth) {
    let clock = node.clock;
    let holding = &mut node.holding;
    holding.ended(None);
    holding.due = None;
    // A state that was saved on another node's clock would wait for ever.
    holding.not_before = holding.not_before.min(clock + EVERY_MS);
}

/// Tells slurmctld where nothing else is to be told, `part` being all that it is to know.
pub(super) fn advance(node: &mut NodeHealth, ctx: &mut Ctx<'_>, part: ExtraPart) {
    let clock = node.clock;
    if node.holding.is_told(&part) {
        node.holding.due = None;
        return;
    }
    let due = match node.holding.due {
        _ if node.hold.is_some() => {
            let not_before = node.holding.not_before;
            not_before.saturating_sub(EVERY_MS - EMPTIED_MS)
        }
        Some(due) => due,
        None => {
            let most = u64::from(ctx.rules.limits.publish_spread_ms) * SLOW;
            // The node's source of numbers stays as it is: publications of GPUs come when they would without this.
            let wait = Rng::new(node.seed ^ clock).below(most.max(1));
            let due = clock.max(node.holding.not_before) + wait;
            node.holding.due = Some(due);
            due
        }
    };
    if clock < due {
        return;
    }
    node.holding.begun(true);
    node.holding.not_before = clock + EVERY_MS;
    let publishing = &mut node.publishing;
    publishing.revision += 1;
    publishing.under_way = Some((part.clone(), clock));
    ctx.effects.push(Effect::Publish {
        revision: publishing.revision,
        part,
    });
}
