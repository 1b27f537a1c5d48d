//! gpuosd's events as journald gets them: in a mount namespace of the test's own, once with a stand-in for journald that
//! keeps the datagrams, once with systemd's own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpuos_core::health::Verb;
use serde_json::Value;

use crate::site::{Daemon, Site};

const JOURNALD: &str = "/lib/systemd/systemd-journald";

/// `$1` is the folder of the journal's sockets or `real`, `$2` that of the journal's files, the rest gpuosd.
const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/log/journal
if [ "$1" = real ]; then
    mount --bind "$2" /run/log/journal
    # It ends with the gpuosd that this shell becomes.
    setpriv --pdeathsig KILL /lib/systemd/systemd-journald >/dev/null 2>&1 &
    while [ ! -S /run/systemd/journal/socket ]; do sleep 0.1; done
else
    mount --bind "$1" /run/systemd/journal
fi
shift 2
exec "$@"
"#;

/// Whether this user may make namespaces and mount in them.
fn may_mount() -> bool {
    let mut probe = Command::new("unshare");
    probe.args([
        "-m",
        "sh",
        "-c",
        "mount --make-rprivate / && mount -t tmpfs none /run",
    ]);
    let may = probe.output().is_ok_and(|done| done.status.success());
    if !may {
        eprintln!("skipped: mount namespaces are root's");
    }
    may
}

/// gpuosd, whose standard error is the journal's as far as it can see.
fn start<'a>(site: &'a Site, sockets: &str, files: &Path) -> Daemon<'a> {
    let log = fs::File::create(site.path("log"))
        .unwrap()
        .metadata()
        .unwrap();
    let mut command = Command::new("unshare");
    command
        .env("JOURNAL_STREAM", format!("{}:{}", log.dev(), log.ino()))
        .args(["-m", "sh", "-c", SCRIPT, "sh", sockets])
        .arg(files)
        .arg(env!("CARGO_BIN_EXE_gpuosd"));
    site.start_under(command, &[])
}

/// What happens in both tests: an administrator's word, and a fault that requeues a job. `told`: whether such a message has come.
fn happen(site: &Site, daemon: &Daemon<'_>, mut told: impl FnMut(&str) -> bool) {
    daemon.ready();
    site.until("job 7", || (daemon.status().jobs.len() == 1).then_some(()));
    site.until("gpuosd hears of faults", || {
        told("NVML's events are heard").then_some(())
    });
    daemon.admin(Verb::Drain, 2);
    site.fault(Some(3), "xid 48");
}

/// The fields of a message in journald's protocol: `NAME=value` lines, or the name, the length and the value.
fn fields(mut message: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    while let Some(end) = message.iter().position(|byte| *byte == b'\n') {
        let line = text(&message[..end]);
        message = &message[end + 1..];
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.to_string(), value.to_string()),
            None => {
                let (length, rest) = message.split_at(8);
                let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                let value = text(&rest[..length]);
                message = &rest[length + 1..];
                (line, value)
            }
        };
        fields.insert(name, value);
    }
    fields
}

#[test]
fn journald_is_told_node_gpu_job_rule_and_priority_as_fields() {
    if !may_mount() {
        return;
    }
    let site = Site::new();
    site.job(7, "3");
    let sockets = site.path("journal");
    fs::create_dir(&sockets).unwrap();
    let socket = UnixDatagram::bind(sockets.join("socket")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let daemon = start(&site, sockets.to_str().unwrap(), Path::new("-"));
    let mut told = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let mut has_come = |message: &str| {
        while let Ok(size) = socket.recv(&mut buffer) {
            told.push(fields(&buffer[..size]));
        }
        let is_it = |event: &BTreeMap<String, String>| {
            event.get("MESSAGE").is_some_and(|text| text == message)
        };
        told.iter().any(is_it)
    };
    happen(&site, &daemon, &mut has_come);
    site.until("the requeue in the journal", || {
        has_come("job 7 is requeued").then_some(())
    });
    // journald's clients try the socket with an empty message.
    told.retain(|event| !event.is_empty());
    let find = |what: &[(&str, &str)]| {
        let fits = |event: &&BTreeMap<String, String>| {
            what.iter()
                .all(|(name, value)| event.get(*name).is_some_and(|have| have == value))
        };
        told.iter()
            .find(fits)
            .unwrap_or_else(|| panic!("no {what:?} in {told:#?}"))
    };
    for event in &told {
        assert_eq!(event["GPUOS_NODE"], "n1", "{event:?}");
        assert_eq!(event["SYSLOG_IDENTIFIER"], "gpuosd");
    }
    let drained = find(&[("GPUOS_GPU", "2"), ("GPUOS_UID", "0"), ("PRIORITY", "6")]);
    assert!(drained["MESSAGE"].starts_with("GPU 2: "), "{drained:?}");
    find(&[("GPUOS_GPU", "3"), ("GPUOS_RULE", "xid-48")]);
    find(&[("GPUOS_JOB", "7"), ("MESSAGE", "job 7 is requeued")]);
    assert_eq!(site.log(), "", "nothing goes to standard error beside");
}

#[test]
fn systemds_journald_finds_events_by_gpu_and_job() {
    if !may_mount() {
        return;
    }
    if !Path::new(JOURNALD).exists() || !Path::new("/etc/machine-id").exists() {
        eprintln!("skipped: no {JOURNALD} or no machine id here (Debian's package systemd)");
        return;
    }
    let site = Site::new();
    site.job(7, "3");
    let files = site.path("journal");
    fs::create_dir(&files).unwrap();
    let daemon = start(&site, "real", &files);
    let shown = |how: &[&str]| {
        let mut journalctl = Command::new("journalctl");
        journalctl.args(["-q", "--no-pager", "-o"]).args(how);
        let output = journalctl.arg("--directory").arg(&files).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    happen(&site, &daemon, |message| shown(&["cat"]).contains(message));
    let find = |field: &str| {
        site.until(field, || {
            let text = shown(&["json", field]);
            let last = text.lines().last()?;
            Some(serde_json::from_str::<Value>(last).unwrap())
        })
    };
    let drained = find("GPUOS_UID=0");
    let of = |name: &str| drained[name].as_str().unwrap_or_default();
    assert_eq!(
        (of("GPUOS_NODE"), of("PRIORITY"), of("GPUOS_GPU")),
        ("n1", "6", "2")
    );
    assert_eq!(of("SYSLOG_IDENTIFIER"), "gpuosd");
    assert_eq!(find("GPUOS_JOB=7")["GPUOS_NODE"], "n1");
    assert_eq!(find("GPUOS_RULE=xid-48")["GPUOS_GPU"], "3");
}
