//! The node that wants parts.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::manifest::Segment;
use gpuos_core::job::JobId;
use gpuos_link::tcp::Sender;
use gpuos_mover::donors::Taking;
use gpuos_store::disk::Disk;
use gpuos_store::error::{Error, Kind, Result as Stored};
use gpuos_store::job::JobStore;
use gpuos_store::shard::{PIECE as SHARD_PIECE, ShardReader, ShardWriter};
use gpuos_store::source::Source;
use gpuos_store::transfer::{PartSource, Trust, take_part};

use super::words::{Answer, Ask, Holding, Shard};
use crate::carried::{PIECE, place};
use crate::network::Network;
use crate::not_reached::{Hope, NotReached};

/// How long an answer is waited for. The other side may have to ask its workload manager, and to read a disk.
const PATIENCE: Duration = Duration::from_secs(30);
/// Stack of a thread that receives.
const STACK: usize = 512 << 10;

/// A link to a node that may hold parts.
pub struct Client {
    node: String,
    sender: Sender,
    answers: Receiver<Result<Vec<u8>, String>>,
}

/// For which job something is wanted, and by which node.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The job whose checkpoints they are.
    pub of: JobId,
    /// The job that is to go on from them.
    pub by: JobId,
    /// Slurm's name of this node.
    pub node: String,
}

impl Client {
    /// Asks a node what it holds; `limit` is for the connection to come about.
    ///
    /// # Errors
    /// It is not reached, or does not tell.
    pub fn open(
        network: &Network,
        (node, limit): (&str, Duration),
        wanted: &Wanted,
    ) -> Result<(Client, Holding), NotReached> {
        let link = network.reach_within(limit, node, place(1), NodeIndex(0))?;
        let (to, answers) = channel();
        let mut receiver = link.receiver;
        let receive = move || {
            loop {
                let received = match receiver.recv() {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => Err("it has ended the connection".to_string()),
                    Err(error) => Err(error.to_string()),
                };
                let over = received.is_err();
                if to.send(received).is_err() || over {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("parts".into());
        let thread = thread.stack_size(STACK).spawn(receive);
        thread.map_err(|error| {
            NotReached::turned_away(format!("no thread can be started: {error}"))
        })?;
        let client = Client {
            node: node.into(),
            sender: link.sender,
            answers,
        };
        let answer = client.ask(&Ask::Open {
            of: wanted.of.clone(),
            wanted_by: wanted.by.clone(),
            node: wanted.node.clone(),
        });
        let slow = |why| NotReached {
            why,
            hope: Hope::Slow,
        };
        match answer.map_err(slow)? {
            Answer::Holds(holding) => Ok((client, holding)),
            Answer::No(why) => Err(NotReached::turned_away(format!(
                "the mover of node {node}: {why}"
            ))),
            Answer::Bytes(_) => Err(NotReached::turned_away(client.broken())),
        }
    }

    fn broken(&self) -> String {
        format!(
            "what the mover of node {} answers is no answer: have the same release of gpuos on all nodes",
            self.node
        )
    }

    fn ask(&self, ask: &Ask) -> Result<Answer, String> {
        let node = &self.node;
        let bytes = ask.encode().ok_or_else(|| self.broken())?;
        let sent = self.sender.send(bytes, PATIENCE);
        sent.map_err(|_| format!("the mover of node {node} has gone, or takes nothing"))?;
        match self.answers.recv_timeout(PATIENCE) {
            Ok(Ok(bytes)) => Answer::decode(&bytes).ok_or_else(|| self.broken()),
            Ok(Err(why)) => Err(format!("the mover of node {node}: {why}")),
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "the mover of node {node} does not answer within {} s",
                PATIENCE.as_secs()
            )),
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("the mover of node {node} has gone"))
            }
        }
    }

    fn bytes(&self, ask: &Ask, tried: impl Fn() -> String) -> Stored<Vec<u8>> {
        let failed = |kind, why: String| {
            let next = "see the log of gpuos_mover on that node";
            Err(Error::new(kind, tried(), why, next))
        };
        match self.ask(ask) {
            Ok(Answer::Bytes(bytes)) => Ok(bytes.0),
            Ok(Answer::No(why)) => failed(Kind::Missing, format!("node {}: {why}", self.node)),
            Ok(Answer::Holds(_)) => failed(Kind::Disk, self.broken()),
            Err(why) => failed(Kind::Disk, why),
        }
    }
}

impl Source for Client {
    fn read(&mut self, id: CheckpointId, offset: u64, buffer: &mut [u8]) -> Stored<()> {
        let mut at = offset;
        for part in buffer.chunks_mut(PIECE as usize) {
            let length = part.len() as u32;
            let ask = Ask::Segment {
                id,
                offset: at,
                length,
            };
            let bytes = self.bytes(&ask, || format!("fetch the segment of checkpoint {id}"))?;
            // Whatever came instead does not hold against its digest.
            let known = bytes.len().min(part.len());
            part[..known].copy_from_slice(&bytes[..known]);
            part[known..].fill(0);
            at += u64::from(length);
        }
        Ok(())
    }
}

impl PartSource for Client {
    fn manifest(&mut self, id: CheckpointId) -> Stored<Vec<u8>> {
        let ask = Ask::Manifest { id, of: None };
        self.bytes(&ask, || format!("fetch the manifest of checkpoint {id}"))
    }

    fn has(&mut self, segment: &Segment) -> Stored<()> {
        let id = segment.id;
        let ask = Ask::Segment {
            id,
            offset: 0,
            length: 0,
        };
        let there = self.bytes(&ask, || format!("fetch the segment of checkpoint {id}"));
        there.map(|_| ())
    }
}

/// Takes the part of node `index`, as far as it is there. Gives the bytes of segments that came.
///
/// # Errors
/// Nothing of it came that counts. What was there before counts afterwards.
pub fn take<D: Disk>(
    client: &mut Client,
    holding: &Holding,
    taking: &Taking,
    (to, index): (&JobStore<'_, D>, NodeIndex),
    pace: &mut dyn FnMut(u64) -> Stored<()>,
) -> Result<u64, String> {
    let has = |id: &CheckpointId| holding.all_parts().any(|part| part.id == *id);
    let mut bytes = 0;
    let mut failed = Vec::new();
    let mut came = false;
    for id in taking.ids.iter().filter(|id| has(id)) {
        match take_part(client, to, (*id, index), Trust::Content, pace) {
            Ok(more) => {
                bytes += more;
                came = true;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if !came {
        return Err(match failed.is_empty() {
            true => format!("node {} has nothing of what is wanted", client.node),
            false => failed.join("; "),
        });
    }
    if let Some(needs) = &taking.whole {
        // What is for other nodes' parts. Where something of it does not come, their repair finds out.
        let wanted: BTreeSet<CheckpointId> = needs.iter().chain(&taking.ids).copied().collect();
        for id in needs.iter().filter(|id| has(id)) {
            bytes += take_part(client, to, (*id, index), Trust::Content, pace).unwrap_or(0);
        }
        for (id, node) in &holding.copies {
            if wanted.contains(id) {
                let _ = take_copy(client, to, *id, *node);
            }
        }
        for shard in holding.shards.iter().filter(|it| wanted.contains(&it.id)) {
            let _ = take_shard(client, to, shard, pace);
        }
    }
    Ok(bytes)
}

fn take_copy<D: Disk>(
    client: &Client,
    to: &JobStore<'_, D>,
    id: CheckpointId,
    node: u16,
) -> Stored<()> {
    if to.copy(id, NodeIndex(node)).is_ok() {
        return Ok(());
    }
    let ask = Ask::Manifest { id, of: Some(node) };
    let bytes = client.bytes(&ask, || format!("fetch a manifest of checkpoint {id}"))?;
    to.put_copy(id, &bytes).map(|_| ())
}

fn take_shard<D: Disk>(
    client: &Client,
    to: &JobStore<'_, D>,
    shard: &Shard,
    pace: &mut dyn FnMut(u64) -> Stored<()>,
) -> Stored<()> {
    let (id, (stripe, place)) = (shard.id, shard.at);
    if ShardReader::open(to, id, stripe, place, shard.length).is_ok() {
        return Ok(());
    }
    let mut writer = ShardWriter::create(to, id, stripe, place, shard.length)?;
    for piece in 0..shard.length.div_ceil(SHARD_PIECE as u64) {
        pace(SHARD_PIECE as u64)?;
        let ask = Ask::Shard {
            shard: *shard,
            piece,
        };
        let bytes = client.bytes(&ask, || format!("fetch parity of checkpoint {id}"))?;
        writer.sealed(&bytes)?;
    }
    writer.finish()
}
