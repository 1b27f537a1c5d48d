//! The node that holds parts, and gives them to movers of nodes that a job of the same user has now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_core::job::JobId;
use gpuos_link::tcp::Link;
use gpuos_mover::donors::HeldPart;
use gpuos_mover::hosting::claimed;
use gpuos_mover::message::Bytes;
use gpuos_mover::roster::Claim;
use gpuos_store::choice;
use gpuos_store::disk::Disk;
use gpuos_store::error::Result as Stored;
use gpuos_store::inventory::{Held, Part};
use gpuos_store::job::JobStore;
use gpuos_store::shard::ShardReader;
use gpuos_store::source::{LocalSource, Source};
use gpuos_store::store::Store;
use gpuos_workload::WorkloadManager;

use super::words::{Answer, Ask, Holding, Shard};

/// Links that are served at a time: each may have the disk read. Own choice.
const MOST: usize = 16;
/// How long an answer waits until the other side takes it.
const PATIENCE: Duration = Duration::from_secs(60);
/// To what is none of the questions.
const NO_QUESTION: &str =
    "the question is not understood: have the same release of gpuos on all nodes";
/// Stack of a thread that serves.
const STACK: usize = 1 << 20;

/// A job, if there is something of it, and what that is.
type Opened<D> = (Option<JobStore<'static, D>>, Holding);

/// Gives parts of the jobs in a store.
pub struct Giver<D: Disk + 'static> {
    store: &'static Store<D>,
    manager: Arc<dyn WorkloadManager>,
    serving: AtomicUsize,
}

impl<D: Disk> Giver<D>
where
    Store<D>: Sync,
{
    /// Of this store; `manager` says whose jobs are where.
    pub fn new(store: &'static Store<D>, manager: Arc<dyn WorkloadManager>) -> Giver<D> {
        Giver {
            store,
            manager,
            serving: AtomicUsize::new(0),
        }
    }

    /// Serves a link in a thread, until the other side has all or nothing more is said.
    pub fn take(self: &Arc<Giver<D>>, link: Link) {
        let giver = self.clone();
        let run = move || {
            let busy = giver.serving.fetch_add(1, Ordering::SeqCst) >= MOST;
            giver.serve(link, busy);
            giver.serving.fetch_sub(1, Ordering::SeqCst);
        };
        let thread = thread::Builder::new().name("give".into()).stack_size(STACK);
        // Without a thread the link ends, and the other side goes on without this node.
        let _ = thread.spawn(run);
    }

    fn serve(&self, mut link: Link, busy: bool) {
        let Ok(Some(bytes)) = link.receiver.recv() else {
            return;
        };
        let (store, answer) = match Ask::decode(&bytes) {
            _ if busy => {
                let why = "gpuos_mover gives parts to many others just now";
                (None, Answer::No(why.into()))
            }
            Some(Ask::Open {
                of,
                wanted_by,
                node,
            }) => match self.open(&of, &wanted_by, &node) {
                Ok((store, holding)) => (store, Answer::Holds(holding)),
                Err(why) => {
                    tracing::warn!(
                        "parts of job {of} are not given to node {node} for job {wanted_by}: {why}"
                    );
                    (None, Answer::No(why))
                }
            },
            _ => (None, Answer::No(NO_QUESTION.into())),
        };
        if say(&link, &answer)
            && let Some(store) = store
        {
            give_all(&store, &mut link);
        }
        // What was said is to arrive before the link ends.
        let _ = link.sender.close(PATIENCE);
        while let Ok(Some(_)) = link.receiver.recv() {}
    }

    /// Looks whether parts of a job may go to a node, and what there is.
    fn open(&self, of: &JobId, wanted_by: &JobId, node: &str) -> Result<Opened<D>, String> {
        let record = match self.manager.job_anywhere(wanted_by) {
            Ok(record) => record.ok_or(format!("the workload manager knows no job {wanted_by}"))?,
            Err(outcome) => {
                return Err(format!(
                    "the workload manager does not tell of job {wanted_by}: {}",
                    outcome.words()
                ));
            }
        };
        let runs = record.is_running() && record.nodes.iter().any(|name| name == node);
        if !runs {
            return Err(format!("job {wanted_by} does not run on node {node}"));
        }
        let Ok(store) = self.store.existing(of) else {
            return Ok((None, Holding::default()));
        };
        if store.uid() != record.uid {
            return Err(format!(
                "job {of} is user {}'s, and job {wanted_by} is user {}'s",
                store.uid(),
                record.uid
            ));
        }
        let holding = holding(&store).map_err(|error| error.to_string())?;
        Ok((Some(store), holding))
    }
}

/// What the user of a job has chosen for a run, as far as that can be read.
pub fn chosen<D: Disk>(store: &JobStore<'_, D>) -> Option<(u32, u32)> {
    let chosen = choice::chosen(store).ok().flatten();
    chosen.map(|chosen| (chosen.run, chosen.number))
}

/// What a store has of a job.
///
/// # Errors
/// It cannot be read.
pub fn holding<D: Disk>(store: &JobStore<'_, D>) -> Stored<Holding> {
    let mut claims = claimed(store)?.into_iter();
    let mut holding = Holding {
        claim: claims.next(),
        others: claims.map(|claim| (claim, Vec::new())).collect(),
        chosen: chosen(store),
        ..Holding::default()
    };
    if holding.claim.is_none() {
        return Ok(holding);
    }
    for held in store.list()? {
        let (chunk, needs) = described(store, &held);
        if let Part::Prepared(summary) = &held.part {
            let is_of = |claim: &Claim| (claim.index, claim.nodes) == (summary.node, summary.nodes);
            let other = holding.others.iter_mut().find(|(claim, _)| is_of(claim));
            let parts = match other {
                Some((_, parts)) => Some(parts),
                None if holding.claim.as_ref().is_some_and(is_of) => Some(&mut holding.parts),
                None => None,
            };
            if let Some(parts) = parts {
                parts.push(HeldPart {
                    id: held.id,
                    committed: held.committed,
                    needs,
                });
            }
        }
        let copies = held.copies.iter().map(|node| (held.id, node.0));
        holding.copies.extend(copies);
        // Without a manifest of the set nobody knows how long they are.
        let shards = chunk.into_iter().flat_map(|length| {
            let id = held.id;
            held.shards.iter().map(move |at| Shard {
                id,
                at: *at,
                length,
            })
        });
        holding.shards.extend(shards);
    }
    Ok(holding)
}

/// The length of the set's chunks, and in which earlier segments files lie, by all manifests that are here.
fn described<D: Disk>(store: &JobStore<'_, D>, held: &Held) -> (Option<u64>, Vec<CheckpointId>) {
    let own = store.manifest(held.id).ok();
    let copies = held.copies.iter();
    let copies = copies.filter_map(|node| store.copy(held.id, *node).ok());
    let all: Vec<_> = own.into_iter().chain(copies).collect();
    let chunk = all.first().map(|manifest| manifest.set.chunk);
    let segments = all.iter().flat_map(|manifest| &manifest.segments);
    let needs: BTreeSet<CheckpointId> = segments.map(|segment| segment.id).collect();
    let needs = needs.into_iter().filter(|id| *id != held.id).collect();
    (chunk, needs)
}

/// Answers questions about one job, until nothing more is asked. Segments are kept open from the first question about them: the job may run,
/// and remove what a newer checkpoint makes needless.
fn give_all<D: Disk>(store: &JobStore<'_, D>, link: &mut Link) {
    let mut source = LocalSource::new(store);
    while let Ok(Some(bytes)) = link.receiver.recv() {
        let answer = match Ask::decode(&bytes).map(|ask| give(store, &mut source, &ask)) {
            Some(Ok(bytes)) => Answer::Bytes(Bytes(bytes)),
            Some(Err(error)) => Answer::No(error.to_string()),
            None => Answer::No(NO_QUESTION.into()),
        };
        if !say(link, &answer) {
            return;
        }
    }
}

fn say(link: &Link, answer: &Answer) -> bool {
    let too_long = || Answer::No("it is longer than a message can be".into()).encode();
    let bytes = answer.encode().or_else(too_long);
    bytes.is_some_and(|bytes| link.sender.send(bytes, PATIENCE).is_ok())
}

/// What a question asks for.
fn give<D: Disk>(
    store: &JobStore<'_, D>,
    source: &mut LocalSource<'_, D>,
    ask: &Ask,
) -> Stored<Vec<u8>> {
    match ask {
        Ask::Manifest { id, of } => store.manifest_bytes(*id, of.map(NodeIndex)),
        Ask::Segment { id, offset, length } => {
            let mut bytes = vec![0; *length as usize];
            source.read(*id, *offset, &mut bytes)?;
            Ok(bytes)
        }
        Ask::Shard { shard, piece } => {
            let (stripe, place) = shard.at;
            ShardReader::open(store, shard.id, stripe, place, shard.length)?.sealed(*piece)
        }
        Ask::Open { .. } => Ok(Vec::new()),
    }
}
