//! Parts that are lost on this node are made again from the other members of the set.
//!
//! ```text
//!  manifest (here, or a copy) ─► chunks of the segment ─► all extents verify ─► parity shards ─► manifest written ─► copies of others
//! ```
//!
//! The manifest comes last here, too: until then a crash leaves what the next start of the store removes. A segment is made again
//! as a whole: which of its chunks were damaged is not known by their bytes alone.

use std::collections::{BTreeSet, VecDeque};

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::Manifest;
use gpuos_checkpoint::stripe::Shard;
use gpuos_store::disk::Disk;
use gpuos_store::rebuild::SegmentMaker;
use gpuos_store::shard::ShardWriter;
use gpuos_store::verify::segment_faults;

use crate::inventory::shard_holds;
use crate::local::Local;
use crate::message::{Body, Question};
use crate::pulling::{Progress, Pulling, Sink};

/// Questions for a manifest are repeated so many times as often as those for a piece: the node may be at its own repair.
const PATIENT: u32 = 4;

/// What the part is to be, from here or from a neighbour.
struct Wanted {
    bytes: Vec<u8>,
    manifest: Manifest,
}

/// What is made at the moment.
struct Work<'a, D: Disk> {
    wanted: Wanted,
    left: VecDeque<Shard>,
    current: Option<(Pulling, Sink<'a, D>)>,
}

enum Stage<'a, D: Disk> {
    Begin,
    /// Those that were asked for this node's manifest and have not said that they lack it.
    Manifest(BTreeSet<NodeIndex>),
    /// The chunks of the segment, one after another.
    Segment(Work<'a, D>),
    /// The parity shards, one after another.
    Shards(Work<'a, D>),
    /// Manifests of others that this node is to keep.
    Copies(BTreeSet<NodeIndex>),
}

impl<D: Disk> Stage<'_, D> {
    /// Whether a shard is being made.
    fn is_running(&self) -> bool {
        let current = match self {
            Stage::Segment(work) | Stage::Shards(work) => work.current.as_ref(),
            _ => None,
        };
        current.is_some_and(|(pulling, _)| pulling.progress == Progress::Running)
    }
}

/// The repair of this node's parts of some checkpoints, the oldest first: later ones refer to their segments.
pub(crate) struct Repair<'a, D: Disk> {
    ids: VecDeque<CheckpointId>,
    stage: Option<Stage<'a, D>>,
    again: u64,
    asked: u32,
    /// Why earlier ones could not be repaired, which matters if a later one needs them.
    weak: Vec<String>,
}

/// How it ended. `None`: it goes on.
pub(crate) type Ended = Option<Result<(), String>>;

impl<'a, D: Disk> Repair<'a, D> {
    pub(crate) fn new(local: &Local<'a, D>, ids: &[CheckpointId]) -> Repair<'a, D> {
        Repair {
            ids: ids.iter().copied().collect(),
            stage: Some(Stage::Begin),
            again: local.again(),
            asked: 0,
            weak: Vec::new(),
        }
    }

    /// A manifest came, or the word that it is not there.
    pub(crate) fn manifest(
        &mut self,
        local: &mut Local<'a, D>,
        from: NodeIndex,
        id: CheckpointId,
        node: NodeIndex,
        bytes: Option<Vec<u8>>,
    ) -> Ended {
        if self.ids.front() != Some(&id) {
            return None;
        }
        match (&mut self.stage, bytes) {
            (Some(Stage::Manifest(open)), None) if node == local.own() => {
                open.remove(&from);
                if open.is_empty() {
                    let why = format!("no node has a copy of its manifest of checkpoint {id}");
                    return self.failed(local, why);
                }
            }
            (Some(Stage::Manifest(_)), Some(bytes)) if node == local.own() => {
                match local.job.opened(id, &bytes) {
                    Ok(manifest) if manifest.node == node => {
                        let begun = begin(local, Wanted { bytes, manifest });
                        self.stage = Some(begun);
                    }
                    Ok(_) => local.note(format!(
                        "node {from} sent the manifest of another node; it is not used"
                    )),
                    Err(error) => local.note(error.to_string()),
                }
            }
            (Some(Stage::Copies(open)), Some(bytes)) if open.contains(&node) => {
                match keep_copy(local, id, node, &bytes) {
                    Ok(()) => {
                        open.remove(&node);
                    }
                    Err(why) => local.note(why),
                }
            }
            _ => {}
        }
        self.go_on(local)
    }

    /// An answer to a question of a pull.
    pub(crate) fn answer(
        &mut self,
        local: &mut Local<'a, D>,
        from: NodeIndex,
        question: &Question,
        answer: Result<Vec<u8>, bool>,
    ) -> Ended {
        if let Some(Stage::Segment(work) | Stage::Shards(work)) = &mut self.stage
            && let Some((pulling, sink)) = &mut work.current
        {
            pulling.answer(local, from, question, answer, sink);
        }
        self.go_on(local)
    }

    /// Repeats what has no answer.
    pub(crate) fn tick(&mut self, local: &mut Local<'a, D>) -> Ended {
        if let Some(Stage::Segment(work) | Stage::Shards(work)) = &mut self.stage
            && let Some((pulling, sink)) = &mut work.current
        {
            pulling.tick(local, sink);
        }
        if local.now >= self.again {
            self.again = local.again();
            if let Some(ended) = self.repeat(local) {
                return Some(ended);
            }
        }
        self.go_on(local)
    }

    fn repeat(&mut self, local: &mut Local<'a, D>) -> Ended {
        let id = *self.ids.front()?;
        self.asked += 1;
        let late = self.asked > u32::from(local.settings.patience.tries) * PATIENT;
        match &mut self.stage {
            Some(Stage::Manifest(_)) if late => {
                let why = format!(
                    "nodes that have a copy of its manifest of checkpoint {id} do not answer"
                );
                return self.failed(local, why);
            }
            Some(Stage::Manifest(open)) => {
                for keeper in open.iter() {
                    let node = local.own();
                    local.say(*keeper, Body::ManifestAsk { id, node });
                }
            }
            Some(Stage::Copies(open)) if late => {
                let text: Vec<String> = std::mem::take(open)
                    .iter()
                    .map(NodeIndex::to_string)
                    .collect();
                local.note(format!(
                    "manifests of checkpoint {id} of nodes {} could not be had to keep a copy; the next checkpoint has all its copies",
                    text.join(", ")
                ));
            }
            Some(Stage::Copies(open)) => {
                for node in open.clone() {
                    ask_for_copy(local, id, node);
                }
            }
            _ => {}
        }
        None
    }

    /// A checkpoint cannot be repaired here. That of the last one is what the repair is for.
    fn failed(&mut self, local: &mut Local<'a, D>, why: String) -> Ended {
        self.ids.pop_front();
        self.stage = None;
        if self.ids.is_empty() {
            self.weak.insert(0, why);
            return Some(Err(self.weak.join("; ")));
        }
        self.weak.push(why);
        self.stage = Some(Stage::Begin);
        self.go_on(local)
    }

    /// Whatever can be done now.
    pub(crate) fn go_on(&mut self, local: &mut Local<'a, D>) -> Ended {
        loop {
            let Some(id) = self.ids.front().copied() else {
                return Some(Ok(()));
            };
            let next = match self.stage.take()? {
                Stage::Begin => first(local, id),
                busy @ (Stage::Segment(_) | Stage::Shards(_)) if busy.is_running() => {
                    self.stage = Some(busy);
                    return None;
                }
                Stage::Segment(work) => segment(local, id, work),
                Stage::Shards(work) => shards(local, id, work),
                Stage::Copies(open) if open.is_empty() => {
                    self.ids.pop_front();
                    Ok(Stage::Begin)
                }
                waiting @ (Stage::Manifest(_) | Stage::Copies(_)) => {
                    self.stage = Some(waiting);
                    return None;
                }
            };
            // Each stage has the whole patience for its questions.
            self.asked = 0;
            match next {
                Ok(stage) => self.stage = Some(stage),
                Err(why) => return self.failed(local, why),
            }
        }
    }
}

impl<D: Disk> Work<'_, D> {
    /// Why the shard that was made last is none.
    fn failed(&self) -> Option<String> {
        match &self.current {
            Some((pulling, _)) => match &pulling.progress {
                Progress::Failed(why) => Some(why.clone()),
                _ => None,
            },
            None => None,
        }
    }
}

/// Looks whether the manifest is here, and asks for it otherwise.
fn first<'a, D: Disk>(local: &mut Local<'a, D>, id: CheckpointId) -> Result<Stage<'a, D>, String> {
    let own = local.job.manifest_bytes(id, None);
    if let Ok(bytes) = own
        && let Ok(manifest) = local.job.opened(id, &bytes)
        && manifest.node == local.own()
    {
        return Ok(begin(local, Wanted { bytes, manifest }));
    }
    // Any of them will do: the first answer that holds is taken.
    let keepers: BTreeSet<NodeIndex> = local.keepers(local.own()).into_iter().collect();
    if keepers.is_empty() {
        return Err(format!(
            "its part of checkpoint {id} is gone, and its set keeps nothing for others"
        ));
    }
    for keeper in &keepers {
        let node = local.own();
        local.say(*keeper, Body::ManifestAsk { id, node });
    }
    Ok(Stage::Manifest(keepers))
}

/// What has to be made of the segment: nothing, or all chunks.
fn begin<'a, D: Disk>(local: &Local<'a, D>, wanted: Wanted) -> Stage<'a, D> {
    let id = wanted.manifest.id;
    let holds = segment_faults(&local.job, &wanted.manifest, id).is_empty();
    let chunks = local.geometry.data() * u8::from(!holds);
    let left = (0..chunks).filter_map(|chunk| local.geometry.chunk(local.place, chunk));
    Stage::Segment(Work {
        wanted,
        left: left.collect(),
        current: None,
    })
}

fn segment<'a, D: Disk>(
    local: &mut Local<'a, D>,
    id: CheckpointId,
    mut work: Work<'a, D>,
) -> Result<Stage<'a, D>, String> {
    if let Some(why) = work.failed() {
        return Err(why);
    }
    let sink = work.current.take().map(|(_, sink)| sink);
    let set = &work.wanted.manifest.set;
    if let Some(shard) = work.left.pop_front() {
        if set.parity == 0 || set.members != local.set.members {
            return Err(format!(
                "its segment of checkpoint {id} is gone, and this set keeps nothing of it"
            ));
        }
        let length = work.wanted.manifest.segments[0].length;
        // One file for all chunks, so that the padding of the last one is cut where the segment ends.
        let mut sink = match sink {
            Some(sink) => sink,
            None => Sink::Segment(
                SegmentMaker::create(&local.job, id, length).map_err(|e| e.to_string())?,
            ),
        };
        let pulling = Pulling::start(local, id, shard, set.chunk, &mut sink)?;
        work.current = Some((pulling, sink));
        return Ok(Stage::Segment(work));
    }
    if let Some(sink) = sink {
        sink.finish().map_err(|error| error.to_string())?;
    }
    // Every extent, those of earlier segments too, before the part counts.
    let manifest = &work.wanted.manifest;
    for segment in &manifest.segments {
        if let Some(fault) = segment_faults(&local.job, manifest, segment.id).first() {
            return Err(format!(
                "its segment of checkpoint {} does not verify: {fault}",
                segment.id
            ));
        }
    }
    local.bad.remove(&id);
    let chunk = manifest.set.chunk;
    let held = local.geometry.parities(local.place);
    let lost = held.filter(|shard| !shard_holds(local, id, *shard, chunk));
    work.left = lost.collect();
    Ok(Stage::Shards(work))
}

fn shards<'a, D: Disk>(
    local: &mut Local<'a, D>,
    id: CheckpointId,
    mut work: Work<'a, D>,
) -> Result<Stage<'a, D>, String> {
    if let Some(why) = work.failed() {
        return Err(why);
    }
    if let Some((_, sink)) = work.current.take() {
        sink.finish().map_err(|error| error.to_string())?;
    }
    if let Some(shard) = work.left.pop_front() {
        let chunk = work.wanted.manifest.set.chunk;
        let writer = ShardWriter::create(
            &local.job,
            id,
            shard.stripe.into(),
            shard.place.into(),
            chunk,
        );
        let mut sink = Sink::Shard(writer.map_err(|error| error.to_string())?, Vec::new());
        let pulling = Pulling::start(local, id, shard, chunk, &mut sink)?;
        work.current = Some((pulling, sink));
        return Ok(Stage::Shards(work));
    }
    // It may be here, with a segment that was damaged, or that of another node, whose disk this was.
    let own = local.job.manifest(id);
    if !own.is_ok_and(|manifest| manifest.node == local.own()) {
        let put = local.job.put_manifest(id, local.own(), &work.wanted.bytes);
        put.map_err(|error| error.to_string())?;
    }
    let mut open: BTreeSet<NodeIndex> = local.kept().into_iter().collect();
    open.retain(|node| local.job.copy(id, *node).is_err());
    for node in &open {
        ask_for_copy(local, id, *node);
    }
    Ok(Stage::Copies(open))
}

/// The node itself may have lost it: then the others that keep it have it.
fn ask_for_copy<D: Disk>(local: &mut Local<'_, D>, id: CheckpointId, node: NodeIndex) {
    let mut holders = local.keepers(node);
    holders.push(node);
    let own = local.own();
    for holder in holders.into_iter().filter(|holder| *holder != own) {
        local.say(holder, Body::ManifestAsk { id, node });
    }
}

/// Keeps the manifest of a node, if it is that.
pub(crate) fn keep_copy<D: Disk>(
    local: &Local<'_, D>,
    id: CheckpointId,
    node: NodeIndex,
    bytes: &[u8],
) -> Result<(), String> {
    let manifest = local
        .job
        .opened(id, bytes)
        .map_err(|error| error.to_string())?;
    if manifest.node != node {
        return Err(format!(
            "the manifest of node {} came as that of node {node}; it is not kept",
            manifest.node
        ));
    }
    let kept = local.job.put_copy(id, bytes);
    kept.map(|_| ()).map_err(|error| error.to_string())
}
