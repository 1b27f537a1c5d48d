//! Programs on a GPU that is too small for both, on a node whose host memory is, too: what has to leave goes to NVMe, whoever dies meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use gpuos_core::wire::memory_socket;
use gpuos_host::socket::{MOVER, NAME};
use gpuos_host::steps::job_processes::Proc;
use gpuos_moverd::parked::leases::Gpuosd;
use gpuos_moverd::parked::{self, Place};

use crate::memory_program::{sharer, start, status, step};
use crate::site::{Daemon, Site};
use crate::turns::Program;

const GIB: u64 = 1 << 30;
/// Tells this program to be gpuos_mover.
const FOLDER: &str = "GPUOS_DAEMON_PARKS";

/// Not a test: what gpuos_mover does with `nvme` in `[memory]`, until it is killed.
#[test]
fn parks_for_a_test() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let place = Place {
        folder: folder.join("parked"),
        rate_mib: 0,
    };
    let run = folder.join("run");
    let leases = Box::new(Gpuosd::at(run.join(NAME)));
    let processes = Box::new(Proc::at(folder.join("proc")));
    parked::start(&place, &socket(&run), leases, processes).unwrap();
    loop {
        std::thread::park();
    }
}

/// Where programs find it.
fn socket(run: &Path) -> PathBuf {
    memory_socket(&run.join(MOVER).to_string_lossy()).into()
}

/// It, until it is dropped.
pub struct Mover(Child);

impl Mover {
    pub fn start(site: &Site) -> Mover {
        let mut mover = Command::new(std::env::current_exe().unwrap());
        mover.args(["--exact", "nvme::parks_for_a_test", "--nocapture"]);
        let mover = Mover(mover.env(FOLDER, site.path("")).spawn().unwrap());
        let socket = socket(&site.path("run"));
        site.until("its socket", || socket.exists().then_some(()));
        mover
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two jobs in turns, with so much memory of the host each.
pub fn jobs(site: &Site, memory: &str) {
    let config = format!(
        "[memory]\nnvme = \"{}\"\nnvme-gib = 200\n",
        site.path("parked").display()
    );
    fs::write(site.path("gpuos.toml"), config).unwrap();
    fs::create_dir_all(site.path("run")).unwrap();
    for id in [7, 8] {
        sharer(site, id, "2", memory);
    }
}

/// Their steps.
pub fn steps(daemon: &Daemon) {
    for id in [7, 8] {
        step(daemon, id, &[2], 60 * GIB, true);
    }
}

/// Bytes in the files of programs; none of them can be read by anybody but root.
pub fn on_nvme(site: &Site) -> Vec<PathBuf> {
    let files = fs::read_dir(site.path("parked")).into_iter().flatten();
    files.flatten().map(|file| file.path()).collect()
}

fn parks(program: &Program<'_>, daemon: &Daemon) -> u64 {
    program.status(daemon).map_or(0, |one| one.parks)
}

#[test]
fn two_programs_take_turns_although_host_memory_has_no_room_for_either() {
    let site = Site::new();
    jobs(&site, "2G");
    let daemon = start(&site);
    let _mover = Mover::start(&site);
    steps(&daemon);
    let a = Program::start(&site, &daemon, 7);
    let b = Program::start(&site, &daemon, 8);
    let mut seen = 0;
    // Each is waited for by itself: on a machine with much else to do a turn takes long.
    for turns in [1, 2] {
        for program in [&a, &b] {
            site.until("turns of both", || {
                seen = seen.max(on_nvme(&site).len());
                (parks(program, &daemon) >= turns).then_some(())
            });
        }
    }
    let memory = status(&daemon);
    assert_eq!(memory.nvme.present, 200 * GIB);
    // What they asked for, with room for moves, less the host memory of their jobs.
    assert_eq!(memory.nvme.promised, 2 * (58 * GIB + GIB / 4), "{memory:?}");
    assert_eq!(memory.host.promised, 2 * 2 * GIB);
    assert!(seen >= 1, "nothing was ever on NVMe");
    assert!(a.rounds() > 0 && b.rounds() > 0);
    a.end();
    b.end();
    site.until("nothing is left", || {
        (on_nvme(&site).is_empty() && status(&daemon).nvme.promised == 0).then_some(())
    });
}

#[test]
fn who_is_killed_at_any_moment_leaves_nothing_and_the_others_go_on() {
    let site = Site::new();
    jobs(&site, "2G");
    let mut daemon = start(&site);
    let mut mover = Mover::start(&site);
    steps(&daemon);
    let mut programs = [7, 8].map(|id| Program::start(&site, &daemon, id));
    let rounds = match std::env::var_os("GPUOS_LONG") {
        Some(_) => 60,
        None => 9,
    };
    let mut seed = 0x5eed_u64;
    for round in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis((seed >> 33) % 1500));
        match round % 3 {
            0 => {
                drop(mover);
                mover = Mover::start(&site);
            }
            1 => {
                daemon.kill();
                daemon = start(&site);
            }
            _ => {
                let which = (seed >> 40) as usize % 2;
                programs[which].kill();
                let id = [7, 8][which];
                // Its successor is another process of the job.
                programs[which] = Program::start(&site, &daemon, id);
            }
        }
        let before = [0, 1].map(|at| programs[at].rounds());
        let deadline = Instant::now() + crate::site::LIMIT;
        while (0..2).any(|at| programs[at].rounds() <= before[at] + 1) {
            for program in &mut programs {
                assert!(program.lives(), "round {round}: {}", site.log());
            }
            assert!(Instant::now() < deadline, "round {round}: {}", site.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let [a, b] = programs;
    a.end();
    b.end();
    site.until("nothing is left", || {
        let memory = status(&daemon);
        let none = memory.programs.is_empty() && memory.nvme.promised == 0;
        (on_nvme(&site).is_empty() && none).then_some(())
    });
}

#[test]
fn without_a_mover_a_program_is_told_why_it_is_ended() {
    let site = Site::new();
    jobs(&site, "2G");
    let daemon = start(&site);
    steps(&daemon);
    let mut programs = [7, 8].map(|id| Program::start(&site, &daemon, id));
    // The one that had the GPU first.
    let ended = site.until("the one that cannot be parked is ended", || {
        (0..2).find(|at| !programs[*at].lives())
    });
    let told = || site.log().contains("could not be written to NVMe");
    site.until("why", || told().then_some(()));
    programs[ended].forget();
    let [a, b] = programs;
    let other = if ended == 0 { b } else { a };
    let before = other.rounds();
    site.until("the other works", || {
        (other.rounds() > before + 1).then_some(())
    });
    other.end();
}
