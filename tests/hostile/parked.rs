//! gpuos_mover's socket for memory that is parked on NVMe, and the folder in which that lies.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use gpuos_core::wire::memory_socket;

use crate::attempt::{Attempt, attempt, ensure, judge};
use crate::stage::{Stage, first_line, parked};
use crate::users::{MALLORY, User};

/// SECURITY.md's name of the input.
const INPUT: &str = "Memory that is parked on NVMe";

/// Accounts that open connections; they need no entry in passwd for that.
const CROWD: [u32; 4] = [61_041, 61_042, 61_043, 61_044];
/// One that is to be answered all the same.
const OTHER: User = User {
    name: "nobody-else-parks",
    uid: 61_045,
};
/// As many as would fill all places where each of them had as many as he can.
const GREEDY: [u32; 8] = [
    61_061, 61_062, 61_063, 61_064, 61_065, 61_066, 61_067, 61_068,
];
/// One who has none.
const MODEST: User = User {
    name: "parks-for-the-first-time",
    uid: 61_069,
};
const NODE: &str = "n3";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    lines(&mut all);
    let crowd = crowded(
        "four accounts hold 64 connections each, where memory is parked",
        "another user is answered",
        &CROWD,
        OTHER,
    );
    all.push(crowd.short());
    let greedy = crowded(
        "eight accounts take all places that they get, where memory is parked",
        "one who has no place is answered as if nobody were there",
        &GREEDY,
        MODEST,
    );
    all.push(greedy.short());
    all.push(looks());
    all
}

fn socket(stage: &Stage) -> PathBuf {
    let mover = stage.runtime(NODE).join("gpuos_mover.sock");
    memory_socket(&mover.display().to_string()).into()
}

/// `Ok` where gpuos_mover is the same process, and nobody has a file.
fn goes_on(stage: &Stage, pid: Option<u32>) -> Result<(), String> {
    let now = stage.cluster.lab.mover_pid(NODE);
    ensure(pid.is_some() && now == pid, || {
        format!("gpuos_mover {pid:?} is {now:?}")
    })?;
    let files = std::fs::read_dir(parked().join(NODE)).map_err(|error| error.to_string())?;
    ensure(files.count() == 0, || "somebody has a file".into())
}

/// What a process without a promise may say, and without a ring.
fn lines(all: &mut Vec<Attempt>) {
    let held = "it is refused, gets no file, and gpuos_mover is the same process";
    let digest = "0".repeat(64);
    for (name, text) in [
        ("says hello without a ring", "hello 1 8\n".into()),
        (
            "says all that can be said",
            format!("hello 1 8\nput 0 0 4096\nget 0 0 4096 {digest}\ndrop\n"),
        ),
        ("puts before it says hello", "put 0 0 4096\n".into()),
        (
            "names a file of another",
            format!("hello 1 8 ../../../etc/shadow\nget 0 0 4096 {digest}\n"),
        ),
        ("sends a line of 128 KiB", "x".repeat(128 << 10)),
        ("sends half a line", "hello".into()),
        ("speaks as gpuos_mover does", "ready 1\ndone 0\n".into()),
        (
            "asks for room without end",
            format!("hello 1 {}\n", u64::MAX),
        ),
    ] {
        let name = format!("{name}, where memory is parked");
        all.push(attempt(INPUT, name, held, move |stage: &Stage| {
            let pid = stage.cluster.lab.mover_pid(NODE);
            let told = stage.talk_to(MALLORY, &socket(stage), text.as_bytes(), 2);
            judge(move |stage| {
                let told = told.heard();
                let own = |line: &&String| line.starts_with("refused ") || *line == "busy";
                let more = told.iter().find(|line| !own(line));
                ensure(more.is_none(), || format!("it was told {more:?}"))?;
                goes_on(stage, pid)
            })
        }));
    }
}

/// Connections that stay, 64 of each account of a crowd, and another user who comes then.
fn crowded(name: &str, held: &'static str, crowd: &'static [u32], other: User) -> Attempt {
    attempt(INPUT, name, held, move |stage: &Stage| {
        let pid = stage.cluster.lab.mover_pid(NODE);
        let path = socket(stage).display().to_string();
        let crowd = crowd
            .iter()
            .map(|uid| stage.part(*uid, "hold", &[&path, "64"]));
        let mut crowd: Vec<_> = crowd.collect();
        let holds: Vec<String> = crowd.iter_mut().map(first_line).collect();
        crowd.into_iter().for_each(|one| stage.keep(one));
        let told = stage.talk_to(other, &socket(stage), b"hello 1 8\n", 1);
        judge(move |stage| {
            let told = told.heard();
            ensure(told.iter().any(|line| line.starts_with("refused ")), || {
                format!("{holds:?}; the other was told {told:?}")
            })?;
            goes_on(stage, pid)
        })
    })
}

/// The folder itself.
fn looks() -> Attempt {
    let held = "root alone comes in";
    attempt(
        INPUT,
        "looks into the folder where memory is parked",
        held,
        |stage: &Stage| {
            let pid = stage.cluster.lab.mover_pid(NODE);
            let script = "cd $0 && echo came; ls . ..; touch 1.1.1; ln -s /etc/shadow 2.2.2";
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).arg(parked().join(NODE));
            shell.uid(MALLORY.uid).gid(MALLORY.uid).current_dir("/");
            let came = shell
                .output()
                .is_ok_and(|out| out.stdout.starts_with(b"came\n"));
            judge(move |stage| {
                ensure(!came, || "he came in".into())?;
                goes_on(stage, pid)
            })
        },
    )
}
