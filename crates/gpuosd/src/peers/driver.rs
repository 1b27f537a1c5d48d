//! The thread that has the state, and what it has done by others.

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::job::JobId;
use gpuos_core::peers::{
    Act, Body, Datagram, Effect, Event, Group, HeartbeatConfig, ManagerAnswer, PeerView,
    Peers as State, step,
};
use gpuos_host::munge::Munge;
use gpuos_workload::action::Outcome;
use gpuos_workload::{Addresses, Silent, WorkloadManager};

use super::net::Net;
use super::{Notice, Peers, Report, port};
use crate::sink::{NotTaken, Sink};

/// Between two looks at the time.
const TICK: Duration = Duration::from_millis(100);
/// What did not work is tried again after so long.
const AGAIN: Duration = Duration::from_secs(30);
/// The loop is told how the peers are so often at least, while there are some.
const VIEW: Duration = Duration::from_secs(2);
/// slurmctld is asked about this node itself so often at most.
const SELF_EVERY: Duration = Duration::from_secs(20);
/// How long its daemon on a node may take.
const DAEMON: Duration = Duration::from_millis(1000);

/// A port that somebody else has is tried again so often.
const TAKEN: Duration = Duration::from_secs(10);
/// Datagrams that came while nobody read them, and are thrown away at most: more than a socket's buffer holds.
const OLD: usize = 65_536;

/// Starts the thread. It binds the port of the heartbeat as `first` has it, and does nothing else before it is told a
/// configuration. `proc` is where the kernel tells who has a port.
///
/// # Errors
/// A thread cannot be made.
pub fn start(
    node: &str,
    manager: Arc<dyn WorkloadManager>,
    (first, proc): (HeartbeatConfig, &Path),
    to: Sink<Report>,
) -> std::io::Result<Peers> {
    let (told, from) = channel();
    let now = Instant::now();
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nonce = seed.map_or(0, |time| time.as_nanos() as u64);
    let driver = Driver {
        state: State::new(node, nonce, 0),
        node: node.into(),
        manager,
        nonce,
        began: now,
        config: HeartbeatConfig {
            act: Act::Off,
            ..HeartbeatConfig::default()
        },
        groups: Vec::new(),
        ways: None,
        not_before: now,
        trouble: None,
        names: runner("peers-names")?,
        errands: runner("peers-workload")?,
        notices: told.clone(),
        to,
        shown: Shown::default(),
        down: Vec::new(),
        ticked: now,
        own_check_due: None,
        checking: false,
        socket: None,
        keeps: (first.act != Act::Off).then_some(first.port),
        keep_at: now,
        taken: None,
        proc: proc.to_path_buf(),
    };
    thread::Builder::new()
        .name("peers".into())
        .spawn(move || driver.run(&from))?;
    Ok(Peers(told))
}

type Errand = Box<dyn FnOnce() + Send>;

/// A thread for what may take long.
fn runner(name: &str) -> std::io::Result<Sender<Errand>> {
    let (to, from) = channel::<Errand>();
    let run = move || from.into_iter().for_each(|errand| errand());
    thread::Builder::new().name(name.into()).spawn(run)?;
    Ok(to)
}

struct Driver {
    state: State,
    node: String,
    manager: Arc<dyn WorkloadManager>,
    nonce: u64,
    began: Instant,
    config: HeartbeatConfig,
    groups: Vec<Group>,
    ways: Option<Ways>,
    /// The ways to the others are not made before.
    not_before: Instant,
    trouble: Option<String>,
    names: Sender<Errand>,
    /// What the workload manager is asked and told.
    errands: Sender<Errand>,
    notices: Sender<Notice>,
    to: Sink<Report>,
    shown: Shown,
    /// Jobs that are to be let go, of which the loop is not told yet.
    down: Vec<JobId>,
    ticked: Instant,
    /// When slurmctld is asked whether it holds this node for silent.
    own_check_due: Option<Instant>,
    checking: bool,
    /// The port of the heartbeat, and what it was asked for as.
    socket: Option<(u16, UdpSocket)>,
    /// `[heartbeat] port`, while there is to be a heartbeat.
    keeps: Option<u16>,
    /// It is tried then.
    keep_at: Instant,
    /// Why there is none, where somebody else has it.
    taken: Option<String>,
    proc: PathBuf,
}

/// The ways to other nodes.
struct Ways {
    net: Net,
    /// By the workload manager's configuration.
    addresses: Arc<dyn Addresses>,
    /// Of daemons, where the name is known.
    daemons: HashMap<String, SocketAddr>,
    /// Names that are being looked up.
    asked: BTreeSet<String>,
    /// Where messages came from: of nodes that this one does not ping.
    origins: HashMap<String, SocketAddr>,
}

/// What the loop was told last.
#[derive(Default)]
struct Shown {
    states: Vec<(String, gpuos_core::peers::PeerState)>,
    trouble: Option<String>,
    at: Option<Instant>,
}

/// Senders are remembered; more than a large job's nodes are none of this node's.
const MOST_HEARD: usize = 4096;

impl Driver {
    fn run(mut self, from: &Receiver<Notice>) {
        loop {
            let rest = TICK.saturating_sub(self.ticked.elapsed());
            match from.recv_timeout(rest) {
                Ok(told) => self.take(told),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // However many messages come, time goes by as well.
            if self.ticked.elapsed() >= TICK {
                self.ticked = Instant::now();
                self.tick();
            }
        }
    }

    fn take(&mut self, told: Notice) {
        match told {
            Notice::Config(config) => self.configure(config),
            Notice::Groups(groups) => {
                self.groups.clone_from(&groups);
                if self.ways.is_some() {
                    self.event(Event::Groups(groups));
                    self.resolve_peers();
                }
            }
            Notice::End(done) => self.end(done),
            Notice::Received(told, from) => {
                if let Some(ways) = &mut self.ways {
                    if ways.origins.len() >= MOST_HEARD {
                        ways.origins.clear();
                    }
                    ways.origins.insert(told.from.clone(), from);
                    self.event(Event::Received(told));
                }
            }
            Notice::Daemon(node, answer) => self.event(Event::Manager(node, answer)),
            Notice::Resolved(node, address) => {
                if let Some(ways) = &mut self.ways {
                    ways.asked.remove(&node);
                    if let Some(address) = address {
                        ways.daemons.insert(node, address);
                    }
                }
            }
            Notice::Asked(job, node, outcome) => self.asked(&job, node, outcome),
            Notice::Self_(again) => {
                self.checking = false;
                self.own_check_due = again.then(|| Instant::now() + SELF_EVERY);
            }
        }
    }

    fn configure(&mut self, config: HeartbeatConfig) {
        let off = config.act == Act::Off;
        if off && self.ways.take().is_some() {
            // Whoever listens no more must not be taken for one who hears nobody.
            self.state = State::new(&self.node, self.nonce, self.now());
        }
        if off {
            self.trouble = None;
        } else if self.config.act == Act::Off {
            self.not_before = Instant::now();
            self.own_check_due = Some(Instant::now());
        }
        let keeps = (!off).then_some(config.port);
        if keeps != self.keeps {
            // Another port means other ways.
            self.ways = None;
            (self.socket, self.taken, self.keeps) = (None, None, keeps);
            self.keep_at = Instant::now();
        }
        self.config = config;
        self.keep();
    }

    /// Binds the port of the heartbeat, whether or not it is needed now: a user could have it else when it is.
    fn keep(&mut self) {
        let Some(wanted) = self.keeps.filter(|_| self.socket.is_none()) else {
            return;
        };
        if Instant::now() < self.keep_at {
            return;
        }
        self.keep_at = Instant::now() + TAKEN;
        // Where slurm.conf or this node's name is not to be had yet, that is said when a job needs it.
        let Ok(own) = self
            .manager
            .addresses()
            .and_then(|addresses| self.own(&*addresses, wanted))
        else {
            return;
        };
        match port::bind(own, &self.proc) {
            Ok(socket) => {
                if self.taken.take().is_some() {
                    self.report(Report::Note(format!(
                        "UDP port {} is free again",
                        own.port()
                    )));
                }
                tracing::info!("the heartbeat keeps UDP port {}", own.port());
                self.socket = Some((wanted, socket));
                self.not_before = Instant::now();
            }
            Err(why) => {
                let why = format!("the nodes of jobs do not watch each other: {why}");
                if self.taken.as_ref() != Some(&why) {
                    tracing::error!("{why}; it is tried again every {} s", TAKEN.as_secs());
                    self.report(Report::Note(why.clone()));
                }
                self.taken = Some(why);
            }
        }
    }

    /// This node's address for the heartbeat.
    fn own(&self, addresses: &dyn Addresses, wanted: u16) -> Result<SocketAddr, String> {
        let (host, port) = addresses.of(&self.node);
        let mut own = first(&host, port).ok_or_else(|| {
            format!("this node's address {host}, by slurm.conf, cannot be resolved: see `getent hosts {host}`")
        })?;
        if wanted > 0 {
            own.set_port(wanted);
        }
        Ok(own)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn tick(&mut self) {
        self.keep();
        if self.config.act != Act::Off {
            // Without a job of several nodes there is nobody to hear.
            let needed = self.groups.iter().any(|group| group.has(&self.node));
            let taken = self.socket.is_none() && self.taken.is_some();
            if needed && self.ways.is_none() && !taken && Instant::now() >= self.not_before {
                self.open();
            }
            if let Some(ways) = &self.ways {
                let deaf = ways.net.is_munge_failing();
                self.trouble = (!ways.net.is_well()).then(|| {
                    "munged does not answer: the nodes of jobs do not watch each other".into()
                });
                if deaf {
                    self.event(Event::Deaf);
                }
                self.event(Event::Tick);
            }
            let due = self.own_check_due.is_some_and(|at| Instant::now() >= at) && !self.checking;
            if due {
                self.check_own_node();
            }
        }
        self.tell_down();
        self.show();
    }

    /// Makes the ways to other nodes.
    fn open(&mut self) {
        match self.try_open() {
            Ok(ways) => {
                self.trouble = None;
                self.ways = Some(ways);
                self.event(Event::Groups(self.groups.clone()));
                self.resolve_peers();
            }
            Err(why) => {
                let why = format!("the nodes of jobs do not watch each other: {why}");
                if self.trouble.as_ref() != Some(&why) {
                    tracing::warn!("{why}; it is tried again every {} s", AGAIN.as_secs());
                }
                self.trouble = Some(why);
                self.not_before = Instant::now() + AGAIN;
            }
        }
    }

    fn try_open(&self) -> Result<Ways, String> {
        let addresses = self.manager.addresses()?;
        let socket = addresses.munge_socket();
        let munge = Munge::open(None, socket.as_deref()).map_err(|e| e.to_string())?;
        let own = self.own(&*addresses, self.config.port)?;
        let Some((_, socket)) = &self.socket else {
            // What is in the way is said once, by whoever tries to keep it.
            return Err(format!("this node has no UDP port {}", own.port()));
        };
        let failed = |e: std::io::Error| format!("UDP port {}: {e}", own.port());
        forget(socket).map_err(failed)?;
        let socket = socket.try_clone().map_err(failed)?;
        let net = Net::start(socket, Arc::new(munge), self.notices.clone()).map_err(failed)?;
        tracing::info!("peers are heard at UDP port {}", own.port());
        Ok(Ways {
            net,
            addresses,
            daemons: HashMap::new(),
            asked: BTreeSet::new(),
            origins: HashMap::new(),
        })
    }

    /// Looks up the names of those who will be pinged or asked, before that is needed.
    fn resolve_peers(&mut self) {
        let own = self.node.clone();
        let mut needed: BTreeSet<String> = BTreeSet::new();
        for group in self.groups.iter().filter(|group| group.has(&own)) {
            let names = group.voters().into_iter().chain(group.watched_by(&own));
            needed.extend(names.filter(|name| *name != own).map(str::to_string));
        }
        for node in needed {
            self.resolve_one(&node);
        }
    }

    fn resolve_one(&mut self, node: &str) {
        let Some(ways) = &mut self.ways else { return };
        if ways.daemons.contains_key(node) || !ways.asked.insert(node.into()) {
            return;
        }
        let (told, addresses, node) = (
            self.notices.clone(),
            ways.addresses.clone(),
            node.to_string(),
        );
        let errand = move || {
            let (host, port) = addresses.of(&node);
            let _ = told.send(Notice::Resolved(node, first(&host, port)));
        };
        let _ = self.names.send(Box::new(errand));
    }

    fn event(&mut self, event: Event) {
        let now = self.now();
        for effect in step(&mut self.state, &self.config, event, now) {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send(told) => self.send(told),
            Effect::Probe(node) => self.probe(node),
            Effect::Silent {
                job,
                node,
                silent_ms,
                agreed,
            } => self.silent(&job, node, silent_ms, agreed),
            Effect::Note { node, text } => {
                tracing::info!(peer = node, "{text}");
                self.report(Report::Note(text));
            }
            Effect::CheckOwnNode => {
                self.own_check_due.get_or_insert_with(Instant::now);
            }
        }
    }

    fn send(&mut self, told: Datagram) {
        let port = self.config.port;
        let Some(ways) = &self.ways else { return };
        let listens = ways.daemons.get(&told.to).map(|address| {
            let mut address = *address;
            if port > 0 {
                address.set_port(port);
            }
            address
        });
        match listens.or_else(|| ways.origins.get(&told.to).copied()) {
            Some(address) => ways.net.send(told, address),
            None => self.resolve_one(&told.to),
        }
    }

    fn probe(&mut self, node: String) {
        let address = self
            .ways
            .as_ref()
            .and_then(|w| w.daemons.get(&node).copied());
        let told = self.notices.clone();
        let Some(address) = address else {
            // Without an answer the node has no say about it.
            return self.resolve_one(&node);
        };
        let manager = self.manager.clone();
        let ask = move || {
            let answer: ManagerAnswer = manager.ask_daemon(address, DAEMON);
            let _ = told.send(Notice::Daemon(node, answer));
        };
        let _ = thread::Builder::new()
            .name("peers-daemon".into())
            .spawn(ask);
    }

    fn silent(&mut self, job: &JobId, node: String, silent_ms: u64, agreed: Vec<String>) {
        let seconds = silent_ms as f64 / 1e3;
        let text = format!(
            "{node} is silent for {seconds:.1} s, by the word of {}",
            agreed.join(", ")
        );
        tracing::error!(peer = node, %job, silent_ms, "{text}");
        let what = match self.config.act {
            Act::Down => "slurmctld is asked to set it DOWN",
            Act::Warn | Act::Off => "nothing is done ([heartbeat] act = \"warn\")",
        };
        self.report(Report::Note(format!("{text}: {what}")));
        if self.config.act != Act::Down {
            return;
        }
        let (told, manager) = (self.notices.clone(), self.manager.clone());
        let silent = Silent {
            job: job.clone(),
            node,
            silent_ms,
            agreed,
        };
        let errand = move || {
            let outcome = manager.set_down(&silent);
            let _ = told.send(Notice::Asked(silent.job, silent.node, outcome));
        };
        let _ = self.errands.send(Box::new(errand));
    }

    fn asked(&mut self, job: &JobId, node: String, outcome: Outcome) {
        match outcome {
            Outcome::Done(text) => {
                self.report(Report::Note(text));
                self.down.push(job.clone());
                self.tell_down();
            }
            Outcome::Nothing(text) => self.report(Report::Note(text)),
            Outcome::Refused(text) => {
                self.report(Report::Note(format!("slurmctld refused: {text}")))
            }
            Outcome::NoAnswer(text) | Outcome::NotYet(text) => {
                let text =
                    format!("{text}; {node} is looked into again before slurmctld is asked again");
                self.report(Report::Note(text));
                self.event(Event::NoAnswer(node));
            }
        }
    }

    /// Has the loop let jobs go whose node is DOWN. One that it has no room for is told later: the job would wait for minutes.
    fn tell_down(&mut self) {
        let to = &self.to;
        let full = |job: &JobId| to.try_send(Report::Down(job.clone())) == Err(NotTaken::Full);
        self.down.retain(full);
    }

    /// Where peers found this node silent, and its slurmd answers again, slurmctld is asked to resume it.
    fn check_own_node(&mut self) {
        self.checking = true;
        let (told, own, to) = (self.notices.clone(), self.node.clone(), self.to.clone());
        let manager = self.manager.clone();
        let errand = move || {
            let again = match manager.is_set_down() {
                Ok(true) => !request_resume(&*manager, &own, &to),
                Ok(false) => false,
                Err(_) => true,
            };
            let _ = told.send(Notice::Self_(again));
        };
        let _ = self.errands.send(Box::new(errand));
    }

    fn report(&self, report: Report) {
        // The loop may be slow; what is only told must not hold up pings.
        let _ = self.to.try_send(report);
    }

    fn show(&mut self) {
        let view: Vec<PeerView> = match self.ways {
            Some(_) => self.state.view(&self.config, self.now()),
            None => Vec::new(),
        };
        let states = view.iter().map(|peer| (peer.node.clone(), peer.state));
        let states: Vec<_> = states.collect();
        let trouble = self.taken.clone().or_else(|| self.trouble.clone());
        let late = self.shown.at.is_none_or(|at| at.elapsed() >= VIEW) && !view.is_empty();
        if late || states != self.shown.states || trouble != self.shown.trouble {
            self.shown = Shown {
                states,
                trouble: trouble.clone(),
                at: Some(Instant::now()),
            };
            self.report(Report::View(view, trouble));
        }
    }

    /// Whoever pings this node is told that it ends.
    fn end(&mut self, done: Sender<()>) {
        for node in self.state.farewell() {
            // A datagram may be lost.
            for _ in 0..2 {
                self.send(Datagram::new(&self.node, &node, Body::Bye));
            }
        }
        match self.ways.take() {
            Some(ways) => ways.net.flush(done),
            None => drop(done.send(())),
        }
        self.config.act = Act::Off;
    }
}

/// Returns whether it is done with.
fn request_resume(manager: &dyn WorkloadManager, own: &str, to: &Sink<Report>) -> bool {
    let daemon = manager.addresses().ok().and_then(|addresses| {
        let (host, port) = addresses.of(own);
        first(&host, port)
    });
    let answers = daemon.map(|address| manager.ask_daemon(address, DAEMON));
    if answers != Some(ManagerAnswer::Answers) {
        return false;
    }
    match manager.resume() {
        Outcome::Done(text) => {
            let _ = to.try_send(Report::Note(text));
            true
        }
        Outcome::Nothing(_) | Outcome::Refused(_) => true,
        Outcome::NoAnswer(_) | Outcome::NotYet(_) => false,
    }
}

/// Throws away what came while nobody read it: it is old, or nobody's.
fn forget(socket: &UdpSocket) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 1];
    let _ = (0..OLD)
        .take_while(|_| socket.recv(&mut buffer).is_ok())
        .count();
    socket.set_nonblocking(false)
}

fn first(host: &str, port: u16) -> Option<SocketAddr> {
    (host, port).to_socket_addrs().ok()?.next()
}
