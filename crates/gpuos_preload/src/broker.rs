//! The connection to gpuosd, which decides what the process may have: a thread asks when the driver was initialised, and then obeys.
//!
//! Without gpuosd's socket, or an answer in time, the environment's grant holds. A refusal is one: the process runs with the driver's own
//! memory, and is told. When the connection is lost the thread looks for another one; a process that waits for its turn then goes on after
//! a time with everything in host memory, which is slow and takes nothing from others.

mod connection;
mod meanwhile;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use gpuos_memory::protocol::{Figures, FromProgram, Lines, OLDEST, ToProgram, Uuid, VERSION};
use gpuos_memory::table::Tier;

use crate::aside::Aside;
use crate::lease::{self, Lease};
use crate::mutant::{self, Mutant};
use crate::stow::{self, Segment};
use crate::{ahead, budget, figures, gate, mover, park, process, resize, short, vmm, window};

/// The variable with the path of gpuosd's socket.
const SOCKET: &str = "GPUOS_MEM_SOCKET";
/// `cuInit` waits so long for an answer: gpuosd may have to ask slurmctld.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at what the program does.
const LOOK: Duration = Duration::from_millis(20);
/// A program that calls nothing for so long, and has no work, is idle.
const IDLE: Duration = Duration::from_millis(200);
/// What was moved is told so often.
const TELL: Duration = Duration::from_secs(1);
/// Between two tries to connect again.
const AGAIN: Duration = Duration::from_secs(1);
/// A process that waits for its turn without gpuosd goes on after so long.
const ALONE: Duration = Duration::from_secs(60);

/// The open connection, for a child of `fork`; -1: there is none.
static OPEN: AtomicI32 = AtomicI32::new(-1);
/// The program wants the connection closed.
static CLOSE: AtomicBool = AtomicBool::new(false);

/// What came of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The process may have memory in tiers: what gpuosd has given, or the environment's grant.
    Go,
    /// The same, once it is its turn: nothing goes through the gate before that.
    Wait,
    /// It may not.
    Refused,
    /// It may not, and may use no GPU either.
    Denied,
}

/// Asks gpuosd, where the environment names its socket. What follows is obeyed by a thread.
pub(crate) fn begin() -> Asked {
    let Some(path) = std::env::var_os(SOCKET).map(PathBuf::from) else {
        return Asked::Go;
    };
    let (tell, told) = channel();
    let run = move || {
        // It gives memory back while other threads may capture.
        vmm::relax();
        let run = AssertUnwindSafe(|| serve(path, &tell));
        if catch_unwind(run).is_err() {
            process::pin(format_args!(
                "an error of gpuos ended the thread that talks to gpuosd"
            ));
            let _ = catch_unwind(park::open);
            gate::open();
        }
    };
    let asked = match mover::thread("gpuos-broker", run) {
        Ok(()) => told
            .recv_timeout(PATIENCE)
            .map_err(|_| "it does not answer".to_string()),
        Err(error) => Err(format!("no thread can be started: {error}")),
    };
    match asked {
        Ok(Ok(asked)) => asked,
        Ok(Err(error)) => alone(&error),
        Err(why) => alone(&why),
    }
}

fn alone(why: &str) -> Asked {
    process::say(format_args!(
        "gpuosd cannot be asked for memory ({why}): the process has what {} says",
        process::GRANT
    ));
    Asked::Go
}

/// A child of `fork` keeps no connection. It takes no lock.
pub(crate) fn forget() {
    let open = OPEN.swap(-1, Ordering::SeqCst);
    if open >= 0 {
        // SAFETY: the connection's number; nobody uses it in a child, which has none of the parent's threads.
        unsafe { libc::close(open) };
    }
}

/// Closes the connection, or opens it again, for a checkpoint of the process: an open socket is in its way. Answers whether it is so.
fn set_closed(closed: bool) -> bool {
    CLOSE.store(closed, Ordering::SeqCst);
    ahead::pause(closed);
    // The thread may wait for a processor.
    let deadline = Instant::now() + PATIENCE * 3;
    while (OPEN.load(Ordering::SeqCst) < 0) != closed {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Closes the connection to gpuosd: 0, or 1 where it is open still. gpuosd ends a process that is away for more than 30 s.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "for programs"))]
pub extern "C" fn gpuos_mem_disconnect() -> i32 {
    i32::from(OPEN.load(Ordering::SeqCst) >= 0 && !set_closed(true))
}

/// Opens it again: 0, or 1 where gpuosd is not there yet; it is tried on.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "for programs"))]
pub extern "C" fn gpuos_mem_connect() -> i32 {
    i32::from(!set_closed(false))
}

/// What there is of a device, as gpuosd and the driver know it.
#[derive(Clone, Copy)]
struct Gpu {
    device: i32,
    uuid: Uuid,
    /// Bytes of its memory, as the driver shows them.
    total: u64,
}

/// The connection, and how the process stands.
struct Broker {
    path: PathBuf,
    /// The version that gpuosd speaks, as far as it is known.
    version: u32,
    gpus: Vec<Gpu>,
    stream: Option<UnixStream>,
    lines: Lines,
    /// What was told while the program's work was waited for.
    later: VecDeque<ToProgram>,
    aside: Aside,
    /// Extents that have left the memory of GPUs for host memory until it is the process's turn.
    parked: Option<BTreeSet<u32>>,
    /// What is on NVMe meanwhile, if something is.
    segment: Option<Segment>,
    /// All of it is.
    stowed: bool,
    /// What was demoted, as was said on this connection, and on one that is lost: there gpuosd may not have heard of it.
    demoted: [Option<u64>; 2],
    /// Its GPUs are shared in turns: then it tells whether it has work.
    in_turns: bool,
    idle: bool,
    quiet: Instant,
    pinned: bool,
    /// It was to park and cannot. The driver may hold the whole process from outside: nothing of the driver's is called until its turn.
    held: bool,
    moved: ((u64, u64), Instant),
    figures: (Figures, Instant),
    lost: Instant,
}

/// The thread. The first answer, or why there is none, is told once; nobody may listen any more.
fn serve(path: PathBuf, tell: &Sender<Result<Asked, String>>) {
    vmm::relax();
    let now = Instant::now();
    let mut broker = Broker {
        path,
        version: VERSION,
        gpus: gpus(),
        stream: None,
        lines: Lines::default(),
        later: VecDeque::new(),
        aside: Aside::default(),
        parked: None,
        segment: None,
        stowed: false,
        demoted: [None; 2],
        in_turns: false,
        idle: false,
        quiet: now,
        pinned: false,
        held: false,
        moved: ((0, 0), now),
        figures: (Figures::default(), now),
        lost: now,
    };
    let first = broker.first();
    let goes_on = matches!(first, Ok(Asked::Go | Asked::Wait));
    if tell.send(first).is_err() {
        // It took too long, and the process has begun without.
        gate::open();
    } else if goes_on {
        broker.run();
    }
}

/// Devices that say who they are.
fn gpus() -> Vec<Gpu> {
    let devices = (0..vmm::count().unwrap_or(0)).filter_map(|number| vmm::nth(number).ok());
    let one = |device| {
        let uuid = Uuid(vmm::uuid(device).ok()?);
        let total = vmm::total(device).unwrap_or(0);
        Some(Gpu {
            device,
            uuid,
            total,
        })
    };
    devices.filter_map(one).collect()
}

/// The program's next open file gets the number: a child must not close that one.
impl Drop for Broker {
    fn drop(&mut self) {
        self.close();
    }
}

impl Broker {
    /// Connects and asks for the grant of every device.
    fn first(&mut self) -> Result<Asked, String> {
        let at = self.path.display().to_string();
        let failed = |error: io::Error| format!("{at}: {error}");
        self.connect(None).map_err(failed)?;
        let mut given = Vec::new();
        let mut wait = false;
        let mut without = Vec::new();
        while given.len() + without.len() < self.gpus.len() {
            match self.next(PATIENCE).map_err(|error| error.to_string())? {
                Some(ToProgram::Lease {
                    gpu,
                    hbm,
                    host,
                    refuge,
                    wait: waits,
                }) => {
                    self.in_turns |= refuge > 0;
                    if refuge > 0 {
                        ahead::make_ahead();
                    }
                    wait |= waits;
                    given.push((gpu, lease(hbm, host, refuge)));
                }
                Some(ToProgram::Turn) => {
                    wait = false;
                    self.back();
                }
                Some(ToProgram::Refused { why }) if self.is_older(&why) => {
                    self.close();
                    given.clear();
                    self.connect(None).map_err(failed)?;
                }
                Some(ToProgram::Refused { why }) => {
                    process::say(format_args!(
                        "{why}: the program runs without gpuos's memory"
                    ));
                    self.close();
                    return Ok(Asked::Refused);
                }
                Some(ToProgram::Denied { why }) => {
                    process::say(format_args!(
                        "{why}. The program does not start beside the jobs that have the GPU in turns"
                    ));
                    self.close();
                    return Ok(Asked::Denied);
                }
                Some(ToProgram::Without { gpu, why }) => {
                    let own = self.gpus.iter().filter(|own| own.uuid == gpu);
                    for Gpu { device, .. } in own {
                        process::say(format_args!(
                            "GPU {device}: {why}: the program has its memory as the driver gives it"
                        ));
                    }
                    without.push(gpu);
                }
                Some(ToProgram::Note { text }) => process::say(format_args!("{text}")),
                Some(other @ (ToProgram::Pressure(_) | ToProgram::Budget { .. })) => {
                    self.obey(other);
                }
                Some(ToProgram::Trim { .. }) => self.say(FromProgram::Demoted { bytes: 0 }),
                // Nothing runs yet.
                Some(ToProgram::Demote { .. }) => {
                    self.say(FromProgram::Demoted { bytes: 0 });
                }
                Some(ToProgram::Park { .. } | ToProgram::Stow { .. }) => {
                    wait = true;
                    self.say(FromProgram::Parked {
                        took_ms: 0,
                        moved: 0,
                        left: 0,
                    });
                }
                None => return Err("it does not answer".into()),
            }
        }
        if given.is_empty() && !without.is_empty() {
            self.close();
            return Ok(Asked::Refused);
        }
        for Gpu { device, .. } in self.gpus.extract_if(.., |gpu| without.contains(&gpu.uuid)) {
            lease::refuse(device);
        }
        for (uuid, lease) in given {
            let own = self.gpus.iter().filter(|gpu| gpu.uuid == uuid);
            own.for_each(|gpu| lease::set(gpu.device, lease));
        }
        if wait {
            gate::on_sealed();
            self.parked = Some(BTreeSet::new());
            return Ok(Asked::Wait);
        }
        Ok(Asked::Go)
    }

    fn run(&mut self) {
        while !process::is_ending() {
            // What is on NVMe is not in the process: it cannot be checkpointed then.
            if CLOSE.load(Ordering::SeqCst) && self.segment.is_none() {
                if self.stream.is_some() {
                    self.say(FromProgram::Bye);
                    self.close();
                }
                std::thread::sleep(LOOK);
                continue;
            }
            if self.stream.is_none() {
                self.look_for_it();
                continue;
            }
            match self.later.pop_front() {
                Some(told) => self.obey(told),
                None => match self.next(LOOK) {
                    Ok(Some(told)) => self.obey(told),
                    Ok(None) => {}
                    Err(_) => self.close(),
                },
            }
            self.look();
        }
        // What the program does at its end waits for nobody.
        if self.parked.is_some() {
            self.fetch(Some(Tier::Host));
            self.parked = None;
            park::open();
        }
    }

    /// Tries to connect again.
    fn look_for_it(&mut self) {
        if self.parked.is_some() && self.lost.elapsed() >= ALONE {
            process::say(format_args!(
                "gpuosd is not there, and nobody says whose turn it is: the program goes on with its memory on the host"
            ));
            self.fetch(Some(Tier::Host));
            self.parked = None;
            park::open();
        }
        let parked = self.parked.is_some();
        if self.connect(Some(parked)).is_err() {
            std::thread::sleep(AGAIN);
        }
        self.idle = false;
        self.quiet = Instant::now();
    }

    fn obey(&mut self, told: ToProgram) {
        match told {
            ToProgram::Park { .. } => self.park(None),
            ToProgram::Stow {
                bytes, all, mover, ..
            } => self.park(Some((bytes, all, mover))),
            ToProgram::Demote { bytes, mover, .. } => self.demote(bytes, mover),
            ToProgram::Turn => self.back(),
            ToProgram::Note { text } => process::say(format_args!("{text}")),
            ToProgram::Refused { why } if self.is_older(&why) => self.close(),
            // What the process has it keeps.
            ToProgram::Refused { why }
            | ToProgram::Denied { why }
            | ToProgram::Without { why, .. } => {
                process::say(format_args!("{why}"));
            }
            // Of a gpuosd that did not know the process any more.
            ToProgram::Lease { wait: true, .. } if self.parked.is_none() => self.park(None),
            ToProgram::Lease {
                gpu,
                hbm,
                host,
                refuge,
                ..
            } => {
                // It has its turn: where it was held, `turn` was said on a connection that is lost.
                self.held = false;
                let own = self.gpus.iter().filter(|it| it.uuid == gpu);
                let works = self.parked.is_none();
                let devices: Vec<i32> = own.map(|it| it.device).collect();
                self.meanwhile(move || {
                    for device in devices {
                        resize::resize(device, lease(hbm, host, refuge), works);
                    }
                });
            }
            ToProgram::Pressure(what) => {
                short::tell(what);
                if short::is_short() {
                    ahead::drop_all();
                }
            }
            ToProgram::Trim { .. } => {
                ahead::drop_all();
                let bytes = match self.parked {
                    None if !self.held => self.meanwhile(resize::trim).unwrap_or(0),
                    _ => 0,
                };
                self.say(FromProgram::Demoted { bytes });
            }
            ToProgram::Budget { gpu, rate } => {
                let own = self.gpus.iter().filter(|it| it.uuid == gpu);
                own.for_each(|it| budget::set(it.device, rate));
            }
        }
    }

    /// Parks, some of it or all on NVMe.
    fn park(&mut self, nvme: Option<(u64, bool, String)>) {
        let mut start = Instant::now();
        let (mut moved, mut left) = (0, 0);
        if self.parked.is_none() {
            if self.in_turns {
                window::begin();
            }
            if self.held || self.meanwhile(park::close) != Some(true) {
                return self.hold();
            }
            // The program's own work is no part of what moving takes.
            start = Instant::now();
            if let Some((bytes, all, mover)) = nvme {
                match self.put(mover, &park::first(bytes, all)) {
                    Ok(bytes) => moved = bytes,
                    Err(why) => {
                        process::say(format_args!("memory cannot be parked on NVMe: {why}"));
                        self.fetch(None);
                        park::open();
                        return self.say(FromProgram::NotParked);
                    }
                }
                self.stowed = all;
                if all {
                    ahead::drop_all();
                }
            }
            let parked = park::leave();
            (moved, left) = (moved + parked.moved, parked.left);
            self.parked = Some(parked.extents);
        }
        if mutant::is(Mutant::ParkOpen) {
            gate::open();
        }
        let took_ms = start.elapsed().as_millis() as u64;
        self.say(FromProgram::Parked {
            took_ms,
            moved,
            left,
        });
    }

    /// It cannot park, which is said each time: gpuosd may have the driver do it, which stops all calls.
    fn hold(&mut self) {
        if process::is_pinned() {
            (self.pinned, self.held) = (true, true);
            // What the driver parks as a whole comes back the better, the less host memory it has.
            ahead::drop_all();
            self.say(FromProgram::Pinned);
        }
    }

    fn back(&mut self) {
        self.held = false;
        let start = Instant::now();
        let mut moved = self.fetch(None);
        let parked = self.parked.take();
        moved += parked.map_or(0, |extents| park::back(&extents));
        let took_ms = start.elapsed().as_millis() as u64;
        self.say(FromProgram::Back { took_ms, moved });
        self.quiet = Instant::now();
    }

    /// Brings some of what is parked in host memory to NVMe.
    fn demote(&mut self, bytes: u64, mover: String) {
        let bytes = match (self.demoted[1].take(), &self.parked) {
            (Some(told), _) => told,
            (None, None) => 0,
            (None, Some(parked)) => {
                let some = park::first_of(parked, bytes);
                ahead::drop_all();
                if let Err(why) = self.put(mover, &some) {
                    process::say(format_args!("memory cannot be parked on NVMe: {why}"));
                }
                stow::gone(&some)
            }
        };
        self.demoted[0] = Some(bytes);
        self.say(FromProgram::Demoted { bytes });
    }

    fn put(&mut self, mover: String, extents: &[u32]) -> Result<u64, String> {
        let segment = self.segment.get_or_insert_with(|| Segment::new(mover));
        segment.put(extents)
    }

    /// Brings back what is on NVMe, to where it was or to a tier.
    fn fetch(&mut self, to: Option<Tier>) -> u64 {
        (self.stowed, self.demoted) = (false, [None; 2]);
        let segment = self.segment.take();
        let none = BTreeSet::new();
        let up = self.parked.as_ref().unwrap_or(&none);
        segment.map_or(0, |mut segment| segment.get(up, to))
    }

    fn say_pinned(&mut self) {
        if process::is_pinned() && !std::mem::replace(&mut self.pinned, true) {
            // Nothing will go there.
            ahead::drop_all();
            self.say(FromProgram::Pinned);
        }
    }

    fn tell_figures(&mut self) {
        if self.version == OLDEST || self.figures.1.elapsed() < TELL {
            return;
        }
        let now = figures::now_known();
        let before = std::mem::replace(&mut self.figures, (now, Instant::now())).0;
        if now != before {
            self.say(FromProgram::Figures(now));
        }
    }

    /// Who had no work when he was held may have some now, and waits in the driver with it.
    fn look_while_held(&mut self) {
        if self.in_turns && self.idle && gate::take_touched() {
            self.idle = false;
            self.say(FromProgram::Busy);
        }
    }

    /// What the program does, as far as gpuosd has to know it.
    fn look(&mut self) {
        if self.held {
            self.look_while_held();
            return;
        }
        self.say_pinned();
        let moved = figures::sums();
        if moved != self.moved.0 && self.moved.1.elapsed() >= TELL {
            self.moved = (moved, Instant::now());
            let (down, up) = moved;
            self.say(FromProgram::Moved { down, up });
        }
        self.tell_figures();
        if !self.in_turns {
            return;
        }
        if gate::take_touched() {
            self.quiet = Instant::now();
            if std::mem::take(&mut self.idle) {
                self.say(FromProgram::Busy);
            }
        } else if !self.idle
            && self.parked.is_none()
            && self.quiet.elapsed() >= IDLE
            && self.meanwhile(park::settled) == Some(true)
            && !gate::take_touched()
        {
            self.idle = true;
            self.say(FromProgram::Idle);
        }
    }
}

/// What the process makes of what it was given: it sees as much as it can use while it works.
fn lease(hbm: u64, host: u64, refuge: u64) -> Lease {
    Lease {
        bytes: hbm.saturating_add(host),
        hbm,
        host: host.saturating_add(refuge),
    }
}
