//! Links to the movers of other nodes: an address for each node, a listener, and threads that connect and receive.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::manifest::KeyId;
use gpuos_link::bucket::Bucket;
use gpuos_link::munge::Munge;
use gpuos_link::session::{Fault, KeyNames, Place, Places, Settings};
use gpuos_link::tcp::{self, Error, Failures, Link, Listener, Options, Pace, Receiver};
use gpuos_store::key::KeyIds;
use gpuos_workload::Addresses;

use crate::carried::MAX_CARRIED;
use crate::event::Event;
use crate::jobs::Jobs;
use crate::not_reached::{Hope, NotReached};

/// Where no port is configured it is that of the workload manager's daemon and so much more: then several nodes on one machine, which
/// have ports of their own there, have them here, too.
const ABOVE: u16 = 1000;

/// How long the thread that takes links waits before it looks at what failed.
const LOOK: Duration = Duration::from_secs(5);

/// Connections that come to nothing are told if they do for longer than this.
const PERSISTS: Duration = Duration::from_secs(30);

/// A port that somebody else has is tried again so often.
pub const TAKEN: Duration = Duration::from_secs(10);

/// Nodes with other keys that are remembered, so that each is told of once; own choice.
const MOST_TOLD: usize = 4096;

/// Stack of a thread that receives or connects: frames lie on the heap.
const STACK: usize = 512 << 10;

/// Bytes that may be sent at once where the rate is limited: a piece of parity.
const BURST: u64 = 4 << 20;

/// How this node reaches others, and is reached.
pub struct Network {
    addresses: Arc<dyn Addresses>,
    credentials: Munge,
    options: Options,
    port: u16,
    links: AtomicU64,
}

impl Network {
    /// `port` 0 stands for that of the workload manager's daemon and 1000 more; `rate` is in bytes a second, 0 for no limit.
    pub fn new(
        addresses: Arc<dyn Addresses>,
        munge: Arc<dyn gpuos_host::munge::Credentials>,
        port: u16,
        rate: u64,
    ) -> Network {
        let own = rustix::process::geteuid().as_raw();
        let pace = (rate > 0).then(|| Arc::new(Pace::new(Bucket::new(rate, BURST))));
        Network {
            addresses,
            credentials: Munge(munge),
            options: Options {
                settings: Settings {
                    limit: MAX_CARRIED,
                    own_uid: (own != 0).then_some(own),
                    keys: KeyNames::default(),
                },
                pace,
                ..Options::default()
            },
            port,
            links: AtomicU64::new(0),
        }
    }

    /// Has links come about only with nodes whose keys of checkpoints go with these.
    pub fn with_keys(mut self, keys: &KeyIds) -> Network {
        let names = |ids: &[KeyId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        self.options.settings.keys = KeyNames::new(&names(&keys.makes), &names(&keys.knows));
        self
    }

    /// Where the mover of a node listens.
    ///
    /// # Errors
    /// A sentence: its name has no address.
    pub fn address(&self, node: &str) -> Result<SocketAddr, String> {
        let (host, daemon) = self.addresses.of(node);
        let port = match self.port {
            0 => daemon.saturating_add(ABOVE),
            port => port,
        };
        let found = (host.as_str(), port).to_socket_addrs();
        let first = found.ok().and_then(|mut all| all.next());
        first.ok_or_else(|| {
            format!(
                "node {node} has no address: its name is {host} by the workload manager's configuration; see `getent hosts {host}`"
            )
        })
    }

    /// Listens at this node's address.
    ///
    /// # Errors
    /// A sentence: the port is taken, or the node has no address.
    pub fn listen(&self, node: &str, jobs: Arc<Jobs>) -> Result<Listener, String> {
        let address = self.address(node)?;
        let socket = bind(address).map_err(|e| {
            let port = address.port();
            match e.kind() {
                ErrorKind::AddrInUse => format!(
                    "TCP port {port} is taken: `ss -tlpn sport = :{port}` names who has it; end it, or set [checkpoint] port in gpuos.toml"
                ),
                _ => format!("cannot listen to TCP port {port}: {e}"),
            }
        })?;
        let places: Arc<dyn Places> = jobs;
        let credentials = Arc::new(self.credentials.clone());
        Listener::start(socket, places, credentials, self.options.clone())
            .map_err(|e| e.to_string())
    }

    /// Connects this node's mover with that of another seat of a job, in a thread; what comes of it is told to the job.
    pub fn dial(self: &Arc<Network>, place: Place, seat: u16, node: String, to: SyncSender<Event>) {
        let network = self.clone();
        let dial = move || {
            let within = network.options.connect;
            match network.reach_within(within, &node, place, NodeIndex(seat)) {
                Ok(link) => network.carry(link, &to),
                Err(not) => drop(to.send(Event::NotLinked { seat, not })),
            }
        };
        let thread = thread::Builder::new().name("dial".into()).stack_size(STACK);
        // Without a thread the job tries again later.
        let _ = thread.spawn(dial);
    }

    /// Connects with the mover of a node, which waits, with a limit for the connection to come about. A handshake has its own.
    ///
    /// # Errors
    /// Why it is not reached.
    pub fn reach_within(
        &self,
        limit: Duration,
        node: &str,
        place: Place,
        peer: NodeIndex,
    ) -> Result<Link, NotReached> {
        let address = self.address(node).map_err(NotReached::turned_away)?;
        let options = Options {
            connect: limit.min(self.options.connect),
            ..self.options.clone()
        };
        let link = tcp::connect(address, place, peer, &self.credentials, &options);
        link.map_err(|error| NotReached {
            hope: match error {
                Error::Unreached(_) => Hope::Away,
                Error::Fault(Fault::Keys(_)) => Hope::Keys,
                Error::Fault(_) | Error::TurnedAway => Hope::None,
                _ => Hope::Slow,
            },
            why: format!("the mover of node {node} at {address}: {error}"),
        })
    }

    /// Hands the sending half of a link to its job, and receives until the link ends.
    pub fn carry(&self, link: Link, to: &SyncSender<Event>) {
        let number = self.links.fetch_add(1, Ordering::Relaxed);
        let seat = link.peer.node.0;
        let linked = Event::Linked {
            seat,
            number,
            sender: link.sender,
        };
        if to.send(linked).is_ok() {
            receive(link.receiver, (seat, number), to);
        }
    }

    /// Takes links, and hands each to its job, those of none of them to `others`, until the process ends.
    ///
    /// # Errors
    /// The thread cannot be made.
    pub fn take(
        self: &Arc<Network>,
        listener: Listener,
        jobs: Arc<Jobs>,
        others: impl Fn(Link) + Send + 'static,
    ) -> std::io::Result<()> {
        let network = self.clone();
        let take = move || {
            let mut vain = Vain::default();
            let mut strange = BTreeSet::new();
            loop {
                let link = listener.accept(LOOK);
                let mut failures = listener.failures();
                refused(&mut failures, &mut strange);
                if let Some((from, error)) = failures.last.back() {
                    tracing::debug!("a connection from {from} came to nothing: {error}");
                    if let Some(count) = vain.failed(failures.count, Instant::now()) {
                        tracing::warn!(
                            "{count} connections came to nothing, the last from {from}: {error}"
                        );
                    }
                }
                let Some(link) = link else { continue };
                let Some(to) = jobs.sender(&link.peer.job) else {
                    others(link);
                    continue;
                };
                let network = network.clone();
                let thread = thread::Builder::new().name("link-in".into());
                let _ = thread
                    .stack_size(STACK)
                    .spawn(move || network.carry(link, &to));
            }
        };
        thread::Builder::new().name("links".into()).spawn(take)?;
        Ok(())
    }
}

/// Takes those that were refused for their keys out of the failures: each node is told of once, however often it comes again.
fn refused(failures: &mut Failures, told: &mut BTreeSet<(IpAddr, String)>) {
    failures.last.retain(|(from, error)| {
        let Error::Fault(Fault::Keys(keys)) = error else {
            return true;
        };
        failures.count = failures.count.saturating_sub(1);
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        if told.insert((from.ip(), keys.to_string())) {
            tracing::warn!("a mover at {} is refused: {keys}", from.ip());
        }
        false
    });
}

fn receive(mut receiver: Receiver, (seat, number): (u16, u64), to: &SyncSender<Event>) {
    let why = loop {
        match receiver.recv() {
            // A job that does not keep up is not sent to, either: nothing is read meanwhile.
            Ok(Some(bytes)) => {
                if to.send(Event::Came { seat, bytes }).is_err() {
                    return;
                }
            }
            Ok(None) => break "it has ended in order".to_string(),
            Err(error) => break error.to_string(),
        }
    };
    let _ = to.send(Event::Unlinked { seat, number, why });
}

/// Binds `address`, or the same port of all addresses where that one is not this machine's.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    TcpListener::bind(address).or_else(|e| match e.kind() {
        ErrorKind::AddrNotAvailable => TcpListener::bind((any, address.port())),
        _ => Err(e),
    })
}

/// Connections that came to nothing. Some do when a job starts, as its nodes hear of it one after another.
#[derive(Default)]
struct Vain {
    since: Option<Instant>,
    last: Option<Instant>,
    count: u64,
}

impl Vain {
    /// So many more; how many there were, if they go on for longer than any start of a job.
    fn failed(&mut self, count: u64, now: Instant) -> Option<u64> {
        let quiet = |at: Instant| now.saturating_duration_since(at) > PERSISTS;
        if self.last.is_none_or(quiet) {
            *self = Vain::default();
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(count);
        let since = *self.since.get_or_insert(now);
        quiet(since).then(|| {
            self.since = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_in_vain_are_told_if_they_go_on() {
        let now = Instant::now();
        let mut vain = Vain::default();
        let mut at = |seconds| vain.failed(1, now + Duration::from_secs(seconds));
        let first: Vec<Option<u64>> = (0..8).map(|step| at(5 * step)).collect();
        assert_eq!(first, [None, None, None, None, None, None, None, Some(8)]);
        assert_eq!((at(40), at(60)), (None, None));
        // A start of a job some minutes later.
        assert_eq!((at(300), at(310)), (None, None));
    }
}
