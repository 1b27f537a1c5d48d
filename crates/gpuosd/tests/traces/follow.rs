//! Spans out of what happens, without a daemon.

use std::collections::BTreeSet;

use gpuos_core::health::{Admin, Verb};
use gpuos_model::node_gpu::NodeGpu;
use gpuosd::traces::follow::{Follower, What};
use opentelemetry::trace::SpanId;

/// One of GRES gpu.
fn gpu(index: u8) -> NodeGpu {
    index.try_into().expect("a GPU")
}

fn judged(index: u8) -> What {
    What::Judged {
        gpu: Some(gpu(index)),
        rule: Some("xid-48".into()),
        text: "out of service".into(),
    }
}

fn names(follower: &Follower) -> Vec<(&str, u64, u64, bool)> {
    let spans = follower.done().iter();
    spans
        .map(|span| (span.name, span.start_ms, span.end_ms, span.error.is_some()))
        .collect()
}

#[test]
fn one_recovery_is_one_trace_from_the_fault_to_the_job_that_runs_again() {
    let mut follower = Follower::default();
    follower.take(
        1000,
        What::Fault {
            gpu: gpu(3),
            text: "Xid 48".into(),
        },
    );
    follower.take(1001, judged(3));
    let publish = |revision, out: &[NodeGpu]| What::Publish {
        revision,
        out: out.into(),
    };
    follower.take(1001, publish(5, &[gpu(3)]));
    follower.take(
        1300,
        What::Published {
            revision: 5,
            ok: true,
        },
    );
    let requeue = || What::Requeue {
        job: 7.into(),
        gpus: [2, 3].map(gpu).into(),
    };
    follower.take(1301, requeue());
    follower.take(1500, What::Requeued(7.into(), Ok(())));
    // Asked for again while the job has not gone.
    follower.take(1600, requeue());
    follower.take(4000, What::Released(7.into(), Ok(())));
    assert_eq!(follower.waiting(), [7.into()]);
    follower.take(7900, What::Runs(7.into(), 7000, "n2".into()));
    follower.take(9000, What::Began(gpu(3), "reset"));
    follower.take(9500, What::Ended(gpu(3), "reset", Err("no answer".into())));
    follower.tick(9500 + 12_000);
    assert_eq!(
        follower.done().len(),
        5,
        "the first span waits for what may follow"
    );
    follower.tick(9501 + 12_000);
    let wanted = [
        ("publish", 1001, 1300, false),
        ("requeue", 1301, 1500, false),
        ("release", 1500, 4000, false),
        ("start", 4000, 7000, false),
        ("reset", 9000, 9500, true),
        ("recovery", 1000, 9500, false),
    ];
    assert_eq!(names(&follower), wanted);
    let first = &follower.done()[5];
    assert!(follower.done().iter().all(|span| span.trace == first.trace));
    assert!(
        follower.done()[..5]
            .iter()
            .all(|span| span.parent == first.id)
    );
    assert_eq!(first.parent, SpanId::INVALID);
    assert!(first.attributes.contains(&("gpuos.rule", "xid-48".into())));
    assert_eq!(first.events[0], (1000, "Xid 48".into()));
    // The return, later, is of the same trace.
    let trace = first.trace;
    follower.sent();
    follower.take(99_000, publish(6, &[]));
    follower.take(
        99_100,
        What::Published {
            revision: 6,
            ok: true,
        },
    );
    assert_eq!(
        (follower.done()[0].name, follower.done()[0].trace),
        ("publish", trace)
    );
}

#[test]
fn an_administrators_command_is_a_trace_of_its_own() {
    let mut follower = Follower::default();
    let admin = |verb| {
        What::Admin(Admin {
            verb,
            gpu: Some(gpu(2)),
            reason: "fan".into(),
            uid: 0,
            force: false,
        })
    };
    follower.take(1000, admin(Verb::Drain));
    follower.take(
        1000,
        What::Publish {
            revision: 1,
            out: vec![gpu(2)],
        },
    );
    follower.take(2000, admin(Verb::Online));
    follower.tick(60_000);
    let wanted = [
        ("publish", 1000, 2000, true),
        ("drain", 1000, 1000, false),
        ("online", 2000, 2000, false),
    ];
    assert_eq!(names(&follower), wanted);
    let traces: BTreeSet<String> = follower
        .done()
        .iter()
        .map(|span| span.trace.to_string())
        .collect();
    assert_eq!(traces.len(), 2);
}

#[test]
fn what_stands_there_at_a_start_is_no_recovery_and_a_job_that_never_starts_is_given_up() {
    let mut follower = Follower::default();
    follower.take(
        1000,
        What::Publish {
            revision: 1,
            out: vec![gpu(2)],
        },
    );
    follower.take(
        1000,
        What::Published {
            revision: 1,
            ok: true,
        },
    );
    follower.tick(100_000);
    assert!(follower.done().is_empty());
    follower.take(
        1000,
        What::Requeue {
            job: 7.into(),
            gpus: vec![gpu(2)],
        },
    );
    follower.take(1000, What::Requeued(7.into(), Ok(())));
    follower.take(1000, What::Released(7.into(), Ok(())));
    follower.tick(1001 + 15 * 60_000);
    let last = follower.done().last().unwrap();
    assert_eq!((last.name, last.error.is_some()), ("start", true));
}
