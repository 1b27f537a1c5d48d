//! A job whose movers have found each other: the loop of the node and the conductor, and what they want done.

mod giving;

use std::collections::{BTreeSet, VecDeque};
use std::thread::JoinHandle;

use gpuos_checkpoint::commit::Outcome;
use gpuos_checkpoint::ids::{CheckpointId, LEADER, NodeIndex};
use gpuos_checkpoint::manifest::ranks;
use gpuos_checkpoint::refusal::Refusal;
use gpuos_config::options::Restart;
use gpuos_core::job::JobId;
use gpuos_core::wire::MEMORY_FOLDER;
use gpuos_mover::message::Bytes;
use gpuos_mover::node::Node;
use gpuos_mover::output::{Output, Ready};
use gpuos_mover::program::{self, Conductor, Input, Join, Reason, Start, Word};
use gpuos_mover::roster::Roster;
use gpuos_store::disk::LinuxDisk;
use gpuos_store::job::JobStore;
use gpuos_store::store::Store;

use super::asking::Asks;
use super::back::goes_on;
use super::donors::{heed, suffices};
use super::elastic::take_base;
use super::links::Links;
use super::other::{Next, next};
use super::quota::Quota;
use super::restoring::Restorer;
use super::unwritten::{Tell, Unwritten};
use crate::carried::{Body, JobRoster, Other};
use crate::clock::{millis, seconds};
use crate::folder::JobFolder;

/// Node and conductor in one session of a run.
pub struct Running {
    node: Node<'static, LinuxDisk>,
    conductor: Conductor,
    /// Who sits where.
    pub roster: JobRoster,
    /// The seats to which this node needs a link.
    pub needs: Vec<u16>,
    /// This node's place in checkpoints.
    pub own: NodeIndex,
    parts: JobStore<'static, LinuxDisk>,
    /// The checkpoint of another job, or of another number of nodes, from which this one begins, and the parts of it that are here.
    base: Option<(CheckpointId, Parts)>,
    /// What the program could not load of that other job's.
    passed: Vec<(CheckpointId, Refusal)>,
    /// Where parts of other nodes are hosted, until so many checkpoints more are committed.
    guests: Option<(&'static Store<LinuxDisk>, u32)>,
    job: JobId,
    /// From what the job wants to begin.
    restart: Restart,
    restorer: Restorer,
    quota: Option<Quota>,
    asks: Asks,
    unwritten: Unwritten,
    /// Checkpoints of which this node had its part when it began.
    had: BTreeSet<CheckpointId>,
    /// It has made its part of what the run goes on from again.
    pub made_again: bool,
    /// When what the run goes on from was whole, in milliseconds since 1970.
    pub whole_at: u64,
    /// With what the run went on, once that is settled.
    pub ready: Option<Ready>,
    /// What programs could not load, as the nodes have it.
    pub refused: Vec<(CheckpointId, Refusal)>,
    /// A checkpoint could not be loaded, and is marked: the movers have to find each other anew. A sentence for the log.
    pub is_refused: Option<String>,
    /// It would go on with an older checkpoint than what there is elsewhere, and waits for another roster.
    pub held: Option<Held>,
    /// The newest checkpoint that exists on all nodes, and whether the run went on from it.
    pub newest: Option<(CheckpointId, bool)>,
    /// Who has joined here, and who of them has saved for the checkpoint that is made.
    joins: Vec<Join>,
    saved: BTreeSet<u16>,
    /// Sentences for the log.
    notes: Vec<String>,
}

/// Parts of a checkpoint, by the nodes that made them.
pub type Parts = Vec<(NodeIndex, JobStore<'static, LinuxDisk>)>;

/// So many checkpoints of its own a job has before what it hosts of others is removed: as many as are kept.
const HOSTED_FOR: u32 = 2;

/// Where something better is than what the nodes have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// With nodes that the job does not have.
    Outside,
    /// On the parallel file system.
    Drained,
    /// Another job has what the job is to begin from.
    Other(Other),
    /// This is there of the other job.
    Gathered(Ready),
    /// Another number of nodes has made something newer; this can be restored of the own.
    Elsewhere(Option<CheckpointId>),
}

/// What a call needs beside the state.
pub struct Around<'a> {
    /// Milliseconds.
    pub now: u64,
    /// Of this gathering.
    pub session: u32,
    /// The other nodes.
    pub links: &'a Links,
    /// The programs.
    pub folder: &'a JobFolder,
}

/// Something to be done.
enum Todo {
    Node(Output),
    Program(program::Output),
    Conduct(Input),
}

impl Running {
    /// From its parts, which belong to one session.
    pub fn new(
        node: Node<'static, LinuxDisk>,
        conductor: Conductor,
        (roster, own): (JobRoster, NodeIndex),
        parts: JobStore<'static, LinuxDisk>,
        restorer: Restorer,
    ) -> Running {
        Running {
            node,
            conductor,
            needs: needs(&roster.roster, own),
            roster,
            own,
            parts,
            base: None,
            passed: Vec::new(),
            guests: None,
            job: JobId::default(),
            restart: Restart::Auto,
            restorer,
            quota: None,
            asks: Asks::default(),
            unwritten: Unwritten::default(),
            had: BTreeSet::new(),
            made_again: false,
            whole_at: 0,
            ready: None,
            refused: Vec::new(),
            is_refused: None,
            held: None,
            newest: None,
            joins: Vec::new(),
            saved: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    /// Has parts limited by it from now on.
    pub fn limit_by(&mut self, quota: Quota) {
        self.quota = Some(quota);
    }

    /// Has its programs ask for a checkpoint no more often than at this pace, in milliseconds.
    pub fn ask_each(&mut self, pace_ms: u64) {
        self.asks.pace_ms = pace_ms;
    }

    /// What this node has its part of. What it goes on from else, it has made again.
    pub fn has(&mut self, had: BTreeSet<CheckpointId>) {
        self.had = had;
    }

    /// Who has joined here.
    pub fn joins(&self) -> &[Join] {
        &self.joins
    }

    /// The number and the time, in seconds since 1970, of the checkpoint from which the run goes on. `None`: there is none, or it is not whole yet.
    pub fn goes_on_from(&self) -> Option<(u32, u64)> {
        let id = self.ready.as_ref()?.restore?;
        let base = self.base.as_ref().filter(|base| base.0 == id);
        let parts = base.and_then(|base| base.1.first());
        let parts = parts.map_or(&self.parts, |(_, parts)| parts);
        Some((id.number, parts.manifest(id).ok()?.time))
    }

    /// From what the job wants to begin, the other job's checkpoint that is that, and those of that job that the program could not load.
    pub fn begin_from(
        &mut self,
        restart: Restart,
        base: Option<(CheckpointId, Parts)>,
        passed: Vec<(CheckpointId, Refusal)>,
    ) {
        self.restart = restart;
        self.base = base;
        self.passed = passed;
    }

    /// Which job it is, and where it hosts parts of other nodes.
    pub fn host_in(&mut self, store: &'static Store<LinuxDisk>, job: JobId) {
        self.guests = Some((store, HOSTED_FOR));
        self.job = job;
    }

    /// Another checkpoint of the job is committed.
    fn leave_guests(&mut self) {
        let Some((store, left)) = &mut self.guests else {
            return;
        };
        *left = left.saturating_sub(1);
        if *left == 0 {
            // What cannot be removed now goes in a later run.
            if let Err(error) = store.remove_guests(&self.parts) {
                self.notes.push(error.to_string());
            }
            self.guests = None;
        }
    }

    /// Looks how much the next part may add.
    fn make_room(&mut self) {
        match self.quota.as_ref().map(Quota::room) {
            Some(Ok(room)) => self.node.set_room(room),
            Some(Err(error)) => self.notes.push(error.to_string()),
            None => {}
        }
    }

    /// The conductor's view.
    pub fn conductor(&self) -> &Conductor {
        &self.conductor
    }

    /// Whether this node conducts.
    pub fn leads(&self) -> bool {
        self.own == LEADER
    }

    /// Ranks that have joined here.
    pub fn ranks(&self) -> impl Iterator<Item = u16> {
        self.joins.iter().map(|join| join.rank)
    }

    /// Those of them whose files are not complete.
    pub fn unsaved(&self) -> impl Iterator<Item = u16> {
        self.ranks().filter(|rank| !self.saved.contains(rank))
    }

    /// What the log is told, once.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// It is over with this session. The thread that restores may run on for a moment.
    pub fn end(self) -> JoinHandle<()> {
        self.restorer.end()
    }

    /// Who has joined here, and who was answered. Before anything else is done, and then again and again.
    pub fn look_at_folder(&mut self, around: &mut Around<'_>) {
        self.conduct(around, Input::Known(around.folder.known()));
        match around.folder.joins() {
            Ok(joins) => {
                self.joins.clone_from(&joins);
                self.conduct(around, Input::Refused(around.folder.refused()));
                self.conduct(around, Input::Gone(around.folder.gone(&joins)));
                self.conduct(around, Input::Any(around.folder.any()));
                self.conduct(around, Input::Joins(joins));
                if self.asks.look(around.now, around.folder.take_ask()) {
                    self.conduct(around, Input::Want(Reason::Asked));
                }
            }
            Err(error) => self
                .notes
                .push(format!("cannot look who has joined: {error}")),
        }
    }

    /// Time went by, and the folder was looked at.
    pub fn look(&mut self, around: &mut Around<'_>) {
        self.look_at_folder(around);
        if let Some(number) = self.conductor.view().making.map(|making| making.number) {
            match around.folder.saved(number) {
                Ok(ranks) => {
                    self.saved.clone_from(&ranks);
                    self.conduct(around, Input::Saved { number, ranks });
                }
                Err(error) => self
                    .notes
                    .push(format!("cannot look who has saved: {error}")),
            }
        }
        // That it fails was said.
        let _ = self.unwritten.again(around.folder);
        let outputs = self.node.tick(around.now);
        self.carry_out(around, outputs.into_iter().map(Todo::Node).collect());
        if self.own == LEADER {
            let others = needs(&self.roster.roster, self.own);
            let all = others.iter().all(|seat| around.links.is_open(*seat));
            self.conduct(around, Input::Reached(all));
        }
        self.conduct(around, Input::Tick);
    }

    /// Tells the programs something, now or when the disk takes it.
    pub fn tell(&mut self, around: &Around<'_>, tell: Tell) {
        let note = self.unwritten.tell(around.folder, tell);
        self.notes.extend(note);
    }

    /// Tells the conductor something.
    pub fn conduct(&mut self, around: &mut Around<'_>, input: Input) {
        self.carry_out(around, VecDeque::from([Todo::Conduct(input)]));
    }

    /// A message of another node came. Whatever is wrong with it is told to the log.
    pub fn came(&mut self, around: &mut Around<'_>, seat: u16, body: Body) {
        let Some(from) = self
            .roster
            .roster
            .index_of_seat
            .get(usize::from(seat))
            .copied()
        else {
            return;
        };
        match body {
            Body::Store(bytes) => match self.node.receive(from, &bytes.0, around.now) {
                Ok(outputs) => {
                    self.carry_out(around, outputs.into_iter().map(Todo::Node).collect());
                }
                Err(refused) => self.notes.push(refused.to_string()),
            },
            Body::Word(bytes) => match Word::decode(&bytes.0) {
                Ok(word) => self.conduct(around, Input::Received { from, word }),
                Err(refused) => self.notes.push(refused.to_string()),
            },
            Body::ManifestAsk { .. } | Body::SegmentAsk { .. } => self.asked(around, seat, &body),
            Body::Given { ticket, bytes } => {
                self.restorer.given(ticket, bytes.map(|bytes| bytes.0));
            }
            _ => {}
        }
    }

    fn carry_out(&mut self, around: &mut Around<'_>, mut todo: VecDeque<Todo>) {
        while let Some(next) = todo.pop_front() {
            match next {
                Todo::Node(output) => self.node_says(around, output, &mut todo),
                Todo::Program(output) => self.conductor_says(around, output, &mut todo),
                Todo::Conduct(input) => {
                    let outputs = self.conductor.step(around.now, input);
                    todo.extend(outputs.into_iter().map(Todo::Program));
                }
            }
        }
    }

    fn node_says(&mut self, around: &Around<'_>, output: Output, todo: &mut VecDeque<Todo>) {
        match output {
            Output::Send { to, bytes } => {
                if let Some(seat) = self.seat_of(to) {
                    let body = Body::Store(Bytes(bytes));
                    around.links.say(seat, around.session, body);
                }
            }
            Output::FolderRead { id } => todo.push_back(Todo::Conduct(Input::FolderRead { id })),
            Output::Ended { id, outcome } => {
                if outcome == Outcome::Committed {
                    self.newest = Some((id, false));
                    self.leave_guests();
                }
                todo.push_back(Todo::Conduct(Input::Ended { id, outcome }));
            }
            Output::RefusedBegin { id, why } => {
                todo.push_back(Todo::Conduct(Input::RefusedBegin { id, why }));
            }
            Output::Ready(mut ready) => {
                self.refused.clone_from(&ready.refused);
                take_base(&self.roster, &self.job, &mut ready);
                if !suffices(&self.roster.donors, &ready) {
                    self.held = Some(Held::Outside);
                    return;
                }
                if !goes_on(&self.roster.drained, &mut ready) {
                    self.held = Some(Held::Drained);
                    return;
                }
                heed(&self.roster.donors, &mut ready);
                self.made_again = ready.restore.is_some_and(|id| !self.had.contains(&id));
                // One that was left open was made in this run, too.
                let open = around.folder.left_open();
                let made = open.is_some() && open == ready.restore.map(|id| id.number);
                let has_saved = around.folder.has_committed() || made;
                self.held = match next(&self.roster, self.restart, has_saved, &mut ready) {
                    Next::GoOn => None,
                    Next::Gather(other) => Some(Held::Other(other)),
                    Next::Gathered(ready) => Some(Held::Gathered(ready)),
                    Next::Elsewhere(restore) => Some(Held::Elsewhere(restore)),
                };
                if self.held.is_some() {
                    return;
                }
                let restore = ready.restore;
                let own = restore.filter(|id| self.base.as_ref().is_none_or(|base| base.0 != *id));
                self.newest = own.map(|id| (id, true));
                self.ready = Some(ready.clone());
                self.whole_at = millis();
                if self.other(restore).is_some() {
                    // Its ranks have heard of these numbers.
                    let numbers = self.passed.iter().map(|(id, _)| id.number);
                    ready.highest = numbers.fold(ready.highest, u32::max);
                    ready.refused.extend(self.passed.iter().cloned());
                }
                todo.push_back(Todo::Conduct(Input::Ready(ready)));
                if let Some(id) = restore {
                    let ranks = self.ranks_of(id);
                    todo.push_back(Todo::Conduct(Input::Holds { id, ranks }));
                }
            }
            Output::Rebuilt { id, failed } => self.notes.push(match failed {
                None => format!("this node's part of checkpoint {id} was made again"),
                Some(why) => {
                    format!("this node's part of checkpoint {id} cannot be made again: {why}")
                }
            }),
            Output::Note(text) => self.notes.push(text),
        }
    }

    /// Whose files this node has of a checkpoint.
    fn ranks_of(&mut self, id: CheckpointId) -> Vec<(u16, u16)> {
        if let Some((_, parts)) = self.base.as_ref().filter(|base| base.0 == id) {
            let manifests = parts.iter().filter_map(|(_, it)| it.manifest(id).ok());
            return manifests.flat_map(|it| ranks(&it)).collect();
        }
        match self.parts.manifest(id) {
            Ok(manifest) => ranks(&manifest),
            Err(error) => {
                self.notes.push(error.to_string());
                Vec::new()
            }
        }
    }

    fn conductor_says(
        &mut self,
        around: &mut Around<'_>,
        output: program::Output,
        todo: &mut VecDeque<Todo>,
    ) {
        match output {
            program::Output::Say { to, word } => {
                if let Some(seat) = self.seat_of(to) {
                    let body = Body::Word(Bytes(word.encode()));
                    around.links.say(seat, around.session, body);
                }
            }
            program::Output::Answer { join, start, epoch } => match start {
                Start::New => self.tell(around, Tell::Answer(join, "new".into(), epoch)),
                Start::Failed(why) => {
                    self.tell(around, Tell::Answer(join, format!("failed {why}"), epoch));
                }
                Start::Restore { id, from } => {
                    let seat = self.seat_of(from).filter(|_| from != self.own);
                    self.restorer.restore(join, epoch, id, seat);
                }
                Start::All { id, holders } => {
                    let seats = holders.into_iter();
                    let seats = seats.map(|from| self.seat_of(from).filter(|_| from != self.own));
                    let seats = seats.collect();
                    self.restorer.restore_all(join, epoch, id, seats);
                }
            },
            program::Output::Ask {
                number,
                reason,
                ranks,
            } => {
                self.tell(around, Tell::Ask(number, reason, ranks));
                let why = around.folder.not_in_memory();
                self.notes.extend(why.map(|why| {
                    let folder = around.folder.path().join(MEMORY_FOLDER);
                    format!(
                        "programs write checkpoints to the disk and not to {}: {why}",
                        folder.display()
                    )
                }));
            }
            program::Output::Offer { number } => match around.folder.files(number) {
                Ok(folder) => {
                    self.make_room();
                    let outputs = self.node.offer(number, folder, seconds(), around.now);
                    todo.extend(outputs.into_iter().map(Todo::Node));
                }
                Err(error) => {
                    let why = format!(
                        "the files of checkpoint {number} cannot be read: {error}; look whether the program has put something else in the \
                         place of their folder"
                    );
                    let outputs = self.node.cannot_offer(number, why, around.now);
                    todo.extend(outputs.into_iter().map(Todo::Node));
                }
            },
            program::Output::Begin { number } => {
                let attempt = super::draw();
                let id = CheckpointId { number, attempt };
                let outputs = self.node.begin(id, around.now);
                todo.extend(outputs.into_iter().map(Todo::Node));
            }
            program::Output::Taken { number } => self.tell(around, Tell::Taken(number)),
            program::Output::Close { number, outcome } => {
                if let Err(why) = &outcome {
                    let job = &self.job;
                    tracing::warn!(%job, "job {job}: checkpoint {number} came to nothing: {why}");
                }
                self.tell(around, Tell::Close(number, outcome.err()));
            }
            program::Output::Refuse { id, node, by } => self.refuse(around, id, node, by),
            program::Output::Note(text) => self.notes.push(text),
        }
    }

    /// Where a node sits.
    pub fn seat_of(&self, index: NodeIndex) -> Option<u16> {
        let seats = &self.roster.roster.index_of_seat;
        let seat = seats.iter().position(|own| *own == index)?;
        u16::try_from(seat).ok()
    }
}

/// The seats to which a node needs a link: of its set, and of the conductor; all of them where it is that itself.
fn needs(roster: &Roster, own: NodeIndex) -> Vec<u16> {
    let mates = roster.sets.iter().find(|set| set.members.contains(&own));
    let needed = |index: &NodeIndex| {
        let mate = mates.is_some_and(|set| set.members.contains(index));
        *index != own && (own == LEADER || *index == LEADER || mate)
    };
    let seats = roster.index_of_seat.iter().zip(0u16..);
    let needed = seats.filter(|(index, _)| needed(index));
    needed.map(|(_, seat)| seat).collect()
}
