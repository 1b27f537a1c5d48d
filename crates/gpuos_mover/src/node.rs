//! One node of a job: what comes in, what is done for it, and what goes out.
//!
//! After its start a node waits for the leader's plan, makes its parts of what is restored again, and goes on when all nodes have
//! theirs. From then on the effects of [`commit::step`](gpuos_checkpoint::commit::step) are carried out here. The digests of all
//! manifests, which belong to the record of a commit, are not written: the leader gathers them at each restart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpuos_checkpoint::commit::{Commit, Effect, Input, step};
use gpuos_checkpoint::ids::{CheckpointId, Digest, LEADER, NodeIndex};
use gpuos_store::disk::Disk;
use gpuos_store::error::Result as Stored;
use gpuos_store::job::JobStore;
use gpuos_store::restore::{Target, restore};
use gpuos_store::room::Room;
use gpuos_store::store::Store;

use crate::inventory;
use crate::local::{Local, digest};
use crate::message::{Body, Message, Plan, Question, Refused, Report, short};
use crate::output::Output;
use crate::part::Making;
use crate::rebuild::{Repair, keep_copy};
use crate::restart::Restart;
use crate::serve;
use crate::settings::Settings;

mod resume;

/// So many dropped attempts are remembered: a late manifest of a neighbour is not kept for one of them.
const DROPPED: usize = 64;

/// What the leader of a restart says is said again after so many milliseconds, then after twice that, up to the patience of all questions.
const FIRST_MS: u64 = 100;

/// How far the restart is on this node.
enum Phase {
    /// The leader has not said how to go on.
    Waiting,
    /// The parts that the plan needs are being made again.
    Repairing(Plan),
    /// They are there, or cannot be had: the leader has to know.
    Repaired(Plan, Option<String>),
    /// All nodes have theirs, and the checkpoint is the current one here.
    Running(Plan),
}

/// A node in one run of its job.
pub struct Node<'a, D: Disk> {
    local: Local<'a, D>,
    commit: Commit,
    phase: Phase,
    /// On node 0.
    restart: Option<Restart>,
    report: Option<Report>,
    repair: Option<Repair<'a, D>>,
    /// A repair that the caller asked for.
    wanted: Option<CheckpointId>,
    making: Option<Making<'a, D>>,
    /// A folder whose files are finished, for the checkpoint of that number, and the time.
    offered: Option<(u32, Result<D::Folder, String>, u64)>,
    dropped: VecDeque<CheckpointId>,
    /// Dropped parts that are not removed yet: a removal sweeps away all that has no manifest, so also a part that is being made.
    doomed: Vec<CheckpointId>,
    /// A checkpoint was committed: older ones may go.
    committed: bool,
    /// When what the leader of a restart says is said again to those that have not answered.
    again: u64,
    /// How often it was said.
    asked: u32,
}

impl<'a, D: Disk> Node<'a, D> {
    /// A node that has just started. `store` keeps its checkpoints, `files` is the disk of the program's folders, `now` the time in
    /// milliseconds of a clock that does not jump back.
    ///
    /// # Errors
    /// A sentence: the settings contradict each other, or the store has no place for the job.
    pub fn new(
        store: &'a Store<D>,
        files: &'a D,
        settings: Settings,
        now: u64,
    ) -> Result<Node<'a, D>, String> {
        let job = store.job(&settings.job, settings.uid);
        Node::with(
            job.map_err(|error| error.to_string())?,
            files,
            settings,
            now,
        )
    }

    /// The same with its parts in this place: a node may host those of others.
    ///
    /// # Errors
    /// The settings contradict each other.
    pub fn with(
        job: JobStore<'a, D>,
        files: &'a D,
        settings: Settings,
        now: u64,
    ) -> Result<Node<'a, D>, String> {
        let (set, place) = settings.place()?;
        let geometry = set.geometry();
        let geometry =
            geometry.ok_or("a set's numbers contradict each other; arrange the sets again")?;
        let (own, nodes) = (settings.own, settings.nodes);
        Ok(Node {
            commit: Commit::new(own, nodes, settings.run, settings.commit, now),
            phase: Phase::Waiting,
            restart: (own == LEADER).then(|| Restart::new(&settings)),
            report: None,
            repair: None,
            wanted: None,
            making: None,
            offered: None,
            dropped: VecDeque::new(),
            doomed: Vec::new(),
            committed: false,
            again: now,
            asked: 0,
            local: Local {
                settings,
                job,
                files,
                set,
                place,
                geometry,
                now,
                out: Vec::new(),
                bad: BTreeSet::new(),
                base: None,
                keeping: None,
                lengths: BTreeMap::new(),
            },
        })
    }

    /// The program has finished its files for the checkpoint of a number, and leaves them alone until
    /// [`Output::FolderRead`]. `time` is that of the checkpoint, in seconds since 1970.
    pub fn offer(&mut self, number: u32, folder: D::Folder, time: u64, now: u64) -> Vec<Output> {
        self.at(now);
        self.offered = Some((number, Ok(folder), time));
        self.take_folder();
        self.outputs()
    }

    /// The program's files for the checkpoint of a number cannot be had: it fails as soon as it is begun, with this sentence.
    pub fn cannot_offer(&mut self, number: u32, why: String, now: u64) -> Vec<Output> {
        self.at(now);
        self.offered = Some((number, Err(short(why)), 0));
        self.take_folder();
        self.outputs()
    }

    /// How much the next parts may add to the store.
    pub fn set_room(&mut self, room: Room) {
        self.local.settings.limits.room = room;
    }

    /// Leader: begins a checkpoint. The attempt was drawn at random; the number is above [`Ready::highest`](crate::output::Ready::highest) and all begun since.
    pub fn begin(&mut self, id: CheckpointId, now: u64) -> Vec<Output> {
        self.at(now);
        match &self.phase {
            Phase::Running(plan) if id.number <= plan.highest => {
                let why = format!(
                    "there is something of checkpoint {}; take a higher number",
                    plan.highest
                );
                self.local.out.push(Output::RefusedBegin { id, why });
            }
            _ => self.run(Input::Begin { id }),
        }
        self.outputs()
    }

    /// A message came, of a node for which its carrier vouches.
    ///
    /// # Errors
    /// It is not listened to; nothing has changed.
    pub fn receive(
        &mut self,
        from: NodeIndex,
        bytes: &[u8],
        now: u64,
    ) -> Result<Vec<Output>, Refused> {
        self.at(now);
        let message = Message::decode(bytes)?;
        let own = self.local.own();
        let addressed = message.from == from && message.to == own && from != own;
        if !addressed || from.0 >= self.local.settings.nodes {
            return Err(Refused(format!(
                "node {from} sent a message of node {} to node {}; it is not listened to: look who sends it",
                message.from, message.to
            )));
        }
        if message.run != self.local.settings.run {
            return Err(Refused(format!(
                "node {from} sent a message of run {} of the job, this is run {}; it is late, or restart the node",
                message.run, self.local.settings.run
            )));
        }
        // Before anything is done for it, and after what is cheaper to tell.
        self.allowed(from, &message.body)?;
        self.take(from, message.body);
        Ok(self.outputs())
    }

    /// Time went by; several times a second.
    pub fn tick(&mut self, now: u64) -> Vec<Output> {
        self.at(now);
        let now = self.local.now;
        self.run(Input::Tick { now });
        if let Some(making) = &mut self.making {
            let ended = making.tick(&mut self.local);
            self.made(ended);
        }
        if let Some(repair) = &mut self.repair {
            let ended = repair.tick(&mut self.local);
            self.repaired(ended);
        }
        if now >= self.again {
            // Links come up in these moments, and all ranks wait.
            let wait = FIRST_MS << self.asked.min(16);
            self.asked = self.asked.saturating_add(1);
            self.again = self.local.again().min(now.saturating_add(wait));
            let open = self.restart.as_ref().map(Restart::open);
            self.deliver(open.unwrap_or_default());
        }
        self.outputs()
    }

    /// Makes this node's part of a checkpoint again, as far as it is lost or damaged. The job's restart does so by itself.
    pub fn rebuild(&mut self, id: CheckpointId, now: u64) -> Vec<Output> {
        self.at(now);
        if self.repair.is_some() || !matches!(self.phase, Phase::Running(_)) {
            let failed =
                Some("the node is at another repair; ask again when that has ended".into());
            self.local.out.push(Output::Rebuilt { id, failed });
            return self.outputs();
        }
        // What does not hold is not given to others meanwhile.
        if let Err(error) = inventory::report(&mut self.local) {
            self.local.note(error.to_string());
        }
        self.wanted = Some(id);
        self.begin_repair(&[id]);
        self.outputs()
    }

    /// Writes the files of this node's part of a checkpoint to a new folder of that name.
    ///
    /// # Errors
    /// The part is not here or does not verify, the name is taken, or a disk fails.
    pub fn restore(
        &self,
        id: CheckpointId,
        folder: &D::Folder,
        name: &[u8],
        owner: Option<(u32, u32)>,
    ) -> Stored<()> {
        let manifest = self.local.job.manifest(id)?;
        let target = Target {
            disk: self.local.files,
            folder,
            name,
            owner,
        };
        restore(&self.local.job, &manifest, &target)
    }

    fn at(&mut self, now: u64) {
        self.local.now = self.local.now.max(now);
    }

    fn outputs(&mut self) -> Vec<Output> {
        self.remove_old();
        std::mem::take(&mut self.local.out)
    }

    /// Whether this node may say that.
    fn allowed(&self, from: NodeIndex, body: &Body) -> Result<(), Refused> {
        let own = self.local.own();
        let (may, what) = match body {
            Body::Commit(_) => (true, ""),
            Body::Copy { .. } => (
                self.local.kept().contains(&from),
                "has its manifest kept by other nodes",
            ),
            Body::LengthAsk { .. }
            | Body::Length { .. }
            | Body::CopyKept { .. }
            | Body::ManifestAsk { .. }
            | Body::Manifest { .. }
            | Body::Ask(_)
            | Body::Piece { .. }
            | Body::Refuse { .. } => (self.local.is_member(from), "is of another set"),
            Body::InventoryAsk | Body::Plan(_) | Body::Settle { .. } => {
                (from == LEADER, "does not lead the job")
            }
            Body::Inventory(_) | Body::Repaired { .. } | Body::Settled { .. } => {
                (own == LEADER, "takes this node for the leader")
            }
        };
        if may {
            return Ok(());
        }
        Err(Refused(format!(
            "node {from} {what}, and its message is not for node {own}; look at the list of the job's nodes there"
        )))
    }

    fn take(&mut self, from: NodeIndex, body: Body) {
        let local = &mut self.local;
        match body {
            Body::Commit(message) => self.run(Input::Received(message)),
            Body::LengthAsk { id } => {
                let own = local.own();
                let known = local.lengths.get(&id).and_then(|known| known.get(&own));
                if let Some(length) = known.copied() {
                    local.say(from, Body::Length { id, length });
                }
            }
            Body::Length { id, length } => {
                local.learn_length(id, from, length);
                if let Some(making) = &mut self.making {
                    let ended = making.go_on(local);
                    self.made(ended);
                }
            }
            Body::Copy { id, bytes } => self.copy(from, id, &bytes.0),
            Body::CopyKept { id, digest } => {
                if let Some(making) = self.making.as_mut().filter(|making| making.id == id) {
                    let ended = making.kept(local, from, digest);
                    self.made(ended);
                }
            }
            Body::ManifestAsk { id, node } => serve::manifest(local, from, id, node),
            Body::Manifest { id, node, bytes } => {
                if let Some(repair) = &mut self.repair {
                    let bytes = bytes.map(|bytes| bytes.0);
                    let ended = repair.manifest(local, from, id, node, bytes);
                    self.repaired(ended);
                }
            }
            Body::Ask(question) => serve::piece(local, from, question),
            Body::Piece { question, bytes } => self.answer(from, &question, Ok(bytes.0)),
            Body::Refuse { question, damaged } => self.answer(from, &question, Err(damaged)),
            Body::InventoryAsk => self.inventory(from),
            Body::Inventory(report) => {
                let said = self
                    .restart
                    .as_mut()
                    .map(|restart| restart.report(from, report));
                self.deliver(said.unwrap_or_default());
            }
            Body::Plan(plan) => self.plan(plan),
            Body::Repaired { round, failed } => {
                let restart = self.restart.as_mut();
                let said = restart.map(|restart| restart.repaired(from, round, failed));
                self.deliver(said.unwrap_or_default());
            }
            Body::Settle { round } => self.settle(round),
            Body::Settled { round } => {
                if let Some(restart) = &mut self.restart {
                    restart.settled(from, round);
                }
            }
        }
    }

    /// Says it to other nodes, or does it here.
    fn deliver(&mut self, said: Vec<(NodeIndex, Body)>) {
        let own = self.local.own();
        for (to, body) in said {
            match to == own {
                true => self.take(own, body),
                false => self.local.say(to, body),
            }
        }
    }

    fn answer(&mut self, from: NodeIndex, question: &Question, answer: Result<Vec<u8>, bool>) {
        // A part and a repair of the same checkpoint are never made at the same time.
        if let Some(making) = self
            .making
            .as_mut()
            .filter(|making| making.id == question.id)
        {
            let ended = making.answer(&mut self.local, from, question, answer);
            self.made(ended);
        } else if let Some(repair) = &mut self.repair {
            let ended = repair.answer(&mut self.local, from, question, answer);
            self.repaired(ended);
        }
    }

    fn copy(&mut self, from: NodeIndex, id: CheckpointId, bytes: &[u8]) {
        // Nobody waits for the answer, and a folder with nothing but a copy would stay until the next commit.
        if self.dropped.contains(&id) {
            return;
        }
        match keep_copy(&self.local, id, from, bytes) {
            Ok(()) => {
                let digest = digest(bytes);
                self.local.say(from, Body::CopyKept { id, digest });
            }
            Err(why) => self.local.note(why),
        }
    }

    /// Takes what happened to the commit, and does what follows.
    fn run(&mut self, input: Input) {
        let mut effects: VecDeque<Effect> = step(&mut self.commit, input).into();
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Send(message) => self.local.say(message.to, Body::Commit(message)),
                Effect::MakePart { id } => {
                    self.making = Some(Making::new(&self.local, id));
                    self.take_folder();
                }
                Effect::MakeCommitDurable { id, .. } => {
                    let next = match self.local.job.commit(id) {
                        Ok(()) => {
                            self.local.base = Some(id);
                            self.committed = true;
                            Input::CommitDurable { id }
                        }
                        Err(error) => Input::CommitFailed {
                            id,
                            why: error.to_string(),
                        },
                    };
                    effects.extend(step(&mut self.commit, next));
                }
                Effect::StopPart { id } => {
                    self.making.take_if(|making| making.id == id);
                }
                Effect::DropPart { id } => self.drop_part(id),
                Effect::TellProgram { id, outcome } => {
                    self.local.out.push(Output::Ended { id, outcome })
                }
                Effect::RefuseBegin { id, why } => {
                    self.local.out.push(Output::RefusedBegin { id, why })
                }
                Effect::Missing { id, node, why } => self.local.note(format!(
                    "node {node} lacks its part of checkpoint {id}: {why}; have it rebuilt there"
                )),
            }
        }
    }

    fn drop_part(&mut self, id: CheckpointId) {
        self.making.take_if(|making| making.id == id);
        self.dropped.push_back(id);
        self.dropped
            .drain(..self.dropped.len().saturating_sub(DROPPED));
        self.doomed.push(id);
    }

    fn remove_old(&mut self) {
        if self.making.is_some() || self.repair.is_some() {
            return;
        }
        let committed = std::mem::take(&mut self.committed);
        if let Some(keeping) = self.local.keeping.as_ref().filter(|_| committed) {
            match self.local.job.list() {
                Ok(held) => {
                    let job = &self.local.job;
                    let gone = keeping.removable(&held, |id| job.is_read(id));
                    self.doomed.extend(gone);
                }
                // The next commit looks again.
                Err(error) => self.local.note(error.to_string()),
            }
        }
        for id in std::mem::take(&mut self.doomed) {
            // What cannot be removed now is found at the next start, and is dropped once more then.
            if let Err(error) = self.local.job.remove(id) {
                self.local.note(error.to_string());
            }
            self.run(Input::Removed { id });
        }
    }

    /// Has the files read, if the program has finished those that the part needs.
    fn take_folder(&mut self) {
        let (Some(making), Some((number, ..))) = (&mut self.making, &self.offered) else {
            return;
        };
        if *number != making.id.number {
            return;
        }
        if let Some((_, folder, time)) = self.offered.take() {
            let ended = match folder {
                Ok(folder) => making.folder(&mut self.local, &folder, time),
                Err(why) => Some(Err(why)),
            };
            self.made(ended);
        }
    }

    fn made(&mut self, ended: Option<Result<Digest, String>>) {
        let Some(ended) = ended else { return };
        // Taken before the commit hears of it, which may begin another one at once.
        let Some(id) = self.making.take().map(|making| making.id) else {
            return;
        };
        self.run(match ended {
            Ok(digest) => Input::StoreReady { id, digest },
            Err(why) => Input::StoreFailed { id, why },
        });
    }
}
