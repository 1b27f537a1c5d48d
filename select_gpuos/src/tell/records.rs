//! The ring of decisions, in a file in memory that `gpuos why` and `gpuos replay` read.
//!
//! The file is made, sized and mapped when slurmctld reads its node table or its configuration; a
//! decision only stores into the mapping. The file is on tmpfs, its pages are reserved before it is
//! mapped, and only SlurmUser and root can open it: no store waits for a disk or finds no memory.
//! If one of them cuts it short all the same, [`sigbus`] keeps slurmctld alive.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gpuos_model::cluster::Cluster;
use gpuos_placement::cost::History;
use gpuos_placement::fabric::Recipe;
use gpuos_placement::frag::Expected;
use gpuos_placement::plan::{Choice, NodeState, Request, Wait};
use gpuos_placement::record::{self, By, Outcome, Purpose, Run, Sizes, Tally, Writer};
use gpuos_placement::traffic::Traffic;
use slurm_ffi::log;

use crate::abi::clock;
use crate::messages;
use crate::tell::sigbus;

/// Where decisions are recorded, if they are.
#[derive(Default)]
pub struct Records {
    ring: Option<Ring>,
    /// The job that is being decided, and why Slurm asks.
    job: u32,
    purpose: Option<Purpose>,
    /// What is counted; see [`Records::count`].
    tally: Tally,
}

struct Ring {
    memory: Mapping,
    writer: Writer,
    sizes: Sizes,
}

impl Records {
    /// Makes room for about `count` decisions on so many nodes, or goes on with the file that an
    /// earlier slurmctld left; with 0 none are recorded and the file is removed. Opens files: for
    /// starts and reconfigurations only.
    pub fn open(&mut self, conf_folder: &Path, count: u32, nodes: usize) {
        let path = record::path(&conf_folder.to_string_lossy());
        if count == 0 {
            self.ring = None;
            // Nothing to remove is as good; another owner's file stays.
            let _ = std::fs::remove_file(&path);
            return;
        }
        let sizes = Sizes::new(count, nodes);
        self.drop_cut();
        if nodes == 0 || self.ring.as_ref().is_some_and(|ring| ring.sizes == sizes) {
            return;
        }
        self.ring = None;
        match Mapping::of(&path, sizes, nodes) {
            Ok((mut memory, writer)) => {
                self.tally = record::tally(memory.bytes()).unwrap_or_default();
                self.ring = Some(Ring {
                    memory,
                    writer,
                    sizes,
                });
            }
            Err(why) => log::info(&messages::not_recorded(path, why)),
        }
    }

    /// Records no further into a file that was cut short.
    fn drop_cut(&mut self) {
        if self.ring.is_some() && sigbus::was_cut() {
            self.ring = None;
            log::error(&messages::recording_was_cut());
        }
    }

    /// The planner plans for this cluster from now on.
    pub fn model(&mut self, cluster: &Cluster, net: Option<&Recipe>) {
        if let Some(ring) = &mut self.ring {
            ring.writer.model(ring.memory.bytes(), cluster, net);
        }
    }

    /// What a job does on the network has changed: it is a gang there now, or is none. Not called in a
    /// decision.
    pub fn gang(&mut self, job: u32, traffic: &Traffic) {
        let Some(ring) = &mut self.ring else {
            return;
        };
        let memory = ring.memory.bytes();
        match traffic.gang(job) {
            Some((nodes, promise)) => ring.writer.gang(memory, job, nodes, promise),
            None => ring.writer.gang_ended(memory, job),
        }
    }

    /// A job has run to its end. Not called in a decision.
    pub fn ran(&mut self, run: Run<'_>) {
        if let Some(ring) = &mut self.ring {
            ring.writer.ran(ring.memory.bytes(), run);
        }
    }

    /// What the runs teach that are recorded, also by an earlier slurmctld. Reads the whole ring: for starts
    /// and reconfigurations only.
    pub fn history(&mut self, most: usize) -> Option<History> {
        let ring = self.ring.as_mut()?;
        let recording = record::read(ring.memory.bytes()).ok()?;
        Some(recording.history(most))
    }

    /// The planner goes by this mix of jobs from now on.
    pub fn learned(&mut self, expected: &Expected) {
        if let Some(ring) = &mut self.ring {
            ring.writer.learned(ring.memory.bytes(), expected);
        }
    }

    /// The calls that follow are about this job.
    pub fn begin(&mut self, job: u32, purpose: Purpose) {
        self.drop_cut();
        self.job = job;
        self.purpose = Some(purpose);
    }

    /// What the planner sees in the questions that follow.
    pub fn states(&mut self, states: &[NodeState]) {
        if let Some(ring) = &mut self.ring {
            ring.writer.states(ring.memory.bytes(), states);
        }
    }

    /// A question, with the number of the choice that was asked for and how that came about, and its answer.
    pub fn asked(&mut self, request: &Request, choice: (u32, By), answer: &Result<&Choice, Wait>) {
        if let (Some(ring), Some(purpose)) = (&mut self.ring, self.purpose) {
            let answer = answer.as_ref().map(|choice| *choice);
            let now = u64::try_from(clock::now()).unwrap_or(0);
            let memory = ring.memory.bytes();
            ring.writer
                .asked(memory, self.job, purpose, choice, request, answer, now);
        }
    }

    /// Counts something.
    pub fn count(&mut self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally);
        if let Some(ring) = &mut self.ring {
            ring.writer.tally(ring.memory.bytes(), &self.tally);
        }
    }

    /// How the decision ended.
    pub fn ended(&mut self, outcome: Outcome) {
        if let Some(ring) = &mut self.ring {
            ring.writer.ended(ring.memory.bytes(), self.job, outcome);
        }
    }
}

/// A file mapped into memory, shared with whoever else opens it.
struct Mapping {
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; its address means the same in every thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the file at `path`; a new one takes its place where there is none of this length.
    fn of(path: &str, sizes: Sizes, nodes: usize) -> io::Result<(Mapping, Writer)> {
        let length = sizes.total();
        // SAFETY: geteuid takes nothing and cannot fail.
        let me = unsafe { libc::geteuid() };
        if let Ok(old) = open(path, 0) {
            let meta = old.metadata()?;
            if meta.uid() != me || !meta.is_file() {
                let why = format!("user {} owns it; remove it", meta.uid());
                return Err(io::Error::other(why));
            }
            // A shorter file would end slurmctld at the first store past its end.
            if meta.len() == length as u64 && reserve(&old, length).is_ok() {
                let mut memory = Mapping::map(&old, length)?;
                let writer = Writer::open(memory.bytes(), sizes, nodes);
                return Ok((memory, writer));
            }
        }
        let new = format!("{path}.{}", std::process::id());
        let file = open(&new, libc::O_CREAT | libc::O_EXCL)?;
        let made = reserve(&file, length).and_then(|()| {
            let mut memory = Mapping::map(&file, length)?;
            let writer = Writer::open(memory.bytes(), sizes, nodes);
            std::fs::rename(&new, path)?;
            Ok((memory, writer))
        });
        made.inspect_err(|_| {
            let _ = std::fs::remove_file(&new);
        })
    }

    fn map(file: &File, length: usize) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses, of an open file of this length.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping {
            start: start.cast(),
            length,
        };
        sigbus::watch(start as usize, length)?;
        Ok(mapping)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is as long as said and lives as long as `self`. In this process nothing
        // else points into it; other processes only read, and judge by checks what they read.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        sigbus::unwatch(self.start as usize);
        // SAFETY: made by mmap with this length, and no slice of it outlives `self`.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Opens a file for this user alone; never through a link that somebody put there.
fn open(path: &str, flags: libc::c_int) -> io::Result<File> {
    let path = CString::new(path)?;
    let flags = flags | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path; the mode is read with O_CREAT only.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives the file its length and all its memory, so that no store can fail for want of it.
fn reserve(file: &File, length: usize) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
