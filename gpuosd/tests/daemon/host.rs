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
    site.until("GPU 0 is degraded", || {
        (daemon.state(0) == "degraded").then_some(())
    });
    assert_eq!(daemon.state(1), "available");
    let faults = daemon.status().gpus[0].faults.clone();
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
    assert!(daemon.status().node_drained.is_some());
}

#[test]
fn an_xid_that_only_the_kernel_tells_counts_and_one_that_both_tell_counts_once() {
    let site = Site::new();
    site.job(7, "0");
    let pci = recorded(&site);
    let daemon = site.start();
    daemon.ready();
    let slot = pci.rsplit_once('.').unwrap().0.to_owned();
    let log = |xid: u32| {
        let mut file = fs::File::options()
            .append(true)
            .open(site.path("kmsg"))
            .unwrap();
        writeln!(
            file,
            "4,1,2,-;NVRM: Xid (PCI:{slot}): {xid}, pid=9, name=train, error"
        )
        .unwrap();
    };
    site.fault(Some(0), "xid 43");
    log(43);
    log(31);
    log(31);
    site.until("Xid 31", || (audited(&site, "Xid 31") > 0).then_some(()));
    assert_eq!(audited(&site, "Xid 31"), 1);
    assert_eq!(audited(&site, "Xid 43"), 1);
    // Of a GPU that is none of this node's, only the log tells.
    let mut file = fs::File::options()
        .append(true)
        .open(site.path("kmsg"))
        .unwrap();
    writeln!(file, "4,1,2,-;NVRM: Xid (PCI:dddd:01:00): 79, fallen off").unwrap();
    site.until("a stranger", || {
        (logged(&site, "dddd:01:00") > 0).then_some(())
    });
    assert_eq!(audited(&site, "Xid 79"), 0);
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
