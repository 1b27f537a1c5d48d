//! The socket on which processes hand over what is to be parked: a thread that accepts, and one for each process that moves something.
//!
//! The kernel says which process is at the other end; how much it may have, gpuosd. Whatever a process says or sends, it reaches nothing but
//! its own segment, and takes no more than a thread, a ring that its job pays for, and its turn at the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::wire::Peer;
use gpuos_host::socket::{self, Bucket, Places, Rate};
use gpuos_host::steps::job_processes::Processes;
use gpuos_memory::protocol::Lines;
use gpuos_memory::stow::{FromProgram, SLACK, Session, ToProgram, VERSION};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use super::leases::Leases;
use super::pool::{Pool, Work};
use super::ring::{NoRing, Ring, is_passing};
use super::segment::{Folder, Owner, Segment};

/// Connections at a time.
pub(super) const MEMBERS: Places = Places {
    most: 128,
    of_one: 16,
};
/// Those of which it is not known yet whether they may.
const GUESTS: Places = Places {
    most: 64,
    of_one: 8,
};
/// Connections that are taken from the queue.
const ACCEPTS: Rate = Rate {
    each_second: 200.0,
    at_once: 100.0,
};
/// How long the first line may take, and another one.
const HELLO: Duration = Duration::from_secs(5);
const SILENT: Duration = Duration::from_secs(60);
/// After so long gpuosd is asked again what a process may have that writes more.
const AGAIN: Duration = Duration::from_secs(2);
/// Stack of a connection's thread: it reads short lines.
const STACK: usize = 256 << 10;

/// What all connections share.
pub struct Shared {
    folder: Arc<Folder>,
    pool: Pool,
    leases: Box<dyn Leases>,
    processes: Box<dyn Processes>,
    open: Mutex<Open>,
}

/// Who is connected.
#[derive(Default)]
struct Open {
    /// By user.
    guests: BTreeMap<u32, usize>,
    /// By process, with its user.
    members: BTreeMap<Owner, (u32, Arc<UnixStream>)>,
    /// Pieces at the disk by process, with its user: its connection may have ended. There is no entry where there are none.
    under_way: BTreeMap<Owner, (u32, usize)>,
}

impl Shared {
    /// Nobody is connected yet.
    pub fn new(
        folder: Arc<Folder>,
        pool: Pool,
        leases: Box<dyn Leases>,
        processes: Box<dyn Processes>,
    ) -> Shared {
        Shared {
            folder,
            pool,
            leases,
            processes,
            open: Mutex::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process is dead. One that cannot be looked at counts as alive: its bytes are kept.
    pub fn is_dead(&self, owner: Owner) -> bool {
        match self.processes.who(owner.pid) {
            Ok(Some(who)) => who.started != owner.started || who.ended,
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Ends connections of processes that are dead: a child may hold them open, and with them the blocks of what was removed.
    pub fn end(&self, dead: &BTreeSet<Owner>) {
        let open = self.open();
        for (_, stream) in dead.iter().filter_map(|owner| open.members.get(owner)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Takes connections until the process ends.
pub fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut rate = Bucket::full(ACCEPTS, Instant::now());
    for stream in listener.incoming() {
        thread::sleep(rate.take_in_advance(Instant::now()));
        let Ok(stream) = stream else {
            // Too many open files: they close again.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Ok(peer) = socket::peer(&stream) else {
            continue;
        };
        let stream = Arc::new(stream);
        let Some(guest) = Guest::enter(shared, peer.uid) else {
            say(&stream, &ToProgram::Busy);
            continue;
        };
        let run = move || {
            let shared = Arc::clone(&guest.shared);
            if let Err(told) = shared.talk(&stream, peer, guest) {
                say(&stream, &told);
            }
            let _ = stream.shutdown(Shutdown::Both);
        };
        let builder = thread::Builder::new().name("park-process".into());
        let _ = builder.stack_size(STACK).spawn(run);
    }
}

/// A place of somebody who is not known yet.
struct Guest {
    shared: Arc<Shared>,
    uid: u32,
}

impl Guest {
    fn enter(shared: &Arc<Shared>, uid: u32) -> Option<Guest> {
        let mut open = shared.open();
        let all: usize = open.guests.values().sum();
        let own = open.guests.entry(uid).or_default();
        if !GUESTS.may_enter(*own, all) {
            open.guests.retain(|_, count| *count > 0);
            return None;
        }
        *own += 1;
        Some(Guest {
            shared: Arc::clone(shared),
            uid,
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        if let Some(count) = open.guests.get_mut(&self.uid) {
            *count -= 1;
        }
        open.guests.retain(|_, count| *count > 0);
    }
}

/// A place of a process.
struct Member<'a> {
    shared: &'a Shared,
    owner: Owner,
    stream: &'a Arc<UnixStream>,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        let own = open.members.get(&self.owner);
        if own.is_some_and(|(_, stream)| Arc::ptr_eq(stream, self.stream)) {
            open.members.remove(&self.owner);
        }
    }
}

/// A piece that is at the disk, until it is dropped.
struct UnderWay {
    shared: Arc<Shared>,
    owner: Owner,
}

impl UnderWay {
    /// Of a connection; `None`: another one has its place, or it has none any more.
    fn begin(shared: &Arc<Shared>, owner: Owner, stream: &Arc<UnixStream>) -> Option<UnderWay> {
        let mut open = shared.open();
        // What came before it was shut down is read still, and goes nowhere.
        let (uid, own) = open.members.get(&owner)?;
        let uid = Arc::ptr_eq(own, stream).then_some(*uid)?;
        open.under_way.entry(owner).or_insert((uid, 0)).1 += 1;
        Some(UnderWay {
            shared: Arc::clone(shared),
            owner,
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        if let Some((_, count)) = open.under_way.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                open.under_way.remove(&self.owner);
            }
        }
    }
}

/// What a process may use.
struct Allowed {
    owner: Owner,
    /// How long its segment may be, how long it is, and the file.
    limit: u64,
    length: u64,
    segment: Segment,
}

fn refused(why: impl ToString) -> ToProgram {
    let why = why.to_string();
    ToProgram::Refused { why }
}

/// Says something, or ends the connection where that would have to wait.
fn say(stream: &UnixStream, what: &ToProgram) {
    let line = what.line();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if send(stream, line.as_bytes(), flags) != Ok(line.len()) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// What a process may have that was promised so much: extents are not divided.
fn with_slack(promised: u64) -> u64 {
    match promised {
        0 => 0,
        bytes => bytes.saturating_add(SLACK),
    }
}

impl Shared {
    /// Who is at the other end, and what it may use. A refusal is for ever: what passes is answered with `Busy`.
    fn allowed(&self, peer: Peer) -> Result<Allowed, ToProgram> {
        let unseen = "gpuos_mover cannot see this process: it runs in another PID namespace";
        let who = match peer.pid {
            0 => None,
            pid => self.processes.who(pid).map_err(|_| ToProgram::Busy)?,
        };
        // Its number may be another one's by now.
        let who = who.filter(|who| !who.ended && who.uid == peer.uid);
        let who = who.ok_or_else(|| refused(unseen))?;
        let owner = Owner {
            pid: peer.pid,
            started: who.started,
        };
        // One that was parked gets its bytes also while gpuosd is not there.
        let promised = self.leases.limit(owner, peer.uid, Instant::now());
        let limit = with_slack(promised.unwrap_or(0));
        let opened = self.folder.segment(owner, limit);
        let (segment, length) = opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => refused("gpuosd has not promised this process room on NVMe"),
            _ if is_passing(&error) => ToProgram::Busy,
            _ => refused(format!("NVMe cannot be used: {error}")),
        })?;
        Ok(Allowed {
            owner,
            limit,
            length,
            segment,
        })
    }

    /// Serves a connection to its end. Answers what it is told if it is not served.
    fn talk(
        self: &Arc<Shared>,
        stream: &Arc<UnixStream>,
        peer: Peer,
        guest: Guest,
    ) -> Result<(), ToProgram> {
        // Before a file is taken: to close one of a file system whose server does not answer may take for ever, so nobody hands one over
        // who has nothing here.
        let allowed = self.allowed(peer);
        let mut lines = Lines::default();
        let until = Instant::now() + HELLO;
        if allowed.is_err() {
            // Programs say their line first, and listen then. Files that come with it are not taken.
            let _ = next(stream, &mut lines, Some(until));
        }
        let Allowed {
            owner,
            limit,
            length,
            segment,
        } = allowed?;
        let (slots, ring) = hello(stream, &mut lines, until)?;
        let ring = Ring::new(ring, slots).map_err(|error| match error {
            NoRing::Now => ToProgram::Busy,
            NoRing::Never(why) => refused(format!("the ring is not taken: {why}")),
        })?;
        let session = Session::new(slots, limit, length)
            .ok_or_else(|| refused("the ring has too many slots"))?;
        let _member = self.enter(owner, peer.uid, stream)?;
        drop(guest);
        let timed = stream.set_read_timeout(Some(SILENT));
        timed.map_err(refused)?;
        say(stream, &ToProgram::Ready { limit });
        let (ring, segment) = (Arc::new(ring), Arc::new(segment));
        let session = Arc::new(Mutex::new(session));
        let mut asked = Instant::now();
        while let Some(said) = next(stream, &mut lines, None) {
            let locked = || session.lock().unwrap_or_else(PoisonError::into_inner);
            // A promise may have ended since: who has said that it gives nothing may write nothing more.
            if matches!(said, FromProgram::Put { .. }) && asked.elapsed() >= AGAIN {
                asked = Instant::now();
                if let Some(promised) = self.leases.limit(owner, peer.uid, asked) {
                    locked().promised(with_slack(promised));
                }
            }
            locked().take(&said).map_err(refused)?;
            if said == FromProgram::Drop {
                let removed = self.folder.remove(owner);
                removed.map_err(refused)?;
                say(stream, &ToProgram::Dropped);
                return Ok(());
            }
            let Some(under_way) = UnderWay::begin(self, owner, stream) else {
                return Ok(());
            };
            let (session, stream) = (session.clone(), stream.clone());
            let answer = move |slot, answer| {
                let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
                session.done(slot);
                drop(session);
                // Who has heard of it may connect again.
                drop(under_way);
                say(&stream, &answer);
            };
            self.pool.give(Work {
                owner,
                uid: peer.uid,
                said,
                ring: ring.clone(),
                segment: segment.clone(),
                answer: Box::new(answer),
            });
        }
        Ok(())
    }

    /// Takes a place, in that of an older connection of the same process.
    fn enter<'a>(
        &'a self,
        owner: Owner,
        uid: u32,
        stream: &'a Arc<UnixStream>,
    ) -> Result<Member<'a>, ToProgram> {
        let mut open = self.open();
        if let Some((_, older)) = open.members.remove(&owner) {
            let _ = older.shutdown(Shutdown::Both);
        }
        // Its pieces have slots of the ring before, and places that the process may use for something else now.
        if open.under_way.contains_key(&owner) {
            return Err(ToProgram::Busy);
        }
        // Who has gone keeps a place as long as pieces of it are under way: so the queue has room for all that may be.
        let mut gone = open.under_way.clone();
        gone.retain(|owner, _| !open.members.contains_key(owner));
        let here = open.members.values().map(|(of, _)| *of);
        let places: Vec<u32> = here.chain(gone.values().map(|(of, _)| *of)).collect();
        let own = places.iter().filter(|of| **of == uid).count();
        if !MEMBERS.may_enter(own, places.len()) {
            return Err(ToProgram::Busy);
        }
        open.members.insert(owner, (uid, Arc::clone(stream)));
        Ok(Member {
            shared: self,
            owner,
            stream,
        })
    }
}

/// The first line, with the ring: how many slots it has, and the file.
fn hello(
    stream: &Arc<UnixStream>,
    lines: &mut Lines,
    until: Instant,
) -> Result<(u32, OwnedFd), ToProgram> {
    let none = || refused("the first line has to be a hello, and come with a ring");
    in_time(stream, until).ok_or_else(none)?;
    let mut bytes = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(&**stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
    let got = got.map_err(|_| none())?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    if files.len() < 2 && got.flags.contains(ReturnFlags::CTRUNC) {
        // There was room for it: this process has too many open files.
        return Err(ToProgram::Busy);
    }
    let mut files = files.into_iter();
    let ring = files.next().filter(|_| files.len() == 0);
    let ring = ring.ok_or_else(none)?;
    lines.push(&bytes[..got.bytes]);
    match next(stream, lines, Some(until)) {
        Some(FromProgram::Hello {
            version: VERSION,
            slots,
        }) => Ok((slots, ring)),
        _ => Err(none()),
    }
}

/// Has the next read end in time; `None`: it is over.
fn in_time(stream: &UnixStream, until: Instant) -> Option<()> {
    let left = until.checked_duration_since(Instant::now())?;
    // Of zero it would be for ever.
    let left = Some(left).filter(|left| !left.is_zero())?;
    stream.set_read_timeout(Some(left)).ok()
}

/// The next message, until a time where one is given; `None`: there is none any more, or what came is none. Files that come with it are closed by the kernel.
fn next(mut stream: &UnixStream, lines: &mut Lines, until: Option<Instant>) -> Option<FromProgram> {
    let mut bytes = [0; 1024];
    loop {
        if let Some(line) = lines.next_line().ok()? {
            return FromProgram::parse(&line).ok();
        }
        if let Some(until) = until {
            in_time(stream, until)?;
        }
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => lines.push(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
