//! Faults of a node that end the start of gpuos_mover: a table of what is planted and what its log says, by the program itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::is_root;

/// Nobody waits that long; only a daemon that says nothing does.
const LONG: Duration = Duration::from_secs(60);

/// A node on which gpuos_mover would start.
struct Node(TempDir);

impl Node {
    fn new() -> Node {
        let node = Node(TempDir::new().unwrap());
        node.mode("", 0o755);
        for (name, mode) in [("run", 0o700), ("store", 0o700), ("jobs", 0o755)] {
            node.folder(name, mode);
        }
        node.file("gpuos.toml", "[checkpoint]\nenabled = true\n", 0o644);
        node.file("key", &"k".repeat(64), 0o400);
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        match name {
            "" => self.0.path().to_path_buf(),
            name => self.0.path().join(name),
        }
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn folder(&self, name: &str, mode: u32) {
        fs::create_dir(self.at(name)).unwrap();
        self.mode(name, mode);
    }

    fn file(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.at(name), text).unwrap();
        self.mode(name, mode);
    }

    /// The same where something else lies now.
    fn file_instead(&self, name: &str, mode: u32) {
        self.remove(name);
        self.file(name, "", mode);
    }

    fn folder_instead(&self, name: &str, mode: u32) {
        self.remove(name);
        self.folder(name, mode);
    }

    fn remove(&self, name: &str) {
        let path = self.at(name);
        match path.is_dir() {
            true => fs::remove_dir(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    /// More of `[checkpoint]`; `NODE` is the folder of all this.
    fn more(&self, line: &str) {
        let path = self.at("gpuos.toml");
        let text = fs::read_to_string(&path).unwrap();
        let line = line.replace("NODE", &self.at("").to_string_lossy());
        fs::write(&path, format!("{text}{line}\n")).unwrap();
    }

    /// With a runtime folder of its own, so that several find the same store.
    fn start(&self, runtime: &str) -> Mover {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuos_mover"));
        command.args(["--workload=gridengine", "--node=n1"]);
        for (flag, name) in [
            ("config", "gpuos.toml"),
            ("store", "store"),
            ("jobs", "jobs"),
            ("key", "key"),
            ("runtime-dir", runtime),
        ] {
            command.arg(format!("--{flag}={}", self.at(name).display()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (to, lines) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let _ = to.send(line);
            }
        });
        Mover { child, lines }
    }
}

struct Mover {
    child: Child,
    lines: Receiver<String>,
}

impl Mover {
    /// All lines of the log up to one with these words, or to its end.
    fn until(&self, words: &str) -> String {
        let mut all = String::new();
        while let Ok(line) = self.lines.recv_timeout(LONG) {
            all += &line;
            all.push('\n');
            if line.contains(words) {
                break;
            }
        }
        all
    }

    /// Its exit status, once its log has ended; `None`: it has none, and is ended.
    fn code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < LONG {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Plant = fn(&Node);

/// What is wrong, how it comes about, and what is said: the fault, and the remedy.
const FAULTS: &[(&str, Plant, &str, &str)] = &[
    (
        "a store that all may write",
        |n| n.mode("store", 0o777),
        "everybody may write in NODE/store",
        "name a folder of root's",
    ),
    (
        "a store below a folder that all may write",
        |n| n.mode("", 0o777),
        "everybody may write in NODE;",
        "name a folder of root's",
    ),
    (
        "folders of jobs that a group may write",
        |n| n.mode("jobs", 0o775),
        "others could write there",
        "mode 0755",
    ),
    (
        "a runtime folder that all may write",
        |n| n.mode("run", 0o777),
        "--runtime-dir NODE/run: everybody may write",
        "name a folder of root's",
    ),
    (
        "a store that is a file",
        |n| n.file_instead("store", 0o600),
        "NODE/store is a file",
        "name a folder",
    ),
    (
        "folders of jobs that are a file",
        |n| n.file_instead("jobs", 0o600),
        "NODE/jobs is a file",
        "name a folder",
    ),
    (
        "no gpuos.toml",
        |n| n.remove("gpuos.toml"),
        "cannot read NODE/gpuos.toml",
        "No such file",
    ),
    (
        "a gpuos.toml that is a folder",
        |n| n.folder_instead("gpuos.toml", 0o755),
        "cannot read NODE/gpuos.toml",
        "directory",
    ),
    (
        "a table without an end",
        |n| n.more("[memory"),
        "gpuos.toml:3:8",
        "expected `]`",
    ),
    (
        "neither checkpoints nor parking",
        |n| n.file("gpuos.toml", "", 0o644),
        "no checkpoints are made here, and no memory is parked",
        "enabled = true in [checkpoint]",
    ),
    (
        "a key that there is not",
        |n| n.more("colour = 3"),
        "there is no key `colour`",
        "`enabled`",
    ),
    (
        "a port beyond all",
        |n| n.more("port = 70000"),
        "port = 70000 is not accepted",
        "from 0 to 65535",
    ),
    (
        "a scheme that there is not",
        |n| n.more("scheme = \"raid\""),
        "scheme = \"raid\"",
        "not accepted",
    ),
    (
        "a relative folder",
        |n| n.more("shared = \"here\""),
        "shared = \"here\"",
        "not accepted",
    ),
    (
        "parking without an amount",
        |n| n.more("[memory]\nnvme = \"NODE/nvme\""),
        "does not say how much of it may be used",
        "nvme-gib = ",
    ),
    (
        "no key of the site",
        |n| n.remove("key"),
        "cannot read the site's key from NODE/key: No such file",
        "mode 0400",
    ),
    (
        "a key that all may read",
        |n| n.mode("key", 0o444),
        "group or others have access to it (mode 0444)",
        "mode 0400",
    ),
    (
        "a key without bytes",
        |n| n.file_instead("key", 0o400),
        "it has 0 bytes",
        "32 bytes or more",
    ),
    (
        "a key that is a folder",
        |n| n.folder_instead("key", 0o700),
        "it is no regular file",
        "mode 0400",
    ),
    (
        "a former key that is missing",
        |n| n.more("other-keys = [\"NODE/former\"]"),
        "NODE/former: No such file",
        "mode 0400",
    ),
    (
        "a former key that all may read",
        |n| {
            n.file("former", &"f".repeat(64), 0o644);
            n.more("other-keys = [\"NODE/former\"]");
        },
        "NODE/former: group or others have access",
        "mode 0400",
    ),
    (
        "a key to encrypt with that is missing",
        |n| n.more("encrypt = true\nencrypt-keys = [\"NODE/secret\"]"),
        "to encrypt checkpoints with from NODE/secret: No such file",
        "mode 0400",
    ),
    (
        "a key to encrypt with that is too short",
        |n| {
            n.file("secret", "short", 0o400);
            n.more("encrypt = true\nencrypt-keys = [\"NODE/secret\"]");
        },
        "it has 5 bytes",
        "32 bytes or more",
    ),
    (
        "a store that another has",
        |n| {
            chown(n.at("store"), Some(65534), None).unwrap();
        },
        "NODE/store is of user 65534",
        "name a folder of root's",
    ),
    (
        "a store that is a link into a folder of all",
        |n| {
            n.remove("store");
            n.folder("all", 0o777);
            symlink(n.at("all"), n.at("store")).unwrap();
        },
        "everybody may write",
        "name a folder of root's",
    ),
];

#[test]
fn a_fault_that_ends_the_start_is_named_with_its_remedy_and_changes_nothing() {
    let mut wrong = Vec::new();
    for (what, plant, fault, remedy) in FAULTS {
        if what.contains("another has") && !is_root() {
            continue;
        }
        let node = Node::new();
        // What is kept already is not touched by a daemon that does not start.
        plant(&node);
        if node.at("store").is_dir() {
            fs::create_dir(node.at("store/77")).unwrap();
            fs::write(node.at("store/77/owner"), "of a job").unwrap();
            fs::write(node.at("store/77/data"), "of a job").unwrap();
        }
        let kept = fs::read(node.at("store/77/data")).ok();
        let mut mover = node.start("run");
        let said = mover.until("for node n1");
        let here = node.at("").to_string_lossy().into_owned();
        let said = said.replace(&here, "NODE").replace("\\\"", "\"");
        if said.contains("for node n1") {
            wrong.push(format!("{what}: it starts: {said}"));
            continue;
        }
        let code = mover.code();
        if code != Some(1) || !said.contains(fault) || !said.contains(remedy) {
            wrong.push(format!("{what}: {code:?}, {said}"));
        }
        if fs::read(node.at("store/77/data")).ok() != kept {
            wrong.push(format!("{what}: the store has lost something"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn of_two_on_a_store_or_a_socket_the_second_ends() {
    let node = Node::new();
    node.folder("run2", 0o700);
    let first = node.start("run");
    let said = first.until("for node n1");
    assert!(said.contains("for node n1"), "{said}");
    let said = node.start("run2").until("stop it");
    assert!(said.contains("another gpuos_mover has"), "{said}");
    assert!(said.contains("its own --store"), "{said}");
    fs::rename(node.at("store"), node.at("former")).unwrap();
    node.folder("store", 0o700);
    let said = node.start("run").until("stop it");
    assert!(said.contains("another daemon listens there"), "{said}");
    assert!(said.contains("its own --runtime-dir"), "{said}");
}

#[test]
fn a_shared_folder_that_cannot_be_used_is_told_and_all_else_goes_on() {
    for (mode, fault, remedy) in [
        (
            None,
            "No such file",
            "see whether the file system is mounted",
        ),
        (Some(0o777), "mode 0777", "with mode 0700"),
    ] {
        let node = Node::new();
        if let Some(mode) = mode {
            node.folder("shared", mode);
        }
        node.more("shared = \"NODE/shared\"");
        let mover = node.start("run");
        let mut said = mover.until("are not drained");
        if !said.contains("for node n1") {
            said += &mover.until("for node n1");
        }
        assert!(said.contains("for node n1"), "{said}");
        assert!(said.contains("checkpoints are not drained"), "{said}");
        assert!(said.contains(fault) && said.contains(remedy), "{said}");
    }
}
