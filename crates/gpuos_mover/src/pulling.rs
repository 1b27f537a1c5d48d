//! One shard that is made of others: questions to members, their answers, and where the result goes.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::pull::{Effect, Event, Plan, Pull};
use gpuos_checkpoint::stripe::Shard;
use gpuos_store::disk::Disk;
use gpuos_store::erasure::{Code, Recipe};
use gpuos_store::error::Result as Stored;
use gpuos_store::rebuild::SegmentMaker;
use gpuos_store::shard::{PIECE, ShardWriter};

use crate::local::Local;
use crate::message::{Body, Question, loss};

/// Where the pieces go, from the first to the last.
pub(crate) enum Sink<'a, D: Disk> {
    /// A parity shard, and what is not a whole piece of it yet.
    Shard(ShardWriter<'a, D>, Vec<u8>),
    /// A segment, of which this is a chunk.
    Segment(SegmentMaker<'a, D>),
}

impl<D: Disk> Sink<'_, D> {
    fn write(&mut self, bytes: &[u8]) -> Stored<()> {
        match self {
            Sink::Segment(maker) => maker.write(bytes),
            Sink::Shard(writer, buffer) => {
                buffer.extend_from_slice(bytes);
                while buffer.len() >= PIECE {
                    let rest = buffer.split_off(PIECE);
                    let whole = std::mem::replace(buffer, rest);
                    writer.piece(&whole)?;
                }
                Ok(())
            }
        }
    }

    /// Has all of it on the disk.
    pub(crate) fn finish(self) -> Stored<()> {
        match self {
            Sink::Segment(maker) => maker.finish(),
            Sink::Shard(mut writer, buffer) => {
                if !buffer.is_empty() {
                    writer.piece(&buffer)?;
                }
                writer.finish()
            }
        }
    }
}

/// How far it is.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Running,
    Done,
    Failed(String),
}

pub(crate) struct Pulling {
    id: CheckpointId,
    shard: Shard,
    pull: Pull,
    code: Code,
    /// By their sources: they are few, while pieces are many.
    recipes: BTreeMap<Vec<u8>, Recipe>,
    kept: BTreeMap<(u64, u8), Vec<u8>>,
    made: BTreeMap<u64, Vec<u8>>,
    pub(crate) progress: Progress,
}

impl Pulling {
    /// Begins to make a shard of others of its stripe.
    pub(crate) fn start<D: Disk>(
        local: &mut Local<'_, D>,
        id: CheckpointId,
        shard: Shard,
        chunk: u64,
        sink: &mut Sink<'_, D>,
    ) -> Result<Pulling, String> {
        let (data, parity) = (local.geometry.data(), local.geometry.parity());
        let plan = Plan {
            len: chunk,
            piece_len: local.settings.piece,
            needed: data,
            // Data first: a parity shard whose chunks are all there is made of them.
            sources: (0..data + parity)
                .filter(|place| *place != shard.place)
                .collect(),
            window: local.settings.window,
            resume_from: 0,
            patience: local.settings.patience,
        };
        let mut pulling = Pulling {
            id,
            shard,
            pull: Pull::new(plan).map_err(|error| error.to_string())?,
            code: Code::new(data.into(), parity.into()).map_err(|error| error.to_string())?,
            recipes: BTreeMap::new(),
            kept: BTreeMap::new(),
            made: BTreeMap::new(),
            progress: Progress::Running,
        };
        pulling.step(local, Event::Start, None, sink);
        Ok(pulling)
    }

    /// Time went by.
    pub(crate) fn tick<D: Disk>(&mut self, local: &mut Local<'_, D>, sink: &mut Sink<'_, D>) {
        self.step(local, Event::Tick, None, sink);
    }

    /// An answer came: bytes, or whether the shard is damaged instead.
    pub(crate) fn answer<D: Disk>(
        &mut self,
        local: &mut Local<'_, D>,
        from: NodeIndex,
        question: &Question,
        answer: Result<Vec<u8>, bool>,
        sink: &mut Sink<'_, D>,
    ) {
        let source = local.geometry.at(question.stripe, question.place);
        let holder = source.and_then(|source| local.set.members.get(usize::from(source.member)));
        // All of the question has to be this pull's own: an answer of an earlier pull of other lengths may be late.
        let asked = holder == Some(&from)
            && question.stripe == self.shard.stripe
            && *question == self.question(question.place, question.piece);
        if !asked {
            return;
        }
        let (source, piece) = (question.place, question.piece);
        match answer {
            Ok(bytes) => {
                // The carrier keeps bytes from changing; who made them is trusted, until all extents are verified.
                let checked = true;
                let event = Event::Piece {
                    source,
                    piece,
                    checked,
                };
                self.step(local, event, Some(bytes), sink);
            }
            Err(damaged) => {
                let why = loss(damaged);
                self.step(local, Event::Refused { source, why }, None, sink);
            }
        }
    }

    fn question(&self, place: u8, piece: u64) -> Question {
        let plan = self.pull.plan();
        let bytes = plan.bytes_of(piece);
        Question {
            id: self.id,
            stripe: self.shard.stripe,
            place,
            chunk: plan.len,
            piece,
            offset: bytes.start,
            // At most the length of a piece, which has 32 bits.
            length: (bytes.end - bytes.start) as u32,
        }
    }

    fn step<D: Disk>(
        &mut self,
        local: &mut Local<'_, D>,
        event: Event,
        mut bytes: Option<Vec<u8>>,
        sink: &mut Sink<'_, D>,
    ) {
        // What is combined and written is done at once, and its events give further effects.
        let mut effects: VecDeque<Effect> = self.pull.step(event, local.now).into();
        while let Some(effect) = effects.pop_front() {
            let next = match effect {
                Effect::Ask { source, piece } => {
                    self.ask(local, source, piece);
                    continue;
                }
                Effect::Keep { source, piece } => {
                    self.kept
                        .insert((piece, source), bytes.take().unwrap_or_default());
                    continue;
                }
                Effect::Combine { piece, sources } => self
                    .combine(piece, &sources)
                    .map(|()| Event::Combined { piece }),
                Effect::Write { piece } => {
                    let made = self.made.remove(&piece).unwrap_or_default();
                    let written = sink.write(&made).map_err(|error| error.to_string());
                    written.map(|()| Event::Written { piece })
                }
                Effect::Done => {
                    self.progress = Progress::Done;
                    continue;
                }
                Effect::Failed(few) => Err(few.to_string()),
            };
            match next {
                Ok(event) => effects.extend(self.pull.step(event, local.now)),
                Err(why) => {
                    self.progress = Progress::Failed(why);
                    self.kept.clear();
                    return;
                }
            }
        }
    }

    fn ask<D: Disk>(&self, local: &mut Local<'_, D>, source: u8, piece: u64) {
        let shard = local.geometry.at(self.shard.stripe, source);
        let holder =
            shard.and_then(|shard| local.set.members.get(usize::from(shard.member)).copied());
        if let Some(holder) = holder {
            local.say(holder, Body::Ask(self.question(source, piece)));
        }
    }

    fn combine(&mut self, piece: u64, sources: &[u8]) -> Result<(), String> {
        // To compute one, k stripes are decoded: too much for each piece.
        if !self.recipes.contains_key(sources) {
            let places: Vec<u16> = sources.iter().map(|place| u16::from(*place)).collect();
            let recipe = self.code.recipe(self.shard.place.into(), &places);
            let recipe = recipe.map_err(|error| error.to_string())?;
            self.recipes.insert(sources.to_vec(), recipe);
        }
        let take = |source: &u8| self.kept.remove(&(piece, *source)).unwrap_or_default();
        let kept: Vec<Vec<u8>> = sources.iter().map(take).collect();
        let mut made = vec![0; self.question(0, piece).length as usize];
        // Each has the length that was asked for, which the question in its answer says.
        let pieces: Vec<&[u8]> = kept.iter().map(Vec::as_slice).collect();
        if pieces.iter().any(|bytes| bytes.len() != made.len()) {
            return Err(
                "a piece of a shard has not the length that was asked for; try again".into(),
            );
        }
        self.recipes[sources].combine(&pieces, &mut made);
        self.made.insert(piece, made);
        Ok(())
    }
}
