//! A site with a folder for what is parked, and a process that parks: for tests and measurements.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuos_host::steps::job_processes::{Killed, Processes, Who};
use gpuos_host::window::Window;
use gpuos_memory::stow::{Digest, FromProgram, MOST_SLOTS, PIECE, ToProgram, VERSION};
use gpuos_moverd::parked::leases::Leases;
use gpuos_moverd::parked::segment::Owner;
use gpuos_moverd::parked::{Place, start};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::geteuid;
use tempfile::TempDir;

/// A busy machine is no fault.
pub const LIMIT: Duration = Duration::from_secs(180);

/// What the kernel says of this process: one with another start is another process. Its number is that of who is dead, or zero.
#[derive(Clone, Default)]
pub struct Kernel {
    pub started: Arc<AtomicU64>,
    pub dead: Arc<AtomicU64>,
    /// Its number is that of another user's process by now.
    pub of_another: Arc<AtomicBool>,
    /// It cannot be looked at.
    pub hidden: Arc<AtomicBool>,
}

impl Processes for Kernel {
    fn who(&self, _pid: u32) -> std::io::Result<Option<Who>> {
        if self.hidden.load(Ordering::SeqCst) {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        let started = self.started.load(Ordering::SeqCst);
        let ended = self.dead.load(Ordering::SeqCst) == started;
        Ok(Some(Who {
            started,
            ended,
            uid: geteuid().as_raw() + u32::from(self.of_another.load(Ordering::SeqCst)),
            ..Who::default()
        }))
    }

    fn kill(&self, _pid: u32, _started: u64) -> std::io::Result<Killed> {
        Ok(Killed::Gone)
    }
}

/// What gpuosd has promised to every process.
#[derive(Clone, Default)]
pub struct Promised(pub Arc<AtomicU64>);

impl Leases for Promised {
    fn limit(&self, _owner: Owner, _uid: u32, _came: Instant) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst))
    }
}

pub struct Site {
    pub place: TempDir,
    pub kernel: Kernel,
    pub promised: Promised,
}

impl Site {
    /// Processes may have so much.
    pub fn new(promised: u64) -> Site {
        Site::at_rate(promised, 0)
    }

    pub fn at_rate(promised: u64, rate_mib: u32) -> Site {
        let site = Site::without(promised);
        site.start(rate_mib).unwrap();
        site
    }

    pub fn without(promised: u64) -> Site {
        Site::within(TempDir::new().unwrap(), promised)
    }

    /// The same in a folder.
    pub fn within(place: TempDir, promised: u64) -> Site {
        let site = Site {
            place,
            kernel: Kernel::default(),
            promised: Promised::default(),
        };
        site.kernel.started.store(70, Ordering::SeqCst);
        site.promised.0.store(promised, Ordering::SeqCst);
        site
    }

    pub fn start(&self, rate_mib: u32) -> Result<(), String> {
        let place = Place {
            folder: self.folder(),
            rate_mib,
        };
        let leases = Box::new(self.promised.clone());
        let started = start(
            &place,
            &self.socket(),
            leases,
            Box::new(self.kernel.clone()),
        );
        started.map_err(|error| format!("{error:#}"))
    }

    pub fn folder(&self) -> PathBuf {
        self.place.path().join("parked")
    }

    pub fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    /// Files of processes.
    pub fn segments(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder()).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file in memory.
pub fn memory(bytes: u64, seals: SealFlags) -> File {
    let file = memfd_create("ring", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    file.set_len(bytes).unwrap();
    for at in (0..bytes).step_by(4096) {
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    fcntl_add_seals(&file, seals).unwrap();
    file
}

pub fn ring(slots: u32) -> File {
    let kept = SealFlags::SHRINK | SealFlags::GROW;
    memory(u64::from(slots) * PIECE, kept)
}

pub struct Client {
    pub lines: BufReader<UnixStream>,
    pub ring: File,
    /// A file that is no memory has none.
    pub window: Option<Window>,
}

/// Sends a line with open files.
pub fn send(stream: &UnixStream, line: &str, files: &[&File]) {
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let text = [IoSlice::new(line.as_bytes())];
    // Who has too many others says so and hangs up, which may be before this comes.
    let _ = sendmsg(stream, &text, &mut control, SendFlags::NOSIGNAL);
}

impl Client {
    /// As programs do: who is told that gpuos_mover is busy comes again.
    pub fn connect(site: &Site) -> Client {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Client::with(site, ring(MOST_SLOTS), MOST_SLOTS) {
                (client, ToProgram::Ready { .. }) => return client,
                (_, ToProgram::Busy) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                (_, told) => panic!("{told:?}"),
            }
        }
    }

    /// With that ring; what it is told.
    pub fn with(site: &Site, ring: File, slots: u32) -> (Client, ToProgram) {
        let stream = UnixStream::connect(site.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let hello = FromProgram::Hello {
            version: VERSION,
            slots,
        };
        // Before it is sealed, as programs do.
        let window = Window::open(&ring, slots as usize * PIECE as usize).ok();
        send(&stream, &hello.line(), &[&ring]);
        let mut client = Client {
            lines: BufReader::new(stream),
            ring,
            window,
        };
        // What it said is lost where it had hung up before it was asked.
        let told = client.told().unwrap_or(ToProgram::Busy);
        (client, told)
    }

    /// What it is told; `None`: the connection has ended.
    pub fn told(&mut self) -> Option<ToProgram> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(ToProgram::parse(line.as_bytes()).expect("a message")),
            // It ended with something that was not read.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn say(&mut self, what: &FromProgram) {
        self.line(&what.line());
    }

    pub fn line(&mut self, line: &str) {
        let _ = self.lines.get_mut().write_all(line.as_bytes());
    }

    pub fn fill(&self, slot: u32, bytes: &[u8]) {
        let window = self.window.as_ref().expect("a ring");
        window.put(slot as usize * PIECE as usize, bytes).unwrap();
    }

    pub fn has(&self, slot: u32, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let at = u64::from(slot) * PIECE;
        self.ring.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Puts bytes at a place.
    pub fn put(&mut self, at: u64, bytes: &[u8]) -> Result<Digest, String> {
        self.fill(0, bytes);
        let bytes = bytes.len() as u64;
        self.say(&FromProgram::Put { slot: 0, at, bytes });
        self.done()
    }

    /// Gets them back.
    pub fn get(&mut self, at: u64, bytes: u64, digest: Digest) -> Result<Vec<u8>, String> {
        self.fill(1, &vec![0xee; bytes as usize]);
        self.say(&FromProgram::Get {
            slot: 1,
            at,
            bytes,
            digest,
        });
        let done = self.done();
        let now = self.has(1, bytes as usize);
        match done {
            Ok(_) => Ok(now),
            Err(why) => {
                // Nothing else was put in its place.
                assert!(now.iter().all(|byte| *byte == 0xee), "{why}");
                Err(why)
            }
        }
    }

    pub fn done(&mut self) -> Result<Digest, String> {
        match self.told() {
            Some(ToProgram::Done { digest, .. }) => Ok(digest),
            Some(ToProgram::Failed { why, .. } | ToProgram::Refused { why }) => Err(why),
            other => Err(format!("{other:?}")),
        }
    }
}
