//! The socket on which programs ask for memory in tiers: a thread that accepts, and a small one for each connection.
//!
//! A connection is a guest's until it is known which job it is for: guests are few, and go within seconds. Those whose process is in no
//! group of Slurm's have places of their own, so that nobody outside of jobs keeps a job's program out. What is no program of a job with
//! `--gpuos-mem` is refused by these threads alone, and the loop never hears of it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuos_core::wire::Peer;
use gpuos_host::socket::{self, Bucket, Places, Rate};
use gpuos_host::steps::job_processes::Processes;
use gpuos_memory::protocol::{FromProgram, Lines, NOT_UNDERSTOOD, OLDEST, ToProgram, VERSION};

use super::Notice;
use super::line::Line;
use super::programs::{Members, Program, client};
use crate::sink::Sink;

/// Connections that are taken from the queue: a flood of them is to take a small part of a core.
const ACCEPTS: Rate = Rate {
    each_second: 200.0,
    at_once: 100.0,
};
/// Lines of one connection: each may be a question for the loop.
const LINES: Rate = Rate {
    each_second: 20.0,
    at_once: 200.0,
};
/// How long a step's report may take to come to the loop, and slurmctld's word about its job; and for a process of no step.
const KNOWN: Duration = Duration::from_secs(6);
const STRANGER: Duration = Duration::from_secs(1);
/// Between two looks at that.
const LOOK: Duration = Duration::from_millis(50);
/// How long the first line may take.
const HELLO: Duration = Duration::from_secs(5);
/// Whether the socket's file is there is looked at so often.
const CHECK: Duration = Duration::from_secs(10);
/// Stack of a connection's thread: it reads short lines.
const STACK: usize = 256 << 10;

/// Whether it is known which job a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// Of no step, as far as the kernel says, and of a user without such a job.
    Stranger,
    Guest,
    Member,
}

impl Kind {
    /// Connections of all users and of one: gpuosd has 1,024 open files.
    fn places(self) -> Places {
        let [most, of_one] = match self {
            Kind::Stranger => [32, 4],
            Kind::Guest => [64, 8],
            Kind::Member => [256, 64],
        };
        Places { most, of_one }
    }
}

/// Who has how many connections.
#[derive(Clone, Debug, Default)]
struct Held(Arc<Mutex<BTreeMap<(Kind, u32), usize>>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Kind, u32), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if there is one.
    fn enter(&self, kind: Kind, uid: u32) -> Option<Place> {
        let mut held = self.lock();
        let all = held.iter().filter(|((of, _), _)| *of == kind);
        let all: usize = all.map(|(_, count)| count).sum();
        let own = held.get(&(kind, uid)).copied().unwrap_or(0);
        if !kind.places().may_enter(own, all) {
            return None;
        }
        held.insert((kind, uid), own + 1);
        Some(Place {
            places: self.clone(),
            key: (kind, uid),
        })
    }
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
struct Place {
    places: Held,
    key: (Kind, u32),
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.lock();
        if let Some(count) = held.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.key);
            }
        }
    }
}

/// What each connection needs.
struct Shared {
    processes: Box<dyn Processes>,
    members: Members,
    places: Held,
    to: Sink<Notice>,
    next: AtomicU64,
}

/// The socket's file, made anew where somebody took it away or it could not be made. Threads of its own serve it.
pub struct MemoryDoor {
    path: PathBuf,
    shared: Arc<Shared>,
    /// The socket that is served, and its file by device and number.
    open: Option<(Arc<UnixListener>, (u64, u64))>,
    checked: Option<Instant>,
    trouble: Option<String>,
}

impl MemoryDoor {
    /// For a socket at `path`, which is not there yet.
    pub fn new(
        path: PathBuf,
        processes: Box<dyn Processes>,
        members: Members,
        to: Sink<Notice>,
    ) -> MemoryDoor {
        let shared = Shared {
            processes,
            members,
            places: Held::default(),
            to,
            next: AtomicU64::new(1),
        };
        MemoryDoor {
            path,
            shared: Arc::new(shared),
            open: None,
            checked: None,
            trouble: None,
        }
    }

    /// Looks from time to time whether it is there, and makes it where it is not; why it cannot be made, if so. Programs that are connected
    /// stay so.
    pub fn check(&mut self) -> Option<String> {
        if self.checked.is_some_and(|at| at.elapsed() < CHECK) {
            return self.trouble.clone();
        }
        self.checked = Some(Instant::now());
        let own = self.open.as_ref().map(|(_, file)| *file);
        if own.is_some() && own == identity(&self.path) {
            return None;
        }
        if let Some((older, _)) = self.open.take() {
            // Its thread sees that, and ends.
            let _ = rustix::net::shutdown(&*older, rustix::net::Shutdown::Both);
        }
        let opened = socket::bind(&self.path).map_err(|e| e.to_string());
        let opened = opened.and_then(|listener| {
            let listener = Arc::new(listener);
            serve(&listener, &self.shared).map_err(|e| e.to_string())?;
            let file = identity(&self.path).ok_or("it is gone at once")?;
            Ok((listener, file))
        });
        let before = self.trouble.take();
        match opened {
            Ok(opened) => self.open = Some(opened),
            Err(why) => {
                let why = format!(
                    "no socket for memory in tiers: {}: {why}",
                    self.path.display()
                );
                if before.as_ref() != Some(&why) {
                    tracing::error!("{why}; it is tried again every {} s", CHECK.as_secs());
                }
                self.trouble = Some(why);
            }
        }
        self.trouble.clone()
    }

    /// Removes its file, if that is ours.
    pub fn close(&self) {
        let own = self.open.as_ref().map(|(_, file)| *file);
        if own.is_some() && own == identity(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Serves a socket in threads of its own, until it is shut down.
fn serve(listener: &Arc<UnixListener>, shared: &Arc<Shared>) -> std::io::Result<()> {
    let (listener, shared) = (Arc::clone(listener), Arc::clone(shared));
    let accept = move || {
        let mut rate = Bucket::full(ACCEPTS, Instant::now());
        for stream in listener.incoming() {
            thread::sleep(rate.take_in_advance(Instant::now()));
            match stream {
                Ok(stream) => admit(stream, &shared),
                Err(e) if e.kind() == ErrorKind::InvalidInput => return,
                // Too many open files: they close again.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    let builder = thread::Builder::new().name("accept-memory".into());
    builder.spawn(accept).map(drop)
}

fn admit(stream: UnixStream, shared: &Arc<Shared>) {
    let Ok(peer) = socket::peer(&stream) else {
        return;
    };
    let stream = Arc::new(stream);
    let Some(guest) = shared.places.enter(Kind::Guest, peer.uid) else {
        let why = "too many programs of this user ask for memory at the same time";
        return refuse(&stream, why);
    };
    let shared = Arc::clone(shared);
    let run = move || {
        if let Err(why) = shared.talk(&stream, peer, guest) {
            refuse(&stream, why);
        }
    };
    let builder = thread::Builder::new().name("program".into());
    let _ = builder.stack_size(STACK).spawn(run);
}

fn refuse(stream: &Arc<UnixStream>, why: &str) {
    let line = Line::new(0, OLDEST, Arc::clone(stream));
    line.say(&ToProgram::Refused { why: why.into() });
    line.end();
}

impl Shared {
    /// Serves a connection to its end. Answers why it is not served, for the program's user.
    fn talk(&self, stream: &Arc<UnixStream>, peer: Peer, guest: Place) -> Result<(), &'static str> {
        let program = self.identify(peer, guest)?;
        let place = self.places.enter(Kind::Member, peer.uid);
        let _place = place.ok_or("too many programs of this user have memory in tiers here")?;
        let mut lines = Lines::default();
        let silent = NOT_UNDERSTOOD;
        stream.set_read_timeout(Some(HELLO)).map_err(|_| silent)?;
        let version = match next(stream, &mut lines) {
            Some(FromProgram::Hello { version }) if (OLDEST..=VERSION).contains(&version) => {
                version
            }
            _ => return Err(silent),
        };
        stream.set_read_timeout(None).map_err(|_| silent)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let own = client(program.pid, program.started);
        let line = Line::new(number, version, Arc::clone(stream));
        if !self.to.send(Notice::Came(program, line)) {
            return Ok(());
        }
        let mut rate = Bucket::full(LINES, Instant::now());
        while let Some(said) = next(stream, &mut lines) {
            thread::sleep(rate.take_in_advance(Instant::now()));
            if !self.to.send(Notice::Said(own, number, said)) {
                return Ok(());
            }
        }
        self.to.send(Notice::Lost(own, number));
        Ok(())
    }

    /// Which program this is. Waits a little for what the loop does not know yet.
    fn identify(&self, peer: Peer, guest: Place) -> Result<Program, &'static str> {
        let mut place = guest;
        if peer.pid == 0 {
            return Err("gpuosd cannot see this process: it runs in another PID namespace");
        }
        let begun = Instant::now();
        loop {
            let who = self.processes.who(peer.pid).ok().flatten();
            let who = who.ok_or("gpuosd cannot see this process")?;
            match self.members.job_of(&who, peer.uid) {
                Ok(job) => {
                    return Ok(Program {
                        job,
                        uid: peer.uid,
                        pid: peer.pid,
                        started: who.started,
                    });
                }
                Err(why) if begun.elapsed() >= KNOWN => return Err(why),
                Err(why) => {
                    let nowhere = who.step.is_none() && who.unclear.is_none();
                    if nowhere && !self.members.has(peer.uid) {
                        if begun.elapsed() >= STRANGER {
                            return Err(why);
                        }
                        if place.key.0 == Kind::Guest {
                            place = self.places.enter(Kind::Stranger, peer.uid).ok_or(why)?;
                        }
                    }
                    thread::sleep(LOOK);
                }
            }
        }
    }
}

/// The next message; `None`: there is none any more, or what came is none.
fn next(mut stream: &UnixStream, lines: &mut Lines) -> Option<FromProgram> {
    let mut bytes = [0; 1024];
    loop {
        if let Some(line) = lines.next_line().ok()? {
            return FromProgram::parse(&line).ok();
        }
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => lines.push(&bytes[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_taken_away_is_made_again() {
        struct Told;
        impl From<Notice> for Told {
            fn from(_: Notice) -> Told {
                Told
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let (to, _from) = std::sync::mpsc::sync_channel::<Told>(1);
        let processes = gpuos_host::steps::job_processes::Proc::at(folder.path());
        let mut door = MemoryDoor::new(
            path.clone(),
            Box::new(processes),
            Members::default(),
            Sink::of(&to),
        );
        let refused = |path: &Path| {
            let mut told = String::new();
            UnixStream::connect(path)?.read_to_string(&mut told)?;
            Ok::<String, std::io::Error>(told)
        };
        assert_eq!(door.check(), None);
        assert!(refused(&path).unwrap().starts_with("refused "));
        std::fs::remove_file(&path).unwrap();
        // Not looked at yet.
        assert_eq!(door.check(), None);
        assert!(refused(&path).is_err());
        door.checked = None;
        assert_eq!(door.check(), None);
        assert!(refused(&path).unwrap().starts_with("refused "));
        // What is no socket stays, and is told.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        door.checked = None;
        assert!(door.check().unwrap().contains("no socket for memory"));
        door.close();
        assert!(path.exists());
    }

    #[test]
    fn places_of_one_user_are_bounded_and_guests_take_none_of_members() {
        let places = Held::default();
        let take = |kind, uid| {
            let mut taken = Vec::new();
            while let Some(place) = places.enter(kind, uid) {
                taken.push(place);
            }
            taken
        };
        let guests = take(Kind::Guest, 1000);
        assert_eq!(guests.len(), 8);
        assert_eq!(take(Kind::Guest, 1001).len(), 8);
        let members = take(Kind::Member, 1000);
        let own = members.len();
        assert!((40..=64).contains(&own), "{own}");
        // However many users take all that they can, the last ones are for those who have none.
        let others: Vec<_> = (1001..1016).map(|uid| take(Kind::Member, uid)).collect();
        assert!(others.iter().all(|one| !one.is_empty()));
        drop((guests, members, others));
        assert_eq!(take(Kind::Member, 1020).len(), own);
        assert_eq!(take(Kind::Guest, 1000).len(), 8);
    }
}
