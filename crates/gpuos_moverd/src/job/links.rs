//! The links of a job to its other nodes, by seat.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use gpuos_link::session::Place;
use gpuos_link::tcp::Sender;

use crate::carried::{Body, Carried};
use crate::event::Event;
use crate::network::Network;

/// The first wait before a connection is tried again, which grows by a half each time, so that a link to a node whose step begins later is not
/// there much later than the step ...
const AGAIN: Duration = Duration::from_millis(100);
/// ... up to this.
const AGAIN_MOST: Duration = Duration::from_secs(5);

/// Short words to a seat that wait for its link, at most ...
const KEPT: usize = 64;
/// ... of so many bytes each ...
const SHORT: usize = 4096;
/// ... for so long. Who says them repeats them, after a second or more: a program that stands still would wait for that.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// How far a connection that this side makes is.
struct Dial {
    due: Instant,
    wait: Duration,
    runs: bool,
}

/// What was said without a link, and when.
type Kept = (Instant, Vec<u8>);

/// All links of a job on this node.
pub struct Links {
    network: Arc<Network>,
    place: Place,
    nodes: Vec<String>,
    to: SyncSender<Event>,
    open: BTreeMap<u16, (u64, Sender)>,
    dials: BTreeMap<u16, Dial>,
    /// Links to these were there and have ended.
    lost: BTreeSet<u16>,
    /// Why the last try at a seat failed.
    why: BTreeMap<u16, String>,
    /// What waits for a link, by seat.
    kept: RefCell<BTreeMap<u16, Vec<Kept>>>,
}

impl Links {
    /// None yet.
    pub fn new(
        network: Arc<Network>,
        place: Place,
        nodes: Vec<String>,
        to: SyncSender<Event>,
    ) -> Links {
        Links {
            network,
            place,
            nodes,
            to,
            open: BTreeMap::new(),
            dials: BTreeMap::new(),
            lost: BTreeSet::new(),
            why: BTreeMap::new(),
            kept: RefCell::default(),
        }
    }

    /// Has a link to a seat made, if there is none: at once, and after failures at growing intervals.
    pub fn want(&mut self, seat: u16) {
        if self.open.contains_key(&seat) || seat == self.place.own.0 {
            return;
        }
        let Some(node) = self.nodes.get(usize::from(seat)) else {
            return;
        };
        let now = Instant::now();
        let dial = self.dials.entry(seat).or_insert(Dial {
            due: now,
            wait: AGAIN,
            runs: false,
        });
        if dial.runs || now < dial.due {
            return;
        }
        dial.runs = true;
        let (place, to) = (self.place.clone(), self.to.clone());
        self.network.dial(place, seat, node.clone(), to);
    }

    /// A link is there, in place of an earlier one.
    pub fn linked(&mut self, seat: u16, number: u64, sender: Sender) {
        self.dials.remove(&seat);
        self.why.remove(&seat);
        self.lost.remove(&seat);
        self.open.insert(seat, (number, sender));
    }

    /// A link has ended. Whether there is none to that seat any more.
    pub fn unlinked(&mut self, seat: u16, number: u64, why: String) -> bool {
        let was = self.open.get(&seat).is_some_and(|open| open.0 == number);
        if was {
            self.open.remove(&seat);
            self.lost.insert(seat);
            self.why.insert(seat, why);
        }
        was
    }

    /// A connection came to nothing. Whether for another reason than the one before.
    pub fn failed(&mut self, seat: u16, why: String) -> bool {
        if let Some(dial) = self.dials.get_mut(&seat) {
            dial.runs = false;
            dial.due = Instant::now() + dial.wait;
            dial.wait = (dial.wait * 3 / 2).min(AGAIN_MOST);
        }
        self.why.insert(seat, why.clone()) != Some(why)
    }

    /// Seats whose links have ended, and are not there again.
    pub fn lost(&self) -> &BTreeSet<u16> {
        &self.lost
    }

    /// Whether there is a link to a seat.
    pub fn is_open(&self, seat: u16) -> bool {
        self.open.contains_key(&seat)
    }

    /// Sends, if there is a link with room; what is short waits a moment for one. What is not sent is said again by who wanted it.
    pub fn say(&self, seat: u16, session: u32, body: Body) {
        let open = self.open.get(&seat);
        // What is too long to wait for a link is not even encoded: pieces of a part may be asked for by a node that has just gone.
        if open.is_none() && body.carries() > SHORT {
            return;
        }
        let Some(bytes) = (Carried { session, body }).encode() else {
            return;
        };
        if let Some((_, sender)) = open {
            let _ = sender.try_send(bytes);
        } else if bytes.len() <= SHORT {
            let mut kept = self.kept.borrow_mut();
            let kept = kept.entry(seat).or_default();
            kept.retain(|(at, earlier)| at.elapsed() < KEPT_FOR && *earlier != bytes);
            if kept.len() < KEPT {
                kept.push((Instant::now(), bytes));
            }
        }
    }

    /// Sends what has waited for a link that is there now.
    pub fn say_kept(&self, seat: u16) {
        let kept = self.kept.borrow_mut().remove(&seat).unwrap_or_default();
        let Some((_, sender)) = self.open.get(&seat) else {
            return;
        };
        for (at, bytes) in kept {
            if at.elapsed() < KEPT_FOR {
                let _ = sender.try_send(bytes);
            }
        }
    }

    /// The name of the node at a seat.
    pub fn node(&self, seat: u16) -> &str {
        let node = self.nodes.get(usize::from(seat));
        node.map_or("?", String::as_str)
    }

    /// Why a seat is not reached, in a clause.
    pub fn why(&self, seat: u16) -> String {
        let node = self.node(seat);
        match (self.open.contains_key(&seat), self.why.get(&seat)) {
            (true, _) => format!("the mover of node {node} does not answer"),
            (false, Some(why)) => format!("node {node} is not reached ({why})"),
            (false, None) => format!("the mover of node {node} has not come"),
        }
    }
}
