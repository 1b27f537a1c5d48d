//! A job with memory in tiers as gpuosd sees it: the step that was reported, and a process of it that says what a test has it say.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gpuos_core::step::StepId;
use gpuos_core::wire::{MemoryStatus, Reason, Reply, Request, StepMemory, memory_socket};
use gpuos_memory::protocol::{FromProgram, ToProgram, Uuid};

use crate::isolation::{of_job, record};
use crate::site::{Daemon, Site};

/// All memory of a simulated H100, as NVML shows it.
pub const CARD: u64 = 81_559 << 20;
/// Tells this program to be a program of a job.
const TALK: &str = "GPUOS_DAEMON_TALK";

/// The user of this test, and of its jobs.
pub fn own() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The path of the socket for programs.
pub fn socket(daemon: &Daemon) -> String {
    memory_socket(&daemon.socket().display().to_string())
}

/// A job of this user that has these GPUs and so much memory here.
pub fn job(site: &Site, id: u32, gpus: &str, memory: &str) {
    site.job(id, gpus);
    let text = site.slurm(&format!("jobs/{id}"));
    let text = text.replace(" Mem=0 ", &format!(" Mem={memory} "));
    let text = text.replace("UserId=ann(1000)", &format!("UserId=ann({})", own()));
    site.set_slurm(&format!("jobs/{id}"), &text);
}

/// The same of a job that has a part of a GPU, which others may have too.
pub fn sharer(site: &Site, id: u32, gpu: &str, memory: &str) {
    job(site, id, gpu, memory);
    let text = site.slurm(&format!("jobs/{id}"));
    let whole = format!("GRES=gpu:h100:1(IDX:{gpu})");
    assert!(text.contains(&whole));
    let text = text.replace(&whole, &format!("GRES=shard:h100:2(IDX:{gpu})"));
    site.set_slurm(&format!("jobs/{id}"), &text);
}

/// Its step 0 starts, with so many bytes for each GPU.
pub fn step(daemon: &Daemon, job: u32, gpus: &[u8], bytes_per_gpu: u64, timeslice: bool) {
    let request = Request::StepStart {
        id: StepId {
            job: job.into(),
            step: 0,
        },
        uid: own(),
        gpus: gpus.to_vec(),
        asked: Default::default(),
        mig: None,
        switchable: false,
        memory: Some(StepMemory {
            bytes_per_gpu,
            timeslice,
        }),
        reason: Reason::Devices,
    };
    daemon.ask(&request).unwrap();
}

pub fn status(daemon: &Daemon) -> MemoryStatus {
    match daemon.ask(&Request::Memory).unwrap() {
        Reply::Memory { memory } => *memory,
        other => panic!("{other:?}"),
    }
}

/// gpuosd with a recorded folder of processes.
pub fn start(site: &Site) -> Daemon<'_> {
    start_with(site, &[])
}

/// The same with more flags.
pub fn start_with<'a>(site: &'a Site, more: &[&str]) -> Daemon<'a> {
    start_in_turns_of(site, "1", more)
}

/// The same with turns of so many seconds at least.
pub fn start_in_turns_of<'a>(site: &'a Site, seconds: &str, more: &[&str]) -> Daemon<'a> {
    fs::create_dir_all(site.path("proc")).unwrap();
    fs::write(site.path("proc/meminfo"), "MemTotal: 536870912 kB\n").unwrap();
    let proc = site.path("proc");
    let proc = proc.to_str().unwrap();
    // Turns are as long as moves take, which here is next to nothing.
    let flags = [
        "--proc",
        proc,
        "--memory-turn",
        seconds,
        "--memory-rate",
        "10000",
    ];
    let daemon = site.start_with(&[&flags, more].concat());
    daemon.ready();
    site.until("memory of GPUs", || {
        (status(&daemon).gpus.len() == 8).then_some(())
    });
    daemon
}

/// Not a test: a process that hands lines on between the test and gpuosd.
#[test]
fn talks_for_a_test() {
    let Some(path) = std::env::var_os(TALK) else {
        return;
    };
    let mut first = String::new();
    std::io::stdin().read_line(&mut first).unwrap();
    let stream = UnixStream::connect(path).unwrap();
    let mut from = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut bytes, mut out) = ([0; 1024], std::io::stdout());
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            out.write_all(&bytes[..count]).unwrap();
            out.flush().unwrap();
        }
        std::process::exit(0);
    });
    let mut to = stream;
    for line in std::io::stdin().lines() {
        let _ = to.write_all(format!("{}\n", line.unwrap()).as_bytes());
    }
}

/// A process of a job, which says what the test says.
pub struct Program<'a> {
    site: &'a Site,
    pub child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What it may move over its links, in bytes a second, by gpuosd's last word.
    pub budget: Option<u64>,
}

impl<'a> Program<'a> {
    /// One that belongs to step 0 of a job, by its control group. It is connected.
    pub fn start(site: &'a Site, daemon: &Daemon, job: u32) -> Program<'a> {
        Program::start_as(site, daemon, own(), &of_job(job, "0"))
    }

    /// The same by the kernel's word of its user and group.
    pub fn start_as(site: &'a Site, daemon: &Daemon, uid: u32, cgroup: &str) -> Program<'a> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory_program::talks_for_a_test", "--nocapture"])
            .env(TALK, socket(daemon))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        record(site, child.id(), uid, "train", cgroup);
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program {
            site,
            child,
            to,
            from,
            budget: None,
        };
        program.line("connect");
        program
    }

    /// One whose connection has ended hears nothing.
    pub fn line(&mut self, line: &str) {
        let _ = self.to.write_all(format!("{line}\n").as_bytes());
    }

    pub fn say(&mut self, what: FromProgram) {
        let _ = self.to.write_all(what.line().as_bytes());
    }

    /// The next thing that it is told, but for budgets; `None`: the connection has ended. What the test's own frame prints is none.
    pub fn told(&mut self) -> Option<ToProgram> {
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The first line may stand behind the name of the test.
            let words = [
                "lease ",
                "without ",
                "refused ",
                "denied ",
                "park ",
                "turn",
                "note ",
                "pressure ",
                "trim ",
                "budget ",
            ];
            let at = words.iter().filter_map(|word| line.find(word)).min();
            match at.map(|at| ToProgram::parse(&line.as_bytes()[at..])) {
                Some(Ok(ToProgram::Budget { rate, .. })) => self.budget = Some(rate),
                Some(Ok(told)) => return Some(told),
                _ => {}
            }
        }
    }

    /// Asks for so much of a GPU; what it is given: of the GPU, of the host, for while it is parked, and whether it waits.
    pub fn ask(&mut self, gpu: usize, bytes: u64) -> Result<(u64, u64, u64, bool), String> {
        self.say(FromProgram::Hello { version: 3 });
        self.ask_again(gpu, bytes)
    }

    /// The same of a library of an earlier release.
    pub fn ask_earlier(&mut self, gpu: usize, bytes: u64) -> Result<(u64, u64, u64, bool), String> {
        self.say(FromProgram::Hello { version: 1 });
        self.ask_again(gpu, bytes)
    }

    /// Asks for another size, or another GPU.
    pub fn ask_again(&mut self, gpu: usize, bytes: u64) -> Result<(u64, u64, u64, bool), String> {
        self.wants(gpu, bytes);
        self.given(gpu)
    }

    /// Asks, and waits for nothing.
    pub fn wants(&mut self, gpu: usize, bytes: u64) {
        let gpu = uuid(self.site, gpu);
        let hbm = CARD;
        self.say(FromProgram::Ask { gpu, bytes, hbm });
    }

    /// What it is given of a GPU.
    pub fn given(&mut self, gpu: usize) -> Result<(u64, u64, u64, bool), String> {
        let gpu = uuid(self.site, gpu);
        loop {
            match self.told() {
                Some(ToProgram::Lease {
                    gpu: of,
                    hbm,
                    host,
                    refuge,
                    wait,
                }) => {
                    assert_eq!(of, gpu);
                    return Ok((hbm, host, refuge, wait));
                }
                Some(
                    ToProgram::Refused { why }
                    | ToProgram::Denied { why }
                    | ToProgram::Without { why, .. },
                ) => {
                    return Err(why);
                }
                Some(ToProgram::Note { .. }) => {}
                None => return Err("the connection has ended".into()),
                other => panic!("{other:?}"),
            }
        }
    }

    /// It is killed, and the kernel forgets it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.forget();
    }

    /// It is ended, and told so if it has the time.
    pub fn is_ended(&mut self) {
        while let Some(told) = self.told() {
            assert!(matches!(told, ToProgram::Note { .. }), "{told:?}");
        }
        assert!(!self.child.wait().unwrap().success());
        self.forget();
    }

    pub fn forget(&self) {
        let _ = fs::remove_dir_all(self.site.path("proc").join(self.child.id().to_string()));
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.forget();
    }
}

pub fn uuid(site: &Site, gpu: usize) -> Uuid {
    Uuid(site.gpu(gpu).uuid)
}
