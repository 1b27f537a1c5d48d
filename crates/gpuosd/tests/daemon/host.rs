//! The host beside its GPUs: a recorded `/sys` and kernel log that change under the daemon.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuos_core::wire::Request;

use crate::site::{Daemon, Site};

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A PCI device behind a port of host bridge 0.
fn device(sys: &Path, address: &str, port: &str) -> std::path::PathBuf {
    let folder = sys.join(format!("devices/pci0000:00/{port}/{address}"));
    put(&folder.join("numa_node"), "0\n");
    put(&folder.join("local_cpulist"), "0-3\n");
    let bus = sys.join("bus/pci/devices");
    fs::create_dir_all(&bus).unwrap();
    symlink(&folder, bus.join(address)).unwrap();
    folder
}

/// A `/sys` with GPU 0 and an adapter behind one switch, and a memory controller. Gives the PCI address of GPU 0.
fn recorded(site: &Site) -> String {
    let daemon = site.start();
    daemon.ready();
    let pci = daemon.status().gpus[0].pci.clone();
    daemon.kill();
    let sys = site.path("sys");
    device(&sys, &pci, "switch/0000:00:01.0");
    let nic = device(&sys, "ffff:01:00.0", "switch/0000:00:02.0");
    let port = sys.join("class/infiniband/mlx5_0/ports/1");
    put(&port.join("state"), "4: ACTIVE\n");
    put(&port.join("rate"), "400 Gb/sec (4X NDR)\n");
    symlink(nic, sys.join("class/infiniband/mlx5_0/device")).unwrap();
    let mc = sys.join("devices/system/edac/mc/mc0");
    put(&mc.join("ce_count"), "5\n");
    put(&mc.join("ue_count"), "0\n");
    pci
}

fn audited(site: &Site, text: &str) -> usize {
    let log = fs::read_to_string(site.path("state/audit.jsonl")).unwrap_or_default();
    log.lines().filter(|line| line.contains(text)).count()
}

fn logged(site: &Site, text: &str) -> usize {
    site.log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

#[test]
fn a_link_that_goes_down_degrades_the_gpu_beside_it_until_it_is_back() {
    let site = Site::new();
    recorded(&site);
    // The hold of the shipped rule is half a minute.
    let rule = "[[health.rule]]\nname = \"nic-down\"\nhold = \"1s\"\n[health]\ncalm = \"0s\"\n";
    fs::write(site.path("gpuos.toml"), rule).unwrap();
    let daemon = site.start();
    daemon.ready();
    let state = site.path("sys/class/infiniband/mlx5_0/ports/1/state");
    // Links count from when they were seen up, with the GPU beside them.
    site.until("the hardware is known", || {
        fs::write(&state, "1: DOWN\n").unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        fs::write(&state, "4: ACTIVE\n").unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        (audited(&site, "adapter mlx5_0 is down") > 0).then_some(())
    });
    fs::write(&state, "1: DOWN\n").unwrap();
    let (faults, other) = site.until("GPU 0 is degraded", || {
        let gpus = daemon.status().gpus;
        let faults = gpus[0].faults.clone();
        (gpus[0].state == "degraded").then(|| (faults, gpus[1].state.clone()))
    });
    assert_eq!(other, "available");
    assert!(faults[0].message.contains("mlx5_0"), "{faults:?}");
    fs::write(&state, "4: ACTIVE\n").unwrap();
    site.until("GPU 0 is well", || {
        (daemon.state(0) == "available").then_some(())
    });
}

#[test]
fn uncorrected_errors_of_memory_drain_the_node() {
    let site = Site::new();
    recorded(&site);
    let daemon = site.start();
    daemon.ready();
    // What was counted before says nothing of when.
    let first = site.path("sys/devices/system/edac/mc/mc0/ue_count");
    site.until("a look at the host", || {
        let errors = fs::read_to_string(&first).unwrap();
        let next = errors.trim().parse::<u64>().unwrap() + 1;
        fs::write(&first, format!("{next}\n")).unwrap();
        (!site.slurm("reason").is_empty()).then_some(())
    });
    assert!(
        site.slurm("reason").contains("host memory"),
        "{}",
        site.slurm("reason")
    );
    site.until("it is told", || daemon.status().node_drained);
}

/// Writes records into the kernel's log, whole.
fn log(site: &Site, records: &str) {
    let file = fs::File::options().append(true).open(site.path("kmsg"));
    file.unwrap()
        .write_all(format!("{records}\n").as_bytes())
        .unwrap();
}

/// A record of the driver's.
fn xid(slot: &str, code: u32) -> String {
    format!("4,1,2,-;NVRM: Xid (PCI:{slot}): {code}, pid=9, name=train, error")
}

/// PCI address of GPU 0 as the driver writes it.
fn slot_of(pci: &str) -> String {
    pci.rsplit_once('.').unwrap().0.to_owned()
}

/// Nothing was said to Slurm but questions.
fn only_asked(site: &Site) {
    let said = site.slurm("log");
    let acts = ["requeue", "scancel", "update", "hold", "cancel"];
    let done = said
        .lines()
        .find(|line| acts.iter().any(|act| line.contains(act)));
    assert_eq!(done, None, "{said}");
}

#[test]
fn an_xid_that_only_the_kernel_tells_is_told_once_and_nothing_is_done() {
    let site = Site::new();
    site.job(7, "0");
    let pci = recorded(&site);
    let mut daemon = site.start();
    daemon.ready();
    let slot = slot_of(&pci);
    site.fault(Some(0), "xid 43");
    for code in [43, 31, 31, 48, 79, 119] {
        log(&site, &xid(&slot, code));
    }
    site.until("Xid 119", || (audited(&site, "Xid 119") > 0).then_some(()));
    for code in [43, 31, 48, 79, 119] {
        assert_eq!(audited(&site, &format!("Xid {code} ")), 1, "Xid {code}");
    }
    // It is shown, and stays without effect.
    let shown = || {
        let told = daemon.status().daemon.troubles;
        let shown = told.iter().find(|told| told.contains("Xid 79 of GPU 0"))?;
        shown.contains("does not confirm").then_some(())
    };
    site.until("it is shown", shown);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!["draining", "drained", "degraded"].contains(&&*daemon.state(0)));
    assert_eq!(site.slurm("state").trim(), "IDLE");
    only_asked(&site);
    // Of a GPU that is none of this node's, only the log tells, and not each time.
    for _ in 0..100 {
        log(&site, "4,1,2,-;NVRM: Xid (PCI:dddd:01:00): 79, fallen off");
    }
    site.until("a stranger", || {
        (logged(&site, "dddd:01:00") > 0).then_some(())
    });
    assert_eq!(audited(&site, "Xid 79 "), 1);
    assert!(logged(&site, "dddd:01:00") < 3, "{}", site.log());
    assert!(daemon.lives());
}

/// What ordinary users can have the kernel write, among them what mounts in a user namespace leave there.
#[test]
fn what_users_make_the_kernel_write_moves_nothing() {
    let site = Site::new();
    site.job(7, "0");
    let pci = recorded(&site);
    let daemon = site.start();
    daemon.ready();
    let slot = slot_of(&pci);
    let message = format!("NVRM: Xid (PCI:{slot}): 79, pid=9, GPU has fallen off the bus.");
    for record in [
        format!("3,1,2,-;tmpfs: Unknown parameter '{message}'"),
        format!("3,1,2,-;tmpfs: Bad value for 'x\\x0a{message}'"),
        format!("4,1,2,-;overlayfs: failed to resolve '{message}': -2"),
        format!("4,1,2,c;{message}"),
        format!("12,1,2,-;{message}"),
        format!("30,1,2,-;{message}"),
        format!(" {message}"),
        format!(" SUBSYSTEM=4,1,2,-;{message}"),
        format!("6,1,2,-;NVRM: Xid (PCI:[17]: segfault at 0 ip {message}"),
        format!("4,1,2,-; {message}"),
        message.clone(),
    ] {
        log(&site, &record);
    }
    // Lines are read in their order: this one comes last.
    log(&site, &xid(&slot, 31));
    site.until("Xid 31", || (audited(&site, "Xid 31") > 0).then_some(()));
    assert_eq!(audited(&site, "Xid 79"), 0);
    assert_eq!(logged(&site, "Xid 79"), 0, "{}", site.log());
    only_asked(&site);
}

#[test]
fn while_the_library_is_silent_the_log_counts() {
    let site = Site::new();
    site.job(7, "0");
    let pci = recorded(&site);
    let daemon = site.start();
    daemon.ready();
    site.fault(None, "hang 3600");
    site.until("silence", || {
        let told = site.log().contains("does not answer; nothing is reset");
        told.then_some(())
    });
    log(&site, &xid(&slot_of(&pci), 79));
    site.until("the requeue", || {
        site.slurm("log").contains("scontrol requeue").then_some(())
    });
    let reason = || site.slurm("reason").contains("fallen off the bus");
    site.until("the reason", || reason().then_some(()));
    let told = "from the kernel's log: NVIDIA's library does not answer";
    site.until("the audit log", || (audited(&site, told) > 0).then_some(()));
}

#[test]
fn a_flood_of_lines_does_not_fill_the_audit_log() {
    let site = Site::new();
    let pci = recorded(&site);
    let daemon = site.start();
    daemon.ready();
    let slot = slot_of(&pci);
    let all: Vec<String> = (0..2000).map(|code| xid(&slot, code % 1000)).collect();
    let begun = Instant::now();
    log(&site, &all.join("\n"));
    site.until("some", || {
        (audited(&site, "the kernel's log") > 0).then_some(())
    });
    for _ in 0..8 {
        log(&site, &all.join("\n"));
        std::thread::sleep(Duration::from_secs(1));
    }
    // Twenty in a minute.
    let told = audited(&site, "the kernel's log");
    let minutes = begun.elapsed().as_secs() as usize / 60;
    assert!(told <= 20 * (minutes + 2), "{told}");
    assert_eq!(daemon.state(0), "available");
    only_asked(&site);
}

#[test]
fn the_kernels_log_may_be_none() {
    let site = Site::new();
    let daemon = site.start_with(&["--kernel-log", "none"]);
    daemon.ready();
    assert!(!site.log().contains("Xids come from NVIDIA's library alone"));
}

fn reload(daemon: &Daemon<'_>) {
    daemon.ask(&Request::Reload).unwrap();
}

#[test]
fn what_differs_from_gpuos_toml_is_in_the_log_once_with_the_line_to_write() {
    let site = Site::new();
    let wrong = "[[node-type]]\nname = \"mine\"\nbase = \"dgx-h100\"\ngpu-memory-mib = 40000\n\
                 [[nodes]]\nmatch = \"n1\"\ntype = \"mine\"\n";
    fs::write(site.path("gpuos.toml"), wrong).unwrap();
    let daemon = site.start();
    daemon.ready();
    let line = "write gpu-memory-mib = ";
    let said = |times: usize| (logged(&site, line) == times).then_some(());
    site.until("the difference", || said(1));
    let ago = || daemon.status().daemon.sampled_ms_ago.unwrap();
    // Two more polls say nothing new.
    for _ in 0..2 {
        let now = Instant::now();
        let polled = || {
            let passed = now.elapsed();
            (Duration::from_millis(ago()) < passed).then_some(())
        };
        site.until("a poll", polled);
    }
    assert_eq!(logged(&site, line), 1, "{}", site.log());
    reload(&daemon);
    site.until("said again", || said(2));
    fs::write(site.path("gpuos.toml"), "").unwrap();
    reload(&daemon);
    site.until("taken", || {
        (logged(&site, "gpuos.toml is read") == 3).then_some(())
    });
    assert_eq!(logged(&site, line), 2);
}
