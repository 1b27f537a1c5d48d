//! GPUs of a pool beside others, or alone, with a gres.conf that names no files: they are none of GRES gpu.

use std::fs;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;

use gpuos_core::wire::Request;

use crate::isolation::{Ends, audited, findings, of_job, record};
use crate::mig::{flags, job, pool, status};
use crate::site::{Daemon, LIMIT, Site};

/// A node with these GPUs in its pool.
fn node(isolation: &str, gpus: Range<usize>) -> Site {
    let site = pool("");
    for gpu in 0..8 {
        let divided = u32::from(gpus.contains(&gpu));
        site.change(gpu, |gpu| gpu.mig = [divided, divided]);
    }
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    fs::write(
        site.path("gpuos.toml"),
        format!("[isolation]\ngrace = \"1s\"\n{isolation}\n{conf}"),
    )
    .unwrap();
    if !gpus.is_empty() {
        pool_is(&site, gpus);
    }
    site
}

fn pool_is(site: &Site, gpus: Range<usize>) {
    let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    let lines = conf.lines().map(|line| match line.starts_with("gpus = ") {
        true => format!("gpus = \"{}-{}\"\n", gpus.start, gpus.end - 1),
        false => format!("{line}\n"),
    });
    fs::write(site.path("gpuos.toml"), lines.collect::<String>()).unwrap();
}

fn start<'a>(site: &'a Site, more: &[&str]) -> Daemon<'a> {
    let flags = flags(site);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    site.start_with(&[&flags, more].concat())
}

/// The UUIDs that gpuosd has for GRES gpu 0, 1, …
fn named(daemon: &Daemon) -> Vec<String> {
    let gpus = daemon.status().gpus.into_iter();
    let gres = gpus.filter(|gpu| !gpu.index.is_of_pool());
    let uuids = gres.map(|gpu| gpu.uuid);
    uuids.filter(|uuid| !uuid.is_empty()).collect()
}

fn until_named(site: &Site, daemon: &Daemon, gpus: usize) -> Vec<String> {
    let all = || (named(daemon).len() == gpus).then(|| named(daemon));
    site.until(&format!("{gpus} GPUs of GRES gpu"), all)
}

fn messages(daemon: &Daemon) -> Vec<String> {
    let all = findings(daemon).into_iter();
    all.map(|one| one.message).collect()
}

#[test]
fn gpus_of_the_pool_are_none_of_gres_gpu_whatever_gpuos_toml_says_next() {
    let site = node("", 0..8);
    job(&site, 7, "8-11", ("gpuos: mig=3g.40gb:1", ""));
    record(&site, 41, 1000, "python3", &of_job(7, "0"));
    record(&site, 42, 1001, "miner", "/user.slice/user-1001.slice");
    site.compute(41, Some(1));
    site.compute(42, Some(5));
    let proc = site.path("proc");
    let daemon = start(&site, &["--proc", proc.to_str().unwrap()]);
    let looked = || (daemon.status().isolation.devices != "not looked yet").then_some(());
    site.until("a look", looked);
    assert_eq!(named(&daemon), [""; 0]);
    // Four of them leave the pool: NVML's GPU 5 is the second that Slurm has.
    pool_is(&site, 0..4);
    for gpu in 4..8 {
        site.change(gpu, |gpu| gpu.mig = [0, 0]);
    }
    daemon.ask(&Request::Reload).unwrap();
    let mixed = until_named(&site, &daemon, 4);
    let one = || Some(messages(&daemon)).filter(|all| !all.is_empty());
    assert_eq!(
        site.until("the stranger", one),
        ["process 42 (miner, uid 1001) of no job is on GPU 1, which no job holds"]
    );
    let on_1 = &daemon.status().gpus[1].processes;
    assert_eq!(on_1.iter().map(|one| one.pid).collect::<Vec<_>>(), [42]);
    assert_eq!(audited(&site, "process 41"), 0);
    // Another four: GRES gpu 0 to 3 are other boards now.
    pool_is(&site, 4..8);
    daemon.ask(&Request::Reload).unwrap();
    let others = || {
        let now = until_named(&site, &daemon, 4);
        now.iter().all(|uuid| !mixed.contains(uuid)).then_some(())
    };
    site.until("the others", others);
    // The job's process is on GPU 1 of Slurm's then, and is named: it was not while that GPU was in the pool.
    let one = || {
        let all = messages(&daemon);
        (all.len() == 1 && all[0].contains("process 41 (python3")).then_some(all)
    };
    let all = site.until("the job's process", one);
    assert!(
        all[0].contains("of job 7 is on GPU 1, which no job holds"),
        "{all:?}"
    );
}

#[test]
fn a_pool_is_not_known_before_gpuos_toml_was_read() {
    let site = node("", 0..4);
    let good = fs::read_to_string(site.path("gpuos.toml")).unwrap();
    fs::write(site.path("gpuos.toml"), format!("{good}\nthe-end = ")).unwrap();
    let daemon = start(&site, &[]);
    let refused = || {
        let troubles = daemon.status().daemon.troubles;
        let mut why = troubles.into_iter().filter(|why| why.contains("MIG mode"));
        why.next()
    };
    let why = site.until("the trouble", refused);
    assert!(
        why.contains("GPU 0 is in MIG mode") && why.contains("never been read"),
        "{why}"
    );
    // The first of Slurm's would be a GPU of the pool.
    assert_eq!(named(&daemon), [""; 0]);
    let mig = status(&daemon);
    assert!(mig.unread && mig.gpus.is_empty(), "{mig:?}");
    fs::write(site.path("gpuos.toml"), good).unwrap();
    daemon.ask(&Request::Reload).unwrap();
    let mig = status(&daemon);
    assert!(!mig.unread && mig.gpus.len() == 4, "{mig:?}");
    daemon.ready();
    assert_eq!(named(&daemon).len(), 4);
    // Without GPUs in MIG mode there is nothing to guess.
    let site = Site::new();
    fs::write(site.path("gpuos.toml"), "the-end = ").unwrap();
    site.start().ready();
}

#[test]
fn a_process_in_the_pool_is_not_killed_and_one_on_slurms_gpus_is() {
    let site = node("foreign = \"kill\"", 0..4);
    let sleep = || {
        let child = Command::new("sleep").arg("600").uid(65534).spawn();
        child.map(Ends)
    };
    let (Ok(mut own), Ok(mut stranger)) = (sleep(), sleep()) else {
        eprintln!("skipped: only root can start processes of other users");
        return;
    };
    job(&site, 7, "8-11", ("gpuos: mig=3g.40gb:1", ""));
    site.compute(own.0.id(), Some(1));
    site.compute(stranger.0.id(), Some(5));
    let daemon = start(&site, &[]);
    // Both have been there for as long: the same round would have both killed.
    site.until("the stranger is killed", || stranger.0.try_wait().unwrap());
    site.compute(stranger.0.id(), None);
    site.until("the audit log", || {
        (audited(&site, "was killed") > 0).then_some(())
    });
    site.until("nothing is left to tell", || {
        findings(&daemon).is_empty().then_some(())
    });
    assert_eq!(audited(&site, "was killed"), 1);
    assert!(own.0.try_wait().unwrap().is_none());
}

#[test]
fn gpuosd_of_a_site_with_a_pool_is_ready_and_knows_all_gpus() {
    for gpus in [0..4, 4..8, 0..8] {
        let site = node("", gpus);
        let socket = UnixDatagram::bind(site.path("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuosd"));
        command.env("NOTIFY_SOCKET", site.path("notify"));
        let flags = flags(&site);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        site.start_under(command, &flags).ready();
        let mut told = [0; 100];
        let length = socket.recv(&mut told).unwrap();
        assert_eq!(&told[..length], b"READY=1\n");
    }
    // The pool is that of another node, and its GPUs are in MIG mode or not.
    for gpus in [0..0, 4..6] {
        let site = node("", gpus);
        pool_is(&site, 4..6);
        let conf = fs::read_to_string(site.path("gpuos.toml")).unwrap();
        fs::write(site.path("gpuos.toml"), conf.replace("\"n1\"", "\"n2\"")).unwrap();
        start(&site, &[]).ready();
    }
}
