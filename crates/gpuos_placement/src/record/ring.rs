//! Writing.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | magic, [`FORMAT`], [`SEGMENTS`] (u32), length of a model's place and of a segment (u64) |
//! | 32 | version of gpuos, 32 bytes, filled up with 0 |
//! | 64 | the counters of [`Tally`] (u64 each) |
//! | 4096 | [`MODELS`] models: length and check (u32), then the cluster |
//! | after them | the segments: number of the lap, counted up over all segments (u64), check of its model (u32), 0 (u32), then the events, each with length and check (u32) before it |
//!
//! Numbers are little-endian, the cluster and the events in postcard's form. The check of an event
//! covers its place and its segment's number, so a reader sees where whole events end without any
//! agreement with the writer: in the middle of a write, after a crash, in an old lap.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

use gpuos_model::cluster::Cluster;
use gpuos_model::gpuset::GpuSet;

use super::bytes::{check, store, u32_at, u64_at};
use super::encode::{encode, encode_gangs};
use super::event::{Asked, By, Event, Gang, Outcome, Purpose, Run};
use super::model::Model;
use super::tally::Tally;
use super::{FORMAT, MODELS, SEGMENTS};
use crate::fabric::{Promise, Recipe};
use crate::frag::Expected;
use crate::plan::{Choice, NodeState, Request, Wait};

/// How every ring begins.
pub const MAGIC: &[u8; 8] = b"gpuosrec";
/// Where the models begin.
const FIRST_MODEL: usize = 4096;
/// Length and check of a model or an event.
pub const FRAME: usize = 8;
/// What stands before the events of a segment.
pub const SEGMENT_HEAD: usize = 16;
/// Where the version of gpuos stands.
pub const MADE_BY: std::ops::Range<usize> = 32..64;
/// The version of gpuos that writes.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Room for a decision with the changes before it, in bytes: a job on a few nodes.
const DECISION: usize = 256;
/// Room for the state of a node with all figures at their longest.
const NODE_STATE: usize = 48;
/// Room for the gangs at the head of a segment: of eight on each node, with two nodes and a GPU on each, one
/// takes 16 bytes at most on up to 16,384 nodes. Larger gangs take fewer bytes for each node.
const NODE_GANGS: usize = 64;
const MORE_GANGS: usize = 2048;
/// Room for the mix of jobs that the planner goes by, at its longest.
const LEARNED: usize = 4096;
/// Room for the model: node types and levels, and for each node its name and domains.
const MODEL_BASE: usize = 32 << 10;
const MODEL_NODE: usize = 64;
/// Repeated answers are known for half as many jobs.
const KNOWN: usize = 2048;

/// The lengths that make up a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes for a model.
    pub model: usize,
    /// Bytes of one segment.
    pub segment: usize,
}

impl Sizes {
    /// For about so many decisions of usual size, on so many nodes.
    pub fn new(records: u32, nodes: usize) -> Sizes {
        let page = |bytes: usize| bytes.next_multiple_of(4096);
        Sizes {
            model: page(MODEL_BASE + nodes * MODEL_NODE),
            segment: page(
                records as usize * DECISION / SEGMENTS
                    + nodes * (2 * NODE_STATE + NODE_GANGS)
                    + MORE_GANGS
                    + LEARNED,
            ),
        }
    }

    /// Bytes of a segment that the gangs at its head may take: their own room, and half of that for decisions.
    fn for_gangs(self, nodes: usize) -> usize {
        let own = nodes * NODE_GANGS + MORE_GANGS;
        let others = nodes * 2 * NODE_STATE + LEARNED + SEGMENT_HEAD;
        own + self.segment.saturating_sub(own + others) / 2
    }

    /// Bytes of the whole ring.
    pub fn total(self) -> usize {
        self.segment_at(SEGMENTS)
    }

    /// What the head of a ring says; `None` when it is no ring of a known form or its lengths
    /// are not those of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Option<Sizes> {
        let known = bytes.starts_with(MAGIC)
            && u32_at(bytes, 8) == FORMAT
            && u32_at(bytes, 12) as usize == SEGMENTS;
        let sizes = Sizes {
            model: usize::try_from(u64_at(bytes, 16)).ok()?,
            segment: usize::try_from(u64_at(bytes, 24)).ok()?,
        };
        let segments = sizes.segment.checked_mul(SEGMENTS)?;
        let models = sizes.model.checked_mul(MODELS)?;
        let total = segments.checked_add(models)?.checked_add(FIRST_MODEL)?;
        let fits = sizes.model >= FRAME && sizes.segment > SEGMENT_HEAD + FRAME;
        (known && fits && total == bytes.len()).then_some(sizes)
    }

    /// Where a model begins.
    pub(super) fn model_at(self, model: usize) -> usize {
        FIRST_MODEL + model * self.model
    }

    /// Where a segment begins.
    pub(super) fn segment_at(self, segment: usize) -> usize {
        self.model_at(MODELS) + segment * self.segment
    }
}

/// A gang that runs.
#[derive(Debug)]
struct Running {
    nodes: Vec<(u32, GpuSet)>,
    ring: u32,
    bytes: usize,
}

/// Writes a ring. All methods take the same memory, of [`Sizes::total`] bytes.
#[derive(Debug)]
pub struct Writer {
    sizes: Sizes,
    /// Check of the model; 0 = it did not fit, nothing can be replayed.
    model: u32,
    /// Number of the segment at hand; the first one is 1.
    lap: u64,
    /// Where the next event goes; 0 = in a new segment.
    at: usize,
    /// What the events so far add up to. `candidate` = offered.
    state: Vec<NodeState>,
    /// The mix of jobs that the planner goes by.
    learned: Option<Expected>,
    /// Whether there is a network, the gangs on it by job, and the bytes that they take.
    network: bool,
    gangs: BTreeMap<u32, Running>,
    gang_bytes: usize,
    /// Jobs whose last answer is known, with a check of it, by job id.
    known: Vec<(u32, u32)>,
}

impl Writer {
    /// Takes over the memory: goes on with the ring that it holds if that has these sizes and this
    /// version of gpuos wrote it, else makes a new one. Allocates all that later calls need.
    pub fn open(memory: &mut [u8], sizes: Sizes, nodes: usize) -> Writer {
        let mut version = [0; 32];
        store(&mut version, 0, VERSION.as_bytes());
        let this_form = u32_at(memory, 8) == FORMAT && memory[MADE_BY] == version;
        let goes_on = this_form && Sizes::of(memory) == Some(sizes);
        let mut lap = 0;
        if goes_on {
            let laps = (0..SEGMENTS).map(|n| u64_at(memory, sizes.segment_at(n)));
            lap = laps.max().unwrap_or(0);
            // So that a damaged number cannot make it run over.
            lap = lap.min(u64::MAX / 2);
        } else {
            memory.fill(0);
            store(memory, 8, &FORMAT.to_le_bytes());
            store(memory, 12, &(SEGMENTS as u32).to_le_bytes());
            store(memory, 16, &(sizes.model as u64).to_le_bytes());
            store(memory, 24, &(sizes.segment as u64).to_le_bytes());
            store(memory, MADE_BY.start, &version);
            store(memory, 0, MAGIC);
        }
        Writer {
            sizes,
            model: 0,
            lap,
            at: 0,
            state: vec![NodeState::default(); nodes],
            learned: None,
            network: false,
            gangs: BTreeMap::new(),
            gang_bytes: 0,
            known: vec![(0, 0); KNOWN],
        }
    }

    /// Stores the counters, which are no events: nothing is replayed by them.
    pub fn tally(&mut self, memory: &mut [u8], tally: &Tally) {
        tally.write(memory);
    }

    /// Writes down the cluster that the planner plans for, and what the network is made of whose gangs
    /// will be told of; there are none yet. Allocates: for starts and reconfigurations, not for decisions.
    pub fn model(&mut self, memory: &mut [u8], cluster: &Cluster, net: Option<&Recipe>) {
        self.at = 0;
        self.learned = None;
        self.gangs.clear();
        self.gang_bytes = 0;
        self.state.clear();
        self.state.resize(cluster.nodes.len(), NodeState::default());
        self.model = 0;
        let room = self.sizes.model - FRAME;
        let bytes = |net| {
            let bytes = postcard::to_allocvec(&Model::of(cluster, net)).ok();
            bytes.filter(|bytes| bytes.len() <= room)
        };
        let whole = bytes(net);
        // A network of very many links may have no room; all but the choice beside its gangs replays.
        self.network = net.is_some() && whole.is_some();
        let Some(bytes) = whole.or_else(|| bytes(None)) else {
            return;
        };
        self.model = check(0, &bytes);
        let known = |&model: &usize| u32_at(memory, self.sizes.model_at(model) + 4) == self.model;
        let place = (0..MODELS).find(known);
        let place = place.or_else(|| (0..MODELS).min_by_key(|&model| self.last_use(memory, model)));
        let at = self.sizes.model_at(place.unwrap_or(0));
        store(memory, at + FRAME, &bytes);
        store(memory, at, &(bytes.len() as u32).to_le_bytes());
        store(memory, at + 4, &self.model.to_le_bytes());
    }

    /// Number of the newest segment that was made for the model in a place; 0 = none is left.
    fn last_use(&self, memory: &[u8], model: usize) -> u64 {
        let wanted = u32_at(memory, self.sizes.model_at(model) + 4);
        let segments = (0..SEGMENTS).map(|segment| self.sizes.segment_at(segment));
        let users = segments.filter(|&at| u32_at(memory, at + 8) == wanted);
        users.map(|at| u64_at(memory, at)).max().unwrap_or(0)
    }

    /// Writes down what has changed in the states of all nodes since the last time.
    pub fn states(&mut self, memory: &mut [u8], states: &[NodeState]) {
        let nodes = states.len().min(self.state.len());
        let offered = |state: &NodeState| state.candidate;
        let mut at = 0;
        while at < nodes {
            let new = states[at];
            if new == self.state[at] || !new.candidate && !self.state[at].candidate {
                at += 1;
                continue;
            }
            let run = |differs: &dyn Fn(usize) -> bool| {
                let end = (at..nodes).find(|&node| !differs(node)).unwrap_or(nodes);
                (at as u32, (end - at) as u32)
            };
            if offered(&self.state[at]) != new.candidate {
                let old = &self.state;
                let (from, count) = run(&|node| {
                    states[node].candidate == new.candidate && old[node].candidate != new.candidate
                });
                let yes = new.candidate;
                self.event(memory, &Event::Offered { from, count, yes });
                let range = at..at + count as usize;
                self.state[range]
                    .iter_mut()
                    .for_each(|state| state.candidate = yes);
                // Its other figures are looked at next.
                continue;
            }
            let old = &self.state;
            let (from, count) =
                run(&|node| states[node] == new && old[node].candidate && old[node] != new);
            self.event(
                memory,
                &Event::Nodes {
                    from,
                    count,
                    state: new,
                },
            );
            self.state[at..at + count as usize].fill(new);
            at += count as usize;
        }
    }

    /// Writes down that the planner goes by this mix from now on. A new model begins without any.
    /// Allocates: for times at which the planner begins to go by new values, not for decisions.
    pub fn learned(&mut self, memory: &mut [u8], expected: &Expected) {
        self.event(memory, &Event::Learned(Cow::Borrowed(expected)));
        self.learned = Some(expected.clone());
    }

    /// Writes down that a gang uses the network from now on, and what it was promised. Allocates: for
    /// starts of jobs, not for decisions.
    pub fn gang(&mut self, memory: &mut [u8], job: u32, nodes: &[(u32, GpuSet)], promise: Promise) {
        if !self.network {
            return;
        }
        self.forget(job);
        let event = Event::Gang(Gang {
            job,
            nodes: Cow::Borrowed(nodes),
            ring: promise.ring,
        });
        let bytes = match self.place(memory, &event) {
            Some((place, length)) => {
                self.commit(memory, place, length);
                length
            }
            // Too long for a segment: as long as it runs, none are told of.
            None => {
                self.event(memory, &Event::Network { whole: false });
                self.sizes.segment
            }
        };
        let nodes = nodes.to_vec();
        let ring = promise.ring;
        self.gangs.insert(job, Running { nodes, ring, bytes });
        self.gang_bytes += bytes;
    }

    /// Writes down that a gang has ended, if the job was one.
    pub fn gang_ended(&mut self, memory: &mut [u8], job: u32) {
        if self.forget(job) {
            self.event(memory, &Event::GangEnded { job });
        }
    }

    fn forget(&mut self, job: u32) -> bool {
        let gone = self.gangs.remove(&job);
        self.gang_bytes -= gone.as_ref().map_or(0, |gang| gang.bytes);
        gone.is_some()
    }

    /// Writes down a question and its answer. A forecast or a "no" that says the same as the last
    /// one to the same job is left out: the scheduler asks again and again for all that wait.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub fn asked(
        &mut self,
        memory: &mut [u8],
        job: u32,
        purpose: Purpose,
        (skip, by): (u32, By),
        request: &Request,
        answer: Result<&Choice, &Wait>,
        at: u64,
    ) {
        // Owns nothing: there is nothing to be done when it goes.
        let event = ManuallyDrop::new(Event::Asked(Asked {
            job,
            purpose,
            skip,
            by,
            request: Cow::Borrowed(request),
            answer: answer.map(Cow::Borrowed).map_err(Cow::Borrowed),
            at,
        }));
        let Some((place, length)) = self.place(memory, &event) else {
            return;
        };
        // The time is the last thing in the bytes, seven bits in each.
        let time = (64 - at.max(1).leading_zeros()).div_ceil(7) as usize;
        let same = check(1, &memory[place..place + length.saturating_sub(time)]);
        // What would hold it once others are gone is told right after the answer for now.
        let later = usize::from(by == By::Future);
        let known = &mut self.known[(2 * job as usize + later) % KNOWN];
        let repeated = *known == (job, same);
        *known = (job, same);
        if !repeated || purpose == Purpose::Start && answer.is_ok() {
            self.commit(memory, place, length);
        }
    }

    /// Writes down that a job has run to its end, for [`super::Recording::history`]. Not called in decisions.
    pub fn ran(&mut self, memory: &mut [u8], run: Run<'_>) {
        self.event(memory, &Event::Ran(run));
    }

    /// Writes down how a decision ended.
    pub fn ended(&mut self, memory: &mut [u8], job: u32, outcome: Outcome) {
        self.event(memory, &Event::Ended { job, outcome });
    }

    fn event(&mut self, memory: &mut [u8], event: &Event<'_>) {
        if let Some((place, length)) = self.place(memory, event) {
            self.commit(memory, place, length);
        }
    }

    /// Puts the bytes of an event where the next one goes; in a new segment if need be. `None`:
    /// it is too long for a whole segment.
    fn place(&mut self, memory: &mut [u8], event: &Event<'_>) -> Option<(usize, usize)> {
        let fresh = self.at == 0;
        if fresh {
            self.open_segment(memory);
        }
        if let Some(found) = self.encode(memory, event) {
            return Some(found);
        }
        if !fresh {
            self.open_segment(memory);
        }
        self.encode(memory, event)
    }

    fn encode(&self, memory: &mut [u8], event: &Event<'_>) -> Option<(usize, usize)> {
        let place = self.at + FRAME;
        let room = memory.get_mut(place..self.end())?;
        Some((place, encode(event, room)?))
    }

    fn commit(&mut self, memory: &mut [u8], place: usize, length: usize) {
        let check = check(seed(self.lap, place), &memory[place..place + length]);
        store(memory, place - 4, &check.to_le_bytes());
        store(memory, place - FRAME, &(length as u32).to_le_bytes());
        self.at = place + length;
    }

    /// End of the segment at hand.
    fn end(&self) -> usize {
        self.sizes.segment_at(self.index()) + self.sizes.segment
    }

    fn index(&self) -> usize {
        (self.lap % SEGMENTS as u64) as usize
    }

    /// Begins the next segment, over the oldest one, with the state as it is.
    fn open_segment(&mut self, memory: &mut [u8]) {
        self.lap += 1;
        let start = self.sizes.segment_at(self.index());
        store(memory, start, &self.lap.to_le_bytes());
        store(memory, start + 8, &self.model.to_le_bytes());
        self.at = start + SEGMENT_HEAD;
        if let Some(expected) = self.learned.take() {
            self.first(memory, &Event::Learned(Cow::Borrowed(&expected)));
            self.learned = Some(expected);
        }
        if self.network {
            self.first_gangs(memory);
        }
        let mut node = 0;
        while node < self.state.len() {
            let state = self.state[node];
            let same = self.state[node..]
                .iter()
                .take_while(|other| **other == state);
            let (from, count) = (node as u32, same.count() as u32);
            node += count as usize;
            let blank = NodeState {
                candidate: false,
                ..state
            };
            if blank != NodeState::default() {
                self.first(memory, &Event::Nodes { from, count, state });
            }
            if state.candidate {
                let yes = true;
                self.first(memory, &Event::Offered { from, count, yes });
            }
        }
    }

    /// The gangs that run at the head of a segment, or a word that they are too many for it.
    fn first_gangs(&mut self, memory: &mut [u8]) {
        let whole = self.gang_bytes <= self.sizes.for_gangs(self.state.len());
        self.first(memory, &Event::Network { whole });
        let place = self.at + FRAME;
        if !whole || self.gangs.is_empty() {
            return;
        }
        let end = self.end();
        let gangs = self.gangs.iter();
        let gangs = gangs.map(|(&job, gang)| (job, gang.nodes.as_slice(), gang.ring));
        let room = memory.get_mut(place..end);
        if let Some(length) = room.and_then(|room| encode_gangs(gangs, room)) {
            self.commit(memory, place, length);
        }
    }

    /// An event of the state that a segment begins with: there is room for it.
    fn first(&mut self, memory: &mut [u8], event: &Event<'_>) {
        if let Some((place, length)) = self.encode(memory, event) {
            self.commit(memory, place, length);
        }
    }
}

/// What the check of an event starts from: its segment's number and its place.
pub fn seed(lap: u64, place: usize) -> u64 {
    lap << 32 ^ place as u64
}
