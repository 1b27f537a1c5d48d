//! `gpuos mem sim`, over patterns and a trace of one's own, and `gpuos mem show`, with a gpuosd that tells of what it lends.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use gpuos_core::wire::{
    Happening, MemoryFigures, MemoryGpuStatus, MemoryLeaseStatus, MemoryPressureStatus,
    MemoryProgramStatus, MemoryStatus, MemoryTierStatus, MemoryUnaskedStatus, Peer, Reply, Request,
};
use gpuos_host::socket::{Limits, NAME, RequestHandler, Server, bind};

use crate::site::Site;

struct Lends(MemoryStatus);

impl RequestHandler for Lends {
    fn who(&self) -> (String, String) {
        ("0.1.0".into(), "n1".into())
    }

    fn ask(&self, _peer: Peer, request: Request) -> Reply {
        assert_eq!(request, Request::Memory);
        let memory = Box::new(self.0.clone());
        Reply::Memory { memory }
    }

    fn watch(&self, _peer: Peer) -> Receiver<Happening> {
        channel().1
    }
}

/// Two jobs have GPU 2 in turns, and GPU 3 lends nothing.
fn lent() -> MemoryStatus {
    let gib = |gib: u64| gib << 30;
    let program = |job: u32, place: &str| MemoryProgramStatus {
        job: job.into(),
        uid: 1000,
        pid: 100 + job,
        started: 70,
        nvme: if job == 8 { gib(40) } else { 0 },
        place: place.into(),
        busy: true,
        connected: job == 7,
        pinned: false,
        stopped: false,
        by_driver: false,
        leases: vec![MemoryLeaseStatus {
            gpu: 2u8.try_into().unwrap(),
            hbm: gib(60),
            host: 0,
            refuge: gib(60),
        }],
        moved_down: gib(120),
        moved_up: gib(60),
        parks: 2,
        squeezed: gib(if job == 7 { 0 } else { 2 }),
        figures: match job {
            7 => MemoryFigures {
                heat: [gib(30), gib(15), gib(15)],
                fetched: gib(12),
                evicted: gib(11),
                pressed: gib(1),
                slower: [1052, 1310],
            },
            _ => MemoryFigures::default(),
        },
    };
    let gpu = |gpu: u8, promised: u64, turn: Option<u32>| MemoryGpuStatus {
        gpu: gpu.try_into().unwrap(),
        hbm: MemoryTierStatus {
            present: gib(80),
            promised: gib(promised),
        },
        in_turns: turn.is_some(),
        serialised: false,
        others: gib(if gpu == 2 { 5 } else { 0 }),
        link: if gpu == 2 { 1_260_000_000 } else { 0 },
        turn: turn.map(Into::into),
    };
    MemoryStatus {
        gpus: vec![gpu(2, 60, Some(7)), gpu(3, 0, None)],
        host: MemoryTierStatus {
            present: gib(512),
            promised: gib(120),
        },
        nvme: MemoryTierStatus {
            present: gib(500),
            promised: gib(40),
        },
        pressure: MemoryPressureStatus {
            step: "demote-dirty".into(),
            available: Some(gib(20)),
            stalled: Some(123),
            short: vec![8.into()],
        },
        programs: vec![program(7, "resident"), program(8, "parked")],
        unasked: vec![MemoryUnaskedStatus {
            job: 7.into(),
            uid: 1000,
            pid: 4711,
            gpu: 2u8.try_into().unwrap(),
            bytes: gib(12),
        }],
        programs_of_others: 1,
    }
}

/// A gpuosd of node n1 that lends this; the flag that names its socket.
pub fn daemon(site: &Site) -> String {
    let dir = site.path("run-memory");
    std::fs::create_dir_all(&dir).unwrap();
    let listener = bind(&Path::new(&dir).join(NAME)).unwrap();
    Server::start(listener, Arc::new(Lends(lent())), Limits::default()).unwrap();
    format!("--runtime-dir={dir}")
}

#[test]
fn what_a_node_lends_is_shown_with_whose_turn_it_is() {
    let site = Site::new("24.11.5");
    let run = daemon(&site);
    let answer = site.run(&["mem", "show", &run]);
    let wanted = "\
n1: 1 of 2 GPUs lent, 120.0 of 512.0 GiB of host memory, 40.0 of 500.0 GiB of NVMe
GPU 2   [##################......] 60.0 of 80.0 GiB  in turns: job 7 has it  5.0 GiB used by others  link 1.2 GB/s
Host    [#####...................] 120.0 of 512.0 GiB
Host memory is short. 20.0 GiB are available. All that runs waits for memory 12.3 % of the time. Next: what is parked goes to NVMe.
Short of their own memory: job 8

JOB  PID  GPU   HBM  HOST  FOR PARKING  PLACE                                 WORK  PARKED    OUT  BACK
  7  107    2  60.0   0.0         60.0  resident                              yes        2  120.0  60.0
  8  108    2  60.0   0.0         60.0  parked, 40.0 for NVMe, not connected  yes        2  120.0  60.0
Sizes are in GiB. OUT and BACK: what went to host memory and came back.

JOB  PID  HEAT                         HOT  WARM  COLD    IN   OUT  ASKED  SQUEEZED  PREDICTED  MEASURED
  7  107  [############++++++......]  30.0  15.0  15.0  12.0  11.0    1.0       0.0  1.05 x     1.31 x
  8  108  [........................]   0.0   0.0   0.0   0.0   0.0    0.0       2.0  1.00 x     1.00 x
HEAT: # touched within a second, + within a minute, . longer ago. IN and OUT: moved as the program used it; ASKED: as gpuosd said so.
SQUEEZED: on the host because others use the GPU. PREDICTED and MEASURED: how many times as long it takes for moves.

Process 4711 of job 7 uses 12.0 GiB of GPU 2 and has not asked for it.
Static and setuid programs do not load libgpuos_preload.so, nor do those that lose LD_PRELOAD: they take no turns and have no tiers.
1 process of other users
";
    assert_eq!(
        (answer.code, &answer.out[..]),
        (0, wanted),
        "{}",
        answer.err
    );
    let own = site.run(&["mem", "show", "8", &run]);
    assert!(
        own.code == 0 && !own.out.contains("  7  107") && !own.out.contains("4711"),
        "{}",
        own.out
    );
    let none = site.run(&["mem", "show", "9", &run]);
    assert_eq!(none.code, 1);
    assert!(
        none.out.ends_with("job 9 has no memory in tiers here\n"),
        "{}",
        none.out
    );
    let json = site.run(&["mem", "show", "--json", &run]).json();
    assert_eq!(
        (
            &json["schema"],
            &json["node"],
            &json["memory"]["programs"][1]["job"]
        ),
        (&"gpuos.mem/1".into(), &"n1".into(), &8.into())
    );
    let nobody = site.run(&["mem", "show", "--runtime-dir", &site.path("nowhere")]);
    assert_eq!(nobody.code, 1);
    assert!(nobody.err.contains("gpuosd"), "{}", nobody.err);
}

#[test]
fn a_pattern_is_replayed_under_each_policy() {
    let answer = Site::new("24.11.5").run(&["mem", "sim", "loop"]);
    let out = answer.out;
    assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{out}");
    let head = "loop: one pass over all after the other\n\
                400 extents of 16 MiB (6.2 GiB), 24000 touches; GPU memory for 300 of them (4.6 GiB)\n\n\
                policy  fetched  of the bound  written back  over the link\n\
                bound      5900          1.00\n";
    assert!(out.starts_with(head), "{out}");
    for policy in ["gpuos", "lru", "clock", "2q", "arc"] {
        assert!(out.contains(&format!("\n{policy} ")), "{policy}: {out}");
    }
}

#[test]
fn what_is_printed_can_be_replayed() {
    let site = Site::new("24.11.5");
    let printed = site.run(&["mem", "sim", "loop", "--print"]);
    site.file("own.trace", &printed.out);
    let own = site.path("own.trace");
    let args = |trace| ["mem", "sim", trace, "--hbm=2G", "--policy=lru"];
    let (of_own, of_loop) = (site.run(&args(&own)), site.run(&args("loop")));
    assert_eq!((of_own.code, of_own.err.as_str()), (0, ""));
    let table = |out: &str| out.split_once('\n').expect("lines").1.to_owned();
    assert_eq!(table(&of_own.out), table(&of_loop.out));
    assert!(
        of_own.out.contains("GPU memory for 128 of them (2.0 GiB)"),
        "{}",
        of_own.out
    );
}

#[test]
fn what_cannot_be_is_said() {
    let site = Site::new("24.11.5");
    site.file(
        "bad.trace",
        "gpuos memory trace 1\nextent-mib 16\nr 1\nread 2\n",
    );
    let bad = site.path("bad.trace");
    let nowhere = "cannot read the trace nowhere, and no pattern has this name; patterns are training, kv-cache, scan, loop, zipf, stencil: No such file";
    for (args, code, says) in [
        (&["mem", "sim", "nowhere"][..], 1, nowhere),
        (
            &["mem", "sim", &bad],
            1,
            "bad.trace, line 4: \"read 2\" is no touch; accepted are r N, w N and f N",
        ),
        (
            &["mem", "sim", "loop", "--hbm=1M"],
            1,
            "loop: this GPU memory holds no extent of 16 MiB; give more with --hbm",
        ),
        (
            &["mem", "sim", "loop", "--hbm=0%"],
            2,
            "write a share or a size: 75%, 40G, 512M",
        ),
        (
            &["mem", "sim", "loop", "--policy=best"],
            2,
            "gpuos, lru, clock, 2q, arc",
        ),
        (&["mem", "sim", "--print"], 2, "<TRACE>"),
    ] {
        let answer = site.run(args);
        assert_eq!(answer.code, code, "{args:?}: {}", answer.err);
        assert!(answer.err.contains(says), "{args:?}: {}", answer.err);
    }
}
