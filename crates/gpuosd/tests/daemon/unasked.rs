//! Processes that use a GPU past the library, as static and setuid programs do: gpuosd names those that should have asked, and no others.

use gpuos_core::wire::MemoryUnaskedStatus;

use crate::isolation::{audited, of_job, record};
use crate::memory_program::{Program, job, own, sharer, start, status, step};
use crate::pressure::uses;
use crate::site::Site;

const GIB: u64 = 1 << 30;
/// Processes that the recorded folder alone has.
const SETUID: u32 = 4_000_000;
const IN_TURNS: u32 = 4_000_001;
const WITHOUT_OPTION: u32 = 4_000_002;
const OTHER_JOB: u32 = 4_000_003;
const NOBODYS: u32 = 4_000_004;

#[test]
fn who_uses_a_gpu_past_the_library_is_named_once_and_nobody_else() {
    let site = Site::new();
    job(&site, 7, "2", "90G");
    sharer(&site, 9, "4", "90G");
    job(&site, 8, "3", "90G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    step(&daemon, 9, &[4], 60 * GIB, true);
    let mut program = Program::start(&site, &daemon, 7);
    program.ask(2, 100 * GIB).unwrap();
    // One that was refused has asked.
    let mut refused = Program::start(&site, &daemon, 7);
    assert!(refused.ask(2, 200 * GIB).is_err());
    let others = [
        (WITHOUT_OPTION, 2, of_job(7, "1")),
        (OTHER_JOB, 3, of_job(8, "0")),
        (NOBODYS, 5, "/system.slice/other.service".to_owned()),
    ];
    for (pid, gpu, group) in others {
        record(&site, pid, own(), "train", &group);
        uses(&site, gpu, pid, 4 << 10);
    }
    for pid in [program.child.id(), refused.child.id()] {
        uses(&site, 2, pid, 8 << 10);
    }
    // Those come last: when they have been there for some looks, so have all others.
    record(&site, SETUID, 0, "setuid", &of_job(7, "0"));
    record(&site, IN_TURNS, own(), "static", &of_job(9, "0"));
    uses(&site, 2, SETUID, 12 << 10);
    uses(&site, 4, IN_TURNS, 5 << 10);
    let one = |job: u32, pid, gpu: u8, gib: u64| MemoryUnaskedStatus {
        job: job.into(),
        uid: own(),
        pid,
        gpu: gpu.try_into().unwrap(),
        bytes: gib * GIB,
    };
    let both = [one(7, SETUID, 2, 12), one(9, IN_TURNS, 4, 5)];
    let named = site.until("both are named", || {
        let unasked = status(&daemon).unasked;
        (unasked.len() > 1).then_some(unasked)
    });
    assert_eq!(named, both);
    site.until("the audit log", || {
        (audited(&site, "has not asked for it") == 2).then_some(())
    });
    // It uses more: that is told, and no line is written again.
    uses(&site, 2, SETUID, 13 << 10);
    site.until("what it uses now", || {
        let unasked = status(&daemon).unasked;
        (unasked.first() == Some(&one(7, SETUID, 2, 13))).then_some(())
    });
    assert_eq!(audited(&site, "process 4000000 of job 7 uses 12.0 GiB"), 1);
    assert_eq!(audited(&site, "has not asked for it"), 2);
    // It is gone.
    uses(&site, 2, SETUID, 0);
    site.until("the other one alone", || {
        (status(&daemon).unasked == both[1..]).then_some(())
    });
    assert_eq!(status(&daemon).programs.len(), 1);
}
