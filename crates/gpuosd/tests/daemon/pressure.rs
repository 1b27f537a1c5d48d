//! What is short: host memory of the node and of a job by recorded files of the kernel's, and memory of a GPU that others use. What programs
//! are told of it, what they give, and what becomes of their jobs.

use std::fs;

use gpuos_core::wire::MemoryPressureStatus;
use gpuos_memory::protocol::{Figures, FromProgram, Short, ToProgram};

use crate::isolation::audited;
use crate::memory_program::{CARD, Program, job, start, status, step};
use crate::site::{Daemon, Site, put};
use crate::turns;

const GIB: u64 = 1 << 30;
const KIB: u64 = 512 << 20;

/// What the kernel says of 512 GiB: so many percent are available, and so many of the time is lost.
fn host(site: &Site, available: u64, stalled: &str) {
    let meminfo = format!(
        "MemTotal: {KIB} kB\nMemAvailable: {} kB\n",
        KIB / 100 * available
    );
    fs::create_dir_all(site.path("proc/pressure")).unwrap();
    let psi = format!("full avg10={stalled} avg60=0.00 avg300=0.00 total=1\n");
    put(&site.path("proc/pressure/memory"), &psi);
    put(&site.path("proc/meminfo"), &meminfo);
}

/// What the control group of a job says: its limit and what it uses, in GiB.
fn group(site: &Site, job: u32, limit: u64, used: u64) {
    let folder = site.path(&format!("cgroup/system.slice/slurmstepd.scope/job_{job}"));
    fs::create_dir_all(&folder).unwrap();
    put(&folder.join("memory.max"), &format!("{}\n", limit * GIB));
    put(&folder.join("memory.current"), &format!("{}\n", used * GIB));
}

/// The job is in this account, and may be requeued or not.
fn account(site: &Site, id: u32, account: &str, requeue: bool) {
    let text = site.slurm(&format!("jobs/{id}"));
    let text = text.replace(
        "   JobState=",
        &format!("   Priority=1 Nice=0 Account={account} QOS=normal\n   JobState="),
    );
    let text = text.replace("Requeue=1", &format!("Requeue={}", u8::from(requeue)));
    site.set_slurm(&format!("jobs/{id}"), &text);
}

fn pressure(daemon: &Daemon) -> MemoryPressureStatus {
    status(daemon).pressure
}

#[test]
fn a_node_that_is_short_has_programs_told_and_the_lowest_job_requeued() {
    let site = Site::new();
    let shares = "[memory]\npressure-begins = 90\n[[memory-share]]\naccount = \"high\"\nrank = 5\n";
    fs::write(site.path("gpuos.toml"), shares).unwrap();
    job(&site, 7, "2", "90G");
    job(&site, 8, "3", "90G");
    account(&site, 7, "high", true);
    account(&site, 8, "low", true);
    let daemon = start(&site);
    host(&site, 60, "0.00");
    for (id, gpu) in [(7, 2), (8, 3)] {
        step(&daemon, id, &[gpu], 120 * GIB, false);
    }
    let mut high = Program::start(&site, &daemon, 7);
    let mut low = Program::start(&site, &daemon, 8);
    high.ask(2, 120 * GIB).unwrap();
    // Of an earlier release: it is told by a sentence.
    low.ask_earlier(3, 120 * GIB).unwrap();
    // Both have nothing that they could give.
    host(&site, 9, "0.00");
    assert_eq!(high.told(), Some(ToProgram::Pressure(Short::Node)));
    let Some(ToProgram::Note { text }) = low.told() else {
        panic!("it is not told");
    };
    assert!(text.contains("short of host memory"), "{text}");
    assert!(matches!(high.told(), Some(ToProgram::Trim { deadline_ms }) if deadline_ms > 0));
    assert_eq!(pressure(&daemon).step, "demote-dirty");
    high.say(FromProgram::Demoted { bytes: GIB });
    // Without NVMe the next step is the last one.
    site.until("the lowest is requeued", || {
        let log = site.slurm("log");
        log.contains("scontrol requeue incomplete 8").then_some(())
    });
    assert!(!site.slurm("log").contains("scontrol requeue incomplete 7"));
    // Slurm ends its processes.
    low.kill();
    host(&site, 50, "0.00");
    assert_eq!(high.told(), Some(ToProgram::Pressure(Short::Calm)));
    assert_eq!(pressure(&daemon).step, "calm");
    let why = "requeued: the node ran out of host memory";
    site.until("the audit log", || (audited(&site, why) == 1).then_some(()));
    // Time that is lost counts as well, where little is left.
    host(&site, 13, "12.00");
    assert_eq!(high.told(), Some(ToProgram::Pressure(Short::Node)));
    assert_eq!(pressure(&daemon).stalled, Some(120));
}

/// Somebody keeps the kernel reclaiming within a limit of his own, and the node has memory: nobody else gives anything for that. Where little is
/// left, those give it who wait for it.
#[test]
fn time_that_others_lose_takes_nothing_from_jobs() {
    let site = Site::new();
    for (id, gpu) in [(7, "2"), (8, "3")] {
        job(&site, id, gpu, "90G");
        account(&site, id, "any", true);
    }
    let daemon = start(&site);
    host(&site, 83, "12.00");
    for (id, gpu) in [(7, 2), (8, 3)] {
        step(&daemon, id, &[gpu], 120 * GIB, false);
    }
    let mut first = Program::start(&site, &daemon, 7);
    let mut last = Program::start(&site, &daemon, 8);
    first.ask(2, 120 * GIB).unwrap();
    last.ask(3, 120 * GIB).unwrap();
    let looks = |stalled: &str, available| {
        host(&site, available, stalled);
        let figure = (stalled.parse::<f64>().unwrap() * 10.0) as u32;
        site.until("the look", || {
            let now = pressure(&daemon);
            let is = now.available == Some((KIB / 100 * available) << 10);
            (is && now.stalled == Some(figure)).then_some(())
        });
        std::thread::sleep(std::time::Duration::from_secs(3));
    };
    for (stalled, available) in [("12.00", 83), ("99.00", 83), ("50.00", 20)] {
        looks(stalled, available);
        assert_eq!(pressure(&daemon).step, "calm", "{stalled} {available}");
    }
    // Little is left, and it is known that neither of them waits.
    let waits = |job: u32, percent: &str| {
        group(&site, job, 90, 40);
        let folder = site.path(&format!("cgroup/system.slice/slurmstepd.scope/job_{job}"));
        let psi = format!("full avg10={percent} avg60=0.00 avg300=0.00 total=1\n");
        put(&folder.join("memory.pressure"), &psi);
    };
    waits(7, "0.00");
    waits(8, "0.00");
    std::thread::sleep(std::time::Duration::from_secs(6));
    looks("60.00", 12);
    assert_eq!(pressure(&daemon).step, "calm");
    // One of them does, who came before the other: he alone is requeued.
    waits(7, "60.00");
    site.until("it is short", || {
        (pressure(&daemon).step != "calm").then_some(())
    });
    first.say(FromProgram::Demoted { bytes: 0 });
    last.say(FromProgram::Demoted { bytes: 0 });
    first.say(FromProgram::Demoted { bytes: 0 });
    site.until("the one that waits is requeued", || {
        let log = site.slurm("log");
        log.contains("scontrol requeue incomplete 7").then_some(())
    });
    assert!(!site.slurm("log").contains("scontrol requeue incomplete 8"));
}

/// slurmctld is told when it begins by the higher mark and when it ends by the lower one, and of nothing between them.
#[test]
fn slurmctld_is_told_that_a_node_is_short_where_jobs_could_need_its_memory() {
    let site = Site::new();
    let marks = "[memory]\npressure-begins = 90\npressure-ends = 80\n";
    fs::write(site.path("gpuos.toml"), marks).unwrap();
    let daemon = start(&site);
    host(&site, 5, "0.00");
    site.until("it is short", || {
        (pressure(&daemon).step != "calm").then_some(())
    });
    assert_eq!(
        site.slurm("extra"),
        "rack=7",
        "no job can have memory there"
    );
    let on = format!("{marks}oversubscribe = true\n");
    fs::write(site.path("gpuos.toml"), on).unwrap();
    daemon.ask(&gpuos_core::wire::Request::Reload).unwrap();
    let short = "rack=7 [gpuos:1 short=host]";
    site.until("the word", || (site.slurm("extra") == short).then_some(()));
    // Between the marks it stays.
    let available = || pressure(&daemon).available.unwrap() / GIB;
    host(&site, 15, "0.00");
    site.until("the look", || (available() == 76).then_some(()));
    assert_ne!(pressure(&daemon).step, "calm");
    assert_eq!(site.slurm("extra"), short);
    host(&site, 30, "0.00");
    site.until("its end", || {
        (site.slurm("extra") == "rack=7").then_some(())
    });
    assert_eq!(pressure(&daemon).step, "calm");
    let told = site.slurm("log").matches(" Extra=").count();
    assert_eq!(told, 2);
}

#[test]
fn a_job_that_may_not_be_requeued_is_told_and_goes_on() {
    let site = Site::new();
    job(&site, 7, "2", "90G");
    account(&site, 7, "high", false);
    let daemon = start(&site);
    host(&site, 60, "0.00");
    step(&daemon, 7, &[2], 120 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    program.ask(2, 120 * GIB).unwrap();
    host(&site, 3, "0.00");
    assert_eq!(program.told(), Some(ToProgram::Pressure(Short::Node)));
    assert!(matches!(program.told(), Some(ToProgram::Trim { .. })));
    program.say(FromProgram::Demoted { bytes: 0 });
    assert_eq!(program.told(), Some(ToProgram::Pressure(Short::Node)));
    let Some(ToProgram::Note { text }) = program.told() else {
        panic!("it is not told");
    };
    assert!(text.contains("without --requeue"), "{text}");
    assert!(!site.slurm("log").contains("scontrol requeue"));
    assert_eq!(status(&daemon).programs.len(), 1);
}

#[test]
fn a_job_that_is_short_of_its_own_memory_is_told_alone() {
    let site = Site::new();
    job(&site, 7, "2", "90G");
    job(&site, 8, "3", "90G");
    group(&site, 7, 90, 40);
    let daemon = start(&site);
    host(&site, 60, "0.00");
    for (id, gpu) in [(7, 2), (8, 3)] {
        step(&daemon, id, &[gpu], 120 * GIB, false);
    }
    let mut program = Program::start(&site, &daemon, 7);
    let mut other = Program::start(&site, &daemon, 8);
    program.ask(2, 120 * GIB).unwrap();
    other.ask(3, 120 * GIB).unwrap();
    group(&site, 7, 90, 85);
    assert_eq!(program.told(), Some(ToProgram::Pressure(Short::Job)));
    assert_eq!(pressure(&daemon).short, [7.into()]);
    assert!(matches!(program.told(), Some(ToProgram::Trim { .. })));
    program.say(FromProgram::Demoted { bytes: 0 });
    group(&site, 7, 90, 40);
    assert_eq!(program.told(), Some(ToProgram::Pressure(Short::Calm)));
    // The other one has heard nothing of it: what it hears first is of the node.
    host(&site, 3, "0.00");
    assert_eq!(other.told(), Some(ToProgram::Pressure(Short::Node)));
}

/// NVIDIA's driver takes host memory for GPUs past all sums of the kernel's, and no control group is charged: what it has is that of programs.
#[test]
fn what_the_driver_has_of_the_host_counts_as_what_was_lent() {
    let site = Site::new();
    job(&site, 7, "2", "300G");
    job(&site, 8, "3", "300G");
    let daemon = start(&site);
    // Of 512 GiB 280 are used: by programs of others, or by the driver.
    let sums = |anonymous: u64| {
        let gib = |count: u64| count << 20;
        let text = format!(
            "MemTotal: {KIB} kB\nMemFree: {} kB\nMemAvailable: {} kB\nCached: {} kB\nAnonPages: {} kB\nSlab: {} kB\n",
            gib(220),
            gib(224),
            gib(8),
            gib(anonymous),
            gib(4)
        );
        put(&site.path("proc/meminfo"), &text);
    };
    host(&site, 90, "0.00");
    // Nobody has looked before the first look.
    let available = || pressure(&daemon).available.map_or(0, |bytes| bytes / GIB);
    site.until("the look", || (available() >= 400).then_some(()));
    for (id, gpu) in [(7, 2), (8, 3)] {
        step(&daemon, id, &[gpu], 400 * GIB, false);
    }
    let mut first = Program::start(&site, &daemon, 7);
    first.ask(2, 360 * GIB).unwrap();
    group(&site, 7, 300, 1);
    sums(280);
    site.until("the look", || (available() == 224).then_some(()));
    let mut second = Program::start(&site, &daemon, 8);
    let refused = second.ask(3, 180 * GIB).unwrap_err();
    assert!(refused.contains("host memory"), "{refused}");
    sums(0);
    site.until("what the driver has", || {
        second.ask_again(3, 180 * GIB).ok()
    });
    // Nothing is lent twice for it.
    assert!(second.ask_again(3, 340 * GIB).is_err());
}

#[test]
fn a_quota_holds_by_slurmctlds_word_for_the_account() {
    let site = Site::new();
    let shares = "[[memory-share]]\naccount = \"students\"\nat-most = \"30G\"\n";
    fs::write(site.path("gpuos.toml"), shares).unwrap();
    job(&site, 7, "2", "90G");
    job(&site, 8, "3", "90G");
    account(&site, 7, "students", true);
    account(&site, 8, "staff", true);
    let daemon = start(&site);
    for (id, gpu) in [(7, 2), (8, 3)] {
        step(&daemon, id, &[gpu], 120 * GIB, false);
    }
    let mut program = Program::start(&site, &daemon, 7);
    let why = program.ask(2, 120 * GIB).unwrap_err();
    assert!(
        why.contains("what the account may have on this node"),
        "{why}"
    );
    assert!(program.ask_again(2, 100 * GIB).is_ok());
    let mut staff = Program::start(&site, &daemon, 8);
    assert!(staff.ask(3, 120 * GIB).is_ok());
    // The file says another size: it holds at once.
    fs::write(site.path("gpuos.toml"), shares.replace("30G", "60G")).unwrap();
    daemon.ask(&gpuos_core::wire::Request::Reload).unwrap();
    site.until("the larger quota", || program.ask_again(2, 120 * GIB).ok());
}

#[test]
fn figures_of_a_program_are_shown_as_far_as_they_can_be() {
    let site = Site::new();
    job(&site, 7, "2", "90G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    let mut program = Program::start(&site, &daemon, 7);
    program.ask(2, 120 * GIB).unwrap();
    let lies = Figures {
        heat: [u64::MAX; 3],
        fetched: u64::MAX,
        evicted: u64::MAX,
        pressed: u64::MAX,
        held_ms: u64::MAX,
    };
    program.say(FromProgram::Figures(lies));
    let max = u64::MAX;
    program.say(FromProgram::Moved { down: max, up: max });
    let one = site.until("figures", || {
        let one = status(&daemon).programs.remove(0);
        (one.figures.heat[0] > 0 && one.moved_up > 0).then_some(one)
    });
    assert_eq!(one.figures.heat, [120 * GIB + (256 << 20), 0, 0]);
    // Not more than links can, since it is connected.
    for bytes in [one.figures.fetched, one.figures.evicted, one.moved_down] {
        assert!(bytes < 1 << 50, "{one:?}");
    }
    assert!(one.figures.slower.iter().all(|slower| *slower <= 100_000));
    // What it says of having freed makes nothing free.
    let before = status(&daemon).host.promised;
    program.say(FromProgram::Demoted { bytes: max });
    program.ask_again(2, 120 * GIB).unwrap();
    assert_eq!(status(&daemon).host.promised, before);
}

/// Not a test: a program that works, and notes what it is told of memory.
#[test]
fn works_and_listens_for_a_test() {
    let Some(folder) = turns::folder() else {
        return;
    };
    // SAFETY: the library is loaded already, and the function has no arguments and answers a number.
    let short = unsafe {
        let this = libloading::os::unix::Library::this();
        *this
            .get::<extern "C" fn() -> i32>(b"gpuos_mem_short\0")
            .unwrap()
    };
    turns::work(&folder, |_| {
        fs::write(folder.join("short"), short().to_string()).unwrap();
    });
}

/// A process has so many MiB of a GPU by what NVIDIA's library shows.
pub fn uses(site: &Site, gpu: usize, pid: u32, mib: u64) {
    site.change(gpu, |gpu| {
        let at = |pid| gpu.processes.iter().rposition(|one| one.pid == pid);
        // Its own place, or a free one.
        let place = at(pid).or(at(0)).unwrap();
        let one = &mut gpu.processes[place];
        (one.pid, one.memory_mib) = (pid, mib);
        one.gpu_instance = nvidia_ml::state::NO_INSTANCE;
        one.compute_instance = nvidia_ml::state::NO_INSTANCE;
    });
}

#[test]
fn what_a_refused_program_has_of_the_driver_is_promised_to_nobody() {
    let site = Site::new();
    job(&site, 7, "2-3", "30G");
    let daemon = start(&site);
    step(&daemon, 7, &[2, 3], 120 * GIB, false);
    // One that is given a part of one GPU and nothing of another, as its job's memory has no room for so much.
    let mut refused = Program::start(&site, &daemon, 7);
    let (part, ..) = refused.ask(3, 20 * GIB).unwrap();
    assert_eq!(part, 20 * GIB);
    assert!(refused.ask_again(2, 120 * GIB).is_err());
    for gpu in [2, 3] {
        uses(&site, gpu, refused.child.id(), 40 << 10);
    }
    let others = |bytes: u64| {
        site.until("what others use", || {
            (status(&daemon).gpus[2].others == bytes).then_some(())
        });
        // There it has a lease.
        assert_eq!(status(&daemon).gpus[3].others, 0);
    };
    others(40 * GIB);
    let mut program = Program::start(&site, &daemon, 7);
    let (hbm, host, ..) = program.ask(2, 60 * GIB).unwrap();
    assert_eq!(hbm, CARD - 40 * GIB);
    assert!(host >= 60 * GIB - hbm);
    // Its own is beyond its lease by a context, and while it moves.
    uses(&site, 2, program.child.id(), 45 << 10);
    uses(&site, 2, refused.child.id(), 41 << 10);
    others(41 * GIB);
    assert_eq!(status(&daemon).gpus[2].hbm.present, CARD - 41 * GIB);
}

#[test]
fn a_real_program_gives_what_others_take_is_told_and_is_requeued() {
    let site = Site::new();
    job(&site, 7, "2", "70G");
    let daemon = start(&site);
    host(&site, 60, "0.00");
    step(&daemon, 7, &[2], 60 * GIB, false);
    let does = "pressure::works_and_listens_for_a_test";
    let program = turns::Program::start_as(&site, &daemon, 7, does);
    let here = |what: &str, done: &dyn Fn() -> bool| site.until(what, || done().then_some(()));
    here("rounds", &|| program.rounds() > 1);
    // A process that asks nobody fills the card: what the program has there goes to host memory, and it works on.
    uses(&site, 2, 4_000_000, 81_559);
    crate::isolation::record(&site, 4_000_000, 0, "other", "/system.slice/other.service");
    let bytes = turns::PARTS * turns::PART;
    here("what has left the GPU", &|| {
        let one = program.status(&daemon).unwrap();
        one.squeezed > 0 && one.figures.pressed >= bytes && one.moved_down >= bytes
    });
    assert_eq!(status(&daemon).gpus[2].hbm.promised, 0);
    assert!(status(&daemon).gpus[2].others > 79 * GIB);
    let before = program.rounds();
    here("work in host memory", &|| program.rounds() > before + 1);
    // Host memory is short: it hears of it, and its job is requeued at last.
    host(&site, 2, "0.00");
    let short = || fs::read_to_string(program.folder.join("short")).unwrap_or_default();
    here("what the program is told", &|| short() == "1");
    here("the requeue", &|| {
        site.slurm("log").contains("scontrol requeue incomplete 7")
    });
    // Slurm has it no more, so its process is ended.
    here("its end", &|| audited(&site, "its job is over") == 1);
}

#[test]
fn programs_on_one_link_have_equal_parts_of_it() {
    let site = Site::new();
    job(&site, 7, "2", "60G");
    let daemon = start(&site);
    step(&daemon, 7, &[2], 120 * GIB, false);
    let mut first = Program::start(&site, &daemon, 7);
    first.ask(2, 40 * GIB).unwrap();
    // The answer to a second question comes after what the first one changed.
    first.ask_again(2, 40 * GIB).unwrap();
    let alone = first.budget.expect("it is told");
    let mut second = Program::start(&site, &daemon, 7);
    second.ask(2, 40 * GIB).unwrap();
    for program in [&mut first, &mut second] {
        program.ask_again(2, 40 * GIB).unwrap();
        assert_eq!(program.budget, Some(alone / 2));
    }
    second.kill();
    site.until("the first has all of it", || {
        first.ask_again(2, 40 * GIB).unwrap();
        (first.budget == Some(alone)).then_some(())
    });
}
