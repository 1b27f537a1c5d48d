//! Messages survive the way, and no bytes can upset the reader.
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::mig::MigPlacement;
use gpuos_model::node_gpu::NodeGpu;
use proptest::prelude::*;

use super::{
    Code, Happening, Lines, MAX_REPLY, MAX_REQUEST, MIG_VARIABLES, MPS_VARIABLES, MemoryFigures,
    MemoryGpuStatus, MemoryLeaseStatus, MemoryPressureStatus, MemoryProgramStatus, MemoryStatus,
    MemoryTierStatus, MemoryUnaskedStatus, MigAsk, MigGpuStatus, MigInstance, MigLoad, MigStatus,
    MomEnd, MomGpu, MomHost, MomJob, MomReport, PROTOCOL, Peer, Percent, Reason, Reply, Request,
    Right, Status, StepMemory, Viewer, WireError, decode, encode, may, needs, refusal,
};
use crate::health::Verb;
use crate::job::JobId;
use crate::limits::{Asked, ClockRange, MpsRequest, PowerCap};
use crate::step::StepId;

fn nvml(gpu: u8) -> NvmlIndex {
    NvmlIndex::try_from(gpu).expect("a GPU")
}

fn nth(gpu: u8) -> NodeGpu {
    NodeGpu::try_from(gpu).expect("a GPU")
}

fn requests() -> Vec<Request> {
    let id = StepId {
        job: 7.into(),
        step: 0,
    };
    vec![
        Request::Hello {
            protocol: PROTOCOL,
            client: "gpuos 0.1.0".into(),
        },
        Request::Status,
        Request::Watch,
        Request::Admin {
            verb: Verb::Drain,
            gpus: vec![nth(5)],
            reason: "fan \"3\"\nis loud".into(),
            force: false,
        },
        Request::StepStart {
            id: id.clone(),
            uid: 1000,
            gpus: vec![0, 1],
            asked: Asked::default(),
            mig: None,
            switchable: false,
            memory: None,
            reason: Reason::Devices,
        },
        Request::StepStart {
            id: id.clone(),
            uid: 1000,
            gpus: vec![],
            asked: Asked::default(),
            mig: Some(MigAsk {
                request: "1g.10gb:per-task".into(),
                slices: vec![12, 13],
                tasks: 2,
            }),
            switchable: false,
            memory: None,
            reason: Reason::Devices,
        },
        Request::StepStart {
            id: id.clone(),
            uid: 1000,
            gpus: vec![2],
            asked: Asked {
                power: Some(PowerCap::Percent(80)),
                clocks: Some(ClockRange {
                    least: 1200,
                    most: 1500,
                }),
                watch_s: Some(0),
                mps: Some(MpsRequest {
                    joint: true,
                    percent: 50,
                    gid: 100,
                }),
                shared: true,
                undone: false,
            },
            mig: None,
            switchable: true,
            memory: Some(StepMemory {
                bytes_per_gpu: 120 << 30,
                timeslice: false,
            }),
            reason: Reason::Option,
        },
        Request::StepEnd { id },
        Request::Mig,
        Request::Memory,
        Request::Mom {
            report: Box::new(MomReport {
                described: vec![MomGpu::default()],
                jobs: vec![MomJob {
                    job: "12[3].head".parse().expect("an id"),
                    user: "ann".into(),
                    uid: 1000,
                    gpus: vec![GresGpu::LAST],
                    run: 2,
                    script_on: "n1".into(),
                    hosts: "n[1-2]".into(),
                    former: "n3".into(),
                    checkpoints: true,
                    suspended: true,
                    is_held: Some(true),
                    ends_in_s: Some(7),
                    may_rerun: Some(true),
                    ..MomJob::default()
                }],
                all: true,
                asked: true,
                host: Some(MomHost::default()),
                ended: vec![MomEnd {
                    job: "11.head".parse().expect("an id"),
                    run: 3,
                }],
                ..MomReport::default()
            }),
        },
        Request::Confine {
            job: "12[3].head".parse().expect("an id"),
            pid: 4711,
            started: 99,
            slices: true,
        },
        Request::Reload,
        Request::Audit {
            lines: 20,
            job: None,
        },
        Request::Audit {
            lines: 20,
            job: Some(7.into()),
        },
    ]
}

fn mig() -> MigStatus {
    let placement = MigPlacement { start: 4, size: 4 };
    let instance = MigInstance {
        profile: "3g.40gb".into(),
        placement,
        gi: Some(2),
        ci: Some(0),
        uuid: Some("MIG-1".into()),
        job: Some(7.into()),
        phase: "ready".into(),
        foreign: false,
        others: false,
        pids: vec![99],
        memory_total_mib: Some(40448),
        memory_used_mib: Some(12),
        memory_unknown: None,
        load: MigLoad {
            sm_percent: Some(Percent::of_ratio(0.123_456_7)),
            bandwidth_percent: None,
            load_unknown: Some("not told".into()),
        },
    };
    let gpu = MigGpuStatus {
        slices: 8,
        ready: true,
        instances: vec![instance],
        free: vec![0, 1, 2, 3],
        fits: [("1g.10gb".into(), 4)].into(),
        ..MigGpuStatus::new(nvml(4))
    };
    let whole = MigGpuStatus {
        switchable: true,
        whole: true,
        holder: Some(9.into()),
        ..MigGpuStatus::new(nvml(5))
    };
    MigStatus {
        board: "h100-80gb".into(),
        gpus: vec![gpu, whole],
        unread: false,
    }
}

/// GPU 3, which jobs 7 and 9 of two users have in turns.
fn memory() -> MemoryStatus {
    let program = |job: u32, uid| MemoryProgramStatus {
        job: job.into(),
        uid,
        pid: job * 10,
        started: 70,
        nvme: 0,
        place: "resident".into(),
        busy: true,
        connected: true,
        pinned: false,
        stopped: false,
        by_driver: false,
        leases: vec![MemoryLeaseStatus {
            gpu: nth(3),
            hbm: 60 << 30,
            host: 0,
            refuge: 60 << 30,
        }],
        moved_down: 5,
        moved_up: 4,
        parks: 1,
        squeezed: 0,
        figures: MemoryFigures::default(),
    };
    let unasked = |(job, uid): (u32, u32)| MemoryUnaskedStatus {
        job: job.into(),
        uid,
        pid: job * 10 + 1,
        gpu: nth(3),
        bytes: 1 << 30,
    };
    MemoryStatus {
        gpus: vec![MemoryGpuStatus {
            gpu: nth(3),
            hbm: MemoryTierStatus {
                present: 80 << 30,
                promised: 60 << 30,
            },
            in_turns: true,
            serialised: false,
            others: 0,
            link: 0,
            turn: Some(9.into()),
        }],
        host: MemoryTierStatus::default(),
        nvme: MemoryTierStatus::default(),
        pressure: MemoryPressureStatus {
            step: "notify".into(),
            short: vec![7.into(), 9.into()],
            ..MemoryPressureStatus::default()
        },
        programs: vec![program(7, 1000), program(9, 1001)],
        unasked: [(7, 1000), (9, 1001)].map(unasked).into(),
        programs_of_others: 0,
    }
}

#[test]
fn a_user_is_told_of_his_own_programs_memory_alone() {
    let users = [(7.into(), 1000), (9.into(), 1001)].into();
    let told = |uid| {
        let users = &users;
        memory().redacted_for(&Viewer { uid, users })
    };
    let (own, other, nobody) = (told(1000), told(1001), told(1002));
    assert_eq!(own.programs, memory().programs[..1]);
    assert_eq!(own.unasked, memory().unasked[..1]);
    assert!(nobody.unasked.is_empty());
    // One of an earlier release does not tell it, and nobody is told of nothing.
    let text = serde_json::to_string(&nobody).unwrap();
    assert!(!text.contains("unasked"), "{text}");
    assert_eq!(serde_json::from_str::<MemoryStatus>(&text).unwrap(), nobody);
    assert_eq!(own.pressure.short, [7.into()]);
    assert_eq!((own.programs_of_others, &own.gpus[0].turn), (1, &None));
    assert_eq!(other.gpus[0].turn, Some(9.into()));
    assert!(nobody.programs.is_empty() && nobody.programs_of_others == 2);
    assert_eq!(nobody.gpus[0].hbm, memory().gpus[0].hbm);
}

#[test]
fn requests_come_back_as_they_were_sent_one_line_each() {
    for request in requests() {
        let line = encode(&request, MAX_REQUEST).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(decode::<Request>(&line, MAX_REQUEST).unwrap(), request);
    }
}

#[test]
fn replies_come_back_as_they_were_sent() {
    let happening = Happening {
        at_ms: 1,
        what: "warn".into(),
        gpu: Some(nth(3)),
        job: None,
        message: "GPU 3: Xid 79".into(),
    };
    for reply in [
        Reply::Hello {
            protocol: PROTOCOL,
            release: "0.1.0".into(),
            node: "n1".into(),
        },
        Reply::Status {
            status: Box::new(Status::default()),
        },
        Reply::Done {
            message: "done".into(),
        },
        Reply::Prepared {
            notes: vec!["GPU 3: no".into()],
            environment: [(MPS_VARIABLES[0].into(), "/run/x".into())].into(),
            failed: None,
        },
        Reply::Prepared {
            notes: vec![],
            environment: [(MIG_VARIABLES[0].into(), "MIG-1".into())].into(),
            failed: Some("GPU 4: its slices are held".into()),
        },
        Reply::Mig {
            mig: Box::new(mig()),
        },
        Reply::Memory {
            memory: Box::new(memory()),
        },
        Reply::Happened { event: happening },
        Reply::Refused {
            code: Code::TooSlow,
            message: "read faster".into(),
        },
    ] {
        let line = encode(&reply, MAX_REPLY).unwrap();
        assert_eq!(decode::<Reply>(&line, MAX_REPLY).unwrap(), reply);
    }
}

/// What is told of an instance by a gpuosd from before its load was, and the form of the load.
#[test]
fn the_load_of_an_instance_may_be_missing_and_is_in_percent() {
    let old = r#"{"profile":"3g.40gb","window":{"start":4,"size":4},"phase":"ready","foreign":false,"pids":[]}"#;
    let instance: MigInstance = serde_json::from_str(old).unwrap();
    assert_eq!(instance.load, MigLoad::default());
    // An older one called the placement a window.
    let new = old.replace("window", "placement");
    assert_eq!(serde_json::to_string(&instance).unwrap(), new);
    let load = MigLoad {
        sm_percent: Some(Percent::of_ratio(0.5)),
        ..MigLoad::default()
    };
    assert_eq!(
        serde_json::to_string(&load).unwrap(),
        r#"{"sm_percent":50.0}"#
    );
}

#[test]
fn a_little_is_never_nothing() {
    let of = Percent::of_ratio;
    let shown = [0.0, 1e-9, 0.004, 0.0149, 0.015, 1.0].map(|ratio| of(ratio).to_string());
    assert_eq!(shown, ["0", "<1", "<1", "1", "2", "100"]);
    assert!(of(1e-9).ratio() > 0.0);
    assert_eq!([of(f64::NAN), of(-1.0)], [of(0.0); 2]);
    assert_eq!(of(7.0), of(1.0));
}

#[test]
fn a_step_that_asks_for_nothing_is_told_as_ever() {
    let line = r#"{"ask":"step-start","id":{"job":7,"step":0},"uid":1000,"gpus":[0]}"#;
    let request = decode::<Request>(line.as_bytes(), MAX_REQUEST).unwrap();
    let written = encode(&request, MAX_REQUEST).unwrap();
    assert_eq!(written, format!("{line}\n").into_bytes());
}

#[test]
fn what_is_no_request_is_an_error_with_a_place() {
    for bad in [
        "",
        "{",
        "null",
        "{\"ask\":\"reboot\"}",
        "{\"ask\":\"audit\",\"lines\":1,\"also\":1}",
        "{\"ask\":\"admin\",\"verb\":\"drain\",\"gpus\":[256]}",
        "{\"ask\":\"admin\",\"verb\":\"drain\",\"gpus\":[-1]}",
        "{\"ask\":\"step-end\",\"id\":{\"job\":4294967296,\"step\":0}}",
        "{\"ask\":\"status\"} trailing",
    ] {
        let told = decode::<Request>(bad.as_bytes(), MAX_REQUEST);
        assert!(matches!(told, Err(WireError::Malformed(_))), "{bad}");
    }
    let deep = "[".repeat(10_000);
    assert!(decode::<Request>(deep.as_bytes(), MAX_REQUEST).is_err());
    let long = vec![b' '; MAX_REQUEST + 1];
    assert_eq!(
        decode::<Request>(&long, MAX_REQUEST),
        Err(WireError::TooLong(MAX_REQUEST))
    );
}

#[test]
fn an_audit_without_a_job_is_asked_for_as_ever() {
    let line = r#"{"ask":"audit","lines":20}"#;
    let request = decode::<Request>(line.as_bytes(), MAX_REQUEST).unwrap();
    let (lines, job) = (20, None);
    assert_eq!(request, Request::Audit { lines, job });
    let written = encode(&request, MAX_REQUEST).unwrap();
    assert_eq!(written, format!("{line}\n").into_bytes());
}

/// Each request by each kind of peer: root, the daemon's own user, the user of job 7, another user.
#[test]
fn users_see_owners_ask_about_their_jobs_and_root_acts() {
    let (root, daemon, owner, other) = (0, 990, 1000, 1001);
    for request in requests() {
        // What a user may: with job 7 his, with job 7 somebody else's, and with job 7 unknown.
        let [his, anothers, unknown] = match request {
            Request::Hello { .. }
            | Request::Status
            | Request::Watch
            | Request::Mig
            | Request::Memory => [true; 3],
            Request::Audit { job: Some(_), .. } => [true, false, false],
            _ => [false; 3],
        };
        let asks = |uid, user: Option<u32>| {
            let user_of = |job: &JobId| user.filter(|_| *job == 7.into());
            may(Peer { uid, pid: 1 }, daemon, &request, user_of)
        };
        assert_eq!(asks(owner, Some(owner)), his, "{request:?}");
        assert_eq!(asks(other, Some(owner)), anothers, "{request:?}");
        // A job of root's is no user's.
        assert_eq!(asks(other, Some(root)), anothers, "{request:?}");
        assert_eq!(asks(owner, None), unknown, "{request:?}");
        for user in [None, Some(owner), Some(root)] {
            assert!(asks(root, user) && asks(daemon, user), "{request:?}");
        }
    }
}

/// A refusal says of no job whether it is there.
#[test]
fn refusals_are_the_same_for_all_jobs() {
    let of = |job: Option<u32>| Request::Audit {
        lines: 1,
        job: job.map(JobId::from),
    };
    let said = [7, 0, u32::MAX].map(|job| refusal(&of(Some(job))));
    assert_eq!(said, [said[0]; 3]);
    assert_eq!(needs(&of(Some(7))), Right::Owner(7.into()));
    assert_eq!(refusal(&of(None)), "only root may do that");
}

proptest! {
    #[test]
    fn no_bytes_panic_and_what_is_read_is_written_the_same(
        bytes in proptest::collection::vec(any::<u8>(), 0..300)
    ) {
        if let Ok(request) = decode::<Request>(&bytes, MAX_REQUEST) {
            let line = encode(&request, MAX_REQUEST).unwrap();
            prop_assert_eq!(decode::<Request>(&line, MAX_REQUEST).unwrap(), request);
        }
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_another_request(
        which in 0..requests().len(), at in any::<prop::sample::Index>(), value in any::<u8>()
    ) {
        let mut line = encode(&requests()[which], MAX_REQUEST).unwrap();
        let at = at.index(line.len());
        line[at] = value;
        let _ = decode::<Request>(&line, MAX_REQUEST);
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_come(
        text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..400),
        cuts in proptest::collection::vec(1..50usize, 1..50),
        limit in 1..100usize
    ) {
        let read = |sizes: &mut dyn Iterator<Item = usize>| {
            let (mut lines, mut got, mut rest) = (Lines::new(limit), Vec::new(), &text[..]);
            loop {
                match lines.next_line() {
                    Ok(Some(line)) => got.push(line),
                    Ok(None) if rest.is_empty() => return (got, false),
                    Ok(None) => {
                        let size = sizes.next().unwrap_or(1).min(rest.len());
                        lines.push(&rest[..size]);
                        rest = &rest[size..];
                    }
                    Err(_) => return (got, true),
                }
            }
        };
        let whole = read(&mut std::iter::once(usize::MAX));
        let parts = read(&mut cuts.iter().copied().cycle());
        prop_assert_eq!(whole, parts);
    }
}

/// A number stays one, as older clients and daemons write and read it; what else names a job is text.
#[test]
fn jobs_are_numbers_or_text_that_can_stand_in_a_path() {
    for job in ["7", "\"12[3].server\""] {
        let line = format!(r#"{{"ask":"step-end","id":{{"job":{job},"step":0}}}}"#);
        let request: Request = decode(line.as_bytes(), MAX_REQUEST).unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
    }
    for job in ["\"../7\"", "\"\"", "\"a b\"", "-7", "null"] {
        let line = format!(r#"{{"ask":"step-end","id":{{"job":{job},"step":0}}}}"#);
        assert!(
            decode::<Request>(line.as_bytes(), MAX_REQUEST).is_err(),
            "{line}"
        );
    }
}
