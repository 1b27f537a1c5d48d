//! The conductor of a node: its ranks, and on node 0 the leader, with words between.

use gpuos_checkpoint::ids::{LEADER, NodeIndex};

use super::leader::Leader;
use super::line::Line;
use super::member::Member;
use super::start::Reason;
use super::types::{Input, Output, Settings, View};
use super::word::{Body, Report, Word};

/// A node's conductor in one run of its job.
#[derive(Clone, Debug)]
pub struct Conductor {
    settings: Settings,
    now: u64,
    member: Member,
    line: Line<Report>,
    /// On node 0.
    leader: Option<Leader>,
}

impl Conductor {
    /// A conductor that has just started; `now` in milliseconds.
    pub fn new(settings: Settings, now: u64) -> Conductor {
        Conductor {
            now,
            member: Member::default(),
            line: Line::new(settings.retry_ms, settings.retry_most_ms),
            leader: (settings.own == LEADER).then(|| Leader::new(&settings)),
            settings,
        }
    }

    /// Takes what happened. What comes out is done in its order.
    pub fn step(&mut self, now: u64, input: Input) -> Vec<Output> {
        self.now = self.now.max(now);
        let mut out = Vec::new();
        self.take(input, &mut out);
        self.pass_on(&mut out);
        out
    }

    /// On node 0: why a checkpoint is wanted or made, unless for the interval alone. Whoever conducts next is told so.
    pub fn wanted(&self) -> Option<Reason> {
        self.leader.as_ref()?.wanted()
    }

    /// How things are.
    pub fn view(&self) -> View {
        let view = self.member.view();
        match &self.leader {
            Some(leader) => leader.view(view),
            None => view,
        }
    }

    fn take(&mut self, input: Input, out: &mut Vec<Output>) {
        let (now, member) = (self.now, &mut self.member);
        match input {
            Input::Ready(ready) => {
                member.ready(ready.clone(), now, out);
                if let Some(leader) = &mut self.leader {
                    leader.ready(ready);
                }
            }
            Input::Holds { id, ranks } => member.holds(id, ranks),
            Input::Known(known) => member.known(known),
            Input::Refused(refused) => member.refused(refused),
            Input::Gone(gone) => member.gone(gone),
            Input::Any(joins) => member.any(joins),
            Input::Joins(joins) => member.joins(joins, now, out),
            Input::Saved { number, ranks } => member.saved(number, &ranks, now, out),
            Input::FolderRead { id } => member.folder_read(id, out),
            Input::Ended { id, outcome } => {
                if let Some(leader) = &mut self.leader {
                    leader.ended(id, outcome, now);
                }
            }
            Input::RefusedBegin { id, why } => {
                if let Some(leader) = &mut self.leader {
                    leader.refused(id, why, now);
                }
            }
            Input::Want(reason) => member.want(reason),
            Input::Received { from, word } => self.receive(from, word, out),
            Input::EndIsOff => {
                if let Some(leader) = &mut self.leader {
                    leader.end_is_off();
                }
            }
            Input::Reached(all) => {
                if let Some(leader) = &mut self.leader {
                    leader.reached(all);
                }
            }
            Input::Tick => {}
        }
    }

    fn receive(&mut self, from: NodeIndex, word: Word, out: &mut Vec<Output>) {
        let now = self.now;
        let body = match word.open(self.settings.run) {
            Ok(body) => body,
            Err(why) => return out.push(Output::Note(format!("node {from}: {why}"))),
        };
        match (body, &mut self.leader) {
            _ if from == self.settings.own || from.0 >= self.settings.nodes => {}
            (Body::Report { version, report }, Some(leader)) => {
                leader.report(from, version, *report, now);
                return self.say(from, Body::Heard { version }, out);
            }
            (Body::Orders { version, orders }, None) if from == LEADER => {
                return self.member.orders(version, *orders, now, out);
            }
            (Body::Heard { version }, None) if from == LEADER => return self.line.heard(version),
            _ => {}
        }
        out.push(Output::Note(format!(
            "node {from} said what is not for it to say to node {}; look at the list of the job's nodes there",
            self.settings.own
        )));
    }

    fn say(&self, to: NodeIndex, body: Body, out: &mut Vec<Output>) {
        let word = Word::new(self.settings.run, body);
        out.push(Output::Say { to, word });
    }

    /// What leader and members have to say to each other. Between those of node 0 it goes to and fro until nothing is new.
    fn pass_on(&mut self, out: &mut Vec<Output>) {
        let now = self.now;
        self.line.tell(self.member.report());
        let Some(mut leader) = self.leader.take() else {
            if let Some((version, report)) = self.line.due(now) {
                let report = Box::new(report);
                self.say(LEADER, Body::Report { version, report }, out);
            }
            return;
        };
        loop {
            if let Some((version, report)) = self.line.due(now) {
                leader.report(LEADER, version, report, now);
                self.line.heard(version);
            }
            leader.advance(now, out);
            for (to, version, orders) in leader.due(now) {
                match to == self.settings.own {
                    true => self.member.orders(version, orders, now, out),
                    false => {
                        let orders = Box::new(orders);
                        self.say(to, Body::Orders { version, orders }, out);
                    }
                }
            }
            self.line.tell(self.member.report());
            if self.line.is_heard() {
                break;
            }
        }
        self.leader = Some(leader);
    }
}
