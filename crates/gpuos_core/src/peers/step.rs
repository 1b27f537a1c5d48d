//! What happens, and what follows from it.
use super::group::Group;
use super::message::{Body, Datagram, Word};
use super::promise::HOLD_MS;
use super::settings::HeartbeatConfig;
use super::state::{Asker, Inquiry, Peers, Poll, Watch};
use crate::job::JobId;

/// A look into a node takes so long: time for four pings.
const INQUIRY_MS: u64 = 1200;
/// How the workload manager's daemon answers has to be known so much later at the latest.
const MANAGER_LATE_MS: u64 = 600;
/// A node that is looked into is pinged so often.
const PING_MS: u64 = 250;
/// Questions to other nodes are repeated so often, and given up after that time.
const REPEAT_MS: u64 = 300;
const POLL_MS: u64 = 3000;
/// The nodes that ping a silent one ask the others, and then slurmctld, one after the other.
const RANK_MS: u64 = 400;
/// A question without a quorum is asked again after so long.
const AGAIN_MS: u64 = 5000;
/// A node whose daemon of the workload manager answers is looked into again after so long, then after twice that, and so on.
const DAEMON_MS: u64 = 10_000;
const DAEMON_DOUBLES: u32 = 5;
/// The answer that was found a moment ago is given again.
const FOUND_MS: u64 = 1500;
/// Who was heard so short a time ago, lives.
const FRESH_MS: u64 = 800;
/// Ticks come many times a second: after such a gap this node was asleep, and knows nothing of the others.
const STALL_MS: u64 = 1000;
/// A node that does not answer for so long is pinged this seldom.
const LONG_MS: u64 = 60_000;
const SELDOM_MS: u64 = 5000;
/// So many nodes may be lost to one node within that time: more at once are a switch's fault rather than theirs.
const MOST_LOSSES: usize = 4;
const LOSSES_MS: u64 = 120_000;
/// Inquiries at a time.
const MOST_INQUIRIES: usize = 64;

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time went by; several times a second.
    Tick,
    /// The jobs of several nodes that run here.
    Groups(Vec<Group>),
    /// A message of another node, which munge vouches for.
    Received(Datagram),
    /// The answer to [`Effect::Probe`].
    Manager(String, ManagerAnswer),
    /// slurmctld did not answer to what came of [`Effect::Silent`]: it may be asked again.
    NoAnswer(String),
    /// For a moment this node could neither hear nor speak, and knows nothing of the others: munged hangs.
    Deaf,
}

/// What the port of the workload manager's daemon on a node says: of slurmd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagerAnswer {
    /// It takes a connection and ends it.
    Answers,
    /// The node's kernel takes a connection, and the daemon says nothing.
    Mute,
    /// Nobody takes a connection, or the way there is cut.
    Gone,
}

/// Something to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send a message.
    Send(Datagram),
    /// Look at the port of the workload manager's daemon on a node, within a second.
    Probe(String),
    /// A node is silent, and a quorum of a job's nodes says so.
    Silent {
        /// The job.
        job: JobId,
        /// The node.
        node: String,
        /// For how long, in ms.
        silent_ms: u64,
        /// Who says so.
        agreed: Vec<String>,
    },
    /// A sentence for the log.
    Note {
        /// The node that it is about.
        node: String,
        /// The sentence.
        text: String,
    },
    /// This node was cut off or asleep: slurmctld may have been told that it was silent.
    CheckOwnNode,
}

/// Takes an event.
pub fn step(peers: &mut Peers, settings: &HeartbeatConfig, event: Event, now: u64) -> Vec<Effect> {
    let mut step = Step {
        peers,
        settings,
        now,
        effects: Vec::new(),
    };
    match event {
        Event::Tick => step.tick(),
        Event::Groups(groups) => step.groups(groups),
        Event::Received(told) => step.received(told),
        Event::Manager(node, answer) => step.manager(&node, answer),
        Event::Deaf => step.reset_peer_timers(),
        Event::NoAnswer(node) => {
            if let Some(watch) = step.peers.watches.get_mut(&node).filter(|w| w.reported) {
                watch.reported = false;
                watch.quiet_until = now + AGAIN_MS;
            }
        }
    }
    step.effects
}

struct Step<'a> {
    peers: &'a mut Peers,
    settings: &'a HeartbeatConfig,
    now: u64,
    effects: Vec<Effect>,
}

impl Step<'_> {
    fn send(&mut self, to: &str, body: Body) {
        let told = Datagram::new(&self.peers.own, to, body);
        self.effects.push(Effect::Send(told));
    }

    fn note(&mut self, node: &str, text: String) {
        let node = node.to_string();
        self.effects.push(Effect::Note { node, text });
    }

    fn groups(&mut self, groups: Vec<Group>) {
        let own = self.peers.own.clone();
        self.peers.groups = groups.into_iter().filter(|g| g.is_watched(&own)).collect();
        let mut watches = std::mem::take(&mut self.peers.watches);
        for node in self.peers.groups.iter().flat_map(|g| g.watched_by(&own)) {
            let watch = watches.remove(node).unwrap_or_else(|| Watch {
                since: self.now,
                ..Watch::default()
            });
            self.peers.watches.entry(node.into()).or_insert(watch);
        }
        // A job that this node lost while it heard nobody may have been taken from it.
        let (now, mut lost) = (self.now, watches.values());
        if lost.any(|watch| watch.silent_for(now) > Some(AGAIN_MS)) {
            self.effects.push(Effect::CheckOwnNode);
        }
        // Their jobs may be gone with the groups.
        self.peers.polls.clear();
        let watched = &self.peers.watches;
        for inquiry in self.peers.inquiries.values_mut() {
            inquiry.own = None;
        }
        self.peers
            .inquiries
            .retain(|node, inquiry| watched.contains_key(node) || !inquiry.askers.is_empty());
    }

    fn tick(&mut self) {
        let (now, before) = (self.now, self.peers.ticked);
        self.peers.ticked = now;
        let gap = now.saturating_sub(before);
        if gap > STALL_MS {
            self.reset_peer_timers();
        }
        if gap > self.settings.silent_ms {
            self.effects.push(Effect::CheckOwnNode);
        }
        self.peers.found.retain(|_, (at, _)| now < *at + FOUND_MS);
        self.ping();
        self.suspect();
        self.inquire();
        self.poll();
    }

    /// This node was stopped, or deaf: that nobody was heard meanwhile says nothing of the others.
    fn reset_peer_timers(&mut self) {
        for watch in self.peers.watches.values_mut().filter(|w| !w.reported) {
            watch.last_seen = watch.last_seen.map(|_| self.now);
        }
        self.peers.inquiries.clear();
        self.peers.polls.clear();
    }

    fn ping(&mut self) {
        let now = self.now;
        let mut due = Vec::new();
        for (node, watch) in &mut self.peers.watches {
            let long = now.saturating_sub(watch.last_seen.unwrap_or(watch.since)) > LONG_MS;
            let every = if long {
                SELDOM_MS
            } else {
                self.settings.interval_ms
            };
            if watch.pinged.is_none_or(|at| now >= at + every) {
                watch.pinged = Some(now);
                due.push(node.clone());
            }
        }
        for node in due {
            self.send(&node, Body::Ping);
        }
    }

    /// Begins to look into nodes that are silent for too long.
    fn suspect(&mut self) {
        let (now, settings) = (self.now, self.settings);
        let late = |watch: &Watch| {
            let silent = watch
                .silent_for(now)
                .is_some_and(|ms| ms > settings.silent_ms);
            silent && !watch.left && !watch.reported && now >= watch.quiet_until
        };
        let watches = self.peers.watches.iter();
        let new: Vec<(String, bool, u32)> = watches
            .filter(|(node, watch)| late(watch) && !self.peers.polls.contains_key(*node))
            .map(|(node, watch)| {
                let hung = watch.silent_for(now) > Some(settings.hung_ms);
                (node.clone(), hung, watch.tries)
            })
            .collect();
        for (node, hung, tries) in new {
            let has: Vec<usize> = (0..self.peers.groups.len())
                .filter(|at| self.peers.groups[*at].has(&node))
                .collect();
            // Of several jobs another one each time: one of them may have a quorum.
            let Some(group) = has.get(tries as usize % has.len().max(1)).copied() else {
                continue;
            };
            if !self.begin(&node, |inquiry| inquiry.own = Some(hung)) {
                continue;
            }
            self.peers.nonce = self.peers.nonce.wrapping_add(1);
            let rank = self.peers.groups[group].rank(&self.peers.own, &node);
            let poll = Poll {
                group,
                nonce: self.peers.nonce,
                begins: now + rank * RANK_MS,
                hung,
                ..Poll::default()
            };
            self.peers.polls.insert(node, poll);
        }
    }

    /// Looks into a node, or joins a look that is under way.
    fn begin(&mut self, node: &str, join: impl FnOnce(&mut Inquiry)) -> bool {
        let now = self.now;
        if !self.peers.inquiries.contains_key(node) {
            if self.peers.inquiries.len() >= MOST_INQUIRIES {
                return false;
            }
            let inquiry = Inquiry {
                began: now,
                pinged: now,
                ..Inquiry::default()
            };
            self.peers.inquiries.insert(node.into(), inquiry);
            self.send(node, Body::Ping);
            self.effects.push(Effect::Probe(node.into()));
        }
        if let Some(inquiry) = self.peers.inquiries.get_mut(node) {
            join(inquiry);
        }
        true
    }

    fn inquire(&mut self) {
        let now = self.now;
        let (mut ping, mut over) = (Vec::new(), Vec::new());
        for (node, inquiry) in &mut self.peers.inquiries {
            let age = now.saturating_sub(inquiry.began);
            let known = inquiry.manager.is_some() || age >= INQUIRY_MS + MANAGER_LATE_MS;
            if age >= INQUIRY_MS && known {
                over.push(node.clone());
            } else if now >= inquiry.pinged + PING_MS {
                inquiry.pinged = now;
                ping.push(node.clone());
            }
        }
        for node in ping {
            self.send(&node, Body::Ping);
        }
        for node in over {
            self.conclude(&node, false);
        }
    }

    fn manager(&mut self, node: &str, answer: ManagerAnswer) {
        if let Some(inquiry) = self.peers.inquiries.get_mut(node) {
            inquiry.manager = Some(answer);
            if answer == ManagerAnswer::Answers {
                self.conclude(node, false);
            }
        }
    }

    /// Ends a look into a node.
    fn conclude(&mut self, node: &str, heard: bool) {
        let Some(inquiry) = self.peers.inquiries.remove(node) else {
            return;
        };
        let word = |hung: bool| match inquiry.manager {
            _ if heard => Word::Heard,
            Some(ManagerAnswer::Answers) => Word::Heard,
            Some(ManagerAnswer::Gone) => Word::Gone,
            Some(ManagerAnswer::Mute) if hung => Word::Gone,
            Some(ManagerAnswer::Mute) | None => Word::Abstain,
        };
        self.peers
            .found
            .insert(node.into(), (self.now, word(false)));
        for asker in inquiry.askers {
            self.vote(&asker, node, word(asker.hung));
        }
        match inquiry.own.map(word) {
            Some(Word::Gone) => {
                if let Some(poll) = self.peers.polls.get_mut(node) {
                    poll.own = true;
                }
                self.count(node);
            }
            // Who is heard has no poll any more.
            Some(Word::Heard) if !heard => self.only_daemon(node),
            Some(Word::Abstain) => self.again(node, REPEAT_MS),
            _ => {}
        }
    }

    fn only_daemon(&mut self, node: &str) {
        self.peers.polls.remove(node);
        let Some(watch) = self.peers.watches.get_mut(node) else {
            return;
        };
        let wait = DAEMON_MS << watch.tries.min(DAEMON_DOUBLES);
        watch.quiet_until = self.now + wait;
        watch.tries += 1;
        if !std::mem::replace(&mut watch.only_daemon, true) {
            let text =
                format!("gpuosd on {node} does not answer, its slurmd does: nothing is done");
            self.note(node, text);
        }
    }

    /// A poll that came to nothing.
    fn again(&mut self, node: &str, wait: u64) {
        self.peers.polls.remove(node);
        if let Some(watch) = self.peers.watches.get_mut(node) {
            watch.quiet_until = self.now + wait;
            watch.tries += 1;
        }
    }

    /// Asks the others, and gives up on what has no quorum.
    fn poll(&mut self) {
        let now = self.now;
        let nodes: Vec<String> = self.peers.polls.keys().cloned().collect();
        for node in nodes {
            self.count(&node);
            let (own, groups) = (&self.peers.own, &self.peers.groups);
            let Some(poll) = self.peers.polls.get_mut(&node) else {
                continue;
            };
            if now >= poll.begins + POLL_MS {
                let first = self.peers.watches.get(&node).is_some_and(|w| w.tries == 0);
                let text = self.without_quorum(&node);
                self.again(&node, AGAIN_MS);
                if first {
                    self.note(&node, text);
                }
                continue;
            }
            if now < poll.begins || poll.sent.is_some_and(|at| now < at + REPEAT_MS) {
                continue;
            }
            poll.sent = Some(now);
            let group = &groups[poll.group];
            let body = Body::Poll {
                job: group.job.clone(),
                nodes: group.mark(),
                about: node.clone(),
                nonce: poll.nonce,
                hung: poll.hung,
            };
            let others = group.voters().into_iter();
            let others = others.filter(|n| *n != own && *n != node && !poll.votes.contains_key(*n));
            let others: Vec<String> = others.map(str::to_string).collect();
            for other in others {
                self.send(&other, body.clone());
            }
        }
    }

    fn without_quorum(&self, node: &str) -> String {
        let poll = &self.peers.polls[node];
        let voters = self.peers.groups[poll.group].voters().len();
        let agree =
            poll.votes.values().filter(|w| **w == Word::Gone).count() + usize::from(poll.own);
        format!(
            "{node} is not heard, and only {agree} of the {voters} nodes of job {} that have a say find it gone: \
             nothing is done, slurmctld will see for itself",
            self.peers.groups[poll.group].job
        )
    }

    /// Looks whether a quorum finds a node gone.
    fn count(&mut self, node: &str) {
        let now = self.now;
        let own = self.peers.own.clone();
        let Some(poll) = self.peers.polls.get(node).filter(|poll| poll.own) else {
            return;
        };
        let group = &self.peers.groups[poll.group];
        let gone = poll.votes.iter().filter(|(_, w)| **w == Word::Gone);
        let mut agreed: Vec<&str> = gone.map(|(n, _)| n.as_str()).collect();
        agreed.push(&own);
        agreed.sort_unstable();
        // Each in its turn: slurmctld has done what the first one asks when the second one looks.
        let quorum = group.is_quorum(&agreed) && now >= poll.begins + INQUIRY_MS;
        if !quorum || !self.may_confirm_failure(&own, node) {
            return;
        }
        let (job, agreed) = (
            group.job.clone(),
            agreed.into_iter().map(String::from).collect(),
        );
        self.peers.promises.take(&own, node, now);
        self.peers.losses.retain(|at| now < at + LOSSES_MS);
        if self.peers.losses.len() >= MOST_LOSSES {
            self.again(node, LOSSES_MS / MOST_LOSSES as u64);
            let text = format!(
                "{node} is silent too, the fifth or later node within {} s: a switch is likelier than so many nodes, \
                 and slurmctld is not asked",
                LOSSES_MS / 1000
            );
            return self.note(node, text);
        }
        self.peers.losses.push_back(now);
        self.peers.polls.remove(node);
        let Some(watch) = self.peers.watches.get_mut(node) else {
            return;
        };
        watch.reported = true;
        let silent_ms = watch.silent_for(now).unwrap_or(0);
        self.effects.push(Effect::Silent {
            job,
            node: node.into(),
            silent_ms,
            agreed,
        });
    }

    /// Whether this node may say for `asker` that `about` is gone: it has said nothing to the contrary. One that has
    /// just started does not know what it said.
    fn may_confirm_failure(&self, asker: &str, about: &str) -> bool {
        let old = self.now.saturating_sub(self.peers.born) >= HOLD_MS;
        old && self.peers.promises.may(asker, about, self.now)
    }

    fn vote(&mut self, asker: &Asker, about: &str, word: Word) {
        let word = match word {
            Word::Gone if !self.may_confirm_failure(&asker.node, about) => Word::Abstain,
            word => word,
        };
        if word == Word::Gone {
            self.peers.promises.take(&asker.node, about, self.now);
        }
        let body = Body::Vote {
            about: about.into(),
            nonce: asker.nonce,
            word,
        };
        self.send(&asker.node, body);
    }

    fn received(&mut self, told: Datagram) {
        if told.to != self.peers.own || told.from == self.peers.own {
            return;
        }
        self.lives(&told.from);
        match told.body {
            Body::Ping => self.send(&told.from, Body::Pong),
            Body::Pong => {}
            Body::Bye => {
                if let Some(watch) = self.peers.watches.get_mut(&told.from) {
                    watch.left = true;
                }
            }
            Body::Poll {
                job,
                nodes,
                about,
                nonce,
                hung,
            } => {
                let asker = Asker {
                    node: told.from,
                    nonce,
                    hung,
                };
                self.asked(asker, &job, nodes, &about);
            }
            Body::Vote { about, nonce, word } => self.answered(told.from, &about, nonce, word),
        }
    }

    /// A node was heard: whatever was thought of it is over.
    fn lives(&mut self, node: &str) {
        let now = self.now;
        self.peers.polls.remove(node);
        if let Some(watch) = self.peers.watches.get_mut(node) {
            let silent = watch.silent_for(now).unwrap_or(0);
            let told = watch.reported || watch.only_daemon || silent > AGAIN_MS;
            *watch = Watch {
                since: watch.since,
                pinged: watch.pinged,
                last_seen: Some(now),
                ..Watch::default()
            };
            if told {
                self.note(
                    node,
                    format!("{node} is heard again, after {:.1} s", silent as f64 / 1e3),
                );
                self.effects.push(Effect::CheckOwnNode);
            }
        }
        self.conclude(node, true);
    }

    fn asked(&mut self, asker: Asker, job: &JobId, nodes: u64, about: &str) {
        let known =
            |g: &&Group| g.job == *job && g.mark() == nodes && g.has(&asker.node) && g.has(about);
        let own = about == self.peers.own;
        if !own && !self.peers.groups.iter().any(|group| known(&group)) {
            return self.vote(&asker, about, Word::Abstain);
        }
        let watch = self.peers.watches.get(about);
        let fresh = watch
            .and_then(|w| w.silent_for(self.now))
            .is_some_and(|ms| ms < FRESH_MS);
        let left = watch.is_some_and(|watch| watch.left);
        if own || fresh || left {
            return self.vote(&asker, about, Word::Heard);
        }
        let found = self.peers.found.get(about).map(|(_, word)| *word);
        if let Some(word) = found.filter(|word| *word != Word::Abstain) {
            return self.vote(&asker, about, word);
        }
        let begun = self.begin(about, |inquiry| {
            if !inquiry.askers.contains(&asker) {
                inquiry.askers.push(asker.clone());
            }
        });
        if !begun {
            self.vote(&asker, about, Word::Abstain);
        }
    }

    fn answered(&mut self, from: String, about: &str, nonce: u64, word: Word) {
        let Some(poll) = self.peers.polls.get_mut(about) else {
            return;
        };
        let group = &self.peers.groups[poll.group];
        if poll.nonce != nonce || !group.voters().contains(&from.as_str()) {
            return;
        }
        if word == Word::Heard {
            let first = self.peers.watches.get(about).is_some_and(|w| w.tries == 0);
            self.again(about, AGAIN_MS);
            if first {
                self.note(
                    about,
                    format!("{about} is not heard here, but by {from}: nothing is done"),
                );
            }
            return;
        }
        poll.votes.insert(from, word);
        self.count(about);
    }
}
