//! This node's part of a checkpoint, while it is made.
//!
//! The manifest is written after the shards, and copies of it are sent after that: a node that stops between has a manifest only if
//! all that it describes is on the disk, and so has done its part though it never said so.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::manifest::{MAX_SEGMENT, NodeSet};
use gpuos_checkpoint::stripe::Shard;
use gpuos_store::disk::Disk;
use gpuos_store::job::{Draft, New};
use gpuos_store::shard::ShardWriter;

use crate::local::{Local, digest};
use crate::message::{Body, Bytes, Question};
use crate::output::Output;
use crate::pulling::{Progress, Pulling, Sink};

enum Stage<'a, D: Disk> {
    /// The program has not finished its files.
    Folder,
    /// Not all members have said how long their segments are.
    Lengths(Draft),
    /// The parity shards that this node holds, one after another.
    Shards(Box<Shards<'a, D>>),
    /// The manifest is on the disk, and not all that keep it have it.
    Copies {
        bytes: Vec<u8>,
        waiting: BTreeSet<NodeIndex>,
    },
}

struct Shards<'a, D: Disk> {
    draft: Draft,
    chunk: u64,
    left: Vec<Shard>,
    current: Option<(Pulling, Sink<'a, D>)>,
}

/// A part that is being made.
pub(crate) struct Making<'a, D: Disk> {
    pub(crate) id: CheckpointId,
    /// `None`: it has ended.
    stage: Option<Stage<'a, D>>,
    again: u64,
    /// How often something was asked for again.
    asked: u32,
}

/// How it ended: with the digest of the manifest, or a sentence. `None`: it goes on.
pub(crate) type Ended = Option<Result<Digest, String>>;

impl<'a, D: Disk> Making<'a, D> {
    pub(crate) fn new(local: &Local<'a, D>, id: CheckpointId) -> Making<'a, D> {
        Making {
            id,
            stage: Some(Stage::Folder),
            again: local.again(),
            asked: 0,
        }
    }

    /// The program has finished its files.
    pub(crate) fn folder(
        &mut self,
        local: &mut Local<'a, D>,
        folder: &D::Folder,
        time: u64,
    ) -> Ended {
        if !matches!(self.stage, Some(Stage::Folder)) {
            return None;
        }
        self.stage = None;
        let new = New {
            id: self.id,
            node: local.own(),
            nodes: local.settings.nodes,
            time,
        };
        // Without it all is written anew, which costs space and nothing else.
        let base = local.base.filter(|base| {
            let keeping = local.keeping.as_ref();
            keeping.is_some_and(|keeping| keeping.may_refer(self.id, *base))
        });
        let previous = base.and_then(|id| local.job.manifest(id).ok());
        let limits = local.settings.limits;
        let taken = local
            .job
            .ingest(&new, local.files, folder, &limits, previous.as_ref());
        let draft = match taken {
            Ok(draft) => draft,
            Err(error) => return Some(Err(error.to_string())),
        };
        local.out.push(Output::FolderRead { id: self.id });
        // The chunk's length needs that of the longest segment. Who misses this asks.
        let (id, length) = (self.id, draft.segment_length());
        local.learn_length(id, local.own(), length);
        for node in local.others() {
            local.say(node, Body::Length { id, length });
        }
        self.stage = Some(Stage::Lengths(draft));
        self.go_on(local)
    }

    /// A member keeps the manifest.
    pub(crate) fn kept(
        &mut self,
        local: &mut Local<'a, D>,
        from: NodeIndex,
        which: Digest,
    ) -> Ended {
        if let Some(Stage::Copies { bytes, waiting }) = &mut self.stage
            && digest(bytes) == which
        {
            waiting.remove(&from);
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
        if let Some(Stage::Shards(shards)) = &mut self.stage
            && let Some((pulling, sink)) = &mut shards.current
        {
            pulling.answer(local, from, question, answer, sink);
        }
        self.go_on(local)
    }

    /// Repeats what has no answer.
    pub(crate) fn tick(&mut self, local: &mut Local<'a, D>) -> Ended {
        if let Some(Stage::Shards(shards)) = &mut self.stage
            && let Some((pulling, sink)) = &mut shards.current
        {
            pulling.tick(local, sink);
        }
        if local.now >= self.again {
            self.again = local.again();
            self.asked = self.asked.saturating_add(1);
            if self.asked == u32::from(local.settings.patience.tries) {
                self.tell_who_is_late(local);
            }
            self.repeat(local);
        }
        self.go_on(local)
    }

    fn repeat(&self, local: &mut Local<'a, D>) {
        let id = self.id;
        match &self.stage {
            Some(Stage::Lengths(_)) => {
                let known = local.lengths.get(&id).cloned().unwrap_or_default();
                for node in local.others() {
                    if !known.contains_key(&node) {
                        local.say(node, Body::LengthAsk { id });
                    }
                }
            }
            Some(Stage::Copies { bytes, waiting }) => {
                for node in waiting {
                    let bytes = Bytes(bytes.clone());
                    local.say(*node, Body::Copy { id, bytes });
                }
            }
            _ => {}
        }
    }

    /// The leader only sees that no node of the set is done: which one keeps the others waiting is known here.
    fn tell_who_is_late(&self, local: &mut Local<'a, D>) {
        let id = self.id;
        match &self.stage {
            Some(Stage::Folder) => local.note(format!(
                "checkpoint {id} waits for the program on node {}, which has not finished its files; look at the program there",
                local.own()
            )),
            Some(Stage::Lengths(_)) => {
                let known = local.lengths.get(&id).cloned().unwrap_or_default();
                let mut late = local.others();
                late.retain(|node| !known.contains_key(node));
                let late: Vec<String> = late.iter().map(NodeIndex::to_string).collect();
                local.note(format!(
                    "checkpoint {id} waits for the files of nodes {}; look at the program and the disk there",
                    late.join(", ")
                ));
            }
            _ => {}
        }
    }

    /// Whatever can be done now.
    pub(crate) fn go_on(&mut self, local: &mut Local<'a, D>) -> Ended {
        loop {
            let next = match self.stage.take()? {
                Stage::Folder => return self.wait(Stage::Folder),
                Stage::Lengths(draft) => match chunk(local, self.id) {
                    None => return self.wait(Stage::Lengths(draft)),
                    Some(chunk) => {
                        let left = local.geometry.parities(local.place).collect();
                        let current = None;
                        Ok(Stage::Shards(Box::new(Shards {
                            draft,
                            chunk,
                            left,
                            current,
                        })))
                    }
                },
                Stage::Shards(shards) => match &shards.current {
                    Some((pulling, _)) if pulling.progress == Progress::Running => {
                        return self.wait(Stage::Shards(shards));
                    }
                    _ => self.shard(local, shards),
                },
                Stage::Copies { bytes, waiting } if waiting.is_empty() => {
                    return Some(Ok(digest(&bytes)));
                }
                copies @ Stage::Copies { .. } => return self.wait(copies),
            };
            match next {
                Ok(stage) => self.stage = Some(stage),
                Err(why) => return Some(Err(why)),
            }
        }
    }

    fn wait(&mut self, stage: Stage<'a, D>) -> Ended {
        self.stage = Some(stage);
        None
    }

    /// Ends a shard and begins the next one, or writes the manifest after the last.
    fn shard(
        &self,
        local: &mut Local<'a, D>,
        mut shards: Box<Shards<'a, D>>,
    ) -> Result<Stage<'a, D>, String> {
        let text = |error: gpuos_store::error::Error| error.to_string();
        if let Some((pulling, sink)) = shards.current.take() {
            if let Progress::Failed(why) = pulling.progress {
                return Err(why);
            }
            sink.finish().map_err(text)?;
        }
        if let Some(shard) = shards.left.pop() {
            let (stripe, place) = (shard.stripe.into(), shard.place.into());
            let writer = ShardWriter::create(&local.job, self.id, stripe, place, shards.chunk);
            let mut sink = Sink::Shard(writer.map_err(text)?, Vec::new());
            let pulling = Pulling::start(local, self.id, shard, shards.chunk, &mut sink)?;
            shards.current = Some((pulling, sink));
            return Ok(Stage::Shards(shards));
        }
        let set = NodeSet {
            members: local.set.members.clone(),
            parity: local.set.parity.into(),
            chunk: shards.chunk,
        };
        let (_, bytes) = local.job.prepare(shards.draft, set).map_err(text)?;
        let waiting: BTreeSet<NodeIndex> = local.keepers(local.own()).into_iter().collect();
        let copies = Stage::Copies { bytes, waiting };
        let sent = Making {
            id: self.id,
            stage: Some(copies),
            again: self.again,
            asked: 0,
        };
        sent.repeat(local);
        sent.stage.ok_or_else(String::new)
    }
}

/// The length of a chunk, when all members have said how long their segments are.
fn chunk<D: Disk>(local: &Local<'_, D>, id: CheckpointId) -> Option<u64> {
    if local.set.parity == 0 {
        // A manifest without parity names no chunks, so nobody has to be waited for.
        return Some(0);
    }
    let known = local.lengths.get(&id)?;
    let members = local.set.members.iter();
    let lengths: Option<Vec<u64>> = members.map(|node| known.get(node).copied()).collect();
    let chunk = local.geometry.chunk_len(&lengths?);
    chunk.filter(|chunk| *chunk <= MAX_SEGMENT)
}
