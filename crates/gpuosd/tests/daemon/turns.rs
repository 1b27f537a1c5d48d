//! A real gpuosd and programs on a simulated GPU that is too small for both: neither runs out of memory, and what they compute is right.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use gpuos_core::wire::MemoryProgramStatus;

use crate::common::{Cuda, library};
use crate::isolation::{of_job, record};
use crate::memory_program::{own, sharer, socket, start, status, step};
use crate::site::{Daemon, Site};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Tells this program to be a program of a job.
const FOLDER: &str = "GPUOS_DAEMON_TURNS";
/// The driver's device has 32 MiB, and each program 26.
pub const PARTS: u64 = 13;
pub const PART: u64 = 2 * MIB;

/// Not a test: a program that works on four fifths of the GPU until it is told that it is enough, and looks at every result.
#[test]
fn works_for_a_test() {
    if let Some(folder) = folder() {
        work(&folder, |_| ());
    }
}

/// The folder of a program that a test has started; `None`: this is the test.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// A program that a test has started, from when it may begin.
pub struct Worker {
    folder: PathBuf,
    pub cuda: Cuda,
    progress: File,
}

impl Worker {
    pub fn begin(folder: &Path) -> Worker {
        while !folder.join("begin").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let cuda = Cuda::open();
        cuda.context(0);
        let mut progress = OpenOptions::new();
        let progress = progress.create(true).append(true);
        Worker {
            folder: folder.to_owned(),
            cuda,
            progress: progress.open(folder.join("progress")).unwrap(),
        }
    }

    /// Four fifths of the GPU.
    pub fn parts(&self) -> Vec<u64> {
        (0..PARTS).map(|_| self.cuda.alloc(PART)).collect()
    }

    /// Whether the test has not said that it is enough.
    pub fn goes_on(&self) -> bool {
        !self.folder.join("end").exists()
    }

    /// It has worked on all of it once more.
    pub fn round(&mut self) {
        self.progress.write_all(b".").unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Works until the test says that it is enough; `each` is called with each round.
pub fn work(folder: &Path, mut each: impl FnMut(&Cuda)) {
    let mut worker = Worker::begin(folder);
    let parts = worker.parts();
    let cuda = &worker.cuda;
    let (fill, add) = (cuda.kernel("fill"), cuda.kernel("add"));
    let (count, mut round) = (PART / 4, 0_u64);
    while worker.goes_on() {
        let cuda = &worker.cuda;
        round += 1;
        for (at, part) in parts.iter().enumerate() {
            assert_eq!(cuda.launch(fill, 0, &[*part, round + at as u64, count]), 0);
        }
        // Each part has the sum of itself and the one before.
        for pair in parts.windows(2) {
            assert_eq!(cuda.launch(add, 0, &[pair[1], pair[0], pair[1], count]), 0);
        }
        let mut wanted = 0_u32;
        for (at, part) in parts.iter().enumerate() {
            wanted = wanted.wrapping_add((round + at as u64) as u32);
            for offset in [0, PART / 2, PART - 4] {
                assert_eq!(cuda.download(part + offset, 4), wanted.to_le_bytes());
            }
        }
        each(cuda);
        worker.round();
    }
}

/// The other one has its turn, of two of which one was killed then. Long runs hold that to a second.
pub fn has_its_turn(site: &Site, daemon: &Daemon, left: &Program, killed: Instant) {
    site.until("the turn of the other", || {
        let one = left.status(daemon)?;
        ["returning", "resident"]
            .contains(&one.place.as_str())
            .then_some(())
    });
    let took = killed.elapsed();
    println!("told {} ms after the other was killed", took.as_millis());
    if std::env::var_os("GPUOS_LONG").is_some() {
        assert!(took < Duration::from_secs(1), "{took:?}: {}", site.log());
    }
}

/// A program under the library.
pub struct Program<'a> {
    site: &'a Site,
    pub folder: PathBuf,
    child: Child,
}

impl<'a> Program<'a> {
    /// One of a job's step, whose grant is 60 GiB of a card that gpuosd knows to have 80.
    pub fn start(site: &'a Site, daemon: &Daemon, of: u32) -> Program<'a> {
        Program::start_as(site, daemon, of, "turns::works_for_a_test")
    }

    /// The same, which does what a test of this file does that is none.
    pub fn start_as(site: &'a Site, daemon: &Daemon, of: u32, does: &str) -> Program<'a> {
        Program::start_on(site, daemon, of, does, "memory=32M,link=400M")
    }

    /// The same on a device with these settings.
    pub fn start_on(
        site: &'a Site,
        daemon: &Daemon,
        of: u32,
        does: &str,
        device: &str,
    ) -> Program<'a> {
        let folder = site.path(&format!("program-{of}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(library(), folder.join(name)).unwrap();
        }
        let test = std::env::current_exe().unwrap();
        let child = Command::new(&test)
            .args(["--exact", does, "--nocapture"])
            .env(FOLDER, &folder)
            .env("LD_PRELOAD", test.with_file_name("libgpuos_preload.so"))
            .env("LD_LIBRARY_PATH", &folder)
            .env("GPUOS_CUDA", device)
            .env("GPUOS_NVML_STATE", site.path("gpus"))
            .env("CUDA_VISIBLE_DEVICES", "2")
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
            .env("GPUOS_MEM_GRANT", (60 * GIB).to_string())
            .env("GPUOS_MEM_SOCKET", socket(daemon))
            .stderr(File::create(folder.join("said")).unwrap())
            .spawn()
            .unwrap();
        record(site, child.id(), own(), "train", &of_job(of, "0"));
        fs::write(folder.join("begin"), "").unwrap();
        Program {
            site,
            folder,
            child,
        }
    }

    /// How often it has worked on all of it.
    pub fn rounds(&self) -> u64 {
        fs::metadata(self.folder.join("progress")).map_or(0, |file| file.len())
    }

    /// What gpuosd tells of it.
    pub fn status(&self, daemon: &Daemon) -> Option<MemoryProgramStatus> {
        let mut programs = status(daemon).programs.into_iter();
        programs.find(|one| one.pid == self.child.id())
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.forget();
    }

    /// The kernel forgets it.
    pub fn forget(&self) {
        let _ = fs::remove_dir_all(self.site.path("proc").join(self.child.id().to_string()));
    }

    /// It ends by itself, and all that it computed was right.
    pub fn end(mut self) {
        fs::write(self.folder.join("end"), "").unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.join("said")).unwrap_or_default()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.forget();
    }
}

#[test]
fn two_programs_of_four_fifths_of_a_gpu_have_it_in_turns() {
    let site = Site::new();
    for id in [7, 8] {
        sharer(&site, id, "2", "70G");
    }
    let daemon = start(&site);
    for id in [7, 8] {
        step(&daemon, id, &[2], 60 * GIB, true);
    }
    let mut a = Program::start(&site, &daemon, 7);
    let b = Program::start(&site, &daemon, 8);
    // Both gave it away, and never had it both at once, as NVML shows it.
    site.until("turns of both", || {
        for program in [&a, &b] {
            let ended = fs::metadata(format!("/proc/{}", program.child.id())).is_err();
            assert!(!ended, "{}", site.log());
        }
        let on = site.gpu(2).processes;
        let large = on.iter().filter(|one| one.pid != 0 && one.memory_mib > 20);
        assert!(large.count() <= 1);
        let parks = |program: &Program| program.status(&daemon).map_or(0, |one| one.parks);
        let worked = a.rounds() > 0 && b.rounds() > 0;
        (worked && parks(&a) >= 1 && parks(&b) >= 1).then_some(())
    });
    let moved = b.status(&daemon).unwrap();
    assert!(moved.moved_down >= PARTS * PART, "{moved:?}");
    // It is killed in the middle of giving the GPU away.
    let deadline = Instant::now() + crate::site::LIMIT;
    while a.status(&daemon).is_none_or(|one| one.place != "parking") {
        assert!(Instant::now() < deadline, "{}", site.log());
    }
    let killed = Instant::now();
    a.kill();
    has_its_turn(&site, &daemon, &b, killed);
    let before = b.rounds();
    site.until("the other goes on", || {
        (b.rounds() > before + 2).then_some(())
    });
    site.until("the killed one is forgotten", || {
        (status(&daemon).programs.len() == 1).then_some(())
    });
    b.end();
}
