//! What the thread of a job does with what it is told.

use std::sync::Arc;

use gpuos_checkpoint::ids::LEADER;
use gpuos_config::options::parse_checkpoint;
use gpuos_core::job::JobId;
use gpuos_core::wire::CheckpointPhase;
use gpuos_mover::hosting::{claimed, claims};
use gpuos_mover::program::{Input, Join};
use gpuos_mover::roster::Claim;

use super::ends::Next;
use super::gather::{self, Gather};
use super::running::{Around, Held, Running};
use super::unwritten::Tell;
use super::{
    Phase, Wish, Worker, choice, donors, elastic, fetching, left_open, new_session, noting, other,
    recovery,
};
use crate::carried::{Body, Carried};
use crate::event::{BackDone, Event, SavedRun};
use crate::folder::{JobFolder, Kept};
use crate::not_reached::{Hope, NotReached};

/// What programs are told of a checkpoint of which this node had no part yet when its mover ended.
const GIVEN_UP: &str = "gpuos_mover on this node was started anew while it was made; the checkpoint before is as it was";

impl Worker {
    /// Something came.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Step { gid, asked, reply } => {
                let answer = self.step(gid, &asked);
                if let Err(why) = &answer {
                    self.note(why);
                }
                let _ = reply.try_send(answer);
            }
            Event::Linked {
                seat,
                number,
                sender,
            } => {
                self.links.linked(seat, number, sender);
                if self.links.lost().is_empty() {
                    self.recovery.linked();
                }
                let incarnation = self.incarnation;
                self.say(seat, Body::Hello { incarnation });
                self.links.say_kept(seat);
            }
            Event::NotLinked { seat, not } => self.not_linked(seat, not),
            Event::Unlinked { seat, number, why } => {
                if self.links.unlinked(seat, number, why) {
                    self.recovery.unlinked();
                    self.note(&self.links.why(seat));
                }
            }
            Event::Came { seat, bytes } => {
                let nodes = self.start.place.nodes;
                match Carried::decode(&bytes, nodes) {
                    Some(carried) => self.came(seat, carried),
                    None => self.note(&format!(
                        "what seat {seat} sent is no message; have the same release of gpuos on all nodes"
                    )),
                }
            }
            Event::Ask { seat, body } => {
                // Who fetches connects, whichever way links usually go.
                self.links.want(seat);
                self.say(seat, body);
            }
            Event::Restored {
                join,
                line,
                epoch,
                session,
            } => self.restored(join, line, epoch, session),
            Event::Drain(done) => {
                let said = self.drain.done(done);
                self.tell_leader(said);
            }
            Event::Back(BackDone::Looked { round, found }) => self.back.looked(round, found),
            Event::Back(BackDone::Fetched { session, result }) => {
                fetching::fetched(self, session, result);
            }
            Event::Back(BackDone::Taken { session, results }) => {
                donors::taken_in(self, session, results)
            }
            Event::Donors(found) => self.donors.found(found),
            Event::Noted { note, result } => noting::noted(self, note, result),
            Event::Choose { number, reply } => choice::choose(self, number, reply),
            Event::Want(reason) => {
                self.wanted = self.wanted.max(Some(reason));
                self.pass_wish_on();
            }
            Event::Ends {
                in_s,
                preempted,
                may_requeue,
            } => {
                let now = self.now();
                self.ends.told(now, in_s, preempted, may_requeue);
            }
            Event::End | Event::Stop => {}
        }
    }

    /// A connection to another seat came to nothing. With other keys none will before somebody does something: that is said at once, and once.
    fn not_linked(&mut self, seat: u16, not: NotReached) {
        let has_other_keys = not.hope == Hope::Keys;
        let is_new = self.links.failed(seat, not.why);
        if !has_other_keys {
            return;
        }
        let why = self.links.why(seat);
        if let Phase::Gathering(_) = self.phase {
            self.be_late(&why);
        } else if is_new {
            tracing::warn!(job = %self.start.job, "job {}: {why}", self.start.job);
        }
    }

    /// A checkpoint that is wanted is asked for as soon as somebody conducts.
    pub(super) fn pass_wish_on(&mut self) {
        if matches!(self.phase, Phase::Running(_))
            && let Some(reason) = self.wanted.take()
        {
            self.with(|running, around| running.conduct(around, Input::Want(reason)));
        }
    }

    /// A rank has its files, or cannot have them. Of an earlier gathering, or for a process that is gone: whoever waits now is answered anew.
    fn restored(&mut self, join: Join, line: String, epoch: u64, session: u32) {
        let joins = self.folder.as_ref().and_then(|folder| folder.joins().ok());
        let waits = joins.is_some_and(|joins| joins.contains(&join));
        if session == self.session && waits {
            match line.starts_with("restore ") {
                true => self.recovery.loaded(join),
                false => recovery::failed(self, &line),
            }
            self.with(|running, around| running.tell(around, Tell::Answer(join, line, epoch)));
        }
    }

    pub(super) fn say(&self, seat: u16, body: Body) {
        self.links.say(seat, self.session, body);
    }

    /// A step wants the folder of its job.
    fn step(&mut self, gid: u32, asked: &str) -> Result<std::path::PathBuf, String> {
        self.wish(gid, asked)?;
        match &self.folder {
            Some(folder) => Ok(folder.path().into()),
            None => Err("the folder for checkpoints is not there".into()),
        }
    }

    /// What the job wants is known: its folder can be made.
    pub(super) fn wish(&mut self, gid: u32, asked: &str) -> Result<(), String> {
        if self.wish.is_none() {
            let option = parse_checkpoint(asked).map_err(|error| error.to_string())?;
            let asked = asked.to_string();
            self.wish = Some(Wish { gid, asked, option });
        }
        if self.folder.is_none() {
            let kept = Kept {
                run: self.start.run,
                launch: self.start.launch,
                uid: self.start.uid,
                gid,
                asked: asked.into(),
            };
            let made = JobFolder::create(&self.shared.folders, &self.start.job, &kept);
            let folder = made.map_err(|error| error.to_string())?;
            if folder.known().epoch > 0 {
                self.recovery.is_none();
            }
            let path = folder.path().to_string_lossy().into_owned();
            *crate::jobs::locked(&self.shown) = Some(path);
            self.folder = Some(Arc::new(folder));
            left_open::settle(self, GIVEN_UP);
        }
        Ok(())
    }

    /// A message of the mover at another seat.
    fn came(&mut self, seat: u16, carried: Carried) {
        let Carried { session, body } = carried;
        match body {
            Body::Hello { incarnation } => {
                let before = self.incarnations.insert(seat, incarnation);
                // It knows nothing of what was agreed with the one before.
                if self.is_first() && before.is_some_and(|before| before != incarnation) {
                    self.note(&format!("the mover at seat {seat} was started anew"));
                    self.back.anew();
                    self.donors.stop();
                    self.gather_anew(new_session(self.session));
                }
            }
            Body::ClaimAsk { of } if seat == 0 => {
                if session != self.session {
                    self.gather_anew(session);
                }
                if let (Some(_), Phase::Gathering(gather)) = (&of, &mut self.phase) {
                    gather.take_longer();
                }
                if other::is_busy(self, of.as_ref()) {
                    return;
                }
                let (own, hosted) = self.claim(of.as_ref().map(|of| &of.job));
                let chosen = choice::known(self);
                let body = Body::Claim {
                    own,
                    hosted,
                    chosen,
                };
                self.say(seat, body);
            }
            Body::Claim {
                own,
                hosted,
                chosen,
            } if self.is_first() && session == self.session => {
                if let Phase::Gathering(gather) = &mut self.phase {
                    gather.claim(seat, (own, hosted), chosen);
                }
            }
            Body::Roster(roster) if seat == 0 => {
                // Something late of a session before may have come in between.
                if session != self.session {
                    self.gather_anew(session);
                }
                fetching::begin(self, *roster);
                self.say(seat, Body::RosterTaken);
            }
            _ if session != self.session => {}
            Body::RosterTaken if self.is_first() => {
                self.told.insert(seat);
            }
            Body::Drain { id, round } => {
                if let Phase::Running(running) = &self.phase
                    && running.seat_of(LEADER) == Some(seat)
                {
                    let said = self.drain.asked(id, round, running.own);
                    self.tell_leader(said);
                }
            }
            Body::Drained { id, round, failed } => self.drain.answered(seat, (id, round), failed),
            Body::Choose(number) => choice::note(self, seat, number),
            Body::ChoiceNoted(number) => choice::noted(self, seat, number),
            Body::NotGiven(node) if self.is_first() => self.donors.failed(node),
            Body::Hosted { from, to, bytes } => elastic::came(self, seat, (from, to), &bytes.0),
            Body::Whole(ready) if self.is_first() => elastic::whole(self, seat, *ready),
            Body::NoRoster { why, late } if seat == 0 => {
                self.stop(why.clone(), late);
                if !late {
                    left_open::give_up(self, &why);
                }
            }
            Body::NoPart(why) if self.is_first() && !matches!(self.phase, Phase::Failed(_)) => {
                self.fail(format!("node {seat} of the job cannot go on: {why}"));
            }
            body => self.with(|running, around| running.came(around, seat, body)),
        }
    }

    pub(super) fn gather_anew(&mut self, session: u32) {
        self.session = session;
        self.marked = false;
        self.told.clear();
        self.late = false;
        let before = std::mem::replace(&mut self.phase, Phase::Gathering(Gather::new()));
        if let Phase::Running(running) = before {
            self.wanted = self.wanted.max(running.conductor().wanted());
            self.before = Some(running.end());
        }
        let why = "the movers of the job had to find each other anew while it was made; the checkpoint before is as it was";
        if let Some(folder) = &self.folder {
            folder.leave();
        }
        left_open::settle(self, why);
    }

    /// What this node has of the job, or of another one of the same user, and what it hosts.
    pub(super) fn claim(&self, of: Option<&JobId>) -> (Vec<Claim>, Vec<Claim>) {
        let uid = self.start.uid;
        let store = match of {
            None => self.shared.store.job(&self.start.job, uid),
            // No folder is made for a job of which nobody has shown that it is this user's.
            Some(other) => self.shared.store.existing(other),
        };
        if of.is_some() && !store.as_ref().is_ok_and(|store| store.uid() == uid) {
            return Default::default();
        }
        let known = store.and_then(|store| {
            let own = claimed(&store)?;
            let all = claims(self.shared.store, &store)?;
            Ok((own.clone(), all.into_iter().skip(own.len()).collect()))
        });
        known.unwrap_or_else(|error| {
            self.note(&error.to_string());
            Default::default()
        })
    }

    /// Time went by.
    pub(super) fn look(&mut self) {
        if let Phase::Gathering(_) = self.phase {
            gather::gather(self);
        }
        self.keep_links();
        elastic::look(self);
        choice::look(self);
        self.with(|running, around| running.look(around));
        self.look_at_end();
        self.look_at_refusal();
        let notes = match &mut self.phase {
            Phase::Running(running) => {
                if std::mem::take(&mut running.made_again) {
                    self.came.push(format!(
                        "the part of node {} was made again of what the others have",
                        running.own
                    ));
                }
                running.notes()
            }
            _ => Vec::new(),
        };
        notes.iter().for_each(|note| self.note(note));
        recovery::look(self);
        noting::look(self);
        self.look_at_drain();
        if let Phase::Failed(why) = &self.phase {
            let why = why.clone();
            self.answer_without(&why);
            self.try_again();
        }
    }

    /// The node that leads has the program save before the job is ended, and the job requeued.
    fn look_at_end(&mut self) {
        let now = self.now();
        let Phase::Running(running) = &self.phase else {
            return;
        };
        let view = running.conductor().view();
        let Some(next) = running
            .leads()
            .then(|| self.ends.look(now, &view))
            .flatten()
        else {
            return;
        };
        let end = self.ends.words(now);
        match next {
            Next::Save(reason) => {
                self.note(&format!("{end}: a checkpoint is wanted"));
                self.with(|running, around| running.conduct(around, Input::Want(reason)));
            }
            Next::Off => self.with(|running, around| running.conduct(around, Input::EndIsOff)),
            Next::Requeue => {
                self.note(&format!("{end}: it has saved and is requeued"));
                let saved = SavedRun {
                    job: self.start.job.clone(),
                    run: self.start.run,
                };
                if self.shared.requeue.try_send(saved).is_err() {
                    self.note("it is not requeued: too many jobs are just now");
                }
            }
            Next::Leave => self.note(&format!(
                "{end}: it has saved, and is left alone, as it may not be requeued (sbatch --requeue)"
            )),
        }
    }

    /// A program could not load what it was given. All begin anew without that checkpoint, which is marked on every node that has heard of it.
    fn look_at_refusal(&mut self) {
        let first = self.is_first();
        let Phase::Running(running) = &mut self.phase else {
            return;
        };
        let Some(what) = running.is_refused.take() else {
            return;
        };
        crate::audit::refused(&self.start.job, self.start.uid, &what);
        if first {
            self.back.anew();
            // It may have been that which other nodes had made.
            (self.base, self.elastic) = (None, Default::default());
            self.gather_anew(new_session(self.session));
        }
    }

    /// What is drained, and whether the run waits for something that was.
    fn look_at_drain(&mut self) {
        let first = self.is_first();
        if let Phase::Running(running) = &self.phase {
            if let (true, Some(held)) = (first, &running.held) {
                match held.clone() {
                    Held::Outside => self.donors.again(),
                    Held::Drained => {
                        let refused = running.refused.iter().map(|(id, _)| *id);
                        self.back.again(&running.roster.drained, refused);
                    }
                    Held::Other(other) => other::turn_to(self, Some(other)),
                    Held::Elsewhere(restore) => self.elastic.passed(restore),
                    Held::Gathered(ready) => {
                        if let Err(why) = other::gathered(self, &ready) {
                            return self.fail(why);
                        }
                    }
                }
                self.gather_anew(new_session(self.session));
                return;
            }
            if let Some(ready) = &running.ready
                && !std::mem::replace(&mut self.marked, true)
            {
                self.back.mark(running.own, &ready.refused);
            }
            if let Some((id, restored)) = running.newest {
                self.drain.committed(id, restored);
            }
            if running.leads() {
                let own = self.own_seat();
                let index = running.own;
                for (seat, body) in self.drain.tick() {
                    match body {
                        Body::Drain { id, round } if seat == own => {
                            let said = self.drain.asked(id, round, index);
                            self.tell_leader(said);
                        }
                        body => self.say(seat, body),
                    }
                }
            }
        }
        let notes = self.drain.notes();
        notes.iter().for_each(|note| self.note(note));
    }

    /// Says how this node's part of what is drained stands.
    fn tell_leader(&mut self, said: Option<Body>) {
        let (Some(said), Phase::Running(running)) = (said, &self.phase) else {
            return;
        };
        match (said, running.seat_of(LEADER)) {
            (Body::Drained { id, round, failed }, _) if running.leads() => {
                self.drain.answered(self.own_seat(), (id, round), failed);
            }
            (said, Some(seat)) => self.say(seat, said),
            (_, None) => {}
        }
    }

    /// Links of this node, by seat: seat 0 makes those to all; of two others the lower one makes theirs.
    fn keep_links(&mut self) {
        let (needed, roster) = match &self.phase {
            Phase::Running(running) => (&running.needs[..], &running.roster),
            Phase::Fetching(roster) => (&[][..], &**roster),
            Phase::Hosting(hosted) => (&hosted.seats[..], &hosted.roster),
            _ => return,
        };
        let own = self.start.place.own.0;
        for seat in needed.iter().filter(|seat| own < **seat) {
            self.links.want(*seat);
        }
        if own == 0 {
            for seat in (1..self.start.place.nodes).filter(|seat| !self.told.contains(seat)) {
                self.links.want(seat);
                let body = Body::Roster(Box::new(roster.clone()));
                self.links.say(seat, self.session, body);
            }
        }
    }

    /// There are no checkpoints in this run, for something here. Those on other nodes would wait for ever.
    pub(super) fn fail(&mut self, why: String) {
        if !self.is_first() {
            self.say(0, Body::NoPart(why.clone()));
        }
        self.stop(why.clone(), false);
        left_open::give_up(self, &why);
    }

    /// There are none; `late`: unless movers that are missed come.
    fn stop(&mut self, why: String, late: bool) {
        tracing::error!(job = %self.start.job, "job {}: {why}", self.start.job);
        if self.is_first() {
            recovery::failed(self, &why);
            for seat in 1..self.start.place.nodes {
                let why = why.clone();
                self.say(seat, Body::NoRoster { why, late });
            }
        }
        self.phase = Phase::Failed(why);
    }

    /// The movers did not find each other in time.
    pub(super) fn be_late(&mut self, why: &str) {
        self.stop(format!("no checkpoints in this run: {why}"), true);
        self.late = true;
    }

    /// Movers that were missed may have come. Programs that were answered meanwhile keep their answers.
    fn try_again(&mut self) {
        if !self.late {
            return;
        }
        let others = match self.is_first() {
            true => 1..self.start.place.nodes,
            false => 0..1,
        };
        others.clone().for_each(|seat| self.links.want(seat));
        let all = others.clone().all(|seat| self.links.is_open(seat));
        if self.is_first() && all && self.wish.is_some() {
            self.note("all movers of the job are there now");
            self.gather_anew(new_session(self.session));
        }
    }

    /// Programs that join a run without checkpoints begin from their start, unless they have been here before: then they would do
    /// their work again, and perhaps write over what they have.
    fn answer_without(&mut self, why: &str) {
        let Some(folder) = self.folder.clone() else {
            return;
        };
        let joins = folder.joins().unwrap_or_default();
        // Who has gone need not be remembered, however many there were.
        self.without.retain(|join| joins.contains(join));
        let new: Vec<Join> = joins
            .into_iter()
            .filter(|join| !self.without.contains(join))
            .collect();
        if new.is_empty() {
            return;
        }
        let known = folder.known();
        let first = self.start.earlier() == 0 && (known.epoch, known.highest) == (0, 0);
        let first = first && !other::is_wanted(self);
        let line = match first && self.claim(None) == Default::default() {
            true => "new".to_string(),
            false => format!("failed {why}"),
        };
        for join in new {
            // Epoch 0: no conductor has settled this.
            let _ = folder.answer(&join, &line, 0);
            self.without.insert(join);
        }
    }

    /// Has node and conductor do something, if there are some.
    pub(super) fn with(&mut self, done: impl FnOnce(&mut Running, &mut Around<'_>)) {
        let now = self.now();
        if let (Phase::Running(running), Some(folder)) = (&mut self.phase, &self.folder) {
            let mut around = Around {
                now,
                session: self.session,
                links: &self.links,
                folder,
            };
            done(running, &mut around);
        }
    }

    /// How far it is, for clients.
    pub(super) fn stage(&self) -> (CheckpointPhase, String) {
        match &self.phase {
            Phase::Gathering(_) => (CheckpointPhase::Gathering, String::new()),
            Phase::Fetching(_) | Phase::Hosting(_) => (CheckpointPhase::Rebuilding, String::new()),
            Phase::Running(running) if running.ready.is_none() => {
                (CheckpointPhase::Rebuilding, String::new())
            }
            Phase::Running(_) => (CheckpointPhase::Running, String::new()),
            Phase::Failed(why) => (CheckpointPhase::Failed, why.clone()),
        }
    }
}
